"""When the loops in machine code are loaded, and what happens where they cannot be had."""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import logging
import os
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import lz4.block
import numpy as np
import pytest
from environment import HAS_TORCH
from filelock import FileLock
from stored_frames import as_memory, mixed, stored

import packer.codecs
from packer.codecs import NAMED, FrameCodec, Frames, compiled, compiling, number_of, parse_codec
from packer.codecs.compiled import CODECS, WORTH_SECONDS, Loading
from packer.convert import convert
from packer.verify import verify
from packer.warm import warm
from readers import PackedDataset

ROOT = Path(__file__).resolve().parents[3]
LOOPS = "packer.codecs.loops"


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch) -> Loading:
    """What a process knows that has handled no frames yet."""
    fresh = Loading(LOOPS)
    monkeypatch.setattr(compiled, "loading", fresh)
    return fresh


@pytest.fixture
def unimported(monkeypatch: pytest.MonkeyPatch, loops: ModuleType) -> None:
    """The loops are imported anew when they are loaded; what was there is put back."""
    monkeypatch.delitem(sys.modules, LOOPS)
    monkeypatch.delattr(packer.codecs, "loops")


def ended(loading: Loading) -> bool:
    """Wait for the end of the thread that loads the loops, if there is one."""
    if loading._thread is not None:
        loading._thread.join(100)
    return True


def decodes_right() -> bool:
    """Whether some frames are decoded to what they were."""
    one = stored("lz4", mixed(20))
    out = np.empty(len(one.wanted), np.uint8)
    one.codec.decode_frames(as_memory(one.memory), one.frames, out)
    return np.array_equal(out, one.wanted)


# ---------------------------------------------------------------- when they are loaded


def test_loops_are_loaded_once_they_are_worth_it(loading: Loading, loops: ModuleType) -> None:
    """Not before frames took that many seconds one by one."""
    assert compiled.loading.loops() is None
    loading.seconds = WORTH_SECONDS
    assert compiled.loading.loops() is None
    assert loading.found is None
    loading.seconds = WORTH_SECONDS * 1.001
    compiled.loading.loops()
    assert ended(loading)
    assert compiled.loading.loops() is loops
    assert loading.found is loops


def test_loops_that_are_loaded_are_used(loading: Loading, loops: ModuleType) -> None:
    """Whatever time was noted before."""
    assert loading.load() is loops
    assert compiled.loading.loops() is loops


