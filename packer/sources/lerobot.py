"""Datasets of LeRobot (versions 2.1 and 3.0): an episode is a sample, its steps the first axis of every field.

    meta/info.json                           features, the frames a second, splits, and where files are
    meta/episodes/... or episodes.jsonl      how long each episode is, its tasks, and in which files it lies
    data/chunk-000/file-000.parquet          numbers of each step, and images
    videos/KEY/chunk-000/file-000.mp4        what cameras saw, episode after episode

Fields are called as the features are: numbers (T, ...), cameras (T, H, W, 3) uint8; besides, `task` is the text of the
tasks, a line each. A step has the frame that is shown nearest to its time, as in the package lerobot.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.codecs import file_of, with_files
from packer.errors import SourceError, UsageError, first_few
from packer.format import DTYPES
from packer.sources.agreeing import agree_on_most
from packer.sources.base import LARGE_BYTES, LargeArray
from packer.sources.files import LEROBOT_INFO, FileSet, join, unreadable
from packer.sources.images import image_in
from packer.sources.kinds import Kind
from packer.sources.looking import Header
from packer.sources.options import SourceOptions
from packer.sources.table import Files, LaidField, Row, SampleTable
from packer.sources.video import Frames, Video, look_at, sides_of, turned_sides
from packer.watcher import Watcher

#: The field of text.
_TASK = "task"
_DATA, _STEPS, _EPISODE, _BEGIN = "", "steps", "episode", "{}.begin"
#: The column of data that says to which episode a step belongs.
_EPISODE_OF_STEP = "episode_index"
_SUPPORTED = ("v2.1", "v3.0")
_NANO = 10**9


class _Feature(NamedTuple):
    """A feature of all steps: its dtype as LeRobot calls it, and the shape of one step."""

    dtype: str
    shape: tuple[int, ...]


# ---------------------------------------------------------------- where episodes lie


def pair(file_sets: Mapping[str, FileSet], options: SourceOptions, watcher: Watcher) -> tuple[SampleTable, list[str]]:
    """Return all episodes, and where each lies.

    Raises:
        SourceError: files of `meta` are damaged, or list fewer episodes than there are.
    """
    ((_, file_set),) = file_sets.items()
    folder = file_set.text
    info = _info(folder)
    try:
        cameras = [name for name, feature in _features(folder, options.skip).items() if feature.dtype == "video"]
        rows = list(_episodes(folder, info, cameras))
    except KeyError as error:
        raise SourceError(f"its files of meta lack {error}; download it again", folder) from error
    if len(rows) < (total := info.get("total_episodes") or 0):
        reason = f"{LEROBOT_INFO} says that there are {total:,} episodes, and files of meta list {len(rows):,}"
        raise SourceError(f"{reason}; download it again, or correct total_episodes", folder)
    inputs = {_DATA: Files(folder, [row[_DATA] for row in rows])}
    inputs |= {camera: Files(folder, [row[camera] for row in rows]) for camera in cameras}
    numbers = {name: np.array([row[name] for row in rows], np.int64) for name in (_STEPS, _EPISODE)}
    for camera in cameras:
        begins = [round(row[_BEGIN.format(camera)] * _NANO) for row in rows]
        numbers[_BEGIN.format(camera)] = np.array(begins, np.int64)
    names = [_name(folder, row[_EPISODE]) for row in rows]
    lengths = numbers[_STEPS]
    steps = f"{lengths.min():,} to {lengths.max():,}" if len(rows) else "0"
    remarks = [f"each episode is a sample: {len(rows):,} episodes of {steps} steps, {info['fps']} a second"]
    if options.skip:
        remarks.append(f"left out by --skip: {first_few(options.skip)}")
    named = {file for paths in inputs.values() for file in paths.files}
    if others := [f"column {name}" for name in _unnamed_columns(folder, rows, info)] + [
        file for file in _files_below(folder) if file not in named and not set(options.skip) & set(file.split("/"))
    ]:
        remarks.append(
            f"{LEROBOT_INFO} does not name {len(others):,} columns and files, not packed: {first_few(others)}"
        )
    return SampleTable(count=len(rows), inputs=inputs, names=names, numbers=numbers), remarks


def _unnamed_columns(folder: str, rows: Sequence[Mapping[str, Any]], info: Mapping[str, Any]) -> list[str]:
    """Return the columns of the first file of data that are no features; files of a dataset have the same ones."""
    import pyarrow.parquet as pq

    from packer.sources.tables import faults

    path = join(folder, rows[0][_DATA]) if rows else ""
    if not Path(path).is_file():
        return []  # each episode names its file
    with faults(path):
        return [name for name in pq.read_schema(path).names if name not in info["features"]]


def _files_below(folder: str) -> Iterator[str]:
    """Yield the files of a dataset, by their paths in it, but for those of `meta`, hidden ones and words about it."""
    for place, folders, files in os.walk(folder):
        below = Path(place).relative_to(folder).as_posix().removeprefix(".")
        folders[:] = sorted(name for name in folders if not name.startswith(".") and (below or name != "meta"))
        yield from (
            f"{below}/{file}".removeprefix("/")
            for file in sorted(files)
            if not file.startswith(".") and (below or "." in file.removesuffix(".md"))
        )


def _name(folder: str, episode: int) -> str:
    """Return the name of an episode, which begins with that of the dataset: several may be packed as one."""
    return f"{Path(folder).resolve().name}/episode_{episode:06d}"


def _info(folder: str) -> dict[str, Any]:
    """Return what the dataset says of itself; read again only if it has changed: each episode asks."""
    return _read_info(folder, (Path(folder) / LEROBOT_INFO).stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _read_info(folder: str, changed: int) -> dict[str, Any]:
    info: dict[str, Any] = json.loads((Path(folder) / LEROBOT_INFO).read_text(encoding="utf-8"))
    version = str(info["codebase_version"])
    if version not in _SUPPORTED:
        raise UsageError(
            f"{folder} is a dataset of LeRobot {version}, and {' and '.join(_SUPPORTED)} are read; convert it with "
            "lerobot's own script (python -m lerobot.datasets.v30.convert_dataset_v21_to_v30)"
        )
    return info


def _features(folder: str, skip: tuple[str, ...]) -> dict[str, _Feature]:
    """Return the features that are packed.

    Raises:
        UsageError: one has values that no field holds, or there is none of a name to skip.
    """
    entries = _info(folder)["features"]
    if unknown := [name for name in skip if name not in entries]:
        raise UsageError(f"--skip {unknown[0]}: there is no such feature; there are {', '.join(entries)}")
    features = {
        name: _Feature(feature["dtype"], tuple(feature["shape"]))
        for name, feature in entries.items()
        if name not in skip
    }
    for name, feature in features.items():
        if feature.dtype not in (*DTYPES, "video", "image"):
            raise UsageError(
                f"the feature {name} is of {feature.dtype}, which no field holds; --skip {name} leaves it out"
            )
        if name == _TASK:
            raise UsageError(f"a feature is called {_TASK}, as the text of the tasks is; --skip {_TASK} leaves it out")
    return features


def _episodes(folder: str, info: Mapping[str, Any], cameras: list[str]) -> Iterator[dict[str, Any]]:
    """Yield of each episode its number, its steps, and by feature its file and where it begins there."""
    if info["codebase_version"] == "v2.1":
        for episode in _json_lines(folder, "meta/episodes.jsonl"):
            number = episode["episode_index"]
            at = {"episode_chunk": number // info["chunks_size"], "episode_index": number}
            videos = {c: info["video_path"].format(video_key=c, **at) for c in cameras}
            begins = {_BEGIN.format(camera): 0.0 for camera in cameras}
            yield {
                _EPISODE: number,
                _STEPS: episode["length"],
                _DATA: info["data_path"].format(**at),
                **videos,
                **begins,
            }
        return
    for episode in _tables(folder, "meta/episodes"):
        place = {"chunk_index": episode["data/chunk_index"], "file_index": episode["data/file_index"]}
        data = info["data_path"].format(**place)
        row = {_EPISODE: episode["episode_index"], _STEPS: episode["length"], _DATA: data}
        for camera in cameras:
            of = f"videos/{camera}"
            place = {name: episode[f"{of}/{name}"] for name in ("chunk_index", "file_index")}
            row[camera] = info["video_path"].format(video_key=camera, **place)
            row[_BEGIN.format(camera)] = episode[f"{of}/from_timestamp"]
        yield row


def _json_lines(folder: str, below: str) -> Iterator[dict[str, Any]]:
    """Yield the records of a file of lines of JSON."""
    path = Path(folder) / below
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip():
                yield json.loads(line)
    except OSError as error:
        raise unreadable(error, str(path)) from error
    except ValueError as error:
        raise SourceError(f"has a line that is no JSON ({error}); download it again", str(path)) from error


def _tables(folder: str, below: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of all files of Parquet below a folder, in order, without statistics."""
    import pyarrow.parquet as pq

    from packer.sources.tables import faults

    for path in sorted((Path(folder) / below).rglob("*.parquet")):
        with faults(str(path)), pq.ParquetFile(path) as file:
            columns = [name for name in file.schema_arrow.names if not name.startswith("stats/")]
            yield from file.read(columns).to_pylist()


