"""The rows of one file in TraceLens' words: what its threads, its streams and its communication did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.readers.kineto.collectives import CALL_COLUMNS, select_communication
from tracelens.readers.kineto.issues import Call, count_elements, pair_with_issues
from tracelens.readers.kineto.phases import add_phases, find_phase_of_events, find_windows
from tracelens.readers.kineto.words import (
    RANGES,
    SYNCHRONIZES,
    find_collective,
    find_phase_of_annotation,
    parse_step_number,
)
from tracelens.readers.spans.rows import fit_columns
from tracelens.readers.words import find_meaning

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.readers.kineto.collectives import Groups
    from tracelens.readers.kineto.columns import EventTable

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
_COMPUTING_PHASES: Final = ("forward", "backprop", "update")
_MOST_STREAMS: Final = 1_000  # of one device
_CALLS_OF_RUNTIME: Final = "launches and other calls of the device's runtime"


def translate_events(table: EventTable, groups: Groups) -> pl.DataFrame:
    """Return the spans of one file, in `SPAN_COLUMNS`; events that become no span are counted.

    Gives `table.rows` their `end_ns` and a number (`row`), and moves their times to ns since 1970.
    """
    table.rows = table.rows.with_columns(
        pl.col("start_ns") + table.time_origin_ns,
        end_ns=pl.col("start_ns") + pl.col("duration_ns") + table.time_origin_ns,
    ).with_row_index("row")
    calls = select_communication(table, groups)
    non_calls = table.rows.join(calls.select("row"), on="row", how="anti", maintain_order="left")
    on_host = non_calls.filter(pl.col("category").is_in(["operator", "annotation", "other"]))
    host_events = add_phases(_mark_ranges(on_host))
    calls = _begin_when_issued(calls, host_events, table)
    calls_on_host = calls.filter(pl.col("category") != "kernel")
    windows = find_windows(host_events, np.sort(calls_on_host["end_ns"].to_numpy()))
    runtime_calls = non_calls.filter(pl.col("category") == "runtime")
    wait_spans = _build_wait_spans(runtime_calls, windows, table)
    span_tables = [
        _build_host_spans(host_events, windows, table),
        _build_window_spans(windows, table),
        wait_spans,
        _build_device_spans(non_calls, runtime_calls, windows),
        _build_communication_spans(calls, runtime_calls, table, groups),
    ]
    table.left_out_counts[_CALLS_OF_RUNTIME] += runtime_calls.height - wait_spans.height
    return pl.concat([fit_columns(span_table, SPAN_COLUMNS) for span_table in span_tables])


def _mark_ranges(host_events: pl.DataFrame) -> pl.DataFrame:
    """Make operators annotations that are ranges of the profiler by their names.

    PyTorch 1.8 and 1.9 write all annotations as operators: there, names of phases are ranges, too.
    `host_events` has one row per operator or annotation.
    """
    is_operator = pl.col("category") == "operator"
    operator_names = host_events.filter(is_operator)["name"].unique().cast(pl.String)
    range_names = operator_names.filter(operator_names.str.contains(RANGES)).to_list()
    if not (host_events["category"] == "annotation").any():
        range_names += [name for name in operator_names if find_phase_of_annotation(name)]
    if not range_names:
        return host_events
    is_range = pl.col("name").cast(pl.String).is_in(range_names)
    category = pl.when(is_range).then(pl.lit("annotation", _WORD)).otherwise("category")
    return host_events.with_columns(category=category)


def _build_host_spans(
    host_events: pl.DataFrame, windows: pl.DataFrame, table: EventTable
) -> pl.DataFrame:
    """Return the operators and annotations of the host as spans, each of its phase.

    The kind is that of the annotation itself (a step, or the phase that it names), else that of the
    name of a span of another tool, else the phase of the window around it, else the user's code.
    `windows` has one row per stretch of a thread in one phase.
    """
    kind_of_annotation = _translate_names(
        host_events,
        "annotation",
        lambda name: "step" if parse_step_number(name) is not None else None,
    )
    kind_of_other = _translate_names(host_events, "other", _find_kind_of_name)
    is_annotation = pl.col("category") == "annotation"
    step_by_name = {
        name: step
        for name in host_events.filter(is_annotation)["name"].unique().cast(pl.String)
        if (step := parse_step_number(name)) is not None
    }
    window_phase = find_phase_of_events(host_events, windows)
    user_code = pl.lit("user", _WORD)
    kind = pl.coalesce(kind_of_annotation, "phase", kind_of_other, window_phase, user_code)
    name = pl.col("name").cast(pl.String)
    step_of_name = name.replace_strict(step_by_name, default=None, return_dtype=pl.Int32)
    row_step = pl.when(is_annotation).then(step_of_name)
    return host_events.with_columns(kind=kind, step=row_step, thread=_name_threads(table))


def _translate_names(
    events: pl.DataFrame, category: str, find_kind: Callable[[str], str | None]
) -> pl.Series:
    """Return the kind of each event of a category, as `find_kind` knows it by name; else null."""
    is_of_category = pl.col("category") == category
    names = events.filter(is_of_category)["name"].unique().cast(pl.String).to_list()
    kind_by_name = {name: kind for name in names if (kind := find_kind(name))}
    name = pl.col("name").cast(pl.String)
    kind_of_name = name.replace_strict(kind_by_name, default=None, return_dtype=pl.String)
    return events.select(kind=pl.when(is_of_category).then(kind_of_name).cast(_WORD)).to_series()


def _find_kind_of_name(name: str) -> str | None:
    """Return the kind that the name of a span of another tool says; communication is not believed."""
    kind, _ = find_meaning(name) or (None, None)
    return kind if kind not in {"reduction", "device", "ps", "elastic"} else None


def _name_threads(table: EventTable) -> pl.Expr:
    """Return an expression of the thread's label for rows with `pid` and `tid`.

    It has the thread's name and number, and its process if two threads of the file would have the same.
    """
    threads = table.rows.select("pid", "tid").unique(maintain_order=True)
    threads = threads.cast(pl.String).fill_null("-")
    has_several_processes = threads["pid"].n_unique() > 1
    label_by_key: dict[str, str] = {}
    for pid, tid in threads.rows():
        given_name = table.name_by_thread.get((pid, tid), "")
        label = f"thread {tid}" + (f" ({given_name})" if given_name else "")
        if given_name and tid in given_name:
            label = given_name
        if has_several_processes and label in label_by_key.values():
            label = f"{label} of {pid}"
        label_by_key[f"{pid} {tid}"] = label
    thread_key = pl.concat_str(pl.col("pid", "tid").cast(pl.String).fill_null("-"), separator=" ")
    return thread_key.replace_strict(label_by_key, default=None, return_dtype=pl.String).cast(_WORD)


def _build_window_spans(windows: pl.DataFrame, table: EventTable) -> pl.DataFrame:
    """Return a span for each window of a phase that no single annotation says."""
    return windows.filter("of_operators").with_columns(
        kind="phase", name=pl.col("phase"), thread=_name_threads(table)
    )


def _build_wait_spans(
    runtime_calls: pl.DataFrame, windows: pl.DataFrame, table: EventTable
) -> pl.DataFrame:
    """Return the calls in which threads that train (those of `windows`) wait for the device.

    Tables have one row per call, and per stretch of a thread in one phase (`windows`).
    """
    training_threads = windows.select("pid", "tid").unique()
    waits = runtime_calls.filter(pl.col("name").cast(pl.String).str.contains(SYNCHRONIZES))
    return waits.join(training_threads, on=["pid", "tid"], how="semi").with_columns(
        kind=pl.lit("device", _WORD), thread=_name_threads(table)
    )


def _build_device_spans(
    events: pl.DataFrame, runtime_calls: pl.DataFrame, windows: pl.DataFrame
) -> pl.DataFrame:
    """Return kernels and copies of the phase in which a call of the same `correlation` launched them.

    `windows` has one row per stretch of a thread in one phase.
    """
    device_events = events.filter(pl.col("category").is_in(["kernel", "copy"]))
    launches = runtime_calls.drop_nulls("correlation").unique("correlation", keep="first")
    launch_phase = find_phase_of_events(launches, windows)
    launches = launches.select("correlation", issued_ns="start_ns", launch_phase=launch_phase)
    phase = pl.when(pl.col("launch_phase").is_in(_COMPUTING_PHASES)).then("launch_phase")
    joined = device_events.join(launches, on="correlation", how="left", maintain_order="left")
    kind = pl.coalesce(phase, pl.lit("device", _WORD))
    stream = _number_streams(device_events["device"])
    return joined.with_columns(kind=kind, stream=stream)


def _number_streams(devices: pl.Series) -> pl.Expr:
    """Return an expression of a row's stream number; it differs between `devices`, those of a file."""
    number = pl.coalesce("stream", pl.col("tid").cast(pl.String).cast(pl.Int64, strict=False))
    stream = number.fill_null(0).clip(0, _MOST_STREAMS * _MOST_STREAMS)
    if devices.n_unique() < 2:
        return stream
    return pl.col("device").fill_null(0).clip(0, _MOST_STREAMS) * _MOST_STREAMS + stream