def test_decoding_notes_its_time_and_goes_over_to_loops(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    """First calls are made one by one, those after a thread has loaded the loops by them: no more time is noted."""
    monkeypatch.setattr(compiled, "WORTH_SECONDS", 0.0)
    assert decodes_right()
    assert loading.found is None
    assert 0 < loading.seconds < 10
    assert decodes_right()
    assert ended(loading)
    noted = loading.seconds
    assert decodes_right()
    assert loading.found is not None
    assert loading.seconds == noted


@pytest.mark.parametrize("codec", ["none", '{"id": "zlib"}'])
def test_what_loops_do_not_decode_is_no_reason_to_load_them(loading: Loading, codec: str) -> None:
    """Time that such frames take is not noted."""
    coder, values = FrameCodec(parse_codec(codec), np.dtype("u1")), np.zeros(1000, np.uint8)
    frame = bytes(coder.encode(values))
    frames = Frames(np.array([[0, len(frame)]]), np.array([1000]))
    coder.decode_frames(as_memory(frame), frames, np.empty(1000, np.uint8))
    assert loading.seconds == 0


def test_to_read_a_little_imports_no_compiler() -> None:
    """A process that decodes a few frames pays nothing for the loops."""
    code = """
        import sys
        import numpy as np
        from packer.codecs.configs import NAMED
        from packer.codecs.frames import FrameCodec, Frames
        codec = FrameCodec(NAMED["lz4"], np.dtype("u1"))
        frame = bytes(codec.encode(np.zeros(1000, np.uint8)))
        out = np.ones(1000, np.uint8)
        codec.decode_frames(np.frombuffer(frame, np.uint8), Frames(np.array([[0, len(frame)]]), np.array([1000])), out)
        assert not out.any()
        assert not {"numba", "llvmlite", "packer.codecs.loops"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, timeout=100, check=True)


# ---------------------------------------------------------------- who compiles them

#: Decodes with an empty cache: first in a worker that is forked, then until the loops are there.
FRESH = """
    import os, sys, time
    import numpy as np
    from packer.codecs import NAMED, FrameCodec, Frames, compiled, compiling
    compiled.WORTH_SECONDS = 0.0
    codec = FrameCodec(NAMED["lz4"], np.dtype("u1"))
    frame = bytes(codec.encode(np.ones(1000, np.uint8)))
    def decodes_right():
        out = np.zeros(1000, np.uint8)
        codec.decode_frames(np.frombuffer(frame, np.uint8), Frames(np.array([[0, len(frame)]]), np.array([1000])), out)
        return out.all() and (compiled.loading.found is not None or "numba" not in sys.modules)
    if not os.fork():
        compiled.LOOK_SECONDS = 0.0
        are_right = [decodes_right() for _ in range(9)]
        os._exit(not all(are_right) or bool(compiling._processes))
    assert os.wait()[1] == 0
    assert not os.listdir(os.environ["NUMBA_CACHE_DIR"])
    assert all(decodes_right() for _ in range(9))
    if not os.fork():  # and ends at once, by itself
        sys.exit()
    assert os.wait()[1] == 0
    while compiled.loading.found is None:
        assert compiled.loading._thread is not None or decodes_right()
        time.sleep(0.01)
    assert all(process.wait() == 0 for process in compiling._processes.values())
    assert decodes_right()
    from readers.compiled import loading
    loading.seconds = 1.0
    while loading.loops() is None:
        assert loading.failure is None
        time.sleep(0.01)
    functions = [f for loops in (compiled.loading.found, loading.found) for f in vars(loops).values()]
    assert not [f for f in functions if hasattr(f, "stats") and f.stats.cache_misses]
    files = compiling.compiled_files(compiled.loading.module) + compiling.compiled_files(loading.module)
    assert files and all(str(path).startswith(os.environ["NUMBA_CACHE_DIR"]) for path in files)
"""


@pytest.fixture(scope="module")
def compiled_anew(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], bytes]:
    """The settings of a process that ran FRESH, and what it wrote to stderr; other processes find its loops there.

    They check every index, and are compiled with little optimization, which takes less time.
    """
    if not HAS_TORCH:
        pytest.skip("it reads in a process of its own")
    settings = {"NUMBA_CACHE_DIR": str(tmp_path_factory.mktemp("loops")), "NUMBA_OPT": "1", "NUMBA_BOUNDSCHECK": "1"}
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(FRESH)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | settings, timeout=300, check=False, stderr=subprocess.PIPE
    )
    return settings, done.stderr or str(done.returncode or "").encode()


@pytest.mark.timeout(400)
def test_another_process_compiles(compiled_anew: tuple[dict[str, str], bytes]) -> None:
    """Frames are decoded one by one meanwhile, then by the loops; a worker that is forked starts no such process.

    So are the loops of readers; who reads compiles none. Who ends before it, or was forked, says nothing of it. All of
    it takes 10 s.
    """
    assert compiled_anew[1] == b""


@pytest.mark.timeout(400)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="damages as the soak does, which forks")
def test_bounds_are_kept(tmp_path: Path, compiled_anew: tuple[dict[str, str], bytes]) -> None:
    """Machine code that checks every index stays within its arrays, over damaged frames as well."""
    environment = os.environ | compiled_anew[0]
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "soak")])
    command = [sys.executable, ROOT / "tests" / "survival" / "bounds.py", tmp_path, "24"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"24 read, [1-9]\d* refused\n", done.stdout), done.stdout


@pytest.mark.parametrize(("codec", "starts"), [("lz4", 1), ("none", 0)])
def test_who_has_them_compiled(
    tmp_path: Path, loading: Loading, monkeypatch: pytest.MonkeyPatch, codec: str, starts: int
) -> None:
    """Each verb that writes or reads datasets whose frames they decode, in the process that starts workers."""
    started: list[str] = []
    monkeypatch.setattr(compiling, "compiled_files", lambda _: [])
    monkeypatch.setattr(compiling, "start", started.append)
    path = tmp_path / "p"
    convert([{"x": np.zeros(300)}], path, codec=codec)
    verify(path, workers=1)
    warm(path)
    PackedDataset(path)
    assert started == [LOOPS] * 4 * starts


def test_one_process_compiles_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is at work, others start none; where no folder can be written, each loads the loops by itself."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    with FileLock(tmp_path / f"{compiling.mark_name(LOOPS)}.lock"):
        assert compiling.start(LOOPS)
        assert compiling.compile_loops(LOOPS, wait=False) == []
    assert not compiling._processes
    monkeypatch.setattr(compiling, "_folders", lambda _: [Path("/proc/none")])
    assert not compiling.start(LOOPS)


def test_a_mark_without_its_files_is_none(
    tmp_path: Path, loading: Loading, unimported: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what numba kept, all must be there; who loads the loops leaves the mark anew."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiling, "_folders", lambda _: [tmp_path])
    assert loading.load() is not None
    files = compiling.compiled_files(LOOPS)
    assert {file.suffix for file in files} == {".nbc", ".nbi"}
    (tmp_path / compiling.mark_name(LOOPS)).write_text(f"{files[0]}\n{tmp_path / 'gone.nbc'}\n")
    assert compiling.compiled_files(LOOPS) == []


def test_a_package_that_hides_its_functions(
    loading: Loading, unimported: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Frames are handled one by one; it is said once, quietly, and not tried again."""
    loading.seconds = 2 * WORTH_SECONDS
    with caplog.at_level(logging.DEBUG), monkeypatch.context() as patch:
        patch.setitem(sys.modules, "xxhash._xxhash", lz4.block._block)  # a library with other functions
        assert decodes_right()
        assert ended(loading)
        assert compiled.loading.loops() is None
    assert isinstance(loading.failure, AttributeError)
    assert compiled.loading.loops() is None
    assert loading.load() is None
    assert decodes_right()
    assert [(record.levelno, record.name) for record in caplog.records] == [(logging.INFO, "packer.codecs.compiled")]
    assert "XXH3_64bits" in caplog.text


@pytest.mark.parametrize("missing", ["numba", "llvmlite.binding", "lz4.block._block", "numcodecs.zstd", LOOPS])
def test_a_module_that_is_not_there(
    loading: Loading, unimported: None, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """Frames are handled one by one."""
    monkeypatch.setitem(sys.modules, missing, None)
    assert loading.load() is None
    assert isinstance(loading.failure, ImportError)
    assert decodes_right()


def test_a_compiler_that_is_switched_off(tmp_path: Path) -> None:
    """Datasets are read one by one in a process that is told to compile nothing."""
    code = f"""
        import numpy as np
        from packer.codecs import compiled
        from packer.writer import DatasetWriter
        from readers import Loader, PackedDataset
        compiled.WORTH_SECONDS = 0.0
        with DatasetWriter({str(tmp_path / "p")!r}, codec="lz4") as writer:
            for number in range(50):
                writer.add({{"x": np.full(300, number)}})
        for _ in range(3):
            if compiled.loading._thread is not None:
                compiled.loading._thread.join(100)
            compiled.loading._next_look = 0.0
            for process in compiled.compiling._processes.values():
                assert process.wait(100)
            batches = list(Loader(PackedDataset({str(tmp_path / "p")!r}, verify=True), 20))
            assert [number for batch in batches for number in batch["x"][:, 7].tolist()] == [*range(50)]
        assert compiled.loading.found is None
        assert "NUMBA_DISABLE_JIT" in str(compiled.loading.failure)
    """
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, env=environment, timeout=100, check=True)


def test_an_interruption_is_no_failure(loading: Loading, unimported: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever presses a key while the loops are loaded may have them later."""

    def interrupt(path: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "CDLL", interrupt)
        with pytest.raises(KeyboardInterrupt):
            loading.load()
    assert loading.found is None
    assert loading.failure is None
    monkeypatch.setattr(importlib.machinery.SourceFileLoader, "exec_module", lambda self, module: None)
    assert loading.load() is not None


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells how much memory a process has")
@pytest.mark.parametrize(("room", "is_loaded"), [(100 * 2**20, False), (2**33, True)])
def test_little_memory_is_left_to_others(room: int, is_loaded: bool) -> None:
    """Short of memory, the compiler would end the process."""
    code = f"""
        import resource
        from pathlib import Path
        from packer.codecs import compiled
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + {room}, -1))
        assert (compiled.loading.load() is not None) == {is_loaded}
        assert isinstance(compiled.loading.failure, MemoryError) != {is_loaded}
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, timeout=100, check=True)


