"""Says how the fields of one file differ from those of another."""

from __future__ import annotations

from collections.abc import Sequence

from packer.sources.hdf5.types import Column


def difference(expected: Sequence[Column], found: Sequence[Column]) -> str | None:
    """What differs, as a phrase such as `field x is float64 (3,), not float32 (3,)`; None where nothing does."""
    ours = {c.spec.name: c for c in expected}
    theirs = {c.spec.name: c for c in found}
    missing = [name for name in ours if name not in theirs]
    if missing:
        return f"field {missing[0]} is missing"
    extra = [name for name in theirs if name not in ours]
    if extra:
        return f"it has the field {extra[0]} too"
    for name, column in ours.items():
        if column != theirs[name]:
            return f"field {name} is {_looks(theirs[name])}, not {_looks(column)}"
    return None


def _looks(column: Column) -> str:
    axes = ", ".join("*" if n is None else str(n) for n in column.spec.shape)
    what = "text" if column.spec.kind == "text" else f"{column.spec.dtype} ({axes})"
    return f"{what} of {column.path}"
