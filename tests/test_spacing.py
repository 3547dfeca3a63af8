"""The spacing mechanism: error below the tolerance at every count, budgets below the log-Gaussian's at all of them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from assertions import close
from jax.scipy.special import ndtr
from scipy.stats import norm

from perfjax import count_privacy as cp

COUNTS = jnp.concatenate([jnp.arange(10_001.0), jnp.geomspace(1e4, 1e9, 200).round()])


def test_two_gaps_and_a_tail_by_hand():
    """Levels 0, 3, 5, then 5 + 2 log(n / 2); thresholds 2, 4.5 and 5.5 + 2 log(5/4) above which nothing is rounded."""
    mechanism = cp.Spacing([3.0, 2.0], 0.5)
    close(mechanism.budget([0.0, 1.0, 2.0, 3.0]), [4.5, 4.5, 2.0, (2 * np.log(1.5)) ** 2 / 2], 1e-12)
    theta, exact_error = 5.5 + 2 * np.log(1.25), []
    for n, level in ((0, 0.0), (1, 3.0), (2, 5.0), (6, 5 + 2 * np.log(3))):
        below = np.diff(norm.cdf(np.array([-np.inf, 2.0, 4.5, theta]) - level)) @ np.abs(np.arange(3) - n)

        def missed(y, n=n, level=level):
            return abs(2 * np.exp((y - 5) / 2 - 0.25) - n) * norm.pdf(y - level)

        exact = 5.5 + 2 * np.log(max(n, 1) / 2)  # where the decoder says n
        cuts = [theta, max(theta, exact), level + 20]
        above = sum(scipy.integrate.quad(missed, *ends, epsabs=1e-13)[0] for ends in itertools.pairwise(cuts))
        exact_error.append(below + above)
    close(mechanism.error([0.0, 1.0, 2.0, 6.0]), exact_error, 1e-9)
    close(exact_error[1], 0.226932, 1e-5)
    close(cp.spacing_error([3.0, 2.0], 1), norm.cdf(-1.5) + norm.cdf(-1), 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("r", [*(pytest.param(r, marks=pytest.mark.slow) for r in (0.02, 0.05, 0.1, 0.17)), 0.25])
def test_the_error_is_below_the_tolerance_at_every_count_and_the_budget_falls(r):
    """Up to 10,000 at every count, beyond at some; there the ratio is the constant one of the log-Gaussian."""
    mechanism = cp.design("spacing", r)
    ratio = np.concatenate([mechanism.error(part) for part in np.array_split(COUNTS, 8)]) / np.maximum(COUNTS, 1)
    assert np.max(ratio) < r * (1 - 5e-5)
    table = slice(1, mechanism.gaps.size)
    close(ratio[table], r, 3e-4)
    close(ratio[-100:], ratio[-1], 1e-6)
    budget = np.asarray(mechanism.budget(COUNTS[:10_001]))
    assert np.all(np.isfinite(budget))
    assert budget[0] == budget[1]
    assert np.all(np.diff(budget[1:]) < 0)


@pytest.mark.slow
def test_the_error_is_what_its_thresholds_say():
    """Beside the sum over thresholds: the sum over decoded counts, and above the table an integral over the noise."""
    mechanism = cp.design("spacing", 0.25)
    gaps, sigma, size = np.asarray(mechanism.gaps), float(mechanism.sigma), mechanism.gaps.size
    levels = np.append(0, np.cumsum(gaps))
    thresholds = (levels[1:] + levels[:-1]) / 2 + sigma
    theta = levels[-1] + sigma + np.log1p(0.5 / size) / sigma
    edges = np.concatenate([[-np.inf], thresholds, [theta]])
    place = np.linspace(theta, theta + 60, 400_001)
    beyond = size * np.exp(sigma * (place - levels[-1]) - sigma**2)
    for n in (0, 1, 4, size - 1, size, 3 * size):
        level = levels[n] if n <= size else levels[-1] + np.log(n / size) / sigma
        chance = np.diff(ndtr(edges - level))
        inside = np.sum(chance * np.abs(np.arange(size + 1) - n))
        density = np.exp(-((place - level) ** 2) / 2) / np.sqrt(2 * np.pi)
        outside = np.trapezoid(np.abs(beyond - n) * density, place)
        close(mechanism.error(float(n)), inside + outside, 1e-7)


@pytest.mark.slow
def test_one_mechanism_is_below_every_shift_of_the_log_gaussian_at_every_count():
    """The trade-off over c is gone: below its infimum over c at all these n at once; at large n the two agree."""
    shifts = jnp.geomspace(1e-9, 1e6, 400)
    for r, sizes in ((0.1, (1.0, 2.0, 5.0, 10.0, 100.0)), (0.25, (1.0, 2.0, 5.0, 10.0))):
        mechanism = cp.design("spacing", r)
        for n in sizes:
            best = jnp.min(cp.edge_budget(n, cp.log_gaussian_sigma(r, shifts), shifts))
            assert mechanism.budget(n) < best


@pytest.mark.slow
def test_the_tail_is_the_log_gaussian_without_a_shift():
    mechanism = cp.design("spacing", 0.1)
    n = jnp.asarray([1e3, 1e6])
    close(mechanism.budget(n), cp.edge_budget(n, mechanism.sigma, 1e-9), 1e-6)


@pytest.mark.slow
def test_gaps_cannot_shrink_together():
    """By gradient: any gap 1 % smaller, its own count's error exceeds the tolerance, which it met to 0.03 %."""
    mechanism = cp.design("spacing", 0.25)
    n = jnp.arange(1.0, 41)

    def log_error(log_gaps):
        gaps = mechanism.gaps.at[:40].set(jnp.exp(log_gaps))
        return jnp.log(cp.Spacing(gaps, mechanism.sigma).error(n))

    slopes = jax.jit(jax.jacfwd(log_error))(jnp.log(mechanism.gaps[:40]))
    assert np.all(np.diag(slopes) < -0.04)


