"""Sound in WAV files: one field a source, one sample a file, (frames, channels).

    packer convert audio=recordings out.packed

Only headers are read for the plan. All that packer does with a kind of files (finding, pairing, comparing, skipping,
remarks) is done for this one, too.
"""

from __future__ import annotations

import wave
from typing import Any

import numpy as np

from packer.errors import SourceError
from packer.sources import Header, Kind, LaidField, Row, SourceOptions

#: Dtypes of samples by their bytes.
_DTYPES = {1: "uint8", 2: "int16", 4: "int32"}


def look(row: Row, options: SourceOptions) -> Header:
    """Return what the headers of the files of a sample say: a field for each, and how many frames it has."""
    layout, numbers = [], {}
    for field, (path,) in row.paths.items():
        with _opened(path) as sound:
            dtype, channels = _DTYPES.get(sound.getsampwidth()), sound.getnchannels()
            if dtype is None:
                raise SourceError(f"has {8 * sound.getsampwidth()} bits a value; save it with 8, 16 or 32", path)
            numbers[f"{field}.frames"] = sound.getnframes()
            words = f"{dtype} of {channels} channels at {sound.getframerate():,} Hz"
        layout.append(LaidField(field, dtype, (f"{field}.frames", channels), words))
    return Header(tuple(layout), numbers)


def read(row: Row, options: SourceOptions) -> dict[str, Any]:
    """Return the sound of each file."""
    sample = {}
    for laid in row.layout:
        with _opened(row.paths[laid.name][0]) as sound:
            data = sound.readframes(sound.getnframes())
            sample[laid.name] = np.frombuffer(data, laid.dtype).reshape(-1, sound.getnchannels())
    return sample


def _opened(path: str) -> wave.Wave_read:
    try:
        return wave.open(path, "rb")
    except (wave.Error, EOFError, OSError) as error:
        raise SourceError(f"cannot be read as WAV ({error}); download it again", path) from error


KIND = Kind("wav", (".wav",), look, read, unnamed="audio")
