"""What the manifest may keep of the values of a field: how many, between what, and how they spread."""

from __future__ import annotations

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class ValueStats(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of some values.

    Attributes:
        count: finite values; all the rest is of these alone.
        nan, inf: values that are no number, and infinite ones of either sign.
        min, max: exact; None where there is no value.
        mean, std: the standard deviation of all values (divided by `count`); None where there is no value, or where
            float64 cannot hold the sums.
    """

    count: Count
    nan: Count = 0
    inf: Count = 0
    min: int | float | None
    max: int | float | None
    mean: float | None
    std: float | None

    @property
    def values(self) -> int:
        """Values of every kind."""
        return self.count + self.nan + self.inf


class FieldStats(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of all values of a field, and of each channel: the columns of its last axis, where that is fixed."""

    all: ValueStats
    channels: tuple[ValueStats, ...] = ()
