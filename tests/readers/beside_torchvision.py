"""What torchvision and timm make of our batches. tests/readers/test_vision.py runs this file, in a process with both.

The code that pages show for them is taken from there and run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import readme
import torch
from cpu_torchvision import torchvision
from jpeg_files import as_jpeg, photograph
from torchvision.transforms import InterpolationMode, v2
from torchvision.tv_tensors import Image, Mask

from packer.convert import convert
from packer.errors import UsageError
from packer.format import FieldSpec
from packer.sources import SourceOptions
from packer.writer import DatasetWriter
from readers import PackedDataset, ResizedCrop, as_tv_tensors
from readers.draws import draw_visits

ROOT = Path(__file__).resolve().parents[2]
CLASSES = ("cat", "dog", "owl")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`train`: three classes of one JPEG file each, and `train.packed`; `scenes.packed`: images and their masks."""
    place = tmp_path_factory.mktemp("vision")
    for number in range(3):
        file = place / "train" / CLASSES[number] / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(as_jpeg(photograph(500 + number, 600, number)))
    convert(str(place / "train"), place / "train.packed", source=SourceOptions(label="folder"), workers=0)
    channels = {"image": 3, "label": 1}
    fields = [FieldSpec(name=name, dtype="uint8", kind="image", shape=(80, 80, c)) for name, c in channels.items()]
    with DatasetWriter(place / "scenes.packed", fields) as writer:
        for number in range(8):
            scene = photograph(80, 80, number)
            writer.add({"image": scene, "label": scene[:, :, :1]})
    return place


