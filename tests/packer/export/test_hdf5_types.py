"""HDF5 files come back with their dtypes: byte order, fixed strings, arrays, compounds."""

from __future__ import annotations

import json

import h5py
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opened_sources import open_hdf5

from packer.append import append
from packer.convert import convert
from packer.errors import UsageError
from packer.export import export
from packer.format import manifest as manifests
from packer.merge import merge
from packer.repack import repack
from packer.sources.options import SourceOptions

NUMBERS = [f"{order}{kind}" for kind in ("i2", "u4", "i8", "f2", "f4", "f8", "c8", "c16") for order in "<>"]
NUMBERS += ["|i1", "|u1", "|b1"]
plain = st.sampled_from(NUMBERS).map(np.dtype)
texts = st.builds(h5py.string_dtype, st.sampled_from(["ascii", "utf-8"]), st.none() | st.integers(1, 9))
enums = st.sampled_from(["<i2", ">u4", "|u1"]).map(lambda kind: h5py.enum_dtype({"A": 0, "B": 5}, kind))
lists = st.sampled_from([kind for kind in NUMBERS if kind[0] != ">"]).map(lambda kind: h5py.vlen_dtype(np.dtype(kind)))
numbers = plain | enums
arrays = st.tuples(numbers, st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple)).map(np.dtype)


def compounds(members):
    """Compounds of one to four members."""
    named = st.lists(members, min_size=1, max_size=4)
    return named.map(lambda types: np.dtype([(f"m{number}", type_) for number, type_ in enumerate(types)]))


fixed = numbers | arrays
cells = fixed | compounds(fixed | compounds(fixed)) | st.just(np.dtype((np.dtype([("k", ">i4")]), (2,))))
padded = st.just(np.dtype({"names": ["a", "b"], "formats": [">f4", "u1"], "offsets": [8, 3], "itemsize": 16}))
records = texts | lists | compounds(fixed | texts | lists | compounds(texts))
WORDS = ["", "a", "abc", "no more"]


def fill(out, rng):
    """Random values, in place, into an array of whatever type."""
    dtype = out.dtype
    if dtype.names:
        for name in dtype.names:
            fill(out[name], rng)
        return
    text, base = h5py.check_string_dtype(dtype), h5py.check_vlen_dtype(dtype)
    for where in np.ndindex(out.shape):
        if text is not None:
            word = str(rng.choice(WORDS))
            out[where] = word if text.length is None else word[: text.length].encode()
        elif base is not None:
            out[where] = rng.integers(0, 2, rng.integers(0, 4)).astype(base)
        elif h5py.check_enum_dtype(dtype) is not None:
            out[where] = rng.choice([0, 5])
        else:
            out[where] = rng.integers(0, 2 if dtype.kind == "b" else 100)


def write(file, path, dtype, shape, rng):
    """A dataset of random values."""
    values = np.zeros(shape, dtype)
    fill(values, rng)
    dataset = file.create_dataset(path, shape, dtype)
    if h5py.check_vlen_dtype(dtype) is None:
        dataset[...] = values
        return
    for where in np.ndindex(shape):
        dataset[where] = values[where]


def plain_type(dtype):
    """What comes back of a datatype: no names of numbers, charsets, room between members, or byte order of lists."""
    text, base = h5py.check_string_dtype(dtype), h5py.check_vlen_dtype(dtype)
    if text is not None:
        return f"text of {text.length} bytes"
    if base is not None:
        return f"list of {np.dtype(base).name}"
    if dtype.subdtype is not None:
        return (plain_type(dtype.subdtype[0]), dtype.subdtype[1])
    return [(name, plain_type(dtype[name])) for name in dtype.names] if dtype.names else dtype.str


def assert_same_files(a, b):
    """Two files hold the same datasets: path, type, shape and values."""
    with h5py.File(a) as one, h5py.File(b) as other:
        held = [{}, {}]
        for file, found in ((one, held[0]), (other, held[1])):
            file.visititems(lambda name, thing, found=found: found.update({name: thing}))
        assert list(held[0]) == list(held[1])
        for name, x in held[0].items():
            y = held[1][name]
            assert isinstance(x, h5py.Dataset) == isinstance(y, h5py.Dataset)
            if isinstance(x, h5py.Dataset):
                assert plain_type(x.dtype) == plain_type(y.dtype)
                assert x.shape == y.shape
                assert listed(x[()]) == listed(y[()])


