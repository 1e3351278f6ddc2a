"""Opens `.npy` and `.npz` files: what is a field, and what a sample.

features.npz                                 rows of its arrays
x=images.npy y=labels.npy                    rows of both
x=parts/x_*.npy y=parts/y_*.npy              rows of the files of each, one after another
scenes --samples folders                     a sample a folder
"""

from __future__ import annotations

import glob
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from natsort import natsorted

from packer.errors import SourceError, UsageError, as_text, first_few
from packer.format.schema import FieldSpec
from packer.sources.base import HEADERS, Looking, OnBad, common_shape, difference, stop, watched
from packer.sources.files import Found, join, unnamed
from packer.sources.npy.array import Array, open_arrays
from packer.sources.npy.source import NpySource
from packer.sources.options import SourceOptions
from packer.sources.pairing import partners, share_out
from packer.sources.units import by_folder, folder_of, pattern_of, refuse_strays, unit_name, unit_of

#: Files that a command in a message names.
_SHOWN = 20
_DIGITS = re.compile(r"\d+")
#: Name of the field of a `.npy` file that is a sample, if nobody says another.
_FIELD = "x"

#: The files of a sample, each with the name of its field, or none if they name their fields themselves.
_Files = list[tuple[str, str]]
#: What to do with samples of several kinds.
_ADVICE = {
    "files": "if each file is a field, leave out --samples files; if each folder is a sample, say `--samples folders`",
    "folders": "name the fields that all have with quoted patterns, as in coord='scenes/*/coord.npy'",
}


def open_npy(inputs: Mapping[str, Found], options: SourceOptions, *, on_bad: OnBad, looking: Looking) -> NpySource:
    """Open arrays.

    Args:
        inputs: by field name; an empty name for files that name their fields.
        options: of `samples`, `rows`: a row of each array is a sample; `files`: a file; `folders`: a folder.
        on_bad: told of every file or folder that cannot be a sample; if it returns, that one is left out.
        looking: told how far reading headers is.

    Raises:
        UsageError: no array is there, two have one name, a named path holds what are no parts of one array, or it
            cannot be told what is a field and what a sample.
        SourceError: a file is damaged or holds what cannot be packed, or the fields differ in their number of rows.
    """
    unit = unit_of("npy", options.samples).name
    # Rows of files that lack a part would be those of other samples.
    found = {name: _arrays(some, stop if unit == "rows" else on_bad) for name, some in inputs.items()}
    return _open_rows(found) if unit == "rows" else _open_units(found, unit, on_bad, looking)


def _arrays(found: Found, on_bad: OnBad) -> Found:
    picked = found.pick(on_bad)
    if not picked:
        raise UsageError(f"{found.text}: no .npy or .npz file can be read; check the path")
    return found._replace(files=picked)


def _row_kind(array: Array) -> str:
    """Return what a row of the array is, such as `float32 (3,)`."""
    return f"{array.native.name} {array.shape[1:]}"


def _source(
    fields: Mapping[str, Sequence[Array]], unit: str, names: Sequence[str] | None, notes: list[str], others: list[str]
) -> NpySource:
    """Return the source of rows that lie one after another, and say what becomes of them.

    Args:
        others: members of files that are no arrays.
    """
    specs = []
    for name, arrays in fields.items():
        shape = common_shape(array.shape[1:] for array in arrays)
        try:
            specs.append(FieldSpec(name=name, dtype=arrays[0].native.name, shape=shape))
        except ValueError as error:
            raise UsageError(str(error)) from None
        if any(array.dtype.byteorder == ">" for array in arrays):
            notes.append(f"field {name}: big-endian in the file, stored little-endian; the values are the same")
    if others:
        notes.append(f"left out, since they are not arrays: {first_few(others)}")
    held = {name: tuple(arrays) for name, arrays in fields.items()}
    rows = sum(map(len, next(iter(held.values()))))
    return NpySource(tuple(specs), held, names, 0, rows, _origin_of(fields, unit), notes)


def _origin_of(fields: Mapping[str, Sequence[Array]], unit: str) -> dict[str, Any]:
    """Return what the manifest keeps: where each field comes from, a list if it has several parts.

    Of files and folders it is the unit, and of each field the dtype of the first sample as it is in the file.
    """
    if unit != "rows":
        return {"samples": unit, "dtypes": {name: arrays[0].dtype.str for name, arrays in fields.items()}}
    told = {name: [_told(array) for array in arrays] for name, arrays in fields.items()}
    return {"arrays": {name: parts if parts[1:] else parts[0] for name, parts in told.items()}}


def _told(array: Array) -> dict[str, Any]:
    return {
        "file": as_text(Path(array.path).name),
        "member": array.member,
        "dtype": array.dtype.str,
        "fortran": array.is_fortran,
    }


