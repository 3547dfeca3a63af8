"""`perfjax reconstruct`: what repeated releases about some records reveal, to whom, and at which number of them."""

import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from perfjax import _check
from perfjax._csv import digits, number
from perfjax.cli._shared import (
    Dtype,
    Force,
    Json,
    Precision,
    answer,
    check_outputs,
    console,
    library,
    plots,
    print_json,
    print_table,
    records_of,
    save_netcdf,
)

__all__ = ["reconstruct"]

SHOWN = 8  # numbers of releases in the table
KEYS = ("about", "records", "data", "column", "size", "seed", "family", "budget", "releases", "trials", "labels")
FAMILY = ("type", "radius", "sensitivity", "step", "bandwidth", "grid")
BUDGET = ("epsilon", "delta", "accountant", "order")
LABELS = ("target", "features", "without")
DEFAULTS: dict[str, Any] = {"size": 2, "seed": 0, "releases": "2..40", "trials": 200}
STEPS = {"logistic": "Logistic", "smoothstep": "Smoothstep", "bump": "Bump"}


def reconstruct(
    file: Annotated[Path | None, typer.Argument(help="Transcript file (TOML).", show_default=False)] = None,
    records: Annotated[str | None, typer.Option(help="Records, such as --records=-0.4,0.7.")] = None,
    data: Annotated[Path | None, typer.Option(help="CSV file to draw records from.")] = None,
    column: Annotated[str | None, typer.Option(help="Its column.")] = None,
    size: Annotated[int | None, typer.Option(help="Records to draw from it; 2 if not given.")] = None,
    family: Annotated[str | None, typer.Option(help="moments or thresholds; moments if not given.")] = None,
    sensitivity: Annotated[str | None, typer.Option(help="exact or paper; exact if not given.")] = None,
    step: Annotated[str | None, typer.Option(help="Of thresholds: logistic, smoothstep or bump.")] = None,
    bandwidth: Annotated[float | None, typer.Option(help="Of the step.")] = None,
    grid: Annotated[str | None, typer.Option(help="Of thresholds: midpoint, interior or endpoint.")] = None,
    releases: Annotated[str | None, typer.Option(help="Numbers of releases, such as 2..40 (default) or 5.")] = None,
    accountant: Annotated[str | None, typer.Option(help="zcdp (default), gdp, rdp, basic, basic-analytic.")] = None,
    order: Annotated[float | None, typer.Option(help="Of the accountant rdp.")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Central epsilon of all releases together; 1 if not given.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Central delta of all releases together; 1e-5 if not given.")
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Transcripts to simulate; 200 if not given, 0 for none.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of drawing and simulating; 0 if not given.")] = None,
    as_json: Json = False,
    plot: Annotated[Path | None, typer.Option(help="Also save a picture.")] = None,
    save: Annotated[Path | None, typer.Option(help="Also save the result, as netCDF.")] = None,
    force: Force = False,
    dtype: Precision = Dtype.float64,
) -> None:
    """Find what an attacker learns about records from repeated noisy statistics under one central privacy budget."""
    pj = library(dtype)
    given = {"records": records, "data": data, "column": column, "size": size, "releases": releases}
    given |= {"trials": trials, "seed": seed}
    tables = {
        "family": {"type": family, "sensitivity": sensitivity, "step": step, "bandwidth": bandwidth, "grid": grid},
        "budget": {"epsilon": epsilon, "delta": delta, "accountant": accountant, "order": order},
    }
    asked = pj.files.read_toml(file, _checked) if file is not None else {}
    folder = Path() if file is None else file.parent
    read = None if "data" not in asked else folder / str(asked["data"])
    check_outputs(save, plot, force=force, inputs=[file, data, read])
    asked = _merged(asked, given, tables)
    problem = _problem(pj, asked, folder)
    report, found = _report(pj, problem, asked)
    outputs = (
        (
            "Result",
            save,
            lambda path: save_netcdf(found.to_xarray().assign_attrs(perfjax_version=pj.__version__), path),
        ),
        ("Picture", plot, lambda path: plots().plot_scan(found.scan).figure.savefig(path, dpi=150)),
    )
    answer(pj, outputs, lambda: print_json(report) if as_json else _print_report(report), quiet=as_json)


def _checked(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a file, if all of its keys are known."""
    _check.check_known(content, KEYS, "key")
    for name, known in (("family", FAMILY), ("budget", BUDGET), ("labels", LABELS)):
        table = content.get(name, {})
        if not isinstance(table, dict):
            raise _check.fail(name, "be a table", _check.quoted(table))
        _check.check_known(table, known, f"key in [{name}]")
    missing = [name for name in LABELS if name not in content.get("labels", dict.fromkeys(LABELS))]
    if missing:
        raise ValueError(f"Missing key in [labels]: `{'`, `'.join(missing)}`.")
    return content


def _merged(asked, given, tables) -> dict[str, Any]:
    """What the file says, with what the command line says in its place."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if "records" in chosen or "data" in chosen:  # one source of records in place of another
        asked = {name: value for name, value in asked.items() if name not in ("records", "data", "column")}
        chosen |= {name: value.resolve() for name, value in chosen.items() if name == "data"}
    merged = DEFAULTS | asked | chosen
    for name, table in tables.items():
        merged[name] = asked.get(name, {}) | {key: value for key, value in table.items() if value is not None}
    return merged


def _problem(pj, asked, folder) -> dict[str, Any]:
    """Arguments of `assess`, as the library wants them."""
    budget = {"epsilon": 1.0, "delta": 1e-5, "accountant": "zcdp"} | asked["budget"]
    family = _family(pj, asked["family"])
    low, high = _range(asked["releases"])
    return {"family": family, "records": _records(asked, folder), "releases": (low, high)} | budget


def _family(pj, table):
    library = pj.reconstruction
    kind = _check.as_choice(table.get("type", "moments"), "family", ("moments", "thresholds"))
    shared = {name: table[name] for name in ("radius", "sensitivity") if name in table}
    own = {name: table[name] for name in ("step", "bandwidth", "grid") if name in table}
    if kind == "moments":
        if own:
            raise ValueError(f"Argument `{next(iter(own))}` goes with family thresholds.")
        return library.Moments(**({"radius": 1.0} | shared))
    missing = [name for name in ("step", "bandwidth", "grid") if name not in own]
    if missing:
        why = ": every result depends on the grid" if "grid" in missing else ""
        raise ValueError(f"Family thresholds needs `{'`, `'.join(missing)}`{why}.")
    _check.as_choice(own["step"], "step", STEPS)
    step = getattr(library, STEPS[own["step"]])(own["bandwidth"])
    return library.Thresholds(step, grid=own["grid"], **shared)


def _range(text: Any) -> tuple[int, int]:
    """The ends of "2..40", [2, 40] or 5."""
    parts = text if isinstance(text, list) else str(text).split("..")
    try:
        ends = [int(digits(str(part).strip())) for part in parts]
    except ValueError:
        ends = []
    if len(ends) not in (1, 2) or max(ends) >= 2**31:
        raise ValueError(f'Argument `releases` must be a number or a range such as 2..40, but is "{text}".')
    return ends[0], ends[-1]


def _records(asked, folder):
    """Records as given, or drawn from a file."""
    if ("records" in asked) == ("data" in asked):
        raise ValueError("Give records, or data and column to draw them from.")
    if "records" in asked:
        return _numbers(asked["records"])
    pool = np.unique(records_of(folder / str(asked["data"]), asked.get("column")))
    size, seed = (_check.as_count(asked[name], name, low=low) for name, low in (("size", 1), ("seed", 0)))
    if size > pool.size:
        raise ValueError(
            f"Argument `size` must be at most {pool.size}, the different records there are, but is {size}."
        )
    return np.sort(np.random.default_rng(seed).choice(pool, size, replace=False))


def _numbers(text: Any) -> np.ndarray:
    parts = text if isinstance(text, list) else str(text).split(",")
    try:
        return np.asarray([float(part) if isinstance(part, float) else number(str(part).strip()) for part in parts])
    except ValueError as error:
        raise ValueError(f'Argument `records` must be numbers with commas between them, but is "{text}".') from error


def _report(pj, problem, asked) -> tuple[dict[str, Any], Any]:
    """Everything that is printed, and the result of the library."""
    import jax

    trials, seed = (_check.as_count(asked[name], name, low=0) for name in ("trials", "seed"))
    if seed >= 2**31:
        raise _check.fail("seed", "be below 2^31", seed)
    sampling = {"trials": trials, "key": jax.random.key(seed)} if trials else {}
    labels = _labels(pj, problem, asked) if "labels" in asked else {}
    found = pj.reconstruction.assess(**problem, **sampling)
    scan = found.scan
    at = found.releases - int(scan.releases[0])
    report = {
        "records": np.asarray(scan.records).tolist(),
        "family": type(scan.family).__name__,
        **{name: problem[name] for name in ("epsilon", "delta", "accountant")},
        "releases": np.asarray(scan.releases).tolist(),
        **{
            name: np.asarray(getattr(scan, name)).tolist()
            for name in ("kappa", "bound", "van_trees", "effective_epsilon")
        },
        "status": pj.reconstruction.ScanStatus(int(scan.status)).meaning,
        "reason": pj.reconstruction.Reason(int(scan.reason[at])).meaning,
        "best_releases": found.releases,
        "certified_at": int(scan.certified_at),
        "directions": np.asarray(found.directions).tolist(),
        "standard_errors": np.asarray(found.standard_errors).tolist(),
        "trivial": float(scan.trivial),
        "label_floor": float(scan.label_floor),
        "trials": trials,
    }
    if trials:
        report["simulated_error"] = float(found.simulated_error)
        report["simulated_standard_error"] = float(found.simulated_standard_error)
    if scan.classic_validity is not None:
        report["classic_calibration"] = pj.accounting.ClassicValidity(int(scan.classic_validity[at])).meaning
    return report | labels, found


def _labels(pj, problem, asked) -> dict[str, Any]:
    """The design that reveals most of a labelled record."""
    table, library = asked["labels"], pj.reconstruction
    members = _members(table["without"], len(problem["records"]))
    transcript = library.design_labels.HybridTranscript(problem["family"], table["features"], members)
    budget = {name: problem[name] for name in ("epsilon", "delta", "accountant")}
    found = library.assessment.assess_labels(transcript, problem["records"], target=table["target"], **budget)
    return {
        "target": table["target"],
        "label_shares": np.asarray(found.design.shares).tolist(),
        "label_bound": float(found.design.value),
        "label_swaps": np.asarray(found.swaps).tolist(),
        "label_separation": float(found.separation),
    }


def _members(without: Any, count: int) -> np.ndarray:
    """For each mean, which records are in it: all but those listed by their places."""
    if not isinstance(without, list) or not all(isinstance(mean, list) for mean in without):
        raise ValueError(f"Argument `without` must be a list of lists of places, one for each mean, but is {without}.")
    for place in (place for mean in without for place in mean):
        if _check.as_count(place, "without", low=0) >= count:
            raise _check.fail("without", f"hold places below {count}, the number of records", place)
    return np.asarray([~np.isin(np.arange(count), mean) for mean in without], bool).reshape(-1, count)


def _print_report(report: dict[str, Any]) -> None:
    listed = ", ".join(f"{x:.4g}" for x in report["records"])
    budget = f"{report['accountant']} at central epsilon {report['epsilon']:g}, delta {report['delta']:g}"
    table = Table(title=f"{len(report['records'])} records ({listed}), {report['family']}, {budget}")
    for heading in (
        "releases",
        "bound if unbiased\n(squared)",
        "any estimator,\nmean nearby",
        "central epsilon\nreally spent",
    ):
        table.add_column(heading, justify="right")
    numbers = report["releases"]
    best = numbers.index(report["best_releases"])
    for k in sorted({*np.linspace(0, len(numbers) - 1, SHOWN).round().astype(int).tolist(), best}):
        row = (report[name][k] for name in ("bound", "van_trees", "effective_epsilon"))
        table.add_row(f"{numbers[k]}{' *' if k == best else ''}", *(f"{float(x):.6g}" for x in row))
    print_table(table)
    screen = console()
    for line in [*_closing(report), *_closing_labels(report)]:
        screen.print(line)


def _closing(report: dict[str, Any]) -> list[str]:
    n = report["best_releases"]
    lines = [f"Number of releases: {n} (*), {report['status']}."]
    if not report["reason"].startswith("The target is identified"):
        lines.append(report["reason"])
    lines.append(f"Directions at {n} releases, best known first:")
    for direction, error in zip(report["directions"], report["standard_errors"], strict=True):
        along = ", ".join(f"{x:.3f}" for x in direction)
        lines.append(f"  ({along}): {'not identified' if math.isinf(error) else f'+- {error:.4g}'}")
    if "classic_calibration" in report:
        lines.append(f"Classic calibration {report['classic_calibration']}.")
    lines.append(
        "Bounds for any estimator (van Trees) are on its mean error over records near these; at these it may err less."
    )
    lines.append(f"Always answering 0 errs by {report['trivial']:.4g} at most, summed over the records.")
    if "simulated_error" in report:
        lines.append(_attained(report))
    floor = report["label_floor"]
    lines.append(
        f"Labels do not show in releases about all: one labelled record errs by {floor:.4g} on average or more."
    )
    return lines


def _attained(report) -> str:
    """Whether the likeliest records attain the bound."""
    error, spread = report["simulated_error"], report["simulated_standard_error"]
    bound = float(report["bound"][report["releases"].index(report["best_releases"])])
    found = f"The likeliest records in the box err by {error:.4g} +- {spread:.2g} ({report['trials']} transcripts)"
    if not math.isfinite(bound):
        return f"{found}; there is no bound."
    if abs(error - bound) < 3 * spread:
        return f"{found}: as the bound says."
    reason = "the box, not the data, sets the error" if error < bound else "noise is too large for a local bound"
    return f"{found}, {error / bound:.3g} times the bound: {reason}."


def _closing_labels(report) -> list[str]:
    if "target" not in report:
        return []
    shares = ", ".join(f"{float(x):.3g}" for x in report["label_shares"])
    return [
        f"Record {report['target']} with its label: at best {report['label_bound']:.4g} (squared), with shares {shares}"
        " of the budget on the features and means.",
        f"  Then the nearest other labelling is {report['label_separation']:.3g} standard deviations away: "
        + ("labels show." if report["label_separation"] > 4 else "labels do not show reliably."),
    ]
