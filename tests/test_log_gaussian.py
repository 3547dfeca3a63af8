"""The shifted log-Gaussian mechanism: exact errors and budgets, against simulation, quadrature and its own algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from assertions import close, finite, gradient_is_central_difference

from perfjax import accounting
from perfjax import count_privacy as cp
from perfjax.count_privacy import _threefry

TOLERANCES = (0.05, 0.1, 0.25, 0.5, 0.9)
COUNTS = jnp.arange(10_001.0)
DESIGNS = ["log-gaussian", *(pytest.param(name, marks=pytest.mark.slow) for name in ("log-airy", "spacing"))]


@pytest.mark.parametrize("shift", [0.01, 1.0, 30.0])
def test_the_error_is_below_the_tolerance_at_every_count_and_the_budget_falls(shift):
    for r in TOLERANCES:
        mechanism = cp.design("log-gaussian", r, shift=shift)
        error = np.asarray(mechanism.error(COUNTS))
        allowed = r * np.maximum(np.asarray(COUNTS), 1)
        others = COUNTS != 1
        assert np.all(error[others] < allowed[others])
        assert error[1] <= allowed[1] * (1 + 1e-15)  # what clipping gains there, next, can be less than rounding
        budget = np.asarray(mechanism.budget(COUNTS))
        finite(budget)
        assert budget[0] == budget[1]
        assert np.all(np.diff(budget[1:]) < 0)


@pytest.mark.parametrize("shift", [0.01, 1.0, 10.0])
def test_clipping_makes_the_error_at_one_strictly_smaller(shift):
    """The gain is c times the excess of one normal over another: a profile of Gaussian DP, known to the last digit.

    It is above 0 wherever float64 holds such a number, which is down to 1e-300.
    """
    for r in TOLERANCES:
        sigma = cp.log_gaussian_sigma(r, shift)
        gain = shift * accounting.gaussian_delta(epsilon=np.log1p(1 / shift) - sigma**2 / 2, mu=sigma)
        assert gain > 0 or cp.probability_of_zero(1, sigma, shift) < 1e-300
        np.testing.assert_allclose(cp.clipped_error(1, sigma, shift), r - gain, rtol=1e-13)


@pytest.mark.slow
def test_the_clip_aware_noise_just_meets_the_tolerance():
    for r, c in ((0.9, 1.0), (0.5, 1.0), (0.9, 0.01), (0.25, 10.0)):
        sigma = cp.clip_aware_sigma(r, c)
        ratio = cp.clipped_error(COUNTS, sigma, c) / (r * jnp.maximum(COUNTS, 1))
        assert 1 - 1e-3 < float(jnp.max(ratio)) < 1 + 1e-12
        assert sigma >= cp.log_gaussian_sigma(r, c)
    close((cp.log_gaussian_sigma(0.9, 1.0) / cp.clip_aware_sigma(0.9, 1.0)) ** 2, 0.724, 1e-3)


@pytest.mark.parametrize("mechanism", DESIGNS)
def test_released_counts_have_the_stated_error(mechanism):
    made = cp.design(mechanism, 0.25)
    counts = jnp.asarray([0.0, 1, 2, 9, 100])
    draws = cp.simulate_release(made, jnp.tile(counts, (100_000, 1)), key=jax.random.key(3))
    assert np.all(draws >= 0)
    assert np.all(draws == jnp.floor(draws))
    errors = np.abs(np.asarray(draws - counts))
    deviation = errors.std(axis=0) / np.sqrt(len(errors))
    assert np.all(np.abs(errors.mean(axis=0) - np.asarray(made.error(counts))) < 4 * deviation)


@pytest.mark.filterwarnings("ignore:Counts released without rounding")
@pytest.mark.parametrize("mechanism", DESIGNS)
def test_single_precision_releases_follow_the_same_law(mechanism):
    made = cp.design(mechanism, 0.25)
    single = jax.tree.map(lambda x: x.astype(jnp.float32), made)
    counts = jnp.full(40_000, 20.0, jnp.float32)
    draws = [
        np.asarray(cp.simulate_release(m, counts.astype(m.sigma.dtype), key=jax.random.key(k), rounded=False))
        for k, m in enumerate((made, single))
    ]
    assert draws[1].dtype == np.float32
    assert scipy.stats.ks_2samp(*draws).pvalue > 0.01


def test_words_are_those_of_the_cipher():
    key = jax.random.key(42)
    first, second = _threefry.two_words(key, (5, 3))
    assert np.all(first ^ second == jax.random.bits(key, (5, 3), "uint32"))  # which is how JAX makes one word of two
    other, _ = _threefry.two_words(jax.random.key(42, impl="rbg"), (5, 3))
    assert len(np.unique(other)) == 15


@pytest.mark.filterwarnings("ignore:Counts released without rounding")
def test_mean_and_zeros_of_released_counts():
    made = cp.design("log-gaussian", 0.9)
    draws = np.asarray(cp.simulate_release(made, jnp.full(200_000, 3.0), key=jax.random.key(0), rounded=False))
    mean, zero = (float(f(3, made.sigma, made.shift)) for f in (cp.clipped_mean, cp.probability_of_zero))
    assert abs(draws.mean() - mean) < 4 * draws.std() / np.sqrt(draws.size)
    assert abs(np.mean(draws == 0) - zero) < 4 * np.sqrt(zero * (1 - zero) / draws.size)


def test_any_drift_but_sigma_squared_has_a_larger_error():
    sigma = jnp.asarray([0.1, 0.5, 1.5])
    least = cp.drift_error(sigma, sigma**2)
    close(least, 2 * scipy.stats.norm.cdf(sigma) - 1, 1e-13)
    assert np.all(cp.drift_error(sigma, sigma**2 * 1.1) > least)
    assert np.all(cp.drift_error(sigma, sigma**2 / 2) > least)


def renyi_by_quadrature(order, n, m, sigma, c):
    """The clipped release's divergence as an atom and an integral over the log of what is released."""
    u, w = np.log(n + c) - sigma**2, np.log(m + c) - sigma**2
    p, q = scipy.stats.norm(u, sigma), scipy.stats.norm(w, sigma)

    def integrand(x):
        return np.exp(order * p.logpdf(x) + (1 - order) * q.logpdf(x))

    peak = order * u + (1 - order) * w
    ends = np.log(c), max(peak, np.log(c)) + 12 * sigma
    rest = scipy.integrate.quad(integrand, *ends, points=[min(max(peak, ends[0]), ends[1])], epsabs=0, epsrel=1e-11)[0]
    return np.log(p.cdf(np.log(c)) ** order * q.cdf(np.log(c)) ** (1 - order) + rest) / (order - 1)


