"""Which ranks are late while the job runs, by a test that may look at every step of a run.

No rank leaves a full collective before the last one has entered it. So the rank with the shortest call
is the one that the others waited for. That needs no common clock. After each step that all ranks have
completed, the calls of the step tell by how much each rank was late (`tracelens.stats.straggler_test`).

On a busy machine the same rank may come last again and again, as it waits for a core. Steps are left out
in which it would have come last no more without these waits (`CoreWaits`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.stats.null_model import median_of_others
from tracelens.stats.straggler_test import MIN_LAG_OF_STRAGGLER, StragglerTest
from tracelens.watch.core_waits import CoreWaits
from tracelens.watch.ended_spans import match_spans

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.watch.job import JobProcess
    from tracelens.watch.recording import LiveRecording

__all__ = ["Straggler", "StragglerWatch"]

# steps: a rank is on time again if it was late in no more of so many than by chance
# [chosen; one decision in StragglerWatch.__init__, StragglerWatch._has_caught_up]
MIN_STEPS_UNTIL_CAUGHT_UP: Final = 50


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

    def __init__(self, core_waits: CoreWaits | None = None) -> None:
        self._core_waits = core_waits or CoreWaits()
        self._ranks: tuple[int, ...] = ()
        self._test: StragglerTest | None = None
        self._next_step = 0
        self._named: dict[int, Straggler] = {}
        # The last steps, and the lags of all ranks in them.
        self._recent_lags: deque[tuple[int, Floats]] = deque(maxlen=MIN_STEPS_UNTIL_CAUGHT_UP)

    def look(self, processes: Mapping[int, JobProcess]) -> list[Straggler]:
        """Judge the steps that ranks have completed since the last look; return what has changed."""
        recordings = {
            rank: member.recording
            for rank, member in sorted(processes.items())
            if member.recording is not None and not member.is_over and member.recording.steps
        }
        ranks = tuple(recordings)
        if ranks != self._ranks:
            self._begin(ranks)
        if self._test is None:
            return []
        self._core_waits.look(processes)
        for recording in recordings.values():
            recording.forget_before(self._next_step)
        steps = match_spans([recording.ended_steps for recording in recordings.values()])
        if not len(steps.numbers):
            return []
        first_step, next_step = self._next_step, int(steps.numbers[-1]) + 1
        self._next_step = next_step
        if not first_step:  # what came before the first look, compilation for example
            return []
        lags_ns = _measure_lags_ns(list(recordings.values()), steps.numbers)
        waits_ns = [
            self._core_waits.measure_ns(processes[rank], int(start_ns))
            for rank, start_ns in zip(ranks, steps.start_ns[0], strict=True)
        ]
        _leave_out_core_waits(lags_ns, np.array(waits_ns, float))
        usual_ns = np.median(steps.end_ns - steps.start_ns, axis=1)
        lags = lags_ns / np.maximum(usual_ns, 1)[:, None]
        return [
            change
            for step, lags_of_step in zip(steps.numbers.tolist(), lags, strict=True)
            for change in self._judge(step, lags_of_step)
        ]

    def _begin(self, ranks: tuple[int, ...]) -> None:
        """Begin anew for other ranks."""
        self._ranks = ranks
        self._test = StragglerTest(len(ranks)) if len(ranks) > 1 else None
        self._next_step = 0
        self._named.clear()
        self._recent_lags.clear()

    def _judge(self, step: int, lags: Floats) -> list[Straggler]:
        """Return the ranks that have become stragglers, or are on time again, with a step.

        `lags` are shares of a step, [rank].
        """
        assert self._test is not None
        self._recent_lags.append((step, lags))
        straggler_index = self._test.add_step(lags)
        changes = []
        for straggler in list(self._named.values()):
            if self._has_caught_up(straggler, step):
                del self._named[straggler.rank]
                self._test.forget(self._ranks.index(straggler.rank))
                changes.append(replace(straggler, last_step=step, is_over=True))
        if straggler_index is not None and self._ranks[straggler_index] not in self._named:
            rank, recent_lags = self._ranks[straggler_index], self._get_recent_lags(straggler_index)
            is_delayed = recent_lags >= MIN_LAG_OF_STRAGGLER
            first_step = self._recent_lags[_find_onset(is_delayed)][0]
            lag = float(np.median(recent_lags[is_delayed]))
            self._named[rank] = Straggler(rank, first_step, step, lag)
            changes.append(self._named[rank])
        return changes

    def _has_caught_up(self, straggler: Straggler, step: int) -> bool:
        """Return True if a straggler is on time again with a step: late no more often than by chance."""
        if step - straggler.last_step < MIN_STEPS_UNTIL_CAUGHT_UP:
            return False
        recent_lags = self._get_recent_lags(self._ranks.index(straggler.rank))
        delayed_count = np.count_nonzero(recent_lags >= MIN_LAG_OF_STRAGGLER)
        return bool(delayed_count * len(self._ranks) <= MIN_STEPS_UNTIL_CAUGHT_UP)

    def _get_recent_lags(self, rank_index: int) -> Floats:
        """Return a rank's lags in the last steps, as shares of them, [step]."""
        return np.array([lags[rank_index] for _, lags in self._recent_lags])


