"""Progress: a line that is drawn on a terminal, lines in a log, nothing with --quiet, and never a thread."""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
from types import SimpleNamespace

import fsspec
import pytest

from packer.cli import logs
from packer.cli.logs import Progress
from packer.convert import convert


@pytest.fixture(autouse=True)
def usual_logs(logger):
    """Logging as the command line has it."""
    logs.set_up(logging.INFO)


@pytest.fixture
def clock(monkeypatch):
    """The clock of the module, a number that the test moves on."""
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(logs.time, "monotonic", lambda: now.seconds)
    return now


@pytest.fixture
def terminal(monkeypatch):
    """A function that puts a terminal, which holds what is written, in the place of stderr.

    A function, because pytest puts its own stderr back after the fixtures.
    """

    def put():
        stream = io.StringIO()
        stream.isatty = lambda: True
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("TERM", "xterm-256color")
        return stream

    return put


def test_lines_come_once_a_minute(clock, capsys):
    """Samples, share, rate and time left, counting neither time nor rate of an earlier run."""
    with Progress() as watcher:
        watcher.step("packing", 200, 1000)
        for _ in range(10):
            clock.seconds += 12
            watcher.done(10, 12 * 10**6)
    shown = capsys.readouterr().err.splitlines()
    assert shown == [
        "packer: packing: 250 of 1,000 samples (25%), 1.00 MB/s, 15:00 min left",
        "packer: packing: 300 of 1,000 samples (30%), 1.00 MB/s, 14:00 min left",
    ]


def test_a_line_is_drawn_without_a_thread(clock, terminal):
    """It is drawn from the calls themselves, ten times a second at most after half a second, and erased at the end."""
    screen = terminal()
    threads = threading.active_count()
    with Progress() as watcher:
        watcher.step("packing", 200, 1000)
        assert threading.active_count() == threads
        for _ in range(150):
            clock.seconds += 0.01
            watcher.done(2, 10**6)
    text = screen.getvalue()
    assert "packer: packing: 500 of 1,000 samples (50%), 100 MB/s, 2.5 s left" in text
    assert 8 <= text.count("MB/s") <= 12
    assert text.endswith("\r\x1b[2K")  # the line is blank again


def test_what_suits_stderr(terminal, clock, monkeypatch):
    """A drawn line on a terminal, lines on one that cannot draw, nothing with --quiet."""

    def shown():
        screen = terminal()
        monkeypatch.setenv("TERM", term)
        with Progress() as watcher:
            watcher.step("comparing", 0, 100)
            clock.seconds += 60
            watcher.done(50, 0)
        return screen.getvalue()

    line = "packer: comparing: 50 of 100 samples (50%), 1:00 min left"
    term = "dumb"
    assert shown() == f"{line}\n"
    term = "xterm"
    monkeypatch.setenv("COLUMNS", "100")
    assert shown() == f"\r\x1b[2K{line}\r\x1b[2K"
    monkeypatch.setenv("COLUMNS", "20")
    assert shown() == "\r\x1b[2Kpacker: comparin...\r\x1b[2K"
    logs.set_up(logging.WARNING)
    assert shown() == ""


def test_lines_of_bytes(clock, capsys):
    """If bytes are counted, they stand in the line, and the share is theirs."""
    with Progress() as watcher:
        watcher.step("checking", 0, 10**7)
        for _ in range(5):
            clock.seconds += 12
            watcher.done(0, 10**6)
    assert capsys.readouterr().err == "packer: checking: 5.00 MB of 10.0 MB (50%), 83.3 kB/s, 1:00 min left\n"


def test_planning_is_told_of_in_a_log(clock, capsys):
    """Once a minute: what is done, how far it is, and how long it will take, or nothing if it is soon over."""
    with Progress() as watcher:
        watcher.step("finding files", 40_000, None)
        clock.seconds += 60
        watcher.step("finding files", 50_000, None)
        for done in range(0, 9000, 1000):
            watcher.step("reading headers", done, 50_000)
            clock.seconds += 12
        watcher.step("packing", 0, 50_000)
    assert capsys.readouterr().err.splitlines() == [
        "packer: finding files: 50,000 so far",
        "packer: reading headers: 5,000 of 50,000 (10%), 9:00 min left",
    ]


def test_a_log_line_takes_the_drawn_one_away_first(clock, terminal):
    """A warning in the middle of the work has a line of its own, and the progress is drawn again below it."""
    screen = terminal()
    with Progress() as watcher:
        watcher.step("packing", 0, 10)
        clock.seconds += 1
        watcher.done(2, 10)
        logging.getLogger("packer.x").warning("careful")
        clock.seconds += 1
        watcher.done(4, 10)
    before, _, after = screen.getvalue().partition("packer: warning: careful\n")
    assert before.endswith("\r\x1b[2K")  # the line was blank
    assert "60%" in after


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["plan", "rows.h5"], "looking at samples: "),
        (["convert", "rows.h5", "new"], "reading headers: 1 of 1"),
        (["verify", "one"], r"checking: [\d.]+ kB of"),
        (["verify", "one", "--against", "rows.h5"], "comparing: "),
        (["export", "one", "out"], "exporting: "),
        (["merge", "one", "two", "out"], "merging: "),
        (["repack", "one", "out", "--workers", "0"], "packing: "),
        (["append", "one", "rows.h5", "--workers", "0"], "packing: "),
        (["stats", "one"], "reading: "),
        (["warm", "one"], r"warming: [\d.]+ kB of"),
        (["show", "one", "-o", "page.html"], "drawing: "),
        (["codecs", "rows.h5"], "trying codecs on fields: "),
    ],
)
def test_every_long_command_says_how_far_it_is(packer, rows, monkeypatch, tmp_path, command, said):
    """A log has lines of all that takes long, in one manner."""
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        packer("convert", "rows.h5", name, "-q", "--workers", 0)
    monkeypatch.setattr(logs, "_LINE", 0.0)
    monkeypatch.setattr(logs, "_SHORT", 0.0)
    monkeypatch.setattr("packer.cli.codecs._SECONDS", 0.0)
    result = packer(*command)
    assert re.search(f"packer: {said}", result.stderr)
    assert "(100%)" in result.stderr


@pytest.mark.parametrize("command", ["verify", "warm"])
def test_commands_show_what_they_fetch(packer, rows, tmp_path, monkeypatch, command):
    """`verify` and `warm` of a URL say how much of it has come, in bytes."""
    folder = convert(rows.sources, tmp_path / "set", workers=0).path
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fsspec.filesystem("memory").put(str(folder), f"/to-{command}", recursive=True)
    monkeypatch.setattr(logs, "_LINE", 0.0)
    monkeypatch.setattr(logs, "_SHORT", 0.0)
    result = packer(command, f"memory://to-{command}")
    assert "kB (100%)" in next(line for line in result.stderr.splitlines() if "fetching: " in line)
