"""The Markov kernel of the population: from n users, the distribution of the next population on the nodes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfjax._linear import product
from perfjax._square_root import square_root
from perfjax.law._nodes import SMALL, Grid, on_nodes
from perfjax.law._normal import density_and_tail
from perfjax.leakage import LeakDistribution, leak_distribution, pair_of, shared_weights
from perfjax.scenario import Scenario

__all__ = ["Kernel", "Moments", "kernel_of", "leaked_counts"]

ROWS = 16  # computed at a time: a bound on memory, for each needs a table of its own


class Moments(NamedTuple):
    """What rows of the kernel are made of, given the noise.

    Attributes:
        growth: mean of the next population given what users share, divided by n; before floor and cap, from every
            source.
        spread: its variance, likewise.
        weight: of what users share.
        few_rows: the rows from 0, 1, 2, ... users.
    """

    growth: Float[Array, "sources shared"]
    spread: Float[Array, "sources shared"]
    weight: Float[Array, "sources shared"]
    few_rows: Float[Array, "few nodes"]


class Kernel(NamedTuple):
    """What rows of the kernel are made of, whatever the noise.

    Attributes:
        scenario: whose own noise plays no role.
        grid: the nodes.
        moves: P(next population = m | k of n users leaked), for few users n, before floor and cap.
    """

    scenario: Scenario
    grid: Grid
    moves: Float[Array, "n k m"]

    @property
    def start(self) -> Float[Array, ""]:
        """Users at release 0."""
        return self.scenario.participation.bounded(self.scenario.population)

    @property
    def sources(self) -> Float[Array, " sources"]:
        """The populations that the rows belong to: 0, 1, 2, ... user by user, the larger nodes, and `start`."""
        few = jnp.arange(self.grid.exact, dtype=self.grid.nodes.dtype)
        return jnp.concatenate([few, self.grid.nodes[self.grid.exact :], self.start[None]])

    def rows(self, noise: Float[Array, "*sources"]) -> Float[Array, "sources nodes"]:
        """The next population's distribution on the nodes: from every node, and last from `start` users.

        `noise` is one value, or one for each of the `sources`.

        Few users: exact leavers and recruits; the leaked count an exact binomial where users are leaked independently,
        else the rounded normal of its exact mean and of its variance for many users (enumerated for one and two). Many:
        a mixture over the shared noise of normals with that mean and variance.
        """
        return self.rows_of(self.moments(noise))

    def moments(self, noise: Float[Array, "*sources"]) -> Moments:
        """What the `rows` are made of: with the exact rows of few users, those of many in their moments."""
        scenario, populations, nodes, exact = self.scenario, self.sources, self.grid.nodes, self.grid.exact
        leaks, weight = _given_shared(scenario, jnp.broadcast_to(noise, populations.shape), populations)
        few, few_leaks = populations[:exact], jax.tree.map(lambda x: x[:exact], leaks)
        independent = pair_of(scenario.mechanism, scenario.leakage).independent
        chances = leaked_counts(few, few_leaks, weight[:exact], few, independent=independent)
        following = jnp.einsum("nk,nkm->nm", chances, self.moves, precision="highest")
        places = scenario.participation.bounded(jnp.arange(following.shape[-1], dtype=nodes.dtype))
        few_rows = product(following, on_nodes(nodes, places))
        growth, spread = scenario.participation.growth_and_spread(leaks.leaked, leaks.spared, leaks.spread)
        return Moments(growth, spread, weight, few_rows)

    def rows_of(self, moments: Moments) -> Float[Array, "sources nodes"]:
        """`rows` from their moments."""
        nodes, exact, few, start = self.grid.nodes, self.grid.exact, moments.few_rows, self.start
        if self.grid.every_other is None:  # all whole numbers, computed user by user
            return jnp.concatenate([few, product(on_nodes(nodes, start), few)[None]])
        many = _normal_rows(self.sources[exact:], *(x[exact:] for x in moments[:3]), nodes)
        from_start = jnp.where(start <= SMALL, product(on_nodes(nodes, start)[:exact], few), many[-1])
        return jnp.concatenate([few, many[:-1], from_start[None]])


def kernel_of(scenario: Scenario, grid: Grid) -> Kernel:
    """The kernel of a checked scenario."""
    return Kernel(scenario, grid, _moves(scenario.participation, grid))


def _given_shared(scenario, noise, populations) -> tuple[LeakDistribution, Float[Array, "n shared"]]:
    """`LeakDistribution` for every population and every node of the shared noise, and the nodes' weights."""

    def one(n, x):
        node, weight = shared_weights(scenario.mechanism, scenario.leakage, n, x)
        leaks = jax.vmap(lambda shared: leak_distribution(scenario.mechanism, scenario.leakage, n, x, shared))(node)
        return leaks, weight

    return jax.vmap(one)(populations, noise)


