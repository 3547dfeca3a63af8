"""`simulate_users` against what it must agree with: definitions, exact laws, and per-record NumPy runs.

The likelihood ratio from the two densities of its definition, on the very records the simulator drew; the population
from exact Markov chains; the error from its exact distribution. And what it promises about keys.
"""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from cases import enumerated_rows, in_two_dimensions
from oracle import cases
from scenarios import gaussian, response

import perfjax as pj
from perfjax._normals import normals
from perfjax.leakage.pairs import GaussianMeanLikelihoodRatio, _gaussian_mean
from perfjax.leakage.pairs.blocks import Keys
from perfjax.montecarlo import _users, simulate_users
from perfjax.montecarlo._inputs import as_key

DTYPES = ("float32", "float64")
CORRELATED = [[2.0, 0.6, 0.0], [0.6, 1.0, -0.2], [0.0, -0.2, 0.5]]


def key(seed):
    return jax.random.key(seed)


def simulate(scenario, trials, seed=0):
    return simulate_users(scenario, key=key(seed), trials=trials)


def fields(runs):
    return {name: np.asarray(getattr(runs, name)) for name in FIELDS}


FIELDS = ("population", "leak_probability", "error", "expected_error")


def assert_same(found, expected):
    """Bit for bit."""
    for name in FIELDS:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def assert_mean(samples, expected, within=4.0, error=0.0):
    """The mean of independent samples, in standard errors of theirs and of the expected value's own."""
    samples = np.asarray(samples, float)
    standard_error = math.hypot(np.std(samples, ddof=1) / math.sqrt(len(samples)), error)
    assert abs(np.mean(samples) - expected) < within * standard_error, (np.mean(samples), expected, standard_error)


# The normals.


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_normals_are_standard_normal(dtype):
    draws = np.asarray(normals(key(0), (50, 8000), dtype))
    assert draws.dtype == dtype
    assert scipy.stats.kstest(draws.ravel().astype(float), "norm").pvalue > 1e-3
    # Both halves of a Box-Muller pair, which share their radius, are normal and independent: so are their squares.
    one, other = draws[:, :4000].ravel(), draws[:, 4000:].ravel()
    for f, g in ((one, other), (one**2, other**2), (one, other**2), (np.abs(one), np.abs(other))):
        assert abs(np.corrcoef(f, g)[0, 1]) < 4 / math.sqrt(one.size)
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15), (8, 105)):
        assert_mean(draws.ravel().astype(float) ** power, moment)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 2e-15)])
def test_normals_reach_the_circle(dtype, tolerance):
    from perfjax._normals import _on_circle

    turn = jnp.linspace(0, 1, 4001).astype(dtype)
    angle = 2 * np.pi * np.asarray(turn, float)
    np.testing.assert_allclose(_on_circle(turn), [-np.cos(angle), -np.sin(angle)], atol=tolerance)


# The likelihood ratio, from the definition.


