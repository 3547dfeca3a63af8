"""Users, counts and law: three solvers of one model, compared on whole distributions and on their derivatives."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from cases import leaked_in_the_law
from scenarios import gaussian, published, response

import perfjax as pj
from perfjax.law import law_of
from perfjax.leakage.pairs import _mean_likelihood_ratio
from perfjax.leakage.pairs.blocks import Keys
from perfjax.montecarlo import _users, runs

RUNS, RELEASE = 5000, 5
mean_of = functools.partial(gaussian, rounds=RELEASE)
bits_of = functools.partial(response, rounds=RELEASE)


# One release to three users, by hand.


def test_three_bits_are_kept_as_often_by_every_solver():
    """Each with probability 3/4: none to three in 1, 9, 27 and 27 of 64."""
    scenario, n, draws = bits_of(np.log(3.0)), jnp.asarray(3.0), 4000
    exact, epsilon = np.array([1, 9, 27, 27]) / 64, scenario.mechanism.epsilon
    pieces = scenario.mechanism, scenario.leakage
    pair = pj.leakage.pair_of(*pieces)

    def of_counts(words):
        return pair.count_release(*pieces, n, epsilon, words)[0]

    def of_users(key):
        keys = Keys(*jax.random.split(key, 4))
        _, [(_, _, kept)] = pair.user_release(*pieces, jnp.int32(3), epsilon, 4, keys)
        return jnp.sum(kept(jnp.int32(0))[:3])

    of_law = leaked_in_the_law(*pieces, n, epsilon, n, counts=5)
    np.testing.assert_allclose(of_law, [*exact, 0], atol=1e-12)
    words = jnp.asarray(np.random.default_rng(0).integers(0, 2**32, (draws, 4), dtype=np.uint32))
    for one, random in ((of_counts, words), (of_users, jax.random.split(jax.random.key(0), draws))):
        kept = np.asarray(jax.jit(lambda x, one=one: jax.lax.map(one, x))(random)).astype(int)
        assert scipy.stats.chisquare(np.bincount(kept, minlength=4), draws * exact).pvalue > 1e-3


# Users against counts.

SETTINGS = {
    "5 users, 1 feature": mean_of(1.0, dim=1, population=5.0, leave=0.4, recruit=0.5),
    "10 users, 2 features": mean_of(1.0, dim=2, population=10.0, leave=0.9, recruit=0.9),
    "20 users, 3 features, floor": mean_of(
        2.0, dim=3, population=20.0, leave=0.6, recruit=0.2, floor=8.0, outside="recomputed"
    ),
    "100 users, everyone": mean_of(
        4.0, dim=12, population=100.0, leave=0.6, recruit=0.3, outside="recomputed", recruiters="everyone"
    ),
    "300 users, cap": mean_of(3.0, dim=5, population=300.0, leave=0.5, recruit=0.5, cap=950.0),
    "300 users, 50 features": mean_of(10.0, dim=50, population=300.0, leave=0.5, recruit=0.5),
    "1000 users, recomputed": mean_of(2.0, dim=4, population=1000.0, leave=0.45, recruit=0.3, outside="recomputed"),
    "5000 users, everyone": mean_of(1.0, dim=1, population=5000.0, leave=0.5, recruit=0.1, recruiters="everyone"),
    "8 bits, everyone, floor": bits_of(1.0, population=8.0, leave=0.6, recruit=0.2, recruiters="everyone", floor=3.0),
    "1000 bits, cap": bits_of(0.6, population=1000.0, leave=0.3, recruit=0.6, cap=1120.0),
}
LONG = {"300 users, 50 features", "1000 users, recomputed", "5000 users, everyone", "300 users, cap", "1000 bits, cap"}


def last_of_users(scenario, seed):
    with pytest.MonkeyPatch.context() as patch:
        if scenario.population < 500:  # which would fill a fraction of a block, and the rest of it costs as much
            patch.setattr(_users, "BLOCK_USERS", 256)
        users = pj.simulate_users(scenario.astype("float32"), key=jax.random.key(seed), trials=RUNS)
    return np.asarray(users.population[:, RELEASE], float)


def ks(found, expected):
    with warnings.catch_warnings():  # that ties leave the asymptotic law only
        warnings.simplefilter("ignore", RuntimeWarning)
        return scipy.stats.ks_2samp(found, expected).pvalue


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(x, marks=pytest.mark.study if x in LONG else ()) for x in SETTINGS])
def test_counts_are_distributed_as_users(name):
    scenario, who = SETTINGS[name], SETTINGS[name].participation
    for seed in (0, 1):
        users = last_of_users(scenario, seed)
        counts = pj.simulate_counts(scenario, key=jax.random.key(seed), trials=RUNS).population[:, RELEASE]
        counts = np.asarray(counts)
        assert ks(counts, users) > 0.001
        assert abs(counts.mean() - users.mean()) < 4 * np.hypot(counts.std(), users.std()) / np.sqrt(RUNS)
        assert len(np.unique(users)) > 3
    if "floor" in name:
        assert 0.1 < np.mean(users == who.floor) < 0.9
    if "cap" in name:
        assert 0.1 < np.mean(users == who.cap) < 0.9


@pytest.mark.slow
def test_independent_leaks_are_told_from_those_of_users(monkeypatch):
    """The test above has the power to see it when residuals that sum to zero are forgotten."""

    def independent(*args):
        law = pj.leakage.leak_distribution(*args)
        return law._replace(spread=law.leaked * law.spared, both=law.leaked**2)

    monkeypatch.setattr(_mean_likelihood_ratio, "leak_distribution", independent)
    scenario = SETTINGS["10 users, 2 features"]
    naive = jax.jit(lambda key: runs(scenario, key, RUNS).population[:, RELEASE])
    for seed in (0, 1):
        assert ks(np.asarray(naive(jax.random.key(seed))), last_of_users(scenario, seed)) < 1e-6


@pytest.mark.slow
def test_users_share_the_noise():
    """Record by record: a round at 20,000 users leaks with a spread of about 900, independent leaks with 57."""
    scenario = gaussian(1.0, dim=12, outside="recomputed", leave=0.0, recruit=0.0, population=20_000.0, rounds=1)
    scenario = scenario.astype("float32")
    users = pj.simulate_users(scenario, key=jax.random.key(0), trials=200).leak_probability.ravel()
    counts = pj.simulate_counts(scenario, key=jax.random.key(0), trials=20_000).leak_probability[:, 0]
    users, counts = 20_000 * np.asarray(users, float), 20_000 * np.asarray(counts, float)
    p = counts.mean() / 20_000
    independent = np.sqrt(20_000 * p * (1 - p))
    assert abs(users.mean() - counts.mean()) < 4 * users.std() / np.sqrt(users.size)
    assert abs(users.std() / counts.std() - 1) < 4 / np.sqrt(2 * users.size)
    assert counts.std() > 15 * independent


# The law against counts, at the published settings.

TRIALS, CHUNK = 200_000, 4000
CELLS = {  # leave, recruit, threshold, noise scale
    "edge of collapse, 69 %": (0.45, 0.11, 0.02, 3.4),
    "edge of collapse, 41 %": (0.45, 0.11, 0.02, 3.6),
    "edge of collapse, half a jump": (0.9, 0.3, 0.05, 1.45),
    "some collapse": (0.45, 0.11, 0.02, 4.0),
    "some collapse, few leave": (0.3, 0.1, 0.1, 0.6),
    "widest": (0.45, 0.11, 0.02, 4.5),
    "to the cap": (0.45, 0.11, 0.02, 5.61),
    "at the cap soon": (0.11, 0.52, 0.02, 1.0),
}


@pytest.fixture(scope="module")
def total_of_law():
    base = published()

    @jax.jit
    def solve(leave, recruit, threshold, noise):
        law = law_of(base.replace(leave=leave, recruit=recruit, threshold=threshold, noise_scale=noise))
        return jnp.sum(law.expected_error), law.collapse_probability[-1]

    return solve


@pytest.fixture(scope="module")
def totals_of_counts():
    base = published().astype("float32")

    @jax.jit
    def solve(leave, recruit, threshold, noise, key):
        scenario = base.replace(leave=leave, recruit=recruit, threshold=threshold, noise_scale=noise)

        def chunk(key):
            paths = runs(scenario, key, CHUNK)
            return jnp.sum(paths.expected_error, axis=1), jnp.min(paths.population, axis=1) <= 1

        return jax.lax.map(chunk, jax.random.split(key, TRIALS // CHUNK))

    return lambda cell: (np.asarray(x, float).ravel() for x in solve(*map(np.float32, cell), jax.random.key(1)))


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(x, marks=pytest.mark.study if "edge" in x else ()) for x in CELLS])
def test_the_law_is_that_of_counts(name, total_of_law, totals_of_counts):
    expected, collapse = map(float, total_of_law(*CELLS[name]))
    error, collapsed = totals_of_counts(CELLS[name])
    standard_error = error.std() / np.sqrt(error.size) / error.mean()
    assert standard_error < 0.003
    assert abs(expected / error.mean() - 1) < 0.01
    assert abs(collapse - collapsed.mean()) < 0.005
    if "edge" in name:
        assert 0.1 < collapsed.mean() < 0.9


# Derivatives.


def derivatives(base, names, at, size, cap=None):
    """Of a number that all results of the law enter: by differentiation, and by five-point differences."""

    @jax.jit
    def value(x):
        law = law_of(base.replace(**dict(zip(names, x, strict=True))), size, cap)
        return jnp.sum(law.expected_error + law.mean / 10 + law.std / 10 + law.collapse_probability * 10)

    at = jnp.asarray(at)
    step = 1e-4 * at

    def along(i, k):
        return value(at.at[i].add(k * step[i]))

    found = jax.jit(jax.grad(value))(at)
    for i, name in enumerate(names):
        difference = (8 * (along(i, 1) - along(i, -1)) - (along(i, 2) - along(i, -2))) / (12 * step[i])
        yield name, float(found[i]), float(difference)


@pytest.mark.study
def test_the_derivative_of_the_law_is_its_central_difference():
    names, at = ("leave", "recruit", "threshold", "noise_scale", "population"), (0.5, 0.2, 0.05, 1.5, 60.3)
    for name, found, difference in derivatives(gaussian(dim=4, rounds=4, cap=300.0), names, at, 40):
        assert abs(found / difference - 1) < 1e-5, name


@pytest.mark.slow
def test_the_derivative_by_floor_and_cap_is_its_central_difference():
    """On whole numbers, for elsewhere nodes are placed by the cap: a choice, which has no derivative."""
    names, at = ("floor", "cap", "population", "leave"), (2.4, 39.7, 20.3, 0.5)
    for name, found, difference in derivatives(gaussian(dim=4, rounds=4, recruit=0.6), names, at, 1, cap=40):
        assert abs(found / difference - 1) < 1e-5, name


@pytest.mark.slow
def test_the_derivative_by_a_whole_population_is_the_step_to_the_next():
    """Every small whole number is a node, where the law is a line to the next one."""
    base = gaussian(dim=4, rounds=1, population=20.0, cap=40.0)

    @jax.jit
    def error(population):
        return jnp.sum(law_of(base.replace(population=population), 1, 40).expected_error)

    at = jnp.asarray(20.0)
    _, found = jax.jvp(lambda n: error(n) - base.mechanism.error(n), (at,), (jnp.ones_like(at),))
    step = error(at + 1) - base.mechanism.error(at + 1) - error(at) + base.mechanism.error(at)
    assert abs(found / step - 1) < 1e-9


LEAVES = ("leave", "recruit", "threshold", "noise_scale", "population")
POINTS = [
    (0.3, 0.6, 0.02, 2.0, 300.5),
    (0.45, 0.11, 0.02, 3.5, 1000.5),
    (0.7, 0.3, 0.2, 0.5, 2000.5),
    (0.2, 0.2, 0.05, 2.0, 60.5),
    (0.45, 0.3, 0.02, 2.0, 100.5),
    (0.6, 0.3, 0.02, 2.0, 100.5),  # down to 4 users in one run of a hundred
]


@pytest.fixture(scope="module")
def slopes():
    base = gaussian(dim=12, rounds=10)

    def of(objective):
        def value(x, key=None):
            return objective.evaluate(base.replace(**dict(zip(LEAVES, x, strict=True))), key).log_value

        return jax.jit(jax.value_and_grad(value))

    law, counts = of(pj.CumulativeError(solver="law")), of(pj.CumulativeError(solver="counts", trials=2000))

    def both(point):
        log_value, slope = law(point)
        sampled = [counts(point, jax.random.key(seed)) for seed in range(12)]
        return slope * jnp.exp(log_value), np.array([slope * jnp.exp(log_value) for log_value, slope in sampled])

    return both


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS, ids=str)
def test_sampled_derivatives_are_those_of_the_law(point, slopes):
    expected, found = slopes(jnp.asarray(point))
    standard_error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    assert np.all(standard_error < 0.01 * np.abs(expected))
    bias = np.abs(found.mean(axis=0) - expected)
    assert np.all(bias < np.maximum(0.02 * np.abs(expected), 3 * standard_error)), dict(
        zip(LEAVES, found.mean(axis=0) / expected - 1, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("clip", [False, True])
def test_the_realised_error_of_bits_has_the_derivative_of_the_expected_one(clip):
    base = response(rounds=1, population=30.0, clip_estimate=clip)

    def errors(epsilon):
        paths = runs(base.replace(epsilon=epsilon), jax.random.key(0), 4000)
        return paths.error[:, 0], paths.expected_error[:, 0]

    one = jnp.ones(())
    _, (realised, expected) = jax.jit(lambda: jax.jvp(errors, (one,), (one,)))()
    standard_error = jnp.std(realised) / np.sqrt(realised.size)
    assert standard_error < 0.04 * abs(expected[0])
    assert abs(jnp.mean(realised) - expected[0]) < 4 * standard_error


# A billion users.


@pytest.mark.slow
def test_a_billion_users_in_either_precision():
    """Rounding moves no run by more than 1e-4 of what chance moves it, and the law has the mean of the runs."""
    scenario = gaussian(0.001, dim=12, population=1e9, rounds=3, cap=1e10)
    single, double = (
        np.asarray(pj.simulate_counts(scenario.astype(dtype), key=jax.random.key(0), trials=4000).population, float)
        for dtype in ("float32", "float64")
    )
    rounding, chance = np.abs(single / double - 1).max(axis=0), double.std(axis=0) / double.mean(axis=0)
    assert np.all(rounding[1:] < 1e-4 * chance[1:])
    assert np.all(rounding[1:] < 1e-6)
    for dtype in ("float32", "float64"):
        law = pj.population_law(scenario.astype(dtype))
        assert all(np.all(np.isfinite(x)) for x in (law.probability, law.mean, law.std, law.expected_error))
        mean = np.asarray(law.mean, float) / double.mean(axis=0)
        assert np.all(np.abs(mean - 1)[1:] < 4 * chance[1:] / np.sqrt(4000))
