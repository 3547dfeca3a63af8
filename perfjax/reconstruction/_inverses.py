"""Pseudo-inverses of whitened Jacobians with a stated rank cut: never by way of normal equations."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from perfjax._linear import product

__all__ = [
    "left_inverse",
    "pseudo_inverse",
    "small_product",
    "solve_positive",
    "spanned",
    "transposed",
    "unit_columns",
]

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
    left = jnp.eye(a.shape[-2], dtype=a.dtype) - product(a, p)
    right = jnp.eye(a.shape[-1], dtype=a.dtype) - product(p, a)
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
    q, r = _orthogonalised(unit)
    solvable = jnp.all(jnp.diagonal(r, axis1=-2, axis2=-1) > 0, -1)[..., None, None]
    found = _back_substituted(jnp.where(solvable, r, jnp.eye(columns, dtype=a.dtype)), transposed(q))
    size, cut = (jnp.sqrt(jnp.sum(x**2, (-2, -1), keepdims=True)) for x in (found, r))
    independent = solvable & (size * cut * max(rows, columns) * jnp.finfo(a.dtype).eps < 1)
    return jnp.where(independent, found / transposed(norms), 0)


@left_inverse.defjvp
def _left_inverse_derivative(primals, tangents):
    (a,), (da,) = primals, tangents
    p = left_inverse(a)
    left = jnp.eye(a.shape[-2], dtype=a.dtype) - small_product(a, p)
    curved = small_product(small_product(p, transposed(p)), small_product(transposed(da), left))
    return p, curved - small_product(small_product(p, da), p)


def solve_positive(a: Float[Array, "n n"], b: Float[Array, "n"]) -> Float[Array, "n"]:
    """x with a x = b for a positive definite `a`, by elimination without exchanges."""

    def eliminated(system, k):
        pivot = system[k] / system[k, k]
        rest = system - system[:, k, None] * pivot
        return rest.at[k].set(pivot), None

    system, _ = jax.lax.scan(eliminated, jnp.concatenate([a, b[:, None]], 1), jnp.arange(b.shape[0]))
    return system[:, -1]


def small_product(a: Float[Array, "... i j"], b: Float[Array, "... j k"]) -> Float[Array, "... i k"]:
    """`a @ b` of many small matrices, as sums that fuse with what is around them."""
    return jnp.sum(a[..., :, :, None] * b[..., None, :, :], -2)


# LAPACK takes one small matrix of a batch after the other, and XLA cannot see into it: for many matrices of a few
# columns the two loops below are faster.


def _orthogonalised(a):
    """Q and R by Gram-Schmidt, twice over, which leaves Q orthogonal to rounding; a dependent column gives q = 0."""

    def step(q, numbered):
        k, column = numbered
        coefficients = jnp.zeros((*a.shape[:-2], a.shape[-1]), a.dtype)
        for _ in range(2):
            along = jnp.sum(q * column[..., None], -2)
            column = column - jnp.sum(q * along[..., None, :], -1)
            coefficients = coefficients + along
        norm = jnp.sqrt(jnp.sum(column**2, -1))
        unit = column / jnp.where(norm > 0, norm, 1)[..., None]
        return q.at[..., k].set(unit), coefficients.at[..., k].set(norm)

    columns = jnp.moveaxis(a, -1, 0)
    q, r = jax.lax.scan(step, jnp.zeros_like(a), (jnp.arange(a.shape[-1]), columns))
    return q, jnp.moveaxis(r, 0, -1)


def _back_substituted(r, b):
    """R^-1 b for upper triangular R."""

    def step(x, k):
        rest = b[..., k, :] - jnp.sum(r[..., k, :, None] * x, -2)
        return x.at[..., k, :].set(rest / r[..., k, k, None]), None

    x, _ = jax.lax.scan(step, jnp.zeros_like(b), jnp.arange(b.shape[-2]), reverse=True)
    return x
