"""The best noise where parameters are known in part: over the draws of a fit, with what it gains and costs in each."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from perfjax import _check
from perfjax.calibration._meaning import best_in_words, pays_in_words, tuned_each
from perfjax.calibration._ranges import Ranges
from perfjax.meanfield import recursion
from perfjax.objectives import AbstractObjective, CumulativeError, OverDraws, of_one_draw
from perfjax.scenario import Noise, Scenario
from perfjax.tuning import Optimum, tune
from perfjax.tuning._budgets import printed_budgets

__all__ = ["FittedOptimum", "Outcome", "outcome_of_draws", "tune_fitted"]

END = 5  # a parameter's lowest and highest fifth of the draws


class Outcome(NamedTuple):
    """What one noise brings in every draw.

    Attributes:
        error: the objective.
        ratio: the objective over that of no privacy; infinite where the latter is 0.
        population: users of every release, on the expected path; [draws, releases].
    """

    error: Float[Array, " draws"]
    ratio: Float[Array, " draws"]
    population: Float[Array, "draws releases"]


class FittedOptimum(eqx.Module):
    """The best noise over the draws of a fit.

    All of it takes for granted that leaks make people leave, except for `probability_privacy_pays`: where the counts do
    not show it, no privacy is best by the other explanation.

    Attributes:
        optimum: of `OverDraws`: the noise with the least mean log objective.
        ranges: of the fit.
        noises: the best noise of each draw by itself; no privacy as the mechanism writes it.
        regrets: relative regret of `optimum.noise` if the draw is the truth, at least 0.
        pays: whether a noise better than no privacy exists, by draw.
    """

    optimum: Optimum
    ranges: Ranges
    noises: Float[Array, " draws"]
    regrets: Float[Array, " draws"]
    pays: Bool[Array, " draws"]

    def outcome(self, noise: Noise | None = None) -> Outcome:
        """What a noise, the best one by default, brings in every draw."""
        noise = self.optimum.noise if noise is None else noise
        return outcome_of_draws(self.optimum.scenario, self.ranges, noise, of_one_draw(self.optimum.objective))

    def interval(self, values: Float[Array, " draws"]) -> tuple[float, float]:
        """Quantiles of values of the draws, between which a share `ranges.level` of them lies."""
        outside = (1 - self.ranges.level) / 2
        low, high = np.quantile(np.asarray(values), [outside, 1 - outside], method="inverted_cdf")
        return float(low), float(high)

    @property
    def noise_interval(self) -> tuple[float, float]:
        """`interval` of the best noise of each draw, wider where needed to hold the best over all."""
        low, high = self.interval(self.noises)
        return min(low, float(self.optimum.noise)), max(high, float(self.optimum.noise))

    @property
    def probability_privacy_pays(self) -> float:
        """Share of the draws in which some noise beats no privacy, times `ranges.leaks.role`.

        That is the weight of a role for leaks where the counts do not show one, without which nothing beats no privacy.
        """
        return self.ranges.leaks.role * float(jnp.mean(self.pays))

    @property
    def regret(self) -> float:
        """Relative regret at the median draw."""
        return float(np.quantile(np.asarray(self.regrets), 0.5, method="inverted_cdf"))

    @property
    def high_regret(self) -> float:
        """Relative regret that a share `ranges.level` of the draws stay below."""
        return float(np.quantile(np.asarray(self.regrets), self.ranges.level, method="inverted_cdf"))

    @property
    def regret_at_ends(self) -> dict[str, tuple[float, float]]:
        """By parameter, the median regret of the fifth of the draws where it is lowest, and where it is highest."""
        regrets = np.asarray(self.regrets)
        count = max(1, regrets.size // END)
        orders = {name: np.argsort(draws, kind="stable") for name, draws in self.ranges.draws.items()}
        return {
            name: (float(np.median(regrets[order[:count]])), float(np.median(regrets[order[-count:]])))
            for name, order in orders.items()
        }

    def __str__(self) -> str:
        leaks, (low, high) = self.ranges.leaks, self.noise_interval
        best = best_in_words(leaks, self.optimum.scenario.mechanism)
        which = " at the most probable values:" if leaks.doubted else "; at the most probable values:"
        ratio = "{:.3g} to {:.3g}".format(*self.interval(self.outcome().ratio))
        return (
            f"{self.ranges.in_words}.\n{best} {float(self.optimum.noise):.4g} over {self.noises.size} draws\n"
            f"  best of each draw {low:.4g} to {high:.4g} ({self.ranges.level:.0%})\n"
            f"  error over that of no privacy {ratio}\n"
            f"  regret {self.regret:.3g} at the median, below {self.high_regret:.3g} with {self.ranges.level:.0%}\n"
            f"{pays_in_words(leaks, self.pays)}{which}{printed_budgets(self.optimum.scenario)}"
        )


def tune_fitted(
    scenario: Scenario,
    ranges: Ranges,
    objective: AbstractObjective | None = None,
    *,
    constraint: str | None = None,
) -> FittedOptimum:
    """The best constant noise for a fitted scenario, by all that its fit leaves possible, not by its estimate alone.

    The noise with the least mean log objective over the draws (`OverDraws`): the one that is on average nearest, by
    factors, to the best of whichever draw is the truth.

    Args:
        scenario: the fitted scenario, as `load_scenario` reads it.
        ranges: of its fit, as `load_ranges` reads them.
        objective: on the expected path; `CumulativeError()` by default.
        constraint: as in `tune`, at the estimate.

    Returns:
        `FittedOptimum`.

    Raises:
        ValueError: if the scenario is not that of the fit, and as `tune` does.

    Source: ours.
    """
    _check.as_kind(ranges, "ranges", Ranges).check(scenario)
    objective = CumulativeError() if objective is None else objective
    optimum = tune(scenario, OverDraws(objective, ranges.draws), constraint=constraint)
    scenario, goal = optimum.scenario, of_one_draw(optimum.objective)
    noises, regrets, pays = tuned_each(scenario, goal, typed_draws(ranges, scenario), optimum.noise)
    return FittedOptimum(optimum, ranges, noises, jnp.maximum(regrets, 0), pays)


def typed_draws(ranges: Ranges, scenario: Scenario) -> dict[str, Float[Array, " draws"]]:
    """The draws in the scenario's precision."""
    return {name: jnp.asarray(values, scenario.population.dtype) for name, values in ranges.draws.items()}


def outcome_of_draws(
    scenario: Scenario, ranges: Ranges, noise: Noise | None = None, objective: AbstractObjective | None = None
) -> Outcome:
    """What a noise brings in every draw of a fit.

    Args:
        scenario: the fitted scenario.
        ranges: of its fit.
        noise: one value, one per release, or a policy; the scenario's own if None.
        objective: on the expected path; `CumulativeError()` by default.

    Returns:
        `Outcome`.

    Raises:
        ValueError: if the scenario is not that of the fit, or an argument is out of range.
    """
    ranges.check(scenario)
    objective = CumulativeError() if objective is None else objective
    scenario = scenario.replace_noise(noise)
    OverDraws(objective, ranges.draws).check(scenario)
    return _outcome(scenario, objective, typed_draws(ranges, scenario))


@eqx.filter_jit
def _outcome(scenario, objective, draws):
    def one(draw):
        drawn = scenario.with_leaves(**draw)
        bare = drawn.with_noise(jnp.full_like(drawn.population, drawn.mechanism.no_privacy))
        mine, without = (objective.evaluate(each).log_value for each in (drawn, bare))
        return Outcome(jnp.exp(mine), jnp.exp(mine - without), recursion(drawn).population)

    return jax.vmap(one)(draws)
