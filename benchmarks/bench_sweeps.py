"""How many cells a second does a sweep take, do two processes do twice the work of one, and in how much memory?

`tune` on 15360 cells and `simulate_counts` (50 trials of 51 releases) on 3840, float32, each into a store: by one
process held to one core, and by two on a core each, which share the sweep through `jax.distributed`. Both take turns,
so that a busy machine disturbs both, if not alike: one process leaves the other core to others. Hence a ratio in
processor time too. Rates are of the slower process; compilation is told apart. Then a million cells of `mean_field` by
one process, for the memory.

    python benchmarks/bench_sweeps.py [--quick]
"""

import argparse
import datetime
import json
import os
import platform
import resource
import socket
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

TRIALS = 50
AIM = 1.7  # two processes against one
MEMORY = 2.0  # GB


def swept(name, store, quick):
    """One sweep, by this process's share; its seconds and memory."""
    import jax
    import numpy as np

    import perfjax as pj
    from perfjax.sweeps import _sweep

    axis = np.linspace(0.01, 0.99, 30)
    grid = {"leave": np.linspace(0.01, 0.99, 32), "recruit": axis}
    options = {"chunk": 256}  # an even number of chunks, half for each of two
    if name == "tune":
        run, grid = pj.tune, grid | {"threshold": np.geomspace(0.02, 0.2, 16)}
    elif name == "counts":
        run, grid = pj.simulate_counts, grid | {"noise_scale": [0.5, 1, 2, 4]}
        options |= {"trials": TRIALS, "key": jax.random.key(0), "fields": ["expected_error"]}
    else:
        run, options = pj.mean_field, {}
        fine = np.linspace(0, 1, 200 if quick else 1000)
        grid = {"leave": fine, "recruit": fine}
    spent, computed = [0.0], _sweep._computed

    def timed(*arguments):
        start = time.process_time()
        values = computed(*arguments)
        spent[0] += time.process_time() - start
        return values

    _sweep._computed = timed
    start = time.perf_counter()
    data = pj.sweep(run, pj.preset("mean-estimation"), grid, store=store, **options)
    cells = int(np.prod([data.sizes[axis] for axis in grid]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return {"cells": cells, "whole": time.perf_counter() - start, "processor": spent[0], "peak GB": peak}


def child(arguments):
    os.sched_setaffinity(0, {arguments.core} if arguments.core is not None else os.sched_getaffinity(0))
    import jax  # only now: it starts a thread for each core it may use

    if arguments.processes > 1:
        jax.distributed.initialize(arguments.coordinator, arguments.processes, arguments.process)
    print(json.dumps(swept(arguments.child, arguments.store, arguments.quick)))


def by(processes, name, cores, quick):
    """What several processes report who share one sweep, and the computing seconds of the slowest."""
    import zarr

    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        coordinator, store = f"127.0.0.1:{free.getsockname()[1]}", f"{folder}/s.zarr"
        free.close()
        line = [sys.executable, __file__, "--child", name, "--store", store, "--coordinator", coordinator]
        line += ["--processes", str(processes), *(["--quick"] if quick else [])]
        started = [
            subprocess.Popen(
                [*line, "--process", str(k), *([] if cores is None else ["--core", str(cores[k])])],
                stdout=subprocess.PIPE,
                env=os.environ | {"JAX_PLATFORMS": "cpu"},
                text=True,
            )
            for k in range(processes)
        ]
        told = [process.communicate()[0] for process in started]
        if any(process.returncode for process in started):
            raise SystemExit(f"{name}: a process failed")
        reports = [json.loads(text.splitlines()[-1]) for text in told]
        seconds = zarr.open_group(store, mode="r")["chunk_seconds"][:]
    computing = max(seconds[k::processes].sum() for k in range(processes))
    peak = max(report["peak GB"] for report in reports)
    processor = max(report["processor"] for report in reports)
    return reports[0] | {"computing": computing, "processor": processor, "peak GB": peak}


def compared(name, repeats, quick):
    cores = sorted(os.sched_getaffinity(0))[:2]
    turns = [[by(count, name, cores, quick) for count in (1, 2)] for _ in range(repeats)]
    one, two = (min((turn[k] for turn in turns), key=lambda report: report["computing"]) for k in (0, 1))
    ratio = one["computing"] / two["computing"]
    return {
        "cells": one["cells"],
        "cells/s, one process": one["cells"] / one["computing"],
        "cells/s, two processes": two["cells"] / two["computing"],
        "times faster": ratio,
        "aim": f">= {AIM}",
        "verdict": "met" if ratio >= AIM else "MISSED",
        "times faster, processor time": one["processor"] / two["processor"],
        "times faster in each turn": [round(a["computing"] / b["computing"], 2) for a, b in turns],
        "s with compilation, one process": one["whole"],
        "s with compilation, two processes": two["whole"],
        "peak GB": max(one["peak GB"], two["peak GB"]),
    }


def million(quick):
    report = by(1, "mean_field", None, quick)
    peak = report["peak GB"]
    return {
        "cells": report["cells"],
        "cells/s": report["cells"] / report["computing"],
        "s with compilation": report["whole"],
        "peak GB": peak,
        "aim": f"< {MEMORY} GB",
        "verdict": "met" if peak < MEMORY else "MISSED",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one turn, fewer cells of mean_field; writes nothing")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "sweeps_cpu.json")
    for hidden, kind in (("child", str), ("store", str), ("coordinator", str), ("process", int), ("core", int)):
        parser.add_argument(f"--{hidden}", type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--processes", type=int, default=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return child(arguments)
    report = {
        "date": datetime.date.today().isoformat(),
        "device": f"cpu ({platform.machine()})",
        "cores": os.cpu_count(),
        "load average before": os.getloadavg()[0],
        "python": platform.python_version(),
    } | {name: version(name) for name in ("perfjax", "jax", "numpy", "zarr")}
    repeats = 1 if arguments.quick else 3
    for name in ("tune", "counts"):
        report[name] = compared(name, repeats, arguments.quick)
    report["mean_field"] = million(arguments.quick)
    text = json.dumps(report, indent=1, default=float)
    print(text)
    return None if arguments.quick else arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
