"""Is a pair that is the only one a pair? Two names agree in some letters by chance, and nothing outvotes them.

Numbers say which picture it is: `0801_LR` and `0001_HR` are none although both begin with a zero, and neither are
`2020-10_hr` and `2020-19_lr`. Scales say how large it is: `0801x4` and `0801` are one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_SCALE = re.compile(r"[xX](?:[23468]|16)(?!\d)|[23468][xX](?![^\W_])")
_NUMBER = re.compile(r"([^\W\d_]*)(\d+)")
_SEPARATORS = "_-. "


def is_pair(name: str, taken: Sequence[tuple[str, str]], *, alone: bool) -> bool:
    """Whether files that share `name`, and no other files do, are partners.

    Args:
        name: what is left of the last part of their paths.
        taken: what each field's marker takes off before (folders too) and behind it.
        alone: whether there is no other file. Among many, the marker must also not be glued to a word.
    """
    if not any(map(str.isalnum, name)):
        return False
    ends = [(without_scales(before), without_scales(behind)) for before, behind in taken]
    if any(_cuts_number(name, *end) or _cuts_word(name, *end, alone) for end in ends):
        return False
    return _same_numbers(" ".join(end) for end in ends)


def without_scales(marker: str) -> str:
    """The marker with a space for each scale, such as `x4` and `2x`."""
    return _SCALE.sub(" ", marker)


def _cuts_number(name: str, before: str, behind: str) -> bool:
    """Behind a letter too: `1_lr` is no marker of `baby1_lr`, which is another baby than `baby_hr`."""
    return behind[:1].isdigit() or (before[-1:].isdigit() and name[0].isdigit())


def _cuts_word(name: str, before: str, behind: str, alone: bool) -> bool:
    return _glued(before[-1:], name[0], before, alone) or _glued(behind[:1], name[-1], behind, alone)


def _glued(edge: str, letter: str, marker: str, alone: bool) -> bool:
    """A pair alone may have a word glued to its name, `smallbaby`; `aby_lr` of `baby_lr` is more than a word."""
    one_word = edge.isalpha() and letter.isalpha() and edge.islower() == letter.islower()
    return one_word and not (alone and marker.strip(_SEPARATORS).isalpha())


def _same_numbers(markers: Iterable[str]) -> bool:
    """Whether no two markers number the same thing differently: `_f20` and `_f15`; `_noise50` and `_512` may be."""
    known: dict[str, list[str]] = {}
    for marker in markers:
        numbers: dict[str, list[str]] = {}
        for word, number in _NUMBER.findall(marker):
            numbers.setdefault(word, []).append(number)
        if any(known.setdefault(word, some) != some for word, some in numbers.items()):
            return False
    return True
