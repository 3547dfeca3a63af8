"""Nonlinear least squares in a box, from many starts at once."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from perfjax._linear import product

__all__ = ["closest"]

STEPS = 80


def closest(
    residual: Callable[[Float[Array, " m"]], Float[Array, " rows"]],
    starts: Float[Array, "starts m"],
    low: Float[Array, " m"],
    high: Float[Array, " m"],
) -> tuple[Float[Array, " m"], Float[Array, ""]]:
    """The point between `low` and `high` with the least sum of squared residuals, and that sum; differentiable.

    Levenberg-Marquardt, projected: a coordinate at an end that the slope pushes outwards stays there.
    """

    def cost(u):
        return jnp.sum(residual(u) ** 2)

    def step(_, state):
        u, damping, least = state
        slopes = jax.jacfwd(residual)(u)
        gradient = product(slopes.T, residual(u))
        held = ((u <= low) & (gradient > 0)) | ((u >= high) & (gradient < 0))
        free = jnp.where(held, 0, slopes)
        square = product(free.T, free)
        size = jnp.maximum(jnp.max(jnp.diagonal(square)), jnp.finfo(u.dtype).tiny)
        square = square + jnp.diag(jnp.where(held, size, damping * size))
        trial = jnp.clip(u - jnp.linalg.solve(square, jnp.where(held, 0, gradient)), low, high)
        found = cost(trial)
        better = found < least
        damping = jnp.clip(jnp.where(better, damping / 5, damping * 4), jnp.finfo(u.dtype).eps, 1e6)
        return jnp.where(better, trial, u), damping, jnp.where(better, found, least)

    def one(start):
        u, _, least = jax.lax.fori_loop(0, STEPS, step, (start, jnp.asarray(1e-2, start.dtype), cost(start)))
        return u, least

    points, costs = jax.vmap(one)(starts)
    point = _followed(cost, jax.lax.stop_gradient(points[jnp.argmin(costs)]), low, high)
    return point, cost(point)


def _followed(cost, point, low, high):
    """`point`, with the derivatives of a minimum: what is at an end moves with it, the rest by a Newton step."""
    slope, curvature = jax.grad(cost), jax.lax.stop_gradient(jax.hessian(cost)(point))
    at_low, at_high = point <= low, point >= high
    held = at_low | at_high
    point = jnp.where(at_low, low, jnp.where(at_high, high, point))
    free = ~held[:, None] & ~held
    size = jnp.maximum(jnp.max(jnp.abs(curvature)), jnp.finfo(point.dtype).tiny)
    curvature = jnp.where(free, curvature, size * jnp.eye(point.size, dtype=point.dtype))
    move = jnp.linalg.solve(curvature, jnp.where(held, 0, slope(point)))
    move = move - jax.lax.stop_gradient(move)  # 0, unless the minimum is no point
    return point - jnp.where(jnp.isfinite(move), move, 0)
