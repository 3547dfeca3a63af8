"""`tune` on the published grid, 30 x 30 cells at five thresholds: how exact, and how much faster than NumPy?

perfjax takes all cells at once, in one child process per precision (JAX has one for a process). NumPy and SciPy do the
same job cell by cell on one core, for a random sample of the cells. What was seen is printed next to what was aimed at.
"""

import argparse
import datetime
import json
import math
import os
import pickle
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from scipy.optimize import minimize_scalar
from scipy.special import ndtr

import perfjax as pj

AXIS, THRESHOLDS = np.linspace(0.01, 0.99, 30), (0.01, 0.02, 0.05, 0.1, 0.2)
OBJECTIVES = {"bound": pj.CumulativeBound(), "recursion": pj.CumulativeError()}
REPEATS = {"bound": 30, "recursion": 5}
SAMPLED = {"bound": 100, "recursion": 20, "recipe": 3}  # cells of the baselines
GRID = 2000


class Cell(NamedTuple):
    leave: Any
    recruit: Any
    threshold: Any


def published_cells():
    threshold, leave, recruit = np.meshgrid(THRESHOLDS, AXIS, AXIS, indexing="ij")
    return Cell(leave.ravel(), recruit.ravel(), threshold.ravel())


CELLS = published_cells()
COUNT = len(CELLS.leave)


def best_of(repeats, run):
    """Least wall and processor seconds (those of all threads) among several runs, and the last result."""
    times = []
    for _ in range(repeats):
        wall, processor = time.perf_counter(), time.process_time()
        result = run()
        times.append((time.perf_counter() - wall, time.process_time() - processor))
    return *np.min(times, axis=0), result


# perfjax, all cells at once


def tune_all(objective, repeats):
    batch = pj.preset("mean-estimation").replace(**CELLS._asdict())
    axes = jax.tree.map(lambda leaf: 0 if leaf.ndim else None, batch)
    tune = eqx.filter_jit(eqx.filter_vmap(lambda scenario: pj.tune(scenario, objective), in_axes=(axes,)))
    start = time.perf_counter()
    compiled = tune.lower(batch).compile()
    compilation = time.perf_counter() - start
    wall, processor, optimum = best_of(repeats, lambda: jax.block_until_ready(compiled(batch)))
    facts = {"compilation": compilation, "wall": wall / COUNT, "processor": processor / COUNT}
    return facts | {name: np.asarray(getattr(optimum, name)) for name in ("value", "minima", "status")}


def grid_facts(objective, index):
    """For some cells the best of a log grid on the interval that `tune` searches, and the places of its minima."""
    scenario = pj.preset("mean-estimation")
    noise = jnp.geomspace(*scenario.mechanism.noise_bounds, GRID)

    def one(cell):
        return jax.vmap(lambda x: objective(scenario.replace(**cell._asdict()).with_noise(x)))(noise)

    cells = Cell(*(jnp.asarray(x[index]) for x in CELLS))
    values = np.asarray(jax.jit(lambda cells: jax.lax.map(one, cells, batch_size=4))(cells))
    dips = (values[:, 1:-1] < values[:, :-2]) & (values[:, 1:-1] <= values[:, 2:])
    return {"index": index, "best": values.min(axis=1), "dips": [np.asarray(noise[1:-1])[dip] for dip in dips]}


def child(path, checked):
    results, exact = {}, jax.config.jax_enable_x64
    for name, objective in OBJECTIVES.items():
        results[name] = tune_all(objective, 1 if exact else REPEATS[name])
        random = np.random.default_rng(0).permutation(COUNT)[:checked]
        kinks = np.flatnonzero(results[name]["status"] == pj.Status.KINK)  # where no gradient leads to the minimum
        if exact:
            index = np.arange(COUNT) if name == "bound" else np.union1d(random, kinks)
            results[name] |= grid_facts(objective, index)
    path.write_bytes(pickle.dumps(results))


