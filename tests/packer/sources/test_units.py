"""--samples: one word for all sources, and what each kind offers."""

from __future__ import annotations

import pytest

from packer.errors import UsageError
from packer.sources import UNITS_OF
from packer.sources.units import Asked, unit_of


@pytest.mark.parametrize("kind", UNITS_OF)
def test_what_a_kind_offers(kind: str) -> None:
    """A unit is the word and its pattern; without --samples it is the first one offered."""
    assert unit_of(kind, None) == Asked(UNITS_OF[kind][0])
    for name in UNITS_OF[kind]:
        pattern = "ends" if name == "episodes" else ""
        asked = f"{name}:{pattern}" if pattern else name
        assert unit_of(kind, asked) == Asked(name, pattern)
        assert str(unit_of(kind, asked)) == asked
    assert str(unit_of("hdf5", "groups:/data/*")) == "groups:/data/*"


@pytest.mark.parametrize(
    ("kind", "samples", "words"),
    [
        ("hdf5", "group", r"sources of hdf5 take rows or files or datasets or groups\[:PATTERN\]"),
        ("ply", "groups", "--samples groups: sources of ply take files"),
        ("hdf5", "rows:/x", "rows is expected"),
        ("hdf5", "groups:", r"groups\[:PATTERN\] is expected"),
    ],
)
def test_what_is_refused(kind: str, samples: str, words: str) -> None:
    """A unit that the source does not offer is refused with those that it offers; a pattern where none belongs."""
    with pytest.raises(UsageError, match=words):
        unit_of(kind, samples)
