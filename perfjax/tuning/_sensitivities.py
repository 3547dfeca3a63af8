"""How the best noise moves with the scenario."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfjax import _check
from perfjax.objectives import OverDraws
from perfjax.scenario import Scenario
from perfjax.tuning._optimum import Optimum, Status

__all__ = ["Sensitivities", "sensitivities"]

TIE = 1e-4  # relative gap between two minima below which the best noise is about to jump


class Sensitivities(eqx.Module):
    """d noise* / d leaf for every differentiable leaf of a scenario.

    Attributes:
        noise_label: what the noise is called where a person reads it.
        values: by leaf name, in units of noise per unit of the leaf; NaN where undefined.
        reason: why they are undefined, or None.
    """

    noise_label: str = eqx.field(static=True)
    values: dict[str, Float[Array, "..."]]
    reason: str | None = eqx.field(static=True)

    def __str__(self) -> str:
        if self.reason is not None:
            return f"Sensitivities of {self.noise_label}: undefined ({self.reason})"
        lines = [f"  d {self.noise_label} / d {name:<12} {np.asarray(value)}" for name, value in self.values.items()]
        return "\n".join([f"Sensitivities of {self.noise_label}", *lines])


def sensitivities(optimum: Optimum) -> Sensitivities:
    r"""How the best noise changes with every leaf of the scenario, to first order.

    With E the log objective and u = log noise: d u* / d theta = -E_{u theta} / E_{uu} (implicit function theorem).

    Args:
        optimum: a single result of `tune`.

    Returns:
        `Sensitivities`. They are undefined, and say why, where the best noise is not a smooth minimum inside the search
        interval, and where a second local minimum, or no privacy, is within 1e-4 of it: there it is about to jump. By a
        parameter whose draws `OverDraws` averages there is none: the scenario's own value plays no role.

    Raises:
        ValueError: for a batch of optima, and for an objective that samples, which has no second derivative.

    Source: ours; the paper tunes by grid and bounded search.
    """
    if _check.as_kind(optimum, "optimum", Optimum).noise.ndim:
        raise _check.fail("optimum", "be a single result", f"a batch of shape {optimum.noise.shape}")
    if getattr(optimum.objective, "solver", None) == "counts":
        raise _check.fail("optimum", "be that of a deterministic objective", 'one with solver "counts"')
    scenario = optimum.scenario
    name = scenario.mechanism.noise_name
    reason = _undefined(optimum)
    derivative = _implicit(scenario, optimum.objective)
    drawn = optimum.objective.draws if isinstance(optimum.objective, OverDraws) else {}
    with jax.debug_nans(False):  # NaN says that there is no derivative
        keep = jnp.nan if reason else 1.0
        values = {leaf: value * keep for leaf, value in _by_name(derivative).items() if leaf not in (name, *drawn)}
    return Sensitivities(noise_label=scenario.mechanism.noise_label, values=values, reason=reason)


def _undefined(optimum) -> str | None:
    status = Status(int(optimum.status))
    if status is not Status.INTERIOR:
        return status.meaning
    if optimum.log_value_without_privacy - optimum.log_value < TIE:
        return "no privacy is as good"
    minima, log_values = (np.asarray(x) for x in (optimum.minima, optimum.minima_log_values))  # NaN where there is none
    gaps = log_values[1:] - log_values[0]
    if np.any(gaps < TIE):
        other = float(minima[1:][gaps < TIE][0])
        return f"the best noise is about to jump to {other:.4g}, which is as good"
    return None


@eqx.filter_jit
def _implicit(scenario: Scenario, objective) -> Scenario:
    place = jnp.log(scenario.mechanism.noise)
    varied, fixed = eqx.partition(scenario, eqx.is_inexact_array)

    def slope(place, varied):
        combined = eqx.combine(varied, fixed)
        return jax.grad(lambda u: objective.evaluate(combined.with_noise(jnp.exp(u))).log_value)(place)

    curvature, mixed = jax.grad(slope, argnums=(0, 1))(place, varied)
    return jax.tree.map(lambda m: -m / curvature * jnp.exp(place), mixed)


def _by_name(scenario: Scenario) -> dict[str, Array]:
    return {name: value for name, value in scenario.leaves().items() if eqx.is_array(value)}
