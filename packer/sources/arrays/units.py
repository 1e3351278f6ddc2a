"""The units of a tree, and the fields of each, from headers alone.

A unit is what one sample is made from: the tree itself, an array, or a group; or all rows of a tree, a sample each. It
is known by its root: the path of its group or array with a leading slash, empty for the tree itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, first_few
from packer.format import check_count
from packer.sources.arrays.choosing import (
    Constant,
    Skipping,
    attribute_leaf,
    check_common,
    choose,
    constants_of,
    default_name,
    row_starts,
)
from packer.sources.arrays.fields import ArrayLeaf, laid, lengths_of, names_of, scaled
from packer.sources.arrays.meaning import SCALING, VALID
from packer.sources.arrays.origin import SPARSE_PARTS
from packer.sources.arrays.pairing import choice_of
from packer.sources.arrays.roots import roots_of
from packer.sources.arrays.tree import Remark, Tree, Unwritten, open_tree, spans_of, tree_files
from packer.sources.episodes import ends_of, is_table
from packer.sources.looking import AFTER_END, LACKING, NEVER_WRITTEN, UNWRITTEN, Header, unwritten_error
from packer.sources.options import SourceOptions
from packer.sources.table import Layout, Row
from packer.sources.units import upwards

#: What is not packed or kept, as the beginning of a sentence that lists it.
LEFT_OUT = "skipped"
LOST = "attributes are kept if they are numbers or text of at most 16 KiB; these are not"
REVERSED = "written by MATLAB, so axes come in the reverse order: (samples, columns, rows), and --axis counts in it"
OTHERS = "left out, since they have no row for each row of the sparse matrix"
UNWRITTEN_ONCE = f"{NEVER_WRITTEN}, in arrays kept once"
OUTSIDE = "values that these call invalid are packed as they are"
ABOVE = "attributes of groups above the samples are not kept"


class SampleFacts(NamedTuple):
    """What one sample says besides its fields; or a tree, all rows of which are a sample each.

    Attributes:
        constants: arrays kept once that it holds, or its tree, by name.
        attributes: those of its attributes that are kept.
        fields: attributes of the arrays that its fields are, by field.
        files: further files that are read for it.
        remarks: on what is not packed or kept.
        unwritten: what of its arrays was never written, of the first that lacks anything; empty if none does.
        splits: those in which the tree itself lists it.
        ends: the row after each episode; None if rows are no episodes.
        rows: of a tree of several groups of files, the rows of each file of each group.
    """

    constants: Mapping[str, Constant]
    attributes: Mapping[str, Any]
    fields: Mapping[str, Mapping[str, Any]]
    files: tuple[str, ...]
    remarks: Sequence[Remark]
    unwritten: str = ""
    splits: Sequence[str] = ()
    ends: NDArray[np.int64] | None = None
    rows: Sequence[Sequence[int]] = ()


class Listing(NamedTuple):
    """The samples of one tree in natural order, and the errors of those that cannot be packed.

    Attributes:
        samples: or the tree, if its rows are the samples.
        used: entries of the option `skip` that name something here.
    """

    samples: list[tuple[Header, SampleFacts] | SourceError]
    used: set[str]
    remarks: list[Remark]


def look(kind: str, row: Row, options: SourceOptions) -> Listing:
    """Return the units of one tree, after checking every file and size that they depend on.

    Args:
        kind: of the tree: `hdf5`, `npy` or `zarr`.
        row: the files of the tree.
        options: `pick` and `skip` are relative to a unit; `skip` may also name something outside of all units.

    Raises:
        UsageError: there are more fields than a dataset may have.
        SourceError: the tree cannot be read, has no such units, or holds something that belongs to none of them.
    """
    choice = choice_of(options)
    with open_tree(kind, tree_files(row.paths, options.axis)) as tree, tree.faults("listing the file"):
        marks = _marks(tree, choice.pattern) if choice.name == "episodes" and choice.pattern else {}
        ends = ends_of(marks) if marks else None
        is_out = Skipping(tree, options.skip, options.once)
        roots, splits, remarks = roots_of(tree, choice, is_out)
        outside = [name for name in options.once if roots != [""] and tree.find(f"/{name.strip('/')}")]
        constants = constants_of(tree, "", outside)
        remarks += _remarks_on_constants(tree, constants, options)
        inner = _options_of_units(options, is_out, marks, outside)
        of_matrices = [f"{group.strip('/')}/{part}" for group in inner.sparse for part in SPARSE_PARTS]
        is_inner_out = Skipping(tree, inner.skip, inner.once, of_matrices)
        units: list[tuple[Header, SampleFacts] | SourceError] = []
        for root in roots:
            try:
                with tree.faults("listing it"):
                    header, facts = _unit(tree, root, choice.unit, is_inner_out, inner, ends)
                if ends is not None and ends[-1] != header.rows:
                    raise SourceError(
                        f"{choice.pattern} covers {int(ends[-1]):,} rows, but there are {header.rows:,}; name the "
                        "array that belongs to these rows"
                    )
                of_unit = tuple(split for split, names in splits.items() if root in names)
                constants_of_both = {**constants, **facts.constants}
                units.append((header, facts._replace(constants=constants_of_both, splits=of_unit, ends=ends)))
            except SourceError as error:
                where = f"{choice.unit} {root}: " if root else ""
                units.append(SourceError(f"{where}{error.reason}", error.path or tree.path))
        remarks += _remarks_on_tree(tree, roots)
        return Listing(units, is_out.used | is_inner_out.used, remarks)


def _options_of_units(
    options: SourceOptions, is_out: Skipping, marks: Mapping[str, NDArray[Any]], outside: Sequence[str]
) -> SourceOptions:
    """Return the options of units: without paths that name something next to these, such as arrays kept once."""
    # A path from the root of the tree that names something next to the units is not also the name of a field.
    skip = tuple(path for path in options.skip if path not in is_out.used or path[0] != "/")
    skip += tuple(path for path, values in marks.items() if is_table(values))  # they have no value for each row
    once = tuple(name for name in options.once if name not in outside)
    is_same = (skip, once) == (tuple(options.skip), tuple(options.once))
    return options if is_same else replace(options, skip=skip, once=once)


def _remarks_on_tree(tree: Tree, roots: Sequence[str]) -> list[Remark]:
    """Return remarks on what lies outside of the units of a tree, or concerns all of them."""
    file, remarks = tree.path.rpartition("/")[2], list[Remark]()
    if tree.has_reversed_axes:
        remarks.append((REVERSED, file))
    if extra := tree.bytes_after():
        remarks.append((AFTER_END, f"{file} ({extra:,} bytes)"))
    above = {group: None for root in roots for group in [*upwards(root)][1:] + [""] * bool(root)}
    return remarks + [(ABOVE, group or "/") for group in above if any(tree.attributes(group))]


def _marks(tree: Tree, pattern: str) -> dict[str, NDArray[Any]]:
    """Return the arrays that say where episodes end; raises SourceError if one is not there."""
    marks = {}
    for name in pattern.split(","):
        entry = tree.find(f"/{name.strip('/')}")
        if entry is None or not entry.is_array or len(entry.shape or ()) != 1:
            paths = [entry.path for entry in tree.entries() if entry.is_array and len(entry.shape or ()) == 1]
            reason = f"has no array {name} of one axis, which would say where episodes end"
            raise SourceError(f"{reason}; such arrays are {first_few(paths) or 'not in it'}")
        marks[name] = np.asarray(tree.open(entry.path)[:])
    return marks


def _unit(
    tree: Tree, root: str, kind: str, is_out: Skipping, options: SourceOptions, ends: NDArray[np.int64] | None
) -> tuple[Header, SampleFacts]:
    """Return the rows of a tree, or one of its units.

    Args:
        ends: as in `SampleFacts`.

    Raises:
        UsageError: there are more fields than a dataset may have.
        SourceError: a field is missing or cannot be stored, or the sample axes differ.
    """
    is_row = kind == "row"
    leaves, asides, others = choose(tree, root, options.axis if is_row else None, is_out, options)
    check_common(leaves, tree)
    leaves += [attribute_leaf(tree, root, name, leaves) for name in options.attrs]
    check_count(len(leaves))
    attributes, lost = tree.attributes(root)
    file = tree.path.rpartition("/")[2]
    holder = f"{kind} {root} of {file}" if root else file
    remarks = [(LEFT_OUT, aside) for aside in asides] + [(OTHERS, path) for path in others]
    remarks += [(LOST, f"{name!r} of {holder}") for name in lost]
    of_fields: dict[str, dict[str, Any]] = {}
    for number, leaf in enumerate(leaves):
        if leaf.attribute:
            continue
        of_array, lost = tree.attributes(root + leaf.array) if leaf.array else (attributes, [])
        if of_array and not options.stored:
            leaves[number] = leaf = scaled(leaf, of_array, options.scaled)
        if leaf.scaling:
            of_array = {name: value for name, value in of_array.items() if name not in SCALING}
        if limits := [name for name in VALID if name in of_array]:
            remarks.append((OUTSIDE, f"{' and '.join(limits)} of {leaf.path}"))
        if of_array and leaf.array:
            of_fields[leaf.spec.name] = of_array
        if leaf.starts:
            row_starts(tree, leaf)
        remarks += [(LOST, f"{name!r} of {leaf.path}") for name in lost] + _remarks_on(leaf)
    arrays = dict.fromkeys(root + leaf.array for leaf in leaves if not leaf.attribute)
    files = tuple(dict.fromkeys(file for array in arrays for file in tree.files_of(array)))
    constants = constants_of(tree, root, options.once)
    remarks += _remarks_on_constants(tree, constants, options)
    unwritten, lists = _unwritten_in(tree, arrays, options)
    numbers = {UNWRITTEN.format(path[len(root) :], lacking.piece): lacking.missing for path, lacking in unwritten}
    if is_row and unwritten:
        numbers[LACKING] = _count_lacking(tree, leaves, {path for path, _ in unwritten}, options.axis, ends)
    if not is_row:
        numbers |= {name: length for leaf in leaves for name, length in lengths_of(leaf).items()}
    rows = leaves[0].samples if is_row else None
    header = Header(_shared(tuple(map(laid, leaves))), numbers, root, rows=rows)
    rows_of = [tree.rows.get(group.base) or (rows,) for group in tree.files] if rows is not None else []
    first = f"{holder}: {lists[0].removeprefix('it: ')}" if lists else ""
    return header, SampleFacts(constants, attributes, of_fields, files, remarks, first, rows=rows_of)


def _unwritten_in(
    tree: Tree, arrays: Iterable[str], options: SourceOptions
) -> tuple[list[tuple[str, Unwritten]], list[str]]:
    """Return what of arrays was never written, each with its path, and each in words.

    Raises:
        SourceError: some was not, which is refused.
    """
    unwritten = [(path, lacking) for path in arrays for lacking in tree.unwritten(path)]
    lists = [f"{path or 'it'}: {lacking.in_words}" for path, lacking in unwritten]
    if unwritten and options.unwritten == "refuse":
        raise unwritten_error("; ".join(lists), tree.path)
    return unwritten, lists


def _remarks_on_constants(tree: Tree, constants: Mapping[str, Constant], options: SourceOptions) -> list[Remark]:
    """Return what of arrays that are kept once was never written; raises SourceError if that is refused."""
    _, lists = _unwritten_in(tree, [constant.path for constant in constants.values()], options)
    return [(UNWRITTEN_ONCE, f"{tree.path.rpartition('/')[2]}: {lacking}") for lacking in lists]


def _count_lacking(
    tree: Tree, leaves: Sequence[ArrayLeaf], paths: Collection[str], axis: int, ends: NDArray[np.int64] | None
) -> int:
    """Return how many rows, or episodes, have values that were never written.

    Args:
        paths: of the arrays that lack some.
    """
    spans = [np.zeros((0, 2), np.int64)]
    for leaf in leaves:
        if leaf.array in paths:
            of_array = tree.lacking_rows(leaf.array, 0 if leaf.starts else axis)
            spans.append(_touched(of_array, row_starts(tree, leaf)) if leaf.starts else of_array)
    rows = _joined(np.concatenate(spans))
    rows = rows if ends is None else _touched(rows, np.array([0, *ends]))
    return int(np.diff(rows).sum())


def _joined(spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return spans in order, of which none overlap."""
    spans = spans[np.argsort(spans[:, 0])]
    starts, stops = spans[:, 0], np.maximum.accumulate(spans[:, 1])
    is_first = np.concatenate([[True], starts[1:] > stops[:-1]])[: len(spans)]
    return np.column_stack([starts[is_first], stops[np.roll(is_first, -1)]])


