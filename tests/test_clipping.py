"""Noise and clipping radius together: what clipping gains, what its bias costs, and where the least error lies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import close
from scenarios import gaussian, response

import perfjax as pj
from perfjax.tuning import _clipping

ERROR = pj.CumulativeError()


def scenario(**changes):
    options = {"dim": 2, "mean": 0.7, "rounds": 2, "threshold": 0.1, "clip_radius": 5.0}
    return gaussian(**(options | changes))


class Bowl(pj.objectives.AbstractObjective):
    """exp of the squared distance of (log noise, log radius) from a place."""

    noise: jax.Array
    radius: jax.Array

    def check(self, scenario, key=None):
        del scenario, key

    def evaluate(self, scenario, key=None):
        del key
        of = scenario.mechanism
        square = jnp.log(of.noise_scale / self.noise) ** 2 + jnp.log(of.clip_radius / self.radius) ** 2
        return pj.objectives.Evaluation(square, scenario.population)


def test_the_least_of_a_bowl_within_budget_and_bounds():
    """A release's rho is 2 R^2 / gamma^2, and the least radius a tenth of sqrt(E ||z||^2) = sqrt(2 + 2 * 0.7^2)."""

    def best(noise, radius):
        return pj.tune_clipping(scenario(), Bowl(*map(jnp.asarray, (noise, radius))), release_rho=2.0)

    inside = best(3.0, 1.0)  # with rho 2 gamma must be R or more
    close([inside.noise, inside.clip_radius, inside.value], [3, 1, 1], 1e-3)
    assert inside.at_bound.tolist() == [0, 0]
    spent = best(0.5, 2.0)  # of all with gamma = R the nearest in logarithms is 1
    close([spent.noise, spent.clip_radius], [1, 1], 1e-3)
    close(spent.log_value, 2 * np.log(2) ** 2, 1e-6)
    assert spent.at_bound.tolist() == [-1, 0]
    least = best(1.0, 0.01)
    close([least.noise, least.clip_radius], [1, 0.172627], 1e-3)
    assert least.at_bound.tolist() == [0, -1]


@pytest.mark.slow
@pytest.mark.parametrize("release_rho", [pytest.param(None, marks=pytest.mark.study), 0.5])
def test_no_pair_of_a_fine_grid_is_better(release_rho):
    best = pj.tune_clipping(scenario(), release_rho=release_rho)
    typical = np.sqrt(2 + 2 * 0.7**2)
    radii = np.geomspace(0.1 * typical, 4 * typical, 40)
    noises = np.geomspace(1e-2, 1e2, 60)

    @jax.jit
    def values(radius):
        clipped = scenario(clip_radius=1.0).with_leaves(clip_radius=radius)
        least = 0.0 if release_rho is None else radius * jnp.sqrt(2 / release_rho)
        noise = jnp.maximum(noises, least)
        return jax.vmap(lambda x: ERROR.evaluate(clipped.with_noise(x)).log_value)(noise)

    least = min(float(jnp.min(values(radius))) for radius in radii)
    assert float(best.log_value) <= least + 1e-4
    close(best.value, ERROR(best.scenario), 1e-9)
    assert float(best.ratio) < 1
    if release_rho is not None:
        rho = best.scenario.mechanism.privacy(1.0).local.rho
        close(rho, release_rho, 1e-9)
        assert best.at_bound.tolist() == [-1, 0]
    assert pj.Status(int(best.status)) is not pj.Status.NOT_CONVERGED


@pytest.mark.slow
def test_bias_is_what_stops_it():
    """With the mean in the centre of the clipping there is none, and the least radius wins."""
    centred = pj.tune_clipping(scenario(mean=0.0))
    assert pj.Status(int(centred.status)) is pj.Status.LOWER_BOUND
    assert centred.at_bound.tolist()[1] == -1
    off = pj.tune_clipping(scenario(mean=0.7))
    assert off.at_bound.tolist()[1] == 0
    assert float(off.clip_radius) > 2 * float(centred.clip_radius)
    assert "lower than without clipping" in str(off)
    assert "records of mean 0.7" in str(off)
    assert "artefact" not in str(off)
    assert "releases 1 to 2" in str(off)
    assert "centre of the clipping, where clipping has no bias" in str(centred)
    assert "the gain is an artefact of knowing the mean" in " ".join(str(centred).split())
    close(off.to_xarray().clip_radius, off.clip_radius, 0)


@pytest.mark.parametrize(("mean", "typical"), [(0.7, 2.98**0.5), ([0.6, 0.8], 3**0.5), (0.0, 2**0.5)])
def test_radii_are_tried_in_units_of_a_records_root_mean_square_norm(monkeypatch, mean, typical):
    """E|z|^2 = d + |mean|^2 for a covariance of 1; from 0.1 to 4 times the root, so from 0.172627 with mean 0.7."""

    class Searched(Exception):
        """Ends the search before it is compiled."""

    def search(scenario, objective, noise_bounds, radius_bounds, rho):
        raise Searched(*radius_bounds)

    monkeypatch.setattr(_clipping, "_tune_clipping", search)
    with pytest.raises(Searched) as tried:
        pj.tune_clipping(scenario(mean=np.asarray(mean)), release_rho=1e-6)
    close(np.exp(tried.value.args), [0.1 * typical, 4 * typical], 1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pj.tune_clipping(response()), "`mechanism` must be a GaussianMean"),
        (lambda: pj.tune_clipping(scenario(), pj.CumulativeError(solver="law")), '`solver` must be "mean-field"'),
        (lambda: pj.tune_clipping(scenario(), release_rho=0.0), r"`release_rho` must lie in \(0, inf\]"),
        (lambda: pj.tune_clipping(scenario(), radius_bounds=(2.0, 1.0)), "`radius_bounds` must have the lower end"),
        (lambda: pj.tune_clipping(scenario(), bounds=(2.0, 1.0)), "`bounds` must have the lower end"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()
