"""Late ranks are named while the job runs, and once."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from tracelens.schema.vocabulary import COLLECTIVES
from tracelens.watch.recording import Call, Step
from tracelens.watch.stragglers import Straggler, StragglerWatch

MS = 1_000_000
STEP_NS = 100 * MS
ALLREDUCE = COLLECTIVES.index("allreduce")


class Job:
    """Ranks whose steps end in an allreduce; each rank's clock has an offset of its own."""

    def __init__(self, ranks: int, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.offsets_ns = self.random.integers(0, 10**15, ranks)
        self.processes: dict[int, Any] = {
            rank: SimpleNamespace(
                is_over=False,
                recording=SimpleNamespace(steps=[], call_logs={"world": SimpleNamespace(calls={})}),
            )
            for rank in range(ranks)
        }
        self.step = 0

    def run(self, steps: int, straggler: int | None = None, lag_ns: int = 0) -> None:
        for _ in range(steps):
            work_ns = self.random.normal(60 * MS, MS, len(self.processes)).astype(np.int64)
            if straggler is not None:
                work_ns[straggler] += lag_ns
            begin_ns, end_ns = self.step * STEP_NS, self.step * STEP_NS + work_ns.max() + MS
            for rank, process in self.processes.items():
                offset_ns = int(self.offsets_ns[rank])
                entered_ns = begin_ns + int(work_ns[rank]) + offset_ns
                process.recording.steps.append(
                    Step(self.step, begin_ns + offset_ns, int(end_ns) + offset_ns)
                )
                process.recording.call_logs["world"].calls[self.step] = Call(
                    self.step, ALLREDUCE, self.step, -1, 8, 0, -1, entered_ns,
                    int(end_ns) + offset_ns,
                )  # fmt: skip
            self.step += 1


def watch(job: Job, stragglers: StragglerWatch, steps: int, **late: Any) -> list[Straggler]:
    """Run steps, with a look after every ten of them."""
    changes = []
    for _ in range(0, steps, 10):
        job.run(10, **late)
        changes += stragglers.look(job.processes)
    return changes


def test_rank_is_late_and_on_time_again() -> None:
    job, stragglers = Job(ranks=3, seed=1), StragglerWatch()
    assert watch(job, stragglers, 100) == []
    (alarm,) = watch(job, stragglers, 60, straggler=2, lag_ns=15 * MS)
    assert (alarm.rank, alarm.is_over) == (2, False)
    assert 100 <= alarm.first_step < alarm.last_step <= 130
    assert 0.1 < alarm.lag < 0.25
    assert watch(job, stragglers, 40, straggler=2, lag_ns=15 * MS) == []
    (resolved,) = watch(job, stragglers, 150)
    assert (resolved.rank, resolved.is_over) == (2, True)


def test_healthy_ranks_are_never_late() -> None:
    for seed in range(5):
        assert watch(Job(ranks=4, seed=seed), StragglerWatch(), 500) == []


def test_other_ranks_begin_anew() -> None:
    job, stragglers = Job(ranks=3, seed=2), StragglerWatch()
    watch(job, stragglers, 60, straggler=1, lag_ns=20 * MS)
    del job.processes[2]
    assert watch(job, stragglers, 60, straggler=1, lag_ns=20 * MS)[0].rank == 1


def test_rank_alone_is_never_late() -> None:
    assert watch(Job(ranks=1, seed=3), StragglerWatch(), 50) == []
