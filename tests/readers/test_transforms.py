"""Functions of one sample and of a whole batch: the same by index, with `Loader` and with torch's `DataLoader`."""

from __future__ import annotations

import pickle
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jpeg_files import as_jpeg, photograph
from torch.utils.data import ConcatDataset, DataLoader, Subset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from packer.convert import convert
from packer.errors import UsageError
from packer.format import Field
from readers import Loader, Mix, PackedDataset, Ragged
from readers.valid import remark


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    """Changes one sample, and adds what no batch has."""
    assert sample["x"].shape == (33,)
    return {"double": sample["x"] * 2, "y": sample["y"], "word": f"number {int(sample['y'])}", "half": 0.5}


def halved(batch: dict[str, Any]) -> dict[str, Any]:
    """Changes what was joined of changed samples, or one of them."""
    return {**batch, "double": batch["double"] / 2}


def assert_doubled(batch: dict[str, Any], numbers: list[int], factor: int = 2) -> None:
    assert batch["y"].tolist() == numbers
    assert batch["double"].shape == (len(numbers), 33)
    assert (batch["double"] == factor * batch["y"][:, None]).all()
    assert batch["word"] == [f"number {number}" for number in numbers]
    assert batch["half"].tolist() == [0.5] * len(numbers)


@pytest.mark.parametrize(("transform", "factor"), [(None, 2), (halved, 1)])
def test_a_function_of_one_sample_is_called_before_samples_become_a_batch(
    rows: Path, transform: Any, factor: int
) -> None:
    """By index, in `Loader` inline and by threads, in `DataLoader` with workers and without, in a mix and a subset."""
    ds = PackedDataset(rows, sample_transform=doubled, batch_transform=transform)
    one = ds[7]
    assert one["double"].tolist() == [7 * factor] * 33
    assert (one["word"], one["half"]) == ("number 7", 0.5)
    assert_doubled(ds[[3, 1]], [3, 1], factor)
    assert_doubled(pickle.loads(pickle.dumps(ds))[:2], [0, 1], factor)
    for dataset in (ds, Mix({ds: 1}), Subset(ds, range(6))):
        for workers in (0, 1):
            first = next(iter(DataLoader(dataset, batch_size=4, num_workers=workers)))
            assert_doubled(first, [0, 1, 2, 3], factor)
    for threads in ("auto", 0, 2):
        for batch, start in zip(Loader(ds, 128, threads=threads), range(0, 1000, 128), strict=True):
            assert_doubled(batch, list(range(start, min(start + 128, 1000))), factor)
    assert_doubled(next(iter(Loader(Mix({ds: 1}), 4))), [0, 1, 2, 3], factor)


def test_samples_are_read_together_and_changed_one_by_one(rows: Path) -> None:
    """The function sees plain dicts, once a sample, in the order of the batch."""
    seen = []

    def note(sample: dict[str, Any]) -> dict[str, Any]:
        assert type(sample) is dict
        seen.append(int(sample["y"]))
        return sample

    ds = PackedDataset(rows, sample_transform=note)
    batch = ds.__getitems__([5, 2, 5])
    assert seen == [5, 2, 5]
    assert default_collate(batch)["y"].tolist() == [5, 2, 5]
    next(iter(Loader(ds, 3, sampler=[9, 8, 7], threads=0)))
    assert seen == [5, 2, 5, 9, 8, 7]


def test_random_functions_of_one_sample_repeat_with_the_seed(rows: Path) -> None:
    """They draw from torch's generator; `Loader` calls them in one thread by default."""
    ds = PackedDataset(rows, sample_transform=lambda sample: {"x": torch.rand(3), "y": sample["y"]})

    def drawn() -> list[torch.Tensor]:
        torch.manual_seed(4)
        return [batch["x"] for batch in Loader(ds, 100)]

    assert all(map(torch.equal, drawn(), drawn()))
    assert len({value for batch in drawn() for value in batch.view(-1).tolist()}) > 2900


def test_what_goes_with_a_function_of_one_sample(rows: Path) -> None:
    """Datasets of a mix share it; a sum is read sample by sample, since it may give anything; none make no batch."""
    ds = PackedDataset(rows, sample_transform=doubled)
    with pytest.raises(UsageError, match="different transforms"):
        Mix({ds: 1, PackedDataset(rows): 1})
    assert isinstance(ds + PackedDataset(rows), ConcatDataset)
    with pytest.raises(UsageError, match="an empty batch cannot be joined"):
        ds[np.zeros(1000, bool)]


