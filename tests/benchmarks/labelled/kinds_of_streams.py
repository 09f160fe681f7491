"""Kinds of run that another tool recorded, with what ranks compute on a thread of its own.

The main thread loads data, and then waits for the thread that computes to end the step.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final

import polars as pl
from benchmarks.labelled.recording import Recording

from tracelens.readers.table.reader import TableReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.labelled.label import Case
    from benchmarks.labelled.setting import Setting

    from tracelens.model.trace import Trace

_COMPUTE: Final = ("forward", "backprop", "update")
_DIRECTS: Final = ("step", "data", "wait")


@dataclass(frozen=True)
class Table(Recording):
    """A recording that was handed over as a table, as its hosts' clocks show it."""

    def trace(self) -> Trace:
        """Return what the reader of tables makes of it."""
        host = pl.Series([f"node{member.host:03d}" for member in self.members])
        kind = pl.col("kind").cast(pl.String)
        lane = (
            pl.when(kind.is_in(_COMPUTE))
            .then(pl.lit("compute"))
            .when(kind.is_in(_DIRECTS))
            .then(pl.lit("main"))
            .otherwise(pl.lit("comm"))
        )
        table = self._local().select(
            "rank", "start_ns", "end_ns", "step", "seq", "bytes",
            pl.col("kind", "name", "op").cast(pl.String),
            host=host.gather(self.events["process"]),
            lane=lane,
        )  # fmt: skip
        return TableReader().take(pl.concat([table, _synchronizing(table)]))


def _synchronizing(table: pl.DataFrame) -> pl.DataFrame:
    """Return the waits of the main threads: from the end of data loading to the end of the step."""
    loaded = table.filter(kind="data").select("rank", "step", start_ns="end_ns")
    steps = table.filter(kind="step").drop("start_ns").join(loaded, on=["rank", "step"])
    words = {"kind": "wait", "name": "synchronize"}
    return steps.with_columns(pl.lit(word).alias(name) for name, word in words.items()).select(
        table.columns
    )


def handed_over(make: Callable[[Setting], Case]) -> Callable[[Setting], Case]:
    """Make the same run, but hand it over as a table whose main thread only directs the work."""

    def make_case(setting: Setting) -> Case:
        case = make(setting)
        parts = {field.name: getattr(case.recording, field.name) for field in fields(Recording)}
        return replace(case, recording=Table(**parts))

    return make_case
