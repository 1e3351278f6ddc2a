"""Large batches of uncompressed samples, read one by one with few calls around the copying.

Copying a megabyte leaves little else in the processor's cache, so that every call behind it takes two to three times as
long as by itself. What can be, is therefore prepared for a whole epoch or for all batches of a run.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from packer.format.schema import Field
from readers.field_reader import FieldReader
from readers.fixed import FixedRaw
from readers.forks import has_team
from readers.openmp import set_own_threads
from readers.places import Numbers
from readers.pool import Pool
from readers.runs import HUGE_SAMPLE, Run, cut, even_edges
from readers.take import AWAKE_BYTES, TEAM_BYTES, Team, Teams, one_thread

Batch = dict[str, torch.Tensor]
Reads = Sequence[Callable[[Any], torch.Tensor]]

#: Bytes of a run, about: five batches of 128 pairs of 13 kB. What is done once a run takes 25 to 45 us.
RUN_BYTES = 2**23
#: Batches that are located and prepared together, at most: so many tensors there are at a time. Thousands of batches of
#: one sample would take 13 ms, before the first comes.
GROUP_BATCHES = 256

_TEAMS = Teams()


def is_large(readers: Sequence[FieldReader], batch_size: int) -> bool:
    """Whether all fields are uncompressed, and of one shape, and batches or samples are large."""
    sample = sample_bytes(readers)
    large = sample >= HUGE_SAMPLE or sample * batch_size >= TEAM_BYTES
    return large and all(type(reader) is FixedRaw for reader in readers) and set_own_threads is not None


def sample_bytes(readers: Sequence[FieldReader]) -> int:
    """Bytes of a sample, fields of one shape alone."""
    return sum(reader.field.fixed_bytes for reader in readers if not reader.field.is_ragged)


class LargeRun(NamedTuple):
    """A run of large batches, of which everything is prepared but the copying.

    Attributes:
        places, sizes: as of `Run`.
        batches: each is read when it is asked for.
    """

    places: list[Numbers]
    sizes: list[int]
    batches: Iterator[Batch]


class LargeBatches:
    """Reads batches of which `is_large` is true, in the thread that asks.

    Where a field has `TEAM_BYTES` a batch, torch gathers it and all but the smallest, with several threads or one,
    whichever is quicker. Else numpy copies: 8 pairs of 118 kB come to 0.80 of a gather in RAM so, and by way of
    `Window.tensor` to 0.74.

    Args:
        readers: of all fields.
        pool: memory for large fields.
        batch_size: samples of a batch, at most.
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
        self._at_once = max(1, RUN_BYTES // (batch_size * self._sample_bytes))
        sizes = [reader.field.fixed_bytes * batch_size for reader in readers.values()]
        self._has_team = max(sizes) >= TEAM_BYTES
        # torch lets go of the interpreter's lock in each of its calls, and may wait 5 ms to have it back while another
        # thread is at work: not for labels.
        self._by_torch = [self._has_team and nbytes >= AWAKE_BYTES for nbytes in sizes]
        self._reads: Reads = [
            reader.gatherer(batch_size, partial(pool.buffers, _kind(reader.field))) if by_torch else reader.copier()
            for reader, by_torch in zip(readers.values(), self._by_torch, strict=True)
        ]

    def prepared(self, group: Run) -> list[LargeRun]:
        """The runs of batches that are located together, for `of`."""
        # All of a group at once, not each run between two copies.
        whole: list[Sequence[Any]] = [
            torch.unsafe_split_with_sizes(torch.from_numpy(places), group.sizes)
            if by_torch
            else _parts(places, group.sizes)
            for places, by_torch in zip(group.places, self._by_torch, strict=True)
        ]
        # The first batch by itself: that of an epoch may come from the disk, and should come soon.
        edges = [0, *(1 + edge for edge in even_edges(len(group.sizes) - 1, self._at_once))]
        return [
            LargeRun(*run, self._batches(self._reads, [parts[first:behind] for parts in whole]))
            for run, (first, behind) in zip(cut(group, edges), itertools.pairwise(edges), strict=True)
        ]

    def _batches(self, reads: Reads, parts: Sequence[Sequence[Any]]) -> Iterator[Batch]:
        names = self._names

        def batch(places: Sequence[Any]) -> Batch:
            return {name: read(part) for name, read, part in zip(names, reads, places, strict=True)}

        return map(batch, zip(*parts, strict=True))

    def of(self, run: LargeRun) -> Iterator[Batch]:
        """The batches of a run, each read when it is asked for."""
        if not has_team():
            return self._in_the_usual_way(run, 0)
        return self._gathered(run) if self._has_team else run.batches

    def _in_the_usual_way(self, run: LargeRun, first: int) -> Iterator[Batch]:
        return self._batches(self._usual, [_parts(places, run.sizes)[first:] for places in run.places])

    def _gathered(self, run: LargeRun) -> Iterator[Batch]:
        team, has_several = _TEAMS.of(run.sizes[0] * self._sample_bytes), torch.get_num_threads() > 1
        timed = len(run.sizes) // 2
        for number, samples in enumerate(run.sizes):
            if not has_team():  # since the run began
                yield from self._in_the_usual_way(run, number)
                return
            if not has_several:
                yield next(run.batches)
            # One batch of a run is timed, which saves calls in the others; all are while the other way is tried.
            elif team.is_try or number == timed:
                yield self._timed(team, run, samples)
            elif team.together:
                yield next(run.batches)
            else:
                yield _by_one(run)

    def _timed(self, team: Team, run: LargeRun, samples: int) -> Batch:
        began = time.perf_counter()
        batch = next(run.batches) if team.together else _by_one(run)
        team.note((time.perf_counter() - began) / (samples * self._sample_bytes))
        return batch


def _kind(field: Field) -> Hashable:
    """What tells memory of one field from that of another: datasets may take each other's place in a loader."""
    return field.name, field.dtype, field.shape, field.kind


def _by_one(run: LargeRun) -> Batch:
    """The next batch, by one of torch's threads."""
    with one_thread():
        return next(run.batches)


def _parts(places: Numbers, sizes: list[int]) -> list[Numbers]:
    """The places of each batch, of so many samples each."""
    return [places[first:behind] for first, behind in itertools.pairwise([0, *itertools.accumulate(sizes)])]
