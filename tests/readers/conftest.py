"""Small packed datasets that the tests of the readers share, and what makes them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_datasets import make_plain, put_manifest
from numpy.typing import NDArray

from packer.codecs import Buffer, FrameCodec, Frames
from packer.format import Field, FieldSpec, Manifest, ShardWriter, file_entry, total_of, write_names
from packer.format import manifest as manifests
from packer.packing import make_report
from packer.writer import DatasetWriter

Sample = dict[str, Any]


def build(
    folder: Path,
    fields: Sequence[Field],
    shards: Sequence[Sequence[Sample]],
    names: Sequence[str] | None = None,
    chunk_bytes: int | None = None,
) -> Path:
    """Packs samples into exactly these shards, with exactly these schemas; returns the folder."""
    (folder / manifests.SHARD_FOLDER).mkdir(parents=True)
    left = list(names or ())
    reports = []
    for number, samples in enumerate(shards):
        file = f"{manifests.SHARD_FOLDER}/{number:05d}.lmdb"
        path = folder / file
        with ShardWriter(
            path, number, fields, map_size=2**20, named=names is not None, chunk_bytes=chunk_bytes
        ) as writer:
            for sample in samples:
                block = {f.name: [sample[f.name]] if f.is_ragged else sample[f.name][None] for f in fields}
                writer.add(block, 1, None if names is None else [left.pop(0)])
        reports.append(make_report(path, fields, file))
    entries = [report.entry for report in reports]
    table = folder / "names.lmdb"
    if names is not None:
        write_names(table, names)
    manifest = Manifest(
        tool="tests",
        samples=sum(entry.samples for entry in entries),
        fields=tuple(fields),
        shards=tuple(entries),
        names=None if names is None else file_entry(table.name, table),
        columns={field.name: total_of(report.columns[field.name] for report in reports) for field in fields},
        origin={},
    )
    put_manifest(folder, manifest)
    return folder


SAMPLES = 60

FIELDS = (
    FieldSpec(name="x", dtype="float32", shape=(5,)),
    FieldSpec(name="label", dtype="int64", shape=()),
    FieldSpec(name="lr", dtype="uint8", kind="image", shape=(6, 5, 3)),
    FieldSpec(name="depth", dtype="uint16", kind="image", shape=(4, 7, 1)),
    FieldSpec(name="xyz", dtype="float32", shape=(None, 3)),
    FieldSpec(name="picture", dtype="uint8", kind="image", shape=(None, None, 3)),
    FieldSpec(name="caption", dtype="uint8", kind="text", shape=(None,)),
)


def make_samples(count: int = SAMPLES) -> list[Sample]:
    """Samples of `FIELDS`; the cloud of every fifth one is empty."""
    rng = np.random.default_rng(7)
    return [
        {
            "x": rng.standard_normal(5).astype("f4"),
            "label": np.int64(i * i - 50),
            "lr": rng.integers(0, 4, (6, 5, 3), np.uint8),
            "depth": rng.integers(0, 2**16, (4, 7, 1), np.uint16),
            "xyz": rng.standard_normal((i % 5, 3)).astype("f4"),
            "picture": rng.integers(0, 9, (1 + i % 3, 2 + i % 4, 3), np.uint8),
            "caption": f"sample {i} \N{SNOWMAN}" * (i % 3),
        }
        for i in range(count)
    ]


@pytest.fixture(scope="session")
def samples() -> list[Sample]:
    """What `packed` was made from."""
    return make_samples()


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory, samples: list[Sample]) -> Path:
    """A dataset of every kind of field, in several shards, whose samples are named `a/0` to `a/59`."""
    folder = tmp_path_factory.mktemp("readers") / "packed"
    codec = {"x": "none", "label": "none", "lr": "lz4", "depth": "photo+zstd", "xyz": "bitshuffle"}
    codec |= {"picture": "zstd", "caption": "lz4"}
    with DatasetWriter(folder, FIELDS, codec=codec, shard_size=5000) as writer:
        for number, sample in enumerate(samples):
            writer.add(sample, name=f"a/{number}")
    return make_plain(folder)


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,000 rows x (33,) float32 and y () int64, raw, in two shards, without names; row i holds i."""
    folder = tmp_path_factory.mktemp("readers") / "rows"
    with DatasetWriter(folder, codec="none", shard_size=70_000) as writer:
        for number in range(1000):
            writer.add({"x": np.full(33, number, np.float32), "y": np.int64(number)})
    return folder


@pytest.fixture(scope="session")
def pack() -> Any:
    """The function `build`: test files cannot import from here."""
    return build


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Raw bytes of each frame that is decoded from here on, whether by itself or with others by one call."""
    sizes: list[int] = []
    one, many = FrameCodec.decode, FrameCodec.decode_frames
    inside = threading.local()

    def decode(self: FrameCodec, stored: memoryview, nbytes: int) -> Buffer:
        if not getattr(inside, "many", False):
            sizes.append(nbytes)
        return one(self, stored, nbytes)

    def decode_frames(self: FrameCodec, memory: NDArray[np.uint8], frames: Frames, out: NDArray[np.uint8]) -> None:
        sizes.extend(frames.sizes.tolist())
        inside.many = True
        try:
            many(self, memory, frames, out)
        finally:
            inside.many = False

    monkeypatch.setattr(FrameCodec, "decode", decode)
    monkeypatch.setattr(FrameCodec, "decode_frames", decode_frames)
    return sizes
