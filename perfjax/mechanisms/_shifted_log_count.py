"""The shifted log-Gaussian mechanism in the loop: the count of the present users itself."""

import math
from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

from perfjax import _check, count_privacy
from perfjax._check import Numbers
from perfjax.mechanisms._base import AbstractMechanism
from perfjax.privacy import GaussianBudget, Privacy

__all__ = ["ShiftedLogCount"]


class ShiftedLogCount(AbstractMechanism):
    r"""The number n of users, released as [(n + c) exp(sigma Z - sigma^2) - c]_+, Z ~ N(0, 1).

    The error is E|released - n| / max(n, 1), clipping included: exact, without noise 0. Its expectation hardly depends
    on n, while the privacy of a member grows with n (`count_privacy.edge_mu`): large groups protect their members, and
    so grow; small ones do not, and die out (`count_privacy.unstable_count`).

    All users of a release are leaked by it or none is: they watch the same number. Populations below 1 count as 1 for
    leaks and budgets.

    Attributes:
        sigma: the standard deviation of the noise on log(n + c), at least 0; 0 means no privacy. One value, or one per
            release.
        shift: c, in users, above 0.

    Source: "Better Privacy Guarantees for Larger Groups", equation 4; in the loop: ours.

    Example:
        >>> mechanism = ShiftedLogCount.from_tolerance(0.2, 1.0)
        >>> print(f"{mechanism.error(100.0):.4f}")
        0.1010
    """

    noise_name: ClassVar[str] = "sigma"
    noise_symbol: ClassVar[str] = "σ"
    noise_unit: ClassVar[str] = "1"
    noise_label: ClassVar[str] = "sigma"
    noise_bounds: ClassVar[tuple[float, float]] = (1e-3, 3.0)
    no_privacy: ClassVar[float] = 0.0
    more_is_private: ClassVar[bool] = True
    error_unit: ClassVar[str] = "relative error"
    meaning: ClassVar[Mapping[str, tuple[str, str]]] = {"shift": ("c", "users")}

    sigma: Float[Array, "..."]
    shift: Float[Array, ""]

    def __init__(self, sigma: Numbers, shift: Numbers):
        shift = _check.in_range(_check.as_float(shift, "shift"), "shift", 0, open_low=True, open_high=True)
        if shift.ndim:
            raise _check.fail("shift", "be one number", f"of shape {shift.shape}")
        self.sigma, self.shift = _check.one_dtype((self.check_noise(sigma), shift))

    @classmethod
    def from_tolerance(cls, relative_error: Numbers, shift: Numbers) -> "ShiftedLogCount":
        """The mechanism whose error is below r at every n (before clipping: equal to r at n = 1).

        Args:
            relative_error: r, in (0, 1): one value, or one per release.
            shift: c, in users, above 0.

        Raises:
            ValueError: if an argument is out of range.

        Source: "Better Privacy Guarantees for Larger Groups", equation 3.
        """
        return cls(count_privacy.log_gaussian_sigma(relative_error, shift), shift)

    @property
    def noise(self) -> Float[Array, "..."]:
        return self.sigma

    def check_noise(self, noise: Numbers) -> Float[Array, "..."]:
        return _check.in_range(_check.as_float(noise, "sigma"), "sigma", 0, open_high=True)

    def error(self, population: Numbers, noise: Numbers | None = None) -> Float[Array, ""]:
        population, noise = self.typed(population, noise)
        noisy = noise > 0
        infinite = jnp.isinf(population)  # what an error tends to for many users, 2 Phi(sigma) - 1
        count, sigma = jnp.where(infinite, 1, population), jnp.where(noisy, noise, 1)
        error = count_privacy.error_of_count(count, sigma, self.shift) / jnp.maximum(count, 1)
        error = jnp.where(infinite, 2 * ndtr(sigma) - 1, error)
        # Without noise there is no error; what it grows by with sigma is (n + c) E|Z|.
        slope = jnp.where(infinite, 1, (count + self.shift) / jnp.maximum(count, 1)) * math.sqrt(2 / math.pi)
        return jnp.where(noisy, error, jnp.where(noisy, 0, noise) * slope)

    def privacy(self, population: Numbers, noise: Numbers | None = None) -> Privacy:
        """The budget of a member of a group of n; nobody sends a noisy record, so that `local` is unbounded."""
        population, noise = self.typed(population, noise)
        noisy = noise > 0
        mu = count_privacy.mu_of_count(population, jnp.where(noisy, noise, 1), self.shift)
        mu = jnp.where(noisy, mu, jnp.inf)
        return Privacy(local=GaussianBudget(jnp.full_like(mu, jnp.inf)), central=GaussianBudget(mu))
