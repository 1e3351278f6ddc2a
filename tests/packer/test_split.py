"""Splits: made while converting or later, by fraction, list and pattern, and kept by what changes a dataset."""

from __future__ import annotations

import tracemalloc
from functools import partial

import numpy as np
import pytest
from broken import cut, stopped_at
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from packer.append import append
from packer.convert import convert
from packer.errors import UsageError, WriteError
from packer.format import LOCK, FieldSpec, number_ranges
from packer.format import manifest as manifests
from packer.packing import Change, LocalPlace, Samples, changing, make_splits, parse_rules, share_out, split_text
from packer.repack import repack
from packer.sources import SampleSource, SourceOptions
from packer.split import split
from packer.writer import DatasetWriter
from readers import PackedDataset


def pack(folder, names, first=0):
    """A dataset of one number a sample, with these names or so many samples without any."""
    with DatasetWriter(folder, codec="none") as writer:
        for n, name in enumerate(range(names) if isinstance(names, int) else names):
            writer.add({"y": np.int64(first + n)}, name=None if isinstance(names, int) else name)
    return folder


def held(folder):
    """Numbers of the samples of each split."""
    manifest = manifests.read(folder)
    return {name: manifest.split(name).tolist() for name in manifest.splits}


def named(folder):
    """Names of the samples of each split, as a set."""
    names = PackedDataset(folder).names
    return {name: {names[number] for number in numbers} for name, numbers in held(folder).items()}


# ---------------------------------------------------------------- names, fractions and patterns


@pytest.mark.parametrize(
    ("names", "rules", "numbers"),
    [
        (["0001", "0002", "1", "x"], {"demo": "0001", "one": "1"}, {"demo": [0], "one": [2]}),
        (["0001", "0002", "1", "x"], {"all": "1.0"}, {"all": [0, 1, 2, 3]}),
        (["a", "b"], {"half": ".5", "rest": 0.5}, {"half": [1], "rest": [0]}),
        (["v/a/1", "v/2", "t/3"], {"v": "v/*", "one": ["v/2"], "3": "*3"}, {"v": [0, 1], "one": [1], "3": [2]}),
        (["a1", "a[1]", "b?", "bc"], {"a": "a[1]", "b": "b?", "both": "a[[]*"}, {"a": [1], "b": [2], "both": [1]}),
    ],
)
def test_names_come_before_patterns_and_a_fraction_has_a_point(tmp_path, names, rules, numbers):
    """Text is a name if there is one, digits with a point are a fraction, all else fits whole names; * fits folders."""
    folder = pack(tmp_path / "d", names)
    split(folder, rules)
    assert held(folder) == numbers


@pytest.mark.parametrize("names", [30, ["0001", "0002"]])
def test_digits_that_are_no_name_are_refused(tmp_path, names):
    """The error shows how a fraction is written, also where samples have no names; no split is made."""
    folder = pack(tmp_path / "d", names)
    for rule in ("1", "0", "7"):
        with pytest.raises(UsageError, match=r"a fraction .*point, such as 0\.9 or 1\.0"):
            split(folder, {"demo": rule})
    with pytest.raises(UsageError, match=r"point, such as 0\.9 or 1\.0"):
        convert([{"x": 1}] * 3, tmp_path / "new", splits={"demo": "1"})
    assert held(folder) == {}


# ---------------------------------------------------------------- fractions


@given(
    count=st.integers(1, 200),
    fractions=st.lists(st.floats(0.01, 1), min_size=1, max_size=4).map(lambda f: [x / max(sum(f), 1) for x in f]),
    seed=st.integers(0, 2**64 - 1),
    has_names=st.booleans(),
)
@settings(max_examples=60)
def test_fractions_are_disjoint_and_as_large_as_asked(count, fractions, seed, has_names):
    """Each split has its part of the samples to within one, and no sample is in two."""
    samples = Samples(count, [f"s{n}" for n in range(count)] if has_names else None, {})
    rules = parse_rules({str(n): fraction for n, fraction in enumerate(fractions)})
    made = share_out(rules, samples, seed=seed, lenient=True)
    numbers = {name: manifests.range_numbers(ranges) for name, ranges in made.items()}
    for name, fraction in rules.items():
        assert abs(len(numbers[name]) - fraction * count) <= 1.001
    together = np.concatenate(list(numbers.values()))
    assert len(np.unique(together)) == len(together)


