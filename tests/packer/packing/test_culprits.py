"""Samples whose reading crashes the process, hangs or takes memory without end: found, named, and skipped if asked."""

from __future__ import annotations

import ctypes
import faulthandler
import itertools
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from hanging import count_hanging_alone, hang
from soaking import start

from packer import workers
from packer.convert import ConvertOptions, convert
from packer.errors import SourceError, UsageError, WriteError
from packer.format import FieldSpec
from packer.packing import open_source
from packer.sources import Source, SourceOptions
from packer.watcher import Watcher
from packer.workers import Limits, call_guarded, run_in_processes
from readers import PackedDataset

BLOCK = 7
COUNT = 100


def crash():
    faulthandler.disable()  # pytest's own, which would fill the screen
    os.kill(os.getpid(), signal.SIGSEGV)


def leave():
    os._exit(3)


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    count_hanging_alone(monkeypatch)


def eat():
    held = []
    while True:
        held.append(np.ones(2**24, np.uint8))


def refuse():
    raise SourceError("is bad", "file-x", 0)


class Traps(Source):
    """Numbers in blocks of seven; reading some of them does harm, by number."""

    kind = "traps"
    names = None
    fields = (FieldSpec(name="i", dtype="int64"),)

    def __init__(self, traps, start=0, stop=COUNT):
        self.traps, self.start, self.stop = traps, start, stop

    def __len__(self):
        return self.stop - self.start

    def shapes(self, field):
        return None

    def slice(self, start, stop):
        return Traps(self.traps, self.start + start, self.start + stop)

    def files(self):
        return [__file__]

    def read(self):
        for first in range(self.start, self.stop, BLOCK):
            last = min(first + BLOCK, self.stop)
            for number in range(first, last):
                if self.traps.get(number) is refuse:
                    if number > first:
                        yield {"i": np.arange(first, number)}
                    raise SourceError("is bad", f"file-{number}", number - self.start)
                self.traps.get(number, int)()
            yield {"i": np.arange(first, last)}


class Named(Traps):
    """The same with names, and two files a sample."""

    @property
    def names(self):
        return [f"n{number}" for number in range(self.start, self.stop)]

    def slice(self, start, stop):
        return Named(self.traps, self.start + start, self.start + stop)

    def files(self):
        return ["a.png", "b.png"]


OPTIONS = ConvertOptions(codec="none", shard_size=4096, workers=2, read_bytes=2**26)


#: One worker: no other one is at a step while a process hangs.
LIMITED = replace(OPTIONS, read_seconds=0.05, workers=1)

ENDS = [(crash, "crashes the process .*SIGSEGV"), (leave, "exit status 3"), (hang, "0.05 s"), (eat, "memory")]


@pytest.mark.parametrize(("harm", "words", "number"), [(*end, 59) for end in ENDS] + [(*ENDS[0], 0), (*ENDS[0], 99)])
def test_the_sample_is_named(tmp_path, harm, words, number):
    """Without --on-error skip the conversion stops with the file, the sample and what it did."""
    with pytest.raises(SourceError, match=f"test_culprits.py: sample {number}: .*{words}"):
        convert(Traps({number: harm}), tmp_path / "out", LIMITED)
    assert not list((tmp_path / "out").rglob("*.partial"))


@pytest.mark.parametrize(("harm", "words"), ENDS)
def test_the_others_are_unharmed(tmp_path, harm, words):
    """With --on-error skip all other samples are packed, and the bad one is listed with its reason."""
    told = []
    report = convert(
        Traps({31: harm}),
        tmp_path / "out",
        LIMITED,
        on_error="skip",
        watcher=Watcher(done=lambda *amount: told.append(amount)),
    )
    assert [bad.file for bad in report.rejected] == [__file__]
    assert report.rejected[0].reason.startswith("sample 31: ")
    assert PackedDataset(tmp_path / "out")[:]["i"].tolist() == [n for n in range(COUNT) if n != 31]
    assert tuple(map(sum, zip(*told, strict=True))) == (99, 99 * 8)


def test_many_bad_samples_of_all_sorts(tmp_path, files_of):
    """Bad samples of every sort, neighbours too, at both ends: the result does not depend on how many workers ran."""
    traps = {0: crash, 1: refuse, 2: leave, 30: refuse, 33: crash, 99: crash}
    for count in (1, 3):
        report = convert(Traps(traps), tmp_path / str(count), OPTIONS, on_error="skip", workers=count)
        assert len(report.rejected) == len(traps)
        assert PackedDataset(report.path)[:]["i"].tolist() == [n for n in range(COUNT) if n not in traps]
    assert files_of(tmp_path / "1") == files_of(tmp_path / "3")


