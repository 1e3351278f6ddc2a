"""`packer doctor`: which settings suit this machine, and what will hurt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from packer.cli.logs import log_options
from packer.cli.machine import Machine, machine_of
from packer.cli.text import counted, indented, listing, size_text
from packer.codecs.compiled import number_of
from packer.format import manifest as manifests
from packer.format.manifest import Manifest

#: The batch that shared memory is measured for, and how many of them lie there for each worker of a DataLoader:
#: those it has read ahead, and the one that is being used.
BATCH = 128
_BATCHES = 3
#: Workers that a DataLoader would have at most.
_WORKERS = 4
#: A field is better shuffled by blocks if one sample costs the decoding of more than this many.
_SHARED_FRAME = 4
#: Files that a process has open besides the shards.
_OTHER_FILES = 64


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with exact bytes.")
@log_options
def doctor(dataset: Path, as_json: bool) -> None:
    """Say how this machine suits the packed dataset DATASET: disk, memory, processors, GPU.

    Ends with the settings to start from. What will make training slow, or fail, is marked with an exclamation mark.

    \b
    $ packer doctor div2k.packed
    $ packer doctor div2k.packed --json
    """
    manifest = manifests.read(dataset)
    machine = machine_of(dataset)
    found = findings(manifest, machine)
    network = machine.file_system.is_network if machine.file_system else None
    document = {"path": str(dataset), "machine": machine, "network": network, "findings": found}
    click.echo(indented(document) if as_json else "\n".join(_lines(found)))


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        found: what there is.
        advice: what to do about it; empty if all is well.
        hurts: whether training will be slow, or fail, unless something is done.
    """

    topic: str
    found: str
    advice: str = ""
    hurts: bool = False


def findings(manifest: Manifest, machine: Machine) -> list[Finding]:
    """Return all findings, and the settings they lead to as the last."""
    return [
        *_of_files(manifest, machine),
        *_of_batches(manifest, machine),
        *_of_processes(manifest, machine),
        Finding("use", setting(manifest, machine)),
    ]


def setting(manifest: Manifest, machine: Machine) -> str:
    """Return the line of Python to start from."""
    shuffle = '"block"' if _shared_frames(manifest) or not machine.holds(manifest) else "True"
    device = ', device="cuda"' if machine.cuda else ""
    return f"Loader(dataset, batch_size={_batch(manifest)}, shuffle={shuffle}{device})"


def _batch(manifest: Manifest) -> int:
    """Return the samples of a batch: no more than there are."""
    return max(min(BATCH, manifest.samples), 1)


def _shared_frames(manifest: Manifest) -> dict[str, int]:
    """Return the samples in a frame, of the fields of which many encoded samples share one."""
    counts = {field.name: field.frame.samples or 1 for field in manifest.fields if field.codec}
    return {name: count for name, count in counts.items() if count > _SHARED_FRAME}


def _of_files(manifest: Manifest, machine: Machine) -> Iterator[Finding]:
    if machine.file_system is not None:
        place, advice = machine.file_system, ""
        if place.is_network:
            advice = (
                "reached over a network: copy the dataset to a local disk, or the first epoch waits for the network"
            )
        elif place.kind in ("tmpfs", "ramfs"):
            advice = "the dataset lies in memory, and is lost when the machine restarts"
        yield Finding("disk", f"{place.kind}, mounted at {place.mount}", advice, hurts=place.is_network)
    if machine.free is not None:
        fits = machine.holds(manifest)
        advice = "from the second epoch on nothing is read from the disk"
        if not fits:
            advice = "it does not stay in memory: shuffle by blocks, so that the disk is read in long runs"
            if all(not field.codec for field in manifest.fields):
                advice += "; `packer repack --codec auto` may make it smaller"
        size = f"the dataset takes {size_text(manifest.file_bytes)}, {size_text(machine.free)} of memory are free"
        yield Finding("memory", size, advice, hurts=not fits)


def _of_batches(manifest: Manifest, machine: Machine) -> Iterator[Finding]:
    if shared := _shared_frames(manifest):
        found = "decoded together: " + ", ".join(f"{count} samples of {name!r}" for name, count in shared.items())
        advice = 'reading one at random decodes all of them: shuffle="block" decodes each frame about once an epoch'
        yield Finding("codec", found, advice, hurts=True)
    if machine.one_by_one is not None and any(number_of(field.codec) is not None for field in manifest.fields):
        found = f"frames are decoded one by one: {machine.one_by_one}"
        advice = "the package numba decodes whole batches at least twice as fast: repair its installation"
        yield Finding("codec", found, advice, hurts=True)
    if machine.shared_free is not None:
        free = machine.shared_free
        batch = _batch(manifest) * manifest.raw_bytes // max(manifest.samples, 1)
        needed, advice = batch * _BATCHES * _WORKERS, ""
        if needed > free:
            workers = counted(free // (batch * _BATCHES), "worker")
            advice = (
                f"a DataLoader with more than {workers} may end in a bus error: take Loader, which needs none, "
                f"or give it {size_text(needed)} (docker: --shm-size)"
            )
        found = f"/dev/shm has {size_text(free)} free; a batch of {_batch(manifest)} takes {size_text(batch)}"
        yield Finding("shared memory", found, advice, hurts=needed > free)


def _of_processes(manifest: Manifest, machine: Machine) -> Iterator[Finding]:
    found, advice = f"{counted(machine.processors, 'processor')}; processes are made by {machine.start_method}", ""
    if machine.processors == 1:
        advice = "workers of a DataLoader only cost time here: take num_workers=0, or Loader"
    elif machine.start_method != "fork":
        advice = "each worker of a DataLoader imports torch for some seconds: take persistent_workers=True, or Loader"
    yield Finding("processors", found, advice)
    needed = len(manifest.shards) + _OTHER_FILES
    if machine.open_files is not None and machine.open_files < needed:
        found = f"{counted(len(manifest.shards), 'shard')}, and a process may open {machine.open_files:,} files"
        advice = f"raise the limit (ulimit -n {needed}), or `packer repack` with a larger --shard-size"
        yield Finding("open files", found, advice, hurts=True)
    if machine.cuda is None:
        yield Finding("GPU", "torch finds none")
    else:
        advice = "give the loader the device: batches are then copied during the training step"
        yield Finding("GPU", machine.cuda, advice)


def _lines(found: Sequence[Finding]) -> list[str]:
    """Return what was found, and below it what to do."""
    pairs = []
    for finding in found:
        pairs.append((f"{'!' if finding.hurts else ' '} {finding.topic}", finding.found))
        if finding.advice:
            pairs.append(("", finding.advice))
    return listing(pairs)
