"""Large batches of uncompressed samples: which they are, and that each is read as packed, when it is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from packer.codecs.configs import NAMED
from packer.convert import convert
from packer.format.schema import Field
from readers import Loader, PackedDataset, advice, large, stream, take
from readers.fixed import FixedRaw
from readers.large import LargeBatches, LargeRun, is_large
from readers.runs import Run
from readers.take import Team, Teams

COUNT = 53
#: Name, dtype, shape and kind.
FIELDS = [
    ("hr", "uint8", (6, 4, 3), "image"),
    ("deep", "uint16", (3, 2, 1), "image"),
    ("x", "float32", (5,), "array"),
    ("y", "int64", (), "array"),
    ("odd", "uint8", (7,), "array"),
    ("none", "float32", (0, 2), "array"),
    ("nothing", "uint16", (2, 0), "array"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, pack: Any) -> Path:
    """Uncompressed samples in two shards; a sample holds its number."""
    fields = [Field(name=n, dtype=d, shape=s, kind=k, codec=NAMED["none"]) for n, d, s, k in FIELDS]
    samples = [
        {n: (np.arange(np.prod(s)) % 7 + number).astype(d).reshape(s) for n, d, s, _ in FIELDS}
        for number in range(COUNT)
    ]
    made: Path = pack(tmp_path_factory.mktemp("large") / "packed", fields, [samples[:30], samples[30:]])
    return made


@pytest.fixture(params=["several threads", "one thread", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How batches are read, all of which count as large."""
    monkeypatch.setattr(large, "HUGE_SAMPLE", 1)
    monkeypatch.setattr(large, "TEAM_BYTES", 2**40 if request.param == "numpy" else 1)
    monkeypatch.setattr(large, "AWAKE_BYTES", 0)

    class Decided(Team):
        def __init__(self) -> None:
            super().__init__()
            self.together = request.param == "several threads"

        def note(self, cost: float) -> None:
            assert cost > 0

    teams = Teams()
    monkeypatch.setattr(teams, "of", lambda nbytes: Decided())
    monkeypatch.setattr(large, "_TEAMS", teams)
    return str(request.param)


def same(batch: dict[str, torch.Tensor], dataset: PackedDataset, numbers: list[int]) -> None:
    """Holds a batch against samples that were read one by one."""
    assert list(batch) == list(dataset.fields)
    for name, values in batch.items():
        wanted = torch.stack([torch.as_tensor(dataset[number][name]) for number in numbers])
        assert values.dtype == wanted.dtype
        assert values.shape == wanted.shape
        assert torch.equal(values, wanted)


@pytest.mark.parametrize("batch_size", [1, 8, 64])
def test_batches_are_as_packed(folder: Path, way: str, monkeypatch: pytest.MonkeyPatch, batch_size: int) -> None:
    """Fields of any dtype, kind and size, runs of several batches, the last batch smaller; they stay as they were."""
    monkeypatch.setattr(large, "RUN_BYTES", 5 * batch_size * 130)
    dataset = PackedDataset(folder)
    loader = Loader(dataset, batch_size, shuffle=True)
    order = loader.order.epoch(0).tolist()
    batches = list(loader)
    assert sum(len(batch["y"]) for batch in batches) == COUNT
    later = list(loader)  # of the next epoch; those of this one are still held, the last and smaller one too
    for at, batch in enumerate(batches):
        same(batch, dataset, order[at * batch_size : (at + 1) * batch_size])
    for batch in (*batches, *later):
        for values in batch.values():
            values.zero_()  # their own memory, not the file's
    same(next(iter(Loader(dataset, 8))), dataset, list(range(8)))


def noted(maker: Callable[..., Any], calls: list[int]) -> Callable[..., Any]:
    """A method like `maker`, of whose functions each call is noted."""

    def make(*arguments: Any) -> Callable[[Any], torch.Tensor]:
        read = maker(*arguments)

        def noting(places: Any) -> Any:
            calls.append(1)
            return read(places)

        return noting

    return make