def note(path):
    with path.open("a") as file:
        file.write("x")


def test_a_shard_is_packed_once_more_for_all_its_culprits(tmp_path):
    """After the first, the rest is read one by one: many culprits cost no more passes than two."""
    traps = {0: partial(note, tmp_path / "passes"), **dict.fromkeys((9, 10, 40, 77, 90, 99), crash)}
    report = convert(Traps(traps), tmp_path / "out", OPTIONS, on_error="skip", workers=1)
    assert [bad.reason.partition(":")[0] for bad in report.rejected] == [f"sample {n}" for n in (9, 10, 40, 77, 90, 99)]
    assert report.samples == COUNT - 6
    assert (tmp_path / "passes").read_text() == "xx"


def test_many_bad_samples_take_time_in_proportion(tmp_path, monkeypatch):
    """What is read on after each is a short part of the source, not all the rest of it."""
    lengths = []
    take = Traps.slice

    def counted(source, start, stop):
        lengths.append(stop - start)
        return take(source, start, stop)

    monkeypatch.setattr(Traps, "slice", counted)
    traps = dict.fromkeys(range(0, 20_000, 20), refuse)
    report = convert(Traps(traps, 0, 20_000), tmp_path / "out", OPTIONS, on_error="skip", workers=0)
    assert report.samples == 19_000
    assert sum(lengths) < 10 * 20_000


