"""Imports run one way and through the doors of rooms, and heavy packages are loaded only where they are used."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("packer", "readers")
    for path in sorted((ROOT / package).rglob("*.py"))
}


@functools.cache
def statements(path, top_level=False):
    """Import statements of a file; those within functions too, unless `top_level`."""
    tree = ast.parse(path.read_text())
    blocks = [tree, *(node for node in tree.body if isinstance(node, ast.If))]  # `if TYPE_CHECKING` too
    nodes = [node for block in blocks for node in block.body] if top_level else ast.walk(tree)
    return [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]


@functools.cache
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
    """The modules of these packages, with what each imports."""
    return {m: imported(path) for m, path in MODULES.items() if within(m, *packages) and not within(m, *without)}


def beyond(modules, *known):
    """Which of some modules import another of ours than those of the packages `known`: 'module imports other'."""
    return [
        f"{module} imports {name}"
        for module, names in modules.items()
        for name in names
        if within(name, "packer", "readers") and not within(name, *known)
    ]


def of(modules, *packages):
    """Which of some modules import one of these packages."""
    return [
        f"{module} imports {name}" for module, names in modules.items() for name in names if within(name, *packages)
    ]


@pytest.mark.parametrize("room", ["packing", "remote"])
def test_a_list_of_modules_names_them_all(room):
    """Where a room says what its modules are for, it says so of each."""
    folder = ROOT / "packer" / room
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()), clean=False)
    assert sorted(re.findall(r"^    (\w+) {2,}", text, re.MULTILINE)) == sorted(
        path.stem for path in folder.glob("[!_]*.py")
    )


# ---------------------------------------------------------------- doors


def listed(path):
    """The names in `__all__` of a file."""
    lists = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign)]
    return next((set(ast.literal_eval(node.value)) for node in lists if node.targets[0].id == "__all__"), set())


#: The interface of each room, which its `__all__` lists. `packer` itself is none: each of its modules is a public verb.
ROOMS = {m: listed(path) for m, path in MODULES.items() if path.name == "__init__.py" and m != "packer"}
#: The package that each file belongs to; a test belongs to the one that its folder mirrors.
OWNER = {path: module if path.name == "__init__.py" else module.rpartition(".")[0] for module, path in MODULES.items()}
for folder in ("tests", "scripts"):
    for path in sorted((ROOT / folder).rglob("*.py")):
        OWNER[path] = ".".join(path.relative_to(ROOT / folder).parent.parts)


def entered(path):
    """What a file imports of rooms that it does not lie in: (room, module or room, name or None, line)."""
    for node in statements(path):
        for name in node.names:
            module, taken = (name.name, None) if isinstance(node, ast.Import) else (node.module, name.name)
            room = max((room for room in ROOMS if within(module, room)), default=None)
            if room is not None and not within(OWNER[path], room):
                yield room, module, taken, node.lineno


def test_every_room_lists_its_interface():
    """Each has an `__all__`; the names in it are there."""
    for room, names in ROOMS.items():
        assert names, f"{room} has no __all__"
        offered = importlib.import_module(room)
        assert not [name for name in names if not hasattr(offered, name)]


def test_rooms_are_entered_by_their_door():
    """Of another room a file imports the names in its `__all__` alone; of its own, and of those around it, any."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name} of {module}; take it from {room}, whose __all__ lists it"
        for path in OWNER
        for room, module, name, line in entered(path)
        if module != room or not (name is None or name in ROOMS[room])
    ]
    assert not wrong, "\n".join(wrong)


# ---------------------------------------------------------------- one way


def test_errors_import_nothing():
    """Everything may import the errors, so they import nothing."""
    assert imported(MODULES["packer.errors"]) == {"__future__"}


CODECS = ("packer.errors", "packer.codecs")
FORMAT = (*CODECS, "packer.format")
STORED = (*FORMAT, "packer.watcher", "packer.remote")


