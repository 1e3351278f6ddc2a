"""Random resized crops of photographs: folders of JPEG files, FFCV and packed datasets, in turn in one run.

    $ scripts/compare --only photographs

Crops have 224 pixels, of files of 400 to 600, one of each file, or two as SimCLR takes them; batches 64. Files are
read as torchvision's ImageFolder and its RandomResizedCrop read them, by Pillow, without torchvision itself.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from inputs.pictures import photographs
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from comparing.systems import ffcv_epochs
from packer.convert import convert
from packer.sources import SourceOptions
from readers import Loader, PackedDataset, ResizedCrop

NAME = "photographs"
FILES, BATCH, SIZE, ROUNDS, WORKERS = 1200, 64, 224, 3, 2


def make_files(folder: Path, count: int = FILES) -> Path:
    """Write `count` JPEG files of 400 to 600 px into folders of classes, unless they are there."""
    if not (folder / "done").exists():
        rng = np.random.default_rng(0)
        for name, picture in photographs():
            scale = max(1.0, 600 / min(picture.size))
            large = picture.resize((math.ceil(picture.width * scale), math.ceil(picture.height * scale)))
            for number in range(-(-count // 9)):
                width, height = rng.integers(400, 601, 2).tolist()
                left, top = rng.integers(0, np.array(large.size) - (width, height) + 1).tolist()
                path = folder / "files" / name / f"{number:04d}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                large.crop((left, top, left + width, top + height)).save(path, quality=90)
        (folder / "done").touch()
    return folder / "files"


class Folder(Dataset[Any]):
    """JPEG files by folder of their class, cropped at random and resized by Pillow, as torchvision does it.

    Args:
        views: crops of each file; more than one are stacked.
    """

    def __init__(self, folder: Path, views: int = 1) -> None:
        self.views = views
        self.paths = sorted(folder.glob("*/*.jpg"))
        self.classes = {path.parent.name: n for n, path in enumerate(sorted(folder.glob("*/0000.jpg")))}

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        path = self.paths[number]
        with Image.open(path) as file:
            image = file.convert("RGB")
        crops = [self._crop(image) for _ in range(self.views)]
        return crops[0] if self.views == 1 else torch.stack(crops), self.classes[path.parent.name]

    def _crop(self, image: Image.Image) -> torch.Tensor:
        for _ in range(10):
            area = image.width * image.height * float(torch.empty(()).uniform_(0.08, 1))
            shape = math.exp(float(torch.empty(()).uniform_(math.log(3 / 4), math.log(4 / 3))))
            width, height = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
            if width <= image.width and height <= image.height:
                break
        left, top = (int(torch.randint(max(room, 0) + 1, ())) for room in (image.width - width, image.height - height))
        crop = image.crop((left, top, left + width, top + height)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        if torch.rand(()) < 0.5:
            crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.asarray(crop).copy()).permute(2, 0, 1)


def compare(folder: Path, count: int = FILES, rounds: int = ROUNDS) -> str:
    """Pack the files by all systems, read epochs in turn, and return a table: images a second, seconds and bytes."""
    files = make_files(folder / f"{count}", count)
    loose = Folder(files)
    written = {"files": (0.0, sum(path.stat().st_size for path in loose.paths))}
    packed = folder / f"{count}.packed"
    began = time.perf_counter()
    convert(str(files), packed, source=SourceOptions(label="folder"), overwrite=True, workers=WORKERS)
    seconds = time.perf_counter() - began
    written["packer"] = seconds, sum(path.stat().st_size for path in packed.rglob("*") if path.is_file())
    dataset, twice = (
        PackedDataset(packed, ["image", "label"], crop=ResizedCrop(SIZE, of="image", views=views))
        for views in (None, 2)
    )
    ways: dict[str, Callable[[], Iterable[Any]]] = {
        f"files, DataLoader of {WORKERS} workers": DataLoader(loose, BATCH, True, num_workers=WORKERS).__iter__,
        **{
            f"packer, Loader of {threads} threads": Loader(dataset, BATCH, shuffle=True, threads=threads).__iter__
            for threads in (1, 2)
        },
        f"packer, DataLoader of {WORKERS} workers": DataLoader(dataset, BATCH, True, num_workers=WORKERS).__iter__,
        f"two views of files, DataLoader of {WORKERS} workers": DataLoader(
            Folder(files, views=2), BATCH, True, num_workers=WORKERS
        ).__iter__,
        "two views, packer, Loader of 2 threads": Loader(twice, BATCH, shuffle=True, threads=2).__iter__,
    }
    try:
        written["FFCV"], more = _ffcv(loose, folder / f"{count}.beton")
        ways |= more
    except ImportError as error:
        print(f"compare: FFCV is left out: {error}", file=sys.stderr)
    rates: dict[str, list[float]] = {name: [] for name in ways}
    torch_threads = torch.get_num_threads()
    for _ in range(rounds):
        for name, begin in ways.items():
            torch.set_num_threads(torch_threads)  # FFCV sets their number for the whole process
            began = time.perf_counter()
            for _ in begin():
                pass
            rates[name].append(len(loose) / (time.perf_counter() - began))
    lines = ["| random resized crops of photographs | images a second |", "| --- | ---: |"]
    lines += [f"| {name} | {statistics.median(found):,.0f} |" for name, found in rates.items()]
    lines += ["", "| | packing, s | MB |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {seconds:.1f} | {nbytes / 1e6:.1f} |" for name, (seconds, nbytes) in written.items()]
    return "\n".join([*lines, "", f"- {len(loose):,} files; {os.cpu_count()} processors."])


def _ffcv(loose: Folder, path: Path) -> tuple[tuple[float, int], dict[str, Callable[[], Iterable[Any]]]]:
    """Write the same files by FFCV, their JPEG kept; return seconds and bytes, and what begins an epoch."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.transforms import RandomHorizontalFlip, ToTensor
    from ffcv.writer import DatasetWriter

    began = time.perf_counter()
    fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=90), "label": IntField()}
    DatasetWriter(str(path), fields, num_workers=WORKERS).from_indexed_dataset(_Whole(loose))
    written = time.perf_counter() - began, path.stat().st_size

    def pipelines() -> dict[str, list[Any]]:
        image = [RandomResizedCropRGBImageDecoder((SIZE, SIZE)), RandomHorizontalFlip(), ToTensor()]
        return {"image": image, "label": [IntDecoder(), ToTensor()]}

    return written, {f"FFCV, {name}": way for name, way in ffcv_epochs(path, BATCH, pipelines).items()}


class _Whole(Dataset[Any]):
    """The pictures of a folder as Pillow reads them, for FFCV, which encodes them anew."""

    def __init__(self, loose: Folder) -> None:
        self.loose = loose

    def __len__(self) -> int:
        return len(self.loose)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        path = self.loose.paths[number]
        with Image.open(path) as file:
            return file.convert("RGB"), self.loose.classes[path.parent.name]
