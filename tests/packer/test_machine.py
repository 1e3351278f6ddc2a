"""The processors and the memory that a process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from packer.machine import memory, processors


def container(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    """A made-up root folder: the text of /proc/self/cgroup, and files below /sys/fs/cgroup."""
    for path, text in {"proc/self/cgroup": cgroup, **{f"sys/fs/cgroup/{p}": t for p, t in files.items()}}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.mark.parametrize(
    ("cgroup", "files", "count", "nbytes"),
    [
        ("0::/\n", {"cpu.max": "100000 100000\n", "memory.max": "1000000000\n"}, 1, 10**9),
        ("0::/\n", {"cpu.max": "max 100000\n", "memory.max": "max\n"}, 8, 2**36),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2, 2**36),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000", "a/memory.max": "500"}, 3, 500),
        (
            "3:memory:/docker/x\n2:cpu,cpuacct:/docker/x\n",
            {
                "cpu,cpuacct/cpu.cfs_quota_us": "20000\n",
                "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
                "memory/memory.limit_in_bytes": "1000000000\n",
            },
            1,
            10**9,
        ),
        (
            "3:memory:/\n2:cpu:/\n0::/\n",
            {
                "cpu/cpu.cfs_quota_us": "-1\n",
                "cpu/cpu.cfs_period_us": "100000\n",
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            8,
            2**36,
        ),
        ("", {}, 8, 2**36),
    ],
    ids=["v2", "v2 without limits", "parts of a processor", "v2 nested", "v1", "v1 without limits", "none"],
)
def test_the_limits_of_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, files: dict[str, str], count: int, nbytes: int
) -> None:
    """A process may use what its cgroup and all above it allow, of either version of cgroups."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 2**24, "SC_PAGE_SIZE": 4096}.__getitem__)
    root = container(tmp_path, cgroup, files)
    assert (processors(root), memory(root)) == (count, nbytes)
