"""The spacing mechanism: counts as levels on a line, normal noise, and a decoder that knows that counts are whole.

Count n is the level S(n) = D_1 + ... + D_n; what is released is the count whose interval holds S(n) + Z, Z ~ N(0, 1).
Counts n and n - 1 are then D_n apart, and the budget of the edge between them is exactly D_n^2 / 2. The log-Gaussian
mechanism is the case S(n) = log(n + c) / sigma. There the least n costs far more than it must: a small count needs no
error proportional to it, only to be told from its neighbours now and then.
"""

import functools
import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.special
from jax.scipy.special import erfinv, ndtr
from jaxtyping import Array, ArrayLike, Float

from perfjax import _check
from perfjax._check import Numbers
from perfjax.count_privacy._arguments import as_counts, check_ranges
from perfjax.count_privacy._exact import Arithmetic
from perfjax.count_privacy._release import AbstractCountRelease, relative_margin

__all__ = ["LARGEST_TOLERANCE", "Spacing", "spacing_error"]

LARGEST_TOLERANCE = 0.25  # of the errors for which the tail rule is tested
SMALLEST_TOLERANCE = 0.02  # below, the table would need thousands of gaps
SLACK = 2e-4  # of the tolerance, kept back: where table and tail meet, errors are up to 6e-5 above what they aim at
SWEEPS = 150
DESCENT_STEPS = 1000


def spacing_error(gaps: Numbers, count: Numbers, *, offset: Numbers = 0.0) -> Float[Array, "..."]:
    """E|decoded - n| for levels 0 .. M with the given gaps and nothing above: exactly, by the tails of the thresholds.

    sum over m > n of Phi(S(n) - t_m) plus sum over m <= n of Phi(t_m - S(n)), with thresholds
    t_m = (S(m - 1) + S(m)) / 2 + offset.

    Args:
        gaps: D_1 .. D_M, in standard deviations of the noise, above 0.
        count: n, whole, from 0 to M.
        offset: by which every threshold lies above the middle of its gap.

    Returns:
        The mean absolute error, in counts.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours.

    Example:
        >>> print(f"{spacing_error([3.0, 2.0, 1.5, 1.2, 1.0], 3):.6f}")
        0.551656
    """
    gaps, count, offset = _check.as_floats(gaps=gaps, count=count, offset=offset)
    gaps = _check_gaps(gaps)
    count = _check.in_range(as_counts(count, "count"), "count", 0, gaps.size)
    levels = _levels(gaps)
    return _table_error(levels, _thresholds(levels, offset), levels[count.astype(jnp.int32)], count)


def _check_gaps(gaps):
    if gaps.ndim != 1 or not gaps.size:
        raise _check.fail("gaps", "be a list of numbers", f"of shape {gaps.shape}")
    return _check.in_range(gaps, "gaps", 0, open_low=True, open_high=True)


def _levels(gaps):
    return jnp.concatenate([jnp.zeros_like(gaps[:1]), jnp.cumsum(gaps)])


def _thresholds(levels, offset):
    return (levels[:-1] + levels[1:]) / 2 + offset


def _table_error(levels, thresholds, level, count):
    """E|decoded - n| if the decoder stops at the last level; `level` is that of n, which may lie beyond."""
    m = jnp.arange(1, levels.size, dtype=levels.dtype)
    beyond = m > count[..., None]
    distance = jnp.where(beyond, 1, -1) * (level[..., None] - thresholds)
    return jnp.sum(ndtr(distance), axis=-1)


