"""Tars of WebDataset: OUT/000000.tar, ...; the fields of a sample are members with its name and a suffix each.

An image is a `.jpg` if the dataset keeps its JPEG file, else a `.png`; text a `.txt` (or what the name of the field
says, as `json` does); one int64 a `.cls`; all else a `.npy`. `packer convert` reads them back under the names
that these suffixes give: `image`, `txt`, `FIELD.npy`.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.codecs import file_of
from packer.errors import UsageError
from packer.export.files import Files, Writer
from packer.export.png import check_image, write_png
from packer.format import FieldSpec
from packer.sources import Block, PackedSource

#: A tar is closed once it holds so many bytes as arrays, or samples.
_TAR_BYTES, _TAR_SAMPLES = 2**30, 10_000
#: What a field is called whose member has only the suffix of its kind.
_PLAIN = "image"
#: Suffixes by which WebDataset reads text as such.
_TEXTS = ("txt", "text", "json")


class TarWriter(Writer):
    """Writes tars of some thousand samples."""

    def __init__(self, source: PackedSource, files: Files) -> None:
        for spec in source.fields:
            if spec.kind == "image":
                check_image(spec)
        _check_suffixes(source.fields)
        super().__init__(source, files)
        dotted = next((name for name in self._names if "." in name.rpartition("/")[2]), None)
        if dotted is not None:
            raise UsageError(
                f"the name {dotted!r} has a dot, where WebDataset ends a key; export to hdf5, which keeps names as text"
            )

    def write(self) -> Generator[Block]:
        for number, blocks in enumerate(self._blocks_of_files(_TAR_BYTES, _TAR_SAMPLES)):
            with (
                self._files.create(f"{number:06d}", ".tar") as file,
                tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar,
            ):
                for block, names in blocks:
                    self._add(tar, block, names)
                    yield block

    def _add(self, tar: tarfile.TarFile, block: Block, names: Any) -> None:
        for at, name in enumerate(names):
            for spec in self._source.fields:
                suffix, data = _member(spec, block[spec.name][at])
                member = tarfile.TarInfo(f"{name}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


def _check_suffixes(specs: Sequence[FieldSpec]) -> None:
    """Raise UsageError if members of two fields may have one suffix; WebDataset reads capitals as small letters."""
    field_of: dict[str, str] = {}
    for spec in specs:
        for suffix in dict.fromkeys(suffix.lower() for suffix in _suffixes(spec)):
            if suffix in field_of:
                raise UsageError(
                    f"fields {field_of[suffix]!r} and {spec.name!r} would both have the suffix .{suffix} in a tar: "
                    "name one of them with --fields, or export to hdf5"
                )
            field_of[suffix] = spec.name


def _suffixes(spec: FieldSpec) -> list[str]:
    """Return the suffixes that values of a field may have: of images that of a JPEG file, and that of PNG."""
    if spec.kind == "text":
        return [spec.name if spec.name in _TEXTS else f"{spec.name}.txt"]
    if spec.kind == "image":
        return [_suffixed(spec.name, suffix, _PLAIN) for suffix in ("jpg", "png")]
    kind = "cls" if not spec.shape and spec.dtype == "int64" else "npy"
    return [_suffixed(spec.name, kind, kind)]


def _member(spec: FieldSpec, value: Any) -> tuple[str, bytes]:
    """Return the suffix and the bytes of one value."""
    suffix, *of_png = _suffixes(spec)
    if spec.kind == "text":
        return suffix, str(value).encode()
    if spec.kind == "image":
        data = file_of(value)
        return (suffix, data) if data else (of_png[0], _png(value))
    if not spec.shape and spec.dtype == "int64":
        return suffix, str(int(value)).encode()
    file = io.BytesIO()
    np.save(file, np.asarray(value), allow_pickle=False)
    return suffix, file.getvalue()


def _suffixed(field: str, suffix: str, plain: str) -> str:
    """Return the suffix of a member: that of its kind alone if the field is called so, or as other tars call it."""
    if field in (plain, suffix):
        return suffix
    return f"{field.removesuffix(f'.{suffix}')}.{suffix}"


def _png(image: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    write_png(file, image)
    return file.getvalue()
