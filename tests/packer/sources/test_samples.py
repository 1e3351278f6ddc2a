"""Samples in memory as a source: what schema they get, what fits it, and what does not."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from packer.append import append
from packer.convert import convert
from packer.errors import SourceError, UsageError
from packer.format import DTYPES, FieldSpec
from packer.sources import SampleSource, as_arrays, infer_fields
from packer.sources.samples import LOOK_AT
from packer.writer import DatasetWriter
from readers import PackedDataset

DTYPE = st.sampled_from([np.dtype(name) for name in DTYPES])


def values(source, name):
    return [value for block in source.read() for value in block[name]]


@given(arrays.arrays(DTYPE, st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(0, 3))))
def test_arrays_come_back(stack):
    """Every dtype and shape comes out as it went in, scalars of one axis less too."""
    source = SampleSource([{"a": row, "first": row.reshape(-1)[:1]} for row in stack])
    assert source.fields[0] == FieldSpec(name="a", dtype=stack.dtype.name, shape=stack.shape[1:])
    for value, row in zip(values(source, "a"), stack, strict=True):
        assert value.dtype == row.dtype
        assert value.tobytes() == row.tobytes()


@given(st.lists(st.text(), min_size=1, max_size=9))
def test_text_comes_back(texts):
    """Text of any kind is a field of kind text."""
    source = SampleSource([{"t": text} for text in texts])
    assert source.fields == (FieldSpec(name="t", dtype="uint8", kind="text", shape=(None,)),)
    assert values(source, "t") == texts


def test_what_else_can_be_an_array():
    """Tensors, lists and numbers; big-endian and strided arrays become native and contiguous."""
    big = np.arange(12, dtype=">i2").reshape(3, 4).T
    found = as_arrays({"tensor": torch.ones(2), "list": [1.5], "number": 3, "flag": True, "big": big}, 0)
    assert {name: (value.dtype.name, value.shape) for name, value in found.items()} == {
        "tensor": ("float32", (2,)),
        "list": ("float64", (1,)),
        "number": ("int64", ()),
        "flag": ("bool", ()),
        "big": ("int16", (4, 3)),
    }
    assert found["big"].dtype.isnative
    assert found["big"].flags.c_contiguous
    np.testing.assert_array_equal(found["big"], big)


def test_axes_that_differ_are_ragged():
    """An axis that differs among the samples looked at is ragged; the others are fixed."""
    source = SampleSource([{"a": np.zeros((n, 3, n % 2))} for n in range(4)])
    assert source.fields[0].shape == (None, 3, None)
    assert source.shapes("a") is None
    assert [value.shape for value in values(source, "a")] == [(0, 3, 0), (1, 3, 1), (2, 3, 0), (3, 3, 1)]


def test_few_samples_are_looked_at():
    """A schema costs a bounded number of items, however long the sequence is; the first and last are among them."""

    asked = []

    class Counting:
        def __len__(self):
            return 10**6

        def __getitem__(self, i):
            asked.append(i)
            return {"a": i}

    SampleSource(Counting())
    assert len(asked) == LOOK_AT
    assert (min(asked), max(asked)) == (0, 10**6 - 1)


def test_parts():
    """A part holds its samples alone, numbered from 0, keeps the schema, and pickles."""
    source = SampleSource([{"a": np.zeros(n)} for n in range(9)])
    part = pickle.loads(pickle.dumps(source.slice(2, 8).slice(1, 3)))
    assert len(part) == 2
    assert part.fields == source.fields
    assert [len(value) for value in values(part, "a")] == [3, 4]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"a": np.zeros(3)}, r"float64 \(3,\), float32 \(2\) is expected"),
        ({"a": np.zeros(2)}, "float64"),
        ({"a": np.zeros((2, 1), np.float32)}, r"\(2, 1\)"),
        ({"a": "text"}, "is str, array is expected"),
        ({"b": np.zeros(2, np.float32)}, "has the fields b; a are expected"),
        ({"a": np.zeros(2, np.float32), "b": 1}, "has the fields a, b"),
        ({0: 1, "0": 2}, "two fields with the same name as text: 0, '0'"),
        ([1], "is a list; a dict"),
        ({"a": [[1], [2, 3]]}, "cannot be an array"),
        ({"a": np.ma.masked_array([1, 2], [0, 1])}, "field 'a' is masked in places"),
        ({"a": "\udcff"}, r"field 'a' cannot be stored as UTF-8: its character 0 is '\\udcff'"),
    ],
)
def test_samples_that_do_not_fit(bad, words):
    """A sample that does not fit the schema is an error with its number within the part."""
    good = {"a": np.zeros(2, np.float32)}
    source = SampleSource([good] * 5 + [bad], [FieldSpec(name="a", dtype="float32", shape=(2,))])
    blocks = source.slice(3, 6).read()
    assert len([next(blocks), next(blocks)]) == 2
    with pytest.raises(SourceError, match=f"sample 5.*{words}") as caught:
        next(blocks)
    assert caught.value.sample == 2


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([], "is empty"),
        ([{"a": 1}, {"b": 1}], "differ in their fields: a and b"),
        ([{"a": 1}, {"a": 1.5}], "differs in dtype"),
        ([{"a": [1]}, {"a": [[1]]}], "number of axes"),
        ([{"a": "x"}, {"a": 1}], "'a' differs"),
        ([{"a": np.array(["x"])}], "cannot be stored"),
        ([{"a": object()}], "cannot be stored"),
        ([{"a=b": 1}], "field name"),
        ([{"": 1}], "field name"),
        ([{}], "no field"),
        ([1, {"a": [[1], [2, 3]]}], "sample 0 is a int; a dict"),
    ],
)
def test_samples_without_a_schema(samples, words):
    """Samples that no schema fits are refused, and what differs is named."""
    with pytest.raises(SourceError, match=words):
        SampleSource(samples)


def test_bad_samples_are_passed_over_by_the_look():
    """The schema is that of the good ones; a bad one is told of where it is read, so that it can be skipped."""
    source = SampleSource([{"t": "\ud800"}, {"t": "a"}, 5, {"t": "b"}])
    assert source.fields == (FieldSpec(name="t", dtype="uint8", kind="text", shape=(None,)),)
    with pytest.raises(SourceError, match="sample 0: field 't'") as caught:
        next(source.read())
    assert caught.value.sample == 0
    assert values(source.slice(1, 2), "t") == ["a"]


def test_the_order_of_fields_is_that_of_the_first_sample():
    """Fields are stored in the order in which the first sample names them."""
    found = infer_fields([{"b": np.zeros(1), "a": np.zeros(2)}, {"a": np.zeros(2), "b": np.zeros(1)}])
    assert [spec.name for spec in found] == ["b", "a"]


def file_of(image, kind):
    """The bytes of a file of a PIL image."""
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def test_pil_images_and_files_of_images_are_images():
    """As Hugging Face and webdataset hand them out: colours and gray, PNG, JPEG and a dict of bytes and path."""
    pixels = [np.random.default_rng(n).integers(0, 256, (4, 5 + n, 3), dtype=np.uint8) for n in range(3)]
    pictures = [Image.fromarray(image) for image in pixels]
    decoded = [np.asarray(Image.open(io.BytesIO(file_of(picture, "JPEG")))) for picture in pictures]
    for images, expected in [
        (pictures, pixels),
        ([picture.convert("L") for picture in pictures], [np.asarray(p.convert("L"))[:, :, None] for p in pictures]),
        ([file_of(picture, "PNG") for picture in pictures], pixels),
        ([{"bytes": file_of(picture, "JPEG"), "path": None} for picture in pictures], decoded),
    ]:
        source = SampleSource([{"image": image, "label": n} for n, image in enumerate(images)])
        assert (source.fields[0].kind, source.fields[0].shape) == ("image", (4, None, expected[0].shape[2]))
        for got, wanted in zip(values(source, "image"), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_tuples_become_fields_by_the_names_given(tmp_path):
    """As torchvision's datasets give them; without names, or with too few, the error says what to give."""
    items = [(Image.new("L", (5, 4), n), n, "abc"[:n]) for n in range(4)]
    convert(items, tmp_path / "out", names=("image", "label", "text"), workers=0)
    dataset = PackedDataset(tmp_path / "out")
    assert dataset[3]["image"].flatten()[0] == 3
    assert (dataset[2]["label"].item(), dataset[2]["text"]) == (2, "ab")
    with pytest.raises(SourceError, match=r'sample 0 is a tuple; .* names=\("image", "label"\)'):
        SampleSource(items)
    with pytest.raises(SourceError, match="sample 0 has 3 values, but names are image, label; give a name for each"):
        SampleSource(items, keys=("image", "label"))
    part = SampleSource(items, keys=("image", "label", "text")).slice(1, 4).slice(1, 3)
    assert [int(label) for label in values(part, "label")] == [2, 3]


