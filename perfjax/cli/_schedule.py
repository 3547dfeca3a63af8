"""`perfjax schedule`: the best noise for every release, or a rule that reacts to how many users are left."""

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from perfjax.cli._fitted import fitted_schedule, leaks_first, schedule_verdict
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
    answer,
    check_outputs,
    chosen_scenario,
    console,
    fitted_ranges,
    library,
    plots,
    print_json,
    print_table,
    scope_warning,
)

__all__ = ["schedule"]

SHOWN = 11  # releases in the table


class StructureName(StrEnum):
    """What a schedule may look like."""

    free = "free"
    monotone = "monotone"
    piecewise = "piecewise"
    geometric = "geometric"


class PolicyName(StrEnum):
    """What a rule may look like."""

    table = "table"
    log_linear = "log-linear"


class SolverName(StrEnum):
    """What predicts the population."""

    mean_field = "mean-field"
    law = "law"


def schedule(
    scenario: ScenarioFile = None,
    preset: PresetName = None,
    leave: Leave = None,
    recruit: Recruit = None,
    leave_spared: LeaveSpared = None,
    recruit_leaked: RecruitLeaked = None,
    threshold: Threshold = None,
    structure: Annotated[StructureName, typer.Option(help="What the schedule may look like.")] = StructureName.free,
    levels: Annotated[int | None, typer.Option(help="Blocks of a piecewise schedule.")] = None,
    total_rho: Annotated[
        float | None, typer.Option(help="Local zCDP rho of all releases, of a user's own records; met exactly.")
    ] = None,
    release_rho: Annotated[
        float | None, typer.Option(help="Greatest local zCDP rho of a release, of a user's own record.")
    ] = None,
    solver: Annotated[
        SolverName, typer.Option(help="mean-field: seconds; law: with the risk of collapse, about a minute.")
    ] = SolverName.mean_field,
    policy: Annotated[
        PolicyName | None, typer.Option(help="Also find the best rule that reacts to the population, under the law.")
    ] = None,
    as_json: Json = False,
    plot: Annotated[Path | None, typer.Option(help="Also save a picture.")] = None,
    save: Annotated[
        Path | None, typer.Option(help="Also save the scenario with its schedule or policy (TOML).")
    ] = None,
    force: Force = False,
    dtype: Precision = Dtype.float64,
) -> None:
    """Find the best noise for every release, and how much it beats the best constant noise."""
    pj = library(dtype)
    rates = {"leave": leave, "recruit": recruit, "leave_spared": leave_spared, "recruit_leaked": recruit_leaked}
    chosen = chosen_scenario(pj, scenario, preset, **rates, threshold=threshold)
    ranges = fitted_ranges(scenario)
    if ranges is not None:
        ranges.check(chosen)  # an option may not contradict the draws
    check_outputs(save, plot, force=force, inputs=[scenario])
    _check_together(ranges, solver, policy, total_rho, release_rho)
    objective = pj.CumulativeError(first_release=0, solver=solver.value)
    options = {"levels": levels, "total_rho": total_rho, "release_rho": release_rho}
    if ranges is not None:
        objective = pj.OverDraws(objective, ranges.draws)
    best = pj.tune_schedule(chosen, objective, structure=structure.value, **options)
    equal = None
    if total_rho is None and math.isfinite(best.total_rho_constant):
        options["total_rho"] = best.total_rho_constant
        equal = pj.tune_schedule(chosen, objective, structure=structure.value, **options)
    rule = None
    if policy is not None:
        by_law = pj.CumulativeError(first_release=0, solver="law")
        rule = pj.tune_policy(chosen, by_law, structure=policy.value, schedule=best)
    report = _report(pj, best, equal, rule)
    if ranges is not None:
        report["fit"] = fitted_schedule(pj, best, ranges, best.noise)
    report["scope_warnings"] = _scope_warnings(report, total_rho, release_rho)
    found, what = (best, "schedule") if rule is None else (rule, "policy")

    def draw(path):
        figure = plots().plot_schedule(best) if rule is None else plots().plot_policy(rule)
        figure.savefig(path, dpi=150)

    def write(path):
        if ranges is None:
            pj.save_scenario(found.scenario, path)
        else:
            pj.calibration.save_fit(ranges, found.scenario, path)

    saved = f"Scenario with its {what}", save, write
    outputs = (saved, ("Picture", plot, draw))
    answer(pj, outputs, lambda: print_json(report) if as_json else _print_report(report), quiet=as_json)


def _check_together(ranges, solver, policy, total_rho, release_rho) -> None:
    """Raise for options that do not go together."""
    if ranges is not None and solver is SolverName.law:
        raise ValueError("Over the draws of a fit a schedule is tuned on the expected path: leave --solver law away.")
    if policy is not None and (total_rho is not None or release_rho is not None):
        raise ValueError("A policy spends what the population makes it spend: --policy takes no privacy budget.")


