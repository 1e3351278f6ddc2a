"""What files hold behind their end, of every kind whose format knows where that is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from packer.errors import SourceError
from packer.sources import SourceOptions, open_sources
from packer.sources.looking import AFTER_END
from tests.helpers.kinds import KINDS

MORE = b"\0" * 24 + b"something"


def photographs(folder: Path, number: int) -> list[str]:
    for n in range(3):
        Image.new("RGB", (8, 6), (n, 9, 30)).save(folder / f"{n}.jpg")
    return [str(folder)]


@pytest.mark.parametrize("name", ["rows", "groups", "PLY", "clouds of PCL", "LAS and LAZ", "tars", "photographs"])
def test_bytes_after_the_end_of_files_are_one_remark(tmp_path: Path, name: str) -> None:
    """It names the files and counts the bytes; samples are the same."""
    write: Callable[[Path, int], list[str]] = photographs if name == "photographs" else KINDS[name].write
    source, first = write(tmp_path, 3), min(path for path in tmp_path.rglob("*") if path.suffix not in ("", ".laz"))
    options = SourceOptions(samples="groups") if name == "groups" else None
    before = open_sources(source, options)
    with first.open("ab") as file:
        file.write(MORE)
    after = open_sources(source, options)
    (remark,) = set(after.remarks) - set(before.remarks)
    padding = 4096 if name == "tars" else 0  # of the blocks of a tar, which are nothing unless something follows
    assert remark == f"{AFTER_END}: {first.name} ({len(MORE) + padding:,} bytes)"
    assert (after.names, len(after)) == (before.names, len(before))


@pytest.mark.parametrize("name", ["npy files", "npy episodes", "pictures", "optical flow", "rows of Parquet"])
def test_files_that_must_end_where_their_format_says(tmp_path: Path, name: str) -> None:
    """They are refused: what follows may be values that were not meant to be cut off."""
    source, first = KINDS[name].write(tmp_path, 3), min(path for path in tmp_path.rglob("*") if path.is_file())
    with first.open("ab") as file:
        file.write(MORE)
    with pytest.raises(SourceError, match=first.name):
        for _ in open_sources(source).read():
            pass
