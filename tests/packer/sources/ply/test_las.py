"""Scans in LAS and LAZ: every dimension equal to laspy's, under the names of PLY; damage by the name of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import laspy
import numpy as np
import pytest
from opened_sources import open_ply, read_each

from packer.errors import SourceError


def write(path: Path, version: str = "1.4", point_format: int = 7, count: int = 20, seed: int = 0) -> Any:
    """Write a scan with extra dimensions: a scaled one and one of three columns; return it as laspy reads it."""
    header = laspy.LasHeader(point_format=point_format, version=version)
    header.scales, header.offsets = np.array([0.001, 0.01, 0.1]), np.array([500_000.0, 4_000_000.0, 0.0])
    scale = {"scales": np.array([0.01]), "offsets": np.array([3.0])}
    header.add_extra_dim(laspy.ExtraBytesParams("Reflectance", "int16", **scale))
    header.add_extra_dim(laspy.ExtraBytesParams("normals", "3f4"))
    las: Any = laspy.LasData(header)
    rng = np.random.default_rng(seed)
    las.points = laspy.ScaleAwarePointRecord.zeros(count, header=header)
    for dimension in las.point_format.dimensions:
        most = min(2 ** (dimension.num_bits - 1), 100)
        las[dimension.name] = rng.integers(0, most, np.asarray(las[dimension.name]).shape)
    las.xyz = rng.uniform(0, 100, (count, 3)) + header.offsets
    las.write(path)
    return laspy.read(path)


@pytest.mark.parametrize(("version", "point_format"), [("1.2", 0), ("1.2", 3), ("1.4", 6), ("1.4", 8)])
@pytest.mark.parametrize("suffix", ["las", "laz"])
def test_every_dimension_is_as_laspy_reads_it(tmp_path: Path, version: str, point_format: int, suffix: str) -> None:
    """Scaled coordinates and extra dimensions as float64, parts of bytes as uint8, colours as one field."""
    las = write(tmp_path / f"a.{suffix}", version, point_format)
    source = open_ply(str(tmp_path))
    found = {name: values[0] for name, values in read_each(source).items()}
    expected = {
        "xyz": las.xyz,
        **({"rgb": np.stack([las.red, las.green, las.blue], axis=1)} if point_format in (3, 8) else {}),
        "normals": np.asarray(las.normals),
        **{name: np.asarray(las[name]) for name in las.point_format.dimension_names},
    }
    for name in ("X", "Y", "Z", "red", "green", "blue"):
        expected.pop(name, None)
    assert list(found) == list(expected)
    for name, values in expected.items():
        assert (found[name].dtype, found[name].tobytes()) == (values.dtype, values.tobytes()), name
    assert (found["xyz"].dtype, found["Reflectance"].dtype, found["return_number"].dtype) == ("f8", "f8", "u1")


def test_files_of_several_kinds_share_fields(tmp_path: Path) -> None:
    """`--fields` takes what all have; a record beside the points, such as a coordinate system, is said."""
    write(tmp_path / "a.las", "1.2", 0)
    las = write(tmp_path / "b.laz", "1.4", 8, count=30)
    las.vlrs.append(laspy.vlrs.known.WktCoordinateSystemVlr("EPSG:4326"))
    las.write(tmp_path / "b.laz")
    source = open_ply(str(tmp_path), fields="xyz,intensity")
    assert [values.shape for values in read_each(source)["xyz"]] == [(20, 3), (30, 3)]
    assert source.remarks == ["records beside the points, such as the coordinate system (VLRs), are not packed: b.laz"]


def test_numbers_that_stand_for_missing_values(tmp_path: Path) -> None:
    """Of dimensions with `no_data`: refused unless `--scaled` or `--stored` says how they are packed; or left out."""
    header = laspy.LasHeader(point_format=0, version="1.4")
    header.add_extra_dim(laspy.ExtraBytesParams("d", "i2", scales=[0.5], offsets=[0.0], no_data=[-9]))
    header.add_extra_dim(laspy.ExtraBytesParams("v", "2u1", no_data=[1, 2]))
    las: Any = laspy.LasData(header, laspy.ScaleAwarePointRecord.zeros(2, header=header))
    las.points.array["d"], las.points.array["v"] = [-9, 3], [[1, 1], [2, 2]]
    las.write(tmp_path / "a.laz")
    with pytest.raises(
        SourceError, match=r"a.laz: d has no_data -9: these numbers stand for missing .*--scaled .*--st"
    ):
        open_ply(str(tmp_path))
    found = read_each(open_ply(str(tmp_path), scaled=True))
    assert np.array_equal(found["d"][0], [np.nan, 1.5], equal_nan=True)
    assert np.array_equal(found["v"][0], np.array([[np.nan, 1], [2, np.nan]], "f4"), equal_nan=True)
    found = read_each(open_ply(str(tmp_path), stored=True))
    assert (found["d"][0].tolist(), found["v"][0].tolist()) == ([-4.5, 1.5], [[1, 1], [2, 2]])
    assert read_each(open_ply(str(tmp_path), fields="xyz"))["xyz"][0].shape == (2, 3)


def in_one_piece(data: bytes) -> bytes:
    """A file whose record of LASzip says that it has no chunks."""
    at = data.index(b"laszip encoded") + 52
    return data[:at] + b"\1\0" + data[at + 2 :]


def test_a_file_that_was_written_to_a_pipe(tmp_path: Path) -> None:
    """Its last bytes say where the table of chunks is: nothing follows them."""
    write(tmp_path / "a.laz")
    data = (tmp_path / "a.laz").read_bytes()
    start = int.from_bytes(data[96:100], "little")
    piped = data[:start] + b"\xff" * 8 + data[start + 8 :] + data[start : start + 8]
    (tmp_path / "b.laz").write_bytes(piped)
    source = open_ply(str(tmp_path))
    first, second = read_each(source)["xyz"]
    assert (first.tolist(), source.remarks) == (second.tolist(), [])


@pytest.mark.parametrize(
    ("suffix", "change", "words"),
    [
        ("las", lambda data: data[:-1], "declares 20 points, but has room for 19"),
        ("las", lambda data: b"PLYF" + data[4:], "does not begin with LASF"),
        ("las", lambda data: data[:24] + b"\x09" + data[25:], "is of version 9.4"),
        ("las", lambda data: data[:104] + b"\x77" + data[105:], "cannot be read as LAS"),
        ("laz", lambda data: data[:100] + b"\xff\xff\xff\xff" + data[104:], "more records than it has room for"),
        ("laz", lambda data: data[:-20], "table of its compressed chunks is damaged"),
        ("laz", lambda data: in_one_piece(data), "in one piece, as by early versions of LASzip"),
        ("laz", lambda data: data.replace(b"laszip encoded", b"laszip_encoded"), "chunks is damaged|as LAS"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, suffix: str, change: Any, words: str) -> None:
    """Cut short, of another kind, of an unknown version or format, and what would take all memory to try."""
    path = tmp_path / f"a.{suffix}"
    write(path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(SourceError, match=words) as caught:
        read_each(open_ply(str(path)))
    assert caught.value.path == str(path)
