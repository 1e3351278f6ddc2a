"""DatasetWriter: a packed dataset from samples made in Python, one after another.

with DatasetWriter("mine.packed") as writer:
    for name, cloud in clouds:
        writer.add({"xyz": cloud}, name=name)
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import xxhash

from packer.codecs import EncodedImage
from packer.errors import SourceError, UsageError, WriteError
from packer.format import Field, FieldSpec, ShardNames, ShardWriter, check_count, name_bytes
from packer.packing import (
    Command,
    Contents,
    FieldSizes,
    LocalPlace,
    ShardReport,
    SourceFiles,
    changing,
    check_output,
    conclude,
    finish_shard,
    make_manifest,
    place_of,
    read_manifest,
    remark_on_jpegs,
    shard_file,
    stored_fields,
)
from packer.remote import refuse_url
from packer.sources import Block, Sample, arrays_of, as_arrays, infer_fields, one_block

GIB = 2**30
#: Samples held back at the start, to tell which axes are ragged and which codec pays.
HOLD_SAMPLES = 64
HOLD_BYTES = 32 * 2**20
#: First size of a shard's map beyond its raw bytes; it grows if that is not enough.
MAP_SPARE = 64 * 2**20
_ORIGIN = {"kind": "writer"}

_log = logging.getLogger(__name__)


class DatasetWriter:
    """Writes a packed dataset sample by sample. A context manager: left by an exception, `out` stays unfinished.

    A sample that is refused changes nothing: if the error is caught, the next sample takes its number.

    Args:
        out: folder of the dataset; must not exist yet.
        fields: the schema. None infers it from the first samples (up to 64): an axis that differs among them is ragged,
            any other is fixed from then on.
        codec: as in `convert`.
        shard_size: about how many raw bytes a shard holds.
        overwrite: whether a dataset that is there may be replaced; it stays until the new one is done.
        like: a dataset whose fields, codecs and frames are taken, so that both can be merged; in place of `fields` and
            `codec`.

    Raises:
        UsageError: the folder is in use or holds something else; or `like` is given beside `fields` or `codec`.
        DatasetError: `like` is no dataset, or damaged.
        WriteError: the folder cannot be written.
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        fields: Sequence[FieldSpec] | None = None,
        codec: str | Mapping[str, str] = "auto",
        shard_size: int = GIB,
        overwrite: bool = False,
        like: str | os.PathLike[str] | None = None,
    ) -> None:
        refuse_url(Path(out))
        if like is not None:
            if fields is not None or codec != "auto":
                raise UsageError(f"like={like}: codecs and fields are those of this dataset; give no others")
            fields = read_manifest(place_of(like)).fields
        self._place = LocalPlace(Path(out))
        check_output(self._place, overwrite)
        note = Command(verb="DatasetWriter", files=SourceFiles()).note
        with contextlib.ExitStack() as stack:
            self._change = stack.enter_context(changing(self._place))
            if not overwrite and self._change.is_unfinished:
                raise UsageError(f"{out} is unfinished; remove it, or write it again with overwrite=True")
            self._change.begin(note, overwrite, resume=False)
            self._end = stack.pop_all()
        self._specs = tuple(fields) if fields else None
        self._codec = codec
        self._shard_size = shard_size
        self._pending: list[tuple[Sample, str | None]] = []
        self._pending_bytes = 0
        self._fields: tuple[Field, ...] = ()
        self._named: bool | None = None
        #: Names that were added, as digests: a million take about 100 MB.
        self._names: set[bytes] = set()
        self._shard: ShardWriter | None = None
        self._reports: list[ShardReport] = []
        self._samples = 0
        self._turn = threading.Lock()
        self._is_closed = False
        self._is_broken = False

    def add(self, sample: Mapping[str, Any], name: str | None = None) -> None:
        """Add a sample: field name to array, number, str or tensor. Threads that call it take turns.

        Args:
            name: its name; all samples have one, or none has.

        Raises:
            SourceError: the sample does not fit the schema or the samples before it, or its name is taken or cannot be
                stored.
            UsageError: some samples have names and others none, a dtype or codec cannot be used, or the writer is
                closed.
            WriteError: the shard cannot be written; nothing can be added any more.
        """
        with self._turn:
            self._add(sample, name)

    def _add(self, sample: Mapping[str, Any], name: str | None) -> None:
        """Add a sample, while no other thread does."""
        if self._is_closed or self._is_broken:
            raise self._refusal()
        number = self._samples
        key = self._check_name(name, number)
        arrays = as_arrays(sample, number)
        if self._fields:
            self._write([(one_block(arrays, self._fields, f"sample {number}"), name)])
        else:
            self._hold(arrays, name)
        # Last: what was refused must leave no trace.
        self._samples += 1
        self._named = name is not None
        if key is not None:
            self._names.add(key)

    def __enter__(self) -> DatasetWriter:
        if self._is_closed:
            raise self._refusal()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with self._turn:
            self._is_closed = True
        with self._end:
            try:
                if kind is None and self._is_broken:
                    raise self._refusal()
                if kind is None:
                    if self._pending:
                        self._settle(self._pending)
                    self._close_shard()
                    self._names = set()  # their memory is wanted for the table
                    shards = [report.entry for report in self._reports]
                    columns = [report.columns for report in self._reports]
                    manifest = make_manifest(shards, columns, self._fields, _ORIGIN)
                    names = ShardNames(self._place.path, shards) if self._named else None
                    conclude(self._change, Contents(manifest=manifest, names=names))
            finally:
                if self._shard is not None:
                    self._shard.abort()

    def _refusal(self) -> UsageError | WriteError:
        """Return why nothing can be added any more."""
        if self._is_broken:
            return WriteError(
                f"{self._place} stays unfinished: an error or a signal came while a sample was written, part of "
                "which may be missing; write it again with overwrite=True"
            )
        return UsageError(f"the writer of {self._place} is closed; samples are added within its `with` block")

    def _check_name(self, name: str | None, number: int) -> bytes | None:
        """Return the digest of a name that no sample has."""
        if self._named is not None and (name is not None) != self._named:
            raise UsageError(
                f"sample {number} has {'no' if name is None else 'a'} name, unlike those before it; give all a name, "
                "or none"
            )
        if name is None:
            return None
        key = xxhash.xxh3_128_digest(name_bytes(name, number))
        if key in self._names:
            raise SourceError(f"sample {number} and one before it have the same name, {name!r}; names must differ")
        return key

    def _hold(self, sample: Sample, name: str | None) -> None:
        """Check a sample against the schema or the samples before it, and hold it; the last one settles the schema."""
        if self._specs is not None:
            one_block(sample, self._specs, f"sample {self._samples}")
        else:
            try:
                infer_fields([*(first for first, _ in self._pending[:1]), sample])
            except SourceError as error:
                raise SourceError(f"sample {self._samples}: {error.reason}") from None
        # Copies: the caller may fill the same memory with the next sample.
        copy: Sample = {k: v if isinstance(v, str | EncodedImage) else v.copy() for k, v in sample.items()}
        pending = [*self._pending, (copy, name)]
        nbytes = self._pending_bytes + sum(len(v) if isinstance(v, str) else v.nbytes for v in sample.values())
        if len(pending) >= HOLD_SAMPLES or nbytes >= HOLD_BYTES:
            self._settle(pending)
        else:
            self._pending, self._pending_bytes = pending, nbytes

    def _settle(self, pending: Sequence[tuple[Sample, str | None]]) -> None:
        """Fix schema and codecs by the samples held back, and write them."""
        specs = self._specs or infer_fields([sample for sample, _ in pending])
        check_count(len(specs))
        values = arrays_of({spec.name: [sample[spec.name] for sample, _ in pending] for spec in specs})
        shapes = {name: np.array([array.shape for array in arrays], np.int64) for name, arrays in values.items()}
        sizes = {spec.name: FieldSizes.of(spec, shapes[spec.name]) for spec in specs}
        fields = tuple(stored_fields(specs, self._codec, sizes, lambda: values))
        for remark in remark_on_jpegs(specs, self._codec, fields, lambda: values):
            _log.info("%s", remark)
        blocks = [(one_block(sample, fields, f"sample {i}"), name) for i, (sample, name) in enumerate(pending)]
        self._fields, self._pending = fields, []
        self._write(blocks)

    def _write(self, blocks: Sequence[tuple[Block, str | None]]) -> None:
        """Write blocks of one sample each, with their names."""
        # Broken until it is done: if it fails, only some columns may hold the sample.
        self._is_broken = True
        for block, name in blocks:
            if self._shard is None:
                number = len(self._reports)
                self._shard = ShardWriter(
                    self._place.draft(shard_file(self._change.run, number)),
                    number,
                    self._fields,
                    map_size=self._shard_size + MAP_SPARE,
                    named=name is not None,
                )
            self._shard.add(block, 1, None if name is None else [name])
            if self._shard.raw_bytes >= self._shard_size:
                self._close_shard()
        self._is_broken = False

    def _close_shard(self) -> None:
        if self._shard is not None:
            self._shard.finish()
            number, draft = len(self._reports), self._shard.path
            self._reports.append(finish_shard(self._place, self._change.run, number, draft, self._fields))
            self._shard = None
