"""Markers: what the names of a field share beyond what partners have in common, as `x4` of `0001x4` and `0001`.

Names vote. `0001x4` and a name `0001` of the other field agree in `0001`: one vote for the markers `x4` and nothing.
The markers with most votes win, and the shorter ones if votes are equal, so one stray file changes nothing. Only a
spread of names votes, which is enough, and quick for a million of them.

A pair that is the only one is nobody's vote: two names agree in some letters by chance. Numbers say which picture it
is: `0801_LR` and `0001_HR` are no pair although both begin with a zero, and neither are `2020-10_hr` and `2020-19_lr`.
Scales say how large it is: `0801x4` and `0801` are one.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

#: Names that vote, and partners looked at for each beginning of a name.
_VOTERS = 64
_LOOKED_AT = 64

_SCALE = re.compile(r"[xX](?:[23468]|16)(?!\d)|[23468][xX](?![^\W_])")
_NUMBER = re.compile(r"([^\W\d_]*)(\d+)")
_SEPARATORS = "_-. "


class Marker(NamedTuple):
    """What is taken off a path: its first folders, its last folders, and the two ends of its last part."""

    first_folders: str = ""
    last_folders: str = ""
    prefix: str = ""
    suffix: str = ""

    def name_of(self, stem: str) -> str | None:
        """Return the path without the marker; None if it does not carry it, or is nothing else."""
        if self == _NOTHING:
            return stem
        folders, name = split(stem)
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


def find_markers(stems: Mapping[str, Sequence[str]]) -> dict[str, Marker]:
    """Return the markers under which most names have partners in all fields; none if names agree as they are.

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
    """Return the names that all fields have."""
    stripped = [{markers[field].name_of(name) for name in some} for field, some in stems.items()]
    return {name for name in set.intersection(*stripped) if name is not None}


def _tell_apart(names: set[str]) -> bool:
    """Return whether names hold more than scales: the `x2` of `baby_LR_x2` says nothing of the picture."""
    return any(any(map(str.isalnum, without_scales(split(name)[1]))) for name in names)


def _is_pair(name: str, markers: Mapping[str, Marker], *, alone: bool) -> bool:
    taken = [(m.first_folders + m.last_folders + m.prefix, m.suffix) for m in markers.values()]
    return is_pair(split(name)[1], taken, alone=alone)


def _candidates(stems: Mapping[str, Sequence[str]]) -> Iterator[dict[str, Marker]]:
    """Yield markers worth a try, the plainest first."""
    for outer in folder_markers(stems):
        yield outer
        inner = {field: stripped(some, outer[field]) for field, some in stems.items()}
        if not all(inner.values()):
            continue
        for ends in (_suffixes(inner), _prefixes(inner), _both_ends(inner)):
            yield {field: outer[field]._replace(prefix=p, suffix=s) for field, (p, s) in ends.items()}


def folder_markers(stems: Mapping[str, Sequence[str]]) -> Iterator[dict[str, Marker]]:
    """Yield no folders taken off; then the ones that a whole field begins with; then the last ones it shares."""
    folders = {field: {split(name)[0] for name in some} for field, some in stems.items()}
    yield dict.fromkeys(stems, Marker())
    if len(set(map(frozenset, folders.values()))) > 1:
        yield {field: Marker(first_folders=shared_folders(some)) for field, some in folders.items()}
        yield {field: Marker(last_folders=_shared_last(some)) for field, some in folders.items()}


def _suffixes(names: Mapping[str, list[str]]) -> dict[str, tuple[str, str]]:
    return {field: ("", suffix) for field, suffix in vote_suffix(names).items()}


def _prefixes(names: Mapping[str, list[str]]) -> dict[str, tuple[str, str]]:
    return {field: (prefix, "") for field, prefix in vote_prefix(names).items()}


def _both_ends(names: Mapping[str, list[str]]) -> dict[str, tuple[str, str]]:
    """Take the words that names of a field begin with, then seek the suffix: `LR_0001x4` and `HR_0001`."""
    prefixes = {field: _first_word(_shared_letters(some)) for field, some in names.items()}
    inner = {field: stripped(some, Marker(prefix=prefixes[field])) for field, some in names.items()}
    if not all(inner.values()):
        return dict.fromkeys(names, ("", ""))
    return {field: (prefixes[field], suffix) for field, suffix in vote_suffix(inner).items()}


