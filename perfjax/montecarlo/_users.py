"""Sampling user by user: Algorithm 1 as written, the reference for everything faster."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from perfjax import _check
from perfjax.leakage import pair_of
from perfjax.leakage.pairs.blocks import Keys, happens, present
from perfjax.montecarlo._inputs import as_key, as_trials, initial_users, without_gradient
from perfjax.scenario import Noise, Scenario, as_single
from perfjax.trajectory import Trajectory

__all__ = ["simulate_users"]

# Measured in benchmarks/bench_users.py: larger blocks leave the cache, smaller ones lose to the loop, and records drawn
# twice take 1.6 times as long as records kept.
BLOCK_USERS = 4096  # users drawn at a time
BLOCK_NUMBERS = 2**16  # but no more numbers than a core's cache holds


def simulate_users(
    scenario: Scenario, *, key: Key[Array, ""], trials: int, noise: Noise | None = None, first_trial: int = 0
) -> Trajectory:
    r"""Simulate every user of every release.

    For each of the n_t users of release t: draw a record, clip it, add it to the released statistic. Then, for each
    again: is the user leaked by what was released? Each leaves, and recruits a new one, with the probabilities that
    `Participation` has for a leaked or a spared user. So n_{t+1} = n_t - (left) + (recruited), held to the whole
    numbers between `floor` and `cap`. For a mean, with o the release and z_bar the mean of clipped records,

        Lambda(z) = log p(o | z_bar, gamma^2 / n) - log p(o | z_bar - (z - z_bar) / (n - 1), gamma^2 / n or / (n - 1))

    from the actual o and z_bar, and z is leaked when Lambda(z) > tau. By reconstruction, z is leaked when the estimate
    from the actual means with and without it is within the tolerance of z.

    Users are drawn in blocks of at most 4096: time follows the population of the moment, in such steps, and memory is
    bounded whatever the cap. Trials run one after another, and under `vmap` so do scenarios. Trial k, release t and
    block b draw from a key folded from (key, k, t, b): more trials or more rounds leave those already there as they
    were, bit for bit.

    Args:
        scenario: the scenario. Population, floor and cap count as whole numbers: the floor is rounded up, the cap down,
            and a run starts with one of the two whole numbers next to a fractional population, of the right mean over
            runs. Cap below 2^31.
        key: a typed key. Scenarios given the same key share their draws.
        trials: independent runs, at least 1.
        noise: x, instead of the scenario's own: one value, one per release, or a policy.
        first_trial: number of the first run, for a simulation in parts: runs first_trial, first_trial + 1, ... are
            those that a simulation of all would give.

    Returns:
        `Trajectory` with [trials, T + 1] fields: population n_t; leak_probability, the share of the n_t users that was
        leaked (0 of none); error, the squared error that release t made (Mahalanobis for a mean; infinite without
        users); expected_error, its expectation given n_t. All users are leaked without noise, and a single user of a
        mean always.

    Raises:
        ValueError: if `key` is not one typed key, `trials` or `first_trial` no such integer, the cap 2^31 or more, the
            pair of mechanism and leakage unknown to it, or `noise` out of range; and when differentiated, in place of
            the silent 0 that a sampled path would give.

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility", Algorithm 1 and section 3. Our release
        t is the paper's round t + 1. A run goes on at the floor; the paper's stops when nobody is left.

    Example:
        >>> import jax, perfjax as pj
        >>> runs = pj.simulate_users(pj.preset("mean-estimation"), key=jax.random.key(0), trials=3)
        >>> runs.population.shape
        (3, 51)
    """
    key, (trials, first) = as_key(key), as_trials(trials, first_trial)
    pair_of(as_single(scenario).mechanism, scenario.leakage, "user_release")
    scenario = scenario.replace_noise(noise)
    cap = _check.in_range(scenario.participation.cap, "cap", 1, 2.0**31, open_high=True)
    scenario = eqx.tree_at(lambda s: s.participation.cap, scenario, cap)
    scenario = without_gradient(scenario, "simulate_users")
    population, leaked, error, expected_error = _simulate(scenario, key, trials, first)
    return Trajectory(
        population=population,
        leak_probability=leaked,
        error=error,
        scenario=scenario,
        expected_error=expected_error,
    )


@eqx.filter_jit
def _simulate(scenario, key, trials, first_trial):
    # A vmapped while loop runs every lane to the longest one's end: scenarios run in turn instead.
    @jax.custom_batching.sequential_vmap
    def run(scenario, key, first_trial):
        trial = first_trial + jnp.arange(trials, dtype=jnp.int32)
        return jax.lax.map(lambda k: _trial(scenario, jax.random.fold_in(key, k)), trial)

    return run(scenario, key, first_trial)


def _trial(scenario, key):
    floor, cap = _whole(jnp.ceil(scenario.participation.floor)), _whole(scenario.participation.cap)

    def release(users: Int[Array, ""], at: tuple[Int[Array, ""], Float[Array, ""]]):
        n = users.astype(scenario.population.dtype)
        t, noise = at[0], scenario.noise_of(n, *at)
        tally, error = _release(scenario, users, noise, jax.random.fold_in(key, t))
        stayed = users - tally.left
        # cap - stayed first: their sum may exceed what an int32 holds.
        following = jnp.maximum(stayed + jnp.minimum(tally.recruited, cap - stayed), floor)
        share = tally.leaked.astype(noise.dtype) / jnp.maximum(n, 1)
        return following, (n, share, error, scenario.error(n, noise))

    releases = jnp.arange(scenario.rounds + 1, dtype=jnp.int32)
    start = jnp.maximum(jnp.minimum(_whole(initial_users(scenario.population, key)), cap), floor)
    return jax.lax.scan(release, start, (releases, scenario.noises()))[1]


def _whole(value):
    return value.astype(jnp.int32)


class Tally(NamedTuple):
    """How many users were leaked, left, and were recruited."""

    leaked: Int[Array, ""]
    left: Int[Array, ""]
    recruited: Int[Array, ""]


def _release(scenario, users, noise, key):
    """One release to `users` users: the tally, and the squared error."""
    mechanism, leakage, participation = scenario.mechanism, scenario.leakage, scenario.participation
    pair = pair_of(mechanism, leakage)
    keys, size = Keys(*jax.random.split(key, len(Keys._fields))), _block_size(pair.record_size(mechanism))
    error, tests = pair.user_release(mechanism, leakage, users, noise, size, keys)
    chances = jnp.stack([jnp.stack(rates) for rates in (participation.spared, participation.leaked)])[..., None]

    def count(is_leaked, block, tally):
        here = present(users, block, size)
        leaked = here & is_leaked(block)
        leave, recruit = happens(keys.decisions, block, (2, size), jnp.where(leaked, chances[1], chances[0]))
        groups = leaked, here & leave, here & recruit
        more = (jnp.sum(who, dtype=jnp.int32) for who in groups)
        return Tally(*map(jnp.add, tally, more))

    tally = Tally(*(jnp.int32(0) for _ in Tally._fields))
    for first, end, is_leaked in tests:
        tally = jax.lax.fori_loop(first, end, functools.partial(count, is_leaked), tally)
    return tally, error


def _block_size(numbers) -> int:
    """Users per block, a power of two and at least two; each has so many numbers."""
    return min(BLOCK_USERS, 2 ** max(1, (BLOCK_NUMBERS // numbers).bit_length() - 1))