# ---------------------------------------------------------------- rows


def _open_rows(found: Mapping[str, Found]) -> NpySource:
    """Return the rows of the arrays; the files of a named field are its parts, in natural order."""
    fields: dict[str, list[Array]] = {}
    left_out: list[str] = []
    for name, some in found.items():
        arrays = []
        for file in some.files:
            own, others = open_arrays(some.path(file))
            arrays += own
            left_out += others
        if not arrays:
            raise SourceError("holds no array", some.path(some.files[0]))
        _check_rows(arrays)
        if name:
            fields[name] = _parts(name, arrays)
            continue
        _refuse_ambiguous(some.folder or ".", arrays)
        for array in arrays:
            if (own_name := array.own_name) in fields:
                unit = "files" if array.member else "folders"
                raise UsageError(
                    f"{fields[own_name][0].shown} and {array.shown} are both called {own_name!r}; if the {unit} are "
                    f"the samples, say `--samples {unit}`, else name the arrays with FIELD=FILE"
                )
            fields[own_name] = [array]
    lengths = {name: sum(map(len, arrays)) for name, arrays in fields.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} has {length:,}" for name, length in list(lengths.items())[:_SHOWN])
        raise SourceError(
            f"arrays of one dataset have one number of rows, but {listed}; name those that belong together with "
            "FIELD=FILE, or say `--samples files` if each file is a sample, `--samples folders` if each folder is",
            next(iter(fields.values()))[0].path,
        )
    parted = [
        f"field {name}: the rows of {len(arrays):,} files, one after another; `--samples files` makes each a sample"
        for name, arrays in fields.items()
        if arrays[1:]
    ]
    files = {arrays[0].path for arrays in fields.values()}
    if "" in found and len(files) > 1:
        parted.append(
            f"each of the {len(files):,} files is a field, and a sample is a row of all; `--samples files` makes "
            "each file a sample, `--samples folders` each folder"
        )
    return _source(fields, "rows", None, parted, left_out)


def _check_rows(arrays: Sequence[Array]) -> None:
    """Raise SourceError if one of the arrays has no rows that could be samples."""
    for array in arrays:
        if not array.shape:
            raise SourceError(
                "is a single value (0-d): it has no first axis that counts samples; save the other arrays without "
                "it, or say `--samples files` if each file is a sample",
                array.shown,
            )
        if not array.shape[0]:
            raise SourceError(f"has shape {array.shape}: it has no row to pack; leave it out", array.shown)


def _parts(name: str, arrays: Sequence[Array]) -> list[Array]:
    """Return the parts of one field in natural order of their files.

    Raises:
        UsageError: they are no parts of one array.
    """
    advice = "give the path without FIELD=, or add --samples files if each file is a sample"
    if len({pattern_of(a.path) for a in arrays}) > 1 or len({array.path for array in arrays}) < len(arrays):
        listed = ", ".join(array.own_name for array in arrays[:_SHOWN])
        raise UsageError(
            f"{name}={arrays[0].path}: these {len(arrays)} arrays ({listed}) are not numbered parts of one; {advice}"
        )
    first = arrays[0]
    for array in arrays[1:]:
        if _row_kind(array) != _row_kind(first):
            raise UsageError(
                f"{name}=: {first.shown} holds rows of {_row_kind(first)} and {array.shown} of "
                f"{_row_kind(array)}, so they are not parts of one array; {advice}"
            )
    return natsorted(arrays, key=lambda array: array.path)


def _refuse_ambiguous(path: str, arrays: Sequence[Array]) -> None:
    """Raise UsageError if some files are named alike apart from digits and hold rows of one kind.

    They may be parts of one array, a field each or a sample each; nothing tells which, so that all are shown.
    """
    alike: dict[Any, list[Array]] = {}
    for array in natsorted(arrays, key=lambda array: array.path):
        key = array.shown if array.member else (folder_of(array.path), pattern_of(array.path), _row_kind(array))
        alike.setdefault(key, []).append(array)
    groups = list(alike.values())
    several = next((group for group in groups if len(group) > 1), None)
    if several is None:
        return
    names = [_DIGITS.sub("", g[0].own_name).strip("_-. ") or _FIELD if g[1:] else g[0].own_name for g in groups]
    if len(set(names)) < len(names):  # files of one name in several folders
        names = [f"{Path(group[0].path).parent.name}_{name}" for group, name in zip(groups, names, strict=True)]
    parts = [f"{name}={_pattern(group)}" for name, group in zip(names, groups, strict=True)]
    first, last = (Path(several[place].path).name for place in (0, -1))
    reason = (
        f"{path}: {len(several):,} files named alike, {first} to {last}, hold rows of {_row_kind(several[0])}; they "
        f"may be parts of one array, or each may be a field. For a field of {sum(map(len, several)):,} rows, "
        f"`packer convert {shlex.join(parts)} OUT`"
    )
    if len({len(array) for array in arrays}) == 1:
        each = [f"{array.own_name}={array.path}" for group in groups for array in group]
        more = f" ... (all {len(each):,} files like this)" if len(each) > _SHOWN else ""
        reason += (
            f"; for {len(arrays):,} fields of {len(arrays[0]):,} samples, "
            f"`packer convert {shlex.join(each[:_SHOWN])}{more} OUT`"
        )
    raise UsageError(f"{reason}; if each file is a sample, add `--samples files` to the first command")


