"""Gaussian releases under one total budget: how much noise each accountant asks for, and what is really spent.

L releases with the same noise relative to their sensitivity, σ_l² = κ_L Δ_l²: an accountant enters every later
formula through κ_L alone.
"""

import enum

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from perfjax._check import as_choice, in_range
from perfjax._square_root import square_root
from perfjax.accounting._arguments import as_same_shape
from perfjax.accounting._roots import increasing_root
from perfjax.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from perfjax.accounting.noise import mu_from_noise
from perfjax.accounting.renyi import renyi_divergence
from perfjax.accounting.zcdp import zcdp_rho

__all__ = [
    "ACCOUNTANTS",
    "ClassicValidity",
    "best_renyi_order",
    "classic_delta",
    "classic_epsilon_limit",
    "classic_validity",
    "effective_epsilon",
    "kappa",
]

ACCOUNTANTS = ("basic", "zcdp", "rdp", "gdp", "basic-analytic")


class ClassicValidity(enum.IntEnum):
    """Whether the classic Gaussian calibration keeps its promise."""

    PROVEN = 0
    NUMERICALLY_VALID = 1
    VIOLATED = 2

    @property
    def meaning(self) -> str:
        """In words."""
        return _MEANING[self]


_MEANING = {
    ClassicValidity.PROVEN: "proven: epsilon of one release is below 1",
    ClassicValidity.NUMERICALLY_VALID: "not covered by the theorem (epsilon of one release is 1 or more), but valid",
    ClassicValidity.VIOLATED: "violated: the true delta of one release is above the claimed one",
}


def kappa(
    *,
    releases: ArrayLike,
    epsilon: ArrayLike,
    delta: ArrayLike,
    accountant: str,
    order: ArrayLike | None = None,
) -> Float[Array, "..."]:
    """The noise variance of each of L releases in units of its squared sensitivity, κ_L = σ_l²/Δ_l².

    | accountant | κ_L | |
    | --- | --- | --- |
    | "basic" | 2 log(1.25 L/δ) L²/ε² | classic Gaussian at (ε/L, δ/L); see `classic_validity` |
    | "zcdp" | L/(2ρ) | ρ by the classic conversion |
    | "rdp" | α L/(2 (ε - log(1/δ)/(α - 1))) | one order α, classic conversion |
    | "gdp" | L/μ² | exact composition: the least that is valid |
    | "basic-analytic" | 1/μ(ε/L, δ/L)² | basic composition of analytic Gaussians |

    Args:
        releases: L in [1, ∞).
        epsilon: ε in (0, ∞), of all releases together.
        delta: δ in (0, 1), of all releases together.
        accountant: one of `ACCOUNTANTS`.
        order: α in (1, ∞), for "rdp" only; at `best_renyi_order` the result is that of "zcdp".

    Returns:
        κ_L in (0, ∞]; infinite (with a zero gradient) where the order α certifies (ε, δ) at no finite noise.

    Raises:
        ValueError: if an argument is out of range, the accountant is unknown, or `order` is missing or unused.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", eq (3) and Section V, which has
        "basic", "zcdp" and "rdp" at order 64; the conversions it does not state are the classic ones. The last
        two: ours.

    Example:
        >>> print(f"{kappa(releases=2, epsilon=1.0, delta=1e-5, accountant='basic'):.4f}")
        99.4337
        >>> print(f"{kappa(releases=2, epsilon=1.0, delta=1e-5, accountant='gdp'):.4f}")
        27.8352
    """
    as_choice(accountant, "accountant", ACCOUNTANTS)
    if (accountant == "rdp") != (order is not None):
        raise ValueError(f'Argument `order` must be given for accountant "rdp" and no other, but is {order}.')
    releases, epsilon, delta, order = as_same_shape(
        releases=releases, epsilon=epsilon, delta=delta, order=2.0 if order is None else order
    )
    releases = in_range(releases, "releases", 1.0, open_high=True)
    epsilon, delta = _budget(epsilon, delta)
    if accountant == "basic":
        return 2 * jnp.log(1.25 * releases / delta) * (releases / epsilon) ** 2
    if accountant == "zcdp":
        return releases / (2 * zcdp_rho(epsilon=epsilon, delta=delta, conversion="classic"))
    if accountant == "rdp":
        order = in_range(order, "order", 1.0, open_low=True, open_high=True)
        spent = renyi_divergence(orders=order, epsilon=epsilon, delta=delta, conversion="classic")
        return jnp.where(spent > 0, order * releases / (2 * jnp.where(spent > 0, spent, 1)), jnp.inf)
    if accountant == "gdp":
        return releases / gaussian_mu(epsilon=epsilon, delta=delta) ** 2
    return gaussian_mu(epsilon=epsilon / releases, delta=delta / releases) ** -2


def best_renyi_order(*, epsilon: ArrayLike, delta: ArrayLike) -> Float[Array, "..."]:
    """The order at which a Rényi accountant needs the least noise, α = 1 + √(log(1/δ)/ρ), ρ the zCDP parameter.

    Args:
        epsilon: ε in (0, ∞).
        delta: δ in (0, 1).

    Returns:
        α in (1, ∞).

    Raises:
        ValueError: if an argument is out of range.

    Source: ours: the minimum over α of α/(ε - log(1/δ)/(α - 1)).

    Example:
        >>> print(f"{best_renyi_order(epsilon=1.0, delta=1e-5):.4f}")
        24.5154
    """
    epsilon, delta = as_same_shape(epsilon=epsilon, delta=delta)
    epsilon, delta = _budget(epsilon, delta)
    return 1 + jnp.sqrt(-jnp.log(delta) / zcdp_rho(epsilon=epsilon, delta=delta, conversion="classic"))


