"""Quantiles of the chi-square law, from scipy.special alone: scipy.stats takes most of a second to import."""

import scipy.special

__all__ = ["lower_quantile", "upper_quantile"]


def lower_quantile(probability, degrees: int):
    """x with P(chi2 <= x) = `probability`, accurate for a small one."""
    return 2 * scipy.special.gammaincinv(degrees / 2, probability)


def upper_quantile(probability, degrees: int):
    """x with P(chi2 > x) = `probability`, accurate for a small one."""
    return 2 * scipy.special.gammainccinv(degrees / 2, probability)
