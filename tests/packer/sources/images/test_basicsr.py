"""LMDB folders of PNG images, as BasicSR makes them: what is paired, read and refused."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import lmdb
import numpy as np
import pytest
from jpeg_files import as_jpeg, photograph
from opened_sources import open_images, read_each
from picture_files import chunk
from PIL import Image
from real_files import real_folder

from packer.checking import compare
from packer.convert import convert
from packer.errors import SourceError, UsageError
from packer.format import FieldSpec
from packer.sources import SourceOptions, open_sources
from packer.watcher import Watcher


def encoded(seed=0, height=4, width=5, **options):
    """A random RGB image, and its PNG."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png", **options)
    return pixels, file.getvalue()


def make(folder, values, listed=None):
    """An LMDB folder with `values` by key, and a list of sizes, 4 x 5 unless `listed` has the lines."""
    with lmdb.open(str(folder), map_size=2**24) as env, env.begin(write=True) as txn:
        for key, value in values.items():
            txn.put(key.encode() if isinstance(key, str) else key, value)
    lines = [f"{key}.png (4,5,3) 1" for key in values] if listed is None else listed
    (folder / "meta_info.txt").write_text("".join(f"{line}\n" for line in lines))
    return str(folder)


@pytest.fixture
def pairs(tmp_path):
    """Two pairs whose keys of lr end in x2."""
    small = make(tmp_path / "lr.lmdb", {f"{n}x2": encoded(n)[1] for n in (2, 10)})
    large = make(
        tmp_path / "hr.lmdb", {str(n): encoded(n, 8, 10)[1] for n in (2, 10)}, [f"{n}.png (8,10,3) 1" for n in (2, 10)]
    )
    return {"lr": small, "hr": large}


def test_real_folders_become_pairs():
    """The images are those that py-lmdb and Pillow give; a list that names a wrong size is said."""
    folder = real_folder("lmdb_reference/XPixelGroup+BasicSR/tests/data")
    source = open_images({"lq": f"{folder}/lq.lmdb", "gt": f"{folder}/gt.lmdb"})
    assert list(source.names) == ["baboon", "comic"]
    assert [spec.shape for spec in source.fields] == [(None, None, 3)] * 2
    assert "gt is 4 times as large as lq in every sample" in source.remarks
    assert any("lq.lmdb: 1 image differs in size from meta_info.txt (such as comic)" in said for said in source.remarks)
    images = read_each(source)
    for field in ("lq", "gt"):
        with lmdb.open(f"{folder}/{field}.lmdb", readonly=True, lock=False) as env, env.begin() as txn:
            for name, image in zip(source.names, images[field], strict=True):
                with Image.open(io.BytesIO(txn.get(name.encode()))) as picture:
                    np.testing.assert_array_equal(image, np.asarray(picture))


def test_keys_are_paired_as_names_of_files_are(pairs, tmp_path):
    """Markers are taken off, samples come in natural order, or in that of a list; parts read what the whole does."""
    source = open_images(pairs)
    assert source.names == ["2", "10"]
    assert source.fields[0] == FieldSpec(name="lr", dtype="uint8", kind="image", shape=(4, 5, 3))
    assert source.files() == [f"{pairs['lr']}/data.mdb", f"{pairs['hr']}/data.mdb"]
    np.testing.assert_array_equal(read_each(source)["hr"][1], encoded(10, 8, 10)[0])
    (tmp_path / "list.txt").write_text("10.png (8,10,3)\n2\n")
    assert open_images(pairs, listed=str(tmp_path / "list.txt")).names == ["10", "2"]


def test_options_of_images_are_heard(pairs):
    """--mode converts, and options of other sources are refused."""
    assert read_each(open_images({"x": pairs["hr"]}, mode="gray"))["x"][0].shape == (8, 10, 1)
    with pytest.raises(UsageError, match="--axis is for sources of hdf5 and zarr and npy, but this one holds basicsr"):
        open_images({"x": pairs["hr"]}, axis=1)


def test_a_header_behind_much_else_is_found(tmp_path):
    """Text of more than 64 KiB before the pixels is no hindrance."""
    pixels, data = encoded()
    long = data[:33] + chunk(b"tEXt", bytes(100_000)) + data[33:]
    (image,) = read_each(open_images({"x": make(tmp_path / "a.lmdb", {"a": long})}))["x"]
    np.testing.assert_array_equal(image, pixels)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b"\xff\xd8\xff\xe0 a JPEG", "is damaged"),
        (b"\x89HDF\r\n", "holds HDF5 data, which is no image"),
        (encoded()[1][:40], "cut short"),
        (bytes(100), "is no image: it begins with zeros"),
        (as_jpeg(photograph(20, 30))[:-40], "damaged JPEG"),
    ],
)
def test_bad_values(tmp_path, value, reason):
    """A value that is no image is named by its key, without a suffix, and left out where that is asked for."""
    folder = make(tmp_path / "a.lmdb", {"a": value, "b": encoded()[1]})
    with pytest.raises(SourceError, match=rf"a\.lmdb/a: .*{reason}"):
        convert([f"x={folder}"], tmp_path / "stopped")
    report = convert([f"x={folder}"], tmp_path / "packed", on_error="skip")
    assert (report.samples, len(report.rejected)) == (1, 1)


