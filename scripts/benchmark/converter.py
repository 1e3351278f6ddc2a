"""Conversions in an interpreter of their own, as `packer convert` runs: without torch and all that a benchmark holds.

Its worker processes are forks of it. Those of the benchmark take 5 ms more to start and as many to end.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from packer.convert import convert


class Converter:
    """An interpreter that converts what it is told, one after the other; it ends with the process that started it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmark.converter"],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def convert(self, sources: list[str], out: str, **options: Any) -> int:
        """Packs `sources`; returns the number of samples.

        Raises:
            RuntimeError: it did not; the interpreter has said why.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([sources, out, options]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{out} was not made: the converting process ended")
        return int(answer)


@lru_cache(maxsize=1)
def converter() -> Converter:
    """The one of this process, started when it is first asked for."""
    return Converter()


def serve() -> None:
    """What the interpreter does."""
    for line in sys.stdin:
        sources, out, options = json.loads(line)
        print(convert(sources, out, **options).samples, flush=True)


if __name__ == "__main__":
    serve()
