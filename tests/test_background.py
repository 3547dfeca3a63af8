"""Users whom no leak drives: spared ones who leave, leaked ones who recruit, in every solver."""

import itertools
import json
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from assertions import close
from scenarios import gaussian, response

import perfjax as pj
from perfjax import theorems
from perfjax.calibration import _few, _flows
from perfjax.leakage import Split

Q, R, Q_SPARED, R_LEAKED = 0.4, 0.3, 0.1, 0.05
RATES = {"leave": Q, "recruit": R, "leave_spared": Q_SPARED, "recruit_leaked": R_LEAKED}
log_few, log_few_flows, flows = map(eqx.filter_jit, (_few.log_few, _few.log_few_flows, _flows.flows))
P = 1 / (1 + math.exp(-0.5))  # leaked by randomized response at epsilon 0.5


def bits(**changes):
    return response(0.5, **{"population": 10.0, "cap": 60.0, "rounds": 3, "floor": 0.0} | RATES | changes)


def next_population(n, q, r, q_spared, r_leaked, p=P):
    """P(next population = 0 .. 2 n) from n users, each on its own: leaked or not, stays or not, recruits or not."""
    each = np.zeros(3)
    for weight, leave, recruit in ((p, q, r_leaked), (1 - p, q_spared, r)):
        each += weight * np.convolve([leave, 1 - leave], [1 - recruit, recruit])
    total = np.ones(1)
    for _ in range(n):
        total = np.convolve(total, each)
    return total


@pytest.mark.parametrize("kept", [0.0, 0.3, 1.0])
def test_growth_of_four_rates(kept):
    who = pj.Participation(**RATES)
    expected = (1 - kept) * (1 - Q + R_LEAKED) + kept * (1 - Q_SPARED + R)
    close(who.growth(Split(jnp.asarray(1 - kept), jnp.asarray(kept))), expected, 1e-14)


def test_everyone_is_a_case_of_four_rates():
    one = pj.Participation(Q, R, recruiters="everyone", leave_spared=Q_SPARED)
    other = pj.Participation(Q, R, leave_spared=Q_SPARED, recruit_leaked=R)
    law = jnp.asarray([0.2, 0.8, 0.13])
    for method in ("growth_and_spread", "flow_moments"):
        np.testing.assert_allclose(getattr(one, method)(*law), getattr(other, method)(*law), rtol=1e-14)


def test_moments_of_flows_are_those_of_an_enumeration():
    """Of three users, leaked together or alone: every (leaked, leavers, joiners)."""
    leaked_count = np.array([0.3, 0.2, 0.1, 0.4])
    n, k = 3, np.arange(4)
    mean, variance = leaked_count @ k, leaked_count @ (k - leaked_count @ k) ** 2
    joint = np.zeros((4, 4))
    for number, chance in enumerate(leaked_count):
        pmf = scipy.stats.binom.pmf
        leavers = np.convolve(pmf(np.arange(4), number, Q), pmf(np.arange(4), n - number, Q_SPARED))[:4]
        joiners = np.convolve(pmf(np.arange(4), number, R_LEAKED), pmf(np.arange(4), n - number, R))[:4]
        joint += chance * np.outer(leavers, joiners)
    out, new = joint.sum(1) @ k, joint.sum(0) @ k
    expected = np.array([out, new, joint.sum(1) @ (k - out) ** 2, joint.sum(0) @ (k - new) ** 2, 0]) / n
    expected[4] = (k - out) @ joint @ (k - new) / n
    who = pj.Participation(**RATES)
    share = jnp.asarray([mean / n, 1 - mean / n, variance / n])
    np.testing.assert_allclose(who.flow_moments(*share), expected, rtol=1e-13)
    growth, spread = who.growth_and_spread(*share)
    close(growth, 1 - expected[0] + expected[1], 1e-13)
    close(spread, expected[2] + expected[3] - 2 * expected[4], 1e-13)


