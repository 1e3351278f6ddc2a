"""A dataset packed again: another codec, size of shards, or order."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from broken import stopped_at

from packer import stats
from packer.codecs import codec_name
from packer.convert import ConvertOptions, convert
from packer.errors import DamagedError, UsageError
from packer.format import FieldSpec
from packer.format import manifest as manifests
from packer.packing import Change, read_rejected
from packer.repack import repack
from packer.sources import open_packed, shuffled_order
from packer.verify import verify
from packer.writer import DatasetWriter
from readers import PackedDataset

CODECS = ("none", "lz4", "photo+zstd")


def write(folder, count=60, named=True):
    """A dataset of every kind of field, in several shards: raw, coded, ragged, text, empty, in bands of rows."""
    rng = np.random.default_rng(0)
    specs = [
        FieldSpec(name="raw", dtype="float32", shape=(3,)),
        FieldSpec(name="scalar", dtype="bool"),
        FieldSpec(name="image", dtype="uint8", kind="image", shape=(None, 5, 3)),
        FieldSpec(name="square", dtype="uint16", kind="image", shape=(8, 8, 1)),
        FieldSpec(name="cloud", dtype="float64", shape=(None, 3)),
        FieldSpec(name="text", dtype="uint8", kind="text", shape=(None,)),
        FieldSpec(name="empty", dtype="int8", shape=(0, 2)),
    ]
    codec = "none,image=photo+zstd,square=lz4,cloud=bitshuffle"
    with DatasetWriter(folder, fields=specs, codec=codec, shard_size=10_000) as writer:
        for n in range(count):
            sample = {
                "raw": rng.normal(size=3).astype("f4"),
                "scalar": np.array(n % 3 == 0),
                "image": np.full((n % 7, 5, 3), n, np.uint8),
                "square": np.full((8, 8, 1), n * 300, np.uint16),
                "cloud": rng.normal(size=(n % 5, 3)),
                "text": "ü" * (n % 4),
                "empty": np.zeros((0, 2), np.int8),
            }
            writer.add(sample, name=f"s{n}" if named else None)
    return folder


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("codec", [None, "none", "raw=zstd,image=none"])
def test_values_names_and_kinds_stay(tmp_path, contents, codec, seed):
    """Whatever the codec, the size of shards and the order: every sample is what it was, under its name."""
    write(tmp_path / "d")
    repack(tmp_path / "d", tmp_path / "r", codec=codec, seed=seed, shard_size=5000, workers=0)
    one, two = contents(tmp_path / "d"), contents(tmp_path / "r")
    assert one == two  # dicts: the order does not count here
    assert (list(one[1]) == list(two[1])) == (seed is None)
    assert not verify(tmp_path / "r").damages


def test_fields_that_are_not_named_keep_their_codec(tmp_path):
    """`--codec raw=zstd` changes that field alone; a codec without a field changes all."""
    write(tmp_path / "d")

    def names(folder):
        return {field.name: codec_name(field.codec) for field in manifests.read(folder).fields}

    repack(tmp_path / "d", tmp_path / "r", codec="raw=zstd", workers=0)
    assert names(tmp_path / "r") == names(tmp_path / "d") | {"raw": "zstd"}
    repack(tmp_path / "d", tmp_path / "s", codec="lz4", workers=0)
    assert set(names(tmp_path / "s").values()) == {"lz4"}


def test_a_seed_gives_one_order_for_ever(tmp_path):
    """The order is a permutation that depends on the seed and the number of samples alone."""
    assert shuffled_order(10, 7).tolist() == [6, 3, 4, 9, 0, 2, 8, 7, 5, 1]
    assert sorted(shuffled_order(1000, 3).tolist()) == list(range(1000))
    assert shuffled_order(1000, 3).tolist() != shuffled_order(1000, 4).tolist()
    with pytest.raises(UsageError, match="seed is -1"):
        repack(write(tmp_path / "d"), tmp_path / "r", seed=-1)


def test_the_origin_stays(tmp_path, clouds):
    """What is known of the source files is known of the dataset packed again."""
    convert(str(clouds.folder), tmp_path / "d", workers=0)
    repack(tmp_path / "d", tmp_path / "r", workers=0)
    assert manifests.read(tmp_path / "r").origin == manifests.read(tmp_path / "d").origin
    repack(tmp_path / "d", tmp_path / "s", seed=1, workers=0)
    found = manifests.read(tmp_path / "s").origin
    assert (found["kind"], found["origin"]) == ("ply", manifests.read(tmp_path / "d").origin)


@pytest.mark.parametrize("seed", [None, 2])
def test_damage_is_not_packed_anew(tmp_path, seed):
    """A flipped bit would get a right checksum: it is found, and nothing is published."""
    write(tmp_path / "d")
    entry = manifests.read(tmp_path / "d").shards[0]
    path = tmp_path / "d" / entry.file
    data = bytearray(path.read_bytes())
    raw = open_packed(tmp_path / "d").slice(0, 3).read()
    data[data.index(next(raw)["raw"][1].tobytes()) + 1] ^= 16
    raw.close()
    path.write_bytes(data)
    with pytest.raises(DamagedError, match=r"field 'raw', samples .* checksum is wrong"):
        repack(tmp_path / "d", tmp_path / "r", seed=seed, workers=0)
    assert not (tmp_path / "r" / "manifest.json").exists()


def test_a_dataset_is_replaced_by_itself(tmp_path, contents):
    """Stopped before the manifest is in place, it is whole, and the same call goes on."""
    write(tmp_path / "d")
    before = contents(tmp_path / "d")

    def again():
        return repack(tmp_path / "d", tmp_path / "d", ConvertOptions(overwrite=True), codec="zstd", workers=0)

    stopped_at(again, Change, "publish")
    assert contents(tmp_path / "d") == before
    assert again().kept_shards
    assert contents(tmp_path / "d") == before
    assert not verify(tmp_path / "d").damages
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_what_was_left_out_stays_listed_and_lost_statistics_are_told(tmp_path, clouds, caplog):
    """The list names the same files, and no shards: they are others now."""
    (clouds.folder / "none.ply").write_text("nothing")
    convert(clouds.sources, tmp_path / "a", workers=0, on_error="skip")
    stats.save(tmp_path / "a", stats.statistics(tmp_path / "a"))
    report = repack(tmp_path / "a", tmp_path / "b", workers=0, seed=1)
    assert [Path(bad.file).name for bad in read_rejected(tmp_path / "b", report.manifest)] == ["none.ply"]
    assert "statistics, which are of other samples or values, are dropped" in caplog.text


def test_parts_are_small_and_give_their_samples(tmp_path):
    """A part pickles without the others' names and order, and its blocks are those samples."""
    write(tmp_path / "d", 60)
    source = open_packed(tmp_path / "d", seed=5)
    part = pickle.loads(pickle.dumps(source.slice(20, 33)))
    assert len(pickle.dumps(source.slice(0, 1))) < len(pickle.dumps(source)) - 400
    whole = [value for block in source.read() for value in block["raw"].tolist()]
    found = [value for block in part.read() for value in block["raw"].tolist()]
    assert found == whole[20:33]
    assert list(part.names) == list(source.names[20:33])
    for field in ("image", "cloud", "text", "raw"):
        assert source.shapes(field)[20:33].tolist() == part.shapes(field).tolist()


