"""The best noise and clipping radius together."""

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from perfjax import _check
from perfjax._fields import Field, as_dataset
from perfjax.mechanisms import GaussianMean
from perfjax.objectives import AbstractObjective, CumulativeError, counted_words
from perfjax.scenario import Scenario, as_single
from perfjax.tuning._budgets import printed_budgets
from perfjax.tuning._constant import as_log_bounds
from perfjax.tuning._descent import at_bound, best_of, descend
from perfjax.tuning._optimum import Status, first_status, status_field

if TYPE_CHECKING:
    import xarray

__all__ = ["ClippingOptimum", "tune_clipping"]

NOISES, RADII = 20, 12  # of the scan
STARTS = 2
STEPS = 40
LEVEL = 1e-3  # slope that counts as none: moments of clipped records are averages over fixed points
RADIUS_RANGE = 0.1, 4.0  # in units of a record's root mean square norm


class ClippingOptimum(eqx.Module):
    """The best noise scale and clipping radius of a mean.

    Attributes:
        scenario: the scenario, with both in place of its own.
        objective: what was minimised.
        noise: gamma.
        clip_radius: R.
        log_value: log of the objective there.
        log_value_unclipped: log of the objective at the greatest radius, where clipping hardly binds, with its best
            noise.
        at_bound: for noise and radius, -1 at the least allowed, 1 at the greatest, else 0. With `release_rho` the least
            noise is what the budget takes at that radius.
        gradient_norm: greatest slope of the log objective by log noise or log radius, where they may move.
        status: a `Status`, as an integer.
    """

    scenario: Scenario
    objective: AbstractObjective
    noise: Float[Array, ""]
    clip_radius: Float[Array, ""]
    log_value: Float[Array, ""]
    log_value_unclipped: Float[Array, ""]
    at_bound: Int[Array, " 2"]
    gradient_norm: Float[Array, ""]
    status: Int[Array, ""]

    @property
    def value(self) -> Float[Array, ""]:
        """The objective at the best pair."""
        return jnp.exp(self.log_value)

    @property
    def ratio(self) -> Float[Array, ""]:
        """The objective at the best pair over the least one without clipping that binds."""
        return jnp.exp(self.log_value - self.log_value_unclipped)

    def fields(self) -> dict[str, Field]:
        """The numbers."""
        names = (
            "noise",
            "clip_radius",
            "log_value",
            "value",
            "log_value_unclipped",
            "ratio",
            "gradient_norm",
        )
        found = {name: Field(getattr(self, name), (), {}) for name in names}
        return found | {"status": status_field(self.status)}

    def to_xarray(self) -> "xarray.Dataset":
        """The numbers as a dataset."""
        return as_dataset(self.fields())

    def __str__(self) -> str:
        mean = np.asarray(self.scenario.leaves()["mean"])
        listed = np.array2string(mean, precision=6, separator=", ", threshold=6)
        counted = counted_words(self.objective, self.scenario.rounds)
        lines = [
            f"ClippingOptimum: {Status(int(self.status)).meaning}",
            f"  best noise_scale (γ)  {self.noise:.6g}",
            f"  best clip_radius (R)  {self.clip_radius:.6g}",
            f"  objective             {self.value:.6g}{f' ({counted})' if counted else ''},"
            f" {1 - float(self.ratio):.2%} lower than without clipping",
            f"  assumed               records of mean {listed}",
        ]
        if not np.any(mean):
            lines.append(
                "  That mean is the centre of the clipping, where clipping has no bias: the least radius wins,\n"
                "  and the gain is an artefact of knowing the mean. Set `mean` as far out as it may be."
            )
        return "\n".join(lines) + printed_budgets(self.scenario)


