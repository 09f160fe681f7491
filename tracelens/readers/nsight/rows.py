"""One file of Nsight Systems as rows in our words: device work, ranges of NVTX, calls of MPI.

Source: NVIDIA Nsight Systems User Guide, "SQLite Schema Reference" (schemas 2.9 to 3.x). Ids of threads
hold those of their process: the lower 24 bits are the thread's number, the next 24 the process's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.readers.json_values import MOST_NS
from tracelens.readers.soundness import (
    KERNEL_LAUNCHES,
    LostKernels,
    drop_impossible_events,
    find_lost_kernels,
)
from tracelens.readers.words import (
    find_kernel_meaning,
    find_meaning,
    parse_step_number,
    rank_in_name,
)

if TYPE_CHECKING:
    from tracelens.readers.nsight.database import Database

STREAMS_OF_A_DEVICE: Final = 1_000  # streams: the numbers of a device's streams are this far apart

_INT: Final = pl.Int64()
_TEXT: Final = pl.String()
# Pushed and popped, started and ended; the latter two with a payload.
_TYPES_OF_RANGES: Final = (59, 60, 70, 71)
_TYPE_OF_THREAD_NAME: Final = 39
# What launchers call the rank of a process: torchrun, Open MPI, MPICH, PMIx, Slurm.
_VARIABLES: Final = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
_MOST_DIGITS: Final = 7
_NAME_OF_COPY: Final = {
    0: "memcpy", 1: "memcpy HtoD", 2: "memcpy DtoH", 8: "memcpy DtoD", 10: "memcpy PtoP",
}  # fmt: skip
_MPI: Final = (
    *("MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS"),
)
_PHASES: Final = ("data", "forward", "backprop", "update", "checkpoint")
_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": _INT,  # Nsight's number
    "start_ns": _INT,
    "end_ns": _INT,
    "kind": _TEXT,
    "op": _TEXT,
    "name": _TEXT,
    "thread": _TEXT,
    "stream": _INT,
    "step": pl.Int32(),
    "bytes": _INT,
    "peer": pl.Int32(),
    "issued_ns": _INT,  # when a thread launched work of a device
}
_TIMES: Final = ("start_ns", "end_ns")
_TABLES_LEFT_OUT: Final = (
    ("calls of the CUDA runtime", "CUPTI_ACTIVITY_KIND_RUNTIME"),
    ("synchronisations with a device", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"),
    ("calls of the system", "OSRT_API"),
    ("samples of stacks", "COMPOSITE_EVENTS"),
    ("changes of threads on processors", "SCHED_EVENTS"),
    ("overhead of the profiler", "PROFILER_OVERHEAD"),
)


@dataclass(frozen=True, eq=False)
class Profile:
    """What one file holds; processes have Nsight's numbers."""

    rows: pl.DataFrame  # spans, in `_COLUMNS`
    rank_by_process: dict[int, int]  # of those processes whose rank the file says
    host: str
    time_origin_ns: int | None  # when times begin, since 1970; None where the file does not say
    event_counts: dict[str, int]  # rows that were read, by what they are
    left_out_counts: dict[str, int]  # rows that were not
    unusable_count: int = 0  # rows without a begin or an end
    name_by_process: dict[int, str] = field(default_factory=dict)
    impossible_phrases: list[str] = field(default_factory=list)  # what was left out, and how much
    lost_kernels_by_process: dict[int, LostKernels] = field(default_factory=dict)


