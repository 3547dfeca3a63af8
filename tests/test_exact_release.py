"""Released counts: whole numbers with exactly the stated probabilities, within the stated budgets, from secret bits."""

import decimal
import inspect
import secrets
from decimal import Decimal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from perfjax import count_privacy as cp
from perfjax.count_privacy import _exact, _exact_airy

COUNTS = (0, 1, 10, 10**6)
NODES, WEIGHTS = ((x + y) / d for x, y, d in zip(np.polynomial.legendre.leggauss(12), (1, 0), (4, 4), strict=True))
"""Gauss-Legendre on [0, 1/2], on which no released value's density has a kink inside."""


def seeded(seed):
    return np.random.default_rng(seed).bytes


def log_above(mechanism, n, y):
    """log P(value before rounding > y), y >= 0."""
    sigma = float(mechanism.sigma)
    if isinstance(mechanism, cp.Spacing):
        levels = np.concatenate([[0.0], np.cumsum(np.asarray(mechanism.gaps))])
        size = levels.size - 1
        level = levels[min(n, size)] + np.log(max(n / size, 1)) / sigma
        thresholds = (levels[:-1] + levels[1:]) / 2 + sigma
        scale = np.log(np.maximum(y, size + 0.5) / size) / sigma + levels[-1] + sigma
        listed = thresholds[np.minimum(np.floor(y), size - 1).astype(int)]
        return scipy.stats.norm.logsf(np.where(y < size, listed, scale) - level)
    shift = float(mechanism.shift)
    logs = np.log((y + shift) / (n + shift))
    if isinstance(mechanism, cp.LogAiry):
        x = (logs + float(mechanism.drift)) / sigma
        zero = cp.AIRY_SLOPE_ZERO
        z = np.abs(x) - zero
        value, slope = scipy.special.airy(z)[:2]
        tail = (slope**2 - z * value**2) / (2 * zero * scipy.special.airy(-zero)[0] ** 2)
        with np.errstate(divide="ignore"):
            return np.log(np.where(x > 0, tail, 1 - tail))
    return scipy.stats.norm.logsf(logs / sigma + sigma)


def at_least(mechanism, n, k):
    """P(released >= k): the integral of P(value > y) over [k - 1, k], for a value is rounded up with what is above."""
    y = np.maximum(k, 1)[:, None] - 1 + np.concatenate([NODES, 0.5 + NODES])
    chance = np.exp(log_above(mechanism, n, y)) @ np.concatenate([WEIGHTS, WEIGHTS])
    return np.where(k <= 0, 1.0, chance)


def chi_square(mechanism, n, draws):
    """The p-value of draws, in up to 200 bins that other draws say are about as probable each."""
    others = _exact.whole_numbers(mechanism, np.full(10_000, n), seeded(0))
    edges = np.unique(np.quantile(others, np.linspace(0, 1, 201)[1:-1]).astype(int)) + 1
    chance = -np.diff(np.concatenate([[1.0], at_least(mechanism, n, edges), [0.0]]))
    keep = chance * draws.size > 5
    found = np.histogram(draws, [0, *edges, _exact.LARGEST])[0]
    found, chance = np.append(found[keep], found[~keep].sum()), np.append(chance[keep], chance[~keep].sum())
    used = chance > 0
    return scipy.stats.chisquare(found[used], chance[used] * draws.size, sum_check=False).pvalue


