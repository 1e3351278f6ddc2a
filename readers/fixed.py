"""Fields of one shape, read into one tensor a batch.

Reading has two steps, so that a loader that knows what comes next can take the first for many batches at
once: `locate` turns sample numbers into places, `read` copies or decodes what lies there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from packer.codecs.frames import FrameCodec, Frames
from packer.errors import DamagedError
from packer.format.column import BEFORE, DECODED, START, STORED
from readers.addresses import Addresses
from readers.draws import Visits
from readers.forks import renew_in_children
from readers.frame_cache import FrameCache, distinct
from readers.gather import Allocate, fresh, take_rows
from readers.places import Numbers, Places

TORCH_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}


#: Decoded frames that one field keeps between batches, unless a loader asks for more.
CACHE_BYTES = 32 * 2**20
#: torch gathers no single unsigned numbers of several bytes; their bytes, as signed ones, it does.
_GATHERED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class FixedRaw:
    """An uncompressed field of fixed shape: one gather a batch, no work a sample.

    Args:
        places: where its samples lie.

    Attributes:
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
        self._unit = _GATHERED.get(self._dtype, self._dtype)
        if self._row and (at % self._dtype.itemsize).any():
            self._unit = torch.uint8
        self._at = at // self._unit.itemsize
        self._length = self._row // self._unit.itemsize
        self._records = places.memory.records(self._unit, self.field.np_dtype, self._shape)
        self.row = 0
        self.addresses = Addresses([places], [self._at], [self._length])

    @staticmethod
    def join(readers: Sequence[FixedRaw]) -> None:
        """Lets the readers of one dataset look addresses up together."""
        joined = Addresses([r._places for r in readers], [r._at for r in readers], [r._length for r in readers])
        for row, reader in enumerate(readers):
            reader.row, reader.addresses = row, joined

    def locate(self, numbers: Numbers, visits: Visits | None = None) -> Numbers:
        """Address of each sample, in elements, (n,)."""
        return self.addresses.of(self.row, numbers)

    def spans(self, located: Numbers) -> Numbers:
        """Address and size in bytes of what `read` will touch, (n, 2)."""
        return np.stack([located * self._unit.itemsize, np.full_like(located, self._row)], axis=1)

    def read(self, located: Numbers, allocate: Allocate | None = None) -> torch.Tensor:
        """The samples, (n, *shape), in new memory or in what `allocate` gives."""
        return self._records.tensor(located, allocate)


