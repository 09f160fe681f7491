"""Hours of healthy training, with time that passes faster: no look accuses a rank."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final, cast

import pytest
from support.watch.jobs import S, enter, job_of, rank_of

from tracelens.watch.pauses import BETWEEN_STEPS, START, STEP, SeenPauses
from tracelens.watch.recording import Step
from tracelens.watch.stalls import StallDetector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.watch.stalls import Stall

WORLD: Final = [0, 1, 2]
HOURS: Final = 2
# Share of all pauses, shortest and longest, s, and the ranks that make it; the others wait meanwhile.
PAUSES: Final = {
    "checkpoint": (0.3, 10, 80, [0]),
    "evaluation": (0.2, 30, 120, [0]),
    "data": (0.3, 1, 6, WORLD),
    BETWEEN_STEPS: (0.2, 1, 25, WORLD),
}


class HealthyJob:
    """A job that trains and pauses; it is looked at once a second."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._detector = StallDetector()
        self._ranks = [rank_of(rank, step_count=0, progress_ns=100 * S) for rank in WORLD]
        self._recordings = [cast("Any", one.recording) for one in self._ranks]
        self._usual_step_s = self._random.uniform(0.05, 3)
        self._look_s = 100
        self._calls = 0
        self.now_s = 100.0
        self.stalls: list[Stall] = []

    def train(self) -> None:
        """Make some hundred steps of different lengths, a few of them much longer."""
        for _ in range(self._random.randint(100, 300)):
            length_s = self._usual_step_s * self._random.lognormvariate(0, 0.25)
            if self._random.random() < 0.002:
                length_s *= self._random.uniform(2, 5)
            for recording in self._recordings:
                begin_ns, end_ns = int(self.now_s * S), int((self.now_s + length_s) * S)
                recording.step_count += 1
                recording.progress_ns = begin_ns
                step = Step(recording.step_count, begin_ns, end_ns)
                recording.steps = [*recording.steps, step][-20:]
            self._pass(length_s)

    def pause(self, kind: str, length_s: float, pausing_ranks: Sequence[int]) -> None:
        """Let some ranks pause, and the others wait for them in a call."""
        self._calls += 1
        for rank, recording in enumerate(self._recordings):
            recording.progress_ns = int(self.now_s * S)
            if rank in pausing_ranks:
                recording.pause = kind
            else:
                call = (self._calls, "allreduce", int(self.now_s), None)
                enter(self._ranks[rank], "w", WORLD, call)
        self._pass(length_s)
        for rank, recording in enumerate(self._recordings):
            recording.pause, recording.call_logs = STEP, {}
            recording.progress_ns = int(self.now_s * S)
            if rank in pausing_ranks and kind not in {BETWEEN_STEPS, START}:
                seen = recording.pauses.get(kind, SeenPauses())
                recording.pauses[kind] = seen.with_pauses(1, int(length_s * S))

    def pause_somehow(self) -> None:
        """Pause by chance."""
        shares = [share for share, *_ in PAUSES.values()]
        (kind,) = self._random.choices(list(PAUSES), shares)
        _, shortest_s, longest_s, pausing_ranks = PAUSES[kind]
        self.pause(kind, self._random.uniform(shortest_s, longest_s), pausing_ranks)

    def start(self) -> None:
        self.pause(START, self._random.uniform(5, 200), WORLD)

    def _pass(self, length_s: float) -> None:
        self.now_s += length_s
        while self._look_s < self.now_s:
            stall = self._detector.look(job_of(*self._ranks), self._look_s * S)
            if stall is not None:
                self.stalls.append(stall)
            self._look_s += 1


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))]
)
def test_no_rank_is_accused(seed: int) -> None:
    """Twenty hours in all: checkpoints, evaluation, epochs, and steps of different lengths."""
    job = HealthyJob(seed)
    job.start()
    while job.now_s < HOURS * 3600:
        job.train()
        job.pause_somehow()
    assert job.stalls == []
