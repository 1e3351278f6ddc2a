"""Finds the samples of a field, and decodes them. Nothing else knows which frames hold a sample.

`Locator` works for one shard or for all of a dataset, for both frame rules, ragged or not, and for a whole batch at
once. Training reads through `readers`, which use it; `column.py` reads one shard with it.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packer.codecs import FrameCodec, FrameError, Frames, frame_hashes
from packer.errors import DamagedError
from packer.format.arrays import Numbers, distinct, finder, items_of, join, starts_of, take_rows
from packer.format.column_index import ColumnIndex
from packer.format.frame_cache import FrameCache
from packer.format.layout import MAX_CHUNK_BYTES
from packer.format.open_shards import OpenShards
from packer.format.schema import MAX_AXIS, Field

#: Of the numbers in index arrays.
_WORD = np.dtype("<i8")
#: Where a frame begins and ends in the stored bytes of its column.
_SPAN = struct.Struct("<QQ")


class Located:
    """Where some samples lie, or some frames: arrays with one entry each, which are sliced together.

    A reader that needs less has fewer of these arrays; one that needs more adds arrays by names of its own.

    Attributes:
        number: of the sample, over all shards, (n,).
        shard: the shard, (n,).
        frame: number in that shard of its first frame, (n,).
        frames: how many frames it has, (n,).
        start: address of the stored bytes of these frames, (n,).
        stored: how many stored bytes these are, (n,).
        before: where the sample starts in the decoded bytes of these frames, (n,).
        decoded: how many bytes they decode to, (n,).
        nbytes: bytes of the sample itself, (n,).
        shape: length of each of its axes, (n, axes).

    If the field is not compressed, `start` to `decoded` are those of the sample itself, whatever else its frames hold.
    """

    number: Numbers
    shard: Numbers
    frame: Numbers
    frames: Numbers
    start: Numbers
    stored: Numbers
    before: Numbers
    decoded: Numbers
    nbytes: Numbers
    shape: Numbers

    def __init__(self, **arrays: Numbers) -> None:
        self.__dict__.update(arrays)  # vars() takes longer than this

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Numbers:
            """Return an array that a reader has added."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: a Located is not changed; `adding` makes another one")

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))

    def __getitem__(self, index: Any) -> Located:
        """Return some of the samples, by a slice, a mask, or their numbers (m,)."""
        return Located(**{name: array[index] for name, array in vars(self).items()})

    def adding(self, **arrays: Numbers) -> Located:
        """Return a copy with more arrays, or with some of them replaced."""
        return Located(**{**vars(self), **arrays})

    @property
    def spans(self) -> Numbers:
        """Return the first address of the stored bytes of each and the one after its last, (n, 2)."""
        spans = np.empty((len(self.start), 2), np.int64)  # np.stack takes longer for one sample
        spans[:, 0] = self.start
        np.add(self.start, self.stored, out=spans[:, 1])
        return spans


