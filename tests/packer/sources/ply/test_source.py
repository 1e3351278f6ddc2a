"""Sets of PLY files as a source: fields, shapes, names, and what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from opened_sources import open_ply, read_each
from plyfile import PlyData, PlyElement

from packer.errors import SourceError, UsageError
from packer.sources import Source
from packer.sources.looking import AFTER_END


def vertices(count: int, spec: str = "x:f4 y:f4 z:f4") -> PlyElement:
    """A vertex element of random values; `spec` names properties and types."""
    rng = np.random.default_rng(count)
    types = [tuple(word.split(":")) for word in spec.split()]
    data = np.empty(count, types)
    for name, _ in types:
        data[name] = rng.integers(0, 100, count)
    return PlyElement.describe(data, "vertex")


def faces(*rows: list[int], name: str = "vertex_indices", element: str = "face", dtype: str = "i4") -> PlyElement:
    data = np.empty(len(rows), [(name, "O")])
    for i, row in enumerate(rows):
        data[name][i] = np.array(row, dtype)
    return PlyElement.describe(data, element, len_types={name: "u1"}, val_types={name: dtype})


def write(path: Path, *elements: PlyElement, text: bool = False, order: str = "<", **kept) -> dict:
    path.parent.mkdir(parents=True, exist_ok=True)
    PlyData(elements, text=text, byte_order=order, **kept).write(str(path))
    return {e.name: e.data for e in elements}


def samples(source: Source) -> list[dict]:
    """All samples, after a check that they are what `fields` and `shapes` announce."""
    found = []
    by_field = read_each(source)
    for i in range(len(source)):
        sample = {name: arrays[i] for name, arrays in by_field.items()}
        assert list(sample) == [f.name for f in source.fields]
        for field in source.fields:
            array = sample[field.name]
            assert array.dtype == np.dtype(field.dtype)
            assert array.dtype.isnative
            assert array.flags.c_contiguous
            assert array.flags.aligned
            assert tuple(source.shapes(field.name)[i]) == array.shape
            assert field.shape[0] is None
            assert field.shape[1:] == array.shape[1:]
        found.append(sample)
    assert len(found) == len(source)
    return found


def specs(source: Source) -> dict[str, tuple[str, tuple[int | None, ...]]]:
    return {f.name: (f.dtype, f.shape) for f in source.fields}


@pytest.mark.parametrize(("text", "order"), [(True, "="), (False, "<"), (False, ">")])
def test_field_names(tmp_path, text: bool, order: str) -> None:
    """Groups become one field each whatever their place; all else keeps its name; alpha makes rgba."""
    spec = "red:u1 green:u1 blue:u1 alpha:u1 w:f8 nx:f4 ny:f4 nz:f4 z:f4 x:f4 y:f4"
    expected = write(tmp_path / "a.ply", vertices(5, spec), text=text, order=order)["vertex"]
    source = open_ply(str(tmp_path))
    assert specs(source) == {
        "xyz": ("float32", (None, 3)),
        "normal": ("float32", (None, 3)),
        "rgba": ("uint8", (None, 4)),
        "w": ("float64", (None,)),
    }
    (sample,) = samples(source)
    for field, members in (("xyz", "x y z"), ("normal", "nx ny nz"), ("rgba", "red green blue alpha")):
        assert sample[field].tolist() == np.stack([expected[m] for m in members.split()], axis=1).tolist()
    assert sample["w"].tolist() == expected["w"].tolist()


def test_groups_of_several_types_stay_apart(tmp_path) -> None:
    """x, y, z or a_0, a_1 of different types are fields of their own, unless cast says what they shall be together."""
    write(tmp_path / "a.ply", vertices(3, "x:f4 y:f4 z:f8 red:u1 green:u1 blue:u1 alpha:f4 a_0:i4 a_1:f4"))
    assert list(specs(open_ply(str(tmp_path)))) == ["rgb", "x", "y", "z", "alpha", "a_0", "a_1"]
    source = open_ply(str(tmp_path), cast={"xyz": "float64", "a": "float32"})
    assert (specs(source)["xyz"], specs(source)["a"]) == (("float64", (None, 3)), ("float32", (None, 2)))
    samples(source)


@pytest.mark.parametrize("text", [True, False])
def test_faces(tmp_path, text: bool) -> None:
    """Faces are (m, 3) only if all of the whole set are triangles, (m,) for quads too; types of indices may differ."""
    write(tmp_path / "a.ply", vertices(4), faces([0, 1, 2], [1, 2, 3]), text=text)
    write(tmp_path / "b.ply", faces([0, 1, 2], name="vertex_index", dtype="u4"), vertices(4), text=text)
    write(tmp_path / "c.ply", vertices(4), faces(), text=text)
    source = open_ply(str(tmp_path))
    assert specs(source)["face"] == ("int32", (None, 3))
    assert [s["face"].tolist() for s in samples(source)] == [[[0, 1, 2], [1, 2, 3]], [[0, 1, 2]], []]
    write(tmp_path / "d.ply", vertices(4), faces([0, 1, 2, 3], [2, 1]), text=text)
    source = open_ply(str(tmp_path))
    assert specs(source)["face"] == specs(source)["face_size"] == ("int32", (None,))
    last = samples(source)[-1]
    assert (last["face"].tolist(), last["face_size"].tolist()) == ([0, 1, 2, 3, 2, 1], [4, 2])
    write(tmp_path / "quads/a.ply", vertices(4), faces([0, 1, 2, 3]))
    assert specs(open_ply(str(tmp_path / "quads")))["face"] == ("int32", (None,))


def test_lists_elsewhere(tmp_path) -> None:
    """Lists that all have one length become a table; others entries and sizes; elements prefix their fields."""
    write(tmp_path / "a.ply", vertices(2), faces([1, 2], [3, 4], element="edge", name="ends", dtype="u2"))
    write(tmp_path / "b.ply", vertices(2), faces([5, 6], element="edge", name="ends", dtype="u2"))
    assert specs(open_ply(str(tmp_path)))["edge_ends"] == ("uint16", (None, 2))
    write(tmp_path / "c.ply", vertices(2), faces([5], element="edge", name="ends", dtype="u2"))
    source = open_ply(str(tmp_path))
    assert specs(source)["edge_ends"] == ("uint16", (None,))
    assert samples(source)[0]["edge_ends_size"].tolist() == [2, 2]


def test_indices_beyond_int32(tmp_path) -> None:
    """A corner number that int32 cannot hold is an error with its row, not another number."""
    write(tmp_path / "a.ply", vertices(4), faces([0, 1, 2], [0, 1, 2**31], dtype="u4"))
    with pytest.raises(
        SourceError, match=r"element face, row 1, property vertex_indices: 2.14748e.09 does not fit int32"
    ):
        samples(open_ply(str(tmp_path)))


def test_order_and_names(tmp_path) -> None:
    """Samples come in natural order, named by the path below the folder without suffix; hidden files are skipped."""
    for name in ("b/10.ply", "b/9.PLY", "a 1.x.ply", "._junk.ply", ".hidden/c.ply", "b/readme.txt"):
        write(tmp_path / name, vertices(1))
    source = open_ply(str(tmp_path))
    assert source.names == ["a 1.x", "b/9", "b/10"]
    assert source.files() == [str(tmp_path / n) for n in ("a 1.x.ply", "b/9.PLY", "b/10.ply")]
    assert source.remarks == ["skipped 1 .txt, 2 hidden"]
    assert open_ply(str(tmp_path / "*" / "*.ply")).names == ["b/10"]
    assert open_ply(str(tmp_path / "**" / "*.ply")).names == ["a 1.x", "b/10"]
    assert open_ply(str(tmp_path / "b" / "10.ply")).names == ["10"]


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ("xyzx", "line 7: there is a second property x"),
        (["xyz", *"xyz"], "two .* would be field xyz"),
        (["a/b"], "a/b"),
    ],
)
def test_properties_that_cannot_be_fields(tmp_path, names: Sequence[str], reason: str) -> None:
    """Two of one name, or a name that no field can have, are refused by name."""
    head = "ply\nformat ascii 1.0\nelement vertex 0\n" + "".join(f"property int {name}\n" for name in names)
    (tmp_path / "a.ply").write_text(head + "end_header\n")
    with pytest.raises(SourceError, match=rf"a\.ply: .*{reason}"):
        open_ply(str(tmp_path))


def test_no_vertices_declared(tmp_path) -> None:
    """A file without a vertex element is refused; one with no rows of it is an empty cloud."""
    write(tmp_path / "a.ply", faces([0, 1, 2]))
    with pytest.raises(SourceError, match="no vertex element"):
        open_ply(str(tmp_path))
    write(tmp_path / "a.ply", vertices(0), text=True)
    assert samples(open_ply(str(tmp_path)))[0]["xyz"].shape == (0, 3)


def mixed_set(folder: Path) -> str:
    write(folder / "1.ply", vertices(2))
    write(folder / "2.ply", vertices(3, "x:f4 y:f4 z:f4 red:u1 green:u1 blue:u1"), text=True)
    write(folder / "3.ply", vertices(4, "z:f4 y:f4 x:f4 red:u1 green:u1 blue:u1"), order=">")
    return str(folder)


def test_files_that_differ(tmp_path) -> None:
    """A file whose fields are not those of most files is named, with the difference; of equally many, the first."""
    folder = mixed_set(tmp_path)
    with pytest.raises(
        SourceError, match=r"1\.ply: its fields differ from those of most files: field rgb \(.*\) is missing"
    ):
        open_ply(folder)
    write(tmp_path / "2.ply", vertices(3, "x:f8 y:f8 z:f8"))
    with pytest.raises(SourceError, match=r"2\.ply: .*: field xyz is float64 x 3, not float32 x 3"):
        open_ply(folder)
    errors: list[SourceError] = []
    assert open_ply(folder, bad=errors.append).names == ["1"]
    assert [Path(str(e.path)).name for e in errors] == ["2.ply", "3.ply"]
    write(tmp_path / "4.ply", vertices(2, "x:f8 y:f8 z:f8"))
    for choice, fields in [("common", ["xyz"]), ("all", ["xyz", "rgb"])]:
        errors.clear()
        source = open_ply(folder, fields=choice, bad=errors.append)
        assert (source.names, list(specs(source))) == (["1", "3"], fields)
        assert [Path(str(e.path)).name for e in errors] == ["2.ply", "4.ply"]


def test_choice_of_fields(tmp_path) -> None:
    """`common`, `all` and names choose fields; with `all`, a field that a file lacks has no rows there."""
    folder = mixed_set(tmp_path)
    source = open_ply(folder, fields="common")
    assert list(specs(source)) == ["xyz"]
    assert source.remarks == ["--fields common skips rgb (in 2 of 3 files), which not all files have alike"]
    assert [len(s["xyz"]) for s in samples(source)] == [2, 3, 4]
    source = open_ply(folder, fields="all")
    assert list(specs(source)) == ["xyz", "rgb"]
    assert [(len(s["xyz"]), len(s["rgb"])) for s in samples(source)] == [(2, 0), (3, 3), (4, 4)]
    assert list(specs(open_ply(folder, fields="xyz"))) == ["xyz"]
    with pytest.raises(SourceError, match=r"1\.ply: .*: field rgb \(.*\) is missing"):
        open_ply(folder, fields="rgb")
    with pytest.raises(UsageError, match="has no field normal; it has xyz"):
        open_ply(folder, fields="normal")


def test_cast(tmp_path) -> None:
    """A cast unites types; a value its new type cannot hold is an error, as is a field that is not there."""
    write(tmp_path / "1.ply", vertices(2, "x:f8 y:f8 z:f8 a:u2"))
    write(tmp_path / "2.ply", vertices(2, "x:f4 y:f4 z:f4 a:u1"))
    source = open_ply(str(tmp_path), cast={"xyz": "float32", "a": "uint8"})
    assert specs(source) == {"xyz": ("float32", (None, 3)), "a": ("uint8", (None,))}
    samples(source)
    head = "ply\nformat ascii 1.0\nelement vertex 2\nproperty ushort a\nend_header\n"
    (tmp_path / "3.ply").write_text(head + "255\n256\n")
    with pytest.raises(SourceError, match="row 1, property a: 256 does not fit uint8"):
        samples(open_ply(str(tmp_path / "3.ply"), cast={"a": "uint8"}))
    with pytest.raises(UsageError, match="no field b"):
        open_ply(str(tmp_path / "3.ply"), cast={"b": "uint8"})
    with pytest.raises(UsageError, match="numeric dtype"):
        open_ply(str(tmp_path / "3.ply"), cast={"a": "half"})


@pytest.mark.parametrize("lists", [False, True])
def test_bytes_after_the_last_row(tmp_path, lists: bool) -> None:
    """They are not packed, and a remark names the files; every number of them counts."""
    for i in range(8):
        write(tmp_path / f"{i}.ply", vertices(3), *([faces([0, 1, 2])] * lists))
    expected = samples(open_ply(str(tmp_path)))
    for i in (2, 5):
        with (tmp_path / f"{i}.ply").open("ab") as file:
            file.write(b"\0" * 12 * i)
    source = open_ply(str(tmp_path))
    assert source.remarks == [f"{AFTER_END}: 2.ply (24 bytes), 5.ply (60 bytes)"]
    assert [s["xyz"].tobytes() for s in samples(source)] == [s["xyz"].tobytes() for s in expected]


def test_names_of_other_programs(tmp_path) -> None:
    """CloudCompare's scalar_NAME is NAME in small letters if nothing else is; diffuse colours are rgb."""
    write(tmp_path / "a.ply", vertices(4, "x:f4 y:f4 z:f4 diffuse_red:u1 diffuse_green:u1 diffuse_blue:u1"))
    assert list(specs(open_ply(str(tmp_path)))) == ["xyz", "rgb"]
    write(tmp_path / "a.ply", vertices(4, "red:u1 green:u1 blue:u1 diffuse_red:u1 diffuse_green:u1 diffuse_blue:u1"))
    assert list(specs(open_ply(str(tmp_path)))) == ["rgb", "diffuse_red", "diffuse_green", "diffuse_blue"]
    spec = "x:f4 y:f4 z:f4 scalar_Intensity:f4 scalar_Label:f4 label:u1 scalar_xyz:f4 scalar_A:f4 scalar_a:f4"
    values = write(tmp_path / "a.ply", vertices(4, spec))["vertex"]
    names = ["xyz", "intensity", "scalar_Label", "label", "scalar_xyz", "scalar_A", "scalar_a"]
    assert list(specs(open_ply(str(tmp_path)))) == names
    assert samples(open_ply(str(tmp_path)))[0]["intensity"].tolist() == values["scalar_Intensity"].tolist()
    assert "scalar_Intensity" in specs(open_ply(str(tmp_path), group="none"))


