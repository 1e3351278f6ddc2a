"""Headers are read by several threads where the disk is slow; errors come in the order of the files."""

from __future__ import annotations

import builtins
import io
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

from packer.errors import SourceError
from packer.sources import SourceOptions, open_sources
from packer.threads import ITEMS_AT_ONCE
from packer.watcher import Watcher

COUNT = 2 * ITEMS_AT_ONCE + 40
#: Files that are damaged, of `COUNT` in the order of their names.
BAD = (3, ITEMS_AT_ONCE + 7, 2 * ITEMS_AT_ONCE + 9, COUNT - 1)


def ply(path: Path) -> None:
    path.write_text("ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nend_header\n1\n")


def scan(path: Path) -> None:
    path.write_bytes(bytes(16))


def points(path: Path) -> None:
    path.write_text("1 2 3 4\n")


def npy(path: Path) -> None:
    np.save(path, np.zeros((2, 3), np.float32))


def nifti(path: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(np.zeros((2, 3, 4), np.int16), np.eye(4)), path)


COLUMNS = SourceOptions(columns=("x,y,z,i:float32",))


@pytest.mark.parametrize(
    ("make", "suffix", "options"),
    [
        (ply, ".ply", None),
        (scan, ".bin", COLUMNS),
        (points, ".xyz", COLUMNS),
        (npy, ".npy", SourceOptions(samples="files")),
        (nifti, ".nii", None),
    ],
)
def test_headers_are_read_by_several_threads(
    tmp_path: Path, monkeypatch: Any, make: Callable[[Path], None], suffix: str, options: SourceOptions | None
) -> None:
    """A file that takes long to open does not hold up the others; the errors are those of the files, in their order."""
    make(first := tmp_path.parent / f"{tmp_path.name}{suffix}")
    for number in range(COUNT):
        if number in BAD:
            (tmp_path / f"{number}{suffix}").write_bytes(b"damaged")
        else:
            os.link(first, tmp_path / f"{number}{suffix}")
    threads, errors = set[str](), list[SourceError]()

    def slow(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            threads.add(threading.current_thread().name)
            time.sleep(0.0005)
            return function(*args, **kwargs)

        return call

    for holder, name in ((builtins, "open"), (io, "open"), (nibabel, "load")):
        monkeypatch.setattr(holder, name, slow(getattr(holder, name)))
    source = open_sources([str(tmp_path)], options, Watcher(errors.append))
    assert len(threads) > 2
    assert [Path(error.path or "").name for error in errors] == [f"{number}{suffix}" for number in BAD]
    names = [str(number) for number in range(COUNT) if number not in BAD]
    assert list(source.names or ()) == names
