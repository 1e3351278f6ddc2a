"""Several datasets as one: by weight, in mixed batches or one dataset a batch, with exact resume and shares by rank."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from batches import listed, plain
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Subset

from packer.convert import convert
from packer.errors import UsageError
from packer.format import FieldSpec
from packer.sources import SourceOptions
from packer.writer import DatasetWriter
from readers import Crop, Loader, Mix, PackedDataset, PointSample, Windows
from readers.composed import Mixed, Repeated
from readers.order import Sequential, Shuffled
from readers.source import source_of

FIELDS = (
    FieldSpec(name="number", dtype="int64", shape=()),
    FieldSpec(name="flat", dtype="uint16", shape=(3, 2)),
    FieldSpec(name="image", dtype="uint8", kind="image", shape=(8, 9, 3)),
    FieldSpec(name="cloud", dtype="float32", shape=(None, 3)),
    FieldSpec(name="picture", dtype="uint8", kind="image", shape=(None, None, 3)),
    FieldSpec(name="text", dtype="uint8", kind="text", shape=(None,)),
)
#: Codecs of the three datasets: a batch may hold samples that are stored in quite different ways.
CODECS = (
    "none",
    "flat=zstd,image=photo+zstd,cloud=bitshuffle,picture=lz4,text=zstd,number=none",
    "none,cloud=lz4,picture=zstd",
)


def make(first: int, count: int) -> list[dict[str, Any]]:
    """Samples that their number tells apart from those of any other dataset."""
    rng = np.random.default_rng(first)
    return [
        {
            "number": np.int64(first + n),
            "flat": rng.integers(0, 2**16, (3, 2), np.uint16),
            "image": rng.integers(0, 256, (8, 9, 3), np.uint8),
            "cloud": rng.standard_normal((4 + n % 3, 3)).astype("f4"),
            "picture": rng.integers(0, 9, (4 + n % 3, 6, 3), np.uint8),
            "text": f"{first} and {n}" * (n % 3),
        }
        for n in range(count)
    ]


SIZES = (13, 40, 21)
SAMPLES = {int(s["number"]): s for k, count in enumerate(SIZES) for s in make(1000 * k, count)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Datasets of 13, 40 and 21 samples, numbered from 0, 1000 and 2000."""
    out = []
    for number, (count, codec) in enumerate(zip(SIZES, CODECS, strict=True)):
        out.append(tmp_path_factory.mktemp("mix") / str(number))
        with DatasetWriter(out[-1], FIELDS, codec=codec, shard_size=4096 * (number + 1)) as writer:
            for sample in make(1000 * number, count):
                writer.add(sample, name=f"{number}/{sample['number']}")
    return out


@pytest.fixture
def datasets(folders: list[Path]) -> Iterator[list[PackedDataset]]:
    """The three datasets, which are closed with the test."""
    found = [PackedDataset(folder) for folder in folders]
    yield found
    found.clear()


def numbers(loader: Loader) -> list[list[int]]:
    """The numbers of the samples of each batch of an epoch."""
    return [batch["number"].tolist() for batch in loader]


def check(batch: dict[str, Any]) -> None:
    """Every field of a batch holds the values of the samples that its numbers name."""
    columns = {name: listed(values) for name, values in batch.items() if name in SAMPLES[0]}
    for place, number in enumerate(batch["number"].tolist()):
        for name, values in columns.items():
            value = values[place].permute(1, 2, 0) if name in ("image", "picture") else values[place]
            assert plain(value) == plain(SAMPLES[number][name])


# ---------------------------------------------------------------- orders


