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
from tracelens.readers.event_stream import read_first_bytes
from tracelens.readers.files import (
    FilesReader,
    ReadFile,
    assign_ranks,
    gap_of_cut_files,
    gap_of_ranks,
    join_files,
    recognize,
)
from tracelens.readers.gathered import RowBuffer
from tracelens.readers.json_lines import JsonLines
from tracelens.readers.json_values import MOST_US, as_number, as_object, as_text
from tracelens.readers.words import USER_CODE, meaning
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
    line, _, _ = read_first_bytes(path).partition(b"\n")
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    if not isinstance(record, dict) or not isinstance(record.get("header"), dict):
        return False
    metadata = record.get("metadata")
    return isinstance(metadata, dict) and _VERSION in metadata


def read_calls(path: Path) -> Calls:
    """Read one file.

    Raises:
        NotATrace: it does not begin as such, is no regular file, or larger than it may be.
        OSError: it cannot be read.
    """
    if not is_inspector(path):
        raise NotATrace("it does not begin with a line of NCCL Inspector")
    calls, lines, rows = Calls(), JsonLines(path), RowBuffer(_COLUMNS)
    for record in lines:
        if row := _convert_record(record, calls):
            rows.add(row)
        refuse_beyond("rows", len(rows))
    calls.take_damage(lines)
    calls.rows = _lay_out_untimed(rows.frame())
    return calls


def _convert_record(record: dict[str, Any], calls: Calls) -> dict[str, Any]:
    """Return a call as a row of `_COLUMNS`; empty for another record, or one that says too little."""
    header, metadata = (as_object(record.get(name)) for name in ("header", "metadata"))
    communicator = as_text(header.get("id"))
    prefixes = [p for p in ("coll", "p2p") if isinstance(record.get(f"{p}_perf"), dict)]
    if not prefixes:
        stats = as_object(record.get("dump_stats"))
        lost_counts = [as_number(stats.get(f"{p}_dropped_total")) for p in ("coll", "p2p")]
        lost_count = sum(filter(None, lost_counts))
        calls.dropped[communicator] = max(lost_count, calls.dropped.get(communicator, 0))
        calls.left_out["summaries of dumps" if stats else "records of network proxies"] += 1
        return {}
    prefix = prefixes[0]
    call = as_object(record[f"{prefix}_perf"])
    name, duration_ns = as_text(call.get(prefix)), _ns(call.get(f"{prefix}_exec_time_us"))
    written_ns = _ns(metadata.get("dump_timestamp_us"))
    _, op = meaning(name) or USER_CODE
    member_rank, member_count = as_number(header.get("rank")), as_number(header.get("n_ranks"))
    lacks_number = None in {duration_ns, written_ns, member_rank}
    if not communicator or not name or lacks_number or (member_rank or 0) >= MOST_RANKS:
        calls.unusable += 1
        return {}
    calls.sorts[name] += 1
    start_ns, end_ns = _kernel_times(as_object(call.get("event_trace_ts")))
    algorithm = [as_text(call.get(f"coll_{fact}")) for fact in ("algo", "proto")]
    return {
        "communicator": communicator,
        "called": as_text(header.get("comm_name")),
        "member": member_rank,
        "members": member_count,
        "host": as_text(metadata.get("hostname")) or None,
        "pid": as_number(metadata.get("pid")),
        "op": op if op in (*COLLECTIVES, *POINT_TO_POINT) else None,
        "name": name,
        "call": as_number(call.get(f"{prefix}_sn")),
        "bytes": as_number(call.get(f"{prefix}_msg_size_bytes")),
        "peer": as_number(call.get("p2p_peer")),
        "algorithm": " ".join(word for word in algorithm if word not in {"", "unknown"}) or None,
        "start_ns": start_ns,
        "end_ns": end_ns,
        "spent_ns": duration_ns,
        "written_ns": written_ns,
        "bandwidth": _fraction(call.get(f"{prefix}_busbw_gbs")),
    }


