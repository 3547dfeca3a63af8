"""Leaked when randomized response keeps the true bit."""

from perfjax.leakage._base import AbstractLeakage

__all__ = ["TrueBitKept"]


class TrueBitKept(AbstractLeakage):
    """A user is leaked when the released bit is their true one: p = 1/2 + beta = 1 / (1 + exp(-epsilon)), whatever n.

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility", section 3.
    """
