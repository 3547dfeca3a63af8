"""Tuning: the noise with the least objective, how sure that is, and how it moves with the scenario."""

from perfjax.tuning._clipping import ClippingOptimum as ClippingOptimum
from perfjax.tuning._clipping import tune_clipping as tune_clipping
from perfjax.tuning._constant import tune as tune
from perfjax.tuning._optimum import Optimum as Optimum
from perfjax.tuning._optimum import Status as Status
from perfjax.tuning._policy import PolicyOptimum as PolicyOptimum
from perfjax.tuning._policy import tune_policy as tune_policy
from perfjax.tuning._regret import regret as regret
from perfjax.tuning._schedule import Schedule as Schedule
from perfjax.tuning._schedule import tune_schedule as tune_schedule
from perfjax.tuning._sensitivities import Sensitivities as Sensitivities
from perfjax.tuning._sensitivities import sensitivities as sensitivities

__all__ = [
    "ClippingOptimum",
    "Optimum",
    "PolicyOptimum",
    "Schedule",
    "Sensitivities",
    "Status",
    "regret",
    "sensitivities",
    "tune",
    "tune_clipping",
    "tune_policy",
    "tune_schedule",
]
