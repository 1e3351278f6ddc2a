"""Windows of videos at random: the mp4 files by PyAV and by torchcodec, and packed datasets, in turn in one run.

    $ scripts/compare --only video

Clips of 320 x 240 pixels, 10 s each, pan and zoom over photographs; FFmpeg's x264 encodes them with its defaults. A
window has 16 frames in a row, a batch 8 windows. How near the packed frames are to those of the mp4 is measured, too.
"""

from __future__ import annotations

import gc
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from inputs.pictures import photographs
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from packer.convert import convert
from readers import Loader, PackedDataset, Windows

NAME = "video"
CLIPS, FRAMES, RATE, SIDES = 60, 250, 25, (320, 240)
WINDOW, BATCH, BATCHES, ROUNDS, WORKERS = 16, 8, 40, 3, 2
#: What the frames become: JPEG files, 38 dB from the mp4 on average, and in nearly all frames; groups of H.264, 39 dB.
CODECS = ("jpeg:85", "jpeg:95", "h264:18")
#: Frames of each clip whose distance from the mp4 is measured, evenly spread.
COMPARED = 10


def make_files(folder: Path, count: int = CLIPS, frames: int = FRAMES) -> list[Path]:
    """Write `count` videos of so many frames, unless they are there."""
    paths = [folder / "files" / f"{number:03d}.mp4" for number in range(count)]
    if not (folder / "done").exists():
        (folder / "files").mkdir(parents=True, exist_ok=True)
        rng, pictures = np.random.default_rng(0), [picture for _, picture in photographs()]
        for number, path in enumerate(paths):
            picture = pictures[number % len(pictures)]
            begin, end = (_view(picture.size, rng) for _ in range(2))
            with av.open(str(path), "w") as file:
                stream: Any = file.add_stream("libx264", rate=RATE, width=SIDES[0], height=SIDES[1])
                for share in np.linspace(0, 1, frames):
                    view = tuple(((1 - share) * begin + share * end).tolist())
                    image = picture.resize(SIDES, box=view)
                    file.mux(stream.encode(av.VideoFrame.from_ndarray(np.asarray(image))))
                file.mux(stream.encode(None))
        (folder / "done").touch()
    return paths


