"""The setting to start from, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from packer.cli.benching.results import Advice, Rate, Speed, Split
from packer.cli.benching.settings import DATALOADER, INDEXING, LOADER, Setting
from packer.cli.benching.subject import Subject
from packer.cli.tables import counted
from packer.cli.units import size_text
from readers import Loader

#: Of settings that reach this share of the best rate, the simplest is recommended.
_AS_GOOD = 0.9
#: Fastest over slowest pass from which it is said that rates waver.
_WAVERING = 1.5
#: A part is named where it takes this share of a batch's time.
_LARGE_PART = 0.4
_REMEDIES = {
    "rest": "larger batches share that cost among more samples",
    "reading": "a faster disk, or more memory for the page cache, would help most",
    "decoding": "`packer repack --codec lz4` or `--codec none` would trade disk space for speed",
    "handing over": "larger batches share that cost among more samples",
}


def fits_memory(subject: Subject) -> bool:
    """Whether the dataset stays in memory once it was read; True where that cannot be told."""
    free = subject.machine.free
    return free is None or subject.manifest.file_bytes < free


def advice(subject: Subject, speeds: Sequence[Speed], splits: Sequence[Split], fits: bool) -> Advice | None:
    """The simplest of the fastest loaders, by the rates that count on this machine; None where none was measured."""
    is_cold = not fits and any(speed.cold for speed in speeds)
    rates = {speed.setting: rate for speed in speeds if (rate := speed.cold if is_cold else speed.warm)}
    loaders = {setting: rate for setting, rate in rates.items() if setting.way != INDEXING}
    if not loaders:
        return None
    best = max(rate.samples for rate in loaders.values())
    good = [one for one, rate in loaders.items() if rate.samples >= _AS_GOOD * best]
    setting = min(good, key=lambda one: (*_effort(one), -loaders[one].samples))
    reasons = [
        *_rate_reasons(setting, loaders),
        *_block_reasons(setting),
        _memory_reason(subject, fits, is_cold),
        *_split_reasons(setting, splits, "cold" if is_cold else "warm"),
        *_doubts(loaders),
    ]
    return Advice(setting, _code(subject, setting), reasons)


def _effort(setting: Setting) -> tuple[bool, int, bool]:
    """What one would rather do without: worker processes, workers, an order that is not fully random."""
    return setting.way == DATALOADER, setting.workers, setting.shuffle != "full"


def _code(subject: Subject, setting: Setting) -> str:
    """The line of Python that makes the loader."""
    import torch

    shuffle = '"block"' if setting.shuffle == "block" else "True"
    given = f"dataset, batch_size={setting.batch_size}, shuffle={shuffle}"
    cuda = torch.cuda.is_available()
    if setting.way == DATALOADER:
        workers = f", num_workers={setting.workers}, persistent_workers=True" if setting.workers else ""
        return f"DataLoader({given}{workers}{', pin_memory=True' if cuda else ''})"
    is_auto = Loader(subject.open(), setting.batch_size).threads == setting.workers
    threads = "" if is_auto else f", threads={setting.workers}"
    device = ', device="cuda"' if cuda else ""
    return f"Loader({given}{threads}{device})"


def _memory_reason(subject: Subject, fits: bool, is_cold: bool) -> str:
    size = size_text(subject.manifest.file_bytes)
    if fits:
        return f"The dataset ({size}) fits into the free memory: from the second epoch on it is read warm."
    basis = "the cold rates count" if is_cold else "the first epoch's rates would count, but cold ones are not known"
    return f"The dataset ({size}) does not fit into the free memory: {basis}."


def _block_reasons(setting: Setting) -> Iterator[str]:
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


def _split_reasons(setting: Setting, splits: Sequence[Split], state: str) -> Iterator[str]:
    alone = Setting(setting.way, setting.batch_size, min(setting.workers, 1))
    for split in splits:
        if split.setting == alone and split.state == state:
            share, name = max((seconds / split.batch, name) for name, seconds in split.parts.items())
            if share >= _LARGE_PART:
                remedy = f": {_REMEDIES[name]}" if name in _REMEDIES else ""
                what = "finding samples, and calls" if name == "rest" else name
                yield f"Of a batch's time, {share:.0%} is {what}{remedy}."
