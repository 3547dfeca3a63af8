"""jit, vmap, grad and the number of traces."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scenarios import gaussian, response

import perfjax as pj
from perfjax import leakage

BOUND, FINAL = pj.CumulativeBound(), pj.FinalError()


def kinds(k):
    """The same number as float, int, NumPy or JAX scalar."""
    return [float, np.float64, jnp.asarray, lambda x: np.asarray(x)][k % 4]


@pytest.fixture
def traces(monkeypatch):
    """Counts how often the leak probability is traced, which happens in every compilation and at no other time."""
    count, split = [0], leakage.split

    @functools.wraps(split)
    def counting(*arguments):
        count[0] += 1
        return split(*arguments)

    monkeypatch.setattr(leakage, "split", counting)
    return count


@pytest.mark.parametrize(
    "run",
    [pj.mean_field, pj.CumulativeError(), lambda s: pj.tune(s, BOUND)],
    ids=["mean_field", "objective", "tune"],
)
def test_one_compilation_serves_a_hundred_scenarios(run, traces):
    rng = np.random.default_rng(1)
    traces_after_first = None
    for k in range(100):
        leave, recruit, threshold, noise = (kinds(k)(x) for x in rng.uniform(0.1, 0.9, 4))
        if k == 50:
            leave, noise = 1, 2  # ints
        run(gaussian(noise, dim=7, leave=leave, recruit=recruit, threshold=threshold, rounds=7))
        traces_after_first = traces[0] if k == 0 else traces_after_first
    assert traces_after_first >= 1
    assert traces[0] == traces_after_first


LEAVE = jnp.array([0.1, 0.3, 0.9])


@pytest.mark.slow
@pytest.mark.parametrize("make", [gaussian, response], ids=["gaussian", "response"])
def test_a_batch_is_its_members(make):
    def run(leave):
        scenario = make(leave=leave)
        optimum = pj.tune(scenario, BOUND)
        return pj.mean_field(scenario).error, FINAL(scenario), optimum.noise, optimum.log_value, optimum.status

    batch = jax.vmap(run)(LEAVE)
    jitted = jax.jit(jax.vmap(run))(LEAVE)
    for k, leave in enumerate(LEAVE):
        for together, compiled, alone in zip(batch, jitted, run(float(leave)), strict=True):
            np.testing.assert_allclose(together[k], alone, rtol=1e-6)
            np.testing.assert_allclose(compiled[k], alone, rtol=1e-6)


@pytest.mark.slow
def test_a_batch_of_scenarios_gives_a_batch_of_optima():
    scenarios = jax.vmap(lambda q: gaussian(leave=q))(LEAVE)
    optima = eqx.filter_vmap(lambda s: pj.tune(s, BOUND))(scenarios)
    assert optima.noise.shape == (3,)
    assert str(optima) == "Optimum of a batch (3,)"
    np.testing.assert_allclose(optima.noise[1], pj.tune(gaussian(), BOUND).noise, rtol=1e-6)


def difference(f, x, step):
    return (8 * (f(x + step) - f(x - step)) - (f(x + 2 * step) - f(x - 2 * step))) / (12 * step)


TRACKED = {
    "interior": (lambda q: gaussian(leave=q), BOUND, {}, 0.3),
    "kink": (lambda q: response(leave=q, recruit=0.4), FINAL, {}, 0.05),
    "growth-constraint": (lambda q: response(leave=q), pj.CumulativeError(), {"constraint": "growth"}, 0.59),
    "lower-bound": (lambda q: gaussian(leave=q), BOUND, {"bounds": (2.0, 10.0)}, 0.3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TRACKED))
@pytest.mark.parametrize("field", ["noise", "log_value"])
def test_an_optimum_has_the_derivative_of_tuning_again(name, field):
    make, objective, arguments, leave = TRACKED[name]

    def tuned(leave):
        return getattr(pj.tune(make(leave), objective, **arguments), field)

    # A place is known to 1e-8 or so, which a short step would show; a long one sees leave = recruit, where growth ends.
    expected = difference(tuned, leave, 1e-4 if name == "growth-constraint" else 1e-3)
    np.testing.assert_allclose(jax.grad(tuned)(leave), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_the_value_obeys_the_envelope_theorem():
    optimum = pj.tune(gaussian(), BOUND)
    whole = jax.grad(lambda q: pj.tune(gaussian(leave=q), BOUND).value)(0.3)
    partial = jax.grad(lambda q: BOUND(optimum.scenario.replace(leave=q)))(0.3)
    np.testing.assert_allclose(whole, partial, rtol=1e-6)
    moves = jax.grad(lambda q: pj.tune(gaussian(leave=q), BOUND).noise)(0.3)
    np.testing.assert_allclose(moves, pj.sensitivities(optimum).values["leave"], rtol=1e-6)
