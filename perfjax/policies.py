"""Policies: noise that reacts to how many users are left."""

import abc
from typing import TYPE_CHECKING

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from perfjax import _check
from perfjax._check import Numbers
from perfjax._fields import Field, as_dataset
from perfjax.mechanisms import AbstractMechanism

if TYPE_CHECKING:
    import xarray

__all__ = ["AbstractPolicy", "LogLinearPolicy", "TablePolicy"]


class AbstractPolicy(eqx.Module):
    """A rule for the noise of a release, x_t = f(n_t, t). Every solver takes one in place of a noise."""

    @abc.abstractmethod
    def __call__(self, population: Numbers, release: Int[Array, ""] | int) -> Float[Array, "..."]:
        """The noise of release t to `population` users (n)."""

    @abc.abstractmethod
    def check(self, mechanism: AbstractMechanism, rounds: int) -> None:
        """Raise a `ValueError` if the policy does not fit a scenario with this mechanism and T = `rounds`."""


class TablePolicy(AbstractPolicy):
    """Noise by release and population, interpolated in between: log x is piecewise linear in log(1 + n).

    Beside a noise that means no privacy (0 or infinite) the nearer one holds. Below the first population and above the
    last the noise is theirs.

    Attributes:
        populations: not decreasing, at least 0, in users; at least two.
        table: noise x, at least 0, one row per release 0..T, one column per population.

    Raises:
        ValueError: if a number is out of range or the shapes do not fit.

    Source: ours.

    Example:
        >>> policy = TablePolicy([1.0, 100.0], [[2.0, 1.0], [0.5, 0.1]])
        >>> float(policy(100.0, 0))
        1.0
    """

    populations: Float[Array, " populations"]
    table: Float[Array, "releases populations"]

    def __init__(self, populations: Numbers, table: Numbers):
        populations, table = _check.as_floats(populations=populations, table=table)
        self.populations = _check.in_range(populations, "populations", 0, open_high=True)
        self.table = _check.in_range(table, "table", 0)
        if populations.ndim != 1 or populations.size < 2:
            raise _check.fail("populations", "be two or more numbers", f"of shape {populations.shape}")
        if table.ndim != 2 or table.shape[1] != populations.size:
            requirement = f"have a row per release and {populations.size} columns, one per population"
            raise _check.fail("table", requirement, f"of shape {table.shape}")
        if _check.is_known(populations) and np.any(np.diff(np.asarray(populations)) < 0):
            raise _check.fail("populations", "not decrease", populations)

    def __call__(self, population: Numbers, release: Int[Array, ""] | int) -> Float[Array, "..."]:
        place, places = (jnp.log1p(jnp.asarray(x, self.table.dtype)) for x in (population, self.populations))
        left = jnp.clip(jnp.searchsorted(places, place, side="right") - 1, 0, places.size - 2)
        gap = places[left + 1] - places[left]
        share = jnp.clip(jnp.where(gap > 0, (place - places[left]) / jnp.where(gap > 0, gap, 1), 0), 0, 1)
        ends = jnp.stack([self.table[release, left], self.table[release, left + 1]])
        is_noise = jnp.all((ends > 0) & jnp.isfinite(ends), axis=0)
        low, high = jnp.log(jnp.where(is_noise, ends, 1))
        nearer = jnp.where(share < 0.5, ends[0], ends[1])
        between = jnp.where(is_noise, jnp.exp(low * (1 - share) + high * share), nearer)
        return jnp.where(share == 0, ends[0], jnp.where(share == 1, ends[1], between))  # no rounding at the nodes

    def check(self, mechanism: AbstractMechanism, rounds: int) -> None:
        if self.table.shape[0] != rounds + 1:
            requirement = f"have {rounds + 1} rows, one per release (`rounds` + 1)"
            raise _check.fail("table", requirement, f"of shape {self.table.shape}")
        mechanism.check_noise(self.table)

    def to_xarray(self) -> "xarray.Dataset":
        """The table as a dataset over `release` and `population`."""
        coords = {"release": np.arange(self.table.shape[0]), "population": np.asarray(self.populations)}
        found = as_dataset({"noise": Field(self.table, ("release", "population"), {})}, coords=coords)
        found.population.attrs["units"] = "users"
        return found

    def __str__(self) -> str:
        releases, populations = self.table.shape
        return (
            f"TablePolicy of {releases} releases by {populations} populations ({self.populations[0]:g} to"
            f" {self.populations[-1]:g} users), noise {jnp.min(self.table):.4g} to {jnp.max(self.table):.4g}"
        )


class LogLinearPolicy(AbstractPolicy):
    r"""Noise that is log-linear in the logarithm of the population and in time, kept between two bounds.

    x_t = a (n_t / n_0)^b e^{c t},  between `low` and `high`.

    Attributes:
        level: a, the noise at release 0 with `reference` users, above 0.
        power: b; below 0 means less noise the more users there are.
        rate: c, per release; below 0 means less noise as time goes by.
        reference: n_0, in users, above 0.
        low: least noise, above 0.
        high: greatest noise, at least `low`.

    Raises:
        ValueError: if a number is out of range.

    Source: ours.

    Example:
        >>> policy = LogLinearPolicy(2.0, power=-0.5, rate=0.0, reference=100.0, low=1e-3, high=1e3)
        >>> float(policy(400.0, 3))
        1.0
    """

    level: Float[Array, ""]
    power: Float[Array, ""]
    rate: Float[Array, ""]
    reference: Float[Array, ""]
    low: Float[Array, ""]
    high: Float[Array, ""]

    def __init__(
        self, level: Numbers, *, power: Numbers, rate: Numbers, reference: Numbers, low: Numbers, high: Numbers
    ):
        level, power, rate, reference, low, high = _check.as_floats(
            level=level, power=power, rate=rate, reference=reference, low=low, high=high
        )
        positive = {"level": level, "reference": reference, "low": low, "high": high}
        for name, value in positive.items():
            positive[name] = _check.in_range(value, name, 0, open_low=True, open_high=True)
        self.level, self.reference, self.low, self.high = positive.values()
        self.power = _check.in_range(power, "power", open_low=True, open_high=True)
        self.rate = _check.in_range(rate, "rate", open_low=True, open_high=True)
        if _check.is_known(low, high) and np.any(np.asarray(low) > np.asarray(high)):
            raise _check.fail("low", f"be at most `high` ({high:g})", low)

    def __call__(self, population: Numbers, release: Int[Array, ""] | int) -> Float[Array, "..."]:
        population, release = (jnp.asarray(x, self.level.dtype) for x in (population, release))
        # Nobody is as one user: a power of 0 users would be 0 or infinite, and has no derivative.
        crowd = jnp.log(jnp.maximum(population, 1) / self.reference)
        log_noise = jnp.log(self.level) + self.power * crowd + self.rate * release
        return jnp.exp(jnp.clip(log_noise, jnp.log(self.low), jnp.log(self.high)))

    def check(self, mechanism: AbstractMechanism, rounds: int) -> None:
        del rounds
        for bound in (self.low, self.high):
            mechanism.check_noise(bound)

    def __str__(self) -> str:
        return (
            f"LogLinearPolicy: noise {self.level:.4g} (n / {self.reference:g})^{self.power:.4g}"
            f" exp({self.rate:.4g} t), from {self.low:g} to {self.high:g}"
        )