def test_groups_that_the_user_names(tmp_path) -> None:
    """They become one field, in the order given; types that differ, or properties that no file has, are refused."""
    values = write(tmp_path / "a.ply", vertices(4, "b:u1 g:u1 r:u1 n_0:f4 n_1:f4 t:f8"))["vertex"]
    source = open_ply(str(tmp_path), group=("rgb=r,g,b",))
    assert specs(source) == {"rgb": ("uint8", (None, 3)), "n": ("float32", (None, 2)), "t": ("float64", (None,))}
    assert samples(source)[0]["rgb"][:, 0].tolist() == values["r"].tolist()
    assert list(specs(open_ply(str(tmp_path), group=("rgb=r,g,b", "none")))) == ["rgb", "n_0", "n_1", "t"]
    with pytest.raises(SourceError, match=r"--group q: its properties are float64 and uint8; .* --cast q=uint8"):
        open_ply(str(tmp_path), group=("q=b,t",))
    assert specs(open_ply(str(tmp_path), group=("q=b,t",), cast={"q": "float64"}))["q"] == ("float64", (None, 2))
    with pytest.raises(UsageError, match="--group q: no file has vertices with the properties u, v"):
        open_ply(str(tmp_path), group=("q=u,v",))
    for wrong, words in ((("rgb",), "none or FIELD=A,B"), (("a=b,",), "none or"), (("a=b,g", "a=r,g"), "already")):
        with pytest.raises(UsageError, match=words):
            open_ply(str(tmp_path), group=wrong)