def _pattern(group: Sequence[Array]) -> str:
    """Return the path of an array, or the pattern that the files of several fit."""
    if len(group) == 1:
        return group[0].path
    file = Path(group[0].path)
    numbered = _DIGITS.sub("[0-9]*", glob.escape(file.stem))
    return (Path(glob.escape(str(file.parent))) / f"{numbered}{file.suffix}").as_posix()


# ---------------------------------------------------------------- files and folders


def _open_units(found: dict[str, Found], unit: str, on_bad: OnBad, looking: Looking) -> NpySource:
    """Return a sample a file or a folder."""
    files, notes = _files_of(found, unit, on_bad)
    units: dict[str, dict[str, Array]] = {}
    left_out: list[str] = []
    for sample, its_files in watched(files.items(), HEADERS, looking, len(files)):
        try:
            if reason := unnamed(sample):
                raise SourceError(reason, its_files[0][1])
            units[sample], others = _fields_of(its_files, unit)
            left_out += others
        except SourceError as error:
            on_bad(error)
    units = _alike(units, unit, on_bad)
    fields = {name: [own[name] for own in units.values()] for name in next(iter(units.values()))}
    return _source(fields, unit, list(units), notes, left_out)


def _files_of(found: dict[str, Found], unit: str, on_bad: OnBad) -> tuple[dict[str, _Files], list[str]]:
    """Return the files of every sample by its name, and what is to be said of them.

    Files of named fields are partners by name, or by the folder they lie in.
    """
    notes = share_out(found)
    root = next(iter(found.values())).folder
    if unit == "folders":
        for some in found.values():
            refuse_strays(some.folder, some.files)
        if list(found) == [""]:
            paths = found[""].files
            folders = by_folder(paths)
            return {unit_name(root, f): [("", join(root, paths[i])) for i in at] for f, at in folders.items()}, notes

    paired, said = partners(found, unit, on_bad)
    files = {
        sample: [(name, found[name].path(some[i])) for name, some in paired.files.items()]
        for i, sample in enumerate(paired.names)
    }
    return files, notes + said


def _fields_of(files: _Files, unit: str) -> tuple[dict[str, Array], list[str]]:
    """Return the arrays of a sample by field, and the members of its files that are no arrays."""
    fields: dict[str, Array] = {}
    left_out = []
    for given, path in files:
        arrays, others = open_arrays(path)
        left_out += others
        if not arrays:
            raise SourceError("holds no array", path)
        for array in arrays:
            name = array.own_name
            if given:
                name = f"{given}.{name}" if arrays[1:] else given
            elif not array.member and unit == "files":
                name = _FIELD
            if name in fields:
                advice = "; to make each file a sample say `--samples files`" if unit == "folders" else ""
                raise SourceError(
                    f"and {fields[name].shown} are both the field {name!r} of one sample{advice}", array.shown
                )
            fields[name] = array.as_row()
    return fields, left_out


def _alike(units: Mapping[str, dict[str, Array]], unit: str, on_bad: OnBad) -> dict[str, dict[str, Array]]:
    """Return the samples that have the fields of most; the others are told to `on_bad`.

    Raises:
        SourceError: what `on_bad` raises; no sample is left.
    """
    if not units:
        raise SourceError(f"no sample is left: all {unit} are bad; mend them first")
    kinds = {name: {field: _kind(array) for field, array in own.items()} for name, own in units.items()}
    usual = Counter(frozenset(kind.items()) for kind in kinds.values()).most_common(1)[0][0]
    model = next(name for name, kind in kinds.items() if kind.items() == usual)
    kept = {}
    for name, own in units.items():
        if how := difference(kinds[model], kinds[name]):
            path = next(iter(own.values())).path
            on_bad(SourceError(f"sample {name!r} does not fit {model!r}: {how}; {_ADVICE[unit]}", path))
        else:
            kept[name] = {field: own[field] for field in kinds[model]}
    return kept


def _kind(array: Array) -> str:
    axes = len(array.shape) - 1
    return f"{array.native.name} with {axes} {'axis' if axes == 1 else 'axes'}"
