"""Comparing with the sources: every value and every name, to the bit."""

from __future__ import annotations

import os
import tracemalloc

import h5py
import msgspec
import numpy as np
import pytest
from hanging import count_hanging_alone, hang
from made_datasets import make_plain
from opened_sources import source_of
from PIL import Image

from packer.append import append
from packer.checking import against, compare
from packer.convert import convert
from packer.errors import SourceError, UsageError
from packer.format import MANIFEST, data_entry
from packer.format import manifest as manifests
from packer.merge import merge
from packer.packing import read_rejected
from packer.repack import repack
from packer.repair import repair
from packer.sources import FittedSource, SourceOptions, open_packed
from packer.watcher import Watcher
from packer.workers import Limits


def test_a_dataset_is_what_its_sources_are(pairs, clouds, rows, tmp_path):
    """Nothing differs after a conversion, over several shards, and progress tells of every sample."""
    for number, made in enumerate((pairs, clouds, rows)):
        folder = convert(made.sources, tmp_path / str(number), workers=0, shard_size=4096).path
        told = []
        source = source_of(made.sources)
        assert (
            compare(
                folder, source, Watcher(done=lambda samples, nbytes, told=told: told.append((samples, nbytes)))
            ).damages
            == []
        )
        assert sum(samples for samples, _ in told) == len(source)


def test_a_changed_pixel_is_named(pairs, tmp_path):
    """One pixel of one picture: shard, field, number and name of that sample alone."""
    folder = convert(pairs.sources, tmp_path / "out", workers=0, shard_size=4096, codec="lr=none,hr=zstd").path
    make_plain(folder)
    picture = pairs.hr[8].copy()
    picture[3, 4, 1] ^= 1
    Image.fromarray(picture).save(pairs.folder / "hr" / "008.png")
    (damage,) = compare(folder, source_of(pairs.sources)).damages
    assert str(damage) == "shards/00001.lmdb, field 'hr', sample 8 (008): differs from the source"


def test_a_changed_number_without_a_name(rows, tmp_path):
    """The sign of a zero counts, NaN is NaN; samples without names are told by number."""
    with h5py.File(rows.path, "a") as file:
        file["x"][123], file["x"][5] = 0.0, np.nan
    folder = make_plain(convert(rows.sources, tmp_path / "out", workers=0).path)
    with h5py.File(rows.path, "a") as file:
        file["x"][123, 1] = -0.0
    (damage,) = compare(folder, source_of(rows.sources)).damages
    assert str(damage) == "shards/00000.lmdb, field 'x', sample 123: differs from the source"


def test_changed_names_and_shapes(clouds, tmp_path):
    """A file that was renamed, and a cloud with another number of points."""
    folder = convert(clouds.sources, tmp_path / "out", workers=0).path
    (clouds.folder / "c4.ply").rename(clouds.folder / "c5.ply")
    (damage,) = compare(folder, source_of(clouds.sources)).damages
    assert damage.what == "names differ from the source"
    (clouds.folder / "c5.ply").rename(clouds.folder / "c4.ply")
    (clouds.folder / "c2.ply").write_bytes((clouds.folder / "c1.ply").read_bytes())
    damages = compare(folder, source_of(clouds.sources)).damages
    assert {(d.field, d.samples, d.names) for d in damages} == {(f, (2, 3), ("c2",)) for f in ("xyz", "rgb")}


def test_samples_left_out_are_left_out_again(clouds, tmp_path):
    """A dataset made with bad files skipped compares equal to sources in which they still are."""
    bad = clouds.folder / "c3.ply"
    bad.write_text(bad.read_text()[:-20])
    folder = convert(clouds.sources, tmp_path / "out", workers=0, on_error="skip").path
    assert compare(folder, source_of(clouds.sources, on_error="skip")).damages == []


def test_what_was_skipped_is_not_read_again(pairs, files_of, tmp_path):
    """A sample that was skipped is no damage if it can be read now, and a repair packs the others as they were."""
    picture = pairs.folder / "hr" / "003.png"
    good = picture.read_bytes()
    picture.write_bytes(good[:-20])
    folder = convert(pairs.sources, tmp_path / "out", workers=0, shard_size=4096, on_error="skip").path
    picture.write_bytes(good)
    assert compare(folder, source_of(pairs.sources)).damages == []
    before = files_of(folder)
    shard = next(folder / entry.file for entry in manifests.read(folder).shards if entry.rejected)
    shard.write_bytes(b"")
    repair(folder, source_of(pairs.sources))
    assert files_of(folder) == before
    assert compare(folder, source_of(pairs.sources)).damages == []