def _touched(spans: NDArray[np.int64], bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the spans of numbers n for which something from the bound n to the next lies in a span."""
    spans = _joined(spans)
    if not len(spans):
        return spans
    lengths = np.diff(spans).reshape(-1)
    before = np.cumsum(lengths) - lengths
    counts = np.interp(bounds, spans.reshape(-1), np.column_stack([before, before + lengths]).reshape(-1))
    return spans_of(np.diff(counts) > 0)


@lru_cache(256)
def _shared(layout: Layout) -> Layout:
    """Return the first layout that is equal to this one: many samples have it."""
    return layout


def _remarks_on(leaf: ArrayLeaf) -> list[Remark]:
    """Return what is another name or value than in the file, or not kept."""
    remarks = [("", f"{leaf.path} {leaf.remark}")] if leaf.remark else []
    if "=" in leaf.path and leaf.spec.name == default_name(leaf):
        reason = f"field {leaf.spec.name}: {leaf.path} holds =, which no name of a field can"
        remarks.append(("", f"{reason}; _ stands in its place"))
    if leaf.enum and not names_of(leaf):
        names = first_few([f"{number} {name}" for number, name in leaf.enum])
        remarks.append(("", f"{leaf.path} is an enum, whose names are not kept: {names}"))
    return remarks
