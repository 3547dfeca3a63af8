"""The count-level simulator: what a draw depends on, and the fluctuation that all users share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from cases import TWO_LEAKED, TWO_USERS
from scenarios import gaussian, response

import perfjax as pj
from perfjax._draws import chi_square_from_bits, normal_from_bits
from perfjax.montecarlo._inputs import initial_users


@pytest.fixture(params=["gaussian", "response"])
def scenario(request):
    if request.param == "gaussian":
        return gaussian(2.0, rounds=6, population=300.0)
    return response(1.0, rounds=6, population=300.0)


def simulate(scenario, trials=8, key=0):
    return pj.simulate_counts(scenario, key=jax.random.key(key), trials=trials)


@pytest.mark.slow
def test_a_draw_depends_on_key_trial_and_release_only(scenario):
    few, many = simulate(scenario, 3), simulate(scenario, 40)
    for one, other in zip(jax.tree.leaves(few)[:3], jax.tree.leaves(many)[:3], strict=True):
        np.testing.assert_array_equal(one, other[:3])
    shorter = simulate(scenario.replace(rounds=3), 3)
    np.testing.assert_array_equal(shorter.population, few.population[:, :4])


@pytest.mark.slow
def test_parts_are_the_whole_bit_for_bit(scenario):
    whole = simulate(scenario, 11)
    parts = [pj.simulate_counts(scenario, key=jax.random.key(0), trials=4, first_trial=k) for k in (0, 4, 8)]
    for name in ("population", "leak_probability", "error", "expected_error"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(joined[:11], getattr(whole, name))


@pytest.mark.slow
def test_trials_and_releases_share_no_noise(scenario):
    runs = simulate(scenario, 2000)
    share = np.asarray(runs.leak_probability[:, :2])
    assert len(np.unique(runs.error[:, 0])) == 2000
    assert abs(np.corrcoef(share[:, 0], share[:, 1])[0, 1]) < 0.1
    assert not np.array_equal(runs.error, simulate(scenario, 2000, key=1).error)


def test_no_key_is_used_twice(scenario):
    with jax.debug_key_reuse(True):
        simulate(scenario)


@pytest.mark.slow
def test_populations_are_whole_numbers_between_floor_and_cap(scenario):
    population = np.asarray(simulate(scenario.replace(floor=200.0, cap=310.0), 200).population)
    np.testing.assert_array_equal(population, np.round(population))
    assert population.min() >= 200
    assert population.max() <= 310


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-8), ("float32", 3e-6)])
@pytest.mark.parametrize("degrees", [1, 2, 3, 12, 300])
def test_a_chi_square_number_is_the_quantile_of_its_word(degrees, dtype, tolerance):
    words = jnp.asarray(np.linspace(1, 2**32 - 2, 4001).astype(np.uint32))
    found = jax.vmap(lambda word: chi_square_from_bits(word, degrees, jnp.dtype(dtype)))(words)
    z = np.asarray(normal_from_bits(words, jnp.dtype("float64")))
    assert found.dtype == dtype
    if degrees == 1:
        np.testing.assert_allclose(found, z * z, rtol=tolerance, atol=1e-6 if dtype == "float32" else 0)
        return
    low, high = (
        scipy.stats.chi2.ppf(scipy.stats.norm.cdf(z), degrees),
        scipy.stats.chi2.isf(scipy.stats.norm.sf(z), degrees),
    )
    np.testing.assert_allclose(found, np.where(z < 0, low, high), rtol=tolerance)


def test_two_users_are_leaked_together_as_often_as_records_say():
    """Over all words, in steps of a ten-thousandth."""
    mechanism, leakage, *numbers = TWO_USERS
    words = jnp.asarray(np.linspace(0, 2**32 - 1, 10_000).astype(np.uint32))

    @jax.jit
    def counts(n, noise, shared):
        leaks = pj.leakage.leak_distribution(mechanism, leakage, n, noise, shared)
        return jax.vmap(lambda word: pj.leakage.leaked_count(n, leaks, word, independent=False))(words)

    shares = np.bincount(np.asarray(counts(*numbers)).astype(int)) / words.size
    np.testing.assert_allclose(shares, TWO_LEAKED, atol=1.1e-4)


@pytest.mark.parametrize("rates", [{"recruit": 1.0, "recruiters": "everyone"}, {"recruit": 0.0, "recruit_leaked": 1.0}])
def test_leaked_users_recruit_where_they_should(rates):
    """At a large budget all are leaked; none leaves, and every user brings another one."""
    scenario = response(30.0, population=40.0, leave=0.0, cap=1000, rounds=2, **rates)
    runs = pj.simulate_counts(scenario, key=jax.random.key(0), trials=2)
    np.testing.assert_array_equal(runs.population, [[40, 80, 160]] * 2)
    assert np.all(runs.leak_probability == 1)


def sampled_releases(mechanism, leakage, users, draws=4000):
    """Leaked counts and realised errors of many releases to as many users."""
    release = pj.leakage.pair_of(mechanism, leakage).count_release
    words = jnp.asarray(np.random.default_rng(1).integers(0, 2**32, (draws, 4), dtype=np.uint32))
    one = jax.jit(jax.vmap(lambda x: release(mechanism, leakage, jnp.asarray(users), mechanism.noise, x)))
    return (np.asarray(found) for found in one(words))


@pytest.mark.parametrize("clip", [False, True])
def test_a_release_of_bits_errs_and_leaks_as_often_as_stated(clip):
    mechanism = pj.RandomizedResponse(1.0, 0.3, clip_estimate=clip)
    leaked, error = sampled_releases(mechanism, pj.TrueBitKept(), 3.0)
    for sample, mean in ((leaked, 3 / (1 + np.exp(-1))), (error, float(mechanism.error(3.0)))):
        assert abs(sample.mean() - mean) < 4 * sample.std() / np.sqrt(sample.size)
    # Without clipping: the variance of the coin of each user, and that of the bits.
    unclipped = 1 / (4 * np.sinh(0.5) ** 2) / 3 + 0.3 * 0.7 / 3
    assert (error.mean() < 0.8 * unclipped) == clip


def test_a_released_count_that_leaks_is_a_large_one():
    """All are leaked where the noise Z is above a level: of the error, that part is an integral over Z."""
    mechanism, leakage, n, sigma, shift = pj.ShiftedLogCount(0.5, 3.0), pj.LikelihoodRatioAbove(0.1), 10.0, 0.5, 3.0
    leaked, error = sampled_releases(mechanism, leakage, n)
    share = float(pj.leak_probability(mechanism, leakage, n))
    z = np.linspace(scipy.stats.norm.isf(share), 12, 100_001)
    err = np.abs(np.maximum((n + shift) * np.exp(sigma * z - sigma**2) - shift, 0) - n) / n
    of_leaked = np.trapezoid(err * scipy.stats.norm.pdf(z), z)
    assert 0.1 < share < 0.6
    for sample, mean in ((leaked / n, share), (error * leaked / n, of_leaked), (error, float(mechanism.error(n)))):
        assert abs(sample.mean() - mean) < 4 * sample.std() / np.sqrt(sample.size)


def test_runs_start_with_a_whole_number_of_the_mean_asked_for():
    users = np.asarray(
        jax.jit(jax.vmap(lambda key: initial_users(jnp.asarray(2.3), key)))(jax.random.split(jax.random.key(2), 4000))
    )
    assert set(users) == {2, 3}
    assert abs(users.mean() - 2.3) < 4 * users.std() / np.sqrt(users.size)


@pytest.mark.slow
def test_users_share_the_noise():
    """One round at 20,000 users: the leaked count varies far more than independent leaks would."""
    scenario = gaussian(1.0, dim=12, outside="recomputed", population=20_000.0, rounds=1)
    leaked = 20_000 * np.asarray(simulate(scenario, 20_000).leak_probability[:, 0])
    p = leaked.mean() / 20_000
    assert 850 < leaked.std() < 1050
    assert np.sqrt(20_000 * p * (1 - p)) < 60


@pytest.mark.slow
def test_realised_error_has_the_expected_mean(scenario):
    runs = simulate(scenario, 20_000)
    error, expected = np.asarray(runs.error[:, 0]), float(runs.expected_error[0, 0])
    assert abs(error.mean() - expected) < 4 * error.std() / np.sqrt(error.size)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_billion_users(dtype):
    scenario = gaussian(0.001, dim=12, population=1e9, rounds=3, cap=1e10).astype(dtype)
    runs, path = simulate(scenario, 4000), pj.mean_field(scenario.astype("float64"))
    last = np.asarray(runs.population[:, -1], float)
    assert runs.population.dtype == dtype
    assert abs(last.mean() / path.population[-1] - 1) < 4 * last.std() / last.mean() / np.sqrt(4000)


def test_bad_input_is_one_clear_line(scenario):
    with pytest.raises(ValueError, match="`trials` must be an integer of at least 1, but is 0"):
        simulate(scenario, 0)
    with pytest.raises(ValueError, match="`first_trial` must be an integer of at least 0, but is -1"):
        pj.simulate_counts(scenario, key=jax.random.key(0), trials=1, first_trial=-1)
    with pytest.raises(ValueError, match=r"`first_trial` must be at most 2\^31 - `trials`, but is 2147483648"):
        pj.simulate_counts(scenario, key=jax.random.key(0), trials=1, first_trial=2**31)
    with pytest.raises(ValueError, match="`key`"):
        pj.simulate_counts(scenario, key=jnp.zeros(2, jnp.uint32), trials=1)
    with pytest.raises(ValueError, match="`key` must be given"):
        pj.CumulativeError(solver="counts", trials=5)(scenario)
    with pytest.raises(ValueError, match="`trials` must be given"):
        pj.CumulativeError(solver="counts")


def test_users_have_no_gradient():
    scenario = gaussian(2.0, rounds=1, population=20.0)
    with pytest.raises(ValueError, match="simulate_users has no gradient"):
        jax.grad(
            lambda q: pj.simulate_users(scenario.replace(leave=q), key=jax.random.key(0), trials=2).population.sum()
        )(0.3)


@pytest.mark.slow
def test_a_run_that_collapsed_stays_so():
    """Everyone recruits: a population can come back from its floor. Each scenario of a batch has its own."""
    scenario = gaussian(1.0, rounds=6, population=6.0, leave=0.9, recruit=0.3, recruiters="everyone")

    def run(floor):
        return pj.simulate_counts(scenario.replace(floor=floor), key=jax.random.key(0), trials=50)

    floors = jnp.asarray([0.0, 1.0, 3.0])
    runs = jax.vmap(run)(floors)
    lowest = np.minimum.accumulate(np.asarray(runs.population), axis=-1)
    np.testing.assert_array_equal(runs.collapsed, lowest <= np.maximum(floors, 1)[:, None, None])
    assert np.any(np.asarray(runs.population)[runs.collapsed] > 3)
