"""One way to find files for all sources: what a folder, a file name or a glob pattern stands for, and which kind it is.

    file_set = find("DIV2K/HR")
    kind, file_set = of_one_kind(file_set, suffixes())
    paths = [file_set.path(file) for file in file_set.pick()]

Links are followed, but not in a circle. Every file is packed, or is known to lie beside data and counted, or is an
error. Hidden files and folders (`._a.png`, as some systems leave behind) lie beside data.
"""

from __future__ import annotations

import codecs
import errno
import glob
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from packer.errors import PackerError, ResourceError, SourceError, UsageError, as_text
from packer.threads import in_threads
from packer.watcher import FINDING, NOBODY, Watcher

#: Errors of a want of room, and of a disk, often at the other end of a network: they pass, and no file is at fault.
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EINTR)
_OF_DISKS = (
    *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN),
    *(errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ECONNRESET),
)
#: How libhdf5 passes on the number of an error of the system.
_ERRNO_IN_TEXT = re.compile(r"\berrno = (\d+)")

#: What an LMDB folder holds: the values, and in BasicSR's the list of their keys.
LMDB_DATA, LMDB_LIST = "data.mdb", "meta_info.txt"
#: What the folder of a dataset of LeRobot holds.
LEROBOT_INFO = "meta/info.json"

#: Format of an image file, by its suffix.
IMAGES = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".webp": "WebP",
    ".bmp": "BMP",
    ".gif": "GIF",
}

#: Suffixes of clouds without a header. They count only if `--columns` names the columns, since many other files have
#: these suffixes. Labels of points are such files if they are a field of their own.
CLOUDS = (".bin", ".pts", ".txt", ".xyz")
LABELS = ".label"
#: Suffix of captions; files of it are text if they lie beside images.
TEXT = ".txt"

#: The kind of a file that lies beside data: its suffix or its name says that it is no data.
BESIDE = "beside"
#: The kind of tables. Among files of another kind they are no data of their own: labels, or notes such as `.jsonl`.
TABLES = "tables"
_BESIDE_SUFFIXES = {
    *(".txt", ".md", ".rst", ".json", ".jsonl", ".yaml", ".yml", ".toml", ".xml", ".html", ".htm", ".pdf", ".url"),
    *(".ini", ".cfg", ".log", ".py", ".ipynb", ".sh", ".md5", ".sha1", ".sha256", ".bak"),
}
_BESIDE_NAMES = re.compile(
    r"(readme|licen[cs]e|copying).*|(authors|changelog|citation|makefile|notice|version|(md5|sha\d+|check)sums?)(\..*)?"
    r"|(eh)?thumbs\.db",
    re.IGNORECASE,
)

#: The kind of DICOM files, which are refused; the error names the tool that makes NIfTI of them.
DICOM = "dicom"
_DICOM_SUFFIXES, _DICOM_SIGNATURE, _DICOM_START = (".dcm", ".dicom"), b"DICM", 128

_DOUBLE_SUFFIXES = (".nii.gz", ".zarr.zip")
#: Files of which one lies in every folder that is a zarr.
ZARR_FILES = ("zarr.json", ".zgroup", ".zarray")

#: How HDF5 files begin.
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
#: Where the signature may stand: other programs put blocks of their own in front (512 bytes in MATLAB 7.3).
_HDF5_STARTS = (0, 512, 1024, 2048)

#: How `os.open` opens a file to be read.
READ_ONLY = os.O_RDONLY | getattr(os, "O_BINARY", 0)
#: Files up to so many bytes are read by one call.
_SMALL_BYTES = 2**16
_stamps: ContextVar[dict[str, tuple[int, int]] | None] = ContextVar("stamps", default=None)

_NUMBER = re.compile("[0-9]+")
_WILDCARDS = "*?["
_LFS_POINTER = b"version https://git-lfs"


