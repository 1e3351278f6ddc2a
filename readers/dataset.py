"""PackedDataset: names and numbers in, samples and batches out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xxhash
from numpy.typing import ArrayLike
from torch.utils.data import Dataset

from packer.codecs import compiled
from packer.errors import MissingNameError, UsageError
from packer.format import MANIFEST, URL_AS_PATH, Constants, Field, Manifest, Names, Numbers, Ranges, starts_of
from packer.format import manifest as manifests
from packer.remote import is_url
from readers.batch import item_of
from readers.crop import Crop
from readers.draws import Visits, draw_visits, visits_of
from readers.fields import NAME, FieldReader, KnownReader, as_images, gather_samples
from readers.gather import Allocate, Pool
from readers.indexing import Chosen, Items, Listed, SampleNames, is_single, resolve_number, resolve_numbers
from readers.opened import CheckedReader, Opened, describe, in_words, open_names
from readers.order import check_epoch
from readers.parts import Parts, with_image
from readers.points import PointSample
from readers.resized import ResizedCrop
from readers.rows import RegionReader
from readers.shards import not_replaced
from readers.transforms import Transform, Transforms
from readers.valid import check_flags, check_read, remark
from readers.voxels import VoxelSample
from readers.windows import Windows

if TYPE_CHECKING:
    from packer.remote import Mirror
    from readers.by_shard import ShardByShard

#: Arguments of earlier versions, and their replacements.
_RENAMED = {
    "transform": "give batch_transform=f, which is called with each batch, or sample_transform=f, with each sample",
    "sample_points": "the argument is called points",
}
#: Attributes that nothing would follow if they were changed.
_FIXED = ("path", "manifest", "fields", "crop", "points", "windows", "split", "samples", "extras", "verify")

#: The field of classes, as `packer convert --label folder` calls it.
LABEL = "label"
#: What `extras` may ask for, besides names.
NUMBER, STEP = "number", "step"


@dataclass
class _Session:
    """Everything that one process has open of a dataset, each part opened when it is first needed.

    It survives neither fork nor pickle: a lock may be held by a parent thread that does not exist in the child.
    """

    process: int = field(default_factory=os.getpid)
    opened: Opened | None = None
    readers: Mapping[str, FieldReader] | None = None
    by_shard: ShardByShard | None = None
    names: Names | None = None
    pool: Pool = field(default_factory=Pool)


class PackedDataset(Dataset[Any]):
    """A packed dataset, for plain indexing, for `torch.utils.data.DataLoader` and for `readers.Loader`.

    Making one reads the manifest and nothing else; the shards are mapped when they are first needed, in the process
    that needs them. It pickles to its path and manifest, so any kind of worker can take it.

        ds = PackedDataset("div2k.packed")
        ds[3]; ds[-1]; ds["0003"]                 # one sample: dict of tensors
        ds[[3, 5]]; ds[["a", "b"]]; ds[10:20]     # one batch: dict of tensors, in the order asked
        ds[mask]                                  # array, tensor or mask likewise

    With `windows` an item is a window (unless `one=True`), with `split` a sample of that split: `len(ds)` counts items,
    and numbers go from 0 to `len(ds) - 1`.

    Images come as (C, H, W), and batches of them as (B, C, H, W) in channels_last memory. A field that is ragged in its
    first axis comes as `Ragged` in a batch, (n, ...) in a sample; one that is ragged in other axes as a list of
    tensors; text as str. All tensors are the caller's own and writable.

    Args:
        path: folder of the packed dataset, or its URL as fsspec takes it, such as `s3://bucket/set`. From a URL the
            manifest is fetched at once, the names when the first name is asked for, and each shard (whole, checked by
            its digest) when one of its samples is asked for. `Loader` asks for those of the next batches, `windows` for
            those of all samples that are read. They stay in the cache. Fields that are cropped or sampled together are
            compared before the first sample is read where all shards are here, else when their samples are read.
        fields: names of the fields to read, in order, or the name of one; all by default. The others are not touched.
        batch_transform: called once with each batch, and with a batch of one for `ds[3]`, which then is the sample in
            what it returns. It runs in the thread that reads: with `Loader(threads=n)` in n threads at once, with
            `threads="auto"` one at a time. A second parameter named `generator` gets a `torch.Generator`, see below.
        sample_transform: called with each sample before samples become a batch, also by `Loader`; torch's
            `default_collate` joins what it returns, unless a `DataLoader` has its own `collate_fn`. Tensors that differ
            in their first axis alone become `Ragged`. `batch_transform` is called afterwards. It costs a Python call
            per sample: where a function can take a whole batch, `batch_transform` is faster. It may have a
            parameter `generator`, too. If it returns a list of mappings, such as several crops, each counts as a sample
            of the batch, which then has more than `batch_size`: as MONAI's `list_data_collate` does it. They lie one
            after another, and `ds[3]` is the list. `extras` are in the sample that it is given: it puts them into what
            it returns. An empty list leaves the sample out. `len(ds)`, numbers, weights of a `Mix` and states of a
            `Loader` count the samples that are read.
        crop: reads crops of one size from images of different sizes; see `Crop`, or `ResizedCrop` for photographs.
        points: reads this many points of every cloud, chosen at random, see `PointSample`; or one point of every
            voxel, see `VoxelSample`.
        windows: reads some steps of episodes, clips or sequences at a time; see `Windows`.
        split: name of the split to read; numbers and names are those of its samples.
        samples: numbers of the samples to read, in any order, each once, or a mask of bool; of the split, if one is
            given. Samples are then counted among these: `ds[0]` is the first of them. They take 8 bytes each.
        extras: what batches also hold: `"name"` and `"number"` of the sample, and with windows the anchor `"step"`.
        verify: compares every frame with its checksum before it is decoded or copied; a wrong one is a `DamagedError`
            that names field and sample. Index arrays are compared with their digest when a shard is first read. Without
            `verify` a damaged frame may give an error, or wrong values of the right shape.
        cache: folder into which a dataset at a URL is fetched, by one process for all; by default `lmdb-packer` in the
            user's folder of caches.
        cache_bytes: limit for all datasets in the cache. Beyond it, the least recently used files that no process has
            open are removed. None for no limit. Of a dataset larger than that, samples asked for by number or name are
            read one shard after another: the last one stays open, and the others may be removed again.
        patience: seconds to wait for a server that has answered before, and for room that other loops have in the
            cache, with a line each minute; ten minutes by default. Then the loop ends with an error, and goes on from
            the state of its Loader.

    Random crops, points and windows (`one=True`) are drawn once a visit: a sample that is read twice gives two crops.
    `Loader` draws them from its seed, the epoch and the position in the epoch's order. Plain indexing and DataLoader
    draw them from torch's generator, as torchvision's transforms do; `torch.manual_seed` repeats them. So it is with
    the `generator` of a transform: that of a sample follows from its visit, that of a batch from the visit of its first
    sample.

    Raises:
        UnfinishedError: the conversion was not finished.
        ManifestError: the manifest is wrong.
        DatasetError: there is no packed dataset.
        RemoteError: a file at a URL cannot be fetched; also when the first sample is read.
        UsageError: there is no such field or split, or the fields cannot be cropped, sampled or read in windows like
            this.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Sequence[str] | None = None,
        *,
        batch_transform: Transform | None = None,
        sample_transform: Transform | None = None,
        crop: Crop | ResizedCrop | None = None,
        points: int | PointSample | VoxelSample | None = None,
        windows: Windows | None = None,
        split: str | None = None,
        samples: ArrayLike | None = None,
        extras: Sequence[str] = (),
        verify: bool = False,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
        patience: float | None = None,
        **others: Any,
    ) -> None:
        for name in others:
            if name not in _RENAMED:
                raise TypeError(f"PackedDataset got an unexpected keyword argument {name!r}")
            raise UsageError(f"PackedDataset takes no {name}: {_RENAMED[name]}")
        check_flags("PackedDataset", verify=verify)
        self._mirror, self.path, self.manifest = _open_manifest(path, cache, cache_bytes, patience)
        self.batch_transform = batch_transform
        self.sample_transform = sample_transform
        self._chosen = (fields,) if isinstance(fields, str) else None if fields is None else tuple(fields)
        self.points = PointSample(points) if isinstance(points, int | np.integer) else points
        self.windows = windows
        self.split = split
        self.extras = (extras,) if isinstance(extras, str) else tuple(extras)
        self.verify = verify
        self.samples = None if samples is None else self._as_numbers(samples)
        self._use_manifest()
        self.crop = with_image(crop, self.fields) if isinstance(crop, Crop | ResizedCrop) else crop
        self._parts = Parts(self.crop, self.points, self.windows)
        self._parts.check(self.fields, self._samples.samples)
        self._check_extras()
        compiled.prepare(field.codec for field in self.fields.values())

    def _use_manifest(self) -> None:
        """Set the attributes that follow from the manifest, here and in every process that unpickles the dataset."""
        self.fields: dict[str, Field] = _choose_fields(self.manifest, self._chosen, self.path)
        # The samples that are read, each of which may have many windows.
        split_items = Items(self.manifest.samples, None if self.split is None else Chosen(self._ranges))
        listed = None if self.samples is None else Listed(split_items.in_whole(self.samples))
        self._samples = split_items if listed is None else Items(self.manifest.samples, listed)
        self._items = self._samples if self.windows is None else None
        self._last_session: _Session | None = None
        limit = None if self._mirror is None else self._mirror.cache.limit
        self._exceeds_cache = limit is not None and self._bytes_fetched() > limit

    def _bytes_fetched(self) -> int:
        """Return the bytes of a dataset at a URL in its cache: the manifest, the shards that hold samples, tables."""
        shards = [shard for shard in self.manifest.shards if shard.samples]
        size = (self.path / MANIFEST).stat().st_size if (self.path / MANIFEST).exists() else 0
        return size + sum(entry.bytes for entry in (*shards, *self.manifest.tables))

    @property
    def _ranges(self) -> Ranges:
        """Return the samples of the split as ranges."""
        assert self.split is not None, "there is a split"
        return self.manifest.split_ranges(self.split)

    def _as_numbers(self, samples: ArrayLike) -> Numbers:
        """Return the samples that the caller chose as numbers, (n,)."""
        count = self.manifest.samples if self.split is None else len(Chosen(self._ranges))

        def no_names(names: Sequence[str]) -> Numbers:
            raise UsageError(f"samples: numbers or a mask are expected, not the name {names[0]!r}; see select()")

        try:
            return resolve_numbers(samples, count, no_names)
        except (IndexError, TypeError) as error:
            raise UsageError(f"samples: {error.args[0]}") from None

    def _check_extras(self) -> None:
        """Raise UsageError if there are no such extras."""
        for extra in self.extras:
            if extra not in (NAME, NUMBER, STEP):
                raise UsageError(f"extras: {extra!r} is not one of {NAME!r}, {NUMBER!r} and {STEP!r}")
            if extra == NAME and self.manifest.names is None:
                raise UsageError("extras: the samples have no names; ask for their numbers")
            if extra == STEP and self.windows is None:
                raise UsageError("extras: 'step' is the anchor step of a window; give windows=Windows(...)")
            if extra in self.fields:
                raise UsageError(f"extras: a field is also called {extra!r}; choose other fields with fields=[...]")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _RENAMED and not hasattr(type(self), name):
            raise UsageError(f"a PackedDataset has no {name}: {_RENAMED[name]}")
        if name in _FIXED and name in vars(self):
            raise UsageError(f"{name} of a PackedDataset cannot be changed; make another one with PackedDataset(...)")
        super().__setattr__(name, value)
        if name in ("batch_transform", "sample_transform"):
            self._transforms = Transforms(vars(self).get("sample_transform"), vars(self).get("batch_transform"))

    def __getstate__(self) -> dict[str, Any]:
        # The manifest goes along: on the other side numbers mean the same samples, whatever became of the folder.
        derived = ("fields", "targets", "_samples", "_items", "_last_session", "_exceeds_cache")
        return {name: value for name, value in vars(self).items() if name not in derived}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self._mirror is not None:
            vars(self)["manifest"] = self._mirror.manifest()  # into the cache that is used here
        self._use_manifest()

    def __len__(self) -> int:
        return len(self.items)

    @property
    def items(self) -> Items:
        """Return which sample each number means; the windows are counted when they are first asked for.

        Raises:
            UsageError: with `one=True`, a sample has no window.
            DamagedError: to count windows, a shard is read that is missing or damaged.
        """
        if self._items is None:
            assert self.windows is not None
            offsets = self.windows.offsets(self.fields)
            numbers = self._samples.in_whole(np.arange(self._samples.samples))
            lengths = {name: np.empty(len(numbers), np.int64) for name in offsets}
            for opened, positions in self._opened_parts(numbers):
                for name in offsets:
                    lengths[name][positions] = opened.places[name].lengths(numbers[positions])
            anchors = self.windows.anchors(offsets, lengths)
            no_windows = np.flatnonzero(anchors.counts == 0)
            if anchors.one and len(no_windows):
                sample = describe(self.path, self.manifest, int(numbers[no_windows[0]]))
                note = f" (one of {len(no_windows):,} such samples)" if len(no_windows) > 1 else ""
                raise UsageError(
                    f"{sample}: no window lies within its steps{note}, but one=True draws one of every sample; give "
                    "pad=, or leave the sample out: PackedDataset(..., samples=numbers)"
                )
            self._items = self._samples.in_windows(anchors)
        return self._items

    def __repr__(self) -> str:
        place = str(self.path) if self._mirror is None else self._mirror.url
        windows = "" if self.windows is None else "windows of "
        return f"PackedDataset({place!r}: {windows}{self._samples.samples:,} samples of {', '.join(self.fields)})"

    @property
    def names(self) -> SampleNames | None:
        """Return the names of all samples, a sequence that looks each up when asked for it; None if there are none."""
        if self.manifest.names is None:
            return None
        return SampleNames(self._samples, self._name_of, self.sample_numbers)

    @property
    def classes(self) -> list[str] | None:
        """Return the names of the classes; that of a sample is `classes[sample["label"]]`. None if there are none.

        Datasets that were converted with `--label folder` have them.
        """
        return list(self.manifest.classes) if self.manifest.classes else None

    @property
    def class_to_idx(self) -> dict[str, int] | None:
        """Return the number of each class by its name, as torchvision's `ImageFolder`; None if there are no classes."""
        return {name: number for number, name in enumerate(self.classes)} if self.classes else None

    @cached_property
    def targets(self) -> list[int] | None:
        """Return the label of every item, as torchvision does; None without a field `label` of one integer a sample."""
        label = self.fields.get(LABEL)
        if label is not None and label.kind == "text":
            remark(
                f"{self.path}: targets is None, since the labels are text; `packer convert --classes {LABEL}` packs "
                "them as the numbers of classes"
            )
        if label is None or label.shape not in ((), (1,)) or np.dtype(label.np_dtype).kind not in "iu":
            return None
        labels: list[int] = self.column(LABEL).flatten().tolist()
        return labels

    @property
    def constants(self) -> Mapping[str, torch.Tensor]:
        """Return the arrays kept once for all samples, such as grids, by name. Each call reads and returns new ones.

        Raises:
            DamagedError: the file was changed after it was written.
        """
        lease = self._fetch_tables()
        with not_replaced(self.path, self.manifest, lease):
            arrays = dict(Constants(self.path, self.manifest.constants))
        del lease
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    @property
    def digest(self) -> str:
        """Return a short text that differs for other items: another schema, other samples, names or windows."""
        manifest = self.manifest
        names = [table.digest for table in (manifest.names, *manifest.more_names) if table is not None]
        described = [[field.spec.in_words for field in manifest.fields], names, self.items.digest]
        return xxhash.xxh3_64_hexdigest(repr(described).encode())

    @property
    def transforms(self) -> Transforms:
        """Return what changes samples and batches; false if there is nothing."""
        return self._transforms

    @property
    def draws(self) -> bool:
        """Return whether two visits of a sample may differ: random parts are read, or a transform gets a generator."""
        return self._parts.draws or self._transforms.draw

    @property
    def asks(self) -> bool:
        """Return whether a function of the caller's says which part of each sample is read."""
        return isinstance(self.crop, Crop) and callable(self.crop.at)

    def set_epoch(self, epoch: int) -> None:
        """Accept the number of an epoch, from 0, for code that calls `set_epoch` of every dataset.

        It changes nothing: random crops and points differ from visit to visit anyway, see the class.
        """
        check_epoch(epoch)

    def __getitem__(self, index: Any) -> Any:
        """Return one sample or one batch; see the class.

        Raises:
            SampleIndexError: a number outside the dataset.
            MissingNameError: a name that no sample has.
            DamagedError: a stored frame cannot be decoded.
        """
        if is_single(index):
            number = resolve_number(index, len(self), self._numbers_of)
            visits = self._new_visits(1)
            seeds = self._transforms.draw_seeds(visits)
            return self._transforms.sample_after(self.gather(np.array([number]), visits=visits), seeds)
        numbers = self.numbers(index)
        visits = self._new_visits(len(numbers))
        batch, seeds = self.gather(numbers, visits=visits), self._transforms.draw_seeds(visits)
        return self._transforms.batch_after(batch, len(numbers), seeds)

    def _new_visits(self, count: int) -> Visits | None:
        """Return new visits, (count,); None if nothing is drawn by them."""
        return draw_visits(count) if self.draws else None

    def __getitems__(self, indices: Sequence[Any]) -> Sequence[Any]:
        """Return a batch for DataLoader and Subset: a sequence of samples that default_collate takes as one."""
        if not reads_batches(self):
            return [self[index] for index in indices]
        numbers = self.numbers(indices)
        # Batches of one size follow one another: each reuses the memory of one that is gone.
        visits = self._new_visits(len(numbers))
        batch = self.gather(numbers, self._session.pool, visits)
        return self._transforms.samples_after(batch, len(numbers), self._transforms.draw_seeds(visits))

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __add__(self, other: Dataset[Any]) -> Dataset[Any]:  # type: ignore[override]  # torch's gives a ConcatDataset
        """Return the samples of this and of another dataset, one after another; see `readers.mix.add_datasets`."""
        from readers.mix import add_datasets  # here: a mix is made of datasets

        return add_datasets(self, other)

    def select(self, index: Any) -> PackedDataset:
        """Return a dataset of some of the samples, which counts them from 0, in the order asked.

            train, valid = ds.select(numbers[100:]), ds.select(numbers[:100])

        Args:
            index: numbers, names, a slice or a mask, as in `ds[...]`. Each sample once.

        Raises:
            UsageError: a sample comes twice, or the items of this dataset are windows.
            SampleIndexError, MissingNameError: as when these samples are read.
        """
        if self.windows is not None and not self.windows.one:
            raise UsageError("select: the items are windows; choose samples with PackedDataset(..., samples=numbers)")
        numbers = self.numbers(index)
        state, crop = self.__getstate__(), self.crop
        state["samples"] = numbers if self.samples is None else self.samples[numbers]
        if isinstance(crop, Crop) and crop.given is not None and crop.given.ndim == 2:
            state["crop"] = replace(crop, at=crop.given[numbers])
            state["_parts"] = Parts(state["crop"], self.points, self.windows)
        other = type(self).__new__(type(self))
        other.__setstate__(state)
        return other

    def numbers(self, index: Any) -> Numbers:
        """Return the numbers of the items that an index of many asks for, (n,) int64.

        Raises:
            SampleIndexError, MissingNameError: as when these items are read.
            UsageError: names are given, and the items are windows.
        """
        return resolve_numbers(index, len(self), self._numbers_of)

    def sample_numbers(self, names: Sequence[str]) -> Numbers:
        """Return the numbers of the samples of some names, (n,), in the split if one is read.

        Raises:
            MissingNameError: no sample has one of the names.
        """
        try:
            numbers = self._samples.in_split(self.name_table.numbers(names))
        except MissingNameError as error:
            raise MissingNameError(f"{self.path}: {error.args[0]}{self._name_shown()}") from None
        if len(numbers) and numbers.min() < 0:
            place = "among the chosen samples" if self.samples is not None else f"in the split {self.split!r}"
            missing = names[int(numbers.argmin())]
            raise MissingNameError(f"{self.path}: {missing!r} is not {place}{self._name_shown()}")
        return numbers

    def _name_shown(self) -> str:
        """Return a name that is there in words, for a message about one that is not."""
        names = self.names
        return f"; the first name is {names[0]!r}" if names else ""

    def _name_of(self, number: int) -> str:
        return self.name_table.name(number)

    def _numbers_of(self, names: Sequence[str]) -> Numbers:
        if self.windows is not None and not self.windows.one:
            raise UsageError(
                f"{self.path}: a name means a sample, which has many windows: ask for windows by number, or for some "
                "steps of a sample by ds.read(name, field, rows=slice(start, stop))"
            )
        try:
            return self.sample_numbers(names)
        except MissingNameError:
            if field := next(filter(self.fields.__contains__, names), None):
                raise MissingNameError(
                    f"no sample is named {field!r}, but a field is: index a sample or a batch first, as in "
                    f"ds[3][{field!r}]"
                ) from None
            raise

    def gather(
        self, numbers: Numbers, allocate: Allocate | Pool | None = None, visits: Visits | None = None
    ) -> dict[str, Any]:
        """Return the batch of the items `numbers` (n,), untransformed: field name to values.

        Args:
            numbers: within 0 to len(self) - 1.
            allocate: allocates the memory of each field; a `Pool` is used only where reuse pays. New memory by default.
            visits: of the items, (n,); needed if random parts are read.

        Raises:
            DamagedError: a stored frame cannot be decoded.
            RemoteError: a shard at a URL cannot be fetched.
        """
        samples, anchors = self.items.resolve(numbers, visits)
        if self.exceeds_cache:
            return self._by_shard.gather(samples, self.make_readers, None, allocate, visits, anchors)
        return gather_samples(self.readers, samples, allocate, visits, anchors)

    def read(self, index: Any, field: str, rows: slice | None = None, columns: slice | None = None) -> Any:
        """Return a region of one sample of one field, whatever `crop` and `windows` say.

        Only the frames that it lies in are read.

            ds.read(3, "hr", rows=slice(100, 164), columns=slice(0, 64))      # (C, 64, 64)
            ds.read("scan", "xyz", rows=slice(0, 1000))                       # (1000, 3)

        Args:
            index: number or name of the sample.
            rows: of the first axis; all by default. A run of points of a cloud.
            columns: of the second axis; all by default.

        Raises:
            UsageError: no such field, or it has no such axes.
            SampleIndexError, MissingNameError, DamagedError: as when the whole sample is read.
        """
        check_read(str(self.path), [field], self.fields)
        item = resolve_number(index, self._samples.samples, self.sample_numbers)
        (number,) = self._samples.in_whole(np.array([item])).tolist()
        parts = self._opened_parts(np.array([number]))  # kept until the end, and with it the shard
        opened, _ = next(parts)
        reader: FieldReader = opened.readers[field]
        if rows is not None or columns is not None:
            reader = RegionReader(opened.places[field], rows, columns)
        reader = self._with_checks(reader, opened)
        values = as_images(reader.field, reader.read(reader.locate(np.array([number]))))
        return item_of({field: values}, 0, 1)[field]

    def shapes(self, field: str) -> Numbers:
        """Return the shape of every sample of one field as it is stored, (samples, axes) int64: (H, W, C) of an image.

        Of the samples of the split, if one is read; whatever `crop` and `windows` say.

        Raises:
            UsageError: no such field, or one of text.
        """
        if field not in self.fields or self.fields[field].kind == "text":
            raise UsageError(
                f"{self.path}: no field {field!r} with shapes is read; fields are {', '.join(self.fields)}"
            )
        samples = self._samples.in_whole(np.arange(self._samples.samples))
        shapes = np.empty((len(samples), len(self.fields[field].shape)), np.int64)
        for opened, positions in self._opened_parts(samples):
            shapes[positions] = opened.places[field].locate(samples[positions]).shape
        return shapes

    def column(self, field: str) -> Any:
        """Return the values of one field of all items, read in one go; transforms are not called.

            rarity = 1 / torch.bincount(ds.column("label"))

        Of the samples of the split, and of those chosen; with windows, of every window. Random crops and points are
        those of `Loader(ds)` in its first epoch.

        Returns:
            What a batch of all items holds: a tensor (n, ...), a `Ragged`, or a list. Of images (n, C, H, W).

        Raises:
            UsageError: no such field or extra is read.
            DamagedError: a stored frame cannot be decoded.
        """
        check_read(str(self.path), [field], [*self.fields, *self.extras])
        numbers = np.arange(len(self))
        visits = visits_of(0, 0, numbers) if self.draws else None
        samples, anchors = self.items.resolve(numbers, visits)
        if self.exceeds_cache:
            return self._by_shard.gather(samples, self.make_readers, [field], None, visits, anchors)[field]
        reader = self.make_readers(self.opened, 0)[field]  # which may keep what it read of other fields, and goes
        return gather_samples({field: reader}, samples, None, visits, anchors)[field]

    # ------------------------------------------------------------ what is open

    @property
    def _session(self) -> _Session:
        """Return what this process has open."""
        session = self._last_session
        if session is None or session.process != os.getpid():
            session = self._last_session = _Session()
        return session

    @property
    def opened(self) -> Opened:
        """Return the shards and their readers; the first call in each process maps those that are here."""
        session = self._session
        if session.opened is None:
            session.opened = Opened(self.path, self.manifest, list(self.fields), self._mirror, self.extras)
        return session.opened

    @property
    def readers(self) -> Mapping[str, FieldReader]:
        """Return the reader of each field, of whole samples or of parts of them."""
        session = self._session
        if session.readers is None:
            opened = self.opened
            # What is not here is not fetched to be compared, but for the first shard, if points of several fields are.
            session.readers = self.make_readers(opened, None if opened.shards.are_mapped else 0)
        return session.readers

    def make_readers(self, opened: Opened, shard: int | None = None) -> Mapping[str, FieldReader]:
        """Return a reader of each field, of whole samples or of parts of them.

        Args:
            shard: the only one whose samples are compared before they are read; by default all are.

        Raises:
            As `Parts.readers`.
        """
        # Not a bound method: dataset and readers would refer to each other, and files stay open for a while.
        describe_sample = partial(describe, self.path, self.manifest)
        compared = None if shard is None else np.arange(*starts_of(opened.shards.samples)[shard : shard + 2])
        parts = self._parts.readers(self.fields, opened.places, self._samples, describe_sample, compared)
        checked = {name: self._with_checks(reader, opened) for name, reader in {**opened.readers, **parts}.items()}
        return {**checked, **self._number_readers()}

    @property
    def mirror(self) -> Mirror | None:
        """Return what fetches a dataset at a URL; None for a folder."""
        return self._mirror

    @property
    def exceeds_cache(self) -> bool:
        """Return whether the dataset is at a URL, and larger than its cache may be."""
        return self._exceeds_cache

    @property
    def _by_shard(self) -> ShardByShard:
        """Return what reads samples by number where the dataset is larger than its cache."""
        from readers.by_shard import ShardByShard  # here: it is loaded where there is something to fetch

        session = self._session
        if session.by_shard is None:
            assert self._mirror is not None, "a folder has no cache"
            session.by_shard = ShardByShard(self._mirror, self.open_alone())
        return session.by_shard

    def _opened_parts(self, samples: Numbers) -> Iterator[tuple[Opened, Numbers]]:
        """Yield what is open, and the positions (m,) of the samples that can be read: of all, or shard after shard.

        Args:
            samples: numbers in the whole dataset, (n,).
        """
        if not self.exceeds_cache:
            yield self.opened, np.arange(len(samples))
            return
        for _, positions in self._by_shard.parts(samples):
            yield self._by_shard.opened, positions

    @property
    def is_open(self) -> bool:
        """Return whether all shards are mapped."""
        opened = self._session.opened
        return opened is not None and opened.shards.are_mapped

    def open_alone(self) -> Opened:
        """Return what opens shards one by one, and closes them again; their files are in the folder meanwhile."""
        return Opened(self.path, self.manifest, list(self.fields), extras=self.extras, closes=True)

    def _number_readers(self) -> dict[str, FieldReader]:
        """Return the readers of the extras `number` and `step`."""
        items = self._samples
        values: dict[str, Callable[..., Any]] = {
            NUMBER: lambda numbers, visits, anchors: items.in_split(numbers),
            STEP: lambda numbers, visits, anchors: anchors,
        }
        functions = {extra: values[extra] for extra in self.extras if extra != NAME}
        return {extra: KnownReader(Field(name=extra, dtype="int64"), function) for extra, function in functions.items()}

    def _with_checks(self, reader: FieldReader, opened: Opened) -> FieldReader:
        """Return a reader that compares frames with their checksums first, if `verify` says so."""
        name = reader.field.name
        if not self.verify or name not in self.fields:
            return reader
        return CheckedReader(reader, opened.places[name], partial(in_words, self.path, self.manifest))

    @property
    def name_table(self) -> Names:
        """Return the table of names; opened when it is first needed.

        Raises:
            DatasetError: the samples have no names.
        """
        session = self._session
        if session.names is None:
            lease = self._fetch_tables()
            with not_replaced(self.path, self.manifest, lease):
                names = open_names(self.path, self.manifest)
            session.names = names
            del lease  # only now: a table that is mapped stays, whatever becomes of its file
        return session.names

    def _fetch_tables(self) -> object:
        """Fetch the files next to the shards if they are at a URL; the object returned keeps them in the cache."""
        from packer.remote import fetch_tables  # here: it is loaded where there is something to fetch

        return None if self._mirror is None else fetch_tables(self._mirror, self.manifest)


