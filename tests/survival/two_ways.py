"""Reads datasets by machine code and by Python, by index, by `Loader` and DataLoader, whole and in parts: all alike."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from packer.codecs import NAMED
from packer.format import FieldSpec
from packer.writer import DatasetWriter
from readers import Crop, Loader, PackedDataset, PointSample, Ragged, VoxelSample, Windows
from tests.helpers.ways import handled

#: The fields of an item, each as dtype, shape and bytes.
Item = dict[str, Any]
Options = dict[str, Any]


def bits(value: Any) -> Any:
    """Return a value in a form that `==` compares: dtype, shape and bytes, so that NaN equals NaN."""
    if isinstance(value, str):
        return value
    array = value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    return array.dtype.name, array.shape, array.tobytes()


def items_of(batches: Sequence[dict[str, Any]]) -> list[Item]:
    """Return the items of batches, in order."""
    found = []
    for batch in batches:
        parts = {name: value.to_list() if isinstance(value, Ragged) else value for name, value in batch.items()}
        found += [dict(zip(parts, map(bits, one), strict=True)) for one in zip(*parts.values(), strict=True)]
    return found


def _one_by_one(dataset: PackedDataset, numbers: list[int]) -> list[Item]:
    return [{name: bits(value) for name, value in dataset[number].items()} for number in numbers]


def _loaded(dataset: PackedDataset, numbers: list[int], threads: int) -> list[Item]:
    lists = [numbers[at : at + 3] for at in range(0, len(numbers), 3)]
    return items_of(list(Loader(dataset, batch_sampler=lists, threads=threads)))


#: Each reads some items of a dataset, in order.
WAYS: dict[str, Callable[[PackedDataset, list[int]], list[Item]]] = {
    "one by one": _one_by_one,
    "one batch": lambda dataset, numbers: items_of([dataset[numbers]]),
    "Loader": lambda dataset, numbers: _loaded(dataset, numbers, 0),
    "Loader of two threads": lambda dataset, numbers: _loaded(dataset, numbers, 2),
    "DataLoader": lambda dataset, numbers: items_of(list(DataLoader(dataset, batch_size=3, sampler=numbers))),
}


def whole(folder: Path) -> Iterator[tuple[Options, list[int]]]:
    """Yield the options and numbers that read whole samples: all backwards, then the first once more."""
    numbers = [*range(len(PackedDataset(folder)))[::-1], 0]
    yield {"extras": ("number",)}, numbers
    yield {"verify": True}, numbers


def parts(folder: Path) -> Iterator[tuple[Options, list[int]]]:
    """Yield the options that read every field in parts of every kind, and the items that are large enough."""
    dataset = PackedDataset(folder)
    for place, field in enumerate(dataset.fields.values()):
        if field.kind == "text" or not field.shape:
            continue
        chosen: Options = {"fields": field.name, "verify": place % 3 == 0}
        shapes = dataset.shapes(field.name)
        held = np.flatnonzero(shapes.all(axis=1)).tolist()
        if field.kind == "image" and field.shape[2] is not None:
            wide = np.flatnonzero((shapes[:, :2] >= 3).all(axis=1)).tolist()
            yield chosen | {"crop": Crop((3, 2), of=field.name, at="center")}, wide
            yield chosen | {"crop": Crop(2, of=field.name, flips=True)}, wide
        if field.kind == "array" and field.shape[0] is None and None not in field.shape[1:]:
            yield chosen | {"points": PointSample(7, fields=[field.name])}, held
            if field.shape[1:] == (3,):
                yield chosen | {"points": VoxelSample(0.5, "first", of=field.name)}, held
        if field.kind == "array" and None not in field.shape[1:]:
            padded = {"windows": Windows({field.name: [-1, 0, 3]}, stride=2, pad="zero"), "extras": ("number", "step")}
            for windows in (padded, {"windows": Windows({field.name: [0, 1]})}):
                count = len(PackedDataset(folder, **chosen, **windows))
                yield chosen | windows, sorted({*range(0, count, count // 6 + 1)})


def check_all_ways(folder: Path, ways_each: int = 2 * len(WAYS), first: int = 0) -> None:
    """Raise AssertionError if two ways of reading give different items.

    Each way draws random parts in its own order, so these are compared only within one way.

    Args:
        ways_each: the number of ways in which each part is read, by machine code and by Python in turn.
        first: the way that the first part is read in; each part begins with another.
    """
    # Neighbours alternate, so that any few of them read by machine code and by Python.
    ways = [(way, (place + half) % 2 == 0) for half in (0, 1) for place, way in enumerate(WAYS)]
    for turn, (options, numbers) in enumerate((*whole(folder), *parts(folder))):

        def read(dataset: PackedDataset, way: str, by_machine: bool, numbers: list[int] = numbers) -> list[Item]:
            torch.default_generator.manual_seed(5)
            with handled(by_machine):
                return WAYS[way](dataset, numbers)

        dataset = PackedDataset(folder, **options)
        one_by_one = None if dataset._source.draws else read(dataset, "one by one", by_machine=turn % 2 == 1)
        for way, by_machine in [*ways, *ways][(turn + first) % len(ways) :][:ways_each]:
            wanted = read(dataset, way, not by_machine) if one_by_one is None else one_by_one
            assert read(PackedDataset(folder, **options), way, by_machine) == wanted, (way, by_machine, options)
    _check_regions(folder)


def _check_regions(folder: Path) -> None:
    """Raise AssertionError if rows and columns of a sample differ by machine code and by Python."""
    found: list[list[Any]] = [[], []]
    for by_machine, values in enumerate(found):
        dataset = PackedDataset(folder)
        for field in dataset.fields.values():
            if field.kind == "text" or not field.shape:
                continue
            columns = slice(0, 5) if len(field.shape) > 1 else None
            with handled(bool(by_machine)):
                for number in range(0, len(dataset), 2):
                    values.append(bits(dataset.read(number, field.name, rows=slice(1, 30, 2), columns=columns)))
                    values.append(bits(dataset.read(number, field.name, rows=slice(2))))
    assert found[0] == found[1], "regions"


def trial(folder: Path, seed: int, ways_each: int = len(WAYS)) -> str:
    """Write a dataset of random fields with a codec, and read it in all ways; return the name of the codec."""
    rng = np.random.default_rng(seed)
    codec = list(NAMED)[seed % len(NAMED)]
    place = folder / str(seed)
    write(place, codec, rng)
    check_all_ways(place, ways_each)
    shutil.rmtree(place)
    return codec


def fits(codec: str, spec: FieldSpec) -> bool:
    """Return whether a codec fits a field: some begin with a filter for pictures or for floats."""
    return not any(map(spec.misfit, NAMED[codec]))


def write(folder: Path, codec: str, rng: np.random.Generator, least: int = 0) -> None:
    """Write pictures, clips, clouds and text with a codec; fields that it does not fit get zstd.

    Args:
        least: steps of the shortest clip; pictures and clouds have three times as many rows.
    """
    fields = [
        FieldSpec(name="picture", dtype="uint8", kind="image", shape=(None, 24, 3)),
        FieldSpec(name="depth", dtype="uint16", kind="image", shape=(8, 9, 1)),
        FieldSpec(name="clip", dtype="uint8", shape=(None, 12, 10, 3)),
        FieldSpec(name="xyz", dtype="float32", shape=(None, 3)),
        FieldSpec(name="grid", dtype="float64", shape=(int(rng.integers(1, 9)), int(rng.integers(1, 400)))),
        FieldSpec(name="label", dtype="int64", shape=()),
        FieldSpec(name="caption", dtype="uint8", kind="text", shape=(None,)),
    ]
    chosen = {spec.name: codec if fits(codec, spec) else "zstd" for spec in fields}
    with DatasetWriter(folder, fields, codec=chosen, shard_size=int(rng.integers(5_000, 100_000))) as writer:
        for number in range(int(rng.integers(3, 20))):
            steps = int(rng.integers(least, 9))
            shapes = [tuple(3 * steps if axis is None else axis for axis in spec.shape) for spec in fields[:-1]]
            few = int(rng.integers(1, 200))
            sample = {
                spec.name: (rng.integers(0, few, shape) / (8 if "float" in spec.dtype else 1)).astype(spec.dtype)
                for spec, shape in zip(fields[:-1], shapes, strict=True)
            }
            sample["grid"].flat[0] = (-0.0, np.nan, np.inf, -np.inf, 0.5)[number % 5]
            writer.add(sample | {"caption": "größer " * steps}, name=f"s{number}")
