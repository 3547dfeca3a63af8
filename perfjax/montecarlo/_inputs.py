"""What samplers share: the check of keys and trials, whole numbers of users to start with, and no derivatives."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from perfjax import _check
from perfjax.binomial import uniform_from_bits

__all__ = ["OTHER_CAUSES", "as_key", "as_trials", "initial_users", "without_gradient"]

# Folded into a run's key, numbers that no release has: for its first number of users, and for who comes and goes for
# other reasons than leaks.
AT_START, OTHER_CAUSES = 2**32 - 1, 2**32 - 2


def as_key(key: Array) -> Array:
    """`key`, if it is one typed key."""
    if not isinstance(key, jax.Array) or not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise _check.fail("key", "be a typed key, as `jax.random.key(0)` makes it", key)
    if key.ndim:
        raise _check.fail("key", "be one key", f"an array of keys of shape {key.shape}")
    return key


def as_trials(trials: int, first_trial: int) -> tuple[int, Int[Array, ""]]:
    """How many runs, and the number of the first: an array, so that another first compiles nothing anew."""
    trials = _check.as_count(trials, "trials", low=1)
    first_trial = _check.as_count(first_trial, "first_trial", low=0)
    if first_trial + trials > 2**31:
        raise _check.fail("first_trial", "be at most 2^31 - `trials`", first_trial)
    return trials, jnp.asarray(np.int32(first_trial))


def initial_users(population: Float[Array, ""], key: Key[Array, ""]) -> Float[Array, ""]:
    """A whole number of users with mean `population`: one of the two next to it, drawn with the key of a run.

    The nearest would be one more scenario in place of the one asked for: of 2.5 users, 2 err by 25 % more. Its
    derivative by `population` is that of the mean, 1.
    """
    below = jnp.floor(population)
    word = jax.random.bits(jax.random.fold_in(key, jnp.uint32(AT_START)), (), "uint32")
    more = uniform_from_bits(word, population.dtype) < population - below
    users = jax.lax.stop_gradient(jnp.where(more, below + 1, below))
    return users + (population - jax.lax.stop_gradient(population))


def without_gradient(tree: PyTree, sampler: str) -> PyTree:
    """`tree`, which raises a `ValueError` when something is differentiated through it.

    Random draws are compared with probabilities, and the comparison has derivative 0 everywhere: left alone, `jax.grad`
    of a sampled path would be a silent 0.
    """

    @jax.custom_jvp
    def same(arrays):
        return arrays

    @same.defjvp
    def refuse(primals, tangents):
        raise ValueError(
            f"{sampler} has no gradient: a sampled path is a step function of its parameters. "
            "Differentiate a deterministic solver instead, such as mean_field."
        )

    arrays, rest = eqx.partition(tree, eqx.is_inexact_array)
    return eqx.combine(same(arrays), rest)
