"""Shards: what the writer stores, py-lmdb and our reader see alike; wrong files are errors; maps grow."""

from __future__ import annotations

import contextlib
import os
import struct
import sys
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import numpy as np
import pytest

from packer.codecs import NAMED
from packer.errors import DamagedError, SourceError, UsageError, WriteError
from packer.format import Field, FrameRule, LmdbAppender, Shard, ShardHeader, ShardWriter, sizes
from packer.format.layout import HEADER, NAME_BYTES, NAME_OFFSETS, chunk_key

FIELDS = (
    Field(
        name="hr",
        dtype="uint8",
        kind="image",
        shape=(8, 8, 3),
        codec=NAMED["photo+zstd"],
        frame=FrameRule(samples=4),
    ),
    Field(name="xyz", dtype="float32", shape=(None, 3), codec=NAMED["bitshuffle"], frame=FrameRule(samples=2)),
    Field(name="big", dtype="uint16", shape=(None, 40), codec=NAMED["lz4"], frame=FrameRule(rows=16)),
    Field(name="label", dtype="int64", frame=FrameRule(samples=8192)),
    Field(name="caption", dtype="uint8", kind="text", shape=(None,), frame=FrameRule(samples=100)),
)
COUNT = 30


def block(seed: int = 0) -> dict[str, Any]:
    """30 samples of every field."""
    rng = np.random.default_rng(seed)
    return {
        "hr": rng.integers(0, 9, (COUNT, 8, 8, 3), dtype=np.uint8).cumsum(axis=2, dtype=np.uint8),
        "xyz": [rng.normal(size=(n, 3)).astype("f4") for n in range(COUNT)],
        "big": [rng.integers(0, 3, (n * 3, 40), dtype=np.uint16) for n in range(COUNT)],
        "label": rng.integers(-5, 5, COUNT),
        "caption": [f"Nr. {n} ö" * (n % 4) for n in range(COUNT)],
    }


def names() -> list[str]:
    return [f"sample-{n}/ü" for n in range(COUNT)]


def write(path: Path, **options: Any) -> ShardWriter:
    """Writes a shard of 30 samples, in two parts."""
    options = {"map_size": 2**20, "named": True, "origin": {"kind": "test"}, "chunk_bytes": 5000, **options}
    with ShardWriter(path, 7, FIELDS, **options) as writer:
        data = block()
        for start, stop in ((0, 11), (11, COUNT)):
            part = {name: values[start:stop] for name, values in data.items()}
            writer.add(part, stop - start, names()[start:stop] if options["named"] else None)
    return writer


def expected(field: Field, values: Any) -> list[np.ndarray[Any, Any]]:
    if field.kind == "text":
        return [np.frombuffer(text.encode(), np.uint8) for text in values]
    return list(values)


def assert_holds_the_samples(path: Path) -> None:
    with Shard(path, path.stat().st_size) as shard:
        header = shard.header()
        assert header.samples == COUNT
        for number, field in enumerate(header.fields):
            back = shard.column(number, field, COUNT).read(0, COUNT)
            for a, b in zip(back, expected(field, block()[field.name]), strict=True):
                assert a.dtype == b.dtype
                assert a.shape == b.shape
                assert a.tobytes() == b.tobytes()


def test_every_kind_of_field_comes_back(tmp_path: Path) -> None:
    """Fixed, ragged, banded, encoded, raw and text columns side by side in one shard."""
    write(tmp_path / "a.lmdb")
    assert_holds_the_samples(tmp_path / "a.lmdb")


def test_values_are_those_that_py_lmdb_reads(tmp_path: Path) -> None:
    """The same keys in the same order with the same bytes, in a plain LMDB file of data version 0.9."""
    path = tmp_path / "a.lmdb"
    write(path)
    env = lmdb.open(str(path), subdir=False, readonly=True, lock=False, lib_version=0)
    with env, env.begin() as txn, Shard(path) as shard:
        keys = [bytes(key) for key in txn.cursor().iternext(values=False)]
        chunks = [key for key in keys if key.startswith(b"chunk/")]
        assert chunks == [*map(chunk_key, range(len(chunks)))]
        places = shard.chunks(np.arange(len(chunks))).tolist()
        assert [bytes(shard.bytes[at : at + size]) for at, size in places] == [txn.get(key) for key in chunks]
        assert not [key for key in keys[len(chunks) :] if bytes(shard.value(key)) != txn.get(key)]
    assert keys[0] == b"chunk/00000000"
    assert keys[-3:] == [HEADER, NAME_BYTES, NAME_OFFSETS]
    assert b"column/002/sample_frames" in keys


