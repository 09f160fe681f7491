"""The reader for trace events in JSON, above all torch.profiler's: a raw `Trace`, of a file a rank.

The rank of a file is in its `distributedInfo`, or given by the user; a file alone that says
none is rank 0 of an unknown world. A file may hold several processes, each of a rank.
Several files of one rank are one rank if their times do not overlap, as those of several profiled
windows.
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
from tracelens.readers.kineto.gaps import gaps_of
from tracelens.readers.kineto.matching import number_collectives
from tracelens.readers.kineto.processes import split_processes
from tracelens.readers.kineto.rank_rows import translate_events
from tracelens.readers.kineto.soundness import drop_impossible, find_lost_kernels
from tracelens.readers.links import check_inside, inside
from tracelens.readers.soundness import keep_common_steps, notes_of_records
from tracelens.readers.spans import Origin

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from tracelens.model.trace import Trace
    from tracelens.readers.kineto.columns import EventTable
    from tracelens.readers.kineto.windows import Shifts

__all__ = ["KinetoReader"]

_SUFFIXES: Final = (".json", ".json.gz")
_SHOWN: Final = 3


@dataclass(frozen=True)
class KinetoReader:
    """Reads a file or a folder of trace events in JSON."""

    name: str = "trace events in JSON (torch.profiler)"

    def sniff(self, path: Path) -> bool:
        """Return True for a file of events, or a folder that holds one."""
        return any(map(looks_like_events, inside(list_files(path, _SUFFIXES), path)))

    def read(self, path: Path, options: Reading = SIMPLY) -> Trace:
        """Read all files; what cannot be read becomes a note.

        Raises:
            NotATrace: no file holds events. UnusableInput: a file does not say its rank, and the user
            does not either, or two say the same.
        """
        tables, notes = _read_tables(path, options)
        tables, repeat_notes = _drop_repeats(tables, _find_ranks(tables, options.rank_of))
        ranks = _find_ranks(tables, options.rank_of)
        check_one_job(
            RankFile(table.label, rank, table.world, table.first_ns, table.last_ns)
            for table, rank in zip(tables, ranks, strict=True)
        )
        notes += [*repeat_notes, *_note_assumed_ranks(tables, options.rank_of)]
        notes += _note_lost_kernels(tables, ranks)
        world = max([max(ranks) + 1, *(table.world for table in tables)])
        spans_of_tables: list[pl.DataFrame] = []
        members: dict[str, Sequence[int]] = {}
        for table, rank in zip(tables, ranks, strict=True):
            groups = read_groups(table.facts)
            spans_of_tables.append(_add_owner(translate_events(table, groups), table, rank, world))
            members |= {group_name(name, *group): group.ranks for name, group in groups.items()}
        spans_of_run, shifts = number_collectives(pl.concat(spans_of_tables))
        del spans_of_tables
        lossy_steps = [
            (rank, step + shifts.steps.get(rank, 0))
            for table, rank in zip(tables, ranks, strict=True)
            for step in table.lost_kernels.steps
        ]
        spans_of_run, step_notes = keep_common_steps(spans_of_run, lossy_steps)
        if spans_of_run.is_empty():
            raise EmptyTrace(
                f"'{path}' holds no event that lasts: expected operators, kernels or ranges."
            )
        origin = Origin(
            f"'{path.name}'",
            path.name,
            dates=all(table.base_ns for table in tables),
            once=True,
            notes=[*notes, *_note_renumbered(shifts), *step_notes],
            members=members,
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
                table.impossible = drop_impossible(table)
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
    if table.cut:
        sentence = (
            f"'{table.path.name}' was cut off ({table.damage}): the {table.events:,} events before that "
            "are read."
        )
        notes.append(Note(table.path.name, sentence, "truncated"))
    notes += notes_of_records(table.path.name, table.impossible, ())
    lost_count = table.lost + table.unusable
    if lost_count:
        reason = f", as {table.damage}" if table.damage and not table.cut else ""
        sentence = (
            f"Of '{table.path.name}', {fmt.count(lost_count, 'event')} cannot be read{reason}: "
            f"{table.lost:,} as JSON, {table.unusable:,} for want of a name or of times."
        )
        notes.append(Note(table.path.name, sentence, "dropped"))
    return notes


def _find_ranks(tables: Sequence[EventTable], given_ranks: Mapping[str, int]) -> list[int]:
    """Return the rank of each file.

    Raises:
        UnusableInput: it is not known.
    """
    ranks = [given_ranks.get(table.label, table.rank) for table in tables]
    rankless_tables = [table for table, rank in zip(tables, ranks, strict=True) if rank is None]
    labels = [table.label for table in rankless_tables]
    if len(tables) == 1 and labels:
        return [0]
    if labels:
        listed = fmt.series([f"'{name}'" for name in labels[:_SHOWN]])
        rest_text = f" and {len(labels) - _SHOWN} more" if len(labels) > _SHOWN else ""
        verb, subject = ("does", "it is") if len(labels) == 1 else ("do", "each is")
        raise UnusableInput(
            f"{listed}{rest_text} {verb} not say of which rank {subject} "
            f"({_why_unknown(rankless_tables[0])}): say so with --rank-of {labels[0]}=0"
            + (", once for each." if len(labels) > 1 else ", with the rank that it is of.")
        )
    return [rank for rank in ranks if rank is not None]


def _why_unknown(table: EventTable) -> str:
    """Return why a file does not say its rank."""
    if table.process:
        return "several processes are in one file, and neither their names nor their devices say it"
    processes = table.rows["pid"].drop_nulls().unique(maintain_order=True)
    if table.is_other and len(processes) > 1:
        return (
            f"nor which of its {len(processes):,} processes are ranks, which --rank-of "
            f"{table.path.name}:{processes[0]}=RANK says, once for each"
        )
    if table.lost_facts:
        return "what stands beside its events is not JSON, so distributedInfo cannot be read"
    if table.distributed:
        return "its distributedInfo has no valid rank"
    return "no distributedInfo: torch.distributed was not in use, or the profiler is an old one"


def _note_assumed_ranks(
    tables: Sequence[EventTable], given_ranks: Mapping[str, int]
) -> Iterator[Note]:
    """Note which ranks the files do not say."""
    for table in tables:
        if table.rank is None and table.label not in given_ranks:
            yield note_assumed_rank(table.path.name, _why_unknown(table))
    for table in tables:
        if table.is_rank_of_device and table.label not in given_ranks:
            yield note_ranks_of_devices(table.path.name, table.process or "")
            break  # one note is enough


def _drop_repeats(
    tables: Sequence[EventTable], ranks: Sequence[int]
) -> tuple[list[EventTable], list[Note]]:
    """Leave out files that repeat another one of their rank.

    Raises:
        UnusableInput: two files of a rank hold other events of the same time.
    """
    kept_tables: list[EventTable] = []
    notes = []
    table_of_rank: dict[int, EventTable] = {}
    order = sorted(range(len(tables)), key=lambda index: (ranks[index], tables[index].first_ns))
    for index in order:
        table, earlier_table = tables[index], table_of_rank.get(ranks[index])
        if earlier_table is not None and table.rows.equals(earlier_table.rows):
            sentence = (
                f"'{table.label}' repeats '{earlier_table.label}', all {table.events:,} events: it "
                "counts once."
            )
            notes.append(Note(table.path.name, sentence, "dropped"))
            continue
        if earlier_table is not None and table.first_ns <= earlier_table.last_ns:
            raise UnusableInput(
                f"'{earlier_table.label}' and '{table.label}' are both of rank {ranks[index]}, at the "
                "same time: leave one out, or say of which rank it is with --rank-of "
                f"{table.label}=RANK."
            )
        table_of_rank[ranks[index]] = table
        kept_tables.append(table)
    return kept_tables, notes


def _note_lost_kernels(tables: Sequence[EventTable], ranks: Sequence[int]) -> list[Note]:
    """Find launches without a kernel in each file, and note them."""
    notes = []
    for table, rank in zip(tables, ranks, strict=True):
        siblings = [peer for peer, r in zip(tables, ranks, strict=True) if r == rank]
        lost_kernels = table.lost_kernels = find_lost_kernels(table, siblings)
        notes += notes_of_records(table.path.name, (), [lost_kernels])
    return notes


def _add_owner(events: pl.DataFrame, table: EventTable, rank: int, world: int) -> pl.DataFrame:
    """Add columns that say whose spans they are: rank, world, host, clock, file and process id."""
    name = table.path.name
    # One timeline has one clock.
    clock = name if table.process and table.is_other else f"rank {rank}"
    return events.with_columns(
        pl.lit(rank, pl.Int32).alias("rank"),
        pl.lit(world, pl.Int32).alias("world"),
        pl.lit(table.host, pl.Categorical).alias("host"),
        pl.lit(clock, pl.Categorical).alias("clock"),
        pl.lit(name, pl.Categorical).alias("file"),
        pl.lit(table.pid, pl.Int64).alias("pid"),
    )


def _note_renumbered(shifts: Shifts) -> Iterator[Note]:
    """Note which ranks' steps were renumbered, as their profiles begin in other steps."""
    for shift in sorted(set(shifts.steps.values()) - {0}):
        ranks = [rank for rank, rank_shift in shifts.steps.items() if rank_shift == shift]
        yield Note(
            "",
            f"By matched collectives, the profile of {fmt.listing('rank', ranks)} begins "
            f"{fmt.count(shift, 'step')} later than others: its steps are renumbered.",
            "renumbered",
        )


def _recognize(
    spans_of_run: pl.DataFrame,
    tables: Sequence[EventTable],
    ranks: Sequence[int],
    shifts: Shifts,
    given_labels: Collection[str],
) -> Recognition:
    """Summarize what was recognized in the files."""
    left_out, count_by_category = Counter[str](), Counter[str]()
    for table in tables:
        left_out.update(table.left_out)
        count_by_category.update(dict(table.rows["category"].value_counts().rows()))
    event_count = sum(table.events for table in tables)
    counts = sorted(count_by_category.items(), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{count:,} {_plural(category)}" for category, count in counts)
    is_foreign = all(table.is_other for table in tables)
    return Recognition(
        format="trace in Chrome's event format" if is_foreign else "profile by torch.profiler",
        found=(("events", f"{event_count:,}: {listed}"),),
        left_out=tuple((reason, count) for reason, count in left_out.items() if count),
        gaps=gaps_of(spans_of_run, tables, sorted(set(ranks)), shifts, given_labels),
    )


def _plural(sort: str) -> str:
    return {
        "copy": "copies and sets of memory",
        "runtime": "calls of the runtime",
        "other": "others",
    }.get(sort, f"{sort}s")