class Labelled(list):
    """A dataset that knows names, as those of torchvision and of Hugging Face do."""

    def __init__(self, **known):
        super().__init__({"x": number, "label": number % 2} for number in range(3))
        vars(self).update(known)


@pytest.mark.parametrize(
    "known", [{"classes": ["cat", "dog"]}, {"features": {"label": Labelled(names=["cat", "dog"])}}]
)
def test_names_of_classes_are_kept(tmp_path, known):
    """They come along with a field `label`, and a dataset whose numbers mean other classes is not appended."""
    convert(Labelled(**known), tmp_path / "d")
    append(tmp_path / "d", PackedDataset(tmp_path / "d"))
    append(tmp_path / "d", [*Labelled()])
    assert PackedDataset(tmp_path / "d").classes == ["cat", "dog"]
    with pytest.raises(UsageError, match="classes dog, cat, but cat, dog are expected"):
        append(tmp_path / "d", Labelled(classes=["dog", "cat"]))


def test_names_that_are_not_kept_are_said():
    """Those of samples, and of classes without a field `label`."""
    source = SampleSource(Labelled(names=["a", "b", "c"], classes=["cat", "dog"]), [FieldSpec(name="x", dtype="int64")])
    assert [remark.partition(" are kept")[0].partition(" are not")[0] for remark in source.remarks] == [
        "names of samples",
        "names of classes",
    ]