def _begin_when_issued(
    calls: pl.DataFrame, host_events: pl.DataFrame, table: EventTable
) -> pl.DataFrame:
    """Let calls of library threads begin when a thread of the code issued them, if that is known.

    The order of issues (operators `c10d::...`) is that of the code, and alike on all ranks. Threads of
    the library may be late to a call, and two of them may begin theirs in the other order. `calls` and
    `host_events` have one row each; rows of `table` have the sizes of tensors.
    """
    is_on_library_thread = (pl.col("category") != "kernel") & pl.col("op").is_not_null()
    names = host_events["name"].unique().cast(pl.String).to_list()
    op_by_name = {n: op for n in names if n.startswith("c10d::") and (op := find_collective(n))}
    name = pl.col("name").cast(pl.String)
    issues = host_events.filter(name.is_in(list(op_by_name)))
    op_of_issue = name.replace_strict(op_by_name, default=None, return_dtype=pl.String)
    issued_ns_by_row = pair_with_issues(
        works=_to_calls(calls.filter(is_on_library_thread), pl.col("op").cast(pl.String), table),
        issues=_to_calls(issues, op_of_issue, table),
    )
    issued_ns = pl.col("row").replace_strict(issued_ns_by_row, default=None, return_dtype=pl.Int64)
    return calls.with_columns(start_ns=pl.min_horizontal("start_ns", issued_ns))


