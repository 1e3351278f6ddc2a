"""Checks and statistics that an array of jobs shares: parts write reports, and one call joins them."""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from packer import stats, verify
from packer.append import append
from packer.convert import convert
from packer.errors import ChangedMeanwhileError, DamagedError, UsageError, WriteError
from packer.format import manifest as manifests
from packer.packing import LocalPlace, utc_now
from packer.repair import repair
from packer.stats import statistics, statistics_part
from packer.verify import verify_part
from packer.watcher import Watcher

SHARDS = 6


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Samples of floats, some of them no numbers, and of whole numbers beyond those of float64, in six shards."""
    rng = np.random.default_rng(3)
    x = rng.normal(1e3, 10, (36, 40, 3)).astype(np.float32)
    x[4, 0, 1], x[35, 1, 2], x[12:16, :, 0] = np.nan, np.inf, np.nan
    samples = [{"x": x[n], "big": np.uint64(2**64 - 36 + n), "word": "a"} for n in range(36)]
    convert(samples, tmp_path / "set", shard_size=10 * 489, codec="none")
    assert len(manifests.read(tmp_path / "set").shards) == SHARDS
    return tmp_path / "set"


@pytest.fixture
def joined(dataset: Path) -> Any:
    """A function that verifies with what parts have reported; returns the report, and the bytes that it read."""

    def join(remove: bool = True) -> tuple[verify.VerifyReport, int]:
        read: list[int] = []
        reports = verify.part_reports(dataset)
        report = verify.verify(dataset, Watcher(done=lambda _, nbytes: read.append(nbytes)), reports=reports)
        if remove:
            reports.remove()
        return report, sum(read)

    return join


def shard(dataset: Path, number: int) -> Path:
    return dataset / manifests.read(dataset).shards[number].file


def flip(path: Path) -> None:
    """Change a byte of a shard."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_parts_and_the_rest_are_the_whole(dataset: Path, joined: Any) -> None:
    """The joining call reads the shards of missing parts alone, says what one call says, and leaves no report."""
    whole = verify.verify(dataset)
    parts = [verify_part(dataset, part) for part in ("3/4", "0/4", "4/4")]
    assert [part.files for part in parts] == [1, 1, 1]
    report, nbytes = joined()
    assert (report.damages, report.bytes, report.frames) == ((), whole.bytes, whole.frames)
    assert nbytes == sum(shard(dataset, number).stat().st_size for number in (0, 1, 4, 5))
    assert (report.parts.parts, sorted(report.parts.results)) == (2, [2, 3])
    assert report.parts.began is not None
    assert report.parts.ended is not None
    assert report.parts.began < report.parts.ended
    assert not (dataset / "unfinished").exists()
    assert joined()[0].parts.parts == 0


def test_a_report_is_of_shards_as_they_were(dataset: Path, joined: Any) -> None:
    """A shard that was written after its part began is read again: damage that came is found, and so is repair."""
    good = shard(dataset, 0).read_bytes()
    flip(shard(dataset, 0))
    assert [dataset / damage.file for damage in verify_part(dataset, "1/6").damages] == [shard(dataset, 0)]
    assert not verify_part(dataset, "2/6").damages
    assert [dataset / damage.file for damage in joined(remove=False)[0].damages] == [shard(dataset, 0)]
    shard(dataset, 0).write_bytes(good)
    flip(shard(dataset, 1))
    report, _ = joined(remove=False)
    assert [dataset / damage.file for damage in report.damages] == [shard(dataset, 1)]
    assert not report.parts.results


def test_a_report_is_believed_for_a_day(dataset: Path, joined: Any, monkeypatch: Any) -> None:
    """An older one is removed, and its shards are read."""
    now = utc_now()
    monkeypatch.setattr("packer.packing.parts.utc_now", lambda: now - timedelta(hours=25))
    verify_part(dataset, "1/2")
    monkeypatch.setattr("packer.packing.parts.utc_now", lambda: now - timedelta(hours=23))
    verify_part(dataset, "2/2")
    monkeypatch.undo()
    assert sorted(joined()[0].parts.results) == [1, 3, 5]
    assert not (dataset / "unfinished").exists()


@pytest.mark.parametrize("number", [SHARDS, -1])
def test_a_report_of_shards_that_are_not_there_is_refused(dataset: Path, joined: Any, number: int) -> None:
    """It is named, in a sentence that says what to do."""
    verify_part(dataset, "1/6")
    (report,) = (dataset / "unfinished").iterdir()
    saved = msgspec.msgpack.decode(report.read_bytes())
    saved["shards"][number] = saved["shards"].pop(0)
    report.write_bytes(msgspec.msgpack.encode(saved))
    with pytest.raises(
        DamagedError, match=f"{report.name}: it speaks of shard {number}, .* has 6, from 0 on.*remove it"
    ):
        joined()


def test_statistics_are_saved_to_the_dataset_that_was_read(dataset: Path) -> None:
    """Another one that has taken its place meanwhile, of the same sizes, gets none."""
    manifest, values = manifests.read(dataset), statistics(dataset)
    samples = [{"x": np.zeros((40, 3), "f4"), "big": np.uint64(n), "word": "a"} for n in range(36)]
    convert(samples, dataset, shard_size=10 * 489, codec="none", overwrite=True)
    with pytest.raises(ChangedMeanwhileError, match="was changed meanwhile"):
        stats.save(dataset, values, manifest)
    assert manifests.read(dataset).stats == {}


