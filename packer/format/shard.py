"""Reads one shard through a read-only map of its file, without the LMDB library.

The B-tree gives the offset of every value (`btree.py`). Sizes are checked before the file is mapped, so that a
truncated file is an error and not a bus error. Nothing here can write.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import stat
import sys
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import DamagedError, DatasetError
from packer.format.btree import BTree
from packer.format.column import Column
from packer.format.column_index import ColumnIndex
from packer.format.layout import (
    COLUMN,
    FORMAT_NAME,
    FORMAT_VERSION,
    HEADER,
    NAME_BYTES,
    NAME_OFFSETS,
    ShardHeader,
    chunk_key,
    column_key,
    index_arrays,
)
from packer.format.manifest import ShardEntry, read_errors
from packer.format.schema import Field
from packer.format.sizes import PAGE_SIZE

#: Names of samples that are cut apart at a time.
_CUT = 2**14
#: Bytes of an index array that are read at a time.
_BLOCK = 2**20

#: Files are opened without waiting: a pipe would keep its reader for ever.
_FLAGS = os.O_RDONLY | sum(getattr(os, flag, 0) for flag in ("O_CLOEXEC", "O_BINARY", "O_NONBLOCK"))
_NO_DESCRIPTOR: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) and os.name == "posix" else {}

#: What to do if a process may not open or map another file.
_NO_ROOM = {
    errno.EMFILE: "cannot be opened: this process has as many files open as it may, and each shard takes one; "
    "allow more (`ulimit -n 65536`); where that is forbidden, run "
    "`packer repack --shard-size` on another machine, for fewer, larger shards",
    errno.ENOMEM: "cannot be mapped: this process may have no more maps, or no more memory, of which a map counts as "
    "much as its file has, read or not; allow it more (vm.max_map_count, of which each shard takes one; `ulimit -v`, "
    "h_vmem of a cluster), or run `packer repack --shard-size` on another machine, for fewer, larger shards",
}


class Shard:
    """One shard, open for reading.

    Args:
        path: the file.
        size: bytes the file must have, as the manifest says; None if that is not known.
        index: digest that its index arrays must have, likewise.
        is_read: whether the tree is read at once; else by `read_tree`.

    Raises:
        DamagedError: the file is missing, has another size or index, or its tree is broken.
    """

    def __init__(
        self, path: str | Path, size: int | None = None, index: str | None = None, *, is_read: bool = True
    ) -> None:
        self.path = str(path)
        self.map = open_map(path, size)
        self.bytes = memoryview(self.map)
        self._chunks = array("q")
        self._values: dict[bytes, tuple[int, int]] = {}
        if is_read:
            self.read_tree(index)

    def read_tree(self, index: str | None) -> None:
        """Find all values, and compare the index arrays with their digest; None compares nothing.

        Raises:
            DamagedError: the tree is broken, or the index is another one.
        """
        # The tree and the index are few pages. The kernel would read up to megabytes around each of them.
        self._advise("MADV_RANDOM")
        # Chunks are kept apart, as numbers: a large shard has hundreds of thousands of them.
        self.forget()
        for key, offset, size in BTree(self.bytes, self.path).values():
            if key == chunk_key(len(self._chunks) // 2):
                self._chunks.extend((offset, size))
            else:
                self._values[key] = offset, size
        self.check_index(index)
        self._advise("MADV_NORMAL")

    def _advise(self, advice: str) -> None:
        """Tell the kernel how the map is read; a hint, which not every system takes."""
        with contextlib.suppress(AttributeError, OSError):
            self.map.madvise(getattr(mmap, advice))

    def load_ahead(self, offset: int, length: int) -> None:
        """Ask the kernel to load bytes from a page on, while other work is done; OSError if it takes no advice."""
        self.map.madvise(mmap.MADV_WILLNEED, offset, length)

    def value(self, key: bytes) -> memoryview:
        """Return the bytes of a value, a view of the map.

        Raises:
            DamagedError: there is no such key.
        """
        if key not in self._values:
            raise self._missing(key)
        offset, size = self._values[key]
        return self.bytes[offset : offset + size]

    def chunks(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return file offset and size of the chunks of some numbers, (n, 2).

        Raises:
            DamagedError: there is no such chunk.
        """
        spans = np.frombuffer(self._chunks, np.int64).reshape(-1, 2)
        absent = (numbers < 0) | (numbers >= len(spans))
        if absent.any():
            raise self._missing(chunk_key(int(numbers[absent.argmax()])))
        return spans[numbers]

    def header(self) -> ShardHeader:
        """Return the shard's own header.

        Raises:
            DamagedError: there is none, it is damaged, or of another format or version.
        """
        try:
            header = msgspec.json.decode(self.value(HEADER), type=ShardHeader)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise DamagedError(f"{self.path}: the header is damaged: {error}") from None
        if header.format != FORMAT_NAME or header.version != FORMAT_VERSION:
            raise DamagedError(f"{self.path}: format {header.format!r} version {header.version} is not known here")
        return header

    def check_header(self, fields: Sequence[Field], samples: int) -> ShardHeader:
        """Return the header after comparing it with the manifest's fields and samples of this shard.

        Raises:
            DamagedError: it has other fields, or another number of samples.
        """
        header = self.header()
        # Its number is not compared: after a merge it is still that of the dataset it was packed for.
        if (header.samples, header.fields) != (samples, tuple(fields)):
            raise DamagedError(
                f"{self.path}: its header has {header.samples} samples or fields that are not those of the manifest: "
                "is it the shard of another dataset?"
            )
        return header

    def check_index(self, digest: str | None) -> None:
        """Raise DamagedError if the index arrays have another digest than the manifest says; None compares nothing."""
        if digest is not None and self.index_digest() != digest:
            raise DamagedError(
                f"{self.path}: its index is not that of the manifest: it was changed, or is another shard; copy it "
                "again, or run `packer verify`, then `packer repair`"
            )

    def index_digest(self) -> str:
        """Return the xxh3-128 of all index arrays in the order of their keys, in hex.

        They are read from the map, since another file may have taken the place of this one.
        """
        digest = xxhash.xxh3_128()
        # Without empty arrays: where one would lie, the file may end.
        spans = [span for key, span in self._values.items() if key.startswith(COLUMN) and span[1]]
        with contextlib.suppress(AttributeError, OSError):
            for offset, size in spans:  # at once, and no byte around them: some kernels read megabytes around a page
                start = offset // PAGE_SIZE * PAGE_SIZE
                self.map.madvise(mmap.MADV_WILLNEED, start, offset + size - start)
        for offset, size in spans:
            for first in range(offset, offset + size, _BLOCK):
                digest.update(self.bytes[first : min(first + _BLOCK, offset + size)])
            self._advise("MADV_DONTNEED")  # pages that were read count as memory of the process
        return digest.hexdigest()

    def index(self, number: int, field: Field, samples: int) -> ColumnIndex:
        """Return the checked index of the column of field `number`.

        Raises:
            DamagedError: an index array is missing or damaged.
        """
        arrays = {name: self.value(column_key(number, name)) for name in index_arrays(field)}
        return ColumnIndex(field, samples, arrays, self.chunks, self.path)

    def column(self, number: int, field: Field, samples: int) -> Column:
        """Return the column of field `number`, for decoding; raises as `index`."""
        return Column(self.index(number, field, samples), self.bytes)

    def names(self, samples: int) -> Iterator[bytes]:
        """Yield the name of every sample, UTF-8; only some are in memory at a time.

        Raises:
            DamagedError: they are not those of `samples` samples.
        """
        data, ends = self.name_table(samples)
        for first in range(0, samples, _CUT):
            for start, stop in itertools.pairwise(ends[first : first + _CUT + 1].tolist()):
                yield bytes(data[start:stop])
            self._advise("MADV_DONTNEED")  # pages that were read count as memory of the process

    def name_table(self, samples: int) -> tuple[memoryview, NDArray[np.uint64]]:
        """Return the names of all samples, UTF-8 without gaps, and where each begins and the last ends, (samples + 1,).

        Raises:
            DamagedError: they are not those of `samples` samples.
        """
        data = self.value(NAME_BYTES)
        offsets = self.value(NAME_OFFSETS)
        if len(offsets) == 8 * (samples + 1):
            ends = np.frombuffer(offsets, "<u8")
            if int(ends[0]) == 0 and int(ends[-1]) == len(data) and (ends[1:] >= ends[:-1]).all():
                return data, ends
        raise DamagedError(f"{self.path}: the names of the samples are damaged; run `packer repair`")

    def forget(self) -> None:
        """Drop the table of values, once everything needed from the shard has been found."""
        self._chunks, self._values = array("q"), {}

    def close(self) -> None:
        """Close the map. Arrays that are views of it keep it alive until they are gone."""
        self.forget()
        try:
            self.bytes.release()
            self.map.close()
        except BufferError:
            pass

    def __enter__(self) -> Shard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _missing(self, key: bytes) -> DamagedError:
        return DamagedError(f"{self.path}: {key.decode()} is missing; run `packer repair`")


