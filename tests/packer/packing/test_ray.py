"""Conversion on Ray: a real one that is started on this machine, where the package is installed."""

from __future__ import annotations

import psutil
import pytest
from click.testing import CliRunner

from packer.cli import main
from packer.convert import convert
from packer.errors import SourceError
from packer.packing import executor_at
from packer.watcher import Watcher

pytest.importorskip("ray", reason="ray is not installed")

# Ray's own threads and files stay in this process.
pytestmark = [
    pytest.mark.keeps_open,
    pytest.mark.filterwarnings("ignore"),  # those of Ray are not ours
]

SHARD = {"codec": "zstd", "shard_size": 8192}


@pytest.fixture(scope="module", autouse=True)
def own_cluster():
    """`ray` starts one here, also on a machine that is part of another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "local")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        yield


@pytest.fixture
def wanted(tmp_path, new_pairs, files_of):
    """Sources of 60 pairs, and the files that one process makes of them."""
    sources = new_pairs(tmp_path / "pairs", 60, 9, 11).sources
    convert(sources, tmp_path / "alone", workers=0, **SHARD)
    files = files_of(tmp_path / "alone")
    assert len(files) > 10
    return sources, files


def test_the_command_line_makes_the_same_bytes(wanted, tmp_path, files_of):
    """`packer convert --scheduler ray` makes every file as one process does."""
    sources, files = wanted
    options = ["--codec", "zstd", "--shard-size", "8192", "--scheduler", "ray"]
    result = CliRunner().invoke(main, ["convert", *sources, str(tmp_path / "out"), *options])
    assert result.exit_code == 0, result.output
    assert files_of(tmp_path / "out") == files


def test_a_worker_is_lost_and_a_sample_is_bad(wanted, tmp_path, files_of):
    """The shard of a worker that is killed is packed again; what a shard raises is raised here, in one line."""
    sources, files = wanted
    killed = []

    def kill(*_):
        for process in psutil.Process().children(recursive=True):
            if not killed and " ".join(process.cmdline()).startswith("ray::_call"):
                process.kill()
                killed.append(process)

    with executor_at("ray") as executor:
        convert(sources, tmp_path / "out", executor=executor, watcher=Watcher(done=kill), **SHARD)
        assert killed
        assert files_of(tmp_path / "out") == files
        bad = tmp_path / "pairs" / "hr" / "030.png"
        bad.write_bytes(bad.read_bytes()[:-40])
        with pytest.raises(SourceError, match=r"030\.png") as caught:
            convert(sources, tmp_path / "bad", executor=executor, **SHARD)
    assert type(caught.value) is SourceError
    assert "\n" not in str(caught.value)