@given(
    sizes=st.lists(st.integers(5, 60), min_size=1, max_size=4),
    seed=st.integers(0, 5),
    shuffle=st.booleans(),
    every=st.booleans(),
    together=st.sampled_from([1, 2, 5]),
)
@settings(max_examples=80)
def test_an_epoch_holds_each_dataset_by_its_weight(
    sizes: list[int], seed: int, shuffle: bool, every: bool, together: int
) -> None:
    """Within one turn; none comes twice before all of its dataset came; the epoch ends as `stop` says."""
    weights = (1.0, 0.5, 2.0, 3.0)[: len(sizes)]
    try:
        order = Mixed(tuple(sizes), weights, seed, shuffle, every, together)
    except UsageError:
        assert not every  # one of them would not come at all
        return
    found = order.epoch(seed)
    assert len(found) == len(order)
    starts = np.cumsum([0, *sizes])
    which = starts[1:].searchsorted(found, side="right")
    held = np.bincount(which, minlength=len(sizes))
    whole = [(-(-size // together) if every else size // together) * together for size in sizes]
    assert (held >= whole).all() if every else (held <= whole).all()
    assert (held == whole).any()
    rounds = (
        max(w / p for w, p in zip(whole, weights, strict=True))
        if every
        else min(w / p for w, p in zip(whole, weights, strict=True))
    )
    assert (np.abs(held - rounds * np.array(weights)) <= together).all()
    for number, size in enumerate(sizes):
        own = found[which == number] - starts[number]
        for at in range(0, len(own), size):
            assert len(np.unique(own[at : at + size])) == len(own[at : at + size])
    for at in range(0, len(found), together):
        assert len(set(which[at : at + together].tolist())) == 1


def test_mixed_orders_are_the_same_for_ever() -> None:
    """A state that was saved once goes on with the same samples: what a seed gives is written down here."""
    order = Mixed((6, 3), (2.0, 1.0), seed=1)
    found = order.epoch(0).tolist()
    assert found == [7, 1, 5, 2, 3, 4, 6, 8, 0]
    assert order.epoch(1).tolist() != found
    assert Mixed((6, 3), (2.0, 1.0), shuffle=False).epoch(5).tolist() == [0, 6, 1, 2, 7, 3, 4, 8, 5]


def test_datasets_that_are_alike_are_drawn_unlike() -> None:
    """With orders of their own as well, no pass over one goes through the samples as a pass over the other does."""
    order = Mixed((9, 9), (1.0, 1.0), orders=(Shuffled(9), Shuffled(9)))
    epochs = [order.epoch(number) for number in range(3)]
    passes = [tuple(half.tolist()) for epoch in epochs for half in (epoch[epoch < 9], epoch[epoch >= 9] - 9)]
    assert len(set(passes)) == 6


def test_epochs_in_order_reach_every_sample() -> None:
    """Without shuffle, an epoch that ends with the smaller dataset goes on in the larger one where the last stopped."""
    order = Mixed((10, 2), (1.0, 1.0), shuffle=False)
    epochs = [order.epoch(number) for number in range(5)]
    assert [epoch[epoch < 10].tolist() for epoch in epochs] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert [epoch[epoch >= 10].tolist() for epoch in epochs] == [[10, 11]] * 5


def test_a_dataset_that_would_not_come_is_refused() -> None:
    """So small a weight is a mistake; so are batches larger than a dataset, if an epoch ends with the first."""
    with pytest.raises(UsageError, match=r"no samples of dataset 1 \(10 samples, weight 0\.01 of 1\)"):
        Mixed((10, 10), (0.99, 0.01))
    with pytest.raises(UsageError, match=r"no batches of 16 of dataset 1 \(10 samples"):
        Mixed((100, 10), (1, 1), together=16)
    assert len(Mixed((10, 100), (1, 1), until_all=True, together=16)) == 16 * 14


def test_repeated_passes() -> None:
    """An epoch of three visits is three epochs, one after another; no two epochs share a pass."""
    inner = Shuffled(20, seed=4)
    order = Repeated(inner, 3)
    assert len(order) == 60
    assert order.epoch(2).tolist() == [n for epoch in (6, 7, 8) for n in inner.epoch(epoch).tolist()]
    assert Repeated(Sequential(2), 2).epoch(0).tolist() == [0, 1, 0, 1]
    for times in (0, -1, 1.5, True):
        with pytest.raises(UsageError, match="repeat"):
            Repeated(inner, times)  # type: ignore[arg-type]


# ---------------------------------------------------------------- batches


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("batches", ["mixed", "one"])
def test_batches_hold_the_samples_of_all_datasets(datasets: list[PackedDataset], batches: str, threads: int) -> None:
    """Every field of every kind is that of the sample, whatever codecs its neighbours have; the dataset is told."""
    mix = Mix(dict(zip(datasets, (1, 2, 1), strict=True)), stop="all", batches=batches, extras=("dataset",))
    assert len(mix) == 74
    seen = []
    for batch in Loader(mix, 4, shuffle=True, threads=threads):
        check(batch)
        which = [number // 1000 for number in batch["number"].tolist()]
        assert batch["dataset"].dtype == torch.int64
        assert batch["dataset"].tolist() == which
        assert batches == "mixed" or len(set(which)) == 1
        seen += batch["number"].tolist()
    assert set(seen) == set(SAMPLES)
    counts = np.bincount(np.array(seen) // 1000)
    assert np.abs(counts / len(seen) - [0.25, 0.5, 0.25]).max() < 0.05


def test_uncompressed_fields_of_all_datasets(datasets: list[PackedDataset]) -> None:
    """They are gathered together, whichever of the datasets lies first in memory."""
    for pair in ((0, 2), (2, 0)):
        mix = Mix({datasets[number]: 1 for number in pair}, stop="all")
        batches = list(Loader(mix, 4, shuffle=True))
        for batch in batches:
            check(batch)
        assert len({number // 1000 for batch in batches for number in batch["number"].tolist()}) == 2


def test_a_mix_is_put_together_once_in_a_process(datasets: list[PackedDataset]) -> None:
    """Batches by number find what reads them ready; a pickled mix, after reading, and workers make their own."""
    mix = Mix(dict.fromkeys(datasets[:2], 1))
    check(mix.__getitems__([0, 20]).gathered)
    assert source_of(mix).readers is source_of(mix).readers
    check(pickle.loads(pickle.dumps(mix)).__getitems__([20, 0]).gathered)
    batches = list(DataLoader(mix, 20, num_workers=1, collate_fn=list))
    assert [int(sample["number"]) for batch in batches for sample in batch] == [*range(13), *range(1000, 1040)]


@pytest.mark.parametrize("verify", [False, True])
def test_crops_points_and_windows_of_a_mix(folders: list[Path], verify: bool) -> None:
    """Parts of samples are drawn by the position in the mix; two epochs differ, and ranks and resume change nothing."""
    for parts in ({"crop": Crop(3, of="picture")}, {"points": PointSample(3)}, {"windows": Windows(2)}):
        fields = ["number", "picture" if "crop" in parts else "cloud"]
        mix = Mix({PackedDataset(f, fields=fields, verify=verify, **parts): 1 for f in folders})  # type: ignore[arg-type]
        loader = Loader(mix, 4, shuffle=True, seed=3)
        whole = list(loader)
        one, two = (Loader(mix, 2, shuffle=True, seed=3, rank=rank, world_size=2) for rank in (0, 1))
        for batch, mine, others in zip(whole, one, two, strict=True):
            for name in fields:
                both = torch.cat([mine[name], others[name]])
                assert torch.equal(both[: len(batch[name])], batch[name])
            if "windows" in parts:
                for place, number in enumerate(batch["number"].tolist()):
                    steps = batch["cloud"][place].numpy()
                    cloud = SAMPLES[number]["cloud"]
                    assert any(np.array_equal(steps, cloud[at : at + 2]) for at in range(len(cloud) - 1))


def test_names_and_numbers_of_a_mix(folders: list[Path]) -> None:
    """They are those within the dataset, which is told next to them."""
    mix = Mix({PackedDataset(f, ["flat"], extras=("name", "number")): 1 for f in folders}, extras="dataset")
    for batch in Loader(mix, 4, shuffle=True):
        for place, name in enumerate(batch["name"]):
            which, number = batch["dataset"][place].item(), batch["number"][place].item()
            assert name == f"{which}/{1000 * which + number}"
            assert np.array_equal(batch["flat"][place].numpy(), SAMPLES[1000 * which + number]["flat"])


def test_a_transform_gets_whole_batches(folders: list[Path]) -> None:
    """One transform for all is called once a batch; two different ones are refused."""
    sizes = []

    def count(batch: dict[str, Any]) -> dict[str, Any]:
        sizes.append(len(batch["number"]))
        return batch

    loader = Loader(Mix({PackedDataset(f, batch_transform=count): 1 for f in folders}), 6)
    list(loader)
    assert sizes == [6] * 6 + [3]
    with pytest.raises(UsageError, match="different transforms"):
        Mix({PackedDataset(folders[0], batch_transform=count): 1, PackedDataset(folders[1]): 1})


# ---------------------------------------------------------------- resume and ranks


@pytest.mark.parametrize("stop", ["first", "all"])
@pytest.mark.parametrize("batches", ["mixed", "one"])
@pytest.mark.parametrize("shuffle", [True, "shards"])
def test_a_mix_resumes_exactly(datasets: list[PackedDataset], batches: str, stop: str, shuffle: bool | str) -> None:
    """After any step, what is left of the epoch comes, and then the next epoch."""

    def loader() -> Loader:
        return Loader(Mix(dict(zip(datasets, (1, 2, 3), strict=True)), stop, batches), 3, shuffle, seed=5)

    whole = loader()
    epochs = [numbers(whole), numbers(whole)]
    assert numbers(pickle.loads(pickle.dumps(loader()))) == epochs[0]
    for after in (1, 2, len(epochs[0]) // 2, len(epochs[0]) - 1):
        begun = loader()
        for _ in itertools.islice(begun, after):
            pass
        state = pickle.loads(pickle.dumps(begun.state_dict()))
        going_on = loader()
        going_on.load_state_dict(state)
        assert numbers(going_on) == epochs[0][after:]
        if after == 2:
            assert numbers(going_on) == epochs[1]


@pytest.mark.parametrize("given", [{"shuffle": True}, {"shuffle": "shards", "shuffle_window": 6}])
def test_other_weights_hold_from_the_next_epoch_on(datasets: list[PackedDataset], given: dict[str, Any]) -> None:
    """What was begun is ended with the old weights, and a state saved meanwhile says so too."""

    def loader(*weights: float) -> Loader:
        return Loader(Mix(dict(zip(datasets, weights, strict=True)), "all"), 4, **given)

    old, new = loader(1, 1, 1), loader(3, 1, 1)
    first, second = numbers(old), [numbers(new), numbers(new)][1]
    old = loader(1, 1, 1)
    for _ in itertools.islice(old, 3):
        pass
    changed = loader(3, 1, 1)
    changed.load_state_dict(old.state_dict())
    some = [batch["number"].tolist() for batch in itertools.islice(changed, 2)]
    again = loader(3, 1, 1)
    again.load_state_dict(changed.state_dict())
    assert some + numbers(again) == first[3:]
    assert numbers(again) == second
    ended = loader(1, 1, 1)
    numbers(ended)
    begun = loader(3, 1, 1)
    begun.load_state_dict(ended.state_dict())
    assert numbers(begun) == second


def test_a_state_of_another_mix_is_refused(datasets: list[PackedDataset]) -> None:
    """Other datasets, another stop, or other batches of one dataset would go on with other samples."""
    state = Loader(Mix(dict.fromkeys(datasets, 1), batches="one"), 3, shuffle=True).state_dict()
    for mix, size in (
        (Mix(dict.fromkeys(datasets, 1)), 3),
        (Mix(dict.fromkeys(datasets[:2], 1), batches="one"), 3),
        (Mix(dict.fromkeys(datasets, 1), "all", "one"), 3),
        (Mix(dict.fromkeys(datasets, 1), batches="one"), 4),
    ):
        with pytest.raises(UsageError, match="the state"):
            Loader(mix, size, shuffle=True).load_state_dict(state)
    for stop in ("first", "all"):  # of another length, or of another order
        state = Loader(Mix(dict.fromkeys(datasets, 1), stop, "one"), 3, shuffle=True).state_dict()
        with pytest.raises(UsageError, match=r"Mix of batches='one'.* batch_size and.* number of ranks"):
            Loader(Mix(dict.fromkeys(datasets, 1), stop, "one"), 4, shuffle=True).load_state_dict(state)
    state = Loader(Mix(dict.fromkeys(datasets, 1), batches="one"), 3, shuffle=True).state_dict()
    with pytest.raises(UsageError, match="the state's weights"):
        Loader(Mix(dict.fromkeys(datasets, 1)), 3).load_state_dict({**state, "weights": [1, -1, 1]})


@pytest.mark.parametrize("batches", ["mixed", "one"])
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_a_mix(datasets: list[PackedDataset], batches: str, world_size: int) -> None:
    """All ranks together read the order of the mix, step by step; with one dataset a batch, the same one on all."""
    mix = Mix(dict.fromkeys(datasets, 1), "all", batches)
    ranks = [Loader(mix, 2, shuffle=True, rank=rank, world_size=world_size) for rank in range(world_size)]
    order = ranks[0].order.epoch(0)
    found = [numbers(rank) for rank in ranks]
    steps = [[n for part in step for n in part] for step in zip(*found, strict=True)]
    expected = np.array(list(SAMPLES))[order].tolist()
    assert [n for step in steps for n in step][: len(expected)] == expected
    if batches == "one":
        assert not [step for step in steps if len({n // 1000 for n in step}) != 1]


def test_ranks_that_are_known_late(datasets: list[PackedDataset], monkeypatch: pytest.MonkeyPatch) -> None:
    """A state is that of the ranks there were when the loop began, also if another one was taken before."""
    mix = Mix(dict.fromkeys(datasets, 1), "all", "one")
    loader = Loader(mix, 2, shuffle=True)
    loader.state_dict()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    begun = iter(loader)
    next(begun)
    going_on = Loader(mix, 2, shuffle=True)
    going_on.load_state_dict(loader.state_dict())
    assert numbers(going_on) == [batch["number"].tolist() for batch in begun]


# ---------------------------------------------------------------- repeat


def test_repeat_visits_each_sample_as_often_with_a_crop_of_its_own(folders: list[Path]) -> None:
    """An epoch of five visits; crops differ between them, and a resumed epoch has the same ones."""
    dataset = PackedDataset(folders[0], fields=["number", "picture"], crop=Crop(2, of="picture", seed=1))
    loader = Loader(dataset, 4, shuffle=True, repeat=5, seed=2)
    assert len(loader) == 17
    batches = list(loader)
    seen = np.concatenate([batch["number"].numpy() for batch in batches])
    assert np.bincount(seen).tolist() == [5] * 13
    assert not [at for at in range(0, 65, 13) if set(seen[at : at + 13]) != set(range(13))]
    crops: dict[int, set[bytes]] = {}
    for batch in batches:
        for number, crop in zip(batch["number"].tolist(), batch["picture"], strict=True):
            crops.setdefault(number, set()).add(crop.numpy().tobytes())
    assert sum(map(len, crops.values())) > 3 * 13
    begun = Loader(dataset, 4, shuffle=True, repeat=5, seed=2)
    for _ in itertools.islice(begun, 6):
        pass
    going_on = Loader(dataset, 4, shuffle=True, repeat=5, seed=2)
    going_on.load_state_dict(begun.state_dict())
    for expected, batch in zip(batches[6:], going_on, strict=True):
        assert torch.equal(expected["picture"], batch["picture"])
    with pytest.raises(UsageError, match="the state"):
        Loader(dataset, 4, shuffle=True, repeat=4, seed=2).load_state_dict(begun.state_dict())


def test_a_list_with_weights_is_a_dict(datasets: list[PackedDataset]) -> None:
    """A list of datasets with `weights` reads what a dict of the same pairs does."""
    mixes = Mix(datasets, weights=[3, 1, 2]), Mix(dict(zip(datasets, (3, 1, 2), strict=True)))
    one, other = ([batch["number"].tolist() for batch in Loader(mix, 5, shuffle=True)] for mix in mixes)
    assert one == other


# ---------------------------------------------------------------- refused


def test_schemas_that_differ_are_refused(tmp_path: Path, datasets: list[PackedDataset]) -> None:
    """The error names the field and what it is in both datasets, or which fields one of them lacks."""
    others = {
        "dtype": FieldSpec(name="x", dtype="float64", shape=(3,)),
        "shape": FieldSpec(name="x", dtype="float32", shape=(4,)),
        "kind": FieldSpec(name="x", dtype="uint8", kind="image", shape=(4, 4, 3)),
        "plain": FieldSpec(name="x", dtype="uint8", shape=(4, 4, 3)),
        "base": FieldSpec(name="x", dtype="float32", shape=(3,)),
    }
    made = {}
    for name, spec in others.items():
        with DatasetWriter(tmp_path / name, [spec]) as writer:
            writer.add({"x": np.zeros(spec.shape, spec.dtype)})  # type: ignore[arg-type]
        made[name] = PackedDataset(tmp_path / name)
    for one, other, said in (
        ("base", "dtype", r"field 'x' is array float32 \[3\] in .*base.* and array float64 \[3\] in .*dtype"),
        ("base", "shape", r"array float32 \[3\] in .* and array float32 \[4\] in"),
        ("kind", "plain", r"image uint8 \[4, 4, 3\] in .* and array uint8 \[4, 4, 3\] in"),
    ):
        with pytest.raises(UsageError, match=said):
            Mix({made[one]: 1, made[other]: 1})
    with pytest.raises(UsageError, match=r"field 'number' is one int64 in .* and missing in .*base"):
        Mix({datasets[0]: 1, made["base"]: 1})


def test_labels_of_other_classes_are_refused(tmp_path: Path) -> None:
    """By `Mix` and `+`, unless the batch says which dataset a sample is of, or has no labels."""
    folders = [tmp_path / "cat", tmp_path / "dog"]
    for folder in folders:
        with h5py.File(f"{folder}.h5", "w") as file:
            file["number"], file["kind"] = [0, 1], [folder.name] * 2
        convert(f"{folder}.h5", folder, source=SourceOptions(classes="kind"), workers=0)
    one, other = map(PackedDataset, folders)
    for join in (lambda: Mix({one: 1, other: 1}), lambda: one + other):
        with pytest.raises(UsageError, match=r"mix: labels stand for cat in .*, and for dog in .* tells the datasets"):
            join()
    assert len(Mix({one: 1, other: 1}, extras=("dataset",))) == 4
    unlabelled = [PackedDataset(folder, fields=["number"]) for folder in folders]
    assert len(Mix(unlabelled, weights=[1, 1])) == len(unlabelled[0] + unlabelled[1]) == 4


def test_what_is_no_mix_is_refused(tmp_path: Path, datasets: list[PackedDataset]) -> None:
    """Each error says what was expected."""
    one, other, _ = datasets
    for arguments, said in (
        (({},), "a dict of datasets"),
        (([one, other],), "a dict of datasets"),
        (({one: 0, other: 1},), "weight 0"),
        (({one: float("nan")},), "weight nan"),
        (({"a": 1},), "only PackedDatasets can be mixed, not a str"),
        (({one: 1}, "last"), "'first' or 'all'"),
        (({one: 1}, "all", "two"), "'mixed' or 'one'"),
        (({one: 1}, "all", "one", ("name",)), "extras"),
    ):
        with pytest.raises(UsageError, match=said):
            Mix(*arguments)  # type: ignore[arg-type]
    for weights, said in (([1], "2 datasets and 1 weights"), ([1, 0], "weight 0"), (3, "a dict of datasets")):
        with pytest.raises(UsageError, match=said):
            Mix([one, other], weights=weights)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a dict of datasets"):
        Mix({one: 1}, weights=[1])
    with pytest.raises(UsageError, match="dataset 1 has no samples: PackedDataset"):
        Mix({one: 1, PackedDataset(one.path, windows=Windows({"cloud": range(99)})): 1})
    with DatasetWriter(tmp_path / "taken") as writer:
        writer.add({"dataset": np.int64(1)})
    with pytest.raises(UsageError, match="there is a field 'dataset' already"):
        Mix({PackedDataset(tmp_path / "taken"): 1}, extras=("dataset",))
    mix = Mix({one: 1, other: 2})
    with pytest.raises(UsageError, match="asked for by number, not by the name '0/3'"):
        mix["0/3"]  # type: ignore[index]
    for how in ({"shuffle": "block"}, {"sampler": [1]}, {"shuffle_window": 5}):
        with pytest.raises(UsageError, match=r"Mix has an order of its own|shuffle_window is only for"):
            Loader(mix, **how)  # type: ignore[arg-type]
    assert "PackedDataset" in repr(mix)


def test_a_sum_is_read_one_dataset_after_another(folders: list[Path]) -> None:
    """Its numbers count as those of torch's ConcatDataset, by Loader too, and it takes a sampler or a Subset."""
    first, second = (PackedDataset(folder, ["number"], batch_transform=dict) for folder in folders[:2])
    both, count = first + second, SIZES[0] + SIZES[1]
    wanted = [*range(SIZES[0]), *range(1000, 1000 + SIZES[1])]

    def numbers(loader: Any) -> list[int]:
        return [number for batch in loader for number in batch["number"].tolist()]

    assert numbers(Loader(both, 8)) == numbers(DataLoader(both, 8)) == wanted  # type: ignore[arg-type]
    shuffled = Loader(both, 8, shuffle=True)  # type: ignore[arg-type]
    assert sorted(numbers(shuffled)) == wanted
    assert len({*map(tuple, (numbers(shuffled), numbers(shuffled), wanted))}) == 3
    chosen = [20, 3, 52, 0]
    for loader in (
        Loader(both, 3, sampler=chosen),  # type: ignore[arg-type]
        Loader(Subset(both, chosen), 3),
        Loader(both, batch_sampler=[chosen[:3], chosen[3:]]),  # type: ignore[arg-type]
    ):
        assert numbers(loader) == [wanted[number] for number in chosen]
    parts = [[*Loader(both, 4, shuffle=True, rank=rank, world_size=2, repeat=2)] for rank in (0, 1)]  # type: ignore[arg-type]
    assert sorted(numbers(parts[0]) + numbers(parts[1])) == sorted(wanted * 2)
    assert len(both) == count  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="reads one dataset, not a sum"):
        Loader(both, 8, shuffle="block")  # type: ignore[arg-type]
