"""What one sample is made from: `--samples rows|files|folders|datasets|groups[:PATTERN]`, and what each kind offers."""

from __future__ import annotations

from typing import NamedTuple

from packer.errors import UsageError

#: Units by kind of source; the first one is taken if nobody says otherwise.
UNITS_OF = {
    "hdf5": ("rows", "files", "datasets", "groups"),
    "npy": ("rows", "files", "folders"),
    "images": ("files", "folders"),
    "basicsr": ("files", "folders"),
    "ply": ("files",),
    "clouds": ("files",),
}
#: Units that a pattern may follow.
_WITH_PATTERN = ("groups",)


class Unit(NamedTuple):
    """What one sample is made from.

    Attributes:
        name: `rows`, `files`, `folders`, `datasets` or `groups`.
        pattern: paths of the units, such as `/data/*`; empty for those that the source finds itself.
    """

    name: str
    pattern: str = ""

    def __str__(self) -> str:
        return f"{self.name}:{self.pattern}" if self.pattern else self.name


def unit_of(kind: str, samples: str | None) -> Unit:
    """Return the unit that `--samples` asks of a source.

    Args:
        kind: of the source, one of `UNITS_OF`.
        samples: as on the command line; None for what the source takes by itself.

    Raises:
        UsageError: a source of this kind does not offer it, or it takes no pattern.
    """
    offered = UNITS_OF[kind]
    name, colon, pattern = (samples or offered[0]).partition(":")
    if name not in offered:
        raise UsageError(f"--samples {samples}: sources of {kind} offer {' or '.join(map(_form, offered))}")
    if colon and (name not in _WITH_PATTERN or not pattern):
        raise UsageError(f"--samples {samples}: {_form(name)} is expected")
    return Unit(name, pattern)


def _form(unit: str) -> str:
    return f"{unit}[:PATTERN]" if unit in _WITH_PATTERN else unit
