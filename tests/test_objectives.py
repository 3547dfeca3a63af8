"""The objectives along the expected path: values, windows, collapse, and what they refuse."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import cases
from scenarios import gaussian, of_oracle, published, response

import perfjax as pj
from perfjax import theorems


def oracle(kind):
    return [pytest.param(case, id=case["name"]) for case in cases("performative", kind)]


@pytest.mark.parametrize("case", oracle("cumulative_error"))
def test_cumulative_error_oracle(case):
    found = pj.CumulativeError()(of_oracle(case["inputs"]))
    np.testing.assert_allclose(found, case["value"], rtol=case["tol"])


@pytest.mark.parametrize("case", oracle("cumulative_bound"))
def test_cumulative_bound_oracle(case):
    found = pj.CumulativeBound()(of_oracle(case["inputs"]))
    np.testing.assert_allclose(found, case["value"], rtol=case["tol"])


@pytest.mark.parametrize("objective", [pj.CumulativeBound(), pj.CumulativeError(), pj.FinalError()], ids=repr)
@pytest.mark.parametrize("scenario", [gaussian(), response(rounds=10)], ids=["gaussian", "response"])
def test_float32_stays_float32_and_agrees_with_float64(objective, scenario):
    single, double = objective(scenario.astype("float32")), objective(scenario)
    assert single.dtype == jnp.float32
    assert double.dtype == jnp.float64
    np.testing.assert_allclose(single, double, rtol=1e-5)


# Windows.


@pytest.mark.parametrize(
    ("window", "releases"),
    [
        ({}, slice(1, 11)),
        ({"first_release": 0}, slice(0, 11)),
        ({"first_release": 0, "last_release": 9}, slice(0, 10)),
        ({"first_release": 3, "last_release": 3}, slice(3, 4)),
        ({"last_release": 1}, slice(1, 2)),
    ],
)
def test_cumulative_error_sums_its_window(window, releases):
    scenario = gaussian()
    expected = math.fsum(np.asarray(pj.mean_field(scenario).error)[releases])
    np.testing.assert_allclose(pj.CumulativeError(**window)(scenario), expected, rtol=1e-12)


def test_final_error_is_that_of_the_last_release():
    scenario = response(rounds=10)
    np.testing.assert_allclose(pj.FinalError()(scenario), pj.mean_field(scenario).error[-1], rtol=1e-12)
    only = pj.CumulativeError(first_release=10, last_release=10)
    np.testing.assert_allclose(pj.FinalError()(scenario), only(scenario), rtol=1e-12)


def test_a_schedule_is_summed_release_by_release():
    schedule = np.geomspace(2.0, 0.1, 11)
    scenario = gaussian(noise_scale=schedule)
    np.testing.assert_allclose(pj.CumulativeError()(scenario), pj.mean_field(scenario).error[1:].sum(), rtol=1e-12)
    free = pj.CumulativeError()(gaussian(noise_scale=np.r_[1e3, schedule[1:]]))
    assert free < pj.CumulativeError()(scenario)  # the noise of release 0 costs nothing unless release 0 counts
    counted = pj.CumulativeError(first_release=0)
    assert counted(gaussian(noise_scale=np.r_[1e3, schedule[1:]])) > counted(scenario)


# Collapse.


def test_a_collapsed_run_counts_with_its_floor_or_its_penalty():
    scenario = gaussian(noise_scale=0.01, leave=0.9, recruit=0.1)
    path = pj.mean_field(scenario)
    down = np.asarray(path.population) <= 1
    assert 0 < down.sum() < 10
    np.testing.assert_allclose(pj.CumulativeError()(scenario), path.error[1:].sum(), rtol=1e-12)
    charged = np.where(down, 7.0, path.error)[1:].sum()
    penalized = pj.CumulativeError(collapsed="penalty", penalty=7)
    np.testing.assert_allclose(penalized(scenario), charged, rtol=1e-12)
    np.testing.assert_allclose(penalized(scenario.astype("float32")), charged, rtol=1e-5)
    np.testing.assert_allclose(pj.FinalError(collapsed="penalty", penalty=7)(scenario), 7.0, rtol=1e-12)


def test_the_penalty_lasts_though_the_population_recovers():
    scenario = response(np.r_[np.full(8, 20.0), np.full(3, 0.01)], rounds=10, leave=0.9, recruit=1.0, population=20)
    path = pj.mean_field(scenario)
    assert path.population[7] == 1
    assert path.population[-1] > 1
    first = int(np.argmax(path.population <= 1))
    expected = path.error[1:first].sum() + 5.0 * (11 - first)
    np.testing.assert_allclose(pj.CumulativeError(collapsed="penalty", penalty=5.0)(scenario), expected, rtol=1e-12)


def test_collapse_is_the_floor_or_one_user_whichever_is_more():
    penalized = pj.CumulativeError(collapsed="penalty", penalty=100.0)
    high = gaussian(noise_scale=0.01, leave=0.9, recruit=0.1, floor=30)
    np.testing.assert_allclose(penalized(high), 1000.0, rtol=1e-12)  # down from release 1 on
    none = gaussian(noise_scale=0.01, leave=0.9, recruit=0.1, floor=0)
    path = pj.mean_field(none)
    np.testing.assert_allclose(penalized(none), np.where(path.population <= 1, 100.0, path.error)[1:].sum(), rtol=1e-12)


@pytest.mark.parametrize(
    ("population", "error", "value"),
    [
        ((1, 1, 1), (4, 5, 7), 12.0),  # down from the first release on, which stands for all: 3 * 4
        ((10, 9, 1), (1, 2, 7), 4.5),  # two releases stand for three: (1 + 2) * 3 / 2
        ((10, 9, 8), (1, 2, 7), 10.0),
    ],
)
def test_what_survived_stands_for_the_rest(population, error, value):
    survived = pj.CumulativeError(first_release=0, solver="counts", trials=2, collapsed="survived")
    n, e = (jnp.asarray([x, x], float) for x in (population, error))
    paths = pj.Trajectory(n, jnp.zeros_like(n), e, gaussian(rounds=2), expected_error=e)
    np.testing.assert_allclose(pj.objectives.score_runs(survived, paths, slice(0, 3))[0], value, rtol=1e-12)


# The bound.


@pytest.mark.parametrize("recruiters", ["spared", "everyone"])
def test_the_bound_is_the_closed_form_of_its_growth(recruiters):
    scenario = gaussian(recruiters=recruiters, leave=0.9, recruit=0.3)
    p = pj.leak_probability(scenario.mechanism, scenario.leakage, scenario.population)
    growth = theorems.growth_factor(p, 0.9, 0.3, recruiters=recruiters)
    first = theorems.mahalanobis_error(1.0, 100.0, dim=10, precision_trace=10.0)
    np.testing.assert_allclose(pj.CumulativeBound()(scenario), theorems.cumulative_bound(first, growth, 10), rtol=1e-10)


def test_a_clipping_bias_counts_once_per_release():
    scenario = gaussian(dim=2, clip_radius=1.5, mean=[0.5, 0.0], rounds=3)
    mechanism = scenario.mechanism
    bias = float(mechanism.error(jnp.asarray(1e15)))
    assert bias > 0.01
    p = pj.leak_probability(mechanism, scenario.leakage, scenario.population)
    growth = float(theorems.growth_factor(p, 0.3, 0.6))
    spread = float(mechanism.error(scenario.population)) - bias
    expected = spread * sum(growth**-t for t in range(1, 4)) + 3 * bias
    np.testing.assert_allclose(pj.CumulativeBound()(scenario), expected, rtol=1e-9)


@pytest.mark.parametrize("recruiters", ["spared", pytest.param("everyone", marks=pytest.mark.slow)])
def test_the_bound_holds_wherever_the_population_grows_and_no_cap_binds(recruiters):
    rng = np.random.default_rng(3)
    count = 3000
    leaves = {
        "leave": rng.random(count),
        "recruit": rng.random(count),
        "threshold": 10 ** rng.uniform(-3, 0, count),
        "noise_scale": 10 ** rng.uniform(-1, 1.5, count),
        "population": 10 ** rng.uniform(1, 5, count),
    }
    base = gaussian(recruiters=recruiters, cap=1e12)

    def both(leaves):
        scenario = base.replace(**leaves)
        p = pj.leak_probability(scenario.mechanism, scenario.leakage, scenario.population)
        growth = theorems.growth_factor(p, scenario.participation.leave, scenario.participation.recruit)
        if recruiters == "everyone":
            growth = growth + scenario.participation.recruit * p
        return growth, pj.CumulativeBound()(scenario), pj.CumulativeError()(scenario)

    growth, bound, error = jax.jit(jax.vmap(both))(leaves)
    grows = np.asarray(growth > 1 + 1e-9)
    assert 500 < grows.sum() < count
    assert np.all(error[grows] <= bound[grows] * (1 + 1e-12))
    # and where the population shrinks it is none
    assert np.mean(error[~grows] > bound[~grows]) > 0.5


def test_the_bound_knows_neither_cap_nor_floor():
    grown, shrunk = gaussian(leave=0.1, recruit=0.9, cap=120), gaussian(noise_scale=0.01, leave=0.9, recruit=0.1)
    assert pj.CumulativeError()(grown) > pj.CumulativeBound()(grown)
    assert pj.CumulativeError()(shrunk) < pj.CumulativeBound()(shrunk)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_bound_keeps_its_log_where_it_overflows(dtype):
    scenario = published(0.99, 0.01).astype(dtype).without_privacy()
    log_value, last = pj.CumulativeBound().evaluate(scenario)
    expected = math.log(12 / 1000) + 50 * math.log(100) - math.log1p(-0.01)
    np.testing.assert_allclose(log_value, expected, rtol=1e-6 if dtype == "float32" else 1e-12)
    assert last == 1
    value = pj.CumulativeBound()(scenario)
    assert value == jnp.inf if dtype == "float32" else jnp.isfinite(value)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_bound_is_infinite_where_everybody_leaves_at_once(dtype):
    for scenario in (gaussian(leave=1.0), response(leave=1.0, rounds=1)):
        bare = scenario.astype(dtype).without_privacy()
        assert pj.CumulativeBound()(bare) == jnp.inf


# No privacy, and what is refused.


def test_no_privacy_is_evaluated_at_the_limit():
    population = 100 * 0.7 ** np.arange(1, 11)
    bare = gaussian(leave=0.3, floor=0).without_privacy()
    np.testing.assert_allclose(pj.CumulativeError()(bare), (10 / population).sum(), rtol=1e-12)
    np.testing.assert_allclose(pj.CumulativeBound()(bare), (10 / population).sum(), rtol=1e-12)
    bare = response(rounds=10, leave=0.3, floor=0, mean=0.2).without_privacy()
    np.testing.assert_allclose(pj.FinalError()(bare), 0.2 * 0.8 / population[-1], rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: pj.CumulativeError(first_release=-1),
            "Argument `first_release` must be an integer of at least 0, but is -1.",
        ),
        (
            lambda: pj.CumulativeError(first_release=3, last_release=2),
            "Argument `last_release` must be an integer of at least 3, but is 2.",
        ),
        (
            lambda: pj.CumulativeError(last_release=11)(gaussian()),
            "Argument `last_release` must be at most `rounds` (10), but is 11.",
        ),
        (
            lambda: pj.CumulativeError(first_release=11)(gaussian()),
            "Argument `first_release` must be at most `rounds` (10), but is 11.",
        ),
        (
            lambda: pj.CumulativeError(collapsed="dead"),
            'Argument `collapsed` must be "floor" or "survived" or "penalty", but is "dead".',
        ),
        (
            lambda: pj.FinalError(collapsed="survived"),
            'Argument `collapsed` must be "floor" or "penalty" for a solver that does not sample, but is "survived".',
        ),
        (
            lambda: pj.CumulativeError(collapsed="penalty"),
            'Argument `penalty` must be given with collapsed "penalty", and only then.',
        ),
        (
            lambda: pj.FinalError(penalty=3.0),
            'Argument `penalty` must be given with collapsed "penalty", and only then.',
        ),
        (
            lambda: pj.CumulativeError(collapsed="penalty", penalty=0.0),
            "Argument `penalty` must lie in (0, inf), but is 0.",
        ),
        (
            lambda: pj.CumulativeError(solver="law")(gaussian(cap=np.inf)),
            "Argument `cap` must be at most 1e+18 for the law of the population, but is inf.",
        ),
        (
            lambda: pj.CumulativeBound()(gaussian(noise_scale=np.ones(11))),
            "Argument `noise_scale` must be one value for `CumulativeBound`, but is of shape (11,).",
        ),
    ],
)
def test_bad_input_is_one_clear_line(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()


def test_the_bound_counts_a_bias_of_clipping_at_every_release():
    """Of a population that stays what it is, the bound is that of one release times their number."""
    scenario = gaussian(2.0, dim=1, mean=0.7, clip_radius=0.5, leave=0.0, recruit=0.0, population=20.0, rounds=3)
    assert scenario.error(jnp.inf) > 0.05
    np.testing.assert_allclose(pj.CumulativeBound()(scenario), 3 * scenario.error(20.0), rtol=1e-12)
