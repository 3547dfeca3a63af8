"""With how many releases is the risk least, and is that certain?"""

import enum
from typing import TYPE_CHECKING

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from perfjax._check import Numbers, as_floats, as_kind, fail, in_precision
from perfjax._fields import Field, as_dataset
from perfjax.accounting import ClassicValidity, classic_validity, effective_epsilon, kappa
from perfjax.reconstruction._arguments import as_records, as_releases, inside
from perfjax.reconstruction._families import AbstractFamily
from perfjax.reconstruction._multiset import bound_and_reason, label_floor
from perfjax.reconstruction._priors import nearby_van_trees, trivial_risk
from perfjax.reconstruction._reasons import Reason

if TYPE_CHECKING:
    import xarray

__all__ = ["ReleaseScan", "ScanStatus", "scan_releases"]


class ScanStatus(enum.IntEnum):
    """What is known about the best number of releases; of several that hold, the first counts."""

    NOT_IDENTIFIED = 0
    CERTIFIED = 1
    STILL_DECREASING = 2
    NOT_CERTIFIED = 3

    @property
    def meaning(self) -> str:
        return _MEANING[self]


_MEANING = {
    ScanStatus.NOT_IDENTIFIED: "the bound is infinite at every number of releases",
    ScanStatus.CERTIFIED: "certified: no larger number of releases has a lower bound",
    ScanStatus.STILL_DECREASING: "still decreasing at the largest number of releases",
    ScanStatus.NOT_CERTIFIED: "the least of those scanned; a larger number of releases may have a lower bound",
}


class ReleaseScan(eqx.Module):
    """The bound on the multiset of the records for several numbers of releases under one total budget.

    Attributes:
        family: what is released.
        records: z.
        releases: L, the numbers scanned, ascending.
        kappa: κ_L, noise variance over squared sensitivity.
        bound: least Σ_k E(estimate_k - z_k)² of locally unbiased estimators.
        reason: `Reason`, as an integer: why a bound is infinite.
        lower_limit: what no number of releases from L on can fall below.
        van_trees: least average of the same error for any estimator, over records near these
            (`multiset_van_trees_bound`). At the records themselves an estimator may err by less.
        trivial: worst error of always answering 0.
        label_floor: what no estimator of a labelled record can beat, on average over the labels.
        effective_epsilon: what the transcript really spends at the same delta.
        accountant: of the budget.
        classic_validity: `ClassicValidity` of each release, as an integer, under "basic"; otherwise None.
    """

    family: AbstractFamily
    records: Float[Array, "*batch m"]
    releases: Int[Array, "scanned"]
    kappa: Float[Array, "*batch scanned"]
    bound: Float[Array, "*batch scanned"]
    reason: Int[Array, "*batch scanned"]
    lower_limit: Float[Array, "*batch scanned"]
    van_trees: Float[Array, "*batch scanned"]
    trivial: Float[Array, ""]
    label_floor: Float[Array, "*batch"]
    effective_epsilon: Float[Array, "*batch scanned"]
    accountant: str = eqx.field(static=True)
    classic_validity: Int[Array, "*batch scanned"] | None

    @property
    def best_releases(self) -> Int[Array, "*batch"]:
        """L*, the number of releases with the least bound; the first scanned if none is finite."""
        return self.releases[jnp.argmin(self.bound, -1)]

    @property
    def best_bound(self) -> Float[Array, "*batch"]:
        """The least bound."""
        return jnp.min(self.bound, -1)

    @property
    def certified_at(self) -> Int[Array, "*batch"]:
        """The least L from which on nothing can be better than what was found up to L; 0 if there is none."""
        ended = self._ended
        return jnp.where(jnp.any(ended, -1), self.releases[jnp.argmax(ended, -1)], 0)

    @property
    def status(self) -> Int[Array, "*batch"]:
        """`ScanStatus`, as an integer."""
        found = jnp.where(
            jnp.argmin(self.bound, -1) == self.releases.shape[0] - 1,
            ScanStatus.STILL_DECREASING,
            ScanStatus.NOT_CERTIFIED,
        )
        found = jnp.where(jnp.any(self._ended, -1), ScanStatus.CERTIFIED, found)
        return jnp.where(jnp.isinf(self.best_bound), ScanStatus.NOT_IDENTIFIED, found)

    @property
    def _ended(self):
        least = jnp.minimum.accumulate(self.bound, axis=-1)
        return (self.lower_limit > least) & jnp.isfinite(least)

    def fields(self) -> dict[str, Field]:
        """The fields of one scan, over `releases`."""
        square = {"units": "squared unit of the records"}
        reasons = {"meanings": ", ".join(f"{code.value}: {code.meaning}" for code in Reason)}
        along = ("releases",)
        found = {
            "kappa": Field(self.kappa, along, {"units": "1"}),
            "bound": Field(self.bound, along, square),
            "reason": Field(self.reason, along, reasons),
            "lower_limit": Field(self.lower_limit, along, square),
            "van_trees": Field(self.van_trees, along, square | {"meaning": "average over records near these"}),
            "effective_epsilon": Field(self.effective_epsilon, along, {"units": "1"}),
            "trivial": Field(self.trivial, (), square),
            "label_floor": Field(self.label_floor, (), square),
            "best_releases": Field(self.best_releases, (), {}),
            "best_bound": Field(self.best_bound, (), square),
            "certified_at": Field(self.certified_at, (), {}),
            "status": Field(self.status, (), {"meanings": ", ".join(f"{s.value}: {s.meaning}" for s in ScanStatus)}),
            "records": Field(self.records, ("record",), {"units": "unit of the records"}),
        }
        if self.classic_validity is not None:
            verdicts = {"meanings": ", ".join(f"{v.value}: {v.meaning}" for v in ClassicValidity)}
            found["classic_validity"] = Field(self.classic_validity, along, verdicts)
        return found

    def to_xarray(self) -> "xarray.Dataset":
        """The numbers of a single scan as a dataset over `releases`."""
        return as_dataset(self.fields(), coords={"releases": np.asarray(self.releases)})

    def __str__(self) -> str:
        span = f"{self.releases[0]}..{self.releases[-1]} releases, {self.accountant}"
        if self.bound.ndim > 1:
            return f"ReleaseScan of a batch {self.bound.shape[:-1]}: {span}"
        at = int(jnp.argmin(self.bound))
        lines = [
            f"ReleaseScan of {self.records.shape[-1]} records: {span}",
            f"  {ScanStatus(int(self.status)).meaning}"
            + (f" (from {self.certified_at} on)" if self.status == ScanStatus.CERTIFIED else ""),
            f"  best number of releases     {self.best_releases}",
            f"  bound if unbiased           {self.best_bound:.6g}",
            f"  any estimator, on average   {self.van_trees[at]:.6g} at least, over records near these (van Trees)",
            f"  always answering 0          {self.trivial:.6g} at most",
            f"  one labelled record         {self.label_floor:.6g} at least: labels do not show",
            f"  central epsilon really spent  {self.effective_epsilon[at]:.6g}",
        ]
        if self.status == ScanStatus.NOT_IDENTIFIED:
            lines.append(f"  {Reason(int(self.reason[-1])).meaning}")
        if self.classic_validity is not None:
            lines.append(f"  noise of one release        {ClassicValidity(int(self.classic_validity[at])).meaning}")
        return "\n".join(lines)


