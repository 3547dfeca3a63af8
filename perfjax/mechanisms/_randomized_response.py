"""Randomized response: everybody flips their own bit with a known probability."""

import math
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.nn import sigmoid
from jax.scipy.special import gammaln, xlogy
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from perfjax import _check
from perfjax._check import Numbers
from perfjax._linear import product
from perfjax.mechanisms._base import AbstractMechanism
from perfjax.privacy import Privacy, PureBudget

__all__ = ["RandomizedResponse"]

EXACT_UP_TO = 64  # users up to which the clipped estimate's error is summed over every count


class RandomizedResponse(AbstractMechanism):
    r"""The fraction mu of ones among the users, from bits that each user keeps with probability 1/2 + beta.

    beta = tanh(epsilon / 2) / 2. From the rate nu of ones received, mu is estimated by (nu - 1/2 + beta) / (2 beta),
    without bias and with squared error

        (1 / (4 tanh^2(epsilon / 2)) - E[(mu - 1/2)^2]) / n.

    Attributes:
        epsilon: the local budget, above 0; infinite means no privacy. One value, or one per release.
        mean: mu, one number in [0, 1], or the two ends of an interval in which every release draws its own mu.
        clip_estimate: whether the estimate is clipped to [0, 1]. Then the error has no closed form: it is summed over
            all counts up to 64 users (interpolated between whole numbers), and beyond that the count is taken as
            normal. The normal knows nothing of the steps of the count, relative error up to 0.9 / sqrt(n) with a budget
            below 1 / sqrt(n), nor of its skewness, up to a quarter for a fixed mu within 1 / n of 0 or 1.

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility", section 3, equation 1 and Lemma 1. The
        paper does not say that its simulations clip the estimate; they do.
    """

    noise_name: ClassVar[str] = "epsilon"
    noise_symbol: ClassVar[str] = "ε"
    noise_label: ClassVar[str] = "local epsilon"
    noise_bounds: ClassVar[tuple[float, float]] = (1e-3, 30.0)
    no_privacy: ClassVar[float] = float("inf")
    more_is_private: ClassVar[bool] = False
    error_unit: ClassVar[str] = "squared error"
    needs_crowd: ClassVar[bool] = False

    epsilon: Float[Array, "..."]
    mean: Float[Array, "..."]
    clip_estimate: bool = eqx.field(static=True)

    def __init__(self, epsilon: Numbers, mean: Numbers = (0.0, 1.0), *, clip_estimate: bool = False):
        mean = _check.in_range(_check.as_float(mean, "mean"), "mean", 0, 1)
        if mean.shape not in ((), (2,)):
            raise _check.fail("mean", "be one number or the two ends of an interval", mean)
        if mean.shape == (2,) and _check.is_known(mean) and np.greater(*np.asarray(mean)):
            raise _check.fail("mean", "have its lower end first", mean)
        self.epsilon, self.mean = _check.one_dtype((self.check_noise(epsilon), mean))
        if not isinstance(clip_estimate, bool | np.bool_):
            raise _check.fail("clip_estimate", "be True or False", _check.quoted(clip_estimate))
        self.clip_estimate = bool(clip_estimate)

    @property
    def noise(self) -> Float[Array, "..."]:
        return self.epsilon

    def check_noise(self, noise: Numbers) -> Float[Array, "..."]:
        return _check.in_range(_check.as_float(noise, "epsilon"), "epsilon", 0, open_low=True)

    def error(self, population: Numbers, noise: Numbers | None = None) -> Float[Array, ""]:
        population, noise = self.typed(population, noise)
        if self.clip_estimate:
            return _clipped_error(population, noise, self.mean)
        # Not 1 / (4 tanh^2) less a mean square: near mu = 0 or 1 that is a difference of equal numbers.
        coin = jnp.exp(-noise) / jnp.expm1(-noise) ** 2
        return _per_user(coin + self._variance(), population)

    def privacy(self, population: Numbers, noise: Numbers | None = None) -> Privacy:
        _, epsilon = self.typed(population, noise)
        return Privacy(local=PureBudget(epsilon), central=None)

    def _variance(self) -> Float[Array, ""]:
        """E[mu (1 - mu)] over the release's mu."""
        if self.mean.ndim == 0:
            return self.mean * (1 - self.mean)
        low, high = self.mean
        center, width = (low + high) / 2, high - low
        return center * (1 - center) - width * width / 12


