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
    drop_impossible,
    find_lost_kernels,
)
from tracelens.readers.words import kernel_meaning, meaning, rank_in_name, step_number

if TYPE_CHECKING:
    from tracelens.readers.nsight.database import Database

__all__ = ["STREAMS_OF_A_DEVICE", "Profile", "read_profile"]

STREAMS_OF_A_DEVICE: Final = 1_000  # streams: the numbers of a device's streams are this far apart

_INT: Final = pl.Int64()
_TEXT: Final = pl.String()
_PROCESS: Final = ~0xFFFFFF
_RANGES: Final = (
    59,
    60,
    70,
    71,
)  # pushed and popped, started and ended; the latter two with a payload
_THREAD_NAME: Final = 39
# What launchers call the rank of a process: torchrun, Open MPI, MPICH, PMIx, Slurm.
_VARIABLES: Final = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
_MOST_DIGITS: Final = 7
_COPIES: Final = {
    0: "memcpy", 1: "memcpy HtoD", 2: "memcpy DtoH", 8: "memcpy DtoD", 10: "memcpy PtoP",
}  # fmt: skip
_MPI: Final = (
    "MPI_COLLECTIVES_EVENTS",
    "MPI_P2P_EVENTS",
    "MPI_START_WAIT_EVENTS",
    "MPI_OTHER_EVENTS",
)
_PHASES: Final = ("data", "forward", "backprop", "update", "checkpoint", "step")
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
_BESIDE: Final = (
    ("calls of the CUDA runtime", "CUPTI_ACTIVITY_KIND_RUNTIME"),
    ("synchronisations with a device", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"),
    ("calls of the system", "OSRT_API"),
    ("samples of stacks", "COMPOSITE_EVENTS"),
    ("changes of threads on processors", "SCHED_EVENTS"),
    ("overhead of the profiler", "PROFILER_OVERHEAD"),
)


@dataclass(frozen=True, eq=False)
class Profile:
    """What one file holds.

    `rows` have the columns above; `ranks` holds the ranks of processes that the file names;
    `counts` are those of rows read, `left_out` those of rows that were not. `begin_ns` is when times
    begin, since 1970; null where the file does not say. `unusable` rows have no begin or no end.
    `impossible` are sentences on rows that were left out, `lost_kernels` launches of each process
    without a kernel.
    """

    rows: pl.DataFrame
    ranks: dict[int, int]
    host: str
    begin_ns: int | None
    counts: dict[str, int]
    left_out: dict[str, int]
    unusable: int = 0
    processes: dict[int, str] = field(default_factory=dict)
    impossible: list[str] = field(default_factory=list)
    lost_kernels: dict[int, LostKernels] = field(default_factory=dict)


def read_profile(database: Database) -> Profile:
    """Return the spans and ranks of a file's processes, and counts of what is not read.

    Raises:
        sqlite3.Error: it is damaged.
    """
    texts = _texts(database)
    ranges, rank_by_process, mark_counts = _ranges(database, texts)
    kernels, copies = _kernels(database, texts), _copies(database)
    calls = _mpi_calls(database, texts)
    launches = _launches(database, texts)
    device_work = _assign_phases(
        pl.concat([kernels.with_columns(is_kernel=True), copies.with_columns(is_kernel=False)]),
        launches,
        ranges,
    )
    event_counts = {
        "kernels": kernels.height,
        "copies and sets of memory": copies.height,
        "ranges of NVTX": ranges.height,
        "calls of MPI": calls.height,
    }
    tables = [device_work.drop("correlation"), _host_spans(ranges, kernels), calls]
    all_spans = pl.concat(tables, how="diagonal")
    timed_spans = all_spans.filter(pl.all_horizontal(pl.col(_TIMES).is_between(-MOST_NS, MOST_NS)))
    sound_spans, impossible = _drop_impossible(timed_spans)
    unread_counts = {sort: database.count(table) for sort, table in _BESIDE}
    return Profile(
        rows=sound_spans.with_columns(name=pl.col("name").fill_null("?")),
        ranks=_ranks_of_mpi(database)
        or rank_by_process
        or _ranks_in_names(database)
        or _rank_in_environment(database, sound_spans),
        host=_system(database, "Hostname") or "",
        begin_ns=_first_positive(database.table("TARGET_INFO_SESSION_START_TIME", utcEpochNs=_INT)),
        counts={sort: count for sort, count in event_counts.items() if count},
        left_out={sort: count for sort, count in (unread_counts | mark_counts).items() if count},
        unusable=all_spans.height - timed_spans.height,
        processes=_process_names(database),
        impossible=impossible,
        lost_kernels=_lost_kernels(launches, device_work, sound_spans),
    )


def _drop_impossible(all_spans: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Return the spans that can be, in `_COLUMNS`, and sentences on the others."""
    all_spans = all_spans.with_columns(
        duration_ns=pl.col("end_ns") - pl.col("start_ns"),
        is_kernel=pl.col("is_kernel").fill_null(value=False),
    )
    candidates, event_count = all_spans.filter(pl.col("duration_ns") >= 0), all_spans.height
    negative_count, place = event_count - candidates.height, ("process", "stream")
    sound_spans, sentences = drop_impossible(
        candidates, place, negative_count=negative_count, event_count=event_count
    )
    return sound_spans.select(*_COLUMNS), sentences


def _lost_kernels(
    launches: pl.DataFrame, device_work: pl.DataFrame, all_spans: pl.DataFrame
) -> dict[int, LostKernels]:
    """Compare the launches of each process with its work on devices."""
    launches = launches.filter(pl.col("name").str.contains(KERNEL_LAUNCHES))
    launches = launches.rename({"issued_ns": "start_ns"})
    by_process = launches.partition_by("process", as_dict=True)
    steps = all_spans.filter(pl.col("kind") == "step").drop_nulls("step").sort("start_ns")
    return {
        process: find_lost_kernels(
            launches_of_process,
            device_work.filter(pl.col("process") == process)["correlation"].drop_nulls(),
            steps.filter(pl.col("process") == process).select("start_ns", "step").rows(),
        )
        for (process,), launches_of_process in by_process.items()
    }


def _first_positive(table: pl.DataFrame) -> int | None:
    found = table.to_series().drop_nulls()
    return int(found[0]) if len(found) and 0 < found[0] < 1 << 62 else None


def _texts(database: Database) -> pl.DataFrame:
    known = database.table("StringIds", id=_INT, value=_TEXT)
    return known.drop_nulls("id").unique("id", keep="first")


def _join_names(
    table: pl.DataFrame, number_column: str, texts: pl.DataFrame, text_column: str
) -> pl.DataFrame:
    """Replace the column with numbers of texts by a column of the texts."""
    texts = texts.rename({"id": number_column, "value": text_column})
    return table.join(texts, on=number_column, how="left").drop(number_column)


def _process_names(database: Database) -> dict[int, str]:
    table = database.table("PROCESSES", globalPid=_INT, name=_TEXT).drop_nulls()
    return dict(table.iter_rows())


def _system(database: Database, name: str) -> str | None:
    table = database.table("TARGET_INFO_SYSTEM_ENV", name=_TEXT, value=_TEXT)
    found = table.filter(pl.col("name") == name)["value"].drop_nulls()
    return str(found[0]) if len(found) else None


def _kernels(database: Database, texts: pl.DataFrame) -> pl.DataFrame:
    """Return kernels: communication by their name, else work of a device."""
    kernels = database.table(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        start=_INT, end=_INT, deviceId=_INT, streamId=_INT, correlationId=_INT, globalPid=_INT,
        shortName=_INT,
    )  # fmt: skip
    named_kernels = _join_names(kernels, "shortName", texts, "name")
    return _number_streams(_add_meanings(named_kernels, are_kernels=True))


def _copies(database: Database) -> pl.DataFrame:
    """Return copies and sets of memory, each as work of a device."""
    schema = {"start": _INT, "end": _INT, "deviceId": _INT, "streamId": _INT}
    schema |= {"correlationId": _INT, "globalPid": _INT, "bytes": _INT}
    copies = database.table("CUPTI_ACTIVITY_KIND_MEMCPY", copyKind=_INT, **schema)
    copy_name = pl.col("copyKind").replace_strict(_COPIES, default="memcpy", return_dtype=_TEXT)
    copies = copies.with_columns(name=copy_name).drop("copyKind")
    sets = database.table("CUPTI_ACTIVITY_KIND_MEMSET", **schema)
    sets = sets.with_columns(name=pl.lit("memset"))
    all_work = pl.concat([copies, sets], how="diagonal")
    no_op = pl.lit(None, _TEXT)
    return _number_streams(all_work.with_columns(kind=pl.lit("device"), op=no_op))


def _number_streams(table: pl.DataFrame) -> pl.DataFrame:
    """Return the work in words of `spans.build`; streams are numbered over all devices."""
    stream = pl.col("deviceId").fill_null(0) * STREAMS_OF_A_DEVICE + pl.col("streamId")
    if "bytes" not in table.columns:
        table = table.with_columns(bytes=pl.lit(None, _INT))
    return table.select(
        "kind", "op", "name", "bytes",
        process="globalPid", start_ns="start", end_ns="end", stream=stream, correlation="correlationId",
    )  # fmt: skip


def _add_meanings(events: pl.DataFrame, *, are_kernels: bool = False) -> pl.DataFrame:
    """Add kind and operation by what names mean; others are work of a device, or the user's."""
    default_kind = "device" if are_kernels else "user"
    rows = []
    for name in events["name"].drop_nulls().unique():
        if are_kernels:
            name_meaning = kernel_meaning(name)
        else:
            name_meaning = meaning(name) if step_number(name) is None else ("step", None)
        rows.append((name, *(name_meaning or (default_kind, None))))
    meanings = pl.DataFrame(rows, schema={"name": _TEXT, "kind": _TEXT, "op": _TEXT}, orient="row")
    joined = events.join(meanings, on="name", how="left")
    return joined.with_columns(pl.col("kind").fill_null(pl.lit(default_kind)))


def _ranges(
    database: Database, texts: pl.DataFrame
) -> tuple[pl.DataFrame, dict[int, int], dict[str, int]]:
    """Return the ranges of NVTX, ranks that threads are named after, and the number of marks."""
    events = database.table(
        "NVTX_EVENTS", start=_INT, end=_INT, eventType=_INT, text=_TEXT, textId=_INT, globalTid=_INT
    )
    events = _join_names(events, "textId", texts, "registered")
    events = events.with_columns(
        name=pl.coalesce("text", "registered"), process=_process("globalTid")
    )
    rank_by_process = {}
    named_threads = events.filter(eventType=_THREAD_NAME).select("process", "name")
    for process, name in named_threads.iter_rows():
        rank = rank_in_name(name or "")
        if rank is not None and process is not None:
            rank_by_process[process] = rank
    is_range = pl.col("eventType").is_in(_RANGES).fill_null(value=False)
    named_ranges = _add_meanings(events.filter(is_range))
    step_by_name = {name: step_number(name) for name in named_ranges["name"].drop_nulls().unique()}
    step = pl.col("name").replace_strict(step_by_name, default=None, return_dtype=pl.Int32)
    ranges = named_ranges.select(
        "process", "kind", "op", "name",
        start_ns="start", end_ns="end", thread=_thread("globalTid"), globalTid="globalTid",
        step=pl.when(pl.col("kind") == "step").then(step),
    )  # fmt: skip
    return ranges, rank_by_process, {"names and marks of NVTX": events.filter(~is_range).height}


def _process(column: str) -> pl.Expr:
    return pl.col(column) - pl.col(column) % (1 << 24)


def _thread(column: str) -> pl.Expr:
    return "thread " + (pl.col(column) % (1 << 24)).cast(_TEXT)


def _host_spans(ranges: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return ranges as spans of code: where kernels communicate, NCCL's own ranges only queue them."""
    kernels_communicate = bool((kernels["kind"] == "reduction").any())
    only_queues = pl.col("name").str.starts_with("nccl") & pl.lit(kernels_communicate)
    return ranges.drop("globalTid").with_columns(
        kind=pl.when(only_queues).then(pl.lit("user")).otherwise("kind"),
        op=pl.when(~only_queues).then("op"),
    )


def _launches(database: Database, texts: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that launched work of devices, the first of each correlation."""
    launch_calls = database.table(
        "CUPTI_ACTIVITY_KIND_RUNTIME", start=_INT, globalTid=_INT, correlationId=_INT, nameId=_INT
    ).drop_nulls(["start", "globalTid", "correlationId"])
    launches = launch_calls.select(
        "globalTid", "nameId",
        process=_process("globalTid"), issued_ns="start", correlation="correlationId",
    )  # fmt: skip
    first_launches = launches.unique(["process", "correlation"], keep="first", maintain_order=True)
    return _join_names(first_launches, "nameId", texts, "name")


def _assign_phases(
    device_work: pl.DataFrame, launches: pl.DataFrame, ranges: pl.DataFrame
) -> pl.DataFrame:
    """Give work of a device the phase of the range in which it was launched, and when that was."""
    phase_ranges = ranges.filter(pl.col("kind").is_in(_PHASES[:-1]))
    phase_ranges = phase_ranges.drop_nulls(["start_ns", "end_ns"])
    launches_in_ranges = launches.sort("issued_ns").join_asof(
        phase_ranges.sort("start_ns").select("globalTid", "start_ns", "end_ns", phase="kind"),
        left_on="issued_ns", right_on="start_ns", by="globalTid", check_sortedness=False,
    )  # fmt: skip
    phase = pl.when(pl.col("issued_ns") <= pl.col("end_ns")).then("phase")
    key = ["process", "correlation"]
    launch_facts = launches_in_ranges.select(*key, "issued_ns", phase=phase)
    joined = device_work.join(launch_facts, on=key, how="left", maintain_order="left")
    is_computing = pl.col("phase").is_in(("forward", "backprop", "update"))
    kind = pl.when(is_computing & (pl.col("kind") == "device")).then("phase").otherwise("kind")
    return joined.with_columns(kind=kind).drop("phase")


def _mpi_calls(database: Database, texts: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of MPI, where Nsight recorded them by tables of their own."""
    schema = dict.fromkeys(("start", "end", "globalTid", "textId", "size", "remoteRank"), _INT)
    tables = [_join_names(database.table(name, **schema), "textId", texts, "name") for name in _MPI]
    calls = _add_meanings(pl.concat(tables))
    return calls.select(
        "kind", "op", "name",
        process=_process("globalTid"), start_ns="start", end_ns="end", thread=_thread("globalTid"),
        bytes=pl.when(pl.col("size") >= 0).then("size"),
        peer=pl.when(pl.col("remoteRank") >= 0).then("remoteRank").cast(pl.Int32, strict=False),
    )  # fmt: skip


def _ranks_in_names(database: Database) -> dict[int, int]:
    found = {process: rank_in_name(name) for process, name in _process_names(database).items()}
    return {process: rank for process, rank in found.items() if rank is not None}


def _rank_in_environment(database: Database, all_spans: pl.DataFrame) -> dict[int, int]:
    """Return the rank of a process that is alone, as its launcher set it."""
    processes = all_spans["process"].drop_nulls().unique().to_list()
    rank_texts = [value for name in _VARIABLES if (value := _system(database, name))]
    if len(processes) != 1 or not rank_texts or not rank_texts[0].isdecimal():
        return {}
    return {processes[0]: int(rank_texts[0][:_MOST_DIGITS])}


def _ranks_of_mpi(database: Database) -> dict[int, int]:
    table = database.table("MPI_RANKS", globalPid=_INT, rank=_INT).drop_nulls()
    return {process: rank for process, rank in table.iter_rows() if rank >= 0}
