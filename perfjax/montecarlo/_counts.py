"""The count-level simulator: one number of users per run, at a cost that depends on neither users nor features."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array, Float, Int, Key, UInt32

from perfjax._chi_square import lower_quantile, upper_quantile
from perfjax.binomial import binomial_from_bits, normal_quantile, uniform_from_bits
from perfjax.leakage import check_count_level, given_noise, split
from perfjax.mechanisms import GaussianMean, RandomizedResponse, ShiftedLogCount
from perfjax.montecarlo._inputs import OTHER_CAUSES, as_key, as_trials, initial_users
from perfjax.scenario import Noise, Scenario, as_single
from perfjax.trajectory import Trajectory

__all__ = ["runs", "simulate_counts"]

AT_ONCE = 2**14  # runs: a bound on memory, for a release can need a table for each
WORDS = 6  # random 32-bit words of a release


def simulate_counts(
    scenario: Scenario, *, key: Array, trials: int, noise: Noise | None = None, first_trial: int = 0
) -> Trajectory:
    """Simulate runs by counting users instead of following them.

    A release of n users draws what they share (the size of the noise), then the leaked count K given that: an exact
    binomial where users are then leaked independently (`TrueBitKept`, `ReconstructedWithin`), all or none for a count,
    else a rounded normal of exact mean and of the variance for many users, enumerated for one and two of them.
    Leavers are Bin(K, q) + Bin(n - K, q_spared), recruits Bin(K, r_leaked) + Bin(n - K, r) (everyone: Bin(n, r)), each
    one quantile of a uniform number; see `Participation`.

    A run starts with a whole number of users: of a fractional population with one of the two next to it, of the right
    mean over runs. Their first error is then the mean of both: of 2.5 users, 4 % above that of the mean field.

    Each draw depends on (key, trial, release) alone: the number of trials or rounds changes no other draw.

    Args:
        scenario: the scenario; a Gaussian mean needs a scalar covariance and clipping that never binds.
        key: a typed key.
        trials: runs, at least 1.
        noise: x, instead of the scenario's own: one value, one per release, or a policy.
        first_trial: number of the first run, for a simulation in parts: runs first_trial, first_trial + 1, ... are
            those that a simulation of all would give.

    Returns:
        `Trajectory` with a leading axis of trials: population; realised share of leaked users; realised squared error;
        and `expected_error`, the error's expectation given the population. Differentiable: a count's derivative is that
        of its quantile. Its bias is below 1 % while nearly all runs keep some 10 users or more. Where runs collapse it
        is as large as half of the derivative and more, since a run at the floor does not see that one more user would
        have kept it from there: differentiate `population_law` instead.

    Raises:
        ValueError: if the scenario is out of reach at the count level, naming `simulate_users`; on bad input.

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility", Algorithm 1; the law
        of the count is ours.

    Example:
        >>> import jax, perfjax as pj
        >>> runs = pj.simulate_counts(pj.preset("mean-estimation"), key=jax.random.key(0), trials=10)
        >>> runs.population.shape
        (10, 51)
    """
    check_count_level(as_single(scenario).mechanism)
    key = as_key(key)
    trials, first = as_trials(trials, first_trial)
    scenario = scenario.replace_noise(noise)
    return _simulate_counts(scenario, key, trials, first)


@eqx.filter_jit
def _simulate_counts(scenario, key, trials, first_trial):
    return runs(scenario, key, trials, first_trial=first_trial)


def runs(scenario: Scenario, key: Key[Array, ""], trials: int, *, first_trial: Int[Array, ""] | int = 0) -> Trajectory:
    """`simulate_counts` of checked arguments, to be traced by other code."""
    trial = first_trial + jnp.arange(trials, dtype=jnp.int32)
    keys = jax.vmap(lambda k: jax.random.fold_in(key, k))(trial)

    def one(key):
        return _run(scenario, key)

    fields = jax.vmap(one)(keys) if trials <= AT_ONCE else jax.lax.map(one, keys, batch_size=AT_ONCE)
    return Trajectory(**fields, scenario=scenario)


def _run(scenario, key):
    """One run."""
    mechanism, who = scenario.mechanism, scenario.participation
    release = _RELEASES[type(mechanism)]
    other_causes = jax.random.fold_in(key, jnp.uint32(OTHER_CAUSES))

    def step(n, inputs):
        t, x = inputs[0], scenario.noise_of(n, *inputs)
        words = jax.random.bits(jax.random.fold_in(key, t), (WORDS,), "uint32")
        leaked, error = release(scenario, n, x, words[:4])
        spared = n - leaked
        left = binomial_from_bits(words[4], leaked, who.leave)
        joined = binomial_from_bits(words[5], who.recruiting(leaked, spared), who.recruit)
        more = _by_other_causes(who, leaked, spared, jax.random.fold_in(other_causes, t))
        share = leaked / jnp.maximum(n, 1)
        return who.bounded(n - left + joined + more), (n, share, error, scenario.error(n, x))

    start = who.bounded(initial_users(scenario.population, key))
    _, (n, share, error, expected) = jax.lax.scan(step, start, (jnp.arange(scenario.rounds + 1), scenario.noises()))
    return {"population": n, "leak_probability": share, "error": error, "expected_error": expected}


def _by_other_causes(who, leaked, spared, key):
    """Recruits of leaked users less spared users who leave.

    Most scenarios have neither: then the two counts are not drawn, and derivatives are those of their means. In a cell
    of a batch over these rates, they are.
    """

    def drawn():
        words = jax.random.bits(key, (2,), "uint32")
        recruits = binomial_from_bits(words[0], leaked, who.recruit_leaked)
        return recruits - binomial_from_bits(words[1], spared, who.leave_spared)

    def mean():
        return who.recruit_leaked * leaked - who.leave_spared * spared

    return jax.lax.cond((who.recruit_leaked > 0) | (who.leave_spared > 0), drawn, mean)


def _mean(scenario, n, x, words: UInt32[Array, " 4"]):
    """Leaked count and realised squared error of a Gaussian mean."""
    mechanism = scenario.mechanism
    along, across = (
        _chi_square(word, k, n.dtype) for word, k in zip(words[:2], (mechanism.dim, mechanism.dim - 1), strict=True)
    )
    law = given_noise(mechanism, scenario.leakage, n, x, along)
    # The records' mean is independent of their residuals, and so of the leaks, given the noise that users share: the
    # average over the copies, about which the one that is published varies too.
    v, copies, noise = mechanism.covariance, scenario.leakage.copies, scenario.leakage.released_noise(x)
    rest = v + noise**2 * (1 - 1 / copies)
    distance = (noise * jnp.sqrt(along / copies) + jnp.sqrt(rest) * _normal(words[2], n.dtype)) ** 2 + rest * across
    error = jnp.where(n > 0, distance / (v * jnp.where(n > 0, n, 1)), jnp.inf)
    if scenario.leakage.independent:
        return binomial_from_bits(words[3], n, law.leaked, q=law.kept), error
    return _leaked_count(n, law, words[3]), error


def _leaked_count(n, law, word):
    """K among n users given the shared noise."""
    spread = jnp.maximum(n * law.spread, jnp.finfo(n.dtype).tiny)
    many = jnp.clip(_rounded(n * law.leaked + jnp.sqrt(spread) * _normal(word, n.dtype)), 0, n)
    u = uniform_from_bits(word, n.dtype)
    exactly_one = 2 * (law.leaked - law.both)
    two = (u < law.both).astype(n.dtype) + (u < law.both + exactly_one).astype(n.dtype)
    one = (u < law.leaked).astype(n.dtype)
    few = jnp.where(n > 1.5, two, jnp.where(n > 0.5, one, 0))
    expected = n * law.leaked  # a step has derivative 0; that of its expectation takes its place
    few = jax.lax.stop_gradient(few - expected) + expected
    return jnp.where(n > 2.5, many, few)


def _bits(scenario, n, x, words: UInt32[Array, " 4"]):
    """Leaked count and realised squared error of randomized response, from the counts of true ones and zeros kept."""
    mechanism = scenario.mechanism
    low, high = jnp.broadcast_to(mechanism.mean, (2,))
    mu = low + (high - low) * uniform_from_bits(words[0], n.dtype)
    keep, flip = jax.nn.sigmoid(x), jax.nn.sigmoid(-x)
    ones = binomial_from_bits(words[1], n, mu)
    ones_kept = binomial_from_bits(words[2], ones, keep, q=flip)
    zeros_kept = binomial_from_bits(words[3], n - ones, keep, q=flip)
    rate = (ones_kept + (n - ones) - zeros_kept) / jnp.maximum(n, 1)
    estimate = 0.5 + (rate - 0.5) / jnp.tanh(x / 2)
    if mechanism.clip_estimate:
        estimate = jnp.clip(estimate, 0, 1)
    error = jnp.where(n > 0, (estimate - mu) ** 2, jnp.inf)
    return ones_kept + zeros_kept, error


def _count(scenario, n, x, words: UInt32[Array, " 4"]):
    """Leaked count, all or none, and realised relative error of a released count."""
    mechanism = scenario.mechanism
    u = uniform_from_bits(words[0], n.dtype)
    chance = split(mechanism, scenario.leakage, n, x)
    leaked = jnp.where(u < chance.leaked, n, 0)
    expected = n * chance.leaked  # a step has derivative 0; that of its expectation takes its place
    leaked = jax.lax.stop_gradient(leaked - expected) + expected
    # Leaks are at large Z: u is the probability of a greater one.
    z = -_normal(words[0], n.dtype)
    power = x * z - x * x
    released = jnp.maximum(n * jnp.exp(power) + mechanism.shift * jnp.expm1(power), 0)
    return leaked, jnp.abs(released - n) / jnp.maximum(n, 1)


_RELEASES = {GaussianMean: _mean, RandomizedResponse: _bits, ShiftedLogCount: _count}


def _normal(word, dtype):
    return normal_quantile(uniform_from_bits(word, dtype), uniform_from_bits(~word, dtype))


@jax.custom_jvp
def _rounded(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`x` rounded, with the derivative of `x`: that of the mean of the rounded value where x is spread over many."""
    return jnp.round(x)


