"""Parts of samples: crops of large pictures, windows of steps.

Crops are of 64 px from pictures of 2040 x 1356, in batches of 16, at random places. Windows are two pictures and
sixteen actions of an episode, or seven frames of a clip with one crop for all.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
from file_datasets import CROP, lmdb_crops, png_crops
from numpy.typing import NDArray
from PIL import Image

from benchmark.inputs import episodes, pictures, png_clips, png_pictures, sub_images
from benchmark.loops import Batches, data_loaders
from benchmark.measuring import Figures, Row, Side, checksum, epochs, files_of
from benchmark.store import Bench
from packer.convert import convert
from packer.format.manifest import read as read_manifest
from packer.sources.opening import SourceOptions
from readers import Crop, Loader, PackedDataset, Windows

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


@Row("crops of 64 px, none, Loader", PNG, at_least=500, codec="none", is_sub=False)
@Row("crops of 64 px, photo+lz4, Loader", PNG, at_least=60, codec="photo+lz4", is_sub=False)
@Row("crops of 64 px, none, Loader", SUB, at_least=1, codec="none", is_sub=True)
@Row("crops of 64 px, photo+lz4, Loader", SUB, at_least=1, codec="photo+lz4", is_sub=True)
def crops(bench: Bench, codec: str, is_sub: bool) -> list[Side]:
    """Decode the bands that a crop touches alone; people cut sub-images so as not to decode whole pictures."""
    path, count = bench.packed(pictures, codec=codec), len(bench.arrays(pictures)["hr"])
    loader = Loader(PackedDataset(path, crop=Crop(CROP, of="hr")), BATCH, sampler=np.arange(CROPS) % count)
    ours = epochs("Loader", lambda: loader, CROPS, files=files_of(path))
    others = bench.files(sub_images if is_sub else png_pictures)
    dataset = lmdb_crops(others) if is_sub else png_crops(others)
    numbers = np.random.default_rng(0).permutation(EACH * count) % len(dataset)
    # Two batches, so that two workers have one each: of the same size as ours they would leave one of them idle.
    return [ours, *data_loaders(dataset, numbers.tolist(), EACH * count // 2, None, files_of(others))]


@Row("large pictures, photo+lz4, stored bytes", "the sub-images' bytes", at_most=1)
def bytes_against_sub_images(bench: Bench) -> Figures:
    """Compare bytes: sub-images overlap, so that most pixels are stored four times."""
    stored = read_manifest(bench.packed(pictures, codec="photo+lz4")).columns["hr"].stored
    return Figures(stored / bench.files(sub_images).stat().st_size)


@Row("windows of episodes, 2 pictures and 16 actions, none, batch 64, Loader", TAKE, at_least=0.6, codec="none")
@Row("windows of episodes, 2 pictures and 16 actions, lz4, batch 64, Loader", TAKE, at_least=0.3, codec="lz4")
def of_episodes(bench: Bench, codec: str) -> list[Side]:
    """Read whole windows at random anchors, of pictures of 84 x 84."""
    fields, path = bench.arrays(episodes), bench.packed(episodes, codec=codec)
    dataset = PackedDataset(path, windows=Windows({name: own.tolist() for name, own in OFFSETS.items()}))
    loader = Loader(dataset, WINDOWS, shuffle=True, repeat=REPEAT)
    edges = fields["offsets"]
    anchors = np.concatenate([np.arange(a + 1, b - 15) for a, b in pairwise(edges)] * REPEAT)

    def taken() -> Batches:
        order = np.random.permutation(anchors)
        for at in range(0, len(order), WINDOWS):
            some = order[at : at + WINDOWS, None]
            yield [fields[name].take(some + own, axis=0) for name, own in OFFSETS.items()]

    expected = sum(map(checksum, taken()))
    ours = epochs("Loader", lambda: loader, len(anchors), expected, files_of(path))
    return [ours, epochs("np.take", taken, len(anchors), expected)]


def clips_packed(path: Path, bench: Bench) -> None:
    """Write a packed dataset of the clips."""
    convert([f"frames={bench.files(png_clips)}"], path, workers=0, source=SourceOptions(samples="folders"))


@Row("windows of 7 frames of 720p, one crop of 256 px, auto, Loader", CLIPS_PNG, at_least=40)
def of_clips(bench: Bench) -> list[Side]:
    """Read what video super-resolution reads."""
    folder, path = bench.files(png_clips), bench.files(clips_packed)
    dataset = PackedDataset(path, windows=Windows({"frames": range(FRAMES)}), crop=Crop(SIDE, of="frames"))
    loader = Loader(dataset, CLIPS, sampler=np.random.default_rng(0).integers(0, len(dataset), 64 * CLIPS))
    clips = [sorted(clip.glob("*.png")) for clip in sorted(folder.iterdir())]

    def pillow() -> Batches:
        for number in np.random.permutation(len(clips)).tolist():
            yield np.stack([_cropped(file) for file in clips[number][:FRAMES]])

    ours = epochs("Loader", lambda: loader, len(loader.order), files=files_of(path))
    return [ours, epochs("Pillow", pillow, len(clips), files=files_of(folder))]


def _cropped(file: Path) -> NDArray[np.uint8]:
    with Image.open(file) as picture:
        return np.asarray(picture.crop((8, 8, 8 + SIDE, 8 + SIDE)))
