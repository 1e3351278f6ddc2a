"""Samples behind those of a dataset: what fits, what readers see, and what a kill leaves."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import shutil

import h5py
import msgspec
import numpy as np
import pytest
from broken import cut, stopped_at
from made_datasets import put_manifest, written
from opened_sources import source_of

from packer import stats
from packer.append import append
from packer.checking import compare
from packer.convert import convert
from packer.errors import DatasetError, SourceError, UsageError
from packer.format import manifest as manifests
from packer.merge import merge
from packer.packing import Change, LocalPlace, RunFiles, changing
from packer.repack import repack
from packer.repair import repair
from packer.split import split
from packer.verify import verify
from packer.watcher import PACKING, Watcher
from packer.writer import DatasetWriter
from readers import PackedDataset
from tests.survival.test_second_reader import same_as_ours


def test_samples_come_behind_those_before(two, contents):
    """Old and new samples are read by name and number, and nothing is damaged or left over."""
    a, b = two
    before, more = contents(a)[1], contents(b)[1]
    shards = manifests.read(a).shards
    report = append(a, b, workers=0)
    assert (report.added, report.manifest.samples) == (5, 14)
    assert list(contents(a)[1].items()) == list((before | more).items())
    assert report.manifest.shards[: len(shards)] == shards
    assert not verify(a).damages
    assert [p.name for p in a.parent.iterdir() if p.name.startswith(".")] == []


def test_pictures_of_one_size_fit_where_sizes_differ(tmp_path, new_pairs, contents):
    """What is ragged in the dataset may have one shape in the source; codec and frames are the dataset's."""
    p, q, r = (new_pairs(tmp_path / name, 3, height, 5, name) for name, height in (("p", 6), ("q", 8), ("r", 10)))
    shutil.copytree(q.folder, p.folder, dirs_exist_ok=True)
    convert(p.sources, tmp_path / "d", workers=0, codec="zstd")
    convert(r.sources, tmp_path / "e", workers=0)
    fields = manifests.read(tmp_path / "d").fields
    before = contents(tmp_path / "d")[1]
    report = append(tmp_path / "d", r.sources, workers=0)
    assert report.manifest.fields == fields
    assert contents(tmp_path / "d")[1] == before | contents(tmp_path / "e")[1]
    assert not verify(tmp_path / "d").damages


def test_samples_made_in_python_are_appended(tmp_path):
    """A sequence of dicts goes behind a dataset without names; what does not fit is named."""
    convert([{"x": np.arange(3.0)}] * 4, tmp_path / "d")
    assert append(tmp_path / "d", [{"x": np.ones(3)}]).manifest.samples == 5
    assert PackedDataset(tmp_path / "d")[4]["x"].tolist() == [1, 1, 1]
    with pytest.raises(Exception, match=r"field 'x' is float64 \(4,\), float64 \(3\) is expected"):
        append(tmp_path / "d", [{"x": np.ones(4)}])
    assert len(PackedDataset(tmp_path / "d")) == 5


def test_a_file_of_another_name_is_told_to_be_named(tmp_path):
    """A field that only its name keeps out is given by FIELD=FILE, as the message says."""
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.arange(6).reshape(2, 3))
    convert(tmp_path / "a.npy", tmp_path / "d", workers=0)
    with pytest.raises(UsageError, match=r"field a \(.*\) is missing; .*; if b is a, .* as in `a=b\.npy`"):
        append(tmp_path / "d", tmp_path / "b.npy", workers=0)
    assert append(tmp_path / "d", f"a={tmp_path}/b.npy", workers=0).manifest.samples == 4


@pytest.mark.parametrize(
    ("lr", "words"),
    [
        ({"lr": np.zeros((6, 5, 3), "u1"), "y": 1}, r"field y \(one int64\) is not in the others"),
        ({"lr": np.zeros((6, 5, 3), "f4")}, r"lr is array float32 \[6, 5, 3\], not image uint8 \[6, 5, 3\]"),
        ({"lr": np.zeros((6, 5, 3), "u1")}, r"lr is array uint8 \[6, 5, 3\], not image uint8 \[6, 5, 3\]"),
        ({"lr": np.zeros((8, 9, 3), "u1")}, r"lr is array uint8 \[8, 9, 3\], not image uint8 \[6, 5, 3\]"),
    ],
)
def test_another_schema_is_refused(tmp_path, pairs, lr, words):
    """The difference is named, arrays are no pictures, and the dataset is as it was."""
    convert(pairs.sources, tmp_path / "d", workers=0)
    with DatasetWriter(tmp_path / "other") as writer:
        writer.add({"hr": np.zeros((12, 10, 3), "u1"), **lr}, name="new")
    before = manifests.read(tmp_path / "d")
    with pytest.raises(UsageError, match=rf"does not fit the dataset.*{words}"):
        append(tmp_path / "d", tmp_path / "other", workers=0)
    assert manifests.read(tmp_path / "d") == before


