"""Finds out what kind of source the words of a command line name, and opens it."""

from __future__ import annotations

import contextlib
import glob
import os
import shlex
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from packer.errors import NothingLeftError, SourceError, UsageError, first_few
from packer.format import MANIFEST, check_field_name
from packer.sources.base import Source
from packer.sources.beside import open_beside
from packer.sources.derived import ArrayImageSource, LabelledSource, TextClassSource
from packer.sources.encoded import EncodedSource
from packer.sources.files import (
    CLOUDS,
    LABELS,
    TABLES,
    TEXT,
    FileSet,
    decode_text,
    find,
    fixed_folder,
    is_lmdb,
    join,
    of_one_kind,
    suffix_of,
)
from packer.sources.headers import read_headers
from packer.sources.keyed import beside_listed, beside_table, with_files
from packer.sources.kinds import Kind, all_kinds, check_options, kinds_with, suffixes
from packer.sources.lerobot import is_lerobot
from packer.sources.looking import leave_out_unreadable, look
from packer.sources.options import SourceOptions, columns_by_field, columns_of
from packer.sources.pairing import share_out, stem
from packer.sources.source import TableSource
from packer.watcher import NOBODY, Watcher
from packer.workers import Limits

#: Kinds of files that lie beside those of samples, by suffix. Texts of the field of this name are boxes of YOLO.
_BESIDE = {TEXT: "text", ".xml": "voc", ".json": "coco"}
_BOXES = "boxes"
#: Numbers in a line of boxes, as YOLO has them: class, middle, width and height.
_BOX = 5
#: What to do with files of no known kind.
_OTHERS = "; read others in Python, and pack the samples by packer.convert.convert (docs/have/python.md)"
#: How Python reads one file of the commonest of them, as a sample of its path p.
_IN_PYTHON = {
    **dict.fromkeys((".wav", ".mp3", ".ogg"), '{"audio": soundfile.read(p)[0]}'),
    **dict.fromkeys((".pt", ".pth"), "torch.load(p)"),
    **dict.fromkeys((".pkl", ".pickle"), "pickle.loads(p.read_bytes())"),
    ".mat": "scipy.io.loadmat(p)",
    ".exr": '{"image": cv2.imread(str(p), cv2.IMREAD_UNCHANGED)}',
}


def open_sources(
    inputs: Sequence[str],
    options: SourceOptions | None = None,
    watcher: Watcher = NOBODY,
    limits: Limits | None = None,
    as_extra_fields: bool = False,
    usual: SourceOptions | None = None,
) -> Source:
    """Open the source that `inputs` name: `FIELD=PATH` for each field of an image set, or one path.

    Args:
        inputs: each a folder, a file or a glob pattern, with `FIELD=` in front or not.
        watcher: hears of bad files and of steps; by default the first bad file is an error.
        limits: limits of opening one file with a library that can crash (HDF5), in a process of its own; None opens
            it in this one.
        as_extra_fields: whether the files only add fields to packed samples: text is taken, and each array file of a
            folder is a sample.
        usual: options that hold where `options` has none, and where they concern the sources.

    Raises:
        UsageError: there is no file, there are files of several kinds, or inputs do not go together.
        SourceError: what the sources raise, such as a bad file.
    """
    errors: list[SourceError] = []

    def note(error: SourceError) -> None:
        watcher.bad(error)
        errors.append(error)

    try:
        asked = options or SourceOptions()
        return _open(inputs, asked, replace(watcher, bad=note), limits, as_extra_fields, usual or SourceOptions())
    except NothingLeftError as error:
        if not errors:
            raise
        reason = f"{error.reason}; {len(errors):,} {'is' if len(errors) == 1 else 'are'} bad, the first: {errors[0]}"
        raise NothingLeftError(reason, error.path) from error


