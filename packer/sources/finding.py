"""The first step of opening a source: which files the words of a command line name, and of what kind they are."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from packer.errors import SourceError, UsageError, first_few
from packer.format import MANIFEST, check_field_name
from packer.remote import is_url
from packer.sources.files import (
    CLOUDS,
    LABELS,
    TABLES,
    TEXT,
    FileSet,
    find,
    fixed_folder,
    is_lerobot,
    is_lmdb,
    of_one_kind,
    suffix_of,
)
from packer.sources.kinds import suffixes
from packer.sources.options import SourceOptions
from packer.watcher import NOBODY, Watcher

#: Kinds of files that lie beside those of samples, by suffix. Texts of the field of this name are boxes of YOLO.
_BESIDE = {TEXT: "text", ".xml": "voc", ".json": "coco"}
BOXES = "boxes"
#: What to do with files of no known kind.
_OTHERS = "; read others in Python, and pack the samples by packer.convert.convert (docs/have/python.md)"
#: How Python reads one file of the commonest of them, as a sample of its path p.
_IN_PYTHON = {
    **dict.fromkeys((".wav", ".mp3", ".ogg"), '{"audio": soundfile.read(p)[0]}'),
    **dict.fromkeys((".pt", ".pth"), "torch.load(p)"),
    **dict.fromkeys((".pkl", ".pickle"), "pickle.loads(p.read_bytes())"),
    ".exr": '{"image": cv2.imread(str(p), cv2.IMREAD_UNCHANGED)}',
}
#: How Python reads all samples of one file.
_MANY_IN_PYTHON = {".tfrecord": "tfrecord.tfrecord_loader(str(p), None)", ".rec": "records(p)"}
#: What has to be defined for that. A file of MXNet's RecordIO holds records of a label or several, and an image.
_DEFINITIONS = {
    ".rec": """\
  def records(path):
      with open(path, "rb") as file:
          parts = []
          while head := file.read(8):  # a magic number; whether the record goes on, and the length of this part
              word = struct.unpack("<2I", head)[1]
              parts.append(file.read(word % 2**29))
              file.read(-word % 4)
              if word >> 29 in (0, 3):  # the last part
                  record, parts = head[:4].join(parts), []
                  count, label, number = struct.unpack_from("<IfQ", record)
                  labels = numpy.frombuffer(record, "<f4", count, 24) if count else numpy.float32([label])
                  if image := record[24 + 4 * count :]:  # records without one are lists of other records
                      yield {"image": image, "label": labels, "id": number}
