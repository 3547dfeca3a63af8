"""Mechanisms: what is released, with which error, and under which privacy."""

from perfjax.mechanisms._base import AbstractMechanism as AbstractMechanism
from perfjax.mechanisms._gaussian import GaussianMean as GaussianMean
from perfjax.mechanisms._randomized_response import RandomizedResponse as RandomizedResponse
from perfjax.mechanisms._shifted_log_count import ShiftedLogCount as ShiftedLogCount

__all__ = ["AbstractMechanism", "GaussianMean", "RandomizedResponse", "ShiftedLogCount"]
