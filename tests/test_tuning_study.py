"""Random tunings of every mechanism and objective against scans of 2000 points: what is lost, and what is said."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import perfjax as pj
from perfjax.tuning import Status

ROUNDS = 12
OBJECTIVES = {"cumulative": pj.CumulativeError(), "bound": pj.CumulativeBound(), "final": pj.FinalError()}
RATIO, RECORD = pj.LikelihoodRatioAbove, pj.ReconstructedWithin
MECHANISMS = {
    "mean": (lambda _: pj.GaussianMean(1.0, dim=12), lambda u: RATIO(10 ** (-2 + 2 * u))),
    "mean, dim 2": (lambda _: pj.GaussianMean(1.0, dim=2), lambda u: RATIO(10 ** (-2 + 2 * u))),
    "mean, recomputed": (
        lambda _: pj.GaussianMean(1.0, dim=3),
        lambda u: RATIO(10 ** (-2 + 2 * u), outside="recomputed"),
    ),
    "mean, clipped": (
        lambda u: pj.GaussianMean(1.0, dim=6, clip_radius=1 + 2 * u),
        lambda u: RATIO(10 ** (-2 + 2 * u)),
    ),
    "reconstruction": (lambda _: pj.GaussianMean(1.0, dim=6), lambda u: RECORD(10 ** (2 * u))),
    "response": (lambda u: pj.RandomizedResponse(1.0, jnp.stack([u / 2, (1 + u) / 2])), lambda _: pj.TrueBitKept()),
    "response, one mean": (lambda u: pj.RandomizedResponse(1.0, u), lambda _: pj.TrueBitKept()),
    "clipped response": (
        lambda u: pj.RandomizedResponse(1.0, jnp.stack([u / 2, (1 + u) / 2]), clip_estimate=True),
        lambda _: pj.TrueBitKept(),
    ),
    "clipped, one mean": (lambda u: pj.RandomizedResponse(1.0, u, clip_estimate=True), lambda _: pj.TrueBitKept()),
    "count": (lambda u: pj.ShiftedLogCount(0.1, 0.2 + 30 * u), lambda u: RATIO(10 ** (-0.5 + 2 * u))),
}
SMALL = [("mean", "final"), ("clipped, one mean", "final"), ("count", "cumulative")]


def drawn(count: int, seed: int) -> dict[str, Any]:
    """Random participation, populations from 2 to 20000, of which a half are small or near a floor or cap."""
    rng = np.random.default_rng(seed)
    floor = np.where(rng.uniform(size=count) < 0.5, 1.0, rng.uniform(1, 6, count))
    population = floor + np.exp(rng.uniform(0, np.log(2000), count))
    cap = population * np.exp(rng.uniform(0, 5, count))
    leave, recruit = rng.uniform(size=(2, count)) ** rng.choice([1, 2], (2, count))
    leaves = {"leave": leave, "recruit": recruit, "floor": floor, "population": population, "cap": cap}
    return leaves | {"of_mechanism": rng.uniform(size=count), "of_leakage": rng.uniform(size=count)}


def scanned(value_at, low, high, together):
    """The least of 2000 values, and of 400 more around each of the four best of their minima."""

    def values_at(places):
        return jax.lax.map(value_at, places, batch_size=together)

    places = jnp.linspace(low, high, 2000)
    values = values_at(places)
    padded = jnp.pad(values, 1, constant_values=jnp.inf)
    dips = jnp.where((values <= padded[:-2]) & (values <= padded[2:]), values, jnp.inf)
    _, best = jax.lax.top_k(-dips, 4)
    step = places[1] - places[0]
    closer = places[best][:, None] + step * jnp.linspace(-1, 1, 401)
    return jnp.minimum(jnp.nanmin(values), jnp.nanmin(values_at(jnp.clip(closer, low, high).ravel())))


class Found(NamedTuple):
    """By how much the log objective of `tune` exceeds the scan's, whether it is certified, its status and noise."""

    loss: Any
    certified: Any
    status: Any
    noise: Any


