"""Attrition is not called leaks, and leaks are: the comparison with the model in which leaks play no role."""

import json
import tomllib
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from coverage_study import NOISE, simulated_flows, study
from scenarios import response

import perfjax as pj
from perfjax import calibration
from perfjax.calibration import Series, _fit, _transitions, leak_test
from perfjax.calibration._leak_test import compared
from perfjax.calibration._priors import as_priors

ROUNDS = 24
PUBLISHED = pj.preset("mean-estimation").replace(rounds=ROUNDS, cap=1e6)


def noises(random):
    return np.append(random.permutation(np.geomspace(0.5, 8, ROUNDS)), 1.0)


def attrition(seed, *, users=5000, swings=0.0):
    """3 % leave whatever the noise; with `swings`, in some rounds more than in others."""
    random = np.random.default_rng(seed)
    counts, noise = [users], noises(random)
    for _ in range(ROUNDS):
        counts.append(random.binomial(counts[-1], min(0.97 * np.exp(swings * random.standard_normal()), 1)))
    return np.asarray(counts, float), noise


def leaks(seed, scenario=PUBLISHED):
    noise = noises(np.random.default_rng(seed))
    counts = np.asarray(pj.simulate_counts(scenario, key=jax.random.key(seed), trials=1, noise=noise).population[0])
    return np.where(counts <= 1, np.nan, counts), noise


def result_of(series, scenario=PUBLISHED, free=("leave", "recruit", "threshold")):
    """The test of a series: it looks at no estimate, so that none is fitted."""
    plan = _transitions.plan_of(series, scenario)
    problem = _fit._problem(series, scenario, as_priors(None, free), free, plan)
    return compared(jax.tree.map(lambda x: x[0], problem))


def of_columns(series, free=("leave", "recruit", "threshold")):
    counts, noise = series
    return result_of(Series(counts, noise=noise), free=free)


def test_attrition_is_not_called_leaks_and_leaks_are():
    for seed in range(4):
        found = of_columns(attrition(seed))
        assert found.verdict == "not shown"
        assert found.words.startswith("The counts do not show that leaks make people leave (p = 0.")
        assert found.growth_interval[0] < 0.97 < found.growth_interval[1]
        assert found.weight < 0.5
        # Schwarz: odds (1 - s^2)^(-T/2) T^(-k/2), k = 2 parameters more: how much leaks matter, and the threshold.
        odds = (1 - max(found.statistic, 0) ** 2) ** (-ROUNDS / 2) / ROUNDS
        assert abs(found.weight - odds / (1 + odds)) < 1e-9
        found = of_columns(leaks(seed))
        assert found.verdict == "shown"
        assert found.p_value <= 0.01
        assert found.weight > 0.99
        assert found.words.startswith("The counts show that leaks make people leave")
    json.dumps(found.summary(), allow_nan=False)


@pytest.mark.parametrize(("p_value", "role"), [(0.5, 0.2), (0.01, 1.0)])
def test_leaks_count_by_their_weight_where_they_are_doubted(p_value, role):
    found = calibration.LeakTest(0.3, p_value, 0.2, 0.97, (0.96, 0.98), None)
    assert found.role == role


def test_the_statistic_is_the_greatest_weighted_correlation():
    """Against a plain weighted regression at every threshold, and all orders anew."""
    counts, noise = attrition(0)
    found = of_columns((counts, noise))
    level = np.log(np.sqrt(12 / np.median(counts)) / np.median(noise[:-1]))
    thresholds = jnp.exp(jnp.linspace(level - 6, level + 4, 49))

    def kept(threshold):
        rule = pj.LikelihoodRatioAbove(threshold)
        return jax.vmap(lambda n, x: pj.leakage.split(PUBLISHED.mechanism, rule, n, x).spared)(counts[:-1], noise[:-1])

    spared = np.asarray(jax.jit(jax.vmap(kept))(thresholds))
    spared = spared[np.std(spared, axis=1) > 1e-3]
    n, change = counts[:-1], counts[1:] / counts[:-1] - 1

    def correlation(x, y):
        x, y = (v - np.average(v, weights=n) for v in (x, y))
        return np.sum(n * x * y) / np.sqrt(np.sum(n * x * x) * np.sum(n * y * y))

    assert abs(found.statistic - max(correlation(x, change) for x in spared)) < 0.01
    random, centred = np.random.default_rng(9), change - np.average(change, weights=n)
    orders = [random.permutation(np.sqrt(n) * centred) / np.sqrt(n) for _ in range(1000)]
    above = np.mean([max(correlation(x, y) for x in spared[::4]) >= found.statistic for y in orders])
    assert abs(above - found.p_value) < 4 * np.sqrt(above * (1 - above) / 1000) + 0.02


