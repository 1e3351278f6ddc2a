"""Shards are fetched, read and checked when one of their samples is first needed, for every kind of field."""

from __future__ import annotations

import pickle
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from batches import plain
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from packer.errors import DamagedError
from packer.format import BTree, FieldSpec, Shard, column_key
from packer.format import manifest as manifests
from packer.writer import DatasetWriter
from readers import Crop, Loader, Mix, PackedDataset, Windows
from readers.source import source_of

FIELDS = [
    FieldSpec(name="x", dtype="float32", shape=(3, 40)),
    FieldSpec(name="n", dtype="uint16"),
    FieldSpec(name="picture", dtype="uint8", kind="image", shape=(6, 8, 3)),
    FieldSpec(name="any", dtype="uint8", kind="image", shape=(None, None, 3)),
    FieldSpec(name="cloud", dtype="float64", shape=(None, 3)),
    FieldSpec(name="counts", dtype="uint32", shape=(None,)),
    FieldSpec(name="text", dtype="uint8", kind="text", shape=(None,)),
    FieldSpec(name="flat", dtype="uint8", kind="image", shape=(None, None, 1)),
    FieldSpec(name="heights", dtype="float32", shape=(None,)),
]
COUNT = 60


class NoLimit:
    """A cache that may have any size."""

    limit = None


class Here:
    """A mirror of what is here already; notes which shards were asked for."""

    cache, url = NoLimit(), "memory://here"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []

    def fetch_shards(self, _: Any, wanted: Any) -> object:
        self.asked += [shard.file for shard in wanted]
        return object()

    def is_fetched(self, _: Any) -> bool:
        return False


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of several shards with every kind of field, empty samples among them."""
    rng = np.random.default_rng(0)
    out = tmp_path_factory.mktemp("by_shard") / "all"
    with DatasetWriter(out, FIELDS, shard_size=2**15) as writer:
        for number in range(COUNT):
            writer.add(
                {
                    "x": rng.random((3, 40), np.float32),
                    "n": np.uint16(number * 1000),
                    "picture": rng.integers(0, 255, (6, 8, 3), np.uint8),
                    "any": rng.integers(0, 255, (1 + number % 3, 40, 3), np.uint8),
                    "cloud": rng.random((number % 4 * 30, 3)),
                    "counts": rng.integers(0, 2**32 - 1, number % 3, np.uint32),
                    "text": "ü" * (number % 5),
                    "flat": rng.integers(0, 255, (6, 8, 1), np.uint8),
                    "heights": rng.random(number % 4 * 30, np.float32),
                }
            )
    return out


def fetched(folder: Path, mirror: Here, fields: list[str] | None = None, **options: Any) -> PackedDataset:
    """The dataset as one at a URL, whose shards are fetched one by one."""
    ds: Any = PackedDataset(folder, fields, **options)
    source_of(ds).mirror = mirror
    return cast("PackedDataset", ds)


@settings(max_examples=25, deadline=None)
@given(asked=st.lists(st.lists(st.integers(0, COUNT - 1), max_size=30), min_size=1, max_size=3))
def test_batches_are_the_same_whenever_shards_are_opened(folder: Path, asked: list[list[int]]) -> None:
    """Any samples in any order, twice too, and none; with values, dtypes, shapes and layout in memory."""
    here, away = PackedDataset(folder), fetched(folder, Here(folder))
    here[:]
    for numbers in asked:
        wanted, found = here[numbers], away[numbers]
        assert list(found) == list(wanted)
        assert plain(found) == plain(wanted)
        for name in ("x", "picture"):
            assert found[name].stride() == wanted[name].stride() or not numbers


def test_shards_are_fetched_when_they_are_needed(folder: Path) -> None:
    """Each once, by whatever reads: samples, regions, splits, windows, crops, points, checks, a sampler and a rank."""
    files = [shard.file for shard in manifests.read(folder).shards]
    ends = np.cumsum([shard.samples for shard in manifests.read(folder).shards])
    assert len(files) > 3
    second = np.arange(ends[0], ends[1])
    mirror = Here(folder)
    ds = fetched(folder, mirror, ["n"])
    assert ds[int(second[0])]["n"] == second[0] * 1000
    assert mirror.asked == [files[1]]
    assert ds[[int(ends[1]), int(second[0])]]["n"].tolist() == [ends[1] * 1000, second[0] * 1000]
    assert mirror.asked == [files[1], files[2]]
    assert ds[:]["n"].tolist() == [1000 * number for number in range(COUNT)]
    assert sorted(mirror.asked) == files

    def asked_by(read: Callable[[PackedDataset], Any], fields: list[str] | None = None, **options: Any) -> list[str]:
        mirror = Here(folder)
        read(fetched(folder, mirror, fields, **options))
        return mirror.asked

    number = int(second[-1])
    assert asked_by(lambda ds: ds.read(number, "x", rows=slice(1, 2))) == [files[1]]
    assert asked_by(lambda ds: ds[number], verify=True) == [files[1]]
    assert asked_by(lambda ds: ds[number], ["picture"], crop=Crop(4, "picture")) == [files[1]]
    together = Crop(4, of="picture", aligned={"flat": 1})
    assert asked_by(lambda ds: ds[number], ["picture", "flat"], crop=together) == [files[1]]
    assert asked_by(lambda ds: ds[number], ["cloud"], points=3) == [files[1]]
    assert asked_by(lambda ds: ds[number], ["cloud", "heights"], points=3) == [files[1]]
    assert asked_by(lambda ds: ds[:], ["cloud"], windows=Windows(2), samples=second) == [files[1]]
    assert asked_by(lambda ds: ds.shapes("cloud"), samples=second) == [files[1]]
    assert asked_by(lambda ds: list(Loader(ds, 2, sampler=second))) == [files[1]]
    assert asked_by(lambda ds: list(Loader(ds, 2, shuffle=True)), samples=second) == [files[1]]
    assert asked_by(lambda ds: list(Loader(Mix({ds: 1}), 2)), ["x"], samples=second) == [files[1]]


@pytest.fixture
def damaged(folder: Path, tmp_path: Path) -> tuple[Path, NDArray[np.int64]]:
    """The dataset with a wrong byte in an index of its third shard, and the numbers of the samples of that shard."""
    shutil.copytree(folder, tmp_path / "d")
    held = manifests.read(tmp_path / "d")
    entry = held.shards[2]
    tree = BTree(memoryview((tmp_path / "d" / entry.file).read_bytes()), entry.file)
    at = next(value.offset for value in tree.values() if value.key == column_key(0, "checksums"))
    with (tmp_path / "d" / entry.file).open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    first = sum(shard.samples for shard in held.shards[:2])
    return tmp_path / "d", np.arange(first, first + entry.samples)


def test_a_damaged_index_is_found_when_its_shard_is_read(
    damaged: tuple[Path, NDArray[np.int64]],
) -> None:
    """Each time, by name; the other shards are read as ever, before and after, also by a loader up to that batch."""
    path, bad = damaged
    ds = PackedDataset(path)
    sound = np.setdiff1d(np.arange(COUNT), bad)
    for _ in range(2):
        assert ds[sound]["n"].tolist() == (sound * 1000).tolist()
        for read in (lambda: ds[int(bad[0])], lambda: ds[[0, int(bad[-1])]], lambda: ds.read(int(bad[0]), "text")):
            with pytest.raises(DamagedError, match=r"00002\.lmdb: its index is not that of the manifest"):
                read()
    batches = iter(Loader(ds, 1))
    for number in range(int(bad[0])):
        assert next(batches)["n"].tolist() == [number * 1000]
    with pytest.raises(DamagedError, match=r"00002\.lmdb"):
        next(batches)


def test_nothing_is_read_of_a_shard_before_it_is_needed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not its tree, nor its header or index, also of a dataset of many."""
    read: list[str] = []
    read_tree = Shard.read_tree

    def noted(shard: Shard, index: str | None) -> None:
        read.append(shard.path)
        read_tree(shard, index)

    monkeypatch.setattr(Shard, "read_tree", noted)
    ds = PackedDataset(folder)
    ds[0], ds[[1, 0]]
    assert len(read) == 1
    assert pickle.loads(pickle.dumps(ds))[COUNT - 1]["n"] == (COUNT - 1) * 1000
    assert len(read) == 2


