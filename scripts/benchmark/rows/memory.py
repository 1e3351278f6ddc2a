"""What a converter takes of memory, whatever the size of the dataset and of its shards."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmark.measuring import Bench, Figures, row

WORKERS = 2
#: Seconds between two looks.
_EVERY = 0.02
_COMMAND = f"""
import sys
from benchmark.interpreter import made_pairs, pack
nbytes, out, codec = int(sys.argv[1]), *sys.argv[2:]
shard_size = min(2**30, nbytes // {WORKERS})
pack(made_pairs(nbytes), out, codec=codec, workers={WORKERS}, shard_size=shard_size, overwrite=True)
"""


@row("memory of the converter and 2 workers, none", at_most=300 + 250 * WORKERS, unit="MB", codec="none")
@row(
    "memory of the converter and 2 workers, rowdelta+zstd",
    at_most=300 + 250 * WORKERS,
    unit="MB",
    codec="rowdelta+zstd",
)
def converter(bench: Bench, codec: str) -> Figures:
    """Shards of 1 GiB, or one for each worker of a smaller dataset."""
    out, made = bench.scratch(f"made-{codec}.packed"), bench.some(200)

    def megabytes() -> float:
        return _peak([sys.executable, "-c", _COMMAND, str(made * 10**6), str(out), codec]) / 1e6

    figures = bench.repeated(megabytes, f"{made / 1000:g} GB, made on the fly")
    bench.scratch(out.name)
    return figures


def _peak(command: list[str]) -> int:
    """The most bytes that a command and its children held at a time, those that they share counted for each.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    peak = 0
    with subprocess.Popen(command, cwd=Path(__file__).parents[2]) as process:
        while process.poll() is None:
            peak = max(peak, _held(process.pid))
            time.sleep(_EVERY)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command[:2])
    return peak


def _held(pid: int) -> int:
    """Bytes of memory (RSS) of a process and of its children; those that end meanwhile hold none."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    own = sum(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    return own + sum(_held(int(child)) for child in children)
