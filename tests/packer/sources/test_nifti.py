"""NIfTI volumes come out as nibabel gives them, with where they lie; channels and partners are found by name."""

from __future__ import annotations

import gzip
import os
import pickle
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opened_sources import read_each

from packer.convert import convert
from packer.errors import SourceError, UsageError
from packer.sources import SourceOptions, open_sources
from packer.sources.looking import AFTER_END
from packer.watcher import Watcher

AFFINE = np.array([[-0.8, 0, 0, 90.5], [0, 0.8, 0.1, -126], [0, 0, 2.5, -72], [0, 0, 0, 1]])
DTYPES = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8", "c8")


def save(path: Path, values: Any, affine: Any = AFFINE, slope: float = 1, inter: float = 0, two: bool = False) -> str:
    """Write a NIfTI file; `slope` and `inter` are put into the header, so that values are scaled when they are read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = (nibabel.Nifti2Image if two else nibabel.Nifti1Image)(values, affine, dtype=values.dtype)
    image.header.set_slope_inter(1, 0)
    data = bytearray(image.to_bytes())
    if (slope, inter) != (1, 0):
        place, kind = (176, "f8") if two else (112, "f4")
        data[place : place + 2 * np.dtype(kind).itemsize] = np.array([slope, inter], kind).tobytes()
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return str(path)


def brats(folder: Path, cases: int = 3, channels: int = 4) -> tuple[dict[str, Any], dict[str, Any]]:
    """Files as nnU-Net names them: channels of each case in imagesTr, a mask in labelsTr. Return both by case."""
    rng = np.random.default_rng(0)
    images, labels = {}, {}
    for number in range(cases):
        name, shape = f"BRATS_{number:03d}", (6 + number, 5, 4)
        images[name] = rng.integers(-99, 999, (*shape, channels), "i2")
        labels[name] = rng.integers(0, 4, shape, "u1")
        for channel in range(channels):
            save(folder / f"imagesTr/{name}_{channel:04d}.nii.gz", images[name][..., channel])
        save(folder / f"labelsTr/{name}.nii.gz", labels[name])
    (folder / "imagesTr/dataset.json").write_text("{}")
    return images, labels


def open_both(folder: Path, **more: Any) -> Any:
    return open_sources([f"image={folder}/imagesTr", f"label={folder}/labelsTr"], **more)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(1, 4), min_size=2, max_size=5),
    scale=st.sampled_from([(1, 0), (0.5, 0), (2, -7.25)]),
    two=st.booleans(),
    suffix=st.sampled_from([".nii", ".nii.gz", ".NII.GZ"]),
)
def test_volumes_are_those_of_nibabel(tmp_path_factory, kind, shape, scale, two, suffix) -> None:
    """Of any dtype and axes, as stored, scaled ones as floats; C order, with affine and spacing; parts too."""
    folder = tmp_path_factory.mktemp("nifti")
    values = np.random.default_rng(0).integers(0, 100, shape).astype(kind)
    paths = [save(folder / f"{name}{suffix.lower()}", values, slope=scale[0], inter=scale[1], two=two) for name in "ab"]
    if suffix.isupper():
        paths = [str(Path(path).rename(path.replace(".nii.gz", suffix))) for path in paths]
    if kind == "c8" and scale != (1, 0):
        return
    source = open_sources([str(folder)])
    assert source.names == ["a", "b"]
    part = source.slice(1, 2)
    assert part.files() == source.files()[1:] == paths[1:]
    found = read_each(part)
    expected = nibabel.load(paths[1])
    is_wide = kind in ("i4", "u4", "i8", "u8", "f8") or (kind == "f4" and scale[1])
    wanted = expected.get_fdata(dtype=np.float64 if is_wide else np.float32) if scale != (1, 0) else values
    (image,), (affine,), (spacing,) = found["image"], found["affine"], found["spacing"]
    assert (image.dtype, image.flags.c_contiguous) == (wanted.dtype, True)
    assert np.array_equal(image, wanted)
    assert np.array_equal(affine, expected.affine)
    assert np.array_equal(spacing, np.asarray(expected.header["pixdim"][1:4], "f4"))


def test_channels_and_masks_of_nnunet(tmp_path: Path) -> None:
    """Channels become the last axis, in order; a mask is the partner of its case; what lies beside is counted."""
    images, labels = brats(tmp_path)
    source = open_both(tmp_path)
    assert "field image: files numbered from _0000 on are the channels of one volume, its last axis" in source.remarks
    assert "field image: skipped 1 .json" in source.remarks
    assert source.names == list(images)
    assert {spec.name: spec.shape for spec in source.fields} == {
        "image": (None, 5, 4, 4),
        "label": (None, 5, 4),
        "affine": (4, 4),
        "spacing": (3,),
    }
    found = read_each(source)
    for number, name in enumerate(images):
        assert np.array_equal(found["image"][number], images[name])
        assert np.array_equal(found["label"][number], labels[name])
        assert np.allclose(found["affine"][number], AFFINE)
        assert np.allclose(found["spacing"][number], [0.8, 0.8, np.hypot(0.1, 2.5)])


def test_volumes_of_several_dtypes_keep_all_values(tmp_path: Path) -> None:
    """They become the smallest dtype that holds every value, which a remark says; channels of one volume do as well."""
    brats(tmp_path)
    volumes = {
        "BRATS_000": np.full((6, 5, 4), 2**20 + 1, "i4"),
        "BRATS_001": np.full((7, 5, 4), 0.1, "f4"),
        "BRATS_002": np.full((8, 5, 4), 255, "u1"),
    }
    for name, values in volumes.items():
        save(tmp_path / f"labelsTr/{name}.nii.gz", values)
    save(tmp_path / "imagesTr/BRATS_001_0002.nii.gz", np.full((7, 5, 4), 2**16 - 1, "u2"))
    source = open_both(tmp_path)
    assert [spec.dtype for spec in source.fields[:2]] == ["int32", "float64"]
    holds = "which holds all values exactly; --cast"
    assert f"field image: 2 of int16 become int32, {holds} image=DTYPE chooses another" in source.remarks
    assert any(f"1 of uint8 become float64, {holds} label=DTYPE" in remark for remark in source.remarks)
    samples = read_each(source)
    assert np.array_equal(samples["image"][1][..., 2], np.full((7, 5, 4), 2**16 - 1))
    for label, values in zip(samples["label"], volumes.values(), strict=True):
        assert np.array_equal(label, values.astype(np.float64))


def test_a_field_can_be_cast(tmp_path: Path) -> None:
    """Also where no dtype holds all values, which is an error without; a value that does not fit is named."""
    save(tmp_path / "in/a.nii", np.full((2, 2, 2), 3, "i8"))
    for name in "bc":
        save(tmp_path / f"in/{name}.nii", np.full((2, 2, 2), 7, "f8"))
    with pytest.raises(SourceError, match=r"a\.nii: .* is int64 .*, not float64 .*no dtype holds both \(--cast image="):
        open_sources([f"{tmp_path}/in"])
    source = open_sources([f"{tmp_path}/in"], SourceOptions(cast={"image": "uint8"}))
    assert [(volume.dtype, volume.max()) for volume in read_each(source)["image"]] == [("uint8", v) for v in (3, 7, 7)]
    save(tmp_path / "in/b.nii", np.full((2, 2, 2), 0.5, "f8"))
    with pytest.raises(SourceError, match=r"b\.nii: 0\.5 does not fit uint8, which --cast asks for"):
        read_each(open_sources([f"{tmp_path}/in"], SourceOptions(cast={"image": "uint8"})))
    with pytest.raises(UsageError, match="no field mask; fields are image"):
        open_sources([f"{tmp_path}/in"], SourceOptions(cast={"mask": "uint8"}))


def test_numbers_that_are_no_channels(tmp_path: Path) -> None:
    """Volumes that are numbered themselves stay volumes, alone, and as partners of volumes with channels."""
    for number in range(3):
        save(tmp_path / f"labelsTr/img_{number:04d}.nii.gz", np.zeros((3, 3, 3), "u1"))
    assert open_sources([f"{tmp_path}/labelsTr"]).names == ["img_0000", "img_0001", "img_0002"]
    for number in range(3):
        for channel in range(2):
            save(tmp_path / f"imagesTr/img_{number:04d}_{channel:04d}.nii.gz", np.zeros((3, 3, 3), "i2"))
    source = open_both(tmp_path)
    assert source.names == ["img_0000", "img_0001", "img_0002"]
    assert [spec.shape for spec in source.fields[:2]] == [(3, 3, 3, 2), (3, 3, 3)]


def test_one_case_has_channels_if_its_mask_says_so(tmp_path: Path) -> None:
    """A single run of numbers, of one too, is channels if another field has a file of its name, and else volumes."""
    brats(tmp_path, cases=1)
    assert open_both(tmp_path).fields[0].shape == (6, 5, 4, 4)
    assert len(open_sources([f"{tmp_path}/imagesTr"])) == 4
    brats(tmp_path / "ct", channels=1)
    assert open_both(tmp_path / "ct").fields[0].shape == (None, 5, 4, 1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda f: (f / "imagesTr/BRATS_001_0002.nii.gz").unlink(), r"BRATS_001_0000\.nii\.gz: .*no partner"),
        (lambda f: (f / "imagesTr/BRATS_001_0003.nii.gz").unlink(), r"4 axes, 3 channels, not 4 axes, 4 channels"),
        (lambda f: (f / "labelsTr/BRATS_001.nii.gz").unlink(), r"BRATS_001_0000\.nii\.gz: field 'image' has this file"),
        (
            lambda f: save(f / "labelsTr/BRATS_001.nii.gz", np.zeros((7, 5, 4), "c8")),
            "label is complex64 of 3 axes, not",
        ),
        (lambda f: save(f / "labelsTr/BRATS_001.nii.gz", np.zeros((7, 5, 3), "u1")), "differ in size: .*7, 5, 3"),
        (
            lambda f: save(f / "imagesTr/BRATS_001_0002.nii.gz", np.zeros((7, 5, 3), "f4")),
            r"_0000\.nii\.gz: the channels .*_0002\.nii\.gz is float32 \(7, 5, 3\)",
        ),
        (lambda f: (f / "labelsTr/BRATS_001.nii.gz").write_bytes(b"x" * 500), r"BRATS_001\.nii\.gz: cannot be read as"),
        (lambda f: (f / "labelsTr/BRATS_001.nii.gz").write_bytes(b""), r"BRATS_001\.nii\.gz: is empty"),
    ],
    ids=["gap", "channel", "mask", "dtype", "size", "channels", "damaged", "empty"],
)
def test_a_bad_case_is_named_and_may_be_left_out(tmp_path: Path, change: Any, reason: str) -> None:
    """A file that is missing, damaged or does not fit is an error; where `bad` returns, the others are packed."""
    brats(tmp_path)
    change(tmp_path)
    with pytest.raises(SourceError, match=reason):
        open_both(tmp_path)
    source = open_both(tmp_path, watcher=Watcher(bad=lambda error: None))
    assert source.names == ["BRATS_000", "BRATS_002"]


@pytest.mark.parametrize("place", [-6, 60_000], ids=["checksum", "values"])
def test_a_flipped_bit_is_found(tmp_path: Path, place: int) -> None:
    """The checksum of gzip is compared, so that damage behind the header is an error of its sample."""
    values = np.random.default_rng(0).integers(0, 2**15, (40, 40, 40), "i2")
    for name in "abc":
        save(tmp_path / f"in/{name}.nii.gz", values)
    path = tmp_path / "in/b.nii.gz"
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"b\.nii\.gz: cannot be read as NIfTI") as caught:
        list(open_sources([f"{tmp_path}/in"]).read())
    assert caught.value.sample == 1
    report = convert(f"{tmp_path}/in", tmp_path / "out", on_error="skip", workers=0)
    assert (report.samples, len(report.rejected)) == (2, 1)


def test_two_files_of_one_name_are_an_error(tmp_path: Path) -> None:
    """Neither a.nii nor a.nii.gz is skipped in silence."""
    for suffix in ("nii", "nii.gz"):
        save(tmp_path / f"a.{suffix}", np.zeros((3, 3, 3), "u1"))
    with pytest.raises(SourceError, match=r"a\.nii\.gz: this file and a\.nii would both be sample 'a'"):
        open_sources([str(tmp_path)])


def test_affines_that_differ_are_said(tmp_path: Path) -> None:
    """That of the first field is kept."""
    brats(tmp_path)
    save(tmp_path / "labelsTr/BRATS_002.nii.gz", np.zeros((8, 5, 4), "u1"), np.eye(4))
    assert "affines of the fields differ in BRATS_002; that of image is kept" in open_both(tmp_path).remarks


def test_names_and_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A field cannot be called affine; colours and scaled complex values are refused; nibabel is asked for."""
    brats(tmp_path)
    with pytest.raises(UsageError, match="affine= is a field that every volume has"):
        open_sources([f"affine={tmp_path}/imagesTr"])
    colours = np.zeros((3, 3, 3), [("R", "u1"), ("G", "u1"), ("B", "u1")])
    save(tmp_path / "rgb.nii.gz", colours)
    with pytest.raises(SourceError, match=r"rgb\.nii\.gz: holds values of .*, which cannot be packed"):
        open_sources([str(tmp_path / "rgb.nii.gz")])
    path = save(tmp_path / "scaled.nii", np.ones((3, 3, 3), "c8"), slope=2)
    with pytest.raises(SourceError, match=r"scaled\.nii: holds scaled values of complex64, which cannot be packed"):
        open_sources([path])
    monkeypatch.setattr("packer.sources.kinds.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="NIfTI is read by nibabel: pip install"):
        open_both(tmp_path)


def test_dicom_is_refused_with_the_tool_that_makes_nifti(tmp_path: Path) -> None:
    """By its suffix, or by its first bytes if it has none, as scanners write it."""
    (tmp_path / "IM0001").write_bytes(bytes(128) + b"DICM" + bytes(100))
    (tmp_path / "b.dcm").write_bytes(b"old")
    with pytest.raises(UsageError, match=r"2 of the files are DICOM.*`dcm2niix -z y -o OUT .*`, and pack OUT"):
        open_sources([str(tmp_path)])


@pytest.mark.parametrize(
    ("values", "slope", "inter", "dtype"),
    [
        (np.array([33554433, 33554434], "i4"), 0.5, 0, "float64"),
        (np.array([1.0000000001, 1.0], "f8"), 2, 0, "float64"),
        (np.array([0, 1], "i2"), 1, 1e9, "float64"),
        (np.array([0.25, 0.5], "f4"), 1, 2.0**30, "float64"),
        (np.array([-32768, 32767], "i2"), 1, -1024, "float32"),
        (np.array([0, 255], "u1"), 0.1, 0, "float32"),
    ],
)
def test_scaling_keeps_values_apart(tmp_path: Path, values: Any, slope: float, inter: float, dtype: str) -> None:
    """What is stored as two values is packed as two: float64 where float32 would round them to one."""
    source = open_sources([save(tmp_path / "a.nii", values.reshape(2, 1, 1), slope=slope, inter=inter)])
    (volume,) = read_each(source)["image"]
    assert volume.dtype == dtype
    assert volume[0] != volume[1]
    np.testing.assert_allclose(volume.ravel(), values * np.float64(np.float32(slope)) + inter, rtol=1e-6)


def test_channels_with_other_affines_are_refused(tmp_path: Path) -> None:
    """Their voxels do not lie in one place."""
    brats(tmp_path)
    save(tmp_path / "imagesTr/BRATS_001_0002.nii.gz", np.zeros((7, 5, 4), "i2"), AFFINE + np.eye(4))
    with pytest.raises(SourceError, match=r"_0002\.nii\.gz: its affine is not that of BRATS_001_0000\.nii\.gz"):
        open_both(tmp_path)


def test_cifti_is_said_to_be_no_volume(tmp_path: Path) -> None:
    """With what can be done, though the suffix is that of NIfTI."""
    axis = nibabel.cifti2.ScalarAxis(["a", "b"])
    image = nibabel.Cifti2Image(np.zeros((2, 2), "f4"), (axis, axis))
    image.to_filename(tmp_path / "a.dconn.nii")
    with pytest.raises(SourceError, match=r"is CIFTI-2, .* save its matrix as \.npy"):
        open_sources([str(tmp_path / "a.dconn.nii")])


def test_a_task_carries_100_bytes_a_sample(tmp_path: Path) -> None:
    """At most: names and shapes of its own volumes, and no affine, which is read with the values."""
    nibabel.save(nibabel.Nifti1Image(np.zeros((4, 3, 2), np.float32), np.eye(4)), tmp_path / "first.nii")
    for field in ("image", "label"):
        (tmp_path / field).mkdir()
        for number in range(30):
            os.link(tmp_path / "first.nii", tmp_path / field / f"{number}.nii")
    source = open_sources([f"{field}={tmp_path / field}" for field in ("image", "label")])
    few, many = (len(pickle.dumps(source.slice(start, 30))) for start in (25, 5))
    assert (many - few) / 20 <= 100


def test_a_last_axis_of_one_is_said(tmp_path: Path) -> None:
    """Of a label of (X, Y, Z, 1) beside an image of (X, Y, Z): nothing is taken off."""
    for name in "ab":
        save(tmp_path / f"images/{name}.nii", np.zeros((4, 3, 2), "i2"))
        save(tmp_path / f"labels/{name}.nii", np.zeros((4, 3, 2, 1), "u1"))
    source = open_sources([f"image={tmp_path}/images", f"label={tmp_path}/labels"])
    assert "field label has a last axis of one, which image has not: it is packed as it is" in source.remarks
    assert source.fields[1].shape == (4, 3, 2, 1)


@pytest.mark.parametrize("suffix", ["nii", "nii.gz"])
def test_bytes_after_the_values_are_said(tmp_path: Path, suffix: str) -> None:
    """One remark names the files that have some; what is read is the same."""
    for name in "abc":
        save(tmp_path / f"{name}.{suffix}", np.arange(24, dtype="f4").reshape(2, 3, 4))
    for name in "ab":
        path = tmp_path / f"{name}.{suffix}"
        is_compressed = suffix.endswith("gz")
        content = (gzip.decompress(path.read_bytes()) if is_compressed else path.read_bytes()) + b"more"
        path.write_bytes(gzip.compress(content) if is_compressed else content)
    source = open_sources([str(tmp_path)])
    assert source.remarks == [f"{AFTER_END}: a.{suffix} (4 bytes), b.{suffix} (4 bytes)"]
    volumes = [volume for block in source.read() for volume in block["image"]]
    assert len(volumes) == 3
    assert all(np.array_equal(volume, np.arange(24).reshape(2, 3, 4)) for volume in volumes)
