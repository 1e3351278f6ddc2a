"""LMDB folders of PNG pictures, as BasicSR and Real-ESRGAN make them: one field a folder, one sample a key.

    source = open_basicsr({"lr": "DIV2K/lq.lmdb", "hr": "DIV2K/gt.lmdb"})

Partners are found by their keys, as those of files are by their names; the pixels are read and checked as those of PNG
files are.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.format.schema import FieldSpec
from packer.sources.base import HEADERS, Looking, OnBad, not_looking, stop, watched
from packer.sources.files import LMDB_DATA
from packer.sources.images import basicsr_file as lmdb_file
from packer.sources.images import png
from packer.sources.images.basicsr_file import Place
from packer.sources.images.content import check_content
from packer.sources.images.copies import Stored
from packer.sources.images.files import Found
from packer.sources.images.formats import ImageHeader, png_image, png_pixels_of
from packer.sources.images.modes import MAX_PIXELS, ImageOptions
from packer.sources.images.pairing import Pairing, pair
from packer.sources.images.samples import (
    Samples,
    changes,
    field_spec,
    marker_values,
    markers,
    report_partners,
    share_out,
)
from packer.sources.images.source import ImageSource

#: Bytes of a value in which its header is sought first: few pictures have 64 KiB of other things before the pixels.
HEAD_BYTES = 65536

#: Keys are paired as files are, with the suffix that `meta_info.txt` gives them.
SUFFIX = ".png"


def open_basicsr(
    inputs: Mapping[str, str],
    *,
    on_bad: OnBad = stop,
    mode: str | None = None,
    palette: str = "colour",
    max_pixels: int = MAX_PIXELS,
    looking: Looking = not_looking,
) -> LmdbImageSource:
    """The pictures of one or more LMDB folders, partners paired by key.

    Args:
        inputs: by field name a folder with `data.mdb` and `meta_info.txt`.
        on_bad: told of every picture that cannot be packed; where it returns, the sample is left out.
        mode, palette, max_pixels, looking: as for `open_images`.

    Raises:
        UsageError: an option or a field name that cannot be, or one folder for two fields.
        SourceError: a damaged LMDB file or list, no sample left, what `on_bad` raises.
    """
    options = ImageOptions(mode, palette, max_pixels)
    held = {name: lmdb_file.places(folder) for name, folder in inputs.items()}
    found = {name: Found(inputs[name], [key + SUFFIX for key in keys], Counter()) for name, keys in held.items()}
    share_out(found)
    paired = pair({name: some.files for name, some in found.items()})
    report_partners(paired, found, on_bad)
    headers = {name: _Headers(folder, held[name], options, on_bad) for name, folder in inputs.items()}
    samples = _samples(paired, headers, on_bad, looking)
    return LmdbImageSource(
        fields=tuple(field_spec(name, samples, inputs[name]) for name in inputs),
        names=samples.names,
        folders=dict(inputs),
        paths=samples.paths,
        sizes={name: np.array([header[:2] for header in some], np.int32) for name, some in samples.headers.items()},
        options=options,
        origin={"mode": options.mode, "palette": options.palette, "markers": marker_values(paired)},
        remarks=[*(note for some in headers.values() for note in some.notes()), *markers(paired), *changes(samples)],
        places={name: _array([held[name][_key(path)] for path in some]) for name, some in samples.paths.items()},
    )


def _key(path: str) -> str:
    return path.removesuffix(SUFFIX)


def _array(places: list[Place]) -> NDArray[np.int64]:
    return np.array(places, np.int64).reshape(-1, 2)


class _Headers:
    """Reads the headers of one folder, and compares them with what its list says.

    Raises:
        SourceError: what `on_bad` raises of pictures that are listed and not there.
    """

    def __init__(self, folder: str, places: Mapping[str, Place], options: ImageOptions, on_bad: OnBad) -> None:
        self.folder, self._places, self._options = folder, places, options
        self._listed = lmdb_file.listed_sizes(folder)
        for key in self._listed.keys() - places.keys():
            on_bad(SourceError("is listed in meta_info.txt, but the LMDB file has no such key", f"{folder}/{key}"))
        self._unlisted = len(places.keys() - self._listed.keys())
        self._misjudged: list[str] = []

    def notes(self) -> list[str]:
        """What the list and the pictures do not agree in; known when all headers were read."""
        sentences = []
        if self._unlisted:
            sentences.append(f"{self.folder}: {self._unlisted} keys are not in meta_info.txt, and are packed too")
        if self._misjudged:
            count = len(self._misjudged)
            much = f"{count} {'picture has' if count == 1 else 'pictures have'} another size"
            sentences.append(
                f"{self.folder}: {much} (such as {self._misjudged[0]}) than in meta_info.txt; their own is taken"
            )
        return sentences

    def header(self, file: BinaryIO, path: str) -> ImageHeader:
        """The header of the picture at a relative path; raises SourceError where it cannot be packed."""
        key, shown = _key(path), f"{self.folder}/{path}"
        place = self._places[key]
        head = lmdb_file.value(file, place, shown, HEAD_BYTES)
        check_content(head, "PNG", shown)
        try:
            header = png.read_header(io.BytesIO(head), head, shown)
        except SourceError:
            if place.size <= HEAD_BYTES:
                raise
            whole = lmdb_file.value(file, place, shown)
            header = png.read_header(io.BytesIO(whole), whole, shown)
        size = header.height, header.width
        if self._listed.get(key, size) != size:
            self._misjudged.append(key)
        return png_image(header, shown, self._options)


def _samples(paired: Pairing, headers: Mapping[str, _Headers], on_bad: OnBad, looking: Looking) -> Samples:
    """Headers field by field, in one pass over each file; a sample with a bad one is left out of every field."""
    read = {}
    for name, paths in paired.files.items():
        with lmdb_file.opened(headers[name].folder) as file:
            some = watched(paths, f"{HEADERS} of {name}", looking, len(paths))
            read[name] = [_header(headers[name], file, path, on_bad) for path in some]
    good = [i for i in range(len(paired.names)) if all(some[i] for some in read.values())]
    if not good:
        raise SourceError("no sample is left: every one has a bad picture or a partner missing; mend the files first")
    return Samples(
        [paired.names[i] for i in good],
        {name: [paths[i] for i in good] for name, paths in paired.files.items()},
        {name: [header for i in good if (header := some[i])] for name, some in read.items()},
    )


def _header(headers: _Headers, file: BinaryIO, path: str, on_bad: OnBad) -> ImageHeader | None:
    try:
        return headers.header(file, path)
    except SourceError as error:
        on_bad(error)
    return None


@dataclass(eq=False)
class LmdbImageSource(ImageSource):
    """Samples made of one LMDB value a field. Pickles as keys, sizes and places.

    Attributes:
        places: by field, (n, 2) int64: offset and size of every value in its file.
    """

    places: dict[str, NDArray[np.int64]] = field(default_factory=dict)

    kind = "basicsr"

    def part(self, start: int, stop: int) -> LmdbImageSource:
        part = cast(LmdbImageSource, super().part(start, stop))
        part.places = {name: some[start:stop].copy() for name, some in self.places.items()}
        return part

    def files(self) -> list[str]:
        return [f"{self.folders[spec.name]}/{LMDB_DATA}" for spec in self.fields]

    def _stored(self, spec: FieldSpec) -> Stored:
        folder, places = self.folders[spec.name], self.places[spec.name]

        def read(number: int, offset: int, size: int) -> bytes:
            place = Place(int(places[number, 0]) + offset, int(places[number, 1]) - offset)
            with lmdb_file.opened(folder) as file:
                return lmdb_file.value(file, place, self._path(spec.name, number), size)

        return Stored(places[:, 1].tolist(), read)

    def _image(self, spec: FieldSpec, number: int) -> NDArray[Any]:
        path = self._path(spec.name, number)
        with lmdb_file.opened(self.folders[spec.name]) as file:
            data = lmdb_file.value(file, Place(*map(int, self.places[spec.name][number])), path)
        check_content(data[: png.HEAD_BYTES], "PNG", path)
        checked = png.check(data, path)
        if (checked.header.height, checked.header.width) != tuple(self.sizes[spec.name][number]):
            raise _changed(path)
        image = png_pixels_of(checked, path, self.options)
        if image.shape[2] != spec.shape[2] or image.dtype != spec.dtype:
            raise _changed(path)
        return image


def _changed(path: str) -> SourceError:
    return SourceError("is not what it was when its header was read; start again", path)
