"""Many series from one truth, each fitted: how often the profile intervals cover it, and how far estimates scatter."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import perfjax as pj
from perfjax import calibration
from perfjax.calibration._likelihood import Constraint, Evaluation
from perfjax.calibration._parameters import unconstrained
from perfjax.calibration._profile import cutoff
from perfjax.calibration._search import climb, in_chunks, prepared
from perfjax.scenario import Scenario

__all__ = ["NOISE", "Study", "at_truth", "covers", "simulated_flows", "study"]

NOISE = np.append(np.random.default_rng(0).permutation(np.geomspace(0.5, 8, 40)), 1.0)
FEW = 10
NAMES = ("leave", "recruit", "threshold")


class Study(NamedTuple):
    fitted: calibration.Fit
    truth: np.ndarray
    covered: np.ndarray  # [data sets, parameters]


def study(truth: Scenario, series: calibration.Series, names: tuple[str, ...] = NAMES) -> Study:
    fitted = calibration.fit(series, truth, free=names)
    places = jnp.stack([unconstrained(name, truth.leaves()[name]) for name in names])
    return Study(fitted, np.asarray(places), covers(fitted, places))


def at_truth(found: Study) -> Evaluation:
    """The likelihood of every series where its truth lies, one lane each."""

    def there(problem):
        problem, _ = prepared(problem)
        groups = problem.dispersion.size
        return climb(problem, jnp.broadcast_to(found.truth, (groups, 1, found.truth.size)), iterations=0).found

    return in_chunks(there, found.fitted.problem)


def covers(fitted: calibration.Fit, places: jax.Array) -> np.ndarray:
    """Whether the 95 % profile interval of each parameter holds its place: the drop there, without the interval."""
    size = places.size
    contrast = jnp.eye(size, size + 1)

    def greatest_there(problem):
        problem, _ = prepared(problem)
        groups = problem.dispersion.size
        starts = jnp.broadcast_to(places, (groups, size, size))
        rows = (contrast, places, jnp.full(size, 1e-4))
        return climb(problem, starts, Constraint(*(jnp.broadcast_to(x, (groups, *x.shape)) for x in rows))).found.value

    drops = 2 * (fitted.log_likelihood[:, None] - in_chunks(greatest_there, fitted.problem))
    return np.asarray(drops) < cutoff(fitted, 0.95)[:, None]


def simulated_flows(truth: Scenario, noise: np.ndarray, sets: int, seed: int) -> calibration.Series:
    """Counts, leavers and joiners, drawn by NumPy from the model; no more is observed once `FEW` users are left."""
    random = np.random.default_rng(seed)
    who = truth.participation
    of_leaked, of_spared = ([float(x) for x in rates] for rates in (who.leaked, who.spared))
    law = jax.jit(jax.vmap(lambda n, x, s: pj.leakage.leak_distribution(truth.mechanism, truth.leakage, n, x, s)))
    n, unknown = np.full(sets, float(truth.population)), np.full(sets, np.nan)
    rows = []
    for x in noise[:-1]:
        given = law(n, np.full(sets, x), random.chisquare(truth.mechanism.dim, sets))
        spread = np.sqrt(np.maximum(n * np.asarray(given.spread), 0))
        leaked = np.round(n * np.asarray(given.leaked) + spread * random.standard_normal(sets))
        leaked = np.clip(leaked, 0, n).astype(int)
        spared = n.astype(int) - leaked
        flows = zip(of_leaked, of_spared, strict=True)
        out, new = (random.binomial(leaked, p) + random.binomial(spared, q) for p, q in flows)
        seen = n > FEW
        rows.append([np.where(seen, column, np.nan) for column in (n, out, new)])
        n = np.where(seen, n - out + new, n)
    rows.append([np.where(n > FEW, n, np.nan), unknown, unknown])
    counts, leavers, joiners = np.stack(rows).transpose(1, 2, 0)
    return calibration.Series(counts, noise=noise, leavers=leavers, joiners=joiners)
