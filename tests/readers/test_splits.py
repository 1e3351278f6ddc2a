"""Splits and extras: numbers and names of a split are its own, and batches say which samples they hold."""

from __future__ import annotations

import itertools
import pickle
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Subset

from packer.codecs import NAMED
from packer.errors import DamagedError, DatasetError, MissingNameError, SampleIndexError, UsageError
from packer.format import Field, FrameRule
from packer.split import split
from packer.writer import DatasetWriter
from readers import Crop, Loader, Mix, PackedDataset, Windows
from readers.source import source_of

SAMPLES = 40
TRAIN = [0, 1, 2, 5, 8, 13, 21, 22, 23, 34, 39]


def _field(name: str, **changes: Any) -> Field:
    return Field(name=name, **{"dtype": "int64", "codec": NAMED["zstd"], "frame": FrameRule(samples=4), **changes})


def _packed(pack: Any, folder: Path, shards: Sequence[int] = (15, 25)) -> Path:
    """Samples that hold their number in fields of every kind, `n/0` to `n/39`."""
    fields = [
        _field("y"),
        _field("x", codec=(), shape=(3,)),
        _field("steps", shape=(None,)),
        _field("picture", dtype="uint8", kind="image", shape=(8, 8, 1)),
    ]
    samples = [
        {
            "y": np.int64(i),
            "x": np.full(3, i),
            "steps": 100 * i + np.arange(i % 5),
            "picture": np.full((8, 8, 1), i, np.uint8),
        }
        for i in range(sum(shards))
    ]
    edges = [0, *np.cumsum(shards).tolist()]
    parts = [samples[a:b] for a, b in itertools.pairwise(edges)]
    path: Path = pack(folder / "p", fields, parts, [f"n/{i}" for i in range(len(samples))])
    return path


