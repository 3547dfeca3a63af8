"""The leak probability of a record at a known distance from the mean, by the likelihood ratio."""

import jax.numpy as jnp
from jax.scipy.special import ndtr
from jaxtyping import Array, ArrayLike, Float

from perfjax import _check, theorems
from perfjax._square_root import square_root
from perfjax.leakage.pairs._across import across

__all__ = ["given_distance_recomputed", "leak_probability_given_distance"]


def leak_probability_given_distance(
    distance: ArrayLike,
    noise_scale: ArrayLike,
    population: ArrayLike,
    *,
    threshold: ArrayLike,
    dim: int | None = None,
    outside: str = "shared",
) -> Float[Array, "..."]:
    r"""P(Lambda > tau) for a record at a known distance from the mean of all (clipped) records.

    "shared": Phi(m/2 - tau/m), m = sqrt(n) s / ((n - 1) gamma), whatever the dimension (Lemma 7). "recomputed": with
    u ~ N(0, 1) the noise along z - mu_z, b ~ chi2_{d-1} the rest, k = s / (gamma sqrt(n)) and
    e = (d/2) ln(n / (n-1)) + s^2 / (2 (n-1) gamma^2) - tau - b / (2n), leaked when u lies between
    -2e / (k + sqrt(k^2 + 2e/n)) and n (k + sqrt(k^2 + 2e/n)); never where k^2 + 2e/n <= 0.

    Args:
        distance: s = ||z - mu_z||, in units of the records, at least 0.
        noise_scale: gamma, in units of the records, at least 0.
        population: n, at least 0.
        threshold: tau, above 0.
        dim: d; needed for "recomputed".
        outside: as in `LikelihoodRatioAbove`.

    Returns:
        A probability; 1 for n <= 1 or without noise. "recomputed" is integrated over b up to the square root's kink,
        to 1e-10 in float64.

    Raises:
        ValueError: on values out of range, or without `dim` for "recomputed".

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility", Lemma 7; "recomputed" is ours.
    """
    _check.as_choice(outside, "outside", ("shared", "recomputed"))
    if outside == "shared":
        return theorems.leak_probability_given_distance(distance, noise_scale, population, threshold=threshold)
    if dim is None:
        raise ValueError('Argument `dim` must be given with outside "recomputed".')
    dim = _check.as_count(dim, "dim", low=1)
    arguments = _check.one_dtype(
        (
            _check.in_range(_check.as_float(distance, "distance"), "distance", 0, open_high=True),
            _check.in_range(_check.as_float(noise_scale, "noise_scale"), "noise_scale", 0, open_high=True),
            _check.in_range(_check.as_float(population, "population"), "population", 0),
            _check.in_range(_check.as_float(threshold, "threshold"), "threshold", 0, open_low=True),
        )
    )

    def one(s, gamma, n, tau):
        exposed = (n <= 1) | (gamma == 0)
        p = given_distance_recomputed(s, jnp.where(gamma == 0, 1, gamma), jnp.where(n > 1, n, 2), tau, dim)
        return jnp.where(exposed, 1, p)

    return jnp.vectorize(one)(*arguments)


def given_distance_recomputed(
    distance: Float[Array, ""],
    noise: Float[Array, ""],
    population: Float[Array, ""],
    threshold: Float[Array, ""],
    dim: int,
) -> Float[Array, ""]:
    """P(Lambda > tau | distance) with the likelihood ratio recomputed, for n > 1 and noise above 0."""
    n = population
    k = distance / (noise * jnp.sqrt(n))
    # k^2 + 2e/n, which is where the square root of the docstring above begins, is (n k)^2 (1 + 1/(n-1)) less b.
    gain = dim / 2 * jnp.log1p(1 / (n - 1)) + k * k * n / (2 * (n - 1)) - threshold
    limit = n * n * k * k + 2 * n * gain
    rest, weight = across(limit, dim)
    e = gain - rest / (2 * n)
    square = k * k + 2 * e / n
    root = square_root(square)
    reach = jnp.where(square > 0, k + root, 1)
    inside = ndtr(jnp.clip(n * reach, -100, 100)) - ndtr(jnp.clip(-2 * e / reach, -100, 100))
    return jnp.sum(jnp.where(square > 0, weight * inside, 0))
