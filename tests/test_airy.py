"""Airy noise, and which noise has a budget at all orders: by quadrature, and by the ones that must fail."""

import itertools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from assertions import close, gradient_is_central_difference

from perfjax import count_privacy as cp

ORDERS = jnp.asarray([1.001, 1.1, 2, 10, 100, 1e3, 1e4, 1e5])
SHIFTS = jnp.asarray([0.01, 0.3, 1.0, 3.0])
A = cp.AIRY_SLOPE_ZERO


def of_scipy(x):
    """The density by SciPy's Airy function."""
    return scipy.special.airy(np.abs(x) - A)[0] ** 2 / (2 * A * scipy.special.airy(-A)[0] ** 2)


def test_density_and_tail_are_those_of_airy_functions():
    x = np.linspace(0, 12, 997)
    close(jnp.exp(cp.airy_log_density(x)), of_scipy(x), 2e-11)
    z = x - A
    ai, slope = scipy.special.airy(z)[:2]
    inside = x < 6  # beyond, the closed form in SciPy's own numbers cancels
    tail = (slope**2 - z * ai**2) / (2 * A * scipy.special.airy(-A)[0] ** 2)
    close(cp.airy_tail(x[inside]), tail[inside], 1e-10)
    assert cp.airy_tail(0.0) == pytest.approx(0.5, rel=1e-13)
    close(cp.airy_tail(-0.7), 1 - cp.airy_tail(0.7), 1e-14)
    assert cp.airy_tail(100.0) == 0
    log_density = cp.airy_log_density(jnp.asarray([71.9, 72.0, 72.1]))
    assert abs(float(np.diff(log_density, 2)[0])) < 0.01  # the table and the series beyond it meet


@pytest.mark.slow
def test_moments_are_closed_forms():
    node, weight = np.polynomial.legendre.leggauss(200)
    x, weight = 7 * (node + 1), 14 * weight
    density = np.exp(np.asarray(cp.airy_log_density(x)))
    close(np.sum(weight * density), 1, 1e-11)
    close(np.sum(weight * density * x), cp.MEAN_ABSOLUTE, 1e-11)
    close(np.sum(weight * density * x**2), 8 * A**2 / 15 + 1 / (5 * A), 1e-11)
    score = jax.vmap(jax.grad(cp.airy_log_density))(jnp.asarray(x))
    close(np.sum(weight * density * score**2), cp.FISHER_INFORMATION, 1e-9)
    close(cp.FISHER_INFORMATION * cp.MEAN_ABSOLUTE**2 / 2, cp.BEST_COEFFICIENT, 1e-14)


@pytest.mark.slow
def test_samples_follow_the_tail():
    draws = np.asarray(cp.airy_noise(jax.random.key(1), (20_000,)))
    assert scipy.stats.kstest(draws, lambda x: 1 - np.asarray(cp.airy_tail(x))).pvalue > 0.01
    assert cp.airy_noise(jax.random.key(0), (3,), jnp.float32).dtype == jnp.float32


@pytest.mark.slow
def test_the_budget_of_airy_noise_holds_at_every_order():
    """D_alpha / alpha falls with the order from KL on; both directions are one, the density being even."""
    for shift in SHIFTS:
        per_order = np.asarray(cp.shift_renyi(cp.airy_log_density, shift, ORDERS) / ORDERS)
        budget = float(cp.airy_budget(shift))
        assert np.all(per_order < budget)
        assert np.all(np.diff(per_order) < 0)
        close(per_order[0], budget, 2e-3)
        assert budget <= cp.FISHER_INFORMATION / 2 * shift**2


def test_normal_noise_costs_the_same_at_every_order():
    per_order = cp.shift_renyi(jax.scipy.stats.norm.logpdf, SHIFTS[:, None], ORDERS) / ORDERS
    close(per_order, jnp.broadcast_to(SHIFTS[:, None] ** 2 / 2, per_order.shape), 1e-7)


