"""The commands that packed the samples of a dataset: what its manifest keeps of them, and what later commands take."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec

from packer.errors import as_text
from packer.format import GivenCommand, Manifest
from packer.packing.inputs import input_texts, packed_folder
from packer.packing.manifest import read_manifest
from packer.packing.options import ConvertOptions
from packer.packing.places import LocalPlace
from packer.remote import url_in
from packer.sources import PackedSource, SourceOptions, flag_of

#: What options are called on the command line, by their names.
_SOURCE_FLAGS = {option.name: flag_of(option) for option in fields(SourceOptions)}
_FLAGS = {option.name: flag_of(option) for option in fields(ConvertOptions)}
#: The limits of reading, and all options of packing that are kept.
_LIMITS = ("read_seconds", "read_bytes")
_KEPT = ("codec", "shard_size", "like", "splits", "on_error", *_LIMITS)
#: What of a URL is not kept: the user before the `@` of its host, and all from the `?` on, which may be secret; and the
#: beginning of one that is a path.
_SECRET = re.compile(r"(?<=://)[^/@]*@|\?.*|file://(?=/)", re.DOTALL)


def commands_of(verb: str, sources: Any, options: ConvertOptions) -> tuple[GivenCommand, ...]:
    """Return what a manifest says of the commands that packed samples: those of a packed dataset are its own.

    Nothing of it is secret: a URL ends before its `?`, and has no user.
    """
    if isinstance(sources, PackedSource):
        return sources.base.commands if sources.base else ()
    if (folder := packed_folder(sources)) is not None:
        manifest = read_manifest(LocalPlace(Path(folder)))
        return taken_commands(manifest, folder) if verb == "append" else manifest.commands
    texts = input_texts(sources)
    if texts is None:
        return ()
    if any(not isinstance(rule, str | int | float) for rule in (options.splits or {}).values()):
        options = replace(options, splits=None)  # lists of samples, which may be millions
    given = _given(options.source, _SOURCE_FLAGS) | _given(options, _KEPT)
    words = tuple(_SECRET.sub("", text) if url_in(text) else as_text(text) for text in texts)
    return (GivenCommand(verb, words, given),)


def taken_commands(manifest: Manifest, dataset: str | os.PathLike[str]) -> tuple[GivenCommand, ...]:
    """Return the commands that packed a dataset whose samples another one takes over; each says where it wrote to."""
    return tuple(
        command if command.out else msgspec.structs.replace(command, out=as_text(os.fspath(dataset)))
        for command in manifest.commands
    )


def usual_options(manifest: Manifest, verb: str = "") -> SourceOptions:
    """Return the options of the sources from which a dataset was first packed.

    Args:
        verb: `append`, of other samples: those that list samples are left out.
    """
    kept = _kept(manifest)
    options: dict[str, Any] = {
        name: tuple(kept[flag]) if isinstance(kept[flag], list) else kept[flag]
        for name, flag in _SOURCE_FLAGS.items()
        if flag in kept
    }
    usual = SourceOptions(**options)
    return replace(usual, listed=None) if verb == "append" else usual


def with_usual(options: ConvertOptions, manifest: Manifest) -> ConvertOptions:
    """Return options to read the sources of a dataset again with: those of its first command, where none are given.

    These are the limits of reading, and whether bad samples are skipped.
    """
    kept, given = _kept(manifest), _given(options, _LIMITS)
    limits: dict[str, Any] = {
        name: kept[flag] or None
        for name in _LIMITS
        if isinstance(kept.get(flag := _FLAGS[name]), int | float) and flag not in given
    }
    return replace(options, on_error=kept.get(_FLAGS["on_error"], options.on_error), **limits)


def _kept(manifest: Manifest) -> dict[str, Any]:
    """Return the options of the first command that packed a dataset, by their flags."""
    return manifest.commands[0].options if manifest.commands else {}


def _given(options: SourceOptions | ConvertOptions, names: Iterable[str]) -> dict[str, Any]:
    """Return those of some options that are not the usual ones, by their flags, as JSON has them; no limit is 0."""
    usual, given = type(options)(), dict[str, Any]()
    for option in fields(options):
        value = getattr(options, option.name)
        if option.name in names and value != getattr(usual, option.name):
            value = os.fspath(value) if isinstance(value, os.PathLike) else msgspec.to_builtins(value)
            if value or option.name in _LIMITS:
                given[flag_of(option)] = value or 0
    return given
