"""The contract of a tree of arrays: a file or folder that holds arrays and groups by path.

    with open_tree("hdf5", tree_files(row.paths)) as tree:
        for entry in tree.entries():          # shape and dtype of each array, from headers alone
            tree.open(entry.path)[3:5]     # rows as a numpy array

A backend is a subclass of `Tree` and a line in `_BACKENDS`. Which arrays become fields, and what a sample is, is
decided above it, for all backends alike.
"""

from __future__ import annotations

import importlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, as_text
from packer.format import DTYPES

if TYPE_CHECKING:
    from typing_extensions import Self  # which typing has from Python 3.11 on

_BACKENDS = {
    "hdf5": ("packer.sources.arrays.hdf5", "Hdf5Tree"),
    "npy": ("packer.sources.arrays.npy", "NpyTree"),
    "zarr": ("packer.sources.arrays.zarr", "ZarrTree"),
}


class FileGroup(NamedTuple):
    """Files of a tree whose arrays begin at one path: one file, or several whose rows follow one another.

    Attributes:
        base: the path, empty for the root.
        axis: the axis along which the rows follow one another.
    """

    base: str
    paths: tuple[str, ...]
    axis: int = 0


#: The files of a tree; all kinds but npy have one.
TreeFiles: TypeAlias = tuple[FileGroup, ...]


def tree_files(paths: Mapping[str, Sequence[str]], axis: int = 0) -> TreeFiles:
    """Return the files of a tree, in the form in which it is opened.

    Args:
        paths: by input, as a row of the table has them. A field's name is the path of its arrays; files of an input
            whose name begins with a slash are named for themselves.
        axis: the axis along which the rows of several files of a field follow one another.
    """
    groups: list[FileGroup] = []
    for name, of_input in paths.items():
        if name.startswith("/"):
            groups += (FileGroup(_own_base(path), (path,)) for path in of_input)
        else:
            groups.append(FileGroup(name and f"/{name}", tuple(of_input), axis))
    return tuple(groups)


def _own_base(path: str) -> str:
    """Return the path of a file's arrays: the name of a `.npy`; members of a `.npz` have names of their own."""
    return "" if path.lower().endswith(".npz") else f"/{without_suffix(path).rpartition('/')[2]}"


def without_suffix(path: str) -> str:
    """Return a path without its last suffix; a `Path` of each of many files would fill a table of Python's own."""
    return os.path.splitext(path)[0]  # noqa: PTH122


#: Most bytes of decoded chunks that are kept, for all arrays that are read together.
CACHE_BYTES = 2**28
#: Larger attributes are not kept: the manifest is read by people.
_MAX_ATTRIBUTE = 16 * 2**10


class Entry(NamedTuple):
    """An array or a group of a tree.

    Attributes:
        path: with a leading slash, from the group that was listed; empty if the tree or unit is an array itself.
        file: the file that holds it, if the tree has several.
        shape: None if it has no values and no shape.
        dtype: that of h5py, whose metadata tells strings and lists from other objects.
        aside: why it is skipped, as a phrase that follows the path: a link, or a second name of an array.
        problem: why it cannot be a field, as a phrase that follows the path; then shape and dtype are undefined.
        remark: how its values differ from those in the file, as a phrase that follows the path.
    """

    path: str
    file: str = ""
    shape: tuple[int, ...] | None = None
    dtype: np.dtype[Any] | None = None
    is_group: bool = False
    aside: str = ""
    problem: str = ""
    remark: str = ""

    @property
    def is_array(self) -> bool:
        return not (self.is_group or self.aside or self.problem)


#: The beginning of a sentence, and one item that it lists; without a beginning the item is a sentence.
Remark = tuple[str, str]


class Unwritten(NamedTuple):
    """What of an array was never written.

    Attributes:
        missing: how many pieces.
        piece: what one is, such as `chunk`.
        in_words: how many of how many, and the fill value, as `3 of its 5 chunks, 0.0`.
    """

    missing: int
    piece: str
    in_words: str


