"""Whole numbers drawn exactly from their probabilities, with bits of the operating system's randomness.

Floating-point noise has gaps, and where they lie depends on the count: an output that n can reach and n - 1 can't gives
n away, whatever the budget. Here nothing is rounded. A uniform number is a string of fair bits, of which only the
leading ones are drawn. What follows from it is computed for both ends of the interval in which it lies: in float64,
with margins thousands of times its rounding errors, and where the ends disagree, with more bits, in decimals, whose
exponentials are correctly rounded, until they agree. So the result is that of real numbers.

Noise comes by rejection. Of |x| the half-line has cells of width 5/4, of which the j-th is tried with probability
2^-(j + 1), and a point of it is kept with probability 2^j g(x) / g(0): at most 1 for normal and for Airy noise.

Source: lazily drawn bits, von Neumann, and Karney, "Sampling exactly from the normal distribution", 2016.
"""

import contextlib
import decimal
import functools
import math
from collections.abc import Callable, Generator
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import scipy.special

from perfjax.count_privacy import _exact_airy
from perfjax.count_privacy.fisher import AIRY_SLOPE_ZERO

__all__ = ["FLOATS", "LARGEST", "SHARES", "Arithmetic", "Source", "whole_numbers"]

Source = Callable[[int], bytes]
"""So many random bytes."""

LARGEST = 2**62
"""What is above is released as this, which costs no privacy."""

HEAD = 52  # bits of a uniform number that are drawn at first
WIDTH = 5, 4  # of a cell, a fraction
CHUNK = 2**17  # counts at a time, a few times 10 MB
DIGITS = 40  # at first, where float64 does not decide


class Arithmetic(NamedTuple):
    """What numbers are made of, and how exact they are.

    Attributes:
        number: a float, exactly, as such a number.
        slack: every number x that is drawn or computed is off by at most slack (1 + |x|), where it is not said by more.
        digits: carried; None for float64.
    """

    number: Callable[[float], Any]
    slack: Any
    digits: int | None = None

    def whole(self, x: np.ndarray) -> np.ndarray:
        """Integers as such numbers, or as Python integers, which mix with them."""
        return x.astype(float) if self.digits is None else x.astype(object)


FLOATS = Arithmetic(float, 2.0**-40)


@contextlib.contextmanager
def _decimals(digits: int) -> Generator[Arithmetic]:
    # Not a copy of the current context, which is the caller's and may round or trap in other ways.
    context = decimal.Context(
        digits,
        decimal.ROUND_HALF_EVEN,
        decimal.MIN_EMIN,
        decimal.MAX_EMAX,
        traps=[decimal.InvalidOperation, decimal.DivisionByZero],
    )
    with decimal.localcontext(context):
        yield Arithmetic(Decimal, Decimal(10) ** (6 - digits), digits)


def _words(size: int, source: Source) -> np.ndarray:
    return np.frombuffer(source(8 * size), np.uint64)


