"""Why a bound is infinite: codes with a sentence each, never an exception."""

import enum

__all__ = ["Reason"]


class Reason(enum.IntEnum):
    """Whether the target of a bound is identified, and if not, why; of several that hold, the first counts.

    `LABEL_SYMMETRY` is never among the codes of a bound: it can accompany a finite one. See `label_identified`.
    """

    IDENTIFIED = 0
    INFEASIBLE_BUDGET = 1
    NOT_RELEASED = 2
    IN_NUISANCE_SPAN = 3
    TOO_FEW_RELEASES = 4
    COLLISION = 5
    RANK_DEFICIENT = 6
    LABEL_SYMMETRY = 7

    @property
    def meaning(self) -> str:
        return _MEANING[self]


_MEANING = {
    Reason.IDENTIFIED: "The target is identified.",
    Reason.INFEASIBLE_BUDGET: "No finite noise meets the budget under this accountant.",
    Reason.NOT_RELEASED: "No release depends on the target.",
    Reason.IN_NUISANCE_SPAN: "Whatever the target does to the releases, the other records can do as well.",
    Reason.TOO_FEW_RELEASES: "There are fewer releases than records.",
    Reason.COLLISION: "Two records are equal, so that the releases cannot tell which way they part.",
    Reason.RANK_DEFICIENT: "The releases span fewer directions than there are records, as far as this precision tells.",
    Reason.LABEL_SYMMETRY: "Exchanging the target with another record leaves every release as it is.",
}
