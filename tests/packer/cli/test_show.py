"""`packer show`: the samples it chooses, what fields are drawn as, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from packer.cli import show_views
from packer.cli.show_views import Sample, SampleReader, View, chosen_numbers, pixels, size_of, value_text, views
from packer.convert import convert
from packer.errors import MissingNameError, UsageError
from packer.format import FieldSpec
from packer.writer import DatasetWriter
from readers import PackedDataset


@pytest.fixture
def packed(pairs, tmp_path):
    """The twelve pairs in two shards."""
    return convert(pairs.sources, tmp_path / "packed", shard_size=4096, workers=0).path


def shown(folder, *choice):
    """Numbers of the samples of a choice."""
    return chosen_numbers(PackedDataset(folder), *choice)


def test_samples_are_spread_or_named(packed, pairs):
    """Evenly from first to last; by name in the order asked for."""
    assert shown(packed, 4) == [0, 4, 7, 11]
    assert shown(packed, 100) == list(range(12))
    found = list(map(SampleReader(PackedDataset(packed)), shown(packed, 12, ["008", "002"])))
    assert [(s.number, s.name) for s in found] == [(8, "008"), (2, "002")]
    np.testing.assert_array_equal(found[0].values["hr"], pairs.hr[8])
    np.testing.assert_array_equal(found[1].values["lr"], pairs.lr[2])


def test_of_large_arrays_some_rows_are_read(tmp_path, monkeypatch):
    """Evenly spread ones, the same of all that belongs to them; their true size is told, what is small stays whole."""
    points = np.arange(300.0).reshape(100, 3)
    with DatasetWriter(tmp_path / "d") as writer:
        for n in (100, 10):
            writer.add({"xyz": points[:n], "shade": np.arange(n), "wave": np.arange(8), "label": n, "text": "a"})
    monkeypatch.setattr(show_views, "_WHOLE", 800)
    large, small = map(SampleReader(PackedDataset(tmp_path / "d")), range(2))
    np.testing.assert_array_equal(large.values["xyz"], points[::3])
    np.testing.assert_array_equal(large.values["shade"], np.arange(0, 100, 3))
    assert large.values["wave"].tolist() == list(range(8))
    assert (large.values["label"], large.values["text"]) == (100, "a")
    assert size_of(View("cloud", "xyz"), large) == "100 points"
    np.testing.assert_array_equal(small.values["xyz"], points[:10])


def test_names_that_are_not_there(packed, rows, tmp_path):
    """A name that no sample has, and names if samples have none."""
    with pytest.raises(MissingNameError, match="'012'"):
        shown(packed, 1, ["012"])
    unnamed = convert(rows.sources, tmp_path / "rows", workers=0).path
    with pytest.raises(UsageError, match="no names"):
        shown(unnamed, 1, ["a"])


def of(name, shape, dtype="float32", kind="array"):
    return FieldSpec(name=name, shape=shape, dtype=dtype, kind=kind)


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        (of("a", (4, 4, 3), "uint8", "image"), "image"),
        (of("a", (None, None, 3), "uint8"), "image"),
        (of("a", (9, 9, 3)), "grid"),
        (of("a", (8, 8)), "grid"),
        (of("a", (None, 9, 9, 3), "uint8"), "clip"),
        (of("a", (20, None, 40), "int16"), "clip"),
        (of("a", (40, 60)), "grid"),
        (of("a", (200, 2)), "curves"),
        (of("a", (33,)), "curves"),
        (of("a", (None,)), "curves"),
        (of("a", (4,)), "value"),
        (of("a", (), "int64"), "value"),
        (of("a", (None,), "uint8", "text"), "text"),
    ],
)
def test_what_a_field_is_drawn_as(field, kind):
    """Pictures, matrices, curves, words, or numbers above."""
    assert views([field], []) == [View(kind, "a")]


def test_clouds_take_what_belongs_to_their_points():
    """Colours colour them, or else a value for each point; fields of another length stay apart."""
    fields = [of("label", (), "int64"), of("xyz", (None, 3)), of("rgb", (None, 3), "uint8"), of("normal", (None, 3))]
    fields.append(of("other", (None,)))
    lengths = {"xyz": 5, "rgb": 5, "normal": 5, "other": 6}
    samples = [Sample(0, None, {name: np.zeros(n) for name, n in lengths.items()})]
    cloud = View("cloud", "xyz", "rgb")
    assert views(fields, samples) == [cloud, View("curves", "other"), View("value", "label")]
    samples[0].values["other"] = np.zeros(5)
    del fields[2]
    assert views(fields, samples)[0] == View("cloud", "xyz", "other")
    assert views([of("sampled", (1024, 3))], [])[0].kind == "cloud"
    assert views([of("matrix", (3, 3))], [])[0].kind == "grid"


def test_pixels_of_every_dtype():
    """8 bits as they are, others stretched, NaN dark, one channel gray, few or many channels the first ones."""
    gray = pixels(np.array([[[0], [200]]], np.uint8))
    assert gray.tolist() == [[[0, 0, 0], [200, 200, 200]]]
    assert pixels(np.array([[[100], [300]]], np.uint16))[0, :, 0].tolist() == [0, 255]
    assert pixels(np.array([[[-1e308], [np.nan], [1e308], [np.inf]]]))[0, :, 0].tolist() == [0, 0, 255, 0]
    assert pixels(np.full((1, 1, 1), np.nan)).tolist() == [[[0, 0, 0]]]
    assert pixels(np.array([[[True]]])).tolist() == [[[255, 255, 255]]]
    assert pixels(np.zeros((2, 2, 2), np.uint8)).shape == pixels(np.zeros((2, 2, 7), np.uint8)).shape == (2, 2, 3)
    assert pixels(np.zeros((2, 2, 4), np.uint8)).shape == (2, 2, 4)
    assert pixels(np.array([[[3 + 4j], [0j]]]))[0, :, 0].tolist() == [255, 0]


def test_values_as_text():
    """Numbers with six digits; a few of them in brackets."""
    assert value_text(np.int64(-3)) == "-3"
    assert value_text(np.array([1.0, 0.1234567])) == "(1, 0.123457)"
    assert value_text(np.array([True, False])) == "(True, False)"


def test_refusals(refused, packed, tmp_path):
    """No output, an output that is no page, a name of nobody, and a folder that is not there."""
    refused(2, ["show", packed], "--output")
    refused(2, ["show", packed, "-o", tmp_path / "a.png"], "a.png", "ends in .html")
    refused(1, ["show", packed, "-o", tmp_path / "a.html", "--names", "zebra"], "'zebra'")
    refused(1, ["show", packed, "-o", tmp_path / "no" / "a.html"], "No such file")
