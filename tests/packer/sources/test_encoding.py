"""Sources as bytes: what they may hold and name. That they give the same samples, `test_every_kind` says of each."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image

from packer.errors import SourceError
from packer.sources import decode_source, encode_source, open_sources


@pytest.mark.parametrize(
    "rows",
    [
        [("function", ["os:system"])],
        [("function", ["packer.sources.files:os.remove"])],
        [("function", ["packer.sources.files:join"])],
        [("packer.workers:Limits", [])],
        [("packer.sources.files:natsorted", [])],
        [("packer.sources.nowhere:Source", [])],
        [("packer.sources.source:TableSource", [None, "images"])],
        [("list", [[1]])],
        [("array", ["O", None, b"12345678"])],
        [],
        "text",
    ],
)
def test_bytes_that_are_no_source(rows: object) -> None:
    """They can name nothing but data of sources, and nothing is called."""
    with pytest.raises(SourceError, match="is no source of this version"):
        decode_source(msgspec.msgpack.encode(rows))


def test_what_samples_share_is_there_once(tmp_path: Path) -> None:
    """A sample of a part takes its name, its paths and its sizes."""
    for number in range(200):
        Image.fromarray(np.zeros((4, number % 7 + 1), np.uint8)).save(tmp_path / f"{number:03}.png")
    source = open_sources([str(tmp_path)])
    each = (len(encode_source(source)) - len(encode_source(source.slice(0, 100)))) / 100
    assert each < len("001") + len("001.png") + 8 + 4  # two of int32, and two heads of texts


def test_captions_of_a_part_are_its_own(tmp_path: Path) -> None:
    """What lies beside the samples is cut as they are: a part of ten names nothing of the other 190."""
    for folder in ("images", "texts"):
        (tmp_path / folder).mkdir()
    for number in range(200):
        Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / f"images/{number:03}.png")
        (tmp_path / f"texts/{number:03}.txt").write_text("a")
    source = open_sources([f"image={tmp_path}/images", f"caption={tmp_path}/texts"])
    few, many = (len(encode_source(source.slice(0, count))) for count in (10, 110))
    assert (many - few) / 100 < len("001") + len("001.png") + len("001.txt") + 12
    assert few < 2200


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """A folder may have any name that the system takes."""
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(folder / "a.png")
    source = open_sources([str(folder)])
    assert decode_source(encode_source(source)).files() == source.files()
