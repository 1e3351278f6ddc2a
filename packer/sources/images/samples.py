"""From the files of each field to samples: partners, headers, and what each field is."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.format.schema import FieldSpec
from packer.sources.base import HEADERS, Looking, OnBad, not_looking, watched
from packer.sources.files import join
from packer.sources.images.files import Found, describe
from packer.sources.images.formats import ImageHeader, read_header
from packer.sources.images.modes import ImageOptions
from packer.sources.images.pairing import Pairing, pair, shared_folders, stem

#: Files that an error names; the rest is counted.
NAMED = 5
#: Subfolders that may be meant as a field each.
MOST_FIELDS = 8

_KINDS = {1: "gray", 2: "gray with alpha", 3: "RGB", 4: "RGBA"}


class Samples(NamedTuple):
    """The samples that are left after bad files went: names, and by field relative paths and headers."""

    names: list[str]
    paths: dict[str, list[str]]
    headers: dict[str, list[ImageHeader]]


def share_out(found: dict[str, Found]) -> list[str]:
    """Takes a field's files away from another one that has them all and more, and says so.

    `lr='d/*x4.png' hr='d/*.png'` means by `hr` the other pictures of the folder.

    Raises:
        UsageError: two fields are the same files.
    """
    notes = []
    sets = {field: {join(os.path.realpath(some.folder), file) for file in some.files} for field, some in found.items()}
    for first, second in combinations(sets, 2):
        if sets[first] == sets[second]:
            raise UsageError(f"fields {first!r} and {second!r} are the same files; name other files for one of them")
    for field, mine in sets.items():
        taken = {other: theirs for other, theirs in sets.items() if theirs < mine}
        if taken:
            some = found[field]
            rest = mine.difference(*taken.values())
            folder = os.path.realpath(some.folder)
            found[field] = some._replace(files=[file for file in some.files if join(folder, file) in rest])
            notes.append(
                f"field {field}: {len(mine) - len(rest)} files belong to {' and '.join(taken)} and are left to it"
            )
    return notes


def left_out(found: Mapping[str, Found]) -> list[str]:
    """What was passed over in the folders."""
    return [f"field {field}: left out {describe(some.left_out)}" for field, some in found.items() if some.left_out]


def markers(paired: Pairing) -> list[str]:
    """Which markers were found, and which files are a sample although their names differ."""
    if len(paired.names) == 1 and not _told(paired) and len({stem(*files) for files in paired.files.values()}) > 1:
        files = " and ".join(f"{file} as {field}" for field, (file,) in paired.files.items())
        return [f"there is one file for each field: {files} are taken for one sample, {paired.names[0]!r}"]
    return [f"{told}; samples are named without it" for told in _told(paired)]


def _told(paired: Pairing) -> list[str]:
    """The markers of each field, as `field lr: the names end in 'x4'`."""
    sentences = []
    for field, by_folder in paired.markers.items():
        marked = {folder: str(marker) for folder, marker in by_folder.items() if str(marker)}
        some = [f"{text} in {folder}" if folder else text for folder, text in list(marked.items())[:NAMED]]
        more = f" and so on in {len(marked) - NAMED} more folders" if len(marked) > NAMED else ""
        if some:
            sentences.append(f"field {field}: the names {', '.join(some)}{more}")
    return sentences


def marker_values(paired: Pairing) -> dict[str, Any]:
    """Return the markers as the manifest keeps them: by field, and by folder if every folder has its own."""
    values = {}
    for field, by_folder in paired.markers.items():
        each = {folder: {k: v for k, v in marker._asdict().items() if v} for folder, marker in by_folder.items()}
        values[field] = each.get("", each)
    return values


def report_partners(paired: Pairing, found: Mapping[str, Found], on_bad: OnBad) -> None:
    """Tells `on_bad` of every file without a partner and of every second file of one name."""
    for field, first, second, name in paired.doubles:
        reason = f"this file and {first} would both be sample {name!r} of field {field!r}; rename one or move it away"
        on_bad(SourceError(reason, found[field].path(second)))
    count = sum(map(len, paired.orphans.values()))
    # The first one lists them all: it is the only one that is seen where the first error stops.
    summary = f"; {_list_orphans(paired, count)}" if count > 1 else ""
    tried = _told(paired)
    summary += f"; markers were tried ({'; '.join(tried)})" if tried else "; no marker fits, such as x4 or _LR"
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


def check_one_field(folder: str, paths: Sequence[str], sizes: NDArray[np.integer]) -> None:
    """Refuses a folder given without FIELD= whose subfolders hold partners: pictures of one name, some times as large.

    Args:
        folder: the folder that `paths` count from.
        sizes: height and width of each picture, (n, 2).

    Raises:
        UsageError: with both commands that may be meant.
    """
    subfolders = _subfolders(paths)
    if not subfolders or len(set(map(len, subfolders.values()))) > 1:
        return
    number_of = {path: number for number, path in enumerate(paths)}
    paired = pair({sub: [paths[i].removeprefix(sub) for i in numbers] for sub, numbers in subfolders.items()})
    if any(paired.orphans.values()) or paired.doubles:
        return
    partners = [[number_of[sub + file] for file in files] for sub, files in paired.files.items()]
    sides = np.stack([sizes[numbers] for numbers in partners]).astype(np.int64)
    times = sides // sides.min(axis=0)
    if (times == times[:, :1, :1]).all() and (times * sides.min(axis=0) == sides).all() and times.max() > 1:
        names = " and ".join(sub.rstrip("/") for sub in subfolders)
        raise UsageError(
            f"the folders {names} hold partners, of one name and some times as large: say "
            f"`{_command(folder, subfolders, sizes)}` for a field of each, or "
            f"`packer convert image={folder or '.'} OUT` for one field of all"
        )


def _subfolders(paths: Sequence[str]) -> dict[str, list[int]]:
    """Return the numbers of the paths in each of a few folders that hold them all; {} if it is not a few."""
    shared = shared_folders({path[: path.rfind("/") + 1] for path in paths})
    subfolders: dict[str, list[int]] = {}
    for number, path in enumerate(paths):
        end = path.find("/", len(shared)) + 1
        if not end or len(subfolders) > MOST_FIELDS:
            return {}
        subfolders.setdefault(path[:end], []).append(number)
    return subfolders if 2 <= len(subfolders) <= MOST_FIELDS else {}


def _command(folder: str, subfolders: Mapping[str, Sequence[int]], sizes: NDArray[np.integer]) -> str:
    """Return the command that packs each subfolder as a field, small pictures first."""
    small_first = sorted(subfolders, key=lambda sub: float(sizes[subfolders[sub]].mean()))
    names = [re.sub(r"\W+", "_", sub.rstrip("/").rpartition("/")[2].lower()) for sub in small_first]
    words = [
        shlex.quote(f"{name}={join(folder, sub)}".rstrip("/")) for name, sub in zip(names, small_first, strict=True)
    ]
    return f"packer convert {' '.join(words)} OUT"


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


def field_spec(field: str, samples: Samples, folder: str) -> FieldSpec:
    """What the field is: its common dtype and channels, and its size where all images have one.

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
    subfolders = _subfolders(paths)
    if subfolders and all(len({headers[i][2:4] for i in numbers}) == 1 for numbers in subfolders.values()):
        sizes = np.array([header[:2] for header in headers])
        advice = f"if each folder is a field, say `{_command(folder, subfolders, sizes)}`; else {advice}"
    return SourceError(f"field {field!r}: images of one field must be of one kind, but there are {listed}; {advice}")
