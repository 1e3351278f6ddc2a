"""What cannot be packed from HDF5 is refused in a sentence that names the file, the dataset and the remedy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from hdf5_files import bfloat16, flip, overwrite, write_hdf5
from opened_sources import open_hdf5, read_joined

from packer.cli import main
from packer.convert import convert
from packer.errors import SourceError

FOREIGN = {
    "empty": (b"", r"is empty \(0 bytes\)"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull"),
    "netcdf3": (b"CDF\x01" + bytes(100), "NetCDF-3"),
    "hdf4": (b"\x0e\x03\x13\x01" + bytes(100), "HDF4"),
    "matlab5": (b"MATLAB 5.0 MAT-file, Platform: GLNXA64" + bytes(600), "old MATLAB file .* by scipy.io.loadmat"),
    "html": (b"<!DOCTYPE html><html>", "web page"),
    "page": (b"\n<Html lang='en'>", "web page"),
    "less": (b"<\x00\x01\x02", "is not an HDF5 file: it begins with b'<"),
    "zeros": (bytes(5000), r"not an HDF5 file: it begins with b'\\x00"),
    "other": (b"hello, world, this is text", "not an HDF5 file"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_other_formats_are_recognised(tmp_path: Path, name: str) -> None:
    """A file that is no HDF5 is named for what it is."""
    content, words = FOREIGN[name]
    path = tmp_path / "x.h5"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=words) as caught:
        open_hdf5(str(path))
    assert caught.value.path == str(path)


def test_a_truncated_file_is_said_to_be_cut_short(tmp_path: Path) -> None:
    """Both sizes are in the sentence."""
    path = tmp_path / "x.h5"
    write_hdf5(path, {"x": np.arange(10_000)})
    whole = path.stat().st_size
    os.truncate(path, 40_000)
    with pytest.raises(SourceError, match=f"is cut short: it holds 40,000 bytes, its header says {whole:,}"):
        open_hdf5(str(path))


def test_a_file_without_rows_is_named_with_its_fields(tmp_path: Path) -> None:
    """Nothing to pack is an error that says where there is nothing."""
    write_hdf5(tmp_path / "a.h5", {"x": np.zeros((0, 3)), "y": np.zeros(0)})
    with pytest.raises(SourceError, match=r"a\.h5: no sample to pack: there are 0 rows of x, y"):
        convert([str(tmp_path / "a.h5")], tmp_path / "out", workers=0)


def what_cannot_be_stored(file: h5py.File) -> dict[str, str]:
    """Datasets of three rows, each with what is said of it."""
    pair = h5py.h5t.create(h5py.h5t.COMPOUND, 6)
    pair.insert(b"p", 0, bfloat16("<"))
    pair.insert(b"q", 2, h5py.h5t.STD_I32LE)
    reference = h5py.h5t.py_create(h5py.ref_dtype, logical=True)
    references = h5py.h5t.py_create(
        np.dtype([("n", "i4"), ("at", h5py.vlen_dtype(h5py.regionref_dtype))]), logical=True
    )
    for name, type_ in (
        ("pairs", h5py.h5t.array_create(pair, (2,))),
        ("ref", reference),
        ("within", references),
    ):
        h5py.h5d.create(file.id, name.encode(), type_, h5py.h5s.create_simple((3,)))
    file["opaque"] = np.zeros(3, "V5")
    file["none"] = h5py.Empty("f4")
    file["#wide"] = np.zeros(3, np.longdouble)
    file["words"] = np.full((3, 2), "a", h5py.string_dtype())
    file["fixed"] = np.full((3, 2), b"abc")
    file.create_dataset("lists", (3, 4), h5py.vlen_dtype("i4"))
    file.create_dataset("foreign", 3, h5py.vlen_dtype(np.dtype(np.uint16).newbyteorder("S")))
    return {
        "pairs": "floats of 16 bits that numpy does not have, such as bfloat16; write them as float32",
        **dict.fromkeys(("ref", "within"), "references to other objects, which cannot be stored"),
        "opaque": "values of |V5, which cannot be stored; write them as one of bool",
        "none": "",
        "#wide": "values of float128, which",
        "words": "strings of shape (2,) a sample, but only one can be stored; make an array of each",
        "fixed": "strings of shape (2,) a sample",
        "lists": "lists of shape (4,) a sample",
        "foreign": "lists of >u2, whose byte order h5py forgets; write them as uint16",
    }


def test_types_that_cannot_be_stored_are_named_and_can_be_skipped(tmp_path: Path) -> None:
    """Each dataset alone is refused with the reason; together with the options that leave them out or pick others."""
    path = str(tmp_path / "x.h5")
    with h5py.File(path, "w") as file:
        file["good"] = np.arange(3)
        said = what_cannot_be_stored(file)
    for name, words in said.items():
        holds = re.escape(f"holds {words}" if words else "is empty: it has no values and no shape")
        with pytest.raises(SourceError, match=f"field o: /{name} {holds}"):
            open_hdf5(path, pick={"o": f"/{name}"})
    with pytest.raises(
        SourceError, match=r"Leave out with --skip '#wide' --skip fixed .*, or pick fields with --field"
    ):
        open_hdf5(path)
    assert [f.name for f in open_hdf5(path, skip=list(said)).fields] == ["good"]
    assert [f.name for f in open_hdf5(path, pick={"g": "/good"}).fields] == ["g"]


@pytest.mark.parametrize("shape", [(2 * 10**18,), (10**6, 10**12), (2**47, 0), (3, 2**60)], ids=str)
def test_declared_sizes_are_not_believed(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """A file of a few kB that claims 2e18 values is refused before any is read."""
    path = str(tmp_path / "x.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", shape, "f4", maxshape=[None] * len(shape), chunks=(100,) * len(shape))
    with pytest.raises(SourceError, match=r"far too large|is too large"):
        open_hdf5(path)


def test_never_written_values_are_the_fill_value_and_noted(tmp_path: Path) -> None:
    """As HDF5 has it, but the plan says so."""
    path = str(tmp_path / "x.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("none", (10, 2), "f4", fillvalue=7)
        part = file.create_dataset("part", (10, 2), "f4", chunks=(2, 2), fillvalue=5)
        part[:4] = 1
    source = open_hdf5(path)
    block = next(iter(source.read()))
    assert np.all(block["none"] == 7)
    assert np.asarray(block["part"])[:, 0].tolist() == [1] * 4 + [5] * 6
    (remark,) = source.remarks
    assert remark.endswith("4 chunks of 10 samples in 1 file, the first: x.h5: /none: all its values, 7.0")


def test_virtual_datasets_need_their_sources(tmp_path: Path) -> None:
    """A source that lacks something is an error, never zeros; it is looked for again by the process that reads."""
    source, layout = tmp_path / "src.h5", h5py.VirtualLayout((10,), "i8")
    layout[:] = h5py.VirtualSource("src.h5", "d", (10,))
    path = str(tmp_path / "vds.h5")
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("v", layout)
    write_hdf5(source, {"d": np.arange(10)})
    found = open_hdf5(path)
    assert read_joined(found)["v"].tolist() == list(range(10))
    assert found.files() == [path, str(source)]
    with h5py.File(source, "w") as file:
        file.create_virtual_dataset("d", h5py.VirtualLayout((10,), "i8"))
    with pytest.raises(SourceError, match="is virtual, too; show the datasets"):
        open_hdf5(path)
    write_hdf5(source, {"d": np.arange(4)})
    with pytest.raises(SourceError, match="too small"):
        open_hdf5(path)
    write_hdf5(source, {"other": np.arange(10)})
    with pytest.raises(SourceError, match=r"source dataset d of file src\.h5 does not exist"):
        open_hdf5(path)
    source.unlink()
    with pytest.raises(SourceError, match=r"source file src\.h5 does not exist"):
        open_hdf5(path)
    with pytest.raises(SourceError, match="does not exist") as error:
        list(found.read())
    h5py.File(path, "a").close()  # though the error is kept, the file is closed
    assert error


def test_numbered_files_of_a_virtual_dataset(tmp_path: Path) -> None:
    """Those of `%b` are packed if all are there; libhdf5 ends at the first that is missing, so a gap is an error."""
    for number in range(3):
        write_hdf5(tmp_path / f"4_{number}.h5", {"d": np.arange(4) + 4 * number})
    path = str(tmp_path / "virtual.h5")
    shown = h5py.h5s.create_simple((4,), (h5py.h5s.UNLIMITED,))
    shown.select_hyperslab((0,), (h5py.h5s.UNLIMITED,), (4,), (4,))
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_virtual(shown, b"4_%b.h5", b"d", h5py.h5s.create_simple((4,)))
    with h5py.File(path, "w", libver="latest") as file:
        h5py.h5d.create(file.id, b"v", h5py.h5t.STD_I64LE, shown, plist)
    source = open_hdf5(path)
    assert read_joined(source)["v"].tolist() == list(range(12))
    assert source.files() == [path, *(str(tmp_path / f"4_{number}.h5") for number in range(3))]
    write_hdf5(tmp_path / "4_1.h5", {"d": np.arange(3)})
    with pytest.raises(SourceError, match=r"4_1\.h5 is too small"):
        open_hdf5(path)
    (tmp_path / "4_1.h5").unlink()
    with pytest.raises(SourceError, match=r"4_1\.h5 does not exist, and later ones do"):
        open_hdf5(path)


def test_external_raw_files_are_refused(tmp_path: Path) -> None:
    """libhdf5 makes fill values of what they lack, so the sentence says how to write them into the file."""
    path = str(tmp_path / "x.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(10), external=[(str(tmp_path / "raw.bin"), 0, 80)])
    with pytest.raises(SourceError, match=r"dataset /x keeps its values in a raw file, .*raw\.bin; write them into"):
        open_hdf5(path)


def test_a_corrupt_chunk_names_the_first_bad_sample(tmp_path: Path) -> None:
    """All samples before it are yielded, and reading goes on behind it."""
    path = tmp_path / "x.h5"
    array = np.random.default_rng(0).integers(0, 255, (1000, 20), np.uint8)
    with h5py.File(path, "w") as file:
        data = file.create_dataset("x", data=array, chunks=(10, 20), fletcher32=True)
        where = data.id.get_chunk_info(50).byte_offset
    flip(path, where + 3)
    source = open_hdf5(str(path)).slice(100, 1000)
    good = []
    with pytest.raises(SourceError, match="reading rows") as caught:
        good.extend(np.asarray(block["x"]) for block in source.read())
    assert caught.value.sample == 400
    assert np.array_equal(np.concatenate(good), array[100:500])
    rest = np.concatenate([np.asarray(block["x"]) for block in source.slice(410, 900).read()])
    assert np.array_equal(rest, array[510:])


@pytest.mark.parametrize("length", [None, 2])
def test_text_that_is_not_utf8_names_its_sample(tmp_path: Path, length: int | None) -> None:
    """Bytes are never guessed at. The error says what to do, and the other samples can be packed."""
    path = str(tmp_path / "x.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("t", data=[b"a", b"b", b"\xff\xe9", b"c"], dtype=h5py.string_dtype("ascii", length))
        file.create_dataset("u", data=["é"] * 4, dtype=h5py.string_dtype())
    with pytest.raises(
        SourceError, match=r"text that is not UTF-8 \(b'\\xff\\xe9'\); write it as UTF-8.*--skip /t"
    ) as e:
        list(open_hdf5(path).read())
    assert e.value.sample == 2
    report = convert(path, tmp_path / "out", workers=0, on_error="skip")
    assert (report.samples, len(report.rejected)) == (3, 1)
    assert CliRunner().invoke(main, ["verify", str(tmp_path / "out"), "--against", path]).exit_code == 0


def test_a_file_that_changes_after_planning_is_an_error(tmp_path: Path) -> None:
    """Another shape or dtype is found out when it is read."""
    path = str(tmp_path / "x.h5")
    for changed in (np.zeros((5, 3), "f4"), np.zeros((5, 2), "i4"), np.zeros((4, 2), "f4"), np.zeros((5, 2), "f8")):
        write_hdf5(path, {"x": np.zeros((5, 2), "f4")})
        source = open_hdf5(path)
        write_hdf5(path, {"x": changed})
        with pytest.raises(SourceError, match="changed"):
            list(source.read())


@pytest.mark.parametrize("has_plugins", [False, True])
@pytest.mark.parametrize("name", [b"zstd", b""])
def test_a_missing_filter_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_plugins: bool, name: bytes
) -> None:
    """With what to do: install a package, set the path of plug-ins, or rewrite the file."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(100, dtype="i8"), chunks=(10,), compression="gzip")
    filters = b"\x01\0\x08\0\x01\0\x01\0deflate\0"
    overwrite(path, filters, (32015).to_bytes(2, "little") + filters[2:8] + name.ljust(8, b"\0"))
    monkeypatch.setitem(sys.modules, "hdf5plugin", types.ModuleType("hdf5plugin") if has_plugins else None)
    monkeypatch.setattr(h5py.h5z, "filter_avail", lambda number: False)
    words = f"{name.decode() or 'a filter without a name'} .HDF5 filter 32015.*hdf5plugin.*HDF5_PLUGIN_PATH.*h5repack"
    with pytest.raises(SourceError, match=f"dataset /x cannot be read: it is compressed with {words}"):
        open_hdf5(str(path))


