"""The benchmark measures what it says, and tells of what falls short."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmark import against, command
from benchmark.measuring import (
    ROWS,
    Figures,
    Rounds,
    Row,
    Side,
    WrongContentError,
    checksum,
    disk_bytes,
    epochs,
    race,
    warm,
)
from benchmark.store import Bench

from packer.warm import drop_files

SCRIPTS = Path(__file__).parents[2] / "scripts"
TINY = 1 / 250
ONCE = Rounds(least=1, most=1, seconds=0)


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """On the disk: rows are read cold."""
    return on_disk


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """One that measures once."""
    return Bench(tmp_path, ONCE, TINY)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that tests move themselves: its one number is the time."""
    now = [0.0]
    monkeypatch.setattr("benchmark.measuring.time.perf_counter", lambda: now[0])
    return now


def _side(name: str, now: list[float], seconds: list[float], log: list[str]) -> Side:
    steps = iter(seconds)

    def run() -> int:
        log.append(name)
        now[0] += next(steps)
        return 10

    return Side(name, run)


def test_sides_take_turns_and_ratios_are_paired(clock: list[float]) -> None:
    """A B B A ..., and the value is the median of the ratios within a round, not the ratio of the medians."""
    log: list[str] = []
    ours = _side("ours", clock, [1.0, 10.0, 2.0], log)
    theirs = _side("theirs", clock, [3.0, 20.0, 8.0], log)
    figures = race(Rounds(least=3, most=3), ours, theirs)
    assert log == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert figures.rounds == (3.0, 2.0, 4.0)
    assert figures.value == 3.0
    assert figures.ours == 5.0


def test_ours_is_compared_with_the_best_of_theirs(clock: list[float]) -> None:
    """Of several others the fastest counts, and a note names it."""
    sides = [_side(name, clock, [seconds] * 2, []) for name, seconds in (("slow", 9.0), ("fast", 2.0))]
    figures = race(Rounds(least=2, most=2), _side("ours", clock, [1.0] * 2, []), *sides)
    assert figures.value == 2.0
    assert figures.notes == ("best: fast",)


def test_rounds_go_on_until_enough_time_has_gone_by() -> None:
    """At least the least, at most the most, and the seconds in between."""
    rounds = Rounds(least=5, most=9, seconds=2.0)
    assert not rounds.enough(4, 100.0)
    assert not rounds.enough(5, 1.9)
    assert rounds.enough(5, 2.0)
    assert rounds.enough(9, 0.0)


def test_wrong_content_is_an_error() -> None:
    """A side whose epoch does not sum up to the source's is not measured."""
    batches = [torch.ones(3, dtype=torch.uint8)]
    right, wrong = (epochs("side", lambda: batches, 3, expected) for expected in (3, 4))
    race(ONCE, right, right)
    with pytest.raises(WrongContentError, match="sums up to 3, the source to 4"):
        race(ONCE, right, wrong)


def test_checksum_depends_on_values_alone() -> None:
    """Neither the order of samples, nor the cut into batches, nor the layout of images changes it; a bit does."""
    images = torch.randint(0, 256, (6, 4, 4, 3), dtype=torch.uint8)
    expected = checksum(images.numpy())
    assert checksum({"a": images.flip(0)[:2], "b": [images.flip(0)[2:]]}) == expected
    assert checksum(images.permute(0, 3, 1, 2)) == expected
    images[3, 1, 2, 0] ^= 1
    assert checksum(images) != expected
    assert checksum(torch.tensor([1.0])) == int(np.float32(1.0).view(np.int32))


def test_dropped_files_are_cold_and_read_files_warm(tmp_path: Path) -> None:
    """What was dropped is not in memory, reading it counts as read from disk, and then it is."""
    path = tmp_path / "file"
    path.write_bytes(bytes(2**20))
    drop_files([path])
    before = disk_bytes()
    warm([path])
    if disk_bytes() == before:
        pytest.skip("this file system keeps files in memory")
    assert disk_bytes() - before >= 2**20
    before = disk_bytes()
    warm([path])
    assert disk_bytes() == before


@pytest.fixture(autouse=True)
def _no_rows_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that tests make are not among those of the benchmark."""
    monkeypatch.setattr("benchmark.measuring.ROWS", [])


def _row(**target: Any) -> Row:
    row = Row("rows", "RAM", **target)
    row(lambda bench: Figures(1.0, (1.0,)))
    return row


def test_targets_have_two_directions() -> None:
    """At least for ratios, at most for times and memory."""
    floor, ceiling = _row(at_least=2.0), _row(at_most=100.0, unit="ms")
    assert (floor.met(2.1), floor.met(1.9)) == (True, False)
    assert (ceiling.met(90), ceiling.met(110)) == (True, False)


def test_lines_show_target_and_shortfall() -> None:
    """The target stands next to the result, and a row that falls short says so."""
    one = _row(at_least=2.0)
    assert re.search(r"1\.50 x +>= 2  FALLS SHORT  \(a note\)$", command.line(one, Figures(1.5, notes=("a note",))))
    assert "FALLS SHORT" not in command.line(one, Figures(2.5))
    assert command.summary([(one, Figures(2.5))]) == "the row meets its target"
    assert command.summary([(one, Figures(1.5)), (one, Figures(2.5))]) == "1 of 2 rows fall short:\n  rows | RAM"


def test_rows_are_chosen_by_parts_of_their_titles() -> None:
    """`--only` takes any part of a row's name or of what it is compared with, in any case."""
    assert {r.name for r in command.chosen(["PLY"])} >= {r.name for r in ROWS if "text PLY" in r.name}
    assert command.chosen(["no such row"]) == []
    assert [r for r in ROWS if r not in command.chosen([])] == command.chosen(["growth", "machines"]) != []
    assert len({r.title for r in ROWS}) == len(ROWS)


