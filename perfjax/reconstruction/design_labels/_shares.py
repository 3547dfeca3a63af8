"""Shares of the budget that also tell whose record is whose."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array, DTypeLike, Float

from perfjax import _check
from perfjax._check import Numbers
from perfjax._lbfgs import least_iterate
from perfjax._linear import product
from perfjax._square_root import square_root
from perfjax.reconstruction.design import Design, bound
from perfjax.reconstruction.design_labels._separation import swap_moves
from perfjax.reconstruction.design_labels._transcript import HybridTranscript, as_arguments

__all__ = ["label_risk", "least_label_risk", "minimal_shares", "separated_optimal"]


def label_risk(
    transcript: HybridTranscript, records: Numbers, shares: Numbers, *, target: int, kappa: Numbers
) -> Float[Array, ""]:
    """A smooth stand-in for an attacker's squared error that counts wrong labels: κ V_j + Σ_k Q(d_k/2) (z_k - z_j)².

    V_j is the local bound of `design.bound`, Q(d_k/2) the probability of taking the swap with record k for the truth.
    Optimistic, since d_k is an upper bound on how well the two are told apart.

    Args:
        transcript: what is released.
        records: z, [m], in [-R, R].
        shares: b_g, [G], at least 0.
        target: j, the place of the target among the records, from 0.
        kappa: κ_1 > 0, as in `swap_separations`.

    Returns:
        The risk, in squared units of the records; infinite where the target can't be estimated.

    Raises:
        ValueError: if an argument has the wrong shape or is out of range.

    Source: ours.
    """
    records, shares, target, kappa = as_arguments(transcript, records, shares, target, kappa)
    return _label_risk(transcript, records, shares, target, kappa)


def least_label_risk(
    transcript: HybridTranscript, records: Numbers, *, target: int, kappa: Numbers, steps: int = 300
) -> Design:
    """The shares with the least `label_risk`, by `minimal_shares`.

    Args:
        transcript: what is released.
        records: z, [m], in [-R, R].
        target: j, the place of the target among the records, from 0.
        kappa: κ_1 > 0, as in `swap_separations`.
        steps: of each start.

    Returns:
        `Design` whose value is the risk at this kappa, and whose gap bounds what any other shares could gain: the risk
        is convex, since V_j is convex in the shares, Q(√y/2) in y, and y = d_k² linear in the shares.

    Raises:
        ValueError: if an argument has the wrong shape or is out of range.

    Source: ours.
    """
    equal = np.full(transcript.types, 1 / transcript.types)
    records, _, target, kappa = as_arguments(transcript, records, equal, target, kappa)
    risk = functools.partial(_label_risk, transcript, records, target=target, kappa=kappa)
    return minimal_shares(lambda shares: risk(shares=shares), transcript.types, steps=steps, dtype=records.dtype)


def separated_optimal(
    transcript: HybridTranscript, records: Numbers, *, target: int, kappa: Numbers, separation: Numbers
) -> Design:
    """The shares with the least bound on the target among those that separate it from every swap by `separation`.

    Convex, since d_k² is linear in the shares. Not to be traced: it is solved by SciPy.

    Args:
        transcript: what is released.
        records: z, [m], in [-R, R].
        target: j, the place of the target among the records, from 0.
        kappa: κ_1 > 0, as in `swap_separations`.
        separation: least d_k, at least 0.

    Returns:
        `Design`, whose value is κ V_j; infinite, with shares NaN, if no shares separate so far. Its gap is that of the
        best shift of budget to first order, which bounds what any shares could gain.

    Raises:
        ValueError: if an argument has the wrong shape, is out of range, or is traced.

    Source: ours.
    """
    equal = np.full(transcript.types, 1 / transcript.types)
    records, _, target, kappa = as_arguments(transcript, records, equal, target, kappa)
    separation = _check.in_range(_check.as_float(separation, "separation"), "separation", 0, open_high=True)
    if not _check.is_known(records, kappa, separation, *jax.tree.leaves(transcript)):
        raise _check.fail("records", "be known here, like all arguments", "traced")
    squares = np.delete(np.asarray(swap_moves(transcript, records, target) / kappa, float), target, axis=0)
    rows = np.asarray(transcript.rows(records), float)
    shares, value, gap = _separated(rows, squares, np.eye(records.size)[target], float(separation) ** 2)
    return Design(*(jnp.asarray(x, records.dtype) for x in (shares, value * float(kappa), gap)))


def _others(records, target):
    return jnp.where(jnp.arange(records.size) == target, 0, 1).astype(records.dtype)


def _label_risk(transcript, records, shares, target, kappa):
    others = _others(records, target)
    squares = product(swap_moves(transcript, records, target), shares) / kappa
    wrong = ndtr(-square_root(squares) / 2) * others
    local = bound(jax.jacfwd(transcript.values)(records), shares, 1 - others)
    return kappa * local + jnp.sum(wrong * (records - records[target]) ** 2)


def minimal_shares(
    objective: Callable[[Float[Array, " types"]], Float[Array, ""]],
    types: int,
    *,
    steps: int = 300,
    dtype: DTypeLike | None = None,
) -> Design:
    """The shares with the least value of any smooth positive objective, by gradients.

    L-BFGS on logits whose softmax the shares are, from equal shares and from most of the budget on each type. A barrier
    keeps every share above 0: to the log of the objective comes a multiple of -Σ_g log(b_g)/G, so small that the value
    rises by 4e-11 of itself in float64 and 2e-5 in float32.

    Args:
        objective: what to minimise, of shares b_g [G] that add up to 1.
        types: G.
        steps: of each start; the best of all iterates counts.
        dtype: of the shares; JAX's default float dtype if None.

    Returns:
        `Design` whose value is that of the objective. If the objective is convex, its gap bounds what any other shares
        could gain, relative to the value; otherwise it is how much a shift of budget could gain to first order.

    Raises:
        ValueError: if `types` or `steps` is no count.

    Source: ours.

    Example:
        >>> import jax.numpy as jnp
        >>> design = minimal_shares(lambda b: jnp.sum(jnp.asarray([4.0, 1.0]) / b), 2)
        >>> print(f"{design.value:.3f} {design.shares[1]:.3f}")
        9.000 0.333
    """
    types, steps = _check.as_count(types, "types", low=1), _check.as_count(steps, "steps", low=1)
    dtype = jnp.result_type(float) if dtype is None else dtype
    # Without a barrier, logits of types that need no share run off to -inf. There the objective is flat, L-BFGS loses
    # its way, and slopes certify nothing: at a share of 0 the least bound has many, not all of which are those of an
    # optimum. With it they are, up to the barrier: the gap at the least penalised value is at most `barrier`.
    barrier = jnp.finfo(dtype).eps ** (2 / 3)

    def of_logits(logits):
        return jnp.log(objective(jax.nn.softmax(logits))) - barrier * jnp.mean(jax.nn.log_softmax(logits))

    @jax.jit
    def best():
        starts = jnp.concatenate([jnp.zeros((1, types), dtype), jnp.log(float(types)) * jnp.eye(types, dtype=dtype)])
        logits, penalised = jax.vmap(lambda start: least_iterate(of_logits, start, steps=steps))(starts)
        shares = jax.nn.softmax(logits)
        values, slopes = jax.vmap(jax.value_and_grad(objective))(shares)
        # A tangent of a convex function lies below it: each start has its own lower bound on all values.
        least = values + jnp.min(slopes, axis=-1) - jnp.sum(slopes * shares, axis=-1)
        which = jnp.argmin(penalised)
        value, found = values[which], jnp.isfinite(penalised[which])
        gap = jnp.maximum(1 - jnp.nanmax(least) / value, 0)
        return Design(
            jnp.where(found, shares[which], jnp.nan),
            jnp.where(found, value, jnp.inf),
            jnp.where(found, gap, jnp.inf),
        )

    return best()


def _separated(rows, squares, contrast, least):
    """Shares, V and gap, or NaN and infinity if the least squared separation is out of reach."""
    from scipy.optimize import LinearConstraint, linprog, minimize  # here, since they take half a second to import

    types = rows.shape[0]
    polytope = {"A_ub": -squares, "b_ub": np.full(len(squares), -least), "A_eq": np.ones((1, types)), "b_eq": [1.0]}

    def towards(slope):
        return linprog(slope, bounds=(0, 1), **polytope)

    ends = [towards(direction).x for direction in (*np.eye(types), *-np.eye(types)) if towards(direction).status == 0]
    if not ends:
        return np.full(types, np.nan), np.inf, np.inf

    def solved(shares):
        root = np.sqrt(np.maximum(shares, 1e-14))[:, None] * rows  # a type without a share still has a slope
        coefficients = np.linalg.lstsq(root.T, contrast, rcond=None)[0]
        return coefficients @ coefficients, np.linalg.lstsq(root, coefficients, rcond=None)[0]

    def value_and_slope(shares):
        value, x = solved(shares)
        return value, -((rows @ x) ** 2)

    start = np.mean(ends, axis=0)
    if not np.isfinite(float(bound(rows, start, contrast))):
        return np.full(types, np.nan), np.inf, np.inf
    found = minimize(
        value_and_slope,
        start,
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * types,
        constraints=[LinearConstraint(squares, lb=least), LinearConstraint(np.ones(types), lb=1, ub=1)],
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    shares = np.maximum(found.x, 0) / np.maximum(found.x, 0).sum()
    value, x = solved(shares)
    if np.any(squares @ shares < least * (1 - 1e-6)):
        return shares, value, np.inf
    return shares, value, max(1 - _lower_bound(rows, squares, contrast, least, x, towards) / value, 0)


def _lower_bound(rows, squares, contrast, least, x, towards):
    """The greatest lower bound (cᵀy)²/max_b Σ_g b_g (a_gᵀy)² on V of all shares b that separate, from y = x on.

    At shares of 0 the information may be singular and I y = c have many solutions y: x is one, and another certifies.
    With λ and η the multipliers of Σ b = 1 and of the separations, maximise cᵀy over (a_gᵀy)² <= λ - Σ_k η_k d²_kg,
    λ - d² Σ_k η_k <= 1 and η >= 0, all convex.
    """
    from scipy.optimize import minimize

    m, unit = contrast.size, max(least, 1.0)
    squares = squares / unit

    def attained(y):
        return (contrast @ y) ** 2 / -towards(-((rows @ y) ** 2)).fun

    def room(z):
        y, level, price = z[:m], z[m], z[m + 1 :]
        return np.append(level - price @ squares - (rows @ y) ** 2, 1 - level + least / unit * price.sum())

    most = towards(-((rows @ x) ** 2))
    start = np.concatenate([x / np.sqrt(-most.fun), [most.eqlin.marginals[0] / most.fun]])
    start = np.concatenate([start, most.ineqlin.marginals * unit / most.fun])
    found = minimize(
        lambda z: -contrast @ z[:m],
        start,
        method="SLSQP",
        bounds=[(None, None)] * (m + 1) + [(0, None)] * len(squares),
        constraints={"type": "ineq", "fun": room},
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    return max(attained(x), attained(found.x[:m]))