def test_plugin_filters_work_where_installed(tmp_path: Path) -> None:
    """hdf5plugin is imported by itself when its filters are met."""
    import hdf5plugin

    path = str(tmp_path / "x.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(100), chunks=(10,), **hdf5plugin.Zstd())
    assert np.asarray(next(iter(open_hdf5(path).read()))["x"]).tolist() == list(range(100))


def test_a_file_being_written_is_refused(tmp_path: Path) -> None:
    """Half-written data of another process is not packed."""
    path = str(tmp_path / "x.h5")
    code = f"import h5py; f = h5py.File({path!r}, 'w'); f['x'] = 1; f.flush(); print(); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        with pytest.raises(SourceError, match=r"is being written by another program"):
            open_hdf5(path)
        writer.communicate(b"\n", timeout=100)


def test_names_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    """A dataset of such a name is refused, an attribute of such a name is kept."""
    path = str(tmp_path / "x.h5")
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3)
        file.attrs[b"\xff"] = 1
    assert open_hdf5(path).origin["files"][0].attributes == {"/": {"\\xff": 1}}
    write_hdf5(path, {b"\xfe": np.arange(3)}, "r+")
    with pytest.raises(SourceError, match=r"/\\xfe has a name that is not UTF-8"):
        open_hdf5(path)


@pytest.mark.parametrize("suffix", [".nxs", ".he5", ".nc4", ".hdf", ".mat", ".weights", ""])
@pytest.mark.parametrize("block", [0, 512])
def test_a_file_is_known_by_its_signature(tmp_path: Path, suffix: str, block: int) -> None:
    """Whatever its suffix, alone, by a pattern and in a folder; a user block in front of it is no obstacle."""
    path = tmp_path / f"a{suffix}"
    with h5py.File(path, "w", userblock_size=block) as file:
        file["x"] = np.arange(3)
    (tmp_path / "notes.txt").write_text("of mine")
    for source in (path, tmp_path / "a*", tmp_path):
        assert read_joined(open_hdf5(str(source)))["x"].tolist() == [0, 1, 2]