def _kernel_times(event_trace: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return in ns when the first channel's kernel started and the last one's ended; both or none."""
    channels = event_trace.get("kernel_events")
    events = [as_object(channel) for channel in channels] if isinstance(channels, list) else []
    starts_ns = [_ns(event.get("kernel_start_ts")) for event in events]
    ends_ns = [_ns(event.get("kernel_stop_ts")) for event in events]
    if not events or not all(starts_ns) or not all(ends_ns):
        return None, None
    start_ns, end_ns = min(filter(None, starts_ns)), max(filter(None, ends_ns))
    return (start_ns, end_ns) if start_ns <= end_ns else (None, None)


def _lay_out_untimed(calls: pl.DataFrame) -> pl.DataFrame:
    """Lay calls without times end to end, up to the time at which they were written.

    `next_start_ns`: by communicator, the start of the call that follows the one at `index`.
    """
    is_timed = pl.col("start_ns").is_not_null()
    status = pl.when(is_timed).then(pl.lit("closed")).otherwise(pl.lit("estimated"))
    calls = calls.with_columns(status=status)
    if calls["start_ns"].null_count() == 0:
        return calls
    starts_ns, ends_ns = calls["start_ns"].to_list(), calls["end_ns"].to_list()
    next_start_ns: dict[str, int] = {}
    call_facts = calls.select("communicator", "spent_ns", "written_ns").rows()
    for index in reversed(range(calls.height)):
        communicator, duration_ns, written_ns = call_facts[index]
        if starts_ns[index] is None:
            ends_ns[index] = min(written_ns, next_start_ns.get(communicator, written_ns))
            starts_ns[index] = max(0, ends_ns[index] - duration_ns)
        next_start_ns[communicator] = starts_ns[index]
    return calls.with_columns(
        start_ns=pl.Series(starts_ns, dtype=pl.Int64), end_ns=pl.Series(ends_ns, dtype=pl.Int64)
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
    read_file = staticmethod(read_calls)

    def join(
        self,
        path: Path,
        contents: Mapping[str, Calls],
        notes: Sequence[Note],
        given_ranks: Mapping[str, int],
    ) -> Trace:
        """Join the calls of all files; ranks are those of the largest communicator."""
        world = _find_world(contents)
        for name, file in contents.items():
            file.rows, file.says_ranks = _add_ranks(file, world, given_ranks.get(name))
        ranks = assign_ranks(contents, given_ranks, _WHY, alone=True)
        all_calls = pl.concat(
            file.rows
            if file.says_ranks
            else file.rows.with_columns(rank=pl.lit(ranks[name], pl.Int32))
            for name, file in contents.items()
        )
        gaps = [*_gaps(all_calls, contents, given_ranks, world)]
        contents[next(iter(contents))].members = _ranks_by_communicator(all_calls)
        _complete_rows(contents, all_calls)
        recognition = recognize(self.name, contents, gaps, _facts(all_calls))
        return join_files(path, contents, ranks, notes, recognition)


def _find_world(files_of_calls: Mapping[str, Calls]) -> str | None:
    """Return the communicator whose ranks are those of the job: the largest, if it is in all files.

    `file_sizes`: for each file, the number of members of its communicators.
    """
    tables = [file.rows.select("communicator", "members") for file in files_of_calls.values()]
    file_sizes = [dict(table.iter_rows()) for table in tables]
    max_size = max((size or 0 for sizes in file_sizes for size in sizes.values()), default=0)
    largest = [{name for name, n in sizes.items() if n == max_size} for sizes in file_sizes]
    shared = set.intersection(*largest) if largest else set()
    return min(shared, default=None)


def _add_ranks(file: Calls, world: str | None, given_rank: int | None) -> tuple[pl.DataFrame, bool]:
    """Return the calls of a file with their `rank` in the job, and True, if `world` tells it.

    Of a process with several devices only the calls of `world` tell it; others are left out.
    """
    calls = file.rows
    if given_rank is not None or world is None:
        return calls, False
    world_ranks = calls.filter(communicator=world)["member"].unique()
    if len(world_ranks) == 1:
        return calls.with_columns(rank=pl.lit(world_ranks[0], pl.Int32)), True
    calls_of_world = calls.filter(communicator=world)
    if calls_of_world.height < calls.height:
        left_out_as = "calls of a process with several devices, whose rank is not known"
        file.left_out[left_out_as] += calls.height - calls_of_world.height
    return calls_of_world.with_columns(rank="member"), True


def _ranks_by_communicator(all_calls: pl.DataFrame) -> dict[str, list[int]]:
    ranks_of_groups = all_calls.group_by("communicator").agg(pl.col("rank").unique().sort())
    return dict(ranks_of_groups.iter_rows())


def _complete_rows(files_of_calls: Mapping[str, Calls], all_calls: pl.DataFrame) -> None:
    """Put the rows of files into words of `spans.build`, with peers as ranks of the job.

    Timed collectives of a communicator, which are numbered per operation, get one `seq` by time.
    """
    peer_key, call_key = ["communicator", "peer"], ["communicator", "op", "call"]
    rank_of_member = all_calls.select("communicator", peer="member", of="rank").unique(peer_key)
    is_timed = pl.col("status") == "closed"
    seq_of_calls = (
        all_calls.filter(pl.col("op").is_in(COLLECTIVES), is_timed)
        .group_by(call_key)
        .agg(pl.col("start_ns").min())
        .sort("start_ns", "op", "call")
        .with_columns(seq=pl.int_range(pl.len()).over("communicator"))
        .drop("start_ns")
    )
    for file in files_of_calls.values():
        calls = file.rows.join(rank_of_member, on=peer_key, how="left", maintain_order="left")
        calls = calls.join(seq_of_calls, on=call_key, how="left", maintain_order="left")
        has_no_name = pl.col("called").is_in(["", "unknown"])
        group_name = pl.when(has_no_name).then("communicator").otherwise("called")
        word_columns = ("communicator", "op", "name", "host", "algorithm", "kind", "thread")
        rank_column = ("rank",) if file.says_ranks else ()
        file.rows = calls.with_columns(
            seq=pl.when(is_timed & pl.col("call").is_not_null()).then("seq"),
            kind=pl.lit("reduction"),
            thread=pl.format("communicator {}", group_name),
            peer="of",
        ).select(
            *rank_column, "start_ns", "end_ns", "bytes", "peer", "seq", "pid", "status",
            pl.col(word_columns).cast(pl.Categorical()),
        )  # fmt: skip


def _facts(all_calls: pl.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield for each operation its name, and a text with its bus bandwidth (GB/s) and slowest rank."""
    by_rank = all_calls.group_by("name", "rank").agg(pl.col("bandwidth").median(), calls=pl.len())
    by_operation = all_calls.group_by("name").agg(
        pl.col("bandwidth").median(),
        calls=pl.len(),
        least=pl.col("bytes").min(),
        most=pl.col("bytes").max(),
    )
    for name, median, call_count, smallest_bytes, largest_bytes in (
        by_operation.sort("calls", "name", descending=[True, False]).head(_LISTED).rows()
    ):
        if median is None or smallest_bytes is None:
            continue
        ranks = by_rank.filter(name=name).drop_nulls().sort("bandwidth", "rank")
        slowest = ""
        if ranks.height > 1:
            slowest = f"; lowest on rank {ranks['rank'][0]}: {ranks['bandwidth'][0]:.1f} GB/s"
        sizes = fmt.size(smallest_bytes)
        if smallest_bytes != largest_bytes:
            sizes += f" to {fmt.size(largest_bytes)}"
        yield (
            f"bus bandwidth of {name}",
            f"median {median:.1f} GB/s of {fmt.count(call_count, 'call')} with {sizes}{slowest}",
        )


def _gaps(
    all_calls: pl.DataFrame,
    files_of_calls: Mapping[str, Calls],
    given_ranks: Mapping[str, int],
    world: str | None,
) -> Iterator[Gap]:
    """Yield what the calls do not tell; `world` is the communicator that ranks are taken from."""
    yield from gap_of_cut_files(files_of_calls, "Destroy communicators before the program ends.")
    yield from gap_of_ranks(files_of_calls, given_ranks)
    untimed_count = all_calls.filter(status="estimated").height
    if untimed_count:
        yield Gap(
            f"of {fmt.count(untimed_count, 'call')} it is not recorded when they ran",
            "which rank others wait for; their times are made up of the moment of writing",
            "Set NCCL_INSPECTOR_DUMP_VERBOSE=1.",
        )
    yield Gap(
        "only calls of NCCL are recorded",
        "what ranks did between their calls, and where steps begin",
        "Record the run with 'tracelens record', or profile it with torch.profiler.",
    )
    lost_count = sum(sum(file.dropped.values()) for file in files_of_calls.values())
    if lost_count:
        yield Gap(
            f"{fmt.count(lost_count, 'call')} were overwritten before they were written",
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