@lru_cache(maxsize=4)
def _tasks(folder: str, changed: int) -> dict[int, str]:
    """Return the text of each task by its number; `changed` is the time of `LEROBOT_INFO`."""
    lines = "meta/tasks.jsonl"
    # Below meta are tasks.parquet, and the episodes, which have no such number.
    rows = _json_lines(folder, lines) if (Path(folder) / lines).exists() else _tables(folder, "meta")
    texts = {row["task_index"]: row for row in rows if "task_index" in row}
    return {n: row["task"] if "task" in row else row["__index_level_0__"] for n, row in texts.items()}


# ---------------------------------------------------------------- headers


def look(row: Row, options: SourceOptions) -> Header:
    """Return the fields of an episode; of its files only those of cameras are looked at, each once."""
    layout, numbers = [LaidField(_TASK, "uint8", (None,), "text", "text")], dict[str, int]()
    for name, feature in _features(_folder(row), options.skip).items():
        shape, notes = feature.shape if feature.shape != (1,) else (), tuple[str, ...]()
        if feature.dtype in ("video", "image"):
            if feature.dtype == "video":
                _, sides, notes = _video_of(row.paths[name][0])
                shape = (*sides_of(options, *sides), 3)
            elif shape[0] == 3 and shape[2] != 3:  # as (C, H, W)
                shape = (*shape[1:], 3)
            layout.append(LaidField(name, "uint8", (_STEPS, *shape), f"frames of {shape}", notes=notes))
            continue
        layout.append(LaidField(name, feature.dtype, (_STEPS, *shape), f"{feature.dtype} {shape}"))
    return Header(tuple(layout), numbers)