def test_fields_that_differ_are_named_by_sample():
    """With both dtypes, by the numbers in the sequence, of which some are looked at."""
    items = [{"area": np.float32(n)} for n in range(1000)]
    items[-1] = {"area": np.int64(999)}
    reason = "it is float32 of 0 axes in sample 0, int64 of 0 axes in sample 999; convert"
    with pytest.raises(SourceError, match=f"field 'area' differs in dtype or number of axes between samples: {reason}"):
        SampleSource(items)


def test_lists_of_images_are_clips():
    """(T, H, W, C); those of several sizes are refused."""
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), dtype=np.uint8)
    source = SampleSource([{"clip": [Image.fromarray(image) for image in pixels]}])
    assert (source.fields[0].kind, source.fields[0].shape) == ("array", (3, 4, 5, 3))
    np.testing.assert_array_equal(values(source, "clip")[0], pixels)
    with pytest.raises(SourceError, match="sample 0: field 'clip' is a list of images of several sizes"):
        SampleSource([{"clip": [Image.new("RGB", (4, 5)), Image.new("RGB", (4, 6))]}])


def test_palettes_of_masks_are_numbers_in_memory_too():
    """By the name of the field, as of files."""
    picture = Image.new("P", (5, 4), 3)
    picture.putpalette(bytes(range(30)))
    found = as_arrays({"mask": picture, "image": picture}, 0)
    assert (found["mask"].shape, found["mask"].max()) == ((4, 5, 1), 3)
    assert found["image"][0, 0].tolist() == [9, 10, 11]


def test_what_is_no_image_is_said():
    """Damaged files, and colours that cannot be kept, with the sample and the field."""
    good = file_of(Image.new("RGB", (64, 64)), "PNG")
    with pytest.raises(SourceError, match="sample 7: field 'x' damaged PNG"):
        as_arrays({"x": good[:-9]}, 7)
    with pytest.raises(SourceError, match="sample 7: field 'x' has CMYK colours"):
        as_arrays({"x": Image.new("CMYK", (4, 4))}, 7)


def test_a_writer_keeps_images(tmp_path):
    """Those that it holds back at first, and later ones; JPEG files stay files."""
    file = file_of(Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)), "JPEG")
    with DatasetWriter(tmp_path / "out", codec={"image": "jpeg"}) as writer:
        for number in range(70):
            writer.add({"image": file, "label": np.int64(number)})
    dataset = PackedDataset(tmp_path / "out")
    assert dataset[:2]["image"].shape == (2, 3, 64, 64)
    assert dataset.manifest.columns["image"].stored < 70 * len(file) + 1000
