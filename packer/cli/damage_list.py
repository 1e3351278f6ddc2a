"""The damages that `packer verify` prints, for machines and for people."""

from __future__ import annotations

from collections.abc import Sequence

from packer.cli.tables import counted, indented, printable
from packer.cli.units import size_text
from packer.verify import Damage, VerifyReport

#: Damages shown to people.
_MOST = 50


def damage_lines(path: str, report: VerifyReport, damages: Sequence[Damage], compared: bool) -> list[str]:
    """A line for each damage, and one that says what was checked."""
    lines = [printable(str(damage)) for damage in damages[:_MOST]]
    if len(damages) > _MOST:
        lines.append(f"... and {len(damages) - _MOST:,} more; --json lists all")
    amount = f"{counted(report.files, 'file')}, {size_text(report.bytes)}, {counted(report.frames, 'frame')}"
    good = "all as the sources have it" if compared else "all as it was written"
    repair = "; run `packer repair`" if any(damage.repairable for damage in damages) else ""
    found = f"{counted(len(damages), 'damage')} found{repair}" if damages else good
    return [*lines, f"{printable(str(path))}: {amount}: {found}"]


def json_text(path: str, report: VerifyReport, damages: Sequence[Damage]) -> str:
    """One JSON object: what was checked, and all damages."""
    document = {
        "path": str(path),
        "good": not damages,
        "files": report.files,
        "bytes": report.bytes,
        "frames": report.frames,
        "damages": damages,
    }
    return indented(document)
