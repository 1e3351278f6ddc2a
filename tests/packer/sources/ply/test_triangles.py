"""Polygons of PLY files as triangles, against a fan made one face at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opened_sources import open_ply, read_each
from plyfile import PlyData, PlyElement

from packer.errors import SourceError, UsageError
from packer.sources.ply import table

POINTS = PlyElement.describe(np.zeros(9, [(c, "f4") for c in "xyz"]), "vertex")


def mesh(path: Path, faces: list[list[int]], form: tuple[bool, str] = (False, "<"), uv: bool = False) -> Path:
    """A file whose faces have corners, a number each, and with `uv` lists of two numbers a corner."""
    data = np.empty(len(faces), [("flag", "u1"), ("vertex_indices", "O"), ("quality", "i1")] + [("uv", "O")] * uv)
    for i, corners in enumerate(faces):
        data["flag"][i], data["quality"][i] = i % 256, -i
        data["vertex_indices"][i] = np.array(corners, "i4")
        if uv:
            data["uv"][i] = np.arange(i, i + 2 * len(corners)).astype("f4")
    lists = {"vertex_indices": ("u1", "i4"), "uv": ("u1", "f4")}
    counts, entries = ({name: types[k] for name, types in lists.items()} for k in (0, 1))
    face = PlyElement.describe(data, "face", len_types=counts, val_types=entries)
    PlyData([POINTS, face], text=form[0], byte_order=form[1]).write(str(path))
    return path


def read(path: Path, **options) -> dict[str, np.ndarray]:
    """The one sample of a file, after a check that it has the shapes and dtypes announced."""
    source = open_ply(str(path), triangulate=True, **options)
    (block,) = source.read()
    for spec in source.fields:
        (array,) = block[spec.name]
        assert array.dtype == spec.dtype
        assert array.flags.c_contiguous
        assert tuple(source.shapes(spec.name)[0]) == array.shape
        assert spec.shape == (None, *array.shape[1:])
    return {name: arrays[0] for name, arrays in block.items()}


def plain_fan(faces: list[list[int]]) -> list[tuple[int, list[int]]]:
    """The number of its face and the corners of every triangle."""
    return [(i, [f[0], f[k], f[k + 1]]) for i, f in enumerate(faces) for k in range(1, len(f) - 1)]


polygons = st.lists(st.lists(st.integers(0, 8), min_size=3, max_size=9), max_size=12)


@settings(max_examples=60, deadline=None)
@given(faces=polygons, form=st.sampled_from([(True, "="), (False, "<"), (False, ">")]), uv=st.booleans())
def test_a_fan_from_the_first_corner(tmp_path_factory, faces, form, uv: bool) -> None:
    """Triangles come face by face in order, and all else that a face has comes with each of its triangles."""
    sample = read(mesh(tmp_path_factory.getbasetemp() / "fan.ply", faces, form, uv))
    expected = plain_fan(faces)
    assert sample["face"].dtype == np.int32
    assert sample["face"].tolist() == [corners for _, corners in expected]
    assert sample["face_flag"].tolist() == [i for i, _ in expected]
    assert sample["face_quality"].tolist() == [-i for i, _ in expected]
    if uv:
        assert sample["face_uv"].ravel().tolist() == [i + k for i, _ in expected for k in range(2 * len(faces[i]))]


def test_files_of_triangles_and_of_polygons_agree(tmp_path) -> None:
    """A set of triangles, quads and empty meshes has one field face of shape (m, 3), and none of sizes."""
    for i, faces in enumerate([[[0, 1, 2]], [[0, 1, 2, 3], [1, 2, 3]], []]):
        mesh(tmp_path / f"{i}.ply", faces)
    source = open_ply(str(tmp_path), triangulate=True)
    assert {f.name: f.shape for f in source.fields}["face"] == (None, 3)
    assert "face_size" not in [f.name for f in source.fields]
    found = [face.tolist() for face in read_each(source.slice(1, 3))["face"]]
    assert found == [[[0, 1, 2], [0, 2, 3], [1, 2, 3]], []]


@pytest.mark.parametrize("form", [(True, "="), (False, "<")])
@pytest.mark.parametrize("corners", [1, 2])
def test_a_face_without_a_triangle(tmp_path, form, corners: int) -> None:
    """A face of one or two corners is an error that names file and face, before anything is read."""
    path = mesh(tmp_path / "a.ply", [[0, 1, 2, 3], [1, 2, 3], [0, 1][:corners], [0, 1, 2]], form)
    reason = rf"a\.ply: element face, row 2, property vertex_indices: a face of {corners} corners has no triangle"
    with pytest.raises(SourceError, match=reason):
        open_ply(str(path), triangulate=True)
    errors: list[SourceError] = []
    mesh(tmp_path / "b.ply", [[0, 1, 2]], form)
    assert open_ply(str(tmp_path), triangulate=True, bad=errors.append).names == ["b"]
    assert len(errors) == 1


def test_errors_name_the_row_of_the_file(tmp_path) -> None:
    """A value that does not fit is named with its face, not with a triangle."""
    path = mesh(tmp_path / "a.ply", [[0, 1, 2, 3, 4], [0, 1, 2, 3]])
    with pytest.raises(SourceError, match=r"element face, row 1, property quality: -1 does not fit uint8"):
        read(path, cast={"face_quality": "uint8"})
    data = np.empty(2, [("vertex_indices", "O")])
    data["vertex_indices"] = [np.array([0, 1, 2, 3], "u4"), np.array([0, 1, 2, 2**31], "u4")]
    face = PlyElement.describe(data, "face", val_types={"vertex_indices": "u4"})
    PlyData([POINTS, face]).write(str(path))
    with pytest.raises(SourceError, match=r"element face, row 1, property vertex_indices: 2\.14748e.09"):
        read(path)


def test_no_faces(tmp_path) -> None:
    """Where no field holds faces there is nothing to make triangles of, and that is said."""
    path = str(tmp_path / "a.ply")
    PlyData([POINTS]).write(path)
    with pytest.raises(UsageError, match="--triangulate: there is no field face; fields are xyz"):
        open_ply(path, triangulate=True)


def test_lists_may_not_grow_without_end(tmp_path, monkeypatch) -> None:
    """Long lists repeated for every triangle of a large polygon are refused before they take memory."""
    path = mesh(tmp_path / "a.ply", [[0, 1, 2], list(range(9)) * 3], uv=True)
    monkeypatch.setattr(table, "MAX_ENTRIES", 6 + 25 * 54 - 1)
    with pytest.raises(SourceError, match=r"element face, row 1, property uv: .* repeated .* 1\.36e.03 entries"):
        open_ply(str(path), triangulate=True)
    monkeypatch.setattr(table, "MAX_ENTRIES", 6 + 25 * 54)
    assert len(read(path)["face_uv"]) == 6 + 25 * 54


def test_the_option_stands_in_the_origin(tmp_path) -> None:
    """What is asked for is kept, so that an unfinished conversion is not gone on with in another way."""
    path = str(mesh(tmp_path / "a.ply", [[0, 1, 2]]))
    assert open_ply(path, triangulate=True).origin["options"]["triangulate"] is True
    assert open_ply(path).origin != open_ply(path, triangulate=True).origin
