"""What a fit leaves open: what it rests on, the draws and the file that keep it, and the noise that is best by them."""

import json
import math
import tomllib
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from assertions import close
from scenarios import gaussian, response

import perfjax as pj
from perfjax import calibration
from perfjax.calibration import LeakTest, Ranges, Series
from perfjax.cli._fit import _more
from perfjax.cli._shared import fitted_note

LEAVE, RECRUIT, LEAKED = 0.3, 0.36, 1 / (1 + np.exp(-1.0))
BITS = response(1.0, population=5000.0, cap=1e6, rounds=10, leave=LEAVE, recruit=RECRUIT)
FREE = ("leave", "recruit")
TWO = np.where(np.arange(31) % 2, 1.0, 0.3)


def counted(noise, trial=0, scenario=BITS):
    scenario = scenario.replace(rounds=noise.size - 1)
    runs = pj.simulate_counts(scenario, key=jax.random.key(3), trials=1, noise=noise, first_trial=trial)
    return Series(runs.population[0], noise=noise)


def fitted(series, free=FREE):
    return calibration.identifiability(calibration.fit(series, BITS, free=free))


@pytest.fixture(scope="module")
def constant():
    return fitted(counted(np.ones(31)))


def test_at_constant_noise_the_means_know_the_growth_factor_and_nothing_else(constant):
    """J has one row n_t (dC/d logit q, dC/d logit r) / std per count, so that its rank is 1; std by hand."""
    q, r = (float(constant.fitted.estimate[name]) for name in FREE)
    slopes = np.array([-LEAKED * q * (1 - q), (1 - LEAKED) * r * (1 - r)])
    n = np.asarray(constant.fitted.series.population)[:-1]
    net = (1 - LEAKED) * r - LEAKED * q
    variance = n * (LEAKED * q + (1 - LEAKED) * r - net**2) + 1 / 12
    close(constant.strengths[0], np.linalg.norm(slopes) * np.sqrt(np.sum(n**2 / variance)), 1e-9)
    assert constant.strengths[1] < 1e-9 * constant.strengths[0]
    assert constant.rank == 1
    close(np.abs(constant.directions[0]), np.abs(slopes) / np.linalg.norm(slopes), 1e-9)
    assert not any(constant.identified.values())


def test_what_the_spread_alone_says_is_said_to_rest_on_it(constant):
    assert constant.rests_on == {"leave": "spread", "recruit": "nothing"}
    leave = constant.profiles["leave"]
    assert f"wrong if anything else moves them: leave {leave.low:.3g} to {leave.high:.3g} (95%)." in constant.verdict
    assert "Leave and recruit are not separately identified from counts alone at constant noise" in constant.verdict


def test_two_noises_tell_leave_and_recruit_apart():
    """At q = 0.3 and 0.2 two growth factors are two equations for two parameters: rank 2."""
    found = fitted(counted(TWO))
    assert found.rank == 2
    assert found.rests_on == {"leave": "means", "recruit": "means"}


def test_churn_in_balance_makes_nothing_known():
    """15 % leave for reasons of their own and as many come: growth is the same, the spread is not the model's."""
    random = np.random.default_rng(5)
    for _ in range(3):
        n = [5000]
        for _ in range(30):
            leaked = random.binomial(n[-1], LEAKED)
            kept = n[-1] - random.binomial(leaked, LEAVE) + random.binomial(n[-1] - leaked, RECRUIT)
            n.append(kept - random.binomial(n[-1], 0.15) + random.binomial(n[-1], 0.15))
        found = fitted(Series(n, noise=np.ones(31)))
        assert set(found.rests_on.values()) <= {"spread", "nothing"}, found.rests_on


