"""What it costs to tune with the wrong scenario."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from perfjax.objectives import log_value, of_one_draw
from perfjax.scenario import Scenario
from perfjax.tuning._constant import tune
from perfjax.tuning._optimum import Optimum

__all__ = ["regret"]


def regret(optimum: Optimum, truth: Scenario, *, key: Key[Array, ""] | None = None) -> Float[Array, ""]:
    """How much worse the best noise of one scenario is than that of another, in that other scenario.

    E(x*, truth) / min_x E(x, truth) - 1, with E the objective of `optimum`, that of one draw where it is `OverDraws`,
    and x* its noise.

    Args:
        optimum: a single result of `tune`.
        truth: the scenario that turns out to hold; same mechanism.
        key: randomness, for an objective that samples.

    Returns:
        The relative regret, at least 0 up to rounding. The other scenario's best noise is sought without a constraint
        and within the default bounds.

    Raises:
        ValueError: if the objective does not exist for `truth`, or needs a key.

    Source: ours.

    Example:
        >>> import perfjax as pj
        >>> scenario = pj.preset("breach-survey")
        >>> bool(regret(pj.tune(scenario), scenario.replace(leave=0.2)) > 0)
        True
    """
    best = tune(truth, of_one_draw(optimum.objective), key=key)
    mine = log_value(best.objective, truth.replace_noise(optimum.noise), key)
    return jnp.expm1(mine - best.log_value)
