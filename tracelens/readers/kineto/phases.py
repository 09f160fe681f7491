"""Which phase of training each event of a rank belongs to.

Phases are windows of a thread: annotations that name one, the operators that autograd runs backwards,
and those that it records for that. Successive events of one phase form a window. An operator
belongs to the window it begins in, a kernel to that in which it was launched.

A window ends where the thread waits for communication to end, as at the end of backprop under
DistributedDataParallel: that time is not its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.readers.kineto.words import phase_of_annotation

if TYPE_CHECKING:
    from tracelens.arrays import Flags, Ints

__all__ = ["WINDOW_COLUMNS", "phase_at", "windows_of", "with_phases"]

_BACKWARD: Final = r"^autograd::engine::evaluate_function|^torch\.distributed\.ddp\.reducer::"
_FINISHES: Final = (
    "torch.distributed.ddp.reducer::"  # what DDP does when it has waited for a bucket
)
_OLD_BACKWARD: Final = r"Backward\d*$"  # before PyTorch 1.9
_SLACK: Final = 10  # one part of so many of a gap
_NOT_OWN: Final = ("step", "gc")
WINDOW_COLUMNS: Final[dict[str, pl.DataType]] = {
    "pid": pl.Categorical(),
    "tid": pl.Categorical(),
    "phase": pl.Categorical(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "of_operators": pl.Boolean(),  # no single annotation says it
}
_PLACE: Final = ("pid", "tid")


def windows_of(host: pl.DataFrame, ends_ns: Ints) -> pl.DataFrame:
    """Return the windows of a rank's phases, in `WINDOW_COLUMNS`, in order of begin.

    Args:
        host: Its operators and annotations, with `end_ns`.
        ends_ns: When communication that runs on threads of the host ended, ascending.
    """
    marked = _phase_rows(host)
    if marked.is_empty():
        return pl.DataFrame(schema=WINDOW_COLUMNS)
    outer = _outermost(marked.sort(*_PLACE, "start_ns", "end_ns", descending=[False] * 3 + [True]))
    outer = outer.sort("start_ns", "end_ns")
    begin_ns, end_ns = (outer[name].to_numpy() for name in ("start_ns", "end_ns"))
    waited = _waits(end_ns[:-1], begin_ns[1:], ends_ns)
    finishes = outer["finishes"].to_numpy()
    waited |= finishes[1:] & ~finishes[:-1]
    steps = host.filter(pl.col("phase") == "step")["start_ns"].sort().to_numpy()
    outer = outer.with_columns(
        step=np.searchsorted(steps, begin_ns, "right"), cut=np.cumsum(np.append(False, waited))
    )
    changes = (pl.col("phase") != pl.col("phase").shift(1)).fill_null(value=False)
    grouped = (
        outer.with_columns(turn=changes.cum_sum())
        .group_by(*_PLACE, "phase", "turn", "step", "cut", maintain_order=True)
        .agg(
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            of_operators=(pl.len() > 1) | ~pl.col("annotated").all(),
        )
    )
    return grouped.sort("start_ns").select(
        pl.col(name).cast(kind) for name, kind in WINDOW_COLUMNS.items()
    )


def _waits(since_ns: Ints, until_ns: Ints, ends_ns: Ints) -> Flags:
    """Return in which gaps communication ended that a thread waited for.

    What the library says of an end may come a little after the thread goes on.
    """
    slack = (until_ns - since_ns).clip(min=0) // _SLACK
    ended = np.searchsorted(ends_ns, until_ns + slack, "right")
    return np.asarray(ended > np.searchsorted(ends_ns, since_ns, "right"))


def with_phases(host: pl.DataFrame) -> pl.DataFrame:
    """Add the phase that the name of each annotation says; null without one."""
    names = (
        host.filter(pl.col("category") == "annotation")["name"].unique().cast(pl.String).to_list()
    )
    meant = {name: phase for name in names if (phase := phase_of_annotation(name))}
    phase_of_name = (
        pl.col("name").cast(pl.String).replace_strict(meant, default=None, return_dtype=pl.String)
    )
    return host.with_columns(
        phase=pl.when(pl.col("category") == "annotation").then(phase_of_name).cast(pl.Categorical)
    )


def phase_at(rows: pl.DataFrame, windows: pl.DataFrame) -> pl.Series:
    """Return the phase of the window in which each row begins on its thread; null outside windows.

    Args:
        rows: Rows with `pid`, `tid` and `start_ns`.
        windows: As `windows_of` returns them.
    """
    if windows.is_empty() or rows.is_empty():
        return pl.Series("phase", [None] * rows.height, dtype=pl.Categorical)
    window_of_row = (
        rows.select(*_PLACE, "start_ns")
        .with_row_index("row")
        .sort("start_ns")
        .join_asof(
            windows.select(*_PLACE, "start_ns", "phase", until="end_ns").sort("start_ns"),
            on="start_ns",
            by=list(_PLACE),
            check_sortedness=False,
        )
        .sort("row")
    )
    inside = pl.when(pl.col("start_ns") < pl.col("until")).then("phase")
    return window_of_row.select(inside.alias("phase")).to_series()


def _phase_rows(host: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that say a phase: annotations, and operators that autograd knows."""
    operators = host.filter(pl.col("category") == "operator")
    names = operators["name"].unique().cast(pl.String)
    runs_backward = names.filter(names.str.contains(_BACKWARD))
    if runs_backward.is_empty():
        runs_backward = names.filter(names.str.contains(_OLD_BACKWARD))
    is_backward = pl.col("name").cast(pl.String).is_in(runs_backward.implode())
    backward = operators.filter(is_backward)
    recorded = operators.filter(~is_backward, pl.col("sequence") >= 0)
    frames = [
        host.filter(pl.col("phase").is_not_null(), ~pl.col("phase").is_in(_NOT_OWN)).with_columns(
            annotated=True
        ),
        backward.with_columns(phase=pl.lit("backprop", pl.Categorical), annotated=False),
        recorded.with_columns(phase=pl.lit("forward", pl.Categorical), annotated=False),
    ]
    marked = pl.concat(
        [
            part.select(*_PLACE, "name", "start_ns", "end_ns", "phase", "annotated")
            for part in frames
        ]
    )
    name = pl.col("name").cast(pl.String)
    return marked.with_columns(finishes=name.str.starts_with(_FINISHES)).drop("name")


def _outermost(ordered: pl.DataFrame) -> pl.DataFrame:
    """Drop what lies within an earlier row of its thread, or begins there."""
    before = pl.col("end_ns").cum_max().shift(1).over(_PLACE)
    return ordered.filter((pl.col("start_ns") >= before).fill_null(value=True))
