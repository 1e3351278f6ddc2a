"""The manifest: reads back as written; whatever is wrong in it is an error that names the place."""

from __future__ import annotations

import itertools
import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from made_datasets import put_manifest

from packer.errors import DatasetError, ManifestError, NoDatasetError, UnfinishedError, UsageError
from packer.format import ColumnTotals, Field, FieldSpec, FileEntry, FrameRule, Manifest, ShardEntry
from packer.format import manifest as manifests
from packer.writer import DatasetWriter

DIGEST = "0123456789abcdef" * 2
FIELDS = (
    Field(
        name="hr", dtype="uint8", kind="image", shape=(None, None, 3), codec=({"id": "lz4"},), frame=FrameRule(rows=8)
    ),
    Field(name="label", dtype="int64", frame=FrameRule(samples=8192)),
)


def example(**changes: Any) -> Manifest:
    members: dict[str, Any] = {
        "tool": "packer 1.0",
        "samples": 5,
        "fields": FIELDS,
        "shards": (
            ShardEntry(file="shards/00000.lmdb", bytes=8192, digest=DIGEST, samples=3),
            ShardEntry(file="shards/00001.lmdb", bytes=4096, digest=DIGEST, samples=2),
        ),
        "names": FileEntry(file="names.lmdb", bytes=4096, digest=DIGEST),
        "columns": {"hr": ColumnTotals(raw=10, stored=9), "label": ColumnTotals(raw=40, stored=40)},
        "origin": {"kind": "images", "größe": [1, None, 2.5]},
        "planned_bytes": 12288,
    }
    return Manifest(**{**members, **changes})


def signed(document: Any) -> bytes:
    """The bytes of a manifest with these members and a right digest, whatever they are."""
    body = msgspec.json.format(msgspec.json.encode(document), indent=1)[:-2]
    return body + b',\n "digest": "' + xxhash.xxh3_128_hexdigest(body + b"\n}").encode() + b'"\n}\n'


def document() -> dict[str, Any]:
    members = json.loads(manifests.encode(example()))
    del members["digest"]
    return dict(members)


def changed(place: str, value: Any) -> bytes:
    """A manifest with a right digest in which the member at `place` (`shards.0.file`) is `value`; or is gone."""
    members = document()
    *path, last = place.split(".")
    at: Any = members
    for step in path:
        at = at[int(step)] if isinstance(at, list) else at[step]
    if value is ...:
        del at[last]
    else:
        at[int(last) if isinstance(at, list) else last] = value
    return signed(members)


# ---------------------------------------------------------------- good ones


def test_a_manifest_reads_back_as_written(tmp_path: Path) -> None:
    """Every member survives, and no temporary file is left."""
    put_manifest(tmp_path, example())
    assert manifests.read(tmp_path) == example()
    assert [p.name for p in tmp_path.iterdir()] == ["manifest.json"]
    assert example().file_bytes == 8192 + 4096 + 4096
    for place in ("left_out", "constants"):
        assert manifests.decode(changed(place, None), "m") == example()


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**53), 2**53),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=10,
)


