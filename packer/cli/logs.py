"""Logging on stderr, and the options that say how much of it there is."""

from __future__ import annotations

import functools
import logging
import platform
import time
from collections.abc import Callable
from typing import Any

import click

import packer
from packer.cli.text import printable

_log = logging.getLogger(__name__)

_LEVELS = {"quiet": logging.WARNING, "usual": logging.INFO, "verbose": logging.DEBUG}


def nothing_drawn() -> None:
    """Leave stderr as it is: there is nothing to take away."""


#: Takes away what is drawn on stderr before a line is written there; set by a bar while it is shown.
before_line: Callable[[], None] = nothing_drawn


class _Stderr(logging.Handler):
    """Writes to what stderr is at the time, `packer: ` before every line."""

    def emit(self, record: logging.LogRecord) -> None:
        mark = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        before_line()
        lines = map(printable, self.format(record).split("\n"))
        click.echo(f"packer: {mark}" + "\n".join(lines), err=True)


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --verbose and --quiet; the command itself does not see them."""

    @click.option(
        "-v",
        "--verbose",
        is_flag=True,
        help="Say more: versions, shards, times, and the traceback of an error that is a bug in packer.",
    )
    @click.option("-q", "--quiet", is_flag=True, help="Say nothing but warnings and errors.")
    @functools.wraps(command)
    def with_logging(verbose: bool, quiet: bool, **given: Any) -> Any:
        if verbose and quiet:
            raise click.UsageError("--verbose and --quiet exclude each other")
        set_up("verbose" if verbose else "quiet" if quiet else "usual")
        began = time.perf_counter()
        if verbose:
            _log.debug("version %s, Python %s, %s", packer.__version__, platform.python_version(), platform.platform())
        try:
            return command(**given)
        finally:
            _log.debug("ended after %.2f s", time.perf_counter() - began)

    return with_logging


def set_up(amount: str) -> None:
    """Send what the library logs to stderr: `quiet`, `usual` or `verbose`."""
    logger = logging.getLogger("packer")
    logger.handlers = [_Stderr()]
    logger.setLevel(_LEVELS[amount])


def is_quiet() -> bool:
    """Return whether the user wants to see neither progress nor summary."""
    return not logging.getLogger("packer").isEnabledFor(logging.INFO)


def say(*lines: str) -> None:
    """Print what a command has done, unless with --quiet."""
    if not is_quiet():
        click.echo("\n".join(lines))
