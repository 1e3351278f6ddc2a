"""What is read and converted, as arrays and as files. Sizes are those of a quick run, times the scale of the run.

Functions that return arrays go through `bench.arrays` or `bench.packed`, those that write to a path through
`bench.files`, each with its name and its further arguments: `bench.packed(pairs, 64, codec="lz4")`.
"""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import lmdb
import lz4.frame
import numpy as np
import pyarrow
from inputs.pictures import SCALE, photographs
from numpy.typing import NDArray
from PIL import Image
from pyarrow import parquet

from benchmark.store import Arrays, Bench

SMALL, LARGE = 64, 192
#: How many pairs there are by their size, and how many of their PNG files are read.
PAIRS, PNG_READ = {SMALL: 10_000, LARGE: 1_500}, {SMALL: 500, LARGE: 200}
ROWS, TINY_ROWS, LMDB_PAIRS, COLD_SAMPLES = 1_000_000, 10_000_000, 4_000, 8_000
PARQUET_ROWS = 2_000
#: What super-resolution training cuts pictures into so as not to decode whole ones: size and stride in pixels.
SUB_SIZE, SUB_STRIDE = 480, 240
#: Metres. Points of a scanner lie on no grid, which would make them far smaller than they are.
_NOISE = np.float32(0.05)
#: In steps of 8 bits, as a camera has it: made larger, photographs are smoother than those taken at that size.
_GRAIN = 1.5


def rows(bench: Bench) -> Arrays:
    """Return `x` (n, 33) float32, a random walk a column; `y` (n,) int64, their numbers."""
    n = bench.some(ROWS)
    x = np.random.default_rng(0).standard_normal((n, 33), dtype=np.float32)
    x *= 0.01  # like a slowly changing measurement, which bitshuffle makes a little smaller
    return {"x": np.cumsum(x, axis=0, out=x), "y": np.arange(n, dtype=np.int64)}


def tiny_rows(bench: Bench) -> Arrays:
    """Return `x` (n,) float32: rows so small that nothing counts but what a reader needs for each sample."""
    return {"x": np.arange(min(TINY_ROWS, bench.some(TINY_ROWS)), dtype=np.float32)}


def pairs(bench: Bench, size: int) -> Arrays:
    """Return `lr` (n, size / 4, size / 4, 3) and `hr` (n, size, size, 3) uint8, cut from photographs."""
    n, rng = bench.some(PAIRS[size]), np.random.default_rng(1)
    whole = [np.asarray(picture) for _, picture in photographs()]
    hr = np.empty((n, size, size, 3), np.uint8)
    for i in range(n):
        picture = whole[i % len(whole)]
        top, left = (rng.integers(0, length - size + 1) for length in picture.shape[:2])
        hr[i] = picture[top : top + size, left : left + size]
    small = size // SCALE
    # The mean of each square of pixels: fast, and as smooth as any other way to make a picture smaller.
    lr = hr.reshape(n, small, SCALE, small, SCALE, 3).mean(axis=(2, 4), dtype=np.float32).astype(np.uint8)
    return {"lr": lr, "hr": hr}


def clouds(bench: Bench) -> Arrays:
    """Return `xyz` float32 in metres and `rgb` uint8, both (m, 3), of clouds of 500 to 20,000 points."""
    rng = np.random.default_rng(2)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(500, 20_001, bench.some(1_000)))])
    xyz, rgb = _terrain(offsets[-1])
    return {"xyz": xyz + rng.standard_normal(xyz.shape, dtype=np.float32) * _NOISE, "rgb": rgb, "offsets": offsets}


