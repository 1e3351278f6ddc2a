"""Verifying: a good dataset is good, and nothing that differs from what was written passes."""

from __future__ import annotations

import errno
import faulthandler
import os
import random
import re
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from made_datasets import make_plain, put_manifest

from packer.checking import Damage
from packer.errors import DatasetError, ManifestError, PackerError
from packer.format import Column, ColumnTotals
from packer.format import manifest as manifests
from packer.repair import repair
from packer.verify import verify
from packer.watcher import Watcher
from packer.writer import DatasetWriter
from readers import PackedDataset

#: Single bits flipped, each in a file that is otherwise good.
FLIPS = 1200


@pytest.fixture
def mixed(tmp_path):
    """A small dataset of every way to store a column, with names s00 to s19, in two shards."""
    rng = np.random.default_rng(0)
    codec = "raw=none,photo=zstd,cloud=bitshuffle,label=none,caption=lz4"
    with DatasetWriter(tmp_path / "mixed", codec=codec, shard_size=8000) as writer:
        for n in range(20):
            steps = np.arange(8 + n)[:, None, None]
            sample = {
                "raw": rng.integers(0, 256, (6, 5, 3), dtype=np.uint8),
                "photo": (steps * 3 + rng.integers(0, 3, (8 + n, 6, 3))).astype(np.uint8),
                "cloud": np.round(rng.normal(size=(20 + n, 3)), 1).astype(np.float32),
                "label": np.int64(n),
                "caption": "word " * n,
            }
            writer.add(sample, f"s{n:02}")
    assert len(list((tmp_path / "mixed" / "shards").iterdir())) == 2
    return make_plain(tmp_path / "mixed")


def flip(path, bit):
    """Flips one bit of a file, in place."""
    with path.open("r+b", buffering=0) as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def test_a_good_dataset_has_no_damage(mixed, files_of):
    """Every file is counted, every byte but those of the manifest is checked, and nothing is found."""
    told = []
    report = verify(mixed, Watcher(done=lambda samples, nbytes: told.append((samples, nbytes))))
    assert report.damages == ()
    assert report.files == len(files_of(mixed)) == 4
    assert report.bytes == sum(path.stat().st_size for path in mixed.rglob("*.lmdb"))
    assert sum(nbytes for _, nbytes in told) == sum(p.stat().st_size for p in (mixed / "shards").iterdir())
    assert report.frames == 10
    assert all(shard.index for shard in manifests.read(mixed).shards)


