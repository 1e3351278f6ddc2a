"""Small videos, written by PyAV."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np


def _matrix(a: int, b: int, c: int, d: int) -> bytes:
    """Return the matrix of a track of mp4."""
    return np.array([a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30], ">i4").tobytes()


def video(
    path: Path,
    frames: int = 9,
    height: int = 32,
    width: int = 48,
    codec: str = "libx264",
    pixels: str = "yuv420p",
    times: list[int] | None = None,
    **options: str,
) -> str:
    """Write a video of 30 frames a second, whose picture moves.

    Args:
        times: when each frame is shown, in thirtieths of a second.
        options: of the encoder.
    """
    scene = np.random.default_rng(frames).integers(0, 255, (height // 8 + frames, width // 8 + frames, 3), np.uint8)
    scene = scene.repeat(8, 0).repeat(8, 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=30, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(scene[number : number + height, number : number + width].copy())
            frame.pts = number if times is None else times[number]
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return str(path)


def with_sound(path: Path) -> str:
    """Add a stream of sound to a video."""
    other = path.with_stem("silent")
    path.rename(other)
    with av.open(str(other)) as silent, av.open(str(path), "w") as container:
        source = silent.streams.video[0]
        stream, sound = container.add_stream_from_template(source), container.add_stream("aac", rate=8000)
        for packet in silent.demux(source):
            if packet.size:
                packet.stream = stream
                container.mux(packet)
        for _ in range(2):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), "f4"), "fltp", "mono")
            frame.sample_rate = 8000
            container.mux(sound.encode(frame))
        container.mux(sound.encode(None))
    other.unlink()
    return str(path)


def with_streams(path: Path, videos: int) -> str:
    """Write a file of so many streams of video, or of sound alone if that is 0."""
    with av.open(str(path), "w") as container:
        streams: list[Any] = [container.add_stream("mpeg4", rate=30, width=48, height=32) for _ in range(videos)]
        frame: Any = av.VideoFrame.from_ndarray(np.zeros((32, 48, 3), np.uint8))
        if not videos:
            streams = [container.add_stream("aac", rate=8000)]
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), "f4"), "fltp", "mono")
            frame.sample_rate = 8000
        for stream in streams:
            container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    return str(path)


def turned(path: Path, matrix: tuple[int, int, int, int] = (0, 1, -1, 0)) -> str:
    """Mark an mp4 as one that is to be turned by 90 degrees, as phones do, or shown by another matrix."""
    data, upright = path.read_bytes(), _matrix(1, 0, 0, 1)
    at = data.index(upright, data.index(b"tkhd"))
    path.write_bytes(data[:at] + _matrix(*matrix) + data[at + len(upright) :])
    return str(path)


def trimmed(path: Path, frames: int) -> str:
    """Leave out the first frames of an mp4 by its list of edits, as `ffmpeg -ss 1 -c copy` does."""
    data = bytearray(path.read_bytes())
    at = data.index(b"elst") + 16  # version and flags, number of entries, duration
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        units = round(1 / 30 / float(stream.time_base or 1))
    first = int.from_bytes(data[at : at + 4], "big")
    data[at : at + 4] = (first + frames * units).to_bytes(4, "big")
    path.write_bytes(data)
    return str(path)


def cut(path: Path, key: int) -> str:
    """Leave out what lies before a key frame, as `ffmpeg -ss 1 -copyts -c copy` does."""
    whole, keys = path.with_stem("whole"), 0
    path.rename(whole)
    with av.open(str(whole)) as source, av.open(str(path), "w") as container:
        stream = container.add_stream_from_template(source.streams.video[0])
        for packet in source.demux():
            keys += packet.is_keyframe and packet.size > 0
            if keys > key and packet.size:
                packet.stream = stream
                container.mux(packet)
    whole.unlink()
    return str(path)


def decoded(path: str) -> tuple[np.ndarray, list[float]]:
    """Return all frames as PyAV gives them, (T, H, W, 3), and the time of each."""
    with av.open(path) as container:
        frames = [(frame.to_ndarray(format="rgb24"), frame.time) for frame in container.decode(video=0)]
    return np.stack([pixels for pixels, _ in frames]), [time for _, time in frames]