def stripped(stems: Iterable[str], marker: Marker) -> list[str]:
    return [name for name in map(marker.name_of, stems) if name is not None]


def split(path: str) -> tuple[str, str]:
    """Return the folders (with the last slash) and the last part of a path."""
    cut = path.rfind("/") + 1
    return path[:cut], path[cut:]


def _shared_letters(paths: Iterable[str]) -> str:
    """Return the letters that the last parts of all paths begin with."""
    lasts = [split(path)[1] for path in paths]
    low, high = min(lasts), max(lasts)
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    return low[:same]


def _first_word(letters: str) -> str:
    """Return what stands up to and with the first separator: `LR_` of `LR_000`."""
    cut = next((i for i, letter in enumerate(letters) if not letter.isalnum()), -1)
    return letters[: cut + 1]


def shared_folders(folders: Iterable[str]) -> str:
    """Return the first folders that all paths share: `X4/` of `X4/a/` and `X4/b/`."""
    parts = [path.split("/")[:-1] for path in folders]
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return "".join(f"{part}/" for part in shared)


def _shared_last(folders: Iterable[str]) -> str:
    """Return the last folders that all paths share: `hr/` of `a/hr/` and `b/hr/`."""
    turned = shared_folders("".join(f"{part}/" for part in reversed(path.split("/")[:-1])) for path in folders)
    return "".join(f"{part}/" for part in reversed(turned.split("/")[:-1]))


