"""How much does a schedule gain, how long does it take to find, and what does a gradient through many releases need?

The six published settings by the mean field, against SciPy's L-BFGS-B on the same objective written in NumPy with
finite differences (one of them, a few steps: it needs 52 evaluations for a gradient); the law's schedule and policy at
one setting; and value and gradient of 100,000 releases, with the peak memory of a process of their own.

    python benchmarks/bench_schedules.py [--quick]
"""

import argparse
import datetime
import json
import platform
import resource
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

SETTINGS = {  # (leave, recruit, threshold): least gain over the best constant noise
    (0.11, 0.52, 0.02): 0.023,
    (0.3, 0.7, 0.2): 0.058,
    (0.5, 0.5, 0.02): 0.074,
    (0.7, 0.3, 0.2): 0.105,
    (0.45, 0.11, 0.02): 0.173,
    (0.7, 0.3, 0.02): 0.213,
}
RELEASES = 100_000
MEMORY = 2.0  # GB


def timed(call):
    import jax

    start = time.perf_counter()
    result = jax.block_until_ready(call())
    return result, time.perf_counter() - start


def gains():
    import perfjax as pj

    preset, found = pj.preset("mean-estimation"), {}
    for (leave, recruit, threshold), aim in SETTINGS.items():
        scenario = preset.replace(leave=leave, recruit=recruit, threshold=threshold)
        _, first = timed(lambda scenario=scenario: pj.tune_schedule(scenario))
        best, seconds = timed(lambda scenario=scenario: pj.tune_schedule(scenario))
        gain = 1 - float(best.ratio)
        found[f"{leave}, {recruit}, {threshold}"] = {
            "gain": gain,
            "aim": f">= {aim}",
            "verdict": "met" if gain >= aim else "MISSED",
            "s": seconds,
            "s, first call": first,
            "status": pj.Status(int(best.status)).name,
        }
    return found


def gradient_against_numpy():
    """A gradient by all 51 noises: reverse mode against differences of a recursion in NumPy with 64 nodes."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import scipy.special
    import scipy.stats

    import perfjax as pj

    scenario = pj.preset("mean-estimation")
    objective = pj.CumulativeError(first_release=0)
    slope = jax.jit(jax.value_and_grad(lambda u: objective.evaluate(scenario.with_noise(jnp.exp(u))).log_value))
    log_noise = jnp.linspace(1.9, 0.5, 51)
    jax.block_until_ready(slope(log_noise))
    _, ours = timed(lambda: [slope(log_noise) for _ in range(50)])
    nodes = scipy.stats.chi2.ppf((np.arange(64) + 0.5) / 64, 12)

    def numpy_value(u):
        n, total = 1000.0, 0.0
        for x in np.exp(u):
            m = np.sqrt((1 - 1 / n) * nodes * n) / ((n - 1) * x)
            p = np.mean(scipy.special.ndtr(m / 2 - 0.02 / m))
            total += (x * x * 12 + 12) / n
            n = min(max(n * (1 + 0.11 - 0.56 * p), 1.0), 20000.0)
        return np.log(total)

    u = np.asarray(log_noise)
    start = time.perf_counter()
    differences = [(numpy_value(u + 1e-6 * e) - numpy_value(u - 1e-6 * e)) / 2e-6 for e in np.eye(51)]
    theirs = time.perf_counter() - start
    worst = float(np.max(np.abs(np.array(differences) - np.asarray(slope(log_noise)[1]))))
    return {"ms": ours / 50 * 1e3, "ms, NumPy": theirs * 1e3, "times faster": theirs / (ours / 50), "differ by": worst}


def under_law():
    import perfjax as pj

    scenario = pj.preset("mean-estimation")
    objective = pj.CumulativeError(first_release=0, solver="law")
    schedule, by_schedule = timed(lambda: pj.tune_schedule(scenario, objective))
    policy, by_policy = timed(lambda: pj.tune_policy(scenario, objective, schedule=schedule))
    law = policy.law()
    return {
        "s, schedule, first call": by_schedule,
        "s, policy, first call": by_policy,
        "constant, schedule, policy": [float(x) for x in (policy.value_constant, policy.value_schedule, policy.value)],
        "policy, extrapolated": float(law.expected_error.sum()),
    }


def long_run():
    """In a process of its own, for its peak memory."""
    import jax
    import jax.numpy as jnp

    import perfjax as pj

    jax.config.update("jax_enable_x64", True)
    scenario, objective = pj.preset("mean-estimation").replace(rounds=RELEASES), pj.CumulativeError(first_release=0)
    slope = jax.jit(jax.value_and_grad(lambda u: objective.evaluate(scenario.with_noise(jnp.exp(u))).log_value))
    log_noise = jnp.full(RELEASES + 1, jnp.log(6.0))
    jax.block_until_ready(slope(log_noise))
    (_, gradient), seconds = timed(lambda: slope(log_noise))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(json.dumps({"s": seconds, "peak GB": peak, "finite": bool(jnp.all(jnp.isfinite(gradient)))}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="without the law; writes nothing")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "schedules_cpu.json")
    parser.add_argument("--long-run", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.long_run:
        long_run()
        return
    memory = json.loads(
        subprocess.run([sys.executable, __file__, "--long-run"], capture_output=True, check=True).stdout
    )
    import jax

    jax.config.update("jax_enable_x64", True)
    report = {
        "date": datetime.date.today().isoformat(),
        "device": f"{jax.default_backend()} ({platform.machine()})",
        "python": platform.python_version(),
        **{name: version(name) for name in ("perfjax", "jax", "numpy")},
        "schedules": gains(),
        "gradient of 51 releases": gradient_against_numpy(),
        f"gradient of {RELEASES} releases": memory
        | {"aim": f"< {MEMORY} GB", "verdict": "met" if memory["peak GB"] < MEMORY else "MISSED"},
    }
    if not arguments.quick:
        report["law"] = under_law()
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