def test_draws_range_over_all_that_the_means_leave_open(constant):
    """Where C alone is known, a flat prior leaves a straight ridge, on which recruit is uniform from 0 to 1."""
    ranges = calibration.parameter_ranges(constant, key=jax.random.key(0), draws=128)
    q, r = ranges.draws["leave"], ranges.draws["recruit"]
    growth = 1 + r - (q + r) * LEAKED
    known = constant.profiles["growth"]
    close(np.mean(growth), known.estimate, 2e-3)
    assert np.mean((growth > known.low) & (growth < known.high)) > 0.9
    # Draws that go together in part are as good as half as many of their own.
    assert scipy.stats.kstest(r, "uniform").statistic < scipy.stats.kstwo.isf(1e-3, 64)
    assert np.min(r) < 0.05
    assert np.max(r) > 0.95
    assert ranges.drawn_by == "posterior"
    assert np.quantile(q, 0.95) - np.quantile(q, 0.05) > 0.8 * 0.9 * (1 - LEAKED) / LEAKED
    assert ranges.unknown == FREE


def test_counts_that_hardly_vary_are_told():
    """Every count is the mean of the model given the one before, to rounding: the chance of less than that is 1e-9."""
    p = 1 / (1 + np.exp(-TWO))
    growth, n = 1 + RECRUIT - (LEAVE + RECRUIT) * p, [5000.0]
    for c in growth[:-1]:
        n.append(np.round(n[-1] * c))
    found = fitted(Series(n, noise=TWO))
    assert "underdispersed" in found.verdict
    assert float(found.fitted.underdispersion_p_value) < 1e-9
    squares, degrees = float(found.fitted.raw_dispersion * found.fitted.degrees_of_freedom), 28
    assert float(found.fitted.degrees_of_freedom) == degrees
    close(found.fitted.underdispersion_p_value, scipy.stats.chi2.cdf(squares, degrees), 1e-6)
    assert "dispersed" not in fitted(counted(TWO)).verdict


@pytest.mark.slow
def test_both_tests_of_the_dispersion_keep_their_level():
    runs = pj.simulate_counts(BITS.replace(rounds=30), key=jax.random.key(8), trials=300, noise=TWO)
    found = calibration.fit(Series(runs.population, noise=TWO), BITS, free=FREE)
    over, under = (np.asarray(p) for p in (found.dispersion_p_value, found.underdispersion_p_value))
    assert scipy.stats.kstest(over, "uniform").pvalue > 1e-3
    for p in (over, under):
        assert np.sum(p < 0.01) <= scipy.stats.binom.isf(1e-3, 300, 0.01)


def test_more_is_learned_by_what_was_not_tried():
    nothing = {"prior": False, "flows": False, "constant_noise": True}
    assert _more(nothing) == ("a prior (such as --prior survey), columns of leavers and joiners, or noise that varies")
    assert "noise that varies" not in _more(nothing | {"constant_noise": False})
    assert _more(nothing | {"prior": True, "flows": True}) == "noise that varies"
    assert _more(nothing | {"flows": True}) == "a prior (such as --prior survey) or noise that varies"


DRAWS = {"leave": np.array([0.2, 0.9, 0.3, 0.001]), "recruit": np.array([0.1, 0.02, 0.6, 0.0])}


SHOWN = LeakTest(0.9, 1e-300, 1.0, 0.96, (0.94, 0.98), None)
DOUBTED = LeakTest(0.2, 0.2, 0.25, 0.96, (0.94, 0.98), None)


def ranges_of(scenario, draws=DRAWS, **changed):
    found = {
        "estimate": {name: float(scenario.leaves()[name]) for name in draws},
        "low": {"leave": 0.05, "recruit": 0.0},
        "high": {"leave": 0.95, "recruit": 0.7},
        "rests_on": {"leave": "means", "recruit": "spread"},
        "draws": draws,
        "drawn_by": "posterior",
        "level": 0.95,
        "verdict": ('The counts "say" so.', "And so."),
        "p_values": {"overdispersion": 0.25},
        "leaks": SHOWN,
    }
    return Ranges(**(found | changed))


