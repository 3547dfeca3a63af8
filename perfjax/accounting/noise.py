"""From the noise of a release to its Gaussian-DP parameter and back, with the adjacency named."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from perfjax._check import as_choice, in_range
from perfjax.accounting._arguments import as_same_shape
from perfjax.accounting._quotient import quotient

__all__ = ["clipped_sensitivity", "mu_from_noise", "noise_from_mu"]


def clipped_sensitivity(*, clip_radius: ArrayLike, count: ArrayLike = 1.0, adjacency: str) -> Float[Array, "..."]:
    """How far one record moves the sum of clipped records over a public count.

    Δ = 2R/n for replace-one, Δ = R/n for add/remove (L2 norm).

    Args:
        clip_radius: R in [0, ∞], the largest norm of a clipped record; ∞ for no clipping.
        count: n in [1, ∞), the public number the sum is divided by; 1 for the sum itself. A *mean* whose
            divisor is the true number of records is different: adding or removing one record moves it by up
            to 2R/n, n the larger number, so use "replace-one" for it under either adjacency.
        adjacency: "replace-one" (one record changes its value, n stays) or "add-remove" (one record comes or
            goes).

    Returns:
        Δ in [0, ∞].

    Raises:
        ValueError: if an argument is out of range or the adjacency is unknown.

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility" uses 2R/n, without naming its
        adjacency (replace-one).

    Example:
        >>> print(f"{clipped_sensitivity(clip_radius=10.0, count=1000, adjacency='replace-one'):.3f}")
        0.020
    """
    as_choice(adjacency, "adjacency", ("replace-one", "add-remove"))
    clip_radius, count = as_same_shape(clip_radius=clip_radius, count=count)
    clip_radius = in_range(clip_radius, "clip_radius", 0.0)
    count = in_range(count, "count", 1.0, open_high=True)
    return clip_radius * (2 if adjacency == "replace-one" else 1) / count


def mu_from_noise(*, noise_std: ArrayLike, sensitivity: ArrayLike) -> Float[Array, "..."]:
    """The Gaussian-DP parameter of a release with Gaussian noise, μ = Δ/s.

    The adjacency of the result is that of the sensitivity.

    Args:
        noise_std: s in [0, ∞], standard deviation of the noise in each coordinate.
        sensitivity: Δ in [0, ∞], in the unit of the noise; see `clipped_sensitivity`.

    Returns:
        μ in [0, ∞]; 0 if Δ = 0, even without noise; ∞ (with a zero gradient) if s = 0 or Δ = ∞.

    Raises:
        ValueError: if an argument is out of range.

    Source: Dong, Roth, Su, "Gaussian Differential Privacy", on the Gaussian mechanism.

    Example:
        >>> float(mu_from_noise(noise_std=2.0, sensitivity=1.0))
        0.5
    """
    noise_std, sensitivity = as_same_shape(noise_std=noise_std, sensitivity=sensitivity)
    noise_std = in_range(noise_std, "noise_std", 0.0)
    sensitivity = in_range(sensitivity, "sensitivity", 0.0)
    return _ratio(sensitivity, noise_std)


def noise_from_mu(*, mu: ArrayLike, sensitivity: ArrayLike) -> Float[Array, "..."]:
    """The standard deviation of the Gaussian noise that makes a release μ-Gaussian DP, s = Δ/μ.

    Args:
        mu: μ in [0, ∞].
        sensitivity: Δ in [0, ∞], in the unit of the noise; see `clipped_sensitivity`.

    Returns:
        s in [0, ∞]; 0 if Δ = 0, else ∞ (with a zero gradient) if μ = 0 or Δ = ∞.

    Raises:
        ValueError: if an argument is out of range.

    Source: inverse of `mu_from_noise`.
    """
    mu, sensitivity = as_same_shape(mu=mu, sensitivity=sensitivity)
    return _ratio(in_range(sensitivity, "sensitivity", 0.0), in_range(mu, "mu", 0.0))


@jax.jit
def _ratio(above, below):
    unbounded = (above > 0) & ((below == 0) | jnp.isinf(above))
    ordinary = ~unbounded & (below > 0)
    ratio = quotient(jnp.where(ordinary, above, 0), jnp.where(ordinary, below, 1))
    return jnp.where(unbounded, jnp.inf, ratio)