def test_names_and_files(tmp_path, monkeypatch):
    """A sample of several files is named with all of them, and by its own name."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.png", "b.png"):
        (tmp_path / name).touch()
    with pytest.raises(SourceError, match=r"^a\.png or b\.png: sample 'n77': reading it crashes"):
        convert(Named({77: crash}), tmp_path / "out", OPTIONS)


def test_a_killed_worker_is_no_bad_sample(tmp_path):
    """A process killed from outside while it reads well is not blamed on a sample, though bad ones are skipped."""
    marker = tmp_path / "killed"

    def once():
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WriteError, match=r"crashes the process \(SIGKILL\).*run the same command again"):
        convert(Traps({31: once}), tmp_path / "out", OPTIONS, on_error="skip")
    report = convert(Traps({31: once}), tmp_path / "out", OPTIONS, on_error="skip")
    assert report.samples == COUNT
    assert not report.rejected


def test_choosing_a_codec_survives(tmp_path):
    """`auto` looks at samples before any is packed; those that crash are passed over there too."""
    traps = dict.fromkeys((0, 50, 99), crash)  # where it looks first
    report = convert(Traps(traps), tmp_path / "out", OPTIONS, codec="auto", on_error="skip")
    assert report.samples == COUNT - len(traps)


def test_the_limits_may_change_on_resuming(tmp_path):
    """A limit that was too low is raised, and the conversion goes on where it stopped."""
    with pytest.raises(SourceError, match="raise --read-timeout"):
        convert(Traps({90: hang}), tmp_path / "out", LIMITED)
    slow = Traps({90: lambda: time.sleep(0.1)})
    assert convert(slow, tmp_path / "out", OPTIONS).samples == COUNT


@pytest.mark.parametrize("change", [{"read_seconds": 0}, {"read_bytes": -1}])
def test_limits_are_checked(change):
    """A limit of nothing is refused."""
    with pytest.raises(UsageError, match="--read-"):
        ConvertOptions(**change)


@pytest.fixture
def folder(tmp_path):
    """Three HDF5 files of four rows."""
    folder = tmp_path / "files"
    folder.mkdir()
    for name in "abc":
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["x"] = np.full(4, ord(name))
            file.create_group("g/one")["x"] = np.full(4, ord(name))
    return folder


@pytest.mark.parametrize(
    ("samples", "harm"), [("rows", crash), ("rows", hang), ("rows", eat), ("groups:/g", crash), ("groups:/g", eat)]
)
def test_headers_that_do_harm(folder, tmp_path, monkeypatch, samples, harm):
    """A file whose headers crash the library, hang it or fill the memory is named, or skipped."""

    opened = h5py.File.__init__

    def harmful(file, path, *rest, **more):
        if str(path).endswith("b.h5"):
            harm()
        opened(file, path, *rest, **more)

    monkeypatch.setattr(h5py.File, "__init__", harmful)
    skip = () if samples == "rows" else ("/x",)
    source = SourceOptions(samples=samples, pick={"x": "x"}, skip=skip)
    with pytest.raises(SourceError, match=r"b\.h5: reading it"):
        convert(str(folder / "*.h5"), tmp_path / "out", LIMITED, source=source)
    report = convert(str(folder / "*.h5"), tmp_path / "out", LIMITED, source=source, on_error="skip")
    assert [bad.file[-4:] for bad in report.rejected] == ["b.h5"]
    values = PackedDataset(tmp_path / "out")[:]["x"]
    assert set(np.unique(values.numpy())) == {ord("a"), ord("c")}


def test_memory_that_a_library_takes(tmp_path):
    """Memory is limited for code that does not ask Python for it, and is found out before it is taken."""

    def take(nbytes):
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        libc.malloc.argtypes = [ctypes.c_size_t]
        return libc.malloc(nbytes) is not None

    assert list(call_guarded(take, [2**20, 2**30], Limits(nbytes=2**28))) == [True, False]


def test_each_goes_on_behind_a_death():
    """One process serves all items, another those behind one that it died of; other errors are raised here."""

    def number(item):
        {3: crash, 4: refuse}.get(item, int)()
        return item, os.getpid()

    results = list(call_guarded(number, range(7), Limits()))
    kinds = [type(one).__name__ for one in results]
    assert kinds == ["tuple", "tuple", "tuple", "SourceError", "SourceError", "tuple", "tuple"]
    assert [one[0] for one in results if isinstance(one, tuple)] == [0, 1, 2, 5, 6]
    assert len({one[1] for one in results if isinstance(one, tuple)} - {os.getpid()}) == 2
    with pytest.raises(ZeroDivisionError):
        list(call_guarded(lambda item: 1 // item, [1, 0], Limits()))


def test_headers_of_hdf5_are_read_by_several_processes(tmp_path, monkeypatch):
    """Two files are open at the same time, though libhdf5 has one lock for all threads; samples stay in order."""
    for number in range(65):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"] = np.array([number])
    both, opened = workers.process_context().Barrier(2), h5py.File.__init__

    def meeting(file, path, *rest, **more):
        if str(path).endswith(("/0.h5", "/1.h5")):
            both.wait(100)
        opened(file, path, *rest, **more)

    monkeypatch.setattr(h5py.File, "__init__", meeting)
    source = open_source(tmp_path, ConvertOptions(), [])
    monkeypatch.undo()
    assert [value for block in source.read() for value in np.ravel(block["x"]).tolist()] == list(range(65))


def test_time_that_the_parent_stood_still_counts_little(monkeypatch):
    """Where nobody looked for an hour (Ctrl-Z, a machine asleep), the worker did not read for an hour either."""
    hours = itertools.count(step=3600)
    monkeypatch.setattr(workers, "time", SimpleNamespace(monotonic=lambda: next(hours)))
    assert list(call_guarded(time.sleep, [0.2], Limits(seconds=60))) == [None]


def test_processes_share_the_items():
    """Every item is worked at once, by one of several processes; what they tell comes with the number of the item."""
    both = workers.process_context().Barrier(2)

    def work(item, here):
        here.report(item)
        if item < 2:
            both.wait(100)
        return item * 10, os.getpid()

    told = []
    results = dict(run_in_processes(work, range(6), 2, Limits(), lambda *word: told.append(word)))
    assert {number: value for number, (value, _) in results.items()} == {n: n * 10 for n in range(6)}
    assert len({pid for _, pid in results.values()}) == 2
    assert sorted(told) == [(n, n) for n in range(6)]


def test_a_process_that_is_lost_says_at_which_step():
    """A crash in a step and one between steps are told apart; the other items are done."""

    def work(item, here):
        with here.step(7):
            {1: crash}.get(item, int)()
        if item == 2:
            os._exit(0)

    results = dict(run_in_processes(work, range(4), 1, Limits()))
    assert (results[0], results[3]) == (None, None)
    assert [(results[n].reason, results[n].step) for n in (1, 2)] == [
        ("crashes the process (SIGSEGV)", 7),
        ("crashes the process (exit status 0)", None),
    ]


def is_running(pid):
    """Whether a process is there, and no mere zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere nobody kills it")
def test_a_worker_ends_with_its_parent(tmp_path):
    """A worker that hangs while it reads outlives no converter that was killed: it never comes to see that."""
    told = tmp_path / "told"

    def tell_and_hang():
        partial = told.with_suffix(".partial")
        partial.write_text(f"{os.getpid()}")
        partial.rename(told)
        hang()

    parent = start(lambda: convert(Traps({0: tell_and_hang}), tmp_path / "d", codec="none", workers=1))
    deadline = time.monotonic() + 100
    while not told.exists():
        assert time.monotonic() < deadline, "nothing was read"
        time.sleep(0.01)
    worker = int(told.read_text())
    try:
        assert worker != parent
        assert is_running(worker)
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        deadline = time.monotonic() + 100
        while is_running(worker) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not is_running(worker), "it reads on, and nobody waits for it"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(parent, signal.SIGKILL)
