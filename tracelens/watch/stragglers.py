"""Which ranks are late while the job runs, by a test that may look at every step of a run.

No rank leaves a full collective before the last one has entered it. So the rank with the shortest call
is the one that the others waited for. That needs no common clock. After each step that all ranks have
completed, the calls of the step tell by how much each rank was late (`tracelens.stats.straggler_test`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.schema.vocabulary import COLLECTIVES, FULL_COLLECTIVES
from tracelens.stats.straggler_test import MIN_LAG_OF_STRAGGLER, StragglerTest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tracelens.arrays import Floats
    from tracelens.watch.job import JobProcess
    from tracelens.watch.recording import LiveRecording

__all__ = ["Straggler", "StragglerWatch"]

# steps: a rank is on time again if it was late in no more of so many than by chance
# [chosen; one decision in StragglerWatch._begin, StragglerWatch._has_caught_up]
MIN_STEPS_UNTIL_CAUGHT_UP: Final = 50
_FULL_CODES: Final = frozenset(map(COLLECTIVES.index, FULL_COLLECTIVES))


@dataclass(frozen=True)
class Straggler:
    """A rank that others wait for since `first_step`, by `lag` as a share of a step, the median.

    `is_over`: it is not late any more.
    """

    rank: int
    first_step: int
    last_step: int
    lag: float
    is_over: bool = False


class StragglerWatch:
    """Follows the steps of a job and names the ranks that are late beyond chance, each once."""

    def __init__(self) -> None:
        self._ranks: tuple[int, ...] = ()
        self._test: StragglerTest | None = None
        self._next_step = 0
        self._named: dict[int, Straggler] = {}
        self._recent_lags: dict[int, deque[tuple[int, float]]] = {}

    def look(self, processes: Mapping[int, JobProcess]) -> list[Straggler]:
        """Judge the steps that ranks have completed since the last look; return what has changed."""
        recordings = {
            rank: one.recording
            for rank, one in sorted(processes.items())
            if one.recording is not None and not one.is_over and one.recording.steps
        }
        ranks = tuple(recordings)
        if ranks != self._ranks:
            self._begin(ranks)
        if self._test is None:
            return []
        changes: list[Straggler] = []
        for step in self._list_new_steps(recordings):
            changes += self._judge(step, _measure_lags(recordings, step))
            self._next_step = step + 1
        return changes

    def _begin(self, ranks: tuple[int, ...]) -> None:
        """Begin anew for other ranks."""
        self._ranks = ranks
        self._test = StragglerTest(len(ranks)) if len(ranks) > 1 else None
        self._next_step = 0
        self._named.clear()
        self._recent_lags = {rank: deque(maxlen=MIN_STEPS_UNTIL_CAUGHT_UP) for rank in ranks}

    def _list_new_steps(self, recordings: Mapping[int, LiveRecording]) -> list[int]:
        """Return the steps that all ranks have completed since the last look, the first ones apart."""
        completed = [{step.number for step in one.steps} for one in recordings.values()]
        shared = sorted(set.intersection(*completed))
        if not self._next_step:  # what came before the first look, compilation for example
            self._next_step = shared[-1] + 1 if shared else 0
            return []
        return [step for step in shared if step >= self._next_step]

    def _judge(self, step: int, lags: Floats) -> list[Straggler]:
        assert self._test is not None
        changes = []
        straggler_indices = set(self._test.add_step(lags))
        for index, rank in enumerate(self._ranks):
            lag = float(lags[index])
            recent = self._recent_lags[rank]
            recent.append((step, lag))
            straggler_lags = [one for _, one in recent if one >= MIN_LAG_OF_STRAGGLER]
            known = self._named.get(rank)
            if known is None and index in straggler_indices and straggler_lags:
                first_step = _find_onset(recent)
                self._named[rank] = Straggler(rank, first_step, step, median(straggler_lags))
                changes.append(self._named[rank])
            elif known is not None and self._has_caught_up(
                len(straggler_lags), step - known.last_step
            ):
                del self._named[rank]
                self._test.forget(index)
                changes.append(Straggler(rank, known.first_step, step, known.lag, is_over=True))
        return changes

    def _has_caught_up(self, straggler_count: int, steps_since_alarm: int) -> bool:
        """Return True if a rank that was late is so no more often than any rank is by chance."""
        is_long_enough = steps_since_alarm >= MIN_STEPS_UNTIL_CAUGHT_UP
        return is_long_enough and straggler_count * len(self._ranks) <= MIN_STEPS_UNTIL_CAUGHT_UP


def _find_onset(recent: Iterable[tuple[int, float]]) -> int:
    """Return the step since which a rank has been late most of the time; `recent` are steps and lags."""
    steps, lags = zip(*recent, strict=True)
    beyond_half = np.where(np.array(lags) >= MIN_LAG_OF_STRAGGLER, 0.5, -0.5)
    sums_from_step = beyond_half[::-1].cumsum()[::-1]
    return int(steps[int(sums_from_step.argmax())])


def _measure_lags(recordings: Mapping[int, LiveRecording], step: int) -> Floats:
    """Return by how much ranks were later than their peers in a step, as a share of it, [rank].

    Of several calls the one with the largest lag counts; NaN where no call of the step is known.
    """
    durations = [_list_durations(one, step) for one in recordings.values()]
    lengths_ns = [
        at.end_ns - at.start_ns
        for one in recordings.values()
        for at in one.steps
        if at.number == step
    ]
    shared = set.intersection(*(set(one) for one in durations))
    if not shared or not lengths_ns:
        return np.full(len(durations), np.nan)
    calls_ns = np.array([[one[call] for call in sorted(shared)] for one in durations], float)
    count = len(calls_ns)
    others_ns = np.stack(
        [np.median(np.delete(calls_ns, rank, axis=0), axis=0) for rank in range(count)]
    )
    largest_lags_ns = (others_ns - calls_ns).max(axis=1)
    return np.asarray(largest_lags_ns / max(median(lengths_ns), 1))


def _list_durations(recording: LiveRecording, step: int) -> dict[tuple[str, int], int]:
    """Return how long the full collectives of a step took a rank, ns, by communicator and number."""
    return {
        (uid, call.seq): call.end_ns - call.start_ns
        for uid, log in recording.call_logs.items()
        for call in log.calls.values()
        if call.step == step and call.op in _FULL_CODES and not call.is_open
    }
