"""From a source to finished shards: what `convert` and the other writing verbs share.

    options       how to convert
    inputs        what a verb is given, opened as one source
    commands      what a manifest keeps of the commands that packed its samples
    origin        where samples came from, also of joined and shuffled datasets
    splits        train, valid and test: samples by fraction, list or pattern

    plan          fields, codecs, shards and sizes, from headers alone; its steps are
    examples      some samples that are read for it,
    sizes         bytes of all samples,
    framing       codec and frames of each field,
    cutting       which sample goes to which shard,
    remarks       what it says to the user; and
    estimating    how large files get and how long packing takes, by trying

    job           a plan and its source files, ready to be packed
    tasks         one shard, packed by one process
    running       many shards: in this process, in others, or by an executor
    schedulers    executors of Dask and Ray
    source_files  whether source files are those of the plan
    rejected      the list of what was skipped

    rewrite       the recipe of every verb that makes or changes a dataset
    changing      one command at a time
    commit        a run that begins, and the rename that publishes its files
    run_files     the files of a run
    tidying       what is removed then, and what stays
    note          what decides the bytes of a run, and the names of its files
    manifest      the manifest of finished shards
    places        folders and URLs, where datasets are written

    parts         results of the parts of an array of jobs that read a dataset
    shared_plan   the plan that parts of a conversion share
    claims        which of them makes it

Begin with `rewrite`, and then `tasks`.
"""

from packer.packing.changing import changing, changing_dataset, explain_changes
from packer.packing.commands import commands_of, taken_commands, usual_options, with_usual
from packer.packing.commit import Change
from packer.packing.cutting import ShardPlan, plan_shards
from packer.packing.estimating import Estimate, FieldEstimate, estimate
from packer.packing.examples import read_examples
from packer.packing.framing import codec_by_field, codec_texts
from packer.packing.inputs import (
    check_apart,
    check_meanings,
    check_place,
    constants_error,
    fit_source,
    number_classes,
    open_source,
    other_meanings,
    packed_folder,
)
from packer.packing.job import Job, Packed, fetch_rejected, job_of, plan_job, plan_splits
from packer.packing.manifest import check_output, make_manifest, named_files, read_manifest, totals
from packer.packing.note import Note, shard_file
from packer.packing.options import ConvertOptions, process_count, reading_limits
from packer.packing.origin import (
    Origin,
    classes_of,
    is_shuffled,
    join_origins,
    leaves,
    matching_parts,
    origin_of,
    parse_origin,
    with_fields,
)
from packer.packing.parts import JoinedParts, PartReports, parse_part, part_shards, shards_left, utc_now
from packer.packing.places import LocalPlace, Place, RemotePlace, Tag, place_of
from packer.packing.plan import Plan, make_plan, stored_fields
from packer.packing.rejected import Rejected, read_rejected, skipped_samples
from packer.packing.remarks import remark_on_jpegs
from packer.packing.rewrite import (
    SHARDS_ALONE,
    Command,
    Contents,
    Keep,
    Link,
    Shards,
    begin_packing,
    conclude,
    pack_shards,
    rewrite,
)
from packer.packing.run_files import RunFiles
from packer.packing.running import find_culprit, run_tasks
from packer.packing.schedulers import executor_at
from packer.packing.shared_plan import PlanSharing, SharedPlan
from packer.packing.sizes import FieldSizes, field_sizes
from packer.packing.source_files import SeenFiles, SourceFiles, source_files
from packer.packing.splits import (
    SPLIT,
    Rule,
    Samples,
    find_listed,
    join_splits,
    make_splits,
    parse_rules,
    share_out,
    split_text,
)
from packer.packing.tasks import (
    Make,
    ShardReport,
    Step,
    digest_samples,
    finish_shard,
    make_report,
    read_blocks,
)

__all__ = [
    "SHARDS_ALONE",
    "SPLIT",
    "Change",
    "Command",
    "Contents",
    "ConvertOptions",
    "Estimate",
    "FieldEstimate",
    "FieldSizes",
    "Job",
    "JoinedParts",
    "Keep",
    "Link",
    "LocalPlace",
    "Make",
    "Note",
    "Origin",
    "Packed",
    "PartReports",
    "Place",
    "Plan",
    "PlanSharing",
    "Rejected",
    "RemotePlace",
    "Rule",
    "RunFiles",
    "Samples",
    "SeenFiles",
    "ShardPlan",
    "ShardReport",
    "Shards",
    "SharedPlan",
    "SourceFiles",
    "Step",
    "Tag",
    "begin_packing",
    "changing",
    "changing_dataset",
    "check_apart",
    "check_meanings",
    "check_output",
    "check_place",
    "classes_of",
    "codec_by_field",
    "codec_texts",
    "commands_of",
    "conclude",
    "constants_error",
    "digest_samples",
    "estimate",
    "executor_at",
    "explain_changes",
    "fetch_rejected",
    "field_sizes",
    "find_culprit",
    "find_listed",
    "finish_shard",
    "fit_source",
    "is_shuffled",
    "job_of",
    "join_origins",
    "join_splits",
    "leaves",
    "make_manifest",
    "make_plan",
    "make_report",
    "make_splits",
    "matching_parts",
    "named_files",
    "number_classes",
    "open_source",
    "origin_of",
    "other_meanings",
    "pack_shards",
    "packed_folder",
    "parse_origin",
    "parse_part",
    "parse_rules",
    "part_shards",
    "place_of",
    "plan_job",
    "plan_shards",
    "plan_splits",
    "process_count",
    "read_blocks",
    "read_examples",
    "read_manifest",
    "read_rejected",
    "reading_limits",
    "remark_on_jpegs",
    "rewrite",
    "run_tasks",
    "shard_file",
    "shards_left",
    "share_out",
    "skipped_samples",
    "source_files",
    "split_text",
    "stored_fields",
    "taken_commands",
    "totals",
    "usual_options",
    "utc_now",
    "with_fields",
    "with_usual",
]
