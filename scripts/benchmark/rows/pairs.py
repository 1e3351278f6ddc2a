"""Pairs of images of 16/64 and 48/192 px, uint8; also read by the loops of frameworks for training."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np
import torch
from file_datasets import InMemory, lmdb_samples, pair_files

from benchmark.inputs import LARGE, LMDB_PAIRS, PNG_FILES, SMALL, lmdb_pairs, pairs, png_pairs
from benchmark.loops import Values, data_loader, data_loaders, indexing, limits, loader_side
from benchmark.measuring import Bench, Figures, Side, checksum, epochs, files_of, row
from packer.format.manifest import read as read_manifest
from readers import Loader, Mix, PackedDataset

LIMIT = "the limit: index_select or np.take"
INDEXING = "in-RAM x[idx]"
PNG = "PNG files, Pillow, DataLoader"
PNG_BYTES = "PNG files' bytes"
#: Pairs of 48/192 px are read in batches of so many if PNG files are too: there are few of them in a quick run.
BATCH = 32
BARE = "a for loop over the Loader"
#: Epochs of a fit, so that what a Trainer does before the first weighs little.
EPOCHS = 20


def _fields(bench: Bench, size: int) -> list[Values]:
    samples = bench.arrays(pairs, size)
    return [samples["lr"], samples["hr"]]


def _loader(bench: Bench, size: int, codec: str, batch: int, **options: Any) -> Side:
    return loader_side(bench.packed(pairs, size, codec=codec), batch, _fields(bench, size), **options)


def _png_sides(bench: Bench, size: int, batch: int) -> list[Side]:
    folder, fields = bench.files(png_pairs, size), _fields(bench, size)
    numbers = np.random.default_rng(0).permutation(bench.some(PNG_FILES[size]))
    expected = checksum([values[numbers] for values in fields])
    return data_loaders(pair_files(folder), numbers.tolist(), batch, expected, files_of(folder))


@row("pairs 16/64, none, batch 8, Loader", LIMIT, at_least=0.6, size=SMALL, batch=8)
@row("pairs 16/64, none, batch 128, Loader", LIMIT, at_least=0.75, size=SMALL, batch=128)
@row("pairs 48/192, none, batch 8, Loader", LIMIT, at_least=0.75, size=LARGE, batch=8)
@row("pairs 48/192, none, batch 128, Loader", LIMIT, at_least=0.75, size=LARGE, batch=128)
def against_limit(bench: Bench, size: int, batch: int) -> Figures:
    """Gather: in small batches the calls around the copying count, in large ones the copying."""
    return bench.race(_loader(bench, size, "none", batch), *limits(_fields(bench, size), batch))


@row("DataLoader(ds, num_workers=2), pairs 16/64, none, batch 128", "the same over in-RAM tensors", at_least=0.9)
def two_workers(bench: Bench) -> Figures:
    """Read by worker processes, which hand batches over through shared memory on both sides."""
    path, expected = bench.packed(pairs, SMALL), checksum(_fields(bench, SMALL))
    ours = data_loader(PackedDataset(path), 128, 2, name="packed", expected=expected, files=files_of(path))
    memory = InMemory(**{name: torch.from_numpy(values) for name, values in bench.arrays(pairs, SMALL).items()})
    theirs = data_loader(memory, 128, 2, name="in RAM", expected=expected, collate_fn=lambda batch: batch)
    return bench.race(ours, theirs)


@row("pairs 16/64, lz4, batch 8, Loader", INDEXING, at_least=1.2, batch=8)
@row("pairs 16/64, lz4, batch 128, Loader", INDEXING, at_least=1.2, batch=128)
def lz4_against_indexing(bench: Bench, batch: int) -> Figures:
    """Decode one frame a sample."""
    return bench.race(_loader(bench, SMALL, "lz4", batch), indexing(_fields(bench, SMALL), batch))


@row("pairs 16/64, lz4, samples/s at batch 8", "at batch 128", at_least=0.7)
def small_batches(bench: Bench) -> Figures:
    """Compare small batches with large ones, which cost about the same."""
    return bench.race(_loader(bench, SMALL, "lz4", 8), _loader(bench, SMALL, "lz4", 128, name="batch 128"))


@row("pairs 16/64, lz4, batch 128, Loader", PNG, at_least=30, size=SMALL, codec="lz4", batch=128)
@row("pairs 48/192, photo+lz4, Loader", PNG, at_least=25, size=LARGE, codec="photo+lz4", batch=BATCH)
def against_png(bench: Bench, size: int, codec: str, batch: int) -> Figures:
    """Measure what packing is for; photographs are stored about as small as PNG."""
    return bench.race(_loader(bench, size, codec, batch), *_png_sides(bench, size, batch))


@row("pairs 16/64, lz4, batch 128, DataLoader(ds)", PNG, at_least=20)
def data_loader_against_png(bench: Bench) -> Figures:
    """Read the same through torch's DataLoader, without worker processes."""
    path, expected = bench.packed(pairs, SMALL, codec="lz4"), checksum(_fields(bench, SMALL))
    ours = data_loader(PackedDataset(path), 128, 0, name="packed", expected=expected, files=files_of(path))
    return bench.race(ours, *_png_sides(bench, SMALL, 128))


