"""Repairing: the same bytes again, and nothing that is right is touched."""

from __future__ import annotations

import shutil

import h5py
import numpy as np
import pytest

from packer import repair as repairing
from packer import stats
from packer.append import append
from packer.convert import ConvertOptions, convert, open_source
from packer.errors import DatasetError, SourceError, UnfinishedError, UsageError
from packer.format import manifest as manifests
from packer.repair import RepairReport, repair
from packer.verify import verify


def source_of(sources, **options):
    return open_source(list(sources), ConvertOptions(**options), [])


def packed(made, out, **options):
    """A dataset of several shards."""
    folder = convert(made.sources, out, workers=0, shard_size=4096, **options).path
    assert len(list((folder / "shards").glob("*.lmdb"))) == 2
    return folder


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def test_nothing_to_repair(pairs, files_of, tmp_path):
    """A good dataset keeps every byte, with a source or without."""
    folder = packed(pairs, tmp_path / "out")
    before = files_of(folder)
    assert repair(folder) == repair(folder, source_of(pairs.sources)) == RepairReport(False, False, (), ())
    assert files_of(folder) == before


@pytest.mark.parametrize("change", ["flipped", "cut", "removed", "emptied", "swapped"])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_shards_get_their_bytes_back(pairs, files_of, tmp_path, change, codec):
    """Whatever happened to a shard, it is byte for byte what it was; the others are not written."""
    folder = packed(pairs, tmp_path / "out", codec=codec)
    before = files_of(folder)
    good, bad = (folder / "shards" / f"0000{n}.lmdb" for n in range(2))
    written = good.stat().st_mtime_ns
    data = bad.read_bytes()
    if change == "flipped":
        flip(bad, 9000)
    elif change == "removed":
        bad.unlink()
    else:
        bad.write_bytes({"cut": data[:-4096], "emptied": b"", "swapped": good.read_bytes()}[change])
    told, shards = [], []
    report = repair(
        folder, source_of(pairs.sources), lambda samples, nbytes: told.append(samples), damaged=shards.extend
    )
    assert report == RepairReport(False, False, ("shards/00001.lmdb",), ())
    assert files_of(folder) == before
    assert good.stat().st_mtime_ns == written
    assert sum(told) == sum(shard.samples for shard in shards) == 6