def reads_batches(dataset: Any) -> bool:
    """Return whether this is a PackedDataset with its own `__getitem__`, not a subclass's that batches would bypass."""
    return isinstance(dataset, PackedDataset) and type(dataset).__getitem__ is PackedDataset.__getitem__


def _open_manifest(
    path: str | os.PathLike[str],
    cache: str | os.PathLike[str] | None,
    cache_bytes: int | None,
    patience: float | None,
) -> tuple[Mirror | None, Path, Manifest]:
    """Return the `packer.remote.mirror.Mirror` of a URL, None for a folder; the folder to read, and its manifest."""
    if not is_url(path):
        if not isinstance(path, (str, os.PathLike)):
            raise UsageError(f"{path!r}: the folder or URL of one dataset is expected")
        if URL_AS_PATH.match(str(path)):
            raise UsageError(f"{path}: give a URL as text: as a Path it has lost one of its slashes")
        if cache is not None or cache_bytes is not None or patience is not None:
            raise UsageError(f"{path} is a folder: cache, cache_bytes and patience are for datasets at a URL")
        # Absolute, since shards are opened late: the program may have changed its folder by then.
        folder = Path(path).absolute()
        return None, folder, manifests.read(folder)
    from packer.remote import Mirror  # here: it is loaded where there is something to fetch

    mirror, manifest, lease = Mirror.open(path, cache, cache_bytes, patience)
    lease.close()  # at once, and not when all that refers to it is gone: nothing else could be removed
    return mirror, mirror.folder, manifest


def _choose_fields(manifest: Manifest, chosen: Sequence[str] | None, path: Path) -> dict[str, Field]:
    if chosen is None:
        return {field.name: field for field in manifest.fields}
    if not chosen:
        raise UsageError(f"no field is named; {path} has {', '.join(field.name for field in manifest.fields)}")
    return {name: manifest.field(name) for name in chosen}
