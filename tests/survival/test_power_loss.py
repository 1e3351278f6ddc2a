"""The power fails at any instant: published datasets are whole, and the same call finishes the others."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

if sys.platform.startswith("linux"):
    from soaking import disks
    from soaking.jobs import DATASET, JOBS
else:
    pytest.skip("looks into /proc", allow_module_level=True)

#: Disks of each job on which its call is made again, and as many random ones. `soak.py power` makes more.
AGAIN = 5


@pytest.mark.parametrize("name", JOBS)
def test_every_disk(folder: Path, name: str) -> None:
    """On each disk that a cut may leave, the old or the new dataset is whole, or the same call makes the new one."""
    job, record = disks.recorded_job(folder, name)
    every, rng = disks.every_disk(record), random.Random(name)
    assert len(every) > 5
    chosen = rng.sample(every, min(AGAIN, len(every))) + [disks.any_disk(record, rng) for _ in range(AGAIN)]
    for disk in chosen:
        disks.check(job, disk, again=True)
    if job.works_at == DATASET:  # exports and caches can be checked only when they are used again
        for disk in every:
            disks.check(job, disk, again=False)
