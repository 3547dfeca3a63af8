"""Draws of the parameters that a series, and a prior, leave possible."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array, Float

from perfjax.calibration._fit import Fit
from perfjax.calibration._parameters import PARAMETERS
from perfjax.calibration._search import climb, prepared

__all__ = ["posterior_draws"]

STEPS, FROM_END = 40, 240  # of every walker; and of those that start from an estimate at an end of its range
AT_END = 6.0  # of log odds
STRETCH = 2.0
FAR = 12.0  # of a log density below the greatest, where no walker starts


def posterior_draws(fitted: Fit, key: Array, count: int) -> Float[Array, "count free"]:
    """Places in proportion to likelihood times prior.

    A probability without a prior is uniform, and so is, over the thresholds searched, the logarithm of one. Walkers
    stretch towards and away from each other, which suits straight ridges of any direction. With overdispersed counts,
    the quasi likelihood stands for the likelihood.

    Source: Goodman and Weare (2010), Ensemble samplers with affine invariance.
    """
    problem, _ = prepared(jax.tree.map(lambda x: x[None], fitted.problem))
    low, high = (np.asarray(x[0], float) for x in (problem.low, problem.high))
    odds = np.asarray([PARAMETERS[name].kind == "probability" for name in fitted.free], bool)
    told = odds & ~np.asarray([one.is_flat for one in fitted.problem.prior], bool)

    def log_density(walkers):
        """Of the walkers, whose prior is a density by log odds."""
        inside = np.all((walkers >= _walking(low, odds)) & (walkers <= _walking(high, odds)), axis=1)
        places = _places(np.where(inside[:, None], walkers, _walking(low + high, odds)), odds)
        found = climb(problem, jnp.asarray(places, fitted.places.dtype)[None], iterations=0).found.value[0]
        slopes = np.logaddexp(0, places[:, told]) + np.logaddexp(0, -places[:, told])
        return np.where(inside & ~np.isnan(found), np.asarray(found, float) + np.sum(slopes, axis=1), -np.inf)

    random = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    walkers = _walking(_about(fitted, random, 2 * max(-(-count // 2), low.size + 1), low, high), odds)
    value = log_density(walkers)
    near = value > np.max(value) - FAR
    start = np.where(near, np.arange(value.size), random.choice(np.flatnonzero(near), value.size))
    at_end = np.any(np.abs(np.asarray(fitted.places, float)[odds]) > AT_END)
    moved = _stretched(log_density, walkers[start], value[start], random, FROM_END if at_end else STEPS)
    return jnp.asarray(_places(moved[:count], odds), fitted.places.dtype)


def _stretched(log_density, walkers, value, random, steps):
    """An even number of walkers after so many steps of each, towards and away from one of the other half."""
    walkers, value = walkers.copy(), value.copy()
    halves = np.split(np.arange(value.size), 2)
    for _ in range(steps):
        for moving, still in (halves, halves[::-1]):
            towards = walkers[random.choice(still, moving.size)]
            factor = (1 + (STRETCH - 1) * random.random(moving.size)) ** 2 / STRETCH
            there = towards + factor[:, None] * (walkers[moving] - towards)
            new = log_density(there)
            gain = (walkers.shape[1] - 1) * np.log(factor) + new - value[moving]
            better = np.log(random.random(moving.size)) < gain
            walkers[moving] = np.where(better[:, None], there, walkers[moving])
            value[moving] = np.where(better, new, value[moving])
    return walkers


def _walking(places, odds):
    """Where walkers go: probabilities by themselves, in which the ridge of a known growth factor is straight."""
    return np.where(odds, scipy.special.expit(places), places)


def _places(walkers, odds):
    return np.where(odds, scipy.special.logit(np.where(odds, walkers, 0.5)), walkers)


def _about(fitted, random, count, low, high):
    """From the normal about the estimate, in the box; wide where nothing is known."""
    size, vectors = np.linalg.eigh(np.asarray(fitted.information, float))
    spread = vectors / np.sqrt(np.maximum(size, 0.1))
    return np.clip(np.asarray(fitted.places, float) + random.standard_normal((count, size.size)) @ spread.T, low, high)
