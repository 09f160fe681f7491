"""The rows of one file in TraceLens' words: what its threads, its streams and its communication did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.readers.kineto.collectives import CALL_COLUMNS, communication
from tracelens.readers.kineto.issues import Call, elements, pair_with_issues
from tracelens.readers.kineto.phases import phase_at, windows_of, with_phases
from tracelens.readers.kineto.words import (
    RANGES,
    SYNCHRONIZES,
    collective,
    phase_of_annotation,
    step_number,
)
from tracelens.readers.words import meaning

if TYPE_CHECKING:
    from tracelens.readers.kineto.collectives import Groups
    from tracelens.readers.kineto.columns import EventTable

__all__ = ["SPAN_COLUMNS", "UNKNOWN_GROUP", "rows_of"]

_WORD: Final = pl.Categorical()
SPAN_COLUMNS: Final[dict[str, pl.DataType]] = {
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "kind": _WORD,
    "name": _WORD,
    "thread": _WORD,
    "stream": pl.Int32(),
    "step": pl.Int32(),
    "issued_ns": pl.Int64(),  # when a thread called for work of a device, or communication
    "status": _WORD,
    **CALL_COLUMNS,
}
UNKNOWN_GROUP: Final = "group not known"  # of several; such calls are not matched
_ON_DEVICE: Final = ("forward", "backprop", "update")
_MOST_STREAMS: Final = 1_000  # of one device
_LAUNCHES: Final = "launches and other calls of the device's runtime"


def rows_of(table: EventTable, groups: Groups) -> pl.DataFrame:
    """Return the rows of one file, in `SPAN_COLUMNS`; counts what of it is in none."""
    table.rows = table.rows.with_columns(
        pl.col("start_ns") + table.base_ns,
        end_ns=pl.col("start_ns") + pl.col("duration_ns") + table.base_ns,
    ).with_row_index("row")
    calls = communication(table, groups)
    non_calls = table.rows.join(calls.select("row"), on="row", how="anti", maintain_order="left")
    on_host = non_calls.filter(pl.col("category").is_in(["operator", "annotation", "other"]))
    host = with_phases(_with_ranges(on_host))
    calls = _since_issued(calls, host, table)
    in_flight = calls.filter(pl.col("category") != "kernel")
    windows = windows_of(host, np.sort(in_flight["end_ns"].to_numpy()))
    runtime = non_calls.filter(pl.col("category") == "runtime")
    frames = [
        _on_threads(host, windows, table),
        _windows(windows, table),
        _device_waits(runtime, windows, table),
        _on_streams(non_calls, runtime, windows),
        _in_flight(calls, runtime, table, groups),
    ]
    table.left_out[_LAUNCHES] += runtime.height - frames[2].height
    return pl.concat([_fitted(part) for part in frames])


def _fitted(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(
        pl.col(name).cast(kind) if name in frame.columns else pl.lit(None, kind).alias(name)
        for name, kind in SPAN_COLUMNS.items()
    )


def _with_ranges(host: pl.DataFrame) -> pl.DataFrame:
    """Make operators annotations that are ranges of the profiler by their names.

    PyTorch 1.8 and 1.9 write all annotations as operators: there, names of phases are ranges, too.
    """
    is_operator = pl.col("category") == "operator"
    operators = host.filter(is_operator)["name"].unique().cast(pl.String)
    ranges = operators.filter(operators.str.contains(RANGES)).to_list()
    if not (host["category"] == "annotation").any():
        ranges += [name for name in operators if phase_of_annotation(name)]
    if not ranges:
        return host
    is_range = pl.col("name").cast(pl.String).is_in(ranges)
    annotation = pl.when(is_range).then(pl.lit("annotation", _WORD)).otherwise("category")
    return host.with_columns(category=annotation)


def _on_threads(host: pl.DataFrame, windows: pl.DataFrame, table: EventTable) -> pl.DataFrame:
    """Return the operators and annotations of the host, each of its phase."""
    kind_of_annotation = _meant(
        host, "annotation", lambda name: "step" if step_number(name) is not None else None
    )
    kind_of_other = _meant(host, "other", _kind_of_word)
    steps = {
        name: of_step
        for name in host.filter(pl.col("category") == "annotation")["name"].unique().cast(pl.String)
        if (of_step := step_number(name)) is not None
    }
    kind = pl.coalesce(
        kind_of_annotation, "phase", kind_of_other, phase_at(host, windows), pl.lit("user", _WORD)
    )
    number = (
        pl.col("name").cast(pl.String).replace_strict(steps, default=None, return_dtype=pl.Int32)
    )
    is_step = pl.col("category") == "annotation"
    return host.with_columns(kind=kind, step=pl.when(is_step).then(number), thread=_threads(table))


def _meant(host: pl.DataFrame, category: str, mean: Any) -> pl.Series:
    """Translate the names of rows of a category; null if a name means nothing."""
    names = host.filter(pl.col("category") == category)["name"].unique().cast(pl.String).to_list()
    known = {name: kind for name in names if (kind := mean(name))}
    meaning_of_row = (
        pl.col("name").cast(pl.String).replace_strict(known, default=None, return_dtype=pl.String)
    )
    chosen = pl.when(pl.col("category") == category).then(meaning_of_row).cast(_WORD)
    return host.select(chosen.alias("kind")).to_series()


def _kind_of_word(name: str) -> str | None:
    """Return the kind that the name of a span of another tool says; communication is not believed."""
    found = meaning(name)
    return found[0] if found and found[0] not in {"reduction", "device", "ps", "elastic"} else None


def _threads(table: EventTable) -> pl.Expr:
    """Name the thread of each row: its name and number, and its process if two have the same."""
    threads = table.rows.select("pid", "tid").unique().cast(pl.String).fill_null("-").rows()
    several = len({pid for pid, _ in threads}) > 1
    names: dict[str, str] = {}
    for pid, tid in threads:
        name = table.threads.get((pid, tid), "")
        called = name if tid in name and name else f"thread {tid}" + (f" ({name})" if name else "")
        names[f"{pid} {tid}"] = (
            called if called not in names.values() or not several else f"{called} of {pid}"
        )
    place = pl.concat_str(pl.col("pid", "tid").cast(pl.String).fill_null("-"), separator=" ")
    return place.replace_strict(names, default=None, return_dtype=pl.String).cast(_WORD)


def _windows(windows: pl.DataFrame, table: EventTable) -> pl.DataFrame:
    """Return a row for each phase that no single annotation says."""
    return windows.filter("of_operators").with_columns(
        kind="phase", name=pl.col("phase"), thread=_threads(table)
    )


def _device_waits(runtime: pl.DataFrame, windows: pl.DataFrame, table: EventTable) -> pl.DataFrame:
    """Return when threads that train waited for the device."""
    trains = windows.select("pid", "tid").unique()
    waits = runtime.filter(pl.col("name").cast(pl.String).str.contains(SYNCHRONIZES))
    return waits.join(trains, on=["pid", "tid"], how="semi").with_columns(
        kind=pl.lit("device", _WORD), thread=_threads(table)
    )


def _on_streams(others: pl.DataFrame, runtime: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return kernels and copies, of the phase in which a thread launched them."""
    device = others.filter(pl.col("category").is_in(["kernel", "copy"]))
    launches = runtime.drop_nulls("correlation").unique("correlation", keep="first")
    launches = launches.select(
        "correlation", issued_ns="start_ns", launched=phase_at(launches, windows)
    )
    known = pl.when(pl.col("launched").is_in(_ON_DEVICE)).then("launched")
    return device.join(launches, on="correlation", how="left", maintain_order="left").with_columns(
        kind=pl.coalesce(known, pl.lit("device", _WORD)), stream=_stream(device)
    )


