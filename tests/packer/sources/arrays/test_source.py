"""Rows of HDF5 files come out as h5py gives them, in blocks of bounded size."""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hdf5_files import bfloat16, write_hdf5
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from opened_sources import open_hdf5, read_each, read_joined
from real_files import real_files

from packer.errors import SourceError, UsageError
from packer.format import DTYPES
from packer.sources import BLOCK_BYTES, Source
from packer.sources.arrays import KeptFile

SAMPLE_FILES = real_files("h5_*/**/*")
#: Files that must pack, so that refusing everything cannot pass.
PACKED = {
    "array_dset.h5", "autzen.h5", "bool_dset.h5", "chunked.hdf5", "compound.h5", "dset_gzip.h5", "enum_dset.h5",
    "fixed_string_dset.h5", "h5ex_d_chunk.h5", "issue1152.nc", "issue671.nc", "sample_data.h5", "sample_data_2_gzip.h5",
    "scalar.h5", "simple.mat", "solver_data.h5", "test_compressed_chunked_datasets_earliest.hdf5", "vlen_dset.h5",
    "vlen_string_dset.h5",
}  # fmt: skip


def everything(source: Source) -> dict[str, Any]:
    """All samples of a source, by field; also checks what the contract says of every block."""
    found: dict[str, list[Any]] = {spec.name: [] for spec in source.fields}
    for block in source.read():
        assert list(block) == list(found)
        assert len({len(values) for values in block.values()}) == 1
        for spec in source.fields:
            values = block[spec.name]
            if isinstance(values, np.ndarray):
                assert values.dtype == np.dtype(spec.dtype)
                assert values.dtype.isnative
                assert values.dtype.metadata is None
                assert values.flags.c_contiguous
                assert values.shape[1:] == spec.shape
            found[spec.name].append(values)
    joined: dict[str, Any] = {}
    for spec in source.fields:
        if spec.is_ragged:
            joined[spec.name] = [v for values in found[spec.name] for v in values]
        else:
            joined[spec.name] = np.concatenate(found[spec.name] or [np.empty((0, *spec.shape), spec.dtype)])
    return joined


def same(values: Any, expected: Any) -> None:
    """Bit for bit, whatever the byte order."""
    expected = np.asarray(expected)
    assert values.shape == expected.shape
    assert values.tobytes() == expected.astype(expected.dtype.newbyteorder("=")).tobytes()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_array_in_any_layout_comes_out(tmp_path: Path, data: st.DataObject) -> None:
    """All dtypes and byte orders, with and without chunks and filters, any axis, any part."""
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES))).newbyteorder(data.draw(st.sampled_from("<>")))
    array = data.draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=7)))
    layout: dict[str, Any] = data.draw(
        st.sampled_from([{}, {"chunks": True}, {"compression": "gzip", "shuffle": True}, {"compression": "lzf"}])
    )
    if layout:
        layout["chunks"] = tuple(data.draw(st.integers(1, n)) for n in array.shape)
    axis = data.draw(st.integers(-array.ndim, array.ndim - 1))
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=array, **layout)
    source = open_hdf5(path, axis=axis)
    expected = np.moveaxis(array, axis, 0)
    same(everything(source)["x"], expected)
    start = data.draw(st.integers(0, len(source)))
    stop = data.draw(st.integers(start, len(source)))
    part = pickle.loads(pickle.dumps(source.slice(start, stop)))
    assert len(part) == stop - start
    same(everything(part)["x"], expected[start:stop])


@pytest.mark.parametrize("path", SAMPLE_FILES, ids=lambda p: p.name)
def test_real_files_pack_or_say_why(path: Path) -> None:
    """Every real file comes out as h5py gives it, or is refused in a sentence that names it."""
    try:
        source = open_hdf5(str(path), stored=path.name == "issue671.nc")
    except SourceError as error:
        if path.name in PACKED or not str(error).startswith(f"{path}: "):
            raise
        return
    assert path.name in PACKED
    found = everything(source)
    kept = source.origin["paths"]
    with h5py.File(path) as file:
        for spec in source.fields:
            steps = kept.get(spec.name, "/" + spec.name.replace(".", "/")).split("/")
            members = []
            while "/".join(steps) not in file:
                members.insert(0, steps.pop())
            _same_as_h5py(found[spec.name], file["/".join(steps)][...], members)


def _same_as_h5py(values: Any, expected: Any, members: Sequence[str]) -> None:
    for member in members:
        expected = expected[member]
    if isinstance(values, np.ndarray):
        same(values, expected)
        return
    assert len(values) == len(expected)
    for value, wanted in zip(values, expected, strict=True):
        if isinstance(value, str):
            assert value == wanted.decode()
        else:
            same(value, wanted)