def test_a_fraction_goes_by_name_and_seed_alone(tmp_path):
    """The order of the samples, shards and workers change nothing; another seed gives another choice."""
    names = [f"img{n}" for n in range(50)]
    a, b = pack(tmp_path / "a", names), pack(tmp_path / "b", names[::-1])
    for folder in (a, b):
        split(folder, {"train": 0.8, "valid": 0.2})
    assert named(a) == named(b)
    assert [len(numbers) for numbers in held(a).values()] == [40, 10]
    before = held(a)
    split(a, {"train": 0.8, "valid": 0.2}, seed=1)
    assert held(a) != before


def test_fractions_are_the_same_on_every_machine(tmp_path):
    """What they choose is written down here: of samples with names, and of samples with numbers alone."""
    assert share_out({"v": 0.3}, Samples(10, [f"img{n}" for n in range(10)], {})) == {"v": ((1, 2), (4, 5), (9, 10))}
    assert share_out({"v": 0.3}, Samples(10, None, {})) == {"v": ((1, 4),)}


def test_fractions_share_out_what_is_in_no_other_split(tmp_path):
    """Samples of a list, or of a split made before, are in no fraction; a fraction is made anew by its name."""
    folder = pack(tmp_path / "a", [f"s{n}" for n in range(20)])
    split(folder, {"test": ["s3", "s4"]})
    split(folder, {"train": 0.5, "valid": 0.5})
    found = held(folder)
    assert found["test"] == [3, 4]
    assert sorted(found["train"] + found["valid"]) == [n for n in range(20) if n not in (3, 4)]
    split(folder, {"train": 1.0, "valid": None})
    assert set(held(folder)) == {"test", "train"}
    assert len(held(folder)["train"]) == 18
    split(folder, {"test": None, "train": None})
    assert held(folder) == {}


def test_a_split_that_is_not_there_cannot_be_dropped(tmp_path):
    """The message names those that are."""
    folder = pack(tmp_path / "a", ["s0", "s1"])
    split(folder, {"train": 1.0})
    with pytest.raises(UsageError, match="there is no split 'trian' to drop; splits are train"):
        split(folder, {"trian": None})


def test_folders_stay_whole(tmp_path):
    """By folder, all samples of one folder are in one split."""
    names = [f"clip{n // 4}/{n % 4}" for n in range(80)]
    folder = pack(tmp_path / "a", names)
    split(folder, {"train": 0.75, "valid": 0.25}, by="folder")
    found = named(folder)
    folders = {name: {sample.split("/")[0] for sample in samples} for name, samples in found.items()}
    assert {name: len(clips) for name, clips in folders.items()} == {"train": 15, "valid": 5}
    assert not folders["train"] & folders["valid"]


def test_squares_of_one_picture_stay_together(tmp_path):
    """With --patch a picture is the unit, so that no split has a part of what another one has."""
    rng = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    for n in range(10):
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(tmp_path / "in" / f"p{n}.png")
    rules = {"train": 0.8, "valid": 0.2}
    out = convert(tmp_path / "in", tmp_path / "out", source=SourceOptions(patch=8), workers=0, splits=rules).path
    pictures = {name: {square.split("_")[0] for square in squares} for name, squares in named(out).items()}
    assert {name: len(found) for name, found in pictures.items()} == {"train": 8, "valid": 2}
    assert not pictures["train"] & pictures["valid"]


def test_of_many_samples_runs_of_neighbours_are_shared_out():
    """The manifest stays of a moderate size, whatever the number of samples."""
    made = share_out({"train": 0.5}, Samples(1_500_000, None, {}))
    assert len(made["train"]) < 250_000
    assert sum(stop - start for start, stop in made["train"]) == pytest.approx(750_000, abs=20)


def test_splits_that_nobody_asked_for_cost_nothing():
    """Without rules there is no memory for each sample: of so many, one byte each would be refused."""
    many = Samples(2**60, None, {})
    assert make_splits(many, None, {}, lenient=False) == {}
    assert share_out({}, many, others={"a": ((0, 5),)}) == {"a": ((0, 5),)}
    assert split_text({}, 2**60) == f"{2**60:,} in none"


@given(st.lists(st.lists(st.integers(0, 30), unique=True), max_size=4), st.integers(31, 40))
def test_samples_in_none_and_in_several_are_counted(lists, total):
    """A line says how many samples each split holds, and how many are in no split or in more than one."""
    held = {f"s{number}": number_ranges(np.sort(np.array(some, np.int64))) for number, some in enumerate(lists)}
    times = [sum(number in some for some in lists) for number in range(total)]
    wanted = [f"s{number} {len(some)}" for number, some in enumerate(lists)]
    wanted += [f"{count} in none" for count in [times.count(0)] if count]
    wanted += [f"{count} in several" for count in [sum(n > 1 for n in times)] if count]
    assert split_text(held, total) == ", ".join(wanted)


