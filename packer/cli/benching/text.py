"""The report that `packer bench` prints, for people and for machines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from packer.cli.benching.results import Advice, Rate, Report, Speed, Split
from packer.cli.tables import counted, indented, printable, table, terminal_width
from packer.cli.units import size_text

_WAY = "way, workers"
_SPEED_HEADS = ("batch", _WAY, "warm/s", "MB/s", "cold/s", "MB/s ", "disk/sample")
_SPLIT_HEADS = ("batch", _WAY, "all", "read", "decode", "gather", "hand over", "rest", "copy")
#: Less than this from the disk while measuring warm is not worth a word.
_NOTABLE = 2**20


def report_lines(report: Report) -> list[str]:
    """The rates, the parts of a batch's time, and the setting to start from."""
    return [
        *_wrapped(_intro(report)),
        "",
        *_speeds(report),
        *_failures(report),
        *_splits(report, "warm"),
        *_splits(report, "cold"),
        "",
        *_advice(report.advice),
    ]


def json_text(report: Report) -> str:
    """One JSON object; times in seconds, sizes in bytes."""
    return indented(report)


def _intro(report: Report) -> str:
    fields = ", ".join(report.fields)
    size = size_text(report.sample_bytes)
    return (
        f"{counted(report.samples, 'sample')} of {fields}, {size} each. Samples and MB of values a second; "
        "workers are processes of a DataLoader, threads of a Loader."
    )


def _speeds(report: Report) -> list[str]:
    rows = []
    for speed in report.speeds:
        cells = [str(speed.setting.batch_size), speed.setting.text]
        rows.append([*cells, *_rate(speed.warm), *_rate(speed.cold), _disk(speed.cold)])
    return _table(_SPEED_HEADS, rows)


def _rate(rate: Rate | None) -> list[str]:
    return ["-", "-"] if rate is None else [f"{rate.samples:,.0f}", f"{rate.bytes / 1e6:,.4g}"]


def _disk(rate: Rate | None) -> str:
    return "-" if rate is None else size_text(rate.disk_bytes_per_sample)


def _failures(report: Report) -> Iterator[str]:
    if report.cold_failure:
        yield from _wrapped(f"cold could not be measured: {report.cold_failure}")
    else:
        yield from _wrapped(_disk_line(report.speeds))
    settings: dict[str, list[str]] = {}
    for speed in report.speeds:
        if speed.failure:
            settings.setdefault(speed.failure, []).append(speed.setting.described)
    for reason, described in settings.items():
        yield from _wrapped(f"! {'; '.join(described)}: {reason}")
    for remark in report.remarks:
        yield from _wrapped(f"! {remark}")


def _disk_line(speeds: Sequence[Speed]) -> str:
    cold = sum(speed.cold.disk_bytes for speed in speeds if speed.cold)
    warm = sum(speed.warm.disk_bytes for speed in speeds if speed.warm)
    text = f"cold: the files had been dropped from memory; {size_text(cold)} were read from the disk"
    return f"{text}; while measuring warm, {size_text(warm)}" if warm > _NOTABLE else text


def _splits(report: Report, state: str) -> Iterator[str]:
    rows = [_split_row(split) for split in report.splits if split.state == state]
    if rows:
        yield ""
        yield from _wrapped(f"A batch's time in ms, {state}, one batch at a time:")
        yield from _table(_SPLIT_HEADS, rows)


def _split_row(split: Split) -> list[str]:
    copying = "-" if split.copying is None else _milliseconds(split.copying)
    parts = [_milliseconds(seconds) for seconds in (split.batch, *split.parts.values())]
    return [str(split.setting.batch_size), split.setting.text, *parts, copying]


def _milliseconds(seconds: float) -> str:
    """Three digits that count, and no more than three behind the point."""
    value = seconds * 1e3
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3}f}"


def _advice(advice: Advice | None) -> Iterator[str]:
    if advice is None:
        yield "No setting was measured: nothing can be recommended."
        return
    yield f"Start from  {advice.code}"
    for reason in advice.reasons:
        yield from _wrapped(reason, "  ")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return table(heads, rows, terminal_width(), [head for head in heads if head != _WAY])


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        printable(text), max(terminal_width(), 40), initial_indent=indent, subsequent_indent=indent or "  "
    )
