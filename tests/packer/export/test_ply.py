"""PLY files out of a packed dataset."""

from __future__ import annotations

import numpy as np
import pytest
from plyfile import PlyData, PlyElement
from real_files import real_files

from packer.convert import convert
from packer.errors import UsageError
from packer.export import export
from packer.sources import SourceOptions
from readers import PackedDataset

#: plyfile reads an empty list as numpy warns of.
pytestmark = pytest.mark.filterwarnings("ignore:loadtxt:UserWarning")

SCALARS = ("i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8")


def properties_of(path) -> dict[str, list[str]]:
    """The names of the properties of each element of a file."""
    return {element.name: [prop.name for prop in element.properties] for element in PlyData.read(path).elements}


def packed_again(path, folder, contents, to="ply", **options):
    """Pack a file or folder, export it and pack the files; the fields of both datasets are the same, bit for bit."""
    convert(str(path), folder / "one", workers=0, **options)
    export(folder / "one", folder / "out", to=to)
    convert(str(folder / "out"), folder / "two", workers=0, **options)
    assert contents(folder / "one") == contents(folder / "two")


def odd_values(kind, rows, rng):
    """Values of a dtype, with its limits among them; NaN, infinities and -0 for floats."""
    dtype = np.dtype(kind)
    if dtype.kind == "f":
        values = rng.normal(size=rows).astype(dtype) * dtype.type(10) ** rng.integers(-30, 30, rows).astype(dtype)
        limits = np.finfo(dtype)
        values[:7] = [np.nan, np.inf, -np.inf, -0.0, limits.max, limits.tiny, limits.smallest_subnormal]
        return values
    limits = np.iinfo(dtype)
    values = rng.integers(limits.min, limits.max, rows, dtype, endpoint=True)
    values[:2] = limits.min, limits.max
    return values


