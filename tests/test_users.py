"""`simulate_users` against what it must agree with: definitions, exact laws, and per-record NumPy runs.

The likelihood ratio from the two densities of its definition, on the very records the simulator drew; the population
from exact Markov chains; the error from its exact distribution. And what it promises about keys.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from oracle import cases
from scenarios import gaussian, response

import perfjax as pj
from perfjax.montecarlo import _users, simulate_users
from perfjax.montecarlo._inputs import as_key
from perfjax.montecarlo._normals import normals

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
    from perfjax.montecarlo._normals import _on_circle

    turn = jnp.linspace(0, 1, 4001).astype(dtype)
    angle = 2 * np.pi * np.asarray(turn, float)
    np.testing.assert_allclose(_on_circle(turn), [-np.cos(angle), -np.sin(angle)], atol=tolerance)


# The likelihood ratio, from the definition.


def definition(scenario, users, noise, draw_key, size):
    """Leaked users and squared error by the two densities of the definition, in NumPy, on the same records."""
    mechanism, rule = scenario.mechanism, scenario.leakage
    records_key, noise_key = jax.random.split(draw_key)
    mu = np.broadcast_to(np.asarray(mechanism.mean, float), mechanism.dim)
    covariance = np.asarray(mechanism.covariance, float)
    covariance = covariance if covariance.ndim == 2 else covariance * np.eye(mechanism.dim)
    blocks = -(-users // size)
    standard = [
        normals(jax.random.fold_in(records_key, b), (mechanism.dim, size), noise.dtype).T for b in range(blocks)
    ]
    z = mu + np.concatenate(standard)[:users].astype(float) @ np.linalg.cholesky(covariance).T
    if mechanism.clip_radius is not None:
        z *= np.minimum(1, float(mechanism.clip_radius) / np.linalg.norm(z, axis=1))[:, None]
    gamma, n = float(noise), users
    total = z.sum(axis=0)
    release = total / n + gamma / math.sqrt(n) * np.asarray(jax.random.normal(noise_key, (mechanism.dim,), noise.dtype))
    variance_without = gamma**2 / (n if rule.outside == "shared" else n - 1)

    def log_density(mean, variance):
        return -np.sum((release - mean) ** 2, axis=-1) / (2 * variance) - mechanism.dim / 2 * math.log(variance)

    ratio = log_density(total / n, gamma**2 / n) - log_density((total - z) / (n - 1), variance_without)
    miss = release - mu
    return ratio, miss @ np.linalg.solve(covariance, miss)


@pytest.mark.parametrize("outside", ["shared", "recomputed"])
@pytest.mark.parametrize(
    "case",
    [
        {"dim": 12, "noise_scale": 5.0},
        {"dim": 1, "noise_scale": 0.3, "mean": 7.0, "covariance": 4.0},
        {"dim": 3, "clip_radius": 1.2, "mean": [0.5, -0.2, 1.0], "covariance": CORRELATED},
        {"dim": 3, "clip_radius": 0.5, "mean": 3.0, "covariance": [0.1, 1.0, 2.0], "noise_scale": 1e-2},
        {"dim": 40, "noise_scale": 30.0},
    ],
    ids=["isotropic", "one-feature", "clipped-matrix", "clipped-hard", "many-features"],
)
@pytest.mark.parametrize("users", [2, 3, 2500])
def test_leaked_users_are_those_of_the_definition(case, outside, users):
    scenario = gaussian(**case, outside=outside, threshold=0.05)
    noise, size = scenario.mechanism.noise_scale, 1024
    error, leaked = _users._noisy_mean(scenario.mechanism, scenario.leakage, jnp.int32(users), noise, size, key(3))
    ratio, expected_error = definition(scenario, users, noise, key(3), size)
    found = np.concatenate([leaked(jnp.int32(b)) for b in range(-(-users // size))])[:users]
    clear = np.abs(ratio - 0.05) > 1e-9 * (1 + np.abs(ratio))
    assert clear.all()
    np.testing.assert_array_equal(found, ratio > 0.05)
    np.testing.assert_allclose(error, expected_error, rtol=1e-10)


def test_float32_decides_like_float64():
    """Of 2500 users with a ratio spread over some 0.1, rounding moves at most a handful across the threshold."""
    scenario = gaussian(5.0, dim=12, mean=1e4).astype("float32")
    noise = scenario.mechanism.noise_scale
    _, leaked = _users._noisy_mean(scenario.mechanism, scenario.leakage, jnp.int32(2500), noise, 1024, key(3))
    ratio, _ = definition(scenario, 2500, noise, key(3), 1024)
    found = np.concatenate([leaked(jnp.int32(b)) for b in range(3)])[:2500]
    wrong = found != (ratio > 0.02)
    assert np.all(np.abs(ratio[wrong] - 0.02) < 1e-6)
    assert 0.05 < np.mean(found) < 0.5


# The leak probability of one release.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "case",
    [
        {"dim": 10, "population": 1000, "noise_scale": 2.0},
        {"dim": 12, "population": 100, "noise_scale": 20.0, "outside": "recomputed"},
        {"dim": 12, "population": 100, "noise_scale": 20.0},
        {"dim": 10, "population": 2, "noise_scale": 3.0},
        {"dim": 2, "population": 2, "noise_scale": 3.0, "outside": "recomputed"},
        {"dim": 3, "population": 40, "covariance": CORRELATED},
        {"dim": 3, "population": 40, "covariance": [0.2, 1.0, 4.0], "outside": "recomputed"},
        {"dim": 10, "population": 100, "clip_radius": 3.0},
        {"dim": 4, "population": 500, "clip_radius": 1.5, "mean": 1.0, "noise_scale": 0.5, "threshold": 0.05},
        {"dim": 3, "population": 60, "clip_radius": 1.0, "covariance": CORRELATED, "outside": "recomputed"},
    ],
    ids=lambda case: ",".join(f"{k}={v}" for k, v in case.items() if k != "covariance").replace(" ", ""),
)
def test_share_of_leaked_users(case, dtype):
    scenario = gaussian(**case, rounds=1).astype(dtype)
    trials = 300 if case["population"] > 50 else 2000
    share = simulate(scenario, trials).leak_probability[:, 0]
    p = pj.leak_probability(scenario.mechanism, scenario.leakage, scenario.population)
    # The deterministic value has an error of its own where records are clipped.
    assert_mean(share, float(p), error=1e-3 if scenario.mechanism.clips else 1e-5)
    assert 0 < float(p) < 1


def test_recomputed_and_shared_differ():
    """At n = 100, gamma = 20 by a factor of two, on the same draws."""
    shared, recomputed = (
        jnp.mean(simulate(gaussian(20.0, dim=12, outside=outside, rounds=1), 300).leak_probability[:, 0])
        for outside in ("shared", "recomputed")
    )
    assert recomputed > 1.8 * shared


@pytest.mark.parametrize("outside", ["shared", "recomputed"])
@pytest.mark.parametrize("noise", [0.0, 1e-30, 1e-6])
@pytest.mark.parametrize("dtype", DTYPES)
def test_without_noise_everybody_is_leaked(noise, dtype, outside):
    scenario = gaussian(noise, outside=outside, leave=0.0, recruit=1.0, rounds=2, clip_radius=20.0).astype(dtype)
    runs = simulate(scenario, 2)
    np.testing.assert_array_equal(runs.leak_probability, 1)
    np.testing.assert_array_equal(runs.population, 100)
    assert np.all(np.isfinite(runs.error))


@pytest.mark.parametrize("dtype", DTYPES)
def test_in_much_noise_nobody_is_leaked(dtype):
    runs = simulate(gaussian(1e6, leave=1.0, recruit=0.0, rounds=3).astype(dtype), 2)
    np.testing.assert_array_equal(runs.leak_probability, 0)
    np.testing.assert_array_equal(runs.population, 100)


# Few users.


@pytest.mark.parametrize("outside", ["shared", "recomputed"])
def test_a_single_user_is_leaked_for_sure(outside):
    runs = simulate(gaussian(100.0, population=1, leave=0.0, recruit=1.0, rounds=3, outside=outside), 4)
    np.testing.assert_array_equal(runs.leak_probability, 1)
    np.testing.assert_array_equal(runs.population, 1)
    assert np.all(np.isfinite(runs.error))


@pytest.mark.parametrize("scenario", [gaussian, response])
def test_without_users_nothing_happens(scenario):
    runs = simulate(scenario(population=1, leave=1.0, recruit=1.0, floor=0, rounds=60), 4)
    assert np.any(runs.population == 0)
    for n, share, error, expected in zip(*(np.ravel(f) for f in fields(runs).values()), strict=True):
        assert (n == 0) == (error == math.inf) == (expected == math.inf)
        assert n > 0 or share == 0
    ended = np.asarray(runs.population)[:, :-1] == 0
    np.testing.assert_array_equal(np.asarray(runs.population)[:, 1:][ended], 0)


# The population.


def chain(n_0, rounds, p, q, r, cap, recruiters):
    """The exact law of n_T for leaks of probability p independent of each other; floor 1."""
    binom = scipy.stats.binom.pmf
    law = np.zeros(cap + 1)
    law[n_0] = 1
    for _ in range(rounds):
        following = np.zeros(cap + 1)
        for n in np.nonzero(law)[0]:
            for k in range(n + 1):
                recruiting = n if recruiters == "everyone" else n - k
                stayed = np.convolve(binom(range(k + 1), k, q)[::-1], binom(range(recruiting + 1), recruiting, r))
                reached = np.clip(n - k + np.arange(stayed.size), 1, cap)
                np.add.at(following, reached, law[n] * binom(k, n, p) * stayed)
        law = following
    return law


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("recruiters", ["spared", "everyone"])
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


@pytest.mark.parametrize("case", cases("performative", "rr_exact_law"), ids=lambda case: case["name"])
def test_population_of_the_oracle_chain(case):
    given, value = dict(case["inputs"]), case["value"]
    last = np.asarray(simulate(response(**given), 3000).population[:, -1])
    assert_mean(last, value["mean"])
    assert_mean(1 / last, value["mean_inverse"])
    assert_mean(last == 1, value["p_floor"])


@pytest.mark.parametrize("runs", [1000, pytest.param(8000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", cases("performative", "mia_monte_carlo"), ids=lambda case: case["name"])
def test_per_record_runs_of_the_oracle(case, runs):
    """Within 5 standard errors; by default in float32, and with as many runs as the oracle and more if slow."""
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


@pytest.mark.parametrize("recruiters", ["spared", "everyone"])
def test_floor_and_cap_hold(recruiters):
    grow = simulate(gaussian(50.0, leave=0.0, recruit=1.0, recruiters=recruiters, cap=777.9, rounds=8), 3)
    np.testing.assert_array_equal(grow.population[:, -1], 777)
    assert np.all(np.diff(grow.population) >= 0)
    shrink = simulate(gaussian(0.0, leave=1.0, recruit=0.0, recruiters=recruiters, floor=6.3, rounds=3), 3)
    np.testing.assert_array_equal(shrink.population[:, 1:], 7)


def test_everyone_recruits_though_leaked():
    """Without noise and with q = 0, r = 1 the population doubles, whereas nobody is spared to recruit."""
    doubled = simulate(gaussian(0.0, leave=0.0, recruit=1.0, recruiters="everyone", rounds=3), 1)
    np.testing.assert_array_equal(doubled.population, [[100, 200, 400, 800]])


def test_population_is_rounded_to_whole_users():
    assert simulate(gaussian(population=99.6), 1).population[0, 0] == 100
    whole = np.asarray(simulate(gaussian(2.0, cap=5000), 3).population)
    np.testing.assert_array_equal(whole, np.round(whole))


@pytest.mark.parametrize("recruiters", ["spared", "everyone"])
def test_more_users_than_float32_counts_one_by_one(recruiters):
    users = 2**24 + 3
    scenario = response(
        math.inf,
        population=users,
        floor=users,
        cap=2.0**31 - 128,
        leave=1.0,
        recruit=1.0,
        rounds=1,
        recruiters=recruiters,
    ).astype("float32")
    runs = simulate(scenario, 1)
    np.testing.assert_array_equal(runs.leak_probability, 1)
    np.testing.assert_array_equal(runs.population, np.float32(users))


# The error.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("population", [1, 3, 1500])
def test_error_has_its_exact_distribution(population, dtype):
    """Without clipping the release misses by (gamma^2 + 1) / n chi-square; trials and releases are independent."""
    scenario = gaussian(1.5, dim=4, mean=[5.0, -1.0, 0.0, 2.0], floor=population, cap=population, population=population)
    error = np.asarray(simulate(scenario.astype(dtype), 150).error, float) * population / (1.5**2 + 1)
    assert scipy.stats.kstest(error.ravel(), scipy.stats.chi2(4).cdf).pvalue > 1e-3
    for one, other in ((error[:, 1:], error[:, :-1]), (error[1:], error[:-1])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 4 / math.sqrt(one.size)
    assert np.unique(error).size == error.size


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "scenario",
    [
        gaussian(2.0, dim=3, covariance=CORRELATED, mean=[1.0, 2.0, 3.0]),
        gaussian(0.5, dim=3, covariance=CORRELATED, clip_radius=1.2, mean=0.5),
        gaussian(np.geomspace(0.5, 3.0, 11), dim=2, covariance=[0.5, 2.0]),
        response(1.0, rounds=10),
        response(0.7, mean=0.9, rounds=10),
        response(0.7, mean=0.9, clip_estimate=True, rounds=10, population=20),
        response(0.5, mean=(0.5, 1.0), clip_estimate=True, rounds=10),
        response(math.inf, mean=(0.2, 0.4), rounds=10),
        response(np.geomspace(0.5, 3.0, 11), rounds=10),
    ],
    ids=[
        "matrix",
        "clipped",
        "noise-per-release",
        "interval",
        "number",
        "few",
        "clip-estimate",
        "no-privacy",
        "schedule",
    ],
)
def test_error_is_unbiased_given_the_population(scenario, dtype):
    runs = simulate(scenario.astype(dtype), 400)
    # Expected error 0.5 % off where it is computed with quadrature, clipped records or a normal count.
    ratio = np.mean(np.asarray(runs.error / runs.expected_error, float), axis=1)
    assert_mean(ratio, 1, error=1.25e-3)


def test_noise_per_release_is_used_in_its_place():
    schedule = np.full(11, 1.0)
    schedule[4] = 0.0
    runs = simulate(gaussian(schedule), 3)
    np.testing.assert_array_equal(np.all(np.asarray(runs.leak_probability) == 1, axis=0), schedule == 0)
    same = simulate_users(gaussian(), key=key(0), trials=3, noise=schedule)
    assert_same(fields(same), fields(runs))


# Keys.

SCENARIOS = [
    pytest.param(gaussian(2.0, rounds=4, population=1500), id="mean"),
    pytest.param(gaussian(2.0, rounds=4, population=1500).astype("float32"), id="mean-float32"),
    pytest.param(gaussian(1.0, dim=3, rounds=4, clip_radius=1.0, covariance=CORRELATED), id="clipped"),
    pytest.param(response(1.0, rounds=4, clip_estimate=True), id="bits"),
]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_same_key_same_runs_whatever_else_runs(scenario):
    runs = fields(simulate(scenario, 5))
    assert_same(fields(simulate(scenario, 5)), runs)
    assert_same(fields(simulate(scenario, 2)), {name: value[:2] for name, value in runs.items()})
    fewer = fields(simulate(scenario.replace(rounds=2), 5))
    assert_same(fewer, {name: value[:, :3] for name, value in runs.items()})
    assert not np.array_equal(fields(simulate(scenario, 5, seed=1))["error"], runs["error"])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_vmapped_scenarios_run_as_they_do_alone(scenario):
    leave = jnp.asarray([0.1, 0.5, 0.9], scenario.population.dtype)
    keys = jax.random.split(key(5), 3)

    def run(leave, key):
        return simulate_users(scenario.replace(leave=leave), key=key, trials=2)

    together = fields(jax.jit(jax.vmap(run))(leave, keys))
    for i in range(3):
        assert_same({name: value[i] for name, value in together.items()}, fields(run(leave[i], keys[i])))
    shared = fields(jax.vmap(lambda k: run(leave[0], k))(keys))
    assert_same({name: value[0] for name, value in shared.items()}, fields(run(leave[0], keys[0])))
    assert np.unique(shared["error"]).size == shared["error"].size


def test_records_drawn_twice_are_those_kept(monkeypatch):
    """Beyond the room for records they are drawn again: the same ones."""
    scenario = gaussian(2.0, dim=3, population=6000, rounds=3)
    kept = fields(simulate(scenario, 2))
    monkeypatch.setattr(_users, "KEPT_NUMBERS", 2 * 1024 * 3)
    jax.clear_caches()
    again = fields(simulate(scenario, 2))
    jax.clear_caches()
    np.testing.assert_array_equal(again["population"], kept["population"])
    np.testing.assert_allclose(again["error"], kept["error"], rtol=1e-12)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_key_is_used_twice(scenario):
    with jax.debug_key_reuse(True):
        simulate_users(scenario, key=key(0), trials=2)
        jax.jit(lambda k: simulate_users(scenario, key=k, trials=2).population)(key(0))


def test_releases_and_trials_draw_different_records():
    """No two blocks of any trial, release or block index share a key: all first normals differ."""

    def first(trial, release, block):
        release_key = jax.random.split(jax.random.fold_in(jax.random.fold_in(key(0), trial), release), 3)[0]
        records_key = jax.random.split(release_key)[0]
        return normals(jax.random.fold_in(records_key, block), (1, 2), "float64")[0, 0]

    found = [float(first(k, t, b)) for k in range(4) for t in range(4) for b in range(4)]
    assert len(set(found)) == len(found)


# Transformations and memory.


def test_compiles_once_for_all_values(monkeypatch):
    traces = []
    trial = _users._trial
    monkeypatch.setattr(_users, "_trial", lambda *args: traces.append(1) or trial(*args))
    for i, noise in enumerate((0.5, 1.0, 2.0)):
        scenario = gaussian(noise, dim=7, leave=0.1 * i, recruit=0.2, cap=500.0 * (1 + i), population=50 + i, rounds=6)
        simulate_users(scenario, key=key(i), trials=11)
    assert len(traces) == 1


def test_memory_does_not_grow_with_the_cap():
    """A cap of a billion users costs what a thousand costs: the run is as cheap as its hundred users."""

    def memory(cap):
        scenario = gaussian(dim=50, cap=cap)
        compiled = jax.jit(lambda s: simulate_users(s, key=key(0), trials=2).error).lower(scenario).compile()
        assert np.all(np.isfinite(compiled(scenario)))
        return compiled.memory_analysis().temp_size_in_bytes

    assert memory(1e9) == memory(1e3) < 16 * 2**20


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


def test_what_does_not_depend_on_the_variable_may_be_differentiated_around():
    scenario = gaussian(rounds=2)
    assert jax.grad(lambda x: x**2 + jnp.sum(simulate(scenario, 2).error))(3.0) == 6


# The check layer and the result.


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
            "Argument `noise_scale` must be one value or 3 of them, one per release (`rounds` + 1), but is of shape (2,).",
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


def test_a_cap_too_large_is_found_when_traced():
    with pytest.raises(Exception, match=r"Argument `cap` must lie in \[1, 2.14748e\+09\)"):
        jax.jit(lambda cap: simulate(gaussian(rounds=2).replace(cap=cap), 1).population)(3e9)


def test_an_unknown_pair_is_named(monkeypatch):
    monkeypatch.delitem(_users._RELEASES, (pj.GaussianMean, pj.LikelihoodRatioAbove))
    with pytest.raises(ValueError, match=r"\(RandomizedResponse, TrueBitKept\), not \(GaussianMean, LikelihoodRatio"):
        simulate(gaussian(), 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_result_describes_itself(dtype):
    scenario = gaussian(rounds=5).astype(dtype)
    runs = simulate(scenario, 4)
    assert {value.shape for value in fields(runs).values()} == {(4, 6)}
    assert {value.dtype for value in fields(runs).values()} == {np.dtype(dtype)}
    data = runs.to_xarray()
    assert dict(data.sizes) == {"trial": 4, "release": 6}
    assert data.expected_error.attrs == {"units": "squared error"}
    np.testing.assert_array_equal(data.error, runs.error)
    assert str(runs).startswith("Trajectory of releases 0..5, batch (4,)")
    assert "expected_error" not in pj.mean_field(scenario).to_xarray()