def losses(
    mechanism: str,
    goal: Any,
    leaves: dict[str, Any],
    rounds: int = ROUNDS,
    together: tuple[int, int] = (4, 2000),
    **limits: float,
) -> Found:
    """Of one tuning per entry of `leaves`, all with the same `limits` on the population.

    So many tunings, and noises of a scan, are computed `together`, as memory allows.
    """
    tunings, noises = together
    make, leak = MECHANISMS[mechanism]

    def one(leaves):
        rates = {name: leaves[name] for name in ("leave", "recruit", "floor", "cap") if name not in limits}
        made, rule = make(leaves["of_mechanism"]), leak(leaves["of_leakage"])
        who = pj.Participation(**rates, **limits)
        scenario = pj.Scenario(made, rule, who, population=leaves["population"], rounds=rounds)
        found = pj.tune(scenario, goal)

        def value_at(place):
            return goal.evaluate(scenario.with_noise(jnp.exp(place))).log_value

        least = scanned(value_at, *(jnp.log(jnp.asarray(x)) for x in made.noise_bounds), noises)
        least = jnp.minimum(least, found.log_value_without_privacy)
        loss = jnp.where(found.log_value == least, 0, found.log_value - least)  # both may be -inf
        return Found(loss, found.certified, found.status, found.noise)

    in_turn = eqx.filter_jit(lambda leaves: jax.lax.map(one, leaves, batch_size=tunings))
    return Found(*(np.asarray(x) for x in in_turn(jax.tree.map(jnp.asarray, leaves))))


def check(name: str, found: Found) -> None:
    """Nothing is lost with a certificate, and little without a status that says so; prints a row of the table."""
    loss, certified, status, _ = found
    says_so = np.isin(status, [Status.INFEASIBLE, Status.NOT_CONVERGED, Status.CROWDED])
    false, silent = certified & ~(loss <= 1e-6), ~says_so & ~(loss <= 1e-3)
    rest = {Status(s).name.lower(): loss[~certified & (status == s)] for s in np.unique(status[~certified])}
    rest = ", ".join(f"{name} {len(x)} ({np.max(x):.2g})" for name, x in rest.items())
    worst = np.max(loss[certified], initial=0)
    print(f"{name} | {len(loss)} tunings | {certified.sum()} certified, worst loss {worst:.2g} | others: {rest or '-'}")
    assert not np.any(np.isnan(loss))
    assert not np.any(false), (np.flatnonzero(false), loss[false])
    assert not np.any(silent), (np.flatnonzero(silent), loss[silent])
    inside = np.isin(status, [Status.INTERIOR, Status.KINK, Status.NOT_CONVERGED])
    assert np.sum(certified & inside) >= 0.5 * np.sum(inside)  # a certificate that nobody gets would be no use


@pytest.mark.study
@pytest.mark.parametrize("objective", list(OBJECTIVES))
@pytest.mark.parametrize("mechanism", list(MECHANISMS))
def test_no_tuning_loses_what_it_certifies(mechanism, objective):
    """2070 tunings together: 75 each, but 15 where a scan of clipped means takes a minute."""
    found = losses(mechanism, OBJECTIVES[objective], drawn(15 if mechanism == "mean, clipped" else 75, seed=0))
    check(f"{mechanism}, {objective}", found)


@pytest.mark.study
@pytest.mark.parametrize("mechanism", ["mean", "response", "count"])
def test_no_tuning_of_an_expectation_loses_what_it_certifies(mechanism):
    """Over the law of the population, at most 40 users."""
    leaves = drawn(12, seed=2)
    leaves["population"] = np.minimum(leaves["population"], 30.0)
    found = losses(mechanism, pj.CumulativeError(solver="law"), leaves, rounds=6, together=(1, 20), floor=1.0, cap=40.0)
    check(f"{mechanism}, expected", found)


@pytest.mark.slow
@pytest.mark.parametrize(("mechanism", "objective"), SMALL)
def test_few_tunings_lose_nothing(mechanism, objective):
    check(f"{mechanism}, {objective}", losses(mechanism, OBJECTIVES[objective], drawn(10, seed=1)))
