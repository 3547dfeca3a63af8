"""The command line: answers, exit codes and one clear line for bad input."""

import json
import math
import os
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rich.table
import scipy.optimize
import typer
import xarray
from assertions import epsilon_of
from scenarios import response

import perfjax as pj
from perfjax import cli
from perfjax.cli import _fit, _fitted, _reconstruct, _shared, _simulate, _sweep, _tune

EVERY = pj.CumulativeError(first_release=0)  # what the commands minimise


@pytest.fixture
def scenario_file(tmp_path):
    """A small scenario file, with its text changed as asked for: of few users, which the law has a node for each."""
    smaller = {
        "mean-estimation": (("population = 1000", "population = 100"), ("rounds = 50", "rounds = 3")),
        "randomized-response": (("population = 400", "population = 100"), ("rounds = 200", "rounds = 20")),
    }

    def write(*changes, preset="mean-estimation"):
        text = pj.files.preset_text(preset)
        for old, new in (*smaller[preset], ("cap = 20000", "cap = 150"), *changes):
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "scenario.toml"
        path.write_text(text)
        return path

    return write


@pytest.mark.slow
def test_tune_answers_like_the_library(run, scenario_file):
    path = scenario_file()
    code, out, _ = run("tune", path, "--json")
    optimum = pj.tune(pj.load_scenario(path), EVERY)
    report = json.loads(out)
    assert code == 0
    assert report["best"]["noise"] == pytest.approx(float(optimum.noise), rel=1e-12)
    assert report["best"]["error"] == pytest.approx(float(optimum.value), rel=1e-12)
    assert report["privacy_pays"] == bool(optimum.privacy_pays)
    rho = 2 * 10.0**2 / float(optimum.noise) ** 2
    assert report["best"]["local_per_release_rho"] == pytest.approx(rho, rel=1e-9)
    assert report["best"]["local_all_releases_rho"] == pytest.approx(4 * rho, rel=1e-9)
    assert report["best"]["central_per_release_rho"] == pytest.approx(rho / 100, rel=1e-9)
    assert set(report["regret"]) == {"leave", "recruit", "threshold"}


@pytest.mark.slow
def test_tune_with_leaks_by_reconstruction(run, scenario_file):
    leakage = 'type = "ReconstructedWithin"\ntolerance = 3.0\nreleases = 4'
    text = pj.files.preset_text("mean-estimation")
    start = text.index("[leakage]") + len("[leakage]\n")
    path = scenario_file((text[start : text.index("[participation]")], leakage + "\n\n"))
    code, out, _ = run("tune", path, "--json")
    report = json.loads(out)
    optimum = pj.tune(pj.load_scenario(path), EVERY)
    assert code == 0
    assert report["best"]["noise"] == pytest.approx(float(optimum.noise), rel=1e-12)
    assert set(report["regret"]) == {"leave", "recruit", "tolerance"}
    assert "law_error" in report["best"]
    assert "releases = 4.0" in report["scenario"]


@pytest.mark.slow
def test_tune_prints_what_a_stranger_needs(run, scenario_file):
    code, out, _ = run("tune", scenario_file())
    assert code == 0
    for words in ("interior minimum", "no privacy", "epsilon at delta = 1e-06", "mu", "rho", "Regret", "population"):
        assert words in out


def test_tune_is_confirmed_by_the_law(run, scenario_file):
    path = scenario_file()
    _, out, _ = run("tune", path, "--json")
    report = json.loads(out)
    law = pj.population_law(pj.load_scenario(path), noise=report["best"]["noise"])
    assert report["law_releases"] == [0, 3]
    assert report["best"]["law_error"] == pytest.approx(float(law.expected_error.sum()), rel=1e-9)
    assert report["best"]["law_error"] == pytest.approx(report["best"]["error"], rel=0.05)
    assert report["best"]["collapse_probability"] == pytest.approx(float(law.collapse_probability[-1]), abs=1e-12)
    assert report["no_privacy"]["law_error"] > report["best"]["law_error"]
    _, out, _ = run("tune", path)
    text = " ".join(out.split())
    assert "law of the population confirms this: expected error of releases 0 to 3" in text
    assert "probability of collapse by release 3" in text
    assert "P(collapse by the last release)" in text


