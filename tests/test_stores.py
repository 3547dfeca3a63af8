"""Stores that heal, and that never give results of another run: every fault is noticed, named, and computed again."""

import functools
import json
import shutil
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zarr
from scenarios import gaussian

import perfjax as pj
from perfjax.sweeps import _program, _store, _sweep, open_sweep

LEAVE, RECRUIT = np.linspace(0.05, 0.95, 5), np.linspace(0.1, 0.9, 3)
OVER = {"leave": LEAVE, "recruit": RECRUIT}
SMALL = gaussian(rounds=3)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setitem(_program.BLOCK, "cpu", 4)


def weighted(scenario):
    """1000 q + r, to the digit, and it twice."""
    value = 1000 * scenario.participation.leave + scenario.participation.recruit
    return {"value": value, "twice": jnp.stack([value, value])}


EXPECTED = 1000 * LEAVE[:, None] + RECRUIT


def swept(path, run=weighted, over=OVER, **options):
    return pj.sweep(run, SMALL, over, store=path, **{"chunk": 3} | options)


def check_numbers(data):
    np.testing.assert_allclose(data.value.transpose("leave", "recruit"), EXPECTED, rtol=1e-15)
    np.testing.assert_array_equal(data.twice[..., 1], data.value)
    np.testing.assert_array_equal(data.leave, LEAVE)


# What is in a store is of this very run


@pytest.mark.parametrize("recruit", [RECRUIT, LEAVE], ids=["unequal", "equal"])
def test_axes_in_another_order_are_another_sweep(tmp_path, recruit):
    over = {"leave": LEAVE, "recruit": recruit}
    swept(tmp_path / "s.zarr", over=over)
    with pytest.raises(ValueError, match=r"another sweep: `axes` is leave, recruit there, recruit, leave here. Give"):
        swept(tmp_path / "s.zarr", over=dict(reversed(over.items())))
    check = swept(tmp_path / "s.zarr", over=over)
    np.testing.assert_allclose(check.value, 1000 * LEAVE[:, None] + recruit, rtol=1e-15)


def test_the_order_of_paired_axes_does_not_matter(tmp_path):
    over = {"leave": LEAVE[:3], "recruit": RECRUIT}
    for axes in (over, dict(reversed(over.items()))):
        data = swept(tmp_path / "s.zarr", over=axes, pairing="zip")
        np.testing.assert_allclose(data.value, 1000 * LEAVE[:3] + RECRUIT, rtol=1e-15)


SCALE = 2.0
SETTINGS = {"scale": 2.0}


def helper(value):
    return SCALE * value


def names_a_global(scenario):
    return helper(scenario.participation.leave)


def reads_a_table(scenario):
    return SETTINGS["scale"] * scenario.participation.leave


def has_a_default(scenario, scale=2.0):
    return scale * scenario.participation.leave


def has_a_keyword_default(scenario, *, scale=2.0):
    return scale * scenario.participation.leave


def scaled(scale):
    """A decorator whose wrapper looks like what it wraps."""

    def decorated(run):
        return functools.wraps(run)(lambda scenario: scale * run(scenario))

    return decorated


def plain(scenario):
    return scenario.participation.leave


class Bound:
    def __init__(self, scale):
        self.scale = scale

    def run(self, scenario):
        return self.scale * scenario.participation.leave

    def __call__(self, scenario):
        return self.run(scenario)


def large(last):
    """Arrays that differ where printing leaves them out, or in their last digit."""
    return np.linspace(0, 2, 5000) if last == 2.0 else np.append(np.linspace(0, 2, 5000)[:-1], last)


def take(scenario, table):
    return jnp.asarray(table)[-1] * scenario.participation.leave


