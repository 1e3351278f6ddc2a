"""Windows, splits, crops, extras, mixes, ranks and ways of reading together, against slices of the source arrays."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import plain
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from packer.split import split as split_dataset
from packer.writer import DatasetWriter
from readers import Crop, Loader, Mix, PackedDataset, PointSample, Ragged, ResizedCrop, Windows

LENGTHS = [5, 1, 9, 3, 7, 2, 6, 4]
TRAIN = [0, 2, 3, 6, 7]
CODECS = ("none", "lz4")
OFFSETS = {"clip": [-1, 0], "act": [0, 1, 2]}
TOP, LEFT = 1, 2

Sample = dict[str, Any]


def source(number: int) -> Sample:
    rng = np.random.default_rng(number)
    steps = LENGTHS[number]
    return {
        "clip": rng.integers(0, 256, (steps, 6, 8, 3), dtype=np.uint8),
        "act": rng.random((steps, 2), dtype=np.float32),
        "label": np.int64(number),
        "task": f"task {number % 3}",
    }


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same episodes with two codecs, in several shards, with a split."""
    made = {}
    for codec in CODECS:
        folder = made[codec] = tmp_path_factory.mktemp("together") / codec
        with DatasetWriter(folder, codec=codec, shard_size=2000) as writer:
            for number in range(len(LENGTHS)):
                writer.add(source(number), name=f"e{number}")
        split_dataset(folder, {"train": [f"e{number}" for number in TRAIN]})
    return made


def anchors(steps: int, pad: str | None) -> range:
    return range(steps) if pad else range(1, steps - 2)


def expected(number: int, anchor: int | None, crop: bool, pad: str | None) -> Sample:
    """One item as it should be read: a whole sample, or its window at a step."""
    sample = source(number)
    if anchor is not None:
        for field, offsets in OFFSETS.items():
            steps = anchor + np.array(offsets)
            within = steps.clip(0, LENGTHS[number] - 1)
            sample[field] = sample[field][within]
            if pad:
                sample[field + "_is_pad"] = steps != within
            if pad == "zero":
                sample[field][steps != within] = 0
    if crop:
        sample["clip"] = sample["clip"][:, TOP : TOP + 4, LEFT : LEFT + 4]
    return sample