def test_a_file_that_was_skipped_before_the_plan_and_is_good_now(clouds, tmp_path):
    """The source has a sample more then, and the message says where what was skipped is listed."""
    bad = clouds.folder / "c3.ply"
    good = bad.read_bytes()
    bad.write_bytes(b"nothing")
    folder = convert(clouds.sources, tmp_path / "out", workers=0, on_error="skip").path
    bad.write_bytes(good)
    with pytest.raises(UsageError, match=r"has 5 samples, .* made from 4; what was skipped .* listed in left-out-"):
        compare(folder, source_of(clouds.sources))


def test_samples_more_than_were_packed(pairs, tmp_path):
    """Where the list of what was skipped does not say which, one sample more than the shard has is told."""
    picture = pairs.folder / "hr" / "003.png"
    good = picture.read_bytes()
    picture.write_bytes(good[:-20])
    folder = convert(pairs.sources, tmp_path / "out", workers=0, on_error="skip").path
    make_plain(folder)
    picture.write_bytes(good)
    manifest = manifests.read(folder)
    old = [msgspec.structs.replace(bad, sample=None) for bad in read_rejected(folder, manifest)]
    data = msgspec.json.Encoder().encode_lines(old)
    (folder / manifest.left_out.file).write_bytes(data)
    entry = data_entry(manifest.left_out.file, data)
    (folder / MANIFEST).write_bytes(manifests.encode(msgspec.structs.replace(manifest, left_out=entry)))
    *differing, more = compare(folder, source_of(pairs.sources)).damages
    assert str(more) == "shards/00000.lmdb: 11 samples are packed, the source has more"
    assert not any(damage.repairable for damage in (*differing, more))


def test_damage_is_told_and_the_rest_compared(pairs, tmp_path):
    """A shard that is missing is one damage; the others are compared all the same."""
    folder = make_plain(convert(pairs.sources, tmp_path / "out", workers=0, shard_size=4096).path)
    (folder / "shards" / "00000.lmdb").unlink()
    Image.fromarray(pairs.hr[0]).save(pairs.folder / "hr" / "011.png")
    damages = compare(folder, source_of(pairs.sources)).damages
    assert [damage.file for damage in damages] == ["shards/00000.lmdb", "shards/00001.lmdb"]
    assert damages[1].names == ("011",)


@pytest.mark.parametrize(("given", "left"), [(range(12), None), (range(11), 11), (range(0), 0)])
def test_samples_that_do_not_come_are_told(pairs, tmp_path, given, left):
    """Where reading ends before the last sample that was packed, the shard says how many came."""
    folder = convert(pairs.sources, tmp_path / "out", workers=0).path
    manifest = manifests.read(folder)

    class Short(FittedSource):
        def read(self):
            for number in given:
                yield {"lr": pairs.lr[number : number + 1], "hr": pairs.hr[number : number + 1]}

    source = Short(source_of(pairs.sources), manifest.fields)
    damages = against.compare_shard(folder, manifest.fields, against.SourceShard(manifest.shards[0], source, 0))
    words = [] if left is None else [f"{manifest.shards[0].file}: 12 samples are packed, the source has {left}"]
    assert [str(damage) for damage in damages] == words


def test_other_sources_are_refused(pairs, clouds, rows, new_pairs, tmp_path):
    """Other fields, another number of samples, or names where there were none."""
    folder = convert(pairs.sources, tmp_path / "out", workers=0).path
    with pytest.raises(UsageError, match="is not in the source"):
        compare(folder, source_of(clouds.sources))
    with pytest.raises(UsageError, match="'lr' differs"):
        compare(folder, source_of(pairs.sources, source=SourceOptions(mode="gray")))
    with pytest.raises(UsageError, match="the source has 7 samples, the dataset was made from 12"):
        compare(folder, source_of(new_pairs(tmp_path / "fewer", 7, 6, 5).sources))
    unnamed = convert([{"lr": a, "hr": b} for a, b in zip(pairs.lr, pairs.hr, strict=True)], tmp_path / "b").path
    with pytest.raises(UsageError):
        compare(unnamed, source_of(pairs.sources))