@pytest.mark.slow
@pytest.mark.parametrize("swings", [0.0, 0.02])
def test_of_200_series_of_attrition_hardly_any_is_called_leaks(swings):
    """At most 5 % and three standard errors; with swings, counts vary 70 times as much as by chance."""
    found = [of_columns(attrition(seed, swings=swings)) for seed in range(1000, 1200)]
    false = np.mean([one.verdict == "shown" for one in found])
    print(f"swings {swings}: {false:.3f} of 200 series of attrition called leaks")
    assert false < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)
    assert 0.4 < np.mean([one.p_value > 0.5 for one in found]) < 0.65


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "least"), [({}, 0.99), ({"leave": 0.11, "recruit": 0.52}, 0.99)])
def test_the_power_at_published_settings(changes, least):
    found = [of_columns(leaks(seed, PUBLISHED.replace(**changes))) for seed in range(2000, 2100)]
    power = np.mean([one.verdict == "shown" for one in found])
    print(f"{changes}: {power:.2f} of 100 series with leaks shown")
    assert power >= least


def test_where_noise_never_varied_there_is_nothing_to_compare():
    found = result_of(Series([400, 410, 421, 429, 440, 455, 460]), response(), ("leave",))
    assert found.verdict == "not testable"
    assert np.isnan(found.p_value)
    assert found.words == "These counts can't tell whether leaks make people leave: the noise never varied."


def test_leavers_show_what_joiners_would_hide():
    """Randomized response; spared users recruit at random, and the leaked leave: the leavers alone tell."""
    random, epsilon = np.random.default_rng(0), np.tile([0.2, 3.0], 5)
    kept = 1 / (1 + np.exp(-epsilon))
    out, new = np.round(1000 * 0.05 * kept), random.integers(0, 200, 10)
    counts = np.append(1000, 1000 + np.cumsum(new - out))
    flows = [np.append(x, np.nan) for x in (out, new)]
    noise = np.append(epsilon, 1.0)
    scenario = response(1.0, cap=1e5)
    by_flows = Series(counts, noise=noise, leavers=flows[0], joiners=flows[1])
    found = [result_of(series, scenario, ("leave",)) for series in (Series(counts, noise=noise), by_flows)]
    assert [one.verdict for one in found] == ["not shown", "shown"]


def test_attrition_takes_the_place_of_recruit_only_where_the_counts_speak_for_it():
    """chi2 with one degree is above 2 x 1.92 in 5 %; likelihoods at two dispersions say nothing."""
    fits = [
        SimpleNamespace(dispersion=d, log_likelihood=v) for d, v in ((1.0, 0.0), (1.0, 1.9), (1.0, 1.95), (2.0, 80.0))
    ]
    assert [_fit._clearly_better(one, fits[0]) for one in fits] == [False, False, True, False]
    assert _fit._clearly_better(fits[0], fits[3])
    assert scipy.stats.chi2.sf(2 * _fit.CLEARLY, 1) == pytest.approx(0.05, abs=1e-4)


@pytest.mark.slow
def test_attrition_has_a_background_and_nothing_else_is_known():
    counts, noise = attrition(0)
    fitted = calibration.fit(Series(counts, noise=noise), PUBLISHED)
    found = calibration.identifiability(fitted)
    assert leak_test(fitted) == found.leaks == of_columns((counts, noise))
    assert found.verdict.startswith("The counts do not show that leaks make people leave")
    assert not found.identified["leave"]
    assert not found.identified["threshold"]
    if "leave_spared" in fitted.free:  # either explanation may fit a little better
        assert found.profiles["leave_spared"].low < 0.03 < found.profiles["leave_spared"].high


