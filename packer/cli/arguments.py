"""Arguments that several commands share: the sources, where they stand on the line, and their completion in a shell."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

Command = Callable[..., Any]

#: Paths that a shell is told of behind FIELD=.
_MOST = 1000


def sources_argument(command: Command) -> Command:
    """The sources, before anything else on the line."""
    return _sources(required=True, metavar="[FIELD=]SOURCE...")(command)


def sources_before_out(command: Command) -> Command:
    """The sources and OUT behind them; `check_out` says which of them is missing."""
    return _sources(metavar="[FIELD=]SOURCE...")(click.argument("out", type=click.Path())(command))


def more_sources_argument(command: Command) -> Command:
    """The sources of a dataset that is named before them, where they are needed."""
    return _sources(metavar="[[FIELD=]SOURCE...]")(command)


def _sources(**said: Any) -> Callable[[Command], Command]:
    return click.argument("sources", nargs=-1, shell_complete=_complete, **said)


def check_out(sources: Sequence[str], out: str) -> None:
    """Refuses a source in the place of OUT: the last one stands there where OUT was forgotten.

    Raises:
        click.UsageError: there is nothing else, or it is `FIELD=PATH`, and something is at the path.
    """
    from packer.remote.urls import is_url

    if not sources:
        raise click.UsageError(f"{out} stands alone; name the sources, and behind them OUT, the folder to pack into")
    name, equals, path = out.partition("=")
    if not (name and equals and path) or os.sep in name:
        return
    if is_url(path) or Path(path).exists() or glob.glob(path):
        raise click.UsageError(
            f"OUT is missing: {out} is a source; name the folder to pack into behind it (./{out} for one of that name)"
        )


@contextmanager
def dataset_first(usage: str) -> Iterator[None]:
    """Where the dataset is none, says in which order the arguments stand: sources may have been named before it.

    Raises:
        NoDatasetError: what was raised within, with `usage`.
    """
    from packer.errors import NoDatasetError

    try:
        yield
    except NoDatasetError as error:
        raise NoDatasetError(f"{error}; DATASET stands before its sources: `{usage}`") from None


def _complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Paths, also behind `FIELD=`: bash takes that off by itself, other shells take it for a part of the path."""
    name, equals, begun = incomplete.partition("=")
    if not (name and equals) or os.sep in name:
        return [CompletionItem(incomplete, type="file")]
    found = sorted(glob.glob(glob.escape(begun) + "*"))[:_MOST]
    return [CompletionItem(f"{name}={path}{os.sep * Path(path).is_dir()}") for path in found]
