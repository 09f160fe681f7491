"""Ranks whose steps end in an allreduce, and a watch that looks for late ones: no process, no file."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from tracelens.watch.ended_spans import EndedSpans
from tracelens.watch.recording import MAX_STEPS_KEPT, Step
from tracelens.watch.stragglers import StragglerWatch

if TYPE_CHECKING:
    from tracelens.watch.core_waits import CoreWaits
    from tracelens.watch.stragglers import Straggler

MS: Final = 1_000_000
WORK_NS: Final = 60 * MS
CALL_NS: Final = 1 * MS  # of the rank that enters last
STEP_NS: Final = WORK_NS + CALL_NS
STEPS_PER_LOOK: Final = 10


def make_straggler_watch(*shares: float) -> StragglerWatch:
    """Return a watch of ranks that wait for cores for shares of the time; none do without any."""
    return StragglerWatch(cast("CoreWaits", FakeCoreWaits(*shares)))


class FakeRecording:
    """The steps of a rank, each with one allreduce at its end."""

    def __init__(self) -> None:
        self.steps: deque[Step] = deque(maxlen=MAX_STEPS_KEPT)
        self.ended_steps = EndedSpans.empty()
        self.ended_calls = {"world": EndedSpans.empty()}

    def add_step(self, number: int, start_ns: int, call_start_ns: int, end_ns: int) -> None:
        """Add a step."""
        self.steps.append(Step(number, start_ns, end_ns))
        step, call = (
            EndedSpans(*np.array([[number], [number], [ns], [end_ns]]))
            for ns in (start_ns, call_start_ns)
        )
        self.ended_steps = self.ended_steps.joined_with(step)
        self.ended_calls = {"world": self.ended_calls["world"].joined_with(call)}

    def forget_before(self, step: int) -> None:
        """Drop steps before a step, and their calls."""
        self.ended_steps = self.ended_steps.from_step(step)
        self.ended_calls = {"world": self.ended_calls["world"].from_step(step)}


class LateRanksJob:
    """A job in which a rank may be late; each rank's clock has an offset of its own."""

    def __init__(self, ranks: int, seed: int, noise_ns: int = MS) -> None:
        """Begin.

        Args:
            ranks: Their number.
            seed: Of the lengths of work and the offsets of clocks.
            noise_ns: Standard deviation of the work of a rank in a step.
        """
        self._random = np.random.default_rng(seed)
        self._noise_ns = noise_ns
        self._offsets_ns = self._random.integers(0, 10**15, ranks).tolist()
        self._now_ns = 0
        self.processes: dict[int, Any] = {}
        self.step = 0
        for rank in range(ranks):
            recording = FakeRecording()
            self.processes[rank] = SimpleNamespace(rank=rank, is_over=False, recording=recording)

    def run(self, steps: int, straggler: int | None = None, lag_ns: int = 0) -> None:
        """Make steps, in which a rank may work longer."""
        for _ in range(steps):
            work_ns = self._random.normal(WORK_NS, self._noise_ns, len(self.processes))
            if straggler is not None:
                work_ns[straggler] += lag_ns
            entered_ns = (self._now_ns + work_ns).astype(np.int64).tolist()
            end_ns = max(entered_ns) + CALL_NS
            for rank, process in self.processes.items():
                offset_ns = self._offsets_ns[rank]
                process.recording.add_step(
                    self.step,
                    self._now_ns + offset_ns,
                    entered_ns[rank] + offset_ns,
                    end_ns + offset_ns,
                )
            self.step += 1
            self._now_ns = end_ns


class FakeCoreWaits:
    """Waits of ranks for cores, as shares of the time; ranks beyond them do not wait."""

    def __init__(self, *shares: float) -> None:
        self.shares = shares

    def look(self, processes: dict[int, Any]) -> None:
        """Read nothing."""

    def measure_ns(self, member: Any, since_ns: int) -> float:
        """Return for how long a rank has waited since a time of its clock, ns."""
        share = self.shares[member.rank] if member.rank < len(self.shares) else 0.0
        elapsed_ns = member.recording.steps[-1].end_ns - since_ns
        return share * elapsed_ns if share else 0.0


def watch_steps(
    job: LateRanksJob, stragglers: StragglerWatch, steps: int, **late: Any
) -> list[Straggler]:
    """Run steps, with a look after every ten of them; return what the watch has told."""
    changes = []
    for _ in range(0, steps, STEPS_PER_LOOK):
        job.run(STEPS_PER_LOOK, **late)
        changes += stragglers.look(job.processes)
    return changes
