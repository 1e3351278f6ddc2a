"""Arrays of `.npy` and `.npz` files: one sample is a row of the first axis, which all fields share.

source = open_npy({"": "features.npz"})
source = open_npy({"x": "images.npy", "y": "labels.npy"})
source = open_npy({"x": "parts/x_*.npy", "y": "parts/y_*.npy"})
"""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from natsort import natsorted
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.format.schema import FieldSpec
from packer.sources.base import Block, Source
from packer.sources.files import KIND_OF, find, suffix_of
from packer.sources.npy.array import Array, open_npy_file, open_npz_file

#: Bytes that a block holds at most, unless one row is larger.
BLOCK_BYTES = 8 * 2**20
#: Files that a command in a message names.
_SHOWN = 20
_DIGITS = re.compile(r"\d+")


def open_npy(inputs: Mapping[str, str]) -> NpySource:
    """Return the arrays that `inputs` name, row by row.

    Args:
        inputs: a file, a folder or a glob pattern by field name; several files are parts of that field, one after
            another in natural order. With an empty name, each file is a field, called as the `.npy` file without
            suffix, or as the members of the `.npz` file.

    Raises:
        UsageError: nothing is there, two arrays have one name, a named path holds what are no parts of one array, or
            files without a name may be parts or fields.
        SourceError: a file is damaged or holds what cannot be packed, or the fields differ in their number of rows.
    """
    fields: dict[str, tuple[Array, ...]] = {}
    notes: list[str] = []
    for name, path in inputs.items():
        found, others = _arrays(path)
        notes += others
        if name:
            fields[name] = _parts(name, path, found)
            continue
        _refuse_ambiguous(path, found)
        for array in found:
            called = _own_name(array)
            if called in fields:
                raise UsageError(
                    f"{fields[called][0].shown} and {array.shown} are both called {called!r}; name them with FIELD=FILE"
                )
            fields[called] = (array,)
    _check_lengths(fields)
    notes += [
        f"field {name}: big-endian in the file, stored little-endian; the values are the same"
        for name, arrays in fields.items()
        if any(array.header.dtype.byteorder == ">" for array in arrays)
    ]
    notes += [
        f"field {name}: {len(arrays):,} files, one after another" for name, arrays in fields.items() if arrays[1:]
    ]
    return NpySource(fields, 0, _count(next(iter(fields.values()))), notes)


def _arrays(path: str) -> tuple[list[Array], list[str]]:
    """Return the arrays at `path`, and what is to be said of it."""
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
    found = find(path)
    picked = found.pick(lambda file: KIND_OF.get(suffix_of(file)) == "npy")
    files = [found.path(file) for file in picked]
    if not files:
        raise UsageError(f"{path}: there is no .npy or .npz file; check the path")
    return files


