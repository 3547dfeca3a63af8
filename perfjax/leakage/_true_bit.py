"""Leaked when randomized response keeps the true bit."""

import jax

from perfjax.leakage._pairs import SPLITS, AbstractLeakage, Split
from perfjax.mechanisms import RandomizedResponse

__all__ = ["TrueBitKept"]


class TrueBitKept(AbstractLeakage):
    """A user is leaked when the released bit is their true one: p = 1/2 + beta = 1 / (1 + exp(-epsilon)), whatever n.

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility", section 3.
    """


@SPLITS.enter(RandomizedResponse, TrueBitKept)
def _randomized_response(mechanism, leakage, population, noise) -> Split:
    del mechanism, leakage, population
    return Split(leaked=jax.nn.sigmoid(noise), kept=jax.nn.sigmoid(-noise))
