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

__all__ = ["STREAMS_OF_A_DEVICE", "Profile", "profile_of"]

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


def profile_of(database: Database) -> Profile:
    """Translate a file.

    Raises:
        sqlite3.Error: it is damaged.
    """
    names = _texts(database)
    ranges, ranks, marks = _ranges(database, names)
    kernels, copies = _kernels(database, names), _copies(database)
    calls = _mpi(database, names)
    launches = _launches(database, names)
    device = _by_launch(
        pl.concat([kernels.with_columns(is_kernel=True), copies.with_columns(is_kernel=False)]),
        launches,
        ranges,
    )
    count_of_sort = {
        "kernels": kernels.height,
        "copies and sets of memory": copies.height,
        "ranges of NVTX": ranges.height,
        "calls of MPI": calls.height,
    }
    rows = pl.concat(
        [device.drop("correlation"), _host_side(ranges, kernels), calls], how="diagonal"
    )
    timed = rows.filter(pl.all_horizontal(pl.col(_TIMES).is_between(-MOST_NS, MOST_NS)))
    sound_rows, impossible = _sound(timed)
    count_of_unread = {sort: database.count(table) for sort, table in _BESIDE}
    return Profile(
        rows=sound_rows.with_columns(name=pl.col("name").fill_null("?")),
        ranks=_ranks_of_mpi(database)
        or ranks
        or _ranks_in_names(database)
        or _ranks_set(database, sound_rows),
        host=_system(database, "Hostname") or "",
        begin_ns=_first_positive(database.table("TARGET_INFO_SESSION_START_TIME", utcEpochNs=_INT)),
        counts={sort: count for sort, count in count_of_sort.items() if count},
        left_out={sort: count for sort, count in (count_of_unread | marks).items() if count},
        unusable=rows.height - timed.height,
        processes=_process_names(database),
        impossible=impossible,
        lost_kernels=_lost_kernels(launches, device, sound_rows),
    )


