"""The batches of one epoch, from sample numbers to what is handed out.

Work that does not touch the samples is done for many batches at once: sample numbers are turned into places a group
of batches at a time (5 us a batch and field saved), and the kernel is told of a whole group's bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from readers.dataset import PackedDataset, as_images
from readers.opened import FieldReader, Opened
from readers.places import Numbers
from readers.pool import LEAST_BYTES, Pool

#: Samples located at once; their places take half a megabyte a field.
GROUP_SAMPLES = 8192
#: While reading is cold, a group has no more bytes than this, so that advice is not too far ahead.
COLD_BYTES = 32 * 2**20

#: One batch, located: the places of its samples, by field.
Located = list[Numbers]


@dataclass(frozen=True)
class Stream:
    """Reads batches of a dataset in the order asked.

    Attributes:
        threads: 0 reads in the caller's thread; else as many read ahead.
        prefetch: batches read ahead by threads, at most.
        finish: applied to each batch, by the thread that read it.
    """

    dataset: PackedDataset
    pool: Pool
    threads: int = 0
    prefetch: int = 2
    finish: Callable[[Any], Any] | None = None

    def batches(self, numbers: Iterable[Numbers]) -> Iterator[Any]:
        """The batches of samples `numbers`, each (n,)."""
        opened = self.dataset.opened
        read = self._reader(opened)
        located = _located(opened, iter(numbers))
        if not self.threads:
            return map(read, located)
        return self._ahead(read, located)

    def _reader(self, opened: Opened) -> Callable[[Located], Any]:
        readers = list(opened.readers.items())
        pool, transform, finish = self.pool, self.dataset.transform, self.finish

        def read(located: Located) -> Any:
            batch: Any = {}
            for (name, reader), places in zip(readers, located, strict=True):
                large = pool.pinned or reader.field.is_ragged or len(places) * reader.field.fixed_bytes >= LEAST_BYTES
                values = reader.read(places, pool.allocate if large else None)
                batch[name] = as_images(reader.field, values)
            if transform is not None:
                batch = transform(batch)
            return batch if finish is None else finish(batch)

        return read

    def _ahead(self, read: Callable[[Located], Any], located: Iterator[Located]) -> Iterator[Any]:
        """Batches read by threads, in order; none is left running when the caller stops."""
        waiting: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(self.threads, "packed-reader") as threads:
            try:
                for places in located:
                    waiting.append(threads.submit(read, places))
                    if len(waiting) > max(self.prefetch, self.threads):
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()


def _located(opened: Opened, numbers: Iterator[Numbers]) -> Iterator[Located]:
    """The places of each batch, found a group of batches at a time; one group is located, and asked for, ahead."""
    readers = list(opened.readers.values())
    advisor = opened.advisor
    group = _Group(readers)
    # The first groups are small, so that the first batch comes at once and cold files are noticed early.
    size, cold = 1, False
    while (following := group.located(numbers, size)) is not None:
        if cold:
            advisor.ask(following.spans())
        if not group.is_first:
            yield from group.batches()
        cold = advisor.is_cold()
        group = following
        size = min(2 * size, GROUP_SAMPLES) if not cold else group.samples_for(COLD_BYTES)
    yield from group.batches()


class _Group:
    """Some batches, located together."""

    def __init__(self, readers: Sequence[FieldReader], batches: Sequence[Numbers] = ()) -> None:
        self._readers = readers
        self.is_first = not batches
        self._ends = np.cumsum([len(batch) for batch in batches]).tolist()
        joined = np.concatenate(batches) if batches else np.zeros(0, np.int64)
        self._places = [reader.locate(joined) for reader in readers] if batches else []

    def located(self, numbers: Iterator[Numbers], samples: int) -> _Group | None:
        """The next group, of about `samples` samples and at least one batch; None at the end."""
        batches: list[Numbers] = []
        held = 0
        for batch in numbers:
            batches.append(batch)
            held += len(batch)
            if held >= samples:
                break
        return _Group(self._readers, batches) if batches else None

    def batches(self) -> Iterator[Located]:
        """The places of each batch."""
        start = 0
        for end in self._ends:
            yield [places[start:end] for places in self._places]
            start = end

    def spans(self) -> Numbers:
        """Address and size of all bytes to be read, (n, 2)."""
        return np.concatenate([r.spans(p) for r, p in zip(self._readers, self._places, strict=True)])

    def samples_for(self, nbytes: int) -> int:
        """How many samples like these have about `nbytes` bytes."""
        total = int(self.spans()[:, 1].sum())
        return max(1, int(self._ends[-1]) * nbytes // max(total, 1))
