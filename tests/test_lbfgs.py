"""L-BFGS keeps the best of its iterates."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from perfjax._lbfgs import least_iterate

CENTRE = (0.3, -0.2)


def cusps(x):
    """Least, 0, at `CENTRE`, where slopes grow without bound: steps overshoot, and some iterates are worse."""
    return jnp.sum(jnp.sqrt(jnp.abs(x - jnp.asarray(CENTRE))))


def iterates(function, start, steps):
    """Values of all iterates, from optax without perfjax."""
    solver = optax.lbfgs()
    value_and_slope = optax.value_and_grad_from_state(function)

    def step(state, _):
        place, memory = state
        value, slope = value_and_slope(place, state=memory)
        update, memory = solver.update(slope, memory, place, value=value, grad=slope, value_fn=function)
        return (optax.apply_updates(place, update), memory), value

    with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
        (place, _), values = jax.lax.scan(step, (start, solver.init(start)), length=steps)
    return np.append(values, function(place))


def test_the_best_iterate_counts_not_the_last():
    start = jnp.asarray([2.0, 1.0])
    values = iterates(cusps, start, 12)
    assert values[-1] > 1.3 * values.min()  # so the last would not do
    place, value = least_iterate(cusps, start, steps=12)
    np.testing.assert_allclose(value, values.min(), rtol=1e-9)
    np.testing.assert_allclose(value, cusps(place), rtol=1e-12)


def test_what_is_no_number_is_never_best():
    assert least_iterate(lambda x: jnp.sum(jnp.log(x)), jnp.asarray([-1.0, 1.0]), steps=3)[1] == np.inf


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
def test_the_minimum_of_a_parabola(dtype):
    place, value = least_iterate(lambda x: jnp.sum((x - jnp.asarray(CENTRE, dtype)) ** 2), jnp.zeros(2, dtype), steps=5)
    np.testing.assert_allclose(place, CENTRE, atol=4 * float(jnp.finfo(dtype).eps))
    assert value.dtype == dtype
