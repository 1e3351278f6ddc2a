"""Kinds of files: one record each, at the end of the module that reads them; all tables of kinds are made from these.

    KIND = Kind("nifti", (".nii", ".nii.gz"), look=look, read=read, needs=("nibabel", "nifti"), ...)

A package of its own adds one by an entry point of the group `packer.kinds`, which names such a record.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

from packer.errors import UsageError
from packer.format import FieldSpec
from packer.sources.base import BLOCK_BYTES, Source
from packer.sources.files import FileSet
from packer.sources.looking import Looked, agree_on_most
from packer.sources.options import SourceOptions
from packer.sources.pairing import Names, partners
from packer.sources.table import Files, Row, SampleTable
from packer.watcher import Watcher

#: Modules with a record `KIND` or several `KINDS`, in the order in which help and errors list them.
_MODULES = ("packer.sources.images.kind", "packer.sources.nifti")
_GROUP = "packer.kinds"


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


def agree(table: SampleTable, options: SourceOptions, remarks: list[str], watcher: Watcher) -> SampleTable:
    """Return the samples that have the fields of most."""
    return agree_on_most(table, watcher)


@dataclass(eq=False)
class Kind:
    """A kind of files that can be packed.

    Attributes:
        name: `images`, `ply`, ...; errors and the manifest call it so.
        suffixes: in small letters.
        look: returns what the headers of a sample say, which is all that is read for the plan. A SourceError is the
            fault of a file.
        read: returns the values of a sample, by field.
        units: what a sample may be made from, the default first.
        names_fields: whether its files name their fields themselves; else `FIELD=` does.
        lies_beside: whether its files may lie beside those of another kind, each a sample.
        needs: a package that reads it, what errors call the files, and the extra that brings this package.
        options: the attributes of `SourceOptions` that are for it, besides those of every kind.
        exports: the kind of files to which its datasets are exported by default.
        unnamed: the field of an input for which none is named.
        pair: returns the table of samples that files make, and remarks.
        agree: returns the table of the samples that can be packed together; it adds remarks.
        more: fields that `read` returns besides those of the layouts.
        are_ragged: whether an axis is ragged even if all samples have one length.
        block_bytes: about how many bytes are read at once.
        view: returns a source as the options ask for it: small images beside it, or patches of it.
        origin: returns what the manifest keeps of the options.
    """

    name: str
    suffixes: tuple[str, ...]
    look: Callable[[Row, SourceOptions], Looked]
    read: Callable[[Row, SourceOptions], dict[str, Any]]
    units: tuple[str, ...] = ("files",)
    names_fields: bool = False
    lies_beside: bool = False
    needs: tuple[str, str, str] | None = None
    options: tuple[str, ...] = ()
    exports: str = "hdf5"
    unnamed: str = ""
    pair: Callable[[Mapping[str, FileSet], SourceOptions, Watcher], tuple[SampleTable, list[str]]] = pair_by_name
    agree: Callable[[SampleTable, SourceOptions, list[str], Watcher], SampleTable] = agree
    more: tuple[FieldSpec, ...] = ()
    are_ragged: bool = False
    block_bytes: int = BLOCK_BYTES
    view: Callable[[Any, SourceOptions], Source] = lambda source, options: source
    origin: Callable[[SourceOptions, SampleTable], dict[str, Any]] = lambda options, table: {}

    def __reduce__(self) -> tuple[Callable[[str], Kind], tuple[str]]:
        """Pickle the name alone."""
        return kind_named, (self.name,)

    def check_package(self) -> None:
        """Raise UsageError if the package that reads the files is not installed."""
        if self.needs and find_spec(self.needs[0]) is None:
            package, files, extra = self.needs
            raise UsageError(f"{files} is read by {package}: pip install '.[{extra}]' in a clone of packer")


@cache
def all_kinds() -> Mapping[str, Kind]:
    """Return all kinds by name: ours, and those of other packages."""
    modules = map(importlib.import_module, _MODULES)
    ours = [kind for module in modules for kind in getattr(module, "KINDS", None) or [module.KIND]]
    return {kind.name: kind for kind in [*ours, *(point.load() for point in entry_points(group=_GROUP))]}


def kind_named(name: str) -> Kind:
    """Return the kind of this name."""
    return all_kinds()[name]