def test_a_batch_is_read_when_it_is_asked_for(folder: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the run it belongs to; and what a transform makes of it is handed out."""
    read = []
    for method in ("gatherer", "copier"):
        monkeypatch.setattr(FixedRaw, method, noted(getattr(FixedRaw, method), read))
    dataset = PackedDataset(folder, transform=lambda batch: int(batch["y"][0]))
    numbers = []
    for batch in Loader(dataset, 4, threads=0):
        numbers.append(batch)
        assert len(read) == len(numbers) * len(FIELDS)
    assert numbers == list(range(0, COUNT, 4))


def test_what_a_transform_has_let_go_of_is_kept_by_nobody(folder: Path, way: str) -> None:
    """The batch it was given is gone while the caller works on what was made of it."""
    seen = []

    def transform(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        seen.append(weakref.ref(batch["hr"]))
        return batch["x"]

    for _ in Loader(PackedDataset(folder, transform=transform), 8, threads=0):
        assert seen[-1]() is None


def test_an_error_of_a_transform_ends_the_loop(folder: Path, way: str) -> None:
    """Of any kind: StopIteration is not taken for the end of a run."""
    left = iter([1, 2])
    dataset = PackedDataset(folder, transform=lambda batch: next(left))
    given: list[int] = []
    with pytest.raises(RuntimeError, match="StopIteration"):
        given.extend(Loader(dataset, 2, threads=0))
    assert given == [1, 2]


def test_memory_is_used_again_and_not_before_it_is_free(folder: Path, way: str) -> None:
    """A batch that is held stays as it is; those let go of give their memory to later ones."""
    if way == "numpy":
        pytest.skip("numpy takes new memory")
    dataset = PackedDataset(folder)
    places = []
    held = None
    for at, batch in enumerate(Loader(dataset, 8)):
        places.append(batch["hr"].data_ptr())
        if at == 1:
            held = batch["hr"]
    assert held is not None
    assert torch.equal(held, torch.stack([dataset[number]["hr"] for number in range(8, 16)]))
    assert places.count(held.data_ptr()) == 1
    assert len(set(places)) < len(places)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("modes", [(True, False), (False, True)])
def test_inference_mode_may_begin_and_end_between_epochs(folder: Path, modes: tuple[bool, bool]) -> None:
    """Of the memory of both, and of places that were looked up in the midst of a run."""
    dataset = PackedDataset(folder)
    loader = Loader(dataset, 8)
    for mode in modes:
        with torch.inference_mode(mode):
            for at, batch in enumerate(loader):
                same(batch, dataset, list(range(8 * at, min(8 * at + 8, COUNT))))
    batches = iter(loader)
    with torch.inference_mode():
        next(batches)
    batch = next(batches)
    assert torch.equal(torch.nn.Parameter(batch["x"]) * 2, batch["x"] * 2)


@pytest.mark.usefixtures("way")
def test_datasets_may_take_each_others_place(folder: Path, tmp_path: Path, pack: Any) -> None:
    """Of as many bytes, and another shape."""
    loader = Loader(PackedDataset(folder, fields=["hr"]), 8)
    list(loader)
    turned = Field(name="hr", dtype="uint8", shape=(4, 6, 3), kind="image", codec=NAMED["none"])
    samples = [{"hr": np.full((4, 6, 3), number, "u1")} for number in range(COUNT)]
    loader.dataset = PackedDataset(pack(tmp_path / "turned", [turned], [samples]))
    for at, batch in enumerate(loader):
        same(batch, loader.dataset, list(range(8 * at, min(8 * at + 8, COUNT))))


def test_a_loop_may_be_compiled(folder: Path) -> None:
    """In part of its epochs: what it has handed out stays as it is."""
    code = f"""
        import torch
        from readers import Loader, PackedDataset, large
        large.TEAM_BYTES, large.AWAKE_BYTES, large.HUGE_SAMPLE = 1, 0, 1
        loader, kept = Loader(PackedDataset({str(folder)!r}), 8), []

        @torch.compile(backend="eager")
        def compiled():
            for batch in loader:
                kept.append(batch)

        for batch in loader:
            break
        compiled()
        kept += [*loader, *loader]
        for at, batch in enumerate(kept):
            numbers = torch.arange({COUNT})[8 * (at % 7) :][:8]
            assert torch.equal(batch["y"], numbers), at
            assert torch.equal(batch["hr"][:, 0, 0, 0], numbers.to(torch.uint8)), at
        assert len(kept) == 21
    """
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], timeout=100, check=False)
    assert done.returncode == 0


def elsewhere(work: Callable[[], Any]) -> Any:
    """What `work` gives in a thread of its own."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def test_other_threads_read_in_the_usual_way(folder: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A team of threads is the main thread's alone."""
    monkeypatch.setattr(LargeBatches, "_gathered", lambda *_: pytest.fail("a team was asked for"))
    dataset = PackedDataset(folder)
    for at, batch in enumerate(elsewhere(lambda: list(Loader(dataset, 8)))):
        same(batch, dataset, list(range(8 * at, min(8 * at + 8, COUNT))))


def test_a_loop_goes_on_in_another_thread(folder: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the team of the main thread, in the midst of a run."""
    batches = iter(Loader(PackedDataset(folder), 8))
    next(batches)
    next(batches)
    monkeypatch.setattr(LargeBatches, "_timed", lambda *_: pytest.fail("a team was asked for"))
    monkeypatch.setattr(torch, "index_select", lambda *_, **__: pytest.fail("torch was asked to gather"))
    assert elsewhere(lambda: [int(batch["y"][0]) for batch in batches]) == list(range(16, COUNT, 8))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_loop_goes_on_in_a_forked_process(folder: Path, way: str) -> None:
    """Without the threads that stayed in the other one, in the midst of a run and behind it."""
    dataset = PackedDataset(folder)
    batches = iter(Loader(dataset, 8))
    next(batches)
    next(batches)  # the first of a longer run
    child = os.fork()
    if not child:
        status = 1
        try:
            LargeBatches._timed = None  # type: ignore[assignment, method-assign]
            torch.index_select = None  # type: ignore[assignment]
            numbers = [number for batch in batches for number in batch["y"].tolist()]
            again = [number for batch in Loader(dataset, 8) for number in batch["y"].tolist()]
            status = 0 if numbers == list(range(16, COUNT)) and again == list(range(COUNT)) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[bool, bool]]]:
    """What teams were told of: whether several threads were at work, and whether that was a try."""
    noted: list[tuple[bool, bool]] = []
    note = Team.note
    monkeypatch.setattr(large, "TEAM_BYTES", 1)
    monkeypatch.setattr(large, "_TEAMS", Teams())
    monkeypatch.setattr(Team, "note", lambda self, cost: noted.append((self.together, self.is_try)) or note(self, cost))
    return noted


def test_one_batch_of_a_run_is_timed(
    folder: Path, notes: list[tuple[bool, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all of them while the slower way is tried; none where torch has one thread."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(take, "set_own_threads", lambda threads: None)
    loader = Loader(PackedDataset(folder), 1)
    for _ in range(20):
        assert len(list(loader)) == COUNT
    tries = [is_try for _, is_try in notes]
    assert tries[: take.TRY_CALLS] == [True] * take.TRY_CALLS
    # The first run of an epoch is one batch, the other all the rest.
    assert 46 <= len(notes) <= 40 + 10 * take.TRY_CALLS
    assert {together for together, _ in notes} == {True, False}
    notes.clear()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert len(list(loader)) == COUNT
    assert notes == []


def test_fields_of_no_bytes_need_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their columns begin where another ends, at any byte."""
    monkeypatch.setattr(large, "AWAKE_BYTES", 0)  # all by torch
    places = []
    for odd in range(1, 5):
        shapes = {"big": ("u1", (65_539,)), "odd": ("u1", (odd,)), "empty": ("f4", (0, 2))}
        samples = [
            {name: np.full(shape, number, dtype) for name, (dtype, shape) in shapes.items()} for number in range(40)
        ]
        dataset = PackedDataset(convert(samples, tmp_path / str(odd), codec="none").path)
        places += dataset.opened.readers["empty"]._places.span_at.tolist()
        batch = next(iter(Loader(dataset, 20)))
        assert (batch["empty"].shape, batch["empty"].dtype) == ((20, 0, 2), torch.float32)
        assert torch.equal(batch["big"][:, -1], torch.arange(20, dtype=torch.uint8))
        assert torch.equal(batch["odd"], torch.arange(20, dtype=torch.uint8)[:, None].expand(20, odd))
    assert any(place % 4 for place in places)


def test_what_is_prepared_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many batches, and samples, at most; the first batch is a run of its own, for it may come from the disk."""
    monkeypatch.setattr(large, "HUGE_SAMPLE", 1)
    monkeypatch.setattr(large, "RUN_BYTES", 4 * 4 * 130)
    located, cuts = [], []
    prepared = LargeBatches.prepared

    def noting(self: LargeBatches, group: Run) -> list[LargeRun]:
        located.append(sum(group.sizes))
        runs = prepared(self, group)
        cuts.append([run.sizes for run in runs])
        return runs

    monkeypatch.setattr(LargeBatches, "prepared", noting)
    loader = Loader(PackedDataset(folder), 4)
    list(loader)
    assert located == [COUNT]
    assert cuts == [[[4], [4] * 4, [4] * 4, [4] * 4, [1]]]
    for name, value in (("GROUP_SAMPLES", 8), ("GROUP_BATCHES", 2)):
        located.clear()
        with monkeypatch.context() as patch:
            patch.setattr(stream, name, value)
            list(loader)
        assert located == [8] * 6 + [5]
        assert cuts[-1] == [[4], [1]]


def test_cold_runs_are_asked_for_before_they_are_due(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is read the next is on its way, for runs of the usual size."""
    asked: list[int] = []
    run = 4 * 4 * 130
    ahead = run * advice.COLD_BYTES // large.RUN_BYTES
    monkeypatch.setattr(large, "HUGE_SAMPLE", 1)
    for name in ("COLD_BYTES", "FIRST_BYTES"):
        monkeypatch.setattr(advice, name, ahead)
    monkeypatch.setattr(large, "RUN_BYTES", run)
    monkeypatch.setattr(advice.Advisor, "in_memory", lambda *_: False)
    monkeypatch.setattr(advice.Advisor, "is_cold", lambda *_: True)
    monkeypatch.setattr(advice.Advisor, "ask", lambda self, spans: asked.append(len(spans)))
    before = [len(asked) for _ in Loader(PackedDataset(folder), 4)]
    assert before == [1, *[3] * 4, *[4] * 4, *[5] * 5]
    assert asked == [4 * len(FIELDS), *[16 * len(FIELDS)] * 3, len(FIELDS)]


@pytest.mark.parametrize("batch_size", [COUNT + 1, 10**9, sys.maxsize])
def test_a_batch_may_be_of_all_there_is(folder: Path, way: str, batch_size: int) -> None:
    """However many are asked for, memory is taken for as many as there are."""
    dataset = PackedDataset(folder)
    (batch,) = Loader(dataset, batch_size)
    same(batch, dataset, list(range(COUNT)))


def test_memory_of_batches_that_were_held_is_given_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each field the loader keeps that of three batches."""
    monkeypatch.setattr(large, "TEAM_BYTES", 1)
    monkeypatch.setattr(large, "AWAKE_BYTES", 0)
    loader = Loader(PackedDataset(folder), 4)
    held = list(loader)
    kept = loader._pool._buffers.values()
    assert [len(one._kept) for one in kept] == [3] * len(FIELDS)
    assert len(held) > 3
    del held
    for one in kept:
        assert len({one.take()[0].data_ptr() for _ in range(10)}) == 1


def test_labels_are_left_to_numpy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch gathers pictures, too; of others it would have to ask for the interpreter's lock as often."""
    monkeypatch.setattr(large, "TEAM_BYTES", 8 * 72)
    monkeypatch.setattr(large, "AWAKE_BYTES", 8 * 8 + 1)
    gathered = []
    select = torch.index_select
    monkeypatch.setattr(
        torch, "index_select", lambda rows, *rest, **out: gathered.append(rows.shape[1]) or select(rows, *rest, **out)
    )
    dataset = PackedDataset(folder)
    for at, batch in enumerate(Loader(dataset, 8)):
        assert batch["y"].tolist() == list(range(8 * at, min(8 * at + 8, COUNT)))
    assert set(gathered) == {72, 6, 5}  # the elements of a sample


@pytest.mark.parametrize(
    ("field", "batch_size", "expected"),
    [
        ({"shape": (large.HUGE_SAMPLE,)}, 1, True),
        ({"shape": (large.HUGE_SAMPLE - 1,)}, 1, False),
        ({"shape": (1024,)}, take.TEAM_BYTES // 1024, True),
        ({"shape": (1024,)}, take.TEAM_BYTES // 1024 - 1, False),
        ({"shape": (large.HUGE_SAMPLE,), "codec": NAMED["lz4"]}, 100, False),
        ({"shape": (None, large.HUGE_SAMPLE)}, 100, False),
    ],
)
def test_which_batches_are_large(
    tmp_path: Path, pack: Any, monkeypatch: pytest.MonkeyPatch, field: dict[str, Any], batch_size: int, expected: bool
) -> None:
    """Those of a mebibyte, or of samples of 64 KiB, if all fields are uncompressed and of one shape."""
    one = Field(**{"name": "x", "dtype": "uint8", "codec": NAMED["none"], **field})
    sample = np.zeros([n or 1 for n in one.shape], "u1")
    dataset = PackedDataset(pack(tmp_path / "d", [one], [[{"x": sample}]]))
    assert is_large(list(dataset.readers.values()), batch_size) == expected
    monkeypatch.setattr(large, "set_own_threads", None)  # then one of torch's threads cannot be had
    assert not is_large(list(dataset.readers.values()), batch_size)
