"""What several test files assert about numbers."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from scipy.stats import norm

__all__ = ["close", "epsilon_of", "finite", "gradient_is_central_difference", "probability"]


def close(found, expected, rtol, *, of=None):
    """Every element agrees relative to itself, however small; `of` names the cases in a failure."""
    found, expected = np.broadcast_arrays(np.asarray(found, float), np.asarray(expected, float))
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(found == expected, 0.0, np.abs(found - expected) / np.abs(expected))
    worst = np.unravel_index(np.argmax(np.where(np.isnan(error), np.inf, error)), error.shape)
    where = worst if of is None else np.asarray(of, object)[worst]
    assert error[worst] <= rtol, (
        f"relative error {error[worst]:.3g} > {rtol:g} at {where}: {found[worst]!r} against {expected[worst]!r}"
    )


def finite(*values):
    for value in jax.tree.leaves(values):
        assert np.all(np.isfinite(value)), value


def probability(value):
    """In [0, 1], and not NaN."""
    assert np.all((np.asarray(value) >= 0) & (np.asarray(value) <= 1)), value


def gradient_is_central_difference(function: Callable, *args, rtol: float, step: float = 1e-4):
    """jax.grad by each of the positive numbers `args` against a five-point difference in its logarithm."""
    args = [jnp.asarray(x, float) for x in args]
    jitted = jax.jit(function)
    gradients = jax.jit(jax.grad(function, argnums=tuple(range(len(args)))))(*args)
    for i, (x, gradient) in enumerate(zip(args, gradients, strict=True)):

        def along(power, i=i, x=x):
            return float(jitted(*args[:i], x * jnp.exp(jnp.asarray(power)), *args[i + 1 :]))

        difference = (8 * (along(step) - along(-step)) - (along(2 * step) - along(-2 * step))) / (12 * step)
        found = float(x * gradient)
        assert abs(found - difference) <= rtol * abs(difference), (
            f"derivative {i}: {found!r} against {difference!r} by differences, at {[float(y) for y in args]}"
        )


def epsilon_of(mu, delta):
    """Of Gaussian differential privacy, from its trade-off function by SciPy alone."""

    def excess(epsilon):
        lower = np.exp(epsilon + norm.logcdf(-epsilon / mu - mu / 2))
        return norm.cdf(mu / 2 - epsilon / mu) - lower - delta

    return scipy.optimize.brentq(excess, 0, 100 + mu**2 * 10, xtol=1e-12)