@pytest.mark.slow
def test_tune_and_schedule_count_the_same_releases(run, scenario_file):
    """So that the constant noise beside a schedule is the one that tune finds, and each says which releases count."""
    path = scenario_file()
    tuned, scheduled = (json.loads(run(command, path, "--json")[1]) for command in ("tune", "schedule"))
    assert scheduled["value_constant"] == pytest.approx(tuned["best"]["error"], rel=1e-9)
    assert scheduled["constant"]["noise"][0] == pytest.approx(tuned["best"]["noise"], rel=1e-6)
    error = sum(scheduled["constant"]["error"])
    assert error == pytest.approx(tuned["best"]["error"], rel=1e-9)
    assert tuned["counted"] == scheduled["counted"] == "releases 0 to 3"


def test_tune_counts_from_the_release_asked_for(run, scenario_file):
    path = scenario_file()
    _, out, _ = run("tune", path, "--first-release", 1, "--json")
    report, lemma_9 = json.loads(out), pj.tune(pj.load_scenario(path))
    assert report["best"]["error"] == pytest.approx(float(lemma_9.value), rel=1e-12)
    assert report["counted"] == "releases 1 to 3"
    assert "(releases 1 to 3)" in str(lemma_9)
    code, _, err = run("tune", path, "--objective", "final-error", "--first-release", 1)
    assert code != 0
    assert "--first-release goes with --objective cumulative-error" in err


def test_tune_says_when_the_law_is_out_of_reach(run, scenario_file, monkeypatch):
    def refuse(scenario):
        raise ValueError("The count has no law.")

    monkeypatch.setattr(pj.law, "check_law", refuse)  # such a scenario takes long to tune
    code, out, _ = run("tune", scenario_file(), "--leave", 0.9)  # of which 20 % more is above 1
    assert code == 0
    assert "Not confirmed by the law of the population: The count has no law." in " ".join(out.split())
    assert "population law" not in out


def test_regret_holds_a_rate_at_1_where_20_percent_more_is_above(monkeypatch):
    """Of leave 0.9 and recruit 0.11. In place of a regret stands leave + 10 recruit of the truth it is asked for."""
    monkeypatch.setattr(pj, "regret", lambda _, truth: truth.participation.leave + 10 * truth.participation.recruit)
    found = _tune._regrets(pj, types.SimpleNamespace(scenario=pj.preset("mean-estimation").replace(leave=0.9)))
    assert found["leave"] == pytest.approx({"-20 %": 0.72 + 1.1, "+20 %": 1.0 + 1.1}, rel=1e-12)
    assert found["recruit"] == pytest.approx({"-20 %": 0.9 + 0.88, "+20 %": 0.9 + 1.32}, rel=1e-12)


def test_options_replace_leaves(run, scenario_file):
    path = scenario_file()
    _, out, _ = run("tune", path, "--leave", 0.2, "--recruit", 0.3, "--threshold", 0.1, "--json")
    expected = pj.tune(pj.load_scenario(path).replace(leave=0.2, recruit=0.3, threshold=0.1), EVERY)
    assert json.loads(out)["best"]["noise"] == pytest.approx(float(expected.noise), rel=1e-9)


@pytest.mark.parametrize(
    ("budget", "noise"),
    [
        (("--at-rho", 5), (2 * 10.0**2 / 5) ** 0.5),
        (("--at-epsilon", 3, "--delta", 1e-6), 20 / float(pj.accounting.gaussian_mu(epsilon=3.0, delta=1e-6))),
    ],
)
def test_the_budget_i_am_bound_to_stands_beside_the_best(run, scenario_file, budget, noise):
    path = scenario_file()
    _, out, _ = run("tune", path, *budget, "--json")
    report = json.loads(out)
    assert report["your_budget"]["noise"] == pytest.approx(noise, rel=1e-9)
    value = EVERY(pj.load_scenario(path).replace(noise_scale=noise))
    assert report["your_budget"]["error"] == pytest.approx(float(value), rel=1e-9)
    _, out, _ = run("tune", path, *budget)
    text = " ".join(out.split())
    assert "Your local budget costs" in text
    assert ("if you meant that, noise_scale 0.632 is enough with 100 users" in text) == (budget[0] == "--at-rho")
    if budget[0] == "--at-rho":
        assert "Your rho 5 is local" in text
        assert "The central rho of release 0 is 0.05:" in text
    assert "Privacy pays" in text
    assert (
        text.index("Privacy pays") < text.index("Local budget (of each user's own") < text.index("Central budget (of")
    )


