"""The command line: answers, exit codes and one clear line for bad input."""

import json
import subprocess
import sys

import jax
import pytest

import perfjax as pj
from perfjax import cli


@pytest.fixture(autouse=True)
def _keep_precision():
    """The command sets JAX's precision; the other tests keep theirs."""
    yield
    jax.config.update("jax_enable_x64", True)


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command in this process: (exit code, stdout, stderr)."""

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["perfjax", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code or 0, *capsys.readouterr()

    return command


@pytest.fixture
def scenario_file(tmp_path):
    """A small scenario file, with its text changed as asked for."""

    def write(*changes):
        text = pj.files.preset_text("mean-estimation").replace("rounds = 50", "rounds = 3")
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "scenario.toml"
        path.write_text(text)
        return path

    return write


def test_tune_answers_like_the_library(run, scenario_file):
    path = scenario_file()
    code, out, _ = run("tune", path, "--json")
    optimum = pj.tune(pj.load_scenario(path))
    report = json.loads(out)
    assert code == 0
    assert report["best"]["noise"] == pytest.approx(float(optimum.noise), rel=1e-12)
    assert report["best"]["error"] == pytest.approx(float(optimum.value), rel=1e-12)
    assert report["privacy_pays"] == bool(optimum.privacy_pays)
    rho = 2 * 10.0**2 / float(optimum.noise) ** 2
    assert report["best"]["local_per_release_rho"] == pytest.approx(rho, rel=1e-9)
    assert report["best"]["local_all_releases_rho"] == pytest.approx(4 * rho, rel=1e-9)
    assert report["best"]["central_per_release_rho"] == pytest.approx(rho / 1000, rel=1e-9)
    assert set(report["regret"]) == {"leave", "recruit", "threshold"}


def test_tune_prints_what_a_stranger_needs(run, scenario_file):
    code, out, _ = run("tune", scenario_file())
    assert code == 0
    for words in ("interior minimum", "no privacy", "epsilon at delta = 1e-06", "mu", "rho", "Regret", "population"):
        assert words in out


def test_options_replace_leaves(run, scenario_file):
    path = scenario_file()
    _, out, _ = run("tune", path, "--leave", 0.2, "--recruit", 0.3, "--threshold", 0.1, "--json")
    expected = pj.tune(pj.load_scenario(path).replace(leave=0.2, recruit=0.3, threshold=0.1))
    assert json.loads(out)["best"]["noise"] == pytest.approx(float(expected.noise), rel=1e-9)


@pytest.mark.parametrize(
    ("budget", "noise"),
    [
        (("--at-rho", 5), (2 * 10.0**2 / 5) ** 0.5),
        (("--at-epsilon", 3, "--delta", 1e-6), 20 / float(pj.accounting.gaussian_mu(3.0, 1e-6))),
    ],
)
def test_the_budget_i_am_bound_to_stands_beside_the_best(run, scenario_file, budget, noise):
    path = scenario_file()
    _, out, _ = run("tune", path, *budget, "--json")
    report = json.loads(out)
    assert report["your_budget"]["noise"] == pytest.approx(noise, rel=1e-9)
    value = pj.CumulativeError()(pj.load_scenario(path).replace(noise_scale=noise))
    assert report["your_budget"]["error"] == pytest.approx(float(value), rel=1e-9)
    _, out, _ = run("tune", path, *budget)
    assert "Your budget costs" in out


def test_randomized_response_is_tuned_by_epsilon(run):
    code, out, _ = run("tune", "--preset", "randomized-response", "--at-epsilon", 2, "--json")
    report = json.loads(out)
    assert code == 0
    assert report["noise_name"] == "epsilon"
    assert report["your_budget"]["local_per_release_epsilon"] == 2
    assert report["best"]["local_all_releases_epsilon"] == pytest.approx(201 * report["best"]["noise"])


def test_float32_agrees(run, scenario_file):
    path = scenario_file()
    _, out, _ = run("tune", path, "--json")
    _, single, _ = run("tune", path, "--json", "--dtype", "float32")
    assert json.loads(single)["best"]["error"] == pytest.approx(json.loads(out)["best"]["error"], rel=1e-4)


def test_plot_is_saved(run, scenario_file, tmp_path):
    code, out, _ = run("tune", scenario_file(), "--plot", tmp_path / "best.png")
    assert code == 0
    assert (tmp_path / "best.png").read_bytes().startswith(b"\x89PNG")
    assert "best.png" in out


def test_a_picture_that_cannot_be_saved_does_not_cost_the_answer(run, scenario_file, tmp_path):
    code, out, err = run("tune", scenario_file(), "--plot", tmp_path / "missing" / "best.png", "--json")
    assert code == 2
    assert json.loads(out)["best"]["noise"] > 0
    assert err.count("\n") == 1
    assert "best.png" in err


def test_an_infeasible_constraint_is_an_answer_not_a_crash(run, scenario_file):
    code, out, _ = run("tune", scenario_file(), "--recruit", 0, "--constraint", "theorem-2")
    assert code == 0
    assert "infeasible" in out


def test_new_then_show_then_tune(run, tmp_path):
    path = tmp_path / "mine.toml"
    assert run("scenario", "new", path)[0] == 0
    code, out, _ = run("scenario", "show", path)
    assert code == 0
    assert out == pj.files.preset_text("mean-estimation")
    path.write_text("kept")
    code, _, err = run("scenario", "new", path)
    assert code == 2
    assert "--force" in err
    assert path.read_text() == "kept"
    assert run("scenario", "new", path, "--force")[0] == 0
    assert path.read_text() != "kept"


BAD = [
    (("leave = 0.45", "leave = 1.2"), "`leave` must lie in [0, 1], but is 1.2"),
    (("noise_scale = 1.0", "noise_scale = -1"), "`noise_scale` must lie in [0, inf), but is -1"),
    (("covariance = 1.0", "covariance = [[1.0, 2.0], [2.0, 1.0]]"), "`covariance`"),
    (("rounds = 3", "rounds = 0"), "`rounds` must be an integer of at least 1, but is 0"),
    (("population = 1000", "population = 0"), "`population` must lie in (0, inf], but is 0"),
    (("mean = 0.0", "mean = [0.0, 1.0]"), "`mean` must be one number or 12 of them"),
    (("threshold = 0.02", "treshold = 0.02"), "`treshold`: did you mean `threshold`?"),
    (("leave = 0.45", ""), "`leave`"),
    (("leave = 0.45", "leave = oops"), "not a TOML file"),
]


@pytest.mark.parametrize(("change", "words"), BAD, ids=[words for _, words in BAD])
def test_a_bad_file_is_one_clear_line(run, scenario_file, change, words):
    code, out, err = run("tune", scenario_file(change))
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert words in err
    assert "scenario.toml" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--leave", 1.2), "`leave` must lie in [0, 1], but is 1.2"),
        (("--preset", "mean-estimatoin"), "did you mean `mean-estimation`?"),
        (("nowhere.toml",), "nowhere.toml"),
        (("nowhere.toml", "--preset", "breach-survey"), "not both"),
        (("--delta", 1e-6), "--at-epsilon"),
        (("--at-rho", -1), "`rho` must lie in"),
        (("--at-rho", 1, "--at-epsilon", 1), "either"),
        (("--preset", "randomized-response", "--at-rho", 1), "--at-epsilon"),
        (("--constraint", "nonsense"), '"growth" or "theorem-2"'),
    ],
)
def test_a_bad_option_is_one_clear_line(run, arguments, words):
    code, out, err = run("tune", *arguments)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert words in err


def test_a_folder_without_permission_is_one_clear_line(run, tmp_path):
    code, _, err = run("scenario", "new", tmp_path / "missing" / "mine.toml")
    assert code == 2
    assert err.count("\n") == 1
    assert "mine.toml" in err


def test_python_dash_m_is_the_command():
    shown = subprocess.run(
        [sys.executable, "-m", "perfjax", "scenario", "show", "--preset", "breach-survey"],
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0
    assert "leave = 0.11" in shown.stdout
