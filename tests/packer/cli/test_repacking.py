"""`packer append`, `join`, `drop`, `merge` and `repack` on the command line."""

from __future__ import annotations

from packer.codecs import codec_name
from packer.format import manifest as manifests
from packer.verify import verify


def test_append_adds_files(packer, refused, dataset, more, pairs, tmp_path):
    """New pairs come after the others; the same ones again are refused by name."""
    result = packer("append", dataset, *more.sources, "--workers", 0)
    assert "3 samples more, 15 samples in all" in result.stdout
    assert not verify(dataset).damages
    refused(2, ["append", dataset, *pairs.sources], "is there already")


def test_append_says_what_it_leaves_out(packer, dataset, more, tmp_path):
    """A sample that is skipped is counted, and the list of it is named, as by convert."""
    bad = sorted((tmp_path / "more").rglob("*.png"))[0]
    bad.write_bytes(b"none")
    result = packer("append", dataset, *more.sources, "--workers", 0, "--on-error", "skip")
    assert "2 samples more, 14 samples in all" in result.stdout
    assert (
        f"1 file or sample was skipped, listed in {next(dataset.glob('left-out-*'))}; the first: {bad}: is not a PNG"
        in result.stderr
    )


def test_join_and_drop_change_fields(packer, refused, dataset, pairs, tmp_path):
    """What is joined and what is left is said; a field that is there already is refused by name."""
    (tmp_path / "cap").mkdir()
    for name in pairs.names:
        (tmp_path / "cap" / f"{name}.txt").write_text(name)
    result = packer("join", dataset, f"caption={tmp_path}/cap", "--workers", 0)
    assert "caption (text uint8 [any]) for 12 samples, by name" in result.stdout
    refused(2, ["join", dataset, f"caption={tmp_path}/cap"], "drop")
    assert "hr, caption left, 1 dropped" in packer("drop", dataset, "lr", "--workers", 0).stdout
    assert not verify(dataset).damages


def test_merge_joins_datasets(packer, refused, dataset, more, tmp_path):
    """Two datasets become one; the same one twice is refused."""
    packer("convert", *more.sources, tmp_path / "e", "--workers", 0)
    result = packer("merge", dataset, tmp_path / "e", tmp_path / "m")
    assert "15 samples in 2 shards" in result.stdout
    assert manifests.read(tmp_path / "m").samples == 15
    refused(2, ["merge", dataset, dataset, tmp_path / "n"], "is there already")


def test_repack_changes_codec_and_order(packer, dataset, tmp_path):
    """The codec of one field, the shard size and a seed."""
    result = packer("repack", dataset, tmp_path / "r", "--codec", "hr=zstd", "--shard-size", "4KiB", "--shuffle", 3)
    assert "12 samples in 2 shards" in result.stdout
    found = manifests.read(tmp_path / "r")
    assert {field.name: codec_name(field.codec) for field in found.fields}["hr"] == "zstd"
    assert found.origin["shuffled"] == 3