def test_keys_without_partner_and_lists_that_lie(pairs, tmp_path):
    """An orphan, a listed key that is not there, and a line that is none, are each named; unlisted keys are packed."""
    one = make(tmp_path / "one.lmdb", {"2": encoded()[1]})
    with pytest.raises(SourceError, match=r"hr\.lmdb/10\.png: field 'hr' has this file"):
        open_images({"lr": one, "hr": pairs["hr"]})
    missing = make(tmp_path / "missing.lmdb", {"a": encoded()[1]}, ["a.png (4,5,3) 1", "b.png (4,5,3) 1"])
    with pytest.raises(SourceError, match=r"missing\.lmdb/b: is listed"):
        open_images({"x": missing})
    odd = make(tmp_path / "odd.lmdb", {"a": encoded()[1]}, ["a.png (4,5,3) 1", "", "b.png"])
    with pytest.raises(SourceError, match=r"meta_info\.txt: line 3 is 'b\.png'"):
        open_images({"x": odd})
    more = open_images({"x": make(tmp_path / "more.lmdb", {"a": encoded()[1], "b": encoded()[1]}, [])})
    assert "2 keys are not in meta_info.txt" in more.remarks[0]


def test_damaged_files(tmp_path):
    """A data file that is cut short, is none of LMDB's, or has a key that is no text, is an error with its path."""
    folder = make(tmp_path / "a.lmdb", {f"{n}": encoded(n)[1] * 100 for n in range(20)})
    data = Path(folder, "data.mdb")
    whole = data.read_bytes()
    for bad in (whole[: len(whole) // 2], whole[:100], b"", bytes(len(whole))):
        data.write_bytes(bad)
        with pytest.raises(SourceError, match=r"a\.lmdb/data\.mdb: .*damaged"):
            open_images({"x": folder})
    with pytest.raises(SourceError, match="is not text"):
        open_images({"x": make(tmp_path / "b.lmdb", {b"\xff": b"x"}, [])})


@pytest.fixture
def words(tmp_path):
    """As text recognition has it: three images, each with a text, JPEG and PNG."""
    values = {"num-samples": b"3"}
    for number, text in enumerate(("Haus", "Tür", "\u4e2d\u6587"), 1):
        values[f"image-{number:09d}"] = encoded(number, 4, 5 + number)[1]
        values[f"label-{number:09d}"] = text.encode()
    return values


def test_images_of_text_recognition_come_with_their_texts(words, tmp_path):
    """Fields image and label; of a sample that lacks one of them, the error names the key."""
    path = make(tmp_path / "ocr", words)
    (tmp_path / "ocr" / "meta_info.txt").unlink()
    source = open_sources([path])
    assert [(spec.name, spec.kind, spec.shape) for spec in source.fields] == [
        ("image", "image", (4, None, 3)),
        ("label", "text", (None,)),
    ]
    for part, texts in ((source, ["Haus", "Tür", "\u4e2d\u6587"]), (source.slice(1, 3), ["Tür", "\u4e2d\u6587"])):
        found = read_each(pickle.loads(pickle.dumps(part)))
        assert found["label"] == texts
        np.testing.assert_array_equal(found["image"][-1], encoded(3, 4, 8)[0])
    report = convert(path, tmp_path / "out", workers=0)
    assert compare(report.path, open_sources([path])).damages == []
    with pytest.raises(UsageError, match="--patch, --stride and --downscale are for images without a text"):
        open_sources([path], SourceOptions(patch=2))
    del words["label-000000002"]
    path = make(tmp_path / "less", words)
    (tmp_path / "less" / "meta_info.txt").unlink()
    errors = []
    assert open_sources([path], watcher=Watcher(errors.append)).names == ["image-000000001", "image-000000003"]
    assert "has no key label-000000002, though num-samples is 3" in str(errors[0])


def test_a_broken_jpeg_of_text_recognition_is_named_by_its_key(words, tmp_path):
    """The key alone, with what is wrong with the JPEG: keys have no suffix."""
    words["image-000000002"] = as_jpeg(photograph(16, 24))[:-40]
    path = make(tmp_path / "ocr", words)
    (tmp_path / "ocr" / "meta_info.txt").unlink()
    report = convert(path, tmp_path / "out", workers=0, on_error="skip")
    (bad,) = report.rejected
    assert (bad.file, bad.reason.partition(":")[0]) == (f"{path}/image-000000002", "damaged JPEG")
    assert ".png" not in bad.reason


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"0": pickle.dumps({"a": 1})}, "holds pickled objects of Python"),
        ({"0": b"abc"}, "is neither an LMDB of BasicSR"),
        ({"num-samples": b"x"}, "is neither an LMDB of BasicSR"),
    ],
)
def test_other_lmdb_folders_are_refused(tmp_path, values, message):
    """Nothing is unpickled; the sentence says what can be done."""
    path = make(tmp_path / "other", values)
    (tmp_path / "other" / "meta_info.txt").unlink()
    with pytest.raises(SourceError, match=f"data.mdb: {message}.* samples to packer.convert.convert"):
        open_sources([path])
