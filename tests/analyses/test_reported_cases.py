"""Kinds of trouble that users of other tools report in public, as small tables, and what is right.

Each was called HEALTHY, or blamed on something else, before the four verdicts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import polars as pl
import pytest

import tracelens as tl
from tracelens import Trace
from tracelens.model.result import Report

MS: Final = 10**6
STEPS: Final = 160


@dataclass
class Table:
    """Rows of a training whose ranks meet in one all-reduce a step, and then update for 0.4 ms."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    now: int = 1_000 * MS
    calls: int = 0

    def span(self, rank: int, begin: int, end: int, kind: str, **more: Any) -> None:
        row = {"rank": rank, "host": "a", "start_ns": begin, "end_ns": end, "kind": kind}
        self.rows.append(row | more)

    def call(self, begins: Sequence[int], end: int, op: str, step: int | None, nbytes: int) -> None:
        """All ranks make a call."""
        for rank, begin in enumerate(begins):
            about = {"op": op, "step": step, "seq": self.calls, "bytes": nbytes}
            self.span(rank, begin, end, "reduction", communicator="w", **about)
        self.calls += 1

    def step(self, number: int, work: Sequence[Sequence[tuple[str, float]]]) -> None:
        """Every rank does its work, phase by phase in ms, reduces, and updates; `gap` has no span."""
        ready = []
        for rank, phases in enumerate(work):
            begin_ns = self.now
            for phase, ms in phases:
                end_ns = begin_ns + int(ms * MS)
                if phase != "gap" and end_ns > begin_ns:
                    self.span(rank, begin_ns, end_ns, phase, step=number)
                begin_ns = end_ns
            ready.append(begin_ns)
        end_ns = max(ready) + 7 * MS // 10
        self.call(ready, end_ns, "allreduce", number, 4_000_000)
        for rank in range(len(work)):
            self.span(rank, end_ns, end_ns + 4 * MS // 10, "update", step=number)
        self.now = end_ns + 4 * MS // 10

    def analyze(self) -> Report:
        return tl.analyze(Trace.from_table(pl.DataFrame(self.rows, infer_schema_length=None)))


def few_ranks(kind: str, ranks: int) -> Report:
    """One kind of trouble in steps of about 10 ms, with 2 % of noise."""
    table, noise = Table(), Random(7)
    slow_steps = [set(Random(100 + rank).sample(range(5, 155), 8)) for rank in range(ranks)]
    for number in range(STEPS):
        work = []
        for rank in range(ranks):
            is_last = rank == ranks - 1
            scale = noise.uniform(0.4, 1.6) if kind == "lengths" else 1.0
            ms = {"data": 0.3, "forward": 3 * scale, "gc": 0.0, "backprop": 5 * scale}
            ms = {phase: spent * noise.gauss(1, 0.02) for phase, spent in ms.items()}
            ms["backprop"] += 1.5 * (kind == "constant" and is_last)
            ms["backprop"] += 2.0 * (kind == "blocks" and number // 20 % ranks == rank)
            ms["forward"] += 80.0 * (
                kind == "sparse" and is_last and number in {20, 47, 71, 90, 150}
            )
            ms["gc"] += 60.0 * (kind == "turns" and (number + 7 * rank) % 20 == 19)
            ms["data"] += 40.0 * (kind == "loader" and number in slow_steps[rank])
            work.append(list(ms.items()))
        table.step(number, work)
    return table.analyze()


RIGHT: Final = {
    "constant": "straggler",
    "sparse": "straggler",
    "blocks": "straggler",
    "turns": "gc_stall",
    "lengths": "load_imbalance",
    "loader": "data_stall",
}


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("kind", RIGHT)
def test_the_same_kind_is_found_at_every_number_of_ranks(kind: str, ranks: int) -> None:
    """Two and three ranks are most people's first run."""
    report = few_ranks(kind, ranks)
    assert report.verdict.state in {"fault", "bottleneck"}
    assert report.findings[0].kind == RIGHT[kind]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_the_same_run_without_trouble_is_healthy(ranks: int) -> None:
    report = few_ranks("none", ranks)
    assert (report.verdict.state, report.findings) == ("healthy", ())
    assert "Nothing to fix" in report.verdict.action


def test_code_without_a_span_on_all_ranks_is_the_headline() -> None:
    """As a moving average of the weights that is updated on all ranks: 60 % of each step."""
    table = Table()
    for number in range(STEPS):
        phases = [("gap", 13.0), ("forward", 3.0 + number % 7 / 50), ("backprop", 4.0)]
        table.step(number, [phases, phases])
    found = table.analyze().verdict
    assert found.headline.startswith("INCONCLUSIVE: 6")
    assert "between optimizer update and forward" in found.headline


@pytest.mark.parametrize("is_shared", [False, True], ids=["own lengths", "the same lengths"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_lengths_with_a_heavy_tail(ranks: int, is_shared: bool) -> None:  # noqa: FBT001 - drawn
    """Ranks with lengths of their own wait for the longest; where all have the same, none waits."""
    table = Table()
    draws = [Random(5 if is_shared else rank) for rank in range(ranks)]
    for number in range(150):
        tokens = [min(300 * draw.paretovariate(1.1), 8_000) for draw in draws]
        table.step(number, [[("forward", n * 0.008), ("backprop", n * 0.016)] for n in tokens])
    report = table.analyze()
    kinds = [one.kind for one in report.findings]
    assert (report.verdict.state, kinds) == (
        ("healthy", []) if is_shared else ("bottleneck", ["load_imbalance"])
    )


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("recorded", [None, "tokens", "samples"])
@pytest.mark.parametrize("course", ["grows", "doubles"])
def test_more_recorded_work_is_no_slowdown(ranks: int, recorded: str | None, course: str) -> None:
    """Forward takes longer with the length of sequences; backprop hardly does."""
    table = Table()
    for number in range(120):
        work = 1 + number / 60 if course == "grows" else 1 + (number >= 60)
        phases = [("forward", 8.0 * work), ("backprop", 4.0 + work / 10)]
        table.step(number, [phases] * ranks)
        for rank in range(ranks if recorded else 0):
            amount = {"type": "counter", "name": recorded, "value": 512.0 * work, "step": number}
            table.span(rank, table.now, table.now, "step", **amount)
    found = table.analyze().findings
    assert [one.kind for one in found] == ([] if recorded else ["slow_all"])


@pytest.mark.parametrize("pauses", [1, 3])
def test_few_long_pauses_of_all_ranks_are_weighed(pauses: int) -> None:
    """A pause of all ranks that takes a quarter of the job is told, whether once or in three parts."""
    table = Table()
    for number in range(STEPS):
        is_paused = number in [70, 100, 130][:pauses]
        ms = 600.0 / pauses if is_paused else 0.0
        phases = [("forward", 3.0 + number % 7 / 50), ("gc", ms), ("backprop", 5.0)]
        table.step(number, [phases, phases])
    report = table.analyze()
    assert (report.verdict.state, report.findings[0].kind) == ("fault", "gc_stall")
    assert report.findings[0].saving == pytest.approx(600 / (600 + 9.2 * STEPS), rel=0.05)


ADVICE_IF_UNEVEN: Final = "torch.distributed.algorithms.join"


def uneven(less: int, *, hangs: bool) -> Report:
    """Rank 1 has `less` batches less; then rank 0 hangs, or is within Join, where rank 1 shadows it."""
    table, both = Table(), [("forward", 3.0), ("backprop", 5.0)]
    for number in range(60 - less):
        table.step(number, [both, both])
    for number in range(60 - less, 60)[: 1 if hangs else None]:
        begin_ns = table.now + 8 * MS
        end_ns = begin_ns + (12_000 if hangs else 1) * MS
        table.span(0, begin_ns - 8 * MS, begin_ns - 5 * MS, "forward", step=number)
        table.span(0, begin_ns - 5 * MS, begin_ns, "backprop", step=number)
        for rank, op in enumerate(("allreduce", "barrier" if hangs else "allreduce")):
            about = {"op": op, "step": number, "seq": table.calls}
            table.span(rank, begin_ns, end_ns, "reduction", communicator="w", **about)
        table.now, table.calls = end_ns, table.calls + 1
    return table.analyze()


@pytest.mark.parametrize("fewer_steps", [1, 3])
def test_a_hang_after_uneven_inputs(fewer_steps: int) -> None:
    """Rank 1 is in the barrier at the end while rank 0 waits for gradients: advice is about inputs."""
    report = uneven(fewer_steps, hangs=True)
    found = report.findings[0]
    assert (report.verdict.kind, found.ranks) == ("desync", (1,))
    assert f"Rank 1 ended training after step {59 - fewer_steps}" in found.sentence
    assert ADVICE_IF_UNEVEN in report.verdict.action


def test_a_rank_that_shadows_the_others_had_fewer_batches() -> None:
    """Within Join nobody hangs and nobody left: no restart is advised."""
    report = uneven(10, hangs=False)
    assert [one.kind for one in report.findings if one.category == "fault"] == ["uneven_inputs"]
    assert report.findings[0].ranks == (1,)
    assert (
        "It took part in the others' collectives until then (Join)" in report.findings[0].sentence
    )
    assert "drop_last=True" in report.verdict.action
    assert ADVICE_IF_UNEVEN not in report.verdict.action
    assert "restart" not in report.verdict.action


def test_as_many_batches_on_all_ranks_are_no_uneven_inputs() -> None:
    assert uneven(0, hangs=True).findings == ()


@pytest.mark.parametrize("is_noisy", [False, True], ids=["quiet", "noisy"])
@pytest.mark.parametrize("gathers", [10, 60])
def test_a_loop_of_gathers_keeps_its_steps(gathers: int, is_noisy: bool) -> None:  # noqa: FBT001
    """Nothing marks steps, rank 1 works 15 ms instead of 10, and every 37th call may come 2 ms later."""
    table = Table()
    for _ in range(60):
        for number in range(gathers + 1):
            gap = 2 * MS if is_noisy and table.calls % 37 == 0 else MS // 50
            begins = [table.now + (ms * MS if number == 0 else gap) for ms in (10, 15)]
            table.now = max(begins) + MS // 10
            op = "barrier" if number == gathers else "all_gather"
            table.call(begins, table.now, op, None, 8)
    report = table.analyze()
    finding = report.findings[0]
    assert report.summary.steps == 59
    assert (finding.kind, finding.ranks) == ("straggler", (1,))
    assert finding.saving == pytest.approx(5 * 60 * MS / (table.now - 1_000 * MS), rel=0.06)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_plain_messages_that_take_most_of_the_time_bound_the_run(ranks: int) -> None:
    """As MPI programs are recorded: one all-reduce of 6 ms in each step of 10 ms, and no phases."""
    table = Table()
    for number in range(STEPS):
        ready = table.now + 4 * MS + number % 7 * MS // 50
        table.call([ready] * ranks, ready + 6 * MS, "allreduce", number, 40_000_000)
        table.now = ready + 6 * MS
    verdict = table.analyze().verdict
    assert verdict.state == "bottleneck"
    assert verdict.headline.startswith("BOUND BY communication: 5") or "60 %" in verdict.headline


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_all_ranks_that_become_slower_are_a_fault(ranks: int) -> None:
    """From step 60 on, forward takes 1.8 times as long on all ranks."""
    table = Table()
    for number in range(STEPS):
        phases = [("forward", (6.0 if number < 60 else 10.8) + number % 7 / 50), ("backprop", 2.0)]
        table.step(number, [phases] * ranks)
    report = table.analyze()
    found = report.findings[0]
    assert (report.verdict.state, found.kind, found.steps) == ("fault", "slow_all", (60, 159))


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("is_matched", [True, False], ids=["matched", "unmatched"])
def test_one_pause_of_eight_seconds_of_one_rank(ranks: int, is_matched: bool) -> None:  # noqa: FBT001
    """It is a fault also where calls have no number, and one row is missing."""
    table = Table()
    for number in range(STEPS):
        work = [[("forward", 40.0 + number % 7 / 5), ("backprop", 80.0)] for _ in range(ranks)]
        work[1].append(("gap", 8_000.0 * (number == 77)))
        table.step(number, work)
    if not is_matched:
        calls = [row for row in table.rows if row["kind"] == "reduction"]
        table.rows.remove(calls[5])
        for row in calls:
            row["seq"] = None
    report = table.analyze()
    assert report.verdict.state == "fault"
    assert (report.findings[0].ranks, report.findings[0].steps) == ((1,), (77, 77))


@pytest.mark.parametrize("ranks", [3, 8])
def test_two_levels_of_a_rank_are_one_finding(ranks: int) -> None:
    """Rank 2 takes twice as long until step 60, and 1.4 times as long ever after."""
    table = Table()
    for number in range(STEPS):
        factor = 2.0 if number < 60 else 1.4
        work = [[("forward", 4.0 + number % 7 / 50), ("backprop", 6.0)] for _ in range(ranks)]
        work[2] = [(phase, factor * ms) for phase, ms in work[2]]
        table.step(number, work)
    report = table.analyze()
    faults = [one for one in report.findings if one.category == "fault"]
    assert [(one.kind, one.ranks) for one in faults] == [("straggler", (2,))]
    lost = (60 * 10 + 100 * 4) * MS / (table.now - 1_000 * MS)
    assert faults[0].saving == pytest.approx(lost, rel=0.1)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_storage_that_is_late_for_one_rank_after_the_other(ranks: int) -> None:
    """Each rank waits 40 ms for data in every eighth step, and all the others wait for it."""
    table = Table()
    for number in range(STEPS):
        work = [[("data", 0.3), ("forward", 4.0), ("backprop", 6.0)] for _ in range(ranks)]
        work[number // 8 % ranks][0] = ("data", 40.0 if number % 8 == 0 else 0.3)
        table.step(number, work)
    report = table.analyze()
    found = report.findings[0]
    assert (report.verdict.state, found.kind, found.phase) == ("fault", "data_stall", "data")
    assert found.ranks == tuple(range(ranks))


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_another_rank_is_slow_in_each_step(ranks: int) -> None:
    """A rank that is drawn anew takes 1.6 times as long in each step: nobody is slow for long."""
    table, draw = Table(), Random(3)
    for number in range(STEPS):
        work = [[("forward", 4.0 + number % 7 / 50), ("backprop", 6.0)] for _ in range(ranks)]
        slow = draw.randrange(ranks)
        work[slow] = [("forward", 4.0), ("backprop", 12.0)]
        table.step(number, work)
    report = table.analyze()
    assert report.verdict.state in {"fault", "bottleneck"}
    assert "backprop" in f"{report.verdict.headline} {report.findings[:1]}"


@pytest.mark.parametrize("ranks", [4, 8, 64])
def test_half_of_the_ranks_are_slower(ranks: int) -> None:
    """As in a cluster of two kinds of machines: no majority is the norm."""
    table, draw = Table(), Random(4)
    for number in range(60):
        table.step(
            number,
            [
                [("forward", 4.0 + draw.random() / 5), ("backprop", 6.0 if rank % 2 else 12.0)]
                for rank in range(ranks)
            ],
        )
    report = table.analyze()
    found = report.findings[0]
    assert (report.verdict.state, found.phase) == ("fault", "backprop")
    assert found.ranks == tuple(range(0, ranks, 2))


def test_a_straggler_that_nobody_waits_for_is_no_verdict() -> None:
    """Rank 1 ends its forward later, and then waits as long as the others: it costs nothing."""
    table = Table()
    for number in range(STEPS):
        work = [[("forward", 4.0 + number % 7 / 50), ("backprop", 8.0)] for _ in range(4)]
        work[1] = [("forward", 6.0 + number % 7 / 50), ("backprop", 6.0)]
        table.step(number, work)
    assert table.analyze().verdict.state == "healthy"
