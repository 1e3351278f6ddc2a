"""What the numbers of a field stand for, as the origin of its samples says: names, a unit of time, sides of a box."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from packer.format.schema import FieldSpec

#: Members of an origin that say it by the names of fields: the names of numbers, and the unit of times.
_BY_FIELD = "categories", "times"
#: What the origin of a field itself says of boxes, and how many numbers a box has.
_BOX_FORMAT, _BOX = "box_format", 4


def find_meanings(origin: Any, fields: Iterable[FieldSpec]) -> dict[str, dict[str, list[Any]]]:
    """Return by field what its numbers stand for: mostly one text, or one list of texts, for each key.

    The keys are `categories`, the names of numbers; `times`, their unit; and `box_format`, where rows have 4 numbers.
    Each part of joined samples may say it.
    """
    fields = tuple(fields)
    found: dict[str, dict[str, list[Any]]] = {field.name: {} for field in fields}
    boxes = [field.name for field in fields if field.shape[-1:] == (_BOX,)]
    levels = [origin]
    while levels:  # without recursion: the origins of a hostile manifest may nest deeply
        level = levels.pop()
        if isinstance(level, dict):
            said = [
                (name, key, meaning)
                for key in _BY_FIELD
                if isinstance(by_field := level.get(key), dict)
                for name, meaning in by_field.items()
            ]
            said += [
                (name, _BOX_FORMAT, beside.get(_BOX_FORMAT))
                for name in boxes
                if isinstance(beside := level.get(name), dict)
            ]
            for name, key, meaning in said:
                if name in found and _is_meaning(meaning) and meaning not in found[name].setdefault(key, []):
                    found[name][key].append(meaning)
            levels += level.values()
        elif isinstance(level, list):
            levels += level
    return found


def _is_meaning(value: Any) -> bool:
    """Return whether this is a text, or a list of texts, and not empty."""
    texts = value if isinstance(value, list) else [value]
    return bool(value) and all(isinstance(text, str) for text in texts)