def check_probabilities(name, size, seed):
    mechanism, source = cp.design(name, 0.25), seeded(seed)
    for n in COUNTS:
        draws = _exact.whole_numbers(mechanism, np.full(size, n), source)
        p = chi_square(mechanism, n, draws)
        print(f"{name}, n = {n}, {size} draws: p = {p:.3f}")
        assert p > 1e-3
    last = np.bincount(draws % 10, minlength=10)  # of a million; its last digit says nothing
    assert scipy.stats.chisquare(last).pvalue > 1e-3


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", cp.DESIGNS)
def test_released_counts_have_the_stated_probabilities(name, seed):
    check_probabilities(name, 100_000, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize("name", cp.DESIGNS)
def test_a_million_released_counts_have_the_stated_probabilities(name, seed):
    check_probabilities(name, 1_000_000, seed)


def log_probabilities(mechanism, n, k):
    """log P(released = k), from the density of the value: with all digits, however small it is.

    Of a spacing, for n and k in its tail; from k = 0 of a log-normal value only.
    """
    sigma, shift = float(mechanism.sigma), float(getattr(mechanism, "shift", 0))

    def log_density(y):
        x = np.log((y + shift) / (n + shift)) + float(getattr(mechanism, "drift", sigma**2))
        noise = airy_log_density if isinstance(mechanism, cp.LogAiry) else scipy.stats.norm.logpdf
        return noise(x / sigma) - np.log(sigma * (y + shift))

    t, weight = np.concatenate([NODES, 0.5 + NODES]), np.concatenate([WEIGHTS, WEIGHTS])
    up = log_density(k[:, None] + t) + np.log(weight * (1 - t))
    down = np.where(k[:, None] > 0, log_density(np.maximum(k[:, None] - t, 0)) + np.log(weight * (1 - t)), -np.inf)
    found = scipy.special.logsumexp(np.concatenate([up, down], axis=1), axis=1)
    if k[0] == 0:
        found[0] = np.logaddexp(found[0], scipy.stats.norm.logcdf(sigma - np.log1p(n / shift) / sigma))
    return found


def airy_log_density(x):
    zero = cp.AIRY_SLOPE_ZERO
    return 2 * np.log(scipy.special.airy(abs(x) - zero)[0] / scipy.special.airy(-zero)[0]) - np.log(2 * zero)


def far_terms(mechanism, n, m, order, first):
    """log of the sum over k >= first of P_n(k)^a P_m(k)^(1 - a), for k so large that it is an integral of densities.

    By the trapezoid rule in log k, around where it is greatest.
    """
    sigma, shift = float(mechanism.sigma), float(mechanism.shift)
    u, w = (np.log(x + shift) - sigma**2 for x in (n, m))
    start, peak = np.log(first - 0.5 + shift), order * u + (1 - order) * w
    x = np.linspace(start, max(start, peak) + 14 * sigma, 20_001)
    term = (-order * (x - u) ** 2 - (1 - order) * (x - w) ** 2) / (2 * sigma**2) - np.log(np.sqrt(2 * np.pi) * sigma)
    weight = np.full(x.size, x[1] - x[0])
    weight[[0, -1]] /= 2
    return scipy.special.logsumexp(term, b=weight)


ORDERS = (1.01, 1.5, 2.0, 8.0, 64.0, 1e3, 1e4)


@pytest.mark.parametrize("n", [1, 2, 11])
def test_the_divergence_of_released_numbers_is_within_the_budget(n):
    mechanism = cp.design("log-gaussian", 0.25)
    k = np.arange(20_000.0)
    log_p, log_q = (log_probabilities(mechanism, x, k) for x in (n, n - 1))
    np.testing.assert_allclose(np.exp(log_p).sum(), 1, rtol=1e-12)
    np.testing.assert_allclose(np.exp(log_p[1:9]), -np.diff(at_least(mechanism, n, np.arange(1, 10))), 1e-9, 1e-15)
    shares = []
    for order in ORDERS:
        for a, b, counts in ((log_p, log_q, (n, n - 1)), (log_q, log_p, (n - 1, n))):
            near = scipy.special.logsumexp(order * a + (1 - order) * b)
            total = np.logaddexp(near, far_terms(mechanism, *counts, order, k.size))
            shares.append(total / (order - 1) / (order * float(mechanism.budget(float(n)))))
    print(f"n = {n}: at most {max(shares):.6f} of the budget")
    assert np.all(np.asarray(shares) <= 1 + 1e-9)
    assert max(shares) > 0.9


@pytest.mark.parametrize("name", cp.DESIGNS)
def test_the_divergence_of_a_million_is_within_the_budget(name):
    """By sums of what is left of (p / q)^a - 1 - a (p / q - 1): the budget is 1e-11, and probabilities add up to 1."""
    mechanism, n = cp.design(name, 0.25), 1_000_000
    total = np.zeros(2 * len(ORDERS))
    step = 50  # so smooth is the sum
    for start in range(200_000, 6_000_000, 200_000):  # what lies beyond adds nothing at these orders
        k = np.arange(start, start + 200_000.0, step)
        log_p, log_q = (log_probabilities(mechanism, x, k) for x in (n, n - 1))
        pairs = ((log_p - log_q, log_q), (log_q - log_p, log_p))
        excess = [np.sum(np.exp(b) * (np.expm1(a * d) - a * np.expm1(d))) for a in ORDERS for d, b in pairs]
        total += step * np.asarray(excess)
    orders = np.repeat(ORDERS, 2)
    share = np.log1p(total) / (orders - 1) / (orders * float(mechanism.budget(float(n))))
    print(f"{name}: from 1 - {1 - share.min():.1e} to 1 - {1 - share.max():.1e} of the budget")
    assert np.all(share <= 1 + 1e-7)
    assert np.all(share > 0.999)


class Tape:
    """Bits for one count, in the order in which they are drawn: noise at x > 0, kept at once, and a uniform number."""

    def __init__(self, x, uniform, more=()):
        cell, inside = divmod(x, 1.25)
        self.noise = int(inside / 1.25 * 2**52)
        words = [1, 1 << int(cell), self.noise << 12, 0, int(uniform * 2**52) << 12]
        self.parts = [word.to_bytes(8, "little") for word in words] + list(more)

    def __call__(self, size):
        if not size:
            return b""
        part = self.parts.pop(0)
        assert len(part) == size
        return part


def test_neighbouring_counts_release_the_same_numbers():
    """Noise for every number from every count: in float32, n and n - 1 reach different ones."""
    mechanism = cp.LogGaussian(0.125, 1.0)
    n = 10**7
    for wanted in (*range(n - 100, n + 100), 12_345_678, 20_000_001):
        for count in (n - 1, n, n + 1):
            x = np.log((wanted + 1) / (count + 1)) / 0.125 + 0.125
            assert x > 0
            assert _exact.whole_numbers(mechanism, np.asarray([count]), Tape(x, 0.5)) == wanted


@pytest.mark.parametrize(("beyond", "found"), [(1, 11), (-1, 10)])
def test_a_number_on_the_edge_is_decided_by_more_bits(beyond, found):
    """Value and uniform number add up to 11 but for 2^-100: float64 can't tell the side, 140 bits of each do."""
    mechanism, tape = cp.LogGaussian(0.125, 1.0), Tape(0.3, 0.0)
    with decimal.localcontext(prec=60):
        x = Decimal(tape.noise) / 2**52 * Decimal("1.25")
        uniform = 11 - (11 * (x / 8 - Decimal(1) / 64).exp() - 1) + Decimal(beyond) / 2**100
        bits = int(uniform * 2**140)
    assert 0 < uniform < 1
    more = [bytes(11), (bits % 2**88).to_bytes(11, "big")]
    tape = Tape(0.3, (bits >> 88) / 2**52, more)
    assert _exact.whole_numbers(mechanism, np.asarray([10]), tape) == found
    assert not tape.parts


@pytest.mark.parametrize("name", cp.DESIGNS)
def test_bounds_in_float64_hold_what_60_digits_say(name):
    """And are far wider than they must be: that is the guarantee. Of the probability to be kept, too."""
    mechanism, rng = cp.design(name, 0.25), np.random.default_rng(0)
    counts = np.concatenate([np.arange(20), rng.integers(0, 10 ** rng.integers(1, 15, 180))])
    x = rng.standard_t(3, counts.size)
    cells = np.floor(np.abs(x) / 1.25).astype(int)
    share = _exact.SHARES[mechanism.noise]
    low, high = mechanism.bounds(counts.astype(float), x, _exact.FLOATS)
    height = share(np.abs(x), cells.astype(float), _exact.FLOATS)
    with _exact._decimals(60) as exact:
        noise = np.array([Decimal(v) for v in x.tolist()], object)
        least, most = mechanism.bounds(exact.whole(counts), noise, exact)
        heights = share(abs(noise), exact.whole(cells), exact).astype(float)
    same = low != high  # below its table's end, a spacing decodes to whole numbers
    middle, room = ((low + high) / 2)[same], ((high - low) / 2)[same]
    assert np.all((low <= least.astype(float)) & (most.astype(float) <= high))
    assert np.all(abs(least.astype(float)[same] - middle) < room / 50 + np.spacing(abs(middle)))
    assert np.all(abs(height - heights) < 2.0**-40 * (4 * (1 + abs(x)) ** 2 * height + 2) / 50)
    assert np.all((height > 0) & (height <= 1))


def test_airy_numbers_are_those_of_scipy_and_have_the_digits_asked_for():
    x = np.linspace(0, 9, 19)
    with decimal.localcontext(prec=40):
        found = [_exact_airy.relative(Decimal(v)) for v in x]
    expected = scipy.special.airy(x - cp.AIRY_SLOPE_ZERO)[0] / scipy.special.airy(-cp.AIRY_SLOPE_ZERO)[0]
    np.testing.assert_allclose(np.asarray(found, float), expected, rtol=1e-12)
    with decimal.localcontext(prec=90):
        assert max(abs(_exact_airy.relative(Decimal(v)) - y) for v, y in zip(x, found, strict=True)) < Decimal("1e-38")


@pytest.mark.parametrize("name", cp.DESIGNS)
def test_where_float64_decides_nothing_decimals_give_the_same_probabilities(name, monkeypatch):
    mechanism = cp.design(name, 0.25)
    with monkeypatch.context() as patch:
        patch.setattr(_exact, "FLOATS", _exact.Arithmetic(float, np.inf))
        draws = _exact.whole_numbers(mechanism, np.full(300, 10), seeded(5))
    assert chi_square(mechanism, 10, draws) > 1e-3


@pytest.mark.slow
def test_who_knows_all_values_of_two_counts_can_not_tell_them_apart():
    """By which of the two a value came from more often: of simulated releases in float32 that is right too often."""
    size, n = 3_000_000, 10**7
    mechanism = cp.LogGaussian(*(jnp.float32(x) for x in (cp.log_gaussian_sigma(0.1, 1.0), 1)))

    def simulated(count, seed):
        counts = jnp.full(size, count, jnp.float32)
        return np.asarray(cp.simulate_release(mechanism, counts, key=jax.random.key(seed))).astype(int)

    def exact(count, seed):
        return _exact.whole_numbers(mechanism, np.full(size, count), seeded(seed))

    def right(draw):
        seen = [np.bincount(np.clip(draw(n - k, seed), 0, 2 * n)) for k in (0, 1) for seed in (k, k + 2)]
        seen = [np.pad(x, (0, 2 * n + 1 - x.size)) for x in seen]
        more = np.sign(seen[0] - seen[2])  # from the draws with the first seeds; the others are told apart
        return 0.5 + (more @ seen[1] - more @ seen[3]) / (4 * size)

    error = 0.5 / np.sqrt(2 * size)
    leaky, safe = right(simulated), right(exact)
    print(f"right: {leaky:.4f} simulated, {safe:.4f} exact, +- {error:.4f}")
    assert leaky > 0.5 + 10 * error
    assert abs(safe - 0.5) < 4 * error


def test_a_release_has_no_seed_and_no_float_on_its_way(monkeypatch):
    assert list(inspect.signature(cp.release).parameters) == ["mechanism", "counts"]
    asked, bits = [], seeded(6)
    monkeypatch.setattr(secrets, "token_bytes", lambda size: asked.append(size) or bits(size))
    for name in ("released", "error", "budget"):
        monkeypatch.setattr(cp.LogGaussian, name, None)
    mechanism = cp.LogGaussian(jnp.float32(0.1), jnp.float32(1))
    with jax.enable_x64(False):
        found = cp.release(mechanism, jnp.asarray([[0, 3], [1000, 2**30]], jnp.int32))
    assert found.dtype == np.int64
    assert found.shape == (2, 2)
    assert np.all(found >= 0)
    assert sum(asked) > 4 * 5 * 8


def test_counts_are_not_rounded_on_their_way():
    mechanism = cp.LogGaussian(1e-12, 1.0)  # noise of 0.2 at 2^53 - 1
    assert abs(cp.release(mechanism, [2**53 - 1, 2**24 + 1])[1] - (2**24 + 1)) <= 1
    assert cp.release(mechanism, []).shape == (0,)
    with pytest.raises(
        ValueError, match=r"`counts` must be whole numbers in \[0, 2\^53\], but is 9.0072e\+15 \(row 2\)"
    ):
        cp.release(mechanism, [1, 2**53 + 1])


@pytest.mark.parametrize("counts", [True, ["3"], [1j], [[1], [2, 3]], [None], [10**30]])
def test_what_are_no_numbers_is_one_line(counts):
    with pytest.raises(ValueError, match="`counts` must be whole numbers"):
        cp.release(cp.LogGaussian(0.1, 1.0), counts)


def test_extreme_parameters_end():
    for sigma, shift in ((1e-300, 1.0), (1e6, 1.0), (6.0, 1e-300), (0.1, 1e30)):
        found = cp.release(cp.LogGaussian(sigma, shift), [0, 1, 2**53])
        assert np.all((found >= 0) & (found <= _exact.LARGEST))
    assert cp.release(cp.LogAiry(1.0, 1.0, -1e300), 5) == _exact.LARGEST
    assert cp.release(cp.LogAiry(1.0, 1.0, 1e300), 5) == 0


def test_a_coin_may_show_tails_for_long():
    words = iter([0, 0, 8])
    assert _exact._geometric(1, lambda size: next(words).to_bytes(8, "little")) == [64 + 64 + 3]


def test_a_release_can_not_be_traced():
    mechanism = cp.design("log-gaussian", 0.1)
    with pytest.raises(ValueError, match="`simulate_release` can"):
        jax.jit(lambda n: cp.release(mechanism, n))(jnp.ones(3))
    with pytest.raises(ValueError, match="`simulate_release` can"):
        jax.grad(lambda s: cp.release(cp.LogGaussian(s, 1.0), [3]).sum())(0.1)


def test_unrounded_simulations_warn():
    with pytest.warns(UserWarning, match="floating-point noise gives counts away"):
        cp.simulate_release(cp.design("log-gaussian", 0.1), [3], key=jax.random.key(0), rounded=False)
