"""What is known about a parameter before the counts are seen."""

import abc
import math
import re
from collections.abc import Mapping

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from perfjax import _check
from perfjax._check import Numbers
from perfjax.calibration._parameters import PARAMETERS

__all__ = ["AbstractPrior", "Beta", "LogNormal", "as_priors", "parse_prior"]


class AbstractPrior(eqx.Module):
    """A density on the unconstrained scale: log odds of a probability, log of a positive number."""

    kind: eqx.AbstractClassVar[str]

    @property
    @abc.abstractmethod
    def is_flat(self) -> bool:
        """Whether it says nothing."""

    @abc.abstractmethod
    def log_density(self, place: Float[Array, ""]) -> Float[Array, ""]:
        """Up to a constant, at a place on the unconstrained scale."""


class Beta(AbstractPrior):
    """Beta(a, b) of a probability q: as much as a of a + b people having done it.

    On log odds its density is q^a (1 - q)^b up to a constant, with the mode at the mean a / (a + b), whatever a and b.

    Attributes:
        a: above 0, finite.
        b: above 0, finite.

    Raises:
        ValueError: if one of them is not, or no number.

    Source: ours.

    Example:
        >>> prior = Beta(2, 16)
        >>> print(prior.log_density(0.0) < prior.log_density(-2.0))
        True
    """

    a: Float[Array, "..."]
    b: Float[Array, "..."]
    kind = "probability"

    def __init__(self, a: Numbers, b: Numbers):
        self.a, self.b = (_check.in_range(x, n, 0, open_low=True, open_high=True) for n, x in _scalars(a=a, b=b))

    @property
    def is_flat(self) -> bool:
        """Whether it says nothing."""
        return not bool(jnp.any(self.a + self.b > 0))

    def log_density(self, place: Float[Array, ""]) -> Float[Array, ""]:
        """a log q + b log(1 - q), at log odds of q."""
        return -self.a * jnp.logaddexp(0, -place) - self.b * jnp.logaddexp(0, place)


class LogNormal(AbstractPrior):
    """A positive number whose logarithm is N(log median, spread^2).

    Attributes:
        median: in the unit of the number, above 0, finite.
        spread: standard deviation of the logarithm, above 0, finite.

    Raises:
        ValueError: if one of them is not, or no number.

    Source: ours.

    Example:
        >>> print(LogNormal(0.02, 1.0).log_density(jnp.log(0.02)))
        -0.0
    """

    median: Float[Array, "..."]
    spread: Float[Array, "..."]
    kind = "positive"

    def __init__(self, median: Numbers, spread: Numbers):
        self.median, self.spread = (
            _check.in_range(x, n, 0, open_low=True, open_high=True) for n, x in _scalars(median=median, spread=spread)
        )

    @property
    def is_flat(self) -> bool:
        """Whether it says nothing."""
        return not bool(jnp.any(jnp.isfinite(self.spread)))

    def log_density(self, place: Float[Array, ""]) -> Float[Array, ""]:
        """-(place - log median)^2 / (2 spread^2)."""
        return -(((place - jnp.log(self.median)) / self.spread) ** 2) / 2


def _scalars(**named):
    for (name, raw), value in zip(named.items(), _check.as_floats(**named), strict=True):
        if value.ndim:
            raise _check.fail(name, "be one number", raw)
        yield name, value


def as_priors(prior: Mapping[str, AbstractPrior] | None, free: tuple[str, ...]) -> tuple[AbstractPrior, ...]:
    """A prior for each free parameter, flat where none is given: so one compiled program serves with and without."""
    if prior is not None and not isinstance(prior, Mapping):
        what = 'be a mapping such as {"leave": Beta(2, 16)}'
        raise _check.fail("prior", what, f"of type {type(prior).__name__}")
    prior = {} if prior is None else dict(prior)
    _check.check_known(prior, free, "parameter in `prior`")
    for name, one in prior.items():
        _check.as_kind(one, f"prior[{name}]", AbstractPrior)
        if one.kind != PARAMETERS[name].kind:
            wanted = {"probability": "a probability, as Beta is", "positive": "a positive number, as LogNormal is"}
            raise _check.fail(f"prior[{name}]", f"be for {wanted[PARAMETERS[name].kind]}", f"a {type(one).__name__}")
    zero, everywhere = jnp.asarray(0.0), jnp.asarray(jnp.inf)
    flat = {
        "probability": eqx.tree_at(lambda p: (p.a, p.b), Beta(1.0, 1.0), (zero, zero)),
        "positive": eqx.tree_at(lambda p: p.spread, LogNormal(1.0, 1.0), everywhere),
    }
    return tuple(prior.get(name, flat[PARAMETERS[name].kind]) for name in free)


def parse_prior(text: str) -> tuple[str, AbstractPrior]:
    """A parameter and its prior from words: "leave=beta(2,16)" or "threshold=lognormal(0.02,1)".

    Args:
        text: a parameter, and what is known about it.

    Returns:
        Its name, and the prior.

    Raises:
        ValueError: if the text reads otherwise, or a number is out of range.

    Source: ours.

    Example:
        >>> name, prior = parse_prior("leave=beta(2,16)")
        >>> print(name, prior.b)
        leave 16.0
    """
    made = re.fullmatch(r"\s*(\w+)\s*=\s*(beta|lognormal)\(\s*([^,()]+),\s*([^,()]+)\)\s*", text, re.IGNORECASE)
    try:
        numbers = [float(x) for x in made.groups()[2:]] if made else []
    except ValueError:
        numbers = []
    if made is None or len(numbers) != 2 or not all(map(math.isfinite, numbers)):
        raise _check.fail("prior", "read like leave=beta(2,16) or threshold=lognormal(0.02,1)", _check.quoted(text))
    _check.check_known([made[1]], tuple(PARAMETERS), "parameter in `prior`")
    kind = Beta if made[2].lower() == "beta" else LogNormal
    return made[1], kind(*numbers)
