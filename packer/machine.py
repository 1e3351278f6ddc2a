"""The processors and the memory that this process may use: fewer than the machine has in a container or batch job."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

GIB = 2**30


def processors(root: Path = Path("/")) -> int:
    """Return how many processors this process may use: fewer than the machine has in a container or a batch job.

    Args:
        root: the folder that holds `proc` and `sys`.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = _cgroup_limits("cpu", ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"), root)
    return max(min([count, *(-(-quota // period) for quota, period in limits)]), 1)


def memory(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory this process may use: the machine's, or fewer in a container; None if not known.

    Args:
        root: the folder that holds `proc` and `sys`.
    """
    if not hasattr(os, "sysconf"):
        return None
    of_machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = _cgroup_limits("memory", ("memory.max", "memory.limit_in_bytes"), root)
    return min([of_machine, *(limit for (limit,) in limits)])


def free_memory() -> int:
    """Return the bytes that programs and the page cache may still take: no more than the limit of a container."""
    import psutil  # here: few commands need it

    free: int = psutil.virtual_memory().available
    return min(free, memory() or free)


def usual_memory() -> int:
    """Return the usual limit of memory: an eighth of what there is, but 1 GiB at least and half of it at most."""
    total = memory()
    return GIB if total is None else min(max(GIB, total // 8), total // 2)


def _cgroup_limits(controller: str, files: Sequence[str], root: Path) -> Iterator[list[int]]:
    """Yield the numbers in `files`, joined, of this process's cgroup and of all cgroups above it that set a limit.

    A folder has the files of one version of cgroups. Within a container the path of its cgroup may be that of the
    machine, of which only the top is mounted: a folder that is missing is passed over.
    """
    with contextlib.suppress(OSError):  # not Linux
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number != "0" and controller not in controllers.split(","):
                continue
            top = root / "sys/fs/cgroup" / controllers
            group = top / path.lstrip("/")
            for folder in (group, *group.parents):
                if not folder.is_relative_to(top):
                    break
                words = [word for name in files if (folder / name).is_file() for word in _words(folder / name)]
                if words and words[0].isdigit():  # neither `max` nor -1
                    yield [int(word) for word in words]


def _words(path: Path) -> list[str]:
    return path.read_text().split()
