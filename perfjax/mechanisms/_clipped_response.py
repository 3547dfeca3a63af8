"""The squared error of randomized response with its estimate clipped to [0, 1]: sums over the count of ones."""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.nn import sigmoid
from jaxtyping import Array, Float

from perfjax._linear import product

__all__ = ["clipped_error"]

LISTED = 72  # counts summed one by one from 0: all of them up to so many users
FEW_USERS = 64.0, 72.0  # between these the list gives way to panels
FEW_ONES = 16.0, 20.0  # the same, by the expected count of the rarer answer
PANEL = 12  # nodes
WIDTH = 6.5  # standard deviations of the count that the panels reach
MARGIN = 5.5  # standard deviations of the estimate from 0 or 1, beyond which it is not clipped
BESIDE, BETWEEN = 10, 4  # nodes over mu up to there, at each end, and between


class _Sent(NamedTuple):
    """What the release's mu, one per entry, makes of a bit sent; mirrored so that ones are the rarer answer."""

    mean: Float[Array, " mu"]
    one: Float[Array, " mu"]
    zero: Float[Array, " mu"]


def clipped_error(
    population: Float[Array, ""], epsilon: Float[Array, ""], mean: Float[Array, "..."]
) -> Float[Array, ""]:
    """The expected squared error, averaged over the release's mu.

    A whole number n of users sends a binomial count k of ones, and the estimate is 1/2 + (k - n / 2) / (n t) with t =
    tanh(epsilon / 2), clipped. Up to 64 users, or 16 of the rarer answer expected, the sum over k is taken as it
    stands; from 72, or 20, it is one integral below, one between and one above the two counts where clipping sets in,
    with the first two terms of Euler and Maclaurin for what a sum is more than an integral; in between both, weighted.
    """
    present = (population > 0) & (population < jnp.inf)
    n = jnp.where(present, jnp.maximum(population, 1), 1)
    mu, weight = _means(n, epsilon, mean)
    sent = _sent(mu, epsilon)
    listed = jnp.maximum(_falling(n, *FEW_USERS), _falling(n * sent.one, *FEW_ONES))
    by_list = _listed_error(n, sent, epsilon)
    by_panels = _panel_error(jnp.maximum(n, FEW_USERS[0]), sent, epsilon)
    error = product(listed * by_list + (1 - listed) * by_panels, weight)
    return jnp.where(present, error, jnp.where(population > 0, 0, jnp.inf))


def _falling(x, low, high):
    """1 up to `low`, 0 from `high`, with one derivative throughout."""
    s = jnp.clip((x - low) / (high - low), 0, 1)
    return 1 - s * s * (3 - 2 * s)


def _means(population, epsilon, mean):
    """Nodes and weights over the release's mu.

    Where clipping plays no part the error is quadratic in mu, and a few nodes are exact; most lie within `MARGIN`
    standard deviations of the estimate from 0 and from 1.
    """
    if mean.ndim == 0:
        return mean[None], jnp.ones_like(mean)[None]
    low, high = mean
    budget = jnp.clip(epsilon, 1e-6, 100)  # beyond, the square overflows or vanishes, and the margin is as it is there
    variance = jnp.exp(-budget) / jnp.expm1(-budget) ** 2 / population + (MARGIN / population) ** 2
    margin = jnp.minimum(MARGIN * jnp.sqrt(variance + jnp.finfo(variance.dtype).tiny), 0.5)
    first = jnp.clip(margin, low, high)
    last = jnp.clip(1 - margin, first, high)
    parts, whole = [], 2 * BESIDE + BETWEEN
    for start, end, count in ((low, first, BESIDE), (first, last, BETWEEN), (last, high, BESIDE), (low, high, whole)):
        node, weight = (jnp.asarray(x / 2, mean.dtype) for x in np.polynomial.legendre.leggauss(count))
        parts.append(((start + end) / 2 + (end - start) * node, (end - start) * weight))
    *split, plain = parts
    # Of few users the error is a polynomial in mu, which one rule integrates exactly.
    few = population <= FEW_USERS[0]
    pairs = zip(plain, zip(*split, strict=True), strict=True)
    mu, weight = (jnp.where(few, x, jnp.concatenate(y)) for x, y in pairs)
    wide = high > low
    share = jnp.where(wide, weight / jnp.where(wide, high - low, 1), 1 / mu.size)
    return mu, share


