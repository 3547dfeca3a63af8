"""Tables of the Airy noise: piecewise quintics through values and two derivatives, made once, in float64, by SciPy."""

import functools
import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array, Float

from perfjax.count_privacy.fisher import AIRY_SLOPE_ZERO

__all__ = [
    "REACH",
    "SUPPORT",
    "VARIANCE",
    "Table",
    "budget_table",
    "density_table",
    "entropy",
    "interpolated",
    "quantile_table",
    "slope_table",
]

REACH = 72.0  # where the density is below the least float64
SUPPORT = 14.0  # beyond, the mass is 1e-31
INFORMATION = 4 * AIRY_SLOPE_ZERO / 3
VARIANCE = 8 * AIRY_SLOPE_ZERO**2 / 15 + 1 / (5 * AIRY_SLOPE_ZERO)
LOG_NORM = math.log(2 * AIRY_SLOPE_ZERO * scipy.special.airy(-AIRY_SLOPE_ZERO)[0] ** 2)
PANEL, HALF_WEIGHT = np.polynomial.legendre.leggauss(80)
FEW, FEW_WEIGHT = np.polynomial.legendre.leggauss(16)


class Table(NamedTuple):
    """Value and two derivatives (times the step and its square) at knots 0, step, 2 step, ..."""

    step: float
    value: np.ndarray
    slope: np.ndarray
    curvature: np.ndarray


def _table(step: float, value, slope, curvature) -> Table:
    return Table(step, value, slope * step, curvature * step**2)


