"""Schedules as functions of a few parameters, and what keeps them within a privacy budget."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfjax import _check
from perfjax.mechanisms import AbstractMechanism

__all__ = ["STRUCTURES", "AbstractStructure", "Budget", "held", "structure_of"]

HALVINGS = 60  # of an interval for a root


class AbstractStructure(eqx.Module):
    """What a schedule may look like: log-noise of the releases as a function of parameters."""

    @abc.abstractmethod
    def log_noise(self, parameters: Float[Array, " parameters"]) -> Float[Array, " releases"]:
        """Of releases 0..T."""

    @abc.abstractmethod
    def parameters(self, log_noise: Float[Array, " releases"]) -> Float[Array, " parameters"]:
        """Whose schedule is near a given one, and equal to it if it has this structure."""

    @abc.abstractmethod
    def bounds(self, low: Float[Array, ""], high: Float[Array, ""]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """Of the parameters, for log-noise between `low` and `high`."""


class Free(AbstractStructure):
    """Every release for itself."""

    def log_noise(self, parameters):
        return parameters

    def parameters(self, log_noise):
        return log_noise

    def bounds(self, low, high):
        return low, high


class Monotone(AbstractStructure):
    """Never more private than before: parameters are the first log-noise and how far each release moves on.

    Attributes:
        releases: T + 1.
        sign: -1 where noise falls, +1 where it rises (epsilon).
    """

    releases: int = eqx.field(static=True)
    sign: int = eqx.field(static=True)

    def log_noise(self, parameters):
        moved = jnp.cumsum(parameters[1:])
        return parameters[0] + self.sign * jnp.concatenate([jnp.zeros_like(parameters[:1]), moved])

    def parameters(self, log_noise):
        return jnp.concatenate([log_noise[:1], jnp.maximum(self.sign * jnp.diff(log_noise), 0)])

    def bounds(self, low, high):
        later = jnp.zeros(self.releases - 1, low.dtype)
        return jnp.concatenate([low[None], later]), jnp.concatenate([high[None], later + (high - low)])


class Piecewise(AbstractStructure):
    """Constant on blocks of releases whose lengths differ by one at most.

    Attributes:
        releases: T + 1.
        levels: blocks.
    """

    releases: int = eqx.field(static=True)
    levels: int = eqx.field(static=True)

    def log_noise(self, parameters):
        return parameters[np.arange(self.releases) * self.levels // self.releases]

    def parameters(self, log_noise):
        first = -(-np.arange(self.levels) * self.releases // self.levels)  # rounded up
        return log_noise[first]

    def bounds(self, low, high):
        return low, high


class Geometric(AbstractStructure):
    """A constant ratio from one release to the next: parameters are the first and the last log-noise.

    Attributes:
        releases: T + 1.
    """

    releases: int = eqx.field(static=True)

    def log_noise(self, parameters):
        share = jnp.linspace(0, 1, self.releases, dtype=parameters.dtype)
        return parameters[0] * (1 - share) + parameters[1] * share

    def parameters(self, log_noise):
        return log_noise[np.array([0, -1])]

    def bounds(self, low, high):
        return low, high


STRUCTURES = ("free", "monotone", "piecewise", "geometric")


def structure_of(name: str, levels: int | None, mechanism: AbstractMechanism, releases: int) -> AbstractStructure:
    """The structure of that name; `levels` goes with "piecewise" alone."""
    _check.as_choice(name, "structure", STRUCTURES)
    if (name == "piecewise") != (levels is not None):
        raise ValueError('Argument `levels` must be given with structure "piecewise", and only then.')
    if levels is not None:
        levels = _check.as_count(levels, "levels", low=1)
        if levels > releases:
            raise _check.fail("levels", f"be at most {releases}, the number of releases", levels)
        return Piecewise(releases, levels)
    if name == "monotone":
        return Monotone(releases, -1 if mechanism.more_is_private else 1)
    return Geometric(releases) if name == "geometric" else Free()


class Budget(eqx.Module):
    """Noise between two bounds whose local zCDP budgets add up to a total, if there is one.

    Attributes:
        mechanism: whose noise it is.
        low: least log-noise.
        high: greatest log-noise.
        total: sum of rho over the releases, or None.
        allows_none: whether no privacy at all would be within the budget.
    """

    mechanism: AbstractMechanism
    low: Float[Array, ""]
    high: Float[Array, ""]
    total: Float[Array, ""] | None = None
    allows_none: bool = eqx.field(static=True, default=False)

    def spent(self, log_noise: Float[Array, " releases"]) -> Float[Array, ""]:
        """The sum of rho."""
        return jnp.sum(self.mechanism.privacy(jnp.ones_like(log_noise), jnp.exp(log_noise)).local.rho)

    def met(self, log_noise: Float[Array, " releases"]) -> Float[Array, " releases"]:
        """`log_noise`, shifted as a whole until the total is spent, and held between the bounds.

        A shift changes no structure of `STRUCTURES`. It is the root of a monotone function, by halving; the Newton step
        after that also carries its derivative.
        """
        total = self.total
        if total is None:
            return held(log_noise, self.low, self.high)

        def excess(shift, log_noise):
            return self.spent(held(log_noise + shift, self.low, self.high)) / total - 1

        still = jax.lax.stop_gradient(log_noise)
        shift = jax.lax.stop_gradient(self._shift(lambda x: excess(x, still), still))
        _, along = jax.jvp(lambda x: excess(x, still), (shift,), (jnp.ones_like(shift),))
        along = jax.lax.stop_gradient(along)
        step = jnp.where(along == 0, 0, excess(shift, log_noise) / jnp.where(along == 0, 1, along))
        return held(log_noise + (shift - step), self.low, self.high)

    def _shift(self, excess, log_noise):
        sign = 1 if self.mechanism.more_is_private else -1

        def halve(_, ends):
            low, high = ends
            middle = (low + high) / 2
            more = sign * excess(middle) > 0  # too much is spent for more_is_private: shift further up
            return jnp.where(more, middle, low), jnp.where(more, high, middle)

        ends = self.low - jnp.max(log_noise), self.high - jnp.min(log_noise)
        return sum(jax.lax.fori_loop(0, HALVINGS, halve, ends)) / 2


def held(x: Float[Array, "..."], low: Float[Array, ""], high: Float[Array, ""]) -> Float[Array, "..."]:
    """`x` between two bounds, with its own derivative at them: a search that stands there can leave."""
    # Not jnp.clip: at a tie it has half a derivative.
    above = jnp.where(x < low, low, x)
    return jnp.where(above > high, high, above)
