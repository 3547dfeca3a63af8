"""`perfjax fit`: leave, recruit and threshold from a column of counts, what the counts can't say, and what follows."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from perfjax._digits import telling_digits
from perfjax.cli._fitted import cost_of
from perfjax.cli._shared import (
    Dtype,
    Force,
    Json,
    Precision,
    PresetName,
    answer,
    check_outputs,
    check_seed,
    chosen_scenario,
    console,
    library,
    plots,
    print_json,
    print_table,
)

__all__ = ["fit"]

ROOM = 10  # a cap below the counts is raised to so many times the greatest


def fit(
    data: Annotated[Path, typer.Argument(help="Counts per round (CSV with a header).")],
    column: Annotated[str, typer.Option(help="Column of the users counted.")],
    scenario: Annotated[
        Path | None, typer.Option(help="Scenario file with what is known: mechanism, noise, cap.")
    ] = None,
    preset: PresetName = None,
    time: Annotated[str | None, typer.Option(help="Column of times; rounds left out are missing.")] = None,
    noise_column: Annotated[str | None, typer.Option(help="Column of the noise used.")] = None,
    leavers: Annotated[str | None, typer.Option(help="Column of leavers until the next round.")] = None,
    joiners: Annotated[str | None, typer.Option(help="Column of recruits until the next round.")] = None,
    inflow: Annotated[str | None, typer.Option(help="Column of others who joined until the next round.")] = None,
    prior: Annotated[
        list[str] | None, typer.Option(help="leave=beta(2,16), threshold=lognormal(0.02,1), or survey (for leave).")
    ] = None,
    free: Annotated[
        str | None,
        typer.Option(help="Parameters to fit, separated by commas; also leave_spared and recruit_leaked."),
    ] = None,
    replicates: Annotated[int, typer.Option(help="Draws for the interval of the best noise; 0: none.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of these draws.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the fitted scenario here (TOML).")] = None,
    as_json: Json = False,
    plot: Annotated[Path | None, typer.Option(help="Also save a picture.")] = None,
    force: Force = False,
    dtype: Precision = Dtype.float64,
) -> None:
    """Fit leave, recruit and threshold to observed counts, and say what the counts can't tell."""
    pj = library(dtype)
    from perfjax import calibration
    from perfjax.calibration._columns import by_column

    check_outputs(out, plot, force=force, option="--out", inputs=(data, scenario))
    if replicates != 0 and replicates < 2:
        raise ValueError("--replicates must be 0, or at least 2.")
    check_seed(seed)
    columns = {"noise": noise_column, "leavers": leavers, "joiners": joiners, "inflow": inflow}
    series = calibration.load_series(data, column=column, time=time, **columns)
    notes = []
    if scenario is None and preset is None:
        preset = "breach-survey"
        notes = [
            "Neither --scenario nor --preset was given: the mechanism and leaks of preset breach-survey are assumed."
        ]
    start = _start(pj, chosen_scenario(pj, scenario, preset), series, notes)
    names, priors = _free(free), _priors(calibration, prior)
    with console(stderr=True).status("Fitting") as step:
        with by_column(data, {"population": column, **columns}):
            fitted = calibration.fit(series, start, free=names, prior=priors)
        step.update("Profiling the likelihood")
        found = calibration.identifiability(fitted)
        fitted = found.fitted  # the higher one, where there are two maxima
        step.update(f"Drawing {replicates} sets of parameters")
        meaning = _meaning(calibration, fitted, replicates, seed)
        ranges = None if out is None else _ranges(calibration, found, meaning, seed)
    report = _report(pj, fitted, found, meaning, notes)
    about = _about(data, column, found)

    def save(path: Path) -> None:
        assert ranges is not None
        calibration.save_fit(ranges, fitted.scenario, path, about=about)

    outputs = (
        ("Scenario", out, save),
        ("Picture", plot, lambda path: plots().plot_fit(found).savefig(path, dpi=150)),
    )
    answer(pj, outputs, lambda: print_json(report) if as_json else _print(report, fitted), quiet=as_json)
    if ranges is not None and not as_json:
        unknown = _unknown(report)
        if unknown:
            print(f"{out} holds the most probable values, also of what is not identified: {', '.join(unknown)}.")
        count = len(next(iter(ranges.draws.values())))
        print(f"Its table [fit] holds ranges, what they rest on, and {count} draws, which tune and schedule go by.")
        print(f"Next: perfjax tune {out}")