def interpolated(table: Table, x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The quintic between the two knots about x, which lies within the table."""
    place = x / table.step
    left = jnp.clip(jnp.floor(place).astype(jnp.int32), 0, len(table.value) - 2)
    t = place - left.astype(x.dtype)
    knots = [jnp.asarray(column, x.dtype) for column in table[1:]]
    (a, da, dda), (b, db, ddb) = ([column[index] for column in knots] for index in (left, left + 1))
    rise = b - a - da - dda / 2
    tilt = db - da - dda
    bend = ddb - dda
    cubic = 10 * rise - 4 * tilt + bend / 2
    quartic = -15 * rise + 7 * tilt - bend
    quintic = 6 * rise - 3 * tilt + bend / 2
    return a + t * (da + t * (dda / 2 + t * (cubic + t * (quartic + t * quintic))))


def log_density(x: np.ndarray) -> np.ndarray:
    """log g at x >= 0."""
    z = x - AIRY_SLOPE_ZERO
    scaled = scipy.special.airye(np.maximum(z, 0))[0]
    below = scipy.special.airy(np.minimum(z, 0))[0]
    log_airy = np.where(z >= 0, np.log(scaled) - 2 / 3 * np.maximum(z, 0) ** 1.5, np.log(below))
    return 2 * log_airy - LOG_NORM


def slope(x: np.ndarray) -> np.ndarray:
    """w = -Ai'/Ai at x >= 0, half of the score: w' = w^2 + a' - x, w(0) = 0."""
    z = x - AIRY_SLOPE_ZERO
    scaled, below = scipy.special.airye(np.maximum(z, 0)), scipy.special.airy(np.minimum(z, 0))
    return -np.where(z >= 0, scaled[1] / scaled[0], below[1] / below[0])


def _steepening(x):
    return slope(x) ** 2 + AIRY_SLOPE_ZERO - x


@functools.cache
def density_table() -> Table:
    """log g on [0, REACH]."""
    x = np.arange(0, REACH + 0.04, 1 / 32)
    return _table(1 / 32, log_density(x), -2 * slope(x), -2 * _steepening(x))


@functools.cache
def slope_table() -> Table:
    """log w' on [0, REACH]; it goes with P(X > x) = g(x) w'(x)."""
    x = np.arange(0, REACH + 0.04, 1 / 32)
    w, dw = slope(x), _steepening(x)
    ddw = 2 * w * dw - 1
    dddw = 2 * dw**2 + 2 * w * ddw
    return _table(1 / 32, np.log(dw), ddw / dw, dddw / dw - (ddw / dw) ** 2)


@functools.cache
def quantile_table() -> Table:
    """The x with P(X > x) = P(Z > z), for z in [0, 9], Z a standard normal number."""
    z = np.arange(0, 9 + 0.1, 1 / 16)
    target = scipy.special.log_ndtr(-z)
    x = (3 * z**2 / 8) ** (2 / 3) + 2.0  # to the right of the root, from where Newton's method on log P does not jump
    for _ in range(40):
        tail = log_density(x) + np.log(_steepening(x))
        x = np.maximum(x + (tail - target) * _steepening(x), 0)
    x[0] = 0.0
    first = np.exp(-(z**2) / 2 - math.log(2 * math.pi) / 2 - log_density(x))
    return _table(1 / 16, x, first, first * (2 * slope(x) * first - z))


@functools.cache
def budget_table() -> Table:
    """log(KL(s) sqrt(1 + s) / s^2) over log(1 + s), for shifts s up to 1e5: smooth at both ends."""
    place = np.arange(0, 12, 1 / 32)
    s = np.expm1(place)
    budget, first, second = (np.array([_divergence(shift, order) for shift in s[1:]]) for order in (0, 1, 2))
    s_ = s[1:]
    value = np.log(budget) - 2 * np.log(s_) + np.log1p(s_) / 2
    slope_ = first / budget - 2 / s_ + 0.5 / (1 + s_)
    curvature = second / budget - (first / budget) ** 2 + 2 / s_**2 - 0.5 / (1 + s_) ** 2
    at_zero = math.log(INFORMATION / 2), 0.5, _fourth() / (6 * INFORMATION) - 0.5
    value, slope_, curvature = (np.append(x0, x) for x0, x in zip(at_zero, (value, slope_, curvature), strict=True))
    return _table(1 / 32, value, slope_ * (1 + s), slope_ * (1 + s) + curvature * (1 + s) ** 2)


def _divergence(shift: float, order: int) -> float:
    """KL(s) = E[V(X + s) - V(X)], or one of its first two derivatives."""
    if order == 2:
        return _expected(lambda y: 2 * _steepening(np.abs(y)), shift)
    if shift < 0.5:  # as an integral of the second derivative: the difference of two V would cancel
        t, weight = (FEW + 1) / 2, FEW_WEIGHT / 2
        curvature = np.array([_divergence(shift * x, 2) for x in t])
        return float(np.sum(weight * (curvature if order else (1 - t) * shift * curvature)) * shift)
    if order == 1:
        return _expected(lambda y: 2 * np.sign(y) * slope(np.abs(y)), shift)
    return _expected(lambda y: -log_density(np.abs(y)), shift) - _expected(lambda y: -log_density(np.abs(y)), 0.0)


def _expected(function, shift: float) -> float:
    """E[function(X + s)], split where either factor has a kink."""
    cut = -min(shift, SUPPORT)
    total = 0.0
    for low, high in ((-SUPPORT, cut), (cut, 0.0), (0.0, SUPPORT)):
        half = (high - low) / 2
        x = low + half * (PANEL + 1)
        total += half * float(np.sum(HALF_WEIGHT * np.exp(log_density(np.abs(x))) * function(x + shift)))
    return total


@functools.cache
def entropy() -> float:
    """-E[log g(X)], the differential entropy of the noise, in nats."""
    return _expected(lambda x: -log_density(np.abs(x)), 0.0)


def _fourth() -> float:
    """The fourth derivative of KL at 0, E[V' V''']."""
    x = SUPPORT * (PANEL + 1) / 2
    w, dw = slope(x), _steepening(x)
    return float(SUPPORT * np.sum(HALF_WEIGHT * np.exp(log_density(x)) * 4 * w * (2 * w * dw - 1)))
