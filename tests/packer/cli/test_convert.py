"""`packer convert`: what goes in comes out, and what it says meanwhile."""

from __future__ import annotations

import json

import numpy as np
import pytest
from picture_files import save

from packer.codecs import codec_name
from packer.format import LOCK
from packer.format import manifest as manifests
from packer.machine import usual_memory
from readers import PackedDataset


def codecs(out):
    return {field.name: codec_name(field.codec) for field in manifests.read(out).fields}


@pytest.mark.parametrize("kind", ["pairs", "clouds", "rows"])
def test_files_come_out_as_they_went_in(packer, request, tmp_path, kind):
    """Every value of every field is read back, under the names of the files."""
    made = request.getfixturevalue(kind)
    packer("convert", *made.sources, tmp_path / "out", "--workers", 0)
    ds = PackedDataset(tmp_path / "out")
    assert (ds.names is None) == (kind == "rows")
    assert ds.names is None or list(ds.names) == made.names
    for name, field in ds.fields.items():
        for number, wanted in enumerate(getattr(made, name)):
            found = ds[number][name].numpy()
            np.testing.assert_array_equal(found, wanted.transpose(2, 0, 1) if field.kind == "image" else wanted)


def test_clips_in_class_folders_come_out_as_they_went_in(packer, tmp_path):
    """With --samples folders and --label folder, every clip and its class are read back, and packer info names both."""
    frames = {name: [save(tmp_path / "clips" / name / f"{n}.png") for n in range(3)] for name in ("run/a", "jump/b")}
    out = tmp_path / "out"
    packer("convert", tmp_path / "clips", out, "--samples", "folders", "--label", "folder")
    ds = PackedDataset(out)
    assert ds.classes == ["jump", "run"]
    for name, label in (("run/a", 1), ("jump/b", 0)):
        np.testing.assert_array_equal(ds[name]["image"], frames[name])
        assert ds[name]["label"] == label
    assert "2: jump, run" in packer("info", out).stdout


def test_results_go_to_stdout_and_notes_to_stderr(packer, pairs, tmp_path):
    """The summary stands on stdout, what was noticed about the source on stderr, and --quiet leaves both out."""
    result = packer("convert", *pairs.sources, tmp_path / "a", "--workers", 0)
    for word in ("12 samples in 1 shard", "lr ", "hr ", "ratio", "as arrays", "packed", "/s"):
        assert word in result.stdout
    assert result.stderr == "packer: hr is 2 times as large as lr in every sample\n"
    quiet = packer("convert", *pairs.sources, tmp_path / "b", "--workers", 0, "--quiet")
    assert (quiet.stdout, quiet.stderr) == ("", "")


def test_codecs_by_field_in_every_form(packer, pairs, tmp_path):
    """--codec may be repeated, hold commas, name fields, and hold JSON with commas of its own."""
    sources = [*pairs.sources, tmp_path / "a", "--workers", 0]
    packer("convert", *sources, "--codec", "lz4,hr=zstd")
    assert codecs(tmp_path / "a") == {"lr": "lz4", "hr": "zstd"}
    sources[2] = tmp_path / "b"
    config = '[{"id":"shuffle","elementsize":1},{"id":"zlib","level":1}]'
    packer("convert", *sources, "--codec", "none", "--codec", f"hr={config}")
    assert codecs(tmp_path / "b") == {"lr": "none", "hr": "shuffle+zlib"}


def test_skip_lists_what_was_left_out(packer, clouds, tmp_path):
    """With --on-error skip a damaged file is listed with its reason, and all others are packed."""
    bad = clouds.folder / "c3.ply"
    bad.write_text(bad.read_text()[:-20])
    out = tmp_path / "out"
    result = packer("convert", clouds.folder, out, "--on-error", "skip", "--workers", 2)
    assert list(PackedDataset(out).names) == ["c0", "c1", "c2", "c4"]
    (listed,) = out.glob("left-out-*.jsonl")
    (line,) = listed.read_text().splitlines()
    assert json.loads(line)["file"] == str(bad)
    assert "warning: 1 file or sample was skipped" in result.stderr
    assert str(listed) in result.stderr