# ---------------------------------------------------------------- lists and patterns


def test_a_list_holds_names_or_lines_of_basicsr(tmp_path):
    """A line is a name, or begins with one; the ending of a file may stand there, and blank lines count for nothing."""
    folder = pack(tmp_path / "a", ["0001", "a/0002", "two words", "x.y", "last"])
    lines = tmp_path / "list.txt"
    lines.write_text("\ufeff0001.png (480,480,3) 1\n\na/0002\ntwo words\r\nx.y (3,3) 1\n0001\n")
    split(folder, {"train": f"@{lines}"})
    assert held(folder) == {"train": [0, 1, 2, 3]}


def test_unknown_names_of_a_list_are_an_error(tmp_path):
    """The error counts them and shows a few; nothing has changed."""
    folder = pack(tmp_path / "a", ["s0", "s1"])
    lines = tmp_path / "list.txt"
    lines.write_text("s0\n" + "\n".join(f"t{n}.png" for n in range(9)))
    with pytest.raises(
        UsageError, match=r"'train': 9 in its list are not samples: 't0.png', .*'t4.png' and 4 more; .*'s0'"
    ):
        split(folder, {"train": f"@{lines}"})
    assert held(folder) == {}


def test_samples_without_names_are_listed_by_number(rows, tmp_path):
    """Lines of a list are numbers then, in Python too."""
    lines = tmp_path / "list.txt"
    lines.write_text("5\n3\n")
    asked = {"train": f"@{lines}", "valid": np.array([399, 0])}
    out = convert(rows.sources, tmp_path / "out", workers=0, splits=asked).path
    assert held(out) == {"train": [3, 5], "valid": [0, 399]}
    with pytest.raises(UsageError, match="not samples: 400; samples have the numbers 0 to 399"):
        split(out, {"train": [400]})
    for mask in (np.arange(400) < 200, list(np.arange(400) < 200), [0.5], [np.float32(0.5)]):
        with pytest.raises(UsageError, match=r"not samples: (np\.)?(True_?|0\.5|float32\(0\.5\))"):
            split(out, {"train": mask})
    with pytest.raises(UsageError, match="no names; give a fraction"):
        split(out, {"train": "a*"})
    with pytest.raises(UsageError, match="no names, so their folders"):
        split(out, {"train": 0.5}, by="folder")


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"train": 0.8, "valid": 0.3}, "fractions of train, valid are 0.8 . 0.3, more than 1"),
        ({"train": 1.5}, "between 0 and 1"),
        ({"train": "-0.5"}, "between 0 and 1"),
        ({"train": 0.0}, "between 0 and 1"),
        ({"": 0.5}, "has no name"),
        ({"train": ""}, "'train' has no rule"),
        ({"train": "@nowhere.txt"}, "nowhere.txt cannot be read: No such file"),
        ({"train": "none/*"}, "'train' would hold no sample: no name fits 'none/"),
        ({"train": []}, "'train' would hold no sample: its list names none"),
        (
            {"train": 0.999, "valid": 0.001},
            "'valid' would hold no sample: 0.001 of 4 samples that are in no other split",
        ),
    ],
)
def test_splits_that_cannot_be(tmp_path, rules, said):
    """The error says which split and why, before anything is packed, and when a dataset is split later."""
    folder = pack(tmp_path / "a", ["a", "b", "c", "d"])
    with pytest.raises(UsageError, match=said):
        split(folder, rules)
    with pytest.raises(UsageError, match=said):
        repack(folder, tmp_path / "out", workers=0, splits=rules)
    assert not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match="seed"):
        split(folder, {"train": 0.5}, seed=-1)
    with pytest.raises(UsageError, match=r"0\.001 of 4 samples in folders that stay whole rounds to none"):
        split(folder, {"train": 0.999, "valid": 0.001}, by="folder")
    with pytest.raises(UsageError, match="by='file'"):
        split(folder, {"train": 0.5}, by="file")


# ---------------------------------------------------------------- convert


def test_converting_with_splits_is_converting_and_splitting(pairs, tmp_path):
    """The same rules make the same splits, then and later, with workers or without."""
    rules = {"test": [pairs.names[1]], "train": 0.9, "valid": 0.1}
    out = convert(pairs.sources, tmp_path / "a", workers=2, shard_size=4096, splits=rules).path
    plain = convert(pairs.sources, tmp_path / "b", workers=0).path
    assert held(plain) == {}
    split(plain, rules)
    assert held(out) == held(plain)
    assert held(out)["test"] == [1]


