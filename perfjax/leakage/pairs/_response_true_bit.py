"""Randomized response, and leaks of those whose released bit is the true one."""

import jax
import jax.numpy as jnp

from perfjax import theorems
from perfjax.binomial import binomial_from_bits, uniform_from_bits
from perfjax.leakage._true_bit import TrueBitKept
from perfjax.leakage.pairs._base import AbstractIndependentPair, CriticalNoise, Split
from perfjax.leakage.pairs.blocks import block_count, happens, present
from perfjax.mechanisms import RandomizedResponse

__all__ = ["RandomizedResponseTrueBit"]


class RandomizedResponseTrueBit(AbstractIndependentPair, mechanism=RandomizedResponse, leakage=TrueBitKept):
    """Everybody flips their own coin: users share nothing."""

    def split(self, mechanism, leakage, population, noise):
        return Split(leaked=jax.nn.sigmoid(noise), spared=jax.nn.sigmoid(-noise))

    def count_release(self, mechanism, leakage, population, noise, words):
        """From the counts of true ones and zeros kept."""
        n = population
        low, high = jnp.broadcast_to(mechanism.mean, (2,))
        mu = low + (high - low) * uniform_from_bits(words[0], n.dtype)
        keep, flip = jax.nn.sigmoid(noise), jax.nn.sigmoid(-noise)
        ones = binomial_from_bits(words[1], n, mu)
        ones_kept = binomial_from_bits(words[2], ones, keep, q=flip)
        zeros_kept = binomial_from_bits(words[3], n - ones, keep, q=flip)
        rate = (ones_kept + (n - ones) - zeros_kept) / jnp.maximum(n, 1)
        estimate = 0.5 + (rate - 0.5) / jnp.tanh(noise / 2)
        if mechanism.clip_estimate:
            estimate = jnp.clip(estimate, 0, 1)
        error = jnp.where(n > 0, (estimate - mu) ** 2, jnp.inf)
        return ones_kept + zeros_kept, error

    def user_release(self, mechanism, leakage, users, noise, size, keys):
        n = jnp.maximum(users, 1).astype(noise.dtype)
        low, high = jnp.broadcast_to(mechanism.mean, (2,))
        mean = low + (high - low) * jax.random.uniform(keys.once, (), noise.dtype)

        def is_kept(block):
            return happens(keys.responses, block, (size,), jax.nn.sigmoid(noise))

        def add(block, ones):
            bits = happens(keys.records, block, (size,), mean)
            sent = jnp.where(is_kept(block), bits, ~bits)
            return ones + jnp.sum(sent & present(users, block, size), dtype=jnp.int32)

        ones = jax.lax.fori_loop(jnp.int32(0), block_count(users, size), add, jnp.int32(0))
        estimate = 0.5 + (ones.astype(noise.dtype) / n - 0.5) / jnp.tanh(noise / 2)
        if mechanism.clip_estimate:
            estimate = jnp.clip(estimate, 0, 1)
        error = jnp.where(users > 0, (mean - estimate) ** 2, jnp.inf)
        return error, [(jnp.int32(0), block_count(users, size), is_kept)]

    def critical_noise(self, mechanism, leakage, *, leave, recruit, population):
        return CriticalNoise(theorems.critical_epsilon(leave, recruit), "Theorem 1", True)
