"""Point clouds of PCL: values to the bit in all three forms, the names of PLY, damage by name."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from opened_sources import open_ply, read_each

from packer.errors import SourceError, UsageError

TYPES = ["f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]


def lzf(data: bytes) -> bytes:
    """Compress by the C code of liblzf, which PCL has too; what does not get smaller becomes runs of literals."""
    with h5py.File("lzf", "w", driver="core", backing_store=False) as file:
        array = file.create_dataset("x", data=np.frombuffer(data, "u1"), chunks=(len(data),), compression="lzf")
        is_left_out, packed = array.id.read_direct_chunk((0,))
    runs = [data[at : at + 32] for at in range(0, len(data), 32)]
    return b"".join(bytes([len(run) - 1]) + run for run in runs) if is_left_out else bytes(packed)


def write(path: Path, points: NDArray[Any], form: str = "binary", **lines: str) -> str:
    """Write structured points by the words of the format's own page; `lines` take the place of others of the header."""
    kinds = [(name, *(points.dtype[name].subdtype or (points.dtype[name], (1,)))) for name in points.dtype.names or ()]
    head = {
        "VERSION": ".7",
        "FIELDS": " ".join(name for name, _, _ in kinds),
        "SIZE": " ".join(str(dtype.itemsize) for _, dtype, _ in kinds),
        "TYPE": " ".join(dtype.kind.upper() for _, dtype, _ in kinds),
        "COUNT": " ".join(str(shape[0]) for _, _, shape in kinds),
        "WIDTH": str(len(points)),
        "HEIGHT": "1",
        "VIEWPOINT": "0 0 0 1 0 0 0",
        "POINTS": str(len(points)),
        "DATA": form,
        **lines,
    }
    columns = [np.ascontiguousarray(points[name]) for name, _, _ in kinds]
    if form == "ascii":
        rows = zip(*(column.reshape(len(points), -1).tolist() for column in columns), strict=True)
        body = "".join(" ".join(map(repr, chain.from_iterable(row))) + "\n" for row in rows).encode()
    elif form == "binary":
        body = points.tobytes()
    else:
        raw = b"".join(column.tobytes() for column in columns)
        packed = lzf(raw)
        body = np.array([len(packed), len(raw)], "<u4").tobytes() + packed
    text = "# .PCD v.7 - Point Cloud Data file format\n" + "".join(f"{k} {v}\n" for k, v in head.items() if v)
    path.write_bytes(text.encode() + body)
    return str(path)


def made(count: int, kinds: str = "x:f4 y:f4 z:f4 intensity:f4") -> NDArray[Any]:
    points = np.zeros(count, [tuple(kind.split(":")) for kind in kinds.split()])
    for name in points.dtype.names or ():
        points[name] = np.arange(points[name].size).reshape(points[name].shape) % 100
    return points


def read(path: str) -> dict[str, Any]:
    return {name: values[0] for name, values in read_each(open_ply(path)).items()}


@given(
    st.lists(st.sampled_from(TYPES), min_size=1, max_size=4),
    st.integers(1, 40),
    st.sampled_from(["ascii", "binary", "binary_compressed"]),
    st.integers(0, 9),
)
def test_values_come_back(tmp_path_factory: Any, types: list[str], count: int, form: str, seed: int) -> None:
    """Of every type and form, to the bit; fields of several values are one field."""
    rng = np.random.default_rng(seed)
    kinds = [(f"a{i}", f"<{kind}", (3,) if i == 1 else ()) for i, kind in enumerate(types)]
    points = np.zeros(count, kinds)
    for name in points.dtype.names or ():
        points[name] = rng.integers(0, 100, points[name].shape)
    found = read(write(tmp_path_factory.mktemp("pcd") / "a.pcd", points, form))
    assert list(found) == sorted(found, key=lambda name: (points[name].ndim == 1, name))
    assert {name: (v.dtype, v.tobytes()) for name, v in found.items()} == {
        name: (points[name].dtype, points[name].tobytes()) for name in points.dtype.names or ()
    }


@pytest.mark.parametrize("form", ["ascii", "binary", "binary_compressed"])
def test_fields_have_the_names_of_ply(tmp_path: Path, form: str) -> None:
    """Coordinates, normals, and the colours that PCL packs into one number; padding is none."""
    kinds = "x:f4 y:f4 z:f4 _:u1 normal_x:f4 normal_y:f4 normal_z:f4 curvature:f4 rgba:u4"
    points = made(50, kinds)
    points["rgba"] = [0x80FF7F00 + i for i in range(50)]
    found = read(write(tmp_path / "a.pcd", points, form))
    assert list(found) == ["xyz", "normal", "rgba", "curvature"]
    assert found["xyz"][7].tolist() == [7, 7, 7]
    assert found["rgba"][3].tolist() == [0xFF, 0x7F, 3, 0x80]
    as_float = points.astype([(name, "f4" if name == "rgba" else dtype) for name, dtype in points.dtype.descr])
    as_float["rgba"] = np.array([0x3FFF7F00 + i for i in range(50)], "<u4").view("<f4")
    as_float.dtype.names = (*(points.dtype.names or ())[:-1], "rgb")
    found = read(write(tmp_path / "b.pcd", as_float, form))
    assert (found["rgb"].dtype, found["rgb"][3].tolist()) == (np.uint8, [0xFF, 0x7F, 3])


