"""Healthy training with time that passes faster: it is looked at once a second of its own time."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Final, cast

from support.watch.jobs import S, enter, job_of, rank_of

from tracelens.watch.pauses import BETWEEN_STEPS, START, STEP, SeenPauses, pause_of_stack
from tracelens.watch.recording import STEPS_OF_START, Step
from tracelens.watch.stalls import StallDetector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.watch.stalls import Stall

WORLD: Final = [0, 1, 2]
COMPILATION: Final = "compilation"
# Shortest and longest, s, and the ranks that make the pause; the others wait meanwhile.
PAUSES: Final = {
    "checkpoint": (10, 80, [0]),
    "evaluation": (30, 120, [0]),
    "data": (1, 6, WORLD),
    BETWEEN_STEPS: (1, 25, WORLD),
    COMPILATION: (5, 120, WORLD),
}
TRAINING_S: Final = (30, 300)  # between two pauses
# The stack of a rank that compiles within a step, which no span marks.
COMPILING_STACK: Final = (
    "compile_fx (torch/_inductor/compile_fx.py:1)",
    "training_step (train.py:1)",
)
BEGIN_S: Final = 100


class HealthyJob:
    """A job that starts, trains and pauses.

    `stalls` are those that a watch would report, `pause_counts` the pauses of each kind so far.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._detector = StallDetector()
        self._ranks = [
            rank_of(rank, step_count=0, progress_ns=BEGIN_S * S, steps=[]) for rank in WORLD
        ]
        for member in self._ranks:
            member.process = replace(member.process, incarnation=BEGIN_S * S)
        self._recordings = [cast("Any", member.recording) for member in self._ranks]
        self._usual_step_s = self._random.uniform(0.05, 3)
        self._look_s = BEGIN_S
        self._calls = 0
        self._next_kinds: list[str] = []
        self._is_compiling = False
        self.now_s = float(BEGIN_S)
        self.stalls: list[Stall] = []
        self.pause_counts: dict[str, int] = {}

    def run(self, hours: float) -> None:
        """Start, then train and pause in turn for so long."""
        self.start()
        while self.now_s - BEGIN_S < hours * 3600:
            self.train()
            self.pause_somehow()

    def start(self) -> None:
        """Start up, and make the first steps, of which each may compile."""
        self.pause(START, self._random.uniform(5, 200), WORLD)
        for _ in range(STEPS_OF_START):
            self.pause(START, self._random.uniform(1, 90), WORLD)
            self._complete_step(self._usual_step_s)

    def train(self) -> None:
        """Make steps of different lengths for some minutes, a few of them much longer."""
        end_s = self.now_s + self._random.uniform(*TRAINING_S)
        while self.now_s < end_s:
            length_s = self._usual_step_s * self._random.lognormvariate(0, 0.25)
            if self._random.random() < 0.002:
                length_s *= self._random.uniform(2, 5)
            self._complete_step(length_s)

    def pause(self, kind: str, length_s: float, pausing_ranks: Sequence[int]) -> None:
        """Let some ranks pause, and the others wait for them in a call."""
        self._calls += 1
        self.pause_counts[kind] = self.pause_counts.get(kind, 0) + 1
        self._is_compiling = kind == COMPILATION
        for rank, recording in enumerate(self._recordings):
            recording.progress_ns = int(self.now_s * S)
            if rank in pausing_ranks:
                recording.pause = STEP if kind == COMPILATION else kind
            else:
                call = (self._calls, "allreduce", int(self.now_s), None)
                enter(self._ranks[rank], "w", WORLD, call)
        self._pass(length_s)
        self._is_compiling = False
        for rank, recording in enumerate(self._recordings):
            recording.pause, recording.call_logs = STEP, {}
            recording.progress_ns = int(self.now_s * S)
            if rank in pausing_ranks and kind not in {BETWEEN_STEPS, START, COMPILATION}:
                seen = recording.pauses.get(kind, SeenPauses())
                recording.pauses[kind] = seen.with_pauses(1, int(length_s * S))

    def pause_somehow(self) -> None:
        """Make a pause of the next kind, in a random order; all ranks may compile, or one."""
        if not self._next_kinds:
            self._next_kinds = self._random.sample(list(PAUSES), len(PAUSES))
        kind = self._next_kinds.pop()
        shortest_s, longest_s, pausing_ranks = PAUSES[kind]
        if kind == COMPILATION and self._random.random() < 0.5:
            pausing_ranks = [self._random.choice(WORLD)]
        self.pause(kind, self._random.uniform(shortest_s, longest_s), pausing_ranks)

    def _complete_step(self, length_s: float) -> None:
        begin_ns, end_ns = int(self.now_s * S), int((self.now_s + length_s) * S)
        for recording in self._recordings:
            recording.step_count += 1
            recording.progress_ns = begin_ns
            step = Step(recording.step_count, begin_ns, end_ns)
            recording.steps = [*recording.steps, step][-20:]
        self._pass(length_s)

    def _pass(self, length_s: float) -> None:
        """Let time pass, and look once a second as a watch does."""
        self.now_s += length_s
        while self._look_s < self.now_s:
            job = job_of(*self._ranks)
            stall = self._detector.look(job, self._look_s * S)
            is_new = stall is not None and not any(stall is known for known in self.stalls[-1:])
            if stall is not None and is_new and not self._is_excused(stall):
                self.stalls.append(stall)
            self._look_s += 1

    def _is_excused(self, stall: Stall) -> bool:
        """Return True if the stacks of the culprits show a pause, as a watch finds out by py-spy."""
        if stall.reason or stall.pause not in {STEP, BETWEEN_STEPS} or not self._is_compiling:
            return False
        pause = pause_of_stack(COMPILING_STACK)
        assert pause is not None
        self._detector.excuse(stall, job_of(*self._ranks).ranks, pause)
        return True
