"""Lets packer do in this process what it hands to processes of its own: to fork takes longer than most test data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

#: The modules that start processes.
_USERS = ("packer.workers", "packer.packing.running", "packer.verify", "packer.checking.against")


@contextmanager
def in_this_process() -> Iterator[None]:
    """Start no worker processes within the block. Crashes, and limits of time and memory, are not caught there."""
    with ExitStack() as stack:
        for module in _USERS:
            stack.enter_context(mock.patch(f"{module}.run_in_processes", _run))
        yield


def _run(
    function: Callable[[Any, Any], Any],
    items: Sequence[Any],
    workers: int,
    limits: object,
    on_report: Callable[[int, Any], None] | None = None,
) -> Iterator[tuple[int, Any]]:
    for number, item in enumerate(items):
        yield number, function(item, _Reporter(number, on_report))


class _Reporter:
    """That of an item."""

    def __init__(self, number: int, on_report: Callable[[int, Any], None] | None) -> None:
        self._number, self._on_report = number, on_report

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        yield

    def report(self, value: Any) -> None:
        if self._on_report is not None:
            self._on_report(self._number, value)
