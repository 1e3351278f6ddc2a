"""Datasets that change while they are read: whoever has read once keeps the version that was opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from packer import stats
from packer.append import append
from packer.convert import convert
from packer.drop import drop
from packer.errors import DatasetError
from packer.join import join
from packer.packing import LocalPlace, read_manifest
from packer.repack import repack
from packer.repair import repair
from packer.sources import SampleSource
from packer.split import split
from packer.writer import DatasetWriter
from readers import Loader, PackedDataset

OPTIONS = {"shard_size": 4096, "workers": 0}
SAMPLES = 40


def samples(add: int = 0) -> list[dict[str, Any]]:
    return [{"x": np.full(200, number + add), "y": number} for number in range(SAMPLES)]


def write_again(out: Path) -> None:
    with DatasetWriter(out, shard_size=4096, overwrite=True) as writer:
        for sample in samples(100):
            writer.add(sample)


def damage_and_repair(out: Path) -> None:
    """Put a damaged copy in the place of a shard, so that readers keep the sound file, and repair it."""
    path = out / read_manifest(LocalPlace(out)).shards[1].file
    data = bytearray(path.read_bytes())
    data[9000] ^= 1
    path.unlink()
    path.write_bytes(data)
    assert repair(out, SampleSource(samples())) == (f"shards/{path.name}",)


#: A change of a dataset, and whether its files go.
CHANGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "append": (lambda out: append(out, samples(100), **OPTIONS), False),
    "convert --overwrite": (lambda out: convert(samples(100), out, overwrite=True, **OPTIONS), True),
    "repack": (lambda out: repack(out, out, overwrite=True, seed=1, codec="zstd", **OPTIONS), True),
    "join": (lambda out: join(out, [{"z": number} for number in range(SAMPLES)], workers=0), True),
    "drop": (lambda out: drop(out, ["y"], workers=0), True),
    "repair": (damage_and_repair, True),
    "split": (lambda out: split(out, {"train": 0.5}), False),
    "stats --save": (lambda out: stats.save(out, stats.statistics(out)), False),
    "DatasetWriter": (write_again, True),
}


@pytest.mark.parametrize("name", CHANGES)
def test_readers_in_mid_epoch_keep_what_they_opened(tmp_path: Path, name: str) -> None:
    """In this process, by `Loader`, and in processes of DataLoader that were started before; a late one is told."""
    out = convert(samples(), tmp_path / "d", codec="none", **OPTIONS).path
    change, replaces = CHANGES[name]
    used, unused = PackedDataset(out), PackedDataset(out)
    ours = iter(Loader(used, 4, shuffle=True))
    # A process takes two batches ahead; each has read when the change comes.
    others = iter(DataLoader(PackedDataset(out), 2, num_workers=2, prefetch_factor=1, multiprocessing_context="fork"))
    found = [next(ours)["x"][:, 0].tolist()], [next(others)["x"][:, 0].tolist() for _ in range(2)]
    change(Path(out))
    for batches, taken in zip((ours, others), found, strict=True):
        taken += [batch["x"][:, 0].tolist() for batch in batches]
        assert sorted(value for batch in taken for value in batch) == list(range(SAMPLES))
    assert used[list(range(SAMPLES))]["x"][:, 0].tolist() == list(range(SAMPLES))
    if replaces:
        with pytest.raises(DatasetError, match=r"was (changed|replaced) since it was opened; open it"):
            unused[0]
    else:
        assert unused[SAMPLES - 1]["x"][0] == SAMPLES - 1
    assert len(PackedDataset(out)) == SAMPLES * (1 + (name == "append"))