def test_names_stay_unique(two):
    """A name that is there already is told before anything is packed."""
    a, b = two
    append(a, b, workers=0)
    before = sorted(p.name for p in a.rglob("*"))
    with pytest.raises(UsageError, match="has a sample named 'b0', which is there already"):
        append(a, b, workers=0)
    assert sorted(p.name for p in a.rglob("*")) == before


def test_options_without_meaning_are_refused(two):
    """The codec is the dataset's: asking for another one is a mistake."""
    with pytest.raises(UsageError, match="append takes no codec"):
        append(two[0], two[1], codec="zstd")
    with pytest.raises(DatasetError, match="does not exist"):
        append(two[0].parent / "none", two[1])
    with pytest.raises(UsageError, match="lies within the source"):
        append(two[0], two[0])


def test_open_readers_go_on_with_what_they_had(two):
    """A dataset opened before reads its samples and names behind two appends... one of which it saw none of."""
    a, b = two
    opened, late = PackedDataset(a), PackedDataset(a)
    first = opened["a3"]["x"].tolist()
    append(a, b, workers=0)
    assert len(opened) == len(late) == 9
    assert opened["a3"]["x"].tolist() == late["a3"]["x"].tolist() == first
    assert "b0" not in opened.names
    assert "b0" in PackedDataset(a).names


def test_old_tables_of_names_go_with_the_next_append(tmp_path, two):
    """Those in use are kept, and those that were in use before: here 14 and 2 names, and 1 of the 2."""
    a, b = two
    append(a, b, workers=0)
    append(a, written(tmp_path / "c", "c", 1), workers=0)
    append(a, written(tmp_path / "d", "d", 1), workers=0)
    assert [table.samples for table in manifests.read(a).name_tables] == [14, 2]
    assert len(list(a.glob("names*.lmdb"))) == 3
    assert not verify(a).damages
    assert convert([{"x": np.zeros(2)}], a, overwrite=True).samples == 1


def test_two_at_once_are_refused(two):
    """The second call is told so, and harms nothing."""
    with changing(LocalPlace(two[0])), pytest.raises(UsageError, match="being changed already"):
        append(two[0], two[1])
    assert append(two[0], two[1], workers=0).added == 5


def test_one_behind_another_loses_nothing(tmp_path, two, contents, monkeypatch):
    """A call that came to the lock after another was done goes on from what that one published."""
    a, b = two
    c = written(tmp_path / "c", "c", 4)
    expected = contents(a)[1] | contents(c)[1] | contents(b)[1]
    lock = LocalPlace.lock

    def late(place):
        monkeypatch.setattr(LocalPlace, "lock", lock)
        append(a, c, workers=0)
        return lock(place)

    monkeypatch.setattr(LocalPlace, "lock", late)
    append(a, b, workers=0)
    assert contents(a)[1] == expected
    assert not verify(a).damages


def test_a_dataset_that_changed_meanwhile_is_left_alone(two, contents):
    """Where somebody gave it another manifest while samples were packed, nothing is taken in, and nothing is lost."""
    a, b = two
    other = msgspec.structs.replace(manifests.read(a), tool="another")
    with pytest.raises(UsageError, match="a was changed meanwhile, by another command"):
        append(a, b, workers=0, watcher=Watcher(done=lambda *_: put_manifest(a, other)))
    assert manifests.read(a) == other
    assert not verify(a).damages
    assert append(a, b, workers=0).manifest.samples == 14


