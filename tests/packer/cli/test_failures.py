"""Signals become one exception: a second one does not disturb it, and it does not get lost."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from packer.cli.failures import Interrupted, interruptible


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_raised_and_another_leaves_the_way_out_alone(number: signal.Signals) -> None:
    """Within the block alone; whatever comes while `finally` runs is passed over."""
    before = signal.getsignal(number)
    tidied = False
    with pytest.raises(Interrupted) as raised, interruptible():  # noqa: PT012
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            tidied = True
    assert tidied
    assert raised.value.exit_status == 128 + number
    assert signal.getsignal(number) == before


class _Fragile:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)  # where Python sees to signals


def test_a_signal_that_python_drops_comes_again() -> None:
    """What is raised while an object is taken apart cannot go on from there."""
    reached = False
    with pytest.raises(Interrupted) as raised, interruptible():  # noqa: PT012
        fragile = _Fragile()
        del fragile
        reached = True
        time.sleep(10)
    assert reached
    assert raised.value.number == signal.SIGTERM


def test_other_errors_there_are_told_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only signals are taken out of what Python says of errors that it drops."""
    told: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: told.append(str(what.exc_value)))

    class Broken:
        def __del__(self) -> None:
            raise ValueError("of the object")

    with interruptible():
        broken = Broken()
        del broken
    assert told == ["of the object"]
