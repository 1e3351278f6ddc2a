"""Pairs of images of 16/64 and 48/192 px, uint8."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from file_datasets import PairFiles
from numpy.typing import NDArray
from torch.utils.data import Subset

from benchmark.inputs import arrays, files, packed
from benchmark.loops import (
    InMemory,
    LmdbSamples,
    as_it_is,
    data_loader,
    data_loader_side,
    indexing,
    limits,
    loader_side,
    total,
)
from benchmark.measuring import Bench, Figures, Side, files_of, row
from packer.format.manifest import read as read_manifest
from readers import PackedDataset

SMALL, LARGE = 64, 192
LIMIT = "the limit: index_select or np.take"
PNG_FILES = "PNG files, Pillow, DataLoader"
#: PNG pairs of 48/192 px are read in batches of so many: there are few of them in a quick run.
LARGE_BATCH = 32


def _count(bench: Bench, size: int) -> int:
    return bench.sizes.small_pairs if size == SMALL else bench.sizes.large_pairs


def _fields(bench: Bench, size: int) -> list[NDArray[Any]]:
    samples = arrays.pairs(bench.store, size, _count(bench, size))
    return [samples["lr"], samples["hr"]]


def _packed(bench: Bench, size: int, codec: str) -> Path:
    return packed.pairs(bench.store, size, _count(bench, size), codec)


def _loader(bench: Bench, size: int, codec: str, batch_size: int, **options: Any) -> Side:
    return loader_side(_packed(bench, size, codec), batch_size, total(_fields(bench, size)), **options)


def _png_sides(bench: Bench, size: int, batch_size: int) -> list[Side]:
    count = bench.sizes.small_files if size == SMALL else bench.sizes.large_files
    folder = files.png_pairs(bench.store, size, _count(bench, size), count)
    indices = np.random.default_rng(0).permutation(count).tolist()
    expected = total(_fields(bench, size), indices)
    return data_loader(PairFiles(folder), indices, batch_size, expected, files_of(folder))


def _against_limit(bench: Bench, size: int, batch_size: int) -> Figures:
    fields = _fields(bench, size)
    return bench.race(_loader(bench, size, "none", batch_size), *limits(fields, batch_size, total(fields)))


@row("pairs 16/64, none, batch 8, Loader", against=LIMIT, at_least=0.6)
def small_8(bench: Bench) -> Figures:
    """Small batches of small images: the calls around the copying count."""
    return _against_limit(bench, SMALL, 8)


@row("pairs 16/64, none, batch 128, Loader", against=LIMIT, at_least=0.75)
def small_128(bench: Bench) -> Figures:
    """Larger batches: the copying counts."""
    return _against_limit(bench, SMALL, 128)


@row(
    "DataLoader(ds, num_workers=2), pairs 16/64, none, batch 128", against="the same over in-RAM tensors", at_least=0.9
)
def two_workers(bench: Bench) -> Figures:
    """Worker processes, which hand batches over through shared memory on both sides."""
    fields, path = _fields(bench, SMALL), _packed(bench, SMALL, "none")
    expected = total(fields)
    ours = data_loader_side(PackedDataset(path), 128, 2, expected=expected, files=files_of(path))
    memory = InMemory(**{name: torch.from_numpy(v) for name, v in zip(("lr", "hr"), fields, strict=True)})
    theirs = data_loader_side(memory, 128, 2, expected=expected, collate=as_it_is)
    return bench.race(replace(ours, name="packed"), replace(theirs, name="in RAM"))


def _lz4_against_indexing(bench: Bench, batch_size: int) -> Figures:
    fields = _fields(bench, SMALL)
    return bench.race(_loader(bench, SMALL, "lz4", batch_size), indexing(fields, batch_size, total(fields)))


@row("pairs 16/64, lz4, batch 8, Loader", against="in-RAM x[idx]", at_least=1.2)
def lz4_8(bench: Bench) -> Figures:
    """One frame a sample."""
    return _lz4_against_indexing(bench, 8)


@row("pairs 16/64, lz4, batch 128, Loader", against="in-RAM x[idx]", at_least=1.2)
def lz4_128(bench: Bench) -> Figures:
    """One frame a sample, larger batches."""
    return _lz4_against_indexing(bench, 128)


@row("pairs 16/64, lz4, samples/s at batch 8", against="at batch 128", at_least=0.7)
def lz4_8_against_128(bench: Bench) -> Figures:
    """Small batches cost about what large ones do."""
    return bench.race(_loader(bench, SMALL, "lz4", 8), _loader(bench, SMALL, "lz4", 128, name="batch 128"))


@row("pairs 16/64, lz4, batch 128, Loader", against=PNG_FILES, at_least=30)
def lz4_against_png(bench: Bench) -> Figures:
    """What packing is for."""
    return bench.race(_loader(bench, SMALL, "lz4", 128), *_png_sides(bench, SMALL, 128))


@row("pairs 16/64, lz4, batch 128, DataLoader(ds)", against=PNG_FILES, at_least=20)
def data_loader_against_png(bench: Bench) -> Figures:
    """The same through torch's DataLoader, without worker processes."""
    path = _packed(bench, SMALL, "lz4")
    expected = total(_fields(bench, SMALL))
    ours = data_loader_side(PackedDataset(path), 128, 0, expected=expected, files=files_of(path))
    return bench.race(replace(ours, name="packed"), *_png_sides(bench, SMALL, 128))


