"""Pictures show the numbers of the result, with names and units."""

import types

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
from scenarios import gaussian

import perfjax as pj

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from perfjax import plots
from perfjax.calibration import Profile
from perfjax.tuning import PolicyOptimum, Schedule

pytestmark = pytest.mark.usefixtures("no_pictures_left")


@pytest.fixture(scope="module")
def scenario():
    return gaussian(1.0, dim=3, threshold=0.1, leave=0.9, recruit=0.1, population=12.0, rounds=5, cap=60.0)


@pytest.fixture(scope="module", params=["counts", "law"])
def result(request, scenario):
    if request.param == "law":
        return pj.population_law(scenario)
    return pj.simulate_counts(scenario, key=jax.random.key(0), trials=400)


def test_the_fan_shows_mean_band_and_collapse(result):
    ax = plots.plot_fan(result)
    if isinstance(result, pj.PopulationLaw):
        mean, low, high, risk = result.mean, *result.quantile([0.1, 0.9]), result.collapse_probability
    else:
        n = np.asarray(result.population)
        mean, low, high = n.mean(axis=0), *np.quantile(n, [0.1, 0.9], axis=0)
        risk = np.mean(np.minimum.accumulate(n, axis=1) <= 1, axis=0)
    assert 0.1 < risk[-1] < 1
    np.testing.assert_allclose(ax.lines[0].get_ydata(), mean)
    edge = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert edge.min() == pytest.approx(np.min(low))
    assert edge.max() == pytest.approx(np.max(high))
    (twin,) = [other for other in ax.figure.axes if other is not ax]
    np.testing.assert_allclose(twin.lines[0].get_ydata(), risk, atol=1e-12)
    assert ax.get_ylabel() == "population (users)"
    assert twin.get_ylabel() == "probability of collapse by then"
    assert {text.get_text() for text in ax.get_legend().get_texts()} == {
        "10% to 90% of runs",
        "mean population",
        "collapsed by then",
    }


def test_the_error_is_the_expected_one(result):
    ax = plt.subplots()[1]
    assert plots.plot_error(result, ax) is ax
    error = result.expected_error if isinstance(result, pj.PopulationLaw) else result.expected_error.mean(axis=0)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), error)
    assert ax.get_xlabel() == "release"
    assert ax.get_ylabel() == "expected squared error"


def test_both_stand_side_by_side_and_can_be_saved(result, tmp_path):
    figure = plots.plot_simulation(result)
    assert len(figure.axes) == 3
    figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_what_has_no_spread_is_refused(scenario):
    for plot in (plots.plot_fan, plots.plot_error):
        with pytest.raises(ValueError, match="`result` must be the law or a simulation of one scenario, but is Traj"):
            plot(pj.mean_field(scenario))


@pytest.mark.slow
def test_the_error_of_a_count_is_no_squared_one(scenario):
    """Every picture of an error names the unit of the mechanism's errors."""
    count = pj.ShiftedLogCount(0.2, 1.0)
    path = scenario.replace(mechanism=count, population=6.0, rounds=2, cap=12.0)
    assert plots.plot_error(pj.population_law(path)).get_ylabel() == "expected relative error"
    schedule = pj.tune_schedule(path)
    labels = [ax.get_ylabel() for ax in plots.plot_schedule(schedule).axes]
    assert labels == ["sigma σ", "population (users)", "expected relative error"]


def test_the_error_of_a_simulated_count_is_a_relative_one(scenario):
    n = jnp.full((2, 6), 6.0)
    path = pj.Trajectory(n, n / 12, n / 60, scenario.replace(mechanism=pj.ShiftedLogCount(0.2, 1.0)), n / 60)
    assert plots.plot_error(path).get_ylabel() == "expected relative error"


def schedule_of(scenario, noise):
    """A schedule that nobody searched for, beside a constant noise of 1."""
    value = jnp.ones(())
    return Schedule(
        scenario=scenario.with_noise(noise),
        objective=pj.CumulativeError(),
        noise=noise,
        log_value=value,
        constant=value,
        log_value_constant=value,
        log_value_without_privacy=value,
        status=jnp.asarray(8),
        at_bound=jnp.zeros(6, int),
        gradient_norm=value,
        steps=jnp.asarray(1),
        structure="free",
    )


def test_a_schedule_without_privacy_leaves_its_line_out(scenario, monkeypatch):
    """A noise of 0 is on no log axis: its place stays empty, and the legend says why. Nor are errors that are all 0."""
    path = types.SimpleNamespace(population=jnp.full(6, 9.0), error=jnp.zeros(6))
    monkeypatch.setattr(plots, "mean_field", lambda run: path)
    count = scenario.replace(mechanism=pj.ShiftedLogCount(0.2, 1.0))
    noise = jnp.asarray([2.0, 1.0, 0.5, 0.25, 0.0, 0.0])
    axes = plots.plot_schedule(schedule_of(count, noise)).axes
    drawn, constant = (line.get_ydata() for line in axes[0].lines)
    np.testing.assert_array_equal(drawn, [2, 1, 0.5, 0.25, np.nan, np.nan])
    np.testing.assert_array_equal(constant, np.ones(6))
    assert axes[0].get_legend().get_title().get_text() == "no privacy where a line is missing"
    assert [ax.get_ylabel() for ax in axes] == ["sigma σ", "population (users)", "expected relative error"]
    assert [ax.get_yscale() for ax in axes] == ["log", "log", "linear"]
    axes = plots.plot_schedule(schedule_of(count, noise + 1)).axes
    assert axes[0].get_legend().get_title().get_text() == ""


