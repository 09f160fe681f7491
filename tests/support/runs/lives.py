"""Hand-written lives of jobs that failed and were started again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl
from support.runs.traces import span, trace_of

from tracelens.model.trace import ENDING_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Collection

    from tracelens.model.trace import Trace

MS: Final = 1_000_000
S: Final = 1000 * MS
WALL_BEGIN_NS: Final = 1_700_000_000 * S  # when the monotonic clock showed 0


def write_restarted(
    *exceptions: tuple[str, str] | None,
    worlds: tuple[int, ...],
    failed_starts: Collection[int] = (),
) -> Trace:
    """Return attempts of 10 steps each, numbered on, which failed in the step after (None: none).

    Those of `failed_starts`, from 0, recorded no events; all of their ranks note the exception.
    """
    last_attempt = max({*range(len(worlds))} - {*failed_starts})
    rows: list[dict[str, Any]] = []
    columns: dict[str, Any] = {}
    clocks: list[dict[str, Any]] = []
    endings: list[dict[str, Any]] = []
    for attempt, (exception, world) in enumerate(zip(exceptions, worlds, strict=True)):
        begin_ns = (1 + 20 * attempt) * S
        for rank in range(world):
            process, failed_ns = len(clocks), begin_ns + 10 * S + (world - rank) * MS
            has_steps = attempt not in failed_starts
            steps = range(10 * attempt, 10 * attempt + 10 * has_steps)
            rows += [
                span(process, "step", begin_ns + i * S, begin_ns + (i + 1) * S, step=step)
                for i, step in enumerate(steps)
            ]
            if exception:
                if has_steps:
                    rows.append(span(process, "step", begin_ns + 10 * S, None, step=steps[-1] + 1))
                cause, message = exception
                is_noted_by_all = cause == "SIGTERM" or message == "all" or not has_steps
                if is_noted_by_all or rank == world - 1:
                    endings.append(
                        {
                            "process": process,
                            "at_ns": failed_ns,
                            "cause": cause,
                            "message": message,
                            "user_frame": "<module> (train.py:9)",
                            "frames": [],
                        }
                    )
            clocks.append(
                {
                    "process": process,
                    "method": "local",
                    "monotonic_ns": failed_ns,
                    "wall_ns": WALL_BEGIN_NS + failed_ns,
                }
            )
            values = {
                "rank": rank,
                "world": world,
                "main": attempt == last_attempt,
                "complete": exception is None,
                "child": False,
                "first_ns": begin_ns,
                "last_ns": failed_ns,
                "pid": 100 + process,
                "incarnation": WALL_BEGIN_NS + begin_ns,
            }
            for name, value in values.items():
                columns.setdefault(name, []).append(value)
    trace = trace_of(rows, len(clocks), clocks=clocks, **columns)
    return trace.with_(endings=pl.DataFrame(endings, schema=ENDING_COLUMNS))
