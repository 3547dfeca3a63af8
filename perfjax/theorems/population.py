"""Closed forms for how leaks move the population, and the error that follows, one round at a time.

Notation: p = leak_probability of a user at this release, q = leave, r = recruit, n = population, C = growth
factor. The leak probability and the growth factor are arguments; only the critical noise scale knows a
mechanism.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax.scipy.special import ndtri
from jaxtyping import Array, ArrayLike, Bool, Float

from perfjax._check import as_choice, as_float, in_range
from perfjax.theorems._arguments import arguments, net_leave

__all__ = [
    "ErrorBounds",
    "critical_noise_scale",
    "error_bounds",
    "expected_population",
    "growth_factor",
    "growth_is_increasing",
    "kantorovich_factor",
]


def growth_factor(
    leak_probability: ArrayLike, leave: ArrayLike, recruit: ArrayLike, *, recruiters: str = "spared"
) -> Float[Array, "..."]:
    """The expected ratio of the next population to this one.

    C = 1 + r - (q + r) p when spared users recruit, 1 + r - q p when everyone does.

    Exact as an expectation, for any dependence between users' leaks, as long as neither a floor nor a cap
    acts.

    Args:
        leak_probability: p, in [0, 1]; 1/2 + beta for randomized response, the marginal p_tau for a mean.
        leave: q, probability that a leaked user leaves, in [0, 1].
        recruit: r, probability that a user recruits one, in [0, 1].
        recruiters: "spared" if only users who were not leaked recruit, "everyone" if all do.

    Returns:
        C, between 1 - q and 1 + r when spared users recruit, 1 + r - q and 1 + r when everyone does.

    Raises:
        ValueError: If an argument is outside its range, or `recruiters` is unknown.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", eq (4), eq (13) and appendix B;
        evaluated as (1 + r)(1 - p) + (1 - q) p, which does not cancel when nearly everybody leaves.
    """
    p, q, r = arguments(leak_probability=leak_probability, leave=leave, recruit=recruit)
    spared = as_choice(recruiters, "recruiters", ("spared", "everyone")) == "spared"
    return (1 + r) * (1 - p) + (1 - q if spared else 1 - q + r) * p


def expected_population(
    population: ArrayLike,
    leak_probability: ArrayLike,
    leave: ArrayLike,
    recruit: ArrayLike,
    *,
    recruiters: str = "spared",
) -> Float[Array, "..."]:
    """The expected next population: n C, with C from `growth_factor`.

    Exact as an expectation where neither a floor nor a cap acts; the paper argues by large numbers, but it
    needs neither that nor Gaussian records. Iterating it over rounds is a mean-field approximation: p depends
    on n, and the mean of a function of n is not the function of the mean.

    Args:
        population: n, in [0, inf).
        leak_probability: p, in [0, 1].
        leave: q, probability that a leaked user leaves, in [0, 1].
        recruit: r, probability that a user recruits one, in [0, 1].
        recruiters: "spared" if only users who were not leaked recruit, "everyone" if all do.

    Returns:
        The expectation, before any floor or cap.

    Raises:
        ValueError: If an argument is outside its range, or `recruiters` is unknown.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", Lemma 2, eq (3), where
        p = 1/2 + beta, and Lemma 8, eq (12), where p is the marginal leak probability of eq (11).
    """
    n, p, q, r = arguments(population=population, leak_probability=leak_probability, leave=leave, recruit=recruit)
    return n * growth_factor(p, q, r, recruiters=recruiters)


def growth_is_increasing(growth: Float[ArrayLike, "*batch rounds"]) -> Bool[Array, "*batch"]:
    """Whether a sequence of growth factors is strictly increasing.

    The claim it tests: under the mean-field approximation, without a cap, a population that grows at every
    round grows faster at every round, because more users mean fewer leaks. A population that shrinks does the
    opposite. A statement about the expected path only; not a bound, and false for a sampled path. In floating
    point it also ends where p is too small to change 1 + r.

    Args:
        growth: C_1, C_2, ... along the last axis.

    Returns:
        True or False per sequence; True for a single round.

    Raises:
        ValueError: If `growth` is not real.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", Lemma 12. Its proof says that the
        leak probability strictly increases; it decreases, and the claim is right. C_1 > 1 alone implies C_t >
        1.
    """
    growth = as_float(growth, "growth")
    return jnp.all(growth[..., 1:] > growth[..., :-1], axis=-1)


def critical_noise_scale(
    leave: ArrayLike,
    recruit: ArrayLike,
    threshold: ArrayLike,
    *,
    clip_radius: ArrayLike,
    population: ArrayLike,
    recruiters: str = "spared",
) -> Float[Array, "..."]:
    """A noise scale from which on the expected population does not shrink.

    gamma_c = 2R sqrt(n)/(n - 1) (a + sqrt(a^2 + 2 tau))/(2 tau) with a = Phi^-1(q/(q + r)).

    Sufficient, not necessary: it is the exact threshold if every record lay at distance 2R from the mean, and
    an upper bound on the threshold of any data clipped to radius R. It concerns one release; to hold at every
    round it is taken at the smallest population allowed.

    Args:
        leave: q, probability that a leaked user leaves, in [0, 1].
        recruit: r, probability that a user recruits one, in [0, 1].
        threshold: tau, in (0, inf).
        clip_radius: R, in (0, inf]; infinite for no clipping.
        population: n, in [0, inf).
        recruiters: "spared" if only users who were not leaked recruit, "everyone" if all do (q - r for q).

    Returns:
        gamma_c, in the unit of R. 0 where no leak makes the population shrink (q = 0, also with r = 0);
        otherwise infinite for r = 0, R = inf or n <= 1. Derivatives at these edges are returned as 0, though
        the slope in q at q = 0 is infinite.

    Raises:
        ValueError: If an argument is outside its range.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", Theorem 2, with the constant of
        eq (21) where the paper writes Omega(sqrt(d)) for 2R. For a < 0 the same root is 1/(sqrt(a^2 + 2 tau)
        - a), which does not cancel. The everyone variant is ours.
    """
    q, r, tau, radius, n = arguments(
        leave=leave, recruit=recruit, threshold=threshold, clip_radius=clip_radius, population=population
    )
    tau = in_range(tau, "threshold", 0.0, open_low=True)
    q = net_leave(q, r, recruiters)
    a = _probit_of_share(q, r)
    root = jnp.sqrt(a**2 + 2 * tau)
    positive, negative = jnp.where(a < 0, 0.0, a), jnp.where(a < 0, a, 0.0)
    scaled = jnp.where(a < 0, 1 / (root - negative), (root + positive) / (2 * tau))
    attainable = (n > 1) & (r > 0) & (radius < jnp.inf)
    n, radius = jnp.where(attainable, n, 2.0), jnp.where(attainable, radius, 1.0)
    critical = 2 * radius * jnp.sqrt(n) / (n - 1) * scaled
    return jnp.where(q > 0, jnp.where(attainable, critical, jnp.inf), 0.0)


def kantorovich_factor(leave: ArrayLike, recruit: ArrayLike) -> Float[Array, "..."]:
    """How far E[1/N] can exceed 1/E[N] for one round: kappa = (2 + r - q)^2/(4(1 - q)(1 + r)).

    An upper bound for ratios N/n within [1 - q, 1 + r], reached by a ratio that takes each end with
    probability 1/2. Evaluated as 1 + (q + r)^2/(4(1 - q)(1 + r)).

    Args:
        leave: q, probability that a leaked user leaves, in [0, 1].
        recruit: r, probability that a user recruits one, in [0, 1].

    Returns:
        kappa in [1, inf]: 1 for q = r = 0; infinite at q = 1, with derivative 0 there.

    Raises:
        ValueError: If an argument is outside its range.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", below eq (22).
    """
    q, r = arguments(leave=leave, recruit=recruit)
    stays = q < 1
    spread = (q + r) ** 2 / (4 * jnp.where(stays, 1 - q, 1.0) * (1 + r))
    return jnp.where(stays, 1 + spread, jnp.inf)


class ErrorBounds(NamedTuple):
    """A lower and an upper bound on an expected error."""

    lower: Float[Array, "..."]
    upper: Float[Array, "..."]


def error_bounds(error: ArrayLike, growth: ArrayLike, leave: ArrayLike, recruit: ArrayLike) -> ErrorBounds:
    """Bounds on the expected error of the next release: error/C and kappa error/C.

    Bounds for fractional updates, where each leaked user counts 1 - q and each spared one 1 + r, so that the
    ratio of populations stays within [1 - q, 1 + r]. Not bounds for users who leave or stay as a whole: the
    ratio then lies in [0, 2], and with a floor of one participant both sides can fail. Two users, both
    leaked, q = 0.9: C n = 0.2, yet the expected inverse population is 0.995, not at least 5. Four users, all
    leaked, q = 0.2 and r = 0: it is 0.343, not at most 0.316.

    Args:
        error: (gamma^2 tr(Sigma^-1) + d)/n, the error of a release at the *present* population, in [0, inf].
        growth: C, growth factor of the present release, in [0, inf).
        leave: q, probability that a leaked user leaves, in [0, 1].
        recruit: r, probability that a spared user recruits one, in [0, 1].

    Returns:
        Lower and upper bound; the upper one is infinite at q = 1.

    Raises:
        ValueError: If an argument is outside its range.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", Theorem 3, eq (22), restricted to
        fractional updates; recruiters are the spared users.
    """
    error, growth, q, r = arguments(error=error, growth=growth, leave=leave, recruit=recruit)
    lower = jnp.where(growth > 0, error / jnp.where(growth > 0, growth, 1.0), jnp.inf)
    stays = q < 1
    upper = kantorovich_factor(jnp.where(stays, q, 0.0), r) * lower
    return ErrorBounds(lower=lower, upper=jnp.where(stays, upper, jnp.inf))


def _probit_of_share(q: Float[Array, "..."], r: Float[Array, "..."]) -> Float[Array, "..."]:
    """Phi^-1(q/(q + r)) by the smaller of the two shares (the larger rounds to 1); 0 where q or r is 0."""
    regular = (q > 0) & (r > 0)
    q, r = jnp.where(regular, q, 1.0), jnp.where(regular, r, 1.0)
    probit = ndtri(jnp.where(q > r, r, q) / (q + r))
    return jnp.where(q > r, -probit, probit)
