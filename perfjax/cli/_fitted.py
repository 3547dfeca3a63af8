"""What commands say where a fit left parameters open: ranges over its draws, in place of plain facts."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = [
    "at_estimate",
    "cost_of",
    "currencies",
    "fitted_report",
    "fitted_schedule",
    "fitted_verdict",
    "interval",
    "leaks_first",
    "schedule_verdict",
    "without_plain_facts",
]

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
    share, leaks = float(np.mean(np.asarray(found.pays))), found.ranges.leaks
    fit = {
        "ranges": _ranges(found.ranges),
        "best_noise": list(found.noise_interval),
        "probability_privacy_pays": pays,
        "draws_in_which_privacy_pays": share,
        "weighed": leaks.weighed(share) if leaks.doubted else None,
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
    leaks = {key: value for key, value in ranges.leaks.summary().items() if value == value}  # JSON has no NaN
    return found | {
        "leaks": leaks,
        "draws": len(next(iter(ranges.draws.values()))),
        "in_words": ranges.in_words,
    }


def leaks_first(report: dict[str, Any]) -> list[str]:
    """What is to be said before any number: that the counts do not show that leaks matter, or can't."""
    if "fit" not in report:
        return []
    leaks = report["fit"]["ranges"]["leaks"]
    return [] if leaks["verdict"] == "shown" else [leaks["words"]]


def _doubted(fit: dict[str, Any]) -> bool:
    return fit["ranges"]["leaks"]["verdict"] == "not shown"


def _the_fit(report) -> list[str]:
    """The fit's verdict, without what was said first."""
    said = [text for text in report["fit"]["ranges"]["verdict"] if text not in leaks_first(report)]
    return [f"The fit: {' '.join(said)}"] if said else []


def without_plain_facts(report: dict[str, Any]) -> dict[str, Any]:
    """The report for JSON: where leaks may play no role, the best noise stands under `if_leaks_matter` alone."""
    if "fit" not in report or not _doubted(report["fit"]) or not report["best"]:
        return report
    fit = report["fit"]
    moved = {name: fit[name] for name in ("best", "best_noise")}
    fit = fit | dict.fromkeys(moved) | {"if_leaks_matter": moved}
    return report | {"best": None, "if_leaks_matter": report["best"], "fit": fit}


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
    lines, doubted = _the_fit(report), _doubted(fit)
    if not report["best"]:
        return [*lines, f"No best noise: {report['status']}."]
    low, high = fit["best_noise"]
    best = f"the best {report['noise_label']} lies"
    if doubted:
        best = f"without a role for leaks no privacy is best; with one, {best}"
    lines.append(
        f"{ranges['in_words']}; {best} between {low:.4g} and {high:.4g} ({ranges['level']:.0%} of {ranges['draws']}"
        f" draws); {_pays(fit)}"
    )
    likely, most = (cost_of(fit[name]) for name in ("regret", "high_regret"))
    if doubted:
        lines.append(fit["weighed"])
    given = "With a role for leaks, " if doubted else ""
    lines.append(
        f"{given}{report['best']['noise']:.4g} has the least mean log error over the draws. If one of them is the"
        f" truth, it costs up to {likely} the error of that one's own best noise in half of the draws, up to {most} in"
        f" {ranges['level']:.0%}."
    )
    ends = (f"{name} {cost_of(a)} and {cost_of(b)}" for name, (a, b) in fit["regret_at_ends"].items())
    lines.append(f"Where a parameter is in the lowest and in the highest fifth of its draws: {', '.join(ends)}.")
    if "error_of_your_budget" in fit:
        lines.append(
            f"Your local budget has {interval(fit['error_of_your_budget'])} times the error of"
            f" {'that' if doubted else 'the best'} noise."
        )
        lines += [line for line in (report["your_protection"], report["scope_warning"]) if line is not None]
    if report["constraint"] is not None:
        lines.append("The constraint is met for the most probable values; in some of the draws it may not be.")
    return [*lines, *_at_most_probable_values(report), *report["budgets"]]


def _pays(fit: dict[str, Any]) -> str:
    """In how many of the draws privacy pays, and how much of the error a noise leaves."""
    pays = f"privacy pays in {fit['draws_in_which_privacy_pays']:.0%} of the draws"
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

    share, leaks = float(np.mean(np.asarray(mine.ratio) < 1)), ranges.leaks
    return {
        "ranges": _ranges(ranges),
        "only_if_leaks_matter": leaks.doubted,
        "ratio": ends(mine.error / constant.error),
        "ratio_to_no_privacy": ends(mine.ratio),
        "beats_no_privacy": share,
        "probability_beats_no_privacy": leaks.role * share,
        "beats_constant": float(np.mean(np.asarray(mine.error < constant.error))),
    }


def schedule_verdict(report: dict[str, Any]) -> list[str]:
    """What the schedule brings where parameters are known in part only."""
    fit, ranges = report["fit"], report["fit"]["ranges"]
    lines, weight = _the_fit(report), ranges["leaks"].get("weight", 1)
    if fit["only_if_leaks_matter"]:
        lines.append(
            "Without a role for leaks no privacy is the best schedule, and all of this one's error is for nothing. What"
            f" follows holds only if leaks matter, to which the counts give a probability of {weight:.3g} (Schwarz's"
            " criterion, from even odds); with the draws below, the schedule beats no privacy with probability"
            f" {weight:.3g} x {fit['beats_no_privacy']:.3g} = {fit['probability_beats_no_privacy']:.3g}."
        )
    return [
        *lines,
        f"{ranges['in_words']}; the schedule has the least mean log error over {ranges['draws']} draws of the fit.",
        f"Summed error of {report['counted']}: {interval(fit['ratio'])} times that of the best constant"
        f" {report['noise_label']} {report['constant']['noise'][0]:.6g} ({ranges['level']:.0%} of the draws; mean of"
        f" logs {report['ratio']:.3g}), less in {fit['beats_constant']:.0%};"
        f" {interval(fit['ratio_to_no_privacy'])} times that of no privacy, less in {fit['beats_no_privacy']:.0%}.",
        "Users and errors in the table, and budgets, are those of the most probable values.",
    ]


def cost_of(regret: float) -> str:
    """What a regret makes of an error, in words."""
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
