"""Noise for every release: how much it gains, that it never loses, budgets, structures, corners."""

import itertools
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
import scipy.optimize
from assertions import close
from scenarios import gaussian, published, response

import perfjax as pj

matplotlib.use("Agg")

from perfjax import plots
from perfjax.meanfield import recursion
from perfjax.tuning import _schedule, _structure

# (leave, recruit, threshold): how much lower the error is than at the best constant noise, at least.
GAINS = {
    (0.11, 0.52, 0.02): 0.023,
    (0.3, 0.7, 0.2): 0.058,
    (0.5, 0.5, 0.02): 0.074,
    (0.7, 0.3, 0.2): 0.105,
    (0.45, 0.11, 0.02): 0.173,
    (0.7, 0.3, 0.02): 0.213,
}
EVERY = pj.CumulativeError(first_release=0)


def status(schedule):
    return pj.Status(int(schedule.status))


@eqx.filter_jit
def tuned(leave, recruit, threshold):
    """Under vmap, as a sweep would."""

    def one(leave, recruit, threshold):
        return pj.tune_schedule(published(leave, recruit, threshold))

    return jax.vmap(one)(leave, recruit, threshold)


@pytest.mark.slow
def test_published_settings_gain_what_is_promised():
    best = tuned(*(jnp.asarray(axis) for axis in zip(*GAINS, strict=True)))
    gains = 1 - np.asarray(best.ratio)
    assert np.all(gains >= list(GAINS.values())), gains
    assert np.all(gains <= np.add(list(GAINS.values()), 0.005)), "too good to be the same comparison"
    for at, noise, value in zip(GAINS, best.noise, best.value, strict=True):
        close(EVERY(published(*at).replace(noise_scale=noise)), value, 1e-12, of=at)
    assert np.all(np.asarray(best.noise[:, -1]) == np.asarray(jnp.exp(jnp.log(1e-3))))


@pytest.mark.slow
def test_a_settled_schedule_is_where_scipy_ends():
    best = pj.tune_schedule(published())
    assert status(best) is pj.Status.INTERIOR
    assert float(best.gradient_norm) < 1e-6

    @jax.jit
    @jax.value_and_grad
    def objective(log_noise):
        return jnp.log(jnp.sum(recursion(best.scenario.with_noise(jnp.exp(log_noise))).error))

    start = np.full(51, np.log(float(best.constant)))
    ends = [(np.log(1e-3), np.log(1e3))] * 51
    found = scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", bounds=ends)
    assert float(best.log_value) <= found.fun + 1e-9


@pytest.mark.slow
def test_noise_falls_over_time():
    noise = np.asarray(pj.tune_schedule(published()).noise)
    assert np.all(np.diff(noise) < 0)


@pytest.mark.slow
@pytest.mark.parametrize("recruiters", ["spared", pytest.param("everyone", marks=pytest.mark.slow)])
def test_corners(recruiters):
    def found(**changes):
        return pj.tune_schedule(gaussian(recruiters=recruiters, **changes))

    none_leaked = found(threshold=1e9)
    assert status(none_leaked) is pj.Status.LOWER_BOUND
    path = pj.mean_field(none_leaked.scenario).population
    close(path[1:] / path[:-1], 1.6, 1e-12)  # C = 1 + r

    all_leaked = pj.tune_schedule(gaussian(recruiters=recruiters, threshold=1e-9), bounds=(1e-6, 1e-5))
    assert status(all_leaked) is pj.Status.NO_PRIVACY
    assert np.all(np.asarray(all_leaked.noise) == 0)
    path = pj.mean_field(all_leaked.scenario).population
    close(path[1:] / path[:-1], 0.7 if recruiters == "spared" else 1.3, 1e-12)  # 1 - q, 1 + r - q

    assert status(found(recruit=0.0)) is pj.Status.INTERIOR
    assert float(found(recruit=0.0).ratio) < 0.95
    assert status(found(leave=1.0)) is pj.Status.INTERIOR
    nobody_leaves = found(leave=0.0)
    if recruiters == "spared":  # the leaked do not recruit
        assert status(nobody_leaves) is pj.Status.INTERIOR
        assert float(nobody_leaves.ratio) < 1
    else:
        assert status(nobody_leaves) is pj.Status.NO_PRIVACY


