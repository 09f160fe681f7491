"""Jobs of three ranks that ended in some way: what the ranks noted, and what `record` saw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl
from support.runs.traces import span, trace_of

from tracelens.model.trace import ENDING_COLUMNS
from tracelens.schema.life import Ended, Exited

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens.model.trace import Trace

S: Final = 1_000_000_000
RANKS: Final = range(3)
CLOSED: Final = ("RuntimeError", "[pair.cc:553] Connection closed by peer [127.0.0.1]")


def ended_job(
    endings: dict[int, tuple[float, str, str]],
    codes: dict[int, tuple[float, int]] | None = None,
    *,
    rows: Iterable[dict[str, Any]] | None = None,
    complete: tuple[int, ...] = (),
    launcher_code: int | None = None,
) -> Trace:
    """Return a job whose ranks made one step of 8 s, or what `rows` say.

    Args:
        endings: What ranks noted: seconds, cause, message.
        codes: What `record` saw: seconds and exit code, negative for a signal.
        rows: Spans of all ranks.
        complete: Ranks whose recordings ended well.
        launcher_code: With what the command ended.
    """
    trace = trace_of(
        [span(rank, "step", S, 9 * S, step=0) for rank in RANKS] if rows is None else rows,
        3,
        clocks=[
            {"process": rank, "method": "local", "monotonic_ns": 0, "wall_ns": 0} for rank in RANKS
        ],
        complete=[rank in complete for rank in RANKS],
        child=[False] * 3,
        incarnation=[1] * 3,
        first_ns=[S] * 3,
        last_ns=[9 * S] * 3,
    )
    notes: list[dict[str, Any]] = [
        {"process": rank, "at_ns": int(at_s * S), "cause": cause, "message": message, "frames": []}
        for rank, (at_s, cause, message) in endings.items()
    ]
    journal: list[Exited | Ended] = [
        Exited(
            at_ns=int(at_s * S), rank=rank, host="host", pid=100 + rank, incarnation=1, code=code
        )
        for rank, (at_s, code) in (codes or {}).items()
    ]
    if launcher_code is not None:
        journal.append(Ended(max(entry.at_ns for entry in journal) + S, launcher_code))
    return trace.with_(endings=pl.DataFrame(notes, schema=ENDING_COLUMNS), journal=tuple(journal))
