"""Does a GPU give the CPU's float32 results, and how fast? One script, under 4 minutes with compilation; prints JSON.

Every part runs on the first accelerator and, with the same key, on the CPU of the same process:

- counts: releases per second of `simulate_counts` at the published settings, 50 releases.
- users: records per second of `simulate_users` at the published settings.
- tune: the published 4500 cells by the mean-field recursion; their best values must agree.
- law: `population_law`; summed expected errors must agree. Again with full matmul precision, so that a disagreement of
  the first alone says that the device multiplies matrices in less than float32.

Random bits are the same on both, but a last bit of a quantile can move a count by one, and from there runs part. So of
the samples, most first steps must be equal, and means must agree within their standard errors. Exits with 1 if
anything disagrees, with 2 if there is no accelerator (and no `--quick`, which is for trying the script on a CPU).

    python benchmarks/gpu_check.py [--quick]
"""

import argparse
import contextlib
import datetime
import json
import sys
import time
from importlib.metadata import version

import jax
import numpy as np

import perfjax as pj

THRESHOLDS = (0.01, 0.02, 0.05, 0.1, 0.2)
SAME_STEPS = 0.99  # least share of first steps that are equal
DEVIATIONS = 4.5  # most standard errors between means
VALUES = 1e-4  # most relative difference of best values and of laws
# Trials of counts, alone and beside the CPU; values of leave and of recruit; trials of users; noises of the law.
FULL = {"counts": 1_000_000, "compared": 20_000, "cells": 30, "users": 2048, "laws": 16}
QUICK = {"counts": 2_000, "compared": 2_000, "cells": 3, "users": 4, "laws": 2}


def scenario(**leaves):
    return pj.preset("mean-estimation").replace(outside="recomputed", noise_scale=5.7, **leaves)


def timed(call):
    """The result, the seconds of the first call, and of the next one."""
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        result = jax.block_until_ready(call())
        seconds.append(time.perf_counter() - start)
    return result, seconds[0] - seconds[1], seconds[1]


def both(device, call):
    """`timed` on the device, and the result on the CPU."""
    with jax.default_device(device):
        found = timed(call)
    with jax.default_device(jax.devices("cpu")[0]):
        return *found, jax.block_until_ready(call())


def deviation(one, other):
    """Standard errors between the means of two samples, as if they were independent."""
    one, other = (np.asarray(x, float) for x in (one, other))
    spread = np.sqrt(one.var() / one.size + other.var() / other.size)
    return float(np.abs(one.mean() - other.mean()) / max(spread, 1e-300))


def same_runs(mine, theirs):
    """What two simulations with one key have in common."""
    mine, theirs = (jax.tree.map(np.asarray, x) for x in (mine, theirs))
    first = float(np.mean(mine.population[:, 1] == theirs.population[:, 1]))
    users = deviation(mine.population[:, -1], theirs.population[:, -1])
    error = deviation(mine.expected_error.sum(axis=1), theirs.expected_error.sum(axis=1))
    agrees = first >= SAME_STEPS and max(users, error) <= DEVIATIONS
    return {"equal first steps": first, "s.e. between populations": users, "s.e. between errors": error} | verdict(
        agrees
    )


def verdict(agrees):
    return {"agrees": bool(agrees)}


def counts(device, size):
    """Throughput with many trials, agreement with fewer."""

    def many(trials):
        return pj.simulate_counts(scenario(rounds=49), key=jax.random.key(0), trials=trials)

    with jax.default_device(device):
        _, compiling, seconds = timed(lambda: many(size["counts"]).population)
    mine, _, _, theirs = both(device, lambda: many(size["compared"]))
    rate = size["counts"] * 50 / seconds
    return {"releases/s": rate, "seconds": seconds, "compilation": compiling} | same_runs(mine, theirs)


def users(device, size):
    def call():
        return pj.simulate_users(scenario(rounds=9), key=jax.random.key(1), trials=size["users"])

    mine, compiling, seconds, theirs = both(device, call)
    rate = float(np.asarray(mine.population).sum()) / seconds
    return {"records/s": rate, "seconds": seconds, "compilation": compiling} | same_runs(mine, theirs)


def tune(device, size):
    axis = np.linspace(0.01, 0.99, size["cells"])
    over = {"threshold": THRESHOLDS, "leave": axis, "recruit": axis}

    def swept(where):
        start = time.perf_counter()
        data = pj.sweep(pj.tune, pj.preset("mean-estimation"), over, fields=["log_value", "noise"], devices=[where])
        return data, time.perf_counter() - start, data.attrs["wall_seconds"]

    mine, whole, seconds = swept(device)
    theirs, _, _ = swept(jax.devices("cpu")[0])
    worst = float(np.abs(np.expm1(mine.log_value.values - theirs.log_value.values)).max())
    return {
        "cells": mine.noise.size,
        "seconds": seconds,
        "compilation": whole - seconds,
        "worst relative difference of values": worst,
    } | verdict(worst <= VALUES)


def law(device, size, precision):
    noises = np.geomspace(3, 8, size["laws"])

    def call():
        return [pj.population_law(scenario(), noise=x).expected_error for x in noises]

    with jax.default_matmul_precision(precision) if precision else contextlib.nullcontext():
        mine, compiling, seconds, theirs = both(device, call)
    sums = [np.asarray(errors, float).sum(axis=1) for errors in (mine, theirs)]
    worst = float(np.max(np.abs(sums[0] / sums[1] - 1)))
    return {
        "seconds for one noise": seconds / len(noises),
        "compilation": compiling,
        "worst relative difference of summed errors": worst,
    } | verdict(worst <= VALUES)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, and content with a CPU alone")
    quick = parser.parse_args().quick
    device, size = jax.devices()[0], QUICK if quick else FULL
    if device.platform == "cpu" and not quick:
        print("gpu_check: there is no accelerator here.", file=sys.stderr)
        return 2
    start = time.perf_counter()
    report = {
        "date": datetime.date.today().isoformat(),
        "device": f"{device.device_kind} ({device.platform})",
        "perfjax": pj.__version__,
        "jax": version("jax"),
        "counts": counts(device, size),
        "users": users(device, size),
        "tune": tune(device, size),
        "law": law(device, size, None),
        "law, full matmul precision": law(device, size, "highest"),
    }
    parts = [part for part in report.values() if isinstance(part, dict)]
    report |= {"seconds": time.perf_counter() - start, "agrees": all(part["agrees"] for part in parts)}
    print(json.dumps(report, indent=1))
    return 0 if report["agrees"] else 1


if __name__ == "__main__":
    sys.exit(main())
