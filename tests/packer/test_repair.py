"""Repairing: the same bytes again, and nothing that is right is touched."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import msgspec
import numpy as np
import pytest
from broken import cut, stopped_at
from fields import flip
from made_datasets import put_manifest
from opened_sources import source_of
from PIL import Image

from packer import stats
from packer.append import append
from packer.convert import convert
from packer.errors import DatasetError, ManifestError, SourceError, UnfinishedError, UsageError
from packer.format import manifest as manifests
from packer.merge import merge
from packer.packing import Change, LocalPlace, changing
from packer.repack import repack
from packer.repair import repair
from packer.verify import verify
from packer.watcher import Watcher


def packed(made, out, **options):
    """A dataset of several shards."""
    folder = convert(made.sources, out, workers=0, shard_size=4096, **options).path
    assert len(list((folder / "shards").glob("*.lmdb"))) == 2
    return folder


def shard_of(folder, number):
    """The path of a shard."""
    return folder / manifests.read(folder).shards[number].file


def test_nothing_to_repair(pairs, files_of, tmp_path):
    """A good dataset keeps every byte, with a source or without."""
    folder = packed(pairs, tmp_path / "out")
    before = files_of(folder)
    assert repair(folder) == repair(folder, source_of(pairs.sources)) == ()
    assert files_of(folder) == before


@pytest.mark.parametrize("change", ["flipped", "cut", "removed", "emptied", "swapped"])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_shards_get_their_bytes_back(pairs, files_of, tmp_path, change, codec):
    """Whatever happened to a shard, it is byte for byte what it was; the others are not written."""
    folder = packed(pairs, tmp_path / "out", codec=codec)
    before = files_of(folder)
    good, bad = (shard_of(folder, n) for n in range(2))
    written = good.stat().st_mtime_ns
    data = bad.read_bytes()
    if change == "flipped":
        flip(bad, 9000)
    elif change == "removed":
        bad.unlink()
    else:
        bad.write_bytes({"cut": data[:-4096], "emptied": b"", "swapped": good.read_bytes()}[change])
    told, steps = [], []
    watcher = Watcher(step=lambda *step: steps.append(step), done=lambda samples, _: told.append(samples))
    report = repair(folder, source_of(pairs.sources), watcher)
    assert report == (f"shards/{bad.name}",)
    assert not bad.exists()  # readers that have it open keep it; the new one has a name of its own
    assert files_of(folder) == before
    assert good.stat().st_mtime_ns == written
    assert [name for name, *_ in steps] == ["checking", "packing"]
    assert steps[-1] == ("packing", 0, 6)
    assert sum(told) == 6


def test_a_lost_table_of_names(pairs, files_of, tmp_path):
    """It is made from the shards, without a source."""
    folder = packed(pairs, tmp_path / "out")
    before = files_of(folder)
    for damage in (Path.unlink, lambda path: flip(path, 5000)):
        (names,) = folder.glob("names-*.lmdb")
        damage(names)
        assert repair(folder) == (names.name,)
        assert files_of(folder) == before


def test_a_lost_manifest(pairs, files_of, tmp_path):
    """It is taken from its copy, with statistics and splits."""
    folder = packed(pairs, tmp_path / "out", splits={"train": 1.0})
    stats.save(folder, stats.statistics(folder))
    before = files_of(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(ManifestError, match=r"has no manifest\.json, but a copy of it; run `packer repair`"):
        verify(folder)
    assert repair(folder) == ("manifest.json",)
    assert files_of(folder) == before
    assert verify(folder).damages == ()


def test_a_manifest_and_its_copy_are_damaged(pairs, tmp_path):
    """Nothing is guessed; a dataset of an earlier version has no copy at all."""
    folder = packed(pairs, tmp_path / "out")
    (folder / "manifest.json").write_bytes(b"{}")
    (folder / "manifest.copy.json").write_bytes(b"{}")
    with pytest.raises(ManifestError, match="and its copy are both damaged; convert the sources again"):
        repair(folder)
    (folder / "manifest.copy.json").unlink()
    with pytest.raises(ManifestError, match="but there is none; convert the sources again"):
        repair(folder)


def test_a_changed_manifest(pairs, tmp_path):
    """One that was edited by hand is taken from the copy, too."""
    folder = packed(pairs, tmp_path / "out")
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"samples": 12', '"samples": 13'))
    assert repair(folder) == ("manifest.json",)
    assert manifests.read(folder).samples == 12


def test_false_totals_of_a_column_are_put_right(pairs, files_of, tmp_path):
    """They are counted again in the shards; all else stays as it is."""
    folder = packed(pairs, tmp_path / "out")
    before, known = files_of(folder), manifests.read(folder)
    columns = {name: msgspec.structs.replace(totals, raw=totals.raw + 1) for name, totals in known.columns.items()}
    put_manifest(folder, msgspec.structs.replace(known, columns=columns))
    assert repair(folder) == ("manifest.json",)
    assert files_of(folder) == before


def test_an_unfinished_dataset_is_not_repaired(pairs, tmp_path):
    """The same conversion goes on with it."""
    stopped_at(lambda: packed(pairs, tmp_path / "out"), Change, "publish")
    with pytest.raises(UnfinishedError, match="2 of 2 shards are done; run the same"):
        repair(tmp_path / "out")


def test_a_damaged_shard_needs_its_source(pairs, rows, tmp_path):
    """Without one, or with another, nothing is changed."""
    folder = packed(pairs, tmp_path / "out")
    flip(shard_of(folder, 0), 9000)
    with pytest.raises(DatasetError, match=r"00000\.lmdb is damaged; name the sources"):
        repair(folder)
    with pytest.raises(UsageError):
        repair(folder, source_of(rows.sources))


def test_a_source_with_fewer_samples_is_refused(pairs, files_of, tmp_path):
    """Where bad samples are skipped, one more of them is told, not one fewer packed."""

    cut(pairs.folder / "hr" / "008.png")
    folder = packed(pairs, tmp_path / "out", on_error="skip")
    entry = manifests.read(folder).shards[1]
    assert (entry.samples, entry.rejected) == (5, 1)
    flip(folder / entry.file, 9000)
    before = files_of(folder)
    cut(pairs.folder / "hr" / "010.png")
    with pytest.raises(SourceError, match=r"010\.png: damaged PNG"):
        repair(folder, source_of(pairs.sources, on_error="skip"))
    assert files_of(folder).items() >= before.items()


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
    assert repair(folder, source_of(clouds.sources))
    assert files_of(folder) == before


def test_a_manifest_that_may_not_be_read_is_not_lost(pairs, files_of, tmp_path):
    """It may hold splits, which nothing else knows: without permission, say, it is not made again."""
    folder = packed(pairs, tmp_path / "out", splits={"train": 1.0})
    before = files_of(folder)
    manifest, away = folder / "manifest.json", tmp_path / "away"
    manifest.rename(away)
    manifest.symlink_to(manifest.name)  # cannot be opened, by root neither
    with pytest.raises(DatasetError, match=r"manifest\.json: cannot be read"):
        repair(folder)
    away.rename(manifest)
    assert files_of(folder) == before


@pytest.mark.parametrize("shard_size", [None, 4096])
def test_what_was_joined_and_packed_again_gets_its_bytes_back(files_of, tmp_path, shard_size):
    """Parts that were packed again as one are one part, whether shards end with them or not."""
    a, b, c = (pictures(tmp_path / names, names, 1, 20) for names in ("abcdef", "ghijkl", "mno"))
    merge([convert(source, f"{source}.packed", workers=0, codec="none").path for source in (a, b)], tmp_path / "m")
    folder = repack(tmp_path / "m", tmp_path / "d", workers=0, shard_size=shard_size).path
    append(folder, c, workers=0)
    before, joined = files_of(folder), pictures(tmp_path / "joined", "abcdefghijkl", 1, 20)
    last = len(manifests.read(folder).shards) - 1
    for number in range(last + 1):
        shard_of(folder, number).unlink()
        assert repair(folder, source_of([c if number == last else joined]))
        assert files_of(folder) == before


def pictures(folder, names, value, size=8):
    """PNG files of one colour."""
    folder.mkdir(exist_ok=True)
    for name in names:
        Image.fromarray(np.full((size, size, 3), value, np.uint8)).save(folder / f"{name}.png")
    return str(folder)


@pytest.mark.parametrize("change", ["pixels", "names"])
@pytest.mark.parametrize("left", ["missing", "cut short"])
def test_other_sources_never_replace_what_cannot_be_read(files_of, tmp_path, left, change):
    """Where nothing is left of a shard, only sources that give its very bytes make it again."""
    right = pictures(tmp_path / "right", "abc", 1)
    wrong = pictures(tmp_path / "wrong", "abc", 2) if change == "pixels" else pictures(tmp_path / "wrong", "abx", 1)
    folder = convert(right, tmp_path / "d", workers=0, codec="none").path
    shard, before = shard_of(folder, 0), files_of(folder)
    data = shard.read_bytes()
    shard.unlink() if left == "missing" else shard.write_bytes(data[:-4096])
    with pytest.raises(SourceError, match="do not give the bytes that were packed"):
        repair(folder, source_of([wrong]))
    assert repair(folder, source_of([right]))
    assert files_of(folder) == before


@pytest.mark.parametrize("counts", ["abc de", "abc def"])
def test_one_part_is_repaired_from_its_own_sources(files_of, tmp_path, counts):
    """Of what was appended or merged the sources of the part suffice, told by their number or by their names."""
    first, second = counts.split()
    one, two = pictures(tmp_path / "one", first, 1), pictures(tmp_path / "two", second, 2)
    folder = convert(one, tmp_path / "d", workers=0, codec="zstd").path
    append(folder, two, workers=0)
    before = files_of(folder)
    for number, sources in enumerate((one, two)):
        shard = shard_of(folder, number)
        flip(shard, shard.stat().st_size // 2)
        assert repair(folder, source_of([sources])) == (f"shards/{shard.name}",)
        assert files_of(folder) == before
    for shard in (folder / "shards").iterdir():
        shard.unlink()
    with pytest.raises(DatasetError, match=r"00001\.lmdb is damaged too"):
        repair(folder, source_of([one]))


def test_a_part_may_end_with_a_shard_that_holds_nothing(pairs, new_pairs, files_of, tmp_path):
    """Since all of its pictures were bad; it belongs to the part before what was appended."""
    for number in range(6, 12):
        cut(pairs.folder / "hr" / f"{number:03}.png")
    folder = packed(pairs, tmp_path / "out", on_error="skip")
    assert manifests.read(folder).shards[1].samples == 0
    more = new_pairs(tmp_path / "more", 3, 6, 5, "more")
    append(folder, more.sources, workers=0)
    before = files_of(folder)
    for number, made in enumerate((pairs, pairs, more)):
        flip(shard_of(folder, number), 9000)
        repair(folder, source_of(made.sources, on_error="skip"))
        assert files_of(folder) == before


@pytest.mark.parametrize("second", ["two.h5", "one.h5"])
def test_parts_without_names_are_told_by_their_origin(tmp_path, second):
    """Where parts of one size have no names and one origin, the sources of all are asked for."""
    paths = [tmp_path / "a" / "one.h5", tmp_path / "b" / second]
    for value, path in enumerate(paths, 1):
        path.parent.mkdir()
        with h5py.File(path, "w") as file:
            file["x"] = np.full((40, 3), value, "f4")
    folder = convert(str(paths[0]), tmp_path / "d", workers=0).path
    append(folder, str(paths[1]), workers=0)
    shard = shard_of(folder, 1)
    flip(shard, shard.read_bytes().index(np.full(9, 2, "f4").tobytes()))
    if second == "one.h5":
        with pytest.raises(UsageError, match=r"40 samples, .* in 2 parts of 40, 40; give the sources of all in"):
            repair(folder, source_of([str(paths[1])]))
        return
    assert repair(folder, source_of([str(paths[1])])) == (f"shards/{shard.name}",)
    assert verify(folder).damages == ()


def test_nothing_is_repaired_beside_another_change(pairs, tmp_path):
    """While something is appended, neither manifest nor half-written shards are touched."""
    folder = packed(pairs, tmp_path / "out")
    draft = folder / "shards" / "01234567-00002.lmdb.01234567.partial"
    draft.write_bytes(b"")
    with changing(LocalPlace(folder)), pytest.raises(UsageError, match="being changed already"):
        repair(folder)
    assert draft.exists()


def test_a_stopped_repair_goes_on(pairs, files_of, tmp_path):
    """Shards that it has packed are not packed again; half-written files go."""
    folder = packed(pairs, tmp_path / "out")
    before = files_of(folder)
    flip(shard_of(folder, 0), 9000)
    stopped_at(lambda: repair(folder, source_of(pairs.sources)), Change, "publish")
    (folder / "shards" / "01234567-00000.lmdb.01234567.partial").write_bytes(b"half")
    told = []
    repair(folder, source_of(pairs.sources), Watcher(done=lambda samples, _: told.append(samples)))
    assert told
    assert not sum(told)  # they are checked, but not packed
    assert files_of(folder) == before
