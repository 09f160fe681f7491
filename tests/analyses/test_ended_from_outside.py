"""The verdict of a job that was ended from outside begins its scope with that, and names who did it."""

import polars as pl
import pytest
from support.runs.traces import span, trace_of

from tracelens.model.trace import ENDING_COLUMNS, Trace
from tracelens.schema.life import Ended, Entry, Exited, Launched, Signalled
from tracelens.verdicts.report import analyze

S = 1_000_000_000
EXITS = tuple(
    Exited(at_ns=10 * S, rank=rank, host="host", pid=100 + rank, incarnation=1, code=-15)
    for rank in range(3)
)


def ended_trace(*journal: Entry) -> Trace:
    """Return a job of three ranks that got SIGTERM in their ninth step."""
    trace = trace_of(
        [
            span(rank, "step", (1 + step) * S, (2 + step) * S, step=step)
            for rank in range(3)
            for step in range(8)
        ],
        3,
        clocks=[
            {"process": rank, "method": "local", "monotonic_ns": 0, "wall_ns": 0}
            for rank in range(3)
        ],
        complete=[False] * 3,
        child=[False] * 3,
        incarnation=[1] * 3,
        first_ns=[S] * 3,
        last_ns=[9 * S] * 3,
    )
    rows = [
        {"process": rank, "at_ns": 10 * S, "cause": "SIGTERM", "message": "", "frames": []}
        for rank in range(3)
    ]
    return trace.with_(endings=pl.DataFrame(rows, schema=ENDING_COLUMNS), journal=journal)


@pytest.mark.parametrize(
    ("journal", "order"),
    [
        ((Launched(1), *EXITS, Ended(11 * S, 1)), "by whom is not known"),
        (
            (Launched(1, command="torchrun"), *EXITS, Ended(11 * S, 124)),
            "torchrun ended with exit code 124, as `timeout` does",
        ),
        (
            (Launched(1), Signalled(9 * S, "SIGINT", is_key=True), *EXITS, Ended(11 * S, 1)),
            "Ctrl-C in the terminal of `record`",
        ),
    ],
)
def test_scope_begins_with_the_end(journal: tuple[Entry, ...], order: str) -> None:
    scope = analyze(ended_trace(*journal)).verdict.scope
    assert scope.startswith(f"Ended from outside (SIGTERM of all ranks): {order}. 3 ranks, ")
