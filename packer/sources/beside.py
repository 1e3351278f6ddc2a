"""Fields from files beside those of the samples, with the same names: boxes, labels of points, captions, embeddings.

    image=images boxes=labels                                          images/a.png labels/a.txt, of YOLO
    velodyne label=labels --columns ... --columns label=label:uint32   velodyne/000000.bin labels/000000.label
    image=images caption=captions                                      images/a.png captions/a.txt
    image=images embedding=clip                                        images/a.png clip/a.npy

Each sample needs its file: one that is missing is an error that names its partner, or with `--missing boxes=empty` a
sample without a box. So is one whose file has no row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from operator import eq

import numpy as np

from packer.errors import NothingLeftError, SourceError, UsageError, first_few
from packer.sources.base import Source
from packer.sources.files import FileSet
from packer.sources.kinds import all_kinds
from packer.sources.pairing import UNNAMED, field_in_words, pair, partners, stem
from packer.sources.views import BesideSource, FilledSource, in_order
from packer.watcher import Watcher

_log = logging.getLogger(__name__)


def open_beside(
    main: Mapping[str, FileSet],
    sides: Mapping[str, FileSet],
    open_samples: Callable[[Mapping[str, FileSet]], Source],
    open_side: Callable[[str, FileSet], Source],
    watcher: Watcher,
    missing: Mapping[str, str] = {},
) -> Source:
    """Return the samples of a source, each with the fields that lie beside it.

    Args:
        main: the files of the samples, by field.
        sides: the files beside them, by field.
        open_samples: opens the samples of some of the files `main`.
        open_side: opens the files of one of `sides`, each as a sample.
        watcher: its `bad` is called with every file that is bad or has no partner.
        missing: of `sides`, those whose value is `empty` in samples that have no file of them.

    Raises:
        UsageError: the samples are not whole files (but patches of images, say), or two fields have one name.
        SourceError: what `watcher.bad` raises, or no sample is left.
    """
    sides_in_words = " and ".join(name or UNNAMED for name in sides)
    opened = {name: open_side(name, file_set) for name, file_set in sides.items()}
    beside = {name: _whole_files(name, file_set, opened[name]) for name, file_set in sides.items()}
    for name, value in missing.items():
        if name not in beside or value != "empty":
            known = ", ".join(beside) or "none"
            raise UsageError(f"--missing {name}={value}: FIELD=empty is expected, of a field of files beside ({known})")
    needed = {name: file_set for name, file_set in beside.items() if name not in missing}
    pairs, _ = partners({**main, **needed}, watcher)
    if not pairs.names:
        raise NothingLeftError(
            f"no sample is left: none has its file of {sides_in_words}", next(iter(main.values())).text
        )
    samples = open_samples(
        {name: file_set._replace(files=sorted(pairs.files[name])) for name, file_set in main.items()}
    )
    names = list(samples.names or ())
    # Mostly the same: tables of a million names are made once.
    files = pairs.files if names == pairs.names else _paired_again(names, needed)
    if len(next(iter(files.values()))) < len(samples):
        raise UsageError(
            f"{sides_in_words}: these lie beside whole files, but the samples are not single files; leave out --patch, "
            "--samples and the like"
        )
    chosen = list[Source]()
    for name, side in opened.items():
        if name in missing:
            chosen.append(_filled(name, side, beside[name], names, watcher))
        else:
            chosen.append(_of_files(side, sides[name], files[name]))
    return BesideSource(samples, chosen)


def _paired_again(names: Sequence[str], sides: Mapping[str, FileSet]) -> dict[str, list[str]]:
    """Return by field the file of each sample, and under "" their names; fewer if the names do not fit."""
    paired = pair({"": [f"{name}." for name in names], **{f"={name}": side.files for name, side in sides.items()}})
    order = {name: number for number, name in enumerate(paired.files[""])}
    numbers = [order[f"{name}."] for name in names if f"{name}." in order]
    return {field.removeprefix("="): [files[number] for number in numbers] for field, files in paired.files.items()}


def _of_files(side: Source, file_set: FileSet, files: Sequence[str]) -> Source:
    """Return the samples of a side, each of which is one file, that are some files of a folder, in their order."""
    paths = side.files()
    if len(paths) == len(files) and all(map(eq, paths, map(file_set.path, files))):
        return side  # mostly so, and it needs no table of a million paths
    numbers = {path: number for number, path in enumerate(paths)}
    return in_order(side, [numbers[file_set.path(file)] for file in files])


def _whole_files(name: str, file_set: FileSet, side: Source) -> FileSet:
    """Return the files of a side that were opened; raises UsageError if they are not a sample each."""
    paths = set(side.files())
    if len(paths) != len(side):
        raise UsageError(f"{field_in_words(name)} lies beside the others, so each sample of it must be one file")
    return file_set._replace(files=[file for file in file_set.files if file_set.path(file) in paths])


def _filled(name: str, side: Source, file_set: FileSet, samples: Sequence[str], watcher: Watcher) -> FilledSource:
    """Return a source of values for all samples, which are empty where no file has the name of the sample.

    Raises:
        UsageError: values of the field cannot be empty.
        SourceError: what `watcher.bad` raises, which is called with each file that is of no sample.
    """
    if not all_kinds()[side.kind].may_be_missing:
        can_be = ", ".join(kind.name for kind in all_kinds().values() if kind.may_be_missing)
        raise UsageError(f"--missing {name}=empty: {side.kind} cannot be empty, but {can_be} can; leave it out")
    number_of = {stem(file): number for number, file in enumerate(file_set.files)}
    for extra in sorted(number_of.keys() - set(samples)):
        watcher.bad(SourceError("has no partner", file_set.path(file_set.files[number_of[extra]])))
    files = [file_set.files[number_of[sample]] for sample in samples if sample in number_of]
    return FilledSource(_of_files(side, file_set, files), np.array([sample in number_of for sample in samples], bool))


def in_order_of(names: Sequence[str] | None, samples: int, source: Source, drop: bool = False) -> Source:
    """Return the samples of a source in the order of others, by name; by number if the source has no names.

    Args:
        names: of the others, in order; None if they have none.
        samples: how many others there are.
        drop: whether samples of the source without a partner are skipped, with a warning.

    Raises:
        UsageError: one of the others has no partner, or the numbers of samples differ; or, unless these are skipped, a
            sample of the source has none.
    """
    if source.names is None:
        if len(source) == samples:
            return source
        raise UsageError(
            f"the source has {len(source):,} samples without names, which go by their number: {samples:,} are expected"
        )
    if names is None:
        raise UsageError(
            "the samples of the dataset have no names, but those of the source do: give one value a row, in the order "
            "of the samples, as one .npy or HDF5 file, or as several with --samples rows"
        )
    number_of = {name: number for number, name in enumerate(source.names)}
    partner_of = {name: name for name in names if name in number_of}
    if len(partner_of) < samples:
        pairs = pair({"": [f"{name}." for name in names], "=": [f"{name}." for name in source.names]})
        partner_of = dict(zip(map(stem, pairs.files[""]), map(stem, pairs.files["="]), strict=True))
        for field_name, taken in pairs.taken.items():
            of = "source" if field_name else "dataset"
            _log.info("names of the %s are compared without what most of them have, %s", of, taken)
    if missing := [name for name in names if name not in partner_of]:
        reason = f"{len(missing):,} of {samples:,} samples have no value in the source: {first_few(missing)}"
        raise UsageError(f"{reason}; the source has {first_few(list(source.names))}")
    if len(partner_of) < len(source):
        chosen = set(partner_of.values())
        more = [name for name in source.names if name not in chosen]
        reason = f"{len(more):,} samples of the source are not in the dataset: {first_few(more)}"
        if not drop:
            raise UsageError(f"{reason}; skip them with --on-error skip")
        _log.warning("%s; they are skipped", reason)
    numbers = [number_of[partner_of[name]] for name in names]
    return source if numbers == list(range(len(source))) else in_order(source, numbers)
