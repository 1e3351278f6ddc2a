"""Arrays of .npy and .npz files as rows: what is read, and what is refused."""

from __future__ import annotations

import io
import re
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from opened_sources import open_npy, read_joined

from packer.errors import SourceError, UsageError
from packer.sources import SourceOptions, open_sources
from packer.sources.arrays import reading as npy

X = np.arange(60, dtype=np.float32).reshape(10, 2, 3)
Y = np.arange(10, dtype=np.int64)


def save(path, array):
    np.save(path, array)
    return str(path)


def header_of(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()[: -array.nbytes]


def test_a_folder_of_arrays(tmp_path):
    """Files are fields, rows are samples, and a part reads its own rows."""
    paths = [save(tmp_path / "x.npy", X), save(tmp_path / "y.npy", Y)]
    source = open_sources([str(tmp_path)])
    assert [(spec.name, spec.dtype, spec.shape) for spec in source.fields] == [
        ("x", "float32", (2, 3)),
        ("y", "int64", ()),
    ]
    assert (source.kind, source.names, len(source), source.files()) == ("npy", None, 10, paths)
    values = read_joined(source.slice(2, 9).slice(1, 4))
    np.testing.assert_array_equal(values["x"], X[3:6])
    np.testing.assert_array_equal(values["y"], Y[3:6])


def test_a_bad_part_of_one_array_before_those_of_another(tmp_path):
    """It alone is named, with the array that it is a part of."""
    for field in "xy":
        (tmp_path / field).mkdir()
        for number in range(4):
            save(tmp_path / field / f"{number}.npy", X)
    (tmp_path / "x" / "1.npy").write_bytes(b"none")
    with pytest.raises(SourceError, match=r"x/1\.npy: /x is not a .npy array: [^;]*; save it again") as caught:
        open_sources([f"{field}={tmp_path / field}" for field in "xy"])
    assert caught.value.path == str(tmp_path / "x" / "1.npy")


def test_files_of_the_current_folder_and_of_another(tmp_path, monkeypatch):
    """One path may be relative and another absolute; names in the manifest count from the folder that holds both."""
    (tmp_path / "a").mkdir()
    save(tmp_path / "a" / "x.npy", X)
    monkeypatch.chdir(tmp_path / "a")
    source = open_sources(["x=x.npy", f"y={save(tmp_path / 'y.npy', Y)}"])
    assert [file.name for file in source.origin["files"]] == ["a/x.npy", "y.npy"]


@pytest.mark.parametrize("savez", [np.savez, np.savez_compressed])
def test_members_of_an_npz(tmp_path, savez, monkeypatch):
    """Members are fields, stored or deflated, in runs of few rows too; what is no array is skipped, and said."""
    savez(tmp_path / "rows.npz", x=X, y=Y, f=np.asfortranarray(X[:, 0]), big=Y.astype(">u2"))
    with zipfile.ZipFile(tmp_path / "rows.npz", "a") as archive:
        archive.writestr("readme.txt", "about")
    monkeypatch.setattr(npy, "BLOCK_BYTES", 150)
    source = open_sources([str(tmp_path / "rows.npz")])
    assert [spec.name for spec in source.fields] == ["x", "y", "f", "big"]
    assert source.remarks == ["skipped: /readme.txt is no array"]
    assert len(list(source.read())) > 3
    for start, stop in ((0, 10), (4, 9)):
        values = read_joined(source.slice(start, stop))
        for name, array in {"x": X, "y": Y, "f": X[:, 0], "big": Y.astype("u2")}.items():
            np.testing.assert_array_equal(values[name], array[start:stop])
            assert values[name].dtype == array.dtype.newbyteorder("=")


def test_an_empty_member_is_named_and_can_be_skipped(tmp_path):
    """It has no rows for the others: refused with the option that leaves it out; a sample of a file may be empty."""
    np.savez(tmp_path / "rows.npz", x=X, y=Y, none=np.zeros((0, 3)))
    with pytest.raises(SourceError, match=r"(?s)leave others out, as with --skip none.*/none: 0 samples of array"):
        open_npy({"": str(tmp_path / "rows.npz")})
    source = open_npy({"": str(tmp_path / "rows.npz")}, skip=("none",))
    assert ([spec.name for spec in source.fields], len(source)) == (["x", "y"], 10)
    assert [spec.shape for spec in open_npy({"": str(tmp_path)}, samples="files").fields][2] == (0, 3)


DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    hnp.complex_number_dtypes(endianness="?", sizes=(64, 128)),
)
SIDE = st.integers(0, 4)


