"""Layouts of PLY files that programs write, each as a whole file through the source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opened_sources import open_ply

from packer.errors import SourceError, UsageError
from packer.sources import SourceOptions, open_sources

#: The properties of a Gaussian splat, in the order of its reference implementation.
SPLAT = [
    *("x", "y", "z", "nx", "ny", "nz"),
    *(f"f_dc_{i}" for i in range(3)),
    *(f"f_rest_{i}" for i in range(45)),
    "opacity",
    *(f"scale_{i}" for i in range(3)),
    *(f"rot_{i}" for i in range(4)),
]


def sample(path: Path) -> dict[str, np.ndarray]:
    """The one sample of a file."""
    (block,) = open_ply(str(path)).read()
    return {name: arrays[0] for name, arrays in block.items()}


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("first", [0x0A, 0x0D, 0x0D0A, 0x0A0D, 0x0A0A, 0x20])
def test_bodies_that_begin_like_a_line_end(tmp_path, end: str, first: int) -> None:
    """No first byte of a binary body is taken for the end of the header, whatever ends the header's lines."""
    head = end.join(["ply", "format binary_big_endian 1.0", "element vertex 2", "property int a", "end_header", ""])
    for value in (first << 24 & 0x7FFFFFFF, first << 16, first):
        numbers = np.array([value, 10], ">i4")
        (tmp_path / "a.ply").write_bytes(head.encode() + numbers.tobytes())
        assert sample(tmp_path / "a.ply")["a"].tolist() == numbers.tolist()


@pytest.mark.parametrize("last", ["", "\n", "\r\n", "\n\n \n"])
@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_text_with_any_line_ends(tmp_path, end: str, last: str) -> None:
    """Text is read with any line ends, and with none, one or several behind the last row."""
    lines = ["ply", "format ascii 1.0", "element vertex 2", "property int a", "property float b", "end_header"]
    (tmp_path / "a.ply").write_bytes((end.join([*lines, "1 2.5", "-3 4"]) + last).encode())
    found = sample(tmp_path / "a.ply")
    assert (found["a"].tolist(), found["b"].tolist()) == ([1, -3], [2.5, 4])


def splat(path: Path, text: bool, names: Sequence[str] = SPLAT) -> np.ndarray:
    """Write a file of seven splats; returns its values, (7, properties)."""
    values = np.random.default_rng(0).standard_normal((7, len(names))).astype("<f4")
    lines = [f"format {'ascii' if text else 'binary_little_endian'} 1.0", "element vertex 7"]
    head = "\n".join(["ply", *lines, *(f"property float {name}" for name in names), "end_header", ""])
    body = "\n".join(" ".join(f"{x:.9g}" for x in row) for row in values).encode() if text else values.tobytes()
    path.write_bytes(head.encode() + body)
    return values


@pytest.mark.parametrize("text", [True, False])
def test_splats(tmp_path, text: bool) -> None:
    """The 62 properties of a splat become seven fields, none of their values changed."""
    assert len(SPLAT) == 62
    values = splat(tmp_path / "a.ply", text)
    found = sample(tmp_path / "a.ply")
    widths = {name: array.shape[1:] for name, array in found.items()}
    wide = {"xyz": 3, "normal": 3, "f_dc": 3, "f_rest": 45, "scale": 3, "rot": 4}
    assert widths == {**{name: (width,) for name, width in wide.items()}, "opacity": ()}
    order = ("xyz", "normal", "f_dc", "f_rest", "opacity", "scale", "rot")
    assert np.concatenate([found[name].reshape(7, -1) for name in order], axis=1).tobytes() == values.tobytes()


def test_splats_apart(tmp_path) -> None:
    """With `group="none"` each numbered property is a field; positions and normals are still one each."""
    values = splat(tmp_path / "a.ply", text=False)
    (block,) = open_ply(str(tmp_path / "a.ply"), group="none").read()
    assert list(block) == ["xyz", "normal", *SPLAT[6:]]
    assert not [
        (i, name) for i, name in enumerate(SPLAT) if i > 5 and block[name][0].tobytes() != values[:, i].tobytes()
    ]
    with pytest.raises(UsageError, match="--group some: none or FIELD=A,B is expected"):
        open_sources([str(tmp_path)], SourceOptions(group="some"))


