"""Objectives: one number for what a scenario costs, to be compared and minimised."""

import abc
import dataclasses
import functools
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Key

from perfjax import _check, leakage, theorems
from perfjax._check import Numbers
from perfjax.law import check_law, law_of, whole_cap
from perfjax.meanfield import recursion
from perfjax.montecarlo import as_key, runs
from perfjax.scenario import Scenario, as_single
from perfjax.trajectory import Trajectory

__all__ = [
    "BY_NAME",
    "AbstractObjective",
    "CumulativeBound",
    "CumulativeError",
    "Evaluation",
    "FinalError",
    "OverDraws",
    "counted_releases",
    "counted_words",
    "growth_factor",
    "log_value",
    "of_one_draw",
    "score_runs",
]

SOLVERS = ("mean-field", "law", "counts")
COLLAPSED = ("floor", "survived", "penalty")


class Evaluation(NamedTuple):
    """An objective's value, as a log because it can overflow, and the last release's population."""

    log_value: Float[Array, ""]
    last_population: Float[Array, ""]


_Objective = TypeVar("_Objective", bound="AbstractObjective")  # not Self, which beartype knows in whole classes only


class AbstractObjective(eqx.Module):
    """A number to be minimised. Calling it gives the number, `evaluate` its log for code that traces."""

    @abc.abstractmethod
    def check(self, scenario: Scenario, key: Key[Array, ""] | None = None) -> None:
        """Raise a `ValueError` if the objective does not exist for `scenario`, or needs a `key`."""

    def prepared(self: _Objective, scenario: Scenario, key: Key[Array, ""] | None = None) -> _Objective:
        """The objective for `scenario`: checked, and with what can't be known once the scenario is traced."""
        self.check(scenario, key)
        by_law = getattr(self, "solver", None) == "law"
        return dataclasses.replace(self, whole=whole_cap(scenario)) if by_law else self

    @abc.abstractmethod
    def evaluate(self, scenario: Scenario, key: Key[Array, ""] | None = None) -> Evaluation:
        """The log of the objective for a scenario that it is `prepared` for."""

    def __call__(self, scenario: Scenario, *, key: Key[Array, ""] | None = None) -> Float[Array, ""]:
        """The objective's value for `scenario`; infinite where it overflows.

        Args:
            scenario: the scenario.
            key: randomness, for a solver that samples.

        Returns:
            The value, of the units of an error: squared error, summed over the releases that count.

        Raises:
            ValueError: if the objective does not exist for the scenario, or `key` is missing or one too many.
        """
        value = log_value(self.prepared(as_single(scenario), key), scenario, key)
        fits = value < jnp.log(jnp.finfo(value.dtype).max)
        return jnp.where(fits, jnp.exp(jnp.where(fits, value, 0)), jnp.inf)


@eqx.filter_jit
def log_value(objective: AbstractObjective, scenario: Scenario, key: Key[Array, ""] | None) -> Float[Array, ""]:
    """The log of the objective for a scenario that it is `prepared` for, compiled."""
    return objective.evaluate(scenario, key).log_value


class FinalError(AbstractObjective):
    """The expected error of the last release, e(x_T, n_T).

    Attributes:
        solver: as in `CumulativeError`.
        trials: as in `CumulativeError`.
        collapsed: as in `CumulativeError`.
        penalty: as in `CumulativeError`.
        whole: as in `CumulativeError`.

    Raises:
        ValueError: as `CumulativeError` does.

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility", section 3.
    """

    solver: str = eqx.field(static=True)
    trials: int | None = eqx.field(static=True)
    collapsed: str = eqx.field(static=True)
    penalty: Float[Array, ""] | None
    whole: int | None = eqx.field(static=True, repr=False)

    def __init__(
        self,
        *,
        solver: str = "mean-field",
        trials: int | None = None,
        collapsed: str = "floor",
        penalty: ArrayLike | None = None,
        whole: int | None = None,
    ):
        self.solver, self.trials, self.collapsed, self.penalty = _check_run(solver, trials, collapsed, penalty)
        self.whole = whole

    def check(self, scenario: Scenario, key: Key[Array, ""] | None = None) -> None:
        _check_solver(self.solver, scenario, key)

    def evaluate(self, scenario: Scenario, key: Key[Array, ""] | None = None) -> Evaluation:
        return _window(self, scenario, key, scenario.rounds, scenario.rounds)


