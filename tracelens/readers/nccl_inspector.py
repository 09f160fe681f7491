"""Reads what the Inspector plugin of NCCL and RCCL writes: one call a line (docs/formats.md).

A file is of a process. When a call ran is only in files of the verbose mode
(`NCCL_INSPECTOR_DUMP_VERBOSE=1`): its times are those at which the host saw its kernels begin and end.
No rank is said to wait in other calls.

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
    find_gap_of_cut_files,
    find_rank_gap,
    join_files,
    recognize,
)
from tracelens.readers.gathered import RowBuffer
from tracelens.readers.json_lines import JsonLines
from tracelens.readers.json_values import MOST_US, as_number, as_object, as_text
from tracelens.readers.words import USER_CODE, find_meaning
from tracelens.schema.gate import refuse_beyond
from tracelens.schema.vocabulary import COLLECTIVES, MOST_RANKS, POINT_TO_POINT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tracelens.model.notes import Note
    from tracelens.model.trace import Trace

_WHY_NO_RANK: Final = (
    "Ranks are those within communicators, and no communicator of the largest size is in all files"
)
_VERSION: Final = "inspector_output_format_version"
_MAX_OPS_LISTED: Final = 6  # operations of which `info` shows the bandwidth [policy]
_COLUMNS: Final[dict[str, pl.DataType]] = {
    "communicator": pl.String(),
    "communicator_name": pl.String(),
    "rank_in_communicator": pl.Int32(),
    "communicator_size": pl.Int32(),
    "host": pl.String(),
    "pid": pl.Int64(),
    "op": pl.String(),
    "name": pl.String(),
    "call_number": pl.Int64(),  # among those of its operation in the communicator
    "bytes": pl.Int64(),
    "peer": pl.Int32(),  # rank within the communicator
    "algorithm": pl.String(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "duration_ns": pl.Int64(),
    "written_ns": pl.Int64(),
    "bus_gb_per_s": pl.Float64(),  # bus bandwidth
}


@dataclass(eq=False)
class Calls(ReadFile):
    """The calls of one process, in `_COLUMNS`."""

    dropped_count_by_communicator: dict[str, int] = field(default_factory=dict)  # never written


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
    """Read the calls of a file, as `FilesReader.read_file` says."""
    if not is_inspector(path):
        raise NotATrace("it does not begin with a line of NCCL Inspector")
    calls, lines, rows = Calls(), JsonLines(path), RowBuffer(_COLUMNS)
    for record in lines:
        if row := _convert_record(record, calls):
            rows.add(row)
        refuse_beyond("rows", len(rows))
    calls.copy_damage(lines)
    calls.rows = _lay_out_untimed(rows.to_frame())
    return calls


def _convert_record(record: dict[str, Any], calls: Calls) -> dict[str, Any]:
    """Return a call as a row of `_COLUMNS`; empty for another record, or one that says too little."""
    header, metadata = (as_object(record.get(name)) for name in ("header", "metadata"))
    communicator = as_text(header.get("id"))
    prefixes = [p for p in ("coll", "p2p") if isinstance(record.get(f"{p}_perf"), dict)]
    if not prefixes:  # neither a collective nor a message
        stats = as_object(record.get("dump_stats"))
        _take_dropped_count(stats, communicator, calls)
        calls.left_out_counts["summaries of dumps" if stats else "records of network proxies"] += 1
        return {}
    prefix = prefixes[0]
    call = as_object(record[f"{prefix}_perf"])
    name, duration_ns = as_text(call.get(prefix)), _us_to_ns(call.get(f"{prefix}_exec_time_us"))
    written_ns = _us_to_ns(metadata.get("dump_timestamp_us"))
    _, op = find_meaning(name) or USER_CODE
    rank_in_communicator = as_number(header.get("rank"))
    lacks_number = None in {duration_ns, written_ns, rank_in_communicator}
    if not communicator or not name or lacks_number or (rank_in_communicator or 0) >= MOST_RANKS:
        calls.unusable_count += 1
        return {}
    calls.event_counts[name] += 1
    start_ns, end_ns = _read_kernel_times(as_object(call.get("event_trace_ts")))
    algorithm_words = [as_text(call.get(f"coll_{fact}")) for fact in ("algo", "proto")]
    return {
        "communicator": communicator,
        "communicator_name": as_text(header.get("comm_name")),
        "rank_in_communicator": rank_in_communicator,
        "communicator_size": as_number(header.get("n_ranks")),
        "host": as_text(metadata.get("hostname")) or None,
        "pid": as_number(metadata.get("pid")),
        "op": op if op in (*COLLECTIVES, *POINT_TO_POINT) else None,
        "name": name,
        "call_number": as_number(call.get(f"{prefix}_sn")),
        "bytes": as_number(call.get(f"{prefix}_msg_size_bytes")),
        "peer": as_number(call.get("p2p_peer")),
        "algorithm": " ".join(w for w in algorithm_words if w not in {"", "unknown"}) or None,
        "start_ns": start_ns,
        "end_ns": end_ns,
        "duration_ns": duration_ns,
        "written_ns": written_ns,
        "bus_gb_per_s": _to_float(call.get(f"{prefix}_busbw_gbs")),
    }


def _take_dropped_count(stats: dict[str, Any], communicator: str, calls: Calls) -> None:
    """Take from the summary of a dump how many calls were never written, in all up to then."""
    totals = [as_number(stats.get(f"{prefix}_dropped_total")) for prefix in ("coll", "p2p")]
    counts = calls.dropped_count_by_communicator
    counts[communicator] = max(sum(filter(None, totals)), counts.get(communicator, 0))


def _read_kernel_times(event_trace: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return when the first channel's kernel started and the last one's ended, in ns; both or none."""
    channels = event_trace.get("kernel_events")
    events = [as_object(channel) for channel in channels] if isinstance(channels, list) else []
    starts_ns = [_us_to_ns(event.get("kernel_start_ts")) for event in events]
    ends_ns = [_us_to_ns(event.get("kernel_stop_ts")) for event in events]
    # A time that is not known is 0 or absent.
    if not events or not all(starts_ns) or not all(ends_ns):
        return None, None
    start_ns, end_ns = min(filter(None, starts_ns)), max(filter(None, ends_ns))
    return (start_ns, end_ns) if start_ns <= end_ns else (None, None)


