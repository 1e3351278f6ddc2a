"""Optical flow (`.flo`, as of Sintel) and float images (`.pfm`, as of FlyingThings): float32.

    packer convert image=final flow=flow sintel.packed

`.flo` has two channels, the motion to the right and down in pixels. The rows of `.pfm` are stored from the bottom up;
they come from the top down. The formats are described by the flow code of vision.middlebury.edu and by
netpbm.sourceforge.net/doc/pfm.html.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from packer.errors import SourceError
from packer.sources.files import read_file
from packer.sources.kinds import Kind
from packer.sources.looking import Header
from packer.sources.options import SourceOptions
from packer.sources.table import LaidField, Row

#: How .flo begins (202021.25 as float32), and the bytes before its values.
_FLO, _FLO_START = b"PIEH", 12
_PFM = re.compile(rb"P([Ff])\s+(\d+)\s+(\d+)\s+(-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)\s")
_HEAD_BYTES = 128
#: A remark of the plan.
SCALED = "its header has a scale other than 1, by which values are not multiplied"


def look(row: Row, options: SourceOptions) -> Header:
    """Return the size and channels that the file of each field says."""
    layout, numbers = list[LaidField](), dict[str, int]()
    for field, (path,) in row.paths.items():
        height, width, channels, _, _, notes = _header(path)
        numbers |= {f"{field}.height": height, f"{field}.width": width}
        axes = (f"{field}.height", f"{field}.width", channels)
        layout.append(LaidField(field, "float32", axes, f"float32 of {channels} channels", "image", notes=notes))
    return Header(tuple(layout), numbers)


def _header(path: str) -> tuple[int, int, int, int, str, tuple[str, ...]]:
    """Return height, width and channels, where the values begin, their dtype, and what of the header is not kept."""
    head, nbytes = read_file(path, _HEAD_BYTES)
    scale = -1.0
    if head.startswith(_FLO) and len(head) >= _FLO_START:
        width, height = np.frombuffer(head, "<i4", 2, 4).tolist()
        channels, start, dtype = 2, _FLO_START, "<f4"
    elif match := _PFM.match(head):
        width, height, channels = int(match[2]), int(match[3]), 3 if match[1] == b"F" else 1
        start, scale = match.end(), float(match[4])
        dtype = "<f4" if scale < 0 else ">f4"
        if not scale:
            raise SourceError(
                "has a scale of 0, whose sign says the order of bytes; download it again, or write it again", path
            )
    else:
        raise SourceError("begins neither as .flo nor as .pfm does; download it again", path)
    expected = start + 4 * height * width * channels
    if min(height, width) < 1 or nbytes != expected:
        size = f"{height:,} x {width:,} pixels, so {expected:,} bytes"
        raise SourceError(f"says that it has {size}, and has {nbytes:,}; download it again", path)
    return height, width, channels, start, dtype, () if abs(scale) == 1 else (SCALED,)


def read(row: Row, options: SourceOptions) -> dict[str, Any]:
    """Return the values of the file of each field."""
    sample = {}
    for field, (path,) in row.paths.items():
        height, width, channels, start, dtype, _ = _header(path)
        values = np.fromfile(path, dtype, offset=start).reshape(height, width, channels)
        rows = values[::-1] if path.lower().endswith(".pfm") else values
        sample[field] = np.ascontiguousarray(rows, np.float32)
    return sample


KIND = Kind("flow", (".flo", ".pfm"), look, read, lies_beside=True, unnamed="flow")
