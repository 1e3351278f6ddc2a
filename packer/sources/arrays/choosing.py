"""Which arrays of a unit become fields, under which names, and which are kept once for all samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError, first_few
from packer.format import DTYPES
from packer.sources.arrays.fields import ArrayLeaf, leaves_of, spread_leaves
from packer.sources.arrays.origin import SPARSE_PARTS
from packer.sources.arrays.tree import Tree
from packer.sources.options import SourceOptions, naming, skipping
from packer.sources.units import folder_of, upwards

_MAX_LINES = 10
#: Arrays of a categorical column of AnnData.
_CODES, _CATEGORIES = "codes", "categories"


class Constant(NamedTuple):
    """An array that is the same in every file or unit that has it, with a digest of its dtype, shape and values."""

    path: str
    digest: str


class Skipping:
    """Says whether the user skips a path, and remembers which entries of the options named something."""

    def __init__(self, tree: Tree, *given: Sequence[str]) -> None:
        self._bases = {group.base for group in tree.files}
        self._given = [path for paths in given for path in paths]
        self.used: set[str] = set()

    def __call__(self, path: str) -> bool:
        names = naming(path, self._given)
        base, slash, below = path[1:].partition("/")
        if slash and f"/{base}" in self._bases:  # a member of files that the user named as a field
            names += naming(below, self._given)
        self.used.update(names)
        return bool(names)


class Chosen(NamedTuple):
    """The fields of a unit.

    Attributes:
        leaves: with their names.
        asides: paths that are skipped, and why.
        others: arrays that are left out because they have no row for each row of a sparse matrix.
    """

    leaves: list[ArrayLeaf]
    asides: list[str]
    others: list[str]


def choose(tree: Tree, root: str, axis: int | None, is_out: Skipping, options: SourceOptions) -> Chosen:
    """Return the fields that the options choose below a root, and what they leave out.

    Raises:
        SourceError: one is missing, cannot be a field, or two would have one name; or there is none.
    """
    asides, others = list[str](), list[str]()
    of_matrices = [pair for group in options.sparse for pair in _sparse(tree, root, group.strip("/"))]
    if options.pick:
        is_out.used.update(options.skip)  # without a listing, nobody can say what it names
        named = [pair for name, path in options.pick.items() for pair in _picked(tree, root, name, path, axis)]
    else:
        leaves, asides = _below(tree, root, axis, is_out)
        if of_matrices:
            rows = of_matrices[0][1].samples
            of_others = {f"{group}/{part}" for group in _sparse_groups(leaves) for part in SPARSE_PARTS}
            others = [leaf.path for leaf in leaves if leaf.samples != rows or leaf.array in of_others]
            leaves = [leaf for leaf in leaves if leaf.samples == rows and leaf.array not in of_others]
        _refuse(leaves, tree)
        named = list(zip(_own_names(leaves, tree), leaves, strict=True))
    chosen: dict[str, ArrayLeaf] = {}
    for name, leaf in [*named, *of_matrices]:
        twin = chosen.get(name)
        if twin is not None and not options.pick:
            both = " and ".join(f"{one.path}{one.file and f' of {one.file}'}" for one in (twin, leaf))
            advice = "pick with --field NAME=/path"
            if leaf.file:
                advice = "if the files are the samples, say `--samples files`, if the folders are, `--samples folders`"
                advice += "; else name the arrays with FIELD=FILE"
            if leaf.file and axis is not None:
                raise UsageError(f"{both} would both be field {name!r}; {advice}")
            raise SourceError(f"{both} would both be field {name!r}; {advice}", tree.path)
        try:
            chosen[name] = _with_classes(leaf.changed(name=name), tree, root)
        except ValueError as error:
            raise SourceError(f"{leaf.path or name}: {error}; name it with --field NAME=/path") from None
    if not chosen and asides:
        raise SourceError(
            f"holds no array with a sample axis; say --samples files if each file is a sample{_and(asides)}"
        )
    if not chosen:
        raise SourceError(f"holds no array{' but those that are skipped' if options.skip or options.once else ''}")
    return Chosen(list(chosen.values()), asides, others)


def _with_classes(leaf: ArrayLeaf, tree: Tree, root: str) -> ArrayLeaf:
    """Return a leaf with the names of its numbers, if it is the codes of a categorical column as AnnData writes it."""
    group, _, name = leaf.array.rpartition("/")
    if name != _CODES or not _is_categorical(tree, root + group):
        return leaf
    names = np.asarray(tree.open(f"{root}{group}/{_CATEGORIES}")[:]).tolist()
    texts = [name.decode() if isinstance(name, bytes) else str(name) for name in names]
    return leaf._replace(enum=tuple(enumerate(texts)))


def _is_categorical(tree: Tree, group: str) -> bool:
    """Return whether a group is a categorical column as AnnData writes it: numbers, and what each stands for."""
    encoding = tree.attributes(group)[0].get("encoding-type") if group else ""
    return encoding == "categorical" and tree.find(f"{group}/{_CATEGORIES}") is not None


def _own_names(leaves: Sequence[ArrayLeaf], tree: Tree) -> list[str]:
    """Return the names of fields that nobody named: their paths, with dots.

    Where files that the user named as a field hold one array, its name is that of the field.
    """
    arrays: dict[str, set[str]] = {group.base: set() for group in tree.files}
    bases = [f"/{leaf.array[1:].partition('/')[0]}" for leaf in leaves]
    for base, leaf in zip(bases, leaves, strict=True):
        if base in arrays:
            arrays[base].add(leaf.array)
    return [
        ".".join((base[1:], *leaf.members)).replace("=", "_")
        if len(arrays.get(base, ())) == 1
        else default_name(leaf) or tree.unnamed
        for base, leaf in zip(bases, leaves, strict=True)
    ]


def default_name(leaf: ArrayLeaf) -> str:
    """Return the path with dots for slashes, and `_` for each `=`."""
    return leaf.path[1:].replace("/", ".").replace("=", "_")


def check_common(leaves: Sequence[ArrayLeaf], tree: Tree) -> None:
    """Raise SourceError if the sample axes of fields differ in length; it names sparse matrices among them."""
    lengths = Counter(leaf.samples for leaf in leaves)
    if len(lengths) < 2:
        return
    ((usual, _),) = lengths.most_common(1)
    others = [leaf for leaf in leaves if leaf.samples != usual]
    skips = skipping([leaf.path for leaf in others], [leaf.path for leaf in leaves if leaf.samples == usual])
    tables = [leaf.path for leaf in others if not leaf.spec.shape and leaf.spec.np_dtype.kind in "iu"]
    ends = f"; if {tables[0]} says where episodes of rows end, --samples episodes:{tables[0]}" if tables else ""
    groups = {group: str(tree.attributes(group)[0].get("encoding-type", "csr")) for group in _sparse_groups(leaves)}
    if sparse := [group.strip("/") for group, kind in groups.items() if group.strip("/") and kind.startswith("csr")]:
        ends += f"; {first_few(sparse)}: sparse matrices, whose rows are packed by --sparse {sparse[0]}"
    raise SourceError(
        f"the arrays have no common sample axis: pick those that belong together with --field NAME=/path, or leave "
        f"others out, as with {skips} (--once PATH keeps one for all samples); if rows are not samples, try --samples "
        f"groups, --samples files, --samples folders or --samples datasets{ends}. It holds:\n{_lines(leaves)}",
        leaves[0].file or None,
    )


def _sparse_groups(leaves: Sequence[ArrayLeaf]) -> list[str]:
    """Return the groups that hold a sparse matrix, as AnnData and 10x write it."""
    parts: dict[str, set[str]] = {}
    for leaf in leaves:
        group, _, name = leaf.array.rpartition("/")
        parts.setdefault(group, set()).add(name)
    return [group for group, names in parts.items() if names.issuperset(SPARSE_PARTS)]


def _below(tree: Tree, root: str, axis: int | None, is_out: Skipping) -> tuple[list[ArrayLeaf], list[str]]:
    """Return the fields that arrays of a unit can become, and which others are skipped, and why."""
    leaves: list[ArrayLeaf] = []
    asides: list[str] = []
    for entry in tree.entries(root, is_out):
        fields = leaves_of(entry, axis)
        if isinstance(fields, str):
            asides.append(f"{entry.path} {fields}")
        elif not entry.path.endswith(f"/{_CATEGORIES}") or not _is_categorical(tree, root + folder_of(entry.path)):
            leaves += [leaf for leaf in fields if not leaf.members or not is_out(leaf.path)]
    return leaves, asides


def _refuse(leaves: Sequence[ArrayLeaf], tree: Tree) -> None:
    """Raise SourceError if one of them cannot be a field."""
    if not (bad := [leaf for leaf in leaves if leaf.problem]):
        return
    reason = first_few([f"{leaf.path or 'it'} {leaf.problem}" for leaf in bad], joined="; ")
    if len(bad) < len(leaves):
        skips = skipping([leaf.path for leaf in bad], [leaf.path for leaf in leaves if not leaf.problem])
        reason += f". Leave out with {skips}"
        reason += ", or pick fields with --field NAME=/path"
    raise SourceError(reason, bad[0].file or tree.path)


def _picked(tree: Tree, root: str, name: str, where: str, axis: int | None) -> list[tuple[str, ArrayLeaf]]:
    """Return the fields of the array or compound member at a path, which is opened directly and may be a link.

    Raises:
        SourceError: nothing is at the path, or it cannot be a field.
    """
    path = "/" + where.strip("/")
    hits: list[ArrayLeaf] = []
    for place in upwards(path):
        if (entry := tree.find(root + place)) is not None:
            of_array = leaves_of(entry._replace(path=place), axis)
            if isinstance(of_array, str):
                raise SourceError(f"field {name}: {path} {of_array}")
            hits = [leaf for leaf in of_array if f"{leaf.path}/".startswith(f"{path}/")]
            break
    if not hits:
        leaves, asides = _below(tree, root, axis, Skipping(tree))
        raise SourceError(f"has no array {path} for field {name}; it holds:\n{_lines(leaves)}{_and(asides)}")
    for leaf in hits:
        if leaf.problem:
            raise SourceError(f"field {name}: {leaf.path} {leaf.problem}")
    below = len(path.split("/")) - len(hits[0].array.split("/"))
    return [(".".join((name, *leaf.members[below:])), leaf) for leaf in hits]


def _sparse(tree: Tree, root: str, group: str) -> list[tuple[str, ArrayLeaf]]:
    """Return the two fields that a sparse matrix becomes: of each row the numbers of its columns, and its values.

    Raises:
        SourceError: the group holds no such matrix.
    """
    leaves: dict[str, ArrayLeaf] = {}
    for name in SPARSE_PARTS:
        entry = tree.find(f"{root}/{group}/{name}")
        of_array = leaves_of(entry._replace(path=f"/{group}/{name}"), 0) if entry else []
        if isinstance(of_array, str) or len(of_array) != 1 or of_array[0].problem or of_array[0].spec.shape:
            raise SourceError(
                f"--sparse {group}: a group with the arrays data, indices and indptr, each of one axis, is expected"
            )
        leaves[name] = of_array[0]
    if str(tree.attributes(f"{root}/{group}")[0].get("encoding-type")).startswith("csc"):
        raise SourceError(f"/{group} is a sparse matrix by columns (CSC), whose rows lie scattered; make it CSR")
    starts, rows = f"/{group}/indptr", (leaves.pop("indptr").samples or 0) - 1
    return [
        (f"{group.replace('/', '.')}.{name}", leaf.changed(shape=(None,))._replace(samples=rows, starts=starts))
        for name, leaf in leaves.items()
    ]


def row_starts(tree: Tree, leaf: ArrayLeaf) -> NDArray[np.int64]:
    """Return where each row of a sparse matrix starts among the values of one of its fields, and the end, (rows + 1,).

    Raises:
        SourceError: the array does not say so.
    """
    starts, length = np.asarray(tree.open(leaf.starts)[:]), tree.open(leaf.array).shape[0]
    is_good = starts.ndim == 1 and starts.dtype.kind in "iu" and len(starts) > 0
    ends = (int(starts[0]), int(starts[-1])) if is_good else ()
    if ends != (0, length) or (starts[1:] < starts[:-1]).any():
        raise SourceError(
            f"{leaf.starts} does not say where each row of {leaf.array} starts: it must ascend from 0 to {length:,}",
            tree.path,
        )
    return starts.astype(np.int64)


def attribute_leaf(tree: Tree, root: str, name: str, leaves: Sequence[ArrayLeaf]) -> ArrayLeaf:
    """Return the field that an attribute of a unit becomes.

    Raises:
        SourceError: the unit has no attribute of this name, or it cannot be stored, or a field has its name.
    """
    if any(leaf.spec.name == name for leaf in leaves):
        advice = f"leave that out with --skip {name}, or leave out --attr {name}"
        raise SourceError(f"also has an array named {name}; {advice}")
    if (value := tree.attribute(root, name)) is None:
        names = ", ".join(tree.attributes(root)[0]) or "none"
        raise SourceError(f"has no attribute {name} of numbers or text for --attr; it has {names}")
    (leaf,) = spread_leaves(ArrayLeaf("", attribute=name), value.dtype, value.shape)
    if leaf.problem:
        raise SourceError(f"has the attribute {name}, but it {leaf.problem}; leave out --attr {name}")
    return leaf.changed(name=name)


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
            constants[path[1:].replace("/", ".")] = Constant(root + path, digest.hexdigest())
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


def _lines(leaves: Sequence[ArrayLeaf]) -> str:
    return first_few([f"  {leaf.in_words}" for leaf in leaves], _MAX_LINES, "\n")
