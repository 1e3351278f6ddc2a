"""Reads whole samples of one field: of one shape, uncompressed or compressed, or ragged.

Reading has two steps, so that a loader that knows what comes next can take the first for many batches at once: `locate`
turns sample numbers into places, `read` copies or decodes what lies there. Parts of samples are read by `rows.py`.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from packer.codecs.frames import FrameCodec, Frames
from packer.errors import DamagedError
from packer.format.column import BEFORE, BYTES, DECODED, SHAPE, START, STORED
from packer.format.schema import Field
from readers.arrays import TORCH_DTYPES, Allocate, Numbers
from readers.batch import Ragged, Views, share_offsets
from readers.draws import Visits
from readers.gather import fresh, own_parts, shared, take_rows
from readers.shard_map import Addresses, Places

#: Decoded frames that one field keeps between batches, unless a loader asks for more.
CACHE_BYTES = 32 * 2**20
#: torch gathers no single unsigned numbers of several bytes; their bytes, as signed ones, it does.
_GATHERED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class FieldReader(Protocol):
    """Turns sample numbers into places, for as many batches as the caller likes, and places into values.

    Attributes:
        field: what `read` gives; its shape is that of a crop if crops are read.
    """

    @property
    def field(self) -> Field: ...

    def locate(self, numbers: Numbers, visits: Visits | None = None, anchors: Numbers | None = None) -> Numbers:
        """Return the places of samples (n,): an array with one row a sample.

        Args:
            visits: (n,), by which random crops and points are drawn, see `draws.py`. Other readers need none.
            anchors: (n,), at which windows lie, see `windows.py`. Other readers need none.
        """

    def spans(self, located: Numbers) -> Numbers:
        """Return the address and size of the bytes that `read` will touch, (n, 2)."""

    def read(self, located: Numbers, allocate: Allocate | None = None) -> Any:
        """Return the values of the samples, in new memory or in what `allocate` gives."""


def locate_all(
    readers: Iterable[FieldReader], numbers: Numbers, visits: Visits | None = None, anchors: Numbers | None = None
) -> list[Numbers]:
    """Return the places of samples (n,) in several fields of one dataset; uncompressed ones are found together.

    Args:
        visits: (n,), if random parts of samples are read.
        anchors: (n,), if windows of samples are read.
    """
    addresses: Numbers | None = None
    found = []
    for reader in readers:
        if type(reader) is not FixedRaw:
            found.append(reader.locate(numbers, visits, anchors))
            continue
        if addresses is None:
            addresses = reader.addresses.of_all(numbers)
        found.append(addresses[reader.row])
    return found


class FixedRaw:
    """An uncompressed field of fixed shape: one gather a batch, no work a sample.

    Args:
        places: where its samples lie.

    Attributes:
        unit: the elements that addresses count.
        row: number of the field in `addresses`.
        addresses: of this field alone, or of all fields that `join` has joined.
    """

    def __init__(self, places: Places) -> None:
        self.field = places.field
        self._row = self.field.fixed_bytes
        self._shape: tuple[int, ...] = tuple(n or 0 for n in self.field.shape)
        self._dtype = TORCH_DTYPES[self.field.dtype]
        self._places = places
        # span_at holds for offsets within a shard; fold the shard's first sample in, once a chunk.
        chunk_shard = np.repeat(np.arange(len(places.indexes)), [len(i.chunk_at) for i in places.indexes])
        at = places.span_at - places.first[chunk_shard] * self._row
        # Elements are addressed, not bytes: many are copied by torch, which is slow for single bytes.
        # Only a chunk small enough to lie within a page of the B-tree may be out of step; then bytes it is.
        self.unit = _GATHERED.get(self._dtype, self._dtype)
        if self._row and (at % self._dtype.itemsize).any():
            self.unit = torch.uint8
        self._at = at // self.unit.itemsize
        self._length = self._row // self.unit.itemsize
        self._records = places.memory.records(self.unit, self.field.np_dtype, self._shape)
        self.row = 0
        self.addresses = Addresses([places], [self._at], [self._length])

    @staticmethod
    def join(readers: Sequence[FixedRaw]) -> None:
        """Lets the readers of one dataset look addresses up together."""
        joined = Addresses([r._places for r in readers], [r._at for r in readers], [r._length for r in readers])
        for row, reader in enumerate(readers):
            reader.row, reader.addresses = row, joined

    def locate(self, numbers: Numbers, visits: Visits | None = None, anchors: Numbers | None = None) -> Numbers:
        """Address of each sample, in elements, (n,)."""
        return self.addresses.of(self.row, numbers)

    def spans(self, located: Numbers) -> Numbers:
        """Address and size in bytes of what `read` will touch, (n, 2)."""
        return np.stack([located * self.unit.itemsize, np.full_like(located, self._row)], axis=1)

    def read(self, located: Numbers, allocate: Allocate | None = None) -> torch.Tensor:
        """The samples, (n, *shape), in new memory or in what `allocate` gives."""
        return self._records.tensor(located, allocate)


class Distinct(NamedTuple):
    """The frames of some items, each once: addresses (m,), an item of each (m,), and the frame of each item (n,)."""

    addresses: Numbers
    item: Numbers
    inverse: Numbers


def distinct(frames: Numbers) -> Distinct:
    """Return the frames at addresses (n,), among which one may stand several times.

    What np.unique does, in less time.
    """
    ordered = np.sort(frames)
    addresses = ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered
    inverse = addresses.searchsorted(frames)
    item = np.empty(len(addresses), np.int64)
    item[inverse] = np.arange(len(frames))
    return Distinct(addresses, item, inverse)


class FrameCache:
    """Keeps decoded frames in a ring of memory, where the newest are written over the oldest.

    Frames are counted in bytes from the first one ever decoded: the byte `n` lies at `n` modulo the size of the memory.
    For one thread at a time: whoever uses it holds `lock`.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
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