def test_the_latest_report_of_a_shard_counts(dataset: Path, joined: Any) -> None:
    """A part that is run again, and parts of other numbers, replace what was said of a shard before."""
    good = shard(dataset, 0).read_bytes()
    flip(shard(dataset, 0))
    assert verify_part(dataset, "1/2").damages
    shard(dataset, 0).write_bytes(good)
    assert not verify_part(dataset, "1/6").damages
    report, _ = joined(remove=False)
    assert (report.damages, report.parts.parts) == ((), 2)
    assert not verify_part(dataset, "1/2").damages
    assert joined()[0].parts.parts == 1


def test_a_shard_that_is_not_there_as_it_was_is_read(dataset: Path, joined: Any) -> None:
    """A report does not stand for a file that is gone, or has another size."""
    verify_part(dataset, "1/1")
    shard(dataset, 2).unlink()
    shard(dataset, 4).write_bytes(b"short")
    report, _ = joined()
    assert [re.split("[;:]", damage.what)[0] for damage in report.damages] == [
        "it is missing",
        "5 bytes, 16,384 expected",
    ]
    assert len(report.parts.results) == SHARDS - 2


@pytest.mark.parametrize("change", ["manifest", "cut", "foreign"])
def test_reports_that_are_none_of_this_dataset(dataset: Path, joined: Any, change: str) -> None:
    """Reports of an earlier manifest, cut short by a power cut, or of another form are ignored, and removed."""
    verify_part(dataset, "1/1")
    (report,) = (dataset / "unfinished").iterdir()
    if change == "manifest":
        data = report.read_bytes()
        stats.save(dataset, statistics(dataset))
        assert not report.exists()
        (dataset / "unfinished").mkdir(exist_ok=True)
        report.write_bytes(data)
    else:
        report.write_bytes(report.read_bytes()[:-9] if change == "cut" else b"\x80")
    found, nbytes = joined()
    assert (found.damages, found.parts.parts) == ((), 0)
    assert nbytes == sum(entry.bytes for entry in manifests.read(dataset).shards)
    assert not (dataset / "unfinished").exists()


@pytest.mark.parametrize("verb", ["repair", "append"])
def test_commands_that_write_remove_reports(dataset: Path, joined: Any, verb: str) -> None:
    """They leave the dataset whole and without reports; the joining call then reads all shards."""
    verify_part(dataset, "1/2")
    statistics_part(dataset, "1/2")
    if verb == "repair":
        assert repair(dataset) == ()
    else:
        append(dataset, [{"x": np.zeros((40, 3), "f4"), "big": np.uint64(1), "word": "b"}])
    assert not (dataset / "unfinished").exists()
    report, nbytes = joined()
    assert (report.damages, report.parts.parts) == ((), 0)
    assert nbytes == sum(entry.bytes for entry in manifests.read(dataset).shards)


def test_reports_hide_nothing(dataset: Path, joined: Any) -> None:
    """A dataset with reports is no unfinished conversion: a stranger is found, and nothing is packed over it."""
    verify_part(dataset, "1/2")
    (dataset / "shards" / "00009.lmdb").write_bytes(b"")
    with pytest.raises(UsageError, match="is a packed dataset already"):
        convert([{"x": np.zeros(3)}], dataset)
    assert [damage.file for damage in joined()[0].damages] == ["shards/00009.lmdb"]


def test_what_cannot_be_removed_is_said(dataset: Path, joined: Any, monkeypatch: Any, caplog: Any) -> None:
    """The result counts more than the reports: a place that nobody may write to is a warning."""

    def refuse(*_: object) -> None:
        raise WriteError("cannot be written")

    verify_part(dataset, "1/2")
    monkeypatch.setattr(LocalPlace, "remove", refuse)
    with caplog.at_level(logging.WARNING, "packer"):
        assert joined()[0].parts.parts == 1
    assert caplog.messages == ["the reports of parts stay: cannot be written"]


@pytest.mark.parametrize("part", ["5/4", "1", "1/0"])
def test_what_is_no_part_is_refused(dataset: Path, part: str) -> None:
    """A part is a number of n parts; nothing is written for another."""
    for verb in (verify_part, statistics_part):
        with pytest.raises(UsageError, match="such as 17/400"):
            verb(dataset, part)
    assert not (dataset / "unfinished").exists()


def test_statistics_of_parts_are_those_of_one_call(dataset: Path) -> None:
    """To the last bit, with values that are no numbers, and whole numbers beyond those of float64."""
    whole = statistics(dataset)
    assert whole["x"].channels[0].nan == 160
    assert whole["big"].all.max == 2**64 - 1
    read: list[int] = []
    for part in ("1/3", "3/3", "9/9"):  # of which the last has no shard
        statistics_part(dataset, part, Watcher(done=lambda samples, _: read.append(samples)))
    assert sum(read) == 24
    read.clear()
    reports = stats.part_reports(dataset)
    assert statistics(dataset, Watcher(done=lambda samples, _: read.append(samples)), reports=reports) == whole
    assert (sum(read), reports.join(manifests.read(dataset)).parts) == (12, 2)
    reports.remove()
    assert not (dataset / "unfinished").exists()


def test_statistics_of_other_fields(dataset: Path) -> None:
    """Parts that read more serve a call for fewer; one for more says what to do. Text alone has no statistics."""
    whole = statistics(dataset)
    statistics_part(dataset, "1/2")
    assert statistics(dataset, fields=["big"], reports=stats.part_reports(dataset)) == {"big": whole["big"]}
    statistics_part(dataset, "1/2", fields=["x"])
    with pytest.raises(UsageError, match="parts have read only x, and not big; give all calls the same --fields"):
        statistics(dataset, reports=stats.part_reports(dataset))
    assert statistics(dataset, fields=["word"]) == {}
