"""What every command does with the datasets that every kind of source, unit and option makes."""

from __future__ import annotations

import json
import os
import pickle
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import msgspec
import numpy as np
import pytest

from packer.drop import drop
from packer.format import Constants
from packer.format import manifest as manifests
from packer.join import join
from packer.packing import LocalPlace, open_source
from packer.sources import Source, TableSource, all_kinds, decode_source, encode_source, open_packed
from packer.verify import verify
from tests.helpers.here import in_this_process
from tests.helpers.kinds import FORMS, KINDS, SPLITS, Dataset, make, run


@pytest.fixture(scope="module")
def made(new_folder_in_memory: Callable[[], Path]) -> Callable[[str, int], Dataset]:
    """A function that makes the dataset of a kind and a number, once."""

    @cache
    def once(kind: str, number: int) -> Dataset:
        return make(KINDS[kind], new_folder_in_memory(), number)

    return once


@pytest.fixture
def tmp_path(folder: Path) -> Path:
    """In memory: hundreds of datasets are made."""
    return folder


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def dataset(kind: str, made: Callable[[str, int], Dataset], tmp_path: Path) -> Dataset:
    """A dataset of the test's own; the files of its source are read by several."""
    one = made(kind, 1)
    shutil.copytree(one.path, tmp_path / one.path.name)
    return one._replace(path=tmp_path / one.path.name)


def content(path: Path) -> dict[str, Any]:
    """All that a reader sees of a dataset, but for its splits and its codecs."""
    assert verify(path).damages == ()
    manifest, source = manifests.read(path), open_packed(path)
    assert all(shard.index for shard in manifest.shards)
    return {
        "fields": source.fields,
        "classes": manifest.classes,
        "names": list(source.names) if source.names is not None else None,
        "constants": {name: (a.dtype, a.tolist()) for name, a in Constants(path, manifest.constants).items()},
        "values": values(samples(source)),
    }


def samples(source: Source) -> dict[str, list[Any]]:
    """The samples of a source by field; large ones are read."""
    found: dict[str, list[Any]] = {spec.name: [] for spec in source.fields}
    for block in source.read():
        for name, some in block.items():
            found[name] += [value if isinstance(value, str) else np.asarray(value) for value in some]
    return found