@pytest.mark.parametrize(("n", "m"), [(1, 0), (0, 1), (7, 6), (2, 5)])
def test_clipped_divergence_is_its_integral_and_no_larger(n, m):
    sigma = float(cp.log_gaussian_sigma(0.9, 0.5))
    for order in (1.5, 2.0, 8.0):
        clipped = float(cp.edge_renyi(order, n, m, sigma, 0.5, clipped=True))
        np.testing.assert_allclose(clipped, renyi_by_quadrature(order, n, m, sigma, 0.5), rtol=1e-8)
        assert clipped <= float(cp.edge_renyi(order, n, m, sigma, 0.5))


def test_clipping_does_not_reduce_the_budget_over_all_orders():
    sigma = cp.log_gaussian_sigma(0.9, 1.0)
    orders = jnp.asarray([2.0, 10, 100, 1e4, 1e6])
    ratio = cp.edge_renyi(orders, 1, 0, sigma, 1.0, clipped=True) / orders / cp.edge_budget(1, sigma, 1.0)
    assert np.all(np.diff(ratio) > -1e-12)
    close(ratio[-1], 1, 1e-6)
    assert float(cp.edge_renyi(1e6, 0, 1, sigma, 1.0, clipped=True)) < 1  # the other way it stays bounded


@pytest.mark.slow
def test_budgets_are_those_of_gaussian_dp_and_compose():
    sigma, c = cp.log_gaussian_sigma(0.1, 1.0), 1.0
    counts = jnp.asarray([5.0, 7, 12])
    close(accounting.rho_from_mu(cp.edge_mu(counts, sigma, c)), cp.edge_budget(counts, sigma, c), 1e-14)
    # A group whose count changes: mu^2 adds, along the counts of each release.
    together = accounting.compose_mu(cp.edge_mu(counts, sigma, c))
    close(accounting.rho_from_mu(together), accounting.compose_rho(cp.edge_budget(counts, sigma, c)), 1e-14)
    exact = cp.epsilon(cp.LogGaussian(sigma, c), 12.0, 1e-6)
    assert 0 < exact < accounting.zcdp_epsilon(rho=cp.edge_budget(12, sigma, c), delta=1e-6)


def test_several_edges_cost_what_the_divergence_between_their_ends_does():
    sigma, c = 0.3, 1.0
    for low, high in ((3, 4), (3, 9), (0, 2)):
        edges = cp.edge_budget(jnp.arange(low + 1.0, high + 1), sigma, c)
        close(2 * cp.path_budget(edges), cp.edge_renyi(2.0, high, low, sigma, c), 1e-13)
    close(cp.path_budget(jnp.full(5, 0.1)), 25 * 0.1, 1e-13)
    finite(jax.grad(lambda x: cp.path_budget(jnp.asarray([0.0, 1.0]) * x))(0.5))