def _view(size: tuple[int, int], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return left, top, right and bottom of what a camera sees of a picture: half of it to all."""
    scale = min(size[0] / SIDES[0], size[1] / SIDES[1]) * rng.uniform(0.5, 1)
    sides = scale * np.array(SIDES)
    corner = rng.uniform(0, np.array(size) - sides)
    return np.concatenate([corner, corner + sides])


class Files(Dataset[torch.Tensor]):
    """Windows of mp4 files: the first frame is sought, and those before it, back to a key frame, are decoded."""

    def __init__(self, paths: list[Path], frames: int, read: Callable[[Path, int], torch.Tensor]) -> None:
        self._paths, self._starts, self._read = paths, frames - WINDOW + 1, read

    def __len__(self) -> int:
        return len(self._paths) * self._starts

    def __getitem__(self, number: int) -> torch.Tensor:
        return self._read(self._paths[number // self._starts], number % self._starts)


def by_pyav(path: Path, start: int) -> torch.Tensor:
    """Return the window of a file that begins with frame `start`, (WINDOW, height, width, 3)."""
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        unit = 1 / (RATE * float(stream.time_base or 1))
        file.seek(round(start * unit), stream=stream)
        frames: list[NDArray[Any]] = []
        for frame in file.decode(stream):
            if (frame.pts or 0) >= round(start * unit):
                frames.append(frame.to_ndarray(format="rgb24"))
            if len(frames) == WINDOW:
                break
    return torch.from_numpy(np.stack(frames))


def by_torchcodec(path: Path, start: int) -> torch.Tensor:
    """Return what `by_pyav` does."""
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(path, dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode="approximate")
    frames: torch.Tensor = decoder.get_frames_in_range(start, start + WINDOW).data
    return frames


def compare(
    folder: Path, count: int = CLIPS, frames: int = FRAMES, batches: int = BATCHES, rounds: int = ROUNDS
) -> str:
    """Pack the videos, read windows of them by all ways in turn, and return a table: windows a second, bytes and dB."""
    paths = make_files(folder / f"{count}x{frames}", count, frames)
    ways: dict[str, Callable[[], Iterable[Any]]] = {}
    for name, read in {"PyAV": by_pyav, "torchcodec": by_torchcodec}.items():
        try:
            read(paths[0], 0)
        except (ImportError, OSError, RuntimeError) as error:  # it needs the libraries of FFmpeg on the machine
            print(f"compare: {name} is left out: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        loose = DataLoader(Files(paths, frames, read), BATCH, True, num_workers=WORKERS)
        ways[f"mp4, {name}, DataLoader of {WORKERS} workers"] = loose.__iter__
    written = [("mp4", 0.0, sum(path.stat().st_size for path in paths), "")]
    for name in CODECS:
        packed = folder / f"{count}x{frames}-{name.replace(':', '-')}.packed"
        began = time.perf_counter()
        convert(f"clip={paths[0].parent}", packed, codec=f"clip={name}", overwrite=True, workers=WORKERS)
        seconds = time.perf_counter() - began
        nbytes = sum(path.stat().st_size for path in packed.rglob("*") if path.is_file())
        written.append((f"packer, {name}", seconds, nbytes, _nearness(packed, paths)))
        dataset = PackedDataset(packed, ["clip"], windows=Windows(WINDOW))
        ways[f"packer, {name}, Loader of {WORKERS} threads"] = Loader(
            dataset, BATCH, shuffle=True, threads=WORKERS
        ).__iter__
        ways[f"packer, {name}, DataLoader of {WORKERS} workers"] = DataLoader(
            dataset, BATCH, True, num_workers=WORKERS
        ).__iter__
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, begin in ways.items():
            found[name].append(_measure(begin, batches))
    lines = [f"| windows of {WINDOW} frames at random | windows a second | processor, ms a window |"]
    lines.append("| --- | ---: | ---: |")
    for name, measured in found.items():
        rate, processor = (statistics.median(figures) for figures in zip(*measured, strict=True))
        lines.append(f"| {name} | {rate:,.0f} | {1e3 * processor:.1f} |")
    lines += ["", "| | packing, s | MB | PSNR to the mp4, dB |", "| --- | ---: | ---: | ---: |"]
    lines += [f"| {name} | {seconds:.1f} | {size / 1e6:.1f} | {near} |" for name, seconds, size, near in written]
    return "\n".join([*lines, "", f"- {count} clips of {frames} frames; {os.cpu_count()} processors."])


def _measure(begin: Callable[[], Iterable[Any]], batches: int) -> tuple[float, float]:
    """Return windows a second, from the first batch on, and seconds of processors a window, of worker processes, too.

    A loader that reads ahead has read some more windows, which count as work for those that it gave.
    """
    processor = _processor_seconds()
    reading = iter(begin())
    next(reading)
    began, done = time.perf_counter(), 0
    for done, _ in enumerate(reading, 1):
        if done == batches:
            break
    seconds = time.perf_counter() - began
    del reading  # ends the workers, whose time is known then
    gc.collect()
    return done * BATCH / seconds, (_processor_seconds() - processor) / ((done + 1) * BATCH)


def _processor_seconds() -> float:
    """Return the seconds of processors that this process and those that it has ended took."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, kinds))


def _nearness(packed: Path, paths: list[Path]) -> str:
    """Return the least and the mean PSNR of packed frames to those of the mp4, in dB."""
    found = []
    for sample, path in zip(PackedDataset(packed, ["clip"]), paths, strict=True):
        clip = sample["clip"].numpy()
        numbers = set(np.linspace(0, len(clip) - 1, COMPARED).round().astype(int).tolist())
        with av.open(str(path)) as file:
            for number, frame in enumerate(file.decode(video=0)):
                if number in numbers:
                    pixels = frame.to_ndarray(format="rgb24").astype(np.float64)
                    found.append(10 * np.log10(255**2 / max(np.square(pixels - clip[number]).mean(), 1e-9)))
    return f"{min(found):.1f} at least, {np.mean(found):.1f} on average"
