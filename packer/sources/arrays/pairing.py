"""Which files make a tree of arrays, for each unit that a sample may be made from.

rows.h5, 'part_*.h5'                         rows of one file, or of several one after another
features.npz                                 rows of its arrays
x=images.npy y=labels.npy                    rows of both
x=parts/x_*.npy y=parts/y_*.npy              rows of the files of each, one after another
scenes --samples folders                     a sample a folder
"""

from __future__ import annotations

from collections.abc import Mapping

from packer.errors import UsageError
from packer.format import check_field_name
from packer.sources.files import FileSet
from packer.sources.options import SourceOptions
from packer.sources.pairing import names_by_folder, partners
from packer.sources.table import Files, SampleTable, bounds_of
from packer.sources.units import UnitChoice, by_folder, refuse_strays, unit_name
from packer.watcher import NOBODY, Watcher

#: The input of files that are named for themselves; of one whose rows are the samples, with its path.
APART = "/"
#: Options of images, where fields are files of these.
OF_ENCODED = ("mode", "palette", "max_pixels", "orient")


def choice_of(options: SourceOptions) -> UnitChoice:
    """Return what a sample is made from; rows, if nobody says it."""
    return UnitChoice.parse(options.samples or "rows")


def pair(
    kind: str, file_sets: Mapping[str, FileSet], options: SourceOptions, watcher: Watcher
) -> tuple[SampleTable, list[str]]:
    """Return the files of every tree, with the names of samples that are known, and sentences for the plan.

    A tree is one file; of npy the files of a sample or, if rows are the samples, all. Files of npy for named fields are
    partners by name, or by the folder they lie in; other trees have no names.

    Args:
        kind: of the trees: `hdf5`, `npy` or `zarr`.
        file_sets: by field name; an empty name for files that name their fields themselves. Only npy has several.
        options: paths in `pick` and `skip` start from a sample, if that is a file, folder, array or group.

    Raises:
        UsageError: a name in `pick` cannot be that of a field, or options do not go together.
    """
    choice = choice_of(options)
    _check(options, choice, file_sets)
    is_table = are_one_table(kind, choice)
    if is_table:  # without a bad file, rows after it would belong to other samples
        watcher = NOBODY
    file_sets = {name: files._replace(files=files.pick(watcher)) for name, files in file_sets.items()}
    if kind != "npy":
        ((_, file_set),) = file_sets.items()
        return SampleTable(count=len(file_set.files), inputs={"": Files(file_set.folder, file_set.files)}), []
    if is_table:
        inputs = {
            name or APART: Files(file_set.folder, file_set.files, bounds_of([len(file_set.files)]))
            for name, file_set in file_sets.items()
        }
        return SampleTable(count=1, inputs=inputs), []
    if choice.name == "folders":
        for file_set in file_sets.values():
            refuse_strays(file_set.folder, file_set.files)
        if list(file_sets) == [""]:
            return _folders(file_sets[""]), []
    paired, remarks = partners(file_sets, watcher, names_by_folder(file_sets) if choice.name == "folders" else None)
    inputs = {name: Files(file_sets[name].folder, files) for name, files in paired.files.items()}
    return SampleTable(count=len(paired.names), inputs=inputs, names=paired.names), remarks


def are_one_table(kind: str, choice: UnitChoice) -> bool:
    """Return whether all files are one tree, whose rows are the samples: then each file is a field, or rows of one."""
    return kind == "npy" and choice.is_of_rows


def _folders(file_set: FileSet) -> SampleTable:
    """Return a sample a folder, with all files in it."""
    groups = by_folder(file_set.files)
    in_order = [file_set.files[number] for numbers in groups.values() for number in numbers]
    of_folders = Files(file_set.folder, in_order, bounds_of([len(numbers) for numbers in groups.values()]))
    names = [unit_name(file_set.folder, folder) for folder in groups]
    return SampleTable(count=len(groups), inputs={APART: of_folders}, names=names)


def _check(options: SourceOptions, choice: UnitChoice, file_sets: Mapping[str, FileSet]) -> None:
    """Raise UsageError if an option has a value that cannot be, or is not for this unit."""
    for name in options.pick:
        try:
            check_field_name(name)
        except ValueError as error:
            raise UsageError(str(error)) from None
    for path in (*options.pick.values(), *options.once):
        if not path.strip("/"):
            raise UsageError(f"--field or --once: {path!r} is not the path of an array in a sample or file")
    is_rows = choice.is_of_rows
    for value, is_wrong, reason in (
        (options.attrs, is_rows, "--attr: rows have no attributes; files, datasets and groups do (--samples)"),
        (options.axis, not is_rows, f"--axis is for rows, but --samples {choice} makes each of these a sample"),
        (options.sparse, not is_rows, f"--sparse: samples are the rows of the matrix; leave out --samples {choice}"),
        (options.pick, choice.name == "datasets", "--field: a dataset that is a sample has one field, values"),
        (options.pick, any(file_sets), "--field chooses among the arrays of one source; give its path without FIELD="),
        (options.scaled, options.stored, "--scaled and --stored: give one of them"),
    ):
        if value and is_wrong:
            raise UsageError(reason)
    if given := [name for name in OF_ENCODED if getattr(options, name) and not options.encoded]:
        flag = f"--{given[0].replace('_', '-')}"
        raise UsageError(f"{flag} is for sources of images, and for fields that are named by --encoded; leave it out")
