"""Which releases, with which share of the budget: designs that reveal as much as possible about a record, or all.

A design has G types of release: moments or threshold counts of all records, means over some of them. Type g has the
gradient a_g, by the records, of its release in units of its sensitivity. With the share b_g of a budget that adds up
(zCDP, Gaussian DP, Rényi DP of one order) the information about the records is

    I(b) = (1/κ) Σ_g b_g a_g a_gᵀ,        κ = κ_1, the noise variance of a single release over its squared sensitivity,

however often a type is repeated. An attacker wants it large and a curator small; both want to know the extremes. The
values of this module are at κ = 1: multiply by κ.
"""

import functools
import itertools
import math
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from perfjax import _check
from perfjax._check import Numbers
from perfjax._fields import Field, as_dataset
from perfjax._linear import product

if TYPE_CHECKING:
    import xarray

__all__ = ["Design", "a_optimal", "basic_optimal", "bound", "c_optimal"]

MOST_SUPPORTS = 200_000  # sets of types that basic composition compares


class Design(eqx.Module):
    """Shares of a budget, and what they give.

    Attributes:
        shares: b_g, by type of release; they add up to 1. NaN if no share identifies the target.
        value: the bound on the mean squared error, at κ = 1 unless what made it takes a κ; infinite if no share
            identifies the target.
        gap: how much less, relative to `value`, any other shares could at most have.
    """

    shares: Float[Array, "*batch types"]
    value: Float[Array, "*batch"]
    gap: Float[Array, "*batch"]

    def fields(self) -> dict[str, Field]:
        """The fields of one design, over `type`."""
        return {
            "shares": Field(self.shares, ("type",), {"units": "1"}),
            "value": Field(self.value, (), {"units": "squared units of the records, times kappa"}),
            "gap": Field(self.gap, (), {"units": "1"}),
        }

    def to_xarray(self) -> "xarray.Dataset":
        """The design as a dataset over `type`."""
        return as_dataset(self.fields())

    def __str__(self) -> str:
        if self.value.ndim:
            return f"Designs of a batch {self.value.shape}"
        listed = ", ".join(f"{x:.4g}" for x in np.asarray(self.shares))
        return f"Design: shares {listed}; bound {self.value:.6g} (at most {float(self.gap):.1e} too large)"


def bound(rows: Numbers, shares: Numbers, contrast: Numbers) -> Float[Array, ""]:
    r"""The Cramér-Rao bound on cᵀz under given shares, V = cᵀ I(b)⁺ c at κ = 1.

    By a type's share, ∂V/∂b_g = -(a_gᵀ I⁻¹ c)². With basic composition and a uniform split, put the number of releases
    of each type in place of the shares, and multiply by κ_L of all L of them.

    Args:
        rows: a_g, [G, m], in inverse units of the records.
        shares: b_g, [G], at least 0; they need not add up to 1.
        contrast: c, [m].

    Returns:
        V in [0, ∞]; infinite where cᵀz can't be estimated.

    Raises:
        ValueError: if an argument has the wrong shape or is out of range.

    Source: ours, on "Reconstruction Limits for Repeated Differentially Private Aggregates", Section II-B.

    Example:
        >>> print(f"{bound([[0.5, 0.5], [0.5, 0.0]], [0.5, 0.5], [0.0, 1.0]):.3f}")
        16.000
    """
    rows, contrast, shares = _problem(rows, contrast, shares=shares)
    return _bound(rows, _check.in_range(shares, "shares", 0, open_high=True), contrast)


def c_optimal(rows: Numbers, contrast: Numbers) -> Design:
    r"""The shares with the least bound on cᵀz, for budgets that add up.

    V = min (Σ_g |λ_g|)² over Σ_g λ_g a_g = c, with b_g proportional to |λ_g|: a linear programme. At most m types have
    a share. Types without one may be needed to tell the records apart globally, which no bound of this kind sees.

    Args:
        rows: a_g, [G, m], in inverse units of the records.
        contrast: c, [m]; the unit vector of a record for that record.

    Returns:
        `Design`, under jit and vmap too (by a callback to SciPy). The derivative of its value is that of the optimum,
        one-sided where another type is as good; that of its shares holds as long as the types that have one do not
        change.

    Raises:
        ValueError: if an argument has the wrong shape.

    Source: ours; G. Elfving, "Optimum Allocation in Linear Regression Theory", gives the form of the optimum.
        "Reconstruction Limits for Repeated Differentially Private Aggregates", Section IV, leaves it to future work.

    Example:
        >>> print(c_optimal([[0.5, 0.5], [0.5, 0.0]], [0.0, 1.0]))
        Design: shares 0.5, 0.5; bound 16 (at most 0.0e+00 too large)
    """
    rows, contrast = _problem(rows, contrast)
    return _c_optimal(rows, contrast)


