"""A group of commands that are imported when they are called, and that end with one of our exit statuses."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

import click

from packer.cli.failures import report
from packer.cli.interruption import interruptible


class Program(click.Group):
    """A click group whose commands are named by module.

    Args:
        commands_by_name: module and one line of help of each command; the module holds it under the
            command's own name.
    """

    def __init__(self, *args: Any, commands_by_name: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._modules = commands_by_name

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._modules:
            return None
        module, _ = self._modules[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands without importing them, which would take half a second."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._modules.items()])

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Runs a command; where it fails, says why in one line and exits with its status."""
        run: Any = super().main
        if not standalone_mode:
            return run(*args, standalone_mode=False, **extra)
        try:
            with interruptible():
                status = run(*args, standalone_mode=False, **extra)
        except BaseException as error:
            status = report(error)
        sys.exit(status)