class Values(Protocol):
    """An array that reads what is asked of it."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def __getitem__(self, place: Any, /) -> Any: ...


def never(path: str) -> bool:
    return False


#: Arrays up to so many bytes are believed; larger ones are at most so many times as large as their files.
_BELIEVED_BYTES, _MAX_RATIO = 2**34, 10_000


def check_size(name: str, shape: Sequence[int], dtype: np.dtype[Any], file_sizes: Iterable[int]) -> None:
    """Raise SourceError if an array declares far more than its files hold.

    Its header is damaged, or nothing was written.

    Args:
        file_sizes: looked at until they are enough.
    """
    # Lengths count too: with an axis of length 0, any number of rows takes no bytes.
    declared = max([math.prod(shape) * dtype.itemsize, *shape], default=0)
    if declared <= _BELIEVED_BYTES:
        return
    stored = 0
    for size in file_sizes:
        stored += size
        if declared <= _MAX_RATIO * stored:
            return
    raise SourceError(
        f"dataset {name} of shape {tuple(shape)} is far too large for its file: it declares {declared:,} bytes, but "
        f"{stored:,} are there, so its header is damaged, or it was never written; leave it out with --skip {name}"
    )


class Tree(ABC):
    """An open file or folder of arrays.

    Attributes:
        files: its files.
        path: of the first file.
        rows: of files whose rows follow one another, the rows of each, by their base; once they are listed.

    Raises:
        SourceError: it cannot be read.
    """

    #: Name of the field of a unit that is an array.
    unnamed = "values"

    def __init__(self, files: TreeFiles) -> None:
        self.files = files
        self.path = files[0].paths[0]
        self.rows: dict[str, tuple[int, ...]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027 - some have nothing to close
        """Close the files. Arrays that the tree opened are not read afterwards."""

    def faults(self, doing: str) -> AbstractContextManager[None]:
        """Turn errors of the library into a SourceError, which says that `doing` failed. MemoryError stays."""
        return nullcontext()

    @abstractmethod
    def entries(
        self, root: str = "", is_out: Callable[[str], bool] = never, is_unit: Callable[[str], bool] = never
    ) -> Iterator[Entry]:
        """Yield all that lies below a group, in a fixed order; the array itself if `root` is one.

        Args:
            is_out: whether a path is skipped, with all below it; it is not yielded.
            is_unit: whether the group at a path is one sample; it is not entered, and may be a link.

        Raises:
            SourceError: a group cannot be listed.
        """

    @abstractmethod
    def find(self, path: str) -> Entry | None:
        """Return what is at a path, which may lead through links; None if nothing is."""

    @abstractmethod
    def open(self, path: str, axis: int = 0, cache: int = CACHE_BYTES) -> Values:
        """Return the array at a path, to be read in order along `axis`, each compressed chunk decoded once.

        Args:
            cache: most bytes of decoded chunks to keep.

        Raises:
            SourceError: its values are not all there, or cannot be decoded.
        """

    def files_of(self, path: str) -> list[str]:
        """Return further files that an array is read from.

        Raises:
            SourceError: its values are not all there, or cannot be decoded.
        """
        return []

    @property
    def has_reversed_axes(self) -> bool:
        """Return whether the program that wrote the file had the axes of all arrays in the reverse order."""
        return False

    def unwritten(self, path: str) -> list[Unwritten]:
        """Return what of an array was never written, of each kind of pieces; none if all was."""
        return []

    def lacking_rows(self, path: str, axis: int) -> NDArray[np.int64]:
        """Return the spans of rows along an axis of which some was never written, (spans, 2), in any order."""
        return np.array([(0, self.open(path).shape[axis])])

    def bytes_after(self) -> int:
        """Return how many bytes the file has behind its end, as the format knows it."""
        return 0

    def attribute_names(self, path: str) -> list[str]:
        """Return the names of the attributes of an array or group."""
        return []

    def attribute(self, path: str, name: str) -> NDArray[Any] | None:
        """Return the value of an attribute of an array or group; None if it has none of this name that can be kept."""
        return None

    def attributes(self, path: str) -> tuple[dict[str, Any], list[str]]:
        """Return the attributes of an array or group as JSON values, and the names of those that are not kept."""
        values: dict[str, Any] = {}
        lost = []
        for name in self.attribute_names(path):
            try:
                values[as_text(name)] = as_json(self.attribute(path, name))
            except ValueError:
                lost.append(as_text(name))
        return values, lost


def spans_of(values: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return where values are true, as spans, (spans, 2)."""
    return np.flatnonzero(np.diff(values, prepend=False, append=False)).reshape(-1, 2)