def test_a_manifest_that_is_still_the_same_is_not_decoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its digest tells; another manifest, one written otherwise, a shorter file and none are read as ever."""
    path, manifest = tmp_path / "manifest.json", example()
    other = example(tool="packer 2.0")
    put_manifest(tmp_path, other)
    assert manifests.read_again(tmp_path, manifest) == other
    members = json.loads(manifests.encode(manifest))
    members.pop("digest")
    body = json.dumps(members, indent=3)[:-2].encode()
    digest = xxhash.xxh3_128_hexdigest(body + b"\n}")
    path.write_bytes(body + f',\n "digest": "{digest}"\n}}\n'.encode())
    again = manifests.read_again(tmp_path, manifest)
    assert again == manifest
    assert again is not manifest
    path.write_bytes(b"{}")
    with pytest.raises(ManifestError):
        manifests.read_again(tmp_path, manifest)
    path.unlink()
    with pytest.raises(DatasetError):
        manifests.read_again(tmp_path, manifest)
    put_manifest(tmp_path, manifest)
    monkeypatch.delattr(manifests, "decode")
    assert manifests.read_again(tmp_path, manifest) is manifest


@given(origin=st.dictionaries(st.text(), json_values, max_size=4))
def test_any_origin_survives(origin: dict[str, Any]) -> None:
    """Attributes are any JSON, in any script."""
    manifest = example(origin=origin)
    assert manifests.decode(manifests.encode(manifest), "m") == manifest


@given(numbers=st.sets(st.integers(0, 40)))
def test_the_numbers_of_a_split_survive_as_few_ranges(numbers: set[int]) -> None:
    """A split gives back the numbers that its ranges were made of, ascending, with a gap between two ranges."""
    held = np.array(sorted(numbers), np.int64)
    ranges = manifests.number_ranges(held)
    assert not [(one, two) for one, two in itertools.pairwise(ranges) if one[1] >= two[0]]
    found = manifests.range_numbers(ranges)
    assert found.dtype == np.int64
    assert found.tolist() == held.tolist()


def test_a_split_is_found_by_its_name() -> None:
    """Splits are written and read; one that is not there is an error that says which are."""
    manifest = example(splits={"train": ((0, 2), (4, 5)), "valid": ()})
    assert manifests.decode(manifests.encode(manifest), "m") == manifest
    assert manifest.split("train").tolist() == [0, 1, 4]
    assert manifest.split("valid").tolist() == []
    with pytest.raises(UsageError, match="no split 'test'; it has train, valid"):
        manifest.split("test")
    with pytest.raises(UsageError, match="no split 'test'; it has none"):
        example().split("test")


def test_the_bytes_of_a_manifest() -> None:
    """Indented JSON in the order of the members; the digest is the last, over all before it."""
    data = manifests.encode(example())
    members = "format version tool samples fields shards names columns origin planned_bytes digest"
    assert list(json.loads(data)) == members.split()
    assert data.startswith(b'{\n "format": "packed dataset",\n "version": 1,\n "tool": "packer 1.0",\n')
    assert data[-50:-46] == b',\n "'
    assert signed(document()) == data


# ---------------------------------------------------------------- wrong ones


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        ("format", "other", "not the manifest"),
        ("format", ..., "not the manifest"),
        ("version", 2, "version 2"),
        ("version", ..., "version None"),
        ("tool", ..., "tool"),
        ("samples", -1, r"\.samples"),
        ("samples", 6, "shards hold 5 samples, not 6"),
        ("samples", 2**60, r"\.samples"),
        ("samples", 5.5, r"\.samples"),
        ("samples", ..., "samples"),
        ("fields", [], r"\.fields"),
        ("fields.0.name", "a/b", r"\.fields\[0\]"),
        ("fields.0.name", "label", "two fields have one name"),
        ("fields.0.shape", [2**70, 1, 3], r"\.fields\[0\]\.shape\[0\]"),
        ("shards.0.file", "/etc/passwd", r"leaves the folder.*\.shards\[0\]"),
        ("shards.0.file", "../other/00000.lmdb", r"leaves the folder.*\.shards\[0\]"),
        ("shards.0.file", "shards/../../x", r"leaves the folder.*\.shards\[0\]"),
        ("shards.0.file", "shards\\x", r"leaves the folder.*\.shards\[0\]"),
        ("shards.0.file", "C:x", r"leaves the folder.*\.shards\[0\]"),
        ("shards.0.file", "a\0b", r"leaves the folder.*\.shards\[0\]"),
        ("shards.0.file", "", r"plain path.*\.shards\[0\]"),
        ("shards.0.file", ".", r"plain path.*\.shards\[0\]"),
        ("shards.0.file", "./a", r"plain path.*\.shards\[0\]"),
        ("shards.0.file", "a//b", r"plain path.*\.shards\[0\]"),
        ("shards.0.file", "a/", r"plain path.*\.shards\[0\]"),
        ("shards.0.file", "shards/00001.lmdb", "two shards have one file"),
        ("shards.0.bytes", -4096, r"\.shards\[0\]\.bytes"),
        ("shards.1.bytes", ..., r"\.shards\[1\]"),
        ("shards.0.samples", 4, "shards hold 6 samples, not 5"),
        ("shards.0.digest", "xyz", r"\.shards\[0\]\.digest"),
        ("shards.0.digest", DIGEST.upper(), r"\.shards\[0\]\.digest"),
        ("shards.0.more", 1, r"\.shards\[0\]"),
        ("columns", {}, "columns and fields"),
        ("columns.hr.raw", -1, r"\.columns\[\.\.\.\]\.raw"),
        ("origin", [], r"\.origin"),
        ("planned_bytes", -1, r"\.planned_bytes"),
        ("stats", None, r"\.stats"),
        ("splits", None, r"\.splits"),
        ("classes", None, r"\.classes"),
        ("classes", [], r"\.classes"),
        ("splits", {"train": [[0, 6]]}, "split 'train': its ranges"),
        ("splits", {"train": [[2, 2]]}, "split 'train': its ranges"),
        ("splits", {"train": [[2, 1]]}, "split 'train': its ranges"),
        ("splits", {"train": [[2, 4], [3, 5]]}, "split 'train': its ranges"),
        ("splits", {"train": [[4, 5], [0, 1]]}, "split 'train': its ranges"),
        ("splits", {"train": [[-1, 1]]}, r"\.splits"),
        ("splits", {"train": [[0]]}, r"\.splits"),
        ("splits", {"train": [0, 1]}, r"\.splits"),
        ("splits", {"": [[0, 1]]}, r"\.splits"),
        ("unknown", 1, "unknown"),
    ],
)
def test_a_wrong_member_is_named(place: str, value: Any, named: str) -> None:
    """Each member is checked though the digest is right: the error says the file and the place in it."""
    with pytest.raises(ManifestError, match=rf"(?s)m\.json.*{named}"):
        manifests.decode(changed(place, value), "m.json")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        manifests.encode(example())[:300],
        b"null",
        b"[]",
        b"5",
        b"\xff\xfe",
        b'"packed dataset"',
        b"{}",
        b"PK\x03\x04",
    ],
)
def test_other_files_are_not_manifests(data: bytes) -> None:
    """Bytes that are no manifest at all are a ManifestError; what is no JSON any more can be made again."""
    with pytest.raises(ManifestError, match=r"m\.json: not the manifest|m\.json: .*; run `packer repair`"):
        manifests.decode(data, "m.json")


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_deep_json_is_an_error_and_not_a_crash(opening: bytes) -> None:
    """A million brackets cost neither the stack nor much memory."""
    deep = opening * 10**6
    whole = b'{"format": "packed dataset", "version": 1, "origin": ' + deep
    for data in (deep, whole):
        with pytest.raises(ManifestError, match=r"m\.json"):
            manifests.decode(data, "m.json")


def test_huge_shapes_cost_no_memory() -> None:
    """Nothing is allocated for what a manifest claims."""
    data = changed("fields.0.shape", [2**47, 1, 1])
    tracemalloc.start()
    try:
        assert manifests.decode(data, "m.json").fields[0].shape == (2**47, 1, 1)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_every_flipped_bit_is_found() -> None:
    """No byte of the file can change unnoticed, those of the digest and white space included."""
    data = manifests.encode(example())
    chance = random.Random(1)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << chance.randrange(8)
        with pytest.raises(ManifestError):
            manifests.decode(bytes(damaged), "m.json")


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d + b"\n",
        lambda d: d.replace(b"\n", b"\r\n"),
        lambda d: b" " + d,
        lambda d: d.replace(b"packer 1.0", b"packer 1.1"),
    ],
)
def test_a_changed_manifest_says_so(change: Any) -> None:
    """A right document with a wrong digest, also of an editor or a transfer that touched white space alone."""
    with pytest.raises(ManifestError, match="wrong digest"):
        manifests.decode(change(manifests.encode(example())), "m.json")


# ---------------------------------------------------------------- folders


def test_folders_that_hold_no_dataset(tmp_path: Path) -> None:
    """Absent, a file, a file of a dataset, empty: each has its sentence."""
    (tmp_path / "file").touch()
    shard = tmp_path / "good" / "shards" / "0.lmdb"
    shard.parent.mkdir(parents=True)
    shard.touch()
    (tmp_path / "good" / "manifest.json").write_bytes(manifests.encode(example()))
    for name, said in (
        ("none", "does not exist; check the path"),
        ("file", "is a file; give the folder of a packed dataset"),
        ("good/shards/0.lmdb", "is a file; give its folder, .*/good$"),
        (".", "no manifest.json"),
    ):
        with pytest.raises(NoDatasetError, match=said):
            manifests.read(tmp_path / name)


def test_a_lost_manifest_is_told_from_no_dataset(tmp_path: Path) -> None:
    """Where its copy is, the way back is to take it, and not to convert again."""
    (tmp_path / "manifest.copy.json").write_bytes(manifests.encode(example()))
    with pytest.raises(ManifestError, match=r"has no manifest\.json, but a copy of it; run `packer repair`") as caught:
        manifests.read(tmp_path)
    assert "convert" not in str(caught.value)


@pytest.mark.parametrize("content", [b'{"shards": 7}', b"{", b"[]", b""])
def test_an_unfinished_folder_says_how_far_it_got(tmp_path: Path, content: bytes) -> None:
    """The number of finished shards stands in the message, whatever state the progress file is in."""
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "0123abcd.json").write_bytes(content)
    (tmp_path / "unfinished" / "0123abcd-00003.json").touch()
    with pytest.raises(
        UnfinishedError, match="unfinished: 1 of 7 shards" if b"7" in content else "unfinished: 1 shards"
    ):
        manifests.read(tmp_path)


def test_a_manifest_that_is_a_folder_or_huge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is read on."""
    (tmp_path / "a" / "manifest.json").mkdir(parents=True)
    with pytest.raises(DatasetError, match="cannot be read"):
        manifests.read(tmp_path / "a")
    monkeypatch.setattr(manifests, "MAX_MANIFEST_BYTES", 100)
    put_manifest(tmp_path, example())
    with pytest.raises(ManifestError, match="larger than 100"):
        manifests.read(tmp_path)


