"""The rows of one file in TraceLens' words: what its threads, its streams and its communication did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.readers.kineto.collectives import CALL_COLUMNS, communication
from tracelens.readers.kineto.issues import Call, elements, pair_with_issues
from tracelens.readers.kineto.phases import add_phases, find_windows, phase_at
from tracelens.readers.kineto.words import (
    RANGES,
    SYNCHRONIZES,
    collective,
    phase_of_annotation,
    step_number,
)
from tracelens.readers.spans.rows import fitted
from tracelens.readers.words import meaning

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.readers.kineto.collectives import Groups
    from tracelens.readers.kineto.columns import EventTable

__all__ = ["SPAN_COLUMNS", "UNKNOWN_GROUP", "translate_events"]

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


def translate_events(table: EventTable, groups: Groups) -> pl.DataFrame:
    """Return the spans of one file, in `SPAN_COLUMNS`; events that become no span are counted."""
    table.rows = table.rows.with_columns(
        pl.col("start_ns") + table.base_ns,
        end_ns=pl.col("start_ns") + pl.col("duration_ns") + table.base_ns,
    ).with_row_index("row")
    calls = communication(table, groups)
    non_calls = table.rows.join(calls.select("row"), on="row", how="anti", maintain_order="left")
    on_host = non_calls.filter(pl.col("category").is_in(["operator", "annotation", "other"]))
    host_events = add_phases(_mark_ranges(on_host))
    calls = _begin_when_issued(calls, host_events, table)
    in_flight = calls.filter(pl.col("category") != "kernel")
    windows = find_windows(host_events, np.sort(in_flight["end_ns"].to_numpy()))
    runtime = non_calls.filter(pl.col("category") == "runtime")
    waits = _wait_spans(runtime, windows, table)
    span_tables = [
        _host_spans(host_events, windows, table),
        _window_spans(windows, table),
        waits,
        _device_spans(non_calls, runtime, windows),
        _communication_spans(calls, runtime, table, groups),
    ]
    table.left_out[_LAUNCHES] += runtime.height - waits.height
    return pl.concat([fitted(span_table, SPAN_COLUMNS) for span_table in span_tables])


def _mark_ranges(host: pl.DataFrame) -> pl.DataFrame:
    """Make operators annotations that are ranges of the profiler by their names.

    PyTorch 1.8 and 1.9 write all annotations as operators: there, names of phases are ranges, too.
    """
    is_operator = pl.col("category") == "operator"
    operator_names = host.filter(is_operator)["name"].unique().cast(pl.String)
    range_names = operator_names.filter(operator_names.str.contains(RANGES)).to_list()
    if not (host["category"] == "annotation").any():
        range_names += [name for name in operator_names if phase_of_annotation(name)]
    if not range_names:
        return host
    is_range = pl.col("name").cast(pl.String).is_in(range_names)
    range_category = pl.when(is_range).then(pl.lit("annotation", _WORD)).otherwise("category")
    return host.with_columns(category=range_category)


def _host_spans(host: pl.DataFrame, windows: pl.DataFrame, table: EventTable) -> pl.DataFrame:
    """Return the operators and annotations of the host, each of its phase."""
    kind_of_annotation = _translate_names(
        host, "annotation", lambda name: "step" if step_number(name) is not None else None
    )
    kind_of_other = _translate_names(host, "other", _kind_of_word)
    step_by_name = {
        name: step
        for name in host.filter(pl.col("category") == "annotation")["name"].unique().cast(pl.String)
        if (step := step_number(name)) is not None
    }
    phase, user_code = phase_at(host, windows), pl.lit("user", _WORD)
    kind = pl.coalesce(kind_of_annotation, "phase", kind_of_other, phase, user_code)
    name = pl.col("name").cast(pl.String)
    step_of_name = name.replace_strict(step_by_name, default=None, return_dtype=pl.Int32)
    row_step = pl.when(pl.col("category") == "annotation").then(step_of_name)
    return host.with_columns(kind=kind, step=row_step, thread=_name_threads(table))


def _translate_names(
    host: pl.DataFrame, category: str, translate: Callable[[str], str | None]
) -> pl.Series:
    """Return the kind of each event of a category, by its name; null elsewhere, or if unknown."""
    names = host.filter(pl.col("category") == category)["name"].unique().cast(pl.String).to_list()
    kinds = {name: kind for name in names if (kind := translate(name))}
    name = pl.col("name").cast(pl.String)
    kind_of_name = name.replace_strict(kinds, default=None, return_dtype=pl.String)
    is_wanted = pl.col("category") == category
    return host.select(kind=pl.when(is_wanted).then(kind_of_name).cast(_WORD)).to_series()


def _kind_of_word(name: str) -> str | None:
    """Return the kind that the name of a span of another tool says; communication is not believed."""
    kind, _ = meaning(name) or (None, None)
    return kind if kind not in {"reduction", "device", "ps", "elastic"} else None


def _name_threads(table: EventTable) -> pl.Expr:
    """Name the thread of each row: its name and number, and its process if two have the same."""
    places = table.rows.select("pid", "tid").unique(maintain_order=True)
    threads = places.cast(pl.String).fill_null("-").rows()
    has_several_processes = len({pid for pid, _ in threads}) > 1
    name_by_key: dict[str, str] = {}
    for pid, tid in threads:
        given_name = table.threads.get((pid, tid), "")
        thread_name = f"thread {tid}" + (f" ({given_name})" if given_name else "")
        if given_name and tid in given_name:
            thread_name = given_name
        if has_several_processes and thread_name in name_by_key.values():
            thread_name = f"{thread_name} of {pid}"
        name_by_key[f"{pid} {tid}"] = thread_name
    thread_key = pl.concat_str(pl.col("pid", "tid").cast(pl.String).fill_null("-"), separator=" ")
    return thread_key.replace_strict(name_by_key, default=None, return_dtype=pl.String).cast(_WORD)


def _window_spans(windows: pl.DataFrame, table: EventTable) -> pl.DataFrame:
    """Return a row for each phase that no single annotation says."""
    return windows.filter("of_operators").with_columns(
        kind="phase", name=pl.col("phase"), thread=_name_threads(table)
    )


def _wait_spans(runtime: pl.DataFrame, windows: pl.DataFrame, table: EventTable) -> pl.DataFrame:
    """Return when threads that train waited for the device."""
    training_threads = windows.select("pid", "tid").unique()
    waits = runtime.filter(pl.col("name").cast(pl.String).str.contains(SYNCHRONIZES))
    return waits.join(training_threads, on=["pid", "tid"], how="semi").with_columns(
        kind=pl.lit("device", _WORD), thread=_name_threads(table)
    )


def _device_spans(
    events: pl.DataFrame, runtime: pl.DataFrame, windows: pl.DataFrame
) -> pl.DataFrame:
    """Return kernels and copies; their kind is the phase (of `windows`) in which they were launched."""
    device_events = events.filter(pl.col("category").is_in(["kernel", "copy"]))
    launches = runtime.drop_nulls("correlation").unique("correlation", keep="first")
    launch_phase = phase_at(launches, windows)
    launches = launches.select("correlation", issued_ns="start_ns", launched=launch_phase)
    phase = pl.when(pl.col("launched").is_in(_ON_DEVICE)).then("launched")
    joined = device_events.join(launches, on="correlation", how="left", maintain_order="left")
    kind = pl.coalesce(phase, pl.lit("device", _WORD))
    return joined.with_columns(kind=kind, stream=_number_stream(device_events))


def _number_stream(device_events: pl.DataFrame) -> pl.Expr:
    """Return the number of a row's stream, which differs between devices where there are several."""
    number = pl.coalesce("stream", pl.col("tid").cast(pl.String).cast(pl.Int64, strict=False))
    stream = number.fill_null(0).clip(0, _MOST_STREAMS * _MOST_STREAMS)
    if device_events["device"].n_unique() < 2:
        return stream
    return pl.col("device").fill_null(0).clip(0, _MOST_STREAMS) * _MOST_STREAMS + stream


