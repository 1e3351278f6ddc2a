"""Opens images in folders: picks them, pairs them by name, and reads their headers only.

A folder of files and an LMDB folder go the same way; `lmdb_folders` finds the keys of the latter.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from packer.errors import SourceError, UsageError
from packer.format import FieldSpec
from packer.sources.base import HEADERS, Looking, OnBad, Source, common_shape, misfits, watched
from packer.sources.beside import BesideSource
from packer.sources.files import FileSet, is_lmdb
from packer.sources.images import lmdb_folders
from packer.sources.images.clips import ClipSource, clips, is_one_in_each_folder
from packer.sources.images.derived import DownscaledSource, PatchSource
from packer.sources.images.formats import (
    MAX_PIXELS,
    ByteRange,
    ImageHeader,
    ImageOptions,
    is_mask_name,
    quiet,
    read_header,
)
from packer.sources.images.lmdb_folders import LmdbTexts
from packer.sources.images.source import ImageSource, compared, misfitting_sizes
from packer.sources.options import SourceOptions
from packer.sources.pairing import Pairing, names_by_folder, partners
from packer.sources.units import folder_of, unit_of

#: Threads that read headers if one sample waits longer than this many seconds, and how many samples each gets at a
#: time. A disk serves many requests at once, but threads that never wait for it only hinder each other.
THREADS, SLOW_SECONDS, SAMPLES_AT_ONCE = 16, 2e-4, 64

#: Name of the field of images for which none is given.
_FIELD = "image"

#: Name of the field of texts in an LMDB folder.
_TEXT = "label"

#: The files of a sample: the path of each, and its place if it is no file of its own.
_Row = Sequence[tuple[str, ByteRange | None]]

_KINDS = {1: "gray", 2: "gray with alpha", 3: "RGB", 4: "RGBA"}


def open_images(inputs: Mapping[str, FileSet], options: SourceOptions, *, on_bad: OnBad, looking: Looking) -> Source:
    """Open the images of one or more fields, partners paired by name; smaller ones or patches of them if asked for.

    Args:
        inputs: by field name, empty if none is given; or LMDB folders of BasicSR.
        options: with `samples` as `folders`, numbered images of a folder are the frames of a clip.
        on_bad: called with the error of every file that cannot be packed; if it returns, the sample is left out.
        looking: called with the number of headers read.

    Raises:
        UsageError: there is no image; two fields are the same files; or a field name or an option is not allowed.
        SourceError: what `on_bad` raises; no sample is left; an LMDB file or its list is damaged.
    """
    if {"", _FIELD} <= inputs.keys():
        reason = f"{inputs[''].text} is given without FIELD=, so it would be the field {_FIELD}"
        raise UsageError(f"{reason}, but {inputs[_FIELD].text} is; name the field of each")
    opened, texts = _images_or_clips(
        {name or _FIELD: file_set for name, file_set in inputs.items()}, options, on_bad, looking
    )
    if texts and (options.patch or options.stride or options.downscale):
        raise UsageError("--patch, --stride and --downscale are for images without a text of each; leave them out")
    if texts and len(inputs) > 1:
        raise UsageError("an LMDB folder of images with their texts has all fields in it; name no other beside it")
    if isinstance(opened, ClipSource):
        if options.patch or options.stride or options.downscale:
            raise UsageError("--patch, --stride and --downscale are for single images, not for clips; leave them out")
        return opened
    if options.downscale is None and options.kernel != "pillow":
        raise UsageError("--kernel needs --downscale, which says how many times smaller images are made")
    if options.patch is None and options.stride is not None:
        raise UsageError("--stride needs --patch, which says how large the patches are")
    source = opened if options.downscale is None else DownscaledSource(opened, options.downscale, options.kernel)
    if texts:
        opened.kind = "images"
        spec = FieldSpec(name=_TEXT, dtype="uint8", kind="text", shape=(None,))
        return BesideSource(opened, [LmdbTexts((spec,), list(opened.names), [texts[name] for name in opened.names])])
    return source if options.patch is None else PatchSource(source, options.patch, options.stride or options.patch)


def _images_or_clips(
    inputs: Mapping[str, FileSet], options: SourceOptions, on_bad: OnBad, looking: Looking
) -> tuple[ImageSource | ClipSource, Mapping[str, ByteRange]]:
    """Return the images as they are, or clips of them; and by name the text of each, if an LMDB folder has texts."""
    in_folders = unit_of("images", options.samples).name == "folders"
    reading = ImageOptions(options.mode, options.palette or "colour", options.max_pixels or MAX_PIXELS, options.orient)
    broken: set[str] = set()

    def report_bad(error: SourceError) -> None:
        on_bad(error)
        broken.add(folder_of(error.path or ""))

    stored = {
        name: lmdb_folders.opened(file_set.text, report_bad)
        for name, file_set in inputs.items()
        if is_lmdb(Path(file_set.text))
    }
    file_sets = {
        name: stored[name].file_set if name in stored else file_set._replace(files=file_set.pick(report_bad))
        for name, file_set in inputs.items()
    }
    names = None
    if in_folders and not stored and is_one_in_each_folder(file_sets):
        names = names_by_folder(file_sets)
    paired, remarks = partners(file_sets, report_bad, names, options.listed)
    places = {name: [folder.places[file] for file in paired.files[name]] for name, folder in stored.items()}
    chooses = options.palette is None and options.mode is None
    headers, masks = _read_headers(paired, file_sets, places, reading, chooses, report_bad, looking)
    is_clips = in_folders and names is None  # the images are frames, and clips the samples
    if not is_clips:
        _skip_misfitting_sizes(headers, paired, file_sets, report_bad)
    columns = dict(zip(file_sets, zip(*headers.values(), strict=True), strict=True))
    source = ImageSource(
        fields=tuple(_field_spec(name, of_field) for name, of_field in columns.items()),
        names=[paired.names[i] for i in headers],
        folders={name: file_set.folder for name, file_set in file_sets.items()},
        paths={name: [paths[i] for i in headers] for name, paths in paired.files.items()},
        sizes={name: np.array([header[:2] for header in of_field], np.int32) for name, of_field in columns.items()},
        options={name: replace(reading, palette="index") if name in masks else reading for name in file_sets},
        origin={
            "mode": options.mode,
            **({"palette": options.palette} if options.palette else {}),
            **({"orient": True} if options.orient else {}),
        },
        places={name: [of_field[i] for i in headers] for name, of_field in places.items()},
    )
    for name, folder in stored.items():
        remarks += folder.notes(source.paths[name], source.sizes[name])
    source.remarks = [*remarks, *_changes(columns)]
    if chooses:
        source.remarks += _palettes(columns, masks)
    if is_clips:
        return clips(source, broken, on_bad), {}
    source.remarks += compared(source)
    texts = {name: place for folder in stored.values() for name, place in folder.texts.items()}
    return source, texts


def _read_headers(
    paired: Pairing,
    file_sets: Mapping[str, FileSet],
    places: Mapping[str, Sequence[ByteRange]],
    options: ImageOptions,
    chooses: bool,
    on_bad: OnBad,
    looking: Looking,
) -> tuple[dict[int, list[ImageHeader]], set[str]]:
    """Return by number the headers of each sample whose images are all good, and of the kind of most.

    Args:
        chooses: whether fields of masks get the numbers of palettes; they are returned as well.

    Raises:
        SourceError: what `on_bad` raises, or no sample is left.
    """
    columns = [
        zip(map(file_sets[name].path, files), places.get(name, [None] * len(files)), strict=True)
        for name, files in paired.files.items()
    ]
    rows: list[_Row] = list(zip(*columns, strict=True))
    good: dict[int, list[ImageHeader]] = {}
    with quiet(), contextlib.closing(_each_header(rows, options)) as read:
        for number, row in enumerate(watched(read, HEADERS, looking, len(rows))):
            headers = [header for header in row if isinstance(header, ImageHeader)]
            if len(headers) == len(row):
                good[number] = headers
            for header in row:
                if isinstance(header, SourceError):
                    on_bad(header)
    masks = _masks(dict(zip(file_sets, zip(*good.values(), strict=True), strict=True))) if chooses and good else set()
    if masks:
        are_masks = [name in masks for name in file_sets]
        for number, headers_of_sample in good.items():
            good[number] = [
                header._replace(channels=1) if is_mask and header.has_palette else header
                for header, is_mask in zip(headers_of_sample, are_masks, strict=True)
            ]
    kinds = {
        number: {name: f"{_KINDS[header.channels]} {header.dtype}" for name, header in zip(file_sets, row, strict=True)}
        for number, row in good.items()
    }
    model, odd = misfits(kinds)
    for number, how in odd.items():
        del good[number]
        differs = [kinds[number][name] != kinds[model][name] for name in file_sets]
        advice = "convert channels with --mode gray, rgb or rgba, save it with the bits of the others, or pack it apart"
        on_bad(SourceError(f"differs from most images: {how}; {advice}", rows[number][differs.index(True)][0]))
    return good, masks


def _masks(headers: Mapping[str, Sequence[ImageHeader]]) -> set[str]:
    """Return the fields whose palettes stand for classes: by their name, or as all have one beside photographs."""
    with_palette = {name for name, of_field in headers.items() if any(header.has_palette for header in of_field)}
    plain = {
        name
        for name, of_field in headers.items()
        if all(header.has_palette or header.channels == 1 for header in of_field)
    }
    photographs = headers.keys() - plain
    return {name for name in with_palette if is_mask_name(name) or (name in plain and photographs)}


def _palettes(headers: Mapping[str, Sequence[ImageHeader]], masks: set[str]) -> Iterator[str]:
    """Yield sentences on what is packed of files with a palette."""
    for name, of_field in headers.items():
        if files := sum(header.has_palette for header in of_field):
            done = (
                "the numbers of the colours are packed, as of masks; --palette colour packs the colours"
                if name in masks
                else "their colours are packed; --palette index packs the numbers of the colours, as of masks"
            )
            yield f"field {name}, {files:,} {'file' if files == 1 else 'files'} with a palette: {done}"


def _skip_misfitting_sizes(
    headers: dict[int, list[ImageHeader]], paired: Pairing, file_sets: Mapping[str, FileSet], on_bad: OnBad
) -> None:
    """Drop samples whose fields have another ratio of sizes than most, if bad files are skipped; else they are packed.

    A remark of the plan names those that are packed.
    """
    numbers = list(headers)
    sizes = {
        name: np.array([row[column][:2] for row in headers.values()], np.int32) for column, name in enumerate(file_sets)
    }
    for at, (field, reason) in misfitting_sizes(sizes).items():
        with contextlib.suppress(SourceError):
            on_bad(SourceError(reason, file_sets[field].path(paired.files[field][numbers[at]])))
            del headers[numbers[at]]


def _each_header(rows: Sequence[_Row], options: ImageOptions) -> Generator[list[ImageHeader | SourceError], None, None]:
    """Yield the headers of the files of each sample, in order; of a bad file the error.

    One thread reads files that lie in memory; once it has to wait for the disk, several threads read. Computing does
    not count as waiting: a garbage collection takes as long as a slow disk.
    """
    parts = iter([rows[at : at + SAMPLES_AT_ONCE] for at in range(0, len(rows), SAMPLES_AT_ONCE)])
    for part in parts:
        began, computed = time.perf_counter(), time.thread_time()
        headers = _headers(part, options)
        waited = time.perf_counter() - began - (time.thread_time() - computed)
        yield from headers
        if waited > len(part) * SLOW_SECONDS:
            break
    pool = ThreadPoolExecutor(THREADS, "packer-headers")
    try:
        for headers in pool.map(partial(_headers, options=options), parts):
            yield from headers
    finally:
        pool.shutdown(cancel_futures=True)


def _headers(rows: Sequence[_Row], options: ImageOptions) -> list[list[ImageHeader | SourceError]]:
    return [[_header(path, options, place) for path, place in row] for row in rows]


def _header(path: str, options: ImageOptions, place: ByteRange | None) -> ImageHeader | SourceError:
    try:
        return read_header(path, options, place)
    except SourceError as error:
        return error


def _changes(headers: Mapping[str, Sequence[ImageHeader]]) -> list[str]:
    """Return sentences on what is not kept as it is in the files, and in how many files."""
    sentences = []
    for name, of_field in headers.items():
        notes = Counter(header.note for header in of_field if header.note)
        sentences += [f"field {name}, {n} {'file' if n == 1 else 'files'}: {note}" for note, n in notes.items()]
    return sentences


def _field_spec(field: str, headers: Sequence[ImageHeader]) -> FieldSpec:
    """Return the spec of a field: its dtype and channels, and its size if all images have the same.

    Raises:
        UsageError: the field cannot have this name.
    """
    shape = common_shape(header[:3] for header in headers)
    try:
        return FieldSpec(name=field, dtype=headers[0].dtype, kind="image", shape=shape)
    except ValueError as error:
        raise UsageError(str(error)) from error
