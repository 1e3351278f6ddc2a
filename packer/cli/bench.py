"""`packer bench`: how many samples a second `Loader` and DataLoader read, and which setting to start from."""

from __future__ import annotations

import itertools
import logging
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from packer.cli.doctor import machine_of, shared_frames
from packer.cli.logs import Progress, log_options
from packer.cli.options import fields_option
from packer.cli.text import count_text, json_text, size_text, table, wrap
from packer.codecs import compiled, compiling, number_of
from packer.errors import DatasetError
from packer.format import manifest as manifests
from packer.warm import warm

if TYPE_CHECKING:
    from readers import PackedDataset

_log = logging.getLogger(__name__)

LOADER, DATALOADER = "Loader", "DataLoader"
#: Each setting is timed this often, after a first pass of the same length that does not count. The median counts.
_PASSES = 3
#: The share of the free memory that the batches of one setting may take.
_MEMORY_SHARE = 0.25
#: Of the settings that reach this share of the best rate, the simplest is recommended.
_AS_GOOD = 0.9


#: A way to read (`Loader` or `DataLoader`), the size of batches, and threads of a Loader or processes of a DataLoader.
Setting = tuple[str, int, int]
#: Samples a second of each setting; None if it was not measured.
Rates = dict[Setting, "float | None"]


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option(
    "--batch-size",
    "batch_sizes",
    multiple=True,
    type=click.IntRange(min=1),
    default=(8, 32, 128),
    show_default=True,
    help="Samples in a batch, no more than there are; may be repeated.",
)
@click.option(
    "--workers",
    multiple=True,
    type=click.IntRange(0, 256),
    default=(0, 2, 4),
    show_default=True,
    help="Threads of a Loader and processes of a DataLoader; may be repeated.",
)
@fields_option("Read only these fields.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True, max=86400),
    default=30.0,
    show_default=True,
    help="About how long to measure, in all.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, in samples and bytes a second.")
@log_options
def bench(
    dataset: Path,
    batch_sizes: tuple[int, ...],
    workers: tuple[int, ...],
    fields: tuple[str, ...] | None,
    seconds: float,
    as_json: bool,
) -> None:
    """Measure how many samples a second of the packed dataset DATASET are read on this machine.

    Loader and DataLoader read shuffled batches, with several batch sizes and numbers of workers. The dataset is put
    into memory first, if it fits. The last line is the setting to start from: the simplest of the fastest.

    \b
    $ packer bench div2k.packed
    $ packer bench div2k.packed --batch-size 64 --workers 0 --workers 8
    $ packer bench scans.packed --fields xyz --seconds 120 --json
    """
    manifest, machine = manifests.read(dataset), machine_of(dataset)
    if not manifest.samples:
        raise DatasetError(f"{dataset}: it has no samples; there is nothing to read")
    from readers import PackedDataset  # here: torch takes seconds to load, and help and refusals need none

    chosen_fields = PackedDataset(dataset, fields).fields
    names = list(chosen_fields)
    sample_bytes = sum(manifest.columns[name].raw for name in names) / manifest.samples
    fits = machine.holds(manifest)
    by_blocks = bool(shared_frames(chosen_fields.values())) or not fits
    sizes = sorted({min(size, manifest.samples) for size in batch_sizes})
    counts = sorted(set(workers))
    settings = [(way, size, count) for size in sizes for way in (LOADER, DATALOADER) for count in counts]
    if any(number_of(field.codec) is not None for field in chosen_fields.values()):
        if not compiling.compiled_files(compiled.loading.module):
            _log.info("compiling the machine code that decodes frames, once on this machine")
        compiled.loading.load()  # as in any process that reads for long
    if fits:
        with Progress() as watcher:
            warm(dataset, watcher, again=False)
    rates: Rates = dict.fromkeys(settings)
    with Progress() as watcher, warnings.catch_warnings():
        # DataLoader warns of more workers than processors; whether they pay is measured here.
        warnings.filterwarnings("ignore", "This DataLoader will create")
        for way, size, count in watcher.watch(settings, "measuring settings", len(settings)):
            if sample_bytes * size * (3 + 2 * count) > _MEMORY_SHARE * machine.free:
                _log.warning("%s %d, batch %d: its batches do not fit the free memory", way, count, size)
                continue
            opened_dataset = PackedDataset(dataset, names)  # one each, since it keeps decoded frames
            rates[way, size, count] = _measure(opened_dataset, (way, size, count), by_blocks, seconds / len(settings))
    document = {
        "path": str(dataset),
        "fields": names,
        "samples": manifest.samples,
        "sample_bytes": sample_bytes,
        "fits_memory": fits,
        "speeds": [
            {"way": way, "batch_size": size, "workers": count, "samples": rate}
            for (way, size, count), rate in rates.items()
        ],
        "use": _choose_line(rates, by_blocks, machine.cuda is not None),
    }
    click.echo(json_text(document) if as_json else "\n".join(_lines(document, rates)))


