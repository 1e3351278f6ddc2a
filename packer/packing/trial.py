"""How long a conversion may take, by packing a little of the source without writing it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from packer.errors import SourceError
from packer.format.column_writer import ColumnWriter
from packer.format.schema import Field
from packer.packing.plan import Prepared
from packer.sources.apart import Limits, each
from packer.sources.base import Source, count

#: Runs of samples are packed from so many places, spread evenly, of so many raw bytes each, but of a few samples at
#: least: a run has costs of its own, such as opening an HDF5 file.
PLACES = 8
RUN_BYTES = 2**20
_LEAST = 4
#: No further run is begun after this long.
SECONDS = 1.0


@dataclass(frozen=True)
class Trial:
    """What was packed: samples, their raw bytes, and the seconds of one process that it took, without writing."""

    samples: int
    nbytes: int
    seconds: float

    def of_all(self, prepared: Prepared, workers: int) -> float:
        """Seconds that all samples may take `workers` processes, without writing."""
        raw = sum(prepared.plan.raw_bytes.values())
        known = all(prepared.source.shapes(field.name) is not None for field in prepared.plan.fields if field.is_ragged)
        part = self.nbytes / raw if raw and known else self.samples / prepared.plan.samples
        return self.seconds / part / max(1, min(workers, len(prepared.plan.shards))) if part else 0.0


def trial(prepared: Prepared, limits: Limits | None = None) -> Trial:
    """Packs samples of `prepared` from all over it; bad ones are passed over.

    Args:
        limits: what reading a run may take, in a process of its own; None: in this one, unguarded.
    """
    source, plan = prepared.source, prepared.plan
    mean = sum(plan.raw_bytes.values()) / plan.samples
    run = max(_LEAST, round(RUN_BYTES / max(mean, 1)))
    starts = np.linspace(0, plan.samples, PLACES + 1).astype(int).tolist()
    parts = [source.part(start, min(start + run, end)) for start, end in itertools.pairwise(starts)]
    samples, nbytes, seconds, began = 0, 0, 0.0, time.perf_counter()
    for packed in each(partial(_packed, plan.fields), [part for part in parts if len(part)], limits):
        if not isinstance(packed, SourceError):
            samples, nbytes, seconds = samples + packed[0], nbytes + packed[1], seconds + packed[2]
        if time.perf_counter() - began > SECONDS:
            break
    return Trial(samples, nbytes, seconds)


def _packed(fields: Sequence[Field], source: Source) -> tuple[int, int, float]:
    """Samples, raw bytes and seconds of packing a source to nowhere."""
    began = time.perf_counter()
    columns = [ColumnWriter(field, lambda chunk: 0) for field in fields]
    samples = 0
    for block in source.read():
        samples += count(block)
        for field, column in zip(fields, columns, strict=True):
            values: Any = block[field.name]
            if field.kind == "text":
                # Text that cannot be stored is told of where it is packed.
                values = [np.frombuffer(text.encode(errors="surrogatepass"), np.uint8) for text in values]
            column.add(values)
    for column in columns:
        column.finish()
    return samples, sum(column.raw_bytes for column in columns), time.perf_counter() - began
