"""What the counts identify, and what they can't say: ranks, directions, ranges, and the verdict in words."""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfjax.calibration._fit import DETECTED, KNOWN, Fit
from perfjax.calibration._leak_test import LeakTest, leak_test
from perfjax.calibration._profile import GROWTH, Profile, profiled
from perfjax.reconstruction import Reason, contrast_bound, split_columns, target_reason

__all__ = ["Identifiability", "identifiability", "listed", "mean_rows", "narrowed"]

BACKGROUND = ("leave_spared", "recruit_leaked")
BY_LEAKS = ("leave", "threshold", "recruit_leaked")  # parameters that mean nothing if leaks play no role
ALONG = 0.05  # of a parameter, the share of its square that may lie across the known directions


class Identifiability(eqx.Module):
    """What a series identifies.

    Attributes:
        fitted: the fit; if its profiles met a higher maximum, the fit there.
        profiles: profile likelihoods by parameter, and of the growth factor.
        reasons: by parameter, `reconstruction.Reason`: whether the mean counts, however many, could tell it from all
            the others.
        strengths: singular values of the whitened Jacobian J of the mean counts on the unconstrained scale, greatest
            first: one over the standard error of each direction.
        directions: the directions, one per row, [directions, free].
        rank: how many directions the mean counts narrow to less than half of what a flat prior leaves of log odds.
        rests_on: by parameter, what its interval rests on. "means": the mean counts (leavers, joiners) alone, without
            the prior, narrow it so, and its range is closed. "spread": they do not, but how much the counts vary about
            their means does, as far as nothing but the model moves them. "prior" or "nothing": neither does, and there
            is a prior or none. Where leaks are not shown to matter, nothing that they decide rests on the counts: its
            interval takes for granted that they do.
        leaks: whether the counts show that leaks matter at all.
        constant_noise: whether all releases had the same noise.
    """

    fitted: Fit
    profiles: dict[str, Profile]
    reasons: dict[str, Reason] = eqx.field(static=True)
    strengths: Float[Array, " directions"]
    directions: Float[Array, "directions free"]
    rank: int = eqx.field(static=True)
    rests_on: dict[str, str] = eqx.field(static=True)
    constant_noise: bool = eqx.field(static=True)
    leaks: LeakTest

    @property
    def identified(self) -> dict[str, bool]:
        """By parameter, whether the mean counts alone narrow it, and its range is closed."""
        return {name: on == "means" for name, on in self.rests_on.items()}

    @property
    def verdict(self) -> str:
        """The same in words."""
        return " ".join(self.sentences)

    @property
    def sentences(self) -> list[str]:
        """The sentences of the verdict."""
        return [self.leaks.words, *_known_in_words(self), *_unknown_in_words(self), *_dispersion_in_words(self.fitted)]

    def __str__(self) -> str:
        return "\n".join([self.verdict, *(f"  {profile}" for profile in self.profiles.values())])


def identifiability(fitted: Fit, *, level: float = 0.95) -> Identifiability:
    """Which parameters, and which combinations of them, a series identifies.

    By the expected information J^T J of the mean counts, J the whitened Jacobian of the means: its singular vectors are
    the directions, its singular values one over their standard errors. A parameter counts as identified if the means
    alone narrow it to less than half of what a flat prior leaves of its log odds (of its logarithm, by as much), along
    directions that they know, and its profile likelihood closes on both sides. The others have a range, not an
    estimate. What only the variances of the counts narrow is told apart: any other reason for counts to vary, such as
    people who come and go by themselves, would move it. And none of what leaks decide is identified where
    the counts don't show that leaks matter: see `leak_test`.

    Args:
        fitted: the fit of one series.
        level: of the intervals, in (0, 1).

    Returns:
        `Identifiability`, whose `verdict` says it in words.

    Raises:
        ValueError: for the fit of several groups, or a level out of range.

    Source: ours; ranks and their reasons as in "Reconstruction Limits for Repeated Differentially Private Aggregates",
        Section II-B, with counts as releases and participation parameters as records.

    Example:
        >>> import perfjax as pj
        >>> counts = [400, 410, 421, 429, 440]
        >>> found = identifiability(pj.calibration.fit(counts, pj.preset("randomized-response"), free="leave"))
        >>> found.identified
        {'leave': True}
    """
    fitted, found = profiled(fitted, level)
    rows = mean_rows(fitted)
    strengths, directions, known, by_means = narrowed(rows)
    by_spread = narrowed(data_rows(fitted)).parameters
    closed = [all(found[name].closed) for name in fitted.free]
    leaks = leak_test(fitted)
    told = np.array([leaks.verdict != "not shown" or name not in BY_LEAKS for name in fitted.free])
    reasons = {name: Reason(int(target_reason(*split_columns(rows, i)))) for i, name in enumerate(fitted.free)}
    noise = np.asarray(fitted.series.noise)[:-1]
    otherwise = "nothing" if all(one.is_flat for one in fitted.problem.prior) else "prior"
    on = np.select([by_means & closed & told, by_spread & closed & told], ["means", "spread"], otherwise)
    return Identifiability(
        fitted=fitted,
        profiles=found,
        reasons=reasons,
        strengths=jnp.asarray(strengths),
        directions=jnp.asarray(directions),
        rank=int(np.sum(known)),
        rests_on=dict(zip(fitted.free, on.tolist(), strict=True)),
        constant_noise=bool(np.all(noise[~np.isnan(noise)] == noise[0])),
        leaks=leaks,
    )