class Locator:
    """Finds and decodes the samples of one field in some shards. It holds a few numbers a chunk and a shard.

    A shard is opened when one of its samples is first located, and stays open while `opening` keeps its index. Whoever
    lets go of an index opens the shard again, by `add`, before its samples are located again.

    Args:
        samples: how many each shard holds, (shards,).
        memory: bytes in which all these shards lie, (n,) uint8.
        opening: opens shards by their numbers. It returns of each the index of the field's column, whose arrays are
            views into `memory`, and where the shard starts in it.
        cache: keeps decoded frames, where they hold several samples.

    Attributes:
        first: number of the first sample of each shard and the number after the last, (shards + 1,).
    """

    def __init__(
        self,
        field: Field,
        samples: Sequence[int],
        memory: NDArray[np.uint8],
        opening: Callable[[Sequence[int]], Sequence[tuple[ColumnIndex, int]]],
        cache: FrameCache | None = None,
    ) -> None:
        self.field = field
        self._fixed_bytes = field.fixed_bytes
        self.cache = FrameCache() if cache is None else cache
        self.codec = FrameCodec(field.codec, field.np_dtype, field.channels, field.image_axes)
        self._bytes = memory
        self._opening = opening
        self._lock = threading.Lock()
        self.first: Numbers = starts_of(samples)
        self._find_shard = finder(self.first[1:-1])
        self._axes = field.ragged_axes
        self._shape = np.array([n or 0 for n in field.shape], np.int64)
        self._together = field.frame.samples or 1
        # Raw offsets of samples of one shape, each in frames of its own, are not needed to find them.
        self._has_raw_offsets = not field.codec or field.is_ragged or self._together > 1
        # Whether each sample is a frame of its own, and all have one shape; what they have in common then.
        self._is_alone = not self._has_raw_offsets and field.frame.samples == 1
        one, none, nbytes = (np.array([number]) for number in (1, 0, field.fixed_bytes))
        shape = self._shape[None]
        self._in_common = {"frames": one, "before": none, "decoded": nbytes, "nbytes": nbytes, "shape": shape}
        self._records: dict[int, NDArray[Any]] = {}
        self._open_shards = OpenShards.none_open(field, self.first, memory)

    def open(self, numbers: Numbers | None = None) -> OpenShards:
        """Return what is known of the shards, once those of the samples (n,) are open; of all samples by default.

        Raises:
            DamagedError: a shard is missing or damaged.
        """
        open_shards = self._open_shards
        if not open_shards.are_all and (numbers is None or open_shards.are_closed[self.shard_of(numbers)].any()):
            missing = [shard for shard in self._shards(numbers) if open_shards.are_closed[shard]]
            self.add(missing, self._opening(missing))
            open_shards = self._open_shards
        return open_shards

    def add(self, shards: Sequence[int], opened: Sequence[tuple[ColumnIndex, int]]) -> None:
        """Add shards that were opened, for the first time or again.

        Args:
            shards: numbers of these, which ascend.
            opened: what `opening` returns of each.
        """
        with self._lock:
            self._open_shards = self._open_shards.adding(shards, opened)

    def indexes(self, numbers: Numbers | None = None) -> list[ColumnIndex]:
        """Return the indexes of the shards of samples (n,), in order; of all by default; raises errors as `open`."""
        return list(map(self.open(numbers).index_of, self._shards(numbers)))

    @property
    def odd(self) -> int:
        """Return a number that is a multiple of 2**k, k up to 3, only if the addresses of all open chunks are."""
        return self._open_shards.odd

    def path_of(self, shard: int) -> str:
        """Return the file of an open shard."""
        return self._open_shards.index_of(shard).path

    def _shards(self, numbers: Numbers | None) -> Sequence[int]:
        """Return the shards of samples (n,), in order; all shards if that is None."""
        return range(len(self.first) - 1) if numbers is None else np.unique(self.shard_of(numbers)).tolist()

    def shard_of(self, numbers: Numbers) -> Numbers:
        """Return the shard of each sample, (n,)."""
        return self._find_shard(numbers)

    def lengths(self, numbers: Numbers) -> Numbers:
        """Return the length of the first axis of samples, (n,).

        Raises:
            DamagedError: an index array is damaged.
        """
        if 0 not in self._axes:
            return np.full(len(numbers), self.field.shape[0], np.int64)
        self.open(numbers)
        shard = self.shard_of(numbers)
        lengths: Numbers = self._words("shapes", shard, (numbers - self.first[shard]) * len(self._axes))[:, 0]
        if ((lengths < 0) | (lengths > MAX_AXIS)).any():
            raise self.damaged()
        return lengths

    def locate(self, numbers: Numbers) -> Located:
        """Return where the samples (n,) lie.

        Raises:
            DamagedError: a shard is missing or damaged, or an index array is.
        """
        self.open(numbers)
        field, count = self.field, len(numbers)
        if count == 1 and self._is_alone and (one := self._locate_one(numbers)) is not None:
            return one
        shard = self.shard_of(numbers)
        local = numbers - self.first.take(shard)
        shape = np.empty((count, len(field.shape)), np.int64)
        shape[:] = self._shape
        raw = self._raw_offsets(shard, local) if self._has_raw_offsets else None
        nbytes = _repeated(self._fixed_bytes, count) if raw is None else raw[:, 1] - raw[:, 0]
        if self._axes:
            self._put_shapes(numbers, shard, local, nbytes, shape)
        if field.frame.samples is not None:
            frame, frames = local if self._together == 1 else local // self._together, _repeated(1, count)
        else:
            frame, frames = self._bands(numbers, shard, local, shape)
        before, decoded = np.zeros(count, np.int64), nbytes
        if raw is not None and field.codec and self._together > 1:
            begin, end = self._shared(numbers, shard, local, raw).T
            before, decoded = raw[:, 0] - begin, end - begin
        if raw is not None and not field.codec:
            offsets = raw
        elif field.frame.samples is not None:
            offsets = self._words("frame_offsets", shard, frame, 2)
        else:
            ends = [self._words("frame_offsets", shard, number) for number in (frame, frame + frames)]
            offsets = np.concatenate(ends, axis=1)
        addresses = self._addresses(numbers, offsets)
        start, end = addresses[:, 0], addresses[:, 1]
        return Located(
            number=numbers,
            shard=shard,
            frame=frame,
            frames=frames,
            start=start,
            stored=end - start,
            before=before,
            decoded=decoded,
            nbytes=nbytes,
            shape=shape,
        )

    def _locate_one(self, numbers: Numbers) -> Located | None:
        """Return what `locate` does of one sample, (1,), if `_is_alone`; None if it has no bytes, or a damaged index.

        A second way, for `ds[i]` alone: arrays of one number would make it take a third longer (docs/how/choices.md).
        """
        open_shards, number = self._open_shards, numbers.item()
        shard, chunk = self.shard_of(numbers).item(), open_shards.find_chunk(numbers).item()
        local, span_at = number - self.first.item(shard), open_shards.span_at.item(chunk)
        begin, stop = _SPAN.unpack_from(self._bytes.data, open_shards.arrays["frame_offsets"].item(shard) + 8 * local)
        start, end = begin + span_at, stop + span_at
        if not open_shards.low.item(chunk) <= start < end <= open_shards.high.item(chunk):
            return None
        shards, frames, starts, stored = np.array([[shard], [local], [start], [end - start]])
        return Located(number=numbers, shard=shards, frame=frames, start=starts, stored=stored, **self._in_common)

    def frames(self, located: Located, item: Numbers | None = None, band: Numbers | None = None) -> Located:
        """Return frames of located samples: shard, frame, start, stored, decoded, and `item`, the sample of each.

        By default all of them, one sample after another; a frame that several samples share is repeated. Else frame
        `band` (m,) of each of the samples `item` (m,). `shape` is that of the rows in a frame, if samples share none.

        Raises:
            DamagedError: an index array is damaged.
        """
        samples, band_rows = located, self.field.frame.rows
        if band_rows is None and item is None:
            item = np.arange(len(located))  # each lies in one frame
        else:
            if item is None or band is None:
                item = np.arange(len(located)).repeat(located.frames)
                band = np.arange(len(item)) - (located.frames.cumsum() - located.frames)[item]
            samples = located[item]
        shard, frame, start, stored = samples.shard, samples.frame, samples.start, samples.stored
        decoded, shape = samples.decoded, samples.shape
        if band_rows is not None:
            assert band is not None, "a frame of a sample is named by its band"
            frame = frame + band
            row_bytes = samples.nbytes // np.maximum(shape[:, 0], 1)
            rows = np.minimum(shape[:, 0] - band * band_rows, band_rows)
            shape = np.column_stack([rows, shape[:, 1:]])
            decoded = rows * row_bytes
            if self.field.codec:
                shift = start - self._words("frame_offsets", shard, samples.frame)[:, 0]
                begin, end = self._words("frame_offsets", shard, frame, 2).T + shift
                if not ((start <= begin) & (begin <= end) & (end <= start + samples.stored)).all():
                    raise self.damaged()
                start, stored = begin, end - begin
            else:
                start, stored = start + band * band_rows * row_bytes, decoded
        elif not self.field.codec and self._together > 1:
            # Uncompressed, a frame begins with its first sample and ends with its last.
            local = samples.number - self.first[shard]
            offsets = self._shared(samples.number, shard, local, self._raw_offsets(shard, local))
            start, end = self._addresses(samples.number, offsets).T
            stored = decoded = end - start
        return Located(shard=shard, frame=frame, start=start, stored=stored, decoded=decoded, shape=shape, item=item)

    def decode(self, located: Located, out: NDArray[np.uint8]) -> None:
        """Put the samples into `out` (bytes,), one after another, as they were before they were packed.

        A frame of one sample, or of a part of one, is decoded straight into `out`. A frame of several samples is
        decoded once, and kept in the cache.

        Raises:
            DamagedError: a frame cannot be decoded.
        """
        if not self.field.codec:
            if self._axes or len(located) == 1:  # which may be as large as memory allows
                join(self._bytes, located.start, located.stored, out)
            elif len(out):
                items = items_of(self._bytes, self._fixed_bytes)
                out.view(items.dtype)[:] = items[located.start]
        elif self._together > 1:
            self._decode_shared(located, out)
            self.codec.undo_filter(out, located.shape)
        else:
            self.decode_frames(located if self.field.frame.rows is None else self.frames(located), out)

    def decode_frames(self, frames: Located, out: NDArray[np.uint8], places: Numbers | None = None) -> None:
        """Decode frames into `out` (bytes,), each to its place (m,), or one after another.

        A filter is undone, except in frames of several samples: whoever takes samples out of these undoes it. To undo
        a filter, frames have to lie one after another.

        Raises:
            DamagedError: a frame cannot be decoded; the message names the samples that it holds.
        """
        shapes = frames.shape if self._together == 1 else None
        try:
            self.codec.decode_frames(self._bytes, Frames(frames.spans, frames.decoded, places, shapes), out)
        except FrameError as error:
            bad = frames[error.number : error.number + 1]
            index = self._open_shards.index_of(int(bad.shard[0]))
            first, stop = index.samples_of(bad.frame)[0].tolist()
            raise DamagedError(
                f"{index.path}: field {self.field.name!r}, {_samples_text(first, stop)} of the shard: {error}; "
                "run `packer verify`, then `packer repair`"
            ) from None

    def _decode_shared(self, located: Located, out: NDArray[np.uint8]) -> None:
        """Decode samples out of frames that they share; if the cache is too small, in two halves.

        Raises:
            DamagedError: a frame cannot be decoded, or two samples of one frame differ in its decoded size.
        """
        located = located[located.nbytes > 0]  # others lie nowhere
        # The first sample of a frame stands for it: another shard may be mapped where one was that is closed.
        first, item, inverse = distinct(self.first.take(located.shard) + located.frame * self._together)
        frames = located[item]
        if (located.decoded != frames.decoded[inverse]).any():
            raise self.damaged()
        if not len(located):
            return
        half = len(located) // 2
        if half and self.cache.is_too_small(frames.decoded):
            edge = int(located.nbytes[:half].sum())
            self._decode_shared(located[:half], out[:edge])
            self._decode_shared(located[half:], out[edge:])
            return

        def decode(numbers: Numbers, places: Numbers, memory: NDArray[np.uint8]) -> None:
            self.decode_frames(frames[numbers], memory, places)

        with self.cache.lock:
            begin = self.cache.fill(first, frames.decoded, decode)[inverse] + located.before
            if self._axes:
                join(self.cache.memory, begin, located.nbytes, out)
            else:
                take_rows(self.cache.memory, begin // self._fixed_bytes, out.reshape(len(located), -1))

    def are_wrong(self, frames: Located) -> NDArray[np.bool_]:
        """Return whether the checksum of each frame differs from the one in its index, (m,)."""
        expected = self._words("checksums", frames.shard, frames.frame)[:, 0].view(np.uint64)
        wrong: NDArray[np.bool_] = frame_hashes(self._bytes.data, frames.spans) != expected
        return wrong

    def _addresses(self, numbers: Numbers, offsets: Numbers) -> Numbers:
        """Return the addresses of the offsets (n, 2) at which samples (n,) start and end in the stored bytes.

        Raises:
            DamagedError: they lie outside the chunk that holds the sample; reading there could crash.
        """
        open_shards = self._open_shards
        chunk = open_shards.find_chunk(numbers)
        addresses: Numbers = offsets + open_shards.span_at.take(chunk)[:, None]
        start, end = addresses[:, 0], addresses[:, 1]
        inside = (start >= open_shards.low.take(chunk)) & (end <= open_shards.high.take(chunk)) & (start < end)
        if np.count_nonzero(inside) < len(inside):  # of one sample, all() takes four times as long
            self._check(inside | (start == end), numbers)  # samples of no bytes lie nowhere
        return addresses

    def _check(self, sound: NDArray[np.bool_], numbers: Numbers) -> None:
        """Raise DamagedError if the indexes of some of the samples (n,) are not sound; it names the first of these."""
        if not sound.all():
            raise self.damaged(int(numbers[sound.argmin()]))

    def damaged(self, number: int | None = None) -> DamagedError:
        """Return the error of a damaged index; it names the sample `number`, if that is known."""
        path = sample = ""
        if number is not None:
            shard = int(self.shard_of(np.array([number]))[0])
            path = f"{self.path_of(shard)}: "
            sample = f", sample {number - int(self.first[shard])} of the shard"
        return DamagedError(
            f"{path}field {self.field.name!r}{sample}: an index of its column is damaged; "
            "run `packer verify`, then `packer repair`"
        )

    def _put_shapes(self, numbers: Numbers, shard: Numbers, local: Numbers, nbytes: Numbers, shape: Numbers) -> None:
        """Fill in the ragged axes of shapes, and check that they agree with the sizes before anything is allocated."""
        axes = self._words("shapes", shard, local * len(self._axes), len(self._axes))
        size: Any = float(self._fixed_bytes)  # which does not overflow
        for axis, lengths in zip(self._axes, axes.T, strict=True):
            shape[:, axis] = lengths
            size = size * lengths
        fits = (size == nbytes) & (size <= MAX_CHUNK_BYTES)
        sound = (axes.view(np.uint64) <= MAX_AXIS) & fits[:, None]  # what is below 0 is above all others
        if not sound.all():
            self._check(sound.all(axis=1), numbers)

    def _bands(self, numbers: Numbers, shard: Numbers, local: Numbers, shape: Numbers) -> tuple[Numbers, Numbers]:
        """Return the number of the first frame of samples, and how many they have, (n,) each, if frames hold rows."""
        counts = -(-shape[:, 0] // (self.field.frame.rows or 1))
        if not self._axes:
            return local * self.field.bands, counts
        first, last = self._words("sample_frames", shard, local, 2).T
        self._check((first >= 0) & (last - first == counts) & (last <= self._open_shards.frames[shard]), numbers)
        return first, counts

    def _raw_offsets(self, shard: Numbers, first: Numbers, stop: Numbers | None = None) -> Numbers:
        """Return the raw bytes of all samples of a shard before sample `first`, and before `stop`; (n, 2).

        By default `stop` is the sample after `first`.
        """
        if not self._axes:
            offsets = np.empty((len(first), 2), np.int64)
            offsets[:, 0], offsets[:, 1] = first, first + 1 if stop is None else stop
            offsets *= self._fixed_bytes
            return offsets
        if stop is None:
            return self._words("sample_offsets", shard, first, 2)
        return np.concatenate([self._words("sample_offsets", shard, number) for number in (first, stop)], axis=1)

    def _shared(self, numbers: Numbers, shard: Numbers, local: Numbers, raw: Numbers) -> Numbers:
        """Return where the shared frames of samples begin and end, (n, 2), as `raw`, which has the samples' offsets."""
        first = local // self._together * self._together
        stop = np.minimum(first + self._together, self.first[shard + 1] - self.first[shard])
        shared = self._raw_offsets(shard, first, stop)
        (begin_of_sample, end_of_sample), (begin, end) = raw.T, shared.T
        sound = (begin >= 0) & (begin <= begin_of_sample) & (end_of_sample <= end) & (end - begin <= MAX_CHUNK_BYTES)
        self._check(sound, numbers)
        return shared

    def _words(self, array: str, shard: Numbers, first: Numbers, count: int = 1) -> Numbers:
        """Return `count` numbers of an index array from number `first` (n,) on, (n, count); 2**63 and more wrap."""
        if not len(first):
            return np.empty((0, count), np.int64)
        if count not in self._records:
            self._records[count] = items_of(self._bytes, 8 * count)  # a small array lies at any byte
        words: NDArray[Any] = self._records[count][self._open_shards.arrays[array].take(shard) + 8 * first]
        return words.view(_WORD).reshape(-1, count)


def _repeated(value: int, count: int) -> Numbers:
    """Return a number so many times, (count,); for one sample np.full takes longer."""
    numbers = np.empty(count, np.int64)
    numbers.fill(value)
    return numbers


def _samples_text(first: int, stop: int) -> str:
    """Return the samples from `first` to `stop` - 1 in words."""
    return f"sample {first}" if stop == first + 1 else f"samples {first} to {stop - 1}"
