"""What to pack: opens the sources that a verb is given, and checks that they fit the dataset and its place."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from packer.errors import SourceError, UsageError, first_few
from packer.format import MANIFEST, Manifest, encode_constants, find_meanings, same_constants
from packer.packing.manifest import check_output, read_manifest
from packer.packing.options import ConvertOptions, reading_limits
from packer.packing.origin import Origin, attributes_of, classes_of, origin_of
from packer.packing.places import LocalPlace, Place, place_of
from packer.packing.rejected import Rejected, read_rejected
from packer.remote import local_inputs
from packer.sources import (
    ClassSource,
    FittedSource,
    PackedSource,
    SampleSource,
    Source,
    SourceOptions,
    TableSource,
    open_sources,
)
from packer.watcher import NOBODY

_log = logging.getLogger(__name__)


def open_source(
    sources: Any,
    options: ConvertOptions,
    rejected: list[Rejected] | None,
    as_extra_fields: bool = False,
    usual: SourceOptions | None = None,
) -> Source:
    """Open `sources`; with the option `like`, the result has the fields of that dataset.

    Args:
        as_extra_fields, usual: as for `open_sources`.
        rejected: skipped files are added here. None if nothing will be packed; then a bad sample that is found early
            raises no error.

    Raises:
        UsageError, SourceError, ResourceError: as `convert`.
    """
    if options.like is not None:
        like = read_manifest(place_of(options.like))
        source = open_source(sources, replace(options, like=None, fields=like.fields), rejected)
        return fit_source(source, like)

    def report_bad(error: SourceError) -> None:
        is_early = error.sample is not None  # it comes again when the sample is read
        if options.on_error == "stop" and not (is_early and rejected is None):
            raise error
        if options.watcher.bad is not NOBODY.bad:  # which would stop here too
            options.watcher.bad(error)
        if rejected is not None and not is_early:
            rejected.append(Rejected.of(error))

    if isinstance(sources, Source):
        if options.source != SourceOptions():
            raise UsageError("SourceOptions are for paths, and this source has been opened already; leave them out")
        if isinstance(sources, PackedSource) and rejected is not None:
            # Its shards are not those of the new dataset.
            folder = LocalPlace(Path(sources.folder))
            old_rejected = read_rejected(folder.path, read_manifest(folder))
            rejected += [msgspec.structs.replace(bad, shard=None, sample=None) for bad in old_rejected]
        return sources
    inputs = input_texts(sources)
    if inputs is not None:
        inputs, leases = local_inputs(inputs, options.watcher)
        limits = reading_limits(options)
        watcher = replace(options.watcher, bad=report_bad)
        source = open_sources(inputs, options.source, watcher, limits, as_extra_fields, usual)
        weakref.finalize(source, leases.clear)  # what was fetched stays in the cache as long as the source lives
        return source
    if isinstance(sources, Mapping) or not (hasattr(sources, "__len__") and hasattr(sources, "__getitem__")):
        shown = f"an object of type {type(sources).__name__}"
        raise UsageError(f"cannot pack {shown}; paths or a sequence of dicts are expected")
    if options.source != SourceOptions():
        raise UsageError("SourceOptions are for files, and these are samples in memory; leave them out")
    return SampleSource(sources, options.fields, keys=options.names)


def packed_folder(sources: Any) -> str | os.PathLike[str] | None:
    """Return the folder of the packed dataset that `sources` name; None if they are anything else."""
    inputs = [sources] if isinstance(sources, (str, os.PathLike)) else sources
    folder = inputs[0] if isinstance(inputs, (list, tuple)) and len(inputs) == 1 else None
    return folder if isinstance(folder, (str, os.PathLike)) and (Path(folder) / MANIFEST).exists() else None


def fit_source(source: Source, like: Manifest) -> Source:
    """Return a source whose samples are packed as those of a dataset.

    Raises:
        UsageError: it does not fit; the message names the difference.
    """
    if isinstance(source, SampleSource):  # opened with the fields of the dataset; it has no constants of its own
        if source.origin:  # it knows what its classes are called
            check_meanings(like, origin_of(source), len(source), "the source")
        return source
    number_classes(source, like)
    if isinstance(source, TableSource):
        source = source.as_fields(like.fields)
    fitted = FittedSource(source, like.fields)
    check_meanings(like, origin_of(source), len(source), "the source")
    if not same_constants(like.constants, encode_constants(source.constants)):
        raise constants_error("the source")
    return fitted


def number_classes(source: Source, like: Manifest) -> None:
    """Number the classes of a source as a dataset does, if it has all of them."""
    if (
        isinstance(source, ClassSource)
        and source.classes != list(like.classes)
        and {*source.classes} <= {*like.classes}
    ):
        source.number_as(like.classes)


def check_meanings(like: Manifest, origin: Origin, samples: int, where: str) -> None:
    """Raise UsageError if a number stands for something else than in a dataset: a class, a category, or a time.

    Other attributes of fields that differ, such as units, are logged, as `convert` does of files.

    Args:
        origin: of the samples that are to be joined with those of the dataset.
        where: what has the samples, in words.
    """
    if difference := other_meanings(like, origin, samples):
        of_classes = classes_of(origin, samples) != like.classes
        advice = "or with a folder for each class, even if it is empty" if of_classes else "or write the column as text"
        what = "a label would mean several classes" if of_classes else "a number would mean several things"
        raise UsageError(f"{where} {difference}: {what}; convert all sources as one, {advice}")
    old, new = attributes_of(like.origin, like.samples), attributes_of(origin, samples)
    if differing := [name for name in {**old, **new} if old.get(name) != new.get(name)]:
        _log.info("%s has other attributes of fields than the dataset: %s", where, first_few(differing))


def other_meanings(like: Manifest, origin: Origin, samples: int) -> str:
    """Return how what numbers stand for differs from a dataset, as in `has the classes a, b, but a, c are expected`.

    Empty if nothing differs.
    """
    classes = classes_of(origin, samples), like.classes
    if classes[0] != classes[1]:
        texts = [", ".join(names) if names else "none" for names in classes]
        return f"has the classes {texts[0]}, but {texts[1]} are expected"
    specs = [field.spec for field in like.fields]
    found, expected = find_meanings(origin, specs), find_meanings(like.origin, specs)
    for name in found:
        numbers = [of_fields[name].get("categories") or of_fields[name].get("times") for of_fields in (found, expected)]
        if numbers[0] != numbers[1]:
            shown = [", ".join(map(_in_words, meaning)) if meaning else "nothing else" for meaning in numbers]
            return f"has numbers of field {name!r} that stand for {shown[0]}, but {shown[1]} is expected"
        ways = [of_fields[name].get("box_format") for of_fields in (found, expected)]
        if all(ways) and ways[0] != ways[1]:  # of samples that a program wrote it is not known
            shown = [" and ".join(way or ()) for way in ways]
            return f"has boxes in field {name!r} as {shown[0]} writes them, but {shown[1]} is expected"
    return ""


def _in_words(meaning: str | list[str]) -> str:
    return meaning if isinstance(meaning, str) else ", ".join(meaning)


def constants_error(where: str) -> UsageError:
    """Return the error of datasets, or sources, that have different constants."""
    return UsageError(
        f"{where}: what is kept once for all samples differs; `packer export` gives the samples back, to be packed "
        "without --once"
    )


def input_texts(sources: Any) -> list[str] | None:
    """Return the paths, as text; None if `sources` are no paths."""
    if isinstance(sources, (str, os.PathLike)):
        return [os.fspath(sources)]
    if isinstance(sources, Mapping) and sources and all(isinstance(s, (str, os.PathLike)) for s in sources.values()):
        return [f"{field}={os.fspath(path)}" for field, path in sources.items()]
    if isinstance(sources, (list, tuple)) and sources and all(isinstance(s, (str, os.PathLike)) for s in sources):
        return [os.fspath(source) for source in sources]
    return None


def check_place(sources: Any, place: Place, overwrite: bool) -> None:
    """Raise UsageError if no dataset can be made at a place; called before the sources are opened."""
    check_apart(sources, place)
    check_output(place, overwrite)


def check_apart(sources: Any, place: Place) -> None:
    """Raise UsageError if a place lies within a source folder: a second run would find its own output."""
    if not isinstance(place, LocalPlace):
        return
    for text in input_texts(sources) or []:
        for folder in (Path(text), Path(text.partition("=")[2] or text)):
            if folder.is_dir() and place.path.resolve().is_relative_to(folder.resolve()):
                raise UsageError(f"{place} lies within the source {folder}; name a folder outside of it")
