"""Makes the decompressors that a dataset needs available, or says which package brings them."""

from __future__ import annotations

import importlib
import warnings

import h5py

#: Filters by their registered numbers: those that hdf5plugin brings, and others that are met.
_IN_HDF5PLUGIN = {
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
_OTHERS = {
    4: "szip",
    257: "hzip",
    258: "fpzip",
    305: "lzo",
    32000: "lzf",
    32002: "mafisc",
    32003: "snappy",
    32012: "jpeg-ls",
    32014: "fpzip",
    32019: "jpeg",
}


def missing_filter(dataset: h5py.Dataset) -> str | None:
    """Why the dataset's chunks cannot be decoded here, with the remedy; None where they can.

    Imports hdf5plugin, where it is installed, when a filter is met that libhdf5 does not have.
    """
    lacking = _lacking(dataset)
    has_plugins = bool(lacking) and _plugins_loaded()
    if has_plugins:
        lacking = _lacking(dataset)
    if not lacking:
        return None
    number, written = lacking[0]
    name = _IN_HDF5PLUGIN.get(number) or _OTHERS.get(number) or written
    label = f"{name} (HDF5 filter {number})" if name else f"HDF5 filter {number}, which has no name"
    if number in _IN_HDF5PLUGIN and not has_plugins:
        return f"it is compressed with {label}, which needs a plug-in: pip install hdf5plugin"
    if number in _IN_HDF5PLUGIN:
        return f"it is compressed with {label}, which the installed hdf5plugin lacks: pip install -U hdf5plugin"
    return (
        f"it is compressed with {label}, which neither h5py nor hdf5plugin can undo: where the program that wrote it "
        "runs, rewrite it with `h5repack -f GZIP=4 IN OUT`, or set HDF5_PLUGIN_PATH to the folder of its plug-in"
    )


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