def test_budget_of_huge_groups_keeps_its_digits():
    n = 1e12
    close(cp.edge_budget(n, 0.1, 0.5) * 2 * 0.01 * n**2, 1, 1e-11)
    close(cp.log_gaussian_sigma(1e-12, 1.0), 1e-12 / 2 * np.sqrt(np.pi / 2), 1e-12)


@pytest.mark.slow
def test_derivatives_of_errors_and_budgets():
    def both(r, c):
        mechanism = cp.LogGaussian.from_tolerance(r, c)
        counts = jnp.asarray([0.0, 1, 7])
        return jnp.sum(jnp.log(mechanism.error(counts))) + jnp.sum(jnp.log(mechanism.budget(counts)))

    gradient_is_central_difference(both, 0.25, 1.3, rtol=1e-8)
    gradient_is_central_difference(lambda r, c: cp.clip_aware_sigma(r, c), 0.8, 1.3, rtol=1e-7)


def test_single_precision_keeps_its_dtype_and_most_digits():
    r, c, n = np.float32(0.25), np.float32(1), jnp.asarray([0, 1, 10, 1e6], jnp.float32)
    mechanism = cp.LogGaussian.from_tolerance(r, c)
    exact = cp.LogGaussian.from_tolerance(0.25, 1.0)
    for method in ("error", "budget"):
        found = getattr(mechanism, method)(n)
        assert found.dtype == jnp.float32
        close(found, getattr(exact, method)(n.astype(float)), 2e-6)
    assert cp.simulate_release(mechanism, n, key=jax.random.key(0)).dtype == jnp.float32


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: cp.design("log-gaussian", 1.0), r"`relative_error` must lie in \(0, 1\), but is 1"),
        (lambda: cp.design("log-gaussian", 0.0), "`relative_error` must lie"),
        (lambda: cp.design("log-gaussian", 0.1, shift=0.0), r"`shift` must lie in \(0, inf\), but is 0"),
        (lambda: cp.design("log-airy", 0.1, shift=-1.0), "`shift` must lie"),
        (lambda: cp.design("spacing", 0.1, shift=1.0), '`shift` must be left out for "spacing"'),
        (lambda: cp.design("spacing", 0.3), "`relative_error` must lie in .0.02, 0.25., but is 0.3"),
        (lambda: cp.design("laplace", 0.1), '`mechanism` must be "log-gaussian" or "log-airy" or "spacing"'),
        (lambda: cp.edge_budget(-1.0, 0.1, 1.0), r"`count` must lie in \[0, inf\), but is -1"),
        (lambda: cp.edge_renyi(1.0, 1, 0, 0.1, 1.0), "`order` must lie"),
        (lambda: cp.path_budget([-1.0]), "`count` must lie"),
    ],
)
def test_bad_input_is_one_clear_line(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize(
    ("counts", "words"), [([3.0, 2.5], r"2.5 \(row 2\)"), ([-1.0], r"-1 \(row 1\)"), (np.nan, "nan")]
)
def test_what_is_no_count_is_named_with_its_row(counts, words):
    with pytest.raises(ValueError, match=f"`counts` must be whole numbers of at least 0, but is {words}"):
        cp.simulate_release(cp.design("log-gaussian", 0.1), counts, key=jax.random.key(0))
    with pytest.raises(ValueError, match=rf"`counts` must be whole numbers in \[0, 2\^53\], but is {words}"):
        cp.release(cp.design("log-gaussian", 0.1), counts)


def test_the_budget_of_a_path_adds_roots():
    close(cp.path_budget(jnp.asarray([1.0, 4.0, 9.0])), 36, 1e-12)


def test_epsilon_of_exactly_gaussian_releases_is_that_of_the_normal_profile():
    """delta = Phi(mu / 2 - eps / mu) - e^eps Phi(-mu / 2 - eps / mu); by zCDP epsilon would be larger."""
    mechanism, delta = cp.design("log-gaussian", 0.3), 1e-5
    assert mechanism.shift == 1
    epsilon, mu = float(cp.epsilon(mechanism, 4.0, delta)), float(cp.edge_mu(4.0, mechanism.sigma, 1.0))
    above, below = scipy.stats.norm.cdf(mu / 2 - epsilon / mu), scipy.stats.norm.cdf(-mu / 2 - epsilon / mu)
    close(above - np.exp(epsilon) * below, delta, 1e-6)
