"""The Markov kernel of the population: from n users, the distribution of the next population on the nodes."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfjax.law._nodes import Grid, on_nodes
from perfjax.leakage import GivenNoise, given_noise, shared_dimensions, shared_rule
from perfjax.scenario import Scenario

__all__ = ["kernel", "normal_rows"]

ROWS = 64  # computed at a time: a bound on memory, for each needs nodes times nodes of the shared noise


def kernel(scenario: Scenario, noise: Float[Array, ""], grid: Grid) -> Float[Array, "nodes nodes"]:
    """Row i: the distribution of the next population, on the nodes, from node i.

    Few users: exact leavers and recruits, the leaked count being the rounded normal of its exact mean and variance
    (enumerated for one and two users; an exact binomial for randomized response). Many: a mixture over the shared noise
    of normals with the exact mean and variance.
    """
    few = exact_rows(scenario, noise, grid)
    many = normal_rows(scenario, noise, grid.nodes[grid.exact :], grid.nodes)
    return jnp.concatenate([few, many])


def given_shared(scenario: Scenario, noise: Float[Array, ""], populations: Float[Array, " n"]) -> GivenNoise:
    """`GivenNoise` for every population and every node of the shared noise: arrays [n, shared]."""
    node, _ = shared_rule(shared_dimensions(scenario.mechanism))
    node = jnp.asarray(node, populations.dtype)

    def one(n, shared):
        return given_noise(scenario.mechanism, scenario.leakage, n, noise, shared)

    return jax.vmap(lambda n: jax.vmap(lambda shared: one(n, shared))(node))(populations)


def normal_rows(scenario, noise, populations, nodes) -> Float[Array, "n nodes"]:
    """Rows from `populations` as mixtures of normals, put on the nodes through hat functions.

    A hat function's weight is a second difference of E[(X - a)^+] = s (phi(z) - z Phi(-z)), z = (a - mean) / s, over
    the nodes a. That keeps the mean, and clips at floor and cap, in closed form. The difference is taken of
    E[(X - a)^+] below the mean and of E[(a - X)^+] above it, whichever is small there: nothing cancels.
    """
    who = scenario.participation
    law = given_shared(scenario, noise, populations)
    q, r, n = who.leave, who.recruit, populations[:, None]
    if who.recruiters == "spared":
        growth = 1 - q + (q + r) * law.kept
        spread = q * (1 - q) * law.leaked + r * (1 - r) * law.kept + (q + r) ** 2 * law.spread
    else:
        growth = 1 - q + r + q * law.kept
        spread = q * (1 - q) * law.leaked + r * (1 - r) + q * q * law.spread
    _, weight = shared_rule(shared_dimensions(scenario.mechanism))
    weight = jnp.asarray(weight, populations.dtype)
    mean, std = n * growth, jnp.sqrt(n * spread)

    def row(law):
        return weight @ jax.vmap(lambda m, s: _hat_weights(m, s, nodes))(*law)

    return jax.lax.map(row, (mean, std), batch_size=ROWS)


def _hat_weights(mean, std, nodes):
    """Weights of N(mean, std^2) on consecutive nodes, all mass beyond an end on that end."""
    tiny = jnp.finfo(nodes.dtype).tiny
    std = jnp.maximum(std, jnp.maximum(mean, 1) * 1e-6)
    z = jnp.clip((nodes - mean) / std, -40, 40)
    below = jax.lax.erfc(z * -math.sqrt(0.5)) / 2
    density = jnp.exp(-z * z / 2) * (1 / math.sqrt(2 * math.pi))
    # Between neighbours a < b: mass m and first moment about a, from whichever tail is small.
    upper = jax.lax.erfc(z * math.sqrt(0.5)) / 2
    right = z[:-1] > 0
    mass = jnp.where(right, upper[:-1] - upper[1:], below[1:] - below[:-1])
    moment = std * (density[:-1] - density[1:]) + (mean - nodes[:-1]) * mass
    gap = nodes[1:] - nodes[:-1]
    share = jnp.where(gap > tiny, moment / jnp.where(gap > tiny, gap, 1), 0)
    share = jnp.clip(share, 0, mass)
    cells = jnp.zeros_like(nodes)
    cells = cells.at[:-1].add(mass - share).at[1:].add(share)
    return cells.at[0].add(below[0]).at[-1].add(upper[-1])


def exact_rows(scenario, noise, grid) -> Float[Array, "exact nodes"]:
    """Rows from 0, 1, ..., `grid.exact` - 1 users, by generating functions.

    Given k of n leaked, the next population has the generating function L(z)^k S(z)^(n-k), L that of a leaked user and
    S that of a spared one: evaluated at roots of unity, and inverted by a finite Fourier sum.
    """
    count = grid.exact
    states = 2 * count - 1  # next populations 0 .. 2 (count - 1)
    leaked, spared = _user_generating_functions(scenario.participation, states)
    population = jnp.arange(count, dtype=grid.nodes.dtype)
    chances = _leaked_counts(scenario, noise, population)
    leaked_powers, spared_powers = _powers(leaked, count), _powers(spared, count)
    index = jnp.arange(count)

    def row(n, chance):
        rest = jnp.where(index <= n, n - index, 0)
        return jnp.einsum("k,kf,kf->f", chance.astype(leaked.dtype), leaked_powers, spared_powers[rest])

    transform = jax.lax.map(lambda args: row(*args), (index, chances), batch_size=16)
    probability = jnp.fft.ifft(transform, axis=-1).real  # z = exp(-2 pi i f / states) is numpy's forward sign
    probability = jnp.maximum(probability, 0)
    probability = probability / probability.sum(axis=-1, keepdims=True)
    places = scenario.participation.bounded(jnp.arange(states, dtype=grid.nodes.dtype))
    return probability @ on_nodes(grid.nodes, places)


def _user_generating_functions(participation, states):
    """E[z^(users a user becomes)] for a leaked and a spared one, at the roots of unity."""
    dtype = jnp.complex128 if participation.leave.dtype == jnp.float64 else jnp.complex64
    z = jnp.exp(-2j * np.pi * np.arange(states) / states).astype(dtype)
    q, r = participation.leave.astype(dtype), participation.recruit.astype(dtype)
    stays, recruits = q + (1 - q) * z, (1 - r) + r * z
    return (stays if participation.recruiters == "spared" else stays * recruits), z * recruits


def _powers(base, count):
    """base^0 .. base^(count - 1). No base is 0: the number of roots of unity is odd, and only -1 could make one."""
    exponent = jnp.arange(count, dtype=base.real.dtype)[:, None]
    size, angle = jnp.exp(exponent * jnp.log(jnp.abs(base))), exponent * jnp.angle(base)
    return jax.lax.complex(size * jnp.cos(angle), size * jnp.sin(angle))


def _leaked_counts(scenario, noise, population) -> Float[Array, "n k"]:
    """P(K = k) for k = 0 .. n leaked among n users, over the shared noise."""
    law = given_shared(scenario, noise, population)
    _, weight = shared_rule(shared_dimensions(scenario.mechanism))
    k = jnp.arange(population.size, dtype=population.dtype)
    count = _binomial if shared_dimensions(scenario.mechanism) == 0 else _rounded_normal

    def one(n, p, kept, spread, both):
        chance = count(n, p, kept, spread, both, k)
        return jnp.where(k <= n, chance, 0)

    over_shared = jax.vmap(one, in_axes=(None, 0, 0, 0, 0))
    chances = jax.vmap(over_shared)(population, law.leaked, law.kept, law.spread, law.both)
    return jnp.einsum("nsk,s->nk", chances, jnp.asarray(weight, population.dtype))


def _binomial(n, p, kept, spread, both, k):
    del spread, both
    rest = jnp.maximum(n - k, 0)
    gammaln, xlogy = jax.scipy.special.gammaln, jax.scipy.special.xlogy
    ways = gammaln(n + 1) - gammaln(k + 1) - gammaln(rest + 1)
    return jnp.exp(ways + xlogy(k, p) + xlogy(rest, kept))


def _rounded_normal(n, p, kept, spread, both, k):
    """K rounds a normal of mean n p and variance n `spread`, held to 0..n; one and two users are enumerated."""
    std = jnp.maximum(jnp.sqrt(n * jnp.maximum(spread, 1e-12)), 1e-6)
    edge = jax.scipy.special.ndtr((k + 0.5 - n * p) / std)
    edge = jnp.where(k >= n, 1, edge)
    normal = edge - jnp.concatenate([jnp.zeros_like(edge[:1]), edge[:-1]])
    one = jnp.where(k == 0, kept, jnp.where(k == 1, p, 0))
    exactly_one = jnp.clip(2 * (p - both), 0, 1)
    two = jnp.where(k == 2, both, jnp.where(k == 1, exactly_one, jnp.where(k == 0, 1 - both - exactly_one, 0)))
    none = jnp.where(k == 0, 1.0, 0.0)
    return jnp.where(n < 0.5, none, jnp.where(n < 1.5, one, jnp.where(n < 2.5, two, normal)))