def values(found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """What makes samples the same."""
    return {
        name: [value if isinstance(value, str) else (value.shape, value.tobytes()) for value in some]
        for name, some in found.items()
    }


def facts(source: Source) -> tuple[object, ...]:
    """What a source says of all samples, which its parts need not know."""
    splits = {name: list(numbers) for name, numbers in source.splits.items()}
    constants = {name: (array.dtype, array.tolist()) for name, array in source.constants.items()}
    origin = msgspec.to_builtins(source.origin)
    return source.kind, source.fields, origin, source.names and list(source.names), splits, constants


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    """Spares the start of hundreds of processes."""
    with in_this_process():
        yield


def test_files_that_change_while_they_are_packed_are_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For every kind of source: nothing of them is packed."""
    folder = tmp_path / "sources"
    folder.mkdir()
    sources = KINDS[kind].write(folder, 1)
    draft = LocalPlace.draft

    def touch_first(place: LocalPlace, name: str) -> Path:
        for file in folder.rglob("*"):
            os.utime(file, (1, 1))
        return draft(place, name)

    monkeypatch.setattr(LocalPlace, "draft", touch_first)
    said = run("convert", *sources, tmp_path / "out", *KINDS[kind].options, "--workers", 0, status=1)
    assert re.search("was [0-9,]+ bytes of .* when it was planned|changed.* while it was packed", said)
    assert str(folder) in said.replace("\n", "")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_source_keeps_its_contract(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples have the dtypes and shapes that were said of them, again and in pickled or encoded parts.

    All are those of a table. Without names, the origin says from which files they are.
    """
    opened: list[Source] = []
    whole = open_source

    def spied(*arguments: Any) -> Source:
        opened.append(whole(*arguments))
        return opened[-1]

    monkeypatch.setattr("packer.convert.open_source", spied)
    made = make(KINDS[kind], tmp_path)
    (source,) = opened
    assert source.kind in (KINDS[kind].source, "episodes")
    assert not [file for file in source.files() if not Path(file).exists()]
    assert source.names is None or len(set(source.names)) == len(source.names) == len(source)
    inner = source
    while not isinstance(inner, TableSource):
        inner = vars(inner)["source"]
    origin = json.dumps(msgspec.to_builtins(source.origin))
    assert source.names or [path for path in tmp_path.rglob("*.*") if path.name in origin]
    held = samples(source)
    for spec in source.fields:
        assert len(held[spec.name]) == len(source)
        shapes = source.shapes(spec.name) if spec.is_ragged else None
        for number, value in enumerate(held[spec.name]):
            if spec.kind == "text":
                assert isinstance(value, str)
                continue
            assert (value.dtype, value.dtype.isnative, value.flags.c_contiguous) == (np.dtype(spec.dtype), True, True)
            assert not [(n, m) for n, m in zip(spec.shape, value.shape, strict=True) if n not in (None, m)]
            assert shapes is None or tuple(shapes[number]) == value.shape
    assert values(samples(source)) == values(held)
    assert facts(decode_source(encode_source(source))) == facts(source)
    cut = len(source) // 2
    ends = (0, cut), (cut, len(source))
    for carried in (lambda part: pickle.loads(pickle.dumps(part)), lambda part: decode_source(encode_source(part))):
        first, second = (values(samples(carried(source.slice(*span)))) for span in ends)
        assert {name: first[name] + second[name] for name in first} == values(held)
    assert len(pickle.dumps(source.slice(0, 1))) < 6000  # nothing of the others
    # Parts of parts count from the start of their own.
    inner = source.slice(1, len(source)).slice(len(source) - 2, len(source) - 1)
    last = source.slice(len(source) - 1, len(source))
    assert values(samples(inner)) == {name: of_field[-1:] for name, of_field in values(samples(source)).items()}
    assert (inner.names and list(inner.names), inner.files()) == (last.names and list(last.names), last.files())
    assert values(samples(open_packed(made.path))) == values(held)


def test_every_source_and_unit_is_tried() -> None:
    """`KINDS` has a dataset of each unit of each kind of source; a new one gets a line there."""
    asked = {
        (kind.source, dict(zip(kind.options, kind.options[1:], strict=False)).get("--samples", ""))
        for kind in KINDS.values()
    }
    kinds = all_kinds()
    units = {(source, unit.partition(":")[0] or kinds[source].units[0]) for source, unit in asked}
    assert units == {(kind.name, unit) for kind in kinds.values() for unit in kind.units}


def test_verify_and_info(dataset: Dataset) -> None:
    """`verify --against` finds all as it was packed, by the options that the manifest keeps; `info` says the splits."""
    run("verify", dataset.path, "--against", *dataset.sources)
    said = run("info", dataset.path)
    assert "train" in said
    assert shlex.join(["packer", "convert", *map(str, dataset.sources)]) in said


@pytest.mark.parametrize("kind", FORMS)
def test_repack_keeps_all(dataset: Dataset, tmp_path: Path) -> None:
    """Only the codec is another one; splits stay too."""
    run("repack", dataset.path, tmp_path / "again", "--codec", "zstd", "--workers", 0)
    assert content(tmp_path / "again") == content(dataset.path)
    assert manifests.read(tmp_path / "again").splits == manifests.read(dataset.path).splits
    run("verify", tmp_path / "again", "--against", *dataset.sources, *dataset.kind.options)


def test_repair_makes_shards_again(dataset: Dataset, files_of: Callable[[Path], dict[str, bytes]]) -> None:
    """Whatever is damaged, constants and names too, comes back byte for byte from the sources."""
    before = files_of(dataset.path)
    for path in (path for path in dataset.path.rglob("*") if path.suffix in (".lmdb", ".npz")):
        os.truncate(path, path.stat().st_size // 2)
    run("repair", dataset.path, *dataset.sources)
    assert files_of(dataset.path) == before


@pytest.mark.parametrize("kind", FORMS)
def test_repair_makes_the_manifest_again(dataset: Dataset) -> None:
    """A lost manifest is taken from its copy, without any source."""
    before, held = content(dataset.path), manifests.read(dataset.path)
    (dataset.path / "manifest.json").unlink()
    run("repair", dataset.path)
    assert content(dataset.path) == before
    assert manifests.read(dataset.path) == held
    run("verify", dataset.path, "--against", *dataset.sources, *dataset.kind.options)


@pytest.mark.parametrize(
    ("kind", "verb"),
    [
        (kind, verb)
        for kind in KINDS
        for verb in ("append", "append packed", "merge")
        if verb == "append" or kind in FORMS
    ],
)
def test_more_samples(
    dataset: Dataset, kind: str, made: Callable[[str, int], Dataset], tmp_path: Path, verb: str
) -> None:
    """Appended or merged samples come after all others, with classes, constants and splits, and can be verified."""
    more = made(kind, 2)
    first, second, out = content(dataset.path), content(more.path), tmp_path / "joined.packed"
    splits = manifests.read(dataset.path).splits
    if verb == "merge":
        run("merge", dataset.path, more.path, out)
    else:
        shutil.copytree(dataset.path, out)
        given = [more.path] if verb == "append packed" else [*more.sources, *SPLITS]
        run("append", out, *given, "--workers", 0)
    joined = content(out)
    assert joined == {
        **first,
        "names": None if first["names"] is None else first["names"] + second["names"],
        "values": {name: some + second["values"][name] for name, some in first["values"].items()},
    }
    found = manifests.read(out).splits
    assert isinstance(found, dict)
    assert isinstance(splits, dict)
    assert {name: found[name][: len(some)] for name, some in splits.items()} == splits
    for part in (dataset, more):
        run("verify", out, "--against", *part.sources, *dataset.kind.options)


@pytest.mark.parametrize("kind", FORMS)
def test_fields_that_come_later(dataset: Dataset) -> None:
    """A field is joined to the samples that are there, and dropped again: all else is as it was."""
    before, old = content(dataset.path), manifests.read(dataset.path)
    later = np.random.default_rng(1).normal(size=(old.samples, 3))
    join(dataset.path, [{"later": value} for value in later])
    joined = content(dataset.path)
    assert joined["values"].pop("later") == [((3,), value.tobytes()) for value in later]
    assert (joined["fields"][-1].name, manifests.read(dataset.path).splits) == ("later", old.splits)
    drop(dataset.path, ["later"], workers=0)
    assert content(dataset.path) == before
    assert {**joined, "fields": joined["fields"][:-1]} == before


def test_export_writes_all(dataset: Dataset, tmp_path: Path) -> None:
    """Any dataset is exported: to what it was made from, and to HDF5; what is not written is said."""
    for number, to in enumerate((dataset.kind.to, ("--to", "hdf5"))):
        out = tmp_path / f"out{number}"
        if to is None:
            assert "hdf5" in run("export", dataset.path, out, status=2)
            continue
        assert "splits are not written: train, rest" in run("export", dataset.path, out, *to)
        assert any(file.is_file() for file in out.rglob("*"))


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.kept])
def test_export_gives_constants_back(kind: str, tmp_path: Path) -> None:
    """The files that an export writes are packed by the same options to the same samples and constants."""
    made = make(KINDS[kind], tmp_path)
    said = run("export", made.path, tmp_path / "out")
    run("convert", tmp_path / "out", tmp_path / "again", *made.kind.options, "--codec", "none", "--workers", 0)
    assert content(tmp_path / "again") == content(made.path)
    assert "constants are not written" not in said


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.kept])
def test_other_constants_differ(kind: str, tmp_path: Path, files_of: Callable[[Path], dict[str, bytes]]) -> None:
    """`verify --against` compares what is kept once for all samples, too; `repair` puts nothing next to other ones."""
    made = make(KINDS[kind], tmp_path)
    for path in tmp_path.glob("source1/*.h5"):
        with h5py.File(path, "r+") as file:
            for grid in grids(file):
                grid[0] = 17
    said = run("verify", made.path, "--against", *made.sources, *made.kind.options, status=1)
    (constants,) = made.path.glob("constants-*.npz")
    assert f"{constants.name}: differs from the source" in said
    for damaged in (constants, next(made.path.glob("shards/*"))):
        damaged.write_bytes(damaged.read_bytes()[:-4096])
    before = files_of(made.path)
    assert "the source has other constants" in run("repair", made.path, *made.sources, *made.kind.options, status=1)
    assert files_of(made.path) == before


def grids(file: h5py.File) -> list[h5py.Dataset]:
    """Return the datasets of a file that are kept once."""
    names: list[str] = []
    file.visit(names.append)
    return [file[name] for name in names if "grid" in name and isinstance(file[name], h5py.Dataset)]
