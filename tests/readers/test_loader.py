"""Loader: which samples come in which batch, whatever the settings."""

import json
import pickle
import sys

import numpy as np
import pytest
import torch
from batches import plain
from torch.utils import _pytree as pytree
from torch.utils.data import DistributedSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from packer.codecs import NAMED
from packer.errors import UsageError
from packer.format import Field, FrameRule
from readers import Loader, PackedDataset
from readers.valid import remark

gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def seen(loader):
    """Numbers of the samples of one epoch of `rows`, in order."""
    return [number for batch in loader for number in batch["y"].tolist()]


@pytest.mark.parametrize("shuffle", [False, True, "block"])
@pytest.mark.parametrize("threads", [0, 2])
def test_each_sample_comes_once(rows, shuffle, threads):
    """An epoch has every sample once, with what belongs to it, in any order and with any batch size."""
    for batch_size in (1, 7, 128, 3000, sys.maxsize):
        numbers = []
        for batch in Loader(PackedDataset(rows), batch_size, shuffle=shuffle, threads=threads):
            assert (batch["x"] == batch["y"][:, None]).all()
            numbers += batch["y"].tolist()
        assert sorted(numbers) == list(range(1000))
        assert (numbers == list(range(1000))) == (shuffle is False)


@pytest.mark.parametrize("threads", [0, 2])
def test_drop_last_leaves_out_what_is_not_full(rows, threads, caplog):
    """With drop_last all batches are full; a remark says if there is none. Without it the last holds what is left."""
    remark.cache_clear()
    dataset = PackedDataset(rows)
    sizes = [len(batch["y"]) for batch in Loader(dataset, 128, threads=threads)]
    assert sizes == [128] * 7 + [104]
    assert [len(batch["y"]) for batch in Loader(dataset, 128, drop_last=True, threads=threads)] == [128] * 7
    assert len(Loader(dataset, 128, drop_last=True)) == 7
    assert not caplog.messages
    assert len(Loader(dataset, 1001, drop_last=True, threads=threads)) == 0
    assert "drop_last=True leaves out the only one, which has 1,000 samples of 1,001; take smaller" in caplog.text


@pytest.mark.parametrize("shuffle", [True, "block"])
def test_order_depends_on_seed_and_epoch_alone(rows, shuffle):
    """Batch size, threads and prefetch leave the order as it is; another epoch or seed changes it."""
    dataset = PackedDataset(rows)
    first = seen(Loader(dataset, 7, shuffle=shuffle, seed=3))
    assert first == seen(Loader(dataset, 128, shuffle=shuffle, seed=3, threads=3, prefetch=5))
    loader = Loader(dataset, 64, shuffle=shuffle, seed=3)
    epochs = [seen(loader) for _ in range(3)]
    assert epochs[0] == first
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert seen(Loader(dataset, 64, shuffle=shuffle, seed=4)) != first
    loader.set_epoch(1)
    assert seen(loader) == epochs[1]
    assert seen(loader) == epochs[2]


def test_rank_comes_from_torch_distributed(rows, monkeypatch, tmp_path):
    """Where torch.distributed is initialised, rank and world size are taken from it unless they are given."""
    dataset = PackedDataset(rows)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        assert seen(Loader(dataset, 100)) == list(range(1000))
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 2)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
        assert len(Loader(dataset, 50)) == 5
        assert next(iter(Loader(dataset, 50)))["y"].tolist() == list(range(100, 150))
        assert len(Loader(dataset, 50, rank=0, world_size=1)) == 20
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_sampler_may_be_numbers(rows, kind):
    """A list, tuple, array or tensor of numbers is read as it stands, repeats and all, every epoch."""
    numbers = [5, 5, 999, 0, 17, 5]
    loader = Loader(PackedDataset(rows), 4, sampler=kind(numbers))
    assert len(loader) == 2
    assert seen(loader) == numbers
    assert seen(loader) == numbers


