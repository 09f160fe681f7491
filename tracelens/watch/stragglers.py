"""Which ranks are late while the job runs, by a test that may look at every step of a run.

No rank leaves a full collective before the last one has entered it. So the rank with the shortest call
is the one that the others waited for. That needs no common clock. After each step that all ranks have
completed, the calls of the step tell by how much each rank was late (`tracelens.stats.straggler_test`).

On a busy machine the same rank may come last again and again, as it waits for a core. Steps are left out
in which it would have come last no more without these waits (`CoreWaits`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import takewhile
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.model.columns import FOREVER
from tracelens.schema.vocabulary import COLLECTIVES, FULL_COLLECTIVES
from tracelens.stats.null_model import median_of_others
from tracelens.stats.straggler_test import MIN_LAG_OF_STRAGGLER, StragglerTest
from tracelens.watch.core_waits import CoreWaits

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from tracelens.arrays import Floats
    from tracelens.watch.job import JobProcess
    from tracelens.watch.recording import LiveRecording, Step

    Calls: TypeAlias = dict[tuple[str, int], int]  # ns, by communicator and number

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

    def __init__(self, core_waits: CoreWaits | None = None) -> None:
        self._core_waits = core_waits or CoreWaits()
        self._ranks: tuple[int, ...] = ()
        self._test: StragglerTest | None = None
        self._next_step = 0
        self._named: dict[int, Straggler] = {}
        self._recent_lags: dict[int, deque[tuple[int, float]]] = {}

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
        changes: list[Straggler] = []
        lengths_ns = [
            {
                step.number: step.end_ns - step.start_ns
                for step in takewhile(self._is_new, reversed(recording.steps))
            }
            for recording in recordings.values()
        ]
        steps = self._list_new_steps(lengths_ns)
        if not steps:
            return []
        calls_by_rank = [_group_calls(recording, set(steps)) for recording in recordings.values()]
        lags = _measure_lags(calls_by_rank, lengths_ns, steps)
        members = [processes[rank] for rank in ranks]
        _leave_out_core_waits(lags, lengths_ns, steps, self._measure_core_waits(members, steps[0]))
        for step, lags_of_step in zip(steps, lags, strict=True):
            changes += self._judge(step, lags_of_step)
            self._next_step = step + 1
        return changes

    def _is_new(self, step: Step) -> bool:
        return step.number >= self._next_step

    def _measure_core_waits(self, members: Sequence[JobProcess], first_step: int) -> Floats:
        """Return for how long each rank has waited for cores since a step began, at most, ns, [rank]."""
        waits_ns = []
        for member in members:
            assert member.recording is not None
            starts_ns = [s.start_ns for s in member.recording.steps if s.number == first_step]
            waits_ns.append(self._core_waits.measure_ns(member, min(starts_ns)))
        return np.array(waits_ns, float)

    def _begin(self, ranks: tuple[int, ...]) -> None:
        """Begin anew for other ranks."""
        self._ranks = ranks
        self._test = StragglerTest(len(ranks)) if len(ranks) > 1 else None
        self._next_step = 0
        self._named.clear()
        self._recent_lags = {rank: deque(maxlen=MIN_STEPS_UNTIL_CAUGHT_UP) for rank in ranks}

    def _list_new_steps(self, lengths_ns: Sequence[Mapping[int, int]]) -> list[int]:
        """Return the steps that all ranks have completed since the last look, the first ones apart.

        Args:
            lengths_ns: How long steps from the next one on took each rank, by step.
        """
        shared = sorted(set.intersection(*map(set, lengths_ns)))
        if not self._next_step:  # what came before the first look, compilation for example
            self._next_step = shared[-1] + 1 if shared else 0
            return []
        return shared

    def _judge(self, step: int, lags: Floats) -> list[Straggler]:
        """Return the ranks that have become stragglers, or are on time again, with a step.

        `lags` are shares of a step, [rank].
        """
        assert self._test is not None
        changes = []
        straggler_indices = set(self._test.add_step(lags))
        for index, (rank, lag) in enumerate(zip(self._ranks, lags.tolist(), strict=True)):
            recent = self._recent_lags[rank]
            recent.append((step, lag))
            straggler = self._named.get(rank)
            if straggler is None and index not in straggler_indices:
                continue
            straggler_lags = [
                recent_lag for _, recent_lag in recent if recent_lag >= MIN_LAG_OF_STRAGGLER
            ]
            if straggler is None and straggler_lags:
                first_step = _find_onset(recent)
                self._named[rank] = Straggler(rank, first_step, step, median(straggler_lags))
                changes.append(self._named[rank])
            elif straggler is not None and self._has_caught_up(
                len(straggler_lags), step - straggler.last_step
            ):
                del self._named[rank]
                self._test.forget(index)
                changes.append(
                    Straggler(rank, straggler.first_step, step, straggler.lag, is_over=True)
                )
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


def _leave_out_core_waits(
    lags: Floats,
    lengths_ns: Sequence[Mapping[int, int]],
    steps: Sequence[int],
    waits_ns: Floats,
) -> None:
    """Replace by NaN all lags of steps whose last rank may be late only because of waits for cores.

    A rank is late by no more than it waited itself, and its peers waited in their calls. Half of the
    peers wait as long as their median or longer, which bounds that by their sum. It is not known in
    which steps they waited, so the waits are taken from as many steps as they can explain.

    Args:
        lags: By how much each rank was late, as a share of the step, [step, rank].
        lengths_ns: How long steps took each rank, by step.
        steps: Numbers of the steps.
        waits_ns: For how long each rank waited for cores in all these steps, at most, [rank].
    """
    peer_count = len(waits_ns) - 1
    explained_ns = np.array(
        [
            wait_ns + np.delete(waits_ns, rank_index).sum() / (peer_count // 2 + 1)
            for rank_index, wait_ns in enumerate(waits_ns)
        ]
    )
    # Of each rank that was last: by how much, ns, and the index of the step.
    straggler_steps: dict[int, list[tuple[float, int]]] = {}
    for index, lags_of_step in enumerate(lags):
        if np.isfinite(lags_of_step).any():
            last_rank = int(np.nanargmax(lags_of_step))
            step_ns = median(lengths_by_step[steps[index]] for lengths_by_step in lengths_ns)
            straggler_steps.setdefault(last_rank, []).append(
                (float(lags_of_step[last_rank]) * step_ns, index)
            )
    for rank_index, lags_ns in straggler_steps.items():
        for lag_ns, index in sorted(lags_ns):
            explained_ns[rank_index] -= max(lag_ns, 0.0)
            if explained_ns[rank_index] < 0:
                break
            lags[index][:] = np.nan


def _measure_lags(
    calls_by_rank: Sequence[Mapping[int, Calls]],
    lengths_ns: Sequence[Mapping[int, int]],
    steps: Sequence[int],
) -> Floats:
    """Return by how much ranks were later than their peers in steps, as a share of them, [step, rank].

    Of several calls the one with the largest lag counts; NaN where no call of the step is known.

    Args:
        calls_by_rank: How long calls took each rank, ns, by step and call.
        lengths_ns: How long steps took each rank, by step.
        steps: Numbers of steps that all ranks have completed, at least one.
    """
    lags = np.full((len(steps), len(calls_by_rank)), np.nan)
    durations_ns: list[list[int]] = []
    first_rows: list[int] = []
    step_indices: list[int] = []
    for step_index, step in enumerate(steps):
        calls = [calls_by_step.get(step, {}) for calls_by_step in calls_by_rank]
        shared_calls = set.intersection(*map(set, calls))
        if shared_calls:
            first_rows.append(len(durations_ns))
            step_indices.append(step_index)
            durations_ns += [[one[call] for one in calls] for call in shared_calls]
    if not durations_ns:
        return lags
    durations = np.array(durations_ns, float)
    lags_ns = median_of_others(durations) - durations
    lags[step_indices] = np.maximum.reduceat(lags_ns, first_rows, axis=0)
    step_ns = [median(lengths_by_step[step] for lengths_by_step in lengths_ns) for step in steps]
    return np.asarray(lags / np.maximum(step_ns, 1)[:, None])


def _group_calls(recording: LiveRecording, steps: Container[int]) -> dict[int, Calls]:
    """Return a rank's durations of the full collectives of some steps, ns, by step and call."""
    calls_by_step: dict[int, Calls] = {}
    for uid, log in recording.call_logs.items():
        for seq, op, step, *_, start_ns, end_ns, has_failed in log.calls.values():
            has_ended = end_ns != FOREVER and not has_failed
            if has_ended and step in steps and op in _FULL_CODES:
                calls_by_step.setdefault(step, {})[uid, seq] = end_ns - start_ns
    return calls_by_step
