"""What it costs to tune with the wrong scenario."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from perfjax.scenario import Scenario
from perfjax.tuning._constant import tune
from perfjax.tuning._optimum import Optimum

__all__ = ["regret"]


def regret(optimum: Optimum, truth: Scenario) -> Float[Array, ""]:
    """How much worse the best noise of one scenario is than that of another, in that other scenario.

    E(x*, truth) / min_x E(x, truth) - 1, with E the objective of `optimum` and x* its noise.

    Args:
        optimum: a single result of `tune`.
        truth: the scenario that turns out to hold; same mechanism.

    Returns:
        The relative regret, at least 0 up to rounding. The other scenario's best noise is sought without a constraint
        and within the default bounds.

    Raises:
        ValueError: if the objective samples, for it would need a key, or does not exist for `truth`.

    Source: ours.

    Example:
        >>> import perfjax as pj
        >>> scenario = pj.preset("breach-survey")
        >>> bool(regret(pj.tune(scenario), scenario.replace(leave=0.2)) > 0)
        True
    """
    best = tune(truth, optimum.objective)
    mine = optimum.objective(truth.replace_noise(optimum.noise))
    return mine / jnp.exp(best.log_value) - 1