def run(page: str, part: str, replaced: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Run the block of a page that has this part, with some texts replaced; return its names."""
    blocks = [block["code"] for block in readme.BLOCK.finditer((ROOT / "docs" / page).read_text()) if block["code"]]
    (code,) = (block for block in blocks if part in block)
    for old, new in replaced.items():
        assert old in code
        code = code.replace(old, new)
    names: dict[str, Any] = {}
    exec(compile(code, page, "exec"), names)
    return names


# ---------------------------------------------------------------- models


@pytest.mark.parametrize("part", ["torchvision.models.resnet18", 'timm.create_model("resnet18"'])
def test_models_take_batches(place: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """The lines that a page shows reach a loss from which every weight has a gradient."""
    monkeypatch.chdir(place)
    names = run("want/frameworks.md", part)
    assert names["batch"]["image"].shape == (3, 3, 224, 224)
    names["loss"].backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in names["model"].parameters())


def test_create_loader_of_timm_reads_samples(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The class that a page shows gives it images and labels; its prefetcher needs CUDA."""
    monkeypatch.chdir(place)
    alone = "num_workers=0, persistent_workers=False, use_prefetcher=False"
    replaced = {"num_workers=8": alone, "batch_size=128": "batch_size=1"}
    names = run("want/frameworks.md", "create_loader(", replaced)
    batches = list(names["loader"])
    assert [images.shape for images, _ in batches] == [(1, 3, 224, 224)] * 3
    assert sorted(torch.cat([labels for _, labels in batches]).tolist()) == [0, 1, 2]


# ---------------------------------------------------------------- photographs


def test_classes_are_those_of_image_folder(place: Path) -> None:
    """Their names, their numbers, and the label of every sample."""
    files, dataset = torchvision.datasets.ImageFolder(place / "train"), PackedDataset(place / "train.packed")
    assert dataset.classes == files.classes == list(CLASSES)
    assert dataset.class_to_idx == files.class_to_idx
    assert dataset.targets == files.targets


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_values_of_crops_are_those_of_torchvision(place: Path, exact: bool, mode: Any) -> None:
    """Random and centred crops hold its very values, or within one step on average where less is decoded."""
    path, numbers = place / "train.packed", list(range(3)) * 8
    whole = PackedDataset(path)[:]["image"]
    random, center = (
        ResizedCrop(64, of="image", exact=exact, interpolation=mode),
        ResizedCrop(64, of="image", at="center", short=80, exact=exact, interpolation=mode),
    )
    torch.manual_seed(1)
    crops = PackedDataset(path, crop=random)[numbers]["image"]
    torch.manual_seed(1)
    drawn = random._placing.place(
        torch.tensor([whole[n].shape[1:] for n in numbers]).numpy(), draw_visits(len(numbers))
    )
    wanted = []
    for number, (top, left), (height, width), mirrored in zip(
        numbers, drawn.corners, drawn.sides, drawn.mirrored, strict=True
    ):
        box = top, left, height, width
        crop = v2.functional.resized_crop(whole[number], *box, [64, 64], InterpolationMode(mode), antialias=True)
        wanted.append(v2.functional.horizontal_flip(crop) if mirrored else crop)
    assert close(crops, torch.stack(wanted), exact)
    middle = v2.Compose([v2.Resize(80, InterpolationMode(mode), antialias=True), v2.CenterCrop(64)])
    assert close(PackedDataset(path, crop=center)[:]["image"], torch.stack([middle(image) for image in whole]), exact)


def close(images: torch.Tensor, wanted: torch.Tensor, exact: bool) -> bool:
    if exact:
        return torch.equal(images, wanted)
    assert not torch.equal(images, wanted)
    return bool(((images.float() - wanted.float()).abs().mean((1, 2, 3)) < 1).all())


# ---------------------------------------------------------------- transforms.v2


def types(batch: dict[str, Any]) -> dict[str, type]:
    return {name: type(value[0] if isinstance(value, list) else value) for name, value in batch.items()}


def test_images_and_masks_of_a_batch_and_of_a_sample(packed: Path) -> None:
    """Tensors (B, C, H, W), or (C, H, W), also in lists, are images; masks are named; the rest stays what it is."""
    ds = PackedDataset(packed)
    for read in (ds[:4], ds[3]):
        typed = as_tv_tensors(read, masks=("depth",))
        images = {"lr": Image, "depth": Mask, "picture": Image}
        assert types(typed) == types(read) | images
        assert typed["lr"].data_ptr() == read["lr"].data_ptr()
        assert not [name for name in ("x", "label", "xyz") if typed[name] is not read[name]]
        assert typed["caption"] == read["caption"]
    assert {type(image) for image in as_tv_tensors(ds[:4])["picture"]} == {Image}


def test_axes_tell_a_batch_from_a_sample() -> None:
    """Arrays of three axes next to batches of images are none; masks have any number of axes; 5 channels are others."""
    batch = {"image": torch.zeros(2, 3, 8, 8), "steps": torch.zeros(2, 5, 7), "mask": torch.zeros(2, 8, 8)}
    assert types(as_tv_tensors(batch, ["mask"])) == {"image": Image, "steps": torch.Tensor, "mask": Mask}
    sample = {"image": torch.zeros(1, 8, 8), "mask": torch.zeros(8, 8), "bands": torch.zeros(5, 8, 8)}
    assert types(as_tv_tensors(sample, ["mask"])) == {"image": Image, "mask": Mask, "bands": torch.Tensor}


def test_what_has_no_image_is_refused(rows: Path) -> None:
    """A batch without images, and a mask that there is not."""
    with pytest.raises(UsageError, match=r"no field is an image, .*: x \[4, 33\], y \[4\]"):
        as_tv_tensors(PackedDataset(rows)[:4])
    with pytest.raises(UsageError, match="no field 'label' is read; there are x, y"):
        as_tv_tensors(PackedDataset(rows)[:4], masks=("label",))


def test_transforms_change_images_and_masks_alike(place: Path) -> None:
    """One draw moves both, pixel by pixel; without the types the mask stays where it was."""
    batch = PackedDataset(place / "scenes.packed")[:]
    move = v2.RandomAffine(0, translate=(0.3, 0.3))
    moved = move(as_tv_tensors(batch, masks=("label",)))
    assert not torch.equal(moved["image"], batch["image"])
    assert torch.equal(moved["label"], moved["image"][:, :1])
    assert torch.equal(move(batch)["label"], batch["label"])


def test_transforms_of_a_batch_and_of_its_samples(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block that a page shows reads both; its draws for each sample differ, those for a batch are one."""
    monkeypatch.chdir(place)
    names = run("want/augmentation.md", "v2.ColorJitter", {"Crop(64, ": 'Crop(80, at="center", '})
    assert names["image"].shape == (8, 3, 80, 80)
    plain = PackedDataset("scenes.packed")[:]["label"]
    flipped = {}
    for way in ("each", "alike"):
        labels = [names[way][:]["label"] for _ in range(8)]
        assert all(
            torch.equal(one, old) or torch.equal(one, old.flip(-1))
            for label in labels
            for one, old in zip(label, plain, strict=True)
        )
        flipped[way] = [sum(not torch.equal(*pair) for pair in zip(label, plain, strict=True)) for label in labels]
    assert set(flipped["alike"]) == {0, 8}
    assert not set(flipped["each"]) <= {0, 8}
