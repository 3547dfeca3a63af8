"""The law of the population: exact where it can be, within its stated error elsewhere, and what it refuses."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from assertions import close, finite
from cases import TWO_LEAKED, TWO_USERS, enumerated_rows, leaked_in_the_law
from scenarios import gaussian, published, response

import perfjax as pj
from perfjax.law import chain_of, law_of
from perfjax.law._kernel import _normal_rows, _rounded_normal
from perfjax.law._law import _extrapolated
from perfjax.law._nodes import on_every_other
from perfjax.law._normal import density_and_tail
from perfjax.leakage import LeakDistribution


@pytest.fixture(scope="module")
def decline():
    """A population that may collapse or not."""
    return gaussian(1.0, dim=3, threshold=0.1, leave=0.5, recruit=0.4, population=30.0, rounds=8, cap=150.0)


@pytest.mark.parametrize(("dtype", "tolerance", "far"), [("float64", 1e-12, 36.0), ("float32", 5e-6, 12.0)])
def test_the_density_and_tail_of_the_normal(dtype, tolerance, far):
    z = jnp.linspace(-far, far, 4001, dtype=dtype)
    exact = np.abs(np.asarray(z, float))
    density, tail = density_and_tail(z)
    np.testing.assert_allclose(density, scipy.stats.norm.pdf(exact), rtol=tolerance)
    np.testing.assert_allclose(tail, scipy.stats.norm.sf(exact), rtol=tolerance)


def test_rows_are_distributions_and_keep_the_mean(decline):
    law = pj.population_law(decline)
    np.testing.assert_allclose(np.sum(law.probability, axis=-1), 1, rtol=1e-12)
    assert np.all(np.asarray(law.probability) >= 0)
    np.testing.assert_allclose(law.probability @ law.nodes, law.mean, rtol=1e-12)


@pytest.mark.study
def test_one_release_has_the_exact_expected_population():
    for recruiters in ("spared", "everyone"):
        scenario = gaussian(2.0, rounds=1, population=500.0, recruiters=recruiters)
        law, path = pj.population_law(scenario), pj.mean_field(scenario)
        np.testing.assert_allclose(law.mean, path.population, rtol=1e-4)  # 12 nodes for the shared noise


@pytest.mark.study
@pytest.mark.parametrize(("cap", "size"), [(300.0, 320), (20_000.0, 1280)])
def test_a_row_holds_all_of_its_mass_however_dense_the_nodes(cap, size):
    scenario = gaussian(1.0, dim=2, threshold=0.1, leave=0.9, recruit=0.9, population=140.0, rounds=1, cap=cap)
    law = eqx.filter_jit(law_of)(scenario, size)
    runs = pj.simulate_counts(scenario, key=jax.random.key(0), trials=20_000)
    last = np.asarray(runs.population[:, -1])
    assert abs(law.mean[-1] - last.mean()) < 4 * last.std() / np.sqrt(last.size)
    assert abs(law.std[-1] / last.std() - 1) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("recruiters", ["spared", pytest.param("everyone", marks=pytest.mark.slow)])
def test_law_and_counts_agree(decline, recruiters):
    scenario = decline.replace(recruiters=recruiters)
    law = pj.population_law(scenario)
    runs = pj.simulate_counts(scenario, key=jax.random.key(0), trials=40_000)
    last = np.asarray(runs.population[:, -1])
    deviation = last.std() / np.sqrt(last.size)
    assert abs(last.mean() - law.mean[-1]) < 4 * deviation
    assert abs(last.std() / law.std[-1] - 1) < 0.02
    collapsed = np.mean(np.asarray(runs.population).min(axis=1) <= 1)
    assert abs(collapsed - law.collapse_probability[-1]) < 4 * np.sqrt(collapsed * (1 - collapsed) / last.size) + 1e-4
    users, count = np.unique(last, return_counts=True)
    middle = (np.cumsum(count) - count / 2) / last.size
    at_ends = count[0] / last.size, 1 - count[-1] / last.size
    levels = np.array([x for x in (0.1, 0.3, 0.5, 0.7, 0.9) if at_ends[0] < x < at_ends[1]])
    assert levels.size > 1
    below = np.interp(law.quantile(levels)[:, -1], users, middle)
    assert np.all(np.abs(below - levels) < 4 * np.sqrt(levels * (1 - levels) / last.size))
    error = np.asarray(runs.expected_error).sum(axis=1)
    assert abs(error.mean() - law.expected_error.sum()) < 4 * error.std() / np.sqrt(last.size)


@pytest.mark.slow
def test_nothing_happens_when_nobody_leaves_or_joins():
    scenario = gaussian(leave=0.0, recruit=0.0, rounds=3, population=77.0)
    law = pj.population_law(scenario)
    np.testing.assert_allclose(law.mean, 77)
    np.testing.assert_allclose(law.collapse_probability, 0, atol=1e-12)


@pytest.mark.slow
def test_everyone_leaves_when_all_are_leaked_and_leave():
    law = pj.population_law(gaussian(0.0, leave=1.0, rounds=2, population=30.0))
    np.testing.assert_allclose(law.mean, [30, 1, 1], rtol=1e-9)
    np.testing.assert_allclose(law.collapse_probability, [0, 1, 1], rtol=1e-9)
    np.testing.assert_allclose(law.collapse_time, 1, rtol=1e-9)


@pytest.mark.study
def test_the_error_estimate_is_not_understated():
    scenario = gaussian(4.5, dim=12, leave=0.45, recruit=0.11, population=1000.0, rounds=20)
    rough, fine = (pj.population_law(scenario, rtol=rtol) for rtol in (0.2, 0.002))
    total, truth = rough.expected_error.sum(), fine.expected_error.sum()
    assert abs(total / truth - 1) < rough.relative_error + fine.relative_error


@pytest.mark.slow
def test_a_schedule_of_equal_noise_is_the_constant(decline):
    constant, schedule = pj.population_law(decline), pj.population_law(decline, noise=[1.0] * 9)
    np.testing.assert_allclose(schedule.expected_error, constant.expected_error, rtol=1e-12)


def test_quantiles_bracket_the_mean(decline):
    law = pj.population_law(decline)
    low, high = law.quantile(jnp.asarray([0.05, 0.95]))
    assert low[0] == high[0] == decline.population
    assert np.all(low <= law.mean + 1e-9)
    assert np.all(law.mean <= high + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.study)])
def test_finite_with_its_gradient_at_every_edge(dtype):
    def summed(scenario):
        law = law_of(scenario, 160)
        return jnp.sum(law.expected_error), (law.mean[-1], law.std[-1], law.collapse_probability[-1])

    solve = eqx.filter_jit(eqx.filter_value_and_grad(summed, has_aux=True))
    for n, noise, q, r in itertools.product((1.0, 2.0, 3.0, 1000.0, 1e9), (0.0, 1e-6, 1.0, 1e6), (0, 0.3, 1), (0, 1)):
        scenario = gaussian(noise, dim=12, leave=q, recruit=r, population=n, rounds=3, cap=1e10).astype(dtype)
        finite(solve(scenario))


@pytest.mark.study
def test_float32_agrees(decline):
    for scenario in (decline, gaussian(2.0, dim=12, population=1000.0, cap=20_000.0)):
        single, double = (pj.population_law(scenario.astype(dtype)) for dtype in ("float32", "float64"))
        assert single.mean.dtype == jnp.float32
        np.testing.assert_allclose(single.mean, double.mean, rtol=1e-4)
        np.testing.assert_allclose(single.std, double.std, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(single.expected_error, double.expected_error, rtol=1e-3)
        np.testing.assert_allclose(single.collapse_probability, double.collapse_probability, atol=1e-5)


def test_two_users_are_leaked_together_as_often_as_records_say():
    np.testing.assert_allclose(leaked_in_the_law(*TWO_USERS, counts=4), [*TWO_LEAKED, 0], atol=1e-6)


def test_out_of_reach_is_an_error_that_names_the_way_out():
    for scenario in (gaussian(clip_radius=2.0), gaussian(covariance=np.arange(1.0, 11))):
        for solve in (pj.population_law, lambda s: pj.simulate_counts(s, key=jax.random.key(0), trials=2)):
            with pytest.raises(ValueError, match="simulate_users"):
                solve(scenario)


def test_bad_input_is_one_clear_line(decline):
    with pytest.raises(ValueError, match="`rtol` must be above 0, but is -1"):
        pj.population_law(decline, rtol=-1)
    with pytest.raises(ValueError, match=r"`rtol` must be None for a traced scenario, but is 0\.1"):
        jax.jit(lambda q: pj.population_law(decline.replace(leave=q), rtol=0.1).mean)(0.5)
    with pytest.raises(ValueError, match=r"`cap` must be at most 1e\+18 for the law of the population, but is inf"):
        pj.population_law(decline.replace(cap=np.inf))
    with pytest.raises(ValueError, match="`noise_scale`"):
        pj.population_law(decline, noise=[1.0, 2.0])
    with pytest.raises(ValueError, match=r"`p` must lie in \[0, 1\], but is 2"):
        pj.population_law(decline).quantile(2.0)


@pytest.mark.slow
def test_too_few_nodes_are_told_and_lead_to_no_negative_error():
    """Little noise and fast growth: on 80 nodes the extrapolation would end below 0."""
    scenario = published(0.483, 0.686, 0.05).replace(noise_scale=0.2)
    law = eqx.filter_jit(law_of)(scenario, 80)
    assert np.all(law.expected_error > 0)
    assert law.relative_error > 0.1


@pytest.mark.slow
def test_without_a_floor_the_expected_error_is_infinite_not_undefined(decline):
    """Everybody may leave, and nobody's error is infinite: not inf - inf, which comparing two spacings would make."""
    law = pj.population_law(decline.replace(leave=1.0, recruit=0.0, population=5.0, floor=0.0, cap=20_000.0))
    assert np.isfinite(law.expected_error[0])
    assert np.all(np.isinf(law.expected_error[1:]))
    assert law.relative_error == 0
    assert np.all(np.isfinite(law.surviving_error))
    assert np.all(np.isfinite(law.std))


