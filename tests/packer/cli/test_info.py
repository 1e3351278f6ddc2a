"""`packer info`: what is said of a dataset, and of what is none."""

from __future__ import annotations

import json
import os

import msgspec
import pytest
from made_datasets import make_plain, put_manifest

from packer import __version__
from packer.convert import convert
from packer.drop import drop
from packer.format import ColumnTotals
from packer.format import manifest as manifests
from packer.join import join
from packer.packing import ConvertOptions, commands_of


@pytest.fixture
def packed(pairs, tmp_path):
    """A packed dataset of the pairs, `lr` raw and `hr` zstd."""
    return make_plain(convert(pairs.sources, tmp_path / "packed", codec="lr=none,hr=zstd", workers=0).path)


def test_what_the_text_says(packer, packed):
    """Fields, codecs, shards, samples, sizes, names and origin, within 80 columns; commands in a line each."""
    result = packer("info", packed)
    words = ("lr", "6 x 5 x 3", "uint8", "image", "zstd", "12", "as arrays", "000, 001", "images")
    for word in (*words, f"packer {__version__}"):
        assert word in result.stdout
    assert max(len(line) for line in result.stdout.splitlines() if not line.startswith("packer convert lr=")) <= 80
    assert result.stderr == ""


def test_what_the_text_says_of_other_datasets(packer, packed, clouds, rows, tmp_path):
    """Ragged axes are `any`; of the origin words and numbers are shown, fields that came or went later are named."""
    assert "origin kind  images" in packer("info", packed).stdout
    convert(clouds.folder, tmp_path / "a", workers=0)
    assert "any x 3" in packer("info", tmp_path / "a").stdout
    convert(rows.path, tmp_path / "b", workers=0)
    text = packer("info", tmp_path / "b").stdout
    assert "none; samples have only numbers" in text
    assert "one value" in text
    assert "origin kind  hdf5\norigin       the manifest also has options, files: --json shows them\n" in text
    assert "{" not in text
    join(tmp_path / "b", [{"z": n} for n in range(manifests.read(tmp_path / "b").samples)])
    drop(tmp_path / "b", ["z"], workers=0)
    text = packer("info", tmp_path / "b").stdout
    assert "dropped later  z\n" in text
    assert text.count("dropped") == 1


def test_json_holds_exact_bytes(packer, packed):
    """--json prints one object with everything the manifest says, and bytes as numbers."""
    found = json.loads(packer("info", packed, "--json").stdout)
    manifest = json.loads((packed / "manifest.json").read_text())
    for name in ("samples", "shards", "columns", "names", "origin", "planned_bytes", "tool", "version"):
        assert found[name] == manifest[name]
    assert found["columns"]["lr"] == {"raw": 12 * 90, "stored": 12 * 90}
    assert found["codec_names"] == {"lr": "none", "hr": "zstd"}
    assert found["first_names"] == ["000", "001", "002", "003", "004"]
    assert found["file_bytes"] == sum(p.stat().st_size for p in packed.rglob("*.lmdb"))


def test_what_is_no_dataset(refused, packed):
    """A file is wrong usage; a damaged and an unfinished dataset are bad data."""
    manifest = packed / "manifest.json"
    refused(2, ["info", manifest], "is a file")
    manifest.write_text(manifest.read_text().replace('"samples": 12', '"samples": 13'))
    refused(1, ["info", packed], "manifest.json")
    manifest.unlink()
    (packed / "unfinished").mkdir()
    for name in ("0123abcd", "0123abcd-00002"):
        (packed / "unfinished" / f"{name}.json").write_text('{"shards": 3}')
    refused(1, ["info", packed], "unfinished", "1 of 3 shards")


def test_missing_and_truncated_files_are_told(packer, packed):
    """The manifest can be read while a file is damaged; info shows it, and warns."""
    shard = packed / "shards" / "00000.lmdb"
    shard.write_bytes(shard.read_bytes()[:-1])
    (packed / "names.lmdb").unlink()
    result = packer("info", packed)
    assert "00000.lmdb" in result.stderr
    assert "names.lmdb" in result.stderr
    assert "packer verify" in result.stderr


