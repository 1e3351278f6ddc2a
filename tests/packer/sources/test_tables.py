"""Tables: a row is a sample, values come out as they are, and what no field holds is refused by name."""

from __future__ import annotations

import decimal
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from opened_sources import read_each
from pyarrow import parquet
from real_files import real_files

from packer.append import append
from packer.convert import convert
from packer.errors import SourceError, UsageError
from packer.format import manifest as manifests
from packer.sources import SourceOptions, open_sources
from readers import PackedDataset

TABLE = pa.table(
    {
        "x": pa.array([1, 2, 3], pa.int32()),
        "is": [True, False, True],
        "text": ["a", "", "c"],
        "at": pa.array([1, 2, 3], pa.timestamp("us")),
        "label": pa.array(["cat", "dog", "cat"]).dictionary_encode(),
        "pair": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32(), 2)),
        "boxes": [[1], [], [2, 3]],
        "grid": [[[1, 2], [3, 4]], [], [[5, 6]]],
        "of": [{"a": 1, "each": [{"c": 1.0}]}, {"a": 2, "each": []}, {"a": 3, "each": [{"c": 2.0}, {"c": 3.0}]}],
    }
)
VALUES = {
    "x": [1, 2, 3],
    "is": [True, False, True],
    "text": ["a", "", "c"],
    "at": [1, 2, 3],
    "label": [0, 1, 0],
    "pair": [[1, 2], [3, 4], [5, 6]],
    "boxes": [[1], [], [2, 3]],
    "of.a": [1, 2, 3],
    "of.each.c": [[1], [], [2, 3]],
}


def written(path: Path, table: pa.Table = TABLE) -> str:
    """Write a table as the suffix says, in groups of two rows."""
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=2)
    else:
        new = pa.ipc.new_file if path.suffix == ".feather" else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    return str(path)


def rows(path: object, start: int = 0, stop: int | None = None, **options: Any) -> dict[str, list[Any]]:
    """Return the rows of a table as lists."""
    source = open_sources([str(path)], SourceOptions(**options))
    each = read_each(source.slice(start, len(source) if stop is None else stop))
    return {n: [v.tolist() if hasattr(v, "tolist") else v for v in values] for n, values in each.items()}


@pytest.mark.parametrize("suffix", [".parquet", ".feather", ".arrow"])
def test_each_type_of_arrow_is_a_field(tmp_path: Path, suffix: str) -> None:
    """Numbers, text, times, classes, lists and structs keep their values, in parts that cross groups of rows too."""
    path = written(tmp_path / f"a{suffix}")
    found = rows(path)
    assert np.array_equal(found.pop("grid")[0], [[1, 2], [3, 4]])
    assert found == VALUES
    assert {name: values for name, values in rows(path, 1, 3).items() if name != "grid"} == {
        name: values[1:] for name, values in VALUES.items()
    }
    source = open_sources([path])
    assert source.origin["classes"] == ["cat", "dog"]
    assert source.origin["times"] == {"at": "timestamp[us]"}
    assert source.remarks == ["times are whole numbers, and the manifest has their units: at in timestamp[us]"]


def test_each_group_of_rows_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards begin where groups do, and what follows a bad row is not decoded again."""
    x = [None if n % 50 == 7 else n for n in range(2900)]
    parquet.write_table(pa.table({"x": x}), tmp_path / "a.parquet", row_group_size=100)
    decoded = list[int]()

    def iter_batches(self: parquet.ParquetFile, size: int, groups: list[int], *more: Any, **options: Any) -> Any:
        decoded.extend(groups)
        return original(self, size, groups, *more, **options)

    original = parquet.ParquetFile.iter_batches
    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", iter_batches)
    settings = {"on_error": "skip", "codec": "none", "shard_size": 4096, "workers": 0}
    report = convert(str(tmp_path / "a.parquet"), tmp_path / "out", **settings)
    assert [shard.samples + shard.rejected for shard in report.manifest.shards] == [500, 500, 400, 500, 500, 500]
    assert decoded == list(range(29))
    assert PackedDataset(tmp_path / "out").column("x").tolist() == [n for n in x if n is not None]


def test_a_plan_reads_footers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No column is decoded to find what the rows of many files are."""
    for number in range(5):
        written(tmp_path / f"{number}.parquet", TABLE.drop_columns("label"))
    monkeypatch.delattr(parquet.ParquetFile, "iter_batches")
    source = open_sources([str(tmp_path)])
    assert (len(source), source.cuts.tolist()) == (15, [0, 2, 3, 5, 6, 8, 9, 11, 12, 14])