def _report(pj, best, equal, rule) -> dict[str, Any]:
    scenario = best.scenario
    report = {
        "scenario": pj.files.to_toml(scenario),
        "structure": best.structure,
        "solver": best.objective.solver,
        "counted": pj.objectives.counted_words(best.objective, scenario.rounds),
        "status": pj.Status(int(best.status)).meaning,
        "noise_name": scenario.mechanism.noise_name,
        "noise_label": scenario.mechanism.noise_label,
        "delta": pj.privacy.PRINTED_DELTA,
        "value": float(best.value),
        "value_constant": float(best.value_constant),
        "ratio": float(best.ratio),
        "gradient_norm": float(best.gradient_norm),
        "at_bound": np.asarray(best.at_bound).tolist(),
        "schedule": _path(pj, scenario),
        "constant": _path(pj, scenario.replace_noise(best.constant)),
    }
    if equal is not None:
        report["at_equal_budget"] = {"value": float(equal.value), "ratio": float(equal.ratio)} | _path(
            pj, equal.scenario
        )
    if rule is not None:
        names = ("value", "value_schedule", "value_constant")
        report["policy"] = {"rule": str(rule.policy)} | {name: float(getattr(rule, name)) for name in names}
        report["policy"]["gain"] = rule.gain
        report["policy"] |= {"scenario": pj.files.to_toml(rule.scenario)} | _budgets(pj, pj.mean_field(rule.scenario))
    return report


def _path(pj, scenario) -> dict[str, Any]:
    """Noise, population, error and budgets of every release, on the expected path."""
    path = pj.mean_field(scenario)
    fields = {name: np.asarray(getattr(path, name)).tolist() for name in ("noise", "population", "error")}
    return fields | _budgets(pj, path)


def _budgets(pj, path) -> dict[str, Any]:
    """The local and the central budget of every release and of all, and what they mean in words."""
    releases, found = path.privacy(), {}
    for scope in ("local", "central"):
        budget = getattr(releases, scope)
        if budget is not None:
            total = budget.composed()
            found[f"{scope}_rho"] = np.asarray(budget.rho).tolist()
            found[f"{scope}_all_releases_rho"] = float(np.sum(budget.rho))
            found[f"{scope}_all_releases_epsilon"] = float(total.epsilon(pj.privacy.PRINTED_DELTA))
    return found | {"budgets": pj.privacy.budget_lines(releases)}


def _scope_warnings(report, total_rho, release_rho) -> list[str]:
    """Whether the budgets asked for may have been meant as central ones."""
    central = report["schedule"].get("central_rho")
    if central is None:  # as of randomized response, of which only a local budget is known
        return []
    asked = (
        (total_rho, report["schedule"]["central_all_releases_rho"], "all releases"),
        (release_rho, max(central), "a release, at most,"),
    )
    found = [scope_warning("rho", local, least, what) for local, least, what in asked if local is not None]
    return [line for line in found if line is not None]


def _print_report(report: dict[str, Any]) -> None:
    last = len(report["at_bound"]) - 1
    title = f"Schedule ({report['structure']}, {report['solver']}): {report['status']}"
    table = Table(title=title, title_justify="left")
    constant, best = report["constant"], report["schedule"]
    for heading in (
        "release",
        report["noise_label"].replace(" ", "\n"),
        "local\nrho",
        "users",
        "error",
        "constant:\nusers",
        "\nerror",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for t in np.unique(np.linspace(0, last, SHOWN).round().astype(int)):
        own = (f"{best[name][t]:.4g}" for name in ("noise", "local_rho", "population", "error"))
        table.add_row(str(t), *own, f"{constant['population'][t]:.4g}", f"{constant['error'][t]:.4g}")
    screen = console()
    for line in leaks_first(report):
        screen.print(line)
    print_table(table)
    for line in _closing(report, last):
        screen.print(line)


def _closing(report: dict[str, Any], last: int) -> list[str]:
    constant = report["constant"]
    summed = (
        schedule_verdict(report)
        if "fit" in report
        else [
            f"Summed error of {report['counted']}: {report['value']:.6g}, {1 - report['ratio']:.2%} lower than"
            f" {report['value_constant']:.6g} at the best constant {report['noise_label']} {constant['noise'][0]:.6g}."
        ]
    )
    lines = [
        *summed,
        *_prices(report),
        f"Release {last} has no consequences: nothing is gained by keeping its users.",
    ]
    at_bound = sum(x != 0 for x in report["at_bound"])
    lines.append(
        f"{at_bound} of {last + 1} releases are at a search bound; gradient norm {report['gradient_norm']:.1e}."
    )
    if "policy" in report:
        rule = report["policy"]
        lines += [
            f"{rule['rule']}.",
            f"Under the law of the population: constant {rule['value_constant']:.6g}, schedule"
            f" {rule['value_schedule']:.6g}, policy {rule['value']:.6g}; to react gains {rule['gain']:.2%}, at:",
            *(f"  {line}" for line in rule["budgets"]),
        ]
        if "fit" in report:
            lines.append("The policy is the best for the most probable values, and so is what it gains.")
    return lines + report["scope_warnings"]


def _prices(report: dict[str, Any]) -> list[str]:
    """What the schedule and the constant noise cost in privacy, and the gain where both cost the same."""
    lines = ["That schedule costs:", *(f"  {line}" for line in report["schedule"]["budgets"])]
    lines += ["The best constant noise costs:", *(f"  {line}" for line in report["constant"]["budgets"])]
    if "at_equal_budget" in report:
        equal = report["at_equal_budget"]
        lines.append(
            f"At equal total budget (local rho {equal['local_all_releases_rho']:.6g}, that of the best constant noise)"
            f" the best schedule's error is {1 - equal['ratio']:.2%} lower, and it costs:"
        )
        lines += [f"  {line}" for line in equal["budgets"]]
    return lines
