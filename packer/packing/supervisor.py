"""A shard packed on behalf of a foreign executor, with reading guarded as it is for processes of our own.

executor.submit(write_shard_guarded, task, Limits())

Workers of executors often may start no processes (those of Dask are daemons), and run threads, which a fork does not
survive. So a new interpreter is started, half a second a shard; it packs the shard as `packer.packing.processes` does,
in a process that it watches, and finds the sample to blame where that one dies, hangs or takes too much memory.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from typing import Any

from packer.errors import PackerError, WriteError
from packer.packing.processes import run_processes
from packer.packing.progress import no_progress
from packer.packing.tasks import ShardReport, ShardTask, write_shard
from packer.sources import child
from packer.sources.limits import Limits

_COMMAND = "; ".join(
    (
        "import pickle, sys",
        "sys.path[:] = pickle.load(sys.stdin.buffer)",
        "from packer.packing.supervisor import serve",
        "serve()",
    )
)

_log = logging.getLogger(__name__)


def write_shard_guarded(task: ShardTask, limits: Limits) -> ShardReport:
    """Packs one shard as `write_shard` does, but for samples whose reading does harm: they are bad ones, as any other.

    A source that another interpreter cannot import (a class of the main program) is read in this process, unguarded,
    with a warning.

    Args:
        limits: what reading a sample may take.

    Raises:
        PackerError: as `run_processes`.
    """
    try:
        given = pickle.dumps(sys.path) + pickle.dumps((task, limits))
        done = subprocess.run([sys.executable, "-c", _COMMAND], input=given, stdout=subprocess.PIPE, check=False)
    except (pickle.PicklingError, AttributeError, TypeError, OSError) as error:
        return _unguarded(task, error)
    if not done.stdout:
        raise WriteError(
            f"the process that packed shard {task.number} ended with exit status {done.returncode}; "
            "what is finished is kept, run the same command again to go on"
        )
    answer: Any = pickle.loads(done.stdout)
    if isinstance(answer, PackerError):
        raise answer
    return answer if isinstance(answer, ShardReport) else _unguarded(task, answer)


def serve() -> None:
    """What the interpreter does: packs the shard it is given, and answers with its report or the error."""
    # Nothing that a library prints may come between.
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)
        child.begin()
        answer.write(pickle.dumps(_answer()))


def _answer() -> Any:
    """The report, an error of packing, or in words why there can be none here."""
    try:
        task, limits = pickle.load(sys.stdin.buffer)
    except Exception as error:  # whatever importing somebody's module raises
        return f"{type(error).__name__}: {error}"
    try:
        (report,) = run_processes([task], 1, no_progress, limits)
    except PackerError as error:
        return error
    return report


def _unguarded(task: ShardTask, why: object) -> ShardReport:
    _log.warning(
        "shard %d is packed without limits of time and memory for reading: no other process can read its source (%s)",
        task.number,
        why,
    )
    return write_shard(task)
