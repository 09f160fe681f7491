"""One line into which two threads wrote costs one operation, not the loss that is found."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import tracelens as tl

STEPS = 60
TENSORS = 4
LATE_US = 9_000  # how late rank 2 is for each tensor
STEP_US = 20_000 + TENSORS * (LATE_US + 900)


@cache
def lines() -> tuple[str, ...]:
    """Return a timeline of three ranks that wait for each operation before they go on."""
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": number, "args": {"name": f"layer{number}"}}
        for number in range(TENSORS)
    ]
    now_us = 1_000
    for _ in range(STEPS):
        now_us += 20_000
        for number in range(TENSORS):
            arrival_us = now_us + LATE_US
            where = {"pid": number}
            events += [
                {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": now_us, **where},
                *(
                    {
                        "ph": "X",
                        "name": str(rank),
                        "ts": now_us + LATE_US * (rank == 2),
                        "dur": 0,
                        **where,
                    }
                    for rank in range(3)
                ),
                {"ph": "E", "ts": arrival_us + 50, **where},
                {"ph": "B", "name": "ALLREDUCE", "ts": arrival_us + 60, **where},
                {"ph": "E", "ts": arrival_us + 820, **where},
            ]
            now_us = arrival_us + 900
    return tuple(map(json.dumps, events))


def stated_saving(path: Path, written: Sequence[str]) -> float:
    """Return the stated saving of making rank 2 as fast as the others."""
    path.write_text("[\n" + ",\n".join(written))
    finding = next(one for one in tl.analyze(tl.open(path)).findings if one.kind == "straggler")
    assert finding.ranks == (2,)
    return finding.saving or 0.0


def test_all_waits_count_where_ranks_wait_for_each_operation(tmp_path: Path) -> None:
    assert stated_saving(tmp_path / "t.json", lines()) == pytest.approx(
        TENSORS * LATE_US / STEP_US, rel=0.05
    )


@pytest.mark.parametrize("event", range(7))  # begins, marks and ends of an operation
def test_a_torn_line_costs_one_operation(tmp_path: Path, event: int) -> None:
    written = list(lines())
    at = TENSORS + 7 * (STEPS // 2 * TENSORS + 1) + event
    written[at] = written[at][:12] + '{"ph": "E", "ts"' + written[at][12:]
    assert stated_saving(tmp_path / "t.json", written) == pytest.approx(
        TENSORS * LATE_US / STEP_US, rel=0.05
    )