def test_a_fit_comes_back_from_its_file_exactly(tmp_path):
    path, ranges = tmp_path / "fitted.toml", ranges_of(BITS, high={"leave": 1 / 3, "recruit": np.inf})
    calibration.save_fit(ranges, BITS, path, about="a text")
    back = calibration.load_ranges(path)
    assert eqx.tree_equal(back, ranges)
    assert eqx.tree_equal(pj.load_scenario(path), BITS)
    assert back.identified == {"leave": True, "recruit": False}
    assert back.unknown == ("recruit",)
    single = BITS.astype("float32")
    calibration.save_fit(ranges_of(single), single, path)
    assert eqx.tree_equal(calibration.load_ranges(path), ranges_of(single))
    assert eqx.tree_equal(pj.load_scenario(path).astype("float32"), single)
    pj.save_scenario(BITS, path)
    assert calibration.load_ranges(path) is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("drawn_by", "drawn", "Unknown key in [fit] `drawn`: did you mean `drawn_by`?"),
        ('drawn_by = "posterior"\n', "", "Missing key in [fit]: `drawn_by`."),
        ('"posterior"', '"guess"', '`drawn_by` must be "bootstrap" or "posterior", but is "guess".'),
        ("rests_on", "rest_on", "Unknown key in [leave] `rest_on`: did you mean `rests_on`?"),
        ('"spread"', '"hope"', '`recruit.rests_on` must be "means" or "spread" or "prior" or "nothing"'),
        ("identified = false", "identified = true", 'be true exactly where rests_on is "means", but is true'),
        ("[0.2, 0.9, 0.3, 0.001]", "[0.2, 0.9]", "be as many of every parameter, at least one, but is 2 of leave, 4"),
        ("[0.2, 0.9, 0.3, 0.001]", "[]", "be as many of every parameter, at least one, but is 0 of leave, 4 of"),
        ("[0.2, 0.9,", "[1.2, 0.9,", "Draws of a fit: Argument `leave` must lie in [0, 1], but is 1.2."),
        ("[0.2, 0.9,", "[nan, 0.9,", "`leave.draws` must be finite"),
        ("[0.2, 0.9,", '["a", 0.9,', "`leave.draws` must be a list of numbers"),
        ("leave = 0.3", "leave = 0.31", "Argument `leave` is 0.31 in the scenario, but was fitted as 0.3"),
        ("estimate = 0.3\n", "estimate = 0.4\n", "Argument `leave` is 0.3 in the scenario, but was fitted as 0.4"),
        ("low = 0.05", "low = 0.99", "`leave.low` must be at most `leave.high`, but is 0.99 to 0.95."),
        ("low = 0.05", "low = true", "`leave.low` must be a number, but is True."),
        ("level = 0.95", "level = 95", "`level` must be a number in (0, 1), but is 95."),
        (
            'verdict = "shown"',
            'verdict = "not shown"',
            '`leaks.verdict` must be "shown", but is "not shown" with p_value',
        ),
        ("p_value = 1e-300", "p_value = 0.3", '`leaks.verdict` must be "not shown", but is "shown" with p_value 0.3.'),
        ("weight = 1.0", "weight = 1.5", "`leaks.weight` must lie in [0, 1], but is 1.5."),
        ("weight = 1.0\n", "", "Missing key in [fit.leaks]: `weight`."),
        (
            "growth_low = 0.94",
            "growth_low = 1.94",
            "`leaks.growth_low` must be at most `leaks.growth_high`, but is 1.94",
        ),
        ("[fit.leaks]", "[fit.leak]", "Unknown key in [fit] `leak`: did you mean `leaks`?"),
        ("overdispersion = 0.25", "overdispersion = 25.0", "`overdispersion` must lie in [0, 1], but is 25."),
        ("parameters.leave]", "parameters.leaves]", "Unknown fitted parameter `leaves`: did you mean `leave`?"),
    ],
)
def test_a_file_edited_by_hand_is_refused_in_one_line(tmp_path, run, old, new, words):
    path = tmp_path / "fitted.toml"
    calibration.save_fit(ranges_of(BITS), BITS, path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    code, _, error = run("tune", path)
    assert code == 2
    assert words in error
    assert "fitted.toml: " in error
    assert error.count("\n") == 1


DECLINE = gaussian(1.0, dim=6, leave=0.3, recruit=0.2, threshold=0.05, population=500, cap=5000, rounds=12)


def test_an_objective_over_draws_is_the_mean_of_logs():
    error, scenario = pj.CumulativeError(), DECLINE.replace(noise_scale=3.0)
    over = pj.OverDraws(error, DRAWS)
    each = [np.log(float(error(scenario.replace(leave=q, recruit=r)))) for q, r in zip(*DRAWS.values(), strict=True)]
    close(np.log(float(over(scenario))), np.mean(each), 1e-12)


def test_the_best_noise_over_draws_beats_a_fine_scan():
    over = pj.OverDraws(pj.CumulativeError(), DRAWS)
    optimum = pj.tune(DECLINE, over)
    noises = jnp.exp(jnp.linspace(np.log(0.01), np.log(100), 2001))
    values = jax.jit(jax.vmap(lambda x: over.evaluate(DECLINE.with_noise(x)).log_value))(noises)
    assert float(optimum.log_value) <= float(jnp.min(values)) + 1e-9


def test_what_does_not_move_with_the_scenario_has_no_sensitivity():
    optimum = pj.tune(DECLINE, pj.OverDraws(pj.CumulativeError(), DRAWS))
    values = pj.sensitivities(optimum).values
    assert {"leave", "recruit"}.isdisjoint(values)
    assert float(values["threshold"]) != 0
    truth = DECLINE.replace(leave=0.9, recruit=0.02)
    close(
        pj.regret(optimum, truth),
        pj.CumulativeError()(truth.replace(noise_scale=optimum.noise)) / pj.tune(truth).value - 1,
        1e-6,
    )


def test_draws_that_fit_nothing_are_refused():
    with pytest.raises(ValueError, match="have one value per draw for each parameter"):
        pj.OverDraws(pj.CumulativeError(), {"leave": [0.1, 0.2], "recruit": [0.1]})
    for draws, words in (({"leaves": [0.1]}, "did you mean `leave`"), ({"leave": [1.1]}, "`leave` must lie in")):
        with pytest.raises(ValueError, match=words):
            pj.tune(DECLINE, pj.OverDraws(pj.CumulativeError(), draws))
    with pytest.raises(ValueError, match='be "mean-field" for an objective over draws'):
        pj.tune(DECLINE, pj.OverDraws(pj.CumulativeError(solver="law"), {"leave": [0.1]}))
    with pytest.raises(ValueError, match="a rule is tuned for one set of parameters"):
        pj.tune_policy(DECLINE, pj.OverDraws(pj.CumulativeError(first_release=0), {"leave": [0.1]}))


def test_a_fitted_optimum_is_that_of_every_draw():
    found = calibration.tune_fitted(DECLINE, ranges_of(DECLINE))
    outcome = found.outcome()
    for i, (q, r) in enumerate(zip(*DRAWS.values(), strict=True)):
        truth = DECLINE.replace(leave=q, recruit=r)
        best = pj.tune(truth)
        close(found.noises[i], best.noise, 1e-6)
        assert bool(found.pays[i]) == bool(best.privacy_pays)
        mine = float(pj.CumulativeError()(truth.replace(noise_scale=found.optimum.noise)))
        close(outcome.error[i], mine, 1e-9)
        close(outcome.ratio[i], mine / float(best.value_without_privacy), 1e-9)
        close(1 + found.regrets[i], mine / float(best.value), 1e-9)
        last = pj.mean_field(truth.replace(noise_scale=found.optimum.noise)).population[-1]
        close(outcome.population[i, -1], last, 1e-9)
    assert 0 < found.probability_privacy_pays < 1
    low, high = found.noise_interval
    assert low == min(*found.noises, found.optimum.noise)
    assert high == max(*found.noises, found.optimum.noise)
    assert "Recruit is not known from the counts" in str(found)
    budgets = pj.privacy.budget_lines(pj.mean_field(found.optimum.scenario).privacy())
    assert str(found).endswith("at the most probable values:" + "\n  ".join(["", *budgets]))


def test_an_outcome_compares_every_draw_with_no_privacy():
    scenario = DECLINE.replace(noise_scale=3.0, rounds=3)
    found = calibration.outcome_of_draws(scenario, ranges_of(scenario))
    for i, (q, r) in enumerate(zip(*DRAWS.values(), strict=True)):
        mine, without = (pj.CumulativeError()(scenario.replace(leave=q, recruit=r, noise_scale=x)) for x in (3.0, 0.0))
        close([found.error[i], found.ratio[i]], [mine, mine / without], 1e-9)


def test_an_interval_over_draws_leaves_out_as_many_at_each_end():
    """Of 1, ..., 100, the middle 90 % or so: from the 5th to the 95th."""
    one = types.SimpleNamespace(ranges=types.SimpleNamespace(level=0.9))
    assert calibration.FittedOptimum.interval(one, jnp.arange(1.0, 101.0)) == (5, 95)


def tuned(scenario, ranges):
    """As the command does, which counts every release."""
    return calibration.tune_fitted(scenario, ranges, pj.CumulativeError(first_release=0))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "fitted.toml"
    scenario = DECLINE.replace(clip_radius=9.0)
    calibration.save_fit(ranges_of(scenario), scenario, path)
    return path


def test_tune_goes_by_the_draws(file, run):
    code, text, error = run("tune", file, "--at-rho", 5)
    assert code == 0, error
    text = " ".join(text.split())
    found = tuned(pj.load_scenario(file), calibration.load_ranges(file))
    low, high = found.noise_interval
    share = f"{found.probability_privacy_pays:.0%}"
    ratio = "{:.3g} to {:.3g}".format(*found.interval(found.outcome().ratio))
    assert (
        f"Recruit is not known from the counts; the best noise_scale lies between {low:.4g} and {high:.4g} (95% of 4"
        f" draws); privacy pays in {share} of the draws: this noise has {ratio} times the error of no privacy." in text
    )
    assert 'The fit: The counts "say" so. And so.' in text
    assert "Privacy pays:" not in text
    assert "Regret if the truth is off" not in text
    report = json.loads(run("tune", file, "--json")[1])
    assert report["privacy_pays"] is None
    assert "regret" not in report
    close(report["fit"]["probability_privacy_pays"], found.probability_privacy_pays, 1e-12)
    close(report["best"]["noise"], found.optimum.noise, 1e-9)
    close(report["fit"]["best"]["error"], found.interval(found.outcome().error), 1e-9)
    code, _, error = run("tune", file, "--leave", 0.31)
    assert code == 2
    assert "`leave` is 0.31 in the scenario, but was fitted as 0.3: the fit's draws do not hold for it" in error


def test_where_leaks_are_not_shown_nobody_is_told_that_privacy_pays(file, run):
    """The same draws, which the counts give a weight of 0.25 only."""
    scenario = pj.load_scenario(file)
    ranges = ranges_of(scenario, leaks=DOUBTED, verdict=(DOUBTED.words, "And so."))
    calibration.save_fit(ranges, scenario, file)
    assert eqx.tree_equal(calibration.load_ranges(file), ranges)
    found = tuned(scenario, ranges)
    share, (low, high) = float(np.mean(np.asarray(found.pays))), found.noise_interval
    assert 0 < share < 1
    close(found.probability_privacy_pays, 0.25 * share, 1e-12)
    weighed = (
        "The counts give a role for leaks a probability of 0.25 (Schwarz's criterion, from even odds), and with one"
        f" privacy pays in {share:.0%} of the draws: it pays with probability 0.25 x {share:.3g} = {0.25 * share:.3g}."
    )
    text = " ".join(run("tune", file, "--at-rho", 5)[1].split())
    assert text.startswith(DOUBTED.words)
    assert text.count(DOUBTED.words) == 1
    assert (
        "without a role for leaks no privacy is best; with one, the best noise_scale lies between"
        f" {low:.4g} and {high:.4g} (95% of 4 draws)" in text
    )
    assert weighed in text
    assert "leaks matter" in text
    assert "times the error of the best noise" not in text
    report = json.loads(run("tune", file, "--json")[1])
    assert report["best"] is None
    assert report["fit"]["best_noise"] is None
    assert report["privacy_pays"] is None
    close(report["if_leaks_matter"]["noise"], found.optimum.noise, 1e-9)
    close(report["fit"]["if_leaks_matter"]["best_noise"], found.noise_interval, 1e-9)
    close(report["fit"]["probability_privacy_pays"], 0.25 * share, 1e-12)
    assert report["fit"]["ranges"]["leaks"]["verdict"] == "not shown"
    for printed in (str(found), str(calibration.BestNoise(**best_of(found)))):
        assert DOUBTED.words in printed
        assert (
            f"Without a role for leaks no privacy is best (noise_scale 0). With one, noise_scale {noise(found)}"
            in printed
        )
        assert weighed in printed
        assert "Best" not in printed
    assert " ".join(run("simulate", file, "--trials", 2)[1].split()).count(DOUBTED.words) == 1


@pytest.mark.slow
def test_a_schedule_is_not_sold_where_leaks_are_not_shown(file, run):
    scenario = pj.load_scenario(file)
    calibration.save_fit(ranges_of(scenario, leaks=DOUBTED), scenario, file)
    arguments = ("schedule", file, "--structure", "geometric")
    text = " ".join(run(*arguments)[1].split())
    report = json.loads(run(*arguments, "--json")[1])
    share = report["fit"]["beats_no_privacy"]
    assert text.startswith(DOUBTED.words)
    assert (
        "Without a role for leaks no privacy is the best schedule, and all of this one's error is for nothing. What"
        " follows holds only if leaks matter, to which the counts give a probability of 0.25 (Schwarz's criterion, from"
        " even odds); with the draws below, the schedule beats no privacy with probability"
        f" 0.25 x {share:.3g} = {0.25 * share:.3g}." in text
    )
    assert report["fit"]["only_if_leaks_matter"]
    close(report["fit"]["probability_beats_no_privacy"], 0.25 * share, 1e-12)


def test_what_cannot_be_tested_is_said_first(file, run):
    scenario = pj.load_scenario(file)
    nothing = LeakTest(*[math.nan] * 4, (math.nan, math.nan), "the noise never varied")
    ranges = ranges_of(scenario, leaks=nothing)
    calibration.save_fit(ranges, scenario, file)
    assert eqx.tree_equal(calibration.load_ranges(file), ranges)
    assert tuned(scenario, ranges).probability_privacy_pays == 0.75
    text = " ".join(run("tune", file)[1].split())
    assert text.startswith("These counts can't tell whether leaks make people leave: the noise never varied.")
    assert "privacy pays in 75% of the draws" in text
    assert json.loads(run("tune", file, "--json")[1])["best"]["noise"] > 0


def best_of(found):
    """The fields of a `BestNoise` with the draws of a fitted optimum."""
    return {
        "optimum": found.optimum,
        "delta_interval": np.full(2, np.nan),
        "delta_reason": "nothing is known",
        "draws": found.noises,
        "parameters": {},
        "regrets": found.regrets,
        "pays": found.pays,
        "by": "posterior",
        "level": 0.95,
        "leaks": found.ranges.leaks,
    }


def noise(found):
    return f"{float(found.optimum.noise):.4g}"


def test_a_schedule_goes_by_the_draws_and_keeps_them(file, run, tmp_path):
    saved = tmp_path / "schedule.toml"
    code, text, error = run("schedule", file, "--structure", "geometric", "--save", saved)
    assert code == 0, error
    ranges, scenario = calibration.load_ranges(saved), pj.load_scenario(saved)
    assert eqx.tree_equal(ranges, calibration.load_ranges(file))
    objective, best = pj.CumulativeError(first_release=0), pj.load_scenario(file)
    constant = pj.tune(best, pj.OverDraws(objective, DRAWS)).noise
    ratios = []
    for q, r in zip(*DRAWS.values(), strict=True):
        mine, other = (
            float(objective(one.replace(leave=q, recruit=r))) for one in (scenario, best.replace_noise(constant))
        )
        ratios.append(mine / other)
    assert np.mean(np.log(ratios)) < 0
    text = " ".join(text.split())
    assert "Recruit is not known from the counts; the schedule has the least mean log error over 4 draws" in text
    assert f"Summed error of releases 0 to 12: {min(ratios):.3g} to {max(ratios):.3g} times that of the best" in text
    assert "% lower than" not in text
    code, _, error = run("schedule", file, "--solver", "law")
    assert code == 2
    assert "leave --solver law away" in error


def test_who_uses_the_estimates_alone_is_told_so(file, run, tmp_path):
    def printed(*arguments):
        return " ".join(run(*arguments)[1].split())

    words = "Not known from the counts that the scenario was fitted to: recruit. Most probable values are used."
    assert words in printed("simulate", file, "--trials", 2)
    assert words not in printed("simulate", file, "--trials", 2, "--recruit", 0.1)
    sweep = tmp_path / "sweep.toml"
    sweep.write_text('run = "mean_field"\nscenario = "fitted.toml"\n[over]\nleave = [0.1, 0.2]\n')
    assert words in printed("sweep", sweep, "--out", tmp_path / "swept.nc")
    assert fitted_note(calibration.load_ranges(file), pj.load_scenario(file), swept=("recruit",)) is None


@pytest.mark.slow
def test_the_survey_is_tuned_by_what_it_leaves_open(run, tmp_path):
    with_prior = ("--column", "persons", "--time", "quarter", "--prior", "survey", "--replicates", 40)
    out = tmp_path / "fitted.toml"
    from perfjax._csv import shipped

    with shipped("lfs_participation.csv") as data:
        code, text, error = run("fit", data, *with_prior, "--out", out)
    assert code == 0, error
    assert "noise that varies" in text
    assert "such as --prior survey" not in text
    table = tomllib.loads(out.read_text())["fit"]["parameters"]
    assert {name: one["rests_on"] for name, one in table.items()} == dict.fromkeys(table, "prior")
    assert table["recruit"]["low"] < 1e-3 < table["recruit"]["high"]
    recruit = np.asarray(table["recruit"]["draws"])
    assert recruit.size == 40
    assert np.max(recruit) > 0.05
    text = " ".join(run("tune", out)[1].split())
    assert "Leave, recruit and threshold are not known from the counts; the best noise_scale lies between" in text
    assert "Privacy pays:" not in text


def test_clipping_that_binds_says_which_radius_does_not():
    """Of 8 features, ||z||^2 is chi-square: the radius is the root of its 1e-9 upper quantile, rounded up."""
    clipped = gaussian(1.0, dim=8, clip_radius=3.0)
    least = np.ceil(100 * np.sqrt(scipy.stats.chi2.isf(1e-9, 8))) / 100
    assert least == 7.64
    with pytest.raises(ValueError, match=r"give `clip_radius` at least 7.64 in place of 3") as caught:
        calibration.fit([1000, 900, 850], clipped)
    assert "simulate_users" not in str(caught.value)
    assert not clipped.replace(clip_radius=least).mechanism.clips
    assert clipped.replace(clip_radius=least - 0.01).mechanism.clips
    with pytest.raises(ValueError, match=r"give `clip_radius` at least 7.64 \(fewer"):
        jax.grad(lambda radius: pj.population_law(clipped.replace(clip_radius=radius)).mean[-1])(3.0)
    elsewhere = gaussian(1.0, dim=8, clip_radius=3.0, mean=2.0, covariance=4.0).mechanism
    close(elsewhere.least_unclipped_radius(), 2 * np.sqrt(8) + 2 * np.sqrt(scipy.stats.chi2.isf(1e-9, 8)), 1e-9)


def test_the_shell_is_told_in_its_own_words(run, tmp_path):
    path, data = tmp_path / "clipped.toml", tmp_path / "counts.csv"
    pj.save_scenario(gaussian(1.0, dim=8, clip_radius=3.0), path)
    data.write_text("users\n1000\n900\n850\n")
    for command in (("fit", data, "--column", "users", "--scenario", path), ("schedule", path, "--solver", "law")):
        code, _, error = run(*command)
        assert code == 2
        assert "at least 7.64 in place of 3" in error
        assert "simulate_users" not in error
    assert "`perfjax simulate --solver users`" in error
