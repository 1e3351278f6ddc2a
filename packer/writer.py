"""DatasetWriter: a packed dataset from samples made in Python, one after another.

with DatasetWriter("mine.packed") as writer:
    for name, cloud in clouds:
        writer.add({"xyz": cloud}, name=name)
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

import packer
from packer.errors import UsageError
from packer.finish import Made, finish
from packer.format.codecs import parse_codec
from packer.format.manifest import UNFINISHED
from packer.format.schema import Field, FieldSpec
from packer.format.shard_writer import ShardWriter
from packer.framing import Extent, choose_codec, codec_by_field, stored_field
from packer.output import OutputFolder
from packer.sources.samples import as_arrays, infer_fields, one_block
from packer.state import State
from packer.tasks import ShardReport, publish, report_of, shard_path

GIB = 2**30
#: Samples held back at the start, to tell which axes are ragged and which codec pays.
HOLD_SAMPLES = 64
HOLD_BYTES = 32 * 2**20
#: First size of a shard's map beyond its raw bytes; it grows where that is not enough.
MAP_SPARE = 64 * 2**20

Sample = dict[str, NDArray[Any] | str]


class DatasetWriter:
    """Writes a packed dataset sample by sample. A context manager: left by an exception, `out` stays unfinished.

    Args:
        out: folder of the dataset; must not exist yet.
        fields: the schema. None infers it from the first samples (up to 64): an axis that differs among them is
            ragged, any other is fixed from then on.
        codec: as in `convert`.
        shard_size: raw bytes of a shard, about.
        overwrite: whether a dataset that is there may be replaced; it stays until the new one is done.

    Raises:
        UsageError: the folder is in use or holds something else.
        WriteError: the folder cannot be written.
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        fields: Sequence[FieldSpec] | None = None,
        codec: str | Mapping[str, str] = "auto",
        shard_size: int = GIB,
        overwrite: bool = False,
    ) -> None:
        path = Path(out)
        if (path / UNFINISHED).exists() and not overwrite:
            raise UsageError(f"{path} is unfinished; remove it, or write it anew with overwrite=True")
        # Such a dataset cannot be gone on with, so the time makes every attempt a different one.
        state = State(shards=None, settings={"begun": time.time_ns(), "version": packer.__version__}, files=[])
        self._folder = OutputFolder(path, state, overwrite)
        self._specs = None if fields is None else tuple(fields)
        self._codec = codec
        self._shard_size = shard_size
        self._held: list[Sample] = []
        self._held_names: list[str | None] = []
        self._held_bytes = 0
        self._fields: tuple[Field, ...] = ()
        self._named: bool | None = None
        self._shard: ShardWriter | None = None
        self._reports: list[ShardReport] = []
        self._samples = 0

    def add(self, sample: Mapping[str, Any], name: str | None = None) -> None:
        """Adds a sample: field name to array, number, str or tensor.

        Args:
            name: its name; all samples have one, or none has.

        Raises:
            SourceError: the sample does not fit the schema.
            UsageError: some samples have names and others none, or a dtype or codec cannot be used.
            WriteError: the shard cannot be written.
        """
        if self._named is None:
            self._named = name is not None
        if (name is not None) != self._named:
            raise UsageError(f"sample {self._samples} has {'a' if name else 'no'} name, unlike those before it")
        arrays = as_arrays(sample, self._samples)
        self._samples += 1
        if self._fields:
            self._write(arrays, name, self._samples - 1)
            return
        # Copies: the caller may fill the same memory with the next sample.
        self._held.append({k: v if isinstance(v, str) else v.copy() for k, v in arrays.items()})
        self._held_names.append(name)
        self._held_bytes += sum(len(v) if isinstance(v, str) else v.nbytes for v in arrays.values())
        if len(self._held) >= HOLD_SAMPLES or self._held_bytes >= HOLD_BYTES:
            self._settle()

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with self._folder:
            try:
                if kind is None:
                    self._finish()
            finally:
                if self._shard is not None:
                    self._shard.abort()

    def _finish(self) -> None:
        if not self._fields and self._held:
            self._settle()
        self._close_shard()
        made = Made(self._fields, {"kind": "writer"}, bool(self._named))
        finish(self._folder, made, self._reports)

    def _settle(self) -> None:
        """Fixes schema and codecs by the samples held back, and writes them."""
        specs = self._specs or infer_fields(self._held)
        texts = codec_by_field(self._codec, [spec.name for spec in specs])
        arrays = {spec.name: [_flat(sample.get(spec.name, "")) for sample in self._held] for spec in specs}
        total = max(sum(a.nbytes for values in arrays.values() for a in values), 1)
        fields = []
        for spec in specs:
            sizes = [a.nbytes for a in arrays[spec.name]]
            share = sum(sizes) / total
            auto = texts[spec.name] == "auto"
            codec = choose_codec(spec, arrays[spec.name], share) if auto else parse_codec(texts[spec.name])
            fields.append(stored_field(spec, codec, _extent(arrays[spec.name])))
        self._fields = tuple(fields)
        for number, (sample, name) in enumerate(zip(self._held, self._held_names, strict=True)):
            self._write(sample, name, number)
        self._held = []
        self._held_names = []

    def _write(self, sample: Sample, name: str | None, number: int) -> None:
        block = one_block(sample, self._fields, f"sample {number}")
        if self._shard is None:
            self._shard = self._new_shard()
        self._shard.add(block, 1, None if name is None else [name])
        if self._shard.raw_bytes >= self._shard_size:
            self._close_shard()

    def _new_shard(self) -> ShardWriter:
        path = shard_path(self._folder.work, len(self._reports))
        return ShardWriter(
            path.with_suffix(".lmdb.partial"),
            len(self._reports),
            self._fields,
            map_size=self._shard_size + MAP_SPARE,
            named=bool(self._named),
            origin={"kind": "writer"},
        )

    def _close_shard(self) -> None:
        if self._shard is None:
            return
        shard, self._shard = self._shard, None
        try:
            shard.finish()
        except BaseException:
            shard.abort()
            raise
        path = shard_path(self._folder.work, len(self._reports))
        publish(path, shard.path, [])
        self._reports.append(report_of(path, self._fields))


def _flat(value: NDArray[Any] | str) -> NDArray[Any]:
    return np.frombuffer(value.encode(), np.uint8) if isinstance(value, str) else value


def _extent(arrays: Sequence[NDArray[Any]]) -> Extent:
    sizes = [a.nbytes for a in arrays]
    rows = [a.nbytes / len(a) if a.ndim and len(a) else a.nbytes for a in arrays]
    return Extent(float(np.mean(sizes)), max(sizes), float(np.mean(rows)))
