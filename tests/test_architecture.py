"""What the source promises about itself: direction of imports, abstract or final classes, quiet import."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import pytest

import perfjax

ROOT = Path(perfjax.__file__).parent
MODULES = sorted(m.name for m in pkgutil.walk_packages([str(ROOT)], "perfjax.") if not m.name.endswith("__main__"))
# Lower layers first; a module imports from its own layer or from lower ones.
LAYERS = [
    ["_check", "_chi_square", "_csv", "_digits", "_lbfgs", "_linear", "_fields", "_square_root", "quadratic_forms"],
    ["_normals", "accounting", "theorems"],
    ["binomial"],
    ["_draws"],
    ["count_privacy", "reconstruction"],
    ["privacy"],
    ["mechanisms"],
    ["leakage"],
    ["participation", "policies"],
    ["scenario"],
    ["registry"],
    ["trajectory", "files"],
    ["meanfield", "law", "montecarlo"],
    ["objectives"],
    ["tuning"],
    ["calibration"],
    ["sweeps"],
    ["_summary"],
    ["plots"],
    ["figures"],
    ["cli"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def source(module):
    return ast.parse(Path(importlib.util.find_spec(module).origin).read_text(encoding="utf-8"))


def imported(module):
    """The perfjax modules of the first level that a module imports."""
    found = set()
    for node in ast.walk(source(module)):
        if isinstance(node, ast.ImportFrom) and node.module == "perfjax":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("perfjax."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("perfjax.")}
    return found


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module):
    own = module.split(".")[1]
    for other in imported(module):
        assert LEVEL[other] <= LEVEL[own], f"{module} imports perfjax.{other}"


def test_theorems_import_no_simulator():
    for module in MODULES:
        if module.startswith("perfjax.theorems"):
            assert imported(module) <= {"theorems", "_check"}


@pytest.mark.parametrize("module", ["perfjax", *MODULES])
def test_public_names_are_listed(module):
    assert not {"utils", "helpers"} & set(module.split("."))
    tree = source(module)
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.names[0].name == "*"]
    if not any(part.startswith("_") for part in module.split(".")[1:]):
        listed = importlib.import_module(module).__all__
        assert len(set(listed)) == len(listed)
        assert all(hasattr(importlib.import_module(module), name) for name in listed)
        own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        assert {name for name in own if not name.startswith("_")} <= set(listed)


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("perfjax.cli.") and m != "perfjax.cli._shared"])
def test_commands_show_text_as_it_is(module):
    """By `console`, which reads no styles: a path may hold brackets."""
    called = [node.func for node in ast.walk(source(module)) if isinstance(node, ast.Call)]
    names = {f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "") for f in called}
    assert not names & {"Console", "from_markup", "rprint"}
    froms = {node.module for node in ast.walk(source(module)) if isinstance(node, ast.ImportFrom)}
    assert not froms & {"rich", "rich.console", "rich.markup"}


def descendants(cls):
    for child in cls.__subclasses__():
        yield child
        yield from descendants(child)


def test_every_class_is_abstract_or_final():
    for module in MODULES:
        importlib.import_module(module)
    ours = {cls for cls in descendants(eqx.Module) if cls.__module__.startswith("perfjax")}
    assert len(ours) > 10
    for cls in ours:
        bases = [base for base in cls.__mro__[1:] if base.__module__.startswith("perfjax")]
        for base in bases:
            assert inspect.isabstract(base) or base.__name__.startswith("Abstract"), f"{cls} inherits from {base}"
            for name, member in vars(base).items():
                concrete = inspect.isfunction(member) and not getattr(member, "__isabstractmethod__", False)
                if concrete and not name.startswith("__"):
                    assert name not in vars(cls), f"{cls} overrides {base.__name__}.{name}"


QUIET = """
import jax
before = dict(jax.config.values)
import perfjax
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized(), "a backend was started"
changed = {k for k, v in jax.config.values.items() if before.get(k) != v}
assert not changed, changed
import sys
optional = {"zarr", "typer", "rich", "matplotlib.pyplot"} & set(sys.modules)
assert not optional, optional
"""


def test_import_starts_nothing_and_changes_nothing():
    done = subprocess.run([sys.executable, "-c", QUIET], cwd=ROOT.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mark", ["fast", "slow", "study"])
def test_what_marks_list_exists(mark):
    tests = Path(__file__).parent
    for line in (tests / "marks" / f"{mark}.txt").read_text().splitlines():
        file, _, test = line.partition("[")[0].removeprefix("tests/").partition("::")
        text = (tests / file).read_text()
        assert not test or f"\ndef {test}(" in text, line


def test_the_version_is_cited_as_it_is():
    cited = (Path(__file__).parent.parent / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {perfjax.__version__}\n" in cited
