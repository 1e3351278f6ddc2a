"""What README.md says is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import readme

from packer.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text()


def test_the_output_shown_is_what_the_commands_print(demo_data: Path) -> None:
    """Every block marked as output is the output of its command."""
    assert readme.refreshed(TEXT, demo_data) == TEXT


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_its_line(command: str) -> None:
    """The table of commands names each of them."""
    assert f"| `packer {command}` |" in TEXT


def test_links_lead_somewhere() -> None:
    """Every relative link is to a file of the project."""
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (ROOT / target).exists(), target
