"""The fields that an array can become, and their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import SourceError, first_few
from packer.format import DTYPES, FieldSpec
from packer.sources.arrays.meaning import Scaling, in_words, scaling_of
from packer.sources.arrays.tree import Entry, is_text, list_dtype
from packer.sources.base import fits
from packer.sources.table import LaidField, Layout

#: The name of a field until it is chosen.
_UNNAMED = "values"
#: So many names of classes are said one by one.
_MOST_NAMES = 10
_NOT_CHOSEN = FieldSpec(name=_UNNAMED, dtype="uint8")
#: What a table does not keep of a leaf: the field says it.
_OF_NO_SAMPLE: dict[str, Any] = {"spec": _NOT_CHOSEN, "samples": None, "problem": "", "remark": ""}


class ArrayLeaf(NamedTuple):
    """An array, a member of a compound one or an attribute of a unit, and the field that it becomes.

    Attributes:
        array: path of the array, from the root of the tree or unit, with a leading slash; empty for an array that is a
            sample.
        members: names of compound members that lead from the array's values to the field's.
        spec: what the field is; its name is chosen last.
        samples: length along the sample axis; None if the whole array is one sample's value.
        problem: why it cannot be a field, as a phrase that follows the path.
        remark: how its values differ from those in the file, as a phrase that follows the path.
        attribute: name of the attribute of the unit that holds the value, if no array does.
        starts: path of the array with the row of `array` at which each sample starts; empty if rows are samples.
        scaling: how its stored numbers become values; None if they are the values.
        file: the file that holds it, if the tree has several; in a table of rows, the input that has this file.
        enum: the numbers of an enum, ascending, and their names.
    """

    array: str
    members: tuple[str, ...] = ()
    spec: FieldSpec = _NOT_CHOSEN
    samples: int | None = None
    problem: str = ""
    remark: str = ""
    attribute: str = ""
    starts: str = ""
    scaling: Scaling | None = None
    file: str = ""
    enum: tuple[tuple[int, str], ...] = ()

    @property
    def path(self) -> str:
        return "/".join((self.array, *self.members))

    @property
    def in_words(self) -> str:
        """Return a description, such as `/x: 10 samples of array float32 [3]`."""
        count = "" if self.samples is None else f"{self.samples:,} samples of "
        return f"{self.path} {self.problem}" if self.problem else f"{self.path}: {count}{self.spec.in_words}"

    def changed(self, **changes: Any) -> ArrayLeaf:
        """Return the leaf with changes of its `spec`."""
        return self._replace(spec=_changed(self.spec, *changes.items()))


@lru_cache(1024)
def _changed(spec: FieldSpec, *changes: tuple[str, Any]) -> FieldSpec:
    return msgspec.structs.replace(spec, **dict(changes))


def laid(leaf: ArrayLeaf) -> LaidField:
    """Return the field of a table that a leaf is: of a row with its lengths, else with columns that hold them."""
    spec, shape = leaf.spec, tuple[int | str | None, ...](leaf.spec.shape)
    if leaf.samples is None:  # of a sample, whose lengths and file are its own
        spec = _changed(spec, ("shape", (None,) * len(shape)))
        shape = tuple(n if n is None else length_name(spec.name, axis) for axis, n in enumerate(shape))
        leaf = leaf._replace(file="")
    return _laid(leaf._replace(**_OF_NO_SAMPLE), spec, shape)


@lru_cache(1024)
def _laid(leaf: ArrayLeaf, spec: FieldSpec, shape: tuple[int | str | None, ...]) -> LaidField:
    where = f"attribute {leaf.attribute}" if leaf.attribute else leaf.array
    where += "".join(f"[{member}]" for member in leaf.members)
    # An array that is a sample has no path of its own.
    in_words = " of ".join(filter(None, (spec.in_words, where, _classes_in_words(names_of(leaf)))))
    return LaidField(spec.name, str(spec.dtype), shape, in_words, spec.kind, leaf)


def lengths_of(leaf: ArrayLeaf) -> dict[str, int]:
    """Return the lengths of the axes of a leaf that is a sample's, by the name of the column of the table."""
    axes = enumerate(leaf.spec.shape)
    return {length_name(leaf.spec.name, axis): length for axis, length in axes if length is not None}