@pytest.mark.slow
@pytest.mark.parametrize(("floor", "cap"), [(25.0, 400.0), (60.0, 400.0), (5.0, 30.0)])
def test_a_run_leaves_floor_and_cap_as_it_would_any_population(floor, cap):
    scenario = gaussian(1.0, dim=2, threshold=0.1, leave=0.8, recruit=0.5, population=28.0, rounds=6, floor=floor)
    scenario = scenario.replace(cap=cap, recruiters="everyone", recruit=0.35 if cap < 100 else 0.5)
    law = eqx.filter_jit(law_of)(scenario)  # without the whole-number nodes of a small cap
    last = np.asarray(pj.simulate_counts(scenario, key=jax.random.key(0), trials=20_000).population[:, -1])
    for found, sample in ((law.mean[-1], last), (law.std[-1] ** 2, (last - last.mean()) ** 2)):
        deviation = sample.std() / np.sqrt(last.size)
        assert abs(found - sample.mean()) < 4 * deviation
        assert deviation < 0.03 * sample.mean()


# Standard deviation and quantiles.

LEVELS = np.array([0.05, 0.25, 0.5, 0.75, 0.95])


def bits(**leaves):
    return response(**({"epsilon": 0.5, "leave": 0.1, "recruit": 0.2, "rounds": 30, "cap": 1e12} | leaves))