def _lay_out_untimed(calls: pl.DataFrame) -> pl.DataFrame:
    """Lay calls without times end to end, up to the time at which they were written.

    From the last call to the first: each ends where the next one of its communicator starts.
    """
    is_timed = pl.col("start_ns").is_not_null()
    status = pl.when(is_timed).then(pl.lit("closed")).otherwise(pl.lit("estimated"))
    calls = calls.with_columns(status=status)
    if calls["start_ns"].null_count() == 0:
        return calls
    starts_ns, ends_ns = calls["start_ns"].to_list(), calls["end_ns"].to_list()
    next_start_by_communicator_ns: dict[str, int] = {}
    call_facts = calls.select("communicator", "duration_ns", "written_ns").rows()
    for index in reversed(range(calls.height)):
        communicator, duration_ns, written_ns = call_facts[index]
        if starts_ns[index] is None:
            next_start_ns = next_start_by_communicator_ns.get(communicator, written_ns)
            ends_ns[index] = min(written_ns, next_start_ns)
            starts_ns[index] = max(0, ends_ns[index] - duration_ns)
        next_start_by_communicator_ns[communicator] = starts_ns[index]
    return calls.with_columns(
        start_ns=pl.Series(starts_ns, dtype=pl.Int64), end_ns=pl.Series(ends_ns, dtype=pl.Int64)
    )


