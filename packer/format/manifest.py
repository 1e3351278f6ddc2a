"""manifest.json: what a packed dataset holds. Written last; a folder without one is unfinished."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import (
    DamagedError,
    DatasetError,
    ManifestError,
    NoDatasetError,
    UnfinishedError,
    UsageError,
)
from packer.format.layout import FORMAT_NAME, FORMAT_VERSION
from packer.format.schema import Field

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class ValueStats(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Statistics of some values.

    Attributes:
        count: how many finite values; minimum, maximum, mean and deviation are of these.
        nan, inf: values that are no number, and infinite ones of either sign.
        min, max: exact; None if there is no value.
        mean, std: the standard deviation of all values (divided by `count`); None if there is no value, or if
            float64 cannot hold the sums.
    """

    count: Count
    nan: Count = 0
    inf: Count = 0
    min: int | float | None
    max: int | float | None
    mean: float | None
    std: float | None

    @property
    def values(self) -> int:
        """Return the values of every kind."""
        return self.count + self.nan + self.inf


class FieldStats(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Statistics of all values of a field, and of each channel: the columns of its last axis, if that is fixed."""

    all: ValueStats
    channels: tuple[ValueStats, ...] = ()


#: Sample numbers as ranges [start, stop): ascending, disjoint, none empty.
Ranges = tuple[tuple[Count, Count], ...]
Splits = dict[Annotated[str, msgspec.Meta(min_length=1)], Ranges]

MANIFEST = "manifest.json"
#: The same bytes once more, from which a damaged manifest is repaired.
MANIFEST_COPY = "manifest.copy.json"
SHARD_FOLDER = "shards"
#: The folder of the note of a run under way, and of the reports of its finished shards.
UNFINISHED = "unfinished"

#: A URL that was made a path, which lost one of its slashes. Two letters at least: `c:/` is a drive.
URL_AS_PATH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")

#: Members that are not written if they are empty.
_OPTIONAL = ("more_names", "left_out", "constants", "stats", "splits", "classes", "runs", "commands")
#: A manifest of a million shards has about 150 MB; a larger file is not one.
MAX_MANIFEST_BYTES = 2**28
MAX_FIELDS = 1000

Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of the dataset: path within it, size, and xxh3-128 of its bytes in hex."""

    file: str
    bytes: Count
    digest: Digest

    def __post_init__(self) -> None:
        parts = self.file.split("/")  # without a path: there may be a million shards
        if self.file.startswith("/") or ".." in parts or any(sign in self.file for sign in "\\:\0"):
            raise ValueError(f"{self.file!r} leaves the folder of the dataset")
        if "" in parts or "." in parts:
            raise ValueError(f"{self.file!r} is not a plain path")


class ShardEntry(FileEntry, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A shard: its file, how many samples it holds, and how many of its share were skipped as bad.

    Attributes:
        index: xxh3-128 of its index arrays, which hold the checksums of its frames; None where an older writer gave
            none: then nothing is compared.
    """

    samples: Count
    rejected: Count = 0
    index: Digest | None = None


class NamesEntry(FileEntry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of names: its file, and how many samples it names."""

    samples: Count


#: A field, and a fraction: in every sample, ragged axes are so many times as long as those of that field.
Scale = tuple[str, Annotated[int, msgspec.Meta(ge=1)], Annotated[int, msgspec.Meta(ge=1)]]


class ColumnTotals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One field over all shards: its bytes as arrays, and as frames on disk; and how its shapes follow another's.

    Attributes:
        scale: see `Scale`; None if the lengths are those of no field before it, or nobody compared them.
    """

    raw: Count
    stored: Count
    scale: Scale | None = None


def total_of(columns: Iterable[ColumnTotals]) -> ColumnTotals:
    """Return the totals of one field over several shards or datasets."""
    all_columns = list(columns)
    scales = {column.scale for column in all_columns}
    return ColumnTotals(
        raw=sum(column.raw for column in all_columns),
        stored=sum(column.stored for column in all_columns),
        scale=scales.pop() if len(scales) == 1 else None,
    )


class GivenCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A command that packed samples of the dataset from files.

    Attributes:
        verb: `convert` or `append`.
        sources: as they were given.
        options: those that were given, by their flags: true of a flag alone, a list or an object of several values.
        out: the dataset that it wrote to, as it was given when this one took over its samples; empty for this one.
    """

    verb: str
    sources: tuple[str, ...]
    options: dict[str, Any] = {}
    out: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a packed dataset holds; see FORMAT.md for each member."""

    format: str = FORMAT_NAME
    version: int = FORMAT_VERSION
    tool: str
    samples: Count
    fields: Annotated[tuple[Field, ...], msgspec.Meta(min_length=1, max_length=MAX_FIELDS)]
    shards: tuple[ShardEntry, ...]
    names: FileEntry | None = None
    #: Tables behind that one, in the order of their samples; see `name_tables`.
    more_names: tuple[NamesEntry, ...] = ()
    columns: dict[str, ColumnTotals]
    origin: dict[str, Any]
    planned_bytes: Count | None = None
    #: The list of samples that were skipped; None if there are none. The file may be longer: what an append of an
    #: earlier version added, and was killed before it published it, is no part of the dataset.
    left_out: FileEntry | None = None
    #: Arrays that are the same for every sample; None if there are none.
    constants: FileEntry | None = None
    #: Empty if nobody asked for them.
    stats: dict[str, FieldStats] = {}
    #: The samples of each split, by its name. A sample may be in several, or in none.
    splits: Splits = {}
    #: The names of the classes, by number in the field `label`; empty if there are none.
    classes: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = ()
    #: The runs that made the dataset and whose users may not know yet, the last one last; each with the digest of its
    #: samples, if these were in memory.
    runs: dict[str, str] = {}
    #: The commands that packed the samples from files, in the order of the samples.
    commands: tuple[GivenCommand, ...] = ()

    def __post_init__(self) -> None:
        names = [field.name for field in self.fields]
        if len(set(names)) != len(names):
            raise ValueError("two fields have one name")
        if sum(shard.samples for shard in self.shards) != self.samples:
            raise ValueError(f"the shards hold {sum(s.samples for s in self.shards)} samples, not {self.samples}")
        if len({shard.file for shard in self.shards}) != len(self.shards):
            raise ValueError("two shards have one file")
        if sum(table.samples for table in self.more_names) > self.samples * (self.names is not None):
            raise ValueError("more_names are of more samples than there are")
        least = sum(_index_bytes(field) for field in self.fields)
        for shard in self.shards:
            if shard.samples * least > shard.bytes:
                raise ValueError(f"{shard.file} cannot hold {shard.samples} samples in {shard.bytes} bytes")
        if set(self.columns) != set(names):
            raise ValueError("columns and fields have different names")
        for name, stats in self.stats.items():
            field = next((field for field in self.fields if field.name == name), None)
            stored_values = None if field is None else self.columns[name].raw // field.itemsize
            if stored_values != stats.all.values:
                raise ValueError(f"stats of {name!r}: {stats.all.values} values, {stored_values} are stored")
        for name, ranges in self.splits.items():
            edges = np.array(ranges, np.int64).reshape(-1)
            is_flat = (np.diff(edges) < 0).any() or (edges[::2] == edges[1::2]).any()
            if is_flat or edges.max(initial=0) > self.samples:
                raise ValueError(f"split {name!r}: its ranges are not ascending ones of {self.samples} samples")

    def field(self, name: str) -> Field:
        """Return the field of this name.

        Raises:
            UsageError: there is no such field; the message says which there are.
        """
        for field in self.fields:
            if field.name == name:
                return field
        raise UsageError(f"the dataset has no field {name!r}; it has {', '.join(field.name for field in self.fields)}")

    def split(self, name: str) -> NDArray[np.int64]:
        """Return the numbers of the samples of a split, ascending, (n,); raises as `split_ranges` does."""
        return range_numbers(self.split_ranges(name))

    def split_ranges(self, name: str) -> Ranges:
        """Return the numbers of the samples of a split as ranges [start, stop), ascending.

        Raises:
            UsageError: there is no such split; the message says which there are.
        """
        if name not in self.splits:
            others = f"it has {', '.join(self.splits)}" if self.splits else "it has none; `packer split` makes some"
            raise UsageError(f"the dataset has no split {name!r}; {others}")
        return self.splits[name]

    @property
    def tables(self) -> tuple[FileEntry, ...]:
        """Return the files that readers may need next to the shards: the tables of names and the constants."""
        return (*self.name_tables, *([self.constants] if self.constants else []))

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """Return all files of the dataset but the manifest and its copy: first the shards."""
        return (*self.shards, *self.tables, *([self.left_out] if self.left_out else []))

    @property
    def name_tables(self) -> tuple[NamesEntry, ...]:
        """Return all tables of names, each for the samples after those of the one before; none if none has a name."""
        if self.names is None:
            return ()
        first = self.samples - sum(table.samples for table in self.more_names)
        return (NamesEntry(**msgspec.structs.asdict(self.names), samples=first), *self.more_names)

    @property
    def raw_bytes(self) -> int:
        """Return the bytes of all samples as arrays."""
        return sum(column.raw for column in self.columns.values())

    @property
    def file_bytes(self) -> int:
        """Return the bytes of the shards and the tables of names."""
        return sum(entry.bytes for entry in (*self.shards, *self.name_tables))


def range_numbers(ranges: Ranges) -> NDArray[np.int64]:
    """Return the numbers in some ranges, (n,)."""
    starts, stops = np.array(ranges, np.int64).reshape(-1, 2).T
    before = np.cumsum(stops - starts) - (stops - starts)
    return np.repeat(starts - before, stops - starts) + np.arange((stops - starts).sum())


def number_ranges(numbers: NDArray[np.int64]) -> Ranges:
    """Return the fewest ranges that hold exactly these numbers, (n,), which ascend and do not repeat."""
    cuts = np.flatnonzero(np.diff(numbers) != 1)
    firsts, lasts = np.concatenate([numbers[:1], numbers[cuts + 1]]), np.concatenate([numbers[cuts], numbers[-1:]])
    return tuple(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))


def _index_bytes(field: Field) -> float:
    """Return the least bytes that a sample takes in its shard: raw values, its sizes and shapes, part of a checksum.

    It bounds the number of samples before anything is allocated for them.
    """
    size = 0 if field.codec or field.is_ragged else field.fixed_bytes
    size += 8 * (1 + len(field.ragged_axes)) if field.is_ragged else 0
    return size + 8 / (field.frame.samples or 1) * (field.frame.rows is None)


def check_count(fields: int) -> None:
    """Raise UsageError if there are more fields than a dataset may have."""
    if fields > MAX_FIELDS:
        raise UsageError(
            f"{fields:,} fields, but {MAX_FIELDS:,} is the most; choose some (--field, --skip), make one of "
            "many columns of a table (--columns), or pack several datasets"
        )


def encode(manifest: Manifest) -> bytes:
    """Return the bytes of manifest.json: JSON in a fixed order, with the digest of all the rest as its last member."""
    members = msgspec.structs.asdict(manifest)
    present = {name: value for name, value in members.items() if value or name not in _OPTIONAL}
    body = msgspec.json.format(msgspec.json.encode(present), indent=1)
    return body[:-2] + _tail(body[:-2])


def decode(data: bytes, path: str) -> Manifest:
    """Return the manifest that `data` holds.

    Raises:
        ManifestError: it is not one; the message names the place in it.
    """
    try:
        document = msgspec.json.decode(data)
        if not isinstance(document, dict) or document.get("format") != FORMAT_NAME:
            raise ManifestError(f"{path}: not the manifest of a packed dataset")
        if document.get("version") != FORMAT_VERSION:
            raise ManifestError(
                f"{path}: format version {document.get('version')!r}; this program reads {FORMAT_VERSION}; "
                "use the version of packer that wrote it, or a newer one"
            )
        document.pop("digest", None)
        manifest = msgspec.convert(document, type=Manifest)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        advice = "run `packer repair`, which takes its copy"
        if "unknown field" in str(error):
            advice = "use the version of packer that wrote it, or a newer one"
        raise ManifestError(f"{path}: {error}; {advice}") from None
    size = len(_tail(b""))
    if data[-size:] != _tail(data[:-size]):
        raise ManifestError(f"{path}: it was changed after it was written (wrong digest); run `packer repair`")
    return manifest


def _tail(body: bytes) -> bytes:
    """Return the last member of a manifest after the bytes `body`, and its end: `body` and `\\n}` are digested."""
    digest = xxhash.xxh3_128_hexdigest(body + b"\n}")
    return b',\n "digest": "' + digest.encode() + b'"\n}\n'


def read(folder: Path, name: str = MANIFEST) -> Manifest:
    """Return the manifest of the packed dataset in `folder`, or its copy.

    Raises:
        UnfinishedError: the conversion into the folder was not finished.
        NoDatasetError: there is no packed dataset.
        ManifestError: the manifest is wrong, or lost.
        DatasetError: the manifest cannot be read.
    """
    path = folder / name
    try:
        with open_file(path) as file:
            # No more than the file has: Python allocates the whole size before it reads.
            data = file.read(min(os.fstat(file.fileno()).st_size, MAX_MANIFEST_BYTES) + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise _absent(folder) from None
    except IsADirectoryError as error:
        raise ManifestError(f"{path}: cannot be read: {error.strerror}") from None
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_MANIFEST_BYTES:
        raise ManifestError(f"{path}: larger than {MAX_MANIFEST_BYTES:,} bytes, not a manifest")
    return decode(data, str(path))


def read_again(folder: Path, manifest: Manifest) -> Manifest:
    """Return the manifest of a folder as `read`; of one that is still `manifest` only the digest is read."""
    tail = encode(manifest)[-len(_tail(b"")) :]
    with contextlib.suppress(OSError), open_file(folder / MANIFEST) as file:
        file.seek(-len(tail), os.SEEK_END)
        if file.read() == tail:
            return manifest
    return read(folder)


def open_file(path: Path) -> io.BufferedReader:
    """Open a file of a dataset to read it. A fifo, a socket or a folder is refused: a fifo would be waited for.

    Raises:
        IsADirectoryError: it is no file.
        OSError: it cannot be opened.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is no file; remove it")
    return path.open("rb")


def list_folder(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield what lies in a folder of a dataset, nothing if there is none.

    Files that NFS keeps are passed over: it gives what is removed a name `.nfs...` while a reader has it open.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        yield from (entry for entry in entries if not entry.name.startswith(".nfs"))


#: Errors of the system for a page that the disk cannot read, a folder and a socket.
_NO_GOOD_FILE = (errno.EIO, errno.EISDIR, errno.ENXIO)


@contextlib.contextmanager
def read_errors(path: str | Path) -> Iterator[None]:
    """Turn errors of the system while a file of a dataset is read into one that names the file.

    Raises:
        DamagedError: it is missing or no file, or the disk cannot read it.
        DatasetError: it cannot be opened (permission, memory, too many open files); the file itself may be fine.
    """
    try:
        yield
    except FileNotFoundError:
        raise DamagedError(f"{path}: it is missing; copy it again or run `packer repair`") from None
    except OSError as error:
        kind = DamagedError if error.errno in _NO_GOOD_FILE else DatasetError
        raise kind(f"{path}: cannot be read: {error.strerror or error}") from None


def check_file(path: Path, entry: FileEntry, whole: bool = False) -> None:
    """Raise DamagedError if a file of a dataset is missing, or has another size than the manifest says.

    Args:
        whole: whether its digest is compared as well.
    """
    size = path.stat().st_size if path.is_file() else None
    if size != entry.bytes:
        problem = "it is missing" if size is None else f"{size:,} bytes, {entry.bytes:,} expected"
    elif whole and file_digest(path) != entry.digest:
        problem = "its digest is wrong: it was changed after it was written"
    else:
        return
    raise DamagedError(f"{path}: {problem}; run `packer verify`, then `packer repair`")


def data_entry(file: str, data: bytes) -> FileEntry:
    """Return the entry of a file that holds these bytes."""
    return FileEntry(file=file, bytes=len(data), digest=xxhash.xxh3_128_hexdigest(data))


def file_entry(file: str, path: Path) -> FileEntry:
    """Return the entry of a file of the dataset that lies at a path for now."""
    return FileEntry(file=file, bytes=path.stat().st_size, digest=file_digest(path))


def file_digest(path: Path) -> str:
    """Return the xxh3-128 of a file's bytes, in hex."""
    digest = xxhash.xxh3_128()
    with read_errors(path), open_file(path) as file:
        while block := file.raw.read(2**20):  # not through the buffer: blocks are larger
            digest.update(block)
    return digest.hexdigest()


def _absent(folder: Path) -> DatasetError:
    """Return the error of a folder without a manifest."""
    if URL_AS_PATH.match(str(folder)):
        return NoDatasetError(
            f"{str(folder).replace(':/', '://', 1)}: this reads the dataset in a folder only, not at a URL; copy it "
            "to a folder first"
        )
    if not folder.is_dir():
        if not folder.exists():
            return NoDatasetError(f"{folder} does not exist; check the path")
        owner = next((above for above in folder.parents if (above / MANIFEST).is_file()), None)
        expected = f"its folder, {owner}" if owner else "the folder of a packed dataset"
        return NoDatasetError(f"{folder} is a file; give {expected}")
    notes = list((folder / UNFINISHED).glob("????????.json"))
    if notes:
        total = None
        # How far it got helps the user, but the error does not depend on it.
        with contextlib.suppress(OSError, msgspec.DecodeError, KeyError, TypeError), open_file(notes[0]) as file:
            total = msgspec.json.decode(file.read())["shards"]
        done = len(list((folder / UNFINISHED).glob(f"{notes[0].stem}-*.json")))
        count, advice = f"{done}", "write it again with overwrite=True"
        if total is not None:
            count, advice = f"{done} of {total}", "run the same `packer convert` again, without --part, to go on"
        return UnfinishedError(f"{folder} is unfinished: {count} shards are done; {advice}")
    if (folder / MANIFEST_COPY).exists():
        return ManifestError(f"{folder} has no {MANIFEST}, but a copy of it; run `packer repair`, which takes the copy")
    return NoDatasetError(f"{folder} is not a packed dataset: it has no {MANIFEST}; make one with `packer convert`")
