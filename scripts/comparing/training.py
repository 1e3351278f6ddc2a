"""What a training loop is given, by each system's own best way: random crops of pairs, and windows of robot episodes.

    $ scripts/compare --only training

Crops: 128 of 192 px and the same place of 32 of 48 px, half of them mirrored, as float32, batches of 32.
Windows: 8 images of 64 px up to a step, and 16 actions from it on, batches of 32. Ways are read in turn. Beside samples
a second stand those a second of processor time, of all threads and processes: they say more on a machine that is
shared.
"""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import lz4.frame
import numpy as np
import psutil
import torch
from benchmark.loops import shuffled
from benchmark.store import Bench
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from comparing.inputs import WORKLOADS, Loose, Sample, loose
from comparing.systems import Arrow, Ffcv, Lmdb, MemoryMap, Ours, System, ffcv_epochs
from packer.convert import convert
from packer.sources import SourceOptions
from readers import Crop, Loader, PackedDataset, Windows

NAME = "training"
SECONDS, ROUNDS, WORKERS, BATCH = 0.5, 5, 2, 32
CROP = {"lr": 32, "hr": 128}
#: Episodes and their steps; images up to a step, actions from it on.
EPISODES, STEPS, IMAGES, ACTIONS = 100, (80, 121), 8, 16

Ways = dict[str, Callable[[], Iterable[Any]]]


@dataclass
class Rates:
    """Samples a second of one way, and a second of processor time, of each round."""

    wall: list[float]
    processor: list[float]


def compare(bench: Bench, rounds: int = ROUNDS) -> str:
    """Write pairs and episodes by all systems, read epochs in turn, and return a table of each."""
    tables = []
    for title, ways in (
        ("random crops of pairs", pair_ways(bench)),
        ("windows of episodes", window_ways(bench.folder / "scratch", max(2, int(EPISODES * bench.scale)))),
    ):
        rates = measure(ways, rounds)
        lines = [f"| {title} | samples a second | a second of processor time |", "| --- | ---: | ---: |"]
        for name, found in rates.items():
            wall, processor = statistics.median(found.wall), statistics.median(found.processor)
            lines.append(f"| {name} | {wall:,.0f} | {processor:,.0f} |")
        tables.append("\n".join(lines))
    return "\n\n".join([*tables, f"- {os.cpu_count()} processors, load average {os.getloadavg()[0]:.1f}."])


def measure(ways: Ways, rounds: int) -> dict[str, Rates]:
    """Read epochs in turn, for `SECONDS` at least and about four times that at most; the first round is not counted."""
    threads, rates = torch.get_num_threads(), {name: Rates([], []) for name in ways}
    for number in range(rounds + 1):
        for name, begin in ways.items():
            torch.set_num_threads(threads)  # FFCV sets their number for the whole process
            workers = psutil.Process().children(recursive=True)  # they start in the first round, and stay
            samples, began, used = 0, time.perf_counter(), _processor_seconds(workers)
            while not samples or time.perf_counter() - began < SECONDS:
                for batch in begin():
                    samples += len(_first(batch))
                    if time.perf_counter() - began > 4 * SECONDS:
                        break
            if number:
                rates[name].wall.append(samples / (time.perf_counter() - began))
                # Its clock has steps of 10 ms.
                rates[name].processor.append(samples / max(0.01, _processor_seconds(workers) - used))
    return rates


def _first(batch: Any) -> Any:
    return next(iter(batch.values())) if isinstance(batch, dict) else batch[0]


def _processor_seconds(workers: Sequence[psutil.Process]) -> float:
    """Return the processor time of this process and of its workers."""
    times = [worker.cpu_times() for worker in workers]
    return time.process_time() + float(sum(one.user + one.system for one in times))


def _data_loader(dataset: Dataset[Any], workers: int = WORKERS) -> Callable[[], Iterable[Any]]:
    return DataLoader(dataset, BATCH, True, num_workers=workers, persistent_workers=workers > 0).__iter__


# ---------------------------------------------------------------- pairs


