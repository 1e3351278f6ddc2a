"""How large a dataset will get, and how long packing it may take, from a sample of the data.

The size is exact where nothing is encoded.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.format.column_writer import ColumnWriter
from packer.format.layout import chunk_bytes
from packer.format.names import names_bytes
from packer.format.schema import Field
from packer.format.sizes import PAGE_SIZE, slack_pages
from packer.packing.plan import Plan, Prepared, look_at
from packer.sources.apart import Limits, each
from packer.sources.base import Source, count, of_middles

#: Samples are taken from this many places, and no more than this many raw bytes.
PLACES = 64
MOST_BYTES = 128 * 2**20
#: The samples looked at are split into this many groups; how much they differ gives the interval.
GROUPS = 8
#: Student's t for 95% and the 7 degrees of freedom of eight groups.
_T = 2.4
#: The interval is never narrower than this part: other samples share a frame when all are packed.
_LEAST = 0.01


@dataclass(frozen=True)
class FieldEstimate:
    """Bytes of one field: as arrays, and as frames on disk, with the bounds of a 95% interval."""

    raw: int
    low: int
    stored: int
    high: int

    @property
    def ratio(self) -> float:
        return self.raw / self.stored if self.stored else 1.0


@dataclass(frozen=True)
class Estimate:
    """Bytes of all files but the manifest, with the bounds of an interval; all equal where it is exact.

    Attributes:
        names: bytes of names.lmdb, which `low`, `file_bytes` and `high` include.
    """

    fields: dict[str, FieldEstimate]
    names: int
    low: int
    file_bytes: int
    high: int
    exact: bool


def estimate(prepared: Prepared, limits: Limits | None = None) -> Estimate:
    """Return the size of what packing `prepared` makes. Reads some samples where the plan is not exact already.

    Args:
        limits: what reading a sample may take, in a process of its own; None: in this one, unguarded.
    """
    plan, source = prepared.plan, prepared.source
    names = names_bytes([name.encode() for name in source.names]) if source.names is not None else 0
    if plan.exact:
        whole = {name: FieldEstimate(raw, raw, raw, raw) for name, raw in plan.raw_bytes.items()}
        size = plan.file_bytes + names
        return Estimate(whole, names, size, size, size, True)
    samples = look_at(source, PLACES, MOST_BYTES, limits)
    fields = {f.name: _field(prepared, f, samples.get(f.name, [])) for f in plan.fields}
    # The plan takes every frame to be raw; what is more in it than the data are indexes and ends of pages.
    rest = plan.file_bytes - _spare(plan) - sum(plan.raw_bytes.values()) + names
    low, stored, high = (sum(getattr(f, bound) for f in fields.values()) for bound in ("low", "stored", "high"))
    # A column ends somewhere within a page; which one is not known where it is encoded.
    slack = PAGE_SIZE * len(fields) * len(plan.shards)
    return Estimate(fields, names, max(0, low + rest - slack), stored + rest, high + rest + slack, False)


def _spare(plan: Plan) -> int:
    """Return what the plan's upper bound holds for pages that may be needed and mostly are not: see `slack_pages`."""
    shards = len(plan.shards)
    encoded = [plan.raw_bytes[field.name] for field in plan.fields if field.codec]
    most = -(-plan.samples // shards)  # a sample lies in one chunk, however large
    chunks = sum(min(most, -(-nbytes // (chunk_bytes(len(plan.fields)) * shards))) for nbytes in encoded)
    return shards * slack_pages(chunks) * PAGE_SIZE


def _field(prepared: Prepared, field: Field, samples: Sequence[NDArray[Any]]) -> FieldEstimate:
    raw = _raw_bytes(prepared, field, samples)
    if not field.codec:
        return FieldEstimate(raw, raw, raw, raw)
    share, error = stored_share(field, samples)
    unseen = 1 - len(samples) / prepared.plan.samples
    spread = max(error * math.sqrt(max(unseen, 0)), _LEAST * share)
    return FieldEstimate(
        raw, math.floor(raw * max(0.0, share - spread)), round(raw * share), math.ceil(raw * min(1.0, share + spread))
    )


def _raw_bytes(prepared: Prepared, field: Field, samples: Sequence[NDArray[Any]]) -> int:
    """Return the raw bytes of a field: known, or from the mean of the samples where sizes stand in no header."""
    unknown = field.is_ragged and prepared.source.shapes(field.name) is None
    if not unknown or not samples:
        return prepared.plan.raw_bytes[field.name]
    return round(sum(sample.nbytes for sample in samples) / len(samples) * prepared.plan.samples)


def stored_share(field: Field, samples: Sequence[NDArray[Any]]) -> tuple[float, float]:
    """Return the stored bytes as a share of the raw ones, and half the width of its 95% interval.

    Args:
        samples: of the field, spread over the source; there may be none.
    """
    columns = [_packed(field, group) for group in _groups(samples, field.frame.samples or 1)]
    raw = np.array([column.raw_bytes for column in columns], np.float64)
    stored = np.array([column.stored_bytes for column in columns], np.float64)
    if not raw.sum():
        return 1.0, 0.0
    share = float(stored.sum() / raw.sum())
    if len(columns) < 2:
        return share, share
    # The standard error of a ratio of two sums, the groups being the units that were drawn.
    variance = float(((stored - share * raw) ** 2).sum()) * len(columns) / (len(columns) - 1)
    return share, _T * math.sqrt(variance) / float(raw.sum())


def _packed(field: Field, samples: Sequence[NDArray[Any]]) -> ColumnWriter:
    """Return a column of these samples, written to nowhere: its frames are those of the real one."""
    column = _column(field)
    column.add(samples if column.field.is_ragged else np.stack(samples))
    column.finish()
    return column


def _column(field: Field) -> ColumnWriter:
    """Return a column that is written to nowhere; where frames hold rows it takes parts of samples too."""
    if field.frame.rows is not None:
        field = msgspec.structs.replace(field, shape=(None, *field.shape[1:]))
    return ColumnWriter(field, lambda chunk: 0)


def _groups(samples: Sequence[NDArray[Any]], frame: int) -> list[Sequence[NDArray[Any]]]:
    """Return the samples in up to `GROUPS` groups of about one size, cut between frames."""
    frames = -(-len(samples) // frame)
    groups = max(min(GROUPS, frames), 1)
    cuts = [frames * k // groups * frame for k in range(groups + 1)]
    return [samples[start:stop] for start, stop in itertools.pairwise(cuts) if start < len(samples)]


#: Runs of samples are packed from so many places, spread evenly, of so many raw bytes each, but of a few samples at
#: least: a run has costs of its own, such as opening an HDF5 file.
TRIAL_PLACES = 8
RUN_BYTES = 2**20
_LEAST_RUN = 4
#: No further run is begun after this long.
SECONDS = 1.0


@dataclass(frozen=True)
class Trial:
    """What was packed: samples, their raw bytes, and the seconds of one process that it took, without writing."""

    samples: int
    nbytes: int
    seconds: float

    def of_all(self, prepared: Prepared, workers: int) -> float:
        """Return the seconds that all samples may take `workers` processes, without writing."""
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
    run = max(_LEAST_RUN, round(RUN_BYTES / max(mean, 1)))
    starts = np.linspace(0, plan.samples, TRIAL_PLACES + 1).astype(int).tolist()
    parts = [source.part(start, min(start + run, end)) for start, end in itertools.pairwise(starts)]
    samples, nbytes, seconds, began = 0, 0, 0.0, time.perf_counter()
    for packed in each(partial(_tried, plan.fields), [part for part in parts if len(part)], limits):
        if not isinstance(packed, SourceError):
            samples, nbytes, seconds = samples + packed[0], nbytes + packed[1], seconds + packed[2]
        if time.perf_counter() - began > SECONDS:
            break
    return Trial(samples, nbytes, seconds)


def _tried(fields: Sequence[Field], source: Source) -> tuple[int, int, float]:
    """Return the samples, raw bytes and seconds of packing a source to nowhere."""
    began = time.perf_counter()
    columns = [_column(field) for field in fields]
    samples = 0
    for block in source.read():
        samples += count(block)
        some = of_middles(block)
        for field, column in zip(fields, columns, strict=True):
            values: Any = some[field.name]
            if field.kind == "text":
                # Text that cannot be stored is told of where it is packed.
                values = [np.frombuffer(text.encode(errors="surrogatepass"), np.uint8) for text in values]
            column.add(values)
    for column in columns:
        column.finish()
    return samples, sum(column.raw_bytes for column in columns), time.perf_counter() - began