def test_the_spread_of_many_users_is_that_of_a_branching_process():
    """Every user becomes 0, 1 or 2 users, whatever the others do: Var(n_{t+1}) = C^2 Var(n_t) + E[n_t] s."""
    p = 1 / (1 + np.exp(-0.5))
    growth = 1.2 - 0.3 * p
    each = p * 0.9 + (1 - p) * (0.8 + 0.2 * 4) - growth**2
    for population in (1e3, 15_007.0, 1e6, 1e9):
        law, variance = pj.population_law(bits(population=population)), 0.0
        for release in range(1, 31):
            variance = growth**2 * variance + population * growth ** (release - 1) * each
            assert abs(law.std[release] / np.sqrt(variance) - 1) < 2e-4
        if population > 1e4:  # a normal, to the skewness of 1 / sqrt(n_0)
            normal = population * growth**30 + np.sqrt(variance) * scipy.stats.norm.ppf(LEVELS)
            assert np.all(np.abs(law.quantile(LEVELS)[:, -1] - normal) < 0.02 * np.sqrt(variance))
        assert np.all(law.std_error[1:] < 0.01 * law.std[1:])
        assert np.all(law.quantile_error[1:] < 0.04 * law.std[1:] + 1)


def test_at_the_cap_every_quantile_is_the_cap():
    law = pj.population_law(bits(population=15_007.0, cap=20_000.0))
    assert np.all(law.quantile(LEVELS)[:, -1] == 20_000)
    assert law.std[-1] < 0.01
    assert law.std_error[-1] + law.quantile_error[-1] < 0.002 * 20_000


