"""A kind of files is one record: of another package, of files that hold many samples, or whose rows are the samples."""

from __future__ import annotations

import os
import subprocess
import sys
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opened_sources import read_each

from packer.convert import convert
from packer.errors import SourceError, UsageError
from packer.sources import Block, Header, Kind, LaidField, Row, SourceOptions, all_kinds, kinds, open_sources
from packer.sources.kinds import suffixes
from packer.watcher import Watcher
from readers import PackedDataset

EXAMPLE = Path(__file__).parents[3] / "scripts" / "examples" / "wav"


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Kind], None]]:
    """Adds a kind, as the entry point of a package does."""

    class Point:
        def __init__(self, kind: Kind) -> None:
            self.load = lambda: kind

    def forget() -> None:
        kinds._others.cache_clear()
        kinds._other_suffixes.cache_clear()

    def add(kind: Kind) -> None:
        monkeypatch.setattr(
            "importlib.metadata.entry_points", lambda group: [Point(kind)] if group == "packer.kinds" else []
        )
        forget()

    yield add
    monkeypatch.undo()
    forget()


def sound(path: Path, frames: int, channels: int = 2) -> np.ndarray:
    """Write a WAV file."""
    values = np.random.default_rng(frames).integers(-99, 99, (frames, channels)).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, 2, 8000, 0, "NONE", ""))
        file.writeframes(values.tobytes())
    return values


def test_a_package_of_its_own_adds_a_kind(tmp_path: Path) -> None:
    """The example is installed, and its files are packed, in a process that knows nothing else of it."""
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--quiet"]
    copy = tmp_path / "wav"
    copy.mkdir()
    for file in EXAMPLE.iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    subprocess.run([*command, "--target", str(site), str(copy)], check=True, timeout=120)
    (tmp_path / "in").mkdir()
    sounds = [sound(tmp_path / "in" / f"{name}.wav", frames) for name, frames in (("a", 7), ("b", 5))]
    packer = [sys.executable, "-m", "packer.cli.main", "convert", str(tmp_path / "in"), str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path])}
    code = "import sys; from packer.cli.main import run; sys.argv[0] = 'packer'; run()"
    done = subprocess.run(
        [sys.executable, "-c", code, *packer[3:], "--workers", "1"], env=environment, capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    dataset = PackedDataset(tmp_path / "out")
    assert list(dataset.names) == ["a", "b"]
    for expected, found in zip(sounds, (dataset[0]["audio"], dataset[1]["audio"]), strict=True):
        assert np.array_equal(found, expected)


def test_what_is_known_of_a_kind_before_it_is_imported_is_what_its_record_says(
    added: Callable[[Kind], None],
) -> None:
    """The suffixes of each are those by which its files are found; a package cannot take one of ours, or a name."""
    assert suffixes() == {suffix: kind.name for kind in all_kinds().values() for suffix in kind.suffixes}
    assert [*all_kinds()] == [kind.name for kind in all_kinds().values()]
    for kind in (Kind("images", (".ours",)), Kind("other", (".other", ".png"))):
        added(kind)
        with pytest.raises(UsageError, match=r"adds the kind of files (images|other) .*, but (images|\.png) is one of"):
            suffixes()[".wav"]


def members(row: Row, options: SourceOptions) -> list[Header | SourceError]:
    """Look at a file of lines `NAME VALUES`: each is a sample, some bytes of it."""
    found: list[Header | SourceError] = []
    at = 0
    for line in Path(row.path).read_text().splitlines(keepends=True):
        name, *values = line.split()
        if values == ["bad"]:
            found.append(SourceError(f"{name} is bad", row.path))
        else:
            layout = (LaidField("x", "int64", ("x.length",), "int64"),)
            found.append(Header(layout, {"x.length": len(values)}, name, (at, len(line))))
        at += len(line)
    return found


def read_member(row: Row, options: SourceOptions) -> dict[str, Any]:
    (offset, size) = row.spans[""][0].tolist()
    data = Path(row.path).read_bytes()[offset : offset + size]
    assert data.startswith(row.root.encode())
    return {"x": np.array(list(map(int, data.split()[1:])), np.int64)}


def test_a_file_that_holds_many_samples(tmp_path: Path, added: Callable[[Kind], None]) -> None:
    """Each is some bytes of it, with a name of its own; bad ones are left out alone; parts and choices read theirs."""
    added(Kind("lines", (".lines",), members, read_member, names_fields=True))
    (tmp_path / "1.lines").write_text("a 1 2\nb bad\nc 3\n")
    (tmp_path / "2.lines").write_text("a 4 5 6\n")
    errors: list[SourceError] = []
    source: Any = open_sources([str(tmp_path)], watcher=Watcher(errors.append))
    assert [error.reason for error in errors] == ["b is bad"]
    assert source.names == ["1/a", "1/c", "2/a"]
    assert source.shapes("x").tolist() == [[2], [1], [3]]
    assert [x.tolist() for x in read_each(source.slice(1, 3))["x"]] == [[3], [4, 5, 6]]
    assert [x.tolist() for x in read_each(source.in_order([2, 0]))["x"]] == [[4, 5, 6], [1, 2]]
    assert source.slice(2, 3).files() == [str(tmp_path / "2.lines")]


def look_at_rows(row: Row, options: SourceOptions) -> Header:
    values = np.load(row.path)
    return Header((LaidField("x", str(values.dtype), values.shape[1:], str(values.dtype)),), rows=len(values))


def read_rows(row: Row, start: int, stop: int, options: SourceOptions) -> Iterator[Block]:
    values = np.load(row.path)
    for first in range(start, stop, 2):
        block = values[first : min(stop, first + 2)]
        if (block < 0).any():
            raise SourceError("is below 0", sample=int(np.argmax(block < 0)))
        yield {"x": block}


def test_a_file_whose_rows_are_the_samples(tmp_path: Path, added: Callable[[Kind], None]) -> None:
    """Rows of several files follow one another, empty files among them; a bad row has its number."""
    added(Kind("rows", (".rows",), look_at_rows, read_rows=read_rows, names_fields=True, units=("rows",)))
    rows = np.arange(12)
    for number, part in enumerate(np.split(rows, [3, 3, 10])):
        with (tmp_path / f"{number}.rows").open("wb") as file:
            np.save(file, part)
    source: Any = open_sources([str(tmp_path)])
    assert (len(source), source.names) == (12, None)
    for start, stop in ((0, 12), (2, 11), (3, 10), (4, 5), (5, 5)):
        assert np.array([*read_each(source.slice(start, stop))["x"]]).tolist() == rows[start:stop].tolist()
    assert np.array(read_each(source.in_order([11, 3, 4, 5, 0]))["x"]).tolist() == [11, 3, 4, 5, 0]
    assert source.slice(4, 9).slice(1, 3).files() == [str(tmp_path / "2.rows")]
    rows[8] = -1
    with (tmp_path / "2.rows").open("wb") as file:
        np.save(file, rows[3:10])
    with pytest.raises(SourceError, match=r"2\.rows: is below 0") as caught:
        list(source.slice(2, 12).read())
    assert caught.value.sample == 6
    report = convert(f"{tmp_path}/*.rows", tmp_path / "out", on_error="skip", workers=0)
    assert (report.samples, len(report.rejected)) == (11, 1)
    files = [(f"{number}.rows", count) for number, count in enumerate((3, 0, 7, 2))]
    kept = {"kind": "rows", "files": [{"name": name, "samples": count} for name, count in files]}
    assert report.manifest.origin == kept
