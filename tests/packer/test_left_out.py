"""The list of samples that were left out: its manifest knows it, and nothing that is published of it is lost."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from packer import left_out
from packer.append import append
from packer.convert import convert
from packer.errors import DamagedError
from packer.format import manifest as manifests
from packer.left_out import read_left_out, salvage_left_out, write_left_out
from packer.merge import merge
from packer.rejected import Rejected
from packer.repair import repair
from packer.verify import verify

LIST = "rejected.jsonl"


def cut_short(folder: Path, clouds: Any, *names: str) -> str:
    """A folder with a good cloud, and one cut short for each name."""
    folder.mkdir()
    whole = (clouds.folder / "c3.ply").read_bytes()
    (folder / f"{folder.name}.ply").write_bytes(whole)
    for name in names:
        (folder / f"{name}.ply").write_bytes(whole[:-5])
    return str(folder)


@pytest.fixture
def dataset(tmp_path: Path, clouds: Any) -> Path:
    """One sample, and a list of two that were left out."""
    source = cut_short(tmp_path / "in", clouds, "bad1", "bad2")
    return convert(source, tmp_path / "d", workers=0, on_error="skip").path


def found(folder: Path) -> list[str]:
    """Files that are damaged."""
    return [damage.file for damage in verify(folder).damages]


def test_the_manifest_knows_the_list(dataset: Path) -> None:
    """Its bytes are checked with all others, and nothing else of the folder is unknown."""
    manifest = manifests.read(dataset)
    entry = manifest.left_out
    assert not isinstance(entry, msgspec.UnsetType)
    assert (entry.file, entry.bytes) == (LIST, (dataset / LIST).stat().st_size)
    assert [Path(bad.file).name for bad in read_left_out(dataset, manifest)] == ["bad1.ply", "bad2.ply"]
    report = verify(dataset)
    assert (report.damages, report.files) == ((), len([path for path in dataset.rglob("*") if path.is_file()]))
    assert report.bytes == manifest.file_bytes + entry.bytes


def test_nothing_left_out_is_no_list(tmp_path: Path, clouds: Any) -> None:
    """A dataset of good samples says nothing of a list."""
    folder = convert(cut_short(tmp_path / "in", clouds), tmp_path / "d", workers=0, on_error="skip").path
    assert manifests.read(folder).left_out is msgspec.UNSET
    assert b"left_out" not in (folder / "manifest.json").read_bytes()
    assert not (folder / LIST).exists()


def test_every_flipped_bit_is_found(dataset: Path) -> None:
    """One bit of each byte, chosen by chance."""
    path, chance = dataset / LIST, random.Random(0)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << chance.randrange(8)]) + whole[at + 1 :])
        assert found(dataset) == [LIST]
    path.write_bytes(whole)
    assert not found(dataset)


@pytest.mark.parametrize("change", ["removed", "cut", "emptied", "longer", "a folder"])
def test_other_lists_are_found_and_written_anew(dataset: Path, change: str) -> None:
    """What is left of a list is kept by `repair`, and the manifest knows it then."""
    path = dataset / LIST
    whole = path.read_bytes()
    if change == "longer":
        path.write_bytes(whole + b"\n")
    elif change in ("cut", "emptied"):
        path.write_bytes(whole[: -10 if change == "cut" else 0])
    else:
        path.unlink()
        if change == "a folder":
            path.mkdir()
    (damage,) = verify(dataset).damages
    assert damage.file == LIST
    assert "packer" not in damage.what
    if change == "a folder":
        path.rmdir()
    kept = {"longer": ["bad1.ply", "bad2.ply"], "cut": ["bad1.ply"]}.get(change, [])
    report = repair(dataset)
    assert (report.left_out, report.shards, report.names, report.manifest) == (len(kept), (), False, False)
    after = manifests.read(dataset)
    assert [Path(bad.file).name for bad in read_left_out(dataset, after)] == kept
    assert [shard.rejected for shard in after.shards] == [2]
    assert not found(dataset)


def test_damaged_lists_are_not_joined(dataset: Path, tmp_path: Path, clouds: Any) -> None:
    """Appending and merging would hide the damage: they refuse, before anything is packed."""
    path = dataset / LIST
    path.write_bytes(path.read_bytes().replace(b"bad1", b"bad7"))
    more = cut_short(tmp_path / "more", clouds)
    whole = convert(more, tmp_path / "w", workers=0).path
    before = (dataset / "manifest.json").read_bytes()
    with pytest.raises(DamagedError, match=r"rejected.jsonl: its digest is wrong.*packer repair"):
        append(dataset, more, workers=0)
    with pytest.raises(DamagedError, match="digest is wrong"):
        merge([whole, dataset], tmp_path / "m")
    assert not (tmp_path / "m" / "manifest.json").exists()
    assert (dataset / "manifest.json").read_bytes() == before
    assert not list(tmp_path.glob(".d.*"))


def test_lists_of_joined_datasets(dataset: Path, tmp_path: Path, clouds: Any) -> None:
    """One behind the other, with the numbers that their shards have now."""
    other = convert(cut_short(tmp_path / "more", clouds, "bad3"), tmp_path / "o", workers=0, on_error="skip").path
    shutil.copytree(dataset, tmp_path / "a")
    merge([dataset, other], tmp_path / "m")
    append(tmp_path / "a", str(tmp_path / "more"), workers=0, on_error="skip")
    for folder in (tmp_path / "m", tmp_path / "a"):
        listed = read_left_out(folder, manifests.read(folder))
        places = [(Path(bad.file).name, bad.shard) for bad in listed]
        assert places == [("bad1.ply", 0), ("bad2.ply", 0), ("bad3.ply", 1)]
        assert not found(folder)


def test_a_killed_append_leaves_the_list_of_the_dataset(
    dataset: Path, tmp_path: Path, clouds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it listed before the manifest knew is no part of the dataset, and is listed once when it goes on."""
    more = cut_short(tmp_path / "more", clouds, "bad3")
    shutil.copytree(dataset, tmp_path / "never")
    old = read_left_out(dataset, manifests.read(dataset))

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("packer.append.write_synced", stopped)  # the note, which comes before the manifest
        with pytest.raises(KeyboardInterrupt):
            append(dataset, more, workers=0, on_error="skip")
    assert (dataset / LIST).read_bytes().count(b"\n") == 3
    assert read_left_out(dataset, manifests.read(dataset)) == old
    assert not found(dataset)
    for folder in (dataset, tmp_path / "never"):
        append(folder, more, workers=0, on_error="skip")
    assert (dataset / LIST).read_bytes() == (tmp_path / "never" / LIST).read_bytes()
    assert manifests.read(dataset).left_out == manifests.read(tmp_path / "never").left_out


def test_the_list_is_replaced_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the disk takes a part of the list of what was left out, the old list has its bytes."""
    write_left_out(tmp_path, [Rejected("a.png", "bad", 0)])
    before = (tmp_path / LIST).read_bytes()

    def fail(path: Path, data: bytes) -> None:
        path.write_bytes(data[:5])
        raise OSError("disk")

    monkeypatch.setattr(left_out, "write_synced", fail)
    with pytest.raises(OSError, match="disk"):
        write_left_out(tmp_path, [Rejected("b.png", "worse", 1)])
    assert (tmp_path / LIST).read_bytes() == before


def test_what_can_be_read_of_a_list(tmp_path: Path) -> None:
    """Lines that are damaged are passed over, and those of shards that are not there."""
    good, none, later = Rejected("a.png", "bad", 0), Rejected("b.png", "no picture"), Rejected("c.png", "bad", 5)
    write_left_out(tmp_path, [good, none, later], b'{"file": 3}\n\xff\n')
    assert salvage_left_out(tmp_path, 5) == [good, none]
    assert salvage_left_out(tmp_path, 6) == [good, none, later]
    assert salvage_left_out(tmp_path / "nothing", 6) == []
