"""Has the loops of `loops.py` compiled by a process of their own, once for all processes of a machine.

Compiling takes 8 s of processor time, and nobody who reads waits for it. The process leaves a mark beside what numba
keeps: it names the files that must be there. Whoever finds the mark loads the loops from these files.

    python -c "from packer.codecs.compiling import compile_loops; compile_loops()"    # what the process runs
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
from pathlib import Path

#: Bytes of /proc/cpuinfo that describe the first processor.
_FIRST_PROCESSOR = 2**13
_ROOM = Path(__file__).parent

#: The process that compiles, if this one started it. Never in a process that was forked: others wait for their own.
_process: subprocess.Popen[bytes] | None = None
_is_forked = False


def _let_go() -> None:
    """Forget the process, which goes on by itself; else `Popen` would warn of it."""
    global _process
    if _process is not None:
        _process.returncode = 0
    _process = None


def _note_fork() -> None:
    global _is_forked
    _is_forked = True
    _let_go()


atexit.register(_let_go)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def compiled_files() -> list[Path]:
    """Return the files from which numba loads the loops on this machine; none if they are not compiled yet."""
    folder = cache_folder()
    if folder is not None:
        with suppress(OSError, UnicodeDecodeError):
            files = [Path(line) for line in (folder / mark_name()).read_text().splitlines()]
            # numba takes nothing from a folder that it cannot write into.
            if all(file.is_file() and os.access(file.parent, os.W_OK) for file in files):
                return files
    return []


def cache_folder() -> Path | None:
    """Return the folder that gets the mark and the lock, the first that can be written; None if there is none."""
    for folder in _folders():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    return None


def start() -> bool:
    """Start the process that compiles, unless one is at work; return whether loops may still come from another process.

    A forked process starts none: it is a worker, and its parent has started one.
    """
    global _process
    if _is_forked:
        return cache_folder() is not None
    if _process is not None and (status := _process.poll()) is not None:
        if status:
            return False  # it could not compile them
        _process = None  # another process was at it, or the mark is there by now
    if _process is None:
        folder = cache_folder()
        if folder is None:
            return False
        if _is_locked(folder):
            return True
        code = "from packer.codecs.compiling import compile_loops; compile_loops(wait=False)"
        paths = [str(_ROOM.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            _process = subprocess.Popen(
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


def compile_loops(wait: bool = True) -> list[Path]:
    """Compile the loops in this process, leave the mark, and return the files that numba keeps.

    Args:
        wait: for another process that compiles them; else nothing is done, and no files are returned.

    Raises:
        OSError: there is no folder that can be written.
        Exception: numba does not work; it has many kinds.
    """
    from filelock import FileLock, Timeout

    folder = cache_folder()
    if folder is None:
        raise OSError(f"none of these folders can be written: {', '.join(map(str, _folders()))}")
    try:
        with FileLock(folder / f"{mark_name()}.lock").acquire(timeout=-1 if wait else 0):
            return leave_mark(folder)
    except Timeout:
        return []


def leave_mark(folder: Path) -> list[Path]:
    """Load the loops, say in the mark where numba keeps them, and return these files; raises as `compile_loops`."""
    from packer.codecs import loops

    kept = loops.decode.stats.cache_path
    if kept is None:
        raise OSError("numba finds no folder that can be written")
    files = sorted(Path(kept).glob("loops.*.nb?"))
    mark = folder / mark_name()
    new = mark.with_name(f"{mark.name}.{os.getpid()}")
    new.write_text("".join(f"{file}\n" for file in files))
    new.replace(mark)
    return files


@cache
def mark_name() -> str:
    """Return the name of the mark: another one for each version of numba, Python, processor and loops."""
    from importlib.metadata import version  # here, because few processes decode

    code = (_ROOM / "loops.py").read_bytes()
    parts = [version("numba"), version("llvmlite"), platform.python_version(), str(_ROOM), _processor()]
    return f"packer-loops-{hashlib.sha256(code + chr(0).join(parts).encode()).hexdigest()[:16]}"


def _processor() -> str:
    """Return what tells one kind of processor from another."""
    try:
        with Path("/proc/cpuinfo").open("rb") as file:
            lines = file.read(_FIRST_PROCESSOR).decode("utf-8", "replace").split("\n\n")[0].splitlines()
    except OSError:  # another system
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(line for line in lines if line.startswith(("model name", "flags", "CPU", "Features")))


def _folders() -> Iterator[Path]:
    """Yield the folders that numba tries, in its order: the one it is told, one beside the code, the user's."""
    if told := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(told)
    yield _ROOM / "__pycache__"
    with suppress(RuntimeError):  # the user has no home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "numba"


def _is_locked(folder: Path) -> bool:
    """Return whether a process compiles at this moment."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(folder / f"{mark_name()}.lock").acquire(timeout=0):
            return False
    except Timeout:
        return True
    except (OSError, NotImplementedError):  # a disk without locks: then several may compile
        return False
