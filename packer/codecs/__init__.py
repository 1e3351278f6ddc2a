"""The bytes of a frame, and the arrays they hold.

    configs     codecs by name, or as numcodecs' configs in JSON
    filters     change values first: `photo` for images, `decimal` for floats that were written as decimals
    stages      make the bytes smaller, one class for each kind
    encoded     images and clips that know the files they were decoded from
    jpeg        images as JPEG files: those that they came in, or new ones
    h264        clips as groups of frames, each a stream of H.264
    frames      encodes, decodes and hashes frames, many by one call
    compiled    whether machine code, that of `loops` and of others, is there yet, and worth it
    compiling   the process that makes it, once a machine

A new kind of stage is a class and an entry in `stages.STAGES`; a name for the command line is an entry in
`configs.NAMED`.
"""

from packer.codecs import compiled, compiling
from packer.codecs.compiled import Loading, machine_code, number_of
from packer.codecs.configs import LZ4, MAX_STAGES, MOST_QUALITY, NAMED, codec_name, parse_codec
from packer.codecs.encoded import EncodedImage, bands_of, file_of, files_of, with_files
from packer.codecs.filters import DECIMAL, DECIMAL_DTYPES, MOST_DIGITS, PHOTO, PHOTO_DTYPES, digits_of
from packer.codecs.frames import FrameCodec, FrameError, Frames, frame_hashes, loss_of
from packer.codecs.h264 import GROUP_STEPS, H264, H264_CHANNELS, H264_DTYPE, MOST_CRF
from packer.codecs.jpeg import (
    JPEG,
    JPEG_CHANNELS,
    JPEG_DTYPE,
    bytes_after_jpeg,
    check_jpeg,
    checked_jpeg,
    decode_jpeg,
    file_of_frame,
)
from packer.codecs.stages import Buffer, Config

__all__ = [
    "DECIMAL",
    "DECIMAL_DTYPES",
    "GROUP_STEPS",
    "H264",
    "H264_CHANNELS",
    "H264_DTYPE",
    "JPEG",
    "JPEG_CHANNELS",
    "JPEG_DTYPE",
    "LZ4",
    "MAX_STAGES",
    "MOST_CRF",
    "MOST_DIGITS",
    "MOST_QUALITY",
    "NAMED",
    "PHOTO",
    "PHOTO_DTYPES",
    "Buffer",
    "Config",
    "EncodedImage",
    "FrameCodec",
    "FrameError",
    "Frames",
    "Loading",
    "bands_of",
    "bytes_after_jpeg",
    "check_jpeg",
    "checked_jpeg",
    "codec_name",
    "compiled",
    "compiling",
    "decode_jpeg",
    "digits_of",
    "file_of",
    "file_of_frame",
    "files_of",
    "frame_hashes",
    "loss_of",
    "machine_code",
    "number_of",
    "parse_codec",
    "with_files",
]
