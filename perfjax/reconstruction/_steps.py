"""The shapes that smooth threshold queries count with."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from perfjax._check import as_float, in_range

__all__ = ["AbstractStep", "Bump", "Logistic", "Smoothstep"]


def _bandwidth(value: ArrayLike) -> Float[Array, "..."]:
    return in_range(as_float(value, "bandwidth"), "bandwidth", 0.0, open_low=True, open_high=True)


class AbstractStep(eqx.Module):
    """h, which a threshold query adds up over the records: q = (1/m) Σ h(z_k - t)."""

    bandwidth: eqx.AbstractVar[Float[Array, ""]]

    @abc.abstractmethod
    def value(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        """h(u)."""

    @abc.abstractmethod
    def slope(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        """h'(u)."""

    @abc.abstractmethod
    def spread(self, low: Float[Array, "..."], high: Float[Array, "..."]) -> Float[Array, "..."]:
        """The range of h between low < 0 and high > 0: the most that one record changes m times the release."""

    @abc.abstractmethod
    def least_spread(self, radius: Float[Array, ""]) -> Float[Array, ""]:
        """The least `spread` of any threshold in [-radius, radius]."""

    @property
    @abc.abstractmethod
    def energy(self) -> Float[Array, ""]:
        """∫ h'(u)² du over the whole line."""

    @property
    @abc.abstractmethod
    def steepest(self) -> Float[Array, ""]:
        """max |h'|."""

    @property
    @abc.abstractmethod
    def knots(self) -> Float[Array, "knots"]:
        """Points, in ascending order, between which h' is smooth and outside which it is negligible."""


class AbstractRise(AbstractStep):
    """A step that rises from 0 to 1."""

    def spread(self, low: Float[Array, "..."], high: Float[Array, "..."]) -> Float[Array, "..."]:
        return self.value(high) - self.value(low)

    def least_spread(self, radius: Float[Array, ""]) -> Float[Array, ""]:
        return self.spread(-2 * radius, jnp.zeros_like(radius))


class Logistic(AbstractRise):
    """h(u) = 1/(1 + exp(-u/b)).

    Attributes:
        bandwidth: b > 0, in the unit of the records.
    """

    bandwidth: Float[Array, ""] = eqx.field(converter=_bandwidth)

    def value(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        return jax.nn.sigmoid(u / self.bandwidth)

    def slope(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        v = u / self.bandwidth
        return jax.nn.sigmoid(v) * jax.nn.sigmoid(-v) / self.bandwidth  # 1 - h would lose the upper tail

    @property
    def energy(self) -> Float[Array, ""]:
        return 1 / (6 * self.bandwidth)

    @property
    def steepest(self) -> Float[Array, ""]:
        return 1 / (4 * self.bandwidth)

    @property
    def knots(self) -> Float[Array, "knots"]:
        return self.bandwidth * jnp.arange(-39, 40, 3).astype(self.bandwidth.dtype)


class Smoothstep(AbstractRise):
    """h(u) = 1/2 + 3u/(4b) - u³/(4b³) for |u| < b, and 0 or 1 beyond.

    Attributes:
        bandwidth: b > 0, in the unit of the records.
    """

    bandwidth: Float[Array, ""] = eqx.field(converter=_bandwidth)

    def value(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        v = jnp.clip(u / self.bandwidth, -1, 1)
        return 0.5 + v * (3 - v * v) / 4

    def slope(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        v = jnp.clip(u / self.bandwidth, -1, 1)
        return 0.75 * (1 - v) * (1 + v) / self.bandwidth

    @property
    def energy(self) -> Float[Array, ""]:
        return 3 / (5 * self.bandwidth)

    @property
    def steepest(self) -> Float[Array, ""]:
        return 0.75 / self.bandwidth

    @property
    def knots(self) -> Float[Array, "knots"]:
        return jnp.stack([-self.bandwidth, self.bandwidth])


class Bump(AbstractStep):
    """h(u) = (1 - (u/b)²)² for |u| < b, and 0 beyond.

    Attributes:
        bandwidth: b > 0, in the unit of the records.
    """

    bandwidth: Float[Array, ""] = eqx.field(converter=_bandwidth)

    def value(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        v = jnp.clip(u / self.bandwidth, -1, 1)
        return ((1 - v) * (1 + v)) ** 2

    def slope(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        v = jnp.clip(u / self.bandwidth, -1, 1)
        return -4 * v * (1 - v) * (1 + v) / self.bandwidth

    def spread(self, low: Float[Array, "..."], high: Float[Array, "..."]) -> Float[Array, "..."]:
        return 1 - self.value(jnp.maximum(-low, high))

    def least_spread(self, radius: Float[Array, ""]) -> Float[Array, ""]:
        return self.spread(-radius, radius)

    @property
    def energy(self) -> Float[Array, ""]:
        return 256 / (105 * self.bandwidth)

    @property
    def steepest(self) -> Float[Array, ""]:
        return 8 / (3 * 3**0.5) / self.bandwidth

    @property
    def knots(self) -> Float[Array, "knots"]:
        return jnp.stack([-self.bandwidth, self.bandwidth])
