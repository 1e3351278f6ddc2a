"""What stored numbers mean, as the CF conventions and NetCDF say it by attributes: decided once, for HDF5 and zarr.

    scale_factor, add_offset       value = number * scale_factor + add_offset
    _FillValue, missing_value      numbers that stand for a missing value, which becomes NaN
    _Unsigned                      integers are to be read as unsigned ("true") or as signed ones ("false")

The values are those of xarray's `decode_cf`, and so are their dtypes: files are packed as people open them.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Attributes that say what stored numbers stand for.
SCALING = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
#: Attributes that say which values are valid; others are packed all the same.
VALID = ("valid_range", "valid_min", "valid_max")
_FILLS = ("missing_value", "_FillValue")
#: How zarr of version 3 has a float as text.
_FLOAT_TEXT = "<d"


class Scaling(NamedTuple):
    """How stored numbers become values.

    Attributes:
        stored: dtype of the numbers.
        read_as: dtype of integers of another sign that their bytes are; the same as `stored` if they are not.
        dtype: of the values.
        missing: numbers that stand for missing values.
        factor, offset: each with its dtype; None for no change.
    """

    stored: str
    read_as: str
    dtype: str
    missing: tuple[float, ...] = ()
    factor: tuple[str, float] | None = None
    offset: tuple[str, float] | None = None

    @property
    def changes(self) -> bool:
        """Return whether values are other ones than the numbers."""
        is_scaled = self.factor not in (None, (self._type(self.factor), 1)) or self.offset not in (
            None,
            (self._type(self.offset), 0),
        )
        return is_scaled or bool(self.missing) or self.read_as != self.stored

    @staticmethod
    def _type(number: tuple[str, float] | None) -> str:
        return number[0] if number else ""

    def apply(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return the values, NaN where they are missing, C-contiguous and native-endian."""
        native = np.require(numbers, np.dtype(self.stored), ["C", "A", "E"]).view(self.stored)
        values = np.array(native.view(self.read_as), self.dtype)
        is_missing = np.zeros(values.shape, bool)
        for number in self.missing:
            is_missing |= values == number
        if self.missing:
            values[is_missing] = np.nan
        if self.factor is not None:
            values *= np.dtype(self.factor[0]).type(self.factor[1])
        if self.offset is not None:
            values += np.dtype(self.offset[0]).type(self.offset[1])
        return values


def scaling_of(dtype: str, attributes: Mapping[str, Any]) -> Scaling | None:
    """Return how numbers of a dtype become values; None if they are the values.

    Args:
        attributes: of the array, as `tree.as_json` has them.
    """
    stored = np.dtype(dtype)
    if stored.kind not in "iuf":
        return None
    read_as = stored
    unsigned = attributes.get("_Unsigned")
    if (stored.kind, unsigned) in (("i", "true"), ("u", "false")):
        read_as = np.dtype(f"{'u' if stored.kind == 'i' else 'i'}{stored.itemsize}")
    fills = {name: _numbers(attributes[name], stored) for name in _FILLS if name in attributes}
    fills = {name: numbers for name, numbers in fills.items() if numbers or stored.kind == "f"}  # NaN is no integer
    if read_as != stored and "_FillValue" in fills:  # written in the dtype of the file
        with np.errstate(all="ignore"):
            numbers = np.array(fills["_FillValue"]).astype(stored).view(read_as)
        fills["_FillValue"] = numbers.tolist()
    missing = tuple(dict.fromkeys(number for numbers in fills.values() for number in numbers))
    factor, offset = _typed(attributes.get("scale_factor")), _typed(attributes.get("add_offset"))
    if factor or offset:
        is_kept = bool(fills) and not missing and read_as.kind == "f"
        target = read_as.name if is_kept else _float_for(read_as, factor, offset)
    elif missing:
        target = read_as.name if read_as.kind == "f" else "float32" if read_as.itemsize <= 2 else "float64"
    else:
        target = read_as.name
    scaling = Scaling(stored.name, read_as.name, target, missing, factor, offset)
    return scaling if scaling.changes else None


def _float_for(dtype: np.dtype[Any], factor: tuple[str, float] | None, offset: tuple[str, float] | None) -> str:
    """Return the dtype of scaled numbers: that of factor and offset if they have one, and it is wide enough."""
    if factor and offset and factor[0] == offset[0] and factor[0] in ("float32", "float64"):
        return "float64" if dtype.itemsize == 4 and dtype.kind in "iu" else factor[0]
    if offset or factor is None or factor[0] not in ("float32", "float64"):
        return "float64"
    return factor[0]


def in_words(attributes: Mapping[str, Any]) -> str:
    """Return the attributes that say what numbers stand for, such as `scale_factor 0.5, _FillValue -1`."""
    named = {name: attributes[name] for name in SCALING if name in attributes}
    return ", ".join(f"{name} {_shown(value)}" for name, value in named.items())


def _shown(attribute: Any) -> Any:
    value = attribute["value"] if isinstance(attribute, dict) else attribute
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _typed(attribute: Any) -> tuple[str, float] | None:
    """Return the dtype and the value of an attribute that is one number; None of all others."""
    value = _shown(attribute)
    try:
        number = value if isinstance(value, int) else float(value)
    except (TypeError, ValueError):
        return None
    usual = "int64" if isinstance(number, int) else "float64"
    named = attribute.get("dtype", usual) if isinstance(attribute, dict) else usual
    return (usual if named == "str" else named), number


def _numbers(attribute: Any, dtype: np.dtype[Any]) -> list[float]:
    """Return the numbers of an attribute, without NaN."""
    value = attribute["value"] if isinstance(attribute, dict) else attribute
    numbers = []
    for item in value if isinstance(value, list) else [value]:
        number = _decoded(item) if isinstance(item, str) and dtype.kind == "f" else item
        try:
            number = number if isinstance(number, int) else float(number)
        except (TypeError, ValueError):
            continue
        if number == number:
            numbers.append(number)
    return numbers


def _decoded(text: str) -> Any:
    """Return the float that zarr of version 3 has as text; other texts as they are."""
    try:
        return struct.unpack(_FLOAT_TEXT, base64.standard_b64decode(text))[0]
    except (binascii.Error, struct.error, ValueError):
        return text
