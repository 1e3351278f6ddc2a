"""Opens images in folders: picks them, pairs them by name, and reads their headers only.

A folder of files and an LMDB folder go the same way; `lmdb_folders` finds the keys of the latter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from packer.errors import SourceError, UsageError
from packer.format import FieldSpec
from packer.sources.base import Source
from packer.sources.beside import BesideSource
from packer.sources.files import FileSet, is_lmdb
from packer.sources.images import lmdb_folders
from packer.sources.images.clips import ClipSource, clips, is_one_in_each_folder
from packer.sources.images.derived import DownscaledSource, PatchSource
from packer.sources.images.formats import (
    MAX_PIXELS,
    ByteRange,
    ImageOptions,
)
from packer.sources.images.headers import changes, palettes, read_headers, without_misfitting_sizes
from packer.sources.images.lmdb_folders import LmdbTexts
from packer.sources.images.source import ImageSource, compared
from packer.sources.options import SourceOptions
from packer.sources.pairing import names_by_folder, partners
from packer.sources.units import folder_of, unit_of
from packer.watcher import Watcher

#: Name of the field of images for which none is given.
_FIELD = "image"

#: Name of the field of texts in an LMDB folder.
_TEXT = "label"


def open_images(inputs: Mapping[str, FileSet], options: SourceOptions, watcher: Watcher) -> Source:
    """Open the images of one or more fields, partners paired by name; smaller ones or patches of them if asked for.

    Args:
        inputs: by field name, empty if none is given; or LMDB folders of BasicSR.
        options: with `samples` as `folders`, numbered images of a folder are the frames of a clip.
        watcher: its `bad` is called with the error of every file that cannot be packed; if it returns, the sample is
            skipped.

    Raises:
        UsageError: there is no image; two fields are the same files; or a field name or an option is not allowed.
        SourceError: what `watcher.bad` raises; no sample is left; an LMDB file or its list is damaged.
    """
    if {"", _FIELD} <= inputs.keys():
        reason = f"{inputs[''].text} is given without FIELD=, so it would be the field {_FIELD}"
        raise UsageError(f"{reason}, but {inputs[_FIELD].text} is; name the field of each")
    opened, texts = _images_or_clips({name or _FIELD: file_set for name, file_set in inputs.items()}, options, watcher)
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
    inputs: Mapping[str, FileSet], options: SourceOptions, watcher: Watcher
) -> tuple[ImageSource | ClipSource, Mapping[str, ByteRange]]:
    """Return the images as they are, or clips of them; and by name the text of each, if an LMDB folder has texts."""
    in_folders = unit_of("images", options.samples).name == "folders"
    reading = ImageOptions(options.mode, options.palette or "colour", options.max_pixels or MAX_PIXELS, options.orient)
    broken: set[str] = set()

    def report_bad(error: SourceError) -> None:
        watcher.bad(error)
        broken.add(folder_of(error.path or ""))

    noting = replace(watcher, bad=report_bad)
    stored = {
        name: lmdb_folders.opened(file_set.text, noting)
        for name, file_set in inputs.items()
        if is_lmdb(Path(file_set.text))
    }
    file_sets = {
        name: stored[name].file_set if name in stored else file_set._replace(files=file_set.pick(noting))
        for name, file_set in inputs.items()
    }
    names = None
    if in_folders and not stored and is_one_in_each_folder(file_sets):
        names = names_by_folder(file_sets)
    paired, remarks = partners(file_sets, noting, names, options.listed)
    places = {name: [folder.places[file] for file in paired.files[name]] for name, folder in stored.items()}
    chooses = options.palette is None and options.mode is None
    numbers, columns, masks = read_headers(paired, file_sets, places, reading, chooses, noting)
    is_clips = in_folders and names is None  # the images are frames, and clips the samples
    if not is_clips:
        numbers, columns = without_misfitting_sizes(numbers, columns, paired, file_sets, noting)
    chosen = numbers.tolist()
    source = ImageSource(
        fields=tuple(column.spec(name) for name, column in columns.items()),
        names=[paired.names[i] for i in chosen],
        folders={name: file_set.folder for name, file_set in file_sets.items()},
        paths={name: [paths[i] for i in chosen] for name, paths in paired.files.items()},
        sizes={name: column.sizes for name, column in columns.items()},
        options={name: replace(reading, palette="index") if name in masks else reading for name in file_sets},
        origin={
            "mode": options.mode,
            **({"palette": options.palette} if options.palette else {}),
            **({"orient": True} if options.orient else {}),
        },
        places={name: [of_field[i] for i in chosen] for name, of_field in places.items()},
    )
    for name, folder in stored.items():
        remarks += folder.notes(source.paths[name], source.sizes[name])
    source.remarks = [*remarks, *changes(columns)]
    if chooses:
        source.remarks += palettes(columns, masks)
    if is_clips:
        return clips(source, broken, watcher), {}
    source.remarks += compared(source)
    texts = {name: place for folder in stored.values() for name, place in folder.texts.items()}
    return source, texts
