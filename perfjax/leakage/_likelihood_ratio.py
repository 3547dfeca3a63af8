"""Leaked when a membership test on the release would find the user: log-likelihood ratio above a threshold."""

from collections.abc import Mapping
from typing import ClassVar

import equinox as eqx
from jaxtyping import Array, Float

from perfjax import _check
from perfjax._check import Numbers
from perfjax.leakage._base import AbstractLeakage

__all__ = ["LikelihoodRatioAbove"]


class LikelihoodRatioAbove(AbstractLeakage):
    r"""A user is leaked when Lambda > tau, Lambda = log(density of the release with their record / without it).

    The release o with record z is the mean mu_z of all n records plus N(0, gamma^2 / n I). Without z its mean is
    mu_z - (z - mu_z) / (n - 1), and its noise, by `outside`,

    - "shared": still has variance gamma^2 / n (the paper);
    - "recomputed": has variance gamma^2 / (n - 1), that of a release by n - 1 users (the published simulations).

    The two agree for n >= 1000 and gamma <= 5 (0.173 against 0.175) and differ for few users or much noise
    (n = 100, gamma = 20, tau = 0.02, d = 12: 0.120 against 0.278).

    Of a count, every user is one of n, and without them it is n - 1: Lambda is the same for all, before clipping
    N(mu^2 / 2, mu^2) with mu as in `count_privacy.edge_mu`. Its noise does not depend on n: `outside` plays no role.

    Attributes:
        threshold: tau, in nats, above 0.
        outside: "shared" or "recomputed".

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility", section 4.2, equation 8; "recomputed"
        is what its simulations do and its text does not say.
    """

    meaning: ClassVar[Mapping[str, tuple[str, str]]] = {"threshold": ("τ", "nats")}

    threshold: Float[Array, "..."]
    outside: str = eqx.field(static=True)

    def __init__(self, threshold: Numbers, *, outside: str = "shared"):
        self.threshold = _check.in_range(
            _check.as_float(threshold, "threshold"), "threshold", 0, open_low=True, open_high=True
        )
        self.outside = _check.as_choice(outside, "outside", ("shared", "recomputed"))