def tune_clipping(
    scenario: Scenario,
    objective: AbstractObjective | None = None,
    *,
    release_rho: ArrayLike | None = None,
    bounds: tuple[ArrayLike, ArrayLike] | None = None,
    radius_bounds: tuple[ArrayLike, ArrayLike] | None = None,
) -> ClippingOptimum:
    """The noise scale and the clipping radius of a mean with the least objective, the bias of clipping included.

    A smaller radius leaks less, since clipped records lie closer to their mean, and needs less noise for a given
    budget; but what it cuts off biases every release, however many users there are. A scan of both, then descent on
    their logarithms from the best points of the scan. The bias vanishes by symmetry where the records' mean is 0, the
    centre of the clipping: the least radius wins, by a gain that nobody has who does not know the mean, and the result
    says so. Let `mean` be as far out as you think it may be.

    Args:
        scenario: of a `GaussianMean`; its own noise and radius play no role.
        objective: `CumulativeError()` by default; on the expected path.
        release_rho: greatest rho of a release (local zCDP), so that gamma >= R sqrt(2 / rho); or None.
        bounds: least and greatest noise scale; the mechanism's by default. With `release_rho` of the noise at R = 1.
        radius_bounds: least and greatest radius; 0.1 and 4 times the root mean square norm of a record by default.

    Returns:
        `ClippingOptimum`.

    Raises:
        ValueError: if the mechanism is no mean, the objective samples or uses the law, which knows no clipping, or an
            argument is out of range.

    Source: ours.

    Example:
        >>> import perfjax as pj
        >>> scenario = pj.preset("mean-estimation").replace(dim=2, mean=0.5, rounds=3)
        >>> best = pj.tune_clipping(scenario, release_rho=1.0)
        >>> bool(best.ratio < 1)
        True
    """
    mechanism = as_single(scenario).mechanism
    if not isinstance(mechanism, GaussianMean):
        raise _check.fail("mechanism", "be a GaussianMean to be clipped", type(mechanism).__name__)
    objective = CumulativeError() if objective is None else _check.as_kind(objective, "objective", AbstractObjective)
    solver = getattr(objective, "solver", "mean-field")
    if solver != "mean-field":
        requirement = 'be "mean-field": the law and the counts know no clipping'
        raise _check.fail("solver", requirement, _check.quoted(solver))
    scenario = scenario.with_one_noise()
    objective = objective.prepared(scenario)
    typical = jnp.sqrt(jnp.sum(_variances(mechanism)) + jnp.sum(jnp.broadcast_to(mechanism.mean, mechanism.dim) ** 2))
    if radius_bounds is None:
        radius_bounds = RADIUS_RANGE[0] * typical, RADIUS_RANGE[1] * typical
    low, high = as_log_bounds(radius_bounds, scenario, name="radius_bounds")
    # The radius is traced from here on, and a traced one always clips.
    scenario = scenario.replace(clip_radius=jnp.exp(low))
    rho = None
    if release_rho is not None:
        rho = _check.in_range(_check.as_float(release_rho, "release_rho"), "release_rho", 0, open_low=True)
        rho = rho.astype(low.dtype)
    return _tune_clipping(scenario, objective, as_log_bounds(bounds, scenario), (low, high), rho)


def _variances(mechanism):
    values, multiplicity = mechanism.eigenvalues()
    return jnp.asarray(multiplicity, values.dtype) * values


@eqx.filter_jit
def _tune_clipping(scenario, objective, noise_bounds, radius_bounds, rho) -> ClippingOptimum:
    scenario, objective = jax.lax.stop_gradient((scenario, objective))
    (least, greatest), (small, large) = noise_bounds, radius_bounds
    if rho is not None:  # the first parameter is then log gamma / R, and its bound the budget
        least = jnp.maximum(least, jnp.log(2 / rho) / 2)
        greatest = jnp.maximum(least, greatest)
    low, high = jnp.stack([least, small]), jnp.stack([greatest, large])

    def pair(parameters):
        log_noise = parameters[0] if rho is None else parameters[0] + parameters[1]
        return jnp.exp(log_noise), jnp.exp(parameters[1])

    def log_value(parameters):
        noise, radius = pair(parameters)
        return objective.evaluate(scenario.with_leaves(noise_scale=noise, clip_radius=radius)).log_value

    tried = jnp.stack(
        jnp.meshgrid(jnp.linspace(least, greatest, NOISES), jnp.linspace(small, large, RADII), indexing="ij"), axis=-1
    )
    values = jax.lax.map(lambda row: jax.vmap(log_value)(row), tried)
    values = jnp.where(jnp.isnan(values), jnp.inf, values)
    _, index = jax.lax.top_k(-values.ravel(), STARTS)
    widest = tried[jnp.argmin(values[:, -1]), -1]
    starts = jnp.concatenate([tried.reshape(-1, 2)[index], widest[None]])
    lows = jnp.stack([low] * STARTS + [jnp.stack([least, large])])

    def from_start(start, low):
        return descend(slope, start, low, high, steps=STEPS, tolerance=LEVEL / 10)

    def slope(parameters):  # forwards: of two parameters, and reverse mode would store every release
        return log_value(parameters), jax.jacfwd(log_value)(parameters)

    found = jax.lax.map(lambda at: from_start(*at), (starts, lows))
    best = best_of(found)
    ends = at_bound(best.place, low, high)
    noise, radius = pair(best.place)
    gradient_norm = jnp.max(jnp.abs(best.slope))
    return ClippingOptimum(
        scenario=scenario.with_leaves(noise_scale=noise, clip_radius=radius),
        objective=objective,
        noise=noise,
        clip_radius=radius,
        log_value=best.value,
        log_value_unclipped=found.value[-1],
        at_bound=ends,
        gradient_norm=gradient_norm,
        status=_status(ends, gradient_norm),
    )


def _status(ends, gradient_norm):
    cases = {
        Status.NOT_CONVERGED: ~(gradient_norm <= LEVEL),
        Status.LOWER_BOUND: jnp.any(ends < 0),
        Status.UPPER_BOUND: jnp.any(ends > 0),
    }
    return first_status(cases, Status.INTERIOR)
