"""Sources as bytes: what they may hold and name, and that all classes travel; `test_every_kind` has all kinds."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import to_builtins
from msgspec.msgpack import Ext, encode
from PIL import Image

from packer.errors import SourceError
from packer.format import Field, FieldSpec
from packer.sources import FittedSource, Source, SourceOptions, decode_source, encode_source, open_sources
from packer.sources.base import DerivedSource
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


def classes_in(source: Source) -> set[type[Source]]:
    """The classes of a source, of the one that it is made from, and of those beside it."""
    inner = [getattr(source, "source", None), *getattr(source, "sides", [])]
    return {type(source)}.union(*(classes_in(one) for one in inner if one is not None))


def derived_classes(cls: type[DerivedSource] = DerivedSource) -> set[type[Source]]:
    of_here = [one for one in cls.__subclasses__() if one.__module__.startswith("packer.")]
    return set(of_here).union(*map(derived_classes, of_here))


def test_every_derived_source_travels(tmp_path: Path) -> None:
    """Each class of them, whole and cut: what it is and gives follows from the attributes that it declares."""
    image, data = Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4)), BytesIO()
    for name in ("cat/a", "dog/b"):
        (tmp_path / "images" / name).parent.mkdir(parents=True)
        image.save(tmp_path / f"images/{name}.png")
    (tmp_path / "texts/dog").mkdir(parents=True)
    (tmp_path / "texts/dog/b.txt").write_text("b")
    (tmp_path / "t.csv").write_text("image,x\nimages/cat/a.png,1\nimages/dog/b.png,2\n")
    image.save(data, "PNG")
    np.savez(tmp_path / "x.npz", png=np.stack([np.frombuffer(data.getvalue(), np.uint8)] * 4).reshape(2, 2, -1))
    images, arrays, table = f"image={tmp_path}/images", f"{tmp_path}/x.npz", f"{tmp_path}/t.csv"
    sources: list[Source] = [
        open_sources([images, f"text={tmp_path}/texts"], SourceOptions(missing={"text": "empty"})),
        ChosenSource(open_sources([arrays], SourceOptions(encoded=("png",))), [1, 0]),
        open_sources([arrays], SourceOptions(images=("png",))),
        open_sources([arrays], SourceOptions(samples="episodes")),
        open_sources([images], SourceOptions(label="folder")),
        open_sources([images], SourceOptions(downscale=2, patch=2)),
        open_sources([table], SourceOptions(files=("image",))),
        open_sources([images, f"y={table}"]),
    ]
    sources.append(FittedSource(sources[4], [Field(**spec_of(spec)) for spec in sources[4].fields]))
    assert derived_classes() <= set().union(*map(classes_in, sources))
    for source in sources:
        decoded = decode_source(encode_source(source))
        assert facts(decoded) == facts(source)
        for start in range(len(source)):
            part = decode_source(encode_source(source.slice(start, start + 1)))
            assert values(part) == values(source.slice(start, start + 1)) == values(decoded.slice(start, start + 1))


def spec_of(spec: FieldSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in ("name", "dtype", "kind", "shape")}


def facts(source: Source) -> tuple[object, ...]:
    return source.kind, source.fields, source.names, source.splits, to_builtins(source.origin), source.files()


def values(source: Source) -> list[dict[str, list[Any]]]:
    return [
        {name: [np.asarray(value).tolist() for value in of_field] for name, of_field in block.items()}
        for block in source.read()
    ]
