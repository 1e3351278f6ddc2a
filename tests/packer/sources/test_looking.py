"""What files hold behind their end, and those that hold nothing, of every kind of files that there is."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import laspy
import nibabel
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import csv, feather, parquet

from packer.errors import SourceError
from packer.sources import SourceOptions, all_kinds, open_sources
from packer.sources.looking import AFTER_END
from tests.helpers.picture_files import picture
from tests.helpers.video_files import video
from tests.helpers.zarr_files import write_zarr

MORE = b"something" * 20
_TABLE = pa.table({"x": [1.5, 2.5, 3.5]})
_POINTS = np.arange(6, dtype="<f4").tobytes()
_PCD = b"VERSION .7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nWIDTH 2\nPOINTS 2\nDATA binary\n"
_PLY = b"ply\nformat binary_little_endian 1.0\nelement vertex 2\n" + b"".join(
    b"property float %c\n" % name for name in b"xyz"
)


def hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(5.0)


def image(path: Path) -> None:
    Image.fromarray(picture(8, 8)).save(path)


def las(path: Path) -> None:
    scan: Any = laspy.create(point_format=2, file_version="1.2")
    scan.xyz = np.arange(15.0).reshape(5, 3)
    scan.write(path)


def jsonl(path: Path) -> None:
    path.write_text('{"x": 1}\n{"x": 2}\n')


def tar(path: Path) -> None:
    with tarfile.open(path, "w") as file:
        member = tarfile.TarInfo("a.npy")
        np.save(buffer := io.BytesIO(), np.arange(3))
        member.size = buffer.tell()
        buffer.seek(0)
        file.addfile(member, buffer)


def flow(path: Path) -> None:
    path.write_bytes(b"PIEH" + np.array([2, 3], "<i4").tobytes() + np.arange(12, dtype="<f4").tobytes())


def pfm(path: Path) -> None:
    path.write_bytes(b"PF\n2 3\n-1.0\n" + np.arange(18, dtype="<f4").tobytes())


#: Writes a file, by the end of its name.
WRITE: dict[str, Callable[[Path], Any]] = {
    **dict.fromkeys((".h5", ".hdf5", ".hdf", ".h5ad", ".he5", ".mat", ".nc", ".nc4", ".nxs"), hdf5),
    ".zarr.zip": lambda path: write_zarr(path, {"x": np.arange(5.0)}, 3),
    ".npy": lambda path: np.save(path, np.arange(5.0)),
    ".npz": lambda path: np.savez(path, x=np.arange(5.0)),
    **dict.fromkeys(all_kinds()["images"].suffixes, image),
    ".ply": lambda path: path.write_bytes(_PLY + b"end_header\n" + _POINTS),
    ".pcd": lambda path: path.write_bytes(_PCD + _POINTS),
    ".las": las,
    ".laz": las,
    ".nii": lambda path: nibabel.save(nibabel.Nifti1Image(np.zeros((4, 5, 6), "i2"), np.eye(4)), path),
    ".nii.gz": lambda path: nibabel.save(nibabel.Nifti1Image(np.zeros((4, 5, 6), "i2"), np.eye(4)), path),
    ".flo": flow,
    ".pfm": pfm,
    ".csv": lambda path: csv.write_csv(_TABLE, path),
    ".tsv": lambda path: csv.write_csv(_TABLE, path),
    ".jsonl": jsonl,
    ".ndjson": jsonl,
    ".parquet": lambda path: parquet.write_table(_TABLE, path),
    ".arrow": lambda path: feather.write_feather(_TABLE, path),
    ".feather": lambda path: feather.write_feather(_TABLE, path),
    ".tar": tar,
    **dict.fromkeys((".mp4", ".mkv", ".avi", ".mov"), lambda path: video(path, frames=2)),
    ".webm": lambda path: video(path, frames=2, codec="libvpx"),
}


#: All bytes of these are text: what follows is lines of it.
TEXT = (".csv", ".tsv")
#: Those that must end where their format says: what follows may be values that were not meant to be cut off.
REFUSED = (".npy", ".npz", ".png", ".nii.gz", ".flo", ".pfm", ".jsonl", ".ndjson", ".parquet", ".arrow", ".feather")


@pytest.mark.parametrize("suffix", [suffix for kind in all_kinds().values() for suffix in kind.suffixes])
def test_bytes_after_the_end(suffix: str, folder: Path) -> None:
    """They are refused, or packed with one remark that names the file and counts them; files without are neither."""
    if suffix in (".zarr", *TEXT):  # a folder, which has no end
        return
    path = folder / f"a{suffix}"
    WRITE[suffix](path)
    options = SourceOptions(samples="files" if suffix == ".npy" else None)
    before = open_sources([str(path)], options)
    assert not any(AFTER_END in remark for remark in before.remarks)
    with path.open("ab") as file:
        file.write(MORE)
    if suffix in REFUSED:
        with pytest.raises(SourceError, match=path.name):
            list(open_sources([str(path)], options).read())
        return
    after = open_sources([str(path)], options)
    (remark,) = set(after.remarks) - set(before.remarks)
    count = len(MORE) + 8192 * (suffix == ".tar")
    assert remark == f"{AFTER_END}: a{suffix} ({count:,} bytes)"
    assert (after.names, len(after)) == (before.names, len(before))


def test_a_file_without_a_byte_is_empty_whatever_its_kind(tmp_path: Path) -> None:
    """All kinds say the same of it, and not what their libraries say."""
    for suffix in (suffix for kind in all_kinds().values() for suffix in kind.suffixes):
        path = tmp_path / f"a{suffix}"
        path.touch()
        with pytest.raises(SourceError, match=rf"a{re.escape(suffix)}: is empty \(0 bytes\); download it again"):
            open_sources([str(path)])
