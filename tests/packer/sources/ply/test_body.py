"""Bodies of PLY files: equal to what plyfile gives for good ones, an error that says where for all others."""

from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plyfile import PlyData, PlyElement

from packer.errors import SourceError
from packer.sources.ply.body import check_size, measure_lists, read_tables
from packer.sources.ply.header import parse_header
from packer.sources.ply.table import Table

SHARED = Path(__file__).parents[5] / "shared" / "data"
FILES = sorted(SHARED.glob("ply_*/**/*.ply"))
SCALARS = ("i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8")
INTEGERS = SCALARS[:6]


def read_bytes(data: bytes, path: str = "a.ply") -> dict[str, Table]:
    header = parse_header(data, path)
    check_size(header, len(data), path)
    return read_tables(header, data[header.body :], path)


def assert_equal(tables: dict[str, Table], expected: PlyData) -> None:
    """Every property of every element has the same values, bit for bit, and the same type."""
    assert list(tables) == [e.name for e in expected.elements]
    for element in expected.elements:
        table = tables[element.name]
        for i, prop in enumerate(element.properties):
            if i in table.numbers:
                found = table.numbers[i].astype(table.numbers[i].dtype.newbyteorder("="))
                assert found.dtype == np.dtype(prop.val_dtype)
                assert found.tobytes() == element.data[prop.name].astype(found.dtype).tobytes()
                continue
            values, sizes = table.lists[i]
            rows = [np.asarray(row).astype(prop.val_dtype) for row in element.data[prop.name]]
            assert sizes.tolist() == [len(row) for row in rows]
            assert values.astype(prop.val_dtype).tobytes() == b"".join(row.tobytes() for row in rows)


@pytest.mark.skipif(not FILES, reason="no sample files here")
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_sample_files_equal_plyfile(path: Path) -> None:
    """Files written by many programs read as plyfile reads them."""
    assert_equal(read_bytes(path.read_bytes()), PlyData.read(str(path)))


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
def test_round_trip(written, form) -> None:
    """What plyfile writes, in any form and with any types, reads back bit for bit; so do the lengths of lists."""
    stream = io.BytesIO()
    PlyData(written, text=form[0], byte_order=form[1]).write(stream)
    tables = read_bytes(stream.getvalue())
    assert_equal(tables, PlyData.read(io.BytesIO(stream.getvalue())))


def test_polygons_with_other_columns(tmp_path) -> None:
    """Lists of different lengths with numbers before, between and behind them are found in any byte order."""
    rows = [(i, range(i % 4), i * 0.5, range(i % 3 + 1), -i) for i in range(50)]
    for order, form in (("<", "little"), (">", "big")):
        body = b"".join(
            np.array([a], order + "u2").tobytes()
            + np.array([len(b)], order + "i2").tobytes()
            + np.array(b, order + "i4").tobytes()
            + np.array([c], order + "f8").tobytes()
            + np.array([len(d)], "u1").tobytes()
            + np.array(d, "i1").tobytes()
            + np.array([e], "i1").tobytes()
            for a, b, c, d, e in rows
        )
        head = (
            f"ply\nformat binary_{form}_endian 1.0\nelement vertex 50\nproperty ushort a\nproperty list short int b\n"
            "property double c\nproperty list uchar char d\nproperty char e\nend_header\n"
        )
        path = tmp_path / "a.ply"
        path.write_bytes(head.encode() + body)
        table = read_bytes(path.read_bytes())["vertex"]
        assert table.numbers[0].tolist() == [r[0] for r in rows]
        assert table.lists[1].values.tolist() == [x for r in rows for x in r[1]]
        assert table.numbers[2].tolist() == [r[2] for r in rows]
        assert table.lists[3].values.tolist() == [x for r in rows for x in r[3]]
        assert table.numbers[4].tolist() == [r[4] for r in rows]
        extents = measure_lists(parse_header(head.encode(), "a"), str(path))
        assert extents == {("vertex", 1): (73, None), ("vertex", 3): (99, None)}


HEAD = "ply\nformat ascii 1.0\nelement vertex 2\nproperty float x\nproperty uchar c\n"
FACES = "element face 2\nproperty list uchar int vertex_indices\nproperty char f\n"