def definition(scenario, users, keys, size):
    """Likelihood ratios and squared error by the two densities of the definition, in NumPy, on the same records."""
    mechanism, rule = scenario.mechanism, scenario.leakage
    dim, gamma, n, dtype = mechanism.dim, float(mechanism.noise_scale), users, mechanism.mean.dtype
    mu = np.broadcast_to(np.asarray(mechanism.mean, float), dim)
    covariance = np.asarray(mechanism.covariance, float)
    covariance = covariance if covariance.ndim == 2 else covariance * np.eye(dim)
    standard = [normals(jax.random.fold_in(keys.records, b), (dim, size), dtype).T for b in range(-(-n // size))]
    z = mu + np.concatenate(standard)[:n].astype(float) @ np.linalg.cholesky(covariance).T
    if mechanism.clip_radius is not None:
        z *= np.minimum(1, float(mechanism.clip_radius) / np.linalg.norm(z, axis=1))[:, None]
    total = z.sum(axis=0)
    noise = np.asarray(jax.random.normal(keys.once, (dim,), dtype), float)
    release = total / n + gamma / math.sqrt(n) * noise

    def log_density(mean, variance):
        return -np.sum((release - mean) ** 2, axis=-1) / (2 * variance) - dim / 2 * math.log(variance)

    without = gamma**2 / (n if rule.outside == "shared" else n - 1)
    ratio = log_density(total / n, gamma**2 / n) - log_density((total - z) / (n - 1), without)
    miss = release - mu
    return ratio, miss @ np.linalg.solve(covariance, miss)


@eqx.filter_jit
def leaked_by_release(scenario, users, keys, size, blocks):
    noise = scenario.mechanism.noise_scale
    pair = pj.leakage.pair_of(scenario.mechanism, scenario.leakage)
    error, tests = pair.user_release(scenario.mechanism, scenario.leakage, users, noise, size, keys)

    def leaked(block):
        here = [(first <= block) & (block < end) & test(block) for first, end, test in tests]
        return functools.reduce(jnp.logical_or, here)

    return error, jnp.ravel(jax.lax.map(leaked, jnp.arange(blocks, dtype=jnp.int32)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        {"dim": 12, "noise_scale": 5.0},
        {"dim": 12, "noise_scale": 20.0, "outside": "recomputed"},
        {"dim": 3, "clip_radius": 1.2, "mean": [0.5, -0.2, 1.0], "covariance": CORRELATED},
        {"dim": 1, "clip_radius": 0.5, "mean": 3.0, "covariance": [0.1], "noise_scale": 1e-2, "outside": "recomputed"},
    ],
    ids=["shared", "recomputed", "clipped-matrix", "clipped-hard"],
)
def test_leaked_users_are_those_of_the_definition(case):
    scenario, size = gaussian(**case, threshold=0.05), 1024
    for users in (2, 3, 1024, 2500):
        keys = Keys(*jax.random.split(key(users), 4))
        error, leaked = leaked_by_release(scenario, jnp.int32(users), keys, size, 3)
        ratio, expected_error = definition(scenario, users, keys, size)
        assert np.all(np.abs(ratio - 0.05) > 1e-9 * (1 + np.abs(ratio))), "too near the threshold to tell"
        np.testing.assert_array_equal(leaked[:users], ratio > 0.05)
        np.testing.assert_allclose(error, expected_error, rtol=1e-10)


@pytest.mark.slow
def test_float32_decides_like_float64():
    """Whatever the mean: only users within rounding of the threshold are told apart otherwise."""
    scenario, keys = gaussian(5.0, dim=12, mean=1e4).astype("float32"), Keys(*jax.random.split(key(3), 4))
    _, leaked = leaked_by_release(scenario, jnp.int32(2500), keys, 1024, 3)
    ratio, _ = definition(scenario, 2500, keys, 1024)
    leaked = np.asarray(leaked)[:2500]
    assert np.all(np.abs(ratio[leaked != (ratio > 0.02)] - 0.02) < 1e-6)
    assert 0.02 < np.mean(leaked) < 0.5


# The leak probability of one release.


def test_two_users_are_leaked_one_by_one_and_together():
    """In closed form 0.68024 each, and both in 0.37936 +- 0.00015 of ten million releases of records."""
    mean, rule, noise = pj.GaussianMean(1.0, dim=2), pj.LikelihoodRatioAbove(0.1), jnp.asarray(1.0)

    def leaked(key):
        keys = Keys(*jax.random.split(key, 4))
        _, [(_, _, test), _] = GaussianMeanLikelihoodRatio().user_release(mean, rule, jnp.int32(2), noise, 2, keys)
        return test(jnp.int32(0))

    found = np.asarray(jax.jit(lambda keys: jax.lax.map(leaked, keys))(jax.random.split(key(0), 4000)))
    assert_mean(found.mean(axis=1), in_two_dimensions(1.0, 2, 0.1))
    assert_mean(found.all(axis=1), 0.37936, error=2e-4)  # independently it would be 0.4627


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "case"),
    [
        ("float64", {"population": 1000, "noise_scale": 2.0}),
        ("float64", {"population": 2, "noise_scale": 3.0}),
        ("float32", {"population": 1000, "noise_scale": 2.0}),
        ("float64", {"population": 100, "noise_scale": 20.0}),
        ("float64", {"population": 100, "noise_scale": 20.0, "outside": "recomputed"}),
        ("float64", {"population": 2, "noise_scale": 3.0, "outside": "recomputed"}),
        ("float64", {"population": 40, "dim": 3, "covariance": [0.2, 1.0, 4.0], "outside": "recomputed"}),
        ("float64", {"population": 100, "clip_radius": 3.0}),
        ("float64", {"population": 60, "dim": 3, "clip_radius": 1.0, "covariance": CORRELATED, "noise_scale": 0.5}),
    ],
    ids=["", "two", "float32", "noisy", "noisy-recomputed", "two-recomputed", "vector", "clipped", "clipped-matrix"],
)
def test_share_of_leaked_users(dtype, case):
    scenario = gaussian(**case, rounds=1).astype(dtype)
    share = simulate(scenario, 1000).leak_probability[:, 0]
    p = pj.leak_probability(scenario.mechanism, scenario.leakage, scenario.population)
    # The deterministic value has an error of its own where records are clipped.
    assert_mean(share, float(p), error=1e-3 if scenario.mechanism.clips else 1e-5)
    assert 0.02 < float(p) < 0.98


@pytest.mark.slow
def test_recomputed_and_shared_differ():
    """At n = 100, gamma = 20 by a factor of two, on the same draws."""
    shared, recomputed = (
        jnp.mean(simulate(gaussian(20.0, outside=outside, rounds=1), 1000).leak_probability[:, 0])
        for outside in ("shared", "recomputed")
    )
    assert recomputed > 1.8 * shared


def small(scenario=gaussian, **leaves):
    """Few rounds, and always the same number: what is compiled for one test serves the next."""
    return scenario(**{"rounds": 4, **leaves})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "outside"), [("float64", "shared"), ("float32", "shared"), ("float64", "recomputed")]
)
def test_extremes_of_the_noise(dtype, outside):
    for noise in (0.0, 1e-30, 1e-6):
        runs = simulate(small(noise_scale=noise, outside=outside, leave=0.0, recruit=1.0).astype(dtype), 3)
        np.testing.assert_array_equal(runs.leak_probability, 1)
        np.testing.assert_array_equal(runs.population, 100)
        assert np.all(np.isfinite(runs.error))
    if outside == "shared":
        runs = simulate(small(noise_scale=1e6, leave=1.0, recruit=0.0).astype(dtype), 3)
        np.testing.assert_array_equal(runs.leak_probability, 0)
        np.testing.assert_array_equal(runs.population, 100)