class FileSet(NamedTuple):
    """Files below a folder, one file, or those that fit a pattern.

    Attributes:
        folder: the folder that names count from; empty for the current one.
        files: relative paths with slashes, sorted; none is hidden.
        odd: those of `files` that are broken links or no regular files (a pipe would be read for ever).
        beside: how many files lie beside data and are skipped, by suffix; hidden files and folders as `hidden`.
        text: the folder, file or pattern, as it was given.
        texts: those beside data that may be texts or numbers of its samples: files of `TEXT`.
    """

    folder: str
    files: list[str]
    odd: frozenset[str] = frozenset()
    beside: Mapping[str, int] = {}
    text: str = ""
    texts: Sequence[str] = ()

    def path(self, file: str) -> str:
        """Return the path of one of `files`."""
        return join(self.folder, file)

    def remarks(self, field: str) -> list[str]:
        """Return a sentence for the plan if something lies beside the files of a field, whose name may be empty."""
        counts = ", ".join(f"{count:,} {suffix}" for suffix, count in sorted(self.beside.items()))
        return [f"{field and f'field {field}: '}skipped {counts}"] if counts else []

    def pick(self, watcher: Watcher = NOBODY) -> list[str]:
        """Return the files in natural order (`b2` before `b10`), without those that cannot be packed.

        Raises:
            SourceError: what `watcher.bad` raises, called with each file that is not regular, or whose name is no text.
            UsageError: no file is left.
        """
        good = []
        for file in self.files:
            if file in self.odd:
                watcher.bad(
                    SourceError("is a broken link, or not a regular file; remove it or fix the link", self.path(file))
                )
            elif as_text(file) != file:
                watcher.bad(SourceError("has a name that is not valid text (UTF-8); rename it", self.path(file)))
            else:
                good.append(file)
        if not good:
            raise UsageError(f"{self.text}: none of its files can be read; check the path")
        return natural_order(good)


def kind_of(path: str, known: Mapping[str, str], more: Mapping[str, str] = {}) -> str | None:
    """Return the kind of a file by its suffix, `BESIDE`, or `hdf5` or `DICOM` by its first bytes; None if it has none.

    Args:
        known: the kind of files with each suffix.
        more: kinds of further suffixes, such as those of clouds; a readme is none of these.
    """
    name = path.rpartition("/")[2]
    if name.startswith("."):
        return None
    suffix = suffix_of(name)
    if kind := known.get(suffix):
        return kind
    if name.count(".") > 1 and (kind := known.get("." + ".".join(name.lower().split(".")[1:][-2:]))):
        return kind
    if _BESIDE_NAMES.fullmatch(name):
        return BESIDE
    if suffix in more:
        return more[suffix]
    if suffix in _BESIDE_SUFFIXES:
        return BESIDE
    return DICOM if suffix in _DICOM_SUFFIXES else _kind_by_bytes(path)


def of_one_kind(
    file_set: FileSet, known: Mapping[str, str], more: Mapping[str, str] = {}, watcher: Watcher = NOBODY
) -> tuple[str | None, FileSet]:
    """Return the kind of the files found (None if none can be packed), and the files of this kind.

    Args:
        known, more: as for `kind_of`.
        watcher: its `bad` is called with every file that is of no kind and not known to lie beside data.

    Raises:
        UsageError: they are of several kinds, or DICOM.
        SourceError: what `watcher.bad` raises.
    """
    kinds = {file: kind_of(file_set.path(file), known, more) for file in file_set.files}
    counts = Counter(kind for kind in kinds.values() if kind and kind != BESIDE)
    tables = list[str]()
    if len(counts) > 1 and counts.pop(TABLES, 0):
        tables = [file for file, kind in kinds.items() if kind == TABLES]
        kinds.update({file: BESIDE if suffix_of(file) in _BESIDE_SUFFIXES else None for file in tables})
    if not counts:
        return None, file_set
    if DICOM in counts:
        raise UsageError(
            f"{file_set.text}: {counts[DICOM]:,} of the files are DICOM, which is not read; make NIfTI of them with "
            f"`dcm2niix -z y -o OUT {file_set.text}`, and pack OUT"
        )
    if len(counts) > 1:
        kinds_in_words = ", ".join(f"{count:,} of {kind}" for kind, count in counts.most_common())
        raise UsageError(
            f"{file_set.text}: files of several kinds ({kinds_in_words}); name one kind with a quoted pattern like "
            "'*.png'"
        )
    (kind,) = counts
    files = [file for file in file_set.files if kinds[file] == kind]
    if strange := [file for file in file_set.files if kinds[file] is None]:
        suffixes = [suffix for suffix, other in {**known, **more}.items() if other == kind]
        ((usual, _),) = Counter(map(suffix_of, files)).most_common(1)
        pattern = join(glob.escape(file_set.folder), f"**/*{usual}")
        reason = f"lies among {kind} ({', '.join(suffixes)}), but is none of these, nor known to lie beside data"
        many = f" (one of {len(strange):,} such files)" if len(strange) > 1 else ""
        advice = f"move it away, or name the files to pack with a quoted pattern like '{pattern}'"
        for file in strange:
            path = file_set.path(file)
            is_joined = file in tables and kind == "images"
            join_it = f"; to give each the row that names it: image={file_set.text} label={path}" if is_joined else ""
            watcher.bad(SourceError(f"{reason}{many}{join_it}; {advice}", path))
    others = [file for file in file_set.files if kinds[file] == BESIDE]
    beside = Counter(suffix_of(file) or "without suffix" for file in others)
    texts = [file for file in others if suffix_of(file) == TEXT]
    return kind, file_set._replace(files=files, beside=beside + Counter(file_set.beside), texts=texts)