@pytest.mark.parametrize(("name", "scale"), [("threshold", "log"), ("leave", "linear")])
def test_a_profile_is_shown_up_to_four_times_the_drop_where_its_interval_ends(name, scale):
    """A threshold ranges over orders of magnitude."""
    values = np.array([0.001, 0.01, 0.02, 0.04, 0.1, 0.5])
    drops = np.array([np.inf, 15.9, 0.0, 4.0, 16.1, np.nan])
    ax = plots.plot_profile(Profile(name, values, drops, 0.02, 0.015, 1.0, (True, False), 0.95, 4.0))
    curve, cutoff = (np.asarray(line.get_data(), float) for line in ax.lines)
    np.testing.assert_array_equal(curve, [[0.01, 0.02, 0.04], [15.9, 0, 4]])
    np.testing.assert_array_equal(cutoff[1], [4, 4])
    (interval,) = ax.patches
    np.testing.assert_allclose(interval.get_extents().transformed(ax.transData.inverted()).intervalx, [0.015, 0.04])
    assert ax.get_xscale() == scale
    assert ax.get_title() == "open above"


def test_a_policy_without_privacy_has_a_colour_of_its_own(scenario, monkeypatch):
    """As the least noise searched it would look like noise of 0.001, as the greatest budget like epsilon 30."""
    monkeypatch.setattr(PolicyOptimum, "law", lambda self: None)
    monkeypatch.setattr(plots, "plot_fan", lambda law, ax: ax)
    rule = pj.TablePolicy([1.0, 60.0], np.array([[2.0, 1.0]] * 5 + [[0.5, 0.0]]))
    value, schedule = jnp.ones(()), schedule_of(scenario, jnp.ones(6))
    best = PolicyOptimum(scenario.replace(policy=rule), schedule.objective, rule, value, value, value, schedule)
    ax = plots.plot_policy(best).axes[0]
    noises, none = (np.ma.getmaskarray(mesh.get_array()) for mesh in ax.collections)
    users = np.unique(np.geomspace(1, 60, 200).round())
    expected = np.zeros((users.size, 6), bool)
    expected[users + 1 > 122**0.5, -1] = True  # nearer to 60 than to 1, in log(1 + n), at the last release
    np.testing.assert_array_equal(none, ~expected)
    np.testing.assert_array_equal(noises, expected)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["no privacy"]


@pytest.fixture(scope="module")
def optimum():
    return pj.tune(gaussian(clip_radius=20.0, leave=0.9, recruit=0.2, recruiters="everyone"), pj.CumulativeBound())


def test_the_objective_is_shown_with_its_best_noise_and_that_of_theory(optimum):
    ax = plots.plot_objective(optimum, points=5)
    curve, without, best, critical = (np.asarray(line.get_data(), float) for line in ax.lines)
    np.testing.assert_allclose(curve[0], np.geomspace(1e-3, 1e3, 5))
    for noise, value in curve.T:
        np.testing.assert_allclose(value, optimum.objective(optimum.scenario.replace_noise(noise)), rtol=1e-9)
    np.testing.assert_allclose(without[1], optimum.value_without_privacy)
    np.testing.assert_allclose(best[:, 0], [optimum.noise, optimum.value])
    least = pj.theorems.critical_noise_scale(0.9, 0.2, 0.02, clip_radius=20.0, population=100.0, recruiters="everyone")
    np.testing.assert_allclose(critical[0], least)
    assert ax.get_xlabel() == "noise_scale γ"


def test_the_population_is_shown_under_the_best_noise_and_without(optimum):
    ax = plots.plot_population(optimum)
    for line, scenario in zip(ax.lines, (optimum.scenario, optimum.scenario.without_privacy()), strict=True):
        np.testing.assert_allclose(line.get_ydata(), pj.mean_field(scenario).population)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["best noise", "no privacy"]


@pytest.mark.parametrize(
    ("changes", "marked"),
    [({}, True), ({"outside": "recomputed"}, False), ({"clip_radius": None}, False)],
    ids=["shared", "recomputed", "unclipped"],
)
def test_the_noise_of_theorem_2_is_shown_where_it_holds(changes, marked):
    ax = plt.subplots()[1]
    options = {"clip_radius": 20.0, "leave": 0.9, "recruit": 0.2, "recruiters": "everyone"}
    plots._mark_critical(gaussian(**(options | changes)), ax)
    assert [line.get_label()[:4] for line in ax.lines] == ["γ_c "] * marked
