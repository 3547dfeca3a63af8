"""The mean-field recursion: the expected path of the population, deterministic and differentiable."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from perfjax import leakage
from perfjax.scenario import Noise, Scenario, as_single
from perfjax.trajectory import Trajectory

__all__ = ["mean_field", "recursion"]


def mean_field(scenario: Scenario, *, noise: Noise | None = None) -> Trajectory:
    r"""Follow the expected population through all releases.

    n_{t+1} = clip(n_t C(x_t, n_t), floor, cap),  C the growth factor of `Participation`, p = p(x_t, n_t).

    The expectation is put in place of the random population at every step. That predicts simulated errors closely,
    except where a run may collapse: there some runs die and some do not, and the recursion sees neither.

    Near the population whose growth is 1, below which it dies out and above which it grows, a path multiplies each
    error of its start by the slope of every release: 1e4 times in 200 releases at leave = recruit = 1. In float32 it is
    then off by what half a unit in the last place of population and noise makes of it, 1e-3 or more, and no more than
    3 times that: use float64 there.

    Args:
        scenario: the scenario.
        noise: x, instead of the scenario's own: one value, one per release, or a policy.

    Returns:
        `Trajectory` of releases 0..T: population n_t, leak probability p_t, error e(x_t, n_t), which is infinite where
        nobody is left.

    Raises:
        ValueError: if `noise` does not fit or is out of range.

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility", equations 4 and 12; releases are
        numbered as in `Scenario`, one less than the rounds of the paper's Algorithm 1.

    Example:
        >>> import perfjax as pj
        >>> path = pj.mean_field(pj.preset("mean-estimation"))
        >>> path.population.shape
        (51,)
    """
    scenario = as_single(scenario).replace_noise(noise)
    return _mean_field(scenario)


@eqx.filter_jit
def _mean_field(scenario):
    return recursion(scenario)


def recursion(scenario: Scenario) -> Trajectory:
    """`mean_field` of a checked scenario, to be traced by other code."""
    mechanism, participation = scenario.mechanism, scenario.participation

    def error_of(n, x):
        # With a floor of 0 the expected population has none: below `nobody`, 1 / n^2 in the derivative would overflow.
        nobody = n <= jnp.finfo(n.dtype).tiny ** 0.25
        return scenario.error(jnp.where(nobody, 0, n), x)

    def release(n: Float[Array, ""], at: tuple[Int[Array, ""], Float[Array, ""]]):
        x = scenario.noise_of(n, *at)
        split = leakage.split(mechanism, scenario.leakage, n, x)
        return participation.expected_next(n, split), (n, split.leaked, error_of(n, x))

    start = participation.bounded(scenario.population)
    releases = jnp.arange(scenario.rounds + 1), scenario.noises()
    # In reverse mode only populations are kept, and a release is computed once more: less to write, and so faster too.
    again = jax.checkpoint(release, prevent_cse=False)
    _, (population, leak_probability, error) = jax.lax.scan(again, start, releases)
    return Trajectory(population=population, leak_probability=leak_probability, error=error, scenario=scenario)
