"""Makes the decompressors that a dataset needs available, or says which package brings them."""

from __future__ import annotations

import importlib
import warnings

import h5py

#: Registered filter numbers that are met in practice, and what brings them.
_PLUGINS = {
    307: "bzip2",
    32001: "blosc",
    32004: "lz4",
    32008: "bitshuffle",
    32013: "zfp",
    32015: "zstd",
    32017: "sz",
    32018: "fcidecomp",
    32024: "sz3",
    32026: "blosc2",
    32028: "sperr",
}
_SZIP = 4


def missing_filter(dataset: h5py.Dataset) -> str | None:
    """Why the dataset's chunks cannot be decoded here, with the remedy; None where they can.

    Imports hdf5plugin, where it is installed, when a filter is met that libhdf5 does not have.
    """
    lacking = _lacking(dataset)
    if lacking and _plugins_loaded():
        lacking = _lacking(dataset)
    if not lacking:
        return None
    number, name = lacking[0]
    if number == _SZIP:
        return "it is compressed with szip, which this h5py lacks: rewrite the file with `h5repack -f GZIP=4 IN OUT`"
    if number in _PLUGINS:
        return f"it is compressed with {_PLUGINS[number]}, which needs a plug-in: pip install hdf5plugin"
    label = f"{number} ({name})" if name else str(number)
    return f"it needs HDF5 filter {label}, for which no plug-in is found: try pip install hdf5plugin"


def _lacking(dataset: h5py.Dataset) -> list[tuple[int, str]]:
    plist = dataset.id.get_create_plist()
    found = []
    for i in range(plist.get_nfilters()):
        number, _flags, _values, name = plist.get_filter(i)
        if not h5py.h5z.filter_avail(number):
            found.append((number, name.decode("utf-8", "replace").strip()))
    return found


def _plugins_loaded() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            importlib.import_module("hdf5plugin")
        except ImportError:
            return False
    return True
