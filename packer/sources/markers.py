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
from typing import NamedTuple, TypeVar

#: Names that vote, and partners looked at for each beginning of a name.
_VOTERS = 64
_LOOKED_AT = 64

_SCALE = re.compile(r"[xX](?:[23468]|16)(?!\d)|[23468][xX](?![^\W_])")
_NUMBER = re.compile(r"([^\W\d_]*)(\d+)")
_SEPARATORS = "_-. "
_FIRST_WORD = re.compile(r"[^\W_]*[\W_]")
#: The letters before a marker that are of its word, with the separators before them; or separators alone.
_WORD_END = re.compile(r"[_\-. ]+[A-Za-z]*\Z")
_SEPARATORS_END = re.compile(r"[_\-. ]+\Z")

Text = TypeVar("Text", str, list[str])


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

    Markers under which one name alone has partners are taken only if these are no partners by chance.
    """
    best = dict.fromkeys(stems, _NOTHING)
    if len(stems) == 1:
        return best
    most, wanted = len(_common(stems, best)), max(len(some) for some in stems.values())
    for markers in _candidates(stems):
        if most == wanted:
            break
        common = _common(stems, markers)
        # Names tell samples apart by more than scales: the `x2` of `baby_LR_x2` says nothing of the picture.
        speaking = any(any(map(str.isalnum, _without_scales(split(name)[1]))) for name in common)
        if len(common) > most and speaking and (len(common) > 1 or _is_pair(min(common), markers, alone=wanted == 1)):
            best, most = markers, len(common)
    return best


def _common(stems: Mapping[str, Sequence[str]], markers: Mapping[str, Marker]) -> set[str]:
    """Return the names that all fields have."""
    return set.intersection(*(set(stripped(some, markers[field])) for field, some in stems.items()))


def _candidates(stems: Mapping[str, Sequence[str]]) -> Iterator[dict[str, Marker]]:
    """Yield markers worth a try, the plainest first: folders, then suffixes, prefixes, and words before suffixes."""
    for outer in folder_markers(stems):
        yield outer
        inner = {field: stripped(some, outer[field]) for field, some in stems.items()}
        if not all(inner.values()):
            continue
        yield {field: outer[field]._replace(suffix=suffix) for field, suffix in _vote_suffix(inner).items()}
        yield {field: outer[field]._replace(prefix=prefix) for field, prefix in _vote_prefix(inner).items()}
        # `LR_0001x4` and `HR_0001`: the first word of what all names of a field begin with.
        words = {field: _FIRST_WORD.match(_shared_start([split(n)[1] for n in some])) for field, some in inner.items()}
        prefixes = {field: word[0] if word else "" for field, word in words.items()}
        bare = {field: stripped(some, Marker(prefix=prefixes[field])) for field, some in inner.items()}
        if all(bare.values()):
            suffixes = _vote_suffix(bare)
            yield {field: outer[field]._replace(prefix=prefixes[field], suffix=suffixes[field]) for field in stems}


def folder_markers(stems: Mapping[str, Sequence[str]]) -> Iterator[dict[str, Marker]]:
    """Yield no folders taken off; then the ones that a whole field begins with; then the last ones it shares."""
    folders = {field: {split(name)[0] for name in some} for field, some in stems.items()}
    yield dict.fromkeys(stems, _NOTHING)
    if len(set(map(frozenset, folders.values()))) > 1:
        yield {field: Marker(first_folders=shared_folders(some)) for field, some in folders.items()}
        yield {field: Marker(last_folders=shared_folders(some, last=True)) for field, some in folders.items()}


def stripped(stems: Iterable[str], marker: Marker) -> list[str]:
    """Return the names of the paths that carry a marker, without it."""
    return [name for name in map(marker.name_of, stems) if name is not None]


def split(path: str) -> tuple[str, str]:
    """Return the folders (with the last slash) and the last part of a path."""
    cut = path.rfind("/") + 1
    return path[:cut], path[cut:]


def shared_folders(folders: Iterable[str], last: bool = False) -> str:
    """Return the first folders that all paths share, `X4/` of `X4/a/` and `X4/b/`, or the last ones."""
    step = -1 if last else 1
    shared = _shared_start([path.split("/")[:-1][::step] for path in folders])[::step]
    return "".join(f"{part}/" for part in shared)


def _shared_start(some: Sequence[Text]) -> Text:
    """Return what all of some texts, or lists, begin with."""
    low, high = min(some), max(some)
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    return low[:same]


# ---------------------------------------------------------------- votes


def _vote_suffix(names: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return by field what the last parts of its paths end in, beyond what partners share; never a part of a number.

    With the marker `801_LR`, `img_0801_LR` would be a partner of `img_0001_HR`.
    """
    markers = _endings(names)
    cut = any(marker[:1].isdigit() and _follows_digit(marker, names[field]) for field, marker in markers.items())
    return dict.fromkeys(names, "") if cut else markers


