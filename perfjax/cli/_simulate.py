"""`perfjax simulate`: what becomes of the population, user by user, by counting, or as a law without sampling."""

import math
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import Progress
from rich.table import Table

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
    check_outputs,
    check_seed,
    chosen_scenario,
    console,
    fitted_note,
    fitted_ranges,
    library,
    plots,
    print_json,
    print_table,
    save_netcdf,
)

__all__ = ["simulate"]

TRIALS = 1000  # when not told
SHOWN = 7  # releases in the table
COLUMNS = ("mean", "low", "high", "collapse_probability", "expected_error")


class SolverName(StrEnum):
    """How to find out."""

    users = "users"
    counts = "counts"
    law = "law"


# Trials at a time: enough to be worth a call, few enough for a progress bar that moves and a Ctrl-C that is heard.
CHUNK = {SolverName.users: 4, SolverName.counts: 1000}


def simulate(
    scenario: ScenarioFile = None,
    preset: PresetName = None,
    leave: Leave = None,
    recruit: Recruit = None,
    leave_spared: LeaveSpared = None,
    recruit_leaked: RecruitLeaked = None,
    threshold: Threshold = None,
    noise: Annotated[
        float | None, typer.Option(help="Noise of every release: noise scale, sigma, or local epsilon.")
    ] = None,
    solver: Annotated[
        SolverName, typer.Option(help="users: every record; counts: numbers of users; law: no sampling.")
    ] = SolverName.counts,
    trials: Annotated[int | None, typer.Option(help=f"Runs of users and counts; {TRIALS} if not given.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of users and counts; 0 if not given.")] = None,
    as_json: Json = False,
    plot: Annotated[Path | None, typer.Option(help="Also save a picture.")] = None,
    save: Annotated[Path | None, typer.Option(help="Also save the result, as netCDF.")] = None,
    force: Force = False,
    dtype: Precision = Dtype.float64,
) -> None:
    """Simulate the population and the error of every release, and the risk of collapse."""
    pj = library(dtype)
    rates = {"leave": leave, "recruit": recruit, "leave_spared": leave_spared, "recruit_leaked": recruit_leaked}
    chosen = chosen_scenario(pj, scenario, preset, **rates, threshold=threshold)
    note = fitted_note(fitted_ranges(scenario), chosen)
    chosen = chosen.replace_noise(noise)
    sampling = _sampling(solver, trials, seed)
    check_outputs(save, plot, force=force, inputs=[scenario])
    result = _run(pj, chosen, solver, sampling)
    origin = {"scenario": pj.files.to_toml(chosen), "solver": solver.value, **sampling, "dtype": dtype.value}
    report = origin | {"error_unit": chosen.mechanism.error_unit} | _findings(result)
    report |= {} if note is None else {"note": note}
    outputs = (
        ("Result", save, lambda path: _save(pj, result, origin, path)),
        ("Picture", plot, lambda path: plots().plot_simulation(result).savefig(path, dpi=150)),
    )
    answer(pj, outputs, lambda: print_json(report) if as_json else _print_report(report), quiet=as_json)


def _sampling(solver, trials, seed) -> dict[str, int]:
    """Trials and seed of a solver that samples, with their defaults."""
    if solver is SolverName.law:
        for name, value in (("--trials", trials), ("--seed", seed)):
            if value is not None:
                raise ValueError(f"The law is computed without sampling: {name} goes with --solver users or counts.")
        return {}
    seed = check_seed(0 if seed is None else seed)
    trials = TRIALS if trials is None else trials
    if trials >= 2**31:  # said before the first chunk of them runs
        raise ValueError(f"Argument `trials` must be below 2^31, but is {trials}.")
    return {"trials": trials, "seed": seed}


def _run(pj, scenario, solver, sampling):
    if solver is SolverName.law:
        return pj.population_law(scenario)
    import jax

    sample = pj.simulate_users if solver is SolverName.users else pj.simulate_counts
    key, trials = jax.random.key(sampling["seed"]), sampling["trials"]
    return _in_chunks(lambda count, first: sample(scenario, key=key, trials=count, first_trial=first), trials, solver)


