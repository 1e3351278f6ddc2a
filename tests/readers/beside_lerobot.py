"""Robot episodes and videos as lerobot and torchcodec read them. tests/readers/test_vision.py runs this file.

lerobot itself writes the dataset and reads it, by torchcodec. This one decodes by the FFmpeg of PyAV's wheel.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cpu_torchvision  # noqa: F401  lerobot imports torchvision
import numpy as np
import pytest
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from torchcodec.decoders import VideoDecoder
from video_files import trimmed, turned, video

from packer.convert import convert
from readers import PackedDataset, Windows

CAMERA, WRIST = "observation.images.top", "observation.images.wrist"
EPISODES, STEPS, FPS = 3, 12, 10
FEATURES: dict[str, dict[str, Any]] = {
    CAMERA: {"dtype": "video", "shape": (48, 64, 3), "names": ["height", "width", "channels"]},
    WRIST: {"dtype": "image", "shape": (4, 5, 3), "names": ["height", "width", "channels"]},
    "observation.state": {"dtype": "float32", "shape": (3,), "names": None},
    "action": {"dtype": "float32", "shape": (2,), "names": None},
    "touch": {"dtype": "float32", "shape": (2, 4), "names": None},
    "next.done": {"dtype": "bool", "shape": (1,), "names": None},
}

# lerobot's statistics of bool.
pytestmark = pytest.mark.filterwarnings("ignore:Converting input from bool:RuntimeWarning")


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `d`, a dataset of three episodes that lerobot has written, and `d.packed`."""
    folder, rng = tmp_path_factory.mktemp("robot"), np.random.default_rng(0)
    dataset = LeRobotDataset.create("me/d", FPS, FEATURES, folder / "d")
    for episode in range(EPISODES):
        for step in range(STEPS):
            frame = {
                CAMERA: rng.integers(0, 255, (6, 8, 3), np.uint8).repeat(8, 0).repeat(8, 1),
                WRIST: rng.integers(0, 255, (4, 5, 3), np.uint8),
                "observation.state": rng.normal(size=3).astype("f4"),
                "action": rng.normal(size=2).astype("f4"),
                "touch": rng.normal(size=(2, 4)).astype("f4"),
                "next.done": np.array([step == STEPS - 1]),
            }
            dataset.add_frame(frame | {"task": ["lift", "put"][episode % 2]})
        dataset.save_episode()
    dataset.finalize()
    convert(str(folder / "d"), folder / "d.packed", workers=0)
    return folder


def in_lerobot(name: str, values: torch.Tensor) -> torch.Tensor:
    """Return values as lerobot gives them: images (..., C, H, W) float32 from 0 to 1."""
    return values.movedim(-1, -3) / 255 if name in (CAMERA, WRIST) else values


@pytest.mark.keeps_open  # lerobot keeps its decoders of videos
def test_each_step_is_that_of_lerobot(robot: Path) -> None:
    """Every feature of every step, bit by bit: frames, images, numbers, times, the task."""
    theirs, ours = LeRobotDataset("me/d", robot / "d"), PackedDataset(robot / "d.packed")
    assert len(theirs) == EPISODES * STEPS
    for number in range(len(theirs)):
        step, episode = theirs[number], ours[number // STEPS]
        assert set(step) == set(episode)
        assert step.pop("task") == episode["task"]
        for name, value in step.items():
            assert torch.equal(in_lerobot(name, episode[name][number % STEPS]), value), name


@pytest.mark.keeps_open  # likewise
def test_windows_are_those_of_delta_timestamps(robot: Path) -> None:
    """Steps around each step, the edges repeated, and which of them lie outside of the episode."""
    offsets = {CAMERA: [-3, 0], "observation.state": [-1, 0], "action": range(8)}
    times = {name: [offset / FPS for offset in steps] for name, steps in offsets.items()}
    theirs = LeRobotDataset("me/d", robot / "d", delta_timestamps=times)
    names = [name for name in FEATURES if name in offsets]
    ours = PackedDataset(robot / "d.packed", names, windows=Windows(offsets, pad="edge"))
    assert len(theirs) == len(ours)
    for number in range(len(ours)):
        window, expected = ours[number], theirs[number]
        for name, values in window.items():
            assert torch.equal(in_lerobot(name, values), expected[name]), name


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("h264.mp4", {"bf": "2"}),
        ("uneven.mp4", {"times": [0, 1, 2, 7, 8, 9, 20, 21, 30], "bf": "2"}),
        ("vp9.webm", {"codec": "libvpx-vp9"}),
        ("av1.mkv", {"codec": "libsvtav1"}),
        ("trimmed.mp4", {"bf": "2"}),
        ("turned.mp4", {}),
    ],
)
def test_frames_are_those_of_torchcodec(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    """Exactly its frames and their times, in several containers and codecs, of trimmed and of turned files too."""
    path = video(tmp_path / name, **options)
    if name == "trimmed.mp4":
        trimmed(Path(path), 3)
    if name == "turned.mp4":
        turned(Path(path))
    convert(f"clip={path}", tmp_path / "d", workers=0)
    sample = PackedDataset(tmp_path / "d")[0]
    theirs = VideoDecoder(path, dimension_order="NHWC").get_all_frames()
    assert torch.equal(sample["clip"], theirs.data)
    assert torch.equal(sample["time"], theirs.pts_seconds)
