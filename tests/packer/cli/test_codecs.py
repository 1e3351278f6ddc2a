"""`packer codecs`: a table for each field."""

from __future__ import annotations

import faulthandler
import json
import os
import signal

import pytest

from packer import codec_report
from packer.codecs.configs import NAMED
from packer.format.schema import FieldSpec
from packer.sources.ply.source import PointSource


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Each speed is measured once."""
    monkeypatch.setattr(codec_report, "_SECONDS", 0.0)


def test_a_table_for_each_field(packer, pairs):
    """Every codec that suits the field, with ratio and speeds, the choice of `auto` starred, within 80 columns."""
    result = packer("codecs", *pairs.sources)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "lr: uint8, 6 x 5 x 3; 12 samples, 1.08 kB looked at"
    assert lines[1].split() == ["codec", "ratio", "packing", "reading"]
    spec = FieldSpec(name="lr", dtype="uint8", kind="image", shape=(6, 5, 3))
    fitting = [name for name, configs in NAMED.items() if not any(map(spec.misfit, configs))]
    assert [line[2:].split()[0] for line in lines[2 : 2 + len(fitting)]] == fitting
    assert [line.split()[1] for line in lines[:-1] if line.startswith("* ")] == ["none", "none"]
    assert lines[-1] == "* what `auto` takes"
    assert "auto keeps it raw: samples under 2,048 bytes are read fastest raw" in lines
    assert max(map(len, lines)) <= 80


def test_json(packer, clouds):
    """--json holds all numbers; source options are taken as convert takes them."""
    found = json.loads(packer("codecs", *clouds.sources, "--cast", "xyz=float64", "--json").stdout)["fields"]
    assert [(f["spec"]["name"], f["spec"]["dtype"]) for f in found] == [("xyz", "float64"), ("rgb", "uint8")]
    for field in found:
        for trial in field["trials"]:
            assert trial["ratio"] > 0
            assert trial["decode"] > 0


def test_a_source_that_crashes(packer, clouds, monkeypatch):
    """A file that crashes its reader is an error with a sentence, and takes the command down no more than others do."""

    def crash(self):
        faulthandler.disable()  # pytest's own, which would fill the screen
        os.kill(os.getpid(), signal.SIGSEGV)

    monkeypatch.setattr(PointSource, "read", crash)
    result = packer("codecs", *clouds.sources)
    assert result.exit_code == 1
    assert "none of the samples looked at can be read; `packer convert` says why" in result.stderr


def test_refusals(refused, tmp_path):
    """What is not there is wrong usage."""
    refused(2, ["codecs", tmp_path / "none"], "none")
    refused(2, ["codecs"], "SOURCE")