def items_of(batch: dict[str, Any]) -> list[Sample]:
    """The items of a batch, as numpy arrays."""
    parts = {name: value.to_list() if isinstance(value, Ragged) else value for name, value in batch.items()}
    size = len(parts["number"])
    assert not [part for part in parts.values() if len(part) != size]
    return [{name: np.asarray(part[i]) for name, part in parts.items()} for i in range(size)]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_all_that_goes_together(paths: dict[str, Path], data: st.DataObject) -> None:
    """Whatever is combined, each item holds the arrays of its sample and step, and an epoch holds each as often."""
    codec = data.draw(st.sampled_from(CODECS))
    pad: Any = data.draw(st.sampled_from([None, "edge", "zero"]))
    in_windows, in_split, crop, verify = (data.draw(st.booleans()) for _ in range(4))
    way = data.draw(st.sampled_from(["index", "DataLoader", "Loader", "ranks", "batch_sampler", "Mix"]))
    options: dict[str, Any] = {"verify": verify, "split": "train" if in_split else None}
    options["extras"] = ("name", "number", "step") if in_windows else ("name", "number")
    one = pad is not None and data.draw(st.booleans())  # without pad, short episodes have no window
    options["windows"] = Windows(OFFSETS, pad=pad, one=one) if in_windows else None
    # Whole clips of several lengths cannot be cropped at a place of their own.
    crop = crop and in_windows
    options["crop"] = Crop(4, "clip", at=(TOP, LEFT)) if crop else None
    dataset = PackedDataset(paths[codec], **options)
    wanted = [
        (number, anchor)
        for number in (TRAIN if in_split else range(len(LENGTHS)))
        for anchor in (anchors(LENGTHS[number], pad) if in_windows and not one else [None])
    ]
    assert len(dataset) == len(wanted)
    size, repeat = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 2))
    threads = data.draw(st.sampled_from([0, 2]))
    times = 1
    match way:
        case "index":
            order = data.draw(st.permutations(range(len(dataset))))
            batches = [dataset[order[at : at + size]] for at in range(0, len(order), size)]
        case "DataLoader":
            batches = list(DataLoader(dataset, batch_size=size, shuffle=True))
        case "Loader":
            times = repeat
            loader = Loader(dataset, size, shuffle=True, threads=threads, repeat=repeat)
            begun = iter(loader)
            batches = [next(begun) for _ in range(data.draw(st.integers(0, len(loader) - 1)))]
            other = Loader(dataset, size + 1, shuffle=True, threads=threads, repeat=repeat)
            if batches:
                other.load_state_dict(loader.state_dict())
            batches += list(other)
        case "ranks":
            batches = []
            for rank in range(2):
                batches += list(Loader(dataset, size, shuffle="block", rank=rank, world_size=2, drop_last=False))
        case "batch_sampler":
            order = data.draw(st.permutations(range(len(dataset))))
            lists = [order[at : at + size] for at in range(0, len(order), size)]
            batches = list(Loader(dataset, batch_sampler=lists, threads=threads))
        case "Mix":
            times = 2
            twin = PackedDataset(paths[codec], **options)
            batches = list(Loader(Mix({dataset: 1, twin: 1}, stop="all"), size, shuffle=True, threads=threads))
    found: Counter[tuple[int, int | None]] = Counter()
    numbers = TRAIN if in_split else list(range(len(LENGTHS)))
    for batch in batches:
        for item in items_of(batch):
            number = numbers[int(item["number"])]
            anchor = int(item["step"]) if in_windows else None
            assert anchor is None or anchor in anchors(LENGTHS[number], pad)
            found[number, None if one else anchor] += 1
            held = {**expected(number, anchor, crop, pad if in_windows else None), "name": f"e{number}"}
            assert set(item) - {"number", "step"} == set(held)
            for name, value in held.items():
                assert np.array_equal(item[name], value), (name, number, anchor)
    if way == "ranks" and len(dataset) % 2:
        assert sum(found.values()) == len(dataset) + 1  # one comes twice, so that both ranks have as many
        found = Counter(set(found))
    assert found == Counter(dict.fromkeys(wanted, times))


def test_lists_are_tuples(packed: Path) -> None:
    """Options read the same from lists, which YAML has alone, as from tuples."""
    for option, make in (
        ("crop", lambda kind: Crop(kind((3, 4)), of="lr", axes=kind((0, 1)), at=kind((2, 1)))),
        ("crop", lambda kind: ResizedCrop(kind((3, 4)), of="lr", scale=kind((0.5, 1)), ratio=kind((0.5, 2)))),
        ("points", lambda kind: PointSample(2, fields=kind(("xyz",)))),
    ):
        batches = []
        for kind in (tuple, list):
            torch.manual_seed(0)
            options = {option: make(kind), "fields": kind(("lr", "xyz")), "extras": kind(("name",))}
            batches.append(plain(PackedDataset(packed, **options)[[1, 2, 3]]))
        assert batches[0] == batches[1]


def test_nothing_to_read(tmp_path: Path) -> None:
    """Samples that are all shorter than a window give a dataset without windows, and loops without batches."""
    with DatasetWriter(tmp_path / "d") as writer:
        for steps in (1, 2):
            writer.add({"x": np.zeros((steps, 3), np.float32)})
    dataset = PackedDataset(tmp_path / "d", windows=Windows(5))
    assert len(dataset) == 0
    for loader in (Loader(dataset, 4), Loader(dataset, 4, shuffle=True), DataLoader(dataset, batch_size=4)):
        assert list(loader) == []
    assert dataset[[]]["x"].shape == (0, 5, 3)
    padded = PackedDataset(tmp_path / "d", windows=Windows(5, pad="edge"))
    assert padded[:]["x_is_pad"].sum(dim=1).tolist() == [4, 3, 4]