def test_another_order_is_told(rows, tmp_path):
    """Shuffled samples are not compared with those of other places, nor packed from them."""
    convert(rows.sources, tmp_path / "d", workers=0)
    folder = repack(tmp_path / "d", tmp_path / "s", seed=4, workers=0).path
    assert compare(folder, open_packed(tmp_path / "d", seed=4)).damages == []
    convert(rows.sources, tmp_path / "e", workers=0)
    merge([folder, tmp_path / "e"], tmp_path / "m")
    with pytest.raises(UsageError, match="were shuffled"):
        compare(tmp_path / "m", source_of([str(tmp_path / "*.h5")]))
    next((folder / "shards").iterdir()).unlink()
    with pytest.raises(UsageError, match="were shuffled"):
        compare(folder, source_of(rows.sources))
    with pytest.raises(UsageError, match="were shuffled"):
        repair(folder, source_of(rows.sources))


def test_one_part_is_compared_with_its_own_sources(rows, tmp_path, caplog):
    """Of what was appended or merged the sources of one part suffice; numbers are those of the whole dataset."""
    other = tmp_path / "other.h5"
    with h5py.File(rows.path) as file, h5py.File(other, "w") as more:
        for name in file:
            more[name] = file[name][:7]
    folder = convert(rows.sources, tmp_path / "out", workers=0).path
    append(folder, str(other), workers=0)
    assert compare(folder, source_of(rows.sources)).damages == []
    with h5py.File(other, "a") as more:
        more["x"][3] = 1.5
    (damage,) = compare(folder, source_of([str(other)])).damages
    first = len(rows.x)
    assert damage.samples == (first + 3, first + 4)
    assert f"only samples {first} to {first + 6} were compared" in caplog.text
    with h5py.File(other, "w") as more:
        more["x"], more["label"] = rows.x[:8], rows.label[:8]
    with pytest.raises(UsageError, match=rf"the source has 8 samples, .* in 2 parts of {first}, 7"):
        compare(folder, source_of([str(other)]))


@pytest.mark.parametrize(
    ("read", "limits", "reason"),
    [
        (lambda: os._exit(3), Limits(), "crashes the process"),
        (hang, Limits(seconds=0.05), "takes more than 0.05 s"),
        (lambda: bytearray(2**28), Limits(nbytes=2**26), "takes more than 67,108,864 bytes"),
    ],
    ids=["crashes", "hangs", "takes memory"],
)
def test_limits_hold_where_samples_are_read_again(pairs, tmp_path, monkeypatch, read, limits, reason):
    """A sample that crashes its process, hangs or takes too much memory is an error that names it, if it was packed."""
    count_hanging_alone(monkeypatch)
    folder = convert(pairs.sources, tmp_path / "out", workers=0, shard_size=4096).path
    told = []
    watcher = Watcher(done=lambda samples, nbytes: told.append(samples))
    assert compare(folder, source_of(pairs.sources), watcher, limits).damages == []
    assert sum(told) == 12

    class Bad(FittedSource):
        def read(self):
            if "011" in self.names:
                read()
            yield from super().read()

    source = source_of(pairs.sources)
    with pytest.raises(SourceError, match=f"sample '011': reading it {reason}"):
        compare(folder, Bad(source, source.fields), limits=limits)


def test_small_samples_are_compared_by_blocks(tmp_path):
    """Rows of a byte are compared without an array for each: memory stays within some blocks; runs are told as one."""
    count = 1_000_000
    values = np.random.default_rng(0).integers(0, 256, count, np.uint8)
    path = tmp_path / "rows.h5"
    with h5py.File(path, "w") as file:
        file["x"] = values
    folder = convert([str(path)], tmp_path / "out", workers=0).path
    source = source_of([str(path)])
    tracemalloc.start()
    try:
        assert compare(folder, source).damages == []
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()
    with h5py.File(path, "a") as file:
        file["x"][10:20] = ~values[10:20]
        file["x"][count - 1] = ~values[count - 1]
    assert [damage.samples for damage in compare(folder, source_of([str(path)])).damages] == [
        (10, 20),
        (count - 1, count),
    ]