def _parts(name: str, path: str, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """Return the parts of one field in natural order of their files.

    Raises:
        UsageError: they are no parts of one array.
    """
    if len({_pattern(array) for array in arrays}) > 1 or len({array.path for array in arrays}) < len(arrays):
        listed = ", ".join(_own_name(array) for array in arrays[:_SHOWN])
        raise UsageError(
            f"{name}={path}: there are {len(arrays)} arrays ({listed}), no numbered parts of one; give the path "
            "without a name"
        )
    first = arrays[0]
    for array in arrays[1:]:
        if _row_kind(array) != _row_kind(first):
            raise UsageError(
                f"{name}={path}: {first.shown} holds rows of {_row_kind(first)} and {array.shown} of "
                f"{_row_kind(array)}, so that they are no parts of one array; give the path without a name"
            )
    return tuple(natsorted(arrays, key=lambda array: array.path))


def _pattern(array: Array) -> str:
    """Return the name of the file without its digits; parts of one array have one in common."""
    return _DIGITS.sub("0", Path(array.path).name)


def _refuse_ambiguous(path: str, arrays: Sequence[Array]) -> None:
    """Raises UsageError if some files are named alike apart from digits and hold rows of one kind.

    They may be parts of one array or a field each; nothing tells which, so the commands for both are shown.
    """
    alike: dict[Any, list[Array]] = {}
    for array in arrays:
        key = array.shown if array.member else (Path(array.path).parent, _pattern(array), _row_kind(array))
        alike.setdefault(key, []).append(array)
    several = next((group for group in alike.values() if len(group) > 1), None)
    if several is None:
        return
    groups = [natsorted(group, key=lambda array: array.path) for group in alike.values()]
    numbered = natsorted(Path(array.path).name for array in several)
    as_parts = " ".join(_as_parts(group) for group in groups)
    reason = (
        f"{path}: {len(several):,} files named alike, {numbered[0]} to {numbered[-1]}, hold rows of "
        f"{_row_kind(several[0])}; they may be parts of one array or a field each. For a field of {_count(several):,} "
        f"rows, `packer convert {as_parts} OUT`"
    )
    if len({len(array) for array in arrays}) == 1:
        shown = [shlex.quote(f"{_own_name(array)}={array.path}") for group in groups for array in group]
        more = f" ... (all {len(shown):,} files like this)" if len(shown) > _SHOWN else ""
        reason += (
            f"; for {len(arrays):,} fields of {len(arrays[0]):,} samples, "
            f"`packer convert {' '.join(shown[:_SHOWN])}{more} OUT`"
        )
    raise UsageError(reason)


def _as_parts(group: Sequence[Array]) -> str:
    """Return the argument that packs these arrays as one field."""
    if len(group) == 1:
        return shlex.quote(f"{_own_name(group[0])}={group[0].path}")
    file = Path(group[0].path)
    patterns = [
        (Path(glob.escape(str(file.parent))) / (_DIGITS.sub(digits, glob.escape(file.stem)) + file.suffix)).as_posix()
        for digits in ("*", "[0-9]*")
    ]
    wanted = {array.path for array in group}
    pattern = next((p for p in patterns if {Path(f).as_posix() for f in glob.glob(p)} == wanted), patterns[-1])
    name = _DIGITS.sub("", file.stem).strip("_-. ") or "x"
    return shlex.quote(f"{name}={pattern}")


def _row_kind(array: Array) -> str:
    """Return what a row of the array is, such as `float32 (3,)`."""
    return f"{array.header.dtype.newbyteorder('=').name} {array.header.shape[1:]}"


def _count(arrays: Sequence[Array]) -> int:
    return sum(map(len, arrays))


def _own_name(array: Array) -> str:
    return array.member.removesuffix(".npy").replace("/", ".") if array.member else Path(array.path).stem


def _check_lengths(fields: Mapping[str, Sequence[Array]]) -> None:
    lengths = {name: _count(arrays) for name, arrays in fields.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} has {length:,}" for name, length in lengths.items())
        raise SourceError(
            f"arrays of one dataset have one number of rows, but {listed}; name those that belong together, with "
            "FIELD=FILE for each",
            next(iter(fields.values()))[0].path,
        )


@dataclass(eq=False)
class NpySource(Source):
    """Rows start..stop of fields of one length. Pickles as paths and headers.

    Attributes:
        arrays: the parts of each field, one after another.
    """

    arrays: dict[str, tuple[Array, ...]]
    start: int
    stop: int
    remarks: Sequence[str] = field(default_factory=list)

    kind = "npy"
    names = None

    def __post_init__(self) -> None:
        self.fields: tuple[FieldSpec, ...] = tuple(arrays[0].header.spec(name) for name, arrays in self.arrays.items())

    def __len__(self) -> int:
        return self.stop - self.start

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        return None

    def part(self, start: int, stop: int) -> NpySource:
        return replace(self, start=self.start + start, stop=self.start + stop, remarks=())

    def read(self) -> Iterator[Block]:
        row_bytes = sum(arrays[0].row_bytes for arrays in self.arrays.values())
        rows = max(1, BLOCK_BYTES // max(1, row_bytes))
        ends = {end for arrays in self.arrays.values() for end in accumulate(len(array) for array in arrays)}
        borders = [self.start, *sorted(end for end in ends if self.start < end < self.stop), self.stop]
        for start, stop in pairwise(borders):
            runs = [_runs(arrays, start, stop, rows) for arrays in self.arrays.values()]
            for values in zip(*runs, strict=True):
                yield dict(zip(self.arrays, values, strict=True))

    def files(self) -> list[str]:
        return list(dict.fromkeys(array.path for arrays in self.arrays.values() for array in arrays))

    def provenance(self) -> dict[str, Any]:
        """Return where each field comes from: an object, or a list of them if it has several parts."""
        told = {name: [_told(array) for array in arrays] for name, arrays in self.arrays.items()}
        return {"arrays": {name: parts if parts[1:] else parts[0] for name, parts in told.items()}}

    def notes(self) -> list[str]:
        return list(self.remarks)


def _runs(arrays: Sequence[Array], start: int, stop: int, rows: int) -> Iterator[NDArray[Any]]:
    """Yield rows start..stop of arrays laid one after another, `rows` at once; all lie in one of the arrays."""
    for array in arrays:
        if start < len(array):
            return array.runs(start, stop, rows)
        start, stop = start - len(array), stop - len(array)
    return iter(())


def _told(array: Array) -> dict[str, Any]:
    return {
        "file": Path(array.path).name.encode(errors="backslashreplace").decode(),
        "member": array.member,
        "dtype": array.header.dtype.str,
        "fortran": array.header.is_fortran,
    }
