"""What a machine offers to a training program: memory, shared memory, processors, file system, GPU."""

from __future__ import annotations

import multiprocessing
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from packer.format.manifest import Manifest

#: File systems that are reached over a network, by the names Linux gives them.
_NETWORK = re.compile(
    r"(nfs\d?|cifs|smb\d?|smbfs|9p|afs|ceph|lustre|gpfs|beegfs\w*|glusterfs|orangefs|wekafs|virtiofs|panfs"
    r"|fuse\.(?!fuse-overlayfs|ntfs|exfat|portal|gvfsd|bindfs|mergerfs|lxcfs).*)"
)
_MOUNTS = Path("/proc/self/mounts")
_MEMORY = Path("/proc/meminfo")
_SHARED = Path("/dev/shm")
#: Files of a container, by version of cgroups: the memory that it may use, what it uses, and what of that is what.
_LIMITS = tuple(
    tuple(Path("/sys/fs/cgroup", *place, name) for name in names)
    for place, names in (
        ((), ("memory.max", "memory.current", "memory.stat")),
        (("memory",), ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")),
    )
)
#: What counts as used and is given up if memory is needed: files that were read.
_CACHED = re.compile(r"^(?:active|inactive)_file (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class FileSystem:
    """Where a folder lies: the mount point, its kind as Linux names it, and whether that is over a network."""

    mount: str
    kind: str

    @property
    def is_network(self) -> bool:
        return _NETWORK.fullmatch(self.kind) is not None


@dataclass(frozen=True)
class Machine:
    """What was found; None if it cannot be told on this system.

    Attributes:
        memory, free: bytes in all, and those that programs and the page cache may still take; of the container,
            if that has less than the machine.
        shared, shared_free: bytes of /dev/shm.
        processors: those that this process may use.
        start_method: how multiprocessing makes processes.
        open_files: how many files a process may have open.
        cuda: name of the GPU that torch would use; None if it finds none.
        one_by_one: why frames are decoded one by one; None if machine code decodes whole batches.
    """

    file_system: FileSystem | None
    memory: int | None
    free: int | None
    shared: int | None
    shared_free: int | None
    processors: int
    start_method: str
    open_files: int | None
    cuda: str | None
    one_by_one: str | None = None

    def holds(self, manifest: Manifest) -> bool:
        """Return whether the files of a dataset stay in memory once they were read; True if it cannot be told."""
        return self.free is None or manifest.file_bytes < self.free


def machine_of(folder: Path) -> Machine:
    """Return the machine, as it is for a dataset in `folder`."""
    from packer.codecs.compiled import loading
    from packer.convert import processors

    memory, free = memory_of()
    shared = shutil.disk_usage(_SHARED) if _SHARED.is_dir() else None
    return Machine(
        file_system=file_system(folder),
        memory=memory,
        free=free,
        shared=shared.total if shared else None,
        shared_free=shared.free if shared else None,
        processors=processors(),
        start_method=multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0],
        open_files=_open_files(),
        cuda=_cuda(),
        one_by_one=None if loading.load() is not None else str(loading.failure),
    )


def file_system(folder: Path, mounts: Path = _MOUNTS) -> FileSystem | None:
    """Return the file system of `folder`, from the table of mounts; None if there is no such table."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return None
    place = folder.resolve()
    found = None
    for line in lines:
        _, mount, kind, *_ = line.split()
        mount = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), mount)  # blanks are written as \040
        # The last of two that are mounted at one place hides the other.
        if place.is_relative_to(mount) and (found is None or len(mount) >= len(found.mount)):
            found = FileSystem(mount, kind)
    return found


def memory_of() -> tuple[int | None, int | None]:
    """Return bytes of memory in all, and free for programs and the page cache."""
    try:
        lines = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
        total, free = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError):
        return None, None
    for limit, used, kinds in _LIMITS:
        try:
            most = int(limit.read_text())
            if most < total:
                cached = sum(map(int, _CACHED.findall(kinds.read_text() if kinds.exists() else "")))
                return most, min(free, most - int(used.read_text()) + cached)
        except (OSError, ValueError):  # no such file, or the word `max`
            continue
    return total, free


def _open_files() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _cuda() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
