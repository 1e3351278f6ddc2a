"""Statistics of datasets: per field and channel, over shards, kept in the manifest when asked."""

from __future__ import annotations

import numpy as np
import pytest

from packer import stats
from packer.convert import convert
from packer.errors import DamagedError, UsageError, WriteError
from packer.format import manifest as manifests
from packer.packing.dataset_lock import dataset_lock


def test_images_by_channel(pairs, tmp_path):
    """Mean, deviation and extremes of each channel, over several shards."""
    convert(pairs.sources, tmp_path / "out", workers=0, shard_size=4096, codec="lr=none,hr=zstd")
    assert len(manifests.read(tmp_path / "out").shards) == 2
    found = stats.statistics(tmp_path / "out")
    for name, images in (("lr", pairs.lr), ("hr", pairs.hr)):
        assert len(found[name].channels) == 3
        for channel, of_channel in enumerate(found[name].channels):
            values = images[..., channel].astype(np.float64)
            assert (of_channel.count, of_channel.min, of_channel.max) == (values.size, values.min(), values.max())
            assert of_channel.mean == pytest.approx(values.mean(), rel=1e-14)
            assert of_channel.std == pytest.approx(values.std(), rel=1e-14)


def test_clouds_by_column(clouds, tmp_path):
    """Columns of ragged fields over all points of all clouds."""
    convert(clouds.sources, tmp_path / "out", workers=0)
    found = stats.statistics(tmp_path / "out")
    points = np.concatenate(clouds.xyz).astype(np.float64)
    assert [c.mean for c in found["xyz"].channels] == pytest.approx(points.mean(axis=0).tolist(), rel=1e-13)
    assert [c.std for c in found["xyz"].channels] == pytest.approx(points.std(axis=0).tolist(), rel=1e-13)
    assert found["xyz"].all.count == points.size
    assert found["rgb"].all.max == max(int(c.max()) for c in clouds.rgb)


def test_fields_of_every_kind(tmp_path):
    """Scalars and long last axes have no channels, bool counts as 0 and 1, text and complex numbers are left out."""
    samples = [
        {
            "label": np.int64(n - 2),
            "flags": np.array([n > 1, True]),
            "signal": np.full(2000, n, np.float32),
            "any": np.zeros((2, n), np.float64),
            "wave": np.array([1j]),
            "caption": "word",
        }
        for n in range(5)
    ]
    convert(samples, tmp_path / "out")
    found = stats.statistics(tmp_path / "out")
    assert set(found) == {"label", "flags", "signal", "any"}
    assert {name: len(of.channels) for name, of in found.items()} == {"label": 0, "flags": 2, "signal": 0, "any": 0}
    assert (found["label"].all.min, found["label"].all.max, found["label"].all.mean) == (-2, 2, 0)
    assert [c.mean for c in found["flags"].channels] == [0.6, 1.0]
    assert (found["any"].all.count, found["signal"].all.mean) == (20, 2.0)


def test_progress_adds_up(rows, tmp_path):
    """It tells of all samples and all bytes."""
    convert(rows.sources, tmp_path / "out", workers=0, shard_size=4096)
    told = []
    stats.statistics(tmp_path / "out", lambda samples, nbytes: told.append((samples, nbytes)))
    assert len(told) > 1
    assert np.sum(told, axis=0).tolist() == [400, rows.x.nbytes + rows.label.nbytes]


def test_kept_in_the_manifest(rows, tmp_path):
    """What is kept is read back the same, all other members stay, and nothing is kept unless asked for."""
    folder = convert(rows.sources, tmp_path / "out", workers=0).path
    before = (folder / "manifest.json").read_bytes()
    found = stats.statistics(folder)
    assert (folder / "manifest.json").read_bytes() == before
    assert b"stats" not in before
    assert stats.kept_statistics(manifests.read(folder)) is None
    stats.save(folder, found)
    kept = manifests.read(folder)
    assert stats.kept_statistics(kept) == found
    assert manifests.read(folder).shards == manifests.decode(before, "").shards


def test_statistics_of_another_dataset_are_refused(rows, clouds, tmp_path):
    """Statistics of more or fewer values than the dataset holds are not kept."""
    folder = convert(rows.sources, tmp_path / "out", workers=0).path
    other = convert(clouds.sources, tmp_path / "other", workers=0).path
    before = (folder / "manifest.json").read_bytes()
    with pytest.raises(UsageError, match="changed"):
        stats.save(folder, stats.statistics(other))
    assert (folder / "manifest.json").read_bytes() == before


def test_damage_gives_no_statistics(rows, tmp_path):
    """A flipped bit is an error, not a wrong mean."""
    folder = convert(rows.sources, tmp_path / "out", workers=0, codec="none").path
    shard = folder / "shards" / "00000.lmdb"
    data = bytearray(shard.read_bytes())
    data[data.index(rows.x[7].tobytes())] ^= 1
    shard.write_bytes(data)
    with pytest.raises(DamagedError, match="checksum"):
        stats.statistics(folder)


def test_statistics_are_kept_by_one_at_a_time(rows, tmp_path):
    """While something is appended the manifest is left alone; a folder that cannot be written is an error of ours."""
    folder = convert(rows.sources, tmp_path / "out", workers=0).path
    found = stats.statistics(folder)
    with dataset_lock(folder), pytest.raises(UsageError, match="being changed already"):
        stats.save(folder, found)
    (folder / "manifest.json.partial").mkdir()
    with pytest.raises(WriteError, match="cannot be written"):
        stats.save(folder, found)
