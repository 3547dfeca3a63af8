"""Calibration: what observed participation says about leave, recruit and threshold, and what it can't say.

| question | functions |
| --- | --- |
| what was observed | `Series`, `load_series`, `published_series` |
| which parameters explain it | `fit`, with `Beta`, `LogNormal`, `survey_prior`; `bias` |
| what the counts identify | `identifiability`, `profiles` |
| what it means for the best noise | `best_noise` |
| which noise to use next, to find out more | `design_experiment` |
"""

from perfjax.calibration._bias import bias as bias
from perfjax.calibration._columns import load_series as load_series
from perfjax.calibration._design import Design as Design
from perfjax.calibration._design import design_experiment as design_experiment
from perfjax.calibration._fit import Fit as Fit
from perfjax.calibration._fit import fit as fit
from perfjax.calibration._identifiability import Identifiability as Identifiability
from perfjax.calibration._identifiability import identifiability as identifiability
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
from perfjax.calibration._series import Series as Series

__all__ = [
    "AbstractPrior",
    "BestNoise",
    "Beta",
    "Design",
    "Fit",
    "Identifiability",
    "LogNormal",
    "Profile",
    "Series",
    "best_noise",
    "bias",
    "design_experiment",
    "fit",
    "identifiability",
    "load_series",
    "parse_prior",
    "profiles",
    "published_series",
    "survey_prior",
]