def _folder(row: Row) -> str:
    """Return the folder of the dataset, from the file of its first input, which lies two folders below it or deeper."""
    folder = Path(row.paths[_DATA][0]).parent
    while not (folder / LEROBOT_INFO).exists():
        if folder == folder.parent:
            raise SourceError(f"lies in no folder with {LEROBOT_INFO}", row.paths[_DATA][0])
        folder = folder.parent
    return str(folder)


def _video_of(path: str) -> tuple[Video, tuple[int, int], tuple[str, ...]]:
    """Return what packets of a file say, height and width, and notes; files of many episodes are looked at once."""
    try:
        state = Path(path).stat()
    except OSError as error:
        raise unreadable(error, path) from error
    return _looked_at(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=64)
def _looked_at(path: str, *state: int) -> tuple[Video, tuple[int, int], tuple[str, ...]]:
    video, first, notes = look_at(path)
    return video, turned_sides(first), notes


def agree(table: SampleTable, options: SourceOptions, remarks: list[str], watcher: Watcher) -> SampleTable:
    """Return the episodes that have the fields of most."""
    return agree_on_most(table, watcher, "differs from most episodes: {how}; --skip leaves out a feature")


# ---------------------------------------------------------------- values


def read(row: Row, options: SourceOptions) -> dict[str, Any]:
    """Return the steps of an episode."""
    folder, features = _folder(row), _features(_folder(row), options.skip)
    path = row.paths[_DATA][0]
    first = _first_row(path, row.numbers[_EPISODE], row.numbers[_STEPS])
    needed = {*(name for name, feature in features.items() if feature.dtype != "video"), "timestamp", "task_index"}
    columns = _columns(path, first, first + row.numbers[_STEPS], tuple(sorted(needed)))
    tasks = dict.fromkeys(columns["task_index"].to_pylist())
    texts = _tasks(folder, (Path(folder) / LEROBOT_INFO).stat().st_mtime_ns)
    if unknown := [number for number in tasks if number not in texts]:
        raise SourceError(
            f"has steps of task {unknown[0]}, which the files of meta do not name; download them again", path
        )
    sample: dict[str, Any] = {_TASK: "\n".join(texts[number] for number in tasks)}
    for laid in row.layout[1:]:
        shape = tuple(int(n or 0) for n in row.shape(laid))
        dtype = features[laid.name].dtype
        if dtype == "video":
            sample[laid.name] = _camera(row, laid.name, np.asarray(columns["timestamp"]), shape, options)
        elif dtype == "image":
            sample[laid.name] = _pictures(columns[laid.name], laid.name, options, path)
        else:
            sample[laid.name] = _numbers(columns[laid.name], laid, shape, path)
    return sample


