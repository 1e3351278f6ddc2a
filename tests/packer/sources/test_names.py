"""Names of samples: what can be stored, and that it is told before anything is packed."""

from __future__ import annotations

import pytest

from packer.errors import SourceError
from packer.packing.plan import prepare
from packer.sources.names import check_names, name_bytes
from packer.sources.samples import SampleSource


@pytest.mark.parametrize("name", ["a", "n" * 510, "é" * 255, "a/b c", "\U0001f600" * 127])
def test_names_that_fit(name):
    """From 1 to 510 bytes of any text."""
    check_names([name])
    assert name_bytes(name, 0) == name.encode()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "its name '' has 0 bytes"),
        ("n" * 511, r"its name 'n{40}'\.\.\. has 511 bytes; 1 to 510 are allowed"),
        ("é" * 256, r"its name 'é{40}'\.\.\. has 512 bytes"),
        ("\U0001f600" * 128, "its name .* has 512 bytes"),
        ("a\0b", r"its name 'a\\x00b' has a NUL in it; name it otherwise"),
        ("picture \udcff", r"its name 'picture \\udcff' cannot be stored as UTF-8: its letter 8"),
    ],
)
def test_names_that_do_not(name, said):
    """The error says which sample, and what is wrong with its name."""
    with pytest.raises(SourceError, match=f"sample 2: {said}"):
        check_names(["a", "b", name])
    with pytest.raises(SourceError, match=f"sample 7: {said}"):
        name_bytes(name, 7)


class Named(SampleSource):
    """Samples with names, none of which may be read."""

    def __init__(self, names):
        super().__init__([{"a": 1}] * len(names))
        self.names = names

    def read(self):
        raise AssertionError("a sample was read")


def test_a_name_too_long_is_told_before_anything_is_read():
    """The names are known from the start, so nobody packs for hours to be told at the end."""
    with pytest.raises(SourceError, match="sample 1: its name"):
        prepare(Named(["a", "n" * 600, "b"]), "auto", None)