def _open(
    inputs: Sequence[str],
    options: SourceOptions,
    watcher: Watcher,
    limits: Limits | None,
    as_extra_fields: bool,
    usual: SourceOptions,
) -> Source:
    named = _named(inputs)
    has_others = len(named) > 1 or as_extra_fields
    columns = columns_by_field(options if options.columns != () else usual)
    by_name = {name: _look(name, path, columns, has_others, watcher) for name, path in named.items()}
    kinds = {kind for kind, _ in by_name.values()}
    if TABLES not in kinds:
        usual = replace(usual, columns=columns_of(usual, {"", *named}))
    options = _filled(options, usual, kinds)
    tables = {name: file_set for name, (kind, file_set) in by_name.items() if kind == TABLES}
    lists = {name: _open_list(name, file_set, watcher) for name, (kind, file_set) in by_name.items() if kind == "coco"}
    others = {name: kinded for name, kinded in by_name.items() if name not in {*tables, *lists}}
    of_others, of_tables = _options_of(options, set(others), bool(tables))
    if others:
        source = _open_files(others, named, of_others, watcher, limits, as_extra_fields)
        for name, file_set in tables.items():
            source = beside_table(source, name, _open_table({"": file_set}, of_tables, watcher), options.key, watcher)
        for listed in lists.values():
            source = beside_listed(source, listed, "file_name", watcher)
    elif lists and as_extra_fields and len(by_name) == 1:
        (source,) = lists.values()
    elif lists:
        raise UsageError(f"{next(iter(lists))}= lists what is in images; name these as well: image=FOLDER")
    else:
        source = _open_tables(tables, named, options, watcher, limits, as_extra_fields)
    if options.encoded and others:
        source = EncodedSource(source, options.encoded)
    if options.images:
        source = ArrayImageSource(source, options.images)
    if options.classes is not None:
        source = TextClassSource(source, options.classes)
    if options.label is not None:
        source = LabelledSource(source, [named[name] for name in others or named])
    return source


def _filled(options: SourceOptions, usual: SourceOptions, kinds: set[str]) -> SourceOptions:
    """Return options, with the usual ones of these kinds where none is given."""
    given, none = vars(options), vars(SourceOptions())
    wanted = {name: value for name, value in vars(usual).items() if value != none[name] and given[name] == none[name]}
    return replace(options, **{name: value for name, value in wanted.items() if kinds.intersection(kinds_with(name))})


def _options_of(options: SourceOptions, others: set[str], has_tables: bool) -> tuple[SourceOptions, SourceOptions]:
    """Return the options of the sources `others`, and those of the tables beside them."""
    if not (others and has_tables):
        return options, options
    columns = columns_by_field(options)
    texts = {name: f"{name}={text}" if name else text for name, text in columns.items()}
    usual, names = SourceOptions(), all_kinds()[TABLES].options
    of_tables = replace(usual, **{name: getattr(options, name) for name in names if name not in ("files", "root")})
    shared = {name for name in names if set(kinds_with(name)) != {TABLES}}
    of_others = replace(options, **{name: getattr(usual, name) for name in names if name not in shared})
    return (
        replace(of_others, columns=tuple(text for name, text in texts.items() if name in {"", *others})),
        replace(of_tables, columns=tuple(text for name, text in texts.items() if name not in {"", *others})),
    )


def _open_tables(
    tables: Mapping[str, FileSet],
    named: Mapping[str, str],
    options: SourceOptions,
    watcher: Watcher,
    limits: Limits | None,
    as_extra_fields: bool,
) -> Source:
    """Open tables that are the samples, with the files that their columns name."""
    check_options(options, TABLES)
    _check_is_one(TABLES, dict(named))
    if options.key and not as_extra_fields:
        raise UsageError(f"--key {options.key} is for a table beside files, as in image=FOLDER label=train.csv")
    if options.root and not options.files:
        raise UsageError(f"--root {options.root} is for columns that name files; --files COLUMN says which")
    table = _open_table(tables, options, watcher)
    if not options.files:
        return table

    def open_files(column: str, file_set: FileSet) -> Source:
        kind, files = of_one_kind(file_set, suffixes(), {TEXT: "text"}, watcher)
        if kind in (None, TABLES):
            raise UsageError(f"--files {column}: {file_set.files[0]} is no file of a kind that can be packed")
        record = all_kinds()[kind]
        own = {name: getattr(options, name) for name in record.options if name in all_kinds()[TABLES].options}
        own = {**own, "columns": (), "skip": (), "samples": "files" if record.units else None}
        return open_kind_of(
            record, {"" if record.names_fields else column: files}, SourceOptions(**own), watcher, limits
        )

    return with_files(table, options.files, options.root, open_files, watcher)


