"""Calibration: what observed participation says about leave, recruit and threshold, and what it can't say.

| question | functions |
| --- | --- |
| what was observed | `Series`, `load_series`, `published_series` |
| which parameters explain it | `fit`, with `Beta`, `LogNormal`, `survey_prior`; `bias` |
| whether leaks matter at all | `leak_test` |
| what the counts identify | `identifiability`, `profiles` |
| what it means for the best noise | `best_noise` |
| what it leaves open, in a file | `parameter_ranges`, `save_fit`, `load_ranges` |
| which noise is best by all that it leaves open | `tune_fitted`, `outcome_of_draws` |
| which noise to use next, to find out more | `design_experiment` |
"""

from perfjax.calibration._bias import bias as bias
from perfjax.calibration._columns import load_series as load_series
from perfjax.calibration._design import Design as Design
from perfjax.calibration._design import design_experiment as design_experiment
from perfjax.calibration._fit import Fit as Fit
from perfjax.calibration._fit import fit as fit
from perfjax.calibration._fitted import FittedOptimum as FittedOptimum
from perfjax.calibration._fitted import Outcome as Outcome
from perfjax.calibration._fitted import outcome_of_draws as outcome_of_draws
from perfjax.calibration._fitted import tune_fitted as tune_fitted
from perfjax.calibration._identifiability import Identifiability as Identifiability
from perfjax.calibration._identifiability import identifiability as identifiability
from perfjax.calibration._leak_test import LeakTest as LeakTest
from perfjax.calibration._leak_test import leak_test as leak_test
from perfjax.calibration._meaning import BestNoise as BestNoise
from perfjax.calibration._meaning import best_noise as best_noise
from perfjax.calibration._priors import AbstractPrior as AbstractPrior
from perfjax.calibration._priors import Beta as Beta
from perfjax.calibration._priors import LogNormal as LogNormal
from perfjax.calibration._priors import parse_prior as parse_prior
from perfjax.calibration._profile import Profile as Profile
from perfjax.calibration._profile import profiles as profiles
from perfjax.calibration._published import published_series as published_series
from perfjax.calibration._published import survey_prior as survey_prior
from perfjax.calibration._ranges import Ranges as Ranges
from perfjax.calibration._ranges import load_ranges as load_ranges
from perfjax.calibration._ranges import parameter_ranges as parameter_ranges
from perfjax.calibration._ranges import save_fit as save_fit
from perfjax.calibration._series import Series as Series

__all__ = [
    "AbstractPrior",
    "BestNoise",
    "Beta",
    "Design",
    "Fit",
    "FittedOptimum",
    "Identifiability",
    "LeakTest",
    "LogNormal",
    "Outcome",
    "Profile",
    "Ranges",
    "Series",
    "best_noise",
    "bias",
    "design_experiment",
    "fit",
    "identifiability",
    "leak_test",
    "load_ranges",
    "load_series",
    "outcome_of_draws",
    "parameter_ranges",
    "parse_prior",
    "profiles",
    "published_series",
    "save_fit",
    "survey_prior",
    "tune_fitted",
]
