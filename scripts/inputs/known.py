"""Small folders and files, made like those of datasets that people know, for the page on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import nibabel as nib
import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image

rng = np.random.default_rng(0)


def place(path: str) -> Path:
    """Return a path whose folder exists."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def picture(path: str, width: int = 32, height: int = 24) -> None:
    """Write an image of smooth noise."""
    shape = (height, width, 3)
    rows = np.cumsum(rng.integers(-3, 4, shape), axis=1) + 128
    Image.fromarray(rows.clip(0, 255).astype("u1")).save(place(path))


def mask(path: str, width: int = 32, height: int = 24, palette: bool = False) -> None:
    """Write an image of class numbers: rectangles of some classes, and 255 for what is ignored."""
    numbers = np.repeat(np.repeat(rng.choice([0, 1, 15, 255], (height // 8, width // 8)), 8, 0), 8, 1).astype("u1")
    image = Image.fromarray(numbers)
    if palette:
        image.putpalette(rng.integers(0, 256, 768, "u1").tolist())
    image.save(place(path))


def text(path: str, lines: Sequence[str]) -> None:
    """Write lines of text."""
    place(path).write_text("".join(f"{line}\n" for line in lines))


def array(path: str, values: NDArray[Any]) -> None:
    """Write a .npy file."""
    np.save(place(path), values)


def raw(path: str, values: NDArray[Any]) -> None:
    """Write the bytes of an array."""
    values.tofile(place(path))


def hdf5(path: str, arrays: Mapping[str, Any], **attrs: Any) -> None:
    """Write arrays by path into an HDF5 file."""
    with h5py.File(place(path), "w") as file:
        for name, values in arrays.items():
            file[name] = values
        file.attrs.update(attrs)


def demos(path: str, fields: Mapping[str, Any], count: int = 3) -> None:
    """Write demonstrations as robomimic has them."""
    with h5py.File(place(path), "w") as file:
        for n in range(count):
            for name, (shape, dtype) in fields.items():
                file[f"data/demo_{n}/{name}"] = (9 * rng.random((20 + n, *shape))).astype(dtype)
            file[f"data/demo_{n}"].attrs["num_samples"] = 20 + n
        file["mask/train"], file["mask/valid"] = [b"demo_0", b"demo_1"], [b"demo_2"]
        file["data"].attrs["env_args"] = "{}"


def make_known() -> None:
    """Make all of them in the present folder, the same each time."""
    rng.bit_generator.state = np.random.default_rng(0).bit_generator.state
    for n in (1, 2, 3):
        picture(f"DIV2K/DIV2K_train_HR/{n:04}.png", 128, 96)
        picture(f"DIV2K/DIV2K_train_LR_bicubic/X4/{n:04}x4.png")
        picture(f"Flickr2K/Flickr2K_HR/{n:06}.png", 128, 96)
        picture(f"Flickr2K/Flickr2K_LR_bicubic/X4/{n:06}x4.png")
    for clip in ("000", "001"):
        for n in range(4):
            picture(f"REDS/train/train_sharp/{clip}/{n:08}.png", 128, 96)
            picture(f"REDS/train/train_sharp_bicubic/X4/{clip}/{n:08}.png")
    for clip in ("00001/0001", "00001/0002", "00002/0001"):
        for n in range(1, 8):
            picture(f"vimeo_septuplet/sequences/{clip}/im{n}.png")
    text("vimeo_septuplet/sep_trainlist.txt", ["00001/0001", "00001/0002"])
    text("vimeo_septuplet/sep_testlist.txt", ["00002/0001"])
    for clip in ("GOPR0372_07_00", "GOPR0374_11_00"):
        for n in (47, 48):
            for kind in ("blur", "blur_gamma", "sharp"):
                picture(f"GOPRO_Large/train/{clip}/{kind}/{n:06}.png")
    for scene in ("0001", "0002"):
        for k in ("010", "011"):
            for kind in ("GT", "NOISY"):
                picture(f"SIDD_Medium_Srgb/Data/{scene}_001_S6_00100_00060_3200_L/{scene}_{kind}_SRGB_{k}.PNG")
    for wnid in ("n01440764", "n02105855"):
        for n in range(3):
            picture(f"imagenet/train/{wnid}/{wnid}_{n}.JPEG")
    picture("png.png")
    Path("png.png").rename("imagenet/train/n02105855/n02105855_2933.JPEG")
    for n in (9, 25, 30):
        picture(f"coco/images/train2017/{n:012}.jpg")
        if n != 30:
            text(f"coco/labels/train2017/{n:012}.txt", [f"{k} 0.5 0.5 0.25 0.25" for k in range(n % 7)])
    for n in range(3):
        raw(f"kitti/training/velodyne/{n:06}.bin", rng.normal(size=(1000, 4)).astype("<f4"))
        text(
            f"kitti/training/label_2/{n:06}.txt",
            ["Car 0.00 0 1.85 387.63 181.54 423.81 203.12 1.67 1.87 3.69 -16.53 2.39 58.49 1.57"],
        )
    for sequence in ("00", "08"):
        for n in range(2):
            raw(f"dataset/sequences/{sequence}/velodyne/{n:06}.bin", rng.normal(size=(1000, 4)).astype("<f4"))
            raw(f"dataset/sequences/{sequence}/labels/{n:06}.label", rng.integers(0, 2**18, 1000).astype("<u4"))
    for n in range(2):
        name = f"n015-2018-07-18-11-07-57+0800__LIDAR_TOP__153188353044937{n}.pcd.bin"
        raw(f"nuscenes/sweeps/LIDAR_TOP/{name}", rng.normal(size=(1000, 5)).astype("<f4"))
    for scene in ("scene0000_00", "scene0000_01"):
        head = ["ply", "format ascii 1.0", "element vertex 3"]
        head += [f"property float {axis}" for axis in "xyz"]
        head += [f"property uchar {colour}" for colour in ("red", "green", "blue", "alpha")]
        body = ["element face 1", "property list uchar int vertex_indices", "end_header"]
        body += [f"{k} {k} 0.5 {k} {k} {k} 255" for k in range(3)]
        text(f"scannet/scans/{scene}/{scene}_vh_clean_2.ply", [*head, *body, "3 0 1 2"])
        for name, dtype in (
            ("coord", "f4"),
            ("color", "u1"),
            ("normal", "f4"),
            ("segment20", "i2"),
            ("instance", "i2"),
        ):
            count = 500 + int(scene[-1])
            shape = (count, 3) if name in ("coord", "color", "normal") else (count,)
            array(f"pointcept/scannet/train/{scene}/{name}.npy", (10 * rng.random(shape)).astype(dtype))
    for room in ("Area_1/office_1", "Area_5/office_1", "Area_5/office_2"):
        for name, dtype in (("coord", "f4"), ("color", "u1"), ("segment", "i2"), ("instance", "i2")):
            count = 500 + int(room[-1])
            shape = (count, 3) if name in ("coord", "color") else (count,)
            array(f"pointcept/s3dis/{room}/{name}.npy", (4 * rng.random(shape)).astype(dtype))
    for name in ("airplane_0001", "airplane_0002", "bathtub_0001"):
        rows = [",".join(f"{v:.6f}" for v in row) for row in rng.normal(size=(200, 6))]
        text(f"modelnet40_normal_resampled/{name[:-5]}/{name}.txt", rows)
    text("modelnet40_normal_resampled/modelnet40_shape_names.txt", ["airplane", "bathtub"])
    text("modelnet40_normal_resampled/modelnet40_train.txt", ["airplane_0001", "bathtub_0001"])
    text("modelnet40_normal_resampled/modelnet40_test.txt", ["airplane_0002"])

    eye, pose = ((16, 16, 3), "u1"), ((7,), "f8")
    demos("robomimic/image.hdf5", {"actions": pose, "obs/agentview_image": eye, "obs/robot0_eef_pos": ((3,), "f8")})
    for task in ("pick_up_the_black_bowl_demo", "open_the_drawer_demo"):
        demos(f"libero_spatial/{task}.hdf5", {"actions": pose, "obs/agentview_rgb": eye, "obs/eye_in_hand_rgb": eye})
        with h5py.File(f"libero_spatial/{task}.hdf5", "a") as file:
            del file["mask"]
    for n in range(2):
        arrays = {"action": rng.random((40, 14)).astype("f4"), "observations/qpos": rng.random((40, 14)).astype("f4")}
        frames = {"observations/images/top": rng.integers(0, 9, (40, 24, 32, 3), "u1")}
        hdf5(f"sim_transfer_cube_scripted/episode_{n}.hdf5", {**arrays, **frames}, sim=True)
    steps = {"observations": rng.random((60, 11)).astype("f4"), "actions": rng.random((60, 3)).astype("f4")}
    ends = {"rewards": rng.random(60).astype("f4"), "terminals": np.arange(60) == 24, "timeouts": np.arange(60) == 49}
    more = {
        "infos/qpos": rng.random((60, 6)),
        "metadata/iteration": np.array(100),
        "metadata/policy/fc0/bias": np.zeros(8),
    }
    hdf5("hopper_medium-v2.hdf5", {**steps, **ends, **more})
    hdf5("pusht.hdf5", {"data/action": rng.random((35, 2)).astype("f4"), "meta/episode_ends": np.cumsum([12, 8, 15])})
    for n in range(2):
        kspace = (rng.normal(size=(5 + n, 64, 36)) + 1j).astype("c8")
        rss = rng.random((5 + n, 32, 32)).astype("f4")
        header = "<ismrmrdHeader/>"
        volume = {"kspace": kspace, "reconstruction_rss": rss, "ismrmrd_header": header}
        hdf5(
            f"singlecoil_train/file100000{n}.h5", volume, max=float(rss.max()), acquisition="CORPD_FBK", patient_id="0"
        )
    for case in ("00000", "00002"):
        for kind in ("flair", "t1", "t1ce", "t2", "seg"):
            image = nib.Nifti1Image(rng.integers(0, 5, (24, 24, 16), "i2"), np.eye(4))  # type: ignore[no-untyped-call]
            nib.save(image, place(f"BraTS2021/BraTS2021_{case}/BraTS2021_{case}_{kind}.nii.gz"))
    counts = rng.integers(1, 5, 60)
    matrix = {"X/data": rng.random(counts.sum()).astype("f4"), "X/indptr": np.concatenate([[0], np.cumsum(counts)])}
    matrix["X/indices"] = np.concatenate([np.arange(count) for count in counts]).astype("i4")
    names = {"obs/louvain/codes": rng.integers(0, 3, 60).astype("i1"), "obs/louvain/categories": ["B", "NK", "T"]}
    hdf5("pbmc3k.h5ad", {**matrix, **names, "obsm/X_pca": rng.random((60, 5)), "var/n_cells": np.arange(100)})
    for split, city in (("train", "aachen"), ("train", "bochum"), ("val", "lindau"), ("test", "bonn")):
        for n in range(2):
            frame = f"{split}/{city}/{city}_00000{n}_000019"
            picture(f"cityscapes/leftImg8bit/{frame}_leftImg8bit.png", 64, 32)
            for kind in ("labelIds", "instanceIds", "color"):
                mask(f"cityscapes/gtFine/{frame}_gtFine_{kind}.png", 64, 32)
            text(f"cityscapes/gtFine/{frame}_gtFine_polygons.json", ["{}"])
    for n in (32, 33, 39, 42, 61):
        picture(f"VOC2012/JPEGImages/2007_{n:06}.jpg")
        if n < 40:
            mask(f"VOC2012/SegmentationClass/2007_{n:06}.png", palette=True)
    text("VOC2012/ImageSets/Segmentation/train.txt", ["2007_000032", "2007_000039"])
    text("VOC2012/ImageSets/Segmentation/val.txt", ["2007_000033"])
    text("VOC2012/ImageSets/Segmentation/trainval.txt", ["2007_000032", "2007_000033", "2007_000039"])
    make_more_known()


def make_more_known() -> None:
    """Make those of segmentation, flow, simulations, cells, small pictures, sound and faces."""
    for split, name in (("training", "train"), ("validation", "val")):
        for n in (1, 2, 3):
            picture(f"ADEChallengeData2016/images/{split}/ADE_{name}_{n:08}.jpg", 32 + 8 * n)
            mask(f"ADEChallengeData2016/annotations/{split}/ADE_{name}_{n:08}.png", 32 + 8 * n)
    for scene in ("alley_1", "ambush_2"):
        for n in (1, 2, 3):
            picture(f"MPI-Sintel/training/final/{scene}/frame_{n:04}.png")
            if n < 3:
                head = b"PIEH" + np.array([32, 24], "<i4").tobytes()
                flow = rng.normal(size=(24, 32, 2)).astype("<f4")
                place(f"MPI-Sintel/training/flow/{scene}/frame_{n:04}.flo").write_bytes(head + flow.tobytes())
    grid = {"t-coordinate": np.linspace(0, 2, 12, dtype="f4"), "x-coordinate": np.linspace(0, 1, 64, dtype="f4")}
    hdf5("1D_Advection_Sols_beta0.4.hdf5", {"tensor": rng.normal(size=(6, 11, 64)).astype("f4"), **grid})
    with h5py.File("2D_diff-react_NA_NA.h5", "w") as file:
        for n in range(3):
            file[f"{n:04}/data"] = rng.normal(size=(11, 16, 16, 2)).astype("f4")
            for axis, count in (("x", 16), ("y", 16), ("t", 11)):
                file[f"{n:04}/grid/{axis}"] = np.linspace(0, 1, count, dtype="f4")
    counts = rng.integers(1, 5, 40)
    matrix = {"data": rng.integers(1, 9, counts.sum()).astype("i4"), "shape": np.array([100, 40], "i4")}
    matrix |= {"indices": np.concatenate([np.arange(count) for count in counts]).astype("i8")}
    matrix |= {"indptr": np.concatenate([[0], np.cumsum(counts)]).astype("i8")}
    matrix |= {"barcodes": np.array([f"AAAC{n:04}-1" for n in range(40)], "S18")}
    matrix |= {f"features/{name}": np.array([f"{name}{n}" for n in range(100)], "S") for name in ("id", "name")}
    hdf5("filtered_feature_bc_matrix.h5", {f"matrix/{name}": values for name, values in matrix.items()})
    splits = {"train": 8, "val": 3, "test": 4}
    medical = {f"{name}_images": rng.integers(0, 256, (count, 28, 28), "u1") for name, count in splits.items()}
    medical |= {f"{name}_labels": rng.integers(0, 2, (count, 1), "u1") for name, count in splits.items()}
    np.savez("pneumoniamnist.npz", **medical)  # type: ignore[arg-type]
    for kind in ("AnnualCrop", "Forest"):
        for n in (1, 2, 3):
            picture(f"EuroSAT_RGB/{kind}/{kind}_{n}.jpg", 64, 64)
            bands = rng.integers(0, 3000, (16, 16, 13), "u2")
            options = {"photometric": "minisblack", "planarconfig": "contig"}
            tifffile.imwrite(place(f"EuroSAT_MS/{kind}/{kind}_{n}.tif"), bands, **options)  # type: ignore[arg-type]
    for n, seconds in enumerate((10, 7, 10, 3)):
        array(f"audioset/waves/clip{n}.npy", rng.normal(size=1600 * seconds).astype("f4"))
        array(f"audioset/mel/clip{n}.npy", rng.normal(size=(100 * seconds, 64)).astype("f4"))
    rows = ["image_name," + ",".join(f"part_{k}_{axis}" for k in range(68) for axis in "xy")]
    for name in ("0805personali01.jpg", "1084239450_e76e00b7e7.jpg", "person-7.jpg"):
        picture(f"faces/{name}", 40 + len(name), 48)
        rows.append(",".join([name, *map(str, rng.integers(0, 40, 136).tolist())]))
    text("faces/face_landmarks.csv", rows)