def test_the_manifest_is_decoded_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the shards are mapped, its digest alone tells that it is still the same."""
    ds = PackedDataset(folder)
    decoded: list[str] = []
    decode = manifests.decode
    monkeypatch.setattr(manifests, "decode", lambda data, path: decoded.append(path) or decode(data, path))
    assert ds[1]["n"] == 1000
    assert decoded == []


def each_of(ds: PackedDataset, numbers: Any) -> list[int]:
    """The values of `n` of some samples, read one by one."""
    return [int(ds[int(number)]["n"]) for number in numbers]


def test_threads_open_shards_at_once(folder: Path) -> None:
    """Whoever comes first opens a shard, once, and all of them read what was packed."""
    ds = PackedDataset(folder)
    wanted = plain(ds[:])
    for _ in range(5):
        own = PackedDataset(folder)
        orders = [np.random.default_rng(seed).permutation(COUNT) for seed in range(4)]
        with ThreadPoolExecutor(4) as threads:
            read = list(threads.map(partial(each_of, own), orders))
        assert read == [(order * 1000).tolist() for order in orders]
        assert plain(own[:]) == wanted


def test_nobody_waits_for_a_shard_of_others(folder: Path) -> None:
    """While one thread fetches a shard, another reads samples of one that is there, and fetches a third."""
    entries = manifests.read(folder).shards
    slow, comes = threading.Event(), threading.Event()

    class Slow(Here):
        """Fetches the second shard when it may."""

        def fetch_shards(self, manifest: Any, wanted: Any) -> object:
            if entries[1].file in [shard.file for shard in wanted]:
                slow.set()
                assert comes.wait(100)
            return super().fetch_shards(manifest, wanted)

    ds = fetched(folder, Slow(folder), ["n"])
    first = np.cumsum([shard.samples for shard in entries])
    assert ds[0]["n"] == 0
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(lambda: ds[first[:1]]) for _ in range(2)]
        assert slow.wait(100)
        try:
            here = threads.submit(lambda: ds[[0, int(first[1])]]).result(30)["n"].tolist()
        finally:
            comes.set()
        assert here == [0, first[1] * 1000]
        assert [each.result()["n"].tolist() for each in waiting] == 2 * [[first[0] * 1000]]
