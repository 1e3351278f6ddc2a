"""Estimates how large a dataset gets and how long packing takes: some samples are packed and dropped."""

from __future__ import annotations

import time
from dataclasses import dataclass

from packer.format import names_bytes
from packer.packing.examples import read_runs
from packer.packing.framing import encode_samples
from packer.packing.plan import Plan
from packer.watcher import NOBODY, Watcher
from packer.workers import Limits

#: As `EXAMPLE_RUNS` and so on, of the samples that `estimate` packs. Their runs are longer, since each has costs of its
#: own, such as opening an HDF5 file.
TRIAL_RUNS, TRIAL_RUN_BYTES, TRIAL_BYTES = 32, 2**19, 128 * 2**20


@dataclass(frozen=True)
class FieldEstimate:
    """Bytes of one field: as arrays, and as frames on disk."""

    raw: int
    stored: int

    @property
    def ratio(self) -> float:
        return self.raw / self.stored if self.stored else 1.0


@dataclass(frozen=True)
class Estimate:
    """How large a dataset will get, all files but the manifest, and how long packing it may take.

    Attributes:
        file_bytes: the likely size; exact if `exact`.
        most: the size if nothing shrinks.
        samples: how many were packed for it.
        seconds: that one process may take for all samples, without writing.
    """

    fields: dict[str, FieldEstimate]
    file_bytes: int
    most: int
    exact: bool
    samples: int
    seconds: float


def estimate(plan: Plan, limits: Limits | None = None, watcher: Watcher = NOBODY) -> Estimate:
    """Return the likely size and time of packing `plan`: some of its samples are read, packed and dropped.

    Args:
        limits, watcher: as in `make_plan`.
    """
    raw_bytes = sum(plan.raw_bytes.values())
    run_samples = max(1, round(TRIAL_RUN_BYTES * plan.samples / max(raw_bytes, 1)))
    found = read_runs(plan.source, TRIAL_RUNS, run_samples, TRIAL_BYTES, limits, watcher)
    examples = {field.name: found.samples(field.name) for field in plan.fields}
    start_time = time.perf_counter()
    columns = {field.name: encode_samples(field, examples[field.name]) for field in plan.fields}
    seconds = found.seconds + time.perf_counter() - start_time
    samples = len(next(iter(examples.values())))
    fields, are_known = {}, True
    for field in plan.fields:
        total, column = plan.raw_bytes[field.name], columns[field.name]
        if samples and field.is_ragged and plan.source.shapes(field.name) is None:
            total, are_known = round(column.raw_bytes / samples * plan.samples), False
        ratio = column.stored_bytes / column.raw_bytes if field.codec and column.raw_bytes else 1.0
        fields[field.name] = FieldEstimate(total, round(total * ratio))
    packed_bytes = sum(column.raw_bytes for column in columns.values())
    share = packed_bytes / raw_bytes if raw_bytes and are_known else samples / plan.samples
    # The plan takes every frame to be raw; its other bytes are indexes and ends of pages.
    table_bytes = names_bytes([name.encode() for name in plan.source.names]) if plan.source.names is not None else 0
    other_bytes = plan.file_bytes - sum(shard.slack_bytes for shard in plan.shards) - raw_bytes + table_bytes
    file_bytes = sum(field.stored for field in fields.values()) + other_bytes
    pieces = 0 if plan.source.cuts is None else len(plan.source.cuts)
    all_seconds = seconds / share + found.once * pieces if share else 0.0
    return Estimate(fields, file_bytes, plan.file_bytes + table_bytes, plan.exact, samples, all_seconds)
