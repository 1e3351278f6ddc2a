"""Tars of WebDataset: members of one key are a sample, as loose files they would be the same."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import webdataset
from opened_sources import read_each
from PIL import Image

from packer.codecs import file_of
from packer.convert import ConvertOptions, convert
from packer.errors import SourceError
from packer.export import export
from packer.sources import SourceOptions, open_sources
from packer.watcher import Watcher
from readers import PackedDataset

RNG = np.random.default_rng(0)


def encoded(suffix: str, value: Any) -> bytes:
    """Return the bytes of a member, as WebDataset writes them."""
    file = io.BytesIO()
    if suffix in ("jpg", "png", "webp"):
        Image.fromarray(value).save(file, {"jpg": "JPEG"}.get(suffix, suffix), lossless=True)
    elif suffix == "npy":
        np.save(file, value)
    elif suffix == "npz":
        np.savez(file, **value)
    elif suffix == "flac":
        with av.open(file, "w", format="flac") as container:
            stream: Any = container.add_stream("flac", rate=8000, layout="stereo", format="s16")
            frame = av.AudioFrame.from_ndarray(value.reshape(1, -1), "s16", "stereo")
            frame.sample_rate = 8000
            container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    else:
        return str(value).encode()
    return file.getvalue()


def write(path: Path, members: dict[str, bytes]) -> str:
    """Write a tar."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return str(path)


def values(number: int) -> dict[str, Any]:
    """Return the values of one sample, by suffix."""
    return {
        "jpg": RNG.integers(0, 255, (8 + number, 12, 3), np.uint8),
        "seg.png": RNG.integers(0, 9, (8, 12), np.uint8),
        "small.webp": RNG.integers(0, 255, (4, 6, 3), np.uint8),
        "txt": f"caption é {number}",
        "json": json.dumps({"number": number}),
        "cls": number * 7,
        "npy": RNG.normal(size=(number + 1, 3)).astype("f4"),
        "npz": {"a": np.arange(3), "b": np.float32(number)},
        "flac": RNG.integers(-99, 99, (500 + number, 2)).astype(np.int16),
    }


def members(samples: dict[str, dict[str, Any]]) -> dict[str, bytes]:
    return {f"{k}.{s}": encoded(s.rpartition(".")[2], v) for k, of in samples.items() for s, v in of.items()}


def test_hidden_members_are_counted_and_left_out(tmp_path: Path) -> None:
    """As hidden files of a folder are; the folder that was packed is none of them."""
    path = write(tmp_path / "a.tar", {"./a.txt": b"a", "./._a.txt": b"", "./b.txt": b"b", "./.DS_Store": b""})
    with tarfile.open(path, "a") as tar:
        folder = tarfile.TarInfo(".")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    source = open_sources([path])
    assert (len(source), source.remarks) == (2, ["skipped 2 hidden members of tars"])


def test_each_kind_of_member_is_a_field(tmp_path: Path) -> None:
    """Pictures, text, numbers, arrays and sound come out as they were; JPEG files are kept."""
    samples = {f"a/{n:03d}": values(n) for n in range(5)}
    files = members(samples)
    path = write(tmp_path / "in/shard-000.tar", files)
    source = open_sources([path])
    assert source.names == list(samples)
    found = read_each(source.slice(1, 5))
    for number, (key, of_sample) in enumerate(list(samples.items())[1:]):
        sample = {name: found[name][number] for name in found}
        assert np.array_equal(sample["image"], np.asarray(Image.open(io.BytesIO(files[f"{key}.jpg"]))))
        assert file_of(sample["image"]) == files[f"{key}.jpg"]
        assert np.array_equal(sample["seg.png"][:, :, 0], of_sample["seg.png"])
        assert np.array_equal(sample["small.webp"], of_sample["small.webp"])
        assert sample["txt"] == of_sample["txt"]
        assert sample["json"] == of_sample["json"]
        assert sample["cls"] == of_sample["cls"]
        assert np.array_equal(sample["npy"], of_sample["npy"])
        assert np.array_equal(sample["npz.a"], of_sample["npz"]["a"])
        assert (sample["npz.b"], sample["npz.b"].shape) == (of_sample["npz"]["b"], ())
        assert np.array_equal(sample["flac"], of_sample["flac"])
        assert sample["flac.rate"] == 8000


def test_keys_of_several_tars(tmp_path: Path) -> None:
    """Samples are named by their keys; if keys repeat, by the tar as well, which a remark says."""
    for tar in range(2):
        write(tmp_path / f"in/{tar}.tar", {f"{n}.txt": b"x" for n in range(3)})
        write(tmp_path / f"other/{tar}.tar", {f"{tar}{n}.txt": b"x" for n in range(3)})
    assert open_sources([str(tmp_path / "other")]).names == ["00", "01", "02", "10", "11", "12"]
    source = open_sources([str(tmp_path / "in")])
    assert source.names == ["0/0", "0/1", "0/2", "1/0", "1/1", "1/2"]
    assert any("3 keys are in several tars" in remark for remark in source.remarks)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("odd", ["", "comment"])
