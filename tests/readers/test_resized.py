"""Resized crops: their values are torch's own of the same pixels, however these are stored; each visit draws anew."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jpeg_files import as_jpeg, photograph
from numpy.typing import NDArray
from torch.nn.functional import interpolate
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from packer.codecs import EncodedImage, decode_jpeg
from packer.convert import convert
from packer.errors import DamagedError, UsageError
from packer.format import manifest as manifests
from packer.machine import processors
from packer.repack import repack
from packer.writer import DatasetWriter
from readers import Loader, Mix, PackedDataset, ResizedCrop, Windows
from readers.draws import draw_visits

#: Heights and widths: some twice, four and eight times as large as the crops, some smaller, and a very wide one.
SIZES = ((300, 400), (201, 177), (120, 90), (33, 64), (20, 31), (20, 300), (400, 33), (517, 530))
CODECS = ("jpeg", "none", "photo+lz4", "lz4")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that gives the same photographs, packed with a codec."""
    place = tmp_path_factory.mktemp("photos")
    (place / "files").mkdir()
    for number, size in enumerate(SIZES):
        (place / "files" / f"{number}.jpg").write_bytes(as_jpeg(photograph(*size, number), progressive=number % 3 == 1))
    convert(str(place / "files"), place / "jpeg")

    def packed(codec: str) -> Path:
        if not (place / codec).exists():
            repack(place / "jpeg", place / codec, codec=codec)
        return place / codec

    return packed


def batch(path: Path, crop: ResizedCrop, numbers: Any = slice(None), seed: int = 1) -> torch.Tensor:
    torch.manual_seed(seed)
    images: torch.Tensor = PackedDataset(path, crop=crop)[numbers]["image"]
    return images


def resize(image: torch.Tensor, size: tuple[int, ...], mode: str = "bilinear") -> torch.Tensor:
    """An image (C, H, W) as torchvision's `resize(antialias=True)` makes it: this is what it calls."""
    return interpolate(image[None], list(size), mode=mode, antialias=True)[0]


def boxes(crop: ResizedCrop, sizes: Any, count: int) -> list[NDArray[Any]]:
    """Corners, sides and whether it is mirrored of `count` crops of samples of one size."""
    torch.manual_seed(3)
    found = crop._placing.place(np.array([sizes] * count), draw_visits(count))
    return [found.corners, found.sides, found.mirrored]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(("views", "mode"), [(None, "bilinear"), (2, "bicubic")])
def test_values_are_those_of_torch(
    stored: Callable[[str], Path], codec: str, exact: bool, views: int | None, mode: Any
) -> None:
    """Of the pixels in the crop alone; where JPEG files are decoded smaller, within one step on average."""
    crop, path = ResizedCrop((40, 32), of="image", exact=exact, views=views, interpolation=mode), stored(codec)
    whole, numbers = PackedDataset(stored("none")), np.tile(np.arange(len(SIZES)), 4)
    images = batch(path, crop, numbers)
    assert images.shape == (len(numbers), *([2] if views else []), 3, 40, 32)
    images, numbers = images.flatten(0, -4), numbers.repeat(views or 1)
    assert images.is_contiguous(memory_format=torch.channels_last)
    torch.manual_seed(1)
    drawn = crop._placing.place(np.array(SIZES * 4), draw_visits(len(SIZES) * 4))
    flat = [
        drawn.corners.reshape(-1, 2),
        drawn.sides.reshape(-1, 2),
        drawn.factors.reshape(-1),
        drawn.mirrored.reshape(-1),
    ]
    assert (drawn.factors.max() == 1) == exact
    for image, number, (top, left), (height, width), factor, mirrored in zip(images, numbers, *flat, strict=True):
        wanted = resize(whole[int(number)]["image"][:, top : top + height, left : left + width], (40, 32), mode)
        wanted = wanted.flip(2) if mirrored else wanted
        if factor == 1 or codec != "jpeg":
            assert torch.equal(image, wanted)
        else:
            assert (image.float() - wanted.float()).abs().mean() < 1


#: Views as DINOv2 cuts them, but smaller.
VIEWS = {"global": (2, 24, (0.4, 1)), "local": (4, (12, 10), (0.05, 0.4)), "like": (1,)}