@pytest.mark.parametrize(("owner", "moment"), [(LocalPlace, "prepare"), (RunFiles, "reports")])
def test_without_locks_what_was_replaced_meanwhile_is_said(two, contents, monkeypatch, owner, moment):
    """Another process puts a new dataset there and removes all files of this run, whatever it is at: it says so."""
    a, b = two
    c = written(a.parent / "c", "c", 4)
    monkeypatch.setattr(LocalPlace, "lock", lambda place: contextlib.nullcontext(False))
    method = getattr(owner, moment)

    def replace_then(*arguments):
        monkeypatch.setattr(owner, moment, method)
        result = method(*arguments)
        repack(c, a, overwrite=True, workers=0)
        return result

    monkeypatch.setattr(owner, moment, replace_then)
    with pytest.raises(UsageError, match="a was changed meanwhile, by another command") as caught:
        append(a, b, workers=0)
    assert contents(a) == contents(c)
    assert not verify(a).damages
    assert bool(list(a.glob("unfinished/*"))) == ("goes on after the shard" in str(caught.value))


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_without_locks_one_of_two_is_told(two, contents, monkeypatch, caplog, error):
    """On a file system without locks both may pack; the look before the rename decides, and nothing is mixed."""
    a, b = two

    def refuse(*_):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr("fcntl.flock", refuse)
    c = written(a.parent / "c", "c", 4)
    expected = contents(a)[1] | contents(c)[1]
    begin = Change.begin

    def begin_second(change, *arguments):
        monkeypatch.setattr(Change, "begin", begin)
        append(a, c, workers=0)
        begin(change, *arguments)

    monkeypatch.setattr(Change, "begin", begin_second)
    with pytest.raises(UsageError, match="a was changed meanwhile"):
        append(a, b, workers=0)
    assert "has no locks" in caplog.text
    assert contents(a)[1] == expected
    assert not verify(a).damages
    assert list(contents(append(a, b, workers=0).path)[1]) == [*expected, *contents(b)[1]]
    assert not list(a.glob("unfinished/*"))


def test_a_copied_lock_stops_nobody(two):
    """The file of a lock that a killed job, or a copy, left is no lock."""
    (two[0] / ".lock").write_text("held by somebody")
    assert append(two[0], two[1], workers=0).added == 5


def test_lost_statistics_are_told(two, caplog):
    """They do not cover the new samples."""
    stats.save(two[0], stats.statistics(two[0]))
    assert append(two[0], two[1], workers=0).manifest.stats == {}
    assert "statistics, which are of other samples or values, are dropped" in caplog.text


def killed_at(name, a, b, owner=Change, **options):
    """Appends in another process, which dies where it calls this method of `owner`."""

    def run():
        assert callable(getattr(owner, name))
        setattr(owner, name, lambda *args, **kwargs: os._exit(9))
        append(a, b, workers=0, **options)

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    child.join()
    assert child.exitcode == 9


#: Where the new manifest stands, and nothing is tidied up yet.
TIDYING = "tidy"


def test_other_files_are_no_job_to_go_on_with(tmp_path, clouds, contents):
    """Killed while it tidied up, a call is not taken for the next one of as many samples, but for itself."""
    for folder in ("first", "other"):
        (tmp_path / folder).mkdir()
        shutil.copy(clouds.folder / "c3.ply", tmp_path / folder / f"{folder}.ply")
    convert(str(clouds.folder), tmp_path / "d", workers=0)
    before = list(contents(tmp_path / "d")[1])
    killed_at(TIDYING, tmp_path / "d", str(tmp_path / "first"))
    assert append(tmp_path / "d", str(tmp_path / "other"), workers=0).added == 1
    assert list(contents(tmp_path / "d")[1]) == [*before, "first", "other"]
    (tmp_path / "first" / "first.ply").rename(tmp_path / "first" / "third.ply")
    killed_at(TIDYING, tmp_path / "d", str(tmp_path / "first"))
    assert append(tmp_path / "d", str(tmp_path / "first"), workers=0).added == 1
    assert list(contents(tmp_path / "d")[1]) == [*before, "first", "other", "third"]


def test_names_are_compared_after_a_kill(tmp_path, two):
    """A call that was killed while it tidied up left its note, which vouches for no other samples."""
    killed_at(TIDYING, two[0], two[1])
    with pytest.raises(UsageError, match="has a sample named 'a0', which is there already"):
        append(two[0], written(tmp_path / "again", "a", 3), workers=0)


