"""Opens the samples of trees of arrays: HDF5 files, zarr, and files or folders of .npy and .npz.

rows.h5, 'part_*.h5'                         rows of one file, or of several one after another
features.npz                                 rows of its arrays
x=images.npy y=labels.npy                    rows of both
x=parts/x_*.npy y=parts/y_*.npy              rows of the files of each, one after another
scenes --samples folders                     a sample a folder
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from natsort import natsorted

from packer.errors import SourceError, UsageError, as_text, first_few
from packer.format import check_field_name
from packer.sources.arrays.fields import Column
from packer.sources.arrays.origin import ArraysOrigin, KeptFile, KeptOptions
from packer.sources.arrays.source import ArraySource, RowSource, Run, Table, UnitSource
from packer.sources.arrays.tree import Place, open_tree
from packer.sources.arrays.units import (
    Constant,
    TreeUnits,
    Unit,
    are_numbered,
    check_common,
    constant_values,
    rows_of_files,
    skipped_in_words,
    units_of,
)
from packer.sources.base import HEADERS, Looking, OnBad, Source, misfits, stop, usual, watched
from packer.sources.episodes import Marks, open_episodes
from packer.sources.files import Found, join
from packer.sources.options import SourceOptions, naming
from packer.sources.pairing import names_by_folder, partners
from packer.sources.units import Asked, by_folder, folder_of, pattern_of, refuse_strays, unit_name, unit_of
from packer.workers import Limits, each

#: Samples whose attributes are kept: the manifest is read by people.
MAX_KEPT = 500


def open_arrays(
    kind: str,
    inputs: Mapping[str, Found],
    options: SourceOptions,
    *,
    on_bad: OnBad,
    looking: Looking,
    limits: Limits | None = None,
) -> Source:
    """Open the samples of trees of arrays, one tree after another.

    Args:
        kind: of the trees: `hdf5`, `npy` or `zarr`.
        inputs: by field name; an empty name for files that name their fields themselves. Only npy has several.
        options: paths in `pick` and `skip` start from a sample, if that is a file, folder, array or group.
        on_bad: called with the error of each bad file or unit; if it returns, that one is left out.
        looking: called with the number of headers read.
        limits: limits of reading the headers of one tree, in a process of its own, since some files crash libhdf5
            or make it allocate gigabytes. None reads them in this process.

    Raises:
        UsageError: a name in `pick` cannot be that of a field, `skip` or `once` fits nothing, rows and groups may both
            be the samples, nothing says whether a file is a field or a sample, or options do not go together.
        SourceError: no usable file, no common sample axis, or data that cannot be stored.
    """
    asked = unit_of(kind, options.samples)
    _check(options, asked, inputs)
    opened = {"kind": kind, "on_bad": on_bad, "looking": looking, "limits": limits}
    if asked.name == "episodes":
        return _open_episodes(inputs, asked.pattern, options, opened)
    is_table = kind == "npy" and asked.name == "rows"
    # A bad file among rows of several fields is an error: without it, rows after it would belong to other samples.
    found = {name: some._replace(files=some.pick(stop if is_table else on_bad)) for name, some in inputs.items()}
    notes: list[str] = []
    text = " ".join(some.text for some in found.values())
    fields = [name for name in found if name]
    if kind == "npy":
        places = _places(found, asked, on_bad, notes)
    else:
        places = {some.path(file): (("", some.path(file)),) for some in found.values() for file in some.files}
    if is_table:
        (place,) = places.values()
        listing, tables = rows_of_files(place, options, fields)
        units = _tables(listing, tables, fields, notes)
        listings = {place: listing}
    else:
        function = partial(units_of, kind=kind, asked=asked, options=options, fields=fields)
        results = each(function, list(places.values()), limits)
        read = watched(zip(places.items(), results, strict=True), HEADERS, looking, len(places))
        listings, units = _fitting(read, text, on_bad, is_named=kind == "npy")
    if useless := set(options.skip).difference(*(listing.used for listing in listings.values())):
        raise UsageError(f"--skip {min(useless)}: {text} has no such array or group")
    constants = _common((Path(place[0][1]).name, listing.once) for place, listing in listings.items())
    constants |= _common((str(unit), unit.once) for unit in units) if not is_table else {}
    for path in options.once:
        if not any(naming(name, [path]) for name in constants):
            raise UsageError(f"--once {path}: there is no such array, neither in the samples nor in the file")
    if sum(bool(unit.attributes) for unit in units) > MAX_KEPT:
        units = [unit._replace(attributes={}) for unit in units]
        few = f"more than {MAX_KEPT:,} files or samples have attributes"
        notes.append(f"{few}, so none are kept; --attr NAME makes a field")
    kept = KeptOptions(dict(options.pick), list(options.skip), list(options.once), list(options.sparse))
    source: ArraySource
    if asked.name == "rows":
        if options.samples is None and not is_table:
            notes += _check_rows(units, bool(options.pick))
        source = _row_source(kind, units, options.axis, msgspec.structs.replace(kept, axis=options.axis))
    else:
        source = _unit_source(kind, units, listings, msgspec.structs.replace(kept, samples=str(asked)))
    source.remarks = [*dict.fromkeys([*_remarks(kind, units, listings), *notes])]
    source.constants = {name: _values(kind, constant) for name, constant in constants.items()}
    return source


def _check(options: SourceOptions, asked: Asked, inputs: Mapping[str, Found]) -> None:
    """Raise UsageError if an option has a value that cannot be, or is not for this unit."""
    for name in options.pick:
        try:
            check_field_name(name)
        except ValueError as error:
            raise UsageError(str(error)) from None
    for path in (*options.pick.values(), *options.once):
        if not path.strip("/"):
            raise UsageError(f"--field or --once: {path!r} is not the path of an array in a sample or file")
    is_rows = asked.name in ("rows", "episodes")
    for given, is_wrong, reason in (
        (options.attrs, is_rows, "--attr: rows have no attributes; files, datasets and groups do (--samples)"),
        (options.axis, not is_rows, f"--axis is for rows, but --samples {asked} makes each of these a sample"),
        (options.sparse, not is_rows, f"--sparse: samples are the rows of the matrix; leave out --samples {asked}"),
        (options.pick, asked.name == "datasets", "--field: a dataset that is a sample has one field, values"),
        (options.pick, any(inputs), "--field chooses among the arrays of one source; give its path without FIELD="),
        (options.scaled, options.stored, "--scaled and --stored: give one of them"),
    ):
        if given and is_wrong:
            raise UsageError(reason)


# ---------------------------------------------------------------- episodes


def _open_episodes(
    inputs: Mapping[str, Found], pattern: str, options: SourceOptions, opened: Mapping[str, Any]
) -> Source:
    """Return the rows as episodes; `opened` are the other arguments of `open_arrays`."""
    kind, on_bad, notes = opened["kind"], opened["on_bad"], list[str]()
    found = {name: some._replace(files=some.pick(on_bad)) for name, some in inputs.items()}
    if kind == "npy":
        places = _places(found, Asked("rows"), on_bad, notes)
    else:
        places = {some.path(file): (("", some.path(file)),) for some in found.values() for file in some.files}
    results = each(partial(_marks, kind=kind, pattern=pattern), list(places.values()), opened["limits"])
    marks: dict[str, Marks] = {}
    for path, result in zip(places, results, strict=True):
        if isinstance(result, SourceError):
            on_bad(result)
        else:
            marks[path] = result
    if not marks:
        text = " ".join(some.text for some in found.values())
        raise SourceError(f"no file says by {pattern} where episodes end; nothing is left to pack", text)
    if kind != "npy":
        found = {n: s._replace(files=[file for file in s.files if s.path(file) in marks]) for n, s in found.items()}

    def open_rows(tables: list[str]) -> Source:
        rest = {name: some for name, some in found.items() if not name or name not in tables}
        skip = () if options.pick else tuple(name for name in tables if name not in found)
        return open_arrays(inputs=rest, options=replace(options, samples="rows", skip=(*options.skip, *skip)), **opened)

    return open_episodes(pattern, marks, open_rows)


def _marks(place: Place, kind: str, pattern: str) -> Marks:
    """Return the arrays of one tree that say where episodes end; raises SourceError if one is not there."""
    marks = {}
    with open_tree(kind, place) as tree, tree.faults("reading the ends of episodes"):
        for name in pattern.split(","):
            entry = tree.find(f"/{name.strip('/')}")
            if entry is None or not entry.is_array or len(entry.shape or ()) != 1:
                what = f"has no array {name} of one axis, which would say where episodes end"
                raise SourceError(f"{what}; it holds {first_few([one.path for one in tree.entries()])}", tree.path)
            marks[name] = np.asarray(tree.open(entry.path)[:])
    return marks


# ---------------------------------------------------------------- files of npy


def _places(found: Mapping[str, Found], asked: Asked, on_bad: OnBad, notes: list[str]) -> dict[str, Place]:
    """Return the files of every sample by its name; if rows are samples, all files under one name.

    Files of named fields are partners by name, or by the folder they lie in. Sentences for the plan go to `notes`.
    """
    root = next(iter(found.values())).folder
    if asked.name == "rows":
        parts = {name: natsorted(map(some.path, some.files)) for name, some in found.items()}
        return {
            next(path for paths in parts.values() for path in paths): tuple(
                (f"/{name}" + f"/{number}" * (len(paths) > 1) if name else _base(path), path)
                for name, paths in parts.items()
                for number, path in enumerate(paths)
            )
        }
    if asked.name == "folders":
        for some in found.values():
            refuse_strays(some.folder, some.files)
        if list(found) == [""]:
            files = found[""].files
            return {
                unit_name(root, folder): tuple((_base(files[i]), join(root, files[i])) for i in numbers)
                for folder, numbers in by_folder(files).items()
            }
    paired, remarks = partners(found, on_bad, names_by_folder(found) if asked.name == "folders" else None)
    notes += remarks
    return {
        sample: tuple((f"/{name}" if name else "", found[name].path(files[i])) for name, files in paired.files.items())
        for i, sample in enumerate(paired.names)
    }


def _base(path: str) -> str:
    """Return the path of a file's arrays: the name of a `.npy`; members of a `.npz` have names of their own."""
    return "" if path.lower().endswith(".npz") else f"/{Path(path).stem}"