def test_sets_of_views_come_by_name_from_one_decoding(
    stored: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the size and the share of the area that each set has; what a set leaves out is that of the crop."""
    calls: list[Any] = []
    monkeypatch.setattr(
        "readers.resizing.decode_jpeg", lambda *args, **options: calls.append(1) or decode_jpeg(*args, **options)
    )
    crop = ResizedCrop(16, of="image", views=VIEWS, scale=(0.8, 0.9), exact=True)
    torch.manual_seed(1)
    views = PackedDataset(stored("jpeg"), crop=crop)[:]["image"]
    assert len(calls) == len(SIZES)
    shapes = {name: tuple(images.shape[1:]) for name, images in views.items()}
    assert shapes == {"global": (2, 3, 24, 24), "local": (4, 3, 12, 10), "like": (1, 3, 16, 16)}
    torch.manual_seed(1)
    drawn = crop._placing.place(np.array(SIZES), draw_visits(len(SIZES)))
    shares = drawn.sides.prod(axis=2)[0] / np.prod(SIZES[0])
    assert (shares[:2] > 0.39).all()
    assert (shares[2:6] < 0.41).all()
    assert 0.79 < shares[6] < 0.91
    whole = PackedDataset(stored("none"))[0]["image"]
    images = [image for name in VIEWS for image in views[name][0]]
    for image, (top, left), (height, width), mirrored in zip(
        images, drawn.corners[0], drawn.sides[0], drawn.mirrored[0], strict=True
    ):
        wanted = resize(whole[:, top : top + height, left : left + width], image.shape[1:])
        assert torch.equal(image, wanted.flip(2) if mirrored else wanted)


def test_views_in_batches_of_all_kinds(stored: Callable[[str], Path]) -> None:
    """A sample, a loader's batch as arrays, a worker's, and a Mix, which refuses datasets of other views."""
    crop = ResizedCrop(16, of="image", views=VIEWS)
    dataset, again = PackedDataset(stored("jpeg"), crop=crop), PackedDataset(stored("none"), crop=crop)
    assert dataset[3]["image"]["local"].shape == (4, 3, 12, 10)
    for batches in (
        Loader(dataset, 4, as_numpy=True),
        Loader(Mix({dataset: 1, again: 1}), 4),
        DataLoader(dataset, 4, num_workers=1),
    ):
        first = next(iter(batches))["image"]
        assert {name: tuple(images.shape) for name, images in first.items()} == {
            "global": (4, 2, 3, 24, 24),
            "local": (4, 4, 3, 12, 10),
            "like": (4, 1, 3, 16, 16),
        }
    other = PackedDataset(stored("jpeg"), crop=ResizedCrop(24, of="image", views=2))
    with pytest.raises(UsageError, match=r"global uint8 \[2, 24, 24, 3\], .* and uint8 \[2, 24, 24, 3\]"):
        Mix({dataset: 1, other: 1})


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(("size", "short"), [(32, 37), (32, None), ((20, 36), 36)])
def test_the_middle_is_that_of_resize_and_center_crop(
    stored: Callable[[str], Path], codec: str, exact: bool, size: Any, short: int | None
) -> None:
    """As torchvision's `Resize(short)` and `CenterCrop(size)` give it; nothing is drawn."""
    crop = ResizedCrop(size, of="image", at="center", short=short, exact=exact)
    images, whole = batch(stored(codec), crop), PackedDataset(stored("none"))
    assert torch.equal(images, batch(stored(codec), crop, seed=2))
    height, width = crop._shape
    side = short or max(height, width)
    for number, image in enumerate(images):
        sides = [side * n // min(SIZES[number]) for n in SIZES[number]]
        top, left = round((sides[0] - height) / 2), round((sides[1] - width) / 2)
        wanted = resize(whole[number]["image"], tuple(sides))[:, top : top + height, left : left + width]
        if exact or codec != "jpeg":
            assert torch.equal(image, wanted)
        else:
            assert (image.float() - wanted.float()).abs().mean() < 1


def test_gray_images_and_raw_ones_next_to_files(tmp_path: Path) -> None:
    """One channel, and samples that are no files, are read alike."""
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "a.jpg").write_bytes(as_jpeg(photograph(90, 80), "L"))
    with DatasetWriter(tmp_path / "raw") as writer:
        writer.add({"image": photograph(90, 80)[:, :, :1]})
    convert(str(folder), tmp_path / "a", codec="jpeg")
    repack(tmp_path / "a", tmp_path / "b", codec="none")
    crop = ResizedCrop(30, of="image", exact=True)
    assert torch.equal(batch(tmp_path / "a", crop, [0] * 5), batch(tmp_path / "b", crop, [0] * 5))
    assert batch(tmp_path / "a", crop, [0]).shape == (1, 1, 30, 30)


def sides_by_torchvision(height: int, width: int, scale: Any, ratio: Any, count: int) -> NDArray[np.int64]:
    """Height and width of the crops of `RandomResizedCrop.get_params`, each tried until it fits."""
    rng, found = np.random.default_rng(0), []
    while len(found) < count:
        area, shape = height * width * rng.uniform(*scale), np.exp(rng.uniform(*np.log(ratio)))
        w, h = round(np.sqrt(area * shape)), round(np.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            found.append((h, w))
    return np.array(found)


@pytest.mark.parametrize("exact", [True, False])
def test_crops_are_drawn_as_torchvision_does(exact: bool) -> None:
    """Within the sample; of any area in `scale`, and of any shape in `ratio`, wide ones as often as high ones."""
    crop = ResizedCrop(20, of="x", scale=(0.2, 0.9), ratio=(0.5, 2), exact=exact)
    corners, sides, mirrored = boxes(crop, (600, 600), 20_000)
    assert ((corners >= 0) & (corners + sides <= 600)).all()
    area, ratio = sides.prod(axis=1) / 600**2, np.log2(sides[:, 1] / sides[:, 0])
    assert 0.19 < area.min() < 0.21
    assert 0.8 < area.max() < 0.91
    assert -1.05 < ratio.min() < -0.98 < 0.98 < ratio.max() < 1.05
    theirs = sides_by_torchvision(600, 600, (0.2, 0.9), (0.5, 2), 4000)
    assert np.abs(sides.mean(axis=0) - theirs.mean(axis=0)).max() < 8
    assert np.abs(sides.std(axis=0) - theirs.std(axis=0)).max() < 8
    assert abs(np.median(ratio)) < 0.02
    room = 600 - sides
    assert abs((corners[room > 20] / room[room > 20]).mean() - 0.5) < 0.02
    assert abs(mirrored.mean() - 0.5) < 0.02
    assert not boxes(ResizedCrop(20, of="x", flips=False), (600, 600), 100)[2].any()


@pytest.mark.parametrize(("sizes", "sides"), [((10, 400), (10, 13)), ((400, 9), (12, 9)), ((1, 1), (1, 1))])
def test_where_no_crop_fits_the_nearest_shape_is_cut(sizes: tuple[int, int], sides: tuple[int, int]) -> None:
    """Of samples that are much higher or wider than `ratio` allows."""
    found = boxes(ResizedCrop(20, of="x", scale=(1, 1)), sizes, 50)[1]
    assert (found == sides).all()


@pytest.mark.parametrize("views", [None, VIEWS])
def test_each_visit_draws_anew_and_nothing_else_changes_it(stored: Callable[[str], Path], views: Any) -> None:
    """With `Loader` from seed, epoch and position: threads, batch size and resuming change nothing."""
    crop = ResizedCrop(16, of="image", views=views)
    dataset = PackedDataset(stored("jpeg"), crop=crop, extras=("number",))

    def epoch(loader: Loader) -> dict[int, bytes]:
        return {
            int(number): b"".join(images[place].numpy().tobytes() for images in tree_leaves(some["image"]))
            for some in loader
            for place, number in enumerate(some["number"])
        }

    first = epoch(Loader(dataset, 3, shuffle=True, seed=5, threads=0))
    assert epoch(Loader(pickle.loads(pickle.dumps(dataset)), 4, shuffle=True, seed=5, threads=2)) == first
    loader = Loader(dataset, 3, shuffle=True, seed=5)
    batches = iter(loader)
    next(batches)
    again = Loader(dataset, 3, shuffle=True, seed=5)
    again.load_state_dict(loader.state_dict())
    rest = epoch(again)
    assert rest.items() < first.items()
    assert epoch(again) != first
    pair = tree_leaves(batch(stored("jpeg"), crop, [0, 0]))[0]
    assert not torch.equal(pair[0], pair[1])
    other = PackedDataset(stored("jpeg"), crop=replace(crop, seed=1), extras=("number",))
    assert epoch(Loader(other, 3, shuffle=True, seed=5)) != first


def test_all_processors_decode(stored: Callable[[str], Path]) -> None:
    """Decoding lets go of the interpreter, so that as many threads read; whole images as well as crops."""
    crop = ResizedCrop(16, of="image")
    for options in ({}, {"crop": crop}):
        assert Loader(PackedDataset(stored("jpeg"), **options), 4).threads == processors()
    assert Loader(PackedDataset(stored("none"), crop=crop), 4).threads == 0


def test_workers_of_a_dataloader(stored: Callable[[str], Path]) -> None:
    """torch's own loader reads them in its workers."""
    dataset = PackedDataset(stored("jpeg"), crop=ResizedCrop(16, of="image"))
    shapes = [tuple(some["image"].shape) for some in DataLoader(dataset, 4, num_workers=1)]
    assert shapes == [(4, 3, 16, 16)] * 2


def test_a_damaged_file_is_named(stored: Callable[[str], Path], tmp_path: Path) -> None:
    """By shard, field and sample."""
    repack(stored("jpeg"), tmp_path / "d", shard_size=2**30)
    (entry,) = manifests.read(tmp_path / "d").shards
    path = tmp_path / "d" / entry.file
    data = bytearray(path.read_bytes())
    at = data.index(b"\xff\xc0", data.index(b"\xff\xd8\xff"))
    data[at + 2 : at + 12] = bytes(10)
    path.write_bytes(data)
    with pytest.raises(DamagedError, match="field 'image', sample 0 of the shard"):
        batch(tmp_path / "d", ResizedCrop(16, of="image"), [0])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"size": 0}, "size 0: a whole number from 1"),
        ({"size": (8, 0)}, "size 0: a whole number from 1"),
        ({"size": [8, 8, 8]}, r"size \(8, 8, 8\): a number of pixels"),
        ({"scale": (0.5, 0.1)}, "scale"),
        ({"scale": (0.5, 2)}, "scale"),
        ({"scale": [0.5]}, r"scale \(0.5,\): the least and the largest"),
        ({"ratio": (0, 1)}, "ratio"),
        ({"size": None}, "size is missing"),
        ({"at": "middle"}, "None or 'center'"),
        ({"views": 0}, "views 0: a whole number from 1"),
        ({"views": 2, "at": "center"}, "several views are random crops"),
        ({"views": {}}, "views is an empty dict"),
        ({"views": {"a": 2}}, "views 'a' is 2; the number of crops, their size"),
        ({"views": {"a": (2,)}, "size": None}, "views 'a' is"),
        ({"views": {"a": (0, 8)}}, "number of views 'a' 0"),
        ({"views": {"a": (2, 8, (0, 1))}}, "scale"),
        ({"interpolation": "nearest"}, "'bilinear' or 'bicubic' is expected"),
        ({"short": 20}, "short 20 goes with at='center'"),
        ({"short": 4, "at": "center"}, "is 8 or more"),
        ({"seed": -1}, "seed -1"),
        ({"flips": "no"}, "ResizedCrop: flips 'no': True or False"),
        ({"exact": 0}, "exact 0: True or False"),
        ({"of": "picture"}, "no field 'picture' is read; there are image"),
    ],
)
def test_arguments_without_meaning_are_refused(
    stored: Callable[[str], Path], options: dict[str, Any], reason: str
) -> None:
    """The sentence says what is expected."""
    with pytest.raises(UsageError, match=reason):
        PackedDataset(stored("none"), crop=ResizedCrop(**{"size": 8, "of": "image", **options}))


