"""Leakage rules: who counts as leaked by a release, and how probable that is.

A rule is a small module of parameters. What it means for a mechanism is one function per (mechanism, rule) pair, kept
in the file of the rule; `leak_probability` looks the pair up. A new pair adds one function and touches nothing else.
"""

from perfjax.leakage._given_noise import GivenNoise as GivenNoise
from perfjax.leakage._given_noise import check_count_level as check_count_level
from perfjax.leakage._given_noise import given_noise as given_noise
from perfjax.leakage._likelihood_ratio import LikelihoodRatioAbove as LikelihoodRatioAbove
from perfjax.leakage._likelihood_ratio import leak_probability_given_distance as leak_probability_given_distance
from perfjax.leakage._pairs import AbstractLeakage as AbstractLeakage
from perfjax.leakage._pairs import PairTable as PairTable
from perfjax.leakage._pairs import Split as Split
from perfjax.leakage._pairs import check_pair as check_pair
from perfjax.leakage._pairs import leak_probability as leak_probability
from perfjax.leakage._pairs import split as split
from perfjax.leakage._reconstructed import ReconstructedWithin as ReconstructedWithin
from perfjax.leakage._shared_noise import shared_dimensions as shared_dimensions
from perfjax.leakage._shared_noise import shared_rule as shared_rule
from perfjax.leakage._shared_noise import shared_weights as shared_weights
from perfjax.leakage._true_bit import TrueBitKept as TrueBitKept

__all__ = [
    "AbstractLeakage",
    "GivenNoise",
    "LikelihoodRatioAbove",
    "PairTable",
    "ReconstructedWithin",
    "Split",
    "TrueBitKept",
    "check_count_level",
    "check_pair",
    "given_noise",
    "leak_probability",
    "leak_probability_given_distance",
    "shared_dimensions",
    "shared_rule",
    "shared_weights",
    "split",
]
