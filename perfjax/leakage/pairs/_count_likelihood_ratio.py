"""A released count and a membership test: all users are leaked or none, since they watch the same number."""

import jax.numpy as jnp

from perfjax import count_privacy
from perfjax._draws import normal_from_bits, with_slope_of
from perfjax.binomial import uniform_from_bits
from perfjax.leakage._likelihood_ratio import LikelihoodRatioAbove
from perfjax.leakage.pairs._base import AbstractPair, LeakDistribution, Split
from perfjax.leakage.pairs._leaks import split
from perfjax.mechanisms import ShiftedLogCount

__all__ = ["ShiftedLogCountLikelihoodRatio"]


class ShiftedLogCountLikelihoodRatio(AbstractPair, mechanism=ShiftedLogCount, leakage=LikelihoodRatioAbove):
    """What users share is 1 where the release leaks everybody, and 0 where it leaks nobody."""

    def split(self, mechanism, leakage, population, noise):
        return Split(*count_privacy.leak_split(population, noise, mechanism.shift, leakage.threshold))

    def shared_quantile(self, mechanism, leakage, score):
        return None

    def shared_noise(self, mechanism, leakage, population, noise):
        chance = split(mechanism, leakage, population, noise)
        return jnp.asarray([0, 1], noise.dtype), jnp.stack([chance.spared, chance.leaked])

    def leaks(self, mechanism, leakage, population, noise, shared):
        return LeakDistribution(leaked=shared, spared=1 - shared, spread=jnp.zeros_like(shared), both=shared)

    def count_release(self, mechanism, leakage, population, noise, words):
        n = population
        u = uniform_from_bits(words[0], n.dtype)
        chance = split(mechanism, leakage, n, noise)
        leaked = with_slope_of(n * chance.leaked, jnp.where(u < chance.leaked, n, 0))
        # Leaks are at large Z: u is the probability of a greater one.
        z = -normal_from_bits(words[0], n.dtype)
        power = noise * z - noise * noise
        released = jnp.maximum(n * jnp.exp(power) + mechanism.shift * jnp.expm1(power), 0)
        return leaked, jnp.abs(released - n) / jnp.maximum(n, 1)
