"""Whether the counts show that leaks matter at all, against the model in which they play no role."""

import math
from typing import Any

import equinox as eqx
import jax
import numpy as np
import scipy.special
from jaxtyping import Float

from perfjax.calibration._fit import Fit
from perfjax.calibration._likelihood import Problem
from perfjax.calibration._profile import as_one_fit
from perfjax.calibration._search import prepared
from perfjax.calibration._shared import over_shared

__all__ = ["LeakTest", "compared", "leak_test"]

LEVEL = 0.05  # of the test: how often it calls attrition leaks
ORDERS = 9999  # in which the changes of the counts might have come
LEAST_ROUNDS = 5
VARIES = 1e-3  # of leak probabilities, in standard deviations: below, a threshold can explain no change of the counts


class LeakTest(eqx.Module):
    """The two explanations of a series: leaks drive people away, or leaks play no role.

    Attributes:
        statistic: the greatest correlation, over thresholds, of the changes of the count with the probability of being
            spared; NaN where it is not defined.
        p_value: the probability of so great a one if leaks play no role; NaN where there is nothing to compare.
        weight: of the explanation by leaks, in [0, 1]: its probability by Schwarz's criterion, from even odds; NaN as
            the p-value.
        growth: the factor per round by the explanation without leaks, 1 + recruit - leave whatever the noise.
        growth_interval: the 95 % interval of it.
        reason: why there is nothing to compare, or None.
    """

    statistic: float = eqx.field(static=True)
    p_value: float = eqx.field(static=True)
    weight: float = eqx.field(static=True)
    growth: float = eqx.field(static=True)
    growth_interval: tuple[float, float] = eqx.field(static=True)
    reason: str | None = eqx.field(static=True)

    @property
    def verdict(self) -> str:
        """One of "shown", "not shown" (p-value above 0.05) and "not testable"."""
        if self.reason is not None:
            return "not testable"
        return "shown" if self.p_value <= LEVEL else "not shown"

    @property
    def doubted(self) -> bool:
        """Whether a role for leaks is one of two explanations only: where it is "not shown"."""
        return self.verdict == "not shown"

    @property
    def role(self) -> float:
        """What the explanation by leaks counts for in probabilities: `weight` where it is doubted, else 1."""
        return self.weight if self.doubted else 1.0

    @property
    def words(self) -> str:
        """The same as a sentence."""
        if self.reason is not None:
            return f"These counts can't tell whether leaks make people leave: {self.reason}."
        if self.verdict == "shown":
            return f"The counts show that leaks make people leave, or recruit less (p = {self.p_value:.2g})."
        low, high = self.growth_interval
        return (
            f"The counts do not show that leaks make people leave (p = {self.p_value:.2g}): they may as well grow by"
            f" {self.growth:.4g} per round (95 % {low:.4g} to {high:.4g}) whatever the noise."
        )

    def weighed(self, share: float) -> str:
        """How both explanations are weighted, in words; with a role for leaks privacy pays with probability `share`.

        Without one nobody leaves because of a leak, and noise is an error for nothing.
        """
        return (
            f"The counts give a role for leaks a probability of {self.role:.3g} (Schwarz's criterion, from even odds),"
            f" and with one privacy pays in {share:.0%} of the draws: it pays with probability {self.role:.3g} x"
            f" {share:.3g} = {self.role * share:.3g}."
        )

    def summary(self) -> dict[str, Any]:
        """All of it under names, for JSON and TOML; NaN where there is nothing to compare."""
        numbers = {name: getattr(self, name) for name in ("statistic", "p_value", "weight", "growth")}
        ends = {"growth_low": self.growth_interval[0], "growth_high": self.growth_interval[1]}
        reason = {} if self.reason is None else {"reason": self.reason}
        return {"verdict": self.verdict, "words": self.words} | reason | numbers | ends

    def __str__(self) -> str:
        return self.words


def leak_test(fitted: Fit) -> LeakTest:
    r"""Compare a fit with the model in which leaks play no role: leave = leave_spared and recruit = recruit_leaked.

    Without a role for leaks the count changes by the same share in every round, on average, whatever the noise:

        y_t = (n_{t+1} - inflow_t) / n_t - 1,   E y_t = recruit - leave,   Var y_t = phi / n_t,

    with leaks E y_t = a - b p(x_t, n_t; tau), b > 0. The statistic is the greatest correlation of y_t, weighted by n_t,
    with 1 - p over the thresholds tau that `fit` searches (a monotone function of the likelihood ratio for normal
    y_t with unknown phi). The threshold means nothing where b = 0, and b is at an end of its range: the chi-square law
    does not hold. The null law is simulated instead: if leaks play no role, the deviations sqrt(n_t) (y_t - mean) might
    have come in any order, and 9999 orders are tried, always the same ones, so that a series has one p-value. Counts
    may vary more than the model says. Where leavers and joiners are known, theirs take the place of y_t: the greater of
    both statistics counts, in the same orders.

    What is assumed: nothing else that moves the counts goes up and down with the noise. A trend does if noise was
    raised over the rounds; noise set in random order can't.

    Args:
        fitted: the fit of one series.

    Returns:
        `LeakTest`. There is nothing to compare, which its `reason` says, where the noise did not vary or fewer than 5
        rounds are known. Of 400 series of 24 rounds in which 3 % left whatever the noise, 5 % had a p-value up to 0.05.

    Raises:
        ValueError: for the fit of several groups.

    Source: ours. A statistic over a parameter that the null model does not have: Davies (1987). Weights of models:
        Schwarz (1978), with two parameters more for leaks (one, where the threshold is known).

    Example:
        >>> import numpy as np, perfjax as pj
        >>> counts = [5000, 4851, 4702, 4566, 4421, 4301, 4166, 4037]
        >>> series = pj.calibration.Series(counts, noise=[0.5, 8, 1, 4, 2, 6, 0.7, 1])
        >>> print(leak_test(pj.fit(series, pj.preset("mean-estimation"), free="leave")).verdict)
        not shown
    """
    return compared(as_one_fit(fitted).problem)