def suffix_of(path: str) -> str:
    """Return the suffix of a path in small letters, such as `.png` or `.nii.gz`; empty if it has none."""
    lowered = path.lower()
    if lowered.endswith(_DOUBLE_SUFFIXES):
        return next(double for double in _DOUBLE_SUFFIXES if lowered.endswith(double))
    dot = lowered.rfind(".")
    return lowered[dot:] if dot > 0 and lowered[dot - 1] != "/" and "/" not in lowered[dot:] else ""


def _kind_by_bytes(path: str) -> str | None:
    try:
        if not Path(path).is_file():  # reading a pipe would wait
            return "zarr" if is_zarr(Path(path)) else None
        with open_raw(path) as opened:
            head = opened.read(_HDF5_STARTS[-1] + len(HDF5_SIGNATURE))
    except OSError as error:
        check_lasting(error, path)
        return None
    if head.startswith(_DICOM_SIGNATURE, _DICOM_START):
        return DICOM
    return "hdf5" if any(head.startswith(HDF5_SIGNATURE, start) for start in _HDF5_STARTS) else None


def is_zarr(folder: Path) -> bool:
    """Return whether a folder is a zarr, which counts as one file; one within a source is known by its suffix."""
    return folder.is_dir() and any((folder / name).is_file() for name in ZARR_FILES)


def is_lmdb(folder: Path) -> bool:
    """Return whether a folder is an LMDB folder."""
    return (folder / LMDB_DATA).is_file()


def is_lerobot(folder: Path) -> bool:
    """Return whether a folder is a dataset of LeRobot."""
    try:
        return "codebase_version" in json.loads((folder / LEROBOT_INFO).read_text())
    except (OSError, ValueError, TypeError):
        return False


def join(folder: str, file: str) -> str:
    """Return the path of a relative path below a folder; the empty folder is the current one."""
    return f"{folder}/{file}" if folder and folder != "/" else folder + file


