"""Which parts of samples are read: crops, windows of steps, points or voxels of clouds, or several of these."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from packer.errors import UsageError
from packer.format import Field, Numbers
from readers.crop import IS_DATA, Crop, CropReader, Placing, is_random, make_is_data_reader
from readers.fields import Describe, FieldReader, Places, WholeReader
from readers.indexing import Items
from readers.points import PointSample, PointsReader, make_row_chooser
from readers.resized import ResizedCrop, ResizedReader
from readers.valid import remark
from readers.voxels import VoxelReader, Voxels, VoxelSample
from readers.windows import IS_PAD, WindowReader, Windows, make_pad_reader

#: Words in names of fields that say where something is in an image, or which way it moves there.
_TURNED = {"flow", "normals"}
_MOVED = _TURNED | {"box", "boxes", "bbox", "bboxes", "keypoint", "keypoints", "landmark", "landmarks"}


def with_image(crop: Crop | ResizedCrop, fields: Mapping[str, Field]) -> Crop | ResizedCrop:
    """Return a crop that names its field: `of`, or else the only image that is read.

    Raises:
        UsageError: there is no image, or there are several.
    """
    if crop.of:
        return crop
    others = crop.aligned if isinstance(crop, Crop) else ()
    images = [field.name for field in fields.values() if field.kind == "image" and field.name not in others]
    if len(images) != 1:
        read = f"the images {', '.join(images)} are read" if images else "no image is read"
        raise UsageError(
            f"{type(crop).__name__}: {read}; name the field that is cropped: {type(crop).__name__}(..., of=FIELD)"
        )
    return replace(crop, of=images[0])


@dataclass(frozen=True)
class Parts:
    """What a dataset was asked to read of each sample; whole samples if none of these is given."""

    crop: Crop | ResizedCrop | None
    points: PointSample | VoxelSample | None
    windows: Windows | None

    def __bool__(self) -> bool:
        return self.crop is not None or self.points is not None or self.windows is not None

    @cached_property
    def draws(self) -> bool:
        """Return whether parts are random, so that two visits of one sample may differ."""
        points, crop, windows = self.points, self.crop, self.windows
        points_differ = points is not None and points.choose == "random"
        crops_differ = crop.is_random if isinstance(crop, ResizedCrop) else crop is not None and is_random(crop)
        return points_differ or crops_differ or (windows is not None and windows.one)

    @cached_property
    def asks(self) -> bool:
        """Return whether a function of the caller's says which part of each sample is read."""
        return isinstance(self.crop, Crop) and callable(self.crop.at)

    def check(self, fields: Mapping[str, Field], samples: int) -> None:
        """Raise UsageError if a dataset of these fields cannot be read like this, as far as its schema tells.

        Args:
            samples: of the dataset that is read, or of its split.
        """
        crop, windows, points = self.crop, self.windows, self.points
        if crop is not None and not isinstance(crop, Crop | ResizedCrop):
            raise UsageError(
                f'crop {crop!r}: a readers.Crop or ResizedCrop is expected, such as Crop(size=64, of="hr")'
            )
        if windows is not None:
            if not isinstance(windows, Windows):
                raise UsageError(f"windows {windows!r}: a readers.Windows is expected, such as Windows(16, stride=4)")
            if points is not None:
                raise UsageError(
                    "windows and points do not go together: steps have an order, points do not; leave out one"
                )
            windows.check(fields)
        if isinstance(crop, ResizedCrop):
            crop.check(fields, windows.offsets(fields) if windows else ())
        if isinstance(crop, Crop):
            crop.check(fields, samples, windows.offsets(fields) if windows else ())
        if crop is not None:
            _remark_left(crop, fields)
        masks = [name + IS_DATA for name in crop.scales] if isinstance(crop, Crop) and crop.pad else []
        masks += [name + IS_PAD for name in windows.offsets(fields)] if windows and windows.fill else []
        for name in masks:
            if name in fields:
                raise UsageError(f"a mask and a field would both be called {name!r}; choose other fields: fields=[...]")
        if points is not None:
            if not isinstance(points, PointSample | VoxelSample):
                raise UsageError(
                    f"points {points!r}: a number of points or a readers.PointSample or VoxelSample is expected"
                )
            points.candidates(fields)

    def readers(
        self,
        fields: Mapping[str, Field],
        places: Mapping[str, Places],
        samples: Items,
        describe: Describe,
        compared: Numbers | None = None,
    ) -> dict[str, FieldReader]:
        """Return the readers of the fields of which parts are read, by name; the others are read whole.

        Args:
            fields: those that are read.
            places: by field, where its samples lie.
            samples: those of the whole dataset, or of a split.
            describe: gives a sample in words, by its number.
            compared: samples whose shapes are compared, (n,), by numbers in the whole dataset; by default all. Others
                are compared when they are read.

        Raises:
            UsageError: a field would have to be cropped and sampled by points, or fields that are cropped together do
                not have the sizes for it, or fields of one cloud do not have one row a point in every sample.
        """
        readers: dict[str, FieldReader] = {}
        crop, points = self.crop, self.points
        steps = self.windows.steps_of(fields) if self.windows else {}
        if isinstance(crop, ResizedCrop):
            readers[crop.of] = ResizedReader(places[crop.of], crop, describe)
        elif crop:
            axes = {name: crop.first_axis(fields[name], name in steps) for name in crop.scales}
            placing = Placing(crop, places[crop.of], axes[crop.of], describe, samples)
            for name, scale in crop.scales.items():
                readers[name] = crops = CropReader(places[name], axes[name], placing, scale, steps.get(name))
                if name != crop.of and compared is None:
                    crops.check_sizes(samples)
                if crop.pad:
                    readers[name + IS_DATA] = make_is_data_reader(crops)
        if points:
            tied = points.candidates(fields)
            if isinstance(points, VoxelSample) or points.fields is None:
                first = places[tied[0]]
                untied = [name for name in tied if not places[name].has_shapes_of(first, compared)]
                for name in untied:
                    _check_untied(places[name], first, describe, compared)
                tied = [name for name in tied if name not in untied]
            if set(tied) & set(readers):
                raise UsageError(
                    "crop and points do not go together for a field; name others: PointSample(..., fields=[...])"
                )
            if isinstance(points, VoxelSample):
                voxels = Voxels(points, WholeReader(places[tied[0]]), describe)
                readers |= {name: VoxelReader(places[name], voxels) for name in tied}
            else:
                first, count, rows = places[tied[0]], int(points.count), make_row_chooser(points)
                readers |= {name: PointsReader(places[name], first, count, rows, describe) for name in tied}
        for name, field_steps in steps.items():
            if name not in readers:
                readers[name] = WindowReader(places[name], field_steps)
            if field_steps.pad:
                readers[name + IS_PAD] = make_pad_reader(places[name], field_steps)
        return readers