def test_what_is_not_packed_is_said(tmp_path: Path) -> None:
    """The rows of a picture of points, the place of the sensor, and bytes after the last point."""
    write(tmp_path / "a.pcd", made(6), WIDTH="3", HEIGHT="2", VIEWPOINT="1 0 0 1 0 0 0")
    with (tmp_path / "a.pcd").open("ab") as file:
        file.write(b"more")
    write(tmp_path / "b.pcd", made(5), COUNT="", VIEWPOINT="", POINTS="")
    source = open_ply(str(tmp_path))
    assert read_each(source)["xyz"][0].shape == (6, 3)
    assert [remark.rpartition(": ")[2] for remark in source.remarks] == ["a.pcd", "a.pcd", "a.pcd (4 bytes)"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ({"VERSION": ".8"}, "VERSION .8 is not known"),
        ({"DATA": "zip"}, "DATA zip is not known"),
        ({"SIZE": ""}, "no line SIZE"),
        ({"SIZE": "4 4 4"}, "SIZE has 3 values for 4 FIELDS"),
        ({"TYPE": "F F F Q"}, "field intensity is of TYPE Q and SIZE 4"),
        ({"WIDTH": "7"}, "WIDTH 7 x HEIGHT 1 are not POINTS 6"),
        ({"WIDTH": "-1", "POINTS": ""}, "WIDTH -1 is not a number"),
        ({"WIDTH": "7", "POINTS": "7"}, "7 points need 112 bytes after the header, but there are 96"),
        ({"VIEWPORT": "1"}, "header line 11: 'VIEWPORT 1' is not a line of PCD"),
        ({"FIELDS": "x y z x"}, "has two fields named x"),
    ],
)
def test_wrong_headers_are_named(tmp_path: Path, lines: dict[str, str], words: str) -> None:
    """Each with its file, and what contradicts what."""
    if "VIEWPORT" in lines:
        lines = {"DATA": "", **lines, "DATA ": "binary"}
    path = write(tmp_path / "a.pcd", made(6), **lines)
    with pytest.raises(SourceError, match=words) as caught:
        open_ply(path)
    assert caught.value.path == path


@pytest.mark.parametrize("change", ["cut", "cut within", "one more", "one less", "other bytes"])
def test_damaged_compressed_points_are_an_error(tmp_path: Path, change: str) -> None:
    """Whatever their decoder makes of them, no value of another place in memory is packed."""
    path = Path(write(tmp_path / "a.pcd", made(60), "binary_compressed"))
    head, body = path.read_bytes().split(b"binary_compressed\n")
    packed, nbytes = np.frombuffer(body, "<u4", 2).tolist()
    data = body[8:]
    if change == "cut":
        data = data[:-5]
    elif change == "cut within":
        data, packed = data[:-5], packed - 5
    elif change == "one more":
        data, packed = data + b"\0a", packed + 2
    elif change == "one less":
        data, packed = data[33:], packed - 33
    else:
        data = b"\xff" * len(data)
    path.write_bytes(head + b"binary_compressed\n" + np.array([packed, nbytes], "<u4").tobytes() + data)
    with pytest.raises(SourceError, match="compressed") as caught:
        read(str(path))
    assert caught.value.path == str(path)


def test_text_that_lost_its_colours_or_points_is_an_error(tmp_path: Path) -> None:
    """A float that holds a colour may be nan, and a line may lack a value."""
    points = made(2, "x:f4 rgb:f4")
    points["rgb"] = np.nan
    with pytest.raises(SourceError, match="point 0: rgb is nan"):
        read(write(tmp_path / "a.pcd", points, "ascii"))
    path = Path(write(tmp_path / "b.pcd", made(2), "ascii"))
    path.write_text(path.read_text().replace("1.0 1.0 1.0 1.0", "1.0 1.0 1.000"))
    with pytest.raises(SourceError, match=r"line 13, intensity_0: 1 values are missing"):
        read(str(path))


def test_options_of_ply_hold(tmp_path: Path) -> None:
    """`--fields` and `--cast`; triangles are of PLY alone."""
    write(tmp_path / "a.pcd", made(3))
    write(tmp_path / "b.pcd", made(4, "x:f4 y:f4 z:f4 label:u4"))
    source = open_ply(str(tmp_path), fields="common", cast={"xyz": "float64"})
    assert [(field.name, field.dtype) for field in source.fields] == [("xyz", "float64")]
    with pytest.raises(UsageError, match="--triangulate is for sources of ply"):
        open_ply(str(tmp_path), triangulate=True)
