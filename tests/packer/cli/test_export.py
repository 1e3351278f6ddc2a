"""`packer export`: files, and a line that says how many."""

from __future__ import annotations

from PIL import Image

from packer.export import KINDS


def test_export_writes_files_and_says_how_many(packer, dataset, pairs, tmp_path):
    """Pictures in folders of their fields; one line on stdout; --fields and --to choose."""
    result = packer("export", dataset, tmp_path / "out")
    assert "12 samples in 24 files of png" in result.stdout
    with Image.open(tmp_path / "out" / "hr" / f"{pairs.names[0]}.png") as image:
        assert image.size == (10, 12)
    packer("export", dataset, tmp_path / "lr", "--fields", "lr", "--quiet")
    assert [p.name for p in (tmp_path / "lr").iterdir()] == ["lr"]
    packer("export", dataset, tmp_path / "h5", "--to", "hdf5")
    assert [p.name for p in (tmp_path / "h5").iterdir()] == ["d.h5"]


def test_export_refuses_a_folder_in_use(refused, dataset, tmp_path):
    """Exit status 2, and the option that would write there."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    refused(2, ["export", dataset, tmp_path / "out"], "is not empty", "--overwrite")
    refused(2, ["export", tmp_path / "none", tmp_path / "new"], "does not exist")


def test_the_help_says_what_each_kind_writes(packer):
    """Every kind of files has its line, and is named by the option."""
    text = packer("export", "--help").stdout
    for name, kind in KINDS.items():
        assert f"--to {name:13} {kind.writes}\n" in text
