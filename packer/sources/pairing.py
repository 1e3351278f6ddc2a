"""Partners by name: which files of several fields make one sample, and what is said of those that make none.

Partners have the same relative path without suffix, but for a marker that all names of a field share, or all of a
folder: `0001x4` and `0001`, `img_LR` and `img_HR`, `LR/0001` and `HR/0001`. The name of a sample is the path without
the marker. This module works with strings only; it opens no file.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from natsort import natsorted
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError, first_few
from packer.sources.base import OnBad
from packer.sources.files import Found, join
from packer.sources.markers import Marker, find_markers, folder_markers, shared_folders, split, stripped
from packer.sources.units import folder_of, unit_name, upwards

#: Files that an error names; the rest is counted.
NAMED = 5
#: Subfolders that may be meant as a field each.
MOST_FIELDS = 8

_NOTHING = Marker()


class Pairing(NamedTuple):
    """Samples in natural order of their names.

    Attributes:
        names: name of every sample.
        files: by field, the file of every sample.
        markers: by field, what was taken off, by the folder whose names carry it; the folder "" stands for all.
        orphans: by field, files that some other field has no partner for.
        doubles: field, first file, second file and the one name that both would have; the second is left out.
    """

    names: list[str]
    files: dict[str, list[str]]
    markers: dict[str, dict[str, Marker]]
    orphans: dict[str, list[str]]
    doubles: list[tuple[str, str, str, str]]


def stem(file: str) -> str:
    """Return the path without its last suffix."""
    return file[: file.rindex(".")] if "." in file.rpartition("/")[2] else file


def partners(
    found: Mapping[str, Found], unit: str, on_bad: OnBad, listed: str | None = None
) -> tuple[Pairing, list[str]]:
    """Return the samples that files of one or more fields are, and sentences for the plan.

    Args:
        unit: `files`: partners have the same path; `folders`: they lie in the same folder.
        on_bad: told of every file without a partner and of every second file of one name.
        listed: a file that lists the samples to take, in their order; see `_chosen`.
    """
    root = next(iter(found.values())).folder

    def name_of(file: str) -> str:
        return stem(file) if unit == "files" else unit_name(root, folder_of(file))

    paired = pair({field: some.files for field, some in found.items()}, name_of)
    left_out: list[str] = []
    if listed is not None:
        paired, left_out = _chosen(paired, listed)
    _report(paired, found, on_bad)
    return paired, left_out + _remarks(paired)


def pair(files: Mapping[str, Sequence[str]], name_of: Callable[[str], str] = stem) -> Pairing:
    """Pair relative paths (with suffix, slashes between folders) of one or more fields.

    If one marker a field leaves files without partners, every folder may have markers of its own. One file for each
    field is one sample, whatever their names are.

    Args:
        name_of: gives what partners have in common, but for markers, of the path of a file.
    """
    stems = {field: [name_of(file) for file in some] for field, some in files.items()}
    paired = _pair_with(files, stems, {field: {"": marker} for field, marker in find_markers(stems).items()})
    if not any(paired.orphans.values()):
        return paired
    if all(len(some) == 1 for some in files.values()):
        (name,) = next(iter(stems.values()))
        listed = {field: list(some) for field, some in files.items()}
        return Pairing([name], listed, {field: {"": _NOTHING} for field in files}, {field: [] for field in files}, [])
    for outer in folder_markers(stems):
        by_folder = _pair_with(files, stems, _folder_by_folder(stems, outer), outer)
        if len(by_folder.names) > len(paired.names):
            paired = by_folder
    return paired


def _chosen(paired: Pairing, path: str) -> tuple[Pairing, list[str]]:
    """Return the samples that a text file lists, in its order, and a sentence on what that leaves out.

    Each line, or its first word, is the name of a sample, with the suffix of its file or without, or of a folder of
    samples: the lists of BasicSR, with lines such as `0001_s001.png (480,480,3)`. What is not listed is not looked at.

    Raises:
        UsageError: the list cannot be read, or names what is no sample, or a sample twice.
    """
    try:
        lines = Path(path).read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"--list {path} cannot be read: {reason}") from None
    numbers: dict[str, list[int]] = {}
    for number, name in enumerate(paired.names):
        for held in upwards(name):
            numbers.setdefault(held, []).append(number)
    order, unknown = list[int](), list[str]()
    for line in filter(None, map(str.strip, lines)):
        word = line.split()[0]
        found = next((numbers[text] for text in (line, stem(line), word, stem(word)) if text in numbers), [])
        order += found
        unknown += [] if found else [word]
    if unknown or not order:
        what = f"lists what is not a sample, or lacks a partner: {first_few(unknown)}" if unknown else "lists no sample"
        raise UsageError(f"--list {path} {what}; there are samples such as {', '.join(paired.names[:NAMED])}")
    if len(set(order)) < len(order):
        ((twice, _),) = Counter(order).most_common(1)
        raise UsageError(f"--list {path} names {paired.names[twice]} twice; remove one of the lines")
    left = len(paired.names) - len(order)
    note = f"{left:,} {'sample is' if left == 1 else 'samples are'} not in --list {path} and are not packed"
    names = [paired.names[number] for number in order]
    taken = set(names)
    listed = paired._replace(
        names=names,
        files={field: [some[number] for number in order] for field, some in paired.files.items()},
        orphans={field: [] for field in paired.orphans},
        doubles=[double for double in paired.doubles if double[3] in taken],
    )
    return listed, [note] if left else []


def _pair_with(
    files: Mapping[str, Sequence[str]],
    stems: Mapping[str, Sequence[str]],
    markers: dict[str, dict[str, Marker]],
    outer: Mapping[str, Marker] | None = None,
) -> Pairing:
    """Pair files by what is left of their names without markers; `outer` takes off what stands before the folders."""
    named: dict[str, dict[str, str]] = {}
    unmarked: dict[str, list[str]] = {}
    doubles = []
    for field, some in files.items():
        named[field], unmarked[field] = {}, []
        for file, path in zip(some, stems[field], strict=True):
            name = markers[field].get(_folder(path, outer[field]) if outer else "", _NOTHING).name_of(path)
            if name is None:
                unmarked[field].append(file)
            elif name in named[field]:
                doubles.append((field, named[field][name], file, name))
            else:
                named[field][name] = file
    common = set.intersection(*(set(by_name) for by_name in named.values()))
    # Sorted twice: natural order holds `01` and `1` equal, and the order must be the same every time.
    names = natsorted(sorted(common))
    orphans = {
        field: natsorted([*unmarked[field], *(file for name, file in by_name.items() if name not in common)])
        for field, by_name in named.items()
    }
    chosen = {field: [by_name[name] for name in names] for field, by_name in named.items()}
    return Pairing(names, chosen, markers, orphans, doubles)


def _folder(name: str, outer: Marker) -> str:
    """Return the folders of a path that are left without the marker."""
    inner = outer.name_of(name)
    return name if inner is None else split(inner)[0]


def _folder_by_folder(stems: Mapping[str, Sequence[str]], outer: Mapping[str, Marker]) -> dict[str, dict[str, Marker]]:
    """Return the markers of each folder that has files of all fields, below the folders that `outer` takes off."""
    folders: dict[str, dict[str, list[str]]] = {}
    for field, some in stems.items():
        for name in stripped(some, outer[field]):
            folders.setdefault(split(name)[0], {}).setdefault(field, []).append(name)
    markers: dict[str, dict[str, Marker]] = {field: {} for field in stems}
    for folder, names in folders.items():
        if len(names) == len(stems):
            for field, marker in find_markers({field: names[field] for field in stems}).items():
                markers[field][folder] = outer[field]._replace(prefix=marker.prefix, suffix=marker.suffix)
    return markers


def share_out(found: dict[str, Found]) -> list[str]:
    """Take a field's files away from another one that has them all and more, and say so.

    `lr='d/*x4.png' hr='d/*.png'` means by `hr` the other pictures of the folder.

    Raises:
        UsageError: two fields are the same files.
    """
    notes = []
    folders = {field: os.path.realpath(some.folder) for field, some in found.items()}
    sets = {field: {join(folders[field], file) for file in some.files} for field, some in found.items()}
    for first, second in combinations(sets, 2):
        if sets[first] == sets[second]:
            raise UsageError(f"fields {first!r} and {second!r} are the same files; name other files for one of them")
    for field, mine in sets.items():
        taken = {other: theirs for other, theirs in sets.items() if theirs < mine}
        if taken:
            some = found[field]
            rest = mine.difference(*taken.values())
            found[field] = some._replace(files=[file for file in some.files if join(folders[field], file) in rest])
            notes.append(f"field {field}: {len(mine) - len(rest):,} files also fit {' and '.join(taken)}, and go there")
    return notes


def _remarks(paired: Pairing) -> list[str]:
    """Say which markers were found, and which files are a sample although their names differ."""
    if len(paired.names) == 1 and not _marked(paired) and len({stem(*files) for files in paired.files.values()}) > 1:
        files = " and ".join(f"{file} as {field}" for field, (file,) in paired.files.items())
        return [f"there is one file for each field: {files} are taken for one sample, {paired.names[0]!r}"]
    return [f"{sentence}; samples are named without it" for sentence in _marked(paired)]


def _marked(paired: Pairing) -> list[str]:
    """Return the markers of each field, as `field lr: the names end in 'x4'`."""
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


def _report(paired: Pairing, found: Mapping[str, Found], on_bad: OnBad) -> None:
    """Tell `on_bad` of every file without a partner and of every second file of one name."""
    for field, first, second, name in paired.doubles:
        reason = f"this file and {first} would both be sample {name!r} of field {field!r}; rename one or move it away"
        on_bad(SourceError(reason, found[field].path(second)))
    count = sum(map(len, paired.orphans.values()))
    lists = [f"{field}: {first_few(files)}" for field, files in paired.orphans.items() if files]
    # The first one lists them all: it is the only one that is seen if the first error stops.
    summary = f"; {count:,} files have no partner ({'; '.join(lists)})" if count > 1 else ""
    tried = _marked(paired)
    summary += (
        f"; names were compared without their markers ({'; '.join(tried)})"
        if tried
        else "; names share no marker such as x4 or _LR"
    )
    for field, files in paired.orphans.items():
        others = " and ".join(repr(other) for other in paired.orphans if other != field)
        for file in files:
            reason = f"field {field!r} has this file, but there is no partner of that name in {others}{summary}"
            on_bad(SourceError(f"{reason}; add the partner or move the file away", found[field].path(file)))
            summary = ""


def check_one_field(folder: str, paths: Sequence[str], sizes: NDArray[np.integer], more: str) -> None:
    """Refuse a folder given without FIELD= whose subfolders hold partners: the same names, in different sizes.

    Args:
        folder: the folder that `paths` count from.
        sizes: height and width of each picture, (n, 2).
        more: options that were given, which the commands repeat.

    Raises:
        UsageError: with both commands that may be meant.
    """
    subfolders = subfolders_of(paths)
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
            f"the folders {names} hold partners: pictures of the same names in different sizes. Say "
            f"`{field_command(folder, subfolders, sizes)}{more}` to make a field of each folder, or "
            f"`packer convert image={folder or '.'} OUT{more}` to make one field of all"
        )


def subfolders_of(paths: Sequence[str]) -> dict[str, list[int]]:
    """Return the numbers of the paths in each of a few folders that hold them all; {} if it is not a few."""
    shared = shared_folders({split(path)[0] for path in paths})
    subfolders: dict[str, list[int]] = {}
    for number, path in enumerate(paths):
        end = path.find("/", len(shared)) + 1
        if not end or len(subfolders) > MOST_FIELDS:
            return {}
        subfolders.setdefault(path[:end], []).append(number)
    return subfolders if 2 <= len(subfolders) <= MOST_FIELDS else {}


def field_command(folder: str, subfolders: Mapping[str, Sequence[int]], sizes: NDArray[np.integer]) -> str:
    """Return the command that packs each subfolder as a field, small pictures first."""
    small_first = sorted(subfolders, key=lambda sub: float(sizes[subfolders[sub]].mean()))
    names = [re.sub(r"\W+", "_", sub.rstrip("/").rpartition("/")[2].lower()) for sub in small_first]
    words = [
        shlex.quote(f"{name}={join(folder, sub)}".rstrip("/")) for name, sub in zip(names, small_first, strict=True)
    ]
    return f"packer convert {' '.join(words)} OUT"
