"""Scenario files: exact round trips, atomic saves, clear errors; the presets."""

import os
import re
import tomllib

import equinox as eqx
import numpy as np
import pytest
from cases import PRESETS
from hypothesis import given, settings
from hypothesis import strategies as st
from scenarios import gaussian, response

import perfjax as pj
from perfjax import files

MATRIX = np.array([[2.0, 0.1, 0.3], [0.1, 1.0 / 3.0, 0.0], [0.3, 0.0, 7.0]])
SCENARIOS = {
    **{name: pj.preset(name) for name in PRESETS},
    "schedule": gaussian(np.geomspace(0.1, 9.7, 11), dim=3, covariance=[0.1, 0.2, 1e300]),
    "matrix": gaussian(dim=3, covariance=MATRIX, mean=[1e-300, -1 / 3, 0.0], outside="recomputed", clip_radius=1.7),
    "no privacy": response(np.inf, mean=1 / 3, clip_estimate=True, recruiters="everyone"),
    "no privacy at last": response([0.1, np.inf], rounds=1),
}


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_round_trip_is_exact(name, tmp_path):
    path = tmp_path / "scenario.toml"
    pj.save_scenario(SCENARIOS[name], path, about='a "quoted" \\ text\nof two lines\twith a tab')
    assert eqx.tree_equal(pj.load_scenario(path), SCENARIOS[name])
    assert tomllib.loads(path.read_text())["about"] == 'a "quoted" \\ text\nof two lines\twith a tab'


chances = st.floats(0, 1)
positive = st.floats(1e-200, 1e200)


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(
    noise=st.one_of(positive, st.lists(positive, min_size=4, max_size=4)),
    covariance=st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=2),
    leave=chances,
    recruit=chances,
    threshold=positive,
    population=st.floats(0.1, 1e4),
    about=st.none() | st.text(st.characters(exclude_categories=["Cs"])),
)
def test_any_scenario_comes_back(noise, covariance, leave, recruit, threshold, population, about):
    scenario = gaussian(
        noise,
        dim=2,
        covariance=covariance,
        leave=leave,
        recruit=recruit,
        threshold=threshold,
        population=population,
        rounds=3,
    )
    text = files.to_toml(scenario, about=about)
    assert eqx.tree_equal(files._built(text, "text", files._build), scenario)
    assert tomllib.loads(text).get("about") == about


@pytest.mark.parametrize("about", ["a\x7fb", "\x00\x1f", "\u0085\u2028", 'a "quoted" \\u007f'], ids=ascii)
def test_a_control_character_comes_back(about):
    """TOML wants DEL escaped, which JSON leaves as it is."""
    assert tomllib.loads(files.to_toml(gaussian(), about=about))["about"] == about


def test_float32_survives_a_file_exactly(tmp_path):
    single = gaussian(0.1, leave=0.3).astype("float32")
    pj.save_scenario(single, tmp_path / "s.toml")
    assert eqx.tree_equal(pj.load_scenario(tmp_path / "s.toml").astype("float32"), single)


@pytest.mark.parametrize(
    ("value", "text"), [(np.inf, "inf"), (-np.inf, "-inf"), (np.nan, "nan"), ([1.5, -np.inf], "[1.5, -inf]")]
)
def test_numbers_that_are_not_finite_are_those_of_toml(value, text):
    assert files.toml_value(value) == text


def test_a_file_that_cannot_be_written_is_named_as_it_was_asked_for(tmp_path):
    path = tmp_path / "none" / "s.toml"
    with pytest.raises(FileNotFoundError) as error:
        pj.save_scenario(gaussian(), path)
    assert error.value.filename == str(path)


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "scenario.toml"
    pj.save_scenario(SCENARIOS["matrix"], path)
    before = path.read_bytes()

    def full_disk(*_):
        raise OSError("no space left")

    for target, name in ((os, "replace"), (files, "to_toml")):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, full_disk if name == "replace" else lambda *_, **__: full_disk())
            with pytest.raises(OSError, match="no space left"):
                pj.save_scenario(SCENARIOS["schedule"], path)
        assert path.read_bytes() == before
        assert [file.name for file in tmp_path.iterdir()] == ["scenario.toml"]


