"""Tables: digits that scikit-learn ships, as HDF5 and parquet; a CSV of photographs; demonstrations as robomimic's."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray
from PIL import Image

ROWS = 60
DEMOS, PIXELS, SPEED = 60, 32, 2.0


def make_digits(path: Path) -> None:
    """Write `path`: `images` (n, 8, 8) uint8, 0 to 16, and `labels` (n,) int64."""
    from sklearn.datasets import load_digits  # here, since every fork of a process that holds it takes twice as long

    digits = load_digits()
    with h5py.File(path, "w") as file:
        file.attrs["description"] = "hand-written digits, 0 (white) to 16 (black)"
        # Times in the file would make every run's bytes different; h5py leaves them out by default.
        file["images"] = digits.images.astype(np.uint8)
        file["labels"] = digits.target.astype(np.int64)


def make_digits_table(path: Path) -> None:
    """Write `path`: 60 digits as `datasets` of Hugging Face writes them: `image`, a PNG file, and `label`, a class."""
    import pyarrow as pa
    from pyarrow import parquet
    from sklearn.datasets import load_digits

    digits, images = load_digits(), []
    for pixels in digits.images[:ROWS]:
        file = io.BytesIO()
        Image.fromarray((pixels * 15).astype(np.uint8)).save(file, "PNG")
        images.append({"bytes": file.getvalue(), "path": None})
    features = {"image": {"_type": "Image"}, "label": {"names": [str(n) for n in range(10)], "_type": "ClassLabel"}}
    types = pa.schema([("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("label", pa.int64())])
    table = pa.table({"image": images, "label": digits.target[:ROWS]}, types)
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    parquet.write_table(table.replace_schema_metadata(metadata), path)


def make_photographs_table(path: Path) -> None:
    """Write `path`: a line for each of 60 files of `photographs` beside it: its name, class and mean of each colour."""
    files = sorted((path.parent / "photographs").glob("*/*.jpg"), key=lambda file: (file.stem, file))[:ROWS]
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", "class", "red", "green", "blue"])
        for photograph in files:
            with Image.open(photograph) as image:
                mean = np.asarray(image).mean((0, 1)).round(2).tolist()
            table.writerow([photograph.relative_to(path.parent).as_posix(), photograph.parent.name, *mean])


def make_demos(path: Path) -> None:
    """Write `path`: demonstrations of a hand that goes to a box, a group `data/demo_i` each.

    A group has `actions` (T, 2) float32, `obs/agentview_image` (T, 32, 32, 3) uint8 and `obs/robot0_eef_pos` (T, 2)
    float32; in `mask` stand the names of the demos that are for training and for validation.
    """
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for number in range(DEMOS):
            hand, box = rng.uniform(4, PIXELS - 4, (2, 2))
            hands = [hand]
            while np.abs(box - hand).max() > 1:
                way = box - hand
                hand = hand + way * min(1.0, SPEED / np.hypot(*way)) + rng.normal(0, 0.1, 2)
                hands.append(hand)
            hands.append(box)
            places = np.array(hands, np.float32)
            demo = file.create_group(f"data/demo_{number}")
            demo["actions"] = np.diff(places, axis=0) / np.float32(SPEED)
            demo["obs/agentview_image"] = np.stack([_drawn(place, box) for place in places[:-1]])
            demo["obs/robot0_eef_pos"] = places[:-1] / PIXELS
            demo.attrs["num_samples"] = len(places) - 1
        for name, numbers in (("train", range(DEMOS - 10)), ("valid", range(DEMOS - 10, DEMOS))):
            file[f"mask/{name}"] = np.array([f"demo_{number}".encode() for number in numbers])


def _drawn(hand: NDArray[np.float32], box: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return a picture of the table: a green box and a red hand over it."""
    image = np.full((PIXELS, PIXELS, 3), 60, np.uint8)
    for place, colour in ((box, (40, 200, 40)), (hand, (220, 40, 40))):
        row, column = np.clip(np.round(place).astype(int), 2, PIXELS - 3)
        image[row - 2 : row + 3, column - 2 : column + 3] = colour
    return image