def length_name(field: str, axis: int) -> str:
    """Return the name of the column with the length of an axis of a field."""
    return f"{field}[{axis}]"


def leaves_in(layout: Layout, fields: Sequence[FieldSpec]) -> list[ArrayLeaf]:
    """Return the leaves that the fields of a table are.

    Args:
        fields: what each is in all samples.
    """
    specs = {spec.name: spec for spec in fields}
    return [laid.detail._replace(spec=specs[laid.name]) for laid in layout]


def leaves_of(entry: Entry, axis: int | None) -> list[ArrayLeaf] | str:
    """Return the fields that an array can become: one, or one for each member of a compound; or why it is skipped.

    Args:
        axis: number of the sample axis, from the end if negative; None if the whole array is the value of one sample.
    """
    leaf = ArrayLeaf(entry.path, problem=entry.problem, remark=entry.remark, file=entry.file)
    if entry.problem:
        return [leaf]
    if entry.aside:
        return entry.aside
    if entry.shape is None or entry.dtype is None:
        return [] if entry.is_group else [leaf._replace(problem="is empty: it has no values and no shape")]
    shape = entry.shape
    if axis is not None:
        if shape == ():
            return f"is a single value, which --once {entry.path} keeps"
        number = axis if axis >= 0 else len(shape) + axis
        if not 0 <= number < len(shape):
            return [leaf._replace(problem=f"has no axis {axis}; --axis -1 takes the last axis of every array")]
        leaf, shape = leaf._replace(samples=shape[number]), shape[:number] + shape[number + 1 :]
    return list(spread_leaves(leaf, entry.dtype, shape))


