"""Pseudo-inverses of whitened Jacobians with a stated rank cut: never by way of normal equations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfjax._linear import product

__all__ = ["left_inverse", "pseudo_inverse", "spanned", "transposed", "unit_columns"]

Matrix = Float[Array, "... rows columns"]


def transposed(a: Matrix) -> Float[Array, "... columns rows"]:
    """The transpose of each matrix of a batch."""
    return jnp.swapaxes(a, -2, -1)


def unit_columns(a: Matrix) -> tuple[Matrix, Float[Array, "... 1 columns"]]:
    """`a` with columns of norm 1, and their norms; a column of zeros stays, with norm 1."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(a), -2, keepdims=True, initial=0))
    filled = (largest > 0) & (largest < jnp.inf)
    scaled = a / jnp.where(filled, largest, 1)
    squares = jnp.where(filled, jnp.sum(scaled**2, -2, keepdims=True), 1)
    norms = jnp.sqrt(squares) * jnp.where(filled, largest, 1)
    return a / norms, norms


def spanned(target: Float[Array, "... rows p"], basis: Float[Array, "... rows q"]) -> Float[Array, "... q p"]:
    """The coefficients K with which the columns of `basis` come nearest to those of `target`, of least norm."""
    unit, norms = unit_columns(basis)
    cut = max(basis.shape[-2:]) * float(jnp.finfo(basis.dtype).eps)
    return product(pseudo_inverse(unit, 0.0, cut), target) / transposed(norms)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def pseudo_inverse(a: Matrix, least: float, relative: float) -> Float[Array, "... columns rows"]:
    """The pseudo-inverse of `a`, by its singular values above `least` and above `relative` times the greatest.

    The derivative is the one at constant rank.
    """
    u, s, vt = jnp.linalg.svd(a, full_matrices=False)
    kept = s > jnp.maximum(least, relative * jnp.max(s, -1, keepdims=True, initial=0))
    inverse = jnp.where(kept, 1 / jnp.where(kept, s, 1), 0)
    return product(transposed(vt) * inverse[..., None, :], transposed(u))


@pseudo_inverse.defjvp
def _pseudo_inverse_derivative(least, relative, primals, tangents):
    (a,), (da,) = primals, tangents
    p = pseudo_inverse(a, least, relative)
    pt, dat = transposed(p), transposed(da)
    left = np.eye(a.shape[-2], dtype=a.dtype) - product(a, p)
    right = np.eye(a.shape[-1], dtype=a.dtype) - product(p, a)
    curved = product(product(p, pt), product(dat, left)) + product(product(right, dat), product(pt, p))
    return p, curved - product(product(p, da), p)


@jax.custom_jvp
def left_inverse(a: Matrix) -> Float[Array, "... columns rows"]:
    """R^-1 Q^T of `a` = QR, or 0 where the columns of `a` are not independent.

    They are if, scaled to norm 1, 1/|R^-1| > max(rows, columns) ulp |R|. The smallest singular value lies between
    1/|R^-1| and sqrt(columns) times that.
    """
    rows, columns = a.shape[-2:]
    if rows < columns:
        return jnp.zeros((*a.shape[:-2], columns, rows), a.dtype)
    unit, norms = unit_columns(a)
    q, r = jnp.linalg.qr(unit)
    solvable = jnp.all(jnp.diagonal(r, axis1=-2, axis2=-1) != 0, -1)[..., None, None]
    eye = jnp.broadcast_to(jnp.eye(columns, dtype=a.dtype), r.shape)
    inverse = jax.scipy.linalg.solve_triangular(jnp.where(solvable, r, eye), eye)
    size = jnp.linalg.norm(inverse, axis=(-2, -1), keepdims=True)
    cut = max(rows, columns) * jnp.finfo(a.dtype).eps * jnp.linalg.norm(r, axis=(-2, -1), keepdims=True)
    found = product(inverse, transposed(q)) / transposed(norms)
    return jnp.where(solvable & (size * cut < 1), found, 0)


@left_inverse.defjvp
def _left_inverse_derivative(primals, tangents):
    (a,), (da,) = primals, tangents
    p = left_inverse(a)
    left = np.eye(a.shape[-2], dtype=a.dtype) - product(a, p)
    curved = product(product(p, transposed(p)), product(transposed(da), left))
    return p, curved - product(product(p, da), p)
