"""Fields from files beside those of the samples, with the same names: boxes, labels of points, captions.

    image=images boxes=labels --columns boxes=cls,x,y,w,h:float32      images/a.png labels/a.txt
    velodyne label=labels --columns ... --columns label=label:uint32   velodyne/000000.bin labels/000000.label
    image=images caption=captions                                      images/a.png captions/a.txt

Each sample needs its file: one that is missing is an error that names its partner. A file without a row is a sample
without a box.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.format import FieldSpec
from packer.sources.base import Block, DerivedSource, Looking, OnBad, Source, count, faults_of
from packer.sources.files import Found, refuse_pointer, unreadable
from packer.sources.options import SourceOptions, columns_by_field
from packer.sources.pairing import pair, partners, stem
from packer.sources.ply import PointSource, open_clouds

if TYPE_CHECKING:
    from typing_extensions import Self  # which typing has from Python 3.11 on


@dataclass
class TextSource(Source):
    """Files of text, in UTF-8: each is a sample, of one field, as it is in the file."""

    fields: tuple[FieldSpec, ...]
    paths: list[str]
    names: list[str]
    origin: Mapping[str, Any] = field(default_factory=dict)

    kind = "text"

    @classmethod
    def of(cls, name: str, found: Found, on_bad: OnBad) -> TextSource:
        """Return the text of some files as a field."""
        files = found.pick(on_bad)
        spec = FieldSpec(name=name, dtype="uint8", kind="text", shape=(None,))
        return cls((spec,), [found.path(file) for file in files], list(map(stem, files)))

    def __len__(self) -> int:
        return len(self.paths)

    def shapes(self, field: str) -> None:
        return None

    def part(self, start: int, stop: int) -> TextSource:
        return replace(self, paths=self.paths[start:stop], names=self.names[start:stop])

    def files(self) -> list[str]:
        return list(self.paths)

    def read(self) -> Iterator[Block]:
        for number, path in enumerate(self.paths):
            with faults_of(sample=number):
                try:
                    data = Path(path).read_bytes()
                    refuse_pointer(data, path)
                    text = data.decode()
                except OSError as error:
                    raise unreadable(error, path) from error
                except UnicodeDecodeError:
                    raise SourceError("is not text in UTF-8; save it as such", path) from None
            yield {self.fields[0].name: [text]}


#: What can lie beside the files of samples.
Side = TextSource | PointSource


def open_beside(
    given: Mapping[str, Found],
    sides: Mapping[str, Found],
    open_samples: Callable[[Mapping[str, Found]], Source],
    options: SourceOptions,
    on_bad: OnBad,
    looking: Looking,
) -> Source:
    """Return the samples of a source, each with the fields that lie beside it.

    Args:
        given: the files of the samples, by field.
        sides: the files beside them, by field; numbers if `options` say what their columns are, else text.
        open_samples: opens the samples of some of the files `given`.
        on_bad: called with every file that is bad or has no partner.
        looking: called with how many of these files are read.

    Raises:
        UsageError: the samples are not whole files (but squares of pictures, say), or two fields have one name.
        SourceError: what `on_bad` raises, or no sample is left.
    """
    columns = columns_by_field(options)
    held: dict[str, Side] = {}
    beside: dict[str, Found] = {}
    for name, found in sides.items():
        if name in columns:
            held[name] = open_clouds({name: found}, options, on_bad=on_bad, looking=looking)
        else:
            held[name] = TextSource.of(name, found, on_bad)
        good = set(held[name].paths)
        beside[name] = found._replace(files=[file for file in found.files if found.path(file) in good])
    pairs, _ = partners({**given, **beside}, on_bad)
    if not pairs.names:
        raise SourceError(
            f"no sample is left: none has its file of {' and '.join(sides)}", next(iter(given.values())).text
        )
    samples = open_samples({name: some._replace(files=sorted(pairs.files[name])) for name, some in given.items()})
    names = [] if samples.names is None else [f"{name}." for name in samples.names]
    again = pair({"": names, **{name: some.files for name, some in beside.items()}})
    order = {name: number for number, name in enumerate(again.files[""])}
    if len(order) < len(samples):
        raise UsageError(
            f"{' and '.join(sides)}: these lie beside whole files, but the samples are not single files; leave out "
            "--patch, --samples and the like"
        )
    chosen = []
    for name, side in held.items():
        at = {path: number for number, path in enumerate(side.paths)}
        files = [again.files[name][order[sample]] for sample in names]
        chosen.append(_taken(side, [at[sides[name].path(file)] for file in files]))
    return BesideSource(samples, chosen)


def _taken(side: Side, numbers: Sequence[int]) -> Side:
    """Return some samples, in this order."""
    paths, names = [side.paths[n] for n in numbers], [side.names[n] for n in numbers]
    if isinstance(side, TextSource):
        return replace(side, paths=paths, names=names)
    lengths = {name: some[list(numbers)] for name, some in side.lengths.items()}
    return replace(side, paths=paths, names=names, lengths=lengths)


class BesideSource(DerivedSource):
    """The samples of a source, with the fields of other sources that have as many samples."""

    def __init__(self, source: Source, sides: Sequence[Side]) -> None:
        super().__init__(source)
        self._sides = list(sides)
        self.fields = (*source.fields, *(spec for side in sides for spec in side.fields))
        if len({spec.name for spec in self.fields}) < len(self.fields):
            named = ", ".join(spec.name for spec in self.fields)
            raise UsageError(f"two fields have one name ({named}); give another FIELD= to one of them")
        self.remarks = [*source.remarks, *(said for side in sides for said in side.remarks)]
        self.origin = {**source.origin, "beside": {s.name: dict(side.origin) for side in sides for s in side.fields}}

    def part(self, start: int, stop: int) -> Self:
        part = super().part(start, stop)
        part._sides = [side.part(start, stop) for side in self._sides]
        return part

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        for side in self._sides:
            if any(spec.name == field for spec in side.fields):
                return side.shapes(field)
        return super().shapes(field)

    def files(self) -> list[str]:
        return [*super().files(), *(path for side in self._sides for path in side.files())]

    def read(self) -> Iterator[Block]:
        at = 0
        for block in self._source.read():
            stop = at + count(block)
            more: dict[str, list[Any]] = {spec.name: [] for spec in self.fields if spec.name not in block}
            try:
                for side in self._sides:
                    for held in side.part(at, stop).read():
                        for name, values in held.items():
                            more[name] += values
            except SourceError as error:
                good = min(map(len, more.values()))
                if good:
                    yield {name: values[:good] for name, values in {**block, **more}.items()}
                raise SourceError(error.reason, error.path, at + good) from error
            yield {**block, **more}
            at = stop
