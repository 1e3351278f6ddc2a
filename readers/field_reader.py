"""What reads one field of a dataset: whole samples, crops of them, or subsets of their points."""

from __future__ import annotations

from typing import Any, Protocol

from packer.format.schema import Field
from readers.fixed import Allocate
from readers.places import Numbers


class FieldReader(Protocol):
    """Turns sample numbers into places, for as many batches as the caller likes, and places into values.

    Attributes:
        field: what `read` gives; its shape is that of a crop where crops are read.
    """

    @property
    def field(self) -> Field: ...

    def locate(self, numbers: Numbers) -> Numbers:
        """Places of samples (n,): an array with one row a sample."""

    def spans(self, located: Numbers) -> Numbers:
        """Address and size of the bytes that `read` will touch, (n, 2)."""

    def read(self, located: Numbers, allocate: Allocate | None = None) -> Any:
        """The values of the samples, in new memory or in what `allocate` gives."""
