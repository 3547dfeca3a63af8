"""The best rule for noise that reacts to how many users are left, and what reacting is worth."""

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from perfjax import _check
from perfjax._check import Numbers
from perfjax._fields import Field, as_dataset
from perfjax.law import Chain, PopulationLaw, chain_of, population_law
from perfjax.objectives import AbstractObjective, CumulativeError, OverDraws
from perfjax.policies import AbstractPolicy, LogLinearPolicy, TablePolicy
from perfjax.scenario import Scenario, as_single
from perfjax.tuning._budgets import printed_budgets
from perfjax.tuning._constant import as_log_bounds
from perfjax.tuning._descent import descend
from perfjax.tuning._schedule import LAW_LEVEL, LAW_NODES, LAW_STEPS, Schedule, as_window, tune_schedule

if TYPE_CHECKING:
    import xarray

__all__ = ["PolicyOptimum", "tune_policy"]

ACTIONS = 96
STRUCTURES = ("table", "log-linear")
POWERS = 4.0  # greatest power of the population that is tried


class PolicyOptimum(eqx.Module):
    """The best policy of a scenario, beside the best schedule and the best constant noise.

    Attributes:
        scenario: the scenario, with the policy in place of its own noise.
        objective: what was minimised.
        policy: the rule.
        value: the objective under the policy. This one and the next two are expectations on one kernel of the law,
            without the extrapolation of `population_law`: they compare exactly, and are up to some percent too large.
        value_schedule: under the best schedule.
        value_constant: under the best constant noise.
        schedule: the best schedule, with the best constant noise.
    """

    scenario: Scenario
    objective: AbstractObjective
    policy: AbstractPolicy
    value: Float[Array, ""]
    value_schedule: Float[Array, ""]
    value_constant: Float[Array, ""]
    schedule: Schedule

    @property
    def gain(self) -> float:
        """By which share the error is lower with the policy than with the schedule."""
        return _lower(float(self.value), float(self.value_schedule))

    def law(self) -> PopulationLaw:
        """The law of the population under the policy, extrapolated as always."""
        return population_law(self.scenario)

    def fields(self) -> dict[str, Field]:
        """The values."""
        return {name: Field(getattr(self, name), (), {}) for name in ("value", "value_schedule", "value_constant")}

    def to_xarray(self) -> "xarray.Dataset":
        """The values as a dataset; the policy has a dataset of its own."""
        return as_dataset(self.fields())

    def __str__(self) -> str:
        constant, schedule, policy = (float(x) for x in (self.value_constant, self.value_schedule, self.value))
        return (
            f"PolicyOptimum: {self.policy}\n"
            f"  best constant  {constant:.6g}\n"
            f"  best schedule  {schedule:.6g} ({_lower(schedule, constant):.2%} lower)\n"
            f"  best policy    {policy:.6g} ({_lower(policy, constant):.2%} lower, {self.gain:.2%} lower than the"
            f" schedule){printed_budgets(self.scenario)}"
        )


def _lower(value: float, reference: float) -> float:
    """By which share a value is lower than another one; two values of 0 are alike."""
    return 0.0 if value == reference else 1 - value / reference


def tune_policy(
    scenario: Scenario,
    objective: AbstractObjective | None = None,
    *,
    structure: str = "table",
    actions: int | Numbers = ACTIONS,
    bounds: tuple[ArrayLike, ArrayLike] | None = None,
    schedule: Schedule | None = None,
) -> PolicyOptimum:
    r"""The feedback rule x_t = f(n_t, t) with the least cumulative error under the law of the population.

    "table": backward dynamic programming on the kernel K of the law, exact on its nodes for the actions considered,

        V_t(n) = min_x [ e(x, n) + sum_m K_x(n, m) V_{t+1}(m) ],  V_{T+1} = 0.

    The actions of release t are those given, no privacy, the best constant noise, and the best schedule's noise of that
    release: so a policy never loses to either. "log-linear": the `LogLinearPolicy` with the least error, by descent.

    Args:
        scenario: the scenario; its own noise plays no role. As `population_law` needs it.
        objective: `CumulativeError(first_release=0, solver="law")` by default.
        structure: "table" or "log-linear".
        actions: how many noises a table chooses among, evenly spaced in the logarithm between the bounds; or the noises
            themselves.
        bounds: least and greatest noise; the mechanism's by default.
        schedule: of `tune_schedule`, to compare with; tuned under the law by default.

    Returns:
        `PolicyOptimum`.

    Raises:
        ValueError: if an argument is out of range, the objective leaves a release out or does not use the law, or the
            law is out of reach.

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility" names noise that changes over time as
        future work; the method is ours.

    Example:
        >>> import perfjax as pj
        >>> small = pj.preset("mean-estimation").replace(population=20, cap=40, rounds=3)
        >>> best = pj.tune_policy(small, actions=16)
        >>> bool(best.value <= best.value_schedule <= best.value_constant)
        True
    """
    as_single(scenario)
    _check.as_choice(structure, "structure", STRUCTURES)
    objective = CumulativeError(first_release=0, solver="law") if objective is None else objective
    if isinstance(objective, OverDraws):
        raise _check.fail("objective", "be a CumulativeError: a rule is tuned for one set of parameters", "OverDraws")
    objective = as_window(objective, scenario)
    if objective.solver != "law":
        raise _check.fail("solver", 'be "law": feedback is worth nothing on the expected path', f'"{objective.solver}"')
    scenario = scenario.with_one_noise()
    low, high = as_log_bounds(bounds, scenario)
    choices = _choices(actions, low, high, scenario)
    if schedule is None:
        schedule = tune_schedule(scenario, objective, bounds=(jnp.exp(low), jnp.exp(high)))
    schedule = _check.as_kind(schedule, "schedule", Schedule)
    policy, values = _tune_policy(scenario, objective, structure, choices, schedule.noise, schedule.constant, low, high)
    return PolicyOptimum(
        scenario=scenario.replace(policy=policy),
        objective=objective,
        policy=policy,
        value=values[0],
        value_schedule=values[1],
        value_constant=values[2],
        schedule=schedule,
    )


