"""Bodies of PLY files: equal to what plyfile gives for good ones, an error that says where for all others."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opened_sources import open_ply
from plyfile import PlyData, PlyElement
from real_files import real_files

from packer.errors import SourceError
from packer.sources.ply import Element, Property, rules_of

FILES = real_files("ply_*/**/*.ply")
SCALARS = ("i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8")
INTEGERS = SCALARS[:6]


Sample = dict[str, np.ndarray]


def read(path: Path) -> Sample:
    """The one sample of a file, as long in every field as the plan said."""
    source = open_ply(str(path))
    (block,) = source.read()
    sample = {name: arrays[0] for name, arrays in block.items()}
    assert [tuple(source.shapes(name)[0]) for name in sample] == [array.shape for array in sample.values()]
    return sample


@pytest.fixture(scope="module")
def read_bytes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], Sample]:
    """Reads a file of these bytes."""
    path = tmp_path_factory.mktemp("bodies") / "a.ply"

    def written(data: bytes) -> Sample:
        path.write_bytes(data)
        return read(path)

    return written


def assert_equal(sample: Sample, expected: PlyData) -> None:
    """Every property of every element has the same values, bit for bit, in the field that it went into."""
    kinds = {"i1": "int8", "u1": "uint8", "i2": "int16", "u2": "uint16", "i4": "int32", "u4": "uint32"}
    kinds |= {"f4": "float32", "f8": "float64"}
    elements = tuple(
        Element(
            name, tuple(Property(p.name, kinds[p.val_dtype], kinds.get(getattr(p, "len_dtype", ""))) for p in found)
        )
        for name, found in ((e.name, e.properties) for e in expected.elements)
    )
    for rule in rules_of(elements).values():
        properties = [expected[rule.element].properties[i] for i in rule.properties]
        for column, prop in enumerate(properties):
            array, values = sample[rule.field], expected[rule.element].data[prop.name]
            if not rule.is_list:
                assert kinds[prop.val_dtype] == array.dtype
                array = array[:, column] if len(properties) > 1 else array
                assert array.tobytes() == values.astype(array.dtype).tobytes()
                continue
            sizes = sample[f"{rule.field}_size"] if array.ndim == 1 else np.full(len(array), array.shape[1])
            assert sizes.tolist() == [len(row) for row in values]
            assert array.tobytes() == b"".join(np.asarray(row).astype(array.dtype).tobytes() for row in values)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_sample_files_equal_plyfile(path: Path) -> None:
    """Files written by many programs read as plyfile reads them."""
    assert_equal(read(path), PlyData.read(str(path)))


def numbers(dtype: str) -> st.SearchStrategy:
    if dtype[0] == "f":
        return st.floats(width=8 * int(dtype[1]), allow_nan=False)
    limits = np.iinfo(dtype)
    return st.integers(limits.min, limits.max)


@st.composite
def elements(draw, name: str) -> PlyElement:
    """An element with any types; lists are all of one length, or not."""
    count = draw(st.integers(0, 4))
    types, columns, counts, entries = [], [], {}, {}
    for i in range(draw(st.integers(1, 3))):
        dtype = draw(st.sampled_from(SCALARS))
        if draw(st.booleans()):
            types.append((f"p{i}", dtype))
            columns.append([draw(numbers(dtype)) for _ in range(count)])
            continue
        types.append((f"p{i}", "O"))
        counts[f"p{i}"], entries[f"p{i}"] = draw(st.sampled_from(INTEGERS)), dtype
        # plyfile cannot read an empty list back from text.
        lengths = draw(st.sampled_from([st.just(3), st.integers(1, 5)]))
        columns.append([np.array([draw(numbers(dtype)) for _ in range(draw(lengths))], dtype) for _ in range(count)])
    data = np.empty(count, types)
    for (key, _), column in zip(types, columns, strict=True):
        for row, value in enumerate(column):
            data[key][row] = value
    return PlyElement.describe(data, name, len_types=counts, val_types=entries)


@settings(max_examples=40, deadline=None)
@given(
    written=st.tuples(elements("vertex"), elements("face")),
    form=st.sampled_from([(True, "="), (False, "<"), (False, ">")]),
)
def test_round_trip(read_bytes, written, form) -> None:
    """What plyfile writes, in any form and with any types, reads back bit for bit; so do the lengths of lists."""
    stream = io.BytesIO()
    PlyData(written, text=form[0], byte_order=form[1]).write(stream)
    assert_equal(read_bytes(stream.getvalue()), PlyData.read(io.BytesIO(stream.getvalue())))


@pytest.mark.parametrize("order", ["<", ">"])
def test_polygons_with_other_columns(read_bytes, order: str) -> None:
    """Lists of different lengths, empty ones too, with numbers before, between and behind them."""
    data = np.empty(50, [("a", "u2"), ("b", "O"), ("c", "f8"), ("d", "O"), ("e", "i1")])
    for i in range(50):
        data[i] = (i, np.arange(i % 4, dtype="i4"), i * 0.5, np.arange(i % 3 + 1, dtype="i1"), -i)
    counts, entries = {"b": "i2", "d": "u1"}, {"b": "i4", "d": "i1"}
    stream = io.BytesIO()
    PlyData([PlyElement.describe(data, "vertex", len_types=counts, val_types=entries)], byte_order=order).write(stream)
    assert_equal(read_bytes(stream.getvalue()), PlyData.read(io.BytesIO(stream.getvalue())))


HEAD = "ply\nformat ascii 1.0\nelement vertex 2\nproperty float x\nproperty uchar c\n"
FACES = "element face 2\nproperty list uchar int vertex_indices\nproperty char f\n"


@pytest.mark.parametrize(
    ("faces", "body", "reason"),
    [
        (False, "1 2\n3 256\n", "line 8, c: 256 does not fit its type, uint8"),
        (False, "1 2\n3 -1\n", "line 8, c: -1 does not fit"),
        (False, "1 2.5\n3 1\n", "line 7, c: 2.5 does not fit"),
        (False, "1 nan\n3 1\n", "line 7, c: nan does not fit"),
        (False, "1 inf\n3 1\n", "line 7, c: inf does not fit"),
        (False, "1e39 1\n3 1\n", "line 7, x: 1e.39 does not fit its type, float32"),
        (False, "1.0 2\n3\n", "line 8, c: 1 values are missing"),
        (False, "1 2 3\n4\n", "line 8, c: 1 values are missing"),
        (False, "1 2 3\n4 5\n", "line 7: 2 values are expected, 3 are there"),
        (False, "1 2\n", "2 rows of vertex need at least 7 bytes"),
        (False, "1.0000 2\n", "element vertex, row 1: the file ends here"),
        (False, "1 2\n3 4\n5 6\n", "line 9: 1 lines are left over"),
        (False, "1 2\n3 4\nword\n", "line 9: 'word' is not a number"),
        (False, "1 2\n3 four\n", "line 8, c: 'four'"),
        (True, "1 2\n3 4\n3 0 1 2 0\n3 0 1 2\n", "line 13, f: 1 values are missing"),
        (True, "1 2\n3 4\n3 0 1 2 0\n4 0 1 2\n", "line 13, vertex_indices: 1 values are missing"),
        (True, "1 2\n3 4\n3 0 1 2 0 7\n3 0 1 2 1\n", "line 12: 5 values are expected, 6 are there"),
        (True, "1 2\n3 4\n3 0 1 2 0\n-1 0 1 2\n", "line 13, vertex_indices: -1 does not fit"),
        (True, "1 2\n3 4\n3 0 1 2 0\n1.5 0 1 2\n", "line 13, vertex_indices: 1.5 does not fit"),
        (True, "1 2\n3 4\n3 0 1 2 0\n3 0 1 3000000000 0\n", "line 13, vertex_indices: 3e.09 does not fit"),
        (True, "1 2\n3 4\n3 0 1 2 0\nnan 0 1 2 0\n", "line 13, vertex_indices: nan does not fit"),
        (True, "1 2\n3 4\n3 0 1 2 0\n3 0 nan 2 0\n", "line 13, vertex_indices: nan does not fit"),
        (True, "1 2\n3 4\n3 0 1 2 0\n3 0 1 inf 0\n", "line 13, vertex_indices: inf does not fit"),
        (True, "1 2\n3 4\n3 0 1 2 0\n3 0 1 x 0\n", "line 13: 'x'"),
        (True, "1 2\n3 4\n3 0 1 2 0\n3 0 1 2 0 x\n", "line 13: 'x'"),
    ],
)
def test_wrong_text_says_where(read_bytes, faces: bool, body: str, reason: str) -> None:
    """Text that is not what the header declares is an error with element, row and property."""
    with pytest.raises(SourceError, match=reason):
        read_bytes((HEAD + FACES * faces + "end_header\n" + body).encode())


def test_infinity_may_be_written(read_bytes) -> None:
    """Infinity and NaN are values of a float property when the file says so."""
    sample = read_bytes((HEAD + "end_header\n-inf 1\nnan 2").encode())
    np.testing.assert_array_equal(sample["x"], np.array([-np.inf, np.nan], "f4"))


BINARY = b"ply\nformat binary_little_endian 1.0\nelement vertex 3\nproperty float x\n"
LIST = b"element face %d\nproperty list int short vertex_indices\nproperty uchar f\n"


def binary_faces(*rows: list[int], count: int | None = None) -> bytes:
    body = b"".join(np.array([len(r)], "<i4").tobytes() + np.array(r, "<i2").tobytes() + b"\7" for r in rows)
    return BINARY + LIST % (len(rows) if count is None else count) + b"end_header\n" + bytes(12) + body


def test_binary_files_hold_what_is_declared(read_bytes) -> None:
    """Every cut of a binary file is an error."""
    for good in (BINARY + b"end_header\n" + bytes(12), binary_faces([1, 2, 3], [1]), binary_faces([1, 2], [3, 4])):
        read_bytes(good)
        for stop in range(good.index(b"end_header") + 10, len(good)):
            with pytest.raises(SourceError):
                read_bytes(good[:stop])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (binary_faces([1, 2, 3], [1], count=3), "element face, row 2|row 1"),
        (binary_faces([1]).replace(b"\1\0\0\0\1", b"\xff\xff\xff\xff\1"), "row 0, property vertex_indices: .* -1"),
        (binary_faces([1]).replace(b"\1\0\0\0\1", b"\xff\xff\xff\x7f\1"), "element face, row 0"),
        (binary_faces([1], count=2**40), "need at least"),
        (
            BINARY.replace(b" 3", b" 200000000000000") + b"end_header\n" + bytes(12),
            "rows of vertex need 800,000,000,000,000 bytes",
        ),
    ],
)
def test_lying_counts_are_found(read_bytes, data: bytes, reason: str) -> None:
    """No declared count is believed before it is held against the bytes there are."""
    with pytest.raises(SourceError, match=reason):
        read_bytes(data)