def log_cubic(x):
    """Noise with density exp(-|x|^3), normalised."""
    return -(jnp.abs(x) ** 3) - jnp.log(2 * scipy.special.gamma(4 / 3))


def test_noise_lighter_than_normal_has_no_budget():
    per_order = np.asarray(cp.shift_renyi(log_cubic, 0.01, ORDERS) / ORDERS)
    assert per_order[-1] > 1000 * per_order[0]
    assert np.all(np.diff(per_order) > 0)
    assert np.all(np.diff(cp.shift_renyi(log_cubic, 1.0, ORDERS) / ORDERS) > 0)
    gentle = np.asarray(cp.shift_renyi(jax.scipy.stats.logistic.logpdf, 0.3, ORDERS) / ORDERS)
    assert np.all(np.diff(gentle) < 0)


def test_normal_noise_of_unequal_variance_has_no_budget():
    for n in (1.0, 5.0, 100.0):
        limit = float(cp.unequal_gaussian_order(n))
        orders = jnp.asarray([limit - 1e-3, limit * (1 + 1e-12), limit + 1, 1e5])
        away = np.asarray(cp.unequal_gaussian_renyi(orders, n, 0.3, reverse=True))
        assert np.isfinite(away[0])
        assert np.all(np.isinf(away[1:]))
        assert np.all(np.isfinite(cp.unequal_gaussian_renyi(orders, n, 0.3)))


@pytest.mark.slow
def divergence(shifts):
    """KL(s) = E[V(X + s) - V(X)], V = -log g, in 20 digits, by Gauss-Legendre in panels that end at the kink x = s."""
    node, weight = np.polynomial.legendre.leggauss(24)
    with mpmath.workdps(20):
        a = -mpmath.findroot(lambda z: mpmath.airyai(z, derivative=1), -1.0188)
        log_norm = mpmath.log(2 * a * mpmath.airyai(-a) ** 2)

        def cost(x):
            return log_norm - 2 * mpmath.log(mpmath.airyai(abs(x) - a))

        def of(s):
            cuts = sorted({0.0, 2.0, 4.0, 7.0, 10.0, 14.0, *([s] if s < 14 else [])})
            total = mpmath.mpf(0)
            for low, high in itertools.pairwise(cuts):
                for x, w in zip(node, weight, strict=True):
                    at = low + (high - low) * (1 + mpmath.mpf(x)) / 2
                    moved = cost(s + at) + cost(s - at) - 2 * cost(at)
                    total += (high - low) / 2 * mpmath.mpf(w) * mpmath.exp(-cost(at)) * moved
            return total

        return [of(s) for s in shifts]


def test_the_budget_is_never_below_the_divergence():
    """The table ends at a shift of 147,265; beyond, it once stood still, and was 6e-6 too low."""
    shifts = np.array([2.0, 147_200.0, 147_300.0, 1e8])
    truth = divergence(shifts)
    for found, exact in zip(cp.airy_budget(shifts), truth, strict=True):
        assert 0 <= mpmath.mpf(float(found)) / exact - 1 < 5e-13
    shifts = shifts.astype(np.float32)
    for found, exact in zip(cp.airy_budget(shifts), truth, strict=True):
        assert 0 <= mpmath.mpf(float(found)) / exact - 1 < 2e-6
    slope = jax.vmap(jax.grad(cp.airy_budget))(np.array([147_200.0, 147_300.0, 1e8, 1e30]))
    close(slope[:2], 2 * np.sqrt(np.array([147_200.0, 147_300.0]) - A), 1e-6)
    close(slope[2:], 2 * np.sqrt(np.array([1e8, 1e30])), 1e-7)


def test_the_budget_is_the_divergence_and_falls_below_the_information():
    s = jnp.asarray([1e-6, 0.1, 1.0, 30.0, 1e4])
    ratio = cp.airy_budget(s) / (cp.FISHER_INFORMATION / 2 * s**2)
    assert np.all(np.diff(ratio) < 0)
    close(ratio[0], 1, 1e-9)
    close(cp.airy_budget(1e4) / 1e6, 4 / 3, 1e-3)
    assert cp.airy_budget(0.0) == 0
    t = jnp.asarray([0.1, 2.0, 8.0, 60.0])
    assert np.all(cp.airy_score_cumulant(t) < cp.FISHER_INFORMATION * t**2 / 2)