def test_a_local_epsilon_that_may_have_been_meant_as_a_central_one_is_asked_about(run, scenario_file):
    """At 1000 users the central epsilon of a release of local epsilon 1 is 40 times less."""
    path = scenario_file(("population = 100", "population = 1000"), ("cap = 150", "cap = 1500"))
    _, out, _ = run("tune", path, "--at-epsilon", 1, "--json")
    report = json.loads(out)
    mu = scipy.optimize.brentq(lambda mu: epsilon_of(mu, 1e-6) - 1, 0.01, 1)
    central = epsilon_of(mu / 1000**0.5, 1e-6)
    assert report["your_budget"]["central_per_release_epsilon"] == pytest.approx(central, rel=1e-6)
    assert f"The central epsilon of release 0 (delta = 1e-06) is {central:.2g}:" in report["scope_warning"]


@pytest.mark.slow
def test_randomized_response_is_tuned_by_epsilon(run, scenario_file):
    path = scenario_file(preset="randomized-response")
    code, out, _ = run("tune", path, "--at-epsilon", 2, "--json")
    report = json.loads(out)
    assert code == 0
    assert report["noise_name"] == "epsilon"
    assert report["your_budget"]["local_per_release_epsilon"] == 2
    assert report["best"]["local_all_releases_epsilon"] == pytest.approx(21 * report["best"]["noise"])


@pytest.mark.slow
def test_float32_agrees(run, scenario_file):
    path = scenario_file()
    _, out, _ = run("tune", path, "--json")
    _, single, _ = run("tune", path, "--json", "--dtype", "float32")
    assert json.loads(single)["best"]["error"] == pytest.approx(json.loads(out)["best"]["error"], rel=1e-4)


@pytest.mark.slow
def test_plot_is_saved(run, scenario_file, tmp_path):
    code, out, _ = run("tune", scenario_file(), "--plot", tmp_path / "best.png")
    assert code == 0
    assert (tmp_path / "best.png").read_bytes().startswith(b"\x89PNG")
    assert "best.png" in out


def test_a_picture_that_cannot_be_saved_is_refused_before_the_search(run, scenario_file, tmp_path):
    (tmp_path / "kept.png").write_text("mine")
    for path in (tmp_path / "missing" / "best.png", tmp_path / "kept.png"):
        code, out, err = run("tune", scenario_file(), "--plot", path)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert path.name in err
    assert (tmp_path / "kept.png").read_text() == "mine"


@pytest.mark.slow
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
    (("population = 100", "population = 0"), "`population` must lie in (0, inf], but is 0"),
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
        (("--preset", ""), "Unknown preset ``"),
        (("--at-rho", 0), "`rho` must lie in (0, inf], but is 0"),
        (("--leave", "much"), "Invalid value for '--leave'"),
        (("--leave",), "'--leave' requires an argument"),
        (("--leav", 0.1), "No such option: --leav"),
        (("--dtype", "float16"), "'float16' is not one of 'float32', 'float64'"),
        (("one.toml", "two.toml"), "two.toml"),
    ],
)
def test_a_bad_option_is_one_clear_line(run, arguments, words):
    code, out, err = run("tune", *arguments)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert words in err


def commands(group=None, path=()):
    """Every command with its options: (words that call it, its parameters)."""
    group = typer.main.get_command(cli.app) if group is None else group
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command.params


