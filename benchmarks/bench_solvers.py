"""What does a release cost at the count level, user by user, in NumPy, and a whole distribution by the law?

NumPy runs Algorithm 1 of our own, vectorised over users, with `default_rng`, in the same dtype and the same run. All
take turns, so that a busy machine slows all of them. perfjax's times are those of all its threads together, too.

    python benchmarks/bench_solvers.py [--quick]
"""

import argparse
import datetime
import json
import math
import os
import platform
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from algorithm_1 import DIM, LEAVE, NOISE, RECRUIT, THRESHOLD, plain_release, swift_release

import perfjax as pj
from perfjax.law import law_of

RADIUS = 10.0  # as published: it binds almost never
COUNTS = (1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9)
TRIALS, ROUNDS = 20_000, 50
CELLS = np.linspace(0.01, 0.99, 30)


def numpy_run(release, dtype, n, releases=200):
    rng = np.random.default_rng(0)

    def run():
        for _ in range(releases):
            release(rng, n, np.dtype(dtype).type, RADIUS)

    return run, releases


def held_at(n, dtype, rounds):
    """The published mechanism with the population held at n."""
    return pj.Scenario(
        pj.GaussianMean(NOISE, dim=DIM, clip_radius=RADIUS),
        pj.LikelihoodRatioAbove(THRESHOLD),
        pj.Participation(LEAVE, RECRUIT, floor=n, cap=n),
        population=n,
        rounds=rounds,
    ).astype(dtype)


def count_run(dtype, n):
    scenario, key = held_at(n, dtype, ROUNDS - 1), jax.random.key(0)
    simulate = eqx.filter_jit(lambda s, k: jnp.sum(pj.simulate_counts(s, key=k, trials=TRIALS).expected_error))
    return lambda: jax.block_until_ready(simulate(scenario, key)), TRIALS * ROUNDS


def user_run(dtype, n, releases=10):
    scenario, key = held_at(n, dtype, releases - 1), jax.random.key(0)
    return lambda: jax.block_until_ready(pj.simulate_users(scenario, key=key, trials=1).population), releases


def turns(runs, repeats):
    """Least wall and processor seconds per release of each."""
    best = dict.fromkeys(runs, (math.inf, math.inf))
    for run, _ in runs.values():
        run()
    for _ in range(repeats):
        for name, (run, releases) in runs.items():
            wall, processor = time.perf_counter(), time.process_time()
            run()
            took = time.perf_counter() - wall, time.process_time() - processor
            best[name] = tuple(min(b, t / releases) for b, t in zip(best[name], took, strict=True))
    return best


def per_release(dtype, repeats):
    runs = {"plain NumPy n=1000": numpy_run(plain_release, dtype, 1000)}
    runs |= {f"swift NumPy n={n}": numpy_run(swift_release, dtype, n, 200_000 // n) for n in (1000, 20_000)}
    runs["users n=20000"] = user_run(dtype, 20_000.0)
    runs |= {f"counts n={n:.0e}": count_run(dtype, n) for n in COUNTS}
    best = turns(runs, repeats)
    counts = [best[f"counts n={n:.0e}"] for n in COUNTS]
    for name, (wall, processor) in best.items():
        yield f"{dtype} {name}: us per release", 1e6 * wall, ""
        yield f"{dtype} {name}: us of processor per release", 1e6 * processor, ""
    for kind, aim in (("plain", ">= 1000"), ("swift", "")):
        ratio = np.divide(best[f"{kind} NumPy n=1000"], counts[1])
        yield f"{dtype}: {kind} NumPy over counts, n = 1000", ratio[0], aim
        yield f"{dtype}: the same in processor time", ratio[1], ""
    yield f"{dtype}: dearest over cheapest n", max(c[1] for c in counts) / min(c[1] for c in counts), "<= 1.5"
    yield f"{dtype}: users over NumPy, n = 20000", best["users n=20000"][1] / best["swift NumPy n=20000"][1], "<= 1.25"


def of_law(repeats):
    scenario = pj.preset("mean-estimation")
    leave, recruit = (jnp.asarray(x.ravel()) for x in np.meshgrid(CELLS, CELLS))

    def value(q, r, noise):
        law = law_of(scenario.replace(leave=q, recruit=r, noise_scale=noise))
        return jnp.sum(law.expected_error), law.collapse_probability[-1]

    one = jax.jit(value)
    batch = jax.jit(lambda q, r: jax.lax.map(lambda cell: value(*cell, 5.0), (q, r)))
    start = time.perf_counter()
    jax.block_until_ready(one(0.45, 0.11, 5.0))
    yield "law: first call, compilation included, s", time.perf_counter() - start, ""
    best = turns({"one": (lambda: jax.block_until_ready(one(0.45, 0.11, 4.0)), 1)}, 4 * repeats)["one"]
    yield "law: one noise level, T = 50, cap 20000, float64, ms", 1e3 * best[0], "<= 40"
    yield "law: the same of processor time, ms", 1e3 * best[1], ""
    jax.block_until_ready(batch(leave[:900], recruit[:900]))
    start = time.perf_counter()
    error, _ = jax.block_until_ready(batch(leave, recruit))
    yield "law: 900 cells, s", time.perf_counter() - start, "<= 60"
    yield "law: finite cells of 900", float(np.isfinite(error).sum()), ">= 900"


def met(seen, aim):
    if not aim:
        return ""
    relation, limit = aim.split()
    return "met" if (seen <= float(limit) if relation == "<=" else seen >= float(limit)) else "MISSED"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "solvers_cpu.json")
    arguments = parser.parse_args()
    repeats = 3 if arguments.quick else 10
    jax.config.update("jax_enable_x64", True)
    report = {
        "date": datetime.date.today().isoformat(),
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
        "load average before": os.getloadavg()[0],
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "results": [],
    }
    for rows in (per_release("float32", repeats), per_release("float64", repeats), of_law(repeats)):
        for question, seen, aim in rows:
            line = {"question": question, "seen": float(f"{seen:.4g}"), "aim": aim, "verdict": met(seen, aim)}
            report["results"].append(line)
            print("{question:60} {seen:10.4g}  {aim:9} {verdict}".format(**line), flush=True)
    arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