def test_a_bad_sample_can_be_left_out_halfway(packer, new_pairs, files_of, tmp_path):
    """Stopped by it, one is told how to go on without: what is finished is kept, and all is as if never stopped."""
    made = new_pairs(tmp_path / "many", 40, 6, 5)
    bad = made.folder / "hr" / "030.png"
    bad.write_bytes(bad.read_bytes()[:-20])
    command = ["convert", *made.sources, tmp_path / "out", "--shard-size", "4KiB", "--codec", "none", "--workers", 0]
    stopped = packer(*command, status=1)
    assert "warning: the same command skips bad samples with --on-error skip" in stopped.stderr
    gone_on = packer(*command, "--on-error", "skip")
    assert "packed before" in gone_on.stdout
    command[3] = tmp_path / "never-stopped"
    packer(*command, "--on-error", "skip")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "never-stopped")


def test_dry_run_says_what_plan_says_and_changes_nothing(packer, refused, rows, files_of, tmp_path):
    """No file comes to be, and what convert would refuse is refused: a dataset that is there, without --overwrite."""
    before, out = files_of(tmp_path), tmp_path / "out"
    result = packer("convert", rows.path, out, "--dry-run", "--codec", "none")
    plan = packer("plan", rows.path, "--codec", "none")
    # Free space and time differ from one call to the next.
    said, planned = (
        [line for line in each.stdout.splitlines() if not line.startswith(("disk", "time"))] for each in (result, plan)
    )
    assert said == planned
    assert "400" in result.stdout
    assert files_of(tmp_path) == before
    assert not out.exists()
    packer("convert", rows.path, out, "--workers", 0)
    refused(2, ["convert", rows.path, out, "--dry-run"], "is a packed dataset already")
    packer("convert", rows.path, out, "--dry-run", "--overwrite")


def test_overwrite_replaces_a_dataset(packer, pairs, rows, tmp_path):
    """With --overwrite the new dataset stands where the old one stood, and nothing of either lies about."""
    out = tmp_path / "out"
    packer("convert", *pairs.sources, out, "--workers", 0)
    packer("convert", rows.path, out, "--workers", 0, "--overwrite")
    assert set(PackedDataset(out).fields) == {"x", "label"}
    assert {path.name for path in tmp_path.iterdir()} == {"pairs", "rows.h5", "out"}
    assert {path.name for path in out.iterdir()} == {LOCK, "manifest.json", "manifest.copy.json", "shards"}


def test_source_options_reach_their_source(packer, pairs, clouds, rows, tmp_path):
    """--mode, --cast and --field change what is packed."""
    packer("convert", *pairs.sources, tmp_path / "a", "--mode", "gray", "--workers", 0)
    assert PackedDataset(tmp_path / "a").fields["lr"].shape == (6, 5, 1)
    packer("convert", clouds.folder, tmp_path / "b", "--cast", "xyz=float64", "--workers", 0)
    assert PackedDataset(tmp_path / "b").fields["xyz"].dtype == "float64"
    packer("convert", rows.path, tmp_path / "c", "--field", "y=/label", "--workers", 0)
    assert list(PackedDataset(tmp_path / "c").fields) == ["y"]


@pytest.mark.parametrize(
    ("address", "package"),
    [("tcp://127.0.0.1:1", "distributed"), ("ray", "ray"), ("ray://127.0.0.1:10001", "ray")],
)
def test_a_scheduler_needs_its_package(refused, pairs, tmp_path, monkeypatch, address, package):
    """Without its package, --scheduler is refused with the line that installs it, and so is a number of workers."""
    monkeypatch.setitem(__import__("sys").modules, package, None)
    arguments = ["convert", *pairs.sources, tmp_path / "out", "--scheduler", address]
    refused(2, arguments, f"pip install '.[{package}]'")
    refused(2, [*arguments, "--workers", 2], "--workers and --scheduler exclude each other")
    assert not (tmp_path / "out").exists()


def test_limits_of_reading(packer, rows, tmp_path, monkeypatch):
    """--read-timeout and --read-memory reach the conversion; 0 is no limit."""
    told = []
    monkeypatch.setattr("packer.convert.convert", lambda sources, out, options, **hooks: told.append(options) or 1 / 0)
    for seconds, memory in (("1.5", "1GiB"), ("0", "0")):
        packer("convert", rows.path, "out", "--read-timeout", seconds, "--read-memory", memory, status=1)
    packer("convert", rows.path, "out", status=1)
    assert [(o.read_seconds, o.read_bytes) for o in told] == [(1.5, 2**30), (None, None), (600, usual_memory())]
