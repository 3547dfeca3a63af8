"""`fit`: leave, recruit and threshold from observed participation."""

from collections.abc import Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from perfjax import _check
from perfjax._check import Numbers
from perfjax.calibration._likelihood import Evaluation, Problem
from perfjax.calibration._parameters import PARAMETERS, as_free, natural, slope
from perfjax.calibration._priors import AbstractPrior, as_priors
from perfjax.calibration._search import climb, in_chunks, prepared
from perfjax.calibration._series import Series, as_series, check_fits, labelled
from perfjax.calibration._transitions import Plan, plan_of
from perfjax.leakage import check_count_level
from perfjax.reconstruction import contrast_bound
from perfjax.scenario import Scenario, as_single

__all__ = ["DETECTED", "KNOWN", "Fit", "by_means", "deviations", "fit", "fit_as_planned", "refit"]

RIDGES, ONE_TOP = (15, 4), (0, 2)  # steps from every start, and how many of them go on
NO_RECRUITS = 1e-3  # of a recruit probability that is as good as 0
CLEARLY = 1.92  # of log likelihoods: half of what a parameter more gains by chance in 5 %
DETECTED = 0.01  # of the tests for more and for less variation: the chance of a false alarm of each
BARELY = 1e-6  # over 1, a dispersion that has only means believed and widens nothing
KNOWN = 1.83  # of log odds: a quarter of the width of what a flat prior leaves open, 95 % of it


