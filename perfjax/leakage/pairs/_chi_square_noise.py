"""Expectations over a shared noise that is chi-square: the squared length of what was added to a mean."""

import functools
import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, Float

from perfjax._chi_square import lower_quantile, tails, upper_quantile
from perfjax._normals import score_rule

__all__ = ["Step", "around", "at_score", "chi_square_rule"]

FARTHEST_SCORE = 6.5  # of a node; 1 in 2e10 is beyond
DEGREE = 32  # of the polynomial for a log of a quantile: 2e-6 for one dimension, 3e-8 for two
STEEPEST = 1e6  # a step so steep is one node's; its square overflows in no dtype


class Step(NamedTuple):
    """Where the leak probability falls from 1 to 0, or rises, as the shared noise grows.

    Attributes:
        start: below it everybody is leaked, and above it the probability may begin with a kink; None if nowhere.
        middle: where about half are leaked; 0 or less if nowhere.
        slope: of the probability's normal score, there.
    """

    start: Float[Array, ""] | None
    middle: Float[Array, ""]
    slope: Float[Array, ""]

    @classmethod
    def of_noncentral(
        cls,
        start: Float[Array, ""] | None,
        middle: Float[Array, ""],
        change: Float[Array, ""],
        rate: Float[Array, ""],
        dimensions: int,
    ) -> "Step":
        """Of a noncentral chi2_d(rate x) given the shared noise x, that lies below or above a line in x.

        It is nearly normal with mean d + rate x and variance 2 d + 4 rate x; `change` is what it moves by, against the
        line, as x grows by one.
        """
        return cls(start, middle, change / jnp.sqrt(2 * dimensions + 4 * rate * jnp.maximum(middle, 0)))


@functools.cache
def chi_square_rule(dimensions: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for expectations over the shared noise, chi2 with `dimensions` degrees of freedom.

    The trapezoid rule in the normal score. Near 0 its nodes are spaced as in log chi: for few dimensions much of the
    law lies there, and the leak probability moves on a scale of its own, where Gauss and Laguerre put no nodes.
    """
    score, weight = _scores(dimensions)
    return at_score(score, dimensions), weight


def _scores(dimensions):
    """Nodes and weights in the score. In more dimensions the law is narrower, and the leak probability smoother."""
    return score_rule(*((5.4, 32) if dimensions < 8 else (5.4, 16) if dimensions < 12 else (5.2, 12)))


def at_score(score: np.ndarray, dimensions: int) -> np.ndarray:
    """The shared noise at normal scores."""
    below = lower_quantile(scipy.special.ndtr(score), dimensions)
    return np.where(score < 0, below, upper_quantile(scipy.special.ndtr(-score), dimensions))


def around(step: Step, dimensions: int) -> tuple[Float[Array, " shared"], Float[Array, " shared"]]:
    """A rule for a probability that is nearly Phi(slope (s - place)), s the normal score of what lies above `start`.

    Its product with the normal density is nearly normal about a center and with a deviation known in closed form: the
    trapezoid rule takes its nodes there, however steep the step. Beyond them, the probability is constant wherever
    there is any mass, and the end nodes have all of it. Below `start` is one more node.
    """
    tiny, far = jnp.finfo(step.middle.dtype).tiny ** 0.5, 2 * float(upper_quantile(1e-16, dimensions))
    surely, rest = 0, 1
    if step.start is not None:
        start = jnp.clip(step.start, tiny, far)
        surely, rest = tails(start, dimensions)
    middle = jnp.clip(step.middle, tiny, far)
    below, above = ((p - q) / rest for p, q in zip(tails(middle, dimensions), (surely, 0), strict=True))
    place = _score(below, above)
    # Per unit of the score: the ratio of the score's density to the noise's.
    log_density = (dimensions / 2 - 1) * jnp.log(middle / 2) - middle / 2 - math.lgamma(dimensions / 2)
    log_stretch = -(place**2) / 2 - log_density - math.log(math.sqrt(math.pi / 2))
    slope = step.slope * rest * jnp.exp(jnp.clip(log_stretch, -60, 60))
    slope = jnp.where(step.middle > 0, jnp.minimum(slope, STEEPEST), 0)
    deviation = 1 / jnp.sqrt(1 + slope**2)
    score, weight = _trapezoid((slope * deviation) ** 2 * place, deviation, _scores(dimensions)[0])
    node = _quantile(_score(surely + rest * ndtr(score), rest * ndtr(-score)), dimensions)
    if step.start is None:
        return node, weight
    return jnp.append(node, start / 2), jnp.append(rest * weight, surely)


def _score(below, above):
    """The normal score from both tails, of which the small one is accurate."""
    tiny = jnp.finfo(above.dtype).tiny ** 0.5
    upper = above < 0.5
    score = ndtri(jnp.clip(jnp.where(upper, above, below), tiny, 0.5))
    return jnp.where(upper, -score, score)


def _trapezoid(center, deviation, spaced):
    """Nodes and weights over a standard normal variable; the end nodes have what an endless rule puts beyond."""
    step = deviation * float(spaced[1] - spaced[0])
    node = center + deviation * jnp.asarray(spaced, center.dtype)
    weight = step * _density(node)
    weight = weight.at[0].set(_sum_below(node[0] + step / 2, step)).at[-1].set(_sum_below(step / 2 - node[-1], step))
    return node, weight / jnp.sum(weight)


def _sum_below(end, step):
    """The sum of step * density over endless nodes up to `end` - step / 2, by the formula of Euler and Maclaurin."""
    s, e = step**2, end**2
    series = 1 / 24 - s * (7 / 5760) * (e - 3) + s**2 * (31 / 967680) * (e**2 - 10 * e + 15)
    return ndtr(end) + s * end * _density(end) * series


def _density(x):
    return jnp.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def _quantile(score, dimensions):
    """That of chi2, by Clenshaw's recursion; scipy's inverse is not for traced values."""
    t = jnp.clip(score / FARTHEST_SCORE, -1, 1)
    first, second = jnp.zeros_like(t), jnp.zeros_like(t)
    constant, *others = _coefficients(dimensions)
    for c in reversed(others):
        first, second = 2 * t * first - second + c, first
    return jnp.exp(t * first - second + constant)


@functools.cache
def _coefficients(dimensions):
    """Of the log of the quantile by score, in Chebyshev polynomials."""
    domain = [-FARTHEST_SCORE, FARTHEST_SCORE]
    log_quantile = np.polynomial.Chebyshev.interpolate(lambda s: np.log(at_score(s, dimensions)), DEGREE, domain)
    return tuple(float(c) for c in log_quantile.coef)
