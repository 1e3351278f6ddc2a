"""Addresses of C functions: all are found, or it is said which is not."""

from __future__ import annotations

import ctypes

import pytest
import xxhash

from packer.codecs import compiled


def test_every_function_has_an_address_of_its_own() -> None:
    """By its name, whatever library brings it along."""
    found = compiled.addresses()
    assert sorted(found) == sorted(name for names in compiled.FUNCTIONS.values() for name in names)
    assert all(found.values())
    assert len(set(found.values())) == len(found)


def test_what_lies_there_is_the_function() -> None:
    """Called from there, it gives what its package gives."""
    prototype = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t)
    function = prototype(compiled.addresses()["XXH3_64bits"])
    assert function(b"some bytes", 10) == xxhash.xxh3_64_intdigest(b"some bytes")


def test_a_function_that_a_module_keeps_to_itself_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a build that shows none of its own."""
    monkeypatch.setitem(compiled.FUNCTIONS, "xxhash._xxhash", ("XXH3_64bits", "XXH9_64bits"))
    with pytest.raises(AttributeError, match="XXH9_64bits"):
        compiled.addresses()


def test_a_module_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a version that has it under another name."""
    monkeypatch.setitem(compiled.FUNCTIONS, "xxhash._other", ("XXH3_64bits",))
    with pytest.raises(ImportError, match="_other"):
        compiled.addresses()


def test_a_module_without_a_file_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is built into the interpreter has no library to look into."""
    monkeypatch.setitem(compiled.FUNCTIONS, "builtins", ("XXH3_64bits",))
    with pytest.raises(AttributeError, match="__file__"):
        compiled.addresses()


def test_a_module_in_python_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a package was built without C, its file is no library."""
    monkeypatch.setitem(compiled.FUNCTIONS, "json", ("XXH3_64bits",))
    with pytest.raises(OSError, match="json"):
        compiled.addresses()
