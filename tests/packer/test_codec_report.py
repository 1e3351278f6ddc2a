"""The codec report: honest ratios, and the choice that `auto` really makes."""

from __future__ import annotations

import faulthandler
import os
import signal

import numpy as np
import pytest

from packer import codec_report as reports
from packer.codec_report import codec_report
from packer.codecs.configs import NAMED, codec_name
from packer.codecs.frames import FrameCodec
from packer.convert import ConvertOptions, convert, open_source
from packer.errors import SourceError
from packer.format import manifest as manifests
from packer.format.schema import FieldSpec
from packer.sources.samples import SampleSource
from packer.workers import Limits


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Each speed is measured once."""
    monkeypatch.setattr(reports, "_SECONDS", 0.0)


def report(samples):
    return {field.spec.name: field for field in codec_report(open_source(samples, ConvertOptions(), []))}


def samples(count=20):
    """A smooth picture, noise, a small record, a caption and a cloud a sample."""
    rng = np.random.default_rng(0)
    steps = np.arange(64)
    return [
        {
            "smooth": np.add.outer(steps, steps)[..., None].repeat(3, -1).astype(np.uint8) + np.uint8(n),
            "noise": rng.integers(0, 2**32, 1024, dtype=np.uint32),
            "label": np.int64(n),
            "caption": "a word " * n,
            "cloud": np.cumsum(rng.normal(size=(100 + n, 3)), axis=0).astype(np.float32),
        }
        for n in range(count)
    ]


def test_auto_is_what_convert_takes(tmp_path):
    """The codec marked for each field is the one that stands in the manifest of a conversion."""
    found = report(samples())
    convert(samples(), tmp_path / "out")
    fields = manifests.read(tmp_path / "out").fields
    assert {name: field.auto for name, field in found.items()} == {f.name: codec_name(f.codec) for f in fields}
    assert {"none", "lz4"} < {field.auto for field in found.values()} | {"lz4"}


def test_ratios_are_those_of_a_conversion(tmp_path):
    """The ratio is that of the packed column, but for the cutting of frames, which differs at the ends."""
    for name in ("zstd", "bitshuffle"):
        convert(samples(), tmp_path / name, codec=name)
        totals = manifests.read(tmp_path / name).columns
        found = report(samples())
        for field in ("noise", "cloud"):
            trial = next(trial for trial in found[field].trials if trial.codec == name)
            assert trial.ratio == pytest.approx(totals[field].raw / totals[field].stored, rel=0.03)


def test_only_codecs_that_suit_a_field_are_tried(pairs):
    """Filters are for images; all others are tried on everything."""
    source = open_source(pairs.sources, ConvertOptions(), [])
    assert [t.codec for field in codec_report(source) for t in field.trials] == 2 * list(NAMED)
    found = report(samples())
    assert [t.codec for t in found["noise"].trials] == [
        name for name in NAMED if not name.startswith(("rowdelta", "photo"))
    ]


def test_speeds_are_measured():
    """Every speed is a number that memory could reach."""
    for field in report(samples()).values():
        for trial in field.trials:
            assert 0 < trial.encode < 1e12
            assert 0 < trial.decode < 1e12


@pytest.mark.usefixtures("by_machine")
@pytest.mark.parametrize("size", [20, 64, 700])
def test_pictures_are_timed_as_they_are_read(monkeypatch, size):
    """Loops in machine code decode them and undo the filter, also of frames shared or cut into bands."""
    undone, decode = [], FrameCodec.decode_frames

    def watched(codec, *frames):
        undone.append(decode(codec, *frames) if codec.filter else True)
        return undone[-1]

    monkeypatch.setattr(FrameCodec, "decode_frames", watched)
    spec = FieldSpec(name="x", dtype="uint8", kind="image", shape=(size, size, 3))
    list(codec_report(SampleSource([{"x": np.full((size, size, 3), n, np.uint8)} for n in range(40)], [spec])))
    assert len(undone) > 3
    assert all(undone)


def test_shares_add_up_and_empty_fields_have_no_trials():
    """Shares of all fields make one; samples of no bytes are tried with no codec."""
    found = report([{"x": np.zeros(8), "empty": np.zeros((0, 2)), "text": ""}])
    assert sum(field.share for field in found.values()) == pytest.approx(1)
    assert found["empty"].trials == found["text"].trials == ()
    assert found["empty"].auto == "none"


class Trap(SampleSource):
    """Samples of which some crash the process that reads them, by number in the whole."""

    bad = range(10)

    def part(self, start, stop):
        return Trap(self._items, self.fields, self._start + start, self._start + stop)

    def read(self):
        if any(number in self.bad for number in range(self._start, self._stop)):
            faulthandler.disable()  # pytest's own, which would fill the screen
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().read()


def test_samples_that_crash_are_passed_over(monkeypatch):
    """Within limits a sample that crashes its reader takes nothing down, and the others are looked at."""
    found = list(codec_report(Trap(samples()), Limits()))
    assert {field.samples for field in found} == {8}  # half of the 16 places looked at
    monkeypatch.setattr(Trap, "bad", range(20))
    with pytest.raises(SourceError, match="none of the samples"):
        list(codec_report(Trap(samples()), Limits()))


def test_a_source_that_cannot_be_read_is_an_error(clouds):
    """Nothing to look at is an error, not an empty report."""
    source = open_source(clouds.sources, ConvertOptions(), [])
    for path in clouds.folder.iterdir():
        text = path.read_text()
        path.write_text(text[: text.index("end_header") + 11])
    with pytest.raises(SourceError, match="none of the samples"):
        list(codec_report(source))