def test_net_rates_give_the_same_growth_to_theorems():
    for q, r, q_spared, r_leaked in itertools.product([0.1, 0.5], [0.2, 0.6], [0.0, 0.15], [0.0, 0.05]):
        who = pj.Participation(q, r, leave_spared=q_spared, recruit_leaked=r_leaked)
        kept = jnp.asarray([0.0, 0.4, 1.0])
        close(theorems.growth_factor(1 - kept, *who.net), who.growth(Split(1 - kept, kept)), 1e-13)
    grows = bits(cap=1e4, leave=0.2)
    critical = float(theorems.critical_epsilon(*grows.participation.net))
    close(pj.mean_field(grows.replace(epsilon=critical)).population, 10.0, 1e-12)
    assert tuple(pj.Participation(0.5, 0.1, leave_spared=0.2).net) == (1, 0)  # shrinks, leaked or not
    assert tuple(pj.Participation(0.1, 0.3, recruiters="everyone").net) == (0, pytest.approx(0.3))


def test_mean_field_and_law_are_the_exact_chain():
    scenario = bits()
    transitions = np.zeros((61, 61))
    for n in range(61):
        row = next_population(n, Q, R, Q_SPARED, R_LEAKED)
        transitions[n, :61] = row[:61][: min(61, row.size)].tolist() + [0] * (61 - min(61, row.size))
        transitions[n, 60] += row[61:].sum()
    state, law = np.eye(61)[10], pj.population_law(scenario)
    path = pj.mean_field(scenario).population
    for t in range(1, 4):
        state = state @ transitions
        on_whole = np.zeros(61)
        np.add.at(on_whole, np.round(np.asarray(law.nodes)).astype(int), np.asarray(law.probability[t]))
        np.testing.assert_allclose(on_whole, state, atol=1e-12)
        close(path[t], 10 * ((1 - Q + R_LEAKED) * P + (1 - Q_SPARED + R) * (1 - P)) ** t, 1e-12)


def test_counts_and_users_draw_from_the_same_chain():
    trials, scenario = 4000, bits(rounds=1)
    chance = next_population(10, Q, R, Q_SPARED, R_LEAKED)
    for simulate in (pj.simulate_counts, pj.simulate_users):
        n = np.asarray(simulate(scenario, key=jax.random.key(5), trials=trials).population)[:, 1].astype(int)
        seen = np.bincount(n, minlength=21)
        some = chance * trials > 5
        assert scipy.stats.chisquare(seen[some], chance[some] / chance[some].sum() * seen[some].sum()).pvalue > 1e-3


@pytest.mark.slow
def test_many_users_have_the_mean_and_variance_of_four_rates():
    scenario = gaussian(2.0, population=5000.0, cap=1e5, rounds=1, **RATES)
    law = pj.population_law(scenario)
    runs = np.asarray(pj.simulate_counts(scenario, key=jax.random.key(1), trials=4000).population)[:, 1]
    close(law.mean[1], pj.mean_field(scenario).population[1], 1e-4)
    assert abs(runs.mean() - law.mean[1]) < 4 * runs.std() / math.sqrt(4000)
    assert abs(runs.std() / law.std[1] - 1) < 4 / math.sqrt(2 * 4000)


@pytest.mark.parametrize("name", ["leave_spared", "recruit_leaked"])
def test_the_derivative_at_no_background_is_that_beside_it(name):
    """Counts are not even drawn there: their mean has the slope."""

    def last(scenario, rate, run):
        return jnp.mean(run(scenario.replace(**{name: rate})).population[..., 1])

    start = response(0.5, population=1000.0, cap=1e5, rounds=1)
    exact = 1000 * (-(1 - P) if name == "leave_spared" else P)
    for run, rtol in (
        (pj.mean_field, 1e-12),
        (lambda s: pj.simulate_counts(s, key=jax.random.key(0), trials=200), 0.01),
    ):
        close(jax.grad(last, argnums=1)(start, 0.0, run), exact, rtol)