def _to_float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _us_to_ns(value: object) -> int | None:
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
        file_by_name: Mapping[str, Calls],
        notes: Sequence[Note],
        given_ranks: Mapping[str, int],
    ) -> Trace:
        """Join the calls of all files; ranks are those of the largest communicator."""
        world = _find_world_communicator(file_by_name)
        for name, file in file_by_name.items():
            file.rows, file.has_rank_column = _add_ranks(file, world, given_ranks.get(name))
        rank_by_file = assign_ranks(file_by_name, given_ranks, _WHY_NO_RANK)
        all_calls = pl.concat(
            file.rows
            if file.has_rank_column
            else file.rows.with_columns(rank=pl.lit(rank_by_file[name], pl.Int32))
            for name, file in file_by_name.items()
        )
        gaps = [*_list_gaps(all_calls, file_by_name, given_ranks, world)]
        first_file, *_ = file_by_name.values()  # says the communicators of the run, for all files
        first_file.ranks_by_communicator = _collect_ranks_by_communicator(all_calls)
        _complete_rows(file_by_name, all_calls)
        recognition = recognize(self.name, file_by_name, gaps, _list_bandwidths(all_calls))
        return join_files(path, file_by_name, rank_by_file, notes, recognition)


def _find_world_communicator(file_by_name: Mapping[str, Calls]) -> str | None:
    """Return the communicator whose ranks are those of the job: the largest, if it is in all files."""
    tables = [
        file.rows.select("communicator", "communicator_size") for file in file_by_name.values()
    ]
    sizes_of_files = [dict(table.iter_rows()) for table in tables]  # each by communicator
    max_size = max((size or 0 for sizes in sizes_of_files for size in sizes.values()), default=0)
    largest_of_files = [
        {communicator for communicator, size in sizes.items() if size == max_size}
        for sizes in sizes_of_files
    ]
    shared = set.intersection(*largest_of_files) if largest_of_files else set()
    return min(shared, default=None)


def _add_ranks(file: Calls, world: str | None, given_rank: int | None) -> tuple[pl.DataFrame, bool]:
    """Return the calls of a file with a column `rank`, that in the job, and True, if the file tells it.

    The communicator `world` tells it, unless the user does: then the calls come back as they are, and
    False. Of a process with several devices, which has several ranks, calls of other communicators tell
    none and are left out.
    """
    calls = file.rows
    if given_rank is not None or world is None:
        return calls, False
    calls_of_world = calls.filter(communicator=world)
    ranks = calls_of_world["rank_in_communicator"].unique()
    if len(ranks) == 1:
        return calls.with_columns(rank=pl.lit(ranks[0], pl.Int32)), True
    if calls_of_world.height < calls.height:
        left_out_as = "calls of a process with several devices, whose rank is not known"
        file.left_out_counts[left_out_as] += calls.height - calls_of_world.height
    return calls_of_world.with_columns(rank="rank_in_communicator"), True


def _collect_ranks_by_communicator(all_calls: pl.DataFrame) -> dict[str, list[int]]:
    ranks_of_groups = all_calls.group_by("communicator").agg(pl.col("rank").unique().sort())
    return dict(ranks_of_groups.iter_rows())


