"""Epochs over a dataset in a bucket that is larger than the cache."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import msgspec
import numpy as np
import pytest
import torch
from cached import cached_bytes
from made_datasets import make_plain
from torch.utils.data import DataLoader, Subset

from packer.errors import DamagedError, DatasetError, RemoteError, UsageError
from packer.format import Located, Locator
from packer.format import manifest as manifests
from packer.remote import ahead, retries, store
from packer.split import split
from packer.writer import DatasetWriter
from readers import Crop, Loader, Mix, PackedDataset, VoxelSample, Windows

SHARDS, SAMPLES = 12, 16
URL = "s3://bucket/stream/many"


@pytest.fixture(scope="module")
def folder(_settings: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve shards of 16 samples, a picture of 32 x 32 and its number, as a folder; and in the bucket, at `URL`."""
    folder = tmp_path_factory.mktemp("stream") / "many"
    rng = np.random.default_rng(3)
    with DatasetWriter(folder, codec="none", shard_size=SAMPLES * 3080) as writer:
        for number in range(SHARDS * SAMPLES):
            image = rng.integers(0, 256, (32, 32, 3), np.uint8)
            writer.add({"image": image, "label": np.int64(number)}, name=f"n{number:03}")
    make_plain(folder)
    split(folder, {"few": [f"n{number:03}" for number in range(100, 120)]})
    assert len(manifests.read(folder).shards) == SHARDS
    fsspec.filesystem("s3").put(str(folder), URL, recursive=True)
    return folder


@pytest.fixture
def many(s3: Any, folder: Path) -> str:
    """The URL of the twelve shards."""
    s3.fs.invalidate_cache()
    s3.proxy.clear()
    return URL


def fetched(s3: Any) -> list[int]:
    """How often each shard was fetched."""
    return [s3.proxy.gets(f"shards/{number:05}.lmdb") for number in range(SHARDS)]


@pytest.fixture
def room(folder: Path, tmp_path: Path) -> Callable[[float], dict[str, Any]]:
    """Gives the arguments for a cache that holds so many shards."""
    largest = max(entry.bytes for entry in manifests.read(folder).shards)
    return lambda shards: {"cache": tmp_path / "cache", "cache_bytes": int(shards * largest)}


def labels(loader: Any) -> list[int]:
    return [number for batch in loader for number in batch["label"].tolist()]


class Watched:
    """Notes the most bytes that the shards in a cache take while a block of code runs."""

    def __init__(self, cache: Path) -> None:
        self._cache, self._stop, self.most = cache, threading.Event(), 0
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._stop.wait(0.001):
            self.most = max(self.most, cached_bytes(self._cache))

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.parametrize(("shuffle", "threads"), [(False, 0), ("shards", 2), (True, 0)])
def test_an_epoch_is_larger_than_the_cache(many, s3, tmp_path, shuffle, threads, room) -> None:
    """Every sample comes once, every shard is fetched once, and the disk never holds more than the limit."""
    limits = room(5.2)
    dataset = PackedDataset(many, **limits)
    loader = Loader(dataset, 7, shuffle=shuffle, threads=threads)
    with Watched(tmp_path / "cache") as watched:
        seen = labels(loader)
    assert (sorted(seen) if shuffle else seen) == list(range(SHARDS * SAMPLES))
    assert fetched(s3) == [1] * SHARDS
    assert 0 < watched.most <= limits["cache_bytes"] + 4096  # the manifest is no shard


@pytest.mark.parametrize(
    ("shuffle", "shards", "most"),
    [("shards", 6, 27), ("shards", 8, 16), ("shards", 11, 5), ("shards", 12, 0), (False, 8, 19), (False, 11, 6)],
)
def test_later_epochs_fetch_what_the_cache_cannot_hold(many, s3, room, shuffle, shards, most) -> None:
    """The shards needed last make room, so that each epoch fetches what the cache cannot hold, and few shards more."""
    loader = Loader(PackedDataset(many, **room(shards + 0.2)), 8, shuffle, shuffle_window=32 if shuffle else None)
    counts = []
    for _ in range(4):
        s3.proxy.clear()
        assert sorted(labels(loader)) == list(range(SHARDS * SAMPLES))
        assert max(fetched(s3)) <= 1
        counts.append(sum(fetched(s3)))
    assert counts[0] == SHARDS
    assert min(counts[1:]) >= SHARDS - shards
    assert sum(counts[1:]) <= most


