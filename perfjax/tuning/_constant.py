"""The best constant noise: a scan for basins, safeguarded optax steps in each, a certificate."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Key

from perfjax import _check
from perfjax.leakage import LikelihoodRatioAbove, pair_of
from perfjax.mechanisms import GaussianMean
from perfjax.objectives import AbstractObjective, CumulativeError, growth_factor
from perfjax.scenario import Scenario, as_single
from perfjax.tuning._basins import CERTIFICATE, FINE, NEARBY, Basin, certificate, local_minima, steps_of
from perfjax.tuning._optimum import Optimum, Status, first_status

__all__ = ["as_log_bounds", "tune"]

SCAN = 96  # points
EDGE_STEPS = 30  # halvings of a scan interval to find where a constraint begins to hold


def tune(
    scenario: Scenario,
    objective: AbstractObjective | None = None,
    *,
    constraint: str | None = None,
    bounds: tuple[ArrayLike, ArrayLike] | None = None,
    key: Key[Array, ""] | None = None,
    throw: bool = False,
) -> Optimum:
    """The constant noise with the least objective, compared with no noise at all.

    The objective can have several local minima in the noise, kinks where the population just reaches cap or floor, and
    plateaus. So: a scan of 96 points, evenly spaced in log noise, and 11 more beside each of up to four of its minima;
    in each of these, secant steps by optax on log noise, each kept inside a bracket that shrinks at every step; 75 more
    points within two steps of the scan of the best, which certify nothing where they show that another minimum may be
    lower; then a certificate. That covers the neighbourhood of the minimum; beyond, no other is lower as far as the
    scan can tell, so that one narrower than its step (0.145 in log noise by default for a mean) may be missed.

    Args:
        scenario: the scenario; its own noise plays no role.
        objective: what to minimise, `CumulativeError()` by default.
        constraint: None; "growth": C(x_0, n_0) >= 1, the population does not shrink at release 0; "theorem-2":
            gamma >= gamma_c, for a clipped Gaussian mean only, and sufficient for that with outside="shared". With a
            constraint, the search stays in the feasible interval around the best feasible point of the scan.
        bounds: least and greatest noise searched; the mechanism's by default (gamma: [1e-3, 1e3], epsilon: [1e-3, 30]).
        key: randomness, for an objective that samples.
        throw: raise a `ValueError` instead of returning a result that is infeasible or not converged.

    Returns:
        `Optimum`. Under vmap nothing is raised: read `status`.

    Raises:
        ValueError: if an argument is out of range, and as asked for by `throw`.

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility", section 4 (optimization of the global
        noise scale); its one bounded search misses the best of several minima, hence the scan.

    Example:
        >>> import perfjax as pj
        >>> optimum = pj.tune(pj.preset("mean-estimation"))
        >>> bool(optimum.privacy_pays)
        True
    """
    as_single(scenario)
    objective = CumulativeError() if objective is None else _check.as_kind(objective, "objective", AbstractObjective)
    scenario = scenario.with_one_noise()
    objective = objective.prepared(scenario, key)
    _check_constraint(constraint, scenario)
    log_bounds = as_log_bounds(bounds, scenario)
    with jax.debug_nans(False):  # NaN stands for a minimum that is not there: who looks for a NaN means another
        optimum = _tune(scenario, objective, constraint, log_bounds, key)
    bad = (Status.INFEASIBLE, Status.NOT_CONVERGED)
    if throw and _check.is_known(optimum.status) and int(optimum.status) in bad:
        raise ValueError(f"No best noise: {Status(int(optimum.status)).meaning}.")
    return optimum


def _check_constraint(constraint, scenario):
    if constraint is not None:
        _check.as_choice(constraint, "constraint", ("growth", "theorem-2"))
    if constraint == "theorem-2" and not isinstance(scenario.mechanism, GaussianMean):
        raise ValueError('Argument `constraint` can be "theorem-2" for a GaussianMean only.')
    if constraint == "theorem-2" and not isinstance(scenario.leakage, LikelihoodRatioAbove):
        raise ValueError('Argument `constraint` can be "theorem-2" for LikelihoodRatioAbove only; "growth" is for all.')
    if constraint == "theorem-2":
        pair_of(scenario.mechanism, scenario.leakage, "critical_noise")


def as_log_bounds(
    bounds: tuple[ArrayLike, ArrayLike] | None, scenario: Scenario, name: str = "bounds"
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The logarithms of two bounds, of the noise searched by default, in the scenario's dtype."""
    dtype = scenario.population.dtype
    bounds = scenario.mechanism.noise_bounds if bounds is None else bounds
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise _check.fail(name, "be two numbers, (least, greatest)", _check.quoted(bounds))
    low, high = (_check.as_float(x, name).astype(dtype) for x in bounds)
    if low.ndim or high.ndim:
        raise _check.fail(name, "be two numbers, (least, greatest)", bounds)
    for x in (low, high):
        _check.in_range(x, name, 0, open_low=True, open_high=True)
    if _check.is_known(low, high) and not np.less(low, high):
        raise _check.fail(name, "have the lower end first", f"({low:g}, {high:g})")
    return jnp.log(low), jnp.log(high)


