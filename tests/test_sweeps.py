"""Sweeps: every cell is its own run, to the bit whatever the chunks and devices; the store; bad input."""

import functools
import os
import resource
import signal
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray
from scenarios import gaussian, response

import perfjax as pj
from perfjax.sweeps import _chunks, _program, _store, _sweep

LEAVE, RECRUIT = np.linspace(0.05, 0.95, 7), np.linspace(0.1, 0.9, 5)
OVER = {"leave": LEAVE, "recruit": RECRUIT}
SMALL = gaussian(rounds=3)
TUNE = functools.partial(pj.tune, objective=pj.CumulativeBound())


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Blocks of eight, so that 35 cells are several."""
    monkeypatch.setitem(_program.BLOCK, "cpu", 8)


def final_error(scenario):
    """A cheap run of one number."""
    return pj.mean_field(scenario).error[-1]


def same(one, other):
    """Equal to the bit, in values, coordinates and dtypes; attributes tell different times."""
    assert set(one.variables) == set(other.variables)
    for name in one.variables:
        np.testing.assert_array_equal(one[name].values, other[name].values)
        assert one[name].dtype == other[name].dtype
        assert one[name].dims == other[name].dims


def test_a_cell_is_its_own_run():
    data = pj.sweep(pj.mean_field, SMALL, OVER)
    assert data.error.dims == ("leave", "recruit", "release")
    for i, j in ((0, 0), (3, 2), (6, 4)):
        alone = pj.mean_field(SMALL.replace(leave=LEAVE[i], recruit=RECRUIT[j]))
        for name in ("population", "leak_probability", "error"):
            np.testing.assert_allclose(data[name][i, j], getattr(alone, name), rtol=1e-13)


def test_axes_are_coordinates_with_symbols_and_units():
    data = pj.sweep(final_error, SMALL, OVER)
    np.testing.assert_array_equal(data.leave, LEAVE)
    assert data.leave.attrs == {"symbol": "q", "units": "1"}
    assert pj.sweep(final_error, SMALL, {"threshold": [0.1]}).threshold.attrs == {"symbol": "τ", "units": "nats"}
    assert data.sizes == {"leave": 7, "recruit": 5}


def test_zip_pairs_the_axes():
    data = pj.sweep(final_error, SMALL, {"leave": LEAVE[:3], "noise_scale": [1, 2, 3]}, pairing="zip")
    assert data.value.dims == ("cell",)
    expected = [
        final_error(SMALL.replace(leave=q, noise_scale=x)) for q, x in zip(LEAVE, (1.0, 2.0, 3.0), strict=False)
    ]
    np.testing.assert_allclose(data.value, expected, rtol=1e-13)
    np.testing.assert_array_equal(data.noise_scale, [1, 2, 3])
    assert data.noise_scale.dims == ("cell",)


@pytest.mark.slow
def test_one_cell_one_key():
    key = jax.random.key(3)
    data = pj.sweep(pj.simulate_counts, SMALL, OVER, trials=2, key=key)
    assert data.error.dims == ("leave", "recruit", "trial", "release")
    scenario = SMALL.replace(leave=LEAVE[4], recruit=RECRUIT[1])
    alone = pj.simulate_counts(scenario, key=jax.random.fold_in(key, 4 * 5 + 1), trials=2)
    np.testing.assert_array_equal(data.population[4, 1], alone.population)
    np.testing.assert_allclose(data.error[4, 1], alone.error, rtol=1e-12)


@pytest.mark.slow
def test_an_optimum_is_labelled():
    data = pj.sweep(TUNE, response(), {"leave": [0.1, 0.9], "recruit": [0.05]})
    assert data.status.dtype.kind == "i"
    meanings = dict(zip(data.status.flag_values, data.status.flag_meanings.split(), strict=True))
    for i, q in enumerate((0.1, 0.9)):
        alone = TUNE(response(leave=q, recruit=0.05))
        assert meanings[int(data.status[i, 0])] == pj.Status(int(alone.status)).name.lower()
        np.testing.assert_allclose(data.noise[i, 0], alone.noise, rtol=1e-6)
    assert data.minima.dims == ("leave", "recruit", "minimum")


@pytest.mark.slow
def test_an_infeasible_cell_is_nan_and_says_so():
    run = functools.partial(TUNE, constraint="growth", bounds=(0.01, 10.0))
    data = pj.sweep(run, gaussian(recruit=0.0, leave=0.5), {"recruit": [0.0, 0.9]})
    np.testing.assert_array_equal(data.status[0], pj.Status.INFEASIBLE)
    assert np.isnan(data.noise[0])
    assert np.isnan(data.value[0])
    assert np.isfinite(data.noise[1])


@pytest.mark.slow
def test_fields_are_chosen():
    law = pj.sweep(pj.population_law, gaussian(rounds=2, cap=150.0), {"leave": [0.3]}, fields=["mean", "nodes"])
    assert set(law.data_vars) == {"mean", "nodes"}
    assert law.nodes.dims == ("leave", "node")
    with pytest.raises(ValueError, match=r"Unknown field `eror`: did you mean `error`\?"):
        pj.sweep(pj.mean_field, SMALL, OVER, fields=["eror"])
    with pytest.raises(ValueError, match="Argument `fields` must be a list of names"):
        pj.sweep(pj.mean_field, SMALL, OVER, fields="error")


def test_any_pytree_of_arrays_is_a_result():
    def run(scenario):
        path = pj.mean_field(scenario)
        return {"path": path, "pair": jnp.stack([path.error[0], path.error[-1]]), "two": (path.error[0], scenario)}

    data = pj.sweep(run, SMALL, {"leave": LEAVE})
    assert set(data.data_vars) == {"path_population", "path_leak_probability", "path_error", "pair", "two_0"}
    assert data.pair.dims == ("leave", "pair_axis0")
    np.testing.assert_array_equal(data.pair[:, 1], data.path_error[:, -1])


def test_a_field_named_like_an_axis_is_renamed():
    data = pj.sweep(pj.mean_field, SMALL, {"population": [50, 100]})
    np.testing.assert_array_equal(data.result_population[:, 0], [50, 100])
    np.testing.assert_array_equal(data.population, [50, 100])


def test_a_sweep_follows_the_scenarios_dtype():
    data = pj.sweep(pj.mean_field, SMALL.astype("float32"), OVER)
    assert {x.dtype for x in data.variables.values()} == {np.dtype("float32"), np.dtype("int64")}
    assert data.attrs["dtype"] == "float32"


def test_a_schedule_of_noise_stays_as_it_is():
    scenario = SMALL.replace(noise_scale=[1.0, 2.0, 3.0, 4.0])
    data = pj.sweep(pj.mean_field, scenario, {"leave": LEAVE})
    np.testing.assert_allclose(data.error[2], pj.mean_field(scenario.replace(leave=LEAVE[2])).error, rtol=1e-13)


@pytest.mark.slow
def test_provenance_says_what_ran():
    data = pj.sweep(functools.partial(pj.simulate_counts, trials=2), SMALL, OVER, key=jax.random.key(5))
    assert data.run == "perfjax.montecarlo.simulate_counts(trials=2)"
    assert data.key == "threefry2x32 [0, 5]"
    assert data.scenario == pj.files.to_toml(SMALL.replace(leave=LEAVE[0], recruit=RECRUIT[0]))
    assert data.perfjax_version == pj.__version__
    assert data.jax_version == jax.__version__
    assert data.device == "1 x cpu (cpu), 1 processes"
    assert 0 < data.wall_seconds < 60


# Chunks


@pytest.mark.slow
@pytest.mark.parametrize("run", [pj.mean_field, pytest.param(TUNE, marks=pytest.mark.slow)], ids=["mean_field", "tune"])
def test_chunks_change_no_bit(run):
    whole = pj.sweep(run, SMALL, OVER)
    for chunk in (1, 6, 15, 999_999):
        same(whole, pj.sweep(run, SMALL, OVER, chunk=chunk))


@pytest.mark.parametrize("shape", [(35,), (7, 5), (3, 4, 5), (2, 1, 9, 2)])
@pytest.mark.parametrize("most", [1, 3, 5, 7, 20, 1000])
def test_chunks_are_boxes_of_cells_in_order(shape, most):
    box = _chunks.chunk_shape(shape, most)
    numbers = np.arange(np.prod(shape)).reshape(shape)
    first = 0
    for k, chunk in enumerate(_chunks.chunks_of(shape, box)):
        assert (chunk.number, chunk.first) == (k, first)
        assert 1 <= chunk.count <= most
        np.testing.assert_array_equal(numbers[chunk.region].ravel(), first + np.arange(chunk.count))
        assert numbers[chunk.region].shape == chunk.shape
        first += chunk.count
    assert first == numbers.size


def programmed(size, memory, cell=1000, lanes=8):
    layout = _program.Layout((), (cell // 8,), np.dtype("f8"), {})
    grid = pj.sweeps._grid.Grid({"leave": np.zeros(size)}, "product")
    program = _program.Program({"x": layout}, lanes, lanes, 10_000, grid, (), None, None)
    return _chunks.cells_that_fit(program, memory, 1)


def test_the_default_chunk_fits_the_budget_and_makes_sixteen():
    assert programmed(10**6, 2_000_000) == 992  # 10 kB for the program and 2 kB for a cell, in whole calls of 8
    assert programmed(1280, 2_000_000) == 80
    assert programmed(3, 2_000_000) == 8
    assert programmed(10**8, None) == (2**30 - 10_000) // 2000 // 8 * 8
    assert programmed(10**8, None, cell=10**9) == 8  # one call, whatever it takes
    with pytest.raises(ValueError, match=r"`memory` must hold one call, of 8 cells and 26 kB, but is 20 kB"):
        programmed(10**6, 20_000)


@pytest.mark.parametrize(("most", "blocks"), [(8000, ("2", "4")), (1, ("1",))])
def test_a_heavy_run_gets_smaller_blocks(monkeypatch, most, blocks):
    monkeypatch.setattr(_program, "BLOCK_BYTES", most)
    data = pj.sweep(pj.mean_field, SMALL, OVER)
    assert data.block in blocks
    np.testing.assert_allclose(data.error[3, 2], pj.mean_field(SMALL.replace(leave=0.5, recruit=0.5)).error, rtol=1e-13)


def large(scenario):
    return jnp.broadcast_to(scenario.participation.leave, (10**6,))


def test_out_of_memory_names_cells_bytes_and_a_chunk_that_fits(tmp_path):
    many = {"leave": np.linspace(0, 1, 10**5)}
    words = r"100000 cells of the whole sweep take 800 GB. Give `store`.*chunk=16 would fit"
    with pytest.raises(MemoryError, match=words):
        pj.sweep(large, SMALL, many)
    words = r"100000 cells of one chunk take 800 GB. Give a smaller chunk, such as chunk=16 "
    with pytest.raises(MemoryError, match=words):
        pj.sweep(large, SMALL, many, store=tmp_path / "s.zarr", chunk=10**5)
    assert not list(tmp_path.iterdir())  # or a smaller chunk would find the store of the large one


def test_out_of_memory_while_it_runs_is_told_alike(monkeypatch):
    def exhausted(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 5 bytes.")

    monkeypatch.setattr(_program.Program, "start", exhausted)
    with pytest.raises(MemoryError, match=r"35 cells of one chunk take .* Give a smaller chunk, such as chunk="):
        pj.sweep(final_error, SMALL, OVER, chunk=100)


# Store


def stored(path, **options):
    return pj.sweep(pj.mean_field, SMALL, OVER, store=path, **{"chunk": 10} | options)


@pytest.mark.slow
def test_a_store_holds_the_same_bits_lazily(tmp_path):
    data = stored(tmp_path / "s.zarr")
    assert not data.error.variable._in_memory
    same(data, pj.sweep(pj.mean_field, SMALL, OVER))
    assert data.error.attrs == {"units": "squared error"}
    assert data.leave.attrs["symbol"] == "q"
    opened = xarray.open_zarr(tmp_path / "s.zarr", consolidated=False, chunks=None)
    np.testing.assert_array_equal(opened.error, data.error)
    assert [p.name for p in tmp_path.iterdir()] == ["s.zarr"]


def test_a_finished_store_is_read_not_computed(tmp_path, monkeypatch):
    first = stored(tmp_path / "s.zarr")
    monkeypatch.setattr(_program.Program, "start", None)
    same(first, stored(tmp_path / "s.zarr", chunk=3))


@pytest.mark.slow
def test_a_result_goes_through_netcdf_and_zarr(tmp_path):
    data = pj.sweep(TUNE, SMALL, {"leave": LEAVE}, store=tmp_path / "s.zarr", chunk=3)
    data.to_netcdf(tmp_path / "r.nc", engine="scipy", format="NETCDF3_64BIT")  # the one engine that is always there
    again = xarray.open_dataset(tmp_path / "r.nc", engine="scipy")
    np.testing.assert_array_equal(again.noise, data.noise)
    np.testing.assert_array_equal(again.status, data.status)
    assert again.attrs == data.attrs
    np.testing.assert_array_equal(again.status.flag_values, data.status.flag_values)
    data.load().to_zarr(tmp_path / "r.zarr", consolidated=False)
    xarray.testing.assert_identical(xarray.open_zarr(tmp_path / "r.zarr", consolidated=False, chunks=None).load(), data)


def stopping(monkeypatch, after, how):
    """Let `how` happen in place of writing chunk number `after`."""
    write = _store.Store._write

    def stop(self, chunk, values, start):
        if chunk.number == after:
            how(self, chunk, values)
        write(self, chunk, values, start)

    monkeypatch.setattr(_store.Store, "_write", stop)


def full(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("chunk", [10, 3])
def test_a_stopped_sweep_goes_on(tmp_path, monkeypatch, chunk):
    with monkeypatch.context() as patch:
        stopping(patch, 2, full)
        with pytest.raises(OSError, match=r"s.zarr: No space left on device. Finished chunks are safe"):
            stored(tmp_path / "s.zarr")
    calls, start = [], _program.Program.start
    monkeypatch.setattr(_program.Program, "start", lambda *a: calls.append(a[1]) or start(*a))
    data = stored(tmp_path / "s.zarr", chunk=chunk)
    assert min(calls) == 20
    monkeypatch.setattr(_program.Program, "start", start)
    same(data, pj.sweep(pj.mean_field, SMALL, OVER))


def test_a_chunk_counts_only_when_all_of_it_is_there(tmp_path, monkeypatch):
    def half(self, chunk, values):
        self.group["population"][chunk.region] = values[0] + 1
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        stopping(patch, 1, half)
        with pytest.raises(OSError, match="No space"):
            stored(tmp_path / "s.zarr")
    same(stored(tmp_path / "s.zarr"), pj.sweep(pj.mean_field, SMALL, OVER))


@pytest.mark.slow
def test_cells_that_are_not_computed_are_nan(tmp_path, monkeypatch):
    stopping(monkeypatch, 2, full)
    with pytest.raises(OSError, match="No space"):
        pj.sweep(TUNE, SMALL, {"leave": LEAVE}, store=tmp_path / "s.zarr", chunk=2)
    left = xarray.open_zarr(tmp_path / "s.zarr", consolidated=False, chunks=None)
    np.testing.assert_array_equal(np.isnan(left.value), [False] * 4 + [True] * 3)
    np.testing.assert_array_equal(left.status == -1, [False] * 4 + [True] * 3)


def test_a_file_that_the_system_refuses_is_one_clear_line(tmp_path):
    """A real refusal, by a limit on the size of files."""
    stored(tmp_path / "s.zarr", chunk=35)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(OSError, match=r"t.zarr: File too large. Finished chunks are safe"):
            pj.sweep(pj.mean_field, SMALL, {"leave": np.linspace(0, 1, 2000)}, store=tmp_path / "t.zarr", chunk=2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


def test_no_permission_is_one_clear_line(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("zarr.create_group", refused)
    with pytest.raises(OSError, match=r"s.zarr: Permission denied"):
        stored(tmp_path / "s.zarr")
    assert list(tmp_path.iterdir()) == []


OTHERS = {
    "run": (r"`run` is perfjax.meanfield.mean_field there, .*final_error.* here", {"run": final_error}),
    "axis": (r"`axis_leave` is 7 values from 0.05 to 0.95 .* there, 2 values", {"over": OVER | {"leave": [0.1, 0.2]}}),
    "axes": (r"`axis_recruit` is .* there, absent here", {"over": {"leave": LEAVE}}),
    "scenario": (r"`scenario` is population = 100.0 there, population = 90.0 here", {"population": 90}),
    "fields": (r"`fields` is .* here", {"fields": ["error"]}),
}


@pytest.mark.parametrize("name", list(OTHERS))
def test_a_store_of_another_sweep_is_refused(tmp_path, name):
    words, change = OTHERS[name]
    stored(tmp_path / "s.zarr")
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    scenario = SMALL.replace(population=change["population"]) if "population" in change else SMALL
    with pytest.raises(ValueError, match=f"holds another sweep: .*{words}"):
        pj.sweep(
            change.get("run", pj.mean_field),
            scenario,
            change.get("over", OVER),
            store=tmp_path / "s.zarr",
            fields=change.get("fields"),
        )
    assert before == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}


def test_another_key_or_number_of_trials_is_another_sweep(tmp_path):
    def sampled(scenario, *, key, trials):
        return scenario.population + jax.random.normal(key, (trials,))

    def swept(seed, trials):
        key = jax.random.key(seed)
        pj.sweep(sampled, SMALL, {"leave": [0.1]}, trials=trials, key=key, store=tmp_path / "s.zarr")

    swept(0, 2)
    with pytest.raises(ValueError, match=r"`key` is threefry2x32 \[0, 0\] there, threefry2x32 \[0, 1\] here"):
        swept(1, 2)
    with pytest.raises(ValueError, match=r"`run` is .*trials=2.* there, .*trials=3.* here"):
        swept(0, 3)


def test_another_dtype_is_said_once(tmp_path):
    stored(tmp_path / "s.zarr")
    with pytest.raises(ValueError, match=r"another sweep: `dtype` is float64 there, float32 here. Give"):
        pj.sweep(pj.mean_field, SMALL.astype("float32"), OVER, store=tmp_path / "s.zarr")


def test_functions_of_one_name_differ_by_their_code():
    def described(power):
        return pj.sweeps._definition._described(lambda s: s.population**power)

    assert described(2) == described(2)
    assert described(2) != described(3)
    assert pj.sweeps._definition._described(lambda s: s.population) != described(2)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_no_store_is_left_alone(tmp_path, kind):
    path = tmp_path / "s.zarr"
    if kind == "file":
        path.write_text("mine")
    else:
        path.mkdir()
        (path / "mine").write_text("mine")
    with pytest.raises(ValueError, match=r"s.zarr exists and is no store of a sweep"):
        stored(path)
    assert (path if kind == "file" else path / "mine").read_text() == "mine"


def test_ctrl_c_finishes_the_chunk_and_says_how_to_go_on(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stopping(patch, 1, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt, match=r"stopped after 20 of 35 cells, which are safe in .*s.zarr: run"):
            stored(tmp_path / "s.zarr")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    same(stored(tmp_path / "s.zarr"), pj.sweep(pj.mean_field, SMALL, OVER))


def test_a_second_ctrl_c_stops_at_once(tmp_path, monkeypatch):
    def twice(*_):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        stopping(patch, 1, twice)
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            stored(tmp_path / "s.zarr")
    same(stored(tmp_path / "s.zarr"), pj.sweep(pj.mean_field, SMALL, OVER))


def test_sweeps_run_outside_the_main_thread(tmp_path):
    found = []
    thread = threading.Thread(target=lambda: found.append(stored(tmp_path / "s.zarr")))
    thread.start()
    thread.join()
    assert found[0].error.shape == (7, 5, 4)


# Progress


def test_progress_is_a_line_per_tenth_or_nothing(capsys):
    pj.sweep(pj.mean_field, SMALL, OVER, chunk=1)
    assert capsys.readouterr().err == ""
    pj.sweep(pj.mean_field, SMALL, OVER, chunk=1, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("4 of 35 cells, ")
    assert lines[-1].startswith("35 of 35 cells, ")
    assert lines[-1].endswith(" cells/s, 0 s left")


def test_progress_is_a_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    with _sweep.reporting(True, 40, 0) as report:
        for done in (10, 40):
            report(done)
    err = capsys.readouterr().err
    assert "40/40" in err
    assert "/s," in err


# Bad input

BAD = {
    "unknown axis": (r"Unknown axis `laeve`: did you mean `leave`\?", {"over": {"laeve": [0.1]}}),
    "empty axis": (r"Axis `leave` must have at least one value, but is empty", {"over": {"leave": []}}),
    "nan": (r"Axis `leave` must be numbers, but is nan at place 1", {"over": {"leave": [0.1, np.nan]}}),
    "two axes of values": (
        r"Axis `leave` must be a list of numbers, but is of shape \(1, 2\)",
        {"over": {"leave": [[0, 1]]}},
    ),
    "one number": (r"Axis `leave` must be a list of numbers, but is of shape \(\)", {"over": {"leave": 0.1}}),
    "words": (r"Axis `leave` must be a list of numbers, but is", {"over": {"leave": ["a"]}}),
    "choice": (r"Axis `recruiters` is not a number", {"over": {"recruiters": ["spared"]}}),
    "count": (r"Axis `rounds` is not a number", {"over": {"rounds": [3, 4]}}),
    "no axes": (r"Argument `over` must map names", {"over": {}}),
    "out of range": (
        r"Argument `leave` must lie in \[0, 1\], but is 1.2. That is cell 7: recruit = 0.1, leave = 1.2.",
        {"over": {"recruit": [0.1, 0.2], "leave": [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1.2]}},
    ),
    "out of range under zip": (
        r"`noise_scale` must lie in \[0, inf\), but is -1. That is cell 1: noise_scale = -1, leave = 0.2.",
        {"over": {"noise_scale": [1, -1, 2], "leave": [0.1, 0.2, 0.3]}, "pairing": "zip"},
    ),
    "out of order": (
        r"`population` must be at most `cap` \(500\), but is 600. That is cell 2",
        {"over": {"population": [400, 600], "cap": [500, 700]}},
    ),
    "out of order under zip": (
        r"`population` must be at most `cap` \(500\), but is 600. That is cell 1",  # where neither is at an extreme
        {"over": {"population": [100, 600, 800], "cap": [200, 500, 900]}, "pairing": "zip"},
    ),
    "unequal": (
        r"Axes under zip must be of one length, but `leave` has 2, `recruit` has 3",
        {"over": {"leave": [0.1, 0.2], "recruit": [0.1, 0.2, 0.3]}, "pairing": "zip"},
    ),
    "pairing": (r'`pairing` must be "product" or "zip", but is "outer"', {"pairing": "outer"}),
    "no devices": (r"Argument `devices` must be an integer of at least 1, but is 0", {"devices": 0}),
    "empty devices": (r"Argument `devices` must name at least one device", {"devices": []}),
    "many devices": (r"Argument `devices` must be at most \d+, the number of local devices", {"devices": 99}),
    "chunk": (r"Argument `chunk` must be an integer of at least 1, but is 0", {"chunk": 0}),
    "memory": (r"Argument `memory` must hold one call, of 8 cells and ", {"memory": 10}),
    "no trials": (r"Argument `trials` goes with a run that has trials, which mean_field has not", {"trials": 3}),
    "no key": (r"Argument `key` must be given: simulate_counts samples", {"run": pj.simulate_counts, "trials": 3}),
    "a key too many": (r"`key` goes with a run that takes one, which mean_field does not", {"key": jax.random.key(0)}),
    "no arrays": (r"Argument `run` must return arrays", {"run": lambda scenario: "text"}),
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_input_is_one_clear_line(name):
    words, change = BAD[name]
    with pytest.raises(ValueError, match=words):
        pj.sweep(**{"run": pj.mean_field, "scenario": SMALL, "over": OVER} | change)


def test_good_orders_across_axes_are_no_error():
    over = {"population": [400, 600], "cap": [600, 700]}
    data = pj.sweep(final_error, SMALL, over)
    assert np.all(np.isfinite(data.value))


def test_cells_that_clip_and_cells_that_need_not_are_swept_apart():
    with pytest.raises(ValueError, match=r"cell 0 \(clip_radius = 1\) need not, or the other way round: sweep them"):
        pj.sweep(final_error, gaussian(dim=2), {"clip_radius": [1.0, 100.0]})
