"""What goes wrong around a conversion: full disks, files that go, rights that are lost. An error, then it goes on."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import subprocess
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import packer
from packer.convert import ConvertOptions, convert
from packer.errors import ResourceError, SourceError, UsageError, WriteError
from packer.watcher import PACKING, Watcher

OPTIONS = ConvertOptions(codec="none", shard_size=16384, workers=0)
is_root = hasattr(os, "geteuid") and os.geteuid() == 0


@pytest.fixture
def job(new_pairs, tmp_path):
    """Forty pairs in several shards: `sources`, `folder`, `out`, and `wanted`, a dataset made without mishaps."""
    pairs = new_pairs(tmp_path / "pairs", 40, 10, 10)
    wanted = tmp_path / "wanted"
    convert(pairs.sources, wanted, OPTIONS)
    return SimpleNamespace(sources=pairs.sources, folder=pairs.folder, out=tmp_path / "out", wanted=wanted)


def midway(out, action):
    """A watcher that acts once, when the second shard is done."""
    done = []

    def hook(samples, nbytes):
        if not done and len(list(out.glob("unfinished/*-*.json"))) > 1:
            done.append(True)
            action()

    return Watcher(done=hook)


@pytest.fixture
def small_disk(tmp_path):
    """A function that mounts a file system of some KiB and files at the folder it returns; a second call resizes it."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = []

    def resize(kib, files=1000):
        options = ["-o", f"{'remount,' if mounted else ''}size={kib}k,nr_inodes={files}"]
        if subprocess.run(["mount", "-t", "tmpfs", *options, "none", place], capture_output=True).returncode:
            pytest.skip("no file system can be mounted here")
        mounted.append(kib)
        return place

    yield resize
    if mounted:
        subprocess.run(["umount", place], check=True)


@pytest.mark.skipif(not is_root, reason="mounting needs root")
def test_a_full_disk(small_disk, job, files_of):
    """Whatever the disk is too small for, the error says so, no half file stays, and with room it goes on."""
    messages = set()
    needed = sum(map(len, files_of(job.wanted).values())) // 1024
    for kib in [8, 16, *range(32, needed, 24), needed - 8]:
        out = small_disk(kib) / "out"
        for workers in (0, 2):
            with pytest.raises(WriteError, match="No space left on device") as caught:
                convert(job.sources, out, OPTIONS, workers=workers)
            messages.add(re.sub(r"\.\w{8}\.partial|:.*", "", str(caught.value).split("/out/")[-1]))
            assert not list(out.rglob("*.lmdb*.partial"))
            assert not (out / "manifest.json").exists()
    assert len(messages) > 3, messages
    small_disk(4 * needed)
    assert convert(job.sources, out, OPTIONS).kept_shards > 2
    assert files_of(out) == files_of(job.wanted)


@pytest.mark.skipif(not is_root, reason="mounting needs root")
def test_a_disk_with_no_room_for_another_file(small_disk, job):
    """It has bytes enough: the error says that there are too many files, and not to free some space."""
    out = small_disk(100_000, files=6) / "out"
    with pytest.raises(WriteError, match="takes no more files: remove some or choose another folder, then run again"):
        convert(job.sources, out, OPTIONS)
    small_disk(100_000)
    convert(job.sources, out, OPTIONS)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_source_that_goes(job, files_of, workers):
    """A file that is gone when it is to be read is named; back in its place, the conversion goes on."""
    path, away = job.folder / "hr" / "037.png", job.folder / "away"
    watcher = midway(job.out, lambda: path.rename(away))
    if workers:
        watcher = Watcher(step=lambda name, *_: path.rename(away) if name == PACKING else None)
    with pytest.raises(SourceError, match=r"037\.png: "):
        convert(job.sources, job.out, OPTIONS, workers=workers, watcher=watcher)
    away.rename(path)
    convert(job.sources, job.out, OPTIONS)
    assert files_of(job.out) == files_of(job.wanted)


BAD_MOMENTS = [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN]