def listed(value):
    """A value of whatever type as nested lists."""
    value = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
    return [listed(item) for item in value] if isinstance(value, (list, tuple)) else value


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(cells | padded, st.lists(st.integers(1, 3), max_size=2)), max_size=3), st.data())
def test_rows(tmp_path_factory, datasets, data):
    """Rows of any type that can be packed come back in datasets of the same dtype, with the same values."""
    work = tmp_path_factory.mktemp("rows")
    rng = np.random.default_rng(0)
    datasets = [*datasets, *((dtype, []) for dtype in data.draw(st.lists(records, min_size=not datasets, max_size=2)))]
    count = data.draw(st.sampled_from([1, 7]))
    with h5py.File(work / "a.h5", "w") as file:
        for number, (dtype, axes) in enumerate(datasets):
            write(file, f"g/d{number}", dtype, (count, *axes), rng)
    convert(str(work / "a.h5"), work / "d", workers=0)
    report = export(work / "d", work / "out")
    assert not report.notes
    assert_same_files(work / "a.h5", work / "out/a.h5")


@settings(max_examples=20, deadline=None)
@given(st.lists(cells | padded | records, min_size=1, max_size=3), st.data())
def test_groups(tmp_path_factory, types, data):
    """The same if every sample is a group, with datasets of other lengths."""
    work = tmp_path_factory.mktemp("groups")
    rng = np.random.default_rng(0)
    with h5py.File(work / "d.h5", "w") as file:
        for sample in range(3):
            for number, dtype in enumerate(types):
                text = h5py.check_string_dtype(dtype)
                is_record = dtype.hasobject or text is not None or "S" in str(dtype)
                axes = () if is_record else (sample + 1, 2)
                write(file, f"s{sample}/d{number}", dtype, axes, rng)
    convert(str(work / "d.h5"), work / "d", workers=0, source=SourceOptions(samples="groups"))
    report = export(work / "d", work / "out")
    assert not report.notes
    assert_same_files(work / "d.h5", work / "out/d.h5")


@pytest.mark.parametrize("kind", ["<f4", "<i8", "|b1", "<c8"])
@pytest.mark.parametrize("length", [0, 1, 3])
def test_lists_of_one_length(tmp_path, kind, length):
    """Lists that could be taken for the rows of an array stay lists, alone and within compounds."""
    lists = h5py.vlen_dtype(np.dtype(kind))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        table = np.zeros(4, [("v", lists), ("k", "u1")])
        alone = file.create_dataset("alone", 4, lists)
        for row in range(4):
            table["v"][row] = alone[row] = np.ones(length, kind)
        file["table"] = table
    convert(str(tmp_path / "a.h5"), tmp_path / "d", workers=0)
    export(tmp_path / "d", tmp_path / "out")
    assert_same_files(tmp_path / "a.h5", tmp_path / "out/a.h5")


@pytest.mark.parametrize("kind", [">f4", ">i8", ">c8"])
def test_big_endian_lists(tmp_path, kind):
    """They come back in the machine's own byte order, with the values that the file has."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        lists = file.create_dataset("x", 4, h5py.vlen_dtype(np.dtype(kind)))
        for row in range(4):
            lists[row] = np.ones(3, kind)
    convert(str(tmp_path / "a.h5"), tmp_path / "d", workers=0)
    assert not export(tmp_path / "d", tmp_path / "out").notes
    with h5py.File(tmp_path / "out/a.h5") as file:
        assert listed(file["x"][()]) == [[1, 1, 1]] * 4


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(numbers | texts, st.lists(st.integers(1, 3), max_size=2))))
def test_attributes_and_single_values(tmp_path_factory, kinds):
    """Attributes of numbers and text of any shape come back as h5py hands them, and so do datasets of one value."""
    work = tmp_path_factory.mktemp("attributes")
    rng = np.random.default_rng(0)
    with h5py.File(work / "a.h5", "w") as file:
        file["x"] = np.arange(3)
        for number, (dtype, axes) in enumerate(kinds):
            dtype = dtype if dtype.subdtype is None else dtype.base
            values = np.zeros(axes, dtype)
            fill(values, rng)
            file["x"].attrs.create(f"a{number}", values, dtype=dtype)
            write(file, f"v{number}", dtype, (), rng)
    convert(str(work / "a.h5"), work / "d", workers=0)
    assert not export(work / "d", work / "out").notes
    assert_same_files(work / "a.h5", work / "out/a.h5")
    with h5py.File(work / "a.h5") as one, h5py.File(work / "out/a.h5") as other:
        x, y = one["x"].attrs, other["x"].attrs
        assert list(x) == list(y)
        for name in x:
            assert plain_type(x.get_id(name).dtype) == plain_type(y.get_id(name).dtype)
            assert x.get_id(name).shape == y.get_id(name).shape
            assert listed(x[name]) == listed(y[name])


@pytest.mark.parametrize(
    "value",
    [
        np.float64(-0.0),
        np.array(complex(1, -np.inf), ">c8"),
        np.array([complex(-0.0, 2)], "<c16"),
    ],
)
def test_numbers_that_json_does_not_hold(tmp_path, value):
    """They come back to the bit."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(3)
        file["x"].attrs["a"] = value
    convert(str(tmp_path / "a.h5"), tmp_path / "d", workers=0)
    assert not export(tmp_path / "d", tmp_path / "out").notes
    with h5py.File(tmp_path / "out/a.h5") as file:
        held = file["x"].attrs.get_id("a").dtype
        assert held == np.asarray(value).dtype
        assert np.asarray(file["x"].attrs["a"], held).tobytes() == np.asarray(value).tobytes()


