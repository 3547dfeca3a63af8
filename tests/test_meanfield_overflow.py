"""Populations that grow until their number overflows: derivatives are limits, not NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import perfjax as pj
from perfjax.meanfield import recursion


@pytest.mark.parametrize(("dtype", "cap"), [("float64", np.inf), ("float64", 1e308), ("float32", np.inf)])
def test_an_endless_population_has_derivatives(dtype, cap):
    """From 1e4 users who all recruit, 2^t 1e4 after t releases: e_t sums to (d + gamma^2 d) / 1e4 within 2^-t."""
    who = pj.Participation(0.1, 1.0, cap=cap)
    rule = pj.LikelihoodRatioAbove(5.0)  # nobody is leaked
    scenario = pj.Scenario(pj.GaussianMean(3.0, dim=12), rule, who, population=1e4, rounds=1200).astype(dtype)

    def total(noise):
        return jnp.sum(recursion(scenario.with_noise(noise)).error)

    noise = jnp.asarray(3.0, dtype)
    value, slope = jax.jit(lambda x: jax.jvp(total, (x,), (jnp.ones_like(x),)))(noise)
    np.testing.assert_allclose([value, slope], [2 * 12 * 10 / 1e4, 2 * 12 * 6 / 1e4], rtol=1e-5)
    np.testing.assert_allclose(jax.jit(jax.grad(total))(noise), slope, rtol=1e-5)
