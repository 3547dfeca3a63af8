"""The populations on which the law lives, and how a distribution is put on them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfjax.participation import Participation

__all__ = ["SMALL", "WHOLE", "Grid", "grid", "on_every_other", "on_nodes"]

SMALL = 40  # populations up to which the next one is computed user by user
WHOLE = 200  # caps up to which every whole number is a node, and computed user by user


class Grid(NamedTuple):
    """Nodes x_1 <= ... <= x_M between floor and cap.

    Attributes:
        nodes: populations; the first `exact` are 0, 1, 2, ... users, held to that range.
        exact: how many rows of the kernel are computed user by user.
        every_other: indices of the nodes of a grid with twice the spacing; None if all whole numbers are nodes.
    """

    nodes: Float[Array, " nodes"]
    exact: int
    every_other: np.ndarray | None


def grid(participation: Participation, size: int, cap: int | None) -> Grid:
    """Nodes for a law: whole numbers below 2 SMALL, then `size` log-spaced ones; up to a known small `cap`, all whole.

    Only the ends move with floor and cap when differentiated: where the inner nodes lie is a choice.
    """
    low, high = participation.floor, participation.cap
    if cap is not None:
        whole = jnp.arange(cap, dtype=low.dtype)
        return Grid(_held(whole, low, high), cap + 1, None)
    whole = jnp.arange(2 * SMALL, dtype=low.dtype)
    top = jax.lax.stop_gradient(jnp.log(jnp.maximum(high, 2 * SMALL + 1)))
    above = jnp.exp(jnp.linspace(np.log(2.0 * SMALL), top, size + 1, dtype=low.dtype))
    nodes = jnp.concatenate([whole, above[:-1]])
    every_other = np.concatenate([np.arange(2 * SMALL), 2 * SMALL + np.arange(0, size + 1, 2)])
    return Grid(_held(nodes, low, high), SMALL + 1, every_other)


def _held(nodes, low, high):
    """Nodes held to floor and cap, and the cap; those at an end move with it."""
    return jnp.append(jnp.where(nodes <= low, low, jnp.where(nodes >= high, high, nodes)), high)


def on_nodes(nodes: Float[Array, " nodes"], place: Float[Array, "..."]) -> Float[Array, "... nodes"]:
    """Weights that put points on the nodes around them and keep their mean (hat functions).

    Of the nodes that floor or cap made equal, the one whose row starts from that many users is taken.
    """
    last_below = jnp.searchsorted(nodes, place, side="right") - 1
    first_at_cap = jnp.searchsorted(nodes, place, side="left")
    left = jnp.clip(jnp.where(place < nodes[-1], last_below, first_at_cap - 1), 0, nodes.size - 2)
    gap = nodes[left + 1] - nodes[left]
    share = jnp.where(gap > 0, (place - nodes[left]) / jnp.where(gap > 0, gap, 1), 0)
    # Not jnp.clip: at a tie, which every node is, it has half a derivative, that of neither side.
    share = jnp.where(share < 0, 0, jnp.where(share > 1, 1, share))[..., None]
    column = jnp.arange(nodes.size, dtype=left.dtype)
    return jnp.where(column == left[..., None], 1 - share, 0) + jnp.where(column == left[..., None] + 1, share, 0)


def on_every_other(nodes: Float[Array, " nodes"], weights: Float[Array, "*rows nodes"]) -> Float[Array, "*rows fewer"]:
    """Weights on the nodes of a `grid`, moved to its nodes `every_other`: a wide hat is a sum of narrow ones."""
    whole, x = weights[..., : 2 * SMALL], nodes[2 * SMALL :]
    kept, between = weights[..., 2 * SMALL :: 2], weights[..., 2 * SMALL + 1 :: 2]
    gap = x[2::2] - x[:-1:2]
    share = jnp.where(gap > 0, (x[1::2] - x[:-1:2]) / jnp.where(gap > 0, gap, 1), 0)
    end = [(0, 0)] * (weights.ndim - 1)
    kept = kept + jnp.pad(between * (1 - share), [*end, (0, 1)]) + jnp.pad(between * share, [*end, (1, 0)])
    return jnp.concatenate([whole, kept], axis=-1)