def _first_row(path: str, episode: int, steps: int) -> int:
    """Return the first row of an episode in a file of data.

    Raises:
        SourceError: there are not as many steps of it, one after another, as the dataset says.
    """
    from packer.sources.tables import faults

    with faults(path):
        rows = np.flatnonzero(_episodes_of_rows(path, Path(path).stat().st_mtime_ns) == episode)
    if len(rows) != steps or not steps or rows[-1] - rows[0] != steps - 1:
        reason = f"has {len(rows):,} steps of episode {episode:,}, and files of meta say {steps:,}, one after another"
        raise SourceError(f"{reason}; download it again", path)
    return int(rows[0])


@lru_cache(maxsize=4)
def _episodes_of_rows(path: str, changed: int) -> NDArray[np.int64]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        column = _only(file.read([_EPISODE_OF_STEP]), [_EPISODE_OF_STEP])[_EPISODE_OF_STEP]
    return np.asarray(column.to_numpy(), np.int64)


def _only(table: Any, names: Sequence[str]) -> Any:
    """Return a table, which must have these columns."""
    if lacking := [name for name in names if name not in table.column_names]:
        raise SourceError(f"has no column {lacking[0]}, which {LEROBOT_INFO} names; --skip {lacking[0]} leaves it out")
    return table


