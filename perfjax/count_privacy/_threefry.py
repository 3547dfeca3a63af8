"""Threefry 2x32 of 20 rounds, the cipher behind JAX's keys, written out so that a CPU works on whole vectors of words.

`jax.random.bits` runs the same rounds in a loop on CPUs, to compile fast, and takes four times as long.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, UInt32

__all__ = ["two_words"]

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = np.uint32(0x1BD11BDA)


def two_words(key: Key[Array, ""], shape: tuple[int, ...]) -> tuple[UInt32[Array, "..."], UInt32[Array, "..."]]:
    """Two independent random words for each element: of any other cipher's key by `jax.random.bits`."""
    if str(jax.random.key_impl(key)) != "threefry2x32":
        both = jax.random.bits(key, (2, *shape), "uint32")
        return both[0], both[1]
    low = jax.lax.iota(jnp.uint32, int(np.prod(shape))).reshape(shape)
    return _encrypted(jax.random.key_data(key), jnp.zeros_like(low), low)


def _encrypted(key, first, second):
    keys = (key[0], key[1], key[0] ^ key[1] ^ PARITY)
    first, second = first + keys[0], second + keys[1]
    for group in range(5):
        for turn in ROTATIONS[group % 2]:
            first = first + second
            second = first ^ ((second << np.uint32(turn)) | (second >> np.uint32(32 - turn)))
        first = first + keys[(group + 1) % 3]
        second = second + keys[(group + 2) % 3] + np.uint32(group + 1)
    return first, second
