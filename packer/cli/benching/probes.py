"""Where the time of a batch goes: a dataset that takes it down while it reads.

Each field's bytes are touched first, page by page, so that all waiting for the disk or for the page cache is over
before they are decoded or copied. What the probes themselves cost is taken down too, and can be taken off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from multiprocessing.sharedctypes import RawArray
from time import perf_counter
from typing import Any

import numpy as np

from packer.format import rowdelta
from packer.format.codecs import FrameCodec
from packer.format.pages import PAGE_SIZE
from packer.format.schema import Field
from readers import PackedDataset, fixed
from readers.batch import Batch
from readers.field_reader import FieldReader
from readers.fixed import Allocate
from readers.memory import Memory
from readers.places import Numbers

#: Seconds that are taken down. FETCHING: all of what a worker does for a batch. OWN: what the probes cost.
READING, DECODING, GATHERING, FETCHING, OWN = range(5)

#: All that decodes: whoever calls it is timed.
_DECODERS: tuple[tuple[Any, str], ...] = (
    (FrameCodec, "decode_into"),
    (fixed, "_decode_lz4"),
    (fixed, "undo_rows"),
    (rowdelta, "accumulate"),
)

Seconds = Any  # an array of ctypes, which has no type of its own


class ProbedDataset(PackedDataset):
    """A packed dataset that takes down where its time goes.

    Attributes:
        seconds: (5,), by the names above; in memory that worker processes share.
    """

    def __init__(self, path: Any, fields: Sequence[str] | None = None) -> None:
        super().__init__(path, fields)
        self.seconds: Seconds = RawArray("d", 5)

    def _read_manifest(self) -> None:
        super()._read_manifest()
        self._probed: dict[str, FieldReader] | None = None

    @property
    def readers(self) -> Mapping[str, FieldReader]:
        """The readers of all fields, each with its probe."""
        if self._probed is None:
            memory = self.opened.memory
            self._probed = {
                name: ProbedReader(reader, memory, self.seconds) for name, reader in super().readers.items()
            }
        return self._probed

    def __getitems__(self, indices: Sequence[Any]) -> Batch:
        began = perf_counter()
        batch = super().__getitems__(indices)
        self.seconds[FETCHING] += perf_counter() - began
        return batch

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_probed"}


class ProbedReader:
    """Another reader, timed."""

    def __init__(self, reader: FieldReader, memory: Memory, seconds: Seconds) -> None:
        self._reader = reader
        self._memory = memory
        self._seconds = seconds
        self._decoding = DecodingTimer()

    @property
    def field(self) -> Field:
        return self._reader.field

    def locate(self, numbers: Numbers) -> Numbers:
        """As the reader does it."""
        return self._reader.locate(numbers)

    def spans(self, located: Numbers) -> Numbers:
        """As the reader does it."""
        return self._reader.spans(located)

    def read(self, located: Numbers, allocate: Allocate | None = None) -> Any:
        """As the reader does it, its bytes having been touched before."""
        began = perf_counter()
        pages = pages_of(self._reader.spans(located))
        ready = perf_counter()
        self._memory.array[pages]
        touched = perf_counter()
        with self._decoding as timer:
            start = perf_counter()
            values = self._reader.read(located, allocate)
            end = perf_counter()
        seconds, decoding = self._seconds, timer.seconds
        seconds[READING] += touched - ready
        seconds[DECODING] += decoding
        seconds[GATHERING] += end - start - decoding
        seconds[OWN] += ready - began + start - touched + perf_counter() - end
        return values


class DecodingTimer:
    """Times all decoding within its block. One thread reads at a time: what is replaced is replaced for all of them.

    Attributes:
        seconds: of the decoding in the last block.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._within = False
        self._plain = [(owner, name, getattr(owner, name)) for owner, name in _DECODERS]
        self._timed = [(owner, name, self._timing(function)) for owner, name, function in self._plain]

    def __enter__(self) -> DecodingTimer:
        self.seconds = 0.0
        for owner, name, function in self._timed:
            setattr(owner, name, function)
        return self

    def __exit__(self, *error: object) -> None:
        for owner, name, function in self._plain:
            setattr(owner, name, function)

    def _timing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            if self._within:  # one that decodes has called another
                return function(*arguments)
            self._within = True
            began = perf_counter()
            try:
                return function(*arguments)
            finally:
                self.seconds += perf_counter() - began
                self._within = False

        return timed


def pages_of(spans: Numbers) -> Numbers:
    """One address within each page that the spans touch, address and size each (n, 2)."""
    some = spans[spans[:, 1] > 0]
    first = some[:, 0] // PAGE_SIZE
    counts = (some.sum(axis=1) - 1) // PAGE_SIZE - first + 1
    within = np.arange(int(counts.sum())) - (counts.cumsum() - counts).repeat(counts)
    pages: Numbers = np.maximum((first.repeat(counts) + within) * PAGE_SIZE, some[:, 0].repeat(counts))
    return pages
