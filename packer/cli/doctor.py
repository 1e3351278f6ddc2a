"""`packer doctor`: which settings suit this machine, and what will hurt."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from packer.cli.logs import log_options
from packer.cli.machine import Machine, machine_of
from packer.cli.text import counted, indented, printable, size_text, terminal_width
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
    click.echo(json_text(dataset, machine, found) if as_json else "\n".join(finding_lines(found)))


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
    found = [
        *_file_system(machine),
        *_memory(manifest, machine),
        *_frames(manifest),
        *_decoding(manifest, machine),
        *_shared_memory(manifest, machine),
        *_processes(machine),
        *_open_files(manifest, machine),
        _gpu(machine),
    ]
    return [*found, Finding("use", setting(manifest, machine))]


def setting(manifest: Manifest, machine: Machine) -> str:
    """Return the line of Python to start from."""
    shuffle = '"block"' if _shared_frames(manifest) or not _fits(manifest, machine) else "True"
    device = ', device="cuda"' if machine.cuda else ""
    return f"Loader(dataset, batch_size={_batch(manifest)}, shuffle={shuffle}{device})"


def _batch(manifest: Manifest) -> int:
    """Samples of a batch: no more than there are."""
    return max(min(BATCH, manifest.samples), 1)


def _file_system(machine: Machine) -> Iterator[Finding]:
    place = machine.file_system
    if place is None:
        return
    found = f"{place.kind}, mounted at {place.mount}"
    if place.is_network:
        advice = "reached over a network: copy the dataset to a local disk, or the first epoch waits for the network"
        yield Finding("disk", found, advice, hurts=True)
    elif place.kind in ("tmpfs", "ramfs"):
        yield Finding("disk", found, "the dataset lies in memory, and is lost when the machine restarts")
    else:
        yield Finding("disk", found)


def _memory(manifest: Manifest, machine: Machine) -> Iterator[Finding]:
    if machine.memory is None or machine.free is None:
        return
    size = f"the dataset takes {size_text(manifest.file_bytes)}, {size_text(machine.free)} of memory are free"
    if _fits(manifest, machine):
        yield Finding("memory", size, "from the second epoch on nothing is read from the disk")
        return
    advice = "it does not stay in memory: shuffle by blocks, so that the disk is read in long runs"
    if all(not field.codec for field in manifest.fields):
        advice += "; `packer repack --codec auto` may make it smaller"
    yield Finding("memory", size, advice, hurts=True)


def _fits(manifest: Manifest, machine: Machine) -> bool:
    return machine.free is None or manifest.file_bytes < machine.free


def _frames(manifest: Manifest) -> Iterator[Finding]:
    shared = _shared_frames(manifest)
    if shared:
        found = "decoded together: " + ", ".join(f"{count} samples of {name!r}" for name, count in shared.items())
        advice = 'reading one at random decodes all of them: shuffle="block" decodes each frame about once an epoch'
        yield Finding("codec", found, advice, hurts=True)


def _decoding(manifest: Manifest, machine: Machine) -> Iterator[Finding]:
    if machine.one_by_one is not None and any(number_of(field.codec) is not None for field in manifest.fields):
        found = f"frames are decoded one by one: {machine.one_by_one}"
        advice = "the package numba decodes whole batches at least twice as fast: repair its installation"
        yield Finding("codec", found, advice, hurts=True)


def _shared_frames(manifest: Manifest) -> dict[str, int]:
    """Samples in a frame, of the fields of which many encoded samples share one."""
    counts = {field.name: field.frame.samples or 1 for field in manifest.fields if field.codec}
    return {name: count for name, count in counts.items() if count > _SHARED_FRAME}


def _shared_memory(manifest: Manifest, machine: Machine) -> Iterator[Finding]:
    if machine.shared is None or machine.shared_free is None:
        return
    raw = sum(column.raw for column in manifest.columns.values())
    batch = _batch(manifest) * raw // max(manifest.samples, 1)
    needed = batch * _BATCHES * _WORKERS
    found = (
        f"/dev/shm has {size_text(machine.shared_free)} free; a batch of {_batch(manifest)} takes {size_text(batch)}"
    )
    if needed <= machine.shared_free:
        yield Finding("shared memory", found)
        return
    workers = machine.shared_free // (batch * _BATCHES)
    least = size_text(needed)
    advice = f"a DataLoader with more than {counted(workers, 'worker')} may end in a bus error: take Loader, which "
    yield Finding("shared memory", found, f"{advice}needs none, or give it {least} (docker: --shm-size)", hurts=True)


def _processes(machine: Machine) -> Iterator[Finding]:
    found = f"{counted(machine.processors, 'processor')}; processes are made by {machine.start_method}"
    if machine.processors == 1:
        yield Finding("processors", found, "workers of a DataLoader only cost time here: take num_workers=0, or Loader")
    elif machine.start_method == "fork":
        yield Finding("processors", found)
    else:
        advice = "each worker of a DataLoader imports torch for some seconds: take persistent_workers=True, or Loader"
        yield Finding("processors", found, advice)


def _open_files(manifest: Manifest, machine: Machine) -> Iterator[Finding]:
    needed = len(manifest.shards) + _OTHER_FILES
    if machine.open_files is not None and machine.open_files < needed:
        found = f"{counted(len(manifest.shards), 'shard')}, and a process may open {machine.open_files:,} files"
        advice = f"raise the limit (ulimit -n {needed}), or `packer repack` with a larger --shard-size"
        yield Finding("open files", found, advice, hurts=True)


def _gpu(machine: Machine) -> Finding:
    if machine.cuda is None:
        return Finding("GPU", "torch finds none")
    return Finding("GPU", machine.cuda, "give the loader the device: batches are then copied during the training step")


def finding_lines(found: Sequence[Finding]) -> list[str]:
    """What was found, and below it what to do; wrapped to the terminal."""
    indent = 4 + max(len(finding.topic) for finding in found)
    lines = []
    for finding in found:
        head = f"{'!' if finding.hurts else ' '} {finding.topic}".ljust(indent)
        for text in (finding.found, finding.advice):
            if text:
                width = max(terminal_width(), indent + 20)
                lines += textwrap.wrap(printable(text), width, initial_indent=head, subsequent_indent=" " * indent)
                head = " " * indent
    return lines


def json_text(path: Path, machine: Machine, found: Sequence[Finding]) -> str:
    """One JSON object: the machine in numbers, and the findings."""
    place = machine.file_system
    document = {
        "path": str(path),
        "machine": machine,
        "network": place.is_network if place else None,
        "findings": found,
    }
    return indented(document)
