"""Layouts of PLY files that programs write, each as a whole file through the source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from packer.sources.ply.source import open_ply

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


@pytest.mark.parametrize("text", [True, False])
def test_splats(tmp_path, text: bool) -> None:
    """The 62 properties of a splat become positions, normals and 56 fields of their own, none of them changed."""
    assert len(SPLAT) == 62
    values = np.random.default_rng(0).standard_normal((7, 62)).astype("<f4")
    lines = [f"format {'ascii' if text else 'binary_little_endian'} 1.0", "element vertex 7"]
    head = "\n".join(["ply", *lines, *(f"property float {name}" for name in SPLAT), "end_header", ""])
    body = "\n".join(" ".join(f"{x:.9g}" for x in row) for row in values).encode() if text else values.tobytes()
    (tmp_path / "a.ply").write_bytes(head.encode() + body)
    found = sample(tmp_path / "a.ply")
    assert list(found) == ["xyz", "normal", *SPLAT[6:]]
    columns = np.concatenate([found["xyz"], found["normal"], *(found[name][:, None] for name in SPLAT[6:])], axis=1)
    assert columns.tobytes() == values.tobytes()


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
