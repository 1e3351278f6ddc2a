"""Reads whole samples of one field: of one shape, uncompressed or compressed, or ragged.

Reading has two steps: `locate` turns sample numbers into places, `read` copies or decodes what lies there. A loader,
which knows the next batches, locates many of them at once. Parts of samples are read by `rows.py`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from packer.errors import DamagedError
from packer.format import ColumnIndex, Field, Located, Locator, Numbers, Scale, starts_of
from readers.batch import Ragged, SharedTensors
from readers.draws import Asked
from readers.gather import MEMORY, TORCH_DTYPES, Allocate, Pool, as_values, fresh, shared, split_with_own_storage
from readers.shards import Shards

#: Gives a sample in words, by its number in the whole dataset, for messages.
Describe = Callable[[int], str]
#: The key of a batch that holds the names of its samples.
NAME = "name"
#: Several small batches are read at once, up to this many bytes, and then split. The calls of a batch cost more than
#: its copying; torch's threads copy only large pieces; machine code that decodes many frames runs long without the
#: interpreter; and a frame that several samples share is decoded fewer times (rows of pairs in `scripts/bench`).
RUN_BYTES = 2**23


class Places(Locator):
    """Finds the samples of one field in the shards of a dataset.

    Args:
        samples, opening: see `Locator`.
        sample_bytes: raw bytes of a sample, the mean if they differ; an attribute, too.
        scale: how its shapes follow those of another field, as the manifest says it; None if that is not known.
    """

    def __init__(
        self,
        field: Field,
        samples: Sequence[int],
        opening: Callable[[Sequence[int]], Sequence[tuple[ColumnIndex, int]]],
        sample_bytes: float,
        scale: Scale | None = None,
    ) -> None:
        super().__init__(field, samples, MEMORY.array, opening)
        self.sample_bytes = sample_bytes
        self._scale: Scale = scale or (field.name, 1, 1)

    def is_scaled(self, other: Places, times: int, axes: Iterable[tuple[int, int]]) -> bool:
        """Return whether schema and manifest say that axes are so many times as long in another field, in all samples.

        Args:
            axes: pairs of them, here and there.
        """
        name, length, per = self._scale
        other_name, other_length, other_per = other._scale
        are_in_proportion = name == other_name and length * other_per * times == other_length * per
        field, other_field = self.field, other.field
        for axis, other_axis in axes:
            size, other_size = field.shape[axis], other_field.shape[other_axis]
            if size is not None and other_size is not None:
                if size * times != other_size:
                    return False
            elif (
                size is not None
                or other_size is not None
                or not are_in_proportion
                or field.ragged_axes.index(axis) != other_field.ragged_axes.index(other_axis)
            ):
                return False
        return True

    def has_shapes_of(self, other: Places, numbers: Numbers | None = None) -> bool:
        """Return whether each sample has the same lengths of its ragged axes in another field of the dataset.

        Args:
            numbers: samples whose shards are compared, (n,); all by default.
        """
        if other is self:
            return True
        axes = self.field.ragged_axes
        if axes == other.field.ragged_axes and self.is_scaled(other, 1, zip(axes, axes, strict=True)):
            return True
        shapes, other_shapes = (
            [index.arrays["shapes"] for index in places.indexes(numbers)] for places in (self, other)
        )
        return all(map(np.array_equal, shapes, other_shapes))


class FieldReader:
    """Turns sample numbers into places, for as many batches as the caller likes, and places into values.

    Attributes:
        field: the field that `read` returns; its shape is that of a crop if crops are read.
        is_ragged: whether samples differ in shape.
        raw_places: where its samples lie, if one gather copies them from the shards unchanged; else None.
        run_bytes: bytes that it prefers to read by one call; 0 if it cannot say how many bytes a batch has.
    """

    raw_places: Places | None = None

    def __init__(self, field: Field) -> None:
        self.field = field
        self.is_ragged = field.is_ragged
        self._dtype = TORCH_DTYPES[field.dtype]
        self._shape: tuple[int, ...] = tuple(n or 0 for n in field.shape)
        self._fixed_bytes = field.fixed_bytes
        self.run_bytes = 0 if field.is_ragged else RUN_BYTES

    @cached_property
    def sample_bytes(self) -> float:
        """Return the raw bytes of a sample; the mean if they differ."""
        return self._fixed_bytes

    @property
    def in_words(self) -> str:
        """Return what it reads of a sample in a few words, as `Field.in_words` does."""
        return self.field.in_words

    def nbytes(self, located: Located) -> Numbers:
        """Return the bytes of each sample when it is read, (n,)."""
        return located.nbytes if self.is_ragged else np.full(len(located), self._fixed_bytes)

    def converting(self, dtype: str) -> FieldReader | None:
        """Return a reader that gives values of another dtype by itself; None if it cannot, and they are converted."""
        return None

    def keep(self, window: int, batch_size: int) -> None:
        """Make room for the decoded frames of so many samples and of two runs, where frames hold several samples.

        Args:
            window: samples that come in random order.
        """

    def locate(self, asked: Asked) -> Located:
        """Return where samples (n,) lie.

        Raises:
            DamagedError: an index array is damaged.
            UsageError: a sample has no such part.
        """
        raise NotImplementedError

    def spans(self, located: Located) -> Numbers:
        """Return the first address that `read` touches for each sample and the one after the last, (n, 2)."""
        return np.zeros((len(located), 2), np.int64)

    def read(self, located: Located, allocate: Allocate | None = None) -> Any:
        """Return the values of the samples, in new memory or in what `allocate` gives.

        Raises:
            DamagedError: a frame cannot be decoded.
        """
        raise NotImplementedError

    def _shaped(self, flat: torch.Tensor, count: int) -> torch.Tensor:
        """Return bytes as the values of `count` samples, (count, *shape)."""
        return flat.view(self._dtype).view(count, *self._shape)


class WrappedReader(FieldReader):
    """Reads by another reader, and does more. A subclass says what, by `read`.

    Args:
        reader: of whole samples or of parts of them.
        field: what `read` returns.
    """

    def __init__(self, reader: FieldReader, field: Field) -> None:
        super().__init__(field)
        self._reader = reader
        self._times = field.itemsize / reader.field.itemsize
        self.run_bytes = reader.run_bytes

    @property
    def in_words(self) -> str:
        """Return what it reads of a sample in a few words."""
        return self._reader.in_words

    @cached_property
    def sample_bytes(self) -> float:
        """Return the raw bytes of a sample; the mean if they differ."""
        return self._reader.sample_bytes * self._times

    def nbytes(self, located: Located) -> Numbers:
        """Return the bytes of each sample when it is read, (n,)."""
        return (self._reader.nbytes(located) * self._times).astype(np.int64)

    def keep(self, window: int, batch_size: int) -> None:
        """Make room for decoded frames, see `FieldReader`."""
        self._reader.keep(window, batch_size)

    def locate(self, asked: Asked) -> Located:
        """Return the places that the reader gives."""
        return self._reader.locate(asked)

    def spans(self, located: Located) -> Numbers:
        """Return the first address that `read` touches for each sample and the one after the last, (n, 2)."""
        return self._reader.spans(located)


class KnownReader(FieldReader):
    """Values that are known when samples are located, such as their numbers. Reads like any other field.

    Args:
        values: gives them as int64 (n, *shape) from what is asked for.
    """

    def __init__(self, field: Field, values: Callable[[Asked], Any]) -> None:
        super().__init__(field)
        self.run_bytes = RUN_BYTES
        self._values = values

    def locate(self, asked: Asked) -> Located:
        """Return the values themselves."""
        return Located(values=self._values(asked).reshape(len(asked), *self._shape))

    def read(self, located: Located, allocate: Allocate | None = None) -> torch.Tensor:
        """Return the values, (n, *shape), in new memory or in what `allocate` gives."""
        flat = (allocate or fresh)(located.values.size * self.field.itemsize)
        return self._shaped(flat, len(located)).copy_(torch.from_numpy(located.values))


class NameReader(FieldReader):
    """Names of samples, as their shards hold them. Reads like a field of text.

    Args:
        shards: of the dataset.
    """

    def __init__(self, shards: Shards) -> None:
        super().__init__(Field(name=NAME, dtype="uint8", kind="text", shape=(None,)))
        self.run_bytes = RUN_BYTES
        self._shards = shards
        self._first = starts_of(shards.samples)

    def nbytes(self, located: Located) -> Numbers:
        """Return none, (n,): names are short."""
        return np.zeros(len(located), np.int64)

    def locate(self, asked: Asked) -> Located:
        """Return shard and number within it."""
        numbers = asked.samples
        shard = self._first[1:-1].searchsorted(numbers, side="right")
        return Located(shard=shard, local=numbers - self._first[shard])

    def read(self, located: Located, allocate: Allocate | None = None) -> list[str]:
        """Return the names.

        Raises:
            DamagedError: the names of a shard are damaged.
        """
        names, shards = [], located.shard.tolist()
        opened = dict(zip(set(shards), self._shards.open(list(set(shards))), strict=True))
        for shard, number in zip(shards, located.local.tolist(), strict=True):
            data, ends = opened[shard].names
            names.append(str(data[int(ends[number]) : int(ends[number + 1])], "utf-8", "replace"))
        return names


class FixedRaw(FieldReader):
    """An uncompressed field of fixed shape: one gather a batch, no work a sample.

    Args:
        places: where its samples lie.
    """

    def __init__(self, places: Places) -> None:
        super().__init__(places.field)
        self.raw_places = self.places = places
        self.run_bytes = RUN_BYTES
        self._row_bytes = self.field.fixed_bytes
        self._row = np.array(self._row_bytes)  # numpy would convert a number for each batch

    def locate(self, asked: Asked) -> Located:
        """Return the address of each sample."""
        numbers = asked.samples
        shards = self.places.open(numbers)
        zero_at = shards.zero_at
        start: Numbers = numbers * self._row
        start += zero_at.take(shards.find_chunk(numbers)) if len(zero_at) > 1 else zero_at
        return Located(start=start)

    def spans(self, located: Located) -> Numbers:
        """Return the first address of each sample and the one after its last, (n, 2)."""
        return np.stack([located.start, located.start + self._row], axis=1)

    def read(self, located: Located, allocate: Allocate | None = None) -> torch.Tensor:
        """Return the samples, (n, *shape), in new memory or in what `allocate` gives."""
        return MEMORY.gather(located.start, self._row_bytes, self.places.odd, self._dtype, self._shape, allocate)


class WholeReader(FieldReader):
    """Whole samples that are compressed, or differ in shape.

    If frames hold several samples, decoded frames are kept, so that a block shuffle decodes each about once an epoch.
    """

    def __init__(self, places: Places) -> None:
        super().__init__(places.field)
        self.places = places
        self.run_bytes = RUN_BYTES
        self._per_frame = self.field.frame.samples or 1
        self._is_list = self.field.ragged_axes != (0,) or self.field.kind != "array"

    def locate(self, asked: Asked) -> Located:
        """Return where samples (n,) lie."""
        return self.places.locate(asked.samples)

    def spans(self, located: Located) -> Numbers:
        """Return the first address of the frames of each sample and the one after the last, (n, 2)."""
        return located.spans

    @cached_property
    def sample_bytes(self) -> float:
        """Return the raw bytes of a sample; the mean if they differ."""
        return self.places.sample_bytes

    def keep(self, window: int, batch_size: int) -> None:
        """Make room for the decoded frames of a window and of two runs, see `FieldReader`."""
        if self.field.codec and self._per_frame > 1:
            # One frame more, for the end of the memory; half as much again where frames may be larger than the mean.
            spare = 1.5 if self.is_ragged else 1
            run = max(batch_size, self.run_bytes // max(int(self.sample_bytes), 1))
            # Each sample of a run may lie in another frame, but no run has more frames than a window.
            samples = window + 2 * min(run * self._per_frame, window)
            cache = self.places.cache
            with cache.lock, suppress(MemoryError, ValueError):  # another thread may be filling it, or reading from it
                # If memory is short, the cache keeps its size, and frames are decoded more than once.
                cache.grow(int(spare * self.sample_bytes * (samples + self._per_frame)))

    def read(
        self, located: Located, allocate: Allocate | None = None
    ) -> torch.Tensor | Ragged | list[torch.Tensor] | list[str]:
        """Return the samples of a batch, in new memory or in what `allocate` gives.

        Returns:
            (n, *shape) if all have one shape; `Ragged` if only the first axis differs; else a list, of str for text.

        Raises:
            DamagedError: a frame cannot be decoded.
        """
        if not self.is_ragged and allocate is None:
            out = np.empty(len(located) * self._fixed_bytes, np.uint8)
            self.places.decode(located, out)
            return as_values(out, self._dtype, (len(located), *self._shape))
        flat = (allocate or fresh)(int(located.nbytes.sum()) if self.is_ragged else len(located) * self._fixed_bytes)
        self.places.decode(located, flat.numpy())
        if not self.is_ragged:
            return self._shaped(flat, len(located))
        if self.field.kind == "text":
            return self._decode_texts(located, flat)
        if self._is_list:
            return self._split_samples(located, flat)
        offsets = starts_of(located.shape[:, 0])
        values = flat.view(self._dtype).view(int(offsets[-1]), *self._shape[1:])
        return Ragged(values, torch.from_numpy(offsets))

    def _decode_texts(self, located: Located, flat: torch.Tensor) -> list[str]:
        joined, edges = flat.numpy().tobytes(), starts_of(located.nbytes)
        try:
            return [joined[start:stop].decode() for start, stop in itertools.pairwise(edges.tolist())]
        except UnicodeDecodeError as error:
            raise DamagedError(
                f"field {self.field.name!r}: a text of this batch is not UTF-8 ({error.reason}); `packer verify` "
                "tells which, `packer repair` packs its shard again"
            ) from None

    def _split_samples(self, located: Located, flat: torch.Tensor) -> list[torch.Tensor]:
        if not len(located):
            return []
        sizes, values = (located.nbytes // self.field.itemsize).tolist(), flat.view(self._dtype)
        # A worker process sends them as one piece of shared memory. Parts made by `split` would share a version
        # counter: writing to one sample would fail the backward pass of another.
        is_shared = flat.is_shared()  # type: ignore[no-untyped-call]
        parts = torch.unsafe_split_with_sizes(values, sizes) if is_shared else split_with_own_storage(values, sizes)
        return [part.view(shape) for part, shape in zip(parts, located.shape.tolist(), strict=True)]


class LastResult:
    """Caches the last result of a function of arrays: the fields of a batch call it with the same ones in a row."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._last = threading.local()

    def __call__(self, *arrays: NDArray[Any] | None) -> Any:
        key = [None if array is None else array.tobytes() for array in arrays]
        if getattr(self._last, "key", None) != key:
            self._last.result = self._function(*arrays)
            self._last.key = key
        return self._last.result


