"""What the manifest keeps of files of arrays besides their samples; attributes are those of `tree.as_json`."""

from __future__ import annotations

from typing import Any

import msgspec

from packer.format import Count

#: Arrays of a sparse matrix: numbers of columns, values, and where each row starts.
SPARSE_PARTS = ("indices", "data", "indptr")


class KeptFile(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What is kept of a file of rows, or of one that holds units.

    Attributes:
        name: of the file; with units, the beginning of the names of its samples, which may be empty.
        samples: how many samples of it were packed.
        attributes: of its root, under the path `/`.
    """

    name: str
    samples: Count
    attributes: dict[str, dict[str, Any]] = {}


class KeptOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The options of the conversion: `axis` if rows are samples, else `samples`."""

    fields: dict[str, str]
    skip: list[str]
    once: list[str] = []
    sparse: list[str] = []
    axis: int | None = None
    samples: str = "rows"


class ArraysOrigin(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of all files that were packed.

    Attributes:
        paths: paths of fields, by name, where the path is not the name with slashes for dots.
        files: the files, in order; none if each is a sample.
        attributes: of units, by the names of the samples.
        attrs: the fields that were attributes of units.
        fields: attributes of the arrays that the fields are, by field, as far as all files and units agree.
        classes: the names of the numbers of the field `label`, if an enum or a categorical column has them.
        categories: those of other fields.
    """

    options: KeptOptions
    paths: dict[str, str]
    files: list[KeptFile] = []
    attributes: dict[str, dict[str, Any]] = {}
    attrs: list[str] = []
    fields: dict[str, dict[str, Any]] = {}
    classes: list[str] = []
    categories: dict[str, list[str]] = {}