def _tables(
    listing: TreeUnits, files: Mapping[tuple[str, str], Sequence[Column]], fields: Sequence[str], notes: list[str]
) -> list[Unit]:
    """Return the rows of files as units, whose runs lie one after another if they are parts of one field.

    Args:
        listing: of all files.
        files: by base and path of each file, its columns.

    Raises:
        UsageError: files are no parts of one array, or may be fields, parts or samples.
        SourceError: the fields have other numbers of rows.
    """
    parts: dict[str, list[tuple[str, Sequence[Column]]]] = defaultdict(list)
    bases = {path: base for base, path in files}
    for (base, path), columns in files.items():
        field = base[1:].partition("/")[0]
        parts[field if field in fields else f"/{path}"].append((path, columns))
    units, totals = list[Unit](), list[Column]()
    for name, some in parts.items():
        if name in fields:
            _check_parts(name, some)
            if len(some) > 1:
                notes.append(
                    f"field {name}: the rows of {len(some):,} files, one after another; `--samples files` makes each a "
                    "sample"
                )
        for path, columns in some:
            base = f"/{name}" if name in fields else _base(path)
            if name in fields:
                below = len(bases[path])
                columns = [
                    column.changed(name=".".join((name, *column.members)))._replace(array=base + column.array[below:])
                    for column in columns
                ]
            rows = columns[0].samples or 0
            own = tuple(column._replace(file="", samples=None) for column in columns)
            units.append(Unit(((base, path),), "", "row", own, (), rows, (), {}, {}, {}, (), {}))
        totals += [
            column._replace(samples=sum(own[number].samples or 0 for _, own in some), file=some[0][0])
            for number, column in enumerate(columns)
        ]
    check_common(totals)
    unnamed = [(path, columns) for name, some in parts.items() if name not in fields for path, columns in some]
    _refuse_ambiguous(unnamed)
    if len(unnamed) > 1:
        notes.append(
            f"each of the {len(unnamed):,} files is a field, and a sample is a row of all; `--samples files` makes "
            "each file a sample, `--samples folders` each folder"
        )
    return units


