"""Clips as groups of frames in H.264: a frame of the dataset is a stream of its own, which holds some steps of a clip.

x264 predicts a picture from the one before it, so that a group takes a small part of the bytes of as many JPEG files.
A group begins with a whole picture and needs no other group: a window decodes the groups that it touches. PyAV brings
x264 and FFmpeg (extra `video`), and lets go of the interpreter's lock, so that threads decode side by side.

Values are changed, as those of `jpeg` with a quality are. A group that would hardly save bytes is stored as its pixels,
which the length of the frame tells.

FFmpeg allocates no picture larger than the one that is expected, and conceals no damage.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError

#: The id of the codec in the schema, the dtype and channels that it is for, and the steps of a group.
H264, H264_DTYPE, H264_CHANNELS, GROUP_STEPS = "h264", "uint8", 3, 8
#: The most constant rate factor of x264: 1 changes hardly anything, 18 is hard to tell apart by eye, 51 is the least.
MOST_CRF = 51
#: Settings of x264: no picture waits for a later one, none is filtered anew, and every stream says how it is decoded.
_ENCODER = {"tune": "fastdecode", "bf": "0", "x264-params": "repeat-headers=1:scenecut=0"}
#: What units of a stream begin with, how they are told apart, and the type of one that holds settings of x264 as text.
_START, _UNIT, _COMMENT = b"\0\0\1", re.compile(rb"\x00*\x00\x00\x01"), 6
#: Damage is an error. FFmpeg would go on with pixels that it guesses.
_DECODER = {"err_detect": "crccheck+bitstream+buffer+explode"}
#: Pixels that a picture is decoded with beyond its sides, at most: blocks have 16, and FFmpeg makes rows as long as the
#: widest instructions of the processor ask for, 64 bytes today.
_MARGIN = 128


def encode_h264(steps: NDArray[Any], crf: int) -> bytes:
    """Return steps (n, H, W, 3) as one stream of H.264, its colours at half the height and width (4:2:0).

    Raises:
        UsageError: PyAV is not installed.
        ValueError: x264 does not take pictures of these sides.
    """
    av = _pyav()
    height, width = (side + side % 2 for side in steps.shape[1:3])  # colours have whole sides
    edges = [(0, 0), *((0, side % 2) for side in steps.shape[1:3]), (0, 0)]
    encoder = av.CodecContext.create("libx264", "w")
    encoder.width, encoder.height, encoder.pix_fmt, encoder.time_base = width, height, "yuv420p", Fraction(1, 25)
    encoder.thread_count = 1  # with several, bytes depend on how many
    encoder.options = {**_ENCODER, "g": str(len(steps)), "crf": str(crf)}
    packets: list[Any] = []
    for number, picture in enumerate(np.pad(np.asarray(steps), edges, "edge")):
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuv420p", threads=1)
        frame.pts, frame.time_base = number, encoder.time_base  # without times, bytes differ from run to run
        packets += encoder.encode(frame)
    units = _UNIT.split(b"".join(map(bytes, [*packets, *encoder.encode(None)])))
    return b"".join(_START + unit for unit in units if unit and unit[0] & 31 != _COMMENT)


def decode_h264(stream: memoryview, shape: Sequence[int], out: NDArray[np.uint8]) -> None:
    """Put the pixels of a stream into `out` (bytes,).

    Args:
        shape: that the steps must have, (n, H, W, 3).

    Raises:
        UsageError: PyAV is not installed.
        ValueError: the stream is damaged, or holds more or fewer pictures, or some of other sides.
    """
    av = _pyav()
    steps, height, width, _ = shape
    decoder = av.CodecContext.create("h264", "r")
    decoder.thread_count = 1
    decoder.options = {**_DECODER, "max_pixels": str((height + _MARGIN) * (width + _MARGIN))}
    reformatter, pixels, count = av.video.reformatter.VideoReformatter(), out.reshape(shape), 0
    for packet in [*decoder.parse(bytes(stream)), *decoder.parse(None), None]:
        for frame in decoder.decode(packet):
            if (frame.height, frame.width) != (height + height % 2, width + width % 2) or count == steps:
                raise ValueError(
                    f"{count + 1} or more pictures of {frame.height} x {frame.width} pixels; "
                    f"{steps} of {height} x {width} are expected"
                )
            rgb: Any = reformatter.reformat(frame, format="rgb24", threads=1)
            pixels[count] = rgb.to_ndarray()[:height, :width]
            count += 1
    if count < steps:
        raise ValueError(f"{count} pictures are decoded, {steps} are expected")


def _pyav() -> Any:
    try:
        import av
        import av.video.reformatter
    except ImportError:
        raise UsageError(f"codec {H264} needs the package av: pip install '.[video]' in a clone of packer") from None
    return av
