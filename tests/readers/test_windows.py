"""Windows: what they hold is what slicing the episodes gives, and they are shuffled, shared and resumed as samples."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from packer.codecs import NAMED
from packer.errors import UsageError
from packer.format import Field, FrameRule
from packer.writer import DatasetWriter
from readers import Crop, Loader, Mix, PackedDataset, Windows
from readers.draws import Asked
from readers.source import source_of

Offsets = Mapping[str, Sequence[int]]
Episode = dict[str, NDArray[Any]]

RULES = (FrameRule(samples=1), FrameRule(samples=3), FrameRule(rows=1), FrameRule(rows=4))


def _episode(number: int, steps: int) -> Episode:
    """Steps that hold the number of their episode and their own; one observation more than actions."""
    step = np.arange(steps + 1)
    return {
        "obs": (step[:, None, None, None] * 10 + np.arange(12).reshape(2, 2, 3) % 7 + number).astype(np.uint8),
        "actions": (step[:steps, None] + 100.0 * number + np.arange(3) / 4).astype(np.float32),
        "label": np.int64(number),
    }


def _fields(codec: str, rule: FrameRule) -> list[Field]:
    stored: dict[str, Any] = {"codec": NAMED[codec], "frame": rule}
    return [
        Field(name="obs", dtype="uint8", shape=(None, 2, 2, 3), **stored),
        Field(name="actions", dtype="float32", shape=(None, 3), **stored),
        Field(name="label", dtype="int64"),
    ]


def _packed(
    pack: Any, folder: Path, lengths: Sequence[int], codec: str = "none", rule: FrameRule = RULES[0], shards: int = 2
) -> tuple[Path, list[Episode]]:
    episodes = [_episode(i, steps) for i, steps in enumerate(lengths)]
    edges = np.linspace(0, len(episodes), shards + 1).astype(int)
    parts = [episodes[a:b] for a, b in itertools.pairwise(edges)]
    path: Path = pack(folder / "p", _fields(codec, rule), parts, [f"e/{i}" for i in range(len(episodes))])
    return path, episodes


def _anchors(episode: Episode, offsets: Offsets, windows: Windows) -> list[int]:
    lengths = {name: len(episode[name]) for name in offsets}

    def is_one(anchor: int) -> bool:
        reached = {name: [anchor, *(anchor + o * windows.step for o in own)] for name, own in offsets.items()}
        before = 0 if windows.pad is None and windows.pad_before is None else windows.pad_before
        after = 0 if windows.pad is None and windows.pad_after is None else windows.pad_after
        starts = anchor >= 0 if before is None else min(map(min, reached.values())) >= -before
        if after is None:
            return starts and all(anchor < length for length in lengths.values())
        return starts and all(max(reached[name]) < length + after for name, length in lengths.items())

    stepped = [anchor for anchor in range(-60, 60) if anchor % windows.stride == 0]
    return [anchor for anchor in stepped if is_one(anchor)] if min(lengths.values()) else []


def _window(episode: Episode, offsets: Offsets, windows: Windows, anchor: int) -> dict[str, NDArray[Any]]:
    """What a window is to hold, step by step."""
    out: dict[str, NDArray[Any]] = {"label": episode["label"]}
    for name, own in offsets.items():
        values = episode[name]
        steps = [anchor + o * windows.step for o in own]
        beyond = [not 0 <= step < len(values) for step in steps]
        window = [values[min(max(step, 0), len(values) - 1)] for step in steps]
        if windows.pad == "zero":
            window = [value * (not outside) for value, outside in zip(window, beyond, strict=True)]
        out[name] = np.stack(window)
        if windows.pad or windows.pad_before is not None or windows.pad_after is not None:
            out[name + "_is_pad"] = np.array(beyond)
    return out


def _all_windows(episodes: Sequence[Episode], windows: Windows) -> list[dict[str, NDArray[Any]]]:
    steps = windows.steps
    offsets = {"obs": range(steps), "actions": range(steps)} if isinstance(steps, int) else dict(steps)
    return [
        _window(episode, offsets, windows, anchor)
        for episode in episodes
        for anchor in _anchors(episode, offsets, windows)
    ]


def _assert_equal(batch: Mapping[str, Any], wanted: Sequence[Mapping[str, NDArray[Any]]]) -> None:
    names = wanted[0].keys() if wanted else ()
    for name in names:
        values = np.stack([window[name] for window in wanted])
        assert batch[name].numpy().dtype == values.dtype
        assert np.array_equal(batch[name].numpy(), values)
    assert not wanted or set(batch) - {"obs", "actions"} <= set(names)


@dataclass(frozen=True)
class Case:
    """Episodes, how they are stored, and the windows asked for."""

    lengths: list[int]
    codec: str
    rule: FrameRule
    shards: int
    windows: Windows


_OFFSETS = st.lists(st.integers(-6, 6), min_size=1, max_size=5)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    steps: Any = draw(
        st.integers(1, 5) | st.fixed_dictionaries({"actions": _OFFSETS}, optional={"obs": _OFFSETS | st.just([0, 1])})
    )
    step = draw(st.integers(1, 3))
    reached = {0, steps - 1} if isinstance(steps, int) else {0, *itertools.chain(*steps.values())}
    outside = st.none() | st.integers(0, (max(reached) - min(reached)) * step)
    windows = Windows(
        steps,
        stride=np.int32(draw(st.integers(1, 5))),  # whole numbers of numpy are as good  # type: ignore[arg-type]
        step=step,
        pad=draw(st.sampled_from([None, "edge", "zero"])),
        pad_before=draw(outside),
        pad_after=draw(outside),
    )
    codec = draw(st.sampled_from(["none", "lz4", "bitshuffle", "zstd"]))
    lengths = draw(st.lists(st.integers(0, 12), min_size=1, max_size=7))
    return Case(lengths, codec, draw(st.sampled_from(RULES)), draw(st.integers(1, 3)), windows)


@settings(max_examples=40)
@given(case=_cases(), seed=st.integers(0, 9))
@example(case=Case([5, 3], "none", RULES[0], 1, Windows({"actions": [-2]})), seed=0)
@example(case=Case([3, 0, 2], "none", RULES[0], 1, Windows(8, pad_before=7, pad_after=7)), seed=0)
def test_windows_are_slices_of_the_episodes(pack: Any, case: Case, seed: int) -> None:
    """All windows, episode by episode and anchor by anchor, whatever the lengths, offsets, codec, bands and shards."""
    with tempfile.TemporaryDirectory() as folder:
        path, episodes = _packed(pack, Path(folder), case.lengths, case.codec, case.rule, case.shards)
        ds = PackedDataset(path, windows=case.windows, verify=seed == 0)
        wanted = _all_windows(episodes, case.windows)
        assert len(ds) == len(wanted)
        numbers = np.random.default_rng(seed).permutation(np.arange(len(ds)).repeat(2))
        _assert_equal(ds[numbers], [wanted[i] for i in numbers])
        for batch, at in zip(Loader(ds, 4), range(0, len(ds), 4), strict=True):
            _assert_equal(batch, wanted[at : at + 4])


@pytest.fixture(scope="module")
def packed_episodes(pack: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Episode]]:
    """Nine episodes, compressed, in two shards, named `e/0` to `e/8`."""
    return _packed(pack, tmp_path_factory.mktemp("w"), [9, 3, 0, 12, 5, 1, 8, 20, 4], "zstd", FrameRule(rows=2))


def test_only_touched_frames_are_decoded_each_once(pack: Any, tmp_path: Path, decoded: list[int]) -> None:
    """Windows that lie over each other share frames: of bands of two steps, those of the steps 2 to 6 take three."""
    fields = [Field(name="x", dtype="int64", shape=(None, 32), codec=NAMED["zstd"], frame=FrameRule(rows=2))]
    values = np.arange(20).repeat(32).reshape(20, 32)
    ds = PackedDataset(pack(tmp_path / "p", fields, [[{"x": values}]]), windows=Windows(3))
    assert np.array_equal(ds[[2, 4, 3]]["x"], np.stack([values[a : a + 3] for a in (2, 4, 3)]))
    assert decoded == [2 * 32 * 8] * 3


def test_steps_of_clips_are_decoded_one_by_one(tmp_path: Path, decoded: list[int]) -> None:
    """Large steps are packed in frames of their own: a window, or a crop of it, decodes no others."""
    values = np.arange(9, dtype=np.uint8).repeat(90 * 70 * 3).reshape(9, 90, 70, 3)
    with DatasetWriter(tmp_path / "p", codec="lz4") as writer:
        writer.add({"clip": values})
        writer.add({"clip": values[2:]})
    for crop in (None, Crop(8, of="clip")):
        ds = PackedDataset(tmp_path / "p", windows=Windows({"clip": [0, 3, 0]}), crop=crop)
        decoded.clear()
        assert ds[[1, 1, 7]]["clip"][..., 0, 0, 0].tolist() == [[1, 4, 1], [1, 4, 1], [3, 6, 3]]
        assert decoded == [90 * 70 * 3] * 4


def test_fields_of_fixed_shape_have_windows_where_they_are_named(tmp_path: Path) -> None:
    """Where first axes differ in length, a number of steps says nothing of fixed fields; their names do."""
    with DatasetWriter(tmp_path / "p", codec="none") as writer:
        for i in range(3):
            writer.add({"x": np.arange(6, dtype=np.int16) + 10 * i, "grid": np.full((2, 2), i)})
    with pytest.raises(
        UsageError,
        match=r"None is ragged in its first axis \(x \[6\], grid \[2, 2\]\); name .*Windows\(\{\"x\": range\(2\)\}\)",
    ):
        PackedDataset(tmp_path / "p", windows=Windows(2))
    ds = PackedDataset(tmp_path / "p", windows=Windows({"x": [0, 3]}))
    assert ds[:]["x"].tolist() == [[10 * i + a, 10 * i + a + 3] for i in range(3) for a in range(3)]
    assert ds[[0, 5]]["grid"].tolist() == [[[0, 0], [0, 0]], [[1, 1], [1, 1]]]


def test_samples_of_one_length_have_windows_by_a_number(tmp_path: Path) -> None:
    """Episodes and clips that all have one length have no ragged field: all arrays are read in steps."""
    with DatasetWriter(tmp_path / "p", codec="none") as writer:
        for i in range(2):
            steps = np.arange(5) + 10 * i
            clip = np.tile(steps[:, None, None], (1, 2, 2)).astype(np.uint8)
            writer.add(
                {"clip": clip, "action": steps[:, None] / 2, "reward": steps, "task": f"t{i}", "label": np.int64(i)}
            )
    ds = PackedDataset(tmp_path / "p", windows=Windows(3, stride=2))
    assert len(ds) == 4
    assert ds[:]["reward"].tolist() == [[0, 1, 2], [2, 3, 4], [10, 11, 12], [12, 13, 14]]
    assert ds[1]["clip"][:, 0, 0].tolist() == [2, 3, 4]
    assert ds[3]["action"][:, 0].tolist() == [6, 6.5, 7]
    assert (ds[3]["task"], ds[3]["label"]) == ("t1", 1)
    with pytest.raises(UsageError, match=r"None is ragged in its first axis \(reward \[5\]\)"):
        PackedDataset(tmp_path / "p", ["reward", "label"], windows=Windows(3))


def test_all_of_a_batch_lies_in_the_memory_that_it_is_given(packed_episodes: tuple[Path, list[Episode]]) -> None:
    """Masks too are read into what `allocate` gives, such as page-locked memory."""
    path, _ = packed_episodes
    ds = PackedDataset(path, ["actions"], windows=Windows(3, pad="edge"), extras=("number", "step"))
    given: list[torch.Tensor] = []

    def allocate(nbytes: int) -> torch.Tensor:
        given.append(torch.empty(nbytes, dtype=torch.uint8))
        return given[-1]

    batch = source_of(ds).gather(np.arange(4), allocate=allocate)
    assert list(batch) == ["actions", "actions_is_pad", "number", "step"]
    assert {value.data_ptr() for value in batch.values()} <= {memory.data_ptr() for memory in given}


def test_a_name_is_no_window(packed_episodes: tuple[Path, list[Episode]]) -> None:
    """A name says which sample, not which window; regions of samples are read by name as ever."""
    path, episodes = packed_episodes
    ds = PackedDataset(path, windows=Windows(2))
    with pytest.raises(UsageError, match=r"a sample, which has many windows: ask for windows by number"):
        _ = ds["e/3"]
    with pytest.raises(UsageError, match="many windows"):
        _ = ds[["e/3"]]
    assert np.array_equal(ds.read("e/3", "actions", rows=slice(2, 4)), episodes[3]["actions"][2:4])
    assert ds.names is not None
    assert list(ds.names) == [f"e/{i}" for i in range(9)]
    assert "windows of 9 samples" in repr(ds)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Windows(0), "steps 0"),
        (lambda: Windows(True), "steps True"),
        (lambda: Windows(2, stride=0), "stride 0"),
        (lambda: Windows(2, step=1.5), "step 1.5"),  # type: ignore[arg-type]
        (lambda: Windows(2**40, step=2**40), "reach further than any sample"),
        (lambda: Windows(2, pad="both"), "pad 'both'"),  # type: ignore[arg-type]
        (lambda: Windows(2, pad_before=-1), "pad_before -1: a whole number from 0 on"),
        (lambda: Windows(2, pad_after=0.5), "pad_after 0.5"),  # type: ignore[arg-type]
        (lambda: Windows(2, one="yes"), "windows: one 'yes': True or False"),  # type: ignore[arg-type]
        (lambda: Windows({}), "no field is named"),
        (lambda: Windows({"actions": []}), r"offsets \[\] of 'actions'"),
        (lambda: Windows({"actions": [0.5]}), r"offsets \[0.5\] of 'actions'"),  # type: ignore[list-item]
        (lambda: Windows({"actions": 4}), "offsets 4 of 'actions'"),  # type: ignore[dict-item]
        (lambda: Windows({"actions": iter([0, 1])}), "a list of whole numbers is expected"),  # type: ignore[dict-item]
    ],
)
def test_windows_that_cannot_be(make: Any, message: str) -> None:
    """Counts below 1, offsets that are no whole numbers, and other words for pad are refused at once."""
    with pytest.raises(UsageError, match=message):
        make()


def test_fields_without_steps_are_refused(packed_episodes: tuple[Path, list[Episode]], packed: Path) -> None:
    """Windows of a field that is not read, of pictures or text, wholly outside, or next to subsets of points."""
    path, _ = packed_episodes
    for windows, message in (
        (Windows({"rewards": [0]}), "no field 'rewards' is read; there are obs, actions, label"),
        (Windows({"label": [0]}), "field 'label' has no steps"),
        (3, "a readers.Windows is expected"),
        (Windows({"actions": [0, 3]}, pad_after=4), "4 steps outside of a sample, of windows that span 4"),
    ):
        with pytest.raises(UsageError, match=message):
            PackedDataset(path, windows=windows)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="windows and points do not go together"):
        PackedDataset(path, windows=Windows(2), points=4)
    for name in ("picture", "caption"):
        with pytest.raises(UsageError, match=f"field '{name}' has no steps"):
            PackedDataset(packed, windows=Windows({name: [0]}))


def test_masks_are_checked(pack: Any, tmp_path: Path) -> None:
    """A field may have the name of a mask, unless there is one."""
    fields = [
        Field(name="y", dtype="uint8", shape=(None,)),
        Field(name="y_is_pad", dtype="uint8"),
    ]
    sample = {"y": np.zeros(3, np.uint8), "y_is_pad": np.uint8(0)}
    path = pack(tmp_path / "p", fields, [[sample]])
    for windows in (Windows({"y": [0]}, pad="edge"), Windows({"y": [0, 1]}, pad_after=1)):
        with pytest.raises(UsageError, match="would both be called 'y_is_pad'"):
            PackedDataset(path, windows=windows)
    assert PackedDataset(path, windows=Windows({"y": [0]}))[[0, 2]]["y"].shape == (2, 1)


ONE = Windows({"obs": [-1, 0], "actions": range(6)}, stride=2, pad="zero", one=True)


def _visits(batches: Any) -> list[tuple[int, int]]:
    """Number and anchor step of every item of some batches, each of which is compared with its episode."""
    visits = []
    for batch in batches:
        for item, (number, step) in enumerate(zip(batch["number"].tolist(), batch["step"].tolist(), strict=True)):
            window = _window(_episode(int(batch["label"][item]), LENGTHS[number]), ONE.steps, ONE, step)  # type: ignore[arg-type]
            _assert_equal({name: batch[name][item : item + 1] for name in window}, [window])
            visits.append((number, step))
    return visits


LENGTHS = [9, 3, 1, 12, 2]


@pytest.fixture(scope="module", params=["none", "zstd"])
def five(request: pytest.FixtureRequest, pack: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five episodes in two shards."""
    return _packed(pack, tmp_path_factory.mktemp("five"), LENGTHS, request.param, FrameRule(rows=2))[0]


