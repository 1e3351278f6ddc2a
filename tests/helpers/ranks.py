"""Calls a function in several ranks: forks of one process, which alone imports what all need."""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
FOLDERS = (TESTS.parent, TESTS.parent / "scripts", TESTS / "helpers", TESTS / "readers")


def call_in_ranks(ranks: int, module: str, function: str, *arguments: str, trains: bool = False) -> str:
    """Call a function of a module with a list of arguments in some ranks on this machine; return what they print.

    The environment of each is the one that torchrun sets; torchrun itself takes four seconds to start.

    Args:
        trains: whether the function makes an optimizer: the first one imports a compiler, which takes a second.
    """
    port = str(_free_port())
    setting = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    setting["PYTHONPATH"] = os.pathsep.join(map(str, FOLDERS))
    command = [sys.executable, __file__, "torch._dynamo" if trains else module, module, function, *arguments]
    done = subprocess.run(command, env={**os.environ, **setting}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def _free_port() -> int:
    """Return a port below those that systems give to whoever asks for any, and so to other tests meanwhile."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as free:
            free.bind(("127.0.0.1", port))
            return port


def main(imported: str, module: str, function: str, *arguments: str) -> int:
    """Import both modules, and call the function of the second in WORLD_SIZE forks; return 1 if it fails in one."""
    importlib.import_module(imported)
    call = getattr(importlib.import_module(module), function)
    ranks = []
    for rank in map(str, range(int(os.environ["WORLD_SIZE"]))):
        if not (pid := os.fork()):
            os.environ |= {"RANK": rank, "LOCAL_RANK": rank}
            call(list(arguments))
            return 0
        ranks.append(pid)
    statuses = [os.waitpid(pid, 0)[1] for pid in ranks]
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