def _row_kind(columns: Sequence[Column]) -> str:
    return "; ".join(f"{'.'.join(column.members)} {column.spec.in_words}".strip() for column in columns)


def _check_parts(name: str, parts: Sequence[tuple[str, Sequence[Column]]]) -> None:
    """Raise UsageError if some files are no parts of one array."""
    kinds = [(pattern_of(path), _row_kind(columns)) for path, columns in parts]
    most = usual(kinds)
    odd = next((number for number, kind in enumerate(kinds) if kind != most), None)
    many = next((path for path, columns in parts if len({column.array for column in columns}) > 1), None)
    if odd is not None or many:
        what = f"{many} holds several"
        if odd is not None:
            what = f"{parts[odd][0]} holds rows of {kinds[odd][1]}, most of {most[1]}"
        raise UsageError(
            f"{name}=: these {sum(len(columns) for _, columns in parts)} arrays are not numbered parts of one: {what}; "
            "give the path without FIELD= and choose with --field NAME=/ARRAY, or add --samples files if each file is "
            "a sample"
        )


def _refuse_ambiguous(files: Sequence[tuple[str, Sequence[Column]]]) -> None:
    """Raise UsageError if some files are named alike apart from digits and hold rows of one kind.

    They may be parts of one array, a field each or a sample each; nothing says which.
    """
    alike: dict[Any, str] = {}
    for path, columns in natsorted(files, key=lambda pair: pair[0]):
        if not path.lower().endswith(".npz"):
            first = alike.setdefault((folder_of(path), pattern_of(path), _row_kind(columns)), path)
            if first != path:
                raise UsageError(
                    f"{folder_of(path) or '.'}: {Path(first).name} and {Path(path).name} are named alike and hold rows "
                    f"of {_row_kind(columns)}. Say FIELD='PATTERN' if such files are parts of one array, FIELD=FILE "
                    "for each if each is a field, `--samples files` if each is a sample"
                )