class ShardNames:
    """The names of all samples of some shards, in their order; read from the shards on each iteration.

    Raises:
        DamagedError: a shard cannot be read.
    """

    def __init__(self, folder: Path, shards: Sequence[ShardEntry]) -> None:
        self._folder = folder
        self._shards = shards

    def __iter__(self) -> Iterator[bytes]:
        for entry in self._shards:
            with Shard(self._folder / entry.file, entry.bytes) as shard:
                yield from shard.names(entry.samples)


def open_map(path: str | Path, size: int | None = None) -> mmap.mmap:
    """Return a read-only map of all of a file of a dataset; it holds no descriptor where Python allows that (3.13).

    Args:
        size: bytes the file must have; None if that is not known.

    Raises:
        DamagedError: it is missing, no file, empty, or has another size.
        DatasetError: it cannot be opened: no permission, too many open files, or no room in memory for another map.
    """
    with read_errors(path):
        try:
            return _map_file(path, size)
        except OSError as error:
            if error.errno == errno.EMFILE:
                with contextlib.suppress(ImportError, ValueError, OSError):
                    import resource  # not on Windows

                    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
                    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
                    return _map_file(path, size)
            if error.errno in _NO_ROOM:
                raise DatasetError(f"{path}: {_NO_ROOM[error.errno]}") from None
            raise


def _map_file(path: str | Path, size: int | None) -> mmap.mmap:
    """Return the map that `open_map` returns; raises OSError if the system refuses."""
    fd = os.open(path, _FLAGS)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise DamagedError(f"{path}: it is not a file, where one of a dataset is expected; run `packer repair`")
        if not status.st_size or status.st_size != (size or status.st_size):
            expected = "more" if size is None else f"{size:,}"
            raise DamagedError(
                f"{path}: {status.st_size:,} bytes, {expected} expected: it was cut short or changed; "
                "copy it again or run `packer repair`"
            )
        return mmap.mmap(fd, 0, access=mmap.ACCESS_READ, **_NO_DESCRIPTOR)
    finally:
        os.close(fd)
