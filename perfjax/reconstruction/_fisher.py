"""Fisher geometry of one transcript: what is left of the information about a target once the rest is profiled out.

A transcript y = q(x) + w, w ~ N(0, Σ), has a Jacobian by the target, θ, and one by all else, η. In units of the
noise they are T = W J_θ and H = W J_η, W'W = Σ^-1. Every decision about a rank is made on T and H with columns of
norm 1, by singular values, with the cut max(rows, columns) ulp for H and ulp^(2/3) for what H leaves of T.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from perfjax._check import Numbers, as_count, as_floats, fail, in_range, is_known
from perfjax._linear import product
from perfjax.reconstruction._inverses import pseudo_inverse, spanned, transposed, unit_columns
from perfjax.reconstruction._reasons import Reason

__all__ = [
    "contrast_bound",
    "information_gain",
    "profiled_information",
    "schur_information",
    "split_columns",
    "target_bound",
    "target_reason",
    "transcript_jacobian",
    "whitened",
]


def transcript_jacobian(
    release: Callable[[Float[Array, "..."]], Float[Array, "l"]], records: Numbers, *, covariance: Numbers
) -> Float[Array, "l columns"]:
    """The Jacobian of any differentiable releases by all records, in units of the noise.

    Args:
        release: q, from the records to the L noiseless releases.
        records: x, where the Jacobian is taken; one number or one row per record.
        covariance: Σ of the noise: one variance, one per release, or a matrix [L, L].

    Returns:
        One row per release, one column per number in the records, in the order of `records.ravel()`.

    Raises:
        ValueError: if the covariance is not positive or does not fit.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Section II-B.

    Example:
        >>> jacobian = transcript_jacobian(lambda x: jnp.stack([x.sum(), x[0]]), [1.0, 2.0], covariance=[1.0, 4.0])
        >>> print(jacobian)
        [[1.  1. ]
         [0.5 0. ]]
    """
    records, covariance = as_floats(records=records, covariance=covariance)
    jacobian = jax.jacfwd(release)(records)
    return whitened(jacobian.reshape(jacobian.shape[0], records.size), covariance)


def whitened(jacobian: Numbers, covariance: Numbers) -> Float[Array, "l columns"]:
    """Rows in units of the noise, W J with W'W = Σ^-1.

    Args:
        jacobian: J, one row per release.
        covariance: Σ: one variance, one per release, or a matrix [L, L].

    Returns:
        W J.

    Raises:
        ValueError: if the covariance is not positive or does not fit.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Section II-B. The factor there is
        the symmetric root; any other gives the same information.
    """
    jacobian, covariance = as_floats(jacobian=jacobian, covariance=covariance)
    releases = jacobian.shape[0]
    if covariance.shape not in ((), (releases,), (releases, releases)):
        raise fail(
            "covariance", f"be one variance, {releases} of them or a square matrix", f"of shape {covariance.shape}"
        )
    if covariance.ndim < 2:
        covariance = in_range(covariance, "covariance", 0.0, open_low=True)
        return jacobian / jnp.sqrt(jnp.broadcast_to(covariance, (releases,)))[:, None]
    factor = jnp.linalg.cholesky(covariance)  # NaN if it has none
    if is_known(factor) and not np.all(np.isfinite(factor)):
        raise fail("covariance", "be positive definite", covariance)
    factor = eqx.error_if(factor, ~jnp.isfinite(factor), "Argument `covariance` must be positive definite.")
    return jax.scipy.linalg.solve_triangular(factor, jacobian, lower=True)


def split_columns(
    jacobian: Numbers, target: int | list[int] | tuple[int, ...]
) -> tuple[Float[Array, "... l p"], Float[Array, "... l q"]]:
    """The columns of the target, T, and all others, H.

    Args:
        jacobian: one row per release, one column per record.
        target: the column of the target, or several.

    Returns:
        T and H.

    Raises:
        ValueError: if a column does not exist.
    """
    (jacobian,) = as_floats(jacobian=jacobian)
    columns = [as_count(column, "target", low=0) for column in ([target] if isinstance(target, int) else target)]
    if not columns or max(columns) >= jacobian.shape[-1]:
        raise fail("target", f"name columns from 0 to {jacobian.shape[-1] - 1}", target)
    others = [column for column in range(jacobian.shape[-1]) if column not in columns]
    return jacobian[..., jnp.asarray(columns)], jacobian[..., jnp.asarray(others, int)]


def profiled_information(target: Numbers, nuisance: Numbers) -> Float[Array, "... p p"]:
    """The information about the target with all else unknown, I_eff = T'(I - P)T, P the projector onto range(H).

    The same as the Schur complement A - B S^+ B' of the Fisher information, also where the nuisance block S is
    singular. Differentiable where the rank of H does not change.

    Args:
        target: T, whitened, [..., L, p].
        nuisance: H, whitened, [..., L, q]; q may be 0.

    Returns:
        I_eff. Columns of T of which H leaves less than ulp^(2/3) count as spanned: their rows and columns are 0.

    Raises:
        ValueError: if an argument is not a number.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", eq (7) and (9).

    Example:
        >>> print(f"{profiled_information([[1.0], [2.0]], [[1.0], [0.0]])[0, 0]:.3f}")
        4.000
    """
    target, nuisance = as_floats(target=target, nuisance=nuisance)
    return _profiled(target, nuisance)


def schur_information(information: Numbers, targets: int) -> Float[Array, "... p p"]:
    """I_eff = A - B S^+ B' of a full Fisher information [[A, B], [B', S]].

    For a matrix that is given as such: from a Jacobian, `profiled_information` keeps twice as many digits.

    Args:
        information: symmetric, positive semidefinite, [..., p + q, p + q].
        targets: p, the first rows and columns.

    Returns:
        I_eff.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", eq (7).
    """
    (information,) = as_floats(information=information)
    p = as_count(targets, "targets", low=1)
    a, b, s = information[..., :p, :p], information[..., :p, p:], information[..., p:, p:]
    scale = jnp.sqrt(jnp.diagonal(s, axis1=-2, axis2=-1))[..., None, :]
    scale = jnp.where(scale > 0, scale, 1)
    # Squared, the ulp of a Jacobian is what an information matrix can tell from zero.
    cut = s.shape[-1] * float(jnp.finfo(s.dtype).eps)
    inverse = pseudo_inverse(s / scale / transposed(scale), 0.0, cut) / scale / transposed(scale)
    return a - product(product(b, inverse), transposed(b))


def information_gain(
    target: Numbers, nuisance: Numbers, *, new_target: Numbers, new_nuisance: Numbers
) -> Float[Array, "... p p"]:
    """What k more releases add to the profiled information, without factorising the whole transcript anew.

    With K = H^+ T: U = G - E K, M = E S^+ E', Π the projector onto the combinations of new rows without a part
    in unexplored nuisance directions: U'Π (I + Π M Π)^-1 Π U. One row whose nuisance gradient lies outside the
    span of the old ones adds nothing: it is spent on that direction. Gains are not submodular: two rows may each
    add nothing and together something.

    Args:
        target: T, whitened, [..., L, p].
        nuisance: H, whitened, [..., L, q].
        new_target: G, whitened, [..., k, p], or [p] for one row.
        new_nuisance: E, whitened, [..., k, q], or [q] for one row.

    Returns:
        The gain, positive semidefinite, of rank at most k.

    Raises:
        ValueError: if an argument is not a number.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", eq (14), for one row and an
        invertible nuisance block; the general rule: ours.

    Example:
        >>> print(information_gain([[1.0]], [[1.0]], new_target=[1.0], new_nuisance=[0.0]))
        [[1.]]
    """
    target, nuisance, g, e = as_floats(
        target=target, nuisance=nuisance, new_target=new_target, new_nuisance=new_nuisance
    )
    return _gain(target, nuisance, jnp.atleast_2d(g), jnp.atleast_2d(e))


def contrast_bound(target: Numbers, nuisance: Numbers, contrast: Numbers) -> Float[Array, "..."]:
    """The least variance of locally unbiased estimators of c'θ: c' I_eff^+ c where c is in the range of I_eff.

    Args:
        target: T, whitened, [..., L, p].
        nuisance: H, whitened, [..., L, q]; q may be 0.
        contrast: c, [..., p].

    Returns:
        The bound; infinite, with a zero gradient, where the contrast cannot be estimated.

    Raises:
        ValueError: if an argument is not a number.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Section II-B.

    Example:
        >>> both, nothing_else = [[1.0, 1.0], [2.0, 2.0]], jnp.zeros((2, 0))
        >>> print(f"{contrast_bound(both, nothing_else, [1.0, 1.0]):.3g}")
        0.2
        >>> print(contrast_bound(both, nothing_else, [1.0, 0.0]))
        inf
    """
    target, nuisance, contrast = as_floats(target=target, nuisance=nuisance, contrast=contrast)
    return _contrasts(target, nuisance, contrast[..., None, :])[..., 0]


def target_bound(target: Numbers, nuisance: Numbers) -> Float[Array, "..."]:
    """The least Σ_j E(estimate_j - θ_j)² of locally unbiased estimators of the target, tr I_eff^-1.

    Args:
        target: T, whitened, [..., L, p].
        nuisance: H, whitened, [..., L, q]; q may be 0.

    Returns:
        The bound; infinite, with a zero gradient, where `target_reason` says why.

    Raises:
        ValueError: if an argument is not a number.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Section II-B.
    """
    target, nuisance = as_floats(target=target, nuisance=nuisance)
    each = _contrasts(target, nuisance, jnp.eye(target.shape[-1], dtype=target.dtype))
    identified = jnp.all(jnp.isfinite(each), -1)
    return jnp.where(identified, jnp.sum(jnp.where(identified[..., None], each, 0), -1), jnp.inf)


def target_reason(target: Numbers, nuisance: Numbers) -> Int[Array, "..."]:
    """Whether the target is identified, that is, rank [T H] = rank H + p, and if not, why.

    Args:
        target: T, whitened, [..., L, p].
        nuisance: H, whitened, [..., L, q]; q may be 0.

    Returns:
        `Reason`, as an integer: IDENTIFIED, NOT_RELEASED or IN_NUISANCE_SPAN.

    Raises:
        ValueError: if an argument is not a number.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Section II-B.

    Example:
        >>> Reason(int(target_reason([[1.0], [2.0]], [[2.0], [4.0]]))).name
        'IN_NUISANCE_SPAN'
    """
    target, nuisance = as_floats(target=target, nuisance=nuisance)
    return _target_reason(target, nuisance)


def _least(a):
    """What is zero, of a column of norm 1: one ulp is what is left of a spanned column, and the rest is margin."""
    return float(jnp.finfo(a.dtype).eps) ** (2 / 3)


@jax.jit
def _gain(target, nuisance, g, e):
    unit, norms = unit_columns(nuisance)
    inverse = pseudo_inverse(unit, 0.0, max(unit.shape[-2:]) * float(jnp.finfo(unit.dtype).eps))
    e = e / norms
    explored = product(e, inverse)  # E H^+
    escaping = e - product(explored, unit)
    size = jax.lax.stop_gradient(jnp.linalg.norm(e, axis=(-2, -1), keepdims=True))
    escaping = escaping / jnp.where(size > 0, size, 1)
    eye = jnp.eye(e.shape[-2], dtype=e.dtype)
    kept = eye - product(escaping, pseudo_inverse(escaping, _least(e), 0.0))
    u = product(kept, g - product(explored, target))
    spread = product(kept, explored)
    return product(transposed(u), jnp.linalg.solve(eye + product(spread, transposed(spread)), u))


@jax.jit
def _profiled(target, nuisance):
    left, norms = _unit_left_over(target, nuisance)
    left = left * norms
    return product(transposed(left), left)


@jax.jit
def _contrasts(target, nuisance, contrasts):
    left, norms = _unit_left_over(target, nuisance)
    c = contrasts / norms
    estimable = _in_row_space(jax.lax.stop_gradient(left), jax.lax.stop_gradient(c))
    weights = product(c, pseudo_inverse(left, _least(left), 0.0))
    return jnp.where(estimable, jnp.sum(jnp.where(estimable[..., None], weights, 0) ** 2, -1), jnp.inf)


@jax.jit
def _target_reason(target, nuisance):
    left, _ = _unit_left_over(target, nuisance)
    released = jnp.any(target != 0, (-2, -1))
    if left.shape[-2] < left.shape[-1]:
        full = jnp.zeros(released.shape, bool)
    else:
        full = jnp.linalg.svd(left, compute_uv=False)[..., -1] > _least(left)
    unidentified = jnp.where(released, Reason.IN_NUISANCE_SPAN, Reason.NOT_RELEASED)
    return jnp.where(full, Reason.IDENTIFIED, unidentified)


def _unit_left_over(target, nuisance):
    """What H leaves of T with columns of norm 1, and their norms."""
    unit, norms = unit_columns(target)
    left = unit
    if nuisance.shape[-1]:
        for _ in range(2):  # the second pass removes what rounding of the first left inside the span
            left = left - product(nuisance, spanned(left, nuisance))
    size = jnp.linalg.norm(jax.lax.stop_gradient(left), axis=-2, keepdims=True)
    return jnp.where(size > _least(left), left, 0), norms


def _in_row_space(a, contrasts):
    _, s, vt = jnp.linalg.svd(a, full_matrices=False)
    vt = jnp.where((s > _least(a))[..., None], vt, 0)
    beyond = contrasts - product(product(contrasts, transposed(vt)), vt)
    tolerance = float(jnp.finfo(a.dtype).eps) ** 0.5
    return jnp.linalg.norm(beyond, axis=-1) <= tolerance * jnp.linalg.norm(contrasts, axis=-1)
