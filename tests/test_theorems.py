"""The closed forms of `perfjax.theorems`, each against an independent number.

Oracle values, exact sums, quadrature and per-record simulation in NumPy. *Correct*: equals the known value.
*Honest*: a bound is never crossed where it claims to be one, and is where the docstring says that it is none.
"""

import ast
import functools
import inspect
import itertools
import math
import re
from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import cases

from perfjax import theorems as th

PAPER = "Performative Privacy: When Differential Privacy Maximizes Utility"
quick = settings(max_examples=60, deadline=None, derandomize=True, database=None)
chances = st.floats(0.0, 1.0, allow_subnormal=False)


def oracle(kind):
    return [pytest.param(case, id=case["name"]) for case in cases("performative", kind)]


def agrees(found, case):
    np.testing.assert_allclose(found, case["value"], rtol=case["tol"], atol=0)


# What the tests compare with, in NumPy and SciPy only.


def exact_leak_probability(s, gamma, n, tau):
    m = math.sqrt(n) * s / ((n - 1) * gamma)
    return scipy.stats.norm.sf((tau - m * m / 2) / m)


@functools.cache
def marginal_leak_probability(gamma, n, tau, d):
    """Eq (11) for standard normal records without clipping: s^2 is (1 - 1/n) chi-square."""

    def integrand(y):
        x = math.exp(y)
        s = math.sqrt((1 - 1 / n) * x)
        return exact_leak_probability(s, gamma, n, tau) * scipy.stats.chi2.pdf(x, d) * x

    return scipy.integrate.quad(integrand, -30, math.log(d) + 5, epsabs=1e-13, epsrel=1e-11, limit=400)[0]


def mean_field(gamma, n, tau, d, q, r, rounds):
    """Growth factors C_1..C_T and populations n_0..n_T of the expected path, without floor or cap."""
    growth, population = [], [float(n)]
    for _ in range(rounds):
        p = marginal_leak_probability(gamma, population[-1], tau, d)
        growth.append(1 + r - (q + r) * p)
        population.append(population[-1] * growth[-1])
    return np.array(growth), np.array(population)


def geometric_sum(growth, first, last):
    """Correctly rounded sum of correctly rounded powers."""
    return math.fsum(growth**-t for t in range(first, last + 1))


def within(sample, value, errors=4.0):
    """The sample mean lies within `errors` standard errors of `value`; the sample is large enough to tell."""
    standard_error = np.std(sample, ddof=1) / math.sqrt(len(sample))
    assert abs(np.mean(sample) - value) < errors * standard_error
    assert standard_error < 0.02 * abs(value)


# The catalogue.


def test_no_result_is_missing():
    expected = (
        [f"Lemma {i}" for i in range(1, 13)] + [f"Theorem {i}" for i in range(1, 5)] + ["Corollary 1", "Corollary 2"]
    )
    assert set(expected) <= set(th.RESULTS)
    listed = set(itertools.chain.from_iterable(th.RESULTS.values()))
    assert {f.__name__ for f in listed} == {n for n in th.__all__ if inspect.isfunction(getattr(th, n))}


@pytest.mark.parametrize("result", list(th.RESULTS))
def test_each_result_is_named_in_the_docstring_of_its_first_function_only(result):
    named = [
        name
        for name in th.__all__
        if inspect.isfunction(getattr(th, name)) and re.search(rf"{result}\b", getattr(th, name).__doc__)
    ]
    assert named == [th.RESULTS[result][0].__name__]


@pytest.mark.parametrize("name", [n for n in th.__all__ if inspect.isfunction(getattr(th, n))])
def test_each_docstring_says_what_it_returns_where_it_comes_from_and_how_far_to_trust_it(name):
    text = inspect.getdoc(getattr(th, name))
    assert PAPER in " ".join(text.split())
    for heading in ("Args:", "Returns:", "Raises:", "Source:"):
        assert f"\n{heading}\n" in text
    assert re.search(r"^(Exact|An? (upper |lower )?bound|An upper|Bounds|A sufficient|Sufficient)", text, re.M) or (
        "mean-field" in text
    )


def test_imports_no_simulator():
    allowed = {"collections", "jax", "jaxtyping", "math", "types", "typing"}
    for file in Path(th.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            for name in names:
                ours = name == "perfjax._check" or name.startswith("perfjax.theorems")
                assert ours or name.split(".")[0] in allowed, f"{file.name} imports {name}"


# Randomized response.


@pytest.mark.parametrize("case", oracle("beta"))
def test_perturbation_oracle(case):
    agrees(th.perturbation(case["inputs"]["epsilon"]), case)


def test_perturbation_limits():
    np.testing.assert_array_equal(th.perturbation(jnp.array([0.0, jnp.inf])), [0.0, 0.5])
    np.testing.assert_array_equal(th.epsilon_from_perturbation(jnp.array([0.0, 0.5])), [0.0, jnp.inf])


@pytest.mark.parametrize("epsilon", [1e-9, 1e-3, 0.7, 5.0, 12.0])
def test_perturbation_spends_exactly_its_budget(epsilon):
    beta = th.perturbation(epsilon)
    kept, flipped = 0.5 + float(beta), 0.5 - float(beta)
    np.testing.assert_allclose(math.log(kept / flipped), epsilon, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(th.epsilon_from_perturbation(beta), epsilon, rtol=1e-9)


@pytest.mark.parametrize("case", oracle("critical_beta"))
def test_critical_perturbation_oracle(case):
    agrees(th.critical_perturbation(**case["inputs"]), case)


@pytest.mark.parametrize("case", oracle("critical_epsilon"))
def test_critical_epsilon_oracle(case):
    agrees(th.critical_epsilon(**case["inputs"]), case)


@pytest.mark.parametrize("recruiters", ["spared", "everyone"])
@quick
@given(q=chances, r=chances)
def test_critical_budget_is_where_growth_crosses_one(recruiters, q, r):
    beta = float(th.critical_perturbation(q, r, recruiters=recruiters))
    epsilon = float(th.critical_epsilon(q, r, recruiters=recruiters))
    if beta < 0.5 - 1e-9:
        np.testing.assert_allclose(th.perturbation(epsilon), beta, rtol=1e-9, atol=1e-12)

    def growth(b):
        return 1 + r - (0.5 + b) * (q + r if recruiters == "spared" else q)

    if growth(0.0) < 1:
        assert beta == 0
        assert epsilon == 0
    else:
        assert growth(beta) >= 1 - 1e-12
        if beta < 0.5:
            np.testing.assert_allclose(growth(beta), 1.0, rtol=1e-12)
            assert growth(min(0.5, beta + 1e-3)) <= 1


def test_critical_budget_edges():
    q, r = jnp.array([0.0, 0.0, 0.5, 1.0, 0.3]), jnp.array([0.0, 0.5, 0.0, 1.0, 0.3])
    np.testing.assert_array_equal(th.critical_perturbation(q, r), [0.5, 0.5, 0.0, 0.0, 0.0])
    np.testing.assert_array_equal(th.critical_epsilon(q, r), [jnp.inf, jnp.inf, 0.0, 0.0, 0.0])
    everyone = th.critical_epsilon(q, r, recruiters="everyone")
    np.testing.assert_array_equal(everyone, [jnp.inf, jnp.inf, 0.0, jnp.inf, jnp.inf])
    # a budget of 3e-9 survives the rounding of r/q, in exact arithmetic on the two doubles
    excess = Fraction(0.3 + 1e-9) / Fraction(0.3) - 1
    np.testing.assert_allclose(th.critical_epsilon(0.3, 0.3 + 1e-9), float(excess - excess**2 / 2), rtol=1e-12)


@pytest.mark.parametrize("case", oracle("rr_growth"))
def test_randomized_response_growth_oracle(case):
    given_ = case["inputs"]
    p = 0.5 + th.perturbation(given_["epsilon"])
    recruiters = "everyone" if given_["agnostic"] else "spared"
    agrees(th.growth_factor(p, given_["leave"], given_["recruit"], recruiters=recruiters), case)


@pytest.mark.parametrize("case", oracle("rr_error"))
def test_response_error_oracle(case):
    given_ = dict(case["inputs"])
    mean = (0.0, 1.0) if given_["mean"] is None else given_["mean"]
    agrees(th.response_error(given_["epsilon"], given_["population"], mean), case)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 6.0])
