"""What the address bar shows, as a selection to export: pinned ranks, or all, and the window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.exports import perfetto
from tracelens.exports.selection import Owner, Selection
from tracelens.words import capital
from tracelens_dashboard import sight, text

if TYPE_CHECKING:
    from tracelens_dashboard.state import ViewState
    from tracelens_dashboard.store import Store

MOST_RANKS: Final = 64  # files that are read to say how much it is
NAMED: Final = ("process", "rank", "host")


def of_view(store: Store, view: ViewState) -> Selection:
    """Choose what a view shows."""
    seen, origin = sight.window_of(store, view), store.whole.start_ns
    every = pl.concat([_owners(store.run.workers, "worker"), _owners(store.run.shards, "ps")])
    pinned = set(view.pins) & set(store.ranks)
    if pinned:
        every = every.filter(pl.col("rank").is_in(pinned) & (pl.col("role") == "worker"))
    return Selection(
        run=store.name,
        owners=tuple(Owner(*row) for row in every.iter_rows()),
        start_ns=origin + seen.start_ns,
        end_ns=origin + seen.end_ns,
        origin_ns=origin,
        threads=store.run.threads,
        spans_of=store.spans_of,
    )


def said(store: Store, chosen: Selection) -> str:
    """Say of whom it is, and of when."""
    names = [owner.rank for owner in chosen.owners if owner.role == "worker"]
    every = len(names) == len(store.ranks)  # and shards with them
    who = text.count(len(names), "rank") if every else text.listing("rank", names)
    length = text.duration(min(chosen.end_ns, store.whole.end_ns) - chosen.start_ns)
    return f"{capital(who)}, {length}"


def too_much(store: Store, chosen: Selection) -> str:
    """Say why a selection cannot be exported; empty where nothing is known against it.

    Pieces of the index are counted, which needs no file: there is at least a span to each few of them.
    """
    if len(chosen.owners) > MOST_RANKS:
        return (
            f"These are {len(chosen.owners)} processes: pin the ranks to export, in the timeline."
        )
    wanted = {owner.process for owner in chosen.owners}
    lanes = store.scene.lanes
    first, last = lanes.bounds(chosen.start_ns, chosen.end_ns)
    counts = (last - first).tolist()
    pieces = sum(n for lane, n in zip(lanes.lanes, counts, strict=True) if lane.process in wanted)
    if pieces > 4 * perfetto.MOST_EVENTS:
        return refused(pieces)
    return ""


def refused(events: int) -> str:
    """Say that so many events are more than viewers open."""
    return (
        f"These are {events:,} events, and viewers open {perfetto.MOST_EVENTS:,} at most: "
        "zoom in, or pin fewer ranks, in the timeline."
    )


def _owners(table: pl.DataFrame, role: str) -> pl.DataFrame:
    return table.select(*NAMED).select(
        "process", pl.lit(role).alias("role"), "rank", pl.col("host").fill_null("")
    )
