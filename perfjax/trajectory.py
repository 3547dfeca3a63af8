"""What a solver found out about every release."""

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from perfjax._fields import Field, as_dataset
from perfjax.privacy import Privacy
from perfjax.scenario import Scenario

if TYPE_CHECKING:
    import xarray

__all__ = ["Trajectory"]


class Trajectory(eqx.Module):
    """Population, leaks and error of releases 0..T.

    Attributes:
        population: n_t, the users that made release t.
        leak_probability: p_t, of a user at release t.
        error: e(x_t, n_t), expected error of release t, in the mechanism's `error_unit` (squared, Mahalanobis for a
            mean; relative for a count); the realised one in a simulation, whose leak_probability is likewise the share
            of leaked users.
        scenario: what ran.
        expected_error: in a simulation, the expected error of release t given n_t.
    """

    population: Float[Array, "*batch releases"]
    leak_probability: Float[Array, "*batch releases"]
    error: Float[Array, "*batch releases"]
    scenario: Scenario
    expected_error: Float[Array, "*batch releases"] | None = None

    @property
    def collapsed(self) -> Bool[Array, "*batch releases"]:
        """Whether a run has collapsed by release t: at some release up to t, max(floor, 1) users or fewer were left."""
        least = self.scenario.participation.collapse_population
        least = least.reshape(least.shape + (1,) * (self.population.ndim - least.ndim))
        return jnp.cumsum(self.population <= least, axis=-1) > 0

    @property
    def noise(self) -> Float[Array, "*batch releases"]:
        """x_t, the noise of every release."""
        scenario = self.scenario
        release = jnp.arange(self.population.shape[-1])
        chosen = jax.vmap(scenario.noise_of, in_axes=(-1, 0, 0), out_axes=-1)(
            self.population, release, scenario.noises()
        )
        return jnp.broadcast_to(chosen, self.population.shape)

    def privacy(self) -> Privacy:
        """The budget of every release, by the noise it had and the users it was made of."""
        return self.scenario.mechanism.privacy(self.population, self.noise)

    def fields(self) -> dict[str, Field]:
        """The fields of one trajectory, over `release` (and `trial`, if simulated)."""
        dims = ("trial", "release")[-self.population.ndim :]
        of_error = self.scenario.mechanism.error_unit
        units = {"population": "users", "leak_probability": "1", "error": of_error}
        if self.expected_error is not None:
            units["expected_error"] = of_error
        return {name: Field(getattr(self, name), dims, {"units": unit}) for name, unit in units.items()}

    def to_xarray(self) -> "xarray.Dataset":
        """The trajectory as a dataset over `release` (and `trial`, if simulated)."""
        return as_dataset(self.fields(), coords={"release": np.arange(self.population.shape[-1])})

    def __str__(self) -> str:
        n, p, e = self.population, self.leak_probability, self.error
        last = n.shape[-1] - 1
        return (
            f"Trajectory of releases 0..{last}{'' if n.ndim == 1 else f', batch {n.shape[:-1]}'}\n"
            f"  population        {jnp.mean(n[..., 0]):.6g} -> {jnp.mean(n[..., -1]):.6g} users\n"
            f"  leak probability  {jnp.mean(p[..., 0]):.4g} -> {jnp.mean(p[..., -1]):.4g}\n"
            f"  error             {jnp.mean(e[..., 0]):.4g} -> {jnp.mean(e[..., -1]):.4g},"
            f" sum {jnp.mean(jnp.sum(e, axis=-1)):.4g}"
        )