def test_samples_in_memory_are_compared(tmp_path):
    """Killed while it tidied up, a call with the same samples adds nothing, one with others adds them."""
    convert([{"x": np.zeros(3)}] * 4, tmp_path / "d")
    ones, twos = [{"x": np.ones(3)}] * 2, [{"x": np.full(3, 2.0)}] * 2
    killed_at(TIDYING, tmp_path / "d", ones)
    assert append(tmp_path / "d", ones).manifest.samples == 6
    killed_at(TIDYING, tmp_path / "d", ones)
    assert append(tmp_path / "d", twos).manifest.samples == 10
    assert PackedDataset(tmp_path / "d")[list(range(10))]["x"][:, 0].tolist() == [0] * 4 + [1] * 4 + [2] * 2


def rows_file(path):
    """An HDF5 file of three rows, whose samples have no names."""
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(6.0).reshape(3, 2)
    return str(path)


@pytest.mark.parametrize(("owner", "step"), [(RunFiles, "write_list"), (Change, "publish")])
def test_the_same_rows_a_second_time_are_not_taken_for_those_that_are_there(tmp_path, owner, step):
    """Killed before its manifest stands, an append of rows that the dataset ends with is done by the next call."""
    source = rows_file(tmp_path / "rows.h5")
    convert(source, tmp_path / "d", workers=0)
    killed_at(step, tmp_path / "d", source, owner)
    report = append(tmp_path / "d", source, workers=0)
    assert (report.added, report.manifest.samples, len(PackedDataset(tmp_path / "d"))) == (3, 6, 6)


def test_equal_rows_of_another_file_are_added(tmp_path):
    """The call that follows a kill is told from another one by its files, even if these hold the same rows."""
    convert(rows_file(tmp_path / "rows.h5"), tmp_path / "d", workers=0)
    killed_at(TIDYING, tmp_path / "d", rows_file(tmp_path / "first.h5"))
    assert append(tmp_path / "d", rows_file(tmp_path / "second.h5"), workers=0).manifest.samples == 9


def test_the_same_call_adds_nothing_twice_until_the_user_was_told(tmp_path):
    """Killed once its manifest stands, up to the instant at which it has told: the call again says the same."""
    source = rows_file(tmp_path / "rows.h5")
    convert(source, tmp_path / "d", workers=0)
    killed_at(TIDYING, tmp_path / "d", source)
    told = []

    def stop(report):
        told.append((report.added, report.manifest.samples))
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            append(tmp_path / "d", source, workers=0, done=stop)
    assert append(tmp_path / "d", source, workers=0, done=lambda report: told.append(report.added)).added == 3
    assert told == [(3, 6), (3, 6), 3]
    assert append(tmp_path / "d", source, workers=0).manifest.samples == 9


def test_what_is_finished_is_kept_when_bad_samples_are_to_be_skipped(tmp_path, new_pairs):
    """Stopped by a bad picture, appending goes on without it where it was."""
    convert(new_pairs(tmp_path / "held", 4, 6, 5).sources, tmp_path / "d", workers=0)
    more = new_pairs(tmp_path / "more", 40, 6, 5, "more-")
    cut(more.folder / "hr" / "more-030.png")
    options = {"workers": 0, "shard_size": 4096}
    with pytest.raises(SourceError):
        append(tmp_path / "d", more.sources, **options)
    steps = {}
    watcher = Watcher(step=lambda name, done, total: steps.update({name: (done, total)}))
    append(tmp_path / "d", more.sources, **options, on_error="skip", watcher=watcher)
    done, total = steps[PACKING]
    assert 0 < done < total == 40
    assert len(PackedDataset(tmp_path / "d")) == 4 + 39


