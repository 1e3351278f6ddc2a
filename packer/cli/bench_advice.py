"""The setting that `packer bench` recommends to start from, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from packer.cli.bench_measuring import DATALOADER, INDEXING, LOADER, Rate, Report, Setting
from packer.cli.tables import counted
from packer.cli.units import size_text
from readers import Loader, PackedDataset

#: Of settings that reach this share of the best rate, the simplest is recommended.
_AS_GOOD = 0.9
#: Fastest over slowest pass from which it is said that rates waver.
_WAVERING = 1.5


@dataclass(frozen=True)
class Advice:
    """A setting to start from.

    Attributes:
        code: line of Python.
        reasons: why, in sentences.
    """

    setting: Setting
    code: str
    reasons: Sequence[str]


def advice(report: Report) -> Advice | None:
    """Return the simplest of the fastest loaders, by the rates that count here; None if none was measured."""
    is_cold = not report.fits_memory and any(speed.cold for speed in report.speeds)
    rates = {speed.setting: rate for speed in report.speeds if (rate := speed.cold if is_cold else speed.warm)}
    loaders = {setting: rate for setting, rate in rates.items() if setting.way != INDEXING}
    if not loaders:
        return None
    best = max(rate.samples for rate in loaders.values())
    good = [one for one, rate in loaders.items() if rate.samples >= _AS_GOOD * best]
    setting = min(good, key=lambda one: (*_effort(one), -loaders[one].samples))
    reasons = [*_rate_reasons(setting, loaders), *_order_reasons(setting), _memory_reason(report, is_cold)]
    return Advice(setting, _code(report, setting), [*reasons, *_doubts(loaders)])


def _effort(setting: Setting) -> tuple[bool, int, bool]:
    """Return what one would rather do without: worker processes, workers, an order that is not fully random."""
    return setting.way == DATALOADER, setting.workers, setting.shuffle != "full"


def _code(report: Report, setting: Setting) -> str:
    """Return the line of Python that makes the loader."""
    import torch

    shuffle = '"block"' if setting.shuffle == "block" else "True"
    given = f"dataset, batch_size={setting.batch_size}, shuffle={shuffle}"
    cuda = torch.cuda.is_available()
    if setting.way == DATALOADER:
        workers = f", num_workers={setting.workers}, persistent_workers=True" if setting.workers else ""
        return f"DataLoader({given}{workers}{', pin_memory=True' if cuda else ''})"
    is_auto = Loader(PackedDataset(report.path, report.fields), setting.batch_size).threads == setting.workers
    threads = "" if is_auto else f", threads={setting.workers}"
    device = ', device="cuda"' if cuda else ""
    return f"Loader({given}{threads}{device})"


def _memory_reason(report: Report, is_cold: bool) -> str:
    size = size_text(report.file_bytes)
    if report.fits_memory:
        return f"The dataset ({size}) fits into the free memory: from the second epoch on it is read warm."
    basis = "the cold rates count" if is_cold else "the cold rates would count, but could not be measured"
    return f"The dataset ({size}) does not fit into the free memory: {basis}."


def _order_reasons(setting: Setting) -> Iterator[str]:
    if setting.shuffle == "block":
        yield "A shuffle by blocks reads in long runs, and decodes what lies together once instead of again and again."


def _rate_reasons(setting: Setting, rates: dict[Setting, Rate]) -> Iterator[str]:
    rate = rates[setting]
    yield f"It reads {rate.samples:,.0f} samples/s, {size_text(rate.bytes)}/s."
    other_way = LOADER if setting.way == DATALOADER else DATALOADER
    others = [one for one in rates if one.way == other_way]
    if others:
        other = max(others, key=lambda one: rates[one].samples)
        noun = "worker" if other_way == DATALOADER else "thread"
        what = f"{counted(other.workers, noun)}, batch {other.batch_size}"
        yield f"The best {other_way} ({what}) reaches {rates[other].samples / rate.samples:.0%} of that."
    shares: dict[int, float] = {}
    for one, found in rates.items():
        if one.batch_size != setting.batch_size and one.way == setting.way:
            shares[one.batch_size] = max(shares.get(one.batch_size, 0.0), found.samples / rate.samples)
    if shares:
        told = ", ".join(f"{share:.0%} ({size})" for size, share in shares.items())
        yield f"Of the same kind, other batch sizes reach {told}."


def _doubts(rates: dict[Setting, Rate]) -> Iterator[str]:
    spread = median(rate.fastest / rate.slowest for rate in rates.values())
    if spread > _WAVERING:
        yield (
            f"The passes of one setting differ by a factor of {spread:.1f}: the machine is busy, or --seconds too few; "
            "small differences tell nothing."
        )
