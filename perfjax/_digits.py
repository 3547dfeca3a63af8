"""How many digits of a number are worth a look."""

import math

__all__ = ["telling_digits"]

LEAST, MOST = 4, 15


def telling_digits(low: float, high: float) -> int:
    """As many significant digits as tell the ends of an interval apart."""
    if not 0 < high - low < math.inf:
        return LEAST
    return min(max(LEAST, 2 + math.ceil(math.log10(max(abs(low), abs(high)) / (high - low)))), MOST)