def basic_optimal(rows: Numbers, contrast: Numbers, counts: Numbers = 1.0) -> Design:
    r"""The shares of ε with the least bound on cᵀz under basic composition, each release at its own fixed δ.

    L_g releases of type g share u_g of ε = Σ_g u_g, each with the classic variance 2 log(1.25/δ_l) Δ² L_g²/u_g². Then

        V = min (Σ_g |λ_g|^(2/3) L_g^(1/3))³ over Σ_g λ_g a_g = c,        u_g proportional to (λ_g² L_g)^(1/3),

    times 2 log(1.25/δ_l)/ε² in place of κ. That is concave in λ between its zeros, so the best has at most m of them
    and every such set of types is tried. Repeating a type only loses.

    Args:
        rows: a_g, [G, m], in inverse units of the records.
        contrast: c, [m].
        counts: L_g, at least 1, one for each type or for all.

    Returns:
        `Design`; its gap is 0, since nothing is left out. Differentiable as long as the types that have a share do not
        change.

    Raises:
        ValueError: if an argument has the wrong shape or is out of range, or there are too many sets of types.

    Source: ours; for an IN and an OUT mean it is the cube-root law of "Reconstruction Limits for Repeated
        Differentially Private Aggregates", Section III-E.

    Example:
        >>> print(basic_optimal([[0.5, 0.5], [0.5, 0.0]], [0.0, 1.0], [1.0, 8.0]))
        Design: shares 0.3333, 0.6667; bound 108 (at most 0.0e+00 too large)
    """
    rows, contrast, counts = _problem(rows, contrast, counts=counts)
    counts = _check.in_range(counts, "counts", 1, open_high=True)
    types, m = rows.shape
    number = sum(math.comb(types, size) for size in range(1, m + 1))
    if number > MOST_SUPPORTS:
        found = f"of {types} types for {m} records, {number} sets of them"
        raise _check.fail("rows", f"make at most {MOST_SUPPORTS} sets of types to compare", found)
    return _basic_optimal(rows, contrast, counts)


def a_optimal(rows: Numbers, *, rtol: float | None = None, max_steps: int = 100_000) -> Design:
    r"""The shares with the least bound on all records together, tr I(b)⁻¹, for budgets that add up.

    Convex in b. Shares grow in proportion to |I⁻¹ a_g| and are scaled to add up to 1, until the certificate of the
    equivalence theorem holds, max_g a_gᵀ I⁻² a_g <= (1 + rtol) tr I⁻¹.

    Args:
        rows: a_g, [G, m], in inverse units of the records.
        rtol: greatest relative gap; by default 1e-10 in float64 and 1e-4 in float32.
        max_steps: greatest number of steps; the gap says what they reached.

    Returns:
        `Design`, whose value has the derivative of the optimum. Its shares have none.

    Raises:
        ValueError: if an argument has the wrong shape or is out of range.

    Source: ours; the iteration is the classical multiplicative one (S. D. Silvey, D. M. Titterington, B. Torsney, "An
        Algorithm for Optimal Designs on a Design Space").

    Example:
        >>> import jax.numpy as jnp
        >>> print(f"{a_optimal(jnp.diag(jnp.asarray([1.0, 2.0]))).value:.3f}")
        2.250
    """
    rows, _ = _problem(rows, 0.0)
    if rtol is None:
        rtol = 1e-10 if rows.dtype == jnp.float64 else 1e-4
    gap = _check.in_range(_check.as_float(rtol, "rtol"), "rtol", 0, open_low=True, open_high=True)
    return _a_optimal(rows, gap.astype(rows.dtype), _check.as_count(max_steps, "max_steps", low=1))


def _problem(rows: Numbers, contrast: Numbers, **by_type: Numbers):
    """Rows, contrast and what belongs to types, in one dtype and of fitting shapes."""
    rows, contrast, *others = _check.as_floats(rows=rows, contrast=contrast, **by_type)
    if rows.ndim != 2 or not rows.size:
        raise _check.fail("rows", "have a row for each type of release and a column for each record", rows.shape)
    types, m = rows.shape
    if contrast.shape not in ((), (m,)):
        raise _check.fail("contrast", f"have {m} numbers, one for each column of `rows`", f"of shape {contrast.shape}")
    for name, values in zip(by_type, others, strict=True):
        if values.shape not in ((), (types,)):
            raise _check.fail(name, f"have {types} numbers, one for each row of `rows`", f"of shape {values.shape}")
    return rows, contrast, *(jnp.broadcast_to(values, types) for values in others)


@jax.jit
def _bound(rows, shares, contrast):
    """cᵀ (Aᵀ B A)⁺ c by the singular values of B^(1/2) A, and its derivatives by the formula: pinv has none there."""
    value, _ = _solved(rows, shares, contrast)
    return value


