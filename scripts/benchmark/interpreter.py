"""Work in an interpreter of its own, as the command `packer` does it: without torch and all that a benchmark holds.

Its worker processes are forks of it: those of the benchmark take 5 ms more to start and as many to end. And checking
20,000 frames takes half as long again beside what the benchmark holds.
"""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from kornia_rs.io import read_image_png_u8
from PIL import Image

from packer.codecs import compiled
from packer.convert import convert
from packer.format.manifest import file_digest
from packer.verify import verify

#: What an interpreter is for. Converting loads no loops in machine code: with them it takes 7 to 22 ms more.
Work = Literal["converting", "checking"]


class Interpreter:
    """Does what it is told, one after the other; it ends with the process that started it."""

    def __init__(self, work: Work) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmark.interpreter", work],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def convert(self, sources: Sequence[str], out: str, **options: Any) -> int:
        """Packs `sources`; returns the number of samples."""
        return self._ask("convert", [list(sources), out], options)

    def verify(self, dataset: Path, workers: int) -> int:
        """Checks a dataset that is good; returns the bytes checked."""
        return self._ask("verify", [str(dataset), workers], {})

    def decode(self, pictures: Sequence[Path], processes: int) -> int:
        """Decodes pictures by Pillow and throws the pixels away; returns how many."""
        return self._ask("decode", [[str(picture) for picture in pictures], processes], {})

    def decode_by_kornia(self, pictures: Sequence[Path]) -> int:
        """Read and decode pictures by kornia-rs, one after another, and throw the pixels away; returns how many."""
        return self._ask("decode_by_kornia", [[str(picture) for picture in pictures]], {})

    def read(self, files: Sequence[Path]) -> int:
        """Reads files and hashes them; returns their bytes."""
        return self._ask("read", [[str(file) for file in files]], {})

    def _ask(self, what: str, arguments: list[Any], options: dict[str, Any]) -> int:
        """What a function of `_FUNCTIONS` gives.

        Raises:
            RuntimeError: it failed; the interpreter has said why.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([what, arguments, options]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{what} failed: the process that was to do it has ended")
        return int(answer)


@lru_cache
def interpreter(work: Work) -> Interpreter:
    """The one of this process for such work, started when it is first asked for."""
    return Interpreter(work)


def _convert(sources: list[str], out: str, **options: Any) -> int:
    return convert(sources, out, **options).samples


def _verify(dataset: str, workers: int) -> int:
    report = verify(dataset, workers=workers)
    if report.damages:
        raise RuntimeError(str(report.damages[0]))
    return report.bytes


def _decode(pictures: list[str], processes: int) -> int:
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        return sum(pool.map(_decode_one, pictures, chunksize=32))


def _decode_one(path: str) -> int:
    with Image.open(path) as picture:
        picture.load()
    return 1


def _decode_by_kornia(pictures: list[str]) -> int:
    for path in pictures:
        read_image_png_u8(path, "rgb")
    return len(pictures)


def _read(files: list[str]) -> int:
    for file in files:
        file_digest(Path(file))
    return sum(Path(file).stat().st_size for file in files)


_FUNCTIONS: dict[str, Callable[..., int]] = {
    "convert": _convert,
    "decode": _decode,
    "decode_by_kornia": _decode_by_kornia,
    "verify": _verify,
    "read": _read,
}


def serve() -> None:
    """What the interpreter does."""
    if sys.argv[1:] == ["checking"]:
        compiled.loading.load()  # as after half a second of it
    for line in sys.stdin:
        what, arguments, options = json.loads(line)
        print(_FUNCTIONS[what](*arguments, **options), flush=True)


if __name__ == "__main__":
    serve()