def _more(report: dict[str, Any]) -> str:
    """What was not given yet."""
    prior = [] if report.get("prior") else ["a prior (such as --prior survey)"]
    flows = [] if report.get("flows") else ["columns of leavers and joiners"]
    noise = "noise that varies" if report.get("constant_noise") else "more rounds"
    *others, last = [*prior, *flows, noise]
    return f"{', '.join(others)}, or {last}" if len(others) > 1 else " or ".join([*others, last])


def _unknown(report):
    return [name for name, sure in report["identified"].items() if not sure]


def _free(names):
    return None if names is None else tuple(name.strip() for name in names.split(","))


def _priors(calibration, texts):
    found = {}
    for text in texts or []:
        name, one = ("leave", calibration.survey_prior()) if text == "survey" else calibration.parse_prior(text)
        if name in found:
            raise ValueError(f"Give --prior once for {name}.")
        found[name] = one
    return found


def _start(pj, scenario, series, notes):
    """The scenario to start from, with room for the counts; told in a note."""
    import numpy as np

    greatest, cap = float(np.nanmax(np.asarray(series.population))), float(scenario.participation.cap)
    if greatest < cap:
        return scenario
    notes.append(f"The cap was raised from {cap:g} to {ROOM * greatest:g}, above the counts.")
    return scenario.replace(cap=ROOM * greatest)


def _meaning(calibration, fitted, replicates, seed):
    if not replicates:
        return None
    import jax

    from perfjax.objectives import BY_NAME

    objective = BY_NAME["cumulative-error"]()  # what `perfjax tune` minimises
    return calibration.best_noise(fitted, key=jax.random.key(seed), objective=objective, replicates=replicates)


def _ranges(calibration, found, meaning, seed):
    """What the file says beside the scenario; its draws are those printed, or new ones where none were asked for."""
    import jax

    return calibration.parameter_ranges(found, **({"best": meaning} if meaning else {"key": jax.random.key(seed)}))


def _about(data, column, found):
    return f"Fitted to column {column} of {data.name}. {found.verdict}"


def _report(pj, fitted, found, meaning, notes) -> dict[str, Any]:
    sure = {name: found.identified.get(name, all(one.closed)) for name, one in found.profiles.items()}
    report = {
        "rows": fitted.series.rounds + 1,
        "converged": bool(fitted.converged),
        "leaks": found.leaks.summary(),
        "verdict": found.verdict,
        "notes": notes,
        "identified": found.identified,
        "rests_on": found.rests_on,
        "constant_noise": found.constant_noise,
        "flows": fitted.problem.plan.flows,
        "prior": not all(one.is_flat for one in fitted.problem.prior),
        "rank": found.rank,
        "dispersion": float(fitted.dispersion),
        "raw_dispersion": float(fitted.raw_dispersion),
        "dispersion_p_value": float(fitted.dispersion_p_value),
        "underdispersion_p_value": float(fitted.underdispersion_p_value),
        "log_likelihood": float(fitted.log_likelihood),
        "quantities": {
            name: {
                "estimate": one.estimate if sure[name] else None,
                "low": one.low,
                "high": one.high,
                "closed": list(one.closed),
            }
            for name, one in found.profiles.items()
        },
    }
    if meaning is not None:
        doubted = found.leaks.verdict == "not shown"
        low, high = (float(x) for x in meaning.interval)
        if doubted:
            bare = float(fitted.problem.scenario.mechanism.no_privacy)
            low, high = min(low, bare), max(high, bare)
        report["best_noise"] = {
            "name": fitted.problem.scenario.mechanism.noise_name,
            "label": fitted.problem.scenario.mechanism.noise_label,
            "estimate": float(meaning.optimum.noise) if all(found.identified.values()) and not doubted else None,
            "if_leaks_matter": float(meaning.optimum.noise),
            "status": pj.Status(int(meaning.optimum.status)).meaning,
            "counted": pj.objectives.counted_words(meaning.optimum.objective, meaning.optimum.scenario.rounds),
            "low": low,
            "high": high,
            "first_order": None if meaning.delta_reason else [float(x) for x in meaning.delta_interval],
            "by": meaning.by,
            "regret": meaning.regret,
            "high_regret": meaning.high_regret,
            "probability_privacy_pays": meaning.probability_privacy_pays,
            "weighed": meaning.leaks.weighed(float(meaning.pays.mean())) if doubted else None,
            "budgets": pj.privacy.budget_lines(pj.mean_field(meaning.optimum.scenario).privacy()),
        }
    return report


