"""Derivatives of the objectives: against central differences, at C = 1, and never NaN."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scenarios import gaussian, response

import perfjax as pj

BOUND, CUMULATIVE = pj.CumulativeBound(), pj.CumulativeError()
SMOOTH = {
    "gaussian": gaussian(0.8),
    "few-dimensions": gaussian(0.8, dim=2, covariance=np.array([0.5, 2.0]), rounds=3),
    "recomputed-everyone": gaussian(1.5, outside="recomputed", recruiters="everyone", leave=0.8, recruit=0.3, rounds=3),
    "response": response(0.3, mean=np.array([0.2, 0.9]), rounds=10),
}


@pytest.mark.parametrize("objective", [BOUND, CUMULATIVE], ids=["bound", "cumulative"])
@pytest.mark.parametrize(
    "name", ["gaussian", "recomputed-everyone", "response", pytest.param("few-dimensions", marks=pytest.mark.slow)]
)
def test_every_leaf_matches_central_differences(name, objective):
    varied, fixed = eqx.partition(SMOOTH[name], eqx.is_inexact_array)
    flat, restore = jax.flatten_util.ravel_pytree(varied)

    def value(x):
        return objective(eqx.combine(restore(x), fixed))

    step = 2e-4 * jnp.maximum(jnp.abs(flat), 0.1)
    moves = jnp.concatenate([k * jnp.diag(step) for k in (-2, -1, 1, 2)])
    moved = jax.vmap(value)(flat + moves).reshape(4, -1)
    expected = (moved[0] - 8 * moved[1] + 8 * moved[2] - moved[3]) / (12 * step)
    found = jax.grad(value)(flat)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9 * float(value(flat)))
    assert np.sum(found != 0) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("make", [gaussian, response], ids=["gaussian", "response"])
def test_growth_of_exactly_one_is_an_ordinary_point(make, dtype):
    """Nobody leaves or recruits: C = 1 whatever the noise; d(C^-1 + ... + C^-T) = -(1 + ... + T) dC."""
    scenario = make(rounds=10, leave=0.0, recruit=0.0).astype(dtype)
    kept = 1 - pj.leak_probability(scenario.mechanism, scenario.leakage, scenario.population)
    first = scenario.mechanism.error(scenario.population)

    def value(leave, recruit):
        return BOUND(scenario.replace(leave=leave, recruit=recruit))

    zero = jnp.zeros((), dtype)
    found = jax.grad(value, (0, 1))(zero, zero)
    np.testing.assert_allclose(value(zero, zero), 10 * first, rtol=1e-5)
    np.testing.assert_allclose(found, [55 * first * (1 - kept), -55 * first * kept], rtol=2e-5)


# Ten thousand scenarios.

COUNT = 10_000


def random_leaves(noise, no_privacy):
    rng = np.random.default_rng(0)

    def chance():
        return np.select([rng.random(COUNT) < 0.1, rng.random(COUNT) < 0.1], [0.0, 1.0], rng.random(COUNT))

    population = np.where(rng.random(COUNT) < 0.2, 2.0, np.exp(rng.uniform(0, np.log(1e9), COUNT)).round())
    leaves = {
        "leave": chance(),
        "recruit": chance(),
        "population": population,
        "floor": rng.choice([0.0, 1.0, 2.0], COUNT),
        "cap": np.maximum(rng.choice([2e4, 1e9, 1e12], COUNT), population),
        noise: np.where(rng.random(COUNT) < 0.1, no_privacy, 10 ** rng.uniform(-6, 2.5, COUNT)),
    }
    return leaves | ({} if noise == "epsilon" else {"threshold": 10 ** rng.uniform(-6, 1, COUNT)})


def variants(*recruiters):
    for who in recruiters:
        yield f"shared-{who}", gaussian(recruiters=who, rounds=5)
        yield f"recomputed-{who}", gaussian(recruiters=who, rounds=5, outside="recomputed")
        yield f"response-{who}", response(recruiters=who, rounds=5)


SWEEPS = dict(variants("spared", "everyone"))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.study)])
@pytest.mark.parametrize("name", list(SWEEPS))
def test_no_derivative_is_nan(name, dtype):
    base = SWEEPS[name].astype(dtype)
    leaves = random_leaves(base.mechanism.noise_name, base.mechanism.no_privacy)

    def both(leaves):
        varied, fixed = eqx.partition(base.replace(**leaves), eqx.is_inexact_array)

        def log_values(varied):
            scenario = eqx.combine(varied, fixed)
            return [objective.evaluate(scenario).log_value for objective in (BOUND, CUMULATIVE)]

        values = log_values(varied)
        slopes = [jax.grad(lambda v, i=i: log_values(v)[i])(varied) for i in (0, 1)]
        return values, slopes

    values, slopes = jax.vmap(both)({k: jnp.asarray(v, dtype) for k, v in leaves.items()})
    for array in jax.tree.leaves((values, slopes)):
        assert array.dtype == dtype
        assert not jnp.isnan(array).any()
    assert jnp.mean(jnp.isfinite(values[1])) > 0.9