def open_tree(kind: str, files: TreeFiles) -> Tree:
    """Return a tree of one of the kinds `hdf5`, `npy` and `zarr`, to be used in a with block.

    Raises:
        SourceError: it cannot be opened.
    """
    room, name = _BACKENDS[kind]
    tree: Tree = getattr(importlib.import_module(room), name)(files)
    return tree


#: Text of any length, as h5py has it.
TEXT = np.dtype(object, metadata={"vlen": str})


def _vlen(dtype: np.dtype[Any]) -> Any:
    return dict(dtype.metadata or {}).get("vlen")


def is_text(dtype: np.dtype[Any]) -> bool:
    """Return whether values are text, of fixed length or, in h5py, of any length."""
    return dtype.kind in "SU" or any(_vlen(dtype) is kind for kind in (str, bytes))


def list_dtype(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """Return the dtype of the values of lists of any length, as h5py has them; None of all else."""
    base = _vlen(dtype)
    # By `is`: to numpy, None equals float64.
    return None if base is None or is_text(dtype) else np.dtype(base)


# ---------------------------------------------------------------- attributes
# Attributes of numbers or text, of at most 16 KiB each, are kept as JSON values. A scalar str, bool, int64 or float64
# is kept as it is, any other value as `{"dtype": ..., "value": ...}`, with nested lists for the axes. NaN, infinities
# and complex numbers are strings.


def check_attribute(dtype: np.dtype[Any], shape: tuple[int, ...] | None) -> None:
    """Raise ValueError if an attribute is not kept."""
    is_kept = is_text(dtype) or dtype.newbyteorder("=").name in DTYPES
    if shape is None or not is_kept or math.prod(shape) * dtype.itemsize > _MAX_ATTRIBUTE:
        raise ValueError(f"{dtype} of shape {shape}")


def as_json(value: Any) -> Any:
    """Return an attribute as a JSON value. Raises ValueError if it is not kept."""
    array = np.asarray(value)
    if isinstance(value, str) or array.dtype.kind in "SUO":
        texts = np.asarray(value, object)
        if not all(isinstance(text, str | bytes) for text in texts.flat):
            raise ValueError("no text")
        if sum(map(len, texts.flat)) > _MAX_ATTRIBUTE:
            raise ValueError("a long text")
        listed = np.vectorize(_text, otypes=[object])(texts).tolist() if texts.size else texts.tolist()
        return {"dtype": "str", "value": listed} if texts.shape else listed
    check_attribute(array.dtype, array.shape)
    native, listed = array.dtype.newbyteorder("=").name, array.tolist()
    is_plain = native in ("bool", "int64", "float64") and not array.shape and math.isfinite(listed)
    return listed if is_plain else {"dtype": native, "value": _lists(listed)}


def _text(item: str | bytes) -> str:
    # h5py decodes bytes that are not UTF-8 as lone surrogates.
    return (item if isinstance(item, bytes) else item.encode("utf-8", "surrogateescape")).decode()


def _lists(value: Any) -> Any:
    if isinstance(value, list):
        return [_lists(item) for item in value]
    # JSON has no NaN; writers would make it null.
    return value if not isinstance(value, complex) and math.isfinite(value) else str(value)