@given(
    array=hnp.arrays(DTYPES, st.tuples(st.integers(1, 5)) | st.tuples(st.integers(1, 5), SIDE, SIDE)),
    is_fortran=st.booleans(),
    way=st.sampled_from(["npy", "npz", "deflated"]),
)
def test_every_plain_array_comes_back(tmp_path_factory, array, is_fortran, way):
    """Whatever the dtype, byte order, order and container, rows and files are the same to the bit, native and C."""
    folder = tmp_path_factory.mktemp("npy")
    kept = np.asfortranarray(array) if is_fortran else array
    if way == "npy":
        save(folder / "x.npy", kept)
    else:
        (np.savez if way == "npz" else np.savez_compressed)(folder / "x.npz", x=kept)
    (block,) = open_sources([str(folder)]).read()
    (sample,) = open_sources([f"x={folder}"], SourceOptions(samples="files")).read()
    for found in (block["x"], sample["x"][0]):
        assert (found.flags.c_contiguous, found.flags.aligned) == (True, True)
        assert (found.dtype, found.shape) == (array.dtype.newbyteorder("="), array.shape)
        assert found.tobytes() == array.astype(array.dtype.newbyteorder("=")).tobytes()


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.array([{}, []], object), "/x holds Python objects, which only pickle reads"),
        (np.float32(3), "holds no array with a sample axis; say --samples files"),
        (np.array([["a", "bc"]]), r"/x holds strings of shape \(2,\) a sample, but only one can be stored"),
        (np.zeros(2, "datetime64[s]"), "/x holds values of .*, which cannot be stored"),
        (np.zeros(2, np.longdouble), "/x holds values of .*, which cannot be stored"),
    ],
    ids=["objects", "0-d", "text", "dates", "long"],
)
@pytest.mark.parametrize("container", ["npy", "npz"])
def test_arrays_that_cannot_be_packed(tmp_path, array, reason, container):
    """Each is refused with its path and the reason, and no pickle is loaded."""
    if container == "npy":
        np.save(tmp_path / "x.npy", array, allow_pickle=True)
        where = r"x\.npy: "
    else:
        np.savez(tmp_path / "rows.npz", x=array)
        where = r"rows\.npz: "
    with pytest.raises(SourceError, match=where + reason):
        open_sources([str(tmp_path)])


def save_mixed(path):
    """Save what .npz files hold next to rows: objects, dates, a setting, a grid, and arrays of other lengths."""
    odd = {"meta": np.array({"by": "us"}, object), "when": np.zeros(10, "datetime64[s]"), "fps": np.float64(25)}
    np.savez_compressed(path, x=X, y=Y, grid=np.arange(4.0), **odd)
    return str(path)


def test_what_is_not_asked_for_costs_nothing(tmp_path):
    """--field takes arrays by name, whatever lies next to them; --skip leaves out what cannot be packed."""
    path = save_mixed(tmp_path / "mixed.npz")
    picked = open_sources([path], SourceOptions(pick={"image": "/x", "label": "y"}))
    np.testing.assert_array_equal(read_joined(picked)["image"], X)
    np.testing.assert_array_equal(read_joined(picked)["label"], Y)
    with pytest.raises(
        SourceError, match=r"/meta holds Python objects.*; /when holds values of .*\. Leave out with (--skip .*), or"
    ) as e:
        open_sources([path])
    skips = tuple(re.findall(r"--skip (\w+)", str(e.value)))
    with pytest.raises(SourceError, match=r"no common sample axis: .* as with --skip grid ") as e:
        open_sources([path], SourceOptions(skip=skips))
    left = open_sources([path], SourceOptions(skip=(*skips, "grid")))
    assert [spec.name for spec in left.fields] == ["x", "y"]
    assert left.remarks == ["skipped: /fps is a single value, which --once /fps keeps"]
    kept = open_sources([path], SourceOptions(skip=skips, once=("grid", "fps")))
    assert {name: values.tolist() for name, values in kept.constants.items()} == {"grid": [0, 1, 2, 3], "fps": 25}
    for options in (
        SourceOptions(skip=(*skips, "grid", "nothing")),
        SourceOptions(pick={"x": "x"}, once=("nothing",)),
    ):
        with pytest.raises(UsageError, match=r"nothing: .*no such array"):
            open_sources([path], options)
    with pytest.raises(SourceError, match=r"has no array /z for field a; it holds:\n  /x: "):
        open_sources([path], SourceOptions(pick={"a": "/z"}))


