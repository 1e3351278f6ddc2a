"""PackedDataset: names and numbers in, samples and batches out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch.utils.data import Dataset

from packer.codecs import compiled
from packer.errors import MissingNameError, UsageError
from packer.format import URL_AS_PATH, Constants, Field, Manifest, Numbers
from packer.format import manifest as manifests
from packer.remote import is_url
from readers.cast import check_cast
from readers.crop import Crop
from readers.draws import Asked, Words, draw_visits
from readers.fields import NAME, FieldReader, as_images
from readers.gather import Pool
from readers.indexing import Chosen, SampleNames, is_single, resolve_number, resolve_numbers
from readers.order import check_epoch
from readers.parts import Parts, with_box_format, with_image
from readers.points import PointSample
from readers.resized import ResizedCrop
from readers.rows import RegionReader
from readers.samples import item_of
from readers.shards import not_replaced
from readers.source import NUMBER, STEP, Source
from readers.transforms import Transform, Transforms
from readers.valid import check_flags, check_read, remark
from readers.voxels import VoxelSample
from readers.windows import Windows

if TYPE_CHECKING:
    from packer.remote import Mirror

#: Arguments of earlier versions, and their replacements.
_RENAMED = {
    "transform": "give batch_transform=f, which is called with each batch, or sample_transform=f, with each sample",
    "sample_points": "the argument is called points",
}
#: Attributes that nothing would follow if they were changed.
_FIXED = ("path", "manifest", "fields", "crop", "points", "windows", "split", "samples", "extras", "cast", "verify")

#: The field of classes, as `packer convert --label folder` calls it.
LABEL = "label"


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
        cast: by field, the dtype in which it is read, of torch or numpy or by name: `cast={"token": "int64"}`. It holds
            all values; floats may be rounded. `ds.fields` stay as they are stored.
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
        cast: Mapping[str, Any] | None = None,
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
        self.fields: dict[str, Field] = _choose_fields(self.manifest, self._chosen, self.path)
        if isinstance(crop, Crop | ResizedCrop):
            crop = with_box_format(with_image(crop, self.fields), self.fields, self.manifest.origin)
        self.crop = crop
        self.cast = check_cast(cast or {}, self.fields)
        self._source = self._make_source()
        self._parts.check(self.fields, len(self._source.samples))
        self._check_extras()
        compiled.prepare(field.codec for field in self.fields.values())

    @property
    def _parts(self) -> Parts:
        return Parts(self.crop, self.points, self.windows)

    def _make_source(self) -> Source:
        """Return what is read, here and in every process that unpickles the dataset."""
        return Source(
            self._mirror,
            self.path,
            self.manifest,
            self.fields,
            self._parts,
            self._transforms,
            split=self.split,
            listed=self.samples,
            extras=self.extras,
            verify=self.verify,
            cast=self.cast,
        )

    def _as_numbers(self, samples: ArrayLike) -> Numbers:
        """Return the samples that the caller chose as numbers, (n,)."""
        count = self.manifest.samples
        if self.split is not None:
            count = len(Chosen(self.manifest.split_ranges(self.split)))

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
            if "_source" in vars(self):
                self._source.transforms = self._transforms

    def __getstate__(self) -> dict[str, Any]:
        # The manifest goes along: on the other side numbers mean the same samples, whatever became of the folder.
        derived = ("fields", "targets", "_source")
        return {name: value for name, value in vars(self).items() if name not in derived}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self._mirror is not None:
            vars(self)["manifest"] = self._mirror.manifest()  # into the cache that is used here
        self.fields = _choose_fields(self.manifest, self._chosen, self.path)
        self._source = self._make_source()

    def __len__(self) -> int:
        return len(self._source.items)

    def __repr__(self) -> str:
        return repr(self._source)

    @property
    def names(self) -> SampleNames | None:
        """Return the names of all samples, a sequence that looks each up when asked for it; None if there are none."""
        if self.manifest.names is None:
            return None
        return SampleNames(self._source.samples, self._source.name_of, self._source.sample_numbers)

    @property
    def classes(self) -> list[str] | None:
        """Return the names of the classes; that of a sample is `classes[sample["label"]]`, those of boxes are numbered
        by `sample["labels"]`. None if there are none.

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
        lease = self._source.fetch_tables()
        with not_replaced(self.path, self.manifest, lease):
            arrays = dict(Constants(self.path, self.manifest.constants))
        del lease
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

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
            return self._transforms.sample_after(*self._gather(np.array([number])))
        numbers = self.numbers(index)
        batch, seeds = self._gather(numbers)
        return self._transforms.batch_after(batch, len(numbers), seeds)

    def __getitems__(self, indices: Sequence[Any]) -> Sequence[Any]:
        """Return a batch for DataLoader and Subset: a sequence of samples that default_collate takes as one."""
        if not reads_batches(self):
            return [self[index] for index in indices]
        numbers = self.numbers(indices)
        # Batches of one size follow one another: each reuses the memory of one that is gone.
        batch, seeds = self._gather(numbers, self._source.session.pool)
        return self._transforms.samples_after(batch, len(numbers), seeds)

    def _gather(self, numbers: Numbers, pool: Pool | None = None) -> tuple[dict[str, Any], Words | None]:
        """Return the batch of the items `numbers` (n,), untransformed, and what its transforms draw from."""
        visits = draw_visits(len(numbers)) if self._source.draws else None
        return self._source.gather(numbers, visits, pool), self._transforms.draw_seeds(visits)

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
        if isinstance(crop, Crop) and crop._given is not None and crop._given.ndim == 2:
            state["crop"] = replace(crop, at=crop._given[numbers])
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

    def _numbers_of(self, names: Sequence[str]) -> Numbers:
        if self.windows is not None and not self.windows.one:
            raise UsageError(
                f"{self.path}: a name means a sample, which has many windows: ask for windows by number, or for some "
                "steps of a sample by ds.read(name, field, rows=slice(start, stop))"
            )
        try:
            return self._source.sample_numbers(names)
        except MissingNameError:
            if field := next(filter(self.fields.__contains__, names), None):
                raise MissingNameError(
                    f"no sample is named {field!r}, but a field is: index a sample or a batch first, as in "
                    f"ds[3][{field!r}]"
                ) from None
            raise

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
        item = resolve_number(index, len(self._source.samples), self._source.sample_numbers)
        (number,) = self._source.samples.in_whole(np.array([item])).tolist()
        parts = self._source.opened_parts(np.array([number]))  # kept until the end, and with it the shard
        opened, _ = next(parts)
        reader: FieldReader = opened.readers[field]
        if rows is not None or columns is not None:
            reader = RegionReader(opened.places[field], rows, columns)
        reader = self._source.as_asked(reader, opened)
        values = as_images(reader.field, reader.read(reader.locate(Asked(np.array([number])))))
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
        samples = self._source.samples.in_whole(np.arange(len(self._source.samples)))
        shapes = np.empty((len(samples), len(self.fields[field].shape)), np.int64)
        for opened, positions in self._source.opened_parts(samples):
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
        return self._source.column(field)


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
