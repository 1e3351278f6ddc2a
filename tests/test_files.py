"""The real files of other programs that tests read: a clone has them all, with their licences, and they stay few."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from real_files import real_files

ROOT = Path(__file__).parent.parent
FILES = ROOT / "tests" / "files"


def test_a_missing_file_is_a_failure() -> None:
    """No test is skipped, or passes over nothing, since a file is not there."""
    with pytest.raises(FileNotFoundError, match=r"files/png_none/\*\*/\*\.png: no such file"):
        real_files("png_odd/**/*.png", "png_none/**/*.png")


def test_no_test_looks_beside_the_repository() -> None:
    """Whatever lies next to a clone, the same tests run."""
    for path in (ROOT / "tests").rglob("*.py"):
        above = len(path.relative_to(ROOT).parts)
        for found in re.finditer(r"\(__file__\)(?:\.resolve\(\))?\.parents\[(\d+)\]", path.read_text()):
            assert int(found[1]) < above, path
        assert "ROOT.parent" not in path.read_text().replace('"ROOT.parent"', ""), path


def test_every_file_has_a_licence() -> None:
    """Each repository has its licence text, and a line of LICENSES.md that counts its files."""
    told = (FILES / "LICENSES.md").read_text()
    held = [path.relative_to(FILES).parts[1] for path in FILES.glob("*/*/**/*") if path.is_file()]
    for repository in set(held):
        assert real_files(f"licences/{repository}.*")
        line = next(line for line in told.splitlines() if line.startswith(f"| {repository.replace('+', '/')} |"))
        assert line.split("|")[4].strip() == str(held.count(repository)), repository


def test_they_stay_few() -> None:
    """A clone is small: 3 MB of such files at most."""
    assert sum(path.stat().st_size for path in FILES.rglob("*") if path.is_file()) < 3_000_000
