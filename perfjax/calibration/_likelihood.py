"""The log likelihood of a series on the unconstrained scale, with its gradient and information, and its maximum."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from perfjax._linear import product
from perfjax.calibration._parameters import with_parameters
from perfjax.calibration._priors import AbstractPrior
from perfjax.calibration._series import Series
from perfjax.calibration._shared import Place, SharedLaw, Table
from perfjax.calibration._terms import Terms
from perfjax.calibration._transitions import Plan, growth_at_place, terms
from perfjax.scenario import Scenario

__all__ = ["ITERATIONS", "Constraint", "Evaluation", "Maximum", "Problem", "evaluate", "maximise", "whitener"]

ITERATIONS = 100
LONGEST = 2.0  # of a step, on the unconstrained scale


class Problem(eqx.Module):
    """A series, the model of it, and what is free.

    `growth_place` is the count and the noise where the growth factor is quoted. With `dispersion` above 1 only means
    are believed: a quasi likelihood with fixed `weights` takes the likelihood's place, since what the counts' variance
    says about the parameters holds no longer. `law` is there only while the likelihood is climbed: see `tabulated`.
    """

    scenario: Scenario
    series: Series
    prior: tuple[AbstractPrior, ...]
    dispersion: Float[Array, "*groups"]
    weights: Float[Array, "*groups terms 2 2"]
    growth_place: Place
    low: Float[Array, "*groups free"]
    high: Float[Array, "*groups free"]
    law: Table | None
    free: tuple[str, ...] = eqx.field(static=True)
    plan: Plan = eqx.field(static=True)

    def law_at(self, scenario: Scenario) -> SharedLaw:
        """The law of the leaks at a scenario's threshold."""
        assert self.law is not None
        return self.law.at(jnp.log(scenario.leaves()["threshold"])) if "threshold" in self.free else self.law.only()


class Evaluation(NamedTuple):
    """At a place: log likelihood plus log prior, its gradient, and the expected information by its whitened rows."""

    value: Float[Array, ""]
    gradient: Float[Array, " free"]
    rows: Float[Array, "rows free"]
    quantities: Float[Array, " quantities"]
    quantity_slopes: Float[Array, "quantities free"]
    terms: Terms

    @property
    def information(self) -> Float[Array, "free free"]:
        """The expected information, of data and priors."""
        return product(self.rows.T, self.rows)


def evaluate(problem: Problem, places: Float[Array, " free"]) -> Evaluation:
    """Value, gradient and information at once."""

    def at(moved):
        scenario = with_parameters(problem.scenario, problem.free, moved)
        law = problem.law_at(scenario)
        found = terms(scenario, problem.series, problem.plan, law)
        quantities = jnp.append(moved, jnp.log(growth_at_place(scenario.participation, law)))
        return (found.log_probability, found.expected, quantities), (found, quantities)

    (log_slopes, slopes, quantity_slopes), (found, quantities) = jax.jacfwd(at, has_aux=True)(places)
    value, gradient, rows = _by_counts(problem, found, log_slopes, slopes)
    prior, prior_gradient, prior_rows = _by_priors(problem, places)
    return Evaluation(
        value + prior,
        gradient + prior_gradient,
        jnp.concatenate([rows, prior_rows]),
        quantities,
        quantity_slopes,
        found,
    )


def _by_counts(problem, found, log_slopes, slopes):
    """The log likelihood, or the quasi likelihood in its place, its gradient, and whitened rows."""
    over, whitening = problem.dispersion > 1, whitener(problem, found)
    rows = jnp.einsum("tij,tjk->tik", whitening, slopes, precision="highest")
    misfit = jnp.einsum("tij,tj->ti", whitening, found.observed - found.expected, precision="highest")
    value = jnp.where(over, -jnp.sum(misfit**2) / 2, jnp.sum(found.log_probability))
    gradient = jnp.where(over, jnp.einsum("ti,tik->k", misfit, rows, precision="highest"), jnp.sum(log_slopes, axis=0))
    return value, gradient, rows.reshape(-1, rows.shape[-1])


def whitener(problem: Problem, found: Terms) -> Float[Array, "terms 2 2"]:
    """What makes the statistics of every transition independent and of variance 1; 0 for what is not to be believed."""
    weights = problem.weights * found.trusted[..., None]
    return jnp.where(problem.dispersion > 1, weights, found.whitening) / jnp.sqrt(problem.dispersion)


def _log_prior(problem, places):
    return sum((one.log_density(places[i]) for i, one in enumerate(problem.prior)), jnp.zeros_like(places[0]))


def _by_priors(problem, places):
    """Log prior, its gradient, and a whitened row for each free parameter."""
    gradient = jax.grad(lambda p: _log_prior(problem, p))
    curvature = jnp.diagonal(jax.jacfwd(gradient)(places))
    rows = jnp.diag(jnp.sqrt(jnp.maximum(-curvature, 0)))
    return _log_prior(problem, places), gradient(places), rows


