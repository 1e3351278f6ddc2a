"""Which requests are made again, and for how long."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from packer.errors import RemoteError, UsageError
from packer.remote import RemoteFolder, retries
from packer.remote.retries import call_with_retries


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves while a request pauses: `now`, and `pause`."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(retries, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=None))
    monkeypatch.setattr(retries, "_last_lines", {})
    clock.pause = lambda seconds: setattr(clock, "now", clock.now + seconds)
    return clock


def failing(error, calls):
    """An action that fails, until it was called `calls` times."""
    asked = []

    def action():
        asked.append(0)
        if len(asked) < calls:
            raise error
        return len(asked)

    return action


def test_a_server_that_has_answered_is_waited_for(clock, caplog) -> None:
    """For ten minutes, with a line each minute; one that never answered is asked six times."""
    away = failing(ConnectionResetError("away"), 10**9)
    with pytest.raises(RemoteError, match="it failed 6 times, the last time with: away; check the connection"):
        call_with_retries("s3://one/a", away, clock.pause)
    assert clock.now < 20
    call_with_retries("s3://one/a", lambda: 0)
    assert call_with_retries("s3://one/b", failing(ConnectionResetError("away"), 30), clock.pause) == 30
    began, clock.now = clock.now, clock.now
    caplog.clear()
    with caplog.at_level(logging.WARNING), pytest.raises(RemoteError, match="from the state of its Loader"):
        call_with_retries("s3://one/c", away, clock.pause)
    assert 600 <= clock.now - began < 620
    assert 9 <= len(caplog.records) <= 10
    assert "s3://one: no answer (away)" in caplog.text
    began = clock.now
    with pytest.raises(RemoteError):
        call_with_retries("s3://one/c", away, clock.pause, patience=0)
    assert clock.now - began < 20


@pytest.mark.parametrize("error", [TypeError("odd"), AttributeError("odd"), KeyError("odd")])
def test_an_error_of_code_is_no_bad_connection(clock, error) -> None:
    """It is raised as it is, at once."""
    with pytest.raises(type(error)):
        call_with_retries("s3://one/a", failing(error, 2), clock.pause)
    assert clock.now == 0


def test_what_is_not_supported_has_nothing_to_do_with_credentials(clock) -> None:
    """It is said at once, and what is refused is said with the credentials."""
    for error in (NotImplementedError(), type("Answer", (OSError,), {"status": 405})("no such method")):
        with pytest.raises(RemoteError, match="does not support that") as caught:
            call_with_retries("ftp://one/a", failing(error, 2), clock.pause)
        assert "credentials" not in str(caught.value)
    with pytest.raises(RemoteError, match="check the address and your credentials"):
        call_with_retries("s3://one/a", failing(PermissionError("denied"), 2), clock.pause)
    assert clock.now == 0


@pytest.mark.parametrize("patience", [-1, float("inf"), True, "long"])
def test_patience_is_a_number_of_seconds(patience) -> None:
    """Anything else is refused."""
    with pytest.raises(UsageError, match=r"patience is .*a number of seconds is expected"):
        RemoteFolder("memory://patience", patience)
