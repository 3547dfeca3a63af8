"""What the command writes and prints: outputs first, whole or not at all, numbers uncut, JSON strict."""

import importlib.util
import io
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest
import xarray
from rich.table import Table

import perfjax as pj
from perfjax import files
from perfjax.cli import _shared, _simulate
from perfjax.reconstruction import records

SMALL = (("population = 1000", "population = 9"), ("rounds = 50", "rounds = 2"), ("cap = 20000", "cap = 20"))


@pytest.fixture
def scenario(tmp_path):
    """A file of a scenario with few users."""
    text = pj.files.preset_text("mean-estimation")
    for old, new in SMALL:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "small.toml"
    path.write_text(text)
    return path


# Files put in place


def test_what_a_link_leads_to_is_replaced_and_the_link_stays(tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    target, link = folder / "target.toml", tmp_path / "link.toml"
    target.write_text("old")
    link.symlink_to(target)
    with files.replacing(link) as temporary:
        assert temporary.parent == folder
        temporary.write_text("new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert os.listdir(folder) == ["target.toml"]


@pytest.mark.parametrize("path", ["/dev/null", "pipe", "."])
def test_what_is_no_regular_file_is_not_replaced(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    kind = os.stat(path).st_mode
    with pytest.raises(ValueError, match=r"is no regular file|is a folder"), files.replacing(path):
        raise AssertionError
    with pytest.raises(ValueError, match=r"is no regular file|is a folder"):
        pj.save_scenario(pj.preset("mean-estimation"), path)
    assert os.stat(path).st_mode == kind
    assert os.listdir(tmp_path) == ["pipe"]


def test_temporary_names_differ_within_one_process(tmp_path):
    with files.replacing(tmp_path / "a.toml") as one, files.replacing(tmp_path / "a.toml") as other:
        assert one != other
        assert one.suffix == other.suffix == ".toml"
        one.write_text("one")
        other.write_text("other")
    assert os.listdir(tmp_path) == ["a.toml"]


def test_a_long_name_can_be_replaced(tmp_path):
    path = tmp_path / ("x" * 250 + ".toml")
    with files.replacing(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new"


def test_sigterm_waits_until_a_file_is_in_place(tmp_path, monkeypatch):
    raised = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    with files.replacing(tmp_path / "out.txt") as temporary:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)  # lets the handler run
        assert not raised
        temporary.write_text("whole")
    assert raised == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert (tmp_path / "out.txt").read_text() == "whole"


def test_other_threads_and_handlers_are_let_alone(tmp_path):
    def write():
        with files.replacing(tmp_path / "out.txt") as temporary:
            temporary.write_text("whole")

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        write()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (tmp_path / "out.txt").read_text() == "whole"


@pytest.mark.slow
def test_a_process_ended_by_sigterm_leaves_a_whole_file(tmp_path):
    program = """
import os, signal, sys
from perfjax import files
with files.replacing(sys.argv[1]) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGTERM)
    temporary.write_text("whole")
print("went on")
"""
    path = tmp_path / "out.txt"
    ended = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (-signal.SIGTERM, "")
    assert path.read_text() == "whole"
    assert os.listdir(tmp_path) == ["out.txt"]


# Printing


class ClosedPipe(io.StringIO):
    def write(self, text):
        raise BrokenPipeError

    def flush(self):
        raise BrokenPipeError


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_closed_pipe_costs_no_output(run, scenario, tmp_path, monkeypatch, as_json):
    saved, picture = tmp_path / "l.nc", tmp_path / "l.png"
    monkeypatch.setattr(sys, "stdout", ClosedPipe())
    code, _, error = run("simulate", scenario, "--solver", "law", "--save", saved, "--plot", picture, *as_json)
    assert (code, error) == (0, "")
    law = pj.population_law(pj.load_scenario(scenario))
    np.testing.assert_array_equal(xarray.load_dataset(saved, engine="scipy")["mean"], law.mean)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_full_disk_does_not_cost_the_answer(run, scenario, tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(_simulate, "_save", full)
    code, out, error = run("simulate", scenario, "--solver", "law", "--save", tmp_path / "l.nc", "--json")
    assert (code, error) == (2, "perfjax: no space left\n")
    assert json.loads(out)["solver"] == "law"
    assert os.listdir(tmp_path) == ["small.toml"]


def strict(text):
    def never(name):
        raise AssertionError(name)

    return json.loads(text, parse_constant=never)


def test_json_has_no_infinity(capsys):
    _shared.print_json({"a": math.inf, "b": [1.0, -math.inf, (math.nan, 2)], "c": {"d": np.float64("nan")}, "e": 3})
    assert strict(capsys.readouterr().out) == {"a": None, "b": [1.0, None, [None, 2]], "c": {"d": None}, "e": 3}


@pytest.mark.slow
def test_json_of_tune_is_strict(run, scenario):
    code, out, _ = run("tune", scenario, "--json")
    assert code == 0
    report = strict(out)
    assert report["no_privacy"]["local_per_release_rho"] is None  # no noise has an infinite budget


@pytest.mark.parametrize("columns", ["0", "1", "20", "33", "80", "500"])
def test_no_number_is_cut_in_a_narrow_terminal(run, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    code, out, _ = run("counts", "--sizes", "1000000,1")
    assert code == 0
    design = pj.count_privacy.design("log-gaussian", 0.1)
    for number in ("1000000", f"{float(design.budget(1e6)):.4g}", f"{float(design.budget(1.0)):.4g}", "fisher", "v(n)"):
        assert f" {number} " in out
    assert "…" not in out


def test_a_table_is_as_wide_as_its_numbers(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    table = Table()
    table.add_column("a label of several words")
    table.add_column("value", justify="right")
    table.add_row("words that may be wrapped", "0.123456789 - 0.987654321")
    _shared.print_table(table)
    out = capsys.readouterr().out
    assert "0.123456789 - 0.987654321" in out
    assert all(word in out for word in ("several", "wrapped"))


@pytest.mark.parametrize("columns", ["0", "5"])
def test_help_is_printed_without_a_width(run, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert "simulate" in run("--help")[1]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "perfjax: out of memory\n"),
        (MemoryError("Unable to allocate 7 GiB"), "perfjax: out of memory: Unable to allocate 7 GiB\n"),
        (
            RuntimeError("RESOURCE_EXHAUSTED: Out of\nmemory"),
            "perfjax: out of memory: RESOURCE_EXHAUSTED: Out of memory\n",
        ),
        (RuntimeError("Unable to initialize backend 'x'"), "perfjax: Unable to initialize backend 'x'\n"),
        (ValueError(), "perfjax: ValueError\n"),
        (OSError(28, "No space left"), "perfjax: [Errno 28] No space left\n"),
    ],
)
def test_every_end_has_a_word(run, scenario, monkeypatch, error, words):
    def ends(*_, **__):
        raise error

    monkeypatch.setattr(pj, "population_law", ends)
    assert run("simulate", scenario, "--solver", "law") == (2, "", words)


def test_a_fault_of_ours_keeps_its_traceback(run, scenario, monkeypatch):
    def ends(*_, **__):
        raise RuntimeError("ours")

    monkeypatch.setattr(pj, "population_law", ends)
    with pytest.raises(RuntimeError, match="ours"):
        run("simulate", scenario, "--solver", "law")


def test_ctrl_c_is_one_line_in_every_command(run, scenario, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "load_scenario", stopped)
    monkeypatch.setattr(pj, "load_scenario", stopped)
    for arguments in (("scenario", "show", scenario), ("tune", scenario), ("simulate", scenario)):
        assert run(*arguments) == (130, "", "perfjax: stopped.\n")


def test_a_pgf_picture_needs_tex(run, scenario, tmp_path, monkeypatch):
    monkeypatch.setattr(_shared.shutil, "which", lambda _: None)
    code, out, error = run("simulate", scenario, "--solver", "law", "--plot", tmp_path / "l.pgf")
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert "a .pgf picture needs TeX, but there is no program" in error


# Inputs that read as they should


def test_a_byte_order_mark_is_no_part_of_a_file(run, scenario, tmp_path):
    marked = tmp_path / "marked.toml"
    marked.write_bytes(b"\xef\xbb\xbf" + scenario.read_bytes())
    assert str(pj.load_scenario(marked)) == str(pj.load_scenario(scenario))
    code, out, _ = run("scenario", "show", marked)
    assert (code, out) == (0, scenario.read_text())
    sweep = tmp_path / "sweep.toml"
    sweep.write_bytes(b'\xef\xbb\xbfrun = "mean_field"\nscenario = "marked.toml"\n[over]\nleave = [0.5]\n')
    assert pj.sweeps.load_sweep(sweep).over == {"leave": [0.5]}


def test_spaces_around_names_and_a_mark_before_them_are_no_part_of_them(tmp_path):
    path = tmp_path / "n.csv"
    path.write_bytes("\ufeffwhen, n , x\r\n2021-01, 10 ,1\r\n2021-02,12.0,2\r\n2021-03,1.1e1,3\r\n".encode())
    series = pj.calibration.load_series(path, column="n", time="when")
    np.testing.assert_array_equal(series.population, [10, 12, 11])
    np.testing.assert_array_equal(records.read_column(path, "x"), [1, 2, 3])


@pytest.mark.parametrize(
    ("times", "missing"),
    [
        ("20210118 20210218 20210318", 0),
        ("20210131 20210228 20210430", 1),
        ("20210104 20210111 20210125", 1),
        ("202112 202201 202203", 1),
        ("2021.25 2021.5 2021.75", 0),
        ("2021 2022 2024", 1),
        ("19999999 20000000 20000001", 0),
    ],
)
def test_dates_make_no_rounds_that_were_not(tmp_path, times, missing):
    path = tmp_path / "n.csv"
    path.write_text("when,n\n" + "".join(f"{time},{9 - k}\n" for k, time in enumerate(times.split())))
    series = pj.calibration.load_series(path, column="n", time="when")
    assert series.rounds + 1 == 3 + missing
    assert int(np.isnan(series.population).sum()) == missing


# From the first moment of a process


def entry():
    """The module of the entry point, as it is installed."""
    found = importlib.util.find_spec("perfjax_command")
    return pathlib.Path(found.origin if found else pathlib.Path(pj.__file__).parents[1] / "perfjax_command.py")


def command(*arguments, **variables):
    start = [sys.executable, "-c", "from perfjax_command import command; command()", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(entry().parent)} | variables
    return subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.3, 0.6, 1.0, 1.5])
def test_ctrl_c_while_the_library_is_imported_is_one_line(delay):
    process = command("counts", "--sizes", "1")
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate()
    assert process.returncode in (130, -signal.SIGINT)  # the latter before a line of ours has run
    if process.returncode == 130:
        assert (out, error) == ("", "perfjax: stopped.\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "value"), [("JAX_PLATFORMS", "nonsense"), ("JAX_ENABLE_X64", "maybe"), ("JAX_DEBUG_NANS", "perhaps")]
)
def test_a_malformed_variable_is_one_line(variable, value):
    process = command("counts", "--sizes", "1", **{variable: value})
    out, error = process.communicate()
    assert (process.returncode, out, error.count("\n")) == (2, "", 1)
    assert value in error


@pytest.mark.slow
def test_a_reader_who_left_costs_nothing(scenario, tmp_path):
    with command("simulate", scenario, "--solver", "law", "--save", tmp_path / "l.nc") as process:
        process.stdout.close()
        assert (process.wait(), process.stderr.read()) == (0, "")
    assert (tmp_path / "l.nc").exists()


@pytest.mark.parametrize("option", ["jax_debug_nans", "jax_numpy_rank_promotion"])
def test_what_finds_faults_in_other_code_finds_none_here(scenario, option):
    own = pj.load_scenario(scenario)
    expected = pj.tune(own).noise, pj.population_law(own).mean
    before = getattr(jax.config, option)
    jax.config.update(option, True if option == "jax_debug_nans" else "raise")
    try:
        found = pj.tune(own).noise, pj.population_law(own).mean
    finally:
        jax.config.update(option, before)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