@pytest.mark.parametrize(
    "make",
    [
        lambda ds: RandomSampler(ds),
        lambda ds: RandomSampler(ds, replacement=True, num_samples=300, generator=torch.Generator().manual_seed(7)),
        lambda ds: WeightedRandomSampler(torch.arange(1000.0), 500),
        lambda ds: SubsetRandomSampler(range(100, 200)),
    ],
)
def test_samplers_of_torch_follow_seed_and_epoch(rows, make):
    """A torch sampler gives another order each epoch, the same for all ranks and whatever torch's random state is."""
    dataset = PackedDataset(rows)
    loader = Loader(dataset, 64, sampler=make(dataset), seed=1)
    torch.manual_seed(8)
    first, second = seen(loader), seen(loader)
    assert first != second
    assert len(first) == len(second) == len(loader.order)
    torch.manual_seed(9)
    ranks = [Loader(dataset, 32, sampler=make(dataset), seed=1, rank=rank, world_size=2) for rank in (0, 1)]
    steps = zip(*([batch["y"].tolist() for batch in loader] for loader in ranks), strict=True)
    assert [number for step in steps for batch in step for number in batch][: len(first)] == first
    loader.set_epoch(1)
    assert seen(loader) == second


@pytest.mark.parametrize("wrong", [-1, 1000, 2**40])
def test_sampler_with_a_wrong_number_is_refused(rows, wrong):
    """A number that no sample has is named before anything is read."""
    with pytest.raises(UsageError, match=f"number {wrong}, .* 1000 samples"):
        next(iter(Loader(PackedDataset(rows), 2, sampler=[1, 2, wrong])))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shuffle": "blocks"}, "'blocks'"),
        ({"shuffle": True, "sampler": [1]}, "do not go together"),
        ({"batch_size": 0}, "batch_size 0"),
        ({"batch_size": 2.5}, "batch_size 2.5"),
        ({"batch_size": None}, "batch_size None"),
        ({"seed": None, "shuffle": True}, "seed None"),
        ({"prefetch": 1.5}, "prefetch 1.5"),
        ({"rank": 1.0, "world_size": 2}, "rank 1.0 of 2"),
        ({"threads": -1}, "threads -1"),
        ({"threads": "two"}, "threads 'two'"),
        ({"prefetch": 0}, "prefetch 0"),
        ({"rank": 1}, "go together"),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2"),
        ({"seed": -1}, "seed -1"),
        ({"shuffle": "block", "shuffle_window": 0}, "shuffle_window 0"),
        ({"shuffle": "block", "shuffle_window": 1.5}, "shuffle_window 1.5"),
        ({"sampler": iter([1, 2])}, "sampler: a list_iterator .* once"),
        ({"batch_sampler": ([n] for n in range(3))}, "batch_sampler: a generator .* once"),
        ({"shuffle_window": 100}, "shuffle='block'"),
        ({"window": 100}, "the argument is called shuffle_window"),
        ({"sampler": np.ones(1000, bool)}, "np.flatnonzero"),
        ({"as_numpy": True, "device": "cpu"}, "do not go together"),
        ({"drop_last": "no"}, "Loader: drop_last 'no': True or False"),
        ({"pin_memory": 1}, "pin_memory 1: True or False"),
        ({"as_numpy": None}, "as_numpy None: True or False"),
        ({"channels_last": "no"}, "channels_last 'no': True or False"),
        ({"device": "gpu"}, "'gpu'"),
        ({"device": "mps"}, "device 'mps': torch cannot use it here"),
    ],
)
def test_wrong_arguments_are_refused(rows, arguments, message):
    """Arguments that cannot be, or that exclude each other, are named when the loader is made."""
    with pytest.raises(UsageError, match=message):
        Loader(PackedDataset(rows), **arguments)


@pytest.mark.parametrize(
    ("argument", "instead"),
    [
        ({"num_workers": 4}, "give threads="),
        ({"persistent_workers": True}, "without workers; leave it out"),
        ({"generator": torch.Generator()}, "give seed="),
        ({"prefetch_factor": 4}, "give prefetch="),
        ({"worker_init_fn": print}, "without workers; leave it out"),
        ({"timeout": 3}, "without workers; leave it out"),
    ],
)
def test_arguments_of_torchs_loader_are_refused(rows, argument, instead):
    """Each by a sentence that says what to do instead; those that ask for nothing are those of frameworks."""
    dataset = PackedDataset(rows)
    with pytest.raises(UsageError, match=f"Loader takes no {next(iter(argument))}: .*{instead}"):
        Loader(dataset, 4, **argument)
    Loader(dataset, 4, num_workers=0, generator=None, collate_fn=torch.utils.data.default_collate)
    with pytest.raises(TypeError, match="unexpected keyword argument 'workers'"):
        Loader(dataset, 4, workers=2)