class Fit(eqx.Module):
    """What a series says about the parameters; several groups have an axis in front.

    Attributes:
        problem: the series, the scenario that it was fitted with, and what was free.
        places: the estimates on the unconstrained scale: log odds of leave and recruit, log of the threshold; [free].
        log_likelihood: at the estimates, prior included.
        information: minus the second derivative of `log_likelihood` on the unconstrained scale, [free, free]; of a
            series that varies too much the expected one, of its means alone, by the dispersion.
        rows: whitened rows of the expected information, the data's first and then one per prior; [rows, free].
        trusted: of the data's rows, two per transition, which are those of means: 1 for a mean, 0 for a variance.
        log_growth: log of the growth factor C at `problem.growth_place`.
        growth_slopes: its derivative on the unconstrained scale, [free].
        expected: mean and standard deviation of each next count, after every round and then after every stretch of
            missing ones; the latter 0 where it is not known.
        dispersion: variance of the counts over that of the model, at least 1; 1 where no more is detected.
        raw_dispersion: the same, as it was estimated, above 0, detected or not.
        dispersion_p_value: of the test for more variation, in [0, 1].
        degrees_of_freedom: of the estimated dispersion.
        converged: whether the search settled.
        labels: of the rounds; kept apart from the problem, which is compiled once for all labels.
    """

    problem: Problem
    places: Float[Array, "*groups free"]
    log_likelihood: Float[Array, "*groups"]
    information: Float[Array, "*groups free free"]
    rows: Float[Array, "*groups rows free"]
    trusted: Float[Array, "*groups terms 2"]
    log_growth: Float[Array, "*groups"]
    growth_slopes: Float[Array, "*groups free"]
    expected: tuple[Float[Array, "*groups terms"], Float[Array, "*groups terms"]]
    dispersion: Float[Array, "*groups"]
    raw_dispersion: Float[Array, "*groups"]
    dispersion_p_value: Float[Array, "*groups"]
    degrees_of_freedom: Float[Array, "*groups"]
    converged: Bool[Array, "*groups"]
    labels: tuple[str, ...] = eqx.field(static=True)

    @property
    def free(self) -> tuple[str, ...]:
        """Names of the fitted parameters."""
        return self.problem.free

    @property
    def underdispersion_p_value(self) -> Float[Array, "*groups"]:
        """Of the test for less variation than the model says, in [0, 1]."""
        half = self.degrees_of_freedom / 2
        return jax.scipy.special.gammainc(half, half * self.raw_dispersion)

    @property
    def series(self) -> Series:
        """What was observed."""
        return labelled(self.problem.series, self.labels)

    @property
    def estimate(self) -> dict[str, Float[Array, "*groups"]]:
        """The most probable value of each free parameter. Read `identifiability` before believing one."""
        return {name: natural(name, self.places[..., i]) for i, name in enumerate(self.free)}

    @property
    def scenario(self) -> Scenario:
        """The scenario with the estimates, starting from the last count known: what `tune` should see next."""
        n = self.series.population
        last = jnp.max(jnp.where(jnp.isnan(n), -1, jnp.arange(n.shape[-1])), axis=-1)
        count = jnp.take_along_axis(n, last[..., None], axis=-1)[..., 0]
        scenario = self.problem.scenario
        return scenario.with_leaves(population=count, **self.estimate)

    @property
    def standard_error(self) -> dict[str, Float[Array, "*groups"]]:
        """Of each estimate, by the observed information and to first order; infinite where there is no information."""
        size = deviations(self)
        return {name: size[..., i] * slope(name, self.places[..., i]) for i, name in enumerate(self.free)}

    def expected_counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of one series: rounds whose count follows a known one, its mean given that one, and standard deviation."""
        starts = np.append(np.arange(self.series.rounds), [first for first, *_ in self.problem.plan.gaps])
        lengths = np.append(np.ones(self.series.rounds), [length for _, length, _ in self.problem.plan.gaps])
        mean, std = (np.asarray(x) for x in self.expected)
        told, at = std > 0, (starts + lengths).astype(int)
        order = np.argsort(at[told])
        return at[told][order], mean[told][order], std[told][order]

    def __str__(self) -> str:
        if self.log_likelihood.ndim:
            return f"Fit of {self.log_likelihood.size} groups, {int(np.sum(self.converged))} converged"
        error = self.standard_error
        lines = [
            f"  {name:<10} ({PARAMETERS[name].symbol})  {float(value):.4g} +- {float(error[name]):.2g}"
            for name, value in self.estimate.items()
        ]
        settled = "converged" if bool(self.converged) else "not converged"
        dispersion = f"  dispersion  {float(self.dispersion):.4g}"
        return "\n".join([f"Fit of {self.series}, {settled} (what it identifies: identifiability)", *lines, dispersion])


def deviations(fitted: Fit) -> Float[Array, "*groups free"]:
    """Standard errors on the unconstrained scale; infinite where there is no information."""
    size, vectors = jnp.linalg.eigh(fitted.information)
    rows = jnp.sqrt(jnp.maximum(size, 0))[..., None] * jnp.swapaxes(vectors, -2, -1)
    nothing = jnp.zeros((*rows.shape[:-1], 0), rows.dtype)
    eye = jnp.eye(rows.shape[-1], dtype=rows.dtype)
    return jnp.sqrt(jnp.stack([contrast_bound(rows, nothing, jnp.broadcast_to(c, rows.shape[:-1])) for c in eye], -1))


def fit(
    series: Series | Numbers,
    scenario: Scenario,
    *,
    free: Sequence[str] | None = None,
    prior: Mapping[str, AbstractPrior] | None = None,
) -> Fit:
    """Estimate parameters from observed counts: maximum likelihood, or the most probable values under a prior.

    The most probable values are those of the greatest

        sum_t log P(n_{t+1} | n_t, x_t; q, r, tau) + log prior(q, r, tau),

    with n_t the counts, x_t the noise, P the kernel that `population_law` propagates (where leavers and joiners are
    known, their probability), and densities by log odds of q and r and by log tau. It is climbed by damped Fisher
    scoring, with the curvature that gradients met on the way add, from the best of several places; the law of the
    leaks, which moves with the threshold alone, is tabulated once. Where counts vary more than the model says (a test
    at the 1 % level on their squared residuals), a quasi likelihood of the means takes over, which is wider by the
    dispersion estimated.

    Very many users: given the shared noise their next count is narrower than the 37 nodes of that noise lie apart.
    There the components are widened to the spacing and drawn together: that keeps mean and variance, not all of the
    skewness.

    In single precision a log likelihood is good to 0.02 and an estimate to a fifth of its standard error.

    Args:
        series: a `Series`, or just the counts; of several groups, which are fitted each on its own, with an axis in
            front.
        scenario: what is known: mechanism, leakage rule, floor and cap, recruiters; and the noise, one value or one per
            round, unless the series has a column for it. Its population plays no role.
        free: which of leave (q), recruit (r), threshold (tau), leave_spared and recruit_leaked to fit; the others are
            as the scenario has them. None: leave, recruit and threshold. Mean counts know recruit less leave_spared and
            leave less recruit_leaked only: with the second of a pair at 0, the first is what is left of it. None means
            leave_spared in place of recruit, which is then 0, where spared users of one series seem to leave faster
            than they recruit: where the noise varied, recruit comes out within two standard errors of 0, and
            leave_spared explains the counts clearly better (with less dispersion or, at the same, a log likelihood
            greater by 1.92).
            Leavers and joiners, with noise that varies, tell all of them apart.
        prior: by parameter, `Beta` (probabilities) or `LogNormal` (threshold).

    Returns:
        `Fit`. An estimate is a number even where the counts say nothing about it: `identifiability` tells which is so.

    Raises:
        ValueError: if the series or an argument is out of range, the row named; if the scenario is out of reach at the
            count level.

    Source: ours. The quasi likelihood is that of Wedderburn (1974).

    Example:
        >>> import perfjax as pj
        >>> counts = [400, 410, 421, 429, 440]
        >>> found = fit(counts, pj.preset("randomized-response"), free="leave")
        >>> bool(found.converged)
        True
    """
    if not _check.is_known(*jax.tree.leaves((series, scenario, prior))):
        raise ValueError("Function `fit` can't be traced: call it outside of `jax.jit`, `jax.vmap` and `jax.grad`.")
    series = as_series(series)
    check_count_level(as_single(scenario).mechanism, scenario.leakage, "leaks", instead=None)
    found = _fit_checked(series, scenario, _usual(scenario) if free is None else free, prior)
    if free is not None or not _falls_anyway(found, prior):
        return found
    instead = tuple("leave_spared" if name == "recruit" else name for name in found.free)
    other = _fit_checked(series, scenario.replace(recruit=0.0), instead, prior)
    return other if _clearly_better(other, found) else found


def _usual(scenario) -> tuple[str, ...]:
    return tuple(name for name in ("leave", "recruit", "threshold") if name in scenario.leaves())


def _fit_checked(series, scenario, free, prior) -> Fit:
    free = as_free(free, scenario)
    check_fits(series, scenario, free)
    return fit_as_planned(series, scenario, free, as_priors(prior, free), plan_of(series, scenario))


def _falls_anyway(found, prior) -> bool:
    """Whether spared users seem to leave faster than they recruit, which a fit of recruit alone can't say."""
    several = found.log_likelihood.ndim or found.problem.plan.ridges  # or noise that hardly varied, which can't tell
    known = float(found.problem.scenario.participation.leave_spared.max()) > 0 or "recruit" in (prior or {})
    if several or known:
        return False
    return float(found.estimate["recruit"]) < max(NO_RECRUITS, 2 * float(found.standard_error["recruit"]))


