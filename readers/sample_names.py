"""Names of the samples of a dataset, looked up as they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from readers.indexing import is_single, sample_number

if TYPE_CHECKING:
    from readers.dataset import PackedDataset


class SampleNames(Sequence[str]):
    """Names of the samples of a dataset, by number."""

    def __init__(self, dataset: PackedDataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        table = self._dataset.name_table
        if is_single(index):
            return table.name(sample_number(index, len(self), table.numbers))
        return [table.name(i) for i in self._dataset.numbers(index).tolist()]

    def __iter__(self) -> Iterator[str]:
        return map(self._dataset.name_table.name, range(len(self)))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._dataset.name_table.contains(name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        shown = ", ".join(repr(name) for name in self[:3])
        return f"<{len(self):,} names: {shown}{', ...' if len(self) > 3 else ''}>"

    def index(self, value: str, start: int = 0, stop: int | None = None) -> int:
        """Number of the sample of a name; ValueError where none has it."""
        if value in self:
            number = int(self._dataset.name_table.numbers([value])[0])
            if start <= number < (len(self) if stop is None else stop):
                return number
        raise ValueError(f"no sample is named {value!r}")
