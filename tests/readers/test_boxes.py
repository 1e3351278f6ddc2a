"""Boxes follow the crop of their image: the pixels under a box stay under it; what is not visible is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from packer.convert import convert
from packer.errors import UsageError
from packer.format import FieldSpec
from packer.writer import DatasetWriter
from readers import Crop, Loader, PackedDataset, PointSample, Ragged, ResizedCrop, Windows
from tests.helpers.picture_files import picture, save

#: Heights and widths; the last one is smaller than the crops.
SIZES = ((40, 60), (37, 41), (64, 33), (20, 25))
FORMATS = ("xywh", "xyxy", "voc", "yolo")
FIELDS = (
    FieldSpec(name="image", dtype="uint8", kind="image", shape=(None, None, 1)),
    FieldSpec(name="boxes", dtype="float64", shape=(None, 4)),
    FieldSpec(name="labels", dtype="int64", shape=(None,)),
    FieldSpec(name="caption", dtype="uint8", kind="text", shape=(None,)),
)


def written(edges: NDArray[Any], box_format: str, size: tuple[int, int]) -> NDArray[np.float64]:
    """Edges in pixels as a format has them, by the words of each."""
    rows = []
    for left, top, right, bottom in edges.tolist():
        width, height = right - left, bottom - top
        rows.append(
            {
                "xywh": [left, top, width, height],
                "xyxy": [left, top, right, bottom],
                "voc": [left + 1, top + 1, right, bottom],
                "yolo": [
                    (left + width / 2) / size[1],
                    (top + height / 2) / size[0],
                    width / size[1],
                    height / size[0],
                ],
            }[box_format]
        )
    return np.array(rows, np.float64).reshape(-1, 4)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One dataset a format: images that are black but for one box each has, of a gray of its own; and one without."""
    place = tmp_path_factory.mktemp("boxes")
    for box_format in FORMATS:
        with DatasetWriter(place / box_format, FIELDS) as writer:
            for number, (height, width) in enumerate(SIZES):
                rng = np.random.default_rng(number)
                image, edges = np.zeros((height, width, 1), np.uint8), np.zeros((number, 4), np.int64)
                for box in range(number):  # side by side, so that none hides another
                    left, right = box * width // number, (box + 1) * width // number - 1
                    top = int(rng.integers(height - 3))
                    edges[box] = left, top, right, int(rng.integers(top + 2, height + 1))
                    image[top : edges[box, 3], left:right] = 50 * (box + 1)
                boxes = written(edges, box_format, (height, width))
                writer.add({"image": image, "boxes": boxes, "labels": np.arange(number) + 1, "caption": f"{number}"})
    return place


WAYS: tuple[dict[str, Any], ...] = (
    {"flips": True},
    {"flips": True, "turns": True},
    {"at": "center", "pad": "zero", "flips": True},
    {"at": (-5, 9), "pad": "zero", "outside": True, "flips": True},
)


