"""Many zstd frames decoded by one call, without the interpreter's lock in between.

Of two threads that decode frame by frame, each waits for the other's lock between two frames, and to be woken takes
50 us. Pairs of 48/192 px with their differences undone, thousands a second: 3.6 with one thread and 4.7 to 5.3 with two
so, 3.8 and 5.7 to 6.4 in groups of 32.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Fewer frames are decoded one by one: a call takes 40 us more than a frame by itself.
LEAST_FRAMES = 16
#: Raw bytes of the frames of one call, at most: the library decodes into memory of its own, from which they are copied.
GROUP_BYTES = 8 * 2**20


def pays(sizes: NDArray[np.int64]) -> bool:
    """Whether frames of so many raw bytes (n,) are better decoded together."""
    return len(sizes) >= LEAST_FRAMES and int(sizes.sum()) * LEAST_FRAMES <= len(sizes) * GROUP_BYTES


def decode_together(
    decompressor: Any, memory: memoryview, spans: NDArray[np.int64], sizes: NDArray[np.int64], out: NDArray[np.uint8]
) -> None:
    """Decodes frames of `memory` into `out`, one behind the other; those stored as they are, are copied.

    What follows a frame within its span is an error only where it is no zstd frame, or makes it larger.

    Args:
        decompressor: a `zstandard.ZstdDecompressor`, used by no other thread meanwhile.
        spans: first byte of each frame and the one behind its last, (n, 2).
        sizes: raw bytes of each, (n,).
        out: as many bytes as all of them.

    Raises:
        zstandard.ZstdError: a frame is damaged, or holds another number of bytes.
        ValueError: one does not lie within the memory.
    """
    at = 0
    for first, end in _groups(sizes):
        nbytes = int(sizes[first:end].sum())
        parts = _decoded(decompressor, memory, spans[first:end], sizes[first:end])
        np.concatenate(parts, out=out[at : at + nbytes])
        at += nbytes


def _groups(sizes: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """First frame of each call and the one behind its last."""
    group = np.cumsum(sizes) // GROUP_BYTES
    edges = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(sizes)]
    return itertools.pairwise(edges)


def _decoded(
    decompressor: Any, memory: memoryview, spans: NDArray[np.int64], sizes: NDArray[np.int64]
) -> list[NDArray[np.uint8]]:
    """The raw bytes of frames, in memory of the library or, where they are stored as they are, in `memory`."""
    import zstandard

    lengths = spans[:, 1] - spans[:, 0]
    if (lengths < 0).any() or (spans < 0).any():
        raise ValueError("a frame ends before it begins")  # the library would take it for one of 2**64 bytes
    coded = lengths != sizes
    if not coded.any():
        return [np.frombuffer(memory[start:end], np.uint8) for start, end in spans.tolist()]
    lowest, behind = int(spans[coded, 0].min()), int(spans[coded, 1].max())
    segments = np.stack([spans[coded, 0] - lowest, lengths[coded]], axis=1)
    source = zstandard.BufferWithSegments(memory[lowest:behind], segments.tobytes())
    found = decompressor.multi_decompress_to_buffer(source, decompressed_sizes=sizes[coded].tobytes())
    decoded = map(found.__getitem__, range(len(found)))
    each = zip(spans.tolist(), coded.tolist(), strict=True)
    return [np.frombuffer(next(decoded) if is_coded else memory[a:b], np.uint8) for (a, b), is_coded in each]
