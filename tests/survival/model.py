"""A model of packed datasets: verbs in any order, killed at any call, against plain lists of samples.

`Verbs` is a state machine of hypothesis. It keeps the expected samples of each dataset; after each verb, new readers
and readers opened before it read all datasets. Needs fork.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import hypothesis
import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from PIL import Image
from soaking.kills import kill_at_step

from packer.append import append
from packer.convert import ConvertOptions, convert
from packer.drop import drop
from packer.errors import DatasetError, PackerError, UsageError
from packer.export import export
from packer.join import join
from packer.merge import merge
from packer.packing import open_source
from packer.repack import repack
from packer.repair import repair
from packer.sources import SourceOptions
from packer.split import split
from packer.verify import verify
from readers import PackedDataset
from tests.survival.two_ways import bits, items_of

Values = dict[str, Any]
#: The change of the disk before which a verb is killed, if at all.
KILLS = st.none() | st.none() | st.integers(0, 45)
GRID = np.arange(4.0)
PHASES = [hypothesis.Phase.generate]


# ---------------------------------------------------------------- kinds of sources


def rows(folder: Path, first: int, count: int) -> list[Values]:
    numbers = np.arange(first, first + count)
    x = np.random.default_rng(first).integers(0, 9, (count, 40)).astype(np.float32)
    with h5py.File(folder / f"r{first:05}.h5", "w") as file:
        file["grid"], file["label"], file["x"] = GRID, numbers, x
        file["text"] = [f"row {number} " * 9 for number in numbers]
    return [{"label": n, "x": v, "text": f"row {n} " * 9} for n, v in zip(numbers, x, strict=True)]


def groups(folder: Path, first: int, count: int) -> list[Values]:
    found = []
    with h5py.File(folder / f"g{first:05}.h5", "w") as file:
        for number in range(first, first + count):
            steps = 3 + 4 * (number % 3)
            values = {"act": np.arange(steps) + number, "x": np.full((steps, 2), number, np.float32)}
            for name, value in (values | {"grid": GRID}).items():
                file[f"demo{number:05}/{name}"] = value
            found.append(values)
    return found


def images(folder: Path, first: int, count: int) -> list[Values]:
    found = []
    for number in range(first, first + count):
        picture = np.random.default_rng(number).integers(0, 9, (5 + number % 3, 6, 3), np.uint8)
        Image.fromarray(picture).save(folder / f"p{number:05}.png")
        found.append({"image": picture.transpose(2, 0, 1)})
    return found


def clips(folder: Path, first: int, count: int) -> list[Values]:
    found = []
    for number in range(first, first + count):
        steps = np.random.default_rng(number).integers(0, 9, (1 + number % 3, 5, 6, 3), np.uint8)
        (folder / f"clip{number:05}").mkdir()
        for step, picture in enumerate(steps):
            Image.fromarray(picture).save(folder / f"clip{number:05}" / f"{step:03}.png")
        found.append({"image": steps})
    return found


def clouds(folder: Path, first: int, count: int) -> list[Values]:
    found = []
    for number in range(first, first + count):
        rng, points = np.random.default_rng(number), 4 + 5 * (number % 3)
        xyz, rgb = rng.integers(0, 99, (points, 3)).astype(np.float32), rng.integers(0, 9, (points, 3), np.uint8)
        head = ["ply", "format ascii 1.0", f"element vertex {points}", *(f"property float {axis}" for axis in "xyz")]
        head += [f"property uchar {colour}" for colour in ("red", "green", "blue")] + ["end_header"]
        lines = [" ".join(map(str, [*map(int, a), *b])) for a, b in zip(xyz, rgb, strict=True)]
        (folder / f"c{number:05}.ply").write_text("\n".join([*head, *lines, ""]))
        found.append({"xyz": xyz, "rgb": rgb})
    return found


@dataclass(frozen=True)
class Kind:
    """A kind of source.

    Attributes:
        write: given a folder, the first number and a count that is a multiple of 3, writes that many samples; the sizes
            repeat every three samples, so that all sources of a kind have one mean size, and so one frame rule.
        prefix: the part of a sample's name before its number; empty if samples have no names.
        options: of the conversion.
        codecs: those that fit some field of the kind.
        constants: whether a grid is kept once for all samples.
        again: the folder of an export that is converted again.
    """

    write: Callable[[Path, int, int], list[Values]]
    prefix: str
    codecs: tuple[str, ...] = ("none", "lz4", "zstd", "auto")
    options: SourceOptions = field(default_factory=SourceOptions)
    constants: bool = False
    again: str = ""


KINDS = {
    "rows": Kind(rows, "", options=SourceOptions(once=("grid",)), constants=True),
    "groups": Kind(groups, "demo", options=SourceOptions(samples="groups", once=("grid",)), constants=True),
    "images": Kind(images, "p", codecs=("none", "zstd", "photo+lz4", "photo+zstd", "auto"), again="image"),
    "clips": Kind(clips, "clip", options=SourceOptions(samples="folders"), again="image"),
    "clouds": Kind(clouds, "c"),
}


# ---------------------------------------------------------------- the model


@dataclass(frozen=True)
class Held:
    """The expected contents of a dataset.

    Attributes:
        samples: key and values of each; the key is its name, or the label of a row.
        splits: the keys of each split.
        parts: the sources of its shards, in order, each with its number of shards; None if there are no such files.
        shuffled: whether samples of several files are mixed; HDF5 groups are then exported as rows.
    """

    path: Path
    kind: str
    samples: tuple[tuple[Any, Values], ...]
    splits: dict[str, frozenset[Any]] = field(default_factory=dict)
    parts: tuple[tuple[list[str], int], ...] | None = None
    shuffled: bool = False

    @property
    def keys(self) -> list[Any]:
        return [key for key, _ in self.samples]

    def items(self, split: str | None = None) -> list[Values]:
        kept = self.keys if split is None else self.splits[split]
        return [values for key, values in self.samples if key in kept]


def found_in(path: Path) -> list[Values] | None:
    """Return the items of a dataset; None if there is no finished one."""
    try:
        return items_of([PackedDataset(path)[:]])
    except DatasetError:
        return None


def told(values: Values) -> str:
    """Return a key that identifies a sample, whatever the order of its fields."""
    return repr(sorted(values.items()))


def fields_of(held: Held) -> list[Any]:
    """Return the schema of a dataset, with codecs and frames."""
    return list(PackedDataset(held.path).fields.values())


def check(held: Held) -> None:
    """Raise AssertionError if a dataset, opened now, does not hold the expected samples."""
    dataset = PackedDataset(held.path, verify=True)
    assert items_of([dataset[:]]) == held.items(), held.path
    if KINDS[held.kind].prefix:
        assert dataset.names is not None
        assert list(dataset.names) == held.keys
        assert dataset.numbers(held.keys[::-1]).tolist() == list(range(len(dataset)))[::-1]
    else:
        assert dataset.names is None
    constants = {name: value.tolist() for name, value in dataset.constants.items()}
    assert constants == ({"grid": GRID.tolist()} if KINDS[held.kind].constants else {})
    assert set(dataset.manifest.splits) == set(held.splits)
    for one in held.splits:
        assert items_of([PackedDataset(held.path, split=one)[:]]) == held.items(one), one
    assert verify(held.path).damages == ()


class Verbs(RuleBasedStateMachine):
    """Makes and changes datasets, and keeps their expected contents."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=folder))
        self.held: dict[Path, Held] = {}
        self.made = 0

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    # ------------------------------------------------------------ what rules share

    def pick(self, number: int) -> Held:
        return list(self.held.values())[number % len(self.held)]

    def new_path(self, what: str) -> Path:
        self.made += 1
        return self.folder / f"{what}{self.made}"

    def write(self, kind: str, thirds: int) -> tuple[list[str], tuple[tuple[Any, Values], ...]]:
        """Write files of a kind; return the sources, and the samples expected from them."""
        folder = self.new_path("source")
        folder.mkdir()
        first = 100 * self.made
        values = KINDS[kind].write(folder, first, 3 * thirds)
        keys: list[Any] = [f"{KINDS[kind].prefix}{number:05}" for number in range(first, first + len(values))]
        if not KINDS[kind].prefix:
            keys = list(range(first, first + len(values)))
        samples = [{name: bits(value) for name, value in one.items()} for one in values]
        return [str(folder)], tuple(zip(keys, samples, strict=True))

    @contextmanager
    def watched(self, *changed: Path) -> Iterator[None]:
        """Check, after a verb, the samples read by readers opened before it and after it.

        Args:
            changed: datasets that may lose files, so that a reader that has not read yet may fail.
        """
        readers = [(held, PackedDataset(held.path), PackedDataset(held.path)) for held in self.held.values()]
        for _, used, _ in readers:
            used[:]
        yield
        for held, used, unused in readers:
            assert items_of([used[:]]) == held.items(), f"{held.path}, read before and after"
            try:
                assert items_of([unused[:]]) == held.items(), f"{held.path}, opened before"
            except PackerError:
                assert held.path in changed
        for held in self.held.values():
            check(held)

    def make(self, new: Held, action: Callable[[], object], kill: int | None, parts: Any = None) -> None:
        """Make a dataset in one rename, or replace one; killed on the way, if asked, and then run again."""
        old = self.held.get(new.path)
        with self.watched(*([new.path] if old else [])):
            if kill is None:
                action()
            elif kill_at_step(action, kill):
                left = found_in(new.path)
                assert left in (old.items() if old else None, new.items()), "neither old nor new"
                with suppress(*([UsageError] if left == new.items() else [])):  # it is finished, and says so
                    action()
            shards = len(PackedDataset(new.path).manifest.shards)
            self.held[new.path] = replace(new, parts=None if parts is None else ((parts, shards),))

    # ------------------------------------------------------------ rules

    @rule(
        kind=st.sampled_from(list(KINDS)),
        thirds=st.integers(1, 4),
        codec=st.integers(0),
        kill=KILLS,
        onto=st.integers(0),
    )
    def convert(self, kind: str, thirds: int, codec: int, kill: int | None, onto: int) -> None:
        """Convert sources into a new dataset, or in place of another."""
        sources, samples = self.write(kind, thirds)
        overwrite = bool(self.held) and onto % 4 == 3
        path = self.pick(onto).path if overwrite else self.new_path("d")
        codecs = KINDS[kind].codecs
        options = ConvertOptions(codec=codecs[codec % len(codecs)], shard_size=4096, workers=0, overwrite=overwrite)
        options = replace(options, source=KINDS[kind].options)
        self.make(Held(path, kind, samples), lambda: convert(sources, path, options), kill, sources)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0), thirds=st.integers(1, 3), other=st.none() | st.integers(0), kill=KILLS)
    def append(self, number: int, thirds: int, other: int | None, kill: int | None) -> None:
        """Append new samples, or those of another dataset; samples that are there already are refused."""
        held = self.pick(number)
        if other is None:
            sources, samples = self.write(held.kind, thirds)
        else:
            more = self.pick(other)
            sources, samples = [str(more.path)], more.samples
            if more.kind != held.kind or (set(more.keys) & set(held.keys) and not KINDS[held.kind].prefix):
                return
        options = ConvertOptions(shard_size=4096, workers=0, source=KINDS[held.kind].options)

        def action() -> object:
            return append(held.path, sources, options if other is None else replace(options, source=SourceOptions()))

        if {key for key, _ in samples} & set(held.keys):
            with self.watched(), refused():
                action()
            return
        before = len(PackedDataset(held.path).manifest.shards)
        new = replace(held, samples=held.samples + samples)
        if other is not None:
            splits = {name: keys | held.splits.get(name, frozenset()) for name, keys in more.splits.items()}
            new = replace(new, splits=held.splits | splits, shuffled=held.shuffled or more.shuffled)
        with self.watched():
            if kill is None:
                action()
            elif kill_at_step(action, kill):
                left = found_in(held.path)
                assert left in (held.items(), new.items()), "neither old nor new"
                if left == held.items() or list(held.path.glob("unfinished/????????.json")):
                    action()
            shards = len(PackedDataset(held.path).manifest.shards) - before
            parts = None if other is not None or held.parts is None else (*held.parts, (sources, shards))
            self.held[held.path] = replace(new, parts=parts)

    @precondition(lambda self: len(self.held) > 1)
    @rule(first=st.integers(0), second=st.integers(0), kill=KILLS)
    def merge(self, first: int, second: int, kill: int | None) -> None:
        """Merge two datasets; refused unless they are stored alike and share no name."""
        one, path = self.pick(first), self.new_path("d")
        others = [held for held in self.held.values() if held is not one]
        if second % 4:  # else any two, which are usually refused
            others = [h for h in others if fields_of(h) == fields_of(one) and not set(h.keys) & set(one.keys)]
        if not others:
            return
        two = others[second % len(others)]
        shared = bool(set(one.keys) & set(two.keys))
        if shared and not KINDS[one.kind].prefix:
            return
        if shared or fields_of(one) != fields_of(two):
            with self.watched(), refused():
                merge([one.path, two.path], path)
            return
        splits = {
            name: one.splits.get(name, frozenset()) | two.splits.get(name, frozenset())
            for name in {*one.splits, *two.splits}
        }
        new = Held(path, one.kind, one.samples + two.samples, splits, shuffled=one.shuffled or two.shuffled)
        self.make(new, lambda: merge([one.path, two.path], path), kill)
        if one.parts is not None and two.parts is not None:
            self.held[path] = replace(self.held[path], parts=one.parts + two.parts)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0), step=st.integers(1, 4), name=st.sampled_from(["train", "test"]), kill=KILLS)
    def split(self, number: int, step: int, name: str, kill: int | None) -> None:
        """Make or change a split, or drop it."""
        held = self.pick(number)
        drops = name in held.splits and step == 4
        chosen = range(0, len(held.samples), step)
        named = [held.keys[n] for n in chosen] if KINDS[held.kind].prefix else list(chosen)
        splits = {one: keys for one, keys in held.splits.items() if one != name}
        if not drops:
            splits[name] = frozenset(held.keys[n] for n in chosen)
        with self.watched():

            def action() -> object:
                return split(held.path, {name: None if drops else named})

            if kill is None:
                action()
            elif kill_at_step(action, kill):
                left = PackedDataset(held.path).manifest.splits
                assert set(left) in (set(held.splits), set(splits))
                with suppress(*([UsageError] if drops else [])):  # dropped already
                    action()
            self.held[held.path] = replace(held, splits=splits)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0), codec=st.integers(0), shuffled=st.booleans(), in_place=st.booleans(), kill=KILLS)
    def repack(self, number: int, codec: int, shuffled: bool, in_place: bool, kill: int | None) -> None:
        """Repack with another codec, also in another order; samples, names, splits and constants stay."""
        held = self.pick(number)
        path = held.path if in_place else self.new_path("d")
        codecs = KINDS[held.kind].codecs
        options = ConvertOptions(shard_size=8192, workers=0, overwrite=in_place)

        def action(out: Path = path, options: ConvertOptions = options) -> object:
            seed = 1 if shuffled else None
            return repack(held.path, out, options, codec=codecs[codec % len(codecs)], seed=seed)

        new = replace(held, path=path, shuffled=held.shuffled or shuffled)
        if shuffled:
            new = self.in_order_of(new, action)
        if in_place and shuffled:
            kill = None  # the second run would shuffle again
        self.make(new, action, kill)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0), kill=KILLS)
    def join_and_drop(self, number: int, kill: int | None) -> None:
        """A field is joined to the samples that are there, and dropped again; shards cannot be repaired then."""
        held = self.pick(number)
        later = [{"later": np.int64(n)} for n in range(len(held.samples))]
        values = [own | {"later": bits(one["later"])} for (_, own), one in zip(held.samples, later, strict=True)]
        joined = replace(held, samples=tuple(zip(held.keys, values, strict=True)))
        self.make(joined, lambda: join(held.path, later), kill)
        self.make(held, lambda: drop(held.path, ["later"], workers=0), kill)

    def in_order_of(self, held: Held, action: Callable[..., object]) -> Held:
        """Return the samples in the order that a verb gives them, which may be any permutation."""
        beside = self.new_path("beside")
        action(beside, ConvertOptions(shard_size=8192, workers=0))
        found, values = items_of([PackedDataset(beside)[:]]), {told(v): (k, v) for k, v in held.samples}
        shutil.rmtree(beside)
        assert sorted(map(told, found)) == sorted(values)
        return replace(held, samples=tuple(values[told(item)] for item in found))

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0), kill=KILLS)
    def export_and_convert(self, number: int, kill: int | None) -> None:
        """Exported files convert to the same samples again."""
        held, out = self.pick(number), self.new_path("out")
        kind = KINDS[held.kind]
        with self.watched():
            if kill is None or kill_at_step(lambda: export(held.path, out), kill):
                export(held.path, out, overwrite=kill is not None)
        if held.kind == "groups" and held.shuffled:
            return
        sources, path = [str(out / kind.again)], self.new_path("d")
        options = ConvertOptions(codec="zstd", shard_size=4096, workers=0, source=kind.options)
        convert(sources, path, options)
        found, known = found_in(path) or [], {told(values): key for key, values in held.samples}
        assert sorted(map(told, found)) == sorted(known)
        keys = [known[told(values)] for values in found]
        if kind.prefix:  # with several files, names begin with the name of the file
            names = list(PackedDataset(path).names or ())
            assert not [(name, key) for name, key in zip(names, keys, strict=True) if not name.endswith(key)]
            keys = names
        samples = tuple(zip(keys, found, strict=True))
        shutil.rmtree(path)
        self.make(Held(path, held.kind, samples), lambda: convert(sources, path, options), kill, sources)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0), which=st.integers(0), at=st.integers(0), kill=KILLS)
    def damage_and_repair(self, number: int, which: int, at: int, kill: int | None) -> None:
        """A changed byte is found in its file, no wrong value is read, and `repair` restores the file."""
        held = self.pick(number)
        manifest = PackedDataset(held.path).manifest
        shards = [entry.file for entry in manifest.shards]
        files = shards + [entry.file for entry in (manifest.names, manifest.constants) if entry]
        file = files[which % len(files)]
        path = held.path / file
        whole = path.read_bytes()
        place = at % len(whole)
        path.unlink()  # merged datasets share files
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << at % 8]) + whole[place + 1 :])
        assert {damage.file for damage in verify(held.path).damages} == {file}
        with suppress(PackerError):
            assert items_of([PackedDataset(held.path, verify=True)[:]]) == held.items()
        part = self.part_of(held, shards.index(file) if file in shards else 0)
        needs_source = manifest.names is None or file != manifest.names.file
        if needs_source and part is None:
            path.write_bytes(whole)
        else:
            options = ConvertOptions(source=KINDS[held.kind].options)

            def action() -> object:
                return repair(held.path, open_source(part, options, []) if needs_source else None)

            if kill is None or kill_at_step(action, kill):
                action()
        after = PackedDataset(held.path).manifest
        assert [entry.digest for entry in after.shards] == [entry.digest for entry in manifest.shards]
        check(held)

    def part_of(self, held: Held, shard: int) -> list[str] | None:
        """Return the sources of a shard."""
        for sources, shards in held.parts or ():
            if shard < shards:
                return sources
            shard -= shards
        return None

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0), kill=KILLS)
    def lose_the_manifest(self, number: int, kill: int | None) -> None:
        """A lost manifest is taken from its copy."""
        held = self.pick(number)
        (held.path / "manifest.json").unlink()
        assert found_in(held.path) is None
        if kill is None or kill_at_step(lambda: repair(held.path), kill):
            repair(held.path)
        check(held)

    @precondition(lambda self: len(self.held) > 4)
    @rule(number=st.integers(0))
    def remove(self, number: int) -> None:
        """Datasets do not depend on each other: one can be removed."""
        held = self.held.pop(self.pick(number).path)
        shutil.rmtree(held.path)
        with self.watched():
            pass


@contextmanager
def refused() -> Iterator[None]:
    """Expect that a verb raises UsageError."""
    try:
        yield
    except UsageError:
        return
    raise AssertionError("it was not refused")


def run(folder: Path, examples: int, steps: int, seed: int) -> None:
    """Run `examples` random lists of `steps` verbs in a folder."""
    settings = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=PHASES,
    )
    run_state_machine_as_test(hypothesis.seed(seed)(partial(Verbs, folder)), settings=settings)


def trial(folder: Path, seed: int) -> str:
    """Run ten lists of thirty verbs."""
    run(folder, 10, 30, seed)
    return "as the model says"