def read_profile(database: Database) -> Profile:
    """Return the spans and ranks of a file's processes, and counts of its unread rows.

    Raises:
        sqlite3.Error: it is damaged.
    """
    texts = _read_texts(database)
    ranges, rank_by_named_process, mark_counts = _read_ranges(database, texts)
    kernels, copies = _read_kernels(database, texts), _read_copies(database)
    mpi_calls = _read_mpi_calls(database, texts)
    launches = _read_launches(database, texts)
    device_work = _assign_phases(
        pl.concat([kernels.with_columns(is_kernel=True), copies.with_columns(is_kernel=False)]),
        launches,
        ranges,
    )
    event_counts = {
        "kernels": kernels.height,
        "copies and sets of memory": copies.height,
        "ranges of NVTX": ranges.height,
        "calls of MPI": mpi_calls.height,
    }
    tables = [device_work.drop("correlation"), _build_host_spans(ranges, kernels), mpi_calls]
    all_spans = pl.concat(tables, how="diagonal")
    timed_spans = all_spans.filter(pl.all_horizontal(pl.col(_TIMES).is_between(-MOST_NS, MOST_NS)))
    sound_spans, impossible = _drop_impossible_spans(timed_spans)
    unread_counts = {sort: database.count_rows(table) for sort, table in _TABLES_LEFT_OUT}
    return Profile(
        rows=sound_spans.with_columns(name=pl.col("name").fill_null("?")),
        rank_by_process=_read_mpi_ranks(database)
        or rank_by_named_process
        or _find_ranks_in_names(database)
        or _find_rank_in_environment(database, sound_spans),
        host=_read_environment(database, "Hostname") or "",
        time_origin_ns=_first_positive(
            database.read_columns("TARGET_INFO_SESSION_START_TIME", utcEpochNs=_INT)
        ),
        event_counts={sort: count for sort, count in event_counts.items() if count},
        left_out_counts={
            sort: count for sort, count in (unread_counts | mark_counts).items() if count
        },
        unusable_count=all_spans.height - timed_spans.height,
        name_by_process=_read_process_names(database),
        impossible_phrases=impossible,
        lost_kernels_by_process=_find_lost_kernels(launches, device_work, sound_spans),
    )