@pytest.fixture(scope="module")
def in_splits(pack: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The samples above, in the splits `train`, `rest` and `none`."""
    path = _packed(pack, tmp_path_factory.mktemp("items"))
    rest = [i for i in range(SAMPLES) if i not in TRAIN]
    split(path, {"train": [f"n/{i}" for i in TRAIN], "rest": [f"n/{i}" for i in rest]})
    return path


def test_a_split_is_a_dataset_of_its_own(in_splits: Path) -> None:
    """Its numbers go from 0 on, its names are those of its samples, and nothing else is in it."""
    ds = PackedDataset(in_splits, split="train")
    assert len(ds) == len(TRAIN)
    assert ds[:]["y"].tolist() == TRAIN
    assert ds[[-1, 3]]["x"].tolist() == [[39] * 3, [5] * 3]
    assert ds["n/13"]["y"] == ds[5]["y"] == 13
    assert ds[["n/39", "n/0"]]["y"].tolist() == [39, 0]
    assert ds[np.array(TRAIN) > 20]["y"].tolist() == [21, 22, 23, 34, 39]
    assert [len(steps) for steps in ds[:]["steps"].to_list()] == [i % 5 for i in TRAIN]
    assert ds.read(7, "steps", rows=slice(1, 3)).tolist() == [2201, 2202][: 22 % 5 - 1]
    assert ds.read("n/23", "steps", rows=slice(2, 3)).tolist() == [2302]
    for wrong in (11, -12):
        with pytest.raises(SampleIndexError, match="of 11"):
            _ = ds[wrong]
    with pytest.raises(MissingNameError, match="'n/3' is not in the split 'train'"):
        _ = ds[["n/0", "n/3"]]
    with pytest.raises(MissingNameError, match="'m'"):
        _ = ds["m"]
    assert ds.names is not None
    assert list(ds.names) == ds.names[:] == [f"n/{i}" for i in TRAIN]
    assert (len(ds.names), ds.names[3], "n/3" in ds.names, "n/5" in ds.names) == (11, "n/5", False, True)
    assert ds.names.index("n/5") == 3
    with pytest.raises(ValueError, match="'n/3'"):
        ds.names.index("n/3")


def test_a_split_that_is_not_there(in_splits: Path, packed: Path) -> None:
    """The error says which splits there are, or how to make some."""
    with pytest.raises(UsageError, match=r"no split 'test'; it has train, rest"):
        PackedDataset(in_splits, split="test")
    with pytest.raises(UsageError, match=r"it has none; `packer split` makes some"):
        PackedDataset(packed, split="train")


@settings(max_examples=20)
@given(
    chosen=st.lists(st.integers(0, SAMPLES - 1), min_size=1, unique=True),
    shards=st.sampled_from([(40,), (15, 25), (1, 20, 19)]),
    shuffle=st.sampled_from([False, True, "block"]),
    batch_size=st.integers(1, 7),
    has_windows=st.booleans(),
)
def test_a_loader_reads_a_split_once_an_epoch(
    pack: Any, chosen: list[int], shards: tuple[int, ...], shuffle: bool | str, batch_size: int, has_windows: bool
) -> None:
    """Any split, over any shards, in any order, of samples or windows: each item once, on the ranks together too."""
    windows = Windows(2) if has_windows else None
    wanted = [(i, a) for i in sorted(chosen) for a in (range(i % 5 - 1) if windows else [0])]
    with tempfile.TemporaryDirectory() as folder:
        path = _packed(pack, Path(folder), shards)
        split(path, {"a": [f"n/{i}" for i in chosen]})
        extras = ("number", "step") if windows else ("number",)
        ds = PackedDataset(path, split="a", windows=windows, extras=extras)
        assert len(ds) == len(wanted)

        def items(loader: Loader) -> list[tuple[int, int]]:
            found = []
            for batch in loader:
                y, step = batch["y"].tolist(), batch.get("step", torch.zeros_like(batch["y"])).tolist()
                assert batch["x"][:, 0].tolist() == y
                assert np.array_equal(np.array(sorted(chosen))[batch["number"].numpy()], y)
                if windows:
                    assert batch["steps"].tolist() == [
                        [100 * i + a, 100 * i + a + 1] for i, a in zip(y, step, strict=True)
                    ]
                found += zip(y, step, strict=True)
            return found

        loader = Loader(ds, batch_size, shuffle=shuffle)
        first = items(loader)
        assert sorted(first) == wanted
        if not shuffle:
            assert first == wanted
        whole = len(wanted) // (2 * batch_size) * batch_size
        ranks = [items(Loader(ds, batch_size, shuffle=shuffle, rank=r, world_size=2, drop_last=True)) for r in (0, 1)]
        assert len(set(ranks[0]) | set(ranks[1])) == 2 * whole
        state = Loader(ds, batch_size, shuffle=shuffle)
        batches = iter(state)
        taken = len(next(batches)["y"]) if wanted else 0
        other = Loader(ds, batch_size + 1, shuffle=shuffle)
        other.load_state_dict(state.state_dict())
        assert not wanted or len(wanted) == taken or items(other) == first[taken:]


def test_a_pickle_means_the_samples_that_the_dataset_had(in_splits: Path, tmp_path: Path) -> None:
    """A worker's numbers are those of its parent, also if the dataset was split anew or replaced before it began."""
    folder = tmp_path / "p"
    shutil.copytree(in_splits, folder)
    sent = pickle.dumps(PackedDataset(folder, split="train"))
    split(folder, {"train": [f"n/{number}" for number in range(20, 31)]})
    assert pickle.loads(sent)[:]["y"].tolist() == TRAIN
    shutil.rmtree(folder)
    with DatasetWriter(folder) as writer:
        writer.add({"y": 0})
    with pytest.raises(DatasetError, match="was changed since it was opened"):
        pickle.loads(sent)[0]


# Extras.


def test_extras_say_which_samples_a_batch_holds(in_splits: Path) -> None:
    """Names are str, numbers those by which the dataset is asked, in samples, batches, Loader and DataLoader."""
    for ds in (
        PackedDataset(in_splits, extras=("name", "number")),
        PackedDataset(in_splits, fields="y", extras=["number", "name"], verify=True),
        pickle.loads(pickle.dumps(PackedDataset(in_splits, extras=("name", "number"), batch_transform=dict))),
    ):
        batch = ds[[30, 2]]
        assert batch["name"] == ["n/30", "n/2"]
        assert batch["number"].dtype == torch.int64
        assert batch["number"].tolist() == [30, 2]
        batch["number"][:] = 0
        assert ds[[30, 2]]["number"].tolist() == [30, 2]
        one = ds["n/7"]
        assert (one["name"], int(one["number"])) == ("n/7", 7)
        for loader in (Loader(ds, 7, shuffle=True), DataLoader(ds, 7, shuffle=True), DataLoader(ds, 7, num_workers=1)):
            for batch in loader:
                assert batch["number"].tolist() == batch["y"].tolist()
                assert batch["name"] == [f"n/{i}" for i in batch["y"].tolist()]


def test_extras_behind_a_url(in_splits: Path, tmp_path: Path) -> None:
    """Shards that are fetched one by one give names and numbers as those on disk do, and of a split only some are."""
    url = "memory://readers-items"
    fsspec.filesystem("memory").put(str(in_splits), "/readers-items", recursive=True)
    ds = PackedDataset(url, cache=tmp_path / "one", extras=("name", "number"), split="train")
    first = ds[[0, 3]]
    assert (first["name"], first["number"].tolist(), first["y"].tolist()) == (["n/0", "n/5"], [0, 3], [0, 5])
    assert len(list((tmp_path / "one").rglob("0000*.lmdb"))) == 1
    both = ds[[10, 1]]
    assert (both["name"], both["number"].tolist()) == (["n/39", "n/1"], [10, 1])
    again = PackedDataset(url, cache=tmp_path / "one", windows=Windows(1), fields="steps")
    assert len(again) == sum(i % 5 for i in range(SAMPLES))


def test_extras_that_cannot_be(in_splits: Path, rows: Path, pack: Any, tmp_path: Path) -> None:
    """Other words, names where there are none, steps without windows, and names of fields."""
    for path, extras, message in (
        (in_splits, ("path",), "'path' is not one of 'name', 'number' and 'step'"),
        (rows, "name", "the samples have no names"),
        (in_splits, ("step",), "give windows="),
        (pack(tmp_path / "p", [_field("number")], [[{"number": np.int64(1)}]]), ("number",), "a field is also called"),
    ):
        with pytest.raises(UsageError, match=message):
            PackedDataset(path, extras=extras)
    assert PackedDataset(rows, extras="number")[[3]]["number"].tolist() == [3]


def test_damaged_names_are_an_error(in_splits: Path, tmp_path: Path) -> None:
    """Names whose places do not ascend are not read."""
    path = shutil.copytree(in_splits, tmp_path / "p")
    shard = sorted((path / "shards").iterdir())[0]
    data = shard.read_bytes()
    places = np.cumsum([0, *(len(f"n/{i}") for i in range(15))]).astype("<u8").tobytes()
    at = data.index(places)
    shard.write_bytes(data[: at + 8] + b"\xff" * 8 + data[at + 16 :])
    with pytest.raises(DamagedError, match="the names of the samples are damaged"):
        _ = PackedDataset(path, extras="name")[0]


# ---------------------------------------------------------------- chosen samples, subsets


def test_chosen_samples_are_counted_anew(in_splits: Path) -> None:
    """By numbers in any order or a mask, of a split too; names, windows of numbers and pickles follow."""
    whole, train = PackedDataset(in_splits), PackedDataset(in_splits, split="train")
    order = np.random.default_rng(0).permutation(len(train))
    mask = np.isin(np.arange(len(train)), order[:7])
    for chosen, numbers in ((order, order), (mask, np.flatnonzero(mask)), (range(3, 9), range(3, 9)), ([-1], [-1])):
        made = PackedDataset(in_splits, split="train", samples=chosen, extras=("number",))
        for ds in (made, pickle.loads(pickle.dumps(made)), PackedDataset(in_splits, split="train").select(chosen)):
            assert len(ds) == len(numbers)
            assert ds[:]["y"].tolist() == np.array(TRAIN)[list(numbers)].tolist()
            assert ds.names[:] == train.names[list(numbers)]
            assert source_of(ds).sample_numbers(ds.names[:]).tolist() == list(range(len(ds)))
        assert made[:]["number"].tolist() == list(range(len(numbers)))
    assert whole.select(order).select([2, 0]).names[:] == [whole.names[order[2]], whole.names[order[0]]]
    with pytest.raises(MissingNameError, match="not among the chosen samples"):
        _ = train.select(order[:3])[train.names[order[3]]]
    for wrong, said in (
        ([1, 1], "number 1 comes twice"),
        ([10**6], "samples: sample 1000000 of"),
        (["a"], "not the name"),
    ):
        with pytest.raises(UsageError, match=said):
            PackedDataset(in_splits, samples=wrong)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loader_reads_a_subset(in_splits: Path, shuffle: bool) -> None:
    """Subsets of subsets too, with the numbers of the dataset, as torch's DataLoader reads them; states know theirs."""
    ds = PackedDataset(in_splits, extras=("number",))
    some = Subset(Subset(ds, range(len(ds) - 1, 0, -2)), [5, 0, 3, 8])
    found = [number for batch in Loader(some, 3, shuffle=shuffle, seed=1) for number in batch["number"].tolist()]
    wanted = [number for batch in DataLoader(some, 3) for number in batch["number"].tolist()]
    assert (sorted(found) == sorted(wanted)) if shuffle else (found == wanted)
    loader = Loader(some, 2, shuffle=shuffle)
    next(iter(loader))
    with pytest.raises(UsageError, match="of another order"):
        Loader(Subset(ds, [1, 2, 3, 4]), 2, shuffle=shuffle).load_state_dict(loader.state_dict())
    for refused in ({"shuffle": "block"}, {"batch_sampler": [[0]]}):
        with pytest.raises(UsageError, match="Subset"):
            Loader(some, **refused)
    with pytest.raises(UsageError, match="no sampler or Subset"):
        Loader(Subset(Mix({ds: 1}), [0]))


def test_a_block_shuffle_of_chosen_samples(in_splits: Path) -> None:
    """Each once if they ascend; in another order there are no blocks."""
    ds = PackedDataset(in_splits, extras=("name",))
    some = ds.select(slice(1, None, 3))
    names = [name for batch in Loader(some, 4, shuffle="block") for name in batch["name"]]
    assert sorted(names) == sorted(some.names[:])
    with pytest.raises(UsageError, match="ascending order"):
        Loader(ds.select([2, 1]), shuffle="block")


def test_crops_at_given_places_follow_a_selection(in_splits: Path) -> None:
    """Places that were given by sample go with their samples."""
    places = np.stack([np.arange(SAMPLES) % 3, np.zeros(SAMPLES, np.int64)], axis=1)
    ds = PackedDataset(in_splits, "picture", crop=Crop(2, of="picture", at=places, pad="zero"), extras="number")
    some = ds.select([5, 3])
    assert torch.equal(some[:]["picture"], ds[[5, 3]]["picture"])
    assert some._parts.crop._given.tolist() == [[2, 0], [0, 0]]  # type: ignore[union-attr]
