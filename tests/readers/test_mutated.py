"""Damaged datasets, also those made to deceive: an error or wrong values of the right shape, never a crash or hang."""

from __future__ import annotations

import sys

import pytest
from soaking import mutations

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, and limits the memory of children")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A dataset of every kind of field and codec, in two shards."""
    return mutations.make_dataset(tmp_path_factory.mktemp("mutated") / "sound")


def test_the_sound_dataset_reads(sound):
    """Undamaged, it can be read in all the ways that damaged ones are: each refusal below is due to the damage."""
    from soaking import survival

    assert survival.read_all_ways(sound) == "right"


def test_200_damaged_datasets(sound, tmp_path):
    """Read in every way by children that may take 1 GB more: none dies, hangs, or raises what is no error of ours."""
    from soaking import survival  # here: it needs `resource`

    survival.read_all_ways(sound)  # what is imported late is imported before the forks
    outcomes = survival.soak(tmp_path, sound, 200, seed=0)
    assert [outcome for outcome in outcomes if outcome.is_fault] == []
    assert {outcome.damage.split()[0] for outcome in outcomes} == set(mutations.KINDS)
    assert {outcome.what for outcome in outcomes} == {"right", "refused"}


def test_a_child_that_dies_is_told_of(sound, tmp_path, monkeypatch):
    """A crash, a hang and a foreign error are faults, each of its own dataset; the others are read all the same."""
    import os
    import signal
    import time

    from soaking import survival

    def read(folder, parts):
        match folder.name:
            case "1":
                os.kill(os.getpid(), signal.SIGKILL)
            case "2":
                time.sleep(9)
            case "3":
                return bytearray(2**31).hex()
        return "right"

    monkeypatch.setattr(survival, "read_all_ways", read)
    found = [outcome.what for outcome in survival.read_damaged(sound, tmp_path, range(5), seconds=0.2)]
    assert found == ["right", "signal 9", "not done in 0.2 s", "exit 256", "right"]
