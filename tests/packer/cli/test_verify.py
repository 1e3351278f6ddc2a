"""`packer verify` and `packer repair`: what they say, and what they exit with."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from made_datasets import make_plain
from PIL import Image

from packer.checking import Damage
from packer.cli.text import size_text
from packer.convert import convert
from packer.verify import VerifyReport


@pytest.fixture
def packed(pairs, tmp_path):
    """The pairs packed in two shards."""
    return make_plain(convert(pairs.sources, tmp_path / "packed", codec="none", shard_size=4096, workers=0).path)


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def damage(pairs, packed):
    """Flips a bit of the picture 009 of `hr`."""
    shard = packed / "shards" / "00001.lmdb"
    flip(shard, shard.read_bytes().index(pairs.hr[9].tobytes()))


def test_what_repairing_cannot_mend(packer, pairs, packed):
    """Of a file that is none of the dataset's it is said to remove it, and of sources that differ nothing."""
    stranger = packed / "shards" / "00009.lmdb"
    stranger.write_bytes(b"")
    result = packer("verify", packed, status=1)
    assert "does not know this file; remove it" in result.stdout
    assert result.stdout.endswith("1 problem found\n")
    stranger.unlink()
    Image.fromarray(pairs.hr[8] ^ 1).save(pairs.folder / "hr" / "008.png")
    result = packer("verify", packed, "--against", *pairs.sources, status=1)
    assert result.stdout.endswith(": 1 problem found\n")


def test_a_good_dataset(packer, pairs, packed):
    """One line and 0, against the sources too."""
    result = packer("verify", packed)
    assert result.stderr == ""
    size = size_text(sum(path.stat().st_size for path in packed.rglob("*.lmdb")))
    assert result.stdout.splitlines() == [f"{packed}: 4 files, {size}, 4 frames: no damage found"]
    against = packer("verify", packed, "--against", *pairs.sources)
    verdict = "no damage found; lr, hr of 12 samples are as packer reads them from the sources\n"
    assert against.stdout.endswith(verdict)
    assert against.stdout.splitlines()[:-1] == ["note: hr is 2 times as large as lr in every sample"]


def test_what_the_sources_hold_besides_is_named(packer, tmp_path):
    """The comparison reads as packing does: what both leave out, or change, stands above the verdict and in --json."""
    (tmp_path / "in").mkdir()
    Image.fromarray(np.zeros((4, 4), np.uint8)).convert("P").save(tmp_path / "in" / "a.png")
    (tmp_path / "in" / "b.png").write_bytes(b"none")
    packer("convert", tmp_path / "in", tmp_path / "d", "--on-error", "skip")
    command = ["verify", tmp_path / "d", "--against", tmp_path / "in"]  # --on-error is that of the conversion
    *notes, verdict = packer(*command).stdout.splitlines()
    assert verdict.endswith("image of 1 sample are as packer reads them from the sources")
    assert [note[:34] for note in notes] == ["note: 1 skipped when they were pac", "note: field image, 1 file with a p"]
    compared = json.loads(packer(*command, "--json").stdout)["compared"]
    assert (compared["fields"], compared["samples"]) == (["image"], 1)
    assert [f"note: {note}" for note in compared["besides"]] == notes


def test_damage_is_named_and_exits_with_1(packer, pairs, packed):
    """Shard, field, samples and names; the next step; and 1. --json says the same to machines."""
    assert json.loads(packer("verify", packed, "--json").stdout)["good"] is True
    damage(pairs, packed)
    first, last = packer("verify", packed, status=1).stdout.splitlines()
    where = "shards/00001.lmdb, field 'hr', samples 6 to 11 (006, 007, 008, 009, 010, ...)"
    assert first == f"{where}: the checksum of frame 0 is wrong"
    assert last.endswith("1 problem found; run `packer repair`")
    found = json.loads(packer("verify", packed, "--json", status=1).stdout)
    assert (found["good"], found["files"]) == (False, 4)
    (only,) = found["damages"]
    assert (only["file"], only["field"], only["samples"]) == ("shards/00001.lmdb", "hr", [6, 12])