def test_bad_samples_are_in_no_split(pairs, tmp_path):
    """What is skipped moves the numbers of the others; a list may still name it."""
    cut(pairs.folder / "lr" / f"{pairs.names[2]}.png")
    rules = {"train": pairs.names[:4], "rest": 1.0}
    report = convert(pairs.sources, tmp_path / "a", workers=0, on_error="skip", splits=rules)
    assert len(report.rejected) == 1
    assert held(report.path) == {"train": [0, 1, 2], "rest": list(range(3, 11))}
    with pytest.raises(UsageError, match="these shift when bad samples"):
        convert(pairs.sources, tmp_path / "b", workers=0, on_error="skip", splits={"train": [1, 2]})


class Known(SampleSource):
    """Samples that know their splits."""

    names = ("a", "b", "c")
    splits = {"train": ["c", "a", "gone"], "empty": []}  # noqa: RUF012

    def slice(self, start, stop):
        return self


def test_splits_that_a_source_knows(tmp_path):
    """They are kept where the user asks for none; samples that are not packed are passed over."""
    samples = [{"y": np.int64(n)} for n in range(3)]
    assert held(convert(Known(samples), tmp_path / "a", workers=0).path) == {"train": [0, 2], "empty": []}
    own = convert(Known(samples), tmp_path / "b", workers=0, splits={"all": 1.0}).path
    assert held(own) == {"all": [0, 1, 2]}


def test_an_unfinished_conversion_goes_on_with_other_splits(rows, tmp_path):
    """The shards are the same: they are kept, and the splits are those that were asked for last."""
    begun = partial(convert, rows.sources, tmp_path / "out", workers=0, splits={"train": 0.5})
    stopped_at(begun, Change, "publish")
    report = convert(rows.sources, tmp_path / "out", workers=0, splits={"train": 0.6})
    assert report.kept_shards
    assert len(held(report.path)["train"]) == 240


# ---------------------------------------------------------------- what changes a dataset


def test_appended_samples_are_in_the_splits_asked_for_or_their_own(tmp_path):
    """Splits of one name become one; without any the new samples are in none."""
    a, b, c = (pack(tmp_path / x, [f"{x}{n}" for n in range(4)]) for x in "abc")
    split(a, {"train": ["a0", "a3"]})
    split(b, {"train": ["b0"], "valid": ["b1"]})
    append(a, b, workers=0)
    assert held(a) == {"train": [0, 3, 4], "valid": [5]}
    append(a, c, workers=0, splits={"valid": "c*"})
    assert held(a) == {"train": [0, 3, 4], "valid": [5, 8, 9, 10, 11]}
    append(a, pack(tmp_path / "d", ["d0"]), workers=0)
    assert held(a) == {"train": [0, 3, 4], "valid": [5, 8, 9, 10, 11]}


@pytest.mark.parametrize("names", [30, [f"s{n}" for n in range(30)]])
def test_repacked_samples_stay_in_their_splits(tmp_path, names):
    """In whatever order the samples come to be; other splits may be asked for."""
    a = pack(tmp_path / "a", names)
    split(a, {"train": 0.6, "valid": 0.4})
    before = {name: set(numbers) for name, numbers in held(a).items()}
    repack(a, tmp_path / "b", seed=3, workers=0)
    values = PackedDataset(tmp_path / "b")[list(range(30))]["y"].numpy()
    assert not (values == np.arange(30)).all()
    assert {name: set(values[numbers].tolist()) for name, numbers in held(tmp_path / "b").items()} == before
    repack(a, tmp_path / "c", workers=0, splits={"all": 1})
    assert held(tmp_path / "c") == {"all": list(range(30))}


def test_splitting_waits_for_nobody_and_breaks_nothing(tmp_path, monkeypatch):
    """A dataset that is being changed is refused; a manifest that cannot be written leaves the old one."""
    folder = pack(tmp_path / "a", 4)
    with changing(LocalPlace(folder)), pytest.raises(UsageError, match="being changed"):
        split(folder, {"train": 0.5})

    def full(*_):
        raise OSError(28, "No space left on device")

    before = (folder / "manifest.json").read_bytes()
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(WriteError, match="No space left"):
        split(folder, {"train": 0.5})
    assert (folder / "manifest.json").read_bytes() == before
    assert {path.name for path in folder.iterdir()} == {LOCK, "manifest.json", "manifest.copy.json", "shards"}


# ---------------------------------------------------------------- conditions