def gather_samples(
    readers: Mapping[str, FieldReader], asked: Asked, allocate: Allocate | Pool | None = None
) -> dict[str, Any]:
    """Return samples (n,) of some fields of one open dataset: field name to values.

    Args:
        allocate: see `read_located`; worker processes do not use it.
    """
    located = [reader.locate(asked) for reader in readers.values()]
    if get_worker_info() is None:
        return read_located(readers, located, allocate)
    # Within a worker process of DataLoader any other memory would be copied once more.
    batch = read_located(readers, located, shared)
    for name, values in batch.items():
        if isinstance(values, list) and readers[name].field.kind != "text":
            batch[name] = SharedTensors(values)  # pickled as one tensor and the places of its parts
    return batch


def read_located(
    readers: Mapping[str, FieldReader], located: Sequence[Located], allocate: Allocate | Pool | None
) -> dict[str, Any]:
    """Return the values of some fields, field name to values, each read by one call.

    Args:
        located: where the samples lie, by field.
        allocate: allocates the memory of each field; a pool is used only where it pays. None for new memory.
    """
    batch = {}
    pool, memory = (allocate, None) if isinstance(allocate, Pool) else (None, allocate)
    for (name, reader), field_located in zip(readers.items(), located, strict=True):
        if pool is not None:
            pays = reader.is_ragged or pool.pays(len(field_located) * reader.sample_bytes)
            memory = pool.allocate if pays else None
        batch[name] = as_images(reader.field, reader.read(field_located, memory))
    return batch


def as_images(field: Field, value: Any) -> Any:
    """Return images with their channels first, as a view: (B, H, W, C) to (B, C, H, W); other values as they are.

    Several views of each image, (B, views, H, W, C), alone or in a dict, and lists of images likewise.
    """
    if field.kind != "image":
        return value
    if isinstance(value, list):
        return [image.permute(2, 0, 1) for image in value]
    if isinstance(value, dict):
        return {name: as_images(field, views) for name, views in value.items()}
    return value.permute(0, 3, 1, 2) if value.ndim == 4 else value.permute(0, 1, 4, 2, 3)
