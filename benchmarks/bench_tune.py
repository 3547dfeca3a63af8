"""`tune` on the published grid, 30 x 30 cells at five thresholds: how exact, and how much faster than NumPy?

Two child processes run perfjax on all cells at once, in float32 and in float64 (JAX has one choice per process). Then
NumPy and SciPy do the same job cell by cell, on a random sample of the cells, one core. What was seen is printed next to
what was aimed at, and written as JSON. Of the recursion, `--cells` random cells and those at a kink are compared with
the best of 2000 noise levels, with `--full` all; of the bound always all.
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
REPEATS = {"bound": 20, "recursion": 4}
SAMPLED = {"bound": 100, "recursion": 20, "recipe": 3}  # cells of the baselines
GRID = 2000


class Cell(NamedTuple):
    leave: Any
    recruit: Any
    threshold: Any


threshold, leave, recruit = (x.ravel() for x in np.meshgrid(THRESHOLDS, AXIS, AXIS, indexing="ij"))
CELLS = Cell(leave, recruit, threshold)
COUNT = len(leave)


def best_of(repeats, run):
    """Least wall and processor time (that of all threads) of several runs, the first a warm-up, and the last result."""
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
    compile_time = time.perf_counter() - start
    wall, processor, optimum = best_of(repeats, lambda: jax.block_until_ready(compiled(batch)))
    facts = {"compile": compile_time, "wall": wall / COUNT, "processor": processor / COUNT}
    return facts | {name: np.asarray(getattr(optimum, name)) for name in ("value", "minima", "status")}


def grid_values(objective, cells):
    """The objective of every cell at every point of a log grid on the interval that `tune` searches."""
    scenario = pj.preset("mean-estimation")
    noise = jnp.geomspace(*scenario.mechanism.noise_bounds, GRID)

    def one(cell):
        return jax.vmap(lambda x: objective(scenario.replace(**cell._asdict()).with_noise(x)))(noise)

    values = jax.jit(lambda cells: jax.lax.map(one, cells, batch_size=4))(Cell(*map(jnp.asarray, cells)))
    return np.asarray(noise), np.asarray(values)


def grid_facts(name, status, checked):
    """The best of the grid for each checked cell; for the bound the places of the minima too, by cell."""
    random = np.random.default_rng(0).permutation(COUNT)[:checked]
    kinks = np.flatnonzero(status == pj.Status.KINK)  # no gradient helps there
    index = np.arange(COUNT) if name == "bound" else np.union1d(random, kinks)
    noise, values = grid_values(OBJECTIVES[name], [x[index] for x in CELLS])
    inside = values[:, 1:-1]
    dips = (inside < values[:, :-2]) & (inside <= values[:, 2:])
    return {"index": index, "best": values.min(axis=1), "dips": [noise[1:-1][dip] for dip in dips]}


def child(path, checked):
    results = {}
    exact = jax.config.jax_enable_x64
    for name, objective in OBJECTIVES.items():
        results[name] = tune_all(objective, 1 if exact else REPEATS[name])
        if exact:
            results[name] |= grid_facts(name, results[name]["status"], checked)
    path.write_bytes(pickle.dumps(results))


def in_child(precision, checked):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": str(int(precision == "float64"))}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "results")
        command = [sys.executable, __file__, "--child", str(path), "--cells", str(checked)]
        subprocess.run(command, check=True, env=environment)
        return pickle.loads(path.read_bytes())


# NumPy and SciPy, cell by cell. Float32 stays float32: Python numbers do not widen an array.

DIM, POPULATION, ROUNDS, FLOOR, CAP = 12, np.float32(1000), 50, 1.0, 20_000.0
PLACES = np.linspace(math.log(1e-3), math.log(1e3), 96, dtype=np.float32)


def chi_rule(count=32):
    """Nodes, and weights as a column, for expectations over chi_12: the trapezoid rule in log x, exact in float32."""
    y = np.linspace(*np.log([scipy.stats.chi2.ppf(1e-9, DIM), scipy.stats.chi2.isf(1e-18, DIM)]), count)
    weight = np.exp(DIM / 2 * y - np.exp(y) / 2)
    return np.exp(y / 2).astype(np.float32), (weight / weight.sum()).astype(np.float32)[:, None]


ROOT, WEIGHT = chi_rule()


def growth(noise, population, cell):
    """C for one noise, or for a column of them at once."""
    m = ROOT / (np.sqrt(population - 1) * noise)
    leaked = ndtr(m / 2 - cell.threshold / m) @ WEIGHT
    return 1 + cell.recruit - (cell.leave + cell.recruit) * leaked


def bound(noise, cell, factor):
    log = np.log(factor)
    total = np.where(np.abs(log) < 1e-6, ROUNDS, -np.expm1(-ROUNDS * log) / np.expm1(log))
    return DIM / POPULATION * (1 + noise * noise) * total


def recursion(noise, cell):
    population, total = POPULATION, 0
    for _ in range(ROUNDS):
        population = np.minimum(np.maximum(population * growth(noise, population, cell), FLOOR), CAP)
        total = total + 1 / population
    return DIM * (1 + noise * noise) * total


def numpy_tune(objective, cell):
    """The job of `tune`: a scan of 96 points at once, then a bounded search in each of the four best basins."""
    scan = objective(np.exp(PLACES)[:, None], cell).ravel()
    middle = scan[1:-1]
    deep = np.maximum(scan[:-2], scan[2:]) - middle > 2e-6 * middle  # rounding makes dips of its own
    dips = np.flatnonzero((middle < scan[:-2]) & (middle <= scan[2:]) & deep) + 1
    found = [scan.min()]
    for i in dips[np.argsort(scan[dips])][:4]:
        basin = (PLACES[i - 1], PLACES[i + 1])
        found.append(minimize_scalar(lambda u: objective(math.exp(u), cell)[0], bounds=basin, method="bounded").fun)
    return min(found)


def published_recipe(distances, cell):
    """One bounded search, the leak probability averaged over sampled distances of a record from the mean; float64."""

    def objective(noise):
        m = math.sqrt(POPULATION) / (POPULATION - 1) * distances / noise
        leaked = np.mean(1 - scipy.stats.norm.cdf(cell.threshold / m - m / 2))
        return bound(noise, cell, 1 + cell.recruit - (cell.leave + cell.recruit) * leaked)

    return minimize_scalar(objective, bounds=(0.02, 20), method="bounded").fun


def baselines():
    rng = np.random.default_rng(0)
    distances = np.sqrt((1 - 1 / POPULATION) * rng.chisquare(DIM, 50_000))  # drawn once, not timed
    jobs = {
        "bound": lambda cell: numpy_tune(lambda x, cell: bound(x, cell, growth(x, POPULATION, cell)), cell),
        "recursion": lambda cell: numpy_tune(recursion, cell),
        "recipe": lambda cell: published_recipe(distances, cell),
    }
    results = {}
    for name, job in jobs.items():
        index = rng.choice(COUNT, SAMPLED[name], replace=False)
        cells = [Cell(*(float(x[i]) for x in CELLS)) for i in index]
        with np.errstate(all="ignore"):  # limits reached by division by 0, and overflow of hopeless noise
            wall, processor, value = best_of(5, lambda job=job, cells=cells: [job(cell) for cell in cells])
        results[name] = {"wall": wall / len(cells), "processor": processor / len(cells)}
        results[name] |= {"index": index, "value": np.asarray(value)}
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
        (f"{name}: compilation, s", single["compile"], "<=", 15),
    ]


def speed(name, single, numpy, aim, against):
    return [
        (f"{name}: {against}, ms per cell", 1e3 * numpy["wall"], "", ""),
        (f"{name}: perfjax, ms per cell", 1e3 * single["wall"], "", ""),
        (f"{name}: times faster than {against}", numpy["wall"] / single["wall"], ">=", aim),
        (f"{name}: the same in processor time", numpy["processor"] / single["processor"], "", ""),
    ]


def two_minima(single, double):
    two = [i for i, dips in enumerate(double["dips"]) if len(dips) > 1]
    at_lowest = np.sum(CELLS.threshold[two] == THRESHOLDS[0])
    rows = [
        ("bound: cells with two minima, threshold 0.01", at_lowest, "==", 13),
        ("bound: cells with two minima, other thresholds", len(two) - at_lowest, "==", 0),
    ]
    for precision, minima in (("float32", single["minima"]), ("float64", double["minima"])):
        listed = sum(both_listed(minima[i], double["dips"][i]) for i in two)
        rows.append((f"bound: cells with both listed, {precision}", listed, "==", 13))
    return rows


def both_listed(minima, dips):
    """Whether the listed minima are those of the grid, to within one of its steps."""
    listed = np.sort(minima[~np.isnan(minima)])
    return len(listed) == len(dips) and np.all(np.abs(np.log(listed / dips)) < math.log(1e6) / (GRID - 1))


def compare(single, double, numpy):
    rows = []
    for name, aim in (("bound", 40), ("recursion", 10)):
        rows += exactness(name, single[name], double[name], numpy[name])
        rows += speed(name, single[name], numpy[name], aim, "NumPy")
    rows += speed("bound", single["bound"], numpy["recipe"], 1000, "published recipe")
    return rows + two_minima(single["bound"], double["bound"])


def verdict(seen, relation, aim):
    holds = {"<=": np.less_equal, ">=": np.greater_equal, "==": np.equal, "": lambda *_: None}[relation](seen, aim)
    return {True: "met", False: "MISSED", None: ""}[None if holds is None else bool(holds)]


def report(rows, path, load):
    rows = [
        (question, float(f"{seen:.4g}"), f"{relation} {aim}", verdict(seen, relation, aim))
        for question, seen, relation, aim in rows
    ]
    for question, seen, aim, met in rows:
        print(f"{question:62}{seen:12.4g}   {aim:10}{met}")
    versions = {name: version(name) for name in ("jax", "numpy", "scipy")}
    about = {
        "date": datetime.date.today().isoformat(),
        "device": f"cpu ({platform.machine()})",
        "cores": len(os.sched_getaffinity(0)),
        "load average at the start": load,
        "versions": {"python": platform.python_version(), "perfjax": pj.__version__} | versions,
    }
    keys = ("question", "seen", "aim", "verdict")
    results = [dict(zip(keys, row, strict=True)) for row in rows]
    path.write_text(json.dumps(about | {"results": results}, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=300, help="random cells of the recursion compared with a grid")
    parser.add_argument("--full", action="store_true", help="compare all of them")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "tune_cpu.json")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    checked = COUNT if arguments.full else arguments.cells
    if arguments.child:
        return child(arguments.child, checked)
    load = os.getloadavg()[0]
    single, numpy, double = in_child("float32", checked), baselines(), in_child("float64", checked)
    return report(compare(single, double, numpy), arguments.json, load)


if __name__ == "__main__":
    main()
