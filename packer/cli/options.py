"""Declares the options and arguments that several commands share."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field, fields, replace
from typing import Any

import click

from packer.cli.logs import Progress
from packer.cli.text import size
from packer.format import Manifest
from packer.machine import usual_memory
from packer.packing import SPLIT, ConvertOptions, open_source, usual_options
from packer.sources import Source, SourceOptions, flag_of, kinds_with

Command = Callable[..., Any]
Option = Callable[[Command], Command]


def fields_option(text: str) -> Option:
    """Return the option `--fields A,B`; the command receives `fields`, a tuple of names, or None for all.

    Args:
        text: the help.
    """

    def split_names(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...] | None:
        return None if value is None else tuple(name.strip() for name in value.split(","))

    return click.option("--fields", metavar="A,B", callback=split_names, help=f"{text}  [default: all]")


def pair_parser(
    form: str, drops: bool = False
) -> Callable[[click.Context, click.Parameter, Sequence[str]], dict[str, str]]:
    """Return a callback of click that turns `NAME=VALUE` texts into a dict.

    Another form, or a name given twice, is a UsageError.


    Args:
        form: what is expected, in words.
        drops: whether VALUE may be empty.
    """

    def parse_pairs(_: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
        option = f"{parameter.opts[0]} " if isinstance(parameter, click.Option) else ""
        pairs: dict[str, str] = {}
        for text in texts:
            name, equals, value = text.partition("=")
            if not (name and equals and (value or drops)):
                raise click.UsageError(f"{option}{text}: {form} is expected")
            if name in pairs:
                raise click.UsageError(f"{option}{name} is named twice")
            pairs[name] = value
        return pairs

    return parse_pairs


#: Headings of the help of commands that read sources.
_EVERY, _RUNS = "Every source", "How it runs"
_ARRAYS, _TABLES, _VIDEOS = "HDF5, zarr and npy", "Tables", "Videos"
_HEADINGS = (_EVERY, "Images", "Clouds", _ARRAYS, _TABLES, _VIDEOS, _RUNS)


class SourceCommand(click.Command):
    """A command that reads sources: its help lists options below headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        headings = {declared.name: _heading(declared) for declared in fields(SourceOptions)}
        headings |= dict.fromkeys(("codec", "splits"), _EVERY)
        lists: dict[str, list[tuple[str, str]]] = {heading: [] for heading in _HEADINGS}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx) if isinstance(option, click.Option) else None
            if record is not None:
                lists[headings.get(option.name or "", _RUNS)].append(record)
        for heading, records in lists.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def _heading(declared: Field[Any]) -> str:
    """Return the heading of an option of sources."""
    kinds = set(kinds_with(declared.name))
    if kinds == set(kinds_with("samples")):
        return _EVERY
    headings = {
        "images": "Images",
        "hdf5": _ARRAYS,
        "ply": "Clouds",
        "clouds": "Clouds",
        "tables": _TABLES,
        "video": _VIDEOS,
    }
    return next(heading for kind, heading in headings.items() if kind in kinds)


def _helps(options: type) -> dict[str, str]:
    """Return the help of each attribute, from the docstring of the class."""
    # `name: text`; a text may go on in lines that are indented further.
    lines = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", inspect.getdoc(options) or "", re.MULTILINE)
    return {name: re.sub(r"\n +", " ", text).partition(" In Python ")[0] for name, text in lines}