@jax.custom_jvp
def _solved(rows, shares, contrast):
    """V and x = I⁺ c; V is infinite and x 0 where c is not in the range of I."""
    root = jnp.sqrt(shares)[:, None]
    _, sizes, directions = jnp.linalg.svd(root * rows, full_matrices=False)
    cut = max(rows.shape) * jnp.finfo(rows.dtype).eps * sizes[0]
    seen = sizes > cut
    along = product(directions, contrast)
    unseen = contrast - product(directions.T, jnp.where(seen, along, 0))
    estimable = jnp.linalg.norm(unseen) <= jnp.sqrt(jnp.finfo(rows.dtype).eps) * jnp.linalg.norm(contrast)
    scaled = jnp.where(seen, along / jnp.where(seen, sizes, 1), 0)
    x = product(directions.T, jnp.where(seen, scaled / jnp.where(seen, sizes, 1), 0))
    return jnp.where(estimable, jnp.sum(scaled**2), jnp.inf), jnp.where(estimable, x, 0)


@_solved.defjvp
def _solved_jvp(primals, tangents):
    """dV = 2 xᵀ dc - xᵀ dI x, dx = I⁺ (dc - dI x): at fixed rank."""
    rows, shares, contrast = primals
    d_rows, d_shares, d_contrast = tangents
    value, x = _solved(rows, shares, contrast)
    effect = product(rows, x)  # a_gᵀ x
    d_effect = product(d_rows, x)
    d_value = 2 * jnp.sum(x * d_contrast) - jnp.sum(d_shares * effect**2) - 2 * jnp.sum(shares * effect * d_effect)
    push = product(d_rows.T, shares * effect) + product(rows.T, d_shares * effect + shares * d_effect)
    _, d_x = _solved(rows, shares, d_contrast - push)
    return (value, x), (d_value, d_x)


def _c_optimal(rows, contrast) -> Design:
    coefficients, total, lower = _elfving(rows, contrast)
    return _design(jnp.abs(coefficients), total**2, jnp.maximum(1 - (lower / total) ** 2, 0))


def _design(sizes, value, gap) -> Design:
    """A design from what its shares are proportional to."""
    found = jnp.isfinite(value)
    total = jnp.sum(sizes)
    return Design(
        jnp.where(found, sizes / jnp.where(total > 0, total, 1), jnp.nan), value, jnp.where(found, gap, jnp.inf)
    )


@jax.custom_jvp
def _elfving(rows, contrast):
    """λ with the least Σ|λ|, that sum, and a lower bound on it; the sum is infinite if there is no λ at all."""
    return _programme(rows, contrast)[:3]


@_elfving.defjvp
def _elfving_jvp(primals, tangents):
    rows, contrast = primals
    coefficients, total, lower, dual = _programme(rows, contrast)
    # The dual solution y has dΣ|λ| = yᵀ (dc - dAᵀ λ), also where fewer than m types have a share.
    push = tangents[1] - product(tangents[0].T, coefficients)
    moved = _along_support(rows, coefficients, push)
    change = jnp.where(jnp.isfinite(total), product(dual, push), 0)
    return (coefficients, total, lower), (moved, change, jnp.zeros_like(lower))


def _along_support(rows, coefficients, push):
    """The change of λ that makes Σ λ_g a_g change by `push`, among the types that have a share."""
    active = jnp.where(coefficients != 0, 1, 0).astype(rows.dtype)[:, None]
    return product(jnp.linalg.pinv(rows * active).T, push)


def _programme(rows, contrast):
    """The linear programme by SciPy: λ, Σ|λ|, a lower bound on it, and the dual solution."""
    types, m = rows.shape
    shapes = [jax.ShapeDtypeStruct(shape, rows.dtype) for shape in ((types,), (), (), (m,))]
    return jax.pure_callback(_programme_in_numpy, shapes, rows, contrast, vmap_method="sequential")


def _programme_in_numpy(rows, contrast):
    from scipy.optimize import linprog  # here, since it takes half a second to import

    a, c = np.asarray(rows, float), np.asarray(contrast, float)
    types, m = a.shape
    scale = max(np.abs(c).max(), np.finfo(float).tiny)
    found = linprog(np.ones(2 * types), A_eq=np.hstack([a.T, -a.T]), b_eq=c / scale, method="highs-ds")
    if found.status != 0:
        results = np.zeros(types), np.inf, np.inf, np.zeros(m)
    else:
        results = _polished(a, c, found.x[:types] - found.x[types:], found.eqlin.marginals)
    return tuple(np.asarray(x, rows.dtype) for x in results)