class Spacing(AbstractCountRelease):
    """Levels with gaps 1 .. M from a table, and beyond it the log-Gaussian's: S(n) = S(M) + log(n / M) / sigma.

    Above the threshold theta, which is n = M + 1/2 of the tail, the decoder is the log-Gaussian's, not rounded:
    M exp(sigma (y - S(M)) - sigma^2). So the error is a finite sum and normal tails at every n, and that of large n is
    n erf(sigma / sqrt 2), with sigma chosen to keep it below the tolerance.

    Attributes:
        gaps: D_1 .. D_M, in standard deviations of the noise, above 0.
        sigma: of the tail, above 0.

    Source: ours, numerical.

    Example:
        >>> mechanism = Spacing.from_tolerance(0.25)
        >>> print(f"{mechanism.budget(1.0):.2f} {mechanism.error(1.0):.4f}")
        4.05 0.2499
    """

    exactly_gaussian: ClassVar[bool] = True
    noise: ClassVar[str] = "normal"

    gaps: Float[Array, " gaps"]
    sigma: Float[Array, ""]

    def __init__(self, gaps: Numbers, sigma: Numbers):
        gaps, sigma = _check.as_floats(gaps=gaps, sigma=sigma)
        self.gaps, self.sigma = _check_gaps(gaps), check_ranges(sigma=sigma)[0]

    @classmethod
    def from_tolerance(
        cls, relative_error: Numbers, *, size: int | None = None, weights: Numbers | None = None
    ) -> "Spacing":
        """The mechanism whose error is (nearly) r n at every n from 1: each gap as small as the tolerance lets it be.

        The table ends at M; there the gaps have become those of the log-Gaussian with c = 0, which go on. From
        gaps that would do if all were equal, each is multiplied by (its error / its share)^0.7 until errors are equal.

        Args:
            relative_error: r, in [0.02, 0.25].
            size: M, if not the 30 / r of a tolerance that is known (of a traced one: 1500).
            weights: w_1 .. w_K, at least 0, K at most M: instead of equal errors, the gaps with the least sum of
                w_n v(n) that descent on all log gaps finds from there, with errors below the tolerance and gaps in
                order. Equal errors are nearly best: 0.5 % are gained at r = 0.25 for sizes 1 to 20 alike.

        Returns:
            The mechanism, differentiable in r (through the sweeps), with an error below r max(n, 1) at every n: tested
            for n up to 10,000, and beyond it tends to n erf(sigma / sqrt 2) = r (1 - 1e-4) n.

        Raises:
            ValueError: if r is out of this range: above, the tail rule is not tested.
        """
        (r,) = check_ranges(relative_error=relative_error)
        r = _check.in_range(r, "relative_error", SMALLEST_TOLERANCE, LARGEST_TOLERANCE)
        if r.ndim:
            raise _check.fail("relative_error", "be one number", f"of shape {r.shape}")
        if size is None:
            size = math.ceil(30 / (float(r) if _check.is_known(r) else SMALLEST_TOLERANCE))
        gaps, sigma = _equalised(r, _check.as_count(size, "size", low=2))
        if weights is None:
            return cls(gaps, sigma)
        weights = _check.in_range(_check.as_float(weights, "weights").astype(r.dtype), "weights", 0, open_high=True)
        if weights.ndim != 1 or not 0 < weights.size <= gaps.size:
            raise _check.fail("weights", f"be a list of at most {gaps.size} numbers", f"of shape {weights.shape}")
        return cls(_descended(gaps, sigma, r, weights), sigma)

    def error(self, count: Numbers) -> Float[Array, "..."]:
        return self._exact_error(as_counts(count, "count").astype(self.gaps.dtype))

    @eqx.filter_jit
    def _exact_error(self, count):
        thresholds, theta = self._decoder()
        levels, level = _levels(self.gaps), self._level(count)
        above = ndtr(level - theta)
        # Below theta: as if decoding stopped at M, less what that adds above theta, plus levels from M to n missed.
        listed = _table_error(levels, thresholds, level, count)
        listed = listed - above * jnp.maximum(self.gaps.size - count, 0)
        listed = listed + jnp.maximum(count - self.gaps.size, 0) * ndtr(theta - level)
        # Above theta: partial expectations of a log-normal number.
        mean = self.gaps.size * jnp.exp(self.sigma * (level - levels[-1]) - self.sigma**2 / 2)
        exact = levels[-1] + self.sigma + jnp.log(jnp.maximum(count, 1e-3) / self.gaps.size) / self.sigma
        cut = jnp.maximum(theta, exact)
        over = mean * ndtr(self.sigma - cut + level) - count * ndtr(level - cut)
        missed = count * (ndtr(level - theta) - ndtr(level - cut))
        under = missed - mean * (ndtr(self.sigma + level - theta) - ndtr(self.sigma + level - cut))
        return listed + over + under

    def budget(self, count: Numbers) -> Float[Array, "..."]:
        count = as_counts(count, "count").astype(self.gaps.dtype)
        size = self.gaps.size
        inside = self.gaps[jnp.clip(count - 1, 0, size - 1).astype(jnp.int32)]
        beyond = jnp.log1p(1 / jnp.maximum(count - 1, size)) / self.sigma
        return jnp.where(count <= size, inside, beyond) ** 2 / 2

    def released(self, count: ArrayLike, normal: ArrayLike) -> Float[Array, "..."]:
        thresholds, theta = self._decoder()
        place = self._level(count) + normal
        below = jnp.searchsorted(thresholds, place, side="right").astype(place.dtype)
        ahead = self.sigma * (jnp.maximum(place, theta) - _levels(self.gaps)[-1])
        return jnp.where(place < theta, below, self.gaps.size * jnp.exp(ahead - self.sigma**2))

    def bounds(self, count: np.ndarray, noise: np.ndarray, arithmetic: Arithmetic) -> tuple[np.ndarray, np.ndarray]:
        # On the scale of the tail's decoder, M exp(sigma (y - S(M)) - sigma^2), level and threshold need no logarithm.
        sigma, size = arithmetic.number(float(self.sigma)), self.gaps.size
        levels = np.cumsum([arithmetic.number(0.0), *map(arithmetic.number, np.asarray(self.gaps).tolist())])
        thresholds = size * np.exp(sigma * ((levels[:-1] + levels[1:]) / 2 - levels[-1]))
        behind = levels[np.minimum(count, size).astype(int)] - levels[-1]
        scaled = np.maximum(count, size) * np.exp(sigma * (behind + noise) - sigma * sigma)
        off = relative_margin(sigma * (1 + abs(noise) + sigma + 8 * levels[-1]), arithmetic)

        def decoded(place):
            below = arithmetic.whole(np.searchsorted(thresholds, place, side="right"))
            return np.where(2 * place < 2 * size + 1, below, place)

        return decoded(scaled * (1 - off)), decoded(scaled * (1 + off))

    def _level(self, count):
        inside = _levels(self.gaps)[jnp.minimum(count, self.gaps.size).astype(jnp.int32)]
        return inside + jnp.log(jnp.maximum(count / self.gaps.size, 1)) / self.sigma

    def _decoder(self):
        """The thresholds of the table, and theta."""
        levels = _levels(self.gaps)
        theta = levels[-1] + self.sigma + math.log1p(0.5 / self.gaps.size) / self.sigma
        return _thresholds(levels, self.sigma), theta