def _per_user(total, population):
    """total / population, infinite where there is nobody, with a derivative that is not NaN there."""
    return jnp.where(population > 0, total / jnp.where(population > 0, population, 1), jnp.inf)


def _clipped_error(population, epsilon, mean):
    """Expected squared error of the estimate clipped to [0, 1], averaged over the release's mu."""
    mu, weight = _means(mean)
    kept, flipped = sigmoid(epsilon), sigmoid(-epsilon)
    # Not zero = 1 - one, which cancels. An answer is never quite certain: the derivative of a log is infinite there.
    doubt = math.sqrt(jnp.finfo(mu.dtype).tiny)
    one, zero = mu * kept + (1 - mu) * flipped + doubt, (1 - mu) * kept + mu * flipped + doubt
    crowd = jnp.maximum(population, EXACT_UP_TO)
    few = jnp.clip(population, 1, EXACT_UP_TO)
    below = jnp.floor(few)
    share = few - below

    def summed(count):
        return _summed_error(count, one, zero, mu, epsilon)

    small = (1 - share) * summed(below) + share * summed(jnp.minimum(below + 1, EXACT_UP_TO))
    large = _normal_error(crowd, one, zero, mu, epsilon)
    error = product(jnp.where(population <= EXACT_UP_TO, small, large), weight)
    return jnp.where(population > 0, error, jnp.inf)


def _means(mean):
    """Nodes and weights over the release's mu."""
    if mean.ndim == 0:
        return mean[None], jnp.ones_like(mean)[None]
    node, weight = np.polynomial.legendre.leggauss(24)
    low, high = mean
    return low + (high - low) * jnp.asarray((node + 1) / 2, mean.dtype), jnp.asarray(weight / 2, mean.dtype)


def _summed_error(count, one, zero, mu, epsilon):
    """The error for a whole number of users: a sum over the number of ones they send."""
    ones = jnp.arange(EXACT_UP_TO + 1, dtype=mu.dtype)[:, None]
    estimate = jnp.clip(0.5 + (ones / count - 0.5) / jnp.tanh(epsilon / 2), 0, 1)
    zeros = jnp.maximum(count - ones, 0)
    ways = gammaln(count + 1) - gammaln(ones + 1) - gammaln(zeros + 1)
    chance = jnp.exp(ways + xlogy(ones, one) + xlogy(zeros, zero))
    return jnp.sum(jnp.where(ones <= count, chance * (estimate - mu) ** 2, 0), axis=0)


def _normal_error(count, one, zero, mu, epsilon):
    """The error with a normal count of ones: the second moment of a normal deviation held to [-mu, 1 - mu].

    Between 0 and `count` ones the estimate overshoots [0, 1] by at most `reach`, a normal by any amount. What it takes
    from beyond `reach` is put back, so that the limit of no privacy, which clips nothing, is exact.
    """
    scale = jnp.sqrt(one * zero / count) / jnp.tanh(epsilon / 2)
    reach = (1 / jnp.tanh(epsilon / 2) - 1) / 2
    low, high = -mu / scale, (1 - mu) / scale
    inside = norm.cdf(high) - norm.cdf(low) - (_x_density(high) - _x_density(low))
    held = scale**2 * inside + mu**2 * norm.cdf(low) + (1 - mu) ** 2 * norm.cdf(-high)
    return held + scale**2 * (_excess((mu + reach) / scale) + _excess((1 - mu + reach) / scale))


def _x_density(x):
    """x phi(x), 0 in the far tails where x^2 overflows."""
    x = jnp.clip(x, -50, 50)
    return x * norm.pdf(x)


def _excess(x):
    """E[u^2 - x^2; u > x] for a standard normal u."""
    x = jnp.minimum(x, 50)
    return (1 - x * x) * norm.cdf(-x) + _x_density(x)
