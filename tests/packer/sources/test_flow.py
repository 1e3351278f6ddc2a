"""Optical flow and float images: values to the bit, rows from the top, beside pictures of the same names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from opened_sources import read_each
from picture_files import picture, save

from packer.convert import convert
from packer.errors import SourceError
from packer.sources import open_sources
from packer.sources.flow import SCALED
from readers import Crop, PackedDataset

VALUES = arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 5), st.sampled_from([1, 2, 3])))


def write(path: Path, values: Any, order: str = "<") -> str:
    """Write a file as its suffix says, by the words of the formats' own pages."""
    path.parent.mkdir(parents=True, exist_ok=True)
    height, width, channels = values.shape
    if path.suffix == ".flo":
        sizes = np.float32(202021.25).tobytes() + np.array([width, height], "<i4").tobytes()
        path.write_bytes(sizes + values.astype("<f4").tobytes())
    else:
        head = f"{'PF' if channels == 3 else 'Pf'}\n{width} {height}\n{-1.0 if order == '<' else 1.0}\n"
        path.write_bytes(head.encode() + values[::-1].astype(f"{order}f4").tobytes())
    return str(path)


@given(VALUES, st.sampled_from("<>"))
def test_values_come_back(tmp_path_factory: pytest.TempPathFactory, values: Any, order: str) -> None:
    """Of both formats, sizes and byte orders, NaN and infinities too."""
    suffix = ".flo" if values.shape[2] == 2 else ".pfm"
    path = write(tmp_path_factory.mktemp("flow") / f"a{suffix}", values, order)
    (found,) = read_each(open_sources([path]))["flow"]
    assert (found.shape, found.tobytes()) == (values.shape, values.tobytes())


def test_flow_beside_pictures_is_cropped_with_them(tmp_path: Path) -> None:
    """As of Sintel: partners by name, and the same place of both."""
    for number in range(4):
        save(tmp_path / f"final/{number}.png", picture(8, 12, seed=number))
        values = np.random.default_rng(number).normal(size=(8, 12, 2)).astype("f4")
        write(tmp_path / f"flow/{number}.flo", values)
    convert([f"image={tmp_path / 'final'}", f"flow={tmp_path / 'flow'}"], tmp_path / "out")
    dataset = PackedDataset(tmp_path / "out", crop=Crop(4, of="image", aligned={"flow": 1}, at=[(2, 3)] * 4))
    assert dataset[3]["flow"].shape == (2, 4, 4)
    assert np.array_equal(dataset[3]["flow"], values.transpose(2, 0, 1)[:, 2:6, 3:7])


@pytest.mark.parametrize(("scale", "is_said"), [("-1", False), ("1.0", False), ("-0.5", True)])
def test_a_scale_is_said(tmp_path: Path, scale: str, is_said: bool) -> None:
    """Values are as stored; one remark says that those who wrote them may mean others."""
    (tmp_path / "a.pfm").write_bytes(f"Pf\n1 1\n{scale}\n".encode() + bytes(4))
    assert [SCALED in one for one in open_sources([str(tmp_path)]).remarks] == [True] * is_said


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PIEH",
        b"PIEH" + bytes(12),
        b"Pf\n2 2\n-1.0\n" + bytes(15),
        b"Pf\n1 1\n0\n" + bytes(4),
        b"P6\n1 1\n255\nabc",
    ],
)
def test_what_is_cut_or_something_else_is_refused(tmp_path: Path, data: bytes) -> None:
    """The size of a file is that which its head says."""
    (tmp_path / "a.flo").write_bytes(data)
    with pytest.raises(SourceError, match="download it again"):
        open_sources([str(tmp_path / "a.flo")])
