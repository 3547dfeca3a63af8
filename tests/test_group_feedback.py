"""A released count in the loop: big groups grow, small ones die out, and all solvers see the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from assertions import close, finite, gradient_is_central_difference

import perfjax as pj
from perfjax import count_privacy as cp

LOOP = {"leave": 0.3, "recruit": 0.05, "threshold": 0.2}


def group(population=50.0, relative_error=0.2, *, shift=1.0, threshold=0.2, rounds=20, **participation):
    who = {"leave": 0.3, "recruit": 0.05, "cap": 200.0} | participation
    return pj.Scenario(
        pj.ShiftedLogCount.from_tolerance(relative_error, shift),
        pj.LikelihoodRatioAbove(threshold),
        pj.Participation(**who),
        population=population,
        rounds=rounds,
    )


@pytest.mark.slow
def test_the_unstable_count_parts_groups_that_grow_from_groups_that_shrink():
    scenario = group(rounds=8)
    star = cp.unstable_count(0.3, 0.05, 0.2, sigma=scenario.mechanism.sigma, shift=1.0)
    paths = jax.vmap(lambda n: pj.mean_field(scenario.replace(population=n)).population)(
        star * jnp.asarray([0.5, 0.99, 1.0, 1.01, 2.0])
    )
    assert np.all(np.diff(paths[:2], axis=1) < 0)
    assert np.all(np.diff(paths[3:], axis=1) > 0)
    close(paths[2], star, 1e-9)
    away = (paths[3] - star)[1:4] / (paths[3] - star)[:3]
    multiplier = cp.unstable_multiplier(0.3, 0.05, 0.2, sigma=scenario.mechanism.sigma, shift=1.0)
    assert multiplier > 1
    close(away, multiplier, 0.01)


@pytest.mark.slow
def test_the_multiplier_is_the_derivative_of_one_release():
    for recruiters in ("spared", "everyone"):
        scenario = group(relative_error=0.4, shift=0.5, recruiters=recruiters, rounds=1, cap=1e6)
        options = {"sigma": scenario.mechanism.sigma, "shift": 0.5, "recruiters": recruiters}
        star = cp.unstable_count(0.3, 0.05, 0.2, **options)

        def following(n, scenario=scenario):
            return pj.mean_field(scenario.replace(population=n)).population[1]

        close(following(star), star, 1e-12)
        close(jax.grad(following)(star), cp.unstable_multiplier(0.3, 0.05, 0.2, **options), 1e-9)


@pytest.mark.parametrize(("recruiters", "leaked"), [("spared", 0.05 / 0.35), ("everyone", 0.05 / 0.3)])
def test_at_the_unstable_count_as_many_leave_as_are_recruited(recruiters, leaked):
    """P(mu Z + mu^2 / 2 > tau) = `leaked` at the mu of the edge below n*, log((n* + c) / (n* - 1 + c)) / sigma."""
    star = cp.unstable_count(0.3, 0.05, 0.2, sigma=0.1, shift=0.5, recruiters=recruiters)
    mu = np.log((star + 0.5) / (star - 0.5)) / 0.1
    close(scipy.stats.norm.sf(0.2 / mu - mu / 2), leaked, 1e-9)


def test_limits_of_the_unstable_count():
    options = {"sigma": 0.1, "shift": 1.0}
    assert cp.unstable_count(0.3, 0.0, 0.2, **options) == np.inf
    assert cp.unstable_count(0.1, 0.2, 0.2, recruiters="everyone", **options) == 0  # 1 - c: every group grows
    slope = jax.grad(lambda r: cp.unstable_count(0.3, r, 0.2, **options))
    finite(slope(0.05), slope(0.3))  # a leak probability below and above one half
    assert slope(0.05) < 0
    close(cp.edge_leak_probability(0.15, 0.2), 0.1041356154578906, 1e-12)


@pytest.mark.slow
def test_tuning_under_the_growth_constraint_finds_the_error_that_saves():
    optimum = pj.tune(group(40.0), constraint="growth")
    assert optimum.status == pj.Status.GROWTH_CONSTRAINT
    saves = cp.error_that_saves(40.0, 0.3, 0.05, 0.2, shift=1.0)
    close(optimum.noise, cp.log_gaussian_sigma(saves, 1.0), 1e-8)
    assert "ratio" not in str(optimum)  # to the error without noise, which is 0


@pytest.mark.slow
def test_without_a_constraint_a_count_needs_no_noise():
    optimum = pj.tune(group(40.0, rounds=3))
    assert optimum.status == pj.Status.NO_PRIVACY
    assert optimum.noise == optimum.value == 0


@pytest.mark.slow
@pytest.mark.parametrize("population", [6.0, pytest.param(60.0, marks=pytest.mark.slow)])
def test_the_law_agrees_with_counts(population):
    """All or none are leaked: the population after one release has two humps, and far more risk of collapse."""
    scenario = group(population, rounds=8, cap=150.0)
    law = pj.population_law(scenario)
    trials = 20_000
    runs = pj.simulate_counts(scenario, key=jax.random.key(5), trials=trials)
    last = np.asarray(runs.population)
    for t in (1, 4, 8):
        assert abs(last[:, t].mean() - law.mean[t]) < 4 * last[:, t].std() / np.sqrt(trials)
        close(last[:, t].std(), law.std[t], 0.03)
    errors, risk = np.asarray(runs.error), float(law.collapse_probability[-1])
    deviation = errors.std(axis=0) / np.sqrt(trials)
    assert np.all(np.abs(errors.mean(axis=0) - law.expected_error) < 4.5 * deviation)
    assert abs(np.mean(np.asarray(runs.collapsed)[:, -1]) - risk) < 4 * np.sqrt(risk * (1 - risk) / trials)
    assert set(np.unique(runs.leak_probability)) == {0, 1}


@pytest.mark.slow
def test_one_release_by_hand():
    """From n: all n stay or each leaves with probability q; the spared recruit. The law's first two moments."""
    scenario = group(30.0, rounds=1, cap=150.0)
    q, r = 0.3, 0.05
    p = float(pj.leak_probability(scenario.mechanism, scenario.leakage, 30.0))
    law = pj.population_law(scenario)
    means, variances = np.array([30 * (1 - q), 30 * (1 + r)]), np.array([30 * q * (1 - q), 30 * r * (1 - r)])
    mean = p * means[0] + (1 - p) * means[1]
    close(law.mean[1], mean, 1e-9)
    spread = p * variances[0] + (1 - p) * variances[1] + p * (1 - p) * (means[1] - means[0]) ** 2
    close(law.std[1] ** 2, spread, 1e-6)