def test_all_rows_are_listed() -> None:
    """A process of its own knows every row: the command loads the modules that hold them."""
    code = "import sys; from benchmark.command import main; sys.exit(main(['--list']))"
    done = subprocess.run([sys.executable, "-c", code], cwd=SCRIPTS, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [r.title for r in ROWS]
    assert len(ROWS) > 30


def test_inputs_are_made_once(bench: Bench) -> None:
    """What is there is used again; an interrupted one is not taken for whole."""
    calls: list[Path] = []

    def make(path: Path, _: Bench) -> None:
        calls.append(path)
        path.write_text("x")

    (bench.folder / f"partial@x{TINY:g}-make").mkdir()
    assert bench.files(make) == bench.files(make)
    assert len(calls) == 1
    assert bench.files(make).read_text() == "x"


@pytest.mark.parametrize(
    "title",
    ["batch 100, shuffled, Loader | the limit", "clouds, none", "opening 10,000,000", "photo+lz4, Loader | decoding"],
)
def test_a_row_end_to_end(bench: Bench, title: str) -> None:
    """Inputs are made, both sides give the source's content, and there is a figure."""
    (one,) = command.chosen([title])
    assert one.figures(bench).value > 0


def test_a_cluster_that_is_not_installed_falls_short(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row says what is missing, and does not count as one that meets its target."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (row,) = command.chosen(["Ray for 100 shards"])
    line = command.line(row, row.figures(bench))
    assert line.endswith("FALLS SHORT  (ray is not installed)")


def test_command_writes_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command prints the table, writes what was asked for, also for a row that falls short."""
    monkeypatch.setattr(command, "ROWS", [_row(at_least=2.0)])
    monkeypatch.setattr(command, "_memcpy_rate", lambda: 1e9)
    assert command.main(["--data", str(tmp_path / "data"), "--json", str(tmp_path / "a.json")]) == 0
    [result] = json.loads((tmp_path / "a.json").read_text())
    assert (result["name"], result["value"], result["limit"], result["met"]) == ("rows", 1.0, 2.0, False)


def test_a_commit_is_measured_next_to_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both versions convert and read the same; the table has both rates, and the exit status says which is slower."""
    monkeypatch.setattr(command, "QUICK", (ONCE, TINY))
    monkeypatch.setattr(command, "ROUNDS", ONCE)
    monkeypatch.setattr(against, "LEAST", 0.0)
    rows = ["rows, none", "append pairs", "open 100", "cold"]
    arguments = ["--against", "HEAD", "--data", str(tmp_path), *(word for row in rows for word in ("--only", row))]
    assert command.main(arguments) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"row +[0-9a-f]{8}/s +new/s +ratio", header)
    assert [next(title for title in against.ROWS if line.startswith(title)) for line in lines] == [
        title for title in against.ROWS if any(row in title for row in rows)
    ]
    assert all(re.search(r" [\d,]+ +[\d,]+ +\d+\.\d\d$", line) for line in lines)


def test_a_row_that_is_slower_than_the_commit_is_looked_at_twice(clock: list[float]) -> None:
    """The second look takes three times as many rounds; the fastest third of the rounds of a look counts."""
    once = Rounds(least=1, most=1)
    old = _side("old", clock, [1.0] * 4, [])
    assert against.look_twice(once, _side("new", clock, [2.0, 4.0, 1.0, 5.0], []), old) == (10.0, 10.0)
    old = _side("old", clock, [2.0], [])
    assert against.look_twice(once, _side("new", clock, [1.0], []), old) == (10.0, 5.0)


def test_what_is_wrong_is_said_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row that there is not, a file that cannot be written, a folder that is in use: a line on stderr."""
    monkeypatch.setattr(command, "measure", lambda *_: pytest.fail("it measured"))
    (tmp_path / "file").touch()
    for arguments, words in [
        (["--only", "no such row"], "no row has 'no such row' in its title; --list"),
        (["--against", "no-such-commit", "--data", str(tmp_path / "other")], "has no such commit"),
        (["--against", "HEAD", "--only", "no such row", "--data", str(tmp_path / "other")], "there are: rows, none"),
        (["--json", str(tmp_path / "none" / "a.json")], "no folder"),
        (["--data", str(tmp_path / "file" / "data")], "cannot be written"),
        (["--data", str(tmp_path / "data")], "in use by another run"),
    ]:
        with Bench(tmp_path / "data", ONCE).alone():
            assert command.main(arguments) in (1, 2)
        said = capsys.readouterr()
        assert (said.out, len(said.err.splitlines())) == ("", 1)
        assert words in said.err


def test_the_way_of_handling_frames_is_said(way: str) -> None:
    """By machine code, which is loaded before anything is measured; or one by one, and why."""
    words = {"by_machine": "by loops in machine code", "one_by_one": "one by one: not in this test"}
    assert words[way] in command.frames_by()


def test_a_run_removes_what_rows_wrote(bench: Bench) -> None:
    """That of a run that was killed too; all else stays."""
    bench.scratch("killed").write_text("x")
    (bench.folder / "input").touch()
    with bench.alone():
        assert not (bench.folder / "scratch").exists()
        bench.scratch("new").write_text("x")
    assert not (bench.folder / "scratch").exists()
    assert (bench.folder / "input").exists()
