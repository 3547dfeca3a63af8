"""What a tuner found, and how sure it is."""

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from perfjax._fields import Field, as_dataset
from perfjax.objectives import AbstractObjective, counted_words
from perfjax.privacy import Privacy
from perfjax.scenario import Scenario
from perfjax.tuning._budgets import printed_budgets

if TYPE_CHECKING:
    import xarray

__all__ = ["Optimum", "Status", "first_status", "status_field"]


class Status(enum.IntEnum):
    """Where the best noise lies; of several that hold, the first counts."""

    INFEASIBLE = 0
    NOT_CONVERGED = 1
    COLLAPSED = 2
    NO_PRIVACY = 3
    GROWTH_CONSTRAINT = 4
    LOWER_BOUND = 5
    UPPER_BOUND = 6
    KINK = 7
    INTERIOR = 8
    CROWDED = 9

    @property
    def meaning(self) -> str:
        return _MEANING[self]


_MEANING = {
    Status.INFEASIBLE: "infeasible: no noise meets the constraint",
    Status.NOT_CONVERGED: "not converged",
    Status.COLLAPSED: "collapsed everywhere: the population ends at the floor whatever the noise",
    Status.NO_PRIVACY: "no privacy is best",
    Status.GROWTH_CONSTRAINT: "at the growth constraint",
    Status.LOWER_BOUND: "at the lower search bound",
    Status.UPPER_BOUND: "at the upper search bound",
    Status.KINK: "kink: a minimum with a slope on either side, as where the population just reaches the cap or floor",
    Status.INTERIOR: "interior minimum",
    Status.CROWDED: "more local minima than were followed: another one may be lower",
}


def first_status(cases: Mapping[Status, Bool[Array, ""]], otherwise: Status) -> Int[Array, ""]:
    """The first status of `cases` that holds; for code that traces."""
    return jnp.select(list(cases.values()), [jnp.asarray(status) for status in cases], jnp.asarray(otherwise))


def status_field(status: Int[Array, "*batch"]) -> Field:
    """A status as a field whose attributes say what its numbers mean."""
    return Field(
        status,
        (),
        {
            "flag_values": [each.value for each in Status],
            "flag_meanings": " ".join(each.name.lower() for each in Status),
            "meanings": ", ".join(f"{each.value}: {each.meaning}" for each in Status),
        },
    )


class Optimum(eqx.Module):
    """The best constant noise of a scenario.

    Attributes:
        scenario: the scenario, with the best noise in place of its own.
        objective: what was minimised.
        noise: the best noise; `mechanism.no_privacy` (0 or infinity) if that is best, NaN if none is feasible.
        log_value: log of the objective there.
        log_value_without_privacy: log of the objective without noise.
        status: a `Status`, as an integer.
        growth: C at the best noise and release 0; above 1 the population grows.
        gradient: d log objective / d log noise at the best noise.
        bracket: an interval of noise between whose ends the gradient was seen to change sign from - to +.
        certified: whether it was, and no local minimum that the scan saw was left out though it may be lower. Nothing
            is said of minima elsewhere that are narrower than a step of the scan.
        minima: the local minima found between the search bounds, at most four, best first, padded with NaN.
        minima_log_values: log of the objective there.
        evaluations: objective evaluations spent, one with a derivative counted as one.
    """

    scenario: Scenario
    objective: AbstractObjective
    noise: Float[Array, "*batch"]
    log_value: Float[Array, "*batch"]
    log_value_without_privacy: Float[Array, "*batch"]
    status: Int[Array, "*batch"]
    growth: Float[Array, "*batch"]
    gradient: Float[Array, "*batch"]
    bracket: Float[Array, "*batch 2"]
    certified: Bool[Array, "*batch"]
    minima: Float[Array, "*batch minima"]
    minima_log_values: Float[Array, "*batch minima"]
    evaluations: Int[Array, "*batch"]

    @property
    def value(self) -> Float[Array, "*batch"]:
        """The objective at the best noise."""
        return jnp.exp(self.log_value)

    @property
    def value_without_privacy(self) -> Float[Array, "*batch"]:
        """The objective without noise; infinite where it overflows."""
        return jnp.exp(self.log_value_without_privacy)

    @property
    def privacy_pays(self) -> Bool[Array, "*batch"]:
        """Whether a finite budget beats no privacy at all."""
        return self.log_value < self.log_value_without_privacy

    @property
    def regime(self) -> np.ndarray:
        """One of "growth", "decline" and "steady", at release 0."""
        return np.select([np.asarray(self.growth) > 1, np.asarray(self.growth) < 1], ["growth", "decline"], "steady")

    def privacy(self) -> Privacy:
        """The budget of release 0 under the best noise; `Privacy.composed` needs one per release."""
        return self.scenario.mechanism.privacy(self.scenario.population, self.noise)

    def fields(self) -> dict[str, Field]:
        """The fields of one optimum; those without an axis are numbers."""
        scalars = {
            "noise": {"name": self.scenario.mechanism.noise_name, "symbol": self.scenario.mechanism.noise_symbol},
            "value": {},
            "value_without_privacy": {},
            "log_value": {},
            "log_value_without_privacy": {},
            "status": {},
            "growth": {"meaning": "C at the best noise and release 0"},
            "gradient": {"meaning": "d log value / d log noise"},
            "certified": {},
            "evaluations": {},
        }
        found = {name: Field(getattr(self, name), (), attributes) for name, attributes in scalars.items()}
        return found | {
            "status": status_field(self.status),
            "bracket": Field(self.bracket, ("end",), {}),
            "minima": Field(self.minima, ("minimum",), {}),
            "minima_log_values": Field(self.minima_log_values, ("minimum",), {}),
        }

    def to_xarray(self) -> "xarray.Dataset":
        """The numbers of a single optimum as a dataset."""
        return as_dataset(self.fields())

    def __str__(self) -> str:
        if self.noise.ndim:
            return f"Optimum of a batch {self.noise.shape}"
        mechanism = self.scenario.mechanism
        listed = ", ".join(f"{x:.6g}" for x in np.asarray(self.minima) if not np.isnan(x))
        exact = self.log_value_without_privacy == -jnp.inf  # as a count without noise
        budgets = "" if jnp.isnan(self.noise) else printed_budgets(self.scenario)  # none is feasible
        counted = counted_words(self.objective, self.scenario.rounds)
        ratio = "" if exact else f" (ratio {float(jnp.exp(self.log_value - self.log_value_without_privacy)):.4g})"
        return (
            f"Optimum: {Status(int(self.status)).meaning}\n"
            f"  best {mechanism.noise_label} ({mechanism.noise_symbol})  {self.noise:.6g}\n"
            f"  objective            {self.value:.6g}{f' ({counted})' if counted else ''}\n"
            f"  without privacy      {self.value_without_privacy:.6g}{ratio}\n"
            f"  growth at release 0  {self.growth:.6g} ({self.regime})\n"
            f"  local minima         {listed or 'none'}"
            f"{budgets}"
        )
