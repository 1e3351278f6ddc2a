"""What a loop over a Loader does where samples cannot be located, and in a process that was forked within it."""

import itertools
import multiprocessing

import numpy as np
import pytest
from torch.utils.data import Subset

from packer.errors import UsageError
from packer.format import FieldSpec
from packer.writer import DatasetWriter
from readers import Crop, Loader, Mix, PackedDataset

COUNT, SMALL = 1500, 1100


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """1,500 pictures of 4 x 4 pixels, but for one of 2 x 2 that no crop of 3 fits."""
    folder = tmp_path_factory.mktemp("errors") / "pictures"
    field = FieldSpec(name="picture", dtype="uint8", kind="image", shape=(None, None, 1))
    with DatasetWriter(folder, [field], codec="none") as writer:
        for number in range(COUNT):
            size = 2 if number == SMALL else 4
            writer.add({"picture": np.full((size, size, 1), number % 251, np.uint8)})
    return folder


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("threads", [0, 1, 3])
def test_an_error_comes_where_its_batch_would(pictures, monkeypatch, threads, cold):
    """With threads, or asked for ahead of time, no batch is lost that comes without; the place in the epoch fits."""
    monkeypatch.setattr("readers.reading.GROUP_SAMPLES", 512)
    blocks = itertools.count(step=int(cold))
    monkeypatch.setattr("readers.readahead._blocks_read", lambda: next(blocks))
    loader = Loader(PackedDataset(pictures, crop=Crop(3, of="picture")), 8, threads=threads, prefetch=9)
    got = []
    with pytest.raises(UsageError, match="2 x 2 pixels"):  # noqa: PT012
        for batch in loader:
            got += batch["picture"][:, 0, 0, 0].tolist()
    # Places are looked up for 512 samples at once; the batch of the small picture is one of these.
    assert got == [number % 251 for number in range(SMALL // 8 * 8)]
    assert loader.state_dict()["done"] == len(got)


def _go_on(batches, queue):
    try:
        for _ in batches:
            pass
    except UsageError as error:
        queue.put(str(error))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.parametrize("threads", [0, 2])
def test_a_loop_does_not_go_on_in_a_forked_process(rows, threads):
    """It says so, instead of waiting for threads and locks that stayed behind; where it began it goes on."""
    fork = multiprocessing.get_context("fork")
    batches = iter(Loader(PackedDataset(rows, batch_transform=dict), 10, threads=threads))
    next(batches)
    queue = fork.Queue()
    child = fork.Process(target=_go_on, args=(batches, queue))
    child.start()
    assert "forked process" in queue.get(timeout=100)
    child.join(100)
    assert child.exitcode == 0
    queue.close()
    queue.join_thread()
    assert len(list(batches)) == 99


@pytest.mark.parametrize(
    ("codec", "transform", "processors", "threads"),
    [("zstd", None, 8, 2), ("zstd", None, 1, 1), ("zstd", dict, 8, 2), ("none", dict, 8, 0), ("none", None, 8, 0)],
)
def test_threads_of_ones_own_choice(tmp_path, monkeypatch, codec, transform, processors, threads):
    """Coded fields are read by two threads, with a transform as without; on one processor these would take turns."""
    monkeypatch.setattr("readers.arguments.processors", lambda: processors)
    with DatasetWriter(tmp_path / "p", codec=codec) as writer:
        for _ in range(17):
            writer.add({"x": np.zeros(2**16)})
    dataset = PackedDataset(tmp_path / "p", batch_transform=transform)
    assert (Loader(dataset).threads, Loader(dataset, threads=3).threads) == (threads, 3)


def test_a_short_epoch_takes_no_threads(tmp_path, monkeypatch):
    """Threads would cost more than they hide where all of an epoch is read at once: up to 8 MiB, of all its passes."""
    monkeypatch.setattr("readers.arguments.processors", lambda: 8)
    with DatasetWriter(tmp_path / "p", codec="zstd") as writer:
        for _ in range(17):
            writer.add({"x": np.zeros(2**16)})
    dataset = PackedDataset(tmp_path / "p")
    short = Subset(dataset, range(16))
    assert [Loader(short).threads, Loader(short, repeat=2).threads, Loader(dataset).threads] == [0, 2, 2]
    assert Loader(Mix({dataset.select(range(16)): 1})).threads == 0


def test_values_of_numpy_are_taken_as_numbers(rows):
    """Also flags; True is no number."""
    loader = Loader(PackedDataset(rows), np.int64(300), drop_last=np.True_, prefetch=np.int64(3), threads=np.int64(1))
    assert [len(batch["y"]) for batch in loader] == [300] * 3
    for wrong in ({"seed": True}, {"threads": True}, {"rank": True, "world_size": 2}, {"batch_size": True}):
        with pytest.raises(UsageError, match=r"True.* expected"):
            Loader(PackedDataset(rows), **wrong)