class Cropped(Dataset[Any]):
    """Crops the samples of another dataset at random, (H, W, C) arrays, and makes them float32 tensors."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        sample = self.samples[number]
        scale = CROP["hr"] // CROP["lr"]
        height, width = np.array(sample["lr"].shape[:2]) - CROP["lr"]
        top, left, flip = int(torch.randint(height + 1, ())), int(torch.randint(width + 1, ())), torch.rand(()) < 0.5
        cropped = {}
        for name, times in (("lr", 1), ("hr", scale)):
            rows, columns = (slice(start * times, start * times + CROP[name]) for start in (top, left))
            crop = np.asarray(sample[name])[rows, columns]
            crop = np.ascontiguousarray(crop[:, ::-1] if flip else crop)
            cropped[name] = torch.from_numpy(crop).permute(2, 0, 1).float()
        return cropped


class Rows:
    """Samples of a memory map or an Arrow table by number, as arrays (H, W, C)."""

    def __init__(self, open_rows: Callable[[], Callable[[int], Sample]], count: int) -> None:
        self.open_rows, self.count = open_rows, count
        self.read: Callable[[int], Sample] | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Sample:
        self.read = self.read or self.open_rows()  # in every worker process
        return self.read(number)


def pair_ways(bench: Bench) -> Ways:
    """Write the pairs of 48/192 px by all systems; return what begins an epoch of crops."""
    source = loose(bench, next(workload for workload in WORKLOADS if workload.name == "pairs 48/192 px"))
    folder = bench.folder / "scratch" / NAME
    folder.mkdir(parents=True)
    ways: Ways = {f"loose files, DataLoader of {WORKERS} workers": _data_loader(Cropped(source))}

    def written(system: System, suffix: str = "") -> Path:
        path = folder / f"{system.name.replace(' ', '')}{suffix}"
        system.write(source, path)
        return path

    others: tuple[tuple[System, Callable[[Path, Loose], Callable[[], Callable[[int], Sample]]]], ...] = (
        (Lmdb(), lambda path, _: partial(_lmdb_rows, path)),
        (Arrow(), lambda path, source: partial(_arrow_rows, path, source.first)),
        (MemoryMap(), lambda path, _: partial(_mapped_rows, path)),
    )
    for system, opening in others:
        try:
            rows = Rows(opening(written(system, ".lmdb" * isinstance(system, Lmdb)), source), len(source))
            ways[f"{system.name}, DataLoader of {WORKERS} workers"] = _data_loader(Cropped(rows))
        except ImportError as error:
            print(f"compare: {system.name} is left out: {error}", file=sys.stderr)
    try:
        ways |= _ffcv(written(Ffcv()), source)
    except ImportError as error:
        print(f"compare: FFCV is left out: {error}", file=sys.stderr)
    crop = Crop(CROP["hr"], of="hr", aligned={"lr": CROP["hr"] // CROP["lr"]}, flips=True)
    for system in (Ours("lz4"), Ours("none")):
        path = written(system, ".packed")
        dataset = PackedDataset(path, crop=crop, cast=dict.fromkeys(CROP, "float32"))
        for name, threads in (("", "auto"), (f" of {WORKERS} threads", WORKERS)):
            ways[f"{system.name}, Loader{name}"] = Loader(dataset, BATCH, shuffle=True, threads=threads).__iter__
    return ways


def _lmdb_rows(path: Path) -> Callable[[int], Sample]:
    import lmdb

    transaction = lmdb.open(str(path), subdir=False, readonly=True, lock=False, readahead=False).begin(buffers=True)
    return lambda number: pickle.loads(lz4.frame.decompress(transaction.get(b"%08d" % number)))


def _arrow_rows(path: Path, first: Sample) -> Callable[[int], Sample]:
    from datasets import load_from_disk

    table = load_from_disk(str(path))

    def read(number: int) -> Sample:
        row = table[number]
        return {name: np.frombuffer(row[name], one.dtype).reshape(one.shape) for name, one in first.items()}

    return read


def _mapped_rows(path: Path) -> Callable[[int], Sample]:
    from tensordict import TensorDict

    mapped: Any = TensorDict.load_memmap(str(path))
    fields = {name: mapped[name].numpy() for name in mapped.keys()}  # noqa: SIM118  # a TensorDict iterates over rows
    return lambda number: {name: values[number] for name, values in fields.items()}


def _ffcv(path: Path, source: Loose) -> Ways:
    """Crop, mirror and convert in one loop of FFCV's pipeline, compiled and in threads; both fields draw alike."""
    from dataclasses import replace

    from ffcv.fields.decoders import NDArrayDecoder
    from ffcv.pipeline.allocation_query import AllocationQuery
    from ffcv.pipeline.compiler import Compiler
    from ffcv.pipeline.operation import Operation
    from ffcv.transforms import ToTensor, ToTorchImage

    class CropToFloat(Operation):  # type: ignore[misc]  # FFCV has no types
        def __init__(self, name: str) -> None:
            super().__init__()
            self.size, self.times = CROP[name], CROP[name] // CROP["lr"]
            self.places = source.first["lr"].shape[0] - CROP["lr"] + 1

        def generate_code(self) -> Any:
            size, times, places, span = self.size, self.times, self.places, Compiler.get_iterator()

            def crop(images: Any, out: Any, indices: Any) -> Any:
                np.random.seed(indices[-1])  # as its MixUp does, so that both fields draw the same
                tops, lefts = np.random.randint(0, places, len(images)), np.random.randint(0, places, len(images))
                flips = np.random.rand(len(images)) < 0.5
                for i in span(len(images)):
                    top, left = tops[i] * times, lefts[i] * times
                    for row in range(size):
                        for column in range(size):
                            to = size - 1 - column if flips[i] else column
                            for channel in range(3):
                                out[i, row, to, channel] = np.float32(images[i, top + row, left + column, channel])
                return out[: len(images)]

            crop.is_parallel = crop.with_indices = True  # type: ignore[attr-defined]
            return crop

        def declare_state_and_memory(self, previous_state: Any) -> Any:
            shape, dtype = (self.size, self.size, 3), np.dtype("float32")
            return replace(previous_state, jit_mode=True, shape=shape, dtype=dtype), AllocationQuery(shape, dtype)

    def pipelines() -> dict[str, list[Any]]:
        return {
            name: [NDArrayDecoder(), CropToFloat(name), ToTensor(), ToTorchImage(convert_back_int16=False)]
            for name in source.first
        }

    return {f"FFCV, {name}": way for name, way in ffcv_epochs(path, BATCH, pipelines).items()}


