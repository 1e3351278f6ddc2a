"""Reads whole samples of one field: of one shape, uncompressed or compressed, or ragged.

Reading has two steps, so that a loader that knows what comes next can take the first for many batches at once: `locate`
turns sample numbers into places, `read` copies or decodes what lies there. Parts of samples are read by `rows.py`.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from packer.codecs import FrameCodec, Frames
from packer.errors import DamagedError
from packer.format import BEFORE, BYTES, DECODED, SHAPE, START, STORED, ColumnIndex, Field, Locator, Numbers, Shard
from readers.batch import SIGNED, Ragged, Views
from readers.draws import Visits
from readers.gather import TORCH_DTYPES, Allocate, Memory, Pool, fresh, own_parts, shared, take_rows

#: Gives a sample in words, by its number in the whole dataset, for messages.
Describe = Callable[[int], str]
#: What batches call the names of their samples.
NAME = "name"
#: Decoded frames that one field keeps between batches, unless a loader asks for more.
CACHE_BYTES = 32 * 2**20


class Places(Locator):
    """Finds the samples of one field in the mapped shards of a dataset."""

    def __init__(self, field: Field, indexes: Sequence[ColumnIndex], memory: Memory) -> None:
        super().__init__(field, indexes, memory.array, memory.starts)
        self.memory = memory

    def has_shapes_of(self, other: Places) -> bool:
        """Return whether each sample has the same lengths of its ragged axes in another field of the dataset."""
        pairs = zip(self.indexes, other.indexes, strict=True)
        return all(np.array_equal(a.arrays["shapes"], b.arrays["shapes"]) for a, b in pairs)


#: Small batches are read several at a time, up to this many bytes, and then split: the calls of a batch cost more than
#: its copying, frames that machine code decodes keep a thread busy without the interpreter, and the more samples are
#: read at once, the fewer times a frame that they share is decoded.
RUN_BYTES = 2**23


class FieldReader:
    """Turns sample numbers into places, for as many batches as the caller likes, and places into values.

    Attributes:
        field: what `read` gives; its shape is that of a crop if crops are read.
        is_ragged: whether samples differ in shape.
    """

    def __init__(self, field: Field) -> None:
        self.field = field
        self.is_ragged = field.is_ragged
        self._dtype = TORCH_DTYPES[field.dtype]
        self._shape: tuple[int, ...] = tuple(n or 0 for n in field.shape)

    @cached_property
    def sample_bytes(self) -> float:
        """Return the raw bytes of a sample; the mean if they differ."""
        return self.field.fixed_bytes

    @property
    def run_bytes(self) -> int:
        """Return how many bytes it likes to read by one call; 0 if it cannot say how many bytes a batch has."""
        return 0 if self.is_ragged else RUN_BYTES

    def nbytes(self, located: Numbers) -> Numbers:
        """Return the bytes of each sample when it is read, (n,)."""
        return np.full(len(located), self.field.fixed_bytes, np.int64)

    def keep(self, samples: int) -> None:
        """Make room for the decoded frames of about `samples` samples, where frames hold several."""

    def locate(self, numbers: Numbers, visits: Visits | None = None, anchors: Numbers | None = None) -> Numbers:
        """Return the places of samples (n,), one row a sample: (n, m).

        Args:
            visits: (n,), by which random crops and points are drawn, see `draws.py`. Other readers need none.
            anchors: (n,), at which windows lie, see `windows.py`. Other readers need none.

        Raises:
            DamagedError: an index array is damaged.
            UsageError: a sample has no such part.
        """
        raise NotImplementedError

    def spans(self, located: Numbers) -> Numbers:
        """Return the address and size of the bytes that `read` will touch, (n, 2); zeros if there are none."""
        return np.zeros((len(located), 2), np.int64)

    def read(self, located: Numbers, allocate: Allocate | None = None) -> Any:
        """Return the values of the samples, in new memory or in what `allocate` gives.

        Raises:
            DamagedError: a frame cannot be decoded.
        """
        raise NotImplementedError

    def _shaped(self, flat: torch.Tensor, count: int) -> torch.Tensor:
        """Return bytes as the values of `count` samples, (count, *shape)."""
        return flat.view(-1).view(self._dtype).view(count, *self._shape)


class KnownReader(FieldReader):
    """Values that are known when samples are located, such as their numbers. Reads like any other field.

    Args:
        values: gives them for the numbers of samples (n,) and their anchors (n,) or None, (n, *shape) int64.
    """

    def __init__(self, field: Field, values: Callable[[Numbers, Numbers | None], Numbers]) -> None:
        super().__init__(field)
        self._values = values

    def locate(self, numbers: Numbers, visits: Visits | None = None, anchors: Numbers | None = None) -> Numbers:
        """Return the values themselves, (n, values of a sample)."""
        return self._values(numbers, anchors).reshape(len(numbers), math.prod(self._shape))

    def read(self, located: Numbers, allocate: Allocate | None = None) -> torch.Tensor:
        """Return the values, (n, *shape), in new memory or in what `allocate` gives."""
        flat = (allocate or fresh)(located.size * self.field.itemsize)
        return self._shaped(flat, len(located)).copy_(torch.from_numpy(located).view(-1, *self._shape))


class NameReader(FieldReader):
    """Names of samples, as their shards hold them. Reads like a field of text.

    Args:
        shards: open ones; each with the number of its samples.

    Raises:
        DamagedError: the names of a shard are damaged.
    """

    def __init__(self, shards: Sequence[tuple[Shard, int]]) -> None:
        super().__init__(Field(name=NAME, dtype="uint8", kind="text", shape=(None,)))
        self._tables = [shard.name_table(samples) for shard, samples in shards]
        self._first = starts_of([samples for _, samples in shards])

    @property
    def run_bytes(self) -> int:
        """Return what other readers like: names are short."""
        return RUN_BYTES

    def locate(self, numbers: Numbers, visits: Visits | None = None, anchors: Numbers | None = None) -> Numbers:
        """Return shard and number within it, (n, 2)."""
        shard = self._first[1:-1].searchsorted(numbers, side="right")
        return np.stack([shard, numbers - self._first[shard]], axis=1)

    def read(self, located: Numbers, allocate: Allocate | None = None) -> list[str]:
        """Return the names."""
        found = []
        for shard, number in located.tolist():
            data, ends = self._tables[shard]
            found.append(str(data[int(ends[number]) : int(ends[number + 1])], "utf-8", "replace"))
        return found


class FixedRaw(FieldReader):
    """An uncompressed field of fixed shape: one gather a batch, no work a sample.

    Args:
        places: where its samples lie.

    Attributes:
        unit: the elements that addresses count.
    """

    def __init__(self, places: Places) -> None:
        super().__init__(places.field)
        self._row = self.field.fixed_bytes
        self._places = places
        # span_at holds for offsets within a shard; fold the shard's first sample in, once a chunk.
        chunk_shard = np.repeat(np.arange(len(places.indexes)), [len(i.chunk_at) for i in places.indexes])
        at = places.span_at - places.first[chunk_shard] * self._row
        # Elements are addressed, not bytes: many are copied by torch, which is slow for single bytes.
        # Only a chunk so small that it lies within a page of the B-tree may be out of step; then bytes are addressed.
        self.unit = SIGNED.get(self._dtype, self._dtype)
        if self._row and (at % self._dtype.itemsize).any():
            self.unit = torch.uint8
        self._length = self._row // self.unit.itemsize
        # Samples of no bytes may have no chunk.
        self._at: Numbers = at // self.unit.itemsize if len(at) else np.zeros(1, np.int64)
        self._records = places.memory.records(self.unit, self.field.np_dtype, self._shape)

    def locate(self, numbers: Numbers, visits: Visits | None = None, anchors: Numbers | None = None) -> Numbers:
        """Return the address of each sample, in elements, (n, 1)."""
        addresses: Numbers = numbers * self._length
        addresses += self._at.take(self._places.chunk_of(numbers)) if len(self._at) > 1 else self._at
        return addresses[:, None]

    def spans(self, located: Numbers) -> Numbers:
        """Return the address and size in bytes of each sample, (n, 2)."""
        return np.column_stack([located * self.unit.itemsize, np.full_like(located, self._row)])

    def read(self, located: Numbers, allocate: Allocate | None = None) -> torch.Tensor:
        """Return the samples, (n, *shape), in new memory or in what `allocate` gives."""
        return self._records.tensor(located[:, 0], allocate)


class FrameCache:
    """Keeps decoded frames in a ring of memory, where the newest are written over the oldest.

    Frames are counted in bytes from the first one ever decoded: the byte `n` lies at `n` modulo the size of the memory.
    For one thread at a time: whoever uses it holds `lock`.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.memory = fresh(0)
        self._end = 0
        self._held: OrderedDict[int, int] = OrderedDict()  # address of a frame: its first byte; the oldest first

    def grow(self, nbytes: int) -> None:
        """Make room for at least `nbytes` bytes of frames; forget all held ones if that is more than there is."""
        if nbytes > len(self.memory):
            # First: if there is not so much memory, all stays as it was.
            self.memory = fresh(nbytes)
            self._end = 0
            self._held.clear()

    def fill(
        self, addresses: Numbers, sizes: Numbers, decode: Callable[[Numbers, Numbers, NDArray[np.uint8]], None]
    ) -> Numbers:
        """Return the place in `memory` of each frame, (n,), after decoding those that are not held.

        Args:
            addresses: of the frames, each once, (n,).
            sizes: bytes that each decodes to, (n,).
            decode: decodes some of the frames, (m,), to places (m,) in memory.
        """
        # A frame that would go beyond the end of the memory begins at its start: that leaves less than one unused.
        need = int(sizes.sum() + sizes.max(initial=0))
        self.grow(max(need, min(2 * need, CACHE_BYTES)))
        room = len(self.memory)
        while self._held and next(iter(self._held.values())) < self._end + need - room:
            self._held.popitem(last=False)
        found = [self._held.get(address, -1) for address in addresses.tolist()]
        missing = [i for i, begin in enumerate(found) if begin < 0]
        if missing:
            end = self._end
            for i, size in zip(missing, sizes[missing].tolist(), strict=True):
                if end % room + size > room:
                    end += room - end % room
                found[i] = end
                end += size
            decode(np.array(missing), np.array(found)[missing] % room, self.memory.numpy())
            # Not before: a frame that cannot be decoded is not held.
            self._held.update(zip(addresses[missing].tolist(), [found[i] for i in missing], strict=True))
            self._end = end
        return np.array(found, np.int64) % max(room, 1)