def test_text_and_classes_as_polars_writes_them(tmp_path: Path) -> None:
    """Values that lie elsewhere (views) are text and classes as others are."""
    views = pa.array(["b", "a", "b"]).cast(pa.string_view())
    classes = pa.DictionaryArray.from_arrays([1, 0, 1], views[:2])
    assert rows(written(tmp_path / "a.feather", pa.table({"t": views, "c": classes}))) == {
        "t": ["b", "a", "b"],
        "c": [1, 0, 1],
    }


#: What polars and duckdb have written, each a type of its own: times count what their column says, from 1970 on.
BOTH = {
    "flag": [True, False],
    "small": [1, -2],
    "single": [0.5, -1.5],
    "day": [19782, -1],
    "time": [1_704_110_400_000_005, -31_536_000_000_000],
    "at.x": [1, 2],
    "at.y": ["p", "q"],
}
OF_EACH = {
    "pola-rs+polars": {
        "large": [1, 2**63],
        "text": ["a", ""],
        "kind": [0, 1],
        "choice": [0, 1],
        "took": [1_000, -86_400_000],
        "grid": [[1.0, 2.0], [3.0, 4.0]],
    },
    "duckdb+duckdb": {
        "large": [2**64 - 1, 2**63],
        "text": ["a", "Grüße"],
        "kind": ["cat", "dog"],
        "zoned": [1_704_110_400_000_000, -31_536_000_000_000],
        "grid": [[1.0, 2.0], [3.0, 4.0]],
    },
}


@pytest.mark.parametrize("program", OF_EACH)
def test_types_of_other_programs(program: str) -> None:
    """Categories, enums, durations, arrays, lists and structs keep their values, as do numbers to the last bit."""
    (path,) = real_files(f"parquet/{program}/types.parquet")
    assert rows(path, 0, 2) == {**BOTH, **OF_EACH[program], "list": [[1, 2], []]}


def test_thousands_of_columns(tmp_path: Path) -> None:
    """A table of measurements may have one for each; --columns makes them one field."""
    names, values = [f"c{n}" for n in range(3_000)], list(range(3_000))
    for file, mark in (("a.csv", ","), ("b.csv", ";")):
        (tmp_path / file).write_text(f"{mark.join(names)}\n{mark.join(map(str, values))}\n", encoding="utf-8-sig")
    assert rows(tmp_path / "a.csv") == {name: [value] for name, value in zip(names, values, strict=True)}
    assert rows(tmp_path / "b.csv", delimiter=";", columns=("x=c*",)) == {"x": [values]}


def test_lists_of_one_length_are_arrays(tmp_path: Path) -> None:
    """As pandas and polars write embeddings: --columns says their length and type; a row of another one is named."""
    table = pa.table(
        {"e": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "m": [[[1, 2], [3, 4]], [[5, 6], [7, 8]], [[1, 2, 3, 4]]]}
    )
    path = written(tmp_path / "a.parquet", table)
    source = open_sources([path], SourceOptions(columns=("v=e:float32:2",), skip=("m",)))
    assert [(spec.name, spec.dtype, spec.shape) for spec in source.fields] == [("v", "float32", (2,))]
    assert np.array_equal(read_each(source)["v"], [[1, 2], [3, 4], [5, 6]])
    with pytest.raises(SourceError, match="row 2: column m has 1 x 4 values, where 2 x 2 are expected"):
        rows(path, columns=("m=m:int8:2,2",))


