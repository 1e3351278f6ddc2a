"""Pictures that are there twice are found by their bytes, and the plan names them."""

from __future__ import annotations

import shutil

import lmdb
import numpy as np
import pytest
from opened_sources import open_images
from PIL import Image


@pytest.fixture
def pictures(tmp_path):
    """Four pictures of random pixels, in a folder."""
    (tmp_path / "hr").mkdir()
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 9, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "hr" / f"{number}.png")
    return tmp_path / "hr"


@pytest.mark.parametrize("seed", range(8))
def test_groups_are_those_of_equal_bytes(tmp_path, seed: int) -> None:
    """All copies are counted and no other file is, also if lengths and first bytes agree."""
    pixels = np.zeros((30, 40, 3), np.uint8)
    values = np.random.default_rng(seed).integers(0, 12, 9).tolist()
    for number, value in enumerate(values):
        pixels[-1, -1] = value
        Image.fromarray(pixels).save(tmp_path / f"{number}.png", compress_level=0)
    expected = sum(values.count(v) > 1 for v in values)
    found = open_images({"x": str(tmp_path)}).remarks
    assert bool(found) == bool(expected)
    if found:
        assert found[0].startswith(f"field x: {expected} files are copies of one another: ")


def test_a_sentence_names_a_few(tmp_path) -> None:
    """Three of each of three groups are named, the rest is counted."""
    for number in range(20):
        Image.new("L", (3, 3), number // 4).save(tmp_path / f"n{number}.png")
    assert open_images({"x": str(tmp_path)}).remarks == [
        "field x: 20 files are copies of one another: n0 = n1 = n2 and 1 more; n4 = n5 = n6 and 1 more; "
        "n8 = n9 = n10 and 1 more and 2 more groups; check these"
    ]


def test_files_that_are_copies_stand_in_the_notes(pictures, tmp_path) -> None:
    """Copies under other names are named by sample; a part of the source does not repeat it."""
    assert open_images({"hr": str(pictures)}).remarks == []
    shutil.copy(pictures / "0.png", pictures / "3.png")
    source = open_images({"hr": str(pictures)})
    assert source.remarks == ["field hr: 2 files are copies of one another: 0 = 3; check these"]
    assert source.part(1, 3).remarks == []


def test_values_of_lmdb_folders_are_compared_too(pictures, tmp_path) -> None:
    """Equal values under different keys are copies."""
    folder = tmp_path / "hr.lmdb"
    with lmdb.open(str(folder), map_size=2**20) as env, env.begin(write=True) as txn:
        for key, number in (("a", 0), ("b", 1), ("c", 0), ("d", 2)):
            txn.put(key.encode(), (pictures / f"{number}.png").read_bytes())
    (folder / "meta_info.txt").write_text("".join(f"{key}.png (8,9,3) 1\n" for key in "abcd"))
    source = open_images({"hr": str(folder)})
    assert source.remarks == ["field hr: 2 files are copies of one another: a = c; check these"]