class CumulativeError(AbstractObjective):
    """The expected errors of releases `first_release` to `last_release`, summed.

    Attributes:
        first_release: 1 by default, as the paper's Lemma 9 sums; its simulations start at 0. The commands count every
            release, from 0 on, so that a constant noise and a schedule compare.
        last_release: T by default.
        solver: "mean-field", the error along the expected path; "law", its expectation over the law of the population;
            "counts", its mean over simulated runs, with a gradient that is wrong where runs collapse (see
            `simulate_counts`).
        trials: simulated runs, for "counts" only.
        collapsed: how a run counts from the first release on that max(floor, 1) users or fewer make. "floor": with the
            error of the users at the floor (default). "penalty": with `penalty` for each such release. "survived":
            not at all, the mean over the releases before standing for the rest; for "counts" only.
        penalty: error of a release after collapse, above 0.
        whole: set by `prepared`: a small cap, up to which the law has a node at every whole number.

    Raises:
        ValueError: if an argument is out of range, or `trials` or `penalty` is given without what needs it or missing.

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility", section 3 (regret) and Lemma 9.
    """

    first_release: int = eqx.field(static=True)
    last_release: int | None = eqx.field(static=True)
    solver: str = eqx.field(static=True)
    trials: int | None = eqx.field(static=True)
    collapsed: str = eqx.field(static=True)
    penalty: Float[Array, ""] | None
    whole: int | None = eqx.field(static=True, repr=False)

    def __init__(
        self,
        *,
        first_release: int = 1,
        last_release: int | None = None,
        solver: str = "mean-field",
        trials: int | None = None,
        collapsed: str = "floor",
        penalty: ArrayLike | None = None,
        whole: int | None = None,
    ):
        self.first_release = _check.as_count(first_release, "first_release", low=0)
        low = self.first_release
        self.last_release = None if last_release is None else _check.as_count(last_release, "last_release", low=low)
        self.solver, self.trials, self.collapsed, self.penalty = _check_run(solver, trials, collapsed, penalty)
        self.whole = whole

    def check(self, scenario: Scenario, key: Key[Array, ""] | None = None) -> None:
        last = self.first_release if self.last_release is None else self.last_release
        name = "first_release" if self.last_release is None else "last_release"
        if last > scenario.rounds:
            raise _check.fail(name, f"be at most `rounds` ({scenario.rounds})", last)
        _check_solver(self.solver, scenario, key)

    def evaluate(self, scenario: Scenario, key: Key[Array, ""] | None = None) -> Evaluation:
        last = scenario.rounds if self.last_release is None else self.last_release
        return _window(self, scenario, key, self.first_release, last)


class CumulativeBound(AbstractObjective):
    """The closed-form bound on the cumulative error of releases 1..T, e(x, n_0) (C^-1 + ... + C^-T).

    C is the growth factor at release 0. A bound on the mean-field error where C > 1 and no cap binds; elsewhere only a
    smooth stand-in, which knows neither floor nor cap. A clipping bias counts once per release.

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility", Lemma 9, equation 16.
    """

    def check(self, scenario: Scenario, key: Key[Array, ""] | None = None) -> None:
        del key
        if scenario.varies:
            noise = scenario.mechanism.noise
            found = f"of shape {noise.shape}" if noise.ndim else "a policy"
            raise _check.fail(scenario.mechanism.noise_name, "be one value for `CumulativeBound`", found)

    def evaluate(self, scenario: Scenario, key: Key[Array, ""] | None = None) -> Evaluation:
        del key
        n, rounds = scenario.population, scenario.rounds
        growth = growth_factor(scenario)
        alive = growth > jnp.sqrt(jnp.finfo(growth.dtype).tiny)  # or 1 / C in the derivative would overflow
        log_growth = jnp.log(jnp.where(alive, growth, 1))
        log_sum = theorems.log_geometric_sum(log_growth, first=1, last=rounds)
        bias = scenario.error(jnp.full_like(n, jnp.inf))
        log_value = jnp.log(scenario.error(n) - bias) + log_sum
        has_bias = bias > 0
        log_bias = jnp.log(jnp.where(has_bias, bias * rounds, 1))
        log_value = jnp.where(has_bias, jnp.logaddexp(log_value, log_bias), log_value)
        last = jnp.where(alive, n * jnp.exp(jnp.minimum(rounds * log_growth, 80)), 0)
        return Evaluation(jnp.where(alive, log_value, jnp.inf), scenario.participation.bounded(last))