def test_an_option_given_twice_is_refused_by_every_command(run):
    tried = 0
    for words, parameters in commands():
        for option in parameters:
            if option.param_type_name != "option" or option.multiple:
                continue
            once = option.opts[:1] if option.is_flag else [option.opts[0], "1"]
            code, out, err = run(*words, *once, *once)
            expected = f"perfjax: Give {option.opts[0]} once: it was given 2 times.\n"
            assert (code, out, err) == (2, "", expected)
            tried += 1
    assert tried > 90
    code, out, err = run("tune", "--at-epsilon=1", "--leave", 0.2, "--at-epsilon", 2, "--at-epsilon", 1)
    assert (code, out, err) == (2, "", "perfjax: Give --at-epsilon once: it was given 3 times.\n")


def test_a_list_may_be_given_twice(run):
    code, _, err = run("fit", "none.csv", "--column", "n", "--prior", "leave=beta(2,16)", "--prior", "survey")
    assert code == 2
    assert "none.csv" in err


def test_a_command_that_does_not_exist_is_one_clear_line(run):
    code, out, err = run("tun")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "No such command 'tun'" in err


def test_no_command_prints_the_help(run):
    code, out, err = run()
    assert (code, err) == (2, "")
    assert "simulate" in out


def test_a_folder_without_permission_is_one_clear_line(run, tmp_path):
    code, _, err = run("scenario", "new", tmp_path / "missing" / "mine.toml")
    assert code == 2
    assert err.count("\n") == 1
    assert "mine.toml" in err


# simulate


@pytest.fixture
def small(scenario_file):
    """A scenario whose simulation costs little."""
    return scenario_file(("population = 100", "population = 30"), ("cap = 150", "cap = 60"), ("dim = 12", "dim = 3"))


def library_runs(path, solver, trials, noise=1.0):
    simulate = {"users": pj.simulate_users, "counts": pj.simulate_counts}[solver]
    return simulate(pj.load_scenario(path).replace(noise_scale=noise), key=jax.random.key(3), trials=trials)


@pytest.mark.parametrize("solver", [pytest.param("users", marks=pytest.mark.slow), "counts"])
def test_simulate_reports_what_the_library_finds(run, small, solver):
    code, out, err = run(
        "simulate", small, "--solver", solver, "--trials", 9, "--seed", 3, "--noise", 0.5, "--leave", 0.9, "--json"
    )
    assert (code, err) == (0, "")
    report, n = json.loads(out), np.asarray(library_runs(small, solver, 9, 0.5).population)
    assert (report["solver"], report["trials"], report["seed"], report["dtype"]) == (solver, 9, 3, "float64")
    assert "leave = 0.9" in report["scenario"]
    assert not np.allclose(report["mean"][1:], n.mean(axis=0)[1:])  # --leave counts
    _, out, _ = run("simulate", small, "--solver", solver, "--trials", 9, "--seed", 3, "--noise", 0.5, "--json")
    report, runs = json.loads(out), library_runs(small, solver, 9, 0.5)
    assert report["mean"] == n.mean(axis=0).tolist()
    assert report["low"] == np.quantile(n, 0.1, axis=0).tolist()
    assert report["high"] == np.quantile(n, 0.9, axis=0).tolist()
    assert report["collapse_probability"] == np.mean(np.minimum.accumulate(n, axis=1) <= 1, axis=0).tolist()
    total, realised = np.asarray(runs.expected_error).sum(axis=1), np.asarray(runs.error).sum(axis=1)
    assert report["summed_expected_error"] == pytest.approx(total.mean(), rel=1e-12)
    deviation = total.std(ddof=1) / 3
    assert report["summed_expected_error_standard_error"] == pytest.approx(deviation, rel=1e-9)
    assert report["summed_realised_error"] == pytest.approx(realised.mean(), rel=1e-12)


def test_simulate_by_the_law_says_how_exact_it_is(run, small):
    code, out, _ = run("simulate", small, "--solver", "law", "--json")
    report, law = json.loads(out), pj.population_law(pj.load_scenario(small))
    assert code == 0
    assert report["mean"] == law.mean.tolist()
    assert report["summed_expected_error"] == pytest.approx(float(law.expected_error.sum()), rel=1e-12)
    assert report["relative_error"] == float(law.relative_error)
    assert "trials" not in report
    _, out, _ = run("simulate", small, "--solver", "law")
    assert "every number of users is a node" in " ".join(out.split())


