"""Participation: who leaves, who recruits, and what becomes of the population."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfjax import _check
from perfjax._check import Numbers
from perfjax.leakage import Split

__all__ = ["Participation"]


class Participation(eqx.Module):
    r"""Who leaves and who recruits after a release.

    A leaked user leaves with probability q. With `recruiters="spared"`, every user that was not leaked recruits one new
    user with probability r; with `"everyone"` (the agnostic model), every user does. Per user, the expected population
    is multiplied by

        C = 1 + r - (q + r) p   (spared),        C = 1 + r - q p   (everyone),

    with p the probability of being leaked, and it then stays between `floor` and `cap`.

    Attributes:
        leave: q, in [0, 1].
        recruit: r, in [0, 1].
        recruiters: "spared" or "everyone".
        floor: least population, in users, at least 0. At the floor derivatives are those of the floor: the population
            there depends on nothing else.
        cap: greatest population, in users, at least `floor` and 1. At the cap derivatives are those of the cap.

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility", Algorithm 1, equations 4 and 13, and
        appendix B (everyone).
    """

    leave: Float[Array, "..."]
    recruit: Float[Array, "..."]
    floor: Float[Array, "..."]
    cap: Float[Array, "..."]
    recruiters: str = eqx.field(static=True)

    def __init__(
        self,
        leave: Numbers,
        recruit: Numbers,
        *,
        recruiters: str = "spared",
        floor: Numbers = 1.0,
        cap: Numbers = 20_000.0,
    ):
        self.leave = _check.in_range(_check.as_float(leave, "leave"), "leave", 0, 1)
        self.recruit = _check.in_range(_check.as_float(recruit, "recruit"), "recruit", 0, 1)
        self.floor = _check.in_range(_check.as_float(floor, "floor"), "floor", 0)
        self.cap = _check.in_range(_check.as_float(cap, "cap"), "cap", 1)
        self.recruiters = _check.as_choice(recruiters, "recruiters", ("spared", "everyone"))
        if _check.is_known(self.floor, self.cap) and np.any(np.asarray(self.floor) > np.asarray(self.cap)):
            raise _check.fail("floor", f"be at most `cap` ({np.min(self.cap):g})", self.floor)

    @property
    def collapse_population(self) -> Float[Array, "..."]:
        """max(floor, 1), in users: a run with so many or fewer has collapsed."""
        return jnp.maximum(self.floor, 1)

    def growth(self, split: Split) -> Float[Array, "..."]:
        """C, the expected factor by which one release multiplies the population before floor and cap."""
        # In terms of 1 - p: at leave = 1 it is C itself, which 1 + r - (q + r) p loses to cancellation.
        gain = self.leave + self.recruit if self.recruiters == "spared" else self.leave
        base = 1 - self.leave if self.recruiters == "spared" else 1 - self.leave + self.recruit
        return base + gain * split.kept

    def bounded(self, population: Float[Array, "..."]) -> Float[Array, "..."]:
        """`population` between floor and cap."""
        # Not jnp.clip: at a tie it returns half a derivative, which is the derivative of neither side.
        capped = jnp.where(population < self.cap, population, self.cap)
        return jnp.where(capped > self.floor, capped, self.floor)

    def expected_next(self, population: Float[Array, "..."], split: Split) -> Float[Array, "..."]:
        """The expected population after a release, within floor and cap (mean field)."""
        return self.bounded(population * self.growth(split))
