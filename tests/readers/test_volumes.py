"""Crops of three axes equal slices of volumes, for every codec, band, dtype and order of axes, at their edges too."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fields import any_field, any_value, same
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from ways import handled

from packer.codecs import NAMED
from packer.errors import UsageError
from packer.format import Field, FrameRule
from packer.split import split
from readers import Crop, Loader, PackedDataset, Windows

VOLUMES = [
    (None, None, None),
    (None, None, None, 2),
    (5, 7, 6),
    (2, None, None, None),
    (3, 4, 5, 6),
    (None, 2, None, 3),
]


def framed(
    value: NDArray[Any], place: NDArray[np.int64], size: tuple[int, ...], axes: slice, fill: Any
) -> tuple[NDArray[Any], list[list[int]]]:
    """A crop that may hang over the border of a volume, filled with a value or "edge", and which of it is data."""
    own = []
    for axis, first, wanted in zip(range(value.ndim)[axes], place.tolist(), size, strict=True):
        at = np.arange(first, first + wanted)
        inside = (at >= 0) & (at < value.shape[axis])
        own.append([int(np.flatnonzero(inside)[0]), int(np.flatnonzero(inside)[-1]) + 1])
        value = value.take(at.clip(0, value.shape[axis] - 1), axis)
        if fill != "edge":
            np.moveaxis(value, axis, 0)[~inside] = fill
    return value, own


def middle(place: NDArray[np.int64], lengths: tuple[int, ...], size: tuple[int, ...]) -> NDArray[np.int64]:
    """Where a crop begins: in the middle of what is missing, on axes of a volume that are shorter than it."""
    missing = np.array(size) - lengths
    return np.where(missing > 0, -(missing // 2), place)


@settings(max_examples=40, deadline=None)
@given(
    field=any_field(["array"], shapes=VOLUMES),
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=3).filter(any),
    chunk_bytes=st.sampled_from([8, 100, None]),
    seed=st.integers(0, 999),
    by_machine=st.booleans(),
    pad=st.sampled_from([None, "zero", "edge", {"x": 1}, {"x": "edge"}]),
    outside=st.booleans(),
    data=st.data(),
)
def test_crops_of_volumes_are_slices(
    pack: Any,
    field: Field,
    counts: list[int],
    chunk_bytes: int,
    seed: int,
    by_machine: bool,
    pad: Any,
    outside: bool,
    data: st.DataObject,
) -> None:
    """Wherever a crop lies, and whichever three axes are cropped; at borders with what is around, and if smaller."""
    rng = np.random.default_rng(seed)
    values = [any_value(rng, field) for _ in range(sum(counts))]
    first = data.draw(st.integers(0, len(field.shape) - 3)) if None not in field.shape[3:] else len(field.shape) - 3
    if first and field.shape[0] is None:
        first = 0
    axes = slice(first, first + 3)
    least = np.min([value.shape[axes] for value in values], axis=0)
    size = tuple(int(rng.integers(1, n + 1)) if n else 1 for n in (least if pad is None else least + 4))
    fits = all(min(value.shape[axes]) > 0 for value in values)
    edges = list(itertools.accumulate(counts, initial=0))
    shards = [[{"x": value} for value in values[a:b]] for a, b in itertools.pairwise(edges)]
    outside = outside and pad is not None and fits

    def place(length: int, wanted: int) -> int:
        return int(rng.integers(1 - wanted, length) if outside else rng.integers(0, max(length - wanted, 0) + 1))

    places = np.array([list(map(place, value.shape[axes], size)) for value in values])
    fill = {"zero": 0, "edge": "edge", None: 0}[pad] if not isinstance(pad, dict) else pad["x"]
    with tempfile.TemporaryDirectory() as folder, handled(by_machine):
        path = pack(Path(folder) / "p", [field], shards, chunk_bytes=chunk_bytes)
        crop = Crop(size, "x", at=places, axes=tuple(range(first, first + 3)), pad=pad, outside=outside)
        dataset = PackedDataset(path, crop=crop, verify=by_machine)
        numbers = rng.integers(0, len(values), 6)
        if not fits:
            with pytest.raises(UsageError, match="pixels, less than a crop of"):
                _ = dataset[:]
            return
        batch = dataset[numbers]
        for at, number in enumerate(numbers.tolist()):
            value = values[number]
            begin = places[number] if outside else middle(places[number], value.shape[axes], size)
            wanted, own = framed(value, begin, size, axes, fill)
            assert same(batch["x"][at], wanted)
            if pad:
                assert batch["x_is_data"][at].tolist() == own
        assert ("x_is_data" in batch) == (pad is not None)


SIZES = [(9, 8, 7), (5, 5, 5), (4, 12, 6), (7, 6, 9), (8, 8, 8), (6, 7, 11)]


@pytest.fixture(scope="module", params=["none", "zstd"])
def scans(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, pack: Any) -> Path:
    """Volumes whose voxels hold their place, a mask of them, and one of half the size."""
    shape, rule = (None, None, None), FrameRule(rows=2)
    stored: dict[str, Any] = {"shape": shape, "codec": NAMED[request.param], "frame": rule}
    fields = [
        Field(name="image", dtype="int32", **stored),
        Field(name="label", dtype="uint8", **stored),
        Field(name="coarse", dtype="int32", **stored),
    ]
    samples = []
    for number, size in enumerate(SIZES):
        sizes = tuple(n // 2 * 2 for n in size)
        image = np.arange(np.prod(sizes), dtype=np.int32).reshape(sizes) + 1000 * number
        samples.append({"image": image, "label": (image % 5).astype(np.uint8), "coarse": image[::2, ::2, ::2].copy()})
    path: Path = pack(tmp_path_factory.mktemp("scans") / "p", fields, [samples[:2], samples[2:]])
    return path


def cut_at(path: Path, number: int, image: torch.Tensor, size: tuple[int, ...]) -> tuple[slice, ...]:
    """Where a crop of a volume whose voxels hold their place was cut, unless it is mirrored."""
    whole = PackedDataset(path)[number]["image"]
    at = np.argwhere(whole.numpy() == int(image.min()))[0]
    return tuple(slice(int(first), int(first) + n) for first, n in zip(at, size, strict=True))


def test_fields_are_cropped_and_mirrored_alike(scans: Path) -> None:
    """At every place, along each of the three axes, in all eight ways; aligned fields at the same place of theirs."""
    size = (4, 2, 4)
    crop = Crop(size, "image", {"label": 1, "coarse": 2}, flips=True)
    whole = PackedDataset(scans)[:]
    ways, places = set(), set()
    for batch in Loader(PackedDataset(scans, crop=crop, extras=("number",)), 4, shuffle=True, repeat=60):
        for image, label, coarse, number in zip(
            *(batch[n] for n in ("image", "label", "coarse", "number")), strict=True
        ):
            at = cut_at(scans, int(number), image, size) if len(places) < 40 else None
            assert torch.equal(label, (image % 5).byte())
            axes = [axis for axis in range(3) if image.select(axis, 0).min() > image.select(axis, -1).min()]
            ways.add(tuple(axes))
            straight = image.flip(axes)
            if at is not None:
                assert torch.equal(straight, whole["image"][int(number)][at])
                places.add((int(number), *(part.start for part in at)))
            assert torch.equal(coarse.flip(axes), straight[::2, ::2, ::2])
    assert len(ways) == 8
    assert len({place[1:] for place in places}) > 3


def foreground(numbers: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    """A place that holds a voxel of its own for each sample; even ones in the first corner."""
    number = int(numbers[0])
    highest = np.array(SIZES[number]) // 2 * 2 - 3
    return generator.integers(0, highest, (1, 3)) * (number % 2)


def test_crops_of_a_split_are_those_of_its_samples(scans: Path, tmp_path: Path) -> None:
    """Numbers and places count the samples of the split, with pad and extras, also where an epoch is resumed."""
    path = shutil.copytree(scans, tmp_path / "p")
    held = [1, 3, 4]
    split(path, {"some": held})
    whole, places = PackedDataset(path)[:]["image"], [(0, 1, 1), (2, 0, 3), (1, 2, 0)]
    crop = Crop((3, 3, 3), "image", {"label": 1}, at=np.array(places))
    ds = PackedDataset(path, split="some", crop=crop, extras=("number",))
    for item, (number, (z, y, x)) in enumerate(zip(held, places, strict=True)):
        wanted = whole[number][z : z + 3, y : y + 3, x : x + 3]
        assert torch.equal(ds[item]["image"], wanted)
        assert torch.equal(ds[[item]]["label"][0], (wanted % 5).byte())
    padded = PackedDataset(path, split="some", crop=Crop((9, 3, 3), "image", at="center", pad="zero"))
    assert padded[:]["image_is_data"][:, 0].tolist() == [[2, 6], [1, 7], [0, 8]]
    loader = Loader(PackedDataset(path, split="some", crop=Crop((2, 2, 2), "image")), 1, shuffle=True, seed=5, repeat=2)
    batches, state = [], {}
    for batch in loader:
        batches.append(batch["image"])
        state = state or loader.state_dict()
    again = Loader(PackedDataset(path, split="some", crop=Crop((2, 2, 2), "image")), 1, shuffle=True, seed=5, repeat=2)
    again.load_state_dict(state)
    assert all(map(torch.equal, [batch["image"] for batch in again], batches[1:]))


def test_places_of_ones_own_are_drawn_once_a_visit(scans: Path) -> None:
    """The same for any batch size, threads, ranks and place where the epoch is resumed, and other ones in the next."""
    dataset = PackedDataset(scans, crop=Crop((3, 3, 3), "image", {"label": 1}, at=foreground), extras=("number",))

    def visits(loader: Loader) -> list[tuple[int, int]]:
        return [
            pair
            for batch in loader
            for pair in zip(batch["number"].tolist(), batch["image"][:, 0, 0, 0].tolist(), strict=True)
        ]

    loader = Loader(dataset, 1, shuffle=True, seed=3, repeat=5)
    wanted, later = visits(loader), visits(loader)
    assert len({first for number, first in wanted if number % 2}) > 6
    assert all(first == 1000 * number for number, first in wanted if number % 2 == 0)
    assert sorted(later) != sorted(wanted)
    for size, threads in ((4, 0), (7, 2), (30, 1)):
        assert visits(Loader(dataset, size, shuffle=True, seed=3, repeat=5, threads=threads)) == wanted
    ranks = [visits(Loader(dataset, 5, shuffle=True, seed=3, repeat=5, rank=r, world_size=2)) for r in (0, 1)]
    assert sorted(itertools.chain(*ranks)) == sorted(wanted)
    first = Loader(dataset, 4, shuffle=True, seed=3, repeat=5)
    batches = iter(first)
    next(batches)
    again = Loader(dataset, 2, shuffle=True, seed=3, repeat=5)
    again.load_state_dict(first.state_dict())
    assert visits(again) == wanted[4:]


@pytest.mark.parametrize("threads", [0, 2])
def test_a_function_is_called_once_a_visit(scans: Path, threads: int) -> None:
    """It may count its calls: its error comes with the batch of that call, after all batches before."""
    calls = itertools.count(1)

    def fail_once(numbers: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
        if next(calls) == 20:
            raise ZeroDivisionError("the 20th call")
        return np.zeros((1, 3), np.int64)

    dataset = PackedDataset(scans, crop=Crop((3, 3, 3), "image", {"label": 1}, at=fail_once))
    loader = Loader(dataset, 3, shuffle=True, repeat=9, threads=threads)
    with pytest.raises(ZeroDivisionError, match="the 20th call"):
        list(loader)
    assert next(calls) == 21
    assert loader.state_dict()["done"] == 18


@pytest.mark.parametrize("threads", [0, 2])
def test_a_function_is_called_once_a_visit_where_another_place_is_wrong(scans: Path, threads: int) -> None:
    """Batches are located together; those before the wrong place come first, and the function is not called again."""
    calls: Counter[bytes] = Counter()

    def wrong_once(numbers: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
        calls[generator.bytes(16)] += 1
        return np.full((1, 3), 99 if len(calls) == 20 else 0)

    dataset = PackedDataset(scans, crop=Crop((3, 3, 3), "image", {"label": 1}, at=wrong_once))
    loader = Loader(dataset, 3, shuffle=True, repeat=9, threads=threads)
    for _ in range(2):  # the same visits again: another loop asks anew
        calls.clear()
        loader.set_epoch(0)
        with pytest.raises(UsageError, match=r"no crop can begin at \[99, 99, 99\]"):
            list(loader)
        assert set(calls.values()) == {1}
        assert len(calls) == 54
        assert loader.state_dict()["done"] == 18


def test_places_of_ones_own_of_a_split(scans: Path, tmp_path: Path) -> None:
    """The function is given numbers of the split, as `at` is, and what it returns is checked."""
    asked = []

    def corner(numbers: NDArray[np.int64], generator: np.random.Generator) -> list[int]:
        asked.append(numbers.tolist())
        return [0, 1, 9]

    with pytest.raises(UsageError, match=r"no crop can begin at \[0, 1, 9\]; slices 0 to 5 and rows 0 to 5 and col"):
        _ = PackedDataset(scans, crop=Crop((3, 3, 3), "image", at=corner))[0]
    assert asked == [[0]]
    with pytest.raises(UsageError, match=r"at is a \(slice, row, column\) of int"):
        _ = PackedDataset(scans, crop=Crop((3, 3, 3), "image", at=lambda numbers, generator: [1, 2]))[0]


@pytest.mark.parametrize("flips", [False, True])
def test_padded_volumes_say_what_is_theirs(scans: Path, flips: bool) -> None:
    """Mirrored, the part that is data is mirrored, too; of a coarser field it is as coarse."""
    crop = Crop((10, 10, 8), "image", {"label": 1, "coarse": 2}, flips=flips, pad="zero", multiple=2)
    for batch in Loader(PackedDataset(scans, crop=crop), 6, repeat=4):
        for image, label, own in zip(batch["image"] + 1, batch["label"], batch["image_is_data"], strict=True):
            inside = torch.zeros_like(image, dtype=torch.bool)
            inside[tuple(slice(*part) for part in own.tolist())] = True
            assert torch.equal(image > 1, inside & (image > 1))
            assert (image[inside] > 1).sum() >= inside.sum() - 1  # of the first volume a voxel is 0
            assert not label[~inside].any()
        assert torch.equal(batch["coarse_is_data"], batch["image_is_data"] // 2)
        assert torch.equal(batch["label_is_data"], batch["image_is_data"])


def test_pictures_may_be_padded(pack: Any, tmp_path: Path) -> None:
    """Of two axes, too; not together with turns."""
    value = np.arange(1, 13, dtype=np.uint8).reshape(3, 4, 1)
    field = Field(name="x", dtype="uint8", kind="image", shape=(None, None, 1))
    path = pack(tmp_path / "p", [field], [[{"x": value}]])
    sample = PackedDataset(path, crop=Crop((5, 2), "x", at="center", pad="edge"))[0]
    assert sample["x"][0].tolist() == [[2, 3], [2, 3], [6, 7], [10, 11], [10, 11]]
    assert sample["x_is_data"].tolist() == [[1, 4], [0, 2]]
    with pytest.raises(UsageError, match="pad and turns"):
        Crop(5, "x", turns=True, pad="edge")
    with pytest.raises(UsageError, match=r"3 x 4 pixels, less than a crop of 5 x 2.*give pad='zero'"):
        _ = PackedDataset(path, crop=Crop((5, 2), "x"))[0]


PATCH, INITIAL = np.array([4, 6, 4]), np.array([7, 9, 6])


def nnunet_place(shape: tuple[int, ...], foreground: Any, generator: np.random.Generator) -> list[int]:
    """Where nnU-Net's `nnUNetDataLoader.get_bbox` puts a patch; foreground voxels are (n, 4), the channel first."""
    need_to_pad = (INITIAL - PATCH).tolist()
    for axis in range(3):
        if need_to_pad[axis] + shape[axis] < INITIAL[axis]:
            need_to_pad[axis] = INITIAL[axis] - shape[axis]
    lows = [-need_to_pad[i] // 2 for i in range(3)]
    highs = [shape[i] + need_to_pad[i] // 2 + need_to_pad[i] % 2 - INITIAL[i] for i in range(3)]
    if foreground is None:
        return [int(generator.integers(low, high + 1)) for low, high in zip(lows, highs, strict=True)]
    voxel = foreground[generator.integers(len(foreground))]
    return [max(lows[i], int(voxel[i + 1]) - int(INITIAL[i]) // 2) for i in range(3)]


def nnunet_patch(array: NDArray[Any], place: list[int], fill: int) -> NDArray[Any]:
    """What its `crop_and_pad_nd` makes of an array (channels, z, y, x)."""
    inside = [slice(max(0, p), min(n, p + size)) for p, n, size in zip(place, array.shape[1:], INITIAL, strict=True)]
    missing = [(max(0, -p), max(0, p + size - n)) for p, n, size in zip(place, array.shape[1:], INITIAL, strict=True)]
    return np.pad(array[(slice(None), *inside)], [(0, 0), *missing], constant_values=fill)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_patches_are_those_of_nnunet(pack: Any, tmp_path: Path, codec: str) -> None:
    """By its rule, over the border and of smaller cases too, with 0 around images, -1 around labels; also resumed."""
    rng = np.random.default_rng(3)
    shapes = [(9, 11, 8), (3, 20, 5), (7, 4, 4), (12, 12, 12)]
    stored: dict[str, Any] = {"codec": NAMED[codec], "frame": FrameRule(rows=1)}
    fields = [
        Field(name="image", dtype="float32", shape=(2, None, None, None), **stored),
        Field(name="label", dtype="int8", shape=(1, None, None, None), **stored),
    ]
    cases = [
        {"image": rng.normal(size=(2, *s)).astype("f4"), "label": rng.integers(0, 3, (1, *s)).astype("i1")}
        for s in shapes
    ]
    path = pack(tmp_path / "p", fields, [cases[:1], cases[1:]])
    voxels = [np.argwhere(case["label"] == 1) for case in cases]
    places: list[tuple[int, list[int]]] = []

    def patch(numbers: NDArray[np.int64], generator: np.random.Generator) -> list[int]:
        number = int(numbers[0])
        foreground = voxels[number] if generator.random() < 0.33 else None
        places.append((number, nnunet_place(shapes[number], foreground, generator)))
        return places[-1][1]

    crop = Crop(
        INITIAL.tolist(), "image", {"label": 1}, axes=(1, 2, 3), at=patch, outside=True, pad={"image": 0, "label": -1}
    )
    options: dict[str, Any] = {"shuffle": True, "seed": 1, "repeat": 40}
    batches = list(Loader(PackedDataset(path, crop=crop), 2, threads=0, **options))
    images, labels = (torch.cat([batch[name] for batch in batches]) for name in ("image", "label"))
    assert len(places) == len(images) == 160
    for at, (number, place) in enumerate(places):
        assert np.array_equal(images[at].numpy(), nnunet_patch(cases[number]["image"], place, 0))
        assert np.array_equal(labels[at].numpy(), nnunet_patch(cases[number]["label"], place, -1))
    assert sum(min(place) < 0 for _, place in places) > 50
    begun = Loader(PackedDataset(path, crop=crop), 8, threads=2, **options)
    first = next(iter(begun))
    resumed = Loader(PackedDataset(path, crop=crop), 8, threads=2, **options)
    resumed.load_state_dict(begun.state_dict())
    assert torch.equal(torch.cat([first["image"], *(batch["image"] for batch in resumed)]), images)


def test_places_outside_are_on_whole_pixels_of_every_field(scans: Path) -> None:
    """Mirrored or not, `is_data` says what is theirs; a crop holds a pixel of its sample, or is refused."""
    places = np.array([(-2, 4, -6), (2, -2, 2), (0, 10, -2), (2, 2, 6), (-6, -6, -6), (4, 2, 8)])
    crop = Crop((8, 8, 8), "image", {"label": 1, "coarse": 2}, at=places, outside=True, pad="edge", flips=True)
    whole = PackedDataset(scans)
    for batch in Loader(PackedDataset(scans, crop=crop, extras=("number",)), 6, repeat=4):
        for item, number in enumerate(batch["number"].tolist()):
            for name, scale in crop._scales.items():
                size = (8 // scale,) * 3
                wanted, own = framed(whole[number][name].numpy(), places[number] // scale, size, slice(0, 3), "edge")
                got, data = batch[name][item].numpy(), batch[name + "_is_data"][item].tolist()
                ways = [axes for k in range(4) for axes in itertools.combinations(range(3), k)]
                assert any(
                    np.array_equal(np.flip(got, axes), wanted)
                    and data
                    == [[size[0] - b, size[0] - a] if axis in axes else [a, b] for axis, (a, b) in enumerate(own)]
                    for axes in ways
                )
    for wrong, said in (((-8, 0, 0), "slices -7 to 7"), ((0, 8, 0), "rows -7 to 7"), ((1, 0, 0), "in multiples of 2")):
        crop = Crop((8, 8, 8), "image", {"coarse": 2}, at=wrong, outside=True, pad="zero")
        with pytest.raises(UsageError, match=said):
            _ = PackedDataset(scans, crop=crop)[0]


@pytest.mark.parametrize(
    ("pad", "said"),
    [
        ({"image": 0, "label": -1}, "pad -1 of field 'label': its dtype uint8 cannot hold that value"),
        ({"image": 0, "label": 0.5}, "pad 0.5 of field 'label'"),
        ({"image": float("nan"), "label": 0}, "pad nan of field 'image': its dtype int32"),
        ({"image": 2**31, "label": 0}, "pad 2147483648 of field 'image'"),
    ],
)
def test_pads_that_a_dtype_cannot_hold_are_refused(scans: Path, pad: Any, said: str) -> None:
    """When the dataset is opened, with the name of the field and its dtype."""
    crop = Crop((8, 8, 8), "image", {"label": 1}, at=(0, 0, 0), outside=True, pad=pad)
    with pytest.raises(UsageError, match=said):
        PackedDataset(scans, crop=crop)


def test_windows_of_volumes_are_cropped(pack: Any, tmp_path: Path) -> None:
    """The steps of a window, each a volume, at one place."""
    value = np.arange(6 * 4 * 5 * 6, dtype=np.int16).reshape(6, 4, 5, 6)
    field = Field(name="x", dtype="int16", shape=(None, 4, 5, 6), codec=NAMED["lz4"], frame=FrameRule(rows=1))
    crop = Crop((2, 3, 2), "x", at=(1, 2, 3))
    dataset = PackedDataset(pack(tmp_path / "p", [field], [[{"x": value}]]), crop=crop, windows=Windows(3))
    assert torch.equal(dataset[2]["x"], torch.from_numpy(value[2:5, 1:3, 2:5, 3:5]))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": (2, 2, 2, 2)}, "depth, height, width"),
        ({"size": (2, 2, 2), "turns": True}, "turns need squares"),
        ({"size": (2, 2, 2), "axes": (0, 1)}, "of volumes three"),
        ({"size": (2, 2, 2), "axes": (-2, -1, 0)}, "of volumes three"),
        ({"size": (2, 2, 2), "pad": "mean"}, "pad 'mean'"),
        ({"size": (2, 2, 2), "pad": {"y": 0}}, "pad has values of y; one of each cropped field is expected: x"),
        ({"size": (2, 2, 2), "pad": {}}, "pad has values of no field"),
        ({"size": (2, 2, 2), "pad": {"x": "zero"}}, "a number or 'edge'"),
        ({"size": (2, 2, 2), "pad": "zero", "outside": True}, "outside=True lets places of your own"),
        ({"size": (2, 2, 2), "at": (1, 1, 1), "outside": True}, "outside=True lets places of your own"),
        ({"size": (2, 2, 2), "at": (1, 1)}, r"at is a \(slice, row, column\)"),
    ],
)
def test_what_has_no_meaning_is_refused(options: dict[str, Any], said: str) -> None:
    """The message says what is expected."""
    with pytest.raises(UsageError, match=said):
        Crop(of="x", **options)
