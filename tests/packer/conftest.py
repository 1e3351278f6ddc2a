"""Small sources of every kind, made from seeded random numbers, with the arrays that they hold."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from environment import import_without_torch, skip_without_torch
from made_datasets import plain_names, without_commands, written
from PIL import Image

from packer.format import LOCK

import_without_torch()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Packing needs no torch, and is tried where there is none: what reads back is skipped there."""
    report = yield
    skip_without_torch(report)
    return report


@pytest.fixture
def pairs(tmp_path):
    """Twelve pairs of images in pairs/lr and pairs/hr: `folder`, `sources`, `names`, `lr` (12, 6, 5, 3), `hr`."""
    return make_pairs(tmp_path / "pairs", 12, 6, 5)


@pytest.fixture
def clouds(tmp_path):
    """Five text PLY files of different sizes: `folder`, `sources`, `names`, `xyz` and `rgb`, lists of arrays."""
    folder = tmp_path / "clouds"
    folder.mkdir()
    rng = np.random.default_rng(2)
    xyz = [rng.normal(size=(10 * n + 3, 3)).astype(np.float32) for n in range(5)]
    rgb = [rng.integers(0, 256, (len(points), 3), dtype=np.uint8) for points in xyz]
    for number, (points, colours) in enumerate(zip(xyz, rgb, strict=True)):
        (folder / f"c{number}.ply").write_text(ply_text(points, colours))
    return SimpleNamespace(folder=folder, sources=[str(folder)], names=[f"c{n}" for n in range(5)], xyz=xyz, rgb=rgb)


@pytest.fixture
def rows(tmp_path):
    """An HDF5 file of 400 rows: `path`, `sources`, `x` (400, 3) float32 and `label` (400,) int64."""
    rng = np.random.default_rng(3)
    x, label = rng.normal(size=(400, 3)).astype(np.float32), rng.integers(0, 10, 400)
    path = tmp_path / "rows.h5"
    with h5py.File(path, "w") as file:
        file["x"], file["label"] = x, label
    return SimpleNamespace(path=path, sources=[str(path)], x=x, label=label)


@pytest.fixture
def two(tmp_path):
    """Two packed datasets of one schema, `a` of 9 samples and `b` of 5."""
    return written(tmp_path / "a", "a", 9), written(tmp_path / "b", "b", 5)


@pytest.fixture
def files_of():
    """A function that gives all files below a folder but its lock: relative path (see `plain_names`) to bytes.

    Manifests are given without the commands that packed the samples, which name the sources as they were given.
    """

    return lambda folder: without_commands(
        plain_names(
            {
                str(p.relative_to(folder)): p.read_bytes()
                for p in Path(folder).rglob("*")
                if p.is_file() and p.name != LOCK
            }
        )
    )


class DiskCalls:
    """What was synced and renamed, in order: (what, path) and (what, from, to).

    Args:
        patch: puts the calls in the place of the real ones, which they still do.
    """

    def __init__(self, patch):
        self.calls = []
        # Of a descriptor, the path that it was opened by.
        self._before(patch, os, "fsync", lambda fd: ("sync", str(Path(f"/proc/self/fd/{fd}").readlink())))
        for name in ("replace", "rename"):
            self._before(patch, Path, name, lambda path, target: ("rename", str(path), str(target)))

    def _before(self, patch, owner, name, what):
        function = getattr(owner, name)

        def run(*args):
            call = what(*args)
            result = function(*args)
            self.calls.append(call)
            return result

        patch.setattr(owner, name, run)

    def check_published(self, path):
        """A file got its name when its bytes were on the disk, and then its folder was synced."""
        named, synced = self._named(path), ("sync", str(path.parent))
        assert synced in self.calls[named:], f"{path} has its name, which may be lost"

    def check_whole(self, path):
        """A file got its name when its bytes were on the disk."""
        self._named(path)

    def _named(self, path):
        """Return when a file got its name, after it was synced under another."""
        named = max(
            (i for i, call in enumerate(self.calls) if call[0] == "rename" and call[2] == str(path)), default=None
        )
        assert named is not None, f"{path} was written in place"
        synced = ("sync", self.calls[named][1])
        assert synced in self.calls[:named], f"{path} had its name before its bytes were on the disk"
        return named


@pytest.fixture
def disk_calls(monkeypatch):
    """A `DiskCalls` that notes what this process does."""
    if not sys.platform.startswith("linux"):
        pytest.skip("looks into /proc")
    return DiskCalls(monkeypatch)


@pytest.fixture(scope="session")
def new_pairs():
    """`make_pairs`."""
    return make_pairs


def make_pairs(folder, count, height, width, prefix=""):
    """Pairs of random pictures, the second twice as large: `folder`, `sources`, `names`, `lr`, `hr`."""
    rng = np.random.default_rng(1)
    images = {
        "lr": rng.integers(0, 256, (count, height, width, 3), dtype=np.uint8),
        "hr": rng.integers(0, 256, (count, 2 * height, 2 * width, 3), dtype=np.uint8),
    }
    names = [f"{prefix}{number:03}" for number in range(count)]
    for field, values in images.items():
        (folder / field).mkdir(parents=True)
        for name, image in zip(names, values, strict=True):
            Image.fromarray(image).save(folder / field / f"{name}.png")
    sources = [f"{field}={folder / field}" for field in images]
    return SimpleNamespace(folder=folder, sources=sources, names=names, **images)


def ply_text(points, colours):
    """A text PLY file of points (n, 3) and colours (n, 3)."""
    head = ["ply", "format ascii 1.0", f"element vertex {len(points)}"]
    head += [f"property float {axis}" for axis in "xyz"]
    head += [f"property uchar {colour}" for colour in ("red", "green", "blue")]
    body = [" ".join(map(str, [*p.tolist(), *c.tolist()])) for p, c in zip(points, colours, strict=True)]
    return "\n".join([*head, "end_header", *body, ""])


@pytest.fixture
def contents():
    """A function that gives all that a packed dataset holds: its schema, and name (or number) and values of samples."""

    def read(dataset):
        from readers import PackedDataset  # here, because torch takes a second to import

        opened = PackedDataset(dataset)
        schema = [(f.name, f.dtype, f.kind, f.shape) for f in opened.fields.values()]
        keys = list(range(len(opened))) if opened.names is None else list(opened.names)
        samples = [{name: _bits(value) for name, value in opened[i].items()} for i in range(len(opened))]
        return schema, dict(zip(keys, samples, strict=True))

    return read


def _bits(value):
    """What makes two values the same: dtype, shape and bytes; NaN is NaN."""
    return value if isinstance(value, str) else (str(value.dtype), tuple(value.shape), value.numpy().tobytes())
