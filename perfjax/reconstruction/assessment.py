"""One answer about a transcript: what it identifies, how precisely, at which number of releases, and for whom."""

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Key

from perfjax import _check, accounting
from perfjax._check import Numbers
from perfjax._fields import Field, as_dataset
from perfjax.reconstruction._box_estimate import multiset_estimate
from perfjax.reconstruction._families import AbstractFamily
from perfjax.reconstruction._multiset import transcript_rows
from perfjax.reconstruction._scan import ReleaseScan, ScanStatus, scan_releases
from perfjax.reconstruction.design import Design, c_optimal
from perfjax.reconstruction.design_labels import HybridTranscript, profiled_separation, swap_separations

if TYPE_CHECKING:
    import xarray

__all__ = ["Assessment", "LabelAssessment", "assess", "assess_labels"]


class Assessment(eqx.Module):
    """What an attacker learns about the multiset of some records from L releases about all of them.

    Attributes:
        scan: the bound for every number of releases.
        releases: L of what follows: the best number, or the largest where none identifies the records.
        directions: orthonormal combinations of the (sorted) records, one per row, best known first.
        standard_errors: least standard deviation of an unbiased estimate of each, in units of the records; infinite
            for what is not identified.
        simulated_error: mean squared error of the likeliest records in the box, summed over the records; NaN if not
            simulated.
        simulated_standard_error: of that mean.
        trials: simulated transcripts.
    """

    scan: ReleaseScan
    releases: int = eqx.field(static=True)
    directions: Float[Array, "m m"]
    standard_errors: Float[Array, " m"]
    simulated_error: Float[Array, ""]
    simulated_standard_error: Float[Array, ""]
    trials: int = eqx.field(static=True)

    def fields(self) -> dict[str, Field]:
        """The fields of the scan over `releases`, and the others over `direction` and `record`."""
        square = {"units": "squared unit of the records"}
        return self.scan.fields() | {
            "directions": Field(self.directions, ("direction", "record"), {"units": "1"}),
            "standard_errors": Field(self.standard_errors, ("direction",), {"units": "unit of the records"}),
            "simulated_error": Field(self.simulated_error, (), square),
            "simulated_standard_error": Field(self.simulated_standard_error, (), square),
        }

    def to_xarray(self) -> "xarray.Dataset":
        """The numbers as a dataset over `releases`, `direction` and `record`."""
        coords = {"releases": np.asarray(self.scan.releases)}
        return as_dataset(self.fields(), coords=coords, attrs={"best": self.releases, "trials": self.trials})

    def __str__(self) -> str:
        lines = [str(self.scan), f"  directions at {self.releases} releases, best known first:"]
        for direction, error in zip(np.asarray(self.directions), np.asarray(self.standard_errors), strict=True):
            listed = ", ".join(f"{x:.3f}" for x in direction)
            lines.append(f"    +- {error:<10.4g} along ({listed})" if np.isfinite(error) else f"    unknown ({listed})")
        if self.trials:
            lines.append(f"  likeliest records in the box {self.simulated_error:.6g} ({self.trials} transcripts)")
        return "\n".join(lines)


def assess(
    family: AbstractFamily,
    records: Numbers,
    *,
    releases: tuple[int, int],
    epsilon: ArrayLike,
    delta: ArrayLike,
    accountant: str,
    order: ArrayLike | None = None,
    trials: int = 0,
    key: Key[Array, ""] | None = None,
) -> Assessment:
    """The bound for every number of releases, and at the best one what is known how well and what an estimator attains.

    Args:
        family: what is released.
        records: z in [-R, R], [m].
        releases: least and greatest L, both included.
        epsilon: ε > 0, of all releases together.
        delta: δ in (0, 1), of all releases together.
        accountant: as in `accounting.kappa`.
        order: α of the accountant "rdp".
        trials: transcripts to simulate at the best L; 0 for none.
        key: randomness, if any are.

    Returns:
        `Assessment`.

    Raises:
        ValueError: if an argument is out of range, or `key` is missing or one too many.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Sections IV and V-C.

    Example:
        >>> from perfjax.reconstruction import Moments
        >>> found = assess(Moments(1.0), [-0.6, 1.0], releases=(2, 9), epsilon=1.0, delta=1e-5, accountant="gdp")
        >>> print(found.releases, found.standard_errors.round(1))
        3 [2.5 5.1]
    """
    trials = _check.as_count(trials, "trials", low=0)
    if (trials > 0) != (key is not None):
        raise ValueError("Argument `key` must be given where transcripts are simulated, and only there.")
    records = jnp.sort(_check.as_float(records, "records"))
    if records.ndim != 1:
        raise _check.fail("records", "be one list of numbers", f"of shape {records.shape}")
    scan = scan_releases(
        family, records, releases=releases, epsilon=epsilon, delta=delta, accountant=accountant, order=order
    )
    known = int(scan.status) != ScanStatus.NOT_IDENTIFIED
    best = int(scan.best_releases) if known else int(scan.releases[-1])
    kappa = scan.kappa[best - int(scan.releases[0])]
    directions, errors = _directions(transcript_rows(scan.family, records, best), kappa)
    error, spread = (jnp.asarray(jnp.nan, records.dtype),) * 2
    if trials:
        errors_of = _simulated(scan.family, records, best, kappa, trials, key)
        error, spread = jnp.mean(errors_of), jnp.std(errors_of, ddof=1) / np.sqrt(trials)
    return Assessment(scan, best, directions, errors, error, spread, trials)


