"""What is not kept next to the samples is said, once, when they are packed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from opened_sources import open_hdf5

from packer.convert import convert
from packer.export import export
from packer.sources import SourceOptions
from packer.sources.arrays import completing as source

Notes = tuple[str, ...]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """Lets a manifest keep the attributes of 5 samples, and not of 500."""
    assert source.MAX_KEPT == 500
    monkeypatch.setattr(source, "MAX_KEPT", 5)
    return 5


def told(work: Path, make: Callable[[h5py.File], None], samples: str = "rows") -> tuple[Notes, Notes]:
    """Notes of the source and of the export of a file that `make` makes."""
    with h5py.File(work / "d.h5", "w") as file:
        make(file)
    notes = open_hdf5(str(work / "d.h5"), samples=samples).remarks
    convert(str(work / "d.h5"), work / "d", workers=0, source=SourceOptions(samples=samples))
    return tuple(notes), export(work / "d", work / "out").notes


def test_attributes_above_the_samples_are_named(tmp_path: Path) -> None:
    """Those of the root and of the groups down to the samples are not kept, and the plan says so."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data/part/a0/x"] = np.arange(3)
        for path in ("/", "data/part"):
            file[path].attrs["of"] = path
    source = open_hdf5(str(tmp_path / "a.h5"), samples="groups:/data/part")
    assert source.remarks == ["attributes of groups above the samples are not kept: /data/part, /"]


@pytest.mark.parametrize("samples", ["rows", "files", "groups"])
def test_many_files_give_a_sentence_for_each_cause(tmp_path: Path, samples: str) -> None:
    """Links, attributes, ranges, chunks and bytes after the end: as many sentences as one file gives, and no more."""
    causes = []
    for count in (1, 9):
        folder = tmp_path / str(count)
        folder.mkdir()
        for number in range(count):
            with h5py.File(folder / f"{number}.h5", "w") as file:
                x = file.create_dataset("g/x", data=np.arange(4.0))
                x.attrs.update({"valid_min": 1, "empty": h5py.Empty("f")})
                file["g/link"] = h5py.SoftLink("/g/x")
                file.create_dataset("g/lacking", (4,), "f4")
            with (folder / f"{number}.h5").open("ab") as more:
                more.write(b"more")
        causes.append([remark.partition(": ")[0] for remark in open_hdf5(str(folder), samples=samples).remarks])
    assert causes[0] == causes[1]
    assert len(set(causes[0])) == 5


def test_many_groups(tmp_path: Path, few: int) -> None:
    """Attributes of so many samples are not kept, which is said."""

    def make(file: h5py.File) -> None:
        for n in range(few + 3):
            file[f"s{n}/x"] = np.arange(3)
            file[f"s{n}"].attrs["n"] = n

    notes, exported = told(tmp_path, make, "groups")
    assert notes == ("more than 5 files or samples have attributes, so none are kept; --attr NAME makes a field",)
    assert not exported


@pytest.mark.parametrize("samples", ["rows", "groups"])
def test_nothing_is_said_where_nothing_is_lost(tmp_path: Path, samples: str) -> None:
    """Samples or files with attributes of their own."""

    def make(file: h5py.File) -> None:
        if samples == "rows":
            file.attrs["a"] = 1
        file["g/x"] = np.arange(3)
        file["g"].attrs["b"] = 2

    assert told(tmp_path, make, samples) == ((), ())
