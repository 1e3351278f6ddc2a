"""What is read of the samples: all of them, or crops or subsets of points."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from packer.errors import UsageError
from packer.format.schema import Field
from readers.crop import Crop, is_random
from readers.crop_reader import CropReader, Placing
from readers.field_reader import FieldReader
from readers.opened import Opened
from readers.points import PointSample, PointsReader, Subset
from readers.rows import SampleRows
from readers.varied import Varied


class Parts:
    """Makes the readers of a dataset.

    Args:
        describe: a sample in words, by its number.

    Raises:
        UsageError: a field would have to be cropped and sampled by points.
    """

    def __init__(
        self, opened: Opened, crop: Crop | None, points: PointSample | None, describe: Callable[[int], str]
    ) -> None:
        self._opened = opened
        self._crop = crop
        self._points = points
        self._describe = describe
        self._tied = _tied(opened, points) if points else []
        names = [*self._tied, *(crop.scales if crop else ())]
        if len(set(names)) < len(names):
            raise UsageError(
                "crop and sample_points do not go together for one field; name others in PointSample's fields"
            )
        self._rows = {name: SampleRows(opened.places[name]) for name in names}

    def readers(self) -> dict[str, FieldReader]:
        """The readers by field, in the order of the dataset's."""
        readers: dict[str, FieldReader] = dict(self._opened.readers)
        if self._crop:
            placing = Placing(self._crop, self._rows[self._crop.of], self._describe)
            for name, scale in self._crop.scales.items():
                readers[name] = CropReader(self._rows[name], placing, scale)
        if self._points:
            subset = Subset(self._points)
            first = self._rows[self._tied[0]]
            for name in self._tied:
                readers[name] = PointsReader(self._rows[name], first, subset, self._describe)
        return readers


def draws_parts(crop: Crop | None, points: PointSample | None) -> bool:
    """Whether two visits of a sample may give different parts of it."""
    return points is not None or (crop is not None and is_random(crop))


def check_parts(crop: Crop | None, points: PointSample | None, fields: Mapping[str, Field], samples: int) -> None:
    """Raises UsageError where a dataset cannot be read like this, as far as its schema tells."""
    if crop is not None:
        if not isinstance(crop, Crop):
            raise UsageError(f'crop {crop!r}: a readers.Crop is expected, such as Crop(size=64, of="hr")')
        crop.check(fields, samples)
    if points is not None:
        if not isinstance(points, PointSample):
            raise UsageError(f"sample_points {points!r}: a number of points or a readers.PointSample is expected")
        points.candidates(fields)


def _tied(opened: Opened, points: PointSample) -> list[str]:
    """Names of the fields that hold one row a point, first the one that tells how many there are."""
    found = points.candidates({name: reader.field for name, reader in opened.readers.items()})
    if points.fields is not None:
        return found
    readers = opened.readers
    first = readers[found[0]]
    return [name for name in found if _same_rows(readers[name], first)]


def _same_rows(reader: object, first: object) -> bool:
    return isinstance(reader, Varied) and isinstance(first, Varied) and reader.has_rows_of(first)
