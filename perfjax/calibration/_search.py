"""The search for the parameters that explain a series best: its box, where it starts, and how it climbs."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from perfjax._linear import product
from perfjax.calibration._likelihood import ITERATIONS, Constraint, Maximum, Problem, maximise
from perfjax.calibration._parameters import PARAMETERS, unconstrained
from perfjax.calibration._shared import over_shared, tabulated
from perfjax.mechanisms import GaussianMean

__all__ = ["climb", "in_chunks", "prepared"]

GROUPS_AT_ONCE = 16
LANES, GROUP_LANES = 8, 2  # places that one call of the compiled program climbs from, alone and in each of many groups
LEVEL_STARTS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)  # thresholds, in the size of a log-likelihood ratio
PAIR_STARTS = (
    (0.1, 0.05),
    (0.1, 0.5),
    (0.5, 0.2),
    (0.8, 0.8),
    (0.9, 0.1),
)  # leave and recruit, where counts are silent
BACKGROUND = 0.02  # rates of users that leaks have no part in, to start from
BOX = 12.0  # of log odds: nearer to 0 or 1 nothing changes
BELOW, ABOVE = 6.0, 4.0  # of a log threshold, from the size of a log-likelihood ratio


def in_chunks(function: Callable[[PyTree], PyTree], batched: PyTree) -> PyTree:
    """`function` of all groups, so many at a time that one program serves any number of them."""
    groups = jax.tree.leaves(batched)[0].shape[0]
    if groups == 1:
        return function(batched)

    def part(first):
        index = np.minimum(np.arange(first, first + GROUPS_AT_ONCE), groups - 1)
        return function(jax.tree.map(lambda x: x[index], batched))

    # A climb is a long row of small steps, which keeps one core busy: as many go on at once as there are cores, once
    # the first has compiled.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = [part(0), *pool.map(part, range(GROUPS_AT_ONCE, groups, GROUPS_AT_ONCE))]
    return jax.tree.map(lambda *x: jnp.concatenate(x)[:groups], *parts)


def climb(
    problem: Problem,
    starts: Float[Array, "groups lanes free"],
    constraints: Constraint | None = None,
    iterations: int = ITERATIONS,
) -> Maximum:
    """`maximise` a `prepared` problem for every group and lane, at most as many lanes at once as every call has."""
    groups, lanes, size = starts.shape
    width = LANES if groups == 1 else GROUP_LANES
    if constraints is None:
        none = jnp.zeros((groups, lanes), starts.dtype)
        constraints = Constraint(jnp.zeros((groups, lanes, size + 1), starts.dtype), none, jnp.full_like(none, jnp.inf))
    parts = []
    for first in range(0, lanes, width):
        index = np.minimum(np.arange(first, first + width), lanes - 1)
        some = jax.tree.map(lambda x, index=index: x[:, index], (starts, constraints))
        parts.append(_climb(problem, *some, jnp.asarray(iterations)))
    return jax.tree.map(lambda *x: jnp.concatenate(x, axis=1)[:, :lanes], *parts)


@eqx.filter_jit
def _climb(problem, starts, constraints, iterations):
    # One after the other: side by side, all would go on until the last of them has settled.
    def group(one):
        problem, starts, constraints = one
        return jax.lax.map(lambda lane: maximise(problem, *lane, iterations), (starts, constraints))

    return jax.lax.map(group, (problem, starts, constraints))


@eqx.filter_jit
def prepared(problem: Problem) -> tuple[Problem, Float[Array, "groups starts free"]]:
    """The problems with the ends of their boxes and the tables of their laws, and where to start."""
    return jax.lax.map(_prepared, problem)


def _prepared(problem):
    scenario, series, free = problem.scenario, problem.series, problem.free
    level = _level(scenario, series)
    ends = level - BELOW, level + ABOVE
    box = {"probability": (jnp.full_like(level, -BOX), jnp.full_like(level, BOX)), "positive": ends}
    low, high = (jnp.stack([box[PARAMETERS[name].kind][i] for name in free]) for i in (0, 1))
    of_law = ends if "threshold" in free else None
    plan = problem.plan
    law = tabulated(scenario, series, problem.growth_place, of_law, small=plan.small, nodes=plan.nodes)
    problem = eqx.tree_at(lambda p: (p.low, p.high, p.law), problem, (low, high, law), is_leaf=lambda x: x is None)
    return problem, jnp.clip(_starts(problem, level), low, high)


def _level(scenario, series):
    """log of the size of a log-likelihood ratio at the middle of the series."""
    if "threshold" not in scenario.leaves():
        return jnp.zeros_like(scenario.population)
    mechanism = scenario.mechanism
    n, x = jnp.nanmedian(series.population), jnp.nanmedian(series.noise[:-1])
    if not isinstance(mechanism, GaussianMean):
        return jnp.log(scenario.leakage.threshold)
    square = mechanism.covariance * mechanism.dim / jnp.maximum(n, 2) / jnp.maximum(x, 1e-6) ** 2
    return jnp.log(square) / 2


def _starts(problem, level) -> Float[Array, "starts free"]:
    """For each of several thresholds, the leave and recruit that fit mean counts best; and the scenario's own values.

    They enter mean counts linearly, and are as near as the fit allows to each of several pairs.
    """
    free = problem.free
    own = jnp.stack([unconstrained(name, problem.scenario.leaves()[name]) for name in free])
    thresholds = level + jnp.log(jnp.asarray(LEVEL_STARTS, level.dtype)) if "threshold" in free else None
    pairs = jnp.asarray(PAIR_STARTS, level.dtype)
    along = jax.vmap(lambda near, threshold: _linear_fit(problem, threshold, near), in_axes=(0, None))
    places = along(pairs, None) if thresholds is None else jax.vmap(along, in_axes=(None, 0))(pairs, thresholds)
    return jnp.concatenate([own[None], places.reshape(-1, len(free))])


def _linear_fit(problem, log_threshold, near):
    """Leave and recruit by least squares of relative changes of the count, at a threshold."""
    free, series, who = problem.free, problem.series, problem.scenario.participation
    law = problem.law.only() if log_threshold is None else problem.law.at(log_threshold)
    spared = over_shared(law.given.spared, law.weight)[:-1]
    change = (series.population[1:] - series.inflow[:-1]) / series.population[:-1] - 1
    seen = ~jnp.isnan(change)
    root = jnp.where(seen, jnp.sqrt(jnp.where(seen, series.population[:-1], 1)), 0)
    change = change + who.leave_spared * spared - who.recruit_leaked * (1 - spared)
    columns = jnp.stack([spared - 1, who.recruiting(1 - spared, spared)], axis=-1)
    varied = jnp.asarray([name in free for name in ("leave", "recruit")])
    near = jnp.where(varied, near, jnp.stack([who.leave, who.recruit]))
    fixed = product(columns, jnp.where(varied, 0, near))
    a = jnp.where(varied, columns * root[:, None], 0)
    b = jnp.where(seen, root * (jnp.where(seen, change, 0) - fixed), 0)
    pull = 1e-3 * jnp.sum(root**2) * jnp.eye(2, dtype=a.dtype)
    pair = jnp.linalg.solve(product(a.T, a) + pull, product(a.T, b) + product(pull, near))
    pair = jnp.clip(pair, 0.02, 0.98)
    found = {"leave": unconstrained("leave", pair[0]), "recruit": unconstrained("recruit", pair[1])}
    found["threshold"] = log_threshold
    for name in ("leave_spared", "recruit_leaked"):
        found[name] = unconstrained(name, jnp.clip(getattr(who, name), BACKGROUND, 1 - BACKGROUND))
    return jnp.stack([found[name] for name in free])
