"""How much noise should a repeated release add, when leaking someone's data makes them leave?"""

from perfjax import accounting as accounting
from perfjax import calibration as calibration
from perfjax import count_privacy as count_privacy
from perfjax import files as files
from perfjax import leakage as leakage
from perfjax import mechanisms as mechanisms
from perfjax import objectives as objectives
from perfjax import reconstruction as reconstruction
from perfjax import sweeps as sweeps
from perfjax import theorems as theorems
from perfjax import tuning as tuning
from perfjax.calibration import fit as fit
from perfjax.files import load_scenario as load_scenario
from perfjax.files import preset as preset
from perfjax.files import save_scenario as save_scenario
from perfjax.law import PopulationLaw as PopulationLaw
from perfjax.law import population_law as population_law
from perfjax.leakage import LikelihoodRatioAbove as LikelihoodRatioAbove
from perfjax.leakage import ReconstructedWithin as ReconstructedWithin
from perfjax.leakage import TrueBitKept as TrueBitKept
from perfjax.leakage import leak_probability as leak_probability
from perfjax.meanfield import mean_field as mean_field
from perfjax.mechanisms import GaussianMean as GaussianMean
from perfjax.mechanisms import RandomizedResponse as RandomizedResponse
from perfjax.mechanisms import ShiftedLogCount as ShiftedLogCount
from perfjax.montecarlo import simulate_counts as simulate_counts
from perfjax.montecarlo import simulate_users as simulate_users
from perfjax.objectives import CumulativeBound as CumulativeBound
from perfjax.objectives import CumulativeError as CumulativeError
from perfjax.objectives import FinalError as FinalError
from perfjax.objectives import OverDraws as OverDraws
from perfjax.participation import Participation as Participation
from perfjax.policies import LogLinearPolicy as LogLinearPolicy
from perfjax.policies import TablePolicy as TablePolicy
from perfjax.scenario import Scenario as Scenario
from perfjax.sweeps import sweep as sweep
from perfjax.trajectory import Trajectory as Trajectory
from perfjax.tuning import ClippingOptimum as ClippingOptimum
from perfjax.tuning import Optimum as Optimum
from perfjax.tuning import PolicyOptimum as PolicyOptimum
from perfjax.tuning import Schedule as Schedule
from perfjax.tuning import Sensitivities as Sensitivities
from perfjax.tuning import Status as Status
from perfjax.tuning import regret as regret
from perfjax.tuning import sensitivities as sensitivities
from perfjax.tuning import tune as tune
from perfjax.tuning import tune_clipping as tune_clipping
from perfjax.tuning import tune_policy as tune_policy
from perfjax.tuning import tune_schedule as tune_schedule

__all__ = [
    "ClippingOptimum",
    "CumulativeBound",
    "CumulativeError",
    "FinalError",
    "GaussianMean",
    "LikelihoodRatioAbove",
    "LogLinearPolicy",
    "Optimum",
    "OverDraws",
    "Participation",
    "PolicyOptimum",
    "PopulationLaw",
    "RandomizedResponse",
    "ReconstructedWithin",
    "Scenario",
    "Schedule",
    "Sensitivities",
    "ShiftedLogCount",
    "Status",
    "TablePolicy",
    "Trajectory",
    "TrueBitKept",
    "accounting",
    "calibration",
    "count_privacy",
    "files",
    "fit",
    "leak_probability",
    "leakage",
    "load_scenario",
    "mean_field",
    "mechanisms",
    "objectives",
    "population_law",
    "preset",
    "reconstruction",
    "regret",
    "save_scenario",
    "sensitivities",
    "simulate_counts",
    "simulate_users",
    "sweep",
    "sweeps",
    "theorems",
    "tune",
    "tune_clipping",
    "tune_policy",
    "tune_schedule",
    "tuning",
]

__version__ = "0.1.0"
