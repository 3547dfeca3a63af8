"""The best constant noise: oracle optima, every status, several minima, kinks, constraints, float32."""

import functools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import cases
from scenarios import gaussian, of_oracle, published, published_grid, response

import perfjax as pj
from perfjax import theorems
from perfjax.tuning import Status, _basins, _constant

BOUND, CUMULATIVE, FINAL = pj.CumulativeBound(), pj.CumulativeError(), pj.FinalError()


def oracle(kind):
    return [pytest.param(case, id=case["name"]) for case in cases("performative", kind)]


def status(optimum):
    return Status(int(optimum.status))


def listed(optimum):
    """The local minima that a result lists."""
    minima = np.asarray(optimum.minima)
    return minima[~np.isnan(minima)]


@eqx.filter_jit
def scanned(scenario, objective, low=1e-3, high=1e3, points=2000):
    """The least log objective on a log grid, and where: the reference that a tuner may not miss."""
    places = jnp.linspace(jnp.log(low), jnp.log(high), points)
    log_values = jax.vmap(lambda x: objective.evaluate(scenario.with_noise(jnp.exp(x))).log_value)(places)
    best = jnp.argmin(log_values)
    return log_values[best], jnp.exp(places[best])


def over_cells(one, every, dtype="float64"):
    """`one(scenario)` for a subsample of the published grid, in one call."""
    base = published().astype(dtype)
    leaves = (jnp.asarray(x, dtype) for x in published_grid(every))
    return jax.vmap(lambda q, r, tau: one(base.replace(leave=q, recruit=r, threshold=tau)))(*leaves)


@functools.cache
def published_bound(dtype):
    """The bound's optimum in all 4500 published cells."""
    return over_cells(lambda scenario: pj.tune(scenario, BOUND), 1, dtype)


# The oracle.


@pytest.mark.parametrize("case", oracle("optimum_bound"))
def test_optimum_of_the_bound_oracle(case):
    optimum = pj.tune(of_oracle(case["inputs"]), BOUND)
    np.testing.assert_allclose(optimum.value, case["value"]["value"], rtol=case["tol"])
    np.testing.assert_allclose(optimum.noise, case["value"]["noise_scale"], rtol=case["tol"])
    assert status(optimum) is Status.INTERIOR


@pytest.mark.parametrize("case", oracle("optimum_cumulative"))
def test_optimum_of_the_cumulative_error_oracle(case):
    optimum = pj.tune(of_oracle(case["inputs"]))
    np.testing.assert_allclose(optimum.value, case["value"]["value"], rtol=case["tol"])
    np.testing.assert_allclose(optimum.noise, case["value"]["noise_scale"], rtol=case["tol"])
    assert optimum.objective.first_release == 1


@pytest.mark.parametrize("case", oracle("optimum_epsilon_final"))
def test_optimum_of_the_final_error_oracle(case):
    optimum = pj.tune(of_oracle(case["inputs"]), FINAL)
    np.testing.assert_allclose(optimum.value, case["value"]["value"], rtol=case["tol"])
    epsilon = case["value"]["epsilon"]
    if epsilon < 19.9:
        np.testing.assert_allclose(optimum.noise, epsilon, rtol=case["tol"])
        assert status(optimum) in (Status.INTERIOR, Status.KINK)
    else:  # the edge of the oracle's grid stands for no privacy
        assert optimum.noise == jnp.inf
        assert status(optimum) in (Status.NO_PRIVACY, Status.COLLAPSED)


# What a result says.


def test_a_result_is_a_certified_minimum():
    scenario = gaussian()
    optimum = pj.tune(scenario)
    assert status(optimum) is Status.INTERIOR
    assert optimum.certified
    low, high = optimum.bracket
    assert low * (1 - 1e-12) <= optimum.noise <= high * (1 + 1e-12)
    assert high / low < 1 + 1e-5
    assert abs(optimum.gradient) < 1e-6
    np.testing.assert_allclose(optimum.value, CUMULATIVE(optimum.scenario), rtol=1e-13)
    np.testing.assert_allclose(optimum.value_without_privacy, CUMULATIVE(scenario.without_privacy()), rtol=1e-13)
    for nearby in (0.99, 1.01):
        assert CUMULATIVE(scenario.replace(noise_scale=float(optimum.noise) * nearby)) > optimum.value
    p = pj.leak_probability(scenario.mechanism, scenario.leakage, 100.0, optimum.noise)
    np.testing.assert_allclose(optimum.growth, theorems.growth_factor(p, 0.3, 0.6), rtol=1e-12)
    assert optimum.regime == "growth"
    assert optimum.privacy_pays
    np.testing.assert_allclose(listed(optimum), [optimum.noise])
    assert optimum.scenario.leaves()["noise_scale"] == optimum.noise


