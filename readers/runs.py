"""How an epoch is cut into runs: batches that are located, told to the kernel and read together.

What is called once a run is called less often, and memory of a size that pays is filled at once; the batches are parts
of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from packer.codecs import compiled
from packer.format.schema import Field
from readers.arrays import Numbers
from readers.draws import Visits
from readers.fields import FieldReader, FixedCoded, FixedRaw, Varied, locate_all
from readers.gather import own_parts
from readers.ragged import Ragged

#: Samples located at once, at most; their places take a megabyte a field. More often would be dearer: what is called
#: between large copies is cold.
GROUP_SAMPLES = 16384

#: Batches of few bytes are read several at a time, up to this many bytes, and then split: for 100 rows of 140 bytes the
#: calls of a batch cost three times as much as its copying. They take 13 us so, 14.5 in runs of 192 KiB.
RUN_BYTES = 512 * 2**10
#: Where samples are large the calls weigh more than the cache: pairs of 13 kB in batches of 8 take 17 us so, and 23 in
#: runs of 512 KiB. Where nothing is decoded, runs may be longer: those come to 1.03 of a gather in RAM so, to 0.96 in
#: runs of 2 MiB, 0.80 of 1 MiB, and 1.00 of 8 MiB.
LARGE_SAMPLE = 4096
LARGE_RUN_BYTES, RAW_RUN_BYTES = 2**21, 2**22
#: And where they are larger still, raw batches are read one by one: 8 pairs of 118 kB take 92 us so, 107 in those runs.
HUGE_SAMPLE = 2**16
#: Frames that machine code decodes keep a thread busy without the interpreter, the longer the better. Thousands a
#: second by two threads in short runs and in these: pairs of 13 kB, LZ4, 231 and 342 (in the caller's thread 177); of
#: 118 kB, rowdelta+zstd, batches of 8, 8.9 and 12.3 (5.8); clouds, blosc, 20 and 24 (13).
CODED_RUN_BYTES = 2**23


class Run(NamedTuple):
    """Some batches that are read by one call a field: places of their samples by field, and samples of each."""

    places: list[Numbers]
    sizes: list[int]


def runs(
    readers: Sequence[FieldReader], numbers: Numbers, batch_size: int, at_once: int, visits: Visits | None = None
) -> Iterator[Run]:
    """Batches of samples `numbers` (n,), so many `at_once` in a run, or so many bytes where samples differ in size."""
    for group in groups(readers, numbers, batch_size, batch_size, GROUP_SAMPLES, visits):
        by_bytes = at_once > 1 and any(isinstance(reader, Varied) for reader in readers)
        edges = _edges_by_bytes(readers, group) if by_bytes else even_edges(len(group.sizes), at_once)
        # All of a group at once, not each between two copies, which leave nothing else in the processor's cache.
        yield from cut(group, edges)


def groups(
    readers: Sequence[FieldReader],
    numbers: Numbers,
    batch_size: int,
    first: int,
    most: int,
    visits: Visits | None = None,
) -> Iterator[Run]:
    """Batches of samples `numbers` (n,) that are located together.

    Args:
        first: samples of the first group, about. The first batch comes the sooner the fewer they are, and the second
            where much is looked up.
        most: samples of any group, about.
        visits: (n,), where random parts of samples are read.
    """
    start, group = 0, first
    growth = GROUP_SAMPLES if all(type(reader) is FixedRaw for reader in readers) else 4
    while start < len(numbers):
        end = start + -(-group // batch_size) * batch_size
        places = locate_all(readers, numbers[start:end], None if visits is None else visits[start:end])
        yield Run(places, _sizes(min(end, len(numbers)) - start, batch_size))
        start, group = end, min(growth * group, most)


def cut(group: Run, edges: list[int]) -> list[Run]:
    """Runs of the batches between two edges each; all but the last batch have as many samples."""
    size = group.sizes[0]
    return [
        Run([places[first * size : behind * size] for places in group.places], group.sizes[first:behind])
        for first, behind in itertools.pairwise(edges)
    ]


def even_edges(batches: int, at_once: int) -> list[int]:
    """The first batch of each run of so many, and the number of batches."""
    return [*range(0, batches, at_once), batches]


def _sizes(samples: int, batch_size: int) -> list[int]:
    """Samples of each batch."""
    rest = samples % batch_size
    return [batch_size] * (samples // batch_size) + ([rest] if rest else [])


def _edges_by_bytes(readers: Sequence[FieldReader], group: Run) -> list[int]:
    """What `even_edges` gives, by the bytes that the batches of a group have.

    Not by the mean: a dataset that begins with its small samples may end with runs of 200 MB else.
    """
    nbytes = np.zeros(sum(group.sizes), np.int64)
    for reader, places in zip(readers, group.places, strict=True):
        nbytes += reader.raw_bytes(places) if isinstance(reader, Varied) else reader.field.fixed_bytes
    before = np.cumsum(nbytes)[np.cumsum(group.sizes) - 1][:-1]
    return [0, *(np.flatnonzero(np.diff(before // CODED_RUN_BYTES, prepend=0)) + 1).tolist(), len(group.sizes)]


def batches_at_once(readers: Sequence[FieldReader], batch_size: int) -> int:
    """Batches of a run; in the mean, where samples differ in size."""
    whole = all(isinstance(reader, (FixedRaw, FixedCoded, Varied)) for reader in readers)
    if whole and machine_decodes((reader.field, _sample_bytes(reader)) for reader in readers):
        limit, sample = CODED_RUN_BYTES, sum(map(_sample_bytes, readers))
    elif any(reader.field.is_ragged for reader in readers):
        return 1
    else:
        sample = sum(reader.field.fixed_bytes for reader in readers)
        limit = bytes_at_once(sample, all(type(reader) is FixedRaw for reader in readers))
    return int(max(1, limit // max(batch_size * sample, 1)))


def bytes_at_once(sample: float, is_raw: bool = False) -> int:
    """Bytes that are read by one call where samples have `sample` bytes each; at least one batch is."""
    if sample < LARGE_SAMPLE:
        return RUN_BYTES
    if sample >= HUGE_SAMPLE:
        return 0
    return RAW_RUN_BYTES if is_raw else LARGE_RUN_BYTES


def machine_decodes(fields: Iterable[tuple[Field, float]]) -> bool:
    """Whether machine code decodes most of what is coded, a whole run at once, when that is worth loading.

    Args:
        fields: each with its raw bytes, of a sample or of all.
    """
    coded = [(field, nbytes) for field, nbytes in fields if field.codec]
    mine = sum(nbytes for field, nbytes in coded if _by_machine(field))
    return 2 * mine > sum(nbytes for _, nbytes in coded) and compiled.loading.is_possible()


def _by_machine(field: Field) -> bool:
    """Whether all frames of a run are decoded by one call: those of samples that have frames of their own."""
    own = field.frame.samples == 1 or (field.frame.rows is not None and not field.is_ragged)
    return own and compiled.number_of(field.codec) is not None


def _sample_bytes(reader: FieldReader) -> float:
    """Raw bytes of a sample; the mean where they differ."""
    return reader.sample_bytes() if isinstance(reader, Varied) else reader.field.fixed_bytes


def split(values: Any, sizes: list[int]) -> Sequence[Any]:
    """The batches of a run: parts of the values of one field, of so many samples each."""
    if isinstance(values, torch.Tensor):
        return own_parts(values, sizes)
    edges = [0, *itertools.accumulate(sizes)]
    if not isinstance(values, Ragged):
        return [values[a:b] for a, b in itertools.pairwise(edges)]
    ends = values.offsets.numpy()
    parts = own_parts(values.values, np.diff(ends[edges]).tolist())
    own = [torch.from_numpy(ends[a : b + 1] - ends[a]) for a, b in itertools.pairwise(edges)]
    return [Ragged(*part) for part in zip(parts, own, strict=True)]
