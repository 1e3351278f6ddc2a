"""Which marker do the names of a field carry? Names vote.

A name `0001x4` and a name `0001` of the other field agree in `0001`: one vote for the markers `x4` and
nothing. The markers with most votes win, and the shorter ones where votes are equal, so that one stray
file changes nothing. Only a spread of names votes, which is enough, and quick for a million of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence

from packer.sources.images.pairing_single import without_scales

#: Names that vote, and partners looked at for each beginning of a name.
_VOTERS = 64
_LOOKED_AT = 64


def vote_suffix(names: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """By field, what the last parts of its paths end in, beyond what partners share; never a part of a number.

    With the marker `801_LR`, `img_0801_LR` would be a partner of `img_0001_HR`.
    """
    markers = _endings(names)
    cut = any(marker[:1].isdigit() and _behind_digits(marker, names[field]) for field, marker in markers.items())
    return dict.fromkeys(names, "") if cut else markers


def vote_prefix(names: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """By field, what the last parts of its paths begin with, beyond what partners share.

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
    """Whether a name that ends in the marker has a digit before it."""
    return any(name.endswith(marker) and name[: -len(marker)][-1:].isdigit() for name in names)


def _turn(path: str) -> str:
    cut = path.rfind("/") + 1
    return path[:cut] + path[cut:][::-1]


def _endings(names: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """By field the marker that won; it may begin within a number, but is none itself."""
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
    """The endings, of one field and of the other, that most names agree without."""
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
    """The markers from the start of a word: `_x2` and `_x4`, not `2` and `4`; `_HR` and `_LR`, not `HR` and `LR`."""
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
    """What the last parts of all paths end in, and shorter than the shortest of them."""
    turned = [path[path.rfind("/") + 1 :][::-1] for path in cores]
    low, high, room = min(turned), max(turned), min(map(len, turned)) - 1
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), room)
    return low[: max(0, min(same, room))][::-1]


def _word_start(shared: str) -> int:
    """How many letters before the marker belong to its word and the separators before it."""
    word = len(shared) - len(shared.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    if not word or (gap := _separators(shared[: len(shared) - word])):
        return word + gap if word else _separators(shared)
    # No separator in front: only the x of a scale (`babyx2`, `babyx4`) is surely the marker's.
    return int(shared[-1:] in ("x", "X"))


def _separators(shared: str) -> int:
    return len(shared) - len(shared.rstrip("_-. "))
