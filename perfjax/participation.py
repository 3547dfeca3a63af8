"""Participation: who leaves, who recruits, and what becomes of the population."""

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfjax import _check
from perfjax._check import Numbers
from perfjax.leakage import Split

__all__ = ["FlowMoments", "Participation", "Rates"]


class Rates(NamedTuple):
    """What a user does after a release: leaves with one probability, recruits a new user with another."""

    leave: Float[Array, "..."]
    recruit: Float[Array, "..."]


class FlowMoments(NamedTuple):
    """Of leavers and joiners per user, given what users share: means, variances and covariance.

    The leaked count K of n users has mean n `leaked` and variance n `spread`; variances and the covariance are of the
    numbers of users, divided by n.
    """

    leavers: Float[Array, "..."]
    joiners: Float[Array, "..."]
    variance_leavers: Float[Array, "..."]
    variance_joiners: Float[Array, "..."]
    covariance: Float[Array, "..."]


class Participation(eqx.Module):
    r"""Who leaves and who recruits after a release.

    Four probabilities: a leaked user leaves with q and recruits one new user with r_leaked, a spared one (not leaked)
    leaves with q_spared and recruits with r. All do so independently: of K leaked among n users,
    Bin(K, q) + Bin(n - K, q_spared) leave and Bin(K, r_leaked) + Bin(n - K, r) join. Per user, the expected population
    is multiplied by

        C = 1 + r - q_spared - (q - q_spared + r - r_leaked) p,

    with p the probability of being leaked, and it then stays between `floor` and `cap`. The two published kinds are
    `recruiters="spared"`, in which r_leaked = 0, and `"everyone"` (the agnostic model), in which r_leaked = r; both
    have q_spared = 0, that is C = 1 + r - (q + r) p and C = 1 + r - q p.

    Attributes:
        leave: q, in [0, 1].
        recruit: r, in [0, 1].
        leave_spared: q_spared, in [0, 1]: attrition that leaks have no part in.
        recruit_leaked: r_leaked, in [0, 1]; 0 with `recruiters="everyone"`, where leaked users recruit with r.
        recruiters: "spared" or "everyone".
        floor: least population, in users, at least 0. At the floor derivatives are those of the floor: the population
            there depends on nothing else.
        cap: greatest population, in users, at least `floor` and 1. At the cap derivatives are those of the cap.

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility", Algorithm 1, equations 4 and 13, and
        appendix B (everyone). The rates `leave_spared` and `recruit_leaked` are ours.
    """

    meaning: ClassVar[Mapping[str, tuple[str, str]]] = {
        "leave": ("q", "1"),
        "recruit": ("r", "1"),
        "leave_spared": ("q_spared", "1"),
        "recruit_leaked": ("r_leaked", "1"),
        "floor": ("floor", "users"),
        "cap": ("cap", "users"),
    }

    leave: Float[Array, "..."]
    recruit: Float[Array, "..."]
    leave_spared: Float[Array, "..."]
    recruit_leaked: Float[Array, "..."]
    floor: Float[Array, "..."]
    cap: Float[Array, "..."]
    recruiters: str = eqx.field(static=True)

    def __init__(
        self,
        leave: Numbers,
        recruit: Numbers,
        *,
        recruiters: str = "spared",
        leave_spared: Numbers = 0.0,
        recruit_leaked: Numbers = 0.0,
        floor: Numbers = 1.0,
        cap: Numbers = 20_000.0,
    ):
        rates = {"leave": leave, "recruit": recruit, "leave_spared": leave_spared, "recruit_leaked": recruit_leaked}
        for name, rate in rates.items():
            setattr(self, name, _check.in_range(_check.as_float(rate, name), name, 0, 1))
        self.floor = _check.in_range(_check.as_float(floor, "floor"), "floor", 0)
        self.cap = _check.in_range(_check.as_float(cap, "cap"), "cap", 1)
        self.recruiters = _check.as_choice(recruiters, "recruiters", ("spared", "everyone"))
        if self._everyone:
            self.recruit_leaked = _zero(self.recruit_leaked)
        if _check.is_known(self.floor, self.cap) and np.any(np.asarray(self.floor) > np.asarray(self.cap)):
            raise _check.fail("floor", f"be at most `cap` ({np.min(self.cap):g})", self.floor)

    @property
    def collapse_population(self) -> Float[Array, "..."]:
        """max(floor, 1), in users: a run with so many or fewer has collapsed."""
        return jnp.maximum(self.floor, 1)

    @property
    def _everyone(self) -> bool:
        return self.recruiters == "everyone"

    @property
    def leaked(self) -> Rates:
        """What leaked users do."""
        return Rates(self.leave, self.recruit if self._everyone else self.recruit_leaked)

    @property
    def spared(self) -> Rates:
        """What users who were not leaked do."""
        return Rates(self.leave_spared, self.recruit)

    @property
    def net(self) -> Rates:
        """The rates of spared recruiters, without background, that give the same growth: q - r_leaked and r - q_spared.

        They are what theorems about the published kinds take, and lie in [0, 1]: leave is 0 where leaks do no harm, and
        where spared users leave faster than they recruit, which no noise mends, the rates are 1 and 0.
        """
        harmless, shrinks = self.leave <= self.leaked.recruit, self.recruit < self.leave_spared
        leave = jnp.where(shrinks, 1, jnp.where(harmless, 0, self.leave - self.leaked.recruit))
        return Rates(leave, jnp.where(shrinks, 0, self.recruit - self.leave_spared))

    def recruiting(self, leaked: Float[Array, "..."], spared: Float[Array, "..."]) -> Float[Array, "..."]:
        """Of so many users, or such shares of them, those who recruit with probability `recruit`."""
        return leaked + spared if self._everyone else spared

    @property
    def _loss(self):
        """How much more a user contributes to the next population when spared: q - q_spared + r - r_leaked."""
        return (self.leave - self.leave_spared) + (self.recruit - self.leaked.recruit)

    def growth(self, split: Split) -> Float[Array, "..."]:
        """C, the expected factor by which one release multiplies the population before floor and cap."""
        # In terms of 1 - p: at leave = 1 it is C itself, which 1 + r - (q + r) p loses to cancellation.
        return 1 - self.leave + self.leaked.recruit + self._loss * split.spared

    def growth_and_spread(
        self, leaked: Float[Array, "..."], spared: Float[Array, "..."], spread: Float[Array, "..."]
    ) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """Mean and variance of the next population, both divided by n, before floor and cap.

        Args:
            leaked: E[K] / n for K leaked of n users, given what they share.
            spared: 1 - `leaked`.
            spread: Var(K) / n.
        """
        own = self._own(leaked, spared)
        return self.growth(Split(leaked, spared)), own[0] + own[1] + self._loss**2 * spread

    def flow_moments(
        self, leaked: Float[Array, "..."], spared: Float[Array, "..."], spread: Float[Array, "..."]
    ) -> FlowMoments:
        """The same of leavers and joiners apart."""
        by_leak, of_joiners = self.leave - self.leave_spared, self.leaked.recruit - self.recruit
        own_leavers, own_joiners = self._own(leaked, spared)
        return FlowMoments(
            self.leave * leaked + self.leave_spared * spared,
            self.leaked.recruit * leaked + self.recruit * spared,
            own_leavers + by_leak**2 * spread,
            own_joiners + of_joiners**2 * spread,
            by_leak * of_joiners * spread,
        )

    def _own(self, leaked, spared):
        """Variances per user of leavers and joiners among a given number of leaked users."""
        everyone = jnp.ones_like(spared) if self._everyone else spared
        leavers = self.leave * (1 - self.leave) * leaked + self.leave_spared * (1 - self.leave_spared) * spared
        more = self.recruit_leaked * (1 - self.recruit_leaked) * leaked
        return leavers, self.recruit * (1 - self.recruit) * everyone + more

    def bounded(self, population: Float[Array, "..."]) -> Float[Array, "..."]:
        """`population` between floor and cap."""
        # Not jnp.clip: at a tie it returns half a derivative, which is the derivative of neither side.
        # Never infinite: in reverse mode, 0 times the population would be NaN.
        cap = jnp.minimum(self.cap, jnp.finfo(self.cap.dtype).max)
        capped = jnp.where(population < cap, population, cap)
        return jnp.where(capped > self.floor, capped, self.floor)

    def expected_next(self, population: Float[Array, "..."], split: Split) -> Float[Array, "..."]:
        """The expected population after a release, within floor and cap (mean field)."""
        return self.bounded(population * self.growth(split))


def _zero(recruit_leaked):
    """`recruit_leaked`, which must be 0 where everyone recruits alike."""
    requirement = 'be 0 with recruiters "everyone", who recruit with `recruit` whether leaked or not'
    if not _check.is_known(recruit_leaked):
        return eqx.error_if(recruit_leaked, recruit_leaked != 0, f"Argument `recruit_leaked` must {requirement}.")
    if np.any(np.asarray(recruit_leaked) != 0):
        raise _check.fail("recruit_leaked", requirement, recruit_leaked)
    return recruit_leaked
