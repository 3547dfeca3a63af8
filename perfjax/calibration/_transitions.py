"""How probable the observed transitions are, by the kernel that `population_law` propagates.

A transition goes from one count to the next one known. Most are a single release: exact rows up to `SMALL` users, a
mixture of rounded normals above. With leavers and joiners, the sum over leaked counts of binomial probabilities. Over
missing rounds: products of kernels on whole numbers for few users, for many a normal of the right mean and variance.
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfjax.calibration._few import log_few
from perfjax.calibration._flows import flows
from perfjax.calibration._gaps import over_gap
from perfjax.calibration._mixture import log_mixture, mixture_moments
from perfjax.calibration._series import Series
from perfjax.calibration._shared import FEW_NODES, MANY_NODES, SharedLaw, over_shared, starts_of
from perfjax.calibration._terms import Terms, chosen, masked, of_counts
from perfjax.law._nodes import SMALL
from perfjax.leakage import Split
from perfjax.participation import Participation
from perfjax.scenario import Scenario

__all__ = ["Plan", "growth_at_place", "plan_of", "terms"]

LARGE = 3000  # users, beyond which counts follow the shared noise so closely that more of its nodes are needed
FEW_NOISES = 4  # one more than there are parameters
CHAIN = 400  # users that can be reached over missing rounds, up to which these are products of kernels


class Plan(NamedTuple):
    """What the shape of the series asks for.

    Attributes:
        small: whether a count is so small that its row of the kernel is exact.
        flows: whether leavers and joiners are known in a round.
        nodes: how many of the shared noise are looked at.
        ridges: whether fewer different noises than `FEW_NOISES` were used: then many values of the parameters explain
            the counts nearly as well, and the likelihood may have several maxima.
        gaps: first index and length of every stretch of missing rounds, and the states of its chain (0: normals).
    """

    small: bool
    flows: bool
    nodes: int
    ridges: bool
    gaps: tuple[tuple[int, int, int], ...]


def plan_of(series: Series, scenario: Scenario) -> Plan:
    """The plan of a known series; of several groups, what any of them needs."""
    n = np.atleast_2d(np.asarray(series.population, float))
    gaps = {}
    for group in n:
        known = np.flatnonzero(~np.isnan(group))
        for a, b in itertools.pairwise(known):
            if b > a + 1:
                reached = group[a] * 2.0 ** (b - a)
                gaps[int(a), int(b - a)] = max(gaps.get((int(a), int(b - a)), 0), reached)
    extra = np.any(np.asarray(series.inflow) > 0)
    cap = float(scenario.participation.cap)
    chains = {key: 0 if reached > CHAIN or extra else int(min(reached, cap)) for key, reached in gaps.items()}
    told = series.leavers is not None and bool(np.any(~np.isnan(np.asarray(series.leavers))))
    small = bool(np.any(n[:, :-1] <= SMALL))
    nodes = MANY_NODES if np.nanmax(n) > LARGE else FEW_NODES
    return Plan(
        small,
        told,
        nodes,
        _has_ridges(series, scenario),
        tuple((a, length, chains[a, length]) for a, length in sorted(chains)),
    )


def _has_ridges(series, scenario):
    noise = np.asarray(scenario.mechanism.noise if series.noise is None else series.noise)
    if not noise.ndim:
        return True
    used = np.sort(noise[..., :-1], axis=-1)  # unknown ones last, and never equal
    different = 1 + np.sum(np.diff(used, axis=-1) > 0, axis=-1)
    return bool(np.any(different < FEW_NOISES))


def terms(scenario: Scenario, series: Series, plan: Plan, law: SharedLaw) -> Terms:
    """All transitions: T of one release, NaN-free and zero where a count is missing, then those over missing rounds."""
    steps = _one_release(scenario, series, plan, jax.tree.map(lambda x: x[:-1], law))
    gaps = [
        over_gap(scenario, series, gap, jax.tree.map(lambda x, at=gap[0]: x[at : at + 1], law)) for gap in plan.gaps
    ]
    return jax.tree.map(lambda *x: jnp.concatenate(x), steps, *gaps) if gaps else steps


def _one_release(scenario, series, plan, law) -> Terms:
    who, n, end = scenario.participation, starts_of(series), series.population[1:]
    seen = ~jnp.isnan(series.population[:-1]) & ~jnp.isnan(end)
    end = jnp.where(seen, end, n)
    inflow = series.inflow[:-1]
    mean, variance = mixture_moments(who, law, n)
    log_p = log_mixture(scenario, law, n, end, inflow)
    if plan.small:
        exact = log_few(who, law.chance, n, end, inflow)
        log_p = jnp.where((n <= SMALL) & jnp.isfinite(exact), exact, log_p)
    found = of_counts(who, log_p, mean + inflow, variance, end)
    if plan.flows:
        out, new = series.leavers[:-1], series.joiners[:-1]
        told = ~jnp.isnan(out) & ~jnp.isnan(series.population[:-1])
        both = flows(scenario, law, n, jnp.where(told, out, 0), jnp.where(told, new, 0))
        found = chosen(told, both._replace(residual=found.residual, mean=found.mean, std=found.std), found)
        seen = seen | told
    return masked(found, seen)


def growth_at_place(who: Participation, law: SharedLaw) -> Float[Array, ""]:
    """C at the place that comes last in `law`, averaged over what users share."""
    given, weight = jax.tree.map(lambda x: x[-1], (law.given, law.weight))
    return over_shared(who.growth(Split(given.leaked, given.spared)), weight)