def test_one_window_of_each_sample_is_drawn_once_a_visit(five: Path) -> None:
    """By seed, epoch and position: threads, batch size, ranks, order and resuming change nothing, nor does a mix."""
    ds = PackedDataset(five, windows=ONE, extras=("number", "step"))
    assert len(ds) == 5
    options: dict[str, Any] = {"shuffle": True, "seed": 3, "repeat": 8}
    loader = Loader(ds, 1, threads=0, **options)
    visits, later = _visits(loader), _visits(loader)
    assert Counter(number for number, _ in visits) == dict.fromkeys(range(5), 8)
    assert visits != later
    assert sorted(visits) != sorted(later)
    for size, threads in ((4, 2), (40, 0)):
        assert _visits(Loader(ds, size, threads=threads, **options)) == visits
    assert _visits(Loader(ds, 1, shuffle=True, seed=4, repeat=8)) != visits
    ranks = [list(Loader(ds, 5, rank=rank, world_size=2, **options)) for rank in (0, 1)]
    assert _visits(batch for pair in zip(*ranks, strict=True) for batch in pair) == visits
    begun = Loader(ds, 3, **options)
    taken = iter(begun)
    assert _visits(next(taken) for _ in range(4)) == visits[:12]
    resumed = Loader(ds, 7, **options)
    resumed.load_state_dict(begun.state_dict())
    assert _visits(resumed) == visits[12:]
    mixed = _visits(
        Loader(Mix({ds: 1, PackedDataset(five, windows=ONE, extras=("number", "step")): 1}), 4, shuffle=True)
    )
    assert len(mixed) == 10
    assert min(len(set(_steps_of(visits)[number])) for number in (0, 3)) > 3