def test_few_names_behind_many_get_a_table_of_their_own(tmp_path, contents):
    """Tables that are there stay as they are; each is twice as large as the next; all names are found, and unique."""
    d = written(tmp_path / "d", "d", 60, width=6)
    first = manifests.read(d).names
    expected, sizes = contents(d)[1], []
    for number, count in enumerate((3, 1, 4, 20)):
        more = written(tmp_path / f"m{number}", f"m{number}-", count, width=6)
        expected |= contents(more)[1]
        held = manifests.read(append(d, more, workers=0).path)
        sizes.append([table.samples for table in held.name_tables])
        assert len(list(d.glob("names-*"))) >= len(sizes[-1])
        with pytest.raises(UsageError, match=f"has a sample named 'm{number}-0', which is there already"):
            append(d, more, workers=0)
    assert sizes == [[60, 3], [60, 3, 1], [60, 8], [60, 28]]
    assert held.names == first
    assert not verify(d).damages
    same_as_ours(d)
    dataset = PackedDataset(d)
    assert list(dataset.names) == list(contents(d)[1]) == list(expected)
    assert dataset[["m3-7", "d5", "m0-2"]]["y"].tolist() == [7, 5, 2]
    with pytest.raises(KeyError, match="'none'"):
        dataset["none"]
    with pytest.raises(UsageError, match="has a sample named 'd0', which is there already"):
        append(d, written(tmp_path / "again", "d", 9, width=6), workers=0)
    assert append(d, written(tmp_path / "x", "x", 70, width=6), workers=0).manifest.more_names == ()


def test_tables_of_names_are_checked_repaired_and_joined(tmp_path):
    """Damage of each is found; `repair` and `repack` make one table of all."""
    d = written(tmp_path / "d", "d", 30, width=6)
    append(d, written(tmp_path / "more", "m", 2, width=6), workers=0)
    tables = manifests.read(d).name_tables
    names = list(PackedDataset(d).names)
    repack(d, tmp_path / "one", workers=0)
    merged = merge([d, written(tmp_path / "other", "o", 2, width=6)], tmp_path / "both")
    assert manifests.read(tmp_path / "one").more_names == merged.more_names == ()
    assert list(PackedDataset(tmp_path / "one").names) == names == list(PackedDataset(tmp_path / "both").names)[:32]
    for table in tables:
        shutil.copytree(d, tmp_path / "damaged")
        cut(tmp_path / "damaged" / table.file)
        assert [damage.file for damage in verify(tmp_path / "damaged").damages] == [table.file]
        assert repair(tmp_path / "damaged") == (table.file,)
        assert not verify(tmp_path / "damaged").damages
        assert list(PackedDataset(tmp_path / "damaged").names) == names
        shutil.rmtree(tmp_path / "damaged")


def test_shards_come_in_the_order_of_the_manifest(tmp_path):
    """Their files may be named in any order: shard 100,000 stands before shard 99,999 in an alphabet."""
    source, dataset = tmp_path / "x.npy", tmp_path / "d"
    np.save(source, np.arange(30_000).reshape(30, 1000))
    convert(source, dataset, workers=0, shard_size=64_000, codec="none")
    held = manifests.read(dataset)
    assert len(held.shards) > 3
    renamed = []
    for number, entry in enumerate(held.shards, 99_998):
        file = f"shards/0123abcd-{number:05d}.lmdb"
        (dataset / entry.file).rename(dataset / file)
        renamed.append(msgspec.structs.replace(entry, file=file))
    assert [entry.file for entry in renamed] != sorted(entry.file for entry in renamed)
    put_manifest(dataset, msgspec.structs.replace(held, shards=tuple(renamed)))
    assert not verify(dataset).damages
    assert compare(dataset, source_of([str(source)])).damages == []
    append(dataset, source, workers=0)
    repack(dataset, tmp_path / "r", workers=0)
    for folder in (dataset, tmp_path / "r"):
        assert PackedDataset(folder)[:]["x"][:, 0].tolist() == [1000 * (n % 30) for n in range(60)]


def test_another_verb_does_not_forget_what_was_added(tmp_path):
    """Killed once its manifest is there, then another verb, then the same command again: nothing is added twice."""
    for name, start in (("old", 0), ("new", 10)):
        np.save(tmp_path / f"{name}.npy", np.arange(start, start + 3.0))
    convert({"x": str(tmp_path / "old.npy")}, tmp_path / "d", workers=0)
    stopped_at(lambda: append(tmp_path / "d", {"x": str(tmp_path / "new.npy")}, workers=0), Change, "tidy")
    split(tmp_path / "d", {"a": 0.5})
    append(tmp_path / "d", {"x": str(tmp_path / "new.npy")}, workers=0)
    assert PackedDataset(tmp_path / "d").column("x").tolist() == [0, 1, 2, 10, 11, 12]
    assert manifests.read(tmp_path / "d").splits