# Few users.


@pytest.mark.slow
@pytest.mark.parametrize("outside", ["shared", "recomputed"])
def test_a_single_user_is_leaked_for_sure(outside):
    runs = simulate(small(noise_scale=100.0, population=1, leave=0.0, recruit=1.0, outside=outside), 3)
    np.testing.assert_array_equal(runs.leak_probability, 1)
    np.testing.assert_array_equal(runs.population, 1)
    assert np.all(np.isfinite(runs.error))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [gaussian, response])
def test_without_users_nothing_happens(scenario):
    runs = simulate(small(scenario, population=1, leave=1.0, recruit=0.1, floor=0), 3)
    assert np.any(runs.population == 0)
    for n, share, error, expected in zip(*(np.ravel(f) for f in fields(runs).values()), strict=True):
        assert (n == 0) == (error == math.inf) == (expected == math.inf)
        assert n > 0 or share == 0
    ended = np.asarray(runs.population)[:, :-1] == 0
    np.testing.assert_array_equal(np.asarray(runs.population)[:, 1:][ended], 0)


# The population.


def chain(n_0, rounds, p, q, r, cap, recruiters):
    """The exact law of n_T for leaks of probability p independent of each other; floor 1."""
    rows = enumerated_rows(p, q, r, cap, recruiters)
    law = np.zeros(cap + 1)
    law[n_0] = 1
    for _ in range(rounds):
        law = law @ rows
    return law


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "recruiters"), [("float64", "spared"), ("float32", "spared"), ("float64", "everyone")]
)
@pytest.mark.parametrize(("q", "r"), [(0.4, 0.3), (1.0, 0.5), (0.2, 1.0)])
def test_population_follows_the_exact_chain(q, r, recruiters, dtype):
    epsilon, n_0, rounds, cap = 0.8, 5, 3, 12
    scenario = response(
        epsilon, leave=q, recruit=r, recruiters=recruiters, population=n_0, cap=cap, rounds=rounds
    ).astype(dtype)
    trials = 3000
    last = np.asarray(simulate(scenario, trials).population[:, -1]).astype(int)
    law = chain(n_0, rounds, 1 / (1 + math.exp(-epsilon)), q, r, cap, recruiters)
    assert last.min() >= 1
    assert last.max() <= cap
    counts = np.bincount(last, minlength=cap + 1)
    assert np.all(counts[law < 1e-12] == 0)
    often = law * trials >= 5
    rest = np.append(counts[often], counts[~often].sum()), np.append(law[often], law[~often].sum()) * trials
    expected = np.maximum(rest[1], 1e-9)
    assert scipy.stats.chi2.sf(np.sum((rest[0] - expected) ** 2 / expected), often.sum()) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("case", cases("performative", "rr_exact_law"), ids=lambda case: case["name"])
