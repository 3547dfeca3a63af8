"""Designs that also tell whose record is whose: means over some of the records beside features of all of them.

Releases of all records do not change when two records swap places. A mean over some of them does; how far it moves,
in units of its noise, is what separates the two labellings. The bound of `perfjax.reconstruction.design` sees none of
this: it is local.
"""

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.special import ndtr
from jaxtyping import Array, Bool, DTypeLike, Float

from perfjax import _check
from perfjax._check import Numbers
from perfjax._linear import product
from perfjax.reconstruction._box import closest
from perfjax.reconstruction._families import AbstractFamily
from perfjax.reconstruction.design import Design, bound

__all__ = [
    "HybridTranscript",
    "closest_records",
    "label_risk",
    "least_label_risk",
    "minimal_shares",
    "profiled_separation",
    "separated_optimal",
    "swap_separations",
]

GRID_STARTS = 64  # random starts of a search over records, beside the corners


class HybridTranscript(eqx.Module):
    """One release of each of L features of all m records, and of each of some means over some of the records.

    Releases count in units of their sensitivities (replace-one): of feature l, Σ_k φ_l(z_k)/w_l; of a mean over C,
    Σ_{k in C} z_k/(2R).

    Attributes:
        family: the features, and R.
        features: L, at least 0.
        members: for each mean, which records it is over: [means, m].

    Raises:
        ValueError: if an argument is of the wrong kind, `members` is no table of truth values or has an empty row.

    Source: ours, after the closing remark of "Reconstruction Limits for Repeated Differentially Private Aggregates",
        Section IV.
    """

    family: AbstractFamily
    features: int = eqx.field(static=True)
    members: Bool[Array, "means m"]

    def __init__(self, family: AbstractFamily, features: int, members: Numbers):
        self.family = _check.as_kind(family, "family", AbstractFamily)
        self.features = _check.as_count(features, "features", low=0)
        table = np.asarray(members)
        if table.dtype != bool or table.ndim != 2:
            raise _check.fail("members", "say of each record and mean whether it is in it", f"of shape {table.shape}")
        if not np.all(table.any(axis=1)):
            raise _check.fail("members", "have a record in every mean", f"empty at mean {np.argmin(table.any(axis=1))}")
        self.members = jnp.asarray(table)

    @property
    def types(self) -> int:
        """G, features before means."""
        return self.features + self.members.shape[0]

    def values(self, records: Float[Array, " m"]) -> Float[Array, " types"]:
        """The releases without noise."""
        means = jnp.sum(jnp.where(self.members, records, 0), axis=-1) / (2 * self.family.radius)
        if not self.features:
            return means
        widths = self.family.widths(float(self.features), self.features)
        features = jnp.sum(self.family.features(records, float(self.features), self.features), axis=-1) / widths
        return jnp.concatenate([features, means])

    def rows(self, records: Numbers) -> Float[Array, "types m"]:
        """Their gradients a_g, for the functions of `perfjax.reconstruction.design`."""
        return jax.jacfwd(self.values)(self.checked(records))

    def checked(self, records: Numbers) -> Float[Array, " m"]:
        """`records`, if they fit and lie in [-R, R]."""
        records = _check.as_float(records, "records").astype(self.family.radius.dtype)
        if records.shape != self.members.shape[1:]:
            found = f"of shape {records.shape}"
            raise _check.fail("records", f"be {self.members.shape[1]}, one for each column of `members`", found)
        if not _check.is_known(records, self.family.radius):
            return records
        return _check.in_range(records, "records", -float(self.family.radius), float(self.family.radius))


def swap_separations(
    transcript: HybridTranscript, records: Numbers, shares: Numbers, *, target: int, kappa: Numbers
) -> Float[Array, " m"]:
    """How far apart the transcript is when the target swaps places with each other record, in units of its noise.

    d_k² = (1/κ) Σ_g b_g (v_g(z) - v_g(z with z_j and z_k swapped))². An *upper bound* on how well the two are told
    apart: the other records are held fixed. See `profiled_separation`.

    Args:
        transcript: what is released.
        records: z, [m], in [-R, R].
        shares: b_g, [G], at least 0.
        target: j, the place of the target among the records, from 0.
        kappa: κ_1 > 0, of the whole budget (`perfjax.accounting.kappa` of one release), for budgets that add up.

    Returns:
        d_k in [0, ∞), [m]; 0 at the target itself.

    Raises:
        ValueError: if an argument has the wrong shape or is out of range.

    Source: ours.

    Example:
        >>> from perfjax.reconstruction import Moments
        >>> transcript = HybridTranscript(Moments(1.0), 1, [[True, False]])
        >>> print(swap_separations(transcript, [0.5, -0.5], [0.5, 0.5], target=0, kappa=0.5))
        [0.  0.5]
    """
    records, shares, target, kappa = _arguments(transcript, records, shares, target, kappa)
    return _root(product(_swap_moves(transcript, records, target), shares) / kappa)


