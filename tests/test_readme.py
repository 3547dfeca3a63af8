"""The README is run as printed: every block in order, from a clean folder, with only files that it makes itself."""

import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import perfjax as pj
from perfjax.cli import app

ROOT = Path(pj.__file__).parent.parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"[\w.-]+\.(?:toml|csv|nc|zarr|png)")
WRITTEN = ("--out", "--save", "--store", "--plot", "--release")


def readme():
    return (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(*languages):
    """Language and text of each block, in order."""
    return [(language, block) for language, block in BLOCK.findall(readme()) if language in languages]


def named(block):
    """The file that a block stands for, which its first line names."""
    return block.splitlines()[0].removeprefix("# ")


def lines():
    """The lines of the shell blocks that a shell would run, as words, with TOML files where they stand."""
    for kind, block in blocks("sh", "toml"):
        if kind == "toml":
            yield ["cat", ">", named(block)]
            continue
        shown = re.sub(r"<<'END'\n.*?^END\n", "\n", block, flags=re.MULTILINE | re.DOTALL)
        for line in shown.splitlines():
            for part in line.split("&&"):
                words = shlex.split(part.replace("$(", "(").removesuffix(" &"), comments=True)
                if words:
                    yield words


def perfjax_lines():
    return [words[1:] for words in lines() if words[0] == "perfjax"]


@pytest.mark.parametrize("words", perfjax_lines(), ids=" ".join)
def test_every_command_is_understood(words):
    group = typer.main.get_command(app)
    context = group.make_context("perfjax", list(words))
    while hasattr(group, "resolve_command"):
        name, group, words = group.resolve_command(context, words)
        context = group.make_context(name, list(words), parent=context)
    assert context.params


def test_every_file_is_there_before_it_is_read_and_written_once():
    there, shared = set(), {"shared.zarr"}  # which two processes write together
    for words in lines():
        made = (
            {words[-1]} if words[0] in ("cp", "cat", "printf") or words[:3] == ["perfjax", "scenario", "new"] else set()
        )
        made |= {after for word, after in itertools.pairwise(words) if word in WRITTEN and FILE.fullmatch(after)}
        assert not made & there - shared, words
        read = {word for word in words if FILE.fullmatch(word)} - made
        assert read <= there, words
        there |= made
    stores = re.findall(r'store="(.*?)"', "".join(block for _, block in blocks("python")))
    assert stores
    assert not there & set(stores)


@pytest.mark.slow
def test_the_numbers_of_the_default_setting_are_those_of_tune():
    optimum = pj.tune(pj.preset("mean-estimation"), pj.CumulativeError(first_release=0))
    spent = pj.mean_field(optimum.scenario).privacy()
    local, central = (float(one.composed().epsilon(1e-6)) for one in (spent.local, spent.central))
    text = " ".join(readme().split())
    for words in (
        f"the best noise (γ = {float(optimum.noise):.2f})",
        f"{float(optimum.value / optimum.value_without_privacy):.2g} times the error of no privacy",
        f"of {central:.2f} over all 51 releases",
        f"of {float(spent.local.epsilon(1e-6)[0]):.0f} per release and {local:.0f} over all)",
    ):
        assert words in text


@pytest.fixture
def shell(tmp_path):
    """Runs a program in a clean folder, where `perfjax` and `python` are those of this run."""
    programs, folder = tmp_path / "bin", tmp_path / "clean"
    programs.mkdir(), folder.mkdir()
    for name, command in (("python", ""), ("perfjax", "-m perfjax")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n')
        (programs / name).chmod(0o755)
    env = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}

    def run(*command):
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    run.folder = folder
    return run


@pytest.mark.slow
def test_every_shell_block_runs_as_printed(shell):
    for language, block in blocks("sh", "toml"):
        if language == "toml":
            (shell.folder / named(block)).write_text(block)
        elif "pytest" not in block:
            # What runs is installed already, and the published settings of a figure take minutes.
            program = block.replace("pip install . && ", "").replace(" --full", "")
            shell("bash", "-e", "-o", "pipefail", "-c", program)
    assert (shell.folder / "private.csv").read_text().startswith("town,n\n")


@pytest.mark.slow
def test_every_python_block_runs_as_printed(shell):
    printed = shell("python", "-c", "\n".join(block for _, block in blocks("python")))
    for words in ("Optimum: interior minimum", "Sensitivities of noise_scale", "P(privacy pays)"):
        assert words in printed
    assert (shell.folder / "grid.zarr").is_dir()
