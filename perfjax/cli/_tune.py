"""`perfjax tune`: the best constant noise, what it costs and gives, and whether the law of the population agrees."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from perfjax.cli._fitted import (
    at_estimate,
    currencies,
    fitted_report,
    fitted_verdict,
    interval,
    leaks_first,
    without_plain_facts,
)
from perfjax.cli._shared import (
    Dtype,
    Force,
    Json,
    Leave,
    LeaveSpared,
    Precision,
    PresetName,
    Recruit,
    RecruitLeaked,
    ScenarioFile,
    Threshold,
    accuracy,
    answer,
    check_picture,
    chosen_scenario,
    console,
    fitted_ranges,
    in_shell_words,
    library,
    plots,
    print_json,
    print_table,
    scope_warning,
)

__all__ = ["tune"]


class ObjectiveName(StrEnum):
    """What to minimise."""

    cumulative_error = "cumulative-error"
    final_error = "final-error"
    cumulative_bound = "cumulative-bound"


def tune(
    scenario: ScenarioFile = None,
    preset: PresetName = None,
    leave: Leave = None,
    recruit: Recruit = None,
    leave_spared: LeaveSpared = None,
    recruit_leaked: RecruitLeaked = None,
    threshold: Threshold = None,
    objective: Annotated[ObjectiveName, typer.Option(help="What to minimise.")] = ObjectiveName.cumulative_error,
    first_release: Annotated[
        int | None,
        typer.Option(help="First release whose error counts in cumulative-error: 0 if not given, 1 in Lemma 9."),
    ] = None,
    constraint: Annotated[str | None, typer.Option(help="growth or theorem-2: the population must not shrink.")] = None,
    at_epsilon: Annotated[
        float | None, typer.Option(help="Local epsilon per release you are bound to: of a user's own record.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="delta of --at-epsilon (a mean only), and of what is printed.")
    ] = None,
    at_rho: Annotated[float | None, typer.Option(help="The same as a local zCDP rho (a mean only).")] = None,
    as_json: Json = False,
    plot: Annotated[Path | None, typer.Option(help="Also save a picture.")] = None,
    force: Force = False,
    dtype: Precision = Dtype.float64,
) -> None:
    """Find the best constant noise, whether privacy pays, and by how much."""
    pj = library(dtype)
    rates = {"leave": leave, "recruit": recruit, "leave_spared": leave_spared, "recruit_leaked": recruit_leaked}
    chosen = chosen_scenario(pj, scenario, preset, **rates, threshold=threshold)
    ranges = fitted_ranges(scenario)
    if ranges is not None:
        ranges.check(chosen)  # an option may not contradict the draws
    check_picture(plot, force=force, inputs=[scenario])
    bound_to = _noise_of_budget(pj, chosen, at_epsilon, delta, at_rho)
    goal = _objective(pj, objective, first_release)
    delta = pj.privacy.PRINTED_DELTA if delta is None else delta
    if ranges is None:
        optimum = pj.tune(chosen, goal, constraint=constraint)
        report = _report(pj, optimum, bound_to, delta)
    else:
        found = pj.calibration.tune_fitted(chosen, ranges, goal, constraint=constraint)
        optimum = found.optimum
        report = _report(pj, at_estimate(pj, optimum), bound_to, delta, known=False) | {"constraint": constraint}
        report = fitted_report(pj, found, report, delta)
    if bound_to is not None:
        unit, local = ("rho", at_rho) if at_epsilon is None else ("epsilon", at_epsilon)
        report["scope_warning"] = _scope_warning(pj, chosen, unit, local, report)
        spent = pj.mean_field(chosen, noise=bound_to).privacy()
        report["your_protection"] = pj.privacy.protects_nobody(spent, delta=delta)
    picture = "Picture", plot, lambda path: plots().plot_optimum(optimum).savefig(path, dpi=150)
    answer(
        pj,
        [picture],
        lambda: print_json(without_plain_facts(report)) if as_json else _print_report(report),
        quiet=as_json,
    )


def _objective(pj, name, first_release):
    if first_release is None:
        return pj.objectives.BY_NAME[name.value]()
    if name is not ObjectiveName.cumulative_error:
        raise ValueError("--first-release goes with --objective cumulative-error.")
    return pj.CumulativeError(first_release=first_release)


def _noise_of_budget(pj, scenario, epsilon, delta, rho):
    """The noise that meets the budget asked for, or None."""
    if epsilon is None and rho is None:
        if delta is not None:
            raise ValueError("Give --delta together with --at-epsilon.")
        return None
    if isinstance(scenario.mechanism, pj.RandomizedResponse):
        if epsilon is None or delta is not None:
            raise ValueError("Randomized response has a pure local budget: give --at-epsilon alone.")
        return scenario.mechanism.check_noise(epsilon)
    if isinstance(scenario.mechanism, pj.ShiftedLogCount):
        raise ValueError(
            "The budget of a count depends on the private count: give --noise to `perfjax simulate` instead."
        )
    if not isinstance(scenario.mechanism, pj.GaussianMean):
        kind = type(scenario.mechanism).__name__
        raise ValueError(f"No noise of a {kind} is known for a budget: give --noise to `perfjax simulate` instead.")
    if scenario.mechanism.clip_radius is None:
        raise ValueError("Without `clip_radius` a mean has no privacy budget.")
    made = pj.GaussianMean.from_budget(
        clip_radius=scenario.mechanism.clip_radius,
        dim=scenario.mechanism.dim,
        rho=rho,
        epsilon=epsilon,
        delta=pj.privacy.PRINTED_DELTA if epsilon is not None and delta is None else delta,
    )
    return made.noise_scale


def _scope_warning(pj, scenario, unit, local, report) -> str | None:
    """Whether the budget asked for may have been meant as a central one."""
    central = report["your_budget"].get(f"central_per_release_{unit}")
    if central is None:  # as of randomized response, of which only a local budget is known
        return None
    mechanism, asked = scenario.mechanism, {unit: local} | ({"delta": report["delta"]} if unit == "epsilon" else {})
    meant = pj.GaussianMean.from_budget(
        clip_radius=mechanism.clip_radius, dim=mechanism.dim, scope="central", population=scenario.population, **asked
    )
    hint = f"noise_scale {float(meant.noise_scale):.3g} is enough with {float(scenario.population):g} users"
    at = f"release 0 (delta = {report['delta']:g})" if unit == "epsilon" else "release 0"
    return scope_warning(unit, local, central, at, hint)


def _report(pj, optimum, bound_to, delta, *, known: bool = True) -> dict[str, Any]:
    scenario = optimum.scenario
    report = {
        "scenario": pj.files.to_toml(scenario),
        "objective": type(optimum.objective).__name__,
        "status": pj.Status(int(optimum.status)).meaning,
        "noise_name": scenario.mechanism.noise_name,
        "noise_label": scenario.mechanism.noise_label,
        "delta": delta,
        "privacy_pays": bool(optimum.privacy_pays),
        "regime": str(optimum.regime),
        "local_minima": [x for x in np.asarray(optimum.minima).tolist() if x == x],
        "best": _column(pj, optimum, optimum.noise, delta),
        "no_privacy": _column(pj, optimum, scenario.mechanism.no_privacy, delta),
    }
    if bound_to is not None:
        report["your_budget"] = _column(pj, optimum, bound_to, delta)
    if report["best"]:
        best = pj.mean_field(scenario.replace_noise(optimum.noise))
        report["budgets"] = pj.privacy.budget_lines(best.privacy(), delta=delta)
    if known and pj.Status(int(optimum.status)) is not pj.Status.INFEASIBLE and optimum.value_without_privacy > 0:
        report["regret"] = _regrets(pj, optimum)
    return report | _confirmed_by_law(pj, optimum, report)


def _confirmed_by_law(pj, optimum, report) -> dict[str, Any]:
    """The columns of the report with what the law of the population says, or why it says nothing."""
    scenario = optimum.scenario
    first, last = pj.objectives.counted_releases(optimum.objective, scenario.rounds)
    counted = pj.objectives.counted_words(optimum.objective, scenario.rounds)
    findings: dict[str, Any] = {"counted": counted, "law_releases": [first, last]}
    try:
        pj.law.check_law(scenario)
    except ValueError as error:
        return findings | {"law_out_of_reach": in_shell_words(str(error))}
    for name in COLUMNS:
        if report.get(name):
            law = pj.population_law(scenario, noise=report[name]["noise"])
            findings[name] = report[name] | {
                "law_error": float(law.expected_error[first : last + 1].sum()),
                "law_relative_error": float(law.relative_error),
                "collapse_probability": float(law.collapse_probability[-1]),
            }
    return findings


def _column(pj, optimum, noise, delta) -> dict[str, Any]:
    """What one noise gives: error, population and budgets."""
    if noise != noise:
        return {}
    scenario = optimum.scenario.replace_noise(noise)
    value, path = optimum.objective(scenario), pj.mean_field(scenario)
    column = {
        "noise": float(scenario.mechanism.noise),
        "error": float(value),
        "last_population": float(path.population[-1]),
    }
    if optimum.value_without_privacy > 0:
        column["ratio_to_no_privacy"] = float(value / optimum.value_without_privacy)
    releases = path.privacy()
    for scope in ("local", "central"):
        budget = getattr(releases, scope)
        if budget is None:
            continue
        first = type(budget)(*(getattr(budget, field)[0] for field in budget.__dataclass_fields__))
        for which, one in (("per_release", first), ("all_releases", budget.composed())):
            column |= {f"{scope}_{which}_{unit}": value for unit, value in currencies(one, delta).items()}
        column[f"{scope}_all_releases_rho"] = float(budget.rho.sum())  # less than rho of the sum of pure budgets
    return column


def _regrets(pj, optimum) -> dict[str, dict[str, float]]:
    """Relative regret of the best noise if a leaf is 20 % below or above what was assumed."""
    leaves = optimum.scenario.leaves()
    regrets = {}
    for name in (*RATES, "threshold", "tolerance"):
        if name not in leaves or (name in BACKGROUND and not float(leaves[name])):
            continue
        limit = 1.0 if name in RATES else float("inf")
        truths = {sign: min(float(leaves[name]) * factor, limit) for sign, factor in (("-20 %", 0.8), ("+20 %", 1.2))}
        regrets[name] = {
            sign: float(pj.regret(optimum, optimum.scenario.replace(**{name: truth}))) for sign, truth in truths.items()
        }
    return regrets


BACKGROUND = ("leave_spared", "recruit_leaked")  # 0 in published models, and then not up for doubt
RATES = ("leave", "recruit", *BACKGROUND)
COLUMNS = {"best": "best", "your_budget": "your local\nbudget", "no_privacy": "no privacy"}
ROWS = (
    ("{noise_label}", "noise"),
    ("error", "error"),
    ("error / error without privacy", "ratio_to_no_privacy"),
    ("population at the last release", "last_population"),
    ("expected error by the population law", "law_error"),
    ("P(collapse by the last release)", "collapse_probability"),
    ("local budget of a release: rho", "local_per_release_rho"),
    ("    mu", "local_per_release_mu"),
    ("    epsilon at delta = {delta:g}", "local_per_release_epsilon"),
    ("local budget of all releases: rho", "local_all_releases_rho"),
    ("    mu", "local_all_releases_mu"),
    ("    epsilon at delta = {delta:g}", "local_all_releases_epsilon"),
    ("central budget of release 0: rho", "central_per_release_rho"),
    ("    mu", "central_per_release_mu"),
    ("    epsilon at delta = {delta:g}", "central_per_release_epsilon"),
    ("central budget of all releases: rho", "central_all_releases_rho"),
    ("    epsilon at delta = {delta:g}", "central_all_releases_epsilon"),
)


def _print_report(report: dict[str, Any]) -> None:
    screen = console()
    for line in leaks_first(report):
        screen.print(line)
    shown = [name for name in COLUMNS if report.get(name)]
    table = Table(title=f"{report['objective']}, {report['noise_label']}: {report['status']}", title_justify="left")
    table.add_column("")
    for name in shown:
        table.add_column(_heading(report, name), justify="right")
    for label, key in ROWS:
        if any(key in report[name] for name in shown):
            table.add_row(label.format(**report), *(_cell(report, name, key) for name in shown))
    print_table(table)
    screen.print(f"The error is that of {report['counted']}.")
    if "fit" in report:
        screen.print("Ranges are those over the draws of the fit; the law's numbers hold for the most probable values.")
    for line in fitted_verdict(report) if "fit" in report else _verdict(report):
        screen.print(line)


def _heading(report, name) -> str:
    """Of a column; where leaks may play no role, the best noise is not called so as a plain fact."""
    doubted = report.get("fit", {}).get("weighed") is not None
    return "best if\nleaks matter" if doubted and name == "best" else COLUMNS[name]


def _cell(report, name, key) -> str:
    over_draws = report.get("fit", {}).get(name, {})
    if key in over_draws:
        return interval(over_draws[key], digits=4)
    return f"{report[name][key]:.6g}" if key in report[name] else ""


def _verdict(report: dict[str, Any]) -> list[str]:
    if not report["best"]:
        return [f"No best noise: {report['status']}."]
    pays = "Privacy does not pay: no noise beats no privacy."
    if report["privacy_pays"]:
        ratio = report["best"]["ratio_to_no_privacy"]
        pays = f"Privacy pays: the best noise has {ratio:.3g} times the error of no privacy."
    elif "ratio_to_no_privacy" not in report["best"]:
        pays = "Without noise there is no error: only a constraint gives a reason for any."
    lines = [pays, *report["budgets"], _law_says(report), f"At release 0 the population is in {report['regime']}."]
    if len(report["local_minima"]) > 1:
        listed = ", ".join(f"{x:.4g}" for x in report["local_minima"])
        lines.append(f"Local minima: {listed}.")
    if "your_budget" in report:
        cost = report["your_budget"]["error"] / report["best"]["error"] - 1
        lines.append(f"Your local budget costs {cost:.1%} more error than the best noise.")
        lines += [line for line in (report["your_protection"], report["scope_warning"]) if line is not None]
    if "regret" in report:
        parts = [f"{name} {sign}: {value:.2%}" for name, row in report["regret"].items() for sign, value in row.items()]
        lines.append("Regret if the truth is off: " + "; ".join(parts) + ".")
    return lines


def _law_says(report: dict[str, Any]) -> str:
    """Whether the law of the population, which sees collapse, agrees with the objective."""
    if "law_out_of_reach" in report:
        return f"Not confirmed by the law of the population: {report['law_out_of_reach']}"
    best, without = report["best"], report["no_privacy"]
    agrees = (best["law_error"] < without["law_error"]) == report["privacy_pays"]
    last = report["law_releases"][1]
    return (
        f"The law of the population {'confirms' if agrees else 'contradicts'} this: expected error of"
        f" {report['counted']} {best['law_error']:.6g} at the best noise, {without['law_error']:.6g} without privacy"
        f" ({accuracy(best['law_relative_error'])}); probability of collapse by release {last}"
        f" {best['collapse_probability']:.2%} and {without['collapse_probability']:.2%}."
    )