def test_several_files_are_one_dataset(tmp_path: Path) -> None:
    """Files of a glob follow one another in natural order; parts reach over their borders."""
    for number in (1, 2, 10):
        write_hdf5(tmp_path / f"train_{number}.h5", {"x": np.full((5, 2), number)})
    for path in (str(tmp_path / "train_*.h5"), str(tmp_path)):
        source = open_hdf5(path)
        assert everything(source)["x"][:, 0].tolist() == [1] * 5 + [2] * 5 + [10] * 5
        assert everything(source.slice(4, 11))["x"][:, 0].tolist() == [1] + [2] * 5 + [10]
        assert source.slice(4, 11).slice(1, 3).files() == [str(tmp_path / "train_2.h5")]
        assert len(source.files()) == 3


@pytest.mark.parametrize("samples", ["rows", "files"])
def test_files_may_list_their_fields_in_any_order(tmp_path: Path, samples: str) -> None:
    """As those of `track_order` do: values and lengths belong to the field of their name."""
    for number, order in enumerate(("xy", "yx")):
        with h5py.File(tmp_path / f"{number}.h5", "w", track_order=True) as file:
            for name in order:
                file[name] = np.arange(2 + number) * (10 if name == "y" else 1)
    source = open_hdf5(str(tmp_path), samples=samples)
    assert ([spec.name for spec in source.fields], len(source)) == (["x", "y"], 5 if samples == "rows" else 2)
    values = {name: np.hstack(rows).tolist() for name, rows in read_each(source).items()}
    assert values == {"x": [0, 1, 0, 1, 2], "y": [0, 10, 0, 10, 20]}


def test_a_file_that_differs_is_told_to_on_bad(tmp_path: Path) -> None:
    """The sentence names the file, one like most, and the field; where `bad` returns, the rest is packed."""
    for name, dtype in (("a", "f4"), ("b", "f8"), ("c", "f4")):
        write_hdf5(tmp_path / f"{name}.h5", {"x": np.ones((3, 2), dtype)})
    with pytest.raises(
        SourceError, match=r"b\.h5: does not fit most, such as a\.h5: field x is array float64 \[2\].*, not"
    ):
        open_hdf5(str(tmp_path))
    (tmp_path / "d.h5").write_bytes(b"")
    bad: list[SourceError] = []
    source = open_hdf5(str(tmp_path), bad=bad.append)
    assert len(source) == 6
    assert [Path(e.path or "").name for e in bad] == ["d.h5", "b.h5"]


def test_a_broken_link_is_told_to_on_bad(tmp_path: Path) -> None:
    """As a file that is damaged."""
    write_hdf5(tmp_path / "a.h5", {"x": np.arange(3)})
    (tmp_path / "b.h5").symlink_to("nowhere")
    with pytest.raises(SourceError, match=r"b\.h5: is a broken link"):
        open_hdf5(str(tmp_path / "*.h5"))
    bad: list[SourceError] = []
    assert len(open_hdf5(str(tmp_path / "*.h5"), bad=bad.append)) == 3
    assert len(bad) == 1


def test_files_that_hold_one_field_at_different_places_differ(tmp_path: Path) -> None:
    """A member of a compound is no dataset in a group, though both are called so; all fields that differ are named."""
    write_hdf5(tmp_path / "a.h5", {"g/x": np.ones(3, "f4"), "y": np.arange(3)})
    write_hdf5(tmp_path / "b.h5", {"g": np.ones(3, [("x", "f4")]), "z": np.arange(3)})
    differs = r"field y \(one int64 of /y\) is missing; field g\.x is one float32 of /g\[x\], not one float32 of /g/x"
    with pytest.raises(
        SourceError, match=rf"b\.h5: .* such as a\.h5: {differs}; field z \(one int64 of /z\) is not in the others "
    ):
        open_hdf5(str(tmp_path))


def test_what_to_leave_out_can_be_typed(tmp_path: Path) -> None:
    """A group is named as one if nothing in it is kept; of many names the first are shown, and the others counted."""
    arrays = {f"{group}{n}": np.zeros(n + more) for n in range(3) for more, group in enumerate(("meta/", "obs/"), 3)}
    path = write_hdf5(tmp_path / "a.h5", {"x": np.zeros(9), "obs/y": np.zeros(9), "z": np.zeros(9), **arrays})
    with pytest.raises(SourceError, match=r"--skip meta --skip obs.0 --skip obs.1 and 1 more \("):
        open_hdf5(path)