def test_few_users_are_enumerated():
    who = pj.Participation(**RATES, floor=3, cap=14)
    chance = jnp.asarray(np.pad(scipy.stats.binom.pmf(np.arange(11), 10, P), (0, 30)))[None]
    row = next_population(10, Q, R, Q_SPARED, R_LEAKED)
    held = {3: row[:4].sum(), 7: row[7], 11: row[11], 14: row[14:].sum()}
    for end, expected in held.items():
        log_p = log_few(who, chance, jnp.asarray([10.0]), jnp.asarray([float(end)]), jnp.zeros(1))
        close(np.exp(log_p), expected, 1e-12)


def test_leavers_and_joiners_of_few_users_are_enumerated():
    chance = scipy.stats.binom.pmf(np.arange(11), 10, P)
    pmf, all_k = scipy.stats.binom.pmf, np.arange(11)
    expected = np.zeros((11, 11))
    for k in range(11):
        left = np.convolve(pmf(all_k, k, Q), pmf(all_k, 10 - k, Q_SPARED))[:11]
        joined = np.convolve(pmf(all_k, k, R_LEAKED), pmf(all_k, 10 - k, R))[:11]
        expected += chance[k] * np.outer(left, joined)
    out, new = (x.ravel().astype(float) for x in np.meshgrid(all_k, all_k, indexing="ij"))
    wide = jnp.broadcast_to(jnp.pad(jnp.asarray(chance), (0, 30)), (121, 41))
    who, n = pj.Participation(**RATES), jnp.full(121, 10.0)
    found = log_few_flows(who, wide, n, jnp.asarray(out), jnp.asarray(new))
    np.testing.assert_allclose(np.exp(found), expected.ravel(), rtol=1e-11)


def test_slopes_of_few_users_by_each_rate():
    """Against differences to one side, for two of the rates are 0."""
    chance = jnp.asarray(np.random.default_rng(0).dirichlet(np.ones(41), 2))
    n, end, rates = jnp.asarray([40.0, 40.0]), jnp.asarray([37.0, 45.0]), jnp.asarray([Q, R, 0.0, 0.0])

    @jax.jit
    def total(rates):
        who = pj.Participation(*rates[:2], leave_spared=rates[2], recruit_leaked=rates[3], cap=100)
        return jnp.sum(_few.log_few(who, chance, n, end, jnp.zeros(2)))

    step, at = 1e-4, float(total(rates))
    forward = [[float(total(rates.at[i].add(j * step))) for j in (1, 2, 3)] for i in range(4)]
    differences = [(18 * a - 9 * b + 2 * c - 11 * at) / (6 * step) for a, b, c in forward]
    np.testing.assert_allclose(jax.jacfwd(total)(rates), differences, rtol=1e-6)


@pytest.mark.parametrize(("p", "q"), [(0.45, 0.03), (0.03, 0.45), (0.1, 0.9), (0.2, 0.2), (0.4, 0.0), (0.0, 0.3)])
@pytest.mark.parametrize(("k", "m", "error"), [(40, 10, 0.04), (500, 500, 0.002), (30, 2000, 0.002)])
def test_the_sum_of_two_binomials(k, m, p, q, error):
    """Against the convolution; of one binomial it is exact, but for rounding."""
    exact = np.convolve(scipy.stats.binom.pmf(np.arange(k + 1), k, p), scipy.stats.binom.pmf(np.arange(m + 1), m, q))
    x, total = jnp.arange(k + m + 1.0), jnp.ones(k + m + 1)
    found = _flows.log_two_binomials(x, k * total, m * total, p * total, q * total)
    seen = exact > 1e-12
    error = 1e-9 if p == q or p * q == 0 else error
    np.testing.assert_allclose(np.asarray(found)[seen], np.log(exact[seen]), atol=error)
    assert np.all(np.exp(np.asarray(found)[exact == 0]) < 1e-100)


