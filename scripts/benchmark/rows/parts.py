"""Parts of samples: crops of large pictures, windows of steps.

Crops are of 64 px from pictures of 2040 x 1356, in batches of 16, at random places. Windows are two pictures and
sixteen actions of an episode, or seven frames of a clip with one crop for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from file_datasets import CROP, lmdb_crops, png_crops
from numpy.typing import NDArray
from PIL import Image

from benchmark.inputs import episodes, pictures, png_clips, png_pictures, sub_images
from benchmark.loops import Values, data_loaders, in_ram, loader_side, shuffled
from benchmark.measuring import Row, Side, checksum, epochs, files_of
from benchmark.store import Bench
from packer.convert import convert
from packer.sources import SourceOptions
from readers import Crop, PackedDataset, Windows

BATCH = 16
#: Crops of an epoch of ours; the others read so many a picture, since they take much longer.
CROPS, EACH = 1600, 2
PNG = "decoding the PNG file, Pillow, and cropping"
SUB = "sub-images of 480 px in LMDB as PNG"
#: An epoch of windows is over soon: each comes several times.
WINDOWS, REPEAT = 64, 4
OFFSETS = {"image": np.arange(-1, 1), "actions": np.arange(16)}
#: Two windows a batch: more of them would share frames, which are few here.
FRAMES, SIDE, CLIPS = 7, 256, 2
CLIPS_PNG = "the PNG files, Pillow, and cropping"
TAKE = "np.take of the same rows in RAM"


@Row("crops of 64 px, photo+lz4, Loader", PNG, at_least=60, is_sub=False)
@Row("crops of 64 px, photo+lz4, Loader", SUB, at_least=1, is_sub=True)
def crops(bench: Bench, is_sub: bool) -> list[Side]:
    """Decode the bands that a crop touches alone; people cut sub-images so as not to decode whole pictures."""
    packed = PackedDataset(bench.packed(pictures, codec="photo+lz4"), crop=Crop(CROP, of="hr"))
    count = len(packed)
    ours = loader_side(packed, BATCH, sampler=np.arange(CROPS) % count)
    others = bench.files(sub_images if is_sub else png_pictures)
    dataset = lmdb_crops(others) if is_sub else png_crops(others)
    numbers = np.random.default_rng(0).permutation(EACH * count) % len(dataset)
    # Two batches, so that two workers have one each: of the same size as ours they would leave one of them idle.
    return [ours, *data_loaders(dataset, numbers.tolist(), EACH * count // 2, None, files_of(others))]


@Row("windows of episodes, 2 pictures and 16 actions, none, batch 64, Loader", TAKE, at_least=0.6)
def of_episodes(bench: Bench) -> list[Side]:
    """Read whole windows at random anchors, of pictures of 84 x 84."""
    fields, windows = bench.arrays(episodes), Windows({name: own.tolist() for name, own in OFFSETS.items()})
    dataset = PackedDataset(bench.packed(episodes), windows=windows)
    anchors = np.concatenate([np.arange(a + 1, b - 15) for a, b in pairwise(fields["offsets"])] * REPEAT)

    def taken(numbers: torch.Tensor) -> list[Values]:
        some = anchors[numbers.numpy(), None]
        return [fields[name].take(some + own, axis=0) for name, own in OFFSETS.items()]

    expected = sum(checksum(taken(numbers)) for numbers in shuffled(len(anchors), WINDOWS))
    ours = loader_side(dataset, WINDOWS, expected, shuffle=True, repeat=REPEAT)
    return [ours, in_ram("np.take", len(anchors), WINDOWS, taken, expected)]


def clips_packed(path: Path, bench: Bench) -> None:
    """Write a packed dataset of the clips."""
    convert([f"frames={bench.files(png_clips)}"], path, workers=0, source=SourceOptions(samples="folders"))


@Row("windows of 7 frames of 720p, one crop of 256 px, auto, Loader", CLIPS_PNG, at_least=40)
def of_clips(bench: Bench) -> list[Side]:
    """Read what video super-resolution reads."""
    folder, windows = bench.files(png_clips), Windows({"frames": range(FRAMES)})
    dataset = PackedDataset(bench.files(clips_packed), windows=windows, crop=Crop(SIDE, of="frames"))
    clips = [sorted(clip.glob("*.png")) for clip in sorted(folder.iterdir())]

    def pillow() -> Iterator[Values]:
        for number in np.random.permutation(len(clips)).tolist():
            yield np.stack([_cropped(file) for file in clips[number][:FRAMES]])

    ours = loader_side(dataset, CLIPS, sampler=np.random.default_rng(0).integers(0, len(dataset), 64 * CLIPS))
    return [ours, epochs("Pillow", pillow, len(clips), files=files_of(folder))]


def _cropped(file: Path) -> NDArray[np.uint8]:
    with Image.open(file) as picture:
        return np.asarray(picture.crop((8, 8, 8 + SIDE, 8 + SIDE)))