def test_a_result_prints_and_exports_itself():
    optimum = pj.tune(gaussian())
    first, second, *_ = str(optimum).splitlines()
    assert first == "Optimum: interior minimum"
    assert "noise_scale" in second
    data = optimum.to_xarray()
    assert data["noise"].item() == optimum.noise
    assert data["noise"].attrs["name"] == "noise_scale"
    assert str(int(optimum.status)) in data["status"].attrs["meanings"]


def test_the_noise_of_the_scenario_plays_no_role():
    one, other = pj.tune(gaussian(noise_scale=0.1)), pj.tune(gaussian(noise_scale=5.0))
    assert one.noise == other.noise
    schedule = pj.tune(gaussian(noise_scale=np.linspace(2.0, 1.0, 11)))
    assert schedule.noise == one.noise


def test_the_privacy_of_a_result_is_that_of_release_0():
    optimum = pj.tune(published(), BOUND)
    gamma = float(optimum.noise)
    np.testing.assert_allclose(optimum.privacy().local.rho, 2 * 10**2 / gamma**2, rtol=1e-12)
    np.testing.assert_allclose(optimum.privacy().central.rho, 2 * 10**2 / (1000 * gamma**2), rtol=1e-12)


def test_regret_is_relative():
    """3.64032 by an own recursion in NumPy, with the leak probability of ten dimensions as a difference of Erlang
    variables in closed form: the best noise for leave 0.3 has 4.64 times the least error if leave is 0.9.
    """
    truth = gaussian(leave=0.9)
    optimum = pj.tune(gaussian())
    found = pj.regret(optimum, truth)
    np.testing.assert_allclose(found, 3.64032, rtol=1e-5)
    least, _ = scanned(truth, CUMULATIVE)
    np.testing.assert_allclose(1 + found, CUMULATIVE(truth.replace_noise(optimum.noise)) / jnp.exp(least), rtol=1e-4)


# Every status.


STATUSES = {
    "infeasible-growth": (response(leave=0.6, recruit=0.3), CUMULATIVE, {"constraint": "growth"}, Status.INFEASIBLE),
    "infeasible-theorem": (gaussian(), BOUND, {"constraint": "theorem-2"}, Status.INFEASIBLE),
    "collapsed": (response(leave=0.9, recruit=0.1), FINAL, {}, Status.COLLAPSED),
    "no-privacy": (gaussian(leave=0.0, recruit=0.0), CUMULATIVE, {}, Status.NO_PRIVACY),
    "no-privacy-everyone": (response(recruiters="everyone"), FINAL, {}, Status.NO_PRIVACY),
    "growth": (response(leave=0.59), CUMULATIVE, {"constraint": "growth"}, Status.GROWTH_CONSTRAINT),
    "growth-gaussian": (gaussian(leave=0.9, recruit=0.1), BOUND, {"constraint": "growth"}, Status.GROWTH_CONSTRAINT),
    "lower": (gaussian(), CUMULATIVE, {"bounds": (2.0, 10.0)}, Status.LOWER_BOUND),
    "upper": (gaussian(), CUMULATIVE, {"bounds": (0.1, 0.3)}, Status.UPPER_BOUND),
    "kink": (response(leave=0.05, recruit=0.4), FINAL, {}, Status.KINK),
    "interior": (gaussian(), CUMULATIVE, {}, Status.INTERIOR),
}


@pytest.mark.parametrize("name", list(STATUSES))
def test_every_status(name):
    scenario, objective, arguments, expected = STATUSES[name]
    optimum = pj.tune(scenario, objective, **arguments)
    assert status(optimum) is expected
    assert str(optimum).startswith(f"Optimum: {expected.meaning}")


def test_the_statuses_cover_all_but_failure():
    assert {expected for *_, expected in STATUSES.values()} == set(Status) - {Status.NOT_CONVERGED, Status.CROWDED}