def test_bad_files_are_reported_and_skipped(tmp_path) -> None:
    """`bad` hears of each bad header, the rest is packed; with no good file left there is an error."""
    write(tmp_path / "good.ply", vertices(2))
    (tmp_path / "empty.ply").write_bytes(b"")
    (tmp_path / "cut.ply").write_bytes((tmp_path / "good.ply").read_bytes()[:-1])
    errors: list[SourceError] = []
    assert open_ply(str(tmp_path), bad=errors.append).names == ["good"]
    assert sorted(Path(str(e.path)).name for e in errors) == ["cut.ply", "empty.ply"]
    (tmp_path / "good.ply").unlink()
    with pytest.raises(SourceError, match="none of its files"):
        open_ply(str(tmp_path), bad=errors.append)


def test_bad_body_names_the_sample(tmp_path) -> None:
    """A body found bad while reading gives its sample number within the part; samples before it are out."""
    head = "ply\nformat ascii 1.0\nelement vertex 1\nproperty uchar a\nend_header\n"
    for i, value in enumerate(["1", "2", "300", "4"]):
        (tmp_path / f"{i}.ply").write_text(head + f"{value}\n")
    blocks = open_ply(str(tmp_path)).slice(1, 4).read()
    assert next(blocks)["a"][0].tolist() == [2]
    with pytest.raises(SourceError, match=r"2\.ply: line 6, a: 300") as caught:
        next(blocks)
    assert caught.value.sample == 1


