"""Arrays of bytes that are files of images: HDF5 as robots record it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from opened_sources import read_each
from PIL import Image

from packer.convert import convert
from packer.errors import UsageError
from packer.sources import SourceOptions, open_sources
from readers import PackedDataset, Windows
from tests.helpers.picture_files import picture


def jpeg(image: NDArray[Any], turn: int = 1) -> NDArray[np.uint8]:
    """Return the bytes of a JPEG file, with an orientation tag."""
    file, exif = io.BytesIO(), Image.Exif()
    exif[274] = turn
    Image.fromarray(image).save(file, "JPEG", quality=90, exif=exif)
    return np.frombuffer(file.getvalue(), np.uint8)


def decoded(file: NDArray[np.uint8]) -> NDArray[Any]:
    return np.asarray(Image.open(io.BytesIO(file.tobytes())))


@pytest.fixture(params=[2**25, 1000], ids=["small", "large"])
def large_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clips be decoded at once, and piece by piece."""
    monkeypatch.setattr("packer.sources.encoded.LARGE_BYTES", request.param)


@pytest.mark.usefixtures("large_bytes")
@pytest.mark.parametrize("are_strings", [False, True], ids=["uint8", "S"])
def test_padded_rows_of_episodes_are_clips(tmp_path: Path, are_strings: bool) -> None:
    """Each file is an episode, and windows read some of its frames; rows may be strings of a fixed length."""
    frames = {n: [jpeg(picture(8, 9, seed=10 * n + t)) for t in range(3 + n)] for n in range(3)}
    for number, files in frames.items():
        padded = np.zeros((len(files), max(map(len, files)) + number), np.uint8)
        for row, file in zip(padded, files, strict=True):
            row[: len(file)] = file
        with h5py.File(tmp_path / f"episode_{number}.hdf5", "w") as file:
            file["observations/images/high"] = padded.view(f"S{padded.shape[1]}")[:, 0] if are_strings else padded
            file["action"] = np.full((len(files), 2), number, "f4")
            file["compress_len"] = [list(map(len, files))]  # as Mobile ALOHA has it, for each camera
    options = SourceOptions(samples="files", encoded=("observations.images.high",))
    report = convert(str(tmp_path / "*.hdf5"), tmp_path / "out", source=options, workers=0)
    (spec,) = (field for field in report.manifest.fields if field.name.endswith("high"))
    assert (spec.kind, spec.shape) == ("array", (None, 8, 9, 3))
    source = open_sources([str(tmp_path / "*.hdf5")], options)
    assert any("if cv2.imencode was given RGB, red and blue are swapped" in remark for remark in source.remarks)
    for number, value in enumerate(read_each(source)[spec.name]):
        assert np.array_equal(value, [decoded(file) for file in frames[number]])
    windows = PackedDataset(tmp_path / "out", windows=Windows(2))
    assert np.array_equal(windows[1][spec.name].numpy()[1], decoded(frames[0][2]))


def test_rows_of_bytes_are_images(tmp_path: Path) -> None:
    """Rows of any length (vlen) are images, whose JPEG files are kept; a damaged one is bad; what is odd is said."""
    files = [jpeg(picture(8, 8 + n % 2, seed=n), turn=6 if n < 5 else 1) for n in range(6)]
    files[2] = files[2][:-20]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        rows = file.create_dataset("rgb", 6, h5py.vlen_dtype(np.uint8))
        for number, data in enumerate(files):
            rows[number] = data
        file["n"] = np.arange(6)
    options = SourceOptions(encoded=("rgb",))
    report = convert(
        str(tmp_path / "a.h5"), tmp_path / "out", source=options, codec="rgb=jpeg", on_error="skip", workers=0
    )
    assert (report.samples, len(report.rejected)) == (5, 1)
    dataset = PackedDataset(tmp_path / "out")
    for number, original in enumerate([0, 1, 3, 4, 5]):
        assert np.array_equal(dataset[number]["rgb"].permute(1, 2, 0).numpy(), decoded(files[original]))
        assert int(dataset[number]["n"]) == original
    turned = (
        "rgb, 2 of 3 images that were looked at: an orientation tag (EXIF) is not applied: pixels stay where the file"
    )
    assert any(turned in remark for remark in open_sources([str(tmp_path / "a.h5")], options).remarks)
    oriented = SourceOptions(encoded=("rgb",), orient=True)
    image = read_each(open_sources([str(tmp_path / "a.h5")], oriented).slice(0, 1))["rgb"][0]
    assert np.array_equal(image, decoded(files[0])[::-1].transpose(1, 0, 2))
    with pytest.raises(
        UsageError, match=r"--orient is for sources of images, and for fields that are named by --encoded"
    ):
        open_sources([str(tmp_path / "a.h5")], SourceOptions(orient=True, skip=("rgb",)))
    for name, reason in (("n", "bytes, uint8"), ("q", "there is no such field")):
        with pytest.raises(UsageError, match=f"--encoded {name}: .*{reason}"):
            open_sources([str(tmp_path / "a.h5")], SourceOptions(encoded=(name,)))
