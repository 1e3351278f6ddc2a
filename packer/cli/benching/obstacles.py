"""Why a setting is better not measured: its batches are too large for this machine, or for the time there is."""

from __future__ import annotations

from packer.cli.benching.passes import Clock, Passes
from packer.cli.benching.settings import DATALOADER
from packer.cli.benching.subject import Subject
from packer.cli.units import size_text

NO_TIME = "there was no time left; give more --seconds"
#: The share of the free memory that the batches of one setting may take: several settings are open at once.
_SHARE = 0.25
#: How fast reading is thought to be, in bytes a second, and how many passes a setting needs at least.
_SPEED, _PASSES = 5e8, 3


def obstacle(one: Passes, subject: Subject, clock: Clock) -> str:
    """In words; empty where there is none."""
    setting, machine = one.setting, subject.machine
    batch = subject.sample_bytes * setting.batch_size
    held = batch * (3 + 2 * setting.workers)
    if machine.free is not None and held > _SHARE * machine.free:
        free = size_text(machine.free)
        return f"its batches would take {size_text(held)} of memory, more than a quarter of what is free ({free})"
    shared = machine.shared_free if setting.way == DATALOADER and setting.workers else None
    if shared is not None and held > shared:
        return (
            f"its batches would take {size_text(held)} of shared memory; /dev/shm has {size_text(shared)} free "
            "(docker: --shm-size)"
        )
    return NO_TIME if one.least * batch / _SPEED * _PASSES > clock.left else ""
