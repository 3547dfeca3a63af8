"""What every mechanism offers to the loop."""

import abc
from collections.abc import Mapping
from typing import ClassVar

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

    For a mechanism of your own: each field is an argument of `__init__` of the same name (or follows from the others),
    by which files, `Scenario.replace` and sweeps build it anew, and a name that no other part of a scenario has. A
    number is an array, as `eqx.field(converter=jnp.asarray)` makes it (`Scenario` gives all of them one dtype); what
    fixes shapes or is a choice is a static field. What a leakage rule means for it is a `leakage.AbstractPair`.

    Attributes:
        noise_name: the name of the noise leaf.
        noise_symbol: its symbol in formulas and plots.
        noise_unit: its unit, "1" for none.
        noise_label: what it is called where a person reads it; of a privacy budget, with the scope.
        noise_bounds: where to look for the best noise, by default.
        no_privacy: the value of the noise that means none (the limit, evaluated exactly).
        more_is_private: whether a larger value of the noise leaf means more privacy.
        error_unit: what its errors are, "squared error" or another.
        meaning: symbol and unit of its other numbers, by name, where they have one.
    """

    noise_name: eqx.AbstractClassVar[str]
    noise_symbol: eqx.AbstractClassVar[str]
    noise_unit: eqx.AbstractClassVar[str]
    noise_label: eqx.AbstractClassVar[str]
    noise_bounds: eqx.AbstractClassVar[tuple[float, float]]
    no_privacy: eqx.AbstractClassVar[float]
    more_is_private: eqx.AbstractClassVar[bool]
    error_unit: eqx.AbstractClassVar[str]
    meaning: ClassVar[Mapping[str, tuple[str, str]]] = {}

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
        """The expected error of a release to `population` users (n), by default with its own noise.

        In its `error_unit`: a squared error is infinite for no users, the relative error of a count is not. With
        `no_privacy` it is the limit, and so are derivatives: evaluate it nowhere that makes them NaN.
        """

    @abc.abstractmethod
    def privacy(self, population: Numbers, noise: Numbers | None = None) -> Privacy:
        """The privacy budget of each release, by population and noise."""