@pytest.mark.parametrize(
    ("names", "fields"),
    [
        (["b_1", "b_0", "a"], {"b": (7, 2), "a": (7,)}),
        ([f"w_{i}" for i in range(12)], {"w": (7, 12)}),
        (["b_1", "b_2"], {"b_1": (7,), "b_2": (7,)}),
        (["b_0", "b_2"], {"b_0": (7,), "b_2": (7,)}),
        (["b_0"], {"b_0": (7,)}),
        (["b_00", "b_01"], {"b_00": (7,), "b_01": (7,)}),
        (["b_0", "b_1", "b"], {"b_0": (7,), "b_1": (7,), "b": (7,)}),
        (["rgb_0", "rgb_1", "rgb_2"], {"rgb_0": (7,), "rgb_1": (7,), "rgb_2": (7,)}),
        (["_0", "_1"], {"_0": (7,), "_1": (7,)}),
    ],
)
def test_which_numbered_properties_are_one_field(tmp_path, names: list[str], fields: dict[str, Any]) -> None:
    """Two or more from 0 on without a gap, in whatever order, if the field's name is free; a column is its number."""
    values = splat(tmp_path / "a.ply", False, names)
    found = sample(tmp_path / "a.ply")
    assert {name: array.shape for name, array in found.items()} == fields
    for name, array in found.items():
        width = array.shape[1] if array.ndim == 2 else 1
        of = [names.index(f"{name}_{i}") for i in range(width)] if array.ndim == 2 else [names.index(name)]
        assert array.reshape(7, width).tobytes() == values[:, of].tobytes()


def test_files_that_differ_in_numbered_properties(tmp_path) -> None:
    """Splats of another degree do not fit; the error says which file has how many columns, and what to do."""
    splat(tmp_path / "a.ply", False, ["x", "b_0", "b_1"])
    splat(tmp_path / "b.ply", False, ["x", "b_0", "b_1", "b_2"])
    for fields in ("same", "all", "b"):
        with pytest.raises(
            SourceError,
            match=r"b is float32 x 3, not float32 x 2.*; columns of b: 2 in a; 3 in b;.* with --group none",
        ):
            open_ply(str(tmp_path), fields=fields)
    assert len(open_ply(str(tmp_path), group="none", fields="common")) == 2


def test_splats_of_several_degrees_together(tmp_path) -> None:
    """With fields=common they are packed without f_rest, or what some lack of it, and a remark says so."""
    for degree, count in enumerate((0, 9, 45)):
        splat(tmp_path / f"{degree}.ply", False, ["x", "y", "z", *(f"f_rest_{i}" for i in range(count))])
    source = open_ply(str(tmp_path), fields="common")
    assert ([f.name for f in source.fields], len(source)) == (["xyz"], 3)
    assert source.remarks == ["--fields common skips f_rest (in 2 of 3 files), which not all files have alike"]
    apart = open_ply(str(tmp_path), fields="common", group="none")
    assert [f.name for f in apart.fields] == ["xyz"]
    assert "f_rest_0 (in 2 of 3 files)" in apart.remarks[0]
    assert len(open_ply(str(tmp_path), fields="all", group="none").fields) == 46


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("strips", [1, 2])
def test_one_row_with_a_very_long_list(tmp_path, text: bool, strips: int) -> None:
    """Strips of 373,830 corners in one row are packed, with a second strip of another length beside it or alone."""
    rows = [np.arange(373_830, dtype="<i4"), np.array([5, -1], "<i4")][:strips]
    lines = [f"format {'ascii' if text else 'binary_little_endian'} 1.0", "element vertex 1", "property uchar a"]
    lines += [f"element tristrips {strips}", "property list int int vertex_indices", "end_header", ""]
    if text:
        body = ("7\n" + "\n".join(f"{len(row)} {' '.join(map(str, row))}" for row in rows)).encode()
    else:
        body = b"\7" + b"".join(np.array([len(row)], "<i4").tobytes() + row.tobytes() for row in rows)
    (tmp_path / "a.ply").write_bytes("\n".join(["ply", *lines]).encode() + body)
    found = sample(tmp_path / "a.ply")["tristrips_vertex_indices"]
    assert found.ravel().tolist() == np.concatenate(rows).tolist()