def crops(sample: dict[str, Any]) -> list[dict[str, Any]]:
    """Two pieces of a row; three of every fifth."""
    count = 3 if int(sample["y"]) % 5 == 0 else 2
    return [{**sample, "x": sample["x"][at : at + 4] + at, "at": at} for at in range(count)]


def assert_crops(batch: dict[str, Any], numbers: list[int], factor: int = 1) -> None:
    pieces = [(number, at) for number in numbers for at in range(3 if number % 5 == 0 else 2)]
    assert list(zip(batch["y"].tolist(), batch["at"].tolist(), strict=True)) == pieces
    assert batch["number"].tolist() == [number for number, _ in pieces]
    assert batch["x"].tolist() == [[factor * float(number + at)] * 4 for number, at in pieces]


def scaled(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "x": batch["x"] * 10}


@pytest.mark.parametrize(("transform", "factor"), [(None, 1), (scaled, 10)])
def test_each_of_several_samples_that_a_function_makes_of_one_counts(rows: Path, transform: Any, factor: int) -> None:
    """One after another in batches, in every way of reading and in a mix; by index they are a list."""
    ds = PackedDataset(rows, sample_transform=crops, batch_transform=transform, extras=("number",))
    for dataset in (ds, Mix({ds: 1})):
        one = dataset[7]
        assert isinstance(one, list)
        assert_crops(default_collate(one), [7], factor)
        assert_crops(next(iter(Loader(dataset, 6))), list(range(6)), factor)
        for read in (dataset, Subset(dataset, range(8)), ConcatDataset([dataset])):
            for workers in (0, 1):
                assert_crops(next(iter(DataLoader(read, 6, num_workers=workers))), list(range(6)), factor)
    assert_crops(ds[[3, 5]], [3, 5], factor)
    loader = Loader(ds, 100, threads=2)
    assert len(loader) == 10
    assert_crops(next(iter(loader)), list(range(100)), factor)
    assert loader.state_dict()["done"] == 100


def test_a_collate_function_of_ones_own_sees_lists(rows: Path) -> None:
    """As MONAI's list_data_collate does, which puts the samples of all lists into one batch."""

    def list_data_collate(batch: list[Any]) -> Any:  # monai/data/utils.py
        return default_collate([each for sample in batch for each in sample] if isinstance(batch[0], list) else batch)

    ds = PackedDataset(rows, sample_transform=crops, extras=("number",))
    assert_crops(next(iter(DataLoader(ds, 6, collate_fn=list_data_collate))), list(range(6)))


def test_lists_of_samples_of_many_lengths(rows: Path) -> None:
    """Pieces that differ in length become `Ragged`; an empty list leaves its sample out, unless none is left."""

    def pieces(sample: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"x": sample["x"][:n], "y": sample["y"]} for n in range(int(sample["y"]) % 4)]

    ds = PackedDataset(rows, sample_transform=pieces)
    for batch in (ds[:4], next(iter(Loader(ds, 4))), next(iter(DataLoader(ds, 4)))):
        assert isinstance(batch["x"], Ragged)
        assert batch["x"].lengths.tolist() == [0, 0, 1, 0, 1, 2]
        assert batch["y"].tolist() == [1, 2, 2, 3, 3, 3]
    assert ds[4] == []
    with pytest.raises(UsageError, match="an empty list for every sample"):
        _ = ds[[0, 4]]
    with pytest.raises(UsageError, match="an empty list for every sample"):
        default_collate(ds.__getitems__([0, 4]))