def test_members_of_a_named_file_are_skipped_by_their_names(tmp_path):
    """With the field in front or not; if one is left, it has the name of the field."""
    np.savez(tmp_path / "rows.npz", a=X, b=Y)
    assert [spec.name for spec in open_npy({"x": str(tmp_path / "rows.npz")}).fields] == ["x.a", "x.b"]
    for skip in ("b", "x.b"):
        assert [spec.name for spec in open_npy({"x": str(tmp_path / "rows.npz")}, skip=(skip,)).fields] == ["x"]


def test_a_damaged_member_takes_no_other(tmp_path):
    """A member whose bytes are damaged is an error if it is asked for, and nothing else is."""
    path = tmp_path / "rows.npz"
    np.savez(path, a=X, b=Y)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"a.npy", b"z.npy", 1))
    values = read_joined(open_sources([str(path)], SourceOptions(pick={"b": "/b"})))
    np.testing.assert_array_equal(values["b"], Y)
    with pytest.raises(SourceError, match=r"/a is damaged.* Leave out with --skip a"):
        open_sources([str(path)])


@pytest.mark.parametrize("saver", [np.save, lambda path, rows: np.savez(path, rows=rows)], ids=["npy", "npz"])
def test_structured_arrays_are_fields_by_member(tmp_path, saver):
    """Each member is a field, nested ones too, and text is text; --field takes one member or all under a name."""
    inner = np.dtype([("u", ">i2"), ("v", "?")])
    rows = np.zeros(5, [("xyz", "f4", 3), ("name", "U4"), ("tag", "S4"), ("in", inner)])
    rows["xyz"], rows["in"]["u"] = np.arange(15).reshape(5, 3), np.arange(5)
    rows["name"], rows["tag"] = ["a", "", "日本", "b", "c"], [b"a", b"bc", b"", b"\xc3\xa9", b"d"]
    path = tmp_path / ("rows.npy" if saver is np.save else "rows.npz")
    saver(path, rows)
    source = open_sources([str(path)])
    assert [spec.name for spec in source.fields] == ["rows.xyz", "rows.name", "rows.tag", "rows.in.u", "rows.in.v"]
    values = read_joined(source.slice(1, 4))
    np.testing.assert_array_equal(values["rows.xyz"], rows["xyz"][1:4])
    np.testing.assert_array_equal(values["rows.in.u"], [1, 2, 3])
    assert list(values["rows.name"]) == ["", "日本", "b"]
    assert list(values["rows.tag"]) == ["bc", "", "é"]
    picked = open_sources([str(path)], SourceOptions(pick={"p": "/rows/xyz", "q": "/rows/in"}))
    assert [spec.name for spec in picked.fields] == ["p", "q.u", "q.v"]
    rows["tag"][2] = b"\xff"
    saver(path, rows)
    with pytest.raises(SourceError, match=r"field rows.tag: text that is not UTF-8"):
        read_joined(open_sources([str(path)]))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x93NUMPY\x01\x00", "is not a .npy array"),
        (b"\x93NUMPY\x09\x00" + bytes(200), "is not a .npy array|version 9"),
        (b"\x93NUMPY\x03\x00" + bytes(200), r"version 3\.0 \(3\.0 has names of members beyond Latin-1: rename them\)"),
        (header_of(X), "by its header has 240 bytes .* but the file has 0: it is cut short"),
        (header_of(X) + X.tobytes()[:-1], "but the file has 239: it is cut short"),
        (header_of(X) + X.tobytes() + b"\0", "but the file has 241: something else follows the array"),
        (
            header_of(X).replace(b"(10, 2, 3)", b"(-1, 2, 3)") + X.tobytes(),
            r"by its header has -24 bytes \(shape \(-1, 2, 3\)",
        ),
        (
            header_of(X).replace(b"(10, 2, 3)", b"(-5,-4, 3)") + X.tobytes(),
            r"by its header has .* \(shape \(-5, -4, 3\)",
        ),
        (header_of(X).replace(b"(10, 2, 3)", b"(99**99,) ") + X.tobytes(), "is not a .npy array"),
        (header_of(X).replace(b"'<f4'", b"'<f9'") + X.tobytes(), "is not a .npy array"),
        (header_of(X).replace(b"{", b"[") + X.tobytes(), "is not a .npy array"),
    ],
)
def test_damaged_npy(tmp_path, data, reason):
    """A header that is none, and one that says more or less than there is, are errors before anything is read."""
    (tmp_path / "x.npy").write_bytes(data)
    with pytest.raises(SourceError, match=rf"x\.npy: .*({reason})"):
        open_npy({"x": str(tmp_path / "x.npy")})


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_a_file_that_changes_after_it_was_opened(tmp_path, name):
    """One that is cut short, holds something else or has gone is named when it is read."""
    path, saver = tmp_path / name, np.save if name == "x.npy" else np.savez
    saver(path, X)
    source = open_npy({"x": str(path)})
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(SourceError, match=rf"{name}: is damaged, or not a \{path.suffix} file"):
        read_joined(source)
    saver(path, X[1:])
    with pytest.raises(SourceError, match=rf"{name}.*: the file has changed; run again"):
        read_joined(source)
    path.unlink()
    with pytest.raises(SourceError, match=rf"{name}: cannot be read: No such file"):
        read_joined(source)


