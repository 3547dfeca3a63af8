"""What a fit means for the best noise: its interval, the regret of trusting it, and whether privacy pays at all."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from perfjax import _check
from perfjax.calibration._design import best_noise_gradient
from perfjax.calibration._fit import Fit, by_means, deviations, fit_as_planned
from perfjax.calibration._identifiability import mean_rows, narrowed
from perfjax.calibration._leak_test import LeakTest, leak_test
from perfjax.calibration._parameters import natural
from perfjax.calibration._posterior import posterior_draws
from perfjax.calibration._priors import as_priors
from perfjax.calibration._profile import as_one_fit, cutoff
from perfjax.calibration._series import Series
from perfjax.calibration._transitions import plan_of
from perfjax.mechanisms import AbstractMechanism
from perfjax.montecarlo import simulate_counts
from perfjax.montecarlo._inputs import as_key
from perfjax.objectives import AbstractObjective, CumulativeError
from perfjax.tuning import Optimum, Status, tune
from perfjax.tuning._budgets import printed_budgets

__all__ = ["BestNoise", "best_in_words", "best_noise", "parameter_draws", "pays_in_words", "tuned_each"]


class BestNoise(eqx.Module):
    """The best noise by a fit, and how sure it is.

    Attributes:
        optimum: the tuned estimate.
        delta_interval: to first order, by `sensitivities`; NaN where these are undefined, all noise where the fit
            leaves the best noise open.
        delta_reason: why `sensitivities` are undefined, or None.
        draws: the best noise of each draw of the parameters; no privacy as the mechanism writes it.
        parameters: the draws of the parameters, by name.
        regrets: relative regret of the estimate's noise if the draw is the truth, at least 0.
        pays: whether privacy pays in each draw.
        by: how the parameters were drawn, "bootstrap" or "posterior".
        level: of the intervals, in (0, 1).
        leaks: whether the counts show that leaks matter at all. All the rest takes for granted that they do, except for
            `probability_privacy_pays`.
    """

    optimum: Optimum
    delta_interval: Float[np.ndarray, " 2"]
    delta_reason: str | None = eqx.field(static=True)
    draws: Float[Array, " draws"]
    parameters: dict[str, Float[Array, " draws"]]
    regrets: Float[Array, " draws"]
    pays: Bool[Array, " draws"]
    by: str = eqx.field(static=True)
    level: float = eqx.field(static=True)
    leaks: LeakTest

    @property
    def interval(self) -> Float[np.ndarray, " 2"]:
        """From the lower to the upper quantile of the draws, wider where needed to hold the best noise of the estimate.

        That can lie outside the quantiles: the draws of an estimate at an end of its range are all on one side.
        """
        outside, estimate = (1 - self.level) / 2, float(self.optimum.noise)
        low, high = np.quantile(np.asarray(self.draws), [outside, 1 - outside], method="inverted_cdf")
        return np.array([min(low, estimate), max(high, estimate)])

    @property
    def regret(self) -> float:
        """Relative regret at the median draw: a few draws have so much that a mean would be theirs."""
        return float(jnp.median(self.regrets))

    @property
    def high_regret(self) -> float:
        """Relative regret that a share `level` of the draws stay below."""
        return float(np.quantile(np.asarray(self.regrets), self.level, method="inverted_cdf"))

    @property
    def probability_privacy_pays(self) -> float:
        """Share of the draws in which a finite budget beats no privacy, times `leaks.role`.

        That is the weight of a role for leaks where the counts do not show one, without which nothing beats no privacy.
        """
        return self.leaks.role * float(jnp.mean(self.pays))

    def __str__(self) -> str:
        mechanism, ends = self.optimum.scenario.mechanism, self.interval
        status = Status(int(self.optimum.status))
        told = "" if status is Status.INTERIOR else f" ({status.meaning})"
        to_first_order = (
            f"undefined ({self.delta_reason})"
            if self.delta_reason
            else f"{self.delta_interval[0]:.4g} to {self.delta_interval[1]:.4g}"
        )
        return (
            f"{best_in_words(self.leaks, mechanism)} {float(self.optimum.noise):.4g}{told}\n"
            f"  {self.level:.0%} by {self.by:<9}  {ends[0]:.4g} to {ends[1]:.4g}\n"
            f"  {self.level:.0%} to 1st order {to_first_order}\n"
            f"  regret            {self.regret:.3g} at the median, below {self.high_regret:.3g} with {self.level:.0%}\n"
            f"{pays_in_words(self.leaks, self.pays)}{printed_budgets(self.optimum.scenario)}"
        )


def best_in_words(leaks: LeakTest, mechanism: AbstractMechanism) -> str:
    """What to call a best noise: not a plain fact where leaks may play no role."""
    if leaks.doubted:
        return (
            f"{leaks.words}\nWithout a role for leaks no privacy is best ({mechanism.noise_label}"
            f" {float(mechanism.no_privacy):g}). With one, {mechanism.noise_label}"
        )
    return f"{leaks.words + chr(10) if leaks.reason else ''}Best {mechanism.noise_label}"


def pays_in_words(leaks: LeakTest, pays: Bool[Array, " draws"]) -> str:
    """The probability that privacy pays, and where leaks may play no role, how that was weighted."""
    share = float(jnp.mean(pays))
    if leaks.doubted:
        return f"  {leaks.weighed(share)}\n  With a role for leaks:"
    return f"  P(privacy pays)   {share:.3g}"


def best_noise(
    fitted: Fit,
    *,
    key: Array,
    objective: AbstractObjective | None = None,
    replicates: int = 100,
    level: float = 0.95,
) -> BestNoise:
    """The best noise from the last count on, with an interval, the regret of trusting it, and P(privacy pays).

    All of it takes for granted that leaks make people leave, except for P(privacy pays), in which this explanation has
    its weight where the counts do not show it (`leak_test`); otherwise no privacy is best, and the result says both.

    To first order the log of the best noise x* varies by g^T I^-1 g, with g its gradient by `sensitivities` and I the
    information of the fit. The regret of a draw theta is E(x*, theta) / min_x E(x, theta) - 1, E the objective.

    Draws of the parameters: series simulated by the count simulator from the estimate, with the same noise and missing
    rounds, each fitted anew (parametric bootstrap), their deviations widened by the root of the dispersion. With a
    prior, known leavers or an inflow, which the simulator does not give: from the posterior, with a flat prior where
    none was given, and so for a series that collapses before it has two counts. Where the mean counts do not tell all
    parameters, draws are from the posterior by these alone, and so is the information: how much counts vary says little
    that is safe.

    Args:
        fitted: the fit of one series.
        key: a typed key.
        objective: what the noise is best for, `CumulativeError()` by default.
        replicates: draws, at least 2.
        level: of the intervals, in (0, 1).

    Returns:
        `BestNoise`. The interval of the draws reaches to no privacy where that is best in some of them; to first order
        it is NaN where `sensitivities` are undefined.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours.

    Example:
        >>> import jax, perfjax as pj
        >>> counts, prior = [400, 410, 421, 429, 440], {"leave": pj.calibration.survey_prior()}
        >>> fitted = pj.calibration.fit(counts, pj.preset("randomized-response"), free="leave", prior=prior)
        >>> best_noise(fitted, key=jax.random.key(0), replicates=20).by
        'posterior'
    """
    as_one_fit(fitted)
    key, replicates = as_key(key), _check.as_count(replicates, "replicates", low=2)
    level = _check.as_level(level)
    objective = CumulativeError() if objective is None else objective
    fitted = _believed(fitted)
    optimum = tune(fitted.scenario, objective)
    gradient, sensitivity = best_noise_gradient(optimum, fitted.free)
    places, by = parameter_draws(fitted, key, replicates)
    leaves = {name: natural(name, places[:, i]) for i, name in enumerate(fitted.free)}
    draws, regrets, pays = tuned_each(fitted.scenario, objective, leaves, optimum.noise)
    return BestNoise(
        optimum=optimum,
        delta_interval=_first_order(fitted, optimum, gradient, sensitivity.reason, level),
        delta_reason=sensitivity.reason,
        draws=draws,
        parameters=leaves,
        regrets=jnp.maximum(regrets, 0),
        pays=pays,
        by=by,
        level=level,
        leaks=leak_test(fitted),
    )


def _first_order(fitted, optimum, gradient, reason, level):
    if reason is not None:
        return np.full(2, np.nan)
    covariance = np.linalg.pinv(np.asarray(fitted.information, float), hermitian=True)
    # The observed information need not be positive where the estimate is at the end of its range.
    std = float(np.sqrt(np.maximum(np.asarray(gradient) @ covariance @ np.asarray(gradient), 0)))
    if not np.all(np.isfinite(deviations(fitted))):
        std = np.inf
    half = np.sqrt(cutoff(fitted, level)) * std
    return float(optimum.noise) * np.exp(np.array([-half, half]))


def parameter_draws(fitted: Fit, key: Array, count: int) -> tuple[Float[Array, "count free"], str]:
    """Places that the counts and the prior leave possible, and how they were drawn, "bootstrap" or "posterior".

    Where the means do not tell all parameters, not from the spread of the counts either, which anything else could
    have moved: by the likelihood of the means alone.
    """
    key, count = as_key(key), _check.as_count(count, "draws", low=2)
    fitted, known = _believed(fitted), _known(fitted)
    plain = all(one.is_flat for one in fitted.problem.prior) and not fitted.problem.plan.flows
    if known and plain and not np.any(np.asarray(fitted.series.inflow) > 0):
        return _bootstrap(fitted, key, count), "bootstrap"
    return posterior_draws(fitted, key, count), "posterior"


def _known(fitted):
    """Whether the means alone tell all parameters."""
    return bool(np.all(narrowed(mean_rows(fitted)).parameters))


def _believed(fitted):
    """The fit, or the fit by means where these do not tell all parameters: how much counts vary is no safe ground."""
    return fitted if _known(fitted) else by_means(fitted)


def _bootstrap(fitted, key, replicates):
    """Places fitted to series simulated from the estimate; from the posterior where too few are left to fit."""
    n, noise = np.asarray(fitted.series.population), np.array(fitted.series.noise)
    first = int(np.flatnonzero(~np.isnan(n))[0])
    noise = np.where(np.isnan(noise), 1.0, noise)[first:]
    truth = fitted.problem.scenario.with_leaves(**fitted.estimate)
    truth = truth.replace(population=float(n[first]), rounds=noise.size - 1)
    runs = simulate_counts(truth, key=key, trials=replicates, noise=noise)
    counts = np.array(runs.population, float)
    counts[:, np.isnan(n[first:])] = np.nan
    counts = np.where(counts < 1, np.nan, counts)
    alive = np.sum(~np.isnan(counts), axis=1) >= 2
    series = Series(np.where(alive[:, None], counts, n[first:]), noise=noise)
    truth = truth.with_noise(jnp.asarray(noise[0], truth.population.dtype))
    # They stand about the estimate, from where they are climbed: no need to look for ridges.
    plan = plan_of(series, truth)._replace(ridges=False)
    again = fit_as_planned(series, truth, fitted.free, as_priors(None, fitted.free), plan)
    widened = fitted.places + jnp.sqrt(fitted.dispersion) * (again.places - fitted.places)
    widened = jnp.clip(widened, fitted.problem.low, fitted.problem.high)
    if np.all(alive):
        return widened
    return jnp.where(alive[:, None], widened, posterior_draws(fitted, jax.random.fold_in(key, replicates), replicates))


@eqx.filter_jit
def tuned_each(scenario, objective, leaves, noise):
    """The best noise of every draw, and the regret of `noise` there."""

    def one(leaves):
        drawn = scenario.with_leaves(**leaves)
        best = tune(drawn, objective)
        mine = objective.evaluate(drawn.with_noise(noise), None).log_value
        return best.noise, jnp.expm1(mine - best.log_value), best.privacy_pays

    return jax.vmap(one)(leaves)
