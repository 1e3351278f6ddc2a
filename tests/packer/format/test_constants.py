"""Constants: what is kept once for a dataset, in a file that is checked whole before an array of it is given out."""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash
from made_datasets import put_manifest

from packer.errors import DamagedError, UsageError
from packer.format import Constants, FileEntry, data_entry, encode_constants, same_constants
from packer.format import manifest as manifests
from packer.verify import verify
from packer.writer import DatasetWriter


@pytest.fixture
def entry(tmp_path: Path) -> FileEntry:
    """What is known of a file of two constants."""
    data = encode_constants({"x": np.arange(3, dtype=">i4"), "t": np.float64(0.5)})
    (tmp_path / "constants.npz").write_bytes(data)
    return data_entry("constants.npz", data)


def test_constants_come_back(tmp_path: Path, entry: FileEntry) -> None:
    """By name, in the byte order of the machine."""
    found = Constants(tmp_path, entry)
    assert sorted(found) == ["t", "x"]
    assert (found["x"].tolist(), found["x"].dtype, found["t"].item()) == ([0, 1, 2], np.dtype("=i4"), 0.5)
    assert repr(found) == "Constants(t, x)"
    assert same_constants(entry, encode_constants(found))
    assert not same_constants(entry, b"")
    assert same_constants(None, encode_constants({}))


def test_damage_of_every_sort_is_told(tmp_path: Path, entry: FileEntry) -> None:
    """A file of another size or content, one that is no archive or holds no arrays, and one that is missing."""
    path = tmp_path / entry.file
    data = path.read_bytes()
    for changed, said in ((data[:-1], "bytes, .* expected"), (data[:-1] + b"!", "its digest is wrong")):
        path.write_bytes(changed)
        with pytest.raises(DamagedError, match=said):
            Constants(tmp_path, entry)["x"]
    for changed in (b"no archive", data.replace(b"\x93NUMPY", b"\x93NAMPY")):
        path.write_bytes(changed)
        with pytest.raises(DamagedError, match=entry.file):
            Constants(tmp_path, data_entry(entry.file, changed))["x"]
    path.unlink()
    with pytest.raises(DamagedError, match="it is missing"):
        len(Constants(tmp_path, entry))


def test_names_that_fields_cannot_have() -> None:
    """Constants have them neither."""
    with pytest.raises(UsageError, match="a/b"):
        encode_constants({"a/b": np.zeros(1)})


def npy(array: np.ndarray[Any, Any], version: tuple[int, int] = (1, 0)) -> bytes:
    """An array as a file of NumPy."""
    held = io.BytesIO()
    np.lib.format.write_array(held, array, version)
    return held.getvalue()


def header(text: str, data: bytes = bytes(8)) -> bytes:
    """A file of NumPy with any header."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + data


def archived(*members: tuple[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip archive as other writers make it, without zip64."""
    held = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(held, "w", compression) as archive:
        warnings.simplefilter("ignore")  # of names that stand twice
        for name, data in members:
            archive.writestr(name, data)
    return held.getvalue()


GOOD = npy(np.arange(4, dtype="<i4"))
SHAPED = "{{'descr': '<f8', 'fortran_order': False, 'shape': {}}}\n"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (archived(("a.npy", GOOD), compression=zipfile.ZIP_DEFLATED), "compressed"),
        (archived(("a.txt", GOOD)), "NAME.npy"),
        (archived(("a.npy", GOOD), ("a.npy", GOOD)), "each once"),
        (archived(("a=b.npy", GOOD)), "a=b"),
        (archived((".npy", GOOD)), "name"),
        (archived(("a.npy", npy(np.arange(4), (2, 0)))), "NPY 1.0"),
        (archived(("a.npy", npy(np.arange(4, dtype=">i4")))), "little-endian"),
        (archived(("a.npy", npy(np.ones((2, 3), order="F")))), "C order"),
        (archived(("a.npy", npy(np.array(["text"])))), "of a dtype"),
        (archived(("a.npy", npy(np.zeros(2, "i4,f4")))), "of a dtype"),
        (archived(("a.npy", npy(np.zeros(2, "M8[s]")))), "of a dtype"),
        (archived(("a.npy", GOOD[:-4])), "which are not those of its shape"),
        (archived(("a.npy", header(SHAPED.format("(2**60,)")))), ""),
        (archived(("a.npy", header(SHAPED.format(f"({2**60},)")))), "which are not those of its shape"),
        (archived(("a.npy", header(SHAPED.format("(-1, -1)")))), "which are not those of its shape"),
        (archived(("a.npy", header(SHAPED.format(f"(0, {2**70})"), b""))), ""),
        (archived(("a.npy", header("{" * 5000))), ""),
        (archived(("a.npy", header("-" * 5000))), ""),
        (archived(("a.npy", b"\x93NUMPY")), "magic"),
        (archived(("a.npy", b"")), ""),
    ],
)
def test_what_another_writer_may_not_write(tmp_path: Path, data: bytes, said: str) -> None:
    """Digest and size are right: reading and `verify` tell it as damage all the same, and never as another error."""
    folder = tmp_path / "packed"
    with DatasetWriter(folder) as writer:
        writer.add({"x": np.zeros(2)})
    (folder / "constants.npz").write_bytes(data)
    entry = FileEntry(file="constants.npz", bytes=len(data), digest=xxhash.xxh3_128_hexdigest(data))
    put_manifest(folder, msgspec.structs.replace(manifests.read(folder), constants=entry))
    with pytest.raises(DamagedError, match=f"constants.npz: .*{said}.*packer repair"):
        len(Constants(folder, entry))
    (damage,) = verify(folder).damages
    assert (damage.file, said in damage.what) == ("constants.npz", True)


def test_archives_without_zip64_are_read(tmp_path: Path) -> None:
    """Nothing but what is stored counts: other writers, and other sizes of headers, are as good."""
    data = archived(("a.npy", GOOD), ("none.npy", npy(np.zeros((0, 3)))), ("one.npy", npy(np.float64(7))))
    (tmp_path / "constants.npz").write_bytes(data)
    held = Constants(tmp_path, data_entry("constants.npz", data))
    assert {name: array.tolist() for name, array in held.items()} == {"a": [0, 1, 2, 3], "none": [], "one": 7.0}
    assert held["none"].shape == (0, 3)
