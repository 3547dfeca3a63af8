"""What every mechanism offers to the loop."""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from perfjax._check import Numbers
from perfjax.privacy import Privacy

__all__ = ["AbstractMechanism"]


class AbstractMechanism(eqx.Module):
    """A noisy release of a statistic of the present users.

    The noise is one leaf, named by `noise_name`: one value, or one per release. Everything that depends on the noise
    takes it as an argument too, so that constants, schedules and policies share one code.

    Attributes:
        noise_name: the name of the noise leaf.
        noise_symbol: its symbol in formulas and plots.
        noise_label: what it is called where a person reads it; of a privacy budget, with the scope.
        noise_bounds: where to look for the best noise, by default.
        no_privacy: the value of the noise that means none (the limit, evaluated exactly).
        more_is_private: whether a larger value of the noise leaf means more privacy.
        error_unit: what its errors are, "squared error" or another.
        needs_crowd: whether a single user is leaked whatever the noise.
    """

    noise_name: eqx.AbstractClassVar[str]
    noise_symbol: eqx.AbstractClassVar[str]
    noise_label: eqx.AbstractClassVar[str]
    noise_bounds: eqx.AbstractClassVar[tuple[float, float]]
    no_privacy: eqx.AbstractClassVar[float]
    more_is_private: eqx.AbstractClassVar[bool]
    error_unit: eqx.AbstractClassVar[str]
    needs_crowd: eqx.AbstractClassVar[bool]

    @property
    @abc.abstractmethod
    def noise(self) -> Float[Array, "..."]:
        """The noise leaf."""

    @abc.abstractmethod
    def check_noise(self, noise: Numbers) -> Float[Array, "..."]:
        """`noise` as an array, if it lies in the range of the noise leaf."""

    def typed(self, population: Numbers, noise: Numbers | None) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """Population and noise (the mechanism's own, if None) in the mechanism's dtype."""
        noise = self.noise if noise is None else noise
        return jnp.asarray(population, self.noise.dtype), jnp.asarray(noise, self.noise.dtype)

    @abc.abstractmethod
    def error(self, population: Numbers, noise: Numbers | None = None) -> Float[Array, ""]:
        """The expected squared error of a release to `population` users (n); infinite for none.

        Of a count the relative absolute error, which is finite for no users too.
        """

    @abc.abstractmethod
    def privacy(self, population: Numbers, noise: Numbers | None = None) -> Privacy:
        """The privacy budget of each release, by population and noise."""