@pytest.mark.parametrize("way", ["npy", "npz", "deflated"])
def test_bools_are_0_or_1(tmp_path, way):
    """Another byte is an error, and becomes no True in silence."""
    flags = np.array([0, 1, 2, 0], np.uint8).view(bool)
    path = tmp_path / ("x.npy" if way == "npy" else "x.npz")
    saver = {"npy": np.save, "npz": np.savez, "deflated": np.savez_compressed}[way]
    saver(path, flags)
    with pytest.raises(SourceError, match="a bool is 0 or 1, but it holds 2"):
        read_joined(open_npy({"x": str(path)}))
    saver(path, flags[:2])
    assert read_joined(open_npy({"x": str(path)}))["x"].tolist() == [False, True]


@pytest.mark.parametrize("savez", [np.savez, np.savez_compressed])
def test_damaged_npz(tmp_path, savez):
    """A flipped bit is found by the member's checksum, a file cut short, or a wrong offset, when it is opened."""
    path = tmp_path / "rows.npz"
    savez(path, x=np.random.default_rng(0).random((500, 4)))
    whole = path.read_bytes()
    path.write_bytes(whole[:5000] + bytes([whole[5000] ^ 4]) + whole[5001:])
    with pytest.raises(SourceError, match=r"rows\.npz: (/x )?is damaged"):
        read_joined(open_npy({"": str(path)}))
    end = whole.index(b"PK\5\6")
    beyond = whole[: end + 16] + b"\xff\xff\xff\x7f" + whole[end + 20 :]  # where the list of members should be
    for data in (whole[:5000], whole[10:], beyond):
        path.write_bytes(data)
        with pytest.raises(SourceError, match=r"rows\.npz: (/x )?is damaged"):
            open_npy({"": str(path)})


def test_a_name_with_an_equals_sign_becomes_a_field(tmp_path):
    """Such as a program writes with its settings: the field has `_` in its place, and a remark says so."""
    np.savez(tmp_path / "b.npz", **{"k=3": X})
    np.save(tmp_path / "lr=0.1.npy", X)
    for name, shown, field in (("lr=0.1.npy", "/lr=0.1", "lr_0.1"), ("b.npz", "/k=3", "k_3")):
        source = open_npy({"": str(tmp_path / name)})
        said = f"field {field}: {shown} holds =, which no name of a field can; _ stands in its place"
        assert ([spec.name for spec in source.fields], list(source.remarks)) == ([field], [said])
    assert list(open_npy({"x": str(tmp_path / "lr=0.1.npy")}).remarks) == []


def test_arrays_that_do_not_go_together(tmp_path):
    """Other lengths, a name for several arrays, one name twice, and no file at all are each said."""
    (tmp_path / "a").mkdir()
    x, y = save(tmp_path / "x.npy", X), save(tmp_path / "a" / "y.npy", Y[:9])
    with pytest.raises(SourceError, match=r"(?s)no common sample axis.*--skip y.*/x: 10 samples.*/y: 9 samples"):
        open_npy({"x": x, "y": y})
    save(tmp_path / "a" / "x.npy", X)
    with pytest.raises(UsageError, match=r"z=: these 2 arrays are not numbered parts of one: "):
        open_npy({"z": str(tmp_path / "a")})
    with pytest.raises(UsageError, match="would both be field 'x'"):
        open_npy({"": str(tmp_path / "**" / "x.npy")})
    with pytest.raises(UsageError, match="would both be field 'x'"):
        open_npy({"x": y, "": str(tmp_path / "a")})
    with pytest.raises(UsageError, match="no file fits it as a pattern"):
        open_npy({"": str(tmp_path / "none*.npy")})
    (tmp_path / "gone.npy").symlink_to("nowhere")
    with pytest.raises(UsageError, match="none of its files can be read"):
        open_npy({"": str(tmp_path / "gone.npy")}, bad=lambda error: None, samples="files")
    np.savez(tmp_path / "empty.npz")
    with pytest.raises(SourceError, match=r"empty\.npz: holds no array"):
        open_npy({"": str(tmp_path / "empty.npz")})


