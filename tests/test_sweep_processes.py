"""Sweeps in processes of their own: from a file, killed, shared by two, on several devices."""

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import xarray

import perfjax as pj
from perfjax.sweeps import load_sweep

SWEEP = """
run = "mean_field"
preset = "mean-estimation"
fields = ["population", "error"]

[set]
rounds = 3

[over]
leave = { start = 0.01, stop = 0.99, num = 7 }
recruit = [0.1, 0.5]
noise_scale = { start = 0.1, stop = 10, num = 3, scale = "log" }
"""


@pytest.fixture
def sweep_file(tmp_path):
    """A sweep file, with its text changed as asked for."""

    def write(*changes):
        text = SWEEP
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "sweep.toml"
        path.write_text(text)
        return path

    return write


def opened(path):
    return xarray.open_zarr(path, consolidated=False, chunks=None).drop_vars(["chunk_seconds", "chunk_digest"])


def expected():
    scenario = pj.preset("mean-estimation").replace(rounds=3)
    over = {"leave": np.linspace(0.01, 0.99, 7), "recruit": [0.1, 0.5], "noise_scale": np.geomspace(0.1, 10, 3)}
    return pj.sweep(pj.mean_field, scenario, over, fields=["population", "error"])


@pytest.mark.slow
def test_a_sweep_file_is_swept(run, sweep_file, tmp_path):
    store, out = tmp_path / "s.zarr", tmp_path / "r.nc"
    code, text, err = run("sweep", sweep_file(), "--store", store, "--out", out, "--chunk", 6)
    assert code == 0
    assert text == (
        f"Swept leave 7, recruit 2, noise_scale 3, release 4: population, error. Saved to {store} and {out}.\n"
    )
    assert err.splitlines()[-1].startswith("42 of 42 cells, ")
    xarray.testing.assert_equal(opened(store), expected().drop_vars("release"))
    xarray.testing.assert_equal(xarray.open_dataset(out, engine="scipy"), expected())
    assert run("sweep", sweep_file(), "--out", out)[0] == 2
    assert run("sweep", sweep_file(), "--store", store, "--chunk", 1)[0] == 0


def test_a_sweep_of_a_scenario_file_is_in_single_precision_if_asked(run, sweep_file, tmp_path):
    pj.save_scenario(pj.preset("mean-estimation"), tmp_path / "mine.toml")
    path = sweep_file(('preset = "mean-estimation"', 'scenario = "mine.toml"'))
    assert run("sweep", path, "--out", tmp_path / "r.nc", "--dtype", "float32")[0] == 0
    data = xarray.open_dataset(tmp_path / "r.nc", engine="scipy")
    assert data.error.dtype == "float32"
    np.testing.assert_allclose(data.error, expected().error, rtol=1e-3)


def test_a_sweep_file_binds_arguments(sweep_file):
    changes = ("mean_field", "tune"), ("[set]", '[arguments]\nobjective = "final-error"\nconstraint = "growth"\n[set]')
    asked = load_sweep(sweep_file(*changes))
    assert asked.run.func is pj.tune
    assert isinstance(asked.run.keywords["objective"], pj.FinalError)
    assert asked.run.keywords["constraint"] == "growth"
    assert asked.seed is None
    assert load_sweep(sweep_file(changes[0])).run.keywords["objective"] == pj.CumulativeError(first_release=0)
    sampled = load_sweep(sweep_file(("mean_field", "simulate_counts"), ("[set]", "trials = 3\n[set]")))
    assert (sampled.options["trials"], sampled.seed) == (3, 0)
    assert sampled.scenario.rounds == 3