def test_classes_of_several_files_have_one_number(tmp_path: Path) -> None:
    """Dictionaries are joined, and the manifest has the names."""
    for number, names in enumerate((["cat", "dog"], ["emu", "cat"])):
        written(tmp_path / f"{number}.parquet", pa.table({"label": pa.array(names).dictionary_encode()}))
    convert(str(tmp_path), tmp_path.parent / f"{tmp_path.name}.out", workers=0)
    dataset = PackedDataset(tmp_path.parent / f"{tmp_path.name}.out")
    assert dataset[[0, 1, 2, 3]]["label"].tolist() == [0, 1, 2, 0]
    assert manifests.read(tmp_path.parent / f"{tmp_path.name}.out").classes == ("cat", "dog", "emu")


def test_numbers_of_classes_keep_their_names(tmp_path: Path) -> None:
    """Of lists and members too, as Hugging Face has tags of words and of boxes; files that number otherwise differ."""
    table = pa.table({"tags": [[0, 1], [1]], "of": [[{"c": 1}], [{"c": 0}]], "a.b": [1, 0]})
    for number, names in enumerate((["cat", "dog"], ["dog", "cat"])):
        label = {"names": names, "_type": "ClassLabel"}
        tags = {"feature": label, "_type": "Sequence"}
        metadata = {
            "huggingface": json.dumps({"info": {"features": {"tags": tags, "of": [{"c": label}], "a.b": label}}})
        }
        written(tmp_path / f"{number}.parquet", table.replace_schema_metadata(metadata))
    source = open_sources([str(tmp_path / "0.parquet")])
    assert source.origin["categories"] == {name: ["cat", "dog"] for name in ("tags", "of.c", "a.b")}
    assert rows(tmp_path / "0.parquet") == {"tags": [[0, 1], [1]], "of.c": [[1], [0]], "a.b": [1, 0]}
    with pytest.raises(SourceError, match="numbers of column tags stand for cat, dog in some files, and dog, cat in"):
        open_sources([str(tmp_path)])


def test_types_of_csv_are_those_of_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far behind the first piece a column may become one of floats or of text; quotes, BOM and line ends are kept."""
    monkeypatch.setattr("packer.sources.tables.text._PIECE_BYTES", 64)
    lines = [f'{n},{n},00{n},"a\n""{n}""",true' for n in range(50)]
    (tmp_path / "a.csv").write_text(
        "\ufeffx, y,z,q,b\r\n" + "\n".join(lines) + "\n1.5,word,1,c,false", encoding="utf-8"
    )
    found = rows(tmp_path / "a.csv")
    assert found["x"] == [*map(float, range(50)), 1.5]
    assert found["y"] == [*map(str, range(50)), "word"]
    assert found["z"][:2] == ["000", "001"]
    assert (found["q"][7], found["b"][-2:]) == ('a\n"7"', [True, False])
    assert rows(tmp_path / "a.csv", 20, 31)["x"] == list(range(20, 31))


@pytest.mark.parametrize("number", ["9007199254740993", "+9007199254740993", "-1e400", "1e-400"])
def test_numbers_that_float64_does_not_hold_are_text(tmp_path: Path, number: str) -> None:
    """A whole number stays int64 where all are; beside others it would lose digits."""
    (tmp_path / "a.csv").write_text(f"x,y,z\n1.5,{number},inf\n{number},1.5,9007199254740994\n")
    assert rows(tmp_path / "a.csv") == {"x": ["1.5", number], "y": [number, "1.5"], "z": [math.inf, 2.0**53 + 2]}


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_text_in_utf_16_is_refused(tmp_path: Path, suffix: str) -> None:
    """By its byte order mark, whatever kind of text it is."""
    (tmp_path / f"a.{suffix}").write_text('{"a": 1}', "utf-16")
    with pytest.raises(SourceError, match="is text in UTF-16; save it as UTF-8"):
        open_sources([str(tmp_path / f"a.{suffix}")])


@pytest.mark.parametrize("text", ["a,b\r1,2\r3,4\r", "a,b\r1,2\r\n3,4\r\n"])
def test_lines_that_end_with_cr_alone_are_refused(tmp_path: Path, text: str) -> None:
    """They are no rows of ours, and beside others the first would be lost; a CR within quotes is text."""
    (tmp_path / "a.csv").write_bytes(text.encode())
    with pytest.raises(SourceError, match=r"lines that end with CR alone.* tr '\\r' '\\n' < "):
        open_sources([str(tmp_path / "a.csv")])
    (tmp_path / "a.csv").write_bytes(b'a,c\r\n"x\ry",2\r\n')
    assert rows(tmp_path / "a.csv") == {"a": ["x\ry"], "c": [2]}


