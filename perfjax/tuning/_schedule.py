"""The best noise for every release: descent from several starts, compared with the best constant noise."""

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from perfjax import _check
from perfjax._fields import Field, as_dataset
from perfjax.law import chain_of
from perfjax.meanfield import recursion
from perfjax.objectives import AbstractObjective, CumulativeError, OverDraws, counted_words
from perfjax.scenario import Scenario, as_single
from perfjax.tuning._budgets import printed_budgets
from perfjax.tuning._constant import as_log_bounds, tune
from perfjax.tuning._descent import at_bound, best_of, descend
from perfjax.tuning._optimum import Status, first_status, status_field
from perfjax.tuning._structure import Budget, structure_of

if TYPE_CHECKING:
    import xarray

__all__ = ["Schedule", "as_window", "tune_schedule"]

LEVELS = 48  # constant noises among which starts are chosen
SHARES = (1.0, 0.75, 0.5, 0.25)  # of the releases, after which a start gives privacy up
STEPS = 300
LAW_LEVELS = 12
LAW_SHARES = (1.0, 0.25, 0.0)
LAW_STEPS = 40
LAW_LEVEL = 1e-4  # slope that counts as none under the law: what is left to gain goes with its square
LAW_NODES = 160  # of the law while searching; what is reported is the objective's own


class Schedule(eqx.Module):
    """The best noise for every release of a scenario.

    Attributes:
        scenario: the scenario, with the schedule in place of its own noise.
        objective: what was minimised.
        noise: x_0 .. x_T. Release T has no consequences, so without a total budget x_T is at its least private bound.
        log_value: log of the objective there.
        constant: the best constant noise under the same bounds and budget.
        log_value_constant: log of the objective there.
        log_value_without_privacy: log of the objective without noise.
        status: a `Status`, as an integer.
        at_bound: for every release -1 at the least noise allowed, 1 at the greatest, else 0.
        gradient_norm: greatest slope of the log objective by a parameter (the log noise of a release, if free) that may
            move. At a kink it need not be small; there pattern searches found up to 1e-4 more.
        steps: of the best descent.
        structure: what the schedule may look like.
    """

    scenario: Scenario
    objective: AbstractObjective
    noise: Float[Array, "*batch releases"]
    log_value: Float[Array, "*batch"]
    constant: Float[Array, "*batch"]
    log_value_constant: Float[Array, "*batch"]
    log_value_without_privacy: Float[Array, "*batch"]
    status: Int[Array, "*batch"]
    at_bound: Int[Array, "*batch releases"]
    gradient_norm: Float[Array, "*batch"]
    steps: Int[Array, "*batch"]
    structure: str = eqx.field(static=True)

    @property
    def value(self) -> Float[Array, "*batch"]:
        """The objective under the schedule."""
        return jnp.exp(self.log_value)

    @property
    def value_constant(self) -> Float[Array, "*batch"]:
        """The objective under the best constant noise."""
        return jnp.exp(self.log_value_constant)

    @property
    def ratio(self) -> Float[Array, "*batch"]:
        """The objective under the schedule over that under the best constant noise, at most 1 up to rounding.

        1 where both are 0, as the error of counts without noise is.
        """
        alike = self.log_value == self.log_value_constant
        return jnp.exp(jnp.where(alike, 0, self.log_value - self.log_value_constant))

    @property
    def total_rho(self) -> Float[Array, "*batch"]:
        """The local zCDP budget of a user who is there throughout: the sum of rho over the releases."""
        return _local_rho(self.scenario, self.noise)

    @property
    def total_rho_constant(self) -> Float[Array, "*batch"]:
        """The same under the best constant noise: at what price the schedule is better."""
        return _local_rho(self.scenario, jnp.broadcast_to(self.constant[..., None], self.noise.shape))

    def fields(self) -> dict[str, Field]:
        """The fields of one schedule, over `release`."""
        mechanism = self.scenario.mechanism
        scalars = (
            "log_value",
            "value",
            "constant",
            "value_constant",
            "ratio",
            "total_rho",
            "total_rho_constant",
            "gradient_norm",
            "steps",
        )
        found = {name: Field(getattr(self, name), (), {}) for name in scalars}
        about = {"name": mechanism.noise_name, "symbol": mechanism.noise_symbol}
        return found | {
            "status": status_field(self.status),
            "noise": Field(self.noise, ("release",), about),
            "at_bound": Field(self.at_bound, ("release",), {"meanings": "-1: least, 1: greatest noise allowed"}),
        }

    def to_xarray(self) -> "xarray.Dataset":
        """The numbers of a single schedule as a dataset over `release`."""
        return as_dataset(self.fields(), coords={"release": np.arange(self.noise.shape[-1])})

    def __str__(self) -> str:
        if self.noise.ndim > 1:
            return f"Schedule of a batch {self.noise.shape[:-1]}"
        mechanism, last = self.scenario.mechanism, self.noise.shape[0] - 1
        return (
            f"Schedule ({self.structure}): {Status(int(self.status)).meaning}\n"
            f"  {mechanism.noise_label} ({mechanism.noise_symbol})  {self.noise[0]:.6g} at release 0,"
            f" {self.noise[last // 2]:.6g} at {last // 2}, {self.noise[last]:.6g} at {last}\n"
            f"  objective            {self.value:.6g} ({counted_words(self.objective, last)})\n"
            f"  best constant        {self.value_constant:.6g} at {self.constant:.6g}"
            f" ({1 - float(self.ratio):.2%} lower with the schedule)\n"
            f"  gradient norm        {self.gradient_norm:.2g}\n"
            f"  at a bound           {_listed(np.flatnonzero(np.asarray(self.at_bound)))}; release {last} has no"
            f" consequences\n"
            f"  local rho of all     {float(self.total_rho):.6g} (best constant: {float(self.total_rho_constant):.6g})"
            f"{printed_budgets(self.scenario)}"
        )