CHANGES = {
    "default": lambda scale, patch: patch.setattr(has_a_default, "__defaults__", (scale,)) or has_a_default,
    "keyword default": lambda scale, patch: (
        patch.setattr(has_a_keyword_default, "__kwdefaults__", {"scale": scale}) or has_a_keyword_default
    ),
    "global of a helper": lambda scale, patch: patch.setattr(f"{__name__}.SCALE", scale) or names_a_global,
    "entry of a global": lambda scale, patch: patch.setitem(SETTINGS, "scale", scale) or reads_a_table,
    "helper": lambda scale, patch: patch.setattr(f"{__name__}.helper", lambda x: scale * x) or names_a_global,
    "bound object": lambda scale, patch: Bound(scale).run,
    "callable object": lambda scale, patch: Bound(scale),
    "bound argument": lambda scale, patch: functools.partial(has_a_default, scale=scale),
    "bound array": lambda scale, patch: functools.partial(take, table=large(scale)),
    "closure": lambda scale, patch: lambda scenario: scale * scenario.participation.leave,
    "decorator": lambda scale, patch: scaled(scale)(plain),
    "jitted": lambda scale, patch: jax.jit(lambda scenario: scale * scenario.participation.leave),
}


LAST_DIGIT = float(np.nextafter(2.0, 3.0))


@pytest.mark.parametrize(
    ("name", "scale"),
    [*((name, 3.0) for name in CHANGES), ("default", LAST_DIGIT), ("bound array", LAST_DIGIT)],
)
def test_a_run_that_changed_is_another_sweep(tmp_path, monkeypatch, name, scale):
    over = {"leave": LEAVE}
    for _ in range(2):  # the second time it is the same run, in objects of its own
        with monkeypatch.context() as patch:
            data = swept(tmp_path / "s.zarr", CHANGES[name](2.0, patch), over)
            np.testing.assert_array_equal(data.value, 2 * LEAVE)
    run = CHANGES[name](scale, monkeypatch)
    with pytest.raises(ValueError, match=r"s.zarr holds another sweep: `run` (is|computes something else)") as caught:
        swept(tmp_path / "s.zarr", run, over)
    assert "\n" not in str(caught.value)


def test_a_store_is_checked_before_anything_is_compiled(tmp_path, monkeypatch):
    swept(tmp_path / "s.zarr")
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr(_sweep, "compiled_program", None)
    with pytest.raises(ValueError, match="`scenario` is"):
        pj.sweep(weighted, SMALL.replace(population=50), OVER, store=tmp_path / "s.zarr")
    monkeypatch.setattr(_sweep, "traced_run", None)
    with pytest.raises(ValueError, match="file exists and is no store of a sweep"):
        swept(tmp_path / "file")
    with pytest.raises(ValueError, match=r"file is no folder"):
        swept(tmp_path / "file" / "s.zarr")


def test_a_run_that_calls_back_has_no_store(tmp_path):
    def run(scenario):
        shape = jax.ShapeDtypeStruct((), float)
        return jax.pure_callback(lambda q: 2 * q, shape, scenario.participation.leave, vmap_method="sequential")

    with pytest.raises(ValueError, match=r"calls back into Python \(`.*<lambda>`\) can't have a store"):
        swept(tmp_path / "s.zarr", run, {"leave": LEAVE})
    np.testing.assert_array_equal(pj.sweep(run, SMALL, {"leave": LEAVE}).value, 2 * LEAVE)


def test_a_store_of_another_format_is_refused(tmp_path):
    swept(tmp_path / "s.zarr")
    metadata = tmp_path / "s.zarr" / "zarr.json"
    metadata.write_text(metadata.read_text().replace(_store.FORMAT, "perfjax sweep 1"))
    with pytest.raises(ValueError, match=r"s.zarr is a store in the format of another version of perfjax"):
        swept(tmp_path / "s.zarr")
    zarr.open_group(metadata.parent).attrs.pop("format")  # as those of the first format
    with pytest.raises(ValueError, match=r"s.zarr is a store in the format of another version of perfjax"):
        swept(tmp_path / "s.zarr")


# What is damaged is computed again


def cut(path):
    path.write_bytes(path.read_bytes()[:-5])


def flip(path, place=-5):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")