@pytest.mark.parametrize("mean", [0.0, 0.3, 1.0])
def test_estimate_is_unbiased_with_the_stated_error(epsilon, mean):
    n = 7
    kept = math.exp(epsilon) / (1 + math.exp(epsilon))
    ones = np.arange(n + 1)
    weight = scipy.stats.binom.pmf(ones, n, mean * kept + (1 - mean) * (1 - kept))
    estimate = np.asarray(th.unbiased_estimate(ones / n, epsilon))
    np.testing.assert_allclose(weight @ estimate, mean, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(
        weight @ (estimate - mean) ** 2, th.response_error(epsilon, n, mean), rtol=1e-10, atol=1e-15
    )
    np.testing.assert_allclose(weight @ ones / n, th.response_rate(mean, epsilon), rtol=1e-13)
    clipped = weight @ (np.clip(estimate, 0, 1) - mean) ** 2
    assert clipped <= float(th.response_error(epsilon, n, mean)) * (1 + 1e-12)


def test_response_error_averages_over_an_interval():
    fixed = np.asarray(th.response_error(0.8, 20, np.linspace(0.5, 1.0, 2001)))
    average = scipy.integrate.simpson(fixed, dx=1 / 2000)
    np.testing.assert_allclose(th.response_error(0.8, 20, (0.5, 1.0)), average, rtol=1e-12)


def test_response_error_limits():
    np.testing.assert_allclose(th.response_error(jnp.inf, 50, 0.3), 0.3 * 0.7 / 50, rtol=1e-14)
    np.testing.assert_allclose(th.response_error(jnp.inf, 50, (0.0, 1.0)), 1 / 300, rtol=1e-14)
    assert th.response_error(0.0, 50, 0.3) == jnp.inf
    assert th.response_error(jnp.inf, 0, 1.0) == jnp.inf
    # at mean 0 and a large budget the printed variance is a difference of equal numbers
    np.testing.assert_allclose(th.response_error(40.0, 1, 0.0), math.exp(-40.0), rtol=1e-14)
    assert jax.grad(lambda e: th.response_error(e, 50.0, 0.3))(jnp.inf) == 0


# Population.


@pytest.mark.parametrize("recruiters", ["spared", "everyone"])
def test_growth_factor_ends(recruiters):
    nobody, everybody = (th.growth_factor(p, 0.9, 0.4, recruiters=recruiters) for p in (0.0, 1.0))
    np.testing.assert_allclose(nobody, 1.4, rtol=1e-15)
    np.testing.assert_allclose(everybody, 0.1 if recruiters == "spared" else 0.5, rtol=1e-15)
    assert th.growth_factor(1.0, 1.0, 0.7) == 0


@pytest.mark.parametrize("recruiters", ["spared", "everyone"])
def test_expected_population_is_the_mean_of_algorithm_1(recruiters):
    """Records, noise, ratios of two densities, leavers and recruits, all drawn in NumPy."""
    rng = np.random.default_rng(5)
    n, d, gamma, tau, q, r, runs = 12, 3, 0.8, 0.2, 0.6, 0.3, 20_000
    z = rng.normal(size=(runs, n, d))
    out = z.mean(1, keepdims=True) + gamma / math.sqrt(n) * rng.normal(size=(runs, 1, d))
    without = (z.sum(1, keepdims=True) - z) / (n - 1)
    inside = ((out - z.mean(1, keepdims=True)) ** 2).sum(-1)
    ratio = n / (2 * gamma**2) * (((out - without) ** 2).sum(-1) - inside)
    leaked = ratio > tau
    recruiting = ~leaked if recruiters == "spared" else np.ones_like(leaked)
    leavers = (leaked & (rng.random((runs, n)) < q)).sum(1)
    recruits = (recruiting & (rng.random((runs, n)) < r)).sum(1)
    distance = np.linalg.norm(z[:, 0] - z.mean(1), axis=-1)
    p = th.leak_probability_given_distance(distance, gamma, n, threshold=tau).mean()
    within(n - leavers + recruits, float(th.expected_population(n, p, q, r, recruiters=recruiters)))


def test_growth_accelerates_on_a_growing_expected_path_and_the_reverse():
    growing, _ = mean_field(1.0, 100, 0.02, 10, 0.3, 0.6, rounds=8)
    shrinking, _ = mean_field(2.0, 100, 0.2, 10, 0.9, 0.1, rounds=8)
    assert growing[0] > 1 > shrinking[0]
    assert th.growth_is_increasing(growing)
    assert th.growth_is_increasing(shrinking[::-1])
    np.testing.assert_array_equal(
        th.growth_is_increasing(np.stack([growing, shrinking, np.full(8, 1.1)])), [True, False, False]
    )
    assert th.growth_is_increasing(np.array([0.5]))


@pytest.mark.parametrize("case", oracle("kantorovich"))
def test_kantorovich_factor_oracle(case):
    agrees(th.kantorovich_factor(**case["inputs"]), case)


def test_kantorovich_factor_ends():
    np.testing.assert_array_equal(th.kantorovich_factor(jnp.array([0.0, 1.0]), jnp.array([0.0, 1.0])), [1.0, jnp.inf])


@quick
@given(q=st.floats(0.0, 0.99), r=chances, u=chances, v=chances, weight=chances)
def test_error_bounds_hold_for_every_two_point_law_of_the_ratio(q, r, u, v, weight):
    low, high = 1 - q, 1 + r
    a, b = low + u * (high - low), low + v * (high - low)
    growth = weight * a + (1 - weight) * b
    truth = weight / a + (1 - weight) / b
    lower, upper = th.error_bounds(1.0, growth, q, r)
    assert lower <= truth * (1 + 1e-12)
    assert truth <= upper * (1 + 1e-12)


@pytest.mark.parametrize(("q", "r"), [(0.5, 0.5), (0.9, 0.1), (0.1, 0.9)])
def test_upper_error_bound_is_attained_by_the_two_ends(q, r):
    low, high = 1 - q, 1 + r
    truth = (1 / low + 1 / high) / 2
    np.testing.assert_allclose(th.error_bounds(1.0, (low + high) / 2, q, r).upper, truth, rtol=1e-13)


@pytest.mark.parametrize(
    ("n", "q", "r", "side"), [(2, 0.9, 0.1, "lower"), (4, 0.2, 0.0, "upper")], ids=["lower", "upper"]
)
def test_error_bounds_fail_for_whole_users_with_a_floor(n, q, r, side):
    """The correction: all users leaked, each leaves or stays as a whole, one always remains."""
    leavers = np.arange(n + 1)
    inverse = scipy.stats.binom.pmf(leavers, n, q) @ (1 / np.maximum(n - leavers, 1))
    bounds = th.error_bounds(1 / n, th.growth_factor(1.0, q, r), q, r)
    if side == "lower":
        np.testing.assert_allclose(inverse, 0.995, rtol=1e-12)
        np.testing.assert_allclose(bounds.lower, 5.0, rtol=1e-12)
        assert inverse < bounds.lower
    else:
        assert inverse > bounds.upper


# One Gaussian release.


def test_mahalanobis_error_is_that_of_simulated_releases():
    rng = np.random.default_rng(0)
    n, d, gamma, runs = 6, 3, 0.7, 40_000
    factor = np.array([[1.0, 0.0, 0.0], [0.5, 0.8, 0.0], [-0.3, 0.2, 1.5]])
    precision = np.linalg.inv(factor @ factor.T)
    deviation = (rng.normal(size=(runs, n, d)) @ factor.T).mean(1) + gamma / math.sqrt(n) * rng.normal(size=(runs, d))
    error = np.einsum("ki,ij,kj->k", deviation, precision, deviation)
    within(error, float(th.mahalanobis_error(gamma, n, dim=d, precision_trace=np.trace(precision))))


@pytest.mark.parametrize("case", oracle("gdp_mu"))
def test_gaussian_dp_oracle(case):
    agrees(th.gaussian_dp(**case["inputs"]), case)


@pytest.mark.parametrize("case", oracle("leak_given_distance"))
def test_leak_probability_oracle(case):
    agrees(th.leak_probability_given_distance(**case["inputs"]), case)


@pytest.mark.parametrize("case", oracle("optimized_renyi_tail"))
def test_optimal_tail_bound_oracle(case):
    agrees(th.optimal_tail_bound(**case["inputs"]), case)


@pytest.mark.parametrize("n", [2, 9])
def test_privacy_loss_is_the_ratio_of_two_densities(n):
    rng = np.random.default_rng(n)
    d, gamma, tau = 3, 1.3, 0.4
    z = rng.normal(size=(n, d))
    centre, without = z.mean(0), z[1:].mean(0)
    out = centre + gamma / math.sqrt(n) * rng.normal(size=(50_000, d))
    spread = gamma**2 / n * np.eye(d)
    normal = scipy.stats.multivariate_normal
    loss = normal.logpdf(out, centre, spread) - normal.logpdf(out, without, spread)
    s = np.linalg.norm(z[0] - centre)
    law = th.privacy_loss_law(s, gamma, n)
    assert scipy.stats.kstest(loss, scipy.stats.norm(float(law.mean), float(law.std)).cdf).pvalue > 0.01
    within(loss > tau, float(th.leak_probability_given_distance(s, gamma, n, threshold=tau)))


@pytest.mark.parametrize("order", [0.5, 1.5, 2.0, 7.0])
def test_renyi_divergence_is_the_integral(order):
    s, gamma, n = 2.0, 1.5, 5
    shift, sd = s / (n - 1), gamma / math.sqrt(n)  # the two releases' means are s/(n-1) apart
    inside, outside = scipy.stats.norm(0, sd), scipy.stats.norm(shift, sd)
    integral, _ = scipy.integrate.quad(
        lambda x: math.exp(order * inside.logpdf(x) + (1 - order) * outside.logpdf(x)), -15, 15, limit=400
    )
    np.testing.assert_allclose(th.renyi_divergence(order, s, gamma, n), math.log(integral) / (order - 1), rtol=1e-8)
    kullback = scipy.integrate.quad(lambda x: inside.pdf(x) * (inside.logpdf(x) - outside.logpdf(x)), -15, 15)[0]
    np.testing.assert_allclose(th.renyi_divergence(1.0, s, gamma, n), kullback, rtol=1e-8)


@quick
@given(seed=st.integers(0, 10**6), order=st.floats(1.01, 30.0), tau=st.floats(0.01, 3.0))
def test_renyi_tail_bound_holds_for_arbitrary_discrete_mechanisms(seed, order, tau):
    inside, outside = np.random.default_rng(seed).dirichlet(np.full(5, 0.7), size=2) + 1e-12
    inside, outside = inside / inside.sum(), outside / outside.sum()
    loss = np.log(inside / outside)
    divergence = scipy.special.logsumexp((order - 1) * loss, b=inside) / (order - 1)
    bound = th.renyi_tail_bound(tau, order, max(divergence, 0.0))
    assert inside[loss > tau].sum() <= bound * (1 + 1e-9)


def test_renyi_tail_bound_is_attained_by_a_two_point_loss():
    order, tau, weight = 3.0, 1.0, 0.2
    # loss just above tau with probability `weight`, else -inf: Markov's inequality is an equality
    divergence = math.log(weight * math.exp((order - 1) * tau)) / (order - 1)
    np.testing.assert_allclose(th.renyi_tail_bound(tau, order, divergence), weight, rtol=1e-13)


releases = {
    "s": st.floats(0.01, 100.0),
    "gamma": st.floats(0.01, 100.0),
    "n": st.integers(2, 10**6),
    "tau": st.floats(1e-3, 10.0),
}


@quick
@given(**releases, order=st.floats(1.001, 100.0))
def test_tail_bounds_stay_above_the_exact_probability(s, gamma, n, tau, order):
    exact = exact_leak_probability(s, gamma, n, tau)
    best = float(th.optimal_tail_bound(s, gamma, n, threshold=tau))
    one = float(th.membership_tail_bound(s, gamma, n, threshold=tau, order=order))
    np.testing.assert_allclose(
        th.leak_probability_given_distance(s, gamma, n, threshold=tau), exact, rtol=1e-9, atol=1e-300
    )
    assert exact <= best * (1 + 1e-9)
    assert best <= one * (1 + 1e-9) + 1e-300
    assert one <= 1


@pytest.mark.parametrize(("s", "gamma", "n", "tau"), [(10.0, 2.0, 1000, 0.05), (1.0, 3.0, 20, 0.3)])
def test_optimal_order_is_the_best_order(s, gamma, n, tau):
    order = float(th.optimal_order(s, gamma, n, threshold=tau))
    assert order > 1
    scan = 1 + np.geomspace(1e-3, 1e3, 20_001)
    bounds = np.asarray(th.membership_tail_bound(s, gamma, n, threshold=tau, order=scan))
    np.testing.assert_allclose(scan[bounds.argmin()], order, rtol=1e-3)
    best = th.optimal_tail_bound(s, gamma, n, threshold=tau)
    np.testing.assert_allclose(th.membership_tail_bound(s, gamma, n, threshold=tau, order=order), best, rtol=1e-12)
    assert bounds.min() >= best * (1 - 1e-12)


def test_optimal_bound_is_vacuous_exactly_where_no_order_helps():
    s, gamma, n = 3.0, 1.0, 100
    a = float(th.privacy_loss_law(s, gamma, n).mean)
    assert th.optimal_tail_bound(s, gamma, n, threshold=a) == 1
    assert th.optimal_tail_bound(s, gamma, n, threshold=0.5 * a) == 1
    assert th.optimal_tail_bound(s, gamma, n, threshold=1.1 * a) < 1
    np.testing.assert_allclose(th.optimal_order(s, gamma, n, threshold=a), 1.0, rtol=1e-13)


@pytest.mark.parametrize("rate", [1e-8, 0.05, 0.7])
def test_threshold_keeps_the_false_positive_rate(rate):
    s, gamma, n = 3.0, 1.0, 40
    m = math.sqrt(n) * s / ((n - 1) * gamma)
    tau = float(th.threshold_at_false_positive_rate(s, gamma, n, false_positive_rate=rate))
    # without the record the ratio is N(-m^2/2, m^2)
    np.testing.assert_allclose(scipy.stats.norm.sf((tau + m * m / 2) / m), rate, rtol=1e-10)
    power = scipy.stats.norm.sf(scipy.stats.norm.isf(rate) - m)
    np.testing.assert_allclose(th.leak_probability_given_distance(s, gamma, n, threshold=tau), power, rtol=1e-10)


def test_membership_limits():
    leak = functools.partial(th.leak_probability_given_distance, threshold=0.02)
    assert leak(0.0, 1.0, 100) == 0
    assert leak(0.0, 0.0, 100) == 0
    assert leak(1.0, 0.0, 100) == 1
    assert leak(1.0, jnp.inf, 100) == 0
    np.testing.assert_array_equal(leak(0.0, 1.0, jnp.array([0.0, 1.0])), [1.0, 1.0])
    assert th.leak_probability_given_distance(0.0, 1.0, 100, threshold=0.0) == 0
    assert th.leak_probability_given_distance(0.0, 1.0, 100, threshold=-0.1) == 1
    assert th.optimal_tail_bound(0.0, 1.0, 100, threshold=0.02) == 0
    assert th.optimal_tail_bound(1.0, 0.0, 100, threshold=0.02) == 1
    assert th.optimal_order(0.0, 1.0, 100, threshold=0.02) == jnp.inf
    assert th.optimal_order(1.0, 0.0, 100, threshold=0.02) == 0.5
    assert th.membership_tail_bound(1.0, 0.0, 100, threshold=0.02, order=2.0) == 1
    assert th.gaussian_dp(1.0, 1.0, 1) == jnp.inf
    assert th.threshold_at_false_positive_rate(1.0, 0.0, 100, false_positive_rate=0.05) == -jnp.inf


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("bound", [th.leak_probability_given_distance, th.optimal_tail_bound])
def test_membership_derivatives_are_zero_where_nothing_changes(dtype, bound):
    def probability(s, gamma, n, tau):
        return bound(s, gamma, n, threshold=tau)

    def derivatives(*point):
        return jax.grad(probability, (0, 1, 2, 3))(*point), jax.jacfwd(probability, (0, 1, 2, 3))(*point)

    points = [
        (0.0, 1.0, 100.0, 0.02),
        (1e-30, 1.0, 1e9, 0.02),
        (3.0, 0.0, 100.0, 0.02),
        (3.0, 1e-6, 2.0, 0.02),
        (3.0, 1e6, 1e9, 0.02),
        (3.0, 1.0, 1.0, 0.02),
    ]
    for derivative in jax.tree.leaves(jax.jit(jax.vmap(derivatives))(*jnp.array(points, dtype).T)):
        np.testing.assert_array_equal(derivative, np.zeros(len(points)))


def test_distance_zero_keeps_its_slope():
    slope = jax.grad(th.gaussian_dp)(0.0, 2.0, 100.0)
    np.testing.assert_allclose(slope, 10 / 99 / 2, rtol=1e-14)


# The critical noise scale.


@pytest.mark.parametrize("case", oracle("critical_noise_scale"))
def test_critical_noise_scale_oracle(case):
    agrees(th.critical_noise_scale(**case["inputs"]), case)


@quick
@given(
    q=st.floats(1e-3, 1.0),
    r=st.floats(1e-3, 1.0),
    tau=st.floats(1e-3, 5.0),
    radius=st.floats(0.1, 100.0),
    n=st.integers(2, 10**6),
    shrink=st.floats(0.0, 1.0),
)
def test_critical_noise_scale_suffices_and_is_exact_at_the_largest_distance(q, r, tau, radius, n, shrink):
    gamma = float(th.critical_noise_scale(q, r, tau, clip_radius=radius, population=n))
    worst = exact_leak_probability(2 * radius, gamma, n, tau)
    np.testing.assert_allclose(worst, r / (q + r), rtol=1e-9)
    assert exact_leak_probability(2 * radius, 0.99 * gamma, n, tau) > r / (q + r)
    assert exact_leak_probability(2 * radius * shrink + 1e-9, 1.5 * gamma, n, tau) <= r / (q + r)


def test_critical_noise_scale_is_not_necessary():
    q, r, tau, d, n = 0.45, 0.11, 0.02, 12, 1000
    gamma = float(th.critical_noise_scale(q, r, tau, clip_radius=10.0, population=n))
    p = marginal_leak_probability(gamma / 2, n, tau, d)
    assert th.growth_factor(p, q, r) > 1


@quick
@given(q=st.floats(0.01, 1.0), r=st.floats(0.01, 1.0))
def test_critical_noise_scale_when_everyone_recruits(q, r):
    gamma = float(th.critical_noise_scale(q, r, 0.1, clip_radius=2.0, population=50, recruiters="everyone"))
    if q <= r:
        assert gamma == 0
    else:
        np.testing.assert_allclose(exact_leak_probability(4.0, gamma, 50, 0.1), r / q, rtol=1e-9)


def test_critical_noise_scale_edges():
    critical = functools.partial(th.critical_noise_scale, threshold=0.02, population=100)
    np.testing.assert_array_equal(
        critical(jnp.array([0.0, 0.0, 0.5, 1.0]), jnp.array([0.5, 0.0, 0.0, 0.0]), clip_radius=5.0),
        [0.0, 0.0, jnp.inf, jnp.inf],
    )
    assert critical(0.5, 0.5, clip_radius=jnp.inf) == jnp.inf
    assert critical(0.0, 0.5, clip_radius=jnp.inf) == 0
    assert th.critical_noise_scale(0.5, 0.5, 0.02, clip_radius=5.0, population=1) == jnp.inf
    # a < 0: the printed root cancels to nothing here
    q, r, tau = 1e-12, 1.0, 1e-8
    a = scipy.stats.norm.ppf(q / (q + r))
    expected = 10 / 99 * 10 / (math.sqrt(a * a + 2 * tau) - a)
    np.testing.assert_allclose(
        th.critical_noise_scale(q, r, tau, clip_radius=5.0, population=100), expected, rtol=1e-12
    )


# Many rounds.


@pytest.mark.parametrize("case", oracle("cumulative_bound"))
def test_cumulative_bound_oracle(case):
    x = case["inputs"]
    p = marginal_leak_probability(x["noise_scale"], x["population"], x["threshold"], x["dim"])
    growth = th.growth_factor(p, x["leave"], x["recruit"])
    first = th.mahalanobis_error(x["noise_scale"], x["population"], dim=x["dim"], precision_trace=x["dim"])
    agrees(th.cumulative_bound(first, growth, x["rounds"]), case)


near_one = [s * 10.0**-k for k in range(1, 16) for s in (-1, 1)]
growths = [0.05, 0.3, 0.8, 1.0, 1.2, 2.0, 50.0, 1e6, *(1 + x for x in near_one)]


@pytest.mark.parametrize(("dtype", "rtol"), [(jnp.float64, 1e-13), (jnp.float32, 1e-5)])
@pytest.mark.parametrize(("first", "last"), [(1, 1), (1, 50), (0, 9), (7, 25)])
def test_geometric_sum_for_every_growth(dtype, rtol, first, last):
    growth = np.array([c for c in growths if c**-last < 1e30 and c**-first > 1e-30], dtype)
    found = jnp.exp(th.log_geometric_sum(jnp.log(growth.astype(float)).astype(dtype), first=first, last=last))
    truth = [geometric_sum(float(c), first, last) for c in growth]
    if dtype == jnp.float32:  # the log of a growth factor, rounded to float32, is all that the function is told
        truth = [geometric_sum(math.exp(float(np.float32(math.log(float(c))))), first, last) for c in growth]
    assert found.dtype == dtype
    np.testing.assert_allclose(found, truth, rtol=rtol)
    if first == 1:
        np.testing.assert_allclose(
            th.cumulative_bound(jnp.ones_like(growth), growth, last),
            [geometric_sum(float(c), 1, last) for c in growth],
            rtol=rtol,
        )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_log_bound_does_not_overflow(dtype):
    rtol = 1e-6 if dtype == jnp.float32 else 1e-14

    def log_bound(growth, rounds):
        return th.log_cumulative_bound(jnp.asarray(0.0, dtype), jnp.asarray(math.log(growth), dtype), rounds)

    # C < 1: C^-T (1 + C + C^2 + ...); C > 1: 1/(C - 1)
    np.testing.assert_allclose(log_bound(1e-3, 50), 50 * math.log(1e3) - math.log1p(-1e-3), rtol=rtol)
    np.testing.assert_allclose(log_bound(0.5, 100_000), 100_000 * math.log(2) + math.log(2), rtol=rtol)
    np.testing.assert_allclose(log_bound(1.5, 100_000), math.log(2), rtol=rtol)
    np.testing.assert_allclose(log_bound(1e30, 100_000), -30 * math.log(10), rtol=rtol)
    np.testing.assert_allclose(log_bound(1.0, 100_000), math.log(100_000), rtol=rtol)
    for growth, rounds in [(1e-3, 50), (0.5, 100_000), (1e30, 100_000)]:
        slope = jax.grad(lambda g, t=rounds: th.log_geometric_sum(g, first=1, last=t))(
            jnp.asarray(math.log(growth), dtype)
        )
        end = rounds if growth < 1 else 1  # minus the mean exponent under weights C^-t
        inner = growth if growth < 1 else 1 / growth
        mean = end + (-1 if growth < 1 else 1) * inner / (1 - inner)
        np.testing.assert_allclose(slope, -mean, rtol=1e-5 if dtype == jnp.float32 else 1e-11)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_cumulative_bound_passes_through_growth_one(dtype):
    rounds = 50

    def bound(growth):
        return th.cumulative_bound(jnp.asarray(2.0, dtype), growth, rounds)

    def value_and_derivatives(growth):
        slope = jax.grad(bound)
        return bound(growth), slope(growth), jax.jacfwd(bound)(growth), jax.grad(slope)(growth)

    t = np.arange(1, rounds + 1)
    exact = 2 * np.array([rounds, -t.sum(), -t.sum(), (t * (t + 1)).sum()])
    found = jax.jit(value_and_derivatives)(jnp.asarray(1.0, dtype))
    np.testing.assert_allclose(found, exact, rtol=1e-5 if dtype == jnp.float32 else 1e-12)


@pytest.mark.parametrize("rounds", [3, 50])
def test_cumulative_bound_derivatives_on_both_sides_of_one(rounds):
    def bound(c):
        return th.cumulative_bound(1.0, c, rounds)

    growth = np.array([0.4, 0.97, 1 - 1e-7, 1 + 1e-7, 1.03, 3.0])
    t = np.arange(1, rounds + 1, dtype=float)[:, None]
    slopes = jax.jit(jax.vmap(jax.grad(bound)))(growth)
    np.testing.assert_allclose(slopes, -(t * growth ** (-t - 1)).sum(0), rtol=1e-11)
    curvatures = jax.jit(jax.vmap(jax.grad(jax.grad(bound))))(growth)
    np.testing.assert_allclose(curvatures, (t * (t + 1) * growth ** (-t - 2)).sum(0), rtol=1e-9)


def test_geometric_sum_limits():
    total = th.log_geometric_sum
    np.testing.assert_array_equal(total(jnp.array([-jnp.inf, jnp.inf]), first=1, last=5), [jnp.inf, -jnp.inf])
    np.testing.assert_array_equal(total(jnp.array([-jnp.inf, jnp.inf]), first=0, last=5), [jnp.inf, 0.0])
    np.testing.assert_array_equal(total(jnp.array([-jnp.inf, jnp.inf]), first=0, last=0), [0.0, 0.0])
    assert jnp.isnan(total(jnp.nan, first=1, last=5))
    assert th.cumulative_bound(0.1, 0.0, 5) == jnp.inf
    assert th.cumulative_bound(jnp.float32(0.1), 1e-3, 50) == jnp.inf


@pytest.mark.parametrize(
    ("gamma", "tau", "q", "r"), [(1.0, 0.02, 0.3, 0.6), (3.0, 0.1, 0.5, 0.5), (0.8, 0.05, 0.1, 0.4)]
)
def test_horizon_bounds_hold_on_a_growing_expected_path(gamma, tau, q, r):
    n, d, rounds = 100, 10, 10
    growth, population = mean_field(gamma, n, tau, d, q, r, rounds)
    assert growth[0] > 1
    errors = (gamma**2 * d + d) / population
    bound = float(th.cumulative_bound(errors[0], growth[0], rounds))
    assert errors[1:].sum() < bound < 2 * errors[1:].sum()
    t = np.arange(rounds + 1)
    assert np.all(errors <= np.asarray(th.long_run_error_bound(errors[0], growth[0], t, q, r)))


def test_horizon_bound_is_none_on_a_shrinking_expected_path():
    q, r, gamma, rounds = 0.9, 0.1, 2.0, 10
    growth, population = mean_field(gamma, 100, 0.2, 10, q, r, rounds)
    errors = (gamma**2 * 10 + 10) / population
    assert growth[0] < 1
    assert errors[1:].sum() > float(th.cumulative_bound(errors[0], growth[0], rounds))


def test_long_run_error_bound_has_its_rate():
    bound = functools.partial(th.long_run_error_bound, 0.3, leave=0.5, recruit=0.25)
    np.testing.assert_allclose(bound(growth=1.2, rounds=0), 0.3 * th.kantorovich_factor(0.5, 0.25), rtol=1e-14)
    np.testing.assert_allclose(bound(growth=1.2, rounds=31) / bound(growth=1.2, rounds=30), 1 / 1.2, rtol=1e-12)
    # infinite noise leaks nobody, and nothing grows faster
    fastest = th.growth_factor(marginal_leak_probability(1e6, 100, 0.02, 10), 0.5, 0.25)
    np.testing.assert_allclose(fastest, 1.25, rtol=1e-12)
    assert bound(growth=0.0, rounds=3) == jnp.inf
    assert bound(growth=1.2, rounds=1e9) == 0


def test_zero_noise_error_is_the_noiseless_limit_of_the_expected_path():
    q, r, d, rounds = 0.3, 0.6, 10, 6
    _, population = mean_field(1e-7, 100, 0.02, d, q, r, rounds)
    t = np.arange(rounds + 1)
    np.testing.assert_allclose(th.zero_noise_error(100, q, t, dim=d), (1e-14 * d + d) / population, rtol=1e-5)
    np.testing.assert_array_equal(th.zero_noise_error(100, 1.0, t[:2], dim=d), [0.1, jnp.inf])
    assert th.zero_noise_error(100, 0.0, 1e6, dim=d) == 0.1
    assert th.zero_noise_error(100, 0.01, 1e5, dim=d) == jnp.inf or th.zero_noise_error(100, 0.01, 1e5, dim=d) > 1e300


def test_zero_noise_error_bounds_whole_users_from_below_without_a_floor():
    q, n = 0.1, 30
    stayers = np.arange(n + 1)
    weight = scipy.stats.binom.pmf(stayers, n, 1 - q)
    inverse = (weight[1:] @ (1 / stayers[1:])) / weight[1:].sum()
    assert float(th.zero_noise_error(n, q, 1, dim=1)) < inverse


# The PAC guarantee.


def pac(case_or_inputs):
    x = case_or_inputs
    return th.pac_rounds(
        x["error"],
        x["failure_probability"],
        x["growth"],
        noise_scale=x["noise_scale"],
        population=x["population"],
        clip_radius=x["clip_radius"],
        mean_norm=math.sqrt(x["mean_norm_squared"]),
        covariance_eigenvalues=np.full(x["dim"], x["variance"]),
    )


@pytest.mark.parametrize("case", oracle("pac_rounds"))
def test_pac_rounds_oracle(case):
    agrees(pac(case["inputs"]), case)


def test_pac_rounds_where_the_theorem_is_silent():
    inputs = cases("performative", "pac_rounds")[0]["inputs"]
    assert pac(inputs | {"growth": 1.0}) == jnp.inf
    assert pac(inputs | {"growth": 0.9}) == jnp.inf
    assert pac(inputs | {"clip_radius": 4.0}) == jnp.inf
    assert pac(inputs | {"clip_radius": jnp.inf}) == jnp.inf
    assert pac(inputs | {"error": 1e6}) == 0


def test_pac_guarantee_holds_in_simulated_releases():
    rng = np.random.default_rng(2)
    eigenvalues, mu = np.array([1.0, 0.25]), np.array([0.5, 0.0])
    radius, gamma, n0, growth, error, delta = 4.0, 5.0, 20, 1.5, 0.9, 0.1
    rounds = th.pac_rounds(
        error,
        delta,
        growth,
        noise_scale=gamma,
        population=n0,
        clip_radius=radius,
        mean_norm=0.5,
        covariance_eigenvalues=eigenvalues,
    )
    assert 1 < rounds < 30

    def failures(n, runs=300):
        z = mu + np.sqrt(eigenvalues) * rng.normal(size=(runs, n, 2))
        z *= np.minimum(1, radius / np.linalg.norm(z, axis=-1, keepdims=True))
        out = z.mean(1) + gamma / math.sqrt(n) * rng.normal(size=(runs, 2))
        return np.mean(((out - mu) ** 2 / eigenvalues).sum(-1) > error**2)

    assert failures(int(n0 * growth ** math.ceil(rounds))) <= delta
    assert failures(n0) > delta  # so the test can fail


@pytest.mark.parametrize("d", [1, 2, 30])
@pytest.mark.parametrize("delta", [1e-6, 0.1, 0.9])
def test_noise_deviation_is_never_understated(d, delta):
    bound = float(th.noise_deviation_bound(delta, noise_scale=2.0, covariance_eigenvalues=np.full(d, 4.0)))
    exceeded = scipy.stats.chi2.sf((bound / 2.0) ** 2 * 4.0, d)
    assert exceeded <= delta / 2
    assert exceeded > 1e-3 * delta**2  # the bound is not absurdly wide either


@pytest.mark.parametrize("n", [10, 200])
@pytest.mark.parametrize("delta", [1e-6, 0.1, 0.9])
def test_sampling_deviation_is_never_understated(n, delta):
    radius = 3.0  # records at +R and -R, the widest law there is
    bound = float(th.sampling_deviation_bound(delta, clip_radius=radius, covariance_eigenvalues=np.array([radius**2])))
    plus = np.arange(n + 1)
    distance = abs(2 * plus / n - 1) * math.sqrt(n)
    assert scipy.stats.binom.pmf(plus, n, 0.5)[distance > bound].sum() <= delta / 2
    np.testing.assert_allclose(bound, 2 * math.sqrt(2 * math.log(4 / delta)), rtol=1e-13)


@pytest.mark.parametrize("mu", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_clipping_bias_is_never_understated(mu, sigma):
    """In one dimension; the printed bound, without its condition R > M, falls below the true bias."""
    size, understated = math.hypot(mu, sigma), False
    for radius in size * np.array([0.1, 0.5, 0.9, 1.1, 1.5, 2.0, 4.0]):
        law = scipy.stats.norm(mu, sigma)
        low, high = law.cdf(-radius), law.sf(radius)
        inner = law.expect(lambda x: x, lb=-radius, ub=radius)
        bias = abs(inner + radius * (high - low) - mu) / sigma
        bound = th.clipping_bias_bound(radius, mean_norm=mu, covariance_eigenvalues=np.array([sigma**2]))
        assert bias <= float(bound) + 1e-8
        printed = size / sigma * math.exp(-((radius - size) ** 2) / (4 * sigma**2))
        understated |= bias > printed + 1e-6
        if radius > size:
            np.testing.assert_allclose(bound, printed, rtol=1e-12)
    assert understated == (mu == 10.0 or (mu == 1.0 and sigma == 0.5))


# All of them: float32, jit, vmap, derivatives, ranges, errors.


def critical(q, r, tau, radius, n):
    return th.critical_noise_scale(q, r, tau, clip_radius=radius, population=n)


def leak(s, gamma, n, tau):
    return th.leak_probability_given_distance(s, gamma, n, threshold=tau)


def best_bound(s, gamma, n, tau):
    return th.optimal_tail_bound(s, gamma, n, threshold=tau)


def one_bound(s, gamma, n, tau, order):
    return th.membership_tail_bound(s, gamma, n, threshold=tau, order=order)


def best_order(s, gamma, n, tau):
    return th.optimal_order(s, gamma, n, threshold=tau)


def threshold_at(s, gamma, n, rate):
    return th.threshold_at_false_positive_rate(s, gamma, n, false_positive_rate=rate)


def release_error(gamma, n, d, trace):
    return th.mahalanobis_error(gamma, n, dim=d, precision_trace=trace)


def noiseless_error(n, q, t, d):
    return th.zero_noise_error(n, q, t, dim=d)


def clipping_bias(radius, norm, *eigenvalues):
    return th.clipping_bias_bound(radius, mean_norm=norm, covariance_eigenvalues=jnp.stack(eigenvalues))


def sampling_deviation(delta, radius, *eigenvalues):
    return th.sampling_deviation_bound(delta, clip_radius=radius, covariance_eigenvalues=jnp.stack(eigenvalues))


def noise_deviation(delta, gamma, *eigenvalues):
    return th.noise_deviation_bound(delta, noise_scale=gamma, covariance_eigenvalues=jnp.stack(eigenvalues))


def pac_three(error, delta, growth, gamma, n, radius, norm, *eigenvalues):
    return th.pac_rounds(
        error,
        delta,
        growth,
        noise_scale=gamma,
        population=n,
        clip_radius=radius,
        mean_norm=norm,
        covariance_eigenvalues=jnp.stack(eigenvalues),
    )


def interval_error(epsilon, n, low, high):
    return th.response_error(epsilon, n, (low, high))


everyone = {"recruiters": "everyone"}
release = (2.0, 1.5, 40.0)
CALLS = {
    "perturbation": (th.perturbation, (0.8,)),
    "epsilon_from_perturbation": (th.epsilon_from_perturbation, (0.2,)),
    "critical_perturbation": (th.critical_perturbation, (0.3, 0.7)),
    "critical_epsilon": (th.critical_epsilon, (0.3, 0.7)),
    "critical_epsilon-everyone": (functools.partial(th.critical_epsilon, **everyone), (0.7, 0.4)),
    "response_rate": (th.response_rate, (0.3, 0.8)),
    "unbiased_estimate": (th.unbiased_estimate, (0.3, 0.8)),
    "response_error": (th.response_error, (0.8, 50.0, 0.3)),
    "response_error-interval": (interval_error, (0.8, 50.0, 0.2, 0.9)),
    "growth_factor": (th.growth_factor, (0.4, 0.3, 0.7)),
    "growth_factor-everyone": (functools.partial(th.growth_factor, **everyone), (0.4, 0.3, 0.7)),
    "expected_population": (th.expected_population, (120.0, 0.4, 0.3, 0.7)),
    "critical_noise_scale-negative": (critical, (0.3, 0.7, 0.1, 5.0, 100.0)),
    "critical_noise_scale-positive": (critical, (0.9, 0.1, 0.1, 5.0, 100.0)),
    "critical_noise_scale-balanced": (critical, (0.4, 0.4, 0.1, 5.0, 100.0)),
    "kantorovich_factor": (th.kantorovich_factor, (0.3, 0.7)),
    "error_bounds": (th.error_bounds, (0.2, 1.1, 0.3, 0.7)),
    "mahalanobis_error": (release_error, (1.3, 50.0, 4.0, 6.0)),
    "renyi_tail_bound": (th.renyi_tail_bound, (0.8, 3.0, 0.3)),
    "renyi_divergence": (th.renyi_divergence, (3.0, *release)),
    "membership_tail_bound": (one_bound, (*release, 0.3, 3.0)),
    "optimal_order": (best_order, (*release, 0.3)),
    "optimal_tail_bound": (best_bound, (*release, 0.3)),
    "privacy_loss_law": (th.privacy_loss_law, release),
    "leak_probability_given_distance": (leak, (*release, 0.03)),
    "gaussian_dp": (th.gaussian_dp, release),
    "threshold_at_false_positive_rate": (threshold_at, (*release, 0.05)),
    "log_geometric_sum-near": (functools.partial(th.log_geometric_sum, first=2, last=9), (0.02,)),
    "log_geometric_sum-far": (functools.partial(th.log_geometric_sum, first=2, last=9), (-0.7,)),
    "log_cumulative_bound": (functools.partial(th.log_cumulative_bound, rounds=12), (-1.5, -0.05)),
    "cumulative_bound": (functools.partial(th.cumulative_bound, rounds=12), (0.2, 1.1)),
    "zero_noise_error": (noiseless_error, (100.0, 0.3, 4.0, 5.0)),
    "long_run_error_bound": (th.long_run_error_bound, (0.2, 1.1, 6.0, 0.3, 0.7)),
    "clipping_bias_bound": (clipping_bias, (4.0, 1.0, 0.5, 1.0, 2.0)),
    "sampling_deviation_bound": (sampling_deviation, (0.05, 4.0, 0.5, 1.0, 2.0)),
    "noise_deviation_bound": (noise_deviation, (0.05, 1.5, 0.5, 1.0, 2.0)),
    "pac_rounds": (pac_three, (0.5, 0.05, 1.3, 1.5, 50.0, 9.0, 1.0, 0.5, 1.0, 2.0)),
}
every_call = pytest.mark.parametrize("name", list(CALLS))


def total(name):
    """The call as one number, for derivatives: the sum of its outputs."""
    f, _ = CALLS[name]
    return lambda *point: sum(jax.tree.leaves(f(*point)))


def test_the_calls_cover_every_function():
    functions = {name for name in th.__all__ if inspect.isfunction(getattr(th, name))}
    assert functions - {name.split("-")[0] for name in CALLS} == {"growth_is_increasing"}


@every_call
def test_float32_stays_float32_and_agrees_with_float64(name):
    f, point = CALLS[name]
    single = tuple(jnp.float32(x) for x in point)
    found, expected = f(*single), f(*(float(x) for x in single))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == jnp.float32
        assert other.dtype == jnp.float64
        np.testing.assert_allclose(one, other, rtol=5e-6)


@pytest.mark.parametrize("name", [n for n in CALLS if len(CALLS[n][1]) > 1])
def test_python_numbers_follow_a_float32_argument(name):
    f, point = CALLS[name]
    if "jnp.stack" in inspect.getsource(getattr(f, "func", f)):
        point = (*point[:-3], *(jnp.float32(x) for x in point[-3:]))
    for out in jax.tree.leaves(f(jnp.float32(point[0]), *point[1:])):
        assert out.dtype == jnp.float32


@every_call
def test_jit_and_vmap_agree_with_the_plain_call(name):
    f, point = CALLS[name]
    points = [tuple(0.9**k * x for x in point) for k in range(3)]
    batched = jax.jit(jax.vmap(f))(*(jnp.array(column) for column in zip(*points, strict=True)))
    for k, one in enumerate(points):
        for found, expected in zip(jax.tree.leaves(batched), jax.tree.leaves(f(*one)), strict=True):
            np.testing.assert_allclose(found[k], expected, rtol=1e-12)


@pytest.mark.slow
@every_call
def test_derivatives_agree_with_central_differences(name):
    f, point = total(name), CALLS[name][1]
    for i, (x, found) in enumerate(zip(point, jax.grad(f, range(len(point)))(*point), strict=True)):
        step = 1e-5 * max(abs(x), 0.1)

        def moved(by, i=i, x=x):
            return float(f(*point[:i], x + by, *point[i + 1 :]))

        slope = (8 * (moved(step) - moved(-step)) - (moved(2 * step) - moved(-2 * step))) / (12 * step)
        np.testing.assert_allclose(found, slope, rtol=1e-7, atol=1e-9 * abs(moved(0)))
    assert any(d != 0 for d in jax.grad(f, range(len(point)))(*point))


ends = [0.0, 1e-6, 0.5, 1.0]
distances, noises, populations = [0.0, 1e-6, 3.0, 1e6], [0.0, 1e-6, 1.0, 1e6], [1.0, 2.0, 100.0, 1e9]
EDGES = {
    "perturbation": [[0.0, 1e-6, 1.0, 200.0, jnp.inf]],
    "critical_perturbation": [ends, ends],
    "critical_epsilon": [ends, ends],
    "critical_epsilon-everyone": [ends, ends],
    "response_error": [[0.0, 1e-6, 1.0, 200.0, jnp.inf], [0.0, 1.0, 1e9], [0.0, 0.5, 1.0]],
    "growth_factor": [ends, ends, ends],
    "growth_factor-everyone": [ends, ends, ends],
    "critical_noise_scale-negative": [ends, ends, [1e-3, 5.0], [1e-3, 10.0, jnp.inf], populations],
    "kantorovich_factor": [ends, ends],
    "error_bounds": [[0.0, 0.2, 1e9], [1e-6, 1.0, 2.0], ends, ends],
    "mahalanobis_error": [noises, [0.0, 1.0, 1e9], [1.0, 12.0], [0.1, 12.0]],
    "renyi_divergence": [[0.5, 1.0, 30.0], distances, noises, populations],
    "membership_tail_bound": [distances, noises, populations, [1e-3, 5.0], [1.5, 30.0]],
    "optimal_order": [distances, noises, populations, [1e-3, 5.0]],
    "optimal_tail_bound": [distances, noises, populations, [1e-3, 5.0]],
    "leak_probability_given_distance": [distances, noises, populations, [-1.0, 1e-3, 5.0]],
    "gaussian_dp": [distances, noises, populations],
    "log_geometric_sum-near": [[-jnp.inf, -80.0, -1e-6, 0.0, 1e-6, 80.0, jnp.inf]],
    "cumulative_bound": [[1e-6, 1.0], [0.0, 1e-6, 1.0, 2.0, 1e6]],
    "zero_noise_error": [populations, ends, [0.0, 1.0, 100.0], [1.0, 12.0]],
    "long_run_error_bound": [[1e-6, 1.0], [0.0, 0.5, 1.0, 2.0], [0.0, 1.0, 100.0], ends, ends],
}


@pytest.mark.parametrize("name", list(EDGES))
def test_nothing_is_nan_at_the_edges(name):
    grid = jnp.array(list(itertools.product(*EDGES[name])), jnp.float32)  # where overflow comes first
    columns = tuple(grid.T)
    both = jax.value_and_grad(total(name), tuple(range(len(columns))))
    values, slopes = jax.jit(jax.vmap(both))(*columns)
    assert values.dtype == jnp.float32
    assert not jnp.isnan(values).any()
    for slope in slopes:
        worst = jnp.isnan(slope)
        assert not worst.any(), f"derivative is NaN at {grid[worst][0]}"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: th.growth_factor(0.5, 1.2, 0.3), "Argument `leave` must lie in [0, 1], but is 1.2."),
        (lambda: th.growth_factor(0.5, 0.2, -1), "Argument `recruit` must lie in [0, 1], but is -1."),
        (
            lambda: th.growth_factor(1.5, 0.2, 0.1),
            "Argument `leak_probability` must lie in [0, 1], but is 1.5.",
        ),
        (
            lambda: th.critical_epsilon(0.1, 0.2, recruiters="all"),
            'Argument `recruiters` must be "spared" or "everyone", but is "all".',
        ),
        (lambda: th.perturbation(-1.0), "Argument `epsilon` must lie in [0, inf], but is -1."),
        (lambda: th.perturbation(jnp.nan), "Argument `epsilon` must lie in [0, inf], but is nan."),
        (lambda: th.unbiased_estimate(0.5, 0.0), "Argument `epsilon` must lie in (0, inf], but is 0."),
        (lambda: th.response_error(1.0, 10, (0.0, 2.0)), "Argument `mean` must lie in [0, 1], but is 2."),
        (lambda: th.renyi_tail_bound(0.1, 1.0, 0.2), "Argument `order` must lie in (1, inf], but is 1."),
        (
            lambda: th.critical_noise_scale(0.1, 0.2, 0.0, clip_radius=1.0, population=10),
            "Argument `threshold` must lie in (0, inf], but is 0.",
        ),
        (
            lambda: th.cumulative_bound(0.1, 1.0, 0),
            "Argument `rounds` must be an integer of at least 1, but is 0.",
        ),
        (
            lambda: th.log_geometric_sum(0.1, first=3, last=2),
            "Argument `last` must be an integer of at least 3, but is 2.",
        ),
    ],
)
def test_bad_input_is_one_clear_line(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()


def test_bad_input_inside_jit_is_named():
    with pytest.raises(Exception, match="Argument `leave` must lie in"):
        jax.block_until_ready(jax.jit(th.growth_factor)(0.5, 1.2, 0.3))
