"""A disk that takes no more: an error, and nothing of the file that was begun."""

from __future__ import annotations

import os
import subprocess
import sys

import h5py
import numpy as np
import pytest

from packer.convert import convert
from packer.errors import WriteError
from packer.export import export
from packer.sources import SourceOptions

#: Exports argv[1] to argv[2] where no file may grow beyond so many bytes, and says what became of it.
LIMITED = """
import resource, signal, sys
from pathlib import Path
from packer.export import export
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for limit in (0, 500, 20_000, 500_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        export(sys.argv[1], sys.argv[2])
    except Exception as error:
        print(type(error).__name__, error)
    print(list(Path(sys.argv[2]).iterdir()))
"""


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """A dataset of rows and one of groups, of 1 MB each."""
    work = tmp_path_factory.mktemp("datasets")
    numbers = np.random.default_rng(0).random((500, 200))
    with h5py.File(work / "rows.h5", "w") as file:
        file["x"] = numbers
        file["t"] = [f"text {n}" for n in range(len(numbers))]
    with h5py.File(work / "groups.h5", "w") as file:
        for n, row in enumerate(numbers):
            file[f"s{n}/x"] = row
            file[f"s{n}"].attrs["n"] = n
    for kind in ("rows", "groups"):
        options = SourceOptions(samples=kind)
        convert(str(work / f"{kind}.h5"), work / kind, workers=0, codec="none", source=options)
    return work


@pytest.mark.skipif(os.name == "nt", reason="there is no limit on the size of files")
@pytest.mark.parametrize("kind", ["rows", "groups"])
def test_a_full_disk_is_an_error(datasets, tmp_path, kind):
    """Wherever in the file it is met: a WriteError that names the file, no crash, and an empty folder."""
    command = [sys.executable, "-c", LIMITED, str(datasets / kind), str(tmp_path / "out")]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    error = f"WriteError {tmp_path / 'out' / kind}.h5.partial: File too large; it cannot be written"
    assert found.stdout.splitlines() == [error, "[]"] * 4


def test_a_file_that_cannot_be_begun(datasets, tmp_path):
    """Something in its place is an error that names it, and stays."""
    (tmp_path / "out" / "rows.h5.partial" / "mine").mkdir(parents=True)
    with pytest.raises(WriteError, match=r"rows\.h5\.partial: Is a directory; it cannot be written"):
        export(datasets / "rows", tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "rows.h5.partial" / "mine").exists()