def _to_calls(events: pl.DataFrame, op: pl.Expr, table: EventTable) -> list[Call]:
    """Return each event as a call, in order of time, with its operation and the size of its tensors."""
    cells = events.sort("start_ns").select("row", op.alias("op"), "call_index", "start_ns").rows()
    calls = []
    for row, op_word, call_index, start_ns in cells:
        shapes = None if call_index is None else table.call_facts[call_index].get("Input Dims")
        calls.append(Call(row, op_word, count_elements(shapes), start_ns))
    return calls


def _build_communication_spans(
    calls: pl.DataFrame, runtime_calls: pl.DataFrame, table: EventTable, groups: Groups
) -> pl.DataFrame:
    """Return the communication as spans: kernels on their streams, the rest on its threads.

    A call that does not say its group, in a file that lists several, is of none that is known: it is not
    matched with calls of other ranks.
    """
    is_on_device = pl.col("category") == "kernel"
    has_no_group = pl.col("communicator").is_null() & (len(groups) > 1)
    launches = runtime_calls.drop_nulls("correlation").unique("correlation", keep="first")
    launches = launches.select("correlation", issued_ns="start_ns")
    joined = calls.join(launches, on="correlation", how="left", maintain_order="left")
    stream = _number_streams(table.rows.filter(is_on_device)["device"])
    when_no_group = pl.when(has_no_group)
    return joined.with_columns(
        pl.coalesce("issued_ns", "start_ns"),
        kind=pl.lit("reduction", _WORD),
        stream=pl.when(is_on_device).then(stream),
        thread=pl.when(~is_on_device).then(_name_threads(table)),
        communicator=when_no_group.then(pl.lit(UNKNOWN_GROUP, _WORD)).otherwise("communicator"),
        status=when_no_group.then(pl.lit("estimated", _WORD)),
    )
