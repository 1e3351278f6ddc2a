"""LMDB folders for BasicSR, read as its FileClient and `paired_paths_from_lmdb` read them."""

from __future__ import annotations

import io

import lmdb
import numpy as np
import pytest
from opened_sources import open_images
from PIL import Image

from packer.errors import UsageError
from packer.export import export
from packer.format import FieldSpec
from packer.writer import DatasetWriter

HR = FieldSpec(name="hr", dtype="uint8", kind="image", shape=(None, None, 3))
LR = FieldSpec(name="lr", dtype="uint8", kind="image", shape=(None, None, 3))
NAMES = ["b", "000/00000001", "a10", "a9"]


def packed(path, specs=(LR, HR), names=NAMES):
    """Pictures of several sizes under names that are in no order."""
    rng = np.random.default_rng(5)
    samples = {}
    with DatasetWriter(path, fields=list(specs)) as writer:
        for at, name in enumerate(names):
            sizes = [(3 + at, 5, spec.shape[2]) for spec in specs]
            samples[name] = {
                spec.name: rng.integers(0, np.iinfo(spec.dtype).max, size, spec.dtype, endpoint=True)
                for spec, size in zip(specs, sizes, strict=True)
            }
            writer.add(samples[name], name=name)
    return samples


def values(folder):
    """What FileClient's LmdbBackend gets for each key that the folder's list names, as arrays."""
    keys = [line.split(".")[0] for line in (folder / "meta_info.txt").read_text().splitlines()]
    client = lmdb.open(str(folder), readonly=True, lock=False, readahead=False)
    found = {}
    with client.begin(write=False) as txn:
        assert txn.stat()["entries"] == len(keys)
        for key in keys:
            found[key] = txn.get(key.encode("ascii"))
    client.close()
    return found


def decoded(value, form):
    with Image.open(io.BytesIO(value)) as picture:
        assert picture.format == form
        return np.asarray(picture)


@pytest.mark.parametrize("form", ["png", "bmp"])
def test_every_field_is_a_folder_of_its_own(tmp_path, form):
    """Each field's folder holds every sample by its name, with the pixels of the dataset, and lists its size."""
    samples = packed(tmp_path / "d")
    report = export(tmp_path / "d", tmp_path / "out", to="basicsr-lmdb", values=form)
    assert (report.samples, report.files) == (4, 4)
    for field in ("lr", "hr"):
        found = values(tmp_path / f"out/{field}.lmdb")
        assert list(found) == NAMES
        for name, value in found.items():
            assert np.array_equal(decoded(value, form.upper()), samples[name][field])
    assert "000/00000001.png (4,5,3) 1" in (tmp_path / "out/hr.lmdb/meta_info.txt").read_text().splitlines()
    assert sorted(path.name for path in (tmp_path / "out/hr.lmdb").iterdir()) == ["data.mdb", "meta_info.txt"]


def test_frames_of_clips_have_the_keys_of_reds(tmp_path):
    """Each frame is a picture, `NAME/00000000` and so on, as `prepare_keys_reds` of BasicSR makes them."""
    clips = {name: np.random.default_rng(n).integers(0, 255, (n + 2, 6, 5, 3), "u1") for n, name in enumerate("ab")}
    with DatasetWriter(tmp_path / "d") as writer:
        for name, clip in clips.items():
            writer.add({"gt": clip}, name=name)
    export(tmp_path / "d", tmp_path / "gt.lmdb", to="basicsr-lmdb")
    found = values(tmp_path / "gt.lmdb")
    assert list(found) == ["a/00000000", "a/00000001", "b/00000000", "b/00000001", "b/00000002"]
    for key, value in found.items():
        assert np.array_equal(decoded(value, "PNG"), clips[key[0]][int(key[2:])])
    assert "b/00000002.png (6,5,3) 1" in (tmp_path / "gt.lmdb/meta_info.txt").read_text().splitlines()
    with DatasetWriter(tmp_path / "odd") as writer:
        writer.add({"gt": clips["a"][:, :, :, :2]}, name="a")
    with pytest.raises(UsageError, match="BMP holds images of uint8 with 1 or 3 channels"):
        export(tmp_path / "odd", tmp_path / "out", to="basicsr-lmdb", values="bmp")


@pytest.mark.parametrize("form", ["png", "bmp"])
def test_one_field_may_be_the_folder_itself(tmp_path, form):
    """An OUT that ends in .lmdb is the folder of the one field, and is packed again from there as it was."""
    samples = packed(tmp_path / "d")
    export(tmp_path / "d", tmp_path / "hr.lmdb", to="basicsr-lmdb", values=form, fields=["hr"])
    source = open_images({"hr": str(tmp_path / "hr.lmdb")}, bad=pytest.fail)
    (block,) = source.read()
    assert {name: image.tolist() for name, image in zip(source.names, block["hr"], strict=True)} == {
        name: sample["hr"].tolist() for name, sample in samples.items()
    }


def test_several_fields_in_one_folder_are_refused(tmp_path):
    """One LMDB folder holds one field: the message names --field, and nothing is made."""
    packed(tmp_path / "d")
    with pytest.raises(UsageError, match="lr, hr: name one of them with --field"):
        export(tmp_path / "d", tmp_path / "hr.lmdb", to="basicsr-lmdb")
    assert not (tmp_path / "hr.lmdb").exists()


@pytest.mark.parametrize("name", ["a.b", "bäume", "a\nb"])
def test_names_that_basicsr_could_not_find_are_refused(tmp_path, name):
    """Their code cuts keys at the first point and takes them for ASCII, a line of the list each."""
    packed(tmp_path / "d", names=[name])
    with pytest.raises(UsageError, match="cannot be a key of BasicSR"):
        export(tmp_path / "d", tmp_path / "out", to="basicsr-lmdb")


def test_what_bmp_cannot_hold_is_refused(tmp_path):
    """Pictures of 16 bits or with alpha go to PNG values alone, and come back from them."""
    deep = FieldSpec(name="d", dtype="uint16", kind="image", shape=(None, None, 1))
    clear = FieldSpec(name="c", dtype="uint8", kind="image", shape=(None, None, 4))
    samples = packed(tmp_path / "d", [deep, clear])
    for field in ("d", "c"):
        with pytest.raises(UsageError, match="BMP holds images of uint8 with 1 or 3 channels; use --values png"):
            export(tmp_path / "d", tmp_path / "out", to="basicsr-lmdb", values="bmp", fields=[field])
    export(tmp_path / "d", tmp_path / "out", to="basicsr-lmdb")
    for field in ("d", "c"):
        for name, value in values(tmp_path / f"out/{field}.lmdb").items():
            assert np.array_equal(decoded(value, "PNG").reshape(samples[name][field].shape), samples[name][field])


def test_values_are_of_basicsr_alone(tmp_path):
    """--values says what LMDB values are; with other kinds of files it is refused."""
    packed(tmp_path / "d")
    with pytest.raises(UsageError, match="with --to basicsr-lmdb"):
        export(tmp_path / "d", tmp_path / "out", to="png", values="bmp")
