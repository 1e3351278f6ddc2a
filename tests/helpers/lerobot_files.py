"""Small datasets of LeRobot, versions 2.1 and 3.0: three episodes with a camera and a field of pictures."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet

from tests.helpers.video_files import video

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