@pytest.mark.slow
def test_of_two_releases_only_the_first_matters():
    """Against a fine scan of x_0; x_1 is at its least private bound."""
    scenario = gaussian(rounds=1)
    best = pj.tune_schedule(scenario)
    least = scenario.mechanism.noise_bounds[0]
    scan = jnp.geomspace(1e-3, 1e3, 20001)
    values = jax.jit(jax.vmap(lambda x: EVERY.evaluate(scenario.with_noise(jnp.stack([x, least]))).log_value))(scan)
    close(best.noise[0], scan[jnp.argmin(values)], 1e-3)
    assert float(best.log_value) <= float(jnp.min(values)) + 1e-12
    assert np.asarray(best.at_bound).tolist() == [0, -1]
    assert "releases 1; release 1 has no consequences" in str(best)


def test_nothing_changes_without_leavers_and_recruits():
    best = pj.tune_schedule(gaussian(rounds=1, leave=0.0, recruit=0.0))
    assert status(best) is pj.Status.NO_PRIVACY


@pytest.mark.slow
def test_a_population_at_the_cap_is_a_kink():
    best = pj.tune_schedule(gaussian(cap=100.0))
    assert status(best) is pj.Status.KINK
    assert 0.98 < float(best.ratio) < 1


@pytest.mark.slow
def test_everything_collapsed():
    assert status(pj.tune_schedule(gaussian(population=1.0))) is pj.Status.COLLAPSED


def test_randomized_response_spends_late():
    best = pj.tune_schedule(response(rounds=10))
    epsilon = np.asarray(best.noise)
    assert np.all(np.diff(epsilon) >= 0)
    assert epsilon[-1] == np.asarray(jnp.exp(jnp.log(30.0)))
    assert np.asarray(best.at_bound)[-1] == 1
    assert 0.6 < float(best.ratio) < 0.7


STRUCTURED = {"monotone": {}, "piecewise": {"levels": 3}, "geometric": {}}


@pytest.mark.slow
@pytest.mark.parametrize("structure", STRUCTURED)
def test_structures_keep_their_shape_and_lie_between_constant_and_free(structure):
    free = pj.tune_schedule(gaussian())
    best = pj.tune_schedule(gaussian(), structure=structure, **STRUCTURED[structure])
    assert float(free.log_value) - 1e-7 <= float(best.log_value) <= float(best.log_value_constant)
    noise = np.asarray(best.noise)
    if structure == "monotone":
        assert np.all(np.diff(noise) <= 0)
    elif structure == "piecewise":
        assert len(np.unique(noise)) == 3
        lengths = [len(list(group)) for _, group in itertools.groupby(noise)]
        assert max(lengths) - min(lengths) <= 1
    else:
        close(noise[1:] / noise[:-1], noise[1] / noise[0], 1e-9)


