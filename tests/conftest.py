"""What all tests share: leak checks, hypothesis profiles, and demo inputs."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
_DESCRIPTORS = "/proc/self/fd"
_GRACE = 60.0  # seconds for threads and workers that have been told to stop

# Threads of torch that wait would keep the cores busy that other processes need. It is read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# No deadline and no complaint about slowness: on a busy machine both fail good code.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

#: Threads that the package zarr keeps for the whole process; and the one that loads compiled loops, which ends by
#: itself, on a busy machine after longer than `_GRACE`.
_LASTING_THREADS = ("zarr_io", "asyncio_", "packer loop")

#: The files of tests that take longest, in order.
_LONGEST = (
    "test_readme.py",
    "readers/test_frameworks.py",
    "scripts/test_examples.py",
    "packer/test_killed.py",
    "packer/test_every_kind.py",
    "packer/codecs/test_compiled.py",
    "packer/remote/test_stream.py",
    "survival/test_two_ways.py",
    "packer/remote/test_remote_output.py",
    "readers/test_readers_contract.py",
    "survival/test_failing_calls.py",
    "survival/test_power_loss.py",
    "packer/test_two_writers.py",
    "scripts/test_bench.py",
    "scripts/test_compare.py",
    "test_wheel.py",
    "test_imports.py",
    "soak/test_soak.py",
    "readers/test_vision.py",
)

#: The first of them import frameworks, which takes seconds: one process runs all of these files.
_WITH_FRAMEWORKS = _LONGEST[:3]

_failed = pytest.StashKey[bool]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Run one process more than there are cores: tests wait for disks and servers for a quarter of the time."""
    return (os.cpu_count() or 1) + 1


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the loops before anything is tested: else the first tests of a new environment would have it done."""
    if not hasattr(session.config, "workerinput"):
        from packer.codecs import compiled, compiling  # here: what is imported earlier is not counted as covered

        for module in compiling.MODULES:
            if not compiling.compiled_files(module):
                compiled.Loading(module).load()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Give each process the tests of one file after another, those of `_WITH_FRAMEWORKS` as if they were one file."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "frameworks" if file.removeprefix("tests/") in _WITH_FRAMEWORKS else file

    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files: one that began last would have a single process at work at the end."""
    places = {f"tests/{path}": place for place, path in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected: there is hardly any, and all that was imported is gone through."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember failures: the traceback of a failed test keeps its locals, and so its files, alive."""
    report = yield
    item.stash[_failed] = item.stash.get(_failed, False) or report.failed
    return report


@pytest.fixture(autouse=True, scope="module")
def _imports_set_aside() -> None:
    """Set aside what is there before the first test of a file: to go through the imports of all takes half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _nothing_left_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves files, threads or processes behind."""
    before = _open_things()
    yield
    if request.node.stash.get(_failed, False) or request.node.get_closest_marker("keeps_open"):
        return
    deadline = time.monotonic() + _GRACE
    while leaked := sorted(_open_things() - before):
        gc.collect()
        if time.monotonic() > deadline:
            pytest.fail("left behind by this test: " + ", ".join(leaked))
        time.sleep(0.01)


def _open_things() -> set[str]:
    threads = {
        f"thread {thread.name} ({thread.ident})"
        for thread in threading.enumerate()
        if not thread.name.startswith(_LASTING_THREADS)
    }
    processes = {f"process {process.name} ({process.pid})" for process in multiprocessing.active_children()}
    return threads | processes | _open_files()


def _open_files() -> set[str]:
    """Open descriptors of files and folders.

    Pipes and sockets are left out: multiprocessing keeps some for good, for its resource tracker and its fork
    server; those of worker processes go with the processes.
    """
    # Without Path: this is done twice for each of thousands of tests.
    if not os.path.isdir(_DESCRIPTORS):  # noqa: PTH112
        return set()
    found = set()
    for descriptor in os.listdir(_DESCRIPTORS):  # noqa: PTH208
        try:
            target = os.readlink(f"{_DESCRIPTORS}/{descriptor}")  # noqa: PTH115
        except FileNotFoundError:  # the one that listed the folder
            continue
        # Files of tests may lie in memory. matplotlib keeps its fonts open, up to 3.10.
        is_device = target.startswith(("/dev/", "/proc/")) and not target.startswith("/dev/shm/pytest-")
        if target.startswith("/") and not is_device and not target.endswith(".ttf"):
            found.add(f"file {target} (descriptor {descriptor})")
    return found


@pytest.fixture(scope="session")
def new_folder_in_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Path]]:
    """A function that makes an empty folder in memory; on the disk if the system has no /dev/shm.

    It is for tests that make, sync and remove thousands of files: the disk would take most of their time.
    """
    if not Path("/dev/shm").is_dir():
        yield lambda: tmp_path_factory.mktemp("folder")
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as parent:
        yield lambda: Path(tempfile.mkdtemp(dir=parent))


@pytest.fixture
def folder(new_folder_in_memory: Callable[[], Path]) -> Iterator[Path]:
    """An empty folder in memory, of this test alone."""
    path = new_folder_in_memory()
    yield path
    shutil.rmtree(path)


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """An empty folder on the disk, wherever other tests have their files."""
    with tempfile.TemporaryDirectory(dir=ROOT / "data") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def demo_data() -> Path:
    """The folder data/, filled with the demo inputs: pairs, pictures, clips, clouds, digits.h5, demos.hdf5, volumes."""
    from make_data import make_data  # here, since test_leak_check.py takes this file to where no scripts are

    make_data(ROOT / "data")
    return ROOT / "data"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser without a screen."""
    playwright = pytest.importorskip("playwright.sync_api", reason="there is no playwright")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("there is no chromium")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def loops() -> ModuleType:
    """The loops in machine code. Whether frames are handled by them is another matter: see `way`."""
    from ways import loading_of  # here, since test_leak_check.py takes this file to where no helpers are

    found = loading_of(by_machine=True).found
    assert found is not None
    return found


@pytest.fixture
def by_machine() -> Iterator[None]:
    """Frames are handled by machine code, as in a process that has been at them for long."""
    from ways import handled

    with handled(by_machine=True):
        yield


@pytest.fixture
def one_by_one() -> Iterator[None]:
    """Frames are handled one by one, as where machine code cannot be had."""
    from ways import handled

    with handled(by_machine=False):
        yield


@pytest.fixture(params=["by_machine", "one_by_one"])
def way(request: pytest.FixtureRequest) -> str:
    """Both ways of handling frames, one after the other."""
    request.getfixturevalue(request.param)
    return str(request.param)
