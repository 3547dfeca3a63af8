"""Every published figure: a recipe for its numbers, a drawing of them, and what they say.

A figure is one entry of `FIGURES`, made in a file of its own or of two alike: the recipe computes an `xarray.Dataset`,
the drawing takes that dataset and computes nothing.
"""

from perfjax.figures._registry import FIGURES as FIGURES
from perfjax.figures._registry import Figure as Figure
from perfjax.figures._registry import draw as draw
from perfjax.figures._registry import numbers as numbers
from perfjax.figures._registry import summary as summary

__all__ = ["FIGURES", "Figure", "draw", "numbers", "summary"]