EXACT = {
    "to the cap": bits(recruit=0.4),
    "at the cap": bits(recruit=0.166, population=190.0),
    "down": bits(leave=0.3, recruit=0.3),
    "critical": bits(leave=0.2, recruit=0.33, population=25.0),
    "at a floor": bits(leave=0.3, recruit=0.3, floor=30.0),
}


@pytest.fixture(scope="module")
def laws():
    """The law with bins and nodes, and the exact chain on whole numbers."""
    return eqx.filter_jit(lambda s: law_of(s, 20)), eqx.filter_jit(lambda s: law_of(s, 20, 200))


def test_one_release_of_a_thousand_bits_has_the_spread_of_each_alone(laws):
    """A user becomes 0, 1 or 2 with variance 0.137578, whatever the others do; nodes are dozens of users apart."""
    p = 1 / (1 + np.exp(-0.5))
    each = p * 0.9 + (1 - p) * (0.8 + 0.2 * 4) - (1.2 - 0.3 * p) ** 2
    np.testing.assert_allclose(each, 0.137578, rtol=1e-5)
    np.testing.assert_allclose(laws[0](bits(population=1000.0)).std[1], np.sqrt(1000 * each), rtol=2e-4)


@pytest.mark.parametrize("name", EXACT)
def test_spread_and_quantiles_are_within_their_errors_of_the_exact_chain(name, laws):
    scenario = EXACT[name].replace(cap=200.0)
    scenario = scenario if name in ("at the cap", "critical") else scenario.replace(population=60.0)
    found, exact = (law(scenario) for law in laws)
    apart = np.abs(found.std - exact.std)
    assert np.all(apart <= found.std_error)
    assert np.all(apart <= np.maximum(0.005 * exact.std, 2e-3 * exact.mean))
    assert np.all(np.abs(found.quantile(LEVELS) - exact.quantile(LEVELS)) <= found.quantile_error)
    assert not np.any(exact.std_error + exact.quantile_error)


SETTINGS = {f"{n:g} bits": bits(population=n) for n in (60.0, 1e3, 15_007.0, 1e6)}
SETTINGS |= {
    f"{n:g} users, noise {x:g}": published().replace(noise_scale=x, population=n, cap=cap, rounds=30)
    for n, x, cap in ((1e3, 3.6, 2e4), (1e3, 4.5, 2e4), (1e3, 8.0, 2e4), (15_007.0, 3.6, 1e8), (1e6, 5.6, 1e8))
}
SETTINGS |= {
    "near collapse": gaussian(
        1.45, dim=12, threshold=0.05, leave=0.9, recruit=0.3, population=1000.0, rounds=30, cap=20_000.0
    ),
    "reflected at the cap": bits(population=19_000.0, cap=20_000.0, recruit=0.166, rounds=40),
    "all at the cap": pj.preset("breach-survey").replace(noise_scale=2.0, rounds=25),
}


