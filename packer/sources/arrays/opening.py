"""Opens the samples of trees of arrays: HDF5 files, zarr, and files or folders of .npy and .npz.

rows.h5, 'part_*.h5'                         rows of one file, or of several one after another
features.npz                                 rows of its arrays
x=images.npy y=labels.npy                    rows of both
x=parts/x_*.npy y=parts/y_*.npy              rows of the files of each, one after another
scenes --samples folders                     a sample a folder
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from natsort import natsorted

from packer.errors import UsageError, first_few
from packer.format import check_field_name
from packer.sources.arrays.choosing import Constant, constant_values
from packer.sources.arrays.collecting import MAX_KEPT, Units, collect_units, size_name
from packer.sources.arrays.fields import ArrayLeaf, classes_of, rows_in_words
from packer.sources.arrays.origin import ArraysOrigin, KeptFile, KeptOptions
from packer.sources.arrays.places import FileColumn, Places, RowTable, bounds_of, relative_names, without_suffix
from packer.sources.arrays.source import ArraySource, RowSource, UnitSource
from packer.sources.arrays.tree import open_tree
from packer.sources.arrays.units import LEFT_OUT, UNWRITTEN, Remark, are_numbered, units_of
from packer.sources.base import Source
from packer.sources.episodes import EpisodeSource
from packer.sources.files import FileSet
from packer.sources.headers import read_headers
from packer.sources.kinds import unit_of
from packer.sources.options import SourceOptions, naming
from packer.sources.pairing import names_by_folder, partners
from packer.sources.units import UnitChoice, by_folder, folder_of, pattern_of, refuse_strays, unit_name
from packer.watcher import HEADERS, NOBODY, Watcher
from packer.workers import Limits, call_guarded

#: Headers of HDF5 and zarr are read by so many processes, but each must have so many files to be worth its start.
PROCESSES, FILES_A_PROCESS = 8, 64


def open_arrays(
    kind: str,
    inputs: Mapping[str, FileSet],
    options: SourceOptions,
    watcher: Watcher,
    limits: Limits | None = None,
) -> Source:
    """Open the samples of trees of arrays, one tree after another.

    Args:
        kind: of the trees: `hdf5`, `npy` or `zarr`.
        inputs: by field name; an empty name for files that name their fields themselves. Only npy has several.
        options: paths in `pick` and `skip` start from a sample, if that is a file, folder, array or group.
        watcher: its `bad` is called with the error of each bad file or unit; if it returns, that one is skipped.
        limits: limits of reading the headers of one tree, in a process of its own, since some files crash libhdf5
            or make it allocate gigabytes. None reads them in this process.

    Raises:
        UsageError: a name in `pick` cannot be that of a field, `skip` or `once` fits nothing, rows and groups may both
            be the samples, nothing says whether a file is a field or a sample, or options do not go together.
        SourceError: no usable file, no common sample axis, or data that cannot be stored.
    """
    choice = unit_of(kind, options.samples)
    _check(options, choice, inputs)
    is_rows = choice.name in ("rows", "episodes")
    is_table = kind == "npy" and is_rows
    if is_table:  # without a bad file, rows after it would belong to other samples
        watcher = replace(watcher, bad=NOBODY.bad)
    text = " ".join(files.text for files in inputs.values())
    file_sets = {name: files._replace(files=files.pick(watcher)) for name, files in inputs.items()}
    notes: list[str] = []
    places, names = _places(kind, file_sets, choice, options.axis, watcher, notes)
    list_units = partial(units_of, files=kind, choice=choice, options=options)
    if kind == "npy":
        listings = read_headers(list_units, places, len(places), watcher)
    else:  # threads would wait for the one lock of h5py
        workers = min(PROCESSES, -(-len(places) // FILES_A_PROCESS))
        listings = watcher.watch(call_guarded(list_units, places, limits, workers), HEADERS, len(places))
    units, used, remarks = collect_units(places, names, choice.unit, listings, text, watcher)
    if useless := set(options.skip) - used:
        raise UsageError(f"--skip {min(useless)}: {text} has no such array or group")
    constants = units.constants()
    for path in options.once:
        if not any(naming(name, [path]) for name in constants):
            raise UsageError(f"--once {path}: there is no such array, neither in the samples nor in the file")
    if len(units.attributes) > MAX_KEPT:
        units = replace(units, attributes={})
        few = f"more than {MAX_KEPT:,} files or samples have attributes"
        notes.append(f"{few}, so none are kept; --attr NAME makes a field")
    kept_options = KeptOptions(dict(options.pick), list(options.skip), list(options.once), list(options.sparse))
    source: ArraySource
    if is_table:
        notes += _other_tables(units, [name for name in inputs if name])
    elif choice.name == "rows" and options.samples is None:
        notes += _other_units(units, bool(options.pick))
    attributes, remarks_on_attributes = units.field_attributes()
    if is_rows:
        source = _row_source(
            kind, units, attributes, options.axis, msgspec.structs.replace(kept_options, axis=options.axis)
        )
    else:
        source = _unit_source(kind, units, attributes, msgspec.structs.replace(kept_options, samples=str(choice)))
    source.remarks = [*_sentences(kind, [*remarks, *remarks_on_attributes]), *notes]
    source.constants = {name: _values(kind, units, constant) for name, constant in constants.items()}
    if not units.ends:
        return source
    # Marks that are no field may lie in a file of their own.
    return EpisodeSource(source, units.ends, choice.pattern, units.table.places.paths() if is_table else [])


def _check(options: SourceOptions, choice: UnitChoice, inputs: Mapping[str, FileSet]) -> None:
    """Raise UsageError if an option has a value that cannot be, or is not for this unit."""
    for name in options.pick:
        try:
            check_field_name(name)
        except ValueError as error:
            raise UsageError(str(error)) from None
    for path in (*options.pick.values(), *options.once):
        if not path.strip("/"):
            raise UsageError(f"--field or --once: {path!r} is not the path of an array in a sample or file")
    is_rows = choice.name in ("rows", "episodes")
    for value, is_wrong, reason in (
        (options.attrs, is_rows, "--attr: rows have no attributes; files, datasets and groups do (--samples)"),
        (options.axis, not is_rows, f"--axis is for rows, but --samples {choice} makes each of these a sample"),
        (options.sparse, not is_rows, f"--sparse: samples are the rows of the matrix; leave out --samples {choice}"),
        (options.pick, choice.name == "datasets", "--field: a dataset that is a sample has one field, values"),
        (options.pick, any(inputs), "--field chooses among the arrays of one source; give its path without FIELD="),
        (options.scaled, options.stored, "--scaled and --stored: give one of them"),
    ):
        if value and is_wrong:
            raise UsageError(reason)


# ---------------------------------------------------------------- trees


def _places(
    kind: str, file_sets: Mapping[str, FileSet], choice: UnitChoice, axis: int, watcher: Watcher, notes: list[str]
) -> tuple[Places, Sequence[str]]:
    """Return the files of every tree: one; of npy those of a sample or, if rows are, all. And the names of samples.

    Files of npy for named fields are partners by name, or by the folder they lie in; other trees have no names.
    Sentences for the plan go to `notes`.
    """
    if kind != "npy":
        return Places(tuple(FileColumn.one_each("", files.folder, files.files) for files in file_sets.values())), ()
    if choice.name in ("rows", "episodes"):
        bases = {name: f"/{name}" if name else None for name in file_sets}
        return Places(
            tuple(
                FileColumn(bases[name], files.folder, files.files, bounds_of([len(files.files)]), axis)
                for name, files in file_sets.items()
            )
        ), ()
    if choice.name == "folders":
        for files in file_sets.values():
            refuse_strays(files.folder, files.files)
        if list(file_sets) == [""]:
            (files,) = file_sets.values()
            groups = by_folder(files.files)
            in_order = [files.files[number] for numbers in groups.values() for number in numbers]
            column = FileColumn(None, files.folder, in_order, bounds_of(map(len, groups.values())))
            return Places((column,)), [unit_name(files.folder, folder) for folder in groups]
    paired, remarks = partners(file_sets, watcher, names_by_folder(file_sets) if choice.name == "folders" else None)
    notes += remarks
    columns = (
        FileColumn.one_each(f"/{name}" if name else "", file_sets[name].folder, files)
        for name, files in paired.files.items()
    )
    return Places(tuple(columns)), paired.names


def _other_tables(units: Units, fields: Sequence[str]) -> list[str]:
    """Return sentences on what else files of npy may be whose rows are the samples.

    Raises:
        UsageError: files without a field are named alike apart from digits and hold rows of one kind. They may be
            parts of one array, a field each or a sample each; nothing says which.
    """
    notes = [
        f"field {files.base[1:]}: the rows of {len(files.paths):,} files, one after another; `--samples files` makes "
        "each a sample"
        for files in units.table.places[0]
        if len(files.paths) > 1
    ]
    unnamed: dict[str, list[ArrayLeaf]] = defaultdict(list)
    for leaf in units.leaves:
        if leaf.array[1:].partition("/")[0] not in fields:
            unnamed[leaf.file].append(leaf)
    alike: dict[Any, str] = {}
    for path in natsorted(unnamed):
        rows = rows_in_words(unnamed[path])
        first = (
            path if path.lower().endswith(".npz") else alike.setdefault((folder_of(path), pattern_of(path), rows), path)
        )
        if first != path:
            raise UsageError(
                f"{folder_of(path) or '.'}: {Path(first).name} and {Path(path).name} are named alike and hold rows of "
                f"{rows}. Say FIELD='PATTERN' if such files are parts of one array, FIELD=FILE for each if each is a "
                "field, `--samples files` if each is a sample"
            )
    if len(unnamed) > 1:
        notes.append(
            f"each of the {len(unnamed):,} files is a field, and a sample is a row of all; `--samples files` makes "
            "each file a sample, `--samples folders` each folder"
        )
    return notes


def _other_units(units: Units, is_picked: bool) -> list[str]:
    """Return a sentence if rows were taken for samples and files may be; raises UsageError if groups may be."""
    leaves = units.leaves
    if not is_picked and are_numbered(leaf.array for leaf in leaves):
        raise UsageError(
            f"{units.table.places.path(0)}: a sample may be a row of all {len(leaves)} arrays, or one of the groups "
            "that hold them; say --samples rows, or --samples groups"
        )
    rows = units.table.lengths
    many = f"{len(units):,} files of {int(rows.min()):,} to {int(rows.max()):,} rows"
    return [f"{many}: each row is a sample; --samples files makes each file one"] * bool(rows.min() < rows.max())


def _values(kind: str, units: Units, constant: Constant) -> Any:
    with open_tree(kind, units.table.places[0]) as tree, tree.faults(f"reading {constant.path}"):
        return constant_values(tree, constant.path)


# ---------------------------------------------------------------- the source


def _row_source(
    kind: str, units: Units, attributes: Mapping[str, dict[str, Any]], axis: int, options: KeptOptions
) -> ArraySource:
    """Return the rows of all units, one after another; files of one tree lie side by side, each with its fields."""
    tables = _side_by_side(units) if kind == "npy" else [units.table]
    names = relative_names([table.places for table in tables])
    rows = [count for table in tables for count in table.lengths.tolist()]
    none: dict[str, Any] = {}  # one for all files
    kept_files = [
        KeptFile(name, count, {"/": dict(units.attributes[number])} if number in units.attributes else none)
        for number, (name, count) in enumerate(zip(names, rows, strict=True))
    ]
    origin = ArraysOrigin(options, {}, files=kept_files, fields=dict(attributes), classes=_classes(units))
    return RowSource(kind, [table for table in tables if table.leaves(0)], origin, axis)


def _side_by_side(units: Units) -> list[RowTable]:
    """Return a table for each array of the one tree of npy: a run for each of its files."""
    by_file: dict[str, list[ArrayLeaf]] = defaultdict(list)
    for leaf in units.leaves:
        by_file[leaf.file].append(leaf)
    tables = []
    every = units.table.places.apart()
    for places, parts in zip(every, units.parts, strict=True):
        leaves = units.leaves if len(every) == 1 else tuple(by_file[places.path(0)])
        ends = np.cumsum(parts or units.table.ends)
        tables.append(RowTable(places, (), ends, [leaves], np.zeros(len(places), np.uint32)))
    return tables


def _unit_source(
    kind: str, units: Units, attributes: Mapping[str, dict[str, Any]], options: KeptOptions
) -> ArraySource:
    names, files = (units.names, []) if units.names else _names_by_tree(units)
    origin = ArraysOrigin(
        options,
        {},
        files=files,
        attributes={names[number]: dict(of_unit) for number, of_unit in units.attributes.items()},
        attrs=[leaf.attribute for leaf in units.leaves if leaf.attribute],
        fields=dict(attributes),
        classes=_classes(units),
    )
    sizes = [
        [units.sizes[size_name(leaf.spec.name, axis)] for axis in range(len(leaf.spec.shape))] for leaf in units.leaves
    ]
    source = UnitSource(kind, units.table, origin, units.kind, names, sizes)
    splits: dict[str, list[str]] = defaultdict(list)
    for number, of_unit in units.splits.items():
        for split in of_unit:
            splits[split].append(names[number])
    source.splits = dict(splits)
    return source


def _names_by_tree(units: Units) -> tuple[list[str], list[KeptFile]]:
    """Return the names of units, and what is kept of trees that hold several.

    The names of the units of a tree begin with its path, if there are several trees. The path has no suffix, unless
    some trees differ only in their suffix.
    """
    places, roots = units.table.places, units.table.roots
    counts = [len(list(units_of_tree)) for _, units_of_tree in groupby(places.firsts)]
    ends = np.cumsum(counts, dtype=np.int64)
    names = relative_names([places.take(ends - counts)])
    homes = list(map(without_suffix, names))
    suffixes = {name[len(home) :] for name, home in zip(names, homes, strict=True)}
    if len(suffixes) > 1 and len(set(homes)) < len(homes):  # as of run.1 and run.2
        homes = names
    if not roots:
        return homes, []
    if len(homes) == 1:
        homes = [""]
    of_units = zip(roots, (home for home, count in zip(homes, counts, strict=True) for _ in range(count)), strict=True)
    return [f"{home}{root}".lstrip("/") for root, home in of_units], list(map(KeptFile, homes, counts))


def _classes(units: Units) -> list[str]:
    return [name for leaf in units.leaves for name in classes_of(leaf)]


def _sentences(kind: str, remarks: Iterable[Remark]) -> list[str]:
    """Return one sentence for all remarks about the same, and those about nothing else as they are."""
    items: dict[tuple[str, str], list[str]] = defaultdict(list)
    for about, item in dict.fromkeys(remarks):
        items[about, "" if about else item].append(item)
    links = ". --field NAME=/path takes a link" if kind == "hdf5" else ""
    return [
        alone
        or f"{about}: "
        + (
            f"{first_few(listed, joined='; ')}{links}"
            if about == LEFT_OUT
            else first_few(listed, 3, "; ")
            if about == UNWRITTEN
            else first_few(listed)
        )
        for (about, alone), listed in items.items()
    ]
