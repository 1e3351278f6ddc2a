"""Which arrays of a unit become fields, under which names, and which are kept once for all samples."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError, first_few
from packer.format import DTYPES
from packer.sources.arrays.fields import Column, columns_of, leaves
from packer.sources.arrays.origin import SPARSE_PARTS
from packer.sources.arrays.tree import Place, Tree
from packer.sources.options import SourceOptions, naming
from packer.sources.units import upwards

_MAX_LINES = 10


class Constant(NamedTuple):
    """An array that is the same in every file or unit that has it, with a digest of its dtype, shape and values."""

    place: Place
    path: str
    digest: str


class Skipping:
    """Says whether the user skips a path, and remembers which entries of the options named something."""

    def __init__(self, *given: Sequence[str]) -> None:
        self._given = [path for paths in given for path in paths]
        self.used: set[str] = set()

    def __call__(self, path: str) -> bool:
        names = naming(path, self._given)
        self.used.update(names)
        return bool(names)


def choose(
    tree: Tree, root: str, axis: int | None, is_out: Skipping, options: SourceOptions
) -> tuple[list[Column], list[str]]:
    """Return the fields that the options choose below a root, with their names; and which others are skipped, and why.

    Raises:
        SourceError: one is missing, cannot be a field, or two would have one name; or there is none.
    """
    asides: list[str] = []
    if options.pick:
        is_out.used.update(options.skip)  # without a listing, nobody can say what it names
        named = [pair for name, path in options.pick.items() for pair in _picked(tree, root, name, path, axis)]
    else:
        columns, asides = _below(tree, root, axis, is_out)
        _refuse(columns, tree)
        named = list(zip(_own_names(columns, tree), columns, strict=True))
    for group in options.sparse:
        named += _sparse(tree, root, group.strip("/"))
    chosen: dict[str, Column] = {}
    for name, column in named:
        twin = chosen.get(name)
        if twin is not None and not options.pick:
            both = " and ".join(f"{one.path}{one.file and f' of {one.file}'}" for one in (twin, column))
            advice = "pick with --field NAME=/path"
            if column.file:
                advice = "if the files are the samples, say `--samples files`, if the folders are, `--samples folders`"
                advice += "; else name the arrays with FIELD=FILE"
            if column.file and axis is not None:
                raise UsageError(f"{both} would both be field {name!r}; {advice}")
            raise SourceError(f"{both} would both be field {name!r}; {advice}", tree.path)
        try:
            chosen[name] = column.changed(name=name)
        except ValueError as error:
            raise SourceError(f"{column.path or name}: {error}; name it with --field NAME=/path") from None
    if not chosen and asides:
        raise SourceError(
            f"holds no array with a sample axis; say --samples files if each file is a sample{_and(asides)}"
        )
    if not chosen:
        raise SourceError(f"holds no array{' but those that are left out' if options.skip or options.once else ''}")
    return list(chosen.values()), asides


def _own_names(columns: Sequence[Column], tree: Tree) -> list[str]:
    """Return the names of fields that nobody named: their paths, with dots.

    Where files that the user named as a field hold one array, its name is that of the field.
    """
    arrays: dict[str, set[str]] = {files.base: set() for files in tree.place}
    bases = [f"/{column.array[1:].partition('/')[0]}" for column in columns]
    for base, column in zip(bases, columns, strict=True):
        if base in arrays:
            arrays[base].add(column.array)
    return [
        ".".join((base[1:], *column.members)).replace("=", "_")
        if len(arrays.get(base, ())) == 1
        else default_name(column) or tree.unnamed
        for base, column in zip(bases, columns, strict=True)
    ]


def default_name(column: Column) -> str:
    """Return the path with dots for slashes, and `_` for each `=`."""
    return column.path[1:].replace("/", ".").replace("=", "_")


def check_common(columns: Sequence[Column]) -> None:
    """Raise SourceError if the sample axes of columns differ in length."""
    lengths = Counter(column.samples for column in columns)
    if len(lengths) < 2:
        return
    ((usual, _),) = lengths.most_common(1)
    skips = " ".join(f"--skip {shlex.quote(column.spec.name)}" for column in columns if column.samples != usual)
    raise SourceError(
        f"the arrays have no common sample axis: pick those that belong together with --field NAME=/path, or leave "
        f"others out, as with {skips} (--once PATH keeps one for all samples); if rows are not samples, try --samples "
        f"groups, --samples files, --samples folders or --samples datasets. It holds:\n{_lines(columns)}",
        columns[0].file or None,
    )


def _below(tree: Tree, root: str, axis: int | None, is_out: Skipping) -> tuple[list[Column], list[str]]:
    """Return the fields that arrays of a unit can become, and which others are skipped, and why."""
    columns: list[Column] = []
    asides: list[str] = []
    for entry in tree.entries(root, is_out):
        fields = columns_of(entry, axis)
        if isinstance(fields, str):
            asides.append(f"{entry.path} {fields}")
        else:
            columns += [column for column in fields if not column.members or not is_out(column.path)]
    return columns, asides


def _refuse(columns: Sequence[Column], tree: Tree) -> None:
    """Raise SourceError if one of the columns cannot be a field."""
    if not (bad := [column for column in columns if column.problem]):
        return
    reason = first_few([f"{column.path or 'it'} {column.problem}" for column in bad], joined="; ")
    if len(bad) < len(columns):
        names = dict.fromkeys(column.path[1:].replace("/", ".") for column in bad)
        reason += f". Leave out with {' '.join(f'--skip {shlex.quote(name)}' for name in list(names)[:5])}"
        reason += ", or pick fields with --field NAME=/path"
    raise SourceError(reason, bad[0].file or tree.path)


def _picked(tree: Tree, root: str, name: str, where: str, axis: int | None) -> list[tuple[str, Column]]:
    """Return the fields of the array or compound member at a path, which is opened directly and may be a link.

    Raises:
        SourceError: nothing is at the path, or it cannot be a field.
    """
    path = "/" + where.strip("/")
    hits: list[Column] = []
    for place in upwards(path):
        if (entry := tree.find(root + place)) is not None:
            of_array = columns_of(entry._replace(path=place), axis)
            if isinstance(of_array, str):
                raise SourceError(f"field {name}: {path} {of_array}")
            hits = [column for column in of_array if f"{column.path}/".startswith(f"{path}/")]
            break
    if not hits:
        columns, asides = _below(tree, root, axis, Skipping(()))
        raise SourceError(f"has no array {path} for field {name}; it holds:\n{_lines(columns)}{_and(asides)}")
    for column in hits:
        if column.problem:
            raise SourceError(f"field {name}: {column.path} {column.problem}")
    below = len(path.split("/")) - len(hits[0].array.split("/"))
    return [(".".join((name, *column.members[below:])), column) for column in hits]


def _sparse(tree: Tree, root: str, group: str) -> list[tuple[str, Column]]:
    """Return the two fields that a sparse matrix becomes: of each row the numbers of its columns, and its values.

    Raises:
        SourceError: the group holds no such matrix.
    """
    columns: dict[str, Column] = {}
    for name in SPARSE_PARTS:
        entry = tree.find(f"{root}/{group}/{name}")
        of_array = columns_of(entry._replace(path=f"/{group}/{name}"), 0) if entry else []
        if isinstance(of_array, str) or len(of_array) != 1 or of_array[0].problem or of_array[0].spec.shape:
            raise SourceError(
                f"--sparse {group}: a group with the arrays data, indices and indptr, each of one axis, is expected"
            )
        columns[name] = of_array[0]
    if str(tree.attributes(f"{root}/{group}")[0].get("encoding-type")).startswith("csc"):
        raise SourceError(f"/{group} is a sparse matrix by columns (CSC), whose rows lie scattered; make it CSR")
    starts, rows = f"/{group}/indptr", (columns.pop("indptr").samples or 0) - 1
    return [
        (f"{group.replace('/', '.')}.{name}", column.changed(shape=(None,))._replace(samples=rows, starts=starts))
        for name, column in columns.items()
    ]


def row_starts(tree: Tree, column: Column) -> NDArray[np.int64]:
    """Return where each row of a sparse matrix starts among the values of one of its fields, and the end, (rows + 1,).

    Raises:
        SourceError: the array does not say so.
    """
    starts, length = np.asarray(tree.open(column.starts)[:]), tree.open(column.array).shape[0]
    is_good = starts.ndim == 1 and starts.dtype.kind in "iu" and len(starts) > 0
    ends = (int(starts[0]), int(starts[-1])) if is_good else ()
    if ends != (0, length) or (starts[1:] < starts[:-1]).any():
        raise SourceError(
            f"{column.starts} does not say where each row of {column.array} starts: it must ascend from 0 to "
            f"{length:,}",
            tree.path,
        )
    return starts.astype(np.int64)


def attribute_column(tree: Tree, root: str, name: str, columns: Sequence[Column]) -> Column:
    """Return the field that an attribute of a unit becomes.

    Raises:
        SourceError: the unit has no attribute of this name, or it cannot be stored, or a field has its name.
    """
    if any(column.spec.name == name for column in columns):
        advice = f"leave that out with --skip {name}, or leave out --attr {name}"
        raise SourceError(f"also has an array named {name}; {advice}")
    if (value := tree.attribute(root, name)) is None:
        names = ", ".join(tree.attributes(root)[0]) or "none"
        raise SourceError(f"has no attribute {name} of numbers or text for --attr; it has {names}")
    (column,) = leaves(Column("", attribute=name), value.dtype, value.shape)
    if column.problem:
        raise SourceError(f"has the attribute {name}, but it {column.problem}; leave out --attr {name}")
    return column.changed(name=name)


# ---------------------------------------------------------------- arrays kept once for all samples


def constants_of(tree: Tree, root: str, once: Iterable[str]) -> dict[str, Constant]:
    """Return the arrays that `--once` names in a unit, or in the tree itself if `root` is empty, by field name.

    Raises:
        SourceError: an array cannot be read, or holds no numbers.
    """
    constants: dict[str, Constant] = {}
    for once_path in once:
        paths = [f"/{once_path.strip('/')}"]
        if (entry := tree.find(root + paths[0])) is None or entry.is_group:
            entries = (entry for entry in tree.entries(root) if not entry.is_group and not entry.aside)
            paths = [entry.path for entry in entries if naming(entry.path, [once_path])]
        for path in paths:
            values = constant_values(tree, root + path)
            digest = xxhash.xxh3_128(f"{values.dtype} {values.shape} ".encode())
            digest.update(values.tobytes())
            constants[path[1:].replace("/", ".")] = Constant(tree.place, root + path, digest.hexdigest())
    return constants


def constant_values(tree: Tree, path: str) -> NDArray[Any]:
    """Return a whole array of numbers, native-endian. Raises SourceError if it holds none."""
    entry = tree.find(path)
    if entry is not None and entry.problem:
        raise SourceError(f"{path} {entry.problem}", entry.file or tree.path)
    values = tree.open(path)
    dtype = values.dtype.newbyteorder("=")
    if dtype.name not in DTYPES:
        reason = f"{path} is {values.dtype}, but only numbers can be kept once; use --skip instead"
        raise SourceError(reason, tree.path)
    return np.asarray(values[...]).astype(dtype, copy=False)


def _and(asides: list[str]) -> str:
    return f"\nLeft out: {first_few(asides, joined='; ')}. --field NAME=/path takes a link" if asides else ""


def _lines(columns: Sequence[Column]) -> str:
    return first_few([f"  {column.in_words}" for column in columns], _MAX_LINES, "\n")
