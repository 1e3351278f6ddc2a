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
from packer.codecs.configs import NAMED, check_fits, codec_name
from packer.codecs.frames import FrameCodec, Frames
from packer.codecs.stages import Buffer, Config
from packer.errors import SourceError, UsageError
from packer.format.schema import FieldSpec
from packer.packing.framing import measured_ratio, sample_frames
from packer.packing.plan import LOOK_PLACES, look, make_plan
from packer.sources.apart import Limits
from packer.sources.base import Source

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
    ends = itertools.accumulate(sample.nbytes for sample in samples)
    timed = samples[: 1 + sum(end < _TIMED_BYTES for end in ends)]
    for name, config in NAMED.items():
        try:
            check_fits(config, spec)
        except UsageError:
            continue
        yield CodecFigures(name, measured_ratio(spec, config, samples), *_speeds(spec, config, timed))


def _speeds(spec: FieldSpec, config: Sequence[Config], samples: Sequence[NDArray[Any]]) -> tuple[float, float]:
    """Return the raw bytes encoded and decoded a second."""
    codec = FrameCodec(config, spec.np_dtype, spec.channels)
    nbytes = sum(sample.nbytes for sample in samples)

    def encode() -> list[tuple[Buffer, int]]:
        frames = sample_frames(samples, config)
        return [(codec.encode(frame), frame.nbytes) for frame in frames]

    stored = encode()
    memory, frames = memoryview(b"".join(frame for frame, _ in stored)), _frames(stored, samples[0])
    stacks = _stacks(samples) if codec.filter else []
    out = np.empty(nbytes, np.uint8)
    compiled.loading.load()  # as in any process that reads for long

    def decode() -> None:
        undone = codec.decode_frames(memory, frames, out)
        if codec.filter and not undone:
            for stack in stacks:
                codec.filter.undo(stack)

    return nbytes / _fastest(encode), nbytes / _fastest(decode)


def _frames(stored: Sequence[tuple[Buffer, int]], sample: NDArray[Any]) -> Frames:
    """Return where encoded frames lie, one after the other, with rows as those of `sample`, or one row a frame."""
    lengths = np.array([len(frame) for frame, _ in stored], np.int64)
    sizes = np.array([size for _, size in stored], np.int64)
    ends, row = lengths.cumsum(), max(sample[:1].nbytes if sample.ndim else sample.nbytes, 1)
    return Frames(np.stack([ends - lengths, ends], axis=1), sizes, rows=np.where(sizes % row, sizes, row))


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
