"""NIfTI volumes as nnU-Net names them, made from the head scan that nibabel ships: two channels and a mask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from numpy.typing import NDArray

CASES = 12
_SCAN = Path(nibabel.__file__).parent / "tests" / "data" / "anatomical.nii"


def make_volumes(out: Path) -> None:
    """Write `out`/imagesTr (T1 as _0000, T2 as _0001, int16) and `out`/labelsTr (uint8, 1 in a lesion), .nii.gz.

    Lesions are balls, darker than the head in T1 and brighter in T2. No two volumes have one size.
    """
    scan: Any = nibabel.load(_SCAN)
    head = np.kron(np.asarray(scan.dataobj, np.float32), np.ones((2, 2, 2), np.float32))  # (66, 82, 50)
    affine = scan.affine @ np.diag([0.5, 0.5, 0.5, 1.0])
    rng = np.random.default_rng(3)
    for folder in ("imagesTr", "labelsTr"):
        (out / folder).mkdir(parents=True)
    for case in range(CASES):
        size = np.array([42 + case, 56, 40])
        corner = rng.integers(0, np.array(head.shape) - size + 1)
        cut = head[tuple(slice(start, start + length) for start, length in zip(corner, size, strict=True))]
        label = np.zeros(cut.shape, np.uint8)
        for _ in range(4):
            away = np.indices(cut.shape) - rng.integers(8, size - 8)[:, None, None, None]
            label[(away**2).sum(axis=0) < rng.integers(3, 8) ** 2] = 1
        place = affine.copy()
        place[:3, 3] += affine[:3, :3] @ corner
        name = f"head_{case:03d}"
        _save(label, place, out / f"labelsTr/{name}.nii.gz")
        for channel, change in enumerate((-0.3, 0.5)):
            values = cut * (1 + change * label) + rng.normal(0, 0.05 * head.max(), cut.shape)
            _save(values.astype(np.int16), place, out / f"imagesTr/{name}_{channel:04d}.nii.gz")


def _save(values: NDArray[Any], affine: NDArray[Any], path: Path) -> None:
    made: Any = nibabel.Nifti1Image  # which has no types
    made(values, affine).to_filename(path)
