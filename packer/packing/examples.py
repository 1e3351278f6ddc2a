"""Some samples of a source, from places all over it: they decide codecs, and give the sizes that headers do not."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources import Source, arrays_of, block_bytes
from packer.watcher import EXAMPLES, NOBODY, Watcher
from packer.workers import Limits, call_guarded

#: Samples are looked at in this many places, spread evenly, and no more than this many raw bytes of them.
EXAMPLE_RUNS = 16
EXAMPLE_BYTES = 32 * 2**20
#: Of a small source one sample in eight is looked at, and four at least: those looked at are read twice.
EXAMPLE_SHARE = 8
#: From each place comes a run of about this many bytes, at least one sample.
EXAMPLE_RUN_BYTES = 128 * 2**10
#: Samples that are read at most, whatever their size: of rows, and of files, each of which is opened.
MOST_ROWS, MOST_FILES = 2**16, 2**12

#: Some samples of every field; text as its bytes in UTF-8.
Examples = Mapping[str, Sequence[NDArray[Any]]]


def read_examples(
    source: Source, limits: Limits | None = None, watcher: Watcher = NOBODY
) -> dict[str, list[NDArray[Any]]]:
    """Return some samples of every field, each an array, from evenly spread places, the same every time.

    Bad ones are skipped.

    They decide the codecs, and the sizes that headers do not give.

    Args:
        limits, watcher: as in `make_plan`.
    """
    runs = min(EXAMPLE_RUNS, max(4, len(source) // EXAMPLE_SHARE))
    sample_bytes = max(1, sum(spec.fixed_bytes for spec in source.fields if not spec.is_ragged))
    run_samples = max(1, EXAMPLE_RUN_BYTES // sample_bytes) if not any(spec.is_ragged for spec in source.fields) else 1
    found = read_runs(source, runs, run_samples, EXAMPLE_BYTES, limits, watcher)
    return {spec.name: list(found.samples(spec.name)) for spec in source.fields}


class Runs(NamedTuple):
    """Runs of samples that were read.

    Attributes:
        blocks: of some samples each, by field their arrays.
        seconds: that reading them took, without what is done once for many samples.
        once: seconds of that for each piece: each file, or group of rows of it, whose rows are the samples.
    """

    blocks: list[dict[str, Any]]
    seconds: float
    once: float

    def samples(self, field: str) -> list[NDArray[Any]] | NDArray[Any]:
        """Return the samples of a field: in one array where they are in arrays, since a list of rows takes longer."""
        parts = [block[field] for block in self.blocks if field in block]
        if parts and all(isinstance(part, np.ndarray) for part in parts):
            return np.concatenate(parts)
        return [sample for part in parts for sample in part]


def read_runs(
    source: Source, runs: int, run_samples: int, most_bytes: int, limits: Limits | None, watcher: Watcher
) -> Runs:
    """Return runs of samples; after `most_bytes` no further run is read."""
    blocks_read = list[dict[str, Any]]()
    bytes_read, seconds, once, pieces_read = 0, 0.0, 0.0, 0
    most_samples = MOST_ROWS if source.names is None else MOST_FILES
    run_samples = max(1, min(run_samples, most_samples // runs))
    spans = spread_runs(len(source), runs, run_samples)
    pieces: NDArray[Any] = np.zeros(len(spans))
    if source.cuts is not None:  # of a piece all that lies before is decoded: so one after another, from its begin on
        found = source.cuts.searchsorted([start for start, _ in spans], "right").tolist()
        order = sorted(range(len(spans)), key=lambda n: (found.index(found[n]), spans[n]))
        spans, pieces = [spans[n] for n in order], np.array([found[n] for n in order])
    slices = [source.slice(start, stop) for start, stop in spans]
    is_first = np.append(True, np.diff(pieces) != 0).tolist()
    results = watcher.watch(call_guarded(_read_arrays, slices, limits), EXAMPLES, len(slices))
    for result, is_first_of_piece in zip(results, is_first, strict=False):
        if isinstance(result, SourceError):
            continue  # whether it stops the conversion is decided when it is packed
        blocks, taken, taken_once = result
        seconds, once, pieces_read = seconds + taken, once + taken_once, pieces_read + is_first_of_piece
        blocks_read += blocks
        bytes_read += sum(map(block_bytes, blocks))
        if bytes_read > most_bytes:
            break
    return Runs(blocks_read, seconds, once / max(1, pieces_read))


def _read_arrays(source: Source) -> tuple[list[dict[str, Any]], float, float]:
    """Return the blocks of a source, the seconds that they took, and of these what was done once for many samples.

    The latter is what is saved when rows are read again: of Parquet a whole group is decoded.
    """
    began = time.perf_counter()
    blocks = [arrays_of(block) for block in source.read()]
    seconds = again = time.perf_counter() - began
    if source.cuts is not None:
        began = time.perf_counter()
        for _ in source.read():
            pass
        again = min(seconds, time.perf_counter() - began)
    return blocks, again, seconds - again


def spread_runs(count: int, most: int, run_samples: int) -> list[tuple[int, int]]:
    """Return up to `most` runs of samples, evenly spread, no two overlapping; the first few are spread too."""
    starts = sorted({int(i) for i in np.linspace(0, count - 1, min(most, count))})
    runs = [(start, min(start + run_samples, end)) for start, end in zip(starts, [*starts[1:], count], strict=True)]
    bits = len(runs).bit_length()
    # Their numbers with the bits reversed: 0, 1/2, 1/4, 3/4, 1/8, ...
    return [runs[i] for i in sorted(range(len(runs)), key=lambda i: f"{i:0{bits}b}"[::-1])]
