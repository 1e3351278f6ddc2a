"""Hashes of many frames."""

from __future__ import annotations

import itertools
import time

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.codecs import compiled

#: Bytes that are hashed by one call of machine code, about: Ctrl-C waits for its end.
CALL_BYTES = 2**26


def frame_hashes(memory: memoryview, spans: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The xxh3 (64 bits) of each frame of `memory`, (n,).

    Frames of 0.7 kB take 0.05 us each by machine code and 0.29 one by one, of 11 kB 0.75 and 1.4.

    Args:
        spans: first byte of each frame and the one behind its last, (n, 2).
    """
    found = np.empty(len(spans), np.uint64)
    loops = compiled.loops()
    if loops is not None:
        data, ends = np.frombuffer(memory, np.uint8), (spans[:, 1] - spans[:, 0]).cumsum()
        edges = [0, *(np.flatnonzero(np.diff(ends // CALL_BYTES)) + 1).tolist(), len(spans)]
        parts = [slice(a, b) for a, b in itertools.pairwise(edges)]
        if all(loops.hashes(data, np.ascontiguousarray(spans[p]), found[p]) == len(found[p]) for p in parts):
            return found
    began = time.perf_counter()
    digest = xxhash.xxh3_64_intdigest
    found[:] = [digest(memory[start:end]) for start, end in spans.tolist()]
    compiled.note_since(began)
    return found
