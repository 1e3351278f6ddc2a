"""What each codec would do with the user's own data: ratio, speed, and what `auto` takes.

for field in codec_report(source):
    print(field.spec.name, field.auto, field.trials)
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.codecs import compiled
from packer.codecs.configs import NAMED, codec_name
from packer.codecs.frames import FrameCodec, Frames
from packer.errors import SourceError, UsageError
from packer.format.column_writer import ColumnWriter
from packer.format.schema import Field, FieldSpec
from packer.packing.framing import in_bands, packed_nowhere, stored_field
from packer.packing.plan import LOOK_PLACES, FieldSizes, look, make_plan
from packer.sources.base import Source
from packer.workers import Limits

#: Speeds are measured on this many raw bytes of a field: more than processors cache, and a second for the slowest.
_TIMED_BYTES = 8 * 2**20
#: Each measurement is repeated for this long, and the fastest counts: others may use the machine too.
_SECONDS = 0.05


@dataclass(frozen=True)
class CodecFigures:
    """What one codec does with one field.

    Attributes:
        ratio: raw bytes over stored ones.
        encode, decode: raw bytes a second, on one processor.
    """

    codec: str
    ratio: float
    encode: float
    decode: float


@dataclass(frozen=True)
class FieldReport:
    """All codecs that suit a field.

    Attributes:
        samples: how many were looked at.
        raw_bytes: their bytes.
        share: the field's part of the bytes of all fields of the source.
        trials: in the order of `NAMED`; empty if the samples hold no bytes.
        auto: name of the codec that `auto` takes.
    """

    spec: FieldSpec
    samples: int
    raw_bytes: int
    share: float
    trials: tuple[CodecFigures, ...]
    auto: str


def codec_report(source: Source, limits: Limits | None = None) -> Iterator[FieldReport]:
    """Try every named codec on some samples of each field of `source`, field by field.

    Args:
        limits: what reading a sample may take, in a process of its own; None: in this one, unguarded.

    Raises:
        SourceError: there is no sample, or none that can be read.
    """
    # A report looks at more samples than a conversion does, whose choice is to be told.
    plan = make_plan(source, "auto", None, limits)
    found = look(source, limits, places=LOOK_PLACES)
    if not any(found.values()):
        raise SourceError("none of the samples looked at can be read; `packer convert` says why")
    total = sum(plan.raw_bytes.values())
    for spec, stored in zip(source.fields, plan.fields, strict=True):
        samples = found[spec.name]
        share = plan.raw_bytes[spec.name] / max(total, 1)
        nbytes = sum(sample.nbytes for sample in samples)
        trials = tuple(_figures(spec, samples)) if nbytes else ()
        yield FieldReport(spec, len(samples), nbytes, share, trials, codec_name(stored.codec))


def _figures(spec: FieldSpec, samples: Sequence[NDArray[Any]]) -> Iterator[CodecFigures]:
    shapes = np.array([sample.shape for sample in samples], np.int64)
    extent = FieldSizes.of(spec, shapes).extent(spec)
    ends = itertools.accumulate(sample.nbytes for sample in samples)
    timed = samples[: 1 + sum(end < _TIMED_BYTES for end in ends)]
    for name, config in NAMED.items():
        try:
            field = stored_field(spec, config, extent)
        except UsageError:
            continue
        column = packed_nowhere(field, samples)
        yield CodecFigures(name, column.raw_bytes / column.stored_bytes, *_speeds(field, timed))


def _speeds(field: Field, samples: Sequence[NDArray[Any]]) -> tuple[float, float]:
    """Return the raw bytes encoded and decoded a second."""
    chunks: list[memoryview] = []

    def keep(chunk: memoryview) -> int:
        chunks.append(chunk)
        return len(chunks)

    column = packed_nowhere(field, samples, keep)
    codec = FrameCodec(field.codec, field.np_dtype, field.channels)
    memory, frames = memoryview(b"".join(chunks)), _frames(field, samples, column)
    stacks = _stacks(samples) if codec.filter else []
    out = np.empty(column.raw_bytes, np.uint8)
    compiled.loading.load()  # as in any process that reads for long

    def decode() -> None:
        undone = codec.decode_frames(memory, frames, out)
        if codec.filter and not undone:
            for stack in stacks:
                codec.filter.undo(stack)

    encoding = _fastest(lambda: packed_nowhere(field, samples))
    return column.raw_bytes / encoding, column.raw_bytes / _fastest(decode)


def _frames(field: Field, samples: Sequence[NDArray[Any]], column: ColumnWriter) -> Frames:
    """Return where the frames of a column lie, with rows as those of the first sample, or one row a frame."""
    parts = in_bands(field, samples)
    firsts = np.arange(0, len(parts), field.frame.samples or 1)
    sizes = np.add.reduceat([part.nbytes for part in parts], firsts)
    ends = column.finish()["frame_offsets"].astype(np.int64) if field.codec else np.append(0, sizes.cumsum())
    row = max(samples[0][:1].nbytes if samples[0].ndim else samples[0].nbytes, 1)
    return Frames(np.stack([ends[:-1], ends[1:]], axis=1), sizes, rows=np.where(sizes % row, sizes, row))


def _stacks(samples: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return images of one shape as one array (n, H, W, C): readers undo the differences of a batch at once."""
    by_shape = {sample.shape: [other for other in samples if other.shape == sample.shape] for sample in samples}
    return [np.stack(alike) for alike in by_shape.values()]


def _fastest(work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes at best."""
    best, began = float("inf"), time.perf_counter()
    while time.perf_counter() - began < _SECONDS or best == float("inf"):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return max(best, 1e-9)
