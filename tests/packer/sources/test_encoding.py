"""Sources as bytes: what they may hold and name. That they give the same samples, `test_every_kind` says of each."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from msgspec.msgpack import Ext, encode
from PIL import Image

from packer.errors import SourceError
from packer.sources import SourceOptions, decode_source, encode_source, open_sources
from packer.sources.views import ChosenSource


def named(name: str, attributes: object) -> Ext:
    return Ext(2, encode((*name.split(":"), attributes)))


@pytest.mark.parametrize(
    "value",
    [
        named("os:system", {"source": "true"}),
        named("packer.sources.files:os.remove", {}),
        named("packer.sources.files:join", {}),
        named("packer.sources.files:Path", {}),
        named("packer.sources.base:DerivedSource", {"source": None}),
        named("packer.sources.nowhere:Source", {}),
        named("packer.sources.views:PickedSource", {}),
        named("packer.sources.source:TableSource", {"kind": "images"}),
        named("packer.sources.source:TableSource", {"options": {"axis": "a"}}),
        Ext(1, encode(("O", (1,), b"12345678"))),
        Ext(1, encode(("<f8", (2,), b"12345678"))),
        Ext(3, b""),
        [],
        "text",
    ],
)
def test_bytes_that_are_no_source(value: object) -> None:
    """They can name nothing but sources of files, and nothing is called."""
    with pytest.raises(SourceError, match="is no source of this version"):
        decode_source(encode(value))


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


def test_images_in_arrays_texts_of_some_samples_and_another_order(tmp_path: Path) -> None:
    """What `test_every_kind` has no dataset of travels, too."""
    image, data = Image.fromarray(np.full((4, 4), 7, np.uint8)), BytesIO()
    (tmp_path / "images").mkdir()
    for name in "ab":
        image.save(tmp_path / f"images/{name}.png")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/b.txt").write_text("b")
    image.save(data, "PNG")
    np.savez(tmp_path / "x.npz", png=np.stack([np.frombuffer(data.getvalue(), np.uint8)] * 4).reshape(2, 2, -1))
    missing = SourceOptions(missing={"text": "empty"})
    for source in (
        open_sources([f"image={tmp_path}/images", f"text={tmp_path}/texts"], missing),
        ChosenSource(open_sources([f"{tmp_path}/x.npz"], SourceOptions(encoded=("png",))), [1, 0]),
    ):
        decoded = decode_source(encode_source(source.slice(0, 2)))
        assert [(spec.name, spec.shape) for spec in decoded.fields] == [(s.name, s.shape) for s in source.fields]
        for block, expected in zip(decoded.read(), source.read(), strict=True):
            for name, values in expected.items():
                assert [np.asarray(value).tolist() for value in values] == [
                    np.asarray(value).tolist() for value in block[name]
                ]
