"""What of a profiled run is missing, and what therefore cannot be concluded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.model import fmt
from tracelens.model.recognition import Gap
from tracelens.readers.files import RANK_UNKNOWN
from tracelens.readers.kineto.rank_rows import UNKNOWN_GROUP
from tracelens.readers.soundness import find_record_gaps
from tracelens.schema.vocabulary import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from tracelens.readers.kineto.columns import EventTable
    from tracelens.readers.kineto.windows import Shifts

_PHASES: Final = ("forward", "backprop", "update")
_MAX_SHARE_UNMATCHED: Final = 0.5
_DEVICE_BACKENDS: Final = ("nccl", "rccl", "xccl", "hccl")
_ON_HOST: Final = ("operator", "annotation")
_SHAPES: Final = "Input Dims"
_WAITS: Final = "which rank others wait for"


def list_gaps(
    spans: pl.DataFrame,
    tables: Sequence[EventTable],
    ranks: Sequence[int],
    shifts: Shifts,
    given_labels: Collection[str],
) -> tuple[Gap, ...]:
    """List what is missing in the spans of all files, the most important first.

    `given_labels` are the files, or processes of one, whose rank the user says.
    """
    return tuple(
        gap
        for gaps in (
            _unknown_ranks(tables, given_labels),
            _unknown_format(tables),
            _damage(tables),
            find_record_gaps(
                (phrase for table in tables for phrase in table.impossible_phrases),
                [table.lost_kernels for table in tables],
                profiler="PyTorch",
            ),
            _devices(spans, tables),
            _communication(spans, tables, ranks),
            _shifted(shifts),
            _training(spans, tables),
            _details(tables),
        )
        for gap in gaps
    )


def _unknown_ranks(tables: Sequence[EventTable], given: Collection[str]) -> Iterator[Gap]:
    if any(table.rank is None and table.file_label not in given for table in tables):
        yield RANK_UNKNOWN


def _unknown_format(tables: Sequence[EventTable]) -> Iterator[Gap]:
    """Yield that spans are of categories that torch.profiler does not write, if some are."""
    unknown_count = sum(table.rows.filter(pl.col("category") == "other").height for table in tables)
    if unknown_count:
        is_all_unknown = all(table.is_of_other_tool for table in tables)
        yield Gap(
            f"{unknown_count:,} spans are of no kind that torch.profiler writes",
            "what those spans are, but for what their names say",
            "Name ranges as phases are called (forward, backward, optimizer), or give a table of spans "
            "with --map.",
            is_decisive=is_all_unknown,
        )


def _damage(tables: Sequence[EventTable]) -> Iterator[Gap]:
    """Yield which files were cut off, and how many events cannot be read."""
    cut_files = [table.path.name for table in tables if table.is_cut]
    if cut_files:
        verb, pronoun = ("was", "it") if len(cut_files) == 1 else ("were", "them")
        yield Gap(
            f"{fmt.join_words(cut_files)} {verb} cut off",
            f"what happened after the last whole event of {pronoun}",
            "Export the profile again, and copy it whole.",
        )
    lost_count = sum(table.lost_count + table.unusable_count for table in tables)
    if lost_count:
        yield Gap(
            f"{fmt.count(lost_count, 'event')} cannot be read",
            "what the events that cannot be read were",
            "Export the profile again.",
            is_decisive=False,
        )


def _devices(spans: pl.DataFrame, tables: Sequence[EventTable]) -> Iterator[Gap]:
    """Yield that kernels are missing where devices were used."""
    backends = [str(table.distributed_info.get("backend", "")) for table in tables]
    uses_devices = any(name in backend for name in _DEVICE_BACKENDS for backend in backends)
    has_nccl_spans = spans["name"].cast(pl.String).str.starts_with("nccl:").any()
    if (uses_devices or has_nccl_spans) and not spans["stream"].count():
        yield Gap(
            "no kernel is recorded",
            "what devices did, and when collectives ran",
            "Profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].",
        )


def _communication(
    spans: pl.DataFrame, tables: Sequence[EventTable], ranks: Sequence[int]
) -> Iterator[Gap]:
    """Yield the gaps in the recorded collectives of several `ranks`."""
    is_collective = pl.col("op").cast(pl.String).is_in(COLLECTIVES)
    calls = spans.filter(is_collective, pl.col("kind") == "reduction")
    if len(ranks) < 2 or calls.is_empty():
        return
    ungrouped_count = calls.filter(pl.col("communicator") == UNKNOWN_GROUP).height
    if ungrouped_count:
        yield Gap(
            f"{ungrouped_count:,} of {calls.height:,} collectives do not say of which group they are",
            f"{_WAITS} in them",
            "Use a newer PyTorch, or the NCCL backend: both record the group of a call.",
        )
    unmatched_count = calls["seq"].null_count() - ungrouped_count
    if unmatched_count:
        yield Gap(
            f"{unmatched_count:,} of {calls.height:,} collectives cannot be matched between ranks, "
            "as their order differs and none has a number",
            f"{_WAITS} in them",
            "Profile the same steps on all ranks (schedule=torch.profiler.schedule(...)).",
            is_decisive=unmatched_count > _MAX_SHARE_UNMATCHED * calls.height,
        )
    if not calls["bytes"].count():
        has_shapes = any(_SHAPES in call for table in tables for call in table.call_facts)
        yield Gap(
            "no collective says its size",
            "bandwidth",
            "Use a newer PyTorch: this one does not record the size of a collective."
            if has_shapes
            else "Profile with record_shapes=True.",
            is_decisive=False,
        )


def _shifted(shifts: Shifts) -> Iterator[Gap]:
    if shifts.unknown_ranks:
        yield Gap(
            f"the profile of {fmt.listing('rank', shifts.unknown_ranks)} may begin in another step than "
            "others, as their clocks say, and collectives have no numbers that would tell",
            "which steps of the ranks are the same",
            "Profile the same steps on all ranks (schedule=torch.profiler.schedule(...)).",
            is_decisive=False,
        )


def _training(spans: pl.DataFrame, tables: Sequence[EventTable]) -> Iterator[Gap]:
    """Yield that no phase of training, or no step, is marked."""
    kinds = set(spans["kind"].unique().cast(pl.String))
    if not kinds & set(_PHASES):
        is_on_host = pl.col("category").is_in(_ON_HOST)
        host_event_count = sum(table.rows.filter(is_on_host).height for table in tables)
        yield Gap(
            f"none of {host_event_count:,} operators and annotations says a phase of training"
            if host_event_count
            else "no operator and no annotation is recorded",
            "what ranks did",
            "Mark phases with record_function, and call them forward, backward and optimizer."
            if host_event_count
            else "Profile with ProfilerActivity.CPU among the activities.",
            is_decisive=not spans["stream"].count(),  # else devices say when they computed
        )
    if "step" not in kinds:
        yield Gap(
            "no step is marked (ProfilerStep#)",
            "where steps begin, but by the updates or collectives that come back",
            "Give the profiler a schedule (schedule=torch.profiler.schedule(...)) and call prof.step() "
            "after every step: without a schedule, prof.step() marks no step.",
            is_decisive=False,
        )


def _details(tables: Sequence[EventTable]) -> Iterator[Gap]:
    python_call_count = sum(
        table.left_out_counts["Python functions (with_stack)"] for table in tables
    )
    if python_call_count:
        yield Gap(
            "Python functions are not read",
            "which line of code a phase spends its time in",
            "Record with tracelens record --sample.",
            is_decisive=False,
        )