def test_what_nothing_certifies_is_not_converged():
    no, one, none = jnp.asarray(False), jnp.asarray(1.0), jnp.asarray(jnp.nan)
    basin = _basins.Basin(one, one, none, one, one, jnp.full(4, jnp.nan))
    told = {"infeasible": no, "collapsed": no, "no_privacy": no, "crowded": no}
    assert _constant._status(basin, (no, no, no), **told) == Status.NOT_CONVERGED
    assert _constant._status(basin, (no, ~no, no), **told) == Status.UPPER_BOUND
    assert _constant._status(basin, (no, no, no), **told | {"crowded": ~no}) == Status.NOT_CONVERGED
    settled = basin._replace(slopes=jnp.array([-1.0, -1.0, 1.0, 1.0]))
    assert _constant._status(settled, (no, no, no), **told | {"crowded": ~no}) == Status.CROWDED
    lost = basin._replace(log_value=none)
    assert _constant._status(lost, (no, ~no, no), **told) == Status.NOT_CONVERGED
    assert _constant._status(lost, (no, ~no, no), **told | {"no_privacy": ~no}) == Status.NO_PRIVACY


def test_the_first_status_that_holds_counts():
    """Collapsed everywhere, no privacy as good as anything, and infeasible, all at once."""
    scenario = response(leave=0.9, recruit=0.1)
    assert status(pj.tune(scenario, constraint="growth")) is Status.INFEASIBLE
    assert status(pj.tune(scenario, FINAL)) is Status.COLLAPSED
    optimum = pj.tune(scenario, FINAL)
    np.testing.assert_allclose(optimum.log_value, optimum.log_value_without_privacy, rtol=1e-14)


def test_the_edge_of_the_constraint_is_said_before_a_bound():
    """Where both are in one place, it is the constraint that somebody asked for."""
    no, yes, one = jnp.asarray(False), jnp.asarray(True), jnp.asarray(1.0)
    basin = _basins.Basin(one, one, one, one, one, jnp.full(4, jnp.nan))
    told = {"infeasible": no, "collapsed": no, "no_privacy": no, "crowded": no}
    assert _constant._status(basin, (yes, no, yes), **told) == Status.GROWTH_CONSTRAINT
    assert _constant._status(basin, (no, yes, yes), **told) == Status.GROWTH_CONSTRAINT
    assert _constant._status(basin, (yes, no, no), **told) == Status.LOWER_BOUND


def test_infeasible_is_nan_and_raises_only_if_asked():
    scenario = response(leave=0.6, recruit=0.3)
    optimum = pj.tune(scenario, constraint="growth")
    assert jnp.isnan(optimum.noise)
    assert jnp.isnan(optimum.value)
    assert jnp.isfinite(optimum.value_without_privacy)
    with pytest.raises(ValueError, match=r"^No best noise: infeasible: no noise meets the constraint\.$"):
        pj.tune(scenario, constraint="growth", throw=True)
    assert status(pj.tune(gaussian(), throw=True)) is Status.INTERIOR


@pytest.mark.slow
def test_nothing_is_raised_under_vmap():
    def one(leave):
        return pj.tune(response(leave=leave, recruit=0.3), constraint="growth", throw=True).status

    np.testing.assert_array_equal(jax.vmap(one)(jnp.array([0.6, 0.1])) == Status.INFEASIBLE, [True, False])


def test_no_privacy_is_reported_as_the_limit():
    optimum = pj.tune(gaussian(leave=0.0, recruit=0.0))
    assert optimum.noise == 0
    np.testing.assert_allclose(optimum.value, 1.0, rtol=1e-13)  # ten releases of 10 / 100
    assert not optimum.privacy_pays
    assert listed(optimum).size == 0
    optimum = pj.tune(response(recruiters="everyone"), FINAL)
    assert optimum.noise == jnp.inf
    np.testing.assert_allclose(optimum.value, 1 / 6 / 20_000, rtol=1e-13)


def test_bounds_are_kept():
    assert np.isclose(pj.tune(gaussian(), bounds=(2.0, 10.0)).noise, 2.0, rtol=1e-12)
    assert np.isclose(pj.tune(gaussian(), bounds=(0.1, 0.3)).noise, 0.3, rtol=1e-12)
    inside = pj.tune(gaussian(), bounds=(np.float32(0.1), 3))
    np.testing.assert_allclose(inside.noise, pj.tune(gaussian()).noise, rtol=1e-6)


# Constraints.