def _drop_impossible_spans(all_spans: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Return the spans that can be, in `_COLUMNS`, and phrases on the others."""
    all_spans = all_spans.with_columns(
        duration_ns=pl.col("end_ns") - pl.col("start_ns"),
        is_kernel=pl.col("is_kernel").fill_null(value=False),
    )
    candidates = all_spans.filter(pl.col("duration_ns") >= 0)
    sound_spans, phrases = drop_impossible_events(
        candidates,
        stream_columns=("process", "stream"),
        negative_count=all_spans.height - candidates.height,
        event_count=all_spans.height,
    )
    return sound_spans.select(*_COLUMNS), phrases


def _find_lost_kernels(
    launches: pl.DataFrame, device_work: pl.DataFrame, all_spans: pl.DataFrame
) -> dict[int, LostKernels]:
    """Compare the launches of each process with its work on devices; return what was lost, by process.

    Tables have one row per launch, per kernel or copy (`device_work`), and per span.
    """
    launches = launches.filter(pl.col("name").str.contains(KERNEL_LAUNCHES))
    launches = launches.rename({"issued_ns": "start_ns"})
    launches_by_process = launches.partition_by("process", as_dict=True)
    steps = all_spans.filter(pl.col("kind") == "step").drop_nulls("step").sort("start_ns")
    return {
        process: find_lost_kernels(
            launches_of_process,
            device_work.filter(pl.col("process") == process)["correlation"].drop_nulls(),
            steps.filter(pl.col("process") == process).select("start_ns", "step").rows(),
        )
        for (process,), launches_of_process in launches_by_process.items()
    }


def _first_positive(table: pl.DataFrame) -> int | None:
    numbers = table.to_series().drop_nulls()
    return int(numbers[0]) if len(numbers) and 0 < numbers[0] < 1 << 62 else None


def _read_texts(database: Database) -> pl.DataFrame:
    texts = database.read_columns("StringIds", id=_INT, value=_TEXT)
    return texts.drop_nulls("id").unique("id", keep="first")


def _join_names(
    table: pl.DataFrame, number_column: str, texts: pl.DataFrame, text_column: str
) -> pl.DataFrame:
    """Replace the column with numbers of texts by a column of the texts (`id`, `value`)."""
    texts = texts.rename({"id": number_column, "value": text_column})
    return table.join(texts, on=number_column, how="left").drop(number_column)


def _read_process_names(database: Database) -> dict[int, str]:
    table = database.read_columns("PROCESSES", globalPid=_INT, name=_TEXT).drop_nulls()
    return dict(table.iter_rows())


def _read_environment(database: Database, name: str) -> str | None:
    table = database.read_columns("TARGET_INFO_SYSTEM_ENV", name=_TEXT, value=_TEXT)
    values = table.filter(pl.col("name") == name)["value"].drop_nulls()
    return str(values[0]) if len(values) else None


def _read_kernels(database: Database, texts: pl.DataFrame) -> pl.DataFrame:
    """Return kernels: communication by their name, else work of a device.

    `texts` are the names that rows of the database refer to by number.
    """
    kernels = database.read_columns(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        start=_INT, end=_INT, deviceId=_INT, streamId=_INT, correlationId=_INT, globalPid=_INT,
        shortName=_INT,
    )  # fmt: skip
    named_kernels = _join_names(kernels, "shortName", texts, "name")
    return _number_streams(_add_meanings(named_kernels, are_kernels=True))


def _read_copies(database: Database) -> pl.DataFrame:
    """Return copies and sets of memory, each as work of a device."""
    schema = {"start": _INT, "end": _INT, "deviceId": _INT, "streamId": _INT}
    schema |= {"correlationId": _INT, "globalPid": _INT, "bytes": _INT}
    copies = database.read_columns("CUPTI_ACTIVITY_KIND_MEMCPY", copyKind=_INT, **schema)
    name = pl.col("copyKind").replace_strict(_NAME_OF_COPY, default="memcpy", return_dtype=_TEXT)
    memory_copies = copies.with_columns(name=name).drop("copyKind")
    sets = database.read_columns("CUPTI_ACTIVITY_KIND_MEMSET", **schema)
    memory_sets = sets.with_columns(name=pl.lit("memset"))
    memory_work = pl.concat([memory_copies, memory_sets], how="diagonal")
    no_op = pl.lit(None, _TEXT)
    return _number_streams(memory_work.with_columns(kind=pl.lit("device"), op=no_op))


def _number_streams(device_work: pl.DataFrame) -> pl.DataFrame:
    """Return work of devices in words of `spans.build`; streams are numbered over all devices."""
    stream = pl.col("deviceId").fill_null(0) * STREAMS_OF_A_DEVICE + pl.col("streamId")
    if "bytes" not in device_work.columns:
        device_work = device_work.with_columns(bytes=pl.lit(None, _INT))
    return device_work.select(
        "kind", "op", "name", "bytes",
        process="globalPid", start_ns="start", end_ns="end", stream=stream, correlation="correlationId",
    )  # fmt: skip


def _add_meanings(events: pl.DataFrame, *, are_kernels: bool = False) -> pl.DataFrame:
    """Add kind and operation by what names mean; others are work of a device, or the user's.

    Names of kernels (`are_kernels`) say only communication, others also phases and steps.
    """
    default_kind = "device" if are_kernels else "user"
    rows = []  # name, kind, operation
    for name in events["name"].drop_nulls().unique():
        if are_kernels:
            kind_and_op = find_kernel_meaning(name)
        else:
            kind_and_op = find_meaning(name) if parse_step_number(name) is None else ("step", None)
        rows.append((name, *(kind_and_op or (default_kind, None))))
    meanings = pl.DataFrame(rows, schema={"name": _TEXT, "kind": _TEXT, "op": _TEXT}, orient="row")
    joined = events.join(meanings, on="name", how="left")
    return joined.with_columns(pl.col("kind").fill_null(pl.lit(default_kind)))


def _read_ranges(
    database: Database, texts: pl.DataFrame
) -> tuple[pl.DataFrame, dict[int, int], dict[str, int]]:
    """Return the ranges of NVTX, ranks in names of threads, by process, and counts of other events."""
    events = database.read_columns(
        "NVTX_EVENTS", start=_INT, end=_INT, eventType=_INT, text=_TEXT, textId=_INT, globalTid=_INT
    )
    events = _join_names(events, "textId", texts, "registered_text")
    events = events.with_columns(
        name=pl.coalesce("text", "registered_text"), process=_process_of_thread("globalTid")
    )
    rank_by_process = {}
    thread_names = events.filter(eventType=_TYPE_OF_THREAD_NAME).select("process", "name")
    for process, thread_name in thread_names.iter_rows():
        rank = rank_in_name(thread_name or "")
        if rank is not None and process is not None:
            rank_by_process[process] = rank
    is_range = pl.col("eventType").is_in(_TYPES_OF_RANGES).fill_null(value=False)
    range_events = _add_meanings(events.filter(is_range))
    step_by_name = {
        name: parse_step_number(name) for name in range_events["name"].drop_nulls().unique()
    }
    step = pl.col("name").replace_strict(step_by_name, default=None, return_dtype=pl.Int32)
    ranges = range_events.select(
        "process", "kind", "op", "name",
        start_ns="start", end_ns="end", thread=_thread_label("globalTid"), globalTid="globalTid",
        step=pl.when(pl.col("kind") == "step").then(step),
    )  # fmt: skip
    return ranges, rank_by_process, {"names and marks of NVTX": events.filter(~is_range).height}


def _process_of_thread(column: str) -> pl.Expr:
    return pl.col(column) - pl.col(column) % (1 << 24)


def _thread_label(column: str) -> pl.Expr:
    return "thread " + (pl.col(column) % (1 << 24)).cast(_TEXT)


def _build_host_spans(ranges: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return ranges as spans of code: where kernels communicate, NCCL's own ranges only queue them."""
    kernels_communicate = bool((kernels["kind"] == "reduction").any())
    only_queues = pl.col("name").str.starts_with("nccl") & pl.lit(kernels_communicate)
    return ranges.drop("globalTid").with_columns(
        kind=pl.when(only_queues).then(pl.lit("user")).otherwise("kind"),
        op=pl.when(~only_queues).then("op"),
    )


def _read_launches(database: Database, texts: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that launched work of devices, the first of each correlation of a process.

    `issued_ns` is when it was called, `correlation` ties it to the work.
    """
    launch_calls = database.read_columns(
        "CUPTI_ACTIVITY_KIND_RUNTIME", start=_INT, globalTid=_INT, correlationId=_INT, nameId=_INT
    ).drop_nulls(["start", "globalTid", "correlationId"])
    launches = launch_calls.select(
        "globalTid", "nameId",
        process=_process_of_thread("globalTid"), issued_ns="start", correlation="correlationId",
    )  # fmt: skip
    first_launches = launches.unique(["process", "correlation"], keep="first", maintain_order=True)
    return _join_names(first_launches, "nameId", texts, "name")


def _assign_phases(
    device_work: pl.DataFrame, launches: pl.DataFrame, ranges: pl.DataFrame
) -> pl.DataFrame:
    """Give work of a device the phase of the last range begun around its launch, and when that was.

    Tables have one row per kernel or copy, per call that launched one, and per range of NVTX.
    """
    phase_ranges = ranges.filter(pl.col("kind").is_in(_PHASES))
    phase_ranges = phase_ranges.drop_nulls(["start_ns", "end_ns"])
    launches_and_ranges = launches.sort("issued_ns").join_asof(
        phase_ranges.sort("start_ns").select("globalTid", "start_ns", "end_ns", phase="kind"),
        left_on="issued_ns", right_on="start_ns", by="globalTid", check_sortedness=False,
    )  # fmt: skip
    phase = pl.when(pl.col("issued_ns") <= pl.col("end_ns")).then("phase")
    key = ["process", "correlation"]
    phase_of_launch = launches_and_ranges.select(*key, "issued_ns", phase=phase)
    joined = device_work.join(phase_of_launch, on=key, how="left", maintain_order="left")
    is_computing = pl.col("phase").is_in(("forward", "backprop", "update"))
    kind = pl.when(is_computing & (pl.col("kind") == "device")).then("phase").otherwise("kind")
    return joined.with_columns(kind=kind).drop("phase")


def _read_mpi_calls(database: Database, texts: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of MPI, where Nsight recorded them by tables of their own."""
    schema = dict.fromkeys(("start", "end", "globalTid", "textId", "size", "remoteRank"), _INT)
    tables = [
        _join_names(database.read_columns(name, **schema), "textId", texts, "name") for name in _MPI
    ]
    calls = _add_meanings(pl.concat(tables))
    return calls.select(
        "kind", "op", "name",
        process=_process_of_thread("globalTid"), start_ns="start", end_ns="end",
        thread=_thread_label("globalTid"),
        bytes=pl.when(pl.col("size") >= 0).then("size"),
        peer=pl.when(pl.col("remoteRank") >= 0).then("remoteRank").cast(pl.Int32, strict=False),
    )  # fmt: skip


def _find_ranks_in_names(database: Database) -> dict[int, int]:
    names = _read_process_names(database)
    return {p: rank for p, name in names.items() if (rank := rank_in_name(name)) is not None}


def _find_rank_in_environment(database: Database, all_spans: pl.DataFrame) -> dict[int, int]:
    """Return the rank of a process that is alone, as its launcher set it; empty if it is not known."""
    processes = all_spans["process"].drop_nulls().unique().to_list()
    rank_texts = [text for name in _VARIABLES if (text := _read_environment(database, name))]
    if len(processes) != 1 or not rank_texts or not rank_texts[0].isdecimal():
        return {}
    return {processes[0]: int(rank_texts[0][:_MOST_DIGITS])}


def _read_mpi_ranks(database: Database) -> dict[int, int]:
    table = database.read_columns("MPI_RANKS", globalPid=_INT, rank=_INT).drop_nulls()
    return {process: rank for process, rank in table.iter_rows() if rank >= 0}