# ---------------------------------------------------------------- windows


@dataclass(frozen=True)
class Episodes:
    """Episodes in one HDF5 file each, as ACT and robomimic read them: `image` (T, 64, 64, 3), `action` (T, 14).

    Attributes:
        lengths: steps of each.
    """

    folder: Path
    lengths: Sequence[int]

    @property
    def windows(self) -> list[tuple[int, int]]:
        """Return episode and step of each window that lies within its episode."""
        return [(n, step) for n, m in enumerate(self.lengths) for step in range(IMAGES - 1, m - ACTIONS + 1)]

    def read(self) -> Iterator[Sample]:
        """Yield all episodes."""
        for path in sorted(self.folder.glob("*.h5")):
            with h5py.File(path) as file:
                yield {name: file[name][:] for name in ("image", "action")}


def make_episodes(folder: Path, count: int) -> Episodes:
    """Write `count` episodes."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(*STEPS, count).tolist()
    folder.mkdir(parents=True)
    for number, length in enumerate(lengths):
        with h5py.File(folder / f"{number:04d}.h5", "w") as file:
            file["image"] = rng.integers(0, 256, (length, 64, 64, 3), np.uint8)
            file["action"] = rng.standard_normal((length, 14), np.float32)
    return Episodes(folder, lengths)


class WindowsOf(Dataset[Any]):
    """Windows of what gives images and actions between two steps of an episode.

    Args:
        open_steps: makes, in every worker process, a function of field, episode, first and last step.
    """

    def __init__(self, episodes: Episodes, open_steps: Callable[[], Callable[..., NDArray[Any]]]) -> None:
        self.places, self.open_steps = episodes.windows, open_steps
        self.read: Callable[..., NDArray[Any]] | None = None

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        self.read = self.read or self.open_steps()
        episode, step = self.places[number]
        image = self.read("image", episode, step - IMAGES + 1, step + 1)
        action = self.read("action", episode, step, step + ACTIONS)
        return {"image": torch.from_numpy(image).permute(0, 3, 1, 2), "action": torch.from_numpy(action)}


def window_ways(folder: Path, count: int) -> Ways:
    """Write episodes by all systems that have windows; return what begins an epoch of windows."""
    episodes = make_episodes(folder / "episodes", count)
    ways: Ways = {
        f"HDF5 an episode, DataLoader of {WORKERS} workers": _data_loader(
            WindowsOf(episodes, partial(_hdf5_steps, episodes.folder))
        )
    }
    starts = np.concatenate([[0], np.cumsum(episodes.lengths)])
    for name, write, opening in (
        ("zarr, a chunk a step", _write_zarr, _zarr_steps),
        ("HF datasets, Arrow, a row a step", _write_arrow, _arrow_steps),
        ("TensorDict, memory map", _write_mapped, _mapped_steps),
    ):
        path = folder / name.replace(" ", "-")
        try:
            write(path, episodes)
        except ImportError as error:
            print(f"compare: {name} is left out: {error}", file=sys.stderr)
            continue
        dataset = WindowsOf(episodes, partial(opening, path, starts))
        ways[f"{name}, DataLoader of {WORKERS} workers"] = _data_loader(dataset)
        if opening is _mapped_steps:
            ways[f"{name}, td[indices]"] = partial(_mapped_batches, path, starts, episodes)
    windows = Windows({"image": range(1 - IMAGES, 1), "action": range(ACTIONS)})
    for codec in ("lz4", "none"):
        packed = folder / f"{codec}.packed"
        convert(str(episodes.folder), packed, source=SourceOptions(samples="files"), codec=codec, workers=0)
        ours = PackedDataset(packed, windows=windows)
        if len(ours) != len(episodes.windows):
            raise AssertionError(f"{len(ours)} windows of packer, {len(episodes.windows)} of the episodes")
        ways[f"packer, {codec}, Loader"] = Loader(ours, BATCH, shuffle=True).__iter__
    return ways


def _hdf5_steps(folder: Path) -> Callable[..., NDArray[Any]]:
    files = [h5py.File(path) for path in sorted(folder.glob("*.h5"))]
    return lambda name, episode, start, stop: files[episode][name][start:stop]


def _write_zarr(path: Path, episodes: Episodes) -> None:
    import zarr

    group: Any = zarr.open_group(str(path), mode="w")
    total = sum(episodes.lengths)
    for name, shape, dtype in (("image", (64, 64, 3), "uint8"), ("action", (14,), "float32")):
        chunks = (1, *shape) if name == "image" else (total, *shape)
        group.create_array(name, shape=(total, *shape), chunks=chunks, dtype=dtype, compressors=None)
    for first, episode in zip(itertools.accumulate(episodes.lengths, initial=0), episodes.read(), strict=False):
        for name, values in episode.items():
            group[name][first : first + len(values)] = values


def _zarr_steps(path: Path, starts: NDArray[Any]) -> Callable[..., NDArray[Any]]:
    import zarr

    group: Any = zarr.open_group(str(path), mode="r")
    arrays = {"image": group["image"], "action": group["action"][:]}  # actions are small
    return lambda name, episode, start, stop: arrays[name][starts[episode] + start : starts[episode] + stop]


def _write_arrow(path: Path, episodes: Episodes) -> None:
    from datasets import Dataset as Table
    from datasets import Features, Value

    made = path.with_suffix(".cache")
    features = Features({"image": Value("binary"), "action": Value("binary")})
    table = Table.from_generator(partial(_steps_as_bytes, episodes), cache_dir=str(made), features=features)
    table.save_to_disk(str(path))
    shutil.rmtree(made)


def _steps_as_bytes(episodes: Episodes) -> Iterator[dict[str, bytes]]:
    for episode in episodes.read():
        for image, action in zip(episode["image"], episode["action"], strict=True):
            yield {"image": image.tobytes(), "action": action.tobytes()}


def _arrow_steps(path: Path, starts: NDArray[Any]) -> Callable[..., NDArray[Any]]:
    from datasets import load_from_disk

    table = load_from_disk(str(path))
    columns = {name: table.select_columns([name]) for name in ("image", "action")}
    layouts: dict[str, tuple[type, tuple[int, ...]]] = {"image": (np.uint8, (64, 64, 3)), "action": (np.float32, (14,))}

    def read(name: str, episode: int, start: int, stop: int) -> NDArray[Any]:
        rows = columns[name][int(starts[episode]) + start : int(starts[episode]) + stop][name]
        dtype, shape = layouts[name]
        return np.frombuffer(bytearray().join(rows), dtype).reshape(-1, *shape)

    return read


def _write_mapped(path: Path, episodes: Episodes) -> None:
    from tensordict import TensorDict

    first = {"image": torch.zeros(64, 64, 3, dtype=torch.uint8), "action": torch.zeros(14)}
    mapped = TensorDict(first, batch_size=[]).expand(sum(episodes.lengths)).memmap_like(str(path))
    for start, episode in zip(itertools.accumulate(episodes.lengths, initial=0), episodes.read(), strict=False):
        for name, values in episode.items():
            mapped[name][start : start + len(values)] = torch.from_numpy(values)


def _mapped_steps(path: Path, starts: NDArray[Any]) -> Callable[..., NDArray[Any]]:
    from tensordict import TensorDict

    mapped: Any = TensorDict.load_memmap(str(path))
    fields = {name: mapped[name].numpy() for name in ("image", "action")}
    return lambda name, episode, start, stop: fields[name][starts[episode] + start : starts[episode] + stop]


def _mapped_batches(path: Path, starts: NDArray[Any], episodes: Episodes) -> Iterator[dict[str, torch.Tensor]]:
    """Yield batches of windows, each by one index of the memory map a field."""
    from tensordict import TensorDict

    mapped: Any = TensorDict.load_memmap(str(path))
    steps = torch.tensor([int(starts[episode]) + step for episode, step in episodes.windows])
    for numbers in shuffled(len(steps), BATCH):
        anchors = steps[numbers][:, None]
        image = mapped["image"][anchors + torch.arange(1 - IMAGES, 1)].permute(0, 1, 4, 2, 3)
        yield {"image": image, "action": mapped["action"][anchors + torch.arange(ACTIONS)]}
