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
from packer.sources.arrays.choosing import Constant, constant_values
from packer.sources.arrays.fields import ArrayLeaf, classes_of, rows_in_words
from packer.sources.arrays.origin import ArraysOrigin, KeptFile, KeptOptions
from packer.sources.arrays.source import ArraySource, RowSource, RowTable, TreeRows, UnitSource
from packer.sources.arrays.tree import PartFiles, TreePlace, open_tree, paths_of
from packer.sources.arrays.units import LEFT_OUT, Listing, Remark, Unit, are_numbered, units_of
from packer.sources.base import Source
from packer.sources.episodes import EpisodeSource
from packer.sources.files import FileSet
from packer.sources.headers import count_layouts, misfits, read_headers
from packer.sources.options import SourceOptions, naming
from packer.sources.pairing import names_by_folder, partners
from packer.sources.units import UnitChoice, by_folder, folder_of, pattern_of, refuse_strays, unit_name, unit_of
from packer.watcher import HEADERS, NOBODY, Watcher
from packer.workers import Limits, call_guarded

_DIFFERING = "attributes are kept if all files and samples agree; these are not"
#: Samples whose attributes are kept: the manifest is read by people.
MAX_KEPT = 500


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
    places = _places(kind, file_sets, choice, options.axis, watcher, notes)
    list_units = partial(units_of, files=kind, choice=choice, options=options)
    if kind == "npy":
        results = read_headers(list_units, places.values(), len(places), watcher)
    else:  # threads would wait for the one lock of h5py, and zarr has threads of its own
        results = watcher.watch(call_guarded(list_units, list(places.values()), limits), HEADERS, len(places))
    read = zip(places.items(), results, strict=True)
    units, used, remarks = _listed(read, text, watcher, is_named=kind == "npy" and not is_table)
    if useless := set(options.skip) - used:
        raise UsageError(f"--skip {min(useless)}: {text} has no such array or group")
    constants = _common(units)
    for path in options.once:
        if not any(naming(name, [path]) for name in constants):
            raise UsageError(f"--once {path}: there is no such array, neither in the samples nor in the file")
    if sum(bool(unit.attributes) for unit in units) > MAX_KEPT:
        units = [unit._replace(attributes={}) for unit in units]
        few = f"more than {MAX_KEPT:,} files or samples have attributes"
        notes.append(f"{few}, so none are kept; --attr NAME makes a field")
    kept_options = KeptOptions(dict(options.pick), list(options.skip), list(options.once), list(options.sparse))
    source: ArraySource
    if is_table:
        notes += _other_tables(units[0], [name for name in inputs if name])
    elif choice.name == "rows" and options.samples is None:
        notes += _other_units(units, bool(options.pick))
    attributes, remarks_on_attributes = _attributes(units)
    if is_rows:
        source = _row_source(
            kind, units, attributes, options.axis, msgspec.structs.replace(kept_options, axis=options.axis)
        )
    else:
        source = _unit_source(kind, units, attributes, msgspec.structs.replace(kept_options, samples=str(choice)))
    source.remarks = [*_sentences(kind, [*remarks, *remarks_on_attributes]), *notes]
    source.constants = {name: _values(kind, constant) for name, constant in constants.items()}
    ends = [unit.ends for unit in units if unit.ends is not None]
    if not ends:
        return source
    return EpisodeSource(source, ends, choice.pattern, [path for unit in units for path in paths_of(unit.place)])


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
) -> dict[str, TreePlace]:
    """Return the files of every tree by its name: a file; of npy those of a sample or, if rows are, all files.

    Files of npy for named fields are partners by name, or by the folder they lie in. Sentences for the plan go to
    `notes`.
    """
    paths = {name: natsorted(map(files.path, files.files)) for name, files in file_sets.items()}
    if kind != "npy":
        return {
            path: (PartFiles("", (path,)),) for files in file_sets.values() for path in map(files.path, files.files)
        }
    if choice.name in ("rows", "episodes"):
        fields = {name: [PartFiles(f"/{name}", tuple(files), axis)] for name, files in paths.items()}
        fields |= {"": [PartFiles(_base(path), (path,)) for path in paths.get("", ())]}
        place = tuple(files for field in fields.values() for files in field)
        return {place[0].paths[0]: place}
    if choice.name == "folders":
        for files in file_sets.values():
            refuse_strays(files.folder, files.files)
        if list(file_sets) == [""]:
            (files,) = file_sets.values()
            return {
                unit_name(files.folder, folder): tuple(
                    PartFiles(_base(files.files[i]), (files.path(files.files[i]),)) for i in numbers
                )
                for folder, numbers in by_folder(files.files).items()
            }
    paired, remarks = partners(file_sets, watcher, names_by_folder(file_sets) if choice.name == "folders" else None)
    notes += remarks
    return {
        sample: tuple(
            PartFiles(f"/{name}" if name else "", (file_sets[name].path(files[i]),))
            for name, files in paired.files.items()
        )
        for i, sample in enumerate(paired.names)
    }


