"""Reads what the Inspector plugin of NCCL and RCCL writes: one call a line (docs/formats.md).

A file is of a process. A call has its number, its size, how long its kernels took and its bandwidth.
When it ran is only in files of the verbose mode (`NCCL_INSPECTOR_DUMP_VERBOSE=1`): then its times are
those at which the host saw its kernels begin and end. Other calls are laid end to end before the moment
at which they were written, and no rank is said to wait in them. Calls are numbered for each operation of
a communicator, from which the numbers of the communicator are made.

Source: plugins/profiler/inspector of NCCL 2.28 to 2.30 (formats 4.0 to 4.4).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson
import polars as pl

from tracelens.errors import NotATrace
from tracelens.model import fmt
from tracelens.model.recognition import Gap
from tracelens.readers.event_stream import begin_of_events
from tracelens.readers.files import (
    FilesReader,
    ReadFile,
    assign_ranks,
    gap_of_cut_files,
    gap_of_ranks,
    join_files,
    recognize,
)
from tracelens.readers.json_lines import JsonLines
from tracelens.readers.json_values import MOST_US, as_number, as_object, as_text
from tracelens.readers.words import meaning
from tracelens.schema.gate import refuse_beyond
from tracelens.schema.vocabulary import COLLECTIVES, MOST_RANKS, POINT_TO_POINT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tracelens.model.notes import Note
    from tracelens.model.trace import Trace

__all__ = ["NcclInspectorReader", "is_inspector"]

_WHY: Final = (
    "Ranks are those within communicators, and no communicator of the largest size is in all files"
)
_VERSION: Final = "inspector_output_format_version"
_LISTED: Final = 6  # operations of which `info` shows the bandwidth [policy]
_COLUMNS: Final[dict[str, pl.DataType]] = {
    "communicator": pl.String(),
    "called": pl.String(),  # the communicator's name
    "member": pl.Int32(),  # rank within the communicator
    "members": pl.Int32(),
    "host": pl.String(),
    "pid": pl.Int64(),
    "op": pl.String(),
    "name": pl.String(),
    "call": pl.Int64(),  # number of the operation
    "bytes": pl.Int64(),
    "peer": pl.Int32(),  # rank within the communicator
    "algorithm": pl.String(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "spent_ns": pl.Int64(),
    "written_ns": pl.Int64(),
    "bandwidth": pl.Float64(),  # bus bandwidth, GB/s
}


@dataclass(eq=False)
class Calls(ReadFile):
    """The calls of one process, in `_COLUMNS`; `dropped` of each communicator were not written."""

    dropped: dict[str, int] = field(default_factory=dict)


def is_inspector(path: Path) -> bool:
    """Return True if a file begins with a line of the plugin."""
    line, _, _ = begin_of_events(path).partition(b"\n")
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    if not isinstance(record, dict) or not isinstance(record.get("header"), dict):
        return False
    metadata = record.get("metadata")
    return isinstance(metadata, dict) and _VERSION in metadata


def calls_of(path: Path) -> Calls:
    """Read one file.

    Raises:
        NotATrace: it does not begin as such, is no regular file, or larger than it may be.
        OSError: it cannot be read.
    """
    if not is_inspector(path):
        raise NotATrace("it does not begin with a line of NCCL Inspector")
    calls, lines = Calls(), JsonLines(path)
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    for record in lines:
        row = _row(record, calls)
        for name, cells in columns.items() if row else ():
            cells.append(row.get(name))
        refuse_beyond("rows", len(columns["op"]))
    calls.take_damage(lines)
    rows = pl.DataFrame(
        {
            name: pl.Series(columns[name], dtype=kind, strict=False)
            for name, kind in _COLUMNS.items()
        }
    )
    calls.rows = _lay_out_untimed(rows)
    return calls


def _row(record: dict[str, Any], calls: Calls) -> dict[str, Any]:
    """Return a call as a row, empty for another record, or one that says too little."""
    header, metadata = (as_object(record.get(name)) for name in ("header", "metadata"))
    group = as_text(header.get("id"))
    side = next(
        (side for side in ("coll", "p2p") if isinstance(record.get(f"{side}_perf"), dict)), ""
    )
    if not side:
        stats = as_object(record.get("dump_stats"))
        lost = sum(as_number(stats.get(f"{each}_dropped_total")) or 0 for each in ("coll", "p2p"))
        calls.dropped[group] = max(lost, calls.dropped.get(group, 0))
        calls.left_out["summaries of dumps" if stats else "records of network proxies"] += 1
        return {}
    call = as_object(record[f"{side}_perf"])
    name = as_text(call.get(side))
    known = meaning(name)
    lasted_ns, written_ns = (
        _ns(call.get(f"{side}_exec_time_us")),
        _ns(metadata.get("dump_timestamp_us")),
    )
    known_op = known[1] if known and known[1] in (*COLLECTIVES, *POINT_TO_POINT) else None
    member, members = as_number(header.get("rank")), as_number(header.get("n_ranks"))
    if (
        not group
        or not name
        or None in {lasted_ns, written_ns, member}
        or (member or 0) >= MOST_RANKS
    ):
        calls.unusable += 1
        return {}
    calls.sorts[name] += 1
    started, ended = _kernel_times(as_object(call.get("event_trace_ts")))
    algorithm_words = [as_text(call.get(f"coll_{each}")) for each in ("algo", "proto")]
    return {
        "communicator": group,
        "called": as_text(header.get("comm_name")),
        "member": member,
        "members": members,
        "host": as_text(metadata.get("hostname")) or None,
        "pid": as_number(metadata.get("pid")),
        "op": known_op,
        "name": name,
        "call": as_number(call.get(f"{side}_sn")),
        "bytes": as_number(call.get(f"{side}_msg_size_bytes")),
        "peer": as_number(call.get("p2p_peer")),
        "algorithm": " ".join(word for word in algorithm_words if word and word != "unknown")
        or None,
        "start_ns": started,
        "end_ns": ended,
        "spent_ns": lasted_ns,
        "written_ns": written_ns,
        "bandwidth": _fraction(call.get(f"{side}_busbw_gbs")),
    }


def _kernel_times(times: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return when the first channel's kernel began and the last one's ended, as the host saw it."""
    channels = times.get("kernel_events")
    events = [as_object(one) for one in channels] if isinstance(channels, list) else []
    begins = [_ns(event.get("kernel_start_ts")) for event in events]
    ends = [_ns(event.get("kernel_stop_ts")) for event in events]
    if not events or not all(begins) or not all(ends):
        return None, None
    begin, end = min(filter(None, begins)), max(filter(None, ends))
    return (begin, end) if begin <= end else (None, None)


