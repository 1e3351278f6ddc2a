"""The work of opening many files grows as their number does, whatever is wrong with some of them."""

from __future__ import annotations

import gc
import os
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from packer.errors import SourceError
from packer.packing import make_plan, source_files
from packer.sources import SourceOptions, open_sources
from packer.watcher import Watcher


def parts(folder: Path, count: int) -> list[str]:
    """Make parts of one array."""
    for number in range(count):
        np.save(folder / f"x_{number}.npy", np.zeros((2, 3), np.float32))
    return [f"x={folder}/x_*.npy"]


def fields(folder: Path, count: int) -> list[str]:
    """Make a field of each file."""
    for number in range(count):
        np.save(folder / f"{number * 'a'}x.npy", np.zeros((2, 3), np.float32))
    return [str(folder)]


def samples(folder: Path, count: int) -> list[str]:
    """Make a sample of each file, every second of them damaged."""
    for number in range(count):
        np.save(folder / f"x_{number}.npy", np.zeros((2, 3), np.float32))
        if number % 2:
            (folder / f"x_{number}.npy").write_bytes(b"none")
    return [f"x={folder}"]


def strangers(folder: Path, count: int) -> list[str]:
    """Make pairs, and as many images without a partner."""
    for field, first in (("lr", 0), ("hr", count // 2)):
        (folder / field).mkdir()
        for number in range(first, first + count):
            Image.new("RGB", (8, 8)).save(folder / field / f"{number}.png")
    return [f"lr={folder / 'lr'}", f"hr={folder / 'hr'}"]


def damaged(folder: Path, count: int) -> list[str]:
    """Make images, every second of them damaged."""
    for number in range(count):
        path = folder / f"{number}.png"
        Image.new("RGB", (8, 8)).save(path)
        if number % 2:
            path.write_bytes(path.read_bytes()[:20])
    return [f"image={folder}"]


def calls_of(action: Callable[[], object]) -> int:
    """Return how many calls of functions, of Python or of C, an action makes."""
    count = 0

    def note(frame: Any, event: str, what: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("make", [parts, fields, samples, strangers, damaged])
def test_four_times_as_many_files_take_four_times_as_many_calls(tmp_path: Path, make: Any) -> None:
    """And not sixteen times: calls are counted, since seconds say nothing on a busy machine."""
    options = SourceOptions(samples="files" if make is samples else None)
    counts, errors = [], list[SourceError]()
    for count in (40, 160):
        (folder := tmp_path / str(count)).mkdir()
        sources = make(folder, count)
        counts.append(calls_of(partial(open_sources, sources, options, Watcher(errors.append))))
    assert len(errors) >= (0 if make in (parts, fields) else 100)
    assert counts[1] < 5 * counts[0]


def pairs(folder: Path, count: int) -> list[str]:
    """Make pairs of images, as links to one."""
    Image.new("RGB", (8, 8)).save(folder.parent / "image.png")
    for field in ("lr", "hr"):
        (folder / field).mkdir(parents=True)
        for number in range(count):
            os.link(folder.parent / "image.png", folder / field / f"{number:07}.png")
    return [f"lr={folder / 'lr'}", f"hr={folder / 'hr'}"]


def captions(folder: Path, count: int) -> list[str]:
    """Make images and their captions, whose fields are opened one by one."""
    (text := folder.parent / "first.txt").write_text("a")
    images, _ = pairs(folder, count)
    return [images, f"caption={links(folder / 'captions', count, text)[0]}"]


def links(folder: Path, count: int, first: Path) -> list[str]:
    """Make links to a file."""
    folder.mkdir(parents=True)
    for number in range(count):
        os.link(first, folder / f"{number:07}{first.suffix}")
    return [str(folder)]


def clouds(folder: Path, count: int) -> list[str]:
    """Make clouds of PLY."""
    first = folder.parent / "first.ply"
    first.write_text("ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nproperty uchar y\nend_header\n1 2\n")
    return links(folder, count, first)


def scans(folder: Path, count: int) -> list[str]:
    """Make clouds without headers."""
    (first := folder.parent / "first.bin").write_bytes(bytes(32))
    return links(folder, count, first)


def arrays(folder: Path, count: int) -> list[str]:
    """Make files of HDF5, fewer than of other kinds: libhdf5 takes a millisecond each."""
    with h5py.File(first := folder.parent / "first.h5", "w") as file:
        file["x"] = np.zeros((2, 3))
    return links(folder, count // 5, first)


def npy_pairs(folder: Path, count: int) -> list[str]:
    """Make pairs of .npy files."""
    np.save(first := folder.parent / "first.npy", np.zeros((2, 3)))
    return [f"{field}={links(folder / field, count // 2, first)[0]}" for field in ("x", "y")]


def npy_parts(folder: Path, count: int) -> list[str]:
    """Make parts of one array."""
    np.save(first := folder.parent / "first.npy", np.zeros((2, 3)))
    return [f"x={links(folder, count, first)[0]}"]


FILES = SourceOptions(samples="files")


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (pairs, SourceOptions()),
        (captions, SourceOptions()),
        (clouds, SourceOptions()),
        (scans, SourceOptions(columns=("x,y,z,i:float32",))),
        (arrays, SourceOptions()),
        (npy_pairs, FILES),
        (npy_parts, SourceOptions()),
    ],
    ids=["pairs", "captions", "clouds", "scans", "rows of HDF5", "pairs of npy", "parts of npy"],
)
def test_a_file_takes_300_bytes_of_memory(
    tmp_path: Path, make: Any, options: SourceOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most, at any time while sources are opened and their files are looked at; so a million pairs fit anywhere.

    What threads have under way on a slow disk, some 2,000 files, is not counted: it does not grow with their number.
    """
    monkeypatch.setattr("packer.threads.SLOW_SECONDS", float("inf"))
    peaks = []
    gc.disable()
    [[(number,) * length for number in range(2000)] for length in range(20)]  # Python keeps so many for later tuples
    try:
        for count in (1600, 100):  # whatever is kept for many files is there before the first measurement
            sources = make(tmp_path / str(count), count)
            source_files(open_sources(sources, options).files())
            tracemalloc.start()
            number = source_files(open_sources(sources, options).files())[0].count
            peaks.append((number, tracemalloc.get_traced_memory()[1]))
            tracemalloc.stop()
    finally:
        gc.enable()
    (many, most), (few, least) = peaks
    assert (most - least) / (many - few) <= 300


def test_rows_that_were_never_written_are_planned_and_read_in_bounded_memory(tmp_path: Path) -> None:
    """A file of 1.4 kB declares 4.29e9 rows, of which HDF5 keeps none: blocks of them are small, from first to last."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", shape=(2**32,), dtype="i1", chunks=(2**20,))
    tracemalloc.start()
    try:
        source = open_sources([str(tmp_path / "x.h5")])
        plan = make_plan(source, "auto", None)
        blocks = [np.shape(block["x"])[0] for block in source.slice(2**32 - 2**24, 2**32).read()]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(blocks) == 2**24
    assert plan.shards[-1].stop == 2**32
    assert peak < 2**27