def _directions(rows, kappa):
    """Right singular vectors of the whitened Jacobian, and the standard error along each."""
    m = rows.shape[1]
    _, sizes, directions = jnp.linalg.svd(rows, full_matrices=True)
    sizes = jnp.pad(sizes, (0, m - sizes.size))
    seen = sizes > max(rows.shape) * jnp.finfo(rows.dtype).eps * sizes[0]
    finite = seen & jnp.isfinite(kappa)
    errors = jnp.where(finite, jnp.sqrt(jnp.where(finite, kappa, 1)) / jnp.where(seen, sizes, 1), jnp.inf)
    largest = jnp.argmax(jnp.abs(directions), axis=1)
    return directions * jnp.sign(jnp.take_along_axis(directions, largest[:, None], axis=1)), errors


def _simulated(family, records, releases, kappa, trials, key):
    """Squared errors of the likeliest records, by trial."""
    m, count = records.size, float(releases)
    exact = jnp.mean(family.features(records, count, releases), axis=-1)
    std = jnp.sqrt(kappa) * family.widths(count, releases) / m
    noise = std * jax.random.normal(key, (trials, releases), records.dtype)
    found = multiset_estimate(family, exact + noise, records=m, noise_std=std)
    return jnp.sum((found.records - records) ** 2, axis=-1)


class LabelAssessment(eqx.Module):
    """What an attacker learns about one record, labels included, from the design that reveals most of it locally.

    Attributes:
        transcript: what can be released.
        target: the place of the target among the records, from 0.
        design: the shares of a budget that adds up with the least bound on the target; its value is the bound on the
            mean squared error at that budget.
        swaps: how far apart the transcript is when the target swaps places with each other record, in units of its
            noise: an upper bound on how well the two are told apart. 0 at the target.
        separation: the least distance of the transcript from one of any records whose target is nearer to another
            record than to its own value.
    """

    transcript: HybridTranscript
    target: int = eqx.field(static=True)
    design: Design
    swaps: Float[Array, " m"]
    separation: Float[Array, ""]

    def __str__(self) -> str:
        nearest = float(jnp.min(jnp.delete(self.swaps, self.target)))
        return (
            f"{self.design}\n"
            f"  nearest swap             {nearest:.4g} standard deviations away\n"
            f"  nearest other labelling  {self.separation:.4g} standard deviations away, all records free"
        )


def assess_labels(
    transcript: HybridTranscript,
    records: Numbers,
    *,
    target: int,
    epsilon: ArrayLike,
    delta: ArrayLike,
    accountant: str,
) -> LabelAssessment:
    """The design that reveals most of one labelled record, and whether it tells whose record is whose.

    Args:
        transcript: what can be released.
        records: z in [-R, R], at least two, [m]. Unlike a multiset they have an order.
        target: the place of the target among them, from 0.
        epsilon: ε > 0, of all releases together.
        delta: δ in (0, 1), of all releases together.
        accountant: one under which budgets add up: "zcdp" or "gdp".

    Returns:
        `LabelAssessment`; without a finite bound its separations are 0.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours.
    """
    _check.as_choice(accountant, "accountant", ("zcdp", "gdp"))
    z = _check.as_kind(transcript, "transcript", HybridTranscript).checked(records)
    target = _check.as_count(target, "target", low=0)
    if z.size < 2 or target >= z.size:
        raise _check.fail("target", f"be a place among at least two records, here below {z.size}", target)
    kappa = accounting.kappa(releases=1.0, epsilon=epsilon, delta=delta, accountant=accountant).astype(z.dtype)
    best = c_optimal(transcript.rows(z), jnp.arange(z.size) == target)
    shares = jnp.nan_to_num(best.shares)
    swaps = swap_separations(transcript, z, shares, target=target, kappa=kappa)
    separations = [
        profiled_separation(transcript, z, shares, kappa=kappa, low=low, high=high)
        for low, high in _elsewhere(np.asarray(z, float), target, float(transcript.family.radius))
    ]
    design = Design(best.shares, kappa * best.value, best.gap)
    return LabelAssessment(transcript, target, design, swaps, jnp.min(jnp.stack(separations)))


def _elsewhere(z, target, radius):
    """Boxes in which the target is nearer to another record, below and above its own value."""
    others = np.delete(z, target)
    below, above = others[others <= z[target]], others[others >= z[target]]
    low, high = np.full(z.size, -radius), np.full(z.size, radius)
    if below.size:
        yield low, np.where(np.arange(z.size) == target, (z[target] + below.max()) / 2, high)
    if above.size:
        yield np.where(np.arange(z.size) == target, (z[target] + above.min()) / 2, low), high
