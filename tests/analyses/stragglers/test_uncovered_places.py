"""Time that no span covers lies between phases; communication that is of one is not between them."""

import pytest
from support.runs.traces import call, span, trace_of

import tracelens as tl
from tracelens.load import prepare
from tracelens.model.trace import Trace

MS, US = 10**6, 10**3
STEPS, RANKS, DELAY_MS = 40, 3, 20


def _run(*, in_flight: bool) -> Trace:
    """Let rank 1 be late between a reduction and the update.

    The reduction begins during backprop and is waited for at its end, or begins as a call after it.
    """
    rows, begin_ns = [], 0
    for step in range(STEPS):
        end_ns = begin_ns + (40 + DELAY_MS) * MS
        for rank in range(RANKS):
            computed_ns, reduced_ns = begin_ns + 20 * MS, begin_ns + 24 * MS
            late = reduced_ns + (DELAY_MS if rank == 1 else 0) * MS
            asked_ns = computed_ns - 5 * MS if in_flight else computed_ns + 50 * US
            where = {} if in_flight else {"thread": 0, "depth": 1}
            rows += [
                span(rank, "step", begin_ns, end_ns, step=step),
                span(rank, "backprop", begin_ns, computed_ns, step=step, depth=1),
                call(rank, step, asked_ns, reduced_ns, step=step, **where),
                span(rank, "update", late, late + 5 * MS, step=step, depth=1),
                call(rank, STEPS + step, late + 5 * MS, end_ns, step=step, thread=0, depth=1),
            ]
            if in_flight:
                rows.append(span(rank, "wait", computed_ns, reduced_ns, step=step, depth=1))
        begin_ns = end_ns
    return prepare(trace_of(rows, RANKS))


@pytest.mark.parametrize(
    ("in_flight", "before", "words"),
    [
        (True, "backprop", "between backprop and optimizer update"),
        (False, "transfer", "between communication and optimizer update"),
    ],
)
def test_what_was_in_flight_when_a_phase_ended_is_of_it(
    in_flight: bool,  # noqa: FBT001
    before: str,
    words: str,
) -> None:
    """DDP waits for reductions that began in backprop; a call of its own is communication."""
    finding = tl.analyze(_run(in_flight=in_flight)).findings[0]
    assert (finding.kind, finding.ranks, finding.phase) == ("straggler", (1,), "uninstrumented")
    assert (finding.evidence["place"]["before"], finding.evidence["place"]["after"]) == (
        before,
        "update",
    )
    assert f"No span covers it, {words}" in finding.sentence
