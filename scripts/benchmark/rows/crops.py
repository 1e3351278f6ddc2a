"""Crops of 64 px from pictures of 2040 x 1356, in batches of 16, at random places."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch.utils.data import Dataset

from benchmark.inputs import pictures, png_pictures, sub_images
from benchmark.loops import CROP, PngCrops, SubImageCrops, data_loaders
from benchmark.measuring import Bench, Figures, Side, WrongContentError, checksum, epochs, files_of, row
from packer.format.manifest import read as read_manifest
from readers import Crop, Loader, PackedDataset

BATCH = 16
#: Crops of an epoch, where a batch takes a fraction of a millisecond; the others read so many a picture.
CROPS, EACH = 1600, 2
PNG = "decoding the PNG file, Pillow, and cropping"
SUB = "sub-images of 480 px in LMDB as PNG"


def _ours(bench: Bench, codec: str) -> Side:
    """Epochs of random crops; crops at given places are compared with the source."""
    path, pixels = bench.packed(pictures, codec=codec), bench.arrays(pictures)["hr"]
    loader = Loader(PackedDataset(path, crop=Crop(size=CROP, of="hr")), BATCH, sampler=np.arange(CROPS) % len(pixels))

    def check() -> None:
        room = np.array(pixels.shape[1:3]) - CROP
        places = np.random.default_rng(0).integers(0, room + 1, (len(pixels), 2))
        found = PackedDataset(path, crop=Crop(size=CROP, of="hr", at=places))[:]
        wanted = [p[y : y + CROP, x : x + CROP].copy() for p, (y, x) in zip(pixels, places.tolist(), strict=True)]
        if checksum(found) != checksum(wanted):
            raise WrongContentError("crops are not the pixels of the source")

    return replace(epochs("Loader", lambda: loader, CROPS, files=files_of(path)), check=check)


@row("crops of 64 px, none, Loader", PNG, at_least=500, codec="none", is_sub=False)
@row("crops of 64 px, photo+lz4, Loader", PNG, at_least=60, codec="photo+lz4", is_sub=False)
@row("crops of 64 px, none, Loader", SUB, at_least=1, codec="none", is_sub=True)
@row("crops of 64 px, photo+lz4, Loader", SUB, at_least=1, codec="photo+lz4", is_sub=True)
def crops(bench: Bench, codec: str, is_sub: bool) -> Figures:
    """Only the bands that a crop touches are decoded; people cut sub-images so as not to decode whole pictures."""
    path = bench.files(sub_images if is_sub else png_pictures)
    dataset: Dataset[object] = SubImageCrops(path) if is_sub else PngCrops(path)
    count = EACH * len(bench.arrays(pictures)["hr"])
    numbers = np.random.default_rng(0).permutation(count) % len(dataset)  # type: ignore[arg-type]  # both have a length
    # Two batches, so that two workers have one each: of the same size as ours they would leave one of them idle.
    theirs = data_loaders(dataset, numbers.tolist(), count // 2, None, files_of(path))
    return bench.race(_ours(bench, codec), *theirs)


@row("large pictures, photo+lz4, stored bytes", "the sub-images' bytes", at_most=1)
def bytes_against_sub_images(bench: Bench) -> Figures:
    """Sub-images overlap, so that most pixels are stored four times."""
    sizes: dict[str, int] = {}
    for codec in ("none", "photo+lz4"):
        sizes[codec] = read_manifest(bench.packed(pictures, codec=codec)).columns["hr"].stored
    for make in (png_pictures, sub_images):
        sizes[make.__name__] = sum(file.stat().st_size for file in files_of(bench.files(make)))
    note = ", ".join(f"{name} {size / 1e6:,.1f} MB" for name, size in sizes.items())
    return Figures(sizes["photo+lz4"] / sizes["sub_images"], notes=(note,))
