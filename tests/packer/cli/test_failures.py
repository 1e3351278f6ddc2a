"""What a command says when it fails or is stopped."""

from __future__ import annotations

import pytest

from packer.cli.main import report
from packer.errors import MissingNameError, SourceError


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (FileNotFoundError(2, "No such file or directory", "a.png"), 1, "a.png: No such file or directory"),
        (MemoryError(), 1, "out of memory"),
        (OSError(12, "Cannot allocate memory"), 1, "out of memory"),
        (ImportError("a.so: failed to map segment from shared object"), 1, "out of memory"),
        (ModuleNotFoundError("No module named 'torch.cuda'", name="torch.cuda"), 2, "installed: pip install torch"),
        (ModuleNotFoundError("No module named 'packer.a'", name="packer.a"), 1, "this should not happen"),
        (RuntimeError("can't start new thread"), 1, "the system starts no more threads"),
        (KeyboardInterrupt(), 130, "stopped"),
        (ValueError("odd"), 1, "ValueError: odd (this should not happen"),
        (SystemExit(143), 143, "stopped"),
        (SystemExit(3), 3, ""),
    ],
)
def test_other_failures_are_one_line(capsys, error, status, text):
    """Whatever comes out of a command is one line on stderr, and an exit status."""
    assert report(error) == status
    shown = capsys.readouterr().err
    assert text in shown
    assert len(shown.splitlines()) == (1 if text else 0)


def test_spaces_in_a_message_stay(capsys):
    """A file name is told as it is; what would move the cursor is told by its escape."""
    report(SourceError("not a PNG", "bild  \u00e4\u202f\x1b[2J\t\r.png"))
    assert capsys.readouterr().err == "packer: error: bild  \u00e4\u202f\\x1b[2J\\t\\r.png: not a PNG\n"


def test_escapes_of_a_file_name_are_shown_in_python_as_well():
    """What an error says can be printed: a file name cannot move the cursor, and is no half of a character."""
    assert str(SourceError("not a PNG\n  at all", "\x1b[2J\udcff.png")) == "\\x1b[2J\\udcff.png: not a PNG\n  at all"
    assert str(MissingNameError("no sample is named '\x9b'")) == "no sample is named '\\x9b'"


def test_listings_have_lines_of_their_own(capsys):
    """A message keeps its lines."""
    report(SourceError("no common axis. It holds:\n  /a  (3,)\n  /b  (4,)", "a.h5"))
    assert capsys.readouterr().err == "packer: error: a.h5: no common axis. It holds:\n  /a  (3,)\n  /b  (4,)\n"