def _vote_prefix(names: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return by field what the last parts of its paths begin with, beyond what partners share.

    Of numbers it takes no part either, but a scale may stand right before one: `x2` of `x20001`.
    """
    turned = {field: [folders + last[::-1] for folders, last in map(split, some)] for field, some in names.items()}
    markers = _endings(turned)
    cut = any(
        _without_scales(marker[::-1])[-1:].isdigit() and _follows_digit(marker, turned[field])
        for field, marker in markers.items()
    )
    return {field: "" if cut else marker[::-1] for field, marker in markers.items()}


def _follows_digit(marker: str, names: Sequence[str]) -> bool:
    """Return whether a name that ends in the marker has a digit before it."""
    return any(name.endswith(marker) and name[: -len(marker)][-1:].isdigit() for name in names)


def _endings(names: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return by field the marker that won; it may begin within a number, but is none itself."""
    reference = min(names, key=lambda field: sum(map(len, names[field])) / len(names[field]))
    won = {field: _vote(names[reference], some) for field, some in names.items() if field != reference}
    longest = max((mine for mine, _ in won.values()), key=len)
    # A field whose partners agreed further than the longest marker gives back the difference.
    markers = {field: longest[: len(longest) - len(mine)] + theirs for field, (mine, theirs) in won.items()}
    markers[reference] = longest
    cores = [name[: len(name) - len(longest)] for name in names[reference] if name.endswith(longest)]
    if cores and any(markers.values()):
        # From the start of a word: `_x2` and `_x4`, not `2` and `4`; `_HR`, not `HR`.
        more = _more_letters(cores, within_word=all(text[:1].isalnum() for text in markers.values()))
        markers = {field: more + text for field, text in markers.items()}
    # Numbers are what samples differ in: `0011` and `0012` are no partners with the markers `1` and `2`.
    if any(map(str.isdigit, markers.values())):
        return dict.fromkeys(names, "")
    return {field: markers[field] for field in names}


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


def _more_letters(cores: Sequence[str], within_word: bool) -> str:
    """Return the letters before a marker that belong to it: those of its word, if it begins within one.

    Args:
        cores: paths without the marker. They are left with one letter at least.
        within_word: whether the marker of every field begins within a word.
    """
    lasts = [split(path)[1][::-1] for path in cores]
    shared = _shared_start(lasts)[: max(0, min(map(len, lasts)) - 1)][::-1]
    end = _WORD_END.search(shared) if within_word else _SEPARATORS_END.search(shared)
    if end:
        return end[0]
    # No separator in front: only the x of a scale (`babyx2`, `babyx4`) is surely the marker's.
    return shared[-1:] if within_word and shared[-1:] in ("x", "X") else ""


# ---------------------------------------------------------------- a pair alone


def _is_pair(name: str, markers: Mapping[str, Marker], *, alone: bool) -> bool:
    """Return whether files that share `name`, and no other files do, are partners.

    Args:
        name: their path without the markers.
        alone: whether there is no other file. Among many, the marker must also not be glued to a word.
    """
    name = split(name)[1]
    if not any(map(str.isalnum, name)):
        return False
    known: dict[str, list[str]] = {}
    for marker in markers.values():
        before = _without_scales(marker.first_folders + marker.last_folders + marker.prefix)
        after = _without_scales(marker.suffix)
        # A number that is cut, after a letter too, as by `1_lr` of `baby1_lr` (next to `baby_hr`).
        if after[:1].isdigit() or (before[-1:].isdigit() and name[0].isdigit()):
            return False
        if _is_glued(before[-1:], name[0], before, alone) or _is_glued(after[:1], name[-1], after, alone):
            return False
        # No two markers number one thing differently: `_f20` and `_f15`; `_noise50` and `_512` may be.
        numbers: dict[str, list[str]] = {}
        for word, number in _NUMBER.findall(f"{before} {after}"):
            numbers.setdefault(word, []).append(number)
        if any(known.setdefault(word, some) != some for word, some in numbers.items()):
            return False
    return True


def _without_scales(marker: str) -> str:
    """Return the marker with a space for each scale, such as `x4` and `2x`."""
    return _SCALE.sub(" ", marker)


def _is_glued(edge: str, letter: str, marker: str, alone: bool) -> bool:
    """Return whether a marker is glued to a word. That of a pair alone may be a word itself, as of `smallbaby`."""
    one_word = edge.isalpha() and letter.isalpha() and edge.islower() == letter.islower()
    return one_word and not (alone and marker.strip(_SEPARATORS).isalpha())