@pytest.mark.parametrize(
    ("number", "is_held"),
    [("1e-400", False), ("-1.5E+400", False), ("1" + 400 * "0", False), ("1e-320", True), ("0e-999", True)],
)
def test_numbers_of_json_that_float64_does_not_hold_are_refused(tmp_path: Path, number: str, is_held: bool) -> None:
    """The column and the number are named; text that looks like one is text."""
    (tmp_path / "a.jsonl").write_text(f'{{"t": "1e-400", "s": {{"x": [0.0, {number}]}}}}\n')
    if is_held:
        assert rows(tmp_path / "a.jsonl") == {"t": ["1e-400"], "s.x": [[0.0, float(number)]]}
        return
    with pytest.raises(SourceError, match=rf"column (s\.)?x holds {re.escape(number[:40])}(\.\.\.)?, which float64"):
        rows(tmp_path / "a.jsonl")


def test_long_whole_numbers_beside_others_further_on_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece alone would be int64 or float64; those that float64 holds are taken."""
    monkeypatch.setattr("packer.sources.tables.text._PIECE_BYTES", 10)
    for number, is_held in ((2**53 + 2, True), (2**53 + 1, False)):
        (tmp_path / "a.csv").write_text(f"x\n{number}\n1.5\n-inf\n")
        if is_held:
            assert rows(tmp_path / "a.csv") == {"x": [number, 1.5, -math.inf]}
            continue
        with pytest.raises(SourceError, match="column x holds whole numbers that float64 does not, and others"):
            rows(tmp_path / "a.csv")


@pytest.mark.parametrize("piece_bytes", [3, 100])
def test_empty_lines_of_one_column_are_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    """As polars writes what is missing there; of several columns they are no rows, and none at the end of a file is."""
    monkeypatch.setattr("packer.sources.tables.text._PIECE_BYTES", piece_bytes)
    (tmp_path / "a.csv").write_text("t\n\na\n\n\nb\n\n\n")
    assert rows(tmp_path / "a.csv") == {"t": ["", "a", "", "", "b"]}
    (tmp_path / "a.csv").write_text("n\r\n1\r\n\r\n3\r\n\r\n")
    assert rows(tmp_path / "a.csv", fill={"n": "2"}) == {"n": [1, 2, 3]}
    with pytest.raises(SourceError, match="row 1: column n has no value"):
        rows(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("t,n\n\na,1\n\nb,2\n\n")
    assert rows(tmp_path / "a.csv") == {"t": ["a", "b"], "n": [1, 2]}


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_rows_that_are_appended_have_the_types_of_the_dataset(tmp_path: Path, suffix: str) -> None:
    """Whole numbers alone are floats there, and numbers text; a number that the field does not hold is refused."""

    def append_rows(name: str, values: list[Any]) -> None:
        lines = ["x,t", *(f"{x},{t}" for x, t in values)]
        if suffix == "jsonl":
            lines = [json.dumps({"x": x, "t": str(t)}) for x, t in values]
        (tmp_path / f"{name}.{suffix}").write_text("\n".join(lines))
        if name == "0":
            convert(str(tmp_path / f"{name}.{suffix}"), tmp_path / "out", workers=0)
        else:
            append(tmp_path / "out", str(tmp_path / f"{name}.{suffix}"), workers=0)

    append_rows("0", [(1.5, "a")])
    append_rows("1", [(2, "007"), (3, "8")])
    append_rows("2", [(4, 9)])
    dataset = PackedDataset(tmp_path / "out")
    assert ([float(s["x"]) for s in dataset], [s["t"] for s in dataset]) == ([1.5, 2, 3, 4], ["a", "007", "8", "9"])
    with pytest.raises(SourceError, match="does not"):
        append_rows("3", [(2**53 + 1, "b")])


@pytest.mark.parametrize("piece_bytes", [8, 100])
def test_the_type_of_a_column_is_that_of_all_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    """Wherever pieces end: values may be missing in one, a plus sign is no text, 1 is not true, and +07 not 7."""
    monkeypatch.setattr("packer.sources.tables.text._PIECE_BYTES", piece_bytes)
    (tmp_path / "a.csv").write_text("n,is,p,z,c,t\nNA,true,+1,+07,x,x\nNA,1,-2,8,2,y\n7,false,3,9,3,9\n")
    source = open_sources([str(tmp_path)], SourceOptions(fill={"n": "0"}))
    found = {name: [str(value) for value in values] for name, values in read_each(source).items()}
    assert found == {
        "n": ["0", "0", "7"],
        "is": ["true", "1", "false"],
        "p": ["1", "-2", "3"],
        "z": ["+07", "8", "9"],
        "c": ["x", "2", "3"],
        "t": ["x", "y", "9"],
    }
    many = "of 3 values (the first: {}) are no numbers that a field holds"
    assert source.remarks == [
        f"column {name} is text: 1 {many.format(first)}" for name, first in (("z", "'07'"), ("c", "'x'"))
    ]
    (tmp_path / "a.csv").write_text('x,y\n"1,5",1\nNA,2\n"-2,5",3\n')
    with pytest.raises(SourceError, match="column x has a decimal comma in all numbers, as in 1,5"):
        open_sources([str(tmp_path)])
    (tmp_path / "a.csv").write_text('x,y\n"1,5",1\n2,2\n"-2,5",3\n')
    assert open_sources([str(tmp_path)]).remarks == [f"column x is text: 2 {many.format(repr('1,5'))}"]


@pytest.mark.parametrize(("line", "is_said"), [("1,2", True), ("0.5,cat", True), ("0,1", False), ("a,2", False)])
def test_a_first_line_of_numbers_is_said(tmp_path: Path, line: str, is_said: bool) -> None:
    """It may be a row; pandas numbers columns from 0."""
    (tmp_path / "a.csv").write_text(f"{line}\n3,4\n")
    assert any("the first line has the names" in one for one in open_sources([str(tmp_path)]).remarks) == is_said


def test_quotes_within_values_are_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pandas reads them, wherever a piece of the file ends: a quote opens a value only where the value begins."""
    monkeypatch.setattr("packer.sources.tables.text._PIECE_BYTES", 50)
    lines = [f'{n},5" of {n},"a\n""{n}"", {n}"' for n in range(40)]
    (tmp_path / "a.csv").write_text('\ufeff"n",size,text\n' + "\n".join(lines), encoding="utf-8")
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.read_csv(tmp_path / "a.csv")
    assert rows(tmp_path / "a.csv") == {name: frame[name].tolist() for name in ("n", "size", "text")}


