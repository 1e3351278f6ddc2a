"""Arrays of HDF5 and npy that are images: `--image FIELD`, from the file to the batch."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from packer.convert import ConvertOptions, convert
from packer.errors import UsageError
from packer.export import export
from packer.format import manifest as manifests
from packer.packing import open_source
from packer.sources import SourceOptions, base, open_sources
from readers import Crop, PackedDataset


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """Ten slices of 40 x 50, as depth and in colour, a field of spectra and one of labels."""
    rng = np.random.default_rng(0)
    depth = (rng.integers(0, 3, (10, 40, 50)).cumsum(1).cumsum(2) % 2**16).astype("u2")
    with h5py.File(tmp_path / "scans.h5", "w") as file:
        file["depth"] = depth
        file["colour"] = rng.integers(0, 256, (10, 40, 50, 3), np.uint8)
        file["spectra"] = rng.random((10, 6, 7, 12), np.float32)
        file["label"] = np.arange(10)
        file["note"] = ["a"] * 10
    return tmp_path / "scans.h5"


def image(*names: str) -> ConvertOptions:
    return ConvertOptions(source=SourceOptions(images=names), workers=0)


def test_arrays_become_pictures(scans: Path, tmp_path: Path) -> None:
    """Gray ones get one channel and the codec for photographs; batches are (B, C, H, W), and can be cropped."""
    out = tmp_path / "out"
    convert([scans], out, image("depth", "colour"))
    fields = {field.name: field for field in manifests.read(out).fields}
    assert [(fields[name].kind, fields[name].shape) for name in ("depth", "colour", "spectra")] == [
        ("image", (40, 50, 1)),
        ("image", (40, 50, 3)),
        ("array", (6, 7, 12)),
    ]
    assert fields["depth"].codec[0]["id"] == "photo"
    batch = PackedDataset(out)[[7, 2]]
    crop = PackedDataset(out, fields=["depth"], crop=Crop(8, "depth", at=(3, 5)))[7]["depth"]
    with h5py.File(scans) as file:
        assert np.array_equal(batch["depth"].numpy(), file["depth"][:][[7, 2], None])
        assert np.array_equal(batch["colour"].permute(0, 2, 3, 1).numpy(), file["colour"][:][[7, 2]])
        assert np.array_equal(crop.numpy(), file["depth"][7, 3:11, 5:13][None])


def test_pictures_come_back_from_an_export(scans: Path, tmp_path: Path) -> None:
    """In the shape in which they are packed: gray ones with an axis of one channel, which is said by the plan."""
    notes = open_sources([str(scans)], SourceOptions(images=("depth", "colour"))).remarks
    assert "images (H, W) are packed, and exported, as (H, W, 1): depth" in notes
    convert([scans], tmp_path / "out", image("depth"))
    export(tmp_path / "out", tmp_path / "back")
    with h5py.File(scans) as before, h5py.File(tmp_path / "back" / "scans.h5") as after:
        assert np.array_equal(after["depth"][:], before["depth"][:][..., None])


def test_pictures_of_many_sizes(tmp_path: Path) -> None:
    """Files that are samples, each of its own height and width."""
    rng = np.random.default_rng(1)
    (tmp_path / "in").mkdir()
    whole = {f"{n}.npy": rng.integers(0, 9, (5 + n, 9 - n), np.uint8) for n in range(3)}
    for name, values in whole.items():
        np.save(tmp_path / "in" / name, values)
    options = ConvertOptions(source=SourceOptions(samples="files", images=("in",)))
    source = open_sources([f"in={tmp_path / 'in'}"], options.source)
    (spec,) = source.fields
    assert (spec.kind, spec.shape) == ("image", (None, None, 1))
    convert([f"in={tmp_path / 'in'}"], tmp_path / "out", options)
    for number, values in enumerate(whole.values()):
        assert np.array_equal(PackedDataset(tmp_path / "out")[number]["in"].numpy(), values[None])


def test_large_pictures_are_read_in_pieces(scans: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with the axis that they get."""
    monkeypatch.setattr(base, "LARGE_BYTES", 1000)
    monkeypatch.setattr(base, "PIECE_BYTES", 900)
    convert([scans], tmp_path / "out", image("depth"), workers=0)
    with h5py.File(scans) as file:
        assert np.array_equal(PackedDataset(tmp_path / "out")[:]["depth"].numpy(), file["depth"][:][:, None])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("spectra", r"--image spectra: its samples are of shape \(6, 7, 12\), not images; \(H, W\)"),
        ("label", r"of shape \(\)"),
        ("note", "text"),
        ("dpeth", "--image dpeth: there is no such field; fields are colour, depth"),
    ],
)
def test_what_is_no_picture(scans: Path, name: str, words: str) -> None:
    """A field that is not there, of other axes, of many channels, or of text: the message says what is expected."""
    with pytest.raises(UsageError, match=words):
        open_source([scans], image(name), [])
