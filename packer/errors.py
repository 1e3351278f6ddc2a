"""Every error that packer and readers raise on purpose.

    PackerError
    ├── UsageError              what was asked for cannot be done: wrong option, wrong folder (exit 2)
    │   └── ChangedMeanwhileError   another command changed the dataset first; the same command goes on
    ├── SourceError             a source file is damaged or does not fit its neighbours (exit 1)
    │   └── NothingLeftError    all files or samples are bad; says which came first, and why
    ├── WriteError              the output could not be written: disk full, permission lost (exit 1)
    ├── ResourceError           the system gives no more open files, memory or processes (exit 1)
    └── DatasetError            a packed dataset cannot be read (exit 1)
        ├── NoDatasetError      no packed dataset is there: nothing, a file, or another folder (exit 2)
        ├── ManifestError       manifest.json is wrong; says the place in it
        ├── UnfinishedError     there is no manifest yet; says how far it got
        ├── DamagedError        a file has the wrong size, a broken tree or a wrong checksum
        ├── RemoteError         a file at a URL cannot be fetched: no connection, no access, no answer
        ├── MissingNameError    no sample has this name (also a KeyError)
        └── SampleIndexError    the number is outside the dataset (also an IndexError)

The message is a sentence that says which file, field and sample, what was expected, and what to do.
This module imports nothing, so that everything may import it.
"""

from __future__ import annotations


def first_few(things: list[str] | tuple[str, ...], most: int = 5, joined: str = ", ") -> str:
    """Return the first of some things, as a message names them: `a, b, c, d, e and 12 more`."""
    more = f" and {len(things) - most:,} more" if len(things) > most else ""
    return f"{joined.join(things[:most])}{more}"


def as_text(text: str | bytes) -> str:
    """Return text with escapes for bytes that are not UTF-8, as in some file names: JSON and terminals refuse them."""
    data = text if isinstance(text, bytes) else text.encode(errors="backslashreplace")
    return data.decode(errors="backslashreplace")


#: Control characters, lone surrogates, line and paragraph separators, each with its escape.
_ESCAPES = {
    number: chr(number).encode("unicode_escape").decode()
    for number in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0xD800, 0xE000))
}


def printable(text: str) -> str:
    """Return one line of text with escapes for what would move the cursor of a terminal, or is no character."""
    return text.translate(_ESCAPES)


#: What was fetched, by its path on this machine: the URL that messages name in its place.
_urls: dict[str, str] = {}


def name_by_url(path: str, url: str) -> None:
    """Let messages name what was fetched to a path, a file or a folder, by its URL."""
    _urls[path] = url


def with_urls(text: str) -> str:
    """Return a message that names fetched files by their URLs."""
    for path, url in _urls.items():
        text = text.replace(path, url)
    return text


class PackerError(Exception):
    """Base of all errors raised on purpose; `exit_status` is the exit status of the command line.

    Names of files and of fields enter messages as they are; `str` gives the message with escapes, line by line, and
    with the URLs of files that were fetched.
    """

    exit_status = 1

    def __str__(self) -> str:
        # KeyError's own __str__ would show the repr of the message.
        return "\n".join(map(printable, with_urls(str(self.args[0])).split("\n"))) if self.args else ""


class UsageError(PackerError):
    """The request cannot be carried out as it stands."""

    exit_status = 2


class ChangedMeanwhileError(UsageError):
    """Another command changed a dataset, `place`, while this one was about to, or read it."""

    place: object = None

    @classmethod
    def at(cls, place: object, kept_shards: int = 0) -> ChangedMeanwhileError:
        """Return the error of a dataset, by its path or URL.

        Args:
            kept_shards: how many the same command need not make again.
        """
        begins = "begins with the dataset as it is now"
        if kept_shards:
            begins = (
                f"goes on after {'the shard' if kept_shards == 1 else f'the {kept_shards:,} shards'} that it has made"
            )
        error = cls(
            f"{place} was changed meanwhile, by another command. Nothing of that is lost; run the same command again: "
            f"it {begins}"
        )
        error.place = place
        return error


class SourceError(PackerError):
    """A source file is damaged, unsupported, or does not fit the others.

    `path` names the file as the user gave it; `reason` is the message without the path. If `sample` is given, reading
    can go on after it: it is the number of the bad sample within the part of the source that was being read.
    """

    def __init__(self, reason: str, path: str | None = None, sample: int | None = None) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.reason = reason
        self.path = path
        self.sample = sample

    def __reduce__(self) -> tuple[type[SourceError], tuple[str, str | None, int | None]]:
        return type(self), (self.reason, self.path, self.sample)


class NothingLeftError(SourceError):
    """Every file or sample is bad."""


class WriteError(PackerError):
    """The output could not be written."""


class ResourceError(PackerError):
    """The system gives this program no more open files, memory or processes; no file is at fault."""


class DatasetError(PackerError):
    """A packed dataset cannot be read."""


class NoDatasetError(DatasetError):
    """A packed dataset was named, and there is none: nothing, a file, or a folder of something else."""

    exit_status = 2


class ManifestError(DatasetError):
    """manifest.json does not follow the format."""


class UnfinishedError(DatasetError):
    """The folder holds a conversion that has not been finished."""


class DamagedError(DatasetError):
    """A file of the dataset is missing, or has changed since it was written."""


class RemoteError(DatasetError):
    """A file at a URL cannot be read or written."""


class MissingNameError(DatasetError, KeyError):
    """No sample has this name."""


class SampleIndexError(DatasetError, IndexError):
    """The sample number is outside the dataset."""
