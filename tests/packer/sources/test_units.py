"""--samples: one word for all sources, and what each kind offers."""

from __future__ import annotations

import pytest

from packer.errors import UsageError
from packer.sources import SourceOptions, all_kinds
from packer.sources.kinds import unit_of
from packer.sources.units import UnitChoice

UNITS_OF = {kind.name: kind.units for kind in all_kinds().values() if kind.units}


@pytest.mark.parametrize("kind", UNITS_OF)
def test_what_a_kind_offers(kind: str) -> None:
    """A unit is the word and its pattern; without --samples it is the first one offered."""
    assert unit_of(kind, None) == UnitChoice(UNITS_OF[kind][0])
    for name in UNITS_OF[kind]:
        pattern = "ends" if name == "episodes" else ""
        asked = f"{name}:{pattern}" if pattern else name
        assert unit_of(kind, asked) == UnitChoice(name, pattern)
        assert str(unit_of(kind, asked)) == asked
    assert str(unit_of("hdf5", "groups:/data/*")) == "groups:/data/*"


def test_the_help_says_what_is_taken_without_the_option() -> None:
    """Rows of some kinds of sources, and files of all others."""
    rows = [kind for kind, units in UNITS_OF.items() if units[0] == "rows"]
    assert {units[0] for kind, units in UNITS_OF.items() if kind not in rows} == {"files"}
    assert f"[default: rows of {', '.join(rows[:-1])} and {rows[-1]}, files of all others]" in str(
        SourceOptions.__doc__
    )


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