@pytest.mark.parametrize("array", [np.zeros((4, 4, 3), np.uint16), np.zeros((4, 4), np.uint8), np.zeros(3)])
def test_other_fields_are_refused(tmp_path: Path, array: NDArray[Any]) -> None:
    """Only images of uint8 are resized, and windows of clips of them."""
    with DatasetWriter(tmp_path / "d") as writer:
        writer.add({"x": array})
    with pytest.raises(UsageError, match=r"field 'x' is array .*; images of uint8 with one number of channels"):
        PackedDataset(tmp_path / "d", crop=ResizedCrop(8, of="x"))
    if array.ndim:
        with pytest.raises(UsageError):
            PackedDataset(tmp_path / "d", crop=ResizedCrop(8, of="x"), windows=Windows(1))


@pytest.mark.parametrize("codec", ["jpeg:90", "lz4", "none"])
@pytest.mark.parametrize("options", [{}, {"views": {"a": (2, 30), "b": (1, 16)}}, {"at": "center", "exact": True}])
def test_all_steps_of_a_window_are_cropped_at_one_place(tmp_path: Path, codec: str, options: dict[str, Any]) -> None:
    """Each step is what an image of these pixels becomes at the same visit; steps outside of a clip are padded.

    Frames of JPEG are decoded smaller, as files are: within one step on average. One clip is tiny, and kept as pixels.
    """
    clips = [np.stack([photograph(*size, n) for n in range(3)]) for size in ((120, 150), (200, 90), (2, 3))]
    convert([{"clip": clip} for clip in clips], tmp_path / "clips", codec=codec)
    stored = [sample["clip"].numpy() for sample in PackedDataset(tmp_path / "clips")]
    crop, windows = ResizedCrop(24, of="clip", **options), Windows({"clip": [-1, 0, 1]}, pad="zero")
    dataset = PackedDataset(tmp_path / "clips", crop=crop, windows=windows)
    torch.manual_seed(1)
    batch = dataset[range(9)]
    whole = replace(crop, of="image", exact=True)
    for offset in (-1, 0, 1):
        steps = np.arange(9) % 3 + offset
        is_pad = (steps < 0) | (steps > 2)
        with DatasetWriter(tmp_path / f"images{offset}", codec="none") as writer:
            for number, step in enumerate(steps):
                clip = EncodedImage.of(stored[number // 3][min(max(step, 0), 2)].copy(), b"")
                writer.add({"image": clip})
        torch.manual_seed(1)
        images = PackedDataset(tmp_path / f"images{offset}", crop=replace(whole, exact=crop.exact))[range(9)]["image"]
        ours_and_theirs = zip(tree_leaves(batch["clip"]), tree_leaves(images), strict=True)
        for ours, theirs in ours_and_theirs:
            ours, theirs = ours[..., offset + 1, :, :, :].float(), theirs.movedim(-3, -1).float()
            assert ours.shape == theirs.shape
            assert not ours[is_pad].any()
            difference = (ours - theirs)[~is_pad].abs()
            assert difference.mean() < 1 if codec == "jpeg:90" and not crop.exact else not difference.any()


@pytest.mark.parametrize(("verify", "words"), [(False, "sample 0 of the shard"), (True, "sample 0: the checksum")])
def test_a_window_resizes_without_the_other_steps(tmp_path: Path, verify: bool, words: str) -> None:
    """A step of JPEG that is damaged is an error of its windows, which names the sample."""
    convert([{"clip": np.stack([photograph(60, 60, n) for n in range(6)])}], tmp_path / "clips", codec="jpeg:90")
    file = tmp_path / "clips" / manifests.read(tmp_path / "clips").shards[0].file
    data = file.read_bytes()
    starts = [at for at in range(len(data)) if data.startswith(b"\xff\xd8\xff\xe0", at)]
    assert len(starts) == 6
    file.write_bytes(data[: starts[4]] + bytes(200) + data[starts[4] + 200 :])
    dataset = PackedDataset(tmp_path / "clips", crop=ResizedCrop(24, of="clip"), windows=Windows(2), verify=verify)
    assert dataset[range(3)]["clip"].shape == (3, 2, 24, 24, 3)
    for number in (3, 4):
        with pytest.raises(DamagedError, match=words):
            _ = dataset[number]
