"""`perfjax scenario`: show a scenario file, or start one."""

from pathlib import Path
from typing import Annotated

import typer

from perfjax.cli._shared import (
    DEFAULT_PRESET,
    Dtype,
    Force,
    PresetName,
    ScenarioFile,
    check_output,
    chosen_scenario,
    library,
)

__all__ = ["new", "show"]


def show(scenario: ScenarioFile = None, preset: PresetName = None) -> None:
    """Print a scenario file, or a preset with its sources; check it on the way."""
    pj = library(Dtype.float64)
    chosen_scenario(pj, scenario, preset)
    name = DEFAULT_PRESET if preset is None else preset
    print(pj.files.preset_text(name) if scenario is None else scenario.read_text(encoding="utf-8-sig"), end="")


def new(
    path: Annotated[Path, typer.Argument(help="The file to write.")],
    preset: Annotated[str, typer.Option(help="What to start from.")] = DEFAULT_PRESET,
    force: Force = False,
) -> None:
    """Start a scenario file from a preset."""
    pj = library(Dtype.float64)
    pj.preset(preset)
    check_output(path, force=force)
    with pj.files.replacing(path) as temporary:
        temporary.write_text(pj.files.preset_text(preset), encoding="utf-8")
    print(f"Wrote {path}. Edit it, then: perfjax tune {path}")
