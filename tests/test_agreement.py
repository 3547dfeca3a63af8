"""Closed form against solver: two routes to one number, which share no code."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from scenarios import gaussian, published, response

import perfjax as pj
from perfjax import theorems


@pytest.mark.parametrize("recruiters", ["spared", "everyone"])
@pytest.mark.parametrize("epsilon", [0.2, 3.0])
def test_randomized_response_grows_geometrically(epsilon, recruiters):
    path = pj.mean_field(response(epsilon, recruiters=recruiters, cap=1e12))
    p = 0.5 + theorems.perturbation(epsilon)
    growth = float(theorems.growth_factor(p, 0.3, 0.6, recruiters=recruiters))
    population = np.clip(100 * growth ** np.arange(51), 1, 1e12)
    np.testing.assert_allclose(path.population, population, rtol=1e-12)
    np.testing.assert_allclose(path.error, theorems.response_error(epsilon, population, (0.0, 1.0)), rtol=1e-12)


@pytest.mark.parametrize("mean", [0.0, 0.3, (0.5, 1.0)])
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 30.0])
def test_the_error_of_a_response_is_the_closed_form(epsilon, mean):
    mechanism = pj.RandomizedResponse(epsilon, np.asarray(mean))
    expected = theorems.response_error(epsilon, 50.0, mean)
    np.testing.assert_allclose(mechanism.error(jnp.asarray(50.0)), expected, rtol=1e-12)


def test_the_critical_budget_keeps_the_population():
    critical = theorems.critical_epsilon(0.3, 0.6)
    np.testing.assert_allclose(pj.mean_field(response(critical)).population, 100.0, rtol=1e-12)
    assert pj.mean_field(response(1.01 * float(critical))).population[-1] < 100
    assert pj.mean_field(response(0.99 * float(critical))).population[-1] > 100


@pytest.mark.parametrize(("gamma", "n"), [(0.5, 30.0), (2.0, 1000.0)])
def test_the_leak_probability_is_the_average_of_the_closed_form(gamma, n):
    def integrand(y):
        distance = np.sqrt((1 - 1 / n) * np.exp(y))
        given = theorems.leak_probability_given_distance(distance, gamma, n, threshold=0.02)
        return float(given) * scipy.stats.chi2.pdf(np.exp(y), 10) * np.exp(y)

    average, _ = scipy.integrate.quad(integrand, -3, 4.5, epsabs=1e-10)
    scenario = gaussian(gamma)
    found = pj.leak_probability(scenario.mechanism, scenario.leakage, n)
    np.testing.assert_allclose(found, average, rtol=1e-6)


def test_the_error_of_a_mean_is_the_closed_form():
    path = pj.mean_field(gaussian(0.7))
    expected = theorems.mahalanobis_error(0.7, path.population, dim=10.0, precision_trace=10.0)
    np.testing.assert_allclose(path.error, expected, rtol=1e-13)


def test_no_noise_is_the_closed_form():
    path = pj.mean_field(gaussian(floor=0).without_privacy())
    expected = theorems.zero_noise_error(100.0, 0.3, jnp.arange(11.0), dim=10.0)
    np.testing.assert_allclose(path.error, expected, rtol=1e-12)


def test_growth_bounds_hold_on_the_expected_path():
    path = pj.mean_field(gaussian(2.0, cap=1e12))
    growth = path.population[1:] / path.population[:-1]
    assert theorems.growth_is_increasing(growth)
    bound = theorems.long_run_error_bound(path.error[0], growth[0], jnp.arange(11.0), 0.3, 0.6)
    assert np.all(path.error <= bound)


def test_the_critical_noise_keeps_the_population():
    least = theorems.critical_noise_scale(0.45, 0.11, 0.02, clip_radius=10.0, population=1000.0)
    path = pj.mean_field(published().replace(noise_scale=least))
    assert np.all(path.population[1:] >= path.population[:-1])
    assert path.population[-1] > path.population[0]


def test_the_mean_field_is_the_mean_of_simulated_responses():
    """Without floor and cap the expectation is exact."""
    rng = np.random.default_rng(4)
    n = np.full(4000, 100)
    kept = 0.5 + float(theorems.perturbation(0.5))
    for _ in range(8):
        leaked = rng.binomial(n, kept)
        n = n - rng.binomial(leaked, 0.3) + rng.binomial(n - leaked, 0.6)
    expected = float(pj.mean_field(response(0.5, rounds=10)).population[8])
    standard_error = n.std() / np.sqrt(n.size)
    assert abs(n.mean() - expected) < 4 * standard_error
    assert standard_error < 0.01 * expected
