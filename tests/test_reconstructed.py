"""Leaked by reconstruction: the law of an attacker's error, and its place in the loop."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from assertions import close, finite, gradient_is_central_difference
from scenarios import response

import perfjax as pj
from perfjax._chi_square import tails
from perfjax.leakage import leak_distribution
from perfjax.leakage.pairs._chi_square_noise import chi_square_rule
from perfjax.leakage.pairs.blocks import Keys


def rule(tolerance=20.0, releases=2, **options):
    return pj.ReconstructedWithin(tolerance, releases, **options)


def loop(noise_scale=1.0, tolerance=8.0, releases=2, *, dim=4, population=20.0, rounds=6, **participation):
    options = {"leave": 0.4, "recruit": 0.2, "cap": 150} | participation  # a small cap: a law on whole numbers
    return pj.Scenario(
        pj.GaussianMean(noise_scale, dim=dim),
        rule(tolerance, releases),
        pj.Participation(**options),
        population=population,
        rounds=rounds,
    )


def variance(noise_scale, population, releases):
    """V as the theory has it, for accountants that share out a budget in proportion to 1 / L."""
    inside, outside = np.ceil(releases / 2), np.floor(releases / 2)
    single = noise_scale**2 * releases / population
    return single * (population**2 / inside + (population - 1) ** 2 / outside)


SETTINGS = list(itertools.product((0.5, 20.0), (2.0, 7.0, 1000.0, 1e9), (0.3, 20.0, 3e4), (2, 3, 8)))


@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 1e-9), ("float32", 2e-4)])
@pytest.mark.parametrize("dim", [1, 12])
def test_the_squared_error_is_a_chi_square_variable(dim, dtype, rtol):
    gamma, n, tolerance, releases = (np.array(x, float) for x in zip(*SETTINGS, strict=True))

    def one(gamma, n, tolerance, releases):
        parts = pj.GaussianMean(gamma, dim=dim), rule(tolerance, releases)
        return pj.leak_probability(*jax.tree.map(lambda x: x.astype(dtype), parts), n)

    found = jax.jit(jax.vmap(one))(*(jnp.asarray(x, dtype) for x in (gamma, n, tolerance, releases)))
    assert found.dtype == dtype
    exact = scipy.stats.chi2.cdf(tolerance**2 / variance(gamma, n, releases), dim)
    known = exact > (1e-300 if dtype == "float64" else 1e-20)
    assert np.sum(known) > 30
    close(found[known], exact[known], rtol, of=np.array(SETTINGS)[known].tolist())
    assert np.all(found[~known] <= 1e-20)


@pytest.mark.slow
def test_edges():
    mean = pj.GaussianMean(2.0, dim=3)
    users = jnp.asarray([2.0, 5.0, 1e9])
    np.testing.assert_array_equal(pj.leak_probability(mean, rule(releases=1), users), 0)
    np.testing.assert_array_equal(pj.leak_probability(mean, rule(releases=1), users, 0.0), 0)
    np.testing.assert_array_equal(pj.leak_probability(mean, rule(releases=2), users, 0.0), 1)
    # The mean of a single user is their record, with or without a mean of nobody.
    alone = [pj.leak_probability(mean, rule(3.0, releases), 1.0) for releases in (1, 2, 5, 6)]
    attacker = 4.0 * np.array([1, 2 / 1, 5 / 3, 6 / 3])
    close(alone, scipy.stats.chi2.cdf(9 / attacker, 3), 1e-9)
    for dim, dtype in itertools.product((1, 12), ("float32", "float64")):
        for tolerance, sure in ((1e-37, 0), (1e37, 1)):
            parts = pj.GaussianMean(1.0, dim=dim), rule(tolerance)
            p = pj.leak_probability(*jax.tree.map(lambda x, to=dtype: x.astype(to), parts), jnp.asarray(7.0, dtype))
            np.testing.assert_allclose(p, sure, atol=1e-15)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("dim", [1, 12])
def test_derivatives_have_no_nan_anywhere(dim, dtype):
    def p(gamma, n, tolerance, releases):
        scenario = loop(gamma, tolerance, releases, dim=dim, population=n, cap=1e10).astype(dtype)
        return pj.leakage.split(scenario.mechanism, scenario.leakage, scenario.population, gamma).leaked

    places = itertools.product((0.0, 1e-3, 1e3), (0.5, 1.0, 2.0, 1e9), (1e-30, 1.0, 1e30), (1, 2, 3))
    places = [jnp.asarray(x, dtype) for x in zip(*places, strict=True)]
    value, slopes = jax.jit(jax.vmap(jax.value_and_grad(p, argnums=(0, 1, 2, 3))))(*places)
    finite(value, slopes)


def test_gradients_are_differences():
    def p(gamma, n, tolerance):
        return pj.leak_probability(pj.GaussianMean(gamma, dim=12), rule(tolerance, 3), n)

    gradient_is_central_difference(p, 1.3, 12.0, 20.0, rtol=1e-7)


@pytest.mark.slow
def test_a_derivative_by_releases_is_that_of_even_numbers():
    """By "zcdp" an even number does not matter; by "basic" each of them leaks less than the one before."""

    def p(releases, **options):
        return pj.leak_probability(pj.GaussianMean(1.0, dim=12), rule(20.0, releases, **options), 10.0)

    assert abs(jax.grad(p)(8.0)) < 1e-12
    close(p(8.0), p(2.0), 1e-12)
    slope = jax.grad(lambda x: jnp.log(p(x, accountant="basic", delta=1e-5)))(1000.0)
    difference = jnp.log(p(1010.0, accountant="basic", delta=1e-5) / p(990.0, accountant="basic", delta=1e-5)) / 20
    close(slope, difference, 1e-3)
    assert slope < 0


@pytest.mark.parametrize("accountant", ["zcdp", "gdp", "rdp", "basic"])
def test_an_accountant_shares_out_the_budget_of_a_single_mean(accountant):
    options = {"delta": 1e-5} if accountant == "basic" else {}
    order = {"order": 64.0} if accountant == "rdp" else {}
    releases = jnp.asarray([1.0, 2.0, 7.0, 40.0])
    kappa = pj.accounting.kappa(releases=releases, epsilon=1.0, delta=1e-5, accountant=accountant, **order)
    noise = rule(1.0, releases, accountant=accountant, **options).released_noise(jnp.asarray(3.0))
    close(noise**2, 9 * kappa / kappa[0], 1e-12)


def test_a_round_costs_the_error_of_one_of_its_means():
    scenario = loop(2.0, releases=6, dim=5, cap=30, rounds=2)
    path = pj.mean_field(scenario)
    close(path.error, (2.0**2 * 6 * 5 + 5) / path.population, 1e-12)
    bound = pj.CumulativeBound()(scenario.replace(rounds=1))
    growth = pj.objectives.growth_factor(scenario)
    close(bound, path.error[0] / growth, 1e-12)


def test_the_copy_that_is_published_varies_about_the_average_of_three():
    """Of the six means of a round of 20 users: error 5 (2^2 6 + 1) / 20 = 6.25; of the average, 5 (2^2 2 + 1) / 20."""
    scenario = loop(2.0, releases=6, dim=5)
    n, noise, draws = jnp.asarray(20.0), jnp.asarray(2.0), 1000
    pair = pj.leakage.pair_of(scenario.mechanism, scenario.leakage)

    def of_counts(words):
        return pair.count_release(scenario.mechanism, scenario.leakage, n, noise, words)[1]

    def of_users(key):
        keys = Keys(*jax.random.split(key, 4))
        return pair.user_release(scenario.mechanism, scenario.leakage, jnp.int32(20), noise, 32, keys)[0]

    words = jnp.asarray(np.random.default_rng(0).integers(0, 2**32, (draws, 4), dtype=np.uint32))
    keys = jax.random.split(jax.random.key(0), draws)
    for one, random in ((of_counts, words), (of_users, keys)):
        error = np.asarray(jax.jit(lambda x, one=one: jax.lax.map(one, x))(random))
        assert abs(error.mean() - 6.25) < 4 * 6.25 * np.sqrt(2 / 5 / draws)  # chi-square with 5 degrees of freedom


@pytest.mark.study
def test_a_round_costs_every_solver_the_same():
    scenario = loop(2.0, releases=6, dim=5, cap=30, rounds=2)
    error = (2.0**2 * 6 * 5 + 5) / 20.0
    close(pj.population_law(scenario).expected_error[0], error, 1e-12)
    for simulate in (pj.simulate_counts, pj.simulate_users):
        runs = simulate(scenario.replace(rounds=1), key=jax.random.key(0), trials=4000)
        close(runs.expected_error[:, 0], error, 1e-12)
        realised = np.asarray(runs.error[:, 0])
        assert abs(realised.mean() - error) < 4 * realised.std() / np.sqrt(realised.size)


# What users share.


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 3, 12])
def test_given_the_shared_noise_an_error_is_a_noncentral_chi_square_variable(dim):
    node, weight = chi_square_rule(dim)
    mean = pj.GaussianMean(1.5, dim=dim)
    for n, tolerance, releases in itertools.product((2.0, 30.0), (2.0, 25.0), (2, 5)):
        by = rule(tolerance, releases)
        law = jax.vmap(lambda s, by=by, n=n: leak_distribution(mean, by, jnp.asarray(n), mean.noise, s))(
            jnp.asarray(node)
        )
        inside, outside = np.ceil(releases / 2), np.floor(releases / 2)
        own = (n - 1) ** 2 * 1.5**2 * releases / n / outside
        shared = n**2 * 1.5**2 * releases / n / inside * node
        exact = scipy.stats.ncx2.cdf(tolerance**2 / own, dim, shared / own)
        np.testing.assert_allclose(law.leaked, exact, rtol=1e-7, atol=1e-10)
        np.testing.assert_allclose(
            weight @ law.leaked, pj.leak_probability(mean, rule(tolerance, releases), n), atol=1e-5
        )


def attacked(rng, gamma, n, dim, tolerance, releases, trials):
    """The leaked count and the published squared error of single rounds, from records, means and the estimate."""
    inside, outside = int(np.ceil(releases / 2)), releases // 2
    std = gamma * np.sqrt(releases / n)
    counts, errors = np.zeros(trials), np.zeros(trials)
    for trial in range(trials):
        records = rng.normal(size=(n, dim))
        of_all = records.mean(axis=0) + std * rng.normal(size=(inside, dim))
        without = (records.sum(axis=0) - records) / (n - 1)
        seen = without[:, None] + std * rng.normal(size=(n, outside, dim))
        estimate = n * of_all.mean(axis=0) - (n - 1) * seen.mean(axis=1)
        counts[trial] = np.sum(np.linalg.norm(estimate - records, axis=-1) <= tolerance)
        errors[trial] = np.sum(of_all[0] ** 2)
    return counts, errors


@pytest.mark.slow
@pytest.mark.parametrize("releases", [2, 5])
@pytest.mark.parametrize("solver", ["counts", "users"])
def test_a_round_leaks_what_attackers_of_actual_records_reconstruct(solver, releases):
    n, dim, gamma, tolerance, trials = 12, 3, 1.0, 12.0, 4000
    counts, errors = attacked(np.random.default_rng(0), gamma, n, dim, tolerance, releases, trials)
    scenario = loop(gamma, tolerance, releases, dim=dim, population=n, rounds=1)
    simulate = {"counts": pj.simulate_counts, "users": pj.simulate_users}[solver]
    runs = simulate(scenario, key=jax.random.key(1), trials=trials)
    found, error = n * np.asarray(runs.leak_probability[:, 0]), np.asarray(runs.error[:, 0])
    assert scipy.stats.chisquare(*histograms(found, counts)).pvalue > 1e-3
    assert scipy.stats.ks_2samp(error, errors).pvalue > 1e-3
    both = np.corrcoef(found, error)[0, 1], np.corrcoef(counts, errors)[0, 1]
    assert abs(both[0] - both[1]) < 4 * np.sqrt(2 / trials)
    if releases == 2:
        assert both[0] < -0.2  # little noise in what all see: many leaked, a good release
    p = counts.mean() / n
    assert np.var(found) > 1.5 * n * p * (1 - p)  # so far from independent that a binomial would not do


def histograms(found, expected):
    """Counts of the values of `found`, and those of `expected` smoothed so that neither has an empty place."""
    edges = np.unique(np.quantile(expected, np.linspace(0, 1, 7)[1:-1]))
    one, other = (np.bincount(np.searchsorted(edges, x), minlength=edges.size + 1) for x in (found, expected))
    # Both are samples of one size: the variance of a difference is twice that of either.
    return (one + other) / 2 + (one - other) / np.sqrt(2), (one + other) / 2


@pytest.mark.slow
def test_counts_law_and_mean_field_agree():
    scenario = loop(1.0, 9.0, releases=4, dim=4, population=60.0, rounds=3, cap=90)
    runs = pj.simulate_counts(scenario, key=jax.random.key(0), trials=4000)
    law = pj.population_law(scenario)
    population = np.asarray(runs.population)
    error = population.std(axis=0) / np.sqrt(4000)
    assert np.all(np.abs(population.mean(axis=0) - law.mean)[1:] < 4 * error[1:])
    np.testing.assert_allclose(population.std(axis=0)[1:], law.std[1:], rtol=0.05)
    assert np.asarray(law.std)[1] > 3  # users of a round are leaked together or not at all, nearly
    path = pj.mean_field(scenario)
    close(law.mean[:2], path.population[:2], 1e-3)


@pytest.mark.slow
def test_users_are_counted_alike_over_rounds():
    scenario = loop(1.0, 9.0, releases=3, dim=4, population=40.0, rounds=3)
    users = pj.simulate_users(scenario, key=jax.random.key(0), trials=2000)
    counts = pj.simulate_counts(scenario, key=jax.random.key(1), trials=2000)
    assert scipy.stats.ks_2samp(users.population[:, -1], counts.population[:, -1]).pvalue > 1e-3
    assert scipy.stats.ks_2samp(users.error[:, -1], counts.error[:, -1]).pvalue > 1e-3


@pytest.mark.parametrize("solver", ["mean-field", pytest.param("law", marks=pytest.mark.slow), "counts"])
def test_nobody_leaves_when_each_round_is_one_statistic(solver):
    scenario = loop(1.0, 1e3, releases=1, rounds=3, population=20.0, recruit=0.0)
    path = {
        "mean-field": pj.mean_field,
        "law": pj.population_law,
        "counts": functools.partial(pj.simulate_counts, key=jax.random.key(0), trials=3),
    }[solver](scenario)
    users = path.mean if solver == "law" else path.population
    np.testing.assert_allclose(users, 20, rtol=1e-12)


@pytest.mark.slow
def test_a_law_without_leaks_has_derivatives():
    scenario = loop(1.0, 1e-20, releases=1, rounds=2, population=5.0, cap=20)
    slope = jax.grad(lambda q: pj.CumulativeError(solver="law")(scenario.replace(leave=q)))(0.3)
    np.testing.assert_allclose(slope, 0, atol=1e-300)  # of what can't be a number


# How many statistics per round?


@pytest.mark.slow
def test_the_best_noise_against_the_number_of_statistics():
    scenario = loop(1.0, 3.0, dim=12, population=200.0, rounds=10, cap=2000)
    best = pj.sweep(pj.tune, scenario, {"releases": [2, 3, 4, 8]}, fields=["noise", "value", "status"])
    value, noise = best.value.values, best.noise.values
    assert np.all(best.status == pj.Status.INTERIOR)
    assert np.all(np.diff(value) > 0)  # each further statistic costs error
    # An even number leaks as two do for the same gamma, but errs by L / 2 times the noise: gamma falls.
    assert noise[0] > noise[2] > noise[3]
    one = pj.tune(scenario.replace(releases=3))
    close(noise[1], one.noise, 1e-6)
    slopes = pj.sensitivities(one)
    step = 1e-3
    moved = [pj.tune(scenario.replace(releases=3, tolerance=3.0 + h)).noise for h in (step, -step)]
    close(slopes.values["tolerance"], (moved[0] - moved[1]) / (2 * step), 1e-4)
    assert set(slopes.values) >= {"tolerance", "releases", "leave", "population"}


def test_a_scenario_file_keeps_it(tmp_path):
    scenario = loop().replace(leakage=rule(3.0, 6, accountant="basic", delta=1e-6))
    pj.save_scenario(scenario, tmp_path / "mine.toml")
    again = pj.load_scenario(tmp_path / "mine.toml")
    assert jax.tree.structure(again) == jax.tree.structure(scenario)
    for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(scenario), strict=True):
        np.testing.assert_array_equal(one, other)
    assert float(again.replace(releases=4).leakage.releases) == 4


def test_float32_in_float32_out():
    scenario = loop(1.0, 9.0, rounds=3).astype("float32")
    path = pj.mean_field(scenario)
    assert path.population.dtype == "float32"
    finite(path.population, path.error)
    close(pj.mean_field(scenario).population, pj.mean_field(scenario.astype("float64")).population, 1e-4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: rule(0.0), r"`tolerance` must lie in \(0, inf\), but is 0\."),
        (lambda: rule(1.0, 0), r"`releases` must lie in \[1, inf\), but is 0\."),
        (lambda: rule(1.0, 2.5), r"`releases` must be a whole number, but is 2\.5\."),
        (
            lambda: rule(1.0, accountant="pure"),
            '`accountant` must be "zcdp" or "rdp" or "gdp" or "basic", but is "pure"',
        ),
        (lambda: rule(1.0, accountant="basic"), '`delta` must be given with accountant "basic", and only then'),
        (lambda: rule(1.0, delta=1e-5), '`delta` must be given with accountant "basic", and only then'),
        (lambda: rule(1.0, accountant="basic", delta=1.0), r"`delta` must lie in \(0, 1\), but is 1\."),
        (lambda: response().replace(leakage=rule(1.0)), r"pairs .*\(GaussianMean, ReconstructedWithin\)"),
        (lambda: pj.tune(loop(), constraint="theorem-2"), '"theorem-2" for LikelihoodRatioAbove only'),
        (
            lambda: pj.sweep(pj.mean_field, loop(), {"releases": [2, 2.5]}),
            r"`releases` must be a whole number, but is 2\.5\. That is cell 1: releases = 2\.5",
        ),
        (lambda: pj.population_law(loop().replace(covariance=[1.0, 1.0, 1.0, 2.0])), "use `simulate_users`"),
        (lambda: pj.mean_field(loop().replace(tolerance=[1.0, 2.0])), "`tolerance` must be one number"),
    ],
)
def test_bad_input_is_one_clear_line(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_traced_number_of_statistics_is_checked_when_it_runs():
    with pytest.raises(Exception, match="`releases` must be a whole number"):
        jax.block_until_ready(jax.jit(lambda x: rule(1.0, x).releases)(2.5))


@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 1e-11), ("float32", 1e-4)])
@pytest.mark.parametrize("degrees", [1, 2, 3, 12, 101, 2000])
def test_both_tails_of_a_chi_square_law_are_exact_relative_to_themselves(degrees, dtype, rtol):
    x = degrees * np.append(np.geomspace(1e-3, 20, 60), [1 - 1e-9, 1.0, 1 + 1e-9])
    found = jax.jit(tails, static_argnums=1)(jnp.asarray(x, dtype), degrees)
    for tail, exact in zip(found, (scipy.stats.chi2.cdf(x, degrees), scipy.stats.chi2.sf(x, degrees)), strict=True):
        known = exact > (1e-290 if dtype == "float64" else 1e-30)
        close(tail[known], exact[known], rtol * max(1, degrees / 100), of=x[known])
        assert np.all(np.asarray(tail)[~known] <= 1e-29)