def _columns(path: str, start: int, stop: int, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the rows start..stop of some columns of a file, each as one array of Arrow."""
    import pyarrow as pa

    from packer.sources.tables import faults

    with faults(path):
        ends, parts = np.cumsum(_rows_of_groups(path, Path(path).stat().st_mtime_ns)), []
        for group in range(int(ends.searchsorted(start, "right")), int(ends.searchsorted(stop)) + 1):
            before = int(ends[group - 1]) if group else 0
            table = _group(path, group, names, Path(path).stat().st_mtime_ns)
            parts.append(table.slice(max(0, start - before), min(stop, int(ends[group])) - max(start, before)))
        table = pa.concat_tables(parts).combine_chunks()
    if lacking := [name for name in names if table[name].null_count]:
        raise _without_value(lacking[0], path)
    return {name: table[name].chunk(0) for name in names}


@lru_cache(maxsize=64)
def _rows_of_groups(path: str, changed: int) -> list[int]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        return [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]


@lru_cache(maxsize=1)
def _group(path: str, group: int, names: tuple[str, ...], changed: int) -> Any:
    """Return a group of rows; the last one is kept, since episodes that follow one another may lie in it."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        return _only(file.read_row_group(group, list(names)), names)


def _numbers(column: Any, laid: LaidField, shape: tuple[int, ...], path: str) -> NDArray[Any]:
    from pyarrow import compute

    is_whole, is_even, axis = not column.null_count, True, 1
    while column.type.num_fields and axis < len(shape):
        length = shape[axis] if column.type.value_type.num_fields else math.prod(shape[axis:])  # lists may be flat
        is_even &= compute.all(compute.equal(compute.list_value_length(column), length)).as_py() is not False
        column, axis = column.flatten(), axis + 1
        is_whole &= not column.null_count
    if not is_whole:
        raise _without_value(laid.name, path)
    values = np.asarray(column.to_numpy(zero_copy_only=False))
    if values.dtype != laid.dtype or values.size != np.prod(shape) or not is_even:
        reason = f"column {laid.name} holds {values.size:,} values of {values.dtype}, not {shape} of {laid.dtype}"
        raise SourceError(f"{reason} as {LEROBOT_INFO} says; --skip {laid.name} leaves it out", path)
    return np.ascontiguousarray(values).reshape(shape)


def _pictures(column: Any, name: str, options: SourceOptions, path: str) -> NDArray[Any]:
    """Return the pixels of the pictures of steps, (T, H, W, C), which are files in the column."""
    import pyarrow as pa

    files = (
        column.field("bytes")
        if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0
        else column
    )
    if files.null_count:
        raise _without_value(name, path)
    if not pa.types.is_binary(files.type):
        raise SourceError(f"column {name} holds {files.type}, not files of pictures; --skip {name} leaves it out", path)
    try:
        images = [image_in(file.as_py(), name, options) for file in files]
    except SourceError as error:
        raise SourceError(f"a picture of {name} {error.reason}", path) from error
    if len({image.shape for image in images}) > 1:
        raise SourceError(
            f"pictures of {name} change their size within an episode; --skip {name} leaves them out", path
        )
    return with_files(np.stack(images), list(map(file_of, images)))


def _without_value(name: str, path: str) -> SourceError:
    return SourceError(f"column {name} has steps without a value; --skip {name} leaves it out", path)


def _camera(
    row: Row, name: str, times: NDArray[Any], shape: tuple[int, ...], options: SourceOptions
) -> NDArray[np.uint8] | LargeArray:
    """Return the frames of a camera, of each step the one that is shown nearest to its time."""
    path = row.paths[name][0]
    video, _, _ = _video_of(path)
    wanted = row.numbers[_BEGIN.format(name)] / _NANO + times.astype(np.float64)
    after = video.times.searchsorted(wanted).clip(0, len(video.times) - 1)
    before = (after - 1).clip(0)
    numbers = np.where(wanted - video.times[before] < video.times[after] - wanted, before, after)
    late = ~(np.abs(video.times[numbers] - wanted) <= 0.5 / video.rate)  # so is a time that is NaN
    if late.any():
        at = float(wanted[late.argmax()])
        raise SourceError(f"has no frame at {at:.3f} s, where step {late.argmax():,} of an episode is", path)
    frames = Frames(path, video, numbers, options)
    array = LargeArray(np.dtype(np.uint8), shape, frames.read, path)
    return array if array.nbytes > LARGE_BYTES else array[:]


def with_splits(source: Any, facts: None) -> Any:
    """Return the source with the splits of the dataset, which are ranges of episodes."""
    (files, *_) = source.table.inputs.values()
    splits = dict[str, list[str]]()
    for name, bounds in (_info(files.folder).get("splits") or {}).items():
        start, colon, stop = str(bounds).partition(":")
        if colon and start.isdecimal() and stop.isdecimal():
            splits[name] = [_name(files.folder, number) for number in range(int(start), int(stop))]
    source.splits = splits
    return source


KIND = Kind(
    "lerobot",
    (),
    look,
    read,
    names_fields=True,
    needs=("pyarrow", "a dataset of LeRobot", "tables,video"),
    options=("skip", "size", "short"),
    pair=pair,
    agree=agree,
    are_ragged=True,
    complete=with_splits,
    origin=lambda options, table: {"skip": list(options.skip)} if options.skip else {},
)