def _base(path: str) -> str:
    """Return the path of a file's arrays: the name of a `.npy`; members of a `.npz` have names of their own."""
    return "" if path.lower().endswith(".npz") else f"/{Path(path).stem}"


def _other_tables(unit: Unit, fields: Sequence[str]) -> list[str]:
    """Return sentences on what else files of npy may be whose rows are the samples.

    Raises:
        UsageError: files without a field are named alike apart from digits and hold rows of one kind. They may be
            parts of one array, a field each or a sample each; nothing says which.
    """
    notes = [
        f"field {files.base[1:]}: the rows of {len(files.paths):,} files, one after another; `--samples files` makes "
        "each a sample"
        for files in unit.place
        if len(files.paths) > 1
    ]
    unnamed: dict[str, list[ArrayLeaf]] = defaultdict(list)
    for leaf in unit.leaves:
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


def _other_units(units: Sequence[Unit], is_picked: bool) -> list[str]:
    """Return a sentence if rows were taken for samples and files may be; raises UsageError if groups may be."""
    leaves = units[0].leaves
    if not is_picked and are_numbered(leaf.array for leaf in leaves):
        raise UsageError(
            f"{units[0].path}: a sample may be a row of all {len(leaves)} arrays, or one of the groups that hold "
            "them; say --samples rows, or --samples groups"
        )
    rows = [unit.samples for unit in units]
    many = f"{len(units):,} files of {min(rows):,} to {max(rows):,} rows"
    return [f"{many}: each row is a sample; --samples files makes each file one"] * (len(set(rows)) > 1)


# ---------------------------------------------------------------- units that can be packed together


def _listed(
    results: Iterable[tuple[tuple[str, TreePlace], Listing | SourceError]], text: str, watcher: Watcher, is_named: bool
) -> tuple[list[Unit], set[str], list[Remark]]:
    """Return the units that can be packed together, what of the option `skip` names something, and remarks.

    Args:
        watcher: its `bad` is called with the errors of all others.
        is_named: whether a unit has the name that comes with it.

    Raises:
        SourceError: none is left.
    """
    good: list[Unit] = []
    used: set[str] = set()
    remarks: list[Remark] = []
    layouts: dict[Any, Any] = {}
    for (name, place), listing in results:
        if isinstance(listing, SourceError):
            watcher.bad(listing if listing.path else SourceError(listing.reason, place[0].paths[0]))
            continue
        used |= listing.used
        remarks += listing.remarks
        for unit in listing.units:
            if isinstance(unit, SourceError):
                watcher.bad(unit)
            else:
                leaves = layouts.setdefault(unit.leaves, unit.leaves)
                good.append(unit._replace(leaves=leaves, name=name if is_named else ""))
    if not good:
        raise SourceError("every file or sample of it is bad; nothing is left to pack", text)
    in_words = [{leaf.spec.name: _in_words(leaf) for leaf in leaves} for leaves in layouts]
    numbers = {id(leaves): number for number, leaves in enumerate(layouts)}
    layout_numbers = np.array([numbers[id(unit.leaves)] for unit in good], np.uint32)
    most, apart = misfits(in_words, count_layouts(layout_numbers))
    model = int(np.argmax(layout_numbers == most))
    for number in np.flatnonzero(np.isin(layout_numbers, list(apart))).tolist():
        unit, how = good[number], apart[int(layout_numbers[number])]
        who = f"sample {unit.name!r} " if unit.name else f"{unit.kind} {unit.root} " if unit.root else ""
        advice = (
            "pick the same fields with --field, leave some out with --skip or this one with --on-error skip, or take "
            "another unit: --samples files, or for a folder a sample --samples folders"
        )
        reason = f"{who}does not fit most, such as {good[model]}: field {how}; {advice}"
        watcher.bad(SourceError(reason, unit.path))
    units = [
        _in_order(unit, good[model])
        for unit, layout in zip(good, layout_numbers.tolist(), strict=True)
        if layout not in apart
    ]
    return units, used, remarks + [remark for unit in units for remark in unit.remarks]


