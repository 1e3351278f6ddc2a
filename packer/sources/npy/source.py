"""Arrays of `.npy` and `.npz` files: one field an array, one sample a row of the first axis that all share.

source = open_npy({"": "features.npz"})
source = open_npy({"x": "images.npy", "y": "labels.npy"})
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.format.schema import FieldSpec
from packer.sources.base import Block, Source
from packer.sources.folders import walk
from packer.sources.npy.member import Array, open_npy_file, open_npz_file
from packer.sources.suffixes import KIND_OF

#: Bytes that a block holds at most, unless one row is larger.
BLOCK_BYTES = 8 * 2**20


def open_npy(inputs: Mapping[str, str]) -> NpySource:
    """The arrays that `inputs` name, row by row.

    Args:
        inputs: by field name a file, a folder or a glob pattern. With an empty name, fields are called as the
            `.npy` files without suffix, and as the members of `.npz` files.

    Raises:
        UsageError: nothing is there, a name for several arrays, two arrays of one name, or no name at all.
        SourceError: a file that is damaged or holds what cannot be packed; arrays of different lengths.
    """
    arrays: dict[str, Array] = {}
    notes: list[str] = []
    for name, path in inputs.items():
        found, others = _arrays(path)
        notes += others
        if name and len(found) > 1:
            listed = ", ".join(_own_name(array) for array in found)
            raise UsageError(f"{name}={path}: there are {len(found)} arrays ({listed}); give the path without a name")
        for array in found:
            called = name or _own_name(array)
            if called in arrays:
                raise UsageError(
                    f"{arrays[called].shown} and {array.shown} are both called {called!r}; name them with FIELD=FILE"
                )
            arrays[called] = array
    _check_lengths(arrays)
    notes += [
        f"field {name}: big-endian in the file, stored little-endian; the values are the same"
        for name, array in arrays.items()
        if array.header.dtype.byteorder == ">"
    ]
    return NpySource(arrays, 0, next(iter(arrays.values())).header.shape[0], notes)


def _arrays(path: str) -> tuple[list[Array], list[str]]:
    """The arrays at `path`, and what is to be said of it."""
    arrays, notes = [], []
    for file in _files(path):
        if file.lower().endswith(".npz"):
            members, others = open_npz_file(file)
            arrays += members
            notes += [f"{file}: {name} is no array and is left out" for name in others]
        else:
            arrays.append(open_npy_file(file))
    if not arrays:
        raise SourceError("holds no array", path)
    return arrays, notes


def _files(path: str) -> list[str]:
    place = Path(path)
    if place.is_file():
        return [path]
    if place.is_dir():
        found = [Path(folder, name) for folder, names in walk(place) for name in names]
    else:
        found = [Path(match) for match in glob.glob(path, recursive=True)]
    shown = (file for file in found if file.name[0] != "." and not file.is_dir())
    files = sorted(file.as_posix() for file in shown if KIND_OF.get(file.suffix.lower()) == "npy")
    if not files:
        raise UsageError(f"{path}: there is no .npy or .npz file; check the path")
    return files


def _own_name(array: Array) -> str:
    return array.member.removesuffix(".npy").replace("/", ".") if array.member else Path(array.path).stem


def _check_lengths(arrays: Mapping[str, Array]) -> None:
    lengths = {name: array.header.shape[0] for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} has {length:,}" for name, length in lengths.items())
        raise SourceError(
            f"arrays of one dataset have one number of rows, but {listed}; name those that belong together, with "
            "FIELD=FILE for each",
            next(iter(arrays.values())).path,
        )


@dataclass(eq=False)
class NpySource(Source):
    """Rows start..stop of arrays of one length. Pickles as paths and headers.

    Attributes:
        arrays: by field name.
    """

    arrays: dict[str, Array]
    start: int
    stop: int
    remarks: Sequence[str] = field(default_factory=list)

    kind = "npy"
    names = None

    def __post_init__(self) -> None:
        self.fields: tuple[FieldSpec, ...] = tuple(array.header.spec(name) for name, array in self.arrays.items())

    def __len__(self) -> int:
        return self.stop - self.start

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        return None

    def part(self, start: int, stop: int) -> NpySource:
        return replace(self, start=self.start + start, stop=self.start + stop, remarks=())

    def read(self) -> Iterator[Block]:
        row_bytes = sum(array.row_bytes for array in self.arrays.values())
        rows = max(1, BLOCK_BYTES // max(1, row_bytes))
        runs = [array.runs(self.start, self.stop, rows) for array in self.arrays.values()]
        for values in zip(*runs, strict=True):
            yield dict(zip(self.arrays, values, strict=True))

    def files(self) -> list[str]:
        return list(dict.fromkeys(array.path for array in self.arrays.values()))

    def provenance(self) -> dict[str, Any]:
        return {
            "arrays": {
                name: {
                    "file": Path(array.path).name.encode(errors="backslashreplace").decode(),
                    "member": array.member,
                    "dtype": array.header.dtype.str,
                    "fortran": array.header.is_fortran,
                }
                for name, array in self.arrays.items()
            }
        }

    def notes(self) -> list[str]:
        return list(self.remarks)