def _polished(a, c, coefficients, dual):
    """The solution to rounding on the set of types that the programme chose, which it solves to 1e-7 only."""
    active = np.abs(coefficients) > 1e-9 * np.abs(coefficients).max()
    best = np.zeros_like(coefficients)
    best[active] = np.linalg.lstsq(a[active].T, c, rcond=None)[0]
    if active.sum() == c.size:
        dual = np.linalg.lstsq(a[active], np.sign(best[active]), rcond=None)[0]
    dual = dual / max(1.0, np.abs(a @ dual).max())
    total = np.abs(best).sum()
    return best, total, min(c @ dual, total), dual


@jax.jit
def _basic_optimal(rows, contrast, counts) -> Design:
    supports = jnp.asarray(_supports(*rows.shape))
    coefficients = jax.lax.stop_gradient(_basic_solution(rows, contrast, counts, supports))
    found = jnp.any(coefficients != 0) | jnp.all(contrast == 0)
    coefficients = _followed(coefficients, rows, contrast)
    present = coefficients != 0
    # |λ|^(2/3) has an infinite derivative at 0
    weight = jnp.where(present, jnp.cbrt(jnp.where(present, coefficients, 1) ** 2 * counts), 0)
    return _design(weight, jnp.where(found, jnp.sum(weight) ** 3, jnp.inf), jnp.zeros_like(counts[0]))


def _basic_solution(rows, contrast, counts, supports):
    """λ with the least value among those with a set of `supports` for their nonzeros; 0 if none gives the contrast."""

    def one(support):
        chosen = rows * support[:, None]
        coefficients = product(jnp.linalg.pinv(chosen).T, contrast) * support
        missed = jnp.linalg.norm(product(chosen.T, coefficients) - contrast)
        meets = missed <= jnp.sqrt(jnp.finfo(rows.dtype).eps) * jnp.linalg.norm(contrast)
        value = jnp.sum(jnp.cbrt(coefficients**2 * counts))
        return jnp.where(meets, value, jnp.inf), coefficients

    values, coefficients = jax.vmap(one)(supports.astype(rows.dtype))
    best = jnp.argmin(values)
    return jnp.where(jnp.isfinite(values[best]), coefficients[best], 0)


@jax.custom_jvp
def _followed(coefficients, rows, contrast):
    """`coefficients`, with the derivatives they have while the types that have a share stay the same."""
    del rows, contrast
    return coefficients


@_followed.defjvp
def _followed_jvp(primals, tangents):
    coefficients, rows, _ = primals
    push = tangents[2] - product(tangents[1].T, coefficients)
    return coefficients, _along_support(rows, coefficients, push)


@functools.cache
def _supports(types: int, most: int) -> Bool[np.ndarray, "supports types"]:
    """Every set of at most `most` types."""
    sets = [chosen for size in range(1, most + 1) for chosen in itertools.combinations(range(types), size)]
    table = np.zeros((len(sets), types), bool)
    for number, chosen in enumerate(sets):
        table[number, list(chosen)] = True
    return table


@functools.partial(jax.jit, static_argnames="max_steps")
def _a_optimal(rows, rtol, max_steps) -> Design:
    types, m = rows.shape
    nothing = jnp.full(types, jnp.nan, rows.dtype)
    if types < m:
        return _design(nothing, jnp.asarray(jnp.inf, rows.dtype), 0)
    sizes = jnp.linalg.svd(jax.lax.stop_gradient(rows), compute_uv=False)
    full_rank = sizes[-1] > max(rows.shape) * jnp.finfo(rows.dtype).eps * sizes[0]
    rows = jnp.where(full_rank, rows, jnp.eye(types, m, dtype=rows.dtype))
    still = jax.lax.stop_gradient(rows)

    def step(state):
        count, shares, _ = state
        value, squares = _trace(still, shares)
        grown = shares * jnp.sqrt(squares)
        return count + 1, grown / jnp.sum(grown), jnp.max(squares) / value - 1

    def going(state):
        return (state[0] < max_steps) & (state[2] > rtol)

    start = 0, jnp.full(types, 1 / types, rows.dtype), jnp.asarray(jnp.inf, rows.dtype)
    _, shares, _ = jax.lax.while_loop(going, step, start)
    value, squares = _trace(rows, shares)  # the derivative of the optimum by the rows is that at fixed shares
    gap = jnp.maximum(jax.lax.stop_gradient(jnp.max(squares) / value - 1), 0)
    return _design(shares, jnp.where(full_rank, value, jnp.inf), gap)


def _trace(rows, shares):
    """tr I⁻¹ and a_gᵀ I⁻² a_g, by the triangle of B^(1/2) A."""
    triangle = jnp.linalg.qr(jnp.sqrt(shares)[:, None] * rows, mode="r")
    inverse = jax.scipy.linalg.solve_triangular(triangle, jnp.eye(rows.shape[1], dtype=rows.dtype))
    return jnp.sum(inverse**2), jnp.sum(product(rows, product(inverse, inverse.T)) ** 2, axis=-1)
