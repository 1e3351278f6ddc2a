"""`packer doctor`: what it finds on machines of every kind."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from packer.cli.doctor import Machine, findings, machine_of
from packer.codecs import compiling
from packer.convert import convert
from packer.format import manifest as manifests
from packer.machine import free_memory

GOOD = Machine(
    mount="/",
    kind="ext4",
    free=2**33,
    memory=2**34,
    shared=2**34,
    shared_free=2**33,
    processors=8,
    cores=8,
    torch_threads=8,
    cuda=None,
)


@pytest.fixture
def raw(tmp_path):
    """A dataset of 64 samples of 4 kB, uncompressed."""
    return convert([{"x": np.zeros(1024, np.float32)} for _ in range(64)], tmp_path / "raw", codec="none").path


@pytest.fixture
def manifest(raw):
    return manifests.read(raw)


def setting(manifest, machine):
    """The line of Python to start from."""
    return list(findings(manifest, machine))[-1].found


def hurting(manifest, **changes):
    """Topics and texts of what hurts on a machine that is good but for `changes`."""
    found = findings(manifest, replace(GOOD, **changes))
    return {f.topic: f"{f.found} {f.advice}" for f in found if f.hurts}


def test_nothing_hurts_on_a_good_machine(manifest, tmp_path):
    """A local disk, enough of everything, and a full shuffle; a batch is of 128 of many samples, or of all of few."""
    assert hurting(manifest) == {}
    assert setting(manifest, GOOD) == "Loader(dataset, batch_size=64, shuffle=True)"
    many = convert([{"x": np.zeros(4)}] * 200, tmp_path / "many").manifest
    assert setting(many, GOOD) == "Loader(dataset, batch_size=128, shuffle=True)"


def test_what_hurts(manifest):
    """Each shortage is told alone, with what to do; on one processor, workers of a DataLoader are a loss."""
    assert "copy the dataset" in hurting(manifest, kind="nfs4")["disk"]
    assert "shuffle by blocks" in hurting(manifest, free=1000)["memory"]
    assert "--shm-size" in hurting(manifest, shared_free=2**20)["shared memory"]
    one, eight = (
        {f.topic: f.advice for f in findings(manifest, replace(GOOD, processors=n, torch_threads=n))} for n in (1, 8)
    )
    assert ("num_workers=0" in one["processors"], eight["processors"]) == (True, "")
    assert not [change for change in ({"free": 1000}, {"shared_free": 2**20}) if len(hurting(manifest, **change)) != 1]


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


def test_whether_machine_code_is_compiled(tmp_path):
    """And where it is, or will be; only a machine on which every process has to compile hurts."""
    path = convert([{"x": np.zeros(1024, np.float32)} for _ in range(9)], tmp_path / "p", codec="lz4").path

    def found(**changes):
        all_found = findings(manifests.read(path), replace(GOOD, **changes))
        return next((f.found, f.advice, f.hurts) for f in all_found if f.topic == "machine code")

    assert found(compiled=[tmp_path] * 2) == (f"compiled, in {tmp_path}", "", False)
    text, advice, hurts = found(cache=[tmp_path, tmp_path / "readers"])
    assert f"{tmp_path} and {tmp_path}/readers" in text
    assert "packer doctor --compile" in advice
    assert not hurts
    text, advice, hurts = found()
    assert "NUMBA_CACHE_DIR" in advice
    assert hurts


def test_compiling_now(packer, tmp_path, monkeypatch):
    """`--compile` needs no dataset, says where the machine code is, and what to do where it cannot be kept."""
    printed = packer("doctor", "--compile").stdout.replace("\n", "")
    for module in compiling.MODULES:
        assert str(compiling.compiled_files(module)[0].parent) in printed
    monkeypatch.setattr(compiling, "compiled_files", lambda _: [])
    monkeypatch.setattr(compiling, "_folders", lambda _: [tmp_path / "file" / "none"])
    (tmp_path / "file").touch()
    result = packer("doctor", "--compile", status=1)
    assert "NUMBA_CACHE_DIR" in result.stderr
    assert "DATASET is missing" in packer("doctor", status=2).stderr


def test_what_the_system_does_not_say_is_left_out(manifest):
    """Without mounts and /dev/shm nothing is made up."""
    found = findings(manifest, replace(GOOD, mount=None, kind=None, shared_free=None, memory=None))
    assert [f.topic for f in found] == ["memory", "processors", "versions", "GPU", "use"]


def test_settings_follow_from_the_machine(manifest, raw, tmp_path):
    """Blocks if the data do not fit or frames are shared; the device if there is one."""
    assert 'shuffle="block"' in setting(manifest, replace(GOOD, free=1000))
    assert setting(manifest, replace(GOOD, cuda="A GPU")).endswith(', device="cuda")')
    samples = [{"x": np.arange(n % 7, 500, dtype=np.int32)} for n in range(64)]
    coded = manifests.read(convert(samples, tmp_path / "coded", codec="zstd").path)
    assert 'shuffle="block"' in setting(coded, GOOD)
    assert "samples of 'x'" in hurting(coded)["codec"]


def test_kinds_of_file_systems():
    """Those that are reached over a network are known by name."""
    near = ["ext4", "xfs", "overlay", "tmpfs", "fuseblk", "btrfs", "fuse.fuse-overlayfs"]
    far = ["nfs", "nfs4", "cifs", "smb3", "9p", "lustre", "ceph", "virtiofs", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse"]
    assert [kind for kind in [*near, *far] if replace(GOOD, kind=kind).is_network] == far


def test_the_mount_of_a_folder(tmp_path, monkeypatch):
    """The deepest mount counts, and the last of two at one place."""
    (tmp_path / "data" / "set").mkdir(parents=True)
    (tmp_path / "database").mkdir()
    mounts = [("/", "ext4"), (str(tmp_path / "data"), "xfs"), (str(tmp_path / "data"), "nfs4"), ("/proc", "proc")]
    found = [SimpleNamespace(mountpoint=mount, fstype=kind) for mount, kind in mounts]
    monkeypatch.setattr("psutil.disk_partitions", lambda all: found)
    machine = machine_of(tmp_path / "data" / "set")
    assert (machine.mount, machine.kind, machine.is_network) == (str(tmp_path / "data"), "nfs4", True)
    assert machine_of(tmp_path / "database").kind == "ext4"


def test_the_limit_of_a_container(manifest, monkeypatch):
    """If the container may use less than the machine has, that is shown, and torch is held to its processors."""
    monkeypatch.setattr("packer.machine.memory", lambda: 500_000)
    assert free_memory() == 500_000
    limited = replace(GOOD, free=500_000, memory=500_000, processors=2, shared=2**34)
    found = {f.topic: f"{f.found} {f.advice}" for f in findings(manifest, limited)}
    assert "500 kB of 500 kB of memory are free" in found["memory"]
    assert "2 of the machine's 8" in found["processors"]
    assert "17.2 GB free" in found["shared memory"]
    assert "torch.set_num_threads(2)" in found["torch"]


def test_the_command(packer, raw, monkeypatch):
    """The text fits 80 columns, marks what hurts, and ends with a line of Python that works."""
    monkeypatch.setattr("packer.cli.doctor.machine_of", lambda folder: replace(GOOD, mount="/d", kind="nfs4"))
    result = packer("doctor", raw)
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["!", "disk", "nfs4,", "mounted", "at", "/d"]
    assert max(map(len, lines)) <= 80
    from readers import Loader, PackedDataset

    loader = eval(lines[-1].split(maxsplit=1)[1], {"Loader": Loader, "dataset": PackedDataset(raw)})
    assert len(loader) == 1
    found = json.loads(packer("doctor", raw, "--json").stdout)["findings"]
    assert (found[-1]["topic"], found[-1]["hurts"]) == ("use", False)


def test_versions_are_named(packer, dataset):
    """That of simplejpeg among them, whose libjpeg decides pixels of JPEG."""
    text = " ".join(packer("doctor", dataset).stdout.split())
    assert re.search(r"versions packer \d.*, Python 3\..*, simplejpeg \d", text)
