"""How the best noise moves with the scenario: against tuning again, and where it does not exist."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from scenarios import gaussian, published, response

import perfjax as pj
from perfjax.tuning import Status

BOUND, FINAL = pj.CumulativeBound(), pj.FinalError()
BACKGROUND = {"leave_spared": 0.01, "recruit_leaked": 0.02}  # off their ends, where differences have two sides
CASES = {
    "cumulative": (gaussian(leave=0.1, recruit=0.1, **BACKGROUND), pj.CumulativeError()),
    "cumulative-many-leave": (gaussian(leave=0.6, recruit=0.9, threshold=0.05, **BACKGROUND), pj.CumulativeError()),
    "bound": (gaussian(**BACKGROUND), BOUND),
    "bound-everyone": (gaussian(leave=0.9, recruit=0.2, leave_spared=0.01, recruiters="everyone"), BOUND),
    "response": (response(leave=0.05, recruit=0.1, leave_spared=0.002, recruit_leaked=0.002), FINAL),
}


def best_budget(leave, recruit):
    """Of one release to follow, by a root of the slope of log (1 / (4 sinh^2(x / 2)) + 1/6) - log C(x)."""

    def slope(x):
        half, p = x / 2, 1 / (1 + np.exp(-x))
        error, falls = 1 / (4 * np.sinh(half) ** 2) + 1 / 6, np.cosh(half) / (4 * np.sinh(half) ** 3)
        return (leave + recruit) * p * (1 - p) / (1 - leave * p + recruit * (1 - p)) - falls / error

    return scipy.optimize.brentq(slope, 1, 4, xtol=1e-14)


def single(scenario, *, without_privacy=1.0, second=1.0):
    """A result of `tune` at the scenario's own noise; no privacy and a second minimum lie so much above it."""
    noise, value = scenario.mechanism.noise, jnp.zeros(())
    return pj.Optimum(
        scenario,
        BOUND,
        noise=noise,
        log_value=value,
        log_value_without_privacy=value + without_privacy,
        status=jnp.asarray(Status.INTERIOR),
        growth=value,
        gradient=jnp.zeros_like(value),
        bracket=jnp.stack([noise, noise]),
        certified=jnp.asarray(True),
        minima=jnp.stack([noise, 2 * noise]),
        minima_log_values=jnp.stack([value, value + second]),
        evaluations=jnp.asarray(1),
    )


def test_they_are_those_of_a_root_by_hand():
    """Where 90 % of the leaked leave and 10 % of the spared recruit, for one release: -16.70 and -1.518."""
    scenario, step = response(best_budget(0.9, 0.1), leave=0.9, recruit=0.1, rounds=1), 1e-4
    found = pj.sensitivities(single(scenario)).values
    differences = [
        (best_budget(0.9 + step, 0.1) - best_budget(0.9 - step, 0.1)) / (2 * step),
        (best_budget(0.9, 0.1 + step) - best_budget(0.9, 0.1 - step)) / (2 * step),
    ]
    np.testing.assert_allclose([found["leave"], found["recruit"]], differences, rtol=1e-4)
    np.testing.assert_allclose(differences, [-16.6998, -1.51816], rtol=1e-5)
    assert abs(found["population"]) < 1e-15  # the error is that of one user over n, whatever the noise
    assert pj.sensitivities(single(scenario, second=2e-4, without_privacy=2e-4)).reason is None
    assert "about to jump to 5.403" in pj.sensitivities(single(scenario, second=5e-5)).reason
    assert pj.sensitivities(single(scenario, without_privacy=5e-5)).reason == "no privacy is as good"


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_they_are_what_tuning_again_gives(name):
    scenario, objective = CASES[name]
    found = pj.sensitivities(pj.tune(scenario, objective))
    assert found.reason is None
    leaves = [leaf for leaf, value in found.values.items() if value.ndim == 0]
    if scenario.participation.recruiters == "everyone":
        leaves.remove("recruit_leaked")  # which is `recruit` then
    centre = {leaf: float(scenario.leaves()[leaf]) for leaf in leaves}
    steps = np.array([1e-2 * max(abs(centre[leaf]), 0.01) for leaf in leaves])
    moved = {
        leaf: centre[leaf] + np.array([-2, -1, 1, 2])[:, None] * steps * (np.array(leaves) == leaf) for leaf in leaves
    }
    again = jax.vmap(lambda changed: pj.tune(scenario.replace(**changed), objective).noise)
    noise = np.asarray(again({leaf: jnp.asarray(x.ravel()) for leaf, x in moved.items()})).reshape(4, -1)
    expected = (noise[0] - 8 * noise[1] + 8 * noise[2] - noise[3]) / (12 * steps)
    scale = 1e-6 * noise[0].max() / np.array([max(abs(centre[leaf]), 0.01) for leaf in leaves])
    for leaf, slope, tolerance in zip(leaves, expected, scale, strict=True):
        np.testing.assert_allclose(found.values[leaf], slope, rtol=1e-4, atol=tolerance, err_msg=leaf)
    assert found.values["leave"] != 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "objective", "arguments", "expected"),
    [
        (response(leave=0.05, recruit=0.4), FINAL, {}, Status.KINK),
        (gaussian(), BOUND, {"bounds": (2.0, 10.0)}, Status.LOWER_BOUND),
        (gaussian(), BOUND, {"bounds": (0.1, 0.3)}, Status.UPPER_BOUND),
        (response(leave=0.9, recruit=0.1), FINAL, {}, Status.COLLAPSED),
    ],
    ids=["kink", "lower", "upper", "collapsed"],
)
def test_they_are_undefined_with_a_reason(scenario, objective, arguments, expected):
    found = pj.sensitivities(pj.tune(scenario, objective, **arguments))
    assert found.reason == expected.meaning
    assert all(np.all(np.isnan(value)) for value in found.values.values())
    assert str(found) == f"Sensitivities of {found.noise_label}: undefined ({expected.meaning})"