def _measure(dataset: PackedDataset, setting: Setting, by_blocks: bool, seconds: float) -> float | None:
    """Return the samples a second of one setting, read for `seconds`; starting workers is not counted."""
    from torch.utils.data import DataLoader

    from readers import Loader

    way, size, workers = setting
    loader: Iterable[Any]
    if way == LOADER:
        loader = Loader(dataset, size, "block" if by_blocks else True, drop_last=True, threads=workers)
    else:
        loader = DataLoader(
            dataset, size, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0
        )
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    try:
        rates = [_rate(batches, size, seconds / (1 + _PASSES)) for _ in range(1 + _PASSES)]
    except RuntimeError as error:
        if way == LOADER or not workers:
            raise
        # Worker processes fail if /dev/shm is full; the dataset is not at fault.
        _log.warning("%s %d, batch %d: %s", way, workers, size, str(error).strip().splitlines()[0])
        return None
    return median(rates[1:])


def _rate(batches: Iterator[Any], size: int, seconds: float) -> float:
    """Return the samples read in a second."""
    count, elapsed, start_time = 0, 0.0, time.perf_counter()
    while elapsed < seconds:
        next(batches)
        count, elapsed = count + 1, time.perf_counter() - start_time
    return count * size / elapsed


def _choose_line(rates: Rates, by_blocks: bool, cuda: bool) -> str | None:
    """Return the line of Python for the simplest of the fastest settings; None if none was measured."""
    measured = {setting: rate for setting, rate in rates.items() if rate is not None}
    fast_settings = [setting for setting, rate in measured.items() if rate >= _AS_GOOD * max(measured.values())]
    if not fast_settings:
        return None
    # Better without worker processes, better without workers at all.
    way, size, workers = min(
        fast_settings, key=lambda setting: (setting[0] == DATALOADER, setting[2], -measured[setting])
    )
    if way == LOADER:
        shuffle, device = '"block"' if by_blocks else "True", ', device="cuda"' if cuda else ""
        return f"Loader(dataset, batch_size={size}, shuffle={shuffle}, threads={workers}{device})"
    processes = f", num_workers={workers}, persistent_workers=True" if workers else ""
    pinned = ", pin_memory=True" if cuda else ""
    return f"DataLoader(dataset, batch_size={size}, shuffle=True{processes}{pinned})"


def _lines(results: dict[str, Any], rates: Rates) -> list[str]:
    """Return the rates in a table, a row for each way and number of workers, and the line to start from."""
    sizes = sorted({size for _, size, _ in rates})
    rows = [
        [f"{way} {count}", *("-" if (rate := rates[way, size, count]) is None else f"{rate:,.0f}" for size in sizes)]
        for way, count in dict.fromkeys((way, count) for way, _, count in rates)
    ]
    heads = [f"batch {size}" for size in sizes]
    samples_in_words = f"{count_text(results['samples'], 'sample')} of {', '.join(results['fields'])}"
    where = "in memory" if results["fits_memory"] else "too large for the free memory, so the disk is measured too"
    lines = [
        *wrap(f"{samples_in_words}, {size_text(results['sample_bytes'])} each; {where}"),
        "",
        *table(["samples/s", *heads], rows, heads),
    ]
    return [*lines, "", f"Start from  {results['use']}" if results["use"] else "No setting was measured."]