def test_population_of_the_oracle_chain(case):
    given, value = dict(case["inputs"]), case["value"]
    last = np.asarray(simulate(response(**given), 3000).population[:, -1])
    assert_mean(last, value["mean"])
    assert_mean(1 / last, value["mean_inverse"])
    assert_mean(last == 1, value["p_floor"])


@pytest.mark.slow
@pytest.mark.parametrize("runs", [1000, pytest.param(8000, marks=pytest.mark.study)])
@pytest.mark.parametrize("case", cases("performative", "mia_monte_carlo"), ids=lambda case: case["name"])
def test_per_record_runs_of_the_oracle(case, runs, monkeypatch):
    """Within 5 standard errors: in float32, and in float64 with as many runs as the oracle and more."""
    if case["inputs"]["population"] < 500:  # which would fill a fraction of a block, and the rest of it costs as much
        monkeypatch.setattr(_users, "BLOCK_USERS", 256)
        jax.clear_caches()
    scenario = gaussian(**case["inputs"])
    runs = simulate(scenario.astype("float32") if runs == 1000 else scenario, runs)
    found = {name: np.asarray(value, float) for name, value in fields(runs).items()}
    last, value = found["population"][:, -1], case["value"]
    for name, samples in {
        "final": last,
        "inverse": 1 / last,
        "cumulative_error": found["error"][:, 1:].sum(axis=1),
    }.items():
        assert_mean(samples, value[name]["mean"], within=5, error=value[name]["se"])
    expected = found["expected_error"][:, 1:].sum(axis=1)
    assert_mean(expected, value["cumulative_error"]["mean"], within=5, error=value["cumulative_error"]["se"])
    # The spread of a sample variance: its kurtosis is not assumed normal.
    assert_mean((last - last.mean()) ** 2, value["final_sd"] ** 2, within=5, error=value["final_sd"] ** 2 * 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("recruiters", ["spared", "everyone"])
def test_floor_and_cap_hold(recruiters):
    grow = simulate(small(noise_scale=50.0, leave=0.0, recruit=1.0, recruiters=recruiters, cap=777.9), 3)
    np.testing.assert_array_equal(grow.population[:, -1], 777)
    assert np.all(np.diff(grow.population) >= 0)
    shrink = simulate(small(noise_scale=0.0, leave=1.0, recruit=0.0, recruiters=recruiters, floor=6.3), 3)
    np.testing.assert_array_equal(shrink.population[:, 1:], 7)


@pytest.mark.slow
def test_everyone_recruits_though_leaked():
    """Without noise and with q = 0, r = 1 the population doubles, whereas nobody is spared to recruit."""
    doubled = simulate(small(noise_scale=0.0, leave=0.0, recruit=1.0, recruiters="everyone"), 3)
    np.testing.assert_array_equal(doubled.population, [[100, 200, 400, 800, 1600]] * 3)


@pytest.mark.slow
def test_population_counts_whole_users():
    """Those next to the number asked for, in the shares that make it their mean, and the same by both samplers."""
    scenario = small(population=9.6, rounds=1)
    whole = np.asarray(simulate(scenario, 400).population)
    np.testing.assert_array_equal(whole, np.round(whole))
    first = whole[:, 0]
    assert set(first) == {9, 10}
    assert_mean(first, 9.6, within=4)
    counts = pj.simulate_counts(scenario, key=jax.random.key(0), trials=20_000)
    assert_mean(np.asarray(counts.population[:, 0]), 9.6, within=4)


@pytest.mark.slow
def test_more_users_than_float32_counts_one_by_one():
    """Every one of 2^24 + 3 users is leaked and leaves: one uncounted would stay, and the population not be 1."""
    users = 2**24 + 3
    scenario = response(math.inf, population=users, cap=2.0**31 - 128, leave=1.0, recruit=1.0, rounds=1)
    runs = simulate(scenario.astype("float32"), 1)
    np.testing.assert_array_equal(runs.leak_probability, 1)
    np.testing.assert_array_equal(runs.population, [[np.float32(users), 1]])


# The error.


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_error_has_its_exact_distribution(dtype):
    """Without clipping the release misses by (gamma^2 + 1) / n chi-square; trials and releases are independent."""
    for n in (1, 3, 1500):
        scenario = gaussian(1.5, dim=4, mean=[5.0, -1.0, 0.0, 2.0], floor=n, cap=n, population=n).astype(dtype)
        error = np.asarray(simulate(scenario, 150).error, float) * n / (1.5**2 + 1)
        assert scipy.stats.kstest(error.ravel(), scipy.stats.chi2(4).cdf).pvalue > 1e-3
        for one, other in ((error[:, 1:], error[:, :-1]), (error[1:], error[:-1])):
            assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 4 / math.sqrt(one.size)
        assert np.unique(error).size > 0.99 * error.size  # float32 has few enough numbers for two to be equal


@pytest.mark.slow
@pytest.mark.parametrize(
    "scenario",
    [
        small(noise_scale=2.0, dim=3, covariance=CORRELATED, mean=[1.0, 2.0, 3.0]).astype("float32"),
        small(noise_scale=0.5, dim=3, covariance=CORRELATED, clip_radius=1.2, mean=0.5),
        small(noise_scale=np.geomspace(0.5, 3.0, 5), dim=2, covariance=[0.5, 2.0]),
        small(response),
        small(response, epsilon=math.inf, mean=(0.2, 0.4)),
        small(response, epsilon=np.geomspace(0.5, 3.0, 5), mean=0.9).astype("float32"),
        small(response, epsilon=0.7, mean=(0.5, 1.0), clip_estimate=True, population=20),
    ],
    ids=["matrix-float32", "clipped", "schedule", "interval", "no-privacy", "number-float32", "clip-estimate"],
)
def test_error_is_unbiased_given_the_population(scenario):
    runs = simulate(scenario, 600)
    # The expectation is itself 0.2 % off where it sums over clipped records or clipped estimates.
    ratio = np.mean(np.asarray(runs.error / runs.expected_error, float), axis=1)
    assert_mean(ratio, 1, error=1e-3)


@pytest.mark.slow
def test_noise_per_release_is_used_in_its_place():
    schedule = np.ones(5)
    schedule[3] = 0.0
    runs = simulate(small(noise_scale=schedule), 3)
    np.testing.assert_array_equal(np.all(np.asarray(runs.leak_probability) == 1, axis=0), schedule == 0)
    same = simulate_users(small(), key=key(0), trials=3, noise=schedule)
    assert_same(fields(same), fields(runs))


# Keys.

SCENARIOS = [
    pytest.param(small(noise_scale=2.0, population=1500, clip_radius=3.0).astype("float32"), id="mean"),
    pytest.param(small(response), id="bits"),
]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_same_key_same_runs_whatever_else_runs(scenario):
    runs = fields(simulate(scenario, 3))
    assert_same(fields(simulate(scenario, 3)), runs)
    fewer = fields(simulate(scenario.replace(rounds=2), 2))
    assert_same(fewer, {name: value[:2, :3] for name, value in runs.items()})
    assert not np.array_equal(fields(simulate(scenario, 3, seed=1))["error"], runs["error"])


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_parts_are_the_whole_bit_for_bit(scenario):
    parts = [fields(simulate_users(scenario, key=key(0), trials=2, first_trial=first)) for first in (0, 2)]
    joined = {name: np.concatenate([part[name] for part in parts])[:3] for name in FIELDS}
    assert_same(joined, fields(simulate(scenario, 3)))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_vmapped_scenarios_run_as_they_do_alone(scenario):
    leave = jnp.asarray([0.1, 0.5, 0.9], scenario.population.dtype)
    keys = jax.random.split(key(5), 3)

    def run(leave, key):
        return simulate_users(scenario.replace(leave=leave), key=key, trials=3)

    together = fields(jax.vmap(run)(leave, keys))
    for i in range(3):
        alone = fields(run(leave[i], keys[i]))
        for name in ("population", "leak_probability"):
            np.testing.assert_array_equal(together[name][i], alone[name], err_msg=name)
        for name in ("error", "expected_error"):  # another program, which may round another way
            np.testing.assert_allclose(together[name][i], alone[name], rtol=1e-6, err_msg=name)
    assert np.unique(together["error"]).size == together["error"].size


@pytest.mark.slow
def test_keys_may_be_vmapped_alone():
    keys = jax.random.split(key(5), 3)
    together = jax.jit(jax.vmap(lambda k: simulate_users(small(), key=k, trials=3).error))(keys)
    np.testing.assert_array_equal(together[2], simulate_users(small(), key=keys[2], trials=3).error)


@pytest.mark.slow
def test_records_drawn_twice_are_those_kept(monkeypatch):
    """Beyond the room for records they are drawn again: the same ones."""
    scenario, users, keys = gaussian(dim=3), jnp.int32(6000), Keys(*jax.random.split(key(3), 4))

    def release():
        jax.clear_caches()  # the room is no argument
        return leaked_by_release(scenario, users, keys, 1024, 6)

    (error, leaked), _ = release(), monkeypatch.setattr(_gaussian_mean, "KEPT_NUMBERS", 2 * 1024 * 3)
    error_again, leaked_again = release()
    np.testing.assert_array_equal(leaked_again, leaked)
    np.testing.assert_array_equal(error_again, error)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_key_is_used_twice(scenario):
    with jax.debug_key_reuse(True):
        simulate_users(scenario, key=key(0), trials=2)


@pytest.mark.slow
def test_trials_releases_and_blocks_draw_from_different_keys():
    def keys_of(trial, release, block):
        keys = jax.random.split(jax.random.fold_in(jax.random.fold_in(key(0), trial), release), 4)
        return [jax.random.fold_in(k, block) for k in keys[1:]] + [keys[0]] * (block == 0)

    found = [k for t in range(4) for r in range(4) for b in range(4) for k in keys_of(t, r, b)]
    assert len({tuple(np.asarray(jax.random.key_data(k))) for k in found}) == len(found) == 13 * 16


# Transformations and memory.


@pytest.mark.slow
def test_compiles_once_for_all_values(monkeypatch):
    traces = []
    trial = _users._trial
    monkeypatch.setattr(_users, "_trial", lambda *args: traces.append(1) or trial(*args))
    for i, noise in enumerate((0.5, 1.0, 2.0)):
        scenario = small(noise_scale=noise, dim=7, leave=0.1 * i, recruit=0.2, cap=500.0 * (1 + i), population=50 + i)
        simulate_users(scenario, key=key(i), trials=3, first_trial=i)
    assert len(traces) == 1


@pytest.mark.slow
def test_a_high_cap_costs_nothing():
    """Under a cap of a billion the run takes the time and the memory of its hundred users."""
    scenario = small(cap=1e9, dim=50)
    compiled = jax.jit(lambda s: simulate_users(s, key=key(0), trials=2).error).lower(scenario).compile()
    assert np.all(np.isfinite(compiled(scenario)))
    assert compiled.memory_analysis().temp_size_in_bytes < 16 * 2**20


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [gaussian(rounds=2), response(rounds=2)], ids=["mean", "bits"])
@pytest.mark.parametrize("leaf", ["leave", "population", "cap"])
def test_a_derivative_is_refused(scenario, leaf):
    def total(value, field):
        return jnp.sum(getattr(simulate(scenario.replace(**{leaf: value}), 2), field))

    value = 0.3 if leaf == "leave" else 100.0
    for transform in (jax.grad, jax.jit(jax.grad(total, 0), static_argnums=1), jax.jacfwd):
        derivative = transform(total) if transform in (jax.grad, jax.jacfwd) else transform
        for field in ("population", "expected_error"):
            with pytest.raises(ValueError, match=r"^simulate_users has no gradient: "):
                derivative(value, field)
    with pytest.raises(ValueError, match="no gradient"):
        jax.grad(lambda x: jnp.sum(simulate_users(scenario, key=key(0), trials=1, noise=x).error))(1.0)