def in_child(precision, checked):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": str(int(precision == "float64"))}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "results")
        command = [sys.executable, __file__, "--child", str(path), "--cells", str(checked)]
        subprocess.run(command, check=True, env=environment)
        return pickle.loads(path.read_bytes())


# NumPy and SciPy, cell by cell; float32 stays float32, since Python numbers do not widen an array

DIM, POPULATION, ROUNDS, FLOOR, CAP = 12, np.float32(1000), 50, 1.0, 20_000.0
PLACES = np.linspace(math.log(1e-3), math.log(1e3), 96, dtype=np.float32)


def chi_rule(count):
    """Nodes, and weights as a column, for expectations over chi_12: the trapezoid rule in log x."""
    y = np.linspace(*np.log([scipy.stats.chi2.ppf(1e-9, DIM), scipy.stats.chi2.isf(1e-18, DIM)]), count)
    weight = np.exp(DIM / 2 * y - np.exp(y) / 2)
    return np.exp(y / 2).astype(np.float32), (weight / weight.sum()).astype(np.float32)[:, None]


ROOT, WEIGHT = chi_rule(32)


def growth(noise, population, cell):
    """C for one noise, or for a column of them at once."""
    m = ROOT / (np.sqrt(population - 1) * noise)
    return 1 + cell.recruit - (cell.leave + cell.recruit) * (ndtr(m / 2 - cell.threshold / m) @ WEIGHT)


def bound(noise, factor):
    log = np.log(factor)
    total = np.where(np.abs(log) < 1e-6, ROUNDS, -np.expm1(-ROUNDS * log) / np.expm1(log))
    return DIM / POPULATION * (1 + noise * noise) * total


def recursion(noise, cell):
    population, total = POPULATION, 0
    for _ in range(ROUNDS):
        population = np.minimum(np.maximum(population * growth(noise, population, cell), FLOOR), CAP)
        total = total + 1 / population
    return DIM * (1 + noise * noise) * total


def search(objective):
    """The job of `tune`: a scan of 96 points at once, then a bounded search in each of the four best basins."""
    scan = objective(np.exp(PLACES)[:, None]).ravel()
    middle = scan[1:-1]
    deep = np.maximum(scan[:-2], scan[2:]) - middle > 2e-6 * middle  # rounding makes dips of its own
    dips = np.flatnonzero((middle < scan[:-2]) & (middle <= scan[2:]) & deep) + 1
    found = [scan.min()]
    for i in dips[np.argsort(scan[dips])][:4]:
        basin = PLACES[i - 1], PLACES[i + 1]
        found.append(minimize_scalar(lambda u: objective(math.exp(u))[0], bounds=basin, method="bounded").fun)
    return min(found)


def published_recipe(distances, cell):
    """One bounded search, the leak probability averaged over sampled distances of a record from the mean; float64."""

    def objective(noise):
        m = math.sqrt(POPULATION) / (POPULATION - 1) * distances / noise
        leaked = np.mean(1 - scipy.stats.norm.cdf(cell.threshold / m - m / 2))
        return bound(noise, 1 + cell.recruit - (cell.leave + cell.recruit) * leaked)

    return minimize_scalar(objective, bounds=(0.02, 20), method="bounded").fun


def baselines():
    rng = np.random.default_rng(0)
    distances = np.sqrt((1 - 1 / float(POPULATION)) * rng.chisquare(DIM, 50_000))  # once, and not timed
    jobs = {
        "bound": lambda cell: search(lambda x: bound(x, growth(x, POPULATION, cell))),
        "recursion": lambda cell: search(lambda x: recursion(x, cell)),
        "recipe": lambda cell: published_recipe(distances, cell),
    }
    results = {}
    for name, job in jobs.items():
        index = rng.choice(COUNT, SAMPLED[name], replace=False)
        cells = [Cell(*(float(x[i]) for x in CELLS)) for i in index]
        with np.errstate(all="ignore"):  # overflow of hopeless noise, and limits reached by division by 0
            wall, processor, value = best_of(5, lambda job=job, cells=cells: [job(cell) for cell in cells])
        times = {"wall": wall / len(cells), "processor": processor / len(cells)}
        results[name] = times | {"index": index, "value": np.asarray(value)}
    return results


