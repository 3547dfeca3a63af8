"""What perfjax knows of each pair of a mechanism and a leakage rule: one file per pair, found by the types of both.

The classes are here to be inherited from; what they know is asked for by the functions of `perfjax.leakage`.
"""

from perfjax.leakage.pairs import blocks as blocks
from perfjax.leakage.pairs._count_likelihood_ratio import (
    ShiftedLogCountLikelihoodRatio as ShiftedLogCountLikelihoodRatio,
)
from perfjax.leakage.pairs._mean_likelihood_ratio import GaussianMeanLikelihoodRatio as GaussianMeanLikelihoodRatio
from perfjax.leakage.pairs._mean_reconstructed import GaussianMeanReconstructed as GaussianMeanReconstructed
from perfjax.leakage.pairs._response_true_bit import RandomizedResponseTrueBit as RandomizedResponseTrueBit

__all__ = [
    "GaussianMeanLikelihoodRatio",
    "GaussianMeanReconstructed",
    "RandomizedResponseTrueBit",
    "ShiftedLogCountLikelihoodRatio",
    "blocks",
]
