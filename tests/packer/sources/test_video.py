"""Videos: frames are those that PyAV decodes, at their times; which of them, and how large, options say."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opened_sources import read_each
from video_files import cut, decoded, trimmed, turned, video, with_sound, with_streams

from packer.convert import ConvertOptions, convert
from packer.errors import SourceError, UsageError
from packer.sources import SourceOptions, open_sources
from packer.watcher import Watcher
from readers import PackedDataset, Windows

#: Settings of x264: frames before a key frame refer to it, and to others before it.
OPEN = {"g": "8", "bf": "3", "x264-params": "open-gop=1:b-pyramid=normal:scenecut=0"}


def read_one(path: object, **options: Any) -> dict[str, Any]:
    """Return the sample of one video."""
    source = open_sources([f"clip={path}"], SourceOptions(**options))
    return {name: np.asarray(values[0]) for name, values in read_each(source).items()}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("h264.mp4", {"bf": "2"}),
        ("key.mkv", {"g": "3"}),
        ("mpeg4.avi", {"codec": "mpeg4"}),
        ("vp9.webm", {"codec": "libvpx-vp9"}),
        ("hidden.webm", {"codec": "libvpx", "auto-alt-ref": "1", "lag-in-frames": "8", "arnr-maxframes": "5"}),
        ("prores.mov", {"codec": "prores_ks", "pixels": "yuv422p10le"}),
        ("uneven.mp4", {"times": [0, 1, 2, 7, 8, 9, 20, 21, 30], "bf": "2"}),
        ("late.mkv", {"times": list(range(60, 69))}),
        ("one.mp4", {"frames": 1, "bf": "2"}),
    ],
)
def test_frames_and_times_are_those_of_pyav(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    """Every container and codec, with frames out of order, hidden ones, and times that are uneven or begin late."""
    path = video(tmp_path / name, **options)
    sample, (frames, times) = read_one(path), decoded(path)
    assert np.array_equal(sample["clip"], frames)
    assert sample["time"].tolist() == times
    assert sample["fps"].shape == ()


def test_a_trimmed_file_gives_the_frames_that_are_shown(tmp_path: Path) -> None:
    """Frames before the first one of the list of edits are decoded and not packed."""
    path = trimmed(Path(video(tmp_path / "a.mp4", bf="2")), 3)
    sample, (frames, times) = read_one(path), decoded(path)
    assert len(frames) == 6
    assert np.array_equal(sample["clip"], frames)
    assert sample["time"].tolist() == times


def test_frames_that_refer_to_what_was_cut_off_are_left_out(tmp_path: Path) -> None:
    """As PyAV leaves them out; a remark says so."""
    path = cut(Path(video(tmp_path / "a.mkv", frames=24, **OPEN)), 1)
    with av.open(path) as container:
        packets = sum(packet.size > 0 for packet in container.demux())
    sample, (frames, times) = read_one(path), decoded(path)
    assert np.array_equal(sample["clip"], frames)
    assert sample["time"].tolist() == times
    assert len(times) < packets
    assert "refer to others that were cut off, and are left out" in "".join(open_sources([path]).remarks)


def test_turned_deep_and_with_sound_is_said(tmp_path: Path) -> None:
    """Frames are turned clockwise as the header says; remarks say so, and what becomes of 10 bits, fields and sound.

    Without a name their field is `video`.
    """
    path = turned(Path(video(tmp_path / "phone.mp4")))
    source = open_sources([f"clip={path}"])
    (clip,) = read_each(source)["clip"]
    assert np.array_equal(clip, np.rot90(decoded(path)[0], -1, axes=(1, 2)))
    deep = open_sources([f"clip={video(tmp_path / 'deep.mkv', codec='ffv1', pixels='yuv420p10le')}"])
    loud = open_sources([f"clip={with_sound(Path(video(tmp_path / 'loud.mp4')))}"])
    wide = {"x264-params": "sar=4/3"}
    lines = open_sources([f"clip={video(tmp_path / 'lines.mkv', flags='+ildct+ilme', **wide)}"])
    said = "".join([*source.remarks, *deep.remarks, *loud.remarks, *lines.remarks])
    for words in (
        "turned as its header says",
        "more than 8 bits a value",
        "sound is not packed",
        "interlaced",
        "not square",
    ):
        assert words in said
    assert open_sources([str(path)]).fields[0].name == "video"


@given(
    start=st.integers(0, 8),
    stop=st.integers(9, 12),
    every=st.integers(1, 4),
    fps=st.sampled_from([None, 7.0, 30.0, 70]),
)
@settings(max_examples=20, deadline=None)
def test_options_choose_frames(
    tmp_path_factory: pytest.TempPathFactory, start: int, stop: int, every: int, fps: float | None
) -> None:
    """`--start` and `--stop` are times, `--every` counts, `--fps` takes the frame nearest to each time."""
    path = tmp_path_factory.getbasetemp() / "chosen.mp4"
    if not path.exists():
        video(path, bf="2", g="4")
    frames, times = decoded(str(path))
    span = {"start": start / 30 - 1e-6, "stop": stop / 30 - 1e-6}
    chosen = list(range(start, min(stop, 9)))
    if fps is not None:
        wanted = times[start] + np.arange(round(len(chosen) / 30 * fps)) / fps
        distances = np.abs(np.array(times)[chosen] - wanted[:, None])
        sample = read_one(path, **span, fps=fps)
        assert np.allclose(np.abs(sample["time"] - wanted), distances.min(1), atol=1e-9)
        assert sample["fps"] == fps
        assert all(
            np.array_equal(frame, frames[times.index(t)])
            for frame, t in zip(*map(list, (sample["clip"], sample["time"])), strict=True)
        )
        return
    sample = read_one(path, **span, every=every)
    assert np.array_equal(sample["clip"], frames[chosen[::every]])
    assert sample["fps"] == 30 / every


def test_frames_are_resized_by_swscale(tmp_path: Path) -> None:
    """`--short` keeps the proportions; smaller by area, larger bicubic, which a remark says."""
    path = video(tmp_path / "a.mp4")
    with av.open(path) as container:
        first = next(iter(container.decode(video=0)))
        small = first.to_ndarray(format="rgb24", width=24, height=16, interpolation="AREA")
        large = first.to_ndarray(format="rgb24", width=70, height=50, interpolation="BICUBIC")
    assert np.array_equal(read_one(path, short=16)["clip"][0], small)
    assert np.array_equal(read_one(path, size="50,70")["clip"][0], large)
    assert "by area" in "".join(open_sources([f"clip={path}"], SourceOptions(short=16)).remarks)


def test_what_is_no_sound_video_is_refused_or_skipped(tmp_path: Path) -> None:
    """Cut, without a frame or stream, with two or an alpha channel, mirrored: each is named, the others are packed."""
    whole = Path(video(tmp_path / "in/whole.mkv", frames=40, g="10"))
    data = whole.read_bytes()
    at = data.index(b"\x18\x53\x80\x67") + 4  # behind it is the size of all that follows
    (tmp_path / "in/stream.mkv").write_bytes(data[:at] + b"\x01" + b"\xff" * 7 + data[at + 8 : len(data) // 2])
    for name, codec in (("a.avi", "mpeg4"), ("w.webm", "libvpx"), ("m.mkv", "libx264")):
        last = Path(video(tmp_path / "in" / name, codec=codec))  # of which most frames can be decoded
        last.write_bytes(last.read_bytes()[:-200])
    video(tmp_path / "in/alpha.mov", codec="prores_ks", pixels="yuva444p10le")
    for name, matrix in (("mirrored", (-1, 0, 0, 1)), ("flipped", (1, 0, 0, -1)), ("swapped", (0, 1, 1, 0))):
        turned(Path(video(tmp_path / f"in/{name}.mp4")), matrix)
    apart = video(tmp_path / "b.avi", codec="mpeg4", bf="1")
    with av.open(apart) as frames, av.open(str(tmp_path / "in/packed.avi"), "w") as container:
        stream = container.add_stream_from_template(frames.streams.video[0])
        key, frame, between, *_ = frames.demux(video=0)
        both = av.Packet(bytes(frame) + bytes(between))
        both.pts, both.dts, both.time_base = frame.pts, frame.dts, frame.time_base
        for packet in (key, both):
            packet.stream = stream
            container.mux(packet)
    with_streams(tmp_path / "in/two.mkv", 2)
    with_streams(tmp_path / "in/sound.mp4", 0)
    errors: list[SourceError] = []
    source = open_sources([f"clip={tmp_path / 'in'}"], watcher=Watcher(bad=errors.append))
    assert source.names == ["whole"]
    said = {Path(error.path or "").name: error.reason for error in errors}
    assert "and says that it is" in said["stream.mkv"]
    assert all("lacks its last 200 bytes" in said[name] for name in ("a.avi", "w.webm", "m.mkv"))
    assert "alpha channel" in said["alpha.mov"]
    assert all("is to be shown mirrored" in said[f"{name}.mp4"] for name in ("mirrored", "flipped", "swapped"))
    assert "-c copy -bsf:v mpeg4_unpack_bframes" in said["packed.avi"]
    assert "has 2 streams of video" in said["two.mkv"]
    assert "has no stream of video" in said["sound.mp4"]


def test_a_second_video_in_a_file_is_said(tmp_path: Path) -> None:
    """FFmpeg reads the first of two that were joined by `cat`, and so do we; a remark counts the bytes of the other."""
    one, two = (Path(video(tmp_path / f"{number}.mp4", frames=number)).read_bytes() for number in (2, 3))
    (tmp_path / "2.mp4").write_bytes(one + two)
    assert (
        f"bytes after the end of files are not looked at: 2.mp4 ({len(two):,} bytes)"
        in open_sources([str(tmp_path / "2.mp4")]).remarks
    )


def test_damage_that_ffmpeg_guesses_over_is_an_error(tmp_path: Path) -> None:
    """By default FFmpeg conceals what it cannot decode, and goes on."""
    path = Path(video(tmp_path / "a.mp4", frames=30))
    data, concealed = path.read_bytes(), 0
    for place in range(30, 90, 3):
        damaged = bytearray(data)
        at = len(data) * place // 100
        damaged[at : at + 16] = bytes(byte ^ 255 for byte in damaged[at : at + 16])
        path.write_bytes(damaged)
        with contextlib.suppress(av.FFmpegError, LookupError, ValueError):  # which it cannot conceal
            decoded(str(path))
            try:
                read_one(path)
            except SourceError as error:
                concealed += "decoded" in error.reason or "damaged" in error.reason
    assert concealed > 0


@pytest.mark.parametrize("options", [{"g": "8", "bf": "2", "preset": "ultrafast"}, OPEN | {"preset": "veryfast"}])
def test_a_large_clip_is_read_by_pieces(tmp_path: Path, options: dict[str, str]) -> None:
    """Frames of a clip above 32 MiB are decoded on, or from a key frame, and are the same from any place."""
    path = video(tmp_path / "large.mp4", frames=50, height=480, width=640, **options)
    ((clip,),) = (block["clip"] for block in open_sources([f"clip={path}"]).read())
    frames, _ = decoded(path)
    assert not isinstance(clip, np.ndarray)
    for start, stop in ((0, 3), (3, 7), (30, 33), (5, 6), (49, 50), (17, 20)):
        assert np.array_equal(clip[start:stop], frames[start:stop])


def test_videos_of_classes_are_windows(tmp_path: Path) -> None:
    """`class/video.avi` with `--label folder` and lists of splits, as UCF101 has them; windows read their frames."""
    for name, frames in (("Archery/v_1", 9), ("Archery/v_2", 5), ("Biking/v_1", 7)):
        video(tmp_path / f"ucf/{name}.avi", frames=frames, codec="mpeg4")
    (tmp_path / "train.txt").write_text("Archery/v_1.avi 1\nBiking/v_1.avi 2\n")
    options = ConvertOptions(source=SourceOptions(label="folder"), splits={"train": f"@{tmp_path / 'train.txt'}"})
    convert([f"clip={tmp_path / 'ucf'}"], tmp_path / "out", options)
    dataset = PackedDataset(tmp_path / "out", split="train", windows=Windows(4, step=2))
    assert list(dataset.names) == ["Archery/v_1", "Biking/v_1"]
    batch = dataset[[0, len(dataset) - 1]]
    assert batch["clip"].shape == (2, 4, 32, 48, 3)
    assert batch["label"].tolist() == [0, 1]
    frames, times = decoded(str(tmp_path / "ucf/Archery/v_1.avi"))
    assert np.array_equal(batch["clip"][0], frames[:8:2])
    assert batch["time"][0].tolist() == times[:8:2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 2, "fps": 5.0}, "--every and --fps"),
        ({"size": "5", "short": None}, "HEIGHT,WIDTH"),
        ({"size": "5,5", "short": 5}, "--size and --short"),
        ({"fps": 0.0}, "--fps 0: more than 0"),
        ({"start": 5.0}, "has no frame from 5"),
    ],
)
def test_options_that_do_not_go_together(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    """Each is a sentence that names the options, or the file that has no frame of that time."""
    with pytest.raises((UsageError, SourceError), match=words):
        open_sources([f"clip={video(tmp_path / 'a.mp4')}"], SourceOptions(**options))
