"""The law of leaks of every round of a series, and a table of it over thresholds.

The law is nearly all of a likelihood's work, and moves with the threshold alone, not with leave and recruit: tabulated
once for a series, it makes every step of every search cheap.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfjax import _check
from perfjax._linear import product
from perfjax._normals import score_rule
from perfjax.calibration._parameters import with_parameters
from perfjax.calibration._series import Series
from perfjax.law._kernel import leaked_counts
from perfjax.law._nodes import SMALL
from perfjax.leakage import LeakDistribution, leak_distribution, pair_of, shared_weights
from perfjax.scenario import Scenario

__all__ = [
    "FEW_NODES",
    "MANY_NODES",
    "Place",
    "SharedLaw",
    "Table",
    "is_continuous",
    "law_of_release",
    "law_of_steps",
    "noise_of",
    "over_shared",
    "resolved",
    "starts_of",
    "tabulated",
]

REACH = 4.5  # of the nodes of the shared noise, to both sides, in its normal score
FEW_NODES, MANY_NODES = 19, 37  # for few users and for many
THRESHOLDS = 54  # of a table, 10 units of log threshold wide: good to 1e-4 of a probability
NEIGHBOURS = 6  # that an interpolation takes

Place = tuple[Float[Array, "*groups"], Float[Array, "*groups"]]
"""A number of users and a noise."""


class SharedLaw(NamedTuple):
    """The law of the leaked count of releases, by node of what their users share.

    Attributes:
        given: of the releases, [..., shared].
        weight: of the nodes, [..., shared].
        chance: P(K = 0 .. SMALL) over what is shared, for releases to so few users; None if there are none.
    """

    given: LeakDistribution
    weight: Float[Array, "... shared"]
    chance: Float[Array, "... leaked"] | None


class Table(NamedTuple):
    """The law of a series by threshold.

    Attributes:
        first: log of the first threshold.
        step: between logs.
        law: with an axis of thresholds in front; of length 1 if the threshold is not free.
    """

    first: Float[Array, ""]
    step: Float[Array, ""]
    law: SharedLaw

    def only(self) -> SharedLaw:
        """At the scenario's own threshold."""
        return jax.tree.map(lambda x: x[0], self.law)

    def at(self, log_threshold: Float[Array, ""]) -> SharedLaw:
        """Between two thresholds the cubic with the values there and slopes from two neighbours on each side."""
        place = (log_threshold - self.first) / self.step
        left = jnp.clip(jnp.floor(jax.lax.stop_gradient(place)), 2, THRESHOLDS - 4).astype(jnp.int32)
        weights = _cubic(place - left.astype(place.dtype))

        def one(values):
            near = jax.lax.dynamic_slice_in_dim(values, left - 2, NEIGHBOURS)
            return jnp.tensordot(weights, near, 1, precision="highest")

        return jax.tree.map(one, self.law)


def _cubic(t):
    """Weights of six equally spaced values, the cubic between the middle two."""
    slope = jnp.asarray([1, -8, 0, 8, -1], t.dtype) / 12
    left, right = jnp.pad(slope, (0, 1)), jnp.pad(slope, (1, 0))
    unit = jnp.eye(NEIGHBOURS, dtype=t.dtype)
    rest = 1 - t
    values = unit[2] * (1 + 2 * t) * rest**2 + unit[3] * (3 - 2 * t) * t**2
    return values + left * t * rest**2 - right * rest * t**2


def is_continuous(scenario: Scenario) -> bool:
    """Whether what the users of a release share takes a continuum of values."""
    pair = scenario.mechanism, scenario.leakage
    return pair_of(*pair).shared_quantile(*pair, np.zeros(1)) is not None


def resolved(nodes: int) -> float:
    """Of the variance between nodes, what a component needs: narrower ones would ripple by more than 1 %."""
    return 0.27 * (2 * REACH / (nodes - 1)) ** 2


def law_of_release(
    scenario: Scenario, n: Float[Array, ""], x: Float[Array, ""], *, nodes: int = FEW_NODES
) -> SharedLaw:
    """The law of the leaks of one release, without `chance`."""
    pair = scenario.mechanism, scenario.leakage
    # The nodes which the law of the population takes lie further apart than the counts that follow vary given each: a
    # likelihood would see their comb.
    score, weight = score_rule(REACH, nodes)
    node = pair_of(*pair).shared_quantile(*pair, score)
    if node is None:
        node, weight = shared_weights(*pair, n, x)
    node, weight = jnp.asarray(node, x.dtype), jnp.asarray(weight, x.dtype)
    given = jax.vmap(lambda shared: leak_distribution(*pair, n, x, shared))(node)
    return SharedLaw(given, weight, None)


def law_of_steps(scenario: Scenario, series: Series, place: Place, *, small: bool, nodes: int = FEW_NODES) -> SharedLaw:
    """The law of every round but the last and then of `place`; with the chances of few users if `small`."""
    n, x = jnp.append(starts_of(series), place[0]), jnp.append(noise_of(series), place[1])
    law = jax.vmap(lambda n, x: law_of_release(scenario, n, x, nodes=nodes))(n, x)
    if not small:
        return law
    few = jnp.where(n <= SMALL, n, 0)
    leaked = jnp.arange(SMALL + 1, dtype=n.dtype)
    independent = pair_of(scenario.mechanism, scenario.leakage).independent
    return law._replace(chance=leaked_counts(few, law.given, law.weight, leaked, independent=independent))


def tabulated(
    scenario: Scenario,
    series: Series,
    place: Place,
    ends: tuple[Float[Array, ""], Float[Array, ""]] | None,
    *,
    small: bool,
    nodes: int = FEW_NODES,
) -> Table:
    """The law of a series for log thresholds between two ends; None: at the scenario's own threshold only."""
    zero = jnp.zeros_like(scenario.population)
    if ends is None:
        law = law_of_steps(scenario, series, place, small=small, nodes=nodes)
        return Table(zero, zero + 1, jax.tree.map(lambda x: x[None], law))
    step = (ends[1] - ends[0]) / (THRESHOLDS - NEIGHBOURS + 1)
    first = ends[0] - 2 * step
    # In single precision, six times as fast: good to 1e-6 of a probability, which interpolation is not.
    scenario, series, place = _check.in_precision((scenario, series, place), jnp.float32)

    def law(log_threshold):
        varied = with_parameters(scenario, ("threshold",), log_threshold[None])
        return law_of_steps(varied, series, place, small=small, nodes=nodes)

    log_thresholds = first + step * jnp.arange(THRESHOLDS, dtype=first.dtype)
    laws = jax.lax.map(law, log_thresholds.astype(jnp.float32))
    return Table(first, step, _check.in_precision(laws, first.dtype))


def starts_of(series: Series) -> Float[Array, " steps"]:
    """Counts at rounds 0..T-1, with a harmless one where missing."""
    n = series.population[..., :-1]
    return jnp.where(jnp.isnan(n), 2 * SMALL, n)


def noise_of(series: Series) -> Float[Array, " steps"]:
    """Noise at rounds 0..T-1, with a harmless one where missing."""
    assert series.noise is not None
    x = series.noise[..., :-1]
    return jnp.where(jnp.isnan(x), 1, x)


def over_shared(values: Float[Array, "... shared"], weight: Float[Array, "... shared"]) -> Float[Array, "..."]:
    """The mean over what users share."""
    return product(values[..., None, :], weight[..., None])[..., 0, 0]