def test_attributes_that_are_not_kept(tmp_path):
    """Long doubles, compounds, and bytes that are no text are a note when packing."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(3)
        file["x"].attrs["a"] = np.longdouble(1) / 3
        file["x"].attrs["b"] = np.zeros(2, [("k", "g")])
        file["x"].attrs["c"] = np.bytes_(b"a\xfe")
    said = "a.h5: attributes too large or of a kind that is not kept: 'a' of /x, 'b' of /x, 'c' of /x"
    assert open_hdf5(str(tmp_path / "a.h5")).remarks == [said]
    convert(str(tmp_path / "a.h5"), tmp_path / "d", workers=0)
    assert not export(tmp_path / "d", tmp_path / "out").notes


TABLE = np.dtype([("id", ">i4"), ("name", "S4"), ("place", [("x", "<f8"), ("y", "<f8")])])


def table_file(path, count=5, table=TABLE, seed=0):
    """A file of one compound dataset and one plain one, both with attributes."""
    with h5py.File(path, "w") as file:
        write(file, "table", table, (count,), np.random.default_rng(seed))
        file["x"] = np.arange(count)
        file["table"].attrs["unit"] = "m"
    return path


def test_a_compound_of_some_members(tmp_path):
    """Members that were not packed, or are not exported, are not in the compound; it keeps its attributes."""
    table_file(tmp_path / "a.h5")
    convert(str(tmp_path / "a.h5"), tmp_path / "d", workers=0, source=SourceOptions(skip=("table.place.x",)))
    export(tmp_path / "d", tmp_path / "out")
    export(tmp_path / "d", tmp_path / "less", fields=["table.id", "x"])
    with h5py.File(tmp_path / "a.h5") as one, h5py.File(tmp_path / "out/a.h5") as other:
        assert other["table"].dtype == np.dtype([("id", ">i4"), ("name", "S4"), ("place", [("y", "<f8")])])
        assert other["table"]["place"]["y"].tolist() == one["table"]["place"]["y"].tolist()
        assert other["table"].attrs["unit"] == "m"
    with h5py.File(tmp_path / "less/a.h5") as file:
        assert file["table"].dtype == np.dtype([("id", ">i4")])


def test_a_compound_along_another_axis(tmp_path):
    """The sample axis is where it was, for compounds with arrays in them too."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        write(file, "t", np.dtype([("v", ">f4", (2,)), ("k", "u1")]), (3, 4), np.random.default_rng(0))
    convert(str(tmp_path / "a.h5"), tmp_path / "d", workers=0, source=SourceOptions(axis=-1))
    export(tmp_path / "d", tmp_path / "out")
    assert_same_files(tmp_path / "a.h5", tmp_path / "out/a.h5")


def test_files_of_a_set_have_their_own_types(tmp_path):
    """Files that differ in string lengths or byte order alone are packed together, and come back each as it was."""
    (tmp_path / "in").mkdir()
    rng = np.random.default_rng(0)
    for number, (length, order) in enumerate([(4, ">"), (9, "<"), (None, "<")]):
        with h5py.File(tmp_path / f"in/p{number}.h5", "w") as file:
            write(file, "table", np.dtype([("name", h5py.string_dtype("ascii", length))]), (3,), rng)
            file["x"] = np.arange(3, dtype=f"{order}f4")
    convert(str(tmp_path / "in"), tmp_path / "d", workers=0)
    export(tmp_path / "d", tmp_path / "out")
    for number in range(3):
        assert_same_files(tmp_path / f"in/p{number}.h5", tmp_path / f"out/p{number}.h5")
    export(repack(tmp_path / "d", tmp_path / "s", seed=1, workers=0).path, tmp_path / "mixed")
    with h5py.File(tmp_path / "mixed/s.h5") as file:
        assert file["table/name"].shape == (9,)