def _local_rho(scenario, noise):
    """The local budget of all releases, whoever else is there."""
    return jnp.sum(scenario.mechanism.privacy(jnp.ones_like(noise), noise).local.rho, axis=-1)


def tune_schedule(
    scenario: Scenario,
    objective: AbstractObjective | None = None,
    *,
    structure: str = "free",
    levels: int | None = None,
    total_rho: ArrayLike | None = None,
    release_rho: ArrayLike | None = None,
    bounds: tuple[ArrayLike, ArrayLike] | None = None,
    throw: bool = False,
) -> Schedule:
    """The noise of every release with the least cumulative error, compared with the best constant noise.

    Descent on log noise by optax, projected on the bounds, from several starts: the best constant noise, and constant
    noises that give privacy up after all, three quarters, half or a quarter of the releases. With solver "law" it
    starts once, from what has the least error under the law of those starts, where they lead on the expected path, and
    36 noises that are given up at once, early or last.

    Args:
        scenario: the scenario; its own noise plays no role.
        objective: `CumulativeError(first_release=0)` by default, or `OverDraws` of it; solver "mean-field" or "law". A
            release that does not count would be free: it could drown its statistic in noise to keep everybody, which
            looks like a gain.
        structure: "free": every release for itself. "monotone": never more private than the release before.
            "piecewise": constant on `levels` blocks of releases of equal length. "geometric": a constant ratio from one
            release to the next.
        levels: blocks of a "piecewise" schedule.
        total_rho: rho of all releases together (local zCDP: the sum over releases), met exactly. A mean needs a
            `clip_radius`. None means any.
        release_rho: greatest rho of a release (local zCDP), or None.
        bounds: least and greatest noise; the mechanism's by default (gamma: [1e-3, 1e3], epsilon: [1e-3, 30]).
        throw: raise a `ValueError` instead of returning a result that is infeasible or not converged.

    Returns:
        `Schedule`, never worse than the best constant noise. Its log values have derivatives by the scenario and the
        budget; that of its noise is NaN. Under vmap nothing is raised: read `status`.

    Raises:
        ValueError: if an argument is out of range, the objective leaves a release out, a budget is infeasible, and as
            asked for by `throw`.

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility" names noise that changes over time as
        future work; the method is ours.

    Example:
        >>> import perfjax as pj
        >>> best = pj.tune_schedule(pj.preset("mean-estimation"))
        >>> bool(best.ratio < 0.83)
        True
    """
    as_single(scenario)
    objective = as_window(objective, scenario)
    scenario = scenario.with_one_noise()
    shape = structure_of(structure, levels, scenario.mechanism, scenario.rounds + 1)
    budget = _budget(scenario, bounds, total_rho, release_rho)
    constant = _constant(scenario, objective, budget)
    schedule = _tune_schedule(scenario, objective, shape, budget, constant, structure)
    if throw and _check.is_known(schedule.status) and int(schedule.status) in (Status.INFEASIBLE, Status.NOT_CONVERGED):
        raise ValueError(f"No best schedule: {Status(int(schedule.status)).meaning}.")
    return schedule


