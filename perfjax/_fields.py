"""What a result is made of: arrays with names, axes and units, the same for its dataset and for a sweep over many."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Shaped

if TYPE_CHECKING:
    import xarray

__all__ = ["Field", "Named", "as_dataset"]


class Field(NamedTuple):
    """One array of a result: its values, a name per axis, and attributes such as `units`."""

    values: Shaped[Array | np.ndarray, "..."]
    dims: tuple[str, ...]
    attributes: dict[str, Any]


@runtime_checkable
class Named(Protocol):
    """A result that says what it holds."""

    def fields(self) -> dict[str, Field]:
        """The fields of a single result, by name; it may be traced."""
        ...


def as_dataset(fields: Mapping[str, Field], **options: Any) -> "xarray.Dataset":
    """The fields as a dataset; `options` are those of `xarray.Dataset`."""
    import xarray  # here, since it takes most of a second to import

    found = {name: (field.dims, np.asarray(field.values), field.attributes) for name, field in fields.items()}
    return xarray.Dataset(found, **options)