class _Uniforms:
    """Uniform numbers in [0, 1), of each of which more bits are drawn as they are needed, and kept."""

    def __init__(self, head: np.ndarray, source: Source):
        self.head, self.source = head, source
        self.longer: dict[int, tuple[int, int]] = {}

    def take(self, rows: np.ndarray, other: "_Uniforms", others: np.ndarray) -> None:
        """Replace the numbers in `rows` by those of `other` in `others`, with all bits that are known of them."""
        self.head[rows] = other.head[others]
        if other.longer:
            both = zip(rows.tolist(), others.tolist(), strict=True)
            self.longer |= {row: other.longer[k] for row, k in both if k in other.longer}

    def values(self, rows: np.ndarray, arithmetic: Arithmetic) -> np.ndarray:
        """Each number, or what lies below it by no more than the slack."""
        if arithmetic.digits is None:
            return self.head[rows] * 2.0**-HEAD
        found = np.empty(rows.size, object)
        found[:] = [self._decimal(row, math.ceil(arithmetic.digits * math.log2(10))) for row in rows.tolist()]
        return found

    def _decimal(self, row: int, wanted: int) -> Decimal:
        bits, known = self.longer.get(row, (int(self.head[row]), HEAD))
        more = max(0, -(-(wanted - known) // 8))
        bits, known = bits << 8 * more | int.from_bytes(self.source(more), "big"), known + 8 * more
        self.longer[row] = bits, known
        return Decimal(bits) / Decimal(2**known)


def _uniforms(size: int, source: Source) -> _Uniforms:
    return _Uniforms(_words(size, source) >> np.uint64(64 - HEAD), source)


def _geometric(size: int, source: Source) -> np.ndarray:
    """How often a fair coin shows tails before it shows heads."""
    tails, rows = np.zeros(size, np.int64), np.arange(size)
    while rows.size:
        words = _words(rows.size, source)
        tails[rows] += np.bitwise_count((words & -words) - np.uint64(1))
        rows = rows[words == 0]
    return tails


class _Noise(NamedTuple):
    """Signed numbers: sign times the width of a cell times (cell + where in it)."""

    sign: np.ndarray
    cell: np.ndarray
    inside: _Uniforms

    def values(self, rows: np.ndarray, arithmetic: Arithmetic) -> np.ndarray:
        size = arithmetic.whole(self.cell[rows]) + self.inside.values(rows, arithmetic)
        return arithmetic.whole(self.sign[rows]) * size * WIDTH[0] / WIDTH[1]


def _normal_share(x, cell, arithmetic):
    return np.exp(-x * x / 2) * arithmetic.number(2.0) ** cell


def _airy_share(x, cell, arithmetic):
    if arithmetic.digits is None:
        relative = scipy.special.airy(x - AIRY_SLOPE_ZERO)[0] / scipy.special.airy(-AIRY_SLOPE_ZERO)[0]
    else:
        relative = np.frompyfunc(_exact_airy.relative, 1, 1)(x)
    return relative**2 * arithmetic.number(2.0) ** cell


SHARES = {"normal": _normal_share, "airy": _airy_share}
"""Of points at x >= 0 in the j-th cell, which are kept: 2^j g(x) / g(0)."""


def whole_numbers(mechanism: Any, counts: np.ndarray, source: Source) -> np.ndarray:
    """A release of each count, rounded up with a probability of what lies above the whole number below.

    Args:
        mechanism: an `AbstractCountRelease`.
        counts: of dtype int64, from 0 to 2^53.
        source: of randomness.

    Returns:
        Whole numbers from 0 to `LARGEST`, of dtype int64.
    """
    released = np.empty(counts.size, np.int64)
    for start in range(0, counts.size, CHUNK):
        part = slice(start, start + CHUNK)
        released[part] = _whole_numbers(mechanism, counts.ravel()[part], source)
    return released.reshape(counts.shape)


def _whole_numbers(mechanism, counts, source):
    noise = _noise(SHARES[mechanism.noise], counts.size, source)
    rounding = _uniforms(counts.size, source)

    def ends(rows, arithmetic):
        bounds = mechanism.bounds(arithmetic.whole(counts[rows]), noise.values(rows, arithmetic), arithmetic)
        uniform = rounding.values(rows, arithmetic)
        for value, slack in zip(bounds, (-arithmetic.slack, arithmetic.slack), strict=True):
            value = np.clip(value, 0, LARGEST)
            yield np.clip(np.floor(value + uniform + slack * (2 + value)), 0, LARGEST)

    return _settled(ends, counts.size)


def _noise(share, size, source) -> _Noise:
    words = _words(size, source)
    noise = _Noise(
        np.where(words & np.uint64(1), 1, -1), np.zeros(size, np.int64), _Uniforms(np.zeros(size, np.uint64), source)
    )
    rows = np.arange(size)
    while rows.size:
        cell = _geometric(rows.size, source)
        trial = _Noise(np.ones_like(cell), cell, _uniforms(rows.size, source))
        kept = _settled(functools.partial(_kept, share, trial, _uniforms(rows.size, source)), rows.size).astype(bool)
        noise.cell[rows[kept]] = cell[kept]
        noise.inside.take(rows[kept], trial.inside, np.flatnonzero(kept))
        rows = rows[~kept]
    return noise


def _kept(share, trial, test, rows, arithmetic):
    x, uniform = trial.values(rows, arithmetic), test.values(rows, arithmetic)
    height = share(x, arithmetic.whole(trial.cell[rows]), arithmetic)
    # The score of either noise at x is below 2 (1 + x), and x is off by slack (1 + x).
    margin = arithmetic.slack * (4 * (1 + x) ** 2 * height + 2)
    return uniform < height - margin, uniform < height + margin


def _settled(ends, size: int) -> np.ndarray:
    """The answers in which both `ends` agree, of dtype int64: in float64, and for the rest in ever more digits."""
    rows = np.arange(size)
    with np.errstate(all="ignore"):
        low, high = ends(rows, FLOATS)
        agree = low == high
    answers, digits = np.where(agree, low, 0).astype(np.int64), DIGITS
    while not np.all(agree):
        rows = rows[~agree]
        with _decimals(digits) as arithmetic:
            low, high = ends(rows, arithmetic)
            agree = low == high
        answers[rows[agree]] = low[agree].astype(np.int64)
        digits *= 2
    return answers