def test_simulate_prints_names_and_units(run, small):
    code, out, err = run("simulate", small, "--trials", 9, "--leave", 1, "--recruit", 0, "--noise", 0)
    assert (code, err) == (0, "")
    for words in ("release", "mean population", "(users)", "10-90 % range", "collapsed", "expected error", "(squared)"):
        assert words in out
    text = " ".join(out.split())
    assert "solver counts, 9 trials, seed 0, float64" in text
    assert "Collapsed (1 or fewer users) by release 3: 100.00% of 9 trials." in text
    assert "Summed squared error of releases 0 to 3: expected" in text


def test_a_single_trial_has_no_standard_error(run, small):
    _, out, _ = run("simulate", small, "--trials", 1, "--json")
    assert json.loads(out)["summed_expected_error_standard_error"] is None
    code, out, _ = run("simulate", small, "--trials", 1)
    assert code == 0
    assert "nan" not in out


@pytest.mark.parametrize("solver", [pytest.param("users", marks=pytest.mark.slow), "counts"])
def test_chunks_change_nothing(run, small, solver, monkeypatch):
    arguments = ("simulate", small, "--solver", solver, "--trials", 9, "--seed", 3, "--json")
    monkeypatch.setitem(_simulate.CHUNK, _simulate.SolverName(solver), 100)
    whole = run(*arguments)
    monkeypatch.setitem(_simulate.CHUNK, _simulate.SolverName(solver), 2)
    assert run(*arguments) == whole


def test_chunks_have_one_size_and_the_last_is_cut():
    sizes = []
    runs = _simulate._in_chunks(
        lambda size, first: sizes.append((first, size)) or runs_of(size), 10, _simulate.SolverName.users
    )
    assert sizes == [(0, 4), (4, 4), (8, 4)]
    assert runs.population.shape == (10, 2)


def runs_of(trials):
    nothing = jnp.zeros((trials, 2))
    return pj.Trajectory(nothing, nothing, nothing, pj.preset("mean-estimation"), nothing)


def test_save_keeps_the_result_and_where_it_came_from(run, small, tmp_path):
    saved, picture = tmp_path / "out.nc", tmp_path / "out.png"
    command = ("simulate", small, "--trials", 9, "--seed", 3, "--save", saved, "--plot", picture)
    code, out, _ = run(*command)
    assert code == 0
    assert "Result saved to" in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    data, runs = xarray.load_dataset(saved, engine="scipy"), library_runs(small, "counts", 9)
    for name in ("population", "leak_probability", "error", "expected_error"):
        np.testing.assert_array_equal(data[name], getattr(runs, name))
    origin = {"solver": "counts", "trials": 9, "seed": 3, "dtype": "float64", "jax_version": jax.__version__}
    assert data.attrs == origin | {"perfjax_version": pj.__version__, "scenario": pj.files.to_toml(runs.scenario)}
    assert sorted(os.listdir(tmp_path)) == ["out.nc", "out.png", "scenario.toml"]
    code, out, err = run(*command)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "out.nc exists; give --force" in err
    assert run(*command, "--force")[0] == 0


def test_the_law_is_saved_too(run, small, tmp_path):
    assert run("simulate", small, "--solver", "law", "--save", tmp_path / "out.nc")[0] == 0
    data = xarray.load_dataset(tmp_path / "out.nc", engine="scipy")
    np.testing.assert_array_equal(data["mean"], pj.population_law(pj.load_scenario(small)).mean)
    assert data.attrs["solver"] == "law"


def test_a_save_that_fails_leaves_what_was_there(run, small, tmp_path, monkeypatch):
    def full_disk(pj, result, origin, path):
        path.write_bytes(b"half")
        raise OSError("no space left")

    saved = tmp_path / "out.nc"
    saved.write_bytes(b"old")
    monkeypatch.setattr(_simulate, "_save", full_disk)
    code, out, err = run("simulate", small, "--trials", 9, "--save", saved, "--force", "--json")
    assert code == 2
    assert json.loads(out)["trials"] == 9
    assert "no space left" in err
    assert saved.read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["out.nc", "scenario.toml"]