def test_what_was_left_out(packer, pairs, tmp_path):
    """The number of skipped samples is shown, from the manifest's count with a warning if their list is damaged."""
    bad = pairs.folder / "hr" / "003.png"
    bad.write_bytes(bad.read_bytes()[:-60] + bytes(60))
    convert(pairs.sources, tmp_path / "d", on_error="skip", workers=0)
    make_plain(tmp_path / "d")
    line = ["skipped", "1", "sample,", "listed", "in", "rejected.jsonl"]
    assert line in [text.split() for text in packer("info", tmp_path / "d").stdout.splitlines()]
    (tmp_path / "d/rejected.jsonl").write_text("no JSON\n")
    result = packer("info", tmp_path / "d")
    assert line in [text.split() for text in result.stdout.splitlines()]
    assert "rejected.jsonl" in result.stderr


def test_a_dataset_of_no_samples(packer, refused, tmp_path):
    """Every command that looks at a dataset shows that nothing is in it, or refuses it in a sentence."""
    path = convert([{"x": 1}], tmp_path / "empty").path
    nothing = {"samples": 0, "shards": (), "columns": {"x": ColumnTotals(raw=0, stored=0)}}
    put_manifest(path, msgspec.structs.replace(manifests.read(path), **nothing))
    next((path / "shards").iterdir()).unlink()
    text = packer("info", path).stdout
    assert ["shards", "none"] in [line.split() for line in text.splitlines()]
    for command in ("verify", "stats", "doctor", "warm"):
        packer(command, path)
    packer("export", path, tmp_path / "files")
    refused(2, ["split", path, "train=0.5"], "would hold no sample")
    refused(1, ["show", path, "-o", tmp_path / "page.html"], "it has no samples")
    refused(1, ["bench", path], "it has no samples")


def test_escapes_of_an_origin(packer, tmp_path):
    """What a dataset of others says in its origin cannot move the cursor: neither by names nor by values."""
    path = convert([{"x": 1}], tmp_path / "d").path
    manifest = manifests.read(path)
    put_manifest(path, msgspec.structs.replace(manifest, origin={"\x1b[2Jname": "\x1b[2Jvalue", "\x1b[2Jlist": [1]}))
    text = packer("info", path).stdout
    assert "\x1b" not in text
    assert text.count("\\x1b[2J") == 3


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no fifos")
def test_a_fifo_is_no_manifest(refused, tmp_path):
    """It is refused instead of waited for."""
    os.mkfifo(tmp_path / "manifest.json")
    refused(1, ["info", tmp_path], "manifest.json: cannot be read: it is no file")


@pytest.mark.skipif(os.name == "nt", reason="names of files are text there")
@pytest.mark.parametrize("command", ["info", "verify", "stats", "doctor"])
def test_json_of_a_folder_whose_name_is_not_utf_8(packer, rows, tmp_path, command):
    """JSON is UTF-8 all the same: the name stands there with escapes."""
    out = tmp_path / os.fsdecode(b"out\xff")
    convert(rows.sources, out, workers=0)
    assert json.loads(packer(command, out, "--json").stdout)["path"] == f"{tmp_path}/out\\udcff"


def test_the_commands_that_packed_a_dataset(packer, rows, tmp_path):
    """As they were given, options by their flags; of a URL nothing that is secret."""
    packer("convert", rows.path, tmp_path / "a", "--unwritten", "refuse", "--codec", "none", "--split", "some=0.5")
    line = f"packer convert {rows.path} {tmp_path / 'a'} --unwritten refuse --codec none --split some=0.5"
    assert packer("info", tmp_path / "a").stdout.splitlines()[-2:] == ["", line]
    (command,) = commands_of("convert", ["x=s3://me:secret@host/b/a.h5?signature=1"], ConvertOptions())
    assert command.sources == ("x=s3://host/b/a.h5",)


def test_commands_of_datasets_that_were_merged(packer, rows, tmp_path, monkeypatch):
    """Each command names the dataset that it wrote to, and the last line what became of these."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "c"):
        packer("convert", "rows.h5", name, "--workers", 0)
    packer("append", "b", "rows.h5", "--workers", 0)
    packer("merge", "a", "b", "ab")
    packer("merge", "ab", "c", "all")
    packer("append", "c", "a", "--workers", 0)
    commands = [
        "packer convert rows.h5 a",
        "packer convert rows.h5 b",
        "packer append b rows.h5",
        "packer convert rows.h5 c",
    ]
    taken = "then all took over the samples of a, b, c, by packer merge or packer append"
    assert packer("info", "all").stdout.splitlines()[-5:] == [*commands, taken]
    assert packer("info", "c").stdout.splitlines()[-3:] == [
        "packer convert rows.h5 c",
        "packer convert rows.h5 a",
        "then c took over the samples of a, by packer merge or packer append",
    ]