def test_a_save_replaces_the_old_file(tmp_path):
    path = tmp_path / "scenario.toml"
    for name in ("matrix", "schedule"):
        pj.save_scenario(SCENARIOS[name], path)
    assert eqx.tree_equal(pj.load_scenario(path), SCENARIOS["schedule"])


GOOD = files.to_toml(gaussian(dim=3))


def refuses(text, tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: ") as error:
        pj.load_scenario(path)
    message = str(error.value).removeprefix(f"{path}: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("leave = ", "leaves = ", "Unknown key in [participation] `leaves`: did you mean `leave`?"),
        ("noise_scale = ", "noise = ", "Unknown key in [mechanism] `noise`: did you mean `noise_scale`?"),
        ("[leakage]", "[leekage]", "Unknown key `leekage`: did you mean `leakage`?"),
        ("rounds = 10\n", "", "Missing key: `rounds`."),
        ("noise_scale = 1.0\n", "", "Missing key in [mechanism]: `noise_scale`."),
        (
            'type = "GaussianMean"\n',
            "",
            "Missing key `type` in [mechanism]: one of GaussianMean, RandomizedResponse, ShiftedLogCount.",
        ),
        ('"GaussianMean"', '"GausianMean"', "Unknown type in [mechanism] `GausianMean`: did you mean `GaussianMean`?"),
        ("leave = 0.3", "leave = 1.2", "Argument `leave` must lie in [0, 1], but is 1.2."),
        ("rounds = 10", "rounds = 0", "Argument `rounds` must be an integer of at least 1, but is 0."),
        ("population = 100.0", "population = 0", "Argument `population` must lie in (0, inf"),
        ("mean = 0.0", "mean = [1.0, 2.0]", "Argument `mean` must be one number or 3 of them (`dim`)"),
        ("leave = 0.3", "leave = ", "not a TOML file: "),
        ("leave = 0.3", "leave = " + 2000 * "[", "not a TOML file: "),
        (
            '"GaussianMean"',
            "3",
            "Unknown type in [mechanism] `3`: known are `GaussianMean`, `RandomizedResponse`, `ShiftedLogCount`.",
        ),
        ("population", "about = 3\npopulation", "Argument `about` must be a text, but is 3."),
    ],
)
def test_bad_files_are_one_clear_line(old, new, message, tmp_path):
    assert old in GOOD
    assert refuses(GOOD.replace(old, new), tmp_path).startswith(message)


def test_bytes_that_are_no_text_are_one_clear_line(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: not a TOML file: "):
        pj.load_scenario(path)


def test_a_part_must_be_a_table(tmp_path):
    text = 'leakage = "none"\n' + re.sub(r"\[leakage\][^\[]*", "", GOOD)
    assert refuses(text, tmp_path) == 'Argument `leakage` must be a table, but is "none".'


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        pj.load_scenario(tmp_path / "none.toml")


# Presets.


def test_the_presets_are_those_documented():
    assert files.preset_names() == sorted(PRESETS)
    for name in PRESETS:
        assert f'"{name}"' in pj.preset.__doc__


@pytest.mark.parametrize("name", list(PRESETS))
def test_presets_hold_the_published_values(name):
    leaves = pj.preset(name).leaves()
    assert set(leaves) == set(PRESETS[name])
    for leaf, value in PRESETS[name].items():
        assert np.all(np.asarray(leaves[leaf]) == np.asarray(value)), leaf
    assert np.all(np.isfinite(pj.mean_field(pj.preset(name)).error))


def test_the_survey_gives_the_leave_probability_and_says_what_is_assumed():
    assert pj.preset("breach-survey").participation.leave == 0.11
    text = " ".join(files.preset_text("breach-survey").split())
    assert "RR1187" in text
    assert "11 %" in text
    assert "ASSUMED" in text


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(ValueError, match=r"^Unknown preset `mean-estimate`: did you mean `mean-estimation`\?$"):
        pj.preset("mean-estimate")