def _normal_rows(populations, growth, spread, weight, nodes) -> Float[Array, "n nodes"]:
    """Rows from `populations` as mixtures of normals, put on the nodes through hat functions.

    A hat function's weight is a second difference of E[(X - a)^+] = s (phi(z) - z Phi(-z)), z = (a - mean) / s, over
    the nodes a. That keeps the mean, and clips at floor and cap, in closed form. The difference is taken of
    E[(X - a)^+] below the mean and of E[(a - X)^+] above it, whichever is small there: nothing cancels.
    """
    n = populations[:, None]
    std = square_root(n * spread)
    return jax.lax.map(lambda row: _hat_weights(*row, nodes), (n * growth, std, weight), batch_size=ROWS)


def _hat_weights(mean, std, weight, nodes) -> Float[Array, " nodes"]:
    """Weights of a mixture of normals on consecutive nodes, all mass beyond an end on that end."""
    std = jnp.maximum(std, jnp.maximum(mean, 1) * 1e-6)[:, None]
    from_mean = nodes - mean[:, None]
    density, tail = density_and_tail(from_mean / std)
    above = from_mean > 0
    # Between neighbours: mass, and first moment about the lower one. Of the tails the one that is small: on the same
    # side of the mean their difference cancels nothing that matters.
    low, high = tail[:, :-1], tail[:, 1:]
    mass = jnp.where(above[:, :-1], low - high, jnp.where(above[:, 1:], 1 - low - high, high - low))
    moment = product(weight, std * (density[:, :-1] - density[:, 1:]) - from_mean[:, :-1] * mass)
    mass = product(weight, mass)
    gap = nodes[1:] - nodes[:-1]
    share = jnp.clip(jnp.where(gap > 0, moment / jnp.where(gap > 0, gap, 1), 0), 0, mass)
    first = product(weight, jnp.where(above[:, 0], 1 - tail[:, 0], tail[:, 0]))
    last = product(weight, jnp.where(above[:, -1], tail[:, -1], 1 - tail[:, -1]))
    inner = jnp.pad(mass - share, (0, 1)) + jnp.pad(share, (1, 0))
    return inner + first * on_nodes(nodes, nodes[0]) + last * on_nodes(nodes, nodes[-1])


def _moves(participation, grid) -> Float[Array, "n k m"]:
    """P(next population = m | k of n users leaked) for 0, 1, 2, ... users, by generating functions.

    The next population then has the generating function L(z)^k S(z)^(n-k), L that of a leaked user and S that of a
    spared one: evaluated at roots of unity, and inverted by a finite Fourier sum. Where all nodes are whole numbers,
    what lies beyond the last one counts as there.
    """
    count = grid.exact
    roots = next(n for n in range(2 * count - 1, 8 * count, 2) if _is_fast(n))  # next populations: 0 .. 2 (count - 1)
    leaked, spared = (_powers(base, count) for base in _user_generating_functions(participation, roots))
    index = jnp.arange(count)

    def of(n):
        transform = leaked * spared[jnp.where(index <= n, n - index, 0)]
        chance = jnp.fft.ifft(transform, axis=-1).real  # z = exp(-2 pi i f / roots) is numpy's forward sign
        chance = jnp.maximum(chance[:, : 2 * count - 1], 0)
        chance = chance / chance.sum(axis=-1, keepdims=True)
        if grid.every_other is not None:
            return chance
        return chance[:, :count].at[:, -1].add(chance[:, count:].sum(axis=-1))

    return jax.lax.map(of, index, batch_size=ROWS)