def _open_list(name: str, file_set: FileSet, watcher: Watcher) -> TableSource:
    """Open a json of COCO, which lists images and their objects."""
    if len(file_set.files) > 1:
        raise UsageError(
            f"{name}={file_set.text} has {len(file_set.files):,} jsons; name the one of these images: "
            f"{first_few([file_set.path(file) for file in file_set.files])}"
        )
    source = open_kind_of(all_kinds()["coco"], {name: file_set}, SourceOptions(), watcher)
    assert isinstance(source, TableSource)
    return source


def _open_table(files: Mapping[str, FileSet], options: SourceOptions, watcher: Watcher) -> TableSource:
    table = open_kind_of(all_kinds()[TABLES], files, options, watcher)
    assert isinstance(table, TableSource)
    table.remarks = [*(remark for name, file_set in files.items() for remark in file_set.remarks(name)), *table.remarks]
    return table


def _open_files(
    by_name: Mapping[str, tuple[str, FileSet]],
    named: Mapping[str, str],
    options: SourceOptions,
    watcher: Watcher,
    limits: Limits | None,
    as_extra_fields: bool,
) -> Source:
    """Open sources of all kinds but tables: those whose files are the samples, and those that lie beside them."""
    known, columns = all_kinds(), columns_by_field(options)
    if unknown := [name for name in columns if name and name not in by_name]:
        raise UsageError(
            f"--columns {unknown[0]}={columns[unknown[0]]}: no source is named {unknown[0]}=; write "
            f"{unknown[0]}=FOLDER for the one with these columns"
        )
    sides = {
        name: file_set for name, (kind, file_set) in by_name.items() if kind == "text" or (name and name in columns)
    }
    if len(sides) == len(by_name):  # then the first points are the samples
        sides.pop(next((name for name in sides if name in columns), next(iter(sides)) if as_extra_fields else ""), None)
    file_sets = {name: file_set for name, (_, file_set) in by_name.items() if name not in sides}
    if not file_sets:
        raise UsageError(f"{next(iter(sides))}= is text, which lies beside images or clouds; name these as well")
    kinds = {name: by_name[name][0] for name in file_sets}
    kind = "images" if "images" in kinds.values() else next(iter(kinds.values()))
    if not known[kind].units and not as_extra_fields:
        raise UsageError(f"{next(iter(kinds))}= is {kind}, which lies beside images; name these as well: image=FOLDER")
    if len(set(kinds.values())) > 1:
        if not all(known[kind].lies_beside for kind in kinds.values()):
            kinds_in_words = ", ".join(f"{named[name]} holds {kind}" for name, kind in kinds.items())
            raise UsageError(f"sources of several kinds cannot be packed together: {kinds_in_words}; pack each alone")
        for name, other in kinds.items():
            if other != kind:
                sides[name] = file_sets.pop(name)
                if known[other].names_fields:
                    _check_is_one(other, {name: named[name]})
    main = replace(
        options, columns=tuple(f"{name}={c}" if name else c for name, c in columns.items() if name not in sides)
    )
    if as_extra_fields and kind == "npy" and not all(Path(named[name]).is_file() for name in file_sets):
        main = replace(main, samples=options.samples or "files")
    if known[kind].units:
        check_options(main, kind)
    if known[kind].names_fields and not (kind == "clouds" and columns.keys() >= file_sets.keys()):
        _check_is_one(kind, {name: named[name] for name in file_sets})

    shared = share_out(file_sets)

    def open_kind(kind: str, files: Mapping[str, FileSet], options: SourceOptions) -> Source:
        return open_kind_of(known[kind], files, options, watcher, limits)

    def open_side(name: str, files: FileSet) -> Source:
        if name in columns:
            return open_kind("clouds", {name: files}, options)
        return open_kind(by_name[name][0], {name: files}, SourceOptions(samples="files"))

    def opened(files: Mapping[str, FileSet]) -> Source:
        source = open_kind(kind, files, main)
        left_out = [remark for name, file_set in file_sets.items() for remark in file_set.remarks(name)]
        source.remarks = [*left_out, *shared, *source.remarks]
        if isinstance(source, TableSource):
            source = source.reader.view(source, options)
        return source

    if options.missing and not sides:
        raise UsageError(
            "--missing is for fields of files beside those of the samples, and there are none; leave it out"
        )
    if sides:
        source = open_beside(file_sets, sides, opened, open_side, watcher, options.missing)
    else:
        source = opened(file_sets)
        if kind == "images":
            proposals = [*map(_text_proposal, file_sets, file_sets.values())]
            if options.label is None and options.samples is None and len(file_sets) == 1:
                proposals += map(_pairs_proposal, file_sets.values())
            source.remarks = [*source.remarks, *filter(None, proposals)]
    return source


