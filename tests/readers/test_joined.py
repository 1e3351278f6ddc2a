"""Reading shard by shard gives what one window over all shards gives, for every kind of field."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import plain
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.format import FieldSpec
from packer.writer import DatasetWriter
from readers import PackedDataset
from readers.joined import ByShard

FIELDS = [
    FieldSpec(name="x", dtype="float32", shape=(3, 40)),
    FieldSpec(name="n", dtype="uint16"),
    FieldSpec(name="picture", dtype="uint8", kind="image", shape=(6, 8, 3)),
    FieldSpec(name="any", dtype="uint8", kind="image", shape=(None, None, 3)),
    FieldSpec(name="cloud", dtype="float64", shape=(None, 3)),
    FieldSpec(name="counts", dtype="uint32", shape=(None,)),
    FieldSpec(name="text", dtype="uint8", kind="text", shape=(None,)),
]
COUNT = 60


class Here:
    """A mirror of what is here already; notes which shards were asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []

    def fetch_shards(self, _: Any, wanted: Any) -> object:
        self.asked += [shard.file for shard in wanted]
        return object()


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
                }
            )
    return out


@settings(max_examples=25, deadline=None)
@given(numbers=st.lists(st.integers(0, COUNT - 1), max_size=30))
def test_batches_are_the_same(folder: Path, numbers: list[int]) -> None:
    """Any samples in any order, twice too, and none; with values, dtypes, shapes and layout in memory."""
    ds = PackedDataset(folder)
    mirror = Here(folder)
    by_shard = ByShard(mirror, ds.manifest, list(ds.fields))  # type: ignore[arg-type]
    wanted = ds[numbers]
    found = by_shard.gather(np.array(numbers, np.int64))
    assert list(found) == list(wanted)
    assert plain(found) == plain(wanted)
    for name in ("x", "picture"):
        assert found[name].stride() == wanted[name].stride() or not numbers


def test_shards_are_opened_when_they_are_needed(folder: Path) -> None:
    """Each is asked for once, and when all are open that is known."""
    ds = PackedDataset(folder)
    files = [shard.file for shard in ds.manifest.shards]
    assert len(files) > 2
    mirror = Here(folder)
    by_shard = ByShard(mirror, ds.manifest, ["n"])  # type: ignore[arg-type]
    first = ds.manifest.shards[0].samples
    opened, number = by_shard.holding(first)
    assert opened.readers["n"].read(opened.readers["n"].locate(np.array([number]))).tolist() == [first * 1000]
    assert mirror.asked == [files[1]]
    by_shard.gather(np.array([first, 0]))
    assert mirror.asked == [files[1], files[0]]
    assert not by_shard.is_whole
    by_shard.gather(np.arange(COUNT))
    assert sorted(mirror.asked) == files
    assert by_shard.is_whole


def test_nobody_waits_for_a_shard_of_others(folder: Path) -> None:
    """While one thread fetches a shard, another reads samples of one that is there, and fetches a third."""
    ds = PackedDataset(folder)
    files = [shard.file for shard in ds.manifest.shards]
    slow, comes = threading.Event(), threading.Event()

    class Slow(Here):
        """Fetches the second shard when it may."""

        def fetch_shards(self, manifest: Any, wanted: Any) -> object:
            if files[1] in [shard.file for shard in wanted]:
                slow.set()
                assert comes.wait(60)
            return super().fetch_shards(manifest, wanted)

    by_shard = ByShard(Slow(folder), ds.manifest, ["n"])  # type: ignore[arg-type]
    first = np.cumsum([shard.samples for shard in ds.manifest.shards])
    by_shard.gather(np.array([0]))
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(by_shard.gather, first[:1]) for _ in range(2)]
        assert slow.wait(60)
        try:
            here = threads.submit(by_shard.gather, np.array([0, first[1]])).result(30)["n"].tolist()
        finally:
            comes.set()
        assert here == [0, first[1] * 1000]
        assert [each.result()["n"].tolist() for each in waiting] == 2 * [[first[0] * 1000]]