def _steps_of(visits: Sequence[tuple[int, int]]) -> dict[int, list[int]]:
    steps: dict[int, list[int]] = {number: [] for number in range(5)}
    for number, step in visits:
        steps[number].append(step)
    return steps


@pytest.mark.parametrize("workers", [0, 1])
def test_without_a_loader_one_window_is_drawn_by_torchs_generator(five: Path, workers: int) -> None:
    """By index, by name and in `DataLoader`: two visits differ, and `torch.manual_seed` repeats them."""
    ds = PackedDataset(five, windows=ONE, extras=("number", "step", "name"))

    def epochs() -> list[tuple[int, int]]:
        torch.manual_seed(5)
        visits = _visits(batch for _ in range(4) for batch in DataLoader(ds, 2, shuffle=True, num_workers=workers))
        if not workers:
            visits += _visits([ds[["e/3"] * 20], ds[-2:]])
        return visits

    visits = epochs()
    assert epochs() == visits
    assert len(set(_steps_of(visits)[3])) > 2
    assert ds["e/1"]["name"] == "e/1"


def test_every_window_of_a_sample_is_as_likely(five: Path) -> None:
    """Over many visits each anchor comes about equally often, the last one too."""
    ds = PackedDataset(five, windows=Windows({"actions": range(4)}, one=True), samples=[3], extras=("step",))
    steps = torch.cat([batch["step"] for batch in Loader(ds, 100, repeat=9000)])
    counts = torch.bincount(steps)
    assert counts.shape == (9,)
    assert ((counts - 1000).abs() < 150).all()


