"""The parameters that counts can say something about, and the scale on which they are sought."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from perfjax import _check
from perfjax.scenario import Scenario

__all__ = ["PARAMETERS", "Parameter", "as_free", "natural", "slope", "unconstrained", "with_parameters"]


class Parameter(NamedTuple):
    """A parameter: "probability", sought by its log odds, or "positive", by its logarithm."""

    symbol: str
    kind: str
    range: tuple[float, float]


PARAMETERS = {
    "leave": Parameter("q", "probability", (0.0, 1.0)),
    "recruit": Parameter("r", "probability", (0.0, 1.0)),
    "threshold": Parameter("τ", "positive", (0.0, float("inf"))),
    "leave_spared": Parameter("q_spared", "probability", (0.0, 1.0)),
    "recruit_leaked": Parameter("r_leaked", "probability", (0.0, 1.0)),
}


def as_free(free: Sequence[str], scenario: Scenario) -> tuple[str, ...]:
    """The names of the parameters to fit, in the order of `PARAMETERS`."""
    if not isinstance(free, Iterable):
        raise _check.fail("free", "name one parameter or more, each once", free)
    free = (free,) if isinstance(free, str) else tuple(free)
    known = [name for name in PARAMETERS if name in scenario.leaves()]
    _check.check_known(free, known, "parameter in `free`")
    if not free or len(set(free)) < len(free):
        raise _check.fail("free", "name one parameter or more, each once", free)
    if "recruit_leaked" in free and scenario.participation.recruiters == "everyone":
        raise _check.fail("free", "not name `recruit_leaked` where everyone recruits alike", free)
    return tuple(name for name in PARAMETERS if name in free)


def natural(name: str, place: Float[Array, "..."]) -> Float[Array, "..."]:
    """The parameter at a place on the unconstrained scale."""
    return jax.nn.sigmoid(place) if PARAMETERS[name].kind == "probability" else jnp.exp(place)


def slope(name: str, place: Float[Array, "..."]) -> Float[Array, "..."]:
    """How the parameter grows along the unconstrained scale."""
    value = natural(name, place)
    return value * (1 - value) if PARAMETERS[name].kind == "probability" else value


def unconstrained(name: str, value: Float[Array, "..."]) -> Float[Array, "..."]:
    """The place of a parameter on the unconstrained scale; infinite at an end of its range."""
    return jnp.log(value) - jnp.log1p(-value) if PARAMETERS[name].kind == "probability" else jnp.log(value)


def with_parameters(scenario: Scenario, free: tuple[str, ...], places: Float[Array, " free"]) -> Scenario:
    """The scenario with its free parameters set from the unconstrained scale, unchecked."""
    return scenario.with_leaves(**{name: natural(name, places[i]) for i, name in enumerate(free)})
