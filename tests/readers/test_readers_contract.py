"""What every reader of a field keeps, whatever it reads, however that is stored: `read(locate(n))` is numpy's slice.

In any memory that it is given, for any part of what was located, in any order; and what it says of bytes is true.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fields import any_field, any_value, same
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from ways import handled

from packer.format import Field, Located
from readers import Crop, Mix, PackedDataset, PointSample, Ragged, ResizedCrop, VoxelSample, Windows
from readers.draws import Asked, Visits
from readers.fields import FieldReader
from readers.gather import Pool, fresh, shared
from readers.rows import RegionReader
from readers.source import source_of

Values = list[NDArray[Any]]


@dataclass
class Case:
    """A reader and what it is to give.

    Attributes:
        numbers: of the samples that it can read.
        wanted: gives what is to be read of the sample at a place in `numbers`; None if any rows of it will do.
        anchors: of each of these, if windows are read.
    """

    dataset: PackedDataset | Mix
    reader: FieldReader
    numbers: NDArray[np.int64]
    wanted: Callable[[int], NDArray[Any]] | None
    anchors: NDArray[np.int64] | None = None


def whole(path: Path, field: Field, values: Values, **options: Any) -> Case:
    dataset = PackedDataset(path, **options)
    return Case(dataset, source_of(dataset).readers["x"], np.arange(len(values)), values.__getitem__)


def mixed(path: Path, field: Field, values: Values, **options: Any) -> Case:
    dataset = Mix({PackedDataset(path, **options): 1, PackedDataset(path, **options): 2})
    twice = values + values
    return Case(dataset, source_of(dataset).readers["x"], np.arange(len(twice)), twice.__getitem__)


def number(path: Path, field: Field, values: Values, **options: Any) -> Case:
    dataset = PackedDataset(path, extras=("number",), **options)
    return Case(dataset, source_of(dataset).readers["number"], np.arange(len(values)), np.int64)  # type: ignore[arg-type]


def name(path: Path, field: Field, values: Values, **options: Any) -> Case:
    dataset = PackedDataset(path, extras=("name",), **options)
    names = [np.frombuffer(f"n{at}".encode(), np.uint8) for at in range(len(values))]
    return Case(dataset, source_of(dataset).readers["name"], np.arange(len(values)), names.__getitem__)


def crop(path: Path, field: Field, values: Values, **options: Any) -> Case:
    axis = int(len(field.shape) == 4)
    assume(None not in field.shape[:axis] + field.shape[axis + 2 :])
    height, width = np.min([value.shape[axis : axis + 2] for value in values], axis=0).tolist()
    assume(height and width)
    rows, columns = slice(height // 3, height // 3 + (height + 1) // 2), slice(width // 2, width)
    size = rows.stop - rows.start, columns.stop - columns.start
    dataset = PackedDataset(path, crop=Crop(size, "x", at=(rows.start, columns.start)), **options)
    before = (slice(None),) * axis
    reader = source_of(dataset).readers["x"]
    return Case(dataset, reader, np.arange(len(values)), lambda at: values[at][(*before, rows, columns)])


def resized(path: Path, field: Field, values: Values, **options: Any) -> Case:
    dataset = PackedDataset(path, crop=_MIDDLE, **options)
    return Case(
        dataset, source_of(dataset).readers["x"], np.arange(len(values)), lambda place: middle_of(values[place])
    )


#: A crop that is the middle of images, as `middle_of` gives it.
_MIDDLE = ResizedCrop((3, 4), "x", at="center", short=5)


def middle_of(values: NDArray[Any]) -> NDArray[Any]:
    image = torch.from_numpy(values).permute(2, 0, 1)[None]
    sides = [5 * side // min(image.shape[2:]) for side in image.shape[2:]]
    whole = torch.nn.functional.interpolate(image, sides, mode="bilinear", antialias=True)[0].permute(1, 2, 0)
    top, left = round((sides[0] - 3) / 2), round((sides[1] - 4) / 2)
    return whole[top : top + 3, left : left + 4].numpy()


def resized_windows(path: Path, field: Field, values: Values, **options: Any) -> Case:
    case = windows(path, field, values)
    dataset = PackedDataset(path, crop=_MIDDLE, windows=Windows({"x": [2, -1, 0]}, pad="zero"), **options)
    give, reader = case.wanted, source_of(dataset).readers["x"]
    assert give is not None
    return Case(dataset, reader, case.numbers, lambda place: np.stack(list(map(middle_of, give(place)))), case.anchors)


def windows(path: Path, field: Field, values: Values, **options: Any) -> Case:
    numbers = np.flatnonzero([len(value) for value in values])
    assume(len(numbers))
    offsets, zero = np.array([2, -1, 0]), bool(field.shape[-1])
    dataset = PackedDataset(path, windows=Windows({"x": offsets}, pad="zero" if zero else "edge"), **options)
    anchors = np.array([at % len(values[at]) for at in numbers.tolist()], np.int64)

    def wanted(place: int) -> NDArray[Any]:
        value, steps = values[numbers[place]], anchors[place] + offsets
        window: NDArray[Any] = value[steps.clip(0, len(value) - 1)]
        if zero:
            window[(steps < 0) | (steps >= len(value))] = 0
        return window

    return Case(dataset, source_of(dataset).readers["x"], numbers, wanted, anchors)


def points(path: Path, field: Field, values: Values, **options: Any) -> Case:
    numbers = np.flatnonzero([len(value) for value in values])
    assume(len(numbers))
    dataset = PackedDataset(path, points=PointSample(4), **options)
    return Case(dataset, source_of(dataset).readers["x"], numbers, None)


def voxels(path: Path, field: Field, values: Values, **options: Any) -> Case:
    dataset = PackedDataset(path, points=VoxelSample(50, choose="first", of="x"), **options)

    def wanted(place: int) -> NDArray[Any]:
        cells = np.floor(values[place][:, :3].astype(np.float64) / 50)
        return values[place][np.sort(np.unique(cells, axis=0, return_index=True)[1])]

    return Case(dataset, source_of(dataset).readers["x"], np.arange(len(values)), wanted)


def boxes(path: Path, field: Field, values: Values, **options: Any) -> Case:
    """The middle of `IMAGE` is 10 x 12 pixels at row 5 and column 9; boxes are clipped to it."""
    dataset = PackedDataset(path, crop=Crop((10, 12), "image", at="center", boxes="x", box_format="xyxy"), **options)

    def wanted(place: int) -> NDArray[Any]:
        edges = (values[place].astype(np.int64) - [9, 5, 9, 5]).clip(0, [12, 10, 12, 10])
        kept: NDArray[Any] = edges[(edges[:, 2:] > edges[:, :2]).all(axis=1)].astype(field.np_dtype)
        return kept

    return Case(dataset, source_of(dataset).readers["x"], np.arange(len(values)), wanted)


#: What lies beside the boxes.
IMAGE = np.zeros((20, 30, 1), np.uint8)


def region(path: Path, field: Field, values: Values, **options: Any) -> Case:
    rng = np.random.default_rng([len(values), values[-1].size])
    rows, columns = any_slice(rng), any_slice(rng) if len(field.shape) > 1 else None
    dataset = PackedDataset(path)
    reader = RegionReader(source_of(dataset).opened.places["x"], rows, columns)
    parts = tuple(part or slice(None) for part in (rows, columns)[: len(field.shape)])
    return Case(dataset, reader, np.array([len(values) - 1]), lambda _: values[-1][parts])


def any_slice(rng: np.random.Generator) -> slice | None:
    """Any rows or columns, from the beginning or the end, some of them or none; None for all."""
    start, stop, step = (None if rng.random() < 0.2 else int(n) for n in (*rng.integers(-9, 10, 2), rng.integers(1, 4)))
    return None if rng.random() < 0.2 else slice(start, stop, step)


KINDS: dict[str, Callable[..., Case]] = {
    make.__name__: make
    for make in (whole, mixed, number, name, crop, resized, windows, resized_windows, points, voxels, boxes, region)
}
#: What suits those that take few fields.
FIELDS = {
    "crop": any_field(["array", "image"]),
    "resized": any_field(["image"]),
    "windows": any_field(["array"]),
    "resized_windows": any_field(["array"], ["uint8"], [(None, 5, 7, 3), (4, None, None, 1), (None, 6, None, 2)]),
    "points": any_field(["array"], shapes=[(None,), (None, 3), (None, 2, 2)]),
    "boxes": any_field(["array"], ["uint8", "int16", "int32"], [(None, 4)]),
    "voxels": any_field(["array"], ["uint8", "int16", "int32"], [(None, 3), (None, 4)]),
}


#: What some kinds take of these and of their values; asked before anything is packed.
SUITS: dict[str, Callable[[Field, Values], bool]] = {
    "crop": lambda field, values: len(field.shape) >= 2,
    "resized": lambda field, values: field.dtype == "uint8" and bool(field.shape[2]) and all(v.size for v in values),
    "windows": lambda field, values: bool(field.shape),
    "resized_windows": lambda field, values: all(value[:1].size or not len(value) for value in values),
    "region": lambda field, values: field.kind != "text" and bool(field.shape),
}


@pytest.mark.parametrize("kind", KINDS)
# Of the fields that are drawn, some kinds of reading take few.
@settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    data=st.data(),
    counts=st.lists(st.integers(0, 7), min_size=1, max_size=3).filter(any),
    chunk_bytes=st.sampled_from([8, 100, None]),
    seed=st.integers(0, 99),
    verify=st.booleans(),
    by_machine=st.booleans(),
)
def test_readers_give_slices(
    pack: Any,
    kind: str,
    data: st.DataObject,
    counts: list[int],
    chunk_bytes: int,
    seed: int,
    verify: bool,
    by_machine: bool,
) -> None:
    """What was located is read into new, given, shared and pooled memory, whole or in part, in any order of its parts.

    `nbytes` are the bytes of each sample, and no stored byte outside of `spans` matters.
    """
    field, rng = data.draw(FIELDS.get(kind, any_field())), np.random.default_rng(seed)
    values = [any_value(rng, field) for _ in range(sum(counts))]
    assume(kind not in SUITS or SUITS[kind](field, values))
    edges = list(itertools.accumulate(counts, initial=0))
    beside = {"image": IMAGE} if kind == "boxes" else {}
    fields = [field, *(Field(name=name, dtype="uint8", kind="image", shape=IMAGE.shape) for name in beside)]
    samples = [{"x": value.tobytes().decode() if field.kind == "text" else value, **beside} for value in values]
    with tempfile.TemporaryDirectory() as folder, handled(by_machine):
        names = [f"n{at}" for at in range(len(values))]
        shards = [samples[a:b] for a, b in itertools.pairwise(edges)]
        path = pack(Path(folder) / "p", fields, shards, names, chunk_bytes)
        case = KINDS[kind](path, field, values, verify=verify)
        visits = rng.integers(0, 2**63, len(case.numbers)).astype(np.uint64)
        keeps_the_contract(case, visits, rng)
        if kind == "whole":
            comes_by_index(case.dataset, field, values, rng.integers(0, len(values), 9).tolist())
        again = KINDS[kind](path, field, values)  # which has decoded nothing yet
        reads_what_it_says(again, visits)


def comes_by_index(dataset: Any, field: Field, values: Values, numbers: list[int]) -> None:
    """Holds what the dataset hands out against what was packed: images channels first, each kind as it should be."""
    for asked in (numbers, []):
        batch = dataset[asked]["x"]
        assert isinstance(batch, torch.Tensor) == (not field.is_ragged)
        assert isinstance(batch, Ragged) == (field.ragged_axes == (0,) and field.kind == "array")
        for value, number in zip(listed(batch), asked, strict=True):
            assert same(value.permute(1, 2, 0) if field.kind == "image" else value, values[number])
    last = dataset[-1]["x"]
    assert same(last.permute(1, 2, 0) if field.kind == "image" else last, values[-1])


def keeps_the_contract(case: Case, visits: Visits, rng: np.random.Generator) -> None:
    reader, count = case.reader, len(case.numbers)
    order = rng.integers(0, count, 12 if count > 1 else 1)
    for places in (order, order[:0], np.arange(count)):
        located = locate(case, places, visits)
        assert len(located) == len(places)
        if not len(places) and isinstance(reader, RegionReader):
            continue  # of one sample
        found = [listed(reader.read(located, allocate)) for allocate in (None, given_memory, shared, Pool().allocate)]
        check(case, places, found[0])
        assert not [other for other in found if list(map(bits, found[0])) != list(map(bits, other))]
        if reader.run_bytes:
            wanted = [0 if reader.field.name == "name" else bits(value)[2] for value in found[0]]  # names are short
            assert reader.nbytes(located).tolist() == wanted
        for first in range(0, len(places), 5)[::-1]:
            part = listed(reader.read(located[first : first + 5]))
            assert list(map(bits, part)) == list(map(bits, found[0][first : first + 5]))


def given_memory(nbytes: int) -> torch.Tensor:
    """Memory of the caller's, which is not where it was allocated, as pinned memory of a pool is."""
    return fresh(nbytes + 64)[64:].fill_(0xEE) if nbytes else fresh(0)


