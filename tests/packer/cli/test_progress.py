"""Progress: a bar on a terminal, lines in a log, nothing with --quiet, and never a thread."""

from __future__ import annotations

import io
import logging
import sys
import threading
from types import SimpleNamespace

import pytest

from packer.cli import logs, progress
from packer.cli.progress import BarProgress, LineProgress, Progress


@pytest.fixture(autouse=True)
def usual_logs():
    """Logging as the command line has it; put back afterwards."""
    logger = logging.getLogger("packer")
    before = logger.handlers, logger.level
    logs.set_up("usual")
    yield
    logger.handlers, _ = before[0], logger.setLevel(before[1])


@pytest.fixture
def clock(monkeypatch):
    """The clock of the module, a number that the test moves on."""
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now.seconds)
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


def prepared(samples):
    return SimpleNamespace(plan=SimpleNamespace(samples=samples))


def test_lines_come_every_few_seconds(clock, capsys):
    """Samples, share, rate and time left, counting neither time nor rate of an earlier run."""
    lines = LineProgress()
    lines.begin(prepared(1000))
    lines.resume(200, 10**9)
    for _ in range(10):
        clock.seconds += 1
        lines.advance(10, 10**6)
    shown = capsys.readouterr().err.splitlines()
    assert shown == [
        "packer: 250 of 1,000 samples (25%), 1.00 MB/s, 1:15 min left",
        "packer: 300 of 1,000 samples (30%), 1.00 MB/s, 1:10 min left",
    ]


def test_the_bar_is_drawn_without_a_thread(clock, terminal):
    """It is drawn from the calls themselves, ten times a second at most, and taken away at the end."""
    screen = terminal()
    threads = threading.active_count()
    with progress.progress() as bar:
        assert isinstance(bar, BarProgress)
        bar.begin(prepared(1000))
        bar.resume(200, 10**6)
        assert threading.active_count() == threads
        for _ in range(100):
            clock.seconds += 0.01
            bar.advance(3, 10**6)
    text = screen.getvalue()
    assert "50%" in text
    assert "100 MB/s" in text
    assert 8 <= text.count("MB/s") <= 12
    assert text.endswith("\x1b[2K")  # the line is blank again


def test_no_colour_where_none_is_wanted(clock, terminal, monkeypatch):
    """NO_COLOR is respected."""
    screen = terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    with progress.progress() as bar:
        bar.begin(prepared(10))
        clock.seconds += 1
        bar.advance(5, 1)
    assert "50%" in screen.getvalue()
    assert not any(f"\x1b[{code}" in screen.getvalue() for code in ("3", "9", "38"))


def test_what_suits_stderr(terminal, monkeypatch):
    """A bar on a terminal, lines on one that cannot draw and in a log, nothing with --quiet."""
    screen = terminal()
    monkeypatch.setenv("TERM", "dumb")
    assert type(progress.progress()) is LineProgress
    monkeypatch.setenv("TERM", "xterm")
    screen.isatty = lambda: False
    assert type(progress.progress()) is LineProgress
    logs.set_up("quiet")
    assert type(progress.progress()) is Progress


def test_lines_of_bytes(clock, capsys):
    """Where bytes are what is counted, they stand in the line, and the share is theirs."""
    lines = LineProgress("checking", "bytes")
    lines.start(10**7)
    for _ in range(5):
        clock.seconds += 1
        lines.advance(0, 10**6)
    assert capsys.readouterr().err == "packer: 5.00 MB of 10.0 MB (50%), 1.00 MB/s, 5.0 s left\n"


def test_a_bar_of_bytes(clock, terminal):
    """The bar says what is being done, and its share is that of the bytes."""
    screen = terminal()
    with progress.progress("checking", "bytes") as bar:
        bar.start(10**7)
        clock.seconds += 1
        bar.advance(0, 4 * 10**6)
    assert "checking" in screen.getvalue()
    assert "40%" in screen.getvalue()