def test_lists_of_other_things_are_joined_as_torch_does(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of tensors, or a tuple of samples, is one sample of several parts; functions of one's own join tensors,
    or dicts.
    """
    views = PackedDataset(rows, sample_transform=lambda sample: (sample, {"y": sample["y"] + 1}))[:3]
    assert [view["y"].tolist() for view in views] == [[0, 1, 2], [1, 2, 3]]
    parts = PackedDataset(rows, sample_transform=lambda sample: [sample["x"][:2], sample["y"]])[:3]
    assert [list(part.shape) for part in parts] == [[3, 2], [3]]
    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, lambda tensors, **_: len(tensors))
    assert PackedDataset(rows, sample_transform=doubled)[:3]["double"] == 3
    monkeypatch.setitem(default_collate_fn_map, dict, lambda samples, **_: len(samples))
    assert PackedDataset(rows, sample_transform=doubled)[:3] == 3


def test_samples_of_different_lengths_become_ragged(pack: Any, tmp_path: Path) -> None:
    """Clouds are changed one by one, by `Loader` and `DataLoader`; what differs in other axes as well is a list."""
    clouds = [np.random.default_rng(n).random((n, 3), np.float32) for n in (5, 1, 7, 5)]
    path = pack(
        tmp_path / "p", [Field(name="xyz", dtype="float32", shape=(None, 3))], [[{"xyz": cloud} for cloud in clouds]]
    )
    ds = PackedDataset(path, sample_transform=lambda sample: {"xyz": sample["xyz"] * 2, "n": len(sample["xyz"])})
    for batch in (ds[:], next(iter(Loader(ds, 4))), next(iter(DataLoader(ds, 4)))):
        assert isinstance(batch["xyz"], Ragged)
        assert batch["n"].tolist() == [5, 1, 7, 5]
        assert all(np.array_equal(got, 2 * cloud) for got, cloud in zip(batch["xyz"].to_list(), clouds, strict=True))
    assert ds[[0, 3]]["xyz"].shape == (2, 5, 3)
    for make in (lambda xyz: xyz, lambda xyz: (xyz, 1), lambda xyz: [xyz, torch.ones(1)]):
        ds = PackedDataset(path, sample_transform=lambda sample, make=make: make(sample["xyz"]))
        for batch in (ds[:], next(iter(Loader(ds, 4))), next(iter(DataLoader(ds, 4, num_workers=1)))):
            clouds_read = batch if isinstance(batch, Ragged) else batch[0]
            assert isinstance(clouds_read, Ragged)
            assert clouds_read.lengths.tolist() == [5, 1, 7, 5]
    ds = PackedDataset(path, sample_transform=lambda sample: sample["xyz"][:, : len(sample["xyz"])])
    for listed in (ds[:], next(iter(Loader(ds, 4))), next(iter(DataLoader(ds, 4)))):
        assert [list(value.shape) for value in listed] == [[5, 3], [1, 1], [7, 3], [5, 3]]
    ds = PackedDataset(
        path, sample_transform=lambda sample: sample["xyz"][0] if len(sample["xyz"]) == 1 else torch.ones(2, 2)
    )
    with pytest.raises(UsageError, match=r"tensors of shapes \[3\] and \[2, 2\] make no batch"):
        ds[:]


@pytest.mark.parametrize("kind", [PackedDataset, lambda path: Mix({PackedDataset(path): 1})])
@pytest.mark.parametrize("threads", ["auto", 2])
def test_a_transform_that_is_replaced_holds_from_the_next_loop_on(rows: Path, kind: Any, threads: Any) -> None:
    """Also where the loader had none when it was made; datasets of a mix must keep the same one."""
    ds = kind(rows)
    loader = Loader(ds, 100, threads=threads)
    assert next(iter(loader))["y"][1] == 1
    for member in getattr(ds, "datasets", [ds]):
        member.batch_transform = scaled
    assert [batch["x"][1, 0].item() for batch in loader] == [10 * (100 * number + 1) for number in range(10)]
    if isinstance(ds, Mix):
        ds = Mix({ds.datasets[0]: 1, PackedDataset(rows, batch_transform=scaled): 1})
        loader = Loader(ds, 100)
        ds.datasets[1].batch_transform = None
        with pytest.raises(UsageError, match="different transforms"):
            next(iter(loader))


def test_a_batch_transform_always_gets_a_batch(rows: Path) -> None:
    """Of one for one sample, from datasets and mixes alike; what has no items is refused there."""
    ds = PackedDataset(rows, batch_transform=lambda batch: {"sum": batch["x"].sum(dim=1), "y": batch["y"]})
    for one in (ds, Mix({ds: 1})):
        assert {name: value.tolist() for name, value in one[3].items()} == {"sum": 99.0, "y": 3}
    with pytest.raises(UsageError, match="batch_transform was given a batch of 1 and returned a set"):
        _ = PackedDataset(rows, batch_transform=set)[3]


def drawing_sample(sample: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    return {**sample, "one": torch.rand(2, generator=generator)}


def drawing_batch(batch: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    return {**batch, "many": torch.rand(len(batch["y"]), generator=generator)}


def test_the_generator_of_a_transform_follows_from_seed_epoch_and_position(rows: Path) -> None:
    """Threads, ranks and resuming change nothing; every visit has another, in a mix as well."""
    ds = PackedDataset(rows, sample_transform=drawing_sample, batch_transform=drawing_batch)

    def joined(loader: Any) -> dict[str, torch.Tensor]:
        return default_collate_of(list(loader))

    def default_collate_of(batches: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        return {name: torch.cat([batch[name] for batch in batches]) for name in ("y", "one", "many")}

    for dataset in (ds, Mix({ds: 1})):
        whole = joined(Loader(dataset, 40, shuffle=True, seed=3, threads=0))
        assert len(whole["one"].unique()) > 1990
        assert len(whole["many"].unique()) > 990
        for threads in ("auto", 3):
            again = joined(Loader(dataset, 40, shuffle=True, seed=3, threads=threads))
            assert all(torch.equal(whole[name], again[name]) for name in whole)
        resumed = Loader(dataset, 40, shuffle=True, seed=3)
        taken = iter(resumed)
        next(taken)
        state = resumed.state_dict()
        resumed = Loader(dataset, 40, shuffle=True, seed=3)
        resumed.load_state_dict(state)
        rest = joined(resumed)
        assert all(torch.equal(whole[name][40:], rest[name]) for name in whole)
        ranks = [Loader(dataset, 40, shuffle=True, seed=3, rank=rank, world_size=2) for rank in (0, 1)]
        both = default_collate_of([batch for pair in zip(*ranks, strict=True) for batch in pair])
        assert torch.equal(whole["one"], both["one"])
        assert not torch.equal(whole["one"], joined(Loader(dataset, 40, shuffle=True, seed=4))["one"])


def test_without_a_loader_the_generator_follows_from_torchs(rows: Path) -> None:
    """By index and in DataLoader, `torch.manual_seed` repeats what is drawn, and two visits differ."""
    ds = PackedDataset(rows, sample_transform=drawing_sample, batch_transform=drawing_batch)
    for read in (lambda: ds[3]["one"], lambda: ds[:4]["many"], lambda: next(iter(DataLoader(ds, 4)))["one"]):
        torch.manual_seed(1)
        first, other = read(), read()
        torch.manual_seed(1)
        assert torch.equal(first, read())
        assert not torch.equal(first, other)
    assert pickle.loads(pickle.dumps(ds))[3]["one"].shape == (2,)


def test_stop_iteration_of_a_function_is_an_error(rows: Path) -> None:
    """It would end the loop as if the epoch were over: no sample is lost without a word, in any way of reading."""
    few = iter(range(7))
    calls: dict[str, Any] = {
        "sample_transform": lambda sample: (next(few), sample),
        "batch_transform": lambda _: next(few),
    }
    for name, function in calls.items():
        few = iter(range(7))
        ds = PackedDataset(rows, **{name: function})
        for loop in (
            Loader(ds, 4),
            Loader(ds, 4, threads=2),
            Loader(ds, 4, threads=0),
            DataLoader(ds, 4),
            Mix({ds: 1}),
        ):
            with pytest.raises(RuntimeError, match="StopIteration"):
                list(loop)
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(Loader(PackedDataset(rows), 4, collate_fn=lambda samples: next(few)))


def test_a_mix_ends_where_its_samples_do(rows: Path) -> None:
    """An IndexError of a transform is raised; it is not taken for the end."""
    with pytest.raises(IndexError, match="of mine"):
        list(
            Mix({PackedDataset(rows, sample_transform=lambda sample: (_ for _ in ()).throw(IndexError("of mine"))): 1})
        )


@pytest.mark.parametrize("options", [{}, {"sample_transform": doubled}, {"batch_transform": scaled}])
def test_a_collate_function_gets_what_that_of_a_dataloader_gets(rows: Path, options: Any) -> None:
    """A list of samples, after the transforms; of `Loader` with threads and without, and as torch's attribute."""
    ds = PackedDataset(rows, **options)

    def collate(samples: list[Any]) -> Any:
        assert len(samples[:3]) == 3
        return [
            {
                name: value if isinstance(value, str) else torch.as_tensor(value).tolist()
                for name, value in sample.items()
            }
            for sample in samples
        ]

    expected = list(DataLoader(ds, 300, collate_fn=collate))
    for threads in ("auto", 0, 2):
        loader = Loader(ds, 300, threads=threads, collate_fn=collate)
        assert list(loader) == expected
        assert loader.collate_fn is collate


def _seeded(draw: Any) -> Any:
    def seeded() -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            draw()

    return seeded


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.rand(1),
        lambda: torch.tensor(np.random.random()),
        lambda: torch.tensor(random.random()),
        _seeded(lambda: torch.rand(1)),
    ],
    ids=["torch", "numpy", "python", "seeded"],
)
def test_a_transform_that_draws_globally_stays_in_the_callers_thread(
    rows: Path, draw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Its runs repeat next to a training step that draws, too; it is said once. Others that take long are called ahead.

    So does one that seeds them from its `generator`, and puts their states back: a step would draw from these.
    """
    remark.cache_clear()
    threads = set()

    def noisy(batch: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
        threads.add(threading.current_thread())
        draw()
        return batch

    loader = Loader(PackedDataset(rows, batch_transform=noisy), 40)
    for _ in range(2):
        assert len(list(loader)) == 25
    assert threads == {threading.current_thread()}
    assert loader.threads == 0
    list(Loader(PackedDataset(rows, batch_transform=noisy), 40))
    assert [record.message[:17] for record in caplog.records] == ["a transform draws"]

    def slow(batch: dict[str, Any]) -> None:
        threads.add(threading.current_thread())
        time.sleep(0.002)

    for transform, count in ((slow, 2), (lambda batch: threads.add(threading.current_thread()), 1)):
        threads.clear()
        list(Loader(PackedDataset(rows, batch_transform=transform), 40))
        assert len(threads) == count


@pytest.fixture
def photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """24 JPEG files, on three processors."""
    monkeypatch.setattr("readers.arguments.processors", lambda: 3)
    (tmp_path / "in").mkdir()
    for number in range(24):
        (tmp_path / "in" / f"{number:02}.jpg").write_bytes(as_jpeg(photograph(20, 30, number)))
    convert(str(tmp_path / "in"), tmp_path / "photographs.packed", workers=0)
    return tmp_path / "photographs.packed"


def test_photographs_are_decoded_at_once_and_transformed_in_turn(photographs: Path) -> None:
    """By all processors, whatever the transform, which sees one batch after another, as it would in one thread."""
    at_once, numbers = threading.Lock(), []

    def slow(batch: dict[str, Any]) -> dict[str, Any]:
        assert at_once.acquire(blocking=False), "two at once"
        time.sleep(0.003 * (len(numbers) % 3 == 0))  # others would overtake it
        numbers.append(batch["number"].tolist())
        at_once.release()
        return batch

    loader = Loader(PackedDataset(photographs, batch_transform=slow, extras=["number"]), 2, shuffle=True)
    assert loader.threads == 3
    seen = [batch["number"].tolist() for batch in loader]
    assert numbers == seen
    assert len(seen) == 12


def test_a_transform_of_photographs_that_draws_stays_in_the_callers_thread(photographs: Path) -> None:
    """The others go on decoding, and what is drawn is what one thread draws."""
    remark.cache_clear()
    threads = set()

    def noisy(batch: dict[str, Any]) -> dict[str, Any]:
        threads.add(threading.current_thread())
        return {"image": batch["image"].float() + torch.rand(1)}

    dataset = PackedDataset(photographs, batch_transform=noisy)
    epochs: list[list[torch.Tensor]] = []
    for loader in (Loader(dataset, 2), Loader(dataset, 2, threads=0)):
        torch.manual_seed(3)
        epochs.append([batch["image"] for _ in range(2) for batch in loader])
    assert all(map(torch.equal, *epochs))
    assert len(epochs[0]) == 24
    assert threads == {threading.current_thread()}
    assert Loader(dataset, 2).threads == 3