def _is_fast(length: int) -> bool:
    """Whether a Fourier sum of an odd length is a fast one: no prime factor above 7."""
    for factor in (3, 5, 7):
        while length % factor == 0:
            length //= factor
    return length == 1


def _user_generating_functions(participation, roots):
    """E[z^(users a user becomes)] for a leaked and a spared one, at `roots` roots of unity."""
    dtype = jnp.complex128 if participation.leave.dtype == jnp.float64 else jnp.complex64
    z = jnp.exp(-2j * np.pi * np.arange(roots) / roots).astype(dtype)

    def of(rates):
        q, r = rates.leave.astype(dtype), rates.recruit.astype(dtype)
        return (q + (1 - q) * z) * ((1 - r) + r * z)

    return of(participation.leaked), of(participation.spared)


def _powers(base, count):
    """base^0 .. base^(count - 1). No base is 0: the number of roots of unity is odd, and only -1 could make one."""
    exponent = jnp.arange(count, dtype=base.real.dtype)[:, None]
    size, angle = jnp.exp(exponent * jnp.log(jnp.abs(base))), exponent * jnp.angle(base)
    return jax.lax.complex(size * jnp.cos(angle), size * jnp.sin(angle))


def leaked_counts(
    populations: Float[Array, " n"],
    leaks: LeakDistribution,
    weight: Float[Array, "n shared"],
    k: Float[Array, " k"],
    *,
    independent: bool,
) -> Float[Array, "n k"]:
    """P(K = k) of k leaked among n users, over what they share; the `k` are 0, 1, 2, ...; 0 where k > n."""
    count = _binomial if independent else _rounded_normal

    def of(n, given, weight):
        over_shared = jax.vmap(lambda given: jnp.where(k <= n, count(n, given, k), 0))(given)
        return product(weight, over_shared)

    return jax.lax.map(lambda args: of(*args), (populations, leaks, weight), batch_size=ROWS)


def _binomial(n, given, k):
    rest = jnp.maximum(n - k, 0)
    gammaln, xlogy = jax.scipy.special.gammaln, jax.scipy.special.xlogy
    ways = gammaln(n + 1) - gammaln(k + 1) - gammaln(rest + 1)
    tiny = jnp.finfo(n.dtype).tiny  # or log has no slope
    leaked, spared = (jnp.maximum(p, tiny) for p in (given.leaked, given.spared))
    return jnp.exp(ways + xlogy(k, leaked) + xlogy(rest, spared))


def _rounded_normal(n, given, k):
    """K rounds a normal of mean n p and variance n `spread`, held to 0..n; one and two users are enumerated."""
    p, spared, spread, both = given
    std = jnp.maximum(jnp.sqrt(n * jnp.maximum(spread, 1e-12)), 1e-6)
    place = (k + 0.5 - n * p) / std
    _, tail = density_and_tail(place)
    edge = jnp.where(k >= n, 1, jnp.where(place > 0, 1 - tail, tail))
    normal = edge - jnp.concatenate([jnp.zeros_like(edge[:1]), edge[:-1]])
    one = jnp.where(k == 0, spared, jnp.where(k == 1, p, 0))
    exactly_one = jnp.clip(2 * (p - both), 0, 1)
    two = jnp.where(k == 2, both, jnp.where(k == 1, exactly_one, jnp.where(k == 0, 1 - both - exactly_one, 0)))
    none = jnp.where(k == 0, 1.0, 0.0)
    return jnp.where(n < 0.5, none, jnp.where(n < 1.5, one, jnp.where(n < 2.5, two, normal)))
