"""One rule for all kinds of files: what most of them have is what the dataset has; the others are bad files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from plyfile import PlyData, PlyElement

from packer.convert import ConvertOptions, convert
from packer.errors import NothingLeftError, SourceError
from packer.sources import SourceOptions, open_sources
from packer.sources.agreeing import usual
from readers import PackedDataset
from tests.helpers.kinds import write_hdf5
from tests.helpers.picture_files import picture, save


class Kind(NamedTuple):
    """A kind of file: its suffix, what writes one that is as the others or odd, and how the files are packed."""

    suffix: str
    write: Callable[[Path, bool], object]
    options: SourceOptions = SourceOptions()


def write_ply(path: Path, odd: bool) -> None:
    vertex = np.zeros(3, [(axis, "f8" if odd else "f4") for axis in "xyz"])
    PlyData([PlyElement.describe(vertex, "vertex")]).write(str(path))


def write_rows(path: Path, odd: bool) -> None:
    write_hdf5(path, {"x": np.zeros(1, "f8" if odd else "f4")})


def write_group(path: Path, odd: bool) -> None:
    write_hdf5(path, {"demo/x": np.zeros((2, 3), "f4")} | ({"demo/y": np.zeros(2)} if odd else {}))


KINDS = {
    "ply": Kind("ply", write_ply),
    "rows": Kind("h5", write_rows),
    "files": Kind("h5", write_rows, SourceOptions(samples="files")),
    "groups": Kind("h5", write_group, SourceOptions(samples="groups")),
    "npy": Kind(
        "npy", lambda path, odd: np.save(path, np.zeros(3, "f8" if odd else "f4")), SourceOptions(samples="files")
    ),
    "channels": Kind("png", lambda path, odd: save(path, picture(channels=1 if odd else 3))),
    "depth": Kind("png", lambda path, odd: save(path, picture(channels=1).astype("u2" if odd else "u1"))),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("place", [0, 1, 10])
def test_the_odd_one_of_eleven_files_is_the_bad_one(tmp_path, kind, place):
    """It is named, and left out alone if it is asked for, wherever it stands."""
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for number in range(11):
        kind.write(folder / f"{number:02}.{kind.suffix}", number == place)
    with pytest.raises(SourceError, match=rf"^{folder}/{place:02}\.{kind.suffix}: .*\bmost\b"):
        convert(str(folder), out, ConvertOptions(source=kind.options, workers=0))
    report = convert(str(folder), out, ConvertOptions(source=kind.options, workers=0, on_error="skip"))
    assert report.samples == 10
    assert [bad.file for bad in report.rejected] == [f"{folder}/{place:02}.{kind.suffix}"]
    if kind.write is not write_rows or kind.options.samples:  # rows have no names
        stems = {name.partition("/")[0].partition(".")[0] for name in PackedDataset(out).names}
        assert stems == {f"{number:02}" for number in range(11)} - {f"{place:02}"}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_tie_is_called_so(tmp_path, kind):
    """Of two files that differ the second one is bad, and the error says that neither is the kind of most."""
    for number in range(2):
        kind.write(tmp_path / f"{number}.{kind.suffix}", number == 1)
    tie = r"\(a tie, 1 of either kind, of which the first is taken\)"
    with pytest.raises(SourceError, match=rf"^{tmp_path}/1\..*{tie}"):
        open_sources([str(tmp_path)], kind.options)


@pytest.mark.parametrize("suffix", ["ply", "h5", "png", "nii"])
def test_where_all_are_bad_the_first_is_named(tmp_path, suffix):
    """With its reason, and how many there are, for every kind of files."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.{suffix}").write_bytes(b"nothing of the kind")
    with pytest.raises(NothingLeftError, match=rf"; 3 are bad, the first: {folder}/0\.{suffix}: \w+ .*"):
        convert(str(folder), tmp_path / "out", workers=0, on_error="skip")


def test_the_first_of_equally_many_kinds_is_usual():
    """So a set of two files has the kind of its first."""
    assert [usual("ab"), usual("abb"), usual("baab")] == ["a", "b", "b"]


ARCHIVE = Kind("npz", lambda path, odd: np.savez(path, x=np.zeros(999, "f8" if odd else "f4")), KINDS["npy"].options)


@pytest.mark.parametrize(
    "kind", [KINDS["channels"], KINDS["ply"], KINDS["npy"], ARCHIVE], ids=["channels", "ply", "npy", "npz"]
)
def test_files_that_cannot_be_read_are_no_kind_of_most(tmp_path, kind):
    """Of three files that are damaged behind their headers and a good one of another kind, the good one is packed."""
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for number in range(4):
        path = folder / f"{number}.{kind.suffix}"
        kind.write(path, number == 2)
        if number != 2:
            data = path.read_bytes()
            path.write_bytes(data[:999] + b"!" + data[1000:] if kind is ARCHIVE else data[: -len(data) // 4])
    report = convert(str(folder), out, ConvertOptions(source=kind.options, workers=0, on_error="skip"))
    assert list(PackedDataset(out).names) == ["2"]
    assert not [bad.reason for bad in report.rejected if "most" in bad.reason]
    assert len(report.rejected) == 3