def test_a_source_that_differs(packer, pairs, packed):
    """--against names the sample whose source is another now, and exits with 1."""
    Image.fromarray(pairs.lr[0]).save(pairs.folder / "lr" / "004.png")
    result = packer("verify", packed, "--against", *pairs.sources, status=1)
    assert "shards/00000.lmdb, field 'lr', sample 4 (004): differs from the source" in result.stdout
    packer("verify", packed)


def test_wrong_usage(refused, pairs, packed, tmp_path):
    """Sources without --against, --against without sources, and what is no dataset."""
    refused(2, ["verify", packed, *pairs.sources], "--against")
    refused(2, ["verify", packed, "--against"], "--against")
    refused(2, ["verify", packed, "--against", pairs.sources[0]], "'hr' is not in the source")
    refused(2, ["verify", tmp_path / "nothing"], "nothing does not exist")
    refused(2, ["repair", tmp_path], "not a packed dataset")
    for command in (["verify", "--against"], ["append"]):
        refused(2, [*command, *pairs.sources, packed], f"{pairs.sources[0]} does not exist")


def test_repair_makes_it_good_again(packer, refused, pairs, packed, files_of):
    """It needs the sources, says what it made, and leaves the bytes of the conversion."""
    before = files_of(packed)
    damage(pairs, packed)
    refused(1, ["repair", packed], "00001.lmdb is damaged", "name the sources")
    result = packer("repair", packed, *pairs.sources)
    assert result.stdout == "shards/00001.lmdb: made again\n"
    assert "1 shard damaged" in result.stderr
    assert files_of(packed) == before
    assert packer("repair", packed).stdout == f"{packed}: nothing is damaged\n"
    quiet = packer("repair", packed, "--quiet")
    assert (quiet.stdout, quiet.stderr) == ("", "")


def test_repair_of_names_and_manifest(packer, packed):
    """Names are made from the shards, the manifest from its copy."""
    (packed / "names.lmdb").unlink()
    assert packer("repair", packed).stdout == "names.lmdb: made again\n"
    (packed / "manifest.json").unlink()
    assert packer("repair", packed).stdout == "manifest.json: made again\n"
    packer("verify", packed)


def test_many_damages_are_cut_short(packer, packed, monkeypatch):
    """People see fifty lines, and are told how many more there are."""
    damages = tuple(Damage("shards/00000.lmdb", "wrong", "x", (n, n + 1)) for n in range(70))
    monkeypatch.setattr("packer.verify.verify", lambda *_: VerifyReport(damages, 1, 1, 70))
    lines = packer("verify", packed, status=1).stdout.splitlines()
    assert len(lines) == 52
    assert lines[50] == "... and 20 more; --json lists all"


def test_parts_are_joined(packer, refused, pairs, packed):
    """A part says what it checked; the call without --part says from when its reports are, and 1 if one has damage."""
    refused(2, ["verify", packed, "--part", "1/2", "--against", *pairs.sources], "leave --part out")
    refused(2, ["verify", packed, "--part", "3/2"], "such as 17/400")
    damage(pairs, packed)
    first = json.loads(packer("verify", packed, "--part", "1/2", "--json").stdout)
    assert (first["good"], first["part"], first["files"]) == (True, "1/2", 1)
    lines = packer("verify", packed, "--part", "0/2", status=1).stdout.splitlines()
    assert lines[0] == "shards/00001.lmdb, field 'hr', samples 6 to 11: the checksum of frame 0 is wrong"
    assert re.fullmatch(r".*packed: part 0/2: 1 file, .*: 1 problem found; run `packer repair`", lines[1])
    whole = packer("verify", packed, "--against", *pairs.sources, status=1).stdout  # reads all, and leaves the reports
    joined = packer("verify", packed, status=1).stdout.splitlines()
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d"
    last, not_read = joined.pop().split("; NOT read now: ")
    assert re.fullmatch(rf"2 of 2 shards, checked by 2 parts from {time} to {time} UTC", not_read)
    assert [*joined, last] == [whole.splitlines()[0], whole.splitlines()[-1].replace("2 problems", "1 problem")]
    assert json.loads(packer("verify", packed, "--json", status=1).stdout)["parts"]["parts"] == 0
