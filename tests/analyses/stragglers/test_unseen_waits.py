"""The cost of a straggler in a run without recorded waits: with its evidence, or not claimed."""

import random
from typing import Any

import pytest
from support.runs.analysed import faults
from support.runs.traces import call, span, trace_of

from tracelens.load import prepare
from tracelens.model.findings import Finding
from tracelens.verdicts.report import analyze

MS = 1_000_000
RANKS, STEPS, LATE = 4, 40, 1
WORK_MS, DELAY_MS, WIRE_MS = 15.0, 8.0, 1.0


def communication(visibility: str, rank: int, step: int, start: int, end: int) -> dict[str, Any]:
    """Write the exchange of a rank in a step, by what is known of it."""
    if visibility == "matched":
        return call(rank, step, start, end, thread=0, step=step)
    if visibility == "a server":
        return span(rank, "ps", start, end, "pull", op="pull", step=step)
    if visibility == "unmatched":
        return span(rank, "reduction", start, end, "reduce", op="allreduce", step=step)
    return span(rank, "user", start, end, "something", step=step)


def straggler(visibility: str, *, meet: bool = True) -> Finding:
    """Analyze a run with a late rank, for which the others wait in their exchange if they `meet`."""
    noise = random.Random(3)
    now_ns, rows = [0] * RANKS, []
    for step in range(STEPS):
        begin_ns, arrival_ns = list(now_ns), []
        for rank in range(RANKS):
            worked = WORK_MS + noise.gauss(0, 0.2) + DELAY_MS * (rank == LATE)
            arrival_ns.append(now_ns[rank] + int(worked * MS))
            rows.append(span(rank, "backprop", now_ns[rank], arrival_ns[rank], step=step))
        for rank in range(RANKS):
            left_ns = (max(arrival_ns) if meet else arrival_ns[rank]) + int(WIRE_MS * MS)
            rows.append(communication(visibility, rank, step, arrival_ns[rank], left_ns))
            now_ns[rank] = left_ns + 2 * MS
            rows.append(span(rank, "update", left_ns, now_ns[rank], step=step))
            rows.append(span(rank, "step", begin_ns[rank], now_ns[rank], step=step))
    ordered = sorted(rows, key=lambda row: (row["process"], row["start_ns"], -row["end_ns"]))
    (found,) = faults(analyze(prepare(trace_of(ordered, RANKS))))
    assert (found.kind, found.ranks) == ("straggler", (LATE,))
    return found


def test_waits_that_were_seen_are_told() -> None:
    """Matched calls show the waiting ranks and their waits."""
    finding = straggler("matched")
    assert "; 3 ranks wait for it." in finding.sentence
    assert finding.saving == pytest.approx(DELAY_MS / 26, rel=0.05)
    assert finding.cost == pytest.approx(3 / 4 * DELAY_MS / 26, rel=0.05)


@pytest.mark.parametrize("how", ["unmatched", "a server"])
def test_waits_within_communication_are_what_the_others_communicate_longer(how: str) -> None:
    """That ranks meet is seen, for how long they wait is not; nothing says that no rank waits."""
    finding = straggler(how)
    assert "no rank" not in finding.sentence
    assert "; 3 ranks communicate longer meanwhile (waits not recorded)." in finding.sentence
    assert finding.saving == pytest.approx(DELAY_MS / 26, rel=0.05)
    assert finding.cost is None


def test_who_is_not_waited_for_ends_last() -> None:
    """Ranks that never meet are later and later: what is saved is the end of the last one."""
    found = straggler("unmatched", meet=False)
    assert "; no rank was seen waiting for it, but it ends last." in found.sentence
    assert found.saving == pytest.approx(DELAY_MS / 26, rel=0.05)


def test_a_meeting_that_no_span_shows_is_inferred() -> None:
    """Ranks that begin something apart, and end it together in each step, wait for each other in it."""
    finding = straggler("something else")
    shown = "; the others wait for it in a collective that no span shows (inferred)."
    assert shown in finding.sentence
    assert finding.saving == pytest.approx(DELAY_MS / 26, rel=0.05)
    assert finding.cost is None
