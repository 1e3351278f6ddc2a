"""A source seen through the schema of a dataset that it is to go into."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.schema import Field, FieldSpec
from packer.sources.base import Block, DerivedSource, Source


class FittedSource(DerivedSource):
    """`source` with the fields of a dataset: what is ragged there may have one shape here.

    Args:
        fields: the dataset's schema.

    Raises:
        UsageError: the source does not fit; the message names the difference.
    """

    def __init__(self, source: Source, fields: Sequence[Field]) -> None:
        check_fits(source.fields, fields)
        super().__init__(source)
        self.fields = tuple(fields)
        self._shapes = {spec.name: spec.shape for spec in source.fields}

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        shape = self._shapes[field]
        if None in shape:
            return super().shapes(field)
        return np.broadcast_to(np.array(shape, np.int64), (len(self), len(shape)))

    def read(self) -> Iterator[Block]:
        ragged = {field.name for field in self.fields if field.is_ragged}
        for block in self._source.read():
            yield {name: list(values) if name in ragged else values for name, values in block.items()}


def check_fits(specs: Sequence[FieldSpec], fields: Sequence[FieldSpec]) -> None:
    """Raise UsageError if samples of `specs` cannot go into a dataset of `fields`; names the difference."""
    given = {spec.name: spec for spec in specs}
    missing = [field.name for field in fields if field.name not in given]
    extra = [name for name in given if name not in {field.name for field in fields}]
    if missing or extra:
        parts = [f"it has no field {name!r}" for name in missing] + [f"it has a field {name!r}" for name in extra]
        raise UsageError(
            f"the source does not fit the dataset: {' and '.join(parts)}; the dataset has "
            f"{', '.join(field.name for field in fields)}"
        )
    for field in fields:
        spec = given[field.name]
        axes = len(spec.shape) == len(field.shape) and all(
            wanted in (None, n) for n, wanted in zip(spec.shape, field.shape, strict=True)
        )
        if (spec.dtype, spec.kind) != (field.dtype, field.kind) or not axes:
            raise UsageError(
                f"the source does not fit the dataset: field {field.name!r} is {described(spec)} in the source "
                f"and {described(field)} in the dataset"
            )


def described(spec: FieldSpec) -> str:
    """Return a field in a few words, such as `image uint8 [null, null, 3]`."""
    axes = ", ".join("any" if n is None else str(n) for n in spec.shape)
    return f"{spec.kind} {spec.dtype} [{axes}]"
