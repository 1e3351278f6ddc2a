"""The power goes at any instant: what was published is whole, and what was not is finished by the same call."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

if sys.platform.startswith("linux"):
    from soaking import disks
    from soaking.jobs import DATASET, JOBS, MENDED
else:
    pytest.skip("looks into /proc", allow_module_level=True)

#: Disks of each job on which its call is made again, and as many that chance makes. `soak.py power` makes more.
AGAIN = 8


@pytest.mark.parametrize("name", JOBS)
def test_every_disk(folder: Path, name: str) -> None:
    """On each disk that may remain the old dataset is whole, or the new one, or the same call makes it."""
    job, record = disks.recorded_job(folder, name)
    every, rng = disks.every_disk(record), random.Random(name)
    assert len(every) > 5
    chosen = rng.sample(every, min(AGAIN, len(every))) + [disks.any_disk(record, rng) for _ in range(AGAIN)]
    for disk in chosen:
        disks.check(job, disk, again=True)
    if job.works_at in (DATASET, MENDED):  # of exports and caches nothing can be said before they are used again
        for disk in every:
            disks.check(job, disk, again=False)
