"""Writes one shard: an LMDB file of chunks, index arrays and a header, in ascending key order."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from packer.errors import UsageError
from packer.format import layout
from packer.format.column_writer import ColumnWriter
from packer.format.layout import (
    HEADER,
    MAX_CHUNKS,
    NAME_BYTES,
    NAME_OFFSETS,
    ShardHeader,
    chunk_key,
    column_key,
    index_arrays,
)
from packer.format.lmdb_appender import LmdbAppender
from packer.format.schema import Field, no_text
from packer.format.shard import Shard
from packer.format.sync import clear_errors


class ShardWriter(LmdbAppender):
    """One shard while it is written. Use as a context manager: if anything fails, the file is removed.

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
        with clear_errors(path):
            super().__init__(path, map_size, map_limit)
        self.samples = 0
        self._number = number
        self._fields = tuple(fields)
        self._named = named
        self._texts = [field.name for field in self._fields if field.kind == "text"]
        self._origin = dict(origin or {})
        self._n_chunks = 0
        # All names one after another, and where each ends: a shard may hold ten million.
        self._names, self._name_ends = bytearray(), array("Q", [0])
        size = layout.chunk_bytes(len(self._fields)) if chunk_bytes is None else chunk_bytes
        self.columns = [ColumnWriter(field, self._put_chunk, size) for field in self._fields]
        #: Index arrays of the columns that are those of another shard, by field.
        self._taken: dict[str, dict[str, bytes]] = {}

    @property
    def raw_bytes(self) -> int:
        return sum(column.raw_bytes for column in self.columns)

    def take(self, shard: Shard, fields: Sequence[Field]) -> None:
        """Take over the samples of another shard, as they are stored: their names, and the columns of both schemas.

        Called before samples are added. These give the other columns alone, and no names. The other shard stays open
        until this one is finished.

        Args:
            fields: schema of the other shard.

        Raises:
            DamagedError: its header or index is damaged.
        """
        header = shard.header()
        self._number, self._named, self._origin = header.shard, header.named, header.origin
        if header.named:
            names, ends = shard.name_table(header.samples)
            self._names, self._name_ends = bytearray(names), array("Q", ends.tobytes())
        field_names = {field.name for field in self._fields}
        indexes = {
            field.name: shard.index(number, field, header.samples).arrays
            for number, field in enumerate(fields)
            if field.name in field_names
        }
        tables = [index["chunks"][:, 0] for index in indexes.values()]
        numbers = np.sort(np.concatenate([*tables, np.zeros(0, np.uint64)])).astype(np.int64)
        for offset, size in shard.chunks(numbers).tolist():
            self._put_chunk(shard.bytes[offset : offset + size])
        for name, index in indexes.items():
            chunks = index["chunks"].copy()
            chunks[:, 0] = numbers.searchsorted(chunks[:, 0].astype(np.int64))
            self._taken[name] = {key: values.tobytes() for key, values in {**index, "chunks": chunks}.items()}
        self.columns = [column for column in self.columns if column.field.name not in self._taken]
        self._texts = [name for name in self._texts if name not in self._taken]
        if not self.columns:
            self.samples = header.samples

    def encoded(self, block: Mapping[str, Any]) -> dict[str, Any]:
        """Return a block as `add` takes it, with its large arrays encoded (see `ColumnWriter`); nothing is added yet.

        Raises:
            UsageError: an array does not fit its field.
            Any error of reading their rows.
        """
        encoded = dict(block)
        for column in self.columns:
            values = block[column.field.name]
            if isinstance(values, list) and len(values) == 1 and hasattr(values[0], "pieces"):
                encoded[column.field.name] = [column.encoded(values[0])]
        return encoded

    def add(self, block: Mapping[str, Any], count: int, names: Sequence[str] | None = None) -> None:
        """Add `count` samples, by field; arrays (count, *shape) for fixed fields, sequences of arrays for ragged.

        Raises:
            SourceError: a text or a name cannot be stored as UTF-8; nothing was added.
            UsageError: an array does not fit its field, or there are too many chunks; the shard cannot be used then.
            WriteError: the file cannot be written; likewise.
        """
        assert names is not None or not self._named or self._taken
        # All text first: an error in one text must not leave one column a sample ahead of another.
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
        """Write the index arrays, the header and the names, and wait until all is on the disk."""
        # All columns first: closing one may still put a chunk, and chunk keys come before the others.
        for column in self.columns:
            column.flush()
        header = ShardHeader(
            shard=self._number, samples=self.samples, named=self._named, fields=self._fields, origin=self._origin
        )
        with clear_errors(self.path):
            arrays = {column.field.name: column.finish() for column in self.columns}
            for number, field in enumerate(self._fields):
                index = self._taken.get(field.name) or {k: v.tobytes() for k, v in arrays[field.name].items()}
                for name in index_arrays(field):
                    self.put(column_key(number, name), index[name])
            self.put(HEADER, msgspec.json.encode(header, order="sorted"))
            if self._named:
                self.put(NAME_BYTES, self._names)
                self.put(NAME_OFFSETS, self._name_ends.tobytes())
            super().finish()

    def _encoded(self, texts: Sequence[str], subject: str) -> list[bytes]:
        try:
            return [text.encode() for text in texts]
        except UnicodeEncodeError as error:
            number = self.samples + list(texts).index(error.object)
            raise no_text(f"sample {number} of shard {self._number}: {subject}", error) from None

    def _put_chunk(self, chunk: memoryview) -> int:
        number = self._n_chunks
        if number >= MAX_CHUNKS:
            raise UsageError(
                f"{self.path.name} would need more than {MAX_CHUNKS:,} chunks; take a smaller --shard-size"
            )
        with clear_errors(self.path):
            self.put(chunk_key(number), chunk)
        self._n_chunks += 1
        return number