@pytest.mark.slow
def test_what_does_not_depend_on_the_variable_may_be_differentiated_around():
    assert jax.grad(lambda x: x**2 + jnp.sum(simulate(small(), 3).error))(3.0) == 6


# The check layer and the result.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda s: as_key(jax.random.PRNGKey(0)),
            "Argument `key` must be a typed key, as `jax.random.key(0)` makes it, ",
        ),
        (
            lambda s: as_key(jax.random.split(jax.random.key(0), 3)),
            "Argument `key` must be one key, but is an array of",
        ),
        (
            lambda s: simulate_users(s, key=key(0), trials=0),
            "Argument `trials` must be an integer of at least 1, but is 0.",
        ),
        (
            lambda s: simulate_users(s.replace(cap=2.0**31), key=key(0), trials=1),
            "Argument `cap` must lie in [1, 2.14748e+09), but is 2.14748e+09.",
        ),
        (
            lambda s: simulate_users(s, key=key(0), trials=1, noise=[1.0, 2.0]),
            "Argument `noise_scale` must be one value or 3 of them, one per release (`rounds` + 1), but is of shape",
        ),
        (
            lambda s: simulate_users(s, key=key(0), trials=1, noise=-1.0),
            "Argument `noise_scale` must lie in [0, inf), but",
        ),
    ],
    ids=["legacy-key", "keys", "trials", "cap", "noise-shape", "noise-range"],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        call(gaussian(rounds=2))
    assert str(error.value).startswith(message)


