"""Export a packed dataset: choose the kind of files, and run over the samples in blocks."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.codecs import JPEG
from packer.errors import UsageError, first_few
from packer.export.files import Files, Writer, meanings_in
from packer.format import clear_errors
from packer.packing import find_listed
from packer.remote import refuse_url
from packer.sources import PackedSource, all_kinds, block_bytes, count, open_packed
from packer.watcher import EXPORTING, NOBODY, Watcher


class Kind(NamedTuple):
    """A kind of files: the module and class that write them, imported when they are used.

    Attributes:
        writes: what they write, in a line of help.
    """

    module: str
    writer: str
    writes: str


#: The kinds of files that a dataset can be exported to.
KINDS = {
    "png": Kind("png", "PngWriter", "OUT/FIELD/NAME.png for each sample and image; of clips NAME/00000000.png"),
    "files": Kind("png", "FilesWriter", "the same, .jpg as it was packed; .png where codec jpeg kept no file"),
    "ply": Kind("ply", "PlyWriter", "OUT/NAME.ply, binary: fields as properties"),
    "ply-text": Kind("ply", "PlyTextWriter", "the same as text"),
    "hdf5": Kind("hdf5", "Hdf5Writer", "OUT/*.h5, as the source: paths, attributes"),
    "npy": Kind("npy", "NpyWriter", "OUT/FIELD.npy; ragged or named OUT/FIELD/NAME.npy"),
    "tar": Kind("tar", "TarWriter", "OUT/000000.tar for WebDataset: jpg or png, txt, cls, npy of each sample"),
    "parquet": Kind("parquet", "ParquetWriter", "OUT/data-00000.parquet as of the package datasets: pictures, classes"),
    "basicsr-lmdb": Kind("basicsr", "BasicsrWriter", "OUT/FIELD.lmdb for BasicSR; OUT itself if it is named *.lmdb"),
}
#: What a value of BasicSR's LMDB may be.
VALUES = ("png", "bmp")


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """How to export.

    Attributes:
        to: one of `KINDS`; None for the kind that the samples were packed from.
        fields: names of the fields to export; None for all.
        samples: the samples to export: the name of a split, or names or numbers of samples, as splits take them, in a
            sequence or a text with commas; None for all.
        values: with `basicsr-lmdb`: `png`, which is small, or `bmp`, which BasicSR decodes fastest; None for png.
        overwrite: whether the folder may hold something already; files of one name are replaced.
        watcher: its step is `exporting`, in samples.
    """

    to: str | None = None
    fields: Sequence[str] | None = None
    samples: str | Sequence[str] | Sequence[int] | None = None
    values: str | None = None
    overwrite: bool = False
    watcher: Watcher = NOBODY

    def __post_init__(self) -> None:
        if self.to is not None and self.to not in KINDS:
            raise UsageError(f"cannot export to {self.to!r}; {', '.join(KINDS)} are known")
        if self.fields is not None and not self.fields:
            raise UsageError("no field is named; give --fields those to export")
        if self.values is not None and (self.to != "basicsr-lmdb" or self.values not in VALUES):
            raise UsageError(f"--values {self.values}: {' or '.join(VALUES)} is expected, with --to basicsr-lmdb")


@dataclass(frozen=True)
class ExportReport:
    """What was written.

    Attributes:
        to: kind of the files.
        bytes: their size.
        notes: sentences on what the files lack, or hold in another form than the source.
    """

    path: Path
    to: str
    samples: int
    files: int
    bytes: int
    notes: tuple[str, ...]
    seconds: float


def export(
    dataset: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: ExportOptions | None = None,
    **changes: Any,
) -> ExportReport:
    """Write the samples of a packed dataset as files into the folder `out`.

    Args:
        options: how to export.
        changes: single options by name, over those in `options`.

    Raises:
        DatasetError: there is no packed dataset, or a frame of it is damaged.
        UsageError: there is no such field, split or sample, the fields cannot be written to files of this kind, a
            name would leave the folder, or the folder holds something.
        WriteError: a file cannot be written.
    """
    start_time = time.perf_counter()
    options = replace(options or ExportOptions(), **changes)
    source = open_packed(dataset, options.fields)
    if options.samples is not None:
        source = source.take(_find_samples(source, options.samples))
    to = options.to or _default_kind(source)
    path = Path(out)
    refuse_url(path)
    files = Files(path, options.overwrite)
    kind = KINDS[to]
    writer_class = getattr(importlib.import_module(f"packer.export.{kind.module}"), kind.writer)
    writer: Writer = (
        writer_class(source, files) if options.values is None else writer_class(source, files, options.values)
    )
    try:
        path.mkdir(parents=True, exist_ok=True)
        options.watcher.step(EXPORTING, 0, len(source))
        with closing(writer.write()) as blocks:
            for block in blocks:
                options.watcher.done(count(block), block_bytes(block))
        if hasattr(os, "sync"):
            os.sync()  # all files at once: one by one, thousands of small ones take as long again as to write them
    except OSError as error:
        with clear_errors(Path(os.fsdecode(error.filename or path))):
            raise
    seconds = time.perf_counter() - start_time
    notes = [*_list_losses(source, writer), *writer.notes]
    return ExportReport(path, to, len(source), files.count, files.bytes, tuple(dict.fromkeys(notes)), seconds)


def _find_samples(source: PackedSource, wanted: str | Sequence[str] | Sequence[int]) -> NDArray[np.int64]:
    """Return the numbers of the samples of a split, or of these names or numbers, ascending, (n,).

    Raises:
        UsageError: there is no such split or sample, or none is named.
    """
    if isinstance(wanted, str) and wanted in source.splits:
        return np.asarray(source.splits[wanted], np.int64)
    entries: Sequence[Any] = wanted.split(",") if isinstance(wanted, str) else list(wanted)
    numbers = find_listed(entries, source.names, len(source))
    if unknown := [repr(entry) for entry, number in zip(entries, numbers.tolist(), strict=True) if number < 0]:
        names = source.names or ()
        samples = f"0 to {len(source) - 1}, without names" if source.names is None else f"such as {names[0]!r}"
        raise UsageError(
            f"there is no sample or split {first_few(unknown)}; splits are "
            f"{', '.join(source.splits) or 'none'}; samples are {samples}"
        )
    if not entries:
        raise UsageError("no sample is named; give samples a split, or names of samples")
    return np.unique(numbers)


def _list_losses(source: PackedSource, writer: Writer) -> Iterator[str]:
    """Yield a sentence for each thing that the files lack, or hold in another form than the source files."""
    if source.constants and not writer.keeps_constants:
        yield f"constants are not written: {', '.join(source.constants)}"
    if source.splits:
        yield f"splits are not written: {', '.join(source.splits)}"
    meanings = {name: m for name, m in meanings_in(source).items() if name not in writer.kept_meanings}
    if of_classes := [name for name, meaning in meanings.items() if isinstance(meaning, list)]:
        yield f"names of classes are not written: those of {', '.join(of_classes)}"
    if of_times := [f"{name} in {meaning}" for name, meaning in meanings.items() if isinstance(meaning, str)]:
        yield f"units of times are not written: {', '.join(of_times)}"
    origin = source.origin
    if origin.get("patch") is not None:
        yield f"patches of {origin['patch']} pixels are written, as they were packed: the dataset has no whole images"
    if origin.get("downscale") is not None and any(spec.name == "lr" for spec in source.fields):
        yield f"the field lr was made {origin['downscale']} times as small as the images; the source had none"


def _default_kind(source: PackedSource) -> str:
    """Return files if the dataset keeps some, else the kind that it was packed from; or png for images, else hdf5."""
    from packer.export.png import image_spec  # which loads Pillow

    jpegs = [field for _, field in source.columns if field.codec and field.codec[0]["id"] == JPEG]
    are_all = len(jpegs) == len(source.columns) and all(image_spec(field.spec).kind == "image" for field in jpegs)
    if any(field.kind == "image" for field in jpegs) or (jpegs and are_all):
        return "files"
    kind = all_kinds().get(str(source.origin.get("kind")))
    if kind is not None and kind.exports:
        return kind.exports
    return "png" if all(spec.kind == "image" for spec in source.fields) else "hdf5"
