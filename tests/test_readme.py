"""What README.md says is so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import readme

from packer.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text()
RECIPES = ROOT / "docs" / "recipes.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
BLOCKS = re.findall(r"```python\n(.*?)```", RECIPES.read_text(), re.DOTALL)


def test_the_output_shown_is_what_the_commands_print(demo_data: Path) -> None:
    """Every block marked as output is the output of its command."""
    assert readme.refreshed(TEXT, demo_data) == TEXT


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_its_line(command: str) -> None:
    """The table of commands names each of them."""
    assert f"| `packer {command}` |" in TEXT


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", RECIPES, ARCHITECTURE, ROOT / "docs" / "benchmark.md"], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link is to a file of the project."""
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_map_names_files_that_are_there() -> None:
    """Every path and every name of a module that the map of the house gives is one of the project."""
    text = ARCHITECTURE.read_text()
    named = re.findall(r"`((?:packer|readers|tests|docs|scripts)/[\w./*]*)`", text)
    assert len(named) > 30
    assert [path for path in named if not list(ROOT.glob(path.rstrip("/")))] == []
    rooms = {path.name for path in (ROOT / "packer").iterdir() if (path / "__init__.py").exists()}
    assert [room for room in rooms if f"| `packer/{room}/` |" not in text] == []


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_recipes_can_be_pasted(number: int) -> None:
    """A block imports every name that it uses, and what it imports of ours is there."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "E9,F", "-"]
    checked = subprocess.run(command, input=BLOCKS[number], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout
    ours = re.findall(r"^from (?:packer|readers).*", BLOCKS[number], re.MULTILINE)
    assert ours
    exec("\n".join(ours), {})


def test_every_extra_is_told_of() -> None:
    """The table of extras has those that can be installed, and no message names another."""
    section = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    extras = set(re.findall(r"^(\w+) = \[", section, re.MULTILINE))
    table = TEXT.partition("| extra | for |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table.splitlines()[2:]))) == extras
    for path in (ROOT / "packer").rglob("*.py"):
        named = re.findall(r"pip install '\.\[(\w+)\]'", path.read_text())
        assert set(named) <= extras, path
