"""Pairs of images of 16/64 and 48/192 px, uint8; also read by the loops of frameworks for training."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from file_datasets import InMemory, lmdb_samples, pair_files
from inputs.pictures import SCALE
from PIL import Image

from benchmark.inputs import LARGE, PNG_READ, SMALL, lmdb_pairs, pair_sources, pairs, png_pairs
from benchmark.loops import TAKES, Values, data_loader, data_loaders, in_ram, indexing, limits, loader_side, takes
from benchmark.measuring import Figures, Row, Side, checksum, epochs, files_of, repeated
from benchmark.store import Bench
from packer.convert import convert
from readers import Crop, Loader, Mix, PackedDataset

LIMIT = "the limit: index_select or np.take"
INDEXING = "in-RAM x[idx]"
NONE = "the same, none"
PNG = "PNG files, Pillow, DataLoader"
PNG_BYTES = "PNG files' bytes"
#: Pairs of 48/192 px are read in batches of so many if PNG files are too: there are few of them in a quick run.
BATCH = 32
#: Threads take some milliseconds to begin, which is a fifth of an epoch here: each pair comes several times.
REPEAT = 4
#: Pixels of a crop of the larger image.
CROP = 128
BARE = "a for loop over the Loader"
#: Microseconds of one small picture, and seconds of reading before: loops that decode faster are loaded meanwhile.
ONE, FIRST = 60, 1


def _fields(bench: Bench, size: int) -> list[Values]:
    samples = bench.arrays(pairs, size)
    return [samples["lr"], samples["hr"]]


def _loader(bench: Bench, size: int, codec: str, batch: int, repeat: int = 1, **options: Any) -> Side:
    dataset = PackedDataset(bench.packed(pairs, size, codec=codec))
    return loader_side(dataset, batch, repeat * checksum(_fields(bench, size)), repeat=repeat, **options)


def _data_loader(bench: Bench, codec: str, workers: int) -> Side:
    path, expected = bench.packed(pairs, SMALL, codec=codec), checksum(_fields(bench, SMALL))
    return data_loader(PackedDataset(path), 128, workers, name="packed", expected=expected, files=files_of(path))


def _one_by_one(bench: Bench, size: int, batch: int, dataset: Any, path: Path) -> list[Side]:
    """Read a dataset of the first of the pairs, which makes single samples."""
    numbers = np.random.default_rng(0).permutation(len(dataset))
    expected = checksum([values[numbers] for values in _fields(bench, size)])
    return data_loaders(dataset, numbers.tolist(), batch, expected, files_of(path))


def _png_sides(bench: Bench, size: int, batch: int) -> list[Side]:
    folder = bench.files(png_pairs, size, bench.some(PNG_READ[size]))
    return _one_by_one(bench, size, batch, pair_files(folder), folder)


@Row("pairs 16/64, none, batch 8, Loader", LIMIT, at_least=0.6, size=SMALL, batch=8)
@Row("pairs 16/64, none, batch 128, Loader", LIMIT, at_least=0.75, size=SMALL, batch=128)
@Row("pairs 48/192, none, batch 8, Loader", LIMIT, at_least=0.75, size=LARGE, batch=8)
@Row("pairs 48/192, none, batch 128, Loader", LIMIT, at_least=0.75, size=LARGE, batch=128)
def against_limit(bench: Bench, size: int, batch: int) -> list[Side]:
    """Gather: in small batches the calls around the copying count, in large ones the copying."""
    return [_loader(bench, size, "none", batch), *limits(_fields(bench, size), batch)]


@Row("pairs 16/64, none, batch 128, Loader", TAKES, at_least=0.95, size=SMALL, batch=128)
@Row("pairs 48/192, none, batch 8, Loader", TAKES, at_least=0.95, size=LARGE, batch=8)
def against_takes(bench: Bench, size: int, batch: int) -> list[Side]:
    """Gather as numpy does by one thread, and hand out tensors; into memory that is new, or used again."""
    return [_loader(bench, size, "none", batch), *takes(_fields(bench, size), batch)]


@Row("DataLoader(ds, num_workers=2), pairs 16/64, none, batch 128", "the same over in-RAM tensors", at_least=0.9)
def two_workers(bench: Bench) -> list[Side]:
    """Read by worker processes, which hand batches over through shared memory on both sides."""
    tensors = InMemory(**{name: torch.from_numpy(values) for name, values in bench.arrays(pairs, SMALL).items()})
    expected = checksum(_fields(bench, SMALL))
    theirs = data_loader(tensors, 128, 2, name="in RAM", expected=expected, collate_fn=lambda batch: batch)
    return [_data_loader(bench, "none", 2), theirs]


@Row("pairs 16/64, lz4, batch 8, Loader", INDEXING, at_least=1.2)
def lz4_against_indexing(bench: Bench) -> list[Side]:
    """Decode one frame a sample."""
    return [_loader(bench, SMALL, "lz4", 8), indexing(_fields(bench, SMALL), 8)]


@Row("pairs 16/64, lz4, samples/s at batch 8", "at batch 128", at_least=0.7)
def small_batches(bench: Bench) -> list[Side]:
    """Compare small batches with large ones, which cost about the same."""
    return [_loader(bench, SMALL, "lz4", 8), _loader(bench, SMALL, "lz4", 128, name="batch 128")]


@Row("pairs 16/64, lz4, batch 128, Loader", PNG, at_least=30, size=SMALL, codec="lz4", batch=128)
@Row("pairs 48/192, photo+lz4, Loader", PNG, at_least=25, size=LARGE, codec="photo+lz4", batch=BATCH)
def against_png(bench: Bench, size: int, codec: str, batch: int) -> list[Side]:
    """Measure what packing is for; photographs are stored about as small as PNG."""
    return [_loader(bench, size, codec, batch), *_png_sides(bench, size, batch)]


@Row("pairs 16/64, lz4, batch 128, Loader", "LMDB, one key a sample, DataLoader", at_least=3)
def lz4_against_lmdb(bench: Bench) -> list[Side]:
    """Compare with the usual way to use LMDB: LZ4 of pickled arrays."""
    path = bench.files(lmdb_pairs)
    return [_loader(bench, SMALL, "lz4", 128), *_one_by_one(bench, SMALL, 128, lmdb_samples(path), path)]


@Row("one picture of 64 px, none, ds[i]", at_most=ONE, unit="us", codec="none")
@Row("one picture of 64 px, lz4, ds[i]", at_most=ONE, unit="us", codec="lz4")
@Row("one picture of 64 px, zstd, ds[i]", at_most=ONE, unit="us", codec="zstd")
@Row("one picture of 64 px, photo+zstd, ds[i]", at_most=ONE, unit="us", codec="photo+zstd")
@Row("one picture of 64 px, JPEG, ds[i]", at_most=ONE, unit="us", codec="jpeg")
def one_picture(bench: Bench, codec: str) -> Figures:
    """Read pictures one by one, as training codes do that know only `__getitem__`."""
    folder = bench.files(png_pairs, SMALL, bench.some(PNG_READ[SMALL])) / "hr"
    if codec == "jpeg":
        files, folder = sorted(folder.iterdir()), bench.scratch("jpegs")
        folder.mkdir()
        for file in files:
            Image.open(file).save(folder / f"{file.stem}.jpg", quality=90)
    path = bench.scratch("one.packed")
    convert([f"image={folder}"], path, codec=codec)
    dataset = PackedDataset(path)
    numbers = np.random.default_rng(0).permutation(len(dataset)).tolist()

    def microseconds() -> float:
        start = time.perf_counter()
        for number in numbers:
            dataset[number]
        return 1e6 * (time.perf_counter() - start) / len(numbers)

    start = time.perf_counter()
    while time.perf_counter() - start < FIRST:
        microseconds()
    return repeated(bench.rounds, microseconds)


@Row("pairs 16/64, none, batch 128, Mix of two", "one dataset", at_least=0.7)
def mixed(bench: Bench) -> list[Side]:
    """Draw batches over two datasets."""
    path = bench.packed(pairs, SMALL)
    mix = Mix({PackedDataset(path): 1, PackedDataset(path): 1})
    loader = Loader(mix, 128, shuffle=True)
    expected = checksum([np.concatenate([values, values]) for values in _fields(bench, SMALL)])
    ours = epochs("Mix", lambda: loader, len(mix), expected, files_of(path))
    return [ours, _loader(bench, SMALL, "none", 128)]


@Row("pairs 16/64, auto, batch 128, Loader", NONE, at_least=0.25, size=SMALL, codec="auto", batch=128)
@Row("pairs 16/64, lz4, batch 128, Loader", NONE, at_least=0.6, size=SMALL, codec="lz4", batch=128)
@Row("pairs 48/192, lz4, batch 8, Loader", NONE, at_least=0.6, size=LARGE, codec="lz4", batch=8)
def against_none(bench: Bench, size: int, codec: str, batch: int) -> list[Side]:
    """Measure what room on photographs costs."""
    return [_loader(bench, size, one, batch, REPEAT, name=one) for one in (codec, "none")]


@Row("pairs 48/192, photo+lz4, stored bytes", PNG_BYTES, at_most=1.03, codec="photo+lz4")
@Row("pairs 48/192, photo+zstd, stored bytes", PNG_BYTES, at_most=0.93, codec="photo+zstd")
def stored_bytes(bench: Bench, codec: str) -> Figures:
    """Return how much larger it is than the PNG files that are packed."""
    folder = bench.files(png_pairs, LARGE, bench.some(PNG_READ[LARGE]))
    report = convert(pair_sources(folder), bench.scratch("out.packed"), codec=codec)
    stored = sum(column.stored for column in report.manifest.columns.values())
    return Figures(stored / sum(file.stat().st_size for file in files_of(folder)))


@Row("pairs 48/192, photo+lz4, threads=2", "threads=1", at_least=1.5)
def two_threads(bench: Bench) -> list[Side]:
    """Decode by two threads: of large frames that leaves the interpreter to others."""
    return [_loader(bench, LARGE, "photo+lz4", BATCH, REPEAT, name=f"threads={n}", threads=n) for n in (2, 1)]


@Row("pairs 48/192, none, crops of 128 px, mirrored, as float32", "the same of arrays in RAM", at_least=1.2)
def crops_to_float(bench: Bench) -> list[Side]:
    """Read what super-resolution is trained on: a loop crops, mirrors and converts in one pass."""
    crop = Crop(CROP, of="hr", aligned={"lr": SCALE}, flips=True)
    names, rng = ("lr", "hr"), np.random.default_rng(0)
    dataset = PackedDataset(bench.packed(pairs, LARGE), crop=crop, cast=dict.fromkeys(names, "float32"))
    lr, hr = _fields(bench, LARGE)

    def cropped(numbers: torch.Tensor) -> list[torch.Tensor]:
        places = rng.integers(0, (LARGE - CROP) // SCALE + 1, (len(numbers), 2))
        is_mirrored, batch = rng.random(len(numbers)) < 0.5, []
        for values, times in ((lr, 1), (hr, SCALE)):
            size = CROP // SCALE * times
            crops = np.stack(
                [
                    values[n, top : top + size, left : left + size]
                    for n, (top, left) in zip(numbers.tolist(), (places * times).tolist(), strict=True)
                ]
            )
            crops[is_mirrored] = crops[is_mirrored][:, :, ::-1]
            batch.append(torch.from_numpy(crops).float())
        return batch

    return [loader_side(dataset, BATCH, shuffle=True), in_ram("np slices", len(lr), BATCH, cropped)]


@Row("pairs 48/192, none, batch 128, Accelerate", BARE, at_least=0.8)
def accelerate(bench: Bench) -> list[Side]:
    """Read by what `Accelerator.prepare` makes of a Loader."""
    from accelerate import Accelerator

    path = bench.packed(pairs, LARGE)
    prepared = Accelerator(cpu=True).prepare(Loader(PackedDataset(path), 128, shuffle=True))
    expected = checksum(_fields(bench, LARGE))
    ours = epochs("Accelerate", lambda: prepared, len(prepared.dataset), expected, files_of(path))
    return [ours, _loader(bench, LARGE, "none", 128)]
