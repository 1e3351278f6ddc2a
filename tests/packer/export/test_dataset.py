"""What holds for every kind of files that a dataset can be exported to, so also for the next one."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from made_datasets import make_plain
from msgspec.structs import replace
from opened_sources import read_each

from packer.convert import convert
from packer.errors import DamagedError, UsageError, WriteError
from packer.export import KINDS, export
from packer.export.files import check_name
from packer.format import DTYPES, FieldSpec, Shard
from packer.format import manifest as manifests
from packer.sources import SourceOptions, open_sources
from packer.split import split
from packer.watcher import Watcher
from packer.writer import DatasetWriter

WITH_US = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
FILES = SourceOptions(samples="files")
NAMES = ("b", "sub/a", "c", "d")
#: Kinds whose files hold samples in their order; from others they come back by name.
IN_ORDER = ("hdf5", "parquet", "tar")
#: Fields of many kinds; each kind of files holds some, and refuses the others.
FIELDS = [
    *(FieldSpec(name="a", dtype=dtype, shape=(3, 2)) for dtype in DTYPES),
    *(FieldSpec(name="a", dtype=dtype, kind="image", shape=(4, None, 3)) for dtype in ("uint8", "uint16", "float32")),
    *(FieldSpec(name="a", dtype="uint8", kind="image", shape=(4, 5, channels)) for channels in (1, 2, 4, 5)),
    FieldSpec(name="a", dtype="float32", shape=()),
    FieldSpec(name="a", dtype="int64", shape=(None, None)),
    FieldSpec(name="xyz", dtype="float32", shape=(None, 3)),
    FieldSpec(name="a", dtype="uint8", kind="text", shape=(None,)),
]


def sample_of(spec, number):
    """The value of a sample: any bytes, or text."""
    if spec.kind == "text":
        return f"sample {number} ü\n"
    rng = np.random.default_rng(number)
    shape = tuple(5 + number if n is None else n for n in spec.shape)
    if spec.dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    return rng.integers(0, 100, shape).astype(spec.dtype)


def packed(path, spec, names=NAMES, **options):
    """A dataset of one field and some named samples; returns their values."""
    values = [sample_of(spec, number) for number in range(len(names))]
    with DatasetWriter(path, fields=[spec], **options) as writer:
        for name, value in zip(names, values, strict=True):
            writer.add({spec.name: value}, name=name)
    return values


def from_hdf5(out, spec):
    """Values of a field that no HDF5 file gave its layout."""
    (path,) = out.glob("*.h5")
    with h5py.File(path) as file:
        assert file["names"].asstr()[:].tolist() == list(NAMES)
        held = file[spec.name]
        if isinstance(held, h5py.Dataset):
            return list(held.asstr()[()] if spec.kind == "text" else held[()])
        values, ends = held["values"][()], held["offsets"][1:-1]
        parts = np.split(values, ends)
        return [p.reshape(s) for p, s in zip(parts, held["shapes"][()], strict=True)] if "shapes" in held else parts


def opened(form, options=None):
    """What opens the files of an export as a source; `form` says which."""
    return lambda out, spec: read_each(open_sources([form.format(out=out, field=spec.name)], options))[spec.name]


#: How the values of a field are read from the files, by kind, for the names of `NAMES` in their order there.
READ = {
    "png": opened("{field}={out}/{field}"),
    "files": opened("{field}={out}/{field}"),
    "ply": opened("{out}"),
    "ply-text": opened("{out}"),
    "hdf5": from_hdf5,
    "npy": opened("{field}={out}/{field}", FILES),
    "basicsr-lmdb": opened("{field}={out}/{field}.lmdb"),
    "parquet": opened("{out}"),
    "tar": lambda out, spec: next(iter(read_each(open_sources([str(out)])).values())),
}


def refused(dataset, out, to):
    """Exports; returns why it is refused, or nothing."""
    try:
        export(dataset, out, to=to)
    except UsageError as error:
        return str(error)
    return ""


def writer_of(to):
    """The writer of a kind of files."""
    return getattr(importlib.import_module(f"packer.export.{KINDS[to].module}"), KINDS[to].writer)


@pytest.fixture(params=KINDS)
def to(request):
    """Every kind of files."""
    return request.param


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """By kind of files, the fields that it holds."""
    folder = tmp_path_factory.mktemp("held")
    found = {to: [] for to in KINDS}
    for number, spec in enumerate(FIELDS):
        packed(folder / str(number), spec)
        for to in KINDS:
            if not refused(folder / str(number), folder / f"{number} {to}", to):
                found[to].append(spec)
    return found


@pytest.fixture
def spec(to, held):
    """A field that this kind of files holds."""
    return held[to][-1]


@pytest.mark.parametrize("spec", FIELDS, ids=lambda spec: spec.in_words)
def test_every_value_comes_back_or_its_field_is_refused(tmp_path, to, spec):
    """Read from the files, values are the same to the bit; what a kind cannot hold is refused before it writes."""
    values = packed(tmp_path / "d", spec)
    if said := refused(tmp_path / "d", tmp_path / "out", to):
        assert f"'{spec.name}'" in said
        assert "export to hdf5" in said
        assert not (tmp_path / "out").exists()
        return
    report = export(tmp_path / "d", tmp_path / "out", to=to, overwrite=True)
    found = READ[to](tmp_path / "out", spec)
    order = range(4) if to in IN_ORDER else sorted(range(4), key=lambda number: NAMES[number])
    for value, wanted in zip(found, [values[number] for number in order], strict=True):
        if spec.kind == "text":
            assert value == wanted
        else:
            assert (value.dtype, value.shape) == (wanted.dtype, wanted.shape)
            assert np.asarray(value).tobytes() == wanted.tobytes()
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert report.bytes == sum(path.stat().st_size for path in files if path.name != "lock.mdb")
    assert not [path for path in files if path.name.endswith(".partial")]


def test_fields_whose_members_of_a_tar_would_be_one_are_refused(tmp_path):
    """`a` is a.cls there, as `a.cls` is, and WebDataset reads `X` as `x`: one would take the place of the other."""
    for number, (one, other) in enumerate((("a", "a.cls"), ("X", "x"))):
        convert([{one: 1, other: 2}], tmp_path / f"{number}", workers=0)
        with pytest.raises(UsageError, match=f"fields '{one}' and '{other}' would both have the suffix"):
            export(tmp_path / f"{number}", tmp_path / "out", to="tar")


@pytest.mark.parametrize("wanted", ["d,b", "test", np.array([3, 0])])
def test_chosen_samples_are_exported_alone(tmp_path, to, spec, wanted):
    """A split, names or numbers: the files are those of a dataset that holds these samples and no others."""
    packed(tmp_path / "all" / "d", spec)
    split(tmp_path / "all" / "d", {"test": ["d", "b"]})
    with DatasetWriter(tmp_path / "two" / "d", fields=[spec]) as writer:
        for name in ("b", "d"):
            writer.add({spec.name: sample_of(spec, NAMES.index(name))}, name=name)
    export(tmp_path / "two" / "d", tmp_path / "expected", to=to)
    assert export(tmp_path / "all" / "d", tmp_path / "out", to=to, samples=wanted).samples == 2
    expected, out = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (tmp_path / "expected", tmp_path / "out")
    )
    assert out == expected


def test_samples_without_names_are_chosen_by_number(tmp_path):
    """Their files keep the numbers; what is neither a sample nor a split is named, with what there is."""
    with DatasetWriter(tmp_path / "d") as writer:
        for number in range(12):
            writer.add({"a": np.full(number + 1, number)})
    export(tmp_path / "d", tmp_path / "out", to="npy", samples=[10, 3])
    assert sorted(path.name for path in (tmp_path / "out" / "a").iterdir()) == ["03.npy", "10.npy"]
    assert np.load(tmp_path / "out" / "a" / "10.npy").tolist() == [10] * 11
    with pytest.raises(UsageError, match="no sample or split '12', 'x'; splits are none; samples are 0 to 11"):
        export(tmp_path / "d", tmp_path / "new", samples="3,12,x")


def named_images(folder, names):
    """A dataset of small pictures of these names."""
    spec = FieldSpec(name="a", dtype="uint8", kind="image", shape=(2, 2, 1))
    with DatasetWriter(folder, fields=[spec]) as writer:
        for number, name in enumerate(names):
            writer.add({"a": np.full((2, 2, 1), number, np.uint8)}, name=name)


def test_a_name_cannot_lead_out_of_the_folder(tmp_path, to, spec):
    """A name that is no plain path is refused before anything is written, and HDF5 advised, which keeps it as text."""
    packed(tmp_path / "d", spec, ["good", "../x"])
    if not writer_of(to).names_files:
        assert export(tmp_path / "d", tmp_path / "in" / "out", to=to).files == 1
        return
    with pytest.raises(UsageError, match="export to hdf5"):
        export(tmp_path / "d", tmp_path / "in" / "out", to=to)
    assert not (tmp_path / "in").exists()


def test_a_field_cannot_lead_out_of_the_folder(tmp_path, to, spec):
    """Fields become folders or names of files, and may be called `..` in a dataset; a property of PLY is no path."""
    packed(tmp_path / "d", replace(spec, name=".."))
    said = refused(tmp_path / "d", tmp_path / "in" / "out", to)
    assert re.search("leads out of the folder|HDF5 cannot hold|^$", said)
    assert {path.name for path in tmp_path.iterdir()} <= {"d", "in"}
    assert {path.name for path in tmp_path.glob("in/*")} <= {"out"}


def test_plain_names_are_taken_as_they_are():
    """Dots, spaces and letters of any script are no danger; whatever leads elsewhere is refused."""
    for name in ("a", "a/b.c", "..a", "übung 1/…", "-rf", "a..b"):
        assert check_name(name) == name
    for name in ("../x", "a/../../x", "/etc/x", "a//b", ".", "a/./b", "x/..", "a/", "", "a\0"):
        with pytest.raises(UsageError, match="cannot be the name of a file"):
            check_name(name)


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    """Without overwrite nothing is touched; with it files of one name are replaced, and others stay."""
    named_images(tmp_path / "d", ["x", "y"])
    (tmp_path / "out" / "a").mkdir(parents=True)
    (tmp_path / "out" / "a" / "x.png").write_text("old")
    (tmp_path / "out" / "other").write_text("mine")
    with pytest.raises(UsageError, match=r"is not empty.*--overwrite"):
        export(tmp_path / "d", tmp_path / "out")
    assert (tmp_path / "out" / "a" / "x.png").read_text() == "old"
    export(tmp_path / "d", tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "a" / "x.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out" / "other").read_text() == "mine"
    with pytest.raises(UsageError, match="is a file"):
        export(tmp_path / "d", tmp_path / "out" / "other", overwrite=True)


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    """What the system says becomes one sentence with the path in it, and no half file stays."""
    named_images(tmp_path / "d", ["x"])
    (tmp_path / "out" / "a" / "x.png").mkdir(parents=True)
    with pytest.raises(WriteError, match=r"x\.png"):
        export(tmp_path / "d", tmp_path / "out", overwrite=True)
    assert [p.name for p in (tmp_path / "out" / "a").iterdir()] == ["x.png"]


def test_unknown_kinds_and_fields_are_refused(tmp_path):
    """The message says which there are."""
    named_images(tmp_path / "d", ["x"])
    with pytest.raises(UsageError, match="'jpeg'; png, files, ply, ply-text, hdf5"):
        export(tmp_path / "d", tmp_path / "out", to="jpeg")
    with pytest.raises(UsageError, match="no field 'b'; it has a"):
        export(tmp_path / "d", tmp_path / "out", fields=["b"])


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_damage_is_not_exported(tmp_path, to, spec, codec):
    """A flipped bit of a value is found on the way, and the field and samples are named; no file is left of it."""
    packed(tmp_path / "d", spec, codec=codec)
    (entry,) = manifests.read(tmp_path / "d").shards
    path = tmp_path / "d" / entry.file
    with Shard(path) as shard:
        ((offset, _size),) = shard.chunks(np.zeros(1, np.int64))
    data = bytearray(path.read_bytes())
    data[offset + 3] ^= 4
    path.write_bytes(data)
    with pytest.raises(DamagedError, match=rf"field '{spec.name}', samples? 0( to [1-3])? of the shard: the check"):
        export(tmp_path / "d", tmp_path / "out", to=to)
    assert not [p for p in (tmp_path / "out").rglob("*") if p.is_file()]


def test_a_name_that_is_damaged_in_a_shard_is_not_exported(tmp_path):
    """Nothing has a checksum of it there: names are those of the table, which has one."""
    named_images(tmp_path / "d", ["first", "second"])
    make_plain(tmp_path / "d")
    shard = tmp_path / "d/shards/00000.lmdb"
    data = shard.read_bytes()
    assert data.count(b"firstsecond") == 1
    shard.write_bytes(data.replace(b"firstsecond", b"firstsecund"))
    export(tmp_path / "d", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out/a").iterdir()) == ["first.png", "second.png"]
    table = tmp_path / "d/names.lmdb"
    table.write_bytes(table.read_bytes().replace(b"second", b"secund"))
    with pytest.raises(DamagedError, match=r"names\.lmdb: .* run `packer verify`, then `packer repair`"):
        export(tmp_path / "d", tmp_path / "again")


def test_progress_counts_all_samples(tmp_path):
    """What the hook is told adds up to the samples and bytes of the dataset."""
    named_images(tmp_path / "d", ["x", "y", "z"])
    told = []
    report = export(
        tmp_path / "d", tmp_path / "out", watcher=Watcher(done=lambda samples, nbytes: told.append((samples, nbytes)))
    )
    assert tuple(map(sum, zip(*told, strict=True))) == (3, 12)
    assert report.bytes == sum(p.stat().st_size for p in (tmp_path / "out" / "a").iterdir())


def test_nothing_depends_on_time_and_place(tmp_path, files_of, held):
    """Exported again, into a folder whose name is not UTF-8, files are the same to the byte."""
    for to, (*_, spec) in held.items():
        packed(tmp_path / to, spec)
        export(tmp_path / to, tmp_path / f"{to} one", to=to)
        os.utime(tmp_path / to / "manifest.json", (1, 1))
    time.sleep(1.01 - time.time() % 1)  # until the next one: HDF5 counts whole seconds
    for to in KINDS:
        export(tmp_path / to, tmp_path / os.fsdecode(b"\xff") / to, to=to)
        assert files_of(tmp_path / f"{to} one") == files_of(tmp_path / os.fsdecode(b"\xff") / to)


#: Exports datasets where no file may grow beyond so many bytes, and says what became of each and what files are left.
LIMITED = """
import resource, signal, sys
from pathlib import Path
from packer.export import export
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for dataset, to in (word.split(":") for word in sys.argv[1:]):
    export(dataset, f"{dataset}.{to}", to=to)
    largest = max(path.stat().st_size for path in Path(f"{dataset}.{to}").rglob("*"))
    for limit in (0, 500, 20_000, largest - 100):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            export(dataset, "out", to=to, overwrite=True)
            print("no error", to, limit)
        except Exception as error:
            print(type(error).__name__, error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print([str(path) for path in Path("out").rglob("*") if path.is_file()])
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no limit on the size of files")
def test_a_full_disk_is_an_error(tmp_path):
    """Wherever in a file it is met: a WriteError that names the file and says what to do, and nothing is left of it."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "groups.h5", "w") as file:
        for number, row in enumerate(rng.random((100, 200))):
            file[f"s{number}/x"] = row
            file[f"s{number}"].attrs["n"] = number
    convert(tmp_path / "groups.h5", tmp_path / "groups", workers=0, source=SourceOptions(samples="groups"))
    convert([{"xyz": rng.random((5_000, 3)), "t": f"text {n}"} for n in range(2)], tmp_path / "clouds")
    picture = FieldSpec(name="a", dtype="uint16", kind="image", shape=(200, 200, 3))
    convert([{"a": rng.integers(0, 2**16, picture.shape, "u2")}], tmp_path / "pictures", fields=[picture])
    exports = {"groups": ["hdf5"], "clouds": ["hdf5"], "pictures": ["png", "npy", "basicsr-lmdb"]}
    words = [f"{name}:{to}" for name, kinds in exports.items() for to in kinds]
    command = [sys.executable, "-c", LIMITED, *words]
    done = subprocess.run(command, cwd=tmp_path, env=WITH_US, capture_output=True, text=True, check=True, timeout=100)
    said = done.stdout.splitlines()
    assert len(said) == 8 * len(words)
    assert not [line for line in said[::2] if not re.match(r"WriteError out/\S+: cannot.*run again$", line)], (
        done.stdout
    )
    assert set(said[1::2]) == {"[]"}


@pytest.mark.parametrize("options", [{"patch": 4, "stride": 2}, {"downscale": 2}], ids=str)
def test_squares_and_smaller_pictures(tmp_path, pairs, contents, options):
    """They are written as they were packed, with a note; packed from those files they are the same samples."""
    sources = pairs.sources if "patch" in options else pairs.sources[1:]
    convert(sources, tmp_path / "d", workers=0, source=SourceOptions(**options))
    report = export(tmp_path / "d", tmp_path / "out")
    assert len(report.notes) == 1
    convert([f"{field}={tmp_path}/out/{field}" for field in ("lr", "hr")], tmp_path / "again", workers=0)
    one, two = contents(tmp_path / "d"), contents(tmp_path / "again")
    assert one[1] == two[1]