def test_whole_numbers_may_be_those_of_numpy(rows):
    """They are as good as Python's, and a saved state has none of them; a window may be larger than any dataset."""
    loader = Loader(PackedDataset(rows), np.int64(300), "block", np.uint8(1), threads=np.int8(1), shuffle_window=10**30)
    loader.set_epoch(np.int64(2))
    same = Loader(PackedDataset(rows), 300, "block", 1, shuffle_window=1000)
    same.set_epoch(2)
    for batch, wanted in zip(loader, same, strict=True):
        assert torch.equal(batch["y"], wanted["y"])
        assert json.loads(json.dumps(loader.state_dict())) == loader.state_dict()


def test_other_datasets_and_samplers_of_one_rank_are_refused(rows):
    """Loader reads packed datasets, and shares the order itself."""
    with pytest.raises(UsageError, match="list"):
        Loader([1, 2, 3])
    with pytest.raises(UsageError, match=r"not its path: Loader\(PackedDataset\('.*rows'\)"):
        Loader(str(rows))
    dataset = PackedDataset(rows)
    with pytest.raises(UsageError, match="DistributedSampler"):
        Loader(dataset, sampler=DistributedSampler(dataset, num_replicas=2, rank=0))


def test_a_dataset_without_samples_has_no_batches(tmp_path, pack):
    """An empty dataset gives empty epochs in every order."""
    path = pack(tmp_path / "none", [Field(name="x", dtype="uint8", shape=(2,), codec=NAMED["zstd"])], [])
    for shuffle in (False, True, "block"):
        assert list(Loader(PackedDataset(path), 4, shuffle=shuffle)) == []


def test_numpy_batches(packed):
    """With as_numpy there are numpy arrays in place of tensors, equal to them; texts stay texts."""
    dataset = PackedDataset(packed)
    expected = list(Loader(dataset, 16))
    for threads in (0, 2):
        for got, batch in zip(Loader(dataset, 16, as_numpy=True, threads=threads), expected, strict=True):
            assert plain(got) == plain(batch)
            assert not [leaf for leaf in pytree.tree_leaves(got) if isinstance(leaf, torch.Tensor)]


def test_device_cpu(packed):
    """device="cpu" works everywhere and changes nothing, with threads too."""
    dataset = PackedDataset(packed)
    expected = [plain(batch) for batch in Loader(dataset, 8)]
    for threads in (0, 2):
        assert [plain(batch) for batch in Loader(dataset, 8, device="cpu", threads=threads)] == expected


@pytest.mark.parametrize("threads", [pytest.param(n, marks=gpu) for n in (0, 2)])
def test_device_cuda(packed, threads):
    """With device="cuda" every tensor of every kind of field comes on the GPU, equal to what is read without."""
    dataset = PackedDataset(packed)
    expected = [plain(batch) for batch in Loader(dataset, 8)]
    batches = list(Loader(dataset, 8, device="cuda", threads=threads))
    assert batches[0]["x"].is_cuda
    assert batches[0]["xyz"].values.is_cuda
    assert [plain(batch) for batch in batches] == expected


@pytest.mark.parametrize("batch_size", [pytest.param(n, marks=gpu) for n in (10, 1000)])
def test_pinned_memory_is_not_used_again_before_it_is_copied(rows, batch_size):
    """A pinned batch may be dropped as soon as its copy has been started, however late the GPU gets to it."""
    loader = Loader(PackedDataset(rows), batch_size, pin_memory=True)
    for _ in range(3):
        moved = []
        torch.cuda._sleep(200_000_000)
        for batch in loader:
            assert batch["x"].is_pinned()
            moved.append(batch["x"].to("cuda", non_blocking=True))
            del batch
        assert torch.cat(moved)[:, 0].tolist() == list(range(1000))


@pytest.mark.parametrize("device", [None, "cpu"])
def test_nobody_asks_for_cuda_unless_it_is_wanted(rows, monkeypatch, device):
    """A loader for the CPU leaves CUDA alone: the question alone may keep a process from forking."""

    def asked():
        raise AssertionError("CUDA was asked for")

    monkeypatch.setattr(torch.cuda, "is_available", asked)
    monkeypatch.setattr(torch.cuda, "device_count", asked)
    assert len(next(iter(Loader(PackedDataset(rows), 100, device=device)))["x"]) == 100


def test_pin_memory_without_cuda_changes_nothing(rows):
    """pin_memory=True is no error where there is nothing to pin for."""
    loader = Loader(PackedDataset(rows), 100, pin_memory=True)
    assert next(iter(loader))["x"].is_pinned() == torch.cuda.is_available()