def find(text: str, watcher: Watcher = NOBODY) -> FileSet:
    """Return the files that `text` stands for: all below a folder, one file, or what fits a glob pattern.

    A file that is named by itself never counts as hidden.

    Args:
        watcher: its `step` is called with how many files are found.

    Raises:
        UsageError: there is no such file or folder. (A pattern that nothing fits gives no files.)
        SourceError: a folder cannot be read.
    """
    place = Path(text)
    if place.is_dir() and not is_zarr(place):
        folder, entries = _text(place), walk(place.as_posix())
    elif place.exists() or place.is_symlink():
        return FileSet(
            _text(place.parent),
            [place.name],
            frozenset([] if place.is_file() or place.is_dir() else [place.name]),
            text=text,
        )
    elif glob.has_magic(text):
        fixed = len(fixed_folder(text))
        folder, entries = _text(Path(text[:fixed])), _matches(text, fixed)
    else:
        advice = "{a,b} and {1..9} are for the shell, without quotes; or write *" if "{" in text else "check the path"
        raise UsageError(f"{text}: there is no such file or folder; {advice}")
    names, odd = list[str](), set[str]()
    for name, regular in watcher.watch(entries, FINDING):
        names.append(name)
        if not regular:
            odd.add(name)
    names.sort()
    files = [file for file in names if file[0] != "." and "/." not in file.replace("../", "")]
    hidden = len(names) - len(files)
    return FileSet(folder, files, frozenset(odd.intersection(files)), {"hidden": hidden} if hidden else {}, text)


def fixed_folder(pattern: str) -> str:
    """Return the folder of a pattern that has no wildcard, with its slash; empty for the current one."""
    return pattern[: pattern.rfind("/", 0, min(pattern.find(c) for c in _WILDCARDS if c in pattern)) + 1]


def natural_order(names: Sequence[str]) -> list[str]:
    """Return names in natural order, `b2` before `b10`; ties (`01` and `1`) stay in the order given."""
    if not all(map(str.isascii, names)):
        from natsort import natsorted  # here, because it takes 10 ms to load

        return natsorted(names)
    return sorted(names, key=_natural_key)  # the same order, from a tenth of the time and a quarter of the memory


def _natural_key(name: str) -> str:
    """Return a text that sorts as a name does whose numbers are compared as such: no name holds NUL."""
    return _NUMBER.sub(lambda match: f"\0{chr(len(digits := match[0].lstrip('0')))}{digits}", name)


def walk(folder: str) -> Iterator[tuple[str, bool]]:
    """Yield the relative path of every file below, and whether it is a regular one; of a hidden folder its own path.

    Raises:
        SourceError: a folder cannot be read.
    """
    folders = [_Folder(folder, "", ())]
    while folders:
        below: list[_Folder] = []
        for listing in in_threads(_list_folder, folders):
            yield from ((name, name not in listing.odd) for name in listing.names)
            below += listing.folders
        folders = below


class _Folder(NamedTuple):
    """A folder that is to be listed: its path, what the names of its files begin with, and all folders above it."""

    path: str
    prefix: str
    above: tuple[str, ...]


class _Listing(NamedTuple):
    """What a folder holds: names of files, those of them that are not regular, and folders."""

    names: list[str]
    odd: set[str]
    folders: list[_Folder]


def _list_folder(folder: _Folder) -> _Listing:
    listing = _Listing([], set(), [])
    real = os.path.realpath(folder.path)
    if any(f"{place}{os.sep}".startswith(f"{real}{os.sep}") for place in folder.above):
        return listing  # a link to this folder, or to one that holds it
    try:
        with os.scandir(folder.path) as entries:
            for entry in entries:
                name = folder.prefix + entry.name
                is_folder, is_file = _kind_of(entry)
                if is_folder and not (entry.name[0] == "." or entry.name.endswith(".zarr")):
                    listing.folders.append(_Folder(entry.path, f"{name}/", (*folder.above, real)))
                    continue
                is_hidden = is_folder and entry.name[0] == "."
                listing.names.append(f"{name}/" if is_hidden else name)
                if is_hidden or not (is_folder or is_file):
                    listing.odd.add(listing.names[-1])
    except OSError as error:
        reason = f"the folder cannot be read: {error.strerror}; check its permissions"
        raise unreadable(error, folder.path, reason) from error
    return listing


def _kind_of(entry: os.DirEntry[str]) -> tuple[bool, bool]:
    """Return whether an entry is a folder, and whether it is a regular file; a link to itself is neither."""
    try:
        return entry.is_dir(), entry.is_file()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return False, False


def _matches(pattern: str, fixed: int) -> Iterator[tuple[str, bool]]:
    """Yield the files that fit a pattern, as `walk` does, without the first `fixed` letters of their paths."""
    matches = glob.iglob(pattern, recursive=True)  # Path.glob takes no absolute pattern, and takes long
    for match, is_folder, is_regular in in_threads(_look_at, matches):
        if not is_folder:
            yield match[fixed:].replace(os.sep, "/"), is_regular


