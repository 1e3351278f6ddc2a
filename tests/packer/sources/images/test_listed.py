"""Samples that a list selects and orders, as BasicSR's lists do."""

from __future__ import annotations

import numpy as np
import pytest
from picture_files import save

from packer.errors import UsageError
from packer.sources import SourceOptions, open_sources


def picture(path, value):
    save(path, np.full((4, 4, 3), value, np.uint8))


@pytest.fixture
def pairs(tmp_path):
    """Five pairs, the last of which has no partner, and a bad image that no list names."""
    for n in range(5):
        picture(tmp_path / f"hr/{n:04d}.png", n)
        if n < 4:
            picture(tmp_path / f"lr/{n:04d}x4.png", 100 + n)
    for side in ("hr/bad.png", "lr/badx4.png"):
        (tmp_path / side).write_bytes(b"no image")
    return [f"lr={tmp_path}/lr", f"hr={tmp_path}/hr"]


def names(pairs, tmp_path, text, **options):
    listed = tmp_path / "meta_info.txt"
    listed.write_text(text)
    return open_sources(pairs, SourceOptions(listed=str(listed), **options))


def test_a_list_of_basicsr_selects_and_orders(pairs, tmp_path):
    """Samples come in the list's order, by the first word of its lines; others, bad or alone, are not looked at."""
    source = names(pairs, tmp_path, "0003.png (4,4,3) 1\n0000.png (4,4,3) 1\n\n0002\n")
    assert list(source.names) == ["0003", "0000", "0002"]
    (block,) = source.read()
    assert [image[0, 0, 0] for image in block["hr"]] == [3, 0, 2]
    assert [image[0, 0, 0] for image in block["lr"]] == [103, 100, 102]
    assert any("2 samples are not in --list" in note for note in source.remarks)


def test_names_with_blanks_can_be_listed(tmp_path):
    """A line that is a name as a whole is that name, whatever its first word is."""
    for name in ("two", "two words", "three more words"):
        picture(tmp_path / f"hr/{name}.png", 0)
    text = "two words.png\nthree more words \ntwo (4,4,3)\n"
    assert list(names([f"hr={tmp_path}/hr"], tmp_path, text).names) == ["two words", "three more words", "two"]


def test_a_folder_in_a_list_stands_for_its_samples(tmp_path):
    """A word may name a folder, such as a clip of REDS: its samples follow in their order, as frames of a clip too."""
    for clip in ("000", "001", "002"):
        for n in range(3):
            picture(tmp_path / f"hr/{clip}/{n:08d}.png", n)
    inputs = [f"hr={tmp_path}/hr"]
    text = "002 100 (720,1280,3)\n000 100 (720,1280,3)\n"
    assert list(names(inputs, tmp_path, text).names) == [f"{c}/{n:08d}" for c in ("002", "000") for n in range(3)]
    clips = names(inputs, tmp_path, text, samples="folders")
    assert sorted(clips.names) == ["000", "002"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0001\n0009\n", "lists what is not a sample, or lacks a partner: 0009; there are samples such as 0000"),
        ("0004\n", "lacks a partner: 0004"),
        ("0001\n0001.png\n", "names 0001 twice"),
        ("\n", "lists no sample"),
    ],
)
def test_wrong_lists_are_refused(pairs, tmp_path, text, message):
    """What a list names has to be there, once; the message says what is there."""
    with pytest.raises(UsageError, match=message):
        names(pairs, tmp_path, text)


def test_a_list_that_cannot_be_read_is_named(pairs, tmp_path):
    """A file that is not there, or no text, is named with the reason."""
    with pytest.raises(UsageError, match=r"--list .*nothing.txt cannot be read: No such file"):
        open_sources(pairs, SourceOptions(listed=str(tmp_path / "nothing.txt")))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UsageError, match="it is not UTF-8"):
        open_sources(pairs, SourceOptions(listed=str(tmp_path / "binary")))
