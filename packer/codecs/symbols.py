"""Addresses of C functions in libraries that the codecs' packages bring along.

Python calls them through those packages, once a frame. Loops in machine code (`loops.py`) call them without Python.
"""

from __future__ import annotations

import ctypes
from importlib import import_module

#: Functions by the module that has them, built in or as a library that it is linked with.
FUNCTIONS = {
    "lz4.block._block": ("LZ4_decompress_safe",),
    "numcodecs.blosc": ("blosc_decompress_ctx",),
    "numcodecs.zstd": (
        "ZSTD_createDCtx",
        "ZSTD_decompressDCtx",
        "ZSTD_findFrameCompressedSize",
        "ZSTD_freeDCtx",
        "ZSTD_getFrameContentSize",
    ),
    "xxhash._xxhash": ("XXH3_64bits",),
}


def addresses() -> dict[str, int]:
    """The address of each of `FUNCTIONS`, by its name.

    Raises:
        ImportError, OSError: a module is missing, or was built in another way.
        AttributeError: it keeps a function to itself.
    """
    found = {}
    for name, functions in FUNCTIONS.items():
        # Loaded already, by the import: this is the same library once more.
        library = ctypes.CDLL(str(import_module(name).__file__))
        for function in functions:
            address = ctypes.cast(getattr(library, function), ctypes.c_void_p).value
            assert address is not None
            found[function] = address
    return found
