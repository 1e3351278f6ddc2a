"""Other views of a source: with the numbers of classes, with arrays as images, or with the schema of a dataset."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError, first_few
from packer.format import Field, FieldSpec
from packer.sources.agreeing import difference
from packer.sources.base import Block, DerivedSource, LargeArray, Source, count, fits, one_list_of_classes
from packer.sources.views import PickedSource

#: Name of the field that `--label folder` makes.
LABEL = "label"
#: Folders that are splits, and no classes.
_SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}
#: Channels of an image at most: red, green, blue and alpha.
MOST_CHANNELS = 4


@dataclass(eq=False)
class ClassSource(DerivedSource):
    """The samples of a source, and for each the number of its class, int64.

    Attributes:
        labels: the number of the class of each sample, (n,).
        classes: names of all classes, by number; slices need none.
        folders: first folders of names that are splits; slices need none.
    """

    labels: NDArray[np.int64]
    classes: list[str]
    folders: tuple[str, ...] = ()

    @classmethod
    def of(cls, source: Source, option: str, classes: Sequence[str], more: Collection[str] = ()) -> ClassSource:
        """Return the samples of a source with their classes, which are numbered in the order of their names.

        Args:
            option: the one that asks for it, for errors.
            classes: name of the class of each sample.
            more: names of classes that no sample has.

        Raises:
            UsageError: the source has a field `label` already.
        """
        _check_no_label(source, option)
        names = one_list_of_classes([sorted({*classes, *more}), source.origin.get("classes", ())])
        numbers = {name: number for number, name in enumerate(names)}
        return cls(source, np.array([numbers[name] for name in classes], np.int64), names)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fields = (*self.fields, FieldSpec(name=LABEL, dtype="int64"))
        self.origin = {**self.origin, "classes": self.classes}
        names = self.names or ()
        of_folders = {folder: [name for name in names if name.startswith(f"{folder}/")] for folder in self.folders}
        self.splits = {**self.splits, **of_folders}

    def number_as(self, classes: Sequence[str]) -> None:
        """Number the classes as a dataset does, which has all of them."""
        numbers = np.array([classes.index(name) for name in self.classes], np.int64)
        self.labels, self.classes = numbers[self.labels], list(classes)
        self.origin = {**self.origin, "classes": self.classes}
        self.remarks = [*self.remarks, f"classes have the numbers of the dataset that has {len(classes):,} of them"]

    def slice(self, start: int, stop: int) -> ClassSource:
        return ClassSource(self.source.slice(start, stop), self.labels[start:stop], [])

    def read(self) -> Iterator[Block]:
        at = 0
        for block in self.source.read():
            end = at + count(block)
            yield {**block, LABEL: self.labels[at:end]}
            at = end


def _check_no_label(source: Source, option: str) -> None:
    if any(spec.name == LABEL for spec in source.fields):
        raise UsageError(
            f"{option} makes a field {LABEL!r}, but there is one; leave {option} out, or rename that field"
        )


def labelled_by_folder(source: Source, roots: Sequence[str]) -> ClassSource:
    """Return the samples of a source with the numbers of their folders, as torchvision's ImageFolder has them.

        train/cat/1.png, train/cat/2.png, train/dog/1.png    label 0, 0, 1    classes cat, dog

    The class is the first folder of the sample's name; where all first folders are splits, such as `train` and `val`,
    it is the second, and the first ones are the splits that the source knows. A folder without a sample is a class,
    too, so that samples that are skipped as bad change no number.

    Args:
        roots: what the source was opened from.

    Raises:
        UsageError: the samples have no names, or the source has a field `label`.
        SourceError: a sample lies in no folder.
    """
    if source.names is None:
        raise UsageError("--label folder is for samples that are files or folders, but these are rows; see --samples")
    _check_no_label(source, "--label folder")
    bare = [name for name in source.names if "/" not in name]
    if bare:
        more = f" (one of {len(bare):,} such samples)" if len(bare) > 1 else ""
        raise SourceError(
            f"sample {bare[0]!r} of {' and '.join(roots)} lies in no folder, so it has no class{more}; "
            "move it into the folder of its class, or leave out --label folder"
        )
    folders = [name.partition("/")[0] for name in source.names]
    splits = sorted(set(folders)) if all(name.count("/") > 1 for name in source.names) else []
    if not _SPLITS.issuperset(folder.lower() for folder in splits):
        splits = []
    if splits:
        folders = [name.split("/")[1] for name in source.names]
    places = [{name for split in splits or [""] for name in _subfolders(Path(root, split))} for root in roots]
    labelled = ClassSource.of(source, "--label folder", folders, set.intersection(*places))
    classes = f"{len(labelled.classes):,} classes: {first_few(labelled.classes)}"
    remarks = [f"field {LABEL} is the number of the folder, from 0, of {classes}"]
    if splits:
        labelled = replace(labelled, folders=tuple(splits))
        listed = first_few(splits)
        remarks.append(f"{listed}: these folders are no classes; without --split they are the splits")
    if empty := sorted(set(labelled.classes).difference(folders)):
        remarks.append(f"no sample has class {first_few(empty)}, but the folder counts as a class")
    labelled.remarks = [*source.remarks, *remarks]
    return labelled


def labelled_by_text(source: Source, name: str) -> ClassSource:
    """Return the samples of a source in which a field of text becomes field `label`: its number among all texts.

    The texts of all samples are read.

    Raises:
        UsageError: there is no such field, or it is no text; or there is another field `label`.
        SourceError: a sample cannot be read.
    """
    texts = {spec.name for spec in source.fields if spec.kind == "text"}
    if name not in texts:
        raise UsageError(f"--classes {name}: there is no such field of text; there are {first_few(sorted(texts))}")
    classes = [str(text) for block in source.read() for text in block[name]]
    others = PickedSource(source, {spec.name: spec.name for spec in source.fields if spec.name != name})
    labelled = ClassSource.of(others, f"--classes {name}", classes)
    of_classes = f"{len(labelled.classes):,} classes: {first_few(labelled.classes)}"
    labelled.remarks = [
        *labelled.remarks,
        f"field {LABEL} is the number of the text of {name}, from 0, of {of_classes}",
    ]
    return labelled


def _subfolders(place: Path) -> set[str]:
    """Return the names of the folders in a folder, without hidden ones; empty if it is no folder."""
    return {p.name for p in place.iterdir() if p.is_dir() and p.name[0] != "."} if place.is_dir() else set()


@dataclass(eq=False)
class ArrayImageSource(DerivedSource):
    """The samples of a source, in which the fields `images` are of kind `image`: (H, W) or (H, W, C).

        (n, H, W) of a file    (H, W, 1) in a sample, kind `image`, and (B, 1, H, W) in a batch

    So gray microscopy, slices of scans and depth maps are images, though the source holds arrays.

    Raises:
        UsageError: there is no such field, or its samples are no images.
    """

    images: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        specs = {spec.name: spec for spec in self.fields}
        if unknown := [name for name in self.images if name not in specs]:
            raise UsageError(f"--image {unknown[0]}: there is no such field; fields are {', '.join(specs)}")
        #: Fields that get an axis of one channel.
        self._gray = {name for name in self.images if len(specs[name].shape) == 2}
        self.fields = tuple(_image_spec(spec) if spec.name in self.images else spec for spec in self.fields)
        if self._gray:
            gray = first_few(sorted(self._gray))
            self.remarks = [*self.remarks, f"images (H, W) are packed, and exported, as (H, W, 1): {gray}"]

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        shapes = super().shapes(field)
        if shapes is None or field not in self._gray:
            return shapes
        return np.append(shapes, np.ones((len(shapes), 1), np.int64), axis=1)

    def read(self) -> Iterator[Block]:
        for block in self.source.read():
            yield {name: _with_channel(values) if name in self._gray else values for name, values in block.items()}


def _image_spec(spec: FieldSpec) -> FieldSpec:
    gray = len(spec.shape) == 2
    channels = 1 if gray else spec.shape[-1] if len(spec.shape) == 3 else None
    if spec.kind != "array" or channels not in range(1, MOST_CHANNELS + 1):
        samples_in_words = (
            "text" if spec.kind == "text" else f"of shape ({', '.join(str(n or '?') for n in spec.shape)})"
        )
        raise UsageError(
            f"--image {spec.name}: its samples are {samples_in_words}, not images; (H, W) or (H, W, C) with 1 to "
            f"{MOST_CHANNELS} channels is expected"
        )
    return msgspec.structs.replace(spec, kind="image", shape=(*spec.shape, 1) if gray else spec.shape)


def _with_channel(values: Any) -> Any:
    """Return gray samples with an axis of one channel: an array of them, or a list of arrays."""
    if isinstance(values, list):
        return [_large_with_channel(value) if isinstance(value, LargeArray) else value[..., None] for value in values]
    return values[..., None]


def _large_with_channel(image: LargeArray) -> LargeArray:
    return LargeArray(image.dtype, (*image.shape, 1), lambda start, stop: image[start:stop][..., None])


@dataclass(eq=False)
class FittedSource(DerivedSource):
    """`source` with the fields of a dataset: a field that is ragged there may have one shape here.

    Attributes:
        schema: the fields of the dataset.

    Raises:
        UsageError: the source does not fit; the message names the difference.
    """

    schema: Sequence[Field]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fits(self.fields, self.schema)
        self._shapes = {spec.name: spec.shape for spec in self.fields}
        self.fields = tuple(self.schema)

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        shape = self._shapes[field]
        if None in shape:
            return super().shapes(field)
        return np.broadcast_to(np.array(shape, np.int64), (len(self), len(shape)))

    def read(self) -> Iterator[Block]:
        ragged = {field.name for field in self.fields if field.is_ragged}
        for block in self.source.read():
            yield {name: list(values) if name in ragged else values for name, values in block.items()}


def check_fits(specs: Sequence[FieldSpec], fields: Sequence[FieldSpec]) -> None:
    """Raise UsageError with the differences if samples of `specs` cannot go into a dataset of `fields`."""
    expected = {field.name: field for field in fields}
    in_words = {}
    for spec in specs:
        field = expected.get(spec.name, spec)
        is_alike = (spec.dtype, spec.kind) == (field.dtype, field.kind) and fits(spec.shape, field.shape)
        in_words[spec.name] = field.in_words if is_alike else spec.in_words
    if how := difference({name: field.in_words for name, field in expected.items()}, in_words):
        missing, more = sorted(expected.keys() - in_words), sorted(in_words.keys() - expected)
        if len(missing) == len(more) == 1 and expected[missing[0]].in_words == in_words[more[0]]:
            name, other = missing[0], more[0]
            how += f"; if {other} is {name}, give files of arrays with the field's name, as in `{name}={other}.npy`"
        raise UsageError(f"the source does not fit the dataset: {how}")
