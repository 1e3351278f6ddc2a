"""Tables and files as one sample: rows go to samples by their names, and the files that a column names are fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from opened_sources import read_each
from pyarrow import parquet

from packer.convert import convert
from packer.errors import SourceError, UsageError
from packer.join import join
from packer.sources import Source, SourceOptions, open_sources
from readers import PackedDataset
from tests.helpers.picture_files import picture, save


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with three pictures, images/a.png to images/c.png."""
    for number, name in enumerate("abc"):
        save(tmp_path / "images" / f"{name}.png", picture(4, 5, seed=number))
    return tmp_path


def opened(folder: Path, text: str, *inputs: str, **options: Any) -> Source:
    """Return a source of which one is a table of this text, t.csv."""
    (folder / "t.csv").write_text(text)
    texts = [text.replace("DIR", str(folder)) for text in inputs or ("DIR/t.csv",)]
    return open_sources(texts, SourceOptions(**options))


BESIDE = ("image=DIR/images", "label=DIR/t.csv")


@pytest.mark.parametrize("form", ["{}", "{}.png", "somewhere/{}.png"])
def test_rows_go_to_the_samples_that_they_name(folder: Path, form: str) -> None:
    """A column may name samples with or without suffix and folder; parts have their own rows."""
    text = "id,label,n\n" + "".join(f"{form.format(name)},{name * 2},{n}\n" for n, name in enumerate("cab"))
    source = opened(folder, text, *BESIDE)
    assert source.names == ["a", "b", "c"]
    found = read_each(source.slice(1, 3))
    assert (found["label"], [int(n) for n in found["n"]]) == (["bb", "cc"], [2, 0])
    assert np.array_equal(found["image"][0], picture(4, 5, seed=1))


def test_names_with_spaces_and_a_table_among_the_pictures(folder: Path) -> None:
    """Spaces around a name are none of it; a table that is named is no file of the folder; one that is not, is said."""
    (folder / "images" / "t.csv").write_text("x, id\n3, c\n1, a\n2, b\n")
    inputs = [f"image={folder / 'images'}", f"x={folder / 'images' / 't.csv'}"]
    assert read_each(open_sources(inputs))["x"] == [1, 2, 3]
    with pytest.raises(SourceError, match=r"to give each the row that names it: image=\S+images label=\S+t\.csv"):
        open_sources(inputs[:1])
    save(folder / "numbers" / "007.png", picture(2, 2))
    with pytest.raises(UsageError, match="those in id have no zeros in front"):
        opened(folder, "id,x\n7,1\n", "image=DIR/numbers", "x=DIR/t.csv")
    save(folder / "numbers" / "008.png", picture(2, 2))
    (folder / "list.txt").write_text("007 1\n008 2\n")
    with pytest.raises(UsageError, match=r"x=\S+list\.txt is one text, and named like no sample; a list .* save "):
        opened(folder, "", "image=DIR/numbers", "x=DIR/list.txt")