"""
}
#: What unpacks files that are compressed as a whole.
_COMPRESSED = {".gz": "gunzip", ".tgz": "gunzip", ".bz2": "bunzip2", ".xz": "unxz", ".zst": "unzstd", ".zip": "unzip"}


def paths_by_field(inputs: Sequence[str]) -> dict[str, str]:
    """Return the path of each field; an input without `FIELD=` is the field "".

    Raises:
        UsageError: there is no input, one has no path or a wrong field name, or two have the same name, or none.
    """
    if not inputs:
        raise UsageError("no source is named; give a folder, a file, or FIELD=FOLDER for each field")
    split = [_split(text) for text in inputs]
    ((name, times),) = Counter(name for name, _ in split).most_common(1)
    if times == 1:
        return dict(split)
    paths = [path for other, path in split if other == name]
    if name:
        raise UsageError(f"{paths[0]} and {paths[1]} are both named {name}=; each field takes one source")
    for path in paths:
        if not (is_url(path) or Path(path).exists() or glob.glob(path)):
            raise UsageError(
                f"{path}: there is no such file or folder; a path that holds spaces needs quotes around it"
            )
    raise UsageError(
        f"{times} sources are given without FIELD= ({first_few(paths)}): quote a pattern, as in "
        "'train_*.h5', to take all its files as one source, or name the field of each, as in lr=LR hr=HR"
    )


def _split(text: str) -> tuple[str, str]:
    """Return the field name (or nothing) and path of an input; a path that exists is taken whole, `=` or not."""
    name, equals, path = text.partition("=")
    if not equals or os.sep in name:
        return "", text
    if Path(text).exists():
        if name and path and Path(path).exists():
            raise UsageError(
                f"{text!r} could be the path of that name, or {path} for the field {name!r}; write "
                f"{os.curdir}{os.sep}{text} for the path, {name}={Path(path).absolute()} for the field"
            )
        return "", text
    if not path:
        raise UsageError(f"{text!r} names no path; FIELD=FOLDER is expected")
    try:
        check_field_name(name)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return name, path


def find_kind(
    name: str,
    path: str,
    columns: Mapping[str, str],
    has_others: bool,
    watcher: Watcher,
    others: Collection[str] = (),
) -> tuple[str, FileSet]:
    """Return the kind of the files that `path` names, and the files; an LMDB folder is not listed.

    Args:
        name: of the field; empty if none is given.
        columns: `--columns` by field. Files of `CLOUDS` count only if it has this field.
        has_others: whether there are other fields, next to which files of `TEXT` are text.
        watcher: its `bad` is called with every file that is of no kind and not known to lie beside data.
        others: paths of all inputs: a table that is one is none of the files of a folder.

    Raises:
        UsageError: there are none, or files of several kinds.
        SourceError: it is a folder that holds no file of any kind; or what `watcher.bad` raises.
    """
    if is_lmdb(Path(path)):
        return "basicsr", FileSet(path, [], text=path)
    if is_lerobot(Path(path)):
        return "lerobot", FileSet(path, [], text=path)
    of_clouds: tuple[str, ...] = ()
    if name in columns:
        of_clouds = (*CLOUDS, LABELS) if name else CLOUDS
    elif "" in columns and not has_others:
        of_clouds = CLOUDS
    listed = find(path, watcher)
    files = [other for other in others if other != path and Path(other).is_file()]
    tables = {str(Path(file)) for file in files if suffixes().get(suffix_of(file)) == TABLES}
    if len(listed.files) > 1 and tables:
        listed = listed._replace(files=[file for file in listed.files if listed.path(file) not in tables])
    kind, file_set = of_one_kind(listed, suffixes(), dict.fromkeys(of_clouds, "clouds"), watcher)
    if kind is None and name and has_others:
        beside = {**_BESIDE, TEXT: "yolo"} if name == BOXES else _BESIDE
        kind, file_set = of_one_kind(listed, suffixes(), beside, watcher)
    if kind is not None:
        return kind, file_set
    known = f"{', '.join(sorted(suffixes()))}, and with --columns x,y,z also {', '.join(CLOUDS)}"
    if name and name not in columns:
        known += f", and with --columns {name}=NAMES:TYPE also {LABELS}"
    if (Path(path) / MANIFEST).is_file():
        raise UsageError(
            f"{path} is a packed dataset; `packer repack` packs it again, `packer append` and `merge` join several"
        )
    if Path(path).is_dir() and not file_set.files:
        raise SourceError("the folder is empty, apart from hidden files and empty folders; check the path", path)
    if Path(path).is_dir():
        content = f"holds {len(file_set.files):,} files, but none of a kind that can be packed"
        raise SourceError(f"the folder {content}; files that can be packed: {known}{_in_python(file_set)}", path)
    if not file_set.files:
        raise UsageError(f"{path}: there is no such file or folder, and no file fits it as a pattern")
    raise UsageError(f"{path}: not a kind of file that can be packed; these can be: {known}{_in_python(file_set)}")


def _in_python(file_set: FileSet) -> str:
    """Return what to do with files of no known kind: of a common one, the lines of Python that pack them."""
    ((suffix, _),) = Counter(map(suffix_of, file_set.files)).most_common(1) or [("", 0)]
    if suffix == ".json":
        path = file_set.path(file_set.files[0])
        return (
            f"; a .json of COCO lies beside its images: image=FOLDER boxes={path}; a list of records as lines:\n"
            f"  python -c 'import json, sys; [print(json.dumps(r)) for r in json.load(sys.stdin)]' < {path} > a.jsonl"
        )
    if suffix in _COMPRESSED:
        return f"; unpack it first, as by {_COMPRESSED[suffix]} {file_set.path(file_set.files[0])}"
    if suffix in _IN_PYTHON:
        add = f"writer.add({_IN_PYTHON[suffix]}, name=p.stem)"
    elif suffix in _MANY_IN_PYTHON:
        add = f"for sample in {_MANY_IN_PYTHON[suffix]}:\n              writer.add(sample)"
    else:
        return _OTHERS
    return (
        f". {suffix} is read in Python (docs/have/python.md):\n{_DEFINITIONS.get(suffix, '')}"
        "  with packer.writer.DatasetWriter(OUT) as writer:\n"
        f"      for p in sorted(pathlib.Path({file_set.folder!r}).rglob('*{suffix}')):\n"
        f"          {add}"
    )


def list_files(inputs: Sequence[str], options: SourceOptions, watcher: Watcher = NOBODY) -> Iterator[str] | None:
    """Return the paths of all files that `inputs` stand for, whether they are packed or not; none of them is opened.

    As long as they and the sizes and times of the source files stay, so do the samples. None if the samples depend on
    more: on empty folders, or on a list.

    Raises:
        UsageError, SourceError: as `open_sources`, if the files cannot be listed.
    """
    paths = [path for _, path in map(_split, inputs)]
    if (
        options.label is not None
        or options.listed is not None
        or options.files
        or any(is_lmdb(Path(path)) for path in paths)
    ):
        return None
    file_sets = [find(path, watcher) for path in paths]
    return (file_set.path(file) for file_set in file_sets for file in file_set.files)


def named_paths(inputs: Sequence[str], options: SourceOptions) -> list[str]:
    """Return the files and folders that `inputs` and `--root` name, as absolute paths; of a pattern its fixed folder.

    None of them is opened, and no folder is listed. All that lies below such a folder is named by it.
    """
    paths = list[str]()
    for _, path in map(_split, inputs):
        is_pattern = not Path(path).exists() and glob.has_magic(path)
        paths.append(fixed_folder(path) or os.curdir if is_pattern else path)
    if options.files:  # whose names count from the folder of the table
        paths += [os.path.dirname(path) or os.curdir for path in paths] if options.root is None else [options.root]  # noqa: PTH120
    return [os.path.abspath(path) for path in paths]  # noqa: PTH100