def open_kind_of(
    kind: Kind,
    inputs: Mapping[str, FileSet],
    options: SourceOptions,
    watcher: Watcher = NOBODY,
    limits: Limits | None = None,
) -> Source:
    """Open the files of one or more fields: pair them, look at their headers, and keep those that agree.

    Args:
        inputs: by field name, empty if none is given.
        watcher: its `bad` is called with every file that cannot be packed; if it returns, the sample is skipped.
        limits: as for `open_sources`.

    Raises:
        UsageError: a package is not installed, two inputs have one name, or a field cannot have its name.
        SourceError: what `watcher.bad` raises; no sample is left.
    """
    kind.check_package()
    if kind.open is not None:
        return kind.open(inputs, options, watcher, limits)
    if kind.unnamed and {"", kind.unnamed} <= inputs.keys():
        reason = f"{inputs[''].text} is given without FIELD=, so it would be the field {kind.unnamed}"
        raise UsageError(f"{reason}, but {inputs[kind.unnamed].text} is; name the field of each")
    named = {name or kind.unnamed: file_set for name, file_set in inputs.items()}
    table, remarks = kind.pair(named, options, watcher)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on metadata that nobody uses
        headers = read_headers(kind.look_with(options), table.rows(), table.count, watcher)
        table = look(table, headers, watcher)
    if kind.none_left and not table.count:
        raise NothingLeftError(kind.none_left, " and ".join(file_set.text for file_set in named.values()))
    table = leave_out_unreadable(
        table, lambda most: TableSource.of(kind.agree(most, options, [], NOBODY), kind, options, []), watcher, limits
    )
    table = kind.agree(table, options, remarks, watcher)
    return TableSource.of(table, kind, options, remarks)


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


#: Folders of images are taken for fields of pairs if there are no more.
_MOST_FIELDS = 4


def _text_proposal(name: str, file_set: FileSet) -> str:
    """Return a sentence with the command that packs texts or boxes beside images; empty if there are none."""
    stems = {stem(file).rpartition("/")[2] for file in file_set.files}
    texts = [file for file in file_set.texts if stem(file).rpartition("/")[2] in stems]
    if 2 * len(texts) <= len(file_set.texts):
        return ""
    pattern = join(file_set.folder, f"*{TEXT}" if all("/" not in file for file in texts) else f"**/*{TEXT}")
    with contextlib.suppress(OSError, ValueError, StopIteration):
        first = next(text for file in texts if (text := decode_text(Path(file_set.path(file)).read_bytes()).strip()))
        numbers = list(map(float, first.splitlines()[0].split()))
        names = ",".join(f"column{n}" for n in range(len(numbers)))
        columns = "" if len(numbers) == _BOX else f" --columns boxes={names}:float32"
        return _proposal(name, file_set, texts, f"{_BOXES}={shlex.quote(pattern)}{columns}")
    return _proposal(name, file_set, texts, f"caption={shlex.quote(pattern)}")


def _proposal(name: str, file_set: FileSet, texts: Sequence[str], words: str) -> str:
    return (
        f"{len(texts):,} {TEXT} are named like images; to pack them as well: packer convert "
        f"{name or 'image'}={shlex.quote(file_set.text)} {words} OUT"
    )