def test_block_shuffle_decodes_each_frame_about_once(tmp_path, pack, decoded):
    """Block shuffle decodes a frame at most 1.2 times an epoch on average, also with frames of two lengths."""
    sizes = {"a": 37, "b": 20}
    fields = [
        Field(name=name, dtype="uint8", shape=(1024,), codec=NAMED["zstd"], frame=FrameRule(samples=n))
        for name, n in sizes.items()
    ]
    samples = [{name: np.full(1024, i % 250, np.uint8) for name in sizes} for i in range(8000)]
    path = pack(tmp_path / "frames", fields, [samples[:5000], samples[5000:5003], samples[5003:]])
    frames = sum(-(-n // size) for n in (5000, 3, 2997) for size in sizes.values())
    for batch_size, window in ((4, 3000), (128, 1000)):
        loader = Loader(PackedDataset(path), batch_size, shuffle="block", shuffle_window=window, threads=0)
        for least in (frames, 0):  # a second epoch begins with what the first has left in memory
            decoded.clear()
            numbers = [batch["a"][:, 0] for batch in loader]
            assert torch.cat(numbers).bincount().tolist() == [32] * 250
            assert least <= len(decoded) <= 1.2 * frames


def test_block_shuffle_decodes_frames_of_captions_about_once(tmp_path, pack, decoded):
    """Ragged samples that share frames are decoded once an epoch too."""
    field = Field(
        name="t", dtype="uint8", kind="text", shape=(None,), codec=NAMED["zstd"], frame=FrameRule(samples=100)
    )
    path = pack(tmp_path / "captions", [field], [[{"t": f"caption {i} " * (i % 9)} for i in range(4000)]])
    got = [
        text for batch in Loader(PackedDataset(path), 16, shuffle="block", shuffle_window=1000) for text in batch["t"]
    ]
    assert sorted(got) == sorted(f"caption {i} " * (i % 9) for i in range(4000))
    assert len(decoded) <= 1.2 * 40


def test_block_shuffle_of_uncompressed_fields_beside_compressed_ones(tmp_path, pack):
    """Uncompressed fields, whose frames may be long, do not make blocks coarser."""
    fields = [
        Field(name="label", dtype="int64", shape=(), frame=FrameRule(samples=8192)),
        Field(name="a", dtype="uint8", shape=(8,), codec=NAMED["zstd"], frame=FrameRule(samples=10)),
    ]
    samples = [{"label": np.array(i), "a": np.zeros(8, np.uint8)} for i in range(200)]
    path = pack(tmp_path / "blocks", fields, [samples])
    order = Loader(PackedDataset(path), 10, shuffle="block", shuffle_window=20).order.epoch(0)
    assert np.ptp(order[:20]) > 20


def test_loader_can_be_pickled(rows):
    """A loader goes to another process without its memory, and reads the same there."""
    loader = Loader(PackedDataset(rows), 100, shuffle=True)
    expected = seen(loader)
    loader.set_epoch(0)
    sent = pickle.dumps(loader)
    assert len(sent) < 10_000
    assert seen(pickle.loads(sent)) == expected


@pytest.mark.parametrize("threads", [0, 2])
def test_images_may_be_contiguous(packed, threads):
    """With channels_last=False, `view` joins axes of images, of lists of them and of what a transform made."""

    def transform(batch):
        return {**batch, "half": batch["lr"] / 2}

    dataset = PackedDataset(packed, batch_transform=transform)
    plain, other = Loader(dataset, 16, threads=threads), Loader(dataset, 16, threads=threads, channels_last=False)
    arrays = Loader(dataset, 16, threads=threads, channels_last=False, as_numpy=True)
    for wanted, got, array in zip(plain, other, arrays, strict=True):
        assert not wanted["lr"].is_contiguous()
        for name in ("x", "lr", "depth", "half"):
            assert got[name].is_contiguous()
            assert array[name].flags.c_contiguous
            assert torch.equal(got[name], wanted[name])
        assert got["lr"].view(len(got["lr"]), -1).shape[1] == got["lr"][0].numel()
        assert not [picture for picture in got["picture"] if not picture.is_contiguous()]
        assert all(map(torch.equal, got["picture"], wanted["picture"]))
        assert torch.equal(got["xyz"].values, wanted["xyz"].values)
