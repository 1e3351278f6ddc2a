"""From the files of each field to samples: partners, headers, and what each field is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from packer.errors import SourceError, UsageError
from packer.format.schema import FieldSpec
from packer.sources.base import HEADERS, Looking, OnBad, not_looking, watched
from packer.sources.images.files import Found, describe
from packer.sources.images.formats import ImageHeader, read_header
from packer.sources.images.modes import ImageOptions
from packer.sources.images.pairing import Pairing

#: Files that an error names; the rest is counted.
NAMED = 5

_KINDS = {1: "gray", 2: "gray with alpha", 3: "RGB", 4: "RGBA"}


class Samples(NamedTuple):
    """The samples that are left after bad files went: names, and by field relative paths and headers."""

    names: list[str]
    paths: dict[str, list[str]]
    headers: dict[str, list[ImageHeader]]


def share_out(found: dict[str, Found]) -> list[str]:
    """Takes a field's files away from another one that has them all and more, and says so.

    `lr='d/*x4.png' hr='d/*.png'` means by `hr` the other pictures of the folder.
    """
    notes = []
    sets = {field: {some.path(file) for file in some.files} for field, some in found.items()}
    for field, mine in sets.items():
        taken = {other: theirs for other, theirs in sets.items() if theirs < mine}
        if taken:
            rest = mine.difference(*taken.values())
            some = found[field]
            found[field] = some._replace(files=[file for file in some.files if some.path(file) in rest])
            notes.append(
                f"field {field}: {len(mine) - len(rest)} files belong to {' and '.join(taken)} and are left to it"
            )
        notes += [
            f"fields {other} and {field} are the same files" for other in sets if other < field and sets[other] == mine
        ]
    return notes


def left_out(found: Mapping[str, Found]) -> list[str]:
    """What was passed over in the folders."""
    return [f"field {field}: left out {describe(some.left_out)}" for field, some in found.items() if some.left_out]


def markers(paired: Pairing) -> list[str]:
    """Which markers were found."""
    marked = ((field, str(marker)) for field, marker in paired.markers.items())
    return [f"field {field}: the names {text}; samples are named without it" for field, text in marked if text]


def report_partners(paired: Pairing, found: Mapping[str, Found], on_bad: OnBad) -> None:
    """Tells `on_bad` of every file without a partner and of every second file of one name."""
    for field, first, second, name in paired.doubles:
        reason = f"this file and {first} would both be sample {name!r} of field {field!r}; rename one or move it away"
        on_bad(SourceError(reason, found[field].path(second)))
    count = sum(map(len, paired.orphans.values()))
    # The first one lists them all: it is the only one that is seen where the first error stops.
    summary = f"; {_list_orphans(paired, count)}" if count > 1 else ""
    for field, files in paired.orphans.items():
        others = " and ".join(repr(other) for other in paired.orphans if other != field)
        for file in files:
            reason = f"field {field!r} has this file, but {others} no partner of that name{summary}"
            on_bad(SourceError(f"{reason}; add the partner or move the file away", found[field].path(file)))
            summary = ""


def _list_orphans(paired: Pairing, count: int) -> str:
    lists = []
    for field, files in paired.orphans.items():
        more = f" and {len(files) - NAMED} more" if len(files) > NAMED else ""
        if files:
            lists.append(f"{field}: {', '.join(files[:NAMED])}{more}")
    return f"{count} files have no partner ({'; '.join(lists)})"


def read_headers(
    paired: Pairing, found: Mapping[str, Found], options: ImageOptions, on_bad: OnBad, looking: Looking = not_looking
) -> Samples:
    """Headers of all files; a sample with a bad one is left out of every field.

    Raises:
        SourceError: what `on_bad` raises, or no sample is left.
    """
    samples = Samples([], {field: [] for field in found}, {field: [] for field in found})
    for number, name in enumerate(watched(paired.names, HEADERS, looking, len(paired.names))):
        paths = {field: files[number] for field, files in paired.files.items()}
        headers = {field: _header(found[field].path(path), options, on_bad) for field, path in paths.items()}
        good = {field: header for field, header in headers.items() if header}
        if len(good) == len(found):
            samples.names.append(name)
            for field, header in good.items():
                samples.paths[field].append(paths[field])
                samples.headers[field].append(header)
    if not samples.names:
        raise SourceError("no sample is left: every one has a bad file or a partner missing; mend the files first")
    return samples


def _header(path: str, options: ImageOptions, on_bad: OnBad) -> ImageHeader | None:
    try:
        return read_header(path, options)
    except SourceError as error:
        on_bad(error)
    return None


def changes(samples: Samples) -> list[str]:
    """What is not kept as it is in the files, with how many files."""
    sentences = []
    for field, headers in samples.headers.items():
        notes = Counter(header.note for header in headers if header.note)
        sentences += [
            f"field {field}, {count} {'file' if count == 1 else 'files'}: {note}" for note, count in notes.items()
        ]
    return sentences


def field_spec(field: str, samples: Samples) -> FieldSpec:
    """What the field is: its common dtype and channels, and its size where all images have one.

    Raises:
        SourceError: the images differ in channels or dtype.
        UsageError: the field cannot have this name.
    """
    headers = samples.headers[field]
    kinds = Counter((header.channels, header.dtype) for header in headers)
    if len(kinds) > 1:
        raise _mixed(field, kinds, headers, samples.paths[field])
    ((channels, dtype),) = kinds
    heights, widths = {header.height for header in headers}, {header.width for header in headers}
    shape = (*(side.pop() if len(side) == 1 else None for side in (heights, widths)), channels)
    try:
        return FieldSpec(name=field, dtype=dtype, kind="image", shape=shape)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _mixed(
    field: str, kinds: Counter[tuple[int, str]], headers: Sequence[ImageHeader], paths: Sequence[str]
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
    return SourceError(f"field {field!r}: images of one field must be of one kind, but there are {listed}; {advice}")
