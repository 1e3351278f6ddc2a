"""Any system call fails: one of our errors, nothing lost or left open, and the same command then succeeds."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from packer.format import PARTIAL

if sys.platform.startswith("linux"):
    from soaking import failing
    from soaking.jobs import JOBS, new_job
    from soaking.watched import KINDS, watched
else:
    pytest.skip("looks into /proc", allow_module_level=True)

#: Calls of each kind that fail in each job, evenly spread. `soak.py fail` tries more.
MOST = 2


@pytest.mark.parametrize("name", JOBS)
def test_every_kind_of_call(folder: Path, name: str) -> None:
    """Whichever call fails, for whatever reason, the job ends with status 1; run again, it ends as usual."""
    job = failing.new_job(folder, name)
    seen = set()
    for turn, (kind, calls) in enumerate(failing.counts(job, KINDS).items()):
        for number in range(min(MOST, calls)):
            error = failing.ERRORS[(turn + number) % len(failing.ERRORS)]
            seen.add(failing.check(job, kind, ((JOBS.index(name) % 3 + 3 * number) * calls) // (3 * MOST), error))
    assert len(seen) > 1


@pytest.mark.parametrize("name", ["convert", "merge", "DatasetWriter", "export --to hdf5"])
def test_ctrl_c_leaves_no_draft(folder: Path, name: str) -> None:
    """Stopped before any call about a file that has a temporary name, once for each kind of both: none is left."""
    job = new_job(folder, name)
    seen = set()

    def stop(kind: str, what: Any) -> None:
        call = kind, re.sub(r"[0-9a-f]{8}|[0-9]+", "", "" if isinstance(what, int | None) else os.fsdecode(what))
        if call[1].endswith(PARTIAL) and call not in seen:
            seen.add(call)
            raise KeyboardInterrupt

    while True:
        job.reset()
        with contextlib.suppress(KeyboardInterrupt), watched(stop):
            job.run(0)
            break
        assert not list(job.disk.rglob(f"*{PARTIAL}"))
    assert len(seen) > 1