def test_the_index_of_pandas_is_a_field(tmp_path: Path) -> None:
    """Its column has no name in CSV; and in Parquet the manifest of its types is no column."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"x": [1.5, 2.5], "c": pandas.Categorical(["b", "a"])})
    frame.to_csv(tmp_path / "a.csv")
    frame.set_index("x").to_parquet(tmp_path / "a.parquet")
    assert rows(tmp_path / "a.csv") == {"index": [0, 1], "x": [1.5, 2.5], "c": ["b", "a"]}
    assert rows(tmp_path / "a.parquet") == {"c": [1, 0], "x": [1.5, 2.5]}


def test_rows_of_json_lines(tmp_path: Path) -> None:
    """Numbers of rows are joined, times stay text, lists and members are fields."""
    values = [{"a": 1, "t": "2020-01-01", "l": [1, 2], "o": {"k": 1}}, {"a": 2.5, "t": "x", "l": [], "o": {"k": 2}}]
    (tmp_path / "a.ndjson").write_text("".join(json.dumps(value) + "\n" for value in values))
    expected = {"a": [1.0, 2.5], "t": ["2020-01-01", "x"], "l": [[1, 2], []], "o.k": [1, 2]}
    assert rows(tmp_path / "a.ndjson") == expected


def test_a_missing_value_is_named_filled_or_left_out(tmp_path: Path) -> None:
    """The error names row and column, and each of the ways out that it names works."""
    (tmp_path / "a.csv").write_text("a,b\n1,2\nNA,3\n4,5\n,6\n7,8\n")
    with pytest.raises(SourceError, match=r"a\.csv: row 1: column a has no value; --fill a=VALUE"):
        rows(tmp_path / "a.csv")
    assert rows(tmp_path / "a.csv", fill={"a": "-1"})["a"] == [1, -1, 4, -1, 7]
    assert rows(tmp_path / "a.csv", skip=("a",)) == {"b": [2, 3, 5, 6, 8]}
    (tmp_path / "t.csv").write_text("a,t\n1,x\n2,\n")
    assert rows(tmp_path / "t.csv")["t"] == ["x", ""]
    assert rows(tmp_path / "t.csv", fill={"t": "none"})["t"] == ["x", "none"]
    report = convert(str(tmp_path / "a.csv"), tmp_path / "out", on_error="skip", workers=0)
    assert (report.samples, len(report.rejected)) == (3, 2)
    assert PackedDataset(tmp_path / "out")[[0, 1, 2]]["b"].tolist() == [2, 5, 8]
    pairs = pa.array([[1, 2], [3, None], [5, 6]], pa.list_(pa.int64(), 2))
    for lists in ([[1], [2, None], [3]], pairs):
        path = written(tmp_path / "l.parquet", pa.table({"l": lists}))
        with pytest.raises(SourceError, match="row 1: column l has no value"):
            rows(path)
    classes = pa.DictionaryArray.from_arrays([0, 1, 2], ["x", None, "y"])  # whose missing value is no class
    path = written(tmp_path / "c.arrow", pa.table({"c": classes}))
    with pytest.raises(SourceError, match="row 1: column c has no value"):
        rows(path)
    assert rows(path, fill={"c": "y"}) == {"c": [0, 1, 1]}
    path = written(tmp_path / "of.parquet", pa.table({"of": [[{"a": 1}], [], None]}))
    with pytest.raises(SourceError, match=r"row 2: column of\.a has no value"):
        rows(path)


def test_rows_of_a_large_group_are_decoded_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any part of them is those rows, and the error of one names its number in the file."""
    lists = [[n] * n for n in range(5)]
    for nbytes in (2**20, 1):  # a batch of all rows, and one of each
        monkeypatch.setattr("packer.sources.tables.arrow.BLOCK_BYTES", nbytes)
        parquet.write_table(pa.table({"x": range(5), "l": lists}), path := tmp_path / f"{nbytes}.parquet")
        for start, stop in ((0, 5), (1, 3), (2, 5), (4, 5)):
            assert rows(path, start, stop) == {"x": list(range(start, stop)), "l": lists[start:stop]}
    parquet.write_table(pa.table({"x": [0, 1, 2, None, 4]}), tmp_path / "b.parquet")
    for start in (0, 2):
        with pytest.raises(SourceError, match="row 3: column x has no value"):
            rows(tmp_path / "b.parquet", start, 5)


