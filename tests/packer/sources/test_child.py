"""Processes of our own, where they may be started and where not."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest

from packer.convert import convert
from packer.errors import UsageError
from packer.sources import child


def _said(connection, make):
    """Sends what comes of a call, in words."""
    try:
        connection.send(f"{make()}")
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}")


def in_a_daemon(make):
    """What comes of a call in a process such as the workers of multiprocessing.Pool are."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = child.context().Process(target=_said, args=(there, make), daemon=True)
    process.start()
    said = here.recv()
    process.join()
    here.close()
    there.close()
    return said


@pytest.mark.skipif(child.context().get_start_method() != "fork", reason="what is called here cannot be pickled")
@pytest.mark.parametrize("codec", ["auto", "none"])
def test_a_daemon_is_told_what_it_can_do(tmp_path, codec):
    """It may have no children: the error says so and names workers=0, with which it packs by itself."""
    samples = [{"x": np.arange(1000)}] * 3
    said = in_a_daemon(lambda: convert(samples, tmp_path / "a", codec=codec, workers=2))
    assert said.startswith(f"{UsageError.__name__}: this process is a daemon")
    assert "workers=0" in said
    assert in_a_daemon(lambda: convert(samples, tmp_path / "a", codec=codec, workers=0).samples) == "3"
