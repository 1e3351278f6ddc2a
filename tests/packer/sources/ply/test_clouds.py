"""Clouds without a header: .bin, .txt, .xyz and .pts, whose columns the user names."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from opened_sources import read_each
from plyfile import PlyData

from packer.convert import convert
from packer.errors import SourceError, UsageError
from packer.export import export
from packer.sources import Source, SourceOptions, open_sources
from packer.watcher import Watcher
from readers import PackedDataset

KITTI = "x,y,z,intensity:float32"


def opened(path: Path, columns: str = KITTI) -> Source:
    """The clouds of a folder or file."""
    return open_sources([str(path)], SourceOptions(columns=columns))


def sample(path: Path, columns: str) -> dict[str, NDArray[np.generic]]:
    """The one sample of a file."""
    (block,) = opened(path, columns).read()
    return {name: arrays[0] for name, arrays in block.items()}


def kitti(folder: Path, sizes: tuple[int, ...] = (5, 0, 300)) -> list[NDArray[np.float32]]:
    """Scans as KITTI has them; returns their points."""
    scans = [np.random.default_rng(n).standard_normal((n, 4)).astype("<f4") for n in sizes]
    folder.mkdir()
    for number, scan in enumerate(scans):
        scan.tofile(folder / f"{number:06}.bin")
    return scans


def test_scans_of_kitti(tmp_path: Path) -> None:
    """Positions are one field, what else there is has its own; no bit is changed, also in a part of the source."""
    scans = kitti(tmp_path / "velodyne")
    source = opened(tmp_path / "velodyne")
    assert [(f.name, f.dtype, f.shape) for f in source.fields] == [
        ("xyz", "float32", (None, 3)),
        ("intensity", "float32", (None,)),
    ]
    assert list(source.names or ()) == ["000000", "000001", "000002"]
    assert np.array_equal(source.shapes("xyz"), [[5, 3], [0, 3], [300, 3]])
    found = read_each(pickle.loads(pickle.dumps(source.slice(1, 3))))
    assert [xyz.tobytes() for xyz in found["xyz"]] == [scan[:, :3].tobytes() for scan in scans[1:]]
    assert [values.tobytes() for values in found["intensity"]] == [scan[:, 3].tobytes() for scan in scans[1:]]


def test_from_files_to_batches_and_ply(tmp_path: Path) -> None:
    """They are packed, read, and exported as PLY files with the properties that the columns are."""
    scans = kitti(tmp_path / "in")
    convert([str(tmp_path / "in")], tmp_path / "p", source=SourceOptions(columns=KITTI), workers=0)
    batch = PackedDataset(tmp_path / "p")[:]
    assert batch["xyz"].values.numpy().tobytes() == np.concatenate(scans)[:, :3].tobytes()
    assert torch.equal(batch["xyz"].offsets, batch["intensity"].offsets)
    export(tmp_path / "p", tmp_path / "out")
    vertex = PlyData.read(tmp_path / "out/000002.ply")["vertex"]
    assert [p.name for p in vertex.properties] == ["x", "y", "z", "intensity"]
    assert np.array_equal(vertex["z"], scans[2][:, 2])


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(
        st.tuples(*[st.floats(width=32, allow_nan=False)] * 3, *[st.integers(0, 255)] * 3), min_size=1, max_size=9
    ),
    between=st.sampled_from([" ", ",", ", ", "\t", " , "]),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    counted=st.booleans(),
    last=st.booleans(),
)
def test_text_of_any_layout(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[float, ...]],
    between: str,
    end: str,
    counted: bool,
    last: bool,
) -> None:
    """Blanks or commas, any line ends, with the number of points in front or not: the values are those written."""
    path = tmp_path_factory.mktemp("text") / "a.pts"
    lines = [str(len(rows))] * counted + [between.join(map(repr, row)) for row in rows]
    path.write_bytes((end.join(lines) + end * last).encode())
    found = sample(path, "x,y,z:float32,r,g,b:uint8")
    assert found["xyz"].tobytes() == np.array([row[:3] for row in rows], np.float32).tobytes()
    assert found["rgb"].tolist() == [list(row[3:]) for row in rows]


def test_comments_and_blank_lines(tmp_path: Path) -> None:
    """What follows # or // is passed over, and so are blank lines."""
    (tmp_path / "a.txt").write_text("# x y z\n//X Y Z\n\n1 2 3  # first\n  \n4 5 6\n")
    assert sample(tmp_path / "a.txt", "x,y,z:float32")["xyz"].tolist() == [[1, 2, 3], [4, 5, 6]]
    (tmp_path / "b.txt").write_text("# nothing\n")
    assert sample(tmp_path / "b.txt", "x,y,z:float32")["xyz"].shape == (0, 3)


