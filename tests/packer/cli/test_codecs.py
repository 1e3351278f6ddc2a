"""`packer codecs`: a table for each field, by packing and reading samples of it."""

from __future__ import annotations

import faulthandler
import json
import os
import signal

import h5py
import numpy as np
import pytest

from packer.cli import codecs
from packer.codecs import NAMED, codec_name
from packer.convert import convert
from packer.format import FieldSpec
from packer.format import manifest as manifests
from packer.sources import open_sources


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Samples are read once."""
    monkeypatch.setattr(codecs, "_SECONDS", 0.0)


def reports(packer, *arguments):
    """What `packer codecs --json` says, by field."""
    result = packer("codecs", *arguments, "--json")
    return {field["spec"]["name"]: field for field in json.loads(result.stdout)["fields"]}


def test_a_table_for_each_field(packer, pairs):
    """Every codec that suits the field, with ratio and speeds, the choice of `auto` starred, within 80 columns.

    `jpeg` is for JPEG files.
    """
    result = packer("codecs", *pairs.sources)
    lines = result.stdout.splitlines()
    assert lines[0] == "lr: uint8, 6 x 5 x 3; 12 samples, 1.08 kB looked at"
    assert lines[1].split() == ["codec", "ratio", "packing", "reading"]
    spec = FieldSpec(name="lr", dtype="uint8", kind="image", shape=(6, 5, 3))
    fitting = [name for name, configs in NAMED.items() if not any(map(spec.misfit, configs)) and name != "jpeg"]
    assert [line[2:].split()[0] for line in lines[2 : 2 + len(fitting)]] == fitting
    assert [line.split()[1] for line in lines[:-1] if line.startswith("* ")] == ["none", "none"]
    assert lines[-1] == "* what `auto` takes"
    assert max(map(len, lines)) <= 80


def test_json(packer, clouds):
    """--json holds all numbers; source options are taken as convert takes them; filters are for images alone."""
    found = reports(packer, *clouds.sources, "--cast", "xyz=float64")
    assert [(name, field["spec"]["dtype"]) for name, field in found.items()] == [("xyz", "float64"), ("rgb", "uint8")]
    for field in found.values():
        assert [t["codec"] for t in field["trials"]] == [
            n
            for n in NAMED
            if not n.startswith(("photo", "jpeg")) and (field["spec"]["dtype"] == "float64" or "decimal" not in n)
        ]
        assert all(0 < trial[number] < 1e12 for trial in field["trials"] for number in ("ratio", "packing", "reading"))


@pytest.fixture
def rows_of_all_kinds(tmp_path):
    """Noise, a slope, small records, captions and rows without a byte."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["noise"] = rng.integers(0, 2**32, (200, 1024), dtype=np.uint32)
        file["slope"] = np.cumsum(rng.integers(0, 3, (200, 1000)), axis=1).astype(np.int32)
        file["label"] = np.arange(200)
        file["caption"] = ["ein W\u00f6rtchen " * (n % 9) for n in range(200)]
        file["empty"] = np.zeros((200, 0))
    return tmp_path / "rows.h5"


def test_auto_and_ratios_are_those_of_a_conversion(packer, rows_of_all_kinds, tmp_path):
    """The codec marked for a field is the one convert takes, and the ratio about that of the packed column."""
    found = reports(packer, rows_of_all_kinds)
    fields = manifests.read(convert(rows_of_all_kinds, tmp_path / "out", workers=0).path).fields
    assert {name: field["auto"] for name, field in found.items()} == {f.name: codec_name(f.codec) for f in fields}
    totals = convert(rows_of_all_kinds, tmp_path / "zstd", codec="zstd", workers=0).manifest.columns
    for name in ("noise", "slope"):
        trial = next(trial for trial in found[name]["trials"] if trial["codec"] == "zstd")
        assert trial["ratio"] == pytest.approx(totals[name].raw / totals[name].stored, rel=0.05)
    assert found["empty"]["trials"] == []


def test_a_source_that_crashes(packer, clouds, monkeypatch):
    """A file that crashes its reader is an error with a sentence, and takes the command down no more than others do."""

    def crash(self):
        faulthandler.disable()  # pytest's own, which would fill the screen
        os.kill(os.getpid(), signal.SIGSEGV)

    monkeypatch.setattr(type(open_sources(clouds.sources)), "read", crash)
    result = packer("codecs", *clouds.sources, status=1)
    assert "none of the samples looked at can be read; `packer convert` says why" in result.stderr
