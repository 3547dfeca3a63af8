"""The shifted log-Gaussian mechanism: a count n is released as (n + c) exp(sigma Z - sigma^2) - c, clipped at 0."""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf, erfinv, log_ndtr, ndtr
from jaxtyping import Array, ArrayLike, Float

from perfjax import _check
from perfjax._check import Numbers
from perfjax._square_root import square_root
from perfjax.accounting._roots import increasing_root
from perfjax.count_privacy._arguments import check_ranges
from perfjax.count_privacy._exact import Arithmetic
from perfjax.count_privacy._release import AbstractCountRelease, log_bounds

__all__ = [
    "LogGaussian",
    "clip_aware_sigma",
    "clipped_error",
    "clipped_mean",
    "clipping_point",
    "drift_error",
    "edge_budget",
    "edge_mu",
    "edge_renyi",
    "error_of_count",
    "log_gaussian_sigma",
    "mu_of_count",
    "path_budget",
    "probability_of_zero",
]

BINDING = 1000  # counts among which the one that limits sigma lies; beyond, clipping gains less than rounding


class LogGaussian(AbstractCountRelease):
    """[(n + c) exp(sigma Z - sigma^2) - c]_+, Z ~ N(0, 1): the paper's mechanism.

    The error and the budget are those of `clipped_error` and `edge_budget`.

    Attributes:
        sigma: the standard deviation of the noise on log(n + c), above 0.
        shift: c, in counts, above 0. Less protects small groups less and large ones more.

    Source: "Better Privacy Guarantees for Larger Groups", equation 4.

    Example:
        >>> mechanism = LogGaussian.from_tolerance(0.1, 1.0)
        >>> print(f"{mechanism.error(10.0):.2f} {mechanism.budget(10.0):.4f}")
        0.55 1.1551
    """

    exactly_gaussian: ClassVar[bool] = True
    noise: ClassVar[str] = "normal"

    sigma: Float[Array, ""]
    shift: Float[Array, ""]

    def __init__(self, sigma: Numbers, shift: Numbers):
        self.sigma, self.shift = check_ranges(sigma=sigma, shift=shift)

    @classmethod
    def from_tolerance(cls, relative_error: Numbers, shift: Numbers) -> "LogGaussian":
        """The mechanism with an error below r max(n, 1) at every n (before clipping: equal to r at n = 1).

        Args:
            relative_error: r, in (0, 1).
            shift: c, above 0.

        Raises:
            ValueError: if an argument is out of range.
        """
        return cls(log_gaussian_sigma(relative_error, shift), *_check.as_floats(shift=shift))

    def error(self, count: Numbers) -> Float[Array, "..."]:
        return clipped_error(count, self.sigma, self.shift)

    def budget(self, count: Numbers) -> Float[Array, "..."]:
        return edge_budget(count, self.sigma, self.shift)

    def released(self, count: ArrayLike, normal: ArrayLike) -> Float[Array, "..."]:
        # Not with expm1, which costs as much as all the rest: what cancels is far below the noise.
        return jnp.maximum((count + self.shift) * jnp.exp(self.sigma * normal - self.sigma**2) - self.shift, 0)

    def bounds(self, count: np.ndarray, noise: np.ndarray, arithmetic: Arithmetic) -> tuple[np.ndarray, np.ndarray]:
        return log_bounds(count, noise, self.sigma, self.shift, None, arithmetic)


def log_gaussian_sigma(relative_error: Numbers, shift: Numbers) -> Float[Array, "..."]:
    """The noise with which the error before clipping is r0 max(n, 1) at most: sigma = sqrt(2) erfinv(r0 / (1 + c)).

    The error is (n + c) r0 / (1 + c): r0 at n = 1, and only a share 1 / (1 + c) of what is allowed at large n.

    Args:
        relative_error: r0, in (0, 1).
        shift: c, in counts, above 0.

    Returns:
        sigma, the standard deviation of the noise on log(n + c).

    Raises:
        ValueError: if an argument is out of range.

    Source: "Better Privacy Guarantees for Larger Groups", equation 3; the inverse error function keeps the digits that
        a quantile near 1/2 loses.

    Example:
        >>> print(f"{log_gaussian_sigma(0.25, 1.0):.6f}")
        0.157311
    """
    relative_error, shift = check_ranges(relative_error=relative_error, shift=shift)
    return math.sqrt(2) * erfinv(relative_error / (1 + shift))


def drift_error(sigma: Numbers, drift: Numbers) -> Float[Array, "..."]:
    """E|exp(sigma Z - A) - 1|, the relative error of n + c before clipping, for any drift A.

    2 Phi(A / sigma) - 1 + exp(sigma^2 / 2 - A) (1 - 2 Phi(A / sigma - sigma)), least at A = sigma^2, where it is
    2 Phi(sigma) - 1.

    Args:
        sigma: above 0.
        drift: A, any number.

    Returns:
        The mean absolute error.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Better Privacy Guarantees for Larger Groups", Lemma 4.1 for A = sigma^2; any other drift is ours.
    """
    sigma, drift = check_ranges(sigma=sigma, drift=drift)
    centre = drift / sigma
    root_half = math.sqrt(0.5)
    return erf(centre * root_half) - jnp.exp(sigma**2 / 2 - drift) * erf((centre - sigma) * root_half)