def _lay_out_untimed(rows: pl.DataFrame) -> pl.DataFrame:
    """Lay calls without times end to end, up to the moment at which they were written."""
    timed = pl.col("start_ns").is_not_null()
    rows = rows.with_columns(
        status=pl.when(timed).then(pl.lit("closed")).otherwise(pl.lit("estimated"))
    )
    if rows["start_ns"].null_count() == 0:
        return rows
    begins, ends = rows["start_ns"].to_list(), rows["end_ns"].to_list()
    next_of: dict[str, int] = {}
    facts = rows.select("communicator", "spent_ns", "written_ns").rows()
    for row in reversed(range(rows.height)):
        group, lasted_ns, written_ns = facts[row]
        if begins[row] is None:
            ends[row] = min(written_ns, next_of.get(group, written_ns))
            begins[row] = max(0, ends[row] - lasted_ns)
        next_of[group] = begins[row]
    return rows.with_columns(
        start_ns=pl.Series(begins, dtype=pl.Int64), end_ns=pl.Series(ends, dtype=pl.Int64)
    )


def _fraction(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _ns(value: object) -> int | None:
    """Return whole microseconds as nanoseconds; None for another value, or one beyond all times."""
    number = as_number(value, MOST_US)
    return None if number is None else number * 1_000


class NcclInspectorReader(FilesReader[Calls]):
    """Reads a file or a folder of the Inspector's logs."""

    name = "log of NCCL Inspector"
    suffixes = (".log", ".log.gz", ".jsonl", ".jsonl.gz", ".json", ".json.gz")
    is_format = staticmethod(is_inspector)
    read_file = staticmethod(calls_of)

    def join(
        self,
        path: Path,
        contents: Mapping[str, Calls],
        notes: Sequence[Note],
        given_ranks: Mapping[str, int],
    ) -> Trace:
        """Join the calls of all files; ranks are those of the largest communicator."""
        world = _world(contents)
        for name, file in contents.items():
            file.rows, file.says_ranks = _ranked(file, world, given_ranks.get(name))
        ranks = assign_ranks(contents, given_ranks, _WHY, alone=True)
        all_calls = pl.concat(
            file.rows
            if file.says_ranks
            else file.rows.with_columns(rank=pl.lit(ranks[name], pl.Int32))
            for name, file in contents.items()
        )
        gaps = [*_gaps(all_calls, contents, given_ranks, world)]
        contents[next(iter(contents))].members = _members(all_calls)
        _finish(contents, all_calls)
        recognition = recognize(self.name, contents, gaps, _facts(all_calls))
        return join_files(path, contents, ranks, notes, recognition)


def _world(files_of_calls: Mapping[str, Calls]) -> str | None:
    """Return the communicator whose ranks are those of the job: the largest, if it is in all files."""
    groups = [
        dict(file.rows.select("communicator", "members").iter_rows())
        for file in files_of_calls.values()
    ]
    most = max((size or 0 for sizes in groups for size in sizes.values()), default=0)
    large = [{name for name, size in sizes.items() if size == most} for sizes in groups]
    shared = set.intersection(*large) if large else set()
    return min(shared, default=None)


def _ranked(file: Calls, world: str | None, given_rank: int | None) -> tuple[pl.DataFrame, bool]:
    """Add ranks of the job to the calls of a file, and say whether they are known.

    Of a process with several devices only calls of the largest communicator say whose they are.
    """
    rows = file.rows
    if given_rank is not None or world is None:
        return rows, False
    members = rows.filter(communicator=world)["member"].unique()
    if len(members) == 1:
        return rows.with_columns(rank=pl.lit(members[0], pl.Int32)), True
    calls_of_world = rows.filter(communicator=world)
    if calls_of_world.height < rows.height:
        file.left_out["calls of a process with several devices, whose rank is not known"] += (
            rows.height - calls_of_world.height
        )
    return calls_of_world.with_columns(rank="member"), True


def _members(all_calls: pl.DataFrame) -> dict[str, list[int]]:
    ranks_of_groups = all_calls.group_by("communicator").agg(pl.col("rank").unique().sort())
    return dict(ranks_of_groups.iter_rows())


def _finish(files_of_calls: Mapping[str, Calls], all_calls: pl.DataFrame) -> None:
    """Put rows into words of `spans.build`, with ranks of the job and numbers of communicators."""
    rank_of_member = all_calls.select("communicator", peer="member", of="rank").unique(
        ["communicator", "peer"]
    )
    timed = all_calls.filter(pl.col("op").is_in(COLLECTIVES), pl.col("status") == "closed")
    numbers = (
        timed.group_by("communicator", "op", "call")
        .agg(pl.col("start_ns").min())
        .sort("start_ns", "op")
        .with_columns(seq=pl.int_range(pl.len()).over("communicator"))
        .drop("start_ns")
    )
    for file in files_of_calls.values():
        of_calls = (pl.col("status") == "closed") & pl.col("call").is_not_null()
        rows = file.rows.join(
            rank_of_member, on=["communicator", "peer"], how="left", maintain_order="left"
        )
        rows = rows.join(
            numbers, on=["communicator", "op", "call"], how="left", maintain_order="left"
        )
        group_name = (
            pl.when(pl.col("called").is_in(["", "unknown"]))
            .then("communicator")
            .otherwise("called")
        )
        words = ("communicator", "op", "name", "host", "algorithm", "kind", "thread")
        rank_column = ("rank",) if file.says_ranks else ()
        file.rows = rows.with_columns(
            seq=pl.when(of_calls).then("seq"),
            kind=pl.lit("reduction"),
            thread=pl.format("communicator {}", group_name),
            peer="of",
        ).select(
            *rank_column, "start_ns", "end_ns", "bytes", "peer", "seq", "pid", "status",
            pl.col(words).cast(pl.Categorical()),
        )  # fmt: skip


def _facts(all_calls: pl.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield the bandwidth of each operation, and the rank with the lowest."""
    of_rank = all_calls.group_by("name", "rank").agg(pl.col("bandwidth").median(), calls=pl.len())
    summed = all_calls.group_by("name").agg(
        pl.col("bandwidth").median(),
        calls=pl.len(),
        least=pl.col("bytes").min(),
        most=pl.col("bytes").max(),
    )
    for name, median, calls, smallest_bytes, largest_bytes in (
        summed.sort("calls", descending=True).head(_LISTED).rows()
    ):
        if median is None or smallest_bytes is None:
            continue
        ranks = of_rank.filter(name=name).drop_nulls().sort("bandwidth", "rank")
        slowest = (
            f"; lowest on rank {ranks['rank'][0]}: {ranks['bandwidth'][0]:.1f} GB/s"
            if ranks.height > 1
            else ""
        )
        sizes = (
            fmt.size(smallest_bytes)
            if smallest_bytes == largest_bytes
            else f"{fmt.size(smallest_bytes)} to {fmt.size(largest_bytes)}"
        )
        yield (
            f"bus bandwidth of {name}",
            f"median {median:.1f} GB/s of {fmt.count(calls, 'call')} with {sizes}{slowest}",
        )


def _gaps(
    all_calls: pl.DataFrame,
    files_of_calls: Mapping[str, Calls],
    given_ranks: Mapping[str, int],
    world: str | None,
) -> Iterator[Gap]:
    yield from gap_of_cut_files(files_of_calls, "Destroy communicators before the program ends.")
    yield from gap_of_ranks(files_of_calls, given_ranks)
    untimed = all_calls.filter(status="estimated").height
    if untimed:
        yield Gap(
            f"of {fmt.count(untimed, 'call')} it is not recorded when they ran",
            "which rank others wait for; their times are made up of the moment of writing",
            "Set NCCL_INSPECTOR_DUMP_VERBOSE=1.",
        )
    yield Gap(
        "only calls of NCCL are recorded",
        "what ranks did between their calls, and where steps begin",
        "Record the run with 'tracelens record', or profile it with torch.profiler.",
    )
    lost = sum(sum(file.dropped.values()) for file in files_of_calls.values())
    if lost:
        yield Gap(
            f"{fmt.count(lost, 'call')} were overwritten before they were written",
            "which calls they were",
            "Raise NCCL_INSPECTOR_DUMP_COLL_RING_SIZE, or write more often.",
        )
    if world is not None:
        yield Gap(
            "ranks are those of the largest communicator",
            "whether the job has more ranks",
            "Give the files of all processes.",
            decisive=False,
        )
    yield Gap(
        "calls below NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES (8192, if it is not set) are not recorded",
        "how much time small calls take",
        "Set it to 0.",
        decisive=False,
    )
