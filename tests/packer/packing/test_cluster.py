"""Conversion on a Dask cluster: a real scheduler and two workers on this machine, each a process of its own."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from unittest.mock import MagicMock

import pytest
from click.testing import CliRunner

from packer.cli import main
from packer.convert import convert
from packer.packing import executor_at
from packer.watcher import Watcher

# The client's own threads and pools stay in this process when it is closed.
pytestmark = [
    pytest.mark.keeps_open,
    pytest.mark.filterwarnings("ignore"),  # those of the cluster's libraries are not ours
]

SHARD = {"codec": "zstd", "shard_size": 8192}
PATIENCE = 60


@pytest.fixture(scope="module")
def distributed():
    """The package, which every process that collects tests would import else."""
    return importlib.import_module("distributed")


class Cluster:
    """A scheduler and two workers on loopback."""

    def __init__(self, folder):
        self.log = (folder / "log").open("w")
        place = folder / "scheduler.json"
        options = ["--host", "127.0.0.1", "--no-dashboard"]
        self.scheduler = self._start("scheduler", *options, "--port", "0", "--scheduler-file", str(place))
        deadline = time.monotonic() + PATIENCE
        while not place.exists() or not place.read_text().endswith("}"):
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        self.address = json.loads(place.read_text())["address"]
        one = ["--nthreads", "1", "--no-nanny", "--local-directory", str(folder)]
        self.workers = [self._start("worker", self.address, *options, *one) for _ in range(2)]

    def _start(self, *arguments):
        return subprocess.Popen([sys.executable, "-m", "dask", *arguments], stdout=self.log, stderr=self.log)

    def stop(self):
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()
        self.log.close()


@pytest.fixture(scope="module")
def cluster(distributed, tmp_path_factory):
    """The cluster, once both workers have come."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        with distributed.Client(cluster.address) as client:
            client.wait_for_workers(2, timeout=PATIENCE)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def wanted(tmp_path, new_pairs, files_of):
    """Sources of 60 pairs, and the files that one machine makes of them."""
    sources = new_pairs(tmp_path / "pairs", 60, 9, 11).sources
    convert(sources, tmp_path / "alone", workers=0, **SHARD)
    files = files_of(tmp_path / "alone")
    assert len(files) > 10
    return sources, files


def test_the_cluster_makes_the_same_bytes(distributed, cluster, wanted, tmp_path, files_of):
    """Through `executor=`, both workers pack, and every file is as one machine makes it."""
    sources, files = wanted
    with distributed.Client(cluster.address) as client:
        convert(sources, tmp_path / "out", executor=client.get_executor(), **SHARD)
        packed = client.run(lambda dask_worker: sum("write_shard" in str(event) for event in dask_worker.state.log))
    assert len(packed) == 2
    assert all(packed.values())
    assert files_of(tmp_path / "out") == files


def test_the_command_line_makes_the_same_bytes(cluster, wanted, tmp_path, files_of):
    """`packer convert --scheduler ADDRESS` does the same."""
    sources, files = wanted
    options = ["--codec", "zstd", "--shard-size", "8192", "--scheduler", cluster.address]
    result = CliRunner().invoke(main, ["convert", *sources, str(tmp_path / "out"), *options])
    assert result.exit_code == 0, result.output
    assert files_of(tmp_path / "out") == files


def test_a_worker_that_is_killed_does_not_fail_the_job(distributed, cluster, wanted, tmp_path, files_of):
    """Killed when the first shard is done: the other worker packs the rest, and no file is left over."""
    sources, files = wanted
    killed = []

    def kill(samples, nbytes):
        if not killed:
            killed.append(samples)
            cluster.workers[0].kill()

    with distributed.Client(cluster.address) as client:
        convert(sources, tmp_path / "out", executor=client.get_executor(), watcher=Watcher(done=kill), **SHARD)
    assert killed
    assert killed[0] < 60
    made = files_of(tmp_path / "out")
    assert sorted(made) == sorted(files)
    assert made == files


@pytest.mark.parametrize("threads", [{}, {"tcp://host:1": 1}])
def test_a_cluster_without_workers_says_so(distributed, monkeypatch, caplog, threads):
    """Packing waits for the first worker, which the user may have forgotten."""
    client = MagicMock(**{"nthreads.return_value": threads})
    monkeypatch.setattr(distributed, "Client", lambda address: client)
    with executor_at("tcp://host:8786"):
        assert ("tcp://host:8786 has no worker yet" in caplog.text) == (not threads)