def test_no_common_axis_lists_all_and_picking_helps(tmp_path: Path) -> None:
    """The error lists every dataset with its shape; `fields` picks, `skip` leaves out."""
    path = write_hdf5(tmp_path / "a.h5", {"g/x": np.arange(8).reshape(4, 2), "g/y": np.arange(4), "z": np.arange(7)})
    with pytest.raises(SourceError, match=r"no common sample axis") as caught:
        open_hdf5(path)
    for text in (
        "/g/x: 4 samples of array int64 [2]",
        "/g/y: 4 samples",
        "/z: 7 samples of one int64",
        "--field NAME=/path",
    ):
        assert text in str(caught.value)
    assert set(everything(open_hdf5(path, pick={"a": "/g/x"}))) == {"a"}
    assert set(everything(open_hdf5(path, skip=["z"]))) == {"g.x", "g.y"}
    assert set(everything(open_hdf5(path, skip=["/g"]))) == {"z"}
    with pytest.raises(SourceError, match="has no array /nope for field a"):
        open_hdf5(path, pick={"a": "nope"})
    with pytest.raises(UsageError, match="--skip zz"):
        open_hdf5(path, skip=["z", "zz"])
    with pytest.raises(UsageError, match="field name"):
        open_hdf5(path, pick={"a/b": "/g/x"})


def test_text_ragged_and_compound(tmp_path: Path) -> None:
    """Strings become text, variable lengths ragged, each member of a compound a field."""
    path = str(tmp_path / "a.h5")
    table = np.zeros(3, [("n", ">i2"), ("pos", "<f4", (3,)), ("in", [("name", "S4"), ("ok", "?")])])
    table["n"], table["in"]["name"] = [1, 2, 3], [b"a", "é".encode(), b""]
    with h5py.File(path, "w") as file:
        file["fixed"] = np.array([b"ab", b"", b"abc"])
        file.create_dataset("vlen", data=["a", "ü" * 50, ""], dtype=h5py.string_dtype())
        ragged = file.create_dataset("ragged", 3, h5py.vlen_dtype(np.dtype("u2")))
        ragged[0], ragged[2] = [1, 2, 3], [4]
        file["table"] = table
    source = open_hdf5(path)
    found = everything(source)
    assert found["fixed"] == ["ab", "", "abc"]
    assert found["vlen"] == ["a", "ü" * 50, ""]
    assert [v.tolist() for v in found["ragged"]] == [[1, 2, 3], [], [4]]
    assert {v.dtype for v in found["ragged"]} == {np.dtype("u2")}
    same(found["table.n"], table["n"])
    same(found["table.pos"], table["pos"])
    assert found["table.in.name"] == ["a", "é", ""]
    assert source.shapes("ragged") is None
    assert set(everything(open_hdf5(path, pick={"t": "/table"}))) == {"t.n", "t.pos", "t.in.name", "t.in.ok"}
    assert set(everything(open_hdf5(path, pick={"t": "/table/in/ok"}))) == {"t"}


