"""Trials: a little of the source is packed, and the time of the whole follows from it."""

from __future__ import annotations

import time

import numpy as np
import pytest

from packer.convert import ConvertOptions, open_source
from packer.packing.plan import prepare
from packer.packing.trial import PLACES, RUN_BYTES, Trial, trial
from packer.sources.apart import Limits
from packer.sources.samples import SampleSource


class Slow:
    """Samples that take five milliseconds each to read."""

    def __init__(self, count):
        self.count = count
        self.asked = []

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        self.asked.append(number)
        time.sleep(0.005)
        return {"x": np.full(RUN_BYTES // 16, 1, "u1")}


def test_samples_from_all_over_are_tried():
    """Eight runs, spread evenly, and the time of reading them is in the result."""
    items = Slow(400)
    prepared = prepare(SampleSource(items), "none", None)
    items.asked = []
    found = trial(prepared)
    assert found.samples == len(items.asked) == PLACES * 16
    assert items.asked == [n for start in range(0, 400, 50) for n in range(start, start + 16)]
    assert found.nbytes == found.samples * RUN_BYTES // 16
    assert found.seconds >= 0.005 * found.samples


def test_the_whole_takes_as_much_longer_as_it_is_larger():
    """By bytes, shared among no more processes than there are shards."""
    prepared = prepare(SampleSource(Slow(100)), "none", RUN_BYTES)
    shards = len(prepared.plan.shards)
    found = Trial(samples=10, nbytes=10 * RUN_BYTES // 16, seconds=3.0)
    assert found.of_all(prepared, 1) == pytest.approx(30)
    assert found.of_all(prepared, 2) == pytest.approx(15)
    assert found.of_all(prepared, 100) == pytest.approx(30 / shards)
    assert Trial(0, 0, 0.0).of_all(prepared, 1) == 0


@pytest.mark.parametrize("limits", [None, Limits()])
@pytest.mark.parametrize("source", ["pairs", "clouds", "rows"])
def test_every_kind_of_source(request, source, limits):
    """In this process or in one of its own; all of a small source is tried."""
    opened = open_source(request.getfixturevalue(source).sources, ConvertOptions(), [])
    prepared = prepare(opened, "auto", None)
    found = trial(prepared, limits)
    assert (found.samples, found.nbytes) == (len(opened), sum(prepared.plan.raw_bytes.values()))
    assert found.seconds > 0


def test_bad_samples_are_passed_over(pairs):
    """They stop the conversion, or are left out, when they are packed."""
    picture = pairs.folder / "hr" / "005.png"
    picture.write_bytes(picture.read_bytes()[:-20])
    prepared = prepare(open_source(pairs.sources, ConvertOptions(), []), "zstd", None)
    assert 0 < trial(prepared).samples < 12