# ---------------------------------------------------------------- units that can be packed together


def _fitting(
    results: Iterable[tuple[tuple[str, Place], TreeUnits | SourceError]], text: str, on_bad: OnBad, is_named: bool
) -> tuple[dict[Place, TreeUnits], list[Unit]]:
    """Return the units of each tree, and those that can be packed together; call `on_bad` with the others.

    Args:
        is_named: whether a unit has the name that comes with it.

    Raises:
        SourceError: none is left.
    """
    listings: dict[Place, TreeUnits] = {}
    good: list[Unit] = []
    layouts: dict[Any, Any] = {}
    for (name, place), result in results:
        if isinstance(result, SourceError):
            on_bad(result if result.path else SourceError(result.reason, place[0][1]))
            continue
        listings[place] = result
        for unit in result.units:
            if isinstance(unit, SourceError):
                on_bad(unit)
            else:
                columns = layouts.setdefault(unit.columns, unit.columns)
                good.append(unit._replace(place=place, columns=columns, name=name if is_named else ""))
        result.units = []
    if not good:
        raise SourceError("every file or sample of it is bad; nothing is left to pack", text)
    looks = {columns: {column.spec.name: _looks(column) for column in columns} for columns in layouts}
    model, apart = misfits({number: looks[unit.columns] for number, unit in enumerate(good)})
    for number, how in apart.items():
        unit = good[number]
        who = f"sample {unit.name!r} " if unit.name else f"{unit.kind} {unit.root} " if unit.root else ""
        advice = (
            "pick the same fields with --field, leave some out with --skip or this one with --on-error skip, or take "
            "another unit: --samples files, or for a folder a sample --samples folders"
        )
        reason = f"{who}does not fit most, such as {good[model]}: field {how}; {advice}"
        on_bad(SourceError(reason, unit.place[0][1]))
    return listings, [unit for number, unit in enumerate(good) if number not in apart]