def _clearly_better(other, found) -> bool:
    """Whether the counts speak against `found`.

    Quasi likelihoods of different dispersions can't be compared, the dispersions can.
    """
    now, then = float(other.dispersion), float(found.dispersion)
    return now < then if now != then else float(other.log_likelihood - found.log_likelihood) > CLEARLY


def fit_as_planned(
    series: Series, scenario: Scenario, free: tuple[str, ...], priors: tuple[AbstractPrior, ...], plan: Plan
) -> Fit:
    """`fit` of what is checked."""
    parts = _check.in_precision((series, scenario, priors), scenario.population.dtype)
    problem = _problem(*parts, free, plan)
    found = in_chunks(lambda some: _fitted(some, series.labels), problem)
    groups = series.population.shape[:-1]
    return jax.tree.map(lambda x: x.reshape(*groups, *x.shape[1:]), found)


def _problem(series, scenario, priors, free, plan) -> Problem:
    """The problems of all groups, one axis in front of every array."""
    if series.noise is None:
        noise = jnp.broadcast_to(scenario.mechanism.noise, series.population.shape)
        series = eqx.tree_at(lambda s: s.noise, series, noise, is_leaf=lambda x: x is None)
    # One noise for the mechanism: what the releases had is the series' own.
    scenario = scenario.with_noise(scenario.mechanism.noise.ravel()[-1])
    series = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), labelled(series, None))
    count = series.population.shape[0]
    scenario, priors = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), (scenario, priors))
    size = series.rounds + len(plan.gaps)
    return Problem(
        scenario=scenario,
        series=series,
        prior=priors,
        dispersion=jnp.ones_like(scenario.population),
        weights=jnp.zeros((count, size, 2, 2), scenario.population.dtype),
        growth_place=_growth_place(series),
        low=jnp.zeros((count, len(free)), scenario.population.dtype),
        high=jnp.zeros((count, len(free)), scenario.population.dtype),
        law=None,
        free=free,
        plan=plan,
    )


