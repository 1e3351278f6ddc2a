"""What a conversion made, in a few lines."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from packer.cli.text import count_text, size_text, table, time_text
from packer.codecs import codec_name
from packer.convert import Report
from packer.format import ColumnTotals, Field, FieldSpec, Manifest
from packer.packing import Rejected, split_text

_RIGHT = ("raw", "stored", "ratio")

_log = logging.getLogger(__name__)


def summary(report: Report) -> list[str]:
    """Return the lines that end `packer convert`."""
    manifest = report.manifest
    shards = len(manifest.shards)
    earlier = f" ({report.kept_shards} packed before)" if report.kept_shards else ""
    source_text = f"{size_text(report.source_bytes)} of files, " if report.source_bytes else ""
    # The shards of an earlier run took none of this time.
    rate = "" if report.kept_shards else f", {size_text(report.raw_bytes / report.seconds)}/s"
    return [
        *field_table(manifest.fields, sizes_texts(manifest.columns)),
        "",
        *split_lines(manifest),
        f"{report.path}: {count_text(report.samples, 'sample')} in {count_text(shards, 'shard')}{earlier}",
        f"{source_text}{size_text(report.raw_bytes)} as arrays, {size_text(report.file_bytes)} packed",
        time_text(report.seconds) + rate,
    ]


def warn_of_skipped(rejected: Sequence[Rejected], folder: object, manifest: Manifest) -> None:
    """Warn if files or samples were skipped when the dataset in `folder` was made: how many, and their list."""
    if rejected and manifest.left_out:
        files = "1 file or sample was" if len(rejected) == 1 else f"{len(rejected):,} files or samples were"
        first, path = rejected[0], f"{folder}/{manifest.left_out.file}"
        _log.warning("%s skipped, listed in %s; the first: %s: %s", files, path, first.file, first.reason)


def split_lines(manifest: Manifest) -> list[str]:
    """Return a line that says how many samples each split holds; none if there are no splits."""
    splits = manifest.splits
    return [f"splits: {split_text(splits, manifest.samples)}"] if splits else []


def field_table(fields: Iterable[Field], sizes: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line for each field: what it is, how it is stored, and what that saves.

    Args:
        sizes: bytes as arrays, stored bytes and ratio of each field, as texts.
    """
    rows = [[*field_texts(field), *sizes[field.name]] for field in fields]
    return table(("field", "kind", "dtype", "shape", "codec", *_RIGHT), rows, _RIGHT)


def field_texts(field: Field) -> list[str]:
    """Return what a field is and how it is stored: name, kind, dtype, shape, codec."""
    return [field.name, field.kind, str(field.dtype), shape_text(field), codec_name(field.codec)]


def sizes_texts(columns: Mapping[str, ColumnTotals]) -> dict[str, list[str]]:
    """Return bytes as arrays, stored bytes and ratio of each field."""
    return {
        name: [
            size_text(totals.raw),
            size_text(totals.stored),
            f"{totals.raw / totals.stored:.2f}" if totals.stored else "-",
        ]
        for name, totals in columns.items()
    }


def shards_text(sizes: Sequence[int]) -> str:
    """Return how many shards there are, and of what sizes: `1, of 12.3 MB`, `3, of 1.20 MB to 12.3 MB`."""
    if not sizes:
        return "none"
    smallest, largest = size_text(min(sizes)), size_text(max(sizes))
    return f"{len(sizes):,}, of {smallest}" + ("" if smallest == largest else f" to {largest}")


def shape_text(field: FieldSpec) -> str:
    """Return `any x 3`: the axes of one sample, `any` if they differ between samples."""
    return " x ".join("any" if n is None else str(n) for n in field.shape) or "one value"