def _sound(rows: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Return the rows that can be, and sentences on the others."""
    rows = rows.with_columns(
        duration_ns=pl.col("end_ns") - pl.col("start_ns"),
        is_kernel=pl.col("is_kernel").fill_null(value=False),
    )
    forward = rows.filter(pl.col("duration_ns") >= 0)
    possible, sentences = drop_impossible(
        forward, ("process", "stream"), negative=rows.height - forward.height, events=rows.height
    )
    return possible.select(*_COLUMNS), sentences


def _lost_kernels(
    launches: pl.DataFrame, device: pl.DataFrame, rows: pl.DataFrame
) -> dict[int, LostKernels]:
    """Compare the launches of each process with its work on devices."""
    launches = launches.filter(pl.col("name").str.contains(KERNEL_LAUNCHES)).rename(
        {"issued_ns": "start_ns"}
    )
    steps = rows.filter(pl.col("kind") == "step").drop_nulls("step").sort("start_ns")
    return {
        process: find_lost_kernels(
            launches_of_process,
            device.filter(pl.col("process") == process)["correlation"].drop_nulls(),
            steps.filter(pl.col("process") == process).select("start_ns", "step").rows(),
        )
        for (process,), launches_of_process in launches.partition_by(
            "process", as_dict=True
        ).items()
    }


def _first_positive(table: pl.DataFrame) -> int | None:
    found = table.to_series().drop_nulls()
    return int(found[0]) if len(found) and 0 < found[0] < 1 << 62 else None


def _texts(database: Database) -> pl.DataFrame:
    known = database.table("StringIds", id=_INT, value=_TEXT)
    return known.drop_nulls("id").unique("id", keep="first")


def _join_names(table: pl.DataFrame, column: str, names: pl.DataFrame, to: str) -> pl.DataFrame:
    """Replace numbers of texts by the texts."""
    joined = table.join(names.rename({"id": column, "value": to}), on=column, how="left")
    return joined.drop(column)


def _process_names(database: Database) -> dict[int, str]:
    table = database.table("PROCESSES", globalPid=_INT, name=_TEXT).drop_nulls()
    return dict(table.iter_rows())


def _system(database: Database, name: str) -> str | None:
    table = database.table("TARGET_INFO_SYSTEM_ENV", name=_TEXT, value=_TEXT)
    found = table.filter(pl.col("name") == name)["value"].drop_nulls()
    return str(found[0]) if len(found) else None


def _kernels(database: Database, names: pl.DataFrame) -> pl.DataFrame:
    """Return kernels: communication by their name, else work of a device."""
    table = database.table(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        start=_INT, end=_INT, deviceId=_INT, streamId=_INT, correlationId=_INT, globalPid=_INT,
        shortName=_INT,
    )  # fmt: skip
    return _on_stream(_meant(_join_names(table, "shortName", names, "name"), kernels=True))


def _copies(database: Database) -> pl.DataFrame:
    schema = {"start": _INT, "end": _INT, "deviceId": _INT, "streamId": _INT}
    schema |= {"correlationId": _INT, "globalPid": _INT, "bytes": _INT}
    copied = database.table("CUPTI_ACTIVITY_KIND_MEMCPY", copyKind=_INT, **schema)
    sort = pl.col("copyKind").replace_strict(_COPIES, default="memcpy", return_dtype=_TEXT)
    copied = copied.with_columns(name=sort).drop("copyKind")
    filled = database.table("CUPTI_ACTIVITY_KIND_MEMSET", **schema).with_columns(
        name=pl.lit("memset")
    )
    both = pl.concat([copied, filled], how="diagonal")
    nothing = pl.lit(None, _TEXT)
    return _on_stream(both.with_columns(kind=pl.lit("device"), op=nothing))


def _on_stream(table: pl.DataFrame) -> pl.DataFrame:
    """Number streams: those of a process are of all its devices."""
    stream = pl.col("deviceId").fill_null(0) * STREAMS_OF_A_DEVICE + pl.col("streamId")
    if "bytes" not in table.columns:
        table = table.with_columns(bytes=pl.lit(None, _INT))
    return table.select(
        "kind", "op", "name", "bytes",
        process="globalPid", start_ns="start", end_ns="end", stream=stream, correlation="correlationId",
    )  # fmt: skip


def _meant(table: pl.DataFrame, *, kernels: bool = False) -> pl.DataFrame:
    """Add kind and operation by what names mean; others are work of a device, or the user's."""
    meaning_of_name = {}
    for name in table["name"].drop_nulls().unique():
        marked = not kernels and step_number(name) is not None
        meaning_of_name[name] = (
            ("step", None) if marked else (kernel_meaning if kernels else meaning)(name)
        )
    rows = [
        (name, *(meanings or ("device" if kernels else "user", None)))
        for name, meanings in meaning_of_name.items()
    ]
    meanings = pl.DataFrame(rows, schema={"name": _TEXT, "kind": _TEXT, "op": _TEXT}, orient="row")
    rest = pl.lit("device" if kernels else "user")
    return table.join(meanings, on="name", how="left").with_columns(pl.col("kind").fill_null(rest))


def _ranges(
    database: Database, names: pl.DataFrame
) -> tuple[pl.DataFrame, dict[int, int], dict[str, int]]:
    """Return the ranges of NVTX, ranks that threads are named after, and the number of marks."""
    table = database.table(
        "NVTX_EVENTS", start=_INT, end=_INT, eventType=_INT, text=_TEXT, textId=_INT, globalTid=_INT
    )
    table = _join_names(table, "textId", names, "registered")
    table = table.with_columns(
        name=pl.coalesce("text", "registered"), process=_process("globalTid")
    )
    ranks = {}
    for process, name in table.filter(eventType=_THREAD_NAME).select("process", "name").iter_rows():
        rank = rank_in_name(name or "")
        if rank is not None and process is not None:
            ranks[process] = rank
    is_range = pl.col("eventType").is_in(_RANGES).fill_null(value=False)
    named_ranges = _meant(table.filter(is_range))
    numbers = {name: step_number(name) for name in named_ranges["name"].drop_nulls().unique()}
    step = pl.col("name").replace_strict(numbers, default=None, return_dtype=pl.Int32)
    ranges = named_ranges.select(
        "process", "kind", "op", "name",
        start_ns="start", end_ns="end", thread=_thread("globalTid"), globalTid="globalTid",
        step=pl.when(pl.col("kind") == "step").then(step),
    )  # fmt: skip
    return ranges, ranks, {"names and marks of NVTX": table.filter(~is_range).height}


def _process(column: str) -> pl.Expr:
    return pl.col(column) - pl.col(column) % (1 << 24)


def _thread(column: str) -> pl.Expr:
    return "thread " + (pl.col(column) % (1 << 24)).cast(_TEXT)


def _host_side(ranges: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return ranges as spans of code: where kernels communicate, NCCL's own ranges only queue them."""
    queued = pl.col("name").str.starts_with("nccl") & pl.lit(
        bool((kernels["kind"] == "reduction").any())
    )
    return ranges.drop("globalTid").with_columns(
        kind=pl.when(queued).then(pl.lit("user")).otherwise("kind"),
        op=pl.when(~queued).then("op"),
    )


def _launches(database: Database, names: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that launched work of devices, the first of each correlation."""
    table = database.table(
        "CUPTI_ACTIVITY_KIND_RUNTIME", start=_INT, globalTid=_INT, correlationId=_INT, nameId=_INT
    ).drop_nulls(["start", "globalTid", "correlationId"])
    calls = table.select(
        *("globalTid", "nameId"),
        process=_process("globalTid"),
        issued_ns="start",
        correlation="correlationId",
    )
    first = calls.unique(["process", "correlation"], keep="first", maintain_order=True)
    return _join_names(first, "nameId", names, "name")


def _by_launch(device: pl.DataFrame, launches: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """Give work of a device the phase of the range in which it was launched, and when that was."""
    phases = ranges.filter(pl.col("kind").is_in(_PHASES[:-1])).drop_nulls(["start_ns", "end_ns"])
    launches_in_ranges = launches.sort("issued_ns").join_asof(
        phases.sort("start_ns").select("globalTid", "start_ns", "end_ns", phase="kind"),
        left_on="issued_ns", right_on="start_ns", by="globalTid", check_sortedness=False,
    )  # fmt: skip
    phase = pl.when(pl.col("issued_ns") <= pl.col("end_ns")).then("phase")
    known = launches_in_ranges.select("process", "correlation", "issued_ns", phase=phase)
    joined = device.join(known, on=["process", "correlation"], how="left", maintain_order="left")
    computed = pl.col("phase").is_in(("forward", "backprop", "update")) & (
        pl.col("kind") == "device"
    )
    kind = pl.when(computed).then("phase").otherwise("kind")
    return joined.with_columns(kind=kind).drop("phase")


def _mpi(database: Database, names: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of MPI, where Nsight recorded them by tables of their own."""
    frames = []
    for table in _MPI:
        calls = database.table(
            table, start=_INT, end=_INT, globalTid=_INT, textId=_INT, size=_INT, remoteRank=_INT
        )
        frames.append(_join_names(calls, "textId", names, "name"))
    calls = _meant(pl.concat(frames))
    return calls.select(
        "kind", "op", "name",
        process=_process("globalTid"), start_ns="start", end_ns="end", thread=_thread("globalTid"),
        bytes=pl.when(pl.col("size") >= 0).then("size"),
        peer=pl.when(pl.col("remoteRank") >= 0).then("remoteRank").cast(pl.Int32, strict=False),
    )  # fmt: skip


def _ranks_in_names(database: Database) -> dict[int, int]:
    found = {process: rank_in_name(name) for process, name in _process_names(database).items()}
    return {process: rank for process, rank in found.items() if rank is not None}


def _ranks_set(database: Database, rows: pl.DataFrame) -> dict[int, int]:
    """Return the rank of a process that is alone, as its launcher set it."""
    processes = rows["process"].drop_nulls().unique().to_list()
    values = [value for name in _VARIABLES if (value := _system(database, name))]
    if len(processes) != 1 or not values or not values[0].isdecimal():
        return {}
    return {processes[0]: int(values[0][:_MOST_DIGITS])}


def _ranks_of_mpi(database: Database) -> dict[int, int]:
    table = database.table("MPI_RANKS", globalPid=_INT, rank=_INT).drop_nulls()
    return {process: rank for process, rank in table.iter_rows() if rank >= 0}