def _in_order(unit: Unit, model: Unit) -> Unit:
    """Return a unit with its fields in the order of the model: HDF5 may list them in the order they were made."""
    names = [leaf.spec.name for leaf in unit.leaves]
    order = [names.index(leaf.spec.name) for leaf in model.leaves]
    if order == sorted(order):
        return unit
    leaves = tuple(unit.leaves[number] for number in order)
    return unit._replace(leaves=leaves, shapes=tuple(unit.shapes[number] for number in order))


def _in_words(leaf: ArrayLeaf) -> str:
    """Return type and place of a field in words; fields that differ in them cannot be packed together."""
    where = f"attribute {leaf.attribute}" if leaf.attribute else leaf.array
    where += "".join(f"[{member}]" for member in leaf.members)
    # An array that is a sample has no path of its own.
    return " of ".join(filter(None, (leaf.spec.in_words, where)))


def _common(units: Sequence[Unit]) -> Mapping[str, Constant]:
    """Return the constants that all units share.

    Raises:
        SourceError: a unit has another value, or lacks one.
    """
    first = units[0].constants
    for unit in units:
        for name in sorted(first.keys() | unit.constants.keys()):
            one, other = first.get(name), unit.constants.get(name)
            if one is None or other is None or one.digest != other.digest:
                how = "differs between" if one and other else "is not in both of"
                raise SourceError(
                    f"{name} {how} {units[0]} and {unit}, so --once cannot keep one for all; without --once it is "
                    "packed with every sample",
                    unit.path if other else units[0].path,
                )
    return first


def _values(kind: str, constant: Constant) -> Any:
    with open_tree(kind, constant.place) as tree, tree.faults(f"reading {constant.path}"):
        return constant_values(tree, constant.path)


# ---------------------------------------------------------------- the source


def _row_source(
    kind: str, units: Sequence[Unit], attributes: Mapping[str, dict[str, Any]], axis: int, options: KeptOptions
) -> ArraySource:
    """Return the rows of all units, one after another; files of one tree lie side by side, each with its fields."""
    tables: list[list[TreeRows]] = [[] for _ in units[0].place]
    files: list[tuple[str, int, Mapping[str, Any]]] = []
    for unit in units:
        by_file: dict[str, list[ArrayLeaf]] = defaultdict(list)
        for leaf in unit.leaves:
            by_file[leaf.file].append(leaf)
        for runs, of_field in zip(tables, unit.place, strict=True):
            leaves = unit.leaves if len(tables) == 1 else tuple(by_file[of_field.paths[0]])
            for path, rows in zip(of_field.paths, of_field.rows or (unit.samples,), strict=True):
                runs.append(TreeRows((of_field._replace(paths=(path,), rows=()),), "", 0, rows, leaves, unit.files))
                files.append((path, rows, unit.attributes))
    names = _relative(path for path, _, _ in files)
    kept_files = [
        KeptFile(names[path], rows, {"/": dict(file_attributes)} if file_attributes else {})
        for path, rows, file_attributes in files
    ]
    origin = ArraysOrigin(options, {}, files=kept_files, fields=dict(attributes), classes=_classes(units))
    return RowSource(kind, [RowTable.of(runs) for runs in tables if runs[0].leaves], origin, axis)