BAD_FILES = {
    "unknown run": (('"mean_field"', '"tun"'), r"Unknown run `tun`: did you mean `tune`"),
    "unknown key": (('"mean_field"', '"mean_field"\nsed = 1'), r"Unknown key `sed`: did you mean `seed`"),
    "no run": (('run = "mean_field"', ""), r"Missing key: `run`"),
    "no scenario": (('preset = "mean-estimation"', ""), r"Give either `preset` or `scenario`"),
    "no num": ((", num = 7", ""), r"Axis `leave` lacks `num`"),
    "bad scale": (('"log"', '"lin"'), r'`noise_scale.scale` must be "linear" or "log", but is "lin"'),
    "log of zero": (("0.1, stop = 10", "0, stop = 10"), r"Axis `noise_scale` on a log scale must start and stop above"),
    "range key": (("num = 7", "nums = 7"), r"Unknown key of axis `leave`: `nums`: did you mean `num`"),
    "number": (("[0.1, 0.5]", "0.1"), r"`over.recruit` must be a list, or a table of start, stop and num, but is 0.1"),
    "no table": (("[set]", "[[set]]"), r"Argument `set` must be a table"),
    "no TOML": (("[set]", "[set"), r"not a TOML file"),
    "argument": (("[set]", '[arguments]\nobjective = "final"\n[set]'), r"Unknown argument of mean_field: `objective`"),
    "objective": (
        (("mean_field", "tune"), ("[set]", '[arguments]\nobjective = "final"\n[set]')),
        r"Unknown objective `final`: did you mean",
    ),
    "axis": (("recruit =", "recrut ="), r"Unknown axis `recrut`: did you mean `recruit`"),
}


@pytest.mark.parametrize("name", list(BAD_FILES))
def test_a_bad_file_is_one_clear_line(run, sweep_file, tmp_path, name):
    change, words = BAD_FILES[name]
    changes = (change,) if isinstance(change[0], str) else change
    code, out, err = run("sweep", sweep_file(*changes), "--store", tmp_path / "s.zarr")
    assert (code, out) == (2, "")
    assert err.startswith("perfjax: ")
    assert len(err.splitlines()) == 1
    assert re.search(words, err), err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "Give --store, --out or both"),
        (["--out", "nowhere/r.nc"], "there is no folder nowhere"),
        (["--store", "s.zarr", "--process", "0"], "Give --coordinator, --processes and --process together"),
        (
            ["--store", "s.zarr", "--coordinator", "localhost:1", "--processes", "2", "--process", "2"],
            r"`process` must lie in [0, 2), but is 2",
        ),
    ],
)
def test_bad_options_are_one_clear_line(run, sweep_file, options, words):
    code, _, err = run("sweep", sweep_file(), *options)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert words in err


# Processes of their own. One thread each, since several run at once.

ONE_CORE = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}


def command(*arguments):
    line = [sys.executable, "-m", "perfjax", "sweep", *map(str, arguments)]
    return subprocess.Popen(line, env=os.environ | ONE_CORE, stderr=subprocess.PIPE, text=True)


def ended(process):
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err


MANY = ("num = 7", "num = 700"), ("rounds = 3", "rounds = 20")


def finished_chunks(store):
    return len(list((store / "chunk_seconds" / "c").glob("*")))


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on_to_the_same_bits(sweep_file, tmp_path):
    path, store = sweep_file(*MANY), tmp_path / "killed.zarr"
    ended(command(path, "--store", tmp_path / "whole.zarr"))
    rng = random.Random(1)
    for target in (1, 100, 300):
        process = command(path, "--store", store, "--chunk", 6)
        while finished_chunks(store) < target:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.1))
        process.kill()
        assert process.wait() == -signal.SIGKILL
        process.stderr.close()
        assert finished_chunks(store) < 700
    ended(command(path, "--store", store, "--chunk", 100))
    xarray.testing.assert_identical(opened(store).drop_attrs(), opened(tmp_path / "whole.zarr").drop_attrs())
    assert not np.isnan(opened(store).error).any()


@pytest.mark.slow
def test_ctrl_c_ends_with_one_line(sweep_file, tmp_path):
    store = tmp_path / "s.zarr"
    process = command(sweep_file(*MANY), "--store", store, "--chunk", 6)
    while finished_chunks(store) < 10:
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "which are safe in" in err.splitlines()[-1]
    assert "Traceback" not in err