def _begin_when_issued(calls: pl.DataFrame, host: pl.DataFrame, table: EventTable) -> pl.DataFrame:
    """Let calls of library threads begin when a thread of the code issued them, if that is known.

    The order of issues is that of the code, and alike on all ranks. Threads of the library may be
    late to a call, and two of them may begin theirs in the other order.
    """
    is_on_library_thread = (pl.col("category") != "kernel") & pl.col("op").is_not_null()
    names = host["name"].unique().cast(pl.String).to_list()
    ops = {word: op for word in names if word.startswith("c10d::") and (op := collective(word))}
    name = pl.col("name").cast(pl.String)
    issues = host.filter(name.is_in(list(ops)))
    op_of_issue = name.replace_strict(ops, default=None, return_dtype=pl.String)
    issue_by_row = pair_with_issues(
        _to_calls(calls.filter(is_on_library_thread), pl.col("op").cast(pl.String), table),
        _to_calls(issues, op_of_issue, table),
    )
    issued_ns = pl.col("row").replace_strict(issue_by_row, default=None, return_dtype=pl.Int64)
    return calls.with_columns(start_ns=pl.min_horizontal("start_ns", issued_ns))


def _to_calls(events: pl.DataFrame, op: pl.Expr, table: EventTable) -> list[Call]:
    """Return each event as a call, with the operation `op` and the elements of its tensors."""
    cells = events.sort("start_ns").select("row", op.alias("op"), "call", "start_ns").rows()
    return [
        Call(row, op, None if i is None else elements(table.calls[i].get("Input Dims")), start_ns)
        for row, op, i, start_ns in cells
    ]


def _communication_spans(
    calls: pl.DataFrame, runtime: pl.DataFrame, table: EventTable, groups: Groups
) -> pl.DataFrame:
    """Return the communication: kernels on their streams, the rest on its threads."""
    on_device = pl.col("category") == "kernel"
    has_no_group = pl.col("communicator").is_null() & (len(groups) > 1)
    launches = runtime.drop_nulls("correlation").unique("correlation", keep="first")
    launches = launches.select("correlation", issued_ns="start_ns")
    joined = calls.join(launches, on="correlation", how="left", maintain_order="left")
    unknown_group = pl.when(has_no_group).then(pl.lit(UNKNOWN_GROUP, _WORD))
    return joined.with_columns(
        pl.coalesce("issued_ns", "start_ns"),
        kind=pl.lit("reduction", _WORD),
        stream=pl.when(on_device).then(_number_stream(table.rows.filter(on_device))),
        thread=pl.when(~on_device).then(_name_threads(table)),
        communicator=unknown_group.otherwise("communicator"),
        status=pl.when(has_no_group).then(pl.lit("estimated", _WORD)),
    )