@pytest.mark.slow
def test_descent_finds_better_gaps_for_the_sizes_that_weigh():
    r, weights = 0.25, jnp.ones(20)
    equal, better = cp.design("spacing", r), cp.Spacing.from_tolerance(r, weights=weights)
    sizes = jnp.arange(1.0, 21)
    gain = 1 - jnp.sum(better.budget(sizes)) / jnp.sum(equal.budget(sizes))
    assert 0.003 < gain < 0.05
    ratio = np.concatenate([better.error(part) for part in np.array_split(COUNTS, 8)]) / np.maximum(COUNTS, 1)
    assert np.max(ratio) < r * (1 - 5e-5)
    assert np.all(np.diff(better.budget(COUNTS[1:10_001])) <= 0)
    with pytest.raises(ValueError, match="`weights` must be a list of at most 120 numbers"):
        cp.Spacing.from_tolerance(r, weights=jnp.ones(121))


@pytest.mark.slow
def test_the_gaps_follow_the_tolerance():
    def budgets(r):
        return jnp.log(cp.Spacing.from_tolerance(r, size=150).budget(jnp.asarray([1.0, 10, 149, 1e4])))

    compiled = jax.jit(budgets)
    _, slope = jax.jvp(compiled, (jnp.asarray(0.2),), (jnp.ones(()),))
    step = 1e-6
    close(slope, (compiled(0.2 + step) - compiled(0.2 - step)) / (2 * step), 1e-6)


@pytest.mark.parametrize(("gaps", "words"), [([], "a list of numbers"), ([1.0, 0.0], "lie in"), ([[1.0]], "a list")])
def test_gaps_that_are_none_are_refused(gaps, words):
    with pytest.raises(ValueError, match=f"`gaps` must .*{words}"):
        cp.spacing_error(gaps, 0)
