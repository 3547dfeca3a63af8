"""Transitions over missing rounds: products of kernels on whole numbers for few users, for many a normal count each."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfjax._linear import product
from perfjax.calibration._flows import hermite
from perfjax.calibration._mixture import log_mixture, log_rounded_normal, mixture_moments
from perfjax.calibration._series import Series
from perfjax.calibration._shared import SharedLaw, law_of_release, noise_of
from perfjax.calibration._terms import Terms, masked, of_counts
from perfjax.law._kernel import kernel_of
from perfjax.law._nodes import SMALL, Grid
from perfjax.scenario import Scenario

__all__ = ["over_gap"]

COUNTS = 9  # nodes over the count of a missing round
TRUSTED = 1e-12  # of a probability that the kernel sums by Fourier; below, rounding takes over


def over_gap(scenario: Scenario, series: Series, gap: tuple[int, int, int], law: SharedLaw) -> Terms:
    """One term; masked unless both ends of the gap, and nothing between, are known."""
    first, length, states = gap
    n = series.population
    whole = ~jnp.isnan(n[first]) & ~jnp.isnan(n[first + length])
    seen = whole & jnp.all(jnp.isnan(n[first + 1 : first + length]))
    start = jnp.where(seen, n[first], 2 * SMALL)
    end = jnp.where(seen, n[first + length], 2 * SMALL)
    noise = noise_of(series)[first : first + length]
    inflow = series.inflow[first : first + length]
    if states:
        log_p, mean, variance = _chained(scenario, start, end, noise, states)
    else:
        log_p, mean, variance = _carried(scenario, start, end, noise, inflow, law)
    found = of_counts(scenario.participation, *(x[None] for x in (log_p, mean, variance, end)))
    return masked(found, seen[None])


def _chained(scenario, start, end, noise, states):
    """Products of kernels on whole numbers."""
    who = scenario.participation
    whole = jnp.arange(max(states, 2 * SMALL) + 1, dtype=start.dtype)
    grid = Grid(jnp.clip(whole, who.floor, who.cap), SMALL + 1, np.arange(whole.size))
    kernel = kernel_of(scenario.with_leaves(population=start), grid)
    state, _ = jax.lax.scan(
        lambda state, x: (product(state, kernel.rows(x)[:-1]), None), kernel.rows(noise[0])[-1], noise[1:]
    )
    p = jnp.sum(jnp.where(grid.nodes == end, state, 0))
    mean = product(state, grid.nodes)
    variance = product(state, (grid.nodes - mean) ** 2) + 1 / 12
    reached = p > TRUSTED
    normal = log_rounded_normal(end, mean, jnp.sqrt(variance), who)
    return jnp.where(reached, jnp.log(jnp.where(reached, p, 1)), normal), mean, variance


def _carried(scenario, start, end, noise, inflow, law):
    """Mean and variance carried through each missing round, then the mixture of the last release."""
    who = scenario.participation
    z, log_weight = hermite(COUNTS, start.dtype)
    share = jnp.exp(log_weight) / jnp.sum(jnp.exp(log_weight))

    def moments(points, law, extra):
        mean, variance = mixture_moments(who, law, points)
        return who.bounded(mean + extra), variance

    def missed(carry, release):
        points, law = carry
        x, extra = release
        mean, variance = _total(share, *moments(points, law, extra))
        points = jnp.maximum(mean + jnp.sqrt(variance) * z, 0.5)
        return (points, jax.vmap(lambda n: law_of_release(scenario, n, x, nodes=law.weight.shape[-1]))(points)), None

    at_start = jax.tree.map(lambda x: jnp.broadcast_to(x, (COUNTS, *x.shape[1:])), law._replace(chance=None))
    first = jnp.full_like(z, start), at_start
    (points, law), _ = jax.lax.scan(missed, first, (noise[1:], inflow[:-1]))
    means, variances = moments(points, law, inflow[-1])
    log_each = log_mixture(scenario, law, points, jnp.full_like(points, end), jnp.full_like(points, inflow[-1]))
    return jax.nn.logsumexp(log_each, b=share), *_total(share, means, variances)


def _total(weights, means, variances) -> tuple[Float[Array, ""], Float[Array, ""]]:
    mean = product(weights, means)
    return mean, product(weights, variances) + product(weights, (means - mean) ** 2)
