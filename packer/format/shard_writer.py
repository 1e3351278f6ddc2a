"""Writes one shard: an LMDB file of chunks, index arrays and a header, in ascending key order."""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import lmdb
import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format import limits
from packer.format.chunks import ChunkBuffers
from packer.format.codecs import Buffer
from packer.format.column_writer import ColumnWriter
from packer.format.layout import (
    FORMAT_NAME,
    FORMAT_VERSION,
    HEADER,
    MAX_CHUNKS,
    NAME_BYTES,
    NAME_OFFSETS,
    chunk_key,
    column_key,
)
from packer.format.schema import Field
from packer.format.text import no_text
from packer.format.write_errors import clear_errors
from packer.format.writeback import Writeback

#: Stored bytes between two commits: one full chunk. Until then they lie in memory twice, as LMDB's dirty pages and
#: here for a replay.
COMMIT_BYTES = 2 * 10**6
#: Bytes between two times that the file is mapped anew. What commits look at through the map counts as memory of the
#: process, with all that lies around it: 420 MB of a shard of 1 GiB.
REMAP_BYTES = 64 * 10**6
PAGE = 4096


class ShardHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a shard says of itself, so that a lost manifest can be made again from the shards."""

    format: str = FORMAT_NAME
    version: int = FORMAT_VERSION
    shard: int
    samples: Annotated[int, msgspec.Meta(ge=0)]
    named: bool
    fields: tuple[Field, ...]
    origin: dict[str, Any]


class LmdbAppender:
    """Appends values to a new LMDB file; grows the map and replays the open batch where it was too small.

    Args:
        path: the file; replaced if it exists.
        map_size: first size of the map in bytes (see `pages.map_size`).
        map_limit: the map never grows beyond this; None for no limit.
    """

    def __init__(self, path: Path, map_size: int, map_limit: int | None = None) -> None:
        self.path = path
        self.growths = 0
        path.unlink(missing_ok=True)
        self._limit = map_limit
        self._map_size = map_size if map_limit is None else min(map_size, map_limit)
        # lib_version 0: an environment variable can make other versions the default, which readers
        # of the 0.9 format cannot open. lock=False: nobody else knows the temporary name.
        try:
            self._env = lmdb.open(
                str(path), subdir=False, lib_version=0, lock=False, sync=False, metasync=False, map_size=self._map_size
            )
            self._writeback = Writeback(path)
        except (lmdb.Error, OSError):
            self._remove()
            raise
        self._txn = self._env.begin(write=True)
        self._batch: list[tuple[bytes, Buffer]] = []
        self._batch_bytes = 0
        self._mapped_bytes = 0

    def put(self, key: bytes, value: Buffer) -> bool:
        """Appends a value; `key` must be greater than all before it. The value must not change until the commit.

        Returns whether it was committed, with all before it.
        """
        self._batch.append((key, value))
        self._batch_bytes += len(value)
        try:
            self._put(key, value)
        except lmdb.MapFullError:
            self._replay()
        if self._batch_bytes < COMMIT_BYTES:
            return False
        self.commit()
        return True

    def commit(self) -> None:
        """Commits what was put."""
        while True:
            try:
                self._txn.commit()
                break
            except lmdb.MapFullError:
                self._replay()
        self._writeback.begin()
        self._mapped_bytes += self._batch_bytes
        if self._mapped_bytes >= REMAP_BYTES:
            self._env.set_mapsize(self._map_size)
            self._mapped_bytes = 0
        self._batch = []
        self._batch_bytes = 0
        self._txn = self._env.begin(write=True)

    def finish(self) -> None:
        """Commits, waits until the file is on the disk, and closes it."""
        self.commit()
        self._txn.abort()
        self._writeback.close()
        self._env.sync(True)
        self._env.close()

    def abort(self) -> None:
        """Closes and removes the file."""
        self._writeback.close()
        self._txn.abort()
        self._env.close()
        self._remove()

    def _remove(self) -> None:
        with contextlib.suppress(OSError):  # whatever led here is what should be told
            self.path.unlink(missing_ok=True)

    def _put(self, key: bytes, value: Buffer) -> None:
        if not self._txn.put(key, value, append=True):
            raise AssertionError(f"key {key!r} is not greater than the one before")

    def _replay(self) -> None:
        """Doubles the map and puts the open batch again: after MapFullError its transaction is dead."""
        while True:
            self._txn.abort()
            self._grow()
            self._txn = self._env.begin(write=True)
            try:
                for key, value in self._batch:
                    self._put(key, value)
            except lmdb.MapFullError:
                continue
            return

    def _grow(self) -> None:
        if self._limit is not None and self._map_size >= self._limit:
            raise UsageError(
                f"{self.path.name} needs a larger map than --map-size {self._limit:,}; raise it, "
                "or take a smaller --shard-size"
            )
        self.growths += 1
        larger = -(-self._map_size * 2 // PAGE) * PAGE
        self._map_size = larger if self._limit is None else min(larger, self._limit)
        self._env.set_mapsize(self._map_size)


class ShardWriter:
    """One shard while it is written. Use as a context manager: where anything fails, the file is removed.

    Args:
        path: where to write; the caller renames it when all is well.
        number: number of the shard in its dataset.
        fields: the schema.
        map_size: size of the LMDB map in bytes.
        named: whether samples have names.
        origin: where the samples came from; JSON values.
        chunk_bytes: target size of a chunk; None for the usual one.
        map_limit: the map never grows beyond this.
    """

    def __init__(
        self,
        path: Path,
        number: int,
        fields: Sequence[Field],
        *,
        map_size: int,
        named: bool,
        origin: Mapping[str, Any] | None = None,
        chunk_bytes: int | None = None,
        map_limit: int | None = None,
    ) -> None:
        self.path = path
        self.samples = 0
        self._number = number
        self._fields = tuple(fields)
        self._named = named
        self._texts = [field.name for field in self._fields if field.kind == "text"]
        self._origin = dict(origin or {})
        self._names = bytearray()
        self._name_ends = array("Q", [0])
        self._n_chunks = 0
        with clear_errors(path):
            self._file = LmdbAppender(path, map_size, map_limit)
        self._buffers = ChunkBuffers()
        size = limits.chunk_bytes(len(self._fields)) if chunk_bytes is None else chunk_bytes
        self.columns = [ColumnWriter(field, self._put_chunk, size, self._buffers) for field in self._fields]

    @property
    def growths(self) -> int:
        """How often the map was too small."""
        return self._file.growths

    @property
    def raw_bytes(self) -> int:
        return sum(column.raw_bytes for column in self.columns)

    def add(self, block: Mapping[str, Any], count: int, names: Sequence[str] | None = None) -> None:
        """Adds `count` samples, by field; arrays (count, *shape) for fixed fields, sequences of arrays for ragged.

        Raises:
            SourceError: a text or a name cannot be stored as UTF-8; nothing was added.
            UsageError: an array does not fit its field, or there are too many chunks; the shard is of no use any more.
            WriteError: the file cannot be written; likewise.
        """
        assert names is not None or not self._named
        # All text first: what cannot be encoded must not leave one column a sample ahead of another.
        encoded = {name: self._encoded(block[name], f"field {name!r}") for name in self._texts}
        encoded_names = self._encoded(names, "its name") if names is not None and self._named else []
        for column in self.columns:
            field = column.field.name
            texts = encoded.get(field)
            column.add(block[field] if texts is None else [np.frombuffer(text, np.uint8) for text in texts])
        self.samples += count
        for name in encoded_names:
            self._names += name
            self._name_ends.append(len(self._names))

    def finish(self) -> None:
        """Writes the index arrays, the header and the names, and waits until all is on the disk."""
        with clear_errors(self.path):
            self._put_index()
            self._file.finish()

    def abort(self) -> None:
        """Removes the file."""
        self._file.abort()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is not None:
            self.abort()
            return
        try:
            self.finish()
        except BaseException:
            self.abort()
            raise

    def _encoded(self, texts: Sequence[str], what: str) -> list[bytes]:
        try:
            return [text.encode() for text in texts]
        except UnicodeEncodeError as error:
            number = self.samples + list(texts).index(error.object)
            raise no_text(f"sample {number} of shard {self._number}: {what}", error) from None

    def _put_index(self) -> None:
        # All columns first: closing one may still put a chunk, and chunk keys come before the others.
        for column in self.columns:
            column.flush()
        for number, column in enumerate(self.columns):
            for name, values in column.finish().items():
                self._file.put(column_key(number, name), _bytes(values))
        header = ShardHeader(
            shard=self._number, samples=self.samples, named=self._named, fields=self._fields, origin=self._origin
        )
        self._file.put(HEADER, msgspec.json.encode(header, order="sorted"))
        if self._named:
            self._file.put(NAME_BYTES, self._names)
            self._file.put(NAME_OFFSETS, _bytes(np.array(self._name_ends, "<u8")))

    def _put_chunk(self, chunk: Buffer) -> int:
        number = self._n_chunks
        if number >= MAX_CHUNKS:
            raise UsageError(
                f"{self.path.name} would need more than {MAX_CHUNKS:,} chunks; take a smaller --shard-size"
            )
        with clear_errors(self.path):
            if self._file.put(chunk_key(number), chunk):
                self._buffers.committed()
        self._n_chunks += 1
        return number


def _bytes(values: NDArray[np.uint64]) -> Buffer:
    """The bytes of an array, not copied: a shard of ten million samples has index arrays of 80 MB."""
    return values.reshape(-1).view(np.uint8).data if values.size else b""


def sync_folder(folder: Path) -> None:
    """Makes renames within a folder last; without effect where folders cannot be synced (Windows)."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass
    finally:
        os.close(fd)
