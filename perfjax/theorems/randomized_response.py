"""Closed forms for repeated randomized response: mechanism, estimator, and the budget a population survives.

Notation: epsilon is the local privacy budget, beta the perturbation parameter, mu the Bernoulli mean, n the
population, q = leave, r = recruit. A response is leaked when it is the true bit, with probability 1/2 + beta.
"""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from perfjax._check import as_floats, in_range
from perfjax.theorems._arguments import arguments, checked, net_leave, per_user

__all__ = [
    "critical_epsilon",
    "critical_perturbation",
    "epsilon_from_perturbation",
    "perturbation",
    "response_error",
    "response_rate",
    "unbiased_estimate",
]


def perturbation(epsilon: ArrayLike) -> Float[Array, "..."]:
    """How far the probability of a true answer lies above 1/2: beta = tanh(epsilon/2)/2.

    Exact: the likelihood ratio of the two answers, (1/2 + beta)/(1/2 - beta), is exp(epsilon) and no less, so
    the mechanism is epsilon-locally private for this budget and for no smaller one.

    Args:
        epsilon: Local budget, in [0, inf].

    Returns:
        beta in [0, 1/2]: 0 at epsilon = 0 (a fair coin), 1/2 at infinity (the true bit).

    Raises:
        ValueError: If `epsilon` is negative.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", Lemma 1, eq (2).

    Example:
        >>> round(float(perturbation(2.0)), 4)
        0.3808
    """
    (epsilon,) = arguments(epsilon=epsilon)
    return jnp.tanh(epsilon / 2) / 2


def epsilon_from_perturbation(perturbation: ArrayLike) -> Float[Array, "..."]:
    """The local budget that a perturbation parameter spends: epsilon = ln((1/2 + beta)/(1/2 - beta)).

    Exact; the inverse of the function `perturbation`. Rounding of beta limits it: near beta = 1/2 a large
    budget is not recoverable (float32 tells budgets apart up to about 16, float64 up to about 36).

    Args:
        perturbation: beta, in [0, 1/2].

    Returns:
        epsilon in [0, inf], infinite at beta = 1/2.

    Raises:
        ValueError: If `perturbation` is outside [0, 1/2].

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", eq (2) solved for epsilon.
    """
    (beta,) = arguments(perturbation=perturbation)
    return 2 * jnp.arctanh(2 * beta)


def critical_perturbation(leave: ArrayLike, recruit: ArrayLike, *, recruiters: str = "spared") -> Float[Array, "..."]:
    """The largest perturbation parameter under which the expected population does not shrink.

    beta_c = max(0, (r - q)/(2(q + r))) when spared users recruit, and r/q - 1/2 within [0, 1/2] when everyone
    does.

    Exact as a threshold (growth >= 1 if and only if beta <= beta_c) where r >= q (spared) or 2r >= q
    (everyone). Below that the 0 returned is a convention, not a threshold: even a fair coin makes the
    population shrink.

    Args:
        leave: q, probability that a leaked user leaves, in [0, 1].
        recruit: r, probability that a user recruits one, in [0, 1].
        recruiters: "spared" if only users who were not leaked recruit, "everyone" if all do.

    Returns:
        beta_c in [0, 1/2]. 1/2 where no leak makes the population shrink (q = 0, also with r = 0). Where the
        value is held at 0 or 1/2, so is its derivative at 0.

    Raises:
        ValueError: If `leave` or `recruit` is outside [0, 1], or `recruiters` is unknown.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", Theorem 1, eq (5). The everyone
        variant and q = r = 0 are not in the paper.
    """
    q, r = arguments(leave=leave, recruit=recruit)
    q = net_leave(q, r, recruiters)
    anyone = q + r > 0
    excess = (r - q) / jnp.where(anyone, q + r, 1.0)
    return jnp.where(anyone, jnp.maximum(excess, 0.0), 1.0) / 2