def test_the_growth_constraint_ends_at_the_critical_budget():
    """For randomized response C >= 1 is epsilon <= ln(r / q), a closed form."""
    held = pj.tune(response(leave=0.59), constraint="growth")
    critical = theorems.critical_epsilon(0.59, 0.6)
    np.testing.assert_allclose(held.noise, critical, rtol=1e-8)
    assert CUMULATIVE(response(1.01 * float(critical), leave=0.59)) < held.value  # the constraint binds
    assert held.growth >= 1


def test_the_growth_constraint_holds_the_gaussian_noise_up():
    scenario = gaussian(leave=0.9, recruit=0.1)
    free, held = pj.tune(scenario, BOUND), pj.tune(scenario, BOUND, constraint="growth")
    assert free.growth < 1 <= held.growth
    np.testing.assert_allclose(held.growth, 1.0, rtol=1e-9)
    assert held.noise > free.noise


def test_a_constraint_that_does_not_bind_changes_nothing():
    scenario = gaussian(leave=0.1, recruit=0.9)
    free, held = pj.tune(scenario, BOUND), pj.tune(scenario, BOUND, constraint="growth")
    assert status(held) is Status.INTERIOR
    np.testing.assert_allclose(held.noise, free.noise, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("recruiters", ["spared", pytest.param("everyone", marks=pytest.mark.slow)])
def test_the_theorem_is_more_than_is_needed(recruiters):
    scenario = gaussian(clip_radius=20.0, leave=0.9, recruit=0.2, recruiters=recruiters)
    held = pj.tune(scenario, BOUND, constraint="theorem-2")
    least = theorems.critical_noise_scale(0.9, 0.2, 0.02, clip_radius=20.0, population=100.0, recruiters=recruiters)
    assert status(held) is Status.GROWTH_CONSTRAINT
    np.testing.assert_allclose(held.noise, least, rtol=1e-8)
    assert held.growth > 1.01


def test_the_theorem_without_clipping():
    """gamma_c is infinite then, except where nobody leaves."""
    assert status(pj.tune(gaussian(), BOUND, constraint="theorem-2")) is Status.INFEASIBLE
    assert status(pj.tune(gaussian(leave=0.0), BOUND, constraint="theorem-2")) is Status.INTERIOR


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: pj.tune(gaussian(), constraint="survival"),
            'Argument `constraint` must be "growth" or "theorem-2", but is "survival".',
        ),
        (
            lambda: pj.tune(response(), constraint="theorem-2"),
            'Argument `constraint` can be "theorem-2" for a GaussianMean only.',
        ),
        (lambda: pj.tune(gaussian(), bounds=(0.0, 1.0)), "Argument `bounds` must lie in (0, inf), but is 0."),
        (
            lambda: pj.tune(gaussian(), bounds=(2.0, 1.0)),
            "Argument `bounds` must have the lower end first, but is (2, 1).",
        ),
        (
            lambda: pj.tune(gaussian(), pj.CumulativeError(last_release=11)),
            "Argument `last_release` must be at most `rounds` (10), but is 11.",
        ),
    ],
)
def test_bad_input_is_one_clear_line(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()


# Several minima, and kinks.


def test_both_minima_of_the_published_example():
    optimum = pj.tune(published(0.25, 0.01, 0.01), BOUND)
    np.testing.assert_allclose(optimum.value, 92.4, rtol=1e-3)
    np.testing.assert_allclose(listed(optimum), [0.756, 10.70], rtol=1e-3)
    np.testing.assert_allclose(np.exp(optimum.minima_log_values[:2]), [92.4, 168.8], rtol=1e-3)
    assert optimum.noise == optimum.minima[0]


@pytest.mark.slow
def test_thirteen_published_cells_have_two_minima_of_the_bound():
    count = np.sum(~np.isnan(published_bound("float64").minima), axis=-1).reshape(5, 900)
    np.testing.assert_array_equal(np.sum(count == 2, axis=-1), [13, 0, 0, 0, 0])
    assert count.min() == 1
    assert count.max() == 2


def test_the_population_just_reaches_the_cap_at_a_kink():
    optimum = pj.tune(response(leave=0.05, recruit=0.4), FINAL)
    assert status(optimum) is Status.KINK
    np.testing.assert_allclose(100.0 * optimum.growth**50, 20_000, rtol=1e-6)
    assert not jnp.isclose(optimum.gradient, 0.0, atol=1e-2)  # on either side it is not small
    assert optimum.certified


def test_the_bound_and_the_recursion_can_disagree_widely():
    """In the regime of collapse the bound is only a stand-in."""
    scenario = gaussian(leave=0.9, recruit=0.1)
    bound, recursion = pj.tune(scenario, BOUND), pj.tune(scenario, CUMULATIVE)
    np.testing.assert_allclose([bound.noise, recursion.noise], [1.26, 0.309], rtol=2e-3)
    for optimum, objective in ((bound, BOUND), (recursion, CUMULATIVE)):
        log_value, place = scanned(scenario, objective)
        assert optimum.log_value <= log_value
        np.testing.assert_allclose(optimum.noise, place, rtol=0.01)
    assert listed(recursion).size > 1
    assert recursion.regime == bound.regime == "decline"


def test_more_minima_than_are_followed_are_admitted():
    places = jnp.linspace(0.0, 1.0, _constant.SCAN)

    def searched(waves):
        value_at = lambda x: jnp.cos(2 * jnp.pi * waves * x) + 0.01 * x  # noqa: E731
        return _basins.local_minima(value_at, places, jax.vmap(value_at)(places), places[0], places[-1])

    for waves, crowded in ((3, False), (7, True)):
        basins, found = searched(waves)
        assert bool(found) is crowded
        np.testing.assert_allclose(basins.place[0], 0.5 / waves, rtol=1e-3)


def test_two_minima_within_a_step_of_the_scan():
    """0.6 of a step apart, so that the scan sees one dip; the better one is on the far side of its best point."""
    places = jnp.linspace(0.0, 1.0, _constant.SCAN)
    step = 1 / (_constant.SCAN - 1)

    def value_at(x):
        z = (x - places[40]) / step
        return jnp.minimum((z + 0.1) ** 2, (z - 0.5) ** 2 - 0.01) + 0.01 * z**2

    basins, crowded = _basins.local_minima(value_at, places, jax.vmap(value_at)(places), places[0], places[-1])
    least = jnp.min(jax.vmap(value_at)(jnp.linspace(places[39], places[41], 100_001)))
    np.testing.assert_allclose(basins.log_value[0], least, atol=1e-9)
    assert jnp.sum(jnp.isfinite(basins.log_value)) == 2
    assert not crowded


@pytest.mark.parametrize("index", [0, 40])  # beside a bound, and inside
@pytest.mark.parametrize(
    ("apart", "depth", "crowded"), [(0.03, 0.0, False), (0.03, 5e-4, True), (0.4, 0.3, True), (0.4, 0.003, False)]
)
def test_kinks_closer_together_than_the_search_looks_are_admitted(index, apart, depth, crowded):
    """In steps of the scan; from one to the next the parabola gains 9e-5 and .016: deeper ones hide one another."""
    places = jnp.linspace(0.0, 1.0, _constant.SCAN)

    def value_at(x):
        z = (x - places[index]) * (_constant.SCAN - 1) - 0.01
        return 0.1 * z**2 + 2 * depth * jnp.abs(z / apart - jnp.round(z / apart))

    _, found = _basins.local_minima(value_at, places, jax.vmap(value_at)(places), places[0], places[-1])
    assert bool(found) is crowded


def test_a_slope_that_is_nan_certifies_nothing():
    places = jnp.linspace(0.0, 1.0, _constant.SCAN)

    @jax.custom_jvp
    def value_at(x):
        return (x - 0.404) ** 2

    value_at.defjvp(lambda primals, tangents: (value_at(*primals), jnp.nan * tangents[0]))
    basins, _ = _basins.local_minima(value_at, places, jax.vmap(value_at)(places), places[0], places[-1])
    assert not _basins.certificate(basins.slopes[0])[0]
    assert jnp.isnan(basins.gradient[0])
    np.testing.assert_allclose(basins.place[0], 0.404, atol=1e-4)  # by values alone


def test_a_clipped_estimate_has_its_best_noise_found():
    """The bound subtracts the error of endlessly many users, whose slope was NaN."""
    scenario = response(clip_estimate=True, population=400.0, rounds=20)
    optimum = pj.tune(scenario, BOUND)
    assert optimum.log_value <= scanned(scenario, BOUND, 0.5, 1.5)[0] + 1e-10
    assert optimum.certified
    assert status(optimum) is Status.INTERIOR
    assert abs(optimum.gradient) < 1e-6


def test_a_cliff_does_not_hide_the_minimum_before_it():
    scenario = published(0.74, 0.43, 0.2254).replace(population=25.66, floor=5.0, cap=4000.0)
    optimum = pj.tune(scenario, FINAL)
    assert optimum.log_value <= scanned(scenario, FINAL, 1.5, 1.8, 20_000)[0] + 1e-10
    np.testing.assert_allclose([optimum.noise, optimum.value], [1.613, 0.0108], rtol=1e-3)


def test_a_kink_beside_a_point_of_the_scan_is_found():
    """The closer scan holds that point once more, off by rounding; it must not end the bracket."""
    for kink in np.linspace(-0.9, 0.9, 7):
        places = jnp.linspace(-10.0, 9.3, 96)
        at = places[48] + kink * (places[1] - places[0])
        values = jnp.abs(places - at)
        basins, _ = _basins.local_minima(lambda x, at=at: jnp.abs(x - at), places, values, places[0], places[-1])
        assert abs(basins.place[0] - at) < 1e-9


# The published grid.


def test_evaluations_count_the_basins_that_there_are():
    steps, fine, nearby = 28, 11, 75
    for scenario, basins in ((gaussian(), 2), (published(), 4)):
        optimum = pj.tune(scenario)
        assert optimum.evaluations == 96 + nearby + 1 + basins * (steps + 4 + fine)


@pytest.mark.slow
def test_no_cell_misses_the_best_of_a_fine_grid():
    scan = over_cells(lambda scenario: scanned(scenario, BOUND)[0], 45)
    assert np.max(published_bound("float64").log_value[::45] - scan) < 1e-6


@pytest.mark.slow
def test_float32_finds_the_same_values():
    single, double = published_bound("float32"), published_bound("float64")
    assert single.log_value.dtype == jnp.float32
    assert np.all(np.isfinite(single.log_value))
    np.testing.assert_allclose(single.log_value, double.log_value, atol=1e-4)
    np.testing.assert_array_equal(single.status, double.status)


@pytest.mark.slow
@pytest.mark.parametrize("objective", [BOUND, CUMULATIVE], ids=["bound", "recursion"])
def test_no_published_cell_misses_the_best_of_a_fine_grid(objective):
    every = 1 if objective is BOUND else 9

    def excess(scenario):
        return pj.tune(scenario, objective).log_value - scanned(scenario, objective)[0]

    base = published()
    cells = tuple(jnp.asarray(x) for x in published_grid(every))
    in_turn = eqx.filter_jit(
        lambda cells: jax.lax.map(
            lambda c: excess(base.replace(leave=c[0], recruit=c[1], threshold=c[2])), cells, batch_size=20
        )
    )
    assert np.max(in_turn(cells)) < 1e-6


@pytest.mark.slow
def test_float32_agrees_on_the_published_grid_for_the_recursion():
    single, double = (over_cells(pj.tune, 9, dtype) for dtype in ("float32", "float64"))
    assert np.all(np.isfinite(single.log_value))
    np.testing.assert_allclose(single.log_value, double.log_value, atol=1e-4)
    assert np.mean(single.status == double.status) > 0.97  # a kink can hide behind the rounding of float32
    assert not np.any(single.status == Status.NOT_CONVERGED)


@pytest.mark.slow
def test_kinks_of_the_published_grid_are_where_the_population_just_reaches_the_cap():
    def distance(scenario):
        optimum = pj.tune(scenario)
        path = pj.mean_field(optimum.scenario)
        who = optimum.scenario.participation
        ahead = path.population * (1 + who.recruit - (who.leave + who.recruit) * path.leak_probability)
        return optimum.status, jnp.min(jnp.abs(jnp.log(ahead[:-1] / who.cap)))

    found, gap = over_cells(distance, 9)
    kink = np.asarray(found == Status.KINK)
    assert 30 < kink.sum() < 100
    assert np.max(gap[kink]) < 1e-6
    assert np.min(gap[~kink]) > 1e-6


@pytest.mark.slow
def test_the_bound_is_least_in_the_regime_of_collapse_in_few_published_cells():
    growth = published_bound("float64").growth
    np.testing.assert_array_equal(np.sum(growth.reshape(5, 900) < 1, axis=-1), [74, 52, 35, 30, 16])