# ---------------------------------------------------------------- several threads


class SlowImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives an empty module for the loops, once it is told to go on."""

    def __init__(self) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()
        self.imports = 0

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self) if fullname == LOOPS else None

    def exec_module(self, module: ModuleType) -> None:
        self.imports += 1
        self.began.set()
        assert self.go_on.wait(100)


def test_nobody_waits_for_a_thread_that_loads(
    loading: Loading, unimported: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others go on one by one meanwhile, and find the loops when they are there."""
    slow = SlowImport()
    monkeypatch.setattr(sys, "meta_path", [slow, *sys.meta_path])
    loading.seconds = 2 * WORTH_SECONDS
    assert compiled.loading.loops() is None
    assert slow.began.wait(100)
    try:
        assert compiled.loading.loops() is None
        assert decodes_right()
    finally:
        slow.go_on.set()
    assert ended(loading)
    found = loading.load()
    assert found is not None
    assert found.__name__ == LOOPS
    assert compiled.loading.loops() is found
    assert slow.imports == 1


def test_without_a_thread_frames_are_handled_one_by_one(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system gives none at the moment; later the loops are loaded."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    loading.seconds = 2 * WORTH_SECONDS
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert decodes_right()
    loading._next_look = 0.0
    assert decodes_right()
    assert ended(loading)
    assert compiled.loading.loops() is not None


# ---------------------------------------------------------------- codecs


@pytest.mark.parametrize(
    ("codec", "found"),
    [
        ("none", None),
        ("lz4", CODECS["lz4"]),
        ("lz4hc", CODECS["lz4"]),
        ("zstd", CODECS["zstd"]),
        ("photo+zstd", CODECS["blosc"]),
        ("bitshuffle", CODECS["blosc"]),
        ("shuffle+lz4", CODECS["blosc"]),
        ("shuffle+zstd", CODECS["blosc"]),
        ('[{"id": "photo"}, {"id": "lz4"}]', CODECS["lz4"]),
        ('[{"id": "photo"}, {"id": "zlib"}]', None),
        ('{"id": "zlib"}', None),
        ('[{"id": "shuffle"}, {"id": "zstd"}]', None),
        ('[{"id": "zstd"}, {"id": "zstd"}]', None),
    ],
)
def test_loops_know_codecs_of_one_stage(codec: str, found: int | None) -> None:
    """The filter of images aside."""
    assert number_of(parse_codec(codec)) == found
    assert number_of(({"id": "photo"},)) is None  # there is nothing to decode


def test_every_codec_of_one_stage_has_a_name_here() -> None:
    """What the command line names is decoded by machine code; `jpeg` by that of libjpeg."""
    named: list[Any] = [configs for name, configs in NAMED.items() if name not in ("none", "jpeg")]
    assert not [configs for configs in named if number_of(configs) is None]


def test_loops_have_the_same_numbers(loops: ModuleType) -> None:
    """They are written in both files; two codecs share one, whose frames are alike."""
    assert CODECS["lz4"] == CODECS["lz4hc"]
    assert {name: CODECS[name] for name in ("lz4", "blosc", "zstd")} == {
        "lz4": loops._LZ4,
        "blosc": loops._BLOSC,
        "zstd": loops._ZSTD,
    }
