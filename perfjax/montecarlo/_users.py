"""Sampling user by user: Algorithm 1 as written, the reference for everything faster."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from perfjax import _check
from perfjax.leakage import LikelihoodRatioAbove, PairTable, ReconstructedWithin, TrueBitKept
from perfjax.mechanisms import GaussianMean, RandomizedResponse
from perfjax.montecarlo._inputs import as_key, as_trials, initial_users, without_gradient
from perfjax.montecarlo._normals import normals
from perfjax.scenario import Noise, Scenario, as_single
from perfjax.trajectory import Trajectory

__all__ = ["simulate_users"]

# Measured in benchmarks/bench_users.py: larger blocks leave the cache, smaller ones lose to the loop, and records drawn
# twice take 1.6 times as long as records kept.
BLOCK_USERS = 4096  # users drawn at a time
BLOCK_NUMBERS = 2**16  # but no more numbers than a core's cache holds
KEPT_NUMBERS = 2**18  # numbers of a release that are kept; those beyond are drawn a second time when they are needed


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
    _RELEASES.check(as_single(scenario).mechanism, scenario.leakage)
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


class Keys(NamedTuple):
    """What each random number of a release is drawn from; all but the first are folded with the block."""

    once: Key[Array, ""]
    records: Key[Array, ""]
    responses: Key[Array, ""]
    decisions: Key[Array, ""]


class Tally(NamedTuple):
    """How many users were leaked, left, and were recruited."""

    leaked: Int[Array, ""]
    left: Int[Array, ""]
    recruited: Int[Array, ""]


def _release(scenario, users, noise, key):
    """One release to `users` users: the tally, and the squared error."""
    mechanism, participation = scenario.mechanism, scenario.participation
    keys, size = Keys(*jax.random.split(key, len(Keys._fields))), _block_size(mechanism)
    release = _RELEASES.function(mechanism, scenario.leakage)
    error, tests = release(mechanism, scenario.leakage, users, noise, size, keys)
    chances = jnp.stack([jnp.stack(rates) for rates in (participation.spared, participation.leaked)])[..., None]

    def count(is_leaked, block, tally):
        here = _present(users, block, size)
        leaked = here & is_leaked(block)
        leave, recruit = _happens(keys.decisions, block, (2, size), jnp.where(leaked, chances[1], chances[0]))
        groups = leaked, here & leave, here & recruit
        more = (jnp.sum(who, dtype=jnp.int32) for who in groups)
        return Tally(*map(jnp.add, tally, more))

    tally = Tally(*(jnp.int32(0) for _ in Tally._fields))
    for first, end, is_leaked in tests:
        tally = jax.lax.fori_loop(first, end, functools.partial(count, is_leaked), tally)
    return tally, error


def _block_size(mechanism) -> int:
    """Users per block, a power of two and at least two."""
    numbers = mechanism.dim if isinstance(mechanism, GaussianMean) else 1
    return min(BLOCK_USERS, 2 ** max(1, (BLOCK_NUMBERS // numbers).bit_length() - 1))


def _blocks(users, size):
    return (users - 1) // size + 1


def _present(users, block, size) -> Bool[Array, " block"]:
    """Which users of a block exist: all, but for the last block."""
    return jnp.arange(size, dtype=jnp.int32) < users - block * size


def _happens(key, block, shape, probability) -> Bool[Array, "*shape"]:
    """For each user of a block, something that happens with `probability`."""
    return jax.random.uniform(jax.random.fold_in(key, block), shape, probability.dtype) < probability


Test = Callable[[Int[Array, ""]], Bool[Array, " block"]]
Release = tuple[Float[Array, ""], list[tuple[Int[Array, ""], Int[Array, ""], Test]]]
_RELEASES = PairTable("`simulate_users`")
"""What a pair releases: the squared error made, and tests of who of a block is leaked.

