"""Declares the options and arguments that several commands share. What is heavy is imported when they are used."""

from __future__ import annotations

import functools
import glob
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from packer.cli.units import size

if TYPE_CHECKING:
    from packer.sources.opening import SourceOptions


Command = Callable[..., Any]


def _pairs(form: str) -> Callable[[click.Context, click.Parameter, Sequence[str]], dict[str, str]]:
    """Return a callback that makes a mapping of `a=b` texts; another form, or a name given twice, is a UsageError."""

    def mapping(_: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
        option, pairs = parameter.opts[0], dict[str, str]()
        for text in texts:
            name, equals, value = text.partition("=")
            if not (name and equals and value):
                raise click.UsageError(f"{option} {text}: {form} is expected")
            if name in pairs:
                raise click.UsageError(f"{option} names {name} twice")
            pairs[name] = value
        return pairs

    return mapping


#: By the names that the attributes of SourceOptions have.
_SOURCE = (
    click.option("--mode", type=click.Choice(["gray", "rgb", "rgba"]), help="Images: convert all to this."),
    click.option(
        "--palette",
        type=click.Choice(["colour", "index"]),
        default="colour",
        show_default=True,
        help="Images with a palette: pack their colours, or the indices.",
    ),
    click.option("--max-pixels", type=click.IntRange(min=1), help="Images: refuse larger ones."),
    click.option(
        "--patch", type=click.IntRange(min=1), help="Images: cut squares of this many pixels from the largest field."
    ),
    click.option(
        "--stride", type=click.IntRange(min=1), help="Images: pixels from one square to the next.  [default: --patch]"
    ),
    click.option(
        "--downscale", type=click.IntRange(min=2), help="Images: make a field lr, this many times smaller, by bicubic."
    ),
    click.option(
        "--kernel",
        type=click.Choice(["pillow", "matlab"]),
        default="pillow",
        show_default=True,
        help="--downscale: which bicubic; papers on super-resolution use MATLAB's.",
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
    click.option(
        "--cast",
        multiple=True,
        metavar="FIELD=DTYPE",
        callback=_pairs("FIELD=DTYPE"),
        help="PLY: convert a field, as in xyz=float32.",
    ),
    click.option(
        "--triangulate",
        is_flag=True,
        help="PLY: make polygons into triangles, a fan from the first corner of each face.",
    ),
    click.option(
        "--group",
        type=click.Choice(["numbered", "none"]),
        default="numbered",
        show_default=True,
        help="PLY: make one field of numbered properties (rot of rot_0 to rot_3), or a field of each.",
    ),
    click.option(
        "--columns",
        metavar="NAMES[:TYPE]",
        help="Clouds without a header (.bin, .txt, .xyz, .pts): names and types of their columns, such as "
        "x,y,z,intensity:float32 or x,y,z:float32,r,g,b:uint8.",
    ),
    click.option(
        "--label",
        type=click.Choice(["folder"]),
        help="Make a field label, the number of the first folder that a file lies in, as in cat/1.png.",
    ),
    click.option(
        "--field",
        "pick",
        multiple=True,
        metavar="NAME=/PATH",
        callback=_pairs("NAME=/PATH"),
        help="HDF5: take this dataset, under this name.",
    ),
    click.option("--skip", multiple=True, metavar="FIELD", help="HDF5: leave out a field, dataset or group."),
    click.option(
        "--axis", type=int, default=0, show_default=True, help="HDF5: number of the axis that counts samples."
    ),
    click.option(
        "--samples",
        metavar="rows|files|folders|datasets|groups[:PATTERN]",
        help="What one sample is made from; PATTERN as in /data/*.  [default: rows of HDF5 and npy, files of images "
        "and PLY]",
    ),
    click.option(
        "--attr",
        "attrs",
        multiple=True,
        metavar="NAME",
        help="HDF5: make a field of this attribute of each file, dataset or group that is a sample.",
    ),
    click.option(
        "--once",
        multiple=True,
        metavar="PATH",
        help="HDF5: keep this dataset once, as ds.constants: it is the same for all samples, as a grid is.",
    ),
    click.option(
        "--sparse",
        multiple=True,
        metavar="PATH",
        help="HDF5: pack rows of this sparse matrix (data, indices, indptr), as X.indices and X.data.",
    ),
    click.option(
        "--image",
        "images",
        multiple=True,
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
    click.option("--map-size", type=size, help="The LMDB map of a shard may not get larger than this."),
)

_BAD = (
    click.option(
        "--on-error",
        type=click.Choice(["stop", "skip"]),
        default="stop",
        show_default=True,
        help="Stop at the first bad file or sample, or leave it out.",
    ),
    click.option(
        "--read-timeout",
        type=click.FloatRange(min=0),
        default=600.0,
        show_default=True,
        metavar="SECONDS",
        help="A sample whose reading takes longer is bad; 0 for no limit.",
    ),
    click.option(
        "--read-memory",
        type=size,
        metavar="SIZE",
        help="A sample whose reading takes more memory is bad; 0 for no limit.  [default: an eighth of the machine's, "
        "1GiB at least]",
    ),
)


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
split_option = click.option(
    "--split",
    "splits",
    multiple=True,
    metavar="NAME=FRACTION|@FILE|PATTERN",
    callback=_pairs("NAME=FRACTION, NAME=@FILE or NAME=PATTERN"),
    help="A split of the samples: a fraction such as 0.9, a file with a name a line, or a pattern over names.",
)
shard_size_option = click.option("--shard-size", type=size, help="Raw bytes of a shard, about, such as 1GiB.")
#: Paths that a shell is told of after FIELD=.
_MOST = 1000


def conversion_options(command: Command) -> Command:
    """Add what sources and packing are told; the command gets it as `options`, a ConvertOptions."""

    @functools.wraps(command)
    def with_options(
        codec: Sequence[str], shard_size: int | None, map_size: int | None, splits: Any, **given: Any
    ) -> Any:
        from packer.convert import ConvertOptions

        options = ConvertOptions(
            codec=",".join(codec) or "auto",
            shard_size=shard_size,
            map_limit=map_size,
            splits=splits or None,
            source=_source_options(given),
            **_bad_options(given),
        )
        return command(options=options, **given)

    for option in reversed((*_PACKING, split_option, *_BAD, *_SOURCE)):
        option(with_options)
    return with_options


def source_options(command: Command) -> Command:
    """Add what sources alone are told; the command gets it as `options`, a ConvertOptions."""

    @functools.wraps(command)
    def with_options(**given: Any) -> Any:
        from packer.convert import ConvertOptions

        options = ConvertOptions(source=_source_options(given), **_bad_options(given))
        return command(options=options, **given)

    for option in reversed((*_BAD, *_SOURCE)):
        option(with_options)
    return with_options


def _bad_options(given: dict[str, Any]) -> dict[str, Any]:
    """Take what is bad, and what then, out of `given`."""
    memory = given.pop("read_memory")
    return {
        "on_error": given.pop("on_error"),
        "read_seconds": given.pop("read_timeout") or None,
        **({} if memory is None else {"read_bytes": memory or None}),
    }


def _source_options(given: dict[str, Any]) -> SourceOptions:
    """Take what concerns the sources out of `given`, where options have the names of their attributes."""
    from packer.sources.opening import SourceOptions

    return SourceOptions(**{held.name: given.pop(held.name) for held in fields(SourceOptions)})


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
