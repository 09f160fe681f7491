"""Several folders of one run as one raw trace, as where each host kept what its own ranks recorded.

They are joined before clocks are aligned, so that collectives between their ranks tie them together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens.errors import InvalidArgument
from tracelens.model.fmt import shown_name
from tracelens.model.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["join"]

_NUMBERED: Final = ("processes", "threads", "clocks", "samples")


def join(traces: Sequence[Trace]) -> Trace:
    """Join raw traces of disjoint ranks; processes are numbered anew, in the order of `traces`.

    Raises:
        InvalidArgument: a rank was recorded in two of them.
    """
    if len(traces) == 1:
        return traces[0]
    _check_ranks(traces)
    offsets = [sum(t.processes.height for t in traces[:place]) for place in range(len(traces))]
    numbered: dict[str, Any] = {
        name: pl.concat([_after(getattr(t, name), n) for t, n in zip(traces, offsets, strict=True)])
        for name in _NUMBERED
    }
    dropped: dict[str, int] = {}
    for trace in traces:
        for reason, count in trace.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
    return Trace(
        events=pl.concat(
            [
                t.events.with_columns(pl.col("process") + n)
                for t, n in zip(traces, offsets, strict=True)
            ]
        ),
        communicators=_communicators(traces),
        notes=tuple(dict.fromkeys(note for trace in traces for note in trace.notes)),
        dropped=dropped,
        **numbered,
    )


def _after(table: pl.DataFrame, offset: int) -> pl.DataFrame:
    return table.with_columns((pl.col("process") + offset).cast(pl.Int32))


def _check_ranks(traces: Sequence[Trace]) -> None:
    """Refuse a rank that is in two of them: which is meant cannot be known."""
    owner: dict[tuple[str, int], Path | None] = {}
    for trace in traces:
        for role, rank in trace.processes.filter("main").select("role", "rank").iter_rows():
            if (role, rank) in owner:
                names = [shown_name(path or "") for path in (owner[role, rank], trace.path)]
                who = f"{'rank' if role == 'worker' else 'parameter server'} {rank}"
                raise InvalidArgument(
                    f"Both '{names[0]}' and '{names[1]}' hold {who}: only folders of one run with "
                    "different ranks can be joined; convert them one by one."
                )
            owner[role, rank] = trace.path


def _communicators(traces: Sequence[Trace]) -> pl.DataFrame:
    """Return each communicator once, with all ranks that any of the traces names."""
    every = pl.concat([trace.communicators for trace in traces])
    merged = every.explode("ranks").group_by("communicator", maintain_order=True)
    table = merged.agg(pl.col("name").first(), pl.col("ranks").drop_nulls().unique().sort())
    return table.select(*every.columns).cast(every.schema)
