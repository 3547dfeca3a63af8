"""The many-counts converse: how much any prior on the true count says about an edge, and the prior that says most."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from perfjax import _check
from perfjax._check import Numbers
from perfjax._lbfgs import least_iterate
from perfjax.accounting._roots import increasing_root
from perfjax.count_privacy._arguments import check_count, check_ranges

__all__ = ["best_prior_bound", "best_prior_by_logits", "prior_bound"]

NODES = 1024  # of sums over counts; more counts than that are summed by every so many, with the ends corrected
OUTER = 60  # Dinkelbach steps at most; a dozen do


def prior_bound(count: Numbers, relative_error: Numbers, prior: Numbers, centre: Numbers) -> Float[Array, ""]:
    """v(n + 1) >= [H(J) - log(2 e (r (n + E J) + 1/4))]_+ / E(J - j*)^2, for a count n + J with J drawn from a prior.

    Args:
        count: n, at least 1.
        relative_error: r, in (0, 1).
        prior: P(J = 0), P(J = 1), ..., at least 0; normalised here.
        centre: j*, a whole number, at least 0.

    Returns:
        The bound; 0 where it says nothing.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Better Privacy Guarantees for Larger Groups", equation 19.
    """
    n, r, prior, centre = _check.as_floats(count=count, relative_error=relative_error, prior=prior, centre=centre)
    check_ranges(count=n, relative_error=r)
    prior = _check.in_range(prior, "prior", 0, open_high=True)
    prior = prior / jnp.sum(prior)
    return jnp.maximum(_ratio(n, r, prior, centre), 0)


def _ratio(n, r, prior, centre):
    j = jnp.arange(prior.size, dtype=prior.dtype)
    held = prior > 0
    entropy = -jnp.sum(jnp.where(held, prior * jnp.log(jnp.where(held, prior, 1)), 0))
    mean = jnp.sum(prior * j)
    spread = jnp.sum(prior * (j - centre) ** 2)
    return (entropy - jnp.log(2 * math.e * (r * (n + mean) + 0.25))) / spread


def best_prior_bound(count: Numbers, relative_error: Numbers) -> Float[Array, "..."]:
    """The greatest `prior_bound` over all priors and centres.

    For a centre j* the best prior is p_j ~ exp(-lambda (j - j*)^2 - theta j), j >= 0, with lambda the bound itself and
    theta = r / (r (n + E J) + 1/4): fixed points, found for the centre that need not be whole, and then for the whole
    numbers about it.

    Args:
        count: n, at least 1, up to 1e9.
        relative_error: r, in (0, 1).

    Returns:
        The bound; exactly 0 for r >= 1/2, where no prior says anything. Differentiable: at the best prior, the
        derivative is that of the bound with the prior held.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours; "Better Privacy Guarantees for Larger Groups" has uniform and truncated Gaussian priors.

    Example:
        >>> print(f"{best_prior_bound(100, 0.1):.4e}")
        3.6666e-04
    """
    n, r = check_ranges(count=count, relative_error=relative_error)
    return _best(*jnp.broadcast_arrays(n, r))


@jax.jit
def _best(n, r):
    vacuous = r >= 0.5
    r_ = jnp.where(vacuous, 0.25, r)
    still = jax.lax.stop_gradient((n, r_))
    loose = _solved(*still, jnp.full_like(n, jnp.nan))
    centres = jnp.maximum(jnp.floor(loose.mean)[..., None] + jnp.arange(-1, 3, dtype=n.dtype), 0)
    tight = _solved(*(jnp.broadcast_to(x[..., None], centres.shape) for x in still), centres)
    which = jnp.argmax(tight.bound, axis=-1, keepdims=True)
    best = jax.tree.map(lambda x: jax.lax.stop_gradient(jnp.take_along_axis(x, which, axis=-1)[..., 0]), tight)
    bound = (best.entropy - _log_cost(n, r_, best.mean)) / best.spread
    return jnp.where(vacuous, 0, jnp.maximum(bound, 0))


class _Prior(NamedTuple):
    """A Gibbs prior: entropy and mean of J, E(J - j*)^2, and the bound that it gives."""

    entropy: Float[Array, "..."]
    mean: Float[Array, "..."]
    spread: Float[Array, "..."]
    bound: Float[Array, "..."]


def _solved(n, r, centre) -> _Prior:
    """The best prior for a centre, NaN meaning the best one, by Dinkelbach's iteration on lambda."""

    def unfinished(state):
        rate, _, before, steps = state
        return jnp.any(jnp.abs(rate - before) > 4 * jnp.finfo(rate.dtype).eps * rate) & (steps < OUTER)

    def improve(state):
        rate, place, _, steps = state
        place = increasing_root(_off_centre, place, jnp.full_like(place, jnp.inf), (rate, n, r, centre))
        bound = _prior(place, rate, n, r, centre).bound
        return jnp.maximum(bound, rate / 8), place, rate, steps + 1

    rate = 0.06 / (1 + r * n) ** 2
    state = (rate, jnp.zeros_like(rate), jnp.zeros_like(rate), jnp.zeros((), jnp.int32))
    rate, place, *_ = jax.lax.while_loop(unfinished, improve, state)
    return _prior(place, rate, n, r, centre)