# The comparison: rows of (question, seen, relation, aim)


def exactness(name, single, double, numpy):
    low, high = single["value"], double["value"]
    excess = np.max(high[double["index"]] / double["best"] - 1)
    from_numpy = np.max(np.abs(numpy["value"] / high[numpy["index"]] - 1))
    return [
        (f"{name}: excess over the best of {GRID}, worst of {len(double['index'])} cells", excess, "<=", 1e-6),
        (f"{name}: cells finite in float32", np.isfinite(low).sum(), "==", COUNT),
        (f"{name}: float32 against float64, worst cell", np.max(np.abs(low / high - 1)), "<=", 1e-4),
        (f"{name}: NumPy against float64, worst of {len(numpy['index'])} cells", from_numpy, "<=", 1e-4),
    ]


def two_minima(single, double):
    two = [i for i, dips in enumerate(double["dips"]) if len(dips) > 1]
    counts = [np.sum(CELLS.threshold[two] == threshold) for threshold in THRESHOLDS]
    yield "bound: cells with two minima at threshold 0.01", counts[0], "==", 13
    yield "bound: cells with two minima elsewhere", sum(counts[1:]), "==", 0
    for precision, minima in (("float32", single["minima"]), ("float64", double["minima"])):
        listed = sum(both_listed(minima[i], double["dips"][i]) for i in two)
        yield f"bound: cells with both listed, {precision}", listed, "==", 13


def both_listed(minima, dips):
    """Whether the listed minima are those of the grid, to within one of its steps."""
    listed = np.sort(minima[~np.isnan(minima)])
    return len(listed) == len(dips) and np.all(np.abs(np.log(listed / dips)) < math.log(1e6) / (GRID - 1))


def speed(name, single, numpy, against, aim):
    yield f"{name}: {against}, ms per cell", 1e3 * numpy["wall"], "", ""
    yield f"{name}: times faster than {against}", numpy["wall"] / single["wall"], ">=", aim
    yield f"{name}: the same in processor time", numpy["processor"] / single["processor"], "", ""


def compare(single, double, numpy):
    for name, aim in (("bound", 40), ("recursion", 10)):
        yield from exactness(name, single[name], double[name], numpy[name])
        yield f"{name}: compilation, s", single[name]["compilation"], "<=", 15
        yield f"{name}: perfjax, ms per cell", 1e3 * single[name]["wall"], "", ""
        yield from speed(name, single[name], numpy[name], "NumPy", aim)
    yield from speed("bound", single["bound"], numpy["recipe"], "published recipe", 1000)
    yield from two_minima(single["bound"], double["bound"])


def verdict(seen, relation, aim):
    if not relation:
        return ""
    met = {"<=": np.less_equal, ">=": np.greater_equal, "==": np.equal}[relation](seen, aim)
    return "met" if met else "MISSED"


def about():
    return {
        "date": datetime.date.today().isoformat(),
        "device": f"cpu ({platform.machine()})",
        "cores": os.cpu_count(),
        "load average before": os.getloadavg()[0],
        "python": platform.python_version(),
        "perfjax": pj.__version__,
    } | {name: version(name) for name in ("jax", "numpy", "scipy")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=300, help="random cells of the recursion compared with a grid")
    parser.add_argument("--full", action="store_const", const=COUNT, dest="cells", help="compare all of them")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "tune_cpu.json")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return child(arguments.child, arguments.cells)
    report = about()
    single, numpy, double = in_child("float32", 0), baselines(), in_child("float64", arguments.cells)
    report["results"] = []
    for question, seen, relation, aim in compare(single, double, numpy):
        line = {"question": question, "seen": float(f"{seen:.4g}"), "aim": f"{relation} {aim}".strip()}
        report["results"].append(line | {"verdict": verdict(seen, relation, aim)})
        print("{question:64} {seen:10.4g}   {aim:10} {verdict}".format(**report["results"][-1]))
    return arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
