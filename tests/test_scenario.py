"""Scenarios: leaves by name, checks against each other, dtypes."""

import dataclasses
import math
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scenarios import gaussian, response

import perfjax as pj

GAUSSIAN = gaussian(dim=3, clip_radius=2.0)
RESPONSE = response(0.7)


def refuses(message):
    return pytest.raises(ValueError, match=f"^{re.escape(message)}")


def same(one, other):
    return bool(eqx.tree_equal(one, other))


NEW = {
    "noise_scale": 2.5,
    "dim": 5,
    "clip_radius": 4.0,
    "mean": 0.25,
    "covariance": 3.0,
    "threshold": 0.3,
    "outside": "recomputed",
    "leave": 0.9,
    "recruit": 0.05,
    "leave_spared": 0.04,
    "recruit_leaked": 0.02,
    "recruiters": "everyone",
    "floor": 3.0,
    "cap": 500.0,
    "population": 77.0,
    "rounds": 4,
}


def test_every_leaf_has_a_name_of_its_own():
    assert set(GAUSSIAN.leaves()) == set(NEW)
    assert set(RESPONSE.leaves()) == set(NEW) - {
        *("noise_scale", "dim", "clip_radius", "covariance", "threshold", "outside")
    } | {"epsilon", "clip_estimate"}


@pytest.mark.parametrize("name", list(NEW))
def test_replace_changes_one_leaf_and_nothing_else(name):
    changed = GAUSSIAN.replace(**{name: NEW[name]})
    before, after = GAUSSIAN.leaves(), changed.leaves()
    assert after[name] == NEW[name]
    assert all(np.all(after[other] == before[other]) for other in before if other != name)
    assert after[name] != before[name]
    assert same(changed.replace(**{name: before[name]}), GAUSSIAN)


def test_replace_in_another_mechanism():
    changed = RESPONSE.replace(epsilon=2.0, mean=0.4, clip_estimate=True)
    assert (changed.mechanism.epsilon, changed.mechanism.mean, changed.mechanism.clip_estimate) == (2.0, 0.4, True)


def test_replace_takes_whole_parts_and_their_leaves_together():
    who = pj.Participation(0.2, 0.3, recruiters="everyone")
    changed = GAUSSIAN.replace(participation=who, leave=0.4)
    assert (changed.participation.leave, changed.participation.recruit) == (0.4, 0.3)
    assert changed.participation.recruiters == "everyone"


def test_replace_checks_and_derives_again():
    assert GAUSSIAN.mechanism.clips
    assert not GAUSSIAN.replace(clip_radius=50.0).mechanism.clips
    assert not GAUSSIAN.replace(clip_radius=None).mechanism.clips
    with refuses("Argument `leave` must lie in [0, 1], but is 1.2."):
        GAUSSIAN.replace(leave=1.2)


@pytest.mark.parametrize(
    ("wrong", "right"), [("leaves", "leave"), ("noise_scal", "noise_scale"), ("treshold", "threshold")]
)
def test_an_unknown_leaf_names_the_nearest(wrong, right):
    with refuses(f"Unknown leaf `{wrong}`: did you mean `{right}`?"):
        GAUSSIAN.replace(**{wrong: 1.0})
    with pytest.raises(ValueError, match=r"^Unknown leaf `zzz`: known are `"):
        GAUSSIAN.replace(zzz=1.0)
    with pytest.raises(ValueError, match=r"^Unknown leaf `epsilon`"):
        GAUSSIAN.replace(epsilon=1.0)


def test_without_privacy():
    assert GAUSSIAN.without_privacy().mechanism.noise_scale == 0
    assert RESPONSE.without_privacy().mechanism.epsilon == jnp.inf


def dtypes(scenario):
    return {x.dtype.name for x in jax.tree.leaves(scenario) if eqx.is_array(x)}


def test_all_leaves_share_the_widest_dtype():
    assert dtypes(GAUSSIAN) == {"float64"}
    single = GAUSSIAN.astype("float32")
    assert dtypes(single) == {"float32"}
    assert dtypes(single.replace(leave=0.2, noise_scale=[1.0] * 11)) == {"float32"}
    assert dtypes(single.replace(leave=jnp.asarray(0.2, "float64"))) == {"float64"}
    assert dtypes(single.astype("float64")) == {"float64"}
    assert single.rounds == GAUSSIAN.rounds


def test_integers_become_floats():
    scenario = GAUSSIAN.replace(population=50, floor=np.int32(2), noise_scale=1)
    assert dtypes(scenario) == {"float64"}


