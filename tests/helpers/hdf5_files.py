"""HDF5 files for tests: written in a line, and damaged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py


def write_hdf5(
    path: str | Path, arrays: Mapping[str, Any], mode: str = "w", libver: str | None = None, **attrs: Any
) -> str:
    """Write datasets by path into a file, and attributes of its root and its top groups; return its path."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, mode, libver=libver) as file:
        for name, values in arrays.items():
            file[name] = values
        for group in [file, *(thing for thing in file.values() if isinstance(thing, h5py.Group))]:
            group.attrs.update(attrs)
    return str(path)


def overwrite(path: Path, place: int | bytes, data: bytes) -> None:
    """Overwrite bytes of a file, at a place or where the bytes `place` occur last."""
    raw = bytearray(path.read_bytes())
    at = place if isinstance(place, int) else raw.rindex(place)
    raw[at : at + len(data)] = data
    path.write_bytes(raw)


def flip(path: Path, place: int) -> None:
    """Flip a bit of a file."""
    overwrite(path, place, bytes([path.read_bytes()[place] ^ 1]))


def bfloat16(order: str) -> h5py.h5t.TypeFloatID:
    """Return the type of bfloat16, the upper half of a float32, in an order of bytes: "<" or ">"."""
    narrow = (h5py.h5t.IEEE_F32LE if order == "<" else h5py.h5t.IEEE_F32BE).copy()
    narrow.set_fields(15, 7, 8, 0, 7)
    narrow.set_size(2)
    narrow.set_ebias(127)
    return narrow
