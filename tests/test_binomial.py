"""`perfjax.binomial` against SciPy, over all 2^32 words.

A law is not sampled but counted: the count does not decrease in the word, so bisection finds how many words give at
most k. *Correct*: the law, the edges and the derivatives equal known values. *Honest*: no stated error is crossed.
"""

import itertools
import math
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from perfjax.binomial import binomial_from_bits, binomial_quantile, normal_quantile, uniform_from_bits

WORDS = 2**32
COUNTS = [0, 1, 2, 3, 5, 8, 10, 17, 50, 100, 1e3, 1e4, 1e5, 1e6, 1e7]
CHANCES = [0, 1e-9, 1e-6, 1e-4, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999, 1 - 1e-6, 1]
FLOATS = [jnp.float64, jnp.float32]
each_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=["float64", "float32"])
quick = settings(max_examples=60, deadline=None, derandomize=True, database=None)
STATED_ERROR = 1e-4  # total variation up to n = 1e7
EVEN_WORDS = (np.arange(2**18, dtype=np.uint64) * 2**14 + 2**13).astype(np.uint32)  # the middles of 2^18 equal cells


@jax.jit
def words_up_to(k, n, p, q):
    """How many words give a count of at most k."""

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) // 2
        within = binomial_from_bits(middle.astype(jnp.uint32), n, p, q=q) <= k
        open_ = low < high
        return jnp.where(open_ & within, middle + 1, low), jnp.where(open_ & ~within, middle, high)

    start = jnp.zeros(k.shape, jnp.int64), jnp.full(k.shape, WORDS, jnp.int64)
    return jax.lax.fori_loop(0, 33, halve, start)[0]


def padded(k, n):
    """`k` filled up with n to one of two lengths, so that few programs are compiled."""
    size = next(size for size in (4096, 32768) if size >= len(k))
    return np.concatenate([k, np.full(size - len(k), n)])


def distribution(k, n, p, q, dtype):
    """P(K <= k) of the sampler, over all words."""
    counted = words_up_to(*(jnp.asarray(x, dtype) for x in (padded(k, n), n, p, q)))
    return np.asarray(counted)[: len(k)] / WORDS


def support(n, p, q):
    """Counts that carry all but about 1e-10 of the law: 8 standard deviations and 60 each way."""
    rare = min(p, q)
    reach = 8 * math.sqrt(n * rare * (1 - rare))
    k = np.arange(max(0, math.floor(n * rare - reach - 5)), min(n, math.ceil(n * rare + reach + 60)) + 1)
    return n - k[::-1] if p > q else k


def total_variation(n, p, dtype, q=None):
    """Between the sampler's law and the binomial law with the same, rounded, p."""
    p = float(jnp.asarray(p, dtype))
    q = 1 - p if q is None else float(jnp.asarray(q, dtype))
    k = support(n, p, q)
    below = distribution(k, n, p, q, dtype)
    exact = scipy.stats.binom.pmf(n - k, n, q) if p > q else scipy.stats.binom.pmf(k, n, p)
    mass = np.diff(below, prepend=0)
    return (np.abs(mass - exact).sum() + (1 - below[-1]) + max(0, 1 - exact.sum())) / 2


@each_dtype
@pytest.mark.parametrize("n", COUNTS, ids="{:g}".format)
def test_law_is_binomial(n, dtype):
    errors = [total_variation(n, p, dtype) for p in CHANCES]
    assert max(errors) < STATED_ERROR


@each_dtype
@pytest.mark.parametrize("n", [16, 17, 20, 40, 100, 1e4, 1e6], ids="{:g}".format)
def test_law_where_inversion_meets_expansion(n, dtype):
    means = [mean for mean in (2.0, 5.0, 7.99, 8.0, 8.5, 9.5, 12.0) if mean <= n / 2]
    assert max(total_variation(n, mean / n, dtype) for mean in means) < STATED_ERROR


def test_law_by_inversion_is_exact_to_the_word():
    for n, p in [(3, 0.2), (8, 0.9), (10, 0.5), (1000, 0.002), (1e9, 5e-9)]:
        states = 40
        assert total_variation(n, p, jnp.float64) < states / WORDS


