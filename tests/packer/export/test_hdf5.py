"""HDF5 files out of a packed dataset."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from made_datasets import put_manifest
from real_files import real_files

from packer.convert import convert
from packer.errors import UsageError
from packer.export import export
from packer.format import manifest as manifests
from packer.merge import merge
from packer.repack import repack
from packer.sources import SourceOptions


def assert_same_hdf5(a, b):
    """Two files hold the same groups, their attributes, and datasets (dtype, shape, values)."""
    with h5py.File(a) as one, h5py.File(b) as other:
        names = [[], []]
        for file, found in ((one, names[0]), (other, names[1])):
            file.visit(found.append)
        assert names[0] == names[1]
        for name in ["/", *names[0]]:
            x, y = one[name], other[name]
            assert isinstance(x, h5py.Dataset) == isinstance(y, h5py.Dataset)
            if isinstance(x, h5py.Group):
                assert list(x.attrs) == list(y.attrs)
                for key in x.attrs:
                    assert_same(x.attrs[key], y.attrs[key])
            else:
                assert (x.dtype, x.shape) == (y.dtype, y.shape)
                assert_same(x[()], y[()])


def assert_same(x, y):
    """Two values as h5py gives them are the same, to the bit."""
    if isinstance(x, h5py.Empty):
        assert isinstance(y, h5py.Empty)
        assert x.dtype == y.dtype
        return
    x, y = np.asarray(x), np.asarray(y)
    assert (x.dtype, x.shape) == (y.dtype, y.shape)
    if x.dtype.kind == "O":
        assert [np.asarray(v).tolist() for v in x.flat] == [np.asarray(v).tolist() for v in y.flat]
    else:
        assert x.tobytes() == y.tobytes()


def make_file(path, count=50, seed=0):
    """Datasets of many dtypes in groups, in a file with attributes of many kinds."""
    rng = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        for kind in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"):
            file[f"numbers/{kind}"] = rng.normal(0, 50, (count, 2)).astype(np.int8).astype(kind)
        file["numbers/f8"][:3, 0] = np.nan, np.inf, -0.0
        file["flags"] = rng.integers(0, 2, (count, 3)).astype(bool)
        states = h5py.enum_dtype({"SOLID": 0, "GAS": 7}, "i2")
        file.create_dataset("deep/er/state", data=rng.choice([0, 7], count).astype("i2"), dtype=states)
        texts = ["", "ünï", "a\nb", "x" * 300]
        file.create_dataset("text", data=[texts[n % 4] for n in range(count)], dtype=h5py.string_dtype())
        lists = file.create_dataset("lists", count, h5py.vlen_dtype(np.int32))
        for n in range(count):
            lists[n] = np.arange(n % 5)
        file.attrs.update({"text": "ü", "flag": True, "nan": np.float32(np.nan), "array": np.ones((2, 3), "i2")})
        file.attrs.create("texts", ["a", "ß"], dtype=h5py.string_dtype())


def test_a_file_comes_back_as_it_was(tmp_path, contents):
    """Datasets by path with dtype, attributes of the file; and the same dataset out of it."""
    make_file(tmp_path / "rows.h5")
    convert(str(tmp_path / "rows.h5"), tmp_path / "one", workers=0)
    report = export(tmp_path / "one", tmp_path / "out")
    assert (report.to, report.files, report.notes) == ("hdf5", 1, ())
    assert_same_hdf5(tmp_path / "rows.h5", tmp_path / "out/rows.h5")
    convert(str(tmp_path / "out/rows.h5"), tmp_path / "two", workers=0)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_every_file_of_a_set_comes_back(tmp_path):
    """Files that were packed one behind another are files again, each with its own attributes."""
    (tmp_path / "in").mkdir()
    for n, count in enumerate([5, 70, 3]):
        make_file(tmp_path / f"in/part{n}.h5", count, seed=n)
        with h5py.File(tmp_path / f"in/part{n}.h5", "a") as file:
            file.attrs["number"] = n
    convert(str(tmp_path / "in"), tmp_path / "d", workers=0, shard_size=4096)
    assert export(tmp_path / "d", tmp_path / "out").files == 3
    for n in range(3):
        assert_same_hdf5(tmp_path / f"in/part{n}.h5", tmp_path / f"out/part{n}.h5")


def test_parts_of_one_row_in_another_order_come_back_in_one_file(tmp_path):
    """Shuffled samples belong to no file of before: all go to one, each to the place of its number, with a note."""
    parts = []
    for number in range(3):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"] = np.full((1, 2), number)
        parts.append(convert(tmp_path / f"{number}.h5", tmp_path / f"d{number}", workers=0).path)
    merge(parts, tmp_path / "d")
    repack(tmp_path / "d", tmp_path / "s", seed=1, workers=0)
    order = np.random.PCG64(1).random_raw(3).argsort()
    assert order.tolist() != [0, 1, 2]
    assert export(tmp_path / "s", tmp_path / "out").notes == (
        "the samples are in another order than in their files: all are written as rows of one file",
    )
    with h5py.File(tmp_path / "out" / "s.h5") as file:
        assert file["x"][:, 0].tolist() == order.tolist()


@pytest.mark.parametrize(
    ("files", "field", "notes"),
    [
        (
            [{"name": "part0.h5", "samples": 10}, {"name": "part1.h5", "samples": 11}],
            "numbers/i8",
            ("not all samples of the files are there: all are written as rows of one file",),
        ),
        ("nonsense", "numbers.i8", ()),
    ],
    ids=["samples were skipped", "the origin cannot be read"],
)
def test_files_that_are_not_known(tmp_path, files, field, notes):
    """If nobody knows which file a sample belongs to, all go to one; without an origin it has a dataset a field."""
    (tmp_path / "in").mkdir()
    for n in range(2):
        make_file(tmp_path / f"in/part{n}.h5", 10, seed=n)
    convert(str(tmp_path / "in"), tmp_path / "d", workers=0)
    known = manifests.read(tmp_path / "d")
    known.origin["files"] = files
    put_manifest(tmp_path / "d", known)
    report = export(tmp_path / "d", tmp_path / "out")
    assert (report.files, report.notes) == (1, notes)
    with h5py.File(tmp_path / "out/d.h5") as file:
        assert len(file[field]) == 20


def test_the_sample_axis_is_where_it_was(tmp_path):
    """Samples counted by the last axis are written along the last axis again."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(24.0).reshape(2, 3, 4)
        file["y"] = np.arange(4)
    convert(str(tmp_path / "a.h5"), tmp_path / "d", workers=0, source=SourceOptions(axis=-1))
    export(tmp_path / "d", tmp_path / "out")
    assert_same_hdf5(tmp_path / "a.h5", tmp_path / "out/a.h5")


