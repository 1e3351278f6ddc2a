"""All shards as one window of memory, and what damaged files may do to a process that reads them: nothing."""

from __future__ import annotations

import gc
import multiprocessing
import shutil
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from packer.codecs import NAMED
from packer.errors import PackerError
from packer.format import Field, FrameRule, Shard, Tree
from readers import PackedDataset, Ragged
from readers.gather import Memory


@pytest.fixture
def memory(rows: Path) -> Memory:
    """The window over the shards of `rows`."""
    return PackedDataset(rows).opened.memory


def test_every_byte_of_every_shard_is_at_its_address(rows: Path) -> None:
    """The window shows each file's bytes from its start on, though the maps may lie anywhere."""
    ds = PackedDataset(rows)
    memory = ds.opened.memory
    assert len(memory.starts) == 2
    for entry, start in zip(ds.manifest.shards, memory.starts.tolist(), strict=True):
        data = (rows / entry.file).read_bytes()
        assert memory.array[start : start + len(data)].tobytes() == data
    assert not memory.array.flags.writeable


def test_no_shard_is_a_window_of_nothing() -> None:
    """A dataset without samples opens."""
    memory = Memory([])
    assert len(memory.array) == 0


def test_readers_keep_the_maps_alive(rows: Path) -> None:
    """Whoever still holds a reader may read, after the dataset itself is gone."""
    ds = PackedDataset(rows)
    reader = ds.opened.readers["y"]
    del ds
    gc.collect()
    assert reader.read(reader.locate(np.array([5, 999]))).tolist() == [5, 999]  # type: ignore[union-attr]


# Damaged files.

FIELDS = (
    Field(name="raw", dtype="float32", shape=(3,), frame=FrameRule(samples=4)),
    Field(name="number", dtype="int64"),
    Field(name="lz4", dtype="int32", shape=(40,), codec=NAMED["lz4"], frame=FrameRule(samples=3)),
    Field(name="own", dtype="int32", shape=(90,), codec=NAMED["lz4"]),
    Field(name="blosc", dtype="int32", shape=(90,), codec=NAMED["bitshuffle"], frame=FrameRule(samples=2)),
    Field(
        name="image",
        dtype="uint8",
        kind="image",
        shape=(20, 9, 3),
        codec=NAMED["photo+zstd"],
        frame=FrameRule(rows=6),
    ),
    Field(name="cloud", dtype="float64", shape=(None, 2), codec=NAMED["zstd"], frame=FrameRule(samples=4)),
    Field(name="bare", dtype="int16", shape=(None, 2)),
    Field(
        name="picture",
        dtype="uint16",
        kind="image",
        shape=(None, None, 1),
        codec=NAMED["lz4"],
        frame=FrameRule(rows=3),
    ),
    Field(name="text", dtype="uint8", kind="text", shape=(None,), codec=NAMED["lz4"], frame=FrameRule(samples=5)),
)
COUNT = 18
NUMBERS = (0, 1, 7, 255, 4096, 2**31, 2**32, 2**62, 2**63, 2**64 - 1)
MUTATIONS = 150
A_PROCESS = 50


def _sample(number: int) -> dict[str, Any]:
    return {
        "raw": np.full(3, number, np.float32),
        "number": np.int64(number),
        "lz4": np.full(40, number, np.int32),
        "own": np.full(90, number, np.int32),
        "blosc": np.arange(90, dtype=np.int32) // 9 + number,
        "image": np.full((20, 9, 3), number, np.uint8),
        "cloud": np.full((number % 4 * 9, 2), float(number)),
        "bare": np.full((number % 3, 2), number, np.int16),
        "picture": np.full((number % 5 * 3, 40, 1), number, np.uint16),
        "text": "text " * (number % 6),
    }