@pytest.mark.slow
def test_a_cap_too_large_is_found_when_traced():
    with pytest.raises(Exception, match=r"Argument `cap` must lie in \[1, 2.14748e\+09\)"):
        jax.jit(lambda cap: simulate(gaussian(rounds=2).replace(cap=cap), 1).population)(3e9)


@pytest.mark.slow
def test_an_unknown_pair_is_named(monkeypatch):
    monkeypatch.setattr(GaussianMeanLikelihoodRatio, "user_release", pj.leakage.AbstractPair.user_release)
    words = r"\(RandomizedResponse, TrueBitKept\) for `simulate_users`, but are \(GaussianMean, LikelihoodRatioAbove\)"
    with pytest.raises(ValueError, match=words):
        simulate(gaussian(), 1)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_result_describes_itself(dtype):
    scenario = small().astype(dtype)
    runs = simulate(scenario, 3)
    assert {value.shape for value in fields(runs).values()} == {(3, 5)}
    assert {value.dtype for value in fields(runs).values()} == {np.dtype(dtype)}
    data = runs.to_xarray()
    assert dict(data.sizes) == {"trial": 3, "release": 5}
    assert data.expected_error.attrs == {"units": "squared error"}
    np.testing.assert_array_equal(data.error, runs.error)
    assert str(runs).startswith("Trajectory of releases 0..4, batch (3,)")
    assert "expected_error" not in pj.mean_field(scenario).to_xarray()