FAULTS = {
    "delete": lambda path: path.unlink(),
    "cut": cut,
    "flip": flip,
    "flip in the head": functools.partial(flip, place=1),
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize(
    ("file", "fault"),
    [
        *(("value/c/3/0", fault) for fault in FAULTS),
        *(("twice/c/3/0/0", fault) for fault in ("delete", "flip")),
        *(("chunk_digest/c/3", fault) for fault in ("delete", "cut", "flip")),
    ],
)
def test_a_damaged_chunk_is_named_and_computed_again(tmp_path, file, fault):
    path, words = tmp_path / "s.zarr", r"s.zarr: chunk 3 \(leave\[3:4\], recruit\[0:3\]\) is damaged: "
    swept(path)
    FAULTS[fault](path / file)
    with pytest.raises(ValueError, match=words + "run its sweep again, which|is damaged: its metadata"):
        open_sweep(path)
    with pytest.warns(UserWarning, match=words + "computed again"):
        check_numbers(swept(path))
    check_numbers(swept(path))
    check_numbers(open_sweep(path))


def test_a_folder_in_place_of_a_chunk_is_one_line(tmp_path):
    path = tmp_path / "s.zarr"
    swept(path)
    (path / "value" / "c" / "3" / "0").unlink()
    (path / "value" / "c" / "3" / "0").mkdir()
    with pytest.warns(UserWarning, match="chunk 3 .* damaged"), pytest.raises(OSError, match=r"s.zarr: Is a directory"):
        swept(path)


@pytest.mark.parametrize("fault", ["delete", "cut"])
def test_a_damaged_mark_is_a_chunk_to_compute(tmp_path, fault):
    path = tmp_path / "s.zarr"
    swept(path)
    FAULTS[fault](path / "chunk_seconds" / "c" / "3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_numbers(swept(path))
    check_numbers(open_sweep(path))


@pytest.mark.parametrize(
    ("file", "fault"), [("leave/c/0", "delete"), ("leave/c/0", "flip"), ("leave/zarr.json", "cut")]
)
def test_a_damaged_axis_is_written_again(tmp_path, file, fault):
    path = tmp_path / "s.zarr"
    swept(path)
    FAULTS[fault](path / file)
    check_numbers(swept(path))
    check_numbers(open_sweep(path))


@pytest.mark.parametrize(
    ("name", "fault"), [("", "delete"), ("", "cut"), ("value", "delete"), ("value", "cut"), ("chunk_seconds", "empty")]
)
def test_damaged_metadata_is_one_line(tmp_path, name, fault):
    path = tmp_path / "s.zarr"
    swept(path)
    FAULTS[fault](path / name / "zarr.json")
    words = "is damaged: `.*` can't be read. Remove it, and run" if name else "exists and is no store of a sweep"
    with pytest.raises(ValueError, match=words) as caught:
        swept(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"is damaged|is no store"):
        open_sweep(path)


@pytest.mark.parametrize(("name", "key", "value"), [("value", "shape", [5, 4]), ("chunk_seconds", "shape", [9])])
def test_edited_metadata_is_one_line(tmp_path, name, key, value):
    path = tmp_path / "s.zarr"
    swept(path)
    metadata = path / name / "zarr.json"
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {key: value}))
    with pytest.raises(ValueError, match=r"s.zarr is damaged: .*. Remove it, and run the sweep again"):
        swept(path)


def test_edited_chunks_are_one_line(tmp_path):
    path = tmp_path / "s.zarr"
    swept(path)
    metadata = path / "twice" / "zarr.json"
    metadata.write_text(metadata.read_text().replace('"chunk_shape": [\n        1,', '"chunk_shape": [\n        2,'))
    with pytest.raises(ValueError, match=r"s.zarr is damaged: its fields are cut into different chunks"):
        swept(path)


def test_chunks_of_nan_are_there(tmp_path):
    def nowhere(scenario):
        return -jnp.nan * scenario.participation.leave, jnp.int32(-1)

    path = tmp_path / "s.zarr"
    for _ in range(2):  # the second time without a warning
        data = swept(path, nowhere)
        assert np.isnan(data["0"]).all()
        assert (data["1"] == -1).all()
    assert len(list((path / "0" / "c").iterdir())) == 5


