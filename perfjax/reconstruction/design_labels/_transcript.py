"""A transcript of features of all records and of means over some, and what its functions ask of their arguments."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, DTypeLike, Float

from perfjax import _check
from perfjax._check import Numbers
from perfjax.reconstruction._families import AbstractFamily

__all__ = ["HybridTranscript", "as_arguments", "as_shares"]


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


def as_arguments(
    transcript: HybridTranscript, records: Numbers, shares: Numbers, target: int, kappa: Numbers
) -> tuple[Float[Array, " m"], Float[Array, " types"], int, Float[Array, "..."]]:
    """Records, shares, target and kappa, checked against the transcript and in the records' dtype."""
    _check.as_kind(transcript, "transcript", HybridTranscript)
    records = transcript.checked(records)
    target = _check.as_count(target, "target", low=0)
    if target >= records.size:
        raise _check.fail("target", f"be below {records.size}, the number of records", target)
    kappa = _check.in_range(_check.as_float(kappa, "kappa"), "kappa", 0, open_low=True, open_high=True)
    return records, as_shares(transcript, shares, records.dtype), target, kappa.astype(records.dtype)


def as_shares(transcript: HybridTranscript, shares: Numbers, dtype: DTypeLike) -> Float[Array, " types"]:
    """`shares`, one for each type of release and none below 0."""
    shares = _check.in_range(_check.as_float(shares, "shares"), "shares", 0, open_high=True)
    if shares.shape != (transcript.types,):
        raise _check.fail("shares", f"be {transcript.types}, one for each type", f"of shape {shares.shape}")
    return shares.astype(dtype)