def _complete_rows(file_by_name: Mapping[str, Calls], all_calls: pl.DataFrame) -> None:
    """Replace the rows of each file by the columns that `spans.build` reads; peers become ranks.

    The file numbers the collectives of a communicator per operation. Closed calls have times: they get
    one `seq` for all operations of their communicator, by time. All spans are of kind "reduction", the
    kind of communication; `op` says which.

    Args:
        file_by_name: The calls of each file.
        all_calls: The rows of all files, each with the `rank` in the job.
    """
    peer_key, call_key = ["communicator", "peer"], ["communicator", "op", "call_number"]
    rank_of_peer = all_calls.select(
        "communicator", peer="rank_in_communicator", peer_rank="rank"
    ).unique(peer_key)
    is_timed = pl.col("status") == "closed"
    seq_of_calls = (
        all_calls.filter(pl.col("op").is_in(COLLECTIVES), is_timed)
        .group_by(call_key)
        .agg(pl.col("start_ns").min())
        .sort("start_ns", "op", "call_number")
        .with_columns(seq=pl.int_range(pl.len()).over("communicator"))
        .drop("start_ns")
    )
    for file in file_by_name.values():
        calls = file.rows.join(rank_of_peer, on=peer_key, how="left", maintain_order="left")
        calls = calls.join(seq_of_calls, on=call_key, how="left", maintain_order="left")
        has_no_name = pl.col("communicator_name").is_in(["", "unknown"])
        group_name = pl.when(has_no_name).then("communicator").otherwise("communicator_name")
        word_columns = ("communicator", "op", "name", "host", "algorithm", "kind", "thread")
        rank_column = ("rank",) if file.has_rank_column else ()
        file.rows = calls.with_columns(
            seq=pl.when(is_timed & pl.col("call_number").is_not_null()).then("seq"),
            kind=pl.lit("reduction"),
            thread=pl.format("communicator {}", group_name),
            peer="peer_rank",
        ).select(
            *rank_column, "start_ns", "end_ns", "bytes", "peer", "seq", "pid", "status",
            pl.col(word_columns).cast(pl.Categorical()),
        )  # fmt: skip


def _list_bandwidths(all_calls: pl.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield for each operation its name, and a text with its bus bandwidth (GB/s) and slowest rank."""
    median_gb_per_s = pl.col("bus_gb_per_s").median()
    by_rank = all_calls.group_by("name", "rank").agg(median_gb_per_s, calls=pl.len())
    by_operation = all_calls.group_by("name").agg(
        median_gb_per_s,
        calls=pl.len(),
        min_bytes=pl.col("bytes").min(),
        max_bytes=pl.col("bytes").max(),
    )
    for name, gb_per_s, call_count, min_bytes, max_bytes in (
        by_operation.sort("calls", "name", descending=[True, False]).head(_MAX_OPS_LISTED).rows()
    ):
        if gb_per_s is None or min_bytes is None:
            continue
        ranks = by_rank.filter(name=name).drop_nulls().sort("bus_gb_per_s", "rank")
        slowest_text = ""
        if ranks.height > 1:
            slowest, slowest_gb_per_s = ranks["rank"][0], ranks["bus_gb_per_s"][0]
            slowest_text = f"; lowest on rank {slowest}: {slowest_gb_per_s:.1f} GB/s"
        sizes_text = fmt.size(min_bytes)
        if min_bytes != max_bytes:
            sizes_text += f" to {fmt.size(max_bytes)}"
        calls_text = f"{fmt.count(call_count, 'call')} with {sizes_text}"
        yield (
            f"bus bandwidth of {name}",
            f"median {gb_per_s:.1f} GB/s of {calls_text}{slowest_text}",
        )


def _list_gaps(
    all_calls: pl.DataFrame,
    file_by_name: Mapping[str, Calls],
    given_ranks: Mapping[str, int],
    world: str | None,
) -> Iterator[Gap]:
    """Yield the gaps in the recorded calls; `world` is the communicator that defines the ranks."""
    yield from find_gap_of_cut_files(file_by_name, "Destroy communicators before the program ends.")
    yield from find_rank_gap(file_by_name, given_ranks)
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
    dropped_count = sum(
        sum(file.dropped_count_by_communicator.values()) for file in file_by_name.values()
    )
    if dropped_count:
        yield Gap(
            f"{fmt.count(dropped_count, 'call')} were overwritten before they were written",
            "which calls they were",
            "Raise NCCL_INSPECTOR_DUMP_COLL_RING_SIZE, or write more often.",
        )
    if world is not None:
        yield Gap(
            "ranks are those of the largest communicator",
            "whether the job has more ranks",
            "Give the files of all processes.",
            is_decisive=False,
        )
    yield Gap(
        "calls below NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES (8192, if it is not set) are not recorded",
        "how much time small calls take",
        "Set it to 0.",
        is_decisive=False,
    )
