"""Kinds of files: one record each, at the end of the module that reads them; all tables of kinds are made from these.

    KIND = Kind("nifti", (".nii", ".nii.gz"), look=look, read=read, needs=("nibabel", "nifti"), ...)

A package of its own adds one by an entry point of the group `packer.kinds`, which names such a record. What a kind
imports comes in when the kind is asked for: a folder of PNG files needs neither the modules of clouds nor a look at
other packages.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from importlib.util import find_spec
from itertools import chain
from typing import Any, Literal, Protocol

from packer.errors import SourceError, UsageError
from packer.format import FieldSpec
from packer.sources.agreeing import agree_on_most
from packer.sources.base import BLOCK_BYTES, Source
from packer.sources.files import IMAGES, FileSet
from packer.sources.looking import Looked
from packer.sources.options import SourceOptions, flag_of
from packer.sources.pairing import Names, partners, stem
from packer.sources.reading import ReadRows, ReadSample, ReadTable, read_samples, read_stretches
from packer.sources.table import Files, Row, SampleTable
from packer.sources.units import FORMS, UnitChoice
from packer.watcher import Watcher

#: By name of each kind of ours, in the order in which help and errors list them: the suffixes of its files, which its
#: record repeats, and the module that has the record as `KIND`, or as one of `KINDS`.
_OURS: dict[str, tuple[tuple[str, ...], str]] = {
    "hdf5": ((".h5", ".hdf5", ".hdf", ".h5ad", ".he5", ".mat", ".nc", ".nc4", ".nxs"), "packer.sources.arrays.kind"),
    "zarr": ((".zarr", ".zarr.zip"), "packer.sources.arrays.kind"),
    "npy": ((".npy", ".npz"), "packer.sources.arrays.kind"),
    "images": (tuple(IMAGES), "packer.sources.images.kind"),
    "basicsr": ((), "packer.sources.images.kind"),
    "ply": ((".ply",), "packer.sources.ply.kind"),
    "clouds": ((), "packer.sources.ply.kind"),
    "pcd": ((".pcd",), "packer.sources.ply.pcd"),
    "las": ((".las", ".laz"), "packer.sources.ply.las"),
    "nifti": ((".nii", ".nii.gz"), "packer.sources.nifti"),
    "flow": ((".flo", ".pfm"), "packer.sources.flow"),
    "tables": (
        (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".arrow", ".feather"),
        "packer.sources.tables",
    ),
    "tars": ((".tar",), "packer.sources.tars"),
    "text": ((), "packer.sources.text"),
    "coco": ((), "packer.sources.coco"),
    "yolo": ((), "packer.sources.yolo"),
    "voc": ((), "packer.sources.voc"),
    "video": ((".mp4", ".mkv", ".webm", ".avi", ".mov"), "packer.sources.video"),
    "lerobot": ((), "packer.sources.lerobot"),
}
_OUR_SUFFIXES = {suffix: name for name, (suffixes, _) in _OURS.items() for suffix in suffixes}
_GROUP = "packer.kinds"
#: Options of every kind.
EVERY = ("samples", "label", "classes", "missing")


def pair_by_name(
    file_sets: Mapping[str, FileSet], options: SourceOptions, watcher: Watcher, names: Names | None = None
) -> tuple[SampleTable, list[str]]:
    """Return the samples that files of one or more fields make, partners by name, and sentences for the plan.

    Args:
        watcher: its `bad` is called with every file without a partner and with every second file of one name.
        names: by field, the name of every file; None for its path without suffix.
    """
    if names is None:
        file_sets = {field: file_set._replace(files=file_set.pick(watcher)) for field, file_set in file_sets.items()}
    pairs, remarks = partners(file_sets, watcher, names, options.listed)
    inputs = {field: Files(file_sets[field].folder, files) for field, files in pairs.files.items()}
    return SampleTable(count=len(pairs.names), inputs=inputs, names=pairs.names), remarks


def pair_in_order(
    file_sets: Mapping[str, FileSet], options: SourceOptions, watcher: Watcher
) -> tuple[SampleTable, list[str]]:
    """Return the files of one input in natural order, each a sample, or a file of samples.

    Args:
        watcher: its `bad` is called with every second file of one name.
    """
    ((field, file_set),) = file_sets.items()
    files, names = file_set.pick(watcher), dict[str, str]()
    if len({file.rpartition(".")[2] for file in files}) > 1:  # only files whose suffixes differ can have one name
        for file in files:
            if (first := names.setdefault(stem(file), file)) is not file:
                reason = f"has the same sample name, {stem(file)}, as {file_set.path(first)}; rename one of them"
                watcher.bad(SourceError(reason, file_set.path(file)))
        files = list(names.values())
    inputs = {field: Files(file_set.folder, files)}
    return SampleTable(count=len(files), inputs=inputs, names=list(map(stem, files))), []


def agree(table: SampleTable, options: SourceOptions, remarks: list[str], watcher: Watcher) -> SampleTable:
    """Return the samples that have the fields of most."""
    return agree_on_most(table, watcher)


class Facts(Protocol):
    """What the headers of the files of one source say besides fields; it is kept while the source is opened."""

    def headers(self, table: SampleTable, looked_at: Iterable[Any]) -> Iterator[Looked | SourceError]:
        """Yield the headers in what `Kind.look` returned of each row of a table, and keep the rest."""

    def unwritten(self, table: SampleTable, number: int) -> str:
        """Return what is said of a sample, or file of samples, of a table that lacks something."""


@dataclass(eq=False)
class Kind:
    """A kind of files that can be packed.

    Attributes:
        name: `images`, `ply`, ...; errors and the manifest call it so.
        suffixes: in small letters.
        look: returns what the headers of a sample say, which is all that is read for the plan. A SourceError is the
            fault of a file.
        read_table: yields all samples of a table, as `Source.read` does. It is made of `read` or `read_rows`, if one of
            them is given.
        read: returns the values of a sample, by field.
        read_rows: where rows of files are the samples, yields the rows start..stop of a file in blocks. A SourceError
            with a `sample` counts from the first row that was not yielded.
        files_in: returns the files that one of its files is, which is a folder; None if each is a file.
        headers_in: what looks at headers: `threads` where the disk is slow; `processes` of their own, of a library that
            is not for threads and may crash; or one `thread`, of a library that is not for several.
        facts: makes, from the words that name the files, what keeps all that headers say besides fields; of most kinds
            they say no more.
        units: what a sample may be made from, the default first; none of what only lies beside samples.
        names_fields: whether its files name their fields themselves; else `FIELD=` does.
        lies_beside: whether its files may lie beside those of another kind, each a sample.
        may_be_missing: whether `--missing FIELD=empty` makes an empty value of a file that is missing beside another.
        needs: a package that reads it, what errors call the files, and the extra that brings this package.
        options: the attributes of `SourceOptions` that are for it, besides those of every kind.
        exports: the kind of files to which its datasets are exported by default; empty for what fits them.
        none_left: what is said if all files are bad; empty for `no sample is left`.
        unnamed: the field of an input for which none is named.
        pair: returns the table of samples, or of files of samples, and remarks.
        agree: returns the table of the samples that can be packed together; it adds remarks.
        as_fields: returns the table with what files do not say, as the type of a column of CSV, taken from the fields
            of a dataset, by name.
        more: fields that `read` returns besides those of the layouts.
        are_ragged: whether an axis is ragged even if all samples have one length.
        block_bytes: about how many bytes of samples are read at once by `read`.
        detail: the type of `LaidField.detail`, by which parts decode it, if that holds more than plain values.
        complete: returns the source with what its facts say, or as its options ask for it, such as patches of images.
        origin: returns what the manifest keeps of the options.
    """

    name: str
    suffixes: tuple[str, ...]
    look: Callable[[Row, SourceOptions], Any] | None = None
    read: ReadSample | None = None
    read_rows: ReadRows | None = None
    read_table: ReadTable | None = None
    files_in: Callable[[str], list[str]] | None = None
    headers_in: Literal["threads", "thread", "processes"] = "threads"
    facts: Callable[[str], Facts] | None = None
    units: tuple[str, ...] = ("files",)
    names_fields: bool = False
    lies_beside: bool = False
    may_be_missing: bool = False
    needs: tuple[str, str, str] | None = None
    options: tuple[str, ...] = ()
    exports: str = ""
    none_left: str = ""
    unnamed: str = ""
    pair: Callable[[Mapping[str, FileSet], SourceOptions, Watcher], tuple[SampleTable, list[str]]] = pair_by_name
    agree: Callable[[SampleTable, SourceOptions, list[str], Watcher], SampleTable] = agree
    as_fields: Callable[[SampleTable, Mapping[str, FieldSpec]], SampleTable] = lambda table, fields: table
    more: tuple[FieldSpec, ...] = ()
    are_ragged: bool = False
    block_bytes: int = BLOCK_BYTES
    detail: Any = Any
    complete: Callable[[Any, Any], Source] = lambda source, facts: source
    origin: Callable[[SourceOptions, SampleTable], dict[str, Any]] = lambda options, table: {}

    def __post_init__(self) -> None:
        if self.read is not None:
            self.read_table = partial(read_samples, self.read, self.block_bytes)
        elif self.read_rows is not None:
            self.read_table = partial(read_stretches, self.read_rows)

    def takes(self, option: str) -> bool:
        """Return whether an attribute of `SourceOptions` is for the kind."""
        return bool(self.units) and option in (*EVERY, *self.options)

    def look_with(self, options: SourceOptions) -> Callable[[Row], Any]:
        """Return `look` with these options."""
        if self.look is None:
            raise UsageError(f"the kind {self.name} has no function look; its package is wrong")
        return partial(_look, self.look, options)

    def check_package(self) -> None:
        """Raise UsageError if the package that reads the files is not installed."""
        if self.needs and find_spec(self.needs[0]) is None:
            package, files, extra = self.needs
            raise UsageError(f"{files} is read by {package}: pip install '.[{extra}]' in a clone of packer")


def _look(function: Callable[[Row, SourceOptions], Any], options: SourceOptions, row: Row) -> Any:
    return function(row, options)


@cache
def _others() -> dict[str, Kind]:
    """Return the kinds of other packages by name.

    Raises:
        UsageError: one has the name or a suffix of one of ours.
    """
    from importlib.metadata import entry_points  # here, because few commands need it

    kinds: list[Kind] = [point.load() for point in entry_points(group=_GROUP)]
    for kind in kinds:
        if taken := [*{kind.name} & _OURS.keys(), *sorted({*kind.suffixes} & _OUR_SUFFIXES.keys())]:
            raise UsageError(
                f"a package adds the kind of files {kind.name} (by an entry point {_GROUP}), but {taken[0]} is one of "
                "packer's own; remove that package, or give its kind another"
            )
    return {kind.name: kind for kind in kinds}


@cache
def _other_suffixes() -> dict[str, str]:
    return {suffix: kind.name for kind in _others().values() for suffix in kind.suffixes}


class _Kinds(Mapping[str, Kind]):
    """All kinds by name: one of ours is imported when it is taken, other packages for a name that is not ours."""

    def __getitem__(self, name: str) -> Kind:
        if name not in _OURS:
            return _others()[name]
        module = importlib.import_module(_OURS[name][1])
        kinds: Sequence[Kind] = getattr(module, "KINDS", None) or [module.KIND]
        return next(kind for kind in kinds if kind.name == name)

    def __iter__(self) -> Iterator[str]:
        return chain(_OURS, _others())

    def __len__(self) -> int:
        return len(_OURS) + len(_others())


class _Suffixes(Mapping[str, str]):
    """The kind of files with each suffix; other packages are looked at when one is none of ours."""

    def __getitem__(self, suffix: str) -> str:
        return _OUR_SUFFIXES.get(suffix) or _other_suffixes()[suffix]

    def get(self, suffix: str, default: Any = None) -> Any:  # which raises no error, for every file beside data
        return _OUR_SUFFIXES.get(suffix) or _other_suffixes().get(suffix, default)

    def __iter__(self) -> Iterator[str]:
        return chain(_OUR_SUFFIXES, _other_suffixes())

    def __len__(self) -> int:
        return len(_OUR_SUFFIXES) + len(_other_suffixes())


def all_kinds() -> Mapping[str, Kind]:
    """Return all kinds by name: ours, and those of other packages."""
    return _Kinds()


def kinds_with(option: str) -> list[str]:
    """Return the names of the kinds that an attribute of `SourceOptions` is for."""
    return [kind.name for kind in all_kinds().values() if kind.takes(option)]


def suffixes() -> Mapping[str, str]:
    """Return the kind of files with each suffix."""
    return _Suffixes()


def unit_of(kind: str, samples: str | None) -> UnitChoice:
    """Return the unit that `--samples` asks for.

    Args:
        kind: of the source, its name.
        samples: as on the command line; None for the default of the kind.

    Raises:
        UsageError: a source of this kind does not offer it, or it takes no pattern.
    """
    offered = all_kinds()[kind].units
    text = samples or offered[0]
    choice = UnitChoice.parse(text)
    name = choice.name
    if name not in offered:
        forms = " or ".join(FORMS.get(unit, unit) for unit in offered)
        raise UsageError(f"--samples {samples}: sources of {kind} take {forms}")
    if ":" in text and (name not in FORMS or not choice.pattern):
        raise UsageError(f"--samples {samples}: {FORMS.get(name, name)} is expected")
    return choice


def check_options(options: SourceOptions, kind: str) -> None:
    """Raise UsageError if an option has a value that it cannot have, or does not concern the source."""
    for option in fields(options):
        about, value, flag = option.metadata, getattr(options, option.name), flag_of(option)
        if value == getattr(SourceOptions(), option.name):
            continue
        if not all_kinds()[kind].takes(option.name):
            named = " and ".join(kinds_with(option.name))
            raise UsageError(f"{flag} is for sources of {named}, but this one holds {kind}; leave it out")
        choices = about["choices"].split("|")
        if about["choices"] and value not in choices:
            raise UsageError(f"{flag} {value}: {' or '.join(choices)} is expected")
        if about["least"] and value < about["least"]:
            raise UsageError(f"{flag} {value}: {about['least']} or more is expected")
    unit_of(kind, options.samples)