def scans(bench: Bench) -> Arrays:
    """Return `points` (m, 4) float32 of lidar scans: x, y and z in metres to the millimetre, intensity to two decimals.

    64 rings turn past walls at 8 to 38 m; distances have an error of 2 cm, as a scanner's have.
    """
    rng, (count, turn) = np.random.default_rng(8), (bench.some(60), 900)
    edges = np.arange(count + 1) * 64 * turn
    angle = np.tile(np.linspace(0, 2 * np.pi, turn, endpoint=False), 64 * count)
    ring = np.tile(np.repeat(np.linspace(-0.4, 0.05, 64), turn), count)
    away = 8 + 30 * np.abs(np.sin(3 * angle + np.repeat(rng.uniform(0, 6, count), 64 * turn)))
    away += rng.normal(0, 0.02, len(away))
    places = [away * np.cos(angle) * np.cos(ring), away * np.sin(angle) * np.cos(ring), away * np.sin(ring)]
    points = np.stack([*np.round(places, 3), np.round(rng.random(len(away)), 2)], axis=1).astype(np.float32)
    return {"points": points, "offsets": edges}


def rooms(bench: Bench) -> Arrays:
    """Return `xyz` (m, 3) float32 of rooms that were scanned: walls and floors, to four decimals of a metre."""
    rng, (count, size) = np.random.default_rng(9), (bench.some(8), 20_000)
    xyz = rng.uniform([-3, -2, 0], [3, 2, 2.5], (count * size, 3))
    wall, side = rng.integers(0, 3, len(xyz)), rng.integers(0, 2, len(xyz))
    xyz[np.arange(len(xyz)), wall] = np.array([[-3, 3], [-2, 2], [0, 2.5]])[wall, side]
    xyz += rng.normal(0, 0.004, xyz.shape)
    return {"xyz": np.round(xyz, 4).astype(np.float32), "offsets": np.arange(count + 1) * size}


def measurements(bench: Bench) -> Arrays:
    """Return `x` (n, 24) float64, a station a column: temperatures of an hour a row, to two decimals."""
    rng, n = np.random.default_rng(10), bench.some(40_000)
    hours = np.arange(n)[:, None]
    season = 9 * np.sin(hours / 24 / 365 * 2 * np.pi) + 4 * np.sin(hours / 24 * 2 * np.pi + rng.uniform(0, 1, 24))
    weather = np.cumsum(rng.normal(0, 0.3, (n, 24)), axis=0) % 6
    return {"x": np.round(12 + season + weather, 2)}


def cold(bench: Bench) -> Arrays:
    """Return `x` (n, 48,000) uint8."""
    return {"x": np.random.default_rng(3).integers(0, 256, (bench.some(COLD_SAMPLES), 48_000), dtype=np.uint8)}


def pictures(bench: Bench) -> Arrays:
    """Return `hr` (n, 1356, 2040, 3) uint8; smaller ones in the tests of the benchmark."""
    height, width = (1356, 2040) if bench.scale >= 1 else (800, 500)
    rng = np.random.default_rng(4)
    whole = [picture for _, picture in photographs()]
    hr = np.empty((max(2, int(6 * bench.scale)), height, width, 3), np.uint8)
    for i in range(len(hr)):
        large = np.asarray(whole[i % len(whole)].resize((width, height), Image.Resampling.BICUBIC))
        hr[i] = np.clip(large + rng.normal(0, _GRAIN, (height, width, 1)).round(), 0, 255)
    return {"hr": hr}


def png_pictures(path: Path, bench: Bench) -> None:
    """Write a folder of PNG files, one a picture."""
    path.mkdir()
    for number, picture in enumerate(bench.arrays(pictures)["hr"]):
        Image.fromarray(picture).save(path / f"{number:04d}.png")


def sub_images(path: Path, bench: Bench) -> None:
    """Write PNG sub-images of 480 px into LMDB, every 240 px and at the far edges, as BasicSR's script cuts them."""

    def starts(length: int) -> list[int]:
        last = max(length - SUB_SIZE, 0)
        return sorted({*range(0, last + 1, SUB_STRIDE), last})

    def cut() -> Iterator[bytes]:
        for picture in bench.arrays(pictures)["hr"]:
            for top in starts(picture.shape[0]):
                for left in starts(picture.shape[1]):
                    stream = io.BytesIO()
                    part = picture[top : top + SUB_SIZE, left : left + SUB_SIZE]
                    Image.fromarray(part).save(stream, "png", compress_level=3)
                    yield stream.getvalue()

    write_lmdb(path, cut())