def _looks(column: Column) -> str:
    """Return type and place of a field in words; fields that differ in them cannot be packed together."""
    where = f"attribute {column.attribute}" if column.attribute else column.array
    where += "".join(f"[{member}]" for member in column.members)
    # An array that is a sample has no path of its own.
    return " of ".join(filter(None, (column.spec.in_words, where)))


def _common(units: Iterable[tuple[str, Mapping[str, Constant]]]) -> dict[str, Constant]:
    """Return the constants that all units share.

    Args:
        units: each unit, in words, and its constants.

    Raises:
        SourceError: a unit has another value, or lacks one.
    """
    first: dict[str, Constant] | None = None
    where = ""
    for unit, constants in units:
        if first is None:
            first, where = dict(constants), unit
        for name in sorted(first.keys() | constants.keys()):
            if name in first and name in constants and first[name].digest == constants[name].digest:
                continue
            how = "differs between" if name in first and name in constants else "is not in both of"
            raise SourceError(
                f"{name} {how} {where} and {unit}, so --once cannot keep one for all; without --once it is packed with "
                "every sample",
                (constants.get(name) or first[name]).place[0][1],
            )
    return first or {}


def _values(kind: str, constant: Constant) -> Any:
    with open_tree(kind, constant.place) as tree, tree.faults(f"reading {constant.path}"):
        return constant_values(tree, constant.path)


def _check_rows(units: Sequence[Unit], is_picked: bool) -> list[str]:
    """Return a sentence if rows were taken for samples and files may be; raises UsageError if groups may be."""
    columns = units[0].columns
    if not is_picked and are_numbered(column.array for column in columns):
        raise UsageError(
            f"{units[0].place[0][1]}: a sample may be a row of all {len(columns)} arrays, or one of the groups that "
            "hold them; say --samples rows, or --samples groups"
        )
    rows = [unit.samples for unit in units]
    if len(set(rows)) == 1:
        return []
    return [
        f"{len(units):,} files of {min(rows):,} to {max(rows):,} rows: each row is a sample; --samples files makes "
        "each file one"
    ]


# ---------------------------------------------------------------- the source


def _row_source(kind: str, units: Sequence[Unit], axis: int, options: KeptOptions) -> ArraySource:
    names = _relative(units)
    files = [
        KeptFile(names[unit.place], unit.samples, {"/": dict(unit.attributes)} if unit.attributes else {})
        for unit in units
    ]
    tables: dict[tuple[str, ...], list[Run]] = {}
    for unit in units:
        run = Run(unit.place, "", 0, unit.samples, unit.columns, unit.files)
        tables.setdefault(tuple(column.spec.name for column in unit.columns), []).append(run)
    origin = ArraysOrigin(options, {}, files=files, fields=_attributes(units)[0], classes=_classes(units))
    return RowSource(kind, [Table.of(runs) for runs in tables.values()], origin, axis)


def _unit_source(
    kind: str, units: Sequence[Unit], listings: Mapping[Place, TreeUnits], options: KeptOptions
) -> ArraySource:
    homes = _homes(units)
    names = [unit.name or f"{homes[unit.place]}{unit.root}".lstrip("/") for unit in units]
    counts = Counter(unit.place for unit in units)
    files = [KeptFile(home, counts[place]) for place, home in homes.items() if units[0].root]
    attributes = {name: dict(unit.attributes) for name, unit in zip(names, units, strict=True) if unit.attributes}
    attrs = [column.attribute for column in units[0].columns if column.attribute]
    origin = ArraysOrigin(
        options,
        {},
        files=files,
        attributes=attributes,
        attrs=attrs,
        fields=_attributes(units)[0],
        classes=_classes(units),
    )
    runs = [Run(unit.place, unit.root, 0, 1, unit.columns, unit.files) for unit in units]
    shapes = [unit.shapes for unit in units]
    source = UnitSource(kind, runs, origin, units[0].kind, names, shapes)
    splits: dict[str, list[str]] = {split: [] for listing in listings.values() for split in listing.splits}
    for unit, name in zip(units, names, strict=True):
        for split, roots in listings[unit.place].splits.items():
            if unit.root in roots:
                splits[split].append(name)
    source.splits = splits
    return source