class FixedCoded:
    """A compressed field of fixed shape.

    Where frames hold one sample they are decoded into place. Where they hold several, decoded frames are kept
    in a ring of slots, so that a block shuffle decodes each about once an epoch; rows are then gathered
    from the slots.
    """

    def __init__(self, places: Places, slots: int = 0) -> None:
        self.field = places.field
        self._places = places
        self._memory = places.memory
        self._codec = FrameCodec(self.field.codec, self.field.np_dtype)
        self._row = self.field.fixed_bytes
        self._shape: tuple[int, ...] = tuple(n or 0 for n in self.field.shape)
        self._dtype = TORCH_DTYPES[self.field.dtype]
        self._per_frame = self.field.frame.samples or 1
        self._rows = places.memory.records(torch.uint8, np.uint8, (max(self._row, 1),))
        self._lock = threading.Lock()
        self._cache = FrameCache(self._per_frame * self._row, slots)
        if self._per_frame > 1:
            renew_in_children(self)

    def keep(self, samples: int) -> None:
        """Makes room for the decoded frames of `samples` samples, where frames hold several."""
        if self._per_frame > 1:
            # Another thread may be filling the slots, or gathering from them.
            with self._lock:
                self._cache.grow(-(-samples // self._per_frame))

    def renew(self) -> None:
        """In a forked child: a lock that is free, and as many slots, all empty."""
        self._lock = threading.Lock()
        self._cache = self._cache.emptied()

    def locate(self, numbers: Numbers, visits: Visits | None = None) -> Numbers:
        """Return the places of samples, (n, SHAPE + axes)."""
        return self._places.locate(numbers)

    def spans(self, located: Numbers) -> Numbers:
        """Address and size of the bytes that `read` will touch, (n, 2)."""
        return located[:, [START, STORED]]

    def read(self, located: Numbers, allocate: Allocate | None = None) -> torch.Tensor:
        """The samples, (n, *shape), in new memory or in what `allocate` gives.

        Raises:
            DamagedError: a frame cannot be decoded.
        """
        n = len(located)
        out = (allocate or fresh)(n * self._row)
        undone = self._codec.filter is None
        if n and self._row:
            try:
                if self._per_frame > 1:
                    self._read_shared(located, out.view(n, self._row))
                else:
                    undone |= self._read_own(located, out)
            except ValueError as error:
                raise damaged(self.field.name, error) from None
        if not undone:
            images = out.numpy().view(self.field.np_dtype).reshape(n, *self._shape)
            self._codec.undo_filter(images, self.field.frame.rows)
        return out.view(self._dtype).view(n, *self._shape)

    def _read_own(self, located: Numbers, out: torch.Tensor) -> bool:
        """Decodes frames of one sample, or of a part of one, straight into `out`; whether differences are undone."""
        frames = self._places.frames(located)
        rows = np.full(len(frames.sizes), self._row // max(self._shape[0], 1)) if self._codec.filter else None
        return self._codec.decode_frames(self._memory.bytes, Frames(frames.spans, frames.sizes, rows=rows), out.numpy())

    def _read_shared(self, located: Numbers, out: torch.Tensor) -> None:
        """Gathers rows: from where they lie, where a frame was kept raw, and else from decoded frames."""
        start, before = located[:, START], located[:, BEFORE]
        raw = located[:, STORED] == located[:, DECODED]
        if not raw.any():
            self._read_decoded(located, out)
        elif raw.all():
            self._rows.tensor(start + before, lambda _: out.view(-1))
        else:
            kept = np.flatnonzero(raw)
            rows = self._rows.tensor((start + before)[kept])
            coded = np.flatnonzero(~raw)
            decoded = fresh(len(coded) * self._row).view(len(coded), self._row)
            self._read_decoded(located[coded], decoded)
            # numpy's, since torch would spread so little over its threads.
            target = out.numpy()
            target[kept] = rows.numpy()
            target[coded] = decoded.numpy()

    def _read_decoded(self, located: Numbers, out: torch.Tensor) -> None:
        """Decodes each frame that is not in a slot once, then gathers rows."""
        with self._lock:
            self._gather(located, out)

    def _gather(self, located: Numbers, out: torch.Tensor) -> None:
        """The same, by whoever holds the lock; where there is no room for so many frames, one half after the other."""
        frames = distinct(located[:, START])
        half = len(located) // 2
        if half and len(frames.addresses) > CACHE_BYTES // (2 * self._per_frame * self._row):
            self._gather(located[:half], out[:half])
            self._gather(located[half:], out[half:])
            return
        slot = self._cache.fill(frames, self._decode_shared(located))
        take_rows(self._cache.slots, slot * self._per_frame + located[:, BEFORE] // self._row, out)

    def _decode_shared(self, located: Numbers) -> Callable[[Numbers, Numbers, NDArray[np.uint8]], None]:
        def decode(items: Numbers, places: Numbers, slots: NDArray[np.uint8]) -> None:
            start, size = located[items, START], located[items, DECODED]
            spans = np.stack([start, start + located[items, STORED]], axis=1)
            self._codec.decode_frames(self._memory.bytes, Frames(spans, size, places), slots)

        return decode


def damaged(field: str, error: Exception) -> DamagedError:
    """The error for a frame that cannot be decoded while a batch is read."""
    return DamagedError(
        f"field {field!r}: a frame of this batch cannot be decoded: {error}; "
        "`packer verify` tells which, `packer repair` packs its shard again"
    )
