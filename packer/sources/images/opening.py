"""Opens pictures in folders: finds them, pairs them, and reads names and headers alone.

source = open_images({"lr": "DIV2K/LR_x4", "hr": "DIV2K/HR"})
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.format.schema import FieldSpec
from packer.sources import files
from packer.sources.base import HEADERS, Looking, OnBad, not_looking, stop, watched
from packer.sources.files import IMAGES, Found, join
from packer.sources.images.clips import ClipSource, Faults, clips, fields_in_folders
from packer.sources.images.formats import ImageHeader, read_header
from packer.sources.images.pillow import MAX_PIXELS, ImageOptions, quiet
from packer.sources.images.source import ImageSource
from packer.sources.pairing import (
    Pairing,
    chosen,
    field_command,
    marker_values,
    markers,
    pair,
    report_partners,
    share_out,
    subfolders_of,
)
from packer.sources.units import folder_of, unit_name

#: Threads that read headers where a file takes longer than this many seconds, and files that each is given at a time:
#: a disk takes many requests at once, but threads that never wait for it only hinder each other.
THREADS, SLOW_SECONDS, FILES_AT_ONCE = 16, 1e-4, 64

#: Suffixes of files that lie next to images and are clearly none; any other suffix is an error, not a guess.
BESIDE = {
    *(".txt", ".md", ".rst", ".csv", ".tsv", ".json", ".jsonl", ".yaml", ".yml", ".toml", ".xml", ".html", ".htm"),
    *(".ini", ".cfg", ".db", ".log", ".pdf", ".py", ".sh", ".url", ".md5", ".sha256", ".zip", ".tar", ".gz", ".bak"),
}

SUFFIX_LIST = ", ".join(IMAGES)

_KINDS = {1: "gray", 2: "gray with alpha", 3: "RGB", 4: "RGBA"}


class Samples(NamedTuple):
    """The samples that are left after bad files went: names, and by field relative paths and headers."""

    names: list[str]
    paths: dict[str, list[str]]
    headers: dict[str, list[ImageHeader]]

    def sizes(self) -> dict[str, NDArray[np.int32]]:
        """Return height and width of every picture by field, (n, 2)."""
        return {name: np.array([header[:2] for header in some], np.int32) for name, some in self.headers.items()}

    def marks(self) -> dict[str, NDArray[np.int64]]:
        """Return the mark of every picture by field, (n,)."""
        return {name: np.array([header.mark for header in some], np.int64) for name, some in self.headers.items()}

    def changes(self) -> list[str]:
        """Return what is not kept as it is in the files, with how many files."""
        sentences = []
        for name, headers in self.headers.items():
            notes = Counter(header.note for header in headers if header.note)
            sentences += [f"field {name}, {n} {'file' if n == 1 else 'files'}: {note}" for note, n in notes.items()]
        return sentences


def open_images(
    inputs: Mapping[str, str],
    *,
    on_bad: OnBad = stop,
    mode: str | None = None,
    palette: str = "colour",
    max_pixels: int = MAX_PIXELS,
    samples: str = "files",
    listed: str | None = None,
    looking: Looking = not_looking,
) -> ImageSource | ClipSource:
    """Open the images of one or more fields, partners paired by name.

    Args:
        inputs: by field name a folder (searched to any depth), a file, or a glob pattern.
        on_bad: told of every file that cannot be packed; where it returns, the sample is left out.
        mode: `gray`, `rgb` or `rgba` converts every image; None keeps what the files hold.
        palette: `colour` or `index`: what becomes of palette pictures.
        max_pixels: larger pictures are refused before they take memory.
        samples: `files`, or `folders`: numbered pictures of a folder are the frames of a clip, others its fields.
        listed: a file that lists the samples to take, in their order; see `chosen`.
        looking: told how far finding files and reading headers is.

    Raises:
        UsageError: an input is not there or holds no image; two are the same files; a field name or an option
            cannot be.
        SourceError: what `on_bad` raises; no sample is left; images of one field differ in kind.
    """
    options = ImageOptions(mode, palette, max_pixels)
    if not inputs:
        raise UsageError("no images are named; say FIELD=FOLDER, for example hr=DIV2K/HR")
    faults = Faults(on_bad)
    opened = {name: _find(name, text, faults, looking) for name, text in inputs.items()}
    found = {name: some for name, (some, _) in opened.items()}
    notes = [*(note for _, said in opened.values() for note in said), *share_out(found)]
    fields = fields_in_folders(found) if samples == "folders" else None
    if fields is None:
        paired = pair({name: some.files for name, some in found.items()})
    else:
        found, root = fields, next(iter(found.values())).folder
        paired = pair({name: some.files for name, some in found.items()}, lambda file: unit_name(root, folder_of(file)))
    if listed is not None:
        paired, left_out = chosen(paired, listed)
        notes += left_out
    report_partners(paired, found, faults)
    read = read_headers(paired, found, options, faults, looking)
    source = ImageSource(
        fields=tuple(field_spec(name, read, found[name].folder) for name in found),
        names=read.names,
        folders={name: some.folder for name, some in found.items()},
        paths=read.paths,
        sizes=read.sizes(),
        options=options,
        origin={"mode": options.mode, "palette": options.palette, "markers": marker_values(paired)},
        remarks=[*notes, *markers(paired), *read.changes()],
        marks=read.marks(),
    )
    return clips(source, faults, on_bad) if samples == "folders" and fields is None else source


def _find(field: str, text: str, on_bad: OnBad, looking: Looking = not_looking) -> tuple[Found, list[str]]:
    """Find the image files that `text` stands for: all below a folder, one file, or what fits a glob pattern.

    Hidden files, files without a suffix and the suffixes in `BESIDE` are left out and counted. `on_bad`
    is told of every other file that is no image, `looking` how many are found.

    Returns:
        the images, and a sentence on what was left out, if there is any.

    Raises:
        UsageError: nothing is there, or nothing there is an image.
    """
    found = files.find(text, looking)
    kept, left_out = [], Counter({"hidden": found.hidden} if found.hidden else {})
    for file in found.files:
        suffix = files.suffix_of(file)
        if not suffix or suffix in BESIDE:
            left_out[suffix or "without suffix"] += 1
        elif reason := _unfit(file, suffix, file not in found.odd):
            on_bad(SourceError(reason, found.path(file)))
            left_out[suffix] += 1
        else:
            kept.append(file)
    said = ", ".join(f"{count} {what}" for what, count in sorted(left_out.items()))
    if not kept:
        there = f"; {said} there" if said else ""
        raise UsageError(f"{text}: no image for field {field!r} ({SUFFIX_LIST} are images){there}; check the path")
    return found._replace(files=kept), [f"field {field}: left out {said}"] if said else []


def _unfit(file: str, suffix: str, regular: bool) -> str:
    """Return why this file cannot be an image, or the empty string."""
    if suffix not in IMAGES:
        return (
            f"is not an image ({SUFFIX_LIST} are), but lies among images; move it away, or name a pattern like '*.png'"
        )
    if not regular:
        return files.NOT_REGULAR
    try:
        file.encode()
    except UnicodeEncodeError:
        return "has a name that is not valid text (UTF-8), so the sample would have none; rename it"
    return ""


def read_headers(
    paired: Pairing, found: Mapping[str, Found], options: ImageOptions, on_bad: OnBad, looking: Looking = not_looking
) -> Samples:
    """Read the headers of all files; a sample with a bad one is left out of every field.

    Raises:
        SourceError: what `on_bad` raises, or no sample is left.
    """
    samples = Samples([], {field: [] for field in found}, {field: [] for field in found})
    rows = list(
        zip(*([(found[field].folder, file) for file in some] for field, some in paired.files.items()), strict=True)
    )
    paths = [join(folder, file) for row in rows for folder, file in row]
    with quiet(), contextlib.closing(_each_header(paths, options)) as headers:
        for name, row in watched(zip(paired.names, rows, strict=True), HEADERS, looking, len(rows)):
            read = [next(headers) for _ in row]
            good = [header for header in read if isinstance(header, ImageHeader)]
            for error in read:
                if isinstance(error, SourceError):
                    on_bad(error)
            if len(good) == len(row):
                samples.names.append(name)
                for field, (_, file), header in zip(found, row, good, strict=True):
                    samples.paths[field].append(file)
                    samples.headers[field].append(header)
    if not samples.names:
        raise SourceError("no sample is left: every one has a bad file or a partner missing; mend the files first")
    return samples


def _each_header(paths: Sequence[str], options: ImageOptions) -> Generator[ImageHeader | SourceError, None, None]:
    """Yield the header of each file, or why it has none, in order.

    One thread reads what lies in memory; from the first files that take long, several do.
    """
    parts = [paths[at : at + FILES_AT_ONCE] for at in range(0, len(paths), FILES_AT_ONCE)]
    quick = True
    while parts and quick:
        began = time.perf_counter()
        headers = _headers(part := parts.pop(0), options)
        quick = time.perf_counter() - began < len(part) * SLOW_SECONDS
        yield from headers
    pool = ThreadPoolExecutor(THREADS, "packer-headers")
    try:
        for headers in pool.map(partial(_headers, options=options), parts):
            yield from headers
    finally:
        pool.shutdown(cancel_futures=True)


def _headers(paths: Sequence[str], options: ImageOptions) -> list[ImageHeader | SourceError]:
    read: list[ImageHeader | SourceError] = []
    for path in paths:
        try:
            read.append(read_header(path, options))
        except SourceError as error:
            read.append(error)
    return read


def field_spec(field: str, samples: Samples, folder: str) -> FieldSpec:
    """Return what the field is: its common dtype and channels, and its size if all images have one.

    Args:
        folder: the folder that paths of the field count from.

    Raises:
        SourceError: the images differ in channels or dtype.
        UsageError: the field cannot have this name.
    """
    headers = samples.headers[field]
    kinds = Counter((header.channels, header.dtype) for header in headers)
    if len(kinds) > 1:
        raise _mixed(field, kinds, headers, samples.paths[field], folder)
    ((channels, dtype),) = kinds
    heights, widths = {header.height for header in headers}, {header.width for header in headers}
    shape = (*(side.pop() if len(side) == 1 else None for side in (heights, widths)), channels)
    try:
        return FieldSpec(name=field, dtype=dtype, kind="image", shape=shape)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _mixed(
    field: str, kinds: Counter[tuple[int, str]], headers: Sequence[ImageHeader], paths: Sequence[str], folder: str
) -> SourceError:
    examples = {(header.channels, header.dtype): path for header, path in zip(headers, paths, strict=True)}
    listed = ", ".join(
        f"{count} {_KINDS[channels]} {dtype} (such as {examples[channels, dtype]})"
        for (channels, dtype), count in kinds.most_common()
    )
    if len({dtype for _, dtype in kinds}) > 1:
        advice = "save them with one bit depth, or pack them as datasets of their own"
    else:
        advice = "convert them on purpose with --mode gray, rgb or rgba, or move the odd ones away"
    subfolders = subfolders_of(paths)
    if subfolders and all(len({headers[i][2:4] for i in numbers}) == 1 for numbers in subfolders.values()):
        sizes = np.array([header[:2] for header in headers])
        advice = f"if each folder is a field, say `{field_command(folder, subfolders, sizes)}`; else {advice}"
    return SourceError(f"field {field!r}: images of one field must be of one kind, but there are {listed}; {advice}")
