"""Runs the commands that README.md shows, and puts their output there; with --check, compares instead.

A block is run when `<!-- output -->` stands above it. Its first line is the command, behind `$ `.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"(<!-- output -->\n```\n)(.*?)(\n```)", re.DOTALL)
#: Seconds and rates differ from run to run; such lines are not shown.
TIMING = re.compile(r"^[\d.,]+ m?s, .*/s$")


def refreshed(text: str, data: Path) -> str:
    """The text with the output of every block made anew; `data` is what scripts/make_data.py makes."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "data").symlink_to(data.resolve())
        return BLOCK.sub(lambda block: block[1] + _run(block[2].split("\n")[0], Path(folder)) + block[3], text)


def _run(line: str, folder: Path) -> str:
    words = shlex.split(line.removeprefix("$ packer "))
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "packer.cli", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    shown = [kept for kept in done.stdout.rstrip().split("\n") if not TIMING.match(kept)]
    return "\n".join([line, *shown])


def main() -> int:
    """Writes README.md anew; with --check, exits 1 where it is not what the commands say."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", action="store_true", help="compare, and write nothing")
    checks = arguments.parse_args().check
    before = README.read_text()
    after = refreshed(before, ROOT / "data")
    if checks:
        if after != before:
            print("README.md shows other output than the commands give; run scripts/readme.py", file=sys.stderr)
        return int(after != before)
    README.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