def _in_chunks(sample, trials: int, solver: SolverName):
    """Trials in chunks, with a progress bar; all of one size, for another would compile anew: the last may overrun."""
    import jax

    size = math.ceil(trials / math.ceil(trials / CHUNK[solver])) if trials > 0 else trials
    chunks, finished = [], 0
    with Progress(console=console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as progress:
        bar = progress.add_task("trials", total=trials)
        try:
            while not chunks or finished < trials:
                chunks.append(jax.block_until_ready(sample(size, finished)))
                finished = min(finished + size, trials)
                progress.update(bar, completed=finished)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"stopped after {finished} of {trials} trials, nothing was saved") from None
    return _joined(chunks, trials)


def _joined(chunks, trials):
    import jax.numpy as jnp

    names = ("population", "leak_probability", "error", "expected_error")
    fields = {name: jnp.concatenate([getattr(chunk, name) for chunk in chunks])[:trials] for name in names}
    return type(chunks[0])(**fields, scenario=chunks[0].scenario)


def _findings(result) -> dict[str, Any]:
    """Everything that is printed, by name; lists are by release."""
    from perfjax._summary import summary

    shown = summary(result)
    findings: dict[str, Any] = {name: values.tolist() for name, values in shown._asdict().items()}
    findings["collapse_population"] = float(result.scenario.participation.collapse_population)
    findings["summed_expected_error"] = float(np.sum(shown.expected_error))
    if hasattr(result, "relative_error"):
        return findings | {"relative_error": float(result.relative_error)}
    collapsed = np.asarray(result.collapsed)[:, -1].astype(float)
    return findings | {
        "summed_expected_error_standard_error": _standard_error(np.sum(result.expected_error, axis=1)),
        "summed_realised_error": float(np.mean(np.sum(result.error, axis=1))),
        "summed_realised_error_standard_error": _standard_error(np.sum(result.error, axis=1)),
        "collapse_probability_standard_error": _standard_error(collapsed),
    }


def _standard_error(samples) -> float | None:
    """Of the mean; None where there is none: of a single sample, or of infinite ones."""
    samples = np.asarray(samples, float)
    if samples.size < 2 or not np.all(np.isfinite(samples)):
        return None
    return float(np.std(samples, ddof=1) / math.sqrt(samples.size))


def _print_report(report: dict[str, Any]) -> None:
    rounds = len(report["mean"]) - 1
    title = f"{rounds + 1} releases, solver {report['solver']}"
    if "trials" in report:
        title += f", {report['trials']} trials, seed {report['seed']}"
    table = Table(title=f"{title}, {report['dtype']}", title_justify="left")
    for heading in ("release", "mean population\n(users)", "10-90 % range\n(users)", "collapsed\nby then"):
        table.add_column(heading, justify="right")
    table.add_column(f"expected error\n({report['error_unit'].removesuffix(' error')})", justify="right")
    for t in np.unique(np.linspace(0, rounds, SHOWN).round().astype(int)):
        mean, low, high, collapsed, error = (report[name][t] for name in COLUMNS)
        table.add_row(str(t), f"{mean:.6g}", f"{low:.6g} - {high:.6g}", f"{collapsed:.2%}", f"{error:.4g}")
    print_table(table)
    screen = console()
    for line in _closing(report, rounds):
        screen.print(line)
    if "note" in report:
        screen.print(report["note"])


def _closing(report: dict[str, Any], rounds: int) -> list[str]:
    total = f"Summed {report['error_unit']} of releases 0 to {rounds}: expected {report['summed_expected_error']:.6g}"
    risk = f"Collapsed ({report['collapse_population']:g} or fewer users) by release {rounds}:"
    probability = report["collapse_probability"][-1]
    if "trials" not in report:
        return [f"{total} ({accuracy(report['relative_error'])}).", f"{risk} probability {probability:.4%}."]
    return [
        f"{total}{_plus_minus(report['summed_expected_error_standard_error'])},"
        f" realised {report['summed_realised_error']:.6g}{_plus_minus(report['summed_realised_error_standard_error'])}"
        " (+- one standard error of the mean).",
        f"{risk} {probability:.2%}{_plus_minus(report['collapse_probability_standard_error'], '.2%')}"
        f" of {report['trials']} trials.",
    ]


def _plus_minus(error: float | None, form: str = ".2g") -> str:
    return "" if not error else f" +- {error:{form}}"


def _save(pj, result, origin, path: Path) -> None:
    import jax

    attributes = origin | {"perfjax_version": pj.__version__, "jax_version": jax.__version__}
    save_netcdf(result.to_xarray().assign_attrs(attributes), path)