@pytest.mark.parametrize("rates", [RATES, RATES | {"recruit": 0.95, "recruit_leaked": 0.3}])
def test_many_leavers_and_joiners_are_a_sum_over_the_leaked(rates):
    """Given what they share users are independent: the flows are a mixture of those of a four-way split of n.

    At the first of three nodes of what is shared, the leaked count is far narrower than what the flows tell of it.
    """
    n, share = 200, np.array([0.02, 0.5, 0.9])
    q, r, q_spared, r_leaked = rates.values()
    rng = np.random.default_rng(0)
    leaked = rng.binomial(n, np.repeat(share, 4))
    out = rng.binomial(leaked, q) + rng.binomial(n - leaked, q_spared)
    new = rng.binomial(leaked, r_leaked) + rng.binomial(n - leaked, r)
    k = np.arange(n + 1)

    def flow(of_leaked, of_spared):
        """P(0 .. n) for every leaked count."""
        one, other = (scipy.stats.binom.pmf(k, k[:, None], p) for p in (of_leaked, of_spared))
        return np.array([np.convolve(x, y)[: n + 1] for x, y in zip(one, other[::-1], strict=True)])

    chance = np.mean(scipy.stats.binom.pmf(k[:, None], n, share), axis=1)
    both = chance @ (flow(q, q_spared)[:, out] * flow(r_leaked, r)[:, new])
    each = np.broadcast_to(share, (out.size, 3))
    given = pj.leakage.LeakDistribution(*map(jnp.asarray, (each, 1 - each, each * (1 - each), each**2)))
    law = _flows.SharedLaw(given, jnp.full((out.size, 3), 1 / 3), None)
    rows = (jnp.full(out.size, float(n)), jnp.asarray(out, float), jnp.asarray(new, float))
    found = flows(bits(cap=1e4, **rates), law, *rows).log_probability
    np.testing.assert_allclose(found, np.log(both), atol=0.015)


def test_background_rates_are_leaves(tmp_path):
    scenario = pj.preset("mean-estimation").replace(leave_spared=0.03, recruit_leaked=0.02)
    path = tmp_path / "background.toml"
    pj.save_scenario(scenario, path)
    again = pj.load_scenario(path)
    assert (float(again.participation.leave_spared), float(again.participation.recruit_leaked)) == (0.03, 0.02)
    grid = pj.sweep(pj.mean_field, scenario.replace(rounds=2), {"leave_spared": [0.0, 0.03]})
    close(grid.population[1, -1], pj.mean_field(scenario.replace(rounds=2)).population[-1], 1e-12)
    assert "leave_spared" in pj.sensitivities(pj.tune(scenario)).values


def test_background_rates_out_of_range_are_one_clear_line():
    with pytest.raises(ValueError, match=r"^Argument `leave_spared` must lie in \[0, 1\], but is 1\.5\.$"):
        pj.Participation(0.1, 0.2, leave_spared=1.5)
    with pytest.raises(
        ValueError, match=r'^Argument `recruit_leaked` must be 0 with recruiters "everyone"[^\n]*0\.1\.$'
    ):
        pj.Participation(0.1, 0.2, recruiters="everyone", recruit_leaked=0.1)
    with pytest.raises(ValueError, match="not name `recruit_leaked` where everyone recruits alike"):
        pj.fit([30, 31, 29], response(recruiters="everyone"), free="recruit_leaked")


@pytest.mark.slow
def test_the_command_takes_background_rates_and_doubts_them(run):
    arguments = ("tune", "--preset", "mean-estimation", "--leave-spared", 0.02)
    report = json.loads(run(*arguments, "--json")[1])
    assert "leave_spared = 0.02" in report["scenario"]
    scenario = pj.preset("mean-estimation").replace(leave_spared=0.02)
    objective = pj.CumulativeError(first_release=0)
    best = pj.tune(scenario, objective)
    close(report["best"]["noise"], best.noise, 1e-6)
    assert "recruit_leaked" not in report["regret"]
    for sign, truth in (("-20 %", 0.016), ("+20 %", 0.024)):
        close(report["regret"]["leave_spared"][sign], pj.regret(best, scenario.replace(leave_spared=truth)), 1e-6)
    code, _, error = run("simulate", "--preset", "mean-estimation", "--recruit-leaked", 1.2)
    assert code == 2
    assert "`recruit_leaked` must lie in [0, 1], but is 1.2." in error
    assert "--leave-spared" in run("schedule", "--help")[1]
