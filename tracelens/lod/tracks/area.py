"""What spans of a stretch of time come to, by what they are called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.lod.tracks.group import label_spans

if TYPE_CHECKING:
    from tracelens.lod.viewport import Window

__all__ = ["list_longest", "overlaps", "sum_by_name"]

P95: Final = 0.95


def overlaps(window: Window) -> pl.Expr:
    """Return True where a span overlaps a window; an open span has no end."""
    end = pl.col("end_ns")
    begins_before = pl.col("start_ns") < window.end_ns
    return begins_before & (
        end.is_null() | (end > window.start_ns) | (pl.col("start_ns") >= window.start_ns)
    )


def list_longest(spans: pl.DataFrame, window: Window, most: int) -> pl.DataFrame:
    """Return the `most` longest spans of a process that overlap a window, the longest first.

    Args:
        spans: Spans of one process, in `SPAN_COLUMNS`.
        window: What is looked at; a span that is still open lasts to its end.
        most: How many are returned.

    Returns:
        Columns `name`, `kind`, `start_ns`, `length_ns`, `open`, `step` and `bytes`, of whole spans.
    """
    return (
        spans.filter(overlaps(window))
        .select(
            *_name_and_kind(),
            "start_ns",
            length_ns=pl.col("end_ns").fill_null(window.end_ns) - pl.col("start_ns"),
            open=pl.col("end_ns").is_null(),
            step=pl.when(pl.col("step") >= 0).then("step"),
            bytes="bytes",
        )
        .sort("length_ns", "start_ns", descending=[True, False])
        .head(most)
    )


def _name_and_kind() -> tuple[pl.Expr, pl.Expr]:
    """Return name and kind; what has no name is called as its kind."""
    name, kind = label_spans(numbered=False), pl.col("kind").cast(pl.String)
    return pl.when(name == "").then(kind).otherwise(name).alias("name"), kind.alias("kind")


def sum_by_name(spans: pl.DataFrame, window: Window) -> pl.DataFrame:
    """Sum up the spans of a process that lie in a window in part, the name with the most time first.

    Args:
        spans: Spans of one process, in `SPAN_COLUMNS`.
        window: What is looked at.

    Returns:
        A row for each name and kind: `count`; `total_ns`, the time within the window; `share`
        is the part; `mean_ns` and `p95_ns` of whole spans, null where all are still open. Spans that
        hold others, or overlap, have shares that add up to more than 1.
    """
    ns_in_window = pl.min_horizontal(
        pl.col("end_ns").fill_null(window.end_ns), window.end_ns
    ) - pl.max_horizontal("start_ns", window.start_ns)
    length_ns = pl.col("end_ns") - pl.col("start_ns")
    return (
        spans.filter(overlaps(window))
        .with_columns(*_name_and_kind())
        .group_by("name", "kind")
        .agg(
            count=pl.len(),
            total_ns=ns_in_window.sum(),
            share=ns_in_window.sum() / window.width_ns,
            mean_ns=length_ns.mean(),
            p95_ns=length_ns.quantile(P95, interpolation="linear"),
        )
        .sort(pl.col("total_ns"), "name", descending=[True, False])
    )
