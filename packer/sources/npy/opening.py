"""Opens `.npy` and `.npz` files: finds their fields and samples.

features.npz                                 rows of its arrays
x=images.npy y=labels.npy                    rows of both
x=parts/x_*.npy y=parts/y_*.npy              rows of the files of each, one after another
scenes --samples folders                     a sample a folder
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from natsort import natsorted
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError, as_text, first_few
from packer.format import FieldSpec
from packer.sources.base import HEADERS, Looking, OnBad, Source, common_shape, misfits, stop, usual, watched
from packer.sources.episodes import open_episodes
from packer.sources.files import Found, join
from packer.sources.npy.array import Array, NpySource, open_arrays
from packer.sources.options import SourceOptions, naming
from packer.sources.pairing import names_by_folder, partners
from packer.sources.units import by_folder, folder_of, pattern_of, refuse_strays, unit_name, unit_of

#: Arrays that a message names.
_SHOWN = 20
#: Default name of the field of a `.npy` file that is a sample.
_FIELD = "x"

#: The files of a sample, each with the name of its field, or none if they name their fields themselves.
_Files = list[tuple[str, str]]
#: What to do with samples of several kinds.
_ADVICE = {
    "files": "if each file is a field, leave out --samples files; if each folder is a sample, say `--samples folders`",
    "folders": "name the fields that all have with quoted patterns, as in coord='scenes/*/coord.npy'",
}


def open_npy(inputs: Mapping[str, Found], options: SourceOptions, *, on_bad: OnBad, looking: Looking) -> Source:
    """Open arrays.

    Args:
        inputs: by field name; an empty name for files that name their fields.
        options: `samples` says whether a sample is a row of each array (`rows`), a file or a folder; `pick`, `skip` and
            `once` name arrays, or members of structured ones.
        on_bad: called with the error of every bad file or folder; if it returns, that one is left out.
        looking: called with the number of headers read.

    Raises:
        UsageError: no file can be read, two arrays have one name, a named path holds arrays that are not parts of one,
            nothing says whether a file is a field or a sample, or an option names no array.
        SourceError: a file is damaged, holds no array or one that cannot be packed, or the fields differ in their
            number of rows.
    """
    unit, pattern = unit_of("npy", options.samples)
    if unit == "episodes":
        return _open_episodes(inputs, pattern, options, on_bad, looking)
    if options.pick and "" not in inputs:
        raise UsageError("--field chooses among the arrays of one source; give its path without FIELD=")
    # A bad file among rows is always an error: without it, rows after it would belong to other samples.
    found = {name: some._replace(files=some.pick(stop if unit == "rows" else on_bad)) for name, some in inputs.items()}
    choice = _Choice(options, unit)
    source = _open_rows(found, choice) if unit == "rows" else _open_units(found, choice, on_bad, looking)
    for flag, names in (("--skip", options.skip), ("--once", options.once)):
        if useless := [name for name in names if name not in choice.used]:
            raise UsageError(f"{flag} {useless[0]}: no file holds such an array; leave it out")
    source.constants = {name: values for name, (_, values) in choice.constants.items()}
    if options.once:
        source.origin = {**source.origin, "options": {"once": list(options.once)}}
    return source


def _open_episodes(
    inputs: Mapping[str, Found], pattern: str, options: SourceOptions, on_bad: OnBad, looking: Looking
) -> Source:
    """Return the rows as episodes; the arguments are those of `open_npy`.

    Raises:
        UsageError: no array has a name of the pattern, or several have it.
    """
    marks, files = {}, []
    for name in pattern.split(","):
        arrays = [
            array
            for field, some in inputs.items()
            for file in some.pick()
            for array in open_arrays(some.path(file))[0]
            if not array.problem and naming(field or array.own_name, [name])
        ]
        if len(arrays) != 1 or len(arrays[0].shape) != 1:
            what = f"{len(arrays):,} arrays are called {name}"
            raise UsageError(f"--samples episodes:{pattern}: {what}; one, of one axis, says where episodes end")
        marks[name] = np.asarray(arrays[0].values(arrays[0].whole()))
        files.append(arrays[0].path)

    def open_rows(tables: list[str]) -> Source:
        rest = {field: some for field, some in inputs.items() if not field or field not in tables}
        inner = () if options.pick else tuple(name for name in tables if name not in inputs)
        as_rows = replace(options, samples="rows", skip=(*options.skip, *inner))
        return open_npy(rest, as_rows, on_bad=on_bad, looking=looking)

    return open_episodes(pattern, {files[0]: marks}, open_rows)


class _Choice:
    """Chooses which arrays become fields, by the options, and holds those that are kept once for all samples.

    Attributes:
        unit: what a sample is made from.
        used: names in the options `skip` and `once` that name something.
        others: members of files that are no arrays.
        constants: by name, the first array found and its values.
    """

    def __init__(self, options: SourceOptions, unit: str) -> None:
        self._options, self.unit = options, unit
        self.used: set[str] = set()
        self.others: list[str] = []
        self.constants: dict[str, tuple[Array, NDArray[Any]]] = {}

    def open(self, paths: Sequence[str]) -> list[Array]:
        """Return the arrays of some files that become fields.

        Raises:
            SourceError: an array cannot be packed, is missing, or differs from the one kept once; or none is left.
        """
        options, once, left = self._options, list[Array](), list[Array]()
        for arrays, others in map(open_arrays, paths):
            self.others += others
            for array in arrays:
                kept, skipped = naming(array.own_name, options.once), naming(array.own_name, options.skip)
                self.used.update(kept, skipped)
                if kept:
                    once.append(array)
                elif not skipped:
                    left.append(array)
        self._keep(once, paths[0])
        if options.pick:
            left = [array for name, where in options.pick.items() for array in _picked(left, name, where, paths[0])]
        if bad := [array for array in left if array.problem]:
            raise _refusal(bad, may_skip=len(bad) < len(left) and not options.pick)
        if not left:
            more = " but those that are left out" if options.skip or once else ""
            raise SourceError(f"holds no array{more}", paths[0])
        return left

    def _keep(self, once: Sequence[Array], path: str) -> None:
        """Compare arrays that are kept once with those of the samples before, or keep them."""
        names = {array.own_name for array in once}
        if self.unit != "rows" and self.constants and (lacking := self.constants.keys() - names):
            raise SourceError(f"has no {min(lacking)}, so --once cannot keep one for all; leave out --once", path)
        for array in once:
            if array.problem:
                raise SourceError(array.problem, array.shown)
            values = array.values(array.whole())
            if isinstance(values, list):
                raise SourceError("is text, but only numbers can be kept once; leave it out with --skip", array.shown)
            first, kept = self.constants.setdefault(array.own_name, (array, values))
            if (kept.dtype, kept.shape, kept.tobytes()) != (values.dtype, values.shape, values.tobytes()):
                raise SourceError(
                    f"differs from {first.shown}, so --once cannot keep one for all; without --once it is packed with "
                    "every sample",
                    array.shown,
                )


def _picked(arrays: Sequence[Array], name: str, where: str, path: str) -> list[Array]:
    """Return the array that `--field` names, or the members of a structured one, under its name."""
    hits = [array for array in arrays if naming(array.own_name, [where])]
    if not hits:
        held = first_few([array.own_name for array in arrays])
        raise SourceError(f"has no array {where} for field {name}; it holds {held or 'none'}", path)
    below = len(where.strip("/")) + 1
    return [replace(array, name=".".join(filter(None, (name, array.own_name[below:])))) for array in hits]


def _refusal(bad: Sequence[Array], may_skip: bool) -> SourceError:
    """Return the error of arrays that cannot be packed, with the options that leave all of them out."""
    more = f"; nor can {first_few([array.own_name for array in bad[1:]])} be packed" if bad[1:] else ""
    skips = " ".join(f"--skip {shlex.quote(name)}" for name in dict.fromkeys(array.own_name for array in bad))
    advice = f". Leave out with {skips}, or choose with --field NAME=/ARRAY" if may_skip else ""
    return SourceError(f"{bad[0].problem}{more}{advice}", bad[0].shown)


def _row_kind(array: Array) -> str:
    """Return what a row of the array is, such as `float32 (3,)`."""
    return f"{array.type_name} {array.shape[1:]}"


def _source(
    fields: Mapping[str, Sequence[Array]], choice: _Choice, names: list[str] | None, notes: list[str]
) -> NpySource:
    """Return the source of rows that lie one after another; sentences for the plan are added to `notes`."""
    specs = []
    for name, arrays in fields.items():
        shape = common_shape(array.shape[1:] for array in arrays)
        if arrays[0].is_text and shape:
            what = f"holds text of shape {shape} a sample, but only one can be stored"
            raise SourceError(f"{what}; leave it out with --skip {shlex.quote(name)}", arrays[0].shown)
        try:
            if arrays[0].is_text:
                specs.append(FieldSpec(name=name, dtype="uint8", kind="text", shape=(None,)))
            else:
                specs.append(FieldSpec(name=name, dtype=arrays[0].type_name, shape=shape))
        except ValueError as error:
            raise UsageError(str(error)) from None
        if name == arrays[0].own_name and "=" in (arrays[0].member or Path(arrays[0].path).stem):
            notes.append(
                f"field {name}: {arrays[0].shown} holds =, which no name of a field can; _ stands in its place"
            )
    if choice.others:
        notes.append(f"left out, since they are not arrays: {first_few(choice.others)}")
    shown = {name: [as_text(Path(array.shown).name) for array in arrays] for name, arrays in fields.items()}
    origin = {"arrays": shown} if choice.unit == "rows" else {"samples": choice.unit}
    held = {name: tuple(arrays) for name, arrays in fields.items()}
    rows = sum(map(len, next(iter(held.values()))))
    return NpySource(tuple(specs), held, names, 0, rows, origin, notes)


# ---------------------------------------------------------------- rows


def _open_rows(found: Mapping[str, Found], choice: _Choice) -> NpySource:
    """Return the rows of the arrays; the files of a named field are its parts, in natural order."""
    fields: dict[str, list[Array]] = {}
    notes: list[str] = []
    for name, some in found.items():
        arrays = choice.open([some.path(file) for file in some.files])
        singles = [array for array in arrays if not (array.shape or array.name or name)]
        if 0 < len(singles) < len(arrays):
            arrays = [array for array in arrays if array not in singles]
            notes.append(
                "left out, since they are single values, not one for each sample: "
                f"{first_few([array.shown for array in singles])}; --once NAME keeps one for all samples"
            )
        _check_rows(arrays)
        if name:
            for inner in dict.fromkeys(array.inner for array in arrays):
                parts = _parts(name, [array for array in arrays if array.inner == inner])
                fields[".".join((name, *inner))] = parts
                if parts[1:]:
                    notes.append(
                        f"field {name}: the rows of {len(parts):,} files, one after another; `--samples files` makes "
                        "each a sample"
                    )
            continue
        _refuse_ambiguous(some.folder or ".", arrays)
        for array in arrays:
            first, *_ = fields.setdefault(array.own_name, [array])
            if first is not array:
                unit = "files" if array.member else "folders"
                raise UsageError(
                    f"{first.shown} and {array.shown} are both called {array.own_name!r}; if the {unit} are the "
                    f"samples, say `--samples {unit}`, else name the arrays with FIELD=FILE"
                )
        if (files := len({array.path for array in arrays})) > 1:
            notes.append(
                f"each of the {files:,} files is a field, and a sample is a row of all; `--samples files` makes each "
                "file a sample, `--samples folders` each folder"
            )
    lengths = {name: sum(map(len, arrays)) for name, arrays in fields.items()}
    if len(set(lengths.values())) > 1:
        listed = first_few([f"{name} has {length:,}" for name, length in lengths.items()], _SHOWN)
        raise SourceError(
            f"arrays of one dataset have one number of rows, but {listed}; choose those that belong together with "
            "--field NAME=/ARRAY, or leave others out with --skip ARRAY (--once ARRAY keeps one for all samples); or "
            "say `--samples files` if each file is a sample, `--samples folders` if each folder is",
            next(iter(fields.values()))[0].path,
        )
    return _source(fields, choice, None, notes)


def _check_rows(arrays: Sequence[Array]) -> None:
    """Raise SourceError if one of the arrays has no rows that could be samples."""
    for array in arrays:
        if not any(array.shape[:1]):
            raise SourceError(
                f"has shape {array.shape}: it has no row to pack; say `--samples files` if each file is a sample, or "
                "leave it out (--skip)",
                array.shown,
            )


def _parts(name: str, arrays: Sequence[Array]) -> list[Array]:
    """Return the parts of one field in natural order of their files.

    Raises:
        UsageError: they are no parts of one array.
    """
    kinds = [(pattern_of(array.path), _row_kind(array)) for array in arrays]
    most = usual(kinds)
    odd = next((array for array, kind in zip(arrays, kinds, strict=True) if kind != most), None)
    if odd or len({array.path for array in arrays}) < len(arrays):
        what = f"{odd.shown} holds rows of {_row_kind(odd)}, most of {most[1]}" if odd else "some are of one file"
        raise UsageError(
            f"{name}=: these {len(arrays)} arrays are not numbered parts of one: {what}; give the path without FIELD= "
            "and choose with --field NAME=/ARRAY, or add --samples files if each file is a sample"
        )
    return natsorted(arrays, key=lambda array: array.path)


def _refuse_ambiguous(path: str, arrays: Sequence[Array]) -> None:
    """Raise UsageError if some files are named alike apart from digits and hold rows of one kind.

    They may be parts of one array, a field each or a sample each; nothing says which.
    """
    files = {array.path: array for array in arrays if not array.member}  # a structured array counts once
    alike: dict[Any, Array] = {}
    for array in natsorted(files.values(), key=lambda array: array.path):
        key = (folder_of(array.path), pattern_of(array.path), _row_kind(array))
        first = alike.setdefault(key, array)
        if first is not array:
            raise UsageError(
                f"{path}: {Path(first.path).name} and {Path(array.path).name} are named alike and hold rows of "
                f"{_row_kind(array)}. Say FIELD='PATTERN' if such files are parts of one array, FIELD=FILE for each "
                "if each is a field, `--samples files` if each is a sample"
            )


# ---------------------------------------------------------------- files and folders


def _open_units(found: dict[str, Found], choice: _Choice, on_bad: OnBad, looking: Looking) -> NpySource:
    """Return the source in which each file, or each folder, is a sample."""
    files, notes = _files_of(found, choice.unit, on_bad)
    units: dict[str, dict[str, Array]] = {}
    for sample, its_files in watched(files.items(), HEADERS, looking, len(files)):
        try:
            units[sample] = _fields_of(its_files, choice)
        except SourceError as error:
            on_bad(error)
    model, odd = misfits({name: {field: _kind(array) for field, array in own.items()} for name, own in units.items()})
    for name, how in odd.items():
        reason = f"sample {name!r} does not fit most, such as {model!r}: {how}; {_ADVICE[choice.unit]}"
        on_bad(SourceError(reason, next(iter(units.pop(name).values())).path))
    fields = {name: [own[name] for own in units.values()] for name in units[model]}
    return _source(fields, choice, list(units), notes)


def _files_of(found: dict[str, Found], unit: str, on_bad: OnBad) -> tuple[dict[str, _Files], list[str]]:
    """Return the files of every sample by its name, and sentences for the plan.

    Files of named fields are partners by name, or by the folder they lie in.
    """
    root = next(iter(found.values())).folder
    if unit == "folders":
        for some in found.values():
            refuse_strays(some.folder, some.files)
        if list(found) == [""]:
            paths = found[""].files
            folders = by_folder(paths)
            return {unit_name(root, f): [("", join(root, paths[i])) for i in at] for f, at in folders.items()}, []

    paired, notes = partners(found, on_bad, names_by_folder(found) if unit == "folders" else None)
    files = {
        sample: [(name, found[name].path(some[i])) for name, some in paired.files.items()]
        for i, sample in enumerate(paired.names)
    }
    return files, notes


def _fields_of(files: _Files, choice: _Choice) -> dict[str, Array]:
    """Return the arrays of a sample by field."""
    fields: dict[str, Array] = {}
    for given in dict.fromkeys(given for given, _ in files):
        arrays = choice.open([path for name, path in files if name == given])
        for array in arrays:
            name = array.own_name
            if given:
                name = f"{given}.{name}" if arrays[1:] else given
            elif not array.member and choice.unit == "files" and not array.name:
                name = ".".join(array.inner) or _FIELD
            if name in fields:
                advice = "; to make each file a sample say `--samples files`" if choice.unit == "folders" else ""
                raise SourceError(
                    f"and {fields[name].shown} are both the field {name!r} of one sample{advice}", array.shown
                )
            fields[name] = array.as_row()
    return fields


def _kind(array: Array) -> str:
    if array.is_text:
        return f"text {array.shape[1:]}"
    axes = len(array.shape) - 1
    return f"{array.type_name} with {axes} {'axis' if axes == 1 else 'axes'}"