def test_numbered_files_are_parts_or_fields_and_the_user_says_which(tmp_path):
    """Files alike apart from digits, of one dtype and row shape, are refused with one sentence; its ways work."""
    for number in (10, 2, 1):
        save(tmp_path / f"part{number:02}.npy", X + number)
    with pytest.raises(
        UsageError, match=r"part01\.npy and part02\.npy are named alike.*FIELD='PATTERN'.*--samples files"
    ):
        open_sources([str(tmp_path)])
    source = open_npy({"part": f"{tmp_path}/part*.npy"})
    joined = np.concatenate([X + 1, X + 2, X + 10])
    np.testing.assert_array_equal(read_joined(source)["part"], joined)
    np.testing.assert_array_equal(read_joined(source.slice(8, 23))["part"], joined[8:23])
    fields = open_npy({path.stem: str(path) for path in sorted(tmp_path.iterdir())})
    assert ([spec.name for spec in fields.fields], len(fields)) == (["part01", "part02", "part10"], 10)


def test_parts_of_several_fields_need_no_common_borders(tmp_path):
    """x and y in parts of other lengths, and z in one file, are rows of one dataset, each named by a pattern."""
    for number, rows in enumerate((4, 6)):
        save(tmp_path / f"x_{number}.npy", X[:rows] + number)
        save(tmp_path / f"y_{number}.npy", Y[: 10 - rows] + number)
    z = save(tmp_path / "z.npy", Y)
    values = read_joined(open_npy({"x": f"{tmp_path}/x_*.npy", "y": f"{tmp_path}/y_*.npy", "z": z}))
    np.testing.assert_array_equal(values["x"], np.concatenate([X[:4], X[:6] + 1]))
    np.testing.assert_array_equal(values["y"], np.concatenate([Y[:6], Y[:4] + 1]))
    np.testing.assert_array_equal(values["z"], Y)
    kept = open_npy({"x": f"{tmp_path}/x_*.npy", "y": f"{tmp_path}/y_*.npy"}, once=("y",))
    np.testing.assert_array_equal(kept.constants["y"], values["y"])
    assert [spec.name for spec in kept.fields] == ["x"]


def test_a_folder_named_as_a_field_is_its_parts(tmp_path):
    """FIELD=FOLDER joins its files in natural order, and refuses what are no parts of one array."""
    save(tmp_path / "10.npy", Y)
    save(tmp_path / "9.npy", Y + 1)
    assert read_joined(open_sources([f"y={tmp_path}"]))["y"].tolist() == [*(Y + 1), *Y]
    (note,) = open_sources([f"y={tmp_path}"]).remarks
    assert note == "field y: the rows of 2 files, one after another; `--samples files` makes each a sample"
    save(tmp_path / "8.npy", X)
    with pytest.raises(UsageError, match=r"8\.npy holds rows of .*, most of "):
        open_sources([f"y={tmp_path}"])
    save(tmp_path / "8.npy", Y)
    save(tmp_path / "weight.npy", Y)
    with pytest.raises(UsageError, match=r"4 arrays are not numbered parts of one: .*weight.* holds rows of"):
        open_sources([f"y={tmp_path}"])


def test_names_that_differ_in_letters_are_fields(tmp_path):
    """coord, color and normal are a field each although their rows are alike; so are x1 and x2 of other dtypes."""
    for name in ("coord", "color", "normal"):
        save(tmp_path / f"{name}.npy", X[:, 0])
    save(tmp_path / "x1.npy", Y)
    save(tmp_path / "x2.npy", Y.astype("i2"))
    assert {spec.name for spec in open_sources([str(tmp_path)]).fields} == {"coord", "color", "normal", "x1", "x2"}


def test_rows_of_the_same_files_are_refused(tmp_path):
    """A file is one field's; of a wider pattern it goes to the narrower one, and the plan says so."""
    x, y = save(tmp_path / "x.npy", X), save(tmp_path / "y.npy", Y)
    with pytest.raises(UsageError, match="fields 'a' and 'b' are the same files"):
        open_npy({"a": x, "b": x})
    source = open_npy({"y": y, "": str(tmp_path)})
    assert [spec.name for spec in source.fields] == ["y", "x"]
    assert "1 files also fit y, and go there" in source.remarks