#: What cannot be compared with, or was understood otherwise once.
NO_NUMBERS = (
    *(
        "< many",
        "== 'cat'",
        "== (3, 7)",
        "< (3, 7)",
        "in (3, 7)",
        "in 3,",
        "== None",
        "in ()",
        "== {3}",
        "==",
        "== nan",
    ),
    *("== 1_0", "== 0x3", "< 3 and label > 1", "in 3,7 and price < 2", "== True", "not in 3", "< __import__('os')"),
)


@pytest.fixture
def photographs(tmp_path):
    """Twelve images of widths 4 to 15 and clouds of 0 to 11 points, with a label, a price and a caption."""
    fields = [
        FieldSpec(name="image", dtype="uint8", kind="image", shape=(None, None, 3)),
        FieldSpec(name="xyz", dtype="float32", shape=(None, 3)),
        FieldSpec(name="label", dtype="int64"),
        FieldSpec(name="price", dtype="float32"),
        FieldSpec(name="caption", dtype="uint8", kind="text", shape=(None,)),
    ]
    with DatasetWriter(tmp_path / "d", fields, codec="none") as writer:
        for n in range(12):
            image, points = np.zeros((5 + n % 2, 4 + n, 3), np.uint8), np.zeros((n, 3), np.float32)
            one = {
                "image": image,
                "xyz": points,
                "label": np.int64(n % 4),
                "price": np.float32(2.1 if n == 5 else n / 2),
            }
            writer.add({**one, "caption": f"t{n % 3}"}, name=f"n{n}")
    return tmp_path / "d"


@pytest.mark.parametrize(
    ("rule", "numbers"),
    [
        ("width < 7", [0, 1, 2]),
        ("image.width>=14", [10, 11]),
        ("height == 6", [1, 3, 5, 7, 9, 11]),
        ("length > 9", [10, 11]),
        ("height in 6,7", [1, 3, 5, 7, 9, 11]),
        ("label in 3,1", [1, 3, 5, 7, 9, 11]),
        ("label in 3 , 99999999999999999999", [3, 7, 11]),
        ("label != 0", [1, 2, 3, 5, 6, 7, 9, 10, 11]),
        ("price == 2.1", [5]),
        ("price <= 5e-1", [0, 1]),
        ("caption in t1,t2", [1, 2, 4, 5, 7, 8, 10, 11]),
    ],
)
def test_conditions_take_samples_by_their_values(photographs, rule, numbers):
    """Fields of one value, and sizes of images and arrays, are compared with a value or several."""
    split(photographs, {"some": rule, "rest": 1.0})
    found = held(photographs)
    assert found["some"] == numbers
    assert found["rest"] == [n for n in range(12) if n not in numbers]


def test_one_long_text_takes_no_memory_of_all_others(tmp_path):
    """Texts are compared one by one: an array of them has as many places in each as the longest has characters."""
    texts = ["a", "b"] * 200 + ["c" * 2**20]
    with DatasetWriter(tmp_path / "d") as writer:
        for text in texts:
            writer.add({"text": text})
    tracemalloc.start()
    split(tmp_path / "d", {"some": "text in b,x"})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held(tmp_path / "d")["some"] == list(range(1, 400, 2))
    assert most < 100 * 2**20


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("size < 3", "has no field 'size'"),
        ("xyz < 3", "split by xyz: a sample has array float32"),
        ("caption < 3", "caption is text; a condition is FIELD < NUMBER .* or FIELD in A,B"),
        ("caption == t1", "caption is text"),
        *(
            (f"label {rest}", r"(no number|has `not in`); .* packer\.split\.split\('.*d', {'small': numbers}\)")
            for rest in NO_NUMBERS
        ),
        ("xyz.width < 3", r"split by xyz.width: give one of image.width"),
        ("__import__('os') < 3", "has no field"),
        ("width > 99", "would hold no sample"),
    ],
)
def test_conditions_that_cannot_be_are_refused(photographs, rule, message):
    """The field, the comparison or the value at fault is named, and nothing is run as code."""
    with pytest.raises(UsageError, match=message):
        split(photographs, {"some": rule})
    assert held(photographs) == {}


def test_classes_are_compared_by_name(tmp_path):
    """Where a dataset has classes, a condition on `label` may name them."""
    for name in ("cat", "dog"):
        (tmp_path / "in" / name).mkdir(parents=True)
        for n in range(3):
            Image.new("RGB", (4, 4), (n, 0, 0)).save(tmp_path / "in" / name / f"{n}.png")
    convert(tmp_path / "in", tmp_path / "d", source=SourceOptions(label="folder"), workers=0)
    split(tmp_path / "d", {"dogs": "label in dog"})
    assert named(tmp_path / "d") == {"dogs": {"dog/0", "dog/1", "dog/2"}}