def test_many_damaged_chunks_are_counted(tmp_path):
    swept(tmp_path / "s.zarr", chunk=1)
    shutil.rmtree(tmp_path / "s.zarr" / "value" / "c")
    with pytest.warns(
        UserWarning, match=r"chunks 0 \(leave\[0:1\], recruit\[0:1\]\), 1 .*, 2 .* and 12 more are damaged"
    ):
        check_numbers(swept(tmp_path / "s.zarr"))


def test_an_unfinished_store_opens_in_part(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(_store.Store, "_write", failing_at(3, _store.Store._write))
        with pytest.raises(OSError, match="No space left"):
            swept(tmp_path / "s.zarr")
    with pytest.raises(ValueError, match=r"s.zarr: chunks 3 .*, 4 .* are not computed yet: run its sweep again, or"):
        open_sweep(tmp_path / "s.zarr")
    data = open_sweep(tmp_path / "s.zarr", partial=True)
    np.testing.assert_allclose(data.value[:3], EXPECTED[:3], rtol=1e-15)
    assert np.isnan(data.value[3:]).all()
    with pytest.raises(ValueError, match="nowhere does not exist"):
        open_sweep(tmp_path / "nowhere")


def failing_at(number, write):
    def failing(self, chunk, values, start):
        if chunk.number == number:
            raise OSError(28, "No space left on device")
        write(self, chunk, values, start)

    return failing


# Nothing hangs


def before_chunk(monkeypatch, number, happen):
    write = _store.Store.write

    def patched(self, chunk, values, start):
        if chunk.number == number:
            happen(self.path)
        write(self, chunk, values, start)

    monkeypatch.setattr(_store.Store, "write", patched)


@pytest.mark.parametrize("how", ["deleted", "renamed"])
def test_a_store_that_is_gone_while_it_runs_is_one_line(tmp_path, monkeypatch, how):
    gone = shutil.rmtree if how == "deleted" else lambda path: path.rename(tmp_path / "t.zarr")
    before_chunk(monkeypatch, 2, gone)
    with pytest.raises(OSError, match=r"s.zarr was deleted or renamed while the sweep ran\.$"):
        swept(tmp_path / "s.zarr")
    assert not (tmp_path / "s.zarr").exists()


def test_a_mark_that_is_gone_while_it_runs_is_not_waited_for(tmp_path, monkeypatch):
    before_chunk(monkeypatch, 4, lambda path: (path / "chunk_seconds" / "c" / "1").unlink())
    with pytest.raises(OSError, match=r"chunk 1 \(leave\[1:2\], recruit\[0:3\]\) is missing or damaged again: did"):
        swept(tmp_path / "s.zarr")
    check_numbers(swept(tmp_path / "s.zarr"))


def test_other_processes_are_waited_for_with_a_limit_and_a_word(tmp_path, monkeypatch, capsys):
    words = r"s.zarr: chunks 1 .*, 3 .* are not there after .* s without news of the other"
    with monkeypatch.context() as patch:
        patch.setattr(jax, "process_count", lambda: 2)
        patch.setattr(_sweep, "PATIENCE", 0.01)
        patch.setattr(_sweep, "LIMIT", 0.1)
        with pytest.raises(TimeoutError, match=words):
            swept(tmp_path / "s.zarr", progress=True)
    assert "waiting for 2 chunks of other processes" in capsys.readouterr().err
    check_numbers(swept(tmp_path / "s.zarr"))


@pytest.mark.slow
def test_threads_share_a_new_store(tmp_path):
    for attempt in range(6):
        found, path, start = [], tmp_path / f"{attempt}.zarr", threading.Barrier(8)

        def swept_at_once(found=found, path=path, start=start):
            start.wait()
            try:
                found.append(swept(path, chunk=1).load())
            except Exception as error:
                found.append(error)

        threads = [threading.Thread(target=swept_at_once) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 8
        for data in found:
            assert not isinstance(data, Exception), data
            check_numbers(data)
        assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_leaks_can_be_looked_for(tmp_path):
    with jax.checking_leaks():
        check_numbers(pj.sweep(weighted, SMALL, OVER))


def test_fields_are_named():
    with pytest.raises(ValueError, match="Argument `fields` must name at least one field, but is empty"):
        pj.sweep(weighted, SMALL, OVER, fields=[])
