"""Which phase of training each event of a rank belongs to.

Phases are windows of a thread: annotations that name one, the operators that autograd runs backwards,
and those that it records for that. An operator belongs to the window it begins in, a kernel to that in
which it was launched. Waits for communication at the end of backprop are in none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.readers.kineto.words import find_phase_of_annotation

if TYPE_CHECKING:
    from tracelens.arrays import Flags, Ints

_BACKWARD: Final = r"^autograd::engine::evaluate_function|^torch\.distributed\.ddp\.reducer::"
# What DDP does when it has waited for a bucket of gradients.
_NAME_AFTER_WAIT: Final = "torch.distributed.ddp.reducer::"
_OLD_BACKWARD: Final = r"Backward\d*$"  # before PyTorch 1.9
_SLACK_DIVISOR: Final = 10  # an end may come later than a gap by one part in 10 of it
_PHASES_AROUND_OTHERS: Final = ("step", "gc")
WINDOW_COLUMNS: Final[dict[str, pl.DataType]] = {
    "pid": pl.Categorical(),
    "tid": pl.Categorical(),
    "phase": pl.Categorical(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "of_operators": pl.Boolean(),  # no single annotation says it
}
_THREAD_KEY: Final = ("pid", "tid")


def find_windows(host: pl.DataFrame, communication_ends_ns: Ints) -> pl.DataFrame:
    """Return the windows of a rank's phases, in `WINDOW_COLUMNS`, in order of begin.

    Successive spans of a thread form one window if they are of one phase and step, unless the thread
    waited for communication between them (`has_wait`). The numbers of `turn`, `step` and `cut` grow
    with each change of the phase, with each step, and with each wait.

    Args:
        host: Its operators and annotations, with `end_ns`.
        communication_ends_ns: When communication that runs on threads of the host ended, ascending,
            [call].
    """
    spans = _select_phase_spans(host)
    if spans.is_empty():
        return pl.DataFrame(schema=WINDOW_COLUMNS)
    spans = spans.sort(*_THREAD_KEY, "start_ns", "end_ns", descending=[False] * 3 + [True])
    outer_spans = _select_outermost(spans).sort("start_ns", "end_ns")
    begin_ns, end_ns = (outer_spans[name].to_numpy() for name in ("start_ns", "end_ns"))
    has_wait = _contains_end(end_ns[:-1], begin_ns[1:], communication_ends_ns)  # before spans[1:]
    finishes_bucket = outer_spans["finishes_bucket"].to_numpy()
    has_wait |= finishes_bucket[1:] & ~finishes_bucket[:-1]
    step_begins_ns = host.filter(pl.col("phase") == "step")["start_ns"].sort().to_numpy()
    outer_spans = outer_spans.with_columns(
        step=np.searchsorted(step_begins_ns, begin_ns, "right"),
        cut=np.cumsum(np.append(False, has_wait)),
    )
    is_change = (pl.col("phase") != pl.col("phase").shift(1)).fill_null(value=False)
    windows = (
        outer_spans.with_columns(turn=is_change.cum_sum())
        .group_by(*_THREAD_KEY, "phase", "turn", "step", "cut", maintain_order=True)
        .agg(
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            of_operators=(pl.len() > 1) | ~pl.col("is_annotation").all(),
        )
    )
    columns = [pl.col(name).cast(dtype) for name, dtype in WINDOW_COLUMNS.items()]
    return windows.sort("start_ns").select(columns)


def _contains_end(gap_begins_ns: Ints, gap_ends_ns: Ints, ends_ns: Ints) -> Flags:
    """Return True for gaps, [gap], in which communication ended, at `ends_ns`, ascending.

    The thread waited for it. What the library says of an end may come a little after the thread goes on.
    """
    slack_ns = (gap_ends_ns - gap_begins_ns).clip(min=0) // _SLACK_DIVISOR
    ended_count = np.searchsorted(ends_ns, gap_ends_ns + slack_ns, "right")
    return np.asarray(ended_count > np.searchsorted(ends_ns, gap_begins_ns, "right"))


def add_phases(host: pl.DataFrame) -> pl.DataFrame:
    """Add the phase that the name of each annotation says; null without one."""
    is_annotation = pl.col("category") == "annotation"
    names = host.filter(is_annotation)["name"].unique().cast(pl.String).to_list()
    phases = {name: phase for name in names if (phase := find_phase_of_annotation(name))}
    name = pl.col("name").cast(pl.String)
    phase_of_name = name.replace_strict(phases, default=None, return_dtype=pl.String)
    return host.with_columns(phase=pl.when(is_annotation).then(phase_of_name).cast(pl.Categorical))


def find_phase_of_events(events: pl.DataFrame, windows: pl.DataFrame) -> pl.Series:
    """Return the phase of the window in which each event begins on its thread; null outside windows.

    Args:
        events: With `pid`, `tid` and `start_ns`.
        windows: As `find_windows` returns them.
    """
    if windows.is_empty() or events.is_empty():
        return pl.Series("phase", [None] * events.height, dtype=pl.Categorical)
    last_begun_windows = (
        events.select(*_THREAD_KEY, "start_ns")
        .with_row_index("row")
        .sort("start_ns")
        .join_asof(
            windows.select(*_THREAD_KEY, "start_ns", "phase", "end_ns").sort("start_ns"),
            on="start_ns",
            by=list(_THREAD_KEY),
            check_sortedness=False,
        )
        .sort("row")
    )
    phase_inside = pl.when(pl.col("start_ns") < pl.col("end_ns")).then("phase")
    return last_begun_windows.select(phase_inside.alias("phase")).to_series()


def _select_phase_spans(host: pl.DataFrame) -> pl.DataFrame:
    """Return the spans that say a phase: annotations, and operators that autograd knows.

    Operators of backprop have names of autograd; those of forward have a number (`sequence`) that
    autograd gave them. `finishes_bucket`: DDP did it after its wait for a bucket of gradients.
    """
    operators = host.filter(pl.col("category") == "operator")
    operator_names = operators["name"].unique().cast(pl.String)
    backward_names = operator_names.filter(operator_names.str.contains(_BACKWARD))
    if backward_names.is_empty():
        backward_names = operator_names.filter(operator_names.str.contains(_OLD_BACKWARD))
    is_backward = pl.col("name").cast(pl.String).is_in(backward_names.implode())
    backward = operators.filter(is_backward)
    forward = operators.filter(~is_backward, pl.col("sequence") >= 0)
    is_phase = pl.col("phase").is_not_null() & ~pl.col("phase").is_in(_PHASES_AROUND_OTHERS)
    span_tables = [
        host.filter(is_phase).with_columns(is_annotation=True),
        backward.with_columns(phase=pl.lit("backprop", pl.Categorical), is_annotation=False),
        forward.with_columns(phase=pl.lit("forward", pl.Categorical), is_annotation=False),
    ]
    columns = (*_THREAD_KEY, "name", "start_ns", "end_ns", "phase", "is_annotation")
    phase_spans = pl.concat([span_table.select(columns) for span_table in span_tables])
    finishes_bucket = pl.col("name").cast(pl.String).str.starts_with(_NAME_AFTER_WAIT)
    return phase_spans.with_columns(finishes_bucket=finishes_bucket).drop("name")


def _select_outermost(spans: pl.DataFrame) -> pl.DataFrame:
    """Drop spans that begin within an earlier one of their thread; they are in order of begin."""
    earlier_end_ns = pl.col("end_ns").cum_max().shift(1).over(_THREAD_KEY)
    return spans.filter((pl.col("start_ns") >= earlier_end_ns).fill_null(value=True))
