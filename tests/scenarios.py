"""Scenarios that several test files share, small enough for a test, and the published grid."""

from typing import Any

import numpy as np

import perfjax as pj

__all__ = ["PUBLISHED", "gaussian", "of_oracle", "published", "published_grid", "response"]

PUBLISHED = np.linspace(0.01, 0.99, 30)  # leave and recruit of the published experiments
THRESHOLDS = (0.01, 0.02, 0.05, 0.1, 0.2)


def gaussian(
    noise_scale: Any = 1.0,
    *,
    dim: int = 10,
    clip_radius: Any = None,
    mean: Any = 0.0,
    covariance: Any = 1.0,
    threshold: Any = 0.02,
    outside: str = "shared",
    leave: Any = 0.3,
    recruit: Any = 0.6,
    population: Any = 100.0,
    rounds: int = 10,
    **participation: Any,
) -> pj.Scenario:
    """Mean estimation; without clipping, and of ten rounds, unless said otherwise."""
    return pj.Scenario(
        pj.GaussianMean(noise_scale, dim=dim, clip_radius=clip_radius, mean=mean, covariance=covariance),
        pj.LikelihoodRatioAbove(threshold, outside=outside),
        pj.Participation(leave, recruit, **participation),
        population=population,
        rounds=rounds,
    )


def response(
    epsilon: Any = 1.0,
    *,
    mean: Any = (0.0, 1.0),
    clip_estimate: bool = False,
    leave: Any = 0.3,
    recruit: Any = 0.6,
    population: Any = 100.0,
    rounds: int = 50,
    **participation: Any,
) -> pj.Scenario:
    """Randomized response, of fifty rounds unless said otherwise."""
    return pj.Scenario(
        pj.RandomizedResponse(epsilon, mean, clip_estimate=clip_estimate),
        pj.TrueBitKept(),
        pj.Participation(leave, recruit, **participation),
        population=population,
        rounds=rounds,
    )


def of_oracle(inputs: dict[str, Any]) -> pj.Scenario:
    """The scenario of an oracle case, whichever mechanism it is about."""
    inputs = dict(inputs)
    if "dim" in inputs:
        return gaussian(**inputs)
    recruiters = "everyone" if inputs.pop("agnostic") else "spared"
    return response(recruiters=recruiters, **inputs)


def published(leave: Any = 0.45, recruit: Any = 0.11, threshold: Any = 0.02) -> pj.Scenario:
    """The published mean-estimation experiment at one cell of its grid."""
    return pj.preset("mean-estimation").replace(leave=leave, recruit=recruit, threshold=threshold)


def published_grid(every: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """leave, recruit and threshold of every so many of the 4500 published cells, thresholds in the outer loop."""
    threshold, leave, recruit = (
        x.ravel()[::every] for x in np.meshgrid(THRESHOLDS, PUBLISHED, PUBLISHED, indexing="ij")
    )
    return leave, recruit, threshold
