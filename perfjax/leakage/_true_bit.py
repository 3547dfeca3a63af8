"""Leaked when randomized response keeps the true bit."""

from typing import ClassVar

import jax
from jaxtyping import Array, Bool, Float

from perfjax.leakage._pairs import SPLITS, AbstractLeakage, Split
from perfjax.mechanisms import RandomizedResponse

__all__ = ["TrueBitKept"]


class TrueBitKept(AbstractLeakage):
    """A user is leaked when the released bit is their true one: p = 1/2 + beta = 1 / (1 + exp(-epsilon)), whatever n.

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility", section 3.
    """

    independent: ClassVar[bool] = True

    @property
    def copies(self) -> int:
        return 1

    def released_noise(self, noise: Float[Array, "..."]) -> Float[Array, "..."]:
        return noise

    def exposes(self, population: Float[Array, ""], noise_free: Bool[Array, ""]) -> Bool[Array, ""]:
        return noise_free


@SPLITS.enter(RandomizedResponse, TrueBitKept)
def _randomized_response(mechanism, leakage, population, noise) -> Split:
    del mechanism, leakage, population
    return Split(leaked=jax.nn.sigmoid(noise), kept=jax.nn.sigmoid(-noise))