def critical_epsilon(leave: ArrayLike, recruit: ArrayLike, *, recruiters: str = "spared") -> Float[Array, "..."]:
    """The largest local budget under which the expected population does not shrink: max(0, ln(r/q)).

    The budget of `critical_perturbation`: the odds exp(epsilon) of a leak may not exceed the odds r : q. When
    everyone recruits the odds are r : (q - r).

    Exact as a threshold under the same conditions as `critical_perturbation`; a 0 where r < q is a
    convention.

    Args:
        leave: q, probability that a leaked user leaves, in [0, 1].
        recruit: r, probability that a user recruits one, in [0, 1].
        recruiters: "spared" if only users who were not leaked recruit, "everyone" if all do.

    Returns:
        epsilon_c in [0, inf]. Infinite where every budget is survived: q = 0 (also with r = 0), or q <= r
        when everyone recruits. Where it is 0 or infinite its derivative is returned as 0.

    Raises:
        ValueError: If `leave` or `recruit` is outside [0, 1], or `recruiters` is unknown.

    Source:
        Not in the paper: eq (5) of "Performative Privacy: When Differential Privacy Maximizes Utility"
        through eq (2).

    Example:
        >>> round(float(critical_epsilon(0.3, 0.6)), 4)
        0.6931
    """
    q, r = arguments(leave=leave, recruit=recruit)
    q = net_leave(q, r, recruiters)
    growing = (q > 0) & (r > q)
    surplus = jnp.where(growing, r - q, 0.0) / jnp.where(growing, q, 1.0)
    # log(r/q) would round the quotient first and lose what is left of a small budget
    return jnp.where(q > 0, jnp.log1p(surplus), jnp.inf)


def response_rate(mean: ArrayLike, epsilon: ArrayLike) -> Float[Array, "..."]:
    """The expected share of ones among the privatized responses: 2 beta mu + 1/2 - beta.

    Exact.

    Args:
        mean: mu, the share of ones among the true bits, in [0, 1].
        epsilon: Local budget, in [0, inf].

    Returns:
        The rate, in [1/2 - beta, 1/2 + beta].

    Raises:
        ValueError: If an argument is outside its range.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", appendix C.1.
    """
    mu, epsilon = arguments(mean=mean, epsilon=epsilon)
    return 0.5 + (mu - 0.5) * jnp.tanh(epsilon / 2)


def unbiased_estimate(rate: ArrayLike, epsilon: ArrayLike) -> Float[Array, "..."]:
    """The unbiased estimate of the mean from the observed share of ones: (rate - 1/2 + beta)/(2 beta).

    Exact: the estimate's expectation is mu. It is not confined to [0, 1]; clipping it there, as the published
    simulations do, lowers its error and makes it biased.

    Args:
        rate: Share of ones among the privatized responses, in [0, 1].
        epsilon: Local budget, in (0, inf]: at 0 the responses say nothing about the mean.

    Returns:
        The estimate, in [1/2 - 1/(4 beta), 1/2 + 1/(4 beta)].

    Raises:
        ValueError: If an argument is outside its range.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", eq (1), Lemma 10.
    """
    rate, epsilon = arguments(rate=rate, epsilon=epsilon)
    epsilon = in_range(epsilon, "epsilon", 0.0, open_low=True)
    return 0.5 + (rate - 0.5) / jnp.tanh(epsilon / 2)


def response_error(
    epsilon: ArrayLike, population: ArrayLike, mean: ArrayLike | tuple[ArrayLike, ArrayLike]
) -> Float[Array, "..."]:
    """The expected squared error of the unbiased estimate.

    (1/4 - 4 beta^2 (mu - 1/2)^2)/(4 beta^2 n), evaluated as (1/(4 sinh^2(epsilon/2)) + mu(1 - mu))/n: what
    the coin adds, plus what sampling costs without privacy.

    Exact for the estimate of `unbiased_estimate`; an upper bound for one clipped to [0, 1].

    Args:
        epsilon: Local budget, in [0, inf].
        population: n, number of responses, in [0, inf).
        mean: mu in [0, 1], or a pair (low, high) if mu is uniform on that interval; then the error is
            averaged, with E mu(1 - mu) = m(1 - m) - (high - low)^2/12 about the midpoint m.

    Returns:
        The error: infinite at epsilon = 0 or without users, mu(1 - mu)/n at epsilon = inf.

    Raises:
        ValueError: If an argument is outside its range.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", variance of eq (1); the paper
        does not write it out.
    """
    low, high = mean if isinstance(mean, tuple) else (mean, mean)
    epsilon, n, low, high = as_floats(epsilon=epsilon, population=population, low=low, high=high)
    epsilon, n = checked(epsilon, "epsilon"), checked(n, "population")
    low, high = checked(low, "mean"), checked(high, "mean")
    centre, width = (low + high) / 2, high - low
    sampling = centre * (1 - centre) - width**2 / 12
    private = epsilon > 0
    decay = jnp.where(private, epsilon, 1.0)
    coin = jnp.exp(-decay) / jnp.expm1(-decay) ** 2
    return per_user(jnp.where(private, coin, jnp.inf) + sampling, n)