@pytest.mark.parametrize("kind", ["clouds", "rows"])
def test_other_kinds_get_their_bytes_back(request, files_of, tmp_path, kind):
    """Ragged fields with names, and rows without, are packed again with the map they had."""
    made = request.getfixturevalue(kind)
    folder = convert(made.sources, tmp_path / "out", workers=0, shard_size=4096).path
    before = files_of(folder)
    for path in (folder / "shards").iterdir():
        flip(path, path.stat().st_size // 2)
    report = repair(folder, source_of(made.sources))
    assert report.shards
    assert report.changed == ()
    assert files_of(folder) == before


def test_a_lost_table_of_names(pairs, files_of, tmp_path):
    """It is made from the shards, without a source."""
    folder = packed(pairs, tmp_path / "out")
    before = files_of(folder)
    for damage in ((folder / "names.lmdb").unlink, lambda: flip(folder / "names.lmdb", 5000)):
        damage()
        assert repair(folder) == RepairReport(False, True, (), ())
        assert files_of(folder) == before


def test_a_lost_manifest(pairs, files_of, tmp_path):
    """It is made from the shards and says what it said; only statistics that it kept are forgotten."""
    folder = packed(pairs, tmp_path / "out")
    before, known = files_of(folder), manifests.read(folder)
    stats.save(folder, stats.statistics(folder))
    (folder / "manifest.json").unlink()
    assert repair(folder).manifest
    assert manifests.read(folder) == known
    assert files_of(folder) | {"manifest.json": before["manifest.json"]} == before
    assert verify(folder).damages == ()


def test_a_changed_manifest(pairs, tmp_path):
    """One that was edited by hand is made again too."""
    folder = packed(pairs, tmp_path / "out")
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"samples": 12', '"samples": 13'))
    assert repair(folder).manifest
    assert manifests.read(folder).samples == 12


def test_a_manifest_needs_all_shards(pairs, tmp_path):
    """With a shard gone as well there is nothing to make it from, and an unfinished dataset is not repaired."""
    folder = packed(pairs, tmp_path / "out")
    (folder / "manifest.json").unlink()
    (folder / "unfinished.json").write_text('{"shards": 2}')
    with pytest.raises(UnfinishedError):
        repair(folder)
    (folder / "unfinished.json").unlink()
    (folder / "shards" / "00000.lmdb").unlink()
    with pytest.raises(DatasetError, match="not all there"):
        repair(folder)


def test_a_damaged_shard_needs_its_source(pairs, rows, tmp_path):
    """Without one, or with another, nothing is changed."""
    folder = packed(pairs, tmp_path / "out")
    flip(folder / "shards" / "00000.lmdb", 9000)
    with pytest.raises(DatasetError, match=r"00000\.lmdb is damaged; name the sources"):
        repair(folder)
    with pytest.raises(UsageError):
        repair(folder, source_of(rows.sources))


def test_a_source_that_has_changed_is_refused(rows, files_of, tmp_path):
    """What can still be read of the old shard must be the same in the new one; else nothing is replaced."""
    folder = convert(rows.sources, tmp_path / "out", workers=0, codec="none").path
    shard = folder / "shards" / "00000.lmdb"
    flip(shard, shard.read_bytes().index(rows.label.tobytes()[:400]))
    with h5py.File(rows.path, "a") as file:
        file["x"][5] = 0
    before = files_of(folder)
    with pytest.raises(SourceError, match="has changed"):
        repair(folder, source_of(rows.sources))
    assert files_of(folder) == before


def test_other_bytes_of_the_same_samples(pairs, monkeypatch, tmp_path):
    """Another version of a codec's library writes other bytes: they are taken, and the manifest says so.

    Statistics kept in the manifest stay: the samples are the same.
    """
    folder = packed(pairs, tmp_path / "out", codec="none")
    stats.save(folder, stats.statistics(folder))
    flip(folder / "shards" / "00001.lmdb", 9000)
    packed_again = repairing.write_shard

    def slightly_longer(task, progress):
        task = type(task)(**{**vars(task), "map_size": task.map_size + 2**20})
        return packed_again(task, progress)

    monkeypatch.setattr(repairing, "write_shard", slightly_longer)
    report = repair(folder, source_of(pairs.sources))
    assert report == RepairReport(False, False, ("shards/00001.lmdb",), ("shards/00001.lmdb",))
    assert verify(folder).damages == ()
    assert stats.kept_statistics(manifests.read(folder)) == stats.statistics(folder)
    np.testing.assert_equal(manifests.read(folder).samples, 12)


def test_what_an_earlier_repair_left_is_cleared_away(pairs, files_of, tmp_path):
    """Half-written shards go."""
    folder = packed(pairs, tmp_path / "out")
    before = files_of(folder)
    (folder / "shards" / "00000.lmdb.partial").write_bytes(b"half")
    repair(folder)
    assert files_of(folder) == before


def test_joined_datasets_get_their_bytes_back(clouds, files_of, tmp_path):
    """Shards that were appended are packed again as they were, from a source of all samples in their order."""
    for name, numbers in (("one", (0, 1, 2)), ("two", (3, 4))):
        (tmp_path / name).mkdir()
        for number in numbers:
            shutil.copy(clouds.folder / f"c{number}.ply", tmp_path / name)
    folder = convert(str(tmp_path / "one"), tmp_path / "d", workers=0, shard_size=4096, codec="zstd").path
    append(folder, str(tmp_path / "two"), workers=0, shard_size=4096)
    before = files_of(folder)
    for path in (folder / "shards").iterdir():
        path.unlink()
    assert repair(folder, source_of(clouds.sources)).changed == ()
    assert files_of(folder) == before
