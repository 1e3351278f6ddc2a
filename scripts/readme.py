"""Run what README.md and the pages of docs/ show, from top to bottom, and put the output there. Tests compare.

Every page is run in an empty folder of its own; `data` in it is the folder that scripts/make_data.py makes.

    ```console              a line after `$ ` is a command, the lines below it are what it prints
    ```python               code; the blocks of a page share their names
    ```text                 right below a block of Python: what that prints
    <!-- run console        commands (or with `python`, code) that readers do not see, such as those that
    ...-->                  make the files a page is about

A comment above a block says more. `<!-- fails -->`: it ends with an error, which is shown. `<!-- varies -->`: it prints
something else each time; the output is not compared, and made anew only if the page is named. `<!-- not run: WHY -->`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner

from packer.cli import main as packer

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?P<hidden><!-- run (?P<in_hidden>console|python)\n(?P<unseen>.*?)-->)"
    r"|(?P<head>(?:<!-- (?P<note>fails|varies|fails, varies|not run: [^\n]*) -->\n)?"
    r"```(?P<kind>console|python)\n)(?P<code>.*?)```\n"
    r"(?P<between>\n?```text\n.*?```\n)?",
    re.DOTALL,
)
#: Seconds and rates differ from run to run; such lines are not shown.
TIMING = re.compile(r"^[\d.,]+ m?s(, .*/s)?$")
#: What the folder of a page is called in its output.
HOME = "/home/me"


class PageError(Exception):
    """A block did not do what its page says."""


def refreshed(text: str, data: Path, keep: bool = True) -> str:
    """Return the text of a page with the output of every block made anew.

    Args:
        data: the folder that scripts/make_data.py makes.
        keep: leave output that varies as it is.

    Raises:
        PageError: a block fails that should not, or does not fail that should.
    """
    names: dict[str, Any] = {"__name__": "__page__"}
    with tempfile.TemporaryDirectory() as place, _inside(Path(place), data):
        return BLOCK.sub(lambda block: _rerun(block, names, keep), text)


@contextlib.contextmanager
def _inside(folder: Path, data: Path) -> Iterator[None]:
    """Work in the folder, with `packer` among the commands."""
    (folder / "data").symlink_to(data.resolve())
    commands = folder / ".commands"
    commands.mkdir()
    for name, start in (("packer", f'"{sys.executable}" -m packer.cli'), ("python", f'"{sys.executable}"')):
        (commands / name).write_text(f'#!/bin/sh\nexec {start} "$@"\n')
        (commands / name).chmod(0o755)
    path, modules = os.environ["PATH"], os.environ.get("PYTHONPATH", "")
    set_here = {"PATH": f"{commands}:{path}", "PYTHONPATH": f"{ROOT}:{modules}", "COLUMNS": "100"}
    before = Path.cwd()
    os.chdir(folder)
    try:
        with patch.dict(os.environ, set_here):
            yield
    finally:
        os.chdir(before)


def _rerun(block: re.Match[str], names: dict[str, Any], keep: bool) -> str:
    note = block["note"] or ""
    if note.startswith("not run"):
        return block[0]
    if block["hidden"]:
        _run(block["in_hidden"], block["unseen"], names)
        return block[0]
    printed = _run(block["kind"], block["code"], names, fails="fails" in note)
    if keep and note.endswith("varies"):
        return block[0]
    if block["kind"] == "console":
        return f"{block['head']}{printed}```\n"
    if bool(printed) != bool(block["between"]):
        raise PageError(f"this prints {printed!r}, which needs a block of text below it:\n{block['code']}")
    gap = block["between"].partition("```")[0] if printed else ""
    return f"{block['head']}{block['code']}```\n" + (f"{gap}```text\n{printed}```\n" if printed else "")


def _run(kind: str, code: str, names: dict[str, Any], fails: bool = False) -> str:
    """Return what a block prints; for one of commands, the commands as well."""
    if kind == "python":
        return _without_place(_python(code, names, fails))
    commands = [line for line in re.sub(r"\\\n", "\\\\\0", code).split("\n") if line.startswith("$ ")]
    outputs = []
    for number, line in enumerate(commands):
        line = line.replace("\0", "\n")
        outputs.append(f"{line}\n{_without_place(_command(line[2:], fails and number == len(commands) - 1))}")
    return "".join(outputs)


def _command(line: str, fails: bool) -> str:
    if line.startswith("packer ") and not set(re.sub("'[^']*'", "", line)) & set("|;&>*$"):
        # In this process: starting one takes longer than most of these commands.
        printed = io.StringIO()  # as in `_python`
        with patch.multiple("click.utils", _default_text_stdout=lambda: printed, _default_text_stderr=lambda: printed):
            run = CliRunner().invoke(packer, shlex.split(line)[1:], prog_name="packer")
        status, output = run.exit_code, printed.getvalue() + run.output  # the rest are errors of click itself
    else:
        done = subprocess.run(
            ["bash", "-c", line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        status, output = done.returncode, done.stdout
    if bool(status) != fails:
        raise PageError(f"{line}: exit status {status}\n{output}")
    shown = [kept for kept in output.rstrip().split("\n") if not TIMING.match(kept)]
    return "\n".join(shown).rstrip() + "\n" if any(shown) else ""


def _python(code: str, names: dict[str, Any], fails: bool) -> str:
    printed = io.StringIO()
    names["print"] = partial(print, file=printed)  # what a library leaves behind may put sys.stdout back meanwhile
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "<page>", "exec"), names)
    except Exception as error:
        if not fails:
            raise PageError(f"{error!r} in\n{code}") from error
        return printed.getvalue() + "".join(traceback.format_exception_only(error))
    if fails:
        raise PageError(f"this should fail:\n{code}")
    return printed.getvalue()


def _without_place(text: str) -> str:
    return text.replace(str(Path.cwd()), HOME)


def main() -> int:
    """Write the pages anew; return 1 if a block of one does not do what the page says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, help="default: all")
    arguments = parser.parse_args()
    failed = 0
    for page in [page.resolve() for page in arguments.pages] or PAGES:
        try:
            page.write_text(refreshed(page.read_text(), ROOT / "data", keep=not arguments.pages))
        except PageError as error:
            print(f"{page.relative_to(ROOT)}: {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
