"""What a file that HDF5 cannot open really is, told from its first bytes."""

from __future__ import annotations

import struct
from pathlib import Path

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_LOOK_BYTES = 512
_MATLAB_4_BYTES = 20

#: First bytes and what they mean; the advice says how to go on.
_OTHERS: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a git-LFS pointer, not the data: run `git lfs pull` to fetch the file"),
    (b"CDF\x01", "a NetCDF-3 file, not HDF5: rewrite it with `nccopy -k netCDF-4 IN OUT`"),
    (b"CDF\x02", "a NetCDF-3 file (64-bit offsets), not HDF5: rewrite it with `nccopy -k netCDF-4 IN OUT`"),
    (b"CDF\x05", "a NetCDF-3 file (64-bit data), not HDF5: rewrite it with `nccopy -k netCDF-4 IN OUT`"),
    (b"\x0e\x03\x13\x01", "an HDF4 file, not HDF5: rewrite it with `h4toh5 IN OUT`"),
    (b"MATLAB 5.0", "an old MATLAB file (version 5 to 7.2), not HDF5: save it in MATLAB with `-v7.3`"),
    (b"MATLAB 7.3", "a MATLAB 7.3 file whose HDF5 part is missing or damaged"),
    (b"\x89PNG", "a PNG image, not HDF5"),
    (b"\x93NUMPY", "a NumPy .npy file, not HDF5"),
    (b"PK\x03\x04", "a zip archive (.npz, .keras or the like), not HDF5"),
    (b"\x1f\x8b", "a gzip archive, not HDF5: unpack it with `gunzip`"),
    (b"\xfd7zXZ", "an xz archive, not HDF5: unpack it with `unxz`"),
    (b"BZh", "a bzip2 archive, not HDF5: unpack it with `bunzip2`"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive, not HDF5: unpack it with `unzstd`"),
)


def what_it_is(path: str) -> str:
    """A phrase for a file without a usable HDF5 signature, such as `is an HDF4 file, not HDF5`.

    Raises:
        OSError: the file cannot be read.
    """
    with Path(path).open("rb") as file:
        head = file.read(_LOOK_BYTES)
    if not head:
        return "is empty: 0 bytes, an HDF5 file was expected"
    for magic, meaning in _OTHERS:
        if head.startswith(magic):
            return f"is {meaning}"
    if _is_matlab_4(head):
        return "is an old MATLAB file (version 4), not HDF5: save it in MATLAB with `-v7.3`"
    if head.lstrip().lower().startswith((b"<!doctype", b"<html")):
        return "is a web page, not HDF5: the download went wrong"
    if SIGNATURE.startswith(head):
        return f"is cut short: it holds {len(head)} bytes of the HDF5 signature and nothing else"
    if not any(head):
        return f"is not an HDF5 file: its first {len(head)} bytes are all zero"
    return f"is not an HDF5 file: it begins with {head[:8]!r}, an HDF5 file with {SIGNATURE!r}"


def _is_matlab_4(head: bytes) -> bool:
    """Does it begin with the header of a matrix: type, rows, columns, imaginary or not, and a name of that length?"""
    for order in "<>":
        if len(head) < _MATLAB_4_BYTES:
            return False
        kind, rows, columns, imaginary, length = struct.unpack_from(f"{order}5i", head)
        machine, zero, precision, shape = (kind // n % 10 for n in (1000, 100, 10, 1))
        name = head[_MATLAB_4_BYTES : _MATLAB_4_BYTES + max(length, 0)]
        is_type = 0 <= kind < 5000 and machine == (order == ">") and not zero and precision < 6 and shape < 3
        is_name = 1 < length < 256 and name[-1:] == b"\0" and name[:-1].replace(b"_", b"a").isalnum()
        if is_type and is_name and rows >= 0 and columns >= 0 and imaginary in (0, 1):
            return True
    return False