@row("pairs 16/64, lz4, batch 128, Loader", "LMDB, one key a sample, DataLoader", at_least=3)
def lz4_against_lmdb(bench: Bench) -> Figures:
    """Compare with the usual way to use LMDB: LZ4 of pickled arrays."""
    path, fields = bench.files(lmdb_pairs), _fields(bench, SMALL)
    numbers = np.random.default_rng(0).permutation(bench.some(LMDB_PAIRS))
    expected = checksum([values[numbers] for values in fields])
    theirs = data_loaders(lmdb_samples(path), numbers.tolist(), 128, expected, [path])
    return bench.race(_loader(bench, SMALL, "lz4", 128), *theirs)


@row("pairs 16/64, none, batch 128, Mix of two", "one dataset", at_least=0.7, codec="none")
@row("pairs 16/64, lz4, batch 128, Mix of two", "one dataset", at_least=0.5, codec="lz4")
def mixed(bench: Bench, codec: str) -> Figures:
    """Draw batches over two datasets: raw fields are gathered at once, others by dataset and put in order."""
    path = bench.packed(pairs, SMALL, codec=codec)
    mix = Mix({PackedDataset(path): 1, PackedDataset(path): 1})
    loader = Loader(mix, 128, shuffle=True)
    expected = checksum([np.concatenate([values, values]) for values in _fields(bench, SMALL)])
    ours = epochs("Mix", lambda: loader, len(mix), expected, files_of(path))
    return bench.race(ours, _loader(bench, SMALL, codec, 128))


@row("pairs 16/64, auto, batch 128, Loader", "the same, none", at_least=0.25)
def auto_against_none(bench: Bench) -> Figures:
    """Measure what room on photographs costs."""
    return bench.race(*(_loader(bench, SMALL, codec, 128, name=codec) for codec in ("auto", "none")))


@row("pairs 48/192, photo+lz4, threads=1", "rowdelta+zstd", at_least=2, codec="photo+lz4")
@row("pairs 48/192, photo+zstd, threads=1", "rowdelta+zstd", at_least=1.1, codec="photo+zstd")
def against_rowdelta(bench: Bench, codec: str) -> Figures:
    """Compare with what `auto` took before there were codecs for photographs."""
    return bench.race(*(_loader(bench, LARGE, one, BATCH, name=one, threads=1) for one in (codec, "rowdelta+zstd")))


@row("pairs 48/192, photo+lz4, stored bytes", PNG_BYTES, at_most=1.03, codec="photo+lz4")
@row("pairs 48/192, photo+zstd, stored bytes", PNG_BYTES, at_most=0.93, codec="photo+zstd")
def stored_bytes(bench: Bench, codec: str) -> Figures:
    """Return how much larger it is than the PNG files of the same samples."""
    manifest = read_manifest(bench.packed(pairs, LARGE, codec=codec, most=bench.some(PNG_FILES[LARGE])))
    png = sum(file.stat().st_size for file in files_of(bench.files(png_pairs, LARGE)))
    return Figures(sum(column.stored for column in manifest.columns.values()) / png)


@row("pairs 48/192, photo+lz4, threads=2", "threads=1", at_least=1.5)
def two_threads(bench: Bench) -> Figures:
    """Decode by two threads: of large frames that leaves the interpreter to others."""
    one, two = (_loader(bench, LARGE, "photo+lz4", BATCH, name=f"threads={n}", threads=n) for n in (1, 2))
    return bench.race(two, one)


@row("pairs 16/64, none, batch 128, Accelerate", BARE, at_least=0.8, size=SMALL)
@row("pairs 48/192, none, batch 128, Accelerate", BARE, at_least=0.8, size=LARGE)
def accelerate(bench: Bench, size: int) -> Figures:
    """Read by what `Accelerator.prepare` makes of a Loader."""
    from accelerate import Accelerator

    path, fields = bench.packed(pairs, size), list(bench.arrays(pairs, size).values())
    prepared = Accelerator(cpu=True).prepare(Loader(PackedDataset(path), 128, shuffle=True))
    samples = len(prepared.dataset)
    theirs = epochs("Accelerate", lambda: prepared, samples, checksum(fields), files_of(path))
    return bench.race(theirs, loader_side(path, 128, fields))


@row("pairs 16/64, none, batch 128, Lightning", BARE, at_least=0.1, size=SMALL)
@row("pairs 48/192, none, batch 128, Lightning", BARE, at_least=0.8, size=LARGE)
def lightning(bench: Bench, size: int) -> Figures:
    """Read by a Trainer whose steps do nothing; what it does itself at every step is part of it."""
    path, fields = bench.packed(pairs, size), list(bench.arrays(pairs, size).values())
    loader = Loader(PackedDataset(path), 128, shuffle=True)
    return bench.race(_fit(loader, files_of(path)), loader_side(path, 128, fields))


def _fit(loader: Loader, files: Any) -> Side:
    import lightning
    import torch

    class Nothing(lightning.LightningModule):
        def training_step(self, batch: Any, number: int) -> None:
            """Do nothing."""

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])

    def run() -> int:
        quiet: Any = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
            trainer = lightning.Trainer(max_epochs=EPOCHS, accelerator="cpu", enable_checkpointing=False, **quiet)
            trainer.fit(Nothing(), loader)
        return EPOCHS * len(loader.dataset)

    return Side("Lightning", run, files)
