"""Collectives without a span are replayed; stretches that merely look alike are not taken for them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pytest

from tracelens import Trace
from tracelens.accounting import phases
from tracelens.arrays import Floats
from tracelens.replay.event_graph import EventGraph
from tracelens.verdicts.whatif import whatif

MS = 1_000_000
STEPS, RANKS, SLOW = 40, 4, 1
FORWARD, UPDATE = 20 * MS, 2 * MS


def forward_ns(seed: int, *, slow: float) -> Floats:
    """Draw how long each rank works in each step, [step, rank]; one rank takes `slow` times as long."""
    work = FORWARD * np.random.default_rng(seed).normal(1.0, 0.02, (STEPS, RANKS))
    work[:, SLOW] *= slow
    return np.rint(work)


def span(rank: int, start: float, end: float, **more: Any) -> dict[str, Any]:
    return {"rank": rank, "start_ns": round(start), "end_ns": round(end), **more}


def steps(
    work: Floats, *, together: int, covered: bool, message: bool = False
) -> Iterator[dict[str, Any]]:
    """Let groups of ranks end their update together, in a span or in uncovered time.

    All ranks meet in an all-reduce at the end of each step. With `message`, each rank has a message in
    flight while it waits.
    """
    begin_ns = 0.0
    for step, lasted in enumerate(work):
        ready = begin_ns + lasted
        first_of_group = np.arange(RANKS) // together * together
        ended = np.array([ready[at : at + together].max() for at in first_of_group]) + UPDATE
        over = ended.max() + MS
        for rank in range(RANKS):
            yield span(rank, begin_ns, over, kind="step", step=step)
            yield span(rank, begin_ns, ready[rank], kind="forward")
            if covered:
                yield span(rank, ready[rank], ended[rank], kind="update")
            if message:
                pair = {"kind": "reduction", "communicator": "pair", "seq": step, "thread": "io"}
                op = "send" if rank % 2 else "recv"
                yield span(rank, ready[rank], ended[rank], op=op, peer=rank ^ 1, **pair)
            for name, size in (("world", RANKS), (f"group {first_of_group[rank]}", together)):
                shared = {"kind": "reduction", "op": "allreduce", "communicator": name, "seq": step}
                start = ended[rank] if name == "world" else over - MS / 4
                end = over - MS / 2 if name == "world" else over
                if name == "world" or size < RANKS:
                    yield span(rank, start, end, **shared)
        begin_ns = over


def read(rows: Iterator[dict[str, Any]]) -> Trace:
    return Trace.from_table(pl.DataFrame(list(rows), infer_schema_length=None), one_clock=True)


def implicit_groups(trace: Trace) -> set[tuple[int, ...]]:
    """Return the ranks of each implicit collective."""
    graph = EventGraph.from_trace(trace, phases.run(trace))
    assert graph
    return {tuple(call.workers.tolist()) for call in graph.calls if call.communicator == "implicit"}


@pytest.mark.parametrize("covered", [True, False])
@pytest.mark.parametrize("together", [2, 4])
def test_a_hidden_wait_is_none_without_the_slow_rank(together: int, *, covered: bool) -> None:
    """In a span or in none, of all ranks or of a communicator's: what is saved is what came of it."""
    slow, alike = (forward_ns(1, slow=factor) for factor in (1.5, 1.0))
    trace = read(steps(slow, together=together, covered=covered))
    first = range(0, RANKS, together)
    assert implicit_groups(trace) == {tuple(range(at, at + together)) for at in first}
    result = whatif(trace, f"rank:{SLOW},phase:forward/1.5")
    assert result.identity.is_reliable
    lengths = [np.sum(work.max(axis=1) + UPDATE + MS) for work in (slow, alike)]
    assert result.answers[0].saving == pytest.approx(1 - lengths[1] / lengths[0], abs=0.005)


def test_ranks_that_end_apart_do_not_wait() -> None:
    """Each goes on by itself, to the all-reduce at the step's end, that was recorded."""
    trace = read(steps(forward_ns(2, slow=1.5), together=1, covered=True))
    assert implicit_groups(trace) == set()


@pytest.mark.parametrize("seed", range(3))
def test_a_rank_with_less_left_to_do_waits_for_nobody(seed: int) -> None:
    """Rank 0 has longer forward passes and as much shorter backprop: it ends with the others."""
    random = np.random.default_rng(seed)
    rows, begin_ns = [], 0.0
    for step in range(STEPS):
        forward = random.normal([2.0, 1.0], 0.03) * FORWARD
        ready = begin_ns + forward + random.normal([0.5, 1.5], 0.03) * FORWARD
        for rank in range(2):
            shared = {"kind": "reduction", "op": "allreduce", "communicator": "world", "seq": step}
            rows += [
                span(rank, begin_ns, ready.max() + MS, kind="step", step=step),
                span(rank, begin_ns, begin_ns + forward[rank], kind="forward"),
                span(rank, begin_ns + forward[rank], ready[rank], kind="backprop"),
                span(rank, ready[rank], ready.max() + MS, **shared),
            ]
        begin_ns = ready.max() + MS
    trace = read(iter(rows))
    assert implicit_groups(trace) == set()
    assert whatif(trace, "rank:0,phase:forward/2").answers[0].saving < 0.05


def test_ranks_that_begin_together_tell_nothing() -> None:
    """Equal work ends together without any wait."""
    equal = np.full((STEPS, RANKS), float(FORWARD))
    assert implicit_groups(read(steps(equal, together=4, covered=True))) == set()


def test_a_recorded_message_may_be_what_ends_a_stretch() -> None:
    rows = steps(forward_ns(3, slow=1.5), together=4, covered=True, message=True)
    assert implicit_groups(read(rows)) == set()
