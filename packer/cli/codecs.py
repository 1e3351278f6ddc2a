"""`packer codecs`: every codec tried on the user's own data, which is packed and read as usual."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from numpy.typing import NDArray

from packer.cli.logs import Progress, log_options
from packer.cli.options import SourceCommand, conversion_options, open_shown, sources_argument
from packer.cli.summary import shape_text
from packer.cli.text import count_text, json_text, shorten, size_text, table, terminal_width
from packer.codecs import JPEG, NAMED, codec_name, compiled, file_of
from packer.convert import convert
from packer.errors import SourceError, UsageError
from packer.format import FieldSpec
from packer.packing import ConvertOptions, field_sizes, read_examples, reading_limits, stored_fields
from packer.sources import SampleSource, Source

_HEADS = ("codec", "ratio", "packing", "reading")
#: Samples are read in batches of this size, for this many seconds at least.
_BATCH, _SECONDS = 128, 0.1


@dataclass(frozen=True)
class Trial:
    """What one codec does with one field.

    Attributes:
        ratio: raw bytes over stored ones.
        packing, reading: raw bytes a second, on one processor.
    """

    codec: str
    ratio: float
    packing: float
    reading: float


@dataclass(frozen=True)
class FieldReport:
    """All codecs that suit a field.

    Attributes:
        samples: how many were looked at.
        raw_bytes: their bytes.
        trials: in the order of `NAMED`; empty if the samples hold no bytes.
        auto: name of the codec that `auto` takes.
    """

    spec: FieldSpec
    samples: int
    raw_bytes: int
    trials: tuple[Trial, ...]
    auto: str


@click.command(cls=SourceCommand)
@sources_argument()
@conversion_options()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with speeds in bytes a second.")
@log_options
def codecs(sources: tuple[str, ...], options: ConvertOptions, as_json: bool) -> None:
    """Try every codec on some samples of the SOURCEs: ratio, speed of packing and of reading, for each field.

    The samples that `auto` looks at are packed with each codec into a temporary folder, and read by Loader. Speeds
    count raw bytes, on one processor of this machine. A star marks the choice of `auto`, which compares the ratios
    alone, so that it is the same on every machine. `packer convert --codec FIELD=CODEC` chooses another.

    \b
    $ packer codecs lr=DIV2K/LR_x4 hr=DIV2K/HR
    $ packer codecs scans/ --json
    """
    source = open_shown(sources, options)
    with Progress() as watcher:
        examples = read_examples(source, reading_limits(options), watcher)
        if not any(examples.values()):
            raise SourceError("none of the samples looked at can be read; `packer convert` says why")
        reports = _reports(source, examples)
        fields = list(watcher.watch(reports, "trying codecs on fields", len(source.fields)))
    click.echo(json_text({"fields": fields}) if as_json else "\n".join(_lines(fields)))


def _reports(source: Source, examples: dict[str, list[NDArray[Any]]]) -> Iterator[FieldReport]:
    """Yield the report of each field, from some samples of it."""
    sizes = field_sizes(source, lambda: examples)
    fields = stored_fields(source.fields, "auto", sizes, lambda: examples)
    compiled.loading.load()  # as in any process that reads for long
    for spec, stored in zip(source.fields, fields, strict=True):
        samples = examples[spec.name]
        nbytes = sum(sample.nbytes for sample in samples)
        trials = tuple(_trials(spec, samples)) if nbytes else ()
        yield FieldReport(spec, len(samples), nbytes, trials, codec_name(stored.codec))


def _trials(spec: FieldSpec, samples: Sequence[NDArray[Any]]) -> Iterator[Trial]:
    """Pack samples of one field with each codec that suits it, and read them."""
    from readers import Loader, PackedDataset  # here: torch takes seconds to load

    is_text = spec.kind == "text"
    source = SampleSource([{spec.name: s.tobytes().decode() if is_text else s} for s in samples], [spec])
    for name in NAMED:
        if name == JPEG and not all(map(file_of, samples)):
            continue  # all would be kept raw
        with tempfile.TemporaryDirectory(prefix="packer-codecs-") as folder:
            try:
                packed = convert(source, Path(folder) / "packed", codec=name, workers=0)
            except UsageError:  # not for this field
                continue
            loader = Loader(PackedDataset(packed.path), min(_BATCH, len(samples)), shuffle=True, threads=0)
            epochs, start_time = 0, time.perf_counter()
            while not epochs or time.perf_counter() - start_time < _SECONDS:
                for _ in loader:
                    pass
                epochs += 1
            reading = packed.raw_bytes * epochs / (time.perf_counter() - start_time)
            ratio = packed.raw_bytes / packed.manifest.columns[spec.name].stored
            yield Trial(name, ratio, packed.raw_bytes / packed.seconds, reading)


def _lines(fields: Sequence[FieldReport]) -> list[str]:
    """Return a heading and a table for each field."""
    lines: list[str] = []
    for field in fields:
        amount = f"{count_text(field.samples, 'sample')}, {size_text(field.raw_bytes)}"
        heading = f"{field.spec.name}: {field.spec.dtype}, {shape_text(field.spec)}; {amount} looked at"
        rows = [
            [
                f"{'*' if trial.codec == field.auto else ' '} {trial.codec}",
                f"{trial.ratio:.2f}",
                f"{size_text(trial.packing)}/s",
                f"{size_text(trial.reading)}/s",
            ]
            for trial in field.trials
        ]
        lines += ["", shorten(heading, terminal_width()), *table(_HEADS, rows, _HEADS[1:])]
    return [*lines[1:], "", "* what `auto` takes"]
