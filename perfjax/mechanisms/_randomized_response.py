"""Randomized response: everybody flips their own bit with a known probability."""

from collections.abc import Mapping
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfjax import _check
from perfjax._check import Numbers
from perfjax.mechanisms._base import AbstractMechanism
from perfjax.mechanisms._clipped_response import clipped_error
from perfjax.privacy import Privacy, PureBudget

__all__ = ["RandomizedResponse"]


class RandomizedResponse(AbstractMechanism):
    r"""The fraction mu of ones among the users, from bits that each user keeps with probability 1/2 + beta.

    beta = tanh(epsilon / 2) / 2. From the rate nu of ones received, mu is estimated by (nu - 1/2 + beta) / (2 beta),
    without bias and with squared error

        (1 / (4 tanh^2(epsilon / 2)) - E[(mu - 1/2)^2]) / n.

    Attributes:
        epsilon: the local budget, above 0; infinite means no privacy. One value, or one per release.
        mean: mu, one number in [0, 1], or the two ends of an interval in which every release draws its own mu.
        clip_estimate: whether the estimate is clipped to [0, 1]. Then the error has no closed form: it is summed over
            the count of ones, within 1e-12 of its value up to 64 users and within 3e-6 for more (epsilon in [1e-3, 30],
            any mu, up to 1e5 users, in float64); an interval of mu is averaged by 24 nodes, within 1e-8.
            Between whole numbers of users it is interpolated. Where fewer than about four counts are not clipped,
            n tanh(epsilon / 2) < 4, even and odd numbers of users differ: as epsilon goes to 0, the error goes
            to 1/3 for odd n, and to less by a quarter of P(n / 2 ones) for even n.

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility", section 3, equation 1 and Lemma 1. The
        paper does not say that its simulations clip the estimate; they do.
    """

    noise_name: ClassVar[str] = "epsilon"
    noise_symbol: ClassVar[str] = "ε"
    noise_unit: ClassVar[str] = "nats"
    noise_label: ClassVar[str] = "local epsilon"
    noise_bounds: ClassVar[tuple[float, float]] = (1e-3, 30.0)
    no_privacy: ClassVar[float] = float("inf")
    more_is_private: ClassVar[bool] = False
    error_unit: ClassVar[str] = "squared error"
    meaning: ClassVar[Mapping[str, tuple[str, str]]] = {"mean": ("μ", "1")}

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
            return clipped_error(population, noise, self.mean)
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
    """total / population, infinite for nobody and 0 for endlessly many, with a derivative that is not NaN there."""
    present = (population > 0) & (population < jnp.inf)
    return jnp.where(present, total / jnp.where(present, population, 1), jnp.where(population > 0, 0, jnp.inf))
