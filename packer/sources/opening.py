"""Opens the source that the words of a command line name, in five steps.

    find     which files, and of what kind               finding.py
    pair     the files of several fields by name         Kind.pair     pairing.py
    look     at their headers                            Kind.look     headers.py, looking.py
    agree    which samples have the fields of most       Kind.agree    agreeing.py
    read     samples, when they are packed               Kind.read     reading.py

What lies beside the samples, tables and lists, is opened by the same steps.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from packer.errors import NothingLeftError, SourceError, UsageError, first_few
from packer.sources.agreeing import leave_out_unreadable
from packer.sources.base import Source
from packer.sources.beside import open_beside
from packer.sources.derived import ArrayImageSource, labelled_by_folder, labelled_by_text
from packer.sources.encoded import EncodedSource
from packer.sources.files import TABLES, TEXT, FileSet, of_one_kind
from packer.sources.finding import find_kind, paths_by_field
from packer.sources.headers import read_headers
from packer.sources.keyed import beside_listed, beside_table
from packer.sources.kinds import Kind, all_kinds, check_options, kinds_with, suffixes
from packer.sources.looking import look, lost_parts, say_of_all
from packer.sources.named_files import with_files
from packer.sources.options import SourceOptions, columns_by_field, columns_of
from packer.sources.pairing import share_out, stem
from packer.sources.proposals import files_proposal, pairs_proposal, text_proposal
from packer.sources.source import TableSource
from packer.watcher import NOBODY, Watcher
from packer.workers import Limits

#: The kind of lists of what is in images.
_LIST = "coco"


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
    options, usual = options or SourceOptions(), usual or SourceOptions()
    with _first_reason(watcher) as watcher:
        paths = paths_by_field(inputs)
        columns = columns_by_field(options if options.columns != () else usual)
        has_others = len(paths) > 1 or as_extra_fields
        file_sets = {
            name: find_kind(name, path, columns, has_others, watcher, paths.values()) for name, path in paths.items()
        }
        kinds = {kind for kind, _ in file_sets.values()}
        if TABLES not in kinds:
            usual = replace(usual, columns=columns_of(usual, {"", *paths}))
        options = _filled(options, usual, kinds)
        source = _open_inputs(file_sets, options, _Call(paths, watcher, limits, as_extra_fields))
        files = [name for name, (kind, _) in file_sets.items() if kind not in (TABLES, _LIST)]
        return _derived(source, options, [paths[name] for name in files or paths], bool(files))


class _Call(NamedTuple):
    """What a call of `open_sources` says besides options; `paths` are those that the inputs name, by field."""

    paths: Mapping[str, str]
    watcher: Watcher
    limits: Limits | None
    as_extra_fields: bool


def _open_inputs(file_sets: Mapping[str, tuple[str, FileSet]], options: SourceOptions, call: _Call) -> Source:
    """Open files of all kinds: those that are samples, with the tables and lists beside them; or tables alone.

    Args:
        file_sets: the kind and the files of each field.
    """
    watcher = call.watcher
    tables = {name: file_set for name, (kind, file_set) in file_sets.items() if kind == TABLES}
    lists = {name: _open_list(name, file_set, watcher) for name, (kind, file_set) in file_sets.items() if kind == _LIST}
    files = {name: kinded for name, kinded in file_sets.items() if name not in {*tables, *lists}}
    if not files and lists:
        if not call.as_extra_fields or len(file_sets) > 1:
            raise UsageError(f"{next(iter(lists))}= lists what is in images; name these as well: image=FOLDER")
        return next(iter(lists.values()))
    if not files:
        return _open_tables(tables, options, call)
    of_files, of_tables = _options_of(options, {name: kind for name, (kind, _) in files.items()}, bool(tables))
    source = _open_files(files, of_files, call)
    for name, file_set in tables.items():
        source = beside_table(source, name, _open_table({"": file_set}, of_tables, watcher), options.key, watcher)
    for listed in lists.values():
        source = beside_listed(source, listed, "file_name", watcher)
    return source


@contextmanager
def _first_reason(watcher: Watcher) -> Iterator[Watcher]:
    """Yield a watcher of opening; if nothing is left, the error names the first bad file as well."""
    errors: list[SourceError] = []

    def note(error: SourceError) -> None:
        watcher.bad(error)
        errors.append(error)

    try:
        yield replace(watcher, bad=note)
    except NothingLeftError as error:
        if not errors:
            raise
        reason = f"{error.reason}; {len(errors):,} {'is' if len(errors) == 1 else 'are'} bad, the first: {errors[0]}"
        raise NothingLeftError(reason, error.path) from error


def _derived(source: Source, options: SourceOptions, paths: Sequence[str], is_of_files: bool) -> Source:
    """Return a source with what options make of its fields: images, classes, labels."""
    if options.encoded and is_of_files:
        source = EncodedSource.of(source, options.encoded, options)
    if options.images:
        source = ArrayImageSource(source, options.images)
    if options.classes is not None:
        source = labelled_by_text(source, options.classes)
    if options.label is not None:
        source = labelled_by_folder(source, paths)
    return source


# ---------------------------------------------------------------- options


def _filled(options: SourceOptions, usual: SourceOptions, kinds: set[str]) -> SourceOptions:
    """Return options, with the usual ones of these kinds where none is given."""
    given, none = vars(options), vars(SourceOptions())
    records = [all_kinds()[kind] for kind in kinds]
    wanted = {name: value for name, value in vars(usual).items() if value != none[name] and given[name] == none[name]}
    return replace(
        options, **{name: value for name, value in wanted.items() if any(record.takes(name) for record in records)}
    )


def _options_of(
    options: SourceOptions, others: Mapping[str, str], has_tables: bool
) -> tuple[SourceOptions, SourceOptions]:
    """Return the options of other sources, whose kinds are given by field, and those of the tables beside them."""
    if not (others and has_tables):
        return options, options
    columns = columns_by_field(options)
    texts = {name: f"{name}={text}" if name else text for name, text in columns.items()}
    usual, names = SourceOptions(), all_kinds()[TABLES].options
    of_tables = replace(usual, **{name: getattr(options, name) for name in names if name not in ("files", "root")})
    shared = {name for name in names if {*others.values()} & {*kinds_with(name)}}
    of_others = replace(options, **{name: getattr(usual, name) for name in names if name not in shared})
    return (
        replace(of_others, columns=tuple(text for name, text in texts.items() if name in {"", *others})),
        replace(of_tables, columns=tuple(text for name, text in texts.items() if name not in {"", *others})),
    )


# ---------------------------------------------------------------- tables and lists


def _open_tables(tables: Mapping[str, FileSet], options: SourceOptions, call: _Call) -> Source:
    """Open tables that are the samples, with the files that their columns name."""
    check_options(options, TABLES)
    _check_is_one(TABLES, call.paths)
    if options.key and not call.as_extra_fields:
        raise UsageError(f"--key {options.key} is for a table beside files, as in image=FOLDER label=train.csv")
    if options.root and not options.files:
        raise UsageError(f"--root {options.root} is for columns that name files; --files COLUMN says which")
    table = _open_table(tables, options, call.watcher)
    if not options.files:
        table.remarks += [] if call.as_extra_fields else files_proposal(table)
        return table
    open_files = partial(_open_column, options=options, call=call)
    return with_files(table, options.files, options.root, open_files, call.watcher)


def _open_column(column: str, file_set: FileSet, options: SourceOptions, call: _Call) -> TableSource:
    """Open the files that a column of a table names, each as a sample."""
    kind, files = of_one_kind(file_set, suffixes(), {TEXT: "text"}, call.watcher)
    if kind in (None, TABLES):
        raise UsageError(f"--files {column}: {file_set.files[0]} is no file of a kind that can be packed")
    record = all_kinds()[kind]
    own = {name: getattr(options, name) for name in record.options if name in all_kinds()[TABLES].options}
    own = {**own, "columns": (), "skip": (), "samples": "files" if record.units else None}
    fields = {"" if record.names_fields else column: files}
    source = open_kind_of(record, fields, SourceOptions(**own), call.watcher, call.limits)
    assert isinstance(source, TableSource)
    return source


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


# ---------------------------------------------------------------- files that are samples, and those beside them


class _Roles(NamedTuple):
    """Which files are the samples, all of one kind, and which lie beside them, by field."""

    kind: str
    samples: dict[str, FileSet]
    sides: dict[str, FileSet]


def _open_files(file_sets: Mapping[str, tuple[str, FileSet]], options: SourceOptions, call: _Call) -> Source:
    """Open sources of all kinds but tables: those whose files are the samples, and those that lie beside them."""
    columns = columns_by_field(options)
    paths = call.paths
    kind, samples, sides = _roles(file_sets, paths, columns, call.as_extra_fields)
    for name, (side_kind, file_set) in file_sets.items():
        if side_kind == "text" and len(file_set.files) == 1:
            _check_is_no_list(name, file_set, samples)
    main = replace(options, columns=tuple(f"{n}={c}" if n else c for n, c in columns.items() if n not in sides))
    if call.as_extra_fields and kind == "npy" and not all(Path(paths[name]).is_file() for name in samples):
        main = replace(main, samples=options.samples or "files")
    if all_kinds()[kind].units:
        check_options(main, kind)
    if all_kinds()[kind].names_fields and not (kind == "clouds" and columns.keys() >= samples.keys()):
        _check_is_one(kind, {name: paths[name] for name in samples})
    shared = share_out(samples)
    if options.missing and not sides:
        raise UsageError(
            "--missing is for fields of files beside those of the samples, and there are none; leave it out"
        )
    open_samples = partial(open_kind_of, all_kinds()[kind], options=main, watcher=call.watcher, limits=call.limits)
    if sides:
        kinds = {name: "clouds" if name in columns else file_sets[name][0] for name in sides}
        open_side = partial(_open_side, kinds=kinds, options=options, call=call)
        source = open_beside(samples, sides, open_samples, open_side, call.watcher, options.missing)
    else:
        source = open_samples(samples)
    left_out = [remark for name, file_set in samples.items() for remark in file_set.remarks(name)]
    proposals = _proposals(samples, options) if kind == "images" and not sides else []
    source.remarks = [*left_out, *shared, *source.remarks, *proposals]
    return source


def _check_is_no_list(name: str, text: FileSet, samples: Mapping[str, FileSet]) -> None:
    """Raise UsageError if the only text beside several samples has the name of none."""
    names = {stem(file).rpartition("/")[2] for file_set in samples.values() for file in file_set.files}
    if len(names) > 1 and stem(text.files[0]).rpartition("/")[2] not in names:
        raise UsageError(
            f"{name}={text.text} is one text, and named like no sample; a list with a line for each is a table: save "
            "it as .csv, with the names in a column (docs/have/lists.md)"
        )


def _roles(
    file_sets: Mapping[str, tuple[str, FileSet]],
    paths: Mapping[str, str],
    columns: Mapping[str, str],
    as_extra_fields: bool,
) -> _Roles:
    """Return what is the samples and what lies beside them; raises UsageError if inputs do not go together."""
    known = all_kinds()
    if unknown := [name for name in columns if name and name not in file_sets]:
        raise UsageError(
            f"--columns {unknown[0]}={columns[unknown[0]]}: no source is named {unknown[0]}=; write "
            f"{unknown[0]}=FOLDER for the one with these columns"
        )
    sides = {
        name: file_set for name, (kind, file_set) in file_sets.items() if kind == "text" or (name and name in columns)
    }
    if len(sides) == len(file_sets):  # then the first points are the samples
        sides.pop(next((name for name in sides if name in columns), next(iter(sides)) if as_extra_fields else ""), None)
    samples = {name: file_set for name, (_, file_set) in file_sets.items() if name not in sides}
    if not samples:
        raise UsageError(f"{next(iter(sides))}= is text, which lies beside images or clouds; name these as well")
    kinds = {name: file_sets[name][0] for name in samples}
    kind = "images" if "images" in kinds.values() else next(iter(kinds.values()))
    if not known[kind].units and not as_extra_fields:
        raise UsageError(f"{next(iter(kinds))}= is {kind}, which lies beside images; name these as well: image=FOLDER")
    others = {name: other for name, other in kinds.items() if other != kind}
    if others and not all(known[one].lies_beside for one in kinds.values()):
        kinds_in_words = ", ".join(f"{paths[name]} holds {one}" for name, one in kinds.items())
        raise UsageError(f"sources of several kinds cannot be packed together: {kinds_in_words}; pack each alone")
    for name, other in others.items():
        sides[name] = samples.pop(name)
        if known[other].names_fields:
            _check_is_one(other, {name: paths[name]})
    return _Roles(kind, samples, sides)


def _open_side(name: str, file_set: FileSet, kinds: Mapping[str, str], options: SourceOptions, call: _Call) -> Source:
    """Open files that lie beside those of samples: of clouds with their columns, of others each as a sample."""
    own = options if kinds[name] == "clouds" else SourceOptions(samples="files")
    return open_kind_of(all_kinds()[kinds[name]], {name: file_set}, own, call.watcher, call.limits)


def _proposals(samples: Mapping[str, FileSet], options: SourceOptions) -> list[str]:
    """Return sentences with commands that pack more than images."""
    proposals = [*map(text_proposal, samples, samples.values())]
    if options.label is None and options.samples is None and len(samples) == 1:
        proposals += map(pairs_proposal, samples.values())
    return [*filter(None, proposals)]


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


# ---------------------------------------------------------------- one kind


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
    if kind.unnamed and {"", kind.unnamed} <= inputs.keys():
        reason = f"{inputs[''].text} is given without FIELD=, so it would be the field {kind.unnamed}"
        raise UsageError(f"{reason}, but {inputs[kind.unnamed].text} is; name the field of each")
    named = {name or kind.unnamed: file_set for name, file_set in inputs.items()}
    text = " and ".join(file_set.text for file_set in named.values())
    table, remarks = kind.pair(named, options, watcher)
    remarks += lost_parts(table)
    facts = kind.facts(text) if kind.facts else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on metadata that nobody uses
        looked_at = read_headers(kind.look_with(options), table.rows(), watcher, kind.headers_in, limits)
        table = look(table, facts.headers(table, looked_at) if facts else looked_at, watcher)
    if kind.none_left and not table.rows_or_samples:
        raise NothingLeftError(kind.none_left, text)
    table = leave_out_unreadable(
        table, lambda most: TableSource.of(kind.agree(most, options, [], NOBODY), kind, options, []), watcher, limits
    )
    table = kind.agree(table, options, remarks, watcher)
    table = say_of_all(table, remarks, facts.unwritten if facts else None)
    return kind.complete(TableSource.of(table, kind, options, remarks), facts)
