"""`packer doctor`: recommended settings for this machine, and its bottlenecks."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import click
import psutil

from packer import __version__
from packer.cli.logs import log_options
from packer.cli.text import json_text, listing, size_text
from packer.codecs import compiled, compiling, number_of
from packer.errors import ResourceError, UsageError, WriteError
from packer.format import Field, Manifest
from packer.format import manifest as manifests
from packer.machine import free_memory, memory, processors

#: File systems that are reached over a network, by the names Linux gives them.
_NETWORK = re.compile(
    r"(nfs\d?|cifs|smb\d?|smbfs|9p|afs|ceph|lustre|gpfs|beegfs\w*|glusterfs|orangefs|wekafs|virtiofs|panfs"
    r"|fuse\.(?!fuse-overlayfs|ntfs|exfat|portal|gvfsd|bindfs|mergerfs|lxcfs).*)"
)
_SHARED = Path("/dev/shm")
#: Packages whose versions decide values and speed: simplejpeg brings the libjpeg that decodes JPEG.
_PACKAGES = ("torch", "numpy", "numba", "simplejpeg", "pillow")
#: Samples of a batch, batches that each worker of a DataLoader keeps in shared memory, and workers at most.
_BATCH, _BATCHES, _WORKERS = 128, 3, 4
#: A field is better shuffled by blocks if one sample costs the decoding of more than this many.
_SHARED_FRAME = 4


@dataclass(frozen=True)
class Machine:
    """What the machine offers; None if this system does not say.

    Attributes:
        mount, kind: where the file system of the dataset is mounted, and its kind as Linux names it.
        free: bytes that programs and the page cache may still take.
        memory: bytes that this process may use: all of the machine's, or fewer in a container.
        shared, shared_free: bytes of /dev/shm, and how many of them are free.
        processors, cores: those that this process may use, and those of the machine.
        torch_threads: threads that torch starts for one call.
        cuda: name of the GPU that torch would use; None if it finds none.
        one_by_one: why frames are decoded one by one; None if machine code decodes whole batches, or will.
        compiled: the folders that hold this machine code, and that of other loops; none if some is not compiled yet.
        cache: the folders that get it; none if one cannot be written.
    """

    mount: str | None
    kind: str | None
    free: int
    memory: int | None
    shared: int | None
    shared_free: int | None
    processors: int
    cores: int
    torch_threads: int
    cuda: str | None
    one_by_one: str | None = None
    compiled: Sequence[Path] = ()
    cache: Sequence[Path] = ()

    @property
    def is_network(self) -> bool:
        """Return whether the dataset is reached over a network."""
        return self.kind is not None and _NETWORK.fullmatch(self.kind) is not None

    def holds(self, manifest: Manifest) -> bool:
        """Return whether the files of a dataset stay in memory once they were read."""
        return manifest.file_bytes < self.free


@dataclass(frozen=True)
class Finding:
    """One thing that was checked.

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
@click.argument("dataset", type=click.Path(path_type=Path), required=False)
@click.option(
    "--compile", "compile_now", is_flag=True, help="Compile all machine code (frames, crops, points), if it is not yet."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@log_options
def doctor(dataset: Path | None, compile_now: bool, as_json: bool) -> None:
    """Say how this machine suits the packed dataset DATASET: disk, memory, processors, GPU.

    It ends with the settings to start from. An exclamation mark shows what makes training slow, or fail.

    With --compile no DATASET is needed. It is for images of containers: else the first process that reads has another
    one compile the loops of frames, crops and points, once for each machine, and does without meanwhile.

    \b
    $ packer doctor div2k.packed
    $ packer doctor div2k.packed --json
    $ packer doctor --compile
    """
    if compile_now:
        click.echo(f"all machine code is compiled, in {_listed(_compile())}")
        if dataset is None:
            return
    if dataset is None:
        raise UsageError("DATASET is missing; `packer doctor --compile` alone needs none")
    all_findings = list(findings(manifests.read(dataset), machine_of(dataset)))
    if as_json:
        click.echo(json_text({"path": str(dataset), "findings": all_findings}))
        return
    pairs = []
    for finding in all_findings:
        pairs.append((f"{'!' if finding.hurts else ' '} {finding.topic}", finding.found))
        pairs += [("", finding.advice)] if finding.advice else []
    click.echo("\n".join(listing(pairs)))


def _compile() -> list[Path]:
    """Compile all loops that are not compiled; return the folders that hold them.

    Raises:
        WriteError: no folder can be written.
        ResourceError: numba does not work.
    """
    try:
        files = [compiling.compiled_files(module) or compiling.compile_loops(module) for module in compiling.MODULES]
    except OSError as error:
        raise WriteError(f"{error}; set NUMBA_CACHE_DIR to a folder that can be written") from None
    except Exception as error:  # numba, and whoever built a codec's package, has many ways to fail
        raise ResourceError(f"numba cannot compile: {type(error).__name__}: {error}; repair its installation") from None
    return [paths[0].parent for paths in files]


def _listed(folders: Iterable[Path]) -> str:
    return " and ".join(str(folder) for folder in dict.fromkeys(folders))


def machine_of(folder: Path) -> Machine:
    """Return what this machine offers a dataset in `folder`."""
    import torch  # here: it takes seconds to load, and `packer doctor --help` needs none

    path = folder.resolve()
    partitions = [
        partition for partition in psutil.disk_partitions(all=True) if path.is_relative_to(partition.mountpoint)
    ]
    # The deepest mount; the last of two at one place hides the other.
    deepest = sorted(partitions, key=lambda partition: len(partition.mountpoint))[-1:]
    files = [compiling.compiled_files(module) for module in compiling.MODULES]
    folders = [compiling.cache_folder(module) for module in compiling.MODULES]
    # Not where that would compile them.
    has_failed = files[0] and compiled.loading.load() is None
    shared = psutil.disk_usage(str(_SHARED)) if _SHARED.is_dir() else None
    return Machine(
        mount=deepest[0].mountpoint if deepest else None,
        kind=deepest[0].fstype if deepest else None,
        free=free_memory(),
        memory=memory(),
        shared=shared.total if shared else None,
        shared_free=shared.free if shared else None,
        processors=processors(),
        cores=os.cpu_count() or 1,
        torch_threads=torch.get_num_threads(),
        cuda=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        one_by_one=str(compiled.loading.failure) if has_failed else None,
        compiled=[paths[0].parent for paths in files] if all(files) else (),
        cache=[folder for folder in folders if folder is not None] if all(folders) else (),
    )


def shared_frames(fields: Iterable[Field]) -> dict[str, int]:
    """Return how many samples share a frame, by name of the field, for encoded fields with more than a few."""
    counts = {field.name: field.frame.samples or 1 for field in fields if field.codec}
    return {name: count for name, count in counts.items() if count > _SHARED_FRAME}


def findings(manifest: Manifest, machine: Machine) -> Iterator[Finding]:
    """Yield the findings; the last one is the line of Python to start from."""
    fits, shared = machine.holds(manifest), shared_frames(manifest.fields)
    if machine.kind is not None:
        advice = "copy the dataset to a local disk, or the first epoch waits for the network"
        observed = f"{machine.kind}, mounted at {machine.mount}"
        yield Finding("disk", observed, advice if machine.is_network else "", machine.is_network)
    of_total = f" of {size_text(machine.memory)}" if machine.memory is not None else ""
    observed = (
        f"the dataset takes {size_text(manifest.file_bytes)}; {size_text(machine.free)}{of_total} of memory are free"
    )
    advice = "it does not stay in memory: shuffle by blocks, so that the disk is read in long runs"
    yield Finding(
        "memory", observed, "nothing is read from the disk after the first epoch" if fits else advice, not fits
    )
    if shared:
        observed = "decoded together: " + ", ".join(f"{count} samples of {name!r}" for name, count in shared.items())
        advice = 'reading one at random decodes all of them: shuffle="block" decodes each frame about once an epoch'
        yield Finding("codec", observed, advice, hurts=True)
    if any(number_of(field.codec) is not None for field in manifest.fields):
        yield _machine_code(machine)
    size = max(min(_BATCH, manifest.samples), 1)
    batch = size * manifest.raw_bytes // max(manifest.samples, 1)
    if machine.shared_free is not None:
        of_total = f" of {size_text(machine.shared)}" if machine.shared is not None else ""
        observed = (
            f"/dev/shm has {size_text(machine.shared_free)}{of_total} free; a batch of {size} takes {size_text(batch)}"
        )
        needed, advice = batch * _BATCHES * _WORKERS, f"{_WORKERS} workers of a DataLoader may end in a bus error: "
        advice += f"take Loader, which needs none, or give them {size_text(needed)} (docker: --shm-size)"
        hurts = needed > machine.shared_free
        yield Finding("shared memory", observed, advice if hurts else "", hurts)
    advice = "workers of a DataLoader only cost time here: take num_workers=0, or Loader"
    is_fewer = machine.processors < machine.cores
    observed = f"{machine.processors:,} of the machine's {machine.cores:,}" if is_fewer else f"{machine.processors:,}"
    yield Finding("processors", observed, advice if machine.processors == 1 else "")
    if machine.torch_threads > machine.processors:
        advice = (
            f"they take turns: torch.set_num_threads({machine.processors}), or OMP_NUM_THREADS={machine.processors}"
        )
        yield Finding("torch", f"starts {machine.torch_threads:,} threads for one call", advice, hurts=True)
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    yield Finding("versions", f"packer {__version__}, Python {platform.python_version()}, {packages}", "")
    advice = "give the loader the device: batches are then copied during the training step"
    yield Finding("GPU", machine.cuda or "torch finds none", advice if machine.cuda else "")
    shuffle, device = '"block"' if shared or not fits else "True", ', device="cuda"' if machine.cuda else ""
    yield Finding("use", f"Loader(dataset, batch_size={size}, shuffle={shuffle}{device})")


def _machine_code(machine: Machine) -> Finding:
    """Return whether frames are decoded by machine code, and where it is kept."""
    if machine.one_by_one is not None:
        advice = "the package numba decodes whole batches at least twice as fast: repair its installation"
        return Finding("codec", f"frames are decoded one by one: {machine.one_by_one}", advice, hurts=True)
    if machine.compiled:
        return Finding("machine code", f"compiled, in {_listed(machine.compiled)}")
    if machine.cache:
        advice = "the first process that reads has another one do it; `packer doctor --compile` does it now"
        return Finding("machine code", f"not compiled yet; it goes into {_listed(machine.cache)}", advice)
    advice = (
        "each process compiles for itself, 8 s of processor time: set NUMBA_CACHE_DIR to a folder that can be written"
    )
    return Finding("machine code", "no folder that it could go into can be written", advice, hurts=True)
