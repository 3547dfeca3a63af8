"""The claims of "Performative Privacy: When Differential Privacy Maximizes Utility", on scenarios, and its errata.

The formulas behind its lemmas have their own tests in test_theorems.py; here they are read as claims about the loop.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scenarios import gaussian, published, response

import perfjax as pj
from perfjax import theorems
from perfjax.tuning import Status

BOUND, FINAL = pj.CumulativeBound(), pj.FinalError()
GAMMA = jnp.geomspace(0.05, 20.0, 40)


def leak(scenario, noise):
    return pj.leak_probability(scenario.mechanism, scenario.leakage, scenario.population, noise)


def test_lemma_1_the_budget_is_spent_exactly():
    scenario = response(0.7)
    kept = float(leak(scenario, 0.7))
    np.testing.assert_allclose(np.log(kept / (1 - kept)), 0.7, rtol=1e-12)
    np.testing.assert_allclose(kept, 0.5 + theorems.perturbation(0.7), rtol=1e-12)


def test_lemma_2_and_theorem_1_decide_survival():
    for leave, recruit in [(0.3, 0.6), (0.6, 0.3), (0.45, 0.5)]:
        critical = float(theorems.critical_epsilon(leave, recruit))
        for epsilon in (0.2, 1.0, 3.0):
            population = pj.mean_field(response(epsilon, leave=leave, recruit=recruit)).population
            assert (population[-1] >= population[0]) == (critical > 0 and epsilon <= critical)


def test_lemma_3_the_error_needs_no_more_than_trace_and_dimension():
    covariance = np.array([[2.0, 0.5], [0.5, 1.0]])
    mechanism = pj.GaussianMean(0.7, dim=2, covariance=covariance)
    expected = (0.7**2 * np.trace(np.linalg.inv(covariance)) + 2) / 40
    np.testing.assert_allclose(mechanism.error(jnp.asarray(40.0)), expected, rtol=1e-12)


def test_lemma_5_the_renyi_bound_is_above_the_leak_probability():
    scenario = gaussian()
    radius = np.sqrt(0.99 * np.random.default_rng(0).chisquare(10, 20_000))
    for gamma in (1.0, 3.0, 10.0):
        bound = theorems.optimal_tail_bound(radius, gamma, 100.0, threshold=0.02).mean()
        assert float(leak(scenario, gamma)) <= bound


def test_lemma_8_and_theorem_2_more_noise_leaks_less_and_enough_noise_suffices():
    scenario = published()
    p = leak(scenario, GAMMA)
    assert np.all(np.diff(p) < 0)
    growth = theorems.growth_factor(p, 0.45, 0.11)
    assert np.all((growth > 1 - 0.45) & (growth < 1 + 0.11))  # the horizontal lines of Figure 3
    least = theorems.critical_noise_scale(0.45, 0.11, 0.02, clip_radius=10.0, population=1000.0)
    assert theorems.growth_factor(leak(scenario, least), 0.45, 0.11) > 1


def test_corollary_1_without_noise_the_error_diverges():
    error = pj.mean_field(gaussian(floor=0).without_privacy()).error
    np.testing.assert_allclose(error[1:] / error[:-1], 1 / 0.7, rtol=1e-12)


def test_corollary_2_with_enough_noise_the_error_vanishes():
    error = np.asarray(pj.mean_field(gaussian(3.0, cap=1e30, rounds=100)).error)
    assert np.all(np.diff(error) < 0)
    assert error[-1] < 1e-15
    assert np.all(error[1:] / error[:-1] >= 1 / 1.6)  # no faster than 1 / (1 + r)


def test_theorem_4_the_promised_round_is_on_the_expected_path():
    scenario = published(0.1, 0.5).replace(noise_scale=2.0)
    growth = theorems.growth_factor(leak(scenario, 2.0), 0.1, 0.5)
    rounds = theorems.pac_rounds(
        1.0,
        0.05,
        growth,
        noise_scale=2.0,
        population=1000.0,
        clip_radius=10.0,
        mean_norm=0.0,
        covariance_eigenvalues=jnp.ones(12),
    )
    path = pj.mean_field(scenario.replace(cap=1e9))
    t = int(np.ceil(rounds))
    assert 0 < t < 50
    assert path.population[t] >= 1000 * growth**t * (1 - 1e-12)  # the assumption of the theorem
    assert path.error[t] <= 1.0**2


@pytest.mark.slow
def test_a_finite_budget_can_maximize_utility():
    """The title, in both settings."""
    for optimum in (pj.tune(published(), BOUND), pj.tune(response(), FINAL)):
        assert optimum.privacy_pays
        assert jnp.isfinite(optimum.noise)
        assert optimum.value < 0.1 * optimum.value_without_privacy


@pytest.mark.slow
def test_figure_2_the_best_budget_falls_with_the_leaving_rate():
    leave = jnp.linspace(0.05, 0.45, 9)
    best = jax.vmap(lambda q: pj.tune(response(leave=q, recruit=0.5, rounds=200, population=400), FINAL))(leave)
    assert np.all(np.diff(best.noise) < 0)
    assert np.all(best.status != Status.NO_PRIVACY)


def test_figure_7_when_everyone_recruits_growth_leaves_no_reason_for_privacy():
    assert Status(int(pj.tune(response(recruiters="everyone"), FINAL).status)) is Status.NO_PRIVACY
    band = pj.tune(response(recruiters="everyone", leave=0.65), FINAL)  # a little more leave than recruit
    assert band.privacy_pays


# Errata.


def test_erratum_1_figure_1_by_name():
    """leave > recruit collapses whatever the budget; recruit > leave survives at a small one."""
    for epsilon in (0.01, 0.1, 1.0, 5.0):
        assert pj.mean_field(response(epsilon, leave=0.6, recruit=0.3)).population[-1] < 100
    assert pj.mean_field(response(0.1, leave=0.3, recruit=0.6)).population[-1] > 100


def test_erratum_2_the_leak_probability_decreases_along_a_growing_path():
    path = pj.mean_field(gaussian(2.0, cap=1e12))
    growth = path.population[1:] / path.population[:-1]
    assert np.all(growth > 1)
    assert np.all(np.diff(path.leak_probability) < 0)
    assert np.all(np.diff(growth) > 0)  # the claim of Lemma 12 itself is right


def test_erratum_3_whole_users_break_theorem_3():
    """Two users, both leaked, q = 0.9, a floor of one: the lower bound on the next error fails."""
    inverse = 0.9**2 / 1 + 2 * 0.9 * 0.1 / 1 + 0.1**2 / 2
    bounds = theorems.error_bounds(0.5, theorems.growth_factor(1.0, 0.9, 0.1), 0.9, 0.1)
    assert inverse < bounds.lower
    np.testing.assert_allclose([inverse, bounds.lower], [0.995, 5.0], rtol=1e-12)


def test_erratum_4_lemma_9_leaves_release_0_out():
    """At C = 1 every release costs the same: the bound is T of them, not T + 1, and not the first T."""
    scenario = gaussian(leave=0.0, recruit=0.0)
    error = pj.mean_field(scenario).error
    np.testing.assert_allclose(BOUND(scenario), 10 * error[0], rtol=1e-12)
    np.testing.assert_allclose(BOUND(scenario), pj.CumulativeError()(scenario), rtol=1e-12)
    growing = gaussian(2.0, cap=1e12)
    assert (
        pj.CumulativeError()(growing) <= BOUND(growing) < pj.CumulativeError(first_release=0, last_release=9)(growing)
    )


@pytest.mark.parametrize(("n", "gamma", "close"), [(1000.0, 5.0, True), (100.0, 20.0, False)])
def test_erratum_5_the_variance_without_the_record_matters_for_few_users(n, gamma, close):
    shared, recomputed = (
        pj.leak_probability(pj.GaussianMean(gamma, dim=12), pj.LikelihoodRatioAbove(0.02, outside=outside), n)
        for outside in ("shared", "recomputed")
    )
    assert (abs(recomputed / shared - 1) < 0.15) == close
    if not close:
        np.testing.assert_allclose([shared, recomputed], [0.1197, 0.2781], atol=1e-4)


def test_erratum_6_what_the_paper_leaves_open_stands_in_the_presets():
    mean, bits = pj.preset("mean-estimation"), pj.preset("randomized-response")
    assert (mean.mechanism.dim, mean.population, mean.rounds) == (12, 1000, 50)
    assert (float(mean.mechanism.clip_radius), float(mean.participation.cap)) == (10, 20_000)
    assert (bits.population, bits.rounds) == (400, 200)
    np.testing.assert_array_equal(bits.mechanism.mean, [0, 1])