def test_the_leak_probability_of_the_clipped_release():
    """By simulation of the release and its likelihood ratio, with the threshold in the atom at 0 and outside it."""
    key = jax.random.key(2)
    for n, r, c, tau in ((1.0, 0.9, 0.9, 0.01), (1.0, 0.9, 0.1, 1.2), (3.0, 0.9, 0.1, 0.1), (20.0, 0.3, 1.0, 0.2)):
        mechanism = pj.ShiftedLogCount.from_tolerance(r, c)
        sigma = float(mechanism.sigma)
        z = np.asarray(jax.random.normal(key, (200_000,)))
        mu = float(cp.edge_mu(n, sigma, c))
        released = (n + c) * np.exp(sigma * z - sigma**2) - c > 0
        leaked = np.mean(released & (mu * z + mu**2 / 2 > tau))
        found = float(pj.leak_probability(mechanism, pj.LikelihoodRatioAbove(tau), n))
        assert abs(leaked - found) < 4 * np.sqrt(found * (1 - found) / z.size)


def test_a_release_of_0_leaks_nobody():
    """sigma = c = n = 1: the release is above 0 for Z > 1 - log 2, and the ratio above 0.05 already from Z > -0.274."""
    found = pj.leak_probability(pj.ShiftedLogCount(1.0, 1.0), pj.LikelihoodRatioAbove(0.05), 1.0)
    close(found, scipy.stats.norm.sf(1 - np.log(2)), 1e-12)
    close(found, 0.379478, 1e-6)  # without clipping 0.6081