def _scoring(gradient, information, damping):
    """A step by the inverse of an information matrix (Fisher scoring), damped as by Levenberg and Marquardt."""
    size = jnp.maximum(jnp.diagonal(information), 1e-12)
    scale = jnp.sqrt(size)
    matrix = information / scale[:, None] / scale + jnp.diag(jnp.full_like(size, damping) + 1e-12)
    step = jnp.linalg.solve(matrix, gradient / scale) / scale
    return step * jnp.minimum(1, LONGEST / jnp.maximum(jnp.max(jnp.abs(step)), 1e-30))


class Constraint(NamedTuple):
    """A sum of the places and the log growth factor, held at a level by a penalty; of infinite width, none."""

    contrast: Float[Array, " quantities"]
    level: Float[Array, ""]
    width: Float[Array, ""]

    def observation(self, found: Evaluation) -> tuple[Float[Array, ""], Float[Array, " free"]]:
        """The penalty as one more observation, exact to its width: its misfit and its row."""
        misfit = (self.level - product(self.contrast, found.quantities)) / self.width
        return misfit, product(self.contrast, found.quantity_slopes) / self.width


class Maximum(NamedTuple):
    """A maximum and whether the search settled there."""

    places: Float[Array, " free"]
    found: Evaluation
    converged: Bool[Array, ""]


class _State(NamedTuple):
    """Of a climb: the place to look at next, and what is known of the best one so far.

    `beyond` is what the curvature there has beyond the expected information, by the gradients met on the way.
    """

    place: Float[Array, " free"]
    best: Float[Array, " free"]
    found: Evaluation
    value: Float[Array, ""]
    beyond: Float[Array, "free free"]
    damping: Float[Array, ""]
    settled: Bool[Array, ""]
    count: Int[Array, ""]


def maximise(
    problem: Problem, start: Float[Array, " free"], constraint: Constraint, iterations: Int[Array, ""]
) -> Maximum:
    """Climb from a start, along the places that meet the constraint; without iterations, evaluate there."""

    def step(state):
        return _moved(problem, constraint, _judged(problem, constraint, state))

    def searching(state):
        return (state.count == 0) | (~state.settled & (state.count <= iterations))

    start = jnp.clip(start, problem.low, problem.high)
    shapes = jax.eval_shape(lambda place: evaluate(problem, place), start)
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    zero = jnp.zeros_like(start)
    first = _State(
        start, start, nothing, zero[0], jnp.diag(zero), zero[0] + 1e-3, jnp.asarray(False), jnp.zeros((), jnp.int32)
    )
    end = jax.lax.while_loop(searching, step, first)
    return Maximum(end.best, end.found, end.settled)


def _judged(problem, constraint, state) -> _State:
    """Look at the place, and keep it if it is the best so far; go on more boldly if so, else more carefully."""
    first, there = state.count == 0, evaluate(problem, state.place)
    value = there.value - constraint.observation(there)[0] ** 2 / 2
    better = (value >= state.value) | first
    damping = jnp.where(first, state.damping, state.damping * jnp.where(better, 0.1, 8))
    return state._replace(
        best=jnp.where(better, state.place, state.best),
        found=jax.tree.map(lambda x, y: jnp.where(better, x, y), there, state.found),
        value=jnp.where(better, value, state.value),
        beyond=jnp.where(better & ~first, _beyond(state, there), state.beyond),
        damping=jnp.maximum(damping, jnp.where(better, 1e-10, 1e-4)),
    )


def _moved(problem, constraint, state) -> _State:
    """A step from the best place to the next one to look at; settled if a whole one would gain nothing."""
    best, found, damping = state.best, state.found, state.damping
    misfit, row = constraint.observation(found)
    gradient = found.gradient + misfit * row
    stuck = ((best <= problem.low) & (gradient < 0)) | ((best >= problem.high) & (gradient > 0))
    gradient = jnp.where(stuck, 0, gradient)
    curvature = _positive(found.information, state.beyond) + jnp.outer(row, row)
    curvature = jnp.where(~stuck[:, None] & ~stuck, curvature, jnp.diag(jnp.ones_like(gradient)))
    # By the step without damping: a damped one is short also far from the top.
    tolerance = 1e-5 if best.dtype == jnp.float64 else 1e-3
    settled = (product(gradient, _scoring(gradient, curvature, 0.0)) < tolerance) | (damping > 1e8)
    place = jnp.clip(best + _scoring(gradient, curvature, damping), problem.low, problem.high)
    return state._replace(place=place, settled=settled, count=state.count + 1)


def _beyond(state, there):
    """`beyond` after a step: the symmetric matrix of rank one that explains how the gradient changed (SR1)."""
    move = state.place - state.best
    change = state.found.gradient - there.gradient
    unexplained = change - product(there.information + state.beyond, move)
    along = product(unexplained, move)
    told = jnp.abs(along) > 1e-6 * jnp.linalg.norm(unexplained) * jnp.linalg.norm(move)
    return state.beyond + jnp.where(told, 1 / jnp.where(told, along, 1), 0) * jnp.outer(unexplained, unexplained)


def _positive(information, beyond):
    """The curvature, or where that is not positive the information alone."""
    scale = jnp.sqrt(jnp.maximum(jnp.diagonal(information), 1e-12))
    both = information + beyond
    least = jnp.linalg.eigvalsh(both / scale[:, None] / scale)[0]
    return jnp.where(least > 1e-6, both, information)