Each test stands with the first block that it is for, and the one after the last.
"""


@_RELEASES.enter(GaussianMean, LikelihoodRatioAbove)
def _noisy_mean(mechanism, leakage, users, noise, size, keys) -> Release:
    n, dim = jnp.maximum(users, 1).astype(noise.dtype), mechanism.dim
    draw, root, mean, store = _drawn_records(mechanism, users, n, size, keys)
    direction = jax.random.normal(keys.once, (dim,), noise.dtype) / jnp.sqrt(n)
    error = _squared_error(users, mean + noise * direction, root)
    # Two loops, not one with a condition in it: that would copy all that is stored for every block.
    blocks = _blocks(users, size)
    stored = jnp.minimum(blocks, store.shape[0] - 1)
    sources = ((jnp.int32(0), stored, lambda block: store[block]), (stored, blocks, draw))
    tests = [(a, b, _membership_test(leakage, n, noise, direction, mean, records)) for a, b, records in sources]
    return error, tests


@_RELEASES.enter(GaussianMean, ReconstructedWithin)
def _noisy_means(mechanism, leakage, users, noise, size, keys) -> Release:
    """The error is that of the first of the means of all users; attackers take the average of these means."""
    n, dim = jnp.maximum(users, 1).astype(noise.dtype), mechanism.dim
    _, root, mean, _ = _drawn_records(mechanism, users, n, size, keys)
    of_average, about_average = jax.random.normal(keys.once, (2, dim), noise.dtype)
    copies = leakage.copies
    spread = leakage.released_noise(noise) / jnp.sqrt(n)
    published = spread * (of_average / jnp.sqrt(copies) + about_average * jnp.sqrt(1 - 1 / copies))
    shared = leakage.noise_with_user(n, noise) * of_average
    own = leakage.noise_without_user(n, noise)

    def leaked(block):
        # n (average with z) - (n - 1) (average without z) - z, where all records have cancelled: computed, they would
        # leave their rounding times n.
        standard = normals(jax.random.fold_in(keys.responses, block), (dim, size), noise.dtype)
        miss = shared[:, None] - jnp.where(own < jnp.inf, own, 0) * standard
        return (own < jnp.inf) & (jnp.sum(miss**2, axis=0) <= leakage.tolerance**2)

    return _squared_error(users, mean + published, root), [(jnp.int32(0), _blocks(users, size), leaked)]


def _drawn_records(mechanism, users, n, size, keys):
    """How a block of records is drawn, a root of their covariance, the mean of all, and the first blocks of them."""
    dtype = n.dtype
    root = jnp.linalg.cholesky(mechanism.covariance) if mechanism.covariance.ndim == 2 else mechanism.covariance**0.5

    def draw(block):
        return _records(mechanism, root, jax.random.fold_in(keys.records, block), size)

    total, store = _sum_of_blocks(draw, users, (mechanism.dim, size), dtype)
    return draw, root, total / n, store


def _squared_error(users, miss, root):
    """The squared Mahalanobis length of what a release missed the true mean by."""
    white = jax.scipy.linalg.solve_triangular(root, miss, lower=True) if root.ndim == 2 else miss / root
    return jnp.where(users > 0, jnp.sum(white**2), jnp.inf)


def _records(mechanism, root, key, size) -> Float[Array, "dim block"]:
    """Clipped records of a block of users, less mu: without clipping mu drops out, and costs no digits."""
    # Users along the last axis: what is done to all of them fills a processor's vectors, a dozen features do not.
    standard = normals(key, (mechanism.dim, size), root.dtype)
    if root.ndim == 2:
        deviations = jnp.matmul(root, standard, precision="highest")
    else:
        deviations = jnp.broadcast_to(root, mechanism.dim)[:, None] * standard
    if not mechanism.clips:
        return deviations
    mu = jnp.broadcast_to(mechanism.mean, mechanism.dim)[:, None]
    records = mu + deviations
    norm = jnp.sqrt(jnp.sum(records**2, axis=0))
    return records * jnp.minimum(1, mechanism.clip_radius / norm) - mu


def _membership_test(leakage, n, noise, direction, mean, records) -> Test:
    """Who of a block is leaked by the release `mean` + `noise` * `direction`."""
    exposed = (n <= 1) | (noise == 0)
    scale, others = jnp.where(noise == 0, 1, noise), jnp.maximum(n - 1, 1)

    def leaked(block):
        # With e = o - z_bar, the noise, o - (mean without z) = e + (z - z_bar) / (n - 1). The difference of the squares
        # of the two is gamma sqrt(n) times smaller than either: it is written out, for subtracting would lose it.
        deviation = (records(block) - mean[:, None]) / scale
        nearer = jnp.sum(deviation * (2 * direction[:, None] + deviation / others), axis=0)
        if leakage.outside == "shared":
            ratio = n / others * nearer / 2
        else:
            ratio = (direction.size * jnp.log1p(1 / others) + nearer - jnp.sum(direction**2)) / 2
        return exposed | (ratio > leakage.threshold)

    return leaked


def _sum_of_blocks(draw, users, shape, dtype):
    """The sum of all users' records, and the first blocks of them, before a slot that holds none of these."""
    dim, size = shape
    kept = max(1, KEPT_NUMBERS // (size * dim))

    def add(block, state):
        total, store = state
        records = draw(block)
        # A conditional write copies the store each time; the last slot takes what is not kept instead.
        store = jax.lax.dynamic_update_index_in_dim(store, records, jnp.minimum(block, kept), 0)
        return total + jnp.sum(jnp.where(_present(users, block, size), records, 0), axis=1), store

    start = jnp.zeros(dim, dtype), jnp.zeros((kept + 1, *shape), dtype)
    return jax.lax.fori_loop(jnp.int32(0), _blocks(users, size), add, start)


@_RELEASES.enter(RandomizedResponse, TrueBitKept)
def _flipped_bits(mechanism, leakage, users, noise, size, keys) -> Release:
    del leakage
    n = jnp.maximum(users, 1).astype(noise.dtype)
    low, high = jnp.broadcast_to(mechanism.mean, (2,))
    mean = low + (high - low) * jax.random.uniform(keys.once, (), noise.dtype)

    def is_kept(block):
        return _happens(keys.responses, block, (size,), jax.nn.sigmoid(noise))

    def add(block, ones):
        bits = _happens(keys.records, block, (size,), mean)
        sent = jnp.where(is_kept(block), bits, ~bits)
        return ones + jnp.sum(sent & _present(users, block, size), dtype=jnp.int32)

    ones = jax.lax.fori_loop(jnp.int32(0), _blocks(users, size), add, jnp.int32(0))
    estimate = 0.5 + (ones.astype(noise.dtype) / n - 0.5) / jnp.tanh(noise / 2)
    if mechanism.clip_estimate:
        estimate = jnp.clip(estimate, 0, 1)
    error = jnp.where(users > 0, (mean - estimate) ** 2, jnp.inf)
    return error, [(jnp.int32(0), _blocks(users, size), is_kept)]
