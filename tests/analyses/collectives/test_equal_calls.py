"""Many calls of one size are judged by what else the trace shows of their ranks, or not at all."""

from collections.abc import Sequence
from random import Random
from typing import Any, Final

import polars as pl
import pytest

import tracelens as tl
from tracelens import Trace
from tracelens.model.findings import Finding
from tracelens.model.result import Report

US: Final = 1_000
STEPS: Final = 60
CALLS: Final = 20
NBYTES: Final = 25_000
LATENCY_US: Final = 150.0
NS_PER_BYTE: Final = 1.0


class Run:
    """Ranks that compute for 9 ms, and then reduce gradients of one size in single calls."""

    def __init__(self, ranks: int, *, phases: bool = True, on_a_track: bool = False) -> None:
        self.ranks, self.phases, self.on_a_track = ranks, phases, on_a_track
        self.rows: list[dict[str, Any]] = []
        self.now, self.numbers, self.luck = 1_000_000 * US, dict[str, int](), Random(5)

    def add(self, kind: str, length_us: float, step: int | None, **more: Any) -> None:
        """Let each rank work for its duration."""
        length = int(length_us * US * self.luck.gauss(1, 0.03))
        about = {"kind": kind, "start_ns": self.now, "end_ns": self.now + length, "step": step}
        for rank in range(self.ranks):
            row = {"host": "a", "rank": rank, "thread": "main"} | about | more
            self.rows.append(row)
            if "op" in more and self.on_a_track:
                self.rows[-1] = row | {"thread": "collectives"}
                self.rows.append(
                    {"host": "a", "rank": rank, "thread": "main", **about, "kind": "wait"}
                )
        self.now += length

    def call(self, op: str, nbytes: int, step: int | None, name: str = "w") -> None:
        """All ranks make a call, which takes its latency and what its bytes need."""
        number = self.numbers[name] = self.numbers.get(name, -1) + 1
        about: dict[str, Any] = {"op": op, "seq": number, "communicator": name}
        if nbytes:
            about["bytes"] = nbytes
        lasts_us = LATENCY_US * (0.6 if op == "barrier" else 1.0) + nbytes * NS_PER_BYTE / 1_000
        self.add("reduction", lasts_us, step, **about)

    def step(self, number: int, calls: int = CALLS, nbytes: int = NBYTES) -> None:
        if self.phases:
            self.add("forward", 3_000, number)
            self.add("backprop", 6_000, number)
        else:
            self.now += int(9_000 * US * self.luck.gauss(1, 0.03))
        for _ in range(calls):
            self.call("allreduce", nbytes, number)
            self.now += 5 * US

    def analyze(self) -> Report:
        return tl.analyze(Trace.from_table(pl.DataFrame(self.rows, infer_schema_length=None)))


def small(report: Report) -> Sequence[Finding]:
    return [one for one in report.findings if one.kind == "small_messages"]


LAYOUTS: Final = {
    "torch.distributed": {"on_a_track": True},
    "table": {},
    "MPI": {"phases": False},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_one_larger_call_bounds_what_bytes_need(ranks: int, layout: str) -> None:
    """Such as the weights that are sent before training: 4 MB there say what 25 KB need at most."""
    run = Run(ranks, **LAYOUTS[layout])
    run.call("broadcast", 4_000_000, None)
    for step in range(STEPS):
        run.step(step)
    report = run.analyze()
    (finding,) = small(report)
    assert 0.5 * LATENCY_US * US < finding.evidence["latency_ns"] < 1.03 * LATENCY_US * US
    step_us = 9_000 + CALLS * (LATENCY_US + NBYTES * NS_PER_BYTE / 1_000 + 5)
    assert finding.saving is not None
    assert finding.saving <= (CALLS - 1) * LATENCY_US / step_us
    assert finding.saving >= 0.5 * (CALLS - 1) * LATENCY_US / step_us
    assert "up to" in finding.sentence
    assert report.verdict.headline.startswith("BOUND BY communication")


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_barrier_bounds_the_latency(ranks: int) -> None:
    """It carries no bytes, and a reduction takes no less."""
    run = Run(ranks)
    for step in range(STEPS):
        run.step(step)
        run.call("barrier", 0, step)
    (found,) = small(run.analyze())
    assert found.evidence["latency_ns"] == pytest.approx(0.6 * LATENCY_US * US, rel=0.1)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_without_evidence_it_is_not_known(ranks: int) -> None:
    run = Run(ranks, phases=False)
    for step in range(STEPS):
        run.step(step)
    report = run.analyze()
    assert small(report) == []
    assert report.verdict.headline.startswith("BOUND BY communication: 28 %")
    (found,) = report.findings
    assert "latency and bandwidth cannot be separated" in found.sentence


def test_other_ranks_are_no_evidence() -> None:
    """What two ranks of a host reach says nothing of calls between all of four."""
    run = Run(4)
    for step in range(STEPS):
        run.step(step)
    passes = [row for row in run.rows if row["kind"] == "backprop" and row["rank"] < 2]
    for number, row in enumerate(passes):
        about = {"op": "allreduce", "communicator": "pair", "seq": number // 2, "bytes": 4_000_000}
        at = {"start_ns": row["start_ns"], "end_ns": row["start_ns"] + 40 * US, "thread": "pairs"}
        run.rows.append(row | about | at | {"kind": "reduction"})
    assert small(run.analyze()) == []


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_large_equal_calls_stay_bandwidth_bound(ranks: int) -> None:
    """A barrier bounds their latency, too, and that is little of them."""
    run = Run(ranks)
    for step in range(STEPS):
        run.step(step, calls=4, nbytes=4_000_000)
        run.call("barrier", 0, step)
    report = run.analyze()
    assert small(report) == []
    assert "fewer calls or lower latency" not in " ".join(one.sentence for one in report.findings)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_busy_machine_hides_no_latency(ranks: int) -> None:
    """Every other call takes ten times as long: the share of latency is that of the others."""
    run = Run(ranks)
    for step in range(STEPS):
        run.add("forward", 3_000, step)
        run.add("backprop", 6_000, step)
        for index in range(CALLS):
            run.call("allreduce", (2_000, 20_000)[index % 2], step)
            if index % 5 < 2:
                for row in run.rows[-ranks:]:
                    row["end_ns"] += 10 * int(LATENCY_US) * US
                run.now += 10 * int(LATENCY_US) * US
    (found,) = small(run.analyze())
    truth = 2 * LATENCY_US / (2 * LATENCY_US + 22_000 * NS_PER_BYTE / 1_000)
    assert found.evidence["latency_share"] == pytest.approx(truth, rel=0.1)