@pytest.mark.parametrize("box_format", FORMATS)
@pytest.mark.parametrize("way", WAYS)
def test_boxes_lie_on_their_pixels(packed: Path, box_format: Any, way: dict[str, Any]) -> None:
    """Wherever the crop lies, and however it is turned, mirrored or padded; labels stay with their boxes."""
    size, numbers = (16, 16) if "turns" in way else (18, 23), [0, 1, 2, 3] * 8
    crop = Crop(size if "pad" not in way else (24, 30), of="image", boxes="boxes", box_format=box_format, **way)
    dataset = PackedDataset(packed / box_format, crop=crop)
    torch.manual_seed(2)
    batch = dataset[numbers]
    images, kept = batch["image"][:, 0].numpy(), 0
    for image, boxes, labels in zip(images, batch["boxes"].to_list(), batch["labels"].to_list(), strict=True):
        visible = {int(gray) // 50: np.argwhere(image == gray) for gray in np.unique(image) if gray}
        assert labels.tolist() == sorted(visible)
        edges = [[*pixels.min(0)[::-1], *(pixels.max(0)[::-1] + 1)] for _, pixels in sorted(visible.items())]
        wanted = written(np.array(edges).reshape(-1, 4), box_format, image.shape)
        assert np.allclose(boxes.numpy(), wanted, atol=1e-9)
        kept += len(boxes)
    assert kept
    assert batch["caption"] == [f"{number}" for number in numbers]


@pytest.mark.parametrize("box_format", FORMATS)
@pytest.mark.parametrize("way", [{"scale": (0.5, 1)}, {"at": "center"}, {"at": "center", "short": 50}])
def test_boxes_are_resized_with_their_pixels(packed: Path, box_format: Any, way: dict[str, Any]) -> None:
    """Their edges are where the gray of the one box of a sample is half of it, to a pixel; labels stay with boxes."""
    crop = ResizedCrop((36, 42), of="image", boxes="boxes", box_format=box_format, **way)
    torch.manual_seed(2)
    batch = PackedDataset(packed / box_format, crop=crop)[[1] * 20]
    images, kept = batch["image"][:, 0].numpy(), 0
    for image, boxes, labels in zip(images, batch["boxes"].to_list(), batch["labels"].to_list(), strict=True):
        assert len(boxes) == len(labels)
        pixels = np.argwhere(image > 25)
        if len(pixels) and len(boxes):
            edges = np.array([[*pixels.min(0)[::-1], *(pixels.max(0)[::-1] + 1)]])
            scale = np.tile(image.shape[::-1], 2) if box_format == "yolo" else np.ones(4)
            assert abs((written(edges, box_format, image.shape)[0] - boxes[0].numpy()) * scale).max() < 1.5
            kept += 1
    assert kept > 10


def test_what_is_hardly_visible_is_left_out(packed: Path) -> None:
    """`min_visible` is the share of a box's area that must be in the crop; with 0 any pixel will do."""
    shares = {}
    for least in (0.0, 0.6, 1.0):
        crop = Crop((16, 16), of="image", boxes="boxes", box_format="xyxy", min_visible=least, seed=3)
        torch.manual_seed(0)
        shares[least] = PackedDataset(packed / "xyxy", crop=crop)[[2] * 40]["boxes"].lengths.sum().item()
    whole = np.asarray(PackedDataset(packed / "xyxy")[2]["boxes"])
    crop = Crop((16, 16), of="image", boxes="boxes", box_format="xyxy", seed=3)
    torch.manual_seed(0)
    batch = PackedDataset(packed / "xyxy", crop=crop)[[2] * 40]
    area = (whole[:, 2:] - whole[:, :2]).prod(1)
    counts = dict.fromkeys(shares, 0)
    for boxes, labels in zip(batch["boxes"].to_list(), batch["labels"].to_list(), strict=True):
        for (left, top, right, bottom), label in zip(boxes.tolist(), labels.tolist(), strict=True):
            share = (right - left) * (bottom - top) / area[label - 1]
            for least in counts:
                counts[least] += share >= least
    assert counts == shares
    assert shares[0.0] > shares[0.6] > shares[1.0]


def test_boxes_that_are_whole_in_the_crop_keep_their_values(tmp_path: Path) -> None:
    """To the bit, as COCO has them, in hundredths of pixels; a box without an area is left out."""
    values = (np.random.default_rng(0).integers(0, 5000, (2000, 4)) / 100).astype(np.float32)
    values[7, 2] = 0
    shares = np.random.default_rng(1).uniform(0.3, 0.5, (2000, 4))
    fields = [FIELDS[0], FieldSpec(name="boxes", dtype="float32", shape=(None, 4)), replace(FIELDS[1], name="shares")]
    with DatasetWriter(tmp_path / "d", fields) as writer:
        writer.add({"image": np.zeros((101, 102, 1), np.uint8), "boxes": values, "shares": shares})
    crop = Crop((101, 102), of="image", at="center", boxes="boxes", box_format="xywh")
    found = PackedDataset(tmp_path / "d", crop=crop)[0]["boxes"].numpy()
    assert np.array_equal(found, values[values[:, 2:].prod(1) > 0])
    crop = Crop((201, 202), of="image", pad="zero", boxes="shares", box_format="yolo", min_visible=1)
    assert len(PackedDataset(tmp_path / "d", crop=crop, fields=["image", "shares"])[0]["shares"]) == 2000


@pytest.mark.parametrize("verify", [False, True])
def test_loaders_give_the_same_boxes(packed: Path, verify: bool) -> None:
    """With threads and other batch sizes; batches are `Ragged`, samples tensors."""
    crop = Crop(16, of="image", flips=True, boxes="boxes", box_format="yolo")
    dataset = PackedDataset(packed / "yolo", crop=crop, extras=("number",), verify=verify)

    def epoch(size: int, threads: int) -> dict[int, list[Any]]:
        rows = {}
        for batch in Loader(dataset, size, shuffle=True, seed=4, threads=threads):
            assert isinstance(batch["boxes"], Ragged)
            for at, number in enumerate(batch["number"].tolist()):
                rows[number] = [batch["boxes"][at].tolist(), batch["labels"][at].tolist(), batch["image"][at].tolist()]
        return rows

    assert epoch(1, 0) == epoch(3, 2)
    assert dataset[3]["boxes"].shape[1:] == (4,)
    assert dataset[[]]["boxes"].values.shape == (0, 4)


def test_boxes_of_coco_say_how_they_are_written(tmp_path: Path) -> None:
    """A dataset packed from its json needs no `box_format`; all fields of its objects are filtered alike."""
    objects = [
        {"id": n, "image_id": 1, "category_id": 3, "bbox": [x, 2, 6, 5], "area": 30, "iscrowd": 0}
        for n, x in enumerate((0, 20, 12))
    ]
    save(tmp_path / "images" / "a.png", picture(20, 30))
    listed = {"images": [{"id": 1, "file_name": "a.png"}], "annotations": objects}
    (tmp_path / "i.json").write_text(json.dumps({**listed, "categories": [{"id": 3, "name": "cat"}]}))
    convert([f"image={tmp_path / 'images'}", f"boxes={tmp_path / 'i.json'}"], tmp_path / "out")
    sample = PackedDataset(tmp_path / "out", crop=Crop((10, 16), of="image", at=(0, 14), boxes="boxes"))[0]
    assert sample["boxes"].tolist() == [[6, 2, 6, 5], [0, 2, 4, 5]]
    assert (sample["ids"].tolist(), sample["labels"].tolist(), sample["areas"].tolist()) == ([1, 2], [0, 0], [30, 30])
    assert sample["image_id"].item() == 1


def test_as_many_boxes_in_every_sample(tmp_path: Path) -> None:
    """Fields of one shape are filtered, too."""
    boxes = np.array([[0, 0, 4, 4], [10, 10, 12, 14]])
    sample = {"image": np.zeros((16, 16, 3), np.uint8), "boxes": boxes, "labels": np.array([5, 6])}
    convert([sample, sample], tmp_path / "out")
    crop = Crop(6, of="image", at=(9, 9), boxes="boxes", box_format="xyxy")
    batch = PackedDataset(tmp_path / "out", crop=crop)[:]
    assert batch["boxes"].values.tolist() == [[1, 1, 3, 5]] * 2
    assert (batch["boxes"].dtype, batch["labels"].values.tolist()) == (torch.int64, [6, 6])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"boxes": "boxes"}, "does not say how the boxes of 'boxes' are written; give box_format="),
        ({"boxes": "labels"}, r"boxes: field 'labels' is array int64 \[any\]; numbers \(n, 4\) are expected"),
        ({"boxes": "others"}, "no field 'others' is read"),
        ({"boxes": "boxes", "box_format": "coco"}, "box_format 'coco': 'xywh' or"),
        ({"boxes": "boxes", "min_visible": 2}, "min_visible 2: a number from 0 to 1"),
    ],
)
def test_arguments_without_meaning_are_refused(packed: Path, options: dict[str, Any], reason: str) -> None:
    """The sentence says what is expected."""
    with pytest.raises(UsageError, match=reason):
        PackedDataset(packed / "xywh", crop=Crop(8, of="image", **options))
    with pytest.raises(UsageError, match=reason):
        PackedDataset(packed / "xywh", crop=ResizedCrop(8, of="image", **options))


def test_fields_that_are_as_long_in_most_samples_are_refused(tmp_path: Path) -> None:
    """Their rows would stay where boxes go; windows and samples of the same fields are refused as well."""
    with DatasetWriter(tmp_path / "d", FIELDS[:3]) as writer:
        for number in range(5):
            labels = np.zeros(3 if number else 2, np.int64)
            writer.add({"image": np.zeros((9, 9, 1), np.uint8), "boxes": np.ones((3, 4)), "labels": labels})
    crop = Crop(8, of="image", boxes="boxes", box_format="xywh")
    with pytest.raises(UsageError, match="field 'labels' has 2 rows and 'boxes' 3, and in most samples as many"):
        PackedDataset(tmp_path / "d", crop=crop)[0]
    with pytest.raises(UsageError, match="crop and points do not go together for a field"):
        PackedDataset(tmp_path / "d", crop=crop, fields=["image", "boxes"], points=PointSample(2, fields=["boxes"]))[0]
    with pytest.raises(UsageError, match="windows and volumes have none"):
        PackedDataset(tmp_path / "d", crop=crop, fields=["image", "boxes"], windows=Windows({"boxes": [0]}))