def test_one_window_of_chosen_samples(five: Path) -> None:
    """Of a split, of `samples` in any order, of `select` and of `column`: numbers count the chosen ones."""
    ds = PackedDataset(five, windows=ONE, samples=[3, 0], extras=("step", "name"), crop=Crop(1, "obs", at=(1, 0)))
    assert (len(ds), list(ds.names or ())) == (2, ["e/3", "e/0"])
    assert ds[[0, 1]]["label"].tolist() == [3, 0]
    assert ds["e/0"]["obs"].shape == (2, 1, 1, 3)
    chosen = ds.select([1])
    assert [batch["name"] for batch in Loader(chosen, 1, repeat=3)] == [["e/0"]] * 3
    assert ds.column("label").tolist() == [3, 0]
    assert torch.equal(ds.column("step"), next(iter(Loader(ds, 2)))["step"])


def test_a_sample_without_a_window_is_named(five: Path) -> None:
    """One window is drawn of every sample, so none may be too short; it is said before anything is read."""
    ds = PackedDataset(five, windows=Windows({"actions": range(4)}, one=True))
    with pytest.raises(UsageError, match=r"sample 1 \('e/1'\): no window lies.*\(one of 3 such samples\).*give pad="):
        len(ds)
    assert len(PackedDataset(five, windows=Windows({"actions": range(4)}, one=True), samples=[0, 3])) == 2