def locate(case: Case, places: NDArray[np.int64], visits: Visits) -> Located:
    anchors = None if case.anchors is None else case.anchors[places]
    return case.reader.locate(Asked(case.numbers[places], visits[places], anchors))


def listed(values: Any) -> list[Any]:
    """The samples of a batch, one by one."""
    return values.to_list() if isinstance(values, Ragged) else list(values)


def bits(value: Any) -> tuple[Any, ...]:
    array = np.frombuffer(value.encode(), np.uint8) if isinstance(value, str) else np.asarray(value)
    return array.dtype, array.shape, array.nbytes, array.tobytes()


def check(case: Case, places: NDArray[np.int64], found: list[Any]) -> None:
    """Holds samples against what they should be."""
    assert len(found) == len(places)
    for place, value in zip(places.tolist(), found, strict=True):
        if case.wanted is not None:
            assert same(value, case.wanted(place))
        else:
            assert isinstance(case.dataset, PackedDataset)
            rows = case.dataset.read(int(case.numbers[place]), "x").numpy()
            assert {row.tobytes() for row in np.asarray(value)} <= {row.tobytes() for row in rows}


def reads_what_it_says(case: Case, visits: Visits) -> None:
    """Every other sample is read where nothing but its spans is left of the stored bytes."""
    places = np.arange(0, len(case.numbers), 2)
    located = locate(case, places, visits)
    spans = case.reader.spans(located)
    assert spans.shape == (len(places), 2)
    assert (spans[:, 0] <= spans[:, 1]).all()
    if isinstance(case.dataset, Mix) or case.wanted is None:
        return  # the addresses of a mix are those of no one file
    with nothing_but(case.dataset, spans):
        check(case, places, listed(case.reader.read(located)))


