"""`packer show`: the samples it chooses, what fields are drawn as, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from packer.cli.show_page import chosen_numbers
from packer.cli.show_views import View, choose_views, draw_cell, to_pixels, value_text
from packer.convert import convert
from packer.errors import MissingNameError, UsageError
from packer.format import FieldSpec
from readers import PackedDataset


@pytest.fixture
def packed(pairs, tmp_path):
    """The twelve pairs in two shards."""
    return convert(pairs.sources, tmp_path / "packed", shard_size=4096, workers=0).path


def shown(folder, *choice):
    """Numbers of the samples of a choice."""
    return chosen_numbers(PackedDataset(folder), *choice)


def test_samples_are_spread_or_named(packed):
    """Evenly from first to last; by name in the order asked for."""
    assert shown(packed, 4) == [0, 4, 7, 11]
    assert shown(packed, 100) == list(range(12))
    assert shown(packed, 12, ["008", "002"]) == [8, 2]


def test_fields_too_large_to_draw(packer, refused, packed, tmp_path, monkeypatch):
    """They are named, by the command and in the page, and the others are drawn; if all are too large, that is said."""
    monkeypatch.setattr("packer.cli.show._LARGEST", 100)
    result = packer("show", packed, "-o", tmp_path / "page.html")
    assert "samples of hr have more than 512 MiB, too much to draw; the other fields are drawn\n" in result.stderr
    assert "too large to draw: hr" in (tmp_path / "page.html").read_text()
    monkeypatch.setattr("packer.cli.show._LARGEST", 1)
    refused(2, ["show", packed, "-o", tmp_path / "page.html"], "lr, hr have more than", "no other field")


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
        (of("a", (None, 56, 40, 2), "int16"), "clip"),
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
    assert choose_views([field], []) == [View(kind, "a")]


def test_clouds_take_what_belongs_to_their_points():
    """Colours colour them, or else a value for each point; fields of another length stay apart."""
    fields = [of("label", (), "int64"), of("xyz", (None, 3)), of("rgb", (None, 3), "uint8"), of("normal", (None, 3))]
    fields.append(of("other", (None,)))
    lengths = {"xyz": 5, "rgb": 5, "normal": 5, "other": 6}
    samples = [{name: np.zeros(n) for name, n in lengths.items()}]
    cloud = View("cloud", "xyz", "rgb")
    assert choose_views(fields, samples) == [cloud, View("curves", "other"), View("value", "label")]
    samples[0]["other"] = np.zeros(5)
    del fields[2]
    assert choose_views(fields, samples)[0] == View("cloud", "xyz", "other")
    assert choose_views([of("sampled", (1024, 3))], [])[0].kind == "cloud"
    assert choose_views([of("matrix", (3, 3))], [])[0].kind == "grid"
    sample = {"xyz": np.zeros((5, 3)), "rgb": np.zeros((4, 3), np.uint8)}  # one that was not looked at before
    assert draw_cell(cloud, sample)["note"] == "coloured by height"


def test_pixels_of_every_dtype():
    """8 bits as they are, others stretched, NaN dark, one channel gray, few or many channels the first ones."""
    gray = to_pixels(np.array([[[0], [200]]], np.uint8))
    assert gray.tolist() == [[[0, 0, 0], [200, 200, 200]]]
    assert to_pixels(np.array([[[100], [300]]], np.uint16))[0, :, 0].tolist() == [0, 255]
    assert to_pixels(np.array([[[-1e308], [np.nan], [1e308], [np.inf]]]))[0, :, 0].tolist() == [0, 0, 255, 0]
    assert to_pixels(np.full((1, 1, 1), np.nan)).tolist() == [[[0, 0, 0]]]
    assert to_pixels(np.array([[[True]]])).tolist() == [[[255, 255, 255]]]
    assert to_pixels(np.zeros((2, 2, 2), np.uint8)).shape == to_pixels(np.zeros((2, 2, 7), np.uint8)).shape == (2, 2, 3)
    assert to_pixels(np.zeros((2, 2, 4), np.uint8)).shape == (2, 2, 4)
    assert to_pixels(np.array([[[3 + 4j], [0j]]]))[0, :, 0].tolist() == [255, 0]


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
    refused(2, ["show", packed, "-o", tmp_path / "no" / "a.html"], f"there is no folder {tmp_path / 'no'}; make it")
