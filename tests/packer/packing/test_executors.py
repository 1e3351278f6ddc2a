"""Shards that an executor packs: what one call of it is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from packer.convert import convert
from packer.format import manifest as manifests
from packer.packing import running


@pytest.mark.parametrize("nbytes", [2**24, 1])
def test_small_shards_share_a_call(tmp_path, monkeypatch, files_of, nbytes):
    """An executor packs several small shards in one call: at most a 32nd of all, and only up to so many bytes."""
    monkeypatch.setattr(running, "CALL_BYTES", nbytes)
    samples = [{"x": np.full(100, n)} for n in range(400)]
    calls = []

    class Counts(ThreadPoolExecutor):
        def submit(self, function, tasks):
            calls.append(len(tasks))
            return super().submit(function, tasks)

    convert(samples, tmp_path / "plain", shard_size=4096, workers=0)
    with Counts(2) as pool:
        convert(samples, tmp_path / "out", shard_size=4096, executor=pool)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "plain")
    shards = len(manifests.read(tmp_path / "out").shards)
    assert shards >= 64
    assert sum(calls) == shards
    assert max(calls) == (1 if nbytes == 1 else shards // 32)