@contextmanager
def nothing_but(dataset: PackedDataset, spans: NDArray[np.int64]) -> Iterator[None]:
    """Overwrites all chunks of the field `x` but for some spans, in the files that are mapped."""
    opened = source_of(dataset).opened
    indexes = opened.places["x"].indexes()
    starts, shards = opened.addressed
    for shard, index, start in zip(shards, indexes, starts.tolist(), strict=True):
        kept = bytearray(Path(shard.path).read_bytes())
        sizes = np.diff(index.arrays["chunks"][:, 2].astype(np.int64), prepend=0)
        with Path(shard.path).open("r+b") as file:
            for at, size in zip(index.chunk_at.tolist(), sizes.tolist(), strict=True):
                file.seek(at)
                file.write(b"\xff" * size)
            for first, stop in (spans - start).tolist():
                if 0 <= first < stop <= len(kept):
                    file.seek(first)
                    file.write(kept[first:stop])
    yield


def test_a_record_of_places_is_sliced_and_not_changed() -> None:
    """One index for all arrays; more arrays make another record."""
    located = Located(start=np.arange(4), shape=np.arange(8).reshape(4, 2))
    some = located[[3, 1]].adding(anchor=np.array([7, 8]))
    assert (len(located), len(some)) == (4, 2)
    assert (some.start.tolist(), some.shape.tolist(), some.anchor.tolist()) == ([3, 1], [[6, 7], [2, 3]], [7, 8])
    with pytest.raises(AttributeError, match="not changed"):
        located.start = np.arange(3)
    with pytest.raises(AttributeError):
        _ = located.anchor