def test_a_file_of_which_nothing_is_to_be_said(tmp_path):
    """It is not taken to be like the first one of its set, where that has types of its own."""
    (tmp_path / "in").mkdir()
    for number, order in enumerate("><>"):
        with h5py.File(tmp_path / f"in/p{number}.h5", "w") as file:
            file["x"] = np.arange(3, dtype=f"{order}f4")
    convert(str(tmp_path / "in"), tmp_path / "d", workers=0)
    export(tmp_path / "d", tmp_path / "out")
    for number in range(3):
        assert_same_files(tmp_path / f"in/p{number}.h5", tmp_path / f"out/p{number}.h5")


def test_joined_datasets_keep_their_types(tmp_path):
    """Merged and appended files come back each with its own types."""
    for number, length in enumerate([4, 7, 2]):
        with h5py.File(tmp_path / f"p{number}.h5", "w") as file:
            file["table"] = np.array([(b"ab",), (b"c",)], [("name", f"S{length}")])
        convert(str(tmp_path / f"p{number}.h5"), tmp_path / f"d{number}", workers=0)
    merge([tmp_path / "d0", tmp_path / "d1"], tmp_path / "m")
    append(tmp_path / "m", str(tmp_path / "p2.h5"), workers=0)
    export(tmp_path / "m", tmp_path / "out")
    for number in range(3):
        assert_same_files(tmp_path / f"p{number}.h5", tmp_path / f"out/p{number}.h5")


@pytest.mark.parametrize(
    "held",
    [
        {"dtype": "|O"}, {"dtype": "nonsense"}, {"dtype": ""}, {"dtype": "<f8"}, {"dtype": "|S4"}, {"dtype": "<i4,<i4"},
        {"dtype": "<i4", "axes": [[2]]}, {"dtype": "<i4", "axes": [[2**30, 2**30]]}, {"dtype": "<i4", "axes": [[-1]]},
        {"dtype": "<i4", "axes": []}, {"dtype": "<i4", "members": ["m"]},
        {"dtype": "<i4", "members": ["m"], "axes": [[], [2]]},
    ],
)  # fmt: skip
def test_types_that_are_none(tmp_path, held):
    """What is no dtype in a manifest, or one beyond belief: the field is written as it is, with a note."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(3, dtype=">i4")
    convert(str(tmp_path / "a.h5"), tmp_path / "d", workers=0)
    known = manifests.read(tmp_path / "d")
    known.origin["files"][0]["types"] = {"x": {"dataset": "/x", **held}}
    manifests.write(tmp_path / "d", known)
    (note,) = export(tmp_path / "d", tmp_path / "out").notes
    assert note.startswith("/x is not written as it was in its source: ")
    with h5py.File(tmp_path / "out/a.h5") as file:
        assert (file["x"].dtype, file["x"][()].tolist()) == (np.dtype("i4"), [0, 1, 2])


def test_types_that_do_not_fit(tmp_path):
    """A manifest that gives a field another type than it has: the field is written as it is, with a note."""
    table_file(tmp_path / "a.h5")
    convert(str(tmp_path / "a.h5"), tmp_path / "d", workers=0)
    known = manifests.read(tmp_path / "d")
    text = json.dumps(known.origin).replace(">i4", ">f4")
    manifests.write(tmp_path / "d", msgspec.structs.replace(known, origin=json.loads(text)))
    notes = export(tmp_path / "d", tmp_path / "out").notes
    assert any(note.endswith("field 'table.id' holds other values") for note in notes)
    with h5py.File(tmp_path / "out/a.h5") as file:
        assert file["table/id"].dtype == np.int32


def test_a_text_that_is_too_long(tmp_path):
    """Text is never cut short: strings of the source's length hold it, or it is an error."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("t", data=[b"abc", "ü".encode()], dtype=h5py.string_dtype("utf-8", 3))
    convert(str(tmp_path / "a.h5"), tmp_path / "d", workers=0)
    export(tmp_path / "d", tmp_path / "out")
    with h5py.File(tmp_path / "out/a.h5") as file:
        assert file["t"][()].tolist() == [b"abc", "ü".encode()]
    known = manifests.read(tmp_path / "d")
    text = json.dumps(known.origin).replace("|S3", "|S2")
    manifests.write(tmp_path / "d", msgspec.structs.replace(known, origin=json.loads(text)))
    with pytest.raises(UsageError, match=r"'t', sample 0 .* has 3 bytes, and its source's strings have 2"):
        export(tmp_path / "d", tmp_path / "again")


def test_text_of_another_encoding(tmp_path):
    """It comes back as UTF-8 of any length, which may take more bytes than the strings of the source have."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["t"] = np.array([b"a", b"\xe9"])
    convert(str(tmp_path / "a.h5"), tmp_path / "d", workers=0, source=SourceOptions(encoding="latin-1"))
    assert not export(tmp_path / "d", tmp_path / "out").notes
    with h5py.File(tmp_path / "out/a.h5") as file:
        assert file["t"].asstr()[()].tolist() == ["a", "é"]