@functools.partial(jax.jit, static_argnums=1)
def _equalised(r, size):
    aim = r * (1 - SLACK)
    sigma = math.sqrt(2) * erfinv(r * (1 - SLACK / 2))
    n = jnp.arange(1, size + 1, dtype=r.dtype)

    def sweep(gaps, _):
        error = Spacing(gaps, sigma).error(n)
        return gaps * (error / (aim * n)) ** 0.7, None

    return jax.lax.scan(sweep, _start(aim, n), length=SWEEPS)[0], sigma


@jax.jit
def _descended(gaps, sigma, r, weights):
    """Adam on the weighted budget, errors above what is allowed being charged more and more.

    Then what still is above is put right, and gaps out of order are.
    """
    allowed = r * (1 - SLACK) * jnp.arange(1, 2 * gaps.size + 1, dtype=r.dtype)  # beyond the table too
    n = jnp.arange(1, 2 * gaps.size + 1, dtype=r.dtype)

    def cost(gaps):
        return jnp.sum(weights * gaps[: weights.size] ** 2)

    def excess(gaps):
        return Spacing(gaps, sigma).error(n) / allowed

    def loss(log_gaps, charge):
        trial = jnp.exp(log_gaps)
        return cost(trial) / cost(gaps) + charge * jnp.sum(jax.nn.relu(excess(trial) - 1) ** 2)

    def step(i, state):
        log_gaps, memory = state
        slope = jax.grad(loss)(log_gaps, 1000.0 + 10.0 * i)
        update, memory = optimizer.update(slope, memory)
        return optax.apply_updates(log_gaps, update), memory

    def repair(gaps, _):
        gaps = gaps * jnp.maximum(excess(gaps)[: gaps.size], 1) ** 0.7
        return jnp.maximum(jax.lax.cummax(gaps, reverse=True), jnp.log1p(1 / gaps.size) / sigma), None

    optimizer = optax.adam(3e-3)
    with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
        start = jnp.log(gaps)
        log_gaps, _ = jax.lax.fori_loop(0, DESCENT_STEPS, step, (start, optimizer.init(start)))
    found = jax.lax.scan(repair, jnp.exp(log_gaps), length=SWEEPS)[0]
    better = (cost(found) < cost(gaps)) & (jnp.max(excess(found)) <= 1 + SLACK / 2)
    return jnp.where(better, found, gaps)


def _start(aim, n):
    """The gap D with 2 (Phi(-D / 2) + Phi(-3 D / 2) + ...) = r (n - 1/2): all gaps equal, from a table."""
    grid = np.geomspace(1e-3, 20, 2000)
    k = np.arange(1, 64)[:, None]
    error = functools.reduce(np.logaddexp, scipy.special.log_ndtr(-(k - 0.5) * np.maximum(grid, 0.2))) + math.log(2)
    # Below gaps of 0.2 the sum is the integral E|Z| / D, to every digit.
    error = np.where(grid < 0.2, math.log(2 / math.sqrt(2 * math.pi)) - np.log(grid), error)
    grid, error = grid[::-1], error[::-1]
    return jnp.exp(
        jnp.interp(jnp.log(aim * (n - 0.5)), jnp.asarray(error, n.dtype), jnp.asarray(np.log(grid), n.dtype))
    )
