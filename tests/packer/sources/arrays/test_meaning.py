"""What stored numbers mean: the values are those that xarray gives, and nothing is decided without being asked."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from opened_sources import open_hdf5, read_joined
from zarr_files import write_zarr

from packer.errors import SourceError
from packer.sources import SourceOptions, open_sources
from packer.sources.arrays.units import REVERSED
from packer.sources.looking import NEVER_WRITTEN
from packer.watcher import Watcher

F4, F8, I1, I2, I4, U1 = np.float32, np.float64, np.int8, np.int16, np.int32, np.uint8
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "scaled": (np.array([1, -1, 3], I2), {"scale_factor": F4(0.1)}),
    "scaled by a double": (np.array([1, -1, 3], I2), {"scale_factor": F8(0.1)}),
    "packed": (np.array([1, -1, 3], I2), {"scale_factor": F4(0.01), "add_offset": F4(273.15)}),
    "packed, int32": (np.array([1, -1, 2**24 + 1], I4), {"scale_factor": F4(0.01), "add_offset": F4(273.15)}),
    "packed, two types": (np.array([1, -1, 3], I2), {"scale_factor": F4(0.01), "add_offset": F8(273.15)}),
    "packed and filled": (
        np.array([1, -1, 3], I2),
        {"scale_factor": F4(0.1), "add_offset": F4(1), "_FillValue": I2(-1)},
    ),
    "offset alone": (np.array([1, -1, 3], I2), {"add_offset": F4(0.5)}),
    "whole offset": (np.array([1, -1, 3], np.int64), {"add_offset": np.int64(10)}),
    "filled int16": (np.array([1, -1, 3], I2), {"_FillValue": I2(-1)}),
    "filled int32": (np.array([1, -1, 2**24 + 1], I4), {"_FillValue": I4(-1)}),
    "filled float": (np.array([1, -1, 3], F4), {"_FillValue": F4(-1)}),
    "missing value": (np.array([1, -1, 3], I2), {"missing_value": I2(-1)}),
    "both": (np.array([1, -1, -9], I2), {"missing_value": I2(-9), "_FillValue": I2(-1)}),
    "several": (np.array([1, -1, -9], I2), {"missing_value": np.array([-9, -1], I2)}),
    "another type": (np.array([1, 255, 3], U1), {"_FillValue": I2(-1)}),
    "out of range": (np.array([1, 255, 0], U1), {"_FillValue": I4(256)}),
    "unsigned": (np.array([1, -1, -3], I1), {"_Unsigned": "true"}),
    "unsigned and filled": (np.array([1, -1, -3], I1), {"_Unsigned": "true", "_FillValue": I1(-1)}),
    "unsigned and packed": (
        np.array([1, -1, -3], I1),
        {"_Unsigned": "true", "_FillValue": I1(-1), "scale_factor": F4(0.5), "add_offset": F4(2)},
    ),
    "signed": (np.array([1, 255, 3], U1), {"_Unsigned": "false"}),
    "NaN fills": (np.array([1, np.nan, 3], F4), {"_FillValue": F4(np.nan), "scale_factor": F8(0.1)}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("samples", ["rows", "files"])
def test_values_are_those_of_xarray(tmp_path: Path, case: str, samples: str) -> None:
    """Refused, unless --scaled gives xarray's values, in its dtype, or --stored the numbers."""
    xarray = pytest.importorskip("xarray")  # which Python 3.10 has in no version of today
    numbers, attributes = CASES[case]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = numbers
        file["x"].attrs.update(attributes)
    with pytest.raises(SourceError, match=r"/x has .*: its stored numbers are not its values; --scaled"):
        open_hdf5(str(tmp_path / "a.h5"), samples=samples)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = xarray.Dataset({"x": ("row", numbers, attributes)})
        expected = xarray.decode_cf(dataset)["x"].to_numpy()
    found = read_joined(open_hdf5(str(tmp_path / "a.h5"), samples=samples, scaled=True))["x"].reshape(-1)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    stored = read_joined(open_hdf5(str(tmp_path / "a.h5"), samples=samples, stored=True))["x"].reshape(-1)
    np.testing.assert_array_equal(stored, numbers)


