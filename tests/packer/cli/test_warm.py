"""`packer warm`: what it says."""

from __future__ import annotations

import pytest

from packer.cli.text import size_text
from packer.convert import convert


@pytest.fixture
def packed(pairs, tmp_path):
    return convert(pairs.sources, tmp_path / "packed", codec="none", workers=0).path


def test_what_lies_in_memory_is_said(packer, packed):
    """One line, and none with --quiet."""
    result = packer("warm", packed)
    size = size_text(sum(path.stat().st_size for path in (packed / "shards").glob("*.lmdb")))
    assert result.stderr == ""
    assert result.stdout == f"{packed}: {size} in memory\n"
    assert packer("warm", packed, "-q").stdout == ""


def test_what_does_not_fit_is_refused(refused, packed, monkeypatch):
    """Before anything is read: what came first would be gone again."""
    monkeypatch.setattr("packer.cli.warm.free_memory", lambda: 1_000)
    refused(2, ["warm", packed], packed, "1.00 kB of memory are free", 'shuffle="block"')