def _print(report: dict[str, Any], fitted) -> None:
    screen = console()
    screen.print(report["leaks"]["words"])
    table = Table(title=f"Fit of {fitted.series}", title_justify="left")
    for heading in ("", "estimate", "95 % low", "95 % high", "known from the counts"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    for name, one in report["quantities"].items():
        table.add_row(name, *_numbers(one), _known(report, name))
    best = report.get("best_noise")
    if best is not None:
        table.add_row(f"best {best['label']}", *_numbers(best), "")
    print_table(table)
    verdict = report["verdict"].removeprefix(report["leaks"]["words"]).strip()
    for text in (verdict, *report["notes"], *_closing(report, best)):
        screen.print(text)


def _known(report: dict[str, Any], name: str) -> str:
    if report["quantities"][name]["estimate"] is not None:
        return "yes"
    return "no, from their spread alone" if report["rests_on"].get(name) == "spread" else "no, a range only"


def _numbers(one: dict[str, Any]) -> list[str]:
    """Estimate and interval, in as many digits as tell its ends apart."""
    low, high = one["low"], one["high"]
    digits = telling_digits(low, high)
    shown = ("-" if x is None else f"{x:.{digits}g}" for x in (one["estimate"], low))
    return [*shown, "unbounded" if high == math.inf else f"{high:.{digits}g}"]


def _closing(report: dict[str, Any], best: dict[str, Any] | None) -> Iterator[str]:
    if not report["converged"]:
        yield "The search did not converge: more probable values may exist, and the intervals may be wrong."
    if best is not None:
        from perfjax.tuning import Status

        doubted = report["leaks"]["verdict"] == "not shown"
        if best["status"] != Status.INTERIOR.meaning:
            yield f"{'If leaks matter, best' if doubted else 'Best'} {best['label']}: {best['status']}."
        yield f"The best {best['label']} has the least error of {best['counted']}, from the last count on."
        yield from _doubted(report, best) if doubted else _regretted(best)
    if _unknown(report):
        yield f"To learn more: {_more(report)}."


def _regretted(best) -> Iterator[str]:
    likely, most = (cost_of(best[name]) for name in ("regret", "high_regret"))
    yield (
        f"Tuning with the estimate costs up to {likely} the error of tuning with the truth in half of the draws,"
        f" up to {most} in 95 %; privacy pays with probability {best['probability_privacy_pays']:.2f}, at:"
    )
    yield from (f"  {line}" for line in best["budgets"])


def _doubted(report, best) -> Iterator[str]:
    yield (
        f"The best {best['label']} is left open: without a role for leaks no privacy is best, with one"
        f" {best['if_leaks_matter']:.3g}. {best['weighed']}"
    )