def _diffusion_policy(lengths: Sequence[int], steps: int, before: int, after: int) -> list[tuple[int, list[int]]]:
    """Episode and steps of every window of its `SequenceSampler` (diffusion_policy/common/sampler.py)."""
    return [
        (number, np.clip(np.arange(start, start + steps), 0, length - 1).tolist())
        for number, length in enumerate(lengths)
        for start in range(-before, length - steps + after + 1)
    ]


def _robomimic(
    lengths: Sequence[int], stack: int, steps: int, pad_stack: bool, pad_seq: bool
) -> list[tuple[int, list[int]]]:
    """Episode and steps of every window of its `SequenceDataset` (robomimic/utils/dataset.py)."""
    return [
        (number, np.clip(np.arange(at - stack + 1, at + steps), 0, length - 1).tolist())
        for number, length in enumerate(lengths)
        for at in range(0 if pad_stack else stack - 1, length if pad_seq else length - steps + 1)
    ]


def test_padded_windows_are_those_of_the_packages(tmp_path: Path) -> None:
    """Their numbers of steps that may lie outside give their windows: as many, in their order, edges repeated."""
    lengths = (20, 5, 11)
    with DatasetWriter(tmp_path / "p", codec="none") as writer:
        for number, length in enumerate(lengths):
            writer.add({"action": np.arange(length) + 100 * number})

    def found(windows: Windows) -> list[tuple[int, list[int]]]:
        batch = PackedDataset(tmp_path / "p", windows=windows, extras=["number"])[:]
        return [
            (n, [step - 100 * n for step in steps])
            for n, steps in zip(batch["number"].tolist(), batch["action"].tolist(), strict=True)
        ]

    for before, after in ((1, 7), (0, 7), (0, 0), (7, 0)):
        wanted = _diffusion_policy(lengths, 8, before, after)
        assert found(Windows(8, pad_before=before, pad_after=after)) == wanted
    for pad_stack, pad_seq in itertools.product([True, False], repeat=2):
        windows = Windows({"action": range(-2, 4)}, pad_before=2 if pad_stack else 0, pad_after=3 if pad_seq else 0)
        assert found(windows) == _robomimic(lengths, 3, 4, pad_stack, pad_seq)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_steps_of_different_shapes_come_as_a_list(pack: Any, tmp_path: Path, codec: str) -> None:
    """Volumes of different widths: each window is a tensor (T, ...) with memory of its own, in `DataLoader`, too."""
    stored: dict[str, Any] = {"codec": NAMED[codec], "frame": FrameRule(rows=2)}
    fields = [
        Field(name="kspace", dtype="complex64", shape=(None, 2, 6, None), **stored),
        Field(name="mask", dtype="uint8", shape=(None,), **stored),
    ]
    rng = np.random.default_rng(0)
    volumes = [
        (rng.integers(0, 3, (slices, 2, 6, width)) * (1 + 1j)).astype(np.complex64)
        for slices, width in ((5, 8), (3, 4), (2, 0), (7, 8))
    ]
    samples = [{"kspace": volume, "mask": np.arange(len(volume), dtype=np.uint8)} for volume in volumes]
    path = pack(tmp_path / "p", fields, [samples[:2], samples[2:]])
    windows = Windows({"kspace": [-1, 0, 1], "mask": [0]}, pad="zero")
    wanted = []
    for volume in volumes:
        padded = np.pad(volume, [(1, 1), (0, 0), (0, 0), (0, 0)])
        wanted += [padded[step : step + 3] for step in range(len(volume))]
    for ds in (PackedDataset(path, windows=windows), PackedDataset(path, windows=windows, verify=True)):
        assert len(ds) == len(wanted) == 17
        numbers = [16, 0, 7, 9, 3, 0]
        batch = ds[numbers]
        assert batch["mask"].shape == (6, 1)
        for number, window in zip(numbers, batch["kspace"], strict=True):
            assert np.array_equal(window.numpy(), wanted[number])
        assert len({window.untyped_storage().data_ptr() for window in batch["kspace"] if window.numel()}) == 5
        assert np.array_equal(ds[8]["kspace"].numpy(), wanted[8])
        for loader in (Loader(ds, 4), DataLoader(ds, 4, num_workers=1)):
            found = [window for batch in loader for window in batch["kspace"]]
            assert all(map(np.array_equal, found, wanted))
    spans = (
        source_of(ds)
        .readers["kspace"]
        .spans(source_of(ds).readers["kspace"].locate(Asked(np.array([0]), None, np.array([3]))))
    )
    assert spans[0, 1] - spans[0, 0] <= 4 * volumes[0][0].nbytes  # of frames of two slices, those that are touched


