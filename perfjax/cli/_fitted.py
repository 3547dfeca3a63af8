"""What commands say where a fit left parameters open: ranges over its draws, in place of plain facts."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["at_estimate", "currencies", "fitted_report", "fitted_schedule", "fitted_verdict", "interval"]

COLUMNS = ("best", "your_budget", "no_privacy")
MANY = 1000  # times an error: beyond, how many does not matter


def at_estimate(pj, optimum):
    """The optimum over draws with the objective and the values of the most probable parameters."""
    objective = pj.objectives.of_one_draw(optimum.objective)
    scenario = optimum.scenario
    log_values = [pj.objectives.log_value(objective, each, None) for each in (scenario, scenario.without_privacy())]
    return dataclasses.replace(
        optimum, objective=objective, log_value=log_values[0], log_value_without_privacy=log_values[1]
    )


def currencies(budget, delta: float) -> dict[str, float]:
    """A budget in every unit."""
    units = {"rho": float(budget.rho), "epsilon": float(budget.epsilon(delta))}
    return units | ({"mu": float(budget.mu)} if hasattr(budget, "mu") else {})


def fitted_report(pj, found, report: dict[str, Any], delta: float) -> dict[str, Any]:
    """The report at the most probable values with what the draws make of it."""
    if not report["best"]:
        return report | {"fit": {"ranges": _ranges(found.ranges)}}
    pays = found.probability_privacy_pays
    fit = {
        "ranges": _ranges(found.ranges),
        "best_noise": list(found.noise_interval),
        "probability_privacy_pays": pays,
        "regret": found.regret,
        "high_regret": found.high_regret,
        "regret_at_ends": {name: list(ends) for name, ends in found.regret_at_ends.items()},
    }
    fit |= {name: _column(found, report[name]["noise"], delta) for name in COLUMNS if report.get(name)}
    if "your_budget" in fit:
        mine, yours = (found.outcome(report[name]["noise"]).error for name in ("best", "your_budget"))
        fit["error_of_your_budget"] = list(found.interval(yours / mine))
    return report | {"privacy_pays": bool(pays) if pays in (0, 1) else None, "fit": fit}


def _ranges(ranges) -> dict[str, Any]:
    names = ("level", "drawn_by", "verdict", "p_values", "identified", "rests_on", "estimate", "low", "high")
    found = {name: getattr(ranges, name) for name in names}
    return found | {"draws": len(next(iter(ranges.draws.values()))), "in_words": ranges.in_words}


def _column(found, noise, delta) -> dict[str, list[float]]:
    """Intervals over the draws of what one noise gives."""
    import jax.numpy as jnp  # not before a command runs

    outcome = found.outcome(noise)
    column = {"error": found.interval(outcome.error), "last_population": found.interval(outcome.population[:, -1])}
    if np.all(np.isfinite(outcome.ratio)):
        column["ratio_to_no_privacy"] = found.interval(outcome.ratio)
    mechanism = found.optimum.scenario.mechanism
    central = mechanism.privacy(outcome.population, noise + 0 * outcome.population).central
    if central is not None:
        total = central.composed()
        (field,) = (one.name for one in dataclasses.fields(total))
        ends = found.interval(getattr(total, field))
        each = [currencies(type(total)(jnp.asarray(end, outcome.error.dtype)), delta) for end in ends]
        column |= {f"central_all_releases_{unit}": [one[unit] for one in each] for unit in each[0]}
    return {name: [float(x) for x in ends] for name, ends in column.items()}


def fitted_verdict(report: dict[str, Any]) -> list[str]:
    """What can be said where parameters are known in part only."""
    fit = report["fit"]
    ranges = fit["ranges"]
    lines = [f"The fit: {' '.join(ranges['verdict'])}"]
    if not report["best"]:
        return [*lines, f"No best noise: {report['status']}."]
    low, high = fit["best_noise"]
    lines.append(
        f"{ranges['in_words']}; the best {report['noise_label']} lies between {low:.4g} and {high:.4g}"
        f" ({ranges['level']:.0%} of {ranges['draws']} draws); {_pays(fit)}"
    )
    likely, most = (_cost(fit[name]) for name in ("regret", "high_regret"))
    lines.append(
        f"{report['best']['noise']:.4g} has the least mean log error over the draws. If one of them is the truth, it"
        f" costs up to {likely} the error of that one's own best noise in half of the draws, up to {most} in"
        f" {ranges['level']:.0%}."
    )
    ends = (f"{name} {_cost(a)} and {_cost(b)}" for name, (a, b) in fit["regret_at_ends"].items())
    lines.append(f"Where a parameter is in the lowest and in the highest fifth of its draws: {', '.join(ends)}.")
    if "error_of_your_budget" in fit:
        lines.append(
            f"Your local budget has {interval(fit['error_of_your_budget'])} times the error of the best noise."
        )
        lines += [line for line in (report["your_protection"], report["scope_warning"]) if line is not None]
    if report["constraint"] is not None:
        lines.append("The constraint is met for the most probable values; in some of the draws it may not be.")
    return [*lines, *_at_most_probable_values(report), *report["budgets"]]


def _pays(fit: dict[str, Any]) -> str:
    """In how many of the draws privacy pays, and how much of the error a noise leaves."""
    pays = f"privacy pays in {fit['probability_privacy_pays']:.0%} of the draws"
    if "ratio_to_no_privacy" not in fit["best"]:
        return f"{pays}."
    return f"{pays}: this noise has {interval(fit['best']['ratio_to_no_privacy'])} times the error of no privacy."


def interval(ends: Sequence[float], digits: int = 3) -> str:
    """An interval in words; one number where its ends look alike."""
    low, high = (f"{x:.{digits}g}" for x in ends)
    return low if low == high else f"{low} to {high}"


def fitted_schedule(pj, best, ranges, noise) -> dict[str, Any]:
    """What a schedule brings in every draw, beside the best constant noise and no privacy."""
    scenario, goal = best.scenario, pj.objectives.of_one_draw(best.objective)
    mine, constant = (pj.calibration.outcome_of_draws(scenario, ranges, x, goal) for x in (noise, best.constant))
    outside = (1 - ranges.level) / 2

    def ends(values):
        return [float(x) for x in np.quantile(values, [outside, 1 - outside], method="inverted_cdf")]

    return {
        "ranges": _ranges(ranges),
        "ratio": ends(mine.error / constant.error),
        "ratio_to_no_privacy": ends(mine.ratio),
        "beats_no_privacy": float(np.mean(np.asarray(mine.ratio) < 1)),
        "beats_constant": float(np.mean(np.asarray(mine.error < constant.error))),
    }


def _cost(regret: float) -> str:
    return f"{1 + regret:.4g} times" if regret < MANY else f"more than {MANY} times"


def _at_most_probable_values(report) -> list[str]:
    """What is computed for one set of parameters only."""
    if "law_out_of_reach" in report:
        law = f"the law of the population is out of reach: {report['law_out_of_reach']}"
    else:
        best, without = report["best"], report["no_privacy"]
        law = (
            f"the law of the population expects an error of {best['law_error']:.4g} at this noise and"
            f" {without['law_error']:.4g} without privacy, and a collapse with probability"
            f" {best['collapse_probability']:.2%} and {without['collapse_probability']:.2%}"
        )
    return [f"At the most probable values alone, the population is in {report['regime']} at release 0, and {law}."]
