"""`packer verify` and `packer repair`: what they say, and what they exit with."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from packer.checking import Damage
from packer.cli.logs import Progress
from packer.cli.text import size_text
from packer.convert import convert
from packer.verify import VerifyReport


@pytest.fixture
def packed(pairs, tmp_path):
    """The pairs packed in two shards."""
    return convert(pairs.sources, tmp_path / "packed", codec="none", shard_size=4096, workers=0).path


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
    result = packer("verify", packed)
    assert result.exit_code == 1
    assert "does not know this file; remove it" in result.stdout
    assert result.stdout.endswith("1 damage found\n")
    stranger.unlink()
    Image.fromarray(pairs.hr[8] ^ 1).save(pairs.folder / "hr" / "008.png")
    result = packer("verify", packed, "--against", *pairs.sources)
    assert (result.exit_code, result.stdout.splitlines()[-1].rpartition(": ")[2]) == (1, "1 damage found")


def test_a_good_dataset(packer, pairs, packed):
    """One line and 0, against the sources too."""
    result = packer("verify", packed)
    assert (result.exit_code, result.stderr) == (0, "")
    size = size_text(sum(path.stat().st_size for path in packed.rglob("*.lmdb")))
    assert result.stdout.splitlines() == [f"{packed}: 4 files, {size}, 4 frames: all as it was written"]
    against = packer("verify", packed, "--against", *pairs.sources)
    assert against.exit_code == 0
    assert against.stdout.rstrip().endswith("all as the sources have it")


def test_damage_is_named_and_exits_with_1(packer, pairs, packed):
    """Shard, field, samples and names; the next step; and 1."""
    damage(pairs, packed)
    result = packer("verify", packed)
    assert result.exit_code == 1
    first, last = result.stdout.splitlines()
    where = "shards/00001.lmdb, field 'hr', samples 6 to 11 (006, 007, 008, 009, 010, ...)"
    assert first == f"{where}: the checksum of frame 0 is wrong"
    assert last.endswith("1 damage found; run `packer repair`")


def test_json(packer, pairs, packed):
    """--json says the same to machines, with the same exit status."""
    good = packer("verify", packed, "--json")
    assert json.loads(good.stdout)["good"] is True
    assert good.exit_code == 0
    damage(pairs, packed)
    result = packer("verify", packed, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["good"], found["files"]) == (False, 4)
    (only,) = found["damages"]
    assert (only["file"], only["field"], only["samples"]) == ("shards/00001.lmdb", "hr", [6, 12])


def test_a_source_that_differs(packer, pairs, packed):
    """--against names the sample whose source is another now, and exits with 1."""
    Image.fromarray(pairs.lr[0]).save(pairs.folder / "lr" / "004.png")
    result = packer("verify", packed, "--against", *pairs.sources)
    assert result.exit_code == 1
    assert "shards/00000.lmdb, field 'lr', sample 4 (004): differs from the source" in result.stdout
    assert packer("verify", packed).exit_code == 0


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
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "shards/00001.lmdb: made again\n"
    assert "1 shard damaged" in result.stderr
    assert files_of(packed) == before
    assert packer("repair", packed).stdout == f"{packed}: nothing is damaged\n"
    quiet = packer("repair", packed, "--quiet")
    assert (quiet.stdout, quiet.stderr) == ("", "")


def test_repair_of_names_and_manifest(packer, packed):
    """Both are made from the shards."""
    (packed / "names.lmdb").unlink()
    assert packer("repair", packed).stdout == "names.lmdb: made again\n"
    (packed / "manifest.json").unlink()
    assert packer("repair", packed).stdout == "manifest.json: made again\n"
    assert packer("verify", packed).exit_code == 0


def test_a_bar_of_bytes_on_a_terminal(packer, pairs, packed, monkeypatch):
    """Checking is shown in bytes, packing again in samples."""
    damage(pairs, packed)
    shown = []

    class Recorded(Progress):
        def __init__(self, verb, unit="samples"):
            super().__init__(verb, unit)
            self.given = verb, unit

        def start(self, total):
            shown.append((*self.given, total))

    for command in ("verify", "repair"):
        monkeypatch.setattr(f"packer.cli.{command}.Progress", Recorded)
    assert packer("verify", packed).exit_code == 1
    shards = sum(path.stat().st_size for path in (packed / "shards").iterdir())
    assert shown == [("checking", "bytes", shards)]
    assert packer("repair", packed, *pairs.sources).exit_code == 0
    assert shown[1:] == [("checking", "bytes", shards), ("packing", "samples", 6)]


def test_many_damages_are_cut_short(packer, packed, monkeypatch):
    """People see fifty lines, and are told how many more there are."""
    damages = tuple(Damage("shards/00000.lmdb", "wrong", "x", (n, n + 1)) for n in range(70))
    monkeypatch.setattr("packer.verify.verify", lambda *_: VerifyReport(damages, 1, 1, 70))
    lines = packer("verify", packed).stdout.splitlines()
    assert len(lines) == 52
    assert lines[50] == "... and 20 more; --json lists all"
