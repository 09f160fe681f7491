"""Ranks exchange messages of their own: slow links are named, and priced as the run without them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np
import polars as pl
import pytest

import tracelens as tl
from tracelens.model.findings import Finding
from tracelens.model.result import Report

MS: Final = 1_000_000
STEPS: Final = 80
SEND_NS: Final = 10_000  # a buffered send, and a call that waits for nothing
LATENCY_NS: Final = 150_000
BYTES_PER_NS: Final = 8.0
Message: TypeAlias = tuple[int, int, int]  # sender, receiver, bytes


@dataclass(eq=False)
class Exchange:
    """Ranks compute and then exchange messages; those over `slow` links take 12 times as long.

    `end_calls` is one of the functions below: when calls of a step end, [message, side].
    """

    ranks: int
    messages: list[Message]
    end_calls: Callable[..., np.ndarray[Any, Any]]
    slow: tuple[tuple[int, int], ...] = ()
    steps: range = range(STEPS)
    straggler: int | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)

    def execute(self) -> int:
        """Simulate the run, add its rows, and return how long it takes, ns."""
        random, now_ns = np.random.default_rng(7), np.zeros(self.ranks)
        for step in range(STEPS):
            for kind, mean_ns in (("forward", 3 * MS), ("backward", 6 * MS)):
                work_ns = mean_ns * (1 + 0.04 * random.standard_normal(self.ranks))
                if self.straggler is not None:
                    work_ns[self.straggler] += 2 * MS
                for rank in range(self.ranks):
                    self._record(rank, step, now_ns[rank], now_ns[rank] + work_ns[rank], kind=kind)
                now_ns = now_ns + work_ns
            takes_ns = np.array([self._measure(message, step) for message in self.messages])
            takes_ns *= 1 + 0.05 * random.standard_normal(len(takes_ns))
            begins, ends = self.end_calls(self.messages, now_ns, takes_ns)
            for number, (sender, receiver, nbytes) in enumerate(self.messages):
                cells: dict[str, Any] = {"bytes": nbytes, "communicator": "world", "seq": step}
                for side, op, rank, peer in (
                    (0, "send", sender, receiver),
                    (1, "recv", receiver, sender),
                ):
                    times = begins[number, side], ends[number, side]
                    self._record(rank, step, *times, op=op, peer=peer, **cells)
                    now_ns[rank] = max(now_ns[rank], times[1])
        return int(now_ns.max())

    def _measure(self, message: Message, step: int) -> float:
        is_slow = message[:2] in self.slow and step in self.steps
        return (LATENCY_NS + message[2] / BYTES_PER_NS) * (12 if is_slow else 1)

    def _record(self, rank: int, step: int, begin: float, end: float, **cells: Any) -> None:
        times = {"start_ns": MS + round(begin), "end_ns": MS + round(end)}
        self.rows.append({"rank": rank, "host": "a", "step": step} | times | cells)


def wait_for_each(messages: list[Message], now: Any, takes_ns: Any) -> Any:
    """Buffered sends, then one receive after the other."""
    clock, begins, ends = now.copy(), np.zeros((len(messages), 2)), np.zeros((len(messages), 2))
    for number, (sender, _, _) in enumerate(messages):
        begins[number, 0] = clock[sender]
        ends[number, 0] = clock[sender] = clock[sender] + SEND_NS
    for number, (_, receiver, _) in enumerate(messages):
        begins[number, 1] = clock[receiver]
        arrival = begins[number, 0] + takes_ns[number]
        ends[number, 1] = clock[receiver] = max(clock[receiver] + SEND_NS, arrival)
    return begins, ends


def wait_for_all(
    messages: list[Message], now: Any, takes_ns: Any, *, buffered: bool = False
) -> Any:
    """One call sends and receives all; a send that is not buffered ends when it was received."""
    ends, sides = np.asarray(now + SEND_NS), np.array(messages)[:, :2]
    begins = now[sides]
    ready = begins[:, 0] if buffered else begins.max(axis=1)
    for side in (1,) if buffered else (0, 1):
        np.maximum.at(ends, sides[:, side], ready + takes_ns)
    return begins, ends[sides]


def wait_for_all_received(*arguments: Any) -> Any:
    return wait_for_all(*arguments, buffered=True)


def make_ring(ranks: int, *sizes: int) -> list[Message]:
    return [(rank, (rank + 1) % ranks, sizes[rank % len(sizes)] * MS) for rank in range(ranks)]


def make_halo(side: int) -> list[Message]:
    """Ranks of a square exchange borders with their four neighbours."""
    positions = [(x, y) for y in range(side) for x in range(side)]
    around = ((1, 0), (-1, 0), (0, 1), (0, -1))
    return [
        (x + side * y, (x + dx) % side + (y + dy) % side * side, (2 if dx else 1) * MS)
        for x, y in positions
        for dx, dy in around
    ]


def analyze(exchange: Exchange) -> Report:
    exchange.execute()
    return tl.analyze(tl.Trace.from_table(pl.DataFrame(exchange.rows, infer_schema_length=None)))


def find_faults(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.category == "fault"]


LINKS_OF_RANK_1: Final = ((0, 1), (1, 2))


@pytest.mark.parametrize(
    ("exchange", "ranks"),
    [
        (Exchange(2, make_ring(2, 4), wait_for_each, ((0, 1),)), {0, 1}),
        (Exchange(2, make_ring(2, 4), wait_for_all_received, ((1, 0),)), {0, 1}),
        (Exchange(3, make_ring(3, 4), wait_for_each, LINKS_OF_RANK_1), {1}),
        (Exchange(4, make_ring(4, 4), wait_for_all, LINKS_OF_RANK_1), {1}),
        (Exchange(3, make_ring(3, 2, 4, 6), wait_for_each, ((1, 2),)), {1, 2}),
        (Exchange(8, make_ring(8, 2, 4), wait_for_all, ((6, 7),)), {6, 7}),
        (Exchange(8, make_ring(8, 4), wait_for_each, ((6, 7),), range(30, 60)), {6, 7}),
        (Exchange(9, make_halo(3), wait_for_each, ((4, 5), (5, 4))), {4, 5}),
    ],
    ids=[
        *("two", "two at once", "rank of three", "rank of four", "sizes", "at once", "for a while"),
        "halo",
    ],
)
def test_slow_links_are_named_and_priced(exchange: Exchange, ranks: set[int]) -> None:
    """The saving is what the run without the slow links takes less."""
    (finding,) = find_faults(analyze(exchange))
    truth = 1 - replace(exchange, slow=(), rows=[]).execute() / exchange.execute()
    assert (finding.kind, set(finding.ranks)) == ("slow_link", ranks)
    assert finding.saving == pytest.approx(truth, rel=0.15)


@pytest.mark.parametrize("end_calls", [wait_for_each, wait_for_all, wait_for_all_received])
def test_a_link_is_named_where_calls_wait_for_several(end_calls: Any) -> None:
    """At least its receiver is known."""
    (found,) = find_faults(analyze(Exchange(9, make_halo(3), end_calls, ((4, 5),))))
    assert found.kind == "slow_link"
    assert set(found.ranks) <= {4, 5}


@pytest.mark.parametrize("end_calls", [wait_for_each, wait_for_all, wait_for_all_received])
@pytest.mark.parametrize("messages", [make_ring(3, 4), make_ring(8, 2, 4, 6), make_halo(3)])
def test_a_straggler_is_no_slow_link(messages: list[Message], end_calls: Any) -> None:
    """Its neighbours wait for it. A healthy run has no fault at all."""
    healthy = Exchange(1 + max(max(message[:2]) for message in messages), messages, end_calls)
    assert find_faults(analyze(healthy)) == []
    report = analyze(replace(healthy, straggler=1, rows=[]))
    assert {(one.kind, one.ranks) for one in find_faults(report)} <= {("straggler", (1,))}
    assert "rank 1" in report.verdict.headline
