"""What every release of counts offers."""

import abc

import equinox as eqx
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from perfjax._check import Numbers
from perfjax.count_privacy._exact import Arithmetic

__all__ = ["AbstractCountRelease", "log_bounds", "relative_margin"]


class AbstractCountRelease(eqx.Module):
    """A noisy release of a count n, whose privacy budget falls with n. Everything acts elementwise on arrays of counts.

    Attributes:
        exactly_gaussian: whether an edge is exactly as private as a normal shift, mu-Gaussian DP with mu^2 / 2 = v; the
            (epsilon, delta) profile is then exact, and otherwise only what zCDP implies.
        noise: "normal" or "airy".
    """

    exactly_gaussian: eqx.AbstractClassVar[bool]
    noise: eqx.AbstractClassVar[str]

    @abc.abstractmethod
    def error(self, count: Numbers) -> Float[Array, "..."]:
        """E|released - n|, in counts, clipping included."""

    @abc.abstractmethod
    def budget(self, count: Numbers) -> Float[Array, "..."]:
        """v(n), the zCDP budget of one member (add-remove), at all orders and in both directions; v(0) = v(1).

        A function of the private count: who publishes it reveals n.
        """

    @abc.abstractmethod
    def released(self, count: ArrayLike, normal: ArrayLike) -> Float[Array, "..."]:
        """The release that a standard normal number makes of a count, before rounding; at least 0. For simulations."""

    @abc.abstractmethod
    def bounds(self, count: np.ndarray, noise: np.ndarray, arithmetic: Arithmetic) -> tuple[np.ndarray, np.ndarray]:
        """What the release that noise makes of a count, before rounding and clipping, lies between.

        Args:
            count: n, exactly.
            noise: x, off by at most slack (1 + |x|).
            arithmetic: what numbers are made of, and the slack.
        """


def log_bounds(
    count: np.ndarray, noise: np.ndarray, sigma: Array, shift: Array, drift: Array | None, arithmetic: Arithmetic
) -> tuple[np.ndarray, np.ndarray]:
    """`bounds` of (n + c) exp(sigma x - d) - c; d is sigma^2 if not given, exactly."""
    sigma, shift = arithmetic.number(float(sigma)), arithmetic.number(float(shift))
    drift = sigma * sigma if drift is None else arithmetic.number(float(drift))
    # Whatever the shift, e^2000 is too large to be told apart: a drift may ask for more than there are digits.
    middle = (count + shift) * np.exp(np.minimum(sigma * noise - drift, arithmetic.number(2000.0)))
    margin = middle * relative_margin(sigma * (1 + abs(noise)) + abs(drift), arithmetic)
    rounding = arithmetic.slack * (1 + shift)
    return middle - margin - shift - rounding, middle + margin - shift + rounding


def relative_margin(size: np.ndarray, arithmetic: Arithmetic) -> np.ndarray:
    """How far off, relatively, the exponential of a sum may be whose terms have errors of slack times `size` in all."""
    off = arithmetic.slack * (2 + size)
    # So large only where the exponential is 0 or beyond all bounds at either end.
    return np.exp(np.minimum(off, arithmetic.number(100.0))) - 1 + arithmetic.slack