def classic_delta(*, epsilon: ArrayLike, delta: ArrayLike) -> Float[Array, "..."]:
    """The exact δ of a Gaussian release with the classic variance 2 log(1.25/δ) Δ²/ε².

    Args:
        epsilon: ε in (0, ∞), of this release.
        delta: δ in (0, 1), claimed for this release.

    Returns:
        δ in [0, 1]; above `delta` where the classic calibration fails.

    Raises:
        ValueError: if an argument is out of range.

    Source: Balle, Wang, "Improving the Gaussian Mechanism", Theorem 8, at the classic noise.
    """
    epsilon, delta = as_same_shape(epsilon=epsilon, delta=delta)
    epsilon, delta = _budget(epsilon, delta)
    return gaussian_delta(epsilon=epsilon, mu=epsilon / _classic_scale(delta))


def classic_validity(*, epsilon: ArrayLike, delta: ArrayLike) -> Int[Array, "..."]:
    """Whether the classic Gaussian calibration of one release at (ε, δ) is proven, merely valid, or violated.

    For the accountant "basic" of `kappa` ask at (ε/L, δ/L). The transcript as a whole may meet its (ε, δ) even
    though a release misses its own: see `effective_epsilon`.

    Args:
        epsilon: ε in (0, ∞), of one release.
        delta: δ in (0, 1), claimed for it.

    Returns:
        `ClassicValidity`, as an integer.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours. "Reconstruction Limits for Repeated Differentially Private Aggregates", eq (3), states no
        condition; the theorem behind it (Dwork, Roth, "The Algorithmic Foundations of
        Differential Privacy", Theorem A.1) needs ε < 1.

    Example:
        >>> ClassicValidity(int(classic_validity(epsilon=10.0, delta=5e-6))).name
        'VIOLATED'
    """
    epsilon, delta = as_same_shape(epsilon=epsilon, delta=delta)
    unproven = jnp.where(
        classic_delta(epsilon=epsilon, delta=delta) <= delta,
        ClassicValidity.NUMERICALLY_VALID,
        ClassicValidity.VIOLATED,
    )
    return jnp.where(epsilon < 1, ClassicValidity.PROVEN, unproven)


def classic_epsilon_limit(delta: ArrayLike) -> Float[Array, "..."]:
    """The ε above which the classic Gaussian calibration violates (ε, δ)-DP.

    Args:
        delta: δ in (0, 1), claimed for one release.

    Returns:
        ε in (1, ∞): the root of `classic_delta` = δ.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours.

    Example:
        >>> print(f"{classic_epsilon_limit(1e-5):.4f}")
        8.4198
    """
    (delta,) = as_same_shape(delta=delta)
    delta = in_range(delta, "delta", 0.0, 1.0, open_low=True, open_high=True)
    start = jnp.zeros_like(delta)
    return jnp.exp(increasing_root(_excess_delta, start, jnp.full_like(delta, jnp.inf), (delta,)))


def effective_epsilon(*, kappa: ArrayLike, delta: ArrayLike, joint_sensitivity: ArrayLike) -> Float[Array, "..."]:
    """The ε that a transcript of Gaussian releases really spends at δ, by exact composition.

    One record moves the whitened transcript by at most √(S/κ), so that it is √(S/κ)-Gaussian DP.

    Args:
        kappa: κ in (0, ∞], noise variance over squared sensitivity of each release.
        delta: δ in (0, 1), of all releases together.
        joint_sensitivity: S in [0, ∞): the largest Σ_l (change of release l)²/Δ_l² that replacing one record
            makes. L whenever nothing better is known; the number of releases that hold the record, for means.

    Returns:
        ε in [0, ∞).

    Raises:
        ValueError: if an argument is out of range.

    Source: ours. "Reconstruction Limits for Repeated Differentially Private Aggregates" does not say that basic
        composition leaves most of its budget unspent.

    Example:
        >>> noise = kappa(releases=40, epsilon=1.0, delta=1e-5, accountant="basic")
        >>> print(f"{effective_epsilon(kappa=noise, delta=1e-5, joint_sensitivity=40):.5f}")
        0.08642
    """
    kappa, delta, joint_sensitivity = as_same_shape(kappa=kappa, delta=delta, joint_sensitivity=joint_sensitivity)
    kappa = in_range(kappa, "kappa", 0.0, open_low=True)
    delta = in_range(delta, "delta", 0.0, 1.0, open_low=True, open_high=True)
    joint_sensitivity = in_range(joint_sensitivity, "joint_sensitivity", 0.0, open_high=True)
    return gaussian_epsilon(
        delta=delta, mu=mu_from_noise(noise_std=square_root(kappa), sensitivity=square_root(joint_sensitivity))
    )


def _budget(epsilon, delta):
    epsilon = in_range(epsilon, "epsilon", 0.0, open_low=True, open_high=True)
    return epsilon, in_range(delta, "delta", 0.0, 1.0, open_low=True, open_high=True)


def _classic_scale(delta):
    """σ ε/Δ of the classic calibration."""
    return jnp.sqrt(2 * jnp.log(1.25 / delta))


def _excess_delta(log_epsilon, delta):
    """log of the true δ over the claimed one; increases with ε."""
    epsilon = jnp.exp(log_epsilon)
    return jnp.log(gaussian_delta(epsilon=epsilon, mu=epsilon / _classic_scale(delta))) - jnp.log(delta)