def test_thousands_of_flipped_bits_are_all_found(mixed):
    """Whichever bit of whichever file differs, that file is told; and put back, all is good."""
    chance = random.Random(0)
    files = sorted(path for path in mixed.rglob("*.lmdb"))
    names = [str(path.relative_to(mixed)) for path in files]
    assert len(files) == 3
    missed = []
    for _ in range(FLIPS // 3):
        # One in each file: they are checked one by one, and a run of all takes as long as of one.
        bits = [chance.randrange(8 * path.stat().st_size) for path in files]
        for path, bit in zip(files, bits, strict=True):
            flip(path, bit)
        found = {damage.file for damage in verify(mixed).damages}
        missed += [(name, bit) for name, bit in zip(names, bits, strict=True) if name not in found]
        for path, bit in zip(files, bits, strict=True):
            flip(path, bit)
    assert missed == []
    assert verify(mixed).damages == ()


def test_every_byte_of_the_manifest_is_checked(mixed):
    """A manifest of which any bit differs is none."""
    chance, manifest = random.Random(0), mixed / "manifest.json"
    for at in range(manifest.stat().st_size):
        bit = 8 * at + chance.randrange(8)
        flip(manifest, bit)
        with pytest.raises(PackerError):
            verify(mixed)
        flip(manifest, bit)
    assert verify(mixed).damages == ()


def test_a_flipped_bit_is_named(mixed):
    """Shard, field, sample number and sample name of the frame that holds it."""
    shard = mixed / "shards" / "00001.lmdb"
    raw = PackedDataset(mixed)["s17"]["raw"].numpy().tobytes()
    flip(shard, 8 * shard.read_bytes().index(raw) + 100)
    (damage,) = verify(mixed).damages
    assert (damage.file, damage.field) == ("shards/00001.lmdb", "raw")
    assert damage.samples is not None
    assert damage.samples[0] <= 17 < damage.samples[1]
    assert damage.names == tuple(f"s{n:02}" for n in range(*damage.samples))[:5]
    text = str(damage)
    for word in ("shards/00001.lmdb", "field 'raw'", f"samples {damage.samples[0]} to {damage.samples[1] - 1}", "s1"):
        assert word in text
    assert "checksum" in text


@pytest.mark.parametrize("file", ["shards/00000.lmdb", "shards/00001.lmdb", "names.lmdb"])
@pytest.mark.parametrize("change", ["cut", "longer", "emptied", "removed", "folder", "zeroed", "shifted"])
def test_files_that_are_not_what_they_were(mixed, file, change):
    """Cut short, longer, empty, gone, no file, full of zeros, or moved by a byte: that file is named, no other."""
    path = mixed / file
    data = path.read_bytes()
    path.unlink()
    if change == "folder":
        path.mkdir()
    elif change != "removed":
        changed = {
            "cut": data[:-1],
            "longer": data + b"x",
            "emptied": b"",
            "zeroed": bytes(len(data)),
            "shifted": b"x" + data[:-1],
        }
        path.write_bytes(changed[change])
    damages = verify(mixed).damages
    assert {damage.file for damage in damages} == {file}
    assert not [damage for damage in damages if not (str(damage).startswith(file) and str(mixed) not in str(damage))]


def test_swapped_shards(mixed):
    """Two good shards in each other's place are both found."""
    first, second = (mixed / "shards" / f"0000{n}.lmdb" for n in range(2))
    first.rename(mixed / "moved")
    second.rename(first)
    (mixed / "moved").rename(second)
    assert {damage.file for damage in verify(mixed).damages} == {"shards/00000.lmdb", "shards/00001.lmdb"}


def test_a_shard_of_another_dataset(mixed, tmp_path):
    """A good shard of the same schema and size with other values is found by its digest."""
    twins = []
    for number in range(2):
        with DatasetWriter(tmp_path / f"twin{number}", codec="none") as writer:
            for n in range(10):
                writer.add({"x": np.full(100, n + number)})
        twins += (tmp_path / f"twin{number}" / "shards").iterdir()
    shutil.copy(twins[1], twins[0])
    (damage,) = verify(tmp_path / "twin0").damages
    assert "digest" in damage.what


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("which", ["raw", "stored"])
def test_false_totals_of_a_column_are_found(mixed, which, workers):
    """What the manifest says of a column's bytes is compared with what the shards hold."""
    manifest = manifests.read(mixed)
    false = {"raw": manifest.columns["photo"].raw, "stored": manifest.columns["photo"].stored}
    false[which] += 1
    columns = {**manifest.columns, "photo": ColumnTotals(**false)}
    put_manifest(mixed, msgspec.structs.replace(manifest, columns=columns))
    (damage,) = verify(mixed, workers=workers).damages
    assert (damage.file, damage.field) == ("manifest.json", "photo")
    assert f"{false[which]:,}" in damage.what
    assert f"{false[which] - 1:,}" in damage.what


def test_false_scales_of_shapes_are_found(tmp_path):
    """Each field that follows another in all samples says so, and how many times as large; a false one is a damage."""
    with DatasetWriter(tmp_path / "p", shard_size=4096) as writer:
        for n in range(1, 20):
            sizes = {"mask": (n, 3), "lr": (2 * n, n + 1), "hr": (6 * n, 3 * n + 3), "mid": (3 * n, 0), "label": (n, 3)}
            writer.add({name: np.zeros(size, np.uint8) for name, size in sizes.items()} | {"text": "a" * n})
    manifest = manifests.read(tmp_path / "p")
    scales = {name: column.scale for name, column in manifest.columns.items()}
    assert scales == {
        "mask": None,
        "lr": None,
        "hr": ("lr", 3, 1),
        "mid": ("mask", 3, 1),
        "label": ("mask", 1, 1),
        "text": None,
    }
    assert len(manifest.shards) > 2
    assert not verify(tmp_path / "p").damages
    false = msgspec.structs.replace(manifest.columns["hr"], scale=("lr", 2, 1))
    put_manifest(tmp_path / "p", msgspec.structs.replace(manifest, columns={**manifest.columns, "hr": false}))
    (damage,) = verify(tmp_path / "p").damages
    assert (damage.file, damage.field) == ("manifest.json", "hr")


def test_a_file_that_nobody_knows(mixed):
    """What lies between the shards and does not belong there is told."""
    (mixed / "shards" / "00009.lmdb").write_bytes(b"")
    (damage,) = verify(mixed).damages
    assert damage.file == "shards/00009.lmdb"
    assert "does not know" in damage.what
    assert not damage.repairable


def test_what_is_no_dataset(mixed, tmp_path):
    """A lost or changed manifest, and a folder without one, is an error and not a report."""
    with pytest.raises(DatasetError, match="does not exist"):
        verify(tmp_path / "nothing")
    manifest = mixed / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"samples": 20', '"samples": 21'))
    with pytest.raises(ManifestError):
        verify(mixed)
    manifest.unlink()
    with pytest.raises(DatasetError, match="no manifest"):
        verify(mixed)


def test_a_damaged_copy_of_the_manifest_is_found(tmp_path):
    """Every bit of the copy counts as well; `repair` writes it again."""
    with DatasetWriter(tmp_path / "d") as writer:
        writer.add({"x": np.zeros(3)})
    copy = tmp_path / "d" / "manifest.copy.json"
    whole = copy.read_bytes()
    flip(copy, 8 * 40)
    (damage,) = verify(tmp_path / "d").damages
    assert damage.file == copy.name
    assert repair(tmp_path / "d") == (copy.name,)
    assert copy.read_bytes() == whole


@pytest.mark.parametrize("file", ["shards/00001.lmdb", "names.lmdb"])
@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (errno.EACCES, "Permission denied"),
        (errno.EMFILE, "as many files open as it may|Too many open files"),
        (errno.EIO, ""),
    ],
)
def test_a_file_that_cannot_be_opened(mixed, monkeypatch, file, reason, words):
    """Without permission, or with too many files open, nothing is known of it: an error. A disk's error is damage."""

    def refused(function):
        def refuse(path, *rest, **more):
            if str(path) == str(mixed / file):
                raise OSError(reason, os.strerror(reason), str(path))
            return function(path, *rest, **more)

        return refuse

    monkeypatch.setattr("os.open", refused(os.open))
    monkeypatch.setattr("pathlib.Path.open", refused(Path.open))
    if not words:
        assert {damage.file for damage in verify(mixed).damages} == {file}
        return
    with pytest.raises(DatasetError, match=f"{file}: cannot be (opened|read): .*({words})") as caught:
        verify(mixed)
    assert "repair" not in str(caught.value)