def test_a_manifest_takes_no_more_memory_than_it_has_bytes(tmp_path: Path) -> None:
    """However large one may be: memory may be limited, by `ulimit -v` say."""
    put_manifest(tmp_path, example())
    tracemalloc.start()
    try:
        manifests.read(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_the_digest_of_a_file(tmp_path: Path) -> None:
    """xxh3-128 of all bytes, over more than one block."""
    data = bytes(range(256)) * 9000
    (tmp_path / "a").write_bytes(data)
    assert manifests.file_digest(tmp_path / "a") == xxhash.xxh3_128_hexdigest(data)


@pytest.mark.parametrize("samples", [10**6, 2**40])
def test_more_samples_than_a_shard_has_room_for_are_refused(samples: int) -> None:
    """Each takes some bytes at least, if only of an index: what it says is allocated for nobody."""
    members = document()
    members["shards"][0]["samples"], members["samples"] = samples, samples + 2
    with pytest.raises(ManifestError, match=f"00000.lmdb cannot hold {samples} samples in 8192 bytes"):
        manifests.decode(signed(members), "m")


@pytest.mark.parametrize("shape", [(None,), (None, None), (None, 3, None)])
def test_samples_of_no_bytes_have_room(tmp_path: Path, shape: tuple[int | None, ...]) -> None:
    """The least that a sample takes is no more than what an empty one takes."""
    nothing = np.zeros([length or 0 for length in shape], np.uint8)
    fields = [FieldSpec(name="x", dtype="uint8", shape=shape)]
    with DatasetWriter(tmp_path / "d", fields, codec="none") as writer:
        for _ in range(8000):
            writer.add({"x": nothing})
    assert manifests.read(tmp_path / "d").samples == 8000


def test_shared_frames_have_a_size_that_can_be_allocated() -> None:
    """A compressed frame of several samples of one shape is bounded; a raw one is not decoded, and needs no bound."""
    large = {"name": "x", "dtype": "uint8", "shape": (2**10,), "frame": FrameRule(samples=2**14 + 1)}
    Field(**large)
    with pytest.raises(ValueError, match="frames of 16385 samples are larger"):
        Field(**large, codec=({"id": "lz4"},))
