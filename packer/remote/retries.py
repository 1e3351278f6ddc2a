"""Requests to a server, made again after errors that may pass.

A server that never answered is asked a few times: its address may be wrong. One that has answered is waited for, ten
minutes by default, so that a night's work outlives its restart.
"""

from __future__ import annotations

import errno
import io
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from packer.errors import PackerError, RemoteError, UsageError

_log = logging.getLogger(__name__)

Value = TypeVar("Value")

#: How often something is asked for, at least.
ATTEMPTS = 6
#: Seconds before the second attempt; each further pause is twice as long, up to the longest.
PAUSE, LONGEST_PAUSE = 0.5, 15.0
#: Seconds to wait for a server that has answered before.
PATIENCE = 600.0
#: Seconds between two lines that say that a server is waited for.
LINE_SECONDS = 60.0

#: Errors of code, ours or that of a library: no server makes them go away.
_OF_CODE = (TypeError, AttributeError, NameError, LookupError, AssertionError, MemoryError, ImportError)
_NOT_SUPPORTED, _NOT_SUPPORTED_STATUSES = (NotImplementedError, io.UnsupportedOperation), (405, 501)
_REFUSED_STATUSES = (401, 403)
_WITHOUT_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"}
_WRONG_ADDRESS, _WRONG_ADDRESS_NAMES = (IsADirectoryError, NotADirectoryError), {"ParamValidationError", "InvalidURL"}
#: Errors that an answer of the server gave: waiting for long does not help.
_ANSWERS = (errno.EINVAL, errno.EPERM, errno.EMSGSIZE, errno.ENAMETOOLONG)
_BUSY_STATUSES = (408, 425, 429)

_lock = threading.Lock()
#: Of servers that have answered this process, or the one that it was forked from, when a line was last logged.
_last_lines: dict[str, float] = {}


class IncompleteError(OSError):
    """An answer has not the bytes that were asked for; asking again may help, waiting does not."""


def check_patience(patience: float | None) -> float:
    """Return the seconds to wait for a server; the default for None.

    Raises:
        UsageError: it is no number of seconds.
    """
    if patience is None:
        return PATIENCE
    if isinstance(patience, bool) or not isinstance(patience, (int, float)) or not 0 <= patience < math.inf:
        raise UsageError(f"patience is {patience!r}; a number of seconds is expected, such as 600")
    return float(patience)


def call_with_retries(
    url: str,
    action: Callable[[], Value],
    pause: Callable[[float], None] = time.sleep,
    patience: float | None = None,
) -> Value:
    """Return the result of `action`; call it again after errors that may pass, and after a pause.

    Args:
        url: of a file, for messages.
        pause: called with seconds; may raise, to end the waiting.
        patience: seconds for which a server that has answered before is asked again; None for `PATIENCE`.

    Raises:
        FileNotFoundError: there is no such file.
        RemoteError: it failed for good; the message names `url`.
    """
    attempt, since, server = 1, time.monotonic(), _server_of(url)
    patience = PATIENCE if patience is None else patience
    while True:
        try:
            value = action()
            _last_lines.setdefault(server, -math.inf)
            return value
        except FileNotFoundError:
            _last_lines.setdefault(server, -math.inf)
            raise
        except (PackerError, *_OF_CODE):
            raise
        except Exception as error:  # fsspec passes on whatever the library of each kind of server raises
            # Not kept: it refers to the frames of all callers, and so to what they hold, such as leases.
            if lasting := _why_lasting(error):
                raise RemoteError(f"{url}: {lasting}") from error
            waited = time.monotonic() - since
            waits = server in _last_lines and not _is_answer(error)
            if attempt >= ATTEMPTS and not (waits and waited < patience):
                advice = "check the connection and try again"
                if waits and patience:
                    advice += "; a conversion keeps its finished shards, a loop goes on from the state of its Loader"
                raise RemoteError(
                    f"{url}: it failed {attempt} times, the last time with: {text_of(error)}; {advice}"
                ) from error
            if attempt >= ATTEMPTS:
                _log_waiting(server, error, patience - waited)
        pause(min(PAUSE * 2 ** (attempt - 1), LONGEST_PAUSE))
        attempt += 1


def _why_lasting(error: Exception) -> str:
    """Return what to do about an error that another attempt would not change; empty for one that may pass."""
    status, text = getattr(error, "status", None), text_of(error)
    if isinstance(error, _NOT_SUPPORTED) or status in _NOT_SUPPORTED_STATUSES:
        return f"this kind of URL does not support that ({text}); pack into a folder, or read from one, and copy it"
    if (
        isinstance(error, PermissionError)
        or status in _REFUSED_STATUSES
        or type(error).__name__ in _WITHOUT_CREDENTIALS
    ):
        return f"{text}; check the address and your credentials"
    is_wrong = isinstance(error, _WRONG_ADDRESS) or type(error).__name__ in _WRONG_ADDRESS_NAMES
    return f"{text}; check the address" if is_wrong else ""


def _is_answer(error: Exception) -> bool:
    """Return whether a server is there, and has answered that it does not do what was asked for."""
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return 400 <= status < 500 and status not in _BUSY_STATUSES
    return isinstance(error, IncompleteError | ValueError) or getattr(error, "errno", None) in _ANSWERS


def _log_waiting(server: str, error: Exception, seconds: float) -> None:
    """Log that a server is waited for, once a minute however many threads wait."""
    with _lock:
        now = time.monotonic()
        if now - _last_lines[server] < LINE_SECONDS:
            return
        _last_lines[server] = now
    _log.warning("%s: no answer (%s); it is asked again for up to %.0f seconds", server, text_of(error), seconds)


def _server_of(url: str) -> str:
    kind, _, rest = url.partition("://")
    return f"{kind}://{rest.partition('/')[0]}"


def text_of(error: BaseException | None) -> str:
    """Return an error in one line."""
    text = " ".join(str(error).split())
    return text or type(error).__name__
