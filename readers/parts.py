"""Which parts of samples are read: crops, windows of steps, points or voxels of clouds, or several of these."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from packer.errors import UsageError
from packer.format import Field, Numbers, find_meanings
from readers.boxes import BOX_FORMATS
from readers.crop import Crop
from readers.fields import Describe, FieldReader, Places
from readers.indexing import Items
from readers.points import PointSample
from readers.resized import ResizedCrop
from readers.voxels import VoxelSample
from readers.windows import Reading, Windows


class Part(Protocol):
    """What every part of samples answers: `Crop`, `ResizedCrop`, `Windows`, `PointSample` and `VoxelSample`."""

    @property
    def _draws(self) -> bool:
        """Return whether it is random, so that two visits of one sample may differ."""

    def _check(self, fields: Mapping[str, Field], samples: int, windowed: Collection[str]) -> list[str]:
        """Return the names of the masks that it adds to batches.

        Args:
            samples: how many are read.
            windowed: names of the fields of which windows are read.

        Raises:
            UsageError: fields or samples cannot be read like this, as far as the schema tells.
        """

    def _make_readers(self, reading: Reading, taken: Collection[str]) -> dict[str, FieldReader]:
        """Return the readers of the fields of which it reads a part, and of its masks, by name.

        Args:
            taken: fields that another part reads.

        Raises:
            UsageError: they cannot be read like this, or not beside the other part.
        """


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


def with_box_format(
    crop: Crop | ResizedCrop, fields: Mapping[str, Field], origin: Mapping[str, Any]
) -> Crop | ResizedCrop:
    """Return a crop that knows how its boxes are written, if the origin of the samples says it.

    Raises:
        UsageError: they are written in several ways.
    """
    if crop.boxes not in fields or crop.box_format is not None:
        return crop
    of_boxes = find_meanings(origin, [fields[crop.boxes].spec])[crop.boxes]
    formats = {*of_boxes.get("box_format", ())} & {*BOX_FORMATS}
    if len(formats) > 1:
        raise UsageError(f"crop: samples have boxes as {' and '.join(sorted(formats))}; read one kind: samples=[...]")
    return replace(crop, box_format=formats.pop()) if formats else crop


@dataclass(frozen=True)
class Parts:
    """What a dataset was asked to read of each sample; whole samples if none of these is given."""

    crop: Crop | ResizedCrop | None
    points: PointSample | VoxelSample | None
    windows: Windows | None

    @cached_property
    def _given(self) -> list[Part]:
        return [part for part in (self.crop, self.points, self.windows) if part is not None]

    @cached_property
    def draws(self) -> bool:
        """Return whether parts are random, so that two visits of one sample may differ."""
        return any(part._draws for part in self._given)

    @cached_property
    def asks(self) -> bool:
        """Return whether a function of the caller's says which part of each sample is read."""
        return self.crop is not None and self.crop._asks

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
        if windows is not None and not isinstance(windows, Windows):
            raise UsageError(f"windows {windows!r}: a readers.Windows is expected, such as Windows(16, stride=4)")
        if points is not None and not isinstance(points, PointSample | VoxelSample):
            raise UsageError(
                f"points {points!r}: a number of points or a readers.PointSample or VoxelSample is expected"
            )
        if windows is not None and points is not None:
            raise UsageError("windows and points do not go together: steps have an order, points do not; leave out one")
        windowed = () if windows is None else windows._offsets(fields)
        for name in [name for part in self._given for name in part._check(fields, samples, windowed)]:
            if name in fields:
                raise UsageError(f"a mask and a field would both be called {name!r}; choose other fields: fields=[...]")

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
            fields, places, samples, describe, compared: see `Reading`.

        Raises:
            UsageError: a field would have to be cropped and sampled by points, or fields that are cropped together do
                not have the sizes for it, or fields of one cloud do not have one row a point in every sample.
        """
        steps = {} if self.windows is None else self.windows._steps_of(fields)
        reading = Reading(fields, places, samples, describe, compared, steps)
        readers: dict[str, FieldReader] = {}
        for part in self._given:
            readers |= part._make_readers(reading, readers)
        return readers
