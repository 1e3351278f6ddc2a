"""Images as samples: one field a folder, one sample a name; or a folder of numbered images, the frames of a clip.

    000/00000000.png, 000/00000001.png, ..., 001/00000000.png, ...    with `--samples folders`: clips 000 and 001

A folder of files and an LMDB folder go the same way; `lmdb_folders` finds the keys of the latter. A clip is one array,
(T, H, W, C), whose frames are ordered by their numbers and decoded one at a time; one with a bad frame is skipped as a
whole.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.codecs import file_of, with_files
from packer.errors import NothingLeftError, SourceError, UsageError, first_few
from packer.sources.agreeing import agree_on_most
from packer.sources.base import LARGE_BYTES, LargeArray, Source, changed
from packer.sources.files import IMAGES, FileSet, is_lmdb, join
from packer.sources.images import lmdb_folders, shown_in_words
from packer.sources.images.lmdb_folders import TEXT
from packer.sources.images.options import ImageOptions, is_mask_name, reading
from packer.sources.images.sizes import NAMED, compared, misfitting_sizes
from packer.sources.kinds import Kind, pair_by_name, unit_of
from packer.sources.looking import AFTER, UNWRITTEN, Header, unwritten_error
from packer.sources.options import SourceOptions
from packer.sources.pairing import names_by_folder, stem
from packer.sources.source import TableSource
from packer.sources.table import LaidField, Row, SampleTable, bounds_of
from packer.sources.units import by_folder, folder_of, numbers_of, refuse_strays, unit_name
from packer.watcher import Watcher

if TYPE_CHECKING:
    from packer.sources.images.formats import ByteRange
    from packer.sources.images.pixels import ImageHeader

#: Decoded bytes that a block holds at most, unless one sample is larger.
BLOCK_BYTES = 2**19

#: What `LaidField.detail` says of files with a palette: what of them is packed.
_COLOUR, _INDEX = "colour", "index"
#: Numbers of a sample: frames of a clip; and, if its field `TEXT` holds text, 1.
_FRAMES, _IS_TEXT = "frames", "is text"
_BROKEN = "has an image that is bad or has no partner"
_ADVICE = "convert channels with --mode gray, rgb or rgba, save it with the bits of the others, or pack it apart"


# ---------------------------------------------------------------- which files are a sample


def pair(file_sets: Mapping[str, FileSet], options: SourceOptions, watcher: Watcher) -> tuple[SampleTable, list[str]]:
    """Return the samples that images of the fields make, as `pair_by_name` does; keys of LMDB folders are images.

    Raises:
        UsageError: folders hold images of the same few names, which are fields.
        SourceError: what `watcher.bad` raises; an LMDB file or its list is damaged; images lie next to folders.
    """
    in_folders = unit_of("images", options.samples).name == "folders"
    broken: set[str] = set()

    def report_bad(error: SourceError) -> None:
        watcher.bad(error)
        broken.add(folder_of(error.path or ""))

    noting = replace(watcher, bad=report_bad)
    stored = {
        field: lmdb_folders.opened(file_set.folder, noting)
        for field, file_set in file_sets.items()
        if is_lmdb(Path(file_set.folder))
    }
    picked = {field: stored[field].file_set if field in stored else file_set for field, file_set in file_sets.items()}
    names = None
    if in_folders and not stored:
        picked = {field: file_set._replace(files=file_set.pick(noting)) for field, file_set in picked.items()}
        names = names_by_folder(picked) if is_one_in_each_folder(picked) else None
    table, remarks = pair_by_name(picked, options, noting, names)
    inputs, numbers = dict(table.inputs), dict[str, Any]()
    for field, folder in stored.items():
        inputs[field] = folder.located(files := table.inputs[field].files)
        remarks += folder.notes()
        numbers |= {f"{field}.listed.{side}": column for side, column in folder.sizes(files).items()}
        if folder.texts:
            if len(file_sets) > 1:
                reason = "an LMDB folder of images with their texts has all fields in it; name no other beside it"
                raise UsageError(reason)
            inputs[TEXT], numbers[_IS_TEXT] = folder.texts_of(files), np.ones(table.count, np.uint8)
    table = msgspec.structs.replace(table, inputs=inputs, numbers=numbers)
    return _clips(table, broken, remarks, watcher) if in_folders and names is None else table, remarks


def is_one_in_each_folder(file_sets: Mapping[str, FileSet]) -> bool:
    """Return whether each folder is a sample with one image a field; else folders hold the frames of clips.

    Raises:
        SourceError: images lie next to the folders.
        UsageError: folders hold images of the same few names, which are fields.
    """
    one_each = True
    for name, file_set in file_sets.items():
        refuse_strays(file_set.folder, file_set.files)
        folders = by_folder(file_set.files)
        frames = [numbers_of([stem(file_set.files[i]) for i in places]) is not None for places in folders.values()]
        one_each = one_each and all(len(places) == 1 for places in folders.values()) and not all(frames)
        by_name = Counter(stem(file).rpartition("/")[2] for file in file_set.files)
        if len(by_name) > 1 and not any(frames) and 2 * min(by_name.values()) >= len(folders):
            fields = [f"{field}='{join(file_set.folder, f'*/{field}.*')}'" for field in sorted(by_name)[:NAMED]]
            raise UsageError(
                f"{name}={file_set.folder}: its folders hold images of {len(by_name)} names, not numbered frames; name "
                f"each field with a quoted pattern, as in {' '.join(fields)}"
            )
    return one_each


def _clips(frames: SampleTable, broken: Collection[str], remarks: list[str], watcher: Watcher) -> SampleTable:
    """Return the samples that the frames of each folder make; `watcher.bad` is called with each that is no clip.

    Args:
        broken: the folders that hold a bad file, or one without a partner.
    """
    for files in frames.inputs.values():
        refuse_strays(files.folder, files.files if files.roots is None else files.roots)
    files, names = next(iter(frames.inputs.values())), frames.names or []
    inside = files.files if files.roots is None else files.roots
    places_of: dict[str, list[int]] = {}
    gaps = []
    for folder, places in by_folder(names).items():
        numbers = numbers_of([names[i] for i in places])
        held = [folder_of(join(f.folder, (f.roots or f.files)[places[0]])) for f in frames.inputs.values()]
        fault = _BROKEN if any(place in broken for place in held) else ""
        if not fault and numbers is None:
            first, last = (inside[i].rpartition("/")[2] for i in (places[0], places[-1]))
            fault = f"holds images that are not numbered alike, such as {first} and {last}"
        elif not fault and len(set(numbers or ())) < len(places):
            fault = "holds two images with the same number"
        if fault:
            watcher.bad(SourceError(f"{fault}; the clip is skipped", held[0]))
            continue
        clip = unit_name(files.folder, folder)
        places_of[clip] = places
        steps = np.diff(numbers or [])
        if len(set(steps.tolist())) > 1:
            last_place = places[int((steps > steps.min()).argmax())]
            gaps.append(f"{clip} (after {inside[last_place].rpartition('/')[2]})")
    if gaps:
        remarks.append(
            f"frame numbers have gaps in {first_few(gaps, NAMED)}: the frames that exist are packed one after another; "
            "check these"
        )
    order = [place for places in places_of.values() for place in places]
    lengths = np.array(list(map(len, places_of.values())), np.int64)
    table = msgspec.structs.replace(frames, numbers={}).take(order)
    inputs = {name: msgspec.structs.replace(f, bounds=bounds_of(lengths)) for name, f in table.inputs.items()}
    return SampleTable(count=len(lengths), inputs=inputs, names=list(places_of), numbers={_FRAMES: lengths})


# ---------------------------------------------------------------- what headers say


def look(row: Row, options: SourceOptions) -> Header | list[SourceError]:
    """Return what the headers of the images of a sample say, or the errors of those that are bad."""
    from packer.sources.images.formats import read_header

    errors: list[SourceError] = []
    layout: list[LaidField] = []
    numbers: dict[str, int] = {}
    how, is_clip = _reading(options), _FRAMES in row.numbers
    for field in row.paths:
        if row.numbers.get(_IS_TEXT) and field == TEXT:
            layout.append(LaidField(field, "uint8", (None,), "text", "text"))
            continue
        headers: list[ImageHeader] = []
        for name, place in _places(row, field):
            try:
                headers.append(read_header(name, how, place))
            except SourceError as error:
                errors.append(error)
        if is_clip and headers and not errors:
            errors += _misfits(row, field, headers)
        if errors:
            continue
        first = headers[0]
        numbers[f"{field}.height"], numbers[f"{field}.width"] = first.height, first.width
        if first.stack:
            numbers |= {f"{field}[{axis}]": length for axis, length in enumerate(first.stack)}
        if unwritten := sum([header.unwritten for header in headers]) if is_clip else first.unwritten:
            numbers[UNWRITTEN.format(field, "piece")] = unwritten
            if options.unwritten == "refuse":
                reason = f"{unwritten:,} tiles, strips or pages were never written"
                errors.append(unwritten_error(reason, _places(row, field)[0][0]))
        if extra := sum([header.after for header in headers]) if is_clip else first.after:
            numbers[AFTER.format(field)] = extra
        noted = [header.note for header in headers if header.note]
        notes = tuple(dict.fromkeys(noted)) if noted else ()
        form = first.channels, first.dtype, first.axes, first.has_palette
        layout.append(_laid(field, *form, notes, is_clip, options.palette))
    if errors and _FRAMES in row.numbers and "; the clip is skipped" not in errors[-1].reason:
        errors.append(SourceError(f"{_BROKEN}; the clip is skipped", _folder(row, next(iter(row.paths)))))
    return errors or Header(tuple(layout), numbers)


@lru_cache(1024)
def _laid(
    field: str,
    channels: int,
    dtype: str,
    stack: str,
    has_palette: bool,
    notes: tuple[str, ...],
    is_clip: bool,
    palette: str | None,
) -> LaidField:
    """Return the field of images; of a stack, `stack` has a letter for each axis before height."""
    axes: tuple[int | str, ...] = (f"{field}.height", f"{field}.width", channels)
    if stack:
        axes = (*(f"{field}[{axis}]" for axis in range(len(stack))), *(axes if channels > 1 else axes[:2]))
    return LaidField(
        field,
        dtype,
        (_FRAMES, *axes) if is_clip else axes,
        shown_in_words(channels, dtype, stack),
        "array" if is_clip or stack else "image",
        (palette or _COLOUR) if has_palette else None,
        notes,
    )


def _misfits(row: Row, field: str, headers: Sequence[ImageHeader]) -> list[SourceError]:
    """Return the errors of the frames of a clip that are not as its first one."""
    errors, first, places = list[SourceError](), headers[0], _places(row, field)
    for header, (name, _) in zip(headers, places, strict=True):
        if header.stack:
            return [*errors, SourceError("holds a stack of images, which can be no frame of a clip", name)]
        if header[2:4] != first[2:4]:
            how = f"field {field} is {header.in_words}, not {first.in_words}"
            errors.append(SourceError(f"differs from most images: {how}; {_ADVICE}", name))
        elif header[:2] != first[:2]:
            pairs = ((places[0][0], first), (name, header))
            of_each = [f"{path.rpartition('/')[2]} is {one.height} x {one.width}" for path, one in pairs]
            reason = f"holds images of different sizes ({' and '.join(of_each)}); the clip is skipped"
            return [*errors, SourceError(reason, _folder(row, field))]
    return errors


def _places(row: Row, field: str) -> Sequence[tuple[str, ByteRange | None]]:
    """Return the path of each image of a field, and where its bytes lie if it is no file of its own."""
    if field not in row.roots:
        return [(path, None) for path in row.paths[field]]
    from packer.sources.images.formats import ByteRange

    places = zip(row.paths[field], row.roots[field], row.spans[field].tolist(), strict=True)
    return [(join(folder_of(path), root), ByteRange(path, *span)) for path, root, span in places]


def _folder(row: Row, field: str) -> str:
    """Return the folder that holds the frames of a clip."""
    return folder_of(_places(row, field)[0][0])


def _reading(options: SourceOptions, palette: str | None = None) -> ImageOptions:
    """Return how images are read; files with a palette by `palette`."""
    return reading(options.mode, palette or options.palette or _COLOUR, options.max_pixels, options.orient)


# ---------------------------------------------------------------- what images have in common


def agree(table: SampleTable, options: SourceOptions, remarks: list[str], watcher: Watcher) -> SampleTable:
    """Return the samples whose images have the channels and depths of most.

    Samples whose fields have another ratio of sizes than most are dropped if bad files are skipped; else they are
    packed, and a remark names them.
    """
    chooses = options.palette is None and options.mode is None
    masks = _masks(table) if chooses else set[str]()
    table = table.relaid(lambda laid: _as_mask(laid) if laid.name in masks else laid)
    is_clips = _FRAMES in table.numbers
    if is_clips and not table.count:
        raise NothingLeftError("no clip is left: each has a bad image, or lacks a partner; fix the files first")
    table = agree_on_most(table, watcher, f"differs from most images: {{how}}; {_ADVICE}")
    if not is_clips:
        keep = np.ones(table.count, bool)
        for number, (field, reason) in misfitting_sizes(table).items():
            with contextlib.suppress(SourceError):
                watcher.bad(SourceError(reason, _places(table.row(number), field)[0][0]))
                keep[number] = False
        table = table.take(np.flatnonzero(keep))
    remarks += lmdb_folders.listed_otherwise(table)
    remarks += _palettes(table, masks) if chooses else ()
    if is_clips:
        lengths = table.numbers[_FRAMES]
        frames = f"{lengths.min():,}" if lengths.min() == lengths.max() else f"{lengths.min():,} to {lengths.max():,}"
        remarks.insert(0, f"each folder of numbered images is a sample: {table.count:,} clips of {frames} frames")
    remarks += compared(table)
    return table


def _masks(table: SampleTable) -> set[str]:
    """Return the fields whose palettes stand for classes: by their name, or as all have one beside photographs."""
    images: dict[str, list[LaidField]] = {}
    for layout in table.layouts:
        for laid in layout:
            if laid.kind != "text":
                images.setdefault(laid.name, []).append(laid)
    with_palette = {name for name, fields in images.items() if any(laid.detail for laid in fields)}
    plain = {name for name, fields in images.items() if all(laid.detail or laid.shape[-1] == 1 for laid in fields)}
    photographs = images.keys() - plain
    return {name for name in with_palette if is_mask_name(name) or (name in plain and photographs)}


def _as_mask(laid: LaidField) -> LaidField:
    if not laid.detail:
        return laid
    return laid._replace(shape=(*laid.shape[:-1], 1), detail=_INDEX, in_words=f"gray {laid.dtype}")


def _palettes(table: SampleTable, masks: set[str]) -> Iterator[str]:
    """Yield sentences on what is packed of files with a palette."""
    files = Counter[str]()
    for number, count in table.counts().items():
        files.update({laid.name: count for laid in table.layouts[number] if laid.detail})
    for name, count in files.items():
        done = (
            "the numbers of the colours are packed, as of masks; --palette colour packs the colours"
            if name in masks
            else "their colours are packed; --palette index packs the numbers of the colours, as of masks"
        )
        yield f"field {name}, {count:,} {'file' if count == 1 else 'files'} with a palette: {done}"


# ---------------------------------------------------------------- pixels


def read(row: Row, options: SourceOptions) -> dict[str, Any]:
    """Return the images of a sample, C-contiguous and native-endian; a large clip as `LargeArray`."""
    from packer.sources.images.formats import read_bytes, read_image

    sample: dict[str, Any] = {}
    for laid in row.layout:
        if laid.kind == "image":
            ((name, place),) = _places(row, laid.name)
            sample[laid.name] = read_image(name, _reading(options, laid.detail), place)
        elif _FRAMES in row.numbers:
            sample[laid.name] = _clip(row, laid, options)
        elif laid.kind == "array":
            sample[laid.name] = _stack(row, laid, options)
        else:
            ((name, place),) = _places(row, laid.name)
            try:
                sample[laid.name] = read_bytes(name, place)[0].decode()
            except UnicodeDecodeError:
                image = row.roots[next(iter(row.roots))][0]
                raise SourceError(f"the label of {image} is not text in UTF-8", row.path) from None
    if _FRAMES in row.numbers and sum(clip.nbytes for clip in sample.values()) <= LARGE_BYTES:
        return {name: clip[:] for name, clip in sample.items()}
    return sample


def _clip(row: Row, laid: LaidField, options: SourceOptions) -> LargeArray:
    """Return one field of a clip, decoded as far as it is asked for."""
    shape = tuple(int(n or 0) for n in row.shape(laid))

    def read_frames(start: int, stop: int) -> NDArray[Any]:
        from packer.sources.images.formats import read_image

        out, files = np.empty((stop - start, *shape[1:]), laid.dtype), list[bytes]()
        for at, (name, place) in enumerate(_places(row, laid.name)[start:stop]):
            frame = read_image(name, _reading(options, laid.detail), place)
            if (frame.dtype, frame.shape) != (out.dtype, out.shape[1:]):
                raise changed(laid.dtype, shape[1:], frame, name)
            out[at] = frame
            files.append(file_of(frame))
        return with_files(out, files)

    return LargeArray(np.dtype(laid.dtype), shape, read_frames)


def _stack(row: Row, laid: LaidField, options: SourceOptions) -> Any:
    """Return a stack of images, a large one as `LargeArray`, of which pages are read as they are asked for."""
    from packer.sources.images.formats import read_stack

    ((name, place),) = _places(row, laid.name)
    how = _reading(options, laid.detail)
    shape = tuple(int(n or 0) for n in row.shape(laid))
    stack = LargeArray(np.dtype(laid.dtype), shape, lambda start, stop: read_stack(name, how, place, start, stop))
    return stack if stack.nbytes > LARGE_BYTES else read_stack(name, how, place)


def as_asked(source: TableSource, facts: None) -> Source:
    """Return images as the options ask for them: with small ones beside them, or patches of them."""
    options = source.options
    if not (options.patch or options.stride or options.downscale or options.kernel != "pillow"):
        return source
    from packer.sources.images.derived import seen_as

    return seen_as(source, options)


def _origin(options: SourceOptions, table: SampleTable) -> dict[str, Any]:
    """Return what the manifest keeps of the options."""
    return {
        "mode": options.mode,
        **({"palette": options.palette} if options.palette else {}),
        **({"orient": True} if options.orient else {}),
        **({"samples": "folders"} if _FRAMES in table.numbers else {}),
    }


KIND = Kind(
    "images",
    tuple(IMAGES),
    look,
    read,
    units=("files", "folders"),
    lies_beside=True,
    options=(
        "mode",
        "palette",
        "max_pixels",
        "orient",
        "patch",
        "stride",
        "downscale",
        "kernel",
        "listed",
        "unwritten",
    ),
    exports="png",
    unnamed="image",
    pair=pair,
    agree=agree,
    block_bytes=BLOCK_BYTES,
    complete=as_asked,
    origin=_origin,
)
#: Folders of an LMDB file of images; no file has a suffix of theirs.
KINDS = (KIND, replace(KIND, name="basicsr", suffixes=(), lies_beside=False))