@pytest.mark.parametrize(("width", "columns"), [(4, "x,y,z,i,ring"), (5, "x,y,z,i"), (4, "x,y,z"), (3, "x,y,z,i")])
def test_scans_read_as_a_wrong_number_of_columns(tmp_path: Path, width: int, columns: str) -> None:
    """If another usual number fits all files as well, and every column has its own spread then, a remark says so."""
    spread = np.array([20, 15, 2, 0.3, 9][:width])
    for number in range(3):
        rows = np.random.default_rng(number).normal(size=(60 * (number + 1), width)) * spread
        rows.astype("<f4").tofile(tmp_path / f"{number}.bin")
    wrong = opened(tmp_path, f"{columns}:float32")
    names = ", ".join(columns.split(","))
    said = f"look as if they had {width} columns of float32, not {len(columns.split(','))} ({names}); check --columns"
    assert [remark.partition("files ")[2] for remark in wrong.remarks] == [said]
    right = ",".join(["x", "y", "z", "intensity", "ring"][:width])
    assert opened(tmp_path, f"{right}:float32").remarks == []


def test_text_without_a_type_keeps_every_digit(tmp_path: Path) -> None:
    """It is float64, and a note says how to have half."""
    (tmp_path / "a.xyz").write_text("4500123.456789 1 2 7\n")
    source = opened(tmp_path / "a.xyz", "x,y,z,t")
    assert source.remarks == ["x, y, z, t: float64, since --columns gives no type; t:float32 takes half the room"]
    assert sample(tmp_path / "a.xyz", "x,y,z,t")["xyz"][0, 0] == 4500123.456789


@pytest.mark.parametrize(
    ("columns", "fields"),
    [
        ("x,y,z:float,r,g,b:uchar", {"xyz": "float32", "rgb": "uint8"}),
        ("x, y, z:double, nx,ny,nz:float32", {"xyz": "float64", "normal": "float32"}),
        ("x,y,z:float32,red:uint8,green:uint8,blue:uint8", {"xyz": "float32", "rgb": "uint8"}),
        ("x:float32,y:float64,z:float32", {"x": "float32", "y": "float64", "z": "float32"}),
        ("r,x:float32", {"r": "float32", "x": "float32"}),
        ("id:uint64,time:int64,w:float16", {"id": "uint64", "time": "int64", "w": "float16"}),
        ("f_0,f_1:float32,label:int32", {"f": "float32", "label": "int32"}),
    ],
)
def test_which_columns_are_one_field(tmp_path: Path, columns: str, fields: dict[str, str]) -> None:
    """Columns become fields as the properties of PLY files do; r, g, b are red, green and blue."""
    (tmp_path / "a.txt").write_text(" ".join("1" * len(columns.split(","))))
    assert {f.name: f.dtype for f in opened(tmp_path / "a.txt", columns).fields} == fields


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            "x,y,z",
            "no type is given for x, y, z, and .bin files do not say; put one after the last of them, as in z:float32",
        ),
        ("x,y,,z:float32", "'' is not a name"),
        ("", "'' is not a name"),
        ("x,x:float32", "x is there twice"),
        ("x,y:float32,x:uint8", "x is there twice"),
        ("x:int128", "'int128' is not a type; one of int8, uint8"),
        ("a/b:float32", "--columns a/b:float32: "),
    ],
)
def test_columns_that_are_none(tmp_path: Path, columns: str, words: str) -> None:
    """A wrong name or type is refused before a file is looked at."""
    kitti(tmp_path / "in")
    with pytest.raises(UsageError, match=words):
        opened(tmp_path / "in", columns)


def test_files_that_hold_no_whole_rows(tmp_path: Path) -> None:
    """A binary file of another size is named, with the columns that do not fit it."""
    kitti(tmp_path / "in")
    (tmp_path / "in/000001.bin").write_bytes(b"\0" * 20)
    with pytest.raises(
        SourceError, match=r"000001.bin: has 20 bytes, not a multiple of the 16 bytes of a row of x float32"
    ):
        opened(tmp_path / "in")
    skipped: list[SourceError] = []
    source = open_sources([str(tmp_path / "in")], SourceOptions(columns=KITTI), Watcher(skipped.append))
    assert (len(source), len(skipped)) == (2, 1)


@pytest.mark.parametrize("suffix", ["bin", "ply"])
def test_two_clouds_of_one_name(tmp_path: Path, suffix: str) -> None:
    """The second is named, with the first: a sample has a name of its own."""
    for name in (f"a.{suffix}", f"a.{suffix.upper()}"):
        (tmp_path / name).write_text("ply\nformat ascii 1.0\nelement vertex 1\nproperty int x\nend_header\n1\n")
    options = SourceOptions(columns="x:uint8") if suffix == "bin" else SourceOptions()
    with pytest.raises(SourceError, match=rf"a\.{suffix}: has the same sample name, a, as .*; rename one"):
        open_sources([str(tmp_path)], options)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# c\n1 2 3\n\n4 5\n", r"a.txt: line 4 has 2 columns, 3 are expected \(x, y, z\)"),
        ("1 2 3 4\n", "line 1 has 4 columns, 3 are expected"),
        ("1,2,3\n4,,6,7\n", "line 2: there is no value between two commas"),
        (",1,2,3\n", "line 1: there is no value"),
        ("\n3\n1 2 3\n", "line 2 says that there are 3 points, but there are 1"),
    ],
)
def test_lines_that_are_no_rows(tmp_path: Path, text: str, words: str) -> None:
    """They are found when the plan is made, and named by file and line."""
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(SourceError, match=words):
        opened(tmp_path / "a.txt", "x,y,z:float32")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 2 3\n\n4 x 6\n", "line 3, y: 'x' is not a number"),
        ("1 2 3\n4 5 6.5\n", "line 2, z: 6.5 does not fit its type, uint8; give the types"),
        ("1 2 1.#IND # NaN\n", r"line 1, z: '1\.#IND' is not a number"),
        ("1 2 300\n", "line 1, z: 300 does not fit its type, uint8"),
    ],
)
def test_values_that_cannot_be_stored(tmp_path: Path, text: str, words: str) -> None:
    """They are named by line and column, and by the number of their sample."""
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(SourceError, match=words) as caught:
        sample(tmp_path / "a.txt", "x,y:float32,z:uint8")
    assert caught.value.sample == 0


