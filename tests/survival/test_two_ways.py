"""By machine code or Python, by Loader, DataLoader or index: every dataset, codec and part reads as the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from packer.codecs import NAMED
from readers import Crop, Loader, PackedDataset, PointSample, VoxelSample
from tests.helpers.kinds import FORMS, KINDS, make
from tests.helpers.ways import handled
from tests.survival import two_ways

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("name", sorted(path.parent.name for path in GOLDEN.glob("*/manifest.json")))
def test_golden_datasets(name: str) -> None:
    """Every codec with every form of field, fixed and ragged, in frames of samples and of rows."""
    two_ways.check_all_ways(GOLDEN / name, ways_each=1)


@pytest.mark.parametrize("kind", FORMS)
def test_fresh_datasets_of_every_form(kind: str, tmp_path: Path) -> None:
    """All ways read the same from a dataset of every form of fields, with encoded frames."""
    chosen = KINDS[kind] if KINDS[kind].codec != "none" else KINDS[kind]._replace(codec="zstd")
    two_ways.check_all_ways(make(chosen, tmp_path).path, ways_each=1, first=list(KINDS).index(kind))


def test_every_codec(tmp_path: Path) -> None:
    """Random datasets of every codec that has a name; the soak tries many."""
    assert [two_ways.trial(tmp_path, seed, ways_each=1) for seed in range(len(NAMED))] == list(NAMED)


@pytest.mark.parametrize(
    "options",
    [
        {"crop": Crop(8, of="picture", flips=True, turns=True), "fields": ["picture", "label"]},
        {"points": PointSample(50, fields=["xyz"]), "fields": ["xyz", "label"]},
        {"points": VoxelSample(1), "fields": ["xyz", "label"]},
        {},
    ],
    ids=["crops", "points", "voxels", "whole"],
)
def test_epochs_are_alike(tmp_path: Path, options: dict[str, Any]) -> None:
    """An epoch in random order, with random parts, is the same by machine code and Python, with and without threads."""
    two_ways.write(tmp_path / "d", "photo+lz4", np.random.default_rng(1), least=3)
    epochs = []
    for by_machine in (True, False):
        for threads in (0, 2):
            with handled(by_machine):
                dataset = PackedDataset(tmp_path / "d", extras=("name", "number"), **options)
                epochs.append(two_ways.items_of(list(Loader(dataset, 5, shuffle=True, seed=3, threads=threads))))
    assert len(epochs[0]) == len(PackedDataset(tmp_path / "d"))
    assert not [epoch for epoch in epochs if epoch != epochs[0]]


def test_processes_read_alike() -> None:
    """DataLoader's processes read the same values as this process."""
    numbers = [4, 2, 0, 3, 1]
    with handled(by_machine=True):
        wanted = two_ways.WAYS["one by one"](PackedDataset(GOLDEN / "kinds"), numbers)
        loader = DataLoader(PackedDataset(GOLDEN / "kinds"), 2, sampler=numbers, num_workers=2)
        assert two_ways.items_of(list(loader)) == wanted