@pytest.mark.parametrize("reason", [errno.EMFILE, errno.ENOMEM, *BAD_MOMENTS])
def test_no_sample_is_left_out_for_a_bad_moment(job, files_of, monkeypatch, reason):
    """A file that cannot be opened now, for want of room or for its disk, is no bad one: the same command goes on."""
    opened = os.open

    def fail(path, *rest, **more):
        if str(path).endswith("037.png"):
            raise OSError(reason, os.strerror(reason), path)
        return opened(path, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        with pytest.raises(ResourceError, match=r"037\.png: cannot be read now"):
            convert(job.sources, job.out, OPTIONS, on_error="skip")
    convert(job.sources, job.out, OPTIONS, on_error="skip")
    assert files_of(job.out) == files_of(job.wanted)


@pytest.mark.parametrize("suffix", [".npy", ".nii.gz", ".csv", ".h5", ".ply", ".tar"])
def test_no_library_hides_a_bad_moment(tmp_path, monkeypatch, suffix):
    """What a disk could not give stops, also under --on-error skip, in whichever words a library passes it on."""
    for n in range(3):
        (tmp_path / f"{n}{suffix}").write_bytes(b"x")
    (tmp_path / "0.csv").write_text("a\n1\n")

    def fail(opened, path, *rest, **more):
        if str(path).endswith(suffix):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return opened(path, *rest, **more)

    def fail_as_hdf5(path, *rest, **more):
        raise OSError(f"Can't read data (file read failed: filename = '{path}', errno = 5, error message = '...')")

    for name, opened in {"io.open": io.open, "builtins.open": open, "os.open": os.open}.items():
        monkeypatch.setattr(name, partial(fail, opened))
    monkeypatch.setattr("h5py.is_hdf5", fail_as_hdf5)
    with pytest.raises(ResourceError, match="cannot be read now"):
        convert(tmp_path / f"*{suffix}", tmp_path / "out", OPTIONS, on_error="skip")


def test_a_source_that_changes(job):
    """A file that has another size when it is read than when the plan was made is an error, not a wrong picture."""
    path = job.folder / "hr" / "037.png"
    bigger = np.zeros((5, 5, 3), np.uint8)

    def change():
        from PIL import Image

        Image.fromarray(bigger).save(path)

    with pytest.raises(SourceError, match=r"037\.png: "):
        convert(job.sources, job.out, OPTIONS, watcher=midway(job.out, change))


@pytest.mark.skipif(not is_root, reason="root alone can become somebody without rights")
def test_rights_that_are_lost(job, files_of):
    """A folder that may no longer be written to is named; with rights again the conversion goes on."""
    try:
        with pytest.raises((WriteError, SourceError), match=r"[Pp]ermission denied"):
            convert(job.sources, job.out, OPTIONS, watcher=midway(job.out, lambda: os.seteuid(65534)))
    finally:
        os.seteuid(0)
    assert convert(job.sources, job.out, OPTIONS).kept_shards >= 2
    assert files_of(job.out) == files_of(job.wanted)


def test_an_output_folder_that_goes(job, files_of):
    """A folder that somebody removes meanwhile is a clear error; the next run begins anew."""
    with pytest.raises(WriteError, match="out"):
        convert(job.sources, job.out, OPTIONS, watcher=midway(job.out, lambda: shutil.rmtree(job.out)))
    convert(job.sources, job.out, OPTIONS)
    assert files_of(job.out) == files_of(job.wanted)


def test_another_version_is_refused(job, monkeypatch):
    """What another version of packer began is not gone on with."""

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(job.sources, job.out, OPTIONS, watcher=midway(job.out, stop))
    monkeypatch.setattr(packer, "__version__", "99.0")
    with pytest.raises(UsageError, match=r"the version of packer was .* and is now 99\.0"):
        convert(job.sources, job.out, OPTIONS)
    monkeypatch.undo()
    path = job.folder / "lr" / "003.png"
    held = path.stat()
    os.utime(path, ns=(held.st_atime_ns, held.st_mtime_ns + 1))
    with pytest.raises(UsageError, match="a source file has changed"):
        convert(job.sources, job.out, OPTIONS)
    os.utime(path, ns=(held.st_atime_ns, held.st_mtime_ns))
    assert convert(job.sources, job.out, OPTIONS).kept_shards >= 2


def test_shards_without_their_note_are_nobodys(job):
    """Shards in a folder without manifest and note are never taken for those of a run."""
    for name in ("manifest.json", "manifest.copy.json"):
        (job.wanted / name).unlink()
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="not an unfinished conversion"):
            convert(job.sources, job.wanted, OPTIONS, overwrite=overwrite)


@pytest.mark.skipif(os.name == "nt", reason="names of files are text there")
def test_a_folder_whose_name_is_not_utf_8(tmp_path, pairs, contents):
    """A dataset is made there, and read, as anywhere else."""
    out = tmp_path / os.fsdecode(b"out\xff")
    convert(pairs.sources, out, OPTIONS)
    convert(pairs.sources, tmp_path / "other", OPTIONS)
    assert contents(out) == contents(tmp_path / "other")