def test_the_header_tells_what_the_shard_holds(tmp_path: Path) -> None:
    """Number, samples, schema, names and origin, so that a lost manifest can be made again."""
    write(tmp_path / "a.lmdb")
    with Shard(tmp_path / "a.lmdb") as shard:
        assert shard.header() == ShardHeader(shard=7, samples=COUNT, named=True, fields=FIELDS, origin={"kind": "test"})
        assert list(shard.names(COUNT)) == [name.encode() for name in names()]


def test_the_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    """Two shards of one input are equal to the byte, also where a file of an earlier try is replaced."""
    write(tmp_path / "a.lmdb")
    (tmp_path / "b.lmdb").write_bytes(os.urandom(30_000))
    write(tmp_path / "b.lmdb")
    assert (tmp_path / "a.lmdb").read_bytes() == (tmp_path / "b.lmdb").read_bytes()


def test_a_caller_may_use_its_memory_again(tmp_path: Path) -> None:
    """Arrays handed to `add` may be overwritten when it returns."""
    data = block()
    reused = {name: np.empty_like(data[name][0]) for name in ("hr", "label")}
    room = np.empty((3 * COUNT, 40), np.uint16)
    points = np.empty((COUNT, 3), "f4")
    with ShardWriter(tmp_path / "b.lmdb", 7, FIELDS, map_size=2**20, named=False, chunk_bytes=5000) as writer:
        for n in range(COUNT):
            for name, array in reused.items():
                array[...] = data[name][n]
            room[: 3 * n], points[:n] = data["big"][n], data["xyz"][n]
            one = {name: array[None] for name, array in reused.items()}
            writer.add({**one, "big": [room[: 3 * n]], "xyz": [points[:n]], "caption": [data["caption"][n]]}, 1)
    assert_holds_the_samples(tmp_path / "b.lmdb")


def test_a_shard_without_samples_can_be_read(tmp_path: Path) -> None:
    """No chunk, empty index arrays, a header."""
    with ShardWriter(tmp_path / "a.lmdb", 0, FIELDS, map_size=2**20, named=True):
        pass
    with Shard(tmp_path / "a.lmdb") as shard:
        assert shard.header().samples == 0
        assert list(shard.names(0)) == []
        assert not [(n, field) for n, field in enumerate(FIELDS) if len(shard.column(n, field, 0).read(0, 0)) != 0]


# ---------------------------------------------------------------- the map while a file is written


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone tells what a process has mapped")
@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
@pytest.mark.parametrize("named", [True, False])
def test_a_shard_without_samples_has_a_digest(tmp_path: Path, field: Field, named: bool) -> None:
    """Its index arrays are empty, and may stand where the file ends."""
    with ShardWriter(tmp_path / "a.lmdb", 0, [field], map_size=2**20, named=named):
        pass
    with Shard(tmp_path / "a.lmdb") as shard:
        digest = shard.index_digest()
    with Shard(tmp_path / "a.lmdb", index=digest) as shard:
        assert shard.check_header([field], 0).samples == 0


def test_what_is_written_does_not_stay_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a commit for each value all 65 MB would count as memory of the process in the end."""
    monkeypatch.setattr(sizes, "COMMIT_BYTES", 1)
    before = most = mapped_bytes()
    file = LmdbAppender(tmp_path / "a.lmdb", 2**27)
    for number in range(1000):
        file.put(b"%04d" % number, bytes(65_520))
        most = max(most, mapped_bytes())
    file.finish()
    assert most - before < 30 * 10**6


def mapped_bytes() -> int:
    """Bytes of files that this process has mapped and in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssFile:"))


