"""Breaks the code at random places, one at a time, and runs the tests that cover it: do they notice?

.venv/bin/python tests/soak/breaks.py --count 40 --seed 1

A copy of the repository is broken, never the repository. For each break, the tests named after its module run first,
then the test files that mention its names most often. A failure, a hang or a crash notices the break. An unnoticed
break shows a rule without a test, dead code, or a change without a visible effect (such as a size of blocks).
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
#: The code that is broken.
ROOMS = ("packer/format", "packer/codecs", "packer/packing", "packer/workers.py", "readers")
#: Tests that go through everything.
WIDE = (
    "tests/packer/test_every_kind.py",
    "tests/packer/test_killed.py",
    "tests/packer/test_mishaps.py",
    "tests/survival",
)
_TURNED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_MOVED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_DURABLE = {"fsync", "sync", "sync_folder", "rename", "replace", "hardlink_to", "unlink", "flush"}
_SECONDS = 1800  # limit of a set of tests; pytest ends a single test that hangs


class Break(NamedTuple):
    """A piece of a file, and its replacement."""

    what: str
    file: str
    line: int
    start: int
    stop: int
    text: str


def breaks_of(path: Path) -> Iterator[Break]:
    """Yield all places where a module can be broken."""
    source = path.read_bytes()
    begins = [0]
    for line in source.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))

    def at(node: ast.AST, what: str, text: str, start: int | None = None, stop: int | None = None) -> Break:
        first = begins[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        last = begins[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        file = str(path.relative_to(ROOT))
        return Break(what, file, node.lineno, first if start is None else start, last if stop is None else stop, text)  # type: ignore[attr-defined]

    for node in _reachable(ast.parse(source)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            right = node.comparators[0]
            start = begins[node.left.end_lineno - 1] + node.left.end_col_offset  # type: ignore[operator]
            stop = begins[right.lineno - 1] + right.col_offset
            between = source[start:stop].decode()
            operator = between.strip(" ()\n")
            for what, other in (("comparison turned", _TURNED), ("bound moved", _MOVED)):
                if operator in other:
                    yield at(node, what, between.replace(operator, other[operator]), start, stop)
        elif isinstance(node, (ast.If, ast.IfExp)):
            yield at(node.test, "branch dropped", "False")
        elif isinstance(node, ast.Constant) and type(node.value) in (int, bool):
            yield at(node, "constant changed", str(not node.value if isinstance(node.value, bool) else node.value + 1))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = node.value.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in _DURABLE:
                yield at(node, "sync, rename or the like left out", "pass")


def _reachable(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree, without annotations and code that only type checkers or other systems use."""
    yield node
    if isinstance(node, ast.If) and any(
        word in ast.dump(node.test) for word in ("TYPE_CHECKING", "platform", "__main__")
    ):
        return
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _reachable(child)


def tests_of(copy: Path, file: str, wide: bool) -> list[list[str]]:
    """Return the sets of tests that are run one after another until one fails.

    The tests named after the module; the eight files that mention its names most often; if `wide`, also those of its
    room, of the readers, and `WIDE`. They come from the copy, since the repository may change meanwhile.
    """
    module, package = Path(file), file.partition("/")[0]
    own = sorted((copy / "tests" / module.parent).glob(f"test_{module.stem}*.py"))
    defined = [node for node in ast.parse((copy / file).read_bytes()).body if hasattr(node, "name")]
    names = "|".join([module.stem, *(node.name for node in defined if not node.name.startswith("_"))])
    says = {
        path: len(re.findall(rf"\b({names})\b", path.read_text()))
        for path in (copy / "tests" / package).rglob("test_*.py")
    }
    most = [path for path in sorted(says, key=lambda path: -says[path])[:8] if path not in own]
    sets = [[str(path.relative_to(copy)) for path in paths] for paths in (own, most)]
    if wide:
        sets.append(list(dict.fromkeys([f"tests/{module.parent}", "tests/readers", *WIDE])))
    return [tests for tests in sets if tests]


def noticed(copy: Path, tests: list[str]) -> str | None:
    """Run tests in a copy; return pytest's line of the first failure, or None if all passed."""
    command = [str(ROOT / ".venv/bin/python"), "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", *tests]
    environment = os.environ | {"PYTHONPATH": str(copy), "CI": "1"}
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return "a hang"
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return None if done.returncode == 0 else (failed or [f"exit status {done.returncode}"])[0]


def main() -> None:
    """Break, test, restore; print each break and the test that noticed it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40, help="how many breaks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wide", action="store_true", help="run the tests that go through everything, too")
    arguments = parser.parse_args()
    rng, found = random.Random(arguments.seed), Counter[tuple[str, bool]]()
    files = [path for room in ROOMS for path in sorted([*(ROOT / room).rglob("*.py")] or [ROOT / room])]
    by_kind: dict[str, list[Break]] = {}
    for one in (one for path in files for one in breaks_of(path)):
        by_kind.setdefault(one.what, []).append(one)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv", "site", "data"))
        for shared in (".venv", "data"):
            (copy / shared).symlink_to((ROOT / shared).resolve())
        for number in range(arguments.count):
            one = rng.choice(by_kind[sorted(by_kind)[number % len(by_kind)]])
            path, source = copy / one.file, (copy / one.file).read_bytes()
            path.write_bytes(source[: one.start] + one.text.encode() + source[one.stop :])
            sets = tests_of(copy, one.file, arguments.wide)
            by = next((some for tests in sets if (some := noticed(copy, tests))), None)
            path.write_bytes(source)
            if by and "::" in by and noticed(copy, [by.partition(" ")[2].partition(" - ")[0]]):
                print(f"fails without a break, too: {by}")
                by = None
            found[one.what, by is not None] += 1
            was, by = " ".join(source[one.start : one.stop].decode().split()), by or "NOT NOTICED"
            print(f"{one.file}:{one.line}: {one.what}: {was[:60]} -> {one.text}: {by[:110]}", flush=True)
    for what in sorted(by_kind):
        print(f"{what}: {found[what, True]} of {found[what, True] + found[what, False]} noticed")
    sys.exit(sum(count for (_, was), count in found.items() if not was) > arguments.count // 10)


if __name__ == "__main__":
    main()
