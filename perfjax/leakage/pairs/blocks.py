"""Users drawn in blocks: what `simulate_users` and the pairs that it samples agree on.

Blocks bound the memory whatever the population. All that is random of a block comes from its number and the keys of the
release, so that it can be drawn a second time: first for what is released, then for who is leaked by it.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

__all__ = ["Keys", "Test", "UserRelease", "block_count", "happens", "present"]

Test = Callable[[Int[Array, ""]], Bool[Array, " block"]]
"""Who of a block, by its number, is leaked."""

UserRelease = tuple[Float[Array, ""], list[tuple[Int[Array, ""], Int[Array, ""], Test]]]
"""The error that a release made, and tests of who is leaked, each with its first block and the one after its last."""


class Keys(NamedTuple):
    """What each random number of a release is drawn from; all but the first are folded with the block.

    Attributes:
        once: what is drawn once for all users.
        records: the users' records.
        responses: what else is drawn for each user of the release.
        decisions: who leaves and who recruits; taken by the sampler itself.
    """

    once: Key[Array, ""]
    records: Key[Array, ""]
    responses: Key[Array, ""]
    decisions: Key[Array, ""]


def block_count(users: Int[Array, ""], size: int) -> Int[Array, ""]:
    """How many blocks of `size` hold so many users."""
    return (users - 1) // size + 1


def present(users: Int[Array, ""], block: Int[Array, ""], size: int) -> Bool[Array, " block"]:
    """Which users of a block exist: all, but for the last block."""
    return jnp.arange(size, dtype=jnp.int32) < users - block * size


def happens(
    key: Key[Array, ""], block: Int[Array, ""], shape: tuple[int, ...], probability: Float[Array, "..."]
) -> Bool[Array, "..."]:
    """For each user of a block, something that happens with `probability`."""
    return jax.random.uniform(jax.random.fold_in(key, block), shape, probability.dtype) < probability
