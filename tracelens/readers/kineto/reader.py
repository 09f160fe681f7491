"""The reader for trace events in JSON, above all torch.profiler's: a raw `Trace`, of a file a rank.

A file may hold several processes, each of a rank. Several files of one rank are one rank if their times
do not overlap, as those of several profiled windows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.errors import EmptyTrace, NotATrace, UnusableInput
from tracelens.model import fmt
from tracelens.model.recognition import Recognition
from tracelens.model.trace import Note
from tracelens.readers import spans
from tracelens.readers.base import SIMPLY, Reading
from tracelens.readers.event_stream import looks_like_events
from tracelens.readers.files import list_files, note_assumed_rank, note_ranks_of_devices
from tracelens.readers.jobs import RankFile, check_one_job
from tracelens.readers.kineto.collectives import group_name, read_groups
from tracelens.readers.kineto.columns import read_events
from tracelens.readers.kineto.gaps import list_gaps
from tracelens.readers.kineto.matching import number_collectives
from tracelens.readers.kineto.processes import split_processes
from tracelens.readers.kineto.rank_rows import translate_events
from tracelens.readers.kineto.soundness import drop_impossible_rows, find_lost_kernels
from tracelens.readers.links import check_inside, select_files_inside
from tracelens.readers.soundness import keep_common_steps, note_dropped_records
from tracelens.readers.spans import Origin

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from tracelens.model.trace import Trace
    from tracelens.readers.kineto.columns import EventTable
    from tracelens.readers.kineto.windows import Shifts

_SUFFIXES: Final = (".json", ".json.gz")
_MAX_FILES_SHOWN: Final = 3


@dataclass(frozen=True)
class KinetoReader:
    """Reads a file or a folder of trace events in JSON."""

    name: str = "trace events in JSON (torch.profiler)"

    def sniff(self, path: Path) -> bool:
        """Return True for a file of events, or a folder that holds one."""
        return any(map(looks_like_events, select_files_inside(list_files(path, _SUFFIXES), path)))

    def read(self, path: Path, options: Reading = SIMPLY) -> Trace:
        """Read all files, as `Reader.read` says."""
        tables, notes = _read_tables(path, options)
        tables, repeat_notes = _drop_repeats(tables, _find_ranks(tables, options.rank_of))
        ranks = _find_ranks(tables, options.rank_of)
        check_one_job(
            RankFile(table.file_label, rank, table.world_size, *table.begin_range_ns)
            for table, rank in zip(tables, ranks, strict=True)
        )
        notes += [*repeat_notes, *_note_assumed_ranks(tables, options.rank_of)]
        notes += _note_lost_kernels(tables, ranks)
        world_size = max([max(ranks) + 1, *(table.world_size for table in tables)])
        span_tables: list[pl.DataFrame] = []
        ranks_by_communicator: dict[str, Sequence[int]] = {}
        for table, rank in zip(tables, ranks, strict=True):
            groups = read_groups(table.metadata)
            span_tables.append(_add_owner(translate_events(table, groups), table, rank, world_size))
            for name, group in groups.items():
                ranks_by_communicator[group_name(name, *group)] = group.ranks
        spans_of_run, shifts = number_collectives(pl.concat(span_tables))
        del span_tables  # their memory is needed
        lossy_steps = [
            (rank, step + shifts.step_shift_by_rank.get(rank, 0))
            for table, rank in zip(tables, ranks, strict=True)
            for step in table.lost_kernels.lossy_steps
        ]
        spans_of_run, step_notes = keep_common_steps(spans_of_run, lossy_steps)
        if spans_of_run.is_empty():
            raise EmptyTrace(
                f"'{path}' holds no event that lasts: expected operators, kernels or ranges."
            )
        origin = Origin(
            name=f"'{path.name}'",
            file=path.name,
            has_dates=all(table.time_origin_ns for table in tables),
            has_no_repeats=True,
            notes=[*notes, *_note_renumbered(shifts), *step_notes],
            ranks_by_communicator=ranks_by_communicator,
            recognition=_recognize(spans_of_run, tables, ranks, shifts, options.rank_of),
        )
        return spans.build(spans_of_run.drop("issued_ns"), origin).with_(path=path)


def _read_tables(path: Path, options: Reading) -> tuple[list[EventTable], list[Note]]:
    """Read the files one by one; of a folder those that hold no events are noted."""
    files = list_files(path, _SUFFIXES)
    tables, notes = [], []
    for done_count, file in enumerate(files):
        if options.progress:
            options.progress(done_count, len(files))
        try:
            check_inside(file, path)
            for table in split_processes(read_events(file), options.rank_of):
                table.impossible_phrases = drop_impossible_rows(table)
                tables.append(table)
        except (NotATrace, OSError) as error:
            reason = str(error)
            sentence = reason if reason.startswith("'") else f"'{file}' cannot be read: {reason}."
            if len(files) == 1:
                raise NotATrace(sentence) from error
            notes.append(Note(file.name, sentence, "unreadable"))
    if not tables:
        nothing_found = f"'{path}' holds no .json and no .json.gz file."
        raise NotATrace(notes[0].sentence if notes else nothing_found)
    for table in tables:
        notes += _note_damage(table)
    return tables, notes


def _note_damage(table: EventTable) -> list[Note]:
    """Note what of a file is not whole."""
    notes = []
    if table.is_cut:
        sentence = (
            f"'{table.path.name}' was cut off ({table.damage_reason}): the {table.event_count:,} events "
            "before that are read."
        )
        notes.append(Note(table.path.name, sentence, "truncated"))
    notes += note_dropped_records(table.path.name, table.impossible_phrases, lost_kernels=())
    lost_count = table.lost_count + table.unusable_count
    if lost_count:
        reason = f", as {table.damage_reason}" if table.damage_reason and not table.is_cut else ""
        sentence = (
            f"Of '{table.path.name}', {fmt.count(lost_count, 'event')} cannot be read{reason}: "
            f"{table.lost_count:,} as JSON, {table.unusable_count:,} for want of a name or of times."
        )
        notes.append(Note(table.path.name, sentence, "dropped"))
    return notes


def _find_ranks(tables: Sequence[EventTable], given_ranks: Mapping[str, int]) -> list[int]:
    """Return the rank of each file: as the user says, else as the file does; one alone may be rank 0."""
    ranks = [given_ranks.get(table.file_label, table.rank) for table in tables]
    rankless_tables = [table for table, rank in zip(tables, ranks, strict=True) if rank is None]
    labels = [table.file_label for table in rankless_tables]
    if len(tables) == 1 and labels:
        return [0]
    if labels:
        listed = fmt.join_words([f"'{name}'" for name in labels[:_MAX_FILES_SHOWN]])
        rest_text = (
            f" and {len(labels) - _MAX_FILES_SHOWN} more" if len(labels) > _MAX_FILES_SHOWN else ""
        )
        verb, subject = ("does", "it is") if len(labels) == 1 else ("do", "each is")
        raise UnusableInput(
            f"{listed}{rest_text} {verb} not say of which rank {subject} "
            f"({_why_unknown(rankless_tables[0])}): say so with --rank-of {labels[0]}=0"
            + (", once for each." if len(labels) > 1 else ", with the rank that it is of.")
        )
    return [rank for rank in ranks if rank is not None]


def _why_unknown(table: EventTable) -> str:
    """Return why a file does not say its rank."""
    if table.selected_pid:
        return "several processes are in one file, and neither their names nor their devices say it"
    processes = table.rows["pid"].drop_nulls().unique(maintain_order=True)
    if table.is_of_other_tool and len(processes) > 1:
        return (
            f"nor which of its {len(processes):,} processes are ranks, which --rank-of "
            f"{table.path.name}:{processes[0]}=RANK says, once for each"
        )
    if table.has_lost_metadata:
        return "what stands beside its events is not JSON, so distributedInfo cannot be read"
    if table.distributed_info:
        return "its distributedInfo has no valid rank"
    return "no distributedInfo: torch.distributed was not in use, or the profiler is an old one"


def _note_assumed_ranks(
    tables: Sequence[EventTable], given_ranks: Mapping[str, int]
) -> Iterator[Note]:
    """Note which ranks the files do not say."""
    for table in tables:
        if table.rank is None and table.file_label not in given_ranks:
            yield note_assumed_rank(table.path.name, _why_unknown(table))
    for table in tables:
        if table.is_rank_of_device and table.file_label not in given_ranks:
            yield note_ranks_of_devices(table.path.name, table.selected_pid or "")
            break  # one note is enough


def _drop_repeats(
    tables: Sequence[EventTable], ranks: Sequence[int]
) -> tuple[list[EventTable], list[Note]]:
    """Leave out files that repeat another one of their rank; return the others by rank and time."""
    kept_tables: list[EventTable] = []
    notes = []
    last_table_by_rank: dict[int, EventTable] = {}
    tables_and_ranks = zip(tables, ranks, strict=True)
    for table, rank in sorted(
        tables_and_ranks, key=lambda pair: (pair[1], pair[0].begin_range_ns[0])
    ):
        earlier_table = last_table_by_rank.get(rank)
        if earlier_table is not None and table.rows.equals(earlier_table.rows):
            sentence = (
                f"'{table.file_label}' repeats '{earlier_table.file_label}', all "
                f"{table.event_count:,} events: it counts once."
            )
            notes.append(Note(table.path.name, sentence, "dropped"))
            continue
        if earlier_table and table.begin_range_ns[0] <= earlier_table.begin_range_ns[1]:
            raise UnusableInput(
                f"'{earlier_table.file_label}' and '{table.file_label}' are both of rank {rank}, at the "
                "same time: leave one out, or say of which rank it is with --rank-of "
                f"{table.file_label}=RANK."
            )
        last_table_by_rank[rank] = table
        kept_tables.append(table)
    return kept_tables, notes


def _note_lost_kernels(tables: Sequence[EventTable], ranks: Sequence[int]) -> list[Note]:
    """Find launches without a kernel in the files of their rank (`lost_kernels`), and note them."""
    notes = []
    for table, rank in zip(tables, ranks, strict=True):
        tables_of_rank = [other for other, r in zip(tables, ranks, strict=True) if r == rank]
        table.lost_kernels = find_lost_kernels(table, tables_of_rank)
        notes += note_dropped_records(
            table.path.name, impossible_phrases=(), lost_kernels=[table.lost_kernels]
        )
    return notes


def _add_owner(spans: pl.DataFrame, table: EventTable, rank: int, world_size: int) -> pl.DataFrame:
    """Add columns that say whose spans they are: rank, world, host, clock, file and process id.

    Other tools write all processes of a file by one clock; profiles of ranks have one each.
    """
    file_name = table.path.name
    shares_clock = table.selected_pid is not None and table.is_of_other_tool
    clock = file_name if shares_clock else f"rank {rank}"
    return spans.with_columns(
        pl.lit(rank, pl.Int32).alias("rank"),
        pl.lit(world_size, pl.Int32).alias("world"),
        pl.lit(table.host_name, pl.Categorical).alias("host"),
        pl.lit(clock, pl.Categorical).alias("clock"),
        pl.lit(file_name, pl.Categorical).alias("file"),
        pl.lit(table.main_pid, pl.Int64).alias("pid"),
    )


def _note_renumbered(shifts: Shifts) -> Iterator[Note]:
    """Note which ranks' steps were renumbered, as their profiles begin in other steps."""
    for shift in sorted(set(shifts.step_shift_by_rank.values()) - {0}):
        ranks = [
            rank for rank, rank_shift in shifts.step_shift_by_rank.items() if rank_shift == shift
        ]
        yield Note(
            file="",
            sentence=f"By matched collectives, the profile of {fmt.listing('rank', ranks)} begins "
            f"{fmt.count(shift, 'step')} later than others: its steps are renumbered.",
            kind="renumbered",
        )