def probability_of_zero(count: Numbers, sigma: Numbers, shift: Numbers) -> Float[Array, "..."]:
    """P(released = 0) = Phi(z0), z0 = sigma - log((n + c) / c) / sigma: how often clipping binds.

    Args:
        count: n, at least 0.
        sigma: above 0.
        shift: c, above 0.

    Returns:
        A probability; Phi(sigma), more than a half, for n = 0.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours; "Better Privacy Guarantees for Larger Groups" bounds the error without it.
    """
    return ndtr(clipping_point(*check_ranges(count=count, sigma=sigma, shift=shift)))


def clipping_point(count: Float[Array, "..."], sigma: Float[Array, "..."], shift: Float[Array, "..."]):
    """z0, the value of Z below which the release is clipped to 0."""
    return sigma - jnp.log1p(count / shift) / sigma


def clipped_error(count: Numbers, sigma: Numbers, shift: Numbers) -> Float[Array, "..."]:
    """E|released - n|, exactly, clipping included; rounding the release stochastically does not change it.

    (n + c) (2 Phi(sigma) - 1) - c Phi(z0) + (n + c) exp(-sigma^2 / 2) Phi(z0 - sigma), z0 as in `probability_of_zero`:
    clipping gains what a put option struck at c is worth.

    Args:
        count: n, at least 0.
        sigma: above 0.
        shift: c, above 0.

    Returns:
        The mean absolute error, in counts.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours; "Better Privacy Guarantees for Larger Groups", equation 9, has the error before clipping. Stochastic
        rounding: its section 4, for whole n.

    Example:
        >>> print(f"{clipped_error(0, log_gaussian_sigma(0.9, 1.0), 1.0):.4f}")
        0.1432
    """
    count, sigma, shift = check_ranges(count=count, sigma=sigma, shift=shift)
    return error_of_count(count, sigma, shift)


@jax.jit
def error_of_count(count, sigma, shift):
    """`clipped_error` of checked arguments, to be traced by other code."""
    return (count + shift) * erf(sigma * math.sqrt(0.5)) - shift * _gain(count, sigma, shift)


def _gain(count, sigma, shift):
    """What clipping gains, in units of c: Phi(z0) - (1 + n / c) exp(-sigma^2 / 2) Phi(z0 - sigma)."""
    z0 = clipping_point(count, sigma, shift)
    return ndtr(z0) - (1 + count / shift) * jnp.exp(-(sigma**2) / 2) * ndtr(z0 - sigma)


def clipped_mean(count: Numbers, sigma: Numbers, shift: Numbers) -> Float[Array, "..."]:
    """E[released] after clipping: (n + c) exp(-sigma^2 / 2) Phi(sigma - z0) - c Phi(-z0). Below n but for small n.

    Args:
        count: n, at least 0.
        sigma: above 0.
        shift: c, above 0.

    Returns:
        The mean, in counts.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours.
    """
    count, sigma, shift = check_ranges(count=count, sigma=sigma, shift=shift)
    before = count + (count + shift) * jnp.expm1(-(sigma**2) / 2)
    return before + shift * _gain(count, sigma, shift)


def edge_mu(count: Numbers, sigma: Numbers, shift: Numbers) -> Float[Array, "..."]:
    """mu of Gaussian differential privacy of one member of a group of n: log(1 + 1 / (n - 1 + c)) / sigma.

    Counts n and n - 1 are told apart exactly as well as N(mu, 1) and N(0, 1): `accounting.gaussian_delta` is
    the exact (epsilon, delta) profile before clipping, and `accounting.compose_mu` adds releases, also of a group
    whose count changes from one to the next. Adjacency: add-remove.

    Args:
        count: n, the larger of the two counts; 0 counts as 1.
        sigma: above 0.
        shift: c, above 0.

    Returns:
        mu, above 0. A function of the private count: who publishes it reveals n.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Better Privacy Guarantees for Larger Groups", equations 10 and 12; as Gaussian DP it is ours.
    """
    return mu_of_count(*check_ranges(count=count, sigma=sigma, shift=shift))


@jax.jit
def mu_of_count(count, sigma, shift):
    """`edge_mu` of checked arguments, to be traced by other code; groups below 1 count as 1."""
    return jnp.log1p(1 / (jnp.where(count > 1, count - 1, 0) + shift)) / sigma