@pytest.mark.parametrize("files", [1, 2])
def test_groups_come_back_as_groups(tmp_path, contents, files):
    """Samples that were groups are groups again, with their attributes, in the files they came from."""
    rng = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    for n in range(files):
        with h5py.File(tmp_path / f"in/f{n}.h5", "w") as file:
            for i in range(4):
                group = file.create_group(f"data/demo_{i}")
                group["obs/image"] = rng.integers(0, 255, (i + 1, 3), np.uint8)
                group["action"] = rng.normal(size=i + 2)
                group["done"] = bool(i % 2)
                group.create_dataset("task", data=f"task {i}", dtype=h5py.string_dtype())
                group.attrs["length"] = i
    options = SourceOptions(samples="groups:/data")
    convert(str(tmp_path / "in"), tmp_path / "d.packed", workers=0, source=options)
    assert export(tmp_path / "d.packed", tmp_path / "out").files == files
    for n in range(files):
        assert_same_hdf5(tmp_path / f"in/f{n}.h5", tmp_path / "out" / ("d.h5" if files == 1 else f"f{n}.h5"))
    convert(str(tmp_path / "out"), tmp_path / "two", workers=0, source=options)
    assert contents(tmp_path / "d.packed") == contents(tmp_path / "two")


@pytest.mark.parametrize("count", [1, 9])
def test_samples_made_in_python_come_back_from_hdf5(tmp_path, contents, count):
    """Numbers, text, lists and bool of any dataset: exported and converted again they are the same."""
    samples = [
        {
            "a.b": np.float32(n),
            "flag": np.array([n % 2 == 0, True]),
            "t": "x" * n,
            "list": np.arange(n, dtype=np.uint16),
            "z": np.array([n, 1j], np.complex64),
            "none": np.zeros((0, 2)),
        }
        for n in range(count)
    ]
    convert(samples, tmp_path / "one", workers=0, shard_size=4096)
    export(tmp_path / "one", tmp_path / "out")
    convert(str(tmp_path / "out"), tmp_path / "two", workers=0)
    one, two = contents(tmp_path / "one"), contents(tmp_path / "two")
    assert sorted(one[0]) == sorted(two[0])
    assert one[1] == two[1]


def test_a_zero_byte_in_text_is_refused(tmp_path):
    """HDF5 strings end at a zero byte: the text would be cut short."""
    convert([{"t": "a\0b"}], tmp_path / "d", workers=0)
    with pytest.raises(UsageError, match=r"'t', sample 0 .* zero byte"):
        export(tmp_path / "d", tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_real_files_come_back(tmp_path):
    """Files of other programs, where our fields stand for whole datasets: the same datasets."""
    names = (
        "bool_dset.h5",
        "dset_gzip.h5",
        "vlen_dset.h5",
        "chunked.hdf5",
        "solver_data.h5",
        "simple.mat",
    )
    for path in real_files(*(f"h5_*/**/{name}" for name in names)):
        convert(str(path), tmp_path / f"{path.name}.packed", workers=0)
        export(tmp_path / f"{path.name}.packed", tmp_path / path.name)
        assert_same_hdf5(path, tmp_path / path.name / path.name)
