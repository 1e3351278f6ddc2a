"""Attributes of arrays: kept, named as lost, or what the stored numbers stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from opened_sources import open_hdf5, read_joined

from packer.convert import convert
from packer.errors import SourceError, UsageError
from packer.export import export
from packer.sources import SourceOptions


def write(path: Path, values: Any, **attributes: Any) -> str:
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "w") as file:
        file["g/x"] = values
        file["g/x"].attrs.update(attributes)
    return str(path)


@pytest.mark.parametrize("samples", ["rows", "groups"])
def test_attributes_of_fields_come_back(tmp_path: Path, samples: str) -> None:
    """Those of every array are kept, and an export sets them; what cannot be kept is named."""
    path = write(tmp_path / "a.h5", np.arange(6.0).reshape(3, 2), units="K", scale_factor=1.0, odd=np.zeros(1, "i4,f4"))
    source = open_hdf5(path, samples=samples)
    (kept,) = source.origin["fields"].values()
    assert kept == {"units": "K", "scale_factor": 1.0}
    assert any("these are not: 'odd' of " in remark for remark in source.remarks)
    convert(path, tmp_path / "d", workers=0, source=SourceOptions(samples=samples))
    export(tmp_path / "d", tmp_path / "out")
    with h5py.File(tmp_path / "out" / ("a.h5" if samples == "rows" else "d.h5")) as file:
        assert dict(file["g/x"].attrs) == {"units": "K", "scale_factor": 1.0}


def test_attributes_in_which_files_differ_are_named(tmp_path: Path) -> None:
    """Those on which all agree are kept."""
    for number in range(3):
        write(tmp_path / f"in/{number}.h5", np.arange(3), units="K", at=number)
    source = open_hdf5(str(tmp_path / "in"))
    assert source.origin["fields"] == {"g.x": {"units": "K"}}
    assert source.remarks == ["attributes are kept if all files and samples agree; these are not: at of g.x"]


@pytest.mark.parametrize(
    ("values", "attributes", "expected"),
    [
        (np.array([1, -1, 3], ">i2"), {"scale_factor": np.float32(0.5), "_FillValue": np.int16(-1)}, "f4"),
        (np.array([1, -1, 3], "i2"), {"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": np.int16([-1])}, "f8"),
        (np.array([1, -1, 3], "f4"), {"_FillValue": np.float32(-1)}, "f4"),
        (np.array([1, -1, 3], "i8"), {"add_offset": 10}, "f8"),
    ],
    ids=["float32", "float64", "missing", "offset"],
)
@pytest.mark.parametrize("samples", ["rows", "groups"])
def test_stored_numbers_are_refused_or_scaled(
    tmp_path: Path, samples: str, values: Any, attributes: dict[str, Any], expected: str
) -> None:
    """Nobody said which are the values: refused; --scaled gives the values, NaN where missing; --stored the numbers."""
    path = write(tmp_path / "a.h5", values, units="m", **attributes)
    with pytest.raises(SourceError, match=f"x has .*{next(iter(attributes))} .*--scaled packs .*--stored"):
        open_hdf5(path, samples=samples)
    scaled = open_hdf5(path, samples=samples, scaled=True)
    wanted = values.astype(expected) * attributes.get("scale_factor", 1) + attributes.get("add_offset", 0)
    if "_FillValue" in attributes:
        wanted[1] = np.nan
    (found,) = (value.reshape(-1) for value in read_joined(scaled).values())
    assert found.dtype == np.dtype(expected)
    np.testing.assert_array_equal(found, wanted.astype(expected))
    assert scaled.origin["fields"] == {scaled.fields[0].name: {"units": "m"}}
    stored = open_hdf5(path, samples=samples, stored=True)
    np.testing.assert_array_equal(next(iter(read_joined(stored).values())).reshape(-1), values)
    with pytest.raises(UsageError, match="--scaled and --stored: give one of them"):
        open_hdf5(path, samples=samples, scaled=True, stored=True)


def test_files_are_scaled_each_by_its_own_factor(tmp_path: Path) -> None:
    """As those of ERA5; NaN as the value of what is missing changes nothing."""
    for number in (1, 2):
        write(tmp_path / f"in/{number}.nc", np.arange(3, dtype="i2"), scale_factor=float(number), add_offset=5.0)
    assert read_joined(open_hdf5(str(tmp_path / "in"), scaled=True))["g.x"].tolist() == [5, 6, 7, 5, 7, 9]
    plain = write(tmp_path / "plain.h5", np.array([1.5, np.nan]), _FillValue=np.nan, scale_factor=1.0, add_offset=0.0)
    np.testing.assert_array_equal(read_joined(open_hdf5(plain))["g.x"], [1.5, np.nan])


def test_names_of_an_enum_are_classes_of_labels(tmp_path: Path) -> None:
    """Of a field `label` they are classes of the dataset; of others they are kept, if they count from 0."""
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("label", data=[1, 0], dtype=h5py.enum_dtype({"dog": 1, "cat": 0}, "u1"))
    report = convert(path, tmp_path / "out", workers=0)
    assert report.manifest.classes == ("cat", "dog")
    other = open_hdf5(path, pick={"y": "/label"})
    assert (other.origin["categories"], other.remarks) == ({"y": ["cat", "dog"]}, [])
    with h5py.File(path, "w") as file:
        file.create_dataset("y", data=[1, 3], dtype=h5py.enum_dtype({"dog": 1, "cat": 3}, "u1"))
    assert open_hdf5(path).remarks == ["/y is an enum, whose names are not kept: 1 dog, 3 cat"]
