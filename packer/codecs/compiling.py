"""Has a module of loops compiled by a process of its own, once for all processes of a machine.

Compiling takes up to 8 s of processor time, and nobody who reads waits for it. The process leaves a mark beside what
numba keeps: it names the files that must be there. Whoever finds the mark loads the loops from these files.

    python -c "from packer.codecs.compiling import compile_loops; compile_loops('packer.codecs.loops')"
"""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

#: All modules of loops: of frames, and of crops, points and places. By name: frames are decoded without readers.
MODULES = ("packer.codecs.loops", "readers.loops")
#: Bytes of /proc/cpuinfo that describe the first processor.
_FIRST_PROCESSOR = 2**13
#: The folder of `packer` and `readers`.
_ROOT = Path(__file__).parents[2]

#: The processes that compile, if this one started them, by module. Never in a process that was forked: others wait for
#: their own.
_processes: dict[str, subprocess.Popen[bytes]] = {}
_is_forked = False


def _let_go() -> None:
    """Forget the processes, which go on by themselves; else `Popen` would warn of them."""
    for process in _processes.values():
        process.returncode = 0
    _processes.clear()


def _note_fork() -> None:
    global _is_forked
    _is_forked = True
    _let_go()


atexit.register(_let_go)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def compiled_files(module: str) -> list[Path]:
    """Return the files from which numba loads the loops on this machine; none if they are not compiled yet."""
    folder = cache_folder(module)
    if folder is not None:
        with suppress(OSError, UnicodeDecodeError):
            files = [Path(line) for line in (folder / mark_name(module)).read_text().splitlines()]
            # numba takes nothing from a folder that it cannot write into.
            if all(file.is_file() and os.access(file.parent, os.W_OK) for file in files):
                return files
    return []


def cache_folder(module: str) -> Path | None:
    """Return the folder that gets the mark and the lock, the first that can be written; None if there is none."""
    for folder in _folders(module):
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    return None


def start(module: str) -> bool:
    """Start the process that compiles, unless one is at work; return whether loops may still come from another process.

    A forked process starts none: it is a worker, and its parent has started one.
    """
    if _is_forked:
        return cache_folder(module) is not None
    if module in _processes and (status := _processes[module].poll()) is not None:
        if status:
            return False  # it could not compile them
        del _processes[module]  # another process was at it, or the mark is there by now
    if module not in _processes:
        folder = cache_folder(module)
        if folder is None:
            return False
        if _is_locked(folder / f"{mark_name(module)}.lock"):
            return True
        code = f"from packer.codecs.compiling import compile_loops; compile_loops({module!r}, wait=False)"
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            _processes[module] = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,  # Ctrl-C is for the process that reads
            )
        except OSError:
            return False
    return True


def compile_loops(module: str, wait: bool = True) -> list[Path]:
    """Compile the loops of a module in this process, leave the mark, and return the files that numba keeps.

    Args:
        wait: for another process that compiles them; else nothing is done, and no files are returned.

    Raises:
        OSError: there is no folder that can be written.
        Exception: numba does not work; it has many kinds.
    """
    from filelock import FileLock, Timeout

    folder = cache_folder(module)
    if folder is None:
        raise OSError(f"none of these folders can be written: {', '.join(map(str, _folders(module)))}")
    try:
        with FileLock(folder / f"{mark_name(module)}.lock").acquire(timeout=-1 if wait else 0):
            return leave_mark(module, folder)
    except Timeout:
        return []


def leave_mark(module: str, folder: Path) -> list[Path]:
    """Load the loops, say in the mark where numba keeps them, and return these files; raises as `compile_loops`."""
    functions = vars(_load(module)).values()
    kept = {function.stats.cache_path for function in functions if hasattr(function, "stats")} - {None}
    if not kept:
        raise OSError("numba finds no folder that can be written")
    files = sorted(file for path in kept for file in Path(path).glob(f"{_code_of(module).stem}.*.nb?"))
    mark = folder / mark_name(module)
    new = mark.with_name(f"{mark.name}.{os.getpid()}")
    new.write_text("".join(f"{file}\n" for file in files))
    new.replace(mark)
    return files


def _load(module: str) -> ModuleType:
    """Import a module without its package: that of readers loads torch, which takes longer than compiling."""
    if module not in sys.modules:
        spec = spec_from_file_location(module, _code_of(module))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[module] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])
    return sys.modules[module]


@cache
def mark_name(module: str) -> str:
    """Return the name of the mark: another one for each version of numba, Python, processor and loops."""
    from importlib.metadata import version  # here, because few processes decode

    code = _code_of(module)
    # numba compiles anew if the file was written again, whatever is in it.
    parts = [version("numba"), version("llvmlite"), platform.python_version(), str(code), str(code.stat().st_mtime_ns)]
    digest = hashlib.sha256(code.read_bytes() + chr(0).join([*parts, _processor()]).encode())
    return f"{module}-{digest.hexdigest()[:16]}"


def _code_of(module: str) -> Path:
    return _ROOT.joinpath(*module.split(".")).with_suffix(".py")


def _processor() -> str:
    """Return what tells one kind of processor from another."""
    try:
        with Path("/proc/cpuinfo").open("rb") as file:
            lines = file.read(_FIRST_PROCESSOR).decode("utf-8", "replace").split("\n\n")[0].splitlines()
    except OSError:  # another system
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(line for line in lines if line.startswith(("model name", "flags", "CPU", "Features")))


def _folders(module: str) -> Iterator[Path]:
    """Yield the folders that numba tries, in its order: the one it is told, one beside the code, the user's."""
    if told := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(told)
    yield _code_of(module).parent / "__pycache__"
    with suppress(RuntimeError):  # the user has no home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "numba"


def _is_locked(lock: Path) -> bool:
    """Return whether a process compiles at this moment."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(lock).acquire(timeout=0):
            return False
    except Timeout:
        return True
    except (OSError, NotImplementedError):  # a disk without locks: then several may compile
        return False
