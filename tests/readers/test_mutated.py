"""Damaged datasets, also those made to deceive: an error or wrong values of the right shape, never a crash or hang."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, and limits the memory of children")
if sys.platform.startswith("linux"):
    import soak
    from soaking import in_child, mutations, survival


@pytest.mark.parametrize("template", range(3))
def test_the_sound_datasets_read(template):
    """Undamaged, they can be read in all the ways that damaged ones are: each refusal below is due to the damage."""
    assert survival.read_all_ways(mutations.TEMPLATES[template]) == "right"


def test_40_damaged_datasets(tmp_path):
    """Read in every way by children that may take 1 GB more: none dies, hangs, or raises what is no error of ours."""
    for template in mutations.TEMPLATES:
        survival.read_all_ways(template)  # what is imported late is imported before the forks
    found = soak.run("damage", tmp_path, range(40))
    assert {what.split(":")[0] for what in found} == set(mutations.KINDS)
    assert {what.split(": ")[1] for what in found} == {"right", "refused"}


@pytest.mark.parametrize(
    ("does", "told", "seconds"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "^signal 9$", 100.0),
        (lambda: time.sleep(100), "^signal 14 .it hung.$", 1.0),
        (lambda: bytearray(2**31).hex(), "MemoryError", 100.0),
    ],
    ids=["crash", "hang", "memory"],
)
def test_a_child_that_dies_is_told_of(does, told, seconds):
    """A crash, a hang and too much memory are faults of the trial; the parent lives on."""
    with pytest.raises(AssertionError, match=told):
        in_child(does, seconds=seconds, more_bytes=2**30)
    assert in_child(lambda: "right") == "right"