class StoredReader(FieldReader):
    """Reads what lies in frames.

    Args:
        field: what is read.
        places: where the whole samples lie.
    """

    def __init__(self, field: Field, places: Places) -> None:
        super().__init__(field)
        self._places = places
        self._memory = places.memory
        whole = places.field
        self._codec = FrameCodec(whole.codec, whole.np_dtype, whole.channels)

    def _damaged(self, error: Exception) -> DamagedError:
        """Return the error for a frame that cannot be decoded while a batch is read."""
        return DamagedError(
            f"field {self.field.name!r}: a frame of this batch cannot be decoded: {error}; "
            "`packer verify` tells which, `packer repair` packs its shard again"
        )


class WholeReader(StoredReader):
    """Whole samples that are compressed, or differ in shape.

    A frame of one sample is decoded to where the sample goes. Where frames hold several, decoded ones are kept, so that
    a block shuffle decodes each about once an epoch.
    """

    def __init__(self, places: Places) -> None:
        super().__init__(places.field, places)
        self._per_frame = self.field.frame.samples or 1
        self._row = self.field.fixed_bytes
        self._is_list = self.field.ragged_axes != (0,) or self.field.kind != "array"
        self._cache = FrameCache()
        self._records = places.memory.records(torch.uint8, np.uint8, (max(self._row, 1),))

    def locate(self, numbers: Numbers, visits: Visits | None = None, anchors: Numbers | None = None) -> Numbers:
        """Return the places and shapes of samples, (n, SHAPE + axes)."""
        return self._places.locate(numbers)

    def spans(self, located: Numbers) -> Numbers:
        """Return the address and size of the frames of each sample, (n, 2)."""
        return located[:, [START, STORED]]

    @cached_property
    def sample_bytes(self) -> float:
        """Return the raw bytes of a sample; the mean if they differ."""
        if not self.is_ragged:
            return self.field.fixed_bytes
        total = sum(int(index.arrays["sample_offsets"][-1]) for index in self._places.indexes)
        return total / max(int(self._places.first[-1]), 1)

    @property
    def run_bytes(self) -> int:
        """Return how many bytes it likes to read by one call: it knows the size of every sample."""
        return RUN_BYTES

    def nbytes(self, located: Numbers) -> Numbers:
        """Return the bytes of each sample when it is decoded, (n,)."""
        return located[:, BYTES]

    def keep(self, samples: int) -> None:
        """Make room for the decoded frames of about `samples` samples, where frames hold several."""
        if self._per_frame > 1:
            # A frame more for the end of the memory; half as much again where frames may be larger than the mean.
            spare = 1.5 if self.is_ragged else 1
            with self._cache.lock, suppress(RuntimeError):  # another thread may be filling it, or reading from it
                # Without so much memory it stays as small as it was, and frames are decoded more than once.
                self._cache.grow(int(spare * self.sample_bytes * (samples + self._per_frame)))

    def read(
        self, located: Numbers, allocate: Allocate | None = None
    ) -> torch.Tensor | Ragged | list[torch.Tensor] | list[str]:
        """Return the samples of a batch, in new memory or in what `allocate` gives.

        Returns:
            (n, *shape) if all have one shape; `Ragged` if only the first axis differs; a list if others do, or of str.

        Raises:
            DamagedError: a frame cannot be decoded.
        """
        ends = starts_of(located[:, BYTES])
        flat = (allocate or fresh)(int(ends[-1]))
        try:
            if len(flat):
                self._fill(located, ends, flat)
            if self.field.kind == "text":
                return _texts(flat, ends)
        except ValueError as error:
            raise self._damaged(error) from None
        if not self.is_ragged:
            return self._shaped(flat, len(located))
        if self._is_list:
            return self._list(located, flat, ends)
        offsets = starts_of(located[:, SHAPE])
        values = flat.view(self._dtype).view(int(offsets[-1]), *self._shape[1:])
        return Ragged(values, torch.from_numpy(offsets))

    def _fill(self, located: Numbers, ends: Numbers, flat: torch.Tensor) -> None:
        if self.is_ragged and not self.field.codec:
            join(self._memory.array, located[:, START], located[:, STORED], flat.numpy())
            return
        undone = self._codec.filter is None
        if self._per_frame > 1 or not self.field.codec:
            # Samples of no bytes lie nowhere.
            self._read_shared(located[located[:, BYTES] > 0] if self.is_ragged else located, flat.numpy())
        else:
            undone |= self._decode_own(located, flat.numpy())
        if undone:
            return
        values, band = flat.numpy().view(self.field.np_dtype), self.field.frame.rows
        if not self.is_ragged:
            self._codec.undo_filter(values.reshape(len(located), *self._shape), band)
            return
        edges = (ends // self.field.itemsize).tolist()
        for shape, (start, end) in zip(self._shapes(located), itertools.pairwise(edges), strict=True):
            self._codec.undo_filter(values[start:end].reshape(1, *shape), band)

    def _decode_own(self, located: Numbers, flat: NDArray[np.uint8]) -> bool:
        """Decode samples that have frames of their own, one after another; return whether filters are undone."""
        frames = self._places.frames(located)
        rows = None
        if self._codec.filter:
            rows = (located[:, BYTES] // np.maximum(located[:, SHAPE], 1))[frames.item]
        return self._codec.decode_frames(self._memory.array.data, Frames(frames.spans, frames.sizes, rows=rows), flat)

    def _read_shared(self, located: Numbers, out: NDArray[np.uint8]) -> None:
        """Read samples that share frames; rows of one size come from where they lie if their frame was kept raw."""
        raw = located[:, STORED] == located[:, DECODED]
        if self.is_ragged or not raw.any():
            self._decode_shared(located, out)
            return
        # Put into place by numpy, since torch would spread so little over its threads.
        target = out.reshape(len(located), self._row)
        target[raw] = self._records.tensor(located[raw, START] + located[raw, BEFORE]).numpy()
        decoded = np.empty_like(target[~raw])
        self._decode_shared(located[~raw], decoded.reshape(-1))
        target[~raw] = decoded

    def _decode_shared(self, located: Numbers, out: NDArray[np.uint8]) -> None:
        """Decode samples of some bytes each, one after another, out of frames that they share; each frame once.

        If there is no room for all these frames, one half of the samples after the other.

        Raises:
            DamagedError: two samples of one frame say different things of it.
        """
        addresses, item, inverse = distinct(located[:, START])
        stored, sizes = located[item, STORED], located[item, DECODED]
        if (located[:, DECODED] != sizes[inverse]).any():
            raise self._places.damaged()
        half = len(located) // 2
        if half and sizes.sum() + sizes.max() > CACHE_BYTES // 2:
            edge = int(located[:half, BYTES].sum())
            with self._cache.lock:
                self._decode_shared(located[:half], out[:edge])
                self._decode_shared(located[half:], out[edge:])
            return

        def decode(some: Numbers, places: Numbers, memory: NDArray[np.uint8]) -> None:
            spans = np.stack([addresses[some], addresses[some] + stored[some]], axis=1)
            self._codec.decode_frames(self._memory.array.data, Frames(spans, sizes[some], places), memory)

        with self._cache.lock:
            begin = self._cache.fill(addresses, sizes, decode)[inverse] + located[:, BEFORE]
            if self.is_ragged:
                join(self._cache.memory.numpy(), begin, located[:, BYTES], out)
            else:
                rows = torch.from_numpy(out).view(len(located), self._row)
                take_rows(self._cache.memory, begin // self._row, rows)

    def _shapes(self, located: Numbers) -> list[list[int]]:
        """Return the shape of each sample; a place may have more columns, which others have added."""
        shapes: list[list[int]] = located[:, SHAPE : SHAPE + len(self._shape)].tolist()
        return shapes

    def _list(self, located: Numbers, flat: torch.Tensor, ends: Numbers) -> list[torch.Tensor]:
        if not len(located):
            return []
        sizes, values = (np.diff(ends) // self.field.itemsize).tolist(), flat.view(self._dtype)
        # From a worker process they go as one piece of shared memory. Parts by `split` would share a version counter:
        # writing to one sample would fail the backward pass of another.
        together = flat.is_shared()  # type: ignore[no-untyped-call]
        parts = torch.unsafe_split_with_sizes(values, sizes) if together else own_parts(values, sizes)
        return [part.view(shape) for part, shape in zip(parts, self._shapes(located), strict=True)]


def distinct(frames: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return the distinct ones of frames at addresses (n,): addresses (m,), an item of each (m,), frames of items (n,).

    What np.unique does with return_index and return_inverse, in less time.
    """
    ordered = np.sort(frames)
    addresses = ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered
    inverse = addresses.searchsorted(frames)
    item = np.empty(len(addresses), np.int64)
    item[inverse] = np.arange(len(frames))
    return addresses, item, inverse


def join(memory: NDArray[np.uint8], starts: Numbers, sizes: Numbers, out: NDArray[np.uint8]) -> None:
    """Copy stretches of `memory` into `out`, one after another: slices, joined by one call."""
    parts = [memory[at : at + size] for at, size in zip(starts.tolist(), sizes.tolist(), strict=True) if size]
    if parts:
        np.concatenate(parts, out=out)


def starts_of(sizes: Sequence[int] | Numbers) -> Numbers:
    """Return where each of some parts (n,) starts if they lie one after another, and where the last stops, (n + 1,)."""
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


def _texts(flat: torch.Tensor, ends: Numbers) -> list[str]:
    joined = flat.numpy().tobytes()
    try:
        return [joined[a:b].decode() for a, b in itertools.pairwise(ends.tolist())]
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text ({error.reason})") from None


def memory_for(reader: FieldReader, count: int, allocate: Allocate | Pool | None) -> Allocate | None:
    """Return what gives the memory that one field of `count` samples is read into; None for new memory."""
    if not isinstance(allocate, Pool):
        return allocate
    return allocate.allocate if reader.is_ragged or allocate.pays(count * reader.sample_bytes) else None


def gathered(
    readers: Mapping[str, FieldReader],
    numbers: Numbers,
    allocate: Allocate | Pool | None = None,
    visits: Visits | None = None,
    anchors: Numbers | None = None,
) -> dict[str, Any]:
    """Return samples (n,) of some fields of one open dataset: field name to values.

    Args:
        allocate: see `memory_for`; it is not asked in a worker process.
        visits: (n,), if random parts of samples are read.
        anchors: (n,), if windows of samples are read.
    """
    in_worker = get_worker_info() is not None
    out = {}
    for name, reader in readers.items():
        # Within a worker process of DataLoader any other memory would be copied once more.
        memory = shared if in_worker else memory_for(reader, len(numbers), allocate)
        values = as_images(reader.field, reader.read(reader.locate(numbers, visits, anchors), memory))
        if in_worker and isinstance(values, list) and reader.field.kind != "text":
            values = Views(values)  # handed over as one tensor and what tells its parts apart
        out[name] = values
    return out


def as_images(field: Field, value: Any) -> Any:
    """Return images with their channels first, as a view: (B, H, W, C) to (B, C, H, W); other values as they are."""
    if field.kind != "image":
        return value
    if isinstance(value, list):
        return [image.permute(2, 0, 1) for image in value]
    return value.permute(0, 3, 1, 2)
