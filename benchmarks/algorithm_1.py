"""Algorithm 1 of our own in plain NumPy, one round to n users of some features, all users at once."""

import math

import numpy as np

DIM, NOISE, THRESHOLD, LEAVE, RECRUIT = 12, 2.0, 0.02, 0.1, 0.1


def plain_release(rng, n, dtype, radius):
    """As it is written: both densities of every user. Returns the next population and the squared error."""
    z = rng.standard_normal((n, DIM), dtype=dtype)
    if radius is not None:
        z *= np.minimum(1, dtype(radius) / np.linalg.norm(z, axis=1, keepdims=True))
    mean, variance = z.mean(axis=0), dtype(NOISE**2 / n)
    release = mean + rng.standard_normal(DIM, dtype=dtype) * np.sqrt(variance)
    without = (n * mean - z) / dtype(n - 1)
    log_with = -np.sum((release - mean) ** 2) / (2 * variance)
    log_without = -np.sum((release - without) ** 2, axis=1) / (2 * variance)
    leaked = log_with - log_without > dtype(THRESHOLD)
    left, recruited = rng.random(n, dtype=dtype) < LEAVE, rng.random(n, dtype=dtype) < RECRUIT
    return n - np.sum(leaked & left) + np.sum(~leaked & recruited), np.sum(release**2)


def swift_release(rng, n, dtype, radius):
    """The same without the difference of squares, and without copies: what an expert would write."""
    z = rng.standard_normal((n, DIM), dtype=dtype)
    if radius is not None:
        norm = np.sqrt(np.einsum("ij,ij->i", z, z))
        z *= np.minimum(1, dtype(radius) / norm)[:, None]
    mean = z.mean(axis=0)
    noise = rng.standard_normal(DIM, dtype=dtype) * dtype(NOISE / math.sqrt(n))
    error = np.sum((mean + noise) ** 2)
    z -= mean
    square, inner = np.einsum("ij,ij->i", z, z), z @ noise
    ratio = (2 * inner + square / dtype(n - 1)) * dtype(n / (n - 1) / (2 * NOISE**2))
    leaked = ratio > dtype(THRESHOLD)
    left = np.count_nonzero(leaked & (rng.random(n, dtype=dtype) < LEAVE))
    return n - left + np.count_nonzero(~leaked & (rng.random(n, dtype=dtype) < RECRUIT)), error