# Crops of windows.


def _clip(number: int, steps: int, height: int, width: int, scale: int = 1) -> NDArray[np.uint8]:
    """Frames whose pixels hold step, row and column in units of `scale`, and the number of the clip."""
    step, row, column = np.indices((steps, height, width))
    return np.stack([step, row // scale, column // scale, np.full_like(step, number)], axis=3).astype(np.uint8)


@pytest.mark.parametrize(
    ("pad", "codec", "rule"),
    [  # every two of them together once
        (pad, ("none", "lz4", "zstd")[(number + shift) % 3], rule)
        for number, pad in enumerate([None, "zero", "edge"])
        for shift, rule in enumerate([FrameRule(samples=1), FrameRule(rows=1), FrameRule(rows=3)])
    ],
)
def test_one_crop_a_window_aligned_over_fields(
    pack: Any, tmp_path: Path, codec: str, rule: FrameRule, pad: Literal["edge", "zero"] | None
) -> None:
    """All steps of a window are cropped at one place and turned one way, in both fields; two windows differ."""
    fields = [
        Field(name=name, dtype="uint8", shape=(None, None, None, 4), codec=NAMED[codec], frame=rule)
        for name in ("hr", "lr")
    ]
    sizes = [(5, 4, 6), (3, 5, 5), (7, 8, 4)]
    samples = [{"hr": _clip(i, t, 2 * h, 2 * w, scale=2), "lr": _clip(i, t, h, w)} for i, (t, h, w) in enumerate(sizes)]
    path = pack(tmp_path / "p", fields, [samples[:1], samples[1:]])
    crop = Crop(size=4, of="hr", aligned={"lr": 2}, flips=True, turns=True)
    offsets = [0, 2]
    ds = PackedDataset(path, windows=Windows({"hr": offsets, "lr": [1]}, pad=pad), crop=crop)
    batch = ds[np.arange(len(ds)).repeat(9)]
    hr, lr = batch["hr"].numpy(), batch["lr"].numpy()
    assert hr.shape == (9 * len(ds), 2, 4, 4, 4)
    assert lr.shape == (9 * len(ds), 1, 2, 2, 4)
    at = [(i, a) for i, (t, _, _) in enumerate(sizes) for a in range(t) if pad or a + 2 < t]
    places = set()
    for window, small, (number, anchor) in zip(hr, lr, [place for place in at for _ in range(9)], strict=True):
        last = sizes[number][0] - 1
        for frame, step in ((window[0], anchor), (window[1], anchor + 2), (small[0], anchor + 1)):
            if step > last and pad == "zero":
                assert not frame.any()
                continue
            assert (frame[..., 0] == min(step, last)).all()
            assert (frame[..., 3] == number).all()
            pixels = frame[::2, ::2, 1:3] if len(frame) == 4 else frame[..., 1:3]
            assert np.array_equal(pixels, window[0, ::2, ::2, 1:3])
        places.add((number, anchor, window[0, ..., 1:3].tobytes()))
    assert len(places) > 2 * len(ds)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_axes_of_crops(pack: Any, tmp_path: Path, codec: str) -> None:
    """Rows and columns are the first two axes, those after the first of four or of windows, or those that are named."""
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int | None, ...]]
    shapes = {"chw": (3, 6, 7), "hw": (6, 7), "thwc": (4, 6, 7, 2), "clip": (None, 6, 7), "tchw": (None, 2, 6, 7)}
    fields = [
        Field(name=name, dtype="float32", shape=shape, codec=NAMED[codec], frame=FrameRule(rows=2))
        for name, shape in shapes.items()
    ]
    values = {name: rng.random([n or 5 for n in shape]).astype(np.float32) for name, shape in shapes.items()}
    path = pack(tmp_path / "p", fields, [[values]])

    def cropped(name: str, windows: Windows | None = None, axes: tuple[int, int] | None = None) -> NDArray[Any]:
        crop = Crop(size=(2, 3), of=name, at=(3, 1), axes=axes)
        found: NDArray[Any] = PackedDataset(path, fields=name, crop=crop, windows=windows)[[0]][name][0].numpy()
        return found

    rows, columns, steps = slice(3, 5), slice(1, 4), Windows(3)
    for found, wanted in (
        (cropped("chw", axes=(1, 2)), values["chw"][:, rows, columns]),
        (cropped("chw", axes=(-2, -1)), values["chw"][:, rows, columns]),
        (cropped("hw"), values["hw"][rows, columns]),
        (cropped("thwc"), values["thwc"][:, rows, columns]),
        (cropped("clip", steps), values["clip"][:3, rows, columns]),
        (cropped("tchw", steps, (-2, -1)), values["tchw"][:3, :, rows, columns]),
    ):
        assert np.array_equal(found, wanted)
    for name, axes, message in (
        ("hw", (1, 2), "rows and columns, and only fixed axes after them"),
        ("tchw", (2, 3), r"give windows=Windows\("),
    ):
        with pytest.raises(UsageError, match=message):
            cropped(name, axes=axes)
    for wrong in ((0, 2), (2, 1), (-1, 0)):
        with pytest.raises(UsageError, match="the axis of rows and the next"):
            Crop(size=2, of="x", axes=wrong)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("rule", [*RULES, FrameRule(rows=21)])
def test_long_windows_go_over_the_edges_of_bands(pack: Any, tmp_path: Path, codec: str, rule: FrameRule) -> None:
    """Many steps that follow one another are copied together where they lie in one piece, each to its place."""
    path, episodes = _packed(pack, tmp_path, (64, 130, 40), codec, rule)
    for steps in (15, 16, 37):
        dataset = PackedDataset(path, windows=Windows(steps), extras=("number", "step"))
        numbers = np.random.default_rng(0).permutation(len(dataset))
        batch = dataset[numbers]
        for name in ("obs", "actions"):
            places = zip(batch["number"].tolist(), batch["step"].tolist(), strict=True)
            expected = [episodes[number][name][step : step + steps] for number, step in places]
            assert np.array_equal(batch[name], np.stack(expected))