def _stream(device: pl.DataFrame) -> pl.Expr:
    """Return the number of a row's stream, which differs between devices where there are several."""
    number = pl.coalesce("stream", pl.col("tid").cast(pl.String).cast(pl.Int64, strict=False))
    stream = number.fill_null(0).clip(0, _MOST_STREAMS * _MOST_STREAMS)
    if device["device"].n_unique() < 2:
        return stream
    return pl.col("device").fill_null(0).clip(0, _MOST_STREAMS) * _MOST_STREAMS + stream


def _since_issued(calls: pl.DataFrame, host: pl.DataFrame, table: EventTable) -> pl.DataFrame:
    """Let calls on the host's own threads begin when a thread issued them, as far as that is known.

    The order of issues is that of the code, and alike on all ranks. Threads of the library may come to
    a call late, and two of them may begin theirs in the other order.
    """
    flying = (pl.col("category") != "kernel") & pl.col("op").is_not_null()
    names = host["name"].unique().cast(pl.String).to_list()
    issues = {name: op for name in names if name.startswith("c10d::") and (op := collective(name))}
    word = pl.col("name").cast(pl.String)
    issued = host.filter(word.is_in(list(issues)))
    issued_ns_of_row = pair_with_issues(
        _sized(calls.filter(flying), pl.col("op").cast(pl.String), table),
        _sized(issued, word.replace_strict(issues, default=None, return_dtype=pl.String), table),
    )
    begun = pl.col("row").replace_strict(issued_ns_of_row, default=None, return_dtype=pl.Int64)
    return calls.with_columns(start_ns=pl.min_horizontal("start_ns", begun))


def _sized(rows: pl.DataFrame, op: pl.Expr, table: EventTable) -> list[Call]:
    """Return each row as a call with its operation and the number of elements of its tensors."""
    listed = rows.sort("start_ns").select("row", op.alias("op"), "call", "start_ns").rows()
    return [
        Call(row, op, None if call is None else elements(table.calls[call].get("Input Dims")), at)
        for row, op, call, at in listed
    ]


def _in_flight(
    calls: pl.DataFrame, runtime: pl.DataFrame, table: EventTable, groups: Groups
) -> pl.DataFrame:
    """Return the communication: kernels on their streams, the rest on its threads."""
    on_device = pl.col("category") == "kernel"
    has_no_group = pl.col("communicator").is_null() & (len(groups) > 1)
    launches = runtime.drop_nulls("correlation").unique("correlation", keep="first")
    launches = launches.select("correlation", issued_ns="start_ns")
    issued = calls.join(launches, on="correlation", how="left", maintain_order="left")
    return issued.with_columns(
        pl.coalesce("issued_ns", "start_ns"),
        kind=pl.lit("reduction", _WORD),
        stream=pl.when(on_device).then(_stream(table.rows.filter(pl.col("category") == "kernel"))),
        thread=pl.when(~on_device).then(_threads(table)),
        communicator=pl.when(has_no_group)
        .then(pl.lit(UNKNOWN_GROUP, _WORD))
        .otherwise("communicator"),
        status=pl.when(has_no_group).then(pl.lit("estimated", _WORD)),
    )