@pytest.mark.parametrize(
    ("room", "known"),
    [
        ("packer.watcher", ["packer.errors"]),
        ("packer.machine", []),
        ("packer.threads", []),
        ("packer.workers", ["packer.errors", "packer.machine"]),
        ("packer.codecs", CODECS),
        ("packer.format", FORMAT),
        ("packer.remote", STORED),
        ("packer.sources", [*STORED, "packer.threads", "packer.workers", "packer.sources"]),
        ("readers", [*STORED, "packer.machine", "readers"]),
    ],
)
def test_rooms_know_what_lies_below_them_alone(room, known):
    """What a dataset is depends neither on how it is made nor on how it is read; sources know no plan and no writer."""
    assert not beyond(layer(room), *known)


def test_the_library_knows_neither_readers_nor_terminal():
    """Outside of the command line nothing of packer imports it, readers, torch or click."""
    assert not of(layer("packer", without=["packer.cli"]), "packer.cli", "readers", "torch", "click")


def test_readers_know_no_files_of_others():
    """Reading needs neither a terminal nor what reads the files of sources."""
    assert not of(layer("readers"), "click", "h5py", "PIL", "plyfile")


def test_gpl_is_imported_in_one_place():
    """plyfile writes the files of an export to PLY, and is imported by that function alone."""
    assert of(layer("packer", "readers"), "plyfile") == ["packer.export.ply imports plyfile"]
    assert not any(within(n, "plyfile") for n in imported(MODULES["packer.export.ply"], top_level=True))


def test_the_library_of_lmdb_writes_alone():
    """Shards and names are read without it: after a fork, or of a damaged file, it can crash the process."""
    assert of(layer("packer", "readers"), "lmdb") == [
        "packer.export.basicsr imports lmdb",
        "packer.format.lmdb_appender imports lmdb",
        "packer.format.sync imports lmdb",
    ]


def test_rooms_know_no_verb():
    """A verb, a module at packer's root, is a recipe of what rooms do; none of them calls for it."""
    verbs = {m for m, path in MODULES.items() if path.parent == ROOT / "packer"}
    verbs -= {"packer", "packer.errors", "packer.machine", "packer.threads", "packer.watcher", "packer.workers"}
    assert not of(layer("packer.sources", "packer.packing", "packer.checking", "packer.export"), *verbs)


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
        (["readers"], "click h5py PIL plyfile"),
    ],
    ids=["packer --help", "packer.format", "packer.convert", "readers"],
)
def test_what_an_import_loads(modules, absent):
    """A fresh process that imports these modules has loaded none of the heavy ones."""
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    assert not set(absent.split()) & set(result.stdout.split())


def test_what_a_conversion_of_images_loads(tmp_path):
    """It loads nothing that reads other files, neither packages nor our own kinds, and looks at no other packages."""
    (tmp_path / "in").mkdir()
    for name in "ab":
        Image.new("RGB", (4, 3)).save(tmp_path / "in" / f"{name}.png")
    code = (
        "import sys, importlib.metadata as m; real = m.entry_points\n"
        "def entry_points(**asked): assert asked.get('group') != 'packer.kinds'; return real(**asked)\n"
        "m.entry_points = entry_points; from packer.cli.main import main\n"
        "main(sys.argv[1:], standalone_mode=False); print(*sys.modules)"
    )
    command = ["convert", str(tmp_path / "in"), str(tmp_path / "out"), "--workers", "0"]
    result = subprocess.run(
        [sys.executable, "-c", code, *command], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    loaded = set(result.stdout.split())
    packages = "pyarrow av tifffile h5py zarr scipy numba torch nibabel laspy natsort asyncio fsspec obstore"
    assert not set(packages.split()) & loaded
    kinds = "arrays.kind ply.kind nifti flow tables tars coco yolo voc video lerobot"
    assert not {f"packer.sources.{name}" for name in kinds.split()} & loaded
