"""The settings that figures share, and what was published of how they were computed."""

import jax
import numpy as np

from perfjax.files import preset
from perfjax.scenario import Scenario

__all__ = ["SEED", "cells_of", "key", "mean_estimation", "randomized_response", "simulated"]

SEED = 0  # of every figure's sampling


def cells_of(count: int) -> np.ndarray:
    """An axis of leave or recruit probabilities; the published one has 30."""
    return np.linspace(0.01, 0.99, count)


def mean_estimation(**leaves) -> Scenario:
    """The published mean estimation, with as many releases as its simulations have: 0..T-1."""
    return _one_round_less(preset("mean-estimation")).replace(**leaves)


def randomized_response(**leaves) -> Scenario:
    """The published randomized response, with as many releases as its simulations have: 0..T-1."""
    return _one_round_less(preset("randomized-response")).replace(**leaves)


def _one_round_less(scenario):
    return scenario.replace(rounds=scenario.rounds - 1)


def simulated(scenario: Scenario) -> Scenario:
    """`scenario` in single precision: far finer than sampling noise, and twice as fast to simulate."""
    return scenario.astype("float32")


def key(number: int) -> jax.Array:
    """The key of a figure's sampling."""
    return jax.random.fold_in(jax.random.key(SEED), number)