@pytest.mark.study
@pytest.mark.parametrize("name", SETTINGS)
def test_spread_and_quantiles_are_those_of_counts(name):
    scenario, key = SETTINGS[name], jax.random.key(1)
    parts = [pj.simulate_counts(scenario, key=key, trials=20_000, first_trial=20_000 * i) for i in range(5)]
    runs, law = np.concatenate([np.asarray(part.population) for part in parts]), pj.population_law(scenario)
    for release in (1, 2, 5, 10, scenario.rounds):
        users, quantiles = runs[:, release], law.quantile([0.05, 0.95])[:, release]
        std = users.std()
        sampled = np.sqrt(np.mean((users - users.mean()) ** 4) / users.size) / max(2 * std, 1e-9)
        assert abs(law.std[release] - std) < 0.02 * std + 4 * sampled + 0.01
        np.testing.assert_allclose(quantiles, np.quantile(users, [0.05, 0.95]), rtol=0.02)


@pytest.mark.slow
def test_one_release_of_a_thousand_published_users_has_the_spread_of_its_runs():
    scenario, key = published().replace(noise_scale=3.6, rounds=1), jax.random.key(2)
    parts = [pj.simulate_counts(scenario, key=key, trials=20_000, first_trial=20_000 * i) for i in range(10)]
    runs = np.concatenate([np.asarray(part.population[:, 1]) for part in parts])
    found = pj.population_law(scenario).std[1]
    assert abs(found / runs.std() - 1) < 4 / np.sqrt(2 * runs.size)
    assert abs(found - 28.513) < 0.005  # 28.61 +- 0.08 in 73,200 releases to records, by NumPy


@pytest.mark.parametrize("objective", [pj.CumulativeError, pytest.param(pj.FinalError, marks=pytest.mark.slow)])
def test_the_derivative_without_a_floor_is_its_central_difference(objective):
    """Where nobody is left the error is infinite, and a penalty takes its place: in the derivative, too."""
    base, names = response(0.8, population=20.3, rounds=4, floor=0.0, cap=40.0), ("leave", "recruit", "epsilon")
    objective = objective(solver="law", collapsed="penalty", penalty=2.0).prepared(base)

    @jax.jit
    def value(x):
        return objective.evaluate(base.replace(**dict(zip(names, x, strict=True)))).log_value

    at = jnp.asarray([0.5, 0.4, 0.8])
    for i, found in enumerate(jax.jit(jax.grad(value))(at)):
        step = jnp.zeros(3).at[i].set(1e-4 * at[i])
        difference = (8 * (value(at + step) - value(at - step)) - value(at + 2 * step) + value(at - 2 * step)) / (
            12 * step[i]
        )
        assert abs(found / difference - 1) < 1e-8


@pytest.mark.parametrize("recruiters", ["spared", "everyone"])
def test_few_users_are_enumerated(recruiters):
    """Every quantity of two releases after the first one, from three users, with another noise at each."""
    q, r, cap, epsilons = 0.6, 0.3, 5, np.asarray([0.5, 1.5, 1.0])
    scenario = response(population=3.0, leave=q, recruit=r, recruiters=recruiters, cap=cap, rounds=2)
    law = pj.population_law(scenario, noise=jnp.asarray(epsilons))
    n = np.arange(cap + 1)
    every = alive = (n == 3).astype(float)
    for t, epsilon in enumerate(epsilons):
        error = np.append(0, [float(scenario.error(k, epsilon)) for k in n[1:]])
        mean = every @ n
        found = (law.mean[t], law.std[t] ** 2, law.expected_error[t], law.surviving_error[t])
        close(found, [mean, every @ (n - mean) ** 2, every @ error, alive @ error], 1e-9)
        close(law.collapse_probability[t], 1 - np.sum(alive), 1e-9)
        rows = enumerated_rows(1 / (1 + np.exp(-epsilon)), q, r, cap, recruiters)
        every, alive = every @ rows, np.where(n <= 1, 0, alive @ rows)
    close(law.collapse_time, 1 + (1 - law.collapse_probability[1]), 1e-9)  # of two releases


