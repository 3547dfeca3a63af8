"""What every release of counts offers."""

import abc

import equinox as eqx
from jaxtyping import Array, Float

__all__ = ["AbstractCountRelease"]


class AbstractCountRelease(eqx.Module):
    """A noisy release of a count n, whose privacy budget falls with n. Everything acts elementwise on arrays of counts.

    Attributes:
        exactly_gaussian: whether an edge is exactly as private as a normal shift, mu-Gaussian DP with mu^2 / 2 = v; the
            (epsilon, delta) profile is then exact, and otherwise only what zCDP implies.
    """

    exactly_gaussian: eqx.AbstractClassVar[bool]

    @abc.abstractmethod
    def error(self, count: Float[Array, "..."]) -> Float[Array, "..."]:
        """E|released - n|, in counts, clipping included."""

    @abc.abstractmethod
    def budget(self, count: Float[Array, "..."]) -> Float[Array, "..."]:
        """v(n), the zCDP budget of one member (add-remove), at all orders and in both directions; v(0) = v(1).

        A function of the private count: who publishes it reveals n.
        """

    @abc.abstractmethod
    def released(self, count: Float[Array, "..."], normal: Float[Array, "..."]) -> Float[Array, "..."]:
        """The release that a standard normal number makes of a count, before rounding; at least 0."""