def _remark_left(crop: Crop | ResizedCrop, fields: Mapping[str, Field]) -> None:
    """Say which fields look as if a crop had to change them, by their names, and stay as they are."""
    if isinstance(crop, ResizedCrop):
        cropped, mirrors = [crop.of], crop.flips
    else:
        cropped, mirrors = [*crop.scales], crop.flips or crop.turns
    for name in fields:
        words = set(re.split(r"[\W_]+", name.lower()))
        if words & _MOVED and name not in cropped:
            remark(f"field {name!r} stays as it is beside a crop, whose place and flips it does not follow")
        elif words & _TURNED and name in cropped and mirrors:
            remark(f"field {name!r} is flipped or turned with the crop, and the signs of its values stay as they are")


def _check_untied(field: Places, first: Places, describe: Describe, compared: Numbers | None) -> None:
    """Raise UsageError if a field has a row for each point in most samples, but not in all.

    It would come whole beside the chosen points, without a word. Faces of a mesh have a length of their own everywhere.
    """
    numbers = np.arange(field.first[-1]) if compared is None else compared
    lengths, points = field.lengths(numbers), first.lengths(numbers)
    wrong = np.flatnonzero(lengths != points)
    if 2 * len(wrong) < len(lengths):
        number = int(wrong[0])
        name, first_name = field.field.name, first.field.name
        raise UsageError(
            f"{describe(number)}: field {name!r} has {lengths[number]} rows and {first_name!r} {points[number]}, and "
            f"in most samples as many, so its points cannot be chosen with those of {first_name!r}; choose other "
            "fields with fields=[...], or pack the sample again from files of one length"
        )