def test_a_chain_of_few_users_costs_what_its_runs_do():
    """Errors of runs that never collapsed, and the penalty for every release from a collapse on."""
    q, r, cap, epsilon, penalty = 0.6, 0.3, 5, 0.8, 7.0
    scenario = response(epsilon, population=3.0, leave=q, recruit=r, cap=cap, rounds=3)
    n = np.arange(cap + 1)
    error = np.append(0, [float(scenario.error(k, epsilon)) for k in n[1:]])
    rows = enumerated_rows(1 / (1 + np.exp(-epsilon)), q, r, cap, "spared")
    alive, expected = (n == 3).astype(float), 0.0
    for _ in range(scenario.rounds + 1):
        expected += alive @ error + penalty * (1 - np.sum(alive))
        alive = np.where(n <= 1, 0, alive @ rows)
    chain = chain_of(scenario, penalty=jnp.asarray(penalty))
    close(jax.jit(lambda x: chain.value(x))(jnp.full(4, epsilon)), expected, 1e-9)


def test_weights_go_to_the_nearer_of_every_other_node():
    """All of them at 83, whose neighbours that stay are 80 and 90."""
    nodes = jnp.append(jnp.arange(80.0), jnp.asarray([80.0, 83.0, 90.0]))
    found = on_every_other(nodes, jnp.zeros(83).at[81].set(1.0))
    close(found[80:], [0.7, 0.3], 1e-12)
    assert not np.any(found[:80])


def test_a_row_of_many_users_has_the_moments_of_its_normal():
    """On whole numbers the hat functions add the variance of a uniform's interpolation, 1/6."""
    one = [jnp.asarray([[x]]) for x in (1.01, 0.3, 1.0)]
    row = _normal_rows(jnp.asarray([500.0]), *one, jnp.arange(1001.0))[0]
    mean = row @ np.arange(1001.0)
    close([np.sum(row), mean, row @ (np.arange(1001.0) - mean) ** 2], [1, 505, 150 + 1 / 6], 1e-6)
    capped = _normal_rows(jnp.asarray([500.0]), *one, jnp.arange(506.0))[0]
    close([np.sum(capped), capped[-1]], [1, np.sum(row[505:])], 0.02)  # the last node has all that would be above


@pytest.mark.parametrize("spread", [0.2, 0.05])
def test_a_count_of_leaked_users_has_the_mean_and_the_rounded_variance_of_its_normal(spread):
    k = jnp.arange(61.0)
    given = LeakDistribution(*(jnp.asarray(x) for x in (0.45, 0.55, spread, 0.2)))
    chance = _rounded_normal(jnp.asarray(60.0), given, k)
    mean = chance @ k
    close([np.sum(chance), mean, chance @ (k - mean) ** 2], [1, 27, 60 * spread + 1 / 12], 1e-6)


def test_the_error_of_nobody_is_infinite():
    """Everybody leaves: at release 1 some of two users may be left, or none, whose error is infinite."""
    law = pj.population_law(gaussian(1.0, population=2.0, leave=1.0, recruit=0.0, floor=0.0, cap=4.0, rounds=1))
    assert 0 < law.probability[1, 0] < 1
    assert np.isfinite(law.expected_error[0])
    assert law.expected_error[1] == np.inf


def test_an_error_that_goes_with_the_squared_spacing_is_extrapolated_away():
    truth, spacing = jnp.asarray([3.0, 50.0]), 0.4
    fine, coarse = (truth + jnp.asarray([1.0, -2.0]) * h**2 for h in (spacing, 2 * spacing))
    close(_extrapolated(fine, coarse), truth, 1e-12)
