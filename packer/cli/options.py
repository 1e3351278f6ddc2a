"""Declares the options and arguments that several commands share. What is heavy is imported when they are used."""

from __future__ import annotations

import functools
import glob
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from packer.cli.text import parse_size

Command = Callable[..., Any]
Option = Callable[[Command], Command]

#: What a split is given by.
SPLIT = "NAME=FRACTION, NAME=@FILE or NAME=PATTERN"
#: Paths that a shell is told of after FIELD=.
_MOST = 1000


def size(text: str) -> int:
    """Parse a size as the type of an option."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def named(form: str, drops: bool = False) -> Callable[[click.Context, click.Parameter, Sequence[str]], dict[str, str]]:
    """Return a callback that maps `NAME=VALUE` texts; another form, or a name given twice, is a UsageError.

    Args:
        form: what is expected, in words.
        drops: whether VALUE may be empty.
    """

    def mapping(_: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
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

    return mapping


def _choice(flag: str, values: str, help: str, default: str | None = None) -> Option:
    return click.option(flag, type=click.Choice(values.split("|")), default=default, show_default=True, help=help)


def _number(flag: str, least: int, help: str) -> Option:
    return click.option(flag, type=click.IntRange(min=least), help=help)


def _several(*names: str, metavar: str, help: str) -> Option:
    """Return an option that may be repeated; one of the form `NAME=VALUE` gives a mapping."""
    callback = named(metavar) if "=" in metavar else None
    return click.option(*names, multiple=True, metavar=metavar, callback=callback, help=help)


#: By the names that the attributes of SourceOptions have.
_SOURCE = (
    _choice("--mode", "gray|rgb|rgba", "Images: convert all to this."),
    _choice("--palette", "colour|index", "Images with a palette: pack their colours, or the indices.", "colour"),
    _number("--max-pixels", 1, "Images: refuse larger ones."),
    _number("--patch", 1, "Images: cut squares of this many pixels from the largest field."),
    _number("--stride", 1, "Images: pixels from one square to the next.  [default: --patch]"),
    _number("--downscale", 2, "Images: make a field lr, this many times smaller, by bicubic."),
    _choice(
        "--kernel", "pillow|matlab", "--downscale: which bicubic; papers on super-resolution use MATLAB's.", "pillow"
    ),
    click.option(
        "--list",
        "listed",
        metavar="FILE",
        help="Images: pack the samples that FILE names, in its order: the first word of each line, as in BasicSR's "
        "meta_info.txt.",
    ),
    click.option(
        "--fields",
        default="same",
        show_default=True,
        metavar="same|common|all|A,B",
        help="PLY: which fields to take if the files differ in them.",
    ),
    _several("--cast", metavar="FIELD=DTYPE", help="PLY: convert a field, as in xyz=float32."),
    click.option(
        "--triangulate",
        is_flag=True,
        help="PLY: make polygons into triangles, a fan from the first corner of each face.",
    ),
    _choice(
        "--group",
        "numbered|none",
        "PLY: make one field of numbered properties (rot of rot_0 to rot_3), or a field of each.",
        "numbered",
    ),
    click.option(
        "--columns",
        metavar="NAMES[:TYPE]",
        help="Clouds without a header (.bin, .txt, .xyz, .pts): names and types of their columns, such as "
        "x,y,z,intensity:float32 or x,y,z:float32,r,g,b:uint8.",
    ),
    _choice(
        "--label", "folder", "Make a field label, the number of the first folder that a file lies in, as in cat/1.png."
    ),
    _several("--field", "pick", metavar="NAME=/PATH", help="HDF5: take this dataset, under this name."),
    _several("--skip", metavar="FIELD", help="HDF5: leave out a field, dataset or group."),
    click.option(
        "--axis", type=int, default=0, show_default=True, help="HDF5: number of the axis that counts samples."
    ),
    click.option(
        "--samples",
        metavar="rows|files|folders|datasets|groups[:PATTERN]",
        help="What one sample is made from; PATTERN as in /data/*.  [default: rows of HDF5 and npy, files of images "
        "and PLY]",
    ),
    _several(
        "--attr",
        "attrs",
        metavar="NAME",
        help="HDF5: make a field of this attribute of each file, dataset or group that is a sample.",
    ),
    _several(
        "--once",
        metavar="PATH",
        help="HDF5: keep this dataset once, as ds.constants: it is the same for all samples, as a grid is.",
    ),
    _several(
        "--sparse",
        metavar="PATH",
        help="HDF5: pack rows of this sparse matrix (data, indices, indptr), as X.indices and X.data.",
    ),
    _several(
        "--image",
        "images",
        metavar="FIELD",
        help="HDF5 and npy: take the arrays of this field for pictures, (H, W) or (H, W, C).",
    ),
    click.option(
        "--encoding",
        default="utf-8",
        show_default=True,
        metavar="NAME",
        help="HDF5: encoding of text that the file does not mark as UTF-8, such as latin-1.",
    ),
)

# From here on by the names that the attributes of ConvertOptions have.
_BAD = (
    _choice("--on-error", "stop|skip", "Stop at the first bad file or sample, or leave it out.", "stop"),
    click.option(
        "--read-timeout",
        "read_seconds",
        type=click.FloatRange(min=0),
        default=600.0,
        show_default=True,
        metavar="SECONDS",
        help="A sample whose reading takes longer is bad; 0 for no limit.",
    ),
    click.option(
        "--read-memory",
        "read_bytes",
        type=size,
        metavar="SIZE",
        help="A sample whose reading takes more memory is bad; 0 for no limit.  [default: an eighth of the machine's, "
        "1GiB at least]",
    ),
)
map_size_option = click.option(
    "--map-size", "map_limit", type=size, help="The LMDB map of a shard may not get larger than this."
)
split_option = click.option(
    "--split",
    "splits",
    multiple=True,
    metavar="NAME=FRACTION|@FILE|PATTERN",
    callback=named(SPLIT),
    help="A split of the samples: a fraction such as 0.9, a file with a name a line, or a pattern over names.",
)
shard_size_option = click.option("--shard-size", type=size, help="Raw bytes of a shard, about, such as 1GiB.")
overwrite_option = click.option(
    "--overwrite", is_flag=True, help="Replace a dataset that is there, once the new one is done."
)
go_on_option = click.option(
    "--go-on",
    is_flag=True,
    help="Go on with what is unfinished although --on-error, --map-size or a limit of reading has changed, if the "
    "finished shards would be the same.",
)
workers_option = click.option(
    "--workers",
    type=click.IntRange(min=0),
    help="Processes; 0 packs in this one, without limits for reading.  [default: as many as processors]",
)
_PACKING = (
    click.option(
        "--codec",
        multiple=True,
        metavar="[FIELD=]CODEC",
        help="auto, none, lz4, lz4hc, zstd, shuffle+lz4, shuffle+zstd, bitshuffle, rowdelta+zstd, "
        "photo+lz4, photo+zstd, or a numcodecs config as JSON; for all fields or for one, repeated or with commas: "
        "--codec hr=zstd,label=none.  "
        "[default: auto]",
    ),
    click.option(
        "--shard-size",
        type=size,
        help="Raw bytes of a shard, about, such as 1GiB.  [default: 16 shards of 16 MiB to 1 GiB]",
    ),
    map_size_option,
    split_option,
)


def conversion_options(command: Command) -> Command:
    """Add what sources and packing are told; the command gets it as `collected` makes it."""
    return _with(command, (*_PACKING, *_BAD, *_SOURCE))


def source_options(command: Command) -> Command:
    """Add what sources alone are told; the command gets it as `collected` makes it."""
    return _with(command, (*_BAD, *_SOURCE))


def _with(command: Command, options: Sequence[Option]) -> Command:
    command = collected(command)
    for option in reversed(options):
        option(command)
    return command


def collected(command: Command) -> Command:
    """Give a command one `options`, a ConvertOptions, instead of all options that are among its attributes."""

    @functools.wraps(command)
    def with_options(**given: Any) -> Any:
        from packer.convert import ConvertOptions
        from packer.sources.opening import SourceOptions

        def taken(options: Any) -> dict[str, Any]:
            return {held.name: given.pop(held.name) for held in fields(options) if held.name in given}

        source = SourceOptions(**taken(SourceOptions))
        told = taken(ConvertOptions)
        if "codec" in told:
            told["codec"] = ",".join(told["codec"]) or "auto"
        if told.get("read_bytes", 0) is None:
            del told["read_bytes"]  # what is usual depends on the machine
        for name in {"splits", "read_seconds", "read_bytes"} & told.keys():
            told[name] = told[name] or None
        return command(options=ConvertOptions(source=source, **told), **given)

    return with_options


def sources_argument(command: Command) -> Command:
    """Add the sources, before anything else on the line."""
    return _sources(required=True, metavar="[FIELD=]SOURCE...")(command)


def sources_before_out(command: Command) -> Command:
    """Add the sources and OUT after them; `check_out` says which of them is missing."""
    return _sources(metavar="[FIELD=]SOURCE...")(click.argument("out", type=click.Path())(command))


def more_sources_argument(command: Command) -> Command:
    """Add the sources given after the dataset, which the command may need."""
    return _sources(metavar="[[FIELD=]SOURCE...]")(command)


def _sources(**said: Any) -> Callable[[Command], Command]:
    return click.argument("sources", nargs=-1, shell_complete=_complete, **said)


def check_out(sources: Sequence[str], out: str) -> None:
    """Refuse a source in the place of OUT: the last one stands there if OUT was forgotten.

    Raises:
        click.UsageError: there is nothing else, or it is `FIELD=PATH`, and something is at the path.
    """
    from packer.remote.store import is_url

    if not sources:
        raise click.UsageError(f"{out} is the only path; give the sources first, and then OUT, the folder to pack into")
    name, equals, path = out.partition("=")
    if not (name and equals and path) or os.sep in name:
        return
    if is_url(path) or Path(path).exists() or glob.glob(path):
        raise click.UsageError(
            f"OUT is missing: {out} is a source; name the folder to pack into after it (./{out} for one of that name)"
        )


@contextmanager
def dataset_first(usage: str) -> Iterator[None]:
    """Say in which order the arguments stand if the dataset is none: sources may have been named before it.

    Raises:
        NoDatasetError: what was raised within, with `usage`.
    """
    from packer.errors import NoDatasetError

    try:
        yield
    except NoDatasetError as error:
        raise NoDatasetError(f"{error}; give DATASET before its sources: `{usage}`") from None


def _complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return paths, also after `FIELD=`: bash takes that off by itself, other shells take it for a part of the path."""
    name, equals, begun = incomplete.partition("=")
    if not (name and equals) or os.sep in name:
        return [CompletionItem(incomplete, type="file")]
    found = sorted(glob.glob(glob.escape(begun) + "*"))[:_MOST]
    return [CompletionItem(f"{name}={path}{os.sep * Path(path).is_dir()}") for path in found]
