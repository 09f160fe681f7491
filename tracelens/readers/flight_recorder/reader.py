"""The reader for Flight Recorder's dumps: a file, or a folder of one a rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.errors import EmptyTrace, NotATrace, UnusableInput
from tracelens.model import fmt
from tracelens.model.notes import Note
from tracelens.model.recognition import Gap, Recognition
from tracelens.readers import spans
from tracelens.readers.base import SIMPLY, Reading
from tracelens.readers.flight_recorder.dump import EQUAL_BYTES, Dump, rank_in, read_dump
from tracelens.readers.flight_recorder.hangs import list_hang_facts, unnumber_unstarted_calls
from tracelens.readers.links import select_files_inside
from tracelens.readers.spans import Origin
from tracelens.schema.gate import read_beginning
from tracelens.schema.rules import missing_reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tracelens.model.trace import Trace

_PICKLE: Final = b"\x80"
_JSON: Final = b"{"
_HEAD_BYTES: Final = 1 << 16
_WORDS: Final = (b"pg_config", b"entries", b"pg_status", b"collective_seq_id", b"profiling_name")
_MIN_WORDS: Final = 2
_WORLD: Final = "default_pg"
_CLOCK: Final = "wall clocks"  # of all hosts, taken for one: calls have no ends to tie them by


@dataclass(frozen=True)
class FlightRecorderReader:
    """Reads what `TORCH_FR_DUMP_TEMP_FILE` names, and dumps as JSON; executes nothing of them."""

    name: str = "dump of PyTorch's Flight Recorder"

    def sniff(self, path: Path) -> bool:
        """Return True if a file, or the first of a folder, is such a dump."""
        return any(map(_is_dump, select_files_inside(_list_dump_files(path), path)[:1]))

    def read(self, path: Path, options: Reading = SIMPLY) -> Trace:
        """Read all files, as `Reader.read` says."""
        dumps, notes = _read_dumps(path, options)
        ranks = _find_ranks(dumps, options.rank_of)
        dumps = _separate_groups(dumps)
        calls = pl.concat(
            dump.call_rows.with_columns(
                rank=pl.lit(rank, pl.Int32), clock=pl.lit(_CLOCK), file=pl.lit(dump.file_name)
            )
            for dump, rank in zip(dumps, ranks, strict=True)
        )
        if calls.is_empty():
            raise EmptyTrace(
                f"'{path}' holds no call of a collective: set TORCH_FR_BUFFER_SIZE=2000 before training."
            )
        calls = unnumber_unstarted_calls(calls)
        ranks_by_group, world_size = _find_group_ranks(calls, dumps, ranks)
        unusable_count = sum(dump.unusable_count for dump in dumps)
        if unusable_count:
            count_text = fmt.count(unusable_count, "entry", "entries")
            notes.append(
                Note(file="", sentence=f"{count_text} without a time are left out.", kind="dropped")
            )
        origin = Origin(
            name=f"'{path.name}'",
            file=path.name,
            has_dates=True,
            has_no_repeats=True,
            unusable_by_reason={missing_reason("start_ns"): unusable_count},
            notes=notes,
            ranks_by_communicator=ranks_by_group,
            recognition=Recognition(
                format=f"dump of PyTorch's Flight Recorder (version {dumps[0].format_version})",
                facts=tuple(list_hang_facts(calls, ranks_by_group, {*ranks})),
                left_out=(),
                gaps=tuple(_list_gaps(calls, dumps)),
                ops_of_equal_bytes=EQUAL_BYTES,
                is_snapshot=True,
            ),
        )
        spans_of_calls = calls.with_columns(world=pl.lit(world_size)).drop(
            "group_label", "state", "is_message", "record_number", "call_site"
        )
        trace = spans.build(spans_of_calls, origin)
        labels = dict(
            calls.select("communicator", "group_label").unique("communicator").iter_rows()
        )
        return trace.with_(
            processes=_add_silent_ranks(trace.processes, dumps, ranks, world_size),
            communicators=trace.communicators.with_columns(pl.col("name").replace(labels)),
            path=path,
        )


def _separate_groups(dumps: Sequence[Dump]) -> list[Dump]:
    """Add their ranks to the names of groups that mean other ranks in other dumps."""
    long_names_by_name: dict[str, set[str]] = {}  # a long name ends with the ranks of the group
    for dump in dumps:
        for name, ranks in dump.ranks_by_group.items():
            long_names_by_name.setdefault(name, set()).add(f"{name} {ranks}")
    separated_dumps = []
    for dump in dumps:
        new_names = {
            name: f"{name} {ranks}"
            for name, ranks in dump.ranks_by_group.items()
            if len(long_names_by_name[name]) > 1
        }
        calls = dump.call_rows.with_columns(pl.col("communicator").replace(new_names))
        ranks_by_group = {new_names.get(name, name): r for name, r in dump.ranks_by_group.items()}
        separated_dumps.append(replace(dump, call_rows=calls, ranks_by_group=ranks_by_group))
    return separated_dumps


def _find_group_ranks(
    calls: pl.DataFrame, dumps: Sequence[Dump], ranks: Sequence[int]
) -> tuple[dict[str, list[int]], int]:
    """Return the ranks of groups by name, as far as they are known, and how many ranks there are in all.

    Gloo's dumps name no ranks: in the group of all are those with a dump, and as many as it gathers of.
    `ranks` are those of the dumps.
    """
    ranks_by_group = {name: r for dump in dumps for name, r in dump.ranks_by_group.items()}
    world_groups = calls.filter(pl.col("group_label") == _WORLD)["communicator"].unique().to_list()
    known_sizes = [dump.size_by_group.get(name, 0) for dump in dumps for name in world_groups]
    known_ranks = chain(ranks, *ranks_by_group.values())
    world_size = max(*known_sizes, 0, *(1 + rank for rank in known_ranks))
    return {name: [*range(world_size)] for name in world_groups} | ranks_by_group, world_size


def _add_silent_ranks(
    processes: pl.DataFrame, dumps: Sequence[Dump], ranks: Sequence[int], world_size: int
) -> pl.DataFrame:
    """Add to the process table the ranks whose dumps hold no call: they came to none.

    Whoever wrote its dump was there to do so: what is open is a hang, no end of the recording.
    """
    present_ranks = set(processes["rank"])
    file_by_rank = {rank: dump.file_name for rank, dump in zip(ranks, dumps, strict=True)}
    silent_ranks = [rank for rank in ranks if rank not in present_ranks]
    silent_processes = [
        {
            "process": process, "role": "worker", "rank": rank, "world": world_size,
            "host": f"rank {rank}", "clock_domain": _CLOCK, "main": True, "events": 0, "dropped": 0,
            "file": file_by_rank[rank],
        }
        for process, rank in enumerate(silent_ranks, start=processes.height)
    ]  # fmt: skip
    added_processes = pl.DataFrame(silent_processes, schema=processes.schema)
    return pl.concat([processes, added_processes]).with_columns(complete=pl.lit(value=True))


def _list_dump_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    named = (entry for entry in path.iterdir() if rank_in(entry.name) is not None)
    return sorted(entry for entry in named if entry.is_file())


def _is_dump(file: Path) -> bool:
    first_bytes = read_beginning(file, _HEAD_BYTES)
    words = [b'"%b"' % word for word in _WORDS] if first_bytes.startswith(_JSON) else _WORDS
    is_begun = first_bytes.startswith((_PICKLE, _JSON))
    return is_begun and sum(word in first_bytes for word in words) >= _MIN_WORDS


def _read_dumps(path: Path, options: Reading) -> tuple[list[Dump], list[Note]]:
    """Read files; return their dumps, and notes on files that cannot be read."""
    files = _list_dump_files(path)
    dumps, notes = [], []
    for done_count, file in enumerate(files, 1):
        try:
            dumps.append(read_dump(file, path))
        except NotATrace as error:
            if len(files) == 1:
                raise
            notes.append(Note(file.name, str(error), "unreadable"))
        if options.progress:
            options.progress(done_count, len(files))
    if not dumps:
        raise NotATrace(f"None of {len(files)} files is a whole dump: {notes[0].sentence}")
    return dumps, notes


def _find_ranks(dumps: Sequence[Dump], given_ranks: Mapping[str, int]) -> list[int]:
    """Return the rank of each dump: as the user says, or as PyTorch names its file."""
    ranks: list[int] = []
    for dump in dumps:
        rank = given_ranks.get(dump.file_name, rank_in(dump.file_name))
        if rank is None:
            raise UnusableInput(
                f"'{dump.file_name}' is not named after a rank, as 'nccl_trace_rank_3' is: say which it "
                f"is of with --rank-of {dump.file_name}=RANK."
            )
        if rank in ranks:
            earlier_file = dumps[ranks.index(rank)].file_name
            raise UnusableInput(
                f"'{earlier_file}' and '{dump.file_name}' are both of rank {rank}: leave one out, or "
                f"say of which rank it is with --rank-of {dump.file_name}=RANK."
            )
        ranks.append(rank)
    return ranks


def _list_gaps(calls: pl.DataFrame, dumps: Sequence[Dump]) -> Iterator[Gap]:
    """Yield the gaps in the recorded calls: missing facts, and how to record them."""
    yield Gap(
        "Flight Recorder holds calls of collectives only",
        "what ranks did between their calls",
        "Record the run with 'tracelens record', or profile it with torch.profiler.",
    )
    if len(dumps) > 1:
        yield Gap(
            "the clocks of hosts are taken for one",
            "by how much ranks are apart, to less than clocks of hosts differ",
            "Record the run with 'tracelens record'.",
            is_decisive=False,
        )
    untimed_count = sum(dump.untimed_count for dump in dumps)
    if untimed_count:
        yield Gap(
            f"of {untimed_count:,} calls it is not recorded when they ended",
            "how long they took",
            "With NCCL, set TORCH_NCCL_ENABLE_TIMING=1.",
            is_decisive=False,
        )
    if calls["is_message"].any():
        yield Gap(
            "messages between two ranks have no number that both sides share",
            "which message hangs",
            "Look at the last messages of each rank.",
            is_decisive=False,
        )
