"""Opens `.npy` and `.npz` files: what is a field, and what a sample.

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
from packer.sources.base import HEADERS, Looking, OnBad, Source, common_shape, difference, stop, usual, watched
from packer.sources.episodes import open_episodes
from packer.sources.files import Found, join
from packer.sources.npy.array import Array, NpySource, open_arrays
from packer.sources.options import SourceOptions, naming
from packer.sources.pairing import partners, share_out
from packer.sources.units import by_folder, folder_of, pattern_of, refuse_strays, unit_name, unit_of

#: Arrays that a message names.
_SHOWN = 20
#: Name of the field of a `.npy` file that is a sample, if nobody says another.
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
        options: of `samples`, `rows`: a row of each array is a sample; `files`: a file; `folders`: a folder; `pick`,
            `skip` and `once` name arrays, or members of structured ones.
        on_bad: called with the error of every bad file or folder; if it returns, that one is left out.
        looking: called with the number of headers read.

    Raises:
        UsageError: no array is there, two have one name, a named path holds arrays that are not parts of one, or
            nothing says whether a file is a field or a sample.
        SourceError: a file is damaged or holds what cannot be packed, or the fields differ in their number of rows.
    """
    unit, pattern = unit_of("npy", options.samples)
    if unit == "episodes":
        return _open_episodes(inputs, pattern, options, on_bad, looking)
    if options.pick and "" not in inputs:
        raise UsageError("--field chooses among the arrays of one source; give its path without FIELD=")
    # Rows of files that lack a part would be those of other samples.
    found = {name: _arrays(some, stop if unit == "rows" else on_bad) for name, some in inputs.items()}
    choice = _Choice(options, unit)
    source = _open_rows(found, choice) if unit == "rows" else _open_units(found, choice, on_bad, looking)
    if useless := [f"--skip {name}" for name in options.skip if name not in choice.used] + [
        f"--once {name}" for name in options.once if name not in choice.used
    ]:
        raise UsageError(f"{useless[0]}: no file holds such an array; leave it out")
    source.constants = {name: values for name, (_, values) in choice.constants.items()}
    if options.once:
        source.origin = {**source.origin, "options": {"once": list(options.once)}}
    return source


def _open_episodes(
    inputs: Mapping[str, Found], pattern: str, options: SourceOptions, on_bad: OnBad, looking: Looking
) -> Source:
    """Return the episodes that the rows are; the arguments are those of `open_npy`.

    Raises:
        UsageError: no array is called as the pattern says, or several are.
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


def _arrays(found: Found, on_bad: OnBad) -> Found:
    picked = found.pick(on_bad)
    if not picked:
        raise UsageError(f"{found.text}: no .npy or .npz file can be read; check the path")
    return found._replace(files=picked)


class _Choice:
    """Chooses which arrays become fields, by the options, and holds those that are kept once for all samples.

    Attributes:
        unit: what a sample is made from.
        used: names in the options `skip` and `once` that name something.
        constants: by name, the first array found and its values.
    """

    def __init__(self, options: SourceOptions, unit: str) -> None:
        self._options, self.unit = options, unit
        self.used: set[str] = set()
        self.constants: dict[str, tuple[Array, NDArray[Any]]] = {}

    def open(self, paths: Sequence[str]) -> tuple[list[Array], list[str]]:
        """Return the arrays of some files that become fields, and the members that are no arrays.

        Raises:
            SourceError: one cannot be packed, is missing, or differs from what is kept once; none is left.
        """
        options, left = self._options, []
        opened = [open_arrays(path) for path in paths]
        once: list[Array] = []
        for array in (array for arrays, _ in opened for array in arrays):
            kept, skipped = naming(array.own_name, options.once), naming(array.own_name, options.skip)
            self.used.update(kept, skipped)
            if kept:
                once.append(array)
            elif not skipped:
                left.append(array)
        self._keep(once, paths[0])
        if options.pick:
            left = [array for name, where in options.pick.items() for array in _picked(left, name, where, paths[0])]
        left = [self._checked(array) for array in left]
        if bad := [array for array in left if array.problem]:
            raise _refusal(bad, may_skip=len(bad) < len(left) and not options.pick)
        if not left:
            raise SourceError(
                "holds no array" + (" but those that are left out" if options.skip or once else ""), paths[0]
            )
        return left, [other for _, others in opened for other in others]

    def _checked(self, array: Array) -> Array:
        """Return an array, with the `problem` that there is if it is text of several axes a sample."""
        shape = array.shape[1:] if self.unit == "rows" else array.shape
        if array.problem or not array.is_text or not shape:
            return array
        return replace(array, problem=f"holds text of shape {shape} a sample, but only one can be stored")

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
    if others:
        notes.append(f"left out, since they are not arrays: {first_few(others)}")
    held = {name: tuple(arrays) for name, arrays in fields.items()}
    rows = sum(map(len, next(iter(held.values()))))
    shown = {name: [as_text(Path(array.shown).name) for array in arrays] for name, arrays in fields.items()}
    origin = {"arrays": shown} if unit == "rows" else {"samples": unit}
    return NpySource(tuple(specs), held, names, 0, rows, origin, notes)


# ---------------------------------------------------------------- rows


def _open_rows(found: Mapping[str, Found], choice: _Choice) -> NpySource:
    """Return the rows of the arrays; the files of a named field are its parts, in natural order."""
    fields: dict[str, list[Array]] = {}
    left_out: list[str] = []
    left_singles: list[str] = []
    for name, some in found.items():
        arrays, others = choice.open([some.path(file) for file in some.files])
        left_out += others
        if not name:
            arrays, singles = _without_singles(arrays)
            left_singles += singles
        _check_rows(arrays)
        if name:
            for inner in dict.fromkeys(array.inner for array in arrays):
                parts = _parts(name, [array for array in arrays if array.inner == inner])
                fields[".".join((name, *inner))] = parts
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
            f"arrays of one dataset have one number of rows, but {listed}; choose those that belong together with "
            "--field NAME=/ARRAY, or leave others out with --skip ARRAY (--once ARRAY keeps one for all samples); or "
            "say `--samples files` if each file is a sample, `--samples folders` if each folder is",
            next(iter(fields.values()))[0].path,
        )
    parted = [
        f"field {name}: the rows of {len(arrays):,} files, one after another; `--samples files` makes each a sample"
        for name, arrays in fields.items()
        if arrays[1:]
    ]
    if left_singles:
        parted.append(
            f"left out, since they are single values, not one for each sample: {first_few(left_singles)}; --once NAME "
            "keeps one for all samples"
        )
    files = {arrays[0].path for arrays in fields.values()}
    if "" in found and len(files) > 1:
        parted.append(
            f"each of the {len(files):,} files is a field, and a sample is a row of all; `--samples files` makes "
            "each file a sample, `--samples folders` each folder"
        )
    return _source(fields, "rows", None, parted, left_out)


def _without_singles(arrays: list[Array]) -> tuple[list[Array], list[str]]:
    """Return the arrays that have axes or were named, and the names of the others; all arrays if none has axes."""
    singles = [array.shown for array in arrays if not array.shape and not array.name]
    if len(singles) == len(arrays):
        return arrays, []
    return [array for array in arrays if array.shape or array.name], singles


def _check_rows(arrays: Sequence[Array]) -> None:
    """Raise SourceError if one of the arrays has no rows that could be samples."""
    for array in arrays:
        if not array.shape:
            raise SourceError(
                "is a single value (0-d): it has no first axis that counts samples; say `--samples files` if each file "
                "is a sample",
                array.shown,
            )
        if not array.shape[0]:
            raise SourceError(f"has shape {array.shape}: it has no row to pack; leave it out (--skip)", array.shown)


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

    They may be parts of one array, a field each or a sample each; nothing tells which.
    """
    # A structured array counts once.
    arrays = [replace(array, inner=()) for array in {(array.path, array.member): array for array in arrays}.values()]
    alike: dict[Any, Array] = {}
    for array in natsorted(arrays, key=lambda array: array.path):
        key = array.shown if array.member else (folder_of(array.path), pattern_of(array.path), _row_kind(array))
        first = alike.setdefault(key, array)
        if first is not array:
            raise UsageError(
                f"{path}: {Path(first.path).name} and {Path(array.path).name} are named alike and hold rows of "
                f"{_row_kind(array)}. Say FIELD='PATTERN' if such files are parts of one array, FIELD=FILE for each "
                "if each is a field, `--samples files` if each is a sample"
            )


