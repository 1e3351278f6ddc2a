"""Parts of commands that read a dataset: the option `--part`, and the summary of the joined reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from packer.cli.text import count_text
from packer.packing import JoinedParts


def part_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option `--part I/N`.

    Args:
        text: begins the help: what a part does.
    """
    text += (
        ", and write a report into DATASET. Any number of parts may run at once, on any machines that see it. The same "
        "command without --part does what is missing, and joins the reports: those of the last day, of shards that "
        "nobody has written since."
    )
    return click.option("--part", metavar="I/N", help=text)


def parts_text(joined: JoinedParts, shards: int, done: str) -> str:
    """Say how many shards were not read now, since the reports of parts cover them, and from when these are.

    Args:
        done: what the parts did with a shard, such as `checked`.
    """
    began, ended = (f"{time:%Y-%m-%d %H:%M}" if time else "" for time in (joined.began, joined.ended))
    parts = count_text(joined.parts, "part")
    count = f"{len(joined.results):,} of {count_text(shards, 'shard')}"
    return f"NOT read now: {count}, {done} by {parts} from {began} to {ended} UTC"


def parts_members(joined: JoinedParts) -> dict[str, Any]:
    """Return the same for machines."""
    return {
        "parts": joined.parts,
        "shards": len(joined.results),
        "began": joined.began,
        "ended": joined.ended,
    }