class OverDraws(AbstractObjective):
    r"""The mean logarithm of an objective over draws of parameters that are known in part.

    It is

        mean_d log E(x, theta_d),

    with theta_d the draws. Its least noise has the least log(E(x, theta_d) / min_x E(x, theta_d)) on average: a draw
    counts by how much worse than its own best a noise is, not by how large its errors are, as in a mean of errors,
    where a few draws in which nearly everybody leaves would decide.

    Attributes:
        objective: E, on the expected path.
        draws: values of parameters by their names, one per draw; those of a draw belong together.

    Raises:
        ValueError: for draws of different lengths, or none.

    Source: ours. For draws of a posterior it is the Bayes rule of log regret.

    Example:
        >>> import perfjax as pj
        >>> draws = {"leave": [0.1, 0.45], "recruit": [0.2, 0.11]}
        >>> optimum = pj.tune(pj.preset("mean-estimation"), OverDraws(CumulativeError(), draws))
        >>> bool(optimum.certified)
        True
    """

    objective: AbstractObjective
    draws: dict[str, Float[Array, " draws"]]

    def __init__(self, objective: AbstractObjective, draws: Mapping[str, Numbers]):
        self.objective = _check.as_kind(objective, "objective", AbstractObjective)
        self.draws = {name: _check.as_float(x, name) for name, x in _check.as_kind(draws, "draws", Mapping).items()}
        shapes = {x.shape for x in self.draws.values()}
        if len(shapes) != 1 or any(len(shape) != 1 or not shape[0] for shape in shapes):
            found = ", ".join(f"{name} {x.shape}" for name, x in self.draws.items())
            raise _check.fail("draws", "have one value per draw for each parameter", f"of shapes {found or 'none'}")

    @property
    def solver(self) -> str:
        """That of the objective."""
        return getattr(self.objective, "solver", "mean-field")

    def check(self, scenario: Scenario, key: Key[Array, ""] | None = None) -> None:
        self.objective.check(scenario, key)
        if self.solver != "mean-field":
            raise _check.fail("solver", 'be "mean-field" for an objective over draws', _check.quoted(self.solver))
        numbers = [name for name, value in scenario.leaves().items() if eqx.is_inexact_array(value)]
        _check.check_known(self.draws, numbers, "parameter in `draws`")
        scenario.replace(**self.draws)

    def evaluate(self, scenario: Scenario, key: Key[Array, ""] | None = None) -> Evaluation:
        draws = _check.in_precision(self.draws, scenario.population.dtype)
        each = jax.vmap(lambda draw: self.objective.evaluate(scenario.with_leaves(**draw), key))(draws)
        return Evaluation(jnp.mean(each.log_value), jnp.max(each.last_population))


def of_one_draw(objective: AbstractObjective) -> AbstractObjective:
    """The objective of a single scenario: itself, or that which `OverDraws` averages."""
    return objective.objective if isinstance(objective, OverDraws) else objective


BY_NAME = {
    "cumulative-error": functools.partial(CumulativeError, first_release=0),
    "final-error": FinalError,
    "cumulative-bound": CumulativeBound,
}
"""The objectives by their names in files and on the command line, where cumulative errors are those of all releases."""


def counted_releases(objective: AbstractObjective, rounds: int) -> tuple[int, int] | None:
    """The first and the last release whose errors count; None for an objective that is not of this module."""
    objective = of_one_draw(objective)
    if isinstance(objective, FinalError):
        return rounds, rounds
    if isinstance(objective, CumulativeBound):
        return 1, rounds
    if isinstance(objective, CumulativeError):
        return objective.first_release, rounds if objective.last_release is None else objective.last_release
    return None


