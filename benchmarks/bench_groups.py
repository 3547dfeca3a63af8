"""How fast are private counts released, and the best lower bounds found?

Simulated releases: ten million counts by the shifted log-Gaussian mechanism, clipped and rounded stochastically; NumPy
does the same in the same run, as one writes it and in the same dtype, and all take turns. Releases to be published,
drawn exactly: a million counts of each size. Bounds: the best prior for 1,000 random pairs of count and tolerance,
against SciPy's L-BFGS-B on the logits of 200 counts, with an exact gradient, for a few of them.

    python benchmarks/bench_groups.py [--quick]
"""

import argparse
import json
import math
import platform
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from perfjax import count_privacy

COUNTS = 10_000_000
EXACT = 1_000_000
PRIORS = 1000
CELLS = ((10, 0.1), (5, 0.2), (20, 0.05))  # whose best prior SciPy looks for


def with_numpy(counts, sigma, shift, dtype):
    rng, n = np.random.default_rng(0), counts.astype(dtype)
    sigma, shift = dtype(sigma), dtype(shift)

    def run():
        noise = rng.standard_normal(n.size, dtype=dtype)
        value = np.maximum((n + shift) * np.exp(sigma * noise - sigma**2) - shift, 0)
        return np.floor(value + rng.random(n.size, dtype=dtype))

    return run


def with_perfjax(counts, mechanism, dtype):
    n = jnp.asarray(counts, dtype)
    made = jax.tree.map(lambda x: x.astype(dtype), mechanism)
    key = jax.random.key(0)
    return lambda: jax.block_until_ready(count_privacy.simulate_release(made, n, key=key))


def timed(runs, repeats):
    """Least wall and processor seconds of each, over `repeats` turns after one to warm up."""
    best = dict.fromkeys(runs, (math.inf, math.inf))
    for turn in range(repeats + 1):
        for name, run in runs.items():
            wall, processor = time.perf_counter(), time.process_time()
            run()
            spent = time.perf_counter() - wall, time.process_time() - processor
            if turn:
                best[name] = tuple(map(min, best[name], spent))
    return {name: {"wall_s": round(w, 4), "processor_s": round(p, 4)} for name, (w, p) in best.items()}


def releases(repeats):
    counts = np.random.default_rng(1).integers(0, 10_000, COUNTS)
    mechanism = count_privacy.design("log-gaussian", 0.1)
    rows = timed(
        {
            "perfjax float32": with_perfjax(counts, mechanism, jnp.float32),
            "perfjax float64": with_perfjax(counts, mechanism, jnp.float64),
            "NumPy float64": with_numpy(counts, float(mechanism.sigma), 1.0, np.float64),
            "NumPy float32": with_numpy(counts, float(mechanism.sigma), 1.0, np.float32),
        },
        repeats,
    )
    ours = rows["perfjax float32"]
    ratios = {
        name: {unit: round(row[unit] / ours[unit], 2) for unit in row} for name, row in rows.items() if "NumPy" in name
    }
    return {"counts": COUNTS, "rows": rows, "times slower than perfjax float32": ratios}


def exact_releases():
    """Seconds, wall and processor, for a million counts of each size."""
    sizes = {"below 1e4": np.random.default_rng(1).integers(0, 10_000, EXACT)}
    sizes |= {f"{n:.0e}": np.full(EXACT, int(n)) for n in (1e6, 1e9, 1e12)}
    rows = {}
    for name in count_privacy.DESIGNS:
        made = count_privacy.design(name, 0.1)
        for size, counts in sizes.items():
            wall, processor = time.perf_counter(), time.process_time()
            count_privacy.release(made, counts)
            spent = time.perf_counter() - wall, time.process_time() - processor
            rows[f"{name}, {size}"] = dict(zip(("wall_s", "processor_s"), (round(x, 2) for x in spent), strict=True))
    return {"counts": EXACT, "rows": rows}


def scipy_prior(n, r, size=200):
    """The best prior of the best centre, by logits."""
    j = np.arange(size)

    def loss(logits, centre):
        p = np.exp(logits - logits.max())
        p /= p.sum()
        log_p = np.log(np.maximum(p, 1e-300))
        entropy, mean, spread = -np.sum(p * log_p), np.sum(p * j), np.sum(p * (j - centre) ** 2)
        cost = r * (n + mean) + 0.25
        value = (entropy - math.log(2 * math.e * cost)) / spread
        slope = (-log_p - r * j / cost - value * (j - centre) ** 2) / spread
        return -value, -p * (slope - np.sum(p * slope))

    def best(centre):
        start = -(((j - centre) / (1 + 2 * r * n)) ** 2) / 2
        options = {"maxiter": 2000, "maxfun": 4000, "ftol": 1e-15, "gtol": 1e-12}
        return -scipy.optimize.minimize(loss, start, (centre,), jac=True, method="L-BFGS-B", options=options).fun

    value, centre = -1.0, 0
    while (found := best(centre)) > value:  # unimodal in the centre
        value, centre = found, centre + 1
    return value


def priors(repeats):
    rng = np.random.default_rng(2)
    n, r = np.floor(np.exp(rng.uniform(0, 6, PRIORS))), rng.uniform(0.01, 0.4, PRIORS)
    ours = timed({"all": lambda: jax.block_until_ready(count_privacy.best_prior_bound(n, r))}, repeats)["all"]
    begin, gaps = time.perf_counter(), []
    for cell in CELLS:
        gaps.append(scipy_prior(*cell) / float(count_privacy.best_prior_bound(*map(float, cell))) - 1)
    each = (time.perf_counter() - begin) / len(CELLS)
    return {
        "perfjax, priors a second": round(PRIORS / ours["wall_s"]),
        "SciPy, priors a second": round(1 / each, 2),
        "times faster": round(each * PRIORS / ours["wall_s"]),
        "SciPy's bounds over ours, less 1": [float(f"{gap:.2g}") for gap in gaps],
    }


def main() -> None:
    """Time, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    jax.config.update("jax_enable_x64", True)
    report = {"device": f"{jax.devices()[0].platform}, {platform.machine()}", "jax": jax.__version__}
    report |= {"numpy": np.__version__, "python": platform.python_version()}
    report |= {"releases": releases(2 if quick else 8), "exact releases": exact_releases()}
    report |= {"priors": priors(1 if quick else 3)}
    print(json.dumps(report, indent=2))
    path = Path(__file__).parent / "results" / "groups_cpu.json"
    path.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