# Small cases whose values are known; each line of them is one compilation.


def test_followed_users_do_what_they_surely_do():
    """At a large budget all are leaked: all recruit, up to the cap, or all leave."""
    scenario = response(
        30.0, mean=0.3, population=5.0, leave=0.0, recruit=1.0, recruiters="everyone", cap=64.0, rounds=2
    )
    cases = (({}, [5, 10, 20]), ({"cap": 12.0}, [5, 10, 12]), ({"leave": 1.0, "recruit": 0.0, "floor": 2.0}, [5, 2, 2]))
    for changes, users in cases:
        runs = simulate_users(scenario.replace(**changes), key=key(0), trials=300)
        np.testing.assert_array_equal(runs.population[:2], [users] * 2)
    few = simulate_users(scenario.replace(epsilon=1.0), key=key(0), trials=300)
    of_release_0 = (
        (few.error[:, 0], float(scenario.mechanism.error(5.0, 1.0))),
        (few.leak_probability[:, 0], 1 / (1 + math.exp(-1))),
    )
    for sample, mean in of_release_0:
        assert abs(np.mean(sample) - mean) < 4 * np.std(sample) / np.sqrt(300)


def test_followed_clipped_users_err_and_leak_as_often_as_stated():
    """Records of mean 0.7 and variance 4, clipped and recomputed: two users, whose leaks are two numbers of a run."""
    scenario = gaussian(
        1.0,
        dim=1,
        mean=0.7,
        covariance=4.0,
        clip_radius=1.5,
        threshold=0.1,
        outside="recomputed",
        population=5.0,
        rounds=1,
    )
    runs = simulate_users(scenario, key=key(1), trials=400)
    stated = scenario.error(5.0), pj.leak_probability(scenario.mechanism, scenario.leakage, 5.0)
    for sample, mean in zip((runs.error[:, 0], runs.leak_probability[:, 0]), stated, strict=True):
        assert abs(np.mean(sample) - float(mean)) < 4 * np.std(sample) / np.sqrt(400) + 1e-3 * float(mean)


def test_followed_users_are_reconstructed_within_the_tolerance():
    leakage = pj.ReconstructedWithin(5.0)  # V = 16.4
    who = pj.Participation(0.3, 0.6)
    scenario = pj.Scenario(pj.GaussianMean(1.0, dim=2), leakage, who, population=5.0, rounds=1)
    runs = simulate_users(scenario, key=key(2), trials=300)
    stated = scipy.stats.chi2.cdf(5.0**2 / 16.4, 2)
    share = np.asarray(runs.leak_probability[:, 0])
    assert abs(share.mean() - stated) < 4 * share.std() / np.sqrt(300)
