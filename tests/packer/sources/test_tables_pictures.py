"""Pictures in columns of tables are fields of images, with the pixels that Pillow gives."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from opened_sources import read_each
from PIL import Image
from pyarrow import parquet

from packer.convert import convert
from packer.errors import SourceError
from packer.sources import SourceOptions, open_sources
from readers import PackedDataset
from tests.helpers.picture_files import picture


def encoded(image: NDArray[Any], suffix: str) -> bytes:
    """Return the file of a picture."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, suffix)
    return file.getvalue()


def decoded(file: bytes) -> NDArray[Any]:
    image = np.asarray(Image.open(io.BytesIO(file)))
    return image if image.ndim == 3 else image[..., None]


def written(path: Path, **columns: Any) -> str:
    """Write columns as the package datasets does, with the metadata of a ClassLabel of the column label."""
    features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    parquet.write_table(pa.table(columns).replace_schema_metadata(metadata), path, row_group_size=3)
    return str(path)


def test_pictures_of_hugging_face_and_plain_ones_are_images(tmp_path: Path) -> None:
    """Files of JPEG are kept, pictures of one size make a field of that shape, and ClassLabel gives classes."""
    jpegs = [encoded(picture(16 + n, 16, seed=n), "JPEG") for n in range(7)]
    pngs = [encoded(picture(8, 9, seed=n)[..., 0], "PNG") for n in range(7)]
    columns = {"image": [{"bytes": jpeg, "path": "a.jpg"} for jpeg in jpegs], "gray": pngs, "label": [0, 1] * 3 + [1]}
    path = written(tmp_path / "a.parquet", **columns)
    report = convert(path, tmp_path / "out", workers=0)
    fields = {field.name: field for field in report.manifest.fields}
    assert (fields["image"].shape, fields["gray"].shape) == ((None, None, 3), (8, 9, 1))
    assert fields["image"].codec[0]["id"] == "jpeg"
    assert report.manifest.classes == ("cat", "dog")
    each = read_each(open_sources([path]).slice(2, 7))
    for n in range(2, 7):
        assert np.array_equal(each["image"][n - 2], decoded(jpegs[n]))
        assert np.array_equal(each["gray"][n - 2], decoded(pngs[n]))
    assert PackedDataset(tmp_path / "out")[3]["gray"].numpy()[0].tolist() == decoded(pngs[3])[..., 0].tolist()


def test_a_picture_that_differs_or_is_damaged_is_named(tmp_path: Path) -> None:
    """The row is named; --mode converts those of other channels, and --on-error skip leaves out bad ones."""
    pictures = [encoded(picture(8, 8, seed=n), "PNG") for n in range(5)]
    pictures[2] = encoded(picture(8, 8)[..., 0], "PNG")
    path = written(tmp_path / "a.parquet", p=pictures)
    with pytest.raises(SourceError, match="row 2: the picture in column p is gray uint8, but RGB uint8 in most rows"):
        read_each(open_sources([path]))
    assert len(read_each(open_sources([path], SourceOptions(mode="rgb")))["p"]) == 5
    pictures[2] = pictures[0][:60]
    report = convert(written(tmp_path / "a.parquet", p=pictures), tmp_path / "out", on_error="skip", workers=0)
    assert (report.samples, len(report.rejected)) == (4, 1)
    assert "row 2: damaged PNG" in report.rejected[0].reason


def test_binary_values_that_do_not_begin_as_images_need_a_word(tmp_path: Path) -> None:
    """Their column is refused, unless --encoded names it; then those that are none are bad rows."""
    path = written(tmp_path / "a.parquet", p=[b"no image", encoded(picture(8, 8), "PNG")])
    with pytest.raises(SourceError, match=r"column p is binary, and its first value is no image: it .*; --encoded p"):
        open_sources([path])
    source = open_sources([path], SourceOptions(encoded=("p",)))
    assert read_each(source.slice(1, 2))["p"][0].shape == (8, 8, 3)
    with pytest.raises(SourceError, match="row 0: is no image"):
        read_each(source)