def as_window(objective: AbstractObjective | None, scenario: Scenario) -> CumulativeError | OverDraws:
    """The objective of a search over releases: one under which every release counts."""
    if isinstance(objective, OverDraws):
        return OverDraws(as_window(objective.objective, scenario), objective.draws).prepared(scenario)
    objective = CumulativeError(first_release=0) if objective is None else objective
    if not isinstance(objective, CumulativeError):
        found = type(objective).__name__
        raise _check.fail("objective", "be a CumulativeError, under which every release counts", found)
    free = "a release that does not count could drown its statistic in noise for free"
    if objective.first_release != 0:
        raise _check.fail("first_release", f"be 0 for noise that changes ({free})", objective.first_release)
    if objective.last_release not in (None, scenario.rounds):
        requirement = f"be None or `rounds` ({scenario.rounds}) for noise that changes ({free})"
        raise _check.fail("last_release", requirement, objective.last_release)
    if objective.solver not in ("mean-field", "law"):
        requirement = 'be "mean-field" or "law" for noise that changes'
        raise _check.fail("solver", requirement, _check.quoted(objective.solver))
    if objective.solver == "law" and objective.collapsed == "floor":
        floor = scenario.participation.floor
        if _check.is_known(floor) and np.any(np.asarray(floor) == 0):
            raise _check.fail(
                "floor", 'be above 0 unless `collapsed` is "penalty": nobody has an infinite error', floor
            )
    return objective.prepared(scenario)


def _budget(scenario, bounds, total_rho, release_rho) -> Budget:
    """The bounds on log noise and the total, checked as far as they are known."""
    mechanism, releases = scenario.mechanism, scenario.rounds + 1
    low, high = as_log_bounds(bounds, scenario)
    if total_rho is None and release_rho is None:
        return Budget(mechanism, low, high, None, allows_none=True)
    most_private = high if mechanism.more_is_private else low
    least = Budget(mechanism, low, high).spent(most_private[None])
    if _check.is_known(least) and not np.isfinite(least):
        raise ValueError(
            "`total_rho` and `release_rho` need a mechanism with a local privacy budget; a mean without `clip_radius`"
            " and a count have none."
        )
    total, each = (_as_rho(x, name, low.dtype) for x, name in ((total_rho, "total_rho"), (release_rho, "release_rho")))
    if each is not None:
        _check_rho("release_rho", each, Budget(mechanism, low, high), 1, greatest=False)
        tight = Budget(mechanism, low, high, each).met(low[None])[0]
        low, high = (jnp.maximum(low, tight), high) if mechanism.more_is_private else (low, jnp.minimum(high, tight))
    if total is not None:
        _check_rho("total_rho", total, Budget(mechanism, low, high), releases, greatest=True)
    return Budget(mechanism, low, high, total)


def _as_rho(rho, name, dtype):
    if rho is None:
        return None
    rho = _check.in_range(_check.as_float(rho, name), name, 0, open_low=True, open_high=True).astype(dtype)
    if rho.ndim:
        raise _check.fail(name, "be one number", rho)
    return rho


def _check_rho(name, rho, budget, releases, *, greatest):
    """Raise a `ValueError` if no noise between the bounds meets rho, as far as that is known."""
    ends = [releases * budget.spent(end[None]) for end in (budget.low, budget.high)]
    if not _check.is_known(rho, *ends):
        return
    least, most = sorted(ends)
    if rho < least or (greatest and rho > most):
        interval = f"[{least:.6g}, {most:.6g}]" if greatest else f"[{least:.6g}, inf)"
        raise _check.fail(name, f"lie in {interval}, what noise between the bounds can spend", rho)


