"""Pictures that are there twice are found by their bytes, and the plan names them."""

from __future__ import annotations

import contextlib
import io
import shutil

import lmdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from packer.errors import SourceError
from packer.sources.images.basicsr import open_basicsr
from packer.sources.images.copies import TAIL_BYTES, copies, mark_of
from packer.sources.images.opening import open_images


def found_in(names: list[str], values: list[bytes]) -> list[str]:
    """What is said of pictures with these bytes; heads are two bytes long."""
    marks = [mark_of(len(value), value[:2]) for value in values]
    return copies(names, "x", marks, lambda number: contextlib.nullcontext(io.BytesIO(values[number])))


@pytest.fixture
def pictures(tmp_path):
    """Four pictures of random pixels, in a folder."""
    (tmp_path / "hr").mkdir()
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 9, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "hr" / f"{number}.png")
    return tmp_path / "hr"


@given(st.lists(st.binary(max_size=2) | st.binary(max_size=2).map(lambda b: b + bytes(TAIL_BYTES)), max_size=30))
def test_groups_are_those_of_equal_bytes(values: list[bytes]) -> None:
    """All copies are counted and no other file is, also where lengths and last bytes agree."""
    expected = sum(values.count(v) > 1 for v in values)
    found = found_in([str(i) for i in range(len(values))], values)
    assert bool(found) == bool(expected)
    if found:
        assert found[0].startswith(f"field x: {expected} files are copies of one another: ")


def test_a_sentence_names_a_few() -> None:
    """Three of each of three groups are named, the rest is counted."""
    values = [bytes([i // 4]) for i in range(20)]
    assert found_in([f"n{i}" for i in range(20)], values) == [
        "field x: 20 files are copies of one another: n0 = n1 = n2 and 1 more; n4 = n5 = n6 and 1 more; "
        "n8 = n9 = n10 and 1 more and 2 more groups; check these"
    ]


def test_files_that_are_copies_stand_in_the_notes(pictures, tmp_path) -> None:
    """Copies under other names are named by sample; a part of the source does not repeat it."""
    assert open_images({"hr": str(pictures)}).notes() == []
    shutil.copy(pictures / "0.png", pictures / "3.png")
    source = open_images({"hr": str(pictures)})
    assert source.notes() == ["field hr: 2 files are copies of one another: 0 = 3; check these"]
    assert source.part(1, 3).notes() == []


def test_a_file_that_has_gone_is_an_error(pictures) -> None:
    """A file that went away since its header was read, and has to be compared, is named."""
    shutil.copy(pictures / "0.png", pictures / "2.png")
    source = open_images({"hr": str(pictures)})
    (pictures / "2.png").unlink()
    with pytest.raises(SourceError, match=r"2\.png: cannot be read: No such file"):
        source.notes()


def test_values_of_lmdb_folders_are_compared_too(pictures, tmp_path) -> None:
    """Equal values under different keys are copies."""
    folder = tmp_path / "hr.lmdb"
    with lmdb.open(str(folder), map_size=2**20) as env, env.begin(write=True) as txn:
        for key, number in (("a", 0), ("b", 1), ("c", 0), ("d", 2)):
            txn.put(key.encode(), (pictures / f"{number}.png").read_bytes())
    (folder / "meta_info.txt").write_text("".join(f"{key}.png (8,9,3) 1\n" for key in "abcd"))
    source = open_basicsr({"hr": str(folder)})
    assert source.notes() == ["field hr: 2 files are copies of one another: a = c; check these"]
