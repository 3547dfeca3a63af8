"""Noise that reacts: tables and log-linear rules in every solver, and dynamic programming against exhaustive search."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
import scipy.optimize
from assertions import close
from scenarios import gaussian, published, response

import perfjax as pj

matplotlib.use("Agg")

from perfjax import plots
from perfjax.law import chain_of
from perfjax.tuning import _policy

LAW = pj.CumulativeError(first_release=0, solver="law")


def table(scenario, noise):
    """A policy that reacts to nothing."""
    return pj.TablePolicy([0.0, 10.0, float(scenario.participation.cap)], jnp.full((scenario.rounds + 1, 3), noise))


def small(**changes):
    options = {"population": 6.0, "cap": 12.0, "rounds": 2, "dim": 3, "threshold": 0.1, "leave": 0.7, "recruit": 0.4}
    return gaussian(1.3, **(options | changes))


SOLVERS = {
    "mean field": lambda s, x: pj.mean_field(s, noise=x).population,
    "counts": lambda s, x: pj.simulate_counts(s, key=jax.random.key(3), trials=20, noise=x).population,
    "law": lambda s, x: pj.population_law(s, noise=x).probability,
    "users": lambda s, x: pj.simulate_users(s, key=jax.random.key(3), trials=5, noise=x).population,
}


@pytest.mark.parametrize(
    "name", ["mean field", "counts", *(pytest.param(x, marks=pytest.mark.slow) for x in ("law", "users"))]
)
def test_a_policy_that_reacts_to_nothing_is_a_constant_noise(name):
    scenario, solve = small(), SOLVERS[name]
    np.testing.assert_allclose(solve(scenario, table(scenario, 0.9)), solve(scenario, 0.9), rtol=1e-12)


@pytest.mark.slow
def test_a_policy_reacts_in_every_solver():
    """A different noise from ten users on: the solvers see it where the population passes that mark, and only there."""
    scenario = small(population=8.0, cap=40.0, rounds=4)
    noisy = [[4.0, 4.0, 0.01, 0.01]] * 5
    reacting = pj.TablePolicy([0.0, 9.4, 9.6, 40.0], noisy)
    path = pj.simulate_counts(scenario, key=jax.random.key(1), trials=200, noise=reacting)
    crowded = np.asarray(path.population) >= 10
    assert 0.1 < crowded.mean() < 0.9
    np.testing.assert_allclose(path.noise, np.where(crowded, 0.01, 4.0), rtol=1e-14)
    by_user = pj.simulate_users(scenario, key=jax.random.key(1), trials=200, noise=reacting)
    law = pj.population_law(scenario, noise=reacting)
    for sample in (path.population, by_user.population):
        mean, error = np.mean(sample, axis=0), np.std(sample, axis=0) / np.sqrt(200)
        assert np.all(np.abs(mean - law.mean) <= 4 * error)


def test_interpolation_is_linear_in_the_logarithm():
    policy = pj.TablePolicy([0.0, 1.0, 99.0], [[1.0, 2.0, 8.0]])
    close(policy(jnp.array([0.0, 1.0, 99.0, 1e6]), 0), [1.0, 2.0, 8.0, 8.0], 0)
    close(policy(np.sqrt(2 * 100.0) - 1, 0), 4.0, 1e-12)
    close(jax.grad(lambda n: jnp.log(policy(n, 0)))(20.0), np.log(4) / np.log(50) / 21, 1e-12)


def test_no_privacy_is_not_interpolated():
    policy = pj.TablePolicy([1.0, 7.0], [[0.0, 4.0]])
    close(policy(jnp.array([1.0, 2.9, 3.1, 7.0]), 0), [0.0, 0.0, 4.0, 4.0], 0)
    assert np.isfinite(jax.grad(lambda n: policy(n, 0))(2.0))
    bits = pj.TablePolicy([1.0, 7.0], [[np.inf, 4.0]])
    assert np.isinf(bits(1.0, 0))


def test_log_linear_rules():
    policy = pj.LogLinearPolicy(2.0, power=-0.5, rate=-0.1, reference=100.0, low=0.5, high=3.0)
    close(policy(400.0, 5), 2.0 * 0.5 * np.exp(-0.5), 1e-12)
    close(policy(1.0, 0), 3.0, 1e-12)
    close(policy(1e9, 0), 0.5, 1e-12)
    assert np.isfinite(policy(0.0, 0))


def test_a_policy_is_kept_in_a_file(tmp_path):
    policy = pj.TablePolicy([0.0, 12.0], [[1.0, 2.0], [0.25, 0.1]])
    pj.save_scenario(small(rounds=1).replace(policy=policy), tmp_path / "s.toml")
    assert eqx.tree_equal(pj.load_scenario(tmp_path / "s.toml").policy, policy)


@pytest.mark.slow
def test_policies_travel_in_scenario_files(tmp_path):
    scenario = small(rounds=1)
    policies = (
        pj.TablePolicy([0.0, 3.0, 12.0], [[0.0, 1.0, 2.0], [0.5, 0.25, 0.1]]),
        pj.LogLinearPolicy(1.0, power=0.5, rate=-0.1, reference=6.0, low=1e-3, high=10.0),
    )
    for policy in policies:
        pj.save_scenario(scenario.replace(policy=policy), tmp_path / "s.toml")
        back = pj.load_scenario(tmp_path / "s.toml")
        assert eqx.tree_equal(back.policy, policy)
        np.testing.assert_array_equal(pj.mean_field(back).noise, pj.mean_field(scenario, noise=policy).noise)


@pytest.mark.slow
def test_a_noise_takes_the_place_of_a_policy_and_tuning_forgets_it():
    scenario = small()
    reacting = scenario.replace(policy=table(scenario, 0.2))
    assert reacting.replace_noise(1.0).policy is None
    assert reacting.without_privacy().policy is None
    close(pj.tune(reacting).log_value, pj.tune(scenario).log_value, 0)
    with pytest.raises(ValueError, match="a policy"):
        pj.CumulativeBound()(reacting)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pj.TablePolicy([1.0], [[1.0]]), "`populations` must be two or more"),
        (lambda: pj.TablePolicy([2.0, 1.0], [[1.0, 1.0]]), "`populations` must not decrease"),
        (lambda: pj.TablePolicy([1.0, 2.0], [[1.0, 1.0, 1.0]]), "`table` must have a row per release and 2 columns"),
        (lambda: pj.TablePolicy([1.0, 2.0], [[1.0, -1.0]]), r"`table` must lie in \[0, inf\], but is -1"),
        (lambda: small().replace(policy=pj.TablePolicy([1.0, 2.0], [[1.0, 1.0]])), "`table` must have 3 rows"),
        (lambda: loglinear(low=2.0, high=1.0), "`low` must be at most `high`"),
        (lambda: loglinear(level=0.0), r"`level` must lie in \(0, inf\)"),
        (lambda: pj.tune_policy(small(), pj.CumulativeError(first_release=0)), '`solver` must be "law"'),
        (lambda: pj.tune_policy(small(), structure="tree"), '`structure` must be "table" or "log-linear"'),
        (lambda: pj.tune_policy(small(), actions=1), "`actions` must be an integer of at least 2"),
        (lambda: pj.tune_policy(small(), actions=[-1.0]), "`noise_scale` must lie in"),
        (lambda: pj.tune_policy(small(clip_radius=0.5)), "simulate_users"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def loglinear(**changes):
    options = {"level": 1.0, "power": 0.0, "rate": 0.0, "reference": 1.0, "low": 0.1, "high": 10.0}
    return pj.LogLinearPolicy(**(options | changes))


@pytest.mark.slow
def test_slopes_of_the_chain_are_central_differences():
    """By the noise of every release, and on a policy by that of every release and population."""
    scenario = small(cap=300.0, population=50.0, rounds=3)
    chain = chain_of(scenario, jnp.asarray(5.0), size=60)
    noise = jnp.linspace(1.5, 0.4, 4)[:, None] * jnp.linspace(0.8, 1.2, chain.sources.size)
    value_and_slope = jax.jit(chain.value_and_slope)
    _, slope = value_and_slope(noise)
    for release, source in ((0, -1), (1, 30), (2, 50), (3, 20)):
        step = jnp.zeros_like(noise).at[release, source].set(1e-4)
        ends = [float(value_and_slope(noise + sign * step)[0]) for sign in (1, -1)]
        np.testing.assert_allclose(slope[release, source], (ends[0] - ends[1]) / 2e-4, rtol=1e-5, atol=1e-10)
    assert np.abs(slope).max() > 1e-3


@pytest.mark.slow
def test_the_chain_is_the_law():
    scenario = small(cap=300.0, population=50.0, rounds=3)
    noise = jnp.array([1.2, 0.9, 0.7, 0.1])

    @eqx.filter_jit
    def value_of(scenario, penalty):
        return chain_of(scenario, penalty).value_and_slope(noise[:, None])[0]

    close(value_of(scenario, None), LAW(scenario.replace(noise_scale=noise)), 1e-12)
    penalised = pj.CumulativeError(first_release=0, solver="law", collapsed="penalty", penalty=5.0)
    close(value_of(scenario, penalised.penalty), penalised(scenario.replace(noise_scale=noise)), 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, pytest.param(2, marks=pytest.mark.study), 3])
def test_policies_and_schedules_equal_exhaustive_search(rounds):
    """With three noises and at most three users every feedback table can be tried."""
    scenario = small(population=2.0, cap=3.0, rounds=rounds, dim=2)
    actions = np.array([0.05, 0.8, 2.5])
    chain = chain_of(scenario, cap=3)
    of_action = eqx.filter_jit(lambda x: (chain.rows(x), chain.errors(x)))
    rows, errors = (np.stack(x)[:, :-1] for x in zip(*(of_action(jnp.asarray(x)) for x in actions), strict=True))

    def value(rules):
        """The expected sum of errors for many rules at once: actions by rule, release and users."""
        at, total = np.zeros((len(rules), 4)), np.zeros(len(rules))
        at[:, 2] = 1
        for t in range(rounds + 1):
            chosen = np.concatenate([np.zeros((len(rules), 1), int), rules[:, t]], axis=1)
            total += np.sum(at[:, 1:] * errors[chosen, np.arange(4)][:, 1:], axis=1)
            at = np.einsum("rn,rnm->rm", at, rows[chosen, np.arange(4)])
        return total

    first = np.broadcast_to(np.arange(3)[:, None, None], (3, 1, 3))  # release 0 has two users, whatever the rule
    later = np.array(list(itertools.product(range(3), repeat=3 * rounds))).reshape(-1, rounds, 3)
    rules = np.concatenate([np.repeat(first, len(later), axis=0), np.tile(later, (3, 1, 1))], axis=1)
    least = min(value(part).min() for part in np.array_split(rules, 1 + len(rules) // 20_000))
    grid = np.array(list(itertools.product(range(3), repeat=rounds + 1)))
    on_grid = value(np.broadcast_to(grid[:, :, None], (*grid.shape, 3)))
    fixed = pj.tune_schedule(scenario, LAW)
    without = eqx.tree_at(lambda s: (s.noise, s.constant), fixed, (jnp.asarray(actions[grid[0]]), jnp.asarray(0.05)))
    best = pj.tune_policy(scenario, actions=actions.tolist(), schedule=without)
    close(best.value, least, 1e-10)
    assert least < on_grid.min() if rounds > 1 else least <= on_grid.min()  # release 1 has no consequences
    assert float(fixed.value) <= on_grid.min() * (1 + 1e-9)

    value_of = eqx.filter_jit(lambda log_noise: chain.value(jnp.exp(log_noise)[:, None]))

    def continuous(log_noise):
        return float(value_of(jnp.asarray(log_noise)))

    start = np.log(actions[grid[np.argmin(on_grid)]])
    bounds = [(np.log(1e-3), np.log(1e3))] * (rounds + 1)
    refined = scipy.optimize.minimize(
        continuous, start, method="Nelder-Mead", bounds=bounds, options={"xatol": 1e-9, "fatol": 1e-13, "maxiter": 4000}
    )
    close(fixed.value, refined.fun, 1e-6)


@pytest.mark.parametrize(("scenario", "none"), [(small(), 0.0), (response(), np.inf)], ids=["mean", "bits"])
def test_a_table_may_also_choose_no_privacy(scenario, none):
    """Besides three noises evenly spaced in the logarithm, unless the noises themselves are given."""
    low, high = jnp.log(0.1), jnp.log(10.0)
    close(_policy._choices(3, low, high, scenario), [0.1, 1.0, 10.0, none], 1e-12)
    close(_policy._choices([0.5, 2.0], low, high, scenario), [0.5, 2.0], 0)


@pytest.mark.slow
def test_reacting_pays_where_the_future_is_uncertain():
    scenario = small(rounds=4)
    best = pj.tune_policy(scenario, actions=24)
    assert float(best.value) < float(best.value_schedule) < float(best.value_constant)
    law = best.law()
    close(jnp.sum(law.expected_error), best.value, 1e-10)  # all whole numbers are nodes: no extrapolation
    assert "lower than the schedule" in str(best)
    close(best.to_xarray().value, best.value, 0)
    assert plots.plot_policy(best).axes[0].get_ylabel() == "population (users)"
    rule = pj.tune_policy(scenario, structure="log-linear", schedule=best.schedule)
    assert isinstance(rule.policy, pj.LogLinearPolicy)
    assert float(best.value) < float(rule.value) < float(best.value_constant)
    close(LAW(rule.scenario), rule.value, 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "rounds", "cap"),
    [
        (20, 2, 10),
        *(pytest.param(*x, marks=pytest.mark.study) for x in ((10, 6, 120), (30, 4, 40), (80, 3, 16), (60, 2, 11))),
    ],
)
def test_never_losing_on_random_scenarios(count, rounds, cap):
    """A schedule never loses to the constant noise, a policy never to the schedule, on one kernel."""
    rng = np.random.default_rng(cap)
    changes = []
    for _ in range(count):
        scenario = gaussian(
            dim=4,
            leave=rng.uniform(),
            recruit=rng.uniform(),
            threshold=10 ** rng.uniform(-2.5, 0),
            cap=float(cap),
            population=float(rng.integers(1, cap + 1)),
            rounds=rounds,
        )
        best = pj.tune_policy(scenario, actions=24)
        values = np.array([best.value, best.value_schedule, best.value_constant])
        assert np.all(values[:-1] <= values[1:] * (1 + 1e-6)), scenario
        changes.append(values[:-1] / values[1:] - 1)
    assert np.mean(np.array(changes)[:, 1] < -1e-3) > 0.3  # it is not that all three are the constant


PUBLISHED = [
    (0.11, 0.52, 0.02),
    (0.3, 0.7, 0.2),
    (0.5, 0.5, 0.02),
    (0.7, 0.3, 0.2),
    (0.45, 0.11, 0.02),
    (0.7, 0.3, 0.02),
]


@pytest.mark.study
def test_never_losing_at_published_settings():
    for at in PUBLISHED:
        best = pj.tune_policy(published(*at), actions=48)
        assert float(best.value) <= float(best.value_schedule) * (1 + 1e-6), at
        assert float(best.value_schedule) <= float(best.value_constant) * (1 + 1e-6), at


def mean_of_four(**changes):
    return gaussian(**({"dim": 4, "cap": 60.0, "rounds": 6} | changes))


SIMULATED = {
    "mean": lambda: {
        "collapse likely": mean_of_four(population=6.0, leave=0.9, recruit=0.4, threshold=0.1),
        "growth": mean_of_four(population=20.0, threshold=0.05),
        "decline": mean_of_four(population=30.0, leave=0.8, recruit=0.3),
    },
    "everyone recruits": lambda: {
        "full": mean_of_four(population=40.0, leave=0.9, recruit=0.2, recruiters="everyone"),
    },
    "bits": lambda: {
        "growth": response(population=30.0, cap=100.0, rounds=6),
        "decline": response(population=60.0, cap=100.0, rounds=6, leave=0.7, recruit=0.2),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mean", "bits", pytest.param("everyone recruits", marks=pytest.mark.study)])
def test_dynamic_programming_is_what_its_policy_costs_in_simulation(name):
    for setting, scenario in SIMULATED[name]().items():
        best = pj.tune_policy(scenario, actions=24)
        runs = pj.simulate_counts(best.scenario, key=jax.random.key(11), trials=100_000)
        sums = np.sum(np.asarray(runs.expected_error), axis=1)
        assert abs(sums.mean() - float(best.value)) <= 3 * sums.std() / np.sqrt(sums.size), setting
