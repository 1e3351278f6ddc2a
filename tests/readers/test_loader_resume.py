"""Loader's place in an epoch: saved, loaded, and taken up at once with any other settings."""

import json

import numpy as np
import pytest
from torch.utils.data import DataLoader

from packer.errors import UsageError
from packer.split import split
from packer.writer import DatasetWriter
from readers import Loader, Mix, PackedDataset, Windows

ORDERS = [{"shuffle": False}, {"shuffle": True}, {"shuffle": "block"}, {"sampler": list(range(999, 0, -2)) * 2}]


def take(loader, steps):
    """Sample numbers of the next `steps` batches of a new loop, which is then left."""
    numbers = []
    for step, batch in enumerate(loader, 1):
        numbers += batch["y"].tolist()
        if step == steps:
            break
    return numbers


def place(loader):
    """The saved state without the description of the order."""
    return {name: value for name, value in loader.state_dict().items() if name not in ("order", "dataset")}


def rest(loader):
    """Sample numbers of a whole loop."""
    return [number for batch in loader for number in batch["y"].tolist()]


def reload(state, dataset, batch_size=32, **settings):
    """A new loader in the place of `state`, which went through JSON as in a checkpoint."""
    loader = Loader(dataset, batch_size, seed=2, **settings)
    loader.load_state_dict(json.loads(json.dumps(state)))
    return loader


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("threads", [0, 2])
def test_resumed_three_times_in_a_row(rows, order, threads):
    """Batches of several loaders, each going on where the one before was left, are those of one."""
    dataset = PackedDataset(rows)
    whole = Loader(dataset, 32, seed=2, **order)
    first, second = rest(whole), rest(whole)
    loader = Loader(dataset, 32, seed=2, threads=threads, **order)
    got = take(loader, 3)
    for steps in (1, 5, 2):
        loader = reload(loader.state_dict(), dataset, threads=2 - threads, prefetch=steps, **order)
        got += take(loader, steps)
    loader = reload(loader.state_dict(), dataset, threads=threads, **order)
    got += rest(loader)
    assert got == first
    assert rest(loader) == second
    assert loader.state_dict()["epoch"] == 2


