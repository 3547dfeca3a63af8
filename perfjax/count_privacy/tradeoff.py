"""Which shift c of the log-Gaussian mechanism: groups of one member against all the others."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erfinv
from jaxtyping import Array, Float

from perfjax import _check
from perfjax._check import Numbers
from perfjax.accounting._roots import increasing_root
from perfjax.count_privacy._arguments import check_ranges

__all__ = ["best_shift", "weighted_budget"]


def weighted_budget(shift: Numbers, weights: Numbers, relative_error: Numbers) -> Float[Array, ""]:
    """sum over n of w_n v(n) for the log-Gaussian mechanism of a shift, with weights normalised to 1.

    Args:
        shift: c, above 0.
        weights: w_1 .. w_N, at least 0: how much members of groups of 1 .. N count.
        relative_error: r, in (0, 1).

    Returns:
        The mean budget.

    Raises:
        ValueError: if an argument is out of range.

    Source: budgets: "Better Privacy Guarantees for Larger Groups", equation 5; the weighing is ours.
    """
    shift, weights, r = _checked(shift, weights, relative_error)
    return jnp.exp(_log_objective(jnp.log(shift), weights, r))


def best_shift(weights: Numbers, relative_error: Numbers) -> Float[Array, ""]:
    """The shift c with the least `weighted_budget`.

    v(1) falls with c, towards 1 / (pi r^2), and every other v(n) rises with it: with weight on both there is a best c.

    Args:
        weights: w_1 .. w_N, at least 0; w_1 and one more above 0.
        relative_error: r, in (0, 1).

    Returns:
        c, differentiable in both arguments.

    Raises:
        ValueError: if an argument is out of range, or nothing weighs against groups of one, or only they weigh.

    Source: ours.

    Example:
        >>> print(f"{best_shift(jnp.ones(20), 0.25):.5f}")
        0.99693
    """
    _, weights, r = _checked(1.0, weights, relative_error)
    if _check.is_known(weights):
        known = np.asarray(weights)
        if not known[0] > 0 or not np.any(known[1:] > 0):
            raise _check.fail("weights", "be above 0 for groups of 1 and for larger ones", "one-sided: no c is best")
    return jnp.exp(_root(weights, r))


@jax.jit
def _root(weights, r):
    start = jnp.full_like(r, math.log(1e-4))
    return increasing_root(_slope, start, jnp.full_like(start, jnp.inf), (weights, r))


def _checked(shift, weights, relative_error):
    shift, weights, r = _check.as_floats(shift=shift, weights=weights, relative_error=relative_error)
    check_ranges(shift=shift, relative_error=r)
    if weights.ndim != 1 or not weights.size:
        raise _check.fail("weights", "be a list of numbers", f"of shape {weights.shape}")
    return shift, _check.in_range(weights, "weights", 0, open_high=True), r


def _log_objective(log_shift, weights, r):
    c = jnp.exp(log_shift)
    sigma = math.sqrt(2) * erfinv(r / (1 + c))
    edges = jnp.log1p(1 / (jnp.arange(weights.size, dtype=weights.dtype) + c))
    return jnp.log(jnp.sum(weights / jnp.sum(weights) * edges**2)) - 2 * jnp.log(sigma) - math.log(2)


def _slope(log_shift, weights, r):
    return jax.grad(_log_objective)(log_shift, weights, r)