def _growth_place(series):
    """Where growth factors are quoted: the geometric mean count, and the median noise."""
    return jnp.exp(jnp.nanmean(jnp.log(series.population), axis=-1)), jnp.nanmedian(series.noise[..., :-1], axis=-1)


def refit(fitted: Fit, place: Float[Array, " free"]) -> Fit:
    """One series anew, from one more start."""
    problem = fitted.problem
    plain = jnp.ones_like(problem.dispersion), jnp.zeros_like(problem.weights)
    problem = eqx.tree_at(lambda p: (p.dispersion, p.weights), problem, plain)
    found = _fitted(jax.tree.map(lambda x: x[None], problem), fitted.labels, place[None, None])
    return jax.tree.map(lambda x: x[0], found)


def by_means(fitted: Fit) -> Fit:
    """One series at the same estimate, by the quasi likelihood of the means alone.

    What the counts' variance says about the parameters is left aside. A fit that is by means already stays as it is.
    """
    if float(fitted.dispersion) > 1:
        return fitted
    problem, _ = prepared(jax.tree.map(lambda x: x[None], fitted.problem))
    place = fitted.places[None, None]
    weights = climb(problem, place, iterations=0).found.terms.whitening[:, 0]
    problem = eqx.tree_at(lambda p: (p.dispersion, p.weights), problem, (problem.dispersion + BARELY, weights))
    found = jax.tree.map(lambda x: x[0, 0], climb(problem, place, iterations=0).found)
    problem = jax.tree.map(lambda x: x[0], eqx.tree_at(lambda p: p.law, problem, None))
    return eqx.tree_at(
        lambda f: (f.problem, f.log_likelihood, f.information, f.rows),
        fitted,
        (problem, found.value, found.information, found.rows),
    )


def _fitted(problem: Problem, labels: tuple[str, ...], more: Float[Array, "groups lanes free"] | None = None) -> Fit:
    """All groups, stage by stage: every stage goes through the one compiled program of `climb`."""
    problem, starts = prepared(problem)
    starts = starts if more is None else jnp.concatenate([more, starts], axis=1)
    now = _highest(problem, starts)
    raw, degrees, p_value = _dispersions(now.found)
    over = (p_value < DETECTED) & (raw > 1)
    if np.any(over):
        # Weights stay those of the first fit: what the variance is relative to would move with the parameters.
        weights = now.found.terms.whitening
        for _ in range(2):
            dispersion = jnp.where(over, jnp.maximum(raw, 1 + BARELY), 1)
            problem = eqx.tree_at(lambda p: (p.dispersion, p.weights), problem, (dispersion, weights))
            now = _highest(problem, jnp.concatenate([now.places[:, None], starts], axis=1))
            raw, degrees = (jnp.where(over, x, y) for x, y in zip(_misfit(problem, now), (raw, degrees), strict=True))
    expected = jax.vmap(lambda found: found.information)(now.found)
    return Fit(
        problem=eqx.tree_at(lambda p: p.law, problem, None),
        places=now.places,
        log_likelihood=now.found.value,
        information=jnp.where(over[:, None, None], expected, _observed(problem, now, expected)),
        rows=now.found.rows,
        trusted=now.found.terms.trusted,
        log_growth=now.found.quantities[..., -1],
        growth_slopes=now.found.quantity_slopes[..., -1, :],
        expected=_expected(now.found.terms, problem),
        dispersion=problem.dispersion,
        raw_dispersion=raw,
        dispersion_p_value=p_value,
        degrees_of_freedom=degrees,
        converged=now.converged & jnp.isfinite(now.found.value),
        labels=labels,
    )


