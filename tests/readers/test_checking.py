"""Reading with checksums: a flipped bit is found before it is handed out, and its samples are named."""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import listed, plain
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from packer.codecs import NAMED
from packer.errors import DamagedError, UsageError
from packer.format import Field, FrameRule, Shard, column_key, index_arrays
from packer.format import manifest as manifests
from readers import Crop, Loader, PackedDataset

FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
KINDS = ["x", "label", "lr", "depth", "xyz", "picture", "caption"]


def flip(folder: Path, field: str, sample: int) -> list[int]:
    """Flips a bit in the middle of the first frame of a sample; returns the numbers of all samples that it holds."""
    manifest = manifests.read(folder)
    number, first = [f.name for f in manifest.fields].index(field), 0
    for entry in manifest.shards:
        if sample < first + entry.samples:
            break
        first += entry.samples
    with Shard(folder / entry.file) as shard:
        column = shard.column(number, manifest.fields[number], entry.samples)
        frames = column.frames_of(np.array([sample - first]))
        start, end = frames.spans[0].tolist()
        held = [first + n for n in range(*column.index.samples_of(frames.frame)[0].tolist())]
        del column, frames
    with (folder / entry.file).open("r+b") as file:
        file.seek((start + end) // 2)
        byte = file.read(1)[0]
        file.seek((start + end) // 2)
        file.write(bytes([byte ^ 16]))
    return held


def without(batch: dict[str, Any], bad: Collection[int]) -> dict[str, Any]:
    """Returns a batch without some samples, as lists of plain values."""
    left = [place for place, number in enumerate(batch["number"].tolist()) if number not in bad]
    return {name: [plain(listed(values)[place]) for place in left] for name, values in batch.items()}


@pytest.mark.parametrize(("field", "threads"), [("lr", 3), ("xyz", 0), ("caption", 1), ("caption", 3)])
def test_damaged_samples_are_left_out_of_their_batches(copy, packed, field, threads, caplog):
    """All others come as ever, in the same order and batches, also in a rank and after resuming; each is named once."""
    bad = set(flip(copy, field, 31))
    given = {"extras": ("number",), "crop": Crop(2, of="lr", flips=True)}
    damaged, sound = PackedDataset(copy, verify=True, **given), PackedDataset(packed, **given)
    for share in ({}, {"rank": 1, "world_size": 2}):
        how = {"batch_size": 20, "shuffle": True, "seed": 3, "threads": threads, **share}
        loader, wanted = Loader(damaged, on_error="skip", **how), [without(b, bad) for b in Loader(sound, **how)]
        first = list(itertools.islice(loader, 1))
        again = Loader(damaged, on_error="skip", **how)
        again.load_state_dict(loader.state_dict())
        assert [without(batch, ()) for batch in [*first, *again]] == wanted
        assert set(again.skipped) <= bad
        if not share:
            assert {**loader.skipped, **again.skipped}.keys() == bad
    messages = [record.message for record in caplog.records]
    assert len(messages) == len(set(messages)) <= len(bad)
    assert all(f"field '{field}', sample " in message for message in messages)


def test_samples_that_cannot_all_be_left_out_stop_the_loop(copy):
    """By default the first damaged sample does; with on_error="skip" a batch that has no other."""
    flip(copy, "xyz", 31)
    dataset = PackedDataset(copy, "xyz", verify=True)
    with pytest.raises(DamagedError, match=r"sample 22 .* more of this batch"):
        list(Loader(dataset, 60))
    with pytest.raises(DamagedError, match=r"sample 22 .*; no sample of this batch can be read"):
        list(Loader(dataset, 1, on_error="skip"))
    with pytest.raises(UsageError, match="on_error 'ignore': 'stop' or 'skip'"):
        Loader(dataset, on_error="ignore")


@pytest.fixture
def copy(packed, tmp_path):
    """A copy of the dataset `packed`, to be damaged."""
    return Path(shutil.copytree(packed, tmp_path / "packed"))


@pytest.mark.parametrize("field", KINDS)
def test_a_flipped_bit_is_found_and_its_sample_named(copy, packed, field):
    """Field, number and name of the sample are in the message; samples of other frames read as before."""
    held = flip(copy, field, 31)
    dataset, sound = PackedDataset(copy, verify=True), PackedDataset(packed)
    for index, one in itertools.product((31, [2, 31], "a/31"), (dataset, pickle.loads(pickle.dumps(dataset)))):
        with pytest.raises(DamagedError, match=rf"field '{field}', sample 31 \('a/31'\): .*checksum"):
            one[index]
    others = [n for n in range(60) if n not in held]
    for number in others[:3] + others[-3:]:
        assert plain(dataset[number]) == plain(sound[number])
    left = PackedDataset(copy, [f for f in KINDS if f != field], verify=True)[31]
    assert not [name for name in KINDS if name != field and plain(left[name]) != plain(sound[31][name])]


def test_all_samples_of_the_batch_in_a_wrong_frame_are_named(copy):
    """Samples that share the frame are named as far as the batch asks for them, five at most."""
    held = flip(copy, "label", 31)
    asked = held[:3]
    with pytest.raises(DamagedError) as error:
        PackedDataset(copy, verify=True)[asked]
    assert not [n for n in asked if f"sample {n} ('a/{n}')" not in str(error.value)]
    with pytest.raises(DamagedError, match=f"field 'label', sample .* and {len(held) - 5} more of this batch: "):
        PackedDataset(copy, verify=True)[held]


def test_sound_data_reads_the_same(packed):
    """Checked or not: the same values; a pickle still checks."""
    checked, plain_one = PackedDataset(packed, verify=True), PackedDataset(packed)
    for a, b in zip(Loader(checked, 7, shuffle=True), Loader(plain_one, 7, shuffle=True), strict=True):
        assert plain(a) == plain(b)


@FORK
def test_loader_and_workers_find_it_too(copy):
    """Loader, with threads too, and the processes of a DataLoader raise the same error.

    Loader names the samples of all batches that it reads at once.
    """
    assert flip(copy, "lr", 23)[:2] == [22, 23]
    dataset = PackedDataset(copy, ["lr"], verify=True)
    for threads in (0, 2):
        with pytest.raises(DamagedError, match=r"field 'lr', sample 22 \('a/22'\), sample 23 \('a/23'\), sample 24 "):
            list(Loader(dataset, 8, threads=threads))
    workers = iter(DataLoader(dataset, batch_size=8, num_workers=2, multiprocessing_context="fork"))
    with pytest.raises(DamagedError, match=r"field 'lr', sample 22 \('a/22'\), sample 23 \('a/23'\): "):
        list(workers)
    workers._shutdown_workers()  # the error's traceback holds on to them


@pytest.fixture(params=["none", "lz4", "photo+zstd"])
def banded(request, pack, tmp_path):
    """Six pictures of 12 rows in bands of 4 rows, of fixed and of ragged shape."""
    codec, rule = NAMED[request.param], FrameRule(rows=4)
    fields = (
        Field(name="hr", dtype="uint8", kind="image", shape=(12, 9, 3), codec=codec, frame=rule),
        Field(name="big", dtype="uint8", kind="image", shape=(None, None, 3), codec=codec, frame=rule),
    )
    rng = np.random.default_rng(5)
    samples = [{f.name: rng.integers(0, 3, (12, 9, 3), np.uint8) for f in fields} for _ in range(6)]
    return pack(tmp_path / "banded", fields, [samples[:2], samples[2:]])


@pytest.mark.parametrize("field", ["hr", "big"])
def test_parts_of_samples_check_the_frames_they_touch(banded, field):
    """A region and a crop fail where they touch the wrong band of rows, and read where they do not."""
    flip(banded, field, 3)  # in the first of its three bands
    dataset = PackedDataset(banded, verify=True)
    with pytest.raises(DamagedError, match=f"field '{field}', sample 3: "):
        dataset[3]
    with pytest.raises(DamagedError, match=f"field '{field}', sample 3: "):
        dataset.read(3, field)
    with pytest.raises(DamagedError, match=f"field '{field}', sample 3: "):
        dataset.read(3, field, rows=slice(3, 6))
    sound = PackedDataset(banded).read(3, field, rows=slice(4, 12))
    assert torch.equal(dataset.read(3, field, rows=slice(4, 12)), sound)
    first, last = (PackedDataset(banded, [field], crop=Crop(4, field, at=(row, 0)), verify=True) for row in (3, 4))
    with pytest.raises(DamagedError, match=f"field '{field}', sample 3: "):
        first[[2, 3]]
    assert last[[2, 3]][field].shape == (2, 3, 4, 4)


def test_every_visit_of_a_sample_is_checked(banded):
    """Crops of one sample in one batch touch different bands: it is enough that one touches a wrong one."""
    flip(banded, "hr", 3)  # in the first of its three bands
    dataset = PackedDataset(banded, ["hr"], crop=Crop(4, of="hr"), verify=True)
    for seed in range(9):
        torch.manual_seed(seed)
        with pytest.raises(DamagedError, match="field 'hr', sample 3: "):
            dataset[[3] * 50]
    assert dataset[[2] * 50]["hr"].shape == (50, 3, 4, 4)


def _index_at(folder: Path, field: int, array: str) -> tuple[Path, int, int]:
    """Where the bytes of an index array of the only shard lie: file, start and end."""
    manifest = manifests.read(folder)
    path = folder / manifest.shards[0].file
    with Shard(path) as shard:
        value = bytes(shard.value(column_key(field, array)))
    at = path.read_bytes().find(value)
    return path, at, at + len(value)


@settings(max_examples=50)
@given(data=st.data())
def test_no_flipped_bit_of_an_index_gives_other_values(golden_index, data):
    """Whichever bit of whichever index array is flipped: the values are the right ones, or an error tells of it."""
    folder, wanted, arrays = golden_index
    path, start, end = data.draw(st.sampled_from(arrays))
    bit = data.draw(st.integers(8 * start, 8 * end - 1))
    sound = path.read_bytes()
    changed = bytearray(sound)
    changed[bit // 8] ^= 1 << bit % 8
    try:
        path.write_bytes(changed)
        try:
            found = PackedDataset(folder, verify=data.draw(st.booleans()))[:]
        except DamagedError:
            return
        assert plain(found) == plain(wanted)
    finally:
        path.write_bytes(sound)


@pytest.fixture(scope="module")
def golden_index(packed, tmp_path_factory):
    """A copy of the dataset `packed`, what it holds, and where the index arrays of its first shard lie."""
    folder = Path(shutil.copytree(packed, tmp_path_factory.mktemp("flipped") / "packed"))
    fields = manifests.read(folder).fields
    arrays = [_index_at(folder, number, array) for number, f in enumerate(fields) for array in index_arrays(f)]
    return folder, PackedDataset(folder)[:], arrays