def _recognize(
    spans_of_run: pl.DataFrame,
    tables: Sequence[EventTable],
    ranks: Sequence[int],
    shifts: Shifts,
    given_labels: Collection[str],
) -> Recognition:
    """Summarize what was recognized; `given_labels` are the files whose rank the user says."""
    left_out_counts, row_counts = Counter[str](), Counter[str]()
    for table in tables:
        left_out_counts.update(table.left_out_counts)
        row_counts.update(dict(table.rows["category"].value_counts().rows()))
    event_count = sum(table.event_count for table in tables)
    sorted_counts = sorted(row_counts.items(), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{count:,} {_plural(category)}" for category, count in sorted_counts)
    is_of_other_tool = all(table.is_of_other_tool for table in tables)
    return Recognition(
        format="trace in Chrome's event format"
        if is_of_other_tool
        else "profile by torch.profiler",
        facts=(("events", f"{event_count:,}: {listed}"),),
        left_out=tuple((reason, count) for reason, count in left_out_counts.items() if count),
        gaps=list_gaps(spans_of_run, tables, sorted(set(ranks)), shifts, given_labels),
    )


def _plural(category: str) -> str:
    plurals = {"copy": "copies and sets of memory", "runtime": "calls of the runtime"}
    return plurals.get(category, f"{category}s")
