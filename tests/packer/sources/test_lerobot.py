"""Datasets of LeRobot: an episode is a sample, with the values of its steps and the frames of its cameras."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from lerobot_files import CAMERA, LENGTHS, WRIST, arrow, png, put, steps, write
from opened_sources import read_each
from pyarrow import parquet
from video_files import decoded, video

from packer.errors import SourceError, UsageError
from packer.sources import SourceOptions, open_sources

PICTURE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


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
    assert source.names == [f"d/episode_{n:06d}" for n in range(3)]
    assert source.splits == {"train": ["d/episode_000000", "d/episode_000001"]}
    found = [read_each(source.slice(n, n + 1)) for n in (2, 0, 1)]
    for episode, values in zip((2, 0, 1), found, strict=True):
        for name, expected in steps(episode).items():
            assert values[name][0].dtype == expected.dtype
            assert np.array_equal(values[name][0], expected)
        assert np.array_equal(values[CAMERA][0], frames_of(folder, episode))
        assert values["task"] == [["lift", "put"][episode % 2]]


def test_frames_are_resized_and_features_left_out(tmp_path: Path) -> None:
    """`--short` is for cameras, `--skip` for any feature."""
    options = SourceOptions(skip=(WRIST,), short=16)
    values = read_each(open_sources([str(write(tmp_path / "d", "v3.0"))], options))
    assert WRIST not in values
    assert [clip.shape for clip in values[CAMERA]] == [(steps, 16, 24, 3) for steps in LENGTHS]


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_what_the_dataset_does_not_name_is_said(tmp_path: Path, version: str) -> None:
    """Columns that are no features, and files of no episode, are counted; cameras that are left out are named."""
    folder = write(tmp_path / "d", version)
    (folder / "README.md").write_text("words")
    assert not [text for text in open_sources([str(folder)]).remarks if "does not name" in text]
    first = min(folder.glob("data/*/*.parquet"))
    table = parquet.read_table(first)
    parquet.write_table(table.append_column("reward", pa.array([0.5] * len(table))), first)
    (folder / "videos/old.mp4").touch()
    (remark,) = (text for text in open_sources([str(folder)], SourceOptions(skip=(CAMERA,))).remarks if "name" in text)
    assert remark == "meta/info.json does not name 2 columns and files, not packed: column reward, videos/old.mp4"


def test_what_cannot_be_packed_is_named(tmp_path: Path) -> None:
    """Another version, a feature of text, a video that is missing or too short, a step without a value, damage."""
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
    put(lacking / "data/chunk-000/episode_000001.parquet", pa.Table.from_pylist(table))
    with pytest.raises(SourceError, match="column action has steps without a value"):
        read_each(open_sources([str(lacking)]))
    for name, values, reason in (
        (WRIST, pa.array([{"bytes": None, "path": "0.png"}] * 6, PICTURE), "has steps without a value"),
        (WRIST, pa.array([b"junk"] * 6), r"000001\.parquet: a picture of \S+ is no image"),
        (WRIST, pa.array(["0.png"] * 6), "holds string, not files of pictures"),
        (WRIST, pa.array([png(np.zeros((n, 5, 3), np.uint8)) for n in range(1, 7)]), "change their size within an"),
        ("timestamp", pa.array([np.nan] * 6, pa.float32()), "no frame at nan s, where step 0 of an episode is"),
    ):
        table = arrow(1)
        column = table.column_names.index(name)
        put(lacking / "data/chunk-000/episode_000001.parquet", table.set_column(column, name, values))
        with pytest.raises(SourceError, match=reason):
            read_each(open_sources([str(lacking)]))
    for values, reason in (([1.0, None], "has steps without a value"), ([1.0] * 3, r"not \(6, 2\) of float32 as meta")):
        actions = [[0.0] * (4 - len(values)), values, *[[0.0, 0.0]] * 4]  # as many values in all
        column = pa.array(actions, pa.list_(pa.float32()))
        put(lacking / "data/chunk-000/episode_000001.parquet", arrow(1).set_column(0, "action", column))
        with pytest.raises(SourceError, match=f"column action .*{reason}"):
            read_each(open_sources([str(lacking)]))
    cut = next((write(tmp_path / "cut", "v3.0") / "meta/episodes").rglob("*.parquet"))
    cut.write_bytes(cut.read_bytes()[:-9])
    with pytest.raises(SourceError, match=rf"{cut.name}: cannot be read as a table"):
        open_sources([str(tmp_path / "cut")])


def listed(folder: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> str:
    """Change what a dataset of version 3.0 says of its episodes."""
    (path,) = (folder / "meta/episodes").rglob("*.parquet")
    put(path, pa.Table.from_pylist(change(parquet.read_table(path).to_pylist())))
    return str(folder)


def test_steps_are_those_of_their_episode(tmp_path: Path) -> None:
    """Whichever episodes are listed, and in which order: each step says of which it is. Other numbers are an error."""
    folder = listed(write(tmp_path / "d", "v3.0"), lambda episodes: [episodes[2], episodes[1]])
    for episode, actions in zip((2, 1), read_each(open_sources([folder]))["action"], strict=True):
        assert np.array_equal(actions, steps(episode)["action"])
    listed(tmp_path / "d", lambda episodes: [{**episodes[0], "length": 2}])
    with pytest.raises(SourceError, match=r"file-001\.parquet: has 3 steps of episode 2, and files of meta say 2"):
        read_each(open_sources([folder]))
    listed(tmp_path / "d", lambda episodes: [{"episode_index": 2}])
    with pytest.raises(SourceError, match="its files of meta lack 'data/chunk_index'"):
        open_sources([folder])


def test_files_of_meta_that_lack_something_are_named(tmp_path: Path) -> None:
    """Episodes that are not listed, a task, a feature, a line that was cut: a download may have left it out."""
    folder = write(tmp_path / "d", "v2.1", more={"dtype": "float32", "shape": [3]})
    with pytest.raises(SourceError, match=r"000\.parquet: has no column more, which meta/info.json names; --skip more"):
        read_each(open_sources([str(folder)]))
    (folder / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "lift"}\n\n')
    with pytest.raises(SourceError, match=r"001\.parquet: has steps of task 1, which the files of meta do not name"):
        read_each(open_sources([str(folder)], SourceOptions(skip=("more",))))
    info = json.loads((folder / "meta/info.json").read_text())
    (folder / "meta/info.json").write_text(json.dumps({**info, "total_episodes": 4}))
    with pytest.raises(SourceError, match="there are 4 episodes, and files of meta list 3"):
        open_sources([str(folder)])
    (folder / "meta/episodes.jsonl").write_text('{"episode_index": 0, "le')
    with pytest.raises(SourceError, match=r"episodes\.jsonl: has a line that is no JSON"):
        open_sources([str(folder)])
