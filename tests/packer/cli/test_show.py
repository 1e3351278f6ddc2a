"""`packer show`: the samples it chooses, what fields are drawn as, and where things stand on the sheet."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from packer.cli import show_views
from packer.cli.show_views import Sample, SampleReader, View, chosen_numbers, pixels, size_of, value_text, views
from packer.convert import convert
from packer.errors import MissingNameError, UsageError
from packer.format.schema import FieldSpec
from packer.writer import DatasetWriter
from readers import PackedDataset


@pytest.fixture(scope="module", autouse=True)
def _fonts():
    """Matplotlib keeps the files of its fonts open once it has drawn with them: before the tests look for leaks."""
    figure = Figure()
    figure.text(0, 0, "a漢", fontsize=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        FigureCanvasAgg(figure).draw()


@pytest.fixture
def packed(pairs, tmp_path):
    """The twelve pairs in two shards."""
    return convert(pairs.sources, tmp_path / "packed", shard_size=4096, workers=0).path


def shown(folder, *choice, **options):
    """Numbers of the samples of a choice."""
    return chosen_numbers(PackedDataset(folder), *choice, **options)


def test_samples_are_spread_or_drawn_or_named(packed, pairs):
    """Evenly from first to last; by a seed the same again, others by another; by name in the order asked for."""
    assert shown(packed, 4) == [0, 4, 7, 11]
    assert shown(packed, 100) == list(range(12))
    assert shown(packed, 5, seed=1) == shown(packed, 5, seed=1)
    assert len({tuple(shown(packed, 5, seed=n)) for n in range(5)}) > 1
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
    cloud = View("cloud", "xyz", "rgb", ("normal",))
    assert views(fields, samples) == [cloud, View("curves", "other"), View("value", "label")]
    samples[0].values["other"] = np.zeros(5)
    del fields[2]
    assert views(fields, samples)[0] == View("cloud", "xyz", "other", ("normal",))
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


def test_pairs_stand_side_by_side_at_one_scale(packer, tmp_path):
    """Every sample is a block of its two pictures, of one size though one has more pixels."""
    with DatasetWriter(tmp_path / "d") as writer:
        for n in range(4):
            lr, hr = np.zeros((4, 4, 3), np.uint8), np.zeros((16, 16, 3), np.uint8)
            lr[:], hr[:] = (40 * n, 200, 0), (40 * n, 200, 250)
            writer.add({"lr": lr, "hr": hr}, f"s{n}")
    assert packer("show", tmp_path / "d", "-o", tmp_path / "a.png").exit_code == 0
    sheet = np.asarray(Image.open(tmp_path / "a.png").convert("RGB"))
    for n in range(4):
        (left, top, width, height), right = (box_of(sheet, [40 * n, 200, blue]) for blue in (0, 250))
        assert width > 100
        assert abs(width - height) <= 2
        assert abs(right[2] - width) <= 1
        assert right[0] > left + width
        assert right[1] == top


def box_of(sheet, colour):
    """Left, top, width and height of what has a colour."""
    y, x = np.nonzero((sheet == colour).all(axis=-1))
    return x.min(), y.min(), np.ptp(x), np.ptp(y)


def test_clouds_are_drawn_with_their_colours_from_two_sides(packer, tmp_path):
    """A red and a green half, both seen twice, and nothing drawn without a point."""
    points = np.random.default_rng(0).uniform(-1, 1, (300, 3)).astype(np.float32)
    colours = np.where(points[:, :1] > 0, [[255, 0, 0]], [[0, 255, 0]]).astype(np.uint8)
    points[0] = np.nan
    with DatasetWriter(tmp_path / "d", codec="none") as writer:
        writer.add({"xyz": points, "rgb": colours})
        writer.add({"xyz": points[:2], "rgb": colours[:2]})
        writer.add({"xyz": points[:0], "rgb": colours[:0]})
    assert packer("show", tmp_path / "d", "-o", tmp_path / "a.png").exit_code == 0
    sheet = np.asarray(Image.open(tmp_path / "a.png").convert("RGB"))
    one_cell = sheet.shape[1] // 6
    for side in range(2):
        cell = sheet[:, side * one_cell : (side + 1) * one_cell]
        for colour in ([255, 0, 0], [0, 255, 0]):
            assert (cell == colour).all(axis=-1).sum() > 100
    last = sheet[40:, 4 * one_cell :]
    assert (last == 255).all()


def test_every_kind_of_field_on_one_sheet(packer, tmp_path):
    """Curves, matrices, text that no font has, odd names and empty samples are drawn without a word."""
    with DatasetWriter(tmp_path / "d") as writer:
        for n in range(3):
            sample = {
                "wave": np.sin(np.arange(50 * n) / 5),
                "map": np.full((6, 9), np.nan) if n else np.zeros((6, 9)),
                "volume": np.zeros((0, 4, 4)) if n else np.zeros((2, 4, 4)),
                "picture": np.zeros((5 * n, 4, 1), np.uint16),
                "clip": np.zeros((n, 4, 4, 3), np.uint8),
                "z": np.full(60, 1j),
                "caption": "漢字 $x^ \x07 " * 40 * n,
                "label": n,
            }
            writer.add(sample, f"${n}_^")
    result = packer("show", tmp_path / "d", "-o", tmp_path / "a.png")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{tmp_path / 'a.png'}: 3 samples\n"
    quiet = packer("show", tmp_path / "d", "-o", tmp_path / "b.PDF", "-q", "--samples", 1)
    assert (quiet.exit_code, quiet.stdout) == (0, "")
    assert (tmp_path / "b.PDF").read_bytes().startswith(b"%PDF")


def test_the_same_samples_make_the_same_picture(packer, packed, tmp_path):
    """With a seed twice, byte for byte; with another, not."""
    for name, seed in (("a", 1), ("b", 1), ("c", 3)):
        packer("show", packed, "-o", tmp_path / f"{name}.png", "--samples", 2, "--seed", seed)
    a, b, c = ((tmp_path / f"{name}.png").read_bytes() for name in "abc")
    assert a == b != c


def test_refusals(packer, refused, packed, tmp_path, monkeypatch):
    """No output named, a suffix of nothing, a name of nobody, a folder that is not there, and no matplotlib."""
    refused(2, ["show", packed], "--output")
    refused(2, ["show", packed, "-o", tmp_path / "a.png", "--samples", 401], "400", "page.html")
    refused(2, ["show", packed, "-o", tmp_path / "a.docx"], "docx", "take .png")
    refused(2, ["show", packed, "-o", tmp_path / "a"], "without a suffix")
    refused(1, ["show", packed, "-o", tmp_path / "a.png", "--names", "zebra"], "'zebra'")
    refused(1, ["show", packed, "-o", tmp_path / "no" / "a.png"], "No such file")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    refused(2, ["show", packed, "-o", tmp_path / "a.png"], "matplotlib", "pip install")
