"""Tests run in float64 with strict promotion; the main results run again in float32 by casting inputs."""

import sys

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")


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