def vote_suffix(names: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return by field what the last parts of its paths end in, beyond what partners share; never a part of a number.

    With the marker `801_LR`, `img_0801_LR` would be a partner of `img_0001_HR`.
    """
    markers = _endings(names)
    cut = any(marker[:1].isdigit() and _behind_digits(marker, names[field]) for field, marker in markers.items())
    return dict.fromkeys(names, "") if cut else markers


def vote_prefix(names: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return by field what the last parts of its paths begin with, beyond what partners share.

    Of numbers it takes no part either, but a scale may stand right before one: `x2` of `x20001`.
    """
    turned = {field: [_turn(name) for name in some] for field, some in names.items()}
    markers = {field: marker[::-1] for field, marker in _endings(turned).items()}
    cut = any(
        without_scales(marker)[-1:].isdigit() and _behind_digits(marker[::-1], turned[field])
        for field, marker in markers.items()
    )
    return dict.fromkeys(names, "") if cut else markers


def _behind_digits(marker: str, names: Sequence[str]) -> bool:
    """Return whether a name that ends in the marker has a digit before it."""
    return any(name.endswith(marker) and name[: -len(marker)][-1:].isdigit() for name in names)


def _turn(path: str) -> str:
    cut = path.rfind("/") + 1
    return path[:cut] + path[cut:][::-1]


def _endings(names: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return by field the marker that won; it may begin within a number, but is none itself."""
    reference = min(names, key=lambda field: sum(map(len, names[field])) / len(names[field]))
    won = {field: _vote(names[reference], some) for field, some in names.items() if field != reference}
    longest = max((mine for mine, _ in won.values()), key=len)
    # A field whose partners agreed further than the longest marker gives back the difference.
    markers = {field: longest[: len(longest) - len(mine)] + theirs for field, (mine, theirs) in won.items()}
    markers[reference] = longest
    markers = _whole_words({field: markers[field] for field in names}, names[reference], longest)
    # Numbers are what samples differ in: `0011` and `0012` are no partners with the markers `1` and `2`.
    return dict.fromkeys(names, "") if any(map(str.isdigit, markers.values())) else markers


def _vote(mine: Sequence[str], theirs: Sequence[str]) -> tuple[str, str]:
    """Return the endings, of one field and of the other, that most names agree without."""
    votes: Counter[tuple[str, str]] = Counter()
    ordered = sorted(theirs)
    for name in mine[:: max(1, len(mine) // _VOTERS)]:
        for length in range(len(name), name.rfind("/") + 1, -1):
            first = bisect_left(ordered, name[:length])
            for other in ordered[first : first + _LOOKED_AT]:
                if not other.startswith(name[:length]):
                    break
                if "/" not in other[length:]:
                    votes[name[length:], other[length:]] += 1
    if not votes:
        return "", ""
    return min(votes, key=lambda pair: (-votes[pair], len(pair[0]) + len(pair[1]), pair))


def _whole_words(markers: dict[str, str], names: Sequence[str], marker: str) -> dict[str, str]:
    """Return the markers from the start of a word: `_x2` and `_x4`, not `2` and `4`; `_HR`, not `HR`."""
    cores = [name[: len(name) - len(marker)] for name in names if name.endswith(marker)]
    more = 0
    if cores and any(markers.values()):
        shared = _shared_end(cores)
        # Letters belong to the word only where every field's marker begins within one.
        within_word = all(text[:1].isalnum() for text in markers.values())
        more = _word_start(shared) if within_word else _separators(shared)
    extra = cores[0][len(cores[0]) - more :] if more else ""
    return {field: extra + text for field, text in markers.items()}


def _shared_end(cores: Sequence[str]) -> str:
    """Return what the last parts of all paths end in, and shorter than the shortest of them."""
    turned = [path[path.rfind("/") + 1 :][::-1] for path in cores]
    low, high, room = min(turned), max(turned), min(map(len, turned)) - 1
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), room)
    return low[: max(0, min(same, room))][::-1]


def _word_start(shared: str) -> int:
    """Return how many letters before the marker belong to its word and the separators before it."""
    word = len(shared) - len(shared.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    if not word or (gap := _separators(shared[: len(shared) - word])):
        return word + gap if word else _separators(shared)
    # No separator in front: only the x of a scale (`babyx2`, `babyx4`) is surely the marker's.
    return int(shared[-1:] in ("x", "X"))


def _separators(shared: str) -> int:
    return len(shared) - len(shared.rstrip("_-. "))


def is_pair(name: str, taken: Sequence[tuple[str, str]], *, alone: bool) -> bool:
    """Return whether files that share `name`, and no other files do, are partners.

    Args:
        name: what is left of the last part of their paths.
        taken: what each field's marker takes off before (folders too) and after it.
        alone: whether there is no other file. Among many, the marker must also not be glued to a word.
    """
    if not any(map(str.isalnum, name)):
        return False
    ends = [(without_scales(before), without_scales(behind)) for before, behind in taken]
    if any(_cuts_number(name, *end) or _cuts_word(name, *end, alone) for end in ends):
        return False
    return _same_numbers(" ".join(end) for end in ends)


def without_scales(marker: str) -> str:
    """Return the marker with a space for each scale, such as `x4` and `2x`."""
    return _SCALE.sub(" ", marker)


def _cuts_number(name: str, before: str, behind: str) -> bool:
    """Return whether a marker cuts a number, after a letter too, as `1_lr` of `baby1_lr` (next to `baby_hr`) does."""
    return behind[:1].isdigit() or (before[-1:].isdigit() and name[0].isdigit())


def _cuts_word(name: str, before: str, behind: str, alone: bool) -> bool:
    return _glued(before[-1:], name[0], before, alone) or _glued(behind[:1], name[-1], behind, alone)


def _glued(edge: str, letter: str, marker: str, alone: bool) -> bool:
    """Return whether a marker is glued to a word. That of a pair alone may be a word itself, as of `smallbaby`."""
    one_word = edge.isalpha() and letter.isalpha() and edge.islower() == letter.islower()
    return one_word and not (alone and marker.strip(_SEPARATORS).isalpha())


def _same_numbers(markers: Iterable[str]) -> bool:
    """Return whether no two markers number one thing differently: `_f20` and `_f15`; `_noise50` and `_512` may be."""
    known: dict[str, list[str]] = {}
    for marker in markers:
        numbers: dict[str, list[str]] = {}
        for word, number in _NUMBER.findall(marker):
            numbers.setdefault(word, []).append(number)
        if any(known.setdefault(word, some) != some for word, some in numbers.items()):
            return False
    return True
