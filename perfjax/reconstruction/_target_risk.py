"""The bound on a labelled target, and what must stand beside it."""

from typing import TYPE_CHECKING

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from perfjax._check import Numbers, as_floats, in_range
from perfjax._fields import Field, as_dataset
from perfjax.reconstruction._fisher import target_bound, target_reason
from perfjax.reconstruction._inverses import left_inverse
from perfjax.reconstruction._priors import trivial_risk
from perfjax.reconstruction._reasons import Reason

if TYPE_CHECKING:
    import xarray

__all__ = ["TargetRisk", "target_risk"]


class TargetRisk(eqx.Module):
    """How precisely a labelled target can be told.

    Attributes:
        bound: least summed squared error of locally unbiased estimators.
        reason: `Reason`, as an integer: why the bound is infinite.
        van_trees: least average of the same error for any estimator, over records anywhere in [-R, R]. At some of them
            an estimator may err by less.
        trivial: worst error of always answering 0.
    """

    bound: Float[Array, "*batch"]
    reason: Int[Array, "*batch"]
    van_trees: Float[Array, "*batch"]
    trivial: Float[Array, ""]

    def fields(self) -> dict[str, Field]:
        """The numbers of a single target."""
        square = {"units": "squared unit of the records"}
        reasons = {"meanings": ", ".join(f"{code.value}: {code.meaning}" for code in Reason)}
        return {
            "bound": Field(self.bound, (), square),
            "reason": Field(self.reason, (), reasons),
            "van_trees": Field(self.van_trees, (), square | {"meaning": "average over records in [-R, R]"}),
            "trivial": Field(self.trivial, (), square),
        }

    def to_xarray(self) -> "xarray.Dataset":
        """The numbers of a single target as a dataset."""
        return as_dataset(self.fields())

    def __str__(self) -> str:
        if self.bound.ndim:
            return f"TargetRisk of a batch {self.bound.shape}"
        return (
            f"TargetRisk: {Reason(int(self.reason)).meaning}\n"
            f"  bound if unbiased          {self.bound:.6g}\n"
            f"  any estimator, on average  {self.van_trees:.6g} at least, over all records (van Trees)\n"
            f"  always answering 0         {self.trivial:.6g} at most"
        )


def target_risk(target: Numbers, nuisance: Numbers, *, radius: ArrayLike) -> TargetRisk:
    """`target_bound` with the van Trees bound and the error of an attacker who looks at nothing.

    Args:
        target: T, whitened, [..., L, p].
        nuisance: H, whitened, [..., L, q]; q may be 0.
        radius: R > 0; all records, of target and nuisance, lie in [-R, R].

    Returns:
        `TargetRisk`. Its van Trees bound has a cos² prior on every record, tr_θ (I + (π/R)² 1)^-1; it holds for
        releases that are linear in the records. For others the information would have to be averaged.

    Raises:
        ValueError: if an argument is out of range.

    Source: as `target_bound` and `van_trees_bound`.

    Example:
        >>> from perfjax.reconstruction import split_columns, whitened
        >>> rows = whitened([[0.5, 0.5], [0.0, 1.0]], [0.01, 0.01])
        >>> print(target_risk(*split_columns(rows, 0), radius=1.0))
        TargetRisk: The target is identified.
          bound if unbiased          0.05
          any estimator, on average  0.0330737 at least, over all records (van Trees)
          always answering 0         1 at most
    """
    target, nuisance, radius = as_floats(target=target, nuisance=nuisance, radius=radius)
    radius = in_range(radius, "radius", 0.0, open_low=True, open_high=True)
    p, all_columns = target.shape[-1], target.shape[-1] + nuisance.shape[-1]
    prior = jnp.pi / radius * jnp.eye(all_columns, dtype=target.dtype)
    prior = jnp.broadcast_to(prior, (*target.shape[:-2], all_columns, all_columns))
    rows = jnp.concatenate([jnp.concatenate([target, nuisance], -1), prior], -2)
    return TargetRisk(
        bound=target_bound(target, nuisance),
        reason=target_reason(target, nuisance),
        van_trees=jnp.sum(left_inverse(rows)[..., :p, :] ** 2, (-2, -1)),
        trivial=trivial_risk(p, radius=radius),
    )
