"""Hooks that MkDocs calls while it builds the book: pages that are made, not written.

The help of every command, the specification and the changelog stand elsewhere; here they become pages, and links to
them lead to these pages. Next to every page lies its Markdown, and `llms.txt` lists these files, for programs.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation

from packer.cli import COMMANDS, main

ROOT = Path(__file__).resolve().parent.parent
#: The page that gets the help of every command; and pages that are copies: page of the book to file of the project.
COMMANDS_PAGE = "reference/commands.md"
COPIES = {
    "reference/format.md": "packer/format/FORMAT.md",
    "reference/changes.md": "CHANGELOG.md",
    "reference/security.md": "SECURITY.md",
}

#: The Markdown of the pages as they are built, by file; and the contents of the book, in order.
MARKDOWN: dict[str, str] = {}
CONTENTS: list[Any] = []


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
    MARKDOWN[page.file.src_uri] = markdown = re.sub(r"<!-- .*?-->\n", "", markdown, flags=re.DOTALL)
    return markdown


def on_nav(nav: Navigation, **_: Any) -> None:
    """Note the order of the pages."""
    CONTENTS[:] = nav.items


def on_post_build(config: Any, **_: Any) -> None:
    """Write the Markdown of each page next to it, and the list of these files."""
    for page, markdown in MARKDOWN.items():
        text = re.sub(r"^::: (\S+)\n(?: {4}.*\n)*", lambda name: documented(name[1]), markdown, flags=re.MULTILINE)
        (Path(config.site_dir) / page).write_text(text)
    lines = [f"# {config.site_name}\n", f"> {config.site_description}\n", "## Pages\n"]
    for item in sorted(CONTENTS, key=lambda item: item.is_section):  # pages of no section come first
        lines += [f"\n## {item.title}\n"] if item.is_section else []
        lines += [f"- [{page.title}]({page.file.src_uri})" for page in item.children or [item]]
    (Path(config.site_dir) / "llms.txt").write_text("\n".join(lines) + "\n")


def documented(name: str) -> str:
    """Return the signature and docstring of a public name, and those of its own public methods."""
    thing = pkgutil.resolve_name(name)
    parts = [f"## {name}\n\n```python\n{name}{inspect.signature(thing)}\n```\n\n{inspect.getdoc(thing)}\n"]
    for member, value in vars(thing).items() if inspect.isclass(thing) else ():
        if not member.startswith("_") and callable(value) and inspect.getdoc(value):
            parts.append(f"### {member}{inspect.signature(value)}\n\n{inspect.getdoc(value)}\n")
    return "\n".join(parts)


def helps() -> str:
    """Return what `packer --help` prints, and that of every command, each under its own heading."""
    parts = [""]
    for name in ["", *COMMANDS]:
        words = [name] if name else []
        text = CliRunner(env={"COLUMNS": "100"}).invoke(main, [*words, "--help"], prog_name="packer").stdout
        parts.append(f"## packer {name}".rstrip() + f"\n\n```text\n{text.rstrip()}\n```\n")
    return "\n".join(parts)
