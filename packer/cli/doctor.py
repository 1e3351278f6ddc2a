"""`packer doctor`: which settings suit this machine, and what will hurt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from packer.cli.logs import log_options
from packer.cli.machine import Machine, machine_of
from packer.cli.text import counted, indented, listing, size_text
from packer.codecs import number_of
from packer.format import Field, Manifest
from packer.format import manifest as manifests

#: The batch that shared memory is measured for, how many of them each worker of a DataLoader keeps there (those it has
#: read ahead, and the one that is being used), and how many workers there are at most.
_BATCH, _BATCHES, _WORKERS = 128, 3, 4
#: A field is better shuffled by blocks if one sample costs the decoding of more than this many.
_SHARED_FRAME = 4
#: Files that a process has open besides the shards.
_OTHER_FILES = 64


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


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@log_options
def doctor(dataset: Path, as_json: bool) -> None:
    """Say how this machine suits the packed dataset DATASET: disk, memory, processors, GPU.

    Ends with the settings to start from. What will make training slow, or fail, is marked with an exclamation mark.

    \b
    $ packer doctor div2k.packed
    $ packer doctor div2k.packed --json
    """
    found = list(findings(manifests.read(dataset), machine_of(dataset)))
    if as_json:
        click.echo(indented({"path": str(dataset), "findings": found}))
        return
    pairs = []
    for one in found:
        pairs.append((f"{'!' if one.hurts else ' '} {one.topic}", one.found))
        pairs += [("", one.advice)] if one.advice else []
    click.echo("\n".join(listing(pairs)))


def findings(manifest: Manifest, machine: Machine) -> Iterator[Finding]:
    """Yield what was found, and as the last the line of Python to start from."""
    fits, shared = machine.holds(manifest), shared_frames(manifest.fields)
    yield from _of_files(manifest, machine, fits)
    if shared:
        found = "decoded together: " + ", ".join(f"{count} samples of {name!r}" for name, count in shared.items())
        advice = 'reading one at random decodes all of them: shuffle="block" decodes each frame about once an epoch'
        yield Finding("codec", found, advice, hurts=True)
    if machine.one_by_one is not None and any(number_of(field.codec) is not None for field in manifest.fields):
        found = f"frames are decoded one by one: {machine.one_by_one}"
        advice = "the package numba decodes whole batches at least twice as fast: repair its installation"
        yield Finding("codec", found, advice, hurts=True)
    size = max(min(_BATCH, manifest.samples), 1)
    yield from _of_processes(manifest, machine, size)
    advice = (
        "" if machine.cuda is None else "give the loader the device: batches are then copied during the training step"
    )
    yield Finding("GPU", machine.cuda or "torch finds none", advice)
    shuffle, device = '"block"' if shared or not fits else "True", ', device="cuda"' if machine.cuda else ""
    yield Finding("use", f"Loader(dataset, batch_size={size}, shuffle={shuffle}{device})")


def shared_frames(fields: Iterable[Field]) -> dict[str, int]:
    """Return the samples in a frame, of the fields of which many encoded samples share one."""
    counts = {field.name: field.frame.samples or 1 for field in fields if field.codec}
    return {name: count for name, count in counts.items() if count > _SHARED_FRAME}


def _of_files(manifest: Manifest, machine: Machine, fits: bool) -> Iterator[Finding]:
    if machine.kind is not None:
        advice = ""
        if machine.is_network:
            advice = (
                "reached over a network: copy the dataset to a local disk, or the first epoch waits for the network"
            )
        elif machine.kind in ("tmpfs", "ramfs"):
            advice = "the dataset lies in memory, and is lost when the machine restarts"
        yield Finding("disk", f"{machine.kind}, mounted at {machine.mount}", advice, machine.is_network)
    size = f"the dataset takes {size_text(manifest.file_bytes)}, {size_text(machine.free)} of memory are free"
    advice = "from the second epoch on nothing is read from the disk"
    if not fits:
        advice = "it does not stay in memory: shuffle by blocks, so that the disk is read in long runs"
    yield Finding("memory", size, advice, hurts=not fits)
    needed = len(manifest.shards) + _OTHER_FILES
    if machine.open_files is not None and machine.open_files < needed:
        found = f"{counted(len(manifest.shards), 'shard')}, and a process may open {machine.open_files:,} files"
        advice = f"raise the limit (ulimit -n {needed}), or `packer repack` with a larger --shard-size"
        yield Finding("open files", found, advice, hurts=True)


def _of_processes(manifest: Manifest, machine: Machine, size: int) -> Iterator[Finding]:
    """Yield what was found about the workers of a DataLoader, with batches of `size` samples."""
    if machine.shared_free is not None:
        batch = size * manifest.raw_bytes // max(manifest.samples, 1)
        needed, advice = batch * _BATCHES * _WORKERS, ""
        if needed > machine.shared_free:
            advice = (
                f"{_WORKERS} workers of a DataLoader may end in a bus error: take Loader, which needs none, or give "
                f"them {size_text(needed)} (docker: --shm-size)"
            )
        found = f"/dev/shm has {size_text(machine.shared_free)} free; a batch of {size} takes {size_text(batch)}"
        yield Finding("shared memory", found, advice, hurts=bool(advice))
    found, advice = f"{counted(machine.processors, 'processor')}; processes are made by {machine.start_method}", ""
    if machine.processors == 1:
        advice = "workers of a DataLoader only cost time here: take num_workers=0, or Loader"
    elif machine.start_method != "fork":
        advice = "each worker of a DataLoader imports torch for some seconds: take persistent_workers=True, or Loader"
    yield Finding("processors", found, advice)
