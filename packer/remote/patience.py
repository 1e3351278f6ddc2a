"""How often, and for how long, an answer is waited for. Networks fail for a moment; what lasts is said at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from packer.errors import RemoteError

Value = TypeVar("Value")

#: Asking again changes nothing about these.
_LASTING = (PermissionError, IsADirectoryError, NotADirectoryError, NotImplementedError)
_LASTING_NAMES = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "ParamValidationError"}

#: The same of web servers.
_REFUSALS = (401, 403, 405)


@dataclass(frozen=True)
class Patience:
    """How much is put up with.

    Attributes:
        attempts: how often something is asked for, at most.
        pause: seconds before the second attempt; each further pause is twice as long.
        seconds: how long a server may take to accept a connection, or to send the next bytes.
    """

    attempts: int = 6
    pause: float = 0.5
    seconds: float = 60.0


PATIENCE = Patience()


def attempted(url: str, action: Callable[[], Value]) -> Value:
    """What `action` gives; it is called again where it fails in a way that may pass.

    Raises:
        FileNotFoundError: there is no such file.
        RemoteError: it failed for good; the message names `url`.
    """
    patience = PATIENCE
    for attempt in range(patience.attempts):
        try:
            return action()
        except (FileNotFoundError, RemoteError):
            raise
        except Exception as error:  # fsspec passes on whatever the library of each kind of server raises
            if _lasts(error):
                raise RemoteError(f"{url}: {in_words(error)}; check the address and your credentials") from error
            if attempt + 1 == patience.attempts:
                raise RemoteError(
                    f"{url}: it failed {patience.attempts} times, the last time with: {in_words(error)}; "
                    "check the connection and try again"
                ) from error
        time.sleep(patience.pause * 2**attempt)
    raise AssertionError("no attempt was made")


def _lasts(error: Exception) -> bool:
    refused = getattr(error, "status", None) in _REFUSALS
    return refused or isinstance(error, _LASTING) or type(error).__name__ in _LASTING_NAMES


def in_words(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return text or type(error).__name__