# ---------------------------------------------------------------- files and folders


def _open_units(found: dict[str, Found], choice: _Choice, on_bad: OnBad, looking: Looking) -> NpySource:
    """Return a sample a file or a folder."""
    unit = choice.unit
    files, notes = _files_of(found, unit, on_bad)
    units: dict[str, dict[str, Array]] = {}
    left_out: list[str] = []
    for sample, its_files in watched(files.items(), HEADERS, looking, len(files)):
        try:
            units[sample], others = _fields_of(its_files, choice)
            left_out += others
        except SourceError as error:
            on_bad(error)
    units = _alike(units, unit, on_bad)
    fields = {name: [own[name] for own in units.values()] for name in next(iter(units.values()))}
    return _source(fields, unit, list(units), notes, left_out)


def _files_of(found: dict[str, Found], unit: str, on_bad: OnBad) -> tuple[dict[str, _Files], list[str]]:
    """Return the files of every sample by its name, and sentences for the plan.

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


def _fields_of(files: _Files, choice: _Choice) -> tuple[dict[str, Array], list[str]]:
    """Return the arrays of a sample by field, and the members of its files that are no arrays."""
    fields: dict[str, Array] = {}
    left_out = []
    for given in dict.fromkeys(given for given, _ in files):
        arrays, others = choice.open([path for name, path in files if name == given])
        left_out += others
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
    return fields, left_out


def _alike(units: Mapping[str, dict[str, Array]], unit: str, on_bad: OnBad) -> dict[str, dict[str, Array]]:
    """Return the samples that have the fields of most; call `on_bad` with the others.

    Raises:
        SourceError: what `on_bad` raises; no sample is left.
    """
    if not units:
        raise SourceError(f"no sample is left: all {unit} are bad; mend them first")
    kinds = {name: {field: _kind(array) for field, array in own.items()} for name, own in units.items()}
    most = usual(frozenset(kind.items()) for kind in kinds.values())
    model = next(name for name, kind in kinds.items() if kind.items() == most)
    kept = {}
    for name, own in units.items():
        if how := difference(kinds[model], kinds[name]):
            path = next(iter(own.values())).path
            on_bad(SourceError(f"sample {name!r} does not fit most, such as {model!r}: {how}; {_ADVICE[unit]}", path))
        else:
            kept[name] = {field: own[field] for field in kinds[model]}
    return kept


def _kind(array: Array) -> str:
    if array.is_text:
        return "text"
    axes = len(array.shape) - 1
    return f"{array.type_name} with {axes} {'axis' if axes == 1 else 'axes'}"
