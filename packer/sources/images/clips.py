"""Folders of numbered images as samples: the frames of a clip are one array, (T, H, W, C).

    000/00000000.png, 000/00000001.png, ..., 001/00000000.png, ...    clips 000 and 001

Frames are found, paired and decoded like single images, one at a time, and ordered by their numbers. A clip with a
bad frame is skipped as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError, first_few
from packer.format import FieldSpec
from packer.sources.base import LARGE_BYTES, Block, LargeArray, Source, common_shape, joined
from packer.sources.files import FileSet, join
from packer.sources.images.source import BLOCK_BYTES, NAMED, ImageSource, compared
from packer.sources.pairing import stem
from packer.sources.units import by_folder, folder_of, numbers_of, refuse_strays, unit_name
from packer.watcher import Watcher


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


def clips(frames: ImageSource, broken: Collection[str], watcher: Watcher) -> ClipSource:
    """Join the frames of each folder.

    Args:
        broken: the folders that hold a bad file, or one without a partner.
        watcher: its `bad` is called with the error of every clip that cannot be packed; if it returns, the clip is
            skipped.

    Raises:
        SourceError: what `watcher.bad` raises; no clip is left.
    """
    for name, paths in frames.paths.items():
        refuse_strays(frames.folders[name], paths)
    name, root = next(iter(frames.folders.items()))
    places_of: dict[str, list[int]] = {}
    gaps = []
    for folder, places in by_folder(frames.names).items():
        numbers = numbers_of([frames.names[i] for i in places])
        if fault := _fault(frames, places, numbers, broken):
            watcher.bad(
                SourceError(f"{fault}; the clip is skipped", join(root, folder_of(frames.paths[name][places[0]])))
            )
            continue
        clip = unit_name(root, folder)
        places_of[clip] = places
        steps = np.diff(numbers or [])
        if len(set(steps.tolist())) > 1:
            last = places[int((steps > steps.min()).argmax())]
            gaps.append(f"{clip} (after {frames.paths[name][last].rpartition('/')[2]})")
    if not places_of:
        raise SourceError("no clip is left: each has a bad image, or lacks a partner; fix the files first")
    chosen = frames.take([i for places in places_of.values() for i in places])
    edges = np.cumsum([0, *map(len, places_of.values())])
    remarks = [*_notes(edges, gaps), *frames.remarks, *compared(chosen)]
    source = ClipSource((), list(places_of), chosen, edges, {**frames.origin, "samples": "folders"}, remarks)
    source.fields = tuple(
        FieldSpec(name=spec.name, dtype=spec.dtype, shape=common_shape(source.shapes(spec.name).tolist()))
        for spec in chosen.fields
    )
    return source


def _fault(frames: ImageSource, places: Sequence[int], numbers: Sequence[int] | None, broken: Collection[str]) -> str:
    """Return why these frames are no clip, or the empty string."""
    files = {name: [paths[i] for i in places] for name, paths in frames.paths.items()}
    if any(folder_of(join(frames.folders[name], paths[0])) in broken for name, paths in files.items()):
        return "has an image that is bad or has no partner"
    if numbers is None:
        lasts = [file.rpartition("/")[2] for file in next(iter(files.values()))]
        return f"holds images that are not numbered alike, such as {lasts[0]} and {lasts[-1]}"
    if len(set(numbers)) < len(numbers):
        return "holds two images with the same number"
    for name, paths in files.items():
        sizes = frames.sizes[name][places]
        odd = np.flatnonzero((sizes != sizes[0]).any(axis=1))
        if len(odd):
            of_each = [f"{paths[i].rpartition('/')[2]} is {sizes[i][0]} x {sizes[i][1]}" for i in (0, int(odd[0]))]
            return f"holds images of different sizes ({' and '.join(of_each)})"
    return ""


def _notes(edges: NDArray[np.int64], gaps: list[str]) -> Iterator[str]:
    lengths = np.diff(edges)
    frames = f"{lengths.min():,}" if lengths.min() == lengths.max() else f"{lengths.min():,} to {lengths.max():,}"
    yield f"each folder of numbered images is a sample: {len(lengths):,} clips of {frames} frames"
    if gaps:
        yield (
            f"frame numbers have gaps in {first_few(gaps, NAMED)}: the frames that exist are packed one after another; "
            "check these"
        )


@dataclass(eq=False)
class ClipSource(Source):
    """Samples made of consecutive samples of `frames`; made by `clips`.

    Attributes:
        frames: all frames, clip by clip.
        edges: (n + 1,) int64: the number of the first frame of every clip, and how many frames there are.
    """

    fields: tuple[FieldSpec, ...]
    names: list[str]
    frames: ImageSource
    edges: NDArray[np.int64]
    origin: Mapping[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kind = self.frames.kind

    def __len__(self) -> int:
        return len(self.names)

    def shapes(self, field: str) -> NDArray[np.int64]:
        of_frames = self.frames.shapes(field)[self.edges[:-1]]
        return np.insert(of_frames, 0, np.diff(self.edges), axis=1)

    def part(self, start: int, stop: int) -> ClipSource:
        first, last = int(self.edges[start]), int(self.edges[stop])
        edges = self.edges[start : stop + 1] - first
        return ClipSource(self.fields, self.names[start:stop], self.frames.part(first, last), edges)

    def read(self) -> Iterator[Block]:
        return joined(self._clips(), self.fields, BLOCK_BYTES)

    def _clips(self) -> Iterator[dict[str, Any]]:
        for number in range(len(self)):
            frames = self.frames.part(*self.edges[number : number + 2].tolist())
            clip = {spec.name: _large(frames, spec, number) for spec in frames.fields}
            if sum(field.nbytes for field in clip.values()) > LARGE_BYTES:
                yield clip
            else:
                yield {name: field[:] for name, field in clip.items()}

    def files(self) -> list[str]:
        return self.frames.files()


def _large(frames: ImageSource, spec: FieldSpec, number: int) -> LargeArray:
    """Return one field of a clip, decoded as far as it is asked for.

    Args:
        frames: those of the clip.
        spec: the field of the frames.
        number: number of the clip within its source.
    """
    of_field = replace(frames, fields=(spec,))
    shape = (len(frames), *frames.shapes(spec.name)[0].tolist())

    def read(start: int, stop: int) -> NDArray[Any]:
        out = np.empty((stop - start, *shape[1:]), spec.np_dtype)
        images = (image for block in of_field.part(start, stop).read() for image in block[spec.name])
        for at, image in enumerate(images):
            out[at] = image
        return out

    return LargeArray(spec.np_dtype, shape, read, number=number)