def _look_at(path: str) -> tuple[str, bool, bool]:
    """Return a path, whether it is a folder of files, and whether it is a regular file or a zarr."""
    is_one = path.endswith(".zarr")
    return path, not is_one and os.path.isdir(path), is_one or os.path.isfile(path)  # noqa: PTH112, PTH113


def _text(place: Path) -> str:
    text = place.as_posix()
    return "" if text == "." else text


def open_raw(path: str) -> FileIO:
    """Open a file for reading, unbuffered: one that is read in one or two pieces takes half the time this way."""
    return open(path, "rb", buffering=0)  # noqa: PTH123


def read_file(path: str, most: int | None = None) -> tuple[bytes, int]:
    """Return the bytes of a file, or its first `most`, and how many there are.

    No file object is made, which would take as long as reading a small file.

    Raises:
        SourceError: it cannot be read, or is a pointer to data that git-LFS has not fetched.
    """
    try:
        descriptor = os.open(path, READ_ONLY)
        try:
            data, status = os.read(descriptor, _SMALL_BYTES if most is None else most), os.fstat(descriptor)
            if most is None and len(data) < status.st_size:
                data, status = _read_on(descriptor, data), os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unreadable(error, path) from error
    refuse_pointer(data, path)
    if most is None and (stamps := _stamps.get()) is not None:
        stamps[path] = status.st_size, status.st_mtime_ns
    return data, status.st_size


def _read_on(descriptor: int, start: bytes) -> bytes:
    """Return all bytes of a file that begins with `start`."""
    with FileIO(descriptor, closefd=False) as file:
        file.seek(0)  # to read the start again takes less time than to copy all
        return file.readall()


@contextmanager
def stamps_when_read() -> Iterator[dict[str, tuple[int, int]]]:
    """Yield the sizes, and times of change in nanoseconds, of files as they were when they had been read in the block.

    By path; of those alone that are read whole by `read_file`, which looks at the open file: that is half the work of
    another look at the path.
    """
    stamps: dict[str, tuple[int, int]] = {}
    token = _stamps.set(stamps)
    try:
        yield stamps
    finally:
        _stamps.reset(token)


def unreadable(error: BaseException, path: str, reason: str = "") -> PackerError:
    """Return the error of a file that cannot be read: the one place that decides whether the file is a bad one.

    A SourceError is the fault of the file, which may be skipped for it; a ResourceError is not, and is never skipped.

    Args:
        error: of the system, or of a library that may pass on what the system says.
        reason: what a SourceError says; empty for what the system says.
    """
    check_lasting(error, path)
    words = getattr(error, "strerror", None) or error
    return SourceError(reason or f"cannot be read: {words}; check that it is there and may be read", path)


def check_lasting(error: BaseException, path: str) -> None:
    """Raise ResourceError if an error passes, and is not the fault of the file at `path`."""
    number = getattr(error, "errno", None)
    if number is None and (match := _ERRNO_IN_TEXT.search(str(error))):
        number = int(match[1])
    if number in _NO_ROOM:
        advice = "run the same command again, with fewer --workers"
    elif number in _OF_DISKS:
        advice = "run the same command again once its disk can be read; what is finished is kept"
    else:
        return
    raise ResourceError(f"{path}: cannot be read now: {os.strerror(number)}; {advice}") from error


def decode_text(data: bytes) -> str:
    """Return the text of a file: UTF-8, or UTF-16 with a byte order mark. The mark is no part of it.

    Raises:
        UnicodeDecodeError: it is neither.
    """
    return data.decode("utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig")


def refuse_pointer(head: bytes, path: str | None = None) -> None:
    """Raise SourceError if a file that begins with `head` is a pointer to data that git-LFS has not fetched."""
    if head.startswith(_LFS_POINTER):
        raise SourceError("is a git-LFS pointer, not the data; fetch the file with `git lfs pull`", path)