def _pairs_proposal(file_set: FileSet) -> str:
    """Return a sentence with the command that packs pairs if a few folders hold files of the same names; else empty."""
    stems: dict[str, set[str]] = {}
    for file in file_set.files:
        folder, _, rest = file.rpartition("/") if "/" not in file else file.partition("/")
        stems.setdefault(folder, set()).add(stem(rest))
    first, *others = stems.values()
    if 0 < len(others) < 2 * _MOST_FIELDS and any(other != first for other in others):
        return _marked_proposal(file_set, stems)
    if not 0 < len(others) < _MOST_FIELDS:
        return ""
    fields = " ".join(shlex.quote(f"{folder}={join(file_set.folder, folder)}") for folder in stems)
    return (
        f"the folders {', '.join(stems)} hold files of the same names, and each file is a sample; if they are pairs: "
        f"packer convert {fields} OUT"
    )


def _marked_proposal(file_set: FileSet, stems: Mapping[str, set[str]]) -> str:
    """Return the sentence for folders such as train, trainannot, val and valannot, or empty text for others."""
    pairs = [
        (folder, other)
        for folder in stems
        for other in stems
        if other != folder and other.startswith(folder) and stems[other] == stems[folder]
    ]
    if 2 * len(pairs) != len(stems) or len({folder for pair in pairs for folder in pair}) < len(stems):
        return ""
    if len({other.removeprefix(folder) for folder, other in pairs}) > 1:
        return ""
    image, mask = (shlex.quote(join(file_set.folder, folder)) for folder in pairs[0])
    return (
        f"the folders {' and '.join(pairs[0])} hold files of the same names, and each file is a sample; if they are "
        f"pairs: packer convert image={image} mask={mask} OUT"
        + "".join(f", and apart from them {' and '.join(pair)}; packer merge joins both" for pair in pairs[1:2])
    )


def _check_is_one(kind: str, named: Mapping[str, str]) -> None:
    """Raise UsageError if several sources or fields are named for a kind whose files name their fields themselves."""
    if len(named) > 1:
        raise UsageError(
            f"only one source of {kind} can be packed at a time; name a folder or a quoted pattern of files"
        )
    (name,) = named
    if name:
        more = " and name fields with --field NAME=/PATH" if kind in ("hdf5", "zarr") else ""
        raise UsageError(f"{name}=: {kind} files name their fields themselves; leave {name}= out{more}")


def _named(inputs: Sequence[str]) -> dict[str, str]:
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


def _look(name: str, path: str, columns: Mapping[str, str], has_others: bool, watcher: Watcher) -> tuple[str, FileSet]:
    """Return the kind of the files that `path` names, and the files; an LMDB folder is not listed.

    Args:
        name: of the field; empty if none is given.
        columns: `--columns` by field. Files of `CLOUDS` count only if it has this field.
        has_others: whether there are other fields, next to which files of `TEXT` are text.
        watcher: its `bad` is called with every file that is of no kind and not known to lie beside data.

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
    kind, file_set = of_one_kind(listed, suffixes(), dict.fromkeys(of_clouds, "clouds"), watcher)
    if kind is None and name and has_others:
        beside = {**_BESIDE, TEXT: "yolo"} if name == _BOXES else _BESIDE
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
    if Path(path).is_dir():
        content = f"holds {len(file_set.files):,} files, but none of a kind that can be packed"
        if not file_set.files:
            content = "is empty, apart from hidden files and empty folders"
        raise SourceError(f"the folder {content}; files that can be packed: {known}{_in_python(file_set)}", path)
    if not file_set.files:
        raise UsageError(f"{path}: there is no such file or folder, and no file fits it as a pattern")
    raise UsageError(f"{path}: not a kind of file that can be packed; these can be: {known}{_in_python(file_set)}")


def _in_python(file_set: FileSet) -> str:
    """Return what to do with files of no known kind: of a common one, the lines of Python that pack them."""
    ((suffix, _),) = Counter(map(suffix_of, file_set.files)).most_common(1) or [("", 0)]
    if suffix not in _IN_PYTHON:
        return _OTHERS
    return (
        f". {suffix} is read in Python (docs/have/python.md):\n"
        "  with packer.writer.DatasetWriter(OUT) as writer:\n"
        f"      for p in sorted(pathlib.Path({file_set.folder!r}).rglob('*{suffix}')):\n"
        f"          writer.add({_IN_PYTHON[suffix]}, name=p.stem)"
    )
