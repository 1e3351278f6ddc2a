"""`packer stats`: what it prints, and what it keeps."""

from __future__ import annotations

import json

import numpy as np
import pytest

from packer.convert import convert
from packer.format import manifest as manifests


def test_the_table_names_fields_and_channels(packer, pairs, tmp_path):
    """A line for each field and each channel, with the numbers of numpy."""
    out = convert(pairs.sources, tmp_path / "out", workers=0).path
    result = packer("stats", out)
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["field", "channel", "count", "min", "max", "mean", "std"]
    assert lines[1].split()[:3] == ["lr", "all", f"{pairs.lr.size:,}"]
    assert f"{pairs.lr[..., 2].mean():.6g}" in lines[4].split()
    assert len(lines) == 9
    assert max(map(len, lines)) <= 80


def test_json_is_exact(packer, rows, tmp_path):
    """Whole numbers and floats with all their digits."""
    out = convert(rows.sources, tmp_path / "out", workers=0).path
    found = json.loads(packer("stats", out, "--json").stdout)
    assert found["samples"] == 400
    assert found["fields"]["label"]["all"]["max"] == int(rows.label.max())
    means = [channel["mean"] for channel in found["fields"]["x"]["channels"]]
    assert means == pytest.approx(rows.x.mean(axis=0, dtype=np.float64).tolist(), rel=1e-13)


def test_odd_values_and_fields_without_numbers(packer, tmp_path):
    """NaN and infinities get columns if there are some; text is named as left out."""
    values = np.array([1, np.nan, np.inf], np.float32)
    convert([{"x": values, "caption": "a"}], tmp_path / "out")
    lines = packer("stats", tmp_path / "out").stdout.splitlines()
    assert lines[0].split()[-2:] == ["nan", "inf"]
    assert lines[1].split() == ["x", "all", "1", "1", "1", "1", "0", "1", "1"]
    assert lines[3].split() == ["1", "0", "-", "-", "-", "-", "1", "0"]
    assert lines[-1].endswith("caption")


def test_fields_of_one_line(packer, tmp_path):
    """Volumes, clips and very wide rows have no columns that anyone would look at; JSON has all."""
    values = {"ct": np.zeros((2, 3, 40)), "clip": np.zeros((2, 4, 4, 3), "u1"), "wide": np.zeros(257)}
    values["table"] = np.zeros((2, 3))
    convert([values], tmp_path / "out")
    fields = [line[:5].split() for line in packer("stats", tmp_path / "out").stdout.splitlines()[1:]]
    assert fields == [["ct"], ["clip"], ["wide"], ["table"], [], [], []]
    found = json.loads(packer("stats", tmp_path / "out", "--json").stdout)
    assert len(found["fields"]["ct"]["channels"]) == 40


def test_save_keeps_them_for_the_next_call(packer, rows, tmp_path):
    """With --save they stand in the manifest, and the next call reads no shard."""
    out = convert(rows.sources, tmp_path / "out", workers=0).path
    first = packer("stats", out)
    assert "stats" not in json.loads((out / "manifest.json").read_text())
    assert packer("stats", out, "--save").stdout == first.stdout
    assert "stats" in json.loads((out / "manifest.json").read_text())
    next((out / "shards").iterdir()).unlink()
    assert packer("stats", out).stdout == first.stdout
    assert manifests.read(out).samples == 400


def test_a_damaged_dataset_is_refused(packer, refused, rows, tmp_path):
    """A missing shard ends it with 1 and one line."""
    out = convert(rows.sources, tmp_path / "out", workers=0).path
    next((out / "shards").iterdir()).unlink()
    refused(1, ["stats", out], "00000.lmdb", "missing")


def test_fields_are_chosen(packer, refused, pairs, tmp_path):
    """--fields A,B names the fields of a command that reads a dataset; a field that is not there is refused."""
    packer("convert", *pairs.sources, tmp_path / "d", "--workers", 0)
    for saved in (False, True):
        found = json.loads(packer("stats", tmp_path / "d", "--fields", "hr", "--json").stdout)["fields"]
        assert (list(found), found["hr"]["all"]["count"]) == (["hr"], 12 * 12 * 10 * 3)
        if not saved:
            packer("stats", tmp_path / "d", "--save")
    packer("export", tmp_path / "d", tmp_path / "files", "--fields", "lr, hr", "--to", "npy")
    for command in (["stats"], ["bench"], ["export", tmp_path / "other"]):
        arguments = [command[0], tmp_path / "d", *command[1:], "--fields", "lr,depth"]
        refused(2, arguments, "has no field 'depth'; it has lr, hr")
    refused(2, ["stats", tmp_path / "d", "--fields", "hr", "--save"], "leave --fields out")


def test_parts_are_joined(packer, refused, rows, tmp_path):
    """Parts print what they read; the call without --part prints the table of all, and what parts gave of it."""
    out = convert(rows.sources, tmp_path / "out", workers=0, shard_size=4096).path
    whole = packer("stats", out).stdout
    refused(2, ["stats", out, "--part", "1/2", "--save"], "leave --part out")
    assert packer("stats", out, "--part", "1/2").stdout == f"{out}: part 1/2: 1 of 2 shards read\n"
    assert json.loads(packer("stats", out, "--part", "0/2", "--json").stdout)["shards"] == 1
    *table, last = packer("stats", out, "--save").stdout.splitlines()
    assert table == whole.splitlines()
    assert last.startswith("NOT read now: 2 of 2 shards, read by 2 parts from 20")
    assert not (out / "unfinished").exists()
    assert "0 of 2 shards read; the manifest holds" in packer("stats", out, "--part", "1/2").stdout