@eqx.filter_jit
def _tune(scenario, objective, constraint, log_bounds, key) -> Optimum:
    mechanism = scenario.mechanism
    live = (scenario, objective)
    # A search has no useful derivative; what it finds gets one from `_moved` and `_valued`. And each objective that is
    # compiled once more costs seconds where it is the law: hence one scan with no privacy in it, and one loop.
    still = scenario, objective = jax.lax.stop_gradient(live)

    def objective_at(place):
        return _log_value(jnp.exp(place), still, key)

    def feasible(place):
        return _margin(scenario, constraint, place) >= 0

    places = jnp.linspace(*log_bounds, SCAN)
    noises = jnp.append(jnp.exp(places), mechanism.no_privacy)
    scan = jax.vmap(lambda noise: objective.evaluate(scenario.with_noise(noise), key))(noises)
    allowed = jax.vmap(feasible)(places)
    values = jnp.where(allowed & ~jnp.isnan(scan.log_value[:-1]), scan.log_value[:-1], jnp.inf)
    low, high, places, values, edge = _feasible_interval(feasible, objective_at, constraint, places, values, allowed)
    basins, crowded = local_minima(objective_at, places, values, low, high)
    margin = 1e-3 * (log_bounds[1] - log_bounds[0]) / SCAN
    basins = jax.vmap(lambda basin: _tracked(basin, live, constraint, log_bounds, edge, margin, key))(basins)

    scenario, objective = live
    best = jax.tree.map(lambda x: x[0], basins)
    bare = scenario.with_noise(jnp.full_like(best.place, mechanism.no_privacy))
    without = _valued(scan.log_value[-1], bare.mechanism.noise, live, key=key)
    no_privacy_allowed = _margin(bare, constraint, None) >= 0
    collapsed = jnp.all(scan.last_population <= scenario.participation.floor)

    # A gain that rounding could explain is none: on the plateau of negligible noise, say that no privacy is best.
    rounding = 20 * jnp.finfo(values.dtype).eps * (1 + jnp.abs(best.log_value))
    no_privacy = no_privacy_allowed & (without <= best.log_value + rounding)
    infeasible = ~jnp.any(allowed) & ~no_privacy_allowed
    ends = _at_ends(best.place, log_bounds, edge, margin)
    noise = jnp.where(no_privacy, mechanism.no_privacy, jnp.exp(best.place))
    noise = jnp.where(infeasible, jnp.nan, noise)
    tuned = scenario.with_noise(noise)
    minima, minima_log_values = _local_minima(basins, log_bounds, margin)
    spent = SCAN + 1 + NEARBY + (0 if constraint is None else 2)
    return Optimum(
        scenario=tuned,
        objective=objective,
        noise=noise,
        log_value=jnp.where(infeasible, jnp.nan, jnp.where(no_privacy, without, best.log_value)),
        log_value_without_privacy=without,
        status=_status(best, ends, infeasible=infeasible, collapsed=collapsed, no_privacy=no_privacy, crowded=crowded),
        growth=growth_factor(tuned),
        gradient=best.gradient,
        bracket=jnp.exp(jnp.stack([best.low, best.high])),
        certified=certificate(best.slopes)[0] & ~crowded,
        minima=minima,
        minima_log_values=minima_log_values,
        evaluations=spent
        + jnp.sum(jnp.isfinite(basins.log_value)) * (steps_of(values.dtype) + len(CERTIFICATE) + FINE),
    )


def _at_ends(place, log_bounds, edge, margin):
    """Whether a place is the lower bound, the upper bound, or the edge of the constraint (NaN if there is none)."""
    return place <= log_bounds[0] + margin, place >= log_bounds[1] - margin, jnp.abs(place - edge) <= margin


def _status(best, ends, *, infeasible, collapsed, no_privacy, crowded):
    """The first `Status` that holds."""
    certified, kink = certificate(best.slopes)
    at_low, at_high, at_edge = ends
    settled = (certified | kink | at_low | at_high | at_edge) & jnp.isfinite(best.log_value)
    cases = {
        Status.INFEASIBLE: infeasible,
        Status.NOT_CONVERGED: ~settled & ~no_privacy & ~collapsed,
        Status.COLLAPSED: collapsed,
        Status.CROWDED: crowded,
        Status.NO_PRIVACY: no_privacy,
        Status.GROWTH_CONSTRAINT: at_edge,
        Status.LOWER_BOUND: at_low,
        Status.UPPER_BOUND: at_high,
        Status.KINK: kink,
    }
    return first_status(cases, Status.INTERIOR)


def _local_minima(basins, log_bounds, margin):
    """Noise and log value of the basins that lie between the bounds, best first, padded with NaN."""
    at_low, at_high, _ = _at_ends(basins.place, log_bounds, jnp.nan, margin)
    local = jnp.isfinite(basins.log_value) & ~at_low & ~at_high
    order = jnp.argsort(~local, stable=True)
    return tuple(jnp.where(local, x, jnp.nan)[order] for x in (jnp.exp(basins.place), basins.log_value))


