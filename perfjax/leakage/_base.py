"""What a leakage rule is: parameters, and the words for what they mean."""

from collections.abc import Mapping
from typing import ClassVar

import equinox as eqx

__all__ = ["AbstractLeakage"]


class AbstractLeakage(eqx.Module):
    """A rule of who counts as leaked by a release: a module of parameters, and nothing that depends on a mechanism.

    What a rule means for a mechanism, and all that follows from it, is an `AbstractPair`. Each field is an argument of
    `__init__` of the same name: files, `Scenario.replace` and sweeps build a rule anew from its fields. A number is an
    array of shape [] (`Scenario` gives all of them one dtype), anything else is a static field.

    Attributes:
        meaning: symbol and unit of its numbers, by name, where they have one.
    """

    meaning: ClassVar[Mapping[str, tuple[str, str]]] = {}