def _sent(mu, epsilon):
    kept, flipped = sigmoid(epsilon), sigmoid(-epsilon)
    # Not zero = 1 - one, which cancels. An answer is never quite certain: the derivative of a log is infinite there.
    doubt = math.sqrt(jnp.finfo(mu.dtype).tiny)
    one, zero = mu * kept + (1 - mu) * flipped + doubt, (1 - mu) * kept + mu * flipped + doubt
    turned = mu > 0.5
    return _Sent(*(jnp.where(turned, x, y) for x, y in ((1 - mu, mu), (zero, one), (one, zero))))


def _listed_error(n, sent, epsilon):
    """The sum over the counts from 0 on; between whole numbers of users, as long as all are listed, an average."""
    mu, one, zero = sent
    shrink = jnp.tanh(epsilon / 2)
    complete = n < LISTED
    users = jnp.where(complete, jnp.floor(n), n)
    k = jnp.arange(LISTED + 1, dtype=mu.dtype)[:, None]
    # The error of the estimate before clipping, from whichever of two centres does not cancel.
    private = shrink < 0.5
    offset = jnp.where(private, 0.5 - mu, -one / shrink)

    def squares(k, n):
        return jnp.clip((k / n - jnp.where(private, 0.5, 0)) / shrink + offset, -mu, 1 - mu) ** 2

    same = squares(k, users)
    # One user more adds a zero or a one to every count: their list follows from this one.
    more = zero * squares(k, users + 1) + one * squares(k + 1, users + 1)
    error = same + jnp.where(complete, n - users, 0) * (more - same)
    rest = jnp.where(zero > 0.5, jnp.log1p(-jnp.minimum(one, 0.5)), jnp.log(zero))
    chance = jnp.exp(_log_ways(users)[:, None] + k * jnp.log(users * one) + jnp.maximum(users - k, 0) * rest)
    return jnp.sum(jnp.where(k <= users, chance * error, 0), axis=0)


def _log_ways(n):
    """The log of C(n, k) / n^k for the counts k of a list; n is whole where all are listed."""
    k = np.arange(LISTED + 1)
    few = [[math.log(math.comb(x, y)) - y * math.log(x) if y <= x else 0 for y in k] for x in range(1, LISTED + 1)]
    of_few = jnp.asarray(np.array(few), n.dtype)[jnp.clip(n, 1, LISTED).astype(int) - 1]
    of_k = jnp.asarray([math.lgamma(x + 1) for x in k], n.dtype)
    k, crowd = jnp.asarray(k, n.dtype), jnp.maximum(n, LISTED)
    left = jnp.maximum(crowd - k, 0.5)
    of_crowd = -k - (left + 0.5) * jnp.log(left / crowd) + _stirling(1 / crowd) - _stirling(1 / left) - of_k
    return jnp.where(n < LISTED, of_few, of_crowd)


def _panel_error(n, sent, epsilon):
    """The sum over the counts k of n users: k - n / 2 is whole if n is even, and whole plus 1/2 if it is odd.

    In between, an average of the two, so that the error is exact at whole numbers of users.
    """
    mu, one, zero = sent
    reach = n * jnp.tanh(epsilon / 2)
    even = jnp.abs(n % 2 - 1)
    deviation = jnp.sqrt(n * one * zero)
    low = jnp.maximum(-WIDTH * deviation, -n * one - 0.5)
    high = jnp.minimum(WIDTH * deviation, n * zero + 0.5)
    edges = jnp.stack([-reach * mu, reach * (1 - mu)])  # where clipping sets in, from the expected count on
    first, second = jnp.clip(edges, low, high)
    x, weight = _panels(low, first, jnp.clip(0, first, second), second, high)
    # A few counts between the edges are taken one by one: their integral would cancel. In terms of k - n / 2, nothing
    # does, however small the budget.
    few = reach <= PANEL
    from_half = np.arange(-2 * PANEL, 2 * PANEL).reshape(4, PANEL, 1) / 2
    shares = jnp.where(from_half % 1 == 0, even, 1 - even)
    one_by_one = few & np.array([False, True, True, False])[:, None, None]
    from_half = jnp.asarray(from_half, mu.dtype)
    x = jnp.where(one_by_one, from_half - reach * (mu - 0.5), x)
    weight = jnp.where(one_by_one, jnp.where(jnp.abs(from_half) < reach / 2, shares, 0), weight)
    between = jnp.asarray([[[0]], [[1]], [[1]], [[0]]], mu.dtype) / reach
    error = between * x + jnp.stack([mu, 0 * mu, 0 * mu, 1 - mu])[:, None]
    chance = _chance_of(n, sent)
    each = chance(x) * weight * error**2
    # A product, not a sum: XLA takes what it sums one number at a time.
    total = product(jnp.ones(4 * PANEL, mu.dtype), each.reshape(4 * PANEL, -1))
    inside = (edges > low) & (edges < high)
    return total + _ends(n, sent, chance, jnp.where(inside, edges, 0), inside, reach, even, few)