def counted_words(objective: AbstractObjective, rounds: int) -> str:
    """`counted_releases` in words, such as "releases 0 to 50"; empty where they are unknown."""
    counted = counted_releases(objective, rounds)
    if counted is None:
        return ""
    first, last = counted
    return f"releases {first} to {last}" if first < last else f"release {last}"


def growth_factor(scenario: Scenario) -> Float[Array, ""]:
    """C at release 0: the regime is growth above 1, decline below."""
    noise = scenario.noise_of(scenario.population, 0, scenario.noises()[0])
    split = leakage.split(scenario.mechanism, scenario.leakage, scenario.population, noise)
    return scenario.participation.growth(split)


def _check_run(solver, trials, collapsed, penalty):
    _check.as_choice(solver, "solver", SOLVERS)
    _check.as_choice(collapsed, "collapsed", COLLAPSED)
    if (solver == "counts") != (trials is not None):
        raise ValueError('Argument `trials` must be given with solver "counts", and only then.')
    trials = None if trials is None else _check.as_count(trials, "trials", low=1)
    if collapsed == "survived" and solver != "counts":
        raise _check.fail(
            "collapsed", 'be "floor" or "penalty" for a solver that does not sample', _check.quoted(collapsed)
        )
    if (collapsed == "penalty") != (penalty is not None):
        raise ValueError('Argument `penalty` must be given with collapsed "penalty", and only then.')
    if penalty is not None:
        penalty = _check.in_range(_check.as_float(penalty, "penalty"), "penalty", 0, open_low=True, open_high=True)
        if penalty.ndim:
            raise _check.fail("penalty", "be one number", penalty)
    return solver, trials, collapsed, penalty


def _check_solver(solver, scenario, key):
    if solver == "law":
        check_law(scenario)
    elif solver == "counts":
        leakage.check_count_level(scenario.mechanism, scenario.leakage, "count_release")
    if (solver == "counts") != (key is not None):
        raise ValueError('Argument `key` must be given with solver "counts", and only then.')
    if key is not None:
        as_key(key)


def _window(objective, scenario, key, first, last) -> Evaluation:
    """The log of the summed errors of releases first..last, by the objective's solver."""
    error, last_population = _SOLVE[objective.solver](objective, scenario, key, slice(first, last + 1))
    return Evaluation(jnp.log(error), last_population)


def _along_expected_path(objective, scenario, key, window):
    del key
    path = recursion(scenario)
    error = path.error
    if objective.collapsed == "penalty":
        error = jnp.where(path.collapsed, objective.penalty.astype(error.dtype), error)
    return jnp.sum(error[window]), path.population[-1]


def _over_law(objective, scenario, key, window):
    del key
    law = law_of(scenario, cap=objective.whole)
    error = law.expected_error
    if objective.collapsed == "penalty":
        error = law.surviving_error + law.collapse_probability * objective.penalty.astype(error.dtype)
    return jnp.sum(error[window]), law.mean[-1]


def _over_runs(objective, scenario, key, window):
    return score_runs(objective, runs(scenario, key, objective.trials), window)


def score_runs(
    objective: FinalError | CumulativeError, paths: Trajectory, window: slice
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The mean over simulated runs of their summed error, as the objective counts it, and of their last population."""
    assert paths.expected_error is not None
    down, error = paths.collapsed[:, window], paths.expected_error[:, window]
    if objective.penalty is not None:
        error = jnp.where(down, objective.penalty.astype(error.dtype), error)
    total = jnp.sum(error, axis=-1)
    if objective.collapsed == "survived":
        # A run that was down before the window counts with its first release there, as the published scripts do.
        down = down.at[:, 0].set(False)
        kept = jnp.sum(~down, axis=-1).astype(error.dtype)
        total = jnp.sum(jnp.where(down, 0, error), axis=-1) * (error.shape[-1] / kept)
    return jnp.mean(total), jnp.mean(paths.population[:, -1])


_SOLVE = {"mean-field": _along_expected_path, "law": _over_law, "counts": _over_runs}
