"""`packer split`, and splits in what other commands say."""

from __future__ import annotations

import json

import pytest

from packer.format import manifest as manifests

_RULES = ("--split", "train=0.75", "--split", "valid=0.25")


@pytest.fixture
def dataset(packer, pairs, tmp_path):
    """The twelve pairs, packed with splits of 9 and 3."""
    result = packer("convert", *pairs.sources, tmp_path / "d", "--workers", 0, *_RULES)
    assert "splits: train 9, valid 3\n" in result.stdout
    return tmp_path / "d"


def test_plan_and_info_say_how_large_splits_are(packer, dataset, pairs):
    """In a line for people, in JSON with ranges and numbers of samples; without splits nothing is said."""
    for command in (["plan", *pairs.sources, *_RULES], ["info", dataset]):
        result = packer(*command)
        line = next(line for line in result.stdout.splitlines() if line.startswith("splits"))
        assert line.split(maxsplit=1)[1] == "train 9, valid 3"
        found = json.loads(packer(*command, "--json").stdout)
        assert sum(stop - start for start, stop in found["splits"]["train"]) == 9
    assert found["split_samples"] == {"train": 9, "valid": 3}
    assert "splits" not in packer("plan", *pairs.sources).stdout


def test_split_changes_the_manifest_alone(packer, dataset, pairs, tmp_path, files_of):
    """It says what splits there are then; `NAME=` drops one, and a list is a file."""
    before = files_of(dataset)
    (tmp_path / "list.txt").write_text("".join(f"{name}.png (12,10,3) 1\n" for name in pairs.names[:2]))
    result = packer("split", dataset, f"test=@{tmp_path / 'list.txt'}", "train=0.5", "valid=", "--seed", 7)
    assert result.stdout == f"{dataset}: 12 samples\nsplits: test 2, train 5, 5 in none\n"
    after = files_of(dataset)
    assert {name for name in after if after[name] != before[name]} == {"manifest.json"}
    assert manifests.read(dataset).split("test").tolist() == [0, 1]
    assert packer("split", dataset, "test=", "train=").stdout == f"{dataset}: no splits\n"


def test_append_and_merge_say_what_becomes_of_splits(packer, dataset, more, tmp_path):
    """Samples that come without a split are in none, and the last line says how many."""
    packer("convert", *more.sources, tmp_path / "m", "--workers", 0)
    merged = packer("merge", dataset, tmp_path / "m", tmp_path / "both")
    assert merged.stdout.endswith("splits: train 9, valid 3, 3 in none\n")
    result = packer("append", dataset, *more.sources, "--workers", 0)
    assert result.stdout.endswith("splits: train 9, valid 3, 3 in none\n")
    (tmp_path / "both" / "manifest.json").unlink()
    packer("repair", tmp_path / "both")
    assert set(manifests.read(tmp_path / "both").splits) == {"train", "valid"}


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("train", "@FILE|PATTERN"),
        ("=0.5", "@FILE|PATTERN"),
        ("train=@nowhere", "nowhere cannot be read"),
        ("train=1.5", "between 0 and 1"),
        ("train=none*", "no name fits"),
    ],
)
def test_what_is_no_split_is_wrong_usage(refused, dataset, pairs, tmp_path, rule, said):
    """Exit status 2, of `split` and of `convert`, before anything is written."""
    before = (dataset / "manifest.json").read_bytes()
    refused(2, ["split", dataset, "train=0.5", "train=0.6"], "named twice")
    refused(2, ["split", dataset, rule], said)
    refused(2, ["convert", *pairs.sources, tmp_path / "new", "--workers", 0, "--split", rule], said)
    assert (dataset / "manifest.json").read_bytes() == before
    assert not (tmp_path / "new").exists()
