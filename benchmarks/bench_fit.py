"""How fast is a series of counts fitted, and a thousand of them?

Series of 40 rounds, simulated from the published mean-estimation setting with noise between 0.5 and 8 in random order.
SciPy's L-BFGS-B climbs perfjax's own likelihood of some of them from the same starts, by finite differences: what is
saved is the derivatives and the search, not the likelihood.

    python benchmarks/bench_fit.py [--quick]
"""

import argparse
import json
import platform
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

import perfjax as pj
from perfjax import calibration
from perfjax.calibration._likelihood import evaluate
from perfjax.calibration._parameters import unconstrained
from perfjax.calibration._search import prepared

ROUNDS, GROUPS, WITH_SCIPY = 40, 1000, 5
NOISE = np.append(np.random.default_rng(0).permutation(np.geomspace(0.5, 8, ROUNDS)), 1.0)


def simulated(groups):
    truth = pj.preset("mean-estimation").replace(cap=1e6, rounds=ROUNDS)
    runs = pj.simulate_counts(truth, key=jax.random.key(8), trials=groups, noise=NOISE)
    return truth, np.asarray(runs.population)


def timed(call):
    wall, processor = time.perf_counter(), time.process_time()
    result = call()
    jax.block_until_ready(result.places)
    return result, time.perf_counter() - wall, time.process_time() - processor


def fit(truth, counts):
    return calibration.fit(calibration.Series(counts, noise=NOISE), truth)


def with_scipy(fitted, truth):
    """Seconds for a fit by SciPy, and by how much it stays below."""
    value = jax.jit(lambda problem, places: evaluate(problem, places).value)
    seconds, short = [], []
    start = np.asarray(jnp.stack([unconstrained(name, truth.leaves()[name]) for name in fitted.free]))
    for group in range(WITH_SCIPY):
        some = jax.tree.map(lambda x, group=group: x[group : group + 1], fitted.problem)
        problem = jax.tree.map(lambda x: x[0], prepared(some)[0])
        bounds = list(zip(np.asarray(problem.low), np.asarray(problem.high), strict=True))
        value(problem, jnp.asarray(start))
        began = time.perf_counter()
        found = scipy.optimize.minimize(
            lambda p, problem=problem: -float(value(problem, jnp.asarray(p))), start, method="L-BFGS-B", bounds=bounds
        )
        seconds.append(time.perf_counter() - began)
        short.append(float(fitted.log_likelihood[group]) + found.fun)
    return float(np.mean(seconds)), float(np.max(short))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="200 series in place of 1000")
    groups = 200 if parser.parse_args().quick else GROUPS
    jax.config.update("jax_enable_x64", True)
    truth, counts = simulated(groups)
    _, first, _ = timed(lambda: fit(truth, counts[0]))
    _, one, _ = timed(lambda: fit(truth, counts[1]))
    _, first_groups, _ = timed(lambda: fit(truth, counts[:16]))
    fitted, wall, processor = timed(lambda: fit(truth, counts))
    scipy_seconds, scipy_short = with_scipy(fitted, truth)
    found = {
        "one_fit_seconds": one,
        "one_fit_compilation_seconds": first - one,
        "groups": groups,
        "groups_seconds": wall,
        "groups_processor_seconds": processor,
        "groups_compilation_seconds": first_groups - wall * 16 / groups,
        "scipy_seconds": scipy_seconds,
        "scipy_log_likelihood_below": scipy_short,
        "about": {
            "device": jax.devices()[0].device_kind,
            "python": platform.python_version(),
            "jax": jax.__version__,
            "numpy": np.__version__,
        },
    }
    print(
        f"A fit of {ROUNDS} rounds: {one:.2f} s (aim 5; compilation {first - one:.0f} s); {groups} groups: "
        f"{wall:.0f} s, {processor:.0f} s of processor time (aim 60 for 1000). SciPy: {scipy_seconds:.2f} s each "
        f"from one start, at most {scipy_short:.2g} below in log likelihood."
    )
    out = Path(__file__).parent / "results" / "fit_cpu.json"
    out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
