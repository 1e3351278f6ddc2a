"""Reads damaged datasets in forked children: none may die, hang, or exceed a memory limit. Linux only."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from packer.codecs import compiled
from packer.errors import PackerError, UsageError
from packer.verify import verify
from readers import Crop, Loader, PackedDataset, PointSample, Ragged, VoxelSample, Windows
from soaking import in_child
from soaking.mutations import mutate

#: Limits of a child: seconds, and bytes of memory beyond those of the fork.
_MOST_SECONDS, _MOST_BYTES = 30, 2**30
#: Samples read one by one, and batches read in order, at most.
_MOST_READ = 40


def trial(folder: Path, seed: int) -> str:
    """Read a damaged dataset; return the damage, and whether one of our errors refused some of it."""
    loops = compiled.loading.load()  # once, for all children
    place = folder / str(seed)
    damage = mutate(place, seed)

    def read() -> str:
        # Every other dataset is decoded by machine code, the rest frame by frame.
        compiled.loading.found, compiled.loading.seconds = (loops if seed % 2 else None), 0.0
        return read_all_ways(place, parts=seed % 5 == 0)

    try:
        return f"{damage.split()[0]}: {in_child(read, _MOST_SECONDS, _MOST_BYTES)}"
    except AssertionError as error:
        raise AssertionError(f"{damage}: {error}") from None
    finally:
        shutil.rmtree(place)


def read_all_ways(folder: Path, parts: bool = True) -> str:
    """Read all of a dataset in every way; return `right`, or `refused` if one of our errors said why not.

    Args:
        parts: parts of samples too (crops, points, voxels, windows, regions), which takes as long as all else.

    Raises:
        AssertionError: another error was raised, or a batch does not have the shape of the schema.
    """
    try:
        dataset, checked = PackedDataset(folder), PackedDataset(folder, verify=True)
    except PackerError:
        return "refused"
    ways: list[Callable[[], object]] = [
        lambda: verify(folder),
        lambda: _check_batch(dataset[:], dataset, len(dataset)),
        lambda: _each(lambda number: dataset[number], range(0, _read(dataset), 3)),
        lambda: _loaded(dataset, threads=0, shuffle=True),
        lambda: _loaded(dataset, threads=1, shuffle="block"),
        lambda: _loaded(checked, threads=0, shuffle=False),
        lambda: _names(dataset),
    ]
    if parts:
        ways += [lambda: _each(lambda part: _cut(folder, part), _parts(folder)), lambda: _regions(checked)]
    refused = 0
    for way in ways:
        try:
            way()
        except PackerError:
            refused += 1
    return "refused" if refused else "right"


def _each(read: Callable[[Any], object], items: Iterable[Any]) -> None:
    """Read item by item, also after an item that cannot be read; raise the last error."""
    wrong = None
    for item in items:
        try:
            read(item)
        except PackerError as error:
            wrong = error
    if wrong:
        raise wrong


def _read(dataset: PackedDataset) -> int:
    return min(len(dataset), _MOST_READ)


def _check_batch(batch: dict[str, Any], dataset: PackedDataset, count: int) -> None:
    """Check that a batch, damaged or not, has the shapes of the schema."""
    for name, field in dataset.fields.items():
        value = batch[name]
        _check_count(name, value, count)
        if isinstance(value, torch.Tensor):
            assert value[0].numel() == field.fixed_bytes // field.itemsize, f"{name} has shape {value.shape}"


def _check_count(name: str, value: Any, count: int) -> None:
    found = len(value.offsets) - 1 if isinstance(value, Ragged) else len(value)
    assert found == count, f"{name} has {found} samples"


def _loaded(dataset: PackedDataset, threads: int, shuffle: bool | str) -> None:
    loader = Loader(dataset, 4, shuffle=shuffle, threads=threads)
    left = len(dataset)
    for batch in itertools.islice(loader, _MOST_READ):
        _check_batch(batch, dataset, min(4, left))
        left -= 4


def _parts(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the options that read every field in parts: crops, some points or voxels of a cloud, windows of steps."""
    for number, field in enumerate(PackedDataset(folder).fields.values()):
        chosen: dict[str, Any] = {"fields": field.name, "verify": number % 3 == 0}
        if field.kind == "image" and None not in field.shape[2:]:
            yield chosen | {"crop": Crop(1, of=field.name)}
        if field.kind == "array" and field.shape[:1] == (None,) and None not in field.shape[1:]:
            yield chosen | {"points": PointSample(7, fields=[field.name])}
            if field.shape[1:] == (3,):
                yield chosen | {"points": VoxelSample(0.5, of=field.name)}
        if field.kind == "array" and field.shape and None not in field.shape[1:]:
            # With and without steps beyond the ends of a sample.
            windows = Windows({field.name: [-1, 0, 3]}, stride=2, pad="zero" if number % 2 else None)
            yield chosen | {"windows": windows, "extras": ["step"]}


def _cut(folder: Path, part: dict[str, Any]) -> None:
    """Read some samples one by one, then the readable ones as a batch."""
    dataset, sound = PackedDataset(folder, **part), []

    def read(number: int) -> None:
        with suppress(UsageError):  # no points, or pixels, to choose from
            dataset[number]
            sound.append(number)

    try:
        _each(read, range(0, _read(dataset), 2))
    finally:
        for name, value in dataset[sound].items():
            _check_count(name, value, len(sound))


def _regions(dataset: PackedDataset) -> None:
    """Read some rows and columns of every second sample."""

    def read(item: tuple[Any, int]) -> None:
        field, number = item
        columns = slice(0, 5) if len(field.shape) > 1 else None
        dataset.read(number, field.name, rows=slice(1, 30, 2), columns=columns)
        dataset.read(number, field.name, rows=slice(0, 2))

    fields = [field for field in dataset.fields.values() if field.kind != "text" and field.shape]
    _each(read, itertools.product(fields, range(0, _read(dataset), 2)))


def _names(dataset: PackedDataset) -> None:
    names = dataset.names
    if names is None:
        return
    for number in range(_read(dataset)):
        name = names[number]
        assert isinstance(name, str)
        if name in names:
            dataset.numbers([name])
