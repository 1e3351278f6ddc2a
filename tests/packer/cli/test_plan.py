"""`packer plan`: what is said before anything is written, against what is then made."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from jpeg_files import as_jpeg, photograph

from packer.cli.plan import _SPEEDS
from packer.codecs import NAMED


def document(result):
    return json.loads(result.stdout)


def packed_bytes(out):
    files = [*(out / "shards").iterdir(), *out.glob("names-*.lmdb")]
    return sum(path.stat().st_size for path in files)


@pytest.mark.parametrize("source", ["pairs", "clouds", "rows"])
def test_uncompressed_sizes_are_exact(packer, request, tmp_path, source):
    """Without a codec the plan says the bytes of all files but the manifest."""
    sources = request.getfixturevalue(source).sources
    options = ["--codec", "none", "--shard-size", "4KiB"]
    found = document(packer("plan", *sources, "--json", *options))
    out = tmp_path / "out"
    packer("convert", *sources, out, "--workers", 0, *options)
    assert found["exact"] is True
    assert found["file_bytes"] == found["most_bytes"] == packed_bytes(out)
    assert [shard["most_bytes"] for shard in found["shards"]] == [
        path.stat().st_size for path in sorted((out / "shards").iterdir())
    ]
    assert [shard["number"] for shard in found["shards"]] == list(range(len(found["shards"])))
    assert sum(shard["samples"] for shard in found["shards"]) == found["samples"]


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_sizes_are_estimated(packer, clouds, tmp_path, codec):
    """With a codec the plan says about how large the files get, and the most they can take."""
    found = document(packer("plan", *clouds.sources, "--json", "--codec", codec))
    out = tmp_path / "out"
    packer("convert", *clouds.sources, out, "--workers", 0, "--codec", codec)
    assert found["exact"] is False
    assert packed_bytes(out) == pytest.approx(found["file_bytes"], rel=0.05, abs=4096)
    assert packed_bytes(out) <= found["most_bytes"]


def test_what_the_text_says(packer, clouds):
    """Fields with `any` for ragged axes, samples, shards, size, disk and notes, within 80 columns."""
    result = packer("plan", *clouds.sources, "--codec", "xyz=bitshuffle,rgb=none")
    for word in (
        "xyz",
        "float32",
        "any x 3",
        "bitshuffle",
        "samples  5",
        "shards   1",
        "maps     of ",
        "enough",
        "free",
        "at most",
    ):
        assert word in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert result.stderr == ""


def test_the_time_from_a_trial(packer, pairs):
    """It says by how many processes, and how much was tried; none if nothing can be read."""
    text = packer("plan", *pairs.sources, "--workers", 3, "--shard-size", "4KiB", "--codec", "none").stdout
    assert re.search(r"time     about [\d.]+ s in 2 processes, and what writing takes; 12 samples tried", text)
    found = document(packer("plan", *pairs.sources, "--json", "--workers", 1))
    assert found["samples_tried"] == 12
    assert found["seconds"] > 0
    for path in (pairs.folder / "hr").iterdir():
        path.write_bytes(path.read_bytes()[:-20])
    assert "time     not known: no sample that was tried can be read" in packer("plan", *pairs.sources).stdout


def test_notes_of_the_source(packer, pairs, monkeypatch):
    """They stand in the plan in both forms: wrapped on a terminal, one line in a pipe, never cut."""
    for path in (pairs.folder / "lr").iterdir():
        path.rename(path.with_stem(path.stem + "x2"))
    (note,) = (note for note in document(packer("plan", *pairs.sources, "--json"))["notes"] if "x2" in note)
    assert "names have 'x2' at the end" in note
    shown = packer("plan", *pairs.sources).stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert note in " ".join(shown.split())
    monkeypatch.delenv("COLUMNS")
    assert note in packer("plan", *pairs.sources).stdout


def test_rejected_files(packer, pairs):
    """With --on-error skip the plan lists what would be skipped."""
    (pairs.folder / "hr" / "004.png").write_bytes(b"")
    found = document(packer("plan", *pairs.sources, "--on-error", "skip", "--json"))
    assert found["samples"] == 11
    assert found["rejected"][0]["file"].endswith("004.png")
    assert "skipped" in packer("plan", *pairs.sources, "--on-error", "skip").stdout


def test_plan_refuses_what_convert_refuses(refused, pairs):
    """A missing partner is found before anything is written."""
    (pairs.folder / "hr" / "004.png").unlink()
    refused(1, ["plan", *pairs.sources], "004.png")


def test_a_command_of_convert_is_told_to_leave_its_out_away(packer, refused, pairs, clouds, tmp_path):
    """Whether OUT is there or not; a mistyped source keeps the message that names it."""
    packer("convert", *pairs.sources, tmp_path / "out")
    for out in (tmp_path / "out", tmp_path / "none"):
        refused(2, ["plan", *pairs.sources, out], f"plan writes nothing, and takes no OUT: leave {out} out")
    refused(2, ["plan", clouds.folder, tmp_path / "none"], "takes no OUT")
    refused(2, ["plan", pairs.sources[0], f"hr={tmp_path / 'none'}"], "there is no such file or folder")
    refused(2, ["plan", tmp_path / "none"], "there is no such file or folder")


def test_what_another_codec_would_cost(packer, rows, tmp_path):
    """What `auto` chose is weighed against none: share of the bytes and of the speed, and the option to say."""
    values = np.random.default_rng(0).integers(-9999, 9999, (40, 3000)).astype(np.float64)
    np.save(tmp_path / "scans.npy", (values / 100).astype(np.float32))
    (choice,) = document(packer("plan", tmp_path / "scans.npy", "--json"))["choices"]
    assert (choice["codec"], choice["fields"], choice["speed"]) == ("decimal+lz4", ["scans"], 0.5)
    assert 0.4 < choice["share"] < 0.6
    text = " ".join(packer("plan", tmp_path / "scans.npy").stdout.split())
    assert f"scans: decimal+lz4 takes {choice['share']:.2f} of the bytes of none" in text
    assert "read at about 0.5 of its speed; --codec scans=none for speed" in text
    assert document(packer("plan", tmp_path / "scans.npy", "--json", "--codec", "zstd"))["choices"] == []
    assert document(packer("plan", *rows.sources, "--json"))["choices"] == []


def test_every_codec_of_auto_has_its_speed():
    """`auto` chooses among the named codecs; of `jpeg` there is a remark."""
    assert set(_SPEEDS) >= set(NAMED) - {"none", "lz4hc", "jpeg"}


def test_files_that_auto_keeps_are_weighed_once(packer, tmp_path):
    """By `plan` and `convert` alike, in one sentence on speed and size; not where the codec was asked for."""
    (tmp_path / "in").mkdir()
    for number in range(4):
        (tmp_path / "in" / f"{number}.jpg").write_bytes(as_jpeg(photograph(30, 40, number)))
    said = "JPEG files of image stay as they are; --codec image=photo+lz4 reads about 3 times as fast"
    plan, made = (
        packer("plan", f"image={tmp_path / 'in'}"),
        packer("convert", f"image={tmp_path / 'in'}", tmp_path / "a"),
    )
    for text in (plan.stdout, made.stderr):
        assert " ".join(text.split()).count(said) == 1
    assert "jpeg takes" not in plan.stdout
    asked = packer("convert", f"image={tmp_path / 'in'}", tmp_path / "b", "--codec", "jpeg", "-v")
    assert "photo+lz4" not in asked.stderr
