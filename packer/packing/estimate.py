"""How large a dataset will get, and how long packing it may take: some samples of it are packed to nowhere.

The size is exact if nothing is encoded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from packer.errors import SourceError
from packer.format.names import names_bytes
from packer.format.schema import Field
from packer.packing.framing import trial_column
from packer.packing.plan import Plan, spread_runs
from packer.sources.base import Source, arrays_of, count
from packer.workers import Limits, each

#: Samples are packed from up to PLACES places, spread evenly: a run of about RUN_BYTES raw bytes from each, since a run
#: has costs of its own, such as opening an HDF5 file. After MOST_BYTES raw bytes no further place is tried.
PLACES = 32
RUN_BYTES = 2**19
MOST_BYTES = 128 * 2**20


@dataclass(frozen=True)
class FieldEstimate:
    """Bytes of one field: as arrays, and as frames on disk."""

    raw: int
    stored: int

    @property
    def ratio(self) -> float:
        return self.raw / self.stored if self.stored else 1.0


@dataclass(frozen=True)
class Trial:
    """What was packed: samples, their raw bytes, and the seconds of one process that it took, without writing."""

    samples: int
    nbytes: int
    seconds: float

    def of_all(self, plan: Plan, workers: int) -> float:
        """Return the seconds that all samples may take `workers` processes, without writing."""
        raw = sum(plan.raw_bytes.values())
        known = all(plan.source.shapes(field.name) is not None for field in plan.fields if field.is_ragged)
        part = self.nbytes / raw if raw and known else self.samples / plan.samples
        return self.seconds / part / max(1, min(workers, len(plan.shards))) if part else 0.0


@dataclass(frozen=True)
class Estimate:
    """Bytes of all files but the manifest.

    Attributes:
        file_bytes: the likely size; exact if `exact`.
        most: the size if nothing shrinks.
        trial: the samples that were packed for it.
    """

    fields: dict[str, FieldEstimate]
    file_bytes: int
    most: int
    exact: bool
    trial: Trial


@dataclass(frozen=True)
class _Run:
    """What packing the samples of one place gave: for each field its raw bytes, and the stored ones."""

    samples: int
    sizes: list[tuple[int, int]]
    seconds: float


def estimate(plan: Plan, limits: Limits | None = None) -> Estimate:
    """Return the size of what packing `plan` makes, from a trial on some samples; bad ones are passed over.

    Args:
        limits: what reading a run of samples may take, in a process of its own; None: in this one, unguarded.
    """
    length = max(1, round(RUN_BYTES * plan.samples / max(sum(plan.raw_bytes.values()), 1)))
    parts = [plan.source.part(start, stop) for start, stop in spread_runs(plan.samples, PLACES, length)]
    runs: list[_Run] = []
    for packed in each(partial(_packed, plan.fields), parts, limits):
        if not isinstance(packed, SourceError):
            runs.append(packed)
        if sum(raw for run in runs for raw, _ in run.sizes) > MOST_BYTES:
            break
    sizes = np.array([run.sizes for run in runs], np.float64).reshape(len(runs), len(plan.fields), 2)
    tried = Trial(sum(run.samples for run in runs), int(sizes[:, :, 0].sum()), sum(run.seconds for run in runs))
    names = names_bytes([name.encode() for name in plan.source.names]) if plan.source.names is not None else 0
    fields = {field.name: _field(plan, field, sizes[:, n], tried) for n, field in enumerate(plan.fields)}
    # The plan takes every frame to be raw; what is more in it than the data are indexes and ends of pages.
    slack = sum(shard.slack_bytes for shard in plan.shards)
    rest = plan.file_bytes - slack - sum(plan.raw_bytes.values()) + names
    stored = sum(field.stored for field in fields.values())
    return Estimate(fields, stored + rest, plan.file_bytes + names, plan.exact, trial=tried)


def _packed(fields: Sequence[Field], source: Source) -> _Run:
    """Pack a source to nowhere."""
    began = time.perf_counter()
    columns = [trial_column(field) for field in fields]
    samples = 0
    for block in source.read():
        samples += count(block)
        arrays = arrays_of(block)
        for field, column in zip(fields, columns, strict=True):
            column.add(arrays[field.name])
    for column in columns:
        column.flush()
    sizes = [(column.raw_bytes, column.stored_bytes) for column in columns]
    return _Run(samples, sizes, time.perf_counter() - began)


def _field(plan: Plan, field: Field, sizes: np.ndarray[Any, Any], tried: Trial) -> FieldEstimate:
    """Return the size of a field, from the raw and stored bytes of each run, float64 (runs, 2)."""
    total, (runs_raw, runs_stored) = plan.raw_bytes[field.name], sizes.T
    if tried.samples and field.is_ragged and plan.source.shapes(field.name) is None:
        total = round(float(runs_raw.sum()) / tried.samples * plan.samples)
    if not field.codec or not runs_raw.any():
        return FieldEstimate(total, total)
    return FieldEstimate(total, round(total * float(runs_stored.sum() / runs_raw.sum())))
