"""`packer split`: train, valid and test of a packed dataset, without packing it again."""

from __future__ import annotations

import click

from packer import split as verb
from packer.cli.logs import log_options, say
from packer.cli.options import pair_parser
from packer.cli.summary import split_lines
from packer.cli.text import count_text
from packer.packing import SPLIT

_RULE = f"{SPLIT}|CONDITION"


@click.command()
@click.argument("dataset", type=click.Path())
@click.argument("rules", nargs=-1, required=True, metavar=f"{_RULE}...", callback=pair_parser(_RULE, drops=True))
@click.option(
    "--by",
    type=click.Choice(["name", "folder"]),
    default="name",
    show_default=True,
    help="What fractions keep together: one sample, or all of a folder.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the random choice of samples for fractions.",
)
@log_options
def split(dataset: str, rules: dict[str, str], by: str, seed: int) -> None:
    """Share the samples of DATASET out into splits, which its manifest keeps. Nothing is packed again.

    FRACTION has a point (0.9, 1.0) and takes that part of the samples that are in no other split, the same ones on
    every machine. @FILE is a list with one name on each line, as in BasicSR's meta_info.txt, or one number if samples
    have no names. PATTERN takes all samples whose names match it. CONDITION is 'FIELD < NUMBER' (or <= > >= == !=) or
    'FIELD in A,B', where FIELD has one value a sample, or is the width, height or channels of images, or the length of
    arrays. Splits that are not named stay; NAME= drops one.
    PackedDataset(..., split=NAME) reads a split. DATASET may be a URL such as s3://bucket/set, but for a CONDITION.

    \b
    $ packer split div2k.packed train=0.9 valid=0.1
    $ packer split clips.packed test=@test.txt train=0.8 valid=0.2 --by folder
    $ packer split images.packed 'train=train/*' 'valid=val/*'
    $ packer split images.packed small='width < 512' rare='label in 3,7'
    """
    manifest = verb.split(dataset, {name: rule or None for name, rule in rules.items()}, by=by, seed=seed)
    samples = count_text(manifest.samples, "sample")
    say(f"{dataset}: {samples}" if manifest.splits else f"{dataset}: no splits", *split_lines(manifest))