def test_blocks_stay_small(tmp_path):
    """Samples are read some at a time, in blocks of at most 8 MiB."""
    with DatasetWriter(tmp_path / "d", shard_size=2**24) as writer:
        for n in range(40):
            writer.add({"x": np.full(2**18, n, np.int32), "y": np.zeros(2**17 + n, np.int8)})
    blocks = list(open_packed(tmp_path / "d").read())
    assert max(block["x"].nbytes + sum(y.nbytes for y in block["y"]) for block in blocks) <= 8 * 2**20
    assert [int(x[0]) for block in blocks for x in block["x"]] == list(range(40))
    assert not [block for block in blocks if len(block["x"]) != len(block["y"])]


def test_samples_in_bands_of_rows_come_back(tmp_path, contents):
    """Large samples, cut into frames of rows, raw and coded, fixed and ragged."""
    rng = np.random.default_rng(0)
    samples = [
        {"a": rng.integers(0, 3, (900, 1600), np.uint8), "b": rng.integers(0, 3, (900 + n, 1600), np.uint8)}
        for n in range(3)
    ]
    for codec in ("none", "zstd"):
        with DatasetWriter(tmp_path / codec, codec=codec) as writer:
            for sample in samples:
                writer.add(sample)
        assert {field.frame.samples for field in manifests.read(tmp_path / codec).fields} == {None}
        repack(tmp_path / codec, tmp_path / f"{codec}.again", seed=1, codec="lz4", workers=0)
        a, b = contents(tmp_path / codec)[1], contents(tmp_path / f"{codec}.again")[1]
        assert [a[n] for n in shuffled_order(3, 1).tolist()] == list(b.values())


def test_a_shuffle_in_place_is_not_made_twice(tmp_path):
    """Killed once its manifest is there, the same command again finds it done: samples keep their new order."""
    np.save(tmp_path / "x.npy", np.arange(100.0))
    convert({"x": str(tmp_path / "x.npy")}, tmp_path / "d", workers=0)

    def shuffle():
        repack(tmp_path / "d", tmp_path / "d", seed=0, overwrite=True, workers=0)

    stopped_at(shuffle, Change, "tidy")
    once = PackedDataset(tmp_path / "d").column("x").tolist()
    assert once != sorted(once)
    shuffle()
    assert PackedDataset(tmp_path / "d").column("x").tolist() == once