def test_every_number_that_can_be_swept_is_an_array():
    for part in (GAUSSIAN.mechanism, GAUSSIAN.leakage, GAUSSIAN.participation):
        for field in dataclasses.fields(part):
            if not field.metadata.get("static", False):
                assert eqx.is_array(getattr(part, field.name)), field.name


def test_a_schedule_has_one_noise_for_each_release():
    assert GAUSSIAN.replace(noise_scale=np.ones(11)).mechanism.noise_scale.shape == (11,)
    with refuses(
        "Argument `noise_scale` must be one value or 11 of them, one per release (`rounds` + 1), but is of shape (10,)."
    ):
        GAUSSIAN.replace(noise_scale=np.ones(10))
    with refuses("Argument `epsilon` must be one value or 51 of them"):
        RESPONSE.replace(epsilon=np.ones(50))


@pytest.mark.parametrize(
    ("leaves", "message"),
    [
        ({"population": 0}, "Argument `population` must lie in (0, inf"),
        ({"population": math.nan}, "Argument `population` must lie in (0, inf"),
        ({"population": 600.0, "cap": 500.0}, "Argument `population` must be at most `cap` (500), but is 600."),
        ({"rounds": 0}, "Argument `rounds` must be an integer of at least 1, but is 0."),
        ({"noise_scale": -1.0}, "Argument `noise_scale` must lie in [0, inf), but is -1."),
        ({"threshold": 0.0}, "Argument `threshold` must lie in (0, inf), but is 0."),
        ({"mean": [1.0, 2.0]}, "Argument `mean` must be one number or 3 of them (`dim`), but is of shape (2,)."),
        ({"covariance": -np.eye(3)}, "Argument `covariance` must be positive definite, but is a matrix with least"),
        ({"covariance": [[1.0, 0.5, 0], [0, 1, 0], [0, 0, 1]]}, "Argument `covariance` must be symmetric, but is [["),
        ({"leave": 10**400}, "Argument `leave` must be a number or an array of numbers, but is 10000"),
        ({"mechanism": "GaussianMean"}, "Argument `mechanism` must be a Mechanism, but is of type str."),
        ({"mechanism": pj.GaussianMean}, "Argument `mechanism` must be a Mechanism, but is the class GaussianMean."),
        ({"leakage": None}, "Argument `leakage` must be a Leakage, but is of type NoneType."),
        ({"recruiters": "all"}, 'Argument `recruiters` must be "spared" or "everyone", but is "all".'),
    ],
)
def test_bad_leaves_are_one_clear_line(leaves, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}") as error:
        GAUSSIAN.replace(**leaves)
    assert "\n" not in str(error.value)


def test_known_leaves_are_listed_once():
    with refuses("Unknown leaf `zzz`: known are ") as error:
        GAUSSIAN.replace(zzz=1)
    assert str(error.value).count("`population`") == 1


SOLVERS = {
    "mean_field": pj.mean_field,
    "population_law": pj.population_law,
    "simulate_counts": lambda scenario: pj.simulate_counts(scenario, key=jax.random.key(0), trials=1),
    "simulate_users": lambda scenario: pj.simulate_users(scenario, key=jax.random.key(0), trials=1),
    "tune": pj.tune,
    "objective": pj.CumulativeBound(),
}


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("leaf", ["leave", "threshold", "population", "cap"])
def test_a_batch_is_refused_by_what_takes_one_scenario(name, leaf):
    batch = GAUSSIAN.replace(**{leaf: 2 * [GAUSSIAN.leaves()[leaf]]})
    with refuses(f"Argument `{leaf}` must be one number (a batch of scenarios takes `jax.vmap` or `sweep`), but is ["):
        SOLVERS[name](batch)


def test_an_unsupported_pair_is_refused():
    with pytest.raises(ValueError, match=r"pairs \(GaussianMean, LikelihoodRatioAbove\), .*\(RandomizedResponse"):
        GAUSSIAN.replace(leakage=pj.TrueBitKept())


@pytest.mark.parametrize("name", ["leave", "noise_scale", "threshold", "population"])
def test_a_traced_bad_leaf_raises_when_it_runs(name):
    bad = {"leave": 1.2, "noise_scale": -1.0, "threshold": -0.1, "population": -3.0}[name]

    @jax.jit
    def run(value):
        return GAUSSIAN.replace(**{name: value}).leaves()[name]

    with pytest.raises(Exception, match=f"Argument `{name}` must lie in"):
        jax.block_until_ready(run(bad))
    good = GAUSSIAN.leaves()[name]
    assert run(good) == good