def test_resumed_with_another_world_size(rows):
    """What is left of the common order is shared among as many ranks as there are now; nothing is lost or repeated."""
    dataset = PackedDataset(rows)
    expected = rest(Loader(dataset, 10, seed=2, shuffle=True))
    got, state = [], Loader(dataset, 10, seed=2, shuffle=True).state_dict()
    for world_size, batch_size, steps in ((2, 10, 7), (4, 15, 4), (1, 31, 3), (3, 8, 10**6)):
        loaders = [
            reload(state, dataset, batch_size, shuffle=True, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        iterators = [iter(loader) for loader in loaders]
        for _, batches in zip(range(steps), zip(*iterators, strict=True), strict=False):
            got += [number for batch in batches for number in batch["y"].tolist()]
        states = [loader.state_dict() for loader in loaders]
        assert not [other for other in states if other != states[0]]
        state = states[0]
        for iterator in iterators:
            iterator.close()
    assert got[:1000] == expected
    assert len(got) - 1000 < 3
    assert {name: state[name] for name in ("epoch", "done", "samples")} == {"epoch": 1, "done": 0, "samples": 1000}


def test_state_counts_what_was_handed_out(rows):
    """What threads have read ahead is not counted as done."""
    loader = Loader(PackedDataset(rows), 10, threads=2, prefetch=8)
    assert place(loader) == {"epoch": 0, "done": 0, "samples": 1000}
    for step, _ in enumerate(loader, 1):
        done = {"epoch": 0, "done": 10 * step} if step < 100 else {"epoch": 1, "done": 0}
        assert place(loader) == {**done, "samples": 1000}


def test_state_after_the_last_batch_is_the_next_epoch(rows):
    """A state saved with the last batch, or after it, starts the next epoch."""
    dataset = PackedDataset(rows)
    whole = Loader(dataset, 300, seed=2, shuffle=True)
    rest(whole)
    second = rest(whole)
    loader = Loader(dataset, 300, seed=2, shuffle=True)
    for _ in loader:
        state = loader.state_dict()
    assert state == loader.state_dict()
    assert rest(reload(state, dataset, 300, shuffle=True)) == second


def test_a_new_loop_after_break_is_the_next_epoch(rows):
    """As with DataLoader: whoever leaves a loop and starts another gets a new epoch, from its beginning."""
    dataset = PackedDataset(rows)
    whole = Loader(dataset, 32, seed=2, shuffle=True)
    epochs = [rest(whole) for _ in range(3)]
    loader = Loader(dataset, 32, seed=2, shuffle=True)
    assert take(loader, 2) == epochs[0][:64]
    assert take(loader, 2) == epochs[1][:64]
    assert rest(loader) == epochs[2]


def test_set_epoch_keeps_a_loaded_place(rows, caplog):
    """The usual `for epoch in ...: set_epoch(epoch)` does not undo load_state_dict; another epoch starts anew, with a
    remark on the loaded place."""
    dataset = PackedDataset(rows)
    whole = Loader(dataset, 32, seed=2, shuffle=True)
    epochs = [rest(whole) for _ in range(3)]
    loader = Loader(dataset, 32, seed=2, shuffle=True)
    rest(loader)
    take(loader, 4)
    state = loader.state_dict()
    resumed = reload(state, dataset, shuffle=True)
    got = []
    for epoch in range(state["epoch"], 3):
        resumed.set_epoch(epoch)
        got.append(rest(resumed))
    assert got == [epochs[1][128:], epochs[2]]
    assert not caplog.records
    other = reload(state, dataset, shuffle=True)
    other.set_epoch(2)
    (record,) = caplog.records
    assert "set_epoch(2): the state that was loaded, in the middle of epoch 1, is not used" in record.message
    assert rest(other) == epochs[2]
    other.set_epoch(0)
    assert rest(other) == epochs[0]
    other.set_epoch(0)
    assert rest(other) == epochs[0]


@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
def test_a_loader_that_another_one_reads_does_not_say_where_that_stands(rows, name):
    """Once another loader has read its samplers, the state is refused, and so is a loaded one that this one ignores."""
    dataset = PackedDataset(rows)
    loader = Loader(dataset, 32, seed=2, shuffle=True)
    other = DataLoader(dataset, **{name: getattr(loader, name)})
    for epoch in range(2):
        getattr(loader, name).set_epoch(epoch)
        assert place(loader) == {"epoch": epoch, "done": 0, "samples": 1000}  # before the first batch
        next(iter(other))
        with pytest.raises(UsageError, match=r"register_for_checkpointing.*use_stateful_dataloader=True"):
            loader.state_dict()
    take(loader, 3)
    state = loader.state_dict()
    assert (state["epoch"], state["done"]) == (1, 96)
    loader.load_state_dict(state)
    with pytest.raises(UsageError, match="the state that was loaded into the Loader has no effect"):
        next(iter(other))
    assert rest(loader) == rest(reload(state, dataset, shuffle=True))


def test_what_is_chosen_within_a_loop_holds_for_the_next(rows):
    """An epoch that is set in a loop, or a state that is loaded, is where the next loop begins; this one goes on."""
    dataset = PackedDataset(rows)
    whole = Loader(dataset, 100, seed=2, shuffle=True)
    epochs = [rest(whole) for _ in range(5)]
    state = {"epoch": 3, "done": 300, "samples": 1000}
    for is_left in (True, False):
        for choose, expected in (
            (lambda loader: loader.set_epoch(4), epochs[4]),
            (lambda loader: loader.sampler.set_epoch(4), epochs[4]),
            (lambda loader: loader.set_epoch(0), epochs[0]),
            (lambda loader: loader.load_state_dict(state), epochs[3][300:]),
        ):
            loader, got = Loader(dataset, 100, seed=2, shuffle=True), []
            for step, batch in enumerate(loader, 1):
                got += batch["y"].tolist()
                if step == 2:
                    choose(loader)
                if step == 4:
                    assert (loader.epoch, loader.state_dict()["done"]) == (0, 400)
                    if is_left:
                        break
            assert got == epochs[0][: len(got)]
            if not is_left:  # the state says so, too
                resumed = Loader(dataset, 100, seed=2, shuffle=True)
                resumed.load_state_dict(loader.state_dict())
                assert rest(resumed) == expected
            assert rest(loader) == expected


def test_iterators_that_were_never_asked_change_nothing(rows):
    """Making an iterator and dropping it loses neither a loaded place nor an epoch."""
    loader = Loader(PackedDataset(rows), 100)
    loader.load_state_dict({"epoch": 3, "done": 600, "samples": 1000})
    iter(loader)
    assert rest(loader) == list(range(600, 1000))
    iter(loader)
    assert place(loader) == {"epoch": 4, "done": 0, "samples": 1000}


def test_state_of_another_order_is_refused(rows):
    """Another seed or shuffle would repeat some samples and leave others out; what differs is said, and it alone."""
    state = Loader(PackedDataset(rows), 8, shuffle=True, seed=1).state_dict()
    for other, found in (
        ({"shuffle": True, "seed": 2}, "it has seed 1, where this loader has seed 2. Give"),
        (
            {"shuffle": "block", "seed": 1},
            r"it has Shuffled, window None, where this loader has BlockShuffled, \w+ \d+, ",
        ),
        ({}, "it has Shuffled, seed 1, way 5, where this loader has "),
    ):
        with pytest.raises(UsageError, match=f"another order: {found}"):
            Loader(PackedDataset(rows), 8, **other).load_state_dict(state)
    Loader(PackedDataset(rows), 16, shuffle=True, seed=1, threads=1).load_state_dict(state)


def test_state_of_an_older_order_is_refused(rows):
    """Where the same seed gave another order, that is said; a sequential one has not changed."""
    for options in ({"shuffle": True}, {"shuffle": "block"}, {}):
        loader = Loader(PackedDataset(rows), 10, **options)
        state = loader.state_dict()
        state["order"] = state["order"].partition(", way ")[0]
        if not options:
            loader.load_state_dict(state)
            continue
        with pytest.raises(UsageError, match=r"another version of readers.*set_epoch"):
            loader.load_state_dict(state)


def test_state_of_another_dataset_is_refused(rows, packed):
    """A state of other samples, or one that cannot be, is refused and leaves the loader as it was."""
    loader = Loader(PackedDataset(rows), 100)
    with pytest.raises(UsageError, match="60 samples; this loader reads 1000"):
        loader.load_state_dict(Loader(PackedDataset(packed), 8).state_dict())
    with pytest.raises(UsageError, match="1001 of 1000"):
        loader.load_state_dict({"epoch": 0, "done": 1001, "samples": 1000})
    assert rest(loader) == list(range(1000))


def test_a_state_of_other_samples_is_refused_where_they_are_as_many(rows, tmp_path):
    """Of another schema, other chosen samples, other windows or other names; a new codec is the same dataset."""

    def pack(name, dtype="int64", names="n", codec="none"):
        with DatasetWriter(tmp_path / name, codec=codec) as writer:
            for number in range(100):
                writer.add({"y": np.array([number] * 4, dtype)}, name=f"{names}{number}")
        return tmp_path / name

    first = pack("first")
    split(first, {"even": range(0, 100, 2), "odd": range(1, 100, 2)})
    state = Loader(PackedDataset(first), 8).state_dict()
    for same in (PackedDataset(pack("coded", codec="zstd")), PackedDataset(first, batch_transform=dict)):
        Loader(same, 8).load_state_dict(state)
    windows = [Windows({"y": offsets}) for offsets in ([0], [0, 1])]
    for one, other in (
        (PackedDataset(first), PackedDataset(pack("other", dtype="int32"))),
        (PackedDataset(first), PackedDataset(pack("named", names="m"))),
        (PackedDataset(first, split="even"), PackedDataset(first, split="odd")),
        (PackedDataset(first, samples=[3, 5]), PackedDataset(first, samples=[5, 3])),
        (PackedDataset(first, windows=windows[0], samples=range(75)), PackedDataset(first, windows=windows[1])),
        (Mix([PackedDataset(first)], weights=[1]), Mix([PackedDataset(tmp_path / "named")], weights=[1])),
    ):
        assert len(one) == len(other)
        with pytest.raises(UsageError, match="of another dataset, or of other samples of it"):
            Loader(other, 8).load_state_dict(Loader(one, 8).state_dict())


@pytest.mark.parametrize("threads", [0, 2])
def test_empty_epochs_end_and_advance(rows, threads):
    """An epoch with too few samples for a batch has none, and the next loop is the next epoch."""
    dataset = PackedDataset(rows)
    loader = Loader(dataset, 2000, drop_last=True, threads=threads)
    assert len(loader) == 0
    for epoch in range(1, 4):
        assert list(loader) == []
        assert place(loader) == {"epoch": epoch, "done": 0, "samples": 1000}
    resumed = Loader(dataset, 64, drop_last=True, threads=threads)
    resumed.load_state_dict({"epoch": 5, "done": 990, "samples": 1000})
    assert list(resumed) == []
    assert len(rest(resumed)) == 960
    assert resumed.state_dict()["epoch"] == 7


def _coded(folder, codecs):
    """4,000 samples whose number is `y`, beside fields of other codecs, and so of other frames."""
    with DatasetWriter(folder, codec={**codecs, "y": "none"}) as writer:
        for number in range(4000):
            writer.add({"x": np.zeros(33, np.float32), "z": np.int64(0), "y": np.int64(number)})
    return folder


def test_a_block_shuffle_goes_on_with_the_same_fields_alone(tmp_path):
    """Which samples make a block depends on the fields that are read; others would repeat some and leave some out."""
    folder = _coded(tmp_path / "p", {"x": "lz4", "z": "lz4"})
    loader = Loader(PackedDataset(folder), 50, shuffle="block", shuffle_window=500)
    got = take(loader, 40)
    for fields in (["x", "y"], ["y"]):
        with pytest.raises(UsageError, match=r"another order.*fields that are read"):
            Loader(PackedDataset(folder, fields), 50, shuffle="block", shuffle_window=500).load_state_dict(
                loader.state_dict()
            )
    other = Loader(PackedDataset(folder, ["y", "z", "x"]), 20, shuffle="block", shuffle_window=500)
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert sorted(got + rest(other)) == list(range(4000))


def test_an_array_of_other_numbers_is_refused(rows):
    """Also where it is as long; the same numbers go on in whatever they are given."""
    dataset = PackedDataset(rows)
    state = Loader(dataset, 10, sampler=range(100)).state_dict()
    with pytest.raises(UsageError, match="another order"):
        Loader(dataset, 10, sampler=range(100, 200)).load_state_dict(state)
    Loader(dataset, 10, sampler=np.arange(100)).load_state_dict(state)
    state = Loader(dataset, batch_sampler=[[1], [2, 3]]).state_dict()
    Loader(dataset, batch_sampler=((1,), (2, 3))).load_state_dict(state)
    for others in ([[1], [2, 4]], [[1, 2], [3]]):
        with pytest.raises(UsageError, match="another order"):
            Loader(dataset, batch_sampler=others).load_state_dict(state)


@pytest.mark.parametrize(
    "wrong",
    [None, [], {}, {"epoch": 0, "samples": 1000}, {"epoch": 0, "done": 1.5, "samples": 1000}, {"epoch": -1, "done": 0}],
)
def test_what_is_no_state_is_refused(rows, wrong):
    """With a message that names what is missing or wrong in it."""
    with pytest.raises(UsageError, match=r"the state('s (epoch|done))? is .*state_dict"):
        Loader(PackedDataset(rows), 3).load_state_dict(wrong)


def test_loops_of_one_loader_are_independent(rows):
    """The state is that of the loop that handed out the last batch: a look at one batch loses no sample of another."""
    loader, plain = (Loader(PackedDataset(rows), 100, shuffle=True, seed=2) for _ in range(2))
    epochs = [rest(plain) for _ in range(3)]
    got = []
    for step, batch in enumerate(loader, 1):
        got += batch["y"].tolist()
        state = loader.state_dict()
        assert (state["epoch"], state["done"]) == ((0, 100 * step) if step < 10 else (1, 0))
        assert next(iter(loader))["y"].tolist() == epochs[1][:100]
        if step == 4:
            assert rest(reload(state, PackedDataset(rows), shuffle=True)) == epochs[0][400:]
    assert got == epochs[0]
    loader.set_epoch(0)
    pairs = [(one["y"].tolist(), other["y"].tolist()) for one, other in zip(loader, loader, strict=True)]
    loops = zip(*pairs, strict=True)
    assert [[number for batch in loop for number in batch] for loop in loops] == epochs[:2]
    assert rest(loader) == epochs[2]


def test_remaining_counts_what_a_resumed_loop_gives(rows):
    """All between two epochs, then one less with every batch, on each rank; `len` stays that of a whole epoch."""
    loader = Loader(PackedDataset(rows), 30, shuffle=True, seed=2)
    assert (loader.remaining, len(loader)) == (34, 34)
    take(loader, 10)
    assert loader.remaining == 24
    again = reload(loader.state_dict(), PackedDataset(rows), 30, shuffle=True, rank=1, world_size=2)
    assert (again.remaining, len(again)) == (12, 17)
    assert len(list(again)) == 12
    assert again.remaining == 17


def test_the_seed_of_a_loader_cannot_be_changed(rows):
    """Orders would not follow it."""
    loader = Loader(PackedDataset(rows), seed=3)
    with pytest.raises(AttributeError):
        loader.seed = 4
    assert loader.seed == 3