def make_mesh(path, *, text=False, order="<", polygons=False, rows=300):
    """A mesh with every scalar type, colours out of order, lists of several kinds."""
    rng = np.random.default_rng(rows)
    names = ["blue", "x", "y", "red", "green", "z"]
    kinds = ["u1", "f4", "f4", "u1", "u1", "f4", *SCALARS]
    names += [f"v_{kind}" for kind in SCALARS]
    vertex = np.empty(rows, list(zip(names, kinds, strict=True)))
    for name, kind in zip(names, kinds, strict=True):
        vertex[name] = odd_values(kind, rows, rng)
    faces = np.empty(rows // 2, [("vertex_indices", object), ("weight", "f8"), ("uv", object)])
    for face in faces:
        size = int(rng.integers(0, 7)) if polygons else 3
        face["vertex_indices"] = rng.integers(0, rows, size).astype("u4")
        face["weight"] = rng.normal()
        face["uv"] = rng.normal(size=6).astype("f4")
    elements = [
        PlyElement.describe(faces, "face", val_types={"vertex_indices": "u4", "uv": "f4"}, len_types={"uv": "u2"}),
        PlyElement.describe(vertex, "vertex"),
    ]
    data = PlyData(elements, text=text, byte_order=order)
    path.parent.mkdir(parents=True, exist_ok=True)
    data.write(path)


@pytest.mark.parametrize("to", ["ply", "ply-text"])
@pytest.mark.parametrize("polygons", [False, True])
def test_fields_come_back(tmp_path, contents, polygons, to):
    """Numbers of every type, and lists of one length or of many, of vertices and faces, are what they were."""
    for n, (text, order) in enumerate([(True, "="), (False, "<"), (False, ">"), (True, "=")]):
        make_mesh(tmp_path / f"in/a/{n}.ply", text=text, order=order, polygons=polygons and n != 1, rows=50 + n)
    packed_again(tmp_path / "in", tmp_path, contents, to)
    assert PlyData.read(tmp_path / "out/a/2.ply").text == (to == "ply-text")


def test_numbered_properties_come_back(tmp_path, contents):
    """Numbered properties that became one field have their names again, in the order of their numbers."""
    names = ["x", "rot_1", "y", "rot_0", "z", "opacity", *(f"f_rest_{i}" for i in range(12)), "rot_2"]
    vertex = np.empty(9, [(name, "f4") for name in names])
    for number, name in enumerate(names):
        vertex[name] = np.arange(9) + 100 * number
    (tmp_path / "in").mkdir()
    PlyData([PlyElement.describe(vertex, "vertex")]).write(tmp_path / "in/a.ply")
    packed_again(tmp_path / "in", tmp_path, contents)
    assert sorted(properties_of(tmp_path / "out/a.ply")["vertex"]) == sorted(names)
    assert properties_of(tmp_path / "out/a.ply")["vertex"][:4] == ["x", "y", "z", "rot_0"]


def test_properties_that_a_file_lacked_are_not_made_up(tmp_path):
    """Of a set packed with fields=all, each file has its own properties again."""
    make_mesh(tmp_path / "in/a.ply")
    xyz = np.zeros(4, [("x", "f4"), ("y", "f4"), ("z", "f4")])
    PlyData([PlyElement.describe(xyz, "vertex")]).write(tmp_path / "in/b.ply")
    convert(str(tmp_path / "in"), tmp_path / "d", workers=0, source=SourceOptions(fields="all"))
    export(tmp_path / "d", tmp_path / "out")
    assert properties_of(tmp_path / "out/b.ply")["vertex"] == ["x", "y", "z"]
    assert len(properties_of(tmp_path / "out/a.ply")["vertex"]) == 14


def test_a_cast_field_has_its_new_type(tmp_path):
    """What was packed as float32 is not written as the float64 that it no longer is."""
    xyz = np.ones(4, [("x", "f8"), ("y", "f8"), ("z", "f8")])
    (tmp_path / "in").mkdir()
    PlyData([PlyElement.describe(xyz, "vertex")]).write(tmp_path / "in/a.ply")
    convert(str(tmp_path / "in"), tmp_path / "d", workers=0, source=SourceOptions(cast={"xyz": "float32"}))
    export(tmp_path / "d", tmp_path / "out")
    assert {p.val_dtype for p in PlyData.read(tmp_path / "out/a.ply")["vertex"].properties} == {"f4"}


@pytest.mark.parametrize(
    ("elements", "rows"),
    [
        (
            "element vertex 2\nproperty float x\nproperty float y\nproperty float z\nproperty list uchar float w\n",
            "1 2 3 0\n4 5 6 0\n",
        ),
        ("element vertex 2\nproperty list uchar float w\n", "0\n0\n"),
        (
            "element vertex 1\nproperty float x\nelement face 2\nproperty list uchar int vertex_indices\n"
            "property list uchar float texcoord\n",
            "1\n3 0 0 0 0\n3 0 0 0 0\n",
        ),
    ],
)
@pytest.mark.parametrize("to", ["ply", "ply-text"])
def test_lists_that_are_all_empty_come_back(tmp_path, contents, elements, rows, to):
    """A property of empty lists alone is a property, and its rows stay."""
    path = tmp_path / "in" / "a.ply"
    path.parent.mkdir()
    path.write_text(f"ply\nformat ascii 1.0\n{elements}end_header\n{rows}")
    packed_again(path, tmp_path, contents, to)


def test_samples_made_in_python_become_clouds(tmp_path):
    """Fields that came from no PLY file are named as the PLY source would take them apart again."""
    rng = np.random.default_rng(0)
    samples = [
        {
            "xyz": rng.normal(size=(n + 2, 3)).astype("f4"),
            "rgb": rng.integers(0, 255, (n + 2, 3), np.uint8),
            "label": np.arange(n + 2, dtype="i2"),
            "face": rng.integers(0, n + 2, (n, 3), np.int32),
        }
        for n in range(3)
    ]
    convert(samples, tmp_path / "one", workers=0)
    export(tmp_path / "one", tmp_path / "out", to="ply")
    convert(str(tmp_path / "out"), tmp_path / "two", workers=0)
    found = PackedDataset(tmp_path / "two")
    for sample, number in zip(samples, range(3), strict=True):
        assert {name: value.numpy().tolist() for name, value in found[number].items()} == {
            name: value.tolist() for name, value in sample.items()
        }


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ({"x": np.zeros(3, np.int64)}, "'x' is int64, but PLY has"),
        ({"x": np.float32(1)}, "'x' is not a list of points"),
        ({"x": np.zeros(3, "f4"), "y": np.zeros(2, "f4")}, "has 2 rows, but others of element vertex have 3"),
        ({"a b": np.zeros(3, "f4")}, "has a name that PLY cannot hold"),
        ({"t": "text"}, "'t' is not a list of points"),
        ({"face": np.zeros(9, "i4")}, "'face' needs the field face_size"),
        (
            {"face": np.zeros(9, "i4"), "face_size": np.ones(1, "i4")},
            "face_size do not add up to 'face'; export to hdf5",
        ),
    ],
)
def test_what_ply_cannot_hold_is_refused(tmp_path, sample, words):
    """The field is named, and why it cannot be."""
    convert([sample], tmp_path / "d", workers=0)
    with pytest.raises(UsageError, match=words):
        export(tmp_path / "d", tmp_path / "out", to="ply")


def test_without_plyfile_nothing_is_begun(tmp_path, monkeypatch):
    """The error says what to install, and no folder is made."""
    convert([{"xyz": np.zeros((3, 3), np.float32)}], tmp_path / "d", workers=0)
    monkeypatch.setattr("packer.export.ply.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install '.\[ply\]'"):
        export(tmp_path / "d", tmp_path / "out", to="ply")
    assert not (tmp_path / "out").exists()


def test_chosen_fields_leave_the_rest_out(tmp_path):
    """--fields takes properties and elements away, and nothing else."""
    make_mesh(tmp_path / "in/a.ply")
    convert(str(tmp_path / "in"), tmp_path / "d", workers=0)
    export(tmp_path / "d", tmp_path / "out", fields=["xyz"])
    assert properties_of(tmp_path / "out/a.ply") == {"vertex": ["x", "y", "z"]}
    whole = PlyData.read(tmp_path / "in/a.ply")["vertex"]
    assert PlyData.read(tmp_path / "out/a.ply")["vertex"]["y"].tobytes() == whole["y"].tobytes()


def test_real_files_come_back(tmp_path, contents):
    """The PLY files at hand, packed, exported and packed again, have the same fields."""
    for number, path in enumerate(real_files("ply_*/**/*.ply")):
        packed_again(path, tmp_path / str(number), contents)