def _find_onset(is_delayed: Flags) -> int:
    """Return the index of the step since which a rank has been late most of the time, of [step]."""
    sums_from_step = np.where(is_delayed, 0.5, -0.5)[::-1].cumsum()[::-1]
    return int(sums_from_step.argmax())


def _leave_out_core_waits(lags_ns: Floats, waits_ns: Floats) -> None:
    """Replace by NaN all lags of steps whose last rank may be late only because of waits for cores.

    A rank is late by no more than it waited itself, and its peers waited in their calls. Half of the
    peers wait as long as their median or longer, which bounds that by their sum. It is not known in
    which steps they waited, so the waits are taken from as many steps as they can explain.

    Args:
        lags_ns: By how much each rank was late, [step, rank].
        waits_ns: For how long each rank waited for cores in all these steps, at most, [rank]; infinite
            if not known.
    """
    if not np.isfinite(waits_ns).all():  # an unknown wait may explain each step
        lags_ns[:] = np.nan
        return
    peer_count = len(waits_ns) - 1
    explained_ns = waits_ns + (waits_ns.sum() - waits_ns) / (peer_count // 2 + 1)
    known_steps = np.flatnonzero(np.isfinite(lags_ns).any(axis=1))
    last_ranks = np.nanargmax(lags_ns[known_steps], axis=1)
    largest_lags_ns = np.maximum(lags_ns[known_steps, last_ranks], 0.0)
    for rank_index in np.unique(last_ranks):
        rows = np.flatnonzero(last_ranks == rank_index)
        rows = rows[np.argsort(largest_lags_ns[rows], kind="stable")]
        is_explained = largest_lags_ns[rows].cumsum() <= explained_ns[rank_index]
        lags_ns[known_steps[rows[is_explained]]] = np.nan


def _measure_lags_ns(recordings: Sequence[LiveRecording], steps: Ints) -> Floats:
    """Return by how much ranks came later than their peers in steps, ns, [step, rank].

    Of several calls the one with the largest lag counts; NaN where no call of the step is known.

    Args:
        recordings: What each rank recorded, [rank].
        steps: Numbers of steps that all ranks have completed, ascending.
    """
    lags_ns = np.full((len(steps), len(recordings)), np.nan)
    for uid in set.intersection(*(set(recording.ended_calls) for recording in recordings)):
        calls = match_spans([recording.ended_calls[uid] for recording in recordings])
        calls = calls.pick(np.flatnonzero(np.isin(calls.steps, steps)))
        if len(calls.numbers):
            durations_ns = (calls.end_ns - calls.start_ns).astype(np.float64)
            step_indices = np.searchsorted(steps, calls.steps)
            np.fmax.at(lags_ns, step_indices, median_of_others(durations_ns) - durations_ns)
    return lags_ns