class _Decoded:
    """What the readers of samples have in common that the locator finds.

    Where frames hold several samples, decoded ones are kept, so that a block shuffle decodes each about once an epoch.

    Args:
        places: where the samples of the field lie.
    """

    def __init__(self, places: Places) -> None:
        self.field = places.field
        self._places = places
        self._memory = places.memory
        self._codec = FrameCodec(self.field.codec, self.field.np_dtype, self.field.channels)
        self._dtype = TORCH_DTYPES[self.field.dtype]
        self._per_frame = self.field.frame.samples or 1
        self._cache = FrameCache()

    def locate(self, numbers: Numbers, visits: Visits | None = None, anchors: Numbers | None = None) -> Numbers:
        """Return the places and shapes of samples, (n, SHAPE + axes).

        Raises:
            DamagedError: an index array is damaged.
        """
        return self._places.locate(numbers)

    def spans(self, located: Numbers) -> Numbers:
        """Return the address and size of the bytes that `read` will touch, (n, 2)."""
        return located[:, [START, STORED]]

    def sample_bytes(self) -> float:
        """Return the raw bytes of a sample; the mean if they differ."""
        if not self.field.is_ragged:
            return self.field.fixed_bytes
        total = sum(int(index.arrays["sample_offsets"][-1]) for index in self._places.indexes)
        return total / max(int(self._places.first[-1]), 1)

    def keep(self, samples: int) -> None:
        """Make room for the decoded frames of about `samples` samples, where frames hold several."""
        if self._per_frame > 1:
            # A frame more for the end of the memory; half as much again where frames may be larger than the mean.
            spare = 1.5 if self.field.is_ragged else 1
            with self._cache.lock:  # another thread may be filling it, or reading from it
                self._cache.grow(int(spare * self.sample_bytes() * (samples + self._per_frame)))

    def _decode_own(self, located: Numbers, flat: NDArray[np.uint8]) -> bool:
        """Decode samples that have frames of their own, one after another; return whether filters are undone."""
        frames = self._places.frames(located)
        rows = None
        if self._codec.filter:
            rows = (located[:, BYTES] // np.maximum(located[:, SHAPE], 1))[frames.item]
        undone = self._codec.decode_frames(self._memory.bytes, Frames(frames.spans, frames.sizes, rows=rows), flat)
        return undone or not self._codec.filter

    def _decode_shared(self, located: Numbers, out: NDArray[np.uint8]) -> None:
        """Decode samples of some bytes each, one after another, out of frames that they share; each frame once.

        Raises:
            DamagedError: two samples of one frame say different things of it.
        """
        with self._cache.lock:
            self._copy_shared(located, out)

    def _copy_shared(self, located: Numbers, out: NDArray[np.uint8]) -> None:
        """Do the same, for whoever holds the lock; if there is no room for so many frames, one half after the other."""
        addresses, item, inverse = distinct(located[:, START])
        stored, sizes = located[item, STORED], located[item, DECODED]
        if (located[:, DECODED] != sizes[inverse]).any():
            raise self._places.damaged()
        half = len(located) // 2
        if half and sizes.sum() + sizes.max() > CACHE_BYTES // 2:
            edge = int(located[:half, BYTES].sum())
            self._copy_shared(located[:half], out[:edge])
            self._copy_shared(located[half:], out[edge:])
            return

        def decode(some: Numbers, places: Numbers, memory: NDArray[np.uint8]) -> None:
            spans = np.stack([addresses[some], addresses[some] + stored[some]], axis=1)
            self._codec.decode_frames(self._memory.bytes, Frames(spans, sizes[some], places), memory)

        begin = self._cache.fill(addresses, sizes, decode)[inverse] + located[:, BEFORE]
        if self.field.is_ragged:
            join(self._cache.memory.numpy(), begin, located[:, BYTES], out)
        else:
            row = self.field.fixed_bytes
            take_rows(self._cache.memory, begin // row, torch.from_numpy(out).view(len(located), row))


def join(memory: NDArray[np.uint8], starts: Numbers, sizes: Numbers, out: NDArray[np.uint8]) -> None:
    """Copy stretches of `memory` into `out`, one after another: slices, joined by one call."""
    parts = [memory[at : at + size] for at, size in zip(starts.tolist(), sizes.tolist(), strict=True) if size]
    if parts:
        np.concatenate(parts, out=out)


class FixedCoded(_Decoded):
    """A compressed field of fixed shape: frames of one sample are decoded into place, others by way of the cache."""

    def __init__(self, places: Places) -> None:
        super().__init__(places)
        self._row = self.field.fixed_bytes
        self._shape: tuple[int, ...] = tuple(n or 0 for n in self.field.shape)
        self._rows = places.memory.records(torch.uint8, np.uint8, (max(self._row, 1),))

    def read(self, located: Numbers, allocate: Allocate | None = None) -> torch.Tensor:
        """Return the samples, (n, *shape), in new memory or in what `allocate` gives.

        Raises:
            DamagedError: a frame cannot be decoded.
        """
        n = len(located)
        out = (allocate or fresh)(n * self._row)
        undone = self._codec.filter is None
        if n and self._row:
            try:
                if self._per_frame > 1:
                    self._read_rows(located, out)
                else:
                    undone |= self._decode_own(located, out.numpy())
            except ValueError as error:
                raise damaged(self.field.name, error) from None
        if not undone:
            images = out.numpy().view(self.field.np_dtype).reshape(n, *self._shape)
            self._codec.undo_filter(images, self.field.frame.rows)
        return out.view(self._dtype).view(n, *self._shape)

    def _read_rows(self, located: Numbers, out: torch.Tensor) -> None:
        """Gather rows: from where they lie if their frame was kept raw, else from decoded frames."""
        raw = located[:, STORED] == located[:, DECODED]
        if not raw.any():
            self._decode_shared(located, out.numpy())
            return
        lie = located[raw, START] + located[raw, BEFORE]
        if raw.all():
            self._rows.tensor(lie, lambda _: out)
            return
        # Put into place by numpy, since torch would spread so little over its threads.
        target = out.numpy().reshape(len(located), self._row)
        target[raw] = self._rows.array(lie)
        decoded = np.empty(((~raw).sum(), self._row), np.uint8)
        self._decode_shared(located[~raw], decoded.reshape(-1))
        target[~raw] = decoded


class Varied(_Decoded):
    """A field whose samples differ in shape."""

    def __init__(self, places: Places) -> None:
        super().__init__(places)
        self._raw = not self.field.codec
        self._axes = self.field.ragged_axes
        self._rest: tuple[Any, ...] = self.field.shape[1:]
        self._unit = self.field.fixed_bytes

    def raw_bytes(self, located: Numbers) -> Numbers:
        """Return the bytes of each sample when it is decoded, (n,)."""
        return located[:, BYTES]

    def read(self, located: Numbers, allocate: Allocate | None = None) -> Ragged | list[torch.Tensor] | list[str]:
        """Return the samples of a batch: `Ragged` if only the first axis differs, a list if others do, text as str.

        Raises:
            DamagedError: a frame cannot be decoded.
        """
        if self._axes == (0,) and self.field.kind == "array":
            return self._ragged(located, allocate or fresh)
        ends = _sums(located[:, BYTES])
        flat = (allocate or fresh)(int(ends[-1]))
        try:
            self._fill(located, ends, flat.numpy())
            if self.field.kind == "text":
                return _texts(flat, ends)
        except ValueError as error:
            raise damaged(self.field.name, error) from None
        return self._list(located, flat, ends)

    def _ragged(self, located: Numbers, allocate: Allocate) -> Ragged:
        offsets = _sums(located[:, SHAPE])
        count = int(offsets[-1])
        flat = allocate(count * self._unit)
        try:
            self._fill(located, offsets * self._unit, flat.numpy())
        except ValueError as error:
            raise damaged(self.field.name, error) from None
        return Ragged(flat.view(self._dtype).view(count, *self._rest), torch.from_numpy(offsets))

    def _fill(self, located: Numbers, ends: Numbers, flat: NDArray[np.uint8]) -> None:
        if self._raw:
            join(self._memory.array, located[:, START], located[:, STORED], flat)
            return
        if self._per_frame == 1:
            undone = self._decode_own(located, flat)
        else:
            self._decode_shared(located[located[:, BYTES] > 0], flat)  # samples of no bytes lie nowhere
            undone = self._codec.filter is None
        if not undone:
            self._undo_rows(located, ends, flat)

    def _undo_rows(self, located: Numbers, ends: Numbers, flat: NDArray[np.uint8]) -> None:
        values = flat.view(self.field.np_dtype)
        edges = (ends // self.field.itemsize).tolist()
        for shape, (start, end) in zip(located[:, SHAPE:].tolist(), itertools.pairwise(edges), strict=True):
            self._codec.undo_filter(values[start:end].reshape(1, *shape), self.field.frame.rows)

    def _list(self, located: Numbers, flat: torch.Tensor, ends: Numbers) -> list[torch.Tensor]:
        if not len(located):
            return []
        sizes, values = (np.diff(ends) // self.field.itemsize).tolist(), flat.view(self._dtype)
        # From a worker process they go as one piece of shared memory. Parts by `split` would share a version counter:
        # writing to one sample would fail the backward pass of another.
        together = flat.is_shared()  # type: ignore[no-untyped-call]
        parts = torch.unsafe_split_with_sizes(values, sizes) if together else own_parts(values, sizes)
        return [part.view(shape) for part, shape in zip(parts, located[:, SHAPE:].tolist(), strict=True)]


def _sums(lengths: Numbers) -> Numbers:
    """0 and the sums of the first 1, 2, ... lengths, (n + 1,)."""
    sums = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(out=sums[1:])
    return sums


def _texts(flat: torch.Tensor, ends: Numbers) -> list[str]:
    joined = flat.numpy().tobytes()
    edges = ends.tolist()
    try:
        return [joined[a:b].decode() for a, b in itertools.pairwise(edges)]
    except UnicodeDecodeError as error:
        raise ValueError(f"it is no UTF-8 text ({error.reason})") from None


def damaged(field: str, error: Exception) -> DamagedError:
    """The error for a frame that cannot be decoded while a batch is read."""
    return DamagedError(
        f"field {field!r}: a frame of this batch cannot be decoded: {error}; "
        "`packer verify` tells which, `packer repair` packs its shard again"
    )


def gathered(
    readers: Mapping[str, FieldReader],
    numbers: Numbers,
    allocate: Allocate | None = None,
    visits: Visits | None = None,
    anchors: Numbers | None = None,
) -> dict[str, Any]:
    """Return samples (n,) of some fields of one open dataset: field name to values.

    Args:
        allocate: gives the memory that each field is read into; torch's allocator by default.
        visits: (n,), where random parts of samples are read.
        anchors: (n,), where windows of samples are read.
    """
    in_worker = get_worker_info() is not None
    # Shared memory within a worker process of DataLoader, where a batch would else be copied once more.
    memory = allocate or (shared if in_worker else None)
    out = {}
    located = iter(locate_all(readers.values(), numbers, visits, anchors))
    for name, reader in readers.items():
        values = as_images(reader.field, reader.read(next(located), memory))
        out[name] = for_worker(reader.field, values) if in_worker else values
    share_offsets(out)
    return out


def for_worker(field: Field, values: Any) -> Any:
    """What a worker process hands over: a list of tensors as one tensor and what tells them apart."""
    return Views(values) if isinstance(values, list) and field.kind != "text" else values


def as_images(field: Field, value: Any) -> Any:
    """Images with their channels first, as a view: (B, H, W, C) to (B, C, H, W); other values as they are."""
    if field.kind != "image":
        return value
    if isinstance(value, list):
        return [image.permute(2, 0, 1) for image in value]
    return value.permute(0, 3, 1, 2)
