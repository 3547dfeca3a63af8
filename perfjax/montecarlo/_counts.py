"""The count-level simulator: one number of users per run, at a cost that depends on neither users nor features."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from perfjax.binomial import binomial_from_bits
from perfjax.leakage import check_count_level, pair_of
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
    check_count_level(as_single(scenario).mechanism, scenario.leakage, "count_release")
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
    mechanism, leakage, who = scenario.mechanism, scenario.leakage, scenario.participation
    release = pair_of(mechanism, leakage).count_release
    other_causes = jax.random.fold_in(key, jnp.uint32(OTHER_CAUSES))

    def step(n, inputs):
        t, x = inputs[0], scenario.noise_of(n, *inputs)
        words = jax.random.bits(jax.random.fold_in(key, t), (WORDS,), "uint32")
        leaked, error = release(mechanism, leakage, n, x, words[:4])
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
