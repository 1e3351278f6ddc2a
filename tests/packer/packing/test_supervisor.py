"""Shards packed by foreign executors: reading is guarded there too."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.pool import Pool

import numpy as np
import pytest

from packer.convert import ConvertOptions, convert, open_source
from packer.errors import SourceError, WriteError
from packer.format import manifest as manifests
from packer.format.schema import Field
from packer.format.shard import Shard
from packer.packing.plan import prepare
from packer.packing.supervisor import write_shard_guarded
from packer.packing.tasks import ShardTask
from packer.sources.base import Source
from packer.sources.limits import Limits

#: A module that other interpreters find in a folder of their path.
MODULE = """
import os, signal, time
import numpy as np
from packer.format.schema import FieldSpec
from packer.sources.base import Source

def crash():
    os.kill(os.getpid(), signal.SIGSEGV)

def hang():
    time.sleep(60)

def eat():
    held = []
    while True:
        held.append(np.ones(2**24, np.uint8))

class Trap(Source):
    kind, names, fields = "trap", None, (FieldSpec(name="i", dtype="int64"),)

    def __init__(self, harm, start=0, stop=20):
        self.harm, self.start, self.stop = harm, start, stop

    def __len__(self):
        return self.stop - self.start

    def shapes(self, field):
        return None

    def part(self, start, stop):
        return Trap(self.harm, self.start + start, self.start + stop)

    def files(self):
        return ["some.file"]

    def read(self):
        print("a word of a library")
        for number in range(self.start, self.stop):
            if number == 13 and self.harm:
                globals()[self.harm]()
            yield {"i": np.array([number])}
"""
LIMITS = Limits(60, 2**26)


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A function that makes the task to pack 20 numbers, one of which does harm."""
    (tmp_path / "some_traps.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import some_traps

    (tmp_path / "out/shards").mkdir(parents=True)
    yield lambda harm, **options: task_of(some_traps.Trap(harm), tmp_path / "out", **options)
    del sys.modules["some_traps"]


def task_of(source, folder, **options):
    fields = (Field(name="i", dtype="int64"),)
    return ShardTask(source=source, folder=folder, number=0, fields=fields, map_size=2**20, **options)


def numbers(task):
    """What the shard of a task holds."""
    with Shard(task.path) as shard:
        return np.concatenate(list(shard.column(0, task.fields[0], shard.header().samples).read(0, 19)), None).tolist()


ENDS = [("crash", "crashes the process .*SIGSEGV"), ("hang", r"more than 0\.5 s"), ("eat", "memory")]


@pytest.mark.parametrize(("harm", "words"), ENDS)
def test_harm_is_an_error_in_threads(trap, harm, words):
    """In a pool of threads of this process the sample to blame is named, and the process lives."""
    limits = Limits(0.5 if harm == "hang" else 60, 2**26)
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(write_shard_guarded, trap(harm), limits)
        with pytest.raises(SourceError, match=f"some.file: sample 13: .*{words}"):
            future.result()


def test_the_others_are_unharmed(trap):
    """Where bad samples are left out the shard holds all others, and the report tells which is not there."""
    with ProcessPoolExecutor(1) as executor:
        task = trap("crash", skip=True)
        report = executor.submit(write_shard_guarded, task, LIMITS).result()
    assert [bad.reason[:10] for bad in report.rejected] == ["sample 13:"]
    assert report.entry.samples == 19
    assert numbers(task) == [n for n in range(20) if n != 13]
    assert [path.suffix for path in task.path.parent.iterdir()].count(".partial") == 0


def test_daemons_guard_too(trap):
    """Workers that may have no children of multiprocessing's own, as Dask's, pack their shards guarded as well."""
    with Pool(1) as pool:
        assert pool.apply(is_daemon)
        with pytest.raises(SourceError, match=r"sample 13: .*crashes"):
            pool.apply(write_shard_guarded, (trap("crash"), LIMITS))


def is_daemon():
    return multiprocessing.current_process().daemon


def test_the_same_bytes(tmp_path, pairs):
    """A shard is what it is without a guard, byte for byte."""
    folder = convert(pairs.sources, tmp_path / "d", workers=0).path
    manifest = manifests.read(folder)
    prepared = prepare(open_source(pairs.sources, ConvertOptions(), []), "auto", None)
    (shard,) = prepared.plan.shards
    (tmp_path / "e/shards").mkdir(parents=True)
    task = ShardTask(prepared.source, tmp_path / "e", 0, prepared.plan.fields, shard.map_size, prepared.origin)
    assert write_shard_guarded(task, LIMITS).entry == manifest.shards[0]
    assert task.path.read_bytes() == (folder / manifest.shards[0].file).read_bytes()


class Local(Source):
    """Defined where another interpreter does not find it."""

    kind, names = "local", None
    fields = (Field(name="i", dtype="int64"),)

    def __len__(self):
        return 3

    def shapes(self, field):
        return None

    def part(self, start, stop):
        return self

    def files(self):
        return []

    def read(self):
        yield {"i": np.arange(3)}


@pytest.mark.parametrize("how", ["lambda", "module"])
def test_a_source_that_cannot_travel(tmp_path, trap, caplog, how):
    """It is packed all the same, in the worker's own process, with a warning."""
    source = Local()
    if how == "lambda":
        source.it = lambda: 0
    else:
        sys.path.remove(str(tmp_path))  # of the other interpreter
        source = trap(None).source
    with caplog.at_level(logging.WARNING):
        report = write_shard_guarded(task_of(source, tmp_path / "out"), LIMITS)
    assert report.entry.samples == len(source)
    assert "without limits" in caplog.text


def test_an_interpreter_that_is_killed(tmp_path, trap, monkeypatch):
    """The end of the process that watches is an error, and no hang."""
    monkeypatch.setattr("packer.packing.supervisor._COMMAND", f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})")
    with pytest.raises(WriteError, match=f"exit status -{int(signal.SIGKILL)}"):
        write_shard_guarded(trap(None), LIMITS)
    assert not list((tmp_path / "out/shards").iterdir())
