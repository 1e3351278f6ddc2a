"""The bytes of a frame, and the arrays they hold.

    configs     codecs by name, or as numcodecs' configs in JSON
    filters     what is done to the values of images first: `photo`
    stages      what makes the bytes smaller, one class for each kind
    frames      encodes, decodes and hashes frames, many by one call
    compiled    whether the machine code of `loops` is there yet, and worth it

A new filter is two functions and an entry in `filters.FILTERS`; a new kind of stage is a class and an entry in
`stages.STAGES`; a name for the command line is an entry in `configs.NAMED`.
"""

from packer.codecs import compiled
from packer.codecs.compiled import machine_code, number_of
from packer.codecs.configs import LZ4, MAX_STAGES, NAMED, codec_name, parse_codec
from packer.codecs.filters import FILTERS
from packer.codecs.frames import FrameCodec, Frames, frame_hashes
from packer.codecs.stages import Buffer, Config

__all__ = [
    "FILTERS",
    "LZ4",
    "MAX_STAGES",
    "NAMED",
    "Buffer",
    "Config",
    "FrameCodec",
    "Frames",
    "codec_name",
    "compiled",
    "frame_hashes",
    "machine_code",
    "number_of",
    "parse_codec",
]