def test_a_file_that_gets_its_name_is_counted_once(many, s3, tmp_path, room) -> None:
    """A shard that another thread renames while room is looked for does not take the room of another."""
    loader = Loader(PackedDataset(many, **room(12.2)), 8)
    labels(loader)
    (shards,) = (tmp_path / "cache" / "datasets").glob("*/shards")
    (shards / "00005.lmdb").unlink()
    (shards.parent / ".fetching").mkdir(exist_ok=True)
    os.link(shards / "00003.lmdb", shards.parent / ".fetching" / "shards%2F00003.lmdb.partial")
    s3.proxy.clear()
    assert sorted(labels(loader)) == list(range(SHARDS * SAMPLES))
    assert fetched(s3) == [number == 5 for number in range(SHARDS)]


def test_the_order_is_that_of_a_local_dataset(many, room, folder) -> None:
    """A folder, a bucket and a bucket with a small cache give the same batches."""
    ways: dict[str, dict[str, Any]] = {str(folder): {}, many: room(5.2)}
    orders = [
        labels(Loader(PackedDataset(url, **limits), 7, shuffle="shards", shuffle_window=32))
        for url, limits in ways.items()
    ]
    assert orders[0] == orders[1]


def test_frames_of_closed_shards_are_not_those_of_others(s3, tmp_path, monkeypatch) -> None:
    """Shards take each other's addresses; values are right, few are mapped, and a frame is decoded once an epoch."""
    with DatasetWriter(tmp_path / "coded", codec="lz4", shard_size=17_000) as writer:
        for number in range(320):
            values = np.full((number % 4 + 2, 60), number, np.int16)
            writer.add({"row": values[0], "rows": values, "label": np.int64(number)}, name=f"n{number:03}")
    shards = manifests.read(make_plain(tmp_path / "coded")).shards
    assert len(shards) == 10
    s3.fs.put(str(tmp_path / "coded"), f"{s3.url}/coded", recursive=True)
    limits: dict[str, Any] = {
        "cache": tmp_path / "cache",
        "cache_bytes": sum(entry.bytes for entry in shards) * 7 // 10,
    }
    dataset = PackedDataset(f"{s3.url}/coded", **limits, extras=["name"], verify=True)
    decode, decoded, mapped = Locator.decode_frames, [], []

    def count_frames(self: Locator, frames: Located, *others: Any) -> None:
        keys = zip(frames.shard.tolist(), frames.frame.tolist(), strict=True)
        decoded.extend((self.field.name, *key) for key in keys)
        decode(self, frames, *others)

    monkeypatch.setattr(Locator, "decode_frames", count_frames)
    loader = Loader(dataset, 7, shuffle="shards", shuffle_window=100, threads=2)
    for _ in range(2):
        numbers = []
        for batch in loader:
            numbers += batch["label"].tolist()
            assert batch["name"] == [f"n{number:03}" for number in batch["label"].tolist()]
            assert (batch["row"] == batch["label"][:, None]).all()
            assert [rows.unique().tolist() for rows in batch["rows"].to_list()] == batch["label"][:, None].tolist()
            maps = Path("/proc/self/maps")
            mapped.append(maps.read_text().count(f"{tmp_path}/cache") if maps.exists() else 0)
        assert sorted(numbers) == list(range(320))
        assert len(decoded) == len(set(decoded))
        decoded.clear()
    assert max(mapped) < len(shards)


def test_what_does_not_fit_in_a_later_shard_is_an_error(s3, tmp_path) -> None:
    """Fields that are read together are compared when their samples are read, where shards come and go."""
    rng = np.random.default_rng(1)
    with DatasetWriter(tmp_path / "set", codec="none", shard_size=1000) as writer:
        for number in range(6):
            sides, points = (8 + number % 2, 8), 9 + number % 3
            large = (2 * sides[0], 2 * sides[1] + (number == 5))
            small_image, large_image = (rng.integers(0, 256, (*size, 3), np.uint8) for size in (sides, large))
            clouds = {"xyz": rng.random((points, 3)), "colour": rng.random((points + (number == 5), 2))}
            writer.add({"small": small_image, "large": large_image, **clouds})
    shards = manifests.read(make_plain(tmp_path / "set")).shards
    s3.fs.put(str(tmp_path / "set"), f"{s3.url}/set", recursive=True)
    limits: dict[str, Any] = {"cache": tmp_path / "cache", "cache_bytes": 4 * shards[0].bytes}
    assert len(shards) == 6
    parts: dict[str, dict[str, Any]] = {
        "exactly 2 times as many": {"crop": Crop(4, of="large", aligned={"small": 2})},
        "need a row for each point": {"points": VoxelSample(0.1)},
    }
    for wrong, part in parts.items():
        dataset = PackedDataset(f"{s3.url}/set", **limits, **part)
        batches = iter(Loader(dataset, 2))
        assert dataset[0].keys() == next(batches).keys()
        for read in (partial(dataset.__getitem__, 5), partial(list, batches)):
            with pytest.raises(UsageError, match=f"sample 5: .*{wrong}"):
                read()


