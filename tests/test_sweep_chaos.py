"""A store under random kills and damage: whatever happens, the numbers are right, or one line refuses."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from perfjax.sweeps import open_sweep

LEAVE, RECRUIT = np.linspace(0.01, 0.99, 150), [0.1, 0.5]
ABORTED = -signal.SIGABRT  # what JAX does to a process of several when another one died
AXES = "leave = { start = 0.01, stop = 0.99, num = 150 }\n", "recruit = [0.1, 0.5]\n"
SWEEP = 'run = "mean_field"\npreset = "mean-estimation"\n[set]\nrounds = 3\n[over]\n'

# The command with a run of its own, whose default is the last argument.
COMMAND = """
import sys
import perfjax.cli
from perfjax.sweeps import _file

def run(scenario, scale=float(sys.argv.pop())):
    return {"value": scale * scenario.participation.leave + scenario.participation.recruit}

_file.RUNS["mean_field"] = run
perfjax.cli.command()
"""


class Chaos:
    """One store, and what is done to it."""

    def __init__(self, folder, seed):
        self.rng, self.store, self.damaged = random.Random(seed), folder / "s.zarr", False
        self.script, self.file, self.reordered = folder / "run.py", folder / "sweep.toml", folder / "reordered.toml"
        self.script.write_text(COMMAND)
        self.file.write_text(SWEEP + AXES[0] + AXES[1])
        self.reordered.write_text(SWEEP + AXES[1] + AXES[0])

    def started(self, *, count=1, file=None, scale=2.0):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            coordinator = f"127.0.0.1:{free.getsockname()[1]}"
        line = [sys.executable, self.script, "sweep", file or self.file, "--store", self.store, "--chunk", "1"]
        shared = [["--coordinator", coordinator, "--processes", str(count), "--process", str(k)] for k in range(count)]
        return [
            subprocess.Popen(
                [*map(str, line), *(which if count > 1 else []), str(scale)],
                env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for which in shared
        ]

    def chunks(self):
        return len(list((self.store / "chunk_seconds" / "c").glob("*[0-9]")))

    def damage(self):
        """Delete, cut or flip a file of a chunk."""
        file = self.rng.choice(sorted(x for x in self.store.glob("*/c/**/*[0-9]") if x.is_file()))
        content = bytearray(file.read_bytes())
        how = self.rng.choice(["delete", "cut", "flip"])
        if how == "delete":
            file.unlink()
        elif how == "cut":
            file.write_bytes(content[: self.rng.randrange(len(content))])
        else:
            content[self.rng.randrange(len(content))] ^= 1 << self.rng.randrange(8)
            file.write_bytes(content)
        self.damaged = True

    def killed(self, processes, number):
        """Send a signal after some more chunks; whether it came before the end."""
        target, start = self.chunks() + self.rng.randrange(1, 100), time.monotonic()
        while self.chunks() < target and any(process.poll() is None for process in processes):
            assert time.monotonic() - start < 120, "hangs"
            time.sleep(0.001)
        time.sleep(self.rng.uniform(0, 0.02))
        alive = [process for process in processes if process.poll() is None]
        for process in alive:
            process.send_signal(number)
        return bool(alive)

    def check_end(self, process, codes):
        """It ends, with one of the codes, and says why in at most one line."""
        _, err = process.communicate(timeout=150)
        assert process.returncode in codes, err
        assert "Traceback" not in err
        if process.returncode == ABORTED:
            assert "Terminating process because the JAX distributed service detected" in err
            return []
        lines = [x for x in err.splitlines() if x.startswith("perfjax: ") and not x.endswith("computed again.")]
        assert len(lines) == (process.returncode in (2, 130)), err
        return lines

    def check_numbers(self, partial=False):
        if self.damaged:  # and perhaps not healed yet: then it says so
            with contextlib.suppress(ValueError):
                self.check_values(open_sweep(self.store, partial=partial).value.values, partial)
        else:
            self.check_values(open_sweep(self.store, partial=partial).value.values, partial)

    def check_values(self, value, partial):
        expected = 2 * LEAVE[:, None] + RECRUIT
        there = ~np.isnan(value)
        np.testing.assert_allclose(value[there], expected[there], rtol=1e-15)
        assert partial or there.all()

    def check_refused(self):
        """The axes in another order, or another default."""
        changed = self.rng.choice([{"file": self.reordered}, {"scale": 3.0}])
        (process,) = self.started(**changed)
        assert "s.zarr holds another sweep: " in self.check_end(process, [2])[0]

    def finish(self):
        for process in self.started():
            self.check_end(process, [0])
        self.damaged = False
        self.check_numbers()


@pytest.mark.parametrize(
    ("seed", "kills"),
    [pytest.param(1, 30, marks=pytest.mark.study), pytest.param(2, 5, marks=pytest.mark.slow)],
)
def test_kills_and_damage_never_give_a_wrong_number(tmp_path, seed, kills):
    chaos, killed = Chaos(tmp_path, seed), 0
    while killed < kills:
        if chaos.chunks() > 200:
            chaos.finish()
            shutil.rmtree(chaos.store)
        if chaos.store.exists() and chaos.rng.random() < 0.2:
            chaos.check_refused()
        if chaos.chunks() and chaos.rng.random() < 0.5:
            chaos.damage()
        number = chaos.rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        processes = chaos.started(count=chaos.rng.choice([1, 1, 2]))
        killed += chaos.killed(processes, number)
        # A signal ends it at once, or after the chunk at hand; or all was done before.
        codes = [-signal.SIGKILL, 0] if number == signal.SIGKILL else [130, 0]
        if len(processes) == 2:  # then one may hear before it computes, and JAX aborts the other
            codes += [-number, ABORTED]
        for process in processes:
            chaos.check_end(process, codes)
        chaos.check_numbers(partial=True)
    chaos.finish()
    chaos.damage()
    chaos.finish()