def _prior(place, rate, n, r, centre) -> _Prior:
    entropy, mean, variance = _moments(place, rate)
    spread = variance + jnp.where(jnp.isnan(centre), 0, mean - jnp.where(jnp.isnan(centre), 0, centre)) ** 2
    return _Prior(entropy, mean, spread, (entropy - _log_cost(n, r, mean)) / spread)


def _log_cost(n, r, mean):
    return jnp.log(2 * math.e * (r * (n + mean) + 0.25))


def _off_centre(place, rate, n, r, centre):
    """How far the prior's middle is from j* - theta / (2 lambda), in units of 1 / sqrt(lambda)."""
    _, mean, _ = _moments(place, rate)
    aim = jnp.where(jnp.isnan(centre), mean, jnp.where(jnp.isnan(centre), 0, centre))
    pull = r / (r * (n + mean) + 0.25)
    return place - (aim - pull / (2 * rate)) * jnp.sqrt(rate)


def _moments(place, rate):
    """Entropy, mean and variance of p_j ~ exp(-lambda (j - m)^2), j >= 0, with m = place / sqrt(lambda).

    Over more counts than nodes a sum takes every h-th one, and the Euler-Maclaurin formula the difference at j = 0.
    """
    root = jnp.sqrt(rate)
    place_, root_ = place[..., None], root[..., None]
    top = jnp.maximum(place_, 0)
    negligible = 45.0
    # Where the exponent is 45 below its greatest: m + sqrt((top - m)^2 + 45 / lambda), which cancels for m far below 0.
    below = jnp.maximum(-place_, 0)
    reach = (top + negligible / (jnp.sqrt(below**2 + negligible) + below)) / root_
    step = jnp.maximum(reach / NODES, 1)
    j = step * jnp.arange(NODES + 1, dtype=place.dtype)
    offset = j * root_ - place_
    weight = jnp.exp((top - place_) ** 2 - offset**2)
    step, first = step[..., 0], weight[..., 0]
    end, slope = (1 - step) / 2 * first, (step**2 - 1) / 12
    total = step * jnp.sum(weight, axis=-1) + end + slope * 2 * root * place * first
    mean = (step * jnp.sum(weight * j, axis=-1) + slope * first) / total
    deviation = j - mean[..., None]
    at_zero = end * mean**2 + slope * first * (2 * root * place * mean**2 - 2 * mean)
    variance = (step * jnp.sum(weight * deviation**2, axis=-1) + at_zero) / total
    scaled = rate * variance + (mean * root - place) ** 2  # lambda E(J - m)^2
    entropy = jnp.log(total) - (top[..., 0] - place) ** 2 + scaled
    return entropy, mean, variance


def best_prior_by_logits(
    count: Numbers, relative_error: Numbers, centre: int | Int[Array, ""], *, size: int = 61, steps: int = 500
) -> Float[Array, ""]:
    """The greatest `prior_bound` over priors on 0 .. size - 1 by optax on their logits: another way to the same number.

    Args:
        count: n, at least 1.
        relative_error: r, in (0, 1).
        centre: j*, a whole number, at least 0.
        size: counts that the prior may give a probability, at least 2.
        steps: of L-BFGS, at least 1.

    Returns:
        The bound of the best prior that was found, which holds whether or not another is better.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours.
    """
    n, r = check_ranges(count=count, relative_error=relative_error)
    size = _check.as_count(size, "size", low=2)
    steps = _check.as_count(steps, "steps", low=1)
    return jnp.maximum(_ascended(n, r, jnp.asarray(check_count(centre, "centre"), n.dtype), size, steps), 0)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _ascended(n, r, centre, size, steps):
    def loss(logits):
        return -_ratio(n, r, jax.nn.softmax(logits), centre)

    j = jnp.arange(size, dtype=n.dtype)
    start = -(((j - centre) / (1 + 2 * r * n)) ** 2) / 2
    return -least_iterate(loss, start, steps=steps, memory_size=40)[1]
