"""Tests run in float64 with strict promotion; the main results run again in float32 by casting inputs."""

import os
import pathlib
import signal
import sys

import jax
import jaxlib.version
import pytest

MAPS = pathlib.Path("/proc/self/maps")
MANY_MAPS = 20_000
MARKS = pathlib.Path(__file__).with_name("marks")

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")


def light_compilation(markexpr):
    """Flags of XLA for little optimization: it makes programs faster which then mostly run once.

    Docstrings and notebooks run what users do. XLA ends the process at a flag that it does not know.
    """
    level = 0 if markexpr in ("not slow", "fast") else 1
    emitters = ["--xla_cpu_use_fusion_emitters=false"] if jaxlib.version.__version_info__ < (0, 11) else []
    return " ".join([f"--xla_backend_optimization_level={level}", *emitters])


def pytest_configure(config):
    """Let the processes of this run, and the next runs, share what takes long to compile, and hear Ctrl-C."""
    os.environ.setdefault("XLA_FLAGS", light_compilation(config.option.markexpr))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "cache"):
        compiled = str(config.cache.mkdir("compiled"))
        for name, value in {"compilation_cache_dir": compiled, "persistent_cache_min_compile_time_secs": 0.1}.items():
            os.environ[f"JAX_{name.upper()}"] = str(value)  # of processes that tests start
            jax.config.update(f"jax_{name}", value)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark what `marks/` lists: files, tests, or single cases. A study is run only where it is asked for."""
    for mark in ("study", "slow", "fast"):
        listed = set((MARKS / f"{mark}.txt").read_text().splitlines())
        for item in items:
            names = {item.nodeid, item.nodeid.partition("[")[0], item.nodeid.partition("::")[0]}
            is_long = item.get_closest_marker("slow") or item.get_closest_marker("study")
            if listed & names and not (mark == "fast" and is_long):
                item.add_marker(mark)
    if "study" not in config.option.markexpr:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("study")])
        items[:] = [item for item in items if not item.get_closest_marker("study")]


@pytest.fixture(autouse=True, scope="module")
def few_maps():
    """Compiled programs hold memory maps, and Linux ends a process that has more than 65,530 of them."""
    if MAPS.exists() and MAPS.read_text().count("\n") > MANY_MAPS:
        jax.clear_caches()


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command in this process: (exit code, stdout, stderr). The other tests keep their precision."""
    from perfjax import cli  # not before types are checked on import

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["perfjax", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code or 0, *capsys.readouterr()

    yield command
    jax.config.update("jax_enable_x64", True)


@pytest.fixture
def no_pictures_left():
    """matplotlib keeps every picture until it is closed, and warns of many."""
    import matplotlib.pyplot as plt

    yield
    plt.close("all")
