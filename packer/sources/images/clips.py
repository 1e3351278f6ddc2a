"""Folders of numbered pictures as samples: the frames of a clip are one array, (T, H, W, C).

    000/00000000.png, 000/00000001.png, ..., 001/00000000.png, ...    clips 000 and 001

Frames are found, paired and decoded like single pictures, one at a time, and ordered by their numbers. A clip with a
bad frame is left out as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError, first_few
from packer.format import FieldSpec
from packer.sources.base import LARGE_BYTES, Block, LargeArray, OnBad, Source, common_shape, joined
from packer.sources.files import Found, join
from packer.sources.images.source import BLOCK_BYTES, NAMED, ImageSource, compared
from packer.sources.pairing import pair, stem
from packer.sources.units import by_folder, folder_of, numbers_of, refuse_strays, unit_name


def fields_in_folders(found: Mapping[str, Found]) -> dict[str, Found] | None:
    """Return the fields if pictures have the same names in most folders; None if folders hold numbered pictures.

    `a/rgb.png`, `a/depth.png`, `b/rgb.png` and `b/depth.png` are the fields `rgb` and `depth` of two samples.

    Raises:
        UsageError: several fields are named, and one has pictures of several names in a folder.
    """
    fields: dict[str, Found] = {}
    for name, some in found.items():
        refuse_strays(some.folder, some.files)
        stems = [stem(file) for file in some.files]
        folders = by_folder(stems)
        numbered = [numbers_of([stems[i] for i in places]) is not None for places in folders.values()]
        if all(numbered) or any(
            yes and len(places) > 1 for yes, places in zip(numbered, folders.values(), strict=True)
        ):
            return None
        by_name: dict[str, list[str]] = {}
        for file, path in zip(some.files, stems, strict=True):
            by_name.setdefault(path.rpartition("/")[2], []).append(file)
        if min(map(len, by_name.values())) * 2 < len(folders):
            return None
        if len(by_name) > 1 and len(found) > 1:
            listed = ", ".join(sorted(by_name)[:NAMED])
            pattern = join(some.folder, f"*/{next(iter(by_name))}.*")
            raise UsageError(
                f"{name}={some.folder}: its folders hold pictures of several names ({listed}); name one field with "
                f"a quoted pattern, as in {name}='{pattern}'"
            )
        alone = len(by_name) == 1 and len(found) > 1
        fields |= {name if alone else n: some._replace(files=files) for n, files in by_name.items()}
    return fields


def units_note(source: ImageSource) -> list[str]:
    """Return a sentence if each picture is a sample, but the folders look like samples or fields themselves."""
    folders = by_folder(source.names)
    if "" in folders or min(map(len, folders.values())) < 2:
        return []
    inside = {folder: [source.names[i].rpartition("/")[2] for i in places] for folder, places in folders.items()}
    are_alike = len(folders) > 1 and len(set(map(len, folders.values()))) == 1 and pair(inside, inside).is_whole
    if not are_alike and not all(_are_frames(source, places) for places in folders.values()):
        return []
    return [
        f"each picture is a sample; if each of the {len(folders):,} folders is one (frames of a clip, or a picture "
        "of each field), say `--samples folders`; if each folder is a field, give each as FIELD=FOLDER"
    ]


def _are_frames(source: ImageSource, places: Sequence[int]) -> bool:
    one_size = all((sizes[places] == sizes[places[0]]).all() for sizes in source.sizes.values())
    return one_size and numbers_of([source.names[i] for i in places]) is not None


def clips(frames: ImageSource, broken: Collection[str], on_bad: OnBad) -> ClipSource:
    """Join the frames of each folder.

    Args:
        broken: the folders that hold a bad file, or one without a partner.
        on_bad: called with the error of every clip that cannot be packed; if it returns, the clip is left out.

    Raises:
        SourceError: what `on_bad` raises; no clip is left.
    """
    for name, paths in frames.paths.items():
        refuse_strays(frames.folders[name], paths)
    name, root = next(iter(frames.folders.items()))
    kept: dict[str, list[int]] = {}
    gaps = []
    for folder, places in by_folder(frames.names).items():
        numbers = numbers_of([frames.names[i] for i in places])
        if fault := _fault(frames, places, numbers, broken):
            on_bad(SourceError(f"{fault}; the clip is left out", join(root, folder_of(frames.paths[name][places[0]]))))
            continue
        clip = unit_name(root, folder)
        kept[clip] = places
        steps = np.diff(numbers or [])
        if len(set(steps.tolist())) > 1:
            last = places[int((steps > steps.min()).argmax())]
            gaps.append(f"{clip} (after {frames.paths[name][last].rpartition('/')[2]})")
    if not kept:
        raise SourceError("no clip is left: each has a bad picture, or lacks a partner; mend the files first")
    chosen = frames.take([i for places in kept.values() for i in places])
    edges = np.cumsum([0, *map(len, kept.values())])
    remarks = [*_notes(edges, gaps), *frames.remarks, *compared(chosen)]
    source = ClipSource((), list(kept), chosen, edges, {**frames.origin, "samples": "folders"}, remarks)
    source.fields = tuple(
        FieldSpec(name=spec.name, dtype=spec.dtype, shape=common_shape(source.shapes(spec.name).tolist()))
        for spec in chosen.fields
    )
    return source


def _fault(frames: ImageSource, places: Sequence[int], numbers: Sequence[int] | None, broken: Collection[str]) -> str:
    """Return why these frames are no clip, or the empty string."""
    files = {name: [paths[i] for i in places] for name, paths in frames.paths.items()}
    if any(folder_of(join(frames.folders[name], some[0])) in broken for name, some in files.items()):
        return "has a picture that is bad or has no partner"
    if numbers is None:
        lasts = [file.rpartition("/")[2] for file in next(iter(files.values()))]
        return f"holds pictures that are not numbered alike, such as {lasts[0]} and {lasts[-1]}"
    if len(set(numbers)) < len(numbers):
        return "holds two pictures with the same number"
    for name, some in files.items():
        sizes = frames.sizes[name][places]
        odd = np.flatnonzero((sizes != sizes[0]).any(axis=1))
        if len(odd):
            of_each = [f"{some[i].rpartition('/')[2]} is {sizes[i][0]} x {sizes[i][1]}" for i in (0, int(odd[0]))]
            return f"holds pictures of different sizes ({' and '.join(of_each)})"
    return ""


def _notes(edges: NDArray[np.int64], gaps: list[str]) -> Iterator[str]:
    lengths = np.diff(edges)
    frames = f"{lengths.min():,}" if lengths.min() == lengths.max() else f"{lengths.min():,} to {lengths.max():,}"
    yield f"each folder of numbered pictures is a sample: {len(lengths):,} clips of {frames} frames"
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
        pictures = (picture for block in of_field.part(start, stop).read() for picture in block[spec.name])
        for at, picture in enumerate(pictures):
            out[at] = picture
        return out

    return LargeArray(spec.np_dtype, shape, read, number=number)
