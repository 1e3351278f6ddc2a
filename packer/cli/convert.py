"""`packer convert`: sources in, a packed dataset out."""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import click

from packer import convert as verb
from packer.cli.logs import Progress, log_options, say
from packer.cli.options import SourceCommand, conversion_options, sources_argument
from packer.cli.summary import summary, warn_of_skipped
from packer.cli.text import count_text
from packer.errors import SourceError
from packer.packing import ConvertOptions, check_place, executor_at, place_of
from packer.remote import is_url

_log = logging.getLogger(__name__)


@click.command(cls=SourceCommand)
@sources_argument(required=False)  # `_check_out` says more than click would
@click.argument("out", type=click.Path())
@conversion_options("codec", "shard_size", "map_limit", "like", "splits", "workers", "overwrite")
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Pack on a cluster: of Dask, as in tcp://host:8786; or of Ray, as in ray://host:10001, or ray for the cluster "
    "that this machine is part of.",
)
@click.option(
    "--part",
    metavar="I/N",
    help="Pack every N-th shard, from the I-th on, and publish nothing. Any number of parts may be packed at once, on "
    "any machines that see OUT. The same command without it packs what is missing, and publishes.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be made, as `packer plan` does, and make nothing.")
@log_options
def convert(
    sources: tuple[str, ...],
    out: str,
    options: ConvertOptions,
    scheduler: str | None,
    part: str | None,
    dry_run: bool,
) -> None:
    """Pack pictures, point clouds, arrays, tables or videos into the dataset OUT.

    A SOURCE is a folder, a file, a URL, or a quoted pattern such as 'clouds/*.ply': PNG, JPEG, TIFF, PLY, LAS, PCD,
    HDF5, NetCDF, zarr, .npy, NIfTI, CSV, parquet, tar, MP4, LeRobot, COCO and others. Files of several fields are
    paired by name: give FIELD=SOURCE for each. What is skipped is listed in OUT/left-out-*.jsonl. Stopped halfway?
    Run the same command again: finished shards are kept.

    \b
    $ packer convert lr=DIV2K/LR_x4 hr=DIV2K/HR div2k.packed
    $ packer convert lr=REDS/LR hr=REDS/HR reds.packed --samples folders
    $ packer convert imagenet/train train.packed --label folder --mode rgb
    $ packer convert scans/ scans.packed --codec bitshuffle --workers 8
    $ packer convert velodyne/ kitti.packed --columns x,y,z,intensity:float32
    $ packer convert image=images boxes=labels yolo.packed --missing boxes=empty
    $ packer convert image=train2017 boxes=annotations/instances_train2017.json coco.packed
    $ packer convert train.h5 train.packed --field x=/data --field y=/label
    """
    _check_out(sources, out)
    if dry_run:
        from packer.cli.plan import show_plan

        check_place(list(sources), place_of(out), options.overwrite)
        show_plan(sources, options, Path("out") if is_url(out) else Path(out), as_json=False)
        return
    if scheduler is not None and options.workers is not None:
        raise click.UsageError("--workers and --scheduler exclude each other: the cluster has its own workers")
    try:
        with nullcontext() if scheduler is None else executor_at(scheduler) as executor, Progress() as watcher:
            arguments = {"executor": executor, "watcher": watcher}
            if part is not None:
                _say_part(part, verb.convert_part(list(sources), out, part, options, **arguments))
                return
            report = verb.convert(list(sources), out, options, **arguments)
    except SourceError as error:
        if error.sample is not None and options.on_error == "stop":
            _log.warning("the same command skips bad samples with --on-error skip")
        raise
    warn_of_skipped(report.rejected, report.path, report.manifest)
    say(*summary(report))


def _say_part(part: str, report: verb.PartReport) -> None:
    if report.rejected:
        first = report.rejected[0]
        _log.warning(
            "%s skipped in this part; the first: %s: %s", f"{len(report.rejected):,}", first.file, first.reason
        )
    earlier = f", {report.kept_shards:,} of them before" if report.kept_shards else ""
    say(f"{report.path}: part {part}: {report.shards:,} of {report.of:,} shards are packed{earlier}")
    is_or_are = "is" if report.missing == 1 else "are"
    missing = f"{count_text(report.missing, 'shard')} {is_or_are} missing" if report.missing else "all shards are there"
    say(f"{missing}; the same command without --part publishes the dataset")


def _check_out(sources: Sequence[str], out: str) -> None:
    """Refuse a source in the place of OUT: the last source is there if OUT was forgotten.

    Raises:
        click.UsageError: there is nothing else, or it is `FIELD=PATH`, and something is at the path.
    """
    if not sources:
        raise click.UsageError(f"{out} is the only path; give the sources first, and then OUT, the folder to pack into")
    name, equals, path = out.partition("=")
    if not (name and equals and path) or os.sep in name:
        return
    if is_url(path) or Path(path).exists() or glob.glob(path):
        raise click.UsageError(
            f"OUT is missing: {out} is a source; name the folder to pack into after it (./{out} for one of that name)"
        )
