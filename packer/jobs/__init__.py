"""What the verbs that pack samples share: options, sources, and the job that packs them into shards."""

from packer.jobs.inputs import (
    check_apart,
    check_classes,
    check_place,
    constants_error,
    fit_source,
    input_texts,
    open_source,
    packed_folder,
)
from packer.jobs.job import (
    Job,
    Packed,
    begin_packing,
    fetch_rejected,
    is_published,
    log_plan,
    make_note,
    pack,
    pack_shards,
    plan_job,
    plan_splits,
)
from packer.jobs.options import ConvertOptions, reading_limits

__all__ = [
    "ConvertOptions",
    "Job",
    "Packed",
    "begin_packing",
    "check_apart",
    "check_classes",
    "check_place",
    "constants_error",
    "fetch_rejected",
    "fit_source",
    "input_texts",
    "is_published",
    "log_plan",
    "make_note",
    "open_source",
    "pack",
    "pack_shards",
    "packed_folder",
    "plan_job",
    "plan_splits",
    "reading_limits",
]