def _constant(scenario, objective, budget) -> Float[Array, ""]:
    """The best constant noise, under the same bounds and budget."""
    if budget.total is not None:
        return jnp.exp(budget.met(jnp.zeros(scenario.rounds + 1, budget.low.dtype)))[0]
    ends = jnp.exp(jnp.stack([budget.low, budget.high]))
    optimum = tune(scenario, objective, bounds=(ends[0], ends[1]))
    if budget.allows_none:
        return optimum.noise
    tried = jnp.concatenate([optimum.minima, ends])
    values = jax.vmap(lambda x: objective.evaluate(scenario.with_noise(x)).log_value)(jnp.nan_to_num(tried, nan=1.0))
    return tried[jnp.argmin(jnp.where(jnp.isnan(tried) | jnp.isnan(values), jnp.inf, values))]


@eqx.filter_jit
def _tune_schedule(scenario, objective, shape, budget, constant, structure) -> Schedule:
    live = scenario, objective, budget
    # A descent has no useful derivative. The objective where it ends has one, by the envelope theorem.
    scenario, objective, budget = jax.lax.stop_gradient(live)
    low, high = shape.bounds(budget.low, budget.high)

    def log_noise(parameters, budget=budget):
        return budget.met(shape.log_noise(parameters))

    path = _on_expected_path(scenario, objective, log_noise)
    starts = _starts(path, shape, budget, scenario.rounds, jax.lax.stop_gradient(constant))
    found = jax.vmap(lambda start: descend(jax.value_and_grad(path), start, low, high, steps=STEPS))(starts)
    best = best_of(found)
    if objective.solver == "law":
        chain = chain_of(scenario, objective.penalty, size=LAW_NODES, cap=objective.whole)
        chain = chain.tabulated(budget.low, budget.high)
        tried = jnp.concatenate([found.place, starts, *_tried(LAW_SHARES, LAW_LEVELS, shape, budget, scenario.rounds)])
        slope = _under_law(chain, log_noise)
        values = jax.lax.map(lambda parameters: slope(parameters)[0], tried)
        best = descend(slope, tried[jnp.nanargmin(values)], low, high, steps=LAW_STEPS, tolerance=LAW_LEVEL)
    ends = at_bound(log_noise(best.place), budget.low, budget.high)
    moving = live[2].low, live[2].high
    tuned = jnp.select([ends < 0, ends > 0], moving, log_noise(best.place, live[2]))
    return _result(live, jnp.exp(tuned), ends, best, constant, structure)


def _by_expected_path(objective):
    if isinstance(objective, OverDraws):
        return OverDraws(_by_expected_path(objective.objective), objective.draws)
    return CumulativeError(first_release=0, collapsed=objective.collapsed, penalty=objective.penalty)


def _on_expected_path(scenario, objective, log_noise):
    """The log objective by the parameters, on the expected path."""
    path = _by_expected_path(objective)

    def log_value(parameters):
        return path.evaluate(scenario.with_noise(jnp.exp(log_noise(parameters)))).log_value

    return log_value


def _under_law(chain, log_noise):
    """The log objective by the parameters, under the law, and its gradient."""

    def slope(parameters):
        noise, pull = jax.vjp(lambda parameters: jnp.exp(log_noise(parameters)), parameters)
        value, by_noise = chain.value_and_slope(noise[:, None])
        return jnp.log(value), pull(jnp.sum(by_noise, axis=1) / value)[0]

    return slope


def _starts(log_value, shape, budget, rounds, constant) -> Float[Array, "starts parameters"]:
    """Parameters to start from: the best constant noise, and the best that gives privacy up after so many releases."""
    tuned = jnp.clip(jnp.log(constant), budget.low, budget.high)
    starts = [_until(rounds, shape, budget, rounds)(tuned)]
    for tried in _tried(SHARES, LEVELS, shape, budget, rounds):
        value = jax.vmap(log_value)(tried)
        starts.append(tried[jnp.argmin(jnp.where(jnp.isnan(value), jnp.inf, value))])
    return jnp.stack(starts)


