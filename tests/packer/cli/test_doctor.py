"""`packer doctor`: what it finds on machines of every kind."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from packer.cli import machine as machines
from packer.cli.doctor import findings, setting
from packer.cli.machine import FileSystem, Machine, file_system, machine_of
from packer.convert import convert
from packer.format import manifest as manifests

GOOD = Machine(
    file_system=FileSystem("/", "ext4"),
    memory=2**34,
    free=2**33,
    shared=2**33,
    shared_free=2**33,
    processors=8,
    start_method="fork",
    open_files=1024,
    cuda=None,
)


@pytest.fixture
def raw(tmp_path):
    """A dataset of 64 samples of 4 kB, uncompressed."""
    return convert([{"x": np.zeros(1024, np.float32)} for _ in range(64)], tmp_path / "raw", codec="none").path


@pytest.fixture
def manifest(raw):
    return manifests.read(raw)


def hurting(manifest, **changes):
    """Topics and texts of what hurts on a machine that is good but for `changes`."""
    found = findings(manifest, replace(GOOD, **changes))
    return {f.topic: f"{f.found} {f.advice}" for f in found if f.hurts}


def test_nothing_hurts_on_a_good_machine(manifest):
    """A local disk, enough of everything, and a full shuffle."""
    assert hurting(manifest) == {}
    assert setting(manifest, GOOD) == "Loader(dataset, batch_size=64, shuffle=True)"


def test_a_batch_has_no_more_samples_than_there_are(tmp_path):
    """128 of many, all of few."""
    for samples, batch in ((12, 12), (200, 128)):
        packed = convert([{"x": np.zeros(4)}] * samples, tmp_path / str(samples))
        assert f"batch_size={batch}," in setting(manifests.read(packed.path), GOOD)


def test_what_hurts(manifest):
    """Each shortage is told alone, with what to do."""
    assert "copy the dataset" in hurting(manifest, file_system=FileSystem("/data", "nfs4"))["disk"]
    assert "shuffle by blocks" in hurting(manifest, free=1000)["memory"]
    assert "--shm-size" in hurting(manifest, shared_free=2**20)["shared memory"]
    assert "ulimit -n 65" in hurting(manifest, open_files=10)["open files"]
    assert all(len(hurting(manifest, **change)) == 1 for change in ({"free": 1000}, {"shared_free": 2**20}))


@pytest.mark.parametrize(
    ("codec", "hurts"), [("lz4", True), ("zstd", True), ('{"id": "zlib"}', False), ("none", False)]
)
def test_frames_that_machine_code_would_decode(tmp_path, codec, hurts):
    """If it cannot be had, that is told with the reason, for codecs that it knows."""
    path = convert([{"x": np.zeros(1024, np.float32)} for _ in range(9)], tmp_path / "p", codec=codec).path
    found = hurting(manifests.read(path), one_by_one="No module named 'numba'")
    assert ("one by one: No module named 'numba'" in found.get("codec", "")) == hurts
    assert "one by one" not in hurting(manifests.read(path)).get("codec", "")


def test_whether_machine_code_decodes(tmp_path, way):
    """It is loaded to find out; why it cannot be is told in the words of the failure."""
    assert machine_of(tmp_path).one_by_one == (None if way == "by_machine" else "not in this test")


def test_what_cannot_be_told_is_left_out(manifest):
    """On a system without /proc and /dev/shm nothing is made up."""
    found = findings(
        manifest,
        replace(GOOD, file_system=None, memory=None, free=None, shared=None, shared_free=None, open_files=None),
    )
    assert [f.topic for f in found] == ["processors", "GPU", "use"]


def test_settings_follow_from_the_machine(manifest, raw, tmp_path):
    """Blocks if the data do not fit or frames are shared; the device if there is one."""
    assert 'shuffle="block"' in setting(manifest, replace(GOOD, free=1000))
    assert setting(manifest, replace(GOOD, cuda="A GPU")).endswith(', device="cuda")')
    samples = [{"x": np.arange(n % 7, 500, dtype=np.int32)} for n in range(64)]
    coded = manifests.read(convert(samples, tmp_path / "coded", codec="zstd").path)
    assert 'shuffle="block"' in setting(coded, GOOD)
    assert "samples of 'x'" in hurting(coded)["codec"]


def test_start_methods_and_processors(manifest):
    """One processor makes workers a loss, spawn makes them slow to start."""
    advice = {f.topic: f.advice for f in findings(manifest, replace(GOOD, processors=1))}
    assert "num_workers=0" in advice["processors"]
    advice = {f.topic: f.advice for f in findings(manifest, replace(GOOD, start_method="spawn"))}
    assert "persistent_workers" in advice["processors"]


@pytest.mark.parametrize(
    ("kind", "network"),
    [("ext4", False), ("xfs", False), ("overlay", False), ("tmpfs", False), ("fuseblk", False), ("btrfs", False)]
    + [(kind, True) for kind in ("nfs", "nfs4", "cifs", "smb3", "9p", "lustre", "ceph", "fuse.sshfs", "fuse.s3fs")]
    + [("fuse.fuse-overlayfs", False), ("fuse.gcsfuse", True), ("virtiofs", True)],
)
def test_kinds_of_file_systems(kind, network):
    """Those that are reached over a network are known by name."""
    assert FileSystem("/", kind).is_network is network


def test_the_mount_of_a_folder(tmp_path):
    """The deepest mount counts, the last of two at one place, and blanks are written as escapes."""
    (tmp_path / "my data" / "set").mkdir(parents=True)
    (tmp_path / "my database").mkdir()
    mounts = tmp_path / "mounts"
    escaped = str(tmp_path / "my data").replace(" ", "\\040")
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nserver:/x {escaped} xfs rw 0 0\nserver:/x {escaped} nfs4 rw 0 0\n")
    assert file_system(tmp_path / "my data" / "set", mounts) == FileSystem(str(tmp_path / "my data"), "nfs4")
    assert file_system(tmp_path / "my database", mounts) == FileSystem("/", "ext4")
    assert file_system(tmp_path, tmp_path / "none") is None


def test_limits_of_a_container(tmp_path, monkeypatch):
    """If the container may have less memory than the machine has, its limit and use count; not the page cache."""
    meminfo, limit, used, kinds = (tmp_path / name for name in ("meminfo", "max", "current", "stat"))
    meminfo.write_text("MemTotal:  1000 kB\nMemFree: 5 kB\nMemAvailable:  800 kB\n")
    monkeypatch.setattr(machines, "_MEMORY", meminfo)
    monkeypatch.setattr(machines, "_LIMITS", ((limit, used, kinds),))
    used.write_text("100000\n")
    for text, expected in (("500000\n", (500_000, 400_000)), ("max\n", (1_024_000, 819_200))):
        limit.write_text(text)
        found = machine_of(tmp_path)
        assert (found.memory, found.free) == expected
    limit.write_text("500000\n")
    kinds.write_text("anon 30000\ninactive_file 50000\nactive_file 20000\nfile_mapped 9999\n")
    assert machine_of(tmp_path).free == 470_000
    meminfo.write_text("nonsense")
    assert machine_of(tmp_path).memory is None


def test_the_command(packer, raw, monkeypatch):
    """The text fits 80 columns, marks what hurts, and ends with a line of Python that works."""
    monkeypatch.setattr(
        "packer.cli.doctor.machine_of", lambda folder: replace(GOOD, file_system=FileSystem("/d", "nfs4"))
    )
    result = packer("doctor", raw)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["!", "disk", "nfs4,", "mounted", "at", "/d"]
    assert max(map(len, lines)) <= 80
    from readers import Loader, PackedDataset

    loader = eval(lines[-1].split(maxsplit=1)[1], {"Loader": Loader, "dataset": PackedDataset(raw)})
    assert len(loader) == 1


def test_json(packer, raw):
    """--json tells what this machine has, in bytes."""
    found = json.loads(packer("doctor", raw, "--json").stdout)
    assert found["machine"]["processors"] >= 1
    assert found["findings"][-1]["topic"] == "use"


def test_what_is_no_dataset(refused, tmp_path):
    """A folder that holds none ends it with 2."""
    refused(2, ["doctor", tmp_path], "not a packed dataset")