def _panels(*ends):
    """Nodes and weights of Gauss and Legendre in the panels between ends in order: panels, nodes, mu."""
    node, weight = (jnp.asarray(x / 2, ends[0].dtype)[:, None] for x in np.polynomial.legendre.leggauss(PANEL))
    ends = jnp.stack(ends)[:, None]
    low, high = ends[:-1], ends[1:]
    return (low + high) / 2 + (high - low) * node, (high - low) * weight


def _ends(n, sent, chance, edges, inside, reach, even, few):
    """What the sums are more than the integrals, by the derivatives at their common ends.

    Steps of f from a distance s in [0, 1) beyond an end sum to its integral less B_1(s) f + B_2(s) f' / 2 + ..., with
    the polynomials of Bernoulli; steps up to there to the integral and as much more.
    """
    outward = jnp.asarray([[-1.0], [1.0]], edges.dtype)
    rate, bend = _rates(n, sent, edges)
    rate = outward * rate
    first, second, third = rate, rate**2 + bend, rate**3 + 3 * rate * bend  # derivatives of the chance over it
    # Between, the square of the error is (x / reach)^2, whose derivatives end with the second; outside, it is constant.
    slope, curve = (jnp.where(few, 0, y) for y in (2 * outward * edges / reach**2, 2 / reach**2))
    value = jnp.where(few, -((edges / reach) ** 2), 0)
    jumps = (
        value,
        value * first + slope,
        value * second + 2 * slope * first + curve,
        value * third + 3 * slope * second + 3 * curve * first,
    )
    factors = _steps(reach / 2, 0) * even[None] + _steps(reach / 2, 0.5) * (1 - even)[None]
    total = sum(factor * jump for factor, jump in zip(factors, jumps, strict=True))
    return jnp.sum(jnp.where(inside, chance(edges) * total, 0), axis=0)


def _steps(end, offset):
    """B_i(s) / i! for i = 1 to 4, s from `end` to the next whole number plus `offset`."""
    s = offset + jnp.ceil(end - offset) - end
    square = s * s
    polynomials = (s - 1 / 2, square - s + 1 / 6, s * (square - 1.5 * s + 0.5), square * (square - 2 * s + 1) - 1 / 30)
    return jnp.stack([p / math.factorial(i) for i, p in enumerate(polynomials, 1)])


def _chance_of(n, sent):
    """The binomial probability as a function of the distance x of the count from its expectation.

    By Stirling's formula, and relative to the expectation: a difference of factorials would lose all digits.
    """
    ones, zeros = n * sent.one, n * sent.zero
    height = jnp.exp(_stirling(1 / n)) / jnp.sqrt(2 * math.pi * n * sent.one * sent.zero)
    per_one, per_zero = 1 / ones, 1 / zeros

    def chance(x):
        k, left = jnp.maximum(ones + x, 0.5), jnp.maximum(zeros - x, 0.5)
        log_u = jnp.log1p(jnp.maximum(x * per_one, 0.5 * per_one - 1))
        log_v = jnp.log1p(jnp.maximum(-x * per_zero, 0.5 * per_zero - 1))
        exponent = (k + 0.5) * log_u + (left + 0.5) * log_v
        return height * jnp.exp(-exponent - _stirling(1 / k) - _stirling(1 / left))

    return chance


def _rates(n, sent, x):
    """Two derivatives of the log of that probability."""
    k, left = jnp.maximum(n * sent.one + x, 0.5), jnp.maximum(n * sent.zero - x, 0.5)
    return jnp.log(left * sent.one / (k * sent.zero)) + (1 / left - 1 / k) / 2, -1 / k - 1 / left


def _stirling(inverse):
    """log Gamma(x + 1) less Stirling's formula for it, by 1 / x."""
    return inverse * (1 / 12 - inverse * inverse / 360)
