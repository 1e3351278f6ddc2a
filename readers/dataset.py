"""PackedDataset: names and numbers in, samples and batches out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset

from packer.errors import UsageError
from packer.format import manifest as manifests
from packer.format.names import Names
from packer.format.schema import Field
from packer.remote.store import is_url
from readers.arrays import Allocate, Numbers
from readers.batch import Batch, item_of
from readers.by_shard import ByShard
from readers.checking import CheckedReader, Checker, Digests, checked
from readers.crop import Crop, CropReader, Placing, is_random
from readers.draws import new_visits
from readers.fields import FieldReader, as_images, gathered
from readers.indexing import is_single, sample_number, sample_numbers
from readers.opened import Opened, describe, in_words, open_names
from readers.points import PointSample, PointsReader, Subset
from readers.rows import SampleRows, read_region

if TYPE_CHECKING:
    from packer.remote.mirror import Mirror

Transform = Callable[[Any], Any]

#: Attributes that follow from the path and are not pickled.
_FOUND_BY_PATH = ("manifest", "fields", "_opened", "_by_shard", "_names", "_readers", "_checked", "_process")


class PackedDataset(Dataset[Any]):
    """A packed dataset, for plain indexing, for `torch.utils.data.DataLoader` and for `readers.Loader`.

    Making one reads the manifest and nothing else; the shards are mapped when they are first needed, in whichever
    process that is. Pickles to its path, so any kind of worker can take it.

        ds = PackedDataset("div2k.packed")
        ds[3]; ds[-1]; ds["0003"]                 # one sample: dict of tensors
        ds[[3, 5]]; ds[["a", "b"]]; ds[10:20]     # one batch: dict of tensors, in the order asked
        ds[mask]                                  # array, tensor or mask likewise

    Images come as (C, H, W), batches of them as (B, C, H, W) in channels_last memory; a field that is ragged in its
    first axis as `Ragged` (batch) or (n, ...) (sample); ragged in others as a list of tensors; text as str.
    All tensors are the caller's own and writable.

    Args:
        path: folder of the packed dataset, or its URL as fsspec takes it, such as `s3://bucket/set`. Of a URL the
            manifest is read at once, the names when the first is asked for, and each shard (whole, checked by digest)
            when the first of its samples is; `Loader`, crops, subsets of points and `verify` ask for all shards at
            once. They stay in the cache.
        fields: names of the fields to read, in order, or the name of one; all by default. The others are not touched.
        transform: called once on what is handed out: the dict of one sample, or that of a whole batch. In whichever
            thread reads: with `Loader(threads=n)` by n threads at once, with `threads="auto"` by one.
        crop: reads crops of one size from pictures of different sizes; see `Crop`.
        sample_points: reads so many points of every cloud, chosen at random; see `PointSample`.
        verify: compares every frame with its checksum before it is decoded or copied; a wrong one is a `DamagedError`
            that names field and sample. Where frames say nothing of a sample's shape, since several of its axes are
            ragged, the whole of each shard is compared with its digest when it is first used. Without `verify` damage
            may give an error, or wrong values of the right shape.
        cache: folder that what is behind a URL is fetched into, by one process for all; by default `lmdb-packer` in
            the user's folder of caches.
        cache_bytes: what the datasets in it may take: the least recently used files that no process has open are
            removed. None for no limit.

    Random crops and points are drawn once a visit: a sample that is read twice gives two crops. `Loader` draws them
    from its seed, the epoch and the position in the epoch's order. Plain indexing and DataLoader draw them from torch's
    generator, as torchvision's transforms do; `torch.manual_seed` repeats them.

    Raises:
        UnfinishedError: the conversion was not finished.
        ManifestError: the manifest is wrong.
        DatasetError: there is no packed dataset.
        RemoteError: a file behind a URL cannot be had; also when the first sample is read.
        UsageError: no field of a name in `fields`, or none that can be cropped or sampled like this.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Sequence[str] | None = None,
        transform: Transform | None = None,
        crop: Crop | None = None,
        sample_points: int | PointSample | None = None,
        verify: bool = False,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        self._mirror = _mirror(path, cache, cache_bytes)
        # Absolute, since shards are opened late: the program may have changed its folder by then.
        self.path = Path(path).absolute() if self._mirror is None else self._mirror.folder
        self.transform = transform
        self._chosen = (fields,) if isinstance(fields, str) else None if fields is None else tuple(fields)
        self.crop = crop
        self.sample_points = PointSample(sample_points) if isinstance(sample_points, int) else sample_points
        self.verify = verify
        self._read_manifest()
        _check_parts(self.crop, self.sample_points, self.fields, len(self))

    def _read_manifest(self) -> None:
        self.manifest = manifests.read(self.path) if self._mirror is None else self._mirror.manifest()
        self.fields: dict[str, Field] = _choose(self.manifest.fields, self._chosen, self.path)
        self._names: Names | None = None
        self._forget_opened()

    def _forget_opened(self) -> None:
        """Let go of the shards, to open them when they are needed next.

        A forked child opens its own: threads of its parent may hold locks of what is open here, and not be there to
        let go of them.
        """
        self._process = os.getpid()
        self._opened: Opened | None = None
        self._readers: Mapping[str, FieldReader] | None = None
        self._checked: dict[str, Checker] = {}
        self._by_shard: ByShard | None = None
        # A crop's places are given by the number in the whole dataset, and errors name it.
        in_whole = self._has_parts or self.verify
        if self._mirror is not None and not in_whole and not self._mirror.is_fetched(self.manifest):
            self._by_shard = ByShard(self._mirror, self.manifest, list(self.fields))

    def __len__(self) -> int:
        return self.manifest.samples

    def __repr__(self) -> str:
        place = str(self.path) if self._mirror is None else self._mirror.url
        return f"PackedDataset({place!r}: {len(self):,} samples of {', '.join(self.fields)})"

    @property
    def names(self) -> SampleNames | None:
        """Name of every sample, a sequence that looks them up as they are asked for; None without names."""
        return SampleNames(self) if self.manifest.names else None

    @property
    def classes(self) -> list[str] | None:
        """Return the names of the classes, so that a sample's is `classes[sample["label"]]`; None if nobody knows any.

        They are known of a dataset that was converted with `--label folder`.
        """
        return list(self.manifest.classes) if self.manifest.classes else None

    @property
    def opened(self) -> Opened:
        """The mapped shards; opened by the first call in each process that needs them."""
        if self._process != os.getpid():
            self._forget_opened()
        if self._opened is None:
            lease = None if self._mirror is None else self._mirror.fetch_shards(self.manifest)
            self._opened = Opened(self.path, self.manifest, list(self.fields), lease)
            self._by_shard = None
        return self._opened

    @property
    def readers(self) -> Mapping[str, FieldReader]:
        """What reads each field: whole samples, or crops and subsets of points."""
        if self._process != os.getpid():
            self._forget_opened()
        if self._readers is None:
            readers: Mapping[str, FieldReader] = self.opened.readers
            if self._has_parts:
                describes = partial(describe, self.path, self.manifest)
                readers = _part_readers(self.opened, self.crop, self.sample_points, describes)
            self._readers = checked(readers, self._checkers()) if self.verify else readers
        return self._readers

    @property
    def _has_parts(self) -> bool:
        """Whether crops or points are read instead of whole samples."""
        return self.crop is not None or self.sample_points is not None

    def _checkers(self) -> dict[str, Checker]:
        """Return what checks each field, for as long as the shards are open."""
        if not self._checked:
            digests = Digests(self.opened, self.manifest)
            # Not a method: its readers would hold the dataset, which holds them, and files would stay open for a while.
            words = partial(in_words, self.path, self.manifest)
            self._checked = {name: Checker(self.opened, name, words, digests) for name in self.fields}
        return self._checked

    def set_epoch(self, epoch: int) -> None:
        """Accept the number of an epoch, from 0, for code that tells every dataset.

        It changes nothing: random crops and points differ from visit to visit anyway, see the class.
        """
        if epoch < 0:
            raise UsageError(f"epoch {epoch}: a number from 0 on is expected")

    @property
    def name_table(self) -> Names:
        """Return the table of names; opened when it is first needed.

        Raises:
            DatasetError: the samples have no names.
        """
        if self._names is None:
            lease = None if self._mirror is None else self._mirror.fetch_names(self.manifest)
            self._names = open_names(self.path, self.manifest)
            del lease  # only now: a table that is mapped stays, whatever becomes of its file
        return self._names

    def __getitem__(self, index: Any) -> Any:
        """Return one sample or one batch; see the class.

        Raises:
            SampleIndexError: a number outside the dataset.
            MissingNameError: a name that no sample has.
            DamagedError: what is stored cannot be decoded.
        """
        if is_single(index):
            number = sample_number(index, len(self), self._numbers_of)
            sample = item_of(self.gather(np.array([number])), 0, 1)
            return self._transformed(sample)
        return self._transformed(self.gather(self.numbers(index)))

    def __getitems__(self, indices: Sequence[Any]) -> Batch:
        """A batch for DataLoader and Subset: a sequence of samples that default_collate takes as one."""
        numbers = self.numbers(indices)
        return Batch(self._transformed(self.gather(numbers)), len(numbers))

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def numbers(self, index: Any) -> Numbers:
        """Numbers of the samples that an index of many asks for, (n,) int64."""
        return sample_numbers(index, len(self), self._numbers_of)

    def gather(self, numbers: Numbers, allocate: Allocate | None = None) -> dict[str, Any]:
        """Return the batch of the samples `numbers` (n,), untransformed: field name to values.

        Args:
            numbers: within 0 to len(self) - 1.
            allocate: gives the memory that each field is read into; torch's allocator by default.
        """
        if self._process != os.getpid():
            self._forget_opened()
        by_shard = self._by_shard
        if by_shard is not None:
            if not by_shard.is_whole:
                return by_shard.gather(numbers)
            self._by_shard = None
        visits = new_visits(len(numbers)) if draws_parts(self.crop, self.sample_points) else None
        return gathered(self.readers, numbers, allocate, visits)

    def read(self, index: Any, field: str, rows: slice | None = None, columns: slice | None = None) -> Any:
        """Return a region of one sample of one field, whatever `crop` says; only the frames it lies in are read.

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
        if field not in self.fields:
            raise UsageError(f"{self.path}: no field {field!r} is read; there are {', '.join(self.fields)}")
        number = sample_number(index, len(self), self._numbers_of)
        if self._process != os.getpid():
            self._forget_opened()
        opened, number = (self.opened, number) if self._by_shard is None else self._by_shard.holding(number)
        reader = opened.readers[field]
        checker = self._checkers()[field] if self.verify else None
        if rows is None and columns is None:
            whole_reader = CheckedReader(reader, checker) if checker else reader
            whole = as_images(reader.field, whole_reader.read(whole_reader.locate(np.array([number]))))
            return item_of({field: whole}, 0, 1)[field]
        if checker:
            checker.check_shapes(np.array([number], np.int64))
        check = checker.check if checker else None
        region = read_region(SampleRows(opened.places[field]), number, rows, columns, check)
        return region.permute(2, 0, 1) if reader.field.kind == "image" else region

    def __getstate__(self) -> dict[str, Any]:
        # The manifest is read again on the other side: it may be large, and the path says it all.
        return {name: value for name, value in vars(self).items() if name not in _FOUND_BY_PATH}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._read_manifest()

    def _numbers_of(self, names: Sequence[str]) -> Numbers:
        return self.name_table.numbers(names)

    def _transformed(self, value: Any) -> Any:
        return value if self.transform is None else self.transform(value)


def _mirror(
    path: str | os.PathLike[str], cache: str | os.PathLike[str] | None, cache_bytes: int | None
) -> Mirror | None:
    """The `packer.remote.mirror.Mirror` of a URL; None for a folder."""
    if not is_url(path):
        if cache is not None or cache_bytes is not None:
            raise UsageError(f"{path} is a folder: cache and cache_bytes are for datasets behind a URL")
        return None
    from packer.remote.mirror import Mirror  # here: it is loaded where there is something to fetch

    return Mirror.open(path, cache, cache_bytes)


def _choose(fields: Sequence[Field], chosen: Sequence[str] | None, path: Path) -> dict[str, Field]:
    by_name = {field.name: field for field in fields}
    if chosen is None:
        return by_name
    if not chosen:
        raise UsageError(f"no field is named; {path} has {', '.join(by_name)}")
    for name in chosen:
        if name not in by_name:
            raise UsageError(f"{path} has no field {name!r}; it has {', '.join(by_name)}")
    return {name: by_name[name] for name in chosen}


def draws_parts(crop: Crop | None, points: PointSample | None) -> bool:
    """Whether two visits of a sample may give different parts of it."""
    return points is not None or (crop is not None and is_random(crop))


def _check_parts(crop: Crop | None, points: PointSample | None, fields: Mapping[str, Field], samples: int) -> None:
    """Raise UsageError if a dataset cannot be read like this, as far as its schema tells."""
    if crop is not None:
        if not isinstance(crop, Crop):
            raise UsageError(f'crop {crop!r}: a readers.Crop is expected, such as Crop(size=64, of="hr")')
        crop.check(fields, samples)
    if points is not None:
        if not isinstance(points, PointSample):
            raise UsageError(f"sample_points {points!r}: a number of points or a readers.PointSample is expected")
        points.candidates(fields)


def _part_readers(
    opened: Opened, crop: Crop | None, points: PointSample | None, describe: Callable[[int], str]
) -> dict[str, FieldReader]:
    """Return what reads each field: crops and subsets of points of some, and whole samples of the others.

    Args:
        describe: a sample in words, by its number.

    Raises:
        UsageError: a field would have to be cropped and sampled by points.
    """
    tied = _tied(opened, points) if points else []
    scales = crop.scales if crop else {}
    if set(tied) & set(scales):
        raise UsageError("crop and sample_points do not go together for one field; name others in PointSample's fields")
    rows = {name: SampleRows(opened.places[name]) for name in (*tied, *scales)}
    readers: dict[str, FieldReader] = dict(opened.readers)
    if crop:
        placing = Placing(crop, rows[crop.of], describe)
        readers |= {name: CropReader(rows[name], placing, scale) for name, scale in scales.items()}
    if points:
        subset = Subset(points)
        readers |= {name: PointsReader(rows[name], rows[tied[0]], subset, describe) for name in tied}
    return readers


def _tied(opened: Opened, points: PointSample) -> list[str]:
    """Names of the fields that hold one row a point, first the one that tells how many there are."""
    found = points.candidates({name: reader.field for name, reader in opened.readers.items()})
    if points.fields is not None:
        return found
    return [name for name in found if opened.places[name].has_shapes_of(opened.places[found[0]])]


class SampleNames(Sequence[str]):
    """Names of the samples of a dataset, by number."""

    def __init__(self, dataset: PackedDataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        table = self._dataset.name_table
        if is_single(index):
            return table.name(sample_number(index, len(self), table.numbers))
        return [table.name(i) for i in self._dataset.numbers(index).tolist()]

    def __iter__(self) -> Iterator[str]:
        return map(self._dataset.name_table.name, range(len(self)))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._dataset.name_table.contains(name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        shown = ", ".join(repr(name) for name in self[:3])
        return f"<{len(self):,} names: {shown}{', ...' if len(self) > 3 else ''}>"

    def index(self, value: str, start: int = 0, stop: int | None = None) -> int:
        """Return the number of the sample of a name; ValueError if none has it."""
        if value in self:
            number = int(self._dataset.name_table.numbers([value])[0])
            if start <= number < (len(self) if stop is None else stop):
                return number
        raise ValueError(f"no sample is named {value!r}")
