"""What a simulation and a law say about every release, in the same words."""

from typing import NamedTuple

import numpy as np

from perfjax import _check
from perfjax.law import PopulationLaw
from perfjax.trajectory import Trajectory

__all__ = ["HIGH", "LOW", "Summary", "summary"]

LOW, HIGH = 0.1, 0.9  # quantiles of the population that a summary shows


class Summary(NamedTuple):
    """Arrays by release: users on average and at two quantiles, P(collapsed by then), expected error."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    collapse_probability: np.ndarray
    expected_error: np.ndarray


def summary(result: Trajectory | PopulationLaw) -> Summary:
    """The summary of a law, or of runs (a `Trajectory` whose only batch axis is that of the trials)."""
    if isinstance(result, PopulationLaw):
        low, high = result.quantile([LOW, HIGH])
        fields = result.mean, low, high, result.collapse_probability, result.expected_error
    elif isinstance(result, Trajectory) and result.expected_error is not None and result.population.ndim == 2:
        n = np.asarray(result.population)
        low, high = np.quantile(n, [LOW, HIGH], axis=0)
        fields = n.mean(axis=0), low, high, np.mean(result.collapsed, axis=0), np.mean(result.expected_error, axis=0)
    else:
        raise _check.fail("result", "be the law or a simulation of one scenario", type(result).__name__)
    return Summary(*(np.asarray(field) for field in fields))