def edge_budget(count: Numbers, sigma: Numbers, shift: Numbers) -> Float[Array, "..."]:
    """v(n), the zCDP budget of one member of a group of n: log^2(1 + 1 / (n - 1 + c)) / (2 sigma^2), v(0) = v(1).

    It holds at every order and in both directions, and falls like 1 / (2 sigma^2 n^2). Clipping does not reduce it.
    Releases add (`accounting.compose_rho`), also of a group whose count changes. Adjacency: add-remove.

    Args:
        count: n, the larger of the two counts.
        sigma: above 0.
        shift: c, above 0.

    Returns:
        rho, above 0. A function of the private count: who publishes it reveals n.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Better Privacy Guarantees for Larger Groups", equations 5 and 6.

    Example:
        >>> sigma = log_gaussian_sigma(0.1, 1.0)
        >>> print(f"{edge_budget(10, sigma, 1.0):.4f}")
        1.1551
    """
    return edge_mu(count, sigma, shift) ** 2 / 2


def edge_renyi(
    order: Numbers, count: Numbers, other: Numbers, sigma: Numbers, shift: Numbers, *, clipped: bool = False
) -> Float[Array, "..."]:
    """The Renyi divergence of the release of n from that of m, at one order.

    Before clipping alpha log^2((n + c) / (m + c)) / (2 sigma^2). Clipped, with u_k = log(k + c) - sigma^2 and p0, q0
    the probabilities of 0,

        exp((alpha - 1) D) = p0^alpha q0^(1 - alpha)
            + exp(alpha (alpha - 1) (u_n - u_m)^2 / (2 sigma^2)) Phi((alpha u_n + (1 - alpha) u_m - log c) / sigma).

    Args:
        order: alpha, above 1.
        count: n, at least 0.
        other: m, at least 0.
        sigma: above 0.
        shift: c, above 0.
        clipped: whether the release is clipped at 0.

    Returns:
        D_alpha, in nats.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Better Privacy Guarantees for Larger Groups", equation 12; clipped: ours.
    """
    order, n, m, sigma, shift = check_ranges(order=order, count=count, other=other, sigma=sigma, shift=shift)
    # Not a difference of logs: for neighbours that loses the digits of 1 / n.
    apart = jnp.log1p((n - m) / (m + shift)) / sigma
    bare = order * apart**2 / 2
    if not clipped:
        return bare
    z_n, z_m = clipping_point(n, sigma, shift), clipping_point(m, sigma, shift)
    atom = order * log_ndtr(z_n) + (1 - order) * log_ndtr(z_m)
    rest = (order - 1) * bare + log_ndtr(-(order * z_n + (1 - order) * z_m))
    return jnp.logaddexp(atom, rest) / (order - 1)


def path_budget(budgets: Numbers, *, axis: int = -1) -> Float[Array, "..."]:
    """The zCDP budget between two counts that are several edges apart: (sum of sqrt(v))^2 over the edges between them.

    What protects k members at once. Equal edges: k^2 v.

    Args:
        budgets: v of each edge, at least 0.
        axis: along which the edges lie.

    Returns:
        rho. Its derivative in a budget of 0 is infinite, and given as 0.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Better Privacy Guarantees for Larger Groups", Lemma 6.1, for equal edges; unequal ones by the same weak
        triangle inequality are ours. Exact for the log-Gaussian mechanism.
    """
    (budgets,) = check_ranges(count=budgets)
    return jnp.sum(square_root(budgets), axis=axis) ** 2


def clip_aware_sigma(relative_error: Numbers, shift: Numbers) -> Float[Array, "..."]:
    """The largest sigma with E|released - n| <= r max(n, 1) at every n after clipping; drift sigma^2.

    Where clipping gains nothing this is `log_gaussian_sigma`; at r = 0.9, c = 1 it allows 0.72 times the budget.

    Args:
        relative_error: r, in (0, 1).
        shift: c, above 0.

    Returns:
        sigma; the smallest of those with which count 1, 2, ... 1000 or an infinite one just meets r.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours, found numerically (n = 1 limits sigma but for small shifts); no proof that no larger one would do.

    Example:
        >>> print(f"{clip_aware_sigma(0.5, 1.0):.6f}")
        0.321105
    """
    r, c = jnp.broadcast_arrays(*check_ranges(relative_error=relative_error, shift=shift))
    return _clip_aware(r, c)


@jax.jit
def _clip_aware(r, c):
    r, c = r[..., None], c[..., None]
    n = jnp.arange(1, BINDING + 1, dtype=r.dtype)
    start = jnp.log(math.sqrt(2) * erfinv(r * n / (n + c)))  # without what clipping gains
    found = increasing_root(_excess_error, start, jnp.full_like(start, jnp.inf), (r * n, n + 0 * c, c + 0 * n))
    return jnp.minimum(jnp.exp(jnp.min(found, axis=-1)), math.sqrt(2) * erfinv(r[..., 0]))


def _excess_error(log_sigma, target, count, shift):
    return jnp.log(error_of_count(count, jnp.exp(log_sigma), shift) / target)