def _highest(problem, starts):
    """The highest of the maxima reached: all starts climb a little, the best of them to the top.

    Counts at one noise leave ridges with several maxima: of 48 such series, one missed the highest of all that the
    starts lead to, and from one start every other did. Where noise varied, all of 500 series had one maximum.
    """
    steps, climbing = RIDGES if problem.plan.ridges else ONE_TOP
    now = climb(problem, _best(climb(problem, starts, iterations=steps), climbing).places)
    return jax.tree.map(lambda x: x[:, 0], _best(now, 1))


@eqx.filter_jit
def _best(climbed, count):
    value = climbed.found.value
    order = jnp.argsort(jnp.where(jnp.isnan(value), jnp.inf, -value), axis=-1)[:, :count]
    return jax.tree.map(lambda x: jax.vmap(lambda lanes, i: lanes[i])(x, order), climbed)


@eqx.filter_jit
def _expected(told, problem):
    """The next count's mean and standard deviation, dispersion included, from its residual."""
    seen = ~jnp.isnan(told.residual)
    frozen, dispersion = problem.weights[..., 0, 0], problem.dispersion[:, None]
    by_weight = jnp.sqrt(dispersion) / jnp.where(frozen > 0, frozen, jnp.inf)
    flows = told.trusted[..., 1] > 0  # there, weights are those of leavers
    std = jnp.where((dispersion > 1) & ~flows, by_weight, told.std * jnp.sqrt(dispersion))
    return told.mean, jnp.where(seen, std, 0)


def _observed(problem, now, expected):
    """Minus the second derivative, by central differences of the gradient a fraction of a standard error apart."""
    size = now.places.shape[-1]
    fraction = 0.01 if now.places.dtype == jnp.float64 else 0.1
    step = fraction / jnp.sqrt(jnp.maximum(jnp.diagonal(expected, axis1=1, axis2=2), 1e-2))
    moves = step[:, None] * jnp.concatenate([jnp.eye(size, dtype=step.dtype), -jnp.eye(size, dtype=step.dtype)])
    inside = jnp.clip(now.places[:, None] + moves, problem.low[:, None], problem.high[:, None])
    gradient = climb(problem, inside, iterations=0).found.gradient
    apart = jnp.sum(jnp.abs(inside[:, :size] - inside[:, size:]), axis=-1, keepdims=True)
    second = -(gradient[:, :size] - gradient[:, size:]) / apart
    return (second + jnp.swapaxes(second, 1, 2)) / 2


@eqx.filter_jit
def _dispersions(found):
    return jax.vmap(_dispersion)(found)


def _dispersion(found: Evaluation):
    """Mean squared residual over the degrees of freedom left, these, and the chance of so much if the model holds."""
    z = found.terms.residual
    seen = ~jnp.isnan(z)
    squares, count = jnp.sum(jnp.where(seen, z, 0) ** 2), jnp.sum(seen).astype(z.dtype)
    size = jnp.linalg.eigvalsh(found.information) / jnp.maximum(squares / jnp.maximum(count, 1), 1)
    used = jnp.sum(size > (1.96 / KNOWN) ** 2).astype(z.dtype)
    degrees = jnp.maximum(count - used, 1)
    p_value = jax.scipy.special.gammaincc(degrees / 2, squares / 2)
    return squares / degrees, degrees, p_value


@eqx.filter_jit
def _misfit(problem, now):
    """Mean squared misfit of the means, by the weights of the problem, and the degrees of freedom."""

    def one(problem, found):
        told = found.terms
        z = jnp.einsum("tij,tj->ti", problem.weights, told.observed - told.expected, precision="highest") * told.trusted
        count = jnp.sum(jnp.where(jnp.abs(problem.weights).sum(-1) > 0, told.trusted, 0))
        used = jnp.sum(jnp.linalg.eigvalsh(found.information) > (1.96 / KNOWN) ** 2).astype(count.dtype)
        degrees = jnp.maximum(count - used, 1)
        return jnp.sum(z**2) / degrees, degrees

    return jax.vmap(one)(problem, now.found)
