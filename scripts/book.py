"""What MkDocs calls while it builds the book: pages that are made, not written.

The help of every command, the specification and the changelog stand elsewhere; here they become pages, and links to
them are led there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from mkdocs.structure.files import File, Files

from packer.cli import COMMANDS, main

ROOT = Path(__file__).resolve().parent.parent
#: The page that gets the help of every command; and pages that are copies: page of the book to file of the project.
COMMANDS_PAGE = "reference/commands.md"
COPIES = {"reference/format.md": "packer/format/FORMAT.md", "reference/changes.md": "CHANGELOG.md"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made."""
    for page, path in COPIES.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to copies, add the help of the commands, and leave out comments."""
    up = "../" * page.file.src_uri.count("/")
    for target, path in COPIES.items():
        markdown = re.sub(rf"\]\((?:\.\./)+{re.escape(path)}", f"]({up}{target}", markdown)
    if page.file.src_uri == COMMANDS_PAGE:
        markdown += helps()
    return re.sub(r"<!-- .*?-->\n", "", markdown, flags=re.DOTALL)


def helps() -> str:
    """Return what `packer --help` prints, and that of every command, each under its own heading."""
    parts = [""]
    for name in ["", *COMMANDS]:
        words = [name] if name else []
        text = CliRunner(env={"COLUMNS": "100"}).invoke(main, [*words, "--help"], prog_name="packer").stdout
        parts.append(f"## packer {name}".rstrip() + f"\n\n```text\n{text.rstrip()}\n```\n")
    return "\n".join(parts)