def _tracked(basin, live, constraint, log_bounds, edge, margin, key) -> Basin:
    """`basin` with derivatives: its place follows the scenario, and its value follows both."""
    at_low, at_high, at_edge = _at_ends(basin.place, log_bounds, edge, margin)
    place = _moved(basin.place, live, at_low | at_high, at_edge, constraint=constraint, key=key)
    found = jnp.isfinite(basin.log_value)
    log_value = _valued(jnp.where(found, basin.log_value, 0), jnp.exp(place), live, key=key)
    return basin._replace(place=place, log_value=jnp.where(found, log_value, jnp.inf))


def _log_value(noise, live, key):
    scenario, objective = live
    return objective.evaluate(scenario.with_noise(noise), key).log_value


@eqx.filter_custom_jvp
def _valued(log_value, noise, live, *, key):
    """`log_value`, known to be that of the objective at `noise`, with the objective's derivatives."""
    del noise, live, key
    return log_value


@_valued.def_jvp
def _valued_jvp(primals, tangents, *, key):
    _, pushed = eqx.filter_jvp(lambda noise, live: _log_value(noise, live, key), primals[1:], tangents[1:])
    return primals[0], pushed


@eqx.filter_custom_jvp
def _moved(place, live, at_bound, at_edge, *, constraint, key):
    """`place`, with the derivative of a place that moves with the scenario."""
    del live, at_bound, at_edge, constraint, key
    return place


@_moved.def_jvp
def _moved_jvp(primals, tangents, *, constraint, key):
    """Implicit function theorem: a place x where F(x, theta) = 0 moves by -F_theta / F_x.

    F is the objective just above x less the objective just below. At a smooth minimum that is its slope; at a kink,
    where the slope has no root, F is still 0. At the edge of a constraint F is the constraint, at a bound x stays.
    """
    place, live, at_bound, at_edge = primals
    near = jnp.finfo(place.dtype).eps ** 0.4

    def zero(x, live):
        rise = _log_value(jnp.exp(x + near), live, key) - _log_value(jnp.exp(x - near), live, key)
        return rise if constraint is None else jnp.where(at_edge, _margin(live[0], constraint, x), rise)

    _, along = eqx.filter_jvp(lambda x: zero(x, live), (place,), (jnp.ones_like(place),))
    _, push = eqx.filter_jvp(lambda moved: zero(place, moved), (live,), (tangents[1],))
    moves = ~at_bound & (along != 0)  # where the objective is level, any place is as good as another
    return place, jnp.where(moves, -1 / jnp.where(moves, along, 1), 0) * push


def _margin(scenario, constraint, place):
    """How far the constraint is met, negative where it is not; `place` None keeps the scenario's own noise."""
    scenario = scenario if place is None else scenario.with_noise(jnp.exp(place))
    if constraint == "growth":
        return growth_factor(scenario) - 1
    if constraint == "theorem-2":
        return scenario.mechanism.noise - scenario.critical_noise().value
    return jnp.zeros_like(scenario.population)


def _feasible_interval(feasible, objective_at, constraint, places, values, allowed):
    """The feasible interval around the best scan point, its ends found by halving and put among the scan points."""
    if constraint is None:
        return places[0], places[-1], places, values, jnp.nan
    index = jnp.arange(SCAN)
    best = jnp.argmin(values)
    left = jnp.max(jnp.where(~allowed & (index < best), index, -1))
    right = jnp.min(jnp.where(~allowed & (index > best), index, SCAN))

    def end(outside, inside):
        def halve(_, pair):
            out, ins = pair
            middle = (out + ins) / 2
            inside = feasible(middle)
            return jnp.where(inside, out, middle), jnp.where(inside, middle, ins)

        return jax.lax.fori_loop(0, EDGE_STEPS, halve, (outside, inside))[1]

    first_out, last_in = jnp.stack([left, right]), jnp.stack([left + 1, right - 1])
    ends = jax.vmap(end)(*(places[jnp.clip(i, 0, SCAN - 1)] for i in (first_out, last_in)))
    is_edge = jnp.stack([left >= 0, right < SCAN])
    ends = jnp.where(is_edge, ends, places[jnp.array([0, -1])])
    end_values = jax.vmap(objective_at)(ends)
    # The ends take the places of their infeasible neighbours: a minimum at an end is then seen like any other.
    places = jnp.where(index == left, ends[0], jnp.where(index == right, ends[1], places))
    values = jnp.where(index == left, end_values[0], jnp.where(index == right, end_values[1], values))
    values = jnp.where((index >= left) & (index <= right) & jnp.any(allowed), values, jnp.inf)
    edge = ends[jnp.argmin(jnp.where(is_edge, end_values, jnp.inf))]
    return ends[0], ends[1], places, values, jnp.where(jnp.any(is_edge), edge, jnp.nan)
