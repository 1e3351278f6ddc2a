"""Partners by name: which files of several fields make one sample.

Partners have the same relative path without suffix, but for a marker that all names of a field share:
`0001x4` and `0001`, `img_LR` and `img_HR`, `LR/0001` and `HR/0001`. The name of a sample is the path
without the marker. This module knows strings alone: it opens no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from natsort import natsorted

from packer.sources.images.pairing_single import is_pair, without_scales
from packer.sources.images.pairing_votes import vote_prefix, vote_suffix


class Marker(NamedTuple):
    """What is taken off a path: its first folders, its last folders, and the two ends of its last part."""

    first_folders: str = ""
    last_folders: str = ""
    prefix: str = ""
    suffix: str = ""

    def name_of(self, stem: str) -> str | None:
        """The path without the marker; None where it does not carry it, or is nothing else."""
        if self == _NOTHING:
            return stem
        folders, name = _split(stem)
        outer = len(self.first_folders) + len(self.last_folders) <= len(folders)
        if not (outer and folders.startswith(self.first_folders) and folders.endswith(self.last_folders)):
            return None
        if not (name.startswith(self.prefix) and name.endswith(self.suffix)):
            return None
        core = name[len(self.prefix) : len(name) - len(self.suffix)]
        kept = folders[len(self.first_folders) : len(folders) - len(self.last_folders)]
        return kept + core if core else None

    def __str__(self) -> str:
        parts = [
            self.first_folders and f"begin with the folder {self.first_folders!r}",
            self.last_folders and f"lie in a folder {self.last_folders!r}",
            self.prefix and f"begin with {self.prefix!r}",
            self.suffix and f"end in {self.suffix!r}",
        ]
        return " and ".join(part for part in parts if part)


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


def pair(files: Mapping[str, Sequence[str]]) -> Pairing:
    """Pairs relative paths (with suffix, slashes between folders) of one or more fields.

    If one marker a field leaves files without partners, every folder may have markers of its own. One file for each
    field is one sample, whatever their names are.
    """
    stems = {field: [stem(file) for file in some] for field, some in files.items()}
    paired = _pair_with(files, {field: {"": marker} for field, marker in find_markers(stems).items()})
    if not any(paired.orphans.values()):
        return paired
    if all(len(some) == 1 for some in files.values()):
        unmarked = {field: {"": Marker()} for field in files}
        name = next(iter(stems.values()))[0]
        return Pairing([name], dict(map(_listed, files.items())), unmarked, {field: [] for field in files}, [])
    for outer in _folder_markers(stems):
        by_folder = _pair_with(files, _folder_by_folder(stems, outer), outer)
        if len(by_folder.names) > len(paired.names):
            paired = by_folder
    return paired


def _listed(item: tuple[str, Sequence[str]]) -> tuple[str, list[str]]:
    return item[0], list(item[1])


def _pair_with(
    files: Mapping[str, Sequence[str]],
    markers: dict[str, dict[str, Marker]],
    outer: Mapping[str, Marker] | None = None,
) -> Pairing:
    """Pairs files by what is left of their names without markers; `outer` takes off what stands before the folders."""
    named: dict[str, dict[str, str]] = {}
    unmarked: dict[str, list[str]] = {}
    doubles = []
    for field, some in files.items():
        named[field], unmarked[field] = {}, []
        for file in some:
            folder = _folder(stem(file), outer[field]) if outer else ""
            name = markers[field].get(folder, _NOTHING).name_of(stem(file))
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
    """The folders of a path that are left without the marker."""
    inner = outer.name_of(name)
    return name if inner is None else _split(inner)[0]


def _folder_by_folder(stems: Mapping[str, Sequence[str]], outer: Mapping[str, Marker]) -> dict[str, dict[str, Marker]]:
    """The markers of each folder that has files of all fields, below the folders that `outer` takes off."""
    folders: dict[str, dict[str, list[str]]] = {}
    for field, some in stems.items():
        for name in _stripped(some, outer[field]):
            folders.setdefault(_split(name)[0], {}).setdefault(field, []).append(name)
    markers: dict[str, dict[str, Marker]] = {field: {} for field in stems}
    for folder, names in folders.items():
        if len(names) == len(stems):
            for field, marker in find_markers({field: names[field] for field in stems}).items():
                markers[field][folder] = outer[field]._replace(prefix=marker.prefix, suffix=marker.suffix)
    return markers


def stem(file: str) -> str:
    """The path without its last suffix."""
    return file[: file.rindex(".")] if "." in file.rpartition("/")[2] else file


def find_markers(stems: Mapping[str, Sequence[str]]) -> dict[str, Marker]:
    """The markers under which most names have partners in all fields; none where names agree as they are.

    Markers under which one name alone has partners are taken only where these are no partners by chance.
    """
    best = dict.fromkeys(stems, Marker())
    if len(stems) == 1:
        return best
    most, wanted = len(_common(stems, best)), max(len(some) for some in stems.values())
    for markers in _candidates(stems):
        if most == wanted:
            break
        common = _common(stems, markers)
        if (
            len(common) > most
            and _tell_apart(common)
            and (len(common) > 1 or _is_pair(min(common), markers, alone=wanted == 1))
        ):
            best, most = markers, len(common)
    return best


def _common(stems: Mapping[str, Sequence[str]], markers: Mapping[str, Marker]) -> set[str]:
    """The names that all fields have."""
    stripped = [{markers[field].name_of(name) for name in some} for field, some in stems.items()]
    return {name for name in set.intersection(*stripped) if name is not None}


def _tell_apart(names: set[str]) -> bool:
    """Whether names hold more than scales: the `x2` that is left of `baby_LR_x2` says nothing of the picture."""
    return any(any(map(str.isalnum, without_scales(_split(name)[1]))) for name in names)


def _is_pair(name: str, markers: Mapping[str, Marker], *, alone: bool) -> bool:
    taken = [(m.first_folders + m.last_folders + m.prefix, m.suffix) for m in markers.values()]
    return is_pair(_split(name)[1], taken, alone=alone)


def _candidates(stems: Mapping[str, Sequence[str]]) -> Iterator[dict[str, Marker]]:
    """Markers worth a try, the plainest first."""
    for outer in _folder_markers(stems):
        yield outer
        inner = {field: _stripped(some, outer[field]) for field, some in stems.items()}
        if not all(inner.values()):
            continue
        for ends in (_suffixes(inner), _prefixes(inner), _both_ends(inner)):
            yield {field: outer[field]._replace(prefix=p, suffix=s) for field, (p, s) in ends.items()}


def _folder_markers(stems: Mapping[str, Sequence[str]]) -> Iterator[dict[str, Marker]]:
    """No folders taken off; then the ones that a whole field begins with; then the last ones it shares."""
    folders = {field: {_split(name)[0] for name in some} for field, some in stems.items()}
    yield dict.fromkeys(stems, Marker())
    if len(set(map(frozenset, folders.values()))) > 1:
        yield {field: Marker(first_folders=shared_folders(some)) for field, some in folders.items()}
        yield {field: Marker(last_folders=_shared_last(some)) for field, some in folders.items()}


def _suffixes(names: Mapping[str, list[str]]) -> dict[str, tuple[str, str]]:
    return {field: ("", suffix) for field, suffix in vote_suffix(names).items()}


def _prefixes(names: Mapping[str, list[str]]) -> dict[str, tuple[str, str]]:
    return {field: (prefix, "") for field, prefix in vote_prefix(names).items()}


def _both_ends(names: Mapping[str, list[str]]) -> dict[str, tuple[str, str]]:
    """`LR_0001x4` and `HR_0001`: the words that names of a field begin with go first, then the suffix is sought."""
    prefixes = {field: _first_word(_shared_letters(some)) for field, some in names.items()}
    inner = {field: _stripped(some, Marker(prefix=prefixes[field])) for field, some in names.items()}
    if not all(inner.values()):
        return dict.fromkeys(names, ("", ""))
    return {field: (prefixes[field], suffix) for field, suffix in vote_suffix(inner).items()}


def _stripped(stems: Iterable[str], marker: Marker) -> list[str]:
    return [name for name in map(marker.name_of, stems) if name is not None]


def _split(path: str) -> tuple[str, str]:
    """Folders (with the last slash) and the last part of a path."""
    cut = path.rfind("/") + 1
    return path[:cut], path[cut:]


def _shared_letters(paths: Iterable[str]) -> str:
    """The letters that the last parts of all paths begin with."""
    lasts = [_split(path)[1] for path in paths]
    low, high = min(lasts), max(lasts)
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    return low[:same]


def _first_word(letters: str) -> str:
    """Up to and with the first separator: `LR_` of `LR_000`."""
    cut = next((i for i, letter in enumerate(letters) if not letter.isalnum()), -1)
    return letters[: cut + 1]


def shared_folders(folders: Iterable[str]) -> str:
    """The first folders that all paths share: `X4/` of `X4/a/` and `X4/b/`."""
    parts = [path.split("/")[:-1] for path in folders]
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return "".join(f"{part}/" for part in shared)


def _shared_last(folders: Iterable[str]) -> str:
    """The last folders that all paths share: `hr/` of `a/hr/` and `b/hr/`."""
    turned = shared_folders("".join(f"{part}/" for part in reversed(path.split("/")[:-1])) for path in folders)
    return "".join(f"{part}/" for part in reversed(turned.split("/")[:-1]))
