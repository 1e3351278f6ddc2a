"""Fields of any type come back as datasets of native numbers and text, at the paths that they came from."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opened_sources import open_hdf5

from packer.convert import convert
from packer.export import export
from packer.sources import SourceOptions

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


def listed(value):
    """A value of whatever type as nested lists."""
    value = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
    return [listed(item) for item in value] if isinstance(value, (list, tuple)) else value


def words(value):
    """A value of an attribute as nested lists, with text of a fixed length as text."""
    value = listed(value)
    if isinstance(value, list):
        return [words(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def assert_packed_alike(a, b, samples):
    """Two files hold the same fields with the same values."""
    (one, other) = (open_hdf5(str(path), samples=samples) for path in (a, b))
    specs = {spec.name: (spec.dtype, spec.kind) for spec in one.fields}
    assert specs == {spec.name: (spec.dtype, spec.kind) for spec in other.fields}
    found, again = (list(source.read()) for source in (one, other))
    for name in specs:
        x, y = ([listed(value) for block in blocks for value in block[name]] for blocks in (found, again))
        assert x == y


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(cells | padded, st.lists(st.integers(1, 3), max_size=2)), max_size=3), st.data())
def test_rows(tmp_path_factory, datasets, data):
    """Rows of any type that can be packed come back as the same fields with the same values, in native types."""
    work = tmp_path_factory.mktemp("rows")
    rng = np.random.default_rng(0)
    datasets = [*datasets, *((dtype, []) for dtype in data.draw(st.lists(records, min_size=not datasets, max_size=2)))]
    count = data.draw(st.sampled_from([1, 7]))
    with h5py.File(work / "a.h5", "w") as file:
        for number, (dtype, axes) in enumerate(datasets):
            write(file, f"g/d{number}", dtype, (count, *axes), rng)
    convert(str(work / "a.h5"), work / "d", workers=0)
    assert not export(work / "d", work / "out").notes
    assert_packed_alike(work / "a.h5", work / "out/a.h5", "rows")


@settings(max_examples=12, deadline=None)
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
                write(file, f"s{sample}/d{number}", dtype, () if is_record else (sample + 1, 2), rng)
    convert(str(work / "d.h5"), work / "d", workers=0, source=SourceOptions(samples="groups:/"))
    assert not export(work / "d", work / "out").notes
    assert_packed_alike(work / "d.h5", work / "out/d.h5", "groups:/")


def test_a_compound_becomes_a_group(tmp_path):
    """Each member that was packed is a dataset of native numbers or text below the path of the compound."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["table"] = np.array([(1, b"ab", 2.5), (3, b"c", 4.5)], [("id", ">i4"), ("name", "S4"), ("x", ">f8")])
    convert(str(tmp_path / "a.h5"), tmp_path / "d", workers=0, source=SourceOptions(skip=("table.x",)))
    assert not export(tmp_path / "d", tmp_path / "out").notes
    with h5py.File(tmp_path / "out/a.h5") as file:
        assert sorted(file["table"]) == ["id", "name"]
        assert (file["table/id"].dtype, file["table/id"][()].tolist()) == (np.dtype("i4"), [1, 3])
        assert file["table/name"].asstr()[()].tolist() == ["ab", "c"]


def test_datasets_that_are_samples_come_back(tmp_path):
    """Those of numbers as datasets, compounds as groups."""
    for name, dtype in (("plain", ">i2"), ("table", [("a", "i2"), ("b", "f4")])):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            for number in range(3):
                file[f"s{number}"] = np.zeros(number + 1, dtype)
        options = SourceOptions(samples="datasets")
        convert(str(tmp_path / f"{name}.h5"), tmp_path / name, workers=0, source=options)
        assert not export(tmp_path / name, tmp_path / "out" / name).notes
    with h5py.File(tmp_path / "out/plain/plain.h5") as file:
        assert [file[f"s{number}"].shape for number in range(3)] == [(1,), (2,), (3,)]
    with h5py.File(tmp_path / "out/table/table.h5") as file:
        assert file["s2/b"].shape == (3,)


@pytest.mark.parametrize("kind", ["<f4", "<i8", "|b1", "<c8"])
@pytest.mark.parametrize("length", [0, 1, 3])
def test_lists_of_one_length(tmp_path, kind, length):
    """Lists that could be taken for the rows of an array stay lists."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        lists = file.create_dataset("x", 4, h5py.vlen_dtype(np.dtype(kind)))
        for row in range(4):
            lists[row] = np.ones(length, kind)
    convert(str(tmp_path / "a.h5"), tmp_path / "d", workers=0)
    export(tmp_path / "d", tmp_path / "out")
    with h5py.File(tmp_path / "a.h5") as one, h5py.File(tmp_path / "out/a.h5") as other:
        assert one["x"].dtype == other["x"].dtype
        assert listed(one["x"][()]) == listed(other["x"][()])


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(numbers | texts, st.lists(st.integers(1, 3), max_size=2)), min_size=4))
def test_attributes(tmp_path_factory, kinds):
    """Attributes of numbers and text of any shape of a file come back as h5py hands them."""
    work = tmp_path_factory.mktemp("attributes")
    rng = np.random.default_rng(0)
    with h5py.File(work / "a.h5", "w") as file:
        file["x"] = np.arange(3)
        for number, (dtype, axes) in enumerate(kinds):
            dtype = dtype if dtype.subdtype is None else dtype.base
            values = np.zeros(axes, dtype)
            fill(values, rng)
            file.attrs.create(f"a{number}", values, dtype=dtype)
    convert(str(work / "a.h5"), work / "d", workers=0)
    assert not export(work / "d", work / "out").notes
    with h5py.File(work / "a.h5") as one, h5py.File(work / "out/a.h5") as other:
        x, y = one.attrs, other.attrs
        assert list(x) == list(y)
        for name in x:
            assert x.get_id(name).shape == y.get_id(name).shape
            assert words(x[name]) == words(y[name])


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
        file.attrs["a"] = value
    convert(str(tmp_path / "a.h5"), tmp_path / "d", workers=0)
    assert not export(tmp_path / "d", tmp_path / "out").notes
    with h5py.File(tmp_path / "out/a.h5") as file:
        held = file.attrs.get_id("a").dtype
        assert held == np.asarray(value).dtype.newbyteorder("=")
        assert np.asarray(file.attrs["a"], held).tobytes() == np.asarray(value).astype(held).tobytes()
