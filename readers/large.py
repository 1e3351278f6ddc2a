"""Large batches of uncompressed samples, read one by one with few calls around the copying.

Copying a megabyte leaves little else in the processor's cache, so that every call behind it takes two to three times as
long as by itself. What can be, is therefore prepared for a whole epoch or for all batches of a run.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from readers.field_reader import FieldReader
from readers.fixed import FixedRaw
from readers.forks import in_main_thread, is_forked
from readers.openmp import set_own_threads
from readers.places import Numbers
from readers.pool import Pool
from readers.runs import HUGE_SAMPLE, Run
from readers.take import TEAM_BYTES, Teams, one_thread

Batch = dict[str, torch.Tensor]
Reads = Sequence[Callable[[Any], torch.Tensor]]

#: Bytes of a run, about; a batch is read when it is asked for, so that this is how far ahead it is located.
RUN_BYTES = 2**23

_TEAMS = Teams()


def is_large(readers: Sequence[FieldReader], batch_size: int) -> bool:
    """Whether all fields are uncompressed, and of one shape, and batches or samples are large."""
    sample = sample_bytes(readers)
    large = sample >= HUGE_SAMPLE or sample * batch_size >= TEAM_BYTES
    return large and all(type(reader) is FixedRaw for reader in readers) and set_own_threads is not None


def sample_bytes(readers: Sequence[FieldReader]) -> int:
    """Bytes of a sample, fields of one shape alone."""
    return sum(reader.field.fixed_bytes for reader in readers if not reader.field.is_ragged)


class LargeBatches:
    """Reads batches of which `is_large` is true, in the thread that asks.

    By several of torch's threads where a field has `TEAM_BYTES` a batch, and several are quicker than one; else by
    numpy: 8 pairs of 118 kB take 80 us so, and by way of `Window.tensor` 90.

    Args:
        readers: of all fields.
        pool: memory for large fields.
        batch_size: samples of all batches but the last.
        usual: reads each field by the places of samples, in any thread and in a forked process.
    """

    def __init__(
        self,
        readers: Mapping[str, FixedRaw],
        pool: Pool,
        batch_size: int,
        usual: Mapping[str, Callable[[Numbers], torch.Tensor]],
    ) -> None:
        self._names = list(readers)
        self._usual = list(usual.values())
        self._sample_bytes = sample_bytes(list(readers.values()))
        largest = max(reader.field.fixed_bytes for reader in readers.values())
        self._by_team = largest * batch_size >= TEAM_BYTES
        if self._by_team:
            self._reads: Reads = [reader.gatherer(pool.allocate) for reader in readers.values()]
        else:
            self._reads = [reader.copier() for reader in readers.values()]

    def of(self, run: Run) -> Iterator[Batch]:
        """The batches of a run, each read when it is asked for."""
        if not in_main_thread() or is_forked():
            return self._each(run, self._usual)
        return self._gathered(run) if self._by_team else self._each(run, self._reads)

    def _each(self, run: Run, reads: Reads) -> Iterator[Batch]:
        for first, behind in itertools.pairwise([0, *itertools.accumulate(run.sizes)]):
            yield self._batch(reads, [places[first:behind] for places in run.places])

    def _gathered(self, run: Run) -> Iterator[Batch]:
        split = [torch.unsafe_split_with_sizes(torch.from_numpy(places), run.sizes) for places in run.places]
        team, has_several = _TEAMS.of(run.sizes[0] * self._sample_bytes), torch.get_num_threads() > 1
        # One batch of a run is timed, which saves 2 us in each of the others; while the other way is tried, all are.
        timed = len(run.sizes) // 2
        for number, places in enumerate(zip(*split, strict=True)):
            if is_forked():  # since the run began
                yield self._batch(self._usual, [part.numpy() for part in places])
                continue
            began = time.perf_counter()
            if team.together or not has_several:
                batch = self._batch(self._reads, places)
            else:
                with one_thread():
                    batch = self._batch(self._reads, places)
            if has_several and (number == timed or team.is_try):
                team.note((time.perf_counter() - began) / (run.sizes[number] * self._sample_bytes))
            yield batch
            # Its memory may be used again when the caller has let go of it.
            del batch

    def _batch(self, reads: Reads, places: Sequence[Any]) -> Batch:
        return {name: read(part) for name, read, part in zip(self._names, reads, places, strict=True)}