@pytest.mark.parametrize(("n", "p"), [(1e7, 0.3)])
def test_float32_law_counted_word_by_word(n, p):
    # Rounding makes the float32 count jump back and forth around each boundary, where bisection finds one of the jumps.
    p, width = float(jnp.float32(p)), 4096
    k = support(n, p, 1 - p)
    found = distribution(k, n, p, 1 - p, jnp.float32) * WORDS
    inner = (found > width) & (found < WORDS - width)
    k, first = k[inner], found[inner].astype(np.int64) - width // 2

    def one(boundary):
        k, first = boundary
        words = (first + jnp.arange(width)).astype(jnp.uint32)
        low = binomial_from_bits(words, jnp.float32(n), jnp.float32(p)) <= k
        return low.sum(), jnp.all(low[: width // 8]) & ~jnp.any(low[-width // 8 :])

    counted, clean = jax.lax.map(one, (jnp.asarray(k, jnp.float32), jnp.asarray(first)), batch_size=64)
    assert jnp.all(clean)
    mass = np.diff((first + np.asarray(counted)) / WORDS)
    exact = scipy.stats.binom.pmf(k[1:], n, p)
    assert exact.sum() > 0.999
    assert np.abs(mass - exact).sum() / 2 < STATED_ERROR


@each_dtype
@pytest.mark.parametrize("n", [1e8, 1e9], ids="{:g}".format)
def test_distribution_of_huge_counts(n, dtype):
    errors = [kolmogorov_distance(n, p, dtype) for p in CHANCES]
    assert max(errors) < (1e-3 if dtype == jnp.float32 else 1e-7)


def kolmogorov_distance(n, p, dtype):
    """Between the sampler's law and the binomial law with the same, rounded, p; its counts rounded to `dtype`."""
    p = float(jnp.asarray(p, dtype))
    q = 1 - p
    k = support(n, p, q)
    k = np.unique(k[:: max(1, len(k) // 2000)].astype(dtype).astype(float))
    at_most = k
    if dtype == jnp.float32:  # the exact count, rounded to the nearest float32, is at most k
        upward = np.nextafter(k.astype(np.float32), np.float32(np.inf)).astype(float)
        at_most = np.floor((k + upward) / 2)
        at_most = at_most - (at_most.astype(np.float32) > k)
    exact = scipy.stats.binom.sf(n - at_most - 1, n, q) if p > q else scipy.stats.binom.cdf(at_most, n, p)
    return np.abs(distribution(k, n, p, q, dtype) - exact).max()


@each_dtype
def test_law_near_one_with_an_accurate_complement(dtype):
    for n, q in [(50, 1e-9), (1e6, 3e-7), (1e6, 2e-5), (1e7, 1e-6)]:
        assert total_variation(n, 1 - q, dtype, q=q) < STATED_ERROR
    # Without it, float32 takes 1 - 3e-7 for 1 - 2.98e-7: another law, and so the test above means something.
    p, q = float(jnp.float32(1 - 3e-7)), 3e-7
    rounded = scipy.stats.binom.pmf(range(9), 1e6, 1 - p), scipy.stats.binom.pmf(range(9), 1e6, q)
    assert np.abs(rounded[0] - rounded[1]).sum() / 2 > 1e-3


def test_rare_counts_are_resolved_in_float32():
    n, p = 1e3, 1e-9
    some = 1 - distribution(np.array([0.0]), n, p, 1 - p, jnp.float32)[0]
    assert some == pytest.approx(-math.expm1(n * math.log1p(-p)), abs=1 / WORDS)
    assert binomial_quantile(jnp.float32(1e-9), jnp.float32(n), jnp.float32(p), upper=jnp.float32(1 - 1e-9)) == 0
    assert binomial_quantile(jnp.float32(1), jnp.float32(n), jnp.float32(p), upper=jnp.float32(5e-7)) == 1


def test_equals_the_quantile_of_scipy_below_the_switch():
    u = (np.arange(4000) + 0.5) / 4000
    for n, p in [(1, 0.3), (2, 0.5), (5, 0.9), (10, 0.7), (79, 0.1), (7000, 1e-3), (1e9, 3e-9), (1e6, 1 - 1e-6)]:
        ours = np.asarray(binomial_quantile(jnp.asarray(u), n, p))
        np.testing.assert_array_equal(ours, scipy.stats.binom.ppf(u, n, p))


def exact_ties(n, p):
    """u = F(k) for every k < n, in exact numbers, of which each is a float for dyadic p and few trials."""
    mass = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n)]
    return [float(x) for x in itertools.accumulate(mass)]


@each_dtype
def test_the_lower_count_is_taken_at_a_tie(dtype):
    """F(K - 1) < u <= F(K) at u = F(k) is K = k; with rounding, 9 of 16 medians of fair trials were one too large."""
    cases = [(n, Fraction(1, 2)) for n in range(1, 13)] + [(n, Fraction(k, 4)) for n in range(1, 6) for k in (1, 3)]
    rows = [(u, n, float(p), k) for n, p in cases for k, u in enumerate(exact_ties(n, p))]
    rows += [(0.5, n, 0.5, (n - 1) // 2) for n in range(1, 402, 2)]
    u, n, p, expected = np.array(rows).T
    np.testing.assert_array_equal(binomial_quantile(*(jnp.asarray(x, dtype) for x in (u, n, p))), expected)


@each_dtype
def test_first_and_last_words_give_the_counts_of_their_tails(dtype):
    # Total variation would not see a count that 100 words of 2^32 get badly wrong; these are the words that could.
    words = np.concatenate([np.arange(200), WORDS - 1 - np.arange(200)]).astype(np.uint32)[:, None]
    lower, upper = ((np.asarray(w, float) + 0.5) / WORDS for w in (words, ~words))
    for n in (1, 2, 3, 8, 16, 20, 40, 100, 1e3, 1e6):
        p = np.linspace(0.01, 0.99, 60) if n < 40 else np.linspace(0.01, 20, 60) / n
        p = np.asarray(p, dtype).astype(float)[None]
        found = np.asarray(counts(jnp.asarray(words), jnp.asarray(n, dtype), jnp.asarray(p, dtype)), float)
        exact = np.where(lower < 0.5, scipy.stats.binom.ppf(lower, n, p), scipy.stats.binom.isf(upper, n, p))
        assert np.abs(found - exact).max() <= 1
        assert np.all((found >= 0) & (found <= n))
        if n < 16:
            assert np.mean(found != exact) < (1e-3 if dtype == jnp.float32 else 1e-4)


@each_dtype
def test_edges(dtype):
    u = jnp.asarray([0.0, 1e-12, 1e-9, 0.3, 0.5, 0.9, 1 - 1e-7, 1.0], dtype)
    for n in [*COUNTS, 1e8, 1e9]:
        n = jnp.asarray(n, dtype)
        assert jnp.all(binomial_quantile(u, n, jnp.asarray(0, dtype)) == 0)
        assert jnp.all(binomial_quantile(u, n, jnp.asarray(1, dtype)) == n)
        assert jnp.all(binomial_quantile(u, jnp.asarray(0, dtype), jnp.asarray(0.3, dtype)) == 0)
    one = binomial_quantile(u, jnp.asarray(1, dtype), jnp.asarray(0.5, dtype))
    np.testing.assert_array_equal(one, [0, 0, 0, 0, 0, 1, 1, 1])
    both = binomial_quantile(jnp.asarray([0, 1], dtype), jnp.asarray(5, dtype), jnp.asarray(0.5, dtype))
    np.testing.assert_array_equal(both, [0, 5])


@quick
@given(st.integers(0, 10**9), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_counts_are_integers_in_range_and_do_not_decrease(n, p, seed):
    words = np.sort(np.random.default_rng(seed).integers(0, WORDS, 500, dtype=np.uint32))
    for dtype in FLOATS:
        count = np.asarray(counts(jnp.asarray(words), jnp.asarray(n, dtype), jnp.asarray(p, dtype)))
        assert count.dtype == dtype
        assert np.all((count >= 0) & (count <= np.asarray(n, dtype)) & (count == np.round(count)))
    exact = np.asarray(counts(jnp.asarray(words), jnp.asarray(n, float), jnp.asarray(p)))
    assert np.all(np.diff(exact) >= 0)


counts = jax.jit(binomial_from_bits)


def test_does_not_decrease_where_the_expansion_is_coarsest():
    words = jnp.asarray(np.arange(2**17, dtype=np.uint64) * 2**15, jnp.uint32)
    tail = jnp.arange(2**17).astype(jnp.uint32)
    for n, p in [(16, 0.5), (17, 0.48), (20, 0.4), (32, 0.25), (80, 0.1), (8000, 1e-3), (8e8, 1e-8)]:
        for some in (tail, words, ~tail[::-1]):
            assert jnp.all(jnp.diff(counts(some, float(n), p)) >= 0)


def test_failures_mirror_successes():
    u = jnp.linspace(1e-6, 1 - 1e-6, 1001)
    for n, p in [(5.0, 0.2), (100.0, 0.3), (1e6, 0.49)]:
        successes = binomial_quantile(u, n, p, upper=1 - u, q=1 - p)
        failures = binomial_quantile(1 - u, n, 1 - p, upper=u, q=p)
        np.testing.assert_array_equal(successes + failures, n)


# Derivatives. E[f(K)] by enumeration; K by the words in the middles of equal cells, so that sampling error is tiny.

MOMENTS = {
    "mean": (lambda k: k, lambda n, p: (p, n)),
    "square": (lambda k: k**2, lambda n, p: (p * (1 - p) + 2 * n * p**2, n * (1 - 2 * p) + 2 * n**2 * p)),
}


@jax.jit
def slopes(n, p):
    """Derivatives in n and p of the sampled first two moments."""

    def moments(n, p):
        k = binomial_from_bits(jnp.asarray(EVEN_WORDS), n, p)
        return jnp.stack([jnp.mean(f(k)) for f, _ in MOMENTS.values()])

    return jax.jacrev(moments, argnums=(0, 1))(n, p)


@each_dtype
@pytest.mark.parametrize(
    ("n", "p"),
    [
        (1, 0.3),
        (5, 0.01),
        (10, 0.9),
        (16, 0.5),
        (100, 0.05),
        (100, 0.3),
        (1e3, 0.999),
        (1e6, 0.2),
        (1e9, 1e-9),
        (1e9, 0.7),
    ],
)
def test_derivatives_of_two_moments_are_unbiased(n, p, dtype):
    p = float(jnp.asarray(p, dtype))
    found = slopes(jnp.asarray(n, dtype), jnp.asarray(p, dtype))
    expected = [exact(n, p) for _, exact in MOMENTS.values()]
    np.testing.assert_allclose(np.stack(found, -1), expected, rtol=3e-4 if n * p < 1 else 1e-4)


def test_derivative_of_any_function_by_differences():
    # The identities that the derivative rests on, for a function without any shape at all.
    f = np.random.default_rng(0).normal(size=12)
    k = np.arange(11)

    def mean(n, p):
        return scipy.stats.binom.pmf(k, n, p) @ f[:-1]

    n, p, h = 9, 0.3, 1e-5
    up, down = np.diff(f), np.diff(f, prepend=0)[:-1]
    mass = scipy.stats.binom.pmf(k, n, p)
    slope = (mean(n, p + h) - mean(n, p - h)) / (2 * h)
    assert mass @ ((n - k) / (1 - p) * up) == pytest.approx(slope, rel=1e-7)
    assert mass @ (k / p * down) == pytest.approx(slope, rel=1e-7)
    assert mass @ (p * up) == pytest.approx(mean(n + 1, p) - mean(n, p), rel=1e-12)
    assert mass @ (k / n * down) == pytest.approx(mean(n, p) - mean(n - 1, p), rel=1e-12)


@pytest.mark.parametrize(("n", "p", "bias"), [(27, 0.3, 0.013), (80, 0.1, 0.016), (100, 0.3, 7e-4), (1000, 0.1, 6e-5)])
def test_derivative_of_curved_functions_has_the_stated_bias(n, p, bias):
    k = jnp.arange(1001.0)  # beyond n their mass is 0
    mass = scipy.stats.binom.pmf(k, n, p)
    u = jnp.asarray(scipy.stats.binom.cdf(k, n, p) - mass / 2)
    count, slope = jax.jvp(lambda p: binomial_quantile(u, float(n), p), (p,), (1.0,))
    usual = np.abs(k - n * p) < 4 * math.sqrt(n * p)  # where the expansion gives back the very k of its cell
    np.testing.assert_array_equal(count[usual], k[usual])
    for f in (lambda k: k**3, jnp.log1p, lambda k: 1 / (1 + k)):
        exact = np.sum(mass[:-1] * (n - k[:-1]) / (1 - p) * np.diff(f(k)))
        estimate = np.sum(mass * jax.vmap(jax.grad(f))(count) * slope)
        assert abs(estimate / exact - 1) < bias


def test_derivative_equals_that_of_the_continuous_quantile():
    # d/dp and d/dn of n p + z sqrt(n p q) at fixed z, for a count so large that rounding does not matter.
    n, p = 1e8, 0.2
    u = jnp.asarray([1e-6, 0.02, 0.5, 0.9, 1 - 1e-5])
    z = scipy.stats.norm.ppf(u)
    slope_n, slope_p = (
        jax.vmap(jax.grad(binomial_quantile, argnums=i), in_axes=(0, None, None))(u, n, p) for i in (1, 2)
    )
    spread = math.sqrt(n * p * (1 - p))
    np.testing.assert_allclose(slope_n - p, z * spread / (2 * n), atol=2e-8)
    np.testing.assert_allclose(slope_p - n, z * n * (1 - 2 * p) / (2 * spread), atol=10)


@each_dtype
def test_no_silent_zero_at_the_edges(dtype):
    gradient = jax.grad(binomial_quantile, argnums=(1, 2))
    u = jnp.asarray(0.4, dtype)
    for n, p, expected in [
        (10, 0, (0, 10)),
        (10, 1, (1, 10)),
        (0, 0.5, (0.5, 0)),
        (0, 0, (0, 0)),
        (1e9, 1e-30, (1e-30, 1e9)),
        (1e9, 0, (0, 1e9)),
        (1e9, 1, (1, 1e9)),
    ]:
        found = gradient(u, jnp.asarray(n, dtype), jnp.asarray(p, dtype))
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@each_dtype
def test_derivative_near_one_counts_the_failures(dtype):
    # In float32 1e9 - 3 is 1e9: a derivative in terms of successes would miss half of it.
    n, q = jnp.asarray(1e9, dtype), jnp.asarray(1e-9, dtype)

    def mean(n, q):
        return jnp.mean(binomial_from_bits(jnp.asarray(EVEN_WORDS), n, 1 - q, q=q))

    slope_n, slope_q = jax.grad(mean, argnums=(0, 1))(n, q)
    assert slope_n == pytest.approx(1, rel=1e-5)
    assert slope_q == pytest.approx(-1e9, rel=1e-4)


def test_a_given_complement_moves_with_p():
    u = jnp.linspace(0.01, 0.99, 50)
    for p in (0.2, 0.6):
        slope = jax.grad(lambda p, q: binomial_quantile(u, 30.0, p, q=q).sum(), argnums=(0, 1))(p, 1 - p)
        own = jax.grad(lambda p: binomial_quantile(u, 30.0, p).sum())(p)
        np.testing.assert_allclose(slope, (own, 0), rtol=1e-12)


def test_second_derivative_of_the_mean_vanishes():
    curvature = jax.jit(jax.grad(jax.grad(lambda p: jnp.mean(binomial_from_bits(jnp.asarray(EVEN_WORDS), 50.0, p)))))
    for p in (0.1, 0.4, 0.8):
        assert abs(curvature(p)) < 1e-3 * 50 / (p * (1 - p))


def test_agrees_with_finite_differences_on_common_words():
    def mean(n, p):
        return jnp.mean(jnp.sqrt(1 + binomial_from_bits(jnp.asarray(EVEN_WORDS), n, p)))

    n, p, h = 300.0, 0.37, 0.01
    slope = jax.grad(mean, argnums=(0, 1))(n, p)
    in_n = (mean(n + 10, p) - mean(n - 10, p)) / 20
    in_p = (mean(n, p + h) - mean(n, p - h)) / (2 * h)
    np.testing.assert_allclose(slope, (in_n, in_p), rtol=1e-3)


# Transformations and input.


def test_same_under_jit_vmap_scan_and_checkpoint():
    bits = jax.random.bits(jax.random.key(1), (6, 4), "uint32")
    n, p = jnp.asarray([0, 5, 60, 1e6]), jnp.asarray([0.5, 0.3, 0.9, 0.2])

    def plain(p):
        return binomial_from_bits(bits, n, p)

    def mapped(p):
        return jax.vmap(jax.vmap(binomial_from_bits), in_axes=(0, None, None))(bits, n, p)

    def scanned(p):
        return jax.lax.scan(lambda one, word: (one, binomial_from_bits(word, n * one, p)), jnp.ones(()), bits)[1]

    def slope_of(draw):
        return jax.jit(jax.grad(lambda p: draw(p).sum()))(p)

    np.testing.assert_array_equal(jax.jit(scanned)(p), plain(p))
    for draw in (mapped, jax.checkpoint(scanned)):
        np.testing.assert_allclose(slope_of(draw), slope_of(plain), rtol=1e-12)


def test_cost_does_not_depend_on_the_data():
    program = str(jax.make_jaxpr(jax.grad(lambda p: binomial_from_bits(jnp.asarray(EVEN_WORDS), 9.0, p).sum()))(0.3))
    assert "while" not in program
    assert "cond[" not in program


def test_broadcasts():
    u, n, p = jnp.full((3, 1, 1), 0.6), jnp.full((2, 1), 40.0), jnp.full(5, 0.3)
    count, slope = jax.jvp(partial(binomial_quantile, u), (n, p), (jnp.ones_like(n), jnp.ones_like(p)))
    assert count.shape == slope.shape == (3, 2, 5)
    assert np.unique(count).size == 1


def test_numbers_and_numpy_arrays_are_welcome():
    expected = binomial_quantile(jnp.asarray(0.7), jnp.asarray(9.0), jnp.asarray(0.4))
    assert binomial_quantile(0.7, 9, 0.4) == expected
    assert binomial_quantile(np.float64(0.7), np.asarray(9), np.asarray(0.4)) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.5, 3.0, 0.5), r"Argument `u` must lie in \[0, 1\], but is 1.5."),
        ((0.5, -1.0, 0.5), r"Argument `n` must lie in \[0, inf\], but is -1."),
        ((0.5, 3.0, 1.2), r"Argument `p` must lie in \[0, 1\], but is 1.2."),
        ((0.5, 3.0, math.nan), r"Argument `p` must lie in \[0, 1\], but is nan."),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        binomial_quantile(*arguments)
    assert jnp.isnan(jax.jit(binomial_quantile)(*arguments))


@pytest.mark.parametrize("name", ["upper", "q"])
def test_bad_complement(name):
    with pytest.raises(ValueError, match=f"Argument `{name}` must lie in"):
        binomial_quantile(0.5, 3.0, 0.5, **{name: -0.1})


def test_u_is_not_differentiable():
    with pytest.raises(ValueError, match="`u` must not be differentiated"):
        jax.grad(binomial_quantile)(0.3, 9.0, 0.5)


# What the counts are made of.


def test_uniform_from_bits():
    words = jnp.asarray([0, 1, 2**16 - 1, 2**16, 2**31, 2**32 - 1], jnp.uint32)
    exact = (np.asarray(words, float) + 0.5) / WORDS
    np.testing.assert_array_equal(uniform_from_bits(words, jnp.float64), exact)
    single = uniform_from_bits(words, jnp.float32)
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, exact, rtol=2**-24)
    assert single[0] == 2.0**-33
    assert single[-1] == 1 - 2.0**-24
    np.testing.assert_array_equal(uniform_from_bits(~words, jnp.float64), 1 - exact)
    assert uniform_from_bits(words).dtype == float


@each_dtype
def test_normal_quantile(dtype):
    words = jnp.asarray(
        np.concatenate([EVEN_WORDS[::16], np.arange(4096), WORDS - 1 - np.arange(4096)]).astype(np.uint32)
    )
    z = normal_quantile(uniform_from_bits(words, dtype), uniform_from_bits(~words, dtype))
    u, upper = (np.asarray(uniform_from_bits(w, jnp.float64)) for w in (words, ~words))
    exact = np.where(u < upper, scipy.stats.norm.ppf(u), scipy.stats.norm.isf(upper))
    assert z.dtype == dtype
    assert np.abs(np.asarray(z, float) - exact).max() < (3e-8 if dtype == jnp.float64 else 1e-6)
    ends = normal_quantile(jnp.asarray([0, 1], dtype))
    np.testing.assert_allclose(ends, [-6.338, 6.338], atol=1e-3)
