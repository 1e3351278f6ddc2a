"""The fixture in tests/conftest.py that fails tests which leave something open."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = Path(__file__).resolve().parent.parent / "conftest.py"

SUITE = """
import threading, time
import pytest

kept = []

def test_clean(tmp_path):
    with (tmp_path / "a").open("w"):
        thread = threading.Thread(target=time.sleep, args=(0.05,))
        thread.start()

def test_leaves_a_file(tmp_path):
    kept.append((tmp_path / "leaked_file").open("w"))

def test_leaves_a_thread():
    kept.append(threading.Thread(target=time.sleep, args=(4,), name="leaked_thread", daemon=True))
    kept[-1].start()

@pytest.mark.keeps_open
def test_may_keep_a_file(tmp_path):
    kept.append((tmp_path / "allowed").open("w"))
"""


def test_what_is_left_open_fails_its_test(pytester: pytest.Pytester) -> None:
    """Files and threads left behind are an error that names them; what ends within the grace is not."""
    pytester.makeconftest(CONFTEST.read_text(encoding="utf-8").replace("_GRACE = 60.0", "_GRACE = 0.3"))
    pytester.makeini("[pytest]\nmarkers = keeps_open")
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=4, errors=2)
    result.stdout.fnmatch_lines(["*left behind by this test: file */leaked_file*"])
    result.stdout.fnmatch_lines(["*left behind by this test: thread leaked_thread*"])
    result.stdout.no_fnmatch_line("*left behind*allowed*")