def episodes(bench: Bench) -> Arrays:
    """Return `image` (m, 84, 84, 3) uint8 and `actions` (m, 7) float32 of episodes of 100 steps.

    Boxes move over plain tiles, as simple simulators draw them. LZ4 makes such pictures small, and decodes them sooner
    than grainy ones.
    """
    n, steps, rng = bench.some(40), 100, np.random.default_rng(6)
    row, column = np.mgrid[:84, :84]
    tiles = (column // 12 * 17 + row // 14 * 29)[None, :, :, None] + 7 * np.arange(n)[:, None, None, None]
    image = (tiles % 200 + rng.integers(0, 40, (n, 1, 1, 3))).astype(np.uint8).repeat(steps, axis=0)
    actions = rng.standard_normal((n * steps, 7), dtype=np.float32)
    paths = (35 + 2 * actions[:, :6].reshape(n, steps, 3, 2).cumsum(axis=1)).astype(int).reshape(n * steps, 3, 2) % 70
    for frame, places in zip(image, paths.tolist(), strict=True):
        for colour, (top, left) in enumerate(places):
            frame[top : top + 14, left : left + 14] = np.roll((200, 40, 90), colour)
    return {"image": image, "actions": actions, "offsets": np.arange(0, n * steps + 1, steps)}


def png_clips(path: Path, bench: Bench) -> None:
    """Write folders of 12 PNG files, frames of 720 x 1280 that move over a photograph."""
    rng = np.random.default_rng(7)
    height, width = (720, 1280) if bench.scale >= 1 else (300, 400)
    whole = [picture for _, picture in photographs()]
    for number in range(max(2, int(2 * bench.scale))):
        (path / f"{number:03d}").mkdir(parents=True)
        large = whole[number % len(whole)].resize((width + 44, height + 22), Image.Resampling.BICUBIC)
        for frame in range(12):
            part = np.asarray(large)[2 * frame :][:height, 4 * frame :][:, :width]
            noisy = part + rng.normal(0, _GRAIN, (height, width, 1)).round()
            picture = Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))
            picture.save(path / f"{number:03d}/{frame:08d}.png", compress_level=3)


def png_pairs(path: Path, bench: Bench, size: int, most: int | None = None) -> None:
    """Write `lr`/*.png and `hr`/*.png, a file for each picture of all pairs, or of the first ones."""
    for field, pictures in bench.arrays(pairs, size).items():
        folder = path / field
        folder.mkdir(parents=True)
        with ThreadPoolExecutor(2) as pool:
            named = (folder / f"{number:06d}.png" for number in range(len(pictures)))
            list(pool.map(lambda picture, file: Image.fromarray(picture).save(file), pictures[:most], named))


def jpegs(path: Path, bench: Bench) -> None:
    """Write a folder of JPEG files, those of the pairs of 192 pixels."""
    path.mkdir()
    for number, pixels in enumerate(bench.arrays(pairs, LARGE)["hr"]):
        Image.fromarray(pixels).save(path / f"{number:06d}.jpg", quality=90)


def jpeg_tar(path: Path, bench: Bench) -> None:
    """Write the files of `jpegs` into a tar."""
    with tarfile.open(path, "w") as tar:
        for file in sorted(bench.files(jpegs).iterdir()):
            tar.add(file, file.name)


def pair_sources(folder: Path) -> list[str]:
    """Return how `packer convert` is told of such a folder."""
    return [f"{field}={folder / field}" for field in ("lr", "hr")]


def ply_clouds(path: Path, bench: Bench, format: Any, most: int | None = None) -> None:
    """Write a folder of PLY files, one for each cloud or for the first ones: float x y z, uchar red green blue."""
    from inputs.clouds import joined, write_ply  # here, because matplotlib takes a second to import

    path.mkdir()
    made = bench.arrays(clouds)
    for i, (start, stop) in enumerate(pairwise(made["offsets"][: most and most + 1])):
        write_ply(path / f"{i:05d}.ply", joined(made["xyz"][start:stop], made["rgb"][start:stop]), format)


