"""Any system call fails: one of our errors, nothing lost or left open, and the same command then succeeds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if sys.platform.startswith("linux"):
    from soaking import failing
    from soaking.jobs import JOBS
    from soaking.watched import KINDS
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