def test_attributes_of_a_file_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attributes of the file are JSON values in the manifest; others are named once, and never read, and single values.

    h5py corrupts memory when it reads lists of references.
    """
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("e", data=[1, 2], dtype=h5py.enum_dtype({"cat": 1, "dog": 2}, "u1"))
        file["version"] = 3
        file.attrs["author"] = "me"
        file.attrs["scale"] = np.float32([0.5, np.nan])
        file.attrs["pair"] = np.zeros((), "i4,f4")
        file.attrs["long"] = "a" * 20_000
        lists = h5py.h5t.py_create(h5py.vlen_dtype(h5py.regionref_dtype), logical=True)
        h5py.h5a.create(file.id, b"lists", lists, h5py.h5s.create_simple((1,)))
    asked = set()
    read = h5py.AttributeManager.__getitem__
    monkeypatch.setattr(h5py.AttributeManager, "__getitem__", lambda self, name: asked.add(name) or read(self, name))
    source = open_hdf5(path)
    same(everything(source)["e"], np.array([1, 2], "u1"))
    (kept,) = source.origin["files"]
    scale = {"dtype": "float32", "value": [0.5, "nan"]}
    assert kept == KeptFile("a.h5", 2, {"/": {"author": "me", "scale": scale}})
    assert source.remarks == [
        "skipped: /version is a single value, which --once /version keeps. --field NAME=/path takes a link",
        "attributes are kept if they are numbers or text of at most 16 KiB; these are not: 'lists' of a.h5, 'long' of "
        "a.h5, 'pair' of a.h5",
        "/e is an enum, whose names are not kept: 1 cat, 2 dog",
    ]
    assert asked == {"author", "scale", "long"}


@pytest.mark.parametrize("chunks", [None, (1, 500), (100, 500), (3000, 50)], ids=str)
def test_blocks_are_bounded_and_follow_chunks(tmp_path: Path, chunks: tuple[int, int] | None) -> None:
    """No block is over 8 MiB, few are small, and the values are all there."""
    path = str(tmp_path / "a.h5")
    array = np.arange(9_000 * 500, dtype="f4").reshape(9_000, 500)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=array, chunks=chunks)
        file["label"] = np.arange(9_000)
    source = open_hdf5(path)
    sizes = [sum(v.nbytes for v in block.values()) for block in source.read()]  # type: ignore[union-attr]
    assert max(sizes) <= BLOCK_BYTES
    assert len(sizes) <= 4
    same(everything(source)["x"], array)


def test_variable_lengths_are_bounded(tmp_path: Path) -> None:
    """Long variable-length rows are cut into blocks of at most 8 MiB or one row."""
    path = str(tmp_path / "a.h5")
    lengths = [10, 3_000_000, 0, *([200_000] * 60)]
    with h5py.File(path, "w") as file:
        ragged = file.create_dataset("x", len(lengths), h5py.vlen_dtype(np.dtype("u1")))
        for i, n in enumerate(lengths):
            ragged[i] = np.full(n, i, "u1")
    blocks = [block["x"] for block in open_hdf5(path).read()]
    assert not [b for b in blocks if not (len(b) == 1 or sum(map(len, b)) <= BLOCK_BYTES)]
    assert [len(row) for b in blocks for row in b] == lengths
    assert not [(i, row) for i, row in enumerate(row for b in blocks for row in b) if not (row == i).all()]


def test_reading_warns_of_nothing_and_leaves_no_file_open(tmp_path: Path) -> None:
    """Files can be written again while a source of them exists."""
    path = write_hdf5(tmp_path / "a.h5", {"x": np.zeros((5, 2), "f4")})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source = open_hdf5(path)
        reading = source.read()
        next(reading)
        reading.close()  # type: ignore[attr-defined]
    with h5py.File(path, "r+") as file:
        file["x"][0] = 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what a process has read is told on Linux alone")
@pytest.mark.parametrize("chunks", [(40_000, 100), (30_000, 30)], ids=str)
@pytest.mark.parametrize("samples", ["rows", "files"])
def test_large_chunks_are_decoded_once(tmp_path: Path, chunks: tuple[int, int], samples: str) -> None:
    """Chunks of more rows than a block holds are read from the file once, in blocks of bounded size."""
    path = tmp_path / "a.h5"
    values = np.random.default_rng(0).random((100_000, 100), "f4")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, chunks=chunks, compression="lzf")
    source = open_hdf5(str(path), samples=samples)
    before = bytes_read()
    found = [piece for block in source.read() for piece in pieces(block["x"])]
    assert bytes_read() - before < 1.1 * path.stat().st_size
    assert max(piece.nbytes for piece in found) <= BLOCK_BYTES
    assert np.array_equal(np.concatenate(found), values)


def pieces(values: Any) -> list[Any]:
    """What a block holds of a field, in pieces of bounded size."""
    return [values] if isinstance(values, np.ndarray) else [piece for large in values for piece in large.pieces()]


def bytes_read() -> int:
    """What this process has read from files."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


@pytest.mark.parametrize("order", ["<", ">"])
def test_bfloat16_becomes_float32(tmp_path: Path, order: str) -> None:
    """Each of the 65,536 patterns is the float32 with that upper half, in rows, groups and lists; a remark says so."""
    bits = np.arange(2**16, dtype="<u2")
    type_, path = bfloat16(order), str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        at = h5py.h5d.create(file.create_group("in/g").id, b"x", type_, h5py.h5s.create_simple(bits.shape))
        at.write(h5py.h5s.ALL, h5py.h5s.ALL, bits.astype(f"{order}u2"), mtype=type_)
        h5py.h5d.create(
            file.create_group("list").id, b"x", h5py.h5t.vlen_create(bfloat16("<")), h5py.h5s.create_simple((1,))
        )
        file["list/x"][0] = np.array([1.5, -2], "f4")
    expected = (bits.astype("u4") << 16).view("f4")
    numbers = ~np.isnan(expected)
    said = "holds floats of 16 bits that numpy does not have, such as bfloat16; they are packed as float32"
    for options, name in (
        ({"pick": {"x": "/in/g/x"}}, "/in/g/x"),
        ({"samples": "groups:/in/*", "skip": ["/list"]}, "/x"),
    ):
        source = open_hdf5(path, **options)
        assert f"{name} {said}" in source.remarks
        found = read_joined(source)["x"].reshape(-1)
        assert found.dtype == np.float32
        assert found[numbers].tobytes() == expected[numbers].tobytes()
        assert np.isnan(found[~numbers]).all()
    (block,) = open_hdf5(path, pick={"x": "/list/x"}).read()
    assert block["x"][0].tolist() == [1.5, -2]
