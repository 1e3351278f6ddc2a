"""Episodes out of flat rows: which arrays say where they end, and what is refused."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opened_sources import read_each

from packer.convert import convert
from packer.errors import PackerError, SourceError, UsageError
from packer.sources import SourceOptions, open_sources
from readers import PackedDataset, Windows
from tests.helpers.kinds import write_hdf5, write_zarr

STEPS = (3, 1, 4)
TOTAL = sum(STEPS)
ENDS = np.cumsum(STEPS)
LAST = np.isin(np.arange(TOTAL), ENDS - 1)


def rows(total: int = TOTAL) -> dict[str, Any]:
    return {
        "data/action": np.arange(2 * total, dtype="f4").reshape(total, 2),
        "data/img": np.arange(12 * total, dtype="u1").reshape(total, 2, 2, 3),
        "reward": np.arange(total, dtype="f8"),
    }


def write(path: Path, arrays: dict[str, Any]) -> str:
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        write_hdf5(path, arrays)
    return str(path)


def packed(source: object, out: Path, where: str, **options: Any) -> PackedDataset:
    chosen = SourceOptions(samples=f"episodes:{where}", **options)
    return PackedDataset(convert(source, out, source=chosen, workers=0).path)


MARKS = {
    "ends": ({"meta/episode_ends": ENDS}, "meta/episode_ends"),
    "flags": ({"terminals": LAST}, "terminals"),
    "flags as numbers": ({"terminals": LAST.astype("f4")}, "terminals"),
    "flags as integers": ({"terminals": LAST.astype("i8")}, "terminals"),
    "one of two flags": ({"terminals": LAST & (np.arange(TOTAL) < 3), "timeouts": LAST}, "terminals,timeouts"),
    "no flag at the end": ({"timeouts": LAST & (np.arange(TOTAL) < 7)}, "timeouts"),
    "numbers": ({"episode_index": np.repeat([4, 5, 9], STEPS)}, "/episode_index"),
    "numbers that come again": ({"episode_index": np.repeat([2, 3, 2], STEPS)}, "episode_index"),
}


@pytest.mark.parametrize("suffix", [".h5", ".npz"])
@pytest.mark.parametrize(("marks", "where"), MARKS.values(), ids=MARKS)
def test_rows_become_episodes(tmp_path: Path, suffix: str, marks: dict[str, Any], where: str) -> None:
    """Whatever says where episodes end, each is a sample with all its rows; ends are no field, values a row are one."""
    held = packed(write(tmp_path / f"rows{suffix}", rows() | marks), tmp_path / "out", where)
    per_row = {name: values for name, values in (rows() | marks).items() if len(values) == TOTAL}
    assert {field.name for field in held.manifest.fields} == {name.replace("/", ".") for name in per_row}
    assert [len(held[n]["reward"]) for n in range(len(held))] == list(STEPS)
    for name, values in per_row.items():
        found = [held[n][name.replace("/", ".")].numpy() for n in range(len(held))]
        np.testing.assert_array_equal(np.concatenate(found), values)
    assert len(PackedDataset(held.path, windows=Windows(2))) == 2 + 0 + 3


def test_episodes_end_with_their_files(tmp_path: Path) -> None:
    """Several files are read one after another, each with its own ends; numbers may begin anew in each."""
    for number in range(3):
        marks = {"meta/episode_ends": ENDS, "episode_index": np.repeat([0, 1, 2], STEPS)}
        write(tmp_path / f"part{number}.h5", rows() | marks)
    for where, out in (("meta/episode_ends", "a"), ("episode_index", "b")):
        held = packed(str(tmp_path / "part*.h5"), tmp_path / out, where, skip=("meta",) if out == "b" else ())
        assert [len(held[n]["reward"]) for n in range(len(held))] == 3 * list(STEPS)


def test_the_plan_says_how_many_episodes_there_are(tmp_path: Path) -> None:
    """It does not say what rows could be, which nobody asked for."""
    for number in (8, 9):
        write(tmp_path / f"{number}.h5", rows(number) | {"timeouts": np.arange(number) == 2})
    source = open_sources([str(tmp_path)], SourceOptions(samples="episodes:timeouts"))
    assert source.remarks == ["timeouts says where each episode ends: 4 episodes of 3 to 6 rows"]


def test_ends_in_a_file_of_their_own(tmp_path: Path) -> None:
    """Arrays that are named on the command line are found by these names, or by those of their files."""
    np.save(tmp_path / "actions.npy", rows()["data/action"])
    np.save(tmp_path / "episode_ends.npy", ENDS)
    named = {"action": tmp_path / "actions.npy", "ends": tmp_path / "episode_ends.npy"}
    held = packed(named, tmp_path / "a", "ends")
    assert ([field.name for field in held.manifest.fields], len(held)) == (["action"], 3)
    held = packed(str(tmp_path / "*.npy"), tmp_path / "b", "episode_ends")
    assert ([field.name for field in held.manifest.fields], len(held)) == (["actions"], 3)


def test_chosen_fields(tmp_path: Path) -> None:
    """`--field` and `--skip` choose among the rows."""
    source = write(tmp_path / "rows.h5", rows() | {"meta/episode_ends": ENDS, "caption": ["a"] * TOTAL})
    held = packed(source, tmp_path / "a", "meta/episode_ends", pick={"a": "/data/action"})
    assert [field.name for field in held.manifest.fields] == ["a"]
    with pytest.raises(UsageError, match="field caption is text, which no episode can hold; leave it out with --skip"):
        packed(source, tmp_path / "b", "meta/episode_ends")
    assert len(packed(source, tmp_path / "b", "meta/episode_ends", skip=("caption",))) == 3


def test_a_bad_file_is_left_out(tmp_path: Path) -> None:
    """With `on_error` skip a file without ends, or one that is no HDF5 file, costs its own episodes alone."""
    for number in range(3):
        write(tmp_path / f"{number}.h5", rows() | ({} if number == 1 else {"meta/episode_ends": ENDS}))
    (tmp_path / "3.h5").write_bytes(b"nothing")
    options = SourceOptions(samples="episodes:meta/episode_ends")
    with pytest.raises(SourceError, match=r"1\.h5: has no array meta/episode_ends of one axis"):
        convert(str(tmp_path / "*.h5"), tmp_path / "out", source=options, workers=0)
    report = convert(str(tmp_path / "*.h5"), tmp_path / "out", source=options, workers=0, on_error="skip")
    assert (report.samples, len(report.rejected)) == (6, 2)


REFUSED = {
    "too few": ({"e": np.array([3, 4, 9])}, "e covers 9 rows, but there are 8; name the array"),
    "fractions": ({"e": np.linspace(0, 1, TOTAL)}, "e: one array of ascending ends or of numbers"),
    "nothing": ({"e": np.zeros(0, int)}, "e: there is no value"),
    "zeros and ones": (
        {"e": (np.arange(TOTAL) > 6).astype("u1")},
        "e: integers of 0 and 1 that only rise may .* as bool",
    ),
    "two tables": ({"e": ENDS, "f": ENDS}, "e, f: one array of ascending ends"),
}


@pytest.mark.parametrize(("marks", "said"), REFUSED.values(), ids=REFUSED)
def test_what_says_of_no_row_where_an_episode_ends(tmp_path: Path, marks: dict[str, Any], said: str) -> None:
    """The error names the array, and what is expected."""
    source = write(tmp_path / "rows.h5", rows() | marks)
    with pytest.raises(PackerError, match=said):
        packed(source, tmp_path / "out", ",".join(marks))


def test_who_did_not_say_where_episodes_end_is_told_how(tmp_path: Path) -> None:
    """Rows beside a short array of integers are refused with the words that pack them."""
    source = write(tmp_path / "rows.h5", rows() | {"meta/episode_ends": ENDS})
    with pytest.raises(
        SourceError, match=r"no common sample axis.*, --samples episodes:/meta/episode_ends\. It holds"
    ) as e:
        open_sources([source])
    where = str(e.value).partition("--samples episodes:")[2].partition(". ")[0]
    assert len(open_sources([source], SourceOptions(samples=f"episodes:{where}"))) == len(STEPS)


def test_a_path_may_lead_nowhere(tmp_path: Path) -> None:
    """The error names the arrays that could say where episodes end."""
    source = write(tmp_path / "rows.npz", rows())
    with pytest.raises(UsageError, match=r"--samples episodes:: episodes\[:PATH\] is expected"):
        packed(source, tmp_path / "out", "")
    with pytest.raises(
        SourceError,
        match="has no array nowhere of one axis, which would say where episodes end; such arrays are /reward",
    ):
        packed(source, tmp_path / "out", "nowhere")


@given(st.lists(st.integers(1, 6), min_size=1, max_size=12), st.data())
@settings(max_examples=20, deadline=None)
def test_parts_give_every_row_once(tmp_path_factory: Any, steps: list[int], data: Any) -> None:
    """However episodes are cut into parts, all rows come back in order."""
    folder = tmp_path_factory.mktemp("episodes")
    x = np.arange(sum(steps))
    source = open_sources(
        [write(folder / "rows.npz", {"x": x, "ends": np.cumsum(steps)})], SourceOptions(samples="episodes:ends")
    )
    cuts = sorted({0, *data.draw(st.lists(st.integers(1, len(steps)), max_size=3)), len(steps)})
    found = [episode for ends in itertools.pairwise(cuts) for episode in read_each(source.slice(*ends))["x"]]
    assert [episode.tolist() for episode in found] == [some.tolist() for some in np.split(x, np.cumsum(steps)[:-1])]


@pytest.mark.parametrize(
    ("entry", "value", "said"), [(3, 18, "entry 3 is 18 after 18"), (4, 2, "entry 4 is 2 after 24")]
)
def test_ends_that_do_not_rise_are_named(tmp_path: Path, entry: int, value: int, said: str) -> None:
    """An end that falls or repeats is named by its entry, and is no number of the episode of a row."""
    ends = np.arange(1, 8) * 6
    ends[entry] = value
    source = write(tmp_path / "a.h5", rows(42) | {"ends": ends})
    with pytest.raises(SourceError, match=rf"ends: ends of episodes rise, but {said}; mend the array"):
        open_sources([source], SourceOptions(samples="episodes:ends"))


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("suffix", ["h5", "zarr", "npy"])
def test_all_files_are_one_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, is_large: bool
) -> None:
    """A file a year, as of weather: windows run across their edges, also where rows are read as they are asked for."""
    if is_large:
        monkeypatch.setattr("packer.sources.episodes.LARGE_BYTES", 100)
    (tmp_path / "years").mkdir()
    values = np.arange(90 * 8, dtype="f4").reshape(90, 2, 4)
    for year, part in enumerate(np.split(values, [30, 61])):
        if suffix == "npy":
            np.save(tmp_path / f"years/{year}.npy", part)
        elif suffix == "zarr":
            write_zarr(tmp_path / f"years/{year}.zarr", {"t2m": part, "hour": np.arange(len(part))})
        else:
            write_hdf5(tmp_path / f"years/{year}.h5", {"t2m": part, "hour": np.arange(len(part))})
    source = f"t2m={tmp_path}/years/*.npy" if suffix == "npy" else str(tmp_path / "years")
    options = SourceOptions(samples="episodes")
    assert "are one episode: windows run from one file into the next" in open_sources([source], options).remarks[-1]
    out = convert(source, tmp_path / "out", source=options, workers=0).path
    steps = [-2, 0, 1]
    held = PackedDataset(out, windows=Windows({"t2m": steps}))
    assert len(held) == 87
    for number in (0, 28, 29, 30, 58, 86):
        assert np.array_equal(held[number]["t2m"], values[number + 2 + np.array(steps)])


def test_an_episode_larger_than_a_sample_is_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one length, but for the last one, which a remark says."""
    monkeypatch.setattr("packer.sources.episodes.MAX_CHUNK_BYTES", 1000)
    values = np.arange(90 * 8, dtype="f4").reshape(90, 2, 4)
    for year, part in enumerate(np.split(values, [30, 61])):
        write_hdf5(tmp_path / f"{year}.h5", {"t2m": part})
    source = open_sources([str(tmp_path)], SourceOptions(samples="episodes"))
    assert source.shapes("t2m")[:, 0].tolist() == [30, 30, 30]
    assert "they are 3 episodes of 30 to 30 rows, and no window lies in two" in source.remarks[-1]
    found = read_each(source.slice(1, 3))["t2m"]
    assert np.array_equal(np.stack(found), values.reshape(3, 30, 2, 4)[1:])