# ---------------------------------------------------------------- maps that are too small


@pytest.mark.parametrize("map_size", [8192, 16384, 40960])
def test_a_map_far_too_small_grows_and_loses_nothing(tmp_path: Path, map_size: int) -> None:
    """All samples are there."""
    write(tmp_path / "a.lmdb", map_size=map_size)
    assert (tmp_path / "a.lmdb").stat().st_size > map_size
    assert_holds_the_samples(tmp_path / "a.lmdb")


@pytest.mark.parametrize("map_size", range(4 * 4096, 24 * 4096, 4096))
def test_growth_at_any_put_or_commit(tmp_path: Path, map_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the map fills up, within a put or in a commit, every value is stored once."""
    monkeypatch.setattr(sizes, "COMMIT_BYTES", 9000)
    path = tmp_path / "a.lmdb"
    appender = LmdbAppender(path, map_size)
    values = {b"%04d" % n: bytes([n]) * (n * 97 % 5000) for n in range(40)}
    for key, value in values.items():
        appender.put(key, value)
    appender.finish()
    with Shard(path) as shard:
        assert {key: bytes(shard.value(key)) for key in shard._values} == values


def test_a_map_limit_is_a_clear_error(tmp_path: Path) -> None:
    """The message names the option, and neither file nor descriptor is left."""
    with pytest.raises(UsageError, match=r"--map-size 65,536.*--shard-size"):
        write(tmp_path / "a.lmdb", map_size=8192, map_limit=65536)
    assert list(tmp_path.iterdir()) == []


def test_a_limit_met_at_the_very_end_leaves_nothing_either(tmp_path: Path) -> None:
    """The index arrays, written last, may be what does not fit."""
    with (
        pytest.raises(UsageError, match="--map-size"),
        ShardWriter(tmp_path / "a.lmdb", 0, FIELDS[3:4], map_size=8192, named=False, map_limit=16384) as writer,
    ):
        writer.add({"label": np.zeros(4000, np.int64)}, 4000)
    assert list(tmp_path.iterdir()) == []


def test_a_shard_has_as_many_chunks_as_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their numbers have eight digits; more would be sorted wrongly, so they are refused and nothing is left."""
    write(tmp_path / "a")
    with Shard(tmp_path / "a") as shard:
        count = 0
        with contextlib.suppress(DamagedError):
            while len(shard.chunks(np.array([count]))):
                count += 1
    assert count > 5
    monkeypatch.setattr("packer.format.shard_writer.MAX_CHUNKS", count)
    write(tmp_path / "a")
    assert_holds_the_samples(tmp_path / "a")
    monkeypatch.setattr("packer.format.shard_writer.MAX_CHUNKS", count - 1)
    with pytest.raises(UsageError, match="take a smaller --shard-size"):
        write(tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_shard_left_by_an_exception_is_removed(tmp_path: Path) -> None:
    """Nothing that looks finished stays behind."""
    with (
        pytest.raises(KeyError),
        ShardWriter(tmp_path / "a.lmdb", 0, FIELDS, map_size=2**20, named=False) as writer,
    ):
        writer.add({"hr": block()["hr"]}, COUNT)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("field", "said"), [("caption", "field 'caption'"), ("names", "its name")])
def test_text_that_is_none_is_refused_before_anything_is_added(tmp_path: Path, field: str, said: str) -> None:
    """Half a surrogate pair in a text or a name is an error with its place; no column is ahead of another then."""
    good, bad = block() | {"names": names()}, block() | {"names": names()}
    bad[field][4] = "a\ud800"
    with ShardWriter(tmp_path / "a.lmdb", 7, FIELDS, map_size=2**20, named=True, origin={"kind": "test"}) as writer:
        with pytest.raises(
            SourceError, match=f"sample 4 of shard 7: {said} cannot be stored as UTF-8: its character 1"
        ):
            writer.add(bad, COUNT, bad["names"])
        writer.add(good, COUNT, good["names"])
    assert_holds_the_samples(tmp_path / "a.lmdb")


def test_a_folder_that_is_not_there_is_a_write_error(tmp_path: Path) -> None:
    """The message names the file, once: LMDB itself names it in some errors."""
    said = r"none/a\.lmdb: cannot be written: No such file or directory; it or its folder is gone"
    with pytest.raises(WriteError, match=said) as caught:
        ShardWriter(tmp_path / "none" / "a.lmdb", 0, FIELDS, map_size=2**20, named=False)
    assert str(caught.value).count("a.lmdb") == 1


# ---------------------------------------------------------------- wrong files


@pytest.fixture
def good(tmp_path: Path) -> Path:
    write(tmp_path / "a.lmdb")
    return tmp_path / "a.lmdb"


@pytest.mark.parametrize("length", [0, 1, 100, 4095, 4096, 8192, -4096, -1])
def test_a_truncated_file_is_an_error_and_not_a_crash(good: Path, length: int) -> None:
    """Cut anywhere, a shard is refused before it is mapped, with the size known or not."""
    data = good.read_bytes()
    good.write_bytes(data[:length])
    for size in (len(data), None):
        with pytest.raises(DamagedError, match=r"a\.lmdb"):
            Shard(good, size)


def test_an_extended_file_is_an_error_where_the_size_is_known(good: Path) -> None:
    """One byte more than the manifest says is not the file that was written."""
    size = good.stat().st_size
    with good.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(DamagedError, match="cut short or changed"):
        Shard(good, size)


def test_a_missing_file_and_other_things_in_its_place(tmp_path: Path) -> None:
    """Nothing, a folder and a pipe are errors that name the path; a pipe is not waited for."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("none", "folder", "pipe"):
        for size in (None, 4096):
            with pytest.raises(DamagedError, match=name):
                Shard(tmp_path / name, size)


def test_a_missing_value_is_an_error_that_names_it(good: Path) -> None:
    """A key that is not there is named."""
    with Shard(good) as shard, pytest.raises(DamagedError, match="chunk/00009999 is missing"):
        shard.chunks(np.array([0, 9999]))
    with Shard(good) as shard, pytest.raises(DamagedError, match="column/009/shapes is missing"):
        shard.value(b"column/009/shapes")


def replace(path: Path, key: bytes, value: bytes) -> None:
    env = lmdb.open(str(path), subdir=False, lock=False, lib_version=0, map_size=2**22)
    with env, env.begin(write=True) as txn:
        txn.put(key, value)


HEADER_JSON: dict[str, Any] = msgspec.to_builtins(
    ShardHeader(shard=0, samples=1, named=False, fields=FIELDS, origin={})
)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b"{}",
        *(
            msgspec.json.encode({**HEADER_JSON, **change})
            for change in (
                {"format": "other"},
                {"version": 2},
                {"samples": -1},
                {"samples": "1"},
                {"fields": [{}]},
                {"more": 1},
            )
        ),
    ],
)
def test_a_damaged_header_is_an_error(good: Path, header: bytes) -> None:
    """Broken JSON, other versions and wrong members are DamagedErrors that name the file."""
    replace(good, HEADER, header)
    with Shard(good) as shard, pytest.raises(DamagedError, match=r"a\.lmdb"):
        shard.header()


@pytest.mark.parametrize(
    "offsets",
    [b"", bytes(4), struct.pack("<31Q", *range(31)) + b"\0", struct.pack("<31Q", 0, 2**63, *[9] * 29), bytes(8 * 30)],
)
def test_damaged_names_are_an_error(good: Path, offsets: bytes) -> None:
    """Offsets of another number or order never cut the names wrongly."""
    replace(good, NAME_OFFSETS, offsets)
    with Shard(good) as shard, pytest.raises(DamagedError, match="names"):
        list(shard.names(COUNT))


def test_arrays_that_look_into_the_map_outlive_the_shard(good: Path) -> None:
    """Closing a shard never pulls memory away from under an array."""
    shard = Shard(good)
    array = np.frombuffer(shard.value(HEADER), np.uint8)
    before = array.tobytes()
    shard.close()
    shard.close()
    assert array.tobytes() == before
    assert not array.flags.writeable
