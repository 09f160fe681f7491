"""What of a profiled run is missing, and what therefore cannot be concluded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.model import fmt
from tracelens.model.recognition import Gap
from tracelens.readers.files import RANK_UNKNOWN
from tracelens.readers.kineto.rank_rows import UNKNOWN_GROUP
from tracelens.readers.soundness import gaps_of_records
from tracelens.schema.vocabulary import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from tracelens.readers.kineto.columns import EventTable
    from tracelens.readers.kineto.windows import Shifts

__all__ = ["gaps_of"]

_PHASES: Final = ("forward", "backprop", "update")
_MOST_UNMATCHED: Final = 0.5
_DEVICE_BACKENDS: Final = ("nccl", "rccl", "xccl", "hccl")
_ON_HOST: Final = ("operator", "annotation")
_SHAPES: Final = "Input Dims"
_WAITS: Final = "which rank others wait for"


def gaps_of(
    rows: pl.DataFrame,
    tables: Sequence[EventTable],
    ranks: Sequence[int],
    shifts: Shifts,
    given: Collection[str],
) -> tuple[Gap, ...]:
    """List what is missing in the rows of all files, the most important first.

    `given` are the files, or processes of one, whose rank the user says.
    """
    return tuple(
        gap
        for gaps in (
            _unknown_ranks(tables, given),
            _unknown_format(tables),
            _damage(tables),
            gaps_of_records(
                (sentence for table in tables for sentence in table.impossible),
                [table.lost_kernels for table in tables],
                "PyTorch",
            ),
            _devices(rows, tables),
            _communication(rows, tables, ranks),
            _shifted(shifts),
            _training(rows, tables),
            _details(tables),
        )
        for gap in gaps
    )


def _unknown_ranks(tables: Sequence[EventTable], given: Collection[str]) -> Iterator[Gap]:
    if any(table.rank is None and table.label not in given for table in tables):
        yield RANK_UNKNOWN


def _unknown_format(tables: Sequence[EventTable]) -> Iterator[Gap]:
    unknown_count = sum(table.rows.filter(pl.col("category") == "other").height for table in tables)
    if unknown_count:
        is_all_unknown = all(table.is_other for table in tables)
        yield Gap(
            f"{unknown_count:,} spans are of no kind that torch.profiler writes",
            "what those spans are, but for what their names say",
            "Name ranges as phases are called (forward, backward, optimizer), or give a table of spans "
            "with --map.",
            decisive=is_all_unknown,
        )


def _damage(tables: Sequence[EventTable]) -> Iterator[Gap]:
    cut = [table.path.name for table in tables if table.cut]
    if cut:
        yield Gap(
            f"{fmt.series(cut)} {'was' if len(cut) == 1 else 'were'} cut off",
            f"what happened after the last whole event of {'it' if len(cut) == 1 else 'them'}",
            "Export the profile again, and copy it whole.",
        )
    lost = sum(table.lost + table.unusable for table in tables)
    if lost:
        yield Gap(
            f"{fmt.count(lost, 'event')} cannot be read",
            "what the events that cannot be read were",
            "Export the profile again.",
            decisive=False,
        )


def _devices(rows: pl.DataFrame, tables: Sequence[EventTable]) -> Iterator[Gap]:
    backends = {str(table.distributed.get("backend", "")) for table in tables}
    on_devices = any(name in backend for name in _DEVICE_BACKENDS for backend in backends)
    launched = rows.filter(pl.col("name").cast(pl.String).str.starts_with("nccl:")).height > 0
    if (on_devices or launched) and not rows["stream"].count():
        yield Gap(
            "no kernel is recorded",
            "what devices did, and when collectives ran",
            "Profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].",
        )


def _communication(
    rows: pl.DataFrame, tables: Sequence[EventTable], ranks: Sequence[int]
) -> Iterator[Gap]:
    calls = rows.filter(
        pl.col("kind") == "reduction", pl.col("op").cast(pl.String).is_in(COLLECTIVES)
    )
    if len(ranks) < 2 or calls.is_empty():
        return
    ungrouped_count = calls.filter(pl.col("communicator") == UNKNOWN_GROUP).height
    if ungrouped_count:
        yield Gap(
            f"{ungrouped_count:,} of {calls.height:,} collectives do not say of which group they are",
            f"{_WAITS} in them",
            "Use a newer PyTorch, or the NCCL backend: both record the group of a call.",
        )
    unmatched = calls["seq"].null_count() - ungrouped_count
    if unmatched:
        yield Gap(
            f"{unmatched:,} of {calls.height:,} collectives cannot be matched between ranks, as their "
            "order differs and none has a number",
            f"{_WAITS} in them",
            "Profile the same steps on all ranks (schedule=torch.profiler.schedule(...)).",
            decisive=unmatched > _MOST_UNMATCHED * calls.height,
        )
    if not calls["bytes"].count():
        has_shapes = any(_SHAPES in call for table in tables for call in table.calls)
        yield Gap(
            "no collective says its size",
            "bandwidth",
            "Use a newer PyTorch: this one does not record the size of a collective."
            if has_shapes
            else "Profile with record_shapes=True.",
            decisive=False,
        )


def _shifted(shifts: Shifts) -> Iterator[Gap]:
    if shifts.unknown:
        yield Gap(
            f"the profile of {fmt.listing('rank', shifts.unknown)} may begin in another step than "
            "others, as their clocks say, and collectives have no numbers that would tell",
            "which steps of the ranks are the same",
            "Profile the same steps on all ranks (schedule=torch.profiler.schedule(...)).",
            decisive=False,
        )


def _training(rows: pl.DataFrame, tables: Sequence[EventTable]) -> Iterator[Gap]:
    kinds = set(rows["kind"].unique().cast(pl.String))
    if not kinds & set(_PHASES):
        on_host = sum(
            table.rows.filter(pl.col("category").is_in(_ON_HOST)).height for table in tables
        )
        yield Gap(
            f"none of {on_host:,} operators and annotations says a phase of training"
            if on_host
            else "no operator and no annotation is recorded",
            "what ranks did",
            "Mark phases with record_function, and call them forward, backward and optimizer."
            if on_host
            else "Profile with ProfilerActivity.CPU among the activities.",
            decisive=not rows["stream"].count(),  # else devices say when they computed
        )
    if "step" not in kinds:
        yield Gap(
            "no step is marked (ProfilerStep#)",
            "where steps begin, but by the updates or collectives that come back",
            "Give the profiler a schedule (schedule=torch.profiler.schedule(...)) and call prof.step() "
            "after every step: without a schedule, prof.step() marks no step.",
            decisive=False,
        )


def _details(tables: Sequence[EventTable]) -> Iterator[Gap]:
    python = sum(table.left_out["Python functions (with_stack)"] for table in tables)
    if python:
        yield Gap(
            "Python functions are not read",
            "which line of code a phase spends its time in",
            "Record with tracelens record --sample.",
            decisive=False,
        )
