"""The cost of congestion is its true cost, at any time, for any rank and any strength."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any, Final

import polars as pl
import pytest
from support.runs.traces import WORLD, call, span, trace_of
from support.tiers import mark_slow

from tracelens.load import prepare
from tracelens.model.findings import Finding
from tracelens.model.trace import COMMUNICATOR_COLUMNS, Trace
from tracelens.verdicts.report import analyze

MS: Final = 1_000_000
ALL: Final = tuple(range(8))
HALVES: Final = {"first": ALL[:4], "second": ALL[4:]}
STEPS: Final = 120


@dataclass(frozen=True)
class Network:
    """How many times as long the transfers of some groups take in some steps, and what they carry."""

    groups: dict[str, tuple[int, ...]] = field(default_factory=lambda: {"all": ALL})
    slow: tuple[str, ...] = ("all",)
    factors: tuple[float, ...] = (1.0,) * STEPS
    sizes: tuple[float, ...] = (1.0,) * STEPS

    def healthy(self) -> Network:
        """Return it without what is slow."""
        return replace(self, factors=(1.0,) * STEPS)

    def trace(self) -> tuple[Trace, int]:
        """Let groups reduce on their training threads, then all ranks; and how long that took."""
        noise = random.Random(5)
        now_ns, rows = dict.fromkeys(ALL, 0), []
        for step in range(STEPS):
            begin_ns = dict(now_ns)
            for rank in ALL:
                worked = now_ns[rank] + int(80 * noise.lognormvariate(0, 0.02) * MS)
                rows.append(span(rank, "backprop", now_ns[rank], worked, step=step))
                now_ns[rank] = worked
            for name, members in self.groups.items():
                wire = 6 * noise.lognormvariate(0, 0.05) * self.sizes[step]
                wire *= self.factors[step] if name in self.slow else 1.0
                size = int((1 << 24) * self.sizes[step])
                self._reduce(rows, name, step, (now_ns, members), (wire, size))
            self._reduce(rows, WORLD, step, (now_ns, ALL), (1.0, 8))
            for rank in ALL:
                rows.append(span(rank, "update", now_ns[rank], now_ns[rank] + 10 * MS, step=step))
                now_ns[rank] += 10 * MS
                rows.append(span(rank, "step", begin_ns[rank], now_ns[rank], step=step))
        ordered = sorted(rows, key=lambda row: (row["process"], row["start_ns"], -row["end_ns"]))
        group_rows = [{"communicator": WORLD, "name": "world", "ranks": ALL}] + [
            {"communicator": name, "name": name, "ranks": ranks}
            for name, ranks in self.groups.items()
        ]
        communicators = pl.DataFrame(group_rows, schema=COMMUNICATOR_COLUMNS)
        found = replace(trace_of(ordered, len(ALL)), communicators=communicators)
        return prepare(found), max(now_ns.values())

    @staticmethod
    def _reduce(
        rows: list[dict[str, Any]],
        name: str,
        step: int,
        clocks_and_members: tuple[dict[int, int], tuple[int, ...]],
        duration_and_size: tuple[float, int],
    ) -> None:
        (now_ns, members), (wire_ms, size) = clocks_and_members, duration_and_size
        end = max(now_ns[rank] for rank in members) + int(wire_ms * MS)
        for rank in members:
            fields = {"communicator": name, "bytes": size, "thread": 0, "step": step}
            rows.append(call(rank, step, now_ns[rank], end, **fields))
            now_ns[rank] = end


def windows(*edges: tuple[int, int], factor: float = 8.0) -> tuple[float, ...]:
    """Return the factor of each step: 1 outside of some."""
    inside = {step for first, last in edges for step in range(first, last + 1)}
    return tuple(factor if step in inside else 1.0 for step in range(STEPS))


def varying_factors(spread: float) -> tuple[float, ...]:
    """Return factors that vary from step to step in one window."""
    noise = random.Random(7)
    return tuple(8 * noise.lognormvariate(0, spread) if 40 <= s < 80 else 1.0 for s in range(STEPS))


def growing_factors() -> tuple[float, ...]:
    """Return factors that grow to the window's end."""
    return tuple(1 + 10 * (s - 39) / 40 if 40 <= s < 80 else 1.0 for s in range(STEPS))


QUICK: Final = ("half of the ranks", "two episodes", "varying strength")
NETWORKS: Final = {
    "all ranks": Network(factors=windows((40, 79))),
    "half of the ranks": Network(HALVES, ("first",), windows((40, 79))),
    "both halves": Network(HALVES, ("first", "second"), windows((40, 79))),
    "two episodes": Network(factors=windows((20, 39), (70, 95))),
    "varying strength": Network(factors=varying_factors(0.6)),
    "growing strength": Network(factors=growing_factors()),
    "mostly congested": Network(factors=windows((25, STEPS - 1))),
    "sizes of every step": Network(
        factors=windows((40, 79)),
        sizes=tuple(0.5 + 1.5 * (s * 37 % 101) / 101 for s in range(STEPS)),
    ),
}


def congestion(network: Network) -> Finding:
    """Return the one fault that is found."""
    (found,) = (one for one in analyze(network.trace()[0]).findings if one.category == "fault")
    assert found.kind == "congestion"
    return found


@pytest.mark.parametrize("name", mark_slow(NETWORKS, QUICK))
def test_the_interval_holds_the_truth(name: str) -> None:
    """What the job is shorter by without congestion is within the interval, which has a width."""
    network = NETWORKS[name]
    truth = 1 - network.healthy().trace()[1] / network.trace()[1]
    finding = congestion(network)
    assert finding.saving == pytest.approx(truth, rel=0.05)
    assert finding.interval is not None
    assert finding.interval[0] <= truth <= finding.interval[1]
    assert 0.01 * truth < finding.interval[1] - finding.interval[0] < truth


def test_whose_transfers_are_slow_is_told() -> None:
    """Groups that are as fast as ever are not blamed."""
    finding = congestion(NETWORKS["half of the ranks"])
    assert finding.ranks == HALVES["first"]
    assert finding.sentence.startswith("Transfers are slow for ranks 0, 1, 2 and 3, steps 40")
    assert finding.slowdown == pytest.approx(8.0, rel=0.1)
    assert congestion(NETWORKS["both halves"]).ranks == ()


def test_episodes_are_told() -> None:
    """Steps between two episodes are not among those that are slow."""
    finding = congestion(NETWORKS["two episodes"])
    assert finding.evidence["episodes"] == [[20, 39], [70, 95]]
    assert finding.evidence["steps_slow"] == 46
    assert finding.pattern == "sparse"
    assert "46 of steps 20\N{EN DASH}95 (in 2 episodes)" in finding.sentence
