"""Crops of 64 px from pictures of 2040 x 1356, in batches of 16, at random places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from benchmark.inputs import large_pictures as pictures
from benchmark.loops import CROP, PngCrops, SubImageCrops, data_loader
from benchmark.measuring import Bench, Figures, Side, WrongContentError, checksum, epochs, files_of, row
from packer.format.manifest import read as read_manifest
from readers import Crop, Loader, PackedDataset

BATCH = 16
#: Crops of an epoch, where a batch takes a fraction of a millisecond; the others read so many a picture.
CROPS, EACH = 1600, 2


def _packed(bench: Bench, codec: str) -> Path:
    return pictures.packed(bench.store, bench.sizes.pictures, bench.sizes.picture, codec)


def _ours(bench: Bench, codec: str) -> Side:
    path = _packed(bench, codec)
    n, size = bench.sizes.pictures, bench.sizes.picture
    numbers = np.arange(CROPS) % n
    loader = Loader(PackedDataset(path, crop=Crop(size=CROP, of="hr")), BATCH, sampler=numbers)
    side = epochs("Loader", lambda: loader, CROPS, files=files_of(path))
    return replace(side, check=_check(path, pictures.pixels(bench.store, n, size)))


def _check(path: Path, pixels: NDArray[np.uint8]) -> Callable[[], None]:
    """Compares crops at given places with the source; where random ones lie is for the tests."""

    def check() -> None:
        room = np.array(pixels.shape[1:3]) - CROP
        places = np.random.default_rng(0).integers(0, room + 1, (len(pixels), 2))
        found = PackedDataset(path, crop=Crop(size=CROP, of="hr", at=places))[:]
        wanted = [p[y : y + CROP, x : x + CROP].copy() for p, (y, x) in zip(pixels, places.tolist(), strict=True)]
        if checksum(found) != checksum(wanted):
            raise WrongContentError("crops are not the pixels of the source")

    return check


def _theirs(dataset: Dataset[object], indices: Sequence[int], files: Sequence[Path]) -> list[Side]:
    # Two batches, so that two workers have one each: of the same size as ours they would leave one of them idle.
    return data_loader(dataset, indices, len(indices) // 2, None, files)


def _against_png(bench: Bench, codec: str) -> Figures:
    n = bench.sizes.pictures
    folder = pictures.png(bench.store, n, bench.sizes.picture)
    theirs = _theirs(PngCrops(folder), list(range(n)) * EACH, files_of(folder))
    return bench.race(_ours(bench, codec), *theirs)


def _sub_images(bench: Bench) -> Path:
    return pictures.sub_images(bench.store, bench.sizes.pictures, bench.sizes.picture)


def _against_sub_images(bench: Bench, codec: str) -> Figures:
    path = _sub_images(bench)
    dataset = SubImageCrops(path)
    indices = np.random.default_rng(0).integers(0, len(dataset), 2 * EACH * bench.sizes.pictures).tolist()
    return bench.race(_ours(bench, codec), *_theirs(dataset, indices, [path]))


PNG = "decoding the PNG file, Pillow, and cropping"
SUB = "sub-images of 480 px in LMDB as PNG"


@row("crops of 64 px, none, Loader", against=PNG, at_least=500)
def raw_against_png(bench: Bench) -> Figures:
    """Rows are copied from where they lie."""
    return _against_png(bench, "none")


@row("crops of 64 px, rowdelta+zstd, Loader", against=PNG, at_least=60)
def rowdelta_against_png(bench: Bench) -> Figures:
    """Only the bands that a crop touches are decoded."""
    return _against_png(bench, "rowdelta+zstd")


@row("crops of 64 px, none, Loader", against=SUB, at_least=1)
def raw_against_sub_images(bench: Bench) -> Figures:
    """Sub-images are what people cut so as not to decode whole pictures."""
    return _against_sub_images(bench, "none")


@row("crops of 64 px, rowdelta+zstd, Loader", against=SUB, at_least=1)
def rowdelta_against_sub_images(bench: Bench) -> Figures:
    """The same, stored small."""
    return _against_sub_images(bench, "rowdelta+zstd")


@row("large pictures, rowdelta+zstd, stored bytes", against="the sub-images' bytes", at_most=1)
def bytes_against_sub_images(bench: Bench) -> Figures:
    """Sub-images overlap, so that most pixels are stored four times."""
    stored = read_manifest(_packed(bench, "rowdelta+zstd")).columns["hr"].stored
    png = sum(
        file.stat().st_size for file in files_of(pictures.png(bench.store, bench.sizes.pictures, bench.sizes.picture))
    )
    theirs = _sub_images(bench).stat().st_size
    raw = read_manifest(_packed(bench, "none")).columns["hr"].stored
    megabytes = [
        f"{name} {size / 1e6:,.1f} MB"
        for name, size in (("none", raw), ("ours", stored), ("PNG files", png), ("sub-images", theirs))
    ]
    return Figures(stored / theirs, notes=(", ".join(megabytes),))