def test_columns_of_files_may_be_in_another_order(tmp_path: Path) -> None:
    """They go by their names."""
    (tmp_path / "a.csv").write_text("a,b,c\n1,2.5,x\n")
    (tmp_path / "b.csv").write_text("c,a,b\ny,3,4.5\n")
    assert rows(tmp_path) == {"a": [1, 3], "b": [2.5, 4.5], "c": ["x", "y"]}


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.csv", "a;b\n1;2\n", "is it --delimiter ';'"),
        ("a.tsv", "a\n1,5\n2,5\n", "decimal comma"),
        ("a.csv", "\ufeffa;b\n1,5;2\n2,5;3\n", "is it --delimiter ';'"),
        ("a.csv", "a,b\n", "has no rows"),
        ("a.csv", "a,b\n1,2,3\n", "cannot be read as a table"),
        ("a.csv", 'a,b\n1,x\n2,"y\n3,z\n', "a quote is never closed in the row that begins with '2,\"y'"),
        ("a.csv", "a,,b\n1,2,3\n", "column 2 has no name"),
        ("a.csv", "a,a\n1,2\n", "two columns are named 'a'"),
        ("a.csv", "a,b\n1,\n2,\n", "column b has no value in any row"),
        ("a.jsonl", '{"a": 1}\n{"a": "x"}\n', "cannot be read as a table"),
        (
            "a.jsonl",
            '{"a": [18446744073709551615]}\n{"a": [9007199254740993, 2]}\n',
            "holds 18446744073709551615, which float64",
        ),
        ("a.parquet", "x", "cannot be read as a table"),
        ("a.jsonl", '{"a.b": 1, "a": {"b": 2}}\n', "are named 'a.b'; rename one"),
        ("a.jsonl", '{"a": "\udce9"}\n', "row 0: text that is not in UTF-8"),
        ("a.csv", "a\n\udce9\n", r"a\.csv: is not text in UTF-8; save it as such, as by iconv"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, name: str, content: str, reason: str) -> None:
    """One sentence says what is wrong."""
    (tmp_path / name).write_text(content, errors="surrogateescape")
    with pytest.raises(SourceError, match=reason):
        rows(tmp_path / name)