def compared(problem: Problem) -> LeakTest:
    """`leak_test` of a series and its scenario, which is all that it looks at."""
    n, seen, changes, growth = _changes(problem)
    free = 1 if "threshold" in problem.free else 0
    if np.sum(seen) < LEAST_ROUNDS:
        return _nothing(f"fewer than {LEAST_ROUNDS} of their changes are known", *growth)
    if np.ptp(np.asarray(problem.series.noise, float)[:-1][seen]) == 0:
        return _nothing("the noise never varied", *growth)
    root = np.sqrt(n[seen])
    spared = _across(root * (1 - _leak_probabilities(problem)[:, seen]), root)
    varies = np.linalg.norm(spared, axis=1) > VARIES * np.linalg.norm(root)
    deviations = _across(root * changes[:, seen], root)
    moved = np.linalg.norm(deviations, axis=1) > 0
    if not np.any(varies) or not np.any(moved):
        return _nothing("they, or the leaks, hardly vary with the noise", *growth)
    statistics = _statistics(_unit(spared[varies]), deviations[moved], root)
    rounds, p_value = root.size, float(np.mean(statistics >= statistics[0] - 1e-12))
    ratio = -rounds * math.log1p(-(min(max(statistics[0], 0.0), 1 - 1e-12) ** 2))
    weight = float(scipy.special.expit((ratio - (1 + free) * math.log(rounds)) / 2))
    return LeakTest(float(statistics[0]), p_value, weight, *growth, None)


def _nothing(reason, growth, interval):
    return LeakTest(math.nan, math.nan, math.nan, growth, interval, reason)


def _changes(problem):
    """What the leaks of a round are compared with.

    The users of every round, which rounds to compare, what should fall with the leaks there, [kinds, rounds], and the
    growth if leaks play no role, with its interval.
    """
    series, who = problem.series, problem.scenario.participation
    n, inflow, noise = (np.asarray(x, float) for x in (series.population, series.inflow, series.noise))
    n, following, inflow, noise = n[:-1], n[1:], inflow[:-1], noise[:-1]
    usable = ~np.isnan(n) & ~np.isnan(noise)
    seen = usable & (following > float(who.floor)) & (following < float(who.cap))
    change = np.where(seen, (following - inflow) / np.where(seen, n, 1) - 1, 0)
    growth = _growth(n[seen], change[seen])
    if series.leavers is not None:
        out, new = np.asarray(series.leavers, float)[:-1], np.asarray(series.joiners, float)[:-1]
        told = usable & ~np.isnan(out) & ~np.isnan(new)
        if np.sum(told) >= LEAST_ROUNDS:
            return n, told, np.where(told, np.stack([-out, new]), 0) / np.where(told, n, 1), growth
    return n, seen, change[None], growth


def _growth(n, change):
    """The mean factor, weighted by the users, and its 95 % interval with the dispersion that the changes have."""
    if n.size < 2:
        return math.nan, (math.nan, math.nan)
    mean = float(np.average(change, weights=n))
    error = math.sqrt(np.sum(n * (change - mean) ** 2) / (n.size - 1) / np.sum(n))
    half = error * float(scipy.special.stdtrit(n.size - 1, 0.975))
    return 1 + mean, (1 + mean - half, 1 + mean + half)


def _leak_probabilities(problem) -> Float[np.ndarray, "thresholds rounds"]:
    """Of every round at the thresholds that are searched, or at the one that is known."""
    problem, _ = prepared(jax.tree.map(lambda x: x[None], problem))
    assert problem.law is not None
    law = jax.tree.map(lambda x: x[0], problem.law.law)
    return np.asarray(over_shared(law.given.leaked, law.weight), float)[:, :-1]


def _across(rows, direction):
    """Rows less what of them lies along a direction."""
    unit = direction / np.linalg.norm(direction)
    return rows - np.outer(rows @ unit, unit)


def _unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _statistics(spared, deviations, root) -> Float[np.ndarray, " orders"]:
    """The greatest correlation in the order observed, first, and in every other that is tried."""
    random = np.random.default_rng(0)
    rounds = np.tile(np.arange(root.size), (ORDERS, 1))
    orders = np.concatenate([rounds[:1], random.permuted(rounds, axis=1)])
    each = [_unit(_across(kind[orders], root)) @ spared.T for kind in deviations]
    return np.max(np.stack(each), axis=(0, 2))