def test_a_damage_names_its_file_once(mixed):
    """What is said of a file does not begin with it again, nor end with what the whole report ends with."""
    for name in ("shards/00000.lmdb", "names.lmdb"):
        (mixed / name).unlink()
    with (mixed / "shards" / "00001.lmdb").open("ab") as file:
        file.write(b"x")
    names, first, second = map(str, verify(mixed).damages)
    assert first == "shards/00000.lmdb: it is missing"
    assert names == "names.lmdb: it is missing"
    assert re.fullmatch(r"shards/00001.lmdb: [\d,]+ bytes, [\d,]+ expected: it was cut short or changed", second)


def test_long_lists_of_names_are_cut():
    """Five names at most, with dots where there are more samples."""
    names = tuple("abcde")
    assert "(a, b, c, d, e, ...)" in str(Damage("f", "w", "x", (0, 9), names))
    assert "(a, b, c, d, e)" in str(Damage("f", "w", "x", (0, 5), names))


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_shards_are_checked_by_processes(mixed, workers):
    """The report is the same by however many processes, in the order of the shards, and progress adds up."""
    for number in range(2):
        flip(mixed / "shards" / f"0000{number}.lmdb", 8 * 5000)
    told = []
    report = verify(mixed, Watcher(done=lambda samples, nbytes: told.append(nbytes)), workers)
    assert report == verify(mixed)
    assert {damage.file for damage in report.damages} == {"shards/00000.lmdb", "shards/00001.lmdb"}
    assert sum(told) == sum(p.stat().st_size for p in (mixed / "shards").iterdir())


def test_a_file_that_ends_the_process_is_damaged(tmp_path, monkeypatch):
    """As where the disk cannot read a page: the other shards are checked, those behind it in its process too."""
    with DatasetWriter(tmp_path / "d", shard_size=8000, codec="none") as writer:
        for n in range(6):
            writer.add({"x": np.full(1000, n)})
    bad = make_plain(tmp_path / "d") / "shards" / "00002.lmdb"
    check = Column.check_frames

    def cut_short(self):
        if self.index.path == str(bad):
            faulthandler.disable()  # of the process that ends
            os.truncate(bad, 4096)
        return check(self)

    monkeypatch.setattr(Column, "check_frames", cut_short)
    report = verify(tmp_path / "d", workers=2)
    (damage,) = report.damages
    assert (damage.file, damage.samples) == ("shards/00002.lmdb", None)
    assert damage.what == "reading it crashes the process (SIGBUS): check the disk"
    assert report.frames == 5