@pytest.mark.slow
def test_the_command_says_first_that_leaks_are_not_shown(run, tmp_path):
    counts, noise = attrition(0)
    path = tmp_path / "attrition.csv"
    rows = (f"{n:.0f},{x}" for n, x in zip(counts, noise, strict=True))
    path.write_text("\n".join(["users,noise", *rows]))
    arguments = ("fit", path, "--column", "users", "--noise-column", "noise", "--preset", "mean-estimation")
    code, out, _ = run(*arguments, "--replicates", "10")
    assert code == 0
    assert out.startswith("The counts do not show that leaks make people leave (p = ")
    assert "without a role for leaks no privacy is best" in " ".join(out.split())
    report = json.loads(run(*arguments, "--replicates", "10", "--json")[1])
    assert report["leaks"]["verdict"] == "not shown"
    assert report["best_noise"]["estimate"] is None
    assert report["best_noise"]["low"] == 0
    assert report["best_noise"]["probability_privacy_pays"] < 0.5


def fitted_to_attrition(run, tmp_path):
    """The file that the command writes, what it printed, and the test of the counts."""
    counts, noise = attrition(0)
    path, out = tmp_path / "attrition.csv", tmp_path / "fitted.toml"
    rows = (f"{n:.0f},{x}" for n, x in zip(counts, noise, strict=True))
    path.write_text("\n".join(["users,noise", *rows]))
    options = ("--column", "users", "--noise-column", "noise", "--preset", "mean-estimation", "--free", "leave")
    code, text, error = run("fit", path, *options, "--replicates", "8", "--out", out)
    assert code == 0, error
    return out, " ".join(text.split()), of_columns((counts, noise), ("leave",))


@pytest.mark.slow
def test_attrition_is_not_sold_as_privacy_through_the_command_line(run, tmp_path):
    """From counts to the words of `tune`, whose numbers are those of the file."""
    out, text, test = fitted_to_attrition(run, tmp_path)
    ranges, scenario = calibration.load_ranges(out), pj.load_scenario(out)
    assert ranges.leaks == test
    assert tomllib.loads(out.read_text())["fit"]["leaks"]["weight"] == test.weight
    assert text.startswith(test.words)
    objective = pj.CumulativeError(first_release=0)
    tuned = [pj.tune(scenario.replace(leave=q), objective) for q in ranges.draws["leave"]]
    share = float(np.mean([bool(one.privacy_pays) for one in tuned]))
    noises = [float(one.noise) for one in tuned]
    text = " ".join(run("tune", out)[1].split())
    assert text.startswith(test.words)
    assert "without a role for leaks no privacy is best; with one, the best noise_scale lies between" in text
    assert f"pays with probability {test.weight:.3g} x {share:.3g} = {test.weight * share:.3g}." in text
    assert "Privacy pays:" not in text
    report = json.loads(run("tune", out, "--json")[1])
    assert report["best"] is None
    low, high = report["fit"]["if_leaks_matter"]["best_noise"]
    best = report["if_leaks_matter"]["noise"]
    assert np.allclose([low, high], [min(*noises, best), max(*noises, best)], rtol=1e-6, atol=0)


@pytest.mark.slow
def test_a_schedule_for_attrition_holds_only_if_leaks_matter(run, tmp_path):
    out, _, test = fitted_to_attrition(run, tmp_path)
    text = " ".join(run("schedule", out, "--structure", "geometric")[1].split())
    assert text.startswith(test.words)
    assert f"holds only if leaks matter, to which the counts give a probability of {test.weight:.3g}" in text


@pytest.mark.study
@pytest.mark.parametrize("users", [1000.0, 5000.0])
def test_intervals_of_background_and_leaks_hold_the_truth(users):
    """200 series of 20 rounds with leavers and joiners, noise that varies: 95 %, with three standard errors."""
    truth = PUBLISHED.replace(leave_spared=0.05, recruit=0.2, population=users)
    names = ("leave", "recruit", "threshold", "leave_spared")
    found = study(truth, simulated_flows(truth, NOISE[::2], 200, seed=3), names)
    share = dict(zip(found.fitted.free, found.covered.mean(axis=0), strict=True))
    print(f"coverage of 95 % intervals, {users:.0f} users:", {name: f"{value:.3f}" for name, value in share.items()})
    assert all(abs(value - 0.95) < 3 * np.sqrt(0.95 * 0.05 / 200) for value in share.values())