@pytest.fixture(scope="module")
def whole(pack: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of every way to store a field, in two shards, undamaged."""
    samples = [_sample(number) for number in range(COUNT)]
    folder: Path = pack(tmp_path_factory.mktemp("fuzz") / "whole", FIELDS, [samples[:11], samples[11:]])
    return folder


def _damage(data: bytearray, rng: np.random.Generator) -> None:
    """Changes a few bytes of a shard: anywhere, in an index array, in a chunk, or in a page of the B-tree."""
    values = Tree(memoryview(bytes(data)), "").values()
    way = int(rng.integers(0, 5))
    if way == 0:
        start, size = 0, len(data)
    elif way == 1:
        start, size = int(rng.integers(0, len(data) // 4096)) * 4096, 64
    else:
        wanted = b"chunk" if way == 2 else b"column"
        chosen = [value for value in values if value.key.startswith(wanted) and value.size]
        _, start, size = chosen[int(rng.integers(len(chosen)))]
    for _ in range(int(rng.integers(1, 4))):
        at = start + int(rng.integers(size))
        if rng.integers(2) or at + 8 > len(data):
            data[at] ^= 1 << int(rng.integers(8))
        else:
            number = NUMBERS[int(rng.integers(len(NUMBERS)))]
            at = start + (at - start) // 8 * 8
            data[at : at + 8] = number.to_bytes(8, "little")


def _read_everything(folder: Path) -> None:
    """Reads all samples in three ways; checks that whatever comes has the right shape."""
    ds = PackedDataset(folder)
    for index in (slice(None), [17, 3, 11, 3], 16):
        n = 1 if index == 16 else len(ds.numbers(index))
        batch = ds[[16] if index == 16 else index]
        for field in FIELDS:
            value = batch[field.name]
            shape = field.shape if field.kind != "image" else (field.shape[2], *field.shape[:2])
            if isinstance(value, Ragged):
                assert len(value.offsets) == n + 1
                assert int(value.offsets[-1]) == len(value.values)
                assert value.values.shape[1:] == shape[1:]
                value.values.sum()
            elif isinstance(value, torch.Tensor):
                assert value.shape == (n, *shape)
                value.sum(dtype=torch.float64)
            else:
                assert len(value) == n
                assert not [part for part in value if isinstance(part, str) != (field.kind == "text")]


def _try_damages(whole: Path, folder: Path, seeds: range, results: Any) -> None:
    """In a process of its own: sends what each mutation led to; dies where one crashes."""
    shutil.copytree(whole, folder)
    shards = sorted((folder / "shards").iterdir())
    good = [shard.read_bytes() for shard in shards]
    for seed in seeds:
        rng = np.random.default_rng(seed)
        victim = int(rng.integers(len(shards)))
        data = bytearray(good[victim])
        _damage(data, rng)
        shards[victim].write_bytes(data)
        results.send((seed, "began"))
        try:
            _read_everything(folder)
            outcome = "read"
        except PackerError:
            outcome = "refused"
        except BaseException:
            outcome = traceback.format_exc()
        results.send((seed, outcome))
        shards[victim].write_bytes(good[victim])
    results.close()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")
@pytest.mark.parametrize("first", range(0, MUTATIONS, A_PROCESS))
def test_a_damaged_shard_is_read_or_refused_but_never_crashes(whole: Path, tmp_path: Path, first: int) -> None:
    """Whatever bits are flipped in whichever page: values of the right shape, or an error made on purpose."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    seeds = range(first, first + A_PROCESS)
    process = context.Process(target=_try_damages, args=(whole, tmp_path / "copy", seeds, sender))
    process.start()
    sender.close()
    outcomes: dict[int, str] = {}
    try:
        while receiver.poll(60):
            seed, outcome = receiver.recv()
            outcomes[seed] = outcome
    except EOFError:
        pass
    finally:
        process.join(5)
        process.kill()
        process.join()
        receiver.close()
    assert process.exitcode == 0, f"exit {process.exitcode} at {list(outcomes.items())[-1:]}"
    wrong = {seed: outcome for seed, outcome in outcomes.items() if outcome not in ("read", "refused")}
    assert not wrong, next(iter(wrong.items()))
    assert len(outcomes) == A_PROCESS
    assert {"read", "refused"} <= set(outcomes.values())


def test_a_shard_reads_the_same_through_its_own_column(whole: Path) -> None:
    """Batches equal what the format's own one-by-one reader gives, for every way to store a field."""
    ds = PackedDataset(whole)
    first = 0
    for entry in ds.manifest.shards:
        with Shard(whole / entry.file) as shard:
            for number, field in enumerate(FIELDS):
                columns = shard.column(number, field, entry.samples).read(0, entry.samples)
                for at, wanted in enumerate(columns):
                    found = ds[first + at][field.name]
                    if isinstance(found, str):
                        assert found.encode() == wanted.tobytes()
                    else:
                        held = found.permute(1, 2, 0) if field.kind == "image" else found
                        assert held.numpy().tobytes() == wanted.tobytes()
        first += entry.samples
