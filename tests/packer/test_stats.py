"""Statistics of datasets: per field and channel, over shards, kept in the manifest when asked."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from packer import stats
from packer.convert import convert
from packer.errors import UsageError, WriteError
from packer.format import manifest as manifests
from packer.packing import LocalPlace, changing
from packer.watcher import Watcher


def test_channels_of_pictures_and_clouds(pairs, clouds, tmp_path):
    """Count, extremes, mean and deviation of each channel, over all pixels and points of several shards."""
    convert(pairs.sources, tmp_path / "pairs.packed", workers=0, shard_size=4096, codec="lr=none,hr=zstd")
    convert(clouds.sources, tmp_path / "clouds.packed", workers=0)
    assert len(manifests.read(tmp_path / "pairs.packed").shards) == 2
    found = stats.statistics(tmp_path / "pairs.packed") | stats.statistics(tmp_path / "clouds.packed")
    held = {"lr": pairs.lr, "hr": pairs.hr, "xyz": np.concatenate(clouds.xyz), "rgb": np.concatenate(clouds.rgb)}
    for name, values in held.items():
        columns = values.reshape(-1, 3).T.astype(np.float64)
        for of, column in zip(found[name].channels, columns, strict=True):
            assert (of.count, of.min, of.max) == (column.size, column.min(), column.max())
            assert (of.mean, of.std) == pytest.approx((column.mean(), column.std()), rel=1e-13)
        assert (found[name].all.count, found[name].all.max) == (values.size, values.max())


def test_fields_of_every_kind(tmp_path):
    """Scalars and long last axes have no channels, bool counts as 0 and 1, text and complex numbers are skipped."""
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
    stats.statistics(tmp_path / "out", Watcher(done=lambda samples, nbytes: told.append((samples, nbytes))))
    assert len(told) > 1
    assert np.sum(told, axis=0).tolist() == [400, rows.x.nbytes + rows.label.nbytes]


def test_kept_in_the_manifest(rows, tmp_path):
    """What is kept is read back the same, all other members stay, and nothing is kept unless asked for."""
    folder = convert(rows.sources, tmp_path / "out", workers=0).path
    before = (folder / "manifest.json").read_bytes()
    found = stats.statistics(folder)
    assert (folder / "manifest.json").read_bytes() == before
    assert b"stats" not in before
    assert manifests.read(folder).stats == {}
    stats.save(folder, found)
    kept = manifests.read(folder)
    assert kept.stats == found
    assert manifests.read(folder).shards == manifests.decode(before, "").shards


def test_statistics_of_another_dataset_are_refused(rows, clouds, tmp_path):
    """Statistics of more or fewer values than the dataset holds are not kept."""
    folder = convert(rows.sources, tmp_path / "out", workers=0).path
    other = convert(clouds.sources, tmp_path / "other", workers=0).path
    before = (folder / "manifest.json").read_bytes()
    with pytest.raises(UsageError, match="changed"):
        stats.save(folder, stats.statistics(other))
    assert (folder / "manifest.json").read_bytes() == before


def test_statistics_are_kept_by_one_at_a_time(rows, tmp_path):
    """While something is appended the manifest is left alone; a folder that cannot be written is an error of ours."""
    folder = convert(rows.sources, tmp_path / "out", workers=0).path
    found = stats.statistics(folder)
    with changing(LocalPlace(folder)), pytest.raises(UsageError, match="being changed already"):
        stats.save(folder, found)
    (folder / "manifest.copy.json").unlink()
    (folder / "manifest.copy.json").mkdir()
    with pytest.raises(WriteError, match="it is no file"):
        stats.save(folder, found)


INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def reference(values):
    """Mean and standard deviation of numbers, from exact fractions, and how far a result may be off."""
    exact = [Fraction(v) for v in values]
    mean = sum(exact) / len(exact)
    std = math.sqrt(sum((v - mean) ** 2 for v in exact) / len(exact))
    return float(mean), std, 16 * np.finfo(np.float64).eps * (float(max(map(abs, exact))) + std)


def measured(values, folder):
    """Statistics of values (n, channels), packed as samples that are measured in several pieces."""
    convert([{"x": row} for row in values], folder, codec="none", workers=0, overwrite=True)
    return stats.statistics(folder)["x"]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data(), st.sampled_from(INTEGERS))
def test_whole_numbers(tmp_path, data, dtype):
    """Counts and extremes are exact, mean and deviation as float64 has them, over the whole range of every dtype."""
    values = data.draw(npst.arrays(dtype, st.tuples(st.integers(1, 9), st.integers(1, 3))))
    found = measured(values, tmp_path / "out")
    for of, column in zip((*found.channels, found.all), (*values.T, values.ravel()), strict=True):
        assert (of.count, of.min, of.max) == (len(column), int(column.min()), int(column.max()))
        mean, std, off = reference(column.tolist())
        assert of.mean == pytest.approx(mean, rel=0, abs=off)
        assert of.std == pytest.approx(std, rel=0, abs=off)


@pytest.mark.parametrize(("dtype", "offset"), [("float64", 0), ("float64", 1e9), ("float32", 1e5), ("float16", 0)])
def test_floats_are_as_exact_as_float64(dtype, offset, tmp_path, monkeypatch):
    """Far from zero, where sums of squares lose every digit, and over many pieces of unequal means."""
    monkeypatch.setattr(stats, "_PIECE_VALUES", 14)
    rng = np.random.default_rng(0)
    values = (rng.normal(size=(2000, 2)) + np.linspace(-1, 1, 2000)[:, None] + offset).astype(dtype)
    found = measured(values, tmp_path / "out")
    for of, column in zip((*found.channels, found.all), (*values.T, values.ravel()), strict=True):
        mean, std, off = reference(column.tolist())
        assert (of.min, of.max) == (column.min(), column.max())
        assert of.mean == pytest.approx(mean, rel=0, abs=off)
        assert of.std == pytest.approx(std, rel=0, abs=off)


def test_what_is_no_number_is_counted_and_left_out(tmp_path):
    """NaN and infinities change neither extremes nor mean; a channel of nothing else has none."""
    nan, inf = math.nan, math.inf
    values = np.array([[1.0, nan], [nan, inf], [3.0, -inf], [-inf, nan]], np.float32)
    found = measured(values, tmp_path / "out")
    first, second = found.channels
    assert (first.count, first.nan, first.inf) == (2, 1, 1)
    assert (first.min, first.max, first.mean, first.std) == (1.0, 3.0, 2.0, 1.0)
    assert (second.count, second.nan, second.inf) == (0, 2, 2)
    assert (second.min, second.max, second.mean, second.std) == (None, None, None, None)
    assert (found.all.count, found.all.nan, found.all.inf, found.all.mean) == (2, 3, 3, 2.0)


def test_sums_that_float64_cannot_hold_are_not_told(tmp_path):
    """Extremes stay exact where a mean or deviation would overflow, and nothing warns."""
    found = measured(np.array([[1e308], [-1e308], [1.5e308]]), tmp_path / "out")
    assert (found.all.min, found.all.max, found.all.std) == (-1e308, 1.5e308, None)


def test_no_value_at_all(tmp_path):
    """A field whose samples are all empty has a count of 0 and no numbers."""
    convert([{"x": np.empty((0, 2), dtype)} for dtype in ("float32",) * 3], tmp_path / "out")
    of = stats.statistics(tmp_path / "out")["x"].all
    assert (of.count, of.min, of.mean) == (0, None, None)
