"""Growth of both models of recruiting, and one-sided derivatives at floor and cap."""

import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import close

import perfjax as pj
from perfjax.leakage import Split


def split(p):
    p = jnp.asarray(p)
    return Split(leaked=p, spared=1 - p)


@pytest.mark.parametrize(("q", "r"), list(itertools.product([0.0, 0.3, 1.0], repeat=2)))
def test_growth(q, r):
    p = np.array([0.0, 0.25, 1.0])
    close(pj.Participation(q, r).growth(split(p)) + 1, 2 + r - (q + r) * p, 1e-14)
    close(pj.Participation(q, r, recruiters="everyone").growth(split(p)) + 1, 2 + r - q * p, 1e-14)


@pytest.mark.parametrize("recruiters", ["spared", "everyone"])
def test_growth_is_what_simulated_users_do(recruiters):
    rng, n, q, r, p = np.random.default_rng(0), 1_000_000, 0.4, 0.3, 0.35
    leaked = rng.random(n) < p
    leavers = leaked & (rng.random(n) < q)
    recruits = (rng.random(n) < r) & (~leaked if recruiters == "spared" else True)
    growth = float(pj.Participation(q, r, recruiters=recruiters).growth(split(p)))
    assert abs(1 + (recruits.sum() - leavers.sum()) / n - growth) < 4 / math.sqrt(n)


def test_when_all_the_leaked_leave_growth_is_accurate_down_to_the_last_user():
    kept = jnp.asarray(1e-30)
    close(pj.Participation(1.0, 0.5).growth(Split(1 - kept, kept)), 1.5e-30, 1e-12)


def test_bounded_between_floor_and_cap():
    who = pj.Participation(0.1, 0.1, floor=2, cap=50)
    np.testing.assert_array_equal(who.bounded(jnp.array([0.0, 2.0, 10.0, 50.0, 1e9])), [2, 2, 10, 50, 50])
    close(who.expected_next(jnp.asarray(40.0), split(0.0)), 44.0, 1e-12)
    close(who.expected_next(jnp.asarray(49.0), split(0.0)), 50.0, 1e-12)


@pytest.mark.parametrize(
    ("n", "by_population", "by_floor", "by_cap"),
    [(1.0, 0, 1, 0), (2.0, 0, 1, 0), (3.0, 1, 0, 0), (10.0, 0, 0, 1), (11.0, 0, 0, 1)],
)
def test_derivatives_at_floor_and_cap_are_those_of_one_side(n, by_population, by_floor, by_cap):
    """Never one half, which jnp.clip returns at a tie."""

    def bounded(n, floor, cap):
        return pj.Participation(0.1, 0.1, floor=floor, cap=cap).bounded(n)

    slopes = jax.grad(bounded, argnums=(0, 1, 2))(n, 2.0, 10.0)
    assert slopes == (by_population, by_floor, by_cap)


def test_floor_and_cap_may_coincide():
    slopes = jax.grad(lambda f, c: pj.Participation(0.1, 0.1, floor=f, cap=c).bounded(jnp.asarray(7.0)), (0, 1))
    assert sorted(float(x) for x in slopes(5.0, 5.0)) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"leave": 1.2}, "Argument `leave` must lie in [0, 1], but is 1.2."),
        ({"leave": math.nan}, "Argument `leave` must lie in [0, 1], but is nan."),
        ({"recruit": -0.1}, "Argument `recruit` must lie in [0, 1], but is -0.1."),
        ({"floor": -1}, "Argument `floor` must lie in [0, inf"),
        ({"cap": 0.5}, "Argument `cap` must lie in [1, inf"),
        ({"floor": 30, "cap": 20}, "Argument `floor` must be at most `cap` (20), but is 30."),
        ({"recruiters": "nobody"}, 'Argument `recruiters` must be "spared" or "everyone", but is "nobody".'),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}") as error:
        pj.Participation(**{"leave": 0.1, "recruit": 0.2} | arguments)
    assert "\n" not in str(error.value)


def test_a_traced_bad_value_raises_when_it_runs():
    with pytest.raises(Exception, match="Argument `leave` must lie in"):
        jax.block_until_ready(jax.jit(lambda q: pj.Participation(q, 0.1).growth(split(0.5)))(1.2))