def test_whole_numbers_of_64_bits(tmp_path: Path) -> None:
    """Those of .bin files are packed as they are; text is an error where float64, which it is read as, would round."""
    np.array([-1, 2**63 - 1], "<i8").tofile(tmp_path / "a.bin")
    assert sample(tmp_path / "a.bin", "time:int64")["time"].tolist() == [-1, 2**63 - 1]
    (tmp_path / "a.txt").write_text(f"{2**53 - 1}\n")
    assert sample(tmp_path / "a.txt", "time:int64")["time"].tolist() == [2**53 - 1]
    (tmp_path / "a.txt").write_text(f"1\n{2**53 + 1}\n")
    with pytest.raises(SourceError, match=r"line 2, time: text is read as float64, which holds whole numbers below"):
        sample(tmp_path / "a.txt", "time:int64")


def test_labels_say_how_they_are_packed(tmp_path: Path) -> None:
    """A folder of .label files for which no columns are given is an error that names their suffix."""
    kitti(tmp_path / "in")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels/0.label").write_bytes(bytes(8))
    with pytest.raises(SourceError, match=r"with --columns label=NAMES:TYPE also \.label"):
        open_sources([f"{tmp_path}/in", f"label={tmp_path}/labels"], SourceOptions(columns="x,y,z,i:float32"))


def test_suffixes_count_only_with_columns(tmp_path: Path) -> None:
    """A text next to pictures stays what it was; without columns the error says how clouds are packed."""
    kitti(tmp_path / "in")
    with pytest.raises(SourceError, match=r"with --columns x,y,z also \.bin, \.pts, \.txt, \.xyz"):
        open_sources([str(tmp_path / "in")])
    with pytest.raises(UsageError, match="with --columns x,y,z"):
        open_sources([str(tmp_path / "in/*.bin")])
    (tmp_path / "in/calib.txt").write_text("P0: 7\n")
    with pytest.raises(UsageError, match=r"files of several kinds, \.bin and \.txt; name one,"):
        opened(tmp_path / "in")
    assert len(opened(tmp_path / "in/*.bin")) == 3
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(UsageError, match="--columns is for sources of clouds and tables, but this one holds npy"):
        opened(tmp_path / "a.npy")


def test_files_that_changed_and_pointers(tmp_path: Path) -> None:
    """A file that grew since the plan was made is an error, and so is a pointer of git-LFS."""
    kitti(tmp_path / "in", (2,))
    source = opened(tmp_path / "in")
    np.zeros((3, 4), "<f4").tofile(tmp_path / "in/000000.bin")
    with pytest.raises(SourceError, match=r"when its header was read, and is .* now; run again"):
        list(source.read())
    (tmp_path / "in/000000.bin").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(SourceError, match="git-LFS"):
        opened(tmp_path / "in")


def test_files_larger_than_a_sample_are_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of nanoGPT: pieces of one length are samples, which a remark says; here they are of 1001 bytes at most."""
    monkeypatch.setattr("packer.sources.ply.clouds.MAX_CHUNK_BYTES", 4000)
    monkeypatch.setattr("packer.sources.ply.clouds._PIECE_BYTES", 1001)
    tokens = np.arange(5000, dtype="<u2")
    for name, stop in (("empty", 0), ("train", 2200), ("val", 2000)):
        tokens[:stop].tofile(tmp_path / f"{name}.bin")
    source = opened(tmp_path, "token:uint16")
    assert source.names == ["empty", "train/0", "train/1", "train/2", "train/3", "train/4", "val"]
    assert source.shapes("token")[:, 0].tolist() == [0, 500, 500, 500, 500, 200, 2000]
    (remark,) = [text for text in source.remarks if "it becomes 5 samples of 500 rows" in text]
    assert "train.bin has 4,400 bytes, more than the 4,000 that a sample can have" in remark
    part = pickle.loads(pickle.dumps(source.slice(2, 7)))
    found = [values.tolist() for block in part.read() for values in block["token"]]
    expected = [(500, 1000), (1000, 1500), (1500, 2000), (2000, 2200), (0, 2000)]
    assert found == [tokens[start:stop].tolist() for start, stop in expected]