def _relative(units: Sequence[Unit]) -> dict[Place, str]:
    """Return the path of each tree, relative to the folder that holds all."""
    places = dict.fromkeys(unit.place for unit in units)
    folder = os.path.commonpath([Path(place[0][1]).parent for place in places])
    return {place: as_text(Path(os.path.relpath(place[0][1], folder)).as_posix()) for place in places}


def _homes(units: Sequence[Unit]) -> dict[Place, str]:
    """Return by tree how the names of its units begin: with its path, if there are several.

    The path has no suffix, unless some trees differ only in their suffix.
    """
    names = _relative(units)
    if len(names) == 1 and units[0].root:
        return dict.fromkeys(names, "")
    homes = {place: Path(name).with_suffix("").as_posix() for place, name in names.items()}
    return homes if len(set(homes.values())) == len(names) else names  # as of run.1 and run.2


def _attributes(units: Sequence[Unit]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the attributes of each field on which all units agree, and the others in words."""
    kept: dict[str, dict[str, Any]] = {}
    others: dict[str, None] = {}
    for unit in units:
        for field in (column.spec.name for column in unit.columns):
            own = unit.fields.get(field, {})
            agreed = kept.setdefault(field, dict(own))
            if agreed != own:
                differing = [name for name in {**agreed, **own} if name not in agreed or agreed[name] != own.get(name)]
                others |= dict.fromkeys(f"{name} of {field}" for name in differing)
                for name in differing:
                    agreed.pop(name, None)
    return {field: attributes for field, attributes in kept.items() if attributes}, list(others)


def _classes(units: Sequence[Unit]) -> list[str]:
    """Return the names of the numbers of the field `label`, if an enum names all from 0 on."""
    for column in units[0].columns:
        if column.spec.name == "label" and [number for number, _ in column.enum] == list(range(len(column.enum))):
            return [name for _, name in column.enum]
    return []


def _remarks(kind: str, units: Sequence[Unit], listings: Mapping[Place, TreeUnits]) -> list[str]:
    """Return sentences on what is not packed or kept, or is another value."""
    remarks = [note for listing in listings.values() for note in listing.notes]
    layouts = dict.fromkeys(unit.columns for unit in units)
    remarks += [f"{column.path} {column.remark}" for columns in layouts for column in columns if column.remark]
    if asides := {path: why for unit in units for path, why in unit.asides.items()}:
        more = ". --field NAME=/path takes a link" if kind == "hdf5" else ""
        remarks.append(f"left out: {skipped_in_words(asides)}{more}")
    for column in units[0].columns:
        if "=" in column.path and column.spec.name == column.path[1:].replace("/", ".").replace("=", "_"):
            what = f"field {column.spec.name}: {column.path} holds =, which no name of a field can"
            remarks.append(f"{what}; _ stands in its place")
    if lost := dict.fromkeys(words for unit in units for words in unit.lost):
        why = "attributes are kept if they are numbers or text of at most 16 KiB"
        remarks.append(f"{why}; these are not: {first_few(list(lost))}")
    if differing := _attributes(units)[1]:
        remarks.append(f"attributes are kept if all files and samples agree; these are not: {first_few(differing)}")
    if not _classes(units):
        for column in units[0].columns:
            if column.enum:
                shown = first_few([f"{number} {name}" for number, name in column.enum])
                remarks.append(f"{column.path} is an enum, whose names are not kept: {shown}")
    return remarks
