"""Completes a source of arrays, once the headers of all trees are known: names, constants, origin and remarks."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from natsort import natsorted

from packer.errors import UsageError, as_text, first_few
from packer.sources.arrays.choosing import Constant, constant_values
from packer.sources.arrays.collecting import MAX_KEPT, ArrayFacts
from packer.sources.arrays.fields import ArrayLeaf, leaves_in, names_of, rows_in_words
from packer.sources.arrays.origin import ArraysOrigin, KeptFile, KeptOptions
from packer.sources.arrays.pairing import APART, are_one_table, choice_of
from packer.sources.arrays.roots import are_numbered
from packer.sources.arrays.tree import Remark, open_tree, tree_files, without_suffix
from packer.sources.arrays.units import LEFT_OUT
from packer.sources.base import Source
from packer.sources.episodes import EpisodeSource
from packer.sources.files import join
from packer.sources.options import SourceOptions, naming
from packer.sources.source import TableSource
from packer.sources.table import Files, LaidField, Row, SampleTable
from packer.sources.units import UnitChoice, folder_of, pattern_of


def complete(kind: str, source: TableSource, facts: ArrayFacts) -> Source:
    """Return a source with its names, constants, splits and origin, and what there is to say of it.

    Args:
        kind: of the trees: `hdf5`, `npy` or `zarr`.
        facts: what its trees say.

    Raises:
        UsageError: `skip` or `once` fits nothing, rows and groups may both be the samples, or nothing says whether a
            file is a field or a sample.
        SourceError: constants differ between the samples.
    """
    options, choice = source.options, choice_of(source.options)
    source.origin = {}  # made anew below: there may be a million files in it
    trees, table = source.table, facts.kept(source.table)
    if useless := set(options.skip) - facts.used:
        raise UsageError(f"--skip {min(useless)}: {facts.text} has no such array or group")
    constants = facts.constants(table, choice.unit)
    for path in options.once:
        if not any(naming(name, [path]) for name in constants):
            raise UsageError(f"--once {path}: there is no such array, neither in the samples nor in the file")
    values = {name: _values(kind, table.row(0), options.axis, constant) for name, constant in constants.items()}
    notes, attributes = list(source.remarks), facts.attributes
    if len(attributes) > MAX_KEPT:
        attributes = {}
        few = f"more than {MAX_KEPT:,} files or samples have attributes"
        notes.append(f"{few}, so none are kept; --attr NAME makes a field")
    is_table = are_one_table(kind, choice)
    if is_table:
        table = _side_by_side(table, facts.rows)
        notes += _other_tables(table, [name for name in trees.inputs if name != APART])
    elif choice.name == "rows" and options.samples is None:
        notes += _other_units(table, bool(options.pick))
    if choice.is_of_rows:
        files = _kept_files(table, attributes)
    else:
        table, files = (table, []) if table.names else _named_by_tree(table)
    of_fields, differing = facts.field_attributes([laid.name for laid in table.layouts[0]])
    of_samples = {} if choice.is_of_rows else {(table.names or [])[n]: dict(kept) for n, kept in attributes.items()}
    remarks = [*facts.remarks, *(remark for group in facts.groups for remark in group.remarks), *differing]
    source = replace(
        source,
        table=table,
        fields=table.specs(),
        origin=_origin(table, options, choice, files, of_samples, of_fields),
        remarks=[*_sentences(kind, remarks), *notes],
        constants=values,
        splits=_splits(table, facts.splits),
    )
    # Marks that are no field may lie in a file of their own.
    marked = trees.files() if is_table else []
    return EpisodeSource.of(source, facts.ends, choice.pattern, marked) if choice.name == "episodes" else source


# ---------------------------------------------------------------- rows of several files


def _side_by_side(table: SampleTable, rows: Sequence[Sequence[int]]) -> SampleTable:
    """Return the rows of the one tree of npy: of each field that was named, and of each other file, an input.

    Args:
        rows: of each of these, the rows of each file.
    """
    every = dict[str, Files]()
    for name, files in table.inputs.items():
        for group in [[file] for file in files.files] if name == APART else [files.files]:
            every[f"/{group[0]}" if name == APART else name] = Files(files.folder, group)
    inputs, layout = dict[str, Files](), list[LaidField]()
    packed = {laid.detail.file for laid in table.layouts[0]}
    for (name, files), counts in zip(every.items(), rows, strict=True):
        own = packed.intersection(join(files.folder, file) for file in files.files)
        of_input = [laid for laid in table.layouts[0] if len(every) == 1 or laid.detail.file in own]
        if of_input:
            inputs[name] = msgspec.structs.replace(files, ends=np.cumsum(counts, dtype=np.int64))
            layout += [laid._replace(detail=laid.detail._replace(file=name)) for laid in of_input]
    return SampleTable(count=sum(rows[0]), inputs=inputs, layouts=[tuple(layout)], further=table.further)


def _other_tables(table: SampleTable, fields: Sequence[str]) -> list[str]:
    """Return sentences on what else files of npy may be whose rows are the samples.

    Raises:
        UsageError: files without a field are named alike apart from digits and hold rows of one kind. They may be
            parts of one array, a field each or a sample each; nothing says which.
    """
    notes = [
        f"field {name}: the rows of {len(files.files):,} files, one after another; `--samples files` makes each a "
        "sample"
        for name, files in table.inputs.items()
        if len(files.files) > 1
    ]
    unnamed: dict[str, list[ArrayLeaf]] = defaultdict(list)
    for leaf in leaves_in(table.layouts[0], table.specs()):
        if leaf.array[1:].partition("/")[0] not in fields:
            unnamed[table.inputs[leaf.file].paths()[0]].append(leaf)
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


def _other_units(table: SampleTable, is_picked: bool) -> list[str]:
    """Return a sentence if rows were taken for samples and files may be; raises UsageError if groups may be."""
    (files,), layout = table.inputs.values(), table.layouts[0]
    if not is_picked and are_numbered(laid.detail.array for laid in layout):
        raise UsageError(
            f"{table.row(0).path}: a sample may be a row of all {len(layout)} arrays, or one of the groups "
            "that hold them; say --samples rows, or --samples groups"
        )
    rows = np.diff(np.asarray(files.ends), prepend=0)
    many = f"{len(rows):,} files of {int(rows.min()):,} to {int(rows.max()):,} rows"
    return [f"{many}: each row is a sample; --samples files makes each file one"] * bool(rows.min() < rows.max())


def _values(kind: str, row: Row, axis: int, constant: Constant) -> Any:
    with open_tree(kind, tree_files(row.paths, axis)) as tree, tree.faults(f"reading {constant.path}"):
        return constant_values(tree, constant.path)


# ---------------------------------------------------------------- what is kept besides the samples


def _kept_files(table: SampleTable, attributes: Mapping[int, Mapping[str, Any]]) -> list[KeptFile]:
    """Return what is kept of the files whose rows are the samples."""
    names = relative_names(list(table.inputs.values()))
    rows = [n for files in table.inputs.values() for n in np.diff(np.asarray(files.ends), prepend=0).tolist()]
    none: dict[str, Any] = {}  # one for all files
    return [
        KeptFile(name, count, {"/": dict(attributes[number])} if number in attributes else none)
        for number, (name, count) in enumerate(zip(names, rows, strict=True))
    ]


def _named_by_tree(table: SampleTable) -> tuple[SampleTable, list[KeptFile]]:
    """Return samples with their names, and what is kept of trees that hold several.

    The names of the samples of a tree begin with its path, if there are several trees. The path has no suffix, unless
    some trees differ only in their suffix.
    """
    (files,) = table.inputs.values()
    counts = [len(list(of_file)) for _, of_file in groupby(files.files)]
    names = relative_names([Files(files.folder, [file for file, _ in groupby(files.files)])])
    homes = list(map(without_suffix, names))
    suffixes = {name[len(home) :] for name, home in zip(names, homes, strict=True)}
    if len(suffixes) > 1 and len(set(homes)) < len(homes):  # as of run.1 and run.2
        homes = names
    if not files.roots:
        return msgspec.structs.replace(table, names=homes), []
    if len(homes) == 1:
        homes = [""]
    home_of = (home for home, count in zip(homes, counts, strict=True) for _ in range(count))
    names = [f"{home}{root}".lstrip("/") for root, home in zip(files.roots, home_of, strict=True)]
    return msgspec.structs.replace(table, names=names), list(map(KeptFile, homes, counts))


def relative_names(inputs: Sequence[Files]) -> list[str]:
    """Return the paths of files relative to the folder that holds all; a file that has this name is returned."""
    above = ""
    for files in inputs:
        for inner, _ in groupby(map(folder_of, files.files)):
            parent = os.path.abspath(join(files.folder, inner))  # noqa: PTH100 - links stay
            above = os.path.commonpath([above, parent]) if above else parent
    names = []
    for files in inputs:
        for file in files.files:
            name = as_text(os.path.relpath(join(files.folder, file), above).replace(os.sep, "/"))
            names.append(file if name == file else name)
    return names


def _splits(table: SampleTable, of_samples: Mapping[int, Sequence[str]]) -> dict[str, list[str]]:
    """Return the names of the samples of each split that trees list."""
    splits: dict[str, list[str]] = defaultdict(list)
    for number, names in of_samples.items():
        for name in names:
            splits[name].append((table.names or [])[number])
    return dict(splits)


def _origin(
    table: SampleTable,
    options: SourceOptions,
    choice: UnitChoice,
    files: list[KeptFile],
    attributes: dict[str, dict[str, Any]],
    of_fields: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    """Return what the manifest keeps: arguments are as in `ArraysOrigin`."""
    leaves = leaves_in(table.layouts[0], table.specs())
    # The path of a field is kept if it is not its name with slashes for dots: names may hold dots of their own.
    paths = {leaf.spec.name: leaf.path for leaf in leaves if not leaf.attribute}
    names = {leaf.spec.name: of_numbers for leaf in leaves if (of_numbers := names_of(leaf))}
    kept_options = KeptOptions(
        dict(options.pick), list(options.skip), list(options.once), list(options.sparse), samples=str(choice)
    )
    if choice.is_of_rows:
        kept_options = msgspec.structs.replace(kept_options, axis=options.axis, samples="rows")
    origin = ArraysOrigin(
        kept_options,
        paths={name: path for name, path in paths.items() if path != "/" + name.replace(".", "/")},
        files=files[:1],
        attributes=attributes,
        attrs=[leaf.attribute for leaf in leaves if leaf.attribute],
        fields=of_fields,
        classes=names.pop("label", []),
        categories=names,
    )
    # A dict of each file would take ten times its memory.
    return {name: files if name == "files" else value for name, value in msgspec.to_builtins(origin).items()}


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
