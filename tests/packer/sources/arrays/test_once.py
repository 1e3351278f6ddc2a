"""--once: what is the same for every sample is kept once, as constants of the dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from hdf5_files import flip, write_hdf5
from opened_sources import open_hdf5

from packer.append import append
from packer.cli import main
from packer.convert import convert
from packer.errors import DamagedError, DatasetError, SourceError, UsageError
from packer.export import export
from packer.merge import merge
from packer.repair import repair
from packer.sources import SourceOptions
from packer.verify import verify
from readers import PackedDataset

X, T = np.linspace(0, 1, 7), np.arange(5, dtype=">f4")
#: Groups of PDEBench, with the grid in each and the same once more in the file.
IN_UNITS: dict[str, Any] = {"samples": "groups", "once": ("grid",)}


def pdebench(path: Path, start: int = 0) -> Path:
    """`0000/data` and the grid beside it in every group."""
    with h5py.File(path, "w") as file:
        for n in range(start, start + 4):
            file[f"{n:04d}/data"] = np.full((5 + n % 2, 7), n, np.float32)
            file[f"{n:04d}/grid/x"] = X
            file[f"{n:04d}/grid/t"] = T
    return path


def packed(source: Path, out: Path, **options: Any) -> PackedDataset:
    convert(str(source), out, workers=0, source=SourceOptions(**options))
    return PackedDataset(out)


def assert_kept(dataset: PackedDataset) -> None:
    assert set(dataset.constants) == {"grid.x", "grid.t"}
    assert np.array_equal(dataset.constants["grid.x"].numpy(), X)
    assert np.array_equal(dataset.constants["grid.t"].numpy(), T.astype("<f4"))


def test_grids_of_every_group_are_kept_once(tmp_path: Path) -> None:
    """They are no fields, and tensors of the dataset; a name that is none is a KeyError."""
    dataset = packed(pdebench(tmp_path / "a.h5"), tmp_path / "out", **IN_UNITS)
    assert list(dataset.fields) == ["data"]
    assert_kept(dataset)
    with pytest.raises(KeyError):
        dataset.constants["grid.y"]
    dataset.constants["grid.x"][0] = 9  # the caller's own
    assert_kept(dataset)


def test_grids_beside_the_groups_and_rows_are_kept_once(tmp_path: Path) -> None:
    """A dataset outside of the units is one too; of rows it is any that the samples do not share."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for n in range(3):
            file[f"runs/{n}/data"] = np.full((n + 1, 7), n)
        file["grid/x"], file["grid/t"] = X, T
    with pytest.raises(SourceError, match="/grid belongs to no sample"):
        packed(path, tmp_path / "out", samples="groups:/runs/*")
    assert_kept(packed(path, tmp_path / "out", samples="groups:/runs/*", once=("/grid",)))
    write_hdf5(path, {"tensor": np.zeros((3, 5, 7)), "grid/x": X, "grid/t": T})
    rows = packed(path, tmp_path / "rows", once=("grid",))
    assert (len(rows), list(rows.fields)) == (3, ["tensor"])
    assert_kept(rows)


@pytest.mark.parametrize("unit", ["groups", "files"])
def test_what_differs_is_named(tmp_path: Path, unit: str) -> None:
    """A group or file whose grid is another, or is missing, is named; so is a path that nothing has."""
    (tmp_path / "in").mkdir()
    if unit == "files":
        for n in range(2):
            write_hdf5(tmp_path / f"in/{n}.h5", {"data": np.zeros(n + 1), "grid/x": X})
    else:
        pdebench(tmp_path / "in/1.h5")
    source = str(tmp_path / "in")
    with pytest.raises(UsageError, match="--once nope: there is no such array"):
        open_hdf5(source, samples=unit, once=("grid", "nope"))
    with pytest.raises(UsageError, match="--field or --once: '/' is not the path of an array"):
        open_hdf5(source, samples=unit, once=("/",))
    with h5py.File(tmp_path / "in/1.h5", "r+") as file:
        (file if unit == "files" else file["0001"])["grid/x"][3] += 1
    with pytest.raises(
        SourceError, match=r"grid\.x differs between (group /0000 of 1\.h5 and group /0001 of |0\.h5 and )1\.h5,"
    ):
        open_hdf5(source, samples=unit, once=("grid",))
    with h5py.File(tmp_path / "in/1.h5", "r+") as file:
        del (file if unit == "files" else file["0001"])["grid/x"]
    with pytest.raises(
        SourceError, match=r"grid\.x is not in both of (group /0000 of 1\.h5 and group /0001 of |0\.h5 and )1\.h5,"
    ):
        open_hdf5(source, samples=unit, once=("grid",))


def test_an_export_writes_constants_where_they_were(tmp_path: Path) -> None:
    """Names with dots and single values too; files of other kinds cannot hold them, which is said."""
    path = tmp_path / "a.h5"
    write_hdf5(path, {"image": np.zeros((3, 5, 7), "u1"), "grid/x.y": X, "t": 0.5, "on": np.array([True])})
    once = ("grid/x.y", "/t", "on")
    packed(path, tmp_path / "out", once=once, images=("image",))
    report = export(tmp_path / "out", tmp_path / "back")
    assert not report.notes
    with h5py.File(tmp_path / "back/a.h5") as file:
        assert np.array_equal(file["grid/x.y"], X)
        assert (file["t"][()], file["on"][()].tolist()) == (0.5, [True])
    again = packed(tmp_path / "back/a.h5", tmp_path / "again", once=once, images=("image",))
    assert set(again.constants) == {"grid.x.y", "t", "on"}
    assert "constants are not written: grid.x.y, on, t" in export(tmp_path / "out", tmp_path / "png", to="png").notes


def test_samples_of_other_constants_are_refused(tmp_path: Path) -> None:
    """Neither merge nor append joins them."""
    packed(pdebench(tmp_path / "a.h5"), tmp_path / "one", **IN_UNITS)
    other = pdebench(tmp_path / "b.h5", 4)
    with h5py.File(other, "r+") as file:
        for group in file.values():
            group["grid/x"][0] += 1
    packed(other, tmp_path / "other", **IN_UNITS)
    with pytest.raises(UsageError, match="kept once for all samples"):
        merge([tmp_path / "one", tmp_path / "other"], tmp_path / "wrong")
    with pytest.raises(UsageError, match="kept once for all samples"):
        append(tmp_path / "one", tmp_path / "other", workers=0)


def test_a_flipped_bit_of_a_constant_is_found(tmp_path: Path) -> None:
    """The reader refuses it, verify names the file, and repair needs the source."""
    out = tmp_path / "out"
    dataset = packed(pdebench(tmp_path / "a.h5"), out, **IN_UNITS)
    (constants,) = out.glob("constants-*.npz")
    flip(constants, 200)
    with pytest.raises(DamagedError, match=rf"{constants.name}: its digest is wrong"):
        dataset.constants["grid.x"]
    assert [damage.file for damage in verify(out).damages] == [constants.name]
    with pytest.raises(DatasetError, match="name the sources"):
        repair(out)


def test_constants_behind_a_url(tmp_path: Path) -> None:
    """They are uploaded with the dataset, fetched when they are asked for, and listed by info."""
    url = f"file://{tmp_path}/there"
    convert(str(pdebench(tmp_path / "a.h5")), url, workers=0, source=SourceOptions(**IN_UNITS))
    assert_kept(PackedDataset(url, cache=tmp_path / "cache"))
    assert "grid.t, grid.x" in CliRunner().invoke(main, ["info", url]).stdout
