"""Which part makes the plan: one claims it, and the others wait for it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from packer.errors import SourceError, UsageError
from packer.packing import LocalPlace
from packer.packing.claims import claim_plan


def test_a_plan_that_fails_fails_for_those_who_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They report its error, and do not read the same headers again; who comes later tries again."""
    monkeypatch.setattr("packer.packing.claims.POLL", 0.01)
    looks, command = threading.Semaphore(0), 16 * "0"

    def wait() -> None:
        with claim_plan(LocalPlace(tmp_path), command, looks.release):  # type: ignore[arg-type]
            pass

    with ThreadPoolExecutor(1) as pool:
        with suppress(SourceError), claim_plan(LocalPlace(tmp_path), command, lambda: None) as plan:
            assert plan is None
            waiter = pool.submit(wait)
            for _ in range(3):
                assert looks.acquire(timeout=100)
            raise SourceError("is cut short", "a.png")
        with pytest.raises(UsageError, match=r"another part made the plan, and failed: .*a\.png.* is cut short"):
            waiter.result()
    with claim_plan(LocalPlace(tmp_path), command, lambda: None) as plan:
        assert plan is None
