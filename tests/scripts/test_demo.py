"""The first program that a new user runs."""

from __future__ import annotations

from pathlib import Path

import demo
import pytest
from benchmark.measuring import Rounds

#: What scripts/setup and scripts/make_data.py print before it, the first time.
LINES_BEFORE = 6


def test_it_fits_a_screen(demo_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints 24 lines of 100 columns at most, of which the last two are what a user types next."""
    short = [job for job in demo.JOBS if job.name in ("digits", "volumes")]
    missing = len(demo.JOBS) - len(short)
    monkeypatch.setattr(demo, "JOBS", short)
    monkeypatch.setattr(demo, "ROUNDS", Rounds(least=1, most=1, seconds=0.01))
    assert demo.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) + missing + LINES_BEFORE <= 24
    assert max(map(len, lines)) <= 100
    assert all(line.startswith("  .venv/bin/") for line in lines[-2:])