def profiled_separation(
    transcript: HybridTranscript,
    records: Numbers,
    shares: Numbers,
    *,
    kappa: Numbers,
    low: Numbers,
    high: Numbers,
) -> Float[Array, ""]:
    """The least distance of the transcript from one of any records between `low` and `high`, in units of its noise.

    With the target held away from its true value and the others anywhere in [-R, R], this is what an attacker must
    overcome to rule that out; the swap is one candidate of many.

    Args:
        transcript: what is released.
        records: z, [m], in [-R, R].
        shares: b_g, [G], at least 0.
        kappa: κ_1 > 0, as in `swap_separations`.
        low: least value of each record, [m] or one for all.
        high: greatest value of each record, [m] or one for all.

    Returns:
        The distance, in [0, ∞). The search (64 random starts, corners, swaps) may miss a lower one.

    Raises:
        ValueError: if an argument has the wrong shape or is out of range.

    Source: ours.
    """
    records, shares, _, kappa = _arguments(transcript, records, shares, 0, kappa)
    low, high = _box(records, transcript.family.radius, low, high)
    return _profiled(transcript, records, jnp.sqrt(shares / kappa), low, high)


def closest_records(
    transcript: HybridTranscript, released: Numbers, shares: Numbers, *, low: Numbers, high: Numbers
) -> Float[Array, " m"]:
    """The records between `low` and `high` whose transcript is the likeliest to have been released.

    min Σ_g b_g (y_g - v_g(u))², each type having noise of variance κ/b_g; labels are kept.

    Args:
        transcript: what is released.
        released: y, [G], in units of the sensitivities.
        shares: b_g, [G], at least 0.
        low: least value of each record, [m] or one for all.
        high: greatest value of each record, [m] or one for all.

    Returns:
        u, [m], by the search of `profiled_separation`.

    Raises:
        ValueError: if an argument has the wrong shape or is out of range.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Section V-C, with labels.
    """
    radius = transcript.family.radius
    released = _check.as_float(released, "released").astype(radius.dtype)
    if released.shape != (transcript.types,):
        raise _check.fail("released", f"be {transcript.types}, one for each type", f"of shape {released.shape}")
    middle = jnp.zeros(transcript.members.shape[1], radius.dtype)
    shares = _shares(transcript, shares, radius.dtype)
    return _closest(transcript, released, jnp.sqrt(shares), *_box(middle, radius, low, high))[0]


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
    records, shares, target, kappa = _arguments(transcript, records, shares, target, kappa)
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
        `Design` whose value is the risk at this kappa, and whose gap is how much a shift of budget could gain to first
        order: 0 at a stationary point. That is no bound on the gain, since the risk is not convex.

    Raises:
        ValueError: if an argument has the wrong shape or is out of range.

    Source: ours.
    """
    equal = np.full(transcript.types, 1 / transcript.types)
    records, _, target, kappa = _arguments(transcript, records, equal, target, kappa)
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
    records, _, target, kappa = _arguments(transcript, records, equal, target, kappa)
    separation = _check.in_range(_check.as_float(separation, "separation"), "separation", 0, open_high=True)
    if not _check.is_known(records, kappa, separation, *jax.tree.leaves(transcript)):
        raise _check.fail("records", "be known here, like all arguments", "traced")
    squares = np.delete(np.asarray(_swap_moves(transcript, records, target) / kappa, float), target, axis=0)
    rows = np.asarray(transcript.rows(records), float)
    shares, value, gap = _separated(rows, squares, np.eye(records.size)[target], float(separation) ** 2)
    return Design(*(jnp.asarray(x, records.dtype) for x in (shares, value * float(kappa), gap)))


def _arguments(transcript, records, shares, target, kappa):
    _check.as_kind(transcript, "transcript", HybridTranscript)
    records = transcript.checked(records)
    target = _check.as_count(target, "target", low=0)
    if target >= records.size:
        raise _check.fail("target", f"be below {records.size}, the number of records", target)
    kappa = _check.in_range(_check.as_float(kappa, "kappa"), "kappa", 0, open_low=True, open_high=True)
    return records, _shares(transcript, shares, records.dtype), target, kappa.astype(records.dtype)


def _shares(transcript, shares, dtype):
    shares = _check.in_range(_check.as_float(shares, "shares"), "shares", 0, open_high=True)
    if shares.shape != (transcript.types,):
        raise _check.fail("shares", f"be {transcript.types}, one for each type", f"of shape {shares.shape}")
    return shares.astype(dtype)


def _box(records, radius, low, high):
    low, high = (_check.as_float(x, name).astype(records.dtype) for x, name in ((low, "low"), (high, "high")))
    for name, end in (("low", low), ("high", high)):
        if end.shape not in ((), records.shape):
            raise _check.fail(name, f"be one number or {records.size}", f"of shape {end.shape}")
    if _check.is_known(low, high) and not np.all(np.asarray(low) <= np.asarray(high)):
        raise _check.fail("low", "be at most `high`", low)
    low, high = jnp.maximum(low, -radius), jnp.minimum(high, radius)
    return jnp.broadcast_to(low, records.shape), jnp.broadcast_to(high, records.shape)


def _others(records, target):
    return jnp.where(jnp.arange(records.size) == target, 0, 1).astype(records.dtype)


def _root(square):
    """The square root, with derivative 0 at 0."""
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1)), 0)


def _swap_moves(transcript, records, target) -> Float[Array, "m types"]:
    """(v_g(z) - v_g(swapped))², by the record that the target swaps places with."""

    def swapped(other):
        return records.at[target].set(records[other]).at[other].set(records[target])

    # Features of all records do not change: computed, they would by their rounding.
    everyone = np.append(np.ones(transcript.features, bool), np.zeros(transcript.members.shape[0], bool))
    moved = jax.vmap(lambda other: transcript.values(swapped(other)))(jnp.arange(records.size))
    return jnp.where(everyone, 0, (moved - transcript.values(records)) ** 2)


def _label_risk(transcript, records, shares, target, kappa):
    others = _others(records, target)
    squares = product(_swap_moves(transcript, records, target), shares) / kappa
    wrong = ndtr(-_root(squares) / 2) * others
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

    L-BFGS on logits whose softmax the shares are, from equal shares and from most of the budget on each type.

    Args:
        objective: what to minimise, of shares b_g [G] that add up to 1.
        types: G.
        steps: of each start.
        dtype: of the shares; JAX's default float dtype if None.

    Returns:
        `Design` whose value is that of the objective, and whose gap is how much a shift of budget could gain to first
        order, relative to it: a bound on the gain if the objective is convex.

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

    def of_logits(logits):
        return jnp.log(objective(jax.nn.softmax(logits)))

    def one(logits):
        solver = optax.lbfgs()
        value_and_slope = optax.value_and_grad_from_state(of_logits)

        def step(state, _):
            logits, memory = state
            value, slope = value_and_slope(logits, state=memory)
            update, memory = solver.update(slope, memory, logits, value=value, grad=slope, value_fn=of_logits)
            return (optax.apply_updates(logits, update), memory), None

        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            (logits, _), _ = jax.lax.scan(step, (logits, solver.init(logits)), length=steps)
        return logits, of_logits(logits)

    @jax.jit
    def best():
        starts = jnp.concatenate([jnp.zeros((1, types), dtype), jnp.log(float(types)) * jnp.eye(types, dtype=dtype)])
        logits, values = jax.vmap(one)(starts)
        shares = jax.nn.softmax(logits[jnp.nanargmin(values)])
        value, slope = jax.value_and_grad(objective)(shares)
        return Design(shares, value, jnp.maximum(product(slope, shares) - jnp.min(slope), 0) / value)

    return best()


@eqx.filter_jit
def _profiled(transcript, records, weights, low, high):
    return _root(_closest(transcript, transcript.values(records), weights, low, high, near=records)[1])


@eqx.filter_jit
def _closest(transcript, released, weights, low, high, near=None):
    """The records in a box with the least Σ weights² (released - values)², and that sum."""
    m = low.size
    unit = np.random.default_rng(0).random((GRID_STARTS, m))
    corners = np.tri(m + 1, m, -1)
    starts = low + (high - low) * jnp.asarray(np.concatenate([unit, corners, corners[:, ::-1]]), low.dtype)
    if near is not None:
        swaps = jnp.stack([near.at[j].set(near[k]).at[k].set(near[j]) for j in range(m) for k in range(j + 1)])
        starts = jnp.concatenate([starts, jnp.clip(swaps, low, high)])
    return closest(lambda u: weights * (transcript.values(u) - released), starts, low, high)


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

    def value_and_slope(shares):
        root = np.sqrt(np.maximum(shares, 1e-14))[:, None] * rows  # a type without a share still has a slope
        coefficients = np.linalg.lstsq(root.T, contrast, rcond=None)[0]
        effect = rows @ np.linalg.lstsq(root, coefficients, rcond=None)[0]
        return coefficients @ coefficients, -(effect**2)

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
    value, slope = value_and_slope(shares)
    gap = max(slope @ (shares - towards(slope).x), 0) / value
    return shares, value, gap
