"""Imports run one way, and heavy packages are loaded only where they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("packer", "readers")
    for path in sorted((ROOT / package).rglob("*.py"))
}


def statements(path, top_level):
    """Import statements of a file; those within functions too, unless `top_level`."""
    tree = ast.parse(path.read_text())
    blocks = [tree, *(node for node in tree.body if isinstance(node, ast.If))]  # `if TYPE_CHECKING` too
    nodes = [node for block in blocks for node in block.body] if top_level else ast.walk(tree)
    return [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]


def imported(path, top_level=False):
    """Modules that a file imports, as `from a import b` with `a.b` where that is a module."""
    found = set()
    for node in statements(path, top_level):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        else:
            assert not node.level, f"{path}: a relative import"
            found |= {
                f"{node.module}.{n.name}" if f"{node.module}.{n.name}" in MODULES else node.module for n in node.names
            }
    return found


def within(module, *packages):
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def layer(*packages, without=()):
    return [pytest.param(m, id=m) for m in MODULES if within(m, *packages) and not within(m, *without)]


def ours(module):
    return {name for name in imported(MODULES[module]) if within(name, "packer", "readers")}


def test_errors_import_nothing():
    """Everything may import the errors, so they import nothing."""
    assert imported(MODULES["packer.errors"]) == {"__future__"}


FORMAT = ("packer.errors", "packer.format", "packer.codecs")
STORED = (*FORMAT, "packer.remote")


@pytest.mark.parametrize("module", layer("packer.format", "packer.codecs"))
def test_format_and_codecs_know_errors_alone(module):
    """What a dataset is does not depend on how it is made or read."""
    assert all(within(name, *FORMAT) for name in ours(module))


@pytest.mark.parametrize("module", layer("packer.remote"))
def test_remote_knows_the_format_alone(module):
    """Fetching files knows neither sources nor packing."""
    assert all(within(name, *STORED) for name in ours(module))


@pytest.mark.parametrize("module", layer("packer.sources"))
def test_sources_know_the_format_alone(module):
    """Sources know neither plan nor writer."""
    assert all(within(name, *STORED, "packer.workers", "packer.sources") for name in ours(module))


def test_workers_know_the_errors_alone():
    """Running a function in processes of our own needs neither sources nor packing, which both do it."""
    assert ours("packer.workers") == {"packer.errors"}


@pytest.mark.parametrize("module", layer("packer", without=["packer.cli"]))
def test_the_library_knows_neither_readers_nor_terminal(module):
    """Outside of the command line nothing of packer imports it, readers, torch or click."""
    heavy = ("packer.cli", "readers", "torch", "click")
    assert not [name for name in imported(MODULES[module]) if within(name, *heavy)]


@pytest.mark.parametrize("module", layer("readers"))
def test_readers_know_the_format_alone(module):
    """Reading depends on no part of converting."""
    assert all(within(name, *STORED, "readers") for name in ours(module))
    assert not [name for name in imported(MODULES[module]) if within(name, "click", "h5py", "PIL", "plyfile")]


def test_what_is_gpl_is_imported_in_one_place():
    """plyfile writes the files of an export to PLY, and is imported by that function alone."""
    found = [module for module, path in MODULES.items() if any(within(n, "plyfile") for n in imported(path))]
    assert found == ["packer.export.ply"]
    assert not any(within(n, "plyfile") for n in imported(MODULES["packer.export.ply"], top_level=True))


@pytest.mark.parametrize("module", layer("packer.sources", "packer.packing", "packer.checking", "packer.export"))
def test_rooms_know_no_verb(module):
    """A verb, a module at packer's root, is a recipe of what rooms do; none of them calls for it."""
    verbs = {m for m, path in MODULES.items() if path.parent == ROOT / "packer"}
    verbs -= {"packer", "packer.errors", "packer.workers"}
    assert not ours(module) & verbs


def test_there_are_no_cycles():
    """No module imports, by way of others, itself, and none does for the names of types."""
    graph = {m: {n for n in imported(path, top_level=True) if n in MODULES} - {"packer"} for m, path in MODULES.items()}
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        (["packer.cli.main"], "numpy torch h5py PIL plyfile lmdb numcodecs msgspec"),
        ([m for m in MODULES if within(m, "packer.format", "packer.codecs")], "torch click h5py PIL plyfile"),
        (["packer.convert", "packer.writer"], "torch click h5py PIL plyfile"),
        (["readers"], "click h5py PIL plyfile lmdb"),
    ],
    ids=["packer --help", "packer.format", "packer.convert", "readers"],
)
def test_what_an_import_loads(modules, absent):
    """A fresh process that imports these modules has loaded none of the heavy ones."""
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert not set(absent.split()) & set(result.stdout.split())