@pytest.mark.slow
@pytest.mark.parametrize("shift", [pytest.param(0.1, marks=pytest.mark.slow), 1.0])
def test_the_error_is_below_the_tolerance_at_every_count_and_the_budget_falls(shift):
    """By quadrature, whose error is seen by comparing it with twice as fine a one."""
    counts = jnp.arange(10_001.0)
    for r in (0.05, 0.1, 0.25, 0.5, 0.9):
        mechanism = cp.design("log-airy", r, shift=shift)
        error = np.asarray(mechanism.error(counts))
        allowed = r * np.maximum(np.asarray(counts), 1)
        others = counts != 1
        assert np.all(error[others] < allowed[others])
        assert error[1] < allowed[1] * (1 + 1e-10)
        few = np.asarray([0, 1, 2, 5, 50, 5000])
        close(error[few], error_by_grid(mechanism, few), 1e-8)
        budget = np.asarray(mechanism.budget(counts))
        assert np.all(np.isfinite(budget))
        assert budget[0] == budget[1]
        assert np.all(np.diff(budget[1:]) < 0)


def error_by_grid(mechanism, counts):
    """E|released - n| by the trapezoid rule on a fine grid, kinks left to its fineness."""
    x = np.linspace(-12, 12, 600_001)
    density = of_scipy(x)
    sigma, c, d = (float(getattr(mechanism, name)) for name in ("sigma", "shift", "drift"))
    return [
        np.sum(density * np.abs(np.maximum((n + c) * np.exp(sigma * x - d) - c, 0) - n)) * (x[1] - x[0]) for n in counts
    ]


@pytest.mark.slow
def test_the_log_airy_mechanism_against_the_log_gaussian():
    """Less at large counts for small r, more for large r; at small counts much less."""
    for r, wins in ((0.05, True), (0.25, True), (0.5, False)):
        airy, gauss = (cp.design(name, r, shift=1e-3) for name in ("log-airy", "log-gaussian"))
        assert bool(airy.budget(1e4) < gauss.budget(1e4)) == wins
    close(cp.design("log-airy", 0.1).budget(1.0), 34.3, 2e-3)
    small = cp.design("log-airy", 0.01, shift=0.01)  # c = r: the coefficient tends to C*
    close(small.budget(1e6) * (0.01 * 1e6) ** 2 * 0.99**2 / 1, cp.BEST_COEFFICIENT, 0.01)


@pytest.mark.study
def test_derivatives_of_the_log_airy_mechanism():
    def both(r, c):
        mechanism = cp.LogAiry.from_tolerance(r, c)
        counts = jnp.asarray([0.0, 1, 7])
        return jnp.sum(jnp.log(mechanism.error(counts))) + jnp.sum(jnp.log(mechanism.budget(counts)))

    gradient_is_central_difference(both, 0.25, 1.3, rtol=1e-6)


@pytest.mark.slow
def test_single_precision():
    x = jnp.asarray([0.0, 0.5, 3.0], jnp.float32)
    for function in (cp.airy_log_density, cp.airy_tail, cp.airy_budget):
        assert function(x).dtype == jnp.float32
        close(function(x), function(x.astype(float)), 1e-5)


def test_the_mean_absolute_noise_is_the_integral_of_its_density():
    x = np.linspace(0, 30, 20_001)
    close(2 * scipy.integrate.simpson(x * np.exp(cp.airy_log_density(x)), x=x), cp.MEAN_ABSOLUTE, 1e-9)


def test_a_released_count_drifts_down():
    """Without noise, of 10 with shift 2 and drift 0.1: 12 exp(-0.1) - 2."""
    close(cp.LogAiry(0.3, 2.0, 0.1).released(10.0, 0.0), 12 * np.exp(-0.1) - 2, 1e-9)
