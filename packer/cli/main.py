"""Holds `packer` itself: which commands there are, and how they end. Loads click and the standard library alone."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import io
import logging
import os
import signal
import sys
import traceback
from types import FrameType
from typing import Any, NoReturn

import click

import packer
from packer.errors import PackerError, printable

#: Name and one line of help of every command, by heading. The module of its name is imported when it is called.
GROUPS = {
    "Make": {
        "convert": "Pack pictures, point clouds, arrays, tables or videos into a dataset.",
        "plan": "Say what convert would make, before anything is written.",
        "codecs": "Try every codec on some samples of the sources.",
    },
    "Look": {
        "info": "Say what a packed dataset holds.",
        "show": "Draw samples on a page for a browser.",
        "stats": "Say minimum, maximum, mean and deviation of each field and channel.",
        "verify": "Check every byte of a packed dataset, and say what is damaged.",
        "bench": "Measure how many samples a second are read on this machine.",
        "doctor": "Recommend settings for this machine, and warn of bottlenecks.",
        "warm": "Put a dataset into memory before it is read.",
    },
    "Change": {
        "append": "Pack more samples after those of a dataset.",
        "join": "Add fields to the samples of a dataset.",
        "drop": "Remove fields of a dataset.",
        "merge": "Make one dataset of several, without packing again.",
        "split": "Share the samples of a dataset out into splits.",
        "repack": "Pack a dataset with another codec, shard size or order.",
        "repair": "Repair a damaged dataset, and leave the rest as it is.",
        "export": "Write the samples of a dataset as files again.",
    },
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}
#: How the system and its loader of modules say that there is no memory.
_NO_MEMORY = ("Cannot allocate memory", "failed to map segment")
#: Exit statuses of a command that was stopped: 128 and the number of the signal, as shells have it.
_CTRL_C, _STOPPED = 128 + signal.SIGINT, (128 + signal.SIGINT, 128 + signal.SIGTERM)


class Program(click.Group):
    """A click group whose commands are imported when they are called."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the help if there are no arguments, and exit with 2: wrong usage."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"packer.cli.{cmd_name}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of this name; an unknown name is an error that suggests similar ones."""
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            from difflib import get_close_matches

            if alike := get_close_matches(args[0], COMMANDS):
                ctx.fail(f"No such command {args[0]!r}; did you mean {' or '.join(alike)}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them, which would take half a second."""
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:7}", text) for name, text in commands.items()])

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run a command; if it fails, say why in one line and exit with its status."""
        run: Any = super().main
        if not standalone_mode:
            return run(*args, standalone_mode=False, **extra)
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            if getattr(sys, name) is None:  # closed: the next opened file would get its number
                setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123
        if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
            sys.stdout.reconfigure(errors="backslashreplace")  # what an old character set lacks, as on stderr
        try:
            status = run(*args, standalone_mode=False, **extra)
        except BaseException as error:
            status = report(error)
        sys.exit(status)


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(packer.__version__, message="packer %(version)s")
def main() -> None:
    """Turn pictures, point clouds, arrays, tables and videos into datasets that PyTorch reads at the speed of memory.

    \b
    $ packer plan lr=DIV2K/LR_x4 hr=DIV2K/HR
    $ packer convert lr=DIV2K/LR_x4 hr=DIV2K/HR div2k.packed
    $ packer show div2k.packed -o page.html
    $ packer bench div2k.packed

    `packer COMMAND --help` explains one command. Training programs read the dataset like this:

    \b
    from readers import Loader, PackedDataset
    for batch in Loader(PackedDataset("div2k.packed"), 16, shuffle=True): ...
    """


def run() -> NoReturn:
    """Run `packer` as a program: SIGTERM stops it as Ctrl-C does, and the process ends as soon as the command has.

    Python takes some 50 ms to shut down. A kill in these 50 ms would make a finished append look like a failed one.
    Functions registered with atexit are called: numcodecs holds a semaphore, which Python 3.14 would miss.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as in the background of a shell script
            signal.signal(number, _stop)
    try:
        main(prog_name="packer")
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # `click.echo` flushes: it has written everything, or raised
            stream.flush()
    os._exit(status)


def _stop(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def report(error: BaseException) -> int | str | None:
    """Say on stderr why a command failed or was stopped; return the exit status."""
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        error = SystemExit(_CTRL_C)
    if isinstance(error, SystemExit):
        if error.code in _STOPPED:
            _say("packer: stopped; run the same command again to go on")
        return error.code
    text, status = str(error), 1
    if isinstance(error, click.ClickException):
        text, status = error.format_message().rstrip("."), error.exit_code
        if isinstance(error, click.UsageError) and error.ctx is not None:
            text += f" (see `{error.ctx.command_path} --help`)"
    elif isinstance(error, PackerError):
        status = error.exit_status
    elif isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY):
        text = "out of memory: allow this process more (`ulimit -v`), or use fewer --workers or a smaller --shard-size"
    elif "can't start new thread" in text:
        text = "the system starts no more threads: allow more processes (`ulimit -u`) or more memory (`ulimit -v`)"
    elif isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith(("packer", "readers")):
        package = error.name.partition(".")[0]
        text, status = f"this command needs the package {package}, which is not installed: pip install {package}", 2
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        if logging.getLogger("packer").isEnabledFor(logging.DEBUG):
            _say("".join(traceback.format_exception(error)).rstrip())
        problem = f"{type(error).__name__}: {error}".rstrip(": ")
        text = f"{problem} (this should not happen; please report it with what --verbose shows)"
    _say("packer: error: " + "\n".join(map(printable, text.rstrip().split("\n"))))
    return status


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # stderr is closed
        click.echo(text, err=True)