def test_a_delimiter_is_one_character(tmp_path: Path) -> None:
    """Any but a quote; `tab` is one."""
    (tmp_path / "a.csv").write_text("a\tb\n1\t2\n")
    assert rows(tmp_path / "a.csv", delimiter="tab") == {"a": [1], "b": [2]}
    with pytest.raises(UsageError, match="--delimiter ab: one character is expected"):
        rows(tmp_path / "a.csv", delimiter="ab")


@pytest.mark.parametrize(
    "values",
    [
        [decimal.Decimal("1.5")],
        [["a", "b"]],
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((1, 2, 3))),
    ],
)
def test_columns_that_no_field_holds_are_refused(tmp_path: Path, values: Any) -> None:
    """Decimals, lists of text, and tensors, are named, and can be left out; a wrong name is an error."""
    path = written(tmp_path / "a.parquet", pa.table({"p": values, "x": [1]}))
    with pytest.raises(SourceError, match=r"column p is .*, which no field holds.*--skip p"):
        rows(path)
    assert rows(path, skip=("p",)) == {"x": [1]}
    with pytest.raises(UsageError, match="--skip q: there is no such column"):
        rows(path, skip=("p", "q"))


def test_columns_that_only_folders_have_are_named(tmp_path: Path) -> None:
    """As pandas and Spark write parts of a table: their values stand in no file."""
    parquet.write_to_dataset(pa.table({"x": [1, 2], "label": ["cat", "dog"]}), tmp_path, partition_cols=["label"])
    (remark,) = open_sources([str(tmp_path)]).remarks
    assert remark.startswith("values in names of folders, such as label=cat, are no columns")


def test_files_with_other_columns_cost_no_rows_of_the_others(tmp_path: Path) -> None:
    """One of three files differs: every row of the two others is packed."""
    (tmp_path / "in").mkdir()
    for name, column, rows in (("a", "x", range(10)), ("b", "x", range(10, 20)), ("c", "z", range(3))):
        (tmp_path / f"in/{name}.csv").write_text("\n".join([column, *map(str, rows)]))
    report = convert(str(tmp_path / "in"), tmp_path / "out", workers=0, on_error="skip")
    assert len(report.rejected) == 1
    assert [int(sample["x"]) for sample in PackedDataset(tmp_path / "out")] == list(range(20))


def test_parts_that_are_not_there_are_counted(tmp_path) -> None:
    """Names of Hugging Face say how many parts a set has: one that was not downloaded would be left out unseen."""
    for split, parts in (("train", (0, 2)), ("test", (0,))):
        for part in parts:
            name = f"{split}-{part:05d}-of-{3 if split == 'train' else 1:05d}.parquet"
            parquet.write_table(pa.table({"x": [part]}), tmp_path / name)
    parquet.write_table(pa.table({"x": [9]}), tmp_path / "first.parquet")
    remarks = open_sources([str(tmp_path)]).remarks
    assert remarks == ["2 of the 3 parts train-*-of-00003.parquet are there: the others are not packed"]