def test_a_state_goes_on_with_the_windows_under_way(many, s3, tmp_path, room) -> None:
    """The rest of the epoch comes, shards gone by are not fetched, and a second resume equals the first."""
    limits = room(5.2)
    loader = Loader(PackedDataset(many, **limits), 8, shuffle="shards", shuffle_window=32)
    batches = []
    for batch in loader:
        batches.append(batch["label"].tolist())
        if len(batches) == 16:
            state = loader.state_dict()
    for turn in range(2):
        s3.proxy.clear()
        other = Loader(
            PackedDataset(many, cache=tmp_path / f"other{turn}", cache_bytes=limits["cache_bytes"]),
            8,
            shuffle="shards",
            shuffle_window=32,
        )
        other.load_state_dict(state)
        assert [batch["label"].tolist() for batch in other] == batches[16:]
        assert sum(fetched(s3)) == 4


def test_nodes_share_the_shards(many, s3, tmp_path, room, folder) -> None:
    """Two nodes with a cache each fetch every shard once together, and give the batches of one node."""
    limits = room(5.2)["cache_bytes"]
    seen = []
    for node in range(2):
        dataset = PackedDataset(many, cache=tmp_path / f"node{node}", cache_bytes=limits)
        given = {"rank": node, "world_size": 2, "nodes": 2}
        seen.append([batch["label"].tolist() for batch in Loader(dataset, 8, "shards", shuffle_window=32, **given)])
    assert fetched(s3) == [1] * SHARDS
    one = Loader(PackedDataset(folder), 16, "shards", shuffle_window=32)
    assert [sorted(a + b) for a, b in zip(*seen, strict=True)] == [sorted(b["label"].tolist()) for b in one]


def test_ranks_of_one_node_fetch_once(many, s3, tmp_path, room) -> None:
    """Two ranks that share a cache fetch no shard twice, and leave the limit alone."""
    limits = room(5.2)
    loops = [
        iter(Loader(PackedDataset(many, **limits), 8, "shards", shuffle_window=32, rank=rank, world_size=2))
        for rank in range(2)
    ]
    with Watched(tmp_path / "cache") as watched:
        seen = [number for pair in zip(*loops, strict=True) for batch in pair for number in batch["label"].tolist()]
    assert sorted(seen) == list(range(SHARDS * SAMPLES))
    assert fetched(s3) == [1] * SHARDS
    assert watched.most <= limits["cache_bytes"] + 4096


def test_a_rank_does_not_hold_the_shards_of_others(many, s3, monkeypatch, room) -> None:
    """Where a batch has a whole shard, the ranks of a node read every other one; each lets go of those gone by."""
    for rank in range(2):
        dataset = PackedDataset(many, **room(4.2))
        loader = Loader(dataset, SAMPLES, "shards", shuffle_window=SAMPLES, rank=rank, world_size=2)
        assert len(set(labels(loader))) == SHARDS * SAMPLES // 2
    assert max(fetched(s3)) <= 2


@pytest.mark.parametrize("shuffle", [False, "shards"])
def test_a_split_of_crops_streams_too(many, s3, shuffle, room, folder) -> None:
    """Crops, extras, checksums and chosen samples are those of a local dataset; other shards are not fetched."""
    numbers = np.arange(20, 100, 3)
    given: dict[str, Any] = {
        "samples": numbers,
        "crop": Crop(8, of="image"),
        "extras": ["name", "number"],
        "verify": True,
    }

    def read(dataset: PackedDataset) -> list[Any]:
        return list(Loader(dataset, 4, shuffle=shuffle, shuffle_window=10 if shuffle else None, seed=4))

    ours = read(PackedDataset(many, **given, **room(5.2)))
    for batch, other in zip(ours, read(PackedDataset(folder, **given)), strict=True):
        assert list(batch) == list(other)
        assert all(np.array_equal(batch[name], other[name]) for name in batch)
    assert [number for number, times in enumerate(fetched(s3)) if times] == [1, 2, 3, 4, 5, 6]


