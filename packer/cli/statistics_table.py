"""The statistics that `packer stats` prints, for machines and for people."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from packer.cli.tables import indented, table, terminal_width
from packer.format.manifest import Manifest
from packer.format.statistics import FieldStats, ValueStats

#: Channels shown of one field.
_MOST_CHANNELS = 64
_NUMBERS = ("count", "min", "max", "mean", "std", "nan", "inf")


def statistics_lines(manifest: Manifest, found: Mapping[str, FieldStats]) -> list[str]:
    """A table with a line for each field, and one for each channel where there are several."""
    heads = ["field", "channel", *_NUMBERS]
    if not any(stats.all.nan or stats.all.inf for stats in found.values()):
        heads = heads[:-2]
    rows = []
    for name, stats in found.items():
        rows.append([name, "all", *_cells(stats.all)])
        if len(stats.channels) > 1:
            rows += [["", str(n), *_cells(channel)] for n, channel in enumerate(stats.channels[:_MOST_CHANNELS])]
        if len(stats.channels) > _MOST_CHANNELS:
            rows.append(["", "...", *[""] * len(_NUMBERS)])
    lines = table(heads, [row[: len(heads)] for row in rows], terminal_width(), heads[2:]) if rows else []
    without = [field.name for field in manifest.fields if field.name not in found]
    if without:
        lines.append(f"no statistics of text and complex numbers: {', '.join(without)}")
    return lines


def json_text(path: Path, manifest: Manifest, found: Mapping[str, FieldStats]) -> str:
    """One JSON object: `fields` holds for each name `all` and `channels`."""
    document = {"path": str(path), "samples": manifest.samples, "fields": found}
    return indented(document)


def _cells(stats: ValueStats) -> list[str]:
    return [f"{stats.count:,}", *map(_number, (stats.min, stats.max, stats.mean, stats.std)), *_odd(stats)]


def _odd(stats: ValueStats) -> list[str]:
    return [f"{stats.nan:,}", f"{stats.inf:,}"]


def _number(value: float | None) -> str:
    """Whole numbers with all their digits, others with six."""
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.6g}"
