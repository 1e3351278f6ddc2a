"""The contract that every source keeps.

A source knows, from headers alone, how many samples there are, what each field is and how large every
sample is; only `read` decodes. Sources know nothing of plans, codecs or writers, pickle well (paths and
numbers, no open handles), and give the same samples in the same order every time.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packer.codecs import EncodedImage
from packer.errors import SourceError, UsageError, first_few
from packer.format import FieldSpec

if TYPE_CHECKING:
    from typing_extensions import Self  # which typing has from Python 3.11 on

#: Several samples at once, by field: fixed shapes as one array (m, *shape), ragged ones as a list of m
#: arrays, text as a list of m str. All fields of a block hold the same number of samples. A block of one sample
#: may hold a `LargeArray` in a list, whether its field is ragged or not. Images and clips that know their JPEG files
#: are `EncodedImage` in a list.
Block = dict[str, "NDArray[Any] | list[NDArray[Any]] | list[str]"]

#: Bytes that a block holds at most, unless one sample is larger.
BLOCK_BYTES = 8 * 2**20
#: Samples, or fields of one, that are larger than this are large arrays.
LARGE_BYTES = 32 * 2**20
#: Bytes of a large array that are read at once.
PIECE_BYTES = 8 * 2**20


class faults_of:  # noqa: N801 - a block, of which there are several for each sample: a generator takes twice as long
    """Adds the path of the file, or the number of the sample, to every SourceError of the block."""

    __slots__ = "_path", "_sample"

    def __init__(self, path: str | None = None, sample: int | None = None) -> None:
        self._path, self._sample = path, sample

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, SourceError):
            number = error.sample if self._sample is None else self._sample
            raise SourceError(error.reason, self._path or error.path, number) from error


def changed(dtype: str, shape: Sequence[int | None], value: Any, path: str) -> SourceError:
    """Return the error of a value that is not what the header said when samples were planned."""
    was, now = (" x ".join(map(str, sides)) for sides in (shape, value.shape))
    return SourceError(f"was {was} {dtype} when its header was read, and is {now} {value.dtype} now; run again", path)


class LargeArray:
    """The array of one sample that is too large to be read at once: rows of it are read when they are asked for.

    It can be read until the next block is read. numpy accepts it as an array, and then reads all of it.

    Args:
        dtype: native-endian.
        shape: of one axis or more.
        read: returns the rows start..stop of the first axis.
        path: path of the file, for errors; None if errors of `read` have it.
        number: number of the sample within its source, for errors; None if errors of `read` have it.
    """

    def __init__(
        self,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        read: Callable[[int, int], NDArray[Any]],
        path: str | None = None,
        number: int | None = None,
    ) -> None:
        self.dtype, self.shape = dtype, shape
        self._read, self._path, self.number = read, path, number

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Return rows of the first axis; raises SourceError as `Source.read` does."""
        start, stop, _ = rows.indices(len(self))
        with faults_of(self._path, self.number):
            return self._read(start, stop)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[0 : len(self)].astype(dtype or self.dtype, copy=False)

    def pieces(self, multiple: int = 1) -> Iterator[NDArray[Any]]:
        """Yield all rows, some MiB at a time; each piece but the last has a multiple of `multiple` rows."""
        step = max(1, self._rows_at_once() // multiple) * multiple
        for at in range(0, len(self), step):
            yield self[at : at + step]

    def middle(self) -> NDArray[Any]:
        """Return a piece from the middle, which stands for the whole."""
        start = max(0, (len(self) - self._rows_at_once()) // 2)
        return self[start : start + self._rows_at_once()]

    def _rows_at_once(self) -> int:
        return max(1, PIECE_BYTES * len(self) // max(self.nbytes, 1))


class Source(ABC):
    """Samples that can be packed."""

    #: `images`, `ply`, `hdf5`, ...; the manifest keeps it.
    kind: str
    #: What each field is. Axes whose length differs between samples are None.
    fields: tuple[FieldSpec, ...]
    #: Name of every sample, unique and valid UTF-8; or None if samples have no names.
    names: Sequence[str] | None
    #: Splits that the source itself knows: split name to the names of its samples, or to their numbers, int64 (n,).
    #: They are kept if the user asks for no others; names of samples that are not packed are skipped.
    splits: Mapping[str, Sequence[str] | NDArray[np.int64]] = {}

    #: Arrays that are the same for every sample, by name; a mapping that reads them when they are asked for.
    constants: Mapping[str, NDArray[Any]] = {}
    #: What the manifest keeps of the origin: options and attributes, JSON values or structs of them, no absolute path.
    #: Slices need none. Samples without names need something in it that tells two sources apart, such as the files and
    #: how many samples each has: so a dataset knows later which of its samples came from which source.
    origin: Mapping[str, Any] = {}
    #: Numbers of samples with which a shard had better begin, ascending: what lies between two is read as one.
    cuts: NDArray[np.int64] | None = None
    #: Whether `files` of a slice lists hardly any files but its own: then who reads the slice compares them. Else all
    #: are compared once more, when all slices were read.
    has_files_of_slices: bool = True
    #: Sentences that the plan shows: how names were paired, files skipped, conversions made. Slices need none.
    remarks: Sequence[str] = ()

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @abstractmethod
    def shapes(self, field: str) -> NDArray[np.int64] | None:
        """Return the shape of every sample of a ragged field, (n, axes); None if it is not known before reading."""

    @abstractmethod
    def slice(self, start: int, stop: int) -> Source:
        """Return the samples start..stop as a source of its own, small to pickle; numbered from 0, same `fields`."""

    @abstractmethod
    def read(self) -> Iterator[Block]:
        """Yield all samples in order, in blocks of at most about 8 MiB (or one sample).

        Arrays are C-contiguous, native-endian, of the dtype and shape that `fields` says; the caller does
        not write to them.

        Raises:
            SourceError: a sample is bad. It has `path` and, if reading can go on after it, `sample`: the number of
                the bad sample within this source. All samples before it have been yielded.
        """

    @abstractmethod
    def files(self) -> list[str]:
        """Return the paths of all files that are read, in order; their sizes and times show whether they change."""


@dataclass(eq=False)
class DerivedSource(Source):
    """Another source with something added or changed.

    A subclass is a dataclass. Its attributes are all that its samples follow from: other sources, arrays, text, numbers
    and records of these, with their types. `slice` cuts them, and the plan that parts share keeps them
    (`encode_source`). `__post_init__` makes the rest of the contract from them, for every slice again; what the
    subclass leaves as it is comes from `source`. What is read, or counted for a remark, to find the attributes is
    found once, by the function or class method that makes the source.
    """

    source: Source

    def __post_init__(self) -> None:
        source = self.source
        self.kind, self.fields, self.names, self.cuts = source.kind, source.fields, source.names, source.cuts
        self.splits, self.constants, self.origin = source.splits, source.constants, source.origin
        self.remarks, self.has_files_of_slices = source.remarks, source.has_files_of_slices

    def __len__(self) -> int:
        return len(self.source)

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        return self.source.shapes(field)

    def slice(self, start: int, stop: int) -> Self:
        return replace(self, source=self.source.slice(start, stop))

    def files(self) -> list[str]:
        return self.source.files()


def joined(samples: Iterable[dict[str, Any]], fields: Sequence[FieldSpec], most: int = BLOCK_BYTES) -> Iterator[Block]:
    """Yield samples (by field an array, a `LargeArray` or a str) in blocks of at most `most` bytes, or one sample.

    Raises:
        SourceError: as `samples` raises it, after all samples before it.
    """
    pending: list[dict[str, Any]] = []
    pending_bytes = 0
    try:
        for sample in samples:
            size = block_bytes(sample)
            is_large = any(isinstance(value, LargeArray) for value in sample.values())
            if pending and (is_large or pending_bytes + size > most):
                yield _block(pending, fields)
                pending, pending_bytes = [], 0
            pending.append(sample)
            pending_bytes += size
            if is_large:  # its file is open until the next sample is asked for
                yield _block(pending, fields)
                pending, pending_bytes = [], 0
    except SourceError:
        if pending:
            yield _block(pending, fields)
        raise
    if pending:
        yield _block(pending, fields)


def _block(samples: Sequence[dict[str, Any]], fields: Sequence[FieldSpec]) -> Block:
    block: Block = {}
    for spec in fields:
        values = [sample[spec.name] for sample in samples]
        is_list = spec.is_ragged or any(isinstance(value, LargeArray | EncodedImage) for value in values)
        block[spec.name] = values if is_list else np.stack(values)
    return block


def runs(sizes: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Yield start and stop of runs of samples that have at most `most` bytes together, or are one sample.

    Args:
        sizes: bytes of each sample, (n,).
    """
    ends = np.cumsum(sizes)
    start, before = 0, 0
    while start < len(ends):
        stop = max(start + 1, int(ends.searchsorted(before + most, side="right")))
        yield start, stop
        start, before = stop, int(ends[stop - 1])


def count(block: Block) -> int:
    """Return the number of samples in a block."""
    return len(next(iter(block.values())))


def arrays_of(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays of a block, to be looked at or tried: of a large array a piece, of a text its bytes.

    Text that cannot be stored is an error when it is packed.
    """
    return {
        name: [_array_of(value) for value in values] if isinstance(values, list) else values
        for name, values in block.items()
    }


def _array_of(value: Any) -> NDArray[Any]:
    if isinstance(value, str):
        return np.frombuffer(value.encode(errors="surrogatepass"), np.uint8)
    array: NDArray[Any] = value.middle() if isinstance(value, LargeArray) else value
    return array


def read_through(block: Block) -> Block:
    """Return a block after every large array in it was read, and dropped again."""
    for array in (array for values in block.values() for array in _large(values)):
        for _ in array.pieces():
            pass
    return block


def _large(values: Any) -> list[LargeArray]:
    """Return the values of a field if they are large arrays, else none."""
    return [value for value in values if isinstance(value, LargeArray)] if isinstance(values, list) else []


def block_bytes(block: Mapping[str, Any]) -> int:
    """Return the bytes of a block, or of one sample; text counts its characters."""
    return sum(map(_nbytes, block.values()))


def _nbytes(values: Any) -> int:
    if isinstance(values, str):
        return len(values)
    return sum(map(_nbytes, values)) if isinstance(values, list) else values.nbytes


def common_shape(shapes: Iterable[Sequence[int | None]]) -> tuple[int | None, ...]:
    """Return the shape that arrays with equally many axes share, with None for each axis whose length differs."""
    axes = [set(lengths) for lengths in zip(*shapes, strict=True)]
    return tuple(lengths.pop() if len(lengths) == 1 else None for lengths in axes)


def fits(shape: Sequence[int | None], of_field: Sequence[int | None]) -> bool:
    """Return whether arrays of a shape fit a field of shape `of_field`, whose None stands for any length."""
    if shape == of_field:
        return True
    return len(shape) == len(of_field) and all(w in (None, n) for n, w in zip(shape, of_field, strict=True))


def one_list_of_classes(lists: Iterable[Sequence[str]]) -> list[str]:
    """Return the names of classes that `label`, and `labels` of boxes, stand for: all lists that are not empty agree.

    Raises:
        UsageError: two differ, and a dataset keeps one.
    """
    some, *others = [list(names) for names in lists if names] or [[]]
    for names in others:
        if names != some:
            raise UsageError(
                f"label and labels would stand for classes of their own, {first_few(some)} and {first_few(names)}, and "
                "a dataset keeps one list of names: leave one of them out, or join it as plain numbers, such as a .npy"
            )
    return some