def test_parts(tmp_path) -> None:
    """A part holds its own samples alone, with the fields of the whole, and survives pickling small."""
    for i in range(6):
        write(tmp_path / f"{i}.ply", vertices(i), faces([0, 1, 2], *([[0, 1, 2, 3]] if i == 5 else [])))
    whole = open_ply(str(tmp_path))
    part = pickle.loads(pickle.dumps(whole.slice(2, 4)))
    assert part.fields == whole.fields
    assert part.names == ["2", "3"]
    for found, expected in zip(samples(part), samples(whole)[2:4], strict=True):
        assert not [k for k in expected if found[k].tolist() != expected[k].tolist()]
    assert len(pickle.dumps(whole.slice(2, 4))) < 5000


@pytest.mark.parametrize("text", [True, False])
def test_changed_file(tmp_path, text: bool) -> None:
    """A file that is no longer what the plan was made from is an error."""
    path = tmp_path / "a.ply"
    write(path, vertices(2), faces([0, 1, 2]), text=text)
    source = open_ply(str(path))
    for changed in ([vertices(3), faces([0, 1, 2])], [vertices(2), faces([0, 1, 2, 3])], [vertices(2)]):
        write(path, *changed, text=text)
        with pytest.raises(SourceError, match=r"has changed|when its header was read"):
            samples(source)


def test_origin_has_the_options(tmp_path) -> None:
    """The manifest keeps the options as JSON, and no path."""
    write(tmp_path / "1.ply", vertices(2))
    origin = open_ply(str(tmp_path), fields="xyz", cast={"xyz": "float64"}).origin
    assert origin == {"options": {"fields": ["xyz"], "cast": {"xyz": "float64"}}}
