"""Writes down the public interface: `python tests/helpers/public.py`, to be run after an intended change.

`tests/public/help/COMMAND.txt` holds the output of `packer COMMAND --help`, `python.txt` the public Python names,
`json.txt` the members of what commands print with `--json`.
`tests/test_public.py` compares; git then shows the differences that users will notice.
"""

from __future__ import annotations

import inspect
import json
import pkgutil
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

import readers
from packer.cli import COMMANDS, main

#: The public names of packer: its verbs, and what they take.
VERBS = (
    *("packer.convert.convert", "packer.convert.ConvertOptions", "packer.split.split", "packer.watcher.Watcher"),
    *("packer.writer.DatasetWriter", "packer.append.append", "packer.drop.drop", "packer.export.export"),
    *("packer.export.ExportOptions", "packer.join.join", "packer.merge.merge", "packer.repack.repack"),
    *("packer.repair.repair", "packer.stats.statistics", "packer.verify.verify", "packer.warm.warm"),
)

#: Commands that have `--json`, on a dataset of names and a split that is made of FIELD.npy.
WITH_JSON = (
    *("plan FIELD=FIELD.npy --split SPLIT=1.0", "codecs FIELD=FIELD.npy", "info DATASET", "doctor DATASET"),
    *("stats DATASET", "stats DATASET --part 1/1", "verify DATASET", "verify DATASET --part 1/1"),
    *("verify DATASET --against FIELD=FIELD.npy", "bench DATASET --seconds 0.01 --workers 0 --batch-size 2"),
)

FOLDER = Path(__file__).resolve().parent.parent / "public"


def texts() -> dict[str, str]:
    """Return the text of every file of FOLDER, by its path in FOLDER."""
    helps = {f"help/{name}.txt": help_text([name]) for name in COMMANDS}
    return {"help/packer.txt": help_text([]), **helps, "python.txt": python_text(), "json.txt": json_members()}


def help_text(command: list[str]) -> str:
    """Return what `packer COMMAND --help` prints on a terminal of 80 columns."""
    return CliRunner(env={"COLUMNS": "80"}).invoke(main, [*command, "--help"], prog_name="packer").stdout


def python_text() -> str:
    """Return the public Python names, one a line; callables with parameters and defaults."""
    return "".join(line + "\n" for path, thing in things().items() for line in _lines(path, thing))


def things() -> dict[str, Any]:
    """Return the public classes and functions by their paths: what `readers` lists, and VERBS."""
    own = {f"readers.{name}": getattr(readers, name) for name in sorted(readers.__all__)}
    return own | {path: pkgutil.resolve_name(":".join(path.rsplit(".", 1))) for path in VERBS}


def json_members() -> str:
    """Return the members of what every command of WITH_JSON prints, one a line; `[]` stands for all items of a list."""
    with tempfile.TemporaryDirectory() as folder:
        dataset, source = f"{folder}/dataset", f"{folder}/FIELD.npy"
        np.save(source, np.arange(24, dtype=np.float32).reshape(8, 3))
        _run(["convert", f"FIELD={source}", dataset, "--split", "SPLIT=1.0", "--workers", "0", "--quiet"])
        lines = []
        for command in WITH_JSON:
            words = command.replace("DATASET", dataset).replace("FIELD.npy", source).split()
            found = json.loads(_run([*words, "--json", "--quiet"]))
            lines += [f"{command}: {member}\n" for member in dict.fromkeys(_members(found))]
    return re.sub(r"\.[0-9a-f]{8}$", ".RUN", "".join(lines), flags=re.MULTILINE)


def _run(command: list[str]) -> str:
    return CliRunner().invoke(main, command, catch_exceptions=False).stdout


def _members(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict) and value:
        for name, member in value.items():
            yield from _members(member, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        for item in value:
            yield from _members(item, f"{path}[]")
    else:
        yield path


def _lines(path: str, thing: Any) -> list[str]:
    lines = [_signature(path, thing)]
    for name in sorted(name for name in dir(thing) if inspect.isclass(thing) and not name.startswith("_")):
        member = inspect.getattr_static(thing, name)
        function = getattr(member, "__func__", member)
        lines.append(_signature(f"{path}.{name}", function) if inspect.isfunction(function) else f"{path}.{name}")
    return lines


def _signature(path: str, function: Callable[..., Any]) -> str:
    """Return names, order and defaults of the parameters; types are mypy's business."""
    found = inspect.signature(function)
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in found.parameters.values()]
    text = str(found.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    return path + re.sub(r"<function (\w+) at 0x\w+>", r"\1", text)


if __name__ == "__main__":
    for path, text in texts().items():
        (FOLDER / path).write_text(text)