def scan_releases(
    family: AbstractFamily,
    records: Numbers,
    *,
    releases: tuple[int, int],
    epsilon: ArrayLike,
    delta: ArrayLike,
    accountant: str,
    order: ArrayLike | None = None,
) -> ReleaseScan:
    """`multiset_bound` for every number of releases in a range, and where it is least.

    The scan is complete: nothing is assumed about the shape of the curve, which is jagged for thresholds. It ends
    with a certificate where `AbstractFamily.lower_limit` exceeds the least bound so far; records at both ends of
    the box have none under moments, and no linear accountant has one under thresholds.

    Args:
        family: what is released.
        records: z in [-R, R], m along the last axis.
        releases: least and greatest L, both included.
        epsilon: ε > 0, of all releases together; broadcast against the leading axes of the records, as are the
            next and `order`.
        delta: δ in (0, 1), of all releases together.
        accountant: as in `accounting.kappa`.
        order: α of the accountant "rdp".

    Returns:
        `ReleaseScan`.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Sections IV-B and IV-D; the
        certificate: ours.

    Example:
        >>> from perfjax.reconstruction import Moments
        >>> found = scan_releases(
        ...     Moments(1.0, "paper"), [-0.6, 1.0], releases=(2, 12), epsilon=1.0, delta=1e-5, accountant="zcdp"
        ... )
        >>> print(found.best_releases, found.certified_at)
        4 6
    """
    low, high = _range(releases)
    records, epsilon, delta = as_floats(records=records, epsilon=epsilon, delta=delta)
    family = in_precision(as_kind(family, "family", AbstractFamily), records.dtype)
    records = inside(as_records(records), family.radius)
    count = jnp.arange(low, high + 1)
    scanned = as_releases(count, high).astype(records.dtype)
    order = None if order is None else as_floats(order=order, records=records)[0][..., None]
    noise = kappa(
        releases=scanned, epsilon=epsilon[..., None], delta=delta[..., None], accountant=accountant, order=order
    )
    shape = jnp.broadcast_shapes(noise.shape, (*records.shape[:-1], scanned.shape[0]))
    noise = jnp.broadcast_to(noise, shape)
    bound, reason, lower_limit, van_trees, joint = _scanned(family, records, scanned, noise, high)
    classic = None
    if accountant == "basic":
        classic = classic_validity(epsilon=epsilon[..., None] / scanned, delta=delta[..., None] / scanned)
        classic = jnp.broadcast_to(classic, shape)
    return ReleaseScan(
        family=family,
        records=jnp.broadcast_to(records, (*shape[:-1], records.shape[-1])),
        releases=count,
        kappa=noise,
        bound=bound,
        reason=reason,
        lower_limit=lower_limit,
        van_trees=van_trees,
        trivial=trivial_risk(records.shape[-1], radius=family.radius),
        label_floor=jnp.broadcast_to(label_floor(records), shape[:-1]),
        effective_epsilon=effective_epsilon(kappa=noise, delta=delta[..., None], joint_sensitivity=joint),
        accountant=accountant,
        classic_validity=classic,
    )


@eqx.filter_jit
def _scanned(family, records, scanned, kappa, length):
    each = records[..., None, :]
    bound, reason = bound_and_reason(family, each, scanned, kappa, length)
    lower_limit = jnp.broadcast_to(family.lower_limit(each, scanned, length, kappa), kappa.shape)
    van_trees = nearby_van_trees(family, each, scanned, kappa, length)
    return bound, reason, lower_limit, van_trees, family.joint_sensitivity(scanned, length)


def _range(releases):
    whole = isinstance(releases, tuple | list) and len(releases) == 2
    whole = whole and all(isinstance(x, int | np.integer) and not isinstance(x, bool) for x in releases)
    if not whole or not 1 <= releases[0] <= releases[1]:
        raise fail("releases", "be the least and the greatest number, two integers from 1 up in order", releases)
    return int(releases[0]), int(releases[1])
