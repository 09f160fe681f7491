"""What a stretch of time that one marks with the mouse was spent on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracelens.lod import measure
from tracelens.lod.window import Window
from tracelens_dashboard import text
from tracelens_dashboard.figures.strip import SECOND
from tracelens_dashboard.theme import name_of

if TYPE_CHECKING:
    from tracelens_dashboard.store import Store

MOST_NAMED: Final = 6


def sentence(store: Store, selected: Any) -> str:
    """Say how long a marked stretch is, and on what all ranks spent it; nothing if none is marked."""
    marked = _marked(store, selected)
    if marked is None:
        return ""
    spent = measure.spent(store.scene.lanes, marked)
    total = max(sum(spent.values()), 1)
    parts = [
        f"{name_of(label)} {text.percent(ns / total)}"
        for label, ns in list(spent.items())[:MOST_NAMED]
    ]
    length = text.duration(marked.width_ns)
    begin = text.duration(marked.start_ns - store.whole.start_ns)
    what = ", ".join(parts) if parts else "nothing was recorded"
    return f"Marked: {length}, from {begin} after the start. All ranks: {what}."


def _marked(store: Store, selected: Any) -> Window | None:
    """Read the stretch from what the browser sends, which may be anything."""
    extent = selected.get("range") if isinstance(selected, dict) else None
    ends = extent.get("x") if isinstance(extent, dict) else None
    if not isinstance(ends, list) or len(ends) != 2:
        return None
    if not all(isinstance(end, (int, float)) and abs(end) < SECOND for end in ends):
        return None
    whole = store.whole
    low, high = (whole.start_ns + round(end * SECOND) for end in sorted(ends))
    marked = Window(max(low, whole.start_ns), min(high, whole.end_ns))
    return marked if marked.width_ns > 0 else None