def text_rooms(path: Path, bench: Bench) -> None:
    """Write a folder of PLY files of text with four decimals, one for each room."""
    path.mkdir()
    made = bench.arrays(rooms)
    for i, (start, stop) in enumerate(pairwise(made["offsets"])):
        axes = "".join(f"property float {axis}\n" for axis in "xyz")
        header = f"ply\nformat ascii 1.0\nelement vertex {stop - start}\n{axes}end_header"
        np.savetxt(path / f"{i:05d}.ply", made["xyz"][start:stop], fmt="%.4f", header=header, comments="")


def bin_scans(path: Path, bench: Bench) -> None:
    """Write a folder of .bin files as KITTI has them, one for each scan."""
    path.mkdir()
    made = bench.arrays(scans)
    for i, (start, stop) in enumerate(pairwise(made["offsets"])):
        made["points"][start:stop].tofile(path / f"{i:06d}.bin")


def hdf5_rows(path: Path, bench: Bench, most: int | None = None) -> None:
    """Write an uncompressed, contiguous HDF5 file of all rows, or of the first ones."""
    with h5py.File(path, "w") as file:
        for name, values in bench.arrays(rows).items():
            file[name] = values[:most]


def parquet_rows(path: Path, bench: Bench) -> None:
    """Write all rows twice as Parquet without compression, a column each: two million rows of 140 bytes."""
    arrays = bench.arrays(rows)
    columns = {**{f"x{n}": arrays["x"][:, n] for n in range(arrays["x"].shape[1])}, "y": arrays["y"]}
    table = pyarrow.concat_tables([pyarrow.table(columns)] * 2)
    parquet.write_table(table, path, compression="none", use_dictionary=False)


def parquet_files(path: Path, bench: Bench) -> None:
    """Write a folder of 1,000 files of Parquet, of the same rows each."""
    path.mkdir()
    x = bench.arrays(rows)["x"][:PARQUET_ROWS]
    table = pyarrow.table({f"x{n}": x[:, n] for n in range(x.shape[1])})
    for number in range(1_000):
        parquet.write_table(table, path / f"{number:04d}.parquet")


def npy_rows(path: Path, bench: Bench) -> None:
    """Write a folder of .npy files of a thousand rows each."""
    path.mkdir()
    x = bench.arrays(rows)["x"]
    for number, part in enumerate(np.array_split(x, max(1, len(x) // 1_000))):
        np.save(path / f"{number:05d}.npy", part)


def lmdb_pairs(path: Path, bench: Bench) -> None:
    """Write an LMDB file with one key a pair of 16/64 px."""
    samples = bench.arrays(pairs, SMALL)
    count = bench.some(LMDB_PAIRS)
    write_samples(path, ({field: values[i] for field, values in samples.items()} for i in range(count)))


def write_samples(path: Path, samples: Iterable[Arrays]) -> None:
    """Write an LMDB file as people do: a key a sample, whose value is LZ4 of a pickled dict of arrays."""
    write_lmdb(path, (lz4.frame.compress(pickle.dumps(sample)) for sample in samples))


def write_lmdb(path: Path, values: Iterable[bytes]) -> None:
    """Write an LMDB file whose keys are numbers."""
    with (
        lmdb.open(str(path), subdir=False, map_size=2**36, sync=False, lock=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        for number, value in enumerate(values):
            transaction.put(b"%08d" % number, value, append=True)


def _terrain(count: int) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Return measured elevations, (count, 3) float32 in metres, and their colours by height, (count, 3) uint8."""
    from inputs.clouds import elevation_grids  # here, because matplotlib takes a second to import

    xyz = np.concatenate([grid.reshape(-1, 3) for grid in elevation_grids()])
    height = (xyz[:, 2] - xyz[:, 2].min()) / np.ptp(xyz[:, 2]) * 255
    rgb = np.stack([height, 255 - height, height // 2], axis=1).astype(np.uint8)
    return np.resize(xyz, (count, 3)), np.resize(rgb, (count, 3))
