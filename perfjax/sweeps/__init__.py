"""Sweeps: one run for every cell of a named grid, in chunks, on many devices and hosts, into a store that survives."""

from perfjax.sweeps._file import SweepFile as SweepFile
from perfjax.sweeps._file import load_sweep as load_sweep
from perfjax.sweeps._reading import open_sweep as open_sweep
from perfjax.sweeps._sweep import sweep as sweep

__all__ = ["SweepFile", "load_sweep", "open_sweep", "sweep"]