def spread_leaves(leaf: ArrayLeaf, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Iterator[ArrayLeaf]:
    """Yield the fields that samples of `dtype` and `shape` become: the leaf, or one for each member of a compound.

    Each has its `spec`, or a `problem`.
    """
    if dtype.subdtype is not None:
        yield from spread_leaves(leaf, dtype.subdtype[0], shape + dtype.subdtype[1])
        return
    if dtype.names:
        for name in dtype.names:
            yield from spread_leaves(leaf._replace(members=(*leaf.members, name)), dtype[name], shape)
        return
    base, text = list_dtype(dtype), is_text(dtype)
    native = (dtype if base is None else base).newbyteorder("=").name
    if (text or base is not None) and shape:
        kind = "strings" if text else "lists"
        problem = f"holds {kind} of shape {shape} a sample, but only one can be stored; make an array of each"
    elif not text and native not in DTYPES:
        problem = f"holds values of {base or dtype}, which cannot be stored; write them as one of {', '.join(DTYPES)}"
    elif base is not None and not base.isnative:
        problem = f"holds lists of {base}, whose byte order h5py forgets; write them as {native}"
    else:
        try:
            kind, stored = ("text", "uint8") if text else ("array", native)
            leaf = leaf.changed(dtype=stored, kind=kind, shape=(None,) if text or base is not None else shape)
            enum = dict(dtype.metadata or {}).get("enum", {})
            yield leaf._replace(enum=tuple(sorted((int(n), name) for name, n in enum.items()))) if enum else leaf
            return
        except ValueError as error:
            problem = f"cannot be stored: {error}"
    yield leaf._replace(problem=problem)


def names_of(leaf: ArrayLeaf) -> list[str]:
    """Return the names of the numbers of a field, if all from 0 on have one."""
    return [name for _, name in leaf.enum] if [n for n, _ in leaf.enum] == list(range(len(leaf.enum))) else []


def _classes_in_words(names: Sequence[str]) -> str:
    """Return the names of numbers, or some of many, the same if all are the same; empty if there are none."""
    if len(names) > _MOST_NAMES:
        digest = xxhash.xxh3_64_hexdigest("\n".join(names).encode("utf-8", "surrogatepass"))
        return f"{len(names):,} classes ({first_few(list(names))}; digest {digest[:8]})"
    return f"classes {', '.join(names)}" if names else ""


def rows_in_words(leaves: Sequence[ArrayLeaf]) -> str:
    """Return what a row of an array is, the same for arrays that may be parts of one."""
    return "; ".join(f"{'.'.join(leaf.members)} {leaf.spec.in_words}".strip() for leaf in leaves)


def scaled(leaf: ArrayLeaf, attributes: Mapping[str, Any], is_applied: bool) -> ArrayLeaf:
    """Return a leaf whose stored numbers become the values that its attributes say.

    Args:
        attributes: of the array, as they are kept.
        is_applied: whether the user asked for the values, and not for the numbers.

    Raises:
        SourceError: they differ, and nobody said which are to be packed.
    """
    scaling = None if leaf.spec.kind == "text" else scaling_of(str(leaf.spec.dtype), attributes)
    if scaling is None:
        return leaf
    if not is_applied:
        raise SourceError(
            f"{leaf.path} has {in_words(attributes)}: its stored numbers are not its values; --scaled packs the "
            "values, NaN where they are missing, and --stored the numbers as they are"
        )
    return leaf.changed(dtype=scaling.dtype)._replace(scaling=scaling)


# ---------------------------------------------------------------- values


def values_of(values: NDArray[Any], leaf: ArrayLeaf, path: str) -> NDArray[Any] | list[NDArray[Any]] | list[str]:
    """Return the values of a field, for m samples, from those of its array, in the form that a block holds.

    Raises:
        SourceError: text is not UTF-8, a bool is neither 0 nor 1, or the file has changed since it was planned.
    """
    for member in leaf.members:
        values = values[member]
    spec = leaf.spec
    if spec.kind == "text" and values.ndim == 1 and is_text(values.dtype):
        return [_text(text, leaf, path) for text in values.tolist()]
    native = np.dtype(spec.dtype)
    if spec.shape == (None,) and list_dtype(values.dtype) is not None:
        if leaf.scaling:
            return [leaf.scaling.apply(np.asarray(row, leaf.scaling.stored)) for row in values]
        return [np.ascontiguousarray(row, dtype=native) for row in values]
    check(values.dtype, values.shape[1:], leaf, path)
    if native == np.bool_ and (most := np.ascontiguousarray(values).view(np.uint8).max(initial=0)) > 1:
        raise SourceError(f"field {spec.name}: a bool is 0 or 1, but it holds {most}; write it as uint8", path)
    # The view drops h5py's metadata of the dtype (enum names).
    plain = values if leaf.scaling else np.require(values, native, ["C", "A", "E"]).view(native)
    numbers = leaf.scaling.apply(values) if leaf.scaling else plain
    return list(numbers) if spec.is_ragged else numbers


def check(dtype: np.dtype[Any], shape: tuple[int, ...], leaf: ArrayLeaf, path: str) -> None:
    """Raise SourceError if the dtype or shape of one sample is not what was planned."""
    spec = leaf.spec
    stored = leaf.scaling.stored if leaf.scaling else spec.dtype
    if spec.kind == "text" or not fits(shape, spec.shape) or dtype.newbyteorder("=").name != stored:
        raise SourceError(f"field {spec.name} is {dtype} {shape} now: the file has changed; run again", path)


def _text(text: str | bytes, leaf: ArrayLeaf, path: str) -> str:
    try:
        return text if isinstance(text, str) else text.decode()
    except UnicodeDecodeError:
        raise SourceError(
            f"field {leaf.spec.name}: text that is not UTF-8 ({text[:40]!r}); write it as UTF-8, or leave it out "
            f"with --skip {leaf.array or leaf.spec.name}",
            path,
        ) from None