def _choices(actions, low, high, scenario) -> Float[Array, " actions"]:
    """The noises to choose among, no privacy included unless they were given."""
    if isinstance(actions, int | np.integer):
        count = _check.as_count(actions, "actions", low=2)
        return jnp.append(jnp.exp(jnp.linspace(low, high, count)), scenario.mechanism.no_privacy)
    noises = _check.as_float(actions, "actions").astype(low.dtype)
    if noises.ndim != 1 or not noises.size:
        raise _check.fail("actions", "be a count or a list of noises", f"of shape {noises.shape}")
    return scenario.mechanism.check_noise(noises)


@eqx.filter_jit
def _tune_policy(scenario, objective, structure, choices, schedule, constant, low, high):
    """The best policy; the expected sums of errors under it, the schedule and the constant noise, on one kernel."""
    chain = chain_of(scenario, objective.penalty, cap=objective.whole)
    if structure == "table":
        policy = _dynamic_programming(chain, jnp.append(choices, constant), schedule)
    else:
        coarse = chain_of(scenario, objective.penalty, size=LAW_NODES, cap=objective.whole)
        policy = _log_linear(coarse.tabulated(low, high), constant, low, high)
    release = jnp.arange(scenario.rounds + 1)
    reacting = jax.vmap(lambda t: policy(chain.sources, t))(release)
    alike = (
        jnp.broadcast_to(x[:, None], reacting.shape) for x in (schedule, jnp.broadcast_to(constant, schedule.shape))
    )
    return policy, jax.lax.map(chain.value, jnp.stack([reacting, *alike]))


def _dynamic_programming(chain: Chain, choices, schedule) -> TablePolicy:
    """The best table."""
    errors, rows = jax.vmap(chain.errors)(choices), jax.lax.map(chain.rows, choices)

    def back(following, at):
        x, left = at
        tried = chain.worths(errors, rows, following, left)
        tried = jnp.concatenate([tried, chain.worth(x, following, left)[None]])
        best = jnp.argmin(tried, axis=0)
        worth = jnp.min(tried, axis=0)
        return worth[:-1], jnp.append(choices, x)[best]

    at = schedule, chain.left(schedule.size)
    _, table = jax.lax.scan(back, jnp.zeros_like(chain.grid.nodes), at, reverse=True)
    order = jnp.argsort(chain.sources)
    return TablePolicy(chain.sources[order], table[:, order])


def _log_linear(chain: Chain, constant, low, high) -> LogLinearPolicy:
    """The best log-linear rule, from the best constant noise."""
    rounds, release = chain.scenario.rounds, jnp.arange(chain.scenario.rounds + 1)
    reference = chain.kernel.start

    def rule(parameters):
        level, power, fall = parameters
        return LogLinearPolicy(
            jnp.exp(level), power=power, rate=fall / rounds, reference=reference, low=jnp.exp(low), high=jnp.exp(high)
        )

    def slope(parameters):
        def noises(parameters):
            return jax.vmap(lambda t: rule(parameters)(chain.sources, t))(release)

        noise, pull = jax.vjp(noises, parameters)
        value, by_noise = chain.value_and_slope(noise)
        return jnp.log(value), pull(by_noise / value)[0]

    start = jnp.stack([jnp.clip(jnp.log(constant), low, high), jnp.zeros_like(low), jnp.zeros_like(low)])
    least = jnp.stack([low, jnp.full_like(low, -POWERS), low - high])
    greatest = jnp.stack([high, jnp.full_like(low, POWERS), high - low])
    return rule(descend(slope, start, least, greatest, steps=LAW_STEPS, tolerance=LAW_LEVEL).place)
