"""Parquet as the package datasets writes and reads it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
from opened_sources import read_each
from pyarrow import parquet

from packer.append import append
from packer.convert import convert
from packer.export import export
from packer.sources import SourceOptions, open_sources
from tests.helpers.picture_files import picture, save


def test_pictures_and_classes_are_those_of_hugging_face(tmp_path: Path) -> None:
    """JPEG files are those that were packed; the metadata says what is a picture and how classes are called."""
    for number, name in enumerate(("cat/a", "dog/b")):
        save(tmp_path / "in" / f"{name}.jpg", picture(8, 8 + number, seed=number))
    convert(str(tmp_path / "in"), tmp_path / "d", source=SourceOptions(label="folder"), codec="image=jpeg", workers=0)
    report = export(tmp_path / "d", tmp_path / "out", to="parquet")
    assert report.notes == ("names of samples are the column name",)
    table = parquet.read_table(tmp_path / "out" / "data-00000.parquet")
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features == {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    rows = table.to_pylist()
    assert rows[0]["image"] == {"bytes": (tmp_path / "in/cat/a.jpg").read_bytes(), "path": "cat/a.jpg"}
    assert [(row["name"], row["label"]) for row in rows] == [("cat/a", 0), ("dog/b", 1)]
    again = open_sources([str(tmp_path / "out")])
    assert again.origin["classes"] == ["cat", "dog"]


def test_a_table_comes_back_as_it_was(tmp_path: Path) -> None:
    """Times, categories, text, lists and arrays keep their types, or their classes, also of what was appended."""
    table = pa.table(
        {
            "at": pa.array([1, 2, 3], pa.timestamp("us", "UTC")),
            "day": pa.array([1, 2, 3], pa.date32()),
            "kind": pa.array(["x", "y", "x"]).dictionary_encode(),
            "text": ["a", "", "ü"],
            "flag": [True, False, True],
            "boxes": [np.ones((n, 4), np.float32).tolist() for n in range(3)],
            "pair": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int8(), 2)),
            "tags": [[0, 1], [1], []],
        }
    )
    tags = {"feature": {"names": ["noun", "verb"], "_type": "ClassLabel"}, "length": -1, "_type": "Sequence"}
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": {"tags": tags}}})})
    parquet.write_table(table, tmp_path / "a.parquet")
    convert(str(tmp_path / "a.parquet"), tmp_path / "d", workers=0)
    append(tmp_path / "d", str(tmp_path / "a.parquet"), workers=0)
    assert export(tmp_path / "d", tmp_path / "out", to="parquet", samples=["0", "1", "5"]).notes == ()
    again = parquet.read_table(tmp_path / "out" / "data-00000.parquet")
    same = ("at", "day", "text", "flag", "pair", "tags")
    assert again.select(same).cast(table.select(same).schema) == table.select(same)
    assert again["boxes"].to_pylist() == table["boxes"].to_pylist()
    features = json.loads(again.schema.metadata[b"huggingface"])["info"]["features"]
    assert features == {"kind": {"names": ["x", "y"], "_type": "ClassLabel"}, "tags": tags}
    assert [int(n) for n in read_each(open_sources([str(tmp_path / "out")]))["kind"]] == [0, 1, 0]
    assert export(tmp_path / "d", tmp_path / "h", to="hdf5").notes == (
        "names of classes are not written: those of kind, tags",
        "units of times are not written: at in timestamp[us, tz=UTC], day in date32[day]",
    )