def test_every_form_of_header(tmp_path: Path, form: int, odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long names, other letters, folders and times; those of the usual forms are read without `tarfile`."""
    keys = ["a", "é", "long/" * 30 + "b", "long/" * 18 + "c" * 15, "d" * 90]
    with tarfile.open(
        tmp_path / "a.tar", "w", format=form, pax_headers={odd: "of all"} if odd == "comment" else {}
    ) as tar:
        for number, key in enumerate(keys):
            folder = tarfile.TarInfo(f"folder{number}")
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
            member = tarfile.TarInfo(f"{key}.txt")
            member.size, member.mtime = 600 * number, 1.5
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    if not odd:
        monkeypatch.delattr(tarfile.TarFile, "next")
    source = open_sources([str(tmp_path / "a.tar")])
    assert source.names == keys
    monkeypatch.delattr("packer.sources.tars.kind.index_of")  # the index is read once
    assert read_each(source)["txt"] == ["x" * 600 * number for number in range(5)]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"a.txt": b"x", "a.pyd": b"x"}, "--skip pyd"),
        ({"readme": b"x"}, "not a kind that is understood"),
        ({"a.txt": b"x", "b.txt": b"x", "a.cls": b"1"}, "do not lie side by side"),
        ({"a.cls": b"1.5"}, "no whole number"),
        ({"a.jpg": b"xxxx"}, r"a\.jpg: is no image"),
        ({"a.npy": b"xxxx"}, "cannot be read as an array"),
        ({"a.npy": encoded("npy", np.arange(3.0)) * 2}, "a.npy: has 152 bytes after its end"),
        ({"a.npz": encoded("npz", {"x": np.arange(3.0)}) + b"junk"}, "a.npz: has 4 bytes after its end"),
        ({"._a.npy": b""}, r"a\.tar: holds no file that is packed"),
        ({}, r"a\.tar: holds no file that is packed"),
        ({"a.txt": b"\xff\xfe\xff"}, "not text"),
    ],
)
def test_what_is_not_understood_is_named(tmp_path: Path, files: dict[str, bytes], words: str) -> None:
    """A member of another kind, or a damaged one, is an error with its name and what to do."""
    path = write(tmp_path / "a.tar", files)
    with pytest.raises(SourceError, match=words):
        read_each(open_sources([path]))


def test_skipped_members_and_bad_samples(tmp_path: Path) -> None:
    """`--skip` leaves out a suffix; a sample that lacks a member or holds a damaged one is named and left out."""
    files = members({f"{n}": {"jpg": values(n)["jpg"], "cls": n} for n in range(5)})
    files |= {
        "6.cls": b"6",
        "7.jpg": files["1.jpg"][:200],
        "7.cls": b"7",
        "8.jpg": files["1.jpg"],
        "8.cls": b"8",
        "8.pyd": b"",
    }
    path = write(tmp_path / "a.tar", files)
    errors: list[SourceError] = []
    source = open_sources([path], SourceOptions(skip=("pyd",)), Watcher(bad=errors.append))
    assert source.names == ["0", "1", "2", "3", "4", "8"]
    assert any("field image" in error.reason for error in errors)
    report = convert([path], tmp_path / "out", ConvertOptions(source=SourceOptions(skip=("pyd",)), on_error="skip"))
    assert report.manifest.samples == 6
    assert list(PackedDataset(tmp_path / "out").names) == ["0", "1", "2", "3", "4", "8"]


def test_a_damaged_tar_is_an_error(tmp_path: Path) -> None:
    """Wherever it is cut, or a header is changed, it is not taken for a shorter one, or for another."""
    path = Path(write(tmp_path / "a.tar", members({f"{n}": {"npy": values(n)["npy"]} for n in range(5)})))
    data = path.read_bytes()
    end = data.rstrip(b"\0")
    for cut in (100, 700, 1300, len(end) - 10):
        path.write_bytes(data[:cut])
        with pytest.raises(SourceError):
            read_each(open_sources([str(path)]))
    path.write_bytes(data.replace(b"3.npy", b"7.npy"))  # in a header, whose sum says so
    with pytest.raises(SourceError):
        read_each(open_sources([str(path)]))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # webdataset leaves the tar open
@pytest.mark.keeps_open
def test_export_to_tars_comes_back(tmp_path: Path) -> None:
    """What `packer export --to tar` writes is packed again with equal values, and read by webdataset."""
    path = write(tmp_path / "a.tar", members({f"a/{n:03d}": values(n) for n in range(4)}))
    convert([path], tmp_path / "one")
    report = export(tmp_path / "one", tmp_path / "tars", to="tar")
    assert report.files == 1
    convert([str(tmp_path / "tars")], tmp_path / "two")
    one, two = PackedDataset(tmp_path / "one"), PackedDataset(tmp_path / "two")
    (tar,) = map(str, (tmp_path / "tars").iterdir())
    for sample, key in zip(webdataset.WebDataset(tar, shardshuffle=False).decode("rgb8"), one.names, strict=True):
        ours = one[key]
        assert (sample["__key__"], sample["txt"], sample["cls"]) == (key, ours["txt"], int(ours["cls"]))
        assert np.array_equal(sample["npy"], ours["npy"])
        assert np.array_equal(sample["png"], ours["image"].permute(1, 2, 0))
    renamed = {
        "small.webp": "small.webp.png",
        "npz.a": "npz.a.npy",
        "npz.b": "npz.b.npy",
        "flac": "flac.npy",
        "flac.rate": "flac.rate.cls",
    }
    assert list(one.names) == list(two.names)
    for number in range(4):
        for name, value in one[number].items():
            again = two[number][renamed.get(name, name)]
            assert again == value if isinstance(value, str) else np.array_equal(again, value)
