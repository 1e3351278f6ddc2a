"""A lost manifest out of the shards: the same one, whatever the dataset was put together from."""

from __future__ import annotations

import shutil

import msgspec
import pytest
from broken import stopped_at
from hypothesis import given, settings
from hypothesis import strategies as st
from made_datasets import written

from packer import merge as merging
from packer.append import append
from packer.convert import ConvertOptions, convert, open_source
from packer.errors import DatasetError
from packer.format import manifest as manifests
from packer.merge import merge
from packer.repack import repack
from packer.repair import repair
from packer.verify import verify


def lost(folder):
    """Loses the manifest, repairs the dataset, and gives the old manifest, without planned bytes, and the new one."""
    before = msgspec.structs.replace(manifests.read(folder), planned_bytes=None)
    (folder / "manifest.json").unlink()
    assert repair(folder) == ("manifest.json",)
    assert not verify(folder).damages
    return before, manifests.read(folder)


@pytest.mark.parametrize("named", [True, False])
def test_merged_datasets(tmp_path, named, contents):
    """Order, origins and names of all parts come back, also where a part was merged before."""
    a, b, c = (written(tmp_path / name, name, count, named) for name, count in [("a", 9), ("b", 5), ("c", 1)])
    merge([c, b], tmp_path / "m")
    merge([tmp_path / "m", a], tmp_path / "n")
    held = contents(tmp_path / "n")
    before, after = lost(tmp_path / "n")
    assert before == after
    assert [part["samples"] for part in after.origin["parts"]] == [1, 5, 9]
    assert contents(tmp_path / "n") == held


def test_appended_datasets(tmp_path, clouds, contents):
    """Parts of samples that were appended come back, twice appended too, with a table of names of the same file."""
    convert(clouds.sources, tmp_path / "d", workers=0, shard_size=4096)
    for name in "pq":
        (tmp_path / name).mkdir()
        shutil.copy(clouds.folder / "c3.ply", tmp_path / name / f"{name}.ply")
        append(tmp_path / "d", str(tmp_path / name), workers=0)
    held = contents(tmp_path / "d")
    before, after = lost(tmp_path / "d")
    assert before == after
    assert len(after.origin["parts"]) == 3
    assert contents(tmp_path / "d") == held


@settings(max_examples=6, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 12)), min_size=1, max_size=4))
def test_any_history(tmp_path_factory, steps):
    """Merged and appended in any order, the rebuilt manifest is the one that was lost."""
    work = tmp_path_factory.mktemp("history")
    written(work / "0", "first", 3)
    for number, (is_append, count) in enumerate(steps):
        more = written(work / f"more{number}", f"more{number}-", count)
        if is_append:
            append(work / "0", more, workers=0)
        else:
            merge([more, work / "0"], work / "1")
            shutil.rmtree(work / "0")
            (work / "1").rename(work / "0")
    before, after = lost(work / "0")
    assert before == after


def test_shuffled_datasets(tmp_path, clouds):
    """What was put into another order says so in its shards."""
    convert(clouds.sources, tmp_path / "a", workers=0)
    folder = repack(tmp_path / "a", tmp_path / "b", seed=3, workers=0, shard_size=4096).path
    before, after = lost(folder)
    assert before == after


def damaged_clouds(folder, clouds, *bad):
    """A folder of the clouds, some of which hold a word for a number, and one that is none."""
    shutil.copytree(clouds.folder, folder)
    for name in bad:
        head, end, body = (folder / f"{name}.ply").read_text().partition("end_header\n")
        (folder / f"{name}.ply").write_text(head + end + body.replace("1", "x"))
    (folder / "none.ply").write_text("nothing")
    return str(folder)


def test_samples_left_out(tmp_path, clouds):
    """How many samples each shard lacks is known from rejected.jsonl; so damaged shards are packed again."""
    source = damaged_clouds(tmp_path / "in", clouds, "c0", "c3")
    folder = convert(source, tmp_path / "d", workers=0, on_error="skip", shard_size=4096).path
    assert sum(shard.rejected for shard in manifests.read(folder).shards) == 2
    before, after = lost(folder)
    assert after == before
    (folder / after.shards[-1].file).unlink()
    found = open_source([source], ConvertOptions(on_error="skip"), [])
    assert repair(folder, found) == (after.shards[-1].file,)
    assert not verify(folder).damages


def test_samples_left_out_of_joined_datasets(tmp_path, clouds):
    """Merging and appending keep the list of what was left out, for the shards where they are now."""
    one = damaged_clouds(tmp_path / "one", clouds, "c1")
    two = damaged_clouds(tmp_path / "two", clouds, "c0", "c3")
    for path in [*(tmp_path / "two").glob("c*.ply")]:
        path.rename(path.with_name(f"other_{path.name}"))
    options = {"workers": 0, "on_error": "skip", "shard_size": 4096}
    convert(one, tmp_path / "a", **options)
    convert(two, tmp_path / "b", **options)
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "m")
    append(tmp_path / "a", two, **options)
    for name in "ma":
        before, after = lost(tmp_path / name)
        assert [s.rejected for s in before.shards] == [s.rejected for s in after.shards]
        assert sum(s.rejected for s in after.shards) == 3


def test_missing_shards_are_told(tmp_path):
    """A shard lost between others, or the last one of a dataset with names, is told, and nothing is written."""
    merge([written(tmp_path / "a", "a", 9), written(tmp_path / "b", "b", 9)], tmp_path / "m")
    count = len(manifests.read(tmp_path / "m").shards)
    for number, words in [
        (0, "not all there"),
        (count // 2 - 1, "not all there"),
        (count - 1, "last shards are gone"),
    ]:
        work = tmp_path / f"without{number}"
        shutil.copytree(tmp_path / "m", work)
        (work / "manifest.json").unlink()
        (work / "shards" / f"{number:05d}.lmdb").unlink()
        with pytest.raises(DatasetError, match=words):
            repair(work)
        assert not (work / "manifest.json").exists()


def test_shards_of_another_dataset_are_told(tmp_path):
    """A shard from the midst of a dataset cannot follow what does not lead to it."""
    merge([written(tmp_path / "a", "a", 9), written(tmp_path / "b", "b", 9)], tmp_path / "m")
    shards = tmp_path / "m" / "shards"
    shutil.copy(shards / "00001.lmdb", shards / "00003.lmdb.partial")
    (shards / "00003.lmdb.partial").replace(shards / "00003.lmdb")
    (tmp_path / "m" / "manifest.json").unlink()
    with pytest.raises(DatasetError, match="do not belong together"):
        repair(tmp_path / "m")


@pytest.mark.parametrize("named", [True, False])
def test_an_append_that_was_killed_leaves_nothing_behind(tmp_path, named):
    """Shards that were linked and never published are no part of a later append."""
    a, b, c = (written(tmp_path / name, name, count, named) for name, count in [("a", 5), ("b", 9), ("c", 1)])
    before = manifests.read(a)
    stopped_at(lambda: append(a, b, workers=0, shard_size=8192), merging, "joined")
    assert len(list((a / "shards").glob("*.lmdb"))) > len(before.shards)
    append(a, c, workers=0)
    assert len(list((a / "shards").glob("*.lmdb"))) == len(before.shards) + 1