@_rounded.defjvp
def _rounded_jvp(primals, tangents):
    return _rounded(*primals), tangents[0]


def _chi_square(word: UInt32[Array, ""], degrees: int, dtype) -> Float[Array, ""]:
    """A chi-square number with `degrees` degrees of freedom from a random word, by its quantile.

    The quantile as a function of the standard normal z is smooth: cubic Hermite interpolation of its cube root (which
    is nearly linear in z) between 513 knots has an error below 1e-8 relative for 2 or more degrees.
    """
    if degrees == 0:
        return jnp.zeros((), dtype)
    z = _normal(word, dtype)
    if degrees == 1:
        return z * z
    knots, value, slope = _chi_table(degrees, str(jnp.dtype(dtype)))
    step = float(knots[1] - knots[0])
    place = (z - float(knots[0])) / step
    left = jnp.clip(jnp.floor(place).astype(jnp.int32), 0, len(knots) - 2)
    t = place - left.astype(dtype)
    value, slope = jnp.asarray(value), jnp.asarray(slope) * step
    a, b, da, db = value[left], value[left + 1], slope[left], slope[left + 1]
    root = a + t * (da + t * (3 * (b - a) - 2 * da - db + t * (2 * (a - b) + da + db)))
    return root**3


@functools.cache
def _chi_table(degrees: int, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Knots in z, cube roots of the chi-square quantile there, and their derivatives."""
    z = np.linspace(-6.5, 6.5, 513)
    lower = lower_quantile(scipy.special.ndtr(z), degrees)
    upper = upper_quantile(scipy.special.ndtr(-z), degrees)
    quantile = np.where(z < 0, lower, upper)
    half = degrees / 2
    log_density = (half - 1) * np.log(quantile / 2) - quantile / 2 - scipy.special.gammaln(half) - np.log(2)
    density = np.exp(-z * z / 2 - np.log(2 * np.pi) / 2 - log_density)
    root = np.cbrt(quantile)
    return z, root.astype(dtype), (density / (3 * root**2)).astype(dtype)
