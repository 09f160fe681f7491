"""What a run was, in a few words: for the header of every page, and of its report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_dashboard import text

if TYPE_CHECKING:
    from tracelens_dashboard.store import Store


def chip(store: Store) -> str:
    """Say what the run was: ranks, shards, steps, duration."""
    shards = store.shard_count
    parts = [
        text.count(len(store.ranks), "rank"),
        text.count(shards, "shard") if shards else "",
        text.count(store.windows.height, "step"),
        text.duration(store.whole.width_ns),
    ]
    return " · ".join(part for part in parts if part)