def test_error_and_privacy_of_the_mechanism():
    mechanism = pj.ShiftedLogCount.from_tolerance(0.2, 1.0)
    n = jnp.asarray([0.0, 1.0, 50.0])
    close(jax.vmap(mechanism.error)(n), cp.clipped_error(n, mechanism.sigma, 1.0) / jnp.maximum(n, 1), 1e-14)
    close(mechanism.error(jnp.inf), 0.1, 1e-12)
    assert mechanism.error(50.0, 0.0) == 0
    close(jax.grad(lambda s: mechanism.error(50.0, s))(0.0), 51 / 50 * np.sqrt(2 / np.pi), 1e-12)
    budget = mechanism.privacy(n)
    assert np.all(np.isinf(budget.local.rho))
    close(budget.central.rho, cp.edge_budget(n, mechanism.sigma, 1.0), 1e-13)
    assert np.all(np.isinf(mechanism.privacy(n, 0.0).central.mu))
    assert pj.leak_probability(mechanism, pj.LikelihoodRatioAbove(0.2), 50.0, 0.0) == 1
    below_one = pj.leak_probability(mechanism, pj.LikelihoodRatioAbove(0.2), jnp.asarray([0.0, 0.3, 1.0]))
    close(below_one, below_one[-1], 1e-14)


@pytest.mark.slow
def test_an_empty_group_has_an_error_and_no_nan():
    scenario = group(0.4, rounds=400, floor=0.0)
    path = pj.mean_field(scenario)
    finite(path.error)
    close(path.error[-1], scenario.mechanism.error(0.0), 1e-9)
    finite(jax.grad(lambda n: pj.mean_field(scenario.replace(population=n)).error[-1])(0.4))


def test_a_group_is_saved_to_a_file_and_swept(tmp_path):
    scenario = group(rounds=5)
    pj.save_scenario(scenario, tmp_path / "group.toml")
    assert pj.files.to_toml(pj.load_scenario(tmp_path / "group.toml")) == pj.files.to_toml(scenario)
    data = pj.sweep(pj.mean_field, scenario, {"sigma": [0.1, 0.2], "population": [20.0, 60.0]}, fields=["error"])
    assert data.error.shape == (2, 2, 6)
    close(data.error.values[1, 0], pj.mean_field(scenario.replace(sigma=0.2, population=20.0)).error, 1e-12)
    assert pj.mean_field(scenario).to_xarray().error.attrs["units"] == "relative error"


def test_followed_users_are_refused():
    with pytest.raises(ValueError, match="must be one of the pairs"):
        pj.simulate_users(group(), key=jax.random.key(0), trials=2)
    with pytest.raises(ValueError, match="must be one of the pairs"):
        pj.leak_probability(pj.ShiftedLogCount(0.1, 1.0), pj.TrueBitKept(), 5.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((-0.1, 1.0), "`sigma` must lie"), ((0.1, 0.0), "`shift` must lie"), ((0.1, [1.0, 2.0]), "`shift` must be one")],
)
def test_bad_input(arguments, words):
    with pytest.raises(ValueError, match=words):
        pj.ShiftedLogCount(*arguments)


@pytest.mark.slow
def test_derivatives_of_paths_and_laws():
    def last(r, c, tau):
        return pj.mean_field(group(50.0, r, shift=c, threshold=tau, rounds=10, cap=1e6)).population[-1]

    gradient_is_central_difference(last, 0.2, 1.0, 0.2, rtol=1e-7)

    def expected(r, tau):
        return pj.population_law(group(12.0, r, threshold=tau, rounds=4, cap=40.0)).mean[-1]

    gradient_is_central_difference(expected, 0.3, 0.3, rtol=1e-6)


def test_single_precision():
    scenario = group(rounds=5).astype("float32")
    path = pj.mean_field(scenario)
    assert path.population.dtype == jnp.float32
    close(path.population, pj.mean_field(group(rounds=5)).population, 1e-5)
