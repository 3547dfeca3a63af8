"""Randomized response: everybody flips their own bit with a known probability."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, xlog1py, xlogy
from jax.scipy.stats import norm
from jaxtyping import Array, ArrayLike, Float

from perfjax import _check
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
            normal, which is within 0.2 % of the sum.

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility", section 3, equation 1 and Lemma 1. The
        paper does not say that its simulations clip the estimate; they do.
    """

    noise_name: ClassVar[str] = "epsilon"
    noise_symbol: ClassVar[str] = "ε"
    noise_bounds: ClassVar[tuple[float, float]] = (1e-3, 30.0)
    no_privacy: ClassVar[float] = float("inf")
    more_is_private: ClassVar[bool] = False
    needs_crowd: ClassVar[bool] = False

    epsilon: Float[Array, "..."]
    mean: Float[Array, "..."]
    clip_estimate: bool = eqx.field(static=True)

    def __init__(self, epsilon: ArrayLike, mean: ArrayLike = (0.0, 1.0), *, clip_estimate: bool = False):
        mean = _check.in_range(_check.as_float(mean, "mean"), "mean", 0, 1)
        if mean.shape not in ((), (2,)):
            raise _check.fail("mean", "be one number or the two ends of an interval", mean)
        if mean.shape == (2,) and _check.is_known(mean) and np.greater(*np.asarray(mean)):
            raise _check.fail("mean", "have its lower end first", mean)
        self.epsilon, self.mean = _check.one_dtype((self.check_noise(epsilon), mean))
        self.clip_estimate = bool(clip_estimate)

    @property
    def noise(self) -> Float[Array, "..."]:
        return self.epsilon

    def check_noise(self, noise: ArrayLike) -> Float[Array, "..."]:
        return _check.in_range(_check.as_float(noise, "epsilon"), "epsilon", 0, open_low=True)

    def error(self, population: Float[Array, ""], noise: Float[Array, ""] | None = None) -> Float[Array, ""]:
        noise = self.epsilon if noise is None else noise
        if self.clip_estimate:
            return _clipped_error(population, noise, self.mean)
        spread = self._mean_square(center=0.5)
        return _per_user(1 / (4 * jnp.tanh(noise / 2) ** 2) - spread, population)

    def privacy(self, population: Float[Array, "..."], noise: Float[Array, "..."] | None = None) -> Privacy:
        del population
        return Privacy(local=PureBudget(self.epsilon if noise is None else noise), central=None)

    def _mean_square(self, center: float) -> Float[Array, ""]:
        """E[(mu - center)^2] over the release's mu."""
        if self.mean.ndim == 0:
            return (self.mean - center) ** 2
        low, high = self.mean - center
        return (low * low + low * high + high * high) / 3


def _per_user(total, population):
    """total / population, infinite where there is nobody, with a derivative that is not NaN there."""
    return jnp.where(population > 0, total / jnp.where(population > 0, population, 1), jnp.inf)


def _clipped_error(population, epsilon, mean):
    """Expected squared error of the estimate clipped to [0, 1], averaged over the release's mu."""
    mu, weight = _means(mean)
    rate = 0.5 + jnp.tanh(epsilon / 2) * (mu - 0.5)
    crowd = jnp.maximum(population, EXACT_UP_TO)
    few = jnp.clip(population, 1, EXACT_UP_TO)
    below = jnp.floor(few)
    share = few - below

    def summed(count):
        return _summed_error(count, rate, mu, epsilon)

    small = (1 - share) * summed(below) + share * summed(jnp.minimum(below + 1, EXACT_UP_TO))
    large = _normal_error(crowd, rate, mu, epsilon)
    error = jnp.where(population <= EXACT_UP_TO, small, large) @ weight
    return jnp.where(population > 0, error, jnp.inf)


def _means(mean):
    """Nodes and weights over the release's mu."""
    if mean.ndim == 0:
        return mean[None], jnp.ones_like(mean)[None]
    node, weight = np.polynomial.legendre.leggauss(24)
    low, high = mean
    return low + (high - low) * jnp.asarray((node + 1) / 2, mean.dtype), jnp.asarray(weight / 2, mean.dtype)


def _summed_error(count, rate, mu, epsilon):
    """The error for a whole number of users: a sum over the number of ones they send."""
    ones = jnp.arange(EXACT_UP_TO + 1, dtype=rate.dtype)[:, None]
    estimate = jnp.clip(0.5 + (ones / count - 0.5) / jnp.tanh(epsilon / 2), 0, 1)
    zeros = jnp.maximum(count - ones, 0)
    ways = gammaln(count + 1) - gammaln(ones + 1) - gammaln(zeros + 1)
    chance = jnp.exp(ways + xlogy(ones, rate) + xlog1py(zeros, -rate))
    return jnp.sum(jnp.where(ones <= count, chance * (estimate - mu) ** 2, 0), axis=0)


def _normal_error(count, rate, mu, epsilon):
    """The error with a normal count of ones: the second moment of a normal estimate held to [0, 1]."""
    scale = jnp.sqrt(rate * (1 - rate) / count) / jnp.tanh(epsilon / 2)
    scale = jnp.maximum(scale, jnp.finfo(scale.dtype).tiny)
    low, high = -mu / scale, (1 - mu) / scale
    inside = norm.cdf(high) - norm.cdf(low) - (_x_density(high) - _x_density(low))
    return scale**2 * inside + mu**2 * norm.cdf(low) + (1 - mu) ** 2 * norm.cdf(-high)


def _x_density(x):
    """x phi(x), 0 in the far tails where x^2 overflows."""
    x = jnp.clip(x, -50, 50)
    return x * norm.pdf(x)
