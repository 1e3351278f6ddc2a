"""One small dataset of every kind of source, unit and option: how it is written, and how it is packed."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import nibabel
import numpy as np
import pyarrow as pa
from click.testing import CliRunner
from PIL import Image
from plyfile import PlyData, PlyElement
from pyarrow import parquet

from packer.cli import main
from tests.helpers import lerobot_files
from tests.helpers.hdf5_files import write_hdf5
from tests.helpers.picture_files import picture, save
from tests.helpers.video_files import video
from tests.helpers.zarr_files import write_zarr


class Kind(NamedTuple):
    """One way to make a dataset.

    Attributes:
        write: given an empty folder and a number, writes the files of a source, different ones for each number; returns
            their arguments on the command line.
        source: kind of its files, the name of its record.
        options: of `convert`, and of all commands that read the sources again.
        codec: of `convert` alone.
        kept: names of the arrays that are kept once for all samples.
        to: options of an export back to files of this kind; None if only HDF5 can hold the samples.
    """

    write: Callable[[Path, int], list[str]]
    source: str
    options: tuple[str, ...] = ()
    codec: str = "none"
    kept: str = ""
    to: tuple[str, ...] | None = ()


def hdf5(arrays: Callable[[np.random.Generator], dict[str, Any]], **attrs: Any) -> Callable[[Path, int], list[str]]:
    """Return a function that writes one file of these datasets."""

    def write(folder: Path, number: int) -> list[str]:
        path = folder / f"part{number}.h5"
        write_hdf5(path, arrays(np.random.default_rng(number)), **attrs)
        return [str(path)]

    return write


def hdf5_files(folder: Path, number: int) -> list[str]:
    for n in range(3):
        write_hdf5(folder / f"f{number}{n}.h5", {"x": np.full((n + 2, 3), n, "f4"), "grid": np.arange(5.0)}, speed=n)
    return [str(folder)]


def groups(number: int, **more: Any) -> Callable[[np.random.Generator], dict[str, Any]]:
    """Return a function that makes groups, each with an array x of its own and the arrays `more`, which all share."""

    def made(rng: np.random.Generator) -> dict[str, Any]:
        first = rng.integers(1000)
        each = {f"demo_{first}_{n}": {"x": rng.normal(size=(n + 1, 4)), **more} for n in range(number)}
        return {f"{group}/{name}": values for group, held in each.items() for name, values in held.items()}

    return made


def csr(rng: np.random.Generator) -> dict[str, Any]:
    lengths = np.array([0, 2, 3, 1, 0, 4, 1])
    return {
        "X/data": rng.normal(size=lengths.sum()).astype("f4"),
        "X/indices": np.concatenate([np.arange(n) for n in lengths]).astype("i4"),
        "X/indptr": np.concatenate([[0], np.cumsum(lengths)]).astype("i4"),
        "y": np.arange(7),
    }


def npy_rows(folder: Path, number: int) -> list[str]:
    rng = np.random.default_rng(number)
    np.save(folder / "x.npy", rng.integers(0, 255, (5 + number, 8, 9), dtype=np.uint8))
    np.save(folder / "y.npy", np.arange(5 + number))
    return [f"x={folder / 'x.npy'}", f"y={folder / 'y.npy'}"]


def npy_files(folder: Path, number: int) -> list[str]:
    for n in range(4):
        place = folder / "ab"[n % 2] / f"n{number}{n}.npy"
        place.parent.mkdir(exist_ok=True)
        np.save(place, np.random.default_rng(n).normal(size=(n + 1, 3)))
    return [str(folder)]


def npy_folders(folder: Path, number: int) -> list[str]:
    for n in range(3):
        place = folder / f"episode{number}{n}"
        place.mkdir()
        np.save(place / "state.npy", np.random.default_rng(n).normal(size=(n + 1, 3)))
        np.save(place / "action.npy", np.full((n + 1,), n + number))
    return [str(folder)]


def npy_episodes(folder: Path, number: int) -> list[str]:
    path = folder / f"flat{number}.npz"
    np.savez(path, x=np.random.default_rng(number).normal(size=(9, 4)), ends=np.array([2, 3, 7, 9]))
    return [str(path)]


def pictures(folder: Path, number: int) -> list[str]:
    for n in range(5):
        save(folder / "ab"[n % 2] / f"p{number}{n}.png", picture(8, 8 + 4 * (n % 2), seed=n))
    return [str(folder)]


def boxes(folder: Path, number: int) -> list[str]:
    for n in range(4):
        save(folder / "images" / f"p{number}{n}.png", picture(8, 8, seed=n))
        (folder / "captions").mkdir(exist_ok=True)
        (folder / "captions" / f"p{number}{n}.txt").write_text(f"picture {n}\n")
    coco = {
        "images": [{"id": 9 - n, "file_name": f"p{number}{n}.png"} for n in range(4)],
        "annotations": [
            {"id": n, "image_id": 9 - n % 4, "category_id": n % 2, "bbox": [n, 1, 2, 0.5], "area": 1}
            for n in (1, 2, 3, 5)
        ],
        "categories": [{"id": 1, "name": "one"}, {"id": 0, "name": "zero"}],
    }
    (folder / "instances.json").write_text(json.dumps(coco))
    return [f"image={folder / 'images'}", f"boxes={folder / 'instances.json'}", f"caption={folder / 'captions'}"]


def photographs(folder: Path, number: int) -> list[str]:
    for n in range(5):
        save(folder / f"p{number}{n}.jpg", picture(8, 8 + 4 * (n % 2), seed=n), quality=90)
    return [str(folder)]


def pairs(folder: Path, number: int) -> list[str]:
    names = [f"{number}{n}" for n in range(5)]
    for n, name in enumerate(names):
        save(folder / "lr" / f"{name}x2.png", picture(8, 8, seed=n))
        save(folder / "hr" / f"{name}.png", picture(16, 16, seed=10 + n))
    return [f"lr={folder / 'lr'}", f"hr={folder / 'hr'}"]


def basicsr(folder: Path, number: int) -> list[str]:
    place = folder / f"hr{number}.lmdb"
    lines = []
    with lmdb.open(str(place), map_size=2**24) as env, env.begin(write=True) as txn:
        for n in range(5):
            key, file = f"clip{number}{n % 2}/{n:03d}", folder / f"{n}.png"
            save(file, picture(6, 7, seed=n))
            txn.put(key.encode(), file.read_bytes())
            lines.append(f"{key}.png (6,7,3) 1\n")
            file.unlink()
    (place / "meta_info.txt").write_text("".join(lines))
    return [f"hr={place}"]


def clips(folder: Path, number: int) -> list[str]:
    for n in range(6):
        save(folder / f"clip{number}{n % 2}" / f"{n:03d}.png", picture(6, 7, seed=n))
    return [str(folder)]


def ply(folder: Path, number: int) -> list[str]:
    for n in range(4):
        names = ["x", "y", "z", "rot_0", "rot_1"]
        rows = np.random.default_rng(number + n).normal(size=(n + 1, 5)).astype("f4")
        table = np.rec.fromarrays(rows.T, names=",".join(names))
        PlyData([PlyElement.describe(np.asarray(table), "vertex")]).write(str(folder / f"c{number}{n}.ply"))
    return [str(folder)]


def clouds(folder: Path, number: int) -> list[str]:
    for n in range(4):
        np.random.default_rng(n).normal(size=(n + 1, 4)).astype("<f4").tofile(folder / f"c{number}{n}.bin")
    return [str(folder)]


def volumes(folder: Path, number: int) -> list[str]:
    for n in range(3):
        rng, name = np.random.default_rng(n), f"case{number}{n}"
        for place, dtype in ((f"images/{name}_0000", "i2"), (f"images/{name}_0001", "i2"), (f"labels/{name}", "u1")):
            path = folder / f"{place}.nii.gz"
            path.parent.mkdir(exist_ok=True)
            nibabel.save(nibabel.Nifti1Image(rng.integers(0, 9, (4 + n, 5, 6), dtype), np.eye(4)), path)
    return [f"image={folder / 'images'}", f"label={folder / 'labels'}"]


def rows(rng: np.random.Generator) -> dict[str, Any]:
    return {"x": rng.normal(size=(9, 4)), "label": rng.integers(0, 9, 9), "text": [f"row {n}" for n in range(9)]}


def grid(rng: np.random.Generator) -> dict[str, Any]:
    return {"u": rng.normal(size=(5, 4)), "grid/x": np.arange(4.0), "grid/y": np.arange(3, dtype="i2")}


def flat(rng: np.random.Generator) -> dict[str, Any]:
    return {"data/x": rng.normal(size=(9, 4)), "meta/ends": np.array([2, 3, 7, 9])}


def tables(rng: np.random.Generator) -> dict[str, Any]:
    return {f"data/d{rng.integers(1000)}_{n}": rng.normal(size=(n + 1, 3)) for n in range(3)}


def zarr(arrays: Callable[[np.random.Generator], dict[str, Any]], version: int) -> Callable[[Path, int], list[str]]:
    """Return a function that writes one zarr of these arrays, a folder or, of version 3, a zip file."""

    def write(folder: Path, number: int) -> list[str]:
        path = folder / f"part{number}.zarr{'.zip' * (version == 3)}"
        write_zarr(path, arrays(np.random.default_rng(number)), version)
        return [str(path)]

    return write


def zarr_files(folder: Path, number: int) -> list[str]:
    for n in range(3):
        write_zarr(folder / f"z{number}{n}.zarr", {"x": np.full((n + 2, 3), n, "f4")}, 3)
    return [str(folder)]


def csv_rows(folder: Path, number: int) -> list[str]:
    (folder / f"t{number}.csv").write_text("x,name\n" + "".join(f"{n}.5,row {number}{n}\n" for n in range(9)))
    return [str(folder / f"t{number}.csv")]


def parquet_rows(folder: Path, number: int) -> list[str]:
    lists = [[number] * n for n in range(7)]
    table = pa.table({"x": np.arange(7) + number, "boxes": lists, "text": [f"row {n}" for n in range(7)]})
    parquet.write_table(table, folder / f"t{number}.parquet", row_group_size=3)
    return [str(folder / f"t{number}.parquet")]


def pictures_in_rows(folder: Path, number: int) -> list[str]:
    files = list[bytes]()
    for n in range(7):
        file = io.BytesIO()
        Image.fromarray(picture(8, 8 + 4 * (n % 2), seed=n + number)).save(file, "PNG")
        files.append(file.getvalue())
    table = pa.table({"image": [{"bytes": file, "path": ""} for file in files], "label": np.arange(7) % 2})
    parquet.write_table(table, folder / f"t{number}.parquet", row_group_size=3)
    return [str(folder / f"t{number}.parquet")]


def files_of_rows(folder: Path, number: int) -> list[str]:
    for n in range(5):
        save(folder / "photos" / f"p{number}{n}.png", picture(8, 8 + 4 * (n % 2), seed=n))
    lines = [f"photos/p{number}{n}.png,{n}.5,{n}" for n in (3, 0, 4, 1, 2)]
    (folder / f"t{number}.csv").write_text("\n".join(["image,x,y", *lines]) + "\n")
    return [str(folder / f"t{number}.csv")]


def table_beside(folder: Path, number: int) -> list[str]:
    files_of_rows(folder, number)
    return [f"image={folder / 'photos'}", f"label={folder / f't{number}.csv'}"]


def tars(folder: Path, number: int) -> list[str]:
    with tarfile.open(folder / f"{number}.tar", "w") as tar:
        for n in range(5):
            file = io.BytesIO()
            Image.fromarray(picture(8, 8 + 4 * (n % 2), seed=n)).save(file, "PNG")
            for suffix, data in (("png", file.getvalue()), ("txt", b"text %d" % n), ("cls", b"%d" % n)):
                member = tarfile.TarInfo(f"{number}{n}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return [str(folder)]


def robots(folder: Path, number: int) -> list[str]:
    return [str(lerobot_files.write(folder / f"robot{number}", "v3.0"))]


def pcd(folder: Path, number: int) -> list[str]:
    head = "VERSION .7\nFIELDS x y z rgb label\nSIZE 4 4 4 4 2\nTYPE F F F U U\nWIDTH {0}\nPOINTS {0}\nDATA binary\n"
    for n in range(4):
        points = np.zeros(5 + n, [("xyz", "<f4", 3), ("rgb", "<u4"), ("label", "<u2")])
        points["xyz"] = np.random.default_rng(number + n).normal(size=(5 + n, 3))
        (folder / f"c{number}{n}.pcd").write_bytes(head.format(5 + n).encode() + points.tobytes())
    return [str(folder)]


def las(folder: Path, number: int) -> list[str]:
    import laspy  # here, since most tests that use this module do without

    for n in range(4):
        scan: Any = laspy.create(point_format=2, file_version="1.2")
        scan.xyz = np.random.default_rng(number + n).normal(size=(5 + n, 3))
        scan.write(folder / f"s{number}{n}.la{'sz'[n % 2]}")
    return [str(folder)]


def flows(folder: Path, number: int) -> list[str]:
    for n in range(4):
        values = np.random.default_rng(n).normal(size=(5, 4 + n, 2)).astype("<f4")
        (folder / f"f{number}{n}.flo").write_bytes(b"PIEH" + np.array([4 + n, 5], "<i4").tobytes() + values.tobytes())
    return [str(folder)]


def videos(folder: Path, number: int) -> list[str]:
    for n in range(3):
        video(folder / f"v{number}{n}.mp4", frames=3 + n)
    return [f"clip={folder}"]


KINDS = {
    "rows": Kind(hdf5(rows), "hdf5"),
    "axis": Kind(hdf5(lambda rng: {"x": rng.normal(size=(4, 9))}), "hdf5", ("--axis", "-1")),
    "rows and constants": Kind(hdf5(grid), "hdf5", ("--once", "grid"), kept="grid.x, grid.y"),
    "sparse rows": Kind(hdf5(csr), "hdf5", ("--sparse", "X")),
    "pictures in rows": Kind(hdf5(lambda rng: {"x": rng.integers(0, 9, (5, 6, 7), "u1")}), "hdf5", ("--image", "x")),
    "files of HDF5": Kind(hdf5_files, "hdf5", ("--samples", "files", "--attr", "speed", "--once", "grid"), kept="grid"),
    "datasets": Kind(hdf5(tables), "hdf5", ("--samples", "datasets")),
    "groups": Kind(hdf5(groups(3), note="a"), "hdf5", ("--samples", "groups:/*", "--attr", "note")),
    "groups and constants": Kind(
        hdf5(groups(2, grid=np.arange(3))), "hdf5", ("--samples", "groups", "--once", "grid"), kept="grid"
    ),
    "episodes": Kind(hdf5(flat), "hdf5", ("--samples", "episodes:meta/ends")),
    "rows of zarr": Kind(zarr(lambda rng: {"x": rng.normal(size=(9, 4)), "y": np.arange(9)}, 2), "zarr"),
    "zarr files": Kind(zarr_files, "zarr", ("--samples", "files")),
    "arrays of zarr": Kind(zarr(tables, 2), "zarr", ("--samples", "datasets")),
    "groups of zarr": Kind(zarr(groups(3), 3), "zarr", ("--samples", "groups")),
    "zarr episodes": Kind(zarr(flat, 2), "zarr", ("--samples", "episodes:meta/ends")),
    "npy rows": Kind(npy_rows, "npy", to=("--to", "npy")),
    "pictures in npy": Kind(npy_rows, "npy", ("--image", "x"), codec="x=photo+zstd,y=none", to=("--to", "npy")),
    "npy episodes": Kind(npy_episodes, "npy", ("--samples", "episodes:ends")),
    "npy files": Kind(npy_files, "npy", ("--samples", "files"), to=("--to", "npy")),
    "classes of npy files": Kind(npy_files, "npy", ("--samples", "files", "--label", "folder"), to=("--to", "npy")),
    "npy folders": Kind(npy_folders, "npy", ("--samples", "folders"), to=("--to", "npy")),
    "pictures": Kind(pictures, "images", codec="photo+lz4"),
    "photographs": Kind(photographs, "images", codec="jpeg"),
    "classes of pictures": Kind(pictures, "images", ("--label", "folder"), to=("--fields", "image")),
    "squares": Kind(pairs, "images", ("--patch", "8", "--stride", "4")),
    "downscaled": Kind(pictures, "images", ("--downscale", "2", "--kernel", "matlab")),
    "squares of downscaled": Kind(pictures, "images", ("--downscale", "2", "--patch", "4")),
    "pairs": Kind(pairs, "images", codec="photo+zstd"),
    "boxes and captions": Kind(boxes, "images", to=("--fields", "image")),
    "LMDB of BasicSR": Kind(basicsr, "basicsr"),
    "clips in LMDB": Kind(basicsr, "basicsr", ("--samples", "folders")),
    "clips": Kind(clips, "images", ("--samples", "folders")),
    "PLY": Kind(ply, "ply"),
    "PLY, one by one": Kind(ply, "ply", ("--group", "none")),
    "clouds of PCL": Kind(pcd, "pcd"),
    "LAS and LAZ": Kind(las, "las"),
    "volumes": Kind(volumes, "nifti"),
    "videos": Kind(videos, "video", ("--short", "16")),
    "robots": Kind(robots, "lerobot", ("--skip", "next.done")),
    "optical flow": Kind(flows, "flow", to=None),
    "tars": Kind(tars, "tars"),
    "rows of CSV": Kind(csv_rows, "tables"),
    "rows of Parquet": Kind(parquet_rows, "tables"),
    "pictures in Parquet": Kind(pictures_in_rows, "tables"),
    "files of a table": Kind(files_of_rows, "tables", ("--files", "image", "--columns", "p=x,y:float32")),
    "table beside pictures": Kind(table_beside, "images", ("--columns", "p=x,y:float32"), to=("--fields", "image")),
    "clouds": Kind(clouds, "clouds", ("--columns", "x,y,z,intensity:float32")),
}
#: Kinds whose packed datasets differ in form: enough for what never reads a source.
FORMS = (
    "rows and constants",
    "sparse rows",
    "groups",
    "groups and constants",
    "episodes",
    "pictures in npy",
    "classes of pictures",
    "photographs",
    "pairs",
    "boxes and captions",
    "clips",
    "PLY",
    "videos",
    "robots",
    "files of a table",
)
SPLITS = ("--split", "train=0.6", "--split", "rest=0.4")


def run(*words: object, status: int = 0) -> str:
    """Run a command that must end with this status; return its output."""
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == status, f"{words}: {result.exit_code}: {result.output} {result.exception!r}"
    return result.output


class Dataset(NamedTuple):
    """A packed dataset, its kind and its sources."""

    kind: Kind
    path: Path
    sources: list[str]


def make(kind: Kind, tmp_path: Path, number: int = 1) -> Dataset:
    folder, path = tmp_path / f"source{number}", tmp_path / f"{number}.packed"
    folder.mkdir()
    sources = kind.write(folder, number)
    run(
        "convert", *sources, path, *kind.options, *SPLITS, "--codec", kind.codec, "--workers", 0, "--shard-size", "4KiB"
    )
    return Dataset(kind, path, sources)
