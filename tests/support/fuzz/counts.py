"""Of damaged trace events in JSON nothing is lost without being counted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tracelens.errors import TraceLensError
from tracelens.readers.kineto.columns import read_events

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["uncounted"]


def uncounted(file: Path) -> str:
    """Return how a profile's events do not add up; nothing if they do, or if it is refused."""
    try:
        table = read_events(file)
    except TraceLensError:
        return ""
    counted = table.rows.height + table.unusable_count + sum(table.left_out_counts.values())
    if table.event_count != counted:
        return f"{table.event_count} events, of which {counted} are read or counted as left out"
    whole = _events_in(file.read_bytes())
    if whole is not None and table.event_count != len(whole):
        return f"{table.event_count} events of {len(whole)} are counted"
    return ""


def _events_in(data: bytes) -> list[Any] | None:
    """Return the events of JSON that is whole and names them once."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    events = document.get("traceEvents") if isinstance(document, dict) else document
    return events if isinstance(events, list) and data.count(b'"traceEvents"') == 1 else None
