"""Datasets of LeRobot: an episode is a sample, with the values of its steps and the frames of its cameras."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from opened_sources import read_each
from PIL import Image
from pyarrow import parquet
from video_files import decoded, video

from packer.convert import convert
from packer.errors import SourceError, UsageError
from packer.sources import SourceOptions, open_sources
from readers import PackedDataset, Windows

LENGTHS = (4, 6, 3)
FPS, CAMERA, WRIST = 30, "observation.images.top", "observation.images.wrist"
FEATURES = {
    "action": {"dtype": "float32", "shape": [2]},
    "next.done": {"dtype": "bool", "shape": [1]},
    CAMERA: {"dtype": "video", "shape": [32, 48, 3]},
    WRIST: {"dtype": "image", "shape": [4, 5, 3]},
    **{name: {"dtype": "int64", "shape": [1]} for name in ("frame_index", "episode_index", "index", "task_index")},
    "timestamp": {"dtype": "float32", "shape": [1]},
}


def steps(episode: int) -> dict[str, Any]:
    """Return the columns of one episode."""
    rng, count, first = np.random.default_rng(episode), LENGTHS[episode], sum(LENGTHS[:episode])
    return {
        "action": rng.normal(size=(count, 2)).astype("f4"),
        "next.done": np.arange(count) == count - 1,
        WRIST: rng.integers(0, 255, (count, 4, 5, 3), np.uint8),
        "timestamp": (np.arange(count) / FPS).astype("f4"),
        "frame_index": np.arange(count),
        "episode_index": np.full(count, episode),
        "index": np.arange(first, first + count),
        "task_index": np.full(count, episode % 2),
    }


def png(pixels: Any) -> dict[str, Any]:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def arrow(episode: int) -> pa.Table:
    values = steps(episode)
    return pa.table(
        {
            name: [png(one) for one in column]
            if name == WRIST
            else pa.array(list(column), pa.list_(pa.float32(), 2))
            if name == "action"
            else column
            for name, column in values.items()
        }
    )


def put(path: Path, table: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path)


def write(folder: Path, version: str, **more: Any) -> Path:
    """Write a dataset of three episodes: of version 3.0 the first two lie in one file, and all in one video."""
    info = {
        "codebase_version": version,
        "fps": FPS,
        "chunks_size": 1000,
        "splits": {"train": "0:2"},
        "features": {**FEATURES, **more},
    }
    meta = folder / "meta"
    meta.mkdir(parents=True)
    if version == "v3.0":
        info |= {"data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"}
        info |= {"video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"}
        put(folder / "data/chunk-000/file-000.parquet", pa.concat_tables([arrow(0), arrow(1)]).combine_chunks())
        put(folder / "data/chunk-000/file-001.parquet", arrow(2))
        video(folder / f"videos/{CAMERA}/chunk-000/file-000.mp4", frames=sum(LENGTHS), g="5", bf="2")
        begins = np.cumsum([0, *LENGTHS[:-1]])
        episodes = [
            {
                "episode_index": n,
                "length": LENGTHS[n],
                "data/chunk_index": 0,
                "data/file_index": n // 2,
                "dataset_from_index": int(begins[n]),
                f"videos/{CAMERA}/chunk_index": 0,
                f"videos/{CAMERA}/file_index": 0,
                f"videos/{CAMERA}/from_timestamp": begins[n] / FPS,
                "stats/action/mean": [0.0],
            }
            for n in range(3)
        ]
        put(meta / "episodes/chunk-000/file-000.parquet", pa.Table.from_pylist(episodes))
        put(meta / "tasks.parquet", pa.table({"task_index": [0, 1], "__index_level_0__": ["lift", "put"]}))
    else:
        info |= {"data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"}
        info |= {"video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"}
        for n in range(3):
            put(folder / f"data/chunk-000/episode_{n:06d}.parquet", arrow(n))
            video(folder / f"videos/chunk-000/{CAMERA}/episode_{n:06d}.mp4", frames=LENGTHS[n])
        lines = [{"episode_index": n, "length": LENGTHS[n]} for n in range(3)]
        (meta / "episodes.jsonl").write_text("\n".join(map(json.dumps, lines)))
        lines = [{"task_index": n, "task": task} for n, task in enumerate(["lift", "put"])]
        (meta / "tasks.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (meta / "info.json").write_text(json.dumps(info))
    return folder


def frames_of(folder: Path, episode: int) -> np.ndarray:
    """Return the frames of an episode, from its video."""
    if path := next(folder.glob(f"videos/*/*/episode_{episode:06d}.mp4"), None):
        return decoded(str(path))[0]
    first = sum(LENGTHS[:episode])
    return decoded(str(next(folder.glob("videos/*/*/file-000.mp4"))))[0][first : first + LENGTHS[episode]]


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_episodes_are_samples(tmp_path: Path, version: str) -> None:
    """All features of all steps, the text of the task, and splits; also read in parts, in any order."""
    folder = write(tmp_path / "d", version)
    source = open_sources([str(folder)])
    assert source.names == [f"episode_{n:06d}" for n in range(3)]
    assert source.splits == {"train": ["episode_000000", "episode_000001"]}
    found = [read_each(source.part(n, n + 1)) for n in (2, 0, 1)]
    for episode, values in zip((2, 0, 1), found, strict=True):
        for name, expected in steps(episode).items():
            assert values[name][0].dtype == expected.dtype
            assert np.array_equal(values[name][0], expected)
        assert np.array_equal(values[CAMERA][0], frames_of(folder, episode))
        assert values["task"] == [["lift", "put"][episode % 2]]


def test_windows_are_those_of_delta_timestamps(tmp_path: Path) -> None:
    """Packed, `Windows` gives steps around each step, the edge repeated, and says which lie outside."""
    folder = write(tmp_path / "d", "v3.0")
    convert([str(folder)], tmp_path / "out", source=SourceOptions(skip=(WRIST,), short=16))
    windows = Windows({CAMERA: [-1, 0], "action": range(3)}, pad="edge")
    dataset = PackedDataset(tmp_path / "out", ["action", CAMERA], windows=windows)
    assert len(dataset) == sum(LENGTHS)
    batch = dataset[[3, 4]]
    assert batch[CAMERA].shape == (2, 2, 16, 24, 3)
    assert np.array_equal(batch["action"][0], steps(0)["action"][[3, 3, 3]])
    assert batch["action_is_pad"][0].tolist() == [False, True, True]
    assert np.array_equal(batch["action"][1], steps(1)["action"][:3])


def test_what_cannot_be_packed_is_named(tmp_path: Path) -> None:
    """Another version, a feature of text, a video that is missing or too short, a step without a value."""
    with pytest.raises(UsageError, match=r"LeRobot v1\.6"):
        open_sources([str(write(tmp_path / "old", "v1.6"))])
    texts = write(tmp_path / "texts", "v3.0", note={"dtype": "string", "shape": [1]})
    with pytest.raises(UsageError, match="--skip note"):
        open_sources([str(texts)])
    assert len(open_sources([str(texts)], SourceOptions(skip=("note",)))) == 3
    with pytest.raises(UsageError, match="no such feature"):
        open_sources([str(texts)], SourceOptions(skip=("other",)))
    short = write(tmp_path / "short", "v3.0")
    video(next(short.glob("videos/*/*/*.mp4")), frames=8)
    with pytest.raises(SourceError, match=r"no frame at .* where step 4 of an episode is"):
        read_each(open_sources([str(short)]))
    next(short.glob("videos/*/*/*.mp4")).unlink()
    with pytest.raises(SourceError, match=r"file-000\.mp4"):
        open_sources([str(short)])
    lacking = write(tmp_path / "lacking", "v2.1")
    table = arrow(1).to_pylist()
    table[2]["action"] = None
    put(lacking / "data/chunk-000/episode_000001.parquet", pa.Table.from_pylist(table, arrow(1).schema))
    with pytest.raises(SourceError, match="column action has steps without a value"):
        read_each(open_sources([str(lacking)]))
