"""Ai(x - a') / Ai(-a') in decimals of the current context, a' = 1.01879 the first zero of Ai' in absolute value.

By the two series of Airy's equation, f = 1 + z^3 / 6 + ... and g = z + z^4 / 12 + ..., of which Ai is a multiple of
f - k g; k is the limit of f / g at infinity.
"""

import decimal
import functools
import math
from decimal import Decimal

__all__ = ["relative"]

STEP = 50  # constants are computed to multiples of so many digits, to be found again


def relative(x: Decimal) -> Decimal:
    """Ai(x - a') / Ai(-a') for x >= 0, with an error of a few units in the context's last place (absolute)."""
    wanted = decimal.getcontext().prec
    # f and g grow as Ai falls: both of these powers of e are lost where they cancel.
    lost = math.ceil(4 / 3 * float(x) ** 1.5 / math.log(10)) + 10
    with decimal.localcontext() as context:
        context.prec = digits = -(-(wanted + lost) // STEP) * STEP
        ratio, zero, top = _constants(digits)
        found = _difference(x - zero, ratio) / top
    return +found


@functools.lru_cache(maxsize=64)
def _constants(digits: int) -> tuple[Decimal, Decimal, Decimal]:
    """k, a' and f - k g at -a'."""
    with decimal.localcontext() as context:
        context.prec = digits + 10
        # f / g differs from k by exp(-4/3 z^1.5), relatively.
        far = Decimal(math.ceil((1.75 * digits + 20) ** (2 / 3)))
        ratio = _series(1, far, 2, 3) / _series(far, far, 3, 4)
        z = Decimal("-1.018792971647471")
        for _ in range(digits.bit_length()):  # Newton's method doubles 15 digits each time; Ai'' = z Ai
            slope = _series(z * z / 2, z, 3, 5) - ratio * _series(1, z, 1, 3)
            z -= slope / (z * _difference(z, ratio))
        return ratio, -z, _difference(z, ratio)


def _difference(z: Decimal, ratio: Decimal) -> Decimal:
    return _series(1, z, 2, 3) - ratio * _series(z, z, 3, 4)


def _series(first: Decimal | int, z: Decimal, a: int, b: int) -> Decimal:
    """The sum of terms of which each is z^3 / ((3 k + a) (3 k + b)) times the one before, k = 0, 1, ..."""
    cube, smallest = z**3, Decimal(10) ** -(decimal.getcontext().prec + 5)
    total = term = Decimal(first)
    k = 0
    while abs(term) > smallest:
        term *= cube / ((3 * k + a) * (3 * k + b))
        total += term
        k += 1
    return total