@pytest.mark.slow
def test_they_are_undefined_where_the_best_noise_jumps():
    """leave = 0.247 and 0.280 at recruit = 0.01, threshold 0.01 have their minima far apart: in between, a tie."""

    def tuned(leave):
        return pj.tune(published(leave, 0.01, 0.01), BOUND)

    def lead(leave):
        low_noise_first = np.argsort(np.asarray(tuned(leave).minima)[:2])
        return float(np.subtract(*np.asarray(tuned(leave).minima_log_values)[:2][low_noise_first]))

    before, after = tuned(0.247), tuned(0.281)
    assert before.noise < 1 < 10 < after.noise
    assert pj.sensitivities(before).reason is None
    assert pj.sensitivities(after).reason is None
    tie = tuned(scipy.optimize.brentq(lead, 0.247, 0.281, xtol=1e-8))
    assert "about to jump" in pj.sensitivities(tie).reason


@pytest.mark.slow
def test_they_are_undefined_where_no_privacy_is_as_good():
    """With more and more users leaving, the best budget of randomized response jumps from 0.46 to infinity."""

    def gain(leave):
        optimum = pj.tune(response(leave=leave, recruit=0.3))
        assert int(optimum.status) == Status.INTERIOR
        return float(optimum.log_value_without_privacy - optimum.log_value)

    leave = scipy.optimize.brentq(lambda q: gain(q) - 5e-5, 0.24, 0.242417, xtol=1e-7)
    tie = pj.tune(response(leave=leave, recruit=0.3))
    assert tie.noise < 1
    assert pj.sensitivities(tie).reason == "no privacy is as good"


def test_a_batch_is_refused():
    batch = jax.vmap(lambda q: single(response(leave=q)))(jnp.array([0.3, 0.4]))
    message = "Argument `optimum` must be a single result, but is a batch of shape (2,)."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pj.sensitivities(batch)


@pytest.mark.slow
def test_a_sampled_objective_has_regret_with_a_key_and_no_sensitivities():
    scenario, sampled, key = gaussian(rounds=3), pj.CumulativeError(solver="counts", trials=50), jax.random.key(0)
    optimum = pj.tune(scenario, sampled, key=key)
    assert abs(pj.regret(optimum, scenario, key=key)) < 1e-6
    with pytest.raises(ValueError, match="`optimum` must be that of a deterministic objective"):
        pj.sensitivities(optimum)