def _source_options() -> Sequence[Option]:
    """Return an option for each field of SourceOptions."""
    helps, options = _helps(SourceOptions), []
    for declared in fields(SourceOptions):
        metadata, default = declared.metadata, declared.default
        heading, _, rest = helps[declared.name].partition(": ")
        text = rest if heading in _HEADINGS else helps[declared.name]
        settings: dict[str, Any] = {"help": text[:1].upper() + text[1:], "metavar": metadata["form"]}
        if default is MISSING:  # a mapping
            settings |= {"multiple": True, "callback": pair_parser(metadata["form"])}
        elif default == ():
            settings |= {"multiple": True}
        elif default is False:
            settings |= {"is_flag": True}
        else:
            settings |= {"default": default, "show_default": True}
        if metadata["choices"]:
            settings["type"] = click.Choice(metadata["choices"].split("|"))
        elif metadata["least"]:
            settings["type"] = click.IntRange(min=metadata["least"])
        elif metadata["number"]:
            settings["type"] = metadata["number"]
        options.append(click.option(flag_of(declared), declared.name, **settings))
    return options


_SHOW_DEFAULT: dict[str, Any] = {"show_default": True}
#: The options of packing and of bad samples, by attribute of ConvertOptions: what click has to know of each.
_PACKING: dict[str, dict[str, Any]] = {
    "codec": {"multiple": True, "metavar": "[FIELD=]CODEC"},
    "shard_size": {"type": size},
    "map_limit": {"type": size},
    "like": {"metavar": "DATASET"},
    "splits": {"multiple": True, "metavar": SPLIT, "callback": pair_parser(SPLIT)},
    "workers": {"type": click.IntRange(min=0)},
    "overwrite": {"is_flag": True},
    "on_error": {"type": click.Choice(["stop", "skip"]), "default": "stop", **_SHOW_DEFAULT},
    "read_seconds": {"type": click.FloatRange(min=0), "default": 600.0, **_SHOW_DEFAULT, "metavar": "SECONDS"},
    "read_bytes": {"type": size, "metavar": "SIZE", "default": lambda: str(usual_memory())},
}
_HELPS = _helps(ConvertOptions)
PACKING: dict[str, Option] = {
    declared.name: click.option(flag_of(declared), declared.name, help=_HELPS[declared.name], **_PACKING[declared.name])
    for declared in fields(ConvertOptions)
    if declared.name in _PACKING
}
#: Options for samples that cannot be read.
_BAD = ("on_error", "read_seconds", "read_bytes")


def conversion_options(*names: str, sources: bool = True) -> Option:
    """Return a decorator that adds options to a command, which receives them as one `options`, a ConvertOptions.

    Args:
        names: attributes of ConvertOptions.
        sources: whether the command reads sources, and has their options too.
    """
    options = [PACKING[name] for name in names]
    if sources:
        options += [*(PACKING[name] for name in _BAD), *_source_options()]

    def with_options(command: Command) -> Command:
        @functools.wraps(command)
        def call_command(**arguments: Any) -> Any:
            def take(attributes: Iterable[str]) -> dict[str, Any]:
                return {name: arguments.pop(name) for name in attributes if name in arguments}

            source = SourceOptions(**take(option.name for option in fields(SourceOptions) if sources))
            settings = take((*names, *(_BAD if sources else ())))
            if "codec" in settings:
                settings["codec"] = ",".join(settings["codec"]) or "auto"
            for name in {"splits", "read_seconds", "read_bytes"} & settings.keys():
                settings[name] = settings[name] or None  # nothing asked for, or no limit
            return command(options=ConvertOptions(source=source, **settings), **arguments)

        decorated: Command = call_command
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return with_options


def sources_argument(form: str = "[FIELD=]SOURCE...", required: bool = True) -> Option:
    """Return the argument that names sources.

    Args:
        form: as the help shows it.
    """
    return click.argument("sources", nargs=-1, required=required, type=click.Path(), metavar=form)


def open_shown(sources: Sequence[str], options: ConvertOptions, dataset: Manifest | None = None) -> Source:
    """Open the sources named on the command line, and show the progress of finding files and reading headers.

    Args:
        dataset: which they are the sources of; its options hold where none are given.
    """
    usual = None if dataset is None else usual_options(dataset)
    with Progress() as watcher:
        return open_source(list(sources), replace(options, watcher=watcher), None, usual=usual)