def test_samples_by_number_fetch_their_shards(many, s3, tmp_path, room, folder) -> None:
    """A sample, a batch, a region and a column are those of a folder, and no other shard is fetched."""
    limits, local = room(1.5), PackedDataset(folder, extras=["name"])
    dataset = PackedDataset(many, **limits, extras=["name"])
    with Watched(tmp_path / "cache") as watched:
        assert torch.equal(dataset[0]["image"], local[0]["image"])
        assert torch.equal(dataset["n001"]["image"], local[1]["image"])
        assert fetched(s3) == [1, *[0] * (SHARDS - 1)]
        numbers = [100, 5, 9, 101, 0]
        ours, theirs = dataset[numbers], local[numbers]
        assert ours["name"] == theirs["name"]
        assert torch.equal(ours["image"], theirs["image"])
        assert fetched(s3) == [1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
        region = {"rows": slice(3, 9), "columns": slice(2, 4)}
        assert torch.equal(dataset.read(190, "image", **region), local.read(190, "image", **region))
        assert sum(fetched(s3)) == 3
        assert dataset.column("label").tolist() == list(range(SHARDS * SAMPLES))
    assert watched.most <= limits["cache_bytes"] + 4096
    assert np.array_equal(dataset.shapes("image"), local.shapes("image"))
    del dataset  # it has a shard open
    chosen = {"samples": [170, 3, 9, 101], "crop": Crop(8, of="image")}
    torch.manual_seed(1)
    ours = PackedDataset(many, **limits, **chosen)[[1, 0, 3]]
    torch.manual_seed(1)
    assert torch.equal(ours["image"], PackedDataset(folder, **chosen)[[1, 0, 3]]["image"])
    with pytest.raises(UsageError, match=r"cache_bytes is [0-9,]+, and the shard shards/00000.lmdb"):
        PackedDataset(many, **room(0.9))[0]


def test_a_data_loader_reads_by_number(many, tmp_path, room) -> None:
    """Two workers share a cache that holds a few shards."""
    limits = room(4.2)
    loader = DataLoader(PackedDataset(many, **limits), 24, num_workers=2, multiprocessing_context="fork")
    with Watched(tmp_path / "cache") as watched:
        assert labels(loader) == list(range(SHARDS * SAMPLES))
    assert watched.most <= limits["cache_bytes"] + 4096


def test_a_sum_reads_datasets_that_are_larger_than_the_cache(many, room) -> None:
    """By number, as torch's ConcatDataset does it."""
    both = PackedDataset(many, **room(4.2)) + PackedDataset(many, **room(4.2))
    assert both.__getitems__([3, SHARDS * SAMPLES + 100])[1]["label"] == 100
    wanted = [*range(SHARDS * SAMPLES)] * 2
    assert labels(DataLoader(both, 24)) == wanted


def test_what_is_read_is_what_is_fetched(many, s3, tmp_path, room) -> None:
    """A sampler, a split, a rank and a field fetch the shards of their own samples, where all would fit and where not.

    A field is kept in the shards of all others.
    """
    cache = {"cache": tmp_path / "cache"}
    assert labels(Loader(PackedDataset(many, **cache), 4, sampler=[20, 3, 21])) == [20, 3, 21]
    assert fetched(s3) == [1, 1, *[0] * (SHARDS - 2)]
    few = PackedDataset(many, split="few", **cache)
    assert sorted(labels(Loader(few, 4, shuffle=True))) == list(range(100, 120))
    assert fetched(s3) == [1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0]
    assert PackedDataset(many, ["label"], **cache)[[150, 40]]["label"].tolist() == [150, 40]
    assert fetched(s3) == [1, 1, 1, 0, 0, 0, 1, 1, 0, 1, 0, 0]
    for limits in (cache, room(6.2)):
        everything = []
        for rank in range(3):  # in batches of a shard and a half
            s3.proxy.clear()
            dataset = PackedDataset(many, **{**limits, "cache": tmp_path / f"{len(limits)}{rank}"})
            numbers = labels(Loader(dataset, 24, rank=rank, world_size=3))
            assert fetched(s3) == [shard in {number // SAMPLES for number in numbers} for shard in range(SHARDS)]
            everything += numbers
        assert sorted(everything) == list(range(SHARDS * SAMPLES))


def test_what_does_not_fit_is_refused_when_the_loader_is_made(many, room, folder) -> None:
    """A cache that cannot hold two shards, or a window and the next, and orders that need all shards."""
    dataset = PackedDataset(many, **room(1.5))
    for shuffle in (False, True):
        with pytest.raises(UsageError, match=r"needs 2 shards at once, [0-9,]+ bytes: raise cache_bytes to that"):
            Loader(dataset, 7, shuffle=shuffle)
    dataset = PackedDataset(many, **room(4.2))
    with pytest.raises(UsageError, match=r"this window needs 6 shards at once, .* or give a smaller shuffle_window"):
        Loader(dataset, 7, shuffle="shards", shuffle_window=64)
    for given in (
        {"batch_size": 100},
        {"batch_size": 7, "sampler": range(0, 192, 16)},
        {"batch_size": 80, "repeat": 2},
    ):
        with pytest.raises(UsageError, match=r"this batch needs \d shards at once, .* or take smaller batches"):
            Loader(dataset, **given)
    with pytest.raises(UsageError, match=r"this batch needs 1 shard at once, .* or pack smaller shards"):
        Loader(PackedDataset(many, **room(0.9)))
    with pytest.raises(UsageError, match="nodes is only for"):
        Loader(PackedDataset(folder), 4, nodes=2, rank=0, world_size=2)


@pytest.fixture
def made(tmp_path: Path) -> Callable[[int, int], Callable[..., PackedDataset]]:
    """Makes a dataset of so many samples in so many shards; gives what reads it through a cache of some of these."""

    def make(samples: int, shards: int) -> Callable[..., PackedDataset]:
        folder = tmp_path / f"made{samples}"
        with DatasetWriter(folder, codec="none", shard_size=-(-samples // shards) * 1032) as writer:
            for number in range(samples):
                writer.add({"x": np.zeros(1024, np.uint8), "label": np.int64(number)})
        assert len(manifests.read(make_plain(folder)).shards) == shards
        split(folder, {"train": 0.9, "valid": 0.1} if shards < 20 else {"train": 0.95, "valid": 0.05})
        largest = max(entry.bytes for entry in manifests.read(folder).shards)
        return lambda room, **given: PackedDataset(
            f"file://{folder}", cache=tmp_path / "cache", cache_bytes=int(room * largest) + 20_000, **given
        )

    return make


@pytest.mark.parametrize(("samples", "shards", "room"), [(1200, 9, 4), (6400, 64, 20)])
def test_a_split_needs_the_shards_of_its_own_batches(made, monkeypatch, samples, shards, room) -> None:
    """Few samples of each shard are read, so a group of batches reaches over more shards than of the whole dataset."""
    valid = made(samples, shards)(room, split="valid")
    loader = Loader(valid, 8, shuffle=True)
    for _ in range(2):
        assert sorted(labels(loader)) == sorted(valid.column("label").tolist())


def test_a_batch_beyond_its_window_is_refused_in_words(made) -> None:
    """A batch of 520 needs the shards of four windows at once."""
    dataset = made(1200, 9)(3)
    assert sorted(labels(Loader(dataset + dataset, 8, shuffle=True))) == sorted([*range(1200)] * 2)
    words = (
        r"its cache may hold [0-9,]+ bytes; this batch needs \d shards at once, [0-9,]+ bytes: raise cache_bytes to "
    )
    with pytest.raises(UsageError, match=words + "that, or take smaller batches"):
        Loader(dataset, 520, shuffle="shards", shuffle_window=1)


@pytest.mark.parametrize(
    "way", ["sampler", "batches", "subset", "repeat", "windows", "select", "mix", "one", "sum", "first", "shuffled"]
)
def test_what_fits_streams(made, tmp_path, monkeypatch, way) -> None:
    """Samplers, subsets, windows, passes and mixes are read with a few shards at a time, as from a folder."""
    open_dataset = made(384, 12)
    ways: dict[str, Callable[[Any], Loader]] = {
        "sampler": lambda make: Loader(make(), 8, sampler=[*range(100, 300, 3), *range(99, 0, -5), 370]),
        "batches": lambda make: Loader(make(), batch_sampler=[[3, 4], [300, 380, 301], [9]]),
        "subset": lambda make: Loader(Subset(make(), list(range(350, 20, -3))), 8),
        "repeat": lambda make: Loader(make(), 8, shuffle="shards", shuffle_window=32, repeat=3),
        "windows": lambda make: Loader(make(windows=Windows({"x": range(2)}, stride=900), fields=["x", "label"]), 8),
        "select": lambda make: Loader(make(samples=np.arange(380, 2, -7)), 8),
        "mix": lambda make: Loader(Mix([make(), make(split="train")], weights=[1, 2], extras=["dataset"]), 8),
        "one": lambda make: Loader(
            Mix({make(): 1, make(samples=np.arange(300, 100, -1)): 4}, stop="all", batches="one"),
            8,
            shuffle="shards",
            shuffle_window=64,
        ),
        "sum": lambda make: Loader(make() + make(split="valid"), 8),
        "first": lambda make: Loader(make() + make(split="valid"), 8, sampler=range(100)),
        "shuffled": lambda make: Loader(
            Subset(make() + make(samples=np.arange(300, 100, -1)), range(580, 10, -3)), 8, "shards", shuffle_window=32
        ),
    }
    local = labels(ways[way](lambda **given: PackedDataset(tmp_path / "made384", **given)))
    with Watched(tmp_path / "cache") as watched:
        streamed = labels(ways[way](partial(open_dataset, 6)))
    assert streamed == local
    assert watched.most <= 6 * 49_152 + 20_000  # the manifest is no shard


def test_a_shuffled_mix_is_shuffled_by_shards(many, s3, folder, tmp_path, room) -> None:
    """Over a cache that is too small for all of its datasets, each shard is fetched once."""
    s3.fs.put(str(folder), "s3://bucket/stream/other", recursive=True)
    limits = room(13.2)  # each alone would fit
    mix = Mix({PackedDataset(url, **limits): 1 for url in (many, "s3://bucket/stream/other")})
    loader = Loader(mix, 8, shuffle=True)
    with Watched(tmp_path / "cache") as watched:
        seen = labels(loader)
    assert sorted(seen) == sorted(2 * list(range(SHARDS * SAMPLES)))
    assert fetched(s3) == [2] * SHARDS
    assert watched.most <= limits["cache_bytes"] + 2 * 4096  # the manifests are no shards
    assert sorted(labels(DataLoader(mix, 48))) == sorted(seen)
    mix = Mix({PackedDataset(many, **room(2.2)): 1, PackedDataset("s3://bucket/stream/other", **room(2.2)): 1})
    words = r"window needs 3 shards at once, [0-9,]+ bytes: raise cache_bytes to that, or pack smaller shards"
    with pytest.raises(UsageError, match=words):
        Loader(mix, 8, shuffle=True)


@pytest.mark.parametrize("batches", ["mixed", "one"])
def test_ranks_of_a_node_need_room_for_a_whole_mix(many, room, batches) -> None:
    """Where they have not, each would wait for what another holds: refused when the Loader is made."""
    given = {"shuffle": True, "rank": 0, "world_size": 2}
    mix = Mix({PackedDataset(many, **room(8)): 1, PackedDataset(many, **room(8)): 2}, batches=batches)
    with pytest.raises(UsageError, match=r"cache holds all of it: raise cache_bytes to [0-9,]+, or make one"):
        Loader(mix, 8, **given)
    Loader(mix, 8, shuffle=True)


def test_an_order_that_fetches_shards_again_and_again_says_so(made, caplog) -> None:
    """Where each batch fits, but not the shards between two batches: one that Loader draws is refused."""
    numbers = np.random.default_rng(0).permutation(384)
    dataset = made(384, 12)(6)
    assert labels(Loader(dataset, 4, sampler=numbers)) == numbers.tolist()
    assert "shards would be fetched" in caplog.text
    with pytest.raises(
        UsageError, match=r"shards would be fetched \d+\.\d times an epoch; raise cache_bytes to 589,824"
    ):
        Loader(dataset, 4, shuffle="block")


def test_failures_that_pass_are_not_seen(many, s3, monkeypatch, room) -> None:
    """They cost another request, and no sample."""
    monkeypatch.setattr(store, "SECONDS", 0.5)
    monkeypatch.setattr(retries, "ATTEMPTS", 1000)  # on a busy machine other answers are late, too
    for number, fault in enumerate(("cut", "busy", "slow", "corrupt", "late")):
        s3.proxy.plan(f"shards/{2 * number:05}.lmdb", getattr(s3.faults, fault))
    loader = Loader(PackedDataset(many, **room(5.2)), 8, shuffle="shards")
    assert sorted(labels(loader)) == list(range(SHARDS * SAMPLES))


def test_failures_that_pass_hold_nothing(many, s3, monkeypatch, room) -> None:
    """Their errors refer to whatever was under way: shards can be removed before garbage is collected."""
    s3.proxy.plan("manifest.json", s3.faults.busy)
    for number in range(SHARDS):
        s3.proxy.plan(f"shards/{number:05}.lmdb", s3.faults.busy)
    gc.disable()
    try:
        dataset = PackedDataset(many, **room(3.2))
        assert labels(Loader(dataset, 8)) == list(range(SHARDS * SAMPLES))
    finally:
        gc.enable()


def test_wrong_bytes_and_a_replaced_dataset_end_the_epoch(s3, room, folder) -> None:
    """The error comes with the first batch that needs the shard; it says whether the dataset was replaced."""
    many = f"{s3.url}/many"
    s3.fs.put(str(folder), many, recursive=True)
    s3.proxy.plan("shards/00006.lmdb", *[s3.faults.corrupt] * 6)
    loop = iter(Loader(PackedDataset(many, **room(3.2)), 16))
    assert [int(next(loop)["label"][0]) for _ in range(6)] == [0, 16, 32, 48, 64, 80]
    with pytest.raises(DamagedError, match=r"00006\.lmdb.*digest"):
        next(loop)
    s3.proxy.clear()
    loop = iter(Loader(PackedDataset(many, **room(3.2)), 16))
    next(loop)
    s3.fs.rm(f"{many}/shards/00011.lmdb")
    other = msgspec.structs.replace(manifests.read(folder), splits={})
    s3.fs.pipe(f"{many}/manifest.json", manifests.encode(other))
    s3.fs.invalidate_cache()
    with pytest.raises(DatasetError, match="was replaced since it was opened"):
        list(loop)


def test_a_full_disk_is_an_error_and_the_next_run_goes_on(many, s3, monkeypatch, room) -> None:
    """It names the file of the cache."""
    true, written = os.fsync, []

    def fsync(descriptor: int) -> None:
        written.append(descriptor)
        if len(written) > 3:
            raise OSError(28, "No space left on device")
        true(descriptor)

    limits = room(5.2)
    dataset = PackedDataset(many, **limits)
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(DatasetError, match="cache cannot be written: No space left"):
        labels(Loader(dataset, 8))
    monkeypatch.setattr(os, "fsync", true)
    assert labels(Loader(dataset, 8)) == list(range(SHARDS * SAMPLES))


def test_a_loop_that_is_closed_waits_for_nothing(many, s3, tmp_path, monkeypatch) -> None:
    """Neither for an answer that stalls, nor for a pause before another attempt, nor for a file that others fetch."""
    monkeypatch.setattr(retries, "PAUSE", 20.0)
    s3.proxy.plan("shards/00003.lmdb", s3.faults.stall)
    s3.proxy.plan("shards/00004.lmdb", s3.faults.busy)
    loops = [iter(Loader(PackedDataset(many, cache=tmp_path / "cache"), 16)) for _ in range(2)]
    for loop in loops:
        next(loop)
    assert s3.proxy.halfway.wait(100)
    while not s3.proxy.gets("shards/00004.lmdb"):
        time.sleep(0.01)
    for loop in reversed(loops):
        loop.close()
    assert not s3.proxy.gone_on.is_set()
    assert s3.proxy.gets("shards/00004.lmdb") == 1


def test_room_that_others_hold_is_an_error_in_time(many, s3, monkeypatch, room) -> None:
    """Where another process holds what it takes, and is no loop that gives it back, an epoch does not wait for ever."""
    limits = room(2.2)
    dataset = PackedDataset(many, **limits)
    shards = [(dataset._mirror, entry) for entry in dataset.manifest.shards[:2]]
    held = [ahead.Ahead(dataset._mirror.cache, shards)]
    leases = [held[0].take(place) for place in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(ahead, "PATIENCE", 0.2)
        with pytest.raises(DatasetError, match="raise cache_bytes"):
            labels(Loader(PackedDataset(many, **limits), 16, shuffle="shards", seed=3))
    held.pop().close()
    for lease in leases:
        lease.close()
    assert sorted(labels(Loader(dataset, 16, shuffle="shards", seed=3))) == list(range(SHARDS * SAMPLES))


def test_names_and_constants_after_an_epoch(many, room) -> None:
    """The shards of an epoch make room for the table of names, in its loop, after it, and in a reader of its own."""
    limits = room(2.6)
    dataset = PackedDataset(many, **limits)
    for number, _ in enumerate(Loader(dataset, 16, shuffle="shards")):
        if number == 3:
            assert PackedDataset(many, **limits).names[5] == "n005"
    assert dataset.names[5] == "n005"
    assert int(PackedDataset(many, **limits)["n005"]["label"]) == 5


def test_a_cache_that_holds_the_shards_and_nothing_else_streams(many, folder, tmp_path) -> None:
    """Manifest and tables count, too: between the two a dataset neither fitted nor streamed."""
    nbytes = sum(entry.bytes for entry in manifests.read(folder).shards)
    limits = {"cache": tmp_path / "cache", "cache_bytes": nbytes + 100}
    dataset = PackedDataset(many, **limits)
    assert labels(Loader(dataset, 16)) == list(range(SHARDS * SAMPLES))
    assert dataset.names[100] == "n100"
    assert dataset[0]["label"] == 0


@pytest.mark.parametrize(("shards", "window"), [(4.6, 1), (10.6, None)])
def test_two_loops_share_a_cache_with_room_for_both(many, tmp_path, shards, window, room) -> None:
    """Validation in the middle of an epoch, whose shards fetched ahead make room; by default two windows have room."""
    limits = room(shards)
    train = Loader(PackedDataset(many, **limits), 16, shuffle="shards", shuffle_window=window)
    valid = Loader(PackedDataset(many, **limits), 16, shuffle="shards" if window is None else False)
    everything = []
    with Watched(tmp_path / "cache") as watched:
        for number, batch in enumerate(train):
            everything += batch["label"].tolist()
            if number in (2, 7):
                assert sorted(labels(valid)) == list(range(SHARDS * SAMPLES))
    assert sorted(everything) == list(range(SHARDS * SAMPLES))
    assert watched.most <= limits["cache_bytes"] + 4096


def test_two_loops_without_room_for_both_are_told_at_once(many, room) -> None:
    """The second one is refused when it is made, with both figures and the remedy; later there is room."""
    limits = room(3.2)
    train = iter(Loader(PackedDataset(many, **limits), 16, shuffle="shards", shuffle_window=1))
    next(train)
    remedy = r"needs 131,072 of them at once, and this one 131,072: raise cache_bytes, .* or give this one a cache="
    with pytest.raises(UsageError, match=remedy):
        Loader(PackedDataset(many, **limits), 16)
    train.close()
    assert labels(Loader(PackedDataset(many, **limits), 16)) == list(range(SHARDS * SAMPLES))


def test_ranks_out_of_step_share_a_cache(many, room) -> None:
    """A rank that is ahead waits for the one behind, which has the room of a window and the next."""
    limits = room(2.6)
    ranks = [
        iter(Loader(PackedDataset(many, **limits), 4, shuffle="shards", shuffle_window=1, rank=rank, world_size=2))
        for rank in range(2)
    ]
    read = [next(ranks[0])["label"].tolist(), next(ranks[1])["label"].tolist()]
    ahead_of = threading.Thread(target=lambda: read.extend(batch["label"].tolist() for batch in ranks[0]))
    ahead_of.start()
    time.sleep(0.2)  # it is ahead by now, as far as there is room
    read.extend(batch["label"].tolist() for batch in ranks[1])
    ahead_of.join()
    assert sorted(number for batch in read for number in batch) == list(range(SHARDS * SAMPLES))


def test_a_loop_that_was_killed_holds_no_room(many, room) -> None:
    """What it needed and held is free at once."""
    limits = room(3.2)
    context = multiprocessing.get_context("fork")  # whose child never goes on with the tests of its parent
    begun, begins = context.Pipe(duplex=False)

    def read() -> None:
        loop = iter(Loader(PackedDataset(many, **limits), 16, shuffle="shards", shuffle_window=1))
        next(loop)
        begins.send(True)
        time.sleep(60)

    child = context.Process(target=read)
    child.start()
    begins.close()
    assert begun.recv()
    with pytest.raises(UsageError, match="give this one a cache="):
        Loader(PackedDataset(many, **limits), 16)
    child.kill()
    child.join()
    begun.close()
    assert labels(Loader(PackedDataset(many, **limits), 16)) == list(range(SHARDS * SAMPLES))


def test_what_is_slow_is_said(s3, folder, room, tmp_path, caplog) -> None:
    """Samples of any shards by number from a small cache, and a shuffle that needs all shards first."""
    url = f"{s3.url}/slow"  # each remark is made once for a URL
    s3.fs.put(str(folder), url, recursive=True)
    labels(DataLoader(PackedDataset(url, **room(2.2)), 16, shuffle=True))
    assert "larger than cache_bytes, and nearly each sample" in caplog.text
    caplog.clear()
    next(iter(Loader(PackedDataset(url, cache=tmp_path / "large"), 16, shuffle=True)))
    assert "bytes are fetched before the first batches" in caplog.text
    assert "shuffle='shards' begins with the first few shards" in caplog.text


def test_patience_is_that_of_the_dataset(many, s3, monkeypatch, tmp_path) -> None:
    """A server that is away for longer than that ends the loop, whose state can be resumed; a folder has none."""
    with pytest.raises(UsageError, match="patience is 'long'; a number of seconds"):
        PackedDataset(many, cache=tmp_path / "cache", patience="long")
    dataset = PackedDataset(many, cache=tmp_path / "cache", patience=10)
    s3.proxy.plan("00000.lmdb", *[s3.faults.busy] * 1000)
    clock = SimpleNamespace(monotonic=lambda: float(s3.proxy.gets("00000.lmdb")))  # a second for each request
    monkeypatch.setattr("packer.remote.retries.time", clock)
    with pytest.raises(RemoteError, match="a loop goes on from the state of its Loader"):
        dataset[0]
    assert s3.proxy.gets("00000.lmdb") == 10