def _unit_source(
    kind: str, units: Sequence[Unit], attributes: Mapping[str, dict[str, Any]], options: KeptOptions
) -> ArraySource:
    homes = _homes(units)
    names = [unit.name or f"{homes[unit.path]}{unit.root}".lstrip("/") for unit in units]
    counts = Counter(unit.path for unit in units)
    origin = ArraysOrigin(
        options,
        {},
        files=[KeptFile(home, counts[path]) for path, home in homes.items() if units[0].root],
        attributes={name: dict(unit.attributes) for name, unit in zip(names, units, strict=True) if unit.attributes},
        attrs=[leaf.attribute for leaf in units[0].leaves if leaf.attribute],
        fields=dict(attributes),
        classes=_classes(units),
    )
    runs = [TreeRows(unit.place, unit.root, 0, 1, unit.leaves, unit.files) for unit in units]
    source = UnitSource(kind, runs, origin, units[0].kind, names, [unit.shapes for unit in units])
    splits: dict[str, list[str]] = defaultdict(list)
    for unit, name in zip(units, names, strict=True):
        for split in unit.splits:
            splits[split].append(name)
    source.splits = dict(splits)
    return source


def _relative(paths: Iterable[str]) -> dict[str, str]:
    """Return paths relative to the folder that holds all."""
    paths = dict.fromkeys(paths)
    folder = os.path.commonpath([Path(path).parent for path in paths])
    return {path: as_text(Path(os.path.relpath(path, folder)).as_posix()) for path in paths}


def _homes(units: Sequence[Unit]) -> dict[str, str]:
    """Return by path of a tree how the names of its units begin: with this path, if there are several.

    The path has no suffix, unless some trees differ only in their suffix.
    """
    names = _relative(unit.path for unit in units)
    if len(names) == 1 and units[0].root:
        return dict.fromkeys(names, "")
    homes = {path: Path(name).with_suffix("").as_posix() for path, name in names.items()}
    return homes if len(set(homes.values())) == len(names) else names  # as of run.1 and run.2


def _attributes(units: Sequence[Unit]) -> tuple[dict[str, dict[str, Any]], list[Remark]]:
    """Return the attributes of each field on which all units agree, and remarks on the others."""
    agreed: dict[str, dict[str, Any]] = {}
    remarks: dict[Remark, None] = {}
    for unit in units:
        for field in (leaf.spec.name for leaf in unit.leaves):
            of_unit = unit.fields.get(field, {})
            shared = agreed.setdefault(field, dict(of_unit))
            if shared != of_unit:
                for name in [
                    name for name in {**shared, **of_unit} if name not in shared or shared[name] != of_unit.get(name)
                ]:
                    remarks[_DIFFERING, f"{name} of {field}"] = None
                    shared.pop(name, None)
    return {field: attributes for field, attributes in agreed.items() if attributes}, list(remarks)


def _classes(units: Sequence[Unit]) -> list[str]:
    return [name for leaf in units[0].leaves for name in classes_of(leaf)]


def _sentences(kind: str, remarks: Iterable[Remark]) -> list[str]:
    """Return one sentence for all remarks about the same, and those about nothing else as they are."""
    items: dict[tuple[str, str], list[str]] = defaultdict(list)
    for about, item in dict.fromkeys(remarks):
        items[about, "" if about else item].append(item)
    links = ". --field NAME=/path takes a link" if kind == "hdf5" else ""
    return [
        alone or f"{about}: " + (f"{first_few(listed, joined='; ')}{links}" if about == LEFT_OUT else first_few(listed))
        for (about, alone), listed in items.items()
    ]