def test_valid_ranges_are_said(tmp_path: Path) -> None:
    """Values outside of them are packed, and one remark names the arrays."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in "xy":
            file[name] = np.arange(3)
            file[name].attrs["valid_min"] = 1
    (remark,) = (text for text in open_hdf5(str(tmp_path / "a.h5")).remarks if "invalid" in text)
    assert "valid_min of /x, valid_min of /y" in remark


@pytest.mark.parametrize(
    ("samples", "first"),
    [
        ("rows", "24 samples in 4 files, the first: 1.h5: /g/x"),
        ("episodes:ends", "8 samples in 4 files, the first: 1.h5: /g/x"),
        ("files", "4 samples, the first: 1.h5: /g/x"),
        ("groups", "4 samples, the first: group /g of 1.h5: /g/x"),
    ],
)
def test_unwritten_chunks_are_one_remark_or_refused(tmp_path: Path, samples: str, first: str) -> None:
    """Whatever a sample is: one sentence counts them, and --unwritten refuse makes each of the files a bad file."""
    for number in range(5):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            chunked = file.create_dataset("g/x", (10, 2), "f4", chunks=(2, 2), fillvalue=5)
            chunked[: 10 if number == 0 else 4] = 1
            file["ends"] = [3, 5, 10] * (samples != "groups")
    skip = () if samples.startswith("episodes") else ("ends",)
    source = open_hdf5(str(tmp_path), samples=samples, skip=skip)
    (remark,) = (text for text in source.remarks if "never written" in text)
    assert remark == f"{NEVER_WRITTEN}: 12 chunks of {first}: 3 of its 5 chunks, 5.0"
    errors: list[SourceError] = []
    options = SourceOptions(samples=samples, skip=skip, unwritten="refuse")
    assert len(open_sources([str(tmp_path)], options, Watcher(errors.append))) == {"rows": 10, "episodes:ends": 3}.get(
        samples, 1
    )
    assert [Path(error.path or "").name for error in errors] == [f"{number}.h5" for number in range(1, 5)]


@pytest.mark.parametrize(("samples", "array"), [("rows", "x"), ("groups", "g/x")])
def test_an_array_kept_once_that_was_never_written(tmp_path: Path, samples: str, array: str) -> None:
    """It is said of the file, whether it lies beside the arrays of the samples or above their groups."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file[array] = np.ones(4)
        file.create_dataset("mean", (3,), "f4")
    (remark,) = open_hdf5(str(tmp_path / "a.h5"), samples=samples, once=("mean",)).remarks
    assert remark == f"{NEVER_WRITTEN}, in arrays kept once: a.h5: /mean: all its values, 0.0"
    with pytest.raises(SourceError, match=r"/mean: all its values, 0\.0; write them"):
        open_hdf5(str(tmp_path / "a.h5"), samples=samples, once=("mean",), unwritten="refuse")


def test_what_virtual_datasets_lack_is_said(tmp_path: Path) -> None:
    """What no file has is the fill value, and so is what the files lack."""
    with h5py.File(tmp_path / "source.h5", "w") as file:
        file.create_dataset("x", (4,), "f8", chunks=(1,))[:3] = 1
    layout = h5py.VirtualLayout((10,), "f8")
    layout[:4] = h5py.VirtualSource(tmp_path / "source.h5", "x", (4,))
    with h5py.File(tmp_path / "all.h5", "w") as file:
        file.create_virtual_dataset("x", layout, fillvalue=9)
    (remark,) = open_hdf5(str(tmp_path / "all.h5")).remarks
    first = "all.h5: /x: 6 of its 10 values are in no file, 9.0"
    assert remark == f"{NEVER_WRITTEN}: 6 values and 1 chunk of 7 samples in 1 file, the first: {first}"
    with pytest.raises(SourceError, match=r"no file, 9\.0; /x: 1 of its 4 chunks, 0\.0 of its source file source\.h5"):
        open_hdf5(str(tmp_path / "all.h5"), unwritten="refuse")


def test_consolidated_metadata_may_be_old(tmp_path: Path) -> None:
    """Arrays of zarr that were added or grew since it was written are all there."""
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")

    path = tmp_path / "a.zarr"
    write_zarr(path, {"x": np.arange(4.0)}, 2)
    zarr.consolidate_metadata(path)
    group = zarr.open_group(path, mode="a", use_consolidated=False)
    group["x"].resize((6,))
    group["x"][4:] = [4, 5]
    group.create_array("y", data=np.arange(6))
    found = read_joined(open_sources([str(path)]))
    assert found["x"].tolist() == [0, 1, 2, 3, 4, 5]
    assert found["y"].tolist() == [0, 1, 2, 3, 4, 5]


def test_files_of_matlab_have_reversed_axes(tmp_path: Path) -> None:
    """One remark says so for all of them."""
    for number in range(2):
        with h5py.File(tmp_path / f"{number}.mat", "w", userblock_size=512) as file:
            file["x"] = np.arange(6.0).reshape(3, 2)
        with (tmp_path / f"{number}.mat").open("r+b") as raw:
            raw.write(b"MATLAB 7.3 MAT-file")
    (remark,) = open_hdf5(str(tmp_path)).remarks
    assert remark == f"{REVERSED}: 0.mat, 1.mat"