@pytest.mark.slow
def test_two_processes_share_a_sweep(sweep_file, tmp_path):
    path, store = sweep_file(*MANY), tmp_path / "shared.zarr"
    ended(command(path, "--store", tmp_path / "alone.zarr"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    both = [
        command(path, "--store", store, "--coordinator", coordinator, "--processes", 2, "--process", k, "--chunk", 60)
        for k in range(2)
    ]
    errors = [process.communicate(timeout=200)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    assert all("2100 of 2100 cells" in err for err in errors)  # each its half of 4200
    xarray.testing.assert_identical(opened(store).drop_attrs(), opened(tmp_path / "alone.zarr").drop_attrs())


DEVICES = """
import functools, sys
import jax
jax.config.update("jax_enable_x64", True)
import perfjax as pj

scenario, key = pj.preset("mean-estimation").replace(rounds=5), jax.random.key(1)
over = {"leave": [k / 37 for k in range(37)], "recruit": [k / 29 for k in range(29)]}
runs = {
    "mean_field": (pj.mean_field, None),
    "tune": (functools.partial(pj.tune, objective=pj.CumulativeBound()), None),
    "counts": (functools.partial(pj.simulate_counts, trials=2), key),
}
for devices in map(int, sys.argv[2:]):
    for name, (run, key) in runs.items():
        data = pj.sweep(run, scenario, over, key=key, devices=devices)
        data.to_netcdf(f"{sys.argv[1]}/{name}_{len(jax.local_devices())}_{devices}.nc", engine="scipy")
"""


@pytest.mark.slow
def test_devices_change_no_bit(tmp_path):
    for virtual, used in ((1, [1]), (8, [1, 2, 8])):
        flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={virtual}", "JAX_PLATFORMS": "cpu"}
        line = [sys.executable, "-c", DEVICES, str(tmp_path), *map(str, used)]
        subprocess.run(line, check=True, env=os.environ | flags, timeout=280)
    for name in ("mean_field", "tune", "counts"):
        first, *others = (
            xarray.open_dataset(tmp_path / f"{name}_{which}.nc", engine="scipy")
            for which in ("1_1", "8_1", "8_2", "8_8")
        )
        assert all(other.device.startswith(f"{k} x cpu") for k, other in zip((1, 2, 8), others, strict=True))
        for other in others:
            xarray.testing.assert_equal(other, first)


MILLION = """
import sys
import perfjax as pj

axis = [k / 999 for k in range(1000)]
chunk = int(sys.argv[2]) or None
over = {"leave": axis, "recruit": axis}
data = pj.sweep(pj.mean_field, pj.preset("mean-estimation"), over, store=sys.argv[1], chunk=chunk)
assert data.error.shape == (1000, 1000, 51)
float(data.error[500, 500].sum())
# Not ru_maxrss, which also knows how large the process was that started this one.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.study
def test_a_million_cells_take_bounded_memory_and_chunks_change_no_bit(tmp_path):
    peaks = {}
    for chunk in (0, 1000, 4096, 999_999):
        line = [sys.executable, "-c", MILLION, str(tmp_path / f"{chunk}.zarr"), str(chunk)]
        done = subprocess.run(line, check=True, env=os.environ | ONE_CORE, capture_output=True, text=True, timeout=280)
        peaks[chunk] = int(done.stdout) * 1024
    assert max(peaks[0], peaks[1000], peaks[4096]) < 1e9, peaks
    assert peaks[999_999] < 2.5e9, peaks  # all of it at once, as asked for
    for name in ("population", "leak_probability", "error"):
        first = opened(tmp_path / "0.zarr")[name].values
        assert np.isfinite(first).all()
        for chunk in (1000, 4096, 999_999):
            np.testing.assert_array_equal(opened(tmp_path / f"{chunk}.zarr")[name].values, first)


def test_the_sweep_file_of_the_readme_is_one(tmp_path):
    text = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    (tmp_path / "sweep.toml").write_text(text.split("```toml\n")[1].split("```")[0], encoding="utf-8")
    asked = load_sweep(tmp_path / "sweep.toml")
    assert {name: len(values) for name, values in asked.over.items()} == {"leave": 30, "recruit": 30, "threshold": 2}
    assert asked.run.keywords == {"objective": pj.CumulativeBound()}
