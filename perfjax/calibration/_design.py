"""Which noise to use in the next rounds so that the parameters, or the best noise, become known."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfjax import _check
from perfjax._check import Numbers
from perfjax._linear import product
from perfjax.calibration._mixture import mixture_moments
from perfjax.calibration._parameters import as_free, slope, unconstrained, with_parameters
from perfjax.calibration._shared import law_of_release
from perfjax.leakage import check_count_level
from perfjax.montecarlo._inputs import as_key
from perfjax.objectives import AbstractObjective, CumulativeError
from perfjax.scenario import Scenario, as_single
from perfjax.tuning import Optimum, Sensitivities, sensitivities, tune
from perfjax.tuning._descent import best_of, descend

__all__ = ["Design", "best_noise_gradient", "design_experiment", "experiment_information"]

CANDIDATES, STARTS, STEPS = 256, 16, 100
FLAT = 1e-4  # slope of a log determinant, or of a log variance, that is as good as 0
ROUNDED = 1e-5  # of the greatest entry, what may be off in an information matrix
BASE = 1e-6  # information of a flat prior, so that one round has a determinant


class Design(eqx.Module):
    """An experiment: a noise for each of the next rounds.

    Attributes:
        noise: x_t, per round.
        population: n_t, users expected at each round (mean field).
        information: I, expected Fisher information on the unconstrained scale, what was known before included.
        log_determinant: log det I; -inf where the rounds can't tell the parameters apart.
        log_noise_std: standard deviation of the log of the best noise, by the information; NaN if it has no derivative.
        log_noise_std_before: the same before the experiment; infinite if nothing was known.
        error: summed expected error of the rounds.
        best_error: the same if all rounds used the noise that is best by the present estimate.
        regret: expected relative regret of tuning after the experiment: half curvature times variance.
        regret_before: the same before it.
        criterion: what was optimised.
    """

    noise: Float[Array, " rounds"]
    population: Float[Array, " rounds"]
    information: Float[Array, "free free"]
    log_determinant: Float[Array, ""]
    log_noise_std: Float[Array, ""]
    log_noise_std_before: Float[Array, ""]
    error: Float[Array, ""]
    best_error: Float[Array, ""]
    regret: Float[Array, ""]
    regret_before: Float[Array, ""]
    criterion: str = eqx.field(static=True)

    def __str__(self) -> str:
        noise = ", ".join(f"{x:.3g}" for x in np.asarray(self.noise))
        return (
            f"Experiment of {self.noise.size} rounds, optimal for {self.criterion}\n"
            f"  noise                   {noise}\n"
            f"  error of its rounds     {float(self.error):.4g} (with the noise now thought best"
            f" {float(self.best_error):.4g})\n"
            f"  log best noise          +- {float(self.log_noise_std):.3g}"
            f" (before +- {float(self.log_noise_std_before):.3g})\n"
            f"  regret of tuning after  {float(self.regret):.3g} (before {float(self.regret_before):.3g})"
        )


def design_experiment(
    scenario: Scenario,
    *,
    rounds: int,
    key: Array,
    free: Sequence[str] = ("leave", "recruit", "threshold"),
    bounds: tuple[float, float],
    criterion: str = "determinant",
    information: Numbers | None = None,
    objective: AbstractObjective | None = None,
) -> Design:
    """Noise levels for the next rounds that make the parameters, or the best noise, as well known as can be.

    By the information that is expected with noise x_t in round t, along the path n_t of the population that the levels
    themselves bring about,

        I = I_0 + sum_t J(n_t, x_t)^T J(n_t, x_t),

    I_0 what is known and J the whitened Jacobian of mean and variance of the next count, at the estimate. "determinant"
    makes log det I great, "best-noise" g^T I^-1 g small, g the gradient of the log of the best noise; each is climbed
    by its gradient from the best of many random designs. All of it is local to the estimate, and the counts to come
    are taken to vary as the model says: after a fit that found them to vary more, that promises too much.

    Args:
        scenario: the estimate, as `Fit.scenario`; its population is that of the first round.
        rounds: k, at least 1.
        key: a typed key, for the random designs to start from.
        free: the parameters to learn.
        bounds: least and greatest noise allowed, in the mechanism's unit, above 0.
        criterion: "determinant" (D-optimal: the volume of the parameters' confidence region) or "best-noise"
            (c-optimal: the variance of the best noise).
        information: I_0, [free, free], what is known already, on the unconstrained scale, as `Fit.information`; None:
            nothing. Symmetric and positive semidefinite, as the expected one of a fit, `rows.T @ rows`, always is.
        objective: of the best noise; `CumulativeError()` by default.

    Returns:
        `Design`, with what it costs in error beside what it gains; that is NaN where the best noise has no derivative.

    Raises:
        ValueError: if an argument is out of range; for "best-noise", if the best noise has no derivative.

    Source: ours.

    Example:
        >>> import jax, perfjax as pj
        >>> scenario, key = pj.preset("randomized-response").replace(rounds=10), jax.random.key(0)
        >>> made = design_experiment(scenario, rounds=2, key=key, free="leave", bounds=(0.1, 5.0))
        >>> print(made.noise)
        [5. 5.]
    """
    check_count_level(as_single(scenario).mechanism, scenario.leakage, "leaks", instead=None)
    rounds, key = _check.as_count(rounds, "rounds", low=1), as_key(key)
    free = as_free(free, scenario)
    _check.as_choice(criterion, "criterion", ("determinant", "best-noise"))
    log_bounds = _log_bounds(scenario, bounds)
    known = _known(information, len(free), log_bounds.dtype)
    optimum = tune(scenario, CumulativeError() if objective is None else objective)
    gradient, sensitivity = best_noise_gradient(optimum, free)
    if criterion == "best-noise" and sensitivity.reason is not None:
        raise _check.fail("criterion", 'be "determinant"', f'"best-noise", which is undefined ({sensitivity.reason})')
    of_noise = jnp.asarray(criterion == "best-noise")
    noise = _designed(scenario, free, rounds, key, log_bounds, known, gradient, of_noise)
    gradient = gradient if sensitivity.reason is None else jnp.full_like(gradient, jnp.nan)
    return _described(optimum, free, noise, known, gradient, criterion)


def best_noise_gradient(optimum: Optimum, free: tuple[str, ...]) -> tuple[Float[Array, " free"], Sensitivities]:
    """How the log of the best noise moves with the places of the free parameters; 0 where undefined."""
    found = sensitivities(optimum)
    leaves = optimum.scenario.leaves()
    if found.reason is not None:
        return jnp.zeros(len(free), optimum.noise.dtype), found
    slopes = [slope(name, unconstrained(name, leaves[name])) for name in free]
    return jnp.stack([found.values[name] * s / optimum.noise for name, s in zip(free, slopes, strict=True)]), found


def experiment_information(
    scenario: Scenario, free: tuple[str, ...], noise: Float[Array, " rounds"]
) -> tuple[Float[Array, "free free"], Float[Array, " rounds"]]:
    """Expected information of the counts that follow releases with `noise`, and the expected path of users."""
    places = jnp.stack([unconstrained(name, scenario.leaves()[name]) for name in free])
    who = scenario.participation

    def release(n, x):
        def moments(moved):
            varied = with_parameters(scenario, free, moved)
            return jnp.stack(mixture_moments(varied.participation, law_of_release(varied, n, x), n))

        (mean, variance), slopes = moments(places), jax.jacfwd(moments)(places)
        rows = slopes / jnp.stack([jnp.sqrt(variance), jnp.sqrt(2.0) * variance])[:, None]
        return who.bounded(mean), (product(rows.T, rows), n)

    _, (informations, path) = jax.lax.scan(release, scenario.population, noise)
    return jnp.sum(informations, axis=0), path


def _log_bounds(scenario, bounds):
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise _check.fail("bounds", "be two numbers, (least, greatest)", _check.quoted(bounds))
    ends = [_check.as_float(x, "bounds").astype(scenario.population.dtype) for x in bounds]
    for end in ends:
        _check.in_range(end, "bounds", 0, open_low=True, open_high=True)
    if not ends[0] < ends[1]:
        raise _check.fail("bounds", "have the lower end first", f"({ends[0]:g}, {ends[1]:g})")
    return jnp.log(jnp.stack(ends))


def _known(information, size, dtype) -> Float[Array, "free free"]:
    """The information there is before the experiment, checked."""
    if information is None:
        return jnp.zeros((size, size), dtype)
    if not _check.is_known(*jax.tree.leaves(information)):
        raise _check.fail("information", "be known", "traced")
    known = _check.as_float(information, "information")
    if known.shape != (size, size):
        raise _check.fail("information", f"be of shape {(size, size)}", f"of shape {known.shape}")
    found = np.asarray(known, float)
    if not np.all(np.isfinite(found)):
        raise _check.fail("information", "be finite", known)
    if not np.allclose(found, found.T, rtol=ROUNDED, atol=ROUNDED * np.max(np.abs(found))):
        raise _check.fail("information", "be symmetric", known)
    sizes = np.linalg.eigvalsh(found)
    if sizes[0] < -ROUNDED * max(sizes[-1], 0):
        raise _check.fail("information", "be positive semidefinite", f"of eigenvalue {sizes[0]:.3g}")
    return known.astype(dtype)


def _loss(information, gradient, of_noise):
    """What to make small: minus the log determinant, or the log variance of the best noise."""
    information = information + BASE * jnp.eye(information.shape[0], dtype=information.dtype)
    variance = product(gradient, jnp.linalg.solve(information, gradient))
    positive = variance > 0
    log_variance = jnp.log(jnp.where(positive, variance, 1))
    return jnp.where(of_noise, log_variance, -jnp.linalg.slogdet(information)[1])


@eqx.filter_jit
def _designed(scenario, free, rounds, key, log_bounds, known, gradient, of_noise):
    low, high = log_bounds

    def loss(log_noise):
        found = _loss(known + experiment_information(scenario, free, jnp.exp(log_noise))[0], gradient, of_noise)
        return jnp.where(jnp.isfinite(found), found, 1e10)

    # Best designs often lie at the bounds, in most of their rounds: half of the candidates do.
    inside, side = (jax.random.uniform(k, (CANDIDATES, rounds), low.dtype) for k in jax.random.split(key))
    at_bounds = (jnp.arange(CANDIDATES) % 2 == 0)[:, None]
    starts = low + (high - low) * jnp.where(at_bounds, jnp.round(side), inside)
    starts = starts[jnp.argsort(jax.vmap(loss)(starts))[:STARTS]]
    descents = jax.lax.map(
        lambda start: descend(jax.value_and_grad(loss), start, low, high, steps=STEPS, tolerance=FLAT), starts
    )
    return jnp.exp(best_of(descents).place)


@eqx.filter_jit
def _described(optimum, free, noise, known, gradient, criterion) -> Design:
    scenario = optimum.scenario
    found, path = experiment_information(scenario, free, noise)
    constant = jnp.full_like(noise, optimum.noise)
    other_path = experiment_information(scenario, free, constant)[1]
    error = jax.vmap(scenario.mechanism.error)
    after, before = (_std(i, gradient) for i in (known + found, known))
    curvature = _curvature(optimum)
    return Design(
        noise=noise,
        population=path,
        information=known + found,
        log_determinant=jnp.linalg.slogdet(known + found)[1],
        log_noise_std=after,
        log_noise_std_before=before,
        error=jnp.sum(error(path, noise)),
        best_error=jnp.sum(error(other_path, constant)),
        regret=curvature * after**2 / 2,
        regret_before=curvature * before**2 / 2,
        criterion=criterion,
    )


def _std(information, gradient):
    size, vectors = jnp.linalg.eigh(information)
    parts = product(gradient, vectors) ** 2
    known = size > size[-1] * jnp.finfo(size.dtype).eps * size.size
    blind = jnp.any(~known & (parts > 1e-12 * jnp.sum(parts)))
    variance = jnp.sum(jnp.where(known, parts / jnp.where(known, size, 1), 0))
    return jnp.where(blind, jnp.inf, jnp.sqrt(variance))


def _curvature(optimum):
    """Second derivative of the log objective by log noise at the best noise."""
    width = 0.02

    def value(shift):
        return optimum.objective.evaluate(optimum.scenario.with_noise(optimum.noise * jnp.exp(shift)), None).log_value

    below, here, above = jax.vmap(value)(jnp.asarray([-width, 0.0, width], optimum.noise.dtype))
    return jnp.maximum(above - 2 * here + below, 0) / width**2