@row("pairs 16/64, lz4, batch 128, Loader", against="LMDB, one key a sample, DataLoader", at_least=3)
def lz4_against_lmdb(bench: Bench) -> Figures:
    """The usual way to use LMDB: LZ4 of pickled arrays."""
    count, fields = bench.sizes.lmdb, _fields(bench, SMALL)
    path = files.lmdb_samples(bench.store, SMALL, bench.sizes.small_pairs, count)
    indices = np.random.default_rng(0).permutation(count).tolist()
    theirs = data_loader(Subset(LmdbSamples(path), range(count)), indices, 128, total(fields, indices), [path])
    return bench.race(_loader(bench, SMALL, "lz4", 128), *theirs)


@row("pairs 48/192, none, batch 8, Loader", against=LIMIT, at_least=0.75)
def large_8(bench: Bench) -> Figures:
    """Large images."""
    return _against_limit(bench, LARGE, 8)


@row("pairs 48/192, none, batch 128, Loader", against=LIMIT, at_least=0.75)
def large_128(bench: Bench) -> Figures:
    """Large images in large batches: 15 MB each, on memory that is used again."""
    return _against_limit(bench, LARGE, 128)


@row("pairs 48/192, rowdelta+zstd, Loader", against=PNG_FILES, at_least=8)
def rowdelta_against_png(bench: Bench) -> Figures:
    """Stored about as small as PNG."""
    ours = _loader(bench, LARGE, "rowdelta+zstd", LARGE_BATCH)
    return bench.race(ours, *_png_sides(bench, LARGE, LARGE_BATCH))


@row("pairs 48/192, rowdelta+zstd, stored bytes", against="PNG files' bytes", at_most=1.1)
def rowdelta_bytes(bench: Bench) -> Figures:
    """How much larger than the PNG files of the same samples."""
    count = bench.sizes.large_files
    folder = files.png_pairs(bench.store, LARGE, bench.sizes.large_pairs, count)
    manifest = read_manifest(packed.pairs(bench.store, LARGE, bench.sizes.large_pairs, "rowdelta+zstd", first=count))
    stored = sum(column.stored for column in manifest.columns.values())
    return Figures(stored / sum(file.stat().st_size for file in files_of(folder)))


@row("pairs 48/192, rowdelta+zstd, threads=2", against="threads=1", at_least=1.5)
def two_threads(bench: Bench) -> Figures:
    """Decoding large frames leaves the interpreter to others."""
    one, two = (_loader(bench, LARGE, "rowdelta+zstd", LARGE_BATCH, name=f"threads={n}", threads=n) for n in (1, 2))
    return bench.race(two, one)