@pytest.mark.parametrize(
    ("faces", "body", "reason"),
    [
        (False, "1 2\n3 256\n", "element vertex, row 1, property c: 256 does not fit its type, uint8"),
        (False, "1 2\n3 -1\n", "row 1, property c: -1 does not fit"),
        (False, "1 2.5\n3 1\n", "row 0, property c: 2.5 does not fit"),
        (False, "1 nan\n3 1\n", "row 0, property c: nan does not fit"),
        (False, "1 inf\n3 1\n", "row 0, property c: inf does not fit"),
        (False, "1e39 1\n3 1\n", "row 0, property x: 1e.39 does not fit its type, float32"),
        (False, "1.0 2\n3\n", "row 1, property c: 2 values are expected, 1 are there"),
        (False, "1 2 3\n4\n", "row 0: 2 values are expected, 3 are there"),
        (False, "1 2\n", "2 rows of vertex need at least 7 bytes"),
        (False, "1.0000 2\n", "element vertex, row 1: the file ends here"),
        (False, "1 2\n3 4\n5 6\n", "1 lines are left over"),
        (False, "1 2\n3 4\nword\n", "left over"),
        (False, "1 2\n3 four\n", "element vertex, row 1, property c: 'four'"),
        (True, "1 2\n3 4\n3 0 1 2 0\n3 0 1 2\n", "element face, row 1, property f: 1 values are missing"),
        (True, "1 2\n3 4\n3 0 1 2 0\n4 0 1 2\n", "element face, row 1, property vertex_indices: 1 values are missing"),
        (True, "1 2\n3 4\n3 0 1 2 0 7\n3 0 1 2 1\n", "element face, row 0: 1 values too many"),
        (True, "1 2\n3 4\n3 0 1 2 0\n-1 0 1 2\n", "row 1, property vertex_indices: -1 does not fit"),
        (True, "1 2\n3 4\n3 0 1 2 0\n1.5 0 1 2\n", "row 1, property vertex_indices: 1.5 does not fit"),
        (True, "1 2\n3 4\n3 0 1 2 0\n3 0 1 3000000000 0\n", "face, row 1, property vertex_indices: 3e.09 does not fit"),
        (True, "1 2\n3 4\n3 0 1 2 0\nnan 0 1 2 0\n", "row 1, property vertex_indices: nan does not fit"),
        (True, "1 2\n3 4\n3 0 1 2 0\n3 0 nan 2 0\n", "row 1, property vertex_indices: nan does not fit"),
        (True, "1 2\n3 4\n3 0 1 2 0\n3 0 1 inf 0\n", "row 1, property vertex_indices: inf does not fit"),
        (True, "1 2\n3 4\n3 0 1 2 0\n3 0 1 x 0\n", "element face, row 1, property vertex_indices: 'x'"),
        (True, "1 2\n3 4\n3 0 1 2 0\n3 0 1 2 x\n", "element face, row 1, property f: 'x'"),
        (True, "1 2\n3 4\n3 0 1 2 0\n3 0 1 2 0 x\n", "element face, row 1: 'x'"),
        (True, "1 2\n3 4\n3 0 1 2 0\ninf x 0 0 0\n", "element face, row 1, property vertex_indices: 'x'"),
    ],
)
def test_wrong_text_says_where(faces: bool, body: str, reason: str) -> None:
    """Text that is not what the header declares is an error with element, row and property."""
    with pytest.raises(SourceError, match=reason):
        read_bytes((HEAD + FACES * faces + "end_header\n" + body).encode())


def test_infinity_may_be_written() -> None:
    """Infinity and NaN are values of a float property when the file says so."""
    table = read_bytes((HEAD + "end_header\n-inf 1\nnan 2").encode())["vertex"]
    np.testing.assert_array_equal(table.numbers[0], np.array([-np.inf, np.nan], "f4"))


BINARY = b"ply\nformat binary_little_endian 1.0\nelement vertex 3\nproperty float x\n"
LIST = b"element face %d\nproperty list int short vertex_indices\nproperty uchar f\n"


def binary_faces(*rows: list[int], count: int | None = None) -> bytes:
    body = b"".join(np.array([len(r)], "<i4").tobytes() + np.array(r, "<i2").tobytes() + b"\7" for r in rows)
    return BINARY + LIST % (len(rows) if count is None else count) + b"end_header\n" + bytes(12) + body


def test_binary_files_hold_exactly_what_is_declared() -> None:
    """Every cut of a binary file, and every byte added, is an error."""
    for good in (BINARY + b"end_header\n" + bytes(12), binary_faces([1, 2, 3], [1]), binary_faces([1, 2], [3, 4])):
        read_bytes(good)
        for stop in range(good.index(b"end_header") + 10, len(good)):
            with pytest.raises(SourceError):
                read_bytes(good[:stop])
        with pytest.raises(SourceError, match=r"left over|bytes"):
            read_bytes(good + b"\0")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (binary_faces([1, 2, 3], [1], count=3), "element face, row 2|row 1"),
        (binary_faces([1, 2, 3], [1], count=1), "left over"),
        (binary_faces([1]).replace(b"\1\0\0\0\1", b"\xff\xff\xff\xff\1"), "row 0, property vertex_indices: .* -1"),
        (binary_faces([1]).replace(b"\1\0\0\0\1", b"\xff\xff\xff\x7f\1"), "element face, row 0"),
        (binary_faces([1], count=2**40), "need at least"),
        (BINARY.replace(b" 3", b" 200000000000000") + b"end_header\n" + bytes(12), "need at least"),
    ],
)
def test_lying_counts_are_found(data: bytes, reason: str) -> None:
    """No declared count is believed before it is held against the bytes there are."""
    with pytest.raises(SourceError, match=reason):
        read_bytes(data)


def test_one_row_with_a_very_long_list() -> None:
    """A strip of 373,830 corners in one row is a list like any other."""
    strip = np.arange(373_830, dtype="<i4")
    head = BINARY + b"element tristrips 1\nproperty list int int vertex_indices\nend_header\n"
    data = head + bytes(12) + np.array([len(strip)], "<i4").tobytes() + strip.tobytes()
    assert read_bytes(data)["tristrips"].lists[0].values.tolist() == strip.tolist()


GOOD = [
    (HEAD + FACES + "end_header\n1 2\n3 4\n3 0 1 2 0\n4 0 1 2 3 1\n").encode(),
    binary_faces([1, 2, 3], [1]),
    BINARY + b"end_header\n" + bytes(12),
]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(GOOD),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4),
    st.integers(0, 9),
)
def test_damage_gives_an_error_or_a_table(data: bytes, flips: list[tuple[int, int]], cut: int) -> None:
    """Bytes changed or cut off anywhere lead to a SourceError or to a file that reads; never to anything else."""
    damaged = bytearray(data)
    for place, value in flips:
        damaged[place % len(damaged)] = value
    with suppress(SourceError):
        read_bytes(bytes(damaged[: len(damaged) - cut]))