def data_rows(fitted: Fit) -> Float[Array, "rows free"]:
    """Whitened rows of the counts alone, without the prior's."""
    return fitted.rows[: fitted.rows.shape[0] - len(fitted.free)]


def mean_rows(fitted: Fit) -> Float[Array, "rows free"]:
    """Whitened rows of the means of the counts alone, 0 for those of their variances."""
    return data_rows(fitted) * fitted.trusted.reshape(-1, 1)


class Narrowed(NamedTuple):
    """Singular values and vectors of some rows, which of these directions they know, and which parameters."""

    strengths: np.ndarray
    directions: np.ndarray
    known: np.ndarray
    parameters: np.ndarray


def narrowed(rows: Float[Array, "rows free"]) -> Narrowed:
    """What whitened rows narrow to less than half of what a flat prior leaves of log odds."""
    nothing = jnp.zeros((rows.shape[0], 0), rows.dtype)
    bound = np.asarray(contrast_bound(rows, nothing, jnp.eye(rows.shape[1], dtype=rows.dtype)))
    strengths, directions = np.linalg.svd(np.asarray(rows), full_matrices=False)[1:]
    known = strengths * KNOWN > 1.96
    # A parameter that lies across an unknown direction is narrowed by the range of the others, not by the counts.
    across = 1 - np.sum(directions[known] ** 2, axis=0)
    return Narrowed(strengths, directions, known, (1.96 * np.sqrt(bound) < KNOWN) & (across < ALONG))


def _known_in_words(found):
    growth, fitted = found.profiles[GROWTH], found.fitted
    n, x = (float(value) for value in fitted.problem.growth_place)
    estimate, low, high = growth.shown
    mechanism, who = fitted.problem.scenario.mechanism, fitted.problem.scenario.participation
    formula = _formula(who, {name for name in BACKGROUND if name in fitted.free or float(getattr(who, name)) > 0})
    yield (
        f"The growth factor C = {formula} per round, at {mechanism.noise_label} {x:.4g} and {n:.6g} users, is"
        f" {estimate} ({growth.level:.0%} interval {low} to {high})."
    )
    known = [name for name, sure in found.identified.items() if sure]
    if known:
        yield f"The counts identify {listed(known)}."


def _formula(who, background):
    """The growth factor, with the symbols of the rates that are not 0."""
    everyone = who.recruiters == "everyone"
    if not background:
        return "1 + r - q p" if everyone else "1 + r - (q + r) p"
    less = " - q_spared" if "leave_spared" in background else ""
    recruits = "" if everyone else " + r" + (" - r_leaked" if "recruit_leaked" in background else "")
    return f"1 + r{less} - (q{less}{recruits}) p"


def _unknown_in_words(found):
    unknown = [name for name, sure in found.identified.items() if not sure]
    if not unknown:
        return
    flows = found.fitted.problem.plan.flows
    what = "from counts, leavers and joiners" if flows else "from counts alone"
    when = " at constant noise" if found.constant_noise else ""
    apart = [name for name in ("leave", "recruit") if name in unknown]
    others = [name for name in unknown if name not in apart or len(apart) < 2]
    if len(apart) == 2:
        yield f"Leave and recruit are not separately identified {what}{when}, only the combination C."
    if others:
        nor = "Nor is" if len(apart) == 2 else f"Not identified {what}{when}:"
        yield f"{nor} {listed(others)}."
    by_spread = [name for name in unknown if found.rests_on[name] == "spread"]
    yield from _ranges_in_words(found, [name for name in unknown if name not in by_spread])
    if by_spread:
        yield (
            f"From the spread of the counts alone, wrong if anything else moves them: {_ranges(found, by_spread)}"
            f" ({found.profiles[by_spread[0]].level:.0%})."
        )


def _ranges_in_words(found, unknown):
    if not unknown:
        return
    told = " (with the prior)" if not all(one.is_flat for one in found.fitted.problem.prior) else ""
    yield f"{found.profiles[unknown[0]].level:.0%} ranges{told}: {_ranges(found, unknown)}."
    by_spread = found.constant_noise and not told and float(found.fitted.dispersion) == 1
    if by_spread and any(any(found.profiles[name].closed) for name in unknown):
        yield "They rest on how much counts vary too: if anything else moves the counts, they are wrong."


def _ranges(found, names):
    return ", ".join(f"{name} {found.profiles[name].low:.3g} to {found.profiles[name].high:.3g}" for name in names)


def _dispersion_in_words(fitted):
    if float(fitted.dispersion) > 1:
        yield (
            f"The counts vary {float(fitted.dispersion):.3g} times as much as the model says (variance; p ="
            f" {float(fitted.dispersion_p_value):.1g}): overdispersed. Intervals are wider by"
            f" {float(fitted.dispersion) ** 0.5:.3g} for it, and rest on means only."
        )
    elif float(fitted.underdispersion_p_value) < DETECTED:
        yield (
            f"The counts vary only {float(fitted.raw_dispersion):.3g} times as much as the model says (variance; p ="
            f" {float(fitted.underdispersion_p_value):.1g}): underdispersed. Something that the model lacks holds them"
            f" together; intervals are as wide as the model's variance makes them."
        )


def listed(names: Sequence[str]) -> str:
    """Names in a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