@pytest.mark.slow
def test_one_level_is_the_best_constant():
    best = pj.tune_schedule(gaussian(), structure="piecewise", levels=1)
    close(best.noise, best.constant, 1e-5)
    close(best.ratio, 1, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("structure", ["free", pytest.param("geometric", marks=pytest.mark.study)])
@pytest.mark.parametrize(
    "make", [lambda: gaussian(clip_radius=10.0), lambda: response(rounds=10)], ids=["mean", "bits"]
)
def test_a_total_budget_is_met(make, structure):
    scenario, total = make(), 1.5
    if scenario.mechanism.noise_name == "noise_scale":
        total = 1500.0
    best = pj.tune_schedule(scenario, structure=structure, total_rho=total)
    close(best.total_rho, total, 1e-9)
    close(jnp.sum(scenario.mechanism.privacy(1.0, best.constant).local.rho) * 11, total, 1e-9)
    assert float(best.ratio) <= 1
    if structure == "free":  # what is left to gain by moving budget from one release to another
        assert status(best) is pj.Status.INTERIOR

        def log_value(log_noise):
            return EVERY.evaluate(scenario.with_noise(jnp.exp(log_noise))).log_value

        def spent(log_noise):
            return jnp.sum(scenario.mechanism.privacy(1.0, jnp.exp(log_noise)).local.rho)

        here = jnp.log(best.noise)
        inner = np.asarray(best.at_bound) == 0
        price = np.asarray(jax.grad(log_value)(here) / jax.grad(spent)(here))[inner]
        close(price, price[0], 1e-5)  # Lagrange: one price of budget for all releases


@pytest.mark.slow
def test_a_cap_on_every_release_is_a_bound():
    best = pj.tune_schedule(gaussian(clip_radius=10.0), release_rho=200.0)
    rho = np.asarray(best.scenario.mechanism.privacy(1.0, best.noise).local.rho)
    assert np.max(rho) <= 200 * (1 + 1e-9)
    assert np.asarray(best.at_bound)[-1] == -1
    close(rho[-1], 200, 1e-9)
    assert float(best.log_value) >= float(pj.tune_schedule(gaussian(clip_radius=10.0)).log_value)


def test_a_cap_on_every_release_bounds_epsilon_from_above():
    """The rho of epsilon-DP is epsilon tanh(epsilon / 2): tanh(1/2) = 0.462117 allows an epsilon of 1 and no more."""
    scenario = response(rounds=5)
    budget = eqx.filter_jit(lambda rho: _schedule._budget(scenario, None, None, rho))(jnp.tanh(0.5))
    close(jnp.exp(jnp.stack([budget.low, budget.high])), [1e-3, 1.0], 1e-12)
    assert not budget.allows_none


@pytest.mark.slow
def test_the_greatest_epsilon_allowed_is_spent_by_every_release():
    """Free, the last of five rounds spend the greatest budget searched, 30."""
    best = pj.tune_schedule(response(rounds=5), release_rho=np.tanh(0.5))
    close(best.noise, 1.0, 1e-12)
    assert status(best) is pj.Status.UPPER_BOUND


def test_blocks_start_where_the_noise_changes():
    """Of 11 releases in 3 blocks, which start at releases 0, 4 and 8."""
    blocks = _structure.structure_of("piecewise", 3, gaussian().mechanism, 11)
    levels = jnp.array([1.0, 2.0, 3.0])
    schedule = blocks.log_noise(levels)
    assert schedule.tolist() == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3]
    assert blocks.parameters(schedule).tolist() == levels.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": pj.CumulativeError()}, "`first_release` must be 0 .* for free"),
        ({"objective": pj.CumulativeError(first_release=0, last_release=3)}, "`last_release` must be None or `rounds`"),
        ({"objective": pj.FinalError()}, "`objective` must be a CumulativeError"),
        ({"objective": pj.CumulativeError(first_release=0, solver="counts", trials=3)}, "`solver` must be"),
        ({"structure": "smooth"}, '`structure` must be "free" or "monotone"'),
        ({"structure": "piecewise"}, "`levels` must be given"),
        ({"levels": 3}, "`levels` must be given"),
        ({"structure": "piecewise", "levels": 12}, "`levels` must be at most 11"),
        ({"total_rho": 1e-9}, r"`total_rho` must lie in \[0.0022, 2.2e\+09\].* 1e-09"),
        ({"total_rho": 1e12}, "`total_rho` must lie in"),
        ({"release_rho": 1e-9}, "`release_rho` must lie in"),
        ({"total_rho": -1.0}, r"`total_rho` must lie in \(0, inf\)"),
        ({"total_rho": np.array([1.0, 2.0])}, "`total_rho` must be one number"),
        ({"bounds": (2.0, 1.0)}, "`bounds` must have the lower end first"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        pj.tune_schedule(gaussian(clip_radius=10.0), **options)


def test_a_budget_needs_a_mechanism_that_has_one():
    counts = gaussian().replace(mechanism=pj.ShiftedLogCount(0.2, 1.0))
    for scenario in (gaussian(), counts):
        with pytest.raises(ValueError, match="need a mechanism with a local privacy budget"):
            pj.tune_schedule(scenario, total_rho=1.0)


@pytest.mark.study
def test_counts_have_no_error_without_noise():
    """The error of counts is relative to the group: none is spent, none is gained."""
    counts = gaussian(cap=12.0, population=6.0, rounds=2).replace(mechanism=pj.ShiftedLogCount(0.2, 1.0))
    best = pj.tune_policy(counts, actions=4)
    assert pj.Status(int(best.schedule.status)) is pj.Status.NO_PRIVACY
    assert best.schedule.ratio == 1
    assert best.gain == 0
    assert "0.00% lower" in str(best)


def test_the_law_needs_a_floor_or_a_penalty():
    scenario = gaussian(floor=0.0, cap=120.0)
    with pytest.raises(ValueError, match="`floor` must be above 0"):
        pj.tune_schedule(scenario, pj.CumulativeError(first_release=0, solver="law"))


@pytest.mark.slow
def test_values_have_a_derivative_and_noise_has_none():
    scenario = gaussian(clip_radius=10.0)

    def log_value(recruit, total):
        return pj.tune_schedule(scenario.replace(recruit=recruit), total_rho=total).log_value

    both = jax.grad(log_value, argnums=(0, 1))(0.6, 1500.0)
    step = 1e-4
    for i, found in enumerate(both):
        at = np.array([0.6, 1500.0])
        moved = at[i] * step * np.eye(2)[i]
        difference = (float(log_value(*(at + moved))) - float(log_value(*(at - moved)))) / (2 * at[i] * step)
        close(found, difference, 1e-5)
    noise = jax.grad(lambda r: pj.tune_schedule(scenario.replace(recruit=r), total_rho=1500.0).noise[0])
    assert np.isnan(noise(0.6))


@pytest.mark.slow
def test_single_precision_agrees():
    double, single = pj.tune_schedule(gaussian()), pj.tune_schedule(gaussian().astype("float32"))
    assert single.noise.dtype == jnp.float32
    close(single.value, double.value, 1e-5)
    close(single.noise, double.noise, 3e-3)  # the square root of its rounding, 6e-8, with a factor of 12


def test_gradients_of_a_hundred_thousand_releases_fit_in_memory():
    scenario = published().replace(rounds=100_000)

    def log_value(log_noise):
        return EVERY.evaluate(scenario.with_noise(jnp.exp(log_noise))).log_value

    compiled = jax.jit(jax.value_and_grad(log_value)).lower(jnp.zeros(100_001)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 5e7
    _, gradient = compiled(jnp.full(100_001, jnp.log(6.0)))
    assert np.all(np.isfinite(gradient))
    assert float(gradient[50_000]) != 0


def test_results_print_and_become_datasets():
    best = pj.tune_schedule(gaussian())
    data = best.to_xarray()
    assert data.noise.dims == ("release",)
    assert data.noise.attrs["symbol"] == "γ"
    close(data.ratio, best.ratio, 0)
    text = str(best)
    assert "lower with the schedule" in text
    assert "release 10 has no consequences" in text
    figure = plots.plot_schedule(best)
    assert figure.axes[0].get_ylabel() == "noise_scale γ"


@pytest.fixture
def small_file(tmp_path):
    pj.save_scenario(gaussian(clip_radius=10.0, cap=150.0, rounds=3), tmp_path / "small.toml")
    return tmp_path / "small.toml"


@pytest.mark.slow
def test_the_command_answers_like_the_library(run, small_file, tmp_path):
    saved, picture = tmp_path / "best.toml", tmp_path / "best.png"
    code, out, _ = run("schedule", small_file, "--total-rho", 400, "--json", "--save", saved, "--plot", picture)
    assert code == 0
    report = json.loads(out)
    best = pj.tune_schedule(pj.load_scenario(small_file), total_rho=400.0)
    close(report["schedule"]["noise"], best.noise, 1e-12)
    close(report["ratio"], best.ratio, 1e-12)
    close(report["schedule"]["local_all_releases_rho"], 400, 1e-9)
    close(report["constant"]["local_all_releases_rho"], 400, 1e-9)
    assert "at_equal_budget" not in report
    close(pj.load_scenario(saved).mechanism.noise, best.noise, 0)
    assert picture.stat().st_size > 0
    code, out, _ = run("schedule", small_file, "--total-rho", 400)
    assert code == 0
    assert "Release 3 has no consequences" in out
    assert "lower than" in out
    text = " ".join(out.split())
    central = np.sum(2 * 10.0**2 / np.asarray(best.noise) ** 2 / report["schedule"]["population"])
    assert "Your rho 400 is local: it protects each user's own noisy record. The central rho of all releases is" in text
    close(report["schedule"]["central_all_releases_rho"], central, 1e-9)


@pytest.mark.slow
def test_the_gain_of_the_command_comes_with_its_price_and_the_gain_at_equal_budget(run, small_file):
    _, out, _ = run("schedule", small_file, "--json")
    report, scenario = json.loads(out), pj.load_scenario(small_file)
    free = pj.tune_schedule(scenario)
    rho = 4 * 2 * 10.0**2 / float(free.constant) ** 2
    close(report["constant"]["local_all_releases_rho"], rho, 1e-9)
    close(free.total_rho_constant, rho, 1e-9)
    equal = pj.tune_schedule(scenario, total_rho=rho)
    close(report["at_equal_budget"]["ratio"], equal.ratio, 1e-6)
    close(report["at_equal_budget"]["local_all_releases_rho"], rho, 1e-9)
    assert report["ratio"] < report["at_equal_budget"]["ratio"] - 1e-3
    _, out, _ = run("schedule", small_file)
    text = " ".join(out.split())
    assert f"At equal total budget (local rho {rho:.6g}, that of the best constant noise)" in text
    assert f"{1 - float(equal.ratio):.2%} lower, and it costs:" in text
    assert text.count("Local budget (of each user's own noisy record)") == 3
    assert text.count("This budget protects nobody: the central epsilon over all 4 releases is") >= 1


@pytest.mark.slow
def test_the_published_gain_is_mostly_bought_with_privacy():
    """Leave .45, recruit .11, threshold .02: 17.4 % at any budget, 5.8 % at rho 320, that of the constant noise."""
    scenario = pj.preset("mean-estimation")
    free, equal = pj.tune_schedule(scenario), pj.tune_schedule(scenario, total_rho=320.0)
    close(free.total_rho_constant, 320, 2e-3)
    close(1 - free.ratio, 0.174, 5e-3)
    close(1 - equal.ratio, 0.058, 9e-3)


@pytest.mark.slow
def test_the_command_finds_a_policy_that_other_commands_run(run, small_file, tmp_path):
    saved = tmp_path / "rule.toml"
    code, out, _ = run("schedule", small_file, "--policy", "log-linear", "--save", saved)
    assert code == 0
    assert "to react gains" in out
    code, out, _ = run("simulate", saved, "--trials", 50)
    assert code == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--total-rho", "1e-9"], "`total_rho` must lie in [0.0008, 8e+08]"),
        (["--structure", "piecewise"], "`levels` must be given"),
        (["--structure", "smooth"], "'smooth' is not one of"),
        (["--policy", "table", "--total-rho", "5"], "--policy takes no privacy budget"),
        (["--plot", "no-such-folder/x.png"], "there is no folder"),
        (["--plot", "x.png", "--save", "x.png"], "--save and --plot must be two files"),
    ],
)
def test_a_bad_command_is_one_clear_line(run, small_file, options, words):
    code, _, error = run("schedule", small_file, *options)
    assert code == 2
    assert error.startswith("perfjax: ")
    assert error.count("\n") == 1
    assert words in error


@pytest.mark.parametrize("outside", ["shared", pytest.param("recomputed", marks=pytest.mark.slow)])
def test_gradients_by_every_noise_are_central_differences(outside):
    scenario = gaussian(outside=outside, rounds=4)

    @jax.jit
    @jax.value_and_grad
    def objective(log_noise):
        return EVERY.evaluate(scenario.with_noise(jnp.exp(log_noise))).log_value

    here = jnp.linspace(0.5, -1.5, 5)
    _, gradient = objective(here)
    for release, step in enumerate(1e-4 * np.eye(5)):
        close(gradient[release], (float(objective(here + step)[0]) - float(objective(here - step)[0])) / 2e-4, 1e-6)
