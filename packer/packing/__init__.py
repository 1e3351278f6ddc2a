"""From a source to finished shards: the parts that `convert` and the other writing verbs share."""

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
    open_source,
    packed_folder,
)
from packer.packing.job import Job, Packed, fetch_rejected, job_of, plan_job, plan_splits
from packer.packing.manifest import check_output, make_manifest, named_files, read_manifest, totals
from packer.packing.note import Note, shard_file
from packer.packing.options import ConvertOptions, reading_limits
from packer.packing.origin import (
    Origin,
    classes_of,
    is_shuffled,
    join_origins,
    leaves,
    matching_parts,
    meanings_of,
    parse_origin,
    with_fields,
)
from packer.packing.parts import JoinedParts, PartReports, parse_part, part_shards, shards_left, utc_now
from packer.packing.places import LOCK, LocalPlace, Place, RemotePlace, Tag, place_of
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
from packer.packing.running import find_culprit, run_tasks
from packer.packing.schedulers import executor_at
from packer.packing.shared_plan import PlanSharing, SharedPlan
from packer.packing.sizes import FieldSizes, field_sizes
from packer.packing.source_files import SeenFiles, SourceFiles, source_files
from packer.packing.splits import SPLIT, Rule, Samples, join_splits, make_splits, parse_rules, share_out, split_text
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
    "LOCK",
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
    "meanings_of",
    "named_files",
    "open_source",
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
