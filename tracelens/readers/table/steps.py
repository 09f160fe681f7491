"""Numbers the steps of tables that do not: by step rows, else by the updates that end them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.trace import Note

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["number"]

_BEFORE_UPDATE: Final = ("data", "forward", "backprop")


def number(frame: pl.DataFrame) -> tuple[pl.DataFrame, list[Note]]:
    """Fill `step` if no row has one; rows are in order of process and time."""
    if "step" in frame.columns and frame["step"].count():
        return frame.with_columns(pl.col("step").fill_null(-1)), []
    frame = frame.with_columns(step=pl.lit(-1, pl.Int32))
    marked = pl.col("kind") == "step"
    if frame.select(marked.any()).item():
        ordinal = marked.cum_sum().over("process").cast(pl.Int32) - 1
        return frame.with_columns(step=pl.when(marked).then(ordinal).otherwise("step")), []
    return _by_updates(frame)


def _by_updates(frame: pl.DataFrame) -> tuple[pl.DataFrame, list[Note]]:
    """End a step with the last update before other work begins again."""
    workers = frame.filter(pl.col("role") == "worker")
    ends = _ends(workers)
    counts = dict(ends.group_by("process").len().iter_rows())
    problem = _problem(workers, counts)
    if problem:
        sentence = (
            f"Nothing says where steps begin ({problem}), so the whole run counts as one: add a column "
            "'step' or rows of kind 'step'."
        )
        return frame, [_note(sentence)]
    passed = (
        frame.lazy()
        .with_row_index("row")
        .sort("start_ns")
        .join_asof(
            ends.lazy().sort("end_ns"),
            left_on="start_ns",
            right_on="end_ns",
            by="process",
            check_sortedness=False,
        )
        .sort("row")
        .select("ordinal")
        .collect()["ordinal"]
    )
    last = pl.col("process").replace_strict(
        {process: count - 1 for process, count in counts.items()}, default=None
    )
    found = pl.min_horizontal(pl.Series("passed", passed).fill_null(-1) + 1, last)
    numbered = frame.with_columns(step=found.fill_null(-1).cast(pl.Int32))
    sentence = "Steps are counted from 0 by the updates that end them, for no row tells its step."
    return numbered, [_note(sentence)]


def _ends(workers: pl.DataFrame) -> pl.DataFrame:
    """Return process, `end_ns` and `ordinal` of the updates that end a step."""
    kinds = workers["kind"].unique().cast(pl.String).to_list()
    work = _own(kinds)
    rows = workers.filter(pl.col("kind").cast(pl.String).is_in(["update", *work])).sort(
        "process", "start_ns"
    )
    updates = pl.col("kind") == "update"
    following = updates.shift(-1).over("process")
    ends = updates & (~following.fill_null(value=False) if work else pl.lit(value=True))
    return (
        rows.filter(ends & pl.col("end_ns").is_not_null())
        .select("process", "end_ns")
        .sort("process", "end_ns")
        .with_columns(ordinal=pl.int_range(pl.len(), dtype=pl.Int32).over("process"))
    )


def _own(kinds: Iterable[str]) -> list[str]:
    return [kind for kind in _BEFORE_UPDATE if kind in kinds]


def _problem(workers: pl.DataFrame, counts: dict[int, int]) -> str:
    """Say why updates do not tell steps; empty if they do."""
    processes = workers["process"].unique().to_list()
    if any(counts.get(process, 0) < 2 for process in processes):
        return "there are neither step numbers, nor rows of kind 'step', nor updates on every rank"
    together = bool((workers["kind"] == "reduction").any())
    if together and len(set(counts.values())) > 1:
        fewest, most = min(counts.values()), max(counts.values())
        return f"ranks update {fewest} to {most} times, though they reduce together"
    return ""


def _note(sentence: str) -> Note:
    return Note(file="", sentence=sentence, kind="table")