def test_after_ctrl_c_the_process_ends_at_once():
    """XLA's threads, still compiling, crash a process that is taken apart around them."""
    program = """
import atexit, sys
from perfjax import cli
atexit.register(print, "taken apart")
cli.main = lambda: sys.exit(int(sys.argv[1]))
print("said before")
cli.command()
"""
    for code, out in ((130, "said before\n"), (2, "said before\ntaken apart\n")):
        ended = subprocess.run([sys.executable, "-c", program, str(code)], capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stdout, ended.stderr) == (code, out, "")


def test_ctrl_c_stops_cleanly_and_says_how_far_it_came(run, small, tmp_path, monkeypatch):
    calls = []

    def interrupted(*args, **options):
        calls.append(options)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return runs_of(options["trials"])

    monkeypatch.setattr(pj, "simulate_users", interrupted)
    code, out, err = run("simulate", small, "--solver", "users", "--trials", 20, "--save", tmp_path / "out.nc")
    assert (code, out) == (130, "")
    assert err == "perfjax: stopped after 8 of 20 trials, nothing was saved.\n"
    assert os.listdir(tmp_path) == ["scenario.toml"]
    assert [call["first_trial"] for call in calls] == [0, 4, 8]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--solver", "law", "--trials", 5), "--trials goes with --solver users or counts"),
        (("--solver", "law", "--seed", 5), "--seed goes with --solver users or counts"),
        (("--trials", 0), "`trials` must be an integer of at least 1, but is 0"),
        (("--seed", -1), "`seed` must lie in [0, 2^31), but is -1"),
        (("--noise", -1), "`noise_scale` must lie in [0, inf), but is -1"),
        (("--noise", math.nan), "`noise_scale` must lie in [0, inf), but is nan"),
        (("--save", "missing/out.nc"), "there is no folder missing"),
        (("--plot", "missing/out.png"), "there is no folder missing"),
        (("--plot", "out.xyz"), "the name of a picture ends in one of"),
        (("--save", "."), "is a folder"),
        (("--save", "out.png", "--plot", "out.png"), "--save and --plot must be two files"),
        (("--trials", 2**31), "`trials` must be below 2^31, but is 2147483648"),
    ],
)
def test_a_bad_simulation_is_one_clear_line_before_it_starts(run, small, arguments, words, monkeypatch):
    monkeypatch.setattr(_simulate, "_joined", None)  # never reached
    code, out, err = run("simulate", small, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_out_of_reach_names_the_solver_that_reaches(run, scenario_file):
    path = scenario_file(("covariance = 1.0", f"covariance = {[1.0] * 11 + [2.0]}"))
    code, _, err = run("simulate", path, "--solver", "counts")
    assert code == 2
    assert "--solver users" in err


@pytest.mark.slow
def test_a_figure_is_drawn_with_its_numbers_beside_it(run, tmp_path, monkeypatch):
    from perfjax import figures

    small = figures.FIGURES[2]._replace(reduced={"cells": 2, "levels": 3, "trials": 2})
    monkeypatch.setattr(figures._registry, "FIGURES", {2: small})
    code, out, _ = run("figure", 2, "--out", tmp_path)
    assert code == 0
    assert out.startswith("Figure 2: Best local budget of randomized response")
    assert sorted(os.listdir(tmp_path)) == ["figure-2.nc", "figure-2.png"]
    with xarray.open_dataset(tmp_path / "figure-2.nc", engine="scipy") as data:
        assert dict(data.sizes) == {"leave": 2, "recruit": 2, "epsilon": 3}
        assert (data.attrs["figure"], data.attrs["full"], data.attrs["dtype"]) == (2, 0, "float64")
        assert figures.summary(data)[0] in out
        figures.draw(data)
    code, out, err = run("figure", 2, "--out", tmp_path)
    assert (code, out) == (2, "")
    assert "figure-2.png exists; give --force to overwrite it." in err


def test_a_figure_of_records_from_a_file(run, tmp_path, monkeypatch):
    from perfjax import figures

    small = figures.FIGURES["recon-3"]._replace(reduced={"pairs": 30})
    monkeypatch.setattr(figures._registry, "FIGURES", {"recon-3": small})
    (tmp_path / "load.csv").write_text("time,load\n" + "".join(f"{k},{k * k}\n" for k in range(20)))
    code, out, _ = run("figure", "recon-3", "--data", tmp_path / "load.csv", "--column", "load", "--out", tmp_path)
    assert code == 0
    assert out.startswith("Figure recon-3: Bound on pairs of records")
    with xarray.open_dataset(tmp_path / "figure-recon-3.nc", engine="scipy") as data:
        assert data.attrs["figure"] == "recon-3"
        assert float((data.middle + data.half_gap).max()) <= 1
        assert figures.summary(data)[0] in out
        figures.draw(data)


def test_a_bad_figure_is_one_clear_line(run, tmp_path):
    for arguments, words in (
        ((8, "--out", tmp_path), "be one of 1, 2, 3"),
        ((1, "--out", "missing"), "no folder"),
        (("recon-3", "--out", tmp_path, "--column", "a"), "Give --data and --column together"),
        (("recon-3", "--out", tmp_path, "--data", tmp_path / "no.csv", "--column", "a"), "no.csv"),
    ):
        code, out, err = run("figure", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert words in err


def test_python_dash_m_is_the_command():
    shown = subprocess.run(
        [sys.executable, "-m", "perfjax", "scenario", "show", "--preset", "breach-survey"],
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0
    assert "leave = 0.11" in shown.stdout


def test_the_console_reads_no_styles(capsys):
    """Neither in a line, nor in a table's title, heading or cells: a path may hold brackets and colons."""
    text = "a[/b]:tada:[red]"
    table = rich.table.Table(title=text)
    table.add_column(text)
    table.add_row(text)
    for shown in (text, table):
        _shared.console().print(shown)
    assert capsys.readouterr().out.count(text) == 4


# What commands compute by themselves.


def test_the_first_release_asked_for_is_taken():
    found = _tune._objective(pj, _tune.ObjectiveName.cumulative_error, 3)
    assert found.first_release == 3


@pytest.mark.parametrize(("text", "ends"), [("5", (5, 5)), ("2..40", (2, 40)), ([2, 40], (2, 40))])
def test_a_number_of_releases_is_that_number(text, ends):
    assert _reconstruct._range(text) == ends


@pytest.mark.parametrize(
    ("error", "words"), [(1.0, "0.5 times the bound"), (1.9, "as the bound says"), (9.0, "4.5 times")]
)
def test_an_error_far_from_the_bound_does_not_agree_with_it(error, words):
    simulated = {"simulated_error": error, "simulated_standard_error": 0.1, "trials": 10}
    assert words in _reconstruct._attained(simulated | {"bound": [2.0], "releases": [7], "best_releases": 7})


def test_the_prior_of_the_survey_is_one_of_leave():
    assert list(_fit._priors(pj.calibration, ["survey"])) == ["leave"]


def test_a_regret_is_a_cost():
    assert _fitted.cost_of(0.1) == "1.1 times"


def test_a_result_does_not_go_into_a_folder_of_the_store(tmp_path):
    with pytest.raises(ValueError, match="give two paths"):
        _sweep._check_apart(tmp_path / "store", tmp_path / "store" / "a" / "b.nc")


def test_the_law_sums_the_errors_of_all_releases_counted():
    scenario = response(population=3.0, cap=5, rounds=1)
    optimum = types.SimpleNamespace(scenario=scenario, objective=EVERY)
    found = _tune._confirmed_by_law(pj, optimum, {"best": {"noise": 1.0}})["best"]["law_error"]
    assert found == pytest.approx(float(pj.population_law(scenario, noise=1.0).expected_error.sum()), rel=1e-12)
