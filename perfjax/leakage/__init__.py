"""Leakage rules: who counts as leaked by a release, and how probable that is.

A rule is a small module of parameters. What it means for a mechanism is one class per (mechanism, rule) pair, an
`AbstractPair`, in a file of its own, perfjax's or yours: a new pair adds one class and touches nothing else.
"""

from perfjax.leakage import pairs as pairs
from perfjax.leakage._base import AbstractLeakage as AbstractLeakage
from perfjax.leakage._likelihood_ratio import LikelihoodRatioAbove as LikelihoodRatioAbove
from perfjax.leakage._reconstructed import ReconstructedWithin as ReconstructedWithin
from perfjax.leakage._true_bit import TrueBitKept as TrueBitKept
from perfjax.leakage.pairs._base import AbstractIndependentPair as AbstractIndependentPair
from perfjax.leakage.pairs._base import AbstractPair as AbstractPair
from perfjax.leakage.pairs._base import CriticalNoise as CriticalNoise
from perfjax.leakage.pairs._base import Gap as Gap
from perfjax.leakage.pairs._base import LeakDistribution as LeakDistribution
from perfjax.leakage.pairs._base import Split as Split
from perfjax.leakage.pairs._base import pair_of as pair_of
from perfjax.leakage.pairs._given_distance import leak_probability_given_distance as leak_probability_given_distance
from perfjax.leakage.pairs._leaks import check_count_level as check_count_level
from perfjax.leakage.pairs._leaks import check_pair as check_pair
from perfjax.leakage.pairs._leaks import leak_distribution as leak_distribution
from perfjax.leakage.pairs._leaks import leak_probability as leak_probability
from perfjax.leakage.pairs._leaks import leaked_count as leaked_count
from perfjax.leakage.pairs._leaks import shared_weights as shared_weights
from perfjax.leakage.pairs._leaks import split as split

__all__ = [
    "AbstractIndependentPair",
    "AbstractLeakage",
    "AbstractPair",
    "CriticalNoise",
    "Gap",
    "LeakDistribution",
    "LikelihoodRatioAbove",
    "ReconstructedWithin",
    "Split",
    "TrueBitKept",
    "check_count_level",
    "check_pair",
    "leak_distribution",
    "leak_probability",
    "leak_probability_given_distance",
    "leaked_count",
    "pair_of",
    "pairs",
    "shared_weights",
    "split",
]
