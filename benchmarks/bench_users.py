"""Does user-by-user simulation keep up with NumPy, and which block size is best?

One release to 20000 users of 12 features, clipping on and off: records, clipping, mean, noise, likelihood ratio of
every user, departures and recruits. NumPy does the same, vectorised over all users, with `default_rng`, in the same
dtype and the same run; both take turns, so that a busy machine slows both. Floor and cap hold the population at 20000.

    python benchmarks/bench_users.py [--quick]
"""

import argparse
import json
import math
import platform
import time
from pathlib import Path

import jax
import numpy as np
from algorithm_1 import DIM, LEAVE, NOISE, RECRUIT, THRESHOLD, swift_release

import perfjax as pj
from perfjax.montecarlo import _users, simulate_users

USERS = 20_000
RELEASES = 10  # per timing, of one trial
BLOCKS = (256, 512, 1024, 2048, 4096, 8192)


def with_numpy(dtype, radius):
    rng = np.random.default_rng(0)

    def run():
        for _ in range(RELEASES):
            swift_release(rng, USERS, dtype, radius)

    return run


def with_perfjax(dtype, radius, block):
    scenario = pj.Scenario(
        pj.GaussianMean(NOISE, dim=DIM, clip_radius=radius),
        pj.LikelihoodRatioAbove(THRESHOLD),
        pj.Participation(LEAVE, RECRUIT, floor=USERS, cap=USERS),
        population=USERS,
        rounds=RELEASES - 1,
    ).astype(dtype)
    key = jax.random.key(0)
    _users.BLOCK_USERS, _users.BLOCK_NUMBERS = block, 2**30
    jax.clear_caches()
    # Compiled ahead: the block size is no argument, so that a later one would otherwise find this one's code.
    compiled = jax.jit(lambda s, k: simulate_users(s, key=k, trials=1).population).lower(scenario, key).compile()
    return lambda: jax.block_until_ready(compiled(scenario, key))


def timed(runs, repeats):
    """Least wall and processor seconds per release of each, over `repeats` turns."""
    best = dict.fromkeys(runs, (math.inf, math.inf))
    for turn in range(repeats + 1):
        for name, run in runs.items():
            wall, processor = time.perf_counter(), time.process_time()
            run()
            took = time.perf_counter() - wall, time.process_time() - processor
            if turn:
                best[name] = tuple(min(b, t / RELEASES) for b, t in zip(best[name], took, strict=True))
    return best


def compare(dtype, radius, repeats):
    runs = {"numpy": with_numpy(np.dtype(dtype).type, radius)}
    runs |= {block: with_perfjax(dtype, radius, block) for block in BLOCKS}
    found = timed(runs, repeats)
    wall, processor = found.pop("numpy")
    print(f"{dtype}, clipping {'off' if radius is None else 'on'}: NumPy {wall * 1e3:.2f} ms per release")
    rows = []
    for block, (w, p) in found.items():
        print(f"  block {block:5d}: {w * 1e3:6.2f} ms, ratio {w / wall:.2f}, of processor time {p / processor:.2f}")
        rows.append({"block": block, "ms": w * 1e3, "ratio": w / wall, "ratio_of_processor_time": p / processor})
    return {"dtype": dtype, "clipping": radius is not None, "numpy_ms": wall * 1e3, "perfjax": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats")
    repeats = 5 if parser.parse_args().quick else 40
    jax.config.update("jax_enable_x64", True)
    cases = [compare(dtype, radius, repeats) for dtype in ("float32", "float64") for radius in (None, 4.0)]
    about = {
        "users": USERS,
        "dim": DIM,
        "device": jax.devices()[0].device_kind,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
    }
    out = Path(__file__).parent / "results" / "users_cpu.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(about | {"cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