def test_rows_in_another_order_are_read_as_they_lie(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group of rows is decoded once for many samples; a row without a value leaves out its own sample alone."""
    decoded, original = list[int](), parquet.ParquetFile.iter_batches

    def iter_batches(self: parquet.ParquetFile, size: int, groups: list[int], *more: Any, **options: Any) -> Any:
        decoded.extend(groups)
        return original(self, size, groups, *more, **options)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", iter_batches)
    names = [f"{n * 5 % 12:02d}" for n in range(12)]
    for name in names:
        save(folder / "many" / f"{name}.png", picture(2, 2))
    inputs = [f"image={folder / 'many'}", f"x={folder / 't.parquet'}"]
    parquet.write_table(pa.table({"id": names, "x": map(float, names)}), folder / "t.parquet", row_group_size=2)
    assert read_each(open_sources(inputs))["x"] == list(range(12))
    assert decoded == [*range(6), *range(6)]  # the names, and then the values
    x = [None if name in ("03", "08") else int(name) for name in names]
    parquet.write_table(pa.table({"id": names, "x": x}), folder / "t.parquet", row_group_size=2)
    report = convert(inputs, folder / "out", on_error="skip", workers=0)
    assert [bad.sample for bad in report.rejected] == [3, 8]
    assert PackedDataset(folder / "out").column("x").tolist() == [0, 1, 2, 4, 5, 6, 7, 9, 10, 11]


def test_a_single_column_has_the_name_of_its_source(folder: Path) -> None:
    """`label=` names it, and --classes makes numbers of its text."""
    source = opened(folder, "file,breed\na,dog\nb,cat\nc,dog\n", *BESIDE, classes="label")
    assert ([int(n) for n in read_each(source)["label"]], source.origin["classes"]) == ([1, 0, 1], ["cat", "dog"])


def test_classes_of_a_table_are_those_of_the_dataset(folder: Path) -> None:
    """Dictionaries of Parquet are numbers of classes, whose names the dataset has, though the table lies beside."""
    labels = pa.array(["owl", "cat", "owl"]).dictionary_encode()
    parquet.write_table(pa.table({"name": ["c", "a", "b"], "label": labels}), folder / "t.parquet")
    convert([f"image={folder / 'images'}", f"label={folder / 't.parquet'}"], folder / "out", workers=0)
    dataset = PackedDataset(folder / "out")
    assert [dataset.classes[n] for n in dataset[["a", "b", "c"]]["label"].tolist()] == ["cat", "owl", "owl"]


def test_rows_and_samples_without_partner_are_named_or_left_out(folder: Path) -> None:
    """The first error counts all; --on-error skip leaves them out."""
    text = "id,x\na,1\nd,2\nc,3\n"
    reason = r"row 1: id is 'd', which is no sample; 1 of 3 rows have no sample of their own, 1 of 3 samples no row"
    with pytest.raises(SourceError, match=reason):
        opened(folder, text, *BESIDE)
    inputs = [f"image={folder / 'images'}", f"x={folder / 't.csv'}"]
    report = convert(inputs, folder / "out", on_error="skip", workers=0)
    assert (report.samples, len(report.rejected)) == (2, 2)
    assert PackedDataset(folder / "out")[["a", "c"]]["x"].tolist() == [1, 3]
    with pytest.raises(SourceError, match=r"row 0: id is 'a\.1', which is no sample; 1 of 4 rows"):  # a is the row of a
        opened(folder, "id,x\na.1,7\na,1\nb,2\nc,3\n", *BESIDE)


def test_two_columns_of_names_need_a_key(folder: Path) -> None:
    """The error says which option; a column without names is refused."""
    text = "left,right,x\na,b,1\nb,a,2\nc,c,3\n"
    with pytest.raises(UsageError, match="columns left and right both have names of samples; say which by --key left"):
        opened(folder, text, *BESIDE)
    assert [int(n) for n in read_each(opened(folder, text, *BESIDE, key="right"))["x"]] == [2, 1, 3]
    with pytest.raises(UsageError, match="no column of the table has names of samples, such as 'a'"):
        opened(folder, "id,x\nq,1\n", *BESIDE)


def test_a_table_joins_a_dataset_by_its_names(folder: Path) -> None:
    """`packer join DATASET labels.csv` gives each sample its row, in any order."""
    convert(f"image={folder / 'images'}", folder / "out", workers=0)
    (folder / "t.csv").write_text("name,score\nc,3\na,1\nb,2\n")
    assert join(folder / "out", str(folder / "t.csv"), workers=0).by_name
    assert PackedDataset(folder / "out")[["a", "b", "c"]]["score"].tolist() == [1, 2, 3]


def test_what_a_column_names_is_the_field(folder: Path) -> None:
    """Rows in any order, and several of one file, have its pixels; points are one field of many columns."""
    text = "image,p_0_x,p_0_y,p_1_x,p_1_y,n\n" + "".join(f"{n}.png,1,{i}.5,3,4,{i}\n" for i, n in enumerate("cabca"))
    options = {"files": ("image",), "root": str(folder / "images"), "columns": ("points=p_*:float32:2,2",)}
    source = opened(folder, text, **options)
    assert source.names is None
    found = read_each(source.slice(1, 5))
    for value, seed in zip(found["image"], [0, 1, 2, 0], strict=True):
        assert np.array_equal(value, picture(4, 5, seed=seed))
    assert found["points"][1].tolist() == [[1, 2.5], [3, 4]]
    assert found["points"][1].dtype == np.float32
    report = convert(str(folder / "t.csv"), folder / "out", source=SourceOptions(**options), workers=0)
    assert report.samples == 5


def test_names_of_files_are_said_to_be_text(folder: Path) -> None:
    """The remark has the command that packs the files; where names lack suffixes, the error has the other one."""
    (remark,) = opened(folder, "x,at\n1,images/a.png\n2,images/b.png\n").remarks
    assert remark.endswith("t.csv OUT --files at")
    assert opened(folder, "x,at\n1,not/there.png\n").remarks == []
    with pytest.raises(SourceError, match=r"but a\.png: image=\S+images label=\S+t\.csv goes by names without suffix"):
        opened(folder, "id,x\na,1\nb,2\n", files=("id",), root=str(folder / "images"))


def test_columns_of_a_table_beside_pictures_are_left_out(folder: Path) -> None:
    """`--skip` is for the table then, as its errors propose."""
    source = opened(folder, "id,x,y\na,1,\nb,2,3\nc,4,5\n", *BESIDE, skip=("y",))
    assert read_each(source)["label"] == [1, 2, 4]


def test_a_file_that_is_not_there_is_named_with_its_row(folder: Path) -> None:
    """--on-error skip leaves out the row; names that are different are those of the samples."""
    text = "image,n\nimages/b.png,1\nimages/d.png,2\nimages/a.png,3\n"
    with pytest.raises(SourceError, match=r"t\.csv: row 1: image names 'images/d.png', but there is no such file"):
        opened(folder, text, files=("image",))
    report = convert(
        str(folder / "t.csv"), folder / "out", source=SourceOptions(files=("image",)), on_error="skip", workers=0
    )
    assert (report.samples, len(report.rejected)) == (2, 1)
    assert PackedDataset(folder / "out")[["images/a", "images/b"]]["n"].tolist() == [3, 1]


def test_arrays_and_texts_may_be_named_too(folder: Path) -> None:
    """Each column has one kind of files."""
    for number in range(2):
        np.save(folder / f"{number}.npy", np.full(3, number))
        (folder / f"{number}.txt").write_text(f"text {number}")
    source = opened(folder, "array,text\n1.npy,0.txt\n0.npy,1.txt\n", files=("array", "text"))
    found = read_each(source)
    assert ([value.tolist() for value in found["array"]], found["text"]) == ([[1] * 3, [0] * 3], ["text 0", "text 1"])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"files": ("q",)}, "--files q: there is no such column of text; there are t"),
        ({"root": "x"}, "--root x is for columns that name files"),
        ({"key": "t"}, "--key t is for a table beside files"),
        ({"columns": ("p=q_*",)}, r"--columns p: no column is q_\*"),
        ({"columns": ("p=t",)}, "column t is text, but one number is expected"),
        ({"columns": ("p=x,y:int8:3",)}, "2 columns are no 3 values"),
        ({"columns": ("p=x,y:float99",)}, "NAMES"),
    ],
)
def test_options_that_cannot_be_are_refused(folder: Path, options: dict[str, Any], reason: str) -> None:
    """One sentence says what is wrong."""
    with pytest.raises(UsageError, match=reason):
        opened(folder, "t,x,y\na,1,2\n", **options)
