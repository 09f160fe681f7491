"""Asks the dashboard's application for windows of the timeline, as a browser does, and measures."""

from __future__ import annotations

import gzip
import json
import time
from typing import TYPE_CHECKING, NamedTuple

from support.web.callbacks import URL, request

from tracelens import load
from tracelens_dashboard.app.server import create_app
from tracelens_dashboard.runs.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Answer(NamedTuple):
    """How long an answer took by clock and processor, its bytes on the wire, and its level of detail."""

    ms: float
    cpu_ms: float
    sent: int
    level: str


def asker(store: Store, *opened: str) -> Callable[[int, int], Answer]:
    """Return what asks a run for a window in ns since its start, with some processes opened."""
    app = create_app(store)
    client = app.server.test_client()
    defaults = {
        "scheme.computedColorScheme": "light",
        "timeline-pins.value": ["1"],
        "timeline-opened.data": list(opened),
        "timeline-tall.data": 700,
        "timeline-wide.data": 1200,
    }

    def ask(begin: int, end: int) -> Answer:
        shown = defaults | {"timeline-view.data": {"t0": begin, "t1": end}}
        body = request(app, "timeline-change.data", shown)
        started, before = time.perf_counter(), time.thread_time()
        answer = client.post(URL, json=body, headers={"Accept-Encoding": "gzip"})
        ms, cpu_ms = (time.perf_counter() - started) * 1e3, (time.thread_time() - before) * 1e3
        assert answer.status_code == 200
        said = json.loads(gzip.decompress(answer.data))
        note = said["response"]["timeline-note"]["children"]
        return Answer(
            ms, cpu_ms, len(answer.data), note.split("view.")[1].split(".")[0].split(":")[0].strip()
        )

    return ask


def open_store(trace: Path) -> Store:
    """Open a trace by its index."""
    return Store.open(trace, lambda: load.open(trace))
