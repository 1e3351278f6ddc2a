"""The samples as files: PNG pairs, PLY clouds, an HDF5 file, and LMDB with one key a sample."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmark.inputs import arrays
from benchmark.inputs.store import Store


def png_pairs(store: Store, size: int, n: int, files: int) -> Path:
    """A folder of `lr`/*.png and `hr`/*.png: the first `files` of the `n` pairs."""

    def make(path: Path) -> None:
        samples = arrays.pairs(store, size, n)
        for field in ("lr", "hr"):
            (path / field).mkdir(parents=True)
        jobs = [(path, i, samples["lr"][i], samples["hr"][i]) for i in range(files)]
        with multiprocessing.get_context("fork").Pool(2) as pool:
            pool.starmap(_save_pair, jobs, chunksize=16)

    return store.made(f"png{size}-{n}-{files}", make)


def linked_pairs(store: Store, pairs: Path, copies: int) -> Path:
    """The pairs `copies` times over, as hard links: many files to open, few bytes of disk."""

    def make(path: Path) -> None:
        for field in ("lr", "hr"):
            (path / field).mkdir(parents=True)
            for file in sorted((pairs / field).iterdir()):
                for copy in range(copies):
                    os.link(file, path / field / f"{file.stem}_{copy:04d}.png")

    return store.made(f"{pairs.name.partition('@')[2]}-x{copies}", make)


def ply_text(store: Store, files: int, points: int) -> Path:
    """A folder of text PLY files of `points` points each: float x y z, uchar red green blue."""
    return store.made(f"ply-text-{files}-{points}", partial(_write_clouds, files, points, "ascii"))


def ply_binary(store: Store, files: int, points: int) -> Path:
    """A folder of binary PLY files."""
    return store.made(f"ply-binary-{files}-{points}", partial(_write_clouds, files, points, "binary_little_endian"))


def hdf5_rows(store: Store, n: int) -> Path:
    """An uncompressed, contiguous HDF5 file of `n` rows."""

    def make(path: Path) -> None:
        import h5py  # here, because only rows that convert need it

        with h5py.File(path, "w") as file:
            for name, values in arrays.rows(store, n).items():
                file[name] = values

    return store.made(f"rows-{n}.h5", make)


def lmdb_samples(store: Store, size: int, n: int, count: int) -> Path:
    """An LMDB file with one key a sample: LZ4 of a pickled dict of arrays."""

    def make(path: Path) -> None:
        import lmdb
        import lz4.frame

        samples = arrays.pairs(store, size, n)
        with (
            lmdb.open(str(path), subdir=False, map_size=2**36, sync=False, lock=False) as environment,
            environment.begin(write=True) as transaction,
        ):
            for i in range(count):
                value = pickle.dumps({field: values[i] for field, values in samples.items()})
                transaction.put(b"%08d" % i, lz4.frame.compress(value), append=True)

    return store.made(f"pairs{size}-{count}.lmdb", make)


def _write_clouds(files: int, points: int, format: Any, path: Path) -> None:
    from inputs.clouds import write_ply  # here, because matplotlib takes a second to import

    path.mkdir()
    xyz, rgb = arrays.terrain()
    for i in range(files):
        write_ply(path / f"{i:05d}.ply", _points(xyz, rgb, i * points, points), format)


def _points(xyz: NDArray[np.float32], rgb: NDArray[np.uint8], start: int, count: int) -> NDArray[Any]:
    names = (("x", "f4"), ("y", "f4"), ("z", "f4"), ("red", "u1"), ("green", "u1"), ("blue", "u1"))
    out = np.empty(count, list(names))
    at = np.arange(start, start + count) % len(xyz)
    for i, (name, kind) in enumerate(names):
        out[name] = (xyz if kind == "f4" else rgb)[at, i % 3]
    return out


def _save_pair(folder: Path, number: int, lr: NDArray[np.uint8], hr: NDArray[np.uint8]) -> None:
    Image.fromarray(lr).save(folder / "lr" / f"{number:06d}.png")
    Image.fromarray(hr).save(folder / "hr" / f"{number:06d}.png")
