"""What was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from packer.cli.benching.settings import Setting


@dataclass(frozen=True)
class Rate:
    """How fast a setting is; the median of some passes.

    Attributes:
        samples: a second.
        slowest, fastest: the same of single passes.
        bytes: of values handed out, a second.
        passes: how many there were.
        batches: of the last pass.
        disk_bytes: read from the disk, in all passes.
        disk_bytes_per_sample: the same for one sample.
    """

    samples: float
    slowest: float
    fastest: float
    bytes: float
    passes: int
    batches: int
    disk_bytes: int
    disk_bytes_per_sample: float


@dataclass(frozen=True)
class Speed:
    """A setting and its rates; None where one could not be measured, for the reason in `failure`."""

    setting: Setting
    warm: Rate | None
    cold: Rate | None
    failure: str = ""


@dataclass(frozen=True)
class Split:
    """Where the time of one batch goes, while nothing else is under way; means, in seconds.

    Attributes:
        batch: all of it, without the copy to a device.
        reading: until the stored bytes are in memory that this process sees.
        decoding: by the codecs.
        gathering: copying values to their places in the batch.
        handing_over: to the thread or process that asked.
        rest: finding where samples lie, and all calls around.
        copying: to the device; None where there is none.
    """

    setting: Setting
    state: str
    batch: float
    reading: float
    decoding: float
    gathering: float
    handing_over: float
    rest: float
    copying: float | None = None

    @property
    def parts(self) -> dict[str, float]:
        """The parts that add up to `batch`, by the names people know them by."""
        return {
            "reading": self.reading,
            "decoding": self.decoding,
            "gathering": self.gathering,
            "handing over": self.handing_over,
            "rest": self.rest,
        }


@dataclass(frozen=True)
class Advice:
    """A setting to start from.

    Attributes:
        code: line of Python.
        reasons: why, in sentences.
    """

    setting: Setting
    code: str
    reasons: Sequence[str]


@dataclass(frozen=True)
class Report:
    """All that `packer bench` found out.

    Attributes:
        sample_bytes: mean size of the values of a sample.
        fits_memory: whether the files stay in memory once they were read.
        remarks: on splits that could not be measured.
        cold_failure: why nothing could be measured cold; empty where it could.
    """

    path: str
    samples: int
    sample_bytes: float
    fields: Sequence[str]
    speeds: Sequence[Speed]
    splits: Sequence[Split]
    remarks: Sequence[str]
    cold_failure: str
    fits_memory: bool
    advice: Advice | None
