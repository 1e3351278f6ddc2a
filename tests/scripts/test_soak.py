"""A few rounds of the soaks that no other test runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if sys.platform.startswith("linux"):
    import soak

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")


@pytest.mark.parametrize(("what", "count"), [("share", 4), ("replace", 12)])
def test_a_few_rounds(tmp_path: Path, what: str, count: int) -> None:
    """Kept batches do not change, and a replaced dataset is never read under the manifest of the old one."""
    assert sum(soak.run(what, tmp_path, range(count)).values()) == count
