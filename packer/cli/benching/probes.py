"""Where the time of a batch goes: a dataset that takes it down while it reads.

Each field's bytes are touched first, page by page, so that all waiting for the disk or for the page cache is over
before they are decoded or copied. What the probes themselves cost is taken down too, and can be taken off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.sharedctypes import RawArray
from threading import get_ident
from time import perf_counter
from typing import Any
from weakref import ref

import numpy as np

from packer.codecs import rowdelta
from packer.codecs.configs import FrameCodec
from packer.format.pages import PAGE_SIZE
from packer.format.shard import Shard
from readers import PackedDataset, fixed
from readers.advice import Advisor
from readers.batch import Batch
from readers.field_reader import FieldReader
from readers.fixed import Allocate
from readers.memory import Memory
from readers.opened import Opened
from readers.places import Numbers

#: Seconds that are taken down. FETCHING: all of what a worker does for a batch. OWN: what the probes cost.
READING, DECODING, GATHERING, FETCHING, OWN = range(5)

#: All that decodes: whoever calls it is timed.
_DECODERS: tuple[tuple[Any, str], ...] = (
    (FrameCodec, "decode_into"),
    (FrameCodec, "decode_frames"),
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

    @property
    def opened(self) -> Opened:
        """The mapped shards, whose readers and advisor have probes."""
        if self._opened is None:
            _probe(super().opened, self.seconds)
        return super().opened

    def __getitems__(self, indices: Sequence[Any]) -> Batch:
        began = perf_counter()
        batch = super().__getitems__(indices)
        self.seconds[FETCHING] += perf_counter() - began
        return batch


def _probe(opened: Opened, seconds: Seconds) -> None:
    """Puts probes into an open dataset."""
    probes = [Probe(reader, opened.memory, seconds) for reader in opened.readers.values()]
    for reader, probe in zip(opened.readers.values(), probes, strict=True):
        # Not another reader in its place: those of uncompressed fields look their samples up together.
        reader.read = probe.read  # type: ignore[method-assign]
        if isinstance(reader, fixed.FixedRaw):
            reader.images = probe.images  # type: ignore[method-assign]
    opened.advisor = ProbedAdvisor(opened.memory, opened.shards, probes, seconds)


class Probe:
    """Times the reading of one field.

    Attributes:
        thread: that which read last; 0 before.
    """

    def __init__(self, reader: FieldReader, memory: Memory, seconds: Seconds) -> None:
        # Weak: they would keep each other, and the files that are to leave the memory stay mapped.
        self._reader = ref(reader)
        self._memory = memory
        self._seconds = seconds
        self._decoding: AbstractContextManager[object] = DecodingTimer(seconds) if reader.field.codec else nullcontext()
        self.thread = 0

    def read(self, located: Numbers, allocate: Allocate | None = None) -> Any:
        """As the reader does it, its bytes having been touched before."""
        return self._timed("read", located, allocate)

    def images(self, located: Numbers, allocate: Allocate | None = None) -> Any:
        """The same of what an uncompressed field of fixed shape hands out."""
        return self._timed("images", located, allocate)

    def _timed(self, what: str, located: Numbers, allocate: Allocate | None) -> Any:
        self.thread = get_ident()
        reader, seconds = self._reader(), self._seconds
        assert reader is not None
        began = perf_counter()
        pages = pages_of(reader.spans(located))
        ready = perf_counter()
        self._memory.array[pages]
        touched = perf_counter()
        decoding = seconds[DECODING]
        with self._decoding:
            start = perf_counter()
            values = getattr(type(reader), what)(reader, located, allocate)
            end = perf_counter()
        seconds[READING] += touched - ready
        seconds[GATHERING] += end - start - (seconds[DECODING] - decoding)
        seconds[OWN] += ready - began + start - touched + perf_counter() - end
        return values


class ProbedAdvisor(Advisor):
    """Asking the kernel for bytes ahead of time is a part of reading them, where the thread that reads does it."""

    def __init__(self, memory: Memory, shards: Sequence[Shard], probes: Sequence[Probe], seconds: Seconds) -> None:
        super().__init__(memory, shards)
        self._probes = probes
        self._seconds = seconds

    def ask(self, spans: Numbers) -> None:
        """As the advisor does it."""
        began = perf_counter()
        super().ask(spans)
        if all(probe.thread in (0, get_ident()) for probe in self._probes):
            self._seconds[READING] += perf_counter() - began


class DecodingTimer:
    """Times all decoding within its block. One thread reads at a time: what is replaced is replaced for all of them."""

    def __init__(self, seconds: Seconds) -> None:
        self._seconds = seconds
        self._within = False
        self._plain = [(owner, name, getattr(owner, name)) for owner, name in _DECODERS]
        self._timed = [(owner, name, self._timing(function)) for owner, name, function in self._plain]

    def __enter__(self) -> None:
        for owner, name, function in self._timed:
            setattr(owner, name, function)

    def __exit__(self, *error: object) -> None:
        for owner, name, function in self._plain:
            setattr(owner, name, function)

    def _timing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            if self._within:  # one that decodes has called another
                return function(*arguments, **options)
            self._within = True
            began = perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self._seconds[DECODING] += perf_counter() - began
                self._within = False

        return timed


def pages_of(spans: Numbers) -> Numbers:
    """An address within each page that the spans touch, address and size each (n, 2); some have several."""
    some = spans if spans[:, 1].all() else spans[spans[:, 1] > 0]
    if not len(some) or some[:, 1].max() <= PAGE_SIZE:  # quick where samples are small
        return np.concatenate([some[:, 0], some.sum(axis=1) - 1])
    first = some[:, 0] // PAGE_SIZE
    counts = (some.sum(axis=1) - 1) // PAGE_SIZE - first + 1
    within = np.arange(int(counts.sum())) - (counts.cumsum() - counts).repeat(counts)
    pages: Numbers = np.maximum((first.repeat(counts) + within) * PAGE_SIZE, some[:, 0].repeat(counts))
    return pages
