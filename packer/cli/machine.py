"""What a machine offers to a training program: memory, shared memory, processors, file system, GPU."""

from __future__ import annotations

import contextlib
import multiprocessing
import re
from dataclasses import dataclass
from pathlib import Path

import psutil

from packer.codecs import compiled
from packer.convert import processors
from packer.format import Manifest

#: File systems that are reached over a network, by the names Linux gives them.
_NETWORK = re.compile(
    r"(nfs\d?|cifs|smb\d?|smbfs|9p|afs|ceph|lustre|gpfs|beegfs\w*|glusterfs|orangefs|wekafs|virtiofs|panfs"
    r"|fuse\.(?!fuse-overlayfs|ntfs|exfat|portal|gvfsd|bindfs|mergerfs|lxcfs).*)"
)
_SHARED = Path("/dev/shm")
#: Where a container finds the limit of its memory, by version of cgroups.
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True)
class Machine:
    """What was found; None if this system does not say.

    Attributes:
        mount, kind: where the file system of the dataset is mounted, and its kind as Linux names it.
        free: bytes that programs and the page cache may still take.
        shared_free: free bytes of /dev/shm.
        processors: those that this process may use.
        start_method: how multiprocessing makes processes.
        open_files: how many files a process may have open.
        cuda: name of the GPU that torch would use; None if it finds none.
        one_by_one: why frames are decoded one by one; None if machine code decodes whole batches.
    """

    mount: str | None
    kind: str | None
    free: int
    shared_free: int | None
    processors: int
    start_method: str
    open_files: int | None
    cuda: str | None
    one_by_one: str | None = None

    @property
    def is_network(self) -> bool:
        """Return whether the dataset is reached over a network."""
        return self.kind is not None and _NETWORK.fullmatch(self.kind) is not None

    def holds(self, manifest: Manifest) -> bool:
        """Return whether the files of a dataset stay in memory once they were read."""
        return manifest.file_bytes < self.free


def machine_of(folder: Path) -> Machine:
    """Return the machine, as it is for a dataset in `folder`."""
    import torch  # here: it takes seconds to load, and `packer doctor --help` needs none

    place = folder.resolve()
    partitions = [one for one in psutil.disk_partitions(all=True) if place.is_relative_to(one.mountpoint)]
    # The deepest mount; the last of two at one place hides the other.
    deepest = sorted(partitions, key=lambda one: len(one.mountpoint))[-1:]
    return Machine(
        mount=deepest[0].mountpoint if deepest else None,
        kind=deepest[0].fstype if deepest else None,
        free=free_memory(),
        shared_free=psutil.disk_usage(str(_SHARED)).free if _SHARED.is_dir() else None,
        processors=processors(),
        start_method=multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0],
        open_files=psutil.Process().rlimit(psutil.RLIMIT_NOFILE)[0] if psutil.LINUX else None,
        cuda=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        one_by_one=None if compiled.loading.load() is not None else str(compiled.loading.failure),
    )


def free_memory() -> int:
    """Return the bytes that programs and the page cache may still take: no more than the limit of a container."""
    free: int = psutil.virtual_memory().available
    for path in _LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or the word `max`
            free = min(free, int(path.read_text()))
    return free