def _tried(shares, levels, shape, budget, rounds) -> list[Float[Array, "levels parameters"]]:
    """Constant noises between the bounds that give privacy up after so large a share of the releases."""
    log_noise = jnp.linspace(budget.low, budget.high, levels)
    return [jax.vmap(_until(max(1, round(share * rounds)), shape, budget, rounds))(log_noise) for share in shares]


def _until(switch, shape, budget, rounds):
    """Parameters of a constant log noise that gives privacy up after `switch` releases."""
    bare = budget.low if budget.mechanism.more_is_private else budget.high
    return lambda level: shape.parameters(jnp.where(np.arange(rounds + 1) < switch, level, bare))


def _result(live, noise, ends, best, constant, structure) -> Schedule:
    """The schedule, or the constant noise if that is no worse."""
    scenario, objective, budget = live
    mechanism = scenario.mechanism
    bare = jnp.full_like(constant, mechanism.no_privacy)
    tried = jnp.stack([noise, *(jnp.broadcast_to(x, noise.shape) for x in (constant, bare))])
    values = jax.lax.map(lambda x: objective.evaluate(scenario.with_noise(x)).log_value, tried)
    # A gain over no privacy that rounding could explain is none.
    rounding = jnp.where(constant == bare, 20 * jnp.finfo(noise.dtype).eps * (1 + jnp.abs(values[1])), 0)
    constant_wins = ~(values[0] <= values[1] - rounding)
    chosen = jax.tree.map(lambda x, y: jnp.where(constant_wins, y, x), (tried[0], values[0]), (tried[1], values[1]))
    ends = jnp.where(constant_wins, at_bound(jnp.log(tried[1]), budget.low, budget.high), ends)
    given = _underivable(chosen[0], live)
    gradient_norm = jnp.max(jnp.abs(best.slope))
    path = recursion(scenario.with_noise(chosen[0])).population
    return Schedule(
        scenario=scenario.with_noise(given),
        objective=objective,
        noise=given,
        log_value=chosen[1],
        constant=constant,
        log_value_constant=values[1],
        log_value_without_privacy=values[2],
        status=_status(live, path, ends, gradient_norm, bare=constant_wins & (constant == bare)),
        at_bound=ends,
        gradient_norm=gradient_norm,
        steps=best.steps,
        structure=structure,
    )


def _status(live, path, ends, gradient_norm, *, bare):
    """The first `Status` that holds."""
    scenario, objective, _ = live
    who, later = scenario.participation, path[1:]
    near, level = 1e-5, jnp.finfo(gradient_norm.dtype).eps ** 0.35  # 3e-6 in float64, 4e-3 in float32
    kink = jnp.any((jnp.abs(later - who.cap) <= near * who.cap) | (later <= who.floor * (1 + near)))
    settled = gradient_norm <= (jnp.maximum(level, LAW_LEVEL) if objective.solver == "law" else level)
    cases = {
        Status.COLLAPSED: path[-1] <= who.floor,
        Status.NO_PRIVACY: bare,
        Status.LOWER_BOUND: jnp.all(ends < 0),
        Status.UPPER_BOUND: jnp.all(ends > 0),
        Status.INTERIOR: settled,
        Status.KINK: kink,
    }
    return first_status(cases, Status.NOT_CONVERGED)


@eqx.filter_custom_jvp
def _underivable(noise, live):
    """`noise`, with the derivative NaN: that of a descent would be wrong, and none at all would look like 0."""
    del live
    return noise


@_underivable.def_jvp
def _underivable_jvp(primals, tangents):
    noise, _ = primals
    moved = sum(jnp.sum(x) for x in jax.tree.leaves(tangents))
    return noise, moved * jnp.full_like(noise, jnp.nan)


def _listed(releases: np.ndarray) -> str:
    """Release numbers with runs drawn together."""
    runs = np.split(releases, np.flatnonzero(np.diff(releases) > 1) + 1)
    shown = [f"{run[0]}" if run.size == 1 else f"{run[0]}-{run[-1]}" for run in runs if run.size]
    return "releases " + ", ".join(shown) if shown else "none"
